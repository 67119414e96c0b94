"""The latency model: each term by hand, the measurements it was fitted to, and the basis of verdicts."""

import dataclasses
import itertools
import re
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from robolearn.errors import ConfigError
from robolearn.export.latency.latency import (
    Cost,
    Measurement,
    Verdict,
    cost_of,
    decide,
    model,
    recommend,
    verdict,
)
from robolearn.export.target import Budget, Cpu, ExportTarget, Figure, Gpu, load

THOR = "NVIDIA Jetson AGX Thor Developer Kit"
JETSONS = ["jetson-agx-orin", "jetson-orin-nano", "jetson-orin-nx", "jetson-thor", "jetson-thor-t4000"]


def figure(value: float, mark: str = "measured") -> Figure:
    return Figure(value, mark, "a test")


BUDGET = Budget(figure(0.05), figure(0.10), figure(0.25), figure(0.05))
BOARD = ExportTarget(
    name="board",
    title="the board",
    family="test",
    detect=("The Board",),
    budget=BUDGET,
    # fp32, fp16, bf16 [TFLOPS], bandwidth [GB/s], kernel, CUDA graph, its node, copy, wake-up [us]
    gpu=Gpu(
        *map(figure, (2.0, 8.0, 4.0, 50.0, 6.0, 15.0, 0.5)), figure(10.0, "assumed"), figure(100.0, "assumed")
    ),
    step_us=figure(40.0, "assumed"),
    cpu=Cpu(fixed_us=figure(200.0, "assumed"), fp32_gflops=figure(20.0), memory_bandwidth_gbs=figure(10.0)),
)
COST = Cost(1_000_000, 4_000_000, 2_000_000, kernels=4, precision="fp32", activation_bytes=1_000_000)


# ---------------------------------------------------------------------------------------- cost of an ONNX graph


def graph(
    nodes: list[onnx.NodeProto],
    inputs: dict[str, list[int]],
    outputs: dict[str, list[Any]],
    weights: dict[str, np.ndarray],
) -> onnx.ModelProto:
    def ports(shapes: dict[str, list[Any]]) -> list[onnx.ValueInfoProto]:
        return [helper.make_tensor_value_info(name, TensorProto.FLOAT, s) for name, s in shapes.items()]

    held = [numpy_helper.from_array(array, name) for name, array in weights.items()]
    made = helper.make_graph(nodes, "policy", ports(inputs), ports(outputs), held)
    return helper.make_model(made, opset_imports=[helper.make_opsetid("", 18)])


def mlp(*sizes: int, dtype: type = np.float32, normalizer: bool = False) -> onnx.ModelProto:
    """obs (1, D) to actions (1, A), ELU in between; optionally with half precision inside."""
    node, nodes, weights, x = helper.make_node, [], {}, "obs"
    if normalizer:
        weights |= {"mean": np.zeros((1, sizes[0]), np.float32), "std": np.ones((1, sizes[0]), np.float32)}
        nodes += [node("Sub", ["obs", "mean"], ["centred"]), node("Div", ["centred", "std"], ["normal"])]
        x = "normal"
    if dtype == np.float16:
        nodes.append(node("Cast", [x], ["half"], to=TensorProto.FLOAT16))
        x = "half"
    for i, (d, h) in enumerate(itertools.pairwise(sizes)):
        weights |= {f"w{i}": np.zeros((h, d), dtype), f"b{i}": np.zeros(h, dtype)}
        nodes.append(node("Gemm", [x, f"w{i}", f"b{i}"], [f"y{i}"], transB=1))
        x = f"y{i}"
        if i < len(sizes) - 2:
            nodes.append(node("Elu", [x], [f"e{i}"]))
            x = f"e{i}"
    nodes.append(node("Cast", [x], ["actions"], to=TensorProto.FLOAT))
    return graph(nodes, {"obs": [1, sizes[0]]}, {"actions": [1, sizes[-1]]}, weights)


def test_an_mlp_is_counted() -> None:
    # Parameters 3*4 + 4 + 4*2 + 2 = 26. Products 2 (12 + 8) = 40, biases 4 + 2, ELU 4, the last cast 2.
    # Kernels: two products, which take what follows along. 3 inputs read, 4 between written and read, 2 written.
    assert cost_of(mlp(3, 4, 2)) == Cost(26, 104, 40 + 6 + 4 + 2, 2, "fp32", 4 * (3 + 4 + 4 + 2))


def test_the_parameters_of_the_anchor_network() -> None:
    cost = cost_of(mlp(99, 512, 256, 128, 29))
    assert cost.parameters == 99 * 512 + 512 + 512 * 256 + 256 + 256 * 128 + 128 + 128 * 29 + 29
    assert cost.weight_bytes == 4 * cost.parameters
    assert cost.kernels == 4


def test_half_precision_halves_the_weights() -> None:
    # Inside: the input's cast is a separate kernel and reads fp32; then 2 bytes per number, and 4 in the output.
    cost = cost_of(mlp(3, 4, 2, dtype=np.float16))
    assert (cost.precision, cost.parameters, cost.weight_bytes, cost.kernels) == ("fp16", 26, 52, 3)
    assert cost.activation_bytes == 4 * 3 + 2 * (3 + 3 + 4 + 4) + 4 * 2


def test_the_normalizer_counts_is_one_kernel_and_does_not_set_the_precision() -> None:
    cost = cost_of(mlp(3, 4, 2, normalizer=True))
    assert (cost.parameters, cost.kernels, cost.precision) == (26 + 2 * 3, 3, "fp32")
    cost = cost_of(mlp(30, 40, 20, dtype=np.float16, normalizer=True))
    assert (cost.precision, cost.weight_bytes) == ("fp16", 2 * (30 * 40 + 40 + 40 * 20 + 20) + 4 * 2 * 30)


@pytest.mark.parametrize(("kind", "gates"), [("GRU", 3), ("LSTM", 4)])
def test_a_recurrent_layer_is_counted(kind: str, gates: int) -> None:
    # W (1, gates H, I), R (1, gates H, H), B (1, 2 gates H) with I 5, H 4.
    rows = gates * 4
    sizes = {"W": (1, rows, 5), "R": (1, rows, 4), "B": (1, 2 * rows)}
    weights = {name: np.zeros(size, np.float32) for name, size in sizes.items()}
    weights["first"] = np.array([0], np.int64)
    nodes = [
        helper.make_node("Unsqueeze", ["obs", "first"], ["x"]),
        helper.make_node(kind, ["x", "W", "R", "B", "", "h_in"], ["y", "h_out"], hidden_size=4),
    ]
    outputs: dict[str, list[Any]] = {"y": [1, 1, 1, 4], "h_out": [1, 1, 4]}
    cost = cost_of(graph(nodes, {"obs": [1, 5], "h_in": [1, 1, 4]}, outputs, weights))
    assert cost.parameters == rows * (5 + 4 + 2)  # indices are no parameters
    assert cost.flops == 2 * rows * (5 + 4) + 2 * rows  # products, and two biases
    assert (cost.kernels, cost.activation_bytes, cost.uncounted) == (3, 4 * (5 + 4 + 4 + 4), ())


def test_what_depends_on_weights_alone_is_folded_and_shapes_are_free() -> None:
    weights = {"w": np.zeros((3, 4), np.float32), "to": np.array([2, 2], np.int64)}
    nodes = [
        helper.make_node("Exp", ["w"], ["v"]),
        helper.make_node("MatMul", ["obs", "v"], ["y"]),
        helper.make_node("Reshape", ["y", "to"], ["z"]),
        helper.make_node("Tanh", ["z"], ["actions"]),
    ]
    cost = cost_of(graph(nodes, {"obs": [1, 3]}, {"actions": [2, 2]}, weights))
    assert (cost.kernels, cost.flops, cost.activation_bytes) == (1, 2 * 3 * 4 + 4, 4 * (3 + 4))


def test_a_pointwise_node_joins_the_last_kernel_that_feeds_it() -> None:
    # x sigmoid(x) goes into the product before it; the sum of two products goes into the second.
    weights = {"v": np.zeros((3, 1), np.float32), "w": np.zeros((3, 4), np.float32)}
    nodes = [
        helper.make_node("MatMul", ["obs", "v"], ["a"]),
        helper.make_node("Sigmoid", ["a"], ["s"]),
        helper.make_node("Mul", ["a", "s"], ["m"]),
        helper.make_node("MatMul", ["obs", "w"], ["b"]),
        helper.make_node("Add", ["m", "b"], ["actions"]),
    ]
    cost = cost_of(graph(nodes, {"obs": [1, 3]}, {"actions": [1, 4]}, weights))
    # obs (3) is read by both, m (1) passes from the first to the second, actions (4) leave.
    assert (cost.kernels, cost.activation_bytes) == (2, 4 * (2 * 3 + 2 * 1 + 4))


def test_comparisons_that_choose_the_mirrored_side_are_pointwise() -> None:
    # As the shipped policy does: y = where(|x0| <= 0.1, -x, x). The slice is a kernel, and Abs and LessOrEqual join it;
    # Mul is one, and Where, fed by it and by the slice's, joins it. Abs 1, LessOrEqual 1, Mul 4, Where 4.
    weights: dict[str, np.ndarray] = {"from": np.array([0]), "to": np.array([1]), "axis": np.array([1])}
    weights |= {"limit": np.array(0.1, np.float32), "sign": np.full(4, -1, np.float32)}
    nodes = [
        helper.make_node("Slice", ["obs", "from", "to", "axis"], ["x0"]),
        helper.make_node("Abs", ["x0"], ["size"]),
        helper.make_node("LessOrEqual", ["size", "limit"], ["small"]),
        helper.make_node("Mul", ["obs", "sign"], ["other"]),
        helper.make_node("Where", ["small", "other", "obs"], ["actions"]),
    ]
    cost = cost_of(graph(nodes, {"obs": [1, 4]}, {"actions": [1, 4]}, weights))
    assert (cost.kernels, cost.flops, cost.uncounted) == (2, 1 + 1 + 4 + 4, ())
    # obs (4 floats) read by both, small (a byte) passes from the first to the second, actions (4 floats) leave.
    assert cost.activation_bytes == 4 * (2 * 4 + 4) + 2 * 1


def test_an_open_dimension_counts_as_one() -> None:
    nodes = [helper.make_node("MatMul", ["obs", "w"], ["actions"])]
    made = graph(nodes, {"obs": [1, 3]}, {"actions": ["n", 4]}, {"w": np.zeros((3, 4), np.float32)})
    made.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "n"
    assert cost_of(made).flops == 2 * 3 * 4


def test_a_node_without_a_rule_is_named() -> None:
    nodes = [helper.make_node("Einsum", ["obs", "w"], ["actions"], equation="ij,jk->ik")]
    weights = {"w": np.zeros((3, 4), np.float32)}
    cost = cost_of(graph(nodes, {"obs": [1, 3]}, {"actions": [1, 4]}, weights))
    assert (cost.uncounted, cost.kernels, cost.flops) == (("Einsum",), 1, 0)
    assert model(BOARD, cost)[0].notes == ("Einsum nodes: operations not counted",)


# ---------------------------------------------------------------------------------------- the model


def test_each_term_of_tensorrt() -> None:
    estimate, _ = model(BOARD, COST)
    assert estimate.runtime == "tensorrt"
    # Waking 100 us, graph 15 us, two copies 20 us; runtime.py 40 us; 4 kernels of 0.5 us; 5 MB at 50 GB/s; 2 MFLOP at
    # 2 TFLOPS.
    assert list(estimate.terms_ms) == ["fixed", "runtime", "launch", "memory", "compute"]
    assert [*estimate.terms_ms.values()] == pytest.approx([0.135, 0.04, 0.002, 0.1, 0.001])
    assert estimate.total_ms == pytest.approx(0.278)
    assert estimate.assumed == ["step_us", "gpu.wake_us", "gpu.copy_us"]


def test_without_a_cuda_graph_every_kernel_is_launched_by_itself() -> None:
    estimate, _ = model(BOARD, COST, graph=False)
    assert [*estimate.terms_ms.values()] == pytest.approx([0.12, 0.04, 0.024, 0.1, 0.001])
    assert "gpu.kernel_launch_us" in estimate.figures
    assert "gpu.graph_us" not in estimate.figures


def test_each_term_of_onnxruntime() -> None:
    _, estimate = model(BOARD, COST)
    assert estimate.runtime == "onnxruntime"
    # 200 us; runtime.py 40 us, as with TensorRT; 5 MB at 10 GB/s; 2 MFLOP at 20 GFLOPS.
    assert [*estimate.terms_ms.values()] == pytest.approx([0.2, 0.04, 0.0, 0.5, 0.1])
    assert estimate.assumed == ["step_us", "cpu.fixed_us"]
    # The budget is for the whole step: without step_us there is no estimate.
    assert model(dataclasses.replace(BOARD, step_us=None), COST) == []


def test_precision_changes_the_rate_of_the_gpu_and_not_the_bytes_of_the_cpu() -> None:
    half = dataclasses.replace(COST, precision="fp16", weight_bytes=2_000_000)
    tensorrt, onnxruntime = model(BOARD, half)
    # 3 MB at 50 GB/s, 2 MFLOP at 8 TFLOPS; ONNX Runtime holds fp16 weights as fp32: 4 MB + 1 MB at 10 GB/s.
    assert tensorrt.terms_ms["memory"] == pytest.approx(0.06)
    assert tensorrt.terms_ms["compute"] == pytest.approx(0.00025)
    assert onnxruntime.terms_ms["memory"] == pytest.approx(0.5)
    assert tensorrt.notes == ()
    assert onnxruntime.notes == ("fp16 weights are read as fp32",)


def test_onnxruntime_has_no_bf16_on_a_cpu() -> None:
    (estimate,) = model(BOARD, dataclasses.replace(COST, precision="bf16"))
    assert estimate.runtime == "tensorrt"
    assert estimate.terms_ms["compute"] == pytest.approx(0.0005)


def test_the_model_reproduces_the_measurements_it_was_fitted_to() -> None:
    # The figures of one core come from the network alone: 183 us for 99-512-256-128-29 paced at 50 Hz, and 8 ms for 36
    # million parameters.
    thor = load("jetson-thor")
    _, small = model(thor, cost_of(mlp(99, 512, 256, 128, 29)))
    _, large = model(thor, dataclasses.replace(COST, parameters=36_000_000, flops=72_000_000))
    alone = [e.total_ms - e.terms_ms["runtime"] for e in (small, large)]
    assert alone[0] == pytest.approx(0.183, abs=0.002)
    assert alone[1] == pytest.approx(8, rel=0.03)


def test_a_small_policy_on_thor_meets_the_budget_mostly_with_fixed_terms() -> None:
    thor = load("jetson-thor")
    estimates = model(thor, cost_of(mlp(99, 512, 256, 128, 29)))
    # 134 us of calling, 161 of runtime.py, 49 of the network.
    terms = estimates[1].terms_ms
    assert terms["fixed"] + terms["runtime"] == pytest.approx(0.295)
    assert estimates[1].total_ms == pytest.approx(0.344, abs=0.002)
    _, found = decide(thor, 50, estimates, [])
    assert (found.runtime, found.fits, found.basis) == ("onnxruntime", True, "modelled")  # of 1 ms


def test_thirty_million_parameters_are_too_many_for_orin_nano_at_50_hz() -> None:
    # 120 MB, and 1 MB of activations, at 51 and 13 GB/s are 2.4 and 9.3 ms: over 1 ms. So are 1.8 at 68 GB/s.
    nano = load("jetson-orin-nano")
    cost = dataclasses.replace(COST, parameters=30_000_000, weight_bytes=120_000_000, flops=60_000_000)
    estimates = model(nano, cost)
    assert [e.terms_ms["memory"] for e in estimates] == pytest.approx([121 / 51, 121 / 13])
    assert [verdict(nano, 50, e).fits for e in estimates] == [False, False]
    assert decide(nano, 50, estimates, [])[1].fits is False
    # In fp16 60 MB take 1.18 ms by themselves, still over; at 25 Hz the budget is 2 ms, and all of it 1.97: fixed 437
    # us, runtime.py 322, 4 kernels 2, 61 MB 1196, 60 MFLOP at 8 TFLOPS 8.
    half = dataclasses.replace(cost, precision="fp16", weight_bytes=60_000_000)
    assert [verdict(nano, 50, e).fits for e in model(nano, half)] == [False, False]
    assert verdict(nano, 25, model(nano, half)[0]).fits is True


@pytest.mark.parametrize("name", JETSONS)
def test_millions_of_parameters_are_for_the_gpu(name: str) -> None:
    estimates = model(load(name), cost_of(mlp(99, 2048, 2048, 29)))
    assert decide(load(name), 50, estimates, [])[1].runtime == "tensorrt"


def test_a_modelled_verdict_lists_assumed_figures_and_unknown_times() -> None:
    modelled, *lines = verdict(BOARD, 50, model(BOARD, COST)[0]).lines
    assert modelled == (
        "modelled, not measured: about 0.28 ms a control step with tensorrt, network and runtime.py"
    )
    assert lines == [
        "p50 0.278 ms is within 1.000 ms, 5 % of the control period",
        "terms: fixed 0.135, runtime 0.040, launch 0.002, memory 0.100, compute 0.001 ms",
        "p99, max and jitter cannot be modelled; measure on the board",
        "assumed figures: step_us, wake_us, copy_us",
    ]
    # ONNX Runtime has no launches; terms of 0 are omitted. At 200 Hz p50 may be 0.25 ms.
    _, over, terms, *_ = verdict(BOARD, 200, model(BOARD, COST)[1]).lines
    assert over == "p50 0.840 ms is over 0.250 ms, 5 % of the control period"
    assert terms == "terms: fixed 0.200, runtime 0.040, memory 0.500, compute 0.100 ms"


@pytest.mark.parametrize("name", JETSONS)
def test_the_lines_of_a_verdict_have_at_most_105_characters(name: str) -> None:
    target = load(name)
    found = [verdict(target, 50, e) for e in model(target, cost_of(mlp(99, 512, 256, 128, 29)))]
    found += [verdict(target, 50, Measurement.read(result(board))) for board in (None, target.detect[0])]
    found.append(verdict(target, 50, None))
    assert max(len(line) for v in found for line in v.lines) <= 105


# ---------------------------------------------------------------------------------------- against the budget


def result(board: str | None = "The Board 1", runtime: str = "onnxruntime", **paced: float) -> dict[str, Any]:
    times = {"p50_ms": 0.5, "p99_ms": 1.0, "max_ms": 3.0, "mean_ms": 0.6, "count": 1000, "rate_hz": 50.0}
    return {"runtime": runtime, "paced": times | paced, "hot": {}, "device": {"board": board}}


def test_a_measurement_on_the_target_is_compared_with_all_four_times() -> None:
    # At 50 Hz: p50 1 ms, p99 2 ms, max 5 ms, jitter 1 ms.
    found = verdict(BOARD, 50, Measurement.read(result()))
    assert (found.fits, found.basis, found.runtime) == (True, "measured-on-target", "onnxruntime")
    assert found.lines == (
        "measured on the board: onnxruntime, 1000 control steps paced at 50 Hz",
        "p50 0.500 ms is within 1.000 ms, 5 % of the control period",
        "p99 1.000 ms is within 2.000 ms, 10 % of the control period",
        "max 3.000 ms is within 5.000 ms, 25 % of the control period",
        "jitter 0.500 ms is within 1.000 ms, 5 % of the control period",
    )


@pytest.mark.parametrize(
    ("over", "times"),
    [
        ("p50", {"p50_ms": 1.1, "p99_ms": 1.2}),
        ("p99", {"p50_ms": 1.0, "p99_ms": 2.1}),
        ("max", {"max_ms": 5.1}),
        ("jitter", {"p50_ms": 0.5, "p99_ms": 1.6}),
    ],
)
def test_each_of_the_four_can_be_over(over: str, times: dict[str, float]) -> None:
    found = verdict(BOARD, 50, Measurement.read(result(**times)))
    assert found.fits is False
    assert any(re.match(rf"{over} .* is over ", line) for line in found.lines)


@pytest.mark.parametrize("board", [None, "", "another", THOR])
@pytest.mark.parametrize("times", [{}, {"p50_ms": 40.0, "p99_ms": 41.0, "max_ms": 42.0}])
def test_a_measurement_on_another_device_gives_no_verdict(board: str | None, times: dict) -> None:
    found = verdict(BOARD, 50, Measurement.read(result(board, **times)))
    assert (found.fits, found.basis) == (None, "measured-other-device")
    assert found.lines[0] == f"no verdict for the board: measured on {board or 'another device'}"
    assert found.lines[1].startswith("there: onnxruntime, 1000 control steps paced at 50 Hz: p50 ")
    assert not any("budget" in line or "within" in line or "over" in line for line in found.lines)


def test_a_verdict_without_a_valid_basis_raises() -> None:
    for basis in ("measured-other-device", "not-run", "hearsay"):
        with pytest.raises(ValueError, match="no verdict True"):
            Verdict(True, basis, ())
    with pytest.raises(ValueError, match="no verdict None"):
        Verdict(None, "modelled", ())


def test_the_status_in_a_result_is_ignored() -> None:
    boast = result(None) | {"status": "measured-on-target", "basis": "measured-on-target"}
    assert verdict(BOARD, 50, Measurement.read(boast)).basis == "measured-other-device"


def test_a_measurement_belongs_to_the_target_that_its_board_names() -> None:
    measured = Measurement.read(result(THOR))
    assert verdict(load("jetson-thor"), 50, measured).basis == "measured-on-target"
    assert verdict(load("jetson-agx-orin"), 50, measured).fits is None
    # Every machine is the host.
    assert verdict(load("host"), 50, Measurement.read(result(None))).fits is True


def test_the_board_is_read_at_the_top_or_in_device() -> None:
    measured = result(None) | {"device": None}
    assert [Measurement.read(measured | more).board for more in ({"board": "B"}, {})] == ["B", None]


def test_without_any_time_there_is_no_verdict() -> None:
    assert verdict(BOARD, 50, None).basis == "not-run"
    assert verdict(BOARD, 50, None).lines == ("no verdict for the board: nothing was measured or modelled",)
    host = load("host")
    assert model(host, COST) == []
    assert verdict(host, 50, None).lines == ("no verdict for this machine: nothing was measured",)


def test_another_rate_too_few_steps_and_another_target_give_no_verdict() -> None:
    with pytest.raises(ConfigError, match="measured at 200 Hz, the policy runs at 50"):
        verdict(BOARD, 50, Measurement.read(result(rate_hz=200.0)))
    # 50.0000001 Hz counts as 50 Hz; 499 steps are too few for a p99.
    few = verdict(BOARD, 50, Measurement.read(result(rate_hz=50.0000001, count=499)))
    assert (few.fits, few.basis) == (None, "not-run")
    assert few.lines == ("no verdict for the board: 499 control steps measured, at least 500 needed",)
    with pytest.raises(ValueError, match="the estimate is for board, not for host"):
        verdict(load("host"), 50, model(BOARD, COST)[0])


@pytest.mark.parametrize(
    "fault",
    [
        {"runtime": "torch"},
        *({"paced": paced} for paced in (None, {}, {"p50_ms": 1.0})),
        *({"paced": result()["paced"] | {"p50_ms": bad}} for bad in (0, -1, float("nan"), "1", True)),
        {"paced": result()["paced"] | {"count": 0}},
        {"paced": result()["paced"] | {"p50_ms": 1.5}},
    ],
)
def test_an_invalid_measurement_is_refused(fault: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="measurement"):
        Measurement.read(result() | fault)


# ---------------------------------------------------------------------------------------- which runtime


def test_the_fastest_is_recommended_with_its_reason() -> None:
    best = recommend(model(BOARD, COST))
    assert best
    assert best.runtime == "tensorrt"
    said = "Try it first: a control step takes about 0.28 ms with tensorrt, 0.84 ms with onnxruntime; "
    assert best.reason == said + "the model has assumed figures."
    best = recommend([dataclasses.replace(e, figures={}) for e in model(BOARD, COST)])  # nothing assumed
    assert best
    assert best.reason == said + "modelled, not measured."
    measured = [result(p99_ms=1.1), result(runtime="tensorrt", p50_ms=0.2, p99_ms=1.4)]
    best = recommend([Measurement.read(r) for r in measured])
    assert best
    # By p99, not by p50.
    assert best.runtime == "onnxruntime"
    assert best.reason == "99 of 100 steps take at most 1.100 ms with onnxruntime, 1.400 ms with tensorrt."
    assert recommend([]) is None


def test_times_of_different_origin_raise() -> None:
    mixed: list[Any] = [*model(BOARD, COST), Measurement.read(result())]
    with pytest.raises(ValueError, match="different origin"):
        recommend(mixed)
    with pytest.raises(ValueError, match="different origin"):
        recommend([Measurement.read(result()), Measurement.read(result(THOR, "tensorrt"))])


def test_a_measurement_on_the_target_precedes_the_model() -> None:
    estimates = model(BOARD, COST)
    mine, elsewhere = Measurement.read(result()), Measurement.read(result(None, "tensorrt"))
    best, found = decide(BOARD, 50, estimates, [elsewhere, mine])
    assert best
    assert (best.runtime, found.basis, found.runtime) == ("onnxruntime", "measured-on-target", "onnxruntime")
    best, found = decide(BOARD, 50, estimates, [elsewhere])
    assert best
    assert (best.runtime, found.basis) == ("tensorrt", "modelled")
    assert decide(BOARD, 50, [], [elsewhere]) == (None, verdict(BOARD, 50, elsewhere))
    assert decide(BOARD, 50, [], [])[1].basis == "not-run"
