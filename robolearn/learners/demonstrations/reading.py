"""Reads demonstrations from files: finds them, picks the reader, and fits their content to a task."""

from __future__ import annotations

import glob
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from robolearn.errors import ConfigError, listing, quote
from robolearn.learners.demonstrations import hdf5, lerobot, npz
from robolearn.learners.demonstrations.demonstrations import (
    Demonstrations,
    Recorded,
    assigned,
    checked,
    fitting,
    in_units,
    joined,
)

READERS: dict[str, Callable[[Path], Recorded]] = {
    npz.SUFFIX: npz.read,
    **dict.fromkeys(hdf5.SUFFIXES, hdf5.read),
}
"""By the suffix of a file."""


@dataclass(frozen=True)
class Wanted:
    """What demonstrations must hold for a task."""

    groups: dict[str, int]
    """Widths of observation groups, by name."""
    actions: int
    """Number of actuators."""
    optional: tuple[str, ...] = ()
    """Groups that may be missing."""
    dt: float | None = None
    """Control period [s], where it is known."""
    columns: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """Names of the groups' columns, where they are known."""
    scale: np.ndarray | None = None
    """(A,) change of each joint target by an action of 1, where it is known."""
    offset: np.ndarray | None = None
    """(A,) joint target of the action 0, where it is known."""


def load(
    paths: Sequence[str],
    wanted: Wanted,
    keys: Mapping[str, Sequence[str]] | None = None,
    action_kind: str = "action",
) -> Demonstrations:
    """The episodes of all files, on the CPU.

    Args:
        paths: files and LeRobot's folders; `*`, `?` and `[...]` stand for several.
        wanted: what they must hold.
        keys: see `assigned`.
        action_kind: see `in_units`.

    Raises:
        ConfigError: a file is not there, cannot be read, or does not fit.
        MissingError: a package that reads it is not installed.
    """
    parts = []
    for path in found(paths):
        content = read(path, wanted_names(wanted, keys or {}))
        recorded = assigned(checked(content), wanted.groups, keys or {}, wanted.optional, wanted.columns)
        fitted = fitting(recorded, wanted.actions, wanted.dt)
        parts.append(in_units(fitted, action_kind, wanted.scale, wanted.offset))
    return joined(parts)


def wanted_names(wanted: Wanted, keys: Mapping[str, Sequence[str]]) -> frozenset[str]:
    """Names of the arrays that the groups consist of; others in a file are not looked at."""
    return frozenset(name for group in wanted.groups for name in keys.get(group, (group,)))


def read(path: Path, names: Collection[str] | None = None) -> Recorded:
    """The content of one file or folder, of an HDF5 file that of the observations `names` alone; see `load`."""
    if path.is_dir():
        if lerobot.is_dataset(path):
            return lerobot.read(path)
        raise ConfigError(
            f"{quote(str(path), 120)} is no dataset of LeRobot: it has no {lerobot.INFO}; name files, such as "
            f"{path}/*.npz"
        )
    if not path.is_file():
        raise ConfigError(f"there are no demonstrations {quote(str(path), 120)}")
    reader = READERS.get(path.suffix.lower())
    if reader is None:
        raise ConfigError(
            f"{quote(str(path), 120)}: demonstrations are files with one of the endings {listing(READERS)}, or folders "
            "of LeRobot"
        )
    return hdf5.read(path, names) if reader is hdf5.read else reader(path)


def found(paths: Sequence[str]) -> list[Path]:
    """The files that `paths` name, each once, those of a pattern in the order of their names.

    Raises:
        ConfigError: a pattern fits none.
    """
    out: list[Path] = []
    for text in paths:
        path = Path(text).expanduser()
        if path.exists() or not glob.has_magic(text):
            out.append(path)
            continue
        matches = sorted(Path(name) for name in glob.glob(str(path), recursive=True))
        if not matches:
            raise ConfigError(f"no file fits {quote(text, 120)}")
        out += matches
    return list(dict.fromkeys(out))
