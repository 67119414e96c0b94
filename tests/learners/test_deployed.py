"""Recurrent policies as deployed: state, ONNX, rsl_rl, and a reset of the state at the end of each episode."""

from __future__ import annotations

import numpy as np
import onnxruntime
import pytest
import torch
from rsl_rl.models import RNNModel

from robolearn import config
from robolearn.commands.sim import roll_out
from robolearn.core.env import Env
from robolearn.learners.policy import Policy, PolicyRunner, PolicySpec
from robolearn.learners.ppo.ppo import PPO, PPOConfig
from robolearn.simulation import film as films
from robolearn.simulation.episodes import tally
from robolearn.tasks.cartpole import CartpoleBalance
from robolearn.training import runs
from robolearn.training.build import make_env as open_env
from robolearn.training.train import train

KINDS = ("gru", "lstm")


def small(rnn: str = "gru", **settings) -> PPOConfig:
    return PPOConfig(rnn=rnn, rnn_hidden=6, actor_hidden=(8,), critic_hidden=(8,), **settings)


def made(spec: PolicySpec) -> Policy:
    return Policy(spec, spec.build())


# ---------------------------------------------------------------------------------------- as deployed


@pytest.mark.parametrize("kind", ["none", *KINDS])
def test_a_policy_names_its_recurrent_state_and_stores_none(kind):
    policy = made(PolicySpec({"policy": 4}, 2, (8,), "elu", rnn=kind, rnn_hidden=6, rnn_layers=2))
    assert policy.state_names == {"none": (), "gru": ("h",), "lstm": ("h", "c")}[kind]
    state = policy.initial_state(3)
    assert [tuple(x.shape) for x in state] == [(2, 3, 6)] * len(policy.state_names)
    assert not any(x.any() for x in state)
    obs = torch.randn(3, 4)
    first, again = policy(obs, *state), policy(obs, *state)
    if kind == "none":
        assert first.shape == (3, 2)
        assert torch.equal(first, again)
    else:
        assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
        assert first[0].shape == (3, 2)
        assert not any(x.any() for x in state)
        assert not torch.equal(policy(obs, *first[1:])[0], first[0])


def test_policy_runner_keeps_the_state_of_each_robot_and_resets_the_given_ones():
    policy = made(PolicySpec({"policy": 4}, 2, (8,), "elu", rnn="lstm", rnn_hidden=6))
    player, obs = PolicyRunner(policy), torch.randn(4, 3, 4)
    action, *state = policy(obs[0], *policy.initial_state(3))
    assert torch.equal(player({"policy": obs[0]}), action)
    assert torch.equal(player({"policy": obs[1]}), policy(obs[1], *state)[0])
    player.reset(torch.tensor([False, True, False]))
    fresh = policy(obs[2], *policy.initial_state(3))[0]
    assert (player({"policy": obs[2]}) == fresh).all(dim=1).tolist() == [False, True, False]
    player.reset()
    assert torch.equal(player({"policy": obs[3][:2]}), policy(obs[3][:2], *policy.initial_state(2))[0])


@pytest.mark.filterwarnings("ignore")  # of the exporter, about itself
@pytest.mark.parametrize("kind", KINDS)
def test_onnx_runtime_equals_torch_over_200_steps_and_a_reset(kind):
    width = 72
    policy = made(PolicySpec({"policy": width}, 21, (16,), "elu", rnn=kind, rnn_hidden=12, rnn_layers=2))
    args = (torch.zeros(1, width), *policy.initial_state(1))
    program = torch.onnx.export(policy, args, None, dynamo=True, opset_version=18, verbose=False)
    names = [x.name for x in program.model_proto.graph.input]
    session = onnxruntime.InferenceSession(program.model_proto.SerializeToString())
    random = torch.Generator().manual_seed(0)
    for step in range(200):
        if step % 120 == 0:
            state = policy.initial_state(1)
            theirs = [x.numpy() for x in state]
        obs = torch.randn(1, width, generator=random)
        action, *state = policy(obs, *state)
        out, *theirs = session.run(None, dict(zip(names, [obs.numpy(), *theirs], strict=True)))
        assert np.allclose(out, action.numpy(), atol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_weights_load_into_rsl_rl_and_back(make_env, kind):
    env = make_env(CartpoleBalance(), num_envs=8)
    learner = PPO(env, small(kind))
    learner.iterate(env)
    theirs = RNNModel(
        {"policy": torch.zeros(1, 4)},
        {"actor": ["policy"]},
        "actor",
        1,
        hidden_dims=[8],
        activation="elu",
        obs_normalization=True,
        distribution_cfg={"class_name": "GaussianDistribution", "init_std": 0.5, "std_range": (0.05, 10.0)},
        rnn_type=kind,
        rnn_hidden_dim=6,
        rnn_num_layers=1,
    )
    theirs.load_state_dict(learner.actor.state_dict())
    again = PPO(env, small(kind), seed=9)
    again.load_state_dict({**learner.state_dict(), "actor_state_dict": theirs.state_dict()})
    ours, back = PolicyRunner(learner.policy), PolicyRunner(again.policy)
    with torch.no_grad():
        for _ in range(12):
            obs, done = torch.randn(8, 4), torch.rand(8) < 0.2
            action = theirs({"policy": obs})
            theirs.reset(done)
            assert torch.allclose(ours({"policy": obs}), action, atol=1e-6)
            assert torch.allclose(back({"policy": obs}), action, atol=1e-6)
            ours.reset(done)
            back.reset(done)


# ---------------------------------------------------------------------------------------- playing


class Counting:
    """A policy that counts for each robot its calls since the last reset."""

    def __init__(self) -> None:
        self.env: Env | None = None
        self.calls: torch.Tensor | None = None
        self.ended = 0

    def __call__(self, observations: dict[str, torch.Tensor]) -> torch.Tensor:
        num_envs = len(observations["policy"])
        if self.calls is None:
            self.calls = torch.zeros(num_envs, dtype=torch.long)
        assert self.calls.tolist() == self.env.episode_step.tolist()
        self.calls = self.calls + 1
        return torch.zeros(num_envs, 1)

    def reset(self, done: torch.Tensor | None = None) -> None:
        if done is None:
            self.calls = None
        else:
            self.calls = torch.where(done, 0, self.calls)
            self.ended += int(done.sum())


def test_an_evaluation_resets_the_recurrent_state_at_the_end_of_each_episode(make_env):
    counting = Counting()
    counting.env = env = make_env(CartpoleBalance(), num_envs=4)
    counting(env.observations)  # it has acted before
    tally(env, counting, episodes_each=3)
    assert counting.ended >= 12


def test_a_simulation_resets_the_recurrent_state_at_the_end_of_each_episode():
    counting = Counting()

    def make_policy(env: Env) -> Counting:
        counting.env = env
        return counting

    run = config.resolve(["task=cartpole_balance", "num_envs=3", "task.episode_length_s=0.3"])
    for _ in range(2):
        outcome = roll_out(run, make_policy, 40)
        assert (outcome.steps, outcome.problem) == (40, "")
    assert counting.ended >= 12


def test_a_video_resets_the_recurrent_state_at_the_end_of_each_episode(make_env, monkeypatch):
    class Blank:
        def __init__(self, *args, **kwargs) -> None:
            pass

        def __enter__(self) -> Blank:
            return self

        def __exit__(self, *args) -> None:
            pass

        def face(self, heading: float) -> None:
            pass

        def draw(self, *args) -> np.ndarray:
            return np.zeros((200, 320, 3), np.uint8)

    monkeypatch.setattr(films, "Renderer", Blank)
    counting = Counting()
    counting.env = env = make_env(CartpoleBalance(episode_length_s=0.1), num_envs=1)
    assert len(list(films.film(env, counting, 13, fps=50))) == 13
    assert counting.ended == 2  # 12 steps of episodes of 5


def test_two_evaluations_with_one_policy_are_equal(tmp_path):
    small = ["num_envs=8", "learner.num_steps=8", "learner.rnn=gru", "learner.rnn_hidden=6"]
    short = ["max_iterations=2", "task.episode_length_s=0.5", f"output={tmp_path / 'run'}"]
    folder = train(config.resolve(["task=cartpole_balance", *small, *short]))
    found = runs.open_run(str(folder))
    policy, returns = runs.load_policy(found), []
    assert isinstance(policy, PolicyRunner)
    torch.nn.init.normal_(policy.policy.actor.mlp[-1].weight, std=2.0)
    for _ in range(2):
        env = open_env(found.config, num_envs=4)
        returns.append(tally(env, policy, 2).returns)
        env.close()
    assert torch.equal(*returns)
    # A policy that is never reset does not: its second evaluation starts from the state after the first.
    env = open_env(found.config, num_envs=4)
    assert not torch.equal(tally(env, policy.__call__, 2).returns, returns[0])
    env.close()
