"""EnvState: everything that a control step changes, as one tree of tensors.

Two lifetimes are told apart. What is *per episode* starts anew where an episode begins; what is *per env* (a terrain
level, the stage of a curriculum) survives every reset. Snapshot, restore, checkpoint, CUDA graphs and detach are one
operation on the tree each, so that a new entry needs no list to be edited.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import torch
from torch.utils import _pytree as pytree

from robolearn.envs.state import Tensor

Tree = TypeVar("Tree")
Named = dict[str, Tensor]
"""Tensors by name."""


@dataclass
class EpisodeState:
    """What is per episode, (N, ...) each."""

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
    """(N, C) what the task asks for."""
    command_time: Tensor
    """(N,) time since the command was drawn [s]."""
    command_left: Tensor
    """(N,) time until the next one [s]."""
    push_time: Tensor
    """(N,) time since the last push [s]; inf before the first."""
    push_left: Tensor
    """(N,) time until the next one [s]."""
    task: Named
    """The task's own, see `Task.advance`."""
    action_delay: Named
    """Actions on their way, see `robolearn.core.delay`."""
    observation_delay: Named
    """Observations on their way."""


@dataclass
class EnvState:
    """N environments between two steps."""

    episode: EpisodeState
    """Per episode."""
    per_env: Named
    """Per env, (N, ...) each, see `Task.per_env_state`: survives resets."""
    observations: Named
    """(N, D) a group: what the policy and the critic see next."""
    terminal_observations: Named
    """(N, D) a group: the same of the state the last step ended in, before any reset."""
    outcome: Named
    """(N,) of the last step: `reward`, `terminated`, `truncated`, `diverged`, `done`."""
    transit: Named
    """What the parts of one step hand on: `action` (N, A), `joint_targets` (N, A), `noise` (N, D)."""
    stats: Tensor
    """Sums over steps, see `robolearn.core.episode_stats`."""
    flags: Named
    """What was not finite, see `robolearn.core.finite_check`."""

    def rows(self, index: Tensor) -> EnvState:
        """A copy in which environment i is row `index[i]`; sums and flags belong to no environment and stay."""
        taken = tree_map(lambda tensor: tensor[index], replace(self, stats=index, flags={}))
        return replace(taken, stats=self.stats.clone(), flags=clone(self.flags))


for _node in (EpisodeState, EnvState):
    pytree.register_dataclass(_node)


def tree_map(function: Callable[..., Tensor], tree: Tree, *others: Any) -> Tree:
    """A tree of `function(leaf, *leaves of the others)` for each tensor of `tree`; other leaves as they are."""

    def leaf(value: Any, *rest: Any) -> Any:
        return function(value, *rest) if isinstance(value, Tensor) else value

    mapped: Tree = pytree.tree_map(leaf, tree, *others)
    return mapped


def clone(tree: Tree) -> Tree:
    """A copy that shares no memory."""
    return tree_map(torch.clone, tree)


def where(mask: Tensor, new: Tree, old: Tree) -> Tree:
    """Rows of `new` where `mask` (N,) is set, of `old` elsewhere."""

    def choose(ours: Tensor, theirs: Tensor) -> Tensor:
        # What both share, and what a mask of all replaces, needs no choice; a number is one for all rows.
        return ours if ours is theirs else torch.where(mask.view(-1, *[1] * (theirs.dim() - 1)), ours, theirs)

    return tree_map(choose, new, old)


def detach(tree: Tree) -> Tree:
    """The same numbers in the same memory, cut off the autograd graph they came from."""
    return tree_map(torch.Tensor.detach, tree)


def to(tree: Tree, device: torch.device) -> Tree:
    """The same on another device."""
    return tree_map(lambda tensor: tensor.to(device), tree)


def leaves(tree: Any) -> Named:
    """Each tensor of a tree by its path, such as `episode.task.phase`."""
    pairs, _ = pytree.tree_flatten_with_path(tree)
    return {
        ".".join(str(getattr(key, "name", getattr(key, "key", key))) for key in path): t for path, t in pairs
    }


def with_leaves(tree: Tree, tensors: Named) -> Tree:
    """The tree with other tensors, by path.

    Raises:
        KeyError: one has no tensor among them; it is named.
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
"""Where what checkpoints of schema 2 hold stands in the tree."""


def from_first_layout(snapshot: dict[str, Any]) -> dict[str, Any]:
    """A snapshot of an Env as checkpoints of schema 2 hold it, in today's layout.

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
