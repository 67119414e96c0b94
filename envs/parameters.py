"""The physical parameters of a scene that may differ by environment: what each is, and which values it may have."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Kind = Literal["geom", "body", "joint", "actuator", "world"]


@dataclass(frozen=True)
class Field:
    """One physical parameter."""

    meaning: str
    """In words, with its unit."""
    of: Kind
    """What has it; a selector is a pattern for the names of bodies (geom, body) or joints (joint, actuator)."""
    least: float
    most: float
    """Smallest and largest value that may be drawn."""
    neutral: float | None = 1.0
    """The value that changes nothing: 1 of a factor, 0 of what is added; None: the one in the robot's file."""
    base_only: bool = False
    """Whether the one of the whole scene is that of the robots' bases, and not of every body."""


def _factor(meaning: str, of: Kind, least: float = 0.01) -> Field:
    return Field(f"{meaning}, as a factor", of, least, 100.0)


def _added(meaning: str, of: Kind, least: float, most: float, base_only: bool = False) -> Field:
    return Field(meaning, of, least, most, 0.0, base_only)


PARAMETERS: dict[str, Field] = {
    "friction": Field("sliding friction", "geom", 1e-3, 10.0, None),
    "mass_scale": _factor("mass and inertia of every body", "body"),
    "gain_scale": _factor("stiffness and damping of every position actuator", "actuator"),
    "inertia_scale": _factor("inertia of every body, whose mass stays", "body"),
    "payload": _added("mass added at the centre of mass [kg], of the base", "body", 0.0, 1e4, True),
    "com_x": _added(
        "offset of the centre of mass along x of the body [m], of the base", "body", -1.0, 1.0, True
    ),
    "com_y": _added(
        "offset of the centre of mass along y of the body [m], of the base", "body", -1.0, 1.0, True
    ),
    "com_z": _added(
        "offset of the centre of mass along z of the body [m], of the base", "body", -1.0, 1.0, True
    ),
    "kp_scale": _factor("stiffness of every position actuator", "actuator"),
    "kd_scale": _factor("damping of every position actuator", "actuator"),
    "torque_scale": _factor("largest torque of every actuator", "actuator"),
    "motor_delay": Field("where in its range the delay of every motor is", "world", 0.0, 1.0, 0.5),
    "armature_scale": _factor("armature of every joint", "joint"),
    "damping": _added("damping added to every joint, at least to 0 [Nm s/rad]", "joint", -1e4, 1e4),
    "joint_friction": _added("dry friction added to every joint, at least to 0 [Nm]", "joint", -1e4, 1e4),
    "gravity_roll": _added("rotation of gravity about the world's x axis [rad]", "world", -1.0, 1.0),
    "gravity_pitch": _added("rotation of gravity about the world's y axis [rad]", "world", -1.0, 1.0),
}
"""Every physical parameter by name. Of the whole scene they are stated by these names, of a part of it as `entity/name`
or `entity/name/selector` (`robolearn.envs.randomize`)."""

BASIC = frozenset({"friction", "mass_scale", "gain_scale"})
"""Those that every backend has, and that every scene has where they apply."""
EVERY = frozenset(PARAMETERS) - {"motor_delay"}
"""Those that fields of a simulator's model can have; `motor_delay` is of `robolearn.envs.actuators`."""


def changed_by(name: str) -> str:
    """The field of a parameter's name: `mass_scale` of `cube/mass_scale`."""
    return name.split("/")[1] if "/" in name else name
