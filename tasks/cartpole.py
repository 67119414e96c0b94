"""Cartpole: the smallest control problem here; trains in seconds."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch

from robolearn.envs.state import InitialState, State, Tensor
from robolearn.tasks.mdp import terms
from robolearn.tasks.mdp.context import Context, Random
from robolearn.tasks.mdp.observations import Observation
from robolearn.tasks.mdp.task import Task, Term

SLIDER, HINGE = 0, 1


def upright(state: State, ctx: Context) -> Tensor:
    """Cosine of the pole's angle (N,): 1 upright, -1 hanging; differentiable everywhere, as it does not wrap."""
    return state.robot.joint_pos[:, HINGE].cos()


def centred(state: State, ctx: Context) -> Tensor:
    """Squared distance of the cart from the middle of the rail (N,) [m^2]."""
    return state.robot.joint_pos[:, SLIDER].square()


def pole_down(state: State, ctx: Context) -> Tensor:
    """The pole leans more than 0.8 rad (N,) bool."""
    return state.robot.joint_pos[:, HINGE].abs() > 0.8


def off_the_rail(state: State, ctx: Context) -> Tensor:
    """The cart is within 0.1 m of the rail's end or beyond (N,) bool."""
    return state.robot.joint_pos[:, SLIDER].abs() > 2.3


@dataclass
class CartpoleBalance(Task):
    """A cart keeps a pole upright while it returns to the middle of its rail."""

    robot: str = "cartpole"
    """Name of the robot."""
    episode_length_s: float = field(default=10.0, metadata={"above": 0.0, "max": 3600.0})
    """Episode length [s]; running out of it is a time-out, not a failure."""
    force: float = field(default=20.0, metadata={"above": 0.0, "max": 100.0})
    """Force on the cart for a unit action [N]."""
    start_angle: float = field(default=0.3, metadata={"min": 0.0, "max": 0.8})
    """Largest initial lean of the pole [rad]."""
    rewards: dict[str, float] = field(
        default_factory=lambda: {"upright": 1.0, "centred": -0.5, "effort": -0.01, "alive": 1.0}
    )
    """Weight of each reward term, per second."""

    defaults: ClassVar[dict[str, Any]] = {"num_envs": 256, "max_iterations": 60}
    observations: ClassVar[dict[str, tuple[str | Observation, ...]]] = {
        "policy": ("joint_pos_rel", "joint_vel_rel"),
        "critic": ("joint_pos_rel", "joint_vel_rel", "last_action"),
    }

    def reward_terms(self) -> dict[str, Term]:
        """The functions behind `rewards`."""
        return {"upright": upright, "centred": centred, "effort": terms.effort, "alive": terms.alive}

    def terminations(self) -> dict[str, Term]:
        """The pole leans too far, or the cart reaches the end of the rail."""
        return {"pole_down": pole_down, "off_the_rail": off_the_rail}

    def joint_targets(self, action: Tensor, ctx: Context) -> Tensor:
        """Force on the cart (N, 1) [N]."""
        return self.force * action

    def initial_state(self, num_envs: int, ctx: Context, random: Random) -> InitialState:
        """Cart near the middle, pole leaning either way, both moving slowly."""
        still = torch.zeros(num_envs, 3, device=random.device)
        upright_quat = torch.zeros(num_envs, 4, device=random.device)
        upright_quat[:, 0] = 1.0
        return InitialState(
            base_pos=still,
            base_quat=upright_quat,
            base_lin_vel=still,
            base_ang_vel=still,
            joint_pos=random.uniform((-0.5, -self.start_angle), (0.5, self.start_angle), num_envs),
            joint_vel=random.uniform(-0.3, 0.3, num_envs, 2),
        )

    def metrics(self, state: State, ctx: Context) -> dict[str, Tensor]:
        """Lean of the pole [rad] and distance from the middle [m]."""
        return {
            "pole_angle": state.robot.joint_pos[:, HINGE].abs(),
            "cart_distance": state.robot.joint_pos[:, SLIDER].abs(),
        }
