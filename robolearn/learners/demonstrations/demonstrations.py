"""Demonstrations: whole episodes of observations and actions, with rewards where they were recorded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch

from robolearn.envs.state import Tensor
from robolearn.errors import ConfigError, listing, quote

LARGEST_ACTION = 100.0
"""Actions beyond this are not those of a task here, of which 1 is a typical one; they may be joint angles in degrees,
or motor positions in ticks."""
FEW = 1e-3
"""Relative difference up to which two control periods or two scales of actions are the same."""


@dataclass(frozen=True)
class Recorded:
    """What a file holds, before its arrays are assigned to observation groups: E episodes with M steps in all."""

    place: str
    """The file, for messages."""
    observations: dict[str, np.ndarray]
    """(M, D) float32 by the name that the file gives it: what was observed before each step."""
    action: np.ndarray
    """(M, A) float32."""
    lengths: np.ndarray
    """(E,) int64 number of steps of each episode, in the order of the rows."""
    terminated: np.ndarray
    """(E,) bool: the episode ended for good, so that no reward follows; False also where it is not known."""
    reward: np.ndarray | None = None
    """(M,) float32, that of each step; None where there are none."""
    columns: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """Names of the D columns of an array, where the file tells them."""
    dt: float | None = None
    """Control period [s], where the file tells it."""
    scale: np.ndarray | None = None
    """(A,) change of each joint target [rad, m, N] by an action of 1, where the file tells it."""
    offset: np.ndarray | None = None
    """(A,) joint target of the action 0, where the file tells it."""
    others: tuple[str, ...] = ()
    """Names of observations in the file that were not read."""


@dataclass(frozen=True)
class Demonstrations:
    """E episodes with M steps in all, one after the other; on one device."""

    observations: dict[str, Tensor]
    """(M, D) by group: observations before each step."""
    action: Tensor
    """(M, A)."""
    lengths: tuple[int, ...]
    """Number of steps of each episode."""
    terminated: Tensor
    """(E,) bool: the episode ended for good; otherwise it would have gone on."""
    reward: Tensor | None = None
    """(M,); None where there are none."""
    notes: tuple[str, ...] = ()
    """Lines for the user: what was left out."""

    @property
    def steps(self) -> int:
        """M."""
        return len(self.action)

    @property
    def episodes(self) -> int:
        """E."""
        return len(self.lengths)

    def select(self, episodes: Sequence[int]) -> Demonstrations:
        """These episodes alone, in this order."""
        starts = np.concatenate(([0], np.cumsum(self.lengths)))
        rows = np.concatenate([np.arange(starts[e], starts[e] + self.lengths[e]) for e in episodes])
        chosen = torch.as_tensor(rows, device=self.action.device)
        return Demonstrations(
            {name: x[chosen] for name, x in self.observations.items()},
            self.action[chosen],
            tuple(self.lengths[e] for e in episodes),
            self.terminated[list(episodes)],
            None if self.reward is None else self.reward[chosen],
        )

    def to(self, device: torch.device) -> Demonstrations:
        """The same on a device."""
        return replace(
            self,
            observations={name: x.to(device) for name, x in self.observations.items()},
            action=self.action.to(device),
            terminated=self.terminated.to(device),
            reward=None if self.reward is None else self.reward.to(device),
        )


def returns(demonstrations: Demonstrations, gamma: float, scale: float = 1.0) -> tuple[Tensor, Tensor]:
    """Discounted returns of each step, and which of them are known.

    Args:
        demonstrations: with rewards.
        gamma: discount per step.
        scale: factor on the rewards.

    Returns:
        (M,) sums of the discounted rewards up to the end of the episode; and (M,) bool: whether they are known. Where
        an episode did not end for good, what would have followed its end is not: a step counts as known where that has
        a weight, gamma^(steps to the end), of at most 5 %.
    """
    assert demonstrations.reward is not None
    # On the CPU, once: a loop over the steps of the longest episode.
    reward = demonstrations.reward.cpu().double().numpy() * scale
    lengths = np.asarray(demonstrations.lengths)
    ends = np.cumsum(lengths)
    out, carried = np.zeros_like(reward), np.zeros(len(lengths))
    for back in range(1, int(lengths.max()) + 1):
        going = lengths >= back
        carried[going] = reward[ends[going] - back] + gamma * carried[going]
        out[ends[going] - back] = carried[going]
    left = np.concatenate([np.arange(n, 0, -1) for n in lengths])
    ended = np.repeat(demonstrations.terminated.cpu().numpy(), lengths)
    known = ended | (np.power(gamma, left) <= UNKNOWN)
    device = demonstrations.action.device
    return torch.as_tensor(out, dtype=torch.float32, device=device), torch.as_tensor(known, device=device)


UNKNOWN = 0.05
"""Largest weight of unknown rewards in a return that counts as known."""


def checked(recorded: Recorded) -> Recorded:
    """The same, if its arrays fit each other.

    Raises:
        ConfigError: they do not, or hold no episode, an empty one, or numbers that are not finite.
    """
    place, steps = quote(recorded.place, 120), len(recorded.action)
    if not len(recorded.lengths):
        raise ConfigError(f"{place} holds no episode")
    if (recorded.lengths < 1).any():
        empty = int(np.flatnonzero(recorded.lengths < 1)[0])
        raise ConfigError(f"{place}: episode {empty} has no steps; leave it out")
    if recorded.action.ndim != 2 or not recorded.action.shape[1]:
        raise ConfigError(
            f"{place}: the actions have the shape {recorded.action.shape}; one row a step and one column a joint are "
            "needed"
        )
    if not recorded.observations and not recorded.others:
        raise ConfigError(f"{place} holds no observations")
    if recorded.dt is not None and not (np.isfinite(recorded.dt) and recorded.dt > 0):
        raise ConfigError(f"{place}: the control period is {recorded.dt:g} s; it must be positive")
    for name, units in (("action_scale", recorded.scale), ("action_offset", recorded.offset)):
        if units is not None and not np.isfinite(units).all():
            raise ConfigError(f"{place}: {name} is not finite")
    arrays = {
        **recorded.observations,
        "actions": recorded.action,
        **({} if recorded.reward is None else {"rewards": recorded.reward}),
    }
    for name, array in arrays.items():
        if array.ndim != (1 if name == "rewards" else 2):
            raise ConfigError(
                f"{place}: {name} has the shape {array.shape}; images and other tensors are not learned from"
            )
        if len(array) != int(recorded.lengths.sum()) or len(array) != steps:
            raise ConfigError(
                f"{place}: {name} has {len(array)} rows, the actions {steps}, and the episodes have "
                f"{int(recorded.lengths.sum())} steps in all; they must be equal"
            )
        if not np.isfinite(array).all():
            row = int(np.flatnonzero(~np.isfinite(array).reshape(len(array), -1).all(axis=1))[0])
            raise ConfigError(f"{place}: {name} is not finite in row {row}; leave that episode out")
    for name, columns in recorded.columns.items():
        if name in recorded.observations and len(columns) != recorded.observations[name].shape[1]:
            raise ConfigError(
                f"{place}: {name} has {recorded.observations[name].shape[1]} columns and {len(columns)} names"
            )
    return recorded


def assigned(
    recorded: Recorded,
    groups: Mapping[str, int],
    keys: Mapping[str, Sequence[str]],
    optional: Sequence[str] = (),
    columns: Mapping[str, Sequence[str]] | None = None,
) -> Recorded:
    """A file's arrays as observation groups.

    Args:
        recorded: the content of a file.
        groups: widths of the groups that are needed, by name.
        keys: by group, the names of the arrays whose columns, side by side, are its own; an array with the name of the
            group where it is not mentioned.
        optional: groups that may be missing.
        columns: names of the columns of groups, where they are known; a file that tells its own must tell the same.

    Raises:
        ConfigError: a group that is needed is not there, or has other columns.
    """
    place, found = quote(recorded.place, 120), recorded.observations
    if unknown := [group for group in keys if group not in groups]:
        raise ConfigError(
            f"learner.keys.{unknown[0]}: the learner needs no group {quote(unknown[0])}; it needs {listing(groups)}"
        )
    out, named = {}, {}
    for group, width in groups.items():
        wanted = list(keys.get(group, (group,)))
        missing = [name for name in wanted if name not in found]
        if missing and group in optional and group not in keys:
            continue
        if missing:
            there = dict.fromkeys((*found, *recorded.others))
            raise ConfigError(
                f"{place} has no {quote(missing[0])}; it has {listing(there)}. Say which of them are the group "
                f"{quote(group)}, in order: 'learner.keys.{group}=[NAME,NAME]'"
            )
        array = np.concatenate([found[name] for name in wanted], axis=1)
        if array.shape[1] != width:
            raise ConfigError(
                f"{place}: {', '.join(wanted)} has {array.shape[1]} columns and the group {quote(group)} of this task "
                f"has {width}: was it recorded with another task, robot or other observations?"
            )
        told = [name for key in wanted for name in recorded.columns.get(key, ())]
        ours = list((columns or {}).get(group, ()))
        if len(told) == len(ours) == width and told != ours:
            i = next(i for i in range(width) if told[i] != ours[i])
            raise ConfigError(
                f"{place}: column {i} of the group {quote(group)} is {quote(told[i])} there and {quote(ours[i])} in "
                "this task"
            )
        out[group] = array
        named[group] = tuple(told)
    return replace(recorded, observations=out, columns=named)


def fitting(recorded: Recorded, actions: int, dt: float | None) -> Recorded:
    """The same, if its actions are those of a robot with so many actuators, at this control period [s].

    Raises:
        ConfigError: they are not.
    """
    place = quote(recorded.place, 120)
    if recorded.action.shape[1] != actions:
        raise ConfigError(
            f"{place} has actions with {recorded.action.shape[1]} columns, and this robot has {actions} actuators"
        )
    if recorded.dt is not None and dt is not None and abs(recorded.dt - dt) > FEW * dt:
        raise ConfigError(
            f"{place} was recorded every {recorded.dt:g} s, and this task acts every {dt:g} s; record it again, or set "
            f"task.control_dt={recorded.dt:g}"
        )
    return recorded


def in_units(recorded: Recorded, kind: str, scale: np.ndarray | None, offset: np.ndarray | None) -> Recorded:
    """The same with actions in the task's unit.

    Args:
        recorded: a file's content.
        kind: what its actions are: "action", the task's, or "joint_target", from which actions are computed.
        scale: (A,) change of each joint target of this task by an action of 1; None where it is not known.
        offset: (A,) joint target of the action 0.

    Raises:
        ConfigError: the task scales actions otherwise than the recorded one, or they are far from any action.
    """
    place, action = quote(recorded.place, 120), recorded.action
    if kind == "joint_target":
        if scale is None or offset is None or (scale == 0).any():
            raise ConfigError(
                "learner.action_kind=joint_target: this task tells no scale of its actions; use "
                "learner.action_kind=action"
            )
        action = ((action - offset) / scale).astype(np.float32)
    else:
        pairs = (("scale", recorded.scale, scale), ("offset", recorded.offset, offset))
        for name, theirs, ours in pairs:
            if theirs is None or ours is None:
                continue
            if len(theirs) != len(ours) or not np.allclose(theirs, ours, rtol=FEW, atol=1e-5):
                i = int(np.argmax(np.abs(theirs - ours))) if len(theirs) == len(ours) else 0
                raise ConfigError(
                    f"{place}: the {name} of action {i} was {theirs[i]:g} when it was recorded, and is {ours[i]:g} in "
                    "this task; use the same task.action_scale"
                )
    largest = float(np.abs(action).max())
    if largest > LARGEST_ACTION:
        i = int(np.abs(action).max(axis=0).argmax())
        raise ConfigError(
            f"{place}: action {i} is up to {largest:g}, where 1 is usual: is it a joint target? Then use "
            "learner.action_kind=joint_target, with angles in rad"
        )
    return replace(recorded, action=action)


def joined(parts: Sequence[Recorded]) -> Demonstrations:
    """The episodes of several files, whose arrays are observation groups.

    A group that is optional and missing in one of them is left out; so are rewards. Both are in its `notes`.
    """
    groups = [name for name in parts[0].observations if all(name in p.observations for p in parts)]
    rewards = [part.reward for part in parts if part.reward is not None]
    notes = []
    for name in dict.fromkeys(name for part in parts for name in part.observations):
        if name not in groups:
            lacks = next(part.place for part in parts if name not in part.observations)
            notes.append(
                f"the group {quote(name)} is left out of all demonstrations: {quote(lacks, 120)} has none"
            )
    if rewards and len(rewards) < len(parts):
        lacks = next(part.place for part in parts if part.reward is None)
        notes.append(f"rewards are left out of all demonstrations: {quote(lacks, 120)} has none")
    return Demonstrations(
        {
            name: torch.from_numpy(np.concatenate([part.observations[name] for part in parts]))
            for name in groups
        },
        torch.from_numpy(np.concatenate([part.action for part in parts])),
        tuple(int(n) for part in parts for n in part.lengths),
        torch.from_numpy(np.concatenate([part.terminated for part in parts])),
        torch.from_numpy(np.concatenate(rewards)) if len(rewards) == len(parts) else None,
        tuple(notes),
    )
