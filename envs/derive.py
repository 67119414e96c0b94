"""Describes a robot from its file: base, feet, home pose, motors, mirror pairs. robot.yaml need only say what differs.

Every function takes a `ModelFile` and what is already known of the robot, and derives one thing. Poses are those of
MuJoCo's `qpos`, with a free base at the origin, level.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

import mujoco
import numpy as np

from robolearn.envs.mirror import Mirror, by_names, is_left
from robolearn.envs.model_file import Drive, ModelFile
from robolearn.envs.shapes import (
    FREE,
    ONE_AXIS,
    PATCH,
    bottom,
    bounding_points,
    carries,
    collides,
    is_base,
    leg_joints,
    lowest_points,
    pose,
    posed,
    sole_centre,
    standing_bodies,
    trunk,
)
from robolearn.envs.stance import bent_pose
from robolearn.envs.stance import home as home
from robolearn.errors import listing

FREQUENCY, DAMPING_RATIO = 10.0, 2.0
"""Natural frequency [Hz] and damping ratio of a motor with its own armature, where the file gives no gains."""
DEFLECTION = {True: 0.5, False: 0.1}
"""Without an armature too: deflection [rad] at which full torque acts, by whether the base is free."""
SAG = 0.1
"""Largest deflection of a joint under the robot's weight that derived gains accept [rad]."""
LEAST_LEVER = 0.3
"""See `_standing_load`: a pose a little off home bends a leg's joints more than home does."""
UPRIGHT_BASE = 0.9
"""Least cosine of a free base's lean in its file: poses are those of a level base."""
UPRIGHT = 3.0
"""Stiffness of the ankles of a robot on two feet, as a multiple of the least that keeps an upright pendulum upright."""
STABLE = 2.0
"""Largest natural frequency of a derived servo, times the physics step."""
ABSURD_EFFORT = 20.0
"""An effort so many times the usual one is taken as no limit; files write 20000 Nm for "any"."""
SLIDE_DEFLECTION = 0.02
"""The same for a slide [m]."""


def joints(file: ModelFile) -> tuple[str, ...]:
    """Every hinge and slide joint, in the file's order."""
    model = file.model
    for j in range(model.njnt):
        if model.jnt_type[j] == int(mujoco.mjtJoint.mjJNT_BALL):
            name = model.joint(j).name or f"of body {model.body(model.jnt_bodyid[j]).name}"
            file.fail(f"joint {name} is a ball joint, which is not supported; use three hinges")
    found = tuple(model.joint(j).name for j in range(model.njnt) if model.jnt_type[j] in ONE_AXIS)
    if not found:
        file.fail("has no hinge or slide joint, so it is no robot")
    return found


def base(file: ModelFile) -> str | None:
    """The body with the free joint; of a URDF, which has none, the root link of a robot with at least two legs."""
    model = file.model
    free = [int(model.jnt_bodyid[j]) for j in range(model.njnt) if model.jnt_type[j] == FREE]
    if len(free) > 1:
        names = listing(model.body(b).name for b in free)
        file.fail(
            f"has {len(free)} free joints, at {names}; a robot's file has one free base, objects belong elsewhere"
        )
    if free:
        name = str(model.body(free[0]).name)
        _, x, y, _ = model.body_quat[free[0]]
        if 1 - 2 * (x * x + y * y) < UPRIGHT_BASE:
            file.fail(
                f"body {name}, the free base, is turned over in the file; its z axis must point up: turn what is in it"
            )
        return name
    if not file.urdf:
        return None
    roots = [b for b in range(1, model.nbody) if model.body_parentid[b] == 0]
    if len(roots) != 1 or file.on_world:
        return None
    start = bent_pose(file)
    data = posed(file, start)
    low = standing_bodies(file, start, floating=True)
    legs = [leg_joints(model, foot) for foot in low]
    below = all(
        leg and bottom(file, start, foot) < data.xanchor[leg[0], 2]
        for leg, foot in zip(legs, low, strict=True)
    )
    return str(model.body(roots[0]).name) if len(low) >= 2 and below else None


def feet(file: ModelFile, floating: bool, home: Mapping[str, float]) -> tuple[str, ...]:
    """The bodies that stand on the ground in the home pose: ends of limbs with a geom as low as any."""
    return tuple(str(file.model.body(b).name) for b in standing_bodies(file, pose(file, home), floating))


def bodies(file: ModelFile, feet: Sequence[str]) -> tuple[str, ...]:
    """The bodies whose positions are worth knowing: the ends of the limbs that are not feet."""
    model = file.model
    moving = [b for b in range(1, model.nbody) if model.body_weldid[b] == b]
    ends = [b for b in moving if not carries(model, b) and not is_base(model, b)]
    stand = {int(model.body_weldid[model.body(foot).id]) for foot in feet}
    return tuple(str(model.body(b).name) for b in ends if b not in stand)


def sole(
    file: ModelFile, home: Mapping[str, float], foot: str
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Position (3,) [m] and orientation (4,) wxyz of the centre of a foot's sole in the frame of its body: level, and
    facing forward, in the home pose."""
    model = file.model
    data = posed(file, pose(file, home))
    body = int(model.body(foot).id)
    points = bounding_points(model, data, body)
    if len(points):
        low = points[points[:, 2] <= points[:, 2].min() + PATCH]
        centre = np.array([*(low[:, :2].min(axis=0) + low[:, :2].max(axis=0)) / 2, points[:, 2].min()])
    else:
        centre = data.xpos[body].copy()
    turned, local, inverse = data.xmat[body].reshape(3, 3), np.zeros(4), np.zeros(4)
    position = turned.T @ (centre - data.xpos[body])
    mujoco.mju_mat2Quat(local, data.xmat[body])
    mujoco.mju_negQuat(inverse, local)
    return tuple(float(round(x, 6)) for x in position), tuple(float(x) for x in inverse)


def home_height(file: ModelFile, base: str, home: Mapping[str, float], low_bodies: Iterable[str]) -> float:
    """z of the base [m] at which the lowest colliding point of these bodies (of all, where there are none) touches the
    ground."""
    model = file.model
    data = posed(file, pose(file, home))
    bodies = [int(model.body(name).id) for name in low_bodies] or list(range(1, model.nbody))
    lowest = [
        bounding_points(model, data, b)[:, 2].min() for b in bodies if len(bounding_points(model, data, b))
    ]
    if not lowest:
        return 0.0
    return float(round(data.xpos[int(model.body(base).id), 2] - min(lowest), 6))


def drives(
    file: ModelFile,
    floating: bool,
    home: Mapping[str, float],
    step: float,
    armatures: Mapping[str, float] | None = None,
) -> dict[str, Drive]:
    """The position servo of each actuated joint, in the file's order of joints.

    Gains are the file's. Without them kp = I w^2 and kd = 2 z I w from the joint's armature I (w = 2 pi 10/s, z = 2, as
    mjlab chooses them), stiffer where the load of the home pose would bend it by more than `SAG`; without an armature,
    full torque acts at `DEFLECTION` and kd is critical for the inertia that the joint moves in the home pose. kp is no
    larger than the physics step allows (`STABLE`), and two feet need stiff ankles (`UPRIGHT`). A file without actuators
    has one at every joint that no equality constraint drives.

    `step` is the physics step [s]; `armatures` [kg m^2] by joint replace the file's.
    """
    model = file.model
    data = posed(file, pose(file, home))
    mujoco.mj_forward(model, data)
    inertia = np.zeros((model.nv, model.nv))
    mujoco.mj_fullM(model, data, inertia)
    free_inertia = 1 / np.diag(np.linalg.inv(inertia + 1e-12 * np.eye(model.nv)))
    load = _standing_load(file, data, home) if floating else np.abs(data.qfrc_bias)
    driven = _driven(model)
    found = {}
    for name in joints(file):
        joint = model.joint(name)
        told = file.drives.get(name)
        if told is None and (file.has_actuators or name in driven):
            continue
        dof = int(joint.dofadr[0])
        effort = stated_effort(file, name)
        usual = _usual_effort(file, data, name, floating)
        slide = model.jnt_type[joint.id] == int(mujoco.mjtJoint.mjJNT_SLIDE)
        if told and told.kp > 0:
            low, high = joint.range
            width = high - low if model.jnt_limited[joint.id] else 2 * math.pi
            limit = (
                effort if 0 < effort < ABSURD_EFFORT * usual else min(told.kp * width, ABSURD_EFFORT * usual)
            )
            found[name] = Drive(told.kp, told.kd, limit)
            continue
        if not 0 < effort < ABSURD_EFFORT * usual:
            effort = usual
        armature = (armatures or {}).get(name, float(model.dof_armature[dof]))
        moved = float(inertia[dof, dof]) + armature - float(model.dof_armature[dof])
        if armature > 1e-6 and not slide:
            w = 2 * math.pi * FREQUENCY
            kp, kd = armature * w**2, 2 * DAMPING_RATIO * armature * w
            stiffer = max(1.0, float(load[dof]) / (SAG * kp))
            kp, kd = stiffer * kp, math.sqrt(stiffer) * kd
        else:
            kp = effort / (SLIDE_DEFLECTION if slide else DEFLECTION[floating])
            kp = kp if slide else max(kp, float(load[dof]) / SAG)
            kp = min(kp, float(free_inertia[dof]) * (STABLE / step) ** 2)
            kd = 2 * math.sqrt(kp * max(moved, 1e-9))
        found[name] = Drive(round(kp, 6), round(kd, 6), effort)
    if not found:
        file.fail("has no joint that an actuator drives alone, so nothing can move it")
    return found


def stated_effort(file: ModelFile, joint: str) -> float:
    """Largest torque or force of a joint's motor that the file says, the actuator's or the joint's; inf without any."""
    told, model = file.drives.get(joint), file.model
    limit = told.effort if told else math.inf
    if model.jnt_actfrclimited[model.joint(joint).id]:
        limit = min(limit, float(np.abs(model.jnt_actfrcrange[model.joint(joint).id]).max()))
    return limit


def mirror(file: ModelFile, base: str | None, feet: Sequence[str]) -> Mirror | None:
    """Pairs of joints and feet by their names, otherwise by where they are; which joints change sign follows from their
    axes in the model's zero pose. None for a fixed base, or where there are no pairs."""
    if base is None:
        return None
    model = file.model
    data = mujoco.MjData(model)
    mujoco.mj_kinematics(model, data)
    names = joints(file)
    origin, frame = data.xpos[int(model.body(base).id)], data.xmat[int(model.body(base).id)].reshape(3, 3)
    ids = [int(model.joint(name).id) for name in names]
    anchors = {n: frame.T @ (data.xanchor[j] - origin) for n, j in zip(names, ids, strict=True)}
    axes = {n: frame.T @ data.xaxis[j] for n, j in zip(names, ids, strict=True)}
    spots = {foot: frame.T @ (data.xpos[int(model.body(foot).id)] - origin) for foot in feet}
    paired = by_names(names)
    paired_feet = by_names(feet) or ({}, {})
    if paired is None:
        by_place = _by_place(names, anchors, axes, model, ids)
        if by_place is None:
            return None
        paired = by_place
    if not paired[0] or not all(foot in paired_feet[0] for foot in feet):
        paired_feet = _nearest_mirrored(spots)
    twins = {**{name: name for name in (*names, *feet)}, **paired[0], **paired_feet[0]}
    bases = {**paired[1], **paired_feet[1]}
    flip = []
    for name, joint in zip(names, ids, strict=True):
        other = twins.get(name, name)
        slide = model.jnt_type[joint] == int(mujoco.mjtJoint.mjJNT_SLIDE)
        reflected = axes[name] * (np.array([1.0, -1.0, 1.0]) if slide else np.array([-1.0, 1.0, -1.0]))
        if float(reflected @ axes[other]) < 0:
            flip.append(name)
    return Mirror(twins, tuple(flip), bases)


def crooked(file: ModelFile, base: str, pairs: Mirror) -> list[str]:
    """Joints whose named twin is not where their mirror image is, to 5 % of the robot's size."""
    model = file.model
    data = mujoco.MjData(model)
    mujoco.mj_kinematics(model, data)
    body = int(model.body(base).id)
    frame = data.xmat[body].reshape(3, 3)
    where = {n: frame.T @ (data.xanchor[model.joint(n).id] - data.xpos[body]) for n in joints(file)}
    size = max(float(np.ptp(np.array(list(where.values())), axis=0).max()), 0.1)
    return [n for n in where if np.abs(where[n] * [1, -1, 1] - where[pairs.twin(n)]).max() > 0.05 * size]


def _driven(model: mujoco.MjModel) -> set[str]:
    """Joints that follow another one by an equality constraint (URDF: mimic)."""
    of_joints = int(mujoco.mjtEq.mjEQ_JOINT)
    return {
        model.joint(int(model.eq_obj1id[e])).name for e in range(model.neq) if model.eq_type[e] == of_joints
    }


def _standing_load(file: ModelFile, data: mujoco.MjData, home: Mapping[str, float]) -> np.ndarray:
    """Torque (nv,) that holds each joint in the home pose while the feet carry equal parts of the weight; for the
    joints of a leg at least that of its part with a lever of `LEAST_LEVER` times their distance to the foot."""
    model = file.model
    feet = standing_bodies(file, pose(file, home), floating=True)
    load, least = data.qfrc_bias.copy(), np.zeros(model.nv)
    for foot in feet:
        jacobian = np.zeros((3, model.nv))
        place = np.append(sole_centre(model, data, foot), bounding_points(model, data, foot)[:, 2].min())
        mujoco.mj_jac(model, data, jacobian, None, place, foot)
        share = float(model.body_subtreemass[trunk(model)]) * 9.81 / len(feet)
        load -= jacobian[2] * share
        for joint in leg_joints(model, foot):
            level = float(np.linalg.norm(data.xaxis[joint][:2]))  # an upright axis carries no weight
            reach = float(np.linalg.norm(place - data.xanchor[joint]))
            least[model.jnt_dofadr[joint]] = LEAST_LEVER * share * reach * level
            if (
                len(feet) <= 2
            ):  # balances on its ankles: a pendulum that falls unless its spring is stiff enough
                above = float(data.subtree_com[trunk(model), 2] - place[2])
                least[model.jnt_dofadr[joint]] = max(
                    least[model.jnt_dofadr[joint]], UPRIGHT * share * above * level * SAG
                )
    return np.maximum(np.abs(load), least)


def touching(file: ModelFile, home: Mapping[str, float]) -> list[tuple[str, str]]:
    """Pairs of bodies of the robot that are inside one another in the home pose: their shapes are coarser than the
    robot, and would push its joints apart."""
    model = file.model
    data = posed(file, pose(file, home))
    mujoco.mj_forward(model, data)
    found = set()
    for contact in data.contact:
        bodies = sorted(int(model.geom_bodyid[g]) for g in contact.geom)
        if contact.dist < -1e-4 and bodies[0] > 0:
            found.add((str(model.body(bodies[0]).name), str(model.body(bodies[1]).name)))
    return sorted(found)


def _usual_effort(file: ModelFile, data: mujoco.MjData, name: str, floating: bool) -> float:
    """An effort for a joint without a limit: half the robot's weight at the height of a free base; for a fixed base,
    three times what holds the outstretched limb."""
    model = file.model
    joint = model.joint(name)
    body = int(model.jnt_bodyid[joint.id])
    if floating:
        lowest = min(
            (
                float(lowest_points(model, data, g)[:, 2].min())
                for g in range(model.ngeom)
                if collides(model, g)
            ),
            default=0.0,
        )
        root = trunk(model)
        effort = (
            0.5 * float(model.body_subtreemass[root]) * 9.81 * max(float(data.xpos[root, 2]) - lowest, 0.05)
        )
    else:
        below = [b for b in range(body, model.nbody) if _is_below(model, b, body)]
        mass = float(model.body_mass[below].sum())
        reach = float(np.linalg.norm(data.xipos[below] - data.xanchor[joint.id], axis=1).max(initial=0.05))
        effort = 3 * mass * 9.81 * reach
    if model.jnt_type[joint.id] == int(mujoco.mjtJoint.mjJNT_SLIDE):
        effort = 3 * float(model.body_subtreemass[body]) * 9.81
    return float(round(max(effort, 0.1), 3))


def _is_below(model: mujoco.MjModel, body: int, above: int) -> bool:
    while body > 0:
        if body == above:
            return True
        body = int(model.body_parentid[body])
    return False


def _by_place(
    names: Sequence[str],
    anchors: Mapping[str, np.ndarray],
    axes: Mapping[str, np.ndarray],
    model: mujoco.MjModel,
    ids: Sequence[int],
) -> tuple[dict[str, str], dict[str, str]] | None:
    """Pairs of joints whose anchors and axes are mirror images; None where a joint has none."""
    size = max(float(np.ptp(np.array(list(anchors.values())), axis=0).max()), 0.1)
    kinds = dict(zip(names, (int(model.jnt_type[j]) for j in ids), strict=True))
    twins: dict[str, str] = {}
    for name in names:
        reflected = anchors[name] * [1, -1, 1]
        turned = axes[name] * [-1, 1, -1]
        fits = [
            other
            for other in names
            if kinds[other] == kinds[name]
            and np.abs(anchors[other] - reflected).max() < 0.02 * size
            and abs(float(axes[other] @ turned)) > 0.99
        ]
        if len(fits) != 1:
            return None
        twins[name] = fits[0]
    if any(twins[twins[name]] != name for name in names):
        return None
    sided = {name: other for name, other in twins.items() if other != name}
    if not sided:
        return None
    return sided, {n: (n if anchors[n][1] > 0 else sided[n]) for n in sided}


def _nearest_mirrored(spots: Mapping[str, np.ndarray]) -> tuple[dict[str, str], dict[str, str]]:
    """Pairs of feet, each with the one nearest to its mirror image."""
    twins = {}
    for foot, spot in spots.items():
        reflected = spot * [1, -1, 1]
        twins[foot] = min(spots, key=lambda other: float(np.linalg.norm(spots[other] - reflected)))
    sided = {foot: other for foot, other in twins.items() if other != foot and twins[other] == foot}
    bases = {foot: (foot if is_left(foot) or spots[foot][1] > 0 else other) for foot, other in sided.items()}
    return sided, bases
