"""The robot in a bundle: an MJCF that a client can simulate, and the facts of its joints and base."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import mujoco
import numpy as np

from robolearn.envs.mjcf import build_model, build_spec, home_qpos
from robolearn.envs.robot import Robot
from robolearn.envs.scene import Scene

DIRECTIONS = ("forward", "backward", "left", "right", "up", "down")
"""Ends of the base's axes x, y, z, in pairs: x forward, y left, z up."""


def part_entry(robot: Robot) -> dict[str, Any]:
    """Of a part of a robot: the whole robot's name, and the name there of each of its joints."""
    part = robot.part
    assert part is not None
    return {"robot": part.whole.name, "joints": {name: part.prefix + name for name in robot.joints}}


def motor_facts(robot: Robot) -> dict[str, dict[str, Any]]:
    """How the motors were simulated that are more than PD in the solver: the keys of robot.yaml by joint, `network`
    without its folder."""
    stated = {a.joint: a.motor.stated() for a in robot.actuators if a.motor is not None}
    return {
        joint: {key: Path(value).name if key == "network" else value for key, value in keys.items()}
        for joint, keys in stated.items()
    }


def joint_facts(robot: Robot) -> dict[str, dict[str, Any]]:
    """What the contract does not hold of each joint, by name.

    `type` hinge or slide; `parent`: the body it moves against; `axis` (3,) in that body's frame, at the joint's zero
    position; `positive`: what a positive motion does, in words, in the home pose; `damping` [Nm s/rad], `armature`
    [kg m^2] and `friction` [Nm] that the joint has by itself, beside kp and kd.
    """
    model = build_model(robot)
    data = mujoco.MjData(model)
    data.qpos[:] = home_qpos(robot, model)
    mujoco.mj_forward(model, data)
    base = np.eye(3)
    if robot.base:
        base = data.xmat[model.body(robot.base).id].reshape(3, 3)
    elif robot.part is not None:  # it may face another way than its robot
        turned = np.zeros(9)
        mujoco.mju_quat2Mat(turned, np.array(robot.part.quat))
        base = turned.reshape(3, 3)
    facts = {}
    for name in robot.joints:
        joint = model.joint(name)
        body, address = int(joint.bodyid[0]), int(joint.dofadr[0])
        hinge = int(joint.type[0]) == mujoco.mjtJoint.mjJNT_HINGE
        axis = np.zeros(3)
        mujoco.mju_rotVecQuat(axis, joint.axis, model.body_quat[body])
        facts[name] = {
            "type": "hinge" if hinge else "slide",
            "body": model.body(body).name,
            "parent": model.body(int(model.body_parentid[body])).name,
            "axis": [round(float(x), 6) + 0.0 for x in axis],
            "positive": _in_words(
                base.T @ data.xaxis[joint.id],
                base.T @ (data.subtree_com[body] - data.xanchor[joint.id]),
                hinge,
            ),
            "damping": float(model.dof_damping[address]),
            "armature": float(model.dof_armature[address]),
            "friction": float(model.dof_frictionloss[address]),
        }
    return facts


def _in_words(axis: np.ndarray, reach: np.ndarray, hinge: bool) -> str:
    """What a positive motion does, along or about an axis (3,) in base axes; `reach` (3,) [m] is from the joint to the
    centre of mass of all that it moves."""
    i = int(np.argmax(np.abs(axis)))
    if not hinge:
        return f"moves {_direction(i, axis[i])}"
    # A right-handed turn about x takes y (left) to z (up), about y z to x, about z x to y.
    one, other = ((i + 1) % 3, (i + 2) % 3)
    turn = 1.0 if axis[i] > 0 else -1.0
    if i == 2 or abs(reach[one]) >= abs(reach[other]):  # about the vertical: forward, whatever it carries
        side = 1.0 if i == 2 or reach[one] >= 0 else -1.0
        return f"what points {_direction(one, side)} turns {_direction(other, turn * side)}"
    side = 1.0 if reach[other] > 0 else -1.0
    return f"what points {_direction(other, side)} turns {_direction(one, -turn * side)}"


def _direction(axis: int, sign: float) -> str:
    """The name of an end of a base axis."""
    return DIRECTIONS[2 * axis + (sign < 0)]


def base_facts(robot: Robot) -> dict[str, Any]:
    """The base link: its name, which way it faces, and where it is in the home pose."""
    return {
        "link": robot.base or "",
        "imu": "quat and gyro are those of the base link's frame: x forward, y left, z up. Where the IMU is mounted in "
        "another way, turn its readings into these axes; on another link, by the joints between them, too.",
        "home_height": robot.home_height,
        "home_quat": [1.0, 0.0, 0.0, 0.0],
        "mass": float(build_model(robot).body_subtreemass[1]),
        "feet": list(robot.feet),
    }


def bundle_model(robot: Robot, timestep: float) -> str:
    """The robot as MJCF with floor, actuators and sensors, without meshes: in place of one that collides there is its
    bounding box, and inertias are stated. A keyframe `home` holds the home pose."""
    scene = Scene.of(robot)
    spec = build_spec(scene)
    model = build_model(scene)
    for body in spec.bodies[1:]:
        compiled = model.body(body.name)
        body.mass, body.ipos, body.iquat = float(compiled.mass[0]), compiled.ipos, compiled.iquat
        body.inertia, body.explicitinertial = compiled.inertia, True
        body.fullinertia = [math.nan] + [0.0] * 5
    for geom in list(spec.geoms):
        if geom.type == mujoco.mjtGeom.mjGEOM_MESH:
            _replace_mesh(spec, model, geom)
    for part in (*spec.meshes, *spec.textures, *spec.materials, *spec.hfields, *spec.skins, *spec.keys):
        spec.delete(part)
    spec.option.timestep = timestep
    spec.meshdir = spec.texturedir = ""
    qpos = home_qpos(robot, model)
    spec.add_key(name="home", qpos=qpos)
    spec.modelname = robot.name
    spec.compile()
    return str(spec.to_xml())


def _replace_mesh(spec: mujoco.MjSpec, model: mujoco.MjModel, geom: mujoco.MjsGeom) -> None:
    """Put a box in place of a mesh that collides, and nothing in place of another."""
    body = model.body(geom.parent.name)
    found = [
        i
        for i in range(int(body.geomadr[0]), int(body.geomadr[0] + body.geomnum[0]))
        if model.geom_type[i] == mujoco.mjtGeom.mjGEOM_MESH
        and model.mesh(model.geom_dataid[i]).name == geom.meshname
    ]
    if found and (geom.contype or geom.conaffinity):
        i = found[0]
        centre, half = model.geom_aabb[i, :3], model.geom_aabb[i, 3:]
        pos = np.zeros(3)
        mujoco.mju_rotVecQuat(pos, centre, model.geom_quat[i])
        geom.parent.add_geom(
            type=mujoco.mjtGeom.mjGEOM_BOX,
            pos=model.geom_pos[i] + pos,
            quat=model.geom_quat[i],
            size=half,
            friction=geom.friction,
            contype=geom.contype,
            conaffinity=geom.conaffinity,
            condim=geom.condim,
            priority=geom.priority,
        )
    spec.delete(geom)
