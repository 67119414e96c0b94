"""From a compiled MuJoCo model to what the Newton engine computes with: links, joints, contact points, places.

MuJoCo's model is the one source of every number; Newton's own importer of MJCF is not used (it drops a joint's `ref`,
and knows neither our actuators nor our feet).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NoReturn

import mujoco
import numpy as np
import warp as wp

from robolearn.envs.differentiable import newton_kernels as kernels
from robolearn.envs.differentiable.supported import refuse, require_supported
from robolearn.envs.robot import Robot

GEOM, JOINT = mujoco.mjtGeom, mujoco.mjtJoint

STOP_DEPTH = 0.02
"""How far a stop is pressed in [rad or m] where its damping is MuJoCo's: it grows with the depth."""


SINK = 0.007
"""How far one point with the robot's whole weight on it sinks in, unless robot.yaml says otherwise [m]."""
MARGIN = 0.7
"""How much of what an explicit step bears friction uses."""


@dataclass
class Link:
    """A body that joints move, with everything welded to it."""

    body: int
    """MuJoCo's number of it."""
    parent: int
    """Index of the link it hangs from, -1 for the world."""
    pos: np.ndarray
    """(3,) of its frame in the parent's, all joints at `ref` [m]."""
    quat: np.ndarray
    """(4,) likewise, wxyz."""
    mass: float
    com: np.ndarray
    """(3,) in its frame [m]."""
    inertia: np.ndarray
    """(3, 3) about `com`, in its axes [kg m^2]."""
    joints: list[int]
    """MuJoCo's numbers of its joints."""


class Description:
    """What the engine takes from a MuJoCo model. Raises ValueError where the engine cannot simulate it."""

    def __init__(self, robot: Robot, model: mujoco.MjModel) -> None:
        self.robot, self.model = robot, model
        require_supported(robot, model)
        self._data = mujoco.MjData(model)
        mujoco.mj_kinematics(model, self._data)  # at qpos0: every joint at its ref
        self.links: list[Link] = []
        for body in range(1, model.nbody):
            if model.body_weldid[body] == body:
                self.links.append(self._link(body))

    # ------------------------------------------------------------------ what cannot be simulated

    def _fail(self, what: str, supported: str, fix: str) -> NoReturn:
        refuse(self.robot, f"it has {what}, and engine=newton knows {supported}", fix)

    # ------------------------------------------------------------------ links

    def _pose(self, body: int) -> tuple[np.ndarray, np.ndarray]:
        """Where a body is, all joints at ref: position (3,) and rotation (3, 3)."""
        return self._data.xpos[body], self._data.xmat[body].reshape(3, 3)

    def owner(self, body: int) -> int:
        """Index of the link a body is part of, -1 for the world."""
        top = self.model.body_weldid[body]
        return next((i for i, link in enumerate(self.links) if link.body == top), -1)

    def place(self, body: int, pos: np.ndarray, quat: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """A place in a body's frame, (3,) and wxyz (4,), in that of its link.

        Quaternions are multiplied, never made from a matrix: they keep the sign that MuJoCo gives them.
        """
        link = self.model.body_weldid[body]
        here, axes = self._pose(body)
        origin, link_axes = self._pose(link)
        return link_axes.T @ (here + axes @ pos - origin), self._turned(link, self._times(body, quat))

    def _times(self, body: int, quat: np.ndarray) -> np.ndarray:
        """A body's orientation and then `quat`, wxyz (4,)."""
        product = np.zeros(4)
        mujoco.mju_mulQuat(product, self._data.xquat[body], np.asarray(quat, dtype=float))
        return product

    def _turned(self, link: int, quat: np.ndarray) -> np.ndarray:
        """An orientation in the world, wxyz (4,), in a body's axes."""
        product = np.zeros(4)
        mujoco.mju_mulQuat(product, self._data.xquat[link] * [1, -1, -1, -1], quat)
        return product

    def _link(self, body: int) -> Link:
        model = self.model
        first = model.body_jntadr[body]
        joints = list(range(first, first + model.body_jntnum[body]))
        self._require_composable(body, joints)
        parent = self.model.body_parentid[body]
        top = self.model.body_weldid[parent]
        origin, axes = self._pose(top)
        pos, quat = axes.T @ (self._data.xpos[body] - origin), self._turned(top, self._data.xquat[body])
        parts = [b for b in range(1, model.nbody) if model.body_weldid[b] == body]
        mass = model.body_mass[parts].sum()
        places = [self.place(b, model.body_ipos[b], model.body_iquat[b]) for b in parts]
        com = sum(m * at for m, (at, _) in zip(model.body_mass[parts], places, strict=True)) / max(
            mass, 1e-12
        )
        inertia = np.zeros((3, 3))
        for b, (at, turn) in zip(parts, places, strict=True):
            axes, arm = _matrix(turn), at - com
            inertia += axes @ np.diag(model.body_inertia[b]) @ axes.T
            inertia += model.body_mass[b] * (arm @ arm * np.eye(3) - np.outer(arm, arm))
        return Link(body, self.owner(parent), pos, quat, float(mass), com, inertia, joints)

    def _require_composable(self, body: int, joints: list[int]) -> None:
        """Several joints of one body must be one of Newton's: slides, then up to three hinges at right angles."""
        model = self.model
        types = [JOINT(int(model.jnt_type[j])) for j in joints]
        hinges = [j for j in joints if model.jnt_type[j] == JOINT.mjJNT_HINGE]
        axes = model.jnt_axis[joints]
        where = f"body {model.body(body).name}"
        fix = "give its joints a body each"
        if JOINT.mjJNT_FREE in types:
            if len(joints) > 1 or body != model.body_rootid[body]:
                self._fail(f"{where} with a free joint", "one free joint at the root", fix)
            return
        if types != sorted(types, key=int):  # MuJoCo numbers slides before hinges
            self._fail(f"{where} with a slide after a hinge", "slides before hinges", fix)
        for kind in (JOINT.mjJNT_SLIDE, JOINT.mjJNT_HINGE):
            ours = axes[[one == kind for one in types]]
            if len(ours) > 3 or (len(ours) > 1 and np.abs(ours @ ours.T - np.eye(len(ours))).max() > 1e-6):
                self._fail(f"{where} with joints askew to each other", "up to three at right angles", fix)
        if len(hinges) > 1 and np.ptp(model.jnt_pos[hinges], axis=0).max() > 1e-9:
            self._fail(f"{where} with hinges through different points", "hinges through one point", fix)

    # ------------------------------------------------------------------ tables for the kernels

    def joints(self) -> kernels.Joints:
        """The robot's hinges and slides, in its order; on the current Warp device."""
        model, robot = self.model, self.robot
        rows: dict[str, list[float]] = {name: [] for name in _fields(kernels.Joints)}
        actuators = {actuator.joint: i for i, actuator in enumerate(robot.actuators)}
        for name in robot.joints:
            j = model.joint(name).id
            dof, qpos = model.jnt_dofadr[j], model.jnt_qposadr[j]
            lower, upper = model.jnt_range[j] if model.jnt_limited[j] else (-1e9, 1e9)
            stiffness, damping = self._stop(j) if model.jnt_limited[j] else (0.0, 0.0)
            a = actuators.get(name, -1)
            motor = robot.actuators[a]
            values = {
                "qpos": qpos, "dof": dof, "ref": model.qpos0[qpos], "target": a,
                "kp": motor.kp if a >= 0 else 0, "kd": motor.kd if a >= 0 else 0,
                "direct": float(a >= 0 and motor.kind == "force"), "effort": motor.effort if a >= 0 else 0,
                "damping": model.dof_damping[dof], "stiffness": model.jnt_stiffness[j],
                "rest": model.qpos_spring[qpos], "lower": lower, "upper": upper,
                "limit": stiffness, "limit_damping": damping,
            }  # fmt: skip
            for key, value in values.items():
                rows[key].append(value)
        return _struct(kernels.Joints, rows)

    def _stop(self, joint: int) -> tuple[float, float]:
        """Stiffness and damping factor of a joint's stops, from MuJoCo's solref and solimp."""
        model = self.model
        time, ratio = model.jnt_solref[joint]
        weight = model.dof_invweight0[model.jnt_dofadr[joint]]
        if time <= 0:  # stiffness and damping themselves
            return float(-time / weight), float(ratio / min(time, -1e-9) / STOP_DEPTH)
        time = max(time, 2 * model.opt.timestep)
        wide = model.jnt_solimp[joint, 1]
        stiffness, damping = 1 / (wide * time * max(ratio, 1e-3)) ** 2, 2 / (wide * time)
        return float(stiffness / weight), float(damping / stiffness / STOP_DEPTH)

    def points(self, stiffness: float, damping: float, speed: float) -> kernels.Points:
        """Where the robot can touch the floor: spheres, both ends of capsules, the corners of boxes."""
        model = self.model
        feet = [model.body(foot).id for foot in self.robot.feet]
        rows: dict[str, list[Any]] = {"link": [], "foot": [], "center": [], "radius": []}
        planes = [int(i) for i in np.flatnonzero(model.geom_type == GEOM.mjGEOM_PLANE)]
        for floor in planes:
            normal = _matrix(model.geom_quat[floor])[:, 2]
            level = model.geom_bodyid[floor] == 0 and abs(model.geom_pos[floor, 2]) < 1e-9
            if self._collides(floor) and not (level and normal[2] > 1 - 1e-9):
                self._fail(f"plane {model.geom(floor).name}", "one level floor at z = 0", "remove it")
        for geom in range(model.ngeom):
            body = model.geom_bodyid[geom]
            owner = self.owner(body)
            touches = any(self._meet(geom, floor) for floor in planes)
            if owner < 0:
                if self._collides(geom) and geom not in planes:
                    self._fail(f"{self._name(geom)}, an obstacle", "one level floor", "set its contype to 0")
                continue
            if not touches:
                continue
            ends = self._spheres(geom)
            if model.geom_condim[geom] > 3:
                self._fail(f"condim of {self._name(geom)}", "sliding friction (3)", "set its condim to 3")
            for center, radius in ends:
                at, _ = self.place(body, center, np.array([1.0, 0, 0, 0]))
                rows["link"].append(owner)
                rows["foot"].append(feet.index(body) if body in feet else -1)
                rows["center"].append(at)
                rows["radius"].append(radius)
        rows["grip"] = self._grip(rows["link"], rows["center"], stiffness)
        points = _struct(kernels.Points, rows)
        points.stiffness, points.damping, points.speed = stiffness, damping, speed
        return points

    def _grip(self, links: list[int], centers: list[np.ndarray], stiffness: float) -> list[float]:
        """The viscous damping [N s/m] that each point bears: 1 / (step x the largest inverse inertia along the ground
        of all points of its link together), all joints at ref, with a margin for other poses.

        Raises ValueError for a ground so stiff that a step could not follow it.
        """
        model, data, step = self.model, self._data, self.model.opt.timestep
        mujoco.mj_forward(model, data)
        inertia = np.zeros((model.nv, model.nv))
        mujoco.mj_fullM(model, data, inertia)
        grips = {}
        for link in set(links):
            body = self.links[link].body
            at, axes = self._pose(body)
            ours = [center for one, center in zip(links, centers, strict=True) if one == link]
            moved = np.zeros((len(ours), 3, model.nv))
            for i, center in enumerate(ours):
                mujoco.mj_jac(model, data, moved[i], None, at + axes @ center, body)
            down, along = moved[:, 2], moved[:, :2].reshape(-1, model.nv)
            lightest = [
                np.linalg.eigvalsh(rows @ np.linalg.solve(inertia, rows.T))[-1] for rows in (down, along)
            ]
            most = 2 / (lightest[0] * step**2)  # half of where even an undamped spring explodes
            if stiffness > most:
                self._fail(
                    f"contact_stiffness {stiffness:g} under {model.body(body).name}",
                    f"at most {most:.3g} N/m there with a timestep of {step:g} s",
                    "lower it or the timestep in robot.yaml",
                )
            grips[link] = float(MARGIN / (step * lightest[1]))
        return [grips[link] for link in links]

    def _name(self, geom: int) -> str:
        name = self.model.geom(geom).name
        return f"geom {name}" if name else f"a geom of {self.model.body(self.model.geom_bodyid[geom]).name}"

    def _collides(self, geom: int) -> bool:
        return bool(self.model.geom_contype[geom] | self.model.geom_conaffinity[geom])

    def _meet(self, a: int, b: int) -> bool:
        types, affinities = self.model.geom_contype, self.model.geom_conaffinity
        return bool((types[a] & affinities[b]) | (types[b] & affinities[a]))

    def _spheres(self, geom: int) -> list[tuple[np.ndarray, float]]:
        """The spheres, (3,) in the body's frame and a radius, by which a geom touches a plane."""
        model = self.model
        pos, turn, size = model.geom_pos[geom], _matrix(model.geom_quat[geom]), model.geom_size[geom]
        kind = GEOM(int(model.geom_type[geom]))
        if kind not in (GEOM.mjGEOM_SPHERE, GEOM.mjGEOM_CAPSULE, GEOM.mjGEOM_BOX):
            what = kind.name.removeprefix("mjGEOM_").lower()
            self._fail(
                f"{self._name(geom)}, a {what} that touches the floor",
                "spheres, capsules and boxes for that",
                "replace it, or set its contype and conaffinity to 0",
            )
        if kind == GEOM.mjGEOM_SPHERE:
            return [(pos, float(size[0]))]
        if kind == GEOM.mjGEOM_CAPSULE:
            return [(pos + side * size[1] * turn[:, 2], float(size[0])) for side in (1, -1)]
        signs = np.array([[x, y, z] for x in (-1, 1) for y in (-1, 1) for z in (-1, 1)])
        return [(pos + turn @ (sign * size), 0.0) for sign in signs]

    def places(self) -> kernels.Places:
        """Base, bodies and soles."""
        model, robot = self.model, self.robot
        rows: dict[str, list[Any]] = {"body": [], "body_at": [], "foot": [], "foot_at": [], "foot_turn": []}
        for name in robot.bodies:
            body = model.body(name).id
            at, _ = self.place(body, np.zeros(3), np.array([1.0, 0, 0, 0]))
            rows["body"].append(self.owner(body))
            rows["body_at"].append(at)
        for name in robot.feet:
            site = model.site(name)
            body = int(site.bodyid[0])
            if self.owner(body) < 0:
                self._fail(f"foot {name}, which no joint moves,", "feet that move", "remove it from feet")
            at, quat = self.place(body, site.pos, site.quat)
            rows["foot"].append(self.owner(body))
            rows["foot_at"].append(at)
            rows["foot_turn"].append(quat[[1, 2, 3, 0]])
        places = _struct(kernels.Places, rows)
        places.base = int(robot.base is not None)
        places.com = wp.vec3(*self.links[0].com)
        return places


def _matrix(quat: np.ndarray) -> np.ndarray:
    """Rotation (3, 3) of a quaternion wxyz."""
    flat = np.zeros(9)
    mujoco.mju_quat2Mat(flat, np.asarray(quat, dtype=float))
    return flat.reshape(3, 3)


def _fields(kind: Any) -> dict[str, Any]:
    """The fields of a Warp struct by name."""
    return {name: field.type for name, field in kind.vars.items()}


def _struct(kind: Any, rows: dict[str, list[Any]]) -> Any:
    """A Warp struct with these lists as its arrays, on the current device."""
    made = kind()
    for name, values in rows.items():
        dtype = _fields(kind)[name].dtype
        shape = (len(values), *getattr(dtype, "_shape_", ()))
        made_of = np.int32 if dtype is int else np.float32
        array = np.array(values, dtype=made_of).reshape(shape)
        setattr(made, name, wp.array(array, dtype=dtype))
    return made
