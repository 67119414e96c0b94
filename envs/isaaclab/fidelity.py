"""Checks that the conversion to USD kept the robot: compares our MuJoCo model with the one that Newton made."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import mujoco
import numpy as np

from robolearn.envs.contacts import colliding_pairs

TOLERANCE = 1e-5
"""Absolute up to 1 and relative above it: the values went through float32 and degrees."""

_SMALL = 1e-6
"""Fields without a natural scale of 1, such as masses, are compared relative to their values down to this one."""

_BODIES = ("body_mass", "body_ipos", "body_pos", "body_gravcomp")
_DOFS = ("dof_damping", "dof_dampingpoly", "dof_armature", "dof_frictionloss")
_JOINTS = (
    "jnt_axis",
    "jnt_pos",
    "jnt_stiffness",
    "jnt_stiffnesspoly",
    "jnt_solref",
    "jnt_solimp",
    "jnt_margin",
    "jnt_actgravcomp",
)
_POSITIONS = ("qpos0", "qpos_spring")
_GEOMS = (
    "geom_friction",
    "geom_solref",
    "geom_solimp",
    "geom_condim",
    "geom_margin",
    "geom_gap",
    "geom_priority",
    "geom_solmix",
)
_RELATIVE = ("body_mass", "dof_damping", "dof_armature", "dof_frictionloss", "jnt_stiffness")

_OPTIONS = (
    "gravity",
    "wind",
    "density",
    "viscosity",
    "integrator",
    "cone",
    "solver",
    "impratio",
    "tolerance",
    "ls_tolerance",
    "iterations",
    "ls_iterations",
    "ccd_iterations",
    "noslip_iterations",
)
_HARMLESS = (
    "MULTICCD",
    "NATIVECCD",
    "MIDPHASE",
    "ISLAND",
    "SENSOR",
    "AUTORESET",
    "ENERGY",
    "FWDINV",
    "SLEEP",
    "INVDISCRETE",
)
"""Flags that change how MuJoCo computes, or outputs that are not used here, but not the physics."""

_PLANE, _SPHERE, _CAPSULE, _ELLIPSOID, _CYLINDER, _MESH = (
    int(getattr(mujoco.mjtGeom, f"mjGEOM_{name}"))
    for name in ("PLANE", "SPHERE", "CAPSULE", "ELLIPSOID", "CYLINDER", "MESH")
)


def _directions() -> np.ndarray:
    """(40, 3) unit vectors all around (a Fibonacci sphere), none an axis or the mirror image of another."""
    index = np.arange(40) + 0.5
    height, angle = 1.0 - index / 20.0, index * 2.399963
    return np.stack(
        [np.sqrt(1 - height**2) * np.cos(angle), np.sqrt(1 - height**2) * np.sin(angle), height], axis=1
    )


_DIRECTIONS = _directions()


class Match:
    """Maps ids of bodies, joints and degrees of freedom from our model to Newton's, which has other names."""

    def __init__(self, ours: mujoco.MjModel, theirs: mujoco.MjModel, bodies: Sequence[str]) -> None:
        """`bodies` are the names in our model of the bodies of `theirs`, in its order, the world first.

        The joints of a body are expected in the same order in both; `differences` reports them otherwise.

        Raises:
            ValueError: the bodies differ, or the number or types of the joints of a body.
        """
        named = [ours.body(i).name for i in range(1, ours.nbody)]
        if sorted(named) != sorted(bodies[1:]) or ours.njnt != theirs.njnt or ours.nv != theirs.nv:
            raise ValueError(
                f"Isaac Lab has the bodies {', '.join(bodies[1:])} with {theirs.nv} degrees of freedom"
            )
        self.bodies = np.array([0, *(1 + list(bodies[1:]).index(name) for name in named)])
        """(nbody,) id in `theirs` of each body of `ours`."""
        self.joints, self.dofs = np.zeros(ours.njnt, int), np.zeros(ours.nv, int)
        """(njnt,) and (nv,) likewise."""
        for body, other in enumerate(self.bodies):
            here, there = np.flatnonzero(ours.jnt_bodyid == body), np.flatnonzero(theirs.jnt_bodyid == other)
            if len(here) != len(there) or not np.array_equal(ours.jnt_type[here], theirs.jnt_type[there]):
                raise ValueError(
                    f"body {ours.body(body).name} has {len(there)} joints in Isaac Lab, not {len(here)}, or other types"
                )
            self.joints[here] = there
            dofs = np.flatnonzero(ours.dof_bodyid == body), np.flatnonzero(theirs.dof_bodyid == other)
            self.dofs[dofs[0]] = dofs[1]


def differences(ours: mujoco.MjModel, theirs: mujoco.MjModel, match: Match) -> list[str]:
    """What differs between the same robot in two models, one line per difference.

    The initial pose of a free base is not compared, nor is the physics step, which Isaac Lab sets separately. Geoms are
    compared if they can touch another geom, in any order within a body.
    """
    found = _options(ours, theirs)
    parents = match.bodies[ours.body_parentid]
    if not np.array_equal(parents[1:], theirs.body_parentid[match.bodies][1:]):
        found.append("body_parentid differs")
    free = ours.jnt_type == mujoco.mjtJoint.mjJNT_FREE
    placed = ~np.isin(np.arange(ours.nbody), ours.jnt_bodyid[free])
    for name in _BODIES:
        rows = placed if name == "body_pos" else np.ones(ours.nbody, bool)
        found += _compare(name, getattr(ours, name)[rows], getattr(theirs, name)[match.bodies][rows])
    axes = _rotations(ours.body_quat), _rotations(theirs.body_quat)[match.bodies]
    found += _compare("the axes of body_quat", axes[0][placed], axes[1][placed])
    inertia = _inertia(ours), _inertia(theirs)[match.bodies]
    for body in range(1, ours.nbody):
        scale = max(float(np.abs(inertia[0][body]).max()), _SMALL)
        name = f"the inertia (kg m2 / {scale:g}) of body {ours.body(body).name}"
        found += _compare(name, inertia[0][body] / scale, inertia[1][body] / scale)
    for name in _DOFS:
        found += _compare(name, getattr(ours, name), getattr(theirs, name)[match.dofs])
    has_friction = ours.dof_frictionloss > 0  # without it the next two have no effect
    for name in ("dof_solref", "dof_solimp"):
        found += _compare(
            name, getattr(ours, name)[has_friction], getattr(theirs, name)[match.dofs][has_friction]
        )
    for name in _JOINTS:
        found += _compare(name, getattr(ours, name)[~free], getattr(theirs, name)[match.joints][~free])
    addresses = ours.jnt_qposadr[~free], theirs.jnt_qposadr[match.joints][~free]
    for name in _POSITIONS:
        found += _compare(name, getattr(ours, name)[addresses[0]], getattr(theirs, name)[addresses[1]])
    limited = ours.jnt_limited.astype(bool)
    if not np.array_equal(limited[~free], theirs.jnt_limited.astype(bool)[match.joints][~free]):
        found.append("jnt_limited differs")
    else:
        found += _compare("jnt_range", ours.jnt_range[limited], theirs.jnt_range[match.joints][limited])
    geoms = _geoms(ours, theirs, match)
    return found + (geoms or _pairs(ours, theirs, match))


def _compare(name: str, ours: np.ndarray, theirs: np.ndarray) -> list[str]:
    ours, theirs = np.asarray(ours, float), np.asarray(theirs, float)
    off = np.abs(ours - theirs) > TOLERANCE * np.maximum(_SMALL if name in _RELATIVE else 1.0, np.abs(ours))
    if not off.any():
        return []
    first = tuple(int(i) for i in np.argwhere(off)[0])
    index = f"[{', '.join(map(str, first))}]" if first else ""
    return [f"{name}{index} is {theirs[first]:g}, not {ours[first]:g}"]


def _options(ours: mujoco.MjModel, theirs: mujoco.MjModel) -> list[str]:
    """Options and flags that differ between the models."""
    found: list[str] = []
    for name in _OPTIONS:
        found += _compare(f"option {name}", getattr(ours.opt, name), getattr(theirs.opt, name))
    euler = ours.opt.integrator == mujoco.mjtIntegrator.mjINT_EULER
    harmless = (*_HARMLESS, *(() if euler else ("EULERDAMP",)))
    for kind, prefix, enum in (
        ("disable", "mjDSBL_", mujoco.mjtDisableBit),
        ("enable", "mjENBL_", mujoco.mjtEnableBit),
    ):
        differ = int(getattr(ours.opt, f"{kind}flags")) ^ int(getattr(theirs.opt, f"{kind}flags"))
        for label, bit in enum.__members__.items():
            name = label.removeprefix(prefix)
            if label.startswith(prefix) and differ & int(bit) and name not in harmless:
                here = bool(int(getattr(ours.opt, f"{kind}flags")) & int(bit))
                found.append(
                    f"the flag {name.lower()} is {'' if here else kind + 'd in Isaac Lab, '}not {kind}d"
                )
    return found


def _rotations(quats: np.ndarray) -> np.ndarray:
    """(N, 9) rotation matrices of quaternions (N, 4), equal for a quaternion and its negative."""
    found = np.zeros((len(quats), 9))
    for row, quat in zip(found, np.asarray(quats, float), strict=True):
        mujoco.mju_quat2Mat(row, quat)
    return found


def _inertia(model: mujoco.MjModel) -> np.ndarray:
    """(nbody, 3, 3) inertia in the bodies' axes, because principal axes are not unique."""
    rotations = _rotations(model.body_iquat).reshape(-1, 3, 3)
    return np.einsum("bij,bj,bkj->bik", rotations, model.body_inertia, rotations)


def _pairs(ours: mujoco.MjModel, theirs: mujoco.MjModel, match: Match) -> list[str]:
    """Differences in which bodies can touch one another, and with how many pairs of geoms. Two bodies that are fixed,
    such as the floor and the base of an arm, do not count: their contact moves nothing."""
    fixed = {int(match.bodies[body]) for body in np.flatnonzero(ours.body_weldid == 0)}
    mine: Counter[tuple[int, ...]] = Counter(
        tuple(sorted(int(match.bodies[ours.geom_bodyid[geom]]) for geom in pair))
        for pair in colliding_pairs(ours)
    )
    others = Counter(
        tuple(sorted(int(theirs.geom_bodyid[g]) for g in pair)) for pair in colliding_pairs(theirs)
    )
    for counted in (mine, others):
        for pair in [pair for pair in counted if fixed.issuperset(pair)]:
            del counted[pair]
    if mine == others:
        return []
    first = min(pair for pair in mine | others if mine[pair] != others[pair])
    names = " and ".join(ours.body(int(np.flatnonzero(match.bodies == body)[0])).name for body in first)
    totals = f"{others.total()} pairs of geoms can touch, not {mine.total()}"
    return [f"{totals}: {others[first]} of {names}, not {mine[first]}"]


def _geoms(ours: mujoco.MjModel, theirs: mujoco.MjModel, match: Match) -> list[str]:
    """Differences in the geoms that can touch another; geoms of a body are matched to the most similar one."""
    for body, other in enumerate(match.bodies):
        kept = Counter(_kinds(theirs, [int(g) for g in np.flatnonzero(theirs.geom_bodyid == other)]))
        collide = (ours.geom_contype | ours.geom_conaffinity) != 0
        expected = Counter(
            _kinds(ours, [int(g) for g in np.flatnonzero(collide & (ours.geom_bodyid == body))])
        )
        if expected - kept:
            lost_kinds = ", ".join(sorted((expected - kept).elements()))
            return [f"body {ours.body(body).name} lost a colliding geom: {lost_kinds}"]
    touching = [{geom for pair in colliding_pairs(model) for geom in pair} for model in (ours, theirs)]
    # The world last: its floor touches nothing if the robot's geoms do not, and the error should name the robot's body.
    for body in [*range(1, ours.nbody), 0]:
        other = match.bodies[body]
        mine = sorted(geom for geom in touching[0] if ours.geom_bodyid[geom] == body)
        rest = sorted(geom for geom in touching[1] if theirs.geom_bodyid[geom] == other)
        kinds = _kinds(ours, mine), _kinds(theirs, rest)
        if kinds[0] != kinds[1]:
            here, there = (", ".join(names) or "none" for names in kinds)
            name = ours.body(body).name
            return [f"geoms of body {name} that can touch another: {there} in Isaac Lab, {here} in MuJoCo"]
        for geom in mine:
            row = _surface(ours, geom)
            rows = {g: _surface(theirs, g) for g in rest if theirs.geom_type[g] == ours.geom_type[geom]}
            nearest = min(rows, key=lambda g: float(np.abs(_flat(rows[g]) - _flat(row)).max()))
            rest.remove(nearest)
            kind = _kind(int(ours.geom_type[geom]))
            for name, values in row.items():
                lost = _compare(
                    f"{name} of a {kind} of body {ours.body(body).name}", values, rows[nearest][name]
                )
                if lost:
                    return lost
    return []


def _kind(number: int) -> str:
    return str(mujoco.mjtGeom(number).name).removeprefix("mjGEOM_").lower()


def _kinds(model: mujoco.MjModel, geoms: list[int]) -> list[str]:
    return sorted(_kind(int(model.geom_type[geom])) for geom in geoms)


def _flat(row: dict[str, np.ndarray]) -> np.ndarray:
    return np.concatenate(list(row.values()))


def _surface(model: mujoco.MjModel, geom: int) -> dict[str, np.ndarray]:
    """A geom's shape in its body's axes, and its contact parameters."""
    values = {name: np.atleast_1d(getattr(model, name)[geom]).astype(float) for name in _GEOMS}
    return {"the shape": _shape(model, geom), **values}


def _shape(model: mujoco.MjModel, geom: int) -> np.ndarray:
    """The geom's support function in many directions of its body, which does not depend on the choice of its axes.

    It covers position, size, orientation and, of a mesh, the convex hull, which is what collides. For a plane, which is
    infinite: its normal and height.
    """
    position, size = model.geom_pos[geom], model.geom_size[geom]
    rotation = _rotations(model.geom_quat[geom][None])[0].reshape(3, 3)
    kind = int(model.geom_type[geom])
    if kind == _PLANE:
        return np.array([*rotation[:, 2], position @ rotation[:, 2]])
    local = _DIRECTIONS @ rotation
    along, across = np.abs(local[:, 2]), np.hypot(local[:, 0], local[:, 1])
    if kind == _SPHERE:
        reach = np.full(len(local), size[0])
    elif kind == _CAPSULE:
        reach = size[0] + size[1] * along
    elif kind == _CYLINDER:
        reach = size[0] * across + size[1] * along
    elif kind == _ELLIPSOID:
        reach = np.linalg.norm(local * size, axis=1)
    elif kind == _MESH:
        first = model.mesh_vertadr[model.geom_dataid[geom]]
        vertices = model.mesh_vert[first : first + model.mesh_vertnum[model.geom_dataid[geom]]]
        reach = (vertices @ local.T).max(axis=0)
    else:
        reach = np.abs(local) @ size
    return _DIRECTIONS @ position + reach
