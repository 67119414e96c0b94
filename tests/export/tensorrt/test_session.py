"""Loading and running engines, with a strict fake of each TensorRT version and of the CUDA runtime.

A real TensorRT is not tested here.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from robolearn.runtime.cuda import Cuda
from robolearn.runtime.errors import BAD_INPUT, ENGINE
from tests.export.fake_tensorrt import VERSIONS
from tests.export.tensorrt.robot import BIAS, EXPECTED, FEEDS, NEW, Robot, refused

REBUILD = "run: python runtime.py build"


@pytest.mark.parametrize("version", VERSIONS)
def test_an_engine_is_built_loaded_and_run(robot: Robot, version: str) -> None:
    robot.become(version)
    built = robot.build()
    with robot.load() as session:
        assert (session.name, session.warnings) == ("tensorrt", [])
        assert session.inputs == {"obs": (1, 3), "h_in": (1, 2)}
        assert session.outputs == {"actions": (1, 2), "h_out": (1, 2)}
        for factor in (1, 0, 1):
            out = session.run({name: factor * value for name, value in FEEDS.items()})
            want = EXPECTED if factor else {"actions": [BIAS], "h_out": [BIAS]}
            assert {name: array.tolist() for name, array in out.items()} == {
                name: np.asarray(value).tolist() for name, value in want.items()
            }
            assert {array.dtype for array in out.values()} == {np.dtype(np.float32)}
        assert session.sidecar == built
    assert robot.gpu.held() == 0
    assert out["actions"].tolist() == EXPECTED["actions"]  # a copy: freed buffers hold NaN


def test_a_step_is_one_launch_and_one_wait(robot: Robot) -> None:
    robot.build()
    with robot.load() as session:
        before = len(robot.gpu.calls)
        session.run(FEEDS)
        assert robot.gpu.calls[before:] == ["cudaGraphLaunch", "cudaStreamSynchronize"]


@pytest.mark.parametrize(
    ("changes", "parts"),
    [
        ({"compute_capability": "8.7"}, ("built for compute capability 8.7", "this device has 11.0")),
        ({"tensorrt": "10.13.3.9"}, ("built by TensorRT 10.13.3.9", "this machine has 11.4.0.106")),
        ({"onnx_sha256": "5ad0"}, ("built from the ONNX graph 5ad0, this bundle's is ",)),
        ({"engine_sha256": "5ad0"}, ("written with hash 5ad0, the file now has ",)),
        ({"schema": 2}, ("has schema 2",)),
        ({"driver": None}, ("driver is None",)),
    ],
)
def test_an_engine_whose_sidecar_does_not_match_is_refused_with_both_values(
    robot: Robot, changes: dict[str, Any], parts: tuple[str, ...]
) -> None:
    robot.build()
    robot.rewrite(**changes)
    refused(ENGINE, robot.load, *parts, REBUILD)
    assert robot.gpu.held() == 0


def test_an_engine_is_refused_on_another_device_and_by_another_tensorrt_version(robot: Robot) -> None:
    robot.build()
    robot.become(NEW, capability=(8, 7))
    refused(ENGINE, robot.load, "compute capability 11.0", "has 8.7", REBUILD)
    robot.become(VERSIONS[1])
    refused(ENGINE, robot.load, "11.4.0.106", "10.16.1.11", REBUILD)


@pytest.mark.parametrize("content", [None, b"", b"{", b"\xff", b"[]", b"1"])
def test_a_missing_or_damaged_sidecar_is_refused(robot: Robot, content: bytes | None) -> None:
    robot.build()
    robot.sidecar.unlink() if content is None else robot.sidecar.write_bytes(content)
    refused(ENGINE, robot.load, "policy.engine.json", REBUILD)


def test_a_missing_or_truncated_engine_is_refused(robot: Robot) -> None:
    robot.build()
    robot.engine.write_bytes(robot.engine.read_bytes()[:-1])
    refused(ENGINE, robot.load, "policy.engine was written with hash", REBUILD)
    robot.engine.unlink()
    refused(ENGINE, robot.load, "cannot read", "policy.engine", REBUILD)


@pytest.mark.parametrize(
    ("changes", "part"),
    [
        ({"driver": "12.6"}, "a driver for CUDA 12.6, this machine has 13.0"),
        ({"power_mode": "MAXN"}, "power mode MAXN, this machine has unknown"),
        ({"board": "another board"}, "the board another board, this machine has unknown"),
    ],
)
def test_another_driver_power_mode_or_board_is_a_warning(
    robot: Robot, changes: dict[str, Any], part: str
) -> None:
    robot.build()
    robot.rewrite(**changes)
    with robot.load() as session:
        (warning,) = session.warnings
        assert part in warning
        assert session.run(FEEDS)["actions"].tolist() == EXPECTED["actions"]


def test_an_unchecked_tensorrt_version_is_a_warning(robot: Robot) -> None:
    robot.become(VERSIONS[0], calls_itself="10.14.1.48")
    robot.build()
    with robot.load() as session:
        (warning,) = session.warnings
    assert "10.14.1.48 is none of 10.13, 10.16, 11.4" in warning


@pytest.mark.parametrize(
    ("part", "says"),
    [
        ("runtime", "cannot run policy.engine: the runtime does not start"),
        ("engine", "cannot load policy.engine (IRuntime::deserializeCudaEngine: Error Code 1"),
        ("context", "cannot allocate memory to run policy.engine"),
        ("address", "rejects the address of obs"),
        ("queue", "could not enqueue the network: IExecutionContext::enqueueV3"),
    ],
)
def test_a_load_that_tensorrt_refuses_gives_the_reason_and_frees_all_memory(
    robot: Robot, part: str, says: str
) -> None:
    robot.build()
    robot.trt.machine.broken = {part}
    line = refused(ENGINE, robot.load, says)
    assert (REBUILD in line) is (part == "engine")  # a new engine would not help the others
    assert robot.gpu.held() == 0


@pytest.mark.parametrize("nth", [1, 2, 3])
@pytest.mark.parametrize("name", ["cudaMalloc", "cudaMallocHost", "cudaMemcpyAsync"])
def test_a_failed_cuda_call_is_named_and_all_memory_is_freed(robot: Robot, name: str, nth: int) -> None:
    robot.build()
    robot.gpu.fail[name] = (nth, 2)
    refused(ENGINE, robot.load, f"{name} failed: cudaErrorMemoryAllocation (out of memory)")
    assert robot.gpu.held() == 0
    assert robot.gpu.last_error == 0  # cleared, so that TensorRT does not report it


@pytest.mark.parametrize("name", ["cudaStreamCreateWithFlags", "cudaStreamSynchronize", "cudaGraphLaunch"])
def test_a_failed_stream_call_is_named_and_all_memory_is_freed(robot: Robot, name: str) -> None:
    robot.build()
    robot.gpu.fail[name] = (1, 719)
    refused(ENGINE, robot.load, f"{name} failed: cudaErrorLaunchFailure")
    assert robot.gpu.held() == 0


@pytest.mark.parametrize(
    "fault", ["capture", "cudaStreamBeginCapture", "cudaStreamEndCapture", "cudaGraphInstantiateWithFlags"]
)
def test_a_failed_capture_is_a_warning_and_the_engine_runs_without_a_cuda_graph(
    robot: Robot, fault: str
) -> None:
    robot.build()
    if fault == "capture":
        robot.trt.machine.broken = {fault}
    else:
        robot.gpu.fail[fault] = (1, 901)
    with robot.load() as session:
        (warning,) = session.warnings
        assert "without a CUDA graph" in warning
        assert ("enqueueV3" if fault == "capture" else fault) in warning
        for _ in range(2):
            out = session.run(FEEDS)
        assert {name: array.tolist() for name, array in out.items()} == EXPECTED
        assert robot.gpu.count("cudaGraphLaunch") == 0
    assert robot.gpu.held() == 0


def test_a_step_that_fails_is_refused(robot: Robot) -> None:
    robot.build()
    with robot.load() as session:
        robot.gpu.fail["cudaStreamSynchronize"] = (robot.gpu.count("cudaStreamSynchronize") + 1, 719)
        refused(ENGINE, lambda: session.run(FEEDS), "cudaStreamSynchronize failed: cudaErrorLaunchFailure")


@pytest.mark.parametrize(
    ("feeds", "part"),
    [
        ({"obs": FEEDS["obs"]}, "inputs are ['obs']; the engine needs ['h_in', 'obs']"),
        ({**FEEDS, "obs": FEEDS["obs"][0]}, "obs is float32 (3,); the engine needs float32 (1, 3)"),
        ({**FEEDS, "obs": FEEDS["obs"][:, :1]}, "obs is float32 (1, 1)"),
        ({**FEEDS, "obs": FEEDS["obs"].astype(np.float64)}, "obs is float64 (1, 3)"),
    ],
)
def test_inputs_of_another_name_shape_or_type_are_refused(
    robot: Robot, feeds: dict[str, np.ndarray], part: str
) -> None:
    robot.build()
    with robot.load() as session:
        refused(BAD_INPUT, lambda: session.run(feeds), part)


def test_a_closed_session_holds_no_memory_and_refuses_to_run(robot: Robot) -> None:
    robot.build()
    session = robot.load()
    assert robot.gpu.held() > 0
    session.close()
    session.close()
    assert robot.gpu.held() == 0
    refused(BAD_INPUT, lambda: session.run(FEEDS), "closed")


def test_views_of_host_memory_start_at_zero(robot: Robot) -> None:
    gpu = Cuda()
    for shape, size in (((1, 3), 12), ((), 4)):
        pointer = gpu.malloc_host(size)
        array = gpu.view(pointer, shape)
        assert (array.shape, array.dtype) == (shape, np.float32)
        assert not array.any()
        gpu.free_host(pointer)


def test_two_sessions_do_not_share_buffers(robot: Robot) -> None:
    robot.build()
    with robot.load() as one, robot.load() as other:
        kept = one.run(FEEDS)["actions"]
        assert other.run({name: 0 * value for name, value in FEEDS.items()})["actions"].tolist() == [
            [0.5, -0.5]
        ]
        assert kept.tolist() == EXPECTED["actions"]
