"""Conversion between Isaac Lab's conventions and ours: pure functions on tensors, without Isaac Lab.

In Isaac Lab positions are in the world and include the environment's origin, quaternions are xyzw, and joints and
bodies are in its order. In RoboLearn positions are relative to the environment, quaternions are wxyz, and joints
are in the robot's order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from robolearn.envs.state import Tensor, quat_multiply, quat_rotate, quat_rotate_inverse


@dataclass
class Measured:
    """Measurements of one entity in N environments, in Isaac Lab's conventions: J joints, B bodies, S feet."""

    joint_pos: Tensor
    """(N, J) [rad or m]."""
    joint_vel: Tensor
    """(N, J) [rad/s or m/s]."""
    body_pose: Tensor
    """(N, B, 7) position of each link's origin in the world [m], then its orientation, xyzw."""
    body_vel: Tensor
    """(N, B, 6) velocity of that origin, then angular velocity, world axes [m/s, rad/s]."""
    contact_force: Tensor
    """(N, S, 3) net contact force on each foot, world axes [N]."""
    contacts: dict[str, Tensor] = field(default_factory=dict)
    """The contacts that the scene asks for, by name: (N, K, 3) forces on the sensor's bodies, world axes [N]."""


@dataclass
class Written:
    """The initial state of one entity in Isaac Lab's conventions and order."""

    pose: Tensor
    """(N, 7) position of the root link in the world and orientation, xyzw."""
    velocity: Tensor
    """(N, 6) linear and angular velocity of the root link, world axes."""
    joint_pos: Tensor
    """(N, J)."""
    joint_vel: Tensor
    """(N, J)."""


class Order:
    """Reorders columns between a list of names and Isaac Lab's order."""

    def __init__(self, names: Sequence[str], isaaclab_names: Sequence[str], device: torch.device) -> None:
        """`isaaclab_names` may have more names than `names`.

        Raises:
            ValueError: a name is not in `isaaclab_names`, or is there more than once.
        """
        for name in names:
            if list(isaaclab_names).count(name) != 1:
                raise ValueError(
                    f"Isaac Lab has {name!r} {list(isaaclab_names).count(name)} times among {', '.join(isaaclab_names)}"
                )
        self.width = len(isaaclab_names)
        self.index = torch.tensor(
            [list(isaaclab_names).index(name) for name in names], dtype=torch.long, device=device
        )

    def from_isaaclab(self, values: Tensor) -> Tensor:
        """Columns (N, len(isaaclab_names), ...) in the order of `names`."""
        return values[:, self.index]

    def to_isaaclab(self, values: Tensor) -> Tensor:
        """Columns (N, len(names), ...) in Isaac Lab's order; zero for its other names."""
        reordered = values.new_zeros(values.shape[0], self.width, *values.shape[2:])
        reordered[:, self.index] = values
        return reordered


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
    """World positions (N, ..., 3) of positions relative to the origins (N, 3) of their environments."""
    return position + origins.view(-1, *[1] * (position.dim() - 2), 3)


def link_velocity(pose: Tensor, velocity: Tensor) -> tuple[Tensor, Tensor]:
    """Linear and angular velocity (N, 3) in link axes, from a link's pose (N, 7), xyzw, and world velocity (N, 6)."""
    quat = to_wxyz(pose[:, 3:])
    return quat_rotate_inverse(quat, velocity[:, :3]), quat_rotate_inverse(quat, velocity[:, 3:])


def world_pose(position: Tensor, quat: Tensor, origins: Tensor) -> Tensor:
    """World position and quaternion xyzw (N, 7), from a relative position (N, 3) and a quaternion (N, 4), wxyz."""
    return torch.cat([with_origins(position, origins), to_xyzw(quat)], dim=1)


def world_velocity(quat: Tensor, linear: Tensor, angular: Tensor) -> Tensor:
    """Linear and angular velocity (N, 6) of a link's origin in world axes, from those in link axes (N, 3)."""
    return torch.cat([quat_rotate(quat, linear), quat_rotate(quat, angular)], dim=1)


@dataclass(frozen=True)
class Sites:
    """Sites fixed to bodies: the centres of the soles, or frames."""

    offset: Tensor
    """(F, 3) position relative to the body's origin, in the body's axes [m]."""
    quat: Tensor
    """(F, 4) orientation relative to the body, wxyz."""

    def in_world(self, position: Tensor, quat: Tensor, velocity: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Position, orientation (wxyz) and velocity of each site, world axes: (N, F, 3), (N, F, 4), (N, F, 3).

        Arguments, of the bodies: position (N, F, 3) of their origins, orientation (N, F, 4), wxyz, and velocity
        (N, F, 6). A point at r from the origin has the velocity v + omega x r.
        """
        arm = quat_rotate(quat, self.offset.expand_as(position))
        site_velocity = velocity[..., :3] + torch.linalg.cross(velocity[..., 3:], arm)
        return position + arm, quat_multiply(quat, self.quat.expand_as(quat)), site_velocity
