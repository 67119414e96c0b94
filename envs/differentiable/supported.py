"""What of a robot neither differentiable engine simulates: refused by name, rather than left out in silence."""

from __future__ import annotations

from typing import NoReturn

import mujoco

from robolearn.envs.robot import Robot
from robolearn.errors import ConfigError

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


def refuse(robot: Robot, what: str, fix: str) -> NoReturn:
    """Say what of a robot cannot be simulated, and what to do.

    Raises:
        ConfigError: always.
    """
    raise ConfigError(f"backend=differentiable cannot simulate robot {robot.name}: {what}; {fix}")
