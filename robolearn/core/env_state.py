"""EnvState: everything that a control step changes, as one tree of tensors.

It has two lifetimes. Values *per episode* start anew at a reset; values *per env* (a terrain level, the stage of a
curriculum) survive every reset. Snapshot, restore, checkpoint, CUDA graph capture and detach are one operation on the
tree each, so a new entry needs no list to be edited.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any, TypeVar

import torch

from robolearn.envs.state import Tensor

Tree = TypeVar("Tree")
Named = dict[str, Tensor]
"""Tensors by name."""


@dataclass
class EpisodeState:
    """The values per episode, (N, ...) each."""

    step: Tensor
    """(N,) int64 control steps into the episode."""
    total_return: Tensor
    """(N,) sum of its rewards."""
    time: Tensor
    """(N,) time since it began [s]."""
    action: Tensor
    """(N, A) the policy's latest action."""
    previous_action: Tensor
    """(N, A) the one before."""
    command: Tensor
    """(N, C) the command."""
    command_time: Tensor
    """(N,) time since the command was drawn [s]."""
    command_left: Tensor
    """(N,) time until the next one [s]."""
    aim: Named
    """What the command steers by, see `Command.follow`."""
    push_time: Tensor
    """(N,) time since the last push [s]; inf before the first."""
    push_left: Tensor
    """(N,) time until the next one [s]."""
    shove: Named
    """The force that acts on the base, see `robolearn.core.shoves`."""
    physics_left: Named
    """(N,) time until a randomized parameter is drawn anew [s], see `robolearn.core.physics`."""
    task: Named
    """Task state, see `Task.advance`."""
    action_delay: Named
    """Actions on their way, see `robolearn.core.delay`."""
    observation_delay: Named
    """Observations on their way."""
    history: Named
    """Past samples of observations, see `robolearn.core.history`."""
    sensing: Named
    """Slow noise, biases, and what sensors have sent, see `robolearn.core.noise` and `robolearn.core.arrival`."""
    sensor_errors: Named
    """Errors of the sensors themselves, see `robolearn.core.sensor_errors`."""
    held: Named
    """`targets` (N, A), the last joint targets that arrived, where packets are lost."""
    gone: Named
    """Whether the agent's episode has ended before its world's, see `robolearn.core.ends`; empty where all of a world
    end together."""


@dataclass
class EnvState:
    """N environments between two steps."""

    episode: EpisodeState
    """Values per episode."""
    per_env: Named
    """Per env, (N, ...) each, see `Task.per_env_state`: survives resets."""
    observations: Named
    """(N, D) a group: the current observations."""
    terminal_observations: Named
    """(N, D) a group: the observations of the state that the last step ended in, before any reset."""
    outcome: Named
    """(N,) of the last step: `reward`, `terminated`, `truncated`, `diverged`, `done`, `exogenous`; `renewed`, whether
    the environment started anew; and `valid` where agents of a world end one by one."""
    transit: Named
    """Values that one part of a step passes to the next: `action` (N, A), `joint_targets` (N, A); `noise` (N, D),
    `normal` (N, D) and `drops` (N, C), drawn for what is observed; and `jump` (N, 3) [m/s], of the base's velocity in
    world axes at the last push."""
    stats: Tensor
    """Sums over steps, see `robolearn.core.episode_stats`."""
    flags: Named
    """Columns that were not finite, see `robolearn.core.finite_check`."""

    def rows(self, index: Tensor) -> EnvState:
        """A copy in which environment i is row `index[i]`; sums and flags, which are not per environment, stay."""
        taken = tree_map(lambda tensor: tensor[index], replace(self, stats=index, flags={}))
        return replace(taken, stats=self.stats.clone(), flags=clone(self.flags))


NODES: dict[type, list[str]] = {
    node: [field.name for field in fields(node)] for node in (EpisodeState, EnvState)
}
"""The dataclasses that are nodes of a tree, with their fields."""


def tree_map(function: Callable[..., Tensor], tree: Tree, *others: Any) -> Tree:
    """A tree of `function(leaf, *leaves of the others)` for each tensor of `tree`; other leaves as they are.

    The nodes of a tree are dictionaries, lists, tuples and `NODES`. A dozen of these are mapped in each step, which
    torch's own function does four times as slowly.

    Raises:
        KeyError, ValueError: another tree has other nodes.
    """
    mapped: Any = tree
    if isinstance(tree, Tensor):
        mapped = function(tree, *others)
    elif isinstance(tree, dict):
        if any(len(other) != len(tree) for other in others):
            raise ValueError(f"trees of different keys: {[sorted(each) for each in (tree, *others)]}")
        mapped = {
            key: tree_map(function, value, *[other[key] for other in others]) for key, value in tree.items()
        }
    elif isinstance(tree, list | tuple):
        each = [tree_map(function, *values) for values in zip(tree, *others, strict=True)]
        mapped = type(tree)(*each) if hasattr(tree, "_fields") else type(tree)(each)
    elif (names := NODES.get(type(tree))) is not None:
        mapped = type(tree)(
            **{
                name: tree_map(function, getattr(tree, name), *[getattr(other, name) for other in others])
                for name in names
            }
        )
    return mapped


def clone(tree: Tree) -> Tree:
    """A copy that shares no tensor."""
    return tree_map(torch.clone, tree)


def where(mask: Tensor, new: Tree, old: Tree) -> Tree:
    """Rows of `new` where `mask` (N,) is set, of `old` elsewhere."""

    masks = {1: mask}
    """By the dimensions of a tensor: a tree has many of few."""

    def choose(new: Tensor, old: Tensor) -> Tensor:
        if new is old:
            return new
        dim = old.dim()
        if dim not in masks:
            masks[dim] = mask.view(-1, *[1] * (dim - 1))
        return torch.where(masks[dim], new, old)

    return tree_map(choose, new, old)


def detach(tree: Tree) -> Tree:
    """The same numbers, in the same storage, detached from the autograd graph."""
    return tree_map(torch.Tensor.detach, tree)


def to(tree: Tree, device: torch.device) -> Tree:
    """The tree on another device."""
    return tree_map(lambda tensor: tensor.to(device), tree)


def leaves(tree: Any) -> Named:
    """Each tensor of a tree by its path, such as `episode.task.phase`."""
    if isinstance(tree, dict):
        parts = tree
    elif isinstance(tree, list | tuple):
        parts = dict(enumerate(tree))
    else:
        parts = {name: getattr(tree, name) for name in NODES.get(type(tree), ())}
    found: Named = {}
    for name, part in parts.items():
        below = {"": part} if isinstance(part, Tensor) else leaves(part)
        found |= {f"{name}.{path}" if path else str(name): tensor for path, tensor in below.items()}
    return found


def with_leaves(tree: Tree, tensors: Named) -> Tree:
    """The tree with other tensors, by path.

    Raises:
        KeyError: a path has no tensor; it is named.
    """
    names = iter(leaves(tree))
    return tree_map(lambda _: tensors[next(names)], tree)


FIRST_LAYOUT = {
    "env": {
        "episode_step": "episode.step",
        "episode_return": "episode.total_return",
        "command_left": "episode.command_left",
        "push_left": "episode.push_left",
        "observations": "observations",
        "terminal_observations": "terminal_observations",
    },
    "context": {
        "action": "episode.action",
        "previous_action": "episode.previous_action",
        "command": "episode.command",
        "episode_time": "episode.time",
        "command_time": "episode.command_time",
        "push_time": "episode.push_time",
        "memory": "episode.task",
    },
    "delays": {"action": "episode.action_delay", "observation": "episode.observation_delay"},
}
"""Paths in the tree of the entries of a checkpoint of schema 2."""


def from_first_layout(snapshot: dict[str, Any]) -> dict[str, Any]:
    """The snapshot of an Env in a checkpoint of schema 2, in the current layout.

    Raises:
        KeyError: a part is missing.
    """
    state: Named = {"stats": snapshot["totals"]}
    for part, places in FIRST_LAYOUT.items():
        for name, path in places.items():
            value = snapshot[part][name]
            state |= (
                {f"{path}.{k}": v for k, v in value.items()} if isinstance(value, dict) else {path: value}
            )
    return {"backend": snapshot["backend"], "state": state, "random": snapshot["random"]}
