"""Observation items by name: how each is computed and how it is mirrored.

The `policy` group takes items that are computed from what a robot measures (`robolearn.tasks.mdp.sensors`), is told or
remembers, see `robolearn.core.measurable`; the `critic` group and any other may take all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal

import torch

from robolearn.envs.state import State, Tensor, quat_rotate_inverse
from robolearn.tasks.mdp.context import Context
from robolearn.tasks.mdp.sensors import AGENT, OBJECT_POS

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
    "permuted",
    "physics",
]
"""How an item changes under reflection across the robot's sagittal (x-z) plane.

`same`: not at all; `negate`: all signs flip; `vector`: y flips; `pseudovector` (rotations): x and z flip; `command`
(vx, vy, yaw rate): the last two flip; `pose` (a position, perhaps followed by a quaternion wxyz): y of the position, x
and z of the quaternion flip; `joints`, `actuators`, `feet`: left and right swap, with the joints' signs;
`foot_vectors`: feet swap and each foot's y flips; `vectors`: y of each of several vectors flips;
`permuted`: the columns of a sample change places as `Observation.order` says; `physics`: each parameter as its name
says.
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
    unit: str = ""
    """Unit and meaning of its columns."""
    history: int = 1
    """Number of samples in the observation, one a control step: this one and those before it, the oldest first."""
    order: tuple[int, ...] = ()
    """With the mirror `permuted`: for each column of a sample, which one its mirror image has there."""


def projected_gravity(quat: Tensor) -> Tensor:
    """The world's down direction (N, 3) in the base frame, from the base orientation (N, 4) wxyz: the third row of
    its rotation matrix, negated.
    """
    w, x, y, z = quat.split(
        1, dim=-1
    )  # not unbind: on a robot, each change of shape is a node of the controller
    return torch.cat((2 * (w * y - x * z), -2 * (y * z + w * x), 2 * (x * x + y * y) - 1), dim=-1)


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


def shown_params(names: Iterable[str], ctx: Context) -> list[str]:
    """Of these physical parameters and errors of sensors, those that the critic sees, in the order of their columns.
    The errors of a sensor have a column for each axis: `imu_bias/x`."""
    return [name for name in sorted(names) if ctx.hidden.isdisjoint((name, name.partition("/")[0]))]


def _params(state: State, ctx: Context) -> Tensor:
    seen = [state.params[name] for name in shown_params(state.params, ctx)]
    return torch.stack(seen, dim=-1) if seen else ctx.episode_time.new_zeros(len(ctx.episode_time), 0)


VOCABULARY: dict[str, Observation] = {
    item.name: item
    for item in (
        # From what a robot measures. Names as in Isaac Lab and the deployment stacks that use them.
        Observation("base_ang_vel", lambda s, c: s.robot.base_ang_vel, "pseudovector", "rad/s"),
        Observation(
            "projected_gravity",
            lambda s, c: projected_gravity(s.robot.base_quat),
            "vector",
            "1, the unit vector that points down, in the base frame",
        ),
        Observation(
            "joint_pos_rel",
            lambda s, c: s.robot.joint_pos - c.robot.home,
            "joints",
            "rad (m for a slide), less the home position",
        ),
        Observation(
            "limited_joint_pos",
            limited_joint_pos,
            "limited_joints",
            "rad (m for a slide), less the home position, of the joints that have limits",
        ),
        Observation(
            "turning_joint_pos",
            turning_joint_pos,
            "turning_joints",
            "1, sine and then cosine of the joints without limits",
        ),
        Observation("joint_vel_rel", lambda s, c: s.robot.joint_vel, "joints", "rad/s (m/s for a slide)"),
        Observation("last_action", lambda s, c: c.action, "actuators", "1, the network's previous output"),
        Observation(
            "velocity_commands",
            lambda s, c: c.command,
            "command",
            "m/s forward, m/s to the left, rad/s counterclockwise",
        ),
        Observation(
            "pose_commands",
            lambda s, c: c.command,
            "pose",
            "m, and 1 for the quaternion; x, y, z in the axes and from the origin of the base",
        ),
        Observation(
            "object_pos",
            lambda s, c: OBJECT_POS(s),
            "vectors",
            "m, positions of the objects in base axes, in the order of the scene",
        ),
        Observation(
            "agent_id",
            lambda s, c: AGENT(s),
            "same",
            "1, a column for each agent of the task, 1 in its own",
        ),
        # Privileged: known to the simulator only.
        Observation("base_lin_vel", lambda s, c: s.robot.base_lin_vel, "vector"),
        Observation("base_height", lambda s, c: c.above_ground(s.robot.base_pos)[:, None], "same"),
        Observation("joint_torque", lambda s, c: s.robot.joint_torque / 50.0, "joints"),
        Observation("foot_height", lambda s, c: c.above_ground(s.robot.foot_pos), "feet"),
        Observation("foot_lin_vel", lambda s, c: _foot_velocity(s).flatten(1), "foot_vectors"),
        Observation("foot_force", lambda s, c: s.robot.foot_force[:, :, 2] / 100.0, "feet"),
        Observation("physics", _params, "physics"),
    )
}
