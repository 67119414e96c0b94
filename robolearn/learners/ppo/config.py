"""The settings of PPO, `learner.*` on the command line."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Literal

from robolearn.learners.preference.config import PreferenceConfig
from robolearn.learners.selfplay.config import SelfPlayConfig
from robolearn.learners.validation import require_divergences, require_networks, require_rates

LEAST_STD = 0.05
"""Smallest standard deviation of a policy's actions."""


@dataclass
class PPOConfig(PreferenceConfig, SelfPlayConfig):
    """Proximal policy optimization."""

    num_steps: int = field(default=24, metadata={"min": 0, "max": 4096})
    """Steps of every environment in a batch; with `rnn` also the number of steps that gradients flow back. 0: 256 over
    the root of the number of environments, 8 for 1024 and 4 for 4096, at least 2."""
    num_epochs: int = field(default=4, metadata={"min": 1, "max": 100})
    """Passes over a batch, each with a new permutation."""
    minibatch_size: int = field(default=6144, metadata={"min": 2, "max": 10_000_000})
    """Approximate samples per gradient step: a batch is split into equal parts, with `rnn` of whole environments."""
    learning_rate: float = field(default=1e-3, metadata={"above": 0.0, "max": 1.0})
    """Adam's step size at the start."""
    schedule: Literal["adaptive", "fixed"] = "adaptive"
    """adaptive: the rate follows the measured KL divergence; fixed: it is constant."""
    desired_kl: float = field(default=0.01, metadata={"above": 0.0, "max": 10.0})
    """Wanted KL divergence of the last epoch from the policy that collected the batch, within a factor of two."""
    final_kl: float = field(default=0.0, metadata={"min": 0.0, "max": 10.0})
    """Wanted KL divergence at the end of the task's curricula; the wanted one falls from `desired_kl` to it in
    proportion to their levels. Long steps learn to walk sooner, short ones average over more samples. 0, or without
    curricula: `desired_kl` throughout."""
    max_kl: float = field(default=0.06, metadata={"above": 0.0, "max": 1e9})
    """KL divergence from the policy that collected the batch at which the iteration takes no further gradient steps."""
    min_learning_rate: float = field(default=1e-5, metadata={"above": 0.0, "max": 1.0})
    """Lower bound of the adaptive rate."""
    max_learning_rate: float = field(default=1e-2, metadata={"above": 0.0, "max": 1.0})
    """Upper bound of the adaptive rate."""
    reward_scale: float = field(default=1.0, metadata={"above": 0.0, "max": 1e6})
    """Factor on the rewards that the learner sees; logs and episode returns are not scaled. A critic learns best from
    returns of about 1 to 100."""
    gamma: float = field(default=0.99, metadata={"min": 0.0, "max": 1.0})
    """Discount per step."""
    final_gamma: float = field(default=0.0, metadata={"min": 0.0, "max": 0.9999})
    """Discount per step at the end of the task's curricula: the horizon 1/(1-gamma) grows with their mean level, as
    a share of the level of a complete training. 0, or without curricula: `gamma` throughout."""
    lam: float = field(default=0.95, metadata={"min": 0.0, "max": 1.0})
    """Lambda of the advantage estimate."""
    skip_events: bool = True
    """Leave events that no action causes, pushes and new commands, out of the advantages: what happens in such a step
    is not credited to its action, nor to those before, which are valued by the state before the event. It is chance,
    and for a robot that is pushed hard most of the variance of the advantages."""
    clip: float = field(default=0.2, metadata={"above": 0.0, "max": 1.0})
    """Distance of the probability ratio from 1 beyond which the surrogate is clipped."""
    clip_value_loss: bool = False
    """Clip the change of the value function by `clip` too."""
    value_loss_coef: float = field(default=1.0, metadata={"min": 0.0, "max": 1e4})
    """Weight of the value loss."""
    entropy_coef: float = field(default=0.003, metadata={"min": 0.0, "max": 1e4})
    """Weight of the entropy bonus."""
    max_grad_norm: float = field(default=1.0, metadata={"above": 0.0, "max": 1e6})
    """Largest gradient norm, of actor and critic separately."""
    init_std: float = field(default=0.5, metadata={"above": 0.0, "max": 10.0})
    """Standard deviation of the actions at the start. None is below 0.05, whatever is asked for."""
    final_std: float = field(default=0.0, metadata={"min": 0.0, "max": 10.0})
    """Largest standard deviation at the end of the task's curricula; the bound falls from `init_std` to it with their
    levels. A policy that explores much relies on its noise, and its mean, which the robot gets, does worse. 0, or
    without curricula: none."""
    mean_bound: float = field(default=0.0, metadata={"min": 0.0, "max": 1e6})
    """Mean actions further from 0 cost `mean_bound_coef` times the square of the rest. Larger ones change nothing
    where motors saturate, and a policy that sees its last action can drive itself to ever larger ones. 0: none."""
    mean_bound_coef: float = field(default=0.01, metadata={"min": 0.0, "max": 1e4})
    """Weight of that cost."""
    noise_correlation: float = field(default=0.0, metadata={"min": 0.0, "max": 0.99})
    """Correlation of the exploration noise of a step with that of the step before: above 0, noise moves a robot's limbs
    further before it averages out (Hollenstein et al., 2024, "Colored Noise in PPO")."""
    actor_groups: tuple[str, ...] = ("policy",)
    """Observation groups that the actor takes, in this order; the robot must provide these."""
    critic_groups: tuple[str, ...] = ("critic",)
    """Observation groups that the critic takes."""
    estimated_groups: tuple[str, ...] = ()
    """Observation groups that the actor cannot measure and estimates from its own, with a small network that learns
    them by regression and is part of the policy."""
    estimator_hidden: tuple[int, ...] = (128, 64)
    """Hidden layers of that network."""
    actor_hidden: tuple[int, ...] = (256, 128)
    """Hidden layers of the actor."""
    critic_hidden: tuple[int, ...] = (256, 128)
    """Hidden layers of the critic."""
    activation: Literal["elu", "relu", "swish", "tanh"] = "elu"
    """Activation function of both networks."""
    rnn: Literal["none", "gru", "lstm"] = "none"
    """Recurrent layers of the actor, between normalizer and hidden layers; the critic has none."""
    rnn_hidden: int = field(default=128, metadata={"min": 1, "max": 8192})
    """Units of a recurrent layer."""
    rnn_layers: int = field(default=1, metadata={"min": 1, "max": 8})
    """Number of recurrent layers."""
    symmetry: Literal["auto", "none", "equivariant", "augment"] = "auto"
    """Left-right symmetry. equivariant: weights such that the mirror image of an observation gives the mirror image of
    the action; augment: learn from every sample and its mirror image; auto: equivariant where task and network allow
    it, else none."""
    reference: str | None = None
    """Run, checkpoint or pretrained:NAME whose policy the learned one stays near: the KL divergence from it is a term
    of the loss. null: none."""
    reference_coef: float = field(default=0.1, metadata={"min": 0.0, "max": 1e4})
    """Weight of that divergence, and with `reference_kl` its weight at the start."""
    reference_kl: float = field(default=0.0, metadata={"min": 0.0, "max": 1e3})
    """Wanted divergence from the reference; the weight is steered to it. 0: the weight is fixed."""
    reference_estimator: Literal["exact", "k3"] = "exact"
    """How the divergence is computed. exact: in closed form for Gaussians; k3: estimated from the actions taken, whose
    gradient is on average that of the divergence of the reference from the learned policy, the other way round."""
    policies: dict[str, str] = field(
        default_factory=dict, metadata={"open": r"\w+", "example": "{robot: a, partner: b}"}
    )
    """Name of the policy of each agent of a task with several, {robot: a, partner: b}: agents of one name share a
    policy, which learns from them alone. {}: all share one."""
    team_value: bool = False
    """Agents of a world that share a policy are a team: all get the mean of their rewards, and the value of a state is
    the mean of the critic's values for them. false: each has a reward and a value of its own."""
    average: float = field(default=0.0, metadata={"min": 0.0, "max": 0.9999})
    """Share that the mean of the actor's past weights keeps in each iteration; it is this mean that is evaluated and
    exported. 0: the latest weights are."""
    proximal: Literal["current", "behaviour"] = "current"
    """Policy around which `clip` bounds a batch that an older policy has collected, with mode=async. current: the
    learner's before the update, and samples are weighted by its ratio to the older one; behaviour: the older one."""
    max_rho: float = field(default=1.0, metadata={"above": 0.0, "max": 1e3})
    """Largest importance weight of a step that an older policy took: rho-bar of V-trace."""
    max_trace: float = field(default=1.0, metadata={"min": 0.0, "max": 1e3})
    """Largest importance weight with which later steps count for such a step: c-bar of V-trace."""
    precision: Literal["auto", "fp32", "bf16"] = "auto"
    """Arithmetic of the networks; auto: fp32. bf16 is faster where the processor multiplies it in hardware, and learns
    less from each step: its rounding changes the ratios of PPO by half as much as an iteration. Recurrent layers always
    use fp32."""

    def steps_of(self, num_envs: int) -> int:
        """Steps in a batch of this many environments. More environments make larger batches, and larger batches take
        fewer of their steps to learn as much: the root shares the gain between the two."""
        return self.num_steps or max(2, round(256 / math.sqrt(num_envs)))

    def validate(self) -> None:
        """Raise ValueError for settings that contradict each other."""
        self.validate_preferences()
        require_rates(self)
        if self.final_gamma and not self.gamma <= self.final_gamma:
            raise ValueError(
                f"final_gamma={self.final_gamma:g} is below gamma={self.gamma:g}; raise it, or use 0 for a fixed gamma"
            )
        if self.final_std and not LEAST_STD <= self.final_std <= self.init_std:
            raise ValueError(
                f"final_std={self.final_std:g} is not within {LEAST_STD:g} and init_std={self.init_std:g}; change it, "
                "or use 0 for no bound"
            )
        if self.final_kl > self.desired_kl:
            raise ValueError(
                f"final_kl={self.final_kl:g} is above desired_kl={self.desired_kl:g}; lower it, or use 0 for none"
            )
        if self.self_play and self.noise_correlation:
            raise ValueError(
                f"self_play={self.self_play:g} with noise_correlation={self.noise_correlation:g}: past policies "
                "act with new noise in each step; use noise_correlation=0"
            )
        if self.team_value and self.clip_value_loss:
            raise ValueError(
                "team_value=true with clip_value_loss=true: the value of a team is not what the critic says for an "
                "agent; leave one of them out"
            )
        for agent, name in self.policies.items():
            if not isinstance(name, str) or not name.isidentifier():
                raise ValueError(f"policies.{agent}={name!r} is no name; use letters, digits and _")
        for name in ("policies", "team_value"):
            if self.self_play and getattr(self, name):
                raise ValueError(
                    f"self_play={self.self_play:g} with {name}: opponents are past policies, and no team; use "
                    f"self_play=0, or leave {name} out"
                )
        require_divergences(self)
        require_networks(self)
