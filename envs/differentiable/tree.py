"""Tree: a robot's bodies, joints, motors and contact points, read from its MuJoCo model for the generated kernel."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import mujoco
import numpy as np

from robolearn.envs import mjcf
from robolearn.envs.contacts import colliding_pairs
from robolearn.envs.differentiable.supported import (
    compliance,
    raise_unsupported,
    require_supported,
    surroundings,
)
from robolearn.envs.robot import Robot
from robolearn.envs.scene import Scene

Numbers = list[float]


@dataclass(frozen=True)
class Joint:
    """One joint, in its body's axes."""

    kind: str
    """"free", "slide" or "hinge"."""
    axis: Numbers
    anchor: Numbers
    position: int
    """Column of its position in a row."""
    velocity: int
    """First column of its velocity."""
    dof: int
    """Its first degree of freedom."""
    damping: float
    armature: float
    reference: float
    """Joint position in the MJCF's initial configuration (`ref`)."""
    spring: float
    """Stiffness of a spring [N/m or Nm/rad]."""
    spring_rest: float
    """Rest position of the spring."""
    lower: float | None
    upper: float | None
    stop_stiffness: float
    stop_damping: float

    @property
    def size(self) -> int:
        """Degrees of freedom."""
        return 6 if self.kind == "free" else 1


@dataclass(frozen=True)
class Body:
    """One rigid body; position and orientation relative to its parent."""

    name: str
    parent: int
    """-1 for the world."""
    position: Numbers
    quat: Numbers
    rotation: list[Numbers]
    mass: float
    centre: Numbers
    """Centre of mass in the body frame."""
    inertia: list[Numbers]
    """(3, 3) about the centre of mass, in body axes."""
    joints: tuple[Joint, ...]


@dataclass(frozen=True)
class Motor:
    """One actuator."""

    kind: str
    joint: int
    """Index of its joint in the robot's order."""
    position: int
    velocity: int
    dof: int
    kp: float
    kd: float
    effort: float


@dataclass(frozen=True)
class Point:
    """A sphere on a body that may touch the ground."""

    body: int
    position: Numbers
    radius: float


@dataclass(frozen=True)
class Site:
    """A site or the origin of a body, relative to the body."""

    body: int
    """-1 for the world."""
    position: Numbers
    quat: Numbers


@dataclass(frozen=True)
class Ground:
    """Compliance and friction of the floor."""

    stiffness: float
    """At each contact point [N/m]."""
    dissipation: float
    """Damping factor of Hunt and Crossley [s/m]."""
    slip_speed: float
    """Below this sliding speed [m/s] friction is proportional to the speed."""
    friction: float


@dataclass(frozen=True)
class Tree:
    """A whole robot. Bodies come after their parents; degrees of freedom are in MuJoCo's order."""

    bodies: tuple[Body, ...]
    motors: tuple[Motor, ...]
    points: tuple[Point, ...]
    feet: tuple[Site, ...]
    """The soles."""
    frames: tuple[Site, ...]
    """What the scene asks for, in its order."""
    touched: tuple[int, ...]
    """The bodies of the scene's contacts, one contact after the other."""
    seen_bodies: tuple[int, ...]
    position_columns: tuple[int, ...]
    velocity_columns: tuple[int, ...]
    ground: Ground
    gravity: Numbers
    """[m/s^2]."""
    base: int
    """Index of the floating base; -1 for none."""


_GEOMS = {
    int(getattr(mujoco.mjtGeom, f"mjGEOM_{name}")): name.lower()
    for name in ("PLANE", "HFIELD", "SPHERE", "CAPSULE", "ELLIPSOID", "CYLINDER", "BOX", "MESH")
}
STOP_TIME = 0.02
"""Time constant of a joint's stop [s], MuJoCo's default."""
SAG = 0.002
"""Penetration of one point under the robot's weight [m], which sets the default stiffness of the ground."""


def read_tree(what: Robot | Scene, model: mujoco.MjModel, options: Mapping[str, Any]) -> Tree:
    """The tree of a scene's robot from its compiled model.

    Raises:
        ConfigError: names the first feature that this engine does not simulate.
    """
    scene = Scene.of(what)
    robot = scene.robot
    require_simulable(robot, model)
    base = 13 if robot.base else 0
    count = len(robot.joints)
    known = {name: (base + i, base + count + i) for i, name in enumerate(robot.joints)}
    bodies = []
    for b in range(1, model.nbody):
        first = model.body_jntadr[b]
        joints = [_joint(model, j, known) for j in range(first, first + model.body_jntnum[b]) if first >= 0]
        frame = _matrix(model.body_iquat[b])
        bodies.append(
            Body(
                name=model.body(b).name,
                parent=int(model.body_parentid[b]) - 1,
                position=model.body_pos[b].tolist(),
                quat=model.body_quat[b].tolist(),
                rotation=_matrix(model.body_quat[b]).tolist(),
                mass=float(model.body_mass[b]),
                centre=model.body_ipos[b].tolist(),
                inertia=_snapped(frame @ np.diag(model.body_inertia[b]) @ frame.T),
                joints=tuple(joints),
            )
        )
    motors = [
        Motor(
            kind=a.kind,
            joint=robot.joints.index(a.joint),
            position=known[a.joint][0],
            velocity=known[a.joint][1],
            dof=int(model.joint(a.joint).dofadr[0]),
            kp=a.kp,
            kd=a.kd,
            effort=a.effort,
        )
        for a in robot.actuators
    ]
    colliding = model.geom_contype | model.geom_conaffinity
    return Tree(
        bodies=tuple(bodies),
        motors=tuple(motors),
        points=tuple(_points(model)),
        feet=tuple(_site(model, name) for name in robot.feet),
        frames=tuple(_site(model, name) for name in scene.frames.get(scene.first, ())),
        touched=tuple(
            model.body(name).id - 1
            for contact in scene.contacts.get(scene.first, {}).values()
            for name in mjcf.contact_bodies(scene, scene.first, contact)
        ),
        seen_bodies=tuple(model.body(name).id - 1 for name in robot.bodies),
        position_columns=tuple(known[name][0] for name in robot.joints),
        velocity_columns=tuple(known[name][1] for name in robot.joints),
        ground=Ground(
            *compliance(robot, model, options, SAG, 2.0),
            float(model.geom_friction[colliding.astype(bool), 0].max(initial=0.0)),
        ),
        gravity=model.opt.gravity.tolist(),
        base=model.body(robot.base).id - 1 if robot.base else -1,
    )


def require_simulable(robot: Robot, model: mujoco.MjModel) -> None:
    """Check that this engine supports a robot's joints, forces, options and contact geoms.

    Raises:
        ConfigError: names the first unsupported feature and the fix.
    """
    require_supported(robot, model)
    for ground, other in _ground_pairs(model):
        kinds = [_GEOMS.get(int(model.geom_type[g]), "other") for g in (ground, other)]
        level = model.geom_quat[ground, 0] ** 2 == 1.0 and not model.geom_pos[ground].any()
        if kinds[0] != "plane" or model.geom_bodyid[ground] or not level:
            raise_unsupported(robot, f"it stands on {_name(model, ground)}", "use a level floor at height 0")
        if model.geom_condim[other] > 3:
            raise_unsupported(
                robot, f"{_name(model, other)} has rolling or torsional friction (condim)", "set condim to 3"
            )
        if model.geom_margin[other] or model.geom_gap[other]:
            raise_unsupported(robot, f"{_name(model, other)} has a margin or gap", "remove it")
        if kinds[1] not in ("sphere", "capsule", "box"):
            raise_unsupported(
                robot, f"{_name(model, other)} is a {kinds[1]}", "use spheres, capsules or boxes for contact"
            )

    frictions = {float(max(model.geom_friction[[a, b], 0])) for a, b in _ground_pairs(model)}
    if len(frictions) > 1:
        raise_unsupported(
            robot, "its geoms have different friction on the floor", "give all of them the same"
        )
    if model.opt.integrator != mujoco.mjtIntegrator.mjINT_IMPLICITFAST:
        raise_unsupported(
            robot, "solver.differentiable has another integrator", "set integrator: implicitfast"
        )


def _ground_pairs(model: mujoco.MjModel) -> list[tuple[int, int]]:
    """Pairs of geoms that can touch: one beside the robot and one of the robot."""
    beside = surroundings(model)
    return [(a, b) if beside[a] else (b, a) for a, b in colliding_pairs(model) if beside[a] != beside[b]]


def ignored_contacts(model: mujoco.MjModel) -> list[str]:
    """Pairs of geoms of the robot that collide in MuJoCo and pass through each other in this engine."""
    beside = surroundings(model)
    return [
        f"{_name(model, a)} and {_name(model, b)}"
        for a, b in colliding_pairs(model)
        if not beside[a] and not beside[b]
    ]


def _name(model: mujoco.MjModel, geom: int) -> str:
    name, body = model.geom(geom).name, model.body(model.geom_bodyid[geom]).name
    return f"geom {name}" if name else f"a geom of body {body}"


def _site(model: mujoco.MjModel, name: str) -> Site:
    """The site of that name, or the body where there is none; as for `mjcf.frame_sensor`."""
    s = mujoco.mj_name2id(model, mujoco.mjtObj.mjOBJ_SITE, name)
    if s < 0:
        return Site(model.body(name).id - 1, [0.0, 0.0, 0.0], [1.0, 0.0, 0.0, 0.0])
    return Site(int(model.site_bodyid[s]) - 1, model.site_pos[s].tolist(), model.site_quat[s].tolist())


def _joint(model: mujoco.MjModel, j: int, known: dict[str, tuple[int, int]]) -> Joint:
    dof, kind = int(model.jnt_dofadr[j]), mujoco.mjtJoint(model.jnt_type[j])
    free = kind == mujoco.mjtJoint.mjJNT_FREE
    position, velocity = (0, 7) if free else known[model.joint(j).name]
    limited = bool(model.jnt_limited[j])
    inertia = 1.0 / float(model.dof_invweight0[dof])
    stiffness = inertia / STOP_TIME**2
    return Joint(
        kind="free" if free else "slide" if kind == mujoco.mjtJoint.mjJNT_SLIDE else "hinge",
        axis=_snapped(model.jnt_axis[j]),
        anchor=[0.0, 0.0, 0.0] if free else model.jnt_pos[j].tolist(),
        position=position,
        velocity=velocity,
        dof=dof,
        damping=float(model.dof_damping[dof]),
        armature=float(model.dof_armature[dof]),
        reference=0.0 if free else float(model.qpos0[model.jnt_qposadr[j]]),
        spring=float(model.jnt_stiffness[j]),
        spring_rest=0.0 if free else float(model.qpos_spring[model.jnt_qposadr[j]]),
        lower=float(model.jnt_range[j, 0]) if limited else None,
        upper=float(model.jnt_range[j, 1]) if limited else None,
        stop_stiffness=stiffness,
        stop_damping=2.0 * inertia / STOP_TIME,
    )


def _points(model: mujoco.MjModel) -> list[Point]:
    """Contact points of the robot's geoms: the centre of a sphere, the two ends of a capsule, the corners of a box."""
    found = []
    for g in sorted({other for _, other in _ground_pairs(model)}):
        kind, size = _GEOMS[int(model.geom_type[g])], model.geom_size[g]
        body = int(model.geom_bodyid[g]) - 1
        rotation = _matrix(model.geom_quat[g])
        if kind == "sphere":
            corners, radius = [np.zeros(3)], float(size[0])
        elif kind == "capsule":
            corners, radius = [np.array([0.0, 0.0, side * size[1]]) for side in (-1, 1)], float(size[0])
        else:
            signs = [(x, y, z) for x in (-1, 1) for y in (-1, 1) for z in (-1, 1)]
            corners, radius = [np.array(s) * size for s in signs], 0.0
        found += [Point(body, _snapped(model.geom_pos[g] + rotation @ c), radius) for c in corners]
    return found


def _matrix(quat: np.ndarray) -> np.ndarray:
    """Rotation matrix (3, 3) of a quaternion wxyz."""
    out = np.zeros(9)
    mujoco.mju_quat2Mat(out, quat)
    return np.array(_snapped(out.reshape(3, 3)))


def _snapped(array: np.ndarray) -> Any:
    """The array as lists, with entries within rounding of 0, 1 or -1 made exact, so that they fold to constants."""
    scale = max(1e-12, float(np.abs(array).max()))
    near = np.where(np.abs(array) < 1e-9 * scale, 0.0, array)
    return np.where(np.abs(np.abs(near) - 1.0) < 1e-12, np.sign(near), near).tolist()
