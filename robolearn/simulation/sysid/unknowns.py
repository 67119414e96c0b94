"""What can be identified of a robot, and the parameters that `--fit` asks for.

An item is `field` or `field/selector`: `armature`, `kp/*_knee`. A selector is a pattern for the names of joints (of
mass: of bodies), as in `task.randomize`; each joint that it matches has a parameter of its own. The delay is one for
all joints unless it has a selector. `field/selector=one` makes one parameter for all that match: a common factor on
what the robot's file says, or a common value where it says nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

import mujoco
import numpy as np

from robolearn.envs.robot import Robot
from robolearn.errors import ConfigError, did_you_mean, listing, quote

FIELDS = {
    "kp": "stiffness of a servo [Nm/rad or N/m]",
    "kd": "damping of a servo [Nm s/rad or N s/m]",
    "armature": "inertia of a motor's rotor as the joint feels it [kg m^2 or kg]",
    "friction": "dry friction of a joint, MuJoCo's frictionloss [Nm or N]",
    "delay": "delay of the joint targets and the measurement together [s]",
    "damping": "viscous damping of a joint [Nm s/rad or N s/m]",
    "encoder_bias": "measured position less the true one; the servo too reads the encoder [rad or m]",
    "mass": "mass of a body; its inertia changes by the same factor [kg]",
}
"""Fields, in the order in which they are kept where a log cannot tell two apart."""
DEFAULT = ("armature", "friction", "damping", "kp", "delay", "encoder_bias")
"""What is fitted unless stated. kd and damping act alike on a joint's motion, so one of them is enough."""
CLOCK = "clock"
"""Field of the nuisance parameter: 0, the time stamps of a log are true; 1, they are noise about a regular clock."""
BIAS = 0.05
"""Scale of an encoder bias [rad or m]."""
SHARES = {"friction": 0.02, "damping": 0.25, "armature": 0.1}
"""Smallest scale: of friction as a share of the motor's torque, of damping of the servo's damping, of armature of the
inertia that the joint moves at home."""
MASS = 0.2
"""Standard deviation of a mass in a robot's file, as a share."""
LONGEST = 0.2
"""Largest delay considered [s]."""


@dataclass(frozen=True)
class Unknown:
    """One parameter: physical values are `base` plus `scale` times the number that is solved for."""

    name: str
    """field, field/JOINT or field/selector."""
    field: str
    targets: tuple[str, ...]
    """Joints (of mass: bodies; of clock: logs) that it is about."""
    nominal: tuple[float, ...]
    """For each target, what the robot's file says."""
    scale: tuple[float, ...]
    """For each target the physical value of 1: what the robot's file says, more where that is too little to matter."""
    start: float
    """Where the solution starts."""
    low: float
    high: float
    slide: bool = False
    """Whether it is of a slide."""
    prior: float = 1.0
    """Standard deviation of what is known of it beforehand, in scales; it counts where a log cannot tell it."""

    @property
    def unit(self) -> str:
        """Unit of its values."""
        if self.field == CLOCK:
            return ""
        hinge, _, slide = FIELDS[self.field].rpartition("[")[2].rstrip("]").partition(" or ")
        return slide if self.slide else hinge

    @property
    def held(self) -> float:
        """Number of the nominal value, near which the parameter is kept where a log cannot tell it."""
        return self.nominal[0] / self.scale[0]

    def physical(self, number: float) -> float:
        """Value for the first target."""
        return self.scale[0] * number


def unknowns(items: Sequence[str], robot: Robot, model: mujoco.MjModel, period: float) -> list[Unknown]:
    """The parameters of a robot that hangs, in the order of FIELDS and of its joints.

    Args:
        items: `field`, `field/selector` or `field/selector=one`.
        robot: with the nominal gains.
        model: of the robot, held.
        period: control period of the logs [s], the scale of a delay.

    Raises:
        ConfigError: a field or selector does not exist, a parameter is asked for twice, or nothing is asked for.
    """
    found: dict[tuple[str, str], Unknown] = {}
    taken: dict[tuple[str, str], str] = {}
    for item in items:
        pattern, _, shared = item.partition("=")
        field, _, selector = pattern.partition("/")
        if field not in FIELDS:
            raise ConfigError(
                f"--fit {quote(item)}: {quote(field)} is not a parameter{did_you_mean(field, FIELDS)} "
                f"(valid: {listing(FIELDS)}; or FIELD/SELECTOR for some joints)"
            )
        if shared not in ("", "one"):
            raise ConfigError(
                f"--fit {quote(item)}: only =one can follow, which makes one parameter of all that match"
            )
        names = _names(field, robot, model)
        chosen = [name for name in names if not selector or fnmatchcase(name, selector)]
        if not chosen:
            kind = {"mass": "body that moves", "kp": "joint with a servo", "kd": "joint with a servo"}.get(
                field, "joint"
            )
            raise ConfigError(
                f"--fit {quote(item)}: robot {robot.name} has no {kind} {quote(selector)}"
                f"{did_you_mean(selector, names)} (valid: {listing(names, 24)})"
            )
        together = shared == "one" or (field == "delay" and not selector)
        groups = [tuple(chosen)] if together else [(name,) for name in chosen]
        for group in groups:
            for target in group:
                if (field, target) in taken:
                    raise ConfigError(
                        f"--fit: {field} of {target} is asked for twice, by {quote(taken[field, target])} and "
                        f"{quote(item)}"
                    )
                taken[field, target] = item
            name = pattern if together else f"{field}/{group[0]}"
            found[field, group[0]] = _unknown(name, field, group, robot, model, period)
    if not found:
        raise ConfigError(f"--fit names no parameter (valid: {listing(FIELDS)})")
    order = list(FIELDS)
    return sorted(found.values(), key=lambda one: order.index(one.field))


def clock_unknown(log: str) -> Unknown:
    """The nuisance parameter of a log whose stamps scatter about a regular clock."""
    return Unknown(f"{CLOCK}/{log}", CLOCK, (log,), (0.5,), (1.0,), 0.5, -0.2, 1.2, prior=0.5)


def _names(field: str, robot: Robot, model: mujoco.MjModel) -> list[str]:
    """Everything that a field can be fitted of."""
    if field == "mass":
        return [
            model.body(k).name
            for k in range(1, model.nbody)
            if model.body_treeid[k] >= 0 and model.body_mass[k] > 0
        ]
    if field in ("kp", "kd", "delay", "encoder_bias"):
        return [actuator.joint for actuator in robot.actuators if actuator.kind == "position"]
    return [model.joint(k).name for k in range(model.njnt)]


def _unknown(
    name: str, field: str, targets: tuple[str, ...], robot: Robot, model: mujoco.MjModel, period: float
) -> Unknown:
    nominal = tuple(_nominal(field, target, robot, model) for target in targets)
    slide = field != "mass" and model.joint(targets[0]).type[0] == int(mujoco.mjtJoint.mjJNT_SLIDE)
    if field == "delay":
        return Unknown(
            name, field, targets, nominal, tuple(period for _ in targets), 0.5, 0.0, LONGEST / period
        )
    if field == "encoder_bias":
        scale = tuple(BIAS for _ in targets)
        return Unknown(name, field, targets, nominal, scale, 0.0, -10.0, 10.0, slide)
    typical = [_typical(field, target, robot, model) for target in targets]
    if len(targets) > 1 and min(nominal) > 0:  # a common factor
        scale = nominal
    elif len(targets) > 1:  # a common value, where a factor of 0 would say nothing
        scale = (float(np.mean(typical)),) * len(targets)
    else:
        scale = (max(nominal[0], typical[0]),)
    start = max(nominal[0] / scale[0], 0.3)
    low = 0.02 if field in ("kp", "mass") else 0.0
    return Unknown(
        name, field, targets, nominal, scale, start, low, 30.0, slide, MASS if field == "mass" else 1.0
    )


def _nominal(field: str, target: str, robot: Robot, model: mujoco.MjModel) -> float:
    if field == "mass":
        return float(model.body(target).mass[0])
    if field in ("delay", "encoder_bias"):
        return 0.0
    if field in ("kp", "kd"):
        return float({a.joint: getattr(a, field) for a in robot.actuators}[target])
    dof = int(model.joint(target).dofadr[0])
    return float(
        {"armature": model.dof_armature, "friction": model.dof_frictionloss, "damping": model.dof_damping}[
            field
        ][dof]
    )


def _typical(field: str, target: str, robot: Robot, model: mujoco.MjModel) -> float:
    """A difference that matters, where the robot's file says less; 0: what the file says."""
    if field in ("kp", "kd", "mass"):
        return 1e-3 if _nominal(field, target, robot, model) == 0 else 0.0
    inertia = max(float(model.dof_M0[int(model.joint(target).dofadr[0])]), 1e-6)
    if field == "armature":
        return SHARES[field] * inertia
    motor = next((a for a in robot.actuators if a.joint == target and a.kp), None)
    if motor is None:
        return inertia
    if field == "friction":
        return SHARES[field] * motor.effort
    return max(SHARES[field] * motor.kd, 1e-3 * motor.kp)
