"""Kinematics of a robot at rest: joint positions that put a frame of it at a pose, the role of each joint in a walk,
and how far apart the feet stand."""

from __future__ import annotations

import dataclasses
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
"""Least y of the axis of a joint that turns about the lateral axis, and least x of one about the forward axis: 45
degrees."""
WIDEST = 0.5
"""Most by which a leg is spread in a home pose [rad]."""
SPARE = 0.25
"""Share of the way from zero to its limit that a joint keeps when a leg is spread: a foot has to roll either way."""


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


@functools.lru_cache(maxsize=8)
def widened(robot: Robot, distance: float) -> Robot:
    """A robot whose feet are at least `distance` [m] apart, sideways, in its home pose, see `feet_apart`: the first
    joint of each leg that turns about the forward axis spreads the leg, and the last one turns back by as much: the
    soles stay level. Legs of more than two feet need no such ankle.

    The legs are spread as far as these joints go where that is less, see `SPARE`. The same robot if its feet are as far
    apart already, if their number is odd, or if a leg lacks such joints.
    """
    if not robot.feet or len(robot.feet) % 2:
        return robot
    model = _model(robot)
    data = mujoco.MjData(model)
    qpos = mjcf.home_qpos(robot, model)
    soles = [model.site(foot).id for foot in robot.feet]
    turned: list[
        tuple[int, float]
    ] = []  # joints, and by how much they turn as the legs are spread by a radian

    def place(spread: float) -> np.ndarray:
        """Positions of the soles (2, 3) [m] with both legs spread by an angle [rad]."""
        data.qpos[:] = qpos
        for joint, share in turned:
            data.qpos[model.jnt_qposadr[joint]] += share * spread
        mujoco.mj_kinematics(model, data)
        return np.array(data.site_xpos[soles])

    def apart(spread: float) -> float:
        return _apart(place(spread)[:, 1])

    before = place(0.0)
    least = 2 if len(robot.feet) == 2 else 1
    for foot, outward in zip(robot.feet, np.sign(before[:, 1] - before[:, 1].mean()), strict=True):
        rolls = [j for j in leg_joints(model, model.body(foot).id) if abs(data.xaxis[j, 0]) > LATERAL]
        if len(rolls) < least:
            return robot
        # What hangs down moves to the left (+y) in a positive turn about the forward axis.
        hip, *_ = rolls
        turned.append((hip, outward * np.sign(data.xaxis[hip, 0])))
        if len(rolls) > 1:
            turned.append((rolls[-1], -outward * np.sign(data.xaxis[rolls[-1], 0])))
    rooms = [WIDEST]
    for joint, share in turned:
        if model.jnt_limited[joint]:
            limit = share * model.jnt_range[joint, 1 if share > 0 else 0]
            rooms.append(limit - SPARE * max(limit, 0.0) - share * qpos[model.jnt_qposadr[joint]])
    low, high = 0.0, max(0.0, min(rooms))
    if apart(low) >= distance or not high:
        return robot
    if apart(high) > distance:
        while high - low > 1e-5:
            middle = (low + high) / 2
            low, high = (middle, high) if apart(middle) < distance else (low, middle)
    after = place(high)
    joints = {model.joint(joint).name: float(data.qpos[model.jnt_qposadr[joint]]) for joint, _ in turned}
    home = tuple(
        round(joints.get(name, value), 6) for name, value in zip(robot.joints, robot.home, strict=True)
    )
    height = robot.home_height - float((after - before)[:, 2].mean())
    return dataclasses.replace(robot, home=home, home_height=round(height, 6))


@functools.lru_cache(maxsize=8)
def feet_apart(robot: Robot) -> float:
    """How far apart the left and the right feet of a robot are in its home pose, sideways [m]: the distance between
    the means of the two halves."""
    model = _model(robot)
    data = mujoco.MjData(model)
    data.qpos[:] = mjcf.home_qpos(robot, model)
    mujoco.mj_kinematics(model, data)
    return _apart(np.array([data.site_xpos[model.site(foot).id, 1] for foot in robot.feet]))


def _apart(across: np.ndarray) -> float:
    """Distance between the means of the two halves of the feet, by their positions along the lateral axis (F,) [m]."""
    right, left = np.split(np.sort(across), 2)
    return float(left.mean() - right.mean())
