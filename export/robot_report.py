"""REPORT.md's sections on what the robot's software must agree with: sensors, joints, base, state, golden steps."""

from __future__ import annotations

from typing import Any

from robolearn.export.golden import EVENTS
from robolearn.export.markdown import columns, number, table

AGREE = """\
A wrong order, sign, frame or gain here breaks robots. Numbers are rounded; manifest.json has full precision. All \
numbers are float32. For a joint that slides, read m for rad and N for Nm.

Every control step `{file}` takes {inputs}, and gives `targets`, `actions`, `observations`{outputs}. The order of \
`joint_pos` and `joint_vel` is {order}."""

TARGETS = """\
Joint target = offset + scale x action. Kind position: torque = kp (target - position) - kd velocity, clipped \
to +-effort. Kind force: the joint target, clipped to +-effort. kd does not hold the damping that a joint has by \
itself, see below: the robot's joints bring their own. Joint targets may lie beyond the joint's limits, as in \
training: the motor pulls by the difference and stops at its effort. The drives' loop has to run much faster than the \
policy: a target holds for {period:g} ms; in simulation {follows}."""

MOTOR = "Actuator, Kind, kp [Nm/rad], kd [Nm s/rad], Effort [Nm], Offset [{0}], Scale [{0}]"

SIGNS = """\
Positive directions, with the robot in its home pose. The axis is that of a right-handed turn, or of the motion of a \
slide, in the frame of the body named with it, where all joints between the two bodies are at 0; such joints follow \
each other in the order of the table. `robot.xml` holds the same as a model of the robot, without meshes, to simulate \
and compare: start from its keyframe `home`{picture}. Damping in Nm s/rad, friction in Nm, armature in kg m^2."""


def agreement(manifest: dict[str, Any], picture: str) -> list[str]:
    """The section; `picture` is the name of the picture of the home pose, empty where there is none."""
    contract = manifest["contract"]
    joints, motors = {joint["name"]: joint for joint in contract["joints"]}, contract["actions"]
    driven = [motor["joint"] for motor in motors]
    order = "that of the actuators below" if driven == list(joints) else ", ".join(joints)
    return [
        "## What the robot must agree with",
        AGREE.format(order=order, **_ports(manifest)),
        table(("Input", "Numbers", "Unit", "Frame"), _sensors(manifest)),
        _base(manifest),
        table(("Observation", "Columns, from 0", "Unit"), _observations(contract)),
        _depends(manifest) + TARGETS.format(period=1e3 * contract["control_dt"], follows=_follows(manifest)),
        *_motors(contract, joints),
        SIGNS.format(picture=f"; `{picture}` shows the axes" * bool(picture)),
        table(
            ("Joint", "Positive: in the home pose", "Axis", "Own damping", "Own friction", "Armature"),
            _signs(manifest),
        ),
        f"![The robot in its home pose]({picture})" if picture else "",
        _state(manifest),
    ]


def _follows(manifest: dict[str, Any]) -> str:
    """How the torque followed a joint target in simulation."""
    if not manifest.get("motors"):
        return "the torque followed it without delay"
    return "motors had the models that are listed under the conditions in training"


def _depends(manifest: dict[str, Any]) -> str:
    """A warning where offset and scale are not the whole of the joint targets."""
    other = [name for name in manifest["targets"]["depend_on"] if name != "action"]
    if not other and manifest["targets"]["affine"]:
        return ""
    if not other:
        return (
            "**The joint targets are not offset + scale x action: only the controller computes them; offset and scale "
            "are those of small actions.** "
        )
    return (
        f"**The joint targets depend on {', '.join(other)} too: only the controller computes them; offset and scale "
        "are those of a robot at rest after a reset.** "
    )


def _ports(manifest: dict[str, Any]) -> dict[str, str]:
    """File, inputs and outputs of the controller."""
    controller = manifest["controller"]
    state = [f"`{entry['name']}_{end}`" for end in ("in", "out") for entry in manifest["state"]]
    given = [f"`{name}`" for name in controller["inputs"] if not name.endswith("_in")]
    half = len(state) // 2
    return {
        "file": controller["file"],
        "inputs": ", ".join([*given, *state[:half]]) + ", each with a batch of 1",
        "outputs": "".join(f", {name}" for name in state[half:]),
    }


def _sensors(manifest: dict[str, Any]) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = [
        (f"`{s['name']}`", "x".join(map(str, s["shape"][1:])), s["unit"], s["frame"] or "none")
        for s in manifest["sensors"]
    ]
    if command := manifest["contract"]["command"]:
        rows.append(("`command`", str(len(command)), ", ".join(command), "what you ask for"))
    return rows


def _base(manifest: dict[str, Any]) -> str:
    base = manifest["base"]
    if not base["link"]:
        return "The base is fixed to the world."
    feet = ", ".join(f"`{foot}`" for foot in base["feet"]) or "nothing"
    return (
        f"Base link: `{base['link']}`. {base['imu']} In the home pose it is level and {base['home_height']:.4g} m "
        f"above the ground, with {feet} on it; the robot weighs {base['mass']:.4g} kg."
    )


def _observations(contract: dict[str, Any]) -> list[tuple[str, ...]]:
    return [
        (
            f"`{item['name']}`",
            columns(item),
            (item["unit"] or "as the task's file says")
            + f"; the last {item['history']} steps, the oldest first" * (item["history"] > 1),
        )
        for item in contract["observations"]
    ]


def _motors(contract: dict[str, Any], joints: dict[str, Any]) -> list[str]:
    motors = contract["actions"]
    unit = "/".join(sorted({"Nm" if motor["kind"] == "force" else "rad" for motor in motors}))
    shown = ends = {"home": "Home [rad]", "lower": "Lower [rad]", "upper": "Upper [rad]"}
    rows = []
    for motor in motors:
        numbers = [motor[key] for key in ("kp", "kd", "effort", "offset", "scale")]
        numbers += [joints[motor["joint"]][key] for key in shown]
        rows.append((motor["joint"], motor["kind"], *map(number, numbers)))
    driven = {motor["joint"] for motor in motors}
    free = [(n, *(number(j[key]) for key in ends)) for n, j in joints.items() if n not in driven]
    return [
        table([*MOTOR.format(unit).split(", "), *shown.values()], rows),
        table(("Joint without actuator", *ends.values()), free) if free else "",
    ]


def _signs(manifest: dict[str, Any]) -> list[tuple[str, ...]]:
    return [
        (
            name,
            joint["positive"],
            f"({', '.join(f'{x:g}' for x in joint['axis'])}) of `{joint['parent']}`",
            *(f"{joint[key]:.4g}" for key in ("damping", "friction", "armature")),
        )
        for name, joint in manifest["joints"].items()
    ]


def _state(manifest: dict[str, Any]) -> str:
    if not manifest["state"]:
        return "The controller has no state."
    rows = []
    for entry in manifest["state"]:
        flat = _flat(entry["reset"])
        reset = (
            f"{flat[0]:g}"
            if len(set(flat)) == 1
            else ", ".join(f"{x:.4g}" for x in flat[:8]) + " ..." * (len(flat) > 8)
        )
        rows.append((f"`{entry['name']}`", "x".join(map(str, entry["shape"][1:])) or "1", reset))
    head = "The controller's state: what it gives as `NAME_out` is its `NAME_in` in the next step."
    return f"{head}\n\n{table(('State', 'Numbers', 'After a reset'), rows)}"


def _flat(value: Any) -> list[float]:
    return [number for part in value for number in _flat(part)] if isinstance(value, list) else [value]


def golden_facts(golden: dict[str, Any]) -> str:
    """What happens in the golden steps, and which branches of the task's code they do not take."""
    events = [f"{EVENTS[name]} ({count})" for name, count in golden["events"].items() if count]
    absent = [EVENTS[name] for name, count in golden["events"].items() if not count]
    said = f"{golden['steps']} control steps of {golden['episodes']} episodes"
    said += f", with {', '.join(events)}" * bool(events) + "."
    said += f" **Without {', without '.join(absent)}.**" * bool(absent)
    ways = golden["branches"]
    if ways["ways"]:
        said += f" {ways['taken']} of {ways['ways']} ways of the branches in the task's code are taken"
        some = ", ".join(ways["not_taken"][:12]) + ", ..." * (len(ways["not_taken"]) > 12)
        said += f"; **not taken: {some}**" * bool(ways["not_taken"]) + "."
    else:
        said += " The task's code has no branches."
    return said
