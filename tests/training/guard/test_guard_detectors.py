"""Each detector on numbers worked out by hand."""

from __future__ import annotations

import json

import pytest

from robolearn.config.guarding import GuardConfig
from robolearn.training.guard.detectors import (
    FLOORS,
    KL,
    MEANING,
    SUCCESS,
    VALUE,
    Finding,
    Track,
    look,
    smoothed,
)

CONFIG = GuardConfig(warmup=2, patience=3)


def watch(
    rows: list[dict[str, float]], stated: bool = True, config: GuardConfig = CONFIG
) -> list[list[Finding]]:
    """The findings after each of these iterations."""
    track = Track()
    return [look(track, row, i + 1, stated, config) for i, row in enumerate(rows)]


def row(reward: float, success: float, length: float = 1.0, **more: float) -> dict[str, float]:
    return {"reward": reward, "success": success, "length": length, **more}


def confirmed(found: list[list[Finding]]) -> list[tuple[int, str]]:
    return [(i + 1, each.name) for i, findings in enumerate(found) for each in findings if each.confirmed]


def test_success_over_whole_episodes_counts_the_steps_that_terminations_cost_as_nothing():
    # 100 steps of success 0.5; of the same number another 300 are missing: 2 x 50 of 100 + 400 steps.
    assert smoothed([row(0, 0.5, 1.0), row(0, 0.5, 0.25)]) == pytest.approx(0.2)


def test_a_fall_of_success_while_the_reward_rises_is_confirmed_after_the_patience_and_names_its_onset():
    # Means over 5 iterations. Success is 0.75 until iteration 4, then 0.375: 0.675, 0.6, and below 3/4 of 0.75, 0.525,
    # 0.45 and 0.375, in iterations 7 to 9.
    rows = [row(1.0, 0.75)] * 4 + [row(2.0, 0.375)] * 6
    found = watch(rows)
    assert confirmed(found)[0] == (9, SUCCESS)
    first = next(each for each in found[8] if each.name == SUCCESS)
    assert (first.onset, first.streak) == (4, 3)
    assert (first.value, first.limit) == (pytest.approx(0.375), pytest.approx(0.75))


def test_a_fall_of_success_that_comes_back_is_not_confirmed_and_one_that_stops_on_the_way_is():
    # Below 3/4 of 0.75 in iterations 7 and 8; from iteration 9 on the last two of five are above the first two.
    fall = [row(1.0, 0.75)] * 4 + [row(2.0, x) for x in (0.4, 0.2, 0.2, 0.3)]
    back = [row(2.0, x) for x in (0.4, 0.5, 0.6, 0.7, 0.75, 0.75, 0.75)]
    assert confirmed(watch(fall + back)) == []
    # It rises to 0.4 only: in iteration 11 the last two of (0.2, 0.3, 0.4, 0.4, 0.4) are above the first two, in
    # iteration 12 those of (0.3, 0.4, ...) too, and in iteration 13 they are equal.
    assert confirmed(watch(fall + [row(2.0, 0.4)] * 5))[0] == (13, SUCCESS)


def test_a_fall_of_success_with_the_reward_is_no_finding():
    assert confirmed(watch([row(2.0, 0.8)] * 4 + [row(1.0, 0.1)] * 9)) == []


def test_early_ends_lower_success_although_it_is_the_same_while_the_episode_lasts():
    # From 0.6 of whole episodes to 0.6 / 10.
    found = watch([row(1.0, 0.6)] * 3 + [row(2.0, 0.6, 0.1)] * 6)
    assert SUCCESS in [name for _, name in confirmed(found)]


@pytest.mark.parametrize("name", FLOORS)
def test_a_symptom_is_confirmed_where_the_reward_rises_and_success_does_not(name):
    # Beyond 1.5 times the larger of baseline and floor, from iteration 3 on; the mean reward rises by 30 % of its
    # baseline, 1.0, from iteration 3, (1 + 1 + 3) / 3, on.
    base, length = FLOORS[name], 1.0
    if name == "ends_early":
        rows = [row(1.0, 0.1, 0.95)] * 2 + [row(3.0, 0.1, 0.2)] * 4
    else:
        rows = [row(1.0, 0.1, length, **{name: base})] * 2 + [row(3.0, 0.1, length, **{name: 1.6 * base})] * 4
    assert (5, name) in confirmed(watch(rows))
    assert not [i for i, each in confirmed(watch(rows)) if i < 5]


def test_a_symptom_is_only_suspicious_where_success_rises_too():
    rows = [row(1.0, 0.1, vibration=1.0)] * 2 + [row(3.0, 0.3, vibration=9.0)] * 9
    found = watch(rows)
    assert {each.name for findings in found for each in findings} == {"vibration"}
    assert confirmed(found) == []


def test_a_symptom_is_only_suspicious_where_the_reward_does_not_rise():
    assert confirmed(watch([row(1.0, 0.1, energy=1.0)] * 2 + [row(1.1, 0.1, energy=9.0)] * 9)) == []


def test_a_symptom_below_its_limit_is_nothing():
    assert watch([row(1.0, 0.1, spin=2.0)] * 2 + [row(3.0, 0.1, spin=2.9)] * 9)[-1] == []


def test_a_symptom_that_pauses_starts_anew():
    bad, good = row(3.0, 0.1, impact=99.0), row(3.0, 0.1, impact=20.0)
    assert confirmed(watch([row(1.0, 0.1, impact=20.0)] * 2 + [bad, bad, good, bad, bad, good])) == []


def test_without_a_stated_success_a_symptom_needs_a_fall_of_survival():
    calm, shaking = row(1.0, 1.0, vibration=1.0), row(3.0, 1.0, vibration=9.0)
    assert confirmed(watch([calm] * 2 + [shaking] * 9, stated=False)) == []
    falling = {**shaking, "length": 0.2}
    assert confirmed(watch([calm] * 2 + [falling] * 9, stated=False))


def test_the_divergence_is_compared_with_its_moving_average():
    # Average: 0.01 after the warm-up; 0.9 x 0.01 + 0.1 x 0.03 = 0.012 after the next.
    found = watch(
        [row(1, 0.1, kl=0.01)] * 2 + [row(1, 0.1, kl=0.03), row(1, 0.1, kl=0.023), row(1, 0.1, kl=0.03)]
    )
    assert [[each.name for each in findings] for findings in found] == [[], [], [KL], [], [KL]]
    assert found[2][0].limit == pytest.approx(0.02)
    assert found[4][0].limit == pytest.approx(2 * (0.9 * 0.012 + 0.1 * 0.023))


def test_the_diversity_below_three_tenths_of_its_baseline_is_confirmed_where_success_falls():
    wide, narrow = row(1.0, 0.8, action_spread=1.0), row(2.0, 0.2, action_spread=0.29)
    assert "action_spread" in [name for _, name in confirmed(watch([wide] * 3 + [narrow] * 8))]
    assert watch([wide] * 3 + [row(2.0, 0.8, action_spread=0.31)])[-1] == []
    assert confirmed(watch([wide] * 3 + [row(2.0, 0.9, action_spread=0.29)] * 8)) == []


def test_a_value_error_counts_where_the_value_function_does_not_fit():
    before = [row(1.0, 0.8, value_error=1.0, fit=0.9)] * 3
    assert [each.name for each in watch([*before, row(1, 0.8, value_error=2.0, fit=0.1)])[-1]] == [VALUE]
    assert watch([*before, row(1, 0.8, value_error=2.0, fit=0.9)])[-1] == []


def test_where_success_is_unknown_only_the_divergence_is_confirmed_after_twice_the_patience():
    def bare(reward: float, kl: float) -> dict[str, float]:
        return {"reward": reward, "length": 1.0, "kl": kl, "action_spread": 0.1 if kl > 0.01 else 1.0}

    rising = [bare(2.0, 0.01 * 1.4**k) for k in range(2, 12)]
    found = watch([bare(1.0, 0.01)] * 2 + rising, stated=False)
    # Iteration 4 is the first above twice the average: 0.0274 > 2 x 0.01096; the sixth in a row is iteration 9.
    assert confirmed(found) == [(i, KL) for i in range(9, 13)]


def test_iterations_in_which_success_does_not_count_are_no_evidence():
    # As of an arm whose commands are new: success counts from iteration 4 on, and its baseline is of 4 and 5.
    blind = {"reward": 1.0, "length": 1.0, "vibration": 1.0}
    track = Track()
    for i in range(3):
        assert look(track, blind, i + 1, True, CONFIG) == []
    for i in range(3, 5):
        assert look(track, row(1.0, 0.6 + 0.2 * (i - 3), weight=0.5), i + 1, True, CONFIG) == []
    assert track.base["success"] == pytest.approx(0.7)
    shaking = {"reward": 3.0, "length": 1.0, "vibration": 9.0}
    found = [look(track, shaking, i + 1, True, CONFIG) for i in range(5, 15)]
    assert confirmed(found) == []


def test_success_weighs_iterations_by_the_steps_that_count():
    # 0.9 in a tenth of the steps and 0.4 in all: 0.49 of 1.1.
    rows = [row(0, 0.9, weight=0.1), row(0, 0.4), {"reward": 0.0, "length": 1.0}]
    assert smoothed(rows) == pytest.approx(0.49 / 1.1)


@pytest.mark.parametrize(("before", "after"), [(20, 5), (5, 20)])
def test_another_warm_up_begins_anew_with_means_over_its_iterations(before, after):
    track, rows = Track(), [row(1.0, 0.8, vibration=2.0)] * 10
    for i, each in enumerate(rows):
        look(track, each, i + 1, True, GuardConfig(warmup=before))
    for i in range(10, 13):
        look(track, row(1.0, 0.6, vibration=4.0), i + 1, True, GuardConfig(warmup=after))
    assert (track.start, track.seen) == (10, 3)
    assert track.base["vibration"] == pytest.approx(4.0)
    assert track.base["success"] == pytest.approx(0.6)


@pytest.mark.parametrize("name", ["value_error", "entropy", "action_spread"])
def test_a_number_that_appears_after_the_warm_up_has_no_baseline_and_is_no_symptom(name):
    assert watch([row(1.0, 0.8)] * 2 + [row(1.0, 0.8, **{name: 0.1})])[-1] == []


def test_a_curriculum_that_becomes_harder_is_no_fall_of_success():
    level = "metric/level_pushes"
    falling = [0.8 - 0.02 * i for i in range(30)]
    rows = [row(1.0 + 0.05 * i, s, **{level: 0.02 * i}) for i, s in enumerate(falling)]
    assert confirmed(watch(rows)) == []
    assert confirmed(watch([{**each, level: 0.3} for each in rows])) != []


def test_a_track_goes_through_json_and_goes_on_to_the_same_findings():
    rows = [row(1.0, 0.8, kl=0.01)] * 4 + [row(2.0, 0.3, kl=0.05)] * 6
    track = Track()
    for i, each in enumerate(rows[:6]):
        look(track, each, i + 1, True, CONFIG)
    again = Track(**json.loads(json.dumps(track.plain())))
    for i, each in enumerate(rows[6:]):
        assert look(again, each, i + 7, True, CONFIG) == look(track, each, i + 7, True, CONFIG)


def test_every_finding_has_words():
    assert {*FLOORS, SUCCESS, KL, VALUE} <= set(MEANING)
