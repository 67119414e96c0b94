"""How long a control step takes on a target, from its network's graph and the target's figures; and measurements.

The time of one control step, from sensor readings to targets, is a sum, each of its terms kept apart:

    t = fixed + runtime + kernels x launch + bytes / bandwidth + operations / rate

`fixed` is calling the network, however small; `runtime` is what runtime.py does around it, one figure for every
policy. Bytes and operations are bounded as in Williams, Waterman and Patterson (2009), "Roofline: an insightful
visual performance model", but added where they take the greater: nothing is taken to overlap. It gives a typical
time. Only a measurement gives p99, and only one that was made on the target says anything about the target.
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
"""What a verdict stands on. The second and the last are no ground for one."""

_NO_GROUND = ("measured-other-device", "not-run")
_PRECISIONS = {"FLOAT": "fp32", "FLOAT16": "fp16", "BFLOAT16": "bf16"}
_INDICES = {"INT64", "INT32", "BOOL", "STRING"}
"""Kinds of constants that are no weights."""

_FREE = {"Dropout", "Flatten", "Identity", "Reshape", "Squeeze", "Unsqueeze"}
"""The same numbers under another shape: no kernel."""
_STATIC = {"Shape", "Size"}
"""Known before the first call, since shapes are fixed."""
_MOVING = {"Concat", "Expand", "Gather", "Pad", "Slice", "Split", "Tile", "Transpose"}
"""A kernel that computes nothing."""
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
    """What one call of a network asks of a computer."""

    parameters: int
    """Numbers in its weights, normalizer included; single numbers such as an epsilon are not."""
    weight_bytes: int
    """Their size as stored, each in its own precision [bytes]."""
    flops: int
    """Operations; a multiplication and an addition are two [FLOP]."""
    kernels: int
    """Kernels launched, see `cost_of`."""
    precision: str
    """Of most of the weights: fp32, fp16, bf16, or ONNX's name of another."""
    activation_bytes: int
    """Inputs, outputs and what passes from kernel to kernel: each once written, once read a reader [bytes]."""
    uncounted: tuple[str, ...] = ()
    """Kinds of node that count as one kernel and, for want of a rule, as no operations."""


def cost_of(model: onnx.ModelProto) -> Cost:
    """Count a graph of fixed shapes; a dimension left open counts as 1.

    Kernels: what depends on weights alone is folded, a change of shape is free, a pointwise node joins the last
    kernel that feeds it, and every other node is a kernel. A recurrent node is three a step, layer and direction: the
    input's product, the memory's product, the gates.

    Operations: products exactly; pointwise nodes one an output element and reductions one an input element,
    which next to the products is nothing.
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
    launches: list[int] = []  # of each kernel: a recurrent node is one here that launches several
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
        except KeyError:  # a kind without a rule, or a shape that onnx does not know
            uncounted.append(node.op_type)
        own = max(made_by.get(name, -1) for name in live)
        if node.op_type not in _POINTWISE or own < 0:
            own = len(launches)
            steps = [(shapes.get(name) or (1,))[0] for name in node.input[:2]]  # and directions
            launches.append(3 * math.prod(steps) if node.op_type in _RECURRENT else 1)
        for name in live:
            if made_by.get(name) != own:
                readers.setdefault(name, set()).add(own)
        made_by.update((name, own) for name in node.output if name)

    outputs = {alias.get(value.name, value.name) for value in graph.output}
    written = [name for name in made_by if name in readers or name in outputs]
    used = {name for node in graph.node for name in node.input}
    numbers: dict[str, int] = {}  # of each weight
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
    """Operations of a node [FLOP]. KeyError: not known."""
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
    """The modelled time of one control step, network and runtime.py, paced at the control rate."""

    runtime: str
    """One of RUNTIMES."""
    target: str
    """Name of the target it is for."""
    terms_ms: Mapping[str, float]
    """By name, one of TERMS [ms]."""
    figures: Mapping[str, Figure]
    """The target's figures that went in, by name."""
    notes: tuple[str, ...] = ()
    """What the model leaves out or takes for granted about this network."""

    @property
    def total_ms(self) -> float:
        """The sum of the terms: a typical time, to be compared with a median [ms]."""
        return sum(self.terms_ms.values())

    @property
    def assumed(self) -> list[str]:
        """The names of the figures in it that nobody measured or specified for this board."""
        return [name for name, figure in self.figures.items() if figure.mark == "assumed"]


def model(target: ExportTarget, cost: Cost, graph: bool = True) -> list[Estimate]:
    """One estimate a runtime that the target has figures for; none for `host`, which is measured.

    Args:
        target: The target.
        cost: The network.
        graph: Whether TensorRT replays a CUDA graph, as the runtime does; else it launches kernel by kernel.
    """
    notes = tuple(f"{kind} nodes: operations not counted" for kind in cost.uncounted)
    known, estimates = target.figures(), []
    if (step := target.step_us) is None:
        return []  # a file with gpu or cpu has it

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
    # On a CPU, ONNX Runtime has no products in bf16, and widens fp16 weights to fp32 when it loads them.
    if (cpu := target.cpu) and cost.precision in ("fp32", "fp16"):
        widened = ["fp16 weights are read as fp32"] if cost.precision == "fp16" else []
        terms = (
            cpu.fixed_us.value / 1e3,  # calling the nodes one by one is part of it
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
    """Times of a runtime's control steps on some device, paced at a control rate [ms]."""

    runtime: str
    p50_ms: float
    p99_ms: float
    max_ms: float
    count: int
    """How many steps."""
    rate_hz: float
    """The rate they were paced at."""
    board: str | None
    """The device as its device tree calls it; None where it has none."""

    @classmethod
    def read(cls, result: Mapping[str, Any]) -> Measurement:
        """A result of the runtime's `measure`: `runtime`, `paced` with `p50_ms`, `p99_ms`, `max_ms`, `count` and
        `rate_hz`, and the `board`, by itself or within `device`.

        Raises:
            ConfigError: something is missing or is not a measurement.
        """
        paced, device = result.get("paced"), result.get("device")
        board = result.get("board", device.get("board") if isinstance(device, Mapping) else None)
        if not isinstance(paced, Mapping) or result.get("runtime") not in RUNTIMES:
            raise ConfigError(f"a measurement needs runtime ({listing(RUNTIMES)}) and paced, its times")
        numbers: dict[str, Any] = {}
        for key in ("p50_ms", "p99_ms", "max_ms", "rate_hz", "count"):
            number: Any = paced.get(key)
            numbers[key] = number
            real = isinstance(number, (int, float)) and not isinstance(number, bool)
            if not (real and 0 < number < math.inf):
                raise ConfigError(f"a measurement's paced.{key} is {quote(number)}; it must be above 0")
        if not numbers["p50_ms"] <= numbers["p99_ms"] <= numbers["max_ms"]:
            raise ConfigError("a measurement's p50, p99 and max fall in this order; it is damaged")
        return cls(runtime=result["runtime"], board=board or None, **numbers)


@dataclass(frozen=True)
class Recommendation:
    """A runtime, and why."""

    runtime: str
    reason: str
    """One sentence."""


def recommend(results: Sequence[Estimate] | Sequence[Measurement]) -> Recommendation | None:
    """The fastest: of estimates by their time, of measurements by p99. None where there is nothing.

    Raises:
        ValueError: estimates and measurements, or two devices, are mixed; their times do not compare.
    """
    if not results:
        return None
    origins = {
        ("modelled", r.target) if isinstance(r, Estimate) else ("measured", r.board, r.rate_hz)
        for r in results
    }
    if len(origins) > 1:
        raise ValueError(f"times of different origin do not compare: {sorted(map(str, origins))}")
    times = sorted((r.total_ms if isinstance(r, Estimate) else r.p99_ms, r.runtime) for r in results)
    (time, best), others = times[0], times[1:]
    modelled = [r for r in results if isinstance(r, Estimate)]
    digits = 2 if modelled else 3
    said = f"{time:.{digits}f} ms with {best}" + "".join(f", {t:.{digits}f} ms with {r}" for t, r in others)
    if modelled:
        assumed = any(r.assumed for r in modelled)
        ground = "the model rests on assumed figures" if assumed else "modelled, not measured"
        return Recommendation(best, f"Try it first: a control step takes about {said}; {ground}.")
    return Recommendation(best, f"99 of 100 steps take at most {said}.")


@dataclass(frozen=True)
class Verdict:
    """Whether a control step is fast enough for its target, and how anybody knows."""

    fits: bool | None
    """None where nothing is known about the target itself."""
    basis: str
    """One of BASES."""
    lines: tuple[str, ...]
    """The same for people: what it is about and stands on, then what was held against the budget."""
    runtime: str = ""
    """Whose time it is about; empty where there is none."""

    def __post_init__(self) -> None:
        if self.basis not in BASES or (self.fits is None) != (self.basis in _NO_GROUND):
            raise ValueError(f"no verdict {self.fits} can stand on the basis {self.basis!r}")


def verdict(target: ExportTarget, rate_hz: float, result: Estimate | Measurement | None) -> Verdict:
    """Hold a result against the target's budget.

    Whether a measurement is the target's is decided here, from the board that it names, and by nobody else.

    Raises:
        ConfigError: the rate is not positive, or not the one that the measurement was paced at.
        ValueError: the estimate is for another target.
    """
    budget = target.budget.ms(rate_hz)
    if result is None:
        why = "nothing was measured" if target.any_machine else "nothing was measured or modelled"
        return Verdict(None, "not-run", (f"no verdict for {target.title}: {why}",))
    if isinstance(result, Estimate):
        if result.target != target.name:
            raise ValueError(f"an estimate for {result.target} says nothing about {target.name}")
        return _of_estimate(target, rate_hz, result, budget["p50"])
    if abs(result.rate_hz / rate_hz - 1) > 0.01:
        raise ConfigError(
            f"{result.runtime} was measured at {result.rate_hz:g} Hz, the policy runs at {rate_hz:g}; measure it there"
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
        short = f"no verdict for {target.title}: {result.count} control steps measured, {LEAST_STEPS} are the least"
        return Verdict(None, "not-run", (short,), result.runtime)
    lines = [f"measured on {target.title}: {paced}"]
    lines += [_line(name, time, budget[name], rate_hz) for name, time in times.items()]
    fits = all(time <= budget[name] for name, time in times.items())
    return Verdict(fits, "measured-on-target", tuple(lines), result.runtime)


def decide(
    target: ExportTarget, rate_hz: float, estimates: Sequence[Estimate], measurements: Sequence[Measurement]
) -> tuple[Recommendation | None, Verdict]:
    """The runtime to use and the verdict on it, on the best ground there is: measurements on the target, else the
    model, else nothing, which measurements elsewhere do not change."""
    mine = [m for m in measurements if here(target, m.board) and m.count >= LEAST_STEPS]
    fitting = [m for m in mine if verdict(target, rate_hz, m).fits]  # as the runtime's own best_of
    chosen: Sequence[Any] = fitting or mine or estimates
    if (best := recommend(chosen)) is None:
        return None, verdict(target, rate_hz, measurements[0] if measurements else None)
    result = next(r for r in chosen if r.runtime == best.runtime)
    return best, verdict(target, rate_hz, result)


def _of_estimate(target: ExportTarget, rate_hz: float, result: Estimate, p50_ms: float) -> Verdict:
    terms = ", ".join(f"{name} {time:.3f}" for name, time in result.terms_ms.items() if time)
    assumed = ", ".join(name.rpartition(".")[2] for name in result.assumed)  # of one section, and step_us
    about = f"a control step with {result.runtime}, network and runtime.py"
    lines = (
        f"modelled, not measured: about {result.total_ms:.2f} ms {about}",
        _line("p50", result.total_ms, p50_ms, rate_hz),
        f"its terms: {terms} ms",
        "p99, max and jitter cannot be modelled; measure on the board",
        *([f"assumed in it: {assumed}"] if assumed else []),
        *result.notes,
    )
    return Verdict(result.total_ms <= p50_ms, "modelled", lines, result.runtime)


def _line(name: str, time_ms: float, budget_ms: float, rate_hz: float) -> str:
    share = 100 * budget_ms * rate_hz / 1e3
    said = "within" if time_ms <= budget_ms else "over"
    return f"{name} {time_ms:.3f} ms is {said} {budget_ms:.3f} ms, {share:g} % of the control period"
