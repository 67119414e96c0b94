"""The light collision set of a robot on legs: what a walk touches, and nothing else.

Feet touch the ground, legs touch other legs, hands touch legs and each other; all else passes through. Where a leg has
a mesh for that, a capsule around the mesh stands for it. Of a simulation step's time contacts take a large part, and
most pairs of a robot's shapes never meet while it walks.

It is told to the simulator in bits: a pair of limbs that collide shares one, which the one has in `contype` and the
other in `conaffinity`. So no list of pairs is needed, which some simulators do not read.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import combinations
from typing import Any

import mujoco
import numpy as np

from robolearn.envs import model_file
from robolearn.envs.robot import Robot
from robolearn.envs.shapes import lowest_points

FLOOR = 1
"""The bit of the ground."""
BITS = 31
CORNERS = 4
HIDDEN = 3
"""A group of geoms that is not drawn."""
HAND = 0.05
"""Largest share of the robot's mass that is a hand: where limbs meet in more, as arms do in a trunk, they are no
fingers."""
ROUND = 0.06
"""Least radius of a sphere under a sole on a terrain, as a share of the base's height.

MuJoCo's height fields are made of prisms. A sphere that is pressed into one also touches the edges of those beside it,
which push it aside, the more the smaller it is. On level ground with samples 0.1 m apart, a humanoid whose spheres have
half of this radius fell in 12 % of 128 walks of 13 s; with this one in none, as on a plane.
"""
PATCH = 0.02
"""What is at most so far above the centre of the sole touches the ground [m], of capsules and spheres."""
FLAT = 0.001
"""What is at most so far above the lowest point of a foot does, of other shapes [m]: a box that spheres at its corners
carry does not."""


def limbs(robot: Robot) -> tuple[str, ...]:
    """The last two bodies of each leg, and the hands, that collide with anything: who touches the robot itself while it
    walks."""
    spec = model_file.read(robot.mjcf).spec
    groups = [*(_leg(spec, foot) for foot in robot.feet), *_hands(spec, robot)]
    colliding = [[body.name for body in bodies if _colliding([body])][:2] for bodies in groups]
    return tuple(name for names in colliding for name in names)


def lighten(spec: mujoco.MjSpec, robot: Robot, terrain: bool = False) -> None:
    """Give a robot's bodies the light collision set; one without feet or a free base keeps its own. On a `terrain`
    spheres of its soles are larger, see `ROUND`."""
    if robot.base is None or not robot.feet:
        return
    legs = [_leg(spec, foot) for foot in robot.feet]
    groups = [_colliding(bodies) for bodies in (*legs, *_hands(spec, robot))]
    soles = {foot: _soles(spec, robot, foot) for foot in robot.feet}
    groups = [[g if g.parent.name in robot.feet else _capsule(g) for g in group] for group in groups]
    for geom in spec.geoms:
        geom.contype = geom.conaffinity = 0
    for foot, touching in soles.items():
        for geom in touching:
            geom.conaffinity = FLOOR
            if terrain and geom.type == mujoco.mjtGeom.mjGEOM_SPHERE:
                _round(spec, foot, geom, ROUND * robot.home_height)
    bit = FLOOR
    for one, other in combinations(groups, 2):
        if bit == 1 << (BITS - 1):
            break
        if one and other:
            bit <<= 1
            for geom in one:
                geom.contype |= bit
            for geom in other:
                geom.conaffinity |= bit


def _capsule(geom: mujoco.MjsGeom) -> mujoco.MjsGeom:
    """A capsule around a geom that is a mesh, beside it; another geom itself. The mesh still gives its body its mass,
    where the file states none, and its looks."""
    if geom.type != mujoco.mjtGeom.mjGEOM_MESH:
        return geom
    fitted = {"type": mujoco.mjtGeom.mjGEOM_CAPSULE, "meshname": geom.meshname}
    return _added(geom.parent, geom, **fitted, pos=geom.pos, quat=geom.quat, group=HIDDEN)


def _soles(spec: mujoco.MjSpec, robot: Robot, foot: str) -> Sequence[mujoco.MjsGeom]:
    """What of a foot touches the ground: its geoms as low as its sole. Where they have many round ends, as capsules and
    spheres do, four spheres at the corners of these stand for them: a few points carry a sole as well as many, at a
    share of the cost."""
    site = spec.site(foot)
    upright = np.zeros(9)
    mujoco.mju_quat2Mat(upright, np.array(site.quat, dtype=float))
    forward, left, up = upright.reshape(3, 3).T
    depths = _depths(spec, robot, foot, upright.reshape(3, 3).T)
    deep = [(geom, d) for geom, d in zip(spec.body(foot).geoms, depths, strict=True) if _collides(geom)]
    low, others, ends = [], [], []
    for geom, depth in deep:
        if geom.type not in (mujoco.mjtGeom.mjGEOM_SPHERE, mujoco.mjtGeom.mjGEOM_CAPSULE):
            others += [geom] if depth <= min(d for _, d in deep) + FLAT else []
            continue
        radius = float(geom.size[0])
        touching = [end for end in _ends_of(geom) if up @ (end - site.pos) - radius <= PATCH]
        ends += [(end, radius, geom) for end in touching]
        low += [geom] if touching else []
    if len(ends) <= CORNERS:
        return [*low, *others] or [geom for geom, _ in deep]
    places = np.array([place for place, _, _ in ends]) @ np.stack((forward, left), axis=1)
    span = np.maximum(np.ptp(places, axis=0), 1e-6)
    corners = dict.fromkeys(
        int(np.argmax((places / span) @ [ahead, aside])) for ahead in (1.0, -1.0) for aside in (1.0, -1.0)
    )
    return [*(_sphere(spec.body(foot), *ends[i]) for i in corners), *others]


def _depths(spec: mujoco.MjSpec, robot: Robot, foot: str, axes: np.ndarray) -> list[float]:
    """Height of the lowest point of each geom of a foot in axes (3, 3), by rows and in the frame of its body, of which
    the last points up [m]."""
    model = model_file.read(robot.mjcf).model
    data, turned = mujoco.MjData(model), np.zeros(9)
    first, out = int(model.body(foot).geomadr[0]), []
    for geom in range(first, first + len(spec.body(foot).geoms)):
        mujoco.mju_quat2Mat(turned, model.geom_quat[geom])
        data.geom_xpos[geom] = axes @ model.geom_pos[geom]
        data.geom_xmat[geom] = (axes @ turned.reshape(3, 3)).flatten()
        out.append(float(lowest_points(model, data, geom)[:, 2].min()))
    return out


def _round(spec: mujoco.MjSpec, foot: str, geom: mujoco.MjsGeom, radius: float) -> None:
    """Let a larger sphere with the same lowest point touch the ground instead of a smaller one of a sole."""
    small = float(geom.size[0])
    if small >= radius:
        return
    up = np.zeros(3)
    mujoco.mju_rotVecQuat(up, np.array([0.0, 0.0, 1.0]), np.array(spec.site(foot).quat, dtype=float))
    geom.conaffinity = 0
    larger = _sphere(spec.body(foot), np.array(geom.pos) + (radius - small) * up, radius, geom)
    larger.conaffinity = FLOOR


def _sphere(body: mujoco.MjsBody, place: np.ndarray, radius: float, like: mujoco.MjsGeom) -> mujoco.MjsGeom:
    """A sphere with the contact properties of another geom."""
    return _added(
        body, like, type=mujoco.mjtGeom.mjGEOM_SPHERE, size=[radius, 0, 0], pos=place, group=like.group
    )


def _added(body: mujoco.MjsBody, like: mujoco.MjsGeom, **shape: Any) -> mujoco.MjsGeom:
    """A geom without mass that touches nothing yet, with the contact properties of another one."""
    return body.add_geom(
        mass=0, contype=0, condim=like.condim, friction=like.friction, priority=like.priority, solref=like.solref,
        solimp=like.solimp, solmix=like.solmix, margin=like.margin, gap=like.gap, **shape,
    )  # fmt: skip


def _ends_of(geom: mujoco.MjsGeom) -> list[np.ndarray]:
    """The centres of the round ends of a capsule, or of a sphere, in the frame of its body."""
    if geom.type == mujoco.mjtGeom.mjGEOM_SPHERE:
        return [np.array(geom.pos)]
    if np.isfinite(geom.fromto).all():
        return [np.array(geom.fromto[:3]), np.array(geom.fromto[3:])]
    turned = np.zeros(3)
    mujoco.mju_rotVecQuat(turned, np.array([0.0, 0.0, float(geom.size[1])]), np.array(geom.quat))
    return [np.array(geom.pos) + turned, np.array(geom.pos) - turned]


def _leg(spec: mujoco.MjSpec, foot: str) -> list[mujoco.MjsBody]:
    """The bodies from a foot up to the last one that is part of this leg alone."""
    chain, body = [], spec.body(foot)
    while body.name != "world" and not any(j.type == mujoco.mjtJoint.mjJNT_FREE for j in body.joints):
        chain.append(body)
        body = body.parent
        if sum(_moves(child) for child in body.bodies) > 1:
            break
    return chain


def _moves(body: mujoco.MjsBody) -> bool:
    return bool(list(body.joints)) or any(_moves(child) for child in body.bodies)


def _hands(spec: mujoco.MjSpec, robot: Robot) -> list[list[mujoco.MjsBody]]:
    """The last moving body of each limb that is not a leg, with what is fixed to it; with fingers, the body that has
    them and all of them: the highest one where limbs meet that is light and carries no leg."""
    legs = {body.name for foot in robot.feet for body in _leg(spec, foot)}
    model = model_file.read(robot.mjcf).model
    heaviest = HAND * float(model.body_subtreemass[0])
    found: dict[str, list[mujoco.MjsBody]] = {}
    for name in robot.bodies:
        body = spec.body(name)
        while body.name != "world" and not list(body.joints):
            body = body.parent
        free = any(joint.type == mujoco.mjtJoint.mjJNT_FREE for joint in body.joints)
        if body.name in (*legs, "world") or free or any(map(_moves, body.bodies)):
            continue
        hand, above = body, body.parent
        while above.name != "world" and model.body_subtreemass[model.body(above.name).id] <= heaviest:
            if legs & {above.name, *(part.name for part in above.find_all("body"))}:
                break
            if sum(map(_moves, above.bodies)) > 1:
                hand = above
            above = above.parent
        found[hand.name] = [hand, *hand.find_all("body")]
    return list(found.values())


def _colliding(bodies: Iterable[mujoco.MjsBody]) -> Sequence[mujoco.MjsGeom]:
    """The geoms of these bodies that collide with anything."""
    return [geom for body in bodies for geom in body.geoms if _collides(geom)]


def _collides(geom: mujoco.MjsGeom) -> bool:
    return bool(geom.contype or geom.conaffinity)
