"""The pretrained policy: it is small, trained by the default command, and walks."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from robolearn import config
from robolearn.cli import main
from robolearn.learners import saved

FOLDER = saved.PRETRAINED / "humanoid_walk"
SCRIPTS = Path(__file__).parents[2] / "scripts"


def test_the_pretrained_policy_is_under_2_mb_and_records_its_commit_and_command():
    assert sum(path.stat().st_size for path in FOLDER.iterdir()) < 2_000_000
    made = json.loads((FOLDER / "made.json").read_text())
    assert len(made["commit"]) == 40
    assert made["command"] == f"robolearn train task=humanoid_walk num_envs=4096 seed={made['seed']}"
    content = torch.load(FOLDER / "policy.pt", weights_only=True)
    assert content["iter"] == made["iterations"]


def test_the_pretrained_policy_was_trained_with_the_current_default_settings():
    """If not, train it again: python scripts/ship.py humanoid_walk. made.json has the number of iterations."""
    command = json.loads((FOLDER / "made.json").read_text())["command"]
    saved, today = config.load(FOLDER), config.resolve(command.split()[2:])
    assert set(config.changed(saved, today)) <= {"max_iterations"}


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["mujoco", "mujoco_warp"])
def test_the_pretrained_policy_walks_and_survives_pushes_in_two_simulators(backend, tmp_path):
    words = [
        "num_envs=64",
        "task.episode_length_s=6",
        "task.pushes.speed=[0.4,0.4]",
        "task.pushes.seconds=[3,3]",
        "task.balance_window=0",  # as on the robot, which does not know about pushes
    ]
    command = ["eval", "pretrained:humanoid_walk", "--backend", backend, "--episodes", "64"]
    command += ["--output", str(tmp_path), *words]
    assert main(command) == 0
    metrics = json.loads((tmp_path / "metrics.json").read_text())
    assert metrics["survival_rate"] >= 0.95
    assert metrics["linear_velocity_error"] < 0.2
    assert metrics["metrics"]["foot_slip"] < 0.1
    assert metrics["metrics"]["swing_height"] > 0.03


def test_the_pretrained_policy_passes_the_gates_of_sim(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words = ["--policy", "pretrained:humanoid_walk", "--steps", "100", "--num-envs", "8"]
    assert main(["sim", *words, "--min-real-time-factor", "0.01"]) == 0


@pytest.mark.slow
@pytest.mark.parametrize(("extra", "code"), [((), 0), (("--set", "task.min_upright=0.9999"), 1)])
def test_walking_gates_pass_and_a_failed_one_is_named_with_exit_code_1(extra, code, tmp_path):
    command = ["gates", "pretrained:humanoid_walk", "--episodes", "8", "--json", str(tmp_path / "out.json")]
    done = subprocess.run(
        [sys.executable, str(SCRIPTS / "walking.py"), *command, *extra],
        check=False,
        capture_output=True,
        text=True,
    )
    assert done.returncode == code, done.stdout + done.stderr
    numbers = json.loads((tmp_path / "out.json").read_text())["pretrained:humanoid_walk"]
    assert set(numbers) == {"commands", "fast", "stand"}
    assert ("FAIL  survival " in done.stdout) == bool(code)
