"""The deploy folder of unitree_rl_lab and unitree_rl_mjlab: `params/deploy.yaml` beside `exported/policy.onnx`.

Their C++ readers have one order: action i, joint i of an observation, `scale`, `offset` and `default_joint_pos`
all belong to motor `joint_ids_map[i]`, while `stiffness` and `damping` are indexed by the motor's number itself.
Every key below is read without a default by one of the two, `null` where they ask for null. An observation's
position in the file is its place in the network's input.
"""

from __future__ import annotations

from typing import Any

import onnx
import yaml

from robolearn.errors import printable
from robolearn.export.profiles.plain import COMMAND, checked, copied, efforts, refused

TERMS = {
    name: name
    for name in (
        "base_ang_vel",
        "projected_gravity",
        "joint_pos_rel",
        "joint_vel_rel",
        "last_action",
        "velocity_commands",
    )
}
"""Observations that both readers compute as we do. They also have `gait_phase`, whose clock never rests."""

OF_JOINTS = ("joint_pos_rel", "joint_vel_rel")
"""Observations with one column a joint."""

RANGES = dict(zip(COMMAND, ("lin_vel_x", "lin_vel_y", "ang_vel_z"), strict=True))
"""Their name of each part of the command."""

HEADER = """\
# {name}, iteration {iteration}: {count} motors, in the order of joint_names below.
#
# BEFORE THIS RUNS ON A ROBOT: joint_ids_map holds the motor number of each joint in that order. RoboLearn does not
# know how your robot numbers its motors and wrote 0, 1, 2, ... If it counts otherwise, change the map, and put
# joint i's entries of stiffness and damping to place joint_ids_map[i]; all other lists stay. README.md shows how.
"""

README = """\
# {name} for unitree_rl_lab and unitree_rl_mjlab

Give the controller this folder as `policy_dir`. It reads `params/deploy.yaml` and `exported/policy.onnx`.

**Fill in the motor numbers first.** `joint_ids_map` maps the policy's joints to the robot's motors. RoboLearn does
not know that numbering; the file counts the motors in the order of the joints:

| joint | motor in `joint_ids_map` | stiffness | damping |
|---|---|---|---|
{rows}

Where the robot numbers them otherwise, three lists change: `joint_ids_map[i]` becomes the number of joint i's motor,
and joint i's `stiffness` and `damping` move to that place in theirs. The reader sends gains to every number up to the
lists' end: give those without a joint 0. All other lists stay in the order of the joints.

The readers clamp the sticks, which go from -1 to 1, to the ranges under `commands`: beyond 1 m/s or 1 rad/s nothing
can be asked for. They set no torque limit; the policy was trained with {effort} [Nm or N].
"""


def files(manifest: dict[str, Any], graph: onnx.ModelProto) -> dict[str, bytes]:
    """The folder's content.

    Args:
        manifest: of a bundle: `contract`, `command_ranges` and `run`.
        graph: `obs` (1, D) to `actions` (1, A), float32; it is not changed.

    Returns:
        Content by path relative to `policy_dir`.

    Raises:
        Refused: the readers cannot run this policy.
    """
    contract = manifest["contract"]
    checked("unitree", contract, graph, TERMS)
    names = [item["name"] for item in contract["observations"]]
    if twice := [name for name in TERMS if names.count(name) > 1]:
        raise refused("unitree", f"it observes {twice[0]} twice, and deploy.yaml has each term once")
    driven = [action["joint"] for action in contract["actions"]]
    passive = [joint["name"] for joint in contract["joints"] if joint["name"] not in driven]
    if passive and (seen := [name for name in OF_JOINTS if name in names]):
        why = f"{' and '.join(seen)} contain {', '.join(passive)}, without a motor, and the readers ask motors only"
        raise refused("unitree", why)
    config = deploy(contract, ranges(manifest) if "velocity_commands" in names else {})
    actions, name = contract["actions"], printable(manifest["run"]["name"])
    header = HEADER.format(name=name, iteration=manifest["run"]["iteration"], count=len(actions))
    readme = README.format(
        name=name,
        rows="\n".join(
            f"| {action['joint']} | {i} | {action['kp']!r} | {action['kd']!r} |"
            for i, action in enumerate(actions)
        ),
        effort=efforts(contract),
    )
    text = header + yaml.safe_dump(config, sort_keys=False, default_flow_style=None, width=110)
    return {
        "exported/policy.onnx": copied(graph).SerializeToString(deterministic=True),
        "params/deploy.yaml": text.encode(),
        "README.md": readme.encode(),
    }


def ranges(manifest: dict[str, Any]) -> dict[str, list[float]]:
    """The command's ranges [m/s, rad/s] in the readers' names; they read all three without a default."""
    given = manifest["command_ranges"]
    for name in COMMAND:
        low, high = given.get(name, (1.0, 0.0))
        if not low <= high:
            raise refused(
                "unitree",
                f"the readers clamp the command to a range, and the manifest has none for {name}",
                f"give command_ranges.{name} as [lowest, highest]",
            )
    return {RANGES[name]: [float(limit) for limit in given[name]] for name in COMMAND}


def deploy(contract: dict[str, Any], ranges: dict[str, list[float]]) -> dict[str, Any]:
    """The content of deploy.yaml, numbers as they are."""
    actions = contract["actions"]
    home = {joint["name"]: float(joint["home"]) for joint in contract["joints"]}

    def column(key: str) -> list[float]:
        return [float(action[key]) for action in actions]

    return {
        "joint_ids_map": list(range(len(actions))),
        "step_dt": float(contract["control_dt"]),
        "stiffness": column("kp"),
        "damping": column("kd"),
        "default_joint_pos": [home[action["joint"]] for action in actions],
        "commands": {"base_velocity": {"ranges": ranges}} if ranges else {},
        "actions": {
            "JointPositionAction": {
                "clip": None,
                "joint_names": [action["joint"] for action in actions],
                "scale": column("scale"),
                "offset": column("offset"),
                # Which joints: all. A list here would shorten the actions, not choose the motors.
                "joint_ids": None,
            }
        },
        "observations": {
            # unitree_rl_mjlab takes the block for several groups of terms unless the first has `params`.
            TERMS[item["name"]]: {
                "params": {"command_name": "base_velocity"} if item["name"] == "velocity_commands" else {},
                "clip": None,
                "scale": [1.0] * item["width"],
                "history_length": 1,
            }
            for item in contract["observations"]
        },
    }
