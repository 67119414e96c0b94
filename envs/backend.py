"""What every simulator looks like to the rest of RoboLearn: `State` out, targets in.

A backend converts at its own border into one convention: SI units, float32 tensors on the
backend's device, quaternions wxyz, joints in the *robot's* order, velocities of the link frame.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

import torch

from robolearn.envs.robot import Robot

Tensor = torch.Tensor

PARAMETERS = {
    "friction": "sliding friction of the feet",
    "mass_scale": "mass and inertia of every body, as a factor",
    "gain_scale": "stiffness and damping of every position actuator, as a factor",
}
"""The per-environment physical parameters a backend may offer, (N,) each."""


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
        """Every field by name, in the order above."""
        return dict(vars(self))


@dataclass
class State:
    """The simulated world of N environments, by entity. Valid until the next step, reset or restore:
    whoever keeps it clones it.
    """

    entities: dict[str, Entity]
    params: dict[str, Tensor] = field(default_factory=dict)
    """Physical parameters of each environment, (N,) each, for the central critic; see `PARAMETERS`."""
    diverged: Tensor = field(default_factory=lambda: torch.zeros(0, dtype=torch.bool))
    """(N,) bool: the simulator gave up on this environment during the last step."""

    @property
    def robot(self) -> Entity:
        """The robot, where there is one."""
        return self.entities["robot"]

    def clone(self) -> State:
        """A copy that survives the next step."""
        entities = {
            name: Entity(**{k: v.clone() for k, v in e.tensors().items()})
            for name, e in self.entities.items()
        }
        return State(entities, {k: v.clone() for k, v in self.params.items()}, self.diverged.clone())


@dataclass
class Pose:
    """Where a reset puts the robot: full rows in State's convention, read where the mask is set."""

    base_pos: Tensor
    base_quat: Tensor
    base_lin_vel: Tensor
    base_ang_vel: Tensor
    joint_pos: Tensor
    joint_vel: Tensor


@dataclass(frozen=True)
class Capabilities:
    """What a backend can do; validation, tests and messages read it."""

    name: str
    timestep: float
    """Length of one physics substep [s]."""
    derived_lag: int
    """Substeps by which torque, body, foot and contact fields lag behind after a step: 0 or 1."""
    pd: Literal["implicit", "explicit"]
    """Whether position actuators are integrated inside the solver or evaluated once a substep."""
    exact_restore: bool
    """A restored environment repeats its trajectory bit for bit."""
    gradients: bool = False
    """`step` can be differentiated."""
    params: frozenset[str] = frozenset()
    """Names `set_params` takes; see `PARAMETERS`."""


Snapshot = dict[str, Any]
"""Opaque rows of a backend (tensors and plain values only, so that it can be stored safely)."""


class Backend(Protocol):
    """A simulator holding N copies of one robot. The constructor loads; nothing else is public."""

    num_envs: int
    device: torch.device
    capabilities: Capabilities

    @property
    def state(self) -> State:
        """The current State."""

    def reset(self, mask: Tensor, pose: Pose) -> None:
        """Put the environments in `mask` (N,) bool into their row of `pose`, at rest otherwise (no warm
        start, no warnings, position actuators holding the pose), and make every field of their State
        current. Others are untouched.
        """

    def step(self, targets: Tensor, substeps: int) -> None:
        """Hold `targets` (N, A) for `substeps` physics steps. Position actuators take joint positions
        [rad], force actuators forces [N] or torques [Nm], in the robot's actuator order.
        """

    def push(self, mask: Tensor, jump: Tensor) -> None:
        """Add `jump` (N, 3), world axes [m/s], to the velocity of the free bases in `mask` (N,) bool. The
        State shows it after the next step.
        """

    def snapshot(self) -> Snapshot:
        """Everything that `restore` needs, copied."""

    def restore(self, snapshot: Snapshot, source_rows: Tensor | None = None) -> None:
        """Environment i becomes row `source_rows[i]` of the snapshot (row i without it)."""

    def set_params(self, mask: Tensor, params: dict[str, Tensor]) -> None:
        """Set physical parameters, (N,) a name, in the environments in `mask`.

        Raises:
            ValueError: for a name that is not in `capabilities.params`.
        """

    def check(self) -> None:
        """Raise RunFailed, with the remedy, where the simulator has dropped part of the physics since the last call
        because it did not fit its arrays. It reads back from the device: called once an iteration.
        """

    def close(self) -> None:
        """Free the simulator."""


class GradientBackend(Backend, Protocol):
    """A simulator through which gradients flow; its `capabilities.gradients` says so.

    `step` and `reset` bind a State of new tensors, which are part of the graph of the targets (and of the State)
    they came from; nothing is written in place. Where `reset` leaves an environment alone, gradients flow on through
    it; where it does not, they end. With gradients off, or none asked for, it is a Backend like any other.
    """

    def detach(self) -> None:
        """Cut what the next step goes on from, State included, off the graph it came from."""


def quat_rotate_inverse(quat: Tensor, vec: Tensor) -> Tensor:
    """Express world vectors (..., 3) in the frame of unit quaternions (..., 4), wxyz.

    v' = v + 2 w (v x q) + 2 (q x (q x v)) with the conjugate's sign on w's term.
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
    """An Entity of zeros (unit quaternions) with this robot's shapes, for a backend to publish into."""
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
