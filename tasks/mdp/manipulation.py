"""Terms and observations of arms: an end effector, an object, a goal. Pure functions of State and Context.

N environments. A goal is a pose command: columns x, y, z [m] and, with an orientation, a quaternion wxyz, in the axes
and from the origin of the robot's base.
"""

from __future__ import annotations

import torch

from robolearn.envs.state import State, Tensor, quat_rotate, quat_rotate_inverse
from robolearn.tasks.mdp.context import Context


def in_base(state: State, position: Tensor) -> Tensor:
    """World positions (N, 3) in the axes and from the origin of the robot's base [m]."""
    return quat_rotate_inverse(state.robot.base_quat, position - state.robot.base_pos)


def goal_position(state: State, ctx: Context) -> Tensor:
    """The commanded position (N, 3) in the world [m]."""
    return state.robot.base_pos + quat_rotate(state.robot.base_quat, ctx.command[:, :3])


def frame_distance(state: State, ctx: Context, frame: str) -> Tensor:
    """Distance of a frame of the robot from the commanded position (N,) [m]."""
    return (state.robot.frames[frame].pos - goal_position(state, ctx)).norm(dim=1)


def frame_angle(state: State, ctx: Context, frame: str) -> Tensor:
    """Angle between a frame of the robot and the commanded orientation (N,) [rad], 0 to pi.

    2 acos |q . p| of the unit quaternions q and p, written with atan2, which is exact for small angles too: the sine of
    half the angle is |q -+ p| / 2 sqrt(1 - |q -+ p|^2 / 4)..., so half the angle is 2 asin(|q -+ p| / 2).
    """
    base, wanted = state.robot.base_quat, ctx.command[:, 3:7]
    # A frame in base axes: conjugate(base) * frame. The angle to `wanted` is that between base * wanted and the frame.
    world = product(base, wanted)
    found = state.robot.frames[frame].quat
    cosine = (world * found).sum(dim=1, keepdim=True)
    nearer = torch.where(cosine < 0, -found, found)
    return 4.0 * ((world - nearer).norm(dim=1) / 2).clamp(max=1.0).asin()


def product(a: Tensor, b: Tensor) -> Tensor:
    """Product of quaternions (..., 4) wxyz: the rotation by b, then by a."""
    aw, av, bw, bv = a[..., :1], a[..., 1:], b[..., :1], b[..., 1:]
    vector = aw * bv + bw * av + torch.linalg.cross(av, bv)
    return torch.cat((aw * bw - (av * bv).sum(-1, keepdim=True), vector), dim=-1)


def near(distance: Tensor, width: float) -> Tensor:
    """1 at a distance of 0, falling to 0.24 at `width` and slowly further out (N,): 1 - tanh(distance / width)."""
    return 1.0 - torch.tanh(distance / width)


def joint_speed(state: State, ctx: Context) -> Tensor:
    """Squared joint velocities, summed (N,) [rad^2/s^2]."""
    return state.robot.joint_vel.square().sum(dim=1)
