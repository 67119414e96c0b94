"""The Runtime class: observations, joint targets, golden check, latency statistics."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from robolearn.core.contract import contract_of
from robolearn.export.bundle import contract_entry
from robolearn.runtime import main as commands
from robolearn.runtime.bundle import Bundle, difference
from robolearn.runtime.contract import checked_contract
from robolearn.runtime.errors import BAD_INPUT, Refused
from robolearn.runtime.measure import best_of, is_target, over_budget, paced, statistics
from robolearn.runtime.robot import Runtime, replay
from robolearn.runtime.sessions import OnnxSession
from robolearn.tasks.humanoid_walk import HumanoidWalk

# ---------------------------------------------------------------------------------------- on the robot


@pytest.fixture
def robot(exported) -> Runtime:
    found = Bundle.load(exported)
    return Runtime(found, OnnxSession(found.graph))


def readings(robot: Runtime, **other: object) -> dict:
    home = robot.home.copy()
    still = {"quat": [1, 0, 0, 0], "gyro": [0, 0, 0], "joint_pos": home, "joint_vel": 0 * home}
    return still | other


def test_the_observation_of_a_robot_at_home_is_the_one_computed_by_hand(robot):
    robot.step(readings(robot, gyro=[0.1, 0.2, 0.3]), [0.5, 0.0, -0.1])
    seen = robot.observation
    assert seen[:6] == pytest.approx([0.1, 0.2, 0.3, 0, 0, -1])
    assert not seen[6:69].any()  # joints at home and at rest, no action yet
    assert seen[69:] == pytest.approx([0.5, 0.0, -0.1])


def test_joint_targets_are_offset_plus_scale_times_action(robot):
    targets = robot.step(readings(robot), [0.5, 0, 0])
    knee = robot.actuators.index("r_knee")
    # A unit action asks for a quarter of the motor's 120 Nm at 120 Nm/rad: 0.25 rad.
    assert abs(robot.action[knee]) > 1e-3
    assert targets[knee] == pytest.approx(0.6 + 0.25 * robot.action[knee], abs=1e-6)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("gyro", [0, float("nan"), 0]),
        ("gyro", [0, 0]),
        ("quat", [1, 0, 0]),
        ("joint_pos", [0.0] * 20),
        ("joint_vel", [float("inf")] * 21),
        ("joint_vel", [3e38] * 21),
        ("joint_vel", [1e300] * 21),
    ],
)
def test_a_wrong_reading_raises_and_leaves_the_runtime_unchanged(robot, name, value):
    robot.step(readings(robot), [1, 0, 0])
    robot.step(readings(robot), [1, 0, 0])
    before = (robot.action.copy(), robot.command.copy(), robot.observation.copy())
    with pytest.raises(ValueError, match=f"{name} must be"):
        robot.step(readings(robot, **{name: value}), [0.5, 0, 0])
    with pytest.raises(ValueError, match="command must be 3"):
        robot.step(readings(robot), [1, 0])
    after = (robot.action, robot.command, robot.observation)
    assert all(np.array_equal(a, b) for a, b in zip(before, after, strict=True))


@pytest.mark.parametrize("quat", [[0, 0, 0, 0], [10, 0, 0, 0], [0.9, 0, 0, 0.2]])
def test_an_orientation_that_is_not_a_unit_quaternion_is_refused(robot, quat):
    """An empty sensor message, all zeros, would count as upright."""
    with pytest.raises(ValueError, match="quat has the length"):
        robot.step(readings(robot, quat=quat), [0, 0, 0])


def test_a_missing_reading_is_named(robot):
    with pytest.raises(ValueError, match="gyro is missing"):
        robot.step({k: v for k, v in readings(robot).items() if k != "gyro"}, [0, 0, 0])


def test_an_action_that_is_not_finite_raises(robot):
    robot._run = lambda: [value.fill(np.nan) for value in robot._out.values()]
    with pytest.raises(ValueError, match="action is not finite"):
        robot.step(readings(robot), [0, 0, 0])


def test_home_limits_and_command_ranges_are_those_of_the_robot(robot):
    knee = robot.joints.index("r_knee")
    assert (robot.home[knee], robot.lower[knee], robot.upper[knee]) == pytest.approx((0.6, -0.05, 2.2))
    assert robot.command_low.tolist() == pytest.approx([-0.5, -0.3, -0.8])
    assert np.clip([9, 0, 0], robot.command_low, robot.command_high).tolist() == pytest.approx([1, 0, 0])


def test_gains_are_those_of_the_robots_actuators(robot):
    knee = robot.actuators.index("r_knee")
    assert (robot.kp[knee], robot.kd[knee], robot.effort[knee]) == (120.0, 4.0, 120.0)


def test_an_unknown_runtime_is_refused(exported):
    with pytest.raises(Refused, match="valid: onnxruntime, tensorrt"):
        commands.open_session(Bundle.load(str(exported)), "trt")


def test_reset_clears_the_last_action_and_the_command(robot):
    first = robot.step(readings(robot), [1, 0, 0]).copy()
    for _ in range(5):
        robot.step(readings(robot, gyro=[1, 0, 0]), [1, 0, 0])
    assert not np.array_equal(robot.step(readings(robot), [1, 0, 0]), first)
    robot.reset()
    assert not robot.action.any()
    assert not robot.command.any()
    assert np.array_equal(robot.step(readings(robot), [1, 0, 0]), first)


def test_robots_on_one_session_do_not_disturb_each_other(exported):
    found = Bundle.load(exported)
    session = OnnxSession(found.graph)
    alone, one, other = (Runtime(found, session) for _ in range(3))
    for i in range(10):
        expected = alone.step(readings(alone, gyro=[0.1 * i, 0, 0]), [1, 0, 0])
        other.step(readings(other, gyro=[0, 3.0, 0]), [-0.5, 0, 0])
        assert np.array_equal(one.step(readings(one, gyro=[0.1 * i, 0, 0]), [1, 0, 0]), expected)


def test_a_constant_network_fails_the_golden_check(exported):
    found = Bundle.load(exported)
    session = OnnxSession(found.graph)
    assert replay(found, session)["targets"] < 1e-5

    class Frozen:
        name, inputs, outputs = "frozen", session.inputs, session.outputs

        def run(self, feeds):
            return {**session.run(feeds), "actions": np.zeros((1, 21), np.float32)}

    with pytest.raises(Refused, match=r"actions .* is 0"):
        replay(found, Frozen())


def test_the_runtime_accepts_the_contract_of_every_task(make_env):
    env = make_env(HumanoidWalk(), num_envs=2)
    plain = contract_entry(contract_of(env), env.task.items("policy"))
    assert checked_contract(plain, "it") == plain


def test_a_contract_that_needs_more_than_its_network_is_refused_and_the_parts_are_named(exported):
    older = Bundle.load(exported).contract | {"extra": {"gait_clock": {"frequency": 1.5}, "step_pattern": {}}}
    phase = {"name": "gait_phase", "width": 2, "column": 72}  # as policies with a gait clock had it
    older = older | {"observations": [*older["observations"], phase]}
    with pytest.raises(Refused, match="it: its policy needs gait_clock, step_pattern") as refusal:
        checked_contract(older, "it")
    assert refusal.value.code == BAD_INPUT


# ---------------------------------------------------------------------------------------- arithmetic


def test_the_first_difference_is_named():
    one = {"a": [1, {"b": 2.0}], "c": 3}
    assert difference(one, {"a": [1, {"b": 2.0}], "c": 3}) == ""
    assert difference(one, {"a": [1, {"b": 2.5}], "c": 4}) == "contract.a[1].b: 2.0 and 2.5"
    assert difference(one, {"a": [1], "c": 3}) == "contract.a has 2 and 1 entries"
    assert difference(one, {"a": [1, {"b": 2.0}]}) == "contract.c is in only one of the two"


def test_statistics_of_1_to_101_ms_are_those_computed_by_hand():
    found = statistics(np.arange(1, 102) * 1e-3)  # 1 .. 101 ms: the median is 51, p99 is 100
    assert (found["p50_ms"], found["p99_ms"], found["max_ms"]) == pytest.approx((51, 100, 101))
    assert (found["mean_ms"], found["count"]) == (pytest.approx(51), 101)


def test_each_share_of_the_budget_is_checked_separately():
    budget = {"p50": 0.05, "p99": 0.1, "max": 0.25, "jitter": 0.05}  # of 20 ms: 1, 2, 5 and 1 ms

    def over(p50, p99, longest):
        step = {"p50_ms": p50, "p99_ms": p99, "max_ms": longest, "rate_hz": 50.0}
        return [line.split()[0] for line in over_budget({"paced": step}, budget)]

    assert over(0.9, 1.8, 4.9) == []
    assert over(1.1, 1.8, 4.9) == ["p50"]
    assert over(1.0, 2.1, 4.9) == ["p99", "jitter"]
    assert over(0.9, 1.8, 5.1) == ["max"]


def test_the_best_runtime_meets_the_budget_and_has_the_smallest_p99():
    budget = {"p50": 0.05, "p99": 0.1, "max": 0.25, "jitter": 0.05}

    def result(name, p99, longest):
        return {"runtime": name, "paced": {"p50_ms": 0.4, "p99_ms": p99, "max_ms": longest, "rate_hz": 50.0}}

    late, steady = result("tensorrt", 0.5, 9.0), result("onnxruntime", 0.6, 2.0)
    assert best_of([late, steady], budget) is steady
    assert best_of([late, result("onnxruntime", 0.6, 9.0)], budget) is late
    assert best_of([result("tensorrt", 0.5, 2.0), steady], budget)["runtime"] == "tensorrt"


def test_pacing_keeps_the_schedule_and_counts_each_step():
    calls = []
    took, late = paced(lambda: calls.append(1), rate=200.0, seconds=0.1)
    assert (len(calls), len(took), len(late)) == (20, 20, 20)
    assert (late >= 0).all()  # no step starts before it is due


@pytest.mark.parametrize(
    ("board", "mine"),
    [("NVIDIA Jetson AGX Thor Developer Kit", True), ("NVIDIA Jetson Orin Nano", False), (None, False)],
)
def test_a_board_is_the_target_by_its_device_tree_name(board, mine):
    target = {"any_machine": False, "detect": ["AGX Thor"]}
    assert is_target(target, board) is mine
    assert is_target(target | {"any_machine": True}, board)


def test_the_overhead_script_compares_the_control_step_with_the_bare_network(exported):
    script = Path(__file__).parents[2] / "scripts" / "overhead.py"
    command = [sys.executable, str(script), str(exported), "--rounds", "2", "--seconds", "0.2"]
    out = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    assert out[0].endswith("obs 1x72, 50 Hz")
    rows = {line.split()[0]: [float(x) for x in line.split()[1:]] for line in out[2:]}
    for bare, step, more, ratio in (rows["hot"], rows["paced"]):
        assert more == pytest.approx(step - bare, abs=0.2)
        assert ratio == pytest.approx(step / bare, abs=0.1)
