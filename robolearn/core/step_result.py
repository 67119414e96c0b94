"""StepResult: the return value of `Env.step`."""

from __future__ import annotations

from dataclasses import dataclass, field

from robolearn.envs.state import Tensor
from robolearn.tasks.mdp.task import Ratio


@dataclass
class StepResult:
    """Result of one control step of N environments. Tensors are valid until the next step."""

    observations: dict[str, Tensor]
    """(N, D) a group: the next observations; those of the new episode where one ended."""
    reward: Tensor
    """(N,) weighted sum of the terms, per step."""
    terminated: Tensor
    """(N,) bool: the episode ended for good; its future value is 0."""
    truncated: Tensor
    """(N,) bool: the episode ran out of time; its future value is the critic's of
    `terminal_observations`. Never set together with `terminated`."""
    terminal_observations: dict[str, Tensor]
    """(N, D) a group: the observations of the state that the step ended in, before any reset."""
    diverged: Tensor
    """(N,) bool: terminated because the simulation diverged; included in `terminated`."""
    valid: Tensor | None = None
    """(N,) bool: whether the row is a step that the policy took; in the other rows the environment only reset itself,
    or the agent had ended before, and they are left out of batches and statistics. None: all rows are steps."""
    exogenous: Tensor | None = None
    """(N,) bool: an event that no action causes, a push or a new command, came in this step. None: it is not known."""
    metrics: dict[str, Ratio] = field(default_factory=dict)
    """The task's metrics, a pair of (N,) each; diverged environments count in none of them."""

    @property
    def done(self) -> Tensor:
        """(N,) bool: terminated or truncated."""
        return self.terminated | self.truncated
