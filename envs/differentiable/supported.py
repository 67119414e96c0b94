"""What of a robot neither differentiable engine simulates: refused by name, rather than left out in silence."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NoReturn

import mujoco

from robolearn.envs.robot import Robot
from robolearn.errors import ConfigError, quote

_HARMLESS = ("EULERDAMP", "WARMSTART", "REFSAFE", "ISLAND")
"""What may be disabled: it only tells MuJoCo how to compute."""


def require_supported(robot: Robot, model: mujoco.MjModel) -> None:
    """Joints, forces and options of a robot's model that both engines know.

    Raises:
        ConfigError: naming the first thing they do not, and what to do.
    """

    def fail(what: str, fix: str) -> NoReturn:
        refuse(robot, what, fix)

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
            fail(f"{name} has stiffness, damping or armature, and is free", "remove it")
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
            fail(f"the option disable: {short.lower()} is set", "leave it out")


def compliance(
    robot: Robot, model: mujoco.MjModel, options: Mapping[str, Any], sink: float, damping: float
) -> tuple[float, float, float]:
    """Stiffness [N/m], damping [s/m] and sliding speed [m/s] of the ground: the robot's options, or what lets its
    weight sink by `sink` [m], `damping` [s/m] and 0.02 m/s.

    Raises:
        ConfigError: for an option that is not a number above zero (or, for the damping, zero).
    """
    weight = float(model.body_mass.sum() * 9.81)
    values = {"contact_stiffness": weight / sink, "contact_damping": damping, "contact_friction_speed": 0.02}
    for name in values:
        value = options.get(name, values[name])
        number = isinstance(value, int | float) and not isinstance(value, bool) and value < 1e9
        if not number or not (value > 0 or (value == 0 and name == "contact_damping")):
            what = f"{name} is {quote(value)} in robot.yaml"
            refuse(robot, what, "it must be a number above 0")
        values[name] = float(value)
    stiffness, damping, speed = values.values()
    return stiffness, damping, speed


def refuse(robot: Robot, what: str, fix: str) -> NoReturn:
    """Say what of a robot cannot be simulated, and what to do.

    Raises:
        ConfigError: always.
    """
    raise ConfigError(f"backend=differentiable cannot simulate robot {robot.name}: {what}; {fix}")
