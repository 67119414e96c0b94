"""Checkpoints on disk: found by RUN as on the command line, and loaded without executing code.

    runs/humanoid_walk/2026-01-31_12-00-00/
      latest.pt         the newest checkpoint with the simulation itself: exact resume
      checkpoints/      iteration_000025.pt ...: weights, optimizer, normalizers, the policy

A checkpoint holds tensors and plain values only and is loaded with weights_only: it cannot execute code.
"""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import torch

from robolearn.errors import ConfigError, did_you_mean, listing, one_line, quote
from robolearn.learners import migrate

SCHEMA = 3
"""Version of the checkpoint's layout. Schema 2 is read too, see `robolearn.learners.migrate`."""

LATEST = "latest.pt"
ROOT = Path("runs")

PRETRAINED = Path(__file__).parent.parent / "pretrained"
"""Folder of the shipped policies; each is a folder with config.yaml and policy.pt."""

PREFIX = "pretrained:"

EXPORTED = ("manifest.json", "team.json")
"""Files that the folders of bundles have, and those of runs do not."""


def pretrained() -> list[str]:
    """Names of the shipped policies."""
    return sorted(path.parent.name for path in PRETRAINED.glob("*/policy.pt"))


def find_run(run: str | None) -> tuple[Path, Path]:
    """Folder and checkpoint of RUN: a run folder, a checkpoint, pretrained:NAME, or None for the newest run.

    Raises:
        ConfigError: there is no such run, or it has no checkpoint yet.
    """
    folder, checkpoint = find_folder(run)
    if checkpoint is None:
        raise ConfigError(f"{quote(str(folder), 120)} has no checkpoint: the run ended before its first one")
    return folder, checkpoint


def find_folder(run: str | None) -> tuple[Path, Path | None]:
    """As `find_run`, of a run that may have no checkpoint yet.

    Raises:
        ConfigError: there is no such run.
    """
    if run is not None and run.startswith(PREFIX):
        name = run.removeprefix(PREFIX)
        if name not in pretrained():
            hint = did_you_mean(name, pretrained())
            raise ConfigError(
                f"there is no pretrained policy {quote(name)}{hint}; valid: {listing(pretrained())}"
            )
        return PRETRAINED / name, PRETRAINED / name / "policy.pt"
    if run is None:
        # A bundle written by `export` contains its run's configuration too; it is not a run.
        both = [
            *ROOT.glob("*/config.yaml"),
            *ROOT.glob("*/*/config.yaml"),
        ]  # output=runs/NAME, and runs/TASK/TIME
        # Neither is a folder of preferences, which contains the configuration of the run that they are about.
        others = (*EXPORTED, "segments")
        found = [p for p in both if not any(p.with_name(name).exists() for name in others)]
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
                f"{quote(str(checkpoint), 120)} is in no run folder: there is no config.yaml beside it"
            )
        return folder, checkpoint
    if any((folder / name).is_file() for name in EXPORTED):
        raise ConfigError(
            f"{quote(str(folder), 120)} is an exported bundle: name the run that it was exported from"
        )
    if not (folder / "config.yaml").is_file():
        raise ConfigError(f"{quote(str(folder), 120)} is not a run folder: it has no config.yaml")
    return folder, folder / LATEST if (folder / LATEST).is_file() else None


class Damaged(ConfigError):
    """A checkpoint that cannot be read: an older one may go on in its place."""


def load(path: Path, folder: Path | None = None) -> dict[str, Any]:
    """Load a checkpoint without executing code in it; `folder` is its run folder, found if not given.

    Raises:
        Damaged: it is damaged, or contains code.
        ConfigError: it is not a checkpoint, or has another schema.
    """
    shown = quote(str(path), 120)
    try:
        with path.open("rb") as file:
            start = file.read(2)
        # torch writes zip archives, and wrote pickles earlier; anything else is not a file of torch.
        if start not in (b"PK", b"\x80\x02", b"\x80\x03", b"\x80\x04", b"\x80\x05"):
            raise ConfigError(f"{shown} is not a checkpoint; name a run folder or a file ending in .pt")
        content = torch.load(path, map_location="cpu", weights_only=True)
    except FileNotFoundError:
        raise ConfigError(f"there is no checkpoint {shown}") from None
    except pickle.UnpicklingError:
        raise Damaged(
            f"{shown} is refused: it holds more than tensors and plain values and could run code, or it is damaged"
        ) from None
    except (ConfigError, MemoryError, PermissionError):
        raise
    except Exception as error:  # a damaged archive raises almost any error
        # The first line of what torch says, and not all of it: the advice must not be cut off.
        first = one_line((str(error).splitlines() or [type(error).__name__])[0], 80)
        which = "the newest" if path.name == LATEST else "an older"
        raise Damaged(
            f"{shown} is a damaged checkpoint ({first}); use {which} one from checkpoints/"
        ) from None
    if not isinstance(content, dict) or not {"actor_state_dict", "policy"} & set(content):
        raise ConfigError(f"{shown} is not a checkpoint: it has neither actor_state_dict nor policy")
    iteration, actor = content.get("iter", 0), content.get("actor_state_dict", {})
    if not isinstance(content.get("infos") or {}, dict):
        raise Damaged(f"{shown} is damaged: its infos have the wrong type")
    if not (isinstance(iteration, int) and iteration >= 0 and isinstance(actor, dict)) or not all(
        isinstance(value, torch.Tensor) and value.layout == torch.strided for value in actor.values()
    ):
        raise Damaged(f"{shown} is not a checkpoint: its iter or actor_state_dict has the wrong type")
    schema = content.get("schema", SCHEMA)  # rsl_rl's own checkpoints carry none
    if schema not in (2, SCHEMA):
        raise ConfigError(f"{shown} has schema {schema} and this RoboLearn reads schemas 2 and {SCHEMA}")
    if schema == SCHEMA and "policy" in content:
        return content
    return (
        migrate.to_current(content, folder or find_run(str(path))[0], SCHEMA)
        if _in_run_folder(path, folder)
        else content
    )


def _in_run_folder(path: Path, folder: Path | None) -> bool:
    """Whether the checkpoint is in a run folder, which has the configuration."""
    places = [folder] if folder is not None else [path.parent, path.parent.parent]
    return any((place / "config.yaml").is_file() for place in places)
