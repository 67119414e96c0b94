"""Checks of an ONNX graph: valid, static shapes, allowed operators, finite weights, expected inputs and outputs."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import numpy_helper

from robolearn.runtime.errors import BAD_INPUT, NOT_THE_SAME, Refused

OPERATORS = frozenset({
    "Abs", "Add", "And", "Cast", "Clip", "Concat", "Constant", "Div", "Elu", "Equal", "Expand", "Flatten", "GRU",
    "Gather", "Gemm", "Greater", "GreaterOrEqual", "HardSigmoid", "Identity", "LSTM", "LeakyRelu", "Less",
    "LessOrEqual", "MatMul", "Max", "Min", "Mul", "Neg", "Not", "Or", "Pow", "Relu", "Reshape", "Sigmoid", "Slice",
    "Softplus", "Split", "Sqrt", "Squeeze", "Sub", "Tanh", "Transpose", "Unsqueeze", "Where", "Xor",
})  # fmt: skip
"""Allowed operators: TensorRT's ONNX parser supports all of them in versions 10 and 11 by its operator table. None is
random, a loop, or of variable size."""

OLDEST_OPSET = 18


def check_graph(model: onnx.ModelProto, width: int, actions: int, states: tuple[str, ...]) -> None:
    """Check an ONNX graph, cheapest and most frequent faults first.

    Args:
        model: the ONNX graph.
        width: number of columns of `obs`.
        actions: number of columns of `actions`.
        states: names of the recurrent state, ("h",) or ("h", "c").

    Raises:
        Refused: BAD_INPUT for dynamic shapes, NOT_THE_SAME for all other faults.
    """
    graph = model.graph
    for port in (*graph.input, *graph.output):
        shape = [
            d.dim_value if d.HasField("dim_value") else d.dim_param or "?"
            for d in port.type.tensor_type.shape.dim
        ]
        if not all(isinstance(size, int) and size > 0 for size in shape):
            raise Refused(
                f"the ONNX graph's {port.name} has the dynamic shape {shape}; export with a fixed batch of 1",
                BAD_INPUT,
            )
        if port.type.tensor_type.elem_type != onnx.TensorProto.FLOAT:
            kind = onnx.TensorProto.DataType.Name(port.type.tensor_type.elem_type)
            raise Refused(f"the ONNX graph's {port.name} is {kind}; it must be FLOAT", NOT_THE_SAME)
    for tensor in graph.initializer:
        if not np.isfinite(numpy_helper.to_array(tensor).astype(np.float64)).all():
            raise Refused(
                f"the ONNX graph's weight {tensor.name} is not finite in its precision", NOT_THE_SAME
            )
    try:
        onnx.checker.check_model(model, full_check=True)
    except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError) as error:
        raise Refused(f"onnx.checker rejects the ONNX graph: {error}", NOT_THE_SAME) from None
    (opset,) = (entry.version for entry in model.opset_import if entry.domain in ("", "ai.onnx"))
    if opset < OLDEST_OPSET:
        raise Refused(f"the ONNX graph has opset {opset}; it must be {OLDEST_OPSET} or later", NOT_THE_SAME)
    unknown = sorted({node.op_type for node in graph.node if node.domain not in ("", "ai.onnx")})
    unknown += sorted({node.op_type for node in graph.node} - OPERATORS)
    if unknown:
        raise Refused(
            f"the ONNX graph has operators that are not allowed: {', '.join(unknown)}", NOT_THE_SAME
        )
    for kind, ports, wanted in (
        ("inputs", graph.input, ["obs", *(f"{name}_in" for name in states)]),
        ("outputs", graph.output, ["actions", *(f"{name}_out" for name in states)]),
    ):
        if [port.name for port in ports] != wanted:
            raise Refused(
                f"the ONNX graph's {kind} are {[p.name for p in ports]}; they must be {wanted} in this order",
                NOT_THE_SAME,
            )
    for port, size in ((graph.input[0], width), (graph.output[0], actions)):
        shape = [d.dim_value for d in port.type.tensor_type.shape.dim]
        if shape != [1, size]:
            raise Refused(
                f"the ONNX graph's {port.name} has shape {shape}; the contract requires [1, {size}]",
                NOT_THE_SAME,
            )
    critic = [tensor.name for tensor in graph.initializer if "critic" in tensor.name.lower()]
    if critic:
        raise Refused(f"the ONNX graph holds the critic: {critic[0]}", NOT_THE_SAME)


def summary(model: onnx.ModelProto) -> str:
    """One line about an ONNX graph: shapes, number of nodes and weights, size."""
    count = sum(int(np.prod(tensor.dims)) for tensor in model.graph.initializer)
    shapes = [
        f"{p.name} {'x'.join(str(d.dim_value) for d in p.type.tensor_type.shape.dim)}"
        for p in (*model.graph.input, *model.graph.output)
    ]
    return f"{', '.join(shapes)}; {len(model.graph.node)} nodes, {count:,} parameters, {model.ByteSize() / 1e6:.2f} MB"
