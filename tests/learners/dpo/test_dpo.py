"""DPO on pairs of segments: its loss by hand, its start, its direction, its resume, and what is refused."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path

import numpy as np
import pytest
import torch

from robolearn import config
from robolearn.core.shards import Shards
from robolearn.errors import ConfigError
from robolearn.learners.dpo.config import DPOConfig
from robolearn.learners.dpo.dpo import DPO, agreement, dpo_loss
from robolearn.learners.policy import Policy
from robolearn.learners.preference.folder import Answer, Preferences
from robolearn.tasks.cartpole import CartpoleBalance
from robolearn.training import checkpoint
from robolearn.training.train import train
from tests.learners.preference.made import fill

SMALL = ["task=cartpole_balance", "num_envs=8", "torch_threads=1", "learner.num_steps=4"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Answers that prefer the larger action."""
    return fill(tmp_path_factory.mktemp("dpo") / "p", pairs=20)


def test_the_loss_is_that_of_the_paper():
    # log ratios 2 and -1, beta 0.5: -log sigmoid(1.5) = 0.201413, and the other way round 1.701413.
    first, second = torch.tensor([2.0, 2.0, 2.0]), torch.tensor([-1.0, -1.0, -1.0])
    found = dpo_loss(first, second, torch.tensor([1.0, 0.0, 0.5]), beta=0.5)
    yes, no = math.log(1 + math.exp(-1.5)), math.log(1 + math.exp(1.5))
    assert found.tolist() == pytest.approx([yes, no, (yes + no) / 2], abs=1e-6)
    # A tenth of the answers is wrong: conservative labels.
    smooth = dpo_loss(first, second, torch.tensor([1.0, 0.0, 0.5]), beta=0.5, smoothing=0.1)
    assert smooth.tolist() == pytest.approx(
        [0.9 * yes + 0.1 * no, 0.1 * yes + 0.9 * no, (yes + no) / 2], abs=1e-6
    )


def test_the_gradient_of_the_loss_is_beta_times_the_error():
    first = torch.zeros(1, requires_grad=True)
    second = torch.zeros(1, requires_grad=True)
    dpo_loss(first, second, torch.tensor([1.0]), beta=0.3).sum().backward()
    # At the reference both are 0: -beta sigmoid(0) and its opposite.
    assert first.grad is not None
    assert second.grad is not None
    assert first.grad.item() == pytest.approx(-0.15)
    assert second.grad.item() == pytest.approx(0.15)


def test_equal_pairs_do_not_count_for_agreement():
    first, second = torch.tensor([1.0, 0.0, 5.0]), torch.tensor([0.0, 1.0, 0.0])
    assert agreement(first, second, torch.tensor([1.0, 1.0, 0.0])).item() == pytest.approx(0.5)


@pytest.mark.slow
def test_the_policy_starts_as_the_reference_and_comes_to_prefer_what_was_preferred(make_env, trained, folder):
    env = make_env(CartpoleBalance(), num_envs=8)
    settings = DPOConfig(reference=str(trained), preferences=str(folder), num_steps=4, learning_rate=1e-2)
    learner = DPO(env, settings)
    reference = Policy.load(str(trained))
    observed = {name: obs.clone() for name, obs in env.observations.items()}
    before = learner.policy.act(observed)
    assert torch.equal(before, reference.act(observed))
    found = [learner.iterate(env) for _ in range(30)]
    # At the start both ratios are 0; nothing has been learned.
    assert found[0].losses["dpo"] == pytest.approx(math.log(2), abs=0.01)
    assert found[-1].losses["dpo"] < found[0].losses["dpo"]
    assert found[-1].env["preference/accuracy"] == 1.0
    assert found[-1].env["preference/pairs"] == 20
    assert found[-1].steps == 32
    # The larger action is preferred.
    assert (learner.policy.act(observed) > before).all()
    # The noise, and the reference, stay.
    assert torch.equal(learner.policy.actor.distribution.std_param, reference.actor.distribution.std_param)
    assert torch.equal(learner.reference.policy.act(observed), before)


def test_a_resumed_run_has_the_bits_of_one_in_one_go_though_answers_were_added(trained, folder, tmp_path):
    import shutil

    copy = tmp_path / "p"
    shutil.copytree(folder, copy)
    words = [*SMALL, "learner=dpo", f"learner.reference={trained}", f"learner.preferences={copy}"]
    whole = train(config.resolve([*words, "max_iterations=4", f"output={tmp_path / 'whole'}"]))
    train(config.resolve([*words, "max_iterations=2", f"output={tmp_path / 'parts'}"]))
    names = Preferences(copy).names()
    Preferences(copy).append(Answer((names[0], names[-1]), 2, "person"))
    parts = train(config.resolve([f"resume={tmp_path / 'parts'}", "max_iterations=4"]))
    one, two = (checkpoint.load(path / "latest.pt") for path in (whole, parts))
    for name, value in one["actor_state_dict"].items():
        assert torch.equal(value, two["actor_state_dict"][name]), name
    assert two["pairs"] == one["pairs"]
    assert Policy.load(str(parts)).spec == Policy.load(str(trained)).spec


def test_what_it_needs_is_named(make_env, trained, folder, tmp_path):
    env = make_env(CartpoleBalance(), num_envs=4)
    for words, named in (
        (["learner.preferences=p"], "learner.reference"),
        (["learner.reference=x"], "learner.preferences"),
        (["learner.reference=x", "learner.preferences=p", "learner.beta=0"], "learner.beta"),
    ):
        with pytest.raises(ConfigError, match=named):
            config.resolve([*SMALL, "learner=dpo", *words])
    with pytest.raises(ConfigError, match="nowhere"):
        DPO(env, DPOConfig(reference=str(trained), preferences=str(tmp_path / "nowhere")))
    Preferences(tmp_path / "empty", create=True)
    with pytest.raises(ConfigError, match="0 answers"):
        DPO(env, DPOConfig(reference=str(trained), preferences=str(tmp_path / "empty")))
    other = fill(tmp_path / "other", pairs=3, width=7)
    with pytest.raises(ConfigError, match="7 columns"):
        DPO(env, DPOConfig(reference=str(trained), preferences=str(other)))
    words = [*SMALL, "learner=dpo", f"learner.reference={trained}", f"learner.preferences={folder}"]
    with pytest.raises(ConfigError, match="learner=dpo"):
        train(config.resolve([*words, "mode=async", f"output={tmp_path / 'async'}"]))
    with pytest.raises(ConfigError, match="humanoid_walk"):
        DPO(env, DPOConfig(reference="pretrained:humanoid_walk", preferences=str(folder)))
    with pytest.raises(ConfigError, match="ranks"):
        DPO(env, DPOConfig(reference=str(trained), preferences=str(folder)), shards=Shards(2))


def test_weights_are_refused_by_name(trained, folder, tmp_path):
    words = [*SMALL, "learner=dpo", f"learner.reference={trained}", f"learner.preferences={folder}"]
    with pytest.raises(ConfigError, match="weights="):
        train(config.resolve([*words, f"weights={trained}", f"output={tmp_path / 'run'}"]))
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("change", [{"dt": 0.01}, {"scale": np.full(1, 99.0)}, {"offset": np.full(1, 99.0)}])
def test_segments_with_actions_of_another_unit_are_refused(make_env, trained, tmp_path, change):
    folder = Preferences(fill(tmp_path / "p", pairs=3))
    segment = folder.segment("b2")
    folder.path("b2").unlink()
    folder.add(dataclasses.replace(segment, **change))
    env = make_env(CartpoleBalance(), num_envs=4)
    with pytest.raises(ConfigError, match="segment b2"):
        DPO(env, DPOConfig(reference=str(trained), preferences=str(folder.folder)))
