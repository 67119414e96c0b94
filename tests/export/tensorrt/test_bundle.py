"""Engines in bundles: built by runtime.py on the robot, or by the export on a machine with TensorRT."""

from __future__ import annotations

import json
import shutil

import pytest

from robolearn.cli import main
from robolearn.export.onnx.check import OPERATORS
from robolearn.runtime import main as commands
from tests.export import fake_tensorrt
from tests.export.conftest import QUICK
from tests.export.fake_tensorrt import VERSIONS


@pytest.fixture
def computer(robot, monkeypatch):
    """The robot's computer, with a parser that knows the operators of exported policies."""
    monkeypatch.setattr(fake_tensorrt, "OPERATORS", OPERATORS)
    return robot


@pytest.fixture
def run(trained, tmp_path):
    return shutil.copytree(trained, tmp_path / "run")


def command(bundle, *words) -> int:
    return commands.main(["--bundle", str(bundle), *words])


@pytest.mark.parametrize("version", VERSIONS)
def test_an_engine_is_built_checked_and_loaded_again(version, computer, bundle, capsys):
    computer.become(version)
    assert command(bundle, "build") == 0, capsys.readouterr().err
    assert command(bundle, "check") == 0
    said = capsys.readouterr().out
    assert "ok    tensorrt: 320 recorded control steps" in said
    assert "ok    onnxruntime: 320 recorded control steps" in said


def test_an_engine_that_fails_the_golden_check_is_deleted(computer, bundle, capsys, monkeypatch):
    compute = commands.EngineSession.run
    monkeypatch.setattr(
        commands.EngineSession, "run", lambda s, f: {k: v + 0.1 for k, v in compute(s, f).items()}
    )
    assert command(bundle, "build") == 3
    assert "golden check failed" in capsys.readouterr().err
    assert not (bundle / "controller.engine").exists()
    assert not (bundle / "controller.engine.json").exists()


def test_an_engine_of_another_tensorrt_or_device_is_code_6(computer, bundle, capsys):
    assert command(bundle, "build") == 0
    computer.become(VERSIONS[0])
    assert command(bundle, "check", "--runtime", "tensorrt") == 6
    assert f"was built by TensorRT {VERSIONS[-1]}, this machine has {VERSIONS[0]}" in capsys.readouterr().err
    computer.become(VERSIONS[-1], capability=(8, 7))
    assert command(bundle, "check", "--runtime", "tensorrt") == 6
    assert "this device has 8.7" in capsys.readouterr().err
    assert command(bundle, "check", "--runtime", "onnxruntime") == 0


def test_checking_tensorrt_without_an_engine_is_code_6(computer, bundle, capsys):
    assert command(bundle, "check", "--runtime", "tensorrt") == 6
    assert "python runtime.py build" in capsys.readouterr().err


def test_an_export_on_a_machine_with_tensorrt_builds_an_engine(computer, run, tmp_path, capsys):
    words = ["--target", "host", "--require-engine", "--output", str(tmp_path / "b")]
    assert main(["export", str(run), *words, *QUICK]) == 0, capsys.readouterr().err
    said = capsys.readouterr().out
    assert "controller.engine built and checked" in said
    assert json.loads((tmp_path / "b" / "latency.json").read_text())["engine"]["status"] == "built"
    sidecar = json.loads((tmp_path / "b" / "controller.engine.json").read_text())
    assert sidecar["tensorrt"] == VERSIONS[-1]


def test_a_bf16_export_is_driven_without_onnx_runtime(computer, run, tmp_path, capsys):
    words = ["--precision", "bf16", "--require-engine", "--output", str(tmp_path / "b")]
    assert main(["export", str(run), *words, *QUICK]) == 0, capsys.readouterr().err
    assert command(tmp_path / "b", "check") == 0
    assert "onnxruntime" not in capsys.readouterr().out.splitlines()[-1]


def test_an_export_whose_engine_cannot_be_built_is_code_6_and_leaves_no_files(
    computer, run, tmp_path, capsys
):
    computer.trt.machine.broken.add("plan")
    words = ["--target", "host", "--require-engine", "--output", str(tmp_path / "b")]
    assert main(["export", str(run), *words, *QUICK]) == 6
    assert "cannot build an engine" in capsys.readouterr().err
    assert not (tmp_path / "b").exists()
