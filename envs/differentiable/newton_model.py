"""Links, joints, contact points and reported frames of the Newton engine, from a compiled MuJoCo model.

All numbers come from MuJoCo's model. Newton's MJCF importer is not used: it drops a joint's `ref` and does not read
robot.yaml's actuators and feet.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NoReturn

import mujoco
import numpy as np
import warp as wp

from robolearn.envs import mjcf
from robolearn.envs.differentiable import newton_kernels as kernels
from robolearn.envs.differentiable.engine import Layout
from robolearn.envs.differentiable.supported import raise_unsupported, require_supported, surroundings
from robolearn.envs.robot import Robot
from robolearn.envs.scene import Scene

GEOM, JOINT = mujoco.mjtGeom, mujoco.mjtJoint

STOP_DEPTH = 0.02
"""Penetration [rad or m] at which a stop's damping, which is proportional to the depth, equals MuJoCo's."""
SINK = 0.007
"""Penetration of one point under the robot's weight [m], which sets the default stiffness of the ground."""
MARGIN = 0.7
"""Share of the largest stable explicit damping that friction uses."""


@dataclass
class Link:
    """A body with joints, and all bodies welded to it."""

    body: int
    """MuJoCo's body id."""
    parent: int
    """Index of the parent link, -1 for the world."""
    pos: np.ndarray
    """(3,) position of its frame in the parent's frame, all joints at `ref` [m]."""
    quat: np.ndarray
    """(4,) orientation of its frame in the parent's frame, wxyz, all joints at `ref`."""
    mass: float
    com: np.ndarray
    """(3,) in its frame [m]."""
    inertia: np.ndarray
    """(3, 3) about `com`, in its axes [kg m^2]."""
    joints: list[int]
    """MuJoCo's joint ids."""


class Description:
    """The part of a MuJoCo model that the engine uses. Raises ConfigError for an unsupported feature."""

    def __init__(self, scene: Scene | Robot, model: mujoco.MjModel) -> None:
        self.scene, self.model = Scene.of(scene), model
        self.robot = self.scene.robot
        require_supported(self.robot, model)
        self._data = mujoco.MjData(model)
        mujoco.mj_kinematics(model, self._data)  # at qpos0: all joints at ref
        self.links: list[Link] = []
        for body in range(1, model.nbody):
            if model.body_weldid[body] == body:
                self.links.append(self._link(body))

    # ------------------------------------------------------------------ errors

    def _fail(self, what: str, supported: str, fix: str) -> NoReturn:
        raise_unsupported(self.robot, f"it has {what}, and engine=newton supports {supported}", fix)

    # ------------------------------------------------------------------ links

    def _pose(self, body: int) -> tuple[np.ndarray, np.ndarray]:
        """World pose of a body, all joints at ref: position (3,) and rotation (3, 3)."""
        return self._data.xpos[body], self._data.xmat[body].reshape(3, 3)

    def link_index(self, body: int) -> int:
        """Index of the link that a body belongs to, -1 for the world."""
        top = self.model.body_weldid[body]
        return next((i for i, link in enumerate(self.links) if link.body == top), -1)

    def in_link_frame(self, body: int, pos: np.ndarray, quat: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Transform a pose, (3,) and wxyz (4,), from a body's frame to that of its link.

        Quaternions are multiplied, not converted from a matrix, to keep MuJoCo's sign.
        """
        link = self.model.body_weldid[body]
        here, axes = self._pose(body)
        origin, link_axes = self._pose(link)
        return link_axes.T @ (here + axes @ pos - origin), self._in_body_axes(
            link, self._world_quat(body, quat)
        )

    def _world_quat(self, body: int, quat: np.ndarray) -> np.ndarray:
        """World orientation, wxyz (4,), of `quat` in a body's axes."""
        product = np.zeros(4)
        mujoco.mju_mulQuat(product, self._data.xquat[body], np.asarray(quat, dtype=float))
        return product

    def _in_body_axes(self, link: int, quat: np.ndarray) -> np.ndarray:
        """A world orientation, wxyz (4,), in the axes of the body `link`."""
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
        pos, quat = axes.T @ (self._data.xpos[body] - origin), self._in_body_axes(top, self._data.xquat[body])
        parts = [b for b in range(1, model.nbody) if model.body_weldid[b] == body]
        mass = model.body_mass[parts].sum()
        poses = [self.in_link_frame(b, model.body_ipos[b], model.body_iquat[b]) for b in parts]
        com = sum(m * at for m, (at, _) in zip(model.body_mass[parts], poses, strict=True)) / max(mass, 1e-12)
        inertia = np.zeros((3, 3))
        for b, (at, orientation) in zip(parts, poses, strict=True):
            axes, arm = _matrix(orientation), at - com
            inertia += axes @ np.diag(model.body_inertia[b]) @ axes.T
            inertia += model.body_mass[b] * (arm @ arm * np.eye(3) - np.outer(arm, arm))
        return Link(body, self.link_index(parent), pos, quat, float(mass), com, inertia, joints)

    def _require_composable(self, body: int, joints: list[int]) -> None:
        """Check that one joint of Newton can replace the joints of a body: slides, then hinges, at right angles."""
        model = self.model
        types = [JOINT(int(model.jnt_type[j])) for j in joints]
        hinges = [j for j in joints if model.jnt_type[j] == JOINT.mjJNT_HINGE]
        axes = model.jnt_axis[joints]
        where = f"body {model.body(body).name}"
        fix = "give each joint a separate body"
        if JOINT.mjJNT_FREE in types:
            if len(joints) > 1 or body != model.body_rootid[body]:
                self._fail(f"{where} with a free joint", "one free joint at the root", fix)
            return
        if types != sorted(types, key=int):  # MuJoCo numbers slides before hinges
            self._fail(f"{where} with a slide after a hinge", "slides before hinges", fix)
        for kind in (JOINT.mjJNT_SLIDE, JOINT.mjJNT_HINGE):
            same = axes[[one == kind for one in types]]
            if len(same) > 3 or (len(same) > 1 and np.abs(same @ same.T - np.eye(len(same))).max() > 1e-6):
                self._fail(f"{where} with joints that are not orthogonal", "up to three at right angles", fix)
        if len(hinges) > 1 and np.ptp(model.jnt_pos[hinges], axis=0).max() > 1e-9:
            self._fail(f"{where} with hinges through different points", "hinges through one point", fix)

    # ------------------------------------------------------------------ tables for the kernels

    def joints(self) -> kernels.Joints:
        """The robot's hinges and slides in the robot's order, on the current Warp device."""
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
        if time <= 0:  # solref holds -stiffness and -damping
            return float(-time / weight), float(ratio / min(time, -1e-9) / STOP_DEPTH)
        time = max(time, 2 * model.opt.timestep)
        wide = model.jnt_solimp[joint, 1]
        stiffness, damping = 1 / (wide * time * max(ratio, 1e-3)) ** 2, 2 / (wide * time)
        return float(stiffness / weight), float(damping / stiffness / STOP_DEPTH)

    def points(self, stiffness: float, damping: float, speed: float) -> kernels.Points:
        """Contact points of the robot: spheres, both ends of capsules, the corners of boxes.

        Arguments are stiffness [N/m], damping [s/m] and sliding speed [m/s] of the ground (see `compliance`).

        Raises:
            ConfigError: names an unsupported geom, obstacle or stiffness, and the fix.
        """
        model = self.model
        feet = [model.body(foot).id for foot in self.robot.feet]
        rows: dict[str, list[Any]] = {"link": [], "body": [], "foot": [], "center": [], "radius": []}
        beside = surroundings(model)
        planes = [int(i) for i in np.flatnonzero(model.geom_type == GEOM.mjGEOM_PLANE)]
        for floor in planes:
            normal = _matrix(model.geom_quat[floor])[:, 2]
            level = model.geom_bodyid[floor] == 0 and abs(model.geom_pos[floor, 2]) < 1e-9
            if self._collides(floor) and not (level and normal[2] > 1 - 1e-9):
                self._fail(f"plane {model.geom(floor).name}", "one level floor at z = 0", "remove it")
        for geom in range(model.ngeom):
            body = model.geom_bodyid[geom]
            link = self.link_index(body)
            touches = any(self._can_collide(geom, floor) for floor in planes)
            if link < 0:
                if self._collides(geom) and beside[geom] and geom not in planes:
                    self._fail(f"{self._name(geom)}, an obstacle", "one level floor", "set its contype to 0")
                continue
            if not touches:
                continue
            ends = self._spheres(geom)
            if model.geom_condim[geom] > 3:
                self._fail(f"condim of {self._name(geom)}", "sliding friction (3)", "set its condim to 3")
            for center, radius in ends:
                at, _ = self.in_link_frame(body, center, np.array([1.0, 0, 0, 0]))
                rows["link"].append(link)
                rows["body"].append(body)
                rows["foot"].append(feet.index(body) if body in feet else -1)
                rows["center"].append(at)
                rows["radius"].append(radius)
        rows["grip"] = self._friction_damping(rows["link"], rows["center"], stiffness)
        points = _struct(kernels.Points, rows)
        points.stiffness, points.damping, points.speed = stiffness, damping, speed
        return points

    def _friction_damping(self, links: list[int], centers: list[np.ndarray], stiffness: float) -> list[float]:
        """Largest stable viscous damping [N s/m] of each point, all joints at ref, with a margin for other positions.

        It is 1 / (step x the largest inverse inertia along the ground of all points of the link together).

        Raises:
            ConfigError: the ground is too stiff for the timestep.
        """
        model, data, step = self.model, self._data, self.model.opt.timestep
        mujoco.mj_forward(model, data)
        inertia = np.zeros((model.nv, model.nv))
        mujoco.mj_fullM(model, data, inertia)
        damping = {}
        for link in set(links):
            body = self.links[link].body
            at, axes = self._pose(body)
            points = [center for one, center in zip(links, centers, strict=True) if one == link]
            jacobian = np.zeros((len(points), 3, model.nv))
            for i, center in enumerate(points):
                mujoco.mj_jac(model, data, jacobian[i], None, at + axes @ center, body)
            normal, tangential = jacobian[:, 2], jacobian[:, :2].reshape(-1, model.nv)
            inverse_inertia = [
                np.linalg.eigvalsh(rows @ np.linalg.solve(inertia, rows.T))[-1]
                for rows in (normal, tangential)
            ]
            largest = 2 / (inverse_inertia[0] * step**2)  # half the stability limit of an undamped spring
            if stiffness > largest:
                self._fail(
                    f"contact_stiffness {stiffness:g} under {model.body(body).name}",
                    f"at most {largest:.3g} N/m there with a timestep of {step:g} s",
                    "lower it or the timestep in robot.yaml",
                )
            damping[link] = float(MARGIN / (step * inverse_inertia[1]))
        return [damping[link] for link in links]

    def _name(self, geom: int) -> str:
        name = self.model.geom(geom).name
        return f"geom {name}" if name else f"a geom of {self.model.body(self.model.geom_bodyid[geom]).name}"

    def _collides(self, geom: int) -> bool:
        return bool(self.model.geom_contype[geom] | self.model.geom_conaffinity[geom])

    def _can_collide(self, a: int, b: int) -> bool:
        types, affinities = self.model.geom_contype, self.model.geom_conaffinity
        return bool((types[a] & affinities[b]) | (types[b] & affinities[a]))

    def _spheres(self, geom: int) -> list[tuple[np.ndarray, float]]:
        """The spheres with which a geom touches a plane: centre (3,) in the body's frame, and radius."""
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
        """The base, bodies and soles that State reports."""
        model, robot = self.model, self.robot
        rows: dict[str, list[Any]] = {"body": [], "body_at": [], "foot": [], "foot_at": [], "foot_turn": []}
        for name in robot.bodies:
            body = model.body(name).id
            at, _ = self.in_link_frame(body, np.zeros(3), np.array([1.0, 0, 0, 0]))
            rows["body"].append(self.link_index(body))
            rows["body_at"].append(at)
        for name in robot.feet:
            site = model.site(name)
            body = int(site.bodyid[0])
            if self.link_index(body) < 0:
                self._fail(f"foot {name}, which no joint moves,", "feet that move", "remove it from feet")
            at, quat = self.in_link_frame(body, site.pos, site.quat)
            rows["foot"].append(self.link_index(body))
            rows["foot_at"].append(at)
            rows["foot_turn"].append(quat[[1, 2, 3, 0]])
        places = _struct(kernels.Places, rows)
        places.base = int(robot.base is not None)
        places.com = wp.vec3(*self.links[0].com)
        return places

    def asked(self) -> kernels.Asked:
        """The frames and contacts that the scene asks for, which come last in `seen`."""
        model, scene = self.model, self.scene
        rows: dict[str, list[Any]] = {"link": [], "at": [], "turn": [], "touched": []}
        for name in scene.frames.get(scene.first, ()):
            site = mujoco.mj_name2id(model, mujoco.mjtObj.mjOBJ_SITE, name)
            if site < 0:
                body, pos, quat = model.body(name).id, np.zeros(3), np.array([1.0, 0, 0, 0])
            else:
                body, pos, quat = int(model.site_bodyid[site]), model.site_pos[site], model.site_quat[site]
            at, turn = self.in_link_frame(body, pos, quat)
            rows["link"].append(self.link_index(body))
            rows["at"].append(at)
            rows["turn"].append(turn[[1, 2, 3, 0]])
        for contact in scene.contacts.get(scene.first, {}).values():
            rows["touched"] += [model.body(n).id for n in mjcf.contact_bodies(scene, scene.first, contact)]
        asked = _struct(kernels.Asked, rows)
        asked.first = Layout(self.robot).seen
        return asked


def _matrix(quat: np.ndarray) -> np.ndarray:
    """Rotation (3, 3) of a quaternion wxyz."""
    flat = np.zeros(9)
    mujoco.mju_quat2Mat(flat, np.asarray(quat, dtype=float))
    return flat.reshape(3, 3)


def _fields(kind: Any) -> dict[str, Any]:
    """The fields of a Warp struct by name."""
    return {name: field.type for name, field in kind.vars.items()}


def _struct(kind: Any, rows: dict[str, list[Any]]) -> Any:
    """A Warp struct whose arrays hold these lists, on the current device."""
    result = kind()
    for name, values in rows.items():
        dtype = _fields(kind)[name].dtype
        shape = (len(values), *getattr(dtype, "_shape_", ()))
        scalar = np.int32 if dtype is int else np.float32
        array = np.array(values, dtype=scalar).reshape(shape)
        setattr(result, name, wp.array(array, dtype=dtype))
    return result
