"""PPO as on a GPU: captured graphs and no sync before the end of an iteration; on a tape, and on CUDA."""

from __future__ import annotations

import copy
from unittest import mock

import pytest
import torch

from robolearn.core import graphs
from robolearn.core.finite_check import NonFiniteTerm
from robolearn.learners.ppo.ppo import PPO, PPOConfig
from tests.learners.scripted import Scripted, symmetry
from tests.no_sync import no_host_sync
from tests.tape import Tape

needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")

KINDS = {
    "plain": {},
    "bf16": {"precision": "bf16"},
    "mirror_image": {"symmetry": "augment"},
    "equivariant": {"symmetry": "equivariant"},
    "gru": {"rnn": "gru"},
    "lstm": {"rnn": "lstm"},
    "uneven": {"minibatch_size": 14},
}


def make(kind: str, device: str = "cpu") -> tuple[PPO, Scripted]:
    settings = {"precision": "fp32", "symmetry": "none", "minibatch_size": 18, **KINDS[kind]}
    mirrored = None if settings["symmetry"] == "none" else symmetry(device)
    env = Scripted(12, device, mirrored)
    sizes = {"actor_hidden": (8,), "critic_hidden": (8,), "rnn_hidden": 5}
    learner = PPO(env, PPOConfig(num_steps=6, num_epochs=2, **sizes, **settings), seed=4)
    learner.update.read_at_once = False
    return learner, env


def tape(device: torch.device) -> Tape:
    return Tape()


def parameters(learner: PPO) -> torch.Tensor:
    return torch.cat([p.detach().flatten() for m in (learner.actor, learner.critic) for p in m.parameters()])


def compare(kind: str, device: str, iterations: int = 7) -> None:
    """Captured and eager, from the same start."""
    results = []
    for make_graph in (lambda device: None, graphs.make_graph if device == "cuda" else tape):
        with mock.patch.object(graphs, "make_graph", make_graph):
            learner, env = make(kind, device)
            reports = [learner.iterate(env).losses for _ in range(iterations)]
        results.append((learner, reports))
    (eager, theirs), (recorded, ours) = results
    assert recorded._estimate.fixed
    assert not eager._estimate.fixed
    assert (parameters(eager) - parameters(recorded)).abs().max() <= 1e-6
    for a, b in zip(ours, theirs, strict=True):
        assert a == pytest.approx(b, rel=1e-4, abs=1e-6)
    assert torch.equal(eager.random.state(), recorded.random.state())
    assert (eager.batch.action - recorded.batch.action).abs().max() <= 1e-5
    assert eager.batch.truncated.any()
    if eager.recurrence is not None:
        for a, b in zip(eager.recurrence.now, recorded.recurrence.now, strict=True):
            assert torch.allclose(a, b, atol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_a_learner_with_captured_graphs_reaches_the_same_parameters(kind):
    compare(kind, "cpu")


@pytest.mark.parametrize("kind", KINDS)
def test_rollout_and_update_never_sync_with_the_host(kind):
    learner, env = make(kind)
    for _ in range(2):
        with no_host_sync():
            learner.collect(env)
            value, advantage, returns = learner._estimate()
            drawn, advantage = learner.orders(), learner._normalized(advantage)
            learner.update.learn(learner.batch, advantage, returns, value, drawn)
            learner.actor.obs_normalizer.absorb(learner.batch.observations["policy"][:-1].flatten(0, 1))
        assert learner.update.read()["gradient_steps"] > 0


@pytest.mark.parametrize("kind", ["plain", "equivariant"])
@pytest.mark.parametrize("at_once", [True, False])
def test_values_of_time_outs_in_one_pass_equal_those_of_single_steps(kind, at_once):
    learner, env = make(kind)
    learner.update.read_at_once = at_once
    learner.collect(env)
    batch = learner.batch
    assert 0 < batch.truncated.sum() < batch.truncated.numel() / 4
    expected = batch.reward.clone()
    for t, truncated in enumerate(batch.truncated):
        rows = truncated.nonzero().squeeze(-1)
        with torch.no_grad():
            ended = learner._critic_obs({name: obs[t + 1][rows] for name, obs in env.terminal.items()})
            expected[t, rows] += 0.99 * learner._value(ended)
    _, reward = learner._evaluate()
    assert torch.allclose(reward, expected, atol=1e-6)
    assert torch.equal(reward[~batch.truncated], batch.reward[~batch.truncated])
    assert not torch.allclose(reward, batch.reward, atol=1e-3)


def test_a_nan_terminal_observation_without_a_time_out_is_ignored():
    learner, env = make("plain")
    env.truncated[3, 5] = False
    env.terminal["critic"][3, 5] = float("nan")  # of a robot that fell, say
    learner.collect(env)
    assert torch.isfinite(learner._evaluate()[1]).all()


def test_reading_after_each_step_or_at_the_end_gives_the_same_weights():
    results = []
    for at_once in (True, False):
        learner, env = make("plain")
        learner.config.max_kl, learner.config.desired_kl = 0.02, 0.01
        learner.update.adam.set_rate(1e-2)
        learner.update.read_at_once = at_once
        learner.collect(env)
        learner.batch.truncated.zero_()  # whose values are rounded differently
        value, advantage, returns = learner._estimate()
        learner.update.learn(learner.batch, advantage, returns, value, learner.orders())
        results.append((learner.update.read(), parameters(learner), learner.random.state()))
    assert results[0][0] == results[1][0]
    assert 0 < results[0][0]["gradient_steps"] < 8
    assert torch.equal(results[0][1], results[1][1])
    assert torch.equal(results[0][2], results[1][2])


@pytest.mark.parametrize("kind", ["plain", "gru"])
def test_a_learner_with_captured_graphs_resumes_exactly(kind):
    with mock.patch.object(graphs, "make_graph", tape):
        learner, env = make(kind)
        for _ in range(6):
            learner.iterate(env)
        state, now, observations = copy.deepcopy(learner.state_dict()), env.now, env.observations

        def go_on(one: PPO) -> torch.Tensor:
            env.now, env.observations = now, observations
            for _ in range(2):
                one.iterate(env)
            return parameters(one)

        expected = go_on(learner)
        learner.load_state_dict(state)
        assert torch.equal(go_on(learner), expected)
        fresh, _ = make(kind)
        fresh.load_state_dict(state)
        assert torch.equal(go_on(fresh), expected)


def test_an_error_read_at_the_end_names_its_tensor_and_keeps_the_weights():
    learner, env = make("plain")
    learner.iterate(env)
    env.wish[(env.now + 2) % len(env.wish), 3] = float("inf")
    before = parameters(learner)
    with pytest.raises(NonFiniteTerm, match=r"the gradient is not finite.*: returns"):
        learner.iterate(env)
    assert torch.equal(parameters(learner), before)


# ---------------------------------------------------------------------------------------- on CUDA


@needs_cuda
@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "bf16"])
def test_on_cuda_a_learner_with_captured_graphs_reaches_the_same_parameters(kind):
    compare(kind, "cuda")


@needs_cuda
@pytest.mark.parametrize("kind", KINDS)
def test_on_cuda_rollout_and_update_never_wait(kind):
    learner, env = make(kind, "cuda")
    for _ in range(graphs.WARM_UP + 2):  # what is done once an iteration is recorded in the fourth
        learner.iterate(env)
    torch.cuda.set_sync_debug_mode("error")
    try:
        learner.collect(env)
        value, advantage, returns = learner._estimate()
        drawn, advantage = learner.orders(), learner._normalized(advantage)
        learner.update.learn(learner.batch, advantage, returns, value, drawn)
        learner.actor.obs_normalizer.absorb(learner.batch.observations["policy"][:-1].flatten(0, 1))
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert learner.update.read()["gradient_steps"] > 0
