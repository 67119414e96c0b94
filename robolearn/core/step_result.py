"""StepResult: what one control step of an Env gives."""

from __future__ import annotations

from dataclasses import dataclass, field

from robolearn.envs.state import Tensor
from robolearn.tasks.mdp.task import Ratio


@dataclass
class StepResult:
    """What one control step of N environments gives. Tensors are valid until the next step."""

    observations: dict[str, Tensor]
    """What the policy and the critic see next, (N, D) a group; of the new episode where one ended."""
    reward: Tensor
    """(N,) weighted sum of the terms, per step."""
    terminated: Tensor
    """(N,) bool: the episode ended for good; its future is worth nothing."""
    truncated: Tensor
    """(N,) bool: the episode ran out of time; its future is worth what the critic says of
    `terminal_observations`. Never set together with `terminated`."""
    terminal_observations: dict[str, Tensor]
    """The observations of the state each step ended in, before any reset."""
    diverged: Tensor
    """(N,) bool: terminated because the simulator gave up; a part of `terminated`."""
    valid: Tensor | None = None
    """(N,) bool: the row is a step that the policy took; where it is not, the environment has only reset itself, and
    the row counts nowhere. None: all are."""
    metrics: dict[str, Ratio] = field(default_factory=dict)
    """The task's metrics, a pair of (N,) each; diverged environments count in none."""

    @property
    def done(self) -> Tensor:
        """(N,) bool: the episode ended, one way or the other."""
        return self.terminated | self.truncated
