"""Games between trained policies in a task of two agents, and their scores."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations, product

import numpy as np
import torch
from numpy.typing import NDArray

from robolearn.core.env import Env
from robolearn.errors import ConfigError, RunFailed
from robolearn.learners.policy import Act, reset_state
from robolearn.learners.selfplay.self_play import WON

Array = NDArray[np.float64]
Pair = tuple[int, int]
"""Numbers of the policies that are the first and the second agent."""


def require_games(env: Env) -> None:
    """Raise ConfigError for a task that has no games of two agents with a score; names it."""
    name = type(env.task).__name__
    if env.agents != 2:
        raise ConfigError(f"games need two agents in a world, and {name} has {env.agents}")
    if WON not in env.task.metrics(env.backend.state, env.ctx):
        raise ConfigError(f"games need the metric {WON!r}, the score of finished games, which {name} lacks")


def both_seats(first: Sequence[int], second: Sequence[int] | None = None) -> list[Pair]:
    """Pairs in which each policy of `first` meets each other one of `second`, as first agent and as second one; without
    `second`, all of `first` meet each other."""
    met = combinations(first, 2) if second is None else product(first, second)
    once = [(i, j) for i, j in met if i != j]
    return [pair for i, j in once for pair in ((i, j), (j, i))]


@torch.no_grad()
def play(env: Env, policies: Sequence[Act], pairs: Sequence[Pair], each: int = 1) -> tuple[Array, Array]:
    """Let policies meet: world w plays the pair w modulo their number, and its first `each` games count, so that short
    games count no more often than long ones.

    Args:
        env: W worlds of a task with two agents and the metric `won`; all are reset first.
        policies: P functions from observations by group to actions, each for all rows that it is given.
        pairs: who meets whom; W is a multiple of their number.
        each: games of a world.

    Returns:
        Scores (P, P), the sum of the scores of the row's policy against the column's, and the number of games (P, P).

    Raises:
        ConfigError: the task has no such games, or the worlds cannot be divided among the pairs.
        RunFailed: a simulation diverged.
    """
    require_games(env)
    worlds = env.num_envs // 2
    if not pairs or worlds % len(pairs):
        raise ConfigError(
            f"num_envs={worlds} is no multiple of the {len(pairs)} pairs of policies; use "
            f"{max(1, worlds // max(1, len(pairs))) * max(1, len(pairs))}"
        )
    seats = torch.tensor(pairs, device=env.device).repeat(worlds // len(pairs), 1)  # (W, 2)
    who = seats.flatten()
    rows = [(who == k).nonzero().squeeze(-1) for k in range(len(policies))]
    action = torch.zeros(env.num_envs, env.num_actions, device=env.device)
    finished = torch.zeros(worlds, dtype=torch.long, device=env.device)
    total = torch.zeros(worlds, dtype=torch.float64, device=env.device)
    env.reset()
    for policy in policies:
        reset_state(policy)
    for _ in range(each * env.max_episode_steps):
        for policy, mine in zip(policies, rows, strict=True):
            if len(mine):
                seen = {name: obs[mine] for name, obs in env.observations.items()}
                action[mine] = torch.as_tensor(policy(seen), device=env.device)
        result = env.step(action)
        if result.diverged.any():
            raise RunFailed("a simulation diverged in a game: lower the timestep or the gains")
        for policy, mine in zip(policies, rows, strict=True):
            reset_state(policy, result.done[mine])
        won, ended = (part[::2].double() for part in result.metrics[WON])
        counted = finished < each
        total += won * counted
        finished += (ended > 0) & counted
        if not (finished < each).any():
            break
    scores = np.zeros((len(policies), len(policies)))
    games = np.zeros_like(scores)
    for (i, j), score, count in zip(seats.tolist(), total.tolist(), finished.tolist(), strict=True):
        scores[i, j] += score
        scores[j, i] += count - score
        games[i, j] += count
        games[j, i] += count
    return scores, games
