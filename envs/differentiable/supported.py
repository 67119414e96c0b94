"""Robot features that neither differentiable engine simulates: an error names them, instead of ignoring them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NoReturn

import mujoco
import numpy as np

from robolearn.envs.robot import Robot
from robolearn.errors import ConfigError, quote

_HARMLESS = ("EULERDAMP", "WARMSTART", "REFSAFE", "ISLAND")
"""Disable flags that change how MuJoCo computes, not what it simulates."""


def require_supported(robot: Robot, model: mujoco.MjModel) -> None:
    """Check that both engines support a robot's joints, forces and options.

    Raises:
        ConfigError: names the first unsupported feature and the fix.
    """

    def fail(what: str, fix: str) -> NoReturn:
        raise_unsupported(robot, what, fix)

    for j in range(model.njnt):
        name, dof = f"joint {model.joint(j).name or 'of the base'}", model.jnt_dofadr[j]
        free = model.jnt_type[j] == mujoco.mjtJoint.mjJNT_FREE
        if model.jnt_type[j] == mujoco.mjtJoint.mjJNT_BALL:
            fail(f"{name} is a ball joint", "use three hinges")
        if model.dof_frictionloss[dof]:
            fail(f"{name} has dry friction (frictionloss)", "use damping")
        if model.jnt_actfrclimited[j]:
            fail(f"{name} limits its actuators (actuatorfrcrange)", "use the effort of robot.yaml")
        if model.jnt_stiffnesspoly[j].any() or model.dof_dampingpoly[dof].any():
            fail(f"{name} has a polynomial stiffness or damping", "give one number")
        if free and (model.jnt_stiffness[j] or model.dof_damping[dof] or model.dof_armature[dof]):
            fail(f"{name} is a free joint with stiffness, damping or armature", "remove them")
    for count, what in (
        (model.ntendon, "a tendon"),
        (model.neq, "an equality constraint"),
        (model.nflex, "a flex"),
        (model.nmocap, "a mocap body"),
        (model.nplugin, "a plugin"),
        (model.npair, "a contact pair"),
        (model.ngravcomp, "gravity compensation (gravcomp)"),
    ):
        if count:
            fail(f"it has {what}", "remove it, or use another backend")
    if model.opt.density or model.opt.viscosity or model.opt.wind.any():
        fail("it moves in a medium (option density, viscosity or wind)", "use damping")
    for name, bit in mujoco.mjtDisableBit.__members__.items():
        short = name.removeprefix("mjDSBL_")
        if model.opt.disableflags & int(bit) and short not in _HARMLESS:
            fail(f"the option disable: {short.lower()} is set", "remove it")


def surroundings(model: mujoco.MjModel) -> np.ndarray:
    """(G,) bool: whether a geom is beside the robot, such as the floor or an obstacle. A fixed base is
    the robot's."""
    robots = {0}
    for body in np.flatnonzero(model.body_jntnum):
        while body not in robots:
            robots.add(int(body))
            body = model.body_parentid[body]
    robots.remove(0)
    robots |= {int(body) for body in np.flatnonzero(model.body_weldid)}  # fixed to a body that moves
    return np.array([body not in robots for body in model.geom_bodyid], dtype=bool)


def compliance(
    robot: Robot, model: mujoco.MjModel, options: Mapping[str, Any], sink: float, damping: float
) -> tuple[float, float, float]:
    """Stiffness [N/m], damping [s/m] and sliding speed [m/s] of the ground, from the robot's `options`.

    Defaults: the stiffness at which the robot's weight on one point sinks by `sink` [m], `damping` [s/m], 0.02 m/s.

    Raises:
        ConfigError: an option is not a number above 0 (the damping may be 0).
    """
    weight = float(model.body_mass.sum() * 9.81)
    values = {"contact_stiffness": weight / sink, "contact_damping": damping, "contact_friction_speed": 0.02}
    for name in values:
        value = options.get(name, values[name])
        number = isinstance(value, int | float) and not isinstance(value, bool) and value < 1e9
        if not number or not (value > 0 or (value == 0 and name == "contact_damping")):
            what = f"{name} is {quote(value)} in robot.yaml"
            raise_unsupported(robot, what, "it must be a number above 0")
        values[name] = float(value)
    stiffness, damping, speed = values.values()
    return stiffness, damping, speed


def raise_unsupported(robot: Robot, what: str, fix: str) -> NoReturn:
    """Raise a ConfigError that names the robot, the unsupported feature and the fix."""
    raise ConfigError(f"backend=differentiable cannot simulate robot {robot.name}: {what}; {fix}")
