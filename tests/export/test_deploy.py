"""`robolearn deploy`: a bundle controls a simulated robot in real time."""

from __future__ import annotations

import re
import time

import numpy as np
import pytest

from robolearn.cli import main
from robolearn.core.env import Env
from robolearn.export import deploy as deploying
from robolearn.runtime.errors import BAD_INPUT, NOT_THE_SAME
from tests.as_on_gpu import no_numpy_before_cpu, unread

PATIENT = ["--max-missed", "1"]
"""Tests do not depend on the load of the machine."""


def test_the_shipped_policy_walks_in_real_time(exported, capsys):
    code = main(["deploy", str(exported), "--seconds", "2", *PATIENT, "task.commands.forward=[0.8,0.8]"])
    out = capsys.readouterr().out
    assert code == 0, out
    assert "100 control steps at 50 Hz with onnxruntime" in out
    assert re.search(r"falls +0\n", out)
    assert re.search(r"missed deadlines +\d+ of 100", out)


def test_a_bundle_controls_a_robot_on_a_gpu_backend(exported, capsys, monkeypatch):
    pytest.importorskip("mujoco_warp")
    drive = deploying.drive

    def on_gpu(runtime, env, seconds):
        with no_numpy_before_cpu():
            return drive(runtime, unread(env), seconds)

    monkeypatch.setattr(deploying, "drive", on_gpu)
    words = ["backend=mujoco_warp", "device=cpu", "--seconds", "0.3", *PATIENT]
    assert main(["deploy", str(exported), *words]) == 0, capsys.readouterr().err
    assert main(["deploy", str(exported), *words, "backend.nconmax=3"]) == NOT_THE_SAME
    assert "raise backend.nconmax, now 3" in capsys.readouterr().err


def test_a_robot_that_falls_is_code_1(exported, capsys):
    code = main(["deploy", str(exported), "--seconds", "0.3", *PATIENT, "task.terminations.fallen.upright=1"])
    assert code == 1, capsys.readouterr().out


def test_missed_deadlines_are_code_4(exported, capsys, monkeypatch):
    late = deploying.Drive(
        np.full(10, 0.03), np.zeros(10), missed=4, began_late=1, falls=0, episode_return=1.0, seconds=0.2
    )
    monkeypatch.setattr(deploying, "drive", lambda *_: late)
    assert main(["deploy", str(exported), "--seconds", "0.2"]) == 4
    said = capsys.readouterr().out
    assert (
        "40.00 %, allowed 1 % (--max-missed 0.01; measured on this machine): 1 steps began too late" in said
    )
    assert "in 3 the policy took longer than 20 ms" in said


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["--runtime", "openvino"], 2, "valid: onnxruntime, tensorrt"),
        (["--runtime", "tensorrt"], 6, "is not built yet"),
        (["task.control_dt=0.04"], 2, "contract.control_dt: 0.02 and 0.04"),
        (["task=cartpole_balance"], 2, "another robot or task"),
        (["--seconds", "inf"], 2, "--seconds"),
        (["--seconds", "1e12"], 2, "86400"),
        (["--max-missed", "nan"], 2, "--max-missed"),
        (["task.nonsense=1"], 2, "nonsense"),
        (["num_envs=5"], 2, "num_envs=5"),
        (["weights=runs/other"], 2, "weights=runs/other"),
        (["task.action_delay=[0,1]"], 2, "task.action_delay"),
        (["task.observation_delay=[1,1]"], 2, "task.observation_delay"),
    ],
)
def test_bad_options_and_settings_are_one_line(words, code, said, exported, capsys):
    assert main(["deploy", str(exported), *words]) == code
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert said in error


@pytest.mark.parametrize(("when", "code"), [("golden check", 3), ("drive", 2)])
def test_an_action_that_is_not_finite_is_one_line(when, code, exported, monkeypatch, capsys):
    own = deploying.own_runtime

    def broken(folder, key):
        ours = own(folder, key)

        class Broken(ours.Runtime):
            def step(self, *given):
                raise ValueError("the network's action is not finite: [nan]")

        if when == "golden check":
            ours.Runtime = Broken
        else:
            ours.open_session = lambda bundle, name: ours.OnnxSession(bundle.graph)
            ours.Runtime = Broken
        return ours

    monkeypatch.setattr(deploying, "own_runtime", broken)
    assert main(["deploy", str(exported), "--seconds", "0.1"]) == code
    (line,) = capsys.readouterr().err.splitlines()
    assert "not finite: [nan]" in line


def test_a_bundles_own_program_is_not_executed_where_nobody_signed_it(bundle, forge, tmp_path, capsys):
    mark = tmp_path / "executed"
    program = bundle / "runtime.py"
    program.write_text(program.read_text() + f"\nopen({str(mark)!r}, 'w')\n")
    forge(bundle)
    for command in (["deploy", str(bundle)], ["play", str(bundle)]):
        assert main(command) == BAD_INPUT
        assert "signed" in capsys.readouterr().err
    assert not mark.exists()


def test_a_damaged_bundle_is_refused(bundle, capsys):
    (bundle / "controller.onnx").write_bytes(b"")
    assert main(["deploy", str(bundle)]) == 2
    assert "controller.onnx is damaged" in capsys.readouterr().err
    (bundle / "runtime.py").write_text("print('not run')")
    assert main(["deploy", str(bundle)]) == 2
    said = capsys.readouterr()
    assert "runtime.py was changed" in said.err
    assert not said.out


def test_a_slow_simulation_misses_deadlines(exported, monkeypatch, capsys):
    step = Env.step

    def slow(self, *args):
        time.sleep(0.05)  # of a period of 0.02 s
        return step(self, *args)

    monkeypatch.setattr(Env, "step", slow)
    assert main(["deploy", str(exported), "--seconds", "0.4"]) == 4
    out = capsys.readouterr().out
    missed, factor = (re.search(rf"{what} +(\S+)", out).group(1) for what in ("deadlines", "factor"))
    assert int(missed) >= 15  # of 20
    assert float(factor) < 0.45
