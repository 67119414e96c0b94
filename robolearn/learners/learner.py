"""What every learning algorithm looks like to the training loop."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol

from robolearn.core.learner_env import LearnerEnv
from robolearn.learners.policy import Act, Policy


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
    """One algorithm. Its constructor takes (env, config, seed, all_reduce_mean), see `robolearn.learners.ranks`; it
    computes on the Env's device."""

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
