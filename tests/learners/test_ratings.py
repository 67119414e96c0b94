"""Elo ratings and ratings of maximum likelihood, by hand."""

from __future__ import annotations

import numpy as np
import pytest

from robolearn.errors import ConfigError
from robolearn.learners.selfplay.rating import expected, fit, updated


def test_400_points_more_are_expected_to_score_ten_times_as_often():
    assert expected(1200.0, 1200.0) == 0.5
    assert expected(1400.0, 1000.0) == pytest.approx(10 / 11)
    assert expected(1000.0, 1400.0) == pytest.approx(1 / 11)


def test_a_rating_moves_by_8_points_for_a_score_of_one_more_than_expected():
    # Two games against an equal, of which 1.5 are won: 0.5 more than expected.
    assert updated(1000.0, [(1000.0, 2.0, 1.5)]) == pytest.approx(1004.0)
    # A win against one rated 400 points more, and a loss against one rated as much less: 10/11 - 10/11.
    assert updated(1000.0, [(1400.0, 1.0, 1.0), (600.0, 1.0, 0.0)]) == pytest.approx(1000.0)
    assert updated(1000.0, [(1200.0, 0.0, 0.0)]) == 1000.0


def test_many_games_of_one_iteration_move_a_rating_by_150_points_at_most():
    # 1000 games against an equal, all won: 500 more than expected, at 0.15 points each.
    assert updated(1000.0, [(1000.0, 1000.0, 1000.0)]) == pytest.approx(1075.0)
    # 10 games count in full: 8 x 5.
    assert updated(1000.0, [(1000.0, 10.0, 10.0)]) == pytest.approx(1040.0)


def table(players: int, **results: tuple[float, int]) -> tuple[np.ndarray, np.ndarray]:
    """Scores and games from `p01=(score of player 0 against player 1, number of games)`."""
    scores, games = np.zeros((players, players)), np.zeros((players, players))
    for name, (score, count) in results.items():
        i, j = int(name[1]), int(name[2])
        scores[i, j], scores[j, i] = score, count - score
        games[i, j] = games[j, i] = count
    return scores, games


def test_the_ratings_of_two_players_are_as_far_apart_as_their_odds():
    # 3 of 4 games: odds of 3, 400 log10(3) = 190.85. The information is 4 x 3/4 x 1/4 in units of (ln 10 / 400)^2.
    found = fit(*table(2, p01=(1.0, 4)), prior=0.0)
    assert found.ratings == pytest.approx([1000.0, 1190.85], abs=0.01)
    assert found.errors == pytest.approx([0.0, 173.718 / 0.75**0.5], abs=0.01)
    low, high = found.interval(1)
    assert high - low == pytest.approx(2 * 1.96 * 200.59, abs=0.1)


def test_a_player_is_rated_through_others():
    # 0 and 2 have not met; each step has odds of 3.
    found = fit(*table(3, p01=(10.0, 40), p12=(10.0, 40)), prior=0.0)
    assert found.ratings == pytest.approx([1000.0, 1190.85, 1381.70], abs=0.01)
    assert found.errors[2] == pytest.approx(found.errors[1] * 2**0.5)


def test_who_has_won_every_game_has_a_finite_rating():
    # With half a game drawn: 10.25 of 10.5 games, odds of 41.
    found = fit(*table(2, p01=(0.0, 10)))
    assert found.ratings[1] == pytest.approx(1000 + 400 * np.log10(41), abs=0.01)


def test_players_who_have_not_met_and_tables_that_do_not_add_up_are_refused():
    with pytest.raises(ConfigError, match="player 2"):
        fit(*table(3, p01=(1.0, 4)))
    scores, games = table(2, p01=(1.0, 4))
    with pytest.raises(ConfigError, match="ratings"):
        fit(scores * 2, games)
