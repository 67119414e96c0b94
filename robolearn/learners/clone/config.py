"""The settings of cloning, `learner.*` on the command line."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from robolearn.learners.imitation.config import ImitationConfig
from robolearn.learners.ppo.config import LEAST_STD


@dataclass
class CloneConfig(ImitationConfig):
    """Behaviour cloning. An iteration is a pass over the demonstrations, and some steps of the environments with the
    policy found, for the curves."""

    demonstrations: str | tuple[str, ...] | None = None
    """Recorded episodes to learn from: a file, a LeRobot dataset's folder, a pattern such as demos/*.npz, or a list."""
    std: float = field(default=0.1, metadata={"min": LEAST_STD, "max": 10.0})
    """Standard deviation of the policy's actions, with which PPO explores where it starts with this policy: one that
    walks falls with much more. With loss=nll, the least one."""
    keys: dict[str, tuple[str, ...]] = field(default_factory=dict, metadata={"open": True})
    """By observation group, the names in the file of the arrays that it consists of, in order; where a group is not
    mentioned, the array of its name."""
    action_kind: Literal["action", "joint_target"] = "action"
    """What the recorded actions are. action: those of the task; joint_target: joint targets in SI units."""
    loss: Literal["mse", "nll"] = "mse"
    """mse: the mean squared error of the mean action; nll: minus the log density of the actions, which also learns
    their standard deviations."""
    held_out: float = field(default=0.1, metadata={"min": 0.0, "max": 0.9})
    """Share of the episodes that are not learned from. The policy with the least loss on them is kept."""
    patience: int = field(default=10, metadata={"min": 0, "max": 1_000_000})
    """Iterations without a lower loss on them after which training ends; the step size halves after each third of it.
    0: neither."""
    rollout_interval: int = field(default=1, metadata={"min": 0, "max": 1_000_000})
    """Iterations between two with steps of the environments. 0: there are none, and the curves have no returns."""
    value_loss_coef: float = field(default=1.0, metadata={"min": 0.0, "max": 1e4})
    """Weight of the critic's loss, the squared error from the discounted returns of the demonstrations. 0: the critic
    is not learned; nor is it where there are no rewards."""
    gamma: float = field(default=0.99, metadata={"min": 0.0, "max": 1.0})
    """Discount per step of these returns."""
    reward_scale: float = field(default=1.0, metadata={"above": 0.0, "max": 1e6})
    """Factor on the rewards, as PPO's."""
    ppo_learning_rate: float = field(default=1e-4, metadata={"above": 0.0, "max": 1.0})
    """Step size with which PPO begins where it starts with this policy: a trained policy takes small steps."""

    @property
    def paths(self) -> tuple[str, ...]:
        """The demonstrations as a list."""
        given = self.demonstrations
        return () if given is None else (given,) if isinstance(given, str) else given

    def validate(self) -> None:
        """Raise ValueError for settings that contradict each other, or where there are no demonstrations."""
        super().validate()
        if not self.paths:
            raise ValueError(
                "demonstrations are missing: add learner.demonstrations=FILE, which robolearn eval RUN --record "
                "FILE.npz writes"
            )
