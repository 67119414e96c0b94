"""Cartpole swing-up: the pole hangs, and a weak cart must swing it up and keep it there."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch

from robolearn.envs.state import InitialState, State, Tensor
from robolearn.tasks.cartpole import HINGE, SLIDER, centred, off_the_rail, upright
from robolearn.tasks.mdp import terms
from robolearn.tasks.mdp.context import Context, Random
from robolearn.tasks.mdp.observations import Observation
from robolearn.tasks.mdp.stated import Reward, Termination, ends, reward
from robolearn.tasks.mdp.task import Task

COS_UPRIGHT = math.cos(0.2)
"""A pole within 0.2 rad counts as upright."""


def cart_speed(state: State, ctx: Context) -> Tensor:
    """Squared velocity of the cart (N,) [m^2/s^2]."""
    return state.robot.joint_vel[:, SLIDER].square()


def pole_speed(state: State, ctx: Context) -> Tensor:
    """Squared angular velocity of the pole (N,) [rad^2/s^2]."""
    return state.robot.joint_vel[:, HINGE].square()


@dataclass
class CartpoleSwingup(Task):
    """A cart swings a hanging pole up and balances it in the middle of its rail.

    Solved: over whole episodes of the mean action the metric `upright`, the share of the steps in which the pole
    is within 0.2 rad of upright, is at least 0.7. A good policy has the pole up after 2 of 10 s.
    """

    robot: str = "cartpole"
    """Name of the robot."""
    control_dt: float = field(default=0.04, metadata={"above": 0.0, "max": 1.0})
    """Control period [s]; each has one action."""
    episode_length_s: float = field(default=10.0, metadata={"above": 0.0, "max": 3600.0})
    """Episode length [s]; running out of it is a time-out, not a failure."""
    force: float = field(default=12.0, metadata={"above": 0.0, "max": 100.0})
    """Force on the cart for a unit action [N]."""
    start_spread: float = field(default=1.57, metadata={"min": 0.0, "max": 3.141592653589793})
    """Largest initial angle from hanging straight down [rad]; pi allows any angle."""
    rewards: dict[str, Reward] = field(
        default_factory=lambda: {
            "upright": reward(upright, 1.0),
            # Makes hanging earn 0 instead of -1: ending an episode early must never pay.
            "alive": reward(terms.alive, 1.0),
            "centred": reward(centred, -0.1),
            "cart_speed": reward(cart_speed, -0.005),
            "pole_speed": reward(pole_speed, -0.002),
            "effort": reward(terms.effort, -0.02),
        }
    )
    """Function, weight per second and parameters of each reward."""
    terminations: dict[str, Termination] = field(
        default_factory=lambda: {"off_the_rail": ends(off_the_rail, distance=2.3)}
    )
    """Function and parameters of each condition that ends an episode without bootstrap."""

    defaults: ClassVar[dict[str, Any]] = {
        "num_envs": 128,
        "max_iterations": 100,
        # Many gradient steps on small batches and lasting exploration: the policy has to discover the swing first.
        "learner.num_steps": 32,
        "learner.num_epochs": 5,
        "learner.minibatch_size": 512,
        "learner.max_learning_rate": 3e-3,
        "learner.desired_kl": 0.02,
        "learner.gamma": 0.97,
        "learner.entropy_coef": 0.01,
        "learner.init_std": 1.0,
        "learner.actor_hidden": (64, 64),
        "learner.critic_hidden": (64, 64),
        "learner.activation": "tanh",
    }
    learner_defaults: ClassVar[dict[str, dict[str, Any]]] = {
        "grpo": {
            "num_envs": 128,
            "max_iterations": 100,
            # Rollouts of 1.3 s, in which noise that lasts moves the pole further than noise that changes each step.
            "learner.rollout_steps": 32,
            "learner.gamma": 1.0,
            "learner.num_epochs": 4,
            "learner.noise_correlation": 0.7,
            "learner.normalize": "batch",
        },
        "shac": {
            "num_envs": 64,
            "max_iterations": 400,
            "learner.num_steps": 16,
            "learner.gamma": 0.97,
            "learner.learning_rate": 2e-2,
            "learner.decay_iterations": 400,
            "learner.critic_epochs": 6,
        },
    }
    observations: ClassVar[dict[str, tuple[str | Observation, ...]]] = {
        "policy": ("limited_joint_pos", "turning_joint_pos", "joint_vel_rel"),
        "critic": ("limited_joint_pos", "turning_joint_pos", "joint_vel_rel", "last_action"),
    }

    def joint_targets(self, action: Tensor, ctx: Context) -> Tensor:
        """Force on the cart (N, 1) [N]."""
        return self.force * action

    def initial_state(self, num_envs: int, ctx: Context, random: Random) -> InitialState:
        """Cart near the middle, pole near hanging, both moving slowly."""
        still = torch.zeros(num_envs, 3, device=random.device)
        upright_quat = torch.zeros(num_envs, 4, device=random.device)
        upright_quat[:, 0] = 1.0
        spread = self.start_spread
        return InitialState(
            base_pos=still,
            base_quat=upright_quat,
            base_lin_vel=still,
            base_ang_vel=still,
            joint_pos=random.uniform((-0.5, torch.pi - spread), (0.5, torch.pi + spread), num_envs),
            joint_vel=random.uniform(-0.3, 0.3, num_envs, 2),
        )

    def success(self, state: State, ctx: Context) -> Tensor:
        """1 where the pole is within 0.2 rad of upright, and else up to 0.3 by the height of its tip (N,), so that it
        grows along the way: a pole that hangs has 0, and one that spins about 0.2."""
        up = state.robot.joint_pos[:, HINGE].cos()
        return torch.where(up > COS_UPRIGHT, 1.0, 0.15 * (1 + up))

    def metrics(self, state: State, ctx: Context) -> dict[str, Tensor]:
        """1 where the pole is `upright`, else 0, and the cart's distance from the middle [m]."""
        return {
            "upright": (state.robot.joint_pos[:, HINGE].cos() > COS_UPRIGHT).float(),
            "cart_distance": state.robot.joint_pos[:, SLIDER].abs(),
        }
