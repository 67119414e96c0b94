"""The numbers of a compiled MuJoCo model that determine its physics and cost, by name, to compare both sides."""

from __future__ import annotations

from typing import Any

import mujoco
import numpy as np

OPTIONS = (
    "timestep", "integrator", "solver", "cone", "jacobian", "iterations", "ls_iterations", "noslip_iterations",
    "ccd_iterations", "tolerance", "ls_tolerance", "noslip_tolerance", "ccd_tolerance", "impratio", "disableflags",
    "enableflags",
)  # fmt: skip
RELATIVE = 1e-4
"""Relative tolerance: MJCF text has six digits."""

Fingerprint = dict[str, dict[str, dict[str, list[float]]]]
"""Numbers by kind, name and field."""

# As plain integers: in some versions of MuJoCo an enum member does not equal the value in a model's array.
PLANE = int(mujoco.mjtGeom.mjGEOM_PLANE)
ONE_AXIS = (int(mujoco.mjtJoint.mjJNT_HINGE), int(mujoco.mjtJoint.mjJNT_SLIDE))

BODY = ("pos", "quat", "mass", "inertia", "ipos")
SHAPE = ("size", "pos", "quat")
CONTACT = (
    "type",
    "contype",
    "conaffinity",
    "condim",
    "priority",
    "friction",
    "margin",
    "gap",
    "solref",
    "solimp",
)


def take(model: mujoco.MjModel, prefix: str = "") -> Fingerprint:
    """The numbers of a model; `prefix` is removed from names."""

    def name(thing: Any) -> str:
        return thing.name.removeprefix(prefix)

    def row(value: Any) -> list[float]:
        return [float(x) for x in np.ravel(value)]

    def fields(kind: str, names: tuple[str, ...], i: int) -> dict[str, list[float]]:
        return {field: row(getattr(model, f"{kind}_{field}")[i]) for field in names}

    options = {option: {"value": row(getattr(model.opt, option))} for option in (*OPTIONS, "gravity")}
    found: Fingerprint = {
        "option": options,
        "body": {},
        "joint": {},
        "geom": {},
        "actuator": {},
        "exclude": {},
    }
    for i in range(model.nbody):
        if model.body_weldid[i] != 0:  # fixed bodies have no dynamics
            found["body"][name(model.body(i))] = fields("body", BODY, i)
    for i in range(model.njnt):
        if int(model.jnt_type[i]) in ONE_AXIS:
            dof = fields("dof", ("armature", "damping", "frictionloss"), model.jnt_dofadr[i])
            found["joint"][name(model.joint(i))] = fields("jnt", ("type", "axis", "range"), i) | dof
    for i in range(model.ngeom):
        if model.geom_contype[i] or model.geom_conaffinity[i]:
            if int(model.geom_type[i]) == PLANE:
                found["geom"]["floor"] = fields("geom", CONTACT, i)
            else:
                label = name(model.geom(i)) or f"{i} of {name(model.body(model.geom_bodyid[i]))}"
                found["geom"][label] = fields("geom", (*SHAPE, *CONTACT), i)
    for i in range(model.nu):
        joint = model.joint(model.actuator_trnid[i, 0])
        found["actuator"][name(joint)] = fields("actuator", ("gainprm", "biasprm", "forcerange", "gear"), i)
    for signature in model.exclude_signature:
        pair = (name(model.body(int(signature) >> 16)), name(model.body(int(signature) & 0xFFFF)))
        found["exclude"][" and ".join(sorted(pair))] = {}
    return found


def differences(theirs: Fingerprint, ours: Fingerprint) -> list[str]:
    """One line per difference between the two sides; empty where they are equal."""
    lines = []
    for kind in theirs:
        for name in [*theirs[kind], *(n for n in ours[kind] if n not in theirs[kind])]:
            a, b = theirs[kind].get(name), ours[kind].get(name)
            if a is None or b is None:
                lines.append(f"{kind} {name}: only in {'robolearn' if a is None else 'mjlab'}")
                continue
            for field in a:
                if len(a[field]) != len(b[field]) or not np.allclose(
                    a[field], b[field], rtol=RELATIVE, atol=1e-7
                ):
                    x, y = (" ".join(f"{v:g}" for v in side[field]) for side in (a, b))
                    what = f"{kind} {name}" + (f", {field}" if field != "value" else "")
                    lines.append(f"{what}: {x} in mjlab, {y} in robolearn")
    return lines
