"""Which change follows which finding, on numbers worked out by hand."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from robolearn import config
from robolearn.cli import main
from robolearn.training.guard.detectors import KL
from robolearn.training.guard.remedies import KEY, PENDING, remedy

HEALTHY = Path("runs/x/checkpoints/iteration_000010.pt")
BEFORE = {"reward/forward": 0.01, "reward/alive": 0.02, "reward/effort": -0.03}


def words(
    finding: str, now: dict[str, float], *settings: str, started: bool = True, blamed: tuple[str, ...] = ()
):
    run = config.resolve(["task=hopper_run", "guard=on", *settings])
    change = remedy(run, finding, BEFORE, now, HEALTHY, started, blamed)
    config.resolve(change.words, run)  # all of it can be set
    return change.words


def test_the_reward_that_rose_most_counts_a_tenth():
    # forward by 0.02, effort by 0.01; the weight of forward is 2.
    now = {"reward/forward": 0.03, "reward/alive": 0.02, "reward/effort": -0.02}
    assert words("vibration", now) == ["task.rewards.forward=0.2"]
    assert words("success", now, "guard.weight=0.5") == ["task.rewards.forward=1"]


def test_a_reward_that_was_cut_before_counts_as_before_the_cut():
    # alive by 0.003, a tenth of what it was: 0.03 is more than 0.02.
    now = {"reward/forward": 0.03, "reward/alive": 0.023, "reward/effort": -0.03}
    assert words("spin", now) == ["task.rewards.forward=0.2"]
    assert words("spin", now, blamed=("alive",)) == ["task.rewards.alive=0.1"]


@pytest.mark.parametrize("now", [BEFORE, {**BEFORE, "reward/forward": 0.0}])
def test_without_a_reward_that_rose_the_steps_become_smaller(now):
    changed = words("vibration", now, started=False)
    assert "learner.desired_kl=0.015" in changed  # of 0.03
    assert not any("rewards" in word or "reference" in word for word in changed)


def test_a_large_divergence_makes_steps_smaller_and_keeps_near_the_healthy_policy():
    changed = words(KL, BEFORE)
    assert "learner.max_learning_rate=0.0015" in changed  # of 3e-3
    assert f"learner.reference='{HEALTHY}'" in changed
    assert words(KL, BEFORE, "learner.reference=pretrained:x", "learner.reference_coef=0.3")[-1] == (
        "learner.reference_coef=0.6"
    )


def test_a_reward_from_preferences_that_rose_most_counts_a_tenth(tmp_path):
    given = [f"learner.preferences={str(tmp_path)!r}", "learner.preference_weight=2"]
    assert words("success", {**BEFORE, "reward/preference": 0.5}, *given) == ["learner.preference_weight=0.2"]


def test_collapsed_diversity_earns_a_bonus():
    assert words("action_spread", BEFORE) == ["learner.entropy_coef=0.01"]
    assert words("state_spread", BEFORE, "learner.entropy_coef=0.02") == ["learner.entropy_coef=0.04"]


@pytest.mark.parametrize(
    "word", ["task=evil.py:Evil", "learner=evil.py:Evil", "learner.preference_script=evil.py:f", "output=x"]
)
def test_a_checkpoint_cannot_ask_for_code_or_for_what_no_remedy_changes(word, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    small = ["learner.actor_hidden=[8]", "learner.critic_hidden=[8]", "learner.num_steps=2"]
    words = ["task=cartpole_balance", "num_envs=2", *small, "max_iterations=1", "output=run"]
    assert main(["train", *words]) == 0
    (tmp_path / "evil.py").write_text("open('it_ran', 'w')\n")
    (tmp_path / "run" / "guard").mkdir(exist_ok=True)
    path = tmp_path / "run" / "latest.pt"
    content = torch.load(path, weights_only=True)
    content["infos"][KEY] = {PENDING: [word]}
    torch.save(content, path)
    assert main(["train", "resume=run", "max_iterations=2"]) == 2
    assert not (tmp_path / "it_ran").exists()
