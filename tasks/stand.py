"""Any robot holds its home pose: on its feet while it is pushed, or an arm against its own weight."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar

import torch

from robolearn.envs.state import InitialState, State, Tensor
from robolearn.tasks.mdp import terms
from robolearn.tasks.mdp.commands import Pushes
from robolearn.tasks.mdp.context import Context, Random
from robolearn.tasks.mdp.observations import Observation
from robolearn.tasks.mdp.stated import Reward, Termination, ends, reward
from robolearn.tasks.mdp.task import Task


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
    return torch.exp(-((ctx.above_ground(state.robot.base_pos) / home - 1.0) * 10).square())


def drift(state: State, ctx: Context) -> Tensor:
    """Squared horizontal speed of the base (N,) [m^2/s^2]."""
    return state.robot.base_lin_vel[:, :2].square().sum(dim=1)


def fallen(
    state: State,
    ctx: Context,
    height: Annotated[float, {"min": 0.0, "max": 1.0}],
    upright: Annotated[float, {"min": -1.0, "max": 1.0}],
) -> Tensor:
    """Base lower than the share `height` of its height in the home pose, or the cosine of its lean below `upright`
    (N,) bool; never for a fixed base."""
    least = height * ctx.robot.spec.home_height
    down = terms.base_gravity(state, ctx)[:, 2]
    return (ctx.above_ground(state.robot.base_pos) < least) | (-down < upright)


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
    pushes: Pushes | None = field(default_factory=lambda: Pushes(speed=(0.0, 0.5)))
    """Pushes of a free base."""
    noise: dict[str, float] = field(
        default_factory=lambda: {
            "base_ang_vel": 0.1,
            "projected_gravity": 0.02,
            "joint_pos_rel": 0.01,
            "joint_vel_rel": 0.5,
        },
    )
    """Half-width of the noise on each item of the `policy` observations."""
    rewards: dict[str, Reward] = field(
        default_factory=lambda: {
            "pose": reward(pose, 1.0),
            "upright": reward(upright, 1.0),
            "height": reward(height, 1.0),
            "alive": reward(terms.alive, 1.0),
            "drift": reward(drift, -1.0),
            "joint_limits": reward(terms.joint_limits, -1.0, margin=0.05),
            "action_rate": reward(terms.action_rate, -0.02),
        }
    )
    """Function, weight per second and parameters of each reward."""
    terminations: dict[str, Termination] = field(
        default_factory=lambda: {"fallen": ends(fallen, height=0.6, upright=0.7)}
    )
    """Function and parameters of each condition that ends an episode without bootstrap."""

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

    aliases: ClassVar[dict[str, str]] = {
        "min_height": "terminations.fallen.height",
        "min_upright": "terminations.fallen.upright",
    }

    def joint_targets(self, action: Tensor, ctx: Context) -> Tensor:
        """Home plus the action times `action_scale`, as a share of each motor's largest torque (N, A): the offset that
        asks for it of a servo, the torque itself of a motor."""
        robot = ctx.robot
        servo = robot.kp > 0
        unit = robot.effort / torch.where(servo, robot.kp, 1.0)
        return torch.where(servo, robot.home[robot.actuated], 0.0) + self.action_scale * unit * action

    def success(self, state: State, ctx: Context) -> Tensor:
        """How close the joints of a robot that stands are to home (N,): 1 there, 0 from half a radian on average, and
        where it does not stand."""
        lies = fallen(state, ctx, height=0.8, upright=0.9)
        off = (state.robot.joint_pos - ctx.robot.home).abs().mean(dim=1)
        return (1 - 2 * off).clamp(min=0.0) * ~lies

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
