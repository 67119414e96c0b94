"""`robolearn workflow`: writes the steps as an engine's files, or runs them here."""

from __future__ import annotations

import inspect
import json
import shlex
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from robolearn.commands.exits import OK
from robolearn.commands.workflow import kuberay, kuberay_rules, local, osmo, osmo_rules, slurm, slurm_rules
from robolearn.commands.workflow.steps import (
    DONE,
    ENGINES,
    RUN,
    SUITE,
    Request,
    key_of,
    memory_mib,
    name_of,
    on_device,
    packed,
    ranks_of,
    require_engine,
    require_one_node,
    require_placement,
    require_ranks,
    require_suite,
    resolved,
    steps_of,
    suite_text,
)
from robolearn.errors import ConfigError, listing, quote
from robolearn.export.target import load as load_target
from robolearn.files import replacing
from robolearn.training.runs import require_writable

FILE_NAME = "workflow.json"
"""What a workflow's folder was written for."""
SCHEMA = 1

FILES: dict[str, Callable[[Request], dict[str, str]]] = {
    "osmo": osmo.files,
    "slurm": slurm.files,
    "kuberay": kuberay.files,
}
CHECKS: dict[str, Callable[[str, str], None]] = {
    "osmo": osmo_rules.require_workflow,
    "slurm": slurm_rules.require_sbatch,
    "kuberay": kuberay_rules.require_manifest,
}
SUBMIT = {
    "osmo": "osmo workflow submit {folder}/workflow.yaml",
    "slurm": "bash {folder}/submit.sh",
    "kuberay": "bash {folder}/submit.sh",
}


def workflow(
    words: Sequence[str],
    output: Path,
    engine: str | None,
    here: bool,
    *,
    name: str | None = None,
    nodes: int = 1,
    gpus: int = 0,
    cpus: int = 8,
    memory: str = "32Gi",
    image: str | None = None,
    store: str | None = None,
    hours: float = 24.0,
    retries: int = 9,
    target: str = "host",
    suite: Path | None = None,
    min_survival: float = 0.9,
    setup: Sequence[str] = (),
    sbatch: Sequence[str] = (),
) -> int:
    """Write the files of an engine, or run the steps here (`here`).

    Args:
        words: settings of `robolearn train`.
        output: folder of the files; with `here` and Slurm also of the results.
        engine: osmo, slurm or kuberay.
        here: run the steps on this machine instead.
        name, nodes, gpus, cpus, memory, image, store, hours, retries, target, setup, sbatch: see `steps.Request`.
        suite: scenarios to simulate; those the policy was trained in where omitted.
        min_survival: gate of the suite where none is given.

    Returns:
        0, or with `here` the exit code of the first step that failed.

    Raises:
        ConfigError: a setting, an option or a file is invalid, or an engine would refuse what was to be written.
    """
    if here == (engine is not None):
        raise ConfigError(f"state either --engine {'|'.join(ENGINES)} or --local")
    if engine is not None:
        require_engine(engine)
    else:
        _require_local(
            nodes=nodes,
            gpus=gpus,
            cpus=cpus,
            memory=memory,
            image=image,
            store=store,
            hours=hours,
            retries=retries,
            setup=tuple(setup),
            sbatch=tuple(sbatch),
        )
    if sbatch and engine != "slurm":
        raise ConfigError("--sbatch goes with --engine slurm")
    slurm_rules.require_given(sbatch)
    there = on_device(words, engine, gpus)
    run = resolved(there)
    load_target(target)
    kept, again, files = packed(words, shared=here or engine == "slurm")
    asynchronous = run.mode == "async"
    if asynchronous:
        require_one_node(engine, nodes)
        require_placement(run, nodes, cpus)
    ranks = 1 if asynchronous else ranks_of(words, nodes, gpus)
    decided = ("ranks",) if not here else ()
    if ranks > 1:
        require_ranks(there, ranks)
    kept_words = tuple(w for w in kept if key_of(w) not in decided)
    request = Request(
        name=name_of(name, run),
        words=kept_words,
        task_words=tuple(again),
        max_iterations=run.max_iterations,
        ranks=ranks,
        asynchronous=asynchronous,
        nodes=nodes,
        gpus=gpus,
        cpus=cpus,
        memory_mib=memory_mib(memory),
        image=image or "",
        store=store or "",
        hours=hours,
        retries=retries,
        target=target,
        setup=tuple(setup),
        sbatch=tuple(option.removeprefix("--") for option in sbatch),
        suite=suite_text(suite, run, min_survival, again),
        files=tuple(files),
    )
    require_suite(request.suite, output / SUITE)
    written = {} if engine is None else FILES[engine](request)
    require_writable(output)
    _claim(output, request)
    if engine is None:
        return local.run(request, output)
    if engine == "slurm":
        written |= {SUITE: request.suite, **dict(request.files)}
    for file, content in written.items():
        with replacing(output / file) as part:
            part.write_text(content, encoding="utf-8")
            part.chmod(0o755 if file == "submit.sh" else 0o644)
    print("\n".join(_summary(engine, request, output, [*written, FILE_NAME])))
    return OK


def check(file: Path, engine: str | None) -> int:
    """Check a file, for example one that was changed by hand.

    Raises:
        ConfigError: the engine would refuse it; names the first fault.
    """
    if engine is None:
        raise ConfigError(f"--check needs --engine {'|'.join(ENGINES)}")
    require_engine(engine)
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or "it is not text"
        raise ConfigError(f"{quote(str(file), 120)} cannot be read: {why}") from error
    CHECKS[engine](text, str(file))
    print(f"{file}: {engine} accepts it")
    return OK


def _require_local(**given: Any) -> None:
    """Refuse options of `workflow` that are for a cluster alone, where they are not as by default."""
    own = inspect.signature(workflow).parameters
    for option, value in given.items():
        if value != own[option].default:
            shown = {"gpus": "gpus-per-node"}.get(option, option)
            raise ConfigError(f"--{shown} is for a cluster; --local runs every step on this machine")


def _claim(output: Path, request: Request) -> None:
    """Note what the folder is for; a folder with results of another training is refused.

    Raises:
        ConfigError: it is.
    """
    path = output / FILE_NAME
    now = {"schema": SCHEMA, "train": list(request.words), "target": request.target}
    try:
        before = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        before = None
    results = [x for x in (RUN, DONE) if (output / x).exists()]
    if results and not isinstance(before, dict):
        raise ConfigError(
            f"{quote(str(output), 120)} has a {results[0]}/ that no workflow has made, and {FILE_NAME} does not say "
            "otherwise: use another --output, or move it away"
        )
    if isinstance(before, dict) and before != now and results:
        old, new = (_flat(x) for x in (before, now))
        changed = [k for k in {**old, **new} if old.get(k) != new.get(k)]
        raise ConfigError(
            f"{quote(str(output), 120)} holds results of another workflow; {listing(changed, 4)} differ: use another "
            "--output, or remove the folder"
        )
    with replacing(path) as part:
        part.write_text(json.dumps(now, indent=1) + "\n", encoding="utf-8")


def _flat(content: dict[str, Any]) -> dict[str, Any]:
    words = content.get("train")
    pairs = {key_of(w): w for w in words if isinstance(w, str)} if isinstance(words, list) else {}
    return {**pairs, "target": content.get("target")}


def _summary(engine: str, request: Request, output: Path, written: Sequence[str]) -> list[str]:
    def count(number: int, what: str) -> str:
        return f"{number} {what}{'s' if number > 1 else ''}"

    gpus = f", {count(request.gpus, 'GPU')}" if request.gpus else ""
    nodes = count(request.nodes, "node")
    each = f"with {count(request.cpus, 'core')}, {request.memory_mib / 1024:g} GiB{gpus}"
    each = f"each {each}" if request.nodes > 1 else each
    how = f"{request.ranks} ranks" if request.ranks > 1 else "one process"
    how = "actors and a learner" if request.asynchronous else how
    out = [f"{request.name} for {engine}: {how} on {nodes}, {each}", ""]
    steps = steps_of(request)
    width = max(len(step.name) for step in steps)
    out += [f"  {step.name:<{width}}  {step.command}" for step in steps]
    out += ["", f"written to {output}: {', '.join(written)}"]
    checked = {
        "osmo": "OSMO's fields and rules",
        "kuberay": "KubeRay's fields",
        "slurm": "sbatch's options, bash -n",
    }
    out.append(f"checked against {checked[engine]}")
    if engine == "slurm" and (said := slurm.test_only(output)) is not None:
        out.append(f"sbatch --test-only: {said}")
    if engine == "slurm" and not (request.setup or request.image):
        out.append(
            "each step runs the robolearn that it finds on its node; a virtual environment is activated with"
        )
        out.append("  --setup 'source DIR/bin/activate'")
    return [*out, f"submit: {SUBMIT[engine].format(folder=shlex.quote(str(output)))}"]
