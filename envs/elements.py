"""What RoboLearn adds to a robot's file: floor, objects, actuators and the sensors of feet.

Added elements set every relevant property: a missing one would come from the robot's default class.
"""

from __future__ import annotations

import mujoco

from robolearn.envs.robot import Actuator, Robot
from robolearn.envs.scene import Object
from robolearn.envs.terrain import Heights
from robolearn.errors import ConfigError

FLOOR_FRICTION = 0.8
BELOW = 1.0
"""How far a terrain is solid below its lowest point [m]."""


NET_FORCE = [1 << int(mujoco.mjtConDataField.mjCONDATA_FORCE), 3, 1]
"""Of a contact sensor: the force, reduce="netforce" (one sum, in world axes)."""

_POSITION_INPUT = int(mujoco.mjtCtrlInput.mjINPUT_POS)
"""Of MuJoCo's DC motor: its control is a joint position."""
_LEAST_FRICTION = 1e-5
"""With less, MuJoCo's friction cones are singular."""
_SHAPES = {
    "box": mujoco.mjtGeom.mjGEOM_BOX,
    "sphere": mujoco.mjtGeom.mjGEOM_SPHERE,
    "cylinder": mujoco.mjtGeom.mjGEOM_CYLINDER,
    "capsule": mujoco.mjtGeom.mjGEOM_CAPSULE,
}


def compiled(robot: Robot, spec: mujoco.MjSpec) -> mujoco.MjModel:
    """The compiled spec; an error names the robot's file."""
    try:
        return spec.compile()
    except ValueError as error:
        raise ConfigError(f"{robot.mjcf}: {error}") from None


def add_floor(spec: mujoco.MjSpec, bits: int | None = None) -> None:
    """Add the plane "floor", which collides with geoms that share a bit with `bits`; None: with everything that
    collides with anything."""
    if bits is None:
        bits = 1
        for geom in spec.geoms:
            bits |= int(geom.contype) | int(geom.conaffinity)
    spec.worldbody.add_geom(
        name="floor", type=mujoco.mjtGeom.mjGEOM_PLANE, size=[0, 0, 0.05], pos=[0, 0, 0], quat=[1, 0, 0, 0],
        contype=bits, conaffinity=bits, condim=3,
        friction=[FLOOR_FRICTION, 0.005, 0.0001],
        solref=[0.02, 1], solimp=[0.9, 0.95, 0.001, 0.5, 2], margin=0, gap=0, priority=0,
        group=0, material="", rgba=[0.5, 0.5, 0.5, 1],
    )  # fmt: skip


def add_terrain(spec: mujoco.MjSpec, heights: Heights) -> None:
    """Make the plane "floor" a height field: the grid of samples along x and y, with triangles between them."""
    rows, columns = heights.unit.shape
    # MuJoCo scales the heights to the range 0 to 1, which these already have.
    spec.add_hfield(
        name="floor", size=[*heights.reach, heights.span, BELOW], nrow=rows, ncol=columns,
        userdata=heights.unit.flatten(),
    )  # fmt: skip
    floor = spec.geom("floor")
    floor.type, floor.hfieldname, floor.pos = mujoco.mjtGeom.mjGEOM_HFIELD, "floor", [0, 0, heights.low]


def add_actuator(spec: mujoco.MjSpec, actuator: Actuator, prefix: str = "") -> None:
    """Add the motor of one joint; names in the spec begin with `prefix`."""
    name = prefix + actuator.joint
    joint = spec.joint(name)
    if joint.actfrclimited and actuator.effort <= min(-joint.actfrcrange[0], joint.actfrcrange[1]):
        joint.actfrclimited = int(mujoco.mjtLimited.mjLIMITED_FALSE)  # the motor's own limit is as low
    limits = [-actuator.effort, actuator.effort]
    added = spec.add_actuator(
        name=name, target=name, trntype=mujoco.mjtTrn.mjTRN_JOINT, gear=[1, 0, 0, 0, 0, 0],
        dyntype=mujoco.mjtDyn.mjDYN_NONE, gaintype=mujoco.mjtGain.mjGAIN_FIXED,
        biastype=mujoco.mjtBias.mjBIAS_NONE, forcerange=limits, forcelimited=True,
    )  # fmt: skip
    if actuator.motor is not None and actuator.motor.name == "dcmotor":
        motor = actuator.motor
        added.ctrllimited = False
        added.set_to_dcmotor(
            motorconst=[motor.motor_constant, 0.0],
            resistance=motor.resistance,
            inductance=[motor.inductance, 0.0],
            controller=[actuator.kp, 0.0, actuator.kd, 0.0, 0.0, motor.voltage],
            ctrlspec=_POSITION_INPUT,
        )
    elif actuator.kind == "position":
        # Joint targets are not clipped: near a joint limit, full torque needs a target beyond the joint's range.
        added.gainprm[0], added.ctrllimited = actuator.kp, False
        added.biastype = mujoco.mjtBias.mjBIAS_AFFINE
        added.biasprm[:3] = [0, -actuator.kp, -actuator.kd]
    else:
        added.gainprm[0], added.ctrllimited, added.ctrlrange = 1, True, limits


def add_foot_sensors(spec: mujoco.MjSpec, foot: str) -> None:
    """Add the sensors of the site and the body called `foot`."""
    site = {"objtype": mujoco.mjtObj.mjOBJ_SITE, "objname": foot}
    spec.add_sensor(name=f"{foot}_pos", type=mujoco.mjtSensor.mjSENS_FRAMEPOS, **site)
    spec.add_sensor(name=f"{foot}_vel", type=mujoco.mjtSensor.mjSENS_FRAMELINVEL, **site)
    spec.add_sensor(name=f"{foot}_quat", type=mujoco.mjtSensor.mjSENS_FRAMEQUAT, **site)
    # The sensor reports the force that acts on the second side of a contact. So the foot is the second, and the first
    # is left open to match anything.
    spec.add_sensor(
        name=f"{foot}_force", type=mujoco.mjtSensor.mjSENS_CONTACT, reftype=mujoco.mjtObj.mjOBJ_BODY, refname=foot,
        intprm=NET_FORCE,
    )  # fmt: skip


def add_object(spec: mujoco.MjSpec, name: str, thing: Object, label: str = "") -> None:
    """Add an object, which collides with whatever collides with anything, as the body `<name>/object` or `label`."""
    bits = 1
    for geom in spec.geoms:
        bits |= int(geom.contype) | int(geom.conaffinity)
    label = label or f"{name}/object"
    body = spec.worldbody.add_body(name=label, pos=thing.position, quat=thing.quat)
    if not thing.fixed:
        body.add_freejoint(name=label)
    body.add_geom(
        name=label, type=_SHAPES[thing.shape], size=[*(length / 2 for length in thing.size), 0, 0][:3],
        mass=thing.mass, contype=bits, conaffinity=bits, condim=4,
        friction=[max(value, _LEAST_FRICTION) for value in (thing.friction, thing.torsion, 0.0001)],
        solref=[0.02, 1], solimp=[0.9, 0.95, 0.001, 0.5, 2],
        margin=0, gap=0, priority=0, group=0, material="", rgba=[*thing.color, 1],
    )  # fmt: skip
