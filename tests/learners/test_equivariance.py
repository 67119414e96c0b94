"""Networks whose weights make them symmetric: mirrored observations give mirrored actions and the same value."""

from __future__ import annotations

import pytest
import torch

from robolearn.learners.equivariance import Equivariance
from robolearn.learners.networks import Normalizer, build_model
from robolearn.learners.optimizer import DeviceAdam
from robolearn.learners.ppo.config import PPOConfig
from robolearn.learners.ppo.ppo import PPO
from robolearn.tasks.mdp.symmetry import Reflection
from robolearn.tasks.velocity import Velocity

SEEN = Reflection(torch.tensor([1, 0, 2]), torch.tensor([1.0, 1.0, -1.0]))
"""Left, right, and a number that changes sign."""
ACTED = Reflection(torch.tensor([1, 0]), torch.tensor([-1.0, -1.0]))


def small(hidden: tuple[int, ...] = (4, 6)):
    """An actor of three observations and two actions, its optimizer and what keeps it symmetric."""
    torch.manual_seed(0)
    actor = build_model({"policy": 3}, 2, hidden, "elu", 0.5)
    adam = DeviceAdam({"actor": actor}, 1e-2, 1.0)
    return actor, adam, Equivariance(adam, [(actor, SEEN, ACTED)])


def asymmetry(actor, obs: torch.Tensor) -> float:
    """Largest difference between the action for the mirror image and the mirror image of the action."""
    with torch.no_grad():
        return float((actor.mlp(SEEN(obs)) - ACTED(actor.mlp(obs))).abs().max())


def test_new_networks_become_symmetric_and_stay_so_in_training():
    actor, adam, equivariance = small()
    obs = torch.randn(64, 3)
    assert asymmetry(actor, obs) > 0.01
    equivariance.begin()
    assert asymmetry(actor, obs) < 1e-6
    for _ in range(20):  # towards a target that is not symmetric
        loss = (actor.mlp(obs) - torch.tensor([1.0, 0.3])).square().mean() + actor.distribution.std_param[0]
        adam.take(torch.autograd.grad(loss, adam.parameters))
        equivariance.project_gradients()
        adam.step(torch.zeros(()))
    assert asymmetry(actor, obs) < 1e-5
    spread = actor.distribution.std_param.tolist()
    assert spread[0] == pytest.approx(spread[1])
    assert spread[0] < 0.5


def test_symmetric_weights_keep_their_variance():
    actor, _, equivariance = small((512, 512))
    before = actor.mlp[2].weight.std().item()
    equivariance.begin()
    assert actor.mlp[2].weight.std().item() == pytest.approx(before, rel=0.01)


def test_projecting_symmetric_weights_changes_no_bit():
    actor, _, equivariance = small()
    equivariance.begin()
    before = [p.clone() for p in actor.parameters()]
    equivariance.project_weights()
    assert all(torch.equal(a, b) for a, b in zip(before, actor.parameters(), strict=True))


def test_the_projected_gradient_is_the_mean_with_its_mirror_image():
    _, adam, equivariance = small((2,))
    bias = adam.names.index("actor.mlp.2.bias")
    adam.gradients[bias].copy_(torch.tensor([3.0, 1.0]))
    equivariance.project_gradients()
    assert adam.gradients[bias].tolist() == [1.0, -1.0]  # (3 - 1) / 2, and its image


def test_a_normalizer_counts_the_mirror_image_of_a_batch():
    batch = torch.tensor([[1.0, 5.0, 2.0], [3.0, 5.0, 2.0]])
    normalizer, plain = Normalizer(3), Normalizer(3)
    normalizer.absorb(batch, reflection=SEEN)
    plain.absorb(torch.cat((batch, SEEN(batch))))
    # Columns 1 and 2 together hold 1, 3, 5, 5: mean 3.5, variance 2.75; the third 2 and -2.
    assert normalizer._mean[0].tolist() == [3.5, 3.5, 0.0]
    assert normalizer._var[0].tolist() == [2.75, 2.75, 4.0]
    assert torch.equal(plain._mean, normalizer._mean)


def test_an_odd_number_of_hidden_units_is_refused(make_env):
    with pytest.raises(ValueError, match="17 units"):
        PPO(make_env(Velocity(), num_envs=2), PPOConfig(actor_hidden=(17,), symmetry="equivariant"))


def test_symmetry_is_left_out_where_a_network_cannot_have_it_and_nobody_asked(make_env):
    learner = PPO(make_env(Velocity(), num_envs=2), PPOConfig(critic_hidden=(17,)))
    assert learner.symmetry is None
    assert learner.update.equivariance is None


def test_a_symmetric_task_trains_symmetric_networks(make_env):
    env = make_env(Velocity(), num_envs=32)
    learner = PPO(env, PPOConfig(num_steps=4, minibatch_size=64, precision="fp32"))
    learner.iterate(env)
    obs = env.observations
    mirrored = {name: learner.symmetry.groups[name](group) for name, group in obs.items()}
    action, image = learner.policy.act(obs), learner.policy.act(mirrored)
    assert torch.allclose(learner.symmetry.action(action), image, atol=1e-5)
    assert not torch.allclose(action, image, atol=1e-3)
    value = learner._value(learner._critic_obs(obs))
    assert torch.allclose(value, learner._value(learner._critic_obs(mirrored)), atol=1e-4)


def test_how_far_a_policy_is_from_symmetric_is_no_step_that_it_took(make_env):
    env = make_env(Velocity(), num_envs=8)
    config = PPOConfig(symmetry="augment", num_steps=2, num_epochs=1, minibatch_size=16, learning_rate=1e-5)
    learner = PPO(env, config)
    with torch.no_grad():
        for weight in learner.actor.mlp[-1].parameters():
            weight.mul_(50.0)
    obs = env.observations
    image = learner.policy.act({name: learner.symmetry.groups[name](group) for name, group in obs.items()})
    assert (learner.symmetry.action(learner.policy.act(obs)) - image).abs().mean() > 0.5
    found = learner.iterate(env).losses
    # All samples in one gradient step, taken from the policy that collected them.
    assert found["kl"] < 1e-6
    assert found["gradient_steps"] == 1


def test_a_policy_that_was_trained_without_symmetry_is_not_bent_into_it(make_env):
    env = make_env(Velocity(), num_envs=2)
    free, symmetric = (PPO(env, PPOConfig(symmetry=each)) for each in ("none", "auto"))
    assert symmetric.update.equivariance is not None
    with pytest.raises(ValueError, match=r"learner\.symmetry=augment"):
        symmetric.load_state_dict(free.state_dict())
    again = PPO(env, PPOConfig())
    before = again.state_dict()["actor_state_dict"]
    before = {key: value.clone() for key, value in before.items()}
    again.load_state_dict(again.state_dict())
    assert all(torch.equal(before[key], value) for key, value in again.actor.state_dict().items())
    free.load_state_dict(again.state_dict())  # the other way round nothing is lost
