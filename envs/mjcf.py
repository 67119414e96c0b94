"""From a Robot to a MuJoCo scene: its MJCF plus floor, actuators, sensors, solver options and, for videos, visuals."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NoReturn

import mujoco
import numpy as np

from robolearn.envs import model_file
from robolearn.envs.robot import Actuator, Robot
from robolearn.errors import ConfigError, did_you_mean, listing, quote

FLOOR_FRICTION = 0.8
FIELD_OF_VIEW = 35  # of the camera, from top to bottom [degrees]
HORIZON = (0.42, 0.46, 0.52)

# Options in robot.yaml that are names in MJCF and enums in MuJoCo.
_ENUMS = {
    "integrator": ("mjINT_", mujoco.mjtIntegrator),
    "solver": ("mjSOL_", mujoco.mjtSolver),
    "cone": ("mjCONE_", mujoco.mjtCone),
    "jacobian": ("mjJAC_", mujoco.mjtJacobian),
}
_FLAGS = {
    "disable": ("mjDSBL_", mujoco.mjtDisableBit, "disableflags"),
    "enable": ("mjENBL_", mujoco.mjtEnableBit, "enableflags"),
}
_COUNTS = ("iterations", "ls_iterations", "noslip_iterations", "ccd_iterations")
_NUMBERS = ("timestep", "tolerance", "ls_tolerance", "noslip_tolerance", "ccd_tolerance", "impratio")
# Array sizes that a backend passes to its simulator; MuJoCo's options do not include them.
_BACKEND_SIZES = ("nconmax", "njmax")
# The compliant ground of the backend `differentiable`: stiffness [N/m], damping [s/m], sliding speed [m/s].
_COMPLIANCE = ("contact_stiffness", "contact_damping", "contact_friction_speed")


def build_spec(robot: Robot, backend: str = "mujoco", visual: bool = False) -> mujoco.MjSpec:
    """The scene of one robot, not yet compiled.

    Takes the bodies of the robot's MJCF or URDF, without its actuators, sensors and floor (`model_file.read`), and
    adds: a free joint where the file has none for the robot's free base; a plane "floor" under a robot with a free base
    or feet; for each actuated joint, in the robot's order, an actuator with the joint's name; for each foot a site on
    its sole unless the file has one, the sensors `<foot>_pos` [m], `<foot>_vel` [m/s], `<foot>_quat` (wxyz) of that
    site and `<foot>_force`, the net contact force on the foot in world axes [N]; the solver options of `options`. With
    `visual` it adds sky, lights, materials and a camera "track"; without, it drops everything that is only visual. The
    physics is the same.

    Raises:
        ConfigError: robot.yaml and the MJCF disagree, or an option does not exist.
    """
    spec = model_file.read(robot.mjcf).spec.copy()
    _free_base(spec, robot)
    for foot, (position, orientation) in robot.soles.items():
        spec.body(foot).add_site(name=foot, pos=position, quat=orientation)
    for one, other in robot.apart:
        spec.add_exclude(bodyname1=one, bodyname2=other)
    _check_names(robot, spec)
    _add_solver_options(spec, robot, backend)
    if robot.base is not None or robot.feet:
        _add_floor(spec)
    for actuator in robot.actuators:
        _add_actuator(spec, actuator)
    for foot in robot.feet:
        _add_foot_sensors(spec, foot)
    if visual:
        _add_visuals(spec, robot)
    # Geoms without collision cost time in every kinematics pass; their mass, if any, stays with the body.
    spec.compiler.discardvisual = not visual
    return spec


def build_model(robot: Robot, backend: str = "mujoco", visual: bool = False) -> mujoco.MjModel:
    """The compiled scene of `build_spec`.

    Raises:
        ConfigError: as `build_spec`, or the home position of a joint is outside its range.
    """
    model = _compile(robot, build_spec(robot, backend, visual))
    for name, home in zip(robot.joints, robot.home, strict=True):
        joint = model.joint(name)
        low, high = joint.range
        if model.jnt_limited[joint.id] and not low <= home <= high:
            _fail(
                robot,
                f"joints.{name}.home is {home:g}, outside its range {low:g} to {high:g} in "
                f"{robot.mjcf.name}; change one of them",
            )
    return model


def home_qpos(robot: Robot, model: mujoco.MjModel) -> np.ndarray:
    """MuJoCo's qpos (nq,) in the home pose; a free base is at x = y = 0 with its soles on the ground."""
    qpos = model.qpos0.copy()
    if robot.base is not None:
        qpos[:7] = [0, 0, robot.home_height, 1, 0, 0, 0]
    for name, home in zip(robot.joints, robot.home, strict=True):
        qpos[model.joint(name).qposadr[0]] = home
    return qpos


def _fail(robot: Robot, message: str) -> NoReturn:
    raise ConfigError(f"{robot.source}: {message}")


def _fail_name(robot: Robot, problem: str, name: object, valid: Iterable[str]) -> NoReturn:
    valid = tuple(valid)
    _fail(robot, f"{problem} {quote(name)}{did_you_mean(str(name), valid)} (valid: {listing(valid, 24)})")


def _compile(robot: Robot, spec: mujoco.MjSpec) -> mujoco.MjModel:
    try:
        return spec.compile()
    except ValueError as error:
        raise ConfigError(f"{robot.mjcf}: {error}") from None


def _check_names(robot: Robot, spec: mujoco.MjSpec) -> None:
    """Check that every name in robot.yaml exists in the MJCF, and every joint of the MJCF in robot.yaml."""
    file = robot.mjcf.name
    one_axis = (mujoco.mjtJoint.mjJNT_HINGE, mujoco.mjtJoint.mjJNT_SLIDE)
    joints = [joint.name for joint in spec.joints if joint.type in one_axis]
    bodies = [body.name for body in spec.bodies if body.name not in ("", "world")]
    if not all(joints):
        raise ConfigError(f"{robot.mjcf}: has a hinge or slide joint without a name; name it")
    named = [("joints", "joint", robot.joints, joints), ("feet", "body", robot.feet, bodies)]
    named += [("feet", "site", robot.feet, [site.name for site in spec.sites if site.name])]
    named += [("bodies", "body", robot.bodies, bodies)]
    named += [("base", "body", (robot.base,) if robot.base else (), bodies)]
    for key, kind, names, valid in named:
        for name in names:
            if name not in valid:
                _fail_name(robot, f"{key} names a {kind} that {file} does not have,", name, valid)
    for name in joints:
        if name not in robot.joints:
            _fail(robot, f"joints lacks {name} of {file}; add it with its home position")
    floating = [joint for joint in spec.joints if joint.type not in one_axis]
    if any(joint.type != mujoco.mjtJoint.mjJNT_FREE for joint in floating):
        raise ConfigError(f"{robot.mjcf}: has a ball joint, which is not supported; use hinges")
    if [joint.parent.name for joint in floating] != ([robot.base] if robot.base else []):
        found = listing(joint.parent.name or "unnamed" for joint in floating)
        _fail(
            robot,
            f"base is {robot.base or 'not set'}, but {file} has a free joint at: {found}; they must agree",
        )
    if robot.base is not None and spec.joints[0].type in one_axis:
        raise ConfigError(
            f"{robot.mjcf}: joints come before {robot.base}; its free joint must be the first joint"
        )


_EXPLICIT: dict[str, dict[str, Any]] = {
    "differentiable": {"timestep": 0.005, "integrator": "implicitfast"},
    "newton": {"timestep": 0.001, "integrator": "Euler", "disable": ["eulerdamp"]},
}
"""Options of the backends that have an integrator of their own, for a robot that states none."""


def options(robot: Robot, backend: str) -> dict[str, Any]:
    """Solver options of a robot on a backend: those of robot.yaml, where it has none those of the MJCF's <option>, with
    MuJoCo's implicitfast integrator instead of Euler. A backend without PGS then takes Newton, and the differentiable
    ones have their own."""
    stated = robot.solver.get(backend, {})
    if stated and not robot.derived:
        return stated
    if backend in _EXPLICIT:
        return {**_EXPLICIT[backend], **stated}
    option = model_file.read(robot.mjcf).spec.option
    found: dict[str, Any] = {"timestep": float(option.timestep)}
    if (
        option.integrator == mujoco.mjtIntegrator.mjINT_EULER
    ):  # the default; the damping of a servo would be explicit
        found["integrator"] = "implicitfast"
    if backend != "mujoco" and option.solver == mujoco.mjtSolver.mjSOL_PGS:
        found["solver"] = "Newton"
    return {**found, **stated}


def _free_base(spec: mujoco.MjSpec, robot: Robot) -> None:
    """Add a free joint to a free base that lacks it: a URDF never has one."""
    if robot.base is None or any(joint.type == mujoco.mjtJoint.mjJNT_FREE for joint in spec.joints):
        return
    body = spec.body(robot.base)
    if body is None or body.parent.name != spec.worldbody.name:
        _fail(robot, f"base is {robot.base}, but only a body of the world can be free; name the root body")
    if list(body.joints):
        _fail(robot, f"base is {robot.base}, but it already has joints; leave base out, or name another body")
    body.add_freejoint()


def _add_solver_options(spec: mujoco.MjSpec, robot: Robot, backend: str) -> None:
    for key, value in options(robot, backend).items():
        where = f"solver.{backend}.{key}"
        if key in _ENUMS:
            setattr(spec.option, key, _member(robot, where, value, *_ENUMS[key]))
        elif key in _FLAGS:
            prefix, enum, bits = _FLAGS[key]
            for flag in value if isinstance(value, list) else [value]:
                bit = int(_member(robot, where, flag, prefix, enum))
                setattr(spec.option, bits, getattr(spec.option, bits) | bit)
        elif key in (*_COUNTS, *_NUMBERS):
            kind, expected = (
                (int, "a whole number") if key in _COUNTS else (int | float, "a number (such as 1.0e-6)")
            )
            if isinstance(value, bool) or not isinstance(value, kind) or not 0 <= value < 1e6:
                _fail(robot, f"{where} is {quote(value)}; it must be {expected}, 0 or more")
            setattr(spec.option, key, value)
        elif key in (*_BACKEND_SIZES, *_COMPLIANCE):
            if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1e12:
                _fail(robot, f"{where} is {quote(value)}; it must be a number, 0 or more")
        else:
            valid = (*_ENUMS, *_FLAGS, *_COUNTS, *_NUMBERS, *_BACKEND_SIZES, *_COMPLIANCE)
            _fail_name(robot, f"solver.{backend} has the unknown option", key, valid)
    # Recording which bounding volumes are active only serves a viewer and costs time in every collision pass.
    spec.visual.global_.bvactive = 0


def _member(robot: Robot, where: str, value: object, prefix: str, enum: Any) -> Any:
    """The member of a MuJoCo enum with the MJCF name `value`."""
    members = {n.removeprefix(prefix).lower(): m for n, m in enum.__members__.items() if n.startswith(prefix)}
    if str(value).lower() not in members:
        _fail_name(robot, f"{where} is", value, members)
    return members[str(value).lower()]


# Added elements set every relevant property: a missing one would come from the robot's default class.


def _add_floor(spec: mujoco.MjSpec, collides: bool = True) -> None:
    # Whatever collides with anything collides with the floor.
    bits = 0
    for geom in spec.geoms:
        bits |= int(geom.contype) | int(geom.conaffinity)
    spec.worldbody.add_geom(
        name="floor", type=mujoco.mjtGeom.mjGEOM_PLANE, size=[0, 0, 0.05], pos=[0, 0, 0], quat=[1, 0, 0, 0],
        contype=(bits | 1) * collides, conaffinity=(bits | 1) * collides, condim=3,
        friction=[FLOOR_FRICTION, 0.005, 0.0001],
        solref=[0.02, 1], solimp=[0.9, 0.95, 0.001, 0.5, 2], margin=0, gap=0, priority=0,
        group=0, material="", rgba=[0.5, 0.5, 0.5, 1],
    )  # fmt: skip


def _add_actuator(spec: mujoco.MjSpec, actuator: Actuator) -> None:
    joint = spec.joint(actuator.joint)
    if joint.actfrclimited and actuator.effort <= min(-joint.actfrcrange[0], joint.actfrcrange[1]):
        joint.actfrclimited = int(mujoco.mjtLimited.mjLIMITED_FALSE)  # the motor's own limit is as low
    limits = [-actuator.effort, actuator.effort]
    added = spec.add_actuator(
        name=actuator.joint, target=actuator.joint, trntype=mujoco.mjtTrn.mjTRN_JOINT, gear=[1, 0, 0, 0, 0, 0],
        dyntype=mujoco.mjtDyn.mjDYN_NONE, gaintype=mujoco.mjtGain.mjGAIN_FIXED,
        biastype=mujoco.mjtBias.mjBIAS_NONE, forcerange=limits, forcelimited=True,
    )  # fmt: skip
    if actuator.kind == "position":
        # Joint targets are not clipped: near a joint limit, full torque needs a target beyond the joint's range.
        added.gainprm[0], added.ctrllimited = actuator.kp, False
        added.biastype = mujoco.mjtBias.mjBIAS_AFFINE
        added.biasprm[:3] = [0, -actuator.kp, -actuator.kd]
    else:
        added.gainprm[0], added.ctrllimited, added.ctrlrange = 1, True, limits


def _add_foot_sensors(spec: mujoco.MjSpec, foot: str) -> None:
    site = {"objtype": mujoco.mjtObj.mjOBJ_SITE, "objname": foot}
    spec.add_sensor(name=f"{foot}_pos", type=mujoco.mjtSensor.mjSENS_FRAMEPOS, **site)
    spec.add_sensor(name=f"{foot}_vel", type=mujoco.mjtSensor.mjSENS_FRAMELINVEL, **site)
    spec.add_sensor(name=f"{foot}_quat", type=mujoco.mjtSensor.mjSENS_FRAMEQUAT, **site)
    # The sensor reports the force that acts on the second side of a contact. So the foot is the second, and the first
    # is left open to match anything.
    net_force = 3  # reduce="netforce": one sum, in world axes
    spec.add_sensor(
        name=f"{foot}_force", type=mujoco.mjtSensor.mjSENS_CONTACT, reftype=mujoco.mjtObj.mjOBJ_BODY, refname=foot,
        intprm=[1 << int(mujoco.mjtConDataField.mjCONDATA_FORCE), net_force, 1],
    )  # fmt: skip


def _add_visuals(spec: mujoco.MjSpec, robot: Robot) -> None:
    """Add sky, floor pattern, lights with shadows and a camera; none of them affects the physics."""
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
    if robot.base is None and not robot.feet:
        _add_floor(spec, collides=False)
    spec.geom("floor").material = "robolearn_floor"
    corners = _corners(robot, _compile(robot, spec.copy()))
    center = (corners.min(axis=0) + corners.max(axis=0)) / 2
    size = float(np.ptp(corners, axis=0).max())
    body, tracking = spec.worldbody, mujoco.mjtCamLight.mjCAMLIGHT_FIXED
    if robot.base is not None or robot.feet:  # lights and camera follow the robot without turning with it
        body, tracking = _root(spec, robot), mujoco.mjtCamLight.mjCAMLIGHT_TRACKCOM
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
    # From the front left; a robot without a free base from its side, because it mostly moves across the picture.
    back = np.array([0.75, 0.62, 0.2] if robot.base else [0.3, -1.0, 0.22])
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


def _root(spec: mujoco.MjSpec, robot: Robot) -> Any:
    """The root body of a robot that stands on the ground: its base, or the root of its first foot's chain."""
    if robot.base is not None:
        return spec.body(robot.base)
    body = spec.body(robot.feet[0])
    while body.parent.name != spec.worldbody.name:
        body = body.parent
    return body


def _corners(robot: Robot, model: mujoco.MjModel) -> np.ndarray:
    """Corners (8 n, 3), in the world, of the bounding boxes of the n geoms that are not planes; all joints at home."""
    data = mujoco.MjData(model)
    for name, home in zip(robot.joints, robot.home, strict=True):
        data.qpos[model.joint(name).qposadr[0]] = home
    mujoco.mj_kinematics(model, data)
    signs = np.array([[x, y, z] for x in (-1, 1) for y in (-1, 1) for z in (-1, 1)])
    boxes = []
    for geom in np.flatnonzero(model.geom_type != mujoco.mjtGeom.mjGEOM_PLANE):
        local = model.geom_aabb[geom, :3] + signs * model.geom_aabb[geom, 3:]
        boxes.append(data.geom_xpos[geom] + local @ data.geom_xmat[geom].reshape(3, 3).T)
    return np.concatenate(boxes)


def joint_limits(robot: Robot) -> tuple[list[float], list[float]]:
    """Lower and upper limits of the joints in the robot's order, (J,) each [rad or m]; infinite without a limit."""
    model = build_model(robot)
    joints = [model.joint(name).id for name in robot.joints]
    ranges = [model.jnt_range[j] if model.jnt_limited[j] else (-np.inf, np.inf) for j in joints]
    return [float(low) for low, _ in ranges], [float(high) for _, high in ranges]


MIN_TIMESTEP = 1e-4
"""Shortest physics step [s]. With a shorter one a control step takes hundreds of them, and float32 forces lose
precision."""


def override_options(model: mujoco.MjModel, timestep: float, solver: str, iterations: int) -> None:
    """Override the robot's solver options by the backend's settings; 0 and "robot" keep the robot's value.

    Raises:
        ValueError: the timestep is too short.
    """
    if 0 < timestep < MIN_TIMESTEP:
        raise ValueError(
            f"backend.timestep={timestep:g} is below {MIN_TIMESTEP:g} s; set at least that, or 0 for the robot's value"
        )
    model.opt.timestep = timestep or model.opt.timestep
    model.opt.iterations = iterations or model.opt.iterations
    if solver != "robot":
        model.opt.solver = getattr(mujoco.mjtSolver, f"mjSOL_{solver.upper()}")
