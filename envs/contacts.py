"""How many contacts and constraint rows a simulator with arrays of fixed size must hold."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import IntFlag

import mujoco
import numpy as np

_PLANE, _HFIELD, _SPHERE, _CAPSULE, _ELLIPSOID, _CYLINDER, _BOX = (
    int(getattr(mujoco.mjtGeom, f"mjGEOM_{name}"))
    for name in ("PLANE", "HFIELD", "SPHERE", "CAPSULE", "ELLIPSOID", "CYLINDER", "BOX")
)
_CONTACTS = {
    (_PLANE, _SPHERE): 1,
    (_PLANE, _CAPSULE): 2,
    (_PLANE, _ELLIPSOID): 1,
    (_SPHERE, _SPHERE): 1,
    (_SPHERE, _CAPSULE): 1,
    (_SPHERE, _ELLIPSOID): 1,
    (_SPHERE, _CYLINDER): 1,
    (_SPHERE, _BOX): 1,
    (_CAPSULE, _CAPSULE): 2,
    (_CAPSULE, _BOX): 2,
    (_BOX, _BOX): 8,
}
"""The largest number of contacts of a pair of geom types, the lower type first."""
_OTHER_PAIRS = 4
_SELF_CONTACTS = 24
"""Contacts among a robot's limbs that are expected at once; few of all its pairs can touch together. A robot that falls
in a heap of more states its own number: `self_contacts` among its solver options."""


@dataclass(frozen=True)
class ArraySizes:
    """Sizes of a simulator's contact and constraint arrays, per environment."""

    contacts: int
    """nconmax: contacts, on average over the environments."""
    rows: int
    """njmax: constraint rows of each environment."""

    def overflow_message(self, lost: IntFlag) -> str:
        """What did not fit, and the setting to raise."""
        names = {name for name in type(lost).__members__ if name != "ALL" and lost & type(lost)[name]}
        if names & {"NEFC", "NJMAX_NNZ"}:
            what, setting, now = "constraints", "njmax", self.rows
        elif names & {"BROADPHASE", "NARROWPHASE", "CCD", "CONTACT_MATCH"}:
            what, setting, now = "contacts", "nconmax", self.contacts
        else:
            return (
                f"the simulator could not compute all contacts and dropped some ({', '.join(sorted(names))}): "
                "give the robot simpler colliding geoms"
            )
        return (
            f"the simulator's arrays overflowed and it dropped {what} ({', '.join(sorted(names))}): raise "
            f"backend.{setting}, now {now}, or solver.mujoco_warp.{setting} in robot.yaml"
        )


def array_sizes(
    model: mujoco.MjModel, num_envs: int, contacts: int = 0, rows: int = 0, self_contacts: int = 0
) -> ArraySizes:
    """Array sizes for `num_envs` environments of a model.

    With few colliding geoms the arrays hold every possible contact. With many (a robot that can touch itself) they
    hold every contact with the ground and `self_contacts` more. On average over many environments 24 of these are
    enough; a single one may need them all.

    Args:
        contacts, rows: override the computed sizes where they are not 0; more contacts have more rows.
        self_contacts: contacts among a robot's limbs; 0 for 24.
    """
    pairs = colliding_pairs(model)
    needs = [_max_contacts(model, a, b) for a, b in pairs]
    fixed = model.body_weldid[model.geom_bodyid] == 0
    ground = sum(need for need, (a, b) in zip(needs, pairs, strict=True) if fixed[a] or fixed[b])
    self_contacts = self_contacts or _SELF_CONTACTS
    most = max(1, min(sum(needs), ground + self_contacts))
    average = max(1, min(sum(needs), ground + min(self_contacts, _SELF_CONTACTS)))
    contacts = contacts or max(average, math.ceil(most / num_envs))
    if not rows:
        dims = [max(model.geom_condim[[a, b]]) for a, b in pairs]
        dim = max((*dims, *model.pair_dim), default=1)
        pyramid = model.opt.cone == mujoco.mjtCone.mjCONE_PYRAMIDAL
        each = 1 if dim == 1 else 2 * (dim - 1) if pyramid else dim
        equality = 6 * model.neq
        friction = int((model.dof_frictionloss > 0).sum() + (model.tendon_frictionloss > 0).sum())
        limits = int(model.jnt_limited.sum() + 2 * model.tendon_limited.sum())
        rows = max(1, int(max(contacts, most) * each + equality + friction + limits))
    return ArraySizes(int(contacts), int(rows))


def colliding_pairs(model: mujoco.MjModel) -> list[tuple[int, int]]:
    """Pairs of geoms that MuJoCo tests, by contype, conaffinity, bodies and exclusions, and its explicit pairs."""
    excluded = {int(s) for s in model.exclude_signature}
    found = {(int(a), int(b)) for a, b in zip(model.pair_geom1, model.pair_geom2, strict=True)}
    candidates = np.flatnonzero(model.geom_contype | model.geom_conaffinity)
    for i, a in enumerate(candidates):
        for b in candidates[i + 1 :]:
            one = model.geom_contype[a] & model.geom_conaffinity[b]
            other = model.geom_contype[b] & model.geom_conaffinity[a]
            bodies = sorted(int(model.geom_bodyid[g]) for g in (a, b))
            welds = [int(model.body_weldid[body]) for body in bodies]
            if not (one | other) or welds[0] == welds[1] or (bodies[0] << 16) + bodies[1] in excluded:
                continue
            parents = [int(model.body_weldid[model.body_parentid[w]]) for w in welds]
            related = welds[0] == parents[1] or welds[1] == parents[0]
            if (
                related
                and 0 not in welds
                and not model.opt.disableflags & mujoco.mjtDisableBit.mjDSBL_FILTERPARENT
            ):
                continue
            found.add((int(a), int(b)))
    return sorted(found)


def _max_contacts(model: mujoco.MjModel, a: int, b: int) -> int:
    types = sorted((int(model.geom_type[a]), int(model.geom_type[b])))
    return _CONTACTS.get((types[0], types[1]), _OTHER_PAIRS)


def has_convex_pairs(model: mujoco.MjModel) -> bool:
    """Whether a pair of geoms can touch whose contacts MuJoCo finds by an iterative search, not in closed form."""
    pairs = (
        tuple(sorted((int(model.geom_type[a]), int(model.geom_type[b])))) for a, b in colliding_pairs(model)
    )
    computed = set(_CONTACTS) - {(_BOX, _BOX), (_SPHERE, _ELLIPSOID)}
    return any(pair not in computed and pair[0] != _PLANE for pair in pairs)
