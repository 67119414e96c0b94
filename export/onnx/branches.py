"""Branches of an ONNX graph: every comparison, clamp, sign and choice of the larger or smaller, element by element, and
which ways they went."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx
import onnxruntime

COMPARISONS = ("Greater", "GreaterOrEqual", "Less", "LessOrEqual", "Equal", "IsNaN", "IsInf")
WAYS = {
    **dict.fromkeys(COMPARISONS, ("true", "false")),
    "Where": ("true", "false"),
    "Clip": ("below", "inside", "above"),
    "Max": ("first", "second"),
    "Min": ("first", "second"),
    "Sign": ("positive", "negative"),
}
"""The ways that operators can go. Activations (Relu, Elu) are of the network, and no branch of the task's code."""

Way = tuple[str, int, str]
"""Name of a branch, such as `Greater gt_3`, the element, and the way."""


class Branches:
    """Finds which ways the branches of a graph went, step by step."""

    def __init__(self, model: onnx.ModelProto) -> None:
        made = {name: node.op_type for node in model.graph.node for name in node.output}
        self.nodes = [
            node
            for node in model.graph.node
            # A condition that is a comparison is counted there.
            if node.op_type in WAYS
            and not (node.op_type == "Where" and made.get(node.input[0]) in COMPARISONS)
        ]
        watched = onnx.ModelProto()
        watched.CopyFrom(model)
        known = {port.name for port in (*model.graph.input, *model.graph.output)}
        known |= {tensor.name for tensor in model.graph.initializer}
        inner = {
            name for node in self.nodes for name in (*node.input, *node.output) if name and name not in known
        }
        watched.graph.output.extend(onnx.ValueInfoProto(name=name) for name in sorted(inner))
        self._constants = {t.name: onnx.numpy_helper.to_array(t) for t in model.graph.initializer}
        self._session = onnxruntime.InferenceSession(
            watched.SerializeToString(), providers=["CPUExecutionProvider"]
        )
        self._names = [port.name for port in self._session.get_outputs()]
        self.all: set[Way] = set()
        """Every way of every branch seen so far, taken or not."""

    def run(self, feeds: dict[str, np.ndarray]) -> tuple[dict[str, np.ndarray], set[Way]]:
        """The outputs for these inputs, and the ways that the branches took."""
        out = dict(zip(self._names, self._session.run(self._names, feeds), strict=True))
        values = {**self._constants, **feeds, **out}
        taken: set[Way] = set()
        for node in self.nodes:
            given = [values[name] if name else None for name in (*node.input, node.output[0])]
            name = f"{node.op_type} {node.output[0]}"
            found = _ways(node.op_type, given)
            possible = [way for way in WAYS[node.op_type] if way in found]
            size = len(next(iter(found.values())))
            self.all |= {(name, i, way) for way in possible for i in range(size)}
            taken |= {(name, int(i), way) for way in possible for i in np.flatnonzero(found[way])}
        return out, taken


def _ways(kind: str, given: Sequence[np.ndarray | None]) -> dict[str, np.ndarray]:
    """For each way that a node can go, (K,) bool: which elements went it. The last of `given` is the node's output."""
    value, result = given[0], given[-1]
    assert value is not None
    assert result is not None
    if kind in COMPARISONS or kind == "Where":
        condition = (result if kind in COMPARISONS else value).astype(bool).ravel()
        return {"true": condition, "false": ~condition}
    if kind == "Sign":
        return {"positive": (value > 0).ravel(), "negative": (value < 0).ravel()}
    if kind == "Clip":
        low, high = (*given[:-1], None, None)[1:3]
        none = np.zeros(value.shape, bool)
        below = value < low if low is not None else none
        above = value > high if high is not None else none
        ways = {"below": below, "inside": ~(below | above), "above": above}
        bounded = {"below": low is not None, "inside": True, "above": high is not None}
        return {way: taken.ravel() for way, taken in ways.items() if bounded[way]}
    other = given[1] if len(given) > 2 else value
    assert other is not None
    first = np.broadcast_to(value > other if kind == "Max" else value < other, result.shape).ravel()
    return {"first": first, "second": ~first}
