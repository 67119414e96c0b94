"""Any robot holds its home pose: on its feet while it is pushed, or an arm against its own weight."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch

from robolearn.envs.state import InitialState, State, Tensor
from robolearn.tasks.mdp import terms
from robolearn.tasks.mdp.commands import Pushes
from robolearn.tasks.mdp.context import Context, Random
from robolearn.tasks.mdp.observations import MEASURABLE, Observation
from robolearn.tasks.mdp.task import Task, Term


def pose(state: State, ctx: Context) -> Tensor:
    """Closeness of the joints to the home pose (N,): 1 at home, exp(-1) half a radian off on average."""
    error = (state.robot.joint_pos - ctx.robot.home).square().mean(dim=1)
    return torch.exp(-4.0 * error)


def upright(state: State, ctx: Context) -> Tensor:
    """1 minus the squared sine of the base's lean (N,)."""
    return 1.0 - terms.tilt(state, ctx)


def height(state: State, ctx: Context) -> Tensor:
    """Closeness of the base to its height in the home pose (N,): exp(-1) when it is 10 % of that off."""
    home = ctx.robot.spec.home_height or 1.0
    return torch.exp(-((state.robot.base_pos[:, 2] / home - 1.0) * 10).square())


def drift(state: State, ctx: Context) -> Tensor:
    """Squared horizontal speed of the base (N,) [m^2/s^2]."""
    return state.robot.base_lin_vel[:, :2].square().sum(dim=1)


@dataclass
class Stand(Task):
    """Any robot holds its home pose; a robot on feet is pushed.

    The first task for a robot of your own: `robolearn train task=stand robot=PATH.xml`.
    """

    robot: str = "humanoid"
    """Name or path of the robot."""
    episode_length_s: float = field(default=10.0, metadata={"above": 0.0, "max": 3600.0})
    """Episode length [s]; running out of it is a time-out, not a failure."""
    action_scale: float = field(default=0.25, metadata={"above": 0.0, "max": 10.0})
    """Torque that a unit action asks for, as a share of the motor's largest."""
    start_noise: float = field(default=0.05, metadata={"min": 0.0, "max": 1.0})
    """Largest distance of a joint from home at the start [rad or m]."""
    min_height: float = field(default=0.6, metadata={"min": 0.0, "max": 1.0})
    """The episode ends when the base is lower than this share of its height in the home pose."""
    min_upright: float = field(default=0.7, metadata={"min": -1.0, "max": 1.0})
    """The episode ends when the cosine of the base's lean is below this."""
    pushes: Pushes | None = field(default_factory=lambda: Pushes(speed=(0.0, 0.5)))
    """Pushes of a free base."""
    noise: dict[str, float] = field(
        default_factory=lambda: {
            "base_ang_vel": 0.1,
            "projected_gravity": 0.02,
            "joint_pos_rel": 0.01,
            "joint_vel_rel": 0.5,
        },
        metadata={"keys": MEASURABLE},
    )
    """Half-width of the noise on each item of the `policy` observations."""
    rewards: dict[str, float] = field(
        default_factory=lambda: {
            "pose": 1.0,
            "upright": 1.0,
            "height": 1.0,
            "alive": 1.0,
            "drift": -1.0,
            "joint_limits": -1.0,
            "action_rate": -0.02,
        }
    )
    """Weight of each reward term, per second."""

    defaults: ClassVar[dict[str, Any]] = {"num_envs": 1024, "max_iterations": 200}
    observations: ClassVar[dict[str, tuple[str | Observation, ...]]] = {
        "policy": ("base_ang_vel", "projected_gravity", "joint_pos_rel", "joint_vel_rel", "last_action"),
        "critic": (
            "base_lin_vel",
            "base_ang_vel",
            "projected_gravity",
            "base_height",
            "joint_pos_rel",
            "joint_vel_rel",
            "joint_torque",
            "last_action",
        ),
    }

    def reward_terms(self) -> dict[str, Term]:
        """The functions behind `rewards`."""
        return {
            "pose": pose,
            "upright": upright,
            "height": height,
            "alive": terms.alive,
            "drift": drift,
            "joint_limits": terms.joint_limits,
            "action_rate": terms.action_rate,
        }

    def terminations(self) -> dict[str, Term]:
        """A fall of a robot with a free base."""
        return {"fallen": self.fallen}

    def fallen(self, state: State, ctx: Context) -> Tensor:
        """Base too low or too far from upright (N,) bool; never for a fixed base."""
        least = self.min_height * ctx.robot.spec.home_height
        down = terms.base_gravity(state, ctx)[:, 2]
        return (state.robot.base_pos[:, 2] < least) | (-down < self.min_upright)

    def joint_targets(self, action: Tensor, ctx: Context) -> Tensor:
        """Home plus the action times `action_scale`, as a share of each motor's largest torque (N, A): the offset that
        asks for it of a servo, the torque itself of a motor."""
        robot = ctx.robot
        servo = robot.kp > 0
        unit = robot.effort / torch.where(servo, robot.kp, 1.0)
        return torch.where(servo, robot.home[robot.actuated], 0.0) + self.action_scale * unit * action

    def initial_state(self, num_envs: int, ctx: Context, random: Random) -> InitialState:
        """Home pose with a little noise, facing anywhere."""
        robot = ctx.robot
        heading = random.uniform(-torch.pi, torch.pi, num_envs) / 2
        zeros = torch.zeros(num_envs, device=random.device)
        still = torch.zeros(num_envs, 3, device=random.device)
        joints = len(robot.spec.joints)
        noise = random.uniform(-self.start_noise, self.start_noise, num_envs, joints)
        inside = torch.minimum(torch.maximum(robot.home + noise, robot.lower), robot.upper)
        return InitialState(
            base_pos=torch.stack((zeros, zeros, zeros + robot.spec.home_height), dim=-1),
            base_quat=torch.stack((heading.cos(), zeros, zeros, heading.sin()), dim=-1),
            base_lin_vel=still,
            base_ang_vel=still,
            joint_pos=inside,
            joint_vel=torch.zeros(num_envs, joints, device=random.device),
        )
