"""From a Scene to a MuJoCo model: the robots' files, objects, floor, actuators, sensors, solver options and visuals."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NoReturn

import mujoco
import numpy as np

from robolearn.envs import model_file, visuals
from robolearn.envs.collisions import FLOOR, lighten
from robolearn.envs.elements import (
    NET_FORCE,
    add_actuator,
    add_floor,
    add_foot_sensors,
    add_object,
    add_terrain,
    compiled,
)
from robolearn.envs.parameters import changed_by
from robolearn.envs.robot import Robot
from robolearn.envs.scene import GROUND, Contact, Object, Scene
from robolearn.errors import ConfigError, did_you_mean, listing, quote

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
_BACKEND_SIZES = ("nconmax", "njmax", "self_contacts")
# The compliant ground of the backend `differentiable`: stiffness [N/m], damping [s/m], sliding speed [m/s].
_COMPLIANCE = ("contact_stiffness", "contact_damping", "contact_friction_speed")


def build_spec(what: Robot | Scene, backend: str = "mujoco", visual: bool = False) -> mujoco.MjSpec:
    """The model of a scene, or of one robot alone, not yet compiled.

    Takes the bodies of each robot's MJCF or URDF, without its actuators, sensors and floor (`model_file.read`), and
    adds: a free joint where the file has none for the robot's free base; a plane "floor" under a robot with a free base
    or feet, or the scene's terrain; for each actuated joint, in the robot's order, an actuator with the joint's name;
    for each foot a site on its sole unless the file has one, the sensors `<foot>_pos` [m], `<foot>_vel` [m/s],
    `<foot>_quat` (wxyz) of that site and `<foot>_force`, the net contact force on the foot in world axes [N]; the
    solver options of `options` for the first robot. Names of other entities begin with `<entity>/`; an object's body,
    joint and geom are called `<entity>/object`. Frames and contacts of the scene have sensors, named by `frame_sensor`
    and `contact_sensor`. With `visual` it adds sky, lights, materials and a camera "track"; without, it drops
    everything that is only visual. The physics is the same.

    Raises:
        ConfigError: robot.yaml and the MJCF disagree, a name or an option does not exist.
    """
    scene = Scene.of(what)
    spec = _checked_bodies(scene.whole)
    light = scene.collisions == "light"
    if light:
        lighten(spec, scene.whole, scene.terrain is not None)
    for name, robot in scene.robots.items():
        if name != scene.first and name not in scene.parts:
            place, frame = scene.place(name), spec.worldbody.add_frame()
            if not scene.moves(name):
                frame.pos, frame.quat = place.position, place.quat
            other = _checked_bodies(robot)
            if light:
                lighten(other, robot, scene.terrain is not None)
            _take_options(other, spec)
            spec.attach(other, prefix=scene.prefix(name), frame=frame)
    for name, thing in scene.objects.items():  # after the robots, with whose geoms they collide
        add_object(spec, name, thing)
    _add_solver_options(spec, scene.robot, backend)
    if (
        light and backend == "mujoco"
    ):  # few shapes a body: to sort them first takes longer than to compare all
        spec.option.disableflags |= int(mujoco.mjtDisableBit.mjDSBL_MIDPHASE)
    if scene.grounded:
        add_floor(spec, FLOOR if light and scene.alone else None)
    if scene.terrain is not None:
        add_terrain(spec, scene.terrain.heights)
    for name, robot in scene.robots.items():
        for actuator in robot.actuators:
            add_actuator(spec, actuator, scene.prefix(name))
    for name, robot in scene.robots.items():
        for foot in robot.feet:
            add_foot_sensors(spec, scene.prefix(name) + foot)
    for name, frames in scene.frames.items():
        for frame_name in frames:
            _add_frame_sensors(spec, scene, name, frame_name)
    for name, contacts in scene.contacts.items():
        for label, contact in contacts.items():
            _add_contact_sensors(spec, scene, name, label, contact)
    if visual:
        visuals.add(spec, scene)
    # Geoms without collision cost time in every kinematics pass; their mass, if any, stays with the body.
    spec.compiler.discardvisual = not visual
    return spec


def robot_bodies(robot: Robot) -> mujoco.MjSpec:
    """The bodies of one robot's file, with its free joint, the sites of its soles, its contact exclusions and the
    rotors of its motors. Of a part of a robot, those of the part by itself."""
    if robot.part is not None:
        spec = robot_bodies(robot.part.whole)
        _part_alone(spec, robot.part.prefix)
        return spec
    spec = model_file.read(robot.mjcf).spec.copy()
    _free_base(spec, robot)
    for foot, (position, orientation) in robot.soles.items():
        spec.body(foot).add_site(name=foot, pos=position, quat=orientation)
    for one, other in robot.apart:
        spec.add_exclude(bodyname1=one, bodyname2=other)
    for actuator in robot.actuators:
        if actuator.armature is not None:
            spec.joint(actuator.joint).armature = actuator.armature
    return spec


def _part_alone(spec: mujoco.MjSpec, prefix: str) -> None:
    """Reduce the bodies of a robot to those of a part and what they hang on, and take the prefix off its names."""
    if not prefix:
        return
    kept: set[str] = set()
    for body in spec.bodies:
        if body.name.startswith(prefix):
            while body.name and body.name not in kept:
                kept.add(body.name)
                if body.name == "world":
                    break
                body = body.parent
    for exclude in list(spec.excludes):
        if not {exclude.bodyname1, exclude.bodyname2} <= kept:
            spec.delete(exclude)
    while gone := next((b for b in spec.bodies if b.name not in kept and b.name != "world"), None):
        spec.delete(gone)
    for exclude in spec.excludes:
        exclude.bodyname1 = exclude.bodyname1.removeprefix(prefix)
        exclude.bodyname2 = exclude.bodyname2.removeprefix(prefix)
    for thing in (*spec.bodies, *spec.joints, *spec.geoms, *spec.sites):
        if thing.name.startswith(prefix):
            thing.name = thing.name.removeprefix(prefix)


def _checked_bodies(robot: Robot) -> mujoco.MjSpec:
    spec = robot_bodies(robot)
    _check_names(robot, spec)
    return spec


def _take_options(spec: mujoco.MjSpec, first: mujoco.MjSpec) -> None:
    """Give a model the solver options of the first one, which decide; MuJoCo warns of any others."""
    for name in dir(first.option):
        if not name.startswith("_") and not callable(value := getattr(first.option, name)):
            setattr(spec.option, name, value)


def build_model(what: Robot | Scene, backend: str = "mujoco", visual: bool = False) -> mujoco.MjModel:
    """The compiled model of `build_spec`.

    Raises:
        ConfigError: as `build_spec`, or the home position of a joint is outside its range.
    """
    scene = Scene.of(what)
    spec = build_spec(scene, backend, visual)
    if any(changed_by(name).startswith("com_") for name in scene.params):
        # MuJoCo takes short cuts for a body whose centre of mass is at its origin; the world is none.
        for body in spec.bodies[1:]:
            body.simple = 0
    model = compiled(scene.robot, spec)
    for entity, robot in scene.robots.items():
        for name, home in zip(robot.joints, robot.home, strict=True):
            joint = model.joint(scene.prefix(entity) + name)
            low, high = joint.range
            if model.jnt_limited[joint.id] and not low <= home <= high:
                _fail(
                    robot,
                    f"joints.{name}.home is {home:g}, outside its range {low:g} to {high:g} in "
                    f"{robot.mjcf.name}; change one of them",
                )
    return model


def home_qpos(what: Robot | Scene, model: mujoco.MjModel) -> np.ndarray:
    """MuJoCo's qpos (nq,) with every robot in its home pose; a free base is at x = y = 0 with its soles on the
    ground, an object where its scene has it."""
    scene, qpos = Scene.of(what), model.qpos0.copy()
    for entity, robot in scene.robots.items():
        prefix = scene.prefix(entity)
        if robot.base is not None:
            first = root_joint(scene, entity, model).qposadr[0]
            qpos[first : first + 7] = [0, 0, robot.home_height, 1, 0, 0, 0]
        for name, home in zip(robot.joints, robot.home, strict=True):
            qpos[model.joint(prefix + name).qposadr[0]] = home
    return qpos


def root_body(scene: Scene, name: str) -> str:
    """Name in the model of the body that an entity hangs on: a free base, or the one body that holds all others.

    Raises:
        ConfigError: a robot has several such bodies.
    """
    entity, prefix = scene.entities[name], scene.prefix(name)
    if isinstance(entity, Object):
        return f"{prefix}object"
    if entity.base is not None:
        return entity.base if entity.part is not None else prefix + entity.base
    if entity.part is not None and entity.part.root:
        return prefix + entity.part.root
    spec = model_file.read(entity.mjcf).spec
    roots = [body.name for body in spec.worldbody.bodies]
    if len(roots) != 1:
        _fail(
            entity,
            f"{entity.mjcf.name} has {len(roots)} bodies in the world ({listing(roots)}), so contacts with all of "
            f"{name!r} cannot be asked for; ask for those with one body, {name}/BODY",
        )
    return prefix + roots[0]


def _whole_of(scene: Scene, name: str) -> str:
    """Name in the model of the body of an entity that all its others hang on: of a part not the base, which it shares.

    Raises:
        ConfigError: it has several such bodies.
    """
    robot = scene.robots.get(name)
    if robot is None or robot.part is None or not robot.part.prefix:
        return root_body(scene, name)
    if not robot.part.root:
        _fail(robot, f"several bodies hold the part {name!r}, so contacts with all of it cannot be asked for")
    return scene.prefix(name) + robot.part.root


def root_joint(scene: Scene, name: str, model: mujoco.MjModel) -> Any:
    """The free joint of an entity that moves freely."""
    return model.joint(int(model.body(root_body(scene, name)).jntadr[0]))


def frame_sensor(scene: Scene, entity: str, name: str, kind: str) -> str:
    """Name of the sensor of a frame: `kind` is pos [m], quat (wxyz), vel [m/s] or angvel [rad/s], in world axes."""
    return f"frame:{entity}/{name}:{kind}"


def contact_sensor(scene: Scene, entity: str, label: str, body: str) -> str:
    """Name of the sensor of a contact force on one body, in world axes [N]."""
    return f"contact:{entity}/{label}:{body}"


def contact_bodies(scene: Scene, entity: str, contact: Contact) -> tuple[str, ...]:
    """Names in the model of the bodies on which a contact's forces are."""
    prefix = scene.prefix(entity)
    return tuple(prefix + body for body in contact.bodies) or (root_body(scene, entity),)


def _fail(robot: Robot, message: str) -> NoReturn:
    raise ConfigError(f"{robot.source}: {message}")


def _fail_name(robot: Robot, problem: str, name: object, valid: Iterable[str]) -> NoReturn:
    valid = tuple(valid)
    _fail(robot, f"{problem} {quote(name)}{did_you_mean(str(name), valid)} (valid: {listing(valid, 24)})")


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


MIN_TIMESTEP = 1e-4
"""Shortest physics step [s]. With a shorter one a control step takes hundreds of them, and float32 forces lose
precision."""
_EXPLICIT: dict[str, dict[str, Any]] = {
    "differentiable": {"timestep": 0.005, "integrator": "implicitfast"},
    "newton": {"timestep": 0.001, "integrator": "Euler", "disable": ["eulerdamp"]},
}
"""Options of the backends that have an integrator of their own, for a robot that states none."""


def options(robot: Robot, backend: str) -> dict[str, Any]:
    """Solver options of a robot on a backend: those of robot.yaml, where it has none those of the MJCF's <option>, with
    MuJoCo's implicitfast integrator instead of Euler. A backend without PGS then takes Newton, and the differentiable
    ones have their own.

    Raises:
        ConfigError: the timestep is too short.
    """
    found = _options(robot, backend)
    if found["timestep"] < MIN_TIMESTEP:
        _fail(
            robot,
            f"solver.{backend}.timestep is {found['timestep']:g} s; set at least {MIN_TIMESTEP:g}, such as 0.005",
        )
    return found


def _options(robot: Robot, backend: str) -> dict[str, Any]:
    """See `options`."""
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


def _own(scene: Scene, entity: str, names: Iterable[str]) -> list[str]:
    """Those of the names of the model that an entity's file has, without the prefix, each once."""
    prefix = scene.prefix(entity)
    others = tuple(f"{name}/" for name in scene.entities if f"{name}/" != prefix)
    found = [n for n in names if n.startswith(prefix) and not n.startswith(others) and n not in ("", "world")]
    return list(dict.fromkeys(name.removeprefix(prefix) for name in found))


def _add_frame_sensors(spec: mujoco.MjSpec, scene: Scene, entity: str, name: str) -> None:
    sites = [site.name for site in spec.sites]
    own = _own(scene, entity, (*sites, *(body.name for body in spec.bodies)))
    found = scene.prefix(entity) + name
    if isinstance(scene.entities[entity], Object):
        found = root_body(scene, entity)
    elif name not in own:
        _fail_scene(f"frames.{entity} names a site or body that it does not have,", name, own)
    kind = mujoco.mjtObj.mjOBJ_SITE if found in sites else mujoco.mjtObj.mjOBJ_XBODY
    for label, sensor in _FRAME_SENSORS.items():
        spec.add_sensor(
            name=frame_sensor(scene, entity, name, label), type=sensor, objtype=kind, objname=found
        )


_FRAME_SENSORS = {
    "pos": mujoco.mjtSensor.mjSENS_FRAMEPOS,
    "quat": mujoco.mjtSensor.mjSENS_FRAMEQUAT,
    "vel": mujoco.mjtSensor.mjSENS_FRAMELINVEL,
    "angvel": mujoco.mjtSensor.mjSENS_FRAMEANGVEL,
}


def _add_contact_sensors(
    spec: mujoco.MjSpec, scene: Scene, entity: str, label: str, contact: Contact
) -> None:
    bodies = [body.name for body in spec.bodies]
    where = f"contacts.{entity}.{label}"
    other, _, other_body = contact.other.partition("/")
    first: dict[str, Any] = {}
    if other == GROUND:
        if not scene.grounded:
            raise ConfigError(f"scene: {where}.other is {GROUND}, and the scene has no floor; set floor=True")
        first = {"objtype": mujoco.mjtObj.mjOBJ_GEOM, "objname": "floor"}
    elif other_body:
        name = scene.prefix(other) + other_body
        _check_body(scene, other, other_body, bodies, f"{where}.other")
        first = {"objtype": mujoco.mjtObj.mjOBJ_BODY, "objname": name}
    elif other:  # every body of the entity
        first = {"objtype": mujoco.mjtObj.mjOBJ_XBODY, "objname": _whole_of(scene, other)}
    for body in contact.bodies:
        _check_body(scene, entity, body, bodies, f"{where}.bodies")
    for body in contact_bodies(scene, entity, contact):
        spec.add_sensor(
            name=contact_sensor(scene, entity, label, body), type=mujoco.mjtSensor.mjSENS_CONTACT, **first,
            reftype=mujoco.mjtObj.mjOBJ_BODY, refname=body, intprm=NET_FORCE,
        )  # fmt: skip


def _check_body(scene: Scene, entity: str, body: str, bodies: list[str], where: str) -> None:
    own = _own(scene, entity, bodies)
    if body not in own and not isinstance(scene.entities[entity], Object):
        _fail_scene(f"{where} names a body that {entity!r} does not have,", body, own)


def _fail_scene(problem: str, name: str, valid: Iterable[str]) -> NoReturn:
    valid = tuple(valid)
    raise ConfigError(
        f"scene: {problem} {quote(name)}{did_you_mean(name, valid)} (valid: {listing(valid, 24)})"
    )


def joint_limits(robot: Robot) -> tuple[list[float], list[float]]:
    """Lower and upper limits of the joints in the robot's order, (J,) each [rad or m]; infinite without a limit."""
    model = build_model(robot)
    joints = [model.joint(name).id for name in robot.joints]
    ranges = [model.jnt_range[j] if model.jnt_limited[j] else (-np.inf, np.inf) for j in joints]
    return [float(low) for low, _ in ranges], [float(high) for _, high in ranges]


def override_options(model: mujoco.MjModel, timestep: float, solver: str, iterations: int) -> None:
    """Override the robot's solver options by the backend's settings; 0 and "robot" keep the robot's value.

    Raises:
        ConfigError: the timestep is too short.
    """
    if 0 < timestep < MIN_TIMESTEP:
        raise ConfigError(
            f"backend.timestep={timestep:g} is below {MIN_TIMESTEP:g} s; set at least that, or 0 for the robot's value"
        )
    model.opt.timestep = timestep or model.opt.timestep
    model.opt.iterations = iterations or model.opt.iterations
    if solver != "robot":
        model.opt.solver = getattr(mujoco.mjtSolver, f"mjSOL_{solver.upper()}")
