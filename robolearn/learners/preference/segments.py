"""Segments: short stretches of one robot's behaviour, which a person or a script compares.

A file of NumPy arrays, read without pickles:

    schema            ()          1
    dt                ()          control period [s]
    source            ()          text: the policy that acted
    columns           ()          JSON: by group, the names and widths of the items that its columns are
    obs.<group>       (T + 1, D)  observations before each of T steps, and after the last one, before any reset
    actions           (T, A)      as the policy drew them
    rewards           (T,)        the task's reward in each step
    metric.<name>     (T,)        the task's metrics after each step; nan where one does not count. May be missing
    action_scale, action_offset  (A,)  joint target = offset + scale x action. May be missing
    pose.<entity>.<field>  (T + 1, ...)  base_pos, base_quat, joint_pos, for the film. May be missing
"""

from __future__ import annotations

import io
import json
import zipfile
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from robolearn.core.env import Env
from robolearn.core.learner_env import LearnerEnv
from robolearn.errors import ConfigError, did_you_mean, listing, quote
from robolearn.files import replacing

SCHEMA = 1
OBS, METRIC, POSE = "obs.", "metric.", "pose."
SCALE, OFFSET = "action_scale", "action_offset"

DAMAGED = (
    *(OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile, zlib.error),
    *(NotImplementedError, RuntimeError),
)
"""What reading a damaged, or an encrypted, archive raises."""

Columns = Mapping[str, list[tuple[str, int]]]
"""By observation group, the names and widths of its items, in order."""


@dataclass(frozen=True)
class Segment:
    """T control steps of one robot, within one episode."""

    name: str
    observations: dict[str, np.ndarray]
    """(T + 1, D) by group: before each step, and after the last one."""
    actions: np.ndarray
    """(T, A)."""
    rewards: np.ndarray
    """(T,) the task's, per step."""
    dt: float
    """Control period [s]."""
    source: str = ""
    """The policy that acted, in words."""
    columns: dict[str, list[tuple[str, int]]] = field(default_factory=dict)
    """By group, the names and widths of its items."""
    metrics: dict[str, np.ndarray] = field(default_factory=dict)
    """(T,) the task's metrics after each step; none in segments that a training has recorded."""
    poses: dict[str, np.ndarray] = field(default_factory=dict)
    """(T + 1, ...) by `entity.field`; none in segments that a training has recorded."""
    scale: np.ndarray | None = None
    """(A,) change of each joint target by an action of 1, where it is known."""
    offset: np.ndarray | None = None
    """(A,) joint target of the action 0, where it is known."""

    @property
    def steps(self) -> int:
        """T."""
        return len(self.actions)

    @property
    def seconds(self) -> float:
        """Its length [s]."""
        return self.steps * self.dt

    def item(self, group: str, name: str) -> np.ndarray:
        """(T, W) an item of an observation group after each step, such as `item("critic", "joint_vel_rel")`.

        Raises:
            ConfigError: there is no such group or item.
        """
        if group not in self.observations:
            raise ConfigError(
                f"segment {self.name} has no observation group {quote(group)}; valid: {listing(self.observations)}"
            )
        start = 0
        for item, width in self.columns.get(group, []):
            if item == name:
                return self.observations[group][1:, start : start + width]
            start += width
        names = [item for item, _ in self.columns.get(group, [])]
        raise ConfigError(
            f"group {group} of segment {self.name} has no item {quote(name)}{did_you_mean(name, names)}; "
            f"valid: {listing(names)}"
        )


def columns_of(env: LearnerEnv) -> dict[str, list[tuple[str, int]]]:
    """The names and widths of the items of an environment's observation groups; a group of a third-party one has a
    single item, `all`."""
    known = env.columns if isinstance(env, Env) else {}
    return {
        group: [(item.name, width) for item, width in known[group]]
        if group in known
        else [("all", observed.shape[1])]
        for group, observed in env.observations.items()
    }


def content_of(segment: Segment) -> bytes:
    """A segment's file; equal segments have equal ones."""
    content = {
        "schema": np.int64(SCHEMA),
        "dt": np.float64(segment.dt),
        "source": np.array(segment.source),
        "columns": np.array(json.dumps(segment.columns)),
        "actions": segment.actions.astype(np.float32),
        "rewards": segment.rewards.astype(np.float32),
        **{name: value.astype(np.float32) for name, value in _units(segment).items()},
        **{OBS + name: value.astype(np.float32) for name, value in segment.observations.items()},
        **{METRIC + name: value.astype(np.float32) for name, value in segment.metrics.items()},
        **{POSE + name: value.astype(np.float32) for name, value in segment.poses.items()},
    }
    file = io.BytesIO()
    np.savez_compressed(file, **content)  # type: ignore[arg-type]
    return file.getvalue()


def _units(segment: Segment) -> dict[str, np.ndarray]:
    """Scale and offset of the actions, where they are known, by their names in the file."""
    both = {SCALE: segment.scale, OFFSET: segment.offset}
    return {name: value for name, value in both.items() if value is not None}


def write(segment: Segment, path: Path) -> None:
    """Write a segment's file, completely or not at all.

    Raises:
        ConfigError: it cannot be written.
    """
    with replacing(path) as part:
        part.write_bytes(content_of(segment))


def read(path: Path) -> Segment:
    """Read a segment; nothing in the file is executed.

    Raises:
        ConfigError: there is none, or it is damaged or of another version.
    """
    shown = quote(str(path), 160)
    if not path.is_file():
        raise ConfigError(f"there is no segment {shown}; its answers name it")
    try:
        with np.load(path, allow_pickle=False) as file:
            content = {name: file[name] for name in file.files}
    except DAMAGED as error:
        raise ConfigError(f"{shown} is damaged, or no segment: {error}") from error
    try:
        if int(content["schema"]) != SCHEMA:
            raise ConfigError(f"{shown} has schema {int(content['schema'])}; this version reads {SCHEMA}")
        columns = {
            str(group): [(str(name), int(width)) for name, width in items]
            for group, items in json.loads(str(content["columns"])).items()
        }

        def those(prefix: str) -> dict[str, np.ndarray]:
            return {k.removeprefix(prefix): v for k, v in content.items() if k.startswith(prefix)}

        found = Segment(
            path.stem,
            those(OBS),
            content["actions"],
            content["rewards"],
            float(content["dt"]),
            str(content["source"]),
            columns,
            those(METRIC),
            those(POSE),
            content.get(SCALE),
            content.get(OFFSET),
        )
    except (KeyError, ValueError, TypeError, AttributeError, OverflowError) as error:
        raise ConfigError(f"{shown} is no segment: {type(error).__name__} {error}") from error
    _check(found, shown)
    return found


def _check(segment: Segment, shown: str) -> None:
    if not segment.actions.ndim or not np.isfinite(segment.dt) or segment.dt <= 0:
        raise ConfigError(f"{shown}: dt must be a positive number and actions have a row a step")
    steps, width = segment.steps, segment.actions.shape[-1]
    lengths = {
        "actions": (segment.actions, steps, 2),
        "rewards": (segment.rewards, steps, 1),
        **{name: (value, width, 1) for name, value in _units(segment).items()},
        **{OBS + name: (value, steps + 1, 2) for name, value in segment.observations.items()},
        **{METRIC + name: (value, steps, 1) for name, value in segment.metrics.items()},
        **{POSE + name: (value, steps + 1, 2) for name, value in segment.poses.items()},
    }
    if not steps or not segment.observations:
        raise ConfigError(f"{shown} is no segment: it has no steps or no observations")
    for name, (value, length, dims) in lengths.items():
        if value.dtype.kind != "f" or value.ndim != dims or len(value) != length:
            raise ConfigError(
                f"{shown}: {name} has shape {value.shape} of {value.dtype}; it must have {length} rows of "
                f"{dims - 1} dimension{'' if dims == 2 else 's'}"
            )
        if not name.startswith(METRIC) and not np.isfinite(value).all():
            raise ConfigError(f"{shown}: {name} is not finite")
