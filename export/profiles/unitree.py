"""The deploy folder of unitree_rl_lab and unitree_rl_mjlab: `params/deploy.yaml` beside `exported/policy.onnx`.

Their C++ readers have one order: action i, joint i of an observation, `scale`, `offset` and `default_joint_pos` belong
to motor `joint_ids_map[i]`, while `stiffness` and `damping` are indexed by motor number. One of the two readers
requires each key below; `null` is a required value where it appears. The order of observations in the file is
their order in the network's input.
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
"""Observations that both readers compute as RoboLearn does."""

OF_JOINTS = ("joint_pos_rel", "joint_vel_rel")
"""Observations with one column per joint."""

RANGES = dict(zip(COMMAND, ("lin_vel_x", "lin_vel_y", "ang_vel_z"), strict=True))
"""Names of the command's parts: RoboLearn's -> the readers'."""

HEADER = """\
# {name}, iteration {iteration}: {count} motors, in the order of joint_names below.
#
# BEFORE THIS RUNS ON A ROBOT: joint_ids_map holds the motor number of each joint in that order. RoboLearn does not
# know the motor numbers of your robot and wrote 0, 1, 2, ... If they differ, change the map, and move joint i's
# entries of stiffness and damping to index joint_ids_map[i]; all other lists stay. README.md shows how.
"""

README = """\
# {name} for unitree_rl_lab and unitree_rl_mjlab

Give the controller this folder as `policy_dir`. It reads `params/deploy.yaml` and `exported/policy.onnx`.

**Fill in the motor numbers first.** `joint_ids_map` maps the policy's joints to the robot's motors. RoboLearn does
not know the motor numbers; the file numbers the motors in the order of the joints:

| joint | motor in `joint_ids_map` | stiffness | damping |
|---|---|---|---|
{rows}

If the robot has other motor numbers, change three lists: set `joint_ids_map[i]` to the number of joint i's motor, and
move joint i's `stiffness` and `damping` to that index in their lists. The reader sends gains to all motor numbers up to
the end of the lists: use 0 for motors without a joint. All other lists stay in the order of the joints.

The readers clamp the sticks, which go from -1 to 1, to the ranges under `commands`, so commands beyond 1 m/s or 1 rad/s
are impossible. They set no torque limit; the policy was trained with {effort} [Nm or N].
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
    checked("unitree", manifest, graph, TERMS)
    names = [item["name"] for item in contract["observations"]]
    if twice := [name for name in TERMS if names.count(name) > 1]:
        raise refused("unitree", f"it observes {twice[0]} twice; deploy.yaml has each term once")
    driven = [action["joint"] for action in contract["actions"]]
    passive = [joint["name"] for joint in contract["joints"] if joint["name"] not in driven]
    if passive and (seen := [name for name in OF_JOINTS if name in names]):
        why = f"{' and '.join(seen)} contain {', '.join(passive)}, which have no motor; the readers read only motors"
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
    """Ranges of the command [m/s, rad/s] by the readers' names; all three are required.

    Raises:
        Refused: BAD_INPUT; the manifest has no range for one.
    """
    given = manifest["command_ranges"]
    for name in COMMAND:
        low, high = given.get(name, (1.0, 0.0))
        if not low <= high:
            raise refused(
                "unitree",
                f"the readers clamp the command to a range; the manifest has none for {name}",
                f"set command_ranges.{name} to [low, high]",
            )
    return {RANGES[name]: [float(limit) for limit in given[name]] for name in COMMAND}


def deploy(contract: dict[str, Any], ranges: dict[str, list[float]]) -> dict[str, Any]:
    """The content of deploy.yaml, numbers unrounded."""
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
                # null: all joints. A list would shorten the actions, not select motors.
                "joint_ids": None,
            }
        },
        "observations": {
            # Without `params` in the first term, unitree_rl_mjlab reads the block as several observation groups.
            TERMS[item["name"]]: {
                "params": {"command_name": "base_velocity"} if item["name"] == "velocity_commands" else {},
                "clip": None,
                # Of one sample; the reader keeps the last ones, the oldest first, and starts with copies of the first.
                "scale": [1.0] * (item["width"] // item.get("history", 1)),
                "history_length": item.get("history", 1),
            }
            for item in contract["observations"]
        },
    }
