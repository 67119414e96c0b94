"""Building engines, with a strict fake of each TensorRT version and of the CUDA runtime.

A real TensorRT is not tested here.
"""

from __future__ import annotations

import ctypes
import hashlib
import json
import sys
from pathlib import Path

import pytest
from onnx import TensorProto

from robolearn.runtime.engine import build_engine, device
from robolearn.runtime.errors import BAD_INPUT, ENGINE, NOT_HERE
from tests.export.fake_tensorrt import VERSIONS
from tests.export.tensorrt.robot import NEW, Robot, graph, refused


# Strongly typed is the flag 1 up to 10.16 and the flag 0 from 11 on, so the bits 2 and 1.
@pytest.mark.parametrize(("version", "flags"), zip(VERSIONS, (2, 2, 1), strict=True))
def test_the_network_is_strongly_typed_in_every_version(robot: Robot, version: str, flags: int) -> None:
    robot.become(version)
    robot.build()
    assert robot.trt.machine.network_flags == flags


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(
    ("precision", "on"), [("fp32", False), ("fp16", False), ("bf16", False), ("tf32", True)]
)
def test_tf32_is_on_only_for_precision_tf32(robot: Robot, version: str, precision: str, on: bool) -> None:
    robot.become(version)
    assert robot.build(precision=precision)["precision"] == precision
    config = robot.trt.machine.config
    assert config.get_flag(robot.trt.BuilderFlag.TF32) is on
    assert config._limits == {"WORKSPACE": 1 << 30}


def test_the_sidecar_states_what_the_engine_was_built_from_and_on(robot: Robot, tmp_path: Path) -> None:
    (tmp_path / "model").write_bytes(b"NVIDIA Jetson AGX Thor Developer Kit\0")
    returned = robot.build()
    assert json.loads(robot.sidecar.read_text()) == returned
    built_at = returned.pop("built_at")
    assert built_at[10] == "T"
    assert built_at.endswith("+00:00")
    assert returned == {
        "schema": 1,
        "tensorrt": "11.4.0.106",
        "compute_capability": "11.0",
        "driver": "13.0",
        "power_mode": None,
        "board": "NVIDIA Jetson AGX Thor Developer Kit",
        "onnx_sha256": hashlib.sha256(robot.onnx.read_bytes()).hexdigest(),
        "engine_sha256": hashlib.sha256(robot.engine.read_bytes()).hexdigest(),
        "precision": "fp32",
    }
    assert robot.files() == {"policy.onnx", "policy.engine", "policy.engine.json"}


@pytest.mark.parametrize(
    ("said", "mode"),
    [
        ("NV Power Mode: MAXN\n0\n", "MAXN"),
        ("NV Fan Mode:quiet\nNV Power Mode: MODE_30W\n2\n", "MODE_30W"),
        ("NV Power Mode:\n120W\n1\n", "120W"),
        ("", None),
    ],
)
def test_the_power_mode_is_the_one_nvpmodel_prints(
    robot: Robot, tmp_path: Path, said: str, mode: str | None
) -> None:
    program = tmp_path / "nvpmodel"
    program.write_text(
        f"#!{sys.executable}\nimport sys\nassert sys.argv[1:] == ['-q']\nprint({said!r}, end='')\n"
    )
    program.chmod(0o755)
    assert device()["power_mode"] == mode


# The numbers are 1000 x major + 10 x minor.
@pytest.mark.parametrize(
    ("number", "version"), [(13000, "13.0"), (13020, "13.2"), (12060, "12.6"), (11040, "11.4")]
)
def test_the_drivers_number_is_read_as_a_version(robot: Robot, number: int, version: str) -> None:
    robot.become(NEW, driver=number)
    assert device()["driver"] == version


def test_a_timing_cache_is_written_reused_and_replaced_for_another_device(robot: Robot) -> None:
    cache = robot.folder / "timing.cache"
    robot.build(timing_cache=cache)
    robot.build(timing_cache=cache)
    assert cache.read_bytes().endswith(b"timed timed")
    cache.write_bytes(b"nonsense")
    robot.build(timing_cache=cache)
    assert cache.read_bytes().count(b"timed") == 1
    robot.become(NEW, capability=(8, 7))
    robot.build(timing_cache=cache)
    assert b"8" in cache.read_bytes()
    assert cache.read_bytes().count(b"timed") == 1


# The part that fails, and the message.
BROKEN_BUILDS = {
    "builder": "cannot build an engine of policy.onnx: the builder does not start",
    "silent plan": "cannot build an engine of policy.onnx: no reason given",
    "plan": "cannot build an engine of policy.onnx: [optimizer.cpp] Could not find any implementation for node",
}


@pytest.mark.parametrize("part", BROKEN_BUILDS)
def test_a_failed_build_gives_the_reason_and_leaves_no_file(robot: Robot, part: str) -> None:
    robot.trt.machine.broken = {part}
    refused(
        ENGINE,
        lambda: robot.build(timing_cache=robot.folder / "timing.cache"),
        f"TensorRT {NEW}",
        BROKEN_BUILDS[part],
    )
    assert robot.files() == {"policy.onnx"}


def test_a_rejected_timing_cache_is_not_reported_as_the_cause_of_a_later_failure(robot: Robot) -> None:
    cache = robot.folder / "timing.cache"
    cache.write_bytes(b"nonsense")
    robot.trt.machine.broken = {"plan"}
    line = refused(ENGINE, lambda: robot.build(timing_cache=cache), "Could not find any implementation")
    assert "timing cache" not in line
    assert cache.read_bytes() == b"nonsense"


def test_a_failed_build_keeps_the_existing_engine(robot: Robot) -> None:
    robot.build()
    before = (robot.engine.read_bytes(), robot.sidecar.read_bytes())
    robot.trt.machine.broken = {"plan"}
    refused(ENGINE, robot.build)
    assert (robot.engine.read_bytes(), robot.sidecar.read_bytes()) == before


def test_an_operator_unknown_to_the_parser_is_named(robot: Robot) -> None:
    robot.onnx.write_bytes(graph(last="Multinomial"))
    line = refused(ENGINE, robot.build, "node 1 Multinomial state: no importer is registered for Multinomial")
    assert line.count("no importer") == 1
    assert robot.files() == {"policy.onnx"}


def test_a_file_that_is_not_onnx_is_refused(robot: Robot) -> None:
    robot.onnx.write_bytes(b"\xff" * 9)
    refused(ENGINE, robot.build, "cannot parse policy.onnx")
    assert robot.files() == {"policy.onnx"}


@pytest.mark.parametrize(
    ("model", "why"),
    [
        (graph(obs=("batch", 3)), "obs has the dynamic shape (-1, 3); export with a fixed batch of 1"),
        (graph(kind=TensorProto.INT64), "obs must be float32"),
    ],
)
def test_dynamic_or_integer_inputs_are_refused_at_build_and_load(
    robot: Robot, model: bytes, why: str
) -> None:
    good = robot.build()
    robot.onnx.write_bytes(model)
    refused(BAD_INPUT, robot.build, f"policy.onnx: {why}")
    # The same for an engine from another program.
    plan = robot.trt.machine.plan(model)
    robot.engine.write_bytes(plan)
    hashes = {
        "onnx_sha256": hashlib.sha256(model).hexdigest(),
        "engine_sha256": hashlib.sha256(plan).hexdigest(),
    }
    robot.rewrite(**good | hashes)
    refused(BAD_INPUT, robot.load, f"policy.engine: {why}")
    assert robot.gpu.held() == 0


def test_options_and_paths_that_cannot_be_used_are_refused(robot: Robot) -> None:
    refused(BAD_INPUT, lambda: robot.build(precision="int3"), "'int3'", "fp32, tf32, fp16, bf16")
    away = robot.folder / "away" / "policy.engine"
    refused(BAD_INPUT, lambda: build_engine(robot.onnx, away), "there is no folder")
    refused(BAD_INPUT, lambda: build_engine(away, robot.engine), "cannot read")
    robot.sidecar.mkdir()
    refused(BAD_INPUT, robot.build, "cannot write")
    assert robot.files() == {"policy.onnx", "policy.engine.json"}


def test_without_tensorrt_the_message_says_what_to_install(
    robot: Robot, monkeypatch: pytest.MonkeyPatch
) -> None:
    robot.build()
    monkeypatch.setitem(sys.modules, "tensorrt", None)
    for call in (robot.build, robot.load, device):
        refused(NOT_HERE, call, "apt install python3-libnvinfer", "pip install tensorrt")


def test_without_the_cuda_runtime_the_message_says_what_to_install(
    robot: Robot, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried = []

    def absent(name: str) -> None:
        tried.append(name)
        raise OSError(name)

    monkeypatch.undo()
    monkeypatch.setitem(sys.modules, "tensorrt", robot.trt)
    monkeypatch.setattr(ctypes, "CDLL", absent)
    refused(NOT_HERE, device, "apt install nvidia-jetpack")
    assert tried == ["libcudart.so.13", "libcudart.so.12", "libcudart.so"]


def test_without_a_gpu_the_build_is_refused(robot: Robot) -> None:
    robot.become(NEW, devices=0)
    refused(
        NOT_HERE,
        robot.build,
        "no usable CUDA device",
        "cudaErrorNoDevice (no CUDA-capable device is detected)",
    )
    robot.become(NEW)
    robot.gpu.fail["cudaGetDeviceCount"] = (1, 35)
    refused(NOT_HERE, robot.build, "no usable CUDA device", "cudaErrorInsufficientDriver")
    robot.gpu.fail["cudaGetDeviceCount"] = (2, 0)  # count 0 without an error
    refused(NOT_HERE, robot.build, "CUDA counts 0")
    assert robot.files() == {"policy.onnx"}


def test_a_cuda_runtime_without_cuda_graphs_is_refused(robot: Robot) -> None:
    del robot.gpu.cudaGraphInstantiateWithFlags
    refused(NOT_HERE, device, "no cudaGraphInstantiateWithFlags", "11.4")
