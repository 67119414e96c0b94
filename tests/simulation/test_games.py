"""Games between policies: each world counts its first games, in both seats."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from robolearn import config
from robolearn.core.env import Env
from robolearn.errors import ConfigError
from robolearn.simulation.games import both_seats, play
from robolearn.training.build import build_env


@pytest.fixture
def env() -> Iterator[Env]:
    """4 worlds, with bouts of 0.2 s."""
    made = build_env(config.resolve(["task=sumo", "task.episode_length_s=0.2", "torch_threads=1"]), 4)
    yield made
    made.close()


def still(observations: dict[str, torch.Tensor]) -> torch.Tensor:
    return torch.zeros(len(observations["policy"]), 8)


def test_pairs_meet_in_both_seats():
    assert both_seats([0, 1, 2]) == [(0, 1), (1, 0), (0, 2), (2, 0), (1, 2), (2, 1)]
    assert both_seats([2, 3], [0, 2]) == [(2, 0), (0, 2), (3, 0), (0, 3), (3, 2), (2, 3)]


def test_bouts_out_of_time_are_draws_and_each_world_counts_its_first(env):
    scores, games = play(env, [still, still], both_seats([0, 1]), each=3)
    assert games.tolist() == [[0, 12], [12, 0]]  # 4 worlds of 3 games
    assert scores.tolist() == [[0, 6], [6, 0]]


def test_the_score_goes_to_the_policy_whose_seat_has_won(env):
    class Loser:
        def __call__(self, observations: dict[str, torch.Tensor]) -> torch.Tensor:
            return torch.full((len(observations["policy"]), 8), 0.25)

    step = env.task.out

    def out(state, name):
        # Who acts like the loser is taken to be outside.
        own = env.ctx.action[:, 0] == 0.25
        rows = own if name == "robot" else own.view(-1, 2).flip(1).flatten()
        return step(state, name) | rows

    env.task.out = out  # type: ignore[method-assign]
    scores, games = play(env, [still, Loser()], both_seats([0, 1]), each=2)
    assert games[0, 1] == 8
    assert scores.tolist() == [[0, 8], [0, 0]]


def test_tasks_without_games_and_worlds_that_do_not_divide_are_refused_by_name(env):
    with pytest.raises(ConfigError, match="num_envs=4"):
        play(env, [still] * 3, both_seats([0, 1, 2]))
    carry = build_env(config.resolve(["task=carry"]), 2)
    with pytest.raises(ConfigError, match="'won'"):
        play(carry, [still, still], both_seats([0, 1]))
    carry.close()
    ant = build_env(config.resolve(["task=ant_run"]), 2)
    with pytest.raises(ConfigError, match="AntRun has 1"):
        play(ant, [still, still], both_seats([0, 1]))
    ant.close()
