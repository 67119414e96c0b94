"""Latency of a control step on an export target: model, measurements, and the verdict against the budget.

The model of one control step, from sensor readings to joint targets, is a sum:

    t = fixed + runtime + kernels x launch + bytes / bandwidth + operations / rate

`fixed` is the time of calling an empty network; `runtime` is the time of runtime.py around the network, one figure for
all policies. The terms of bytes and operations are those of Williams, Waterman and Patterson (2009), "Roofline: an
insightful visual performance model", but their sum is taken instead of their maximum: no overlap is assumed. The model
gives a typical time. Only a measurement gives p99, and only one on the export target is valid for it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from robolearn.errors import ConfigError, listing, quote
from robolearn.export.target import ExportTarget, Figure, here
from robolearn.runtime.measure import LEAST_STEPS

if TYPE_CHECKING:
    import onnx

RUNTIMES = ("tensorrt", "onnxruntime")
TERMS = ("fixed", "runtime", "launch", "memory", "compute")
BASES = ("measured-on-target", "measured-other-device", "modelled", "not-run")
"""Basis of a verdict. The second and the last allow none."""

_NO_VERDICT = ("measured-other-device", "not-run")
_PRECISIONS = {"FLOAT": "fp32", "FLOAT16": "fp16", "BFLOAT16": "bf16"}
_INDICES = {"INT64", "INT32", "BOOL", "STRING"}
"""Types of constants that are not weights."""

_FREE = {"Dropout", "Flatten", "Identity", "Reshape", "Squeeze", "Unsqueeze"}
"""Change of shape only: no kernel."""
_STATIC = {"Shape", "Size"}
"""Constant, because shapes are fixed."""
_MOVING = {"Concat", "Expand", "Gather", "Pad", "Slice", "Split", "Tile", "Transpose"}
"""Kernels that copy without arithmetic."""
_POINTWISE = (
    {"Abs", "Add", "And", "Cast", "Ceil", "Clip", "Cos", "Div", "Equal", "Exp", "Floor"}
    | {"Greater", "GreaterOrEqual", "Less", "LessOrEqual"}
    | {"Log", "Max", "Min", "Mul", "Neg", "Not", "Or", "Pow", "Reciprocal", "Round", "Sign", "Sin", "Sqrt"}
    | {"Sub", "Sum", "Tan", "Where", "Celu", "Elu", "Erf", "Gelu", "HardSigmoid", "HardSwish", "LeakyRelu"}
    | {"Mish", "PRelu", "Relu", "Selu", "Sigmoid", "Softplus", "Softsign", "Swish", "Tanh"}
)
_REDUCING = {"LayerNormalization", "LogSoftmax", "ReduceMax", "ReduceMean", "ReduceSum", "Softmax"}
_RECURRENT = {"GRU", "LSTM", "RNN"}


@dataclass(frozen=True)
class Cost:
    """Cost of one call of a network."""

    parameters: int
    """Number of weights, including the normalizer, without scalars such as an epsilon."""
    weight_bytes: int
    """Size of the weights in their stored precision [bytes]."""
    flops: int
    """Operations; a multiply-add counts as two [FLOP]."""
    kernels: int
    """Kernels launched, see `cost_of`."""
    precision: str
    """Precision of most weights: fp32, fp16, bf16, or the ONNX name of another type."""
    activation_bytes: int
    """Inputs, outputs and tensors between kernels: one write each, and one read per reader [bytes]."""
    uncounted: tuple[str, ...] = ()
    """Types of nodes that count as one kernel and, without a rule, as 0 operations."""


def cost_of(model: onnx.ModelProto) -> Cost:
    """Cost of an ONNX graph with fixed shapes; a dynamic dimension counts as 1.

    Kernels: nodes that depend only on weights are folded, a change of shape is free, a pointwise node is fused into the
    last kernel that feeds it, every other node is a kernel. A recurrent node is three kernels per step, layer and
    direction: product of the input, product of the recurrent state, gates.

    Operations: products exactly; pointwise nodes one per output element, reductions one per input element.
    """
    import onnx
    from onnx import inliner, shape_inference

    if model.functions:
        model = inliner.inline_local_functions(model)
    graph = shape_inference.infer_shapes(model, data_prop=True).graph
    weights = {tensor.name: tensor for tensor in graph.initializer}
    kinds = {name: tensor.data_type for name, tensor in weights.items()}
    shapes = {name: tuple(tensor.dims) for name, tensor in weights.items()}
    for value in (*graph.input, *graph.output, *graph.value_info):
        tensor_type = value.type.tensor_type
        if tensor_type.HasField("shape") and value.name not in weights:
            kinds[value.name] = tensor_type.elem_type
            shapes[value.name] = tuple(max(1, dim.dim_value) for dim in tensor_type.shape.dim)

    def size(name: str) -> int:
        kind = kinds.get(name, onnx.TensorProto.FLOAT)
        return math.prod(shapes.get(name, ())) * onnx.helper.tensor_dtype_to_np_dtype(kind).itemsize

    constant, alias = set(weights), dict[str, str]()
    made_by: dict[str, int] = {}  # tensor to kernel
    readers: dict[str, set[int]] = {}  # tensor to the other kernels that read it
    launches: list[int] = []  # per kernel: a recurrent node is one entry with several launches
    flops, uncounted = 0, list[str]()
    for node in graph.node:
        live = [alias.get(name, name) for name in node.input if name and name not in constant]
        if not live or node.op_type in _STATIC:
            constant.update(node.output)
            continue
        if node.op_type in _FREE:
            alias[node.output[0]] = live[0]
            continue
        try:
            flops += _flops(node, shapes)
        except KeyError:  # a type without a rule, or a shape that ONNX cannot infer
            uncounted.append(node.op_type)
        kernel = max(made_by.get(name, -1) for name in live)
        if node.op_type not in _POINTWISE or kernel < 0:
            kernel = len(launches)
            steps = [(shapes.get(name) or (1,))[0] for name in node.input[:2]]  # and directions
            launches.append(3 * math.prod(steps) if node.op_type in _RECURRENT else 1)
        for name in live:
            if made_by.get(name) != kernel:
                readers.setdefault(name, set()).add(kernel)
        made_by.update((name, kernel) for name in node.output if name)

    outputs = {alias.get(value.name, value.name) for value in graph.output}
    written = [name for name in made_by if name in readers or name in outputs]
    used = {name for node in graph.node for name in node.input}
    numbers: dict[str, int] = {}  # by weight
    by_kind: dict[str, int] = {}
    for name, tensor in weights.items():
        kind = onnx.TensorProto.DataType.Name(tensor.data_type)
        if name in used and tensor.dims and kind not in _INDICES:
            numbers[name] = math.prod(tensor.dims)
            by_kind[kind] = by_kind.get(kind, 0) + numbers[name]
    most = max(by_kind, key=lambda kind: by_kind[kind], default="FLOAT")
    return Cost(
        parameters=sum(numbers.values()),
        weight_bytes=sum(size(name) for name in numbers),
        flops=flops,
        kernels=sum(launches),
        precision=_PRECISIONS.get(most, most),
        activation_bytes=sum(map(size, written)) + sum(size(name) * len(by) for name, by in readers.items()),
        uncounted=tuple(sorted(set(uncounted))),
    )


def _flops(node: onnx.NodeProto, shapes: Mapping[str, tuple[int, ...]]) -> int:
    """Operations of a node [FLOP].

    Raises:
        KeyError: no rule for its type, or its shape is unknown.
    """
    out = math.prod(shapes[next(name for name in node.output if name)])
    first = shapes[node.input[0]]
    bias = out if len(node.input) > 2 and node.input[2] else 0
    if node.op_type == "Gemm":
        transposed = any(a.name == "transA" and a.i for a in node.attribute)
        return 2 * out * first[0 if transposed else 1] + bias
    if node.op_type == "MatMul":
        return 2 * out * first[-1]
    if node.op_type == "Conv":
        return 2 * out * math.prod(shapes[node.input[1]][1:]) + bias
    if node.op_type in _RECURRENT:
        # x (T, B, I), W (D, gates H, I), R (D, gates H, H), and two biases.
        directions, rows, inputs = shapes[node.input[1]]
        return 2 * first[0] * first[1] * directions * rows * (inputs + shapes[node.input[2]][2] + 1)
    if node.op_type in _MOVING:
        return 0
    if node.op_type in _REDUCING:
        return math.prod(first)
    if node.op_type in _POINTWISE:
        return out
    raise KeyError(node.op_type)


@dataclass(frozen=True)
class Estimate:
    """Modelled time of one control step, network and runtime.py, paced at the control rate."""

    runtime: str
    """One of RUNTIMES."""
    target: str
    """Name of the export target."""
    terms_ms: Mapping[str, float]
    """Terms of the sum by name, in the order of TERMS [ms]."""
    figures: Mapping[str, Figure]
    """The export target's figures in it, by name."""
    notes: tuple[str, ...] = ()
    """What the model omits or assumes for this network."""

    @property
    def total_ms(self) -> float:
        """Sum of the terms [ms]: a typical time, comparable with a median."""
        return sum(self.terms_ms.values())

    @property
    def assumed(self) -> list[str]:
        """Names of its figures that are marked `assumed`."""
        return [name for name, figure in self.figures.items() if figure.mark == "assumed"]


def model(target: ExportTarget, cost: Cost, graph: bool = True) -> list[Estimate]:
    """One estimate per runtime that the export target has figures for; none for `host`, which is measured.

    Args:
        target: the export target.
        cost: of the network.
        graph: TensorRT replays a CUDA graph, as the runtime does; False: it launches every kernel separately.
    """
    notes = tuple(f"{kind} nodes: operations not counted" for kind in cost.uncounted)
    known, estimates = target.figures(), []
    if (step := target.step_us) is None:
        return []  # files with gpu or cpu have it

    def add(runtime: str, figures: list[str], terms: tuple[float, ...], *more: str) -> None:
        named = dict(zip(TERMS, terms, strict=True))
        used = {name: known[name] for name in ("step_us", *figures)}
        estimates.append(Estimate(runtime, target.name, named, used, (*notes, *more)))

    if (gpu := target.gpu) and cost.precision in _PRECISIONS.values():
        rate, launch = f"{cost.precision}_tflops", "graph_node_us" if graph else "kernel_launch_us"
        fixed = gpu.wake_us.value + 2 * gpu.copy_us.value + (gpu.graph_us.value if graph else 0.0)
        parts = ["wake_us", "copy_us", *(["graph_us"] if graph else []), launch, "memory_bandwidth_gbs", rate]
        terms = (
            fixed / 1e3,
            step.value / 1e3,
            cost.kernels * getattr(gpu, launch).value / 1e3,
            (cost.weight_bytes + cost.activation_bytes) / gpu.memory_bandwidth_gbs.value / 1e6,
            cost.flops / getattr(gpu, rate).value / 1e9,
        )
        add("tensorrt", [f"gpu.{part}" for part in parts], terms)
    # On a CPU, ONNX Runtime has no bf16 products, and converts fp16 weights to fp32 when it loads them.
    if (cpu := target.cpu) and cost.precision in ("fp32", "fp16"):
        widened = ["fp16 weights are read as fp32"] if cost.precision == "fp16" else []
        terms = (
            cpu.fixed_us.value / 1e3,  # includes calling the nodes
            step.value / 1e3,
            0.0,
            (4 * cost.parameters + cost.activation_bytes) / cpu.memory_bandwidth_gbs.value / 1e6,
            cost.flops / cpu.fp32_gflops.value / 1e6,
        )
        figures = ["cpu.fixed_us", "cpu.memory_bandwidth_gbs", "cpu.fp32_gflops"]
        add("onnxruntime", figures, terms, *widened)
    return estimates


@dataclass(frozen=True)
class Measurement:
    """Times of a runtime's control steps on one device, paced at a control rate [ms]."""

    runtime: str
    p50_ms: float
    p99_ms: float
    max_ms: float
    count: int
    """Number of steps."""
    rate_hz: float
    """Control rate of the measurement [Hz]."""
    board: str | None
    """Name of the device in its device tree; None where it has none."""

    @classmethod
    def read(cls, result: Mapping[str, Any]) -> Measurement:
        """Read a result of the runtime's `measure`: `runtime`, `paced` with `p50_ms`, `p99_ms`, `max_ms`, `count` and
        `rate_hz`, and `board`, at the top or in `device`.

        Raises:
            ConfigError: an entry is missing or invalid.
        """
        paced, device = result.get("paced"), result.get("device")
        board = result.get("board", device.get("board") if isinstance(device, Mapping) else None)
        if not isinstance(paced, Mapping) or result.get("runtime") not in RUNTIMES:
            raise ConfigError(
                f"a measurement needs runtime ({listing(RUNTIMES)}) and paced (its times); measure again"
            )
        numbers: dict[str, Any] = {}
        for key in ("p50_ms", "p99_ms", "max_ms", "rate_hz", "count"):
            number: Any = paced.get(key)
            numbers[key] = number
            real = isinstance(number, (int, float)) and not isinstance(number, bool)
            if not (real and 0 < number < math.inf):
                raise ConfigError(f"a measurement's paced.{key} is {quote(number)}; it must be above 0")
        if not numbers["p50_ms"] <= numbers["p99_ms"] <= numbers["max_ms"]:
            raise ConfigError("a measurement must have p50 <= p99 <= max; it is damaged, measure again")
        return cls(runtime=result["runtime"], board=board or None, **numbers)


@dataclass(frozen=True)
class Recommendation:
    """A runtime and the reason for it."""

    runtime: str
    reason: str
    """One sentence."""


def recommend(results: Sequence[Estimate] | Sequence[Measurement]) -> Recommendation | None:
    """The fastest runtime: estimates by total time, measurements by p99. None where `results` is empty.

    Raises:
        ValueError: `results` mixes estimates and measurements, or several devices or rates.
    """
    if not results:
        return None
    origins = {
        ("modelled", r.target) if isinstance(r, Estimate) else ("measured", r.board, r.rate_hz)
        for r in results
    }
    if len(origins) > 1:
        raise ValueError(f"times of different origin cannot be compared: {sorted(map(str, origins))}")
    times = sorted((r.total_ms if isinstance(r, Estimate) else r.p99_ms, r.runtime) for r in results)
    (time, best), others = times[0], times[1:]
    modelled = [r for r in results if isinstance(r, Estimate)]
    digits = 2 if modelled else 3
    said = f"{time:.{digits}f} ms with {best}" + "".join(f", {t:.{digits}f} ms with {r}" for t, r in others)
    if modelled:
        assumed = any(r.assumed for r in modelled)
        basis = "the model has assumed figures" if assumed else "modelled, not measured"
        return Recommendation(best, f"Try it first: a control step takes about {said}; {basis}.")
    return Recommendation(best, f"99 of 100 steps take at most {said}.")


@dataclass(frozen=True)
class Verdict:
    """Whether a control step meets the budget of its export target, and the basis for it."""

    fits: bool | None
    """None where nothing is known about the export target."""
    basis: str
    """One of BASES."""
    lines: tuple[str, ...]
    """Text for the user: subject and basis, then the comparisons with the budget."""
    runtime: str = ""
    """The runtime of the verdict; empty where there is none."""

    def __post_init__(self) -> None:
        if self.basis not in BASES or (self.fits is None) != (self.basis in _NO_VERDICT):
            raise ValueError(f"no verdict {self.fits} is possible with basis {self.basis!r}")


def verdict(target: ExportTarget, rate_hz: float, result: Estimate | Measurement | None) -> Verdict:
    """Compare a result with the export target's budget.

    Only this function decides, from the board's name, whether a measurement was made on the export target.

    Raises:
        ConfigError: the rate is not positive, or differs from the rate of the measurement.
        ValueError: the estimate is for another export target.
    """
    budget = target.budget.ms(rate_hz)
    if result is None:
        why = "nothing was measured" if target.any_machine else "nothing was measured or modelled"
        return Verdict(None, "not-run", (f"no verdict for {target.title}: {why}",))
    if isinstance(result, Estimate):
        if result.target != target.name:
            raise ValueError(f"the estimate is for {result.target}, not for {target.name}")
        return _of_estimate(target, rate_hz, result, budget["p50"])
    if abs(result.rate_hz / rate_hz - 1) > 0.01:
        raise ConfigError(
            f"{result.runtime} was measured at {result.rate_hz:g} Hz, the policy runs at {rate_hz:g} Hz; "
            "measure at that rate"
        )
    paced = f"{result.runtime}, {result.count} control steps paced at {rate_hz:g} Hz"
    times = {"p50": result.p50_ms, "p99": result.p99_ms, "max": result.max_ms}
    times["jitter"] = result.p99_ms - result.p50_ms
    if not here(target, result.board):
        said = ", ".join(f"{name} {time:.3f}" for name, time in times.items())
        where = result.board or "another device"
        elsewhere = (f"no verdict for {target.title}: measured on {where}", f"there: {paced}: {said} ms")
        return Verdict(None, "measured-other-device", elsewhere, result.runtime)
    if result.count < LEAST_STEPS:
        short = f"no verdict for {target.title}: {result.count} control steps measured, at least {LEAST_STEPS} needed"
        return Verdict(None, "not-run", (short,), result.runtime)
    lines = [f"measured on {target.title}: {paced}"]
    lines += [_line(name, time, budget[name], rate_hz) for name, time in times.items()]
    fits = all(time <= budget[name] for name, time in times.items())
    return Verdict(fits, "measured-on-target", tuple(lines), result.runtime)


def decide(
    target: ExportTarget, rate_hz: float, estimates: Sequence[Estimate], measurements: Sequence[Measurement]
) -> tuple[Recommendation | None, Verdict]:
    """The recommended runtime and its verdict: from measurements on the export target, else from the model, else none;
    measurements on other devices do not count."""
    valid = [m for m in measurements if here(target, m.board) and m.count >= LEAST_STEPS]
    fitting = [m for m in valid if verdict(target, rate_hz, m).fits]  # as best_of in the runtime
    chosen: Sequence[Any] = fitting or valid or estimates
    if (best := recommend(chosen)) is None:
        return None, verdict(target, rate_hz, measurements[0] if measurements else None)
    result = next(r for r in chosen if r.runtime == best.runtime)
    return best, verdict(target, rate_hz, result)


def _of_estimate(target: ExportTarget, rate_hz: float, result: Estimate, p50_ms: float) -> Verdict:
    terms = ", ".join(f"{name} {time:.3f}" for name, time in result.terms_ms.items() if time)
    assumed = ", ".join(
        name.rpartition(".")[2] for name in result.assumed
    )  # without the section, of which there is one
    about = f"a control step with {result.runtime}, network and runtime.py"
    lines = (
        f"modelled, not measured: about {result.total_ms:.2f} ms {about}",
        _line("p50", result.total_ms, p50_ms, rate_hz),
        f"terms: {terms} ms",
        "p99, max and jitter cannot be modelled; measure on the board",
        *([f"assumed figures: {assumed}"] if assumed else []),
        *result.notes,
    )
    return Verdict(result.total_ms <= p50_ms, "modelled", lines, result.runtime)


def _line(name: str, time_ms: float, budget_ms: float, rate_hz: float) -> str:
    share = 100 * budget_ms * rate_hz / 1e3
    said = "within" if time_ms <= budget_ms else "over"
    return f"{name} {time_ms:.3f} ms is {said} {budget_ms:.3f} ms, {share:g} % of the control period"
