"""Checks for all profiles: the readers run only feed-forward networks whose actions become joint targets.

A policy that needs anything besides the network is refused here, with the reason.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import onnx

from robolearn.runtime.errors import BAD_INPUT, Refused

IR_VERSION = 10
"""Newest ONNX file format that the readers' ONNX Runtimes (1.20 and 1.22) open."""

COMMAND = ["forward", "sideways", "yaw"]
"""The only command of the readers: velocities along x and y and about z."""


RUNTIME = "export without a profile and use the bundle's runtime.py"
"""The usual fix in messages."""


def refused(profile: str, why: str, instead: str = RUNTIME) -> Refused:
    """The error with reason and fix; `instead` is empty where there is no fix."""
    line = f"the {profile} profile cannot express this policy: {why}"
    return Refused(f"{line}; {instead}" if instead else line, BAD_INPUT)


def copied(graph: onnx.ModelProto) -> onnx.ModelProto:
    """A copy in an ONNX file format that the readers' ONNX Runtimes open, with the same operators."""
    copy = onnx.ModelProto()
    copy.CopyFrom(graph)
    copy.ir_version = min(copy.ir_version, IR_VERSION)
    onnx.checker.check_model(copy)
    return copy


def checked(profile: str, manifest: dict[str, Any], graph: onnx.ModelProto, terms: Mapping[str, str]) -> None:
    """Refuse a policy that no reader can run.

    Args:
        profile: its name, for the message.
        manifest: of a bundle: `contract` and `state`.
        graph: `obs` (1, D) to `actions` (1, A).
        terms: RoboLearn's name -> reader's name, for observations that the reader computes in the same way.

    Raises:
        Refused: BAD_INPUT, with the first reason.
    """
    for why, instead in _obstacles(manifest, graph, terms):
        raise refused(profile, why, instead)


def _obstacles(
    manifest: dict[str, Any], graph: onnx.ModelProto, terms: Mapping[str, str]
) -> Iterator[tuple[str, str]]:
    """Yields (reason, fix) of everything that the readers cannot run."""
    contract = manifest["contract"]
    items = {item["name"]: item for item in contract["observations"]}
    joints = [joint["name"] for joint in contract["joints"]]
    driven = [action["joint"] for action in contract["actions"]]
    if "pose_commands" in items:
        names = ", ".join(contract["command"])
        yield f"it observes pose_commands ({names}); the readers have only velocity_commands", RUNTIME
    kept = [
        s["name"]
        for s in manifest.get("state", ())
        if s["name"].startswith(("task_", "time", "last_command"))
    ]
    if kept:
        yield f"it keeps {', '.join(kept)} from step to step, which the readers do not", RUNTIME
    other = [name for name in manifest.get("targets", {}).get("depend_on", ()) if name != "action"]
    if other:
        yield f"its joint targets depend on {', '.join(other)} too, not on the action alone", RUNTIME
    if not manifest.get("targets", {}).get("affine", True):
        yield "its joint targets are not offset + scale x action", RUNTIME
    if manifest.get("controller", {}).get("precision") == "bf16":
        yield "it is in bf16, which the readers' ONNX Runtime cannot compute on a CPU", "export it in fp32"
    if contract["extra"]:
        yield f"it needs {', '.join(contract['extra'])}, which the readers do not support", ""
    for name, item in items.items():
        if name not in terms or not item.get("standard", True):
            own = " of its own" * (name in terms)
            yield (
                f"it observes {name}{own}; the readers have only {', '.join(terms)}",
                "train without it",
            )
    if "velocity_commands" in items and contract["command"] != COMMAND:
        given = ", ".join(contract["command"]) or "nothing"
        yield f"the command is {given}; the readers have only {', '.join(COMMAND)}", RUNTIME
    for action in contract["actions"]:
        if action["kind"] != "position":
            why = f"{action['joint']} has an actuator of kind {action['kind']}; the readers send only joint positions"
            yield why, RUNTIME
    if driven != [name for name in joints if name in driven]:
        orders = f"the order of the actions is {', '.join(driven)}, that of the joints {', '.join(joints)}"
        yield f"{orders}; the readers have one order for both", RUNTIME
    inputs, outputs = ([_port(p) for p in ports] for ports in (graph.graph.input, graph.graph.output))
    if len(inputs) > 1 or len(outputs) > 1:
        yield "it is recurrent; the readers keep no recurrent state", RUNTIME
    width = sum(item["width"] for item in contract["observations"])
    if inputs != [("obs", [1, width])] or outputs != [("actions", [1, len(driven)])]:
        wanted = f"obs (1, {width}) and actions (1, {len(driven)})"
        yield f"the ONNX graph has {inputs} and {outputs}; the contract requires {wanted}", "export again"


def efforts(contract: Mapping[str, Any]) -> str:
    """Torque limits [Nm or N] of the actuators as text."""
    limits = (action["effort"] for action in contract["actions"])
    return ", ".join("none" if limit is None else f"{limit:g}" for limit in limits)


def _port(port: onnx.ValueInfoProto) -> tuple[str, list[int]]:
    """(name, shape) of an input or output; 0 for a dynamic size."""
    return port.name, [size.dim_value for size in port.type.tensor_type.shape.dim]
