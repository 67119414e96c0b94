"""A robot's home pose: the keyframe of its file, or a stance with the feet under the hips."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import mujoco
import numpy as np

from robolearn.envs.model_file import ModelFile
from robolearn.envs.shapes import (
    FREE,
    ONE_AXIS,
    PATCH,
    bounding_points,
    leg_joints,
    sole_centre,
    standing_bodies,
    trunk,
    zero_pose,
)


def home(file: ModelFile, floating: bool, given: Mapping[str, float]) -> dict[str, float]:
    """Home position of each joint [rad or m]: the file's keyframe; without one, a stance with the feet under the hips.

    `given` positions hold as they are.
    """
    model = file.model
    names = [model.joint(j).name for j in range(model.njnt) if model.jnt_type[j] in ONE_AXIS]
    key = _keyframe(model)
    if key is not None and not (floating and _is_no_stance(file, key)):
        qpos = model.key_qpos[key].copy()
        found = {name: float(qpos[model.joint(name).qposadr[0]]) for name in names}
        for name, value in found.items():  # a keyframe is often rounded beyond a limit
            joint = model.joint(name)
            if model.jnt_limited[joint.id]:
                found[name] = float(np.clip(value, *joint.range))
        return {**found, **given}
    qpos = bent_pose(file)
    for name, value in given.items():
        qpos[model.joint(name).qposadr[0]] = value
    if floating:
        qpos = _stance(file, qpos, frozenset(given))
    return {name: float(round(qpos[model.joint(name).qposadr[0]], 6)) + 0.0 for name in names}


def _keyframe(model: mujoco.MjModel) -> int | None:
    """The keyframe of the home pose: one named home, else one to stand, else the first."""
    names = [model.key(k).name.lower() for k in range(model.nkey)]
    for wanted in ("home", "stand", "default", "init"):
        for k, name in enumerate(names):
            if wanted in name:
                return k
    return 0 if names else None


def _is_no_stance(file: ModelFile, key: int) -> bool:
    """Whether a keyframe's base leans, or fewer feet are down than in a stance: some files have the legs in another
    order there."""
    there, model = zero_pose(file), file.model
    _, x, y, _ = model.key_qpos[key, 3:7]
    if model.jnt_type[0] == FREE and 1 - 2 * (x * x + y * y) < 0.9:
        return True  # it lies, or hangs head down
    for name in [model.joint(j).name for j in range(model.njnt) if model.jnt_type[j] in ONE_AXIS]:
        adr = model.joint(name).qposadr[0]
        there[adr] = model.key_qpos[key, adr]
    return len(standing_bodies(file, there, True)) < len(
        standing_bodies(file, _stance(file, bent_pose(file), frozenset()), True)
    )


def bent_pose(file: ModelFile) -> np.ndarray:
    """The zero pose, with hinges near or beyond a limit bent: by 15 % of their range, by 40 % where 0 is beyond it."""
    model = file.model
    qpos = zero_pose(file)
    for j in range(model.njnt):
        if model.jnt_type[j] in ONE_AXIS and model.jnt_limited[j]:
            low, high = model.jnt_range[j]
            first = model.jnt_qposadr[j]
            # A joint that cannot be at 0, such as a quadruped's knee, is meant to be bent.
            margin = (0.15 if low <= qpos[first] <= high else 0.4) * (high - low)
            near = qpos[first] < low + 0.05 * (high - low) or qpos[first] > high - 0.05 * (high - low)
            if near and model.jnt_type[j] == int(mujoco.mjtJoint.mjJNT_HINGE):
                qpos[first] = np.clip(qpos[first], low + margin, high - margin)
            qpos[first] = np.clip(qpos[first], low, high)
    return qpos


def _stance(file: ModelFile, start: np.ndarray, fixed: frozenset[str], rounds: int = 40) -> np.ndarray:
    """A pose near `start` with level soles and every foot under the first joint of its leg, all shifted so that the
    centre of mass is above the middle of the feet: damped least squares with numerical derivatives, leg by leg."""
    model = file.model
    feet = standing_bodies(file, start, floating=True)
    data = mujoco.MjData(model)
    mujoco.mj_resetData(model, data)
    data.qpos[:] = zero_pose(file)
    mujoco.mj_kinematics(model, data)
    zero = {foot: (data.xmat[foot].reshape(3, 3)[2].copy(), _is_flat(model, data, foot)) for foot in feet}
    data.qpos[:] = start
    mujoco.mj_kinematics(model, data)
    aside = {}  # how far beside its hip a foot is with the legs straight down
    for foot in feet:
        leg = leg_joints(model, foot)
        if leg:
            aside[foot] = float(sole_centre(model, data, foot)[1] - data.xanchor[leg[0], 1])
    qpos = start.copy()
    for shift in (False, True):
        ahead = 0.0
        if shift:  # forward: sideways the legs are each other's mirror image
            data.qpos[:] = qpos
            mujoco.mj_kinematics(model, data)
            mujoco.mj_comPos(model, data)
            soles = [sole_centre(model, data, foot)[0] for foot in feet]
            ahead = float(data.subtree_com[trunk(model), 0] - np.mean(soles)) if soles else 0.0
        hips: dict[int, float] = {}
        for foot in feet:
            leg = leg_joints(model, foot)
            free = [j for j in leg if model.joint(j).name not in fixed]
            if len(leg) < 2 or not free:
                continue
            if shift:
                data.qpos[:] = qpos
                mujoco.mj_kinematics(model, data)
                hips[foot] = float(sole_centre(model, data, foot)[0] - data.xanchor[leg[0], 0]) + ahead
            qpos = _placed(
                model,
                data,
                qpos,
                foot,
                leg[0],
                free,
                *zero[foot],
                np.array([hips.get(foot, 0.0), aside[foot]]),
                rounds,
            )
    return qpos


def _placed(
    model: mujoco.MjModel,
    data: mujoco.MjData,
    start: np.ndarray,
    foot: int,
    hip: int,
    free: Sequence[int],
    up: np.ndarray,
    flat: bool,
    target: np.ndarray,
    rounds: int,
) -> np.ndarray:
    """`start` with the joints `free` of one leg moved so that the foot is `target` (2,) [m] before and beside the joint
    `hip`, its axis `up` vertical again if it is `flat`."""
    adr = [int(model.jnt_qposadr[j]) for j in free]
    lows = np.array([model.jnt_range[j, 0] if model.jnt_limited[j] else -np.pi for j in free])
    highs = np.array([model.jnt_range[j, 1] if model.jnt_limited[j] else np.pi for j in free])
    span = np.minimum(highs - lows, 2 * np.pi)
    ideal = start[adr].copy()
    data.qpos[:] = start

    def error(x: np.ndarray) -> np.ndarray:
        data.qpos[adr] = x
        mujoco.mj_kinematics(model, data)
        offset = sole_centre(model, data, foot) - data.xanchor[hip, :2] - target
        tilt = (data.xmat[foot].reshape(3, 3)[2] - up) * flat
        return np.concatenate([3 * offset, tilt, 0.05 * (x - ideal) / span])

    x = np.clip(ideal, lows, highs)
    for _ in range(rounds):
        now = error(x)
        slope = np.stack([(error(x + 1e-5 * row) - now) / 1e-5 for row in np.eye(len(x))], axis=1)
        step = np.linalg.solve(slope.T @ slope + 1e-6 * np.eye(len(x)), -slope.T @ now)
        step *= min(1.0, 0.2 / max(float(np.abs(step).max()), 1e-9))
        x = np.clip(x + step, lows + 0.02 * span, highs - 0.02 * span)
        if np.abs(step).max() < 1e-4:
            break
    placed = start.copy()
    placed[adr] = x
    return placed


def _is_flat(model: mujoco.MjModel, data: mujoco.MjData, foot: int) -> bool:
    """Whether a foot has a sole that can lie flat: several lowest points apart."""
    points = bounding_points(model, data, foot)
    low = points[points[:, 2] <= points[:, 2].min() + PATCH, :2]
    return bool(np.ptp(low, axis=0).max() > 0.06)
