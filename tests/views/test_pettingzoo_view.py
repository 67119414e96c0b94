"""Tasks as PettingZoo's ParallelEnv: its own tests, and the same numbers as Env."""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from pettingzoo.test import parallel_api_test, parallel_seed_test

from robolearn import config
from robolearn.errors import ConfigError
from robolearn.training.build import make_env
from robolearn.views.gymnasium import as_gymnasium
from robolearn.views.pettingzoo import PettingZooView, parallel_env

SHORT = {"task.episode_length_s": 0.4}


@pytest.fixture
def view():
    made = []

    def build(task: str, *given, **named) -> PettingZooView:
        made.append(parallel_env(task, *given, **named))
        return made[-1]

    yield build
    for env in made:
        env.close()


@pytest.mark.parametrize("task", ["carry", "cartpole_balance"])
def test_the_view_passes_pettingzoos_tests(view, task):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        parallel_api_test(view(task, SHORT), num_cycles=100)
        parallel_seed_test(lambda: view(task, SHORT), num_cycles=100)


def test_agents_that_end_one_by_one_leave_the_others(view):
    task = f"{Path(__file__).parents[1] / 'core' / 'test_agents_of_a_world.py'}:Leaving"
    env = view(task, seed=3)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        parallel_api_test(env, num_cycles=100)
    env.reset()
    left = []
    while len(left) < 2:
        # The partner drives away first, then the other one.
        actions = {
            agent: np.array([10.0, 0.0], np.float32) for agent in env.agents if not left or agent == "robot"
        }
        actions |= {"robot": np.zeros(2, np.float32)} if not left else {}
        observed, _, terminated, truncated, _ = env.step(actions)
        assert set(observed) == {"robot", "partner"} - set(left)
        assert not any(truncated.values())
        left += [agent for agent, ended in terminated.items() if ended]
        assert env.agents == [agent for agent in env.possible_agents if agent not in left]
    assert left == ["partner", "robot"]


@pytest.mark.parametrize(
    ("task", "agents"), [("carry", ["robot", "partner"]), ("cartpole_balance", ["robot"])]
)
def test_an_episode_of_the_view_is_that_of_env_bit_for_bit(view, task, agents):
    # Two episodes: the second begins in the step that ends the first.
    env = make_env(config.resolve([f"task={task}", "task.episode_length_s=0.4", "seed=7", "num_envs=1"]))
    seen = env.reset()
    twin = view(task, SHORT, seed=7)
    assert twin.possible_agents == agents
    ends = 0
    random = np.random.default_rng(0)
    observed, _ = twin.reset()
    for _ in range(50):
        assert twin.agents == agents
        assert np.array_equal(np.stack(list(observed.values())), seen["policy"].numpy())
        actions = {
            agent: random.uniform(-1, 1, twin.action_space(agent).shape).astype(np.float32)
            for agent in agents
        }
        result = env.step(torch.as_tensor(np.stack(list(actions.values()))))
        observed, rewards, terminated, truncated, infos = twin.step(actions)
        last = result.terminal_observations
        assert np.array_equal(np.stack(list(observed.values())), last["policy"].numpy())
        assert list(rewards.values()) == result.reward.tolist()
        assert list(terminated.values()) == result.terminated.tolist()
        assert list(truncated.values()) == result.truncated.tolist()
        assert np.array_equal(twin.state(), last["critic"].numpy().ravel())
        assert np.array_equal(infos[agents[-1]]["critic"], last["critic"][-1].numpy())
        seen = result.observations
        if bool(result.done.all()):
            assert twin.agents == []
            assert twin.step({}) == ({}, {}, {}, {}, {})
            observed, _ = twin.reset()
            ends += 1
    assert ends >= 2
    env.close()


def test_the_state_is_the_critics_observation_of_each_agent(view):
    world = view("carry", SHORT)
    _, infos = world.reset(seed=1)
    assert np.array_equal(
        world.state(), np.concatenate([infos["robot"]["critic"], infos["partner"]["critic"]])
    )
    assert world.state_space.shape == world.state().shape
    first = world.reset(seed=5)[0]
    again = world.reset(seed=5)[0]
    assert np.array_equal(first["partner"], again["partner"])
    assert not np.array_equal(first["robot"], world.reset(seed=6)[0]["robot"])


def test_metrics_are_in_the_infos_where_they_are_defined(view):
    world = view("carry")
    world.reset(seed=1)
    infos = world.step({"robot": np.zeros(2), "partner": np.zeros(2)})[4]
    # `arrived` and `distance` count in the last second of an episode only.
    assert set(infos["robot"]) == set(infos["partner"]) == {"angle", "critic"}


def test_a_world_draws_itself_in_its_render_mode(view):
    world = view("carry", SHORT, render_mode="rgb_array")
    world.reset(seed=1)
    picture = world.render()
    assert picture.shape == (480, 640, 3)
    assert picture.dtype == np.uint8
    assert len(np.unique(picture)) > 10
    assert view("carry", SHORT).render() is None


def test_bad_input_is_refused_by_name(view, make_env):
    with pytest.raises(ConfigError, match="human"):
        parallel_env("carry", render_mode="human")
    with pytest.raises(ConfigError, match="action_bound"):
        parallel_env("carry", action_bound=0.0)
    with pytest.raises(ConfigError, match="num_envs"):
        parallel_env("carry", {"num_envs": 2})
    world = view("carry", SHORT)
    world.reset()
    with pytest.raises(ConfigError, match="partner"):
        world.step({"robot": np.zeros(2)})
    with pytest.raises(ConfigError, match="partner"):
        world.step({"robot": np.zeros(2), "partner": np.zeros(3)})


def test_a_gymnasium_environment_of_several_agents_is_refused():
    env = make_env(config.resolve(["task=carry", "num_envs=1"]))
    with pytest.raises(ConfigError, match="partner"):
        as_gymnasium(env)
    env.close()
