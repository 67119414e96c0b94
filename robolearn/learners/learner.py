"""What every learning algorithm looks like to the training loop."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol

import torch

from robolearn.core.learner_env import LearnerEnv

Tensor = torch.Tensor

Reduce = Callable[[Tensor], Tensor]
"""Averages a tensor over all ranks of a run, in place, and returns it."""


def alone(tensor: Tensor) -> Tensor:
    """The reduction of a run with one rank: nothing to average."""
    return tensor


@dataclass
class Report:
    """What one iteration did."""

    steps: int
    """Environment steps collected."""
    losses: dict[str, float]
    """Losses and the learner's own numbers, by name."""
    env: dict[str, float]
    """`Env.drain`: means of rewards, metrics and episodes."""
    seconds: dict[str, float] = field(default_factory=dict)
    """Time by phase, see `robolearn.core.timers.Timers`: simulate, infer, learn, synchronize, other, total."""


class Policy(Protocol):
    """Observations to actions, as the robot will run it: deterministic, without the critic.

    One that remembers is a `robolearn.learners.models.DeployedPolicy` with `state_names`, or has a
    `reset(done)` that `robolearn.training.runs.forget` calls.
    """

    def __call__(self, observations: Tensor) -> Tensor:
        """The `policy` group (N, D) to actions (N, A)."""


class Learner(Protocol):
    """One algorithm. It owns how it collects; it is given an Env and a `reduce`, and no device number."""

    config_class: ClassVar[type]
    requires: ClassVar[frozenset[str]]
    """Backend capabilities it cannot do without, such as `gradients`."""

    @property
    def policy(self) -> Policy:
        """The policy as it stands."""

    def iterate(self, env: LearnerEnv) -> Report:
        """Collect one batch and learn from it."""

    def state_dict(self) -> dict[str, Any]:
        """Everything needed to go on: weights, optimizer, normalizer, rates, random state."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """The reverse of `state_dict`."""
