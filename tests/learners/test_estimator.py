"""The part of an actor that estimates what the robot cannot measure."""

from __future__ import annotations

import numpy as np
import onnxruntime
import pytest
import torch

from robolearn import config
from robolearn.errors import ConfigError
from robolearn.export.onnx.graph import build_graph
from robolearn.learners.estimator import Estimator
from robolearn.learners.networks import build_model, estimating
from robolearn.learners.optimizer import DeviceAdam
from robolearn.learners.policy import Policy
from robolearn.learners.ppo.config import PPOConfig
from robolearn.learners.ppo.ppo import PPO
from robolearn.learners.rollout import Batch
from robolearn.tasks.cartpole import CartpoleBalance
from robolearn.tasks.mdp.context import Random
from robolearn.tasks.mdp.symmetry import Reflection
from robolearn.training.build import build_env
from robolearn.training.train import train

SETTINGS = PPOConfig(estimated_groups=("truth",))
SEEN = Reflection(torch.tensor([1, 0, 2]), torch.tensor([1.0, 1.0, -1.0]))
"""Left, right, and a number that changes sign."""
WANTED = Reflection(torch.tensor([0]), torch.tensor([-1.0]))
SMALL = ["task=velocity", "robot=humanoid", "num_envs=8", "learner.num_steps=4", "device=cpu"]
SMALL += ["learner.actor_hidden=[8]", "learner.critic_hidden=[8]", "learner.estimator_hidden=[8]"]


def batch_of(seen: torch.Tensor, truth: torch.Tensor) -> Batch:
    """One step of as many environments as there are rows."""
    n = len(seen)
    after = {"policy": torch.stack((seen, seen)), "truth": torch.stack((truth, truth))}
    flags, zeros = torch.zeros(1, n, dtype=torch.bool), torch.zeros(1, n)
    return Batch(after, zeros[..., None], zeros[..., None], zeros, flags, flags, {})


def actor_of(estimated: int = 1):
    torch.manual_seed(0)
    return build_model({"policy": 3}, 2, (4,), "elu", 0.5, estimated=estimated, estimator_hidden=(16,))


def test_it_learns_what_the_observations_tell_and_the_actor_sees_it():
    actor = actor_of()
    trainer = Estimator(actor, SETTINGS, Random(0, torch.device("cpu")))
    for _ in range(150):
        seen = torch.randn(512, 3) * 2 + 1
        trainer.learn(batch_of(seen, 5 + 3 * seen[:, :1] - seen[:, 1:2]))
        actor.obs_normalizer.absorb(seen)
    seen = torch.randn(512, 3) * 2 + 1
    truth = 5 + 3 * seen[:, 0] - seen[:, 1]
    columns = actor.obs_normalizer(seen)
    assert columns.shape == (512, 4)
    # Its variance is (9 + 1) 4 = 40, its mean 5 + 3 - 1 = 7; the estimate is normalized by both.
    assert (columns[:, 3] - (truth - 7) / 40**0.5).square().mean() < 0.02
    assert trainer.error() < 0.02
    assert torch.equal(actor.obs_normalizer.inverse(columns), actor.obs_normalizer.inverse(columns[:, :3]))


def test_it_learns_nothing_where_the_observations_tell_nothing():
    trainer = Estimator(actor_of(), SETTINGS, Random(0, torch.device("cpu")))
    for _ in range(30):
        trainer.learn(batch_of(torch.randn(512, 3), torch.randn(512, 1)))
    assert trainer.error() == pytest.approx(1.0, abs=0.15)


def test_the_gradient_steps_of_the_actor_leave_its_estimator_alone():
    actor = actor_of()
    names = DeviceAdam({"actor": actor}, 1e-3, 1.0).names
    assert "actor.mlp.0.weight" in names
    assert not any("estimator" in name for name in names)


def test_the_estimate_of_a_mirror_image_is_the_mirror_image_of_the_estimate():
    actor = actor_of()
    trainer = Estimator(actor, SETTINGS, Random(0, torch.device("cpu")), (SEEN, WANTED))
    for _ in range(5):  # towards a truth that is not symmetric
        seen = torch.randn(256, 3)
        trainer.learn(batch_of(seen, seen[:, :1] + 1))
        actor.obs_normalizer.absorb(seen, reflection=SEEN)
    obs = torch.randn(64, 3)
    one, other = (actor.obs_normalizer(x)[:, 3:] for x in (obs, SEEN(obs)))
    assert torch.allclose(other, WANTED(one), atol=1e-5)
    assert one.abs().max() > 0.01


def test_a_policy_with_estimates_is_saved_loaded_and_exported():
    run = config.resolve(SMALL)
    env = build_env(run, 8)
    learner = PPO(env, run.learner)
    learner.iterate(env)
    torch.nn.init.normal_(learner.averaged.mlp[-1].weight, std=0.5)  # a first policy acts almost nothing
    policy = learner.policy
    loaded = Policy.from_checkpoint({"policy": policy.entry()})
    assert loaded.spec.estimated == 3
    obs = {name: x.clone() for name, x in env.observations.items()}
    expected = policy.act(obs)
    assert torch.equal(loaded.act(obs), expected)
    changed = Policy.from_checkpoint({"policy": policy.entry()})
    last = estimating(changed.actor).estimator[-1]
    last.bias.data += 1.0
    assert not torch.allclose(changed.act(obs), expected)  # what it estimates matters
    row = obs["policy"][:1]
    graph = build_graph(loaded, row.shape[1], "fp32", {})
    session = onnxruntime.InferenceSession(graph.SerializeToString())
    (actions,) = session.run(None, {"obs": row.numpy()})
    assert np.abs(actions - expected[:1].numpy()).max() < 1e-5
    half = build_graph(loaded, row.shape[1], "fp16", {})
    wide = [
        w.name for w in half.graph.initializer if len(w.dims) == 2 and min(w.dims) > 1 and w.data_type == 1
    ]
    assert not wide  # every matrix product is in half precision, those of the estimates too


def test_a_resumed_run_with_estimates_goes_on_exactly(tmp_path):
    whole = train(config.resolve([*SMALL, "max_iterations=4", f"output={tmp_path / 'whole'}"]))
    half = train(config.resolve([*SMALL, "max_iterations=2", f"output={tmp_path / 'half'}"]))
    train(config.resolve([*SMALL, "max_iterations=4", f"resume={half}"]), ["max_iterations"])
    one, other = (torch.load(path / "latest.pt", weights_only=True) for path in (whole, half))
    assert any("estimator" in name for name in one["actor_state_dict"])
    for name, weight in one["actor_state_dict"].items():
        assert torch.equal(weight, other["actor_state_dict"][name])


def test_an_estimated_group_that_the_task_lacks_is_named(make_env):
    with pytest.raises(ConfigError, match="'speed'"):
        PPO(make_env(CartpoleBalance(), num_envs=4), PPOConfig(estimated_groups=("speed",)))


def test_recurrent_layers_beside_estimates_are_refused():
    with pytest.raises(ValueError, match="rnn=gru"):
        config.resolve([*SMALL, "learner.rnn=gru"])
