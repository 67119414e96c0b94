"""Delay, controller and clamp, with numbers worked out by hand."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch

from robolearn.envs.actuators.layer import Factors, Motion, Motors
from tests.envs.actuators.robots import arm

STEP = 0.002
"""Physics step [s]."""


def motors(folder: Path, **keys: Any) -> Motors:
    """The arm's motors; those of the shoulder have these keys, those of the elbow are explicit."""
    robot = arm(folder, {"model": "explicit", **keys}, {"model": "explicit"})
    return Motors(robot, STEP, torch.device("cpu"))


def factors(gain: float = 1.0, torque: float = 1.0, delay: float = 0.5) -> Factors:
    return Factors(*(torch.full((1, 2), value) for value in (gain, gain, torque, delay)))


def row(*values: float) -> torch.Tensor:
    return torch.tensor([values], dtype=torch.float32)


def begun(made: Motors, pos: float = 0.0, vel: float = 0.0) -> Motion:
    return made.start(row(pos, pos), row(pos, pos), row(vel, vel))


def torque(
    made: Motors, target: float, pos: float = 0.0, vel: float = 0.0, what: Factors | None = None
) -> float:
    """The shoulder's torque in the first substep after a start at rest at 0."""
    motion = made.command(begun(made), row(target, 0.0))
    found, _ = made.torque(motion, row(pos, pos), row(vel, vel), 0, 4, what or factors())
    return float(found[0, 0])


def test_pd_is_stiffness_times_error_less_damping_times_velocity(tmp_path):
    made = motors(tmp_path)
    assert torque(made, 0.5, pos=0.1, vel=2.0) == pytest.approx(40 * 0.4 - 2 * 2)  # 12 Nm
    assert torque(made, 5.0) == 30.0  # 200 Nm would exceed the effort
    assert torque(made, 0.5, pos=0.1, vel=2.0, what=factors(gain=0.5)) == pytest.approx(6.0)
    assert torque(made, 5.0, what=factors(torque=0.5)) == 15.0  # a motor of half the strength


@pytest.mark.parametrize(
    ("speed", "most", "least"),
    [
        (0.0, 25.0, -25.0),  # 40 Nm at standstill, of which the drive gives 25
        (5.0, 25.0, -25.0),  # 40 (1 - 5/20) = 30
        (10.0, 20.0, -25.0),  # 40 (1 - 10/20)
        (15.0, 10.0, -25.0),  # braking: 40 (1 + 15/20) = 70, of which the drive gives 25
        (20.0, 0.0, -25.0),
        (30.0, 0.0, -25.0),  # faster than without load: it can only brake
        (-15.0, 25.0, -10.0),  # the same in the other direction
    ],
)
def test_the_torque_of_a_dc_motor_falls_with_speed_in_both_quadrants(tmp_path, speed, most, least):
    made = motors(tmp_path, model="dc", saturation=40.0, no_load_speed=20.0, effort=25.0, kp=1000.0, kd=0.0)
    assert torque(made, 1.0, vel=speed) == pytest.approx(most)
    assert torque(made, -1.0, vel=speed) == pytest.approx(least)


@pytest.mark.parametrize(
    ("speed", "most", "least"),
    [
        (0.0, 24.0, -24.0),
        (4.0, 22.0, -24.0),  # between 24 at 0 and 20 at 8 rad/s; a braking motor has the torque of standstill
        (8.0, 20.0, -24.0),
        (14.0, 10.0, -24.0),  # halfway between 20 at 8 and 0 at 20
        (25.0, 0.0, -24.0),
        (-14.0, 24.0, -10.0),
    ],
)
def test_a_curve_of_points_is_interpolated(tmp_path, speed, most, least):
    curve = [[0, 24], [8, 20], [20, 0]]
    made = motors(tmp_path, model="dc", curve=curve, kp=1000.0, kd=0.0)
    assert torque(made, 1.0, vel=speed) == pytest.approx(most)
    assert torque(made, -1.0, vel=speed) == pytest.approx(least)
    assert torque(made, 1.0, vel=speed, what=factors(torque=0.5)) == pytest.approx(most / 2)


def test_a_lag_closes_the_same_share_of_the_gap_in_each_substep(tmp_path):
    made = motors(tmp_path, lag=0.01)
    motion = made.command(begun(made), row(0.5, 0.5))
    for k in range(1, 9):
        found, motion = made.torque(motion, row(0, 0), row(0, 0), k % 4, 4, factors())
        # 20 Nm are asked for from the start; after the time k h there are 20 (1 - exp(-k h / 0.01)).
        assert float(found[0, 0]) == pytest.approx(20 * (1 - math.exp(-k * STEP / 0.01)), rel=1e-5)
        assert float(found[0, 1]) == pytest.approx(20.0)  # the elbow has none
    assert float(found[0, 0]) == pytest.approx(20 * (1 - math.exp(-1.6)), rel=1e-5)


def test_a_lag_goes_on_from_what_the_torque_speed_curve_let_through(tmp_path):
    keys = {"saturation": 20.0, "no_load_speed": 10.0, "lag": STEP / math.log(2), "kd": 0.0}
    made = motors(tmp_path, model="dc", **keys)  # half of the gap in each substep
    motion = made.command(begun(made), row(0.4, 0.0))  # asks for 16 Nm
    found, motion = made.torque(motion, row(0, 0), row(0, 0), 0, 4, factors())
    assert float(found[0, 0]) == pytest.approx(8.0)
    found, motion = made.torque(motion, row(0, 0), row(8, 0), 1, 4, factors())
    assert float(found[0, 0]) == pytest.approx(4.0)  # 12, of which 20 (1 - 0.8) = 4 remain
    found, motion = made.torque(motion, row(0, 0), row(0, 0), 2, 4, factors())
    assert float(found[0, 0]) == pytest.approx(10.0)  # halfway from 4 to 16


def arrivals(made: Motors, targets: list[float], substeps: int, delay: float = 0.5) -> list[float]:
    """The joint target that the shoulder follows in each substep (kp is 1, so it is the torque)."""
    motion, out = begun(made), []
    for target in targets:
        motion = made.command(motion, row(target, 0.0))
        for k in range(substeps):
            found, motion = made.torque(motion, row(0, 0), row(0, 0), k, substeps, factors(delay=delay))
            out.append(round(float(found[0, 0]), 5))
    return out


@pytest.mark.parametrize(
    ("delay", "substeps", "expected"),
    [
        (0.0, 4, [1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3]),
        (0.5, 4, [0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3]),  # two of four substeps late
        (0.25, 4, [0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3]),
        (1.0, 4, [0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2]),
        (1.5, 2, [0, 0, 0, 1, 1, 2]),
        (2.0, 1, [0, 0, 1]),
        (0.3, 10, [0] * 3 + [1] * 10 + [2] * 10 + [3] * 7),  # 0.3 x 10 is no whole number in floating point
        # 0.375 of 4 substeps are 1.5: half of the second substep still sees the old target.
        (0.375, 4, [0, 0.5, 1, 1, 1, 1.5, 2, 2, 2, 2.5, 3, 3]),
    ],
)
def test_a_target_arrives_after_that_part_of_a_control_step(tmp_path, delay, substeps, expected):
    made = motors(tmp_path, delay=delay, kp=1.0, kd=0.0)
    assert arrivals(made, [1.0, 2.0, 3.0], substeps) == pytest.approx(expected)


def test_a_delay_with_a_range_is_where_the_environment_has_it(tmp_path):
    made = motors(tmp_path, delay=[0.25, 0.75], kp=1.0, kd=0.0)
    assert made.varies
    assert arrivals(made, [1.0, 2.0], 4, delay=0.0) == [0, 1, 1, 1, 1, 2, 2, 2]
    assert arrivals(made, [1.0, 2.0], 4, delay=1.0) == [0, 0, 0, 1, 1, 1, 1, 2]


def test_play_without_damping_is_a_dead_zone(tmp_path):
    made = motors(tmp_path, backlash=0.01, kp=100.0, kd=0.0)
    # Half of the play is 5 mrad: errors up to that give nothing, what is beyond it counts.
    for error, expected in ((0.0, 0), (0.004, 0), (-0.005, 0), (0.007, 0.2), (-0.025, -2)):
        assert torque(made, error) == pytest.approx(expected, abs=1e-4)


def test_a_rotor_crosses_the_play_before_it_pushes(tmp_path):
    """kd/h = 1000 and kp = 1000: in each substep the free rotor goes half of the way to the target."""
    made = motors(tmp_path, backlash=0.02, kp=1000.0, kd=2.0)
    motion = made.command(begun(made), row(0.012, 0.0))
    expected = [
        (0.006, 0.0),  # halfway from 0 to 0.012, within the play of +-0.01
        (0.009, 0.0),
        # Halfway would be 0.0105, beyond the play: it stays at 0.01, and (kp + kd/h) 0.0005 = 1 Nm push the joint.
        (0.01, 1.0),
        (0.01, 2.0),  # at rest at the end of the play: kp (0.012 - 0.01)
    ]
    for k, (rotor, push) in enumerate(expected):
        found, motion = made.torque(motion, row(0, 0), row(0, 0), k, 4, factors())
        assert float(motion["rotor"][0, 0]) == pytest.approx(rotor, abs=1e-6)
        assert float(found[0, 0]) == pytest.approx(push, abs=1e-3)
    # The joint moves by 2 mrad in a substep: to keep up the rotor would have to pull, so it leaves the end of the play.
    # From there, 8 mrad ahead of the joint, it goes halfway to the target, 10 mrad ahead.
    found, motion = made.torque(motion, row(0.002, 0), row(1, 0), 0, 4, factors())
    assert float(motion["rotor"][0, 0]) == pytest.approx(0.011, abs=1e-6)
    assert float(found[0, 0]) == pytest.approx(0.0, abs=1e-3)


def test_gradients_flow_through_delay_play_lag_and_curve(tmp_path):
    keys = {"saturation": 20.0, "no_load_speed": 10.0, "lag": 0.01, "backlash": 0.001, "delay": 0.25}
    made = motors(tmp_path, model="dc", **keys)
    target = row(0.1, 0.1).requires_grad_()
    motion = made.command(begun(made), target)
    total = torch.zeros(())
    for k in range(4):
        found, motion = made.torque(motion, row(0, 0), row(0, 0), k, 4, factors())
        total = total + found[0, 0]
    total.backward()
    assert target.grad is not None
    assert float(target.grad[0, 0]) > 0
    assert float(target.grad[0, 1]) == 0  # the other motor


def test_force_motors_have_delay_lag_and_curve_too(tmp_path):
    keys = {"kind": "force", "kp": None, "kd": None, "model": "dc", "saturation": 20.0, "no_load_speed": 10.0}
    made = motors(tmp_path, **keys)
    assert torque(made, 7.0, pos=0.3) == 7.0  # positions do not matter
    assert torque(made, 7.0, vel=8.0) == pytest.approx(4.0)
