"""The steps of a workflow: what each runs, needs and leaves.

All steps work in one folder, the workflow's, with the same layout on every engine:

    run/            the training run
    evaluation/     metrics.json of `robolearn eval`
    bundle/         what `robolearn export` writes
    simulation/     out.xml and out.json of `robolearn sim --suite`, which simulates the bundle
    suite.yaml      the scenarios; a task's .py file lies beside it
    done/           an empty file for each finished step
    workflow.id     which workflow all of this is of
"""

from __future__ import annotations

import hashlib
import json
import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from robolearn import config
from robolearn.commands.suite import spec
from robolearn.config import catalog, overrides, placement, registry, yaml_file
from robolearn.config.registry import ROBOT_FILES
from robolearn.config.run_config import EXTERNAL, Config
from robolearn.errors import ConfigError, listing, quote
from robolearn.learners import saved

STEPS = ("train", "evaluate", "export", "simulate")
RUN, DONE, SUITE = "run", "done", "suite.yaml"
CLAIM = "workflow.id"
"""The file beside the results that says which workflow they are of."""
ENGINES = ("osmo", "slurm", "kuberay")
OWN = ("output", "resume")
"""Settings of `train` that the workflow sets."""
BAD_RESULT = (2, 3, 4)
"""Exit codes of `robolearn train` after which trying again gives the same: bad input, missing, the run failed."""

_PLAIN_PATH = re.compile(r"[A-Za-z0-9_./+*-]+\Z")
_NAME = re.compile(r"[a-z]([a-z0-9-]{0,35}[a-z0-9])?\Z")
_WORD = r"[a-z0-9]+((\.|__?|-+)[a-z0-9]+)*"
IMAGE = re.compile(
    r"([A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?(:\d+)?/)?"
    rf"{_WORD}(/{_WORD})*"
    r"(:\w[\w.-]{0,127})?(@[A-Za-z][A-Za-z0-9]*([-_+.][A-Za-z][A-Za-z0-9]*)*:[0-9a-fA-F]{32,})?\Z",
    re.ASCII,
)
"""A container image: [host[:port]/]path[:tag][@digest], after github.com/distribution/reference."""
_MEMORY = re.compile(r"(\d+)(Mi|Gi|Ti|M|G|T)B?\Z")


@dataclass(frozen=True)
class Request:
    """What the user asked for, checked."""

    name: str
    """Lower-case letters, digits and -, at most 37: valid on every engine."""
    words: tuple[str, ...]
    """Settings of `robolearn train`, without those that the engine decides."""
    task_words: tuple[str, ...]
    """Settings that name a file again; `eval` and `export` need them too."""
    max_iterations: int
    ranks: int
    """Processes that train together, over all nodes."""
    asynchronous: bool
    nodes: int = 1
    gpus: int = 0
    """On each node."""
    cpus: int = 8
    memory_mib: int = 32 * 1024
    """Of each node."""
    image: str = ""
    store: str = ""
    hours: float = 24.0
    """Limit of the training; other steps get a quarter of it, at least an hour."""
    retries: int = 9
    target: str = "host"
    setup: tuple[str, ...] = ()
    """Lines of bash before each step."""
    sbatch: tuple[str, ...] = ()
    """Further options of sbatch, without dashes."""
    suite: str = ""
    """Content of suite.yaml."""
    files: tuple[tuple[str, str], ...] = ()
    """Further files of the workflow's folder, name and content."""

    @property
    def per_node(self) -> int:
        """Processes of the training on each node."""
        return self.ranks // self.nodes

    @property
    def other_hours(self) -> float:
        """Limit of a step that is not the training."""
        return max(1.0, self.hours / 4)

    @property
    def digest(self) -> str:
        """Of what is trained, and for which target."""
        return _digest(self.words, self.target)

    @property
    def gates(self) -> str:
        """Of what is simulated, and how it is judged."""
        return _digest(self.suite, self.files)

    @property
    def final(self) -> str:
        """The checkpoint that a complete training leaves."""
        return f"{RUN}/checkpoints/iteration_{self.max_iterations:06d}.pt"


def _digest(*parts: Any) -> str:
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:12]


@dataclass(frozen=True)
class Step:
    """One step."""

    name: str
    needs: str | None
    """The step before it."""
    words: tuple[str, ...]
    """Arguments of `robolearn`; the training's begin with resume=run or output=run, which is decided when it starts."""
    result: str
    """A file that it leaves."""
    folder: str
    """The folder that it leaves."""
    mark: str = ""
    """The file in done/ that says that it has succeeded; of other scenarios or gates it is another one."""

    @property
    def command(self) -> str:
        """As a line of a shell."""
        return shlex.join(["robolearn", *self.words])


def steps_of(request: Request) -> list[Step]:
    """The steps, in order."""
    again = request.task_words
    evaluate = ("eval", RUN, *again, "--output", "evaluation")
    export = ("export", "--target", request.target, RUN, *again, "--output", "bundle")
    simulate = ("sim", "--suite", SUITE, "--junit", "simulation/out.xml", "--failures", "simulation/failures")
    return [
        Step("train", None, ("train", *request.words), request.final, RUN),
        Step("evaluate", "train", evaluate, "evaluation/metrics.json", "evaluation", "evaluate"),
        Step("export", "evaluate", export, "bundle/manifest.json", "bundle", "export"),
        Step("simulate", "export", simulate, "simulation/out.xml", "simulation", f"simulate-{request.gates}"),
    ]


# ---------------------------------------------------------------------------------------- from the command line


def key_of(word: str) -> str:
    """The setting of KEY=VALUE."""
    return word.partition("=")[0]


def value_of(words: Sequence[str], key: str) -> str | None:
    """The last value of a setting."""
    given = [w.partition("=")[2] for w in words if key_of(w) == key]
    return given[-1] if given else None


def name_of(name: str | None, run: Config) -> str:
    """The workflow's name: the user's, or the task's.

    Raises:
        ConfigError: an engine would refuse it.
    """
    found = name or re.sub(r"[^a-z0-9]+", "-", run.task_name.rpartition(":")[2].lower())[:37].strip("-")
    if not _NAME.match(found):
        raise ConfigError(
            f"--name {quote(found)}: up to 37 lower-case letters, digits and -, beginning with a letter"
        )
    return found


def memory_mib(text: str) -> int:
    """--memory in MiB.

    Raises:
        ConfigError: it is no size.
    """
    found = _MEMORY.match(text)
    if not found or int(found[1]) == 0:
        raise ConfigError(f"--memory {quote(text)}: a size such as 64Gi or 500Mi")
    return int(found[1]) * {"M": 1, "G": 1024, "T": 1024**2}[found[2][0]]


def ranks_of(words: Sequence[str], nodes: int, gpus: int) -> int:
    """Processes of the training: `ranks`, or one for each GPU or node.

    Raises:
        ConfigError: they do not divide into the nodes.
    """
    given = value_of(words, "ranks")
    if given is None:
        return nodes * max(1, gpus)
    if not given.isdecimal() or int(given) < 1:
        raise ConfigError(f"ranks={given}: a whole number of processes, at least 1")
    ranks = int(given)
    if ranks % nodes:
        raise ConfigError(f"ranks={ranks} does not divide into --nodes {nodes}; use a multiple of {nodes}")
    if gpus and ranks != nodes * gpus:
        raise ConfigError(
            f"ranks={ranks} does not fit --nodes {nodes} --gpus-per-node {gpus}, which make {nodes * gpus}; leave "
            "ranks out, or --gpus-per-node"
        )
    return ranks


def on_device(words: Sequence[str], engine: str | None, gpus: int) -> list[str]:
    """The words, with the device of the engine's nodes where the user names neither it nor a simulator.

    A task's number of environments may depend on the device, and `device=auto` would be of this machine.
    """
    if engine is None or any(key_of(w) in ("device", "backend", "resume") for w in words):
        return list(words)
    return [*words, "device=cuda" if gpus else "device=cpu"]


def resolved(words: Sequence[str]) -> Config:
    """The training's configuration, so that a wrong setting is found now and not on the cluster.

    Raises:
        ConfigError: a setting is invalid, or one that the workflow sets.
    """
    for word in words:
        if key_of(word) in OWN:
            raise ConfigError(f"{quote(word)}: the workflow sets {key_of(word)}; leave it out")
    run = config.resolve([w for w in words if key_of(w) not in ("ranks", "shards")])
    if run.mode == "async":
        config.resolve(words)  # refuses what `train` refuses, such as ranks
    return run


def require_one_node(engine: str | None, nodes: int) -> None:
    """Raise ConfigError where an engine cannot place the actors of an asynchronous training on so many nodes."""
    if nodes > 1 and engine != "kuberay":
        raise ConfigError(
            f"--nodes {nodes} with mode=async: only --engine kuberay places actors on several nodes; use one node, or "
            "leave mode=async out, for ranks"
        )


def require_placement(run: Config, nodes: int, cpus: int) -> None:
    """Check the placement of an asynchronous training, as it will be read on nodes of `cpus` cores.

    Raises:
        ConfigError: it is invalid, or keeps actors on the learner's node where there are several nodes.
    """
    found = placement.read(run.placement, run.num_envs, cpus)
    if nodes > 1 and not (found.on_ray and found.address):
        where = (
            "without placement=FILE" if run.placement is None else f"placement={quote(run.placement, 120)}"
        )
        raise ConfigError(
            f"--nodes {nodes}: {where} keeps all actors on the learner's node; state engine: ray and address: auto in "
            "the file"
        )


def require_image(image: str) -> None:
    """Raise ConfigError where an image is no reference that a container registry takes."""
    if not IMAGE.match(image):
        raise ConfigError(
            f"--image {quote(image, 120)} is no reference of an image: write [HOST[:PORT]/]NAME[:TAG], NAME in lower "
            "case, such as registry.example.com/robolearn:1"
        )


def require_ranks(words: Sequence[str], ranks: int) -> None:
    """Check that the environments divide into the shards of so many ranks.

    Raises:
        ConfigError: they do not.
    """
    config.resolve([*(w for w in words if key_of(w) not in ("ranks", "mode", "placement")), f"ranks={ranks}"])


PATHS = (
    "robot",
    "weights",
    "learner.teacher",
    "learner.reference",
    "learner.demonstrations",
    "learner.preferences",
)
"""Settings that name a file or a folder which is not taken along."""


def packed(words: Sequence[str], shared: bool = False) -> tuple[list[str], list[str], list[tuple[str, str]]]:
    """Settings whose files lie beside the workflow, those of them that name a file, and the files.

    Args:
        words: the settings.
        shared: the steps see the files of this machine, but run in another folder.

    Raises:
        ConfigError: a file cannot be read, or one is named that cannot be packed.
    """
    out: list[str] = []
    again: list[str] = []
    files: dict[str, str] = {}
    for word in words:
        key, _, value = word.partition("=")
        path = value.strip("'\"").partition(":")[0]
        if key == "placement":
            files[Path(path).name] = _text(word, Path(path))
            word = f"{key}={Path(path).name}"
        elif registry.is_file(value.strip("'\"")):
            if key not in ("task", "learner", "backend") or Path(path).suffix != ".py":
                raise ConfigError(
                    f"{quote(word)}: only a .py file of a task, learner or backend is taken along; install the rest in "
                    "the image and name it by its name"
                )
            name = Path(path).name
            content = _text(word, Path(path))
            if files.setdefault(name, content) != content:
                raise ConfigError(f"{quote(word)}: two different files are called {name}; rename one")
            word = f"{key}={name}:{value.strip(chr(39) + chr(34)).rpartition(':')[2]}"
            again.append(word)
        elif key in PATHS:
            word = _from_anywhere(word, shared)
        out.append(word)
    return out, again, list(files.items())


def _from_anywhere(word: str, shared: bool) -> str:
    """A setting with the absolute path of the file or folder that it names; as it is where it names none."""
    (item,) = overrides.parse([word])
    named = item.value if isinstance(item.value, list) else [item.value]
    relative = [
        n for n in named if isinstance(n, str) and not n.startswith((saved.PREFIX, catalog.PACKAGE, "/"))
    ]
    if item.dotted == "robot":  # the others are names of robots
        relative = [n for n in relative if "/" in n or Path(n).suffix.lower() in ROBOT_FILES]
    if not relative:
        return word
    if not shared:
        raise ConfigError(
            f"{quote(word)}: {quote(relative[0], 120)} is not taken along; put it into the image, and name it by its "
            "absolute path there"
        )
    absolute = [str(Path(n).absolute()) if n in relative else str(n) for n in named]
    shown = [n if _PLAIN_PATH.match(n) else "'" + n.replace("'", "\\'") + "'" for n in absolute]
    return (
        f"{item.dotted}=[{','.join(shown)}]" if isinstance(item.value, list) else f"{item.dotted}={shown[0]}"
    )


def _text(word: str, path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or "it is not text"
        raise ConfigError(f"{quote(word)}: {quote(str(path), 120)} cannot be read: {why}") from error


def suite_text(file: Path | None, run: Config, survival: float, again: Sequence[str] = ()) -> str:
    """suite.yaml: the user's file, or one that simulates the bundle as it was trained; `again` are the words that name
    files, a task from one among them.

    Raises:
        ConfigError: the user's file is invalid.
    """
    if file is not None:
        spec.read(file)
        return file.read_text(encoding="utf-8")
    if run.backend_name == EXTERNAL:
        raise ConfigError(
            "a third-party environment has no suite of its own; state one with --suite FILE.yaml"
        )
    named = value_of(again, "task")
    task = f"    task: {json.dumps(named)}\n" if named else ""
    return (
        "# Written by robolearn workflow: the exported policy, with the settings it was trained with.\n"
        "# More scenarios, simulators and gates: docs/suites.md\n"
        "schema: 1\n"
        "name: workflow\n"
        "scenarios:\n"
        "  - name: as trained\n"
        "    policy: bundle\n"
        f"{task}"
        f"    backends: [{run.backend_name}]\n"
        "    episodes: 32\n"
        f'    gates: {{survival: ">= {survival:g}"}}\n'
    )


def require_suite(text: str, path: Path) -> None:
    """Check a suite's text as it will lie at `path`.

    Raises:
        ConfigError: it is no suite.
    """
    try:
        yaml_file.parse(text)
    except ValueError as error:
        raise ConfigError(f"{quote(str(path), 120)}: {error}") from error


def require_engine(engine: str) -> None:
    """Raise ConfigError where there is no such engine."""
    if engine not in ENGINES:
        raise ConfigError(f"--engine {quote(engine)}: valid: {listing(ENGINES)}")
