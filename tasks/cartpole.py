"""Cartpole: the smallest control problem here; trains in seconds."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar

import torch

from robolearn.envs.state import InitialState, State, Tensor
from robolearn.tasks.mdp import terms
from robolearn.tasks.mdp.context import Context, Random
from robolearn.tasks.mdp.observations import Observation
from robolearn.tasks.mdp.stated import Reward, Termination, ends, reward
from robolearn.tasks.mdp.task import Task

SLIDER, HINGE = 0, 1


def upright(state: State, ctx: Context) -> Tensor:
    """Cosine of the pole's angle (N,): 1 upright, -1 hanging; differentiable everywhere, as it does not wrap."""
    return state.robot.joint_pos[:, HINGE].cos()


def centred(state: State, ctx: Context) -> Tensor:
    """Squared distance of the cart from the middle of the rail (N,) [m^2]."""
    return state.robot.joint_pos[:, SLIDER].square()


def pole_down(state: State, ctx: Context, angle: Annotated[float, {"above": 0.0}] = 0.8) -> Tensor:
    """The pole leans more than `angle` [rad] (N,) bool."""
    return state.robot.joint_pos[:, HINGE].abs() > angle


def off_the_rail(state: State, ctx: Context, distance: Annotated[float, {"above": 0.0}] = 2.3) -> Tensor:
    """The cart is more than `distance` [m] from the middle of the rail (N,) bool, which ends at 2.4 m."""
    return state.robot.joint_pos[:, SLIDER].abs() > distance


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
    rewards: dict[str, Reward] = field(
        default_factory=lambda: {
            "upright": reward(upright, 1.0),
            "centred": reward(centred, -0.5),
            "effort": reward(terms.effort, -0.01),
            "alive": reward(terms.alive, 1.0),
        }
    )
    """Function, weight per second and parameters of each reward."""
    terminations: dict[str, Termination] = field(
        default_factory=lambda: {
            "pole_down": ends(pole_down, angle=0.8),
            "off_the_rail": ends(off_the_rail, distance=2.3),
        }
    )
    """Function and parameters of each condition that ends an episode without bootstrap."""

    defaults: ClassVar[dict[str, Any]] = {"num_envs": 256, "max_iterations": 60}
    observations: ClassVar[dict[str, tuple[str | Observation, ...]]] = {
        "policy": ("joint_pos_rel", "joint_vel_rel"),
        "critic": ("joint_pos_rel", "joint_vel_rel", "last_action"),
    }

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

    def success(self, state: State, ctx: Context) -> Tensor:
        """1 where the pole is within 0.2 rad of upright and the cart within 0.5 m of the middle, else 0 (N,)."""
        robot = state.robot
        return ((robot.joint_pos[:, HINGE].abs() < 0.2) & (robot.joint_pos[:, SLIDER].abs() < 0.5)).float()

    def metrics(self, state: State, ctx: Context) -> dict[str, Tensor]:
        """Lean of the pole [rad] and distance from the middle [m]."""
        return {
            "pole_angle": state.robot.joint_pos[:, HINGE].abs(),
            "cart_distance": state.robot.joint_pos[:, SLIDER].abs(),
        }
