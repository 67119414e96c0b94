"""What every learning algorithm looks like to the training loop."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

import torch

from robolearn.core.learner_env import LearnerEnv

if TYPE_CHECKING:
    from robolearn.learners.policy import Act, Policy

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


class Learner(Protocol):
    """One algorithm. It owns how it collects; it is given an Env and a `reduce`, and no device number."""

    config_class: ClassVar[type]
    requires: ClassVar[frozenset[str]]
    """Backend capabilities it cannot do without, such as `gradients`."""

    @property
    def policy(self) -> Policy | Act:
        """The policy as it stands. A `Policy` stands alone: each checkpoint holds it, it loads without this learner and
        can be exported. Any other function of observations acts only while its learner is there."""

    def iterate(self, env: LearnerEnv) -> Report:
        """Collect one batch and learn from it."""

    def state_dict(self) -> dict[str, Any]:
        """Everything needed to go on: weights, optimizer, normalizer, rates, random state."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """The reverse of `state_dict`."""
