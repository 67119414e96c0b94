"""PPO learns in external environments."""

from __future__ import annotations

import json
from statistics import median

import pytest

from robolearn.cli import main


@pytest.mark.slow
def test_ppo_swings_the_pendulum_up_with_the_default_settings(tmp_path):
    """Returns: about -1200 at rest or with random actions, about -150 at best.

    The median over the last iterations: a policy in between may be worse, by another amount on each processor.
    """
    out = tmp_path / "run"
    assert main(["train", "task=gymnasium:Pendulum-v1", "max_iterations=110", f"output={out}"]) == 0
    rows = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    assert median(row["episode/return"] for row in rows[60:] if "episode/return" in row) > -600
    assert main(["eval", str(out), "--episodes", "64"]) == 0
    assert json.loads((out / "metrics.json").read_text())["episodes"] == 64


@pytest.mark.parametrize("name", ["Humanoid-v5", "HalfCheetah-v5"])
def test_robots_of_gymnasium_train(name, tmp_path):
    out = tmp_path / "run"
    small = ["num_envs=4", "learner.num_steps=32", "learner.minibatch_size=64", "max_iterations=2"]
    assert main(["train", f"task=gymnasium:{name}", *small, f"output={out}"]) == 0
    rows = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    assert [row["steps"] for row in rows] == [128, 256]
