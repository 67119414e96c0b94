"""`robolearn robot`: what is derived from a robot's file, whether its model is sound, a picture, a robot.yaml to
edit."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from robolearn.config import registry
from robolearn.config.overrides import parse
from robolearn.config.run_config import robot_changes
from robolearn.errors import ConfigError, listing, quote, tell_line
from robolearn.files import replacing

if TYPE_CHECKING:
    from robolearn.envs.robot import Robot


def tell_idle(changes: list[str]) -> None:
    """Print, a line each, changes of motors that change nothing, see `lint.idle_changes`."""
    for change in changes:
        tell_line(
            f"robot.actuators.{change} changes no motor: more particular entries decide; name the joints, or the keys "
            "of the robot's file"
        )


def robot(
    name: str,
    settings: list[str],
    picture: Path | None = None,
    write: Path | None = None,
    excite: Path | None = None,
    period: float | None = None,
) -> bool:
    """Print what is derived from a robot's file, and the findings about its model.

    Args:
        name: a robot's name or path.
        settings: changes, as `robot.actuators.knee.kp=80`.
        picture: PNG file to write, of the home pose.
        write: folder to write a robot.yaml to.
        excite: CSV or NPZ file to write, of a motion that excites its joints, see `simulation.excite`.
        period: control period of that motion [s]; None: that of `simulation.excite`.

    Returns:
        Whether the model has no error.

    Raises:
        ConfigError, MissingError: there is no such robot, its file is not here, or it or a change is invalid.
    """
    from robolearn.envs import lint
    from robolearn.envs.robot import Robot

    changes = robot_changes(parse(settings))
    registry.require("robots", name)
    found = registry.load("robots", name)
    known = name if registry.entries("robots").get(name) else ""
    if isinstance(found, Robot) and changes:
        raise ConfigError(
            f"robot.{next(iter(changes))}: robot {name} is made by Python code; change it there"
        )
    made = found if isinstance(found, Robot) else Robot.load(found, changes, known)
    if write is not None and (write / "robot.yaml").exists():
        raise ConfigError(f"{quote(str(write / 'robot.yaml'), 120)} exists; name another folder with --write")
    if period is not None and excite is None:
        raise ConfigError(
            "--period is of the motion that --excite FILE writes; add it, or leave --period out"
        )
    if excite is not None:
        from robolearn.simulation import excite as exciting

        exciting.require_format(excite)
    if changes:
        tell_idle(lint.idle_changes(found, changes))
    print(describe(made, lint.moved_inertia(made)))
    done = lint.hold(made)
    print(f"home pose  {done.text} (2 s of joint targets at home)")
    findings = lint.check(made)
    for finding in findings:
        print(f"{finding.level}  {finding.check}: {finding.text}")
    errors = sum(finding.level == "error" for finding in findings)
    print(f"{errors} errors, {len(findings) - errors} warnings")
    if excite is not None:
        motion = exciting.excite(made, period or exciting.PERIOD)
        print("\n".join(exciting.summary(motion.parts, motion)))
        motion.write(excite)
        print(f"wrote {excite}")
    if picture is not None:
        from robolearn.simulation.picture import draw

        draw(made, picture)
        print(f"wrote {picture}")
    if write is not None:
        write.mkdir(parents=True, exist_ok=True)
        with replacing(write / "robot.yaml") as part:
            part.write_text(stated(made), encoding="utf-8")
        print(f"wrote {write / 'robot.yaml'}; try it: robolearn robot {write}/")
    return errors == 0


def describe(made: Robot, inertia: Mapping[str, float]) -> str:
    """A robot as text: its parts, then a line a joint."""
    from robolearn.envs import mjcf
    from robolearn.envs.actuators.model import by_model

    model = mjcf.build_model(made)
    pairs = made.mirror.pairs if made.mirror else []
    colliding = [
        g
        for g in range(model.ngeom)
        if model.geom_bodyid[g] and (model.geom_contype[g] or model.geom_conaffinity[g])
    ]
    option = mjcf.options(made, "mujoco")
    base = (
        f"{made.base}, free, {made.home_height:.3f} m above the ground at home"
        if made.base
        else "fixed to the world"
    )
    mass = f"{float(model.body_subtreemass[1:].max(initial=0)):.2f} kg"
    lines = [
        f"{made.name}: {made.description}",
        f"file       {made.mjcf}",
        f"base       {base}; {mass}, {len(made.joints)} joints, {len(made.actuators)} actuators",
        f"feet       {listing(made.feet, 8) if made.feet else 'none'}",
        f"mirror     {len(pairs)} pairs: {listing((f'{a} = {b}' for a, b in pairs), 3)}"
        if pairs
        else "mirror     none",
        *_flips(made),
        f"collisions {len(colliding)} geoms of {len({int(model.geom_bodyid[g]) for g in colliding})} bodies",
        f"solver     {', '.join(f'{key} {value}' for key, value in option.items())}",
        "",
    ]
    rows = [("joint", "range", "home", "kp", "kd", "effort", "Hz", "damping")]
    motors = {actuator.joint: actuator for actuator in made.actuators}
    for name, home in zip(made.joints, made.home, strict=True):
        joint = model.joint(name)
        low, high = joint.range
        span = f"{low:.2f} to {high:.2f}" if model.jnt_limited[joint.id] else "unlimited"
        motor = motors.get(name)
        if motor is None:
            rows.append((name, span, f"{home:.3f}", "passive", "", "", "", ""))
        elif motor.kp and inertia[name] > 0:
            w = math.sqrt(motor.kp / inertia[name])
            damping = motor.kd + float(model.dof_damping[joint.dofadr[0]])
            ratio = damping / (2 * math.sqrt(motor.kp * inertia[name]))
            rows.append((name, span, f"{home:.3f}", f"{motor.kp:.4g}", f"{motor.kd:.3g}", f"{motor.effort:.4g}",
                         f"{w / (2 * math.pi):.1f}", f"{ratio:.2f}"))  # fmt: skip
        else:
            rows.append((name, span, f"{home:.3f}", "force", "", f"{motor.effort:.4g}", "", ""))
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines += [
        "  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]
    return "\n".join(
        [
            *lines,
            "Hz, damping: natural frequency and damping ratio of servo and joint with the inertia they move at home",
            *(
                f"motors     {model}: {listing(joints, 8)}"
                for model, joints in by_model(
                    (a.joint, a.motor.stated()) for a in made.actuators if a.motor
                ).items()
            ),
            "",
        ]
    )


def _flips(made: Robot) -> list[str]:
    """A line with the joints that change sign in the mirror image, left and right by one name."""
    if made.mirror is None:
        return []
    names = dict.fromkeys(made.mirror.base(joint) for joint in made.joints if made.mirror.flips(joint))
    return [f"           change sign: {listing(names, 12) if names else 'none'}"]


def stated(made: Robot) -> str:
    """A robot.yaml that states what was derived."""
    content: dict[str, Any] = {
        "schema": 2,
        "description": made.description,
        "mjcf": str(made.mjcf),
        "base": made.base,
    }
    if made.base:
        content["home_height"] = made.home_height
    content["feet"] = list(made.feet)
    content["bodies"] = list(made.bodies)
    driven = {actuator.joint for actuator in made.actuators}
    content["joints"] = {
        name: {"home": home} if name in driven else {"home": home, "actuator": None}
        for name, home in zip(made.joints, made.home, strict=True)
    }
    content["actuators"] = {
        a.joint: (
            {"kind": a.kind, "kp": a.kp, "kd": a.kd, "effort": a.effort}
            if a.kind == "position"
            else {"kind": a.kind, "effort": a.effort}
        )
        | (a.motor.stated() if a.motor else {})
        for a in made.actuators
    }
    for a in made.actuators:
        if a.armature is not None:
            content["actuators"][a.joint]["armature"] = a.armature
    if made.mirror is None or made.mirror.stated:
        content["mirror"] = made.mirror.stated if made.mirror else None
    if made.solver:
        content["solver"] = made.solver
    head = (
        "# Written by `robolearn robot`. Every key but schema and mjcf may be left out; it is then derived.\n"
        "# Without a mirror, pairs are derived from names and axes: `mirror: null` is none, else {left, right, flip}.\n"
    )
    return head + yaml.safe_dump(content, sort_keys=False, default_flow_style=None, width=110)
