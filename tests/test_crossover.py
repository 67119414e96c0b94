"""From gradients to the robot: what SHAC has trained is evaluated in another simulator and exported like any policy."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from robolearn.cli import main

SMALL = ["learner=shac", "num_envs=4", "max_iterations=2", "learner.num_steps=4", "learner.critic_epochs=1"]


@pytest.fixture(scope="module")
def swung(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two tiny iterations of SHAC."""
    folder = tmp_path_factory.mktemp("swung") / "run"
    assert main(["train", "task=cartpole_swingup", *SMALL, f"output={folder}"]) == 0
    return folder


def test_a_policy_trained_through_gradients_is_evaluated_in_another_simulator(swung, tmp_path):
    words = ["eval", str(swung), "--backend", "mujoco", "--gap", "--episodes", "4", "--output", str(tmp_path)]
    assert main([*words, "backend.threads=2"]) == 0
    metrics = json.loads((tmp_path / "metrics.json").read_text())
    assert (metrics["backend"], metrics["gap"]["backend"]) == ("mujoco", "differentiable")
    # Ten seconds of a swinging pole without contact: the same in both but for rounding.
    assert abs(metrics["gap"]["relative"]) < 0.05


def test_it_is_exported_like_any_other(swung, tmp_path):
    brief = ["--starts", "4", "--seconds", "0.5", "--measure-seconds", "0"]
    assert main(["export", str(swung), *brief, "--output", str(tmp_path / "bundle")]) == 0
    assert (tmp_path / "bundle" / "policy.onnx").is_file()


def test_the_ant_takes_a_step_up_its_gradient(tmp_path):
    words = ["train", "task=ant_run", *SMALL, "max_iterations=1", f"output={tmp_path / 'ant'}"]
    assert main(words) == 0
    row = json.loads((tmp_path / "ant" / "metrics.jsonl").read_text().splitlines()[-1])
    assert row["loss/skipped_steps"] == 0.0
    assert row["loss/grad_norm"] > 0.0
