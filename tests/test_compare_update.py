"""scripts/compare_update.py: rsl_rl computes the same losses from the same batch, and a different update is detected.
No timing is asserted."""

from __future__ import annotations

import copy
import importlib.util
import json
import math
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from robolearn.learners.ppo.ppo import PPO, PPOConfig
from robolearn.tasks.cartpole import CartpoleBalance
from robolearn.tasks.humanoid_walk import HumanoidWalk

SCRIPT = Path(__file__).parent.parent / "scripts" / "compare_update.py"
SMALL = ["learner.num_steps=6", "learner.actor_hidden=[8]", "learner.critic_hidden=[8]"]
TINY = ["task=cartpole_balance", "num_envs=8", "torch_threads=1", *SMALL, "--rounds", "2", "--warmup", "1"]


@pytest.fixture(autouse=True)
def _one_thread(_keep_threads: None) -> None:
    torch.set_num_threads(1)  # more threads only add overhead for networks this small


@pytest.fixture(scope="module")
def update() -> ModuleType:
    """The script as a module; it is not on the import path."""
    spec = importlib.util.spec_from_file_location("compare_update", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["compare_update"] = module  # dataclasses resolve their annotations there
    spec.loader.exec_module(module)
    return module


def small(**settings: Any) -> PPOConfig:
    sizes = {"actor_hidden": (16,), "critic_hidden": (16,)}
    return PPOConfig(**{"num_steps": 6, "minibatch_size": 32, "precision": "fp32", **sizes, **settings})


def require_numbers(values: list[float]) -> None:
    assert all(math.isfinite(x) and x > 0 for x in values), values


@pytest.mark.parametrize(
    ("task", "settings"),
    [
        (CartpoleBalance, {}),
        (CartpoleBalance, {"clip_value_loss": True, "value_loss_coef": 0.5, "activation": "relu"}),
        (CartpoleBalance, {"max_kl": 0.011, "schedule": "adaptive", "learning_rate": 5e-3, "num_epochs": 2}),
        (HumanoidWalk, {"precision": "bf16", "symmetry": "none"}),
    ],
)
def test_rsl_rl_has_the_same_losses_from_the_same_batch(update, task, settings, make_env):
    env = make_env(task(), num_envs=16)
    learner = PPO(env, small(**settings))
    learner.iterate(env)
    before = copy.deepcopy(learner.state_dict())
    noise = torch.get_rng_state()
    found = update.compare(env, learner, rounds=2)
    assert found.equal
    assert (found.samples, found.epochs, found.minibatches) == (96, learner.config.num_epochs, 3)
    assert list(found.first) == list(found.whole) == ["surrogate", "value", "entropy"]
    for ours, theirs, _ in found.first.values():
        assert ours == pytest.approx(theirs, rel=1e-5, abs=1e-5)
    # Rounding accumulates over minibatches; a different algorithm would differ by far more.
    assert all(difference < 1e-3 for _, _, difference in found.whole.values())
    assert 0 <= found.weights_apart < 0.2
    assert found.first["value"][0] != found.whole["value"][0]
    used = learner.precision
    assert set(found.seconds) == {f"{who}_{how}" for who in ("robolearn", "rsl_rl") for how in ("fp32", used)}
    assert set(found.ratios) == {"fp32", "as_used", used}
    require_numbers([*found.ratios.values(), *(x.median for x in found.seconds.values())])
    # The learner and the global random generator are unchanged.
    after = learner.state_dict()
    for part in ("actor_state_dict", "critic_state_dict"):
        assert all(torch.equal(x, before[part][k]) for k, x in after[part].items())
    moments = [learned["optimizer_state_dict"]["state"] for learned in (before, after)]
    assert moments[0]
    assert all(torch.equal(x, moments[1][i][k]) for i, s in moments[0].items() for k, x in s.items())
    assert torch.equal(torch.get_rng_state(), noise)


@pytest.mark.parametrize("what", ["weights", "permutation", "clip"])
def test_a_different_update_is_detected(update, what, make_env, monkeypatch):
    if what == "weights":
        restore = update.Start.restore

        def other(start: Any) -> None:
            restore(start)
            if isinstance(start.adam, torch.optim.Adam) and not start.adam.defaults["fused"]:  # rsl_rl's
                start.parameters[-2].add_(0.01)

        monkeypatch.setattr(update.Start, "restore", other)
    elif what == "permutation":
        monkeypatch.setattr(update._Comparer, "order", lambda comparer: torch.arange(comparer.samples))
    else:
        theirs = update.RslRlUpdate.__init__

        def tighter(self: Any, learner: Any, config: Any, *rest: Any) -> None:
            from dataclasses import replace

            theirs(self, learner, replace(config, clip_value_loss=True, clip=1e-4), *rest)

        monkeypatch.setattr(update.RslRlUpdate, "__init__", tighter)
    env = make_env(CartpoleBalance(), num_envs=16)
    learner = PPO(env, small())
    learner.iterate(env)
    found = update.compare(env, learner, rounds=1)
    if what == "clip":  # has no effect in the first step, where the policy has not moved yet
        assert max(difference for _, _, difference in found.whole.values()) > 1e-4
    else:
        assert not found.equal


@pytest.mark.slow
def test_different_losses_give_exit_code_1(update, tmp_path, capsys, monkeypatch):
    out = tmp_path / "out.json"
    command = [*TINY, "--json", str(out)]
    assert update.main(command) == 0
    shown = capsys.readouterr().out
    assert "cartpole_balance on mujoco" in shown.splitlines()[0]
    assert "DIFFER" not in shown
    for name in ("robolearn fp32", "rsl_rl fp32", "surrogate", "value", "entropy", "weights"):
        assert f"\n{name} " in shown
    (row,) = json.loads(out.read_text())["results"]
    assert row["num_envs"] == 8
    assert row["update"]["equal"] is True
    monkeypatch.setattr(update._Comparer, "order", lambda comparer: torch.arange(comparer.samples))
    assert update.main([*command, "learner.minibatch_size=16"]) == 1
    assert "DIFFER" in capsys.readouterr().out
    (row,) = json.loads(out.read_text())["results"]
    assert row["update"]["equal"] is False


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["learner.rnn=gru"], "use learner.rnn=none"),
        (["task=humanoid_walk"], "use learner.estimated_groups=[]"),
        (
            ["task=humanoid_walk", "learner.estimated_groups=[]", "learner.symmetry=augment"],
            "use learner.symmetry=none",
        ),
        (["learner=shac", "backend=differentiable"], "use learner=ppo"),
        (["learner.clipp=0.1"], "learner.clip"),
        (["--json", "."], "it is a folder"),
    ],
)
def test_bad_input_is_one_line(words, said, update, capsys):
    kept = [word for word in TINY if not (words[0].startswith("learner=") and word.startswith("learner."))]
    assert update.main([*kept, *words]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert said in line


def test_losses_are_compared_relative_to_their_size(update):
    difference = update.relative_difference
    assert difference("surrogate", 0.003, 0.002) == pytest.approx(0.001)  # a mean of terms of size 1
    assert difference("entropy", 15.3, 15.0) == pytest.approx(0.02)
    assert difference("value", 0.003, 0.002) == pytest.approx(0.5)
    assert not difference("value", math.nan, 0.002) <= update.TOLERANCE


def test_the_number_of_minibatches_divides_the_batch(update):
    assert update.nearest_divisor(32768, 8.0) == 8
    assert update.nearest_divisor(128, 128 / 6144) == 1
    assert update.nearest_divisor(100, 3.2) == 4
