"""RoboLearn's tasks and policies on the isaaclab backend, from the command line."""

from __future__ import annotations

import importlib.util
import json

import pytest

from robolearn.cli import main

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("isaaclab_newton") is None, reason="Isaac Lab 3 is not installed"
)


def metrics(folder) -> dict:
    return json.loads((folder / "metrics.json").read_text())


def test_ppo_balances_the_cartpole_on_isaac_lab(tmp_path):
    out = tmp_path / "run"
    words = [
        "task=cartpole_balance",
        "backend=isaaclab",
        "num_envs=256",
        "max_iterations=60",
        "torch_threads=1",
    ]
    assert main(["train", *words, f"output={out}"]) == 0
    assert main(["eval", str(out), "--episodes", "256"]) == 0
    found = metrics(out)
    assert found["backend"] == "isaaclab"
    assert found["survival_rate"] > 0.95


def test_the_shipped_policy_walks_on_isaac_lab(tmp_path):
    """The policy was trained on mujoco; it follows a command of 0.6 m/s and does not fall."""
    words = [
        "pretrained:humanoid_walk",
        "--backend",
        "isaaclab",
        "--episodes",
        "32",
        "--output",
        str(tmp_path),
    ]
    command = ["forward=[0.6,0.6]", "sideways=[0,0]", "yaw=[0,0]", "standing=0"]
    settings = [*(f"task.commands.{word}" for word in command), "task.episode_length_s=6"]
    assert main(["eval", *words, *settings]) == 0
    found = metrics(tmp_path)
    assert found["survival_rate"] >= 0.95
    assert found["linear_velocity_error"] < 0.2  # 0.6 where it stands
    assert found["forward_distance"] > 2.5  # of 3.6 m, less the start and the pushes


@pytest.mark.parametrize("task", ["arm_reach", "arm_lift"])
def test_the_arm_trains_and_is_evaluated_on_isaac_lab(tmp_path, task):
    out = tmp_path / "run"
    small = ["num_envs=8", "max_iterations=2", "learner.minibatch_size=32", "torch_threads=1"]
    assert main(["train", f"task={task}", "backend=isaaclab", *small, f"output={out}"]) == 0
    assert main(["eval", str(out), "--episodes", "8", "task.episode_length_s=1"]) == 0
    assert metrics(out)["diverged"] == 0
