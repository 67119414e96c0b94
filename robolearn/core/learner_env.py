"""LearnerEnv: the interface of environments, ours and external ones, for learners and the training loop."""

from __future__ import annotations

from typing import Any, Protocol

import torch

from robolearn.core.step_result import StepResult
from robolearn.envs.backend import Capabilities
from robolearn.envs.state import Tensor
from robolearn.tasks.mdp.symmetry import Symmetry

LEVEL = "level_"
"""Prefix of the levels of curricula in the per-env state and among the metrics."""


class LearnerEnv(Protocol):
    """N environments that reset themselves; `Env` and `ExternalEnv` implement it."""

    num_envs: int
    num_actions: int
    device: torch.device
    gradients: bool
    """Whether gradients flow through a step."""
    resets_take_a_step: bool
    """Whether there are steps in which the policy's action has no effect: a reset takes one, or an agent may end before
    the others of its world; see `StepResult.valid`."""
    dt: float
    """Control period [s]."""
    max_episode_steps: int
    """Length of the longest episode [control steps]."""

    @property
    def observations(self) -> dict[str, Tensor]:
        """The current observations, (N, D) a group."""

    @property
    def episode_step(self) -> Tensor:
        """(N,) int64 control steps into each episode."""

    @property
    def capabilities(self) -> Capabilities:
        """What the simulator can do."""

    def reset(self, stagger: bool = False) -> dict[str, Tensor]:
        """Start an episode everywhere; see `Env.reset`."""

    def step(self, action: Tensor, joint_targets: Tensor | None = None) -> StepResult:
        """One control period; see `Env.step`."""

    def check(self) -> None:
        """Raise the errors that a GPU could not report at once; see `Env.check`."""

    def drain(self) -> dict[str, float]:
        """Means since the last call, by name; see `Env.drain`."""

    def symmetry(self) -> Symmetry | None:
        """The task's left-right symmetry; None without one."""

    def detach(self) -> None:
        """Detach the state from the autograd graph; see `Env.detach`."""

    def snapshot(self) -> dict[str, Any]:
        """Everything that an exact resume needs; empty where the simulator has no snapshot."""

    def restore(self, snapshot: dict[str, Any], source_rows: Tensor | None = None) -> None:
        """Continue from a snapshot; see `Env.restore`."""

    def close(self) -> None:
        """Free the simulator."""
