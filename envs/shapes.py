"""Where a robot's colliding shapes are in a pose: lowest points, soles, feet, legs."""

from __future__ import annotations

import math
from collections.abc import Mapping

import mujoco
import numpy as np

from robolearn.envs.model_file import ModelFile

SAME_HEIGHT = 0.03
"""Feet are the bodies whose lowest point is this close to the lowest of all, as a share of the robot's height."""
PATCH = 0.01
"""A sole is what lies at most this far above a foot's lowest point [m]."""
ONE_AXIS = (int(mujoco.mjtJoint.mjJNT_HINGE), int(mujoco.mjtJoint.mjJNT_SLIDE))
FREE = int(mujoco.mjtJoint.mjJNT_FREE)
_G = mujoco.mjtGeom

_CORNERS = np.array([[x, y, z] for x in (-1, 1) for y in (-1, 1) for z in (-1, 1)], dtype=float)
_RIM = np.array([[math.cos(a), math.sin(a)] for a in np.linspace(0, 2 * math.pi, 16, endpoint=False)])


def collides(model: mujoco.MjModel, geom: int) -> bool:
    """Whether a geom of the robot collides with anything."""
    return bool(model.geom_contype[geom] or model.geom_conaffinity[geom]) and model.geom_bodyid[geom] > 0


def bounding_points(model: mujoco.MjModel, data: mujoco.MjData, body: int) -> np.ndarray:
    """Points (k, 3) in the world that bound the colliding geoms of a body from below."""
    first = int(model.body_geomadr[body])
    geoms = range(first, first + int(model.body_geomnum[body])) if model.body_geomnum[body] else ()
    clouds = [lowest_points(model, data, geom) for geom in geoms if collides(model, geom)]
    return np.concatenate(clouds) if clouds else np.zeros((0, 3))


def lowest_points(model: mujoco.MjModel, data: mujoco.MjData, geom: int) -> np.ndarray:
    """Points (k, 3) among which is the lowest of a geom."""
    kind, size = model.geom_type[geom], model.geom_size[geom]
    where, turn = data.geom_xpos[geom], data.geom_xmat[geom].reshape(3, 3)
    if kind == _G.mjGEOM_SPHERE:
        return (where - [0, 0, size[0]])[None]
    if kind == _G.mjGEOM_CAPSULE:
        ends = where + np.array([[0, 0, size[1]], [0, 0, -size[1]]]) @ turn.T
        return ends - [0, 0, size[0]]
    if kind == _G.mjGEOM_CYLINDER:
        local = np.concatenate([np.c_[size[0] * _RIM, np.full(16, z)] for z in (-size[1], size[1])])
    elif kind == _G.mjGEOM_ELLIPSOID:
        down = -turn[2] * size[:3]
        local = (size[:3] * down / max(float(np.linalg.norm(down)), 1e-12))[None]
    elif kind == _G.mjGEOM_MESH:
        mesh = model.geom_dataid[geom]
        first, count = model.mesh_vertadr[mesh], model.mesh_vertnum[mesh]
        local = model.mesh_vert[first : first + count].astype(float)
    else:
        local = _CORNERS * model.geom_aabb[geom, 3:] + model.geom_aabb[geom, :3]
    return where + local @ turn.T


def bottom(file: ModelFile, qpos: np.ndarray, body: int) -> float:
    """Height of the lowest colliding point of a body in a pose (nq,) [m]; inf where nothing of it collides."""
    points = bounding_points(file.model, posed(file, qpos), body)
    return float(points[:, 2].min()) if len(points) else math.inf


def standing_bodies(file: ModelFile, qpos: np.ndarray, floating: bool) -> list[int]:
    """Bodies at the ends of limbs whose lowest colliding point is as low as any of the robot; none of a fixed base."""
    if not floating:
        return []
    model, data = file.model, posed(file, qpos)
    bottoms: dict[int, tuple[float, int]] = {}  # by moving body: the lowest point, and the body of its geom
    tops = []
    for geom in range(model.ngeom):
        if not collides(model, geom):
            continue
        body = int(model.geom_bodyid[geom])
        points = lowest_points(model, data, geom)
        tops.append(float(points[:, 2].max()))
        moving = int(model.body_weldid[body])
        bottoms[moving] = min(bottoms.get(moving, (math.inf, 0)), (float(points[:, 2].min()), body))
    if not bottoms:
        return []
    lowest = min((low for moving, (low, _) in bottoms.items() if moving), default=0.0)  # 0: does not move
    tops.append(float(data.xpos[1:, 2].max()))
    margin = SAME_HEIGHT * max(max(tops) - lowest, 0.1)
    ends = [b for b in bottoms if b and not carries(model, b) and not is_base(model, b)]
    return sorted(bottoms[b][1] for b in ends if bottoms[b][0] <= lowest + margin)


def carries(model: mujoco.MjModel, body: int) -> bool:
    """Whether a moving body hangs below this one."""
    return any(
        model.body_parentid[b] != 0
        and model.body_weldid[model.body_parentid[b]] == body
        and model.body_weldid[b] != body
        for b in range(1, model.nbody)
    )


def trunk(model: mujoco.MjModel) -> int:
    """The body of the free joint; without one the heaviest body of the world with all that hangs on it."""
    for joint in range(model.njnt):
        if model.jnt_type[joint] == FREE:
            return int(model.jnt_bodyid[joint])
    roots = [body for body in range(1, model.nbody) if model.body_parentid[body] == 0]
    return max(roots, key=lambda body: float(model.body_subtreemass[body]))


def is_base(model: mujoco.MjModel, body: int) -> bool:
    """Whether a body hangs at no joint of the robot."""
    own = range(model.body_jntadr[body], model.body_jntadr[body] + model.body_jntnum[body])
    return any(model.jnt_type[j] == FREE for j in own) or model.body_parentid[body] == 0


def _moves(model: mujoco.MjModel, body: int) -> bool:
    """Whether a body or one below it has a joint."""
    if model.body_jntnum[body]:
        return True
    return any(_moves(model, b) for b in range(body + 1, model.nbody) if model.body_parentid[b] == body)


def leg_joints(model: mujoco.MjModel, foot: int) -> list[int]:
    """The joints between the last body with several limbs and a foot, from the hip down."""
    chain: list[int] = []
    body = foot
    while body > 0:
        own = range(model.body_jntadr[body], model.body_jntadr[body] + model.body_jntnum[body])
        kinds = [model.jnt_type[j] for j in own]
        if FREE in kinds:
            break
        chain = [j for j, kind in zip(own, kinds, strict=True) if kind in ONE_AXIS] + chain
        body = int(model.body_parentid[body])
        if sum(1 for b in range(1, model.nbody) if model.body_parentid[b] == body and _moves(model, b)) > 1:
            break
    return chain


def sole_centre(model: mujoco.MjModel, data: mujoco.MjData, foot: int) -> np.ndarray:
    """(2,) middle of the lowest points of a foot."""
    points = bounding_points(model, data, foot)
    low = points[points[:, 2] <= points[:, 2].min() + PATCH, :2]
    return np.asarray((low.min(axis=0) + low.max(axis=0)) / 2)


def zero_pose(file: ModelFile) -> np.ndarray:
    """qpos (nq,) with the file's zero of every joint, a free base level at the origin."""
    model = file.model
    qpos = model.qpos0.copy()
    for j in range(model.njnt):
        if model.jnt_type[j] == FREE:
            first = model.jnt_qposadr[j]
            qpos[first : first + 7] = [0, 0, 0, 1, 0, 0, 0]
    return qpos


def pose(file: ModelFile, home: Mapping[str, float]) -> np.ndarray:
    """qpos (nq,) with these joint positions."""
    qpos = zero_pose(file)
    for name, value in home.items():
        qpos[file.model.joint(name).qposadr[0]] = value
    return qpos


def posed(file: ModelFile, qpos: np.ndarray) -> mujoco.MjData:
    """The model in a pose (nq,): kinematics and centres of mass."""
    data = mujoco.MjData(file.model)
    data.qpos[:] = qpos
    mujoco.mj_kinematics(file.model, data)
    mujoco.mj_comPos(file.model, data)
    return data
