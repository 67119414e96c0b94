"""State: the simulated world of N environments, in the same convention for every simulator.

SI units, float32 tensors on the backend's device, quaternions wxyz, joints in the robot's order, velocities of the link
frame.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch

from robolearn.envs.robot import Robot

Tensor = torch.Tensor


@dataclass
class Entity:
    """One robot in each of N environments; J joints, B selected bodies, F feet.

    Base and joint positions and velocities are at time t. `Capabilities.derived_lag` says whether torque,
    body, foot and contact fields are at t too or one physics substep behind.
    """

    base_pos: Tensor
    """(N, 3) base link origin in the world [m]."""
    base_quat: Tensor
    """(N, 4) base link orientation in the world, wxyz."""
    base_lin_vel: Tensor
    """(N, 3) velocity of the base link origin, in base link axes [m/s]."""
    base_ang_vel: Tensor
    """(N, 3) angular velocity of the base link, in base link axes [rad/s]."""
    joint_pos: Tensor
    """(N, J) [rad], or [m] for a slide."""
    joint_vel: Tensor
    """(N, J) [rad/s], or [m/s]."""
    joint_torque: Tensor
    """(N, J) torque the actuators apply [Nm], or [N]."""
    body_pos: Tensor
    """(N, B, 3) origins of the robot's selected bodies in the world [m]."""
    foot_pos: Tensor
    """(N, F, 3) centre of each sole in the world [m]."""
    foot_quat: Tensor
    """(N, F, 4) orientation of each sole in the world, wxyz."""
    foot_lin_vel: Tensor
    """(N, F, 3) velocity of each sole centre, world axes [m/s]."""
    foot_force: Tensor
    """(N, F, 3) net contact force on each foot, world axes [N]."""

    def tensors(self) -> dict[str, Tensor]:
        """Every field by name, in declaration order."""
        return dict(vars(self))


@dataclass
class State:
    """The simulated world of N environments, by entity.

    Valid until the next step, reset or restore; to keep it longer, clone it.
    """

    entities: dict[str, Entity]
    params: dict[str, Tensor] = field(default_factory=dict)
    """Physical parameters of each environment, (N,) each, for the central critic; see `PARAMETERS`."""
    diverged: Tensor = field(default_factory=lambda: torch.zeros(0, dtype=torch.bool))
    """(N,) bool: the simulation of this environment diverged during the last step."""

    @property
    def robot(self) -> Entity:
        """The entity named `robot`."""
        return self.entities["robot"]

    def clone(self) -> State:
        """A copy that survives the next step."""
        return self._each(Tensor.clone)

    def rows(self, index: Tensor) -> State:
        """A copy of the environments with these indices (K,)."""
        return self._each(lambda tensor: tensor[index])

    def _each(self, function: Callable[[Tensor], Tensor]) -> State:
        entities = {
            name: Entity(**{k: function(v) for k, v in e.tensors().items()})
            for name, e in self.entities.items()
        }
        return State(entities, {k: function(v) for k, v in self.params.items()}, function(self.diverged))


@dataclass
class InitialState:
    """The state that a reset sets: one row per environment, in State's convention; the mask selects the rows."""

    base_pos: Tensor
    base_quat: Tensor
    base_lin_vel: Tensor
    base_ang_vel: Tensor
    joint_pos: Tensor
    joint_vel: Tensor


def quat_rotate_inverse(quat: Tensor, vec: Tensor) -> Tensor:
    """Express world vectors (..., 3) in the frame of unit quaternions (..., 4), wxyz.

    v' = v - 2 w (q x v) + 2 (q x (q x v)): the rotation by the conjugate quaternion.
    """
    w, xyz = quat[..., :1], quat[..., 1:]
    cross = torch.linalg.cross(xyz, vec)
    return vec - 2.0 * w * cross + 2.0 * torch.linalg.cross(xyz, cross)


def quat_rotate(quat: Tensor, vec: Tensor) -> Tensor:
    """Express vectors (..., 3) of the frame of unit quaternions (..., 4), wxyz, in the world."""
    w, xyz = quat[..., :1], quat[..., 1:]
    cross = torch.linalg.cross(xyz, vec)
    return vec + 2.0 * w * cross + 2.0 * torch.linalg.cross(xyz, cross)


def robot_entity(robot: Robot, num_envs: int, device: torch.device) -> Entity:
    """An Entity of zeros (unit quaternions) with this robot's shapes, for a backend to write into."""
    sizes = {"joint": len(robot.joints), "body": len(robot.bodies), "foot": len(robot.feet)}

    def zeros(*shape: int) -> Tensor:
        return torch.zeros(num_envs, *shape, device=device)

    def unit_quat(*shape: int) -> Tensor:
        quat = zeros(*shape, 4)
        quat[..., 0] = 1.0
        return quat

    j, b, f = sizes["joint"], sizes["body"], sizes["foot"]
    return Entity(
        base_pos=zeros(3),
        base_quat=unit_quat(),
        base_lin_vel=zeros(3),
        base_ang_vel=zeros(3),
        joint_pos=zeros(j),
        joint_vel=zeros(j),
        joint_torque=zeros(j),
        body_pos=zeros(b, 3),
        foot_pos=zeros(f, 3),
        foot_quat=unit_quat(f),
        foot_lin_vel=zeros(f, 3),
        foot_force=zeros(f, 3),
    )
