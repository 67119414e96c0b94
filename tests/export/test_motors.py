"""A policy that was trained with models of motors is exported; the closed loop simulates the same motors."""

from __future__ import annotations

import json

import pytest

from robolearn import config
from robolearn.envs.actuators.backend import MotorBackend
from robolearn.export import closed_loop
from robolearn.export.record import on_robot
from robolearn.training.build import build_env
from robolearn.training.train import train
from tests.export.conftest import export

WORDS = [
    "task=hopper_run",
    "robot.actuators.hip={model: explicit, delay: [0.2, 0.8]}",
    "robot.actuators.knee={model: dc, saturation: 100, no_load_speed: 20}",
]


@pytest.mark.slow
def test_a_policy_with_motors_is_exported_and_its_bundle_drives_the_same_motors(tmp_path, capfd, monkeypatch):
    small = ["num_envs=8", "max_iterations=2", "learner.actor_hidden=[8]", "learner.critic_hidden=[8]"]
    run = train(config.resolve([*WORDS, *small, f"output={tmp_path / 'run'}"]))
    backends = []
    make = closed_loop.make_env

    def seen(*arguments, **named):
        env = make(*arguments, **named)
        backends.append(env.backend)
        return env

    monkeypatch.setattr(closed_loop, "make_env", seen)
    another = (
        "robot.actuators.knee.saturation=90"  # of the closed loop alone: the conditions in training stay
    )
    code, said = export(capfd, run, another, "--target", "jetson-thor", "--output", tmp_path / "bundle")
    assert code == 0, said
    assert backends
    assert all(isinstance(backend, MotorBackend) for backend in backends)
    manifest = json.loads((tmp_path / "bundle" / "manifest.json").read_text())
    assert manifest["motors"] == {
        "hip": {"model": "explicit", "delay": [0.2, 0.8]},
        "knee": {"model": "dc", "saturation": 100.0, "no_load_speed": 20.0},
    }
    assert [action["kp"] for action in manifest["contract"]["actions"]] == [
        80,
        100,
        50,
    ]  # what the drives are told
    report = (tmp_path / "bundle" / "REPORT.md").read_text()
    assert "motors of knee | dc (saturation 100.0, no_load_speed 20.0)" in report
    assert "no part of the bundle" in report
    assert "without delays" not in report


def test_on_the_robot_the_motors_are_simulated_as_in_training():
    env = build_env(on_robot(config.resolve(WORDS)), 2)
    assert isinstance(env.backend, MotorBackend)
    assert env.capabilities.drawn == {"motor_delay": (0.0, 1.0)}
