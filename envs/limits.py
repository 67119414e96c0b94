"""Joint limits of a robot, read from its compiled MJCF."""

from __future__ import annotations

import numpy as np

from robolearn.envs.mjcf import build_model
from robolearn.envs.robot import Robot


def joint_limits(robot: Robot) -> tuple[list[float], list[float]]:
    """Lower and upper limit of each joint in the robot's order, (J,) each [rad or m]; infinite without one."""
    model = build_model(robot, next(iter(robot.solver)))
    joints = [model.joint(name).id for name in robot.joints]
    ranges = [model.jnt_range[j] if model.jnt_limited[j] else (-np.inf, np.inf) for j in joints]
    return [float(low) for low, _ in ranges], [float(high) for _, high in ranges]
