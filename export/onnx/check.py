"""Checks of an ONNX graph: valid, static shapes, allowed operators, finite weights, expected inputs and outputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import onnx
from onnx import numpy_helper

from robolearn.runtime.errors import BAD_INPUT, NOT_THE_SAME, Refused

OPERATORS = frozenset({
    "Abs", "Acos", "Add", "And", "ArgMax", "ArgMin", "Asin", "Atan", "Cast", "Ceil", "Celu", "Clip",
    "Concat", "Constant", "ConstantOfShape", "Cos", "CumSum", "Div", "Einsum", "Elu", "Equal", "Erf", "Exp",
    "Expand", "Flatten", "Floor", "GRU", "Gather", "GatherElements", "GatherND", "Gemm", "Greater",
    "GreaterOrEqual", "HardSigmoid", "HardSwish", "Identity", "IsInf", "IsNaN", "LSTM", "LeakyRelu", "Less",
    "LessOrEqual", "Log", "MatMul", "Max", "Mean", "Min", "Mish", "Mod", "Mul", "Neg", "Not", "Or", "Pad",
    "Pow", "Reciprocal", "ReduceL2", "ReduceMax", "ReduceMean", "ReduceMin", "ReduceProd", "ReduceSum",
    "Relu", "Reshape", "Round", "ScatterElements", "ScatterND", "Selu", "Sigmoid", "Sign", "Sin", "Slice",
    "Softmax", "Softplus", "Split", "Sqrt", "Squeeze", "Sub", "Sum", "Tan", "Tanh", "Tile", "Transpose",
    "Trilu", "Unsqueeze", "Where", "Xor",
})  # fmt: skip
"""Allowed operators: TensorRT's ONNX parser supports all of them in versions 10 and 11 by its operator table. None is
random, a loop, or of variable size."""

OLDEST_OPSET = 18


def check_graph(
    model: onnx.ModelProto, inputs: Mapping[str, Sequence[int]], outputs: Mapping[str, Sequence[int]]
) -> None:
    """Check an ONNX graph, cheapest and most frequent faults first.

    Args:
        model: the ONNX graph.
        inputs: the shape that each input must have, by name, in order.
        outputs: the same of the outputs.

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
    for kind, ports, wanted in (("inputs", graph.input, inputs), ("outputs", graph.output, outputs)):
        if [port.name for port in ports] != list(wanted):
            raise Refused(
                f"the ONNX graph's {kind} are {[p.name for p in ports]}; they must be {list(wanted)} in this order",
                NOT_THE_SAME,
            )
        for port in ports:
            shape = [d.dim_value for d in port.type.tensor_type.shape.dim]
            if shape != list(wanted[port.name]):
                raise Refused(
                    f"the ONNX graph's {port.name} has shape {shape}; the contract requires "
                    f"{list(wanted[port.name])}",
                    NOT_THE_SAME,
                )
    critic = [tensor.name for tensor in graph.initializer if "critic" in tensor.name.lower()]
    if critic:
        raise Refused(f"the ONNX graph holds the critic: {critic[0]}", NOT_THE_SAME)


def summary(model: onnx.ModelProto) -> str:
    """One line about an ONNX graph: number of inputs, nodes and weights, size."""
    count = sum(int(np.prod(tensor.dims)) for tensor in model.graph.initializer)
    state = sum(port.name.endswith("_in") for port in model.graph.input)
    return (
        f"{len(model.graph.input) - state} inputs and {state} of state, {len(model.graph.node)} nodes, {count:,} "
        f"parameters, {model.ByteSize() / 1e6:.2f} MB"
    )
