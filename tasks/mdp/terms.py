"""Reward and termination terms that several tasks share: pure functions of State and Context.

N environments, J joints, F feet. A weight in the task turns a term into a reward or, below zero, a cost.
"""

from __future__ import annotations

from typing import Annotated

import torch

from robolearn.envs.state import State, Tensor
from robolearn.tasks.mdp.context import Context, once
from robolearn.tasks.mdp.observations import projected_gravity


def velocity_error(state: State, ctx: Context) -> Tensor:
    """Distance between commanded and actual horizontal base velocity (N,) [m/s]."""
    return (state.robot.base_lin_vel[:, :2] - ctx.command[:, :2]).norm(dim=1)


def yaw_rate_error(state: State, ctx: Context) -> Tensor:
    """Distance between commanded and actual turning rate (N,) [rad/s]."""
    return (state.robot.base_ang_vel[:, 2] - ctx.command[:, 2]).abs()


def alive(state: State, ctx: Context) -> Tensor:
    """One for every step that is lived (N,)."""
    return torch.ones_like(ctx.episode_time)


@once
def base_gravity(state: State, ctx: Context) -> Tensor:
    """The world's down direction (N, 3) in the base frame."""
    return projected_gravity(state.robot.base_quat)


@once
def tilt(state: State, ctx: Context) -> Tensor:
    """Squared horizontal part of gravity in the base frame (N,): sin^2 of the lean."""
    return base_gravity(state, ctx)[:, :2].square().sum(dim=1)


def height_error(state: State, ctx: Context) -> Tensor:
    """Squared distance of the base from its height in the home pose (N,) [m^2]."""
    return (ctx.above_ground(state.robot.base_pos) - ctx.robot.spec.home_height).square()


def vertical_speed(state: State, ctx: Context) -> Tensor:
    """Squared velocity of the base along its own z axis (N,) [m^2/s^2]."""
    return state.robot.base_lin_vel[:, 2].square()


def roll_pitch_rate(state: State, ctx: Context) -> Tensor:
    """Squared rolling and pitching rate of the base (N,) [rad^2/s^2]."""
    return state.robot.base_ang_vel[:, :2].square().sum(dim=1)


def effort(state: State, ctx: Context) -> Tensor:
    """Squared actions, summed (N,)."""
    return ctx.action.square().sum(dim=1)


def action_rate(state: State, ctx: Context) -> Tensor:
    """Squared change of the action since the last step (N,)."""
    return (ctx.action - ctx.previous_action).square().sum(dim=1)


def joint_limits(
    state: State, ctx: Context, margin: Annotated[float, {"min": 0.0, "max": 1.0}] = 0.05
) -> Tensor:
    """How far joints are inside the outer `margin` share of their range, summed (N,) [rad]; a joint
    without limits counts nothing."""
    centre = (ctx.robot.lower + ctx.robot.upper) / 2
    half = (ctx.robot.upper - ctx.robot.lower) / 2 * (1 - margin)
    # Without limits it is not a number, and the gradient would not be one either.
    centre = torch.where(torch.isfinite(half), centre, 0.0)
    beyond = ((state.robot.joint_pos - centre).abs() - half).clamp(min=0)
    return torch.where(torch.isfinite(half), beyond, 0.0).sum(dim=1)


def torque(state: State, ctx: Context) -> Tensor:
    """Squared joint torques, summed (N,) [N^2 m^2]."""
    return state.robot.joint_torque.square().sum(dim=1)


def foot_tilt(state: State, ctx: Context) -> Tensor:
    """Squared sine of each sole's lean against the ground, summed over the feet (N,)."""
    return projected_gravity(state.robot.foot_quat)[..., :2].square().sum(dim=(1, 2))


def forward_axis(quat: Tensor) -> Tensor:
    """Horizontal part (..., 2) of the x axis of frames with orientation `quat` (..., 4): the first column of the
    rotation matrix, without a constant that would have to be sent to the device."""
    w, x, y, z = quat.unbind(-1)
    return torch.stack((1 - 2 * (y * y + z * z), 2 * (x * y + w * z)), dim=-1)


def heading(quat: Tensor) -> Tensor:
    """Horizontal direction (N, 2) in which frames with orientation `quat` (N, 4) face, of length 1."""
    facing = forward_axis(quat)
    return facing / facing.norm(dim=1, keepdim=True).clamp(min=1e-9)


def foot_yaw(state: State, ctx: Context) -> Tensor:
    """Squared sine of each foot's heading against the base's, summed over the feet (N,)."""
    base = forward_axis(state.robot.base_quat)[:, None]
    feet = forward_axis(state.robot.foot_quat)
    cross = base[..., 0] * feet[..., 1] - base[..., 1] * feet[..., 0]
    return cross.square().sum(dim=1)


def foot_spacing(state: State, ctx: Context, distance: Annotated[float, {"min": 0.0}]) -> Tensor:
    """By how much two feet are closer than `distance` across the direction the base faces (N,) [m]."""
    between = state.robot.foot_pos[:, 0] - state.robot.foot_pos[:, 1]
    facing = forward_axis(state.robot.base_quat)
    across = (facing[:, 0] * between[:, 1] - facing[:, 1] * between[:, 0]).abs()
    return (distance - across).clamp(min=0)


@once
def fallen(
    state: State,
    ctx: Context,
    height: Annotated[float, {"min": 0.0}],
    upright: Annotated[float, {"min": -1.0, "max": 1.0}],
) -> Tensor:
    """Base lower than `height` above the ground [m], or its up axis' vertical part below `upright` (N,) bool."""
    down = base_gravity(state, ctx)[:, 2]
    return (ctx.above_ground(state.robot.base_pos) < height) | (-down < upright)


@once
def body_below_ground(state: State, ctx: Context) -> Tensor:
    """Any selected body's origin under the ground (N,) bool: where only feet collide, the rest must not."""
    return (ctx.above_ground(state.robot.body_pos) < 0.0).any(dim=1)
