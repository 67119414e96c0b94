"""Any robot holds its home pose: rewards and joint targets with numbers worked out by hand."""

from __future__ import annotations

import math

import pytest
import torch

from robolearn.tasks.stand import Stand
from tests.tasks.scenes import ends, rewards, standing


def test_rewards_of_a_robot_off_its_home_pose():
    state, ctx = standing("ant")  # 8 joints, its base 0.28 m above the ground at home
    state.robot.joint_pos[0, 0] += 0.5
    state.robot.base_pos[0, 2] *= 0.9
    state.robot.base_lin_vel[:] = torch.tensor([0.3, 0.4, 5.0])
    ctx.action[0, :2] = torch.tensor([1.0, -0.5])
    expected = {
        "pose": math.exp(-4 * 0.25 / 8),
        "upright": 1.0,
        "height": math.exp(-1.0),
        "alive": 1.0,
        "drift": 0.25,
        "action_rate": 1.25,
    }
    found = rewards(Stand(robot="ant"), state, ctx)
    assert {name: found[name] for name in expected} == pytest.approx(expected, abs=1e-5)


def test_it_ends_when_the_base_is_too_low_or_leans_too_much():
    state, ctx = standing("ant")
    assert not ends(Stand(robot="ant"), state, ctx)
    state.robot.base_pos[0, 2] = 0.59 * 0.28
    assert ends(Stand(robot="ant"), state, ctx)
    state, ctx = standing("ant")
    state.robot.base_quat[:] = torch.tensor([[math.cos(0.4), math.sin(0.4), 0.0, 0.0]])  # 46 degrees: 0.697
    assert ends(Stand(robot="ant"), state, ctx)


def test_a_unit_action_asks_for_a_share_of_each_motors_torque():
    _, ctx = standing("ant")  # kp 25, effort 20
    ctx.action[:] = 1.0
    targets = Stand(robot="ant", action_scale=0.5).joint_targets(ctx.action, ctx)
    assert torch.allclose(targets, ctx.robot.home[ctx.robot.actuated] + 0.5 * 20 / 25)


def test_a_motor_without_a_servo_is_given_the_torque_itself():
    _, ctx = standing("cartpole")  # one force actuator of 100 N
    ctx.action[:] = -1.0
    assert Stand(robot="cartpole").joint_targets(ctx.action, ctx).tolist() == [[-25.0]]
