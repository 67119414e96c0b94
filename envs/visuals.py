"""What pictures need and physics does not: sky, lights, a patterned floor and a camera."""

from __future__ import annotations

from typing import Any

import mujoco
import numpy as np

from robolearn.envs.elements import add_floor, compiled
from robolearn.envs.robot import Robot
from robolearn.envs.scene import Ring, Scene

FIELD_OF_VIEW = 35
"""Of the camera, from top to bottom [degrees]."""
HORIZON = (0.42, 0.46, 0.52)


def add(spec: mujoco.MjSpec, scene: Scene) -> None:
    """Add sky, floor pattern, lights with shadows and a camera; none of them affects the physics."""
    robot = scene.whole
    visual = spec.visual
    visual.global_.offwidth, visual.global_.offheight = 1920, 1080
    visual.global_.fovy = FIELD_OF_VIEW
    visual.quality.shadowsize = 8192
    visual.quality.offsamples = 8
    visual.quality.numslices, visual.quality.numstacks = 48, 48
    visual.map.shadowscale = 0.3
    visual.headlight.ambient, visual.headlight.diffuse = [0.3] * 3, [0.12] * 3
    visual.headlight.specular = [0.1] * 3
    visual.rgba.haze = [*HORIZON, 1]
    visual.map.haze = 0.35
    spec.add_texture(
        name="robolearn_sky", type=mujoco.mjtTexture.mjTEXTURE_SKYBOX, builtin=mujoco.mjtBuiltin.mjBUILTIN_GRADIENT,
        rgb1=[0.16, 0.20, 0.27], rgb2=HORIZON, width=512, height=3072,
    )  # fmt: skip
    spec.add_texture(
        name="robolearn_floor", type=mujoco.mjtTexture.mjTEXTURE_2D, builtin=mujoco.mjtBuiltin.mjBUILTIN_CHECKER,
        mark=mujoco.mjtMark.mjMARK_EDGE, rgb1=[0.36, 0.39, 0.43], rgb2=[0.40, 0.43, 0.47],
        markrgb=[0.52, 0.55, 0.60], width=512, height=512,
    )  # fmt: skip
    material = spec.add_material(
        name="robolearn_floor", reflectance=0.05, specular=0.2, shininess=0.3, texuniform=True
    )
    material.textures[mujoco.mjtTextureRole.mjTEXROLE_RGB] = "robolearn_floor"
    material.texrepeat = [1, 1]
    if not scene.grounded:
        add_floor(spec, bits=0)
    spec.geom("floor").material = "robolearn_floor"
    corners = _corners(scene, compiled(robot, spec.copy()))
    if scene.ring is not None:
        _add_ring(spec, scene.ring)
        _tell_apart(spec, scene)
        corners = np.concatenate((corners, scene.ring.radius * _SQUARE))
    center = (corners.min(axis=0) + corners.max(axis=0)) / 2
    size = float(np.ptp(corners, axis=0).max())
    if scene.terrain is not None:  # distances of the camera's planes and the haze: those of the robot
        spec.stat.extent, spec.stat.center = size, center
    body, tracking = spec.worldbody, mujoco.mjtCamLight.mjCAMLIGHT_FIXED
    root = _root(spec, robot) if scene.ring is None else None
    if root is not None:  # lights and camera follow the robot without turning with it
        body, tracking = root, mujoco.mjtCamLight.mjCAMLIGHT_TRACKCOM
    origin = body.pos
    # The key light is a wide spot: unlike a directional light its shadow map leaves no speckles on the floor.
    toward = np.array([0.62, 0.1, 1.0]) / np.linalg.norm([0.62, 0.1, 1.0])
    body.add_light(
        name="key", type=mujoco.mjtLightType.mjLIGHT_SPOT, mode=tracking, castshadow=True, cutoff=80, exponent=3,
        attenuation=[1, 0, 0], pos=center - origin + 5 * size * toward, dir=-toward,
        diffuse=[0.62, 0.61, 0.59], specular=[0.35] * 3, ambient=[0, 0, 0],
    )  # fmt: skip
    for name, direction, diffuse in (("fill", [-0.3, -1.0, -0.5], 0.2), ("rim", [1.0, 0.6, -0.7], 0.25)):
        body.add_light(
            name=name, type=mujoco.mjtLightType.mjLIGHT_DIRECTIONAL, mode=tracking, castshadow=False, dir=direction,
            pos=center - origin, diffuse=[diffuse] * 3, specular=[0.15] * 3, ambient=[0, 0, 0],
        )  # fmt: skip
    # From the front left; a robot without a free base from its side, because it mostly moves across the picture; a ring
    # from above, with the robots before one another.
    back = np.array([0.75, 0.62, 0.2] if robot.base else [0.3, -1.0, 0.22])
    if scene.ring is not None:
        back = np.array([0.3, -1.0, 0.65])
    back /= np.linalg.norm(back)
    right = np.cross([0, 0, 1], back) / np.linalg.norm(back[:2])
    up = np.cross(back, right)
    tangent = np.tan(np.radians(FIELD_OF_VIEW) / 2)
    tall, wide = np.abs((corners - center) @ up), np.abs((corners - center) @ right) * 9 / 16
    # The smallest distance that keeps the whole robot in a 16:9 picture, with a margin for its limbs.
    distance = float(np.max((corners - center) @ back + 1.3 * np.maximum(tall, wide) / tangent))
    eye = center - origin + distance * back
    camera = body.add_camera(name="track", mode=tracking, fovy=FIELD_OF_VIEW, pos=eye)
    camera.alt.type, camera.alt.xyaxes = mujoco.mjtOrientation.mjORIENTATION_XYAXES, [*right, *up]


_SQUARE = np.array([[x, y, 0.0] for x in (-0.68, 0.68) for y in (-0.68, 0.68)])
"""Corners within a circle of radius 1: with the margin around robots, a picture shows all of it."""
_PARTS = 72
_OTHER = (0.10, 0.55, 0.98)


def _add_ring(spec: mujoco.MjSpec, ring: Ring) -> None:
    """Draw a circle, of flat boxes end to end."""
    half = ring.radius * np.tan(np.pi / _PARTS)
    for k in range(_PARTS):
        angle = 2 * np.pi * k / _PARTS
        spec.worldbody.add_geom(
            type=mujoco.mjtGeom.mjGEOM_BOX, size=[0.02, half, 0.002], contype=0, conaffinity=0, mass=0, group=2,
            pos=[ring.radius * np.cos(angle), ring.radius * np.sin(angle), 0.002],
            quat=[np.cos(angle / 2), 0, 0, np.sin(angle / 2)], rgba=[*ring.color, 1],
        )  # fmt: skip


def _tell_apart(spec: mujoco.MjSpec, scene: Scene) -> None:
    """Give robots that look like the first one another accent."""
    for name, robot in scene.robots.items():
        material = spec.material(f"{scene.prefix(name)}accent")
        if name != scene.first and robot.mjcf == scene.robot.mjcf and material is not None:
            material.rgba = [*_OTHER, 1]


def _root(spec: mujoco.MjSpec, robot: Robot) -> Any:
    """The root body of a robot that goes somewhere: its base, the root of its first foot's chain, or a body on an
    endless track; None of one that stays."""
    if robot.base is not None:
        return spec.body(robot.base)
    if robot.feet:
        body = spec.body(robot.feet[0])
        while body.parent.name != spec.worldbody.name:
            body = body.parent
        return body
    for body in spec.worldbody.bodies:
        own = [j for j in body.joints if j.name in robot.joints]
        if any(j.type == mujoco.mjtJoint.mjJNT_SLIDE and j.range[0] >= j.range[1] for j in own):
            return body
    return None


def _corners(scene: Scene, model: mujoco.MjModel) -> np.ndarray:
    """Corners (8 n, 3), in the world, of the bounding boxes of the n geoms that are not ground; all joints at home."""
    data = mujoco.MjData(model)
    for entity, robot in scene.robots.items():
        for name, home in zip(robot.joints, robot.home, strict=True):
            data.qpos[model.joint(scene.prefix(entity) + name).qposadr[0]] = home
    mujoco.mj_kinematics(model, data)
    signs = np.array([[x, y, z] for x in (-1, 1) for y in (-1, 1) for z in (-1, 1)])
    boxes = []
    ground = (mujoco.mjtGeom.mjGEOM_PLANE, mujoco.mjtGeom.mjGEOM_HFIELD)
    for geom in np.flatnonzero(~np.isin(model.geom_type, [int(kind) for kind in ground])):
        local = model.geom_aabb[geom, :3] + signs * model.geom_aabb[geom, 3:]
        boxes.append(data.geom_xpos[geom] + local @ data.geom_xmat[geom].reshape(3, 3).T)
    return np.concatenate(boxes)
