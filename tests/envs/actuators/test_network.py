"""Learned motors: an ONNX file gives the torque that ONNX Runtime computes; what is not supported is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper

from robolearn.envs.actuators.layer import Factors, Motors
from robolearn.envs.actuators.network import Chain, MotorNetwork
from robolearn.errors import ConfigError
from tests.envs.actuators.robots import arm

CPU = torch.device("cpu")


def write(path: Path, nodes: list[Any], weights: dict[str, Any], inputs: int, **metadata: str) -> Path:
    """An ONNX file of these operators, from `x` to `y`."""
    graph = helper.make_graph(
        nodes,
        "motor",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [None, inputs])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [None, 1])],
        [numpy_helper.from_array(np.asarray(value, np.float32), name) for name, value in weights.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    helper.set_model_props(model, {f"robolearn.{key}": value for key, value in metadata.items()})
    onnx.checker.check_model(model)
    onnx.save(model, str(path))
    return path


def layered(path: Path, unit: str, inputs: int = 6, **settings: Any) -> Path:
    """Gemm, unit, MatMul and Add, unit, Gemm with transB, alpha and beta; inputs scaled, output shifted."""
    random = np.random.default_rng(3)

    def weights(*shape: int) -> np.ndarray:
        return random.normal(size=shape) / np.sqrt(shape[0])

    nodes = [
        helper.make_node("Sub", ["x", "mean"], ["a"]),
        helper.make_node("Div", ["a", "scale"], ["b"]),
        helper.make_node("Gemm", ["b", "w0", "b0"], ["c"], transB=1, alpha=0.5, beta=2.0),
        helper.make_node(unit, ["c"], ["d"], **settings),
        helper.make_node("MatMul", ["d", "w1"], ["e"]),
        helper.make_node("Add", ["b1", "e"], ["f"]),
        helper.make_node(unit, ["f"], ["g"], **settings),
        helper.make_node("Gemm", ["g", "w2", "b2"], ["h"]),
        helper.make_node("Mul", ["h", "ten"], ["i"]),
        helper.make_node("Identity", ["i"], ["y"]),
    ]
    given = {
        "mean": random.normal(size=inputs), "scale": 1 + random.random(inputs), "w0": weights(20, inputs),
        "b0": weights(20), "w1": weights(20, 13), "b1": weights(13), "w2": weights(13, 1), "b2": weights(1),
        "ten": [10.0],
    }  # fmt: skip
    return write(path, nodes, given, inputs)


def network(path: Path, samples: int = 3) -> MotorNetwork:
    return MotorNetwork(0, Chain(path), [0], samples, 1, CPU)


@pytest.mark.parametrize(
    ("unit", "settings"),
    [("Elu", {}), ("Elu", {"alpha": 0.3}), ("Relu", {}), ("Tanh", {}), ("Softsign", {}), ("Sigmoid", {})],
)
def test_a_network_gives_what_onnx_runtime_computes(tmp_path, unit, settings):
    path = layered(tmp_path / "motor.onnx", unit, **settings)
    rows = torch.randn(50, 6, generator=torch.Generator().manual_seed(1))
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    expected = session.run(None, {"x": rows.numpy()})[0][:, 0]
    found = network(path).compute(rows).numpy()
    assert np.abs(expected).max() > 1
    assert np.abs(found - expected).max() < 1e-6 * max(1.0, float(np.abs(expected).max()))


@pytest.mark.parametrize("count", [1, 2, 7, 16, 33])
def test_a_row_has_the_same_bits_among_others_and_alone(tmp_path, count):
    made = network(layered(tmp_path / "motor.onnx", "Softsign"))
    rows = torch.randn(3000, 6, generator=torch.Generator().manual_seed(1))
    every = made.compute(rows)
    for first in (0, 500, 2000):
        assert torch.equal(made.compute(rows[first : first + count]), every[first : first + count])


def test_the_schema_is_errors_then_velocities_the_newest_first(tmp_path):
    """The network is 1, 2, 4 times the errors and 8, 16, 32 times the velocities: digits that tell them apart."""
    nodes = [helper.make_node("MatMul", ["x", "w"], ["y"])]
    weights = {"w": np.array([[1.0], [2], [4], [8], [16], [32]]) / 16}
    write(tmp_path / "motor.onnx", nodes, weights, 6, history="3", interval="0.004")
    robot = arm(tmp_path, {"model": "network", "network": "motor.onnx"}, {"model": "explicit"})
    made = Motors(robot, 0.002, CPU)  # two substeps between samples
    ones = Factors(*(torch.ones(1, 2) for _ in range(4)))
    motion = made.start(torch.zeros(1, 2), torch.zeros(1, 2), torch.zeros(1, 2))
    target = torch.tensor([[1.0, 0.0]])
    errors, speeds, found = [], [], []
    for k in range(6):
        motion = made.command(motion, target)
        pos, vel = torch.tensor([[0.1 * k, 0.0]]), torch.tensor([[0.2 * k, 0.0]])
        torque, motion = made.torque(motion, pos, vel, 0, 1, ones)
        errors.append(1 - 0.1 * k)
        speeds.append(0.2 * k)
        found.append(float(torque[0, 0]))
    # At the end the samples are those of the substeps 5, 3 and 1.
    expected = sum(w * errors[i] + 8 * w * speeds[i] for w, i in ((1, 5), (2, 3), (4, 1))) / 16
    assert found[5] == pytest.approx(expected, rel=1e-5)
    # In the second substep the older ones are from before the start: no error, and at rest.
    assert found[1] == pytest.approx((errors[1] + 8 * speeds[1]) / 16, rel=1e-5)


def test_the_torque_of_a_network_is_clamped_to_the_effort(tmp_path):
    nodes = [helper.make_node("MatMul", ["x", "w"], ["y"])]
    write(tmp_path / "motor.onnx", nodes, {"w": [[1000.0], [0.0]]}, 2)
    robot = arm(tmp_path, {"model": "network", "network": "motor.onnx"})
    made = Motors(robot, 0.002, CPU)
    motion = made.start(*(torch.zeros(1, 1) for _ in range(3)))
    motion = made.command(motion, torch.ones(1, 1))
    ones = Factors(*(torch.ones(1, 1) for _ in range(4)))
    torque, _ = made.torque(motion, torch.zeros(1, 1), torch.zeros(1, 1), 0, 1, ones)
    assert float(torque) == 30.0


def refused(path: Path, *named: str) -> None:
    with pytest.raises(ConfigError) as error:
        Chain(path)
    for text in (path.name, *named):
        assert text in str(error.value)


def test_what_a_motor_may_not_be_is_refused_by_name(tmp_path):
    path, w = tmp_path / "motor.onnx", {"w": np.ones((2, 1))}
    write(path, [helper.make_node("MatMul", ["x", "w"], ["a"]), helper.make_node("Sin", ["a"], ["y"])], w, 2)
    refused(path, "Sin", "Softsign")
    write(
        path,
        [helper.make_node("MatMul", ["x", "w"], ["a"]), helper.make_node("Add", ["a", "a"], ["y"])],
        w,
        2,
    )
    refused(path, "Add", "chain")
    own = helper.make_node("Tanh", ["a"], ["y"], domain="some.one")
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["a"]), own],
        "motor",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [None, 2])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [None, 1])],
        [numpy_helper.from_array(np.ones((2, 1), np.float32), "w")],
    )
    onnx.save(helper.make_model(graph), str(path))
    refused(path, "Tanh")
    wide = [helper.make_node("Mul", ["x", "s"], ["a"]), helper.make_node("MatMul", ["a", "w"], ["y"])]
    write(path, wide, {"s": np.ones(100_000), "w": np.ones((100_000, 1))}, 100_000)
    refused(path, "Mul", "100000")
    write(path, [helper.make_node("Tanh", ["x"], ["y"])], {}, 1)
    refused(path, "no network")
    write(path, [helper.make_node("MatMul", ["x", "w"], ["y"])], {"w": np.ones((2, 3))}, 2)
    refused(path, "3 outputs")
    write(path, [helper.make_node("MatMul", ["x", "w"], ["y"])], {"w": [[np.nan], [1.0]]}, 2)
    refused(path, "finite")
    path.write_bytes(b"not an ONNX file")
    refused(path, "ONNX")
    path.write_bytes(b"")
    refused(path, "ONNX")


def test_weights_in_other_files_are_not_read(tmp_path):
    path = write(
        tmp_path / "motor.onnx", [helper.make_node("MatMul", ["x", "w"], ["y"])], {"w": np.ones((2, 1))}, 2
    )
    model = onnx.load(str(path))
    weight = model.graph.initializer[0]
    weight.data_location = TensorProto.EXTERNAL
    weight.external_data.add(key="location", value="../../secret")
    weight.ClearField("raw_data")
    path.write_bytes(model.SerializeToString())
    refused(path, "'w'", "another file")


def test_a_history_that_does_not_fit_the_file_or_the_step_is_refused(tmp_path):
    layered(tmp_path / "motor.onnx", "Tanh")  # six inputs
    keys = {"model": "network", "network": "motor.onnx"}
    for more, named in (({"history": 2}, "history"), ({"interval": 0.003}, "interval")):
        robot = arm(tmp_path, {**keys, **more})
        with pytest.raises(ConfigError, match=named):
            Motors(robot, 0.002, CPU)
    assert Motors(arm(tmp_path, {**keys, "interval": 0.006}), 0.002, CPU).networks[0].stride == 3


def test_a_constant_in_another_file_is_not_read(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "secret").write_bytes(np.full(2, 7.0, np.float32).tobytes())
    weight = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[2, 1])
    weight.data_location = TensorProto.EXTERNAL
    weight.external_data.add(key="location", value="secret")
    nodes = [
        helper.make_node("Constant", [], ["w"], value=weight),
        helper.make_node("MatMul", ["x", "w"], ["y"]),
    ]
    refused(write(tmp_path / "motor.onnx", nodes, {}, 2), "'w'", "another file")


@pytest.mark.parametrize("damage", ["dims", "type", "inputs", "outputs"])
def test_a_damaged_graph_is_refused_by_name(damage, tmp_path):
    path = write(
        tmp_path / "motor.onnx", [helper.make_node("MatMul", ["x", "w"], ["y"])], {"w": np.ones((2, 1))}, 2
    )
    model = onnx.load(str(path))
    weight, node = model.graph.initializer[0], model.graph.node[0]
    if damage == "dims":
        weight.dims[0] = 7
    elif damage == "type":
        weight.data_type = 99
    elif damage == "inputs":
        del node.input[1]
    else:
        del node.output[0]
    path.write_bytes(model.SerializeToString())
    refused(path, str(path))
