"""Observation items by name: how each is computed, how it is mirrored, and whether a robot can measure it.

An item with a `deployed` twin can be computed on the robot from raw sensors, with numpy. The `policy` group takes only
those; the `critic` group and any other may take all.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch

from robolearn.envs.scene import ROBOT
from robolearn.envs.state import State, Tensor, quat_rotate_inverse
from robolearn.runtime.observe import OBSERVATIONS, Sensors
from robolearn.tasks.mdp.context import Context

Mirror = Literal[
    "same",
    "negate",
    "vector",
    "pseudovector",
    "command",
    "pose",
    "joints",
    "limited_joints",
    "turning_joints",
    "actuators",
    "feet",
    "foot_vectors",
    "vectors",
]
"""How an item changes under reflection across the robot's sagittal (x-z) plane.

`same`: not at all; `negate`: all signs flip; `vector`: y flips; `pseudovector` (rotations): x and z flip; `command`
(vx, vy, yaw rate): the last two flip; `pose` (a position, perhaps followed by a quaternion wxyz): y of the position, x
and z of the quaternion flip; `joints`, `actuators`, `feet`: left and right swap, with the joints' signs;
`foot_vectors`: feet swap and each foot's y flips; `vectors`: y of each of several vectors flips.
`limited_joints` and `turning_joints` hold some of the joints; their mirror image is known only where they hold all
joints or none.
"""


@dataclass(frozen=True)
class Observation:
    """One named item of an observation group."""

    name: str
    compute: Callable[[State, Context], Tensor]
    """(state, ctx) -> (N, k)."""
    mirror: Mirror
    deployed: Callable[[Sensors], np.ndarray] | None = None
    """The same item with numpy: sensors -> (k,). None: no robot measures it."""


def projected_gravity(quat: Tensor) -> Tensor:
    """The world's down direction (N, 3) in the base frame, from the base orientation (N, 4) wxyz: the third row of
    its rotation matrix, negated.
    """
    w, x, y, z = quat.unbind(-1)
    return torch.stack((2 * (w * y - x * z), -2 * (y * z + w * x), 2 * (x * x + y * y) - 1), dim=-1)


def _foot_velocity(state: State) -> Tensor:
    """Velocity of each sole (N, F, 3) in base axes [m/s]; world axes would need the heading as well."""
    velocity = state.robot.foot_lin_vel
    return quat_rotate_inverse(state.robot.base_quat[:, None].expand(-1, velocity.shape[1], -1), velocity)


def limited_joint_pos(state: State, ctx: Context) -> Tensor:
    """Positions (N, K) of the joints that have limits, relative to home [rad or m]."""
    return (state.robot.joint_pos - ctx.robot.home)[:, ctx.robot.limited]


def turning_joint_pos(state: State, ctx: Context) -> Tensor:
    """Sines, then cosines (N, 2 U) of the joints without limits, whose angles grow with every turn."""
    angle = state.robot.joint_pos[:, ctx.robot.turning]
    return torch.cat((angle.sin(), angle.cos()), dim=1)


def object_pos(state: State) -> Tensor:
    """Positions (N, 3 K) of the K entities besides the robot, in its base axes and from its origin [m]."""
    robot = state.robot
    places = [entity.base_pos for name, entity in state.entities.items() if name != ROBOT]
    found = [quat_rotate_inverse(robot.base_quat, place - robot.base_pos) for place in places]
    return torch.cat(found, dim=1) if found else robot.base_pos[:, :0]


def _params(state: State) -> Tensor:
    return torch.stack([state.params[name] for name in sorted(state.params)], dim=-1)


def measured(name: str, compute: Callable[[State, Context], Tensor], mirror: Mirror) -> Observation:
    """An item that the robot can compute too, with the numpy function of the same name."""
    return Observation(name, compute, mirror, OBSERVATIONS[name])


VOCABULARY: dict[str, Observation] = {
    item.name: item
    for item in (
        # Measurable on a robot. Names as in Isaac Lab and the deployment stacks that use them.
        measured("base_ang_vel", lambda s, c: s.robot.base_ang_vel, "pseudovector"),
        measured("projected_gravity", lambda s, c: projected_gravity(s.robot.base_quat), "vector"),
        measured("joint_pos_rel", lambda s, c: s.robot.joint_pos - c.robot.home, "joints"),
        measured("limited_joint_pos", limited_joint_pos, "limited_joints"),
        measured("turning_joint_pos", turning_joint_pos, "turning_joints"),
        measured("joint_vel_rel", lambda s, c: s.robot.joint_vel, "joints"),
        measured("last_action", lambda s, c: c.action, "actuators"),
        measured("velocity_commands", lambda s, c: c.command, "command"),
        measured("pose_commands", lambda s, c: c.command, "pose"),
        measured("object_pos", lambda s, c: object_pos(s), "vectors"),
        # Privileged: known to the simulator only.
        Observation("base_lin_vel", lambda s, c: s.robot.base_lin_vel, "vector"),
        Observation("base_height", lambda s, c: s.robot.base_pos[:, 2:], "same"),
        Observation("joint_torque", lambda s, c: s.robot.joint_torque / 50.0, "joints"),
        Observation("foot_height", lambda s, c: s.robot.foot_pos[:, :, 2], "feet"),
        Observation("foot_lin_vel", lambda s, c: _foot_velocity(s).flatten(1), "foot_vectors"),
        Observation("foot_force", lambda s, c: s.robot.foot_force[:, :, 2] / 100.0, "feet"),
        Observation("physics", lambda s, c: _params(s), "same"),
    )
}

MEASURABLE = tuple(name for name, item in VOCABULARY.items() if item.deployed is not None)
"""Names a policy may observe."""
