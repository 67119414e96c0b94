"""The settings that cloning and distillation share, named as PPO's are."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Literal

from robolearn.learners.ppo.config import LEAST_STD
from robolearn.learners.validation import require_networks


@dataclass
class ImitationConfig:
    """Networks and gradient steps of a learner that imitates."""

    num_steps: int = field(default=24, metadata={"min": 0, "max": 4096})
    """Steps of every environment in an iteration. 0: 256 over the root of the number of environments, at least 2."""
    num_epochs: int = field(default=1, metadata={"min": 1, "max": 100})
    """Passes over the samples in an iteration, each with a new permutation."""
    minibatch_size: int = field(default=4096, metadata={"min": 2, "max": 10_000_000})
    """Approximate samples per gradient step, with `rnn` of whole sequences."""
    learning_rate: float = field(default=1e-3, metadata={"above": 0.0, "max": 1.0})
    """Adam's step size at the start."""
    max_grad_norm: float = field(default=1.0, metadata={"above": 0.0, "max": 1e6})
    """Largest gradient norm, of actor and critic separately."""
    std: float = field(default=0.2, metadata={"min": LEAST_STD, "max": 10.0})
    """Standard deviation of the policy's actions, with which PPO explores where it starts with this policy. Where the
    loss learns it, the least one."""
    actor_groups: tuple[str, ...] = ("policy",)
    """Observation groups that the actor takes, in this order; the robot must provide these."""
    critic_groups: tuple[str, ...] = ("critic",)
    """Observation groups that the critic takes."""
    estimated_groups: tuple[str, ...] = ()
    """Observation groups that the actor cannot measure and estimates from its own, see PPO's."""
    estimator_hidden: tuple[int, ...] = (128, 64)
    """Hidden layers of the network that estimates them."""
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
    """Left-right symmetry, as PPO's."""
    precision: Literal["auto", "fp32", "bf16"] = "auto"
    """Arithmetic of the networks; auto: fp32."""

    def steps_of(self, num_envs: int) -> int:
        """Steps in an iteration of this many environments; see `PPOConfig.steps_of`."""
        return self.num_steps or max(2, round(256 / math.sqrt(num_envs)))

    def validate(self) -> None:
        """Raise ValueError for settings that contradict each other."""
        require_networks(self)
