"""Isaac Lab's conventions and ours: pure functions on tensors, without Isaac Lab.

There positions are the world's, with the origin of each environment in them, quaternions are xyzw, and joints and
bodies stand in an order of its own. Here positions are relative to the environment, quaternions are wxyz, and joints
stand in the robot's order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from robolearn.envs.state import Tensor, quat_rotate, quat_rotate_inverse


@dataclass
class Measured:
    """N environments as Isaac Lab tells of them: its J joints, B bodies and S contact sensors, in its own orders."""

    joint_pos: Tensor
    """(N, J) [rad or m]."""
    joint_vel: Tensor
    """(N, J) [rad/s or m/s]."""
    body_pose: Tensor
    """(N, B, 7) position of each link's origin in the world [m], then its orientation, xyzw."""
    body_vel: Tensor
    """(N, B, 6) velocity of that origin, then angular velocity, world axes [m/s, rad/s]."""
    contact_force: Tensor
    """(N, S, 3) net contact force on each sensor's body, world axes [N]."""


class Order:
    """Where the things that we name stand among theirs."""

    def __init__(self, ours: Sequence[str], theirs: Sequence[str], device: torch.device) -> None:
        """Every name of ours must be among theirs; they may have more.

        Raises:
            ValueError: for one that is not, or is there twice.
        """
        for name in ours:
            if list(theirs).count(name) != 1:
                raise ValueError(
                    f"Isaac Lab has {name!r} {list(theirs).count(name)} times among {', '.join(theirs)}"
                )
        self.width = len(theirs)
        self.index = torch.tensor(
            [list(theirs).index(name) for name in ours], dtype=torch.long, device=device
        )

    def ours(self, values: Tensor) -> Tensor:
        """(N, theirs, ...) in our order."""
        return values[:, self.index]

    def theirs(self, values: Tensor) -> Tensor:
        """(N, ours, ...) in their order; zero for what we do not name."""
        spread = values.new_zeros(values.shape[0], self.width, *values.shape[2:])
        spread[:, self.index] = values
        return spread


def to_wxyz(quat: Tensor) -> Tensor:
    """Quaternions (..., 4), xyzw, as wxyz."""
    return quat.roll(1, dims=-1)


def to_xyzw(quat: Tensor) -> Tensor:
    """Quaternions (..., 4), wxyz, as xyzw."""
    return quat.roll(-1, dims=-1)


def without_origins(position: Tensor, origins: Tensor) -> Tensor:
    """World positions (N, ..., 3) relative to the origins (N, 3) of their environments."""
    return position - origins.view(-1, *[1] * (position.dim() - 2), 3)


def with_origins(position: Tensor, origins: Tensor) -> Tensor:
    """Positions (N, ..., 3) relative to their environments' origins (N, 3), in the world."""
    return position + origins.view(-1, *[1] * (position.dim() - 2), 3)


def link_velocity(pose: Tensor, velocity: Tensor) -> tuple[Tensor, Tensor]:
    """Linear and angular velocity (N, 3) in link axes, of a link's pose (N, 7), xyzw, and world velocity (N, 6)."""
    quat = to_wxyz(pose[:, 3:])
    return quat_rotate_inverse(quat, velocity[:, :3]), quat_rotate_inverse(quat, velocity[:, 3:])


def world_pose(position: Tensor, quat: Tensor, origins: Tensor) -> Tensor:
    """(N, 7) position in the world and quaternion xyzw, of a position (N, 3) and quaternion (N, 4) of ours."""
    return torch.cat([with_origins(position, origins), to_xyzw(quat)], dim=1)


def world_velocity(quat: Tensor, linear: Tensor, angular: Tensor) -> Tensor:
    """(N, 6) velocity of a link's origin and angular velocity in world axes, of those in link axes (N, 3)."""
    return torch.cat([quat_rotate(quat, linear), quat_rotate(quat, angular)], dim=1)


def multiply(a: Tensor, b: Tensor) -> Tensor:
    """Product of quaternions (..., 4), wxyz: first b's turn, then a's."""
    aw, av, bw, bv = a[..., :1], a[..., 1:], b[..., :1], b[..., 1:]
    vector = aw * bv + bw * av + torch.linalg.cross(av, bv)
    return torch.cat([aw * bw - (av * bv).sum(-1, keepdim=True), vector], dim=-1)


@dataclass(frozen=True)
class Soles:
    """The sites at the centres of the soles, fixed to the feet's bodies."""

    offset: Tensor
    """(F, 3) from the body's origin, in its axes [m]."""
    turn: Tensor
    """(F, 4) orientation relative to the body, wxyz."""

    def placed(self, position: Tensor, quat: Tensor, velocity: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Position, orientation (wxyz) and velocity of each sole, world axes: (N, F, 3), (N, F, 4), (N, F, 3).

        Of the feet's bodies: position (N, F, 3) of their origins, orientation (N, F, 4), wxyz, and velocity (N, F, 6).
        A point at r from the origin moves with v + omega x r.
        """
        away = quat_rotate(quat, self.offset.expand_as(position))
        moves = velocity[..., :3] + torch.linalg.cross(velocity[..., 3:], away)
        return position + away, multiply(quat, self.turn.expand_as(quat)), moves
