"""LearnerEnv: what a learner and the training loop see of environments, ours and other people's."""

from __future__ import annotations

from typing import Any, Protocol

import torch

from robolearn.core.step_result import StepResult
from robolearn.envs.backend import Capabilities
from robolearn.envs.state import Tensor
from robolearn.tasks.mdp.symmetry import Symmetry


class LearnerEnv(Protocol):
    """N environments that reset by themselves; `Env` and `ExternalEnv` are two."""

    num_envs: int
    num_actions: int
    device: torch.device
    gradients: bool
    """Whether gradients flow through a step."""
    resets_take_a_step: bool
    """Whether a reset is a step of its own, in which the policy is not asked; see `StepResult.valid`."""
    dt: float
    """Control period [s]."""
    max_episode_steps: int
    """No episode is longer."""

    @property
    def observations(self) -> dict[str, Tensor]:
        """What policy and critic see now, (N, D) a group."""

    @property
    def episode_step(self) -> Tensor:
        """(N,) int64: steps into each episode."""

    @property
    def capabilities(self) -> Capabilities:
        """What the simulator can do."""

    def reset(self, stagger: bool = False) -> dict[str, Tensor]:
        """Start an episode everywhere; see `Env.reset`."""

    def step(self, action: Tensor, joint_targets: Tensor | None = None) -> StepResult:
        """One control period; see `Env.step`."""

    def check(self) -> None:
        """Raise what was not finite and could not be told at once; see `Env.check`."""

    def drain(self) -> dict[str, float]:
        """Means since the last call, by name; see `Env.drain`."""

    def symmetry(self) -> Symmetry | None:
        """The task's left-right symmetry, where it has one."""

    def detach(self) -> None:
        """Cut what the next step goes on from off the graph it came from."""

    def snapshot(self) -> dict[str, Any]:
        """Everything to go on exactly here; empty where that cannot be."""

    def restore(self, snapshot: dict[str, Any], source_rows: Tensor | None = None) -> None:
        """Go on from a snapshot."""

    def close(self) -> None:
        """Free the simulator."""
