"""Observations, computed from raw sensor readings and the contract alone."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from robolearn.runtime.errors import BAD_INPUT, Refused

Sensors = Mapping[str, Any]
"""Readings that observations are computed from. From the robot: `quat` (4,) wxyz, `gyro` (3,) [rad/s] in the base
frame, `joint_pos` (J,) [rad or m], `joint_vel` (J,) [rad/s or m/s]. Added by the runtime: `last_action` (A,),
`command` (C,), `home` (J,), `limited` (J,) bool (the joint has limits).
Of a policy that observes objects, from the robot's camera or a tracker: `object_pos`
(3 K,), the positions of the K objects in base axes [m].

For a policy of an external environment: `given` (D,) and nothing else.
"""

GIVEN = "given"
"""The observation of a policy that was trained in an external environment: assembled by the robot's software and passed
to the network unchanged, the only one in its contract. An action of this kind is in that environment's units."""

POSE = ["x", "y", "z", "qw", "qx", "qy", "qz"]
"""Columns of a pose command; the first three without orientation."""

OBJECT = "object_pos"
"""The observation, and the reading, of where objects are."""


def projected_gravity_of(sensors: Sensors) -> np.ndarray:
    """The world's down direction (3,) in the base frame: the third row of the rotation matrix, negated."""
    w, x, y, z = np.asarray(sensors["quat"], np.float64).tolist()
    return np.array([2 * (w * y - x * z), -2 * (y * z + w * x), 2 * (x * x + y * y) - 1], np.float32)


def limited_joint_pos_of(sensors: Sensors) -> np.ndarray:
    """Positions (K,) of the joints that have limits, minus home."""
    away = np.asarray(sensors["joint_pos"], np.float32) - np.asarray(sensors["home"], np.float32)
    return away[np.asarray(sensors["limited"])]


def turning_joint_pos_of(sensors: Sensors) -> np.ndarray:
    """(2 U,): sines of the U joints without limits, then their cosines."""
    angle = np.asarray(sensors["joint_pos"], np.float32)[~np.asarray(sensors["limited"])]
    return np.concatenate((np.sin(angle), np.cos(angle)))


def reading(key: str) -> Callable[[Sensors], np.ndarray]:
    """A function that returns one reading unchanged, as float32."""
    return lambda sensors: np.asarray(sensors[key], np.float32)


OBSERVATIONS: dict[str, Callable[[Sensors], np.ndarray]] = {
    "base_ang_vel": reading("gyro"),
    "projected_gravity": projected_gravity_of,
    "joint_pos_rel": lambda s: np.asarray(s["joint_pos"], np.float32) - np.asarray(s["home"], np.float32),
    "limited_joint_pos": limited_joint_pos_of,
    "turning_joint_pos": turning_joint_pos_of,
    "joint_vel_rel": reading("joint_vel"),
    "last_action": reading("last_action"),
    "velocity_commands": reading("command"),
    "pose_commands": reading("command"),
    OBJECT: reading(OBJECT),
    GIVEN: reading(GIVEN),
}
"""All observations by name: sensors -> (k,) float32. robolearn/tasks/mdp/observations.py holds their torch versions
for the simulation."""

UNITS = {
    "base_ang_vel": "rad/s",
    "projected_gravity": "1, the unit vector that points down, in the base frame",
    "joint_pos_rel": "rad (m for a slide), less the home position",
    "limited_joint_pos": "rad (m for a slide), less the home position, of the joints that have limits",
    "turning_joint_pos": "1, sine and then cosine of the joints without limits",
    "joint_vel_rel": "rad/s (m/s for a slide)",
    "last_action": "1, the network's previous output",
    "velocity_commands": "m/s forward, m/s to the left, rad/s counterclockwise",
    "pose_commands": "m, and 1 for the quaternion; x, y, z in the axes and from the origin of the base",
    OBJECT: "m, positions of the objects in base axes, in the order of the scene",
    GIVEN: "each column's as in the environment it was trained in",
}
"""Unit of each observation, by name. Contracts contain these texts: a change makes `deploy` refuse older bundles."""


def sensors_of(contract: Mapping[str, Any]) -> dict[str, int]:
    """The readings that `Runtime.step` needs: length of each, by name."""
    first, joints = contract["observations"][0], len(contract["joints"])
    if first["name"] == GIVEN:
        return {GIVEN: first["width"]}
    sizes = {"quat": 4, "gyro": 3, "joint_pos": joints, "joint_vel": joints}
    return sizes | {
        item["name"]: item["width"] for item in contract["observations"] if item["name"] == OBJECT
    }


def checked_contract(contract: Any, where: str) -> dict[str, Any]:
    """Check that the parts of a contract agree with each other; returns it as a dict.

    Args:
        contract: as read from JSON.
        where: the file or object that holds it, for messages.

    Raises:
        Refused: BAD_INPUT; the first fault is named.
    """

    def refuse(why: str) -> Refused:
        return Refused(f"{where}: {why}", BAD_INPUT)

    try:
        joints, actions = contract["joints"], contract["actions"]
        names = [joint["name"] for joint in joints]
        numbers = [float(contract["control_dt"])]
        numbers += [float(joint["home"]) for joint in joints]
        numbers += [float(joint[k]) for joint in joints for k in ("lower", "upper") if joint[k] is not None]
        keys = ("kp", "kd", "effort", "offset", "scale")
        numbers += [float(action[key]) for action in actions for key in keys if action[key] is not None]
        if not all(math.isfinite(number) for number in numbers):
            raise refuse("a number in it is not finite")
        if not 0 < contract["control_dt"] <= 1:
            raise refuse(
                f"control_dt={contract['control_dt']:g} s is not a control period; it must be above 0 and at most 1 s"
            )
        given = any(item["name"] == GIVEN for item in contract["observations"])
        if given and (why := _fault_of_given(contract)):
            raise refuse(why)
        if len(set(names)) != len(names) or not (names or given):
            raise refuse("two joints have the same name, or there are no joints")
        for action in actions:
            if action["joint"] not in names and not given:
                raise refuse(
                    f"an actuator drives {action['joint']!r}, which is not a joint; joints: {', '.join(names)}"
                )
        if not actions or len({action["joint"] for action in actions}) != len(actions):
            raise refuse("two actuators drive the same joint, or there are no actuators")
        limited = sum(joint["lower"] is not None and joint["upper"] is not None for joint in joints)
        widths = {
            "base_ang_vel": 3,
            "projected_gravity": 3,
            "joint_pos_rel": len(joints),
            "limited_joint_pos": limited,
            "turning_joint_pos": 2 * (len(joints) - limited),
            "joint_vel_rel": len(joints),
            "last_action": len(actions),
            "velocity_commands": len(contract["command"]),
            "pose_commands": len(contract["command"]) if contract["command"] in (POSE[:3], POSE) else 0,
            OBJECT: sum(item["width"] for item in contract["observations"] if item["name"] == OBJECT)
            // 3
            * 3,
            GIVEN: sum(len(item.get("columns", ())) for item in contract["observations"]),
        }
        if contract["extra"]:
            raise refuse(
                f"its policy needs {', '.join(contract['extra'])}, which this version does not have; run it with the "
                "runtime.py in its own bundle"
            )
        column = 0
        for item in contract["observations"]:
            if item["name"] not in OBSERVATIONS:
                raise refuse(f"unknown observation {item['name']!r}; valid: {', '.join(OBSERVATIONS)}")
            if (item["column"], item["width"]) != (column, widths[item["name"]]):
                raise refuse(
                    f"observation {item['name']} takes {item['width']} columns from {item['column']}; joints, "
                    f"actuators and command require {widths[item['name']]} from {column}"
                )
            if item.get("history", 1) != 1:
                raise refuse(
                    f"observation {item['name']} has history {item['history']}; this runtime supports 1"
                )
            column += item["width"]
        if not column:
            raise refuse("it has no observations")
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
        raise refuse(f"it is incomplete or malformed ({type(error).__name__}: {error})") from None
    return dict(contract)


def _fault_of_given(contract: Mapping[str, Any]) -> str:
    """The fault of an external environment's contract; an empty string where there is none."""
    items, actions = contract["observations"], contract["actions"]
    if len(items) != 1 or contract["joints"] or contract["command"] or contract["extra"]:
        return f"the observation {GIVEN!r} must be the only one, without joints, command and extra"
    if len(set(items[0]["columns"])) != len(items[0]["columns"]):
        return "two columns of the observation have the same name"
    for action in actions:
        low, high = (-math.inf if action["lower"] is None else action["lower"]), action["upper"]
        if action["kind"] != GIVEN or not low <= (math.inf if high is None else high):
            return f"action {action['joint']} must be of kind {GIVEN!r}, with lower at most upper"
    return ""
