"""PPO: inputs, bootstrapping, symmetry, ranks, refusals and learning."""

from __future__ import annotations

import pytest
import torch

from robolearn.core.finite_check import NonFiniteTerm
from robolearn.core.shards import Shards
from robolearn.learners.minibatch import with_mirror_image
from robolearn.learners.networks import Normalizer
from robolearn.learners.ppo.ppo import PPO, PPOConfig
from robolearn.tasks.cartpole import CartpoleBalance
from robolearn.tasks.humanoid_walk import HumanoidWalk


def parameters(learner: PPO) -> torch.Tensor:
    return torch.cat([p.detach().flatten() for m in (learner.actor, learner.critic) for p in m.parameters()])


def test_the_policy_does_not_depend_on_the_critics_group(make_env):
    env = make_env(HumanoidWalk(), num_envs=8)
    learner = PPO(env, PPOConfig())
    assert learner.actor.mlp[0].in_features == env.observations["policy"].shape[1]
    assert learner.critic.mlp[0].in_features == env.observations["critic"].shape[1]
    names = {name for name, _ in learner.policy.named_parameters()}
    assert all(name.startswith("actor.") for name in names)


def test_a_time_out_is_bootstrapped_from_the_state_it_ended_in(make_env):
    env = make_env(CartpoleBalance(episode_length_s=0.1, start_angle=0.0), num_envs=4)
    learner = PPO(env, PPOConfig(num_steps=5, precision="fp32"))
    env.reset()
    terminal = []
    step = env.step

    def remember(action):
        result = step(action)
        terminal.append(result.terminal_observations["critic"].clone())
        return result

    env.step = remember
    learner.collect(env)
    value, reward = learner._evaluate()
    assert learner.batch.done[4].all()
    assert not learner.batch.done[:4].any()
    expected = learner.batch.reward[4] + 0.99 * learner._value(terminal[4])
    assert torch.allclose(reward[4], expected, atol=1e-6)
    assert torch.equal(reward[:4], learner.batch.reward[:4])
    # ... which is not the value of the new episode's first state.
    assert not torch.allclose(reward[4], learner.batch.reward[4] + 0.99 * value[5], atol=1e-4)


def test_reflecting_twice_is_the_identity(make_env):
    env = make_env(HumanoidWalk(), num_envs=4)
    symmetry = env.symmetry()
    for name, reflection in symmetry.groups.items():
        assert torch.equal(reflection(reflection(env.observations[name])), env.observations[name])
    action = torch.randn(4, 21)
    assert torch.equal(symmetry.action(symmetry.action(action)), action)
    assert not torch.equal(symmetry.action(action), action)


def test_augmentation_reflects_raw_observations_not_normalized_ones(make_env):
    env = make_env(HumanoidWalk(), num_envs=8)
    learner = PPO(env, PPOConfig(symmetry="augment", precision="fp32"))
    assert learner.update.equivariance is None
    raw = torch.randn(5, env.observations["policy"].shape[1])
    learner.actor.obs_normalizer._mean[:] = 0.3
    learner.actor.obs_normalizer._std[:] = 1.7
    critic = torch.randn(5, env.observations["critic"].shape[1])
    part = {
        "actor": learner.actor.obs_normalizer(raw),
        "critic": learner.critic.obs_normalizer(critic),
        "action": torch.randn(5, 21),
        "mean": torch.randn(5, 21),
        "advantage": torch.randn(5),
    }
    both = with_mirror_image(part, env.symmetry().action, learner.update._mirror)
    expected = learner.actor.obs_normalizer(env.symmetry().groups["policy"](raw))
    assert torch.allclose(both["actor"][5:], expected, atol=1e-5)
    assert torch.equal(both["action"][5:], env.symmetry().action(part["action"]))
    assert torch.equal(both["advantage"], part["advantage"].repeat(2))


def test_the_rate_falls_when_the_policy_moves_too_far_and_the_update_stops(make_env):
    env = make_env(CartpoleBalance(), num_envs=64)
    config = PPOConfig(learning_rate=1e-2, desired_kl=1e-4, max_kl=1e-3, minibatch_size=64)
    learner = PPO(env, config)
    report = learner.iterate(env)
    assert report.losses["gradient_steps"] < 4 * 24
    assert learner.learning_rate < 1e-2
    assert learner.update.adam.adam.param_groups[0]["lr"] == learner.learning_rate


def test_a_fixed_schedule_keeps_its_rate(make_env):
    env = make_env(CartpoleBalance(), num_envs=64)
    learner = PPO(env, PPOConfig(schedule="fixed", max_kl=100.0, minibatch_size=256))
    report = learner.iterate(env)
    assert learner.learning_rate == 1e-3
    assert report.losses["gradient_steps"] == 4 * 6  # 64 x 24 samples in parts of 256, four times


def test_every_epoch_has_a_new_permutation_and_an_early_stop_does_not_change_later_draws(make_env):
    env = make_env(CartpoleBalance(), num_envs=8)
    learner = PPO(env, PPOConfig(num_epochs=2, minibatch_size=48, max_kl=100.0))
    (first,), (second,) = learner.orders()
    assert torch.equal(first.sort().values, torch.arange(8 * 24))
    assert torch.equal(second.sort().values, torch.arange(8 * 24))
    assert not torch.equal(first, second)
    drawn = []
    for max_kl in (100.0, 0.01):
        env = make_env(CartpoleBalance(), num_envs=8)
        learner = PPO(env, PPOConfig(minibatch_size=48, max_kl=max_kl, learning_rate=1e-2))
        drawn.append((learner.iterate(env).losses["gradient_steps"], learner.random.state()))
    assert drawn[0][0] > drawn[1][0]
    assert torch.equal(drawn[0][1], drawn[1][1])


def test_a_non_finite_gradient_raises_before_the_weights_change(make_env):
    env = make_env(CartpoleBalance(), num_envs=8)
    learner = PPO(env, PPOConfig())
    learner.critic.mlp[-1].bias.data[:] = float("inf")
    before = parameters(learner).clone()
    with pytest.raises(NonFiniteTerm, match="gradient is not finite"):
        learner.iterate(env)
    assert torch.equal(parameters(learner), before)


def test_the_normalizer_has_the_moments_of_everything_it_absorbed():
    batches = torch.randn(3, 500, 4, generator=torch.Generator().manual_seed(0))
    batches = batches * torch.tensor([3.0, 1.0, 0.01, 0.1]) + torch.tensor([5.0, 0.0, 100.0, 1000.0])
    normalizer = Normalizer(4)
    for batch in batches:
        normalizer.absorb(batch)
    everything = batches.flatten(0, 1)
    assert torch.allclose(normalizer._mean[0], everything.mean(0), rtol=1e-5, atol=1e-4)
    assert torch.allclose(normalizer._std[0], everything.double().std(0, correction=0).float(), rtol=1e-2)
    assert int(normalizer.count) == 1500


def test_gradients_and_moments_are_averaged_over_ranks(make_env):
    env = make_env(CartpoleBalance(), num_envs=8)
    seen = []

    def exchange(tensor):
        seen.append(tuple(tensor.shape))
        return [tensor, tensor]

    of_two = Shards(2, range(1), [range(1), range(1, 2)], exchange)
    learner = PPO(env, PPOConfig(minibatch_size=10_000, num_epochs=1), shards=of_two)
    learner.iterate(env)
    assert seen.count(tuple(learner.update.adam.shared.shape)) == 1  # one gradient step
    assert (1, 4) in seen  # the normalizer's moments
    assert () in seen  # the advantages' moments


@pytest.mark.parametrize("symmetry", ["augment", "equivariant"])
def test_a_symmetry_that_the_task_does_not_have_is_refused_with_the_fix(make_env, symmetry):
    with pytest.raises(ValueError, match=rf"symmetry={symmetry}: .*symmetry=none"):
        PPO(make_env(CartpoleBalance(), num_envs=2), PPOConfig(symmetry=symmetry))


def test_weights_that_need_a_gait_clock_are_refused_and_change_nothing(make_env):
    env = make_env(CartpoleBalance(), num_envs=2)
    learner = PPO(env, PPOConfig())
    before, other = parameters(learner), PPO(env, PPOConfig(), seed=9).state_dict()
    with pytest.raises(ValueError, match="gait clock"):
        learner.load_state_dict({**other, "folded": True})
    assert torch.equal(parameters(learner), before)
    learner.load_state_dict({**other, "folded": False})  # of an older version that had the entry
    assert not torch.equal(parameters(learner), before)


def test_two_learners_with_one_seed_learn_the_same_bits(make_env):
    runs = []
    for _ in range(2):
        env = make_env(HumanoidWalk(), num_envs=16)
        learner = PPO(env, PPOConfig(minibatch_size=96), seed=5)
        for _ in range(3):
            learner.iterate(env)
        runs.append(parameters(learner))
    assert torch.equal(*runs)


@pytest.mark.slow
def test_ppo_balances_the_cartpole_with_the_default_settings(make_env):
    task = CartpoleBalance()
    env = make_env(task, num_envs=task.defaults["num_envs"])
    learner = PPO(env, PPOConfig())
    for _ in range(task.defaults["max_iterations"]):
        learner.iterate(env)
    check = make_env(task, num_envs=256, seed=77)
    survived = torch.ones(256, dtype=torch.bool)
    policy = learner.policy
    for _ in range(check.max_episode_steps):
        survived &= ~check.step(policy(check.observations["policy"])).terminated
    assert survived.float().mean() >= 0.95
