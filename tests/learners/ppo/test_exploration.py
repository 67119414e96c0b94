"""Noise that is correlated over steps, and the mean of past weights that is evaluated."""

from __future__ import annotations

import pytest
import torch

from robolearn.learners.policy import Policy
from robolearn.learners.ppo.ppo import PPO, PPOConfig
from robolearn.tasks.cartpole import CartpoleBalance


def noise(learner: PPO, env) -> torch.Tensor:
    """The noise (T, N A) of a rollout in units of the standard deviation."""
    learner.collect(env)
    batch = learner.batch
    return ((batch.action - batch.mean) / learner.config.init_std).flatten(1)


@pytest.mark.parametrize("correlation", [0.0, 0.7])
def test_noise_of_successive_steps_has_the_stated_correlation_and_variance_1(correlation, make_env):
    env = make_env(CartpoleBalance(), num_envs=512)
    learner = PPO(env, PPOConfig(num_steps=20, noise_correlation=correlation, precision="fp32"))
    found = noise(learner, env)
    assert found.var().item() == pytest.approx(1.0, abs=0.05)
    assert (found[1:] * found[:-1]).mean().item() == pytest.approx(correlation, abs=0.03)
    assert (found[2:] * found[:-2]).mean().item() == pytest.approx(correlation**2, abs=0.03)
    # It goes on from one batch to the next.
    last = found[-1].clone()
    assert (noise(learner, env)[0] * last).mean().item() == pytest.approx(correlation, abs=0.15)


def test_the_policy_is_the_mean_of_past_weights_which_forgets_as_stated(make_env):
    env = make_env(CartpoleBalance(), num_envs=4)
    learner = PPO(env, PPOConfig(average=0.5, precision="fp32"))
    bias, mean = learner.actor.mlp[-1].bias, learner.averaged.mlp[-1].bias
    mean.data.fill_(0.0)
    expected = 0.0
    for i, value in enumerate((1.0, 2.0, 4.0)):
        bias.data.fill_(value)
        learner._average()
        kept = min(0.5, (i + 1) / (i + 10))  # 1/10, 2/11, 3/12: faster at first
        expected = kept * expected + (1 - kept) * value
        assert mean.tolist() == pytest.approx([expected])
    assert learner.policy.actor is learner.averaged
    assert learner.actor.mlp[-1].bias.tolist() == [4.0]


def test_a_checkpoint_holds_both_the_mean_and_the_latest_weights(make_env):
    env = make_env(CartpoleBalance(), num_envs=16)
    config = PPOConfig(average=0.9, noise_correlation=0.5, num_steps=4, minibatch_size=16)
    learner, other = PPO(env, config, seed=1), PPO(env, config, seed=2)
    for _ in range(2):
        learner.iterate(env)
    saved = {**learner.state_dict(), "policy": learner.policy.entry()}
    other.load_state_dict(saved)
    for one, two in ((learner.actor, other.actor), (learner.averaged, other.averaged)):
        assert all(torch.equal(x, two.state_dict()[name]) for name, x in one.state_dict().items())
    assert torch.equal(learner.sampler.noise, other.sampler.noise)
    obs = env.observations
    assert torch.equal(Policy.from_checkpoint(saved).act(obs), learner.policy.act(obs))


def test_without_averaging_the_policy_shares_the_latest_weights(make_env):
    learner = PPO(make_env(CartpoleBalance(), num_envs=4), PPOConfig())
    assert learner.averaged is None
    assert learner.policy.actor is learner.actor


@pytest.mark.parametrize(("num_envs", "steps"), [(1024, 8), (4096, 4), (256, 16), (100_000, 2)])
def test_more_environments_make_fewer_steps_and_larger_batches(num_envs, steps):
    assert PPOConfig(num_steps=0).steps_of(num_envs) == steps
    assert PPOConfig(num_steps=24).steps_of(num_envs) == 24
