"""Learner: the interface of every learning algorithm to the training loop."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol

from robolearn.core.learner_env import LearnerEnv
from robolearn.learners.policy import Act, Policy


@dataclass
class Report:
    """Result of one iteration."""

    steps: int
    """Environment steps collected."""
    losses: dict[str, float]
    """Losses and other numbers of the learner, by name."""
    env: dict[str, float]
    """`Env.drain`: means of rewards, metrics and episodes."""
    seconds: dict[str, float] = field(default_factory=dict)
    """Time by phase, see `robolearn.core.timers.Timers`: simulate, infer, learn, synchronize, other, total."""
    finished: bool = False
    """Whether more iterations would change nothing: the run ends with this one."""
    notes: list[str] = field(default_factory=list)
    """Lines for the user."""


class Learner(Protocol):
    """One algorithm. Its constructor takes (env, config, seed, shards), see `robolearn.core.shards`; it
    computes on the Env's device."""

    config_class: ClassVar[type]
    requires: ClassVar[frozenset[str]]
    """Backend capabilities that it needs, such as `gradients`."""

    @property
    def policy(self) -> Policy | Act:
        """The current policy. A `Policy` is saved in each checkpoint, loads without this learner and can be exported.
        Any other function of observations acts only while its learner exists."""

    def iterate(self, env: LearnerEnv) -> Report:
        """Collect one batch and learn from it."""

    def state_dict(self) -> dict[str, Any]:
        """Everything needed to resume: weights, optimizer, normalizer, rates, random state."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` returned."""
