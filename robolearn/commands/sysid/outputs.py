"""The files of `robolearn sysid` beside its report: the results, the robot with them, its randomization."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import mujoco

from robolearn import __version__
from robolearn.commands.robot import stated
from robolearn.envs.mjcf import build_model, robot_bodies
from robolearn.envs.parameters import PARAMETERS
from robolearn.envs.robot import Actuator, Robot
from robolearn.files import replacing
from robolearn.simulation.sysid.solve import Estimate, Result
from robolearn.simulation.sysid.unknowns import FIELDS

NAMES = {
    "armature": "armature_scale",
    "friction": "joint_friction",
    "damping": "damping",
    "kp": "kp_scale",
    "kd": "kd_scale",
    "mass": "mass_scale",
}
"""Parameters of `task.randomize` by field."""
PERIOD = 0.02
"""Control period for which a delay is put in control steps [s]; that of most tasks."""
LEAST = 0.01
"""Smallest half width of a factor in `task.randomize`."""


def as_json(result: Result) -> dict[str, Any]:
    """result.json: every parameter, with lists of a number for each of its targets, and how well the logs are met."""

    def number(value: float) -> float | None:
        return value if math.isfinite(value) else None

    def entry(one: Estimate) -> dict[str, Any]:
        found = {
            "field": one.unknown.field,
            "targets": list(one.unknown.targets),
            "unit": one.unit,
            "nominal": list(one.unknown.nominal),
            "identified": not one.reason,
            "value": one.values,
        }
        if one.reason:
            found["reason"] = one.reason
        return found | {
            "low": one.lows,
            "high": one.highs,
            "half_width_95": one.halves,
            "at_bound": one.at_bound,
        }

    return {
        "schema": 2,
        "robolearn": __version__,
        "robot": result.robot.name,
        "timestep": float(result.problem.model.opt.timestep),
        "logs": [sequence.log.name for sequence in result.problem.sequences],
        "findings": result.findings,
        "parameters": {one.unknown.name: entry(one) for one in result.estimates},
        "clocks": result.clocks,
        "outliers": result.outliers,
        "held_out": {"what": result.held_text, "passed": result.passed, "problem": result.problem_text},
        "rms": {
            fit.joint: {
                "noise": number(fit.noise),
                "fitted": number(fit.fitted),
                "held_out": number(fit.held),
                "held_out_nominal": number(fit.before),
            }
            for fit in result.fits
        },
    }


def identified(result: Result) -> tuple[Robot, dict[str, dict[str, float]]]:
    """The robot with the identified gains and armatures, and the other values by field and joint or body."""
    found: dict[str, dict[str, float]] = {field: {} for field in FIELDS}
    for one in result.estimates:
        if not one.half:
            continue  # nothing moved
        for target, value in zip(one.unknown.targets, one.values, strict=True):
            found[one.unknown.field][target] = value

    def changed(actuator: Actuator) -> Actuator:
        joint = actuator.joint
        return replace(
            actuator,
            kp=found["kp"].get(joint, actuator.kp),
            kd=found["kd"].get(joint, actuator.kd),
            armature=found["armature"].get(joint, actuator.armature),
        )

    return replace(result.robot, actuators=tuple(map(changed, result.robot.actuators))), found


def robot_files(result: Result, folder: Path) -> None:
    """Write robot.yaml with gains and armatures, and, where damping, friction, masses or armatures of joints without a
    motor were identified, robot.xml: the robot's MJCF with these.

    Raises:
        ConfigError: the folder cannot be written.
    """
    robot, found = identified(result)
    driven = {actuator.joint for actuator in robot.actuators}
    passive = {name: value for name, value in found["armature"].items() if name not in driven}
    if found["damping"] or found["friction"] or found["mass"] or passive:
        model = result.problem.model
        spec = robot_bodies(result.robot)
        for name, value in found["damping"].items():
            spec.joint(name).damping[0] = value
        for name, value in found["friction"].items():
            spec.joint(name).frictionloss = value
        for name, value in passive.items():
            spec.joint(name).armature = value
        for name, value in found["mass"].items():
            body = spec.body(name)
            factor = value / float(model.body(name).mass[0])
            # What the compiler found from geoms or a full matrix, stated.
            body.explicitinertial = True
            body.mass, body.inertia = value, model.body(name).inertia * factor
            body.ipos, body.iquat = model.body(name).ipos, model.body(name).iquat
            body.fullinertia = [math.nan, 0, 0, 0, 0, 0]
        write_bodies(spec, result.robot.mjcf.parent, folder)
        robot = replace(robot, mjcf=Path("robot.xml"))
    else:
        robot = replace(robot, mjcf=robot.mjcf.resolve())
    with replacing(folder / "robot.yaml") as part_file:
        part_file.write_text(stated(robot), encoding="utf-8")


def write_bodies(spec: mujoco.MjSpec, source: Path, folder: Path) -> None:
    """Write robot.xml, which reads meshes and textures where the robot's file in the folder `source` does.

    Raises:
        ConfigError: the folder cannot be written.
    """
    for part in ("meshdir", "texturedir"):
        if getattr(spec, part, None) is not None:
            setattr(spec, part, str((source / (getattr(spec, part) or ".")).resolve()))
    spec.compile()
    for mesh in spec.meshes:
        if mesh.file in spec.assets:  # one that has the name of another, and got a new one
            with replacing(folder / mesh.file) as part_file:
                part_file.write_bytes(spec.assets[mesh.file])
            mesh.file = str((folder / mesh.file).resolve())
    with replacing(folder / "robot.xml") as part_file:
        part_file.write_text(spec.to_xml(), encoding="utf-8")


def randomize(result: Result) -> str:
    """Settings for `task.randomize`, centred on the identified robot, with the widths of the intervals."""
    lines = [
        "# Ranges about the robot of this folder (robot=FOLDER/robot), from the 95 % intervals of robolearn sysid.",
        "# Factors are of what its files say; copy what you use into task.randomize.",
        "task:",
        "  randomize:",
    ]
    rows: list[str] = []
    biases: list[float] = []
    step = build_model(result.robot).opt.timestep
    for one in result.told:
        field = one.unknown.field
        if field == "encoder_bias":
            biases += [abs(value) + half for value, half in zip(one.values, one.halves, strict=True)]
        for target, half in zip(one.unknown.targets, one.halves, strict=True) if field in NAMES else ():
            name = f"robot/{NAMES[field]}/{target}"
            if PARAMETERS[NAMES[field]].neutral == 0.0:  # added to what the file says
                rows.append(f"    {name}: [{-half:.4g}, {half:.4g}]  # [{one.unit}]")
            else:
                rows.append(_factor(name, _relative(one)))
        if field == "delay":
            # A simulator answers half a physics step early, see docs/sysid.md.
            low, high = (round((end + step / 2) / PERIOD, 3) for end in (max(0.0, one.low), one.high))
            motors = ("*",) if one.unknown.name == "delay" else one.unknown.targets
            each = ",".join(f"{motor}:{{model:explicit,delay:[{low:g},{high:g}]}}" for motor in motors)
            rows.append(
                f"    # {one.unknown.name}: {1e3 * one.low:.2f} to {1e3 * one.high:.2f} ms; with a control period of "
                f"{1e3 * PERIOD:g} ms and a physics step of {1e3 * step:g} ms: 'robot.actuators={{{each}}}'"
            )
    if biases:
        rows.append(
            f"    encoder_bias: [{-max(biases):.4g}, {max(biases):.4g}]  # [rad or m]; of every joint, with those found"
        )
    if not any(not row.strip().startswith("#") for row in rows):
        lines[-1] = "  randomize: {}"
    entries = [row.partition("#")[0].replace(" ", "") for row in rows]
    if override := ",".join(entry for entry in entries if entry):
        lines.insert(2, f"# On the command line: 'task.randomize={{{override}}}'")
    return "\n".join([*lines, *rows]) + "\n"


def _relative(one: Estimate) -> float:
    return one.half / max(abs(one.value), 1e-12)


def _factor(name: str, width: float) -> str:
    width = min(0.9, max(LEAST, width))
    return f"    {name}: [{1 - width:.3g}, {1 + width:.3g}]"
