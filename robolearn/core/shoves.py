"""Pushes by force: which force acts on each robot's base now, and for how much longer."""

from __future__ import annotations

import torch

from robolearn.core.env_state import Named
from robolearn.envs.backend import Backend
from robolearn.envs.state import Tensor
from robolearn.tasks.mdp.commands import Pushes
from robolearn.tasks.mdp.context import Random


class Shoves:
    """The forces of `task.pushes.force`. They begin with a push, and last for a while.

    Its state is a node of the EnvState: `force` (N, 3) [N], world axes, and `left` (N,), how long it still acts [s];
    nothing where the task has no such pushes.
    """

    def __init__(self, pushes: Pushes | None) -> None:
        self._pushes = pushes if pushes is not None and pushes.forces else None

    def none(self, num_envs: int, device: torch.device) -> Named:
        """The state without a force."""
        if self._pushes is None:
            return {}
        return {
            "force": torch.zeros(num_envs, 3, device=device),
            "left": torch.zeros(num_envs, device=device),
        }

    def apply(
        self, now: Named, due: Tensor, random: Random, level: Tensor | None, backend: Backend, dt: float
    ) -> Named:
        """Let forces act in this step of `dt` [s]: new ones where a push is `due` (N,) bool, at `level` (N,) of the
        curriculum, those of before elsewhere while they last; returns the state after it."""
        if self._pushes is None:
            return now
        force, lasting = self._pushes.sample_force(len(due), random)
        if level is not None:
            force = force * level[:, None]
        force = torch.where(due[:, None], force, now["force"])
        left = torch.where(due, lasting, now["left"])
        # Half a step's tolerance: a force of 0.1 s acts for five steps of 0.02 s. The shortest acts for one.
        force = torch.where((due | (left > 0.5 * dt))[:, None], force, 0.0)
        backend.apply_force(force)
        return {"force": force, "left": left - dt}
