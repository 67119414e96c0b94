"""Recurrent policies: backpropagation through time, exact resume, and checkpoints that do not fit."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import pytest
import torch
from rsl_rl.modules import RNN

from robolearn import config
from robolearn.errors import ConfigError
from robolearn.learners.minibatch import Minibatch
from robolearn.learners.networks import blank_state
from robolearn.learners.policy import PolicyRunner
from robolearn.learners.ppo.ppo import PPO, PPOConfig
from robolearn.learners.recurrent import ActorRecurrence, unroll
from robolearn.simulation.episodes import tally
from robolearn.tasks.cartpole import CartpoleBalance
from robolearn.tasks.humanoid_walk import HumanoidWalk
from robolearn.training import checkpoint
from robolearn.training.train import train

KINDS = ("gru", "lstm")

SMALL = [
    "task=cartpole_balance",
    "num_envs=8",
    "checkpoint_interval=2",
    "task.episode_length_s=0.5",
    "learner.num_steps=8",
    "learner.minibatch_size=24",
    "learner.actor_hidden=[8]",
    "learner.critic_hidden=[8]",
    "learner.rnn_hidden=6",
    "learner.rnn_layers=2",
    "torch_threads=1",
]


def layers(kind: str, width: int = 3, hidden: int = 5, layers: int = 2) -> torch.nn.Module:
    torch.manual_seed(4)
    return {"gru": torch.nn.GRU, "lstm": torch.nn.LSTM}[kind](width, hidden, layers)


def small(rnn: str = "gru", **settings) -> PPOConfig:
    return PPOConfig(rnn=rnn, rnn_hidden=6, actor_hidden=(8,), critic_hidden=(8,), **settings)


def loud(learner: PPO) -> PPO:
    """Larger last weights: the first actions would be near zero, here they depend on the recurrent state."""
    torch.nn.init.normal_(learner.actor.mlp[-1].weight, std=0.5, generator=torch.Generator().manual_seed(0))
    return learner


# ---------------------------------------------------------------------------------------- through time


@pytest.mark.parametrize("kind", KINDS)
def test_a_sequence_equals_single_steps_with_a_reset_where_an_episode_ends(kind):
    rnn, random = layers(kind), torch.Generator().manual_seed(1)
    inputs = torch.randn(9, 4, 3, generator=random)
    done = torch.rand(9, 4, generator=random) < 0.3
    assert 0 < done.sum() < 36
    state = tuple(torch.randn(x.shape, generator=random) for x in blank_state(rnn, 4))
    theirs = RNN(3, 5, 2, kind)  # rsl_rl's, which keeps its state inside
    theirs.rnn.load_state_dict(rnn.state_dict())
    theirs.hidden_state = state if kind == "lstm" else state[0]
    with torch.no_grad():
        singly = []
        for t in range(9):
            singly.append(theirs(inputs[t]).squeeze(0))
            theirs.reset(done[t])
        assert torch.allclose(unroll(rnn, inputs, state, done), torch.stack(singly), atol=1e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_gradients_flow_from_the_last_step_to_the_first_but_not_across_the_end_of_an_episode(kind):
    rnn = layers(kind)
    inputs = torch.randn(6, 2, 3, requires_grad=True)
    state = tuple(torch.randn_like(x).requires_grad_() for x in blank_state(rnn, 2))
    done = torch.zeros(6, 2, dtype=torch.bool)
    done[2, 1] = True  # the second environment's episode ends with step 2
    unroll(rnn, inputs, state, done)[5].sum().backward()
    reached = inputs.grad.abs().sum(dim=2) > 0
    assert reached.T.tolist() == [[True] * 6, [False] * 3 + [True] * 3]
    for part in state:
        assert (part.grad.abs().sum(dim=(0, 2)) > 0).tolist() == [True, False]


def test_a_minibatch_has_whole_environments_and_their_initial_recurrent_state():
    recurrence = ActorRecurrence(layers("gru", hidden=1, layers=1), num_envs=3)
    recurrence.start = (torch.tensor([[[10.0], [20.0], [30.0]]]),)
    returns = torch.tensor([[0.0, 1.0, 2.0], [3.0, 4.0, 5.0]])  # T = 2, N = 3
    done = torch.tensor([[True, False, False], [False, False, True]])
    tables = recurrence.tables({"returns": returns, "actor": returns[..., None]}, done)
    minibatch = Minibatch(tables, 2, recurrence)
    minibatch.gather(tables, torch.tensor([2, 0]))
    part = minibatch.part
    assert part["returns"].tolist() == [2, 0, 5, 3]
    assert part["actor"][..., 0].tolist() == [[2, 0], [5, 3]]
    assert part["done"].tolist() == [[False, True], [True, False]]
    assert part["state_0"].tolist() == [[[30], [10]]]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("task", [CartpoleBalance, HumanoidWalk], ids=["cartpole", "humanoid"])
def test_replay_gives_the_means_of_the_rollout(make_env, monkeypatch, task, kind):
    env = make_env(task(episode_length_s=0.14), num_envs=6)  # episodes of 7 steps, batches of 10
    learner = loud(PPO(env, small(kind, num_steps=10, precision="fp32", learning_rate=1e-5)))
    learner.iterate(env)
    recurrence, batch, envs = learner.recurrence, learner.batch, torch.tensor([4, 1, 3])

    @torch.no_grad()
    def replayed() -> tuple[torch.Tensor, torch.Tensor]:
        data = {"actor": learner.actor.obs_normalizer(batch.observations["policy"][:-1]), "mean": batch.mean}
        tables = recurrence.tables(data, batch.done)
        minibatch = Minibatch(tables, 3, recurrence)
        minibatch.gather(tables, envs)
        return learner.actor.mlp(recurrence.replay(minibatch.part)), minibatch.part["mean"]

    def check(*_) -> None:
        assert batch.done.any()
        assert all((x != 0).any() for x in recurrence.start)  # it begins in the middle of episodes
        ours, collected = replayed()
        assert collected.std() > 0.05
        assert torch.allclose(ours, collected, atol=1e-5)
        # ... which takes what it remembered from the batch before.
        for x in recurrence.start:
            x.zero_()
        ours, _ = replayed()
        assert not torch.allclose(ours, collected, atol=1e-3)

    monkeypatch.setattr(learner.update, "learn", check)
    learner.iterate(env)


def test_every_epoch_sees_every_environment_once(make_env, monkeypatch):
    env = make_env(CartpoleBalance(), num_envs=8)
    learner = PPO(env, small(num_epochs=2, minibatch_size=48, max_kl=100.0))
    seen, original = [], learner.update._gradient_step

    def spy(chosen):
        go_on = original(chosen)
        seen.append(learner.update._minibatches[len(chosen[0])][0][0].part["actor"].clone())
        return go_on

    monkeypatch.setattr(learner.update, "_gradient_step", spy)
    learner.iterate(env)
    assert [x.shape for x in seen] == [(24, 2, 4)] * 8  # 8 x 24 samples in parts of about 48, two epochs
    first, second = torch.cat(seen[:4], dim=1), torch.cat(seen[4:], dim=1)
    assert not torch.equal(first, second)
    assert torch.equal(first[0].sort(dim=0).values, second[0].sort(dim=0).values)


@pytest.mark.parametrize("kind", KINDS)
def test_the_recurrent_state_stays_at_its_addresses(kind):
    recurrence = ActorRecurrence(layers(kind), num_envs=3)
    places = [x.data_ptr() for x in (*recurrence.now, *recurrence.start)]
    with torch.no_grad():
        recurrence.step(torch.randn(3, 3))
        recurrence.begin()
        recurrence.step(torch.randn(3, 3))
    kept = [x[:, 0].clone() for x in recurrence.now]
    assert all((x != y).any() for x, y in zip(recurrence.now, recurrence.start, strict=True))
    recurrence.now[0][:, 1] = float("nan")
    recurrence.reset(torch.tensor([False, True, True]))
    for x, before in zip(recurrence.now, kept, strict=True):
        assert torch.equal(x[:, 0], before)
        assert not x[:, 1:].any()
    recurrence.restore(recurrence.start)
    assert all(map(torch.equal, recurrence.now, recurrence.start))
    recurrence.restore(None)
    assert not any(x.any() for x in recurrence.now)
    assert [x.data_ptr() for x in (*recurrence.now, *recurrence.start)] == places


def test_recurrent_layers_learn_in_fp32_under_bf16(make_env):
    env = make_env(CartpoleBalance(), num_envs=8)
    learner = PPO(env, small("lstm", precision="bf16"))
    report = learner.iterate(env)
    assert report.losses["gradient_steps"] == 4
    assert {x.dtype for x in learner.recurrence.now} == {torch.float32}


# ---------------------------------------------------------------------------------------- training and resuming


def resume(run: Path, *words: str) -> Path:
    every = [f"resume={run}", *words]
    asked = config.resolve(every)
    return train(asked, config.resume_changes(every, asked))


@pytest.mark.parametrize("kind", KINDS)
def test_a_recurrent_run_resumes_bit_for_bit(tmp_path, kind):
    words = [*SMALL, f"learner.rnn={kind}"]
    whole = train(config.resolve([*words, "max_iterations=4", f"output={tmp_path / 'whole'}"]))
    half = train(config.resolve([*words, "max_iterations=2", f"output={tmp_path / 'half'}"]))
    stopped = checkpoint.load(half / "latest.pt")
    assert all((x != 0).any() for x in stopped["memory"])
    assert "memory" not in checkpoint.load(half / "checkpoints" / "iteration_000002.pt")
    resume(half, "max_iterations=4")
    ours, theirs = checkpoint.load(half / "latest.pt"), checkpoint.load(whole / "latest.pt")
    for key in ("actor_state_dict", "critic_state_dict"):
        assert ours[key].keys() == theirs[key].keys()
        assert all(torch.equal(ours[key][name], theirs[key][name]) for name in ours[key])
    assert all(torch.equal(a, b) for a, b in zip(ours["memory"], theirs["memory"], strict=True))
    # With other robots it begins anew: there is nothing to remember of them.
    resume(half, "max_iterations=5", "num_envs=4", f"output={tmp_path / 'other'}")


def test_a_saved_recurrent_state_is_restored_only_with_its_simulation(make_env, tmp_path):
    env = make_env(CartpoleBalance(), num_envs=4)
    learner = PPO(env, small())
    learner.iterate(env)
    (tmp_path / "checkpoints").mkdir()
    checkpoint.save(tmp_path, 1, learner, env)
    content = checkpoint.load(tmp_path / "latest.pt")
    again = PPO(env, small())
    assert checkpoint.restore(content, again, env)
    assert torch.equal(again.recurrence.now[0], learner.recurrence.now[0])
    assert not checkpoint.restore(content, again, env, ["task.force"])
    assert not again.recurrence.now[0].any()


# ---------------------------------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    ("learned", "asked", "fix"),
    [
        (small("gru"), small("none"), r"use learner\.rnn=gru learner\.rnn_hidden=6 learner\.rnn_layers=1$"),
        (small("lstm"), small("gru"), r"use learner\.rnn=lstm"),
        (small("none"), small("gru"), r"without recurrent layers: use learner\.rnn=none$"),
        (small("gru", rnn_layers=3), small("gru"), r"learner\.rnn_hidden=6 learner\.rnn_layers=3$"),
    ],
)
def test_a_checkpoint_with_other_recurrent_layers_is_refused_with_the_fix(make_env, learned, asked, fix):
    env = make_env(CartpoleBalance(), num_envs=2)
    content = {**PPO(env, learned).state_dict(), "iter": 1}
    with pytest.raises(ConfigError, match=fix) as error:
        checkpoint.restore(content, PPO(env, asked), env)
    assert "\n" not in str(error.value)


def test_augmentation_is_refused_with_recurrent_layers(make_env):
    with pytest.raises(ValueError, match=r"symmetry=none with learner\.rnn=gru"):
        PPO(make_env(HumanoidWalk(), num_envs=2), small("gru", symmetry="augment"))


# ---------------------------------------------------------------------------------------- learning


@dataclass
class PositionsOnly(CartpoleBalance):
    """The policy sees where cart and pole are, but not how fast they move: it must remember where they were."""

    observations: ClassVar = {**CartpoleBalance.observations, "policy": ("joint_pos_rel",)}


@pytest.mark.slow
def test_a_recurrent_policy_balances_a_pole_without_observing_velocities(make_env):
    torch.set_num_threads(1)  # networks so small are no faster with more
    angle = {}
    sizes = {"actor_hidden": (64,), "critic_hidden": (64, 64), "rnn_hidden": 32, "minibatch_size": 1024}
    for kind in ("none", "gru"):
        env = make_env(PositionsOnly(), num_envs=128)
        learner = PPO(env, PPOConfig(rnn=kind, precision="fp32", **sizes))
        for _ in range(60):
            learner.iterate(env)
        policy = PolicyRunner(learner.policy)
        counted = tally(make_env(PositionsOnly(), num_envs=128, seed=77), policy)
        angle[kind] = counted.metrics["pole_angle"]
        if kind == "gru":
            assert counted.survived.double().mean() >= 0.9
    # Without a recurrent state the pole swings to and fro as long as it is up at all [rad].
    assert angle["gru"] < 0.05
    assert angle["none"] > 0.1
