"""An ONNX file with the metadata properties of mjlab 1.6, for legged_control2 and other readers.

Properties are text; lists are separated by commas. Every list of numbers has one entry per entry of `joint_names`, and
a joint target is default_joint_pos + action_scale x action: there is no separate offset and no joint without a motor.
mjlab rounds to three decimals; here numbers are written with full precision.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import onnx

from robolearn.errors import printable
from robolearn.export.profiles.plain import checked, copied, efforts, refused

TERMS = {
    "base_ang_vel": "base_ang_vel",
    "projected_gravity": "projected_gravity",
    "joint_pos_rel": "joint_pos",
    "joint_vel_rel": "joint_vel",
    "last_action": "actions",
    "velocity_commands": "command",
}
"""RoboLearn's names -> those of mjlab's velocity task."""

VELOCITY = "twist"
"""Name of mjlab's velocity command: forward, sideways, yaw."""

README = """\
# {name} with mjlab's properties

The metadata of `policy.onnx` holds everything that its reader needs, except:

- **Rate.** One control step is {dt!r} s; set the reader to {rate:g} Hz (legged_control2: `update_rate`).
- **Command.** The readers do not limit commands [m/s, rad/s]. Ranges in training: {ranges}.
{history}- **Torque.** The file has no torque limits; the policy was trained with {effort} [Nm or N].
"""


def files(manifest: dict[str, Any], graph: onnx.ModelProto) -> dict[str, bytes]:
    """The ONNX file, and a README.md with what the format cannot hold.

    Args:
        manifest: of a bundle: `contract`, `command_ranges` and `run`.
        graph: `obs` (1, D) to `actions` (1, A), float32; it is not changed.

    Returns:
        Content by relative path.

    Raises:
        Refused: the readers cannot run this policy.
    """
    contract = manifest["contract"]
    checked("mjlab", manifest, graph, TERMS)
    _check(contract)
    copy = copied(graph)
    # Replaces the metadata of the ONNX graph; the readers look these up by name.
    onnx.helper.set_model_props(copy, properties(manifest))
    ranges = (f"{part} {low!r} to {high!r}" for part, (low, high) in manifest["command_ranges"].items())
    readme = README.format(
        name=printable(manifest["run"]["name"]),
        dt=float(contract["control_dt"]),
        rate=1 / contract["control_dt"],
        ranges=", ".join(ranges) or "none",
        history=_history(contract),
        effort=efforts(contract),
    )
    return {"policy.onnx": copy.SerializeToString(deterministic=True), "README.md": readme.encode()}


def _history(contract: dict[str, Any]) -> str:
    """The line of README.md about histories; empty without any."""
    past = [
        f"{item['history']} of {TERMS.get(item['name'], item['name'])}"
        for item in contract["observations"]
        if item.get("history", 1) > 1
    ]
    return (
        f"- **History.** The reader must keep the last samples, one a control step: {', '.join(past)}. The network "
        "takes those of an observation one after the other, the oldest first; at the start all are the first one.\n"
        if past
        else ""
    )


def _check(contract: dict[str, Any]) -> None:
    """Refuse a contract that one list entry per joint cannot express."""
    driven = [action["joint"] for action in contract["actions"]]
    for joint in contract["joints"]:
        name, home = joint["name"], joint["home"]
        if name not in driven:
            raise refused("mjlab", f"{name} has no motor; the lists have one entry for each joint")
        if not name or "," in name:
            raise refused("mjlab", f"the lists are separated by commas, but a joint is named {name!r}")
        offset = contract["actions"][driven.index(name)]["offset"]
        if abs(offset - home) > 1e-6:
            raise refused(
                "mjlab",
                f"{name}'s joint target at action 0 is {offset:g}, its home is {home:g}; the format has one "
                "number for both",
                "use the unitree profile or the bundle's runtime.py",
            )


def properties(manifest: dict[str, Any]) -> dict[str, str]:
    """mjlab 1.6's properties by name."""
    contract = manifest["contract"]
    actions, items = contract["actions"], contract["observations"]
    names = [item["name"] for item in items]
    return {
        "run_path": str(manifest["run"]["name"]),
        "joint_names": _csv(joint["name"] for joint in contract["joints"]),
        "joint_stiffness": _csv(float(action["kp"]) for action in actions),
        "joint_damping": _csv(float(action["kd"]) for action in actions),
        "default_joint_pos": _csv(float(joint["home"]) for joint in contract["joints"]),
        "command_names": VELOCITY if "velocity_commands" in names else "",
        "observation_names": _csv(TERMS[name] for name in names),
        "observation_terms_scale": _csv(1.0 for _ in items),
        # A history is flattened to its samples, the oldest first. In mjlab 0 means none; most readers require 0.
        "observation_terms_flatten_history_dim": _csv(1 for _ in items),
        "observation_terms_history_length": _csv(
            0 if item.get("history", 1) == 1 else item["history"] for item in items
        ),
        "observation_terms_clip": _csv("-inf;inf" for _ in items),
        "action_scale": _csv(float(action["scale"]) for action in actions),
    }


def _csv(values: Iterable[str | float]) -> str:
    """A list as text, with floats in full precision."""
    return ",".join(value if isinstance(value, str) else repr(value) for value in values)
