"""Whether a graph is what a runtime may be given: valid ONNX, static, allowed operators, finite, nothing extra."""

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
"""What a policy may consist of. TensorRT's ONNX parser reads all of them in versions 10 and 11, as its operator table
says; without random numbers, without loops, without anything of variable size."""

OLDEST_OPSET = 18


def check_graph(model: onnx.ModelProto, width: int, actions: int, states: tuple[str, ...]) -> None:
    """Check a graph, cheapest and commonest fault first.

    Args:
        model: the graph.
        width: columns of `obs`.
        actions: columns of `actions`.
        states: names of the recurrent state, ("h",) or ("h", "c").

    Raises:
        Refused: BAD_INPUT for dynamic shapes, NOT_THE_SAME for the rest.
    """
    graph = model.graph
    for port in (*graph.input, *graph.output):
        shape = [
            d.dim_value if d.HasField("dim_value") else d.dim_param or "?"
            for d in port.type.tensor_type.shape.dim
        ]
        if not all(isinstance(size, int) and size > 0 for size in shape):
            raise Refused(
                f"the graph's {port.name} has the dynamic shape {shape}; a robot's is fixed, with a batch of 1",
                BAD_INPUT,
            )
        if port.type.tensor_type.elem_type != onnx.TensorProto.FLOAT:
            kind = onnx.TensorProto.DataType.Name(port.type.tensor_type.elem_type)
            raise Refused(f"the graph's {port.name} is {kind}; inputs and outputs are FLOAT", NOT_THE_SAME)
    for tensor in graph.initializer:
        if not np.isfinite(numpy_helper.to_array(tensor).astype(np.float64)).all():
            raise Refused(f"the graph's weight {tensor.name} is not finite in its precision", NOT_THE_SAME)
    try:
        onnx.checker.check_model(model, full_check=True)
    except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError) as error:
        raise Refused(f"onnx.checker refuses the graph: {error}", NOT_THE_SAME) from None
    (opset,) = (entry.version for entry in model.opset_import if entry.domain in ("", "ai.onnx"))
    if opset < OLDEST_OPSET:
        raise Refused(f"the graph has opset {opset}; {OLDEST_OPSET} is the oldest", NOT_THE_SAME)
    odd = sorted({node.op_type for node in graph.node if node.domain not in ("", "ai.onnx")})
    odd += sorted({node.op_type for node in graph.node} - OPERATORS)
    if odd:
        raise Refused(f"the graph has operators that no robot should run: {', '.join(odd)}", NOT_THE_SAME)
    for kind, ports, wanted in (
        ("inputs", graph.input, ["obs", *(f"{name}_in" for name in states)]),
        ("outputs", graph.output, ["actions", *(f"{name}_out" for name in states)]),
    ):
        if [port.name for port in ports] != wanted:
            raise Refused(
                f"the graph's {kind} are {[p.name for p in ports]}, not {wanted} in this order", NOT_THE_SAME
            )
    for port, size in ((graph.input[0], width), (graph.output[0], actions)):
        shape = [d.dim_value for d in port.type.tensor_type.shape.dim]
        if shape != [1, size]:
            raise Refused(f"the graph's {port.name} is {shape}; the contract says [1, {size}]", NOT_THE_SAME)
    critic = [tensor.name for tensor in graph.initializer if "critic" in tensor.name.lower()]
    if critic:
        raise Refused(f"the graph holds the critic: {critic[0]}", NOT_THE_SAME)


def summary(model: onnx.ModelProto) -> str:
    """One line about a graph."""
    count = sum(int(np.prod(tensor.dims)) for tensor in model.graph.initializer)
    shapes = [
        f"{p.name} {'x'.join(str(d.dim_value) for d in p.type.tensor_type.shape.dim)}"
        for p in (*model.graph.input, *model.graph.output)
    ]
    return f"{', '.join(shapes)}; {len(model.graph.node)} nodes, {count:,} numbers, {model.ByteSize() / 1e6:.2f} MB"
