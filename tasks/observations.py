"""The vocabulary of observations: what a policy may read, and how each item is mirrored.

An item with a `deployed` twin can be computed on the robot from raw sensors alone, with numpy; only
those may enter the `policy` group. The others are for the central critic.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch

from robolearn.envs.backend import State, Tensor, quat_rotate_inverse
from robolearn.tasks.context import Context

Mirror = Literal[
    "same", "negate", "vector", "pseudovector", "command", "joints", "actuators", "feet", "foot_vectors"
]
"""How an item changes under reflection across the robot's sagittal (x-z) plane.

`vector`: y flips; `pseudovector` (rotations): x and z flip; `command` (vx, vy, yaw rate): the last
two flip; `joints`, `actuators`, `feet`: left and right swap, with the joints' signs;
`foot_vectors`: feet swap and each foot's y flips.
"""

Sensors = Mapping[str, Any]
"""Raw sensor readings on the robot: `quat` (4,) wxyz, `gyro` (3,), `joint_pos` (J,), `joint_vel` (J,),
and what the runtime itself knows: `last_action` (A,), `command` (3,), `phase` (scalar, cycles), `home` (J,).
"""


@dataclass(frozen=True)
class Observation:
    """One named item of an observation group."""

    name: str
    compute: Callable[[State, Context], Tensor]
    """(state, ctx) -> (N, k)."""
    mirror: Mirror
    deployed: Callable[[Sensors], np.ndarray] | None = None
    """The numpy twin: sensors -> (k,). None: not measurable on a robot."""


def projected_gravity(quat: Tensor) -> Tensor:
    """The world's down direction (N, 3) in the base frame, from base orientation (N, 4) wxyz.

    The third row of the rotation matrix, negated.
    """
    w, x, y, z = quat.unbind(-1)
    return torch.stack((2 * (w * y - x * z), -2 * (y * z + w * x), 2 * (x * x + y * y) - 1), dim=-1)


def _projected_gravity_numpy(sensors: Sensors) -> np.ndarray:
    w, x, y, z = np.asarray(sensors["quat"], np.float32)
    return np.array([2 * (w * y - x * z), -2 * (y * z + w * x), 2 * (x * x + y * y) - 1], np.float32)


def phase_clock(phase: Tensor) -> Tensor:
    """(N,) phase in cycles -> (N, 2) sine and cosine."""
    angle = 2 * torch.pi * phase
    return torch.stack((angle.sin(), angle.cos()), dim=-1)


def _phase_clock_numpy(sensors: Sensors) -> np.ndarray:
    angle = np.float32(2 * np.pi) * np.float32(sensors["phase"])
    return np.array([np.sin(angle), np.cos(angle)], np.float32)


def _numpy(key: str) -> Callable[[Sensors], np.ndarray]:
    return lambda sensors: np.asarray(sensors[key], np.float32)


def _foot_velocity(state: State) -> Tensor:
    """Velocity of each sole (N, F, 3) in base axes: the critic does not see where the world's x is."""
    velocity = state.robot.foot_lin_vel
    return quat_rotate_inverse(state.robot.base_quat[:, None].expand(-1, velocity.shape[1], -1), velocity)


def _params(state: State) -> Tensor:
    return torch.stack([state.params[name] for name in sorted(state.params)], dim=-1)


VOCABULARY: dict[str, Observation] = {
    item.name: item
    for item in (
        # What a robot can measure. Names as in Isaac Lab and the deployment stacks that read them.
        Observation("base_ang_vel", lambda s, c: s.robot.base_ang_vel, "pseudovector", _numpy("gyro")),
        Observation(
            "projected_gravity",
            lambda s, c: projected_gravity(s.robot.base_quat),
            "vector",
            _projected_gravity_numpy,
        ),
        Observation(
            "joint_pos_rel",
            lambda s, c: s.robot.joint_pos - c.robot.home,
            "joints",
            lambda m: np.asarray(m["joint_pos"], np.float32) - np.asarray(m["home"], np.float32),
        ),
        Observation("joint_vel_rel", lambda s, c: s.robot.joint_vel, "joints", _numpy("joint_vel")),
        Observation("last_action", lambda s, c: c.action, "actuators", _numpy("last_action")),
        Observation("velocity_commands", lambda s, c: c.command, "command", _numpy("command")),
        Observation("gait_phase", lambda s, c: phase_clock(c.memory["phase"]), "negate", _phase_clock_numpy),
        # What only a simulator knows: for the central critic.
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
