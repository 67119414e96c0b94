"""A reference policy: the divergence from it, its gradient, its weight, and networks that a run starts with."""

from __future__ import annotations

import json
import math
import shutil

import pytest
import torch

from robolearn import config
from robolearn.core.shards import Shards
from robolearn.errors import ConfigError
from robolearn.learners.distill.teacher import Teacher
from robolearn.learners.estimator import PASSES, RATE, WARM_UP
from robolearn.learners.ppo.ppo import PPO, PPOConfig
from robolearn.learners.reference import Reference, exact_divergence, sampled_divergence, steered
from robolearn.tasks.cartpole import CartpoleBalance
from robolearn.training import checkpoint
from robolearn.training.train import train

SMALL = ["num_envs=16", "torch_threads=1", "learner.num_steps=8", "learner.minibatch_size=64"]


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A run of a few iterations."""
    folder = tmp_path_factory.mktemp("reference") / "run"
    return train(config.resolve(["task=cartpole_balance", *SMALL, "max_iterations=3", f"output={folder}"]))


def test_the_exact_divergence_is_that_of_gaussians():
    mean, std = torch.tensor([[1.0, 0.0]]), torch.tensor([1.0, 2.0])
    reference, reference_std = torch.tensor([[0.0, 0.0]]), torch.tensor([2.0, 2.0])
    # log(2 / 1) + (1 + 1) / (2 * 4) - 1/2 in the first column, 0 in the second.
    wanted = math.log(2) + 0.25 - 0.5
    assert exact_divergence(mean, std, reference, reference_std).item() == pytest.approx(wanted)


def test_the_sampled_divergence_has_the_exact_one_as_its_mean_and_is_never_negative():
    random = torch.Generator().manual_seed(0)
    mean, std = torch.tensor([[0.3, -0.2]]), torch.tensor([0.5, 0.4])
    reference, reference_std = torch.tensor([[0.1, 0.0]]), torch.tensor([0.6, 0.5])
    action = mean + std * torch.randn(200_000, 2, generator=random)
    found = sampled_divergence(action, mean, std, reference, reference_std)
    assert found.item() == pytest.approx(
        exact_divergence(mean, std, reference, reference_std).item(), rel=0.03
    )
    for row in action[:100]:
        assert sampled_divergence(row[None], mean, std, reference, reference_std) >= 0


@pytest.mark.parametrize("estimator", ["exact", "k3"])
def test_the_divergence_has_the_gradient_of_finite_differences(estimator):
    random = torch.Generator().manual_seed(1)
    reference, reference_std = torch.zeros(5, 3).double(), torch.full((3,), 0.7).double()
    action = torch.randn(5, 3, generator=random).double()
    mean = (0.3 * torch.randn(5, 3, generator=random)).double().requires_grad_()
    std = torch.tensor([0.4, 0.5, 0.9]).double().requires_grad_()

    def of(mean: torch.Tensor, std: torch.Tensor) -> torch.Tensor:
        if estimator == "exact":
            return exact_divergence(mean, std, reference, reference_std)
        return sampled_divergence(action, mean, std, reference, reference_std)

    assert torch.autograd.gradcheck(of, (mean, std))
    assert of(mean, std) > 0


def test_the_weight_is_steered_by_at_most_a_fifth_an_iteration():
    one = torch.tensor(1.0)
    assert steered(one, torch.tensor(0.3), 0.1).item() == pytest.approx(1.2)
    assert steered(one, torch.tensor(0.01), 0.1).item() == pytest.approx(0.8)
    assert steered(one, torch.tensor(0.11), 0.1).item() == pytest.approx(1.1)


@pytest.mark.parametrize("estimator", ["exact", "k3"])
def test_a_heavier_reference_keeps_the_policy_nearer(estimator, make_env, trained):
    found = []
    for weight in (0.0, 1.0, 100.0):
        env = make_env(CartpoleBalance(), num_envs=32)
        given = {"reference_coef": weight, "reference_estimator": estimator}
        learner = PPO(
            env, PPOConfig(num_steps=8, minibatch_size=128, reference=str(trained), **given), seed=3
        )
        checkpoint.start_with(str(trained), learner)
        found.append([learner.iterate(env).losses for _ in range(8)][-1]["reference_kl"])
    assert found[0] > found[1] > found[2]


def test_a_steered_weight_is_saved_and_restored(make_env, trained):
    env = make_env(CartpoleBalance(), num_envs=16)
    settings = PPOConfig(num_steps=8, minibatch_size=64, reference=str(trained), reference_kl=1e-9)
    learner = PPO(env, settings)
    for _ in range(3):
        losses = learner.iterate(env).losses
    assert losses["reference_coef"] == pytest.approx(0.1 * 1.2**3)  # far too far apart: up each time
    other = PPO(make_env(CartpoleBalance(), num_envs=16), settings, seed=2)
    other.load_state_dict(learner.state_dict())
    assert float(other.update.coefficient) == pytest.approx(0.1 * 1.2**3)


def test_the_reference_computes_each_shard_by_itself(make_env, trained):
    # Other numbers of rows may round in another way, and two ranks have half of those of one.
    env = make_env(CartpoleBalance(), num_envs=16)
    learner = PPO(env, PPOConfig(num_steps=8, minibatch_size=64, reference=str(trained)), shards=Shards(4))
    batch, reference = learner.batch, learner.update.reference
    assert reference is not None
    batch.observations["policy"].copy_(torch.randn(9, 16, 4, generator=torch.Generator().manual_seed(0)))
    seen = []
    reference.policy.actor.mlp.register_forward_pre_hook(lambda _, inputs: seen.append(len(inputs[0])))
    found = reference.means(batch, learner.shards)
    assert seen == [8 * 4] * 4
    assert torch.allclose(found, reference.means(batch), atol=1e-6)


def test_a_run_without_a_reference_reports_no_divergence_from_one(make_env):
    env = make_env(CartpoleBalance(), num_envs=16)
    losses = PPO(env, PPOConfig(num_steps=8, minibatch_size=64)).iterate(env).losses
    assert not any("reference" in name for name in losses)


def test_a_run_starts_with_the_networks_of_another_and_counts_from_its_own_start(trained, tmp_path):
    words = ["task=cartpole_balance", *SMALL, f"weights={trained}", f"output={tmp_path / 'tuned'}"]
    # A rate of almost 0: the networks stay.
    rates = ("learning_rate", "min_learning_rate", "max_learning_rate")
    still = [*(f"learner.{name}=1e-30" for name in rates), "learner.schedule=fixed"]
    folder = train(config.resolve([*words, *still, "max_iterations=2"]))
    before, after = (checkpoint.load(path / "latest.pt") for path in (trained, folder))
    assert after["iter"] == 2
    for name, value in before["actor_state_dict"].items():
        if name.startswith("mlp."):
            assert torch.allclose(value, after["actor_state_dict"][name])
    # The statistics of observations go on: 3 and 2 batches of 16 x 8.
    assert int(after["actor_state_dict"]["obs_normalizer.count"]) == 5 * 128


def test_the_estimator_warms_up_where_weights_come_without_moments(make_env):
    config = PPOConfig(num_steps=8, minibatch_size=64, estimated_groups=("critic",), symmetry="none")
    env = make_env(CartpoleBalance(), num_envs=16)
    trained = PPO(env, config)
    trained.iterate(env)
    assert float(trained.estimator.adam.rate) == RATE
    state = trained.state_dict()
    other = PPO(make_env(CartpoleBalance(), num_envs=16), config, seed=2)
    other.load_state_dict({key: state[key] for key in ("actor_state_dict", "critic_state_dict")})
    other.iterate(make_env(CartpoleBalance(), num_envs=16))
    steps = PASSES * 1  # a batch of 128 samples is one part
    assert float(other.estimator.adam.rate) == pytest.approx(RATE * steps / WARM_UP)
    resumed = PPO(make_env(CartpoleBalance(), num_envs=16), config, seed=3)
    resumed.load_state_dict(other.state_dict())
    resumed.iterate(make_env(CartpoleBalance(), num_envs=16))
    assert float(resumed.estimator.adam.rate) == pytest.approx(RATE * 2 * steps / WARM_UP)
    resumed.load_state_dict(state)  # with moments
    resumed.iterate(make_env(CartpoleBalance(), num_envs=16))
    assert float(resumed.estimator.adam.rate) == pytest.approx(RATE)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("reference", SMALL),
        ("reference", ["learner=grpo", "learner.group_size=4", "num_envs=16", "torch_threads=1"]),
        ("teacher", ["learner=distill", *SMALL]),
    ],
    ids=["ppo", "grpo", "distill"],
)
def test_a_resume_says_that_the_policy_it_learns_from_was_trained_on(name, words, trained, tmp_path, capfd):
    other, folder = tmp_path / "other", tmp_path / "run"
    shutil.copytree(trained, other)
    begun = ["task=cartpole_balance", *words, f"learner.{name}={other}", f"output={folder}"]
    train(config.resolve([*begun, "max_iterations=1"]))
    resume = [f"resume={folder}"]
    train(config.resolve([*resume, "max_iterations=2"]))
    assert "resumed at iteration 1, exactly" in capfd.readouterr().out
    path = other / "latest.pt"
    content = checkpoint.load(path)
    content["policy"]["state"]["actor.mlp.0.bias"] += 1.0
    torch.save(content, path)
    train(config.resolve([*resume, "max_iterations=3"]))
    said = capfd.readouterr().out
    assert f"resumed at iteration 2, not bit for bit: the weights of learner.{name} differ" in said


def test_a_checkpoint_that_does_not_say_what_it_learned_from_resumes_exactly(trained, tmp_path, capfd):
    folder = tmp_path / "run"
    words = ["task=cartpole_balance", *SMALL, f"learner.reference={trained}", f"output={folder}"]
    train(config.resolve([*words, "max_iterations=1"]))
    content = checkpoint.load(folder / "latest.pt")
    del content["infos"]["numerics"]["the weights of learner.reference"]
    torch.save(content, folder / "latest.pt")
    train(config.resolve([f"resume={folder}", "max_iterations=2"]))
    assert "resumed at iteration 1, exactly" in capfd.readouterr().out


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["weights=pretrained:humanoid_walk"], "pretrained:humanoid_walk"),
        (["learner.reference=pretrained:humanoid_walk"], "learner.reference"),
        (["learner.reference=nowhere"], "nowhere"),
        (["weights=nowhere"], "nowhere"),
        (["learner.reference_coef=0", "learner.reference_kl=0.1"], "reference_coef"),
    ],
)
def test_a_policy_that_does_not_fit_is_refused_before_anything_is_written(words, named, tmp_path):
    folder = tmp_path / "run"
    with pytest.raises(ConfigError, match=named):
        train(config.resolve(["task=cartpole_balance", *SMALL, *words, f"output={folder}"]))
    assert not folder.exists()


@pytest.mark.parametrize("name", ["control_dt", "scale", "offset"])
def test_a_reference_with_actions_of_another_unit_is_refused(make_env, trained, tmp_path, name):
    run = tmp_path / "run"
    shutil.copytree(trained, run)
    env = make_env(CartpoleBalance(), num_envs=4)
    content = json.loads((run / "contract.json").read_text())
    changed = content if name == "control_dt" else content["actions"][0]
    Reference(str(run), env.num_actions, env.device, env)
    changed[name] += 0.5
    (run / "contract.json").write_text(json.dumps(content))
    with pytest.raises(ConfigError, match=r"learner\.reference"):
        Reference(str(run), env.num_actions, env.device, env)
    with pytest.raises(ConfigError, match=r"learner\.teacher"):
        Teacher(str(run), env, False)
    (run / "contract.json").write_text("{")
    with pytest.raises(ConfigError, match=r"contract\.json"):
        Reference(str(run), env.num_actions, env.device, env)
