"""The tour of a task's commands."""

from __future__ import annotations

import math

import pytest

from robolearn.simulation.script import GivenCommands, Script
from robolearn.simulation.tour import tour
from robolearn.tasks.mdp.commands import PoseCommands, Pushes, VelocityCommands

WIDE = VelocityCommands(forward=(-0.5, 1.0), sideways=(-0.3, 0.3), yaw=(-0.8, 0.8))
STILL = {"forward": 0.0, "sideways": 0.0, "yaw": 0.0}


def test_a_tour_stands_walks_turns_steps_sideways_and_stops_at_four_fifths_of_the_ranges() -> None:
    script = tour(WIDE)
    assert [at for at, _ in script.commands] == pytest.approx([0, 2, 7, 10.5, 13, 15.5])
    expected = [
        STILL,
        {**STILL, "forward": 0.8},
        {**STILL, "forward": 0.48, "yaw": 0.64},
        {**STILL, "yaw": -0.64},
        {**STILL, "sideways": 0.24},
        STILL,
    ]
    assert [values for _, values in script.commands] == [pytest.approx(values) for values in expected]
    assert script.pushes is None


def test_a_tour_is_scaled_to_its_length_and_never_faster_than_a_walk() -> None:
    fast = VelocityCommands(forward=(-1.0, 5.0), sideways=(-2.0, 2.0), yaw=(-4.0, 4.0))
    script = tour(fast, 40.0)
    assert [at for at, _ in script.commands] == pytest.approx([0, 4, 14, 21, 26, 31])
    assert script.commands[1][1]["forward"] == 1.0
    assert script.commands[2][1]["yaw"] == 1.0
    assert script.commands[4][1]["sideways"] == 0.5


def test_commands_stay_within_ranges_that_leave_out_zero_or_one_side() -> None:
    ahead = VelocityCommands(forward=(1.0, 1.1), sideways=(0.0, 0.0), yaw=(0.0, 0.5), standing=0.0)
    script = tour(ahead)
    # No stage of steps to the side; a robot that was never told to stand is not told to here.
    assert len(script.commands) == 5
    for _, values in script.commands:
        assert 1.0 <= values["forward"] <= 1.1 or values["yaw"] > 0
        assert values["sideways"] == 0
        assert 0 <= values["yaw"] <= 0.5
    right = tour(VelocityCommands(forward=(0.0, 1.0), yaw=(-1.0, 0.2), standing=0.5))
    assert all(-1.0 <= values["yaw"] <= 0.2 for _, values in right.commands)
    back = tour(VelocityCommands(forward=(-2.0, 0.1)))
    assert back.commands[1][1]["forward"] == -1.0


def test_a_task_with_pushes_gives_one_of_its_hardest_while_the_robot_stands() -> None:
    (push,) = tour(WIDE, 20.0, Pushes(speed=(0.0, 0.4), box=(0.1, 0.25, 0.2))).pushes
    assert push.at == pytest.approx(17.0)  # 15.5 s and a third of the last 4.5 s
    assert (push.speed, push.direction) == (pytest.approx(0.65), -90)
    assert push.force == 0
    assert tour(WIDE, 20.0, Pushes()).pushes is None


def test_a_task_that_pushes_by_force_gives_its_strongest_for_as_long_as_it_may_last() -> None:
    (push,) = tour(WIDE, 20.0, Pushes(force=(20.0, 90.0), lasting=(0.1, 0.4))).pushes
    assert (push.speed, push.force, push.lasting) == (0, 90, 0.4)


def test_other_commands_and_none_have_no_tour() -> None:
    assert tour(PoseCommands()) == tour(None) == Script()
    given = GivenCommands(WIDE, lambda values, state, ctx: values)
    assert tour(given) == tour(WIDE)
    assert math.isclose(tour(given, 10.0).commands[-1][0], 7.75)
