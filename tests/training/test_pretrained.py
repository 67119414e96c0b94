"""The pretrained policies: each is small, was trained by the commands it records, and the humanoid's walks."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from robolearn import config
from robolearn.cli import main
from robolearn.config import catalog, yaml_file
from robolearn.learners import saved

SCRIPTS = Path(__file__).parents[2] / "scripts"
OF_THE_MACHINE = {"max_iterations", "checkpoint_interval", "torch_threads", "backend.threads", "device"}
"""Settings in which a run may differ from its commands: made.json has the iterations, and the others are no part of
task and learner."""

every_policy = pytest.mark.parametrize("name", saved.pretrained())


def made(name: str) -> dict[str, Any]:
    """What a shipped policy records about its training."""
    content: dict[str, Any] = json.loads((saved.PRETRAINED / name / "made.json").read_text())
    return content


def stages(name: str) -> list[list[str]]:
    """The words after `robolearn train` of each command that made a shipped policy; a later one resumes, or begins with
    the weights."""
    commands = [shlex.split(command) for command in made(name)["commands"]]
    assert all(words[:2] == ["robolearn", "train"] for words in commands)
    return [words[2:] for words in commands]


def robot_of(name: str) -> str:
    """The robot of a shipped policy."""
    return str(yaml_file.read(saved.PRETRAINED / name / config.FILE_NAME)["task"]["robot"])


OF_OTHER_PACKAGES = [name for name in saved.pretrained() if robot_of(name) in catalog.ROBOTS]
"""Shipped policies whose robot comes from another package; tests/robots runs them."""


def require_walking_under_pushes(name: str, backend: str, folder: Path) -> None:
    """Assert that a shipped policy walks as asked, and stays up although pushes of 0.4 m/s come every 3 s."""
    words = [
        "num_envs=64",
        "task.episode_length_s=6",
        "task.pushes.speed=[0.4,0.4]",
        "task.pushes.seconds=[3,3]",
        "task.pushes.box=[0,0,0]",
        "task.pushes.turn=[0,0,0]",
    ]
    command = ["eval", f"pretrained:{name}", "--backend", backend, "--episodes", "64"]
    assert main([*command, "--output", str(folder), *words]) == 0
    metrics = json.loads((folder / "metrics.json").read_text())
    assert metrics["survival_rate"] >= 0.95
    assert metrics["linear_velocity_error"] < 0.2
    # With late actions, slippery floors and pushes; the gates of scripts/walking.py ask for 0.1 without them.
    assert metrics["metrics"]["foot_slip"] < 0.1
    assert metrics["metrics"]["swing_height"] > 0.03


def test_the_humanoids_policy_ships_and_needs_no_other_package():
    assert "humanoid_walk" in set(saved.pretrained()) - set(OF_OTHER_PACKAGES)


@every_policy
def test_a_shipped_policy_is_under_2_mb(name):
    assert sum(path.stat().st_size for path in (saved.PRETRAINED / name).iterdir()) < 2_000_000


@every_policy
def test_a_shipped_policy_records_its_commit_its_iterations_and_commands_that_have_them(name):
    record, (first, *later) = made(name), stages(name)
    for commit in (record["commit"], *record["earlier_commits"]):
        assert re.fullmatch("[0-9a-f]{40}", commit)
    assert "seed" not in record  # it is in the first command
    assert not any(word.startswith(("resume=", "weights=")) for word in first)
    assert all(("resume=RUN" in words) != ("weights=RUN" in words) for words in later)
    for words in [first, *later]:
        assert ("resume=RUN" in words) != any(word.startswith("seed=") for word in words)
    content = torch.load(saved.PRETRAINED / name / "policy.pt", weights_only=True)
    assert content["iter"] == record["iterations"]
    assert f"max_iterations={record['iterations']}" in [first, *later][-1]


@every_policy
def test_the_commands_of_a_shipped_policy_give_its_settings_today(name):
    """If not, train it again: python scripts/ship.py NAME."""
    today = None
    for words in stages(name):
        stated = [word for word in words if word not in ("resume=RUN", "weights=RUN")]
        today = config.resolve(stated, today if "resume=RUN" in words else None)
    assert set(config.changed(config.load(saved.PRETRAINED / name), today)) <= OF_THE_MACHINE


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["mujoco", "mujoco_warp"])
def test_the_humanoids_policy_walks_and_survives_pushes_in_two_simulators(backend, tmp_path):
    require_walking_under_pushes("humanoid_walk", backend, tmp_path)


def test_the_humanoids_policy_passes_the_gates_of_sim(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words = ["--policy", "pretrained:humanoid_walk", "--steps", "100", "--num-envs", "8"]
    assert main(["sim", *words, "--min-real-time-factor", "0.01"]) == 0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("extra", "code"), [((), 0), (("--set", "task.terminations.fallen.upright=0.9999"), 1)]
)
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
