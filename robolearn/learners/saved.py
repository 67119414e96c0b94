"""Checkpoints on the disk: found by what the user calls them, and read without running anything.

    runs/humanoid_walk/2026-01-31_12-00-00/
      latest.pt         the newest checkpoint with the simulation itself: exact resume
      checkpoints/      iteration_000025.pt ...: weights, optimizer, normalizers, the policy as it stands alone

A checkpoint holds tensors and plain values only and is loaded so: it cannot run code.
"""

from __future__ import annotations

import pickle
import zipfile
from pathlib import Path
from typing import Any

import torch

from robolearn.errors import ConfigError, did_you_mean, listing, quote
from robolearn.learners import migrate

SCHEMA = 3
"""Version of the checkpoint's layout. Those of schema 2 are read too: `robolearn.learners.migrate`."""

LATEST = "latest.pt"
ROOT = Path("runs")

PRETRAINED = Path(__file__).parent.parent / "pretrained"
"""Shipped policies: a folder each, with config.yaml and policy.pt."""

PREFIX = "pretrained:"


def pretrained() -> list[str]:
    """Names of the shipped policies."""
    return sorted(path.parent.name for path in PRETRAINED.glob("*/policy.pt"))


def find_run(run: str | None) -> tuple[Path, Path]:
    """Folder and checkpoint that RUN means: a run folder, a checkpoint, pretrained:NAME, or None for the newest.

    Raises:
        ConfigError: there is no such run, or it has no checkpoint yet.
    """
    if run is not None and run.startswith(PREFIX):
        name = run.removeprefix(PREFIX)
        if name not in pretrained():
            hint = did_you_mean(name, pretrained())
            raise ConfigError(
                f"there is no pretrained policy {quote(name)}{hint}; shipped: {listing(pretrained())}"
            )
        return PRETRAINED / name, PRETRAINED / name / "policy.pt"
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


def load(path: Path, folder: Path | None = None) -> dict[str, Any]:
    """Read a checkpoint, without running anything that may hide in it; `folder` is its run's, found where not given.

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
    if schema == SCHEMA and "policy" in content:
        return content
    return (
        migrate.to_today(content, folder or find_run(str(path))[0], SCHEMA)
        if _in_a_run(path, folder)
        else content
    )


def _in_a_run(path: Path, folder: Path | None) -> bool:
    """Whether a checkpoint lies beside the configuration of its run."""
    places = [folder] if folder is not None else [path.parent, path.parent.parent]
    return any((place / "config.yaml").is_file() for place in places)
