"""`robolearn eval --backend A,B`: one policy in several simulators, with the gaps between them."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from robolearn.config import registry
from robolearn.errors import ConfigError, did_you_mean, listing, quote
from robolearn.files import replacing
from robolearn.simulation import sim2sim
from robolearn.simulation.side import SAME_DEVICE, Request, Side, simulate
from robolearn.training.runs import open_run, require_no_training, require_writable, results_folder


def compare_backends(
    run: str | None,
    backends: Sequence[str],
    overrides: Iterable[str] = (),
    episodes: int = 64,
    output: Path | None = None,
    pythons: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """Run the policy's first episodes in every simulator, compare each with the first, and write sim2sim.json.

    Args:
        run: see `robolearn.training.runs.open_run`.
        backends: names of simulators; the first is the reference.
        overrides: settings to change, in Hydra's grammar.
        episodes: pairs of episodes.
        output: folder of the file; None: the run folder.
        pythons: interpreters by backend, for simulators that are installed in another environment.

    Returns:
        The content of sim2sim.json.

    Raises:
        ConfigError: a name, the run or a setting is invalid.
        MissingError: a simulator is not installed.
        RunFailed: a simulation failed.
    """
    known = registry.names("backends")
    for name in [*backends, *(pythons or {})]:
        if name not in known:
            raise ConfigError(
                f"--backend: unknown backend {quote(name)}{did_you_mean(name, known) or '.'} Valid: {listing(known)}"
            )
    if len(set(backends)) < len(backends):
        raise ConfigError(f"--backend {','.join(backends)}: each simulator once")
    words = tuple(overrides)
    for word in words:
        if word.partition("=")[0] in ("backend", "num_envs"):
            raise ConfigError(f"{quote(word)}: use --backend and --episodes")
    if not any(word.startswith("device=") for word in words):
        words = (*words, SAME_DEVICE)
    for name, python in (pythons or {}).items():
        if shutil.which(python) is None:
            raise ConfigError(f"--python {name}={quote(python, 120)}: there is no such program")
    require_no_training(words)
    results = results_folder(run)
    folder = output or results
    require_writable(folder)
    named = run if run is not None else str(results)
    # Every simulator that is here and its settings are looked up before the first one starts.
    for name in backends:
        if name in (pythons or {}):
            continue
        registry.load("backends", name)
        try:
            open_run(named, [*words, f"backend={name}"])
        except ConfigError as error:
            raise ConfigError(f"--backend {name}: {error}") from error
    sides: list[Side] = []
    for name in backends:
        request = Request(named, (*words, f"backend={name}"), episodes)
        side = simulate(request, (pythons or {}).get(name))
        sides.append(side)
        print(
            f"{name}: {side.facts['steps']} steps of {episodes} environments in {side.facts['seconds']:.1f} s"
        )
    reference, others = sides[0], sides[1:]
    comparisons = [sim2sim.compare(reference, other) for other in others]
    for comparison in comparisons:
        print(sim2sim.table(reference, comparison))
    content = sim2sim.content(reference, comparisons, others)
    path = folder / sim2sim.FILE_NAME
    with replacing(path) as part:
        part.write_text(json.dumps(content, indent=1, allow_nan=False) + "\n", encoding="utf-8")
    print(f"wrote {path}")
    return content
