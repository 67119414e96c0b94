"""Checks a robot's model for what makes a simulation wrong, slow or unable to learn, and says how to mend it."""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import mujoco
import numpy as np

from robolearn.envs import derive, mjcf, model_file
from robolearn.envs.mirror import other_side
from robolearn.envs.robot import Robot
from robolearn.errors import ConfigError, listing

HOLD_TIME = 2.0
"""How long a robot must hold its home pose with its joint targets there [s]."""
SUNK, LEANT, BENT = 0.2, 0.9, 0.35
"""It holds it where the base sinks by less than this share of its height, the cosine of its lean stays above, and no
joint is further off [rad, or a third of a slide's range]."""
DEEP = 0.002
"""Penetration at the start from which it is reported [m]."""
CONTROL = 0.02
"""Control period in which a robot with delays of its motors holds its home pose [s]."""
LARGEST, SMALLEST_RANGE, LARGEST_RANGE = 20.0, 0.2, 50.0
"""A robot further across [m], one none of whose hinges turns as far [rad], and a hinge that turns further are in other
units: a model in millimetres, degrees read as radians or radians read as degrees."""
STIFF = 4.0
"""Natural frequency of a servo times the physics step from which even implicit damping does not hold it."""


@dataclass(frozen=True)
class Finding:
    """Something about a robot's model."""

    level: Literal["error", "warning"]
    """An error keeps the robot from working; a warning is worth knowing."""
    check: str
    """Name of the check."""
    text: str
    """What is wrong and the fix, in one line."""


@dataclass(frozen=True)
class Hold:
    """What became of a robot whose joint targets were its home pose for `HOLD_TIME`."""

    held: bool
    text: str
    """In one line, as in "stands; the base sinks by 4 mm"."""


def idle_changes(file: Path, changes: Mapping[str, Any]) -> list[str]:
    """The changes of motors by a pattern without which the robot of a file is the same, as `*.kp=5`: entries that are
    more particular, or the kind of the motors, decide instead.

    Raises:
        ConfigError: the robot with all of the changes is invalid.
    """
    motors = changes.get("actuators")
    if not isinstance(motors, Mapping):
        return []
    whole, idle = Robot.load(file, changes).actuators, []
    for pattern, change in motors.items():
        for key in change if isinstance(change, Mapping) and set(pattern) & set("*?[") else ():
            others = {k: value for k, value in change.items() if k != key}
            try:
                without = Robot.load(file, {**changes, "actuators": {**motors, pattern: others}}).actuators
            except ConfigError:  # what is left does not stand alone, so it does something
                continue
            if without == whole:
                idle.append(f"{pattern}.{key}={change[key]}")
    return idle


def check(robot: Robot) -> list[Finding]:
    """Every finding about a robot on the backend `mujoco`, errors first.

    Raises:
        ConfigError: the robot cannot be built.
    """
    found = [*_checks(robot), *_doctor(robot)]
    return sorted(found, key=lambda finding: finding.level != "error")


def errors(robot: Robot, timestep: float = 0.0) -> list[Finding]:
    """What keeps a robot from working, of `check`, with physics steps of `timestep` [s], 0: the robot's; mjcf-doctor
    only warns, and is not asked.

    Raises:
        ConfigError: the robot cannot be built, or the step is too short.
    """
    return [finding for finding in _checks(robot, timestep) if finding.level == "error"]


def _model(robot: Robot, timestep: float) -> mujoco.MjModel:
    model = mjcf.build_model(robot)
    mjcf.override_options(model, timestep, "robot", 0)
    return model


def hold(robot: Robot, timestep: float = 0.0) -> Hold:
    """Simulate the home pose for `HOLD_TIME`, with physics steps of `timestep` [s]; 0: the robot's."""
    model = _model(robot, timestep)
    start = mjcf.home_qpos(robot, model)
    held_up = _with_motors if any(a.outside for a in robot.actuators) else _in_solver
    end, diverged_at = held_up(robot, model, start)
    if diverged_at is not None:
        return Hold(False, f"the simulation diverges after {diverged_at:.2f} s")
    actuated = [robot.joints[joint] for joint in robot.actuated]
    offs = {}
    for name in actuated:
        joint = model.joint(name)
        slide = model.jnt_type[joint.id] == int(mujoco.mjtJoint.mjJNT_SLIDE)
        off = abs(float(end[joint.qposadr[0]] - start[joint.qposadr[0]]))
        offs[name] = off / max(float(np.ptp(joint.range)), 1e-3) * 3 * BENT if slide else off
    worst = max(offs, key=lambda name: offs[name])
    where = f"; {worst} is {offs[worst]:.2f} rad off"
    if robot.base is None:
        return Hold(
            offs[worst] < BENT, ("holds its pose" if offs[worst] < BENT else "does not hold its pose") + where
        )
    sunk = float(start[2] - end[2])
    if sunk < -0.05 * max(robot.home_height, 0.1):
        return Hold(
            False,
            f"is thrown up by {-1000 * sunk:.0f} mm: its feet start in the ground, or gravity is not down",
        )
    up = 1 - 2 * float(end[4] ** 2 + end[5] ** 2)
    held = sunk < SUNK * robot.home_height and up > LEANT and offs[worst] < BENT
    lean = float(np.degrees(np.arccos(np.clip(up, -1, 1))))
    said = "stands" if held else "falls" if up <= LEANT or sunk >= 0.5 * robot.home_height else "sinks"
    return Hold(held, f"{said}; the base is {1000 * sunk:.0f} mm lower and leans {lean:.0f} degrees{where}")


def _home_targets(robot: Robot) -> list[float]:
    """(A,) what holds the home pose: positions of servos, no torque of others."""
    return [
        robot.home[joint] if actuator.kind == "position" else 0.0
        for joint, actuator in zip(robot.actuated, robot.actuators, strict=True)
    ]


def _in_solver(robot: Robot, model: mujoco.MjModel, start: np.ndarray) -> tuple[np.ndarray, float | None]:
    """qpos (nq,) after `HOLD_TIME` with the joint targets at home, and the time at which it diverged [s]."""
    data = mujoco.MjData(model)
    data.qpos[:] = start
    data.ctrl[:] = _home_targets(robot)
    diverged = [int(mujoco.mjtWarning.mjWARN_BADQACC), int(mujoco.mjtWarning.mjWARN_BADQPOS)]
    for _ in range(round(HOLD_TIME / model.opt.timestep)):
        mujoco.mj_step(model, data)
        if any(data.warning[i].number for i in diverged):
            return data.qpos, float(data.time)
    return data.qpos, None


def _with_motors(robot: Robot, model: mujoco.MjModel, start: np.ndarray) -> tuple[np.ndarray, float | None]:
    """The same with motors outside of the simulator; their delays are those of control steps of `CONTROL` seconds."""
    import torch

    from robolearn.envs.actuators.backend import with_motors
    from robolearn.envs.mujoco.backend import MujocoBackend, MujocoConfig

    config = MujocoConfig(threads=1, timestep=float(model.opt.timestep))
    backend = with_motors(lambda scene: MujocoBackend(scene, 1, "cpu", config), robot)
    backend.reset(torch.ones(1, dtype=torch.bool), {})
    targets = _home_targets(robot)
    substeps, end, time = max(1, round(CONTROL / model.opt.timestep)), start.copy(), 0.0
    while time < HOLD_TIME:
        backend.step(torch.tensor([targets]), substeps)
        time += substeps * model.opt.timestep
        if bool(backend.state.diverged.any()):
            backend.close()
            return end, time
    state = backend.state.robot
    if robot.base is not None:
        end[:7] = torch.cat((state.base_pos, state.base_quat), dim=1)[0].numpy()
    for name, position in zip(robot.joints, state.joint_pos[0].tolist(), strict=True):
        end[model.joint(name).qposadr[0]] = position
    backend.close()
    return end, None


def _checks(robot: Robot, timestep: float = 0.0) -> Iterator[Finding]:
    file = model_file.read(robot.mjcf)
    model = _model(robot, timestep)
    data = mujoco.MjData(model)
    data.qpos[:] = mjcf.home_qpos(robot, model)
    mujoco.mj_forward(model, data)
    for note in file.notes:
        yield Finding("warning", "actuators", note)
    yield from _units(model, data)
    if robot.base is not None and not robot.feet:
        yield Finding(
            "error",
            "feet",
            "no geom that collides is at the end of a limb and as low as any: name the feet in feet:, and "
            "give them colliding geoms",
        )
    for foot in robot.feet:
        body = model.body(foot).id
        if not any(_collides(model, g) for g in range(model.ngeom) if model.geom_bodyid[g] == body):
            yield Finding("error", "feet", f"foot {foot} has no geom that collides: give it one")
    bare = [a.joint for a in robot.actuators if model.dof_armature[model.joint(a.joint).dofadr[0]] <= 0]
    if bare:
        yield Finding(
            "warning",
            "armature",
            f"{len(bare)} of {len(robot.actuators)} actuated joints have no armature ({listing(bare, 4)}): add the "
            "motor's rotor inertia times its gear ratio squared; without it joints are lighter than the robot's",
        )
    named = {model.body(b).name for b in range(model.nbody)}
    for foot in robot.feet:
        twin = other_side(foot)
        if twin and twin[0] in named and twin[0] not in robot.feet:
            yield Finding(
                "warning",
                "feet",
                f"{foot} is a foot, and {twin[0]}, on the other side, is none: it is higher in the home pose; change "
                "home, or state feet",
            )
    estimates = derive.drives(
        file,
        robot.base is not None,
        dict(zip(robot.joints, robot.home, strict=True)),
        float(mjcf.options(robot, "mujoco")["timestep"]),
        {a.joint: a.armature for a in robot.actuators if a.armature is not None},
    )
    damping = [
        a.joint
        for a in robot.actuators
        if a.kind == "position"
        and (told := file.drives.get(a.joint))
        and told.kd
        and not told.kp
        and (a.kp, a.kd) == (estimates[a.joint].kp, estimates[a.joint].kd)
    ]
    if damping:
        yield Finding(
            "warning",
            "actuators",
            f"RoboLearn has no servos of velocity and no motors with back-EMF: {listing(damping, 4)} get position "
            "servos with gains that are derived; state actuators.<joint>.kind=force for torques, or kp and kd",
        )
    derived = [a for a in robot.actuators if a.joint in estimates and a.effort == estimates[a.joint].effort]
    stated = {a.joint: derive.stated_effort(file, a.joint) for a in derived}
    free = [a.joint for a in derived if math.isinf(stated[a.joint])]
    if free:
        yield Finding(
            "warning",
            "effort",
            f"the file limits no torque at {len(free)} joints ({listing(free, 4)}): an estimate is used; "
            "state actuators.<joint>.effort",
        )
    replaced = [
        a
        for a in derived
        if a.joint not in free and not math.isclose(stated[a.joint], a.effort, rel_tol=1e-6)
    ]
    if replaced:
        limits = [f"{a.joint}: {stated[a.joint]:g}, not {a.effort:g}" for a in replaced]
        yield Finding(
            "warning",
            "effort",
            f"the file's torque limits of {len(replaced)} joints are far from what a robot of this size has "
            f"({listing(limits, 4)}): an estimate is used; state actuators.<joint>.effort",
        )
    light = [
        model.body(b).name
        for b in range(1, model.nbody)
        if model.body_jntnum[b] and (model.body_subtreemass[b] < 1e-4 or model.body_inertia[b].max() < 1e-8)
    ]
    if light:
        yield Finding(
            "warning",
            "inertia",
            f"bodies with almost no mass or inertia: {listing(light, 4)}; give them theirs",
        )
    for name, home in zip(robot.joints, robot.home, strict=True):
        joint = model.joint(name)
        if model.jnt_limited[joint.id] and not joint.range[0] <= home <= joint.range[1]:
            yield Finding(
                "error",
                "limits",
                f"joint {name}: home {home:.3g} is outside {joint.range[0]:.3g} to {joint.range[1]:.3g}",
            )
    deep = [c for c in data.contact if c.dist < -DEEP]
    if deep:
        worst = min(deep, key=lambda c: c.dist)
        bodies = [model.body(model.geom_bodyid[g]).name for g in worst.geom]
        yield Finding(
            "error" if worst.dist < -0.05 else "warning",
            "penetration",
            f"{bodies[0]} and {bodies[1]} are {-1000 * worst.dist:.1f} mm inside one another at "
            "the start: exclude the pair in the file, or change home",
        )
    if robot.apart:
        shown = listing((f"{one} and {other}" for one, other in robot.apart), 3)
        yield Finding(
            "warning",
            "collisions",
            f"{len(robot.apart)} pairs of bodies overlap at home and do not collide: {shown}",
        )
    for name, ratio in _stiffness(robot, model, data):
        if ratio > STIFF:
            yield Finding(
                "error",
                "gains",
                f"joint {name}: kp is too stiff for the time step (natural frequency x step {ratio:.1f}, at "
                f"most {STIFF:g}): lower kp, add armature, or take a shorter timestep",
            )
    for name, ratio in _unstable(robot, model, data):
        yield Finding(
            "error",
            "gains",
            f"joint {name}: its motor's PD is computed once a time step, for which it is too stiff "
            f"((kd h + kp h^2 / 2) / inertia is {ratio:.1f}, below 2 is stable): lower the gains, add armature, or "
            "take a shorter timestep",
        )
    if robot.base is not None and robot.mirror is not None:
        bent = derive.crooked(file, robot.base, robot.mirror)
        if bent:
            yield Finding(
                "warning", "mirror", f"joints that are not where their mirror image is: {listing(bent, 4)}"
            )
    if robot.base is not None and robot.mirror is None:
        yield Finding(
            "warning",
            "mirror",
            "no mirror pairs were found: learners use no symmetry; state mirror: if it has one",
        )
    done = hold(robot, timestep)
    if not done.held:
        level: Literal["error", "warning"] = "error" if "diverges" in done.text else "warning"
        yield Finding(
            level, "hold", f"does not hold its home pose for {HOLD_TIME:g} s under its gains: {done.text}"
        )


def _units(model: mujoco.MjModel, data: mujoco.MjData) -> Iterator[Finding]:
    """Lengths and angles that look like those of other units."""
    parts = [g for g in range(model.ngeom) if model.geom_bodyid[g]]
    ends = [
        data.geom_xpos[parts] - model.geom_rbound[parts, None],
        data.geom_xpos[parts] + model.geom_rbound[parts, None],
    ]
    across = float((ends[1].max(axis=0) - ends[0].min(axis=0)).max()) if parts else 0.0
    if across > LARGEST:
        yield Finding(
            "warning", "units", f"the robot is {across:.4g} m across: is its file, or a mesh, in millimetres?"
        )
    limited = (model.jnt_type == int(mujoco.mjtJoint.mjJNT_HINGE)) & (model.jnt_limited != 0)
    ranges = np.ptp(model.jnt_range[limited], axis=1)
    if not len(ranges):
        return
    name = model.joint(int(np.flatnonzero(limited)[np.argmax(ranges)])).name
    far = f"of the joints that have a range {name} turns furthest, by {ranges.max():.3g} rad"
    if ranges.max() > LARGEST_RANGE:
        yield Finding(
            "warning", "units", f"{far}: is its range in degrees? URDF and compiler angle=radian take radians"
        )
    elif ranges.max() < SMALLEST_RANGE:
        yield Finding(
            "warning", "units", f"{far}: are ranges in radians? MJCF takes degrees without angle=radian"
        )


def _collides(model: mujoco.MjModel, geom: int) -> bool:
    return bool(model.geom_contype[geom] or model.geom_conaffinity[geom])


def _stiffness(robot: Robot, model: mujoco.MjModel, data: mujoco.MjData) -> Iterator[tuple[str, float]]:
    """Natural frequency of each servo, times the physics step, with all other joints free."""
    free = _mobility(model, data)
    for actuator in robot.actuators:
        dof = int(model.joint(actuator.joint).dofadr[0])
        yield actuator.joint, float(np.sqrt(actuator.kp * free[dof, dof]) * model.opt.timestep)


def _unstable(robot: Robot, model: mujoco.MjModel, data: mujoco.MjData) -> Iterator[tuple[str, float]]:
    """Motors outside of the simulator whose PD law oscillates with growing amplitude, with all other joints free.

    Of x' = v, v' = -(kp x + kd v) / I with steps of h, first v, then x with the new v, both eigenvalues are in the unit
    circle where (kd h + kp h^2 / 2) / I < 2 (Jury's criterion).
    """
    free, h = _mobility(model, data), float(model.opt.timestep)
    for actuator in robot.actuators:
        if actuator.outside and actuator.has_gains:
            dof = int(model.joint(actuator.joint).dofadr[0])
            ratio = float((actuator.kd * h + actuator.kp * h * h / 2) * free[dof, dof])
            if ratio >= 2:
                yield actuator.joint, ratio


def _mobility(model: mujoco.MjModel, data: mujoco.MjData) -> np.ndarray:
    """(nv, nv) the inverse of the inertia in a pose."""
    inertia = np.zeros((model.nv, model.nv))
    mujoco.mj_fullM(model, data, inertia)
    mobility: np.ndarray = np.linalg.inv(inertia + 1e-12 * np.eye(model.nv))
    return mobility


def moved_inertia(robot: Robot) -> dict[str, float]:
    """Inertia that each joint moves in the home pose, with all others locked [kg m^2, or kg]."""
    model = mjcf.build_model(robot)
    data = mujoco.MjData(model)
    data.qpos[:] = mjcf.home_qpos(robot, model)
    mujoco.mj_forward(model, data)
    inertia = np.zeros((model.nv, model.nv))
    mujoco.mj_fullM(model, data, inertia)
    dofs = {name: int(model.joint(name).dofadr[0]) for name in robot.joints}
    return {name: float(inertia[dof, dof]) for name, dof in dofs.items()}


def _doctor(robot: Robot) -> Iterator[Finding]:
    """The findings of mjcf-doctor's static checks, where it is installed; ours cover the start and the hold."""
    if importlib.util.find_spec("mjcf_doctor") is None:
        return
    from mjcf_doctor import Level, run_static

    for found in run_static(mjcf.build_model(robot)):
        # It asks for steps of half a millisecond, which training does not take; `_stiffness` judges the step.
        if found.level >= Level.WARN and found.code != "timestep_large":
            said = " ".join(
                f"{found.subject}: {found.message}{'; ' + found.fix if found.fix else ''}".split()
            )
            yield Finding("warning", f"mjcf-doctor {found.code}", said)
