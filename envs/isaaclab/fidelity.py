"""Whether a robot came through USD whole: two MuJoCo models of it, ours and the one that Newton made, side by side."""

from __future__ import annotations

from collections.abc import Sequence

import mujoco
import numpy as np

from robolearn.envs.contacts import colliding_pairs

TOLERANCE = 1e-5
"""Of each value, relative where it is above one: float32, and degrees in between."""

_BODIES = ("body_mass", "body_inertia", "body_ipos", "body_pos")
_DOFS = ("dof_damping", "dof_armature", "dof_frictionloss")
_JOINTS = ("jnt_axis", "jnt_stiffness", "jnt_solref", "jnt_solimp", "jnt_margin")
_GEOMS = (
    "geom_type",
    "geom_friction",
    "geom_solref",
    "geom_solimp",
    "geom_condim",
    "geom_margin",
    "geom_gap",
)

_SIZES = {
    int(mujoco.mjtGeom.mjGEOM_PLANE): 0,
    int(mujoco.mjtGeom.mjGEOM_SPHERE): 1,
    int(mujoco.mjtGeom.mjGEOM_CAPSULE): 2,
    int(mujoco.mjtGeom.mjGEOM_CYLINDER): 2,
}
"""How many numbers a geom's size is, where it is not three."""


class Match:
    """Where bodies, joints and degrees of freedom of ours stand in the other model, which has names of its own."""

    def __init__(self, ours: mujoco.MjModel, theirs: mujoco.MjModel, bodies: Sequence[str]) -> None:
        """`bodies` are our names of the other model's bodies, in its order, the world first.

        The joints of a body stand in the same order in both; what stands at a wrong place shows in `differences`.

        Raises:
            ValueError: the models do not have the same bodies, each with as many joints.
        """
        named = [ours.body(i).name for i in range(1, ours.nbody)]
        if sorted(named) != sorted(bodies[1:]) or ours.njnt != theirs.njnt or ours.nv != theirs.nv:
            raise ValueError(
                f"Isaac Lab has the bodies {', '.join(bodies[1:])} with {theirs.nv} degrees of freedom"
            )
        self.bodies = np.array([0, *(1 + list(bodies[1:]).index(name) for name in named)])
        """(nbody,) the number over there of each body of ours."""
        self.joints, self.dofs = np.zeros(ours.njnt, int), np.zeros(ours.nv, int)
        """(njnt,) and (nv,) likewise."""
        for body, other in enumerate(self.bodies):
            here, there = np.flatnonzero(ours.jnt_bodyid == body), np.flatnonzero(theirs.jnt_bodyid == other)
            if len(here) != len(there) or not np.array_equal(ours.jnt_type[here], theirs.jnt_type[there]):
                raise ValueError(
                    f"body {ours.body(body).name} has {len(there)} joints, not {len(here)}, or other ones"
                )
            self.joints[here] = there
            dofs = np.flatnonzero(ours.dof_bodyid == body), np.flatnonzero(theirs.dof_bodyid == other)
            self.dofs[dofs[0]] = dofs[1]


def differences(ours: mujoco.MjModel, theirs: mujoco.MjModel, match: Match) -> list[str]:
    """What differs between the same robot in two models, a line each.

    Poses at the initial position of a free base are not compared; geoms are compared by those that collide, in whatever
    order a body has them.
    """
    found = []
    parents = match.bodies[ours.body_parentid]
    if not np.array_equal(parents[1:], theirs.body_parentid[match.bodies][1:]):
        found.append("a body hangs on another one")
    free = ours.jnt_type == mujoco.mjtJoint.mjJNT_FREE
    placed = ~np.isin(np.arange(ours.nbody), ours.jnt_bodyid[free])
    for name in _BODIES:
        rows = placed if name == "body_pos" else np.ones(ours.nbody, bool)
        found += _compare(name, getattr(ours, name)[rows], getattr(theirs, name)[match.bodies][rows])
    for name in _DOFS:
        found += _compare(name, getattr(ours, name), getattr(theirs, name)[match.dofs])
    for name in _JOINTS:
        found += _compare(name, getattr(ours, name)[~free], getattr(theirs, name)[match.joints][~free])
    limited = ours.jnt_limited.astype(bool)
    if not np.array_equal(limited[~free], theirs.jnt_limited.astype(bool)[match.joints][~free]):
        found.append("jnt_limited differs")
    else:
        found += _compare("jnt_range", ours.jnt_range[limited], theirs.jnt_range[match.joints][limited])
    one, two = _surfaces(ours, match.bodies), _surfaces(theirs, np.arange(theirs.nbody))
    if one.shape != two.shape:
        return [*found, f"{len(two)} geoms collide, not {len(one)}"]
    found += _compare("the colliding geoms (body, place, size, " + ", ".join(_GEOMS) + ")", one, two)
    pairs = len(colliding_pairs(ours)), len(colliding_pairs(theirs))
    if pairs[0] != pairs[1]:
        found.append(f"{pairs[1]} pairs of geoms can touch, not {pairs[0]}")
    return found


def _compare(name: str, ours: np.ndarray, theirs: np.ndarray) -> list[str]:
    off = np.abs(ours - theirs) > TOLERANCE * np.maximum(1.0, np.abs(ours))
    if not off.any():
        return []
    first = tuple(int(i) for i in np.argwhere(off)[0])
    return [f"{name}[{', '.join(map(str, first))}] is {theirs[first]:g}, not {ours[first]:g}"]


def _surfaces(model: mujoco.MjModel, numbers: np.ndarray) -> np.ndarray:
    """A sorted row for each geom that collides: body, place, size and surface. A plane is endless, and has no size."""
    rows = []
    for geom in np.flatnonzero(model.geom_contype | model.geom_conaffinity):
        size = np.where(np.arange(3) < _SIZES.get(int(model.geom_type[geom]), 3), model.geom_size[geom], 0.0)
        parts = [[numbers[model.geom_bodyid[geom]]], model.geom_pos[geom], size]
        parts += [np.atleast_1d(getattr(model, name)[geom]) for name in _GEOMS]
        rows.append(np.concatenate(parts))
    return np.array(sorted(np.round(row, 6).tolist() for row in rows))
