"""Gait metrics over short sequences of steps, with numbers worked out by hand."""

from __future__ import annotations

import math

import pytest
import torch

from robolearn.tasks.mdp import gait_metrics as quality
from robolearn.tasks.mdp.task import Ratio
from tests.tasks.mdp.test_terms import CPU, QUARTER_LEFT, humanoid


def walker():
    return humanoid(**quality.start(1, 2, CPU))


def advance(state, ctx, steps: int = 1, resting: bool = False) -> dict[str, list[float]]:
    """Totals and weights of every metric over `steps` steps."""
    sums: dict[str, list[float]] = {}
    for _ in range(steps):
        ctx.task_state = quality.follow(state, ctx, torch.tensor([resting]))
        for name, value in quality.measure(state, ctx).items():
            total, weight = value if isinstance(value, Ratio) else (value, torch.ones(1))
            old = sums.setdefault(name, [0.0, 0.0])
            sums[name] = [old[0] + total.item(), old[1] + weight.item()]
    return sums


def on_ground(state, left: bool, right: bool, height: float = 0.0) -> None:
    """Put feet on the ground under 100 N, or into the air at `height` [m]."""
    down = torch.tensor([left, right])
    state.robot.foot_force[0, :, 2] = 100.0 * down
    state.robot.foot_pos[0, :, 2] = height * ~down


def test_tracking_errors_are_in_the_upright_frame_with_the_heading_of_the_base():
    state, ctx = walker()
    robot = state.robot
    # Facing world y and leaning 0.3 rad forward (yaw, then pitch): base x points into the floor a little.
    lean = torch.tensor([[math.cos(0.15), 0.0, math.sin(0.15), 0.0]])
    w, z = QUARTER_LEFT[0, 0], QUARTER_LEFT[0, 3]
    robot.base_quat[:] = torch.tensor([[w * lean[0, 0], -z * lean[0, 2], w * lean[0, 2], z * lean[0, 0]]])
    # 0.5 m/s forward along the ground and 0.2 to the left, in the axes of the leaning base.
    robot.base_lin_vel[:] = torch.tensor([0.5 * math.cos(0.3), 0.2, 0.5 * math.sin(0.3)])
    assert quality.level_velocities(state)[0][0].tolist() == pytest.approx([0.5, 0.2], abs=1e-6)
    # 0.7 rad/s about the vertical, which the base's own axes show as roll and yaw.
    robot.base_ang_vel[:] = 0.7 * torch.tensor([-math.sin(0.3), 0.0, math.cos(0.3)])
    assert quality.level_velocities(state)[1].item() == pytest.approx(0.7)
    sums = advance(state, ctx)  # the command is (0.5, 0.2, -0.3)
    assert sums["linear_velocity_error"] == pytest.approx([0.0, 1.0], abs=1e-6)
    assert sums["yaw_rate_error"] == pytest.approx([1.0, 1.0])


def test_tracking_does_not_count_in_the_first_second_after_a_command():
    state, ctx = walker()
    ctx.command_time[:] = 0.98
    sums = advance(state, ctx)
    assert sums["linear_velocity_error"] == [0.0, 0.0]
    assert sums["step_frequency"][1] == sums["energy_per_metre"][1] == 0.0
    ctx.command_time[:] = 1.02
    assert advance(state, ctx)["linear_velocity_error"][1] == 1.0


def test_slip_is_how_far_feet_that_stay_on_the_ground_move_along_it():
    state, ctx = walker()
    feet = state.robot.foot_pos[0]
    on_ground(state, left=True, right=False)
    assert advance(state, ctx)["foot_slip"] == [0.0, 0.0]  # where they were before is not known
    feet[:] += torch.tensor([[0.006, 0.008, 0.3], [0.5, 0.0, 0.0]])
    slip = advance(state, ctx)["foot_slip"]  # 3-4-5: 10 mm of one foot of two, in 20 ms
    assert slip == pytest.approx([0.010, 0.02], rel=1e-4)
    on_ground(state, left=True, right=True)
    feet[:] += torch.tensor([[0.0, 0.0, 0.0], [0.02, 0.0, -0.1]])
    assert advance(state, ctx)["foot_slip"] == pytest.approx([0.0, 0.02])  # the right one lands
    feet[1, 0] += 0.003
    assert advance(state, ctx)["foot_slip"] == pytest.approx([0.003, 0.04], rel=1e-4)
    assert advance(state, ctx, resting=True)["foot_slip"] == [0.0, 0.0]  # no robot walks


def test_slip_does_not_count_the_speed_at_which_a_foot_lands():
    state, ctx = walker()
    on_ground(state, True, True)
    advance(state, ctx)
    state.robot.foot_lin_vel[0, 0, 0] = 0.7  # of before the ground acted
    assert advance(state, ctx)["foot_slip"] == [0.0, pytest.approx(0.04)]


def test_a_swing_counts_once_at_touch_down_with_its_largest_height():
    state, ctx = walker()
    on_ground(state, True, True)
    advance(state, ctx, 5)
    heights = [0.02, 0.05, 0.07, 0.04]  # 4 steps, 0.08 s in the air
    for height in heights:
        on_ground(state, False, True, height)
        assert advance(state, ctx)["swing_height"] == [0.0, 0.0]
    on_ground(state, True, True)
    sums = advance(state, ctx)
    assert sums["swing_height"] == pytest.approx([0.07, 1.0])
    assert sums["step_frequency"] == pytest.approx([1.0, 2 * 0.02])  # a touch-down in two feet's 0.02 s
    assert advance(state, ctx, 5)["swing_height"] == [0.0, 0.0]


def test_a_short_loss_of_contact_is_not_a_step():
    state, ctx = walker()
    for left in (True, False, True, False, False, True):  # at most 0.04 s in the air
        on_ground(state, left, True, 0.01)
        assert advance(state, ctx)["swing_height"] == [0.0, 0.0]


def test_standing_drift_is_the_distance_from_the_position_one_second_after_stopping_per_ten_seconds():
    state, ctx = walker()
    position = state.robot.base_pos
    for i in range(50):  # 1 s: still swaying back
        position[0, 0] = 0.01 * i
        assert advance(state, ctx, resting=True)["standing_drift"] == [0.0, 0.0]
    total = weight = 0.0
    for _ in range(100):  # 2 s in which it creeps 3 mm forward and 4 mm to the left
        position[0, :2] += torch.tensor([3e-5, 4e-5])
        sums = advance(state, ctx, resting=True)["standing_drift"]
        total, weight = total + sums[0], weight + sums[1]
    assert weight == pytest.approx(2.0)
    assert total / weight == pytest.approx(0.025, rel=1e-2)  # 5 mm in 2 s, 25 mm in ten
    position[0, 0] += 1.0
    assert advance(state, ctx, resting=False)["standing_drift"] == [0.0, 0.0]  # walking is not drift


def test_sway_that_returns_is_not_drift():
    state, ctx = walker()
    advance(state, ctx, 60, resting=True)
    total = 0.0
    for x in (0.01, 0.02, 0.01, 0.0):
        state.robot.base_pos[0, 0] = x
        total += advance(state, ctx, resting=True)["standing_drift"][0]
    assert total == pytest.approx(0.0, abs=1e-6)


def test_saturation_energy_and_action_rate():
    state, ctx = walker()
    effort = ctx.robot.effort.tolist()
    assert effort[:4] == [88.0, 88.0, 60.0, 120.0]
    state.robot.joint_torque[0, 0] = -0.99 * 88
    state.robot.joint_torque[0, 3] = 0.5 * 120
    state.robot.joint_vel[0, 0] = 1.0  # against its torque: braking gives nothing back
    state.robot.joint_vel[0, 3] = 2.0  # 60 Nm x 2 rad/s
    state.robot.base_lin_vel[0, 0] = 0.6
    ctx.action[0, 0] = 2.1
    sums = advance(state, ctx)
    assert sums["torque_saturation"] == pytest.approx([1 / 21, 1.0])
    # The command is (0.5, 0.2): of 0.6 m/s ahead 0.6 x 0.5 / sqrt(0.29) lead there.
    assert sums["energy_per_metre"] == pytest.approx([120.0, 0.6 * 0.5 / math.sqrt(0.29)])
    state.robot.base_lin_vel[0, :2] = torch.tensor([-0.2, 0.5])  # sway across the command is no progress
    assert advance(state, ctx)["energy_per_metre"] == pytest.approx([120.0, 0.0], abs=1e-6)
    ctx.command[0, :2] = torch.tensor([0.05, 0.0])  # nor is the drift of a robot that turns on the spot
    assert advance(state, ctx)["energy_per_metre"] == [0.0, 0.0]
    assert sums["action_rate"] == pytest.approx([0.1, 1.0])
