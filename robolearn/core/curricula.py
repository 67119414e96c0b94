"""Curricula of an Env: the level of each environment, with which commands, pushes or randomization grow."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from robolearn.core.learner_env import LEVEL
from robolearn.core.shards import ONE, Shards
from robolearn.envs.state import State, Tensor
from robolearn.tasks.mdp.context import Context
from robolearn.tasks.mdp.task import Task

LEVEL_ENVS = 1024
"""With more environments than this, the levels also follow what the others did."""


class Curricula:
    """The active curricula of a task. Their levels are part of the per-env state, under `LEVEL` and their name."""

    def __init__(self, task: Task, training: bool, shards: Shards = ONE) -> None:
        """Without `training` there are none: commands, pushes and parameters have their full ranges."""
        self._shards = shards
        active = task.active_levels() if training else {}
        self._functions = {f"{LEVEL}{name}": function for name, function in active.items()}
        self._stated = {f"{LEVEL}{name}": task.curricula[name] for name in active}

    @property
    def names(self) -> tuple[str, ...]:
        """Name of each level in the per-env state and among the metrics."""
        return tuple(self._stated)

    def added_to(self, own: dict[str, Tensor], num_envs: int, device: torch.device) -> dict[str, Tensor]:
        """A task's per-env state, and beside it the levels (N,) before the first step; as it is without curricula."""
        first = {name: torch.full((num_envs,), s.start, device=device) for name, s in self._stated.items()}
        return {**first, **own} if first else own

    def reached(self, own: dict[str, Tensor], saved: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """A per-env state whose levels are the means of those of an EnvState, given by path."""
        old = {
            name: saved[f"per_env.{name}"].mean().item() for name in self.names if f"per_env.{name}" in saved
        }
        most = {name: self._stated[name].most for name in old}
        return {**own, **{name: torch.full_like(own[name], min(x, most[name])) for name, x in old.items()}}

    def shares(self, levels: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Each level (N,) as a share of the one of a complete training."""
        return {name: levels[name] / stated.complete for name, stated in self._stated.items()}

    def changed(
        self, levels: Mapping[str, Tensor], state: State, ctx: Context, diverged: Tensor
    ) -> dict[str, Tensor]:
        """Each level (N,) after it rose or fell by what its function says; a diverged environment keeps its own.

        A policy learns from all samples, of which each environment has fewer where there are more. So that training
        becomes harder as early with many, the mean level changes with the number of samples beyond `LEVEL_ENVS`. Where
        ranks share the environments, the others are those of an environment's shard: a mean over all would be one
        more exchange in every step.
        """
        others, out = max(0.0, self._shards.whole(len(diverged)) / LEVEL_ENVS - 1), {}
        for name, function in self._functions.items():
            # The State of a diverged environment means nothing, and one NaN would make the mean NaN.
            old, change = levels[name], torch.where(diverged, 0.0, function(state, ctx))
            new = (old + change + others * self._mean(change)).clamp(0.0, self._stated[name].most)
            out[name] = torch.where(diverged, old, new)
        return out

    def _mean(self, change: Tensor) -> Tensor:
        """The mean change: () of all environments, or (N,) that of each one's shard."""
        if self._shards.single:
            return change.mean()
        means = torch.stack([part.mean() for part in self._shards.parts(change)])
        return means.repeat_interleave(len(change) // len(means))
