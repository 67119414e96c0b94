"""What other stacks' readers can run at all: a memoryless network whose actions become joint targets.

None of them runs anything beside the network. A policy that needs more is refused here, the reason named.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import onnx

from robolearn.runtime.errors import BAD_INPUT, Refused

IR_VERSION = 10
"""Newest ONNX file format that the readers' ONNX Runtimes (1.20 and 1.22) open."""

COMMAND = ["forward", "sideways", "yaw"]
"""The one command they can give: velocities along x and y and about z."""


RUNTIME = "export without a profile: the bundle's own runtime.py runs it"
"""What to do instead, where that is so."""


def refused(profile: str, why: str, instead: str = RUNTIME) -> Refused:
    """The line that says why a profile cannot be written, and what can be done instead, if anything can."""
    line = f"the {profile} profile cannot express this policy: {why}"
    return Refused(f"{line}; {instead}" if instead else line, BAD_INPUT)


def copied(graph: onnx.ModelProto) -> onnx.ModelProto:
    """A copy in a file format that the readers' ONNX Runtimes open; the operators stay as they are."""
    copy = onnx.ModelProto()
    copy.CopyFrom(graph)
    copy.ir_version = min(copy.ir_version, IR_VERSION)
    onnx.checker.check_model(copy)
    return copy


def checked(profile: str, contract: dict[str, Any], graph: onnx.ModelProto, terms: Mapping[str, str]) -> None:
    """Refuse what no reader can run.

    Args:
        profile: its name, for the message.
        contract: of the manifest.
        graph: `obs` (1, D) to `actions` (1, A).
        terms: the reader's name of each observation that it computes as we do, by ours.

    Raises:
        Refused: with the first reason.
    """
    for why, instead in _obstacles(contract, graph, terms):
        raise refused(profile, why, instead)


def _obstacles(
    contract: dict[str, Any], graph: onnx.ModelProto, terms: Mapping[str, str]
) -> Iterator[tuple[str, str]]:
    """What is in the way, and what to do instead."""
    items = {item["name"]: item for item in contract["observations"]}
    joints = [joint["name"] for joint in contract["joints"]]
    driven = [action["joint"] for action in contract["actions"]]
    yield from _beside(contract)
    for name, item in items.items():
        if name not in terms:
            yield (
                f"it observes {name}, and of our observations the readers know {', '.join(terms)}",
                "train without",
            )
        if item.get("history", 1) != 1:
            yield f"{name} has a history of {item['history']}, whose layout the contract does not give", ""
    if "velocity_commands" in items and contract["command"] != COMMAND:
        given = ", ".join(contract["command"]) or "nothing"
        yield f"the command is {given}, and the readers give {', '.join(COMMAND)} only", RUNTIME
    for action in contract["actions"]:
        if action["kind"] != "position":
            why = (
                f"{action['joint']} is driven by {action['kind']}, and the readers send joint positions only"
            )
            yield why, RUNTIME
    if driven != [name for name in joints if name in driven]:
        orders = f"the actions are of {', '.join(driven)} and the joints {', '.join(joints)}"
        yield f"{orders}, and the readers have one order for both", RUNTIME
    inputs, outputs = ([_port(p) for p in ports] for ports in (graph.graph.input, graph.graph.output))
    if len(inputs) > 1 or len(outputs) > 1:
        yield "it is recurrent, and the readers carry no state from step to step", RUNTIME
    width = sum(item["width"] for item in contract["observations"])
    if inputs != [("obs", [1, width])] or outputs != [("actions", [1, len(driven)])]:
        wanted = f"obs (1, {width}) and actions (1, {len(driven)})"
        yield f"the graph takes {inputs} to {outputs}, and the contract says {wanted}", "export it anew"


def _beside(contract: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """What a policy needs besides its network and the readers do not have, and what to do instead.

    A clock that is not observed and moves no pattern is no need: `gait_clock` alone passes.
    """
    extra = contract["extra"]
    if unknown := [name for name in extra if name not in ("gait_clock", "step_pattern", "stride_pattern")]:
        yield f"the readers know nothing of {', '.join(unknown)}, which the task runs beside it", ""
    needs = []
    if any(_numbers(extra.get("step_pattern"))) or any(_numbers(extra.get("stride_pattern"))):
        patterns = "step_pattern, stride_pattern"
        needs.append(f"the readers send offset + scale x action and add no stepping pattern ({patterns})")
    if any(item["name"] == "gait_phase" for item in contract["observations"]):
        if "gait_clock" not in extra:
            yield "it observes gait_phase, and the contract does not say how that clock runs", ""
        needs.append(
            "the gait clocks they have never rest, while its own, seen as gait_phase, does when it stands"
        )
    if needs:
        yield ", and ".join(needs), RUNTIME


def efforts(contract: Mapping[str, Any]) -> str:
    """The torque limits [Nm or N] of the actuators as a list for a text."""
    limits = (action["effort"] for action in contract["actions"])
    return ", ".join("none" if limit is None else f"{limit:g}" for limit in limits)


def _numbers(table: Any) -> Iterator[float]:
    """Every number in nested tables."""
    if isinstance(table, Mapping):
        for value in table.values():
            yield from _numbers(value)
    elif table is not None:
        yield table


def _port(port: onnx.ValueInfoProto) -> tuple[str, list[int]]:
    """Name and shape of an input or output; 0 where a size is not fixed."""
    return port.name, [size.dim_value for size in port.type.tensor_type.shape.dim]
