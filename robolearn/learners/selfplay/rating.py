"""Ratings of players from the scores of their games, on Elo's scale.

A. Elo (1978), "The Rating of Chessplayers, Past and Present": a player rated 400 points above another one is expected
to score 10 times as often. A score is 1 for a win, 0.5 for a draw and 0 for a loss.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from robolearn.errors import ConfigError

ANCHOR = 1000.0
"""Rating of the first player, from which those of all others are counted."""
SCALE = 400.0 / math.log(10.0)
"""Rating points in which the odds of a win grow by a factor of e."""
K = 8.0
"""Points that a rating moves for a score of 1 more than expected."""
MOST = 150.0
"""Points that it moves at most for the games of one iteration, however many these are."""

Array = NDArray[np.float64]


def expected(mine: float, theirs: float) -> float:
    """The expected score of a player rated `mine` against one rated `theirs`, 0 to 1."""
    return 1.0 / (1.0 + 10.0 ** ((theirs - mine) / 400.0))


def updated(rating: float, games: Sequence[tuple[float, float, float]]) -> float:
    """A rating after the games of one iteration: (rating of the opponent, number of games, sum of scores) each.

    Elo's rule for a tournament, R + K (score - expected score). Of more than `MOST / K` games each counts less: the
    rating then moves by `MOST` at most, and does not overshoot.
    """
    count = sum(n for _, n, _ in games)
    if not count:
        return rating
    gained = sum(score - n * expected(rating, theirs) for theirs, n, score in games)
    return rating + min(K, MOST / count) * gained


@dataclass(frozen=True)
class Fitted:
    """Ratings of P players, and what is not known of them."""

    ratings: Array
    """(P,); the first one is `ANCHOR`."""
    errors: Array
    """(P,) standard error of each difference from the first."""

    def interval(self, player: int) -> tuple[float, float]:
        """The 95 % interval of a player's rating."""
        half = 1.959964 * float(self.errors[player])
        return float(self.ratings[player]) - half, float(self.ratings[player]) + half


def fit(scores: Array, games: Array, prior: float = 0.5) -> Fitted:
    """Ratings of maximum likelihood of P players who have met (Bradley and Terry, 1952, "Rank Analysis of Incomplete
    Block Designs"), on Elo's scale.

    A draw counts as half a win and half a loss. Each pair that has met also counts `prior` games that were drawn, so
    that the rating of a player who has won or lost all games is finite; it pulls ratings together by little.

    Args:
        scores: (P, P) the sum of the scores of the row's player against the column's.
        games: (P, P) the number of their games, symmetric; scores + scores^T = games.
        prior: number of drawn games added to each pair.

    Returns:
        Ratings, and standard errors from the Fisher information of the games.

    Raises:
        ConfigError: the tables do not fit together, or a player has met no other, directly or through others.
    """
    if scores.shape != games.shape or not np.allclose(scores + scores.T, games):
        raise ConfigError("ratings: the scores of each pair must add up to the number of its games")
    players = len(games)
    met = games + np.where(games > 0, prior, 0.0)
    _require_connected(met)
    won = scores + np.where(games > 0, prior / 2, 0.0)
    theta = np.zeros(players)
    for _ in range(200):  # Newton's method on a concave function, from the middle
        chance = 1.0 / (1.0 + np.exp(theta[None, :] - theta[:, None]))
        slope = (won - met * chance).sum(axis=1)[1:]
        step = np.linalg.solve(_information(met, chance), slope)
        theta[1:] += step * min(1.0, 2.0 / max(1e-12, float(np.abs(step).max())))
        if np.abs(step).max() < 1e-10:
            break
    chance = 1.0 / (1.0 + np.exp(theta[None, :] - theta[:, None]))
    variance = np.diag(np.linalg.inv(_information(met, chance)))
    return Fitted(ANCHOR + SCALE * theta, SCALE * np.sqrt(np.concatenate(([0.0], variance))))


def _information(met: Array, chance: Array) -> Array:
    """The Fisher information (P - 1, P - 1) of the players after the first."""
    weight = met * chance * (1 - chance)
    information: Array = np.diag(weight.sum(axis=1)) - weight
    return information[1:, 1:]


def _require_connected(met: Array) -> None:
    reached, fresh = {0}, [0]
    while fresh:
        fresh = [int(j) for i in fresh for j in np.flatnonzero(met[i]) if int(j) not in reached]
        reached |= set(fresh)
    if alone := [i for i in range(len(met)) if i not in reached]:
        raise ConfigError(f"ratings: player {alone[0]} has met none of the others; let it play against one")
