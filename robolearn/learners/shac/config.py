"""The settings of SHAC, `learner.*` on the command line."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from robolearn.learners.validation import require_networks


@dataclass
class SHACConfig:
    """Short-horizon actor-critic."""

    num_steps: int = field(default=32, metadata={"min": 1, "max": 4096})
    """The horizon: steps of every environment in an iteration; gradients flow back through all of them."""
    gamma: float = field(default=0.99, metadata={"min": 0.0, "max": 1.0})
    """Discount per step."""
    lam: float = field(default=0.95, metadata={"min": 0.0, "max": 1.0})
    """Lambda of the critic's returns; 0 is one-step TD, 1 the rewards up to the end of the horizon."""
    learning_rate: float = field(default=1e-2, metadata={"above": 0.0, "max": 1.0})
    """Adam's step size for the actor at the start. Higher than PPO's: there is one step per iteration."""
    critic_learning_rate: float = field(default=1e-3, metadata={"above": 0.0, "max": 1.0})
    """Adam's step size for the critic at the start."""
    decay_iterations: int = field(default=0, metadata={"min": 0, "max": 1_000_000_000})
    """Iterations in which both step sizes fall linearly to `decay_to` of their start; 0: they are constant."""
    decay_to: float = field(default=0.01, metadata={"above": 0.0, "max": 1.0})
    """Share of the step sizes after `decay_iterations`."""
    betas: tuple[float, float] = (0.7, 0.95)
    """Adam's decay rates for both. Gradients through a simulator are exact and need less averaging than PPO's."""
    max_grad_norm: float = field(default=1.0, metadata={"above": 0.0, "max": 1e6})
    """Largest gradient norm, of actor and critic separately."""
    max_row_grad_norm: float = field(default=100.0, metadata={"above": 0.0, "max": 1e6})
    """Largest gradient norm of an environment's return by one of its actions; larger ones are scaled down to it."""
    critic_epochs: int = field(default=16, metadata={"min": 1, "max": 1000})
    """Passes of the critic over an iteration's samples, each with a new permutation."""
    critic_minibatches: int = field(default=4, metadata={"min": 1, "max": 10_000})
    """Equal parts of a pass, one gradient step each."""
    target_keep: float = field(default=0.2, metadata={"min": 0.0, "max": 1.0})
    """Share of the target critic's weights kept in an iteration; the rest is taken from the critic. 0: a copy."""
    entropy_coef: float = field(default=0.0, metadata={"min": 0.0, "max": 1e4})
    """Weight of the entropy bonus."""
    init_std: float = field(default=1.0, metadata={"above": 0.0, "max": 10.0})
    """Standard deviation of the actions at the start. Noise smooths the objective."""
    actor_groups: tuple[str, ...] = ("policy",)
    """Observation groups that the actor takes, in this order; the robot must provide these."""
    critic_groups: tuple[str, ...] = ("critic",)
    """Observation groups that the critic takes."""
    actor_hidden: tuple[int, ...] = (64, 64)
    """Hidden layers of the actor."""
    critic_hidden: tuple[int, ...] = (64, 64)
    """Hidden layers of the critic."""
    activation: Literal["elu", "relu", "swish", "tanh"] = "tanh"
    """Activation function of both networks; smooth, because the actor follows the critic's gradient."""

    def validate(self) -> None:
        """Raise ValueError for settings out of range."""
        if not all(0.0 <= beta < 1.0 for beta in self.betas):
            raise ValueError(f"betas={list(self.betas)} must both be at least 0 and less than 1")
        require_networks(self)
