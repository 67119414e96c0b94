"""The contract in a manifest: joints, actuators, observations, sensors and state, checked for sense before use."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from robolearn.runtime.errors import BAD_INPUT, Refused

GIVEN = "given"
"""The only sensor of a policy that was trained in an external environment: the observation, assembled by the robot's
software. An action of this kind is in that environment's units."""

KINDS = ("position", "force", GIVEN)
"""Kinds of actuators."""

LONGEST = 1 << 20
"""Most numbers in one sensor, observation or state, and most joints."""


LARGEST_FLOAT = 3.4e38
"""Largest number of float32."""


class Fault(ValueError):
    """What is wrong with a manifest."""


def checked_contract(contract: Any, where: str) -> dict[str, Any]:
    """Check that the parts of a contract agree with each other; returns it as a dict.

    Args:
        contract: as read from JSON.
        where: the file or object that holds it, for messages.

    Raises:
        Refused: BAD_INPUT; the first fault is named.
    """
    try:
        _check(contract)
    except Fault as fault:
        raise Refused(f"{where}: {fault}", BAD_INPUT) from None
    except (KeyError, TypeError, ValueError, AttributeError, IndexError, OverflowError) as error:
        why = f"it is incomplete or malformed ({type(error).__name__}: {error})"
        raise Refused(f"{where}: {why}", BAD_INPUT) from None
    return dict(contract)


def _check(contract: Mapping[str, Any]) -> None:
    joints, actions = list(contract["joints"]), list(contract["actions"])
    names = [text(joint["name"], "name of a joint") for joint in joints]
    dt = finite(contract["control_dt"], "control_dt")
    if not 0 < dt <= 1:
        raise Fault(f"control_dt={dt:g} s is not a control period; it must be above 0 and at most 1 s")
    given = any(action["kind"] == GIVEN for action in actions)
    if len(set(names)) != len(names) or not (names or given):
        raise Fault("two joints have the same name, or there are no joints")
    driven = [text(action["joint"], "joint of an actuator") for action in actions]
    if not actions or len(set(driven)) != len(driven):
        raise Fault("two actuators drive the same joint, or there are no actuators")
    for name, joint in zip(names, joints, strict=True):
        finite(joint["home"], f"home of joint {name}")
        _check_range(joint, f"joint {name}", strict=True)
    for name, action in zip(driven, actions, strict=True):
        if given and action["kind"] != GIVEN:
            raise Fault(f"action {name} must be of kind {GIVEN!r}, as others are, not {action['kind']!r:.40}")
        if action["kind"] not in KINDS:
            raise Fault(f"action {name} is of kind {action['kind']!r:.40}; valid: {', '.join(KINDS)}")
        if not given and name not in names:
            raise Fault(f"an actuator drives {name!r}, which is not a joint; joints: {', '.join(names)}")
        _check_action(name, action)
    command = [text(name, "name of a part of the command") for name in contract["command"]]
    if given and (names or command or len(contract["observations"]) != 1):
        raise Fault(f"the observation {GIVEN!r} must be the only one, without joints and command")
    if contract["extra"]:
        raise Fault(
            f"its policy needs {', '.join(contract['extra'])}, which this version does not have; run it with the "
            "runtime.py in its own bundle"
        )
    for key in ("action_delay", "observation_delay"):
        low, high = (finite(steps, key) for steps in contract[key])
        if not 0 <= low <= high:
            raise Fault(f"{key} is {low:g} to {high:g} control steps; it must be a range from 0 up")
    column = 0
    for item in contract["observations"]:
        name = text(item["name"], "name of an observation")
        width, history = (
            whole(item["width"], f"width of {name}"),
            whole(item["history"], f"history of {name}"),
        )
        if item["column"] != column or width % history:
            raise Fault(f"observation {name} takes {width} columns from {item['column']}, not from {column}")
        if "columns" in item and len(item["columns"]) != width:
            raise Fault(f"observation {name} takes {width} columns and names {len(item['columns'])}")
        if "columns" in item and len(set(item["columns"])) != width:
            raise Fault(f"two columns of observation {name} have the same name")
        column += width
    if not column:
        raise Fault("it has no observations")


def _check_action(name: str, action: Mapping[str, Any]) -> None:
    for key in ("offset", "scale"):
        finite(action[key], f"{key} of action {name}")
    for key in ("kp", "kd", "effort"):
        value = action[key]
        if value is not None and finite(value, f"{key} of action {name}") < 0:
            raise Fault(f"{key} of action {name} is {value:g}; it must not be negative")
    if action["kind"] == "position" and not finite(action["kp"], f"kp of action {name}") > 0:
        raise Fault(
            f"kp of action {name} is {action['kp']:g}; an actuator of kind position needs one above 0"
        )
    if action["kind"] != GIVEN and action["effort"] == 0:
        raise Fault(f"effort of action {name} is 0; it must be above 0")
    if action["kind"] == GIVEN:
        _check_range(action, f"action {name}", strict=False)


def _check_range(part: Mapping[str, Any], what: str, strict: bool) -> None:
    low, high = ((None if part[k] is None else finite(part[k], f"{k} of {what}")) for k in ("lower", "upper"))
    if low is not None and high is not None and (low > high or (strict and low == high)):
        raise Fault(f"{what} goes from {low:g} to {high:g}; lower must be below upper")


def checked_ports(manifest: Mapping[str, Any], contract: Mapping[str, Any]) -> tuple[dict, dict]:
    """Shape of each input and output of the controller, by name, in order, as the manifest's tables require.

    Raises:
        Fault: the tables are malformed, or are not those of the controller's entry in the manifest.
    """
    inputs: dict[str, tuple[int, ...]] = {
        text(s["name"], "name of a sensor"): shape_of(s) for s in manifest["sensors"]
    }
    if contract["command"]:
        inputs["command"] = (1, len(contract["command"]))
    last = contract["observations"][-1]
    count = len(contract["actions"])
    outputs: dict[str, tuple[int, ...]] = {
        "targets": (1, count),
        "actions": (1, count),
        "observations": (1, last["column"] + last["width"]),
    }
    for entry in manifest["state"]:
        name, shape = text(entry["name"], "name of a state"), shape_of(entry)
        reset = entry["reset"]
        flat = _flat(reset)
        if _shape(reset) != shape:
            raise Fault(f"the reset of state {name} holds {len(flat)} numbers; its shape is {list(shape)}")
        for number in flat:
            finite(number, f"the reset of state {name}")
        inputs[f"{name}_in"] = outputs[f"{name}_out"] = shape
    count = len(manifest["sensors"]) + bool(contract["command"]) + len(manifest["state"])
    if len(inputs) != count:
        raise Fault("two sensors or states have the same name")
    for kind, wanted in (("inputs", inputs), ("outputs", outputs)):
        stated = {name: tuple(shape) for name, shape in manifest["controller"][kind].items()}
        if stated != wanted:
            raise Fault(f"the controller's {kind} are {shapes(stated)}; its tables require {shapes(wanted)}")
    return inputs, outputs


def shapes(ports: Mapping[str, Sequence[int]]) -> str:
    """Names and shapes, for messages."""
    return ", ".join(f"{name} {'x'.join(map(str, shape))}" for name, shape in ports.items()) or "none"


def shape_of(entry: Mapping[str, Any]) -> tuple[int, ...]:
    """The shape of a sensor or state, with the batch of 1."""
    shape = tuple(whole(size, f"shape of {entry['name']}") for size in entry["shape"])
    if not 1 <= len(shape) <= 4 or math.prod(shape) > LONGEST:
        raise Fault(f"the shape of {entry['name']} is {list(shape)}; it must have 1 to 4 sizes")
    return shape


def _shape(value: Any) -> tuple[int, ...] | None:
    """The shape of nested lists of numbers; None where they are ragged."""
    if not isinstance(value, (list, tuple)):
        return ()
    inner = {_shape(part) for part in value}
    only = inner.pop() if len(inner) == 1 else None
    return None if only is None else (len(value), *only)


def _flat(value: Any) -> list[Any]:
    if not isinstance(value, (list, tuple)):
        return [value]
    return [number for part in value for number in _flat(part)]


def text(value: Any, what: str) -> str:
    """`value`, which must be text that is not empty."""
    if not isinstance(value, str) or not value or len(value) > 200:
        raise Fault(f"{what} is {value!r:.60}; it must be text")
    return value


def finite(value: Any, what: str) -> float:
    """`value`, which must be a finite number of float32."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not abs(value) <= LARGEST_FLOAT:
        raise Fault(f"{what} is {value!r:.60}; it must be a finite number")
    return float(value)


def whole(value: Any, what: str) -> int:
    """`value`, which must be a whole number above 0."""
    if isinstance(value, bool) or not isinstance(value, int) or not 0 < value <= LONGEST:
        raise Fault(f"{what} is {value!r:.60}; it must be a whole number from 1 to {LONGEST}")
    return value
