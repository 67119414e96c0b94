"""Kinematics of a robot at rest: joint positions that put a frame of it at a pose; the role of each joint in a walk."""

from __future__ import annotations

import functools

import mujoco
import numpy as np

from robolearn.envs import mjcf
from robolearn.envs.robot import Robot
from robolearn.envs.shapes import leg_joints
from robolearn.errors import ConfigError

STEPS = 100
"""Most steps of the inverse kinematics for each pose."""
LATERAL = 0.7
"""Least y of the axis of a joint that turns about the lateral axis: 45 degrees."""


def inverse(
    robot: Robot, frame: str, positions: np.ndarray, quats: np.ndarray, tolerance: float = 1e-3
) -> np.ndarray:
    """Joint positions (K, J) that put the site `frame` at poses: positions (K, 3) [m] and orientations (K, 4) wxyz.

    Damped least squares from the home pose within the joint limits (Wampler, IEEE Trans. SMC 16, 1986). Joints that
    do not move the frame stay at home.

    Raises:
        ConfigError: a pose is not reached within `tolerance` [m and rad]; it is named.
    """
    model = _model(robot)
    data = mujoco.MjData(model)
    names = [site.name for site in map(model.site, range(model.nsite))]
    if frame not in names:
        raise ConfigError(f"robot {robot.name!r} has no site {frame!r}; it has {', '.join(names)}")
    site = model.site(frame).id
    joints = [model.joint(name) for name in robot.joints]
    address = np.array([int(joint.qposadr[0]) for joint in joints])
    dofs = np.array([int(joint.dofadr[0]) for joint in joints])
    limited = np.array([bool(model.jnt_limited[joint.id]) for joint in joints])
    low = np.where(limited, [joint.range[0] for joint in joints], -np.inf)
    high = np.where(limited, [joint.range[1] for joint in joints], np.inf)
    found = np.zeros((len(positions), len(joints)))
    jacobian, error, turn = np.zeros((6, model.nv)), np.zeros(6), np.zeros(4)
    for k, (position, quat) in enumerate(zip(positions, quats, strict=True)):
        data.qpos[:] = mjcf.home_qpos(robot, model)
        for _ in range(STEPS):
            mujoco.mj_kinematics(model, data)
            mujoco.mj_comPos(model, data)
            error[:3] = position - data.site_xpos[site]
            mujoco.mju_mat2Quat(turn, data.site_xmat[site])
            turn[1:] *= -1.0
            away = np.zeros(4)
            mujoco.mju_mulQuat(away, quat, turn)
            mujoco.mju_quat2Vel(error[3:], away, 1.0)
            if np.abs(error).max() < tolerance / 10:
                break
            mujoco.mj_jacSite(model, data, jacobian[:3], jacobian[3:], site)
            j = jacobian[:, dofs]
            step = j.T @ np.linalg.solve(j @ j.T + 1e-4 * np.eye(6), error)
            data.qpos[address] = np.clip(data.qpos[address] + np.clip(step, -0.3, 0.3), low, high)
        if np.abs(error).max() > tolerance:
            where = ", ".join(f"{x:.2f}" for x in position)
            raise ConfigError(
                f"robot {robot.name!r} does not reach {where} m with {frame!r} in that orientation"
            )
        found[k] = data.qpos[address]
    return found


@functools.lru_cache(maxsize=4)
def _model(robot: Robot) -> mujoco.MjModel:
    return mjcf.build_model(robot)


@functools.lru_cache(maxsize=8)
def joint_roles(robot: Robot) -> tuple[str, ...]:
    """What each joint of a robot does in a walk, in the robot's order: `stride` a joint of a leg that turns about the
    lateral axis in the home pose, `leg` another joint of a leg, `body` any other."""
    model = _model(robot)
    data = mujoco.MjData(model)
    data.qpos[:] = mjcf.home_qpos(robot, model)
    mujoco.mj_kinematics(model, data)
    legs = {joint for foot in robot.feet for joint in leg_joints(model, model.body(foot).id)}
    joints = [int(model.joint(name).id) for name in robot.joints]
    return tuple(
        "body" if j not in legs else "stride" if abs(data.xaxis[j, 1]) > LATERAL else "leg" for j in joints
    )
