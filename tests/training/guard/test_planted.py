"""Five planted errors in rewards: PPO finds and exploits each, and the guard sees it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from robolearn import config
from robolearn.errors import RunFailed
from robolearn.training.train import train

HERE = Path(__file__).parent
FLAWED = {
    "Vibration": ("odometer",),
    "Falling": ("head_speed",),
    "Hammering": ("support",),
    "Spinning": ("tips", "whirl"),
    "WrongSign": ("speed_error",),
}
"""The flawed rewards of each task."""
WITHIN = 30
"""Iterations after the onset within which a hack is to be confirmed."""


@pytest.mark.slow
@pytest.mark.parametrize("name", FLAWED)
def test_a_planted_hack_is_confirmed_within_30_iterations_and_blamed_on_the_flawed_reward(tmp_path, name):
    words = [
        f"task={HERE / 'planted.py'}:{name}",
        "num_envs=128",
        "seed=31",
        "max_iterations=60",
        "torch_threads=1",
        "guard=on",
        "guard.rollbacks=0",
        f"output={tmp_path / 'run'}",
    ]
    with pytest.raises(RunFailed):
        train(config.resolve(words))
    (decision,) = json.loads((tmp_path / "run" / "guard" / "decisions.json").read_text())["decisions"]
    assert decision["iteration"] - decision["onset"] <= WITHIN
    assert decision["back_to"] <= decision["onset"]
    rises = {key.removeprefix("reward/"): now - before for key, (before, now) in decision["rewards"].items()}
    assert max(rises, key=lambda each: rises[each]) in FLAWED[name]
