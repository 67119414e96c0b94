"""A velocity task as close to mjlab's as robolearn's State allows, to compare speed. It is not tuned.

It reads robot-specific numbers (action scales, widths of the pose reward) from the export in the robot's folder, so
it can be trained alone once scripts/compare_mjlab.py has written that folder:

    robolearn train task=scripts/compare_mjlab/task.py:MjlabVelocity task.robot=FOLDER
"""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import torch

from robolearn.envs.parameters import PARAMETERS
from robolearn.envs.state import InitialState, State, Tensor
from robolearn.tasks.mdp import terms
from robolearn.tasks.mdp.commands import Pushes, VelocityCommands
from robolearn.tasks.mdp.context import Context, Random, RobotConstants
from robolearn.tasks.mdp.observations import Observation
from robolearn.tasks.mdp.sensors import Sensor
from robolearn.tasks.mdp.stated import Reward, Termination, ends, reward
from robolearn.tasks.mdp.task import Task

TARGET_HEIGHT = 0.1
"""Desired height of a sole in its swing [m]."""
MOVING = 0.05
"""A command below this [m/s + rad/s] means standing."""
RUNNING = 1.5
"""A command above this [m/s + rad/s] means running."""


@functools.cache
def exported(folder: Path) -> dict[str, Any]:
    """The export of mjlab's side in the robot's folder."""
    return json.loads((folder / "mjlab.json").read_text(encoding="utf-8"))


def command_speed(ctx: Context) -> Tensor:
    """Size of the command (N,): linear [m/s] plus angular [rad/s]."""
    return ctx.command[:, :2].norm(dim=1) + ctx.command[:, 2].abs()


def moving(ctx: Context) -> Tensor:
    """1 where the command means moving (N,), 0 where standing."""
    return (command_speed(ctx) > MOVING).float()


def track_linear_velocity(state: State, ctx: Context) -> Tensor:
    """Tracking of the commanded horizontal velocity, with vertical velocity 0 (N,)."""
    velocity = state.robot.base_lin_vel
    error = (velocity[:, :2] - ctx.command[:, :2]).square().sum(dim=1) + velocity[:, 2].square()
    return torch.exp(-error / 0.25)


def track_angular_velocity(state: State, ctx: Context) -> Tensor:
    """Tracking of the commanded yaw rate, with roll and pitch rates 0 (N,)."""
    error = (state.robot.base_ang_vel[:, 2] - ctx.command[:, 2]).square() + terms.roll_pitch_rate(state, ctx)
    return torch.exp(-error / 0.5)


def upright(state: State, ctx: Context) -> Tensor:
    """1 where the base stands upright (N,)."""
    return torch.exp(-terms.tilt(state, ctx) / 0.2)


def pose(state: State, ctx: Context) -> Tensor:
    """Closeness to the home pose (N,), by widths that depend on the command's speed."""
    widths = exported(ctx.robot.spec.path)["pose_std"]
    standing, walking, running = (ctx.robot.per_joint(widths[k]) for k in ("standing", "walking", "running"))
    speed = command_speed(ctx)[:, None]
    width = torch.where(speed < MOVING, standing, torch.where(speed < RUNNING, walking, running))
    return torch.exp(-((state.robot.joint_pos - ctx.robot.home) / width).square().mean(dim=1))


def foot_clearance(state: State, ctx: Context) -> Tensor:
    """Distance of the soles from the desired swing height times their speed (N,) [m^2/s]."""
    away = (state.robot.foot_pos[:, :, 2] - TARGET_HEIGHT).abs()
    return (away * state.robot.foot_lin_vel[:, :, :2].norm(dim=-1)).sum(dim=1) * moving(ctx)


def swing_height(state: State, ctx: Context) -> Tensor:
    """Squared relative error of the peak height of swings that end in this step (N,)."""
    error = ctx.task_state["peak"] / TARGET_HEIGHT - 1
    return (error.square() * ctx.task_state["landed"]).sum(dim=1) * moving(ctx)


def foot_slip(state: State, ctx: Context) -> Tensor:
    """Squared horizontal speed of the feet on the ground (N,) [m^2/s^2]."""
    speed = state.robot.foot_lin_vel[:, :, :2].square().sum(dim=-1)
    return (speed * ctx.task_state["contact"]).sum(dim=1) * moving(ctx)


def soft_landing(state: State, ctx: Context) -> Tensor:
    """Force on the feet that touch down in this step (N,) [N]."""
    return (state.robot.foot_force.norm(dim=-1) * ctx.task_state["landed"]).sum(dim=1) * moving(ctx)


def forces(state: State) -> Tensor:
    """Contact forces of the feet (N, 3 F), logarithmic."""
    flat = state.robot.foot_force.flatten(1)
    return flat.sign() * flat.abs().log1p()


def tipped(state: State, ctx: Context, upright: float) -> Tensor:
    """The cosine of the base's lean is below `upright` (N,) bool."""
    return -terms.base_gravity(state, ctx)[:, 2] < upright


LINEAR_VELOCITY = Observation("linear_velocity", lambda s, c: s.robot.base_lin_vel, "vector", "m/s")
ESTIMATE = Sensor("base_lin_vel", "m/s", "axes of the base link", "base_lin_vel")
"""mjlab's policy observes the velocity of the base, which no robot measures: its software would estimate it."""
POLICY = (
    LINEAR_VELOCITY,
    "base_ang_vel",
    "projected_gravity",
    "joint_pos_rel",
    "joint_vel_rel",
    "last_action",
    "velocity_commands",
)
CRITIC = (
    *POLICY,
    "foot_height",
    Observation("foot_air_time", lambda s, c: c.task_state["air_time"], "feet"),
    Observation("foot_contact", lambda s, c: c.task_state["contact"].float(), "feet"),
    Observation("foot_contact_force", lambda s, c: forces(s), "foot_vectors"),
)


@dataclass
class MjlabVelocity(Task):
    """A robot of mjlab follows velocity commands on flat ground."""

    commands: VelocityCommands | None = field(
        default_factory=lambda: VelocityCommands((-1.0, 1.0), (-1.0, 1.0), (-0.5, 0.5), 0.1, (3.0, 8.0))
    )
    """Velocity commands, redrawn during an episode."""
    pushes: Pushes | None = field(default_factory=lambda: Pushes((0.0, 0.5), (1.0, 3.0)))
    """Random pushes of the base."""
    randomize: dict[str, tuple[float, float]] = field(
        default_factory=lambda: {"friction": (0.3, 1.2)},
        metadata={"keys": tuple(PARAMETERS), "open": ".+/.+"},
    )
    """Range of each physical parameter, drawn at a reset."""
    noise: dict[str, float] = field(
        default_factory=lambda: {
            "linear_velocity": 0.5,
            "base_ang_vel": 0.2,
            "projected_gravity": 0.05,
            "joint_pos_rel": 0.01,
            "joint_vel_rel": 1.5,
        }
    )
    """Half-width of the uniform noise on each item of the policy's observation."""
    rewards: dict[str, Reward] = field(
        default_factory=lambda: {
            "track_linear_velocity": reward(track_linear_velocity, 2.0),
            "track_angular_velocity": reward(track_angular_velocity, 2.0),
            "upright": reward(upright, 1.0),
            "pose": reward(pose, 1.0),
            "body_ang_vel": reward(terms.roll_pitch_rate, -0.05),
            "dof_pos_limits": reward(terms.joint_limits, -1.0, margin=0.05),
            "action_rate_l2": reward(terms.action_rate, -0.1),
            "foot_clearance": reward(foot_clearance, -2.0),
            "foot_swing_height": reward(swing_height, -0.25),
            "foot_slip": reward(foot_slip, -0.1),
            "soft_landing": reward(soft_landing, -1e-5),
            # These replace the rewards for angular momentum and self-collisions, which State does not have.
            "torque": reward(terms.torque, -1e-5),
            "foot_spacing": reward(terms.foot_spacing, -1.0, distance=0.1),
        }
    )
    """Function, weight per second and parameters of each reward."""
    terminations: dict[str, Termination] = field(
        default_factory=lambda: {"fallen": ends(tipped, upright=math.cos(math.radians(70)))}
    )
    """Ends at a lean of more than 70 degrees, at any height."""

    observations: ClassVar[dict[str, tuple[str | Observation, ...]]] = {"policy": POLICY, "critic": CRITIC}
    sensors: ClassVar[tuple[Sensor, ...]] = (ESTIMATE,)

    def task_state(self, num_envs: int, robot: RobotConstants, random: Random) -> dict[str, Tensor]:
        """Of each foot: contact, touchdown in this step, time in the air [s], peak height of the swing [m]."""
        zeros = torch.zeros(num_envs, 2, device=random.device)
        off = torch.zeros(num_envs, 2, dtype=torch.bool, device=random.device)
        return {"contact": off, "landed": off, "air_time": zeros, "peak": zeros}

    def advance(self, state: State, ctx: Context) -> dict[str, Tensor]:
        """Update the task state of the feet."""
        previous = ctx.task_state
        contact = state.robot.foot_force.square().sum(dim=-1) > 0
        peak = torch.where(previous["landed"], 0.0, previous["peak"])
        return {
            "contact": contact,
            "landed": contact & ~previous["contact"],
            "air_time": torch.where(contact, 0.0, previous["air_time"] + ctx.dt),
            "peak": torch.where(contact, peak, torch.maximum(peak, state.robot.foot_pos[:, :, 2])),
        }

    def joint_targets(self, action: Tensor, ctx: Context) -> Tensor:
        """Joint targets (N, A) [rad]: home + scale x action."""
        robot = ctx.robot
        scale = robot.per_actuator(exported(robot.spec.path)["action_scale"])
        return robot.home[robot.actuated] + scale * action

    def initial_state(self, num_envs: int, ctx: Context, random: Random) -> InitialState:
        """Home pose at rest, slightly above the ground, at a random position on a square metre and random heading."""
        spec = ctx.robot.spec
        zeros = torch.zeros(num_envs, device=random.device)
        place = random.uniform((-0.5, -0.5), (0.5, 0.5), num_envs)
        height = spec.home_height + random.uniform(*exported(spec.path)["start_lift"], num_envs, 1)
        half = random.uniform(-math.pi, math.pi, num_envs) / 2
        still = torch.zeros(num_envs, 3, device=random.device)
        joints = ctx.robot.home.expand(num_envs, -1)
        return InitialState(
            base_pos=torch.cat((place, height), dim=1),
            base_quat=torch.stack((half.cos(), zeros, zeros, half.sin()), dim=1),
            base_lin_vel=still,
            base_ang_vel=still,
            joint_pos=joints,
            joint_vel=torch.zeros_like(joints),
        )

    def metrics(self, state: State, ctx: Context) -> Mapping[str, Tensor]:
        """Mean absolute change of the action."""
        return {"action_rate": (ctx.action - ctx.previous_action).abs().mean(dim=1)}
