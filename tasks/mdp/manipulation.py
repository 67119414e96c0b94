"""Terms of arms: an end effector, an object, a goal. Pure functions of State and Context.

N environments. A goal is a pose command: columns x, y, z [m] and, with an orientation, a quaternion wxyz, in the axes
and from the origin of the robot's base.
"""

from __future__ import annotations

from typing import Annotated

import torch

from robolearn.envs.state import Frame, State, Tensor, quat_multiply, quat_rotate
from robolearn.errors import ConfigError, listing
from robolearn.tasks.mdp.context import Context, once

Width = Annotated[float, {"above": 0.0}]


def near(distance: Tensor, width: float) -> Tensor:
    """1 at a distance of 0, 0.24 at `width`, slowly less further out (N,): 1 - tanh(distance / width)."""
    return 1.0 - torch.tanh(distance / width)


def frame_of(state: State, name: str) -> Frame:
    """A frame of the robot.

    Raises:
        ConfigError: the scene does not ask for it.
    """
    frames = state.robot.frames
    if name not in frames:
        raise ConfigError(f"frame={name!r}: the task's scene has the frames {listing(frames) or 'none'}")
    return frames[name]


@once
def goal_position(state: State, ctx: Context) -> Tensor:
    """The commanded position (N, 3) in the world [m]."""
    return state.robot.base_pos + quat_rotate(state.robot.base_quat, ctx.command[:, :3])


@once
def frame_distance(state: State, ctx: Context, frame: str) -> Tensor:
    """Distance of a frame of the robot from the commanded position (N,) [m]."""
    return (frame_of(state, frame).pos - goal_position(state, ctx)).norm(dim=1)


@once
def frame_angle(state: State, ctx: Context, frame: str) -> Tensor:
    """Angle between a frame of the robot and the commanded orientation (N,) [rad], 0 to pi: 4 asin(|p - q| / 2) of the
    two unit quaternions, with the sign of q that is nearer. Unlike 2 acos(p q) it is exact where the angle is small."""
    if ctx.command.shape[1] < 7:
        raise ConfigError("this needs commands with an orientation: task.commands.orientation=true")
    wanted = quat_multiply(state.robot.base_quat, ctx.command[:, 3:7])
    found = frame_of(state, frame).quat
    same = (wanted * found).sum(dim=1, keepdim=True) >= 0
    apart = (wanted - torch.where(same, found, -found)).norm(dim=1)
    return 4.0 * (apart / 2).clamp(max=1.0).asin()


def reach(state: State, ctx: Context, frame: str, width: Width) -> Tensor:
    """Closeness of a frame of the robot to the commanded position (N,); see `near`, `width` in [m]."""
    return near(frame_distance(state, ctx, frame=frame), width)


def align(state: State, ctx: Context, frame: str, width: Width) -> Tensor:
    """Closeness of a frame of the robot to the commanded orientation (N,); see `near`, `width` in [rad]."""
    return near(frame_angle(state, ctx, frame=frame), width)


@once
def object_distance(state: State, ctx: Context, thing: str) -> Tensor:
    """Distance of an object from the commanded position (N,) [m]."""
    return (state.entities[thing].base_pos - goal_position(state, ctx)).norm(dim=1)


@once
def grasp_distance(state: State, ctx: Context, frame: str, thing: str) -> Tensor:
    """Distance of a frame of the robot from the centre of an object (N,) [m]."""
    return (frame_of(state, frame).pos - state.entities[thing].base_pos).norm(dim=1)


def joint_speed(state: State, ctx: Context) -> Tensor:
    """Squared joint velocities, summed (N,) [rad^2/s^2]."""
    return state.robot.joint_vel.square().sum(dim=1)
