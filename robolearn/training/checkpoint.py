"""Run folders and checkpoints: everything a run needs to go on exactly where it stopped.

    runs/humanoid_walk/2026-01-31_12-00-00/
      config.yaml       the resolved configuration
      contract.json     what the robot must know
      metrics.jsonl     a line an iteration; TensorBoard's event files lie beside it
      latest.pt         the newest checkpoint with the simulation itself: exact resume
      checkpoints/      iteration_000025.pt ...: weights, optimizer, normalizers
      .lock             who trains in it; see `robolearn.files.locked`

A checkpoint holds tensors and plain values only and is loaded so: it cannot run code.
"""

from __future__ import annotations

import pickle
import random
import zipfile
from collections.abc import Iterable
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import torch

from robolearn.core.env_state import from_first_layout
from robolearn.errors import ConfigError, quote
from robolearn.files import replacing

SCHEMA = 3
"""Version of the checkpoint's layout. Those of schema 2 are read too: `_migrated`."""

LATEST = "latest.pt"
ROOT = Path("runs")

SIMULATED = ("memory",)
"""Parts of a learner's state that belong to the robots in the simulation and mean nothing without it."""


def new_run_folder(task_name: str, output: str | None) -> Path:
    """Create the folder of a new run: `output`, or runs/TASK/TIME.

    Raises:
        ConfigError: where `output` already holds a run, which would be lost.
    """
    if output is not None:
        folder = Path(output)
        if (folder / "config.yaml").exists():
            raise ConfigError(
                f"output={output} already holds a run; resume={output} goes on with it, or name another"
            )
        _make(folder)
        return folder
    stamp = datetime.now().strftime("%Y-%m-%d_%H-%M-%S")
    parent = ROOT / task_name.rpartition(":")[2].replace("/", "_")
    for suffix in ("", *(f"_{i}" for i in range(1, 1000))):
        folder = parent / f"{stamp}{suffix}"
        if not folder.exists():
            _make(folder)
            return folder
    raise ConfigError(f"{parent} holds a thousand runs of this very second; name one with output=DIR")


def _make(folder: Path) -> None:
    try:
        (folder / "checkpoints").mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"cannot write to {quote(str(folder), 120)}: {error.strerror}") from None


def find_run(run: str | None) -> tuple[Path, Path]:
    """A run folder and the checkpoint meant by RUN: a run folder, a checkpoint, or None for the newest run.

    Raises:
        ConfigError: there is no such run, or it has no checkpoint yet.
    """
    if run is None:
        # A bundle that `export` wrote holds its run's configuration, too.
        found = [p for p in ROOT.glob("*/*/config.yaml") if not p.with_name("manifest.json").exists()]
        found.sort(key=lambda p: p.stat().st_mtime)
        if not found:
            raise ConfigError(
                "there is no run under runs/ yet; train one: robolearn train task=NAME, or name a RUN"
            )
        folder = found[-1].parent
    else:
        folder = Path(run)
    if not folder.exists():
        raise ConfigError(f"there is no run {quote(str(folder), 120)}")
    if folder.is_file():
        checkpoint = folder
        folder = folder.parent.parent if folder.parent.name == "checkpoints" else folder.parent
        if not (folder / "config.yaml").is_file():
            raise ConfigError(
                f"{quote(str(checkpoint), 120)} lies in no run folder: there is no config.yaml beside it"
            )
        return folder, checkpoint
    if not (folder / "config.yaml").is_file():
        raise ConfigError(f"{quote(str(folder), 120)} is not a run: it holds no config.yaml")
    if not (folder / LATEST).is_file():
        raise ConfigError(
            f"{quote(str(folder), 120)} has no checkpoint yet; it was stopped before the first one"
        )
    return folder, folder / LATEST


def save(folder: Path, iteration: int, learner: Any, env: Any, infos: dict[str, Any] | None = None) -> Path:
    """Write the checkpoint after `iteration`: weights under checkpoints/, and latest.pt with the simulation.

    Both are written beside their place and moved there: a kill leaves the old file or the new, never half.

    Args:
        folder: the run's.
        iteration: the last one finished.
        learner: its `state_dict` is saved.
        env: its `snapshot` is saved, in latest.pt.
        infos: plain values about the run to keep with it.
    """
    weights = {"schema": SCHEMA, "iter": iteration, "infos": infos, **learner.state_dict()}
    path = folder / "checkpoints" / f"iteration_{iteration:06d}.pt"
    _write({name: value for name, value in weights.items() if name not in SIMULATED}, path)
    _write({**weights, "env": env.snapshot(), "global_random": _global_random()}, folder / LATEST)
    return path


def load(path: Path) -> dict[str, Any]:
    """Read a checkpoint, without running anything that may hide in it.

    Raises:
        ConfigError: not a checkpoint, one that carries code, one of another schema, or a damaged one.
    """
    shown = quote(str(path), 120)
    try:
        with path.open("rb") as file:
            start = file.read(2)
        # torch's files are zip archives, its old ones pickles; anything else is another kind of file.
        if start not in (b"PK", b"\x80\x02", b"\x80\x03", b"\x80\x04", b"\x80\x05"):
            raise ConfigError(f"{shown} is not a checkpoint; name a run folder or a file ending in .pt")
        content = torch.load(path, map_location="cpu", weights_only=True)
    except FileNotFoundError:
        raise ConfigError(f"there is no checkpoint {shown}") from None
    except pickle.UnpicklingError:
        raise ConfigError(
            f"{shown} refused: it holds more than tensors and plain values, and could run code"
        ) from None
    except ConfigError:
        raise
    except (RuntimeError, EOFError, zipfile.BadZipFile, OSError, ValueError, KeyError, IndexError) as error:
        first = (str(error).splitlines() or [type(error).__name__])[0]
        raise ConfigError(
            f"{shown} is not a whole checkpoint ({first}); take an older one from checkpoints/"
        ) from None
    if not isinstance(content, dict) or "actor_state_dict" not in content:
        raise ConfigError(f"{shown} is not a checkpoint: it has no actor_state_dict")
    iteration, actor = content.get("iter", 0), content["actor_state_dict"]
    if not (isinstance(iteration, int) and iteration >= 0 and isinstance(actor, dict)) or not all(
        isinstance(value, torch.Tensor) and value.layout == torch.strided for value in actor.values()
    ):
        raise ConfigError(f"{shown} is not a checkpoint: its iter or actor_state_dict is of another kind")
    schema = content.get("schema", SCHEMA)  # rsl_rl's own checkpoints carry none
    if schema not in (2, SCHEMA):
        raise ConfigError(f"{shown} has schema {schema} and this RoboLearn reads schemas 2 and {SCHEMA}")
    try:
        return _migrated(content) if schema == 2 else content
    except (KeyError, TypeError, AttributeError) as error:
        raise ConfigError(f"{shown} is not a whole checkpoint of schema 2 ({error!r})") from error


def _migrated(content: dict[str, Any]) -> dict[str, Any]:
    """A checkpoint of schema 2 in today's layout."""
    if "env" not in content or not content["env"]:
        return {**content, "schema": SCHEMA}
    return {**content, "schema": SCHEMA, "env": from_first_layout(content["env"])}


def restore(content: dict[str, Any], learner: Any, env: Any, changes: Iterable[str] = ()) -> bool:
    """Put a checkpoint into a learner and, where it holds one and nothing speaks against it, the simulation.

    Args:
        content: what `load` gave.
        learner: takes the weights, and the saved rate and random state unless `changes` set them anew.
        env: takes the simulation unless `changes` concern it.
        changes: dotted keys in which the configuration differs from the one that was saved.

    Returns:
        Whether the simulation was restored.

    Raises:
        ConfigError: networks or simulation have other shapes.
    """
    changed = set(changes)
    state = dict(content)
    if (
        any(key.startswith("learner.") and "learning_rate" in key for key in changed)
        or "learner.schedule" in changed
    ):
        state.pop("learning_rate", None)
    if "seed" in changed:
        state.pop("random", None)
    saved: dict[str, Any] = content.get("env") or {}
    anew = any(key.partition(".")[0] in ("task", "backend", "device", "num_envs", "seed") for key in changed)
    simulated = bool(saved) and not anew and len(saved["state"]["episode.step"]) == env.num_envs
    # A GPU's generator has another state than a CPU's: what was simulated on one goes on there.
    simulated = simulated and len(saved["random"]) == len(env.random.generator.get_state())
    if not simulated:
        state = {name: value for name, value in state.items() if name not in SIMULATED}
    try:
        learner.load_state_dict(state)
    except (RuntimeError, KeyError, ValueError, TypeError, AttributeError, IndexError) as error:
        why = " ".join(str(error).split())
        if "Error(s) in loading" in why or "size mismatch" in why:
            why = "its networks are of other shapes; was it trained for another task, or with other learner.*_hidden?"
        raise ConfigError(f"the checkpoint does not fit this configuration: {why}") from error
    if not simulated:
        return False
    try:
        env.restore(saved)
    except (RuntimeError, KeyError, IndexError, AttributeError, ValueError) as error:
        why = " ".join(str(error).split())
        raise ConfigError(
            f"the simulation in this checkpoint does not fit ({why}); a file in checkpoints/ holds the weights alone"
        ) from error
    set_global_random(content["global_random"])
    return True


def require_newest(folder: Path, content: dict[str, Any]) -> None:
    """Refuse to go on in a run's own folder from behind its newest checkpoint, which would mix two histories."""
    newest = load(folder / LATEST)["iter"] if (folder / LATEST).exists() else 0
    if content["iter"] < newest:
        raise ConfigError(
            f"this checkpoint is of iteration {content['iter']}, and the run is at {newest}; add output=DIR to go on "
            "from it in a folder of its own"
        )


def _global_random() -> dict[str, Any]:
    """Python's, NumPy's and torch's own generators: our code uses none of them, a user's task may."""
    name, keys, position, has_gauss, gauss = np.random.get_state(legacy=True)  # noqa: NPY002
    return {
        "python": random.getstate(),
        "numpy": (name, torch.from_numpy(np.asarray(keys, np.int64)), position, has_gauss, gauss),
        "torch": torch.get_rng_state(),
    }


def set_global_random(state: dict[str, Any]) -> None:
    """The reverse of what a checkpoint saves."""
    version, internal, gauss = state["python"]
    random.setstate((version, tuple(internal), gauss))
    name, keys, *rest = state["numpy"]
    np.random.set_state((name, keys.numpy().astype(np.uint32), *rest))  # noqa: NPY002
    torch.set_rng_state(state["torch"])


def _write(content: dict[str, Any], path: Path) -> None:
    with replacing(path) as part:
        torch.save(content, part)
