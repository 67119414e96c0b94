"""The settings of GRPO, `learner.*` on the command line."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from robolearn.learners.validation import require_divergences, require_networks, require_rates


@dataclass
class GRPOConfig:
    """Group-relative policy optimization."""

    group_size: int = field(default=8, metadata={"min": 1, "max": 4096})
    """Rollouts that start in one state, with the same commands, pushes and noise; only their actions differ."""
    rollout_steps: int = field(default=48, metadata={"min": 0, "max": 4096})
    """Steps of a rollout. It starts where one of its group, drawn at random, has ended the one before. 0: rollouts are
    whole episodes, each from its reset."""
    credit: Literal["outcome", "to_go"] = "outcome"
    """What of a rollout each of its actions is judged by. outcome: all of its rewards; to_go: those that follow the
    action. A rollout that has ended has none to come, which counts as 0 in the mean of its group."""
    baseline: Literal["group", "leave_one_out", "batch", "none"] = "group"
    """What returns are compared with. group: the mean of their group; leave_one_out: that of the others in it; batch:
    the mean of all rollouts; none: 0."""
    normalize: Literal["group", "batch", "none"] = "group"
    """What the differences are divided by. group: the spread in their group; batch: that of all rollouts; none: 1."""
    length: Literal["step", "rollout"] = "step"
    """What has the same weight in the loss. step: each step, so that a long rollout counts for more than a short one;
    rollout: each rollout, so that each step of a short one counts for more."""
    gamma: float = field(default=1.0, metadata={"min": 0.0, "max": 1.0})
    """Discount per step."""
    reward_scale: float = field(default=1.0, metadata={"above": 0.0, "max": 1e6})
    """Factor on the rewards that the learner sees. It matters where advantages are not divided by a spread."""
    num_epochs: int = field(default=4, metadata={"min": 1, "max": 100})
    """Passes over a batch, each with a new permutation."""
    minibatch_size: int = field(default=6144, metadata={"min": 2, "max": 10_000_000})
    """Approximate samples per gradient step."""
    learning_rate: float = field(default=1e-3, metadata={"above": 0.0, "max": 1.0})
    """Adam's step size at the start."""
    schedule: Literal["adaptive", "fixed"] = "adaptive"
    """adaptive: the rate follows the measured KL divergence; fixed: it is constant."""
    desired_kl: float = field(default=0.01, metadata={"above": 0.0, "max": 10.0})
    """Wanted KL divergence of the last epoch from the policy that collected the batch, within a factor of two."""
    max_kl: float = field(default=0.06, metadata={"above": 0.0, "max": 1e9})
    """KL divergence from the policy that collected the batch at which the iteration takes no further gradient steps."""
    min_learning_rate: float = field(default=1e-5, metadata={"above": 0.0, "max": 1.0})
    """Lower bound of the adaptive rate."""
    max_learning_rate: float = field(default=1e-2, metadata={"above": 0.0, "max": 1.0})
    """Upper bound of the adaptive rate."""
    clip: float = field(default=0.2, metadata={"above": 0.0, "max": 1.0})
    """Distance of the probability ratio from 1 below which the surrogate is clipped, for actions that did worse."""
    clip_high: float = field(default=0.2, metadata={"above": 0.0, "max": 10.0})
    """The same above 1, for actions that did better; larger than `clip`, rare good actions gain more (Yu et al., 2025,
    "DAPO", sec. 3.1)."""
    entropy_coef: float = field(default=0.003, metadata={"min": 0.0, "max": 1e4})
    """Weight of the entropy bonus."""
    reference: str | None = None
    """Run, checkpoint or pretrained:NAME whose policy the learned one stays near: the KL divergence from it is a term
    of the loss. null: none."""
    reference_coef: float = field(default=0.04, metadata={"min": 0.0, "max": 1e4})
    """Weight of that divergence, and with `reference_kl` its weight at the start."""
    reference_kl: float = field(default=0.0, metadata={"min": 0.0, "max": 1e3})
    """Wanted divergence from the reference; the weight is steered to it. 0: the weight is fixed."""
    reference_estimator: Literal["exact", "k3"] = "exact"
    """How the divergence is computed; see learner=ppo."""
    max_grad_norm: float = field(default=1.0, metadata={"above": 0.0, "max": 1e6})
    """Largest gradient norm."""
    init_std: float = field(default=0.5, metadata={"above": 0.0, "max": 10.0})
    """Standard deviation of the actions at the start."""
    noise_correlation: float = field(default=0.0, metadata={"min": 0.0, "max": 0.99})
    """Correlation of the exploration noise of a step with that of the step before."""
    actor_groups: tuple[str, ...] = ("policy",)
    """Observation groups that the actor takes, in this order; the robot must provide these."""
    estimated_groups: tuple[str, ...] = ()
    """Observation groups that the actor cannot measure and estimates from its own; see learner=ppo."""
    estimator_hidden: tuple[int, ...] = (128, 64)
    """Hidden layers of the network that does."""
    actor_hidden: tuple[int, ...] = (256, 128)
    """Hidden layers of the actor."""
    activation: Literal["elu", "relu", "swish", "tanh"] = "elu"
    """Activation function."""
    symmetry: Literal["auto", "none", "equivariant", "augment"] = "auto"
    """Left-right symmetry; see learner=ppo."""
    precision: Literal["auto", "fp32", "bf16"] = "auto"
    """Arithmetic of the networks; auto: fp32."""

    @property
    def final_kl(self) -> float:
        """0: the wanted divergence does not follow the task's curricula."""
        return 0.0

    def steps_of(self, num_envs: int) -> int:
        """Steps in a batch; 0: an episode's."""
        return self.rollout_steps

    def validate(self) -> None:
        """Raise ValueError for settings that contradict each other."""
        require_rates(self)
        if self.clip_high < self.clip:
            raise ValueError(
                f"clip_high={self.clip_high:g} is below clip={self.clip:g}: rare good actions would gain less than "
                "others; raise it"
            )
        if self.group_size == 1 and (
            self.baseline in ("group", "leave_one_out") or self.normalize == "group"
        ):
            raise ValueError(
                f"group_size=1 has nothing to compare with in baseline={self.baseline}, normalize={self.normalize}; "
                "use 2 or more (8 and 16 are usual), or baseline=batch with normalize=batch"
            )
        require_divergences(self)
        require_networks(self)
