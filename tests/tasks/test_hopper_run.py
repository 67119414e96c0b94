"""The hopper's rewards, terminations and observations, with numbers worked out by hand."""

from __future__ import annotations

import math

import pytest
import torch

from robolearn.tasks.hopper_run import ACTION_SCALE, HopperRun
from tests.tasks.scenes import ends, rewards, slopes, standing


def test_every_reward_of_a_leap():
    state, ctx = standing("hopper")
    state.robot.joint_pos[0, :3] = torch.tensor([9.0, 0.3, math.pi / 3])  # high up, 60 degrees nose down
    state.robot.joint_vel[0, :3] = torch.tensor([2.5, 1.0, -3.0])
    ctx.action[:] = torch.tensor([1.0, -2.0, 0.5])
    ctx.previous_action[:] = torch.tensor([1.0, 0.0, 0.0])
    expected = {
        "forward": 1 - (1.5 / 4) ** 2,  # 1.5 m/s short of 4 m/s
        "alive": 1.0,
        "lean": 0.5,
        "pitch_rate": 9.0,
        "crouch": 0.0,  # softplus(-6)^2 / 400 = 1.5e-8
        "effort": 5.25,
        "action_rate": 4.25,
    }
    assert rewards(HopperRun(), state, ctx) == pytest.approx(expected, abs=1e-6)


def test_crouching_costs_about_the_square_of_the_depth_and_is_smooth_at_zero():
    state, ctx = standing("hopper")
    state.robot.joint_pos[0, 1] = -0.3
    assert rewards(HopperRun(), state, ctx)["crouch"] == pytest.approx(0.09, rel=2e-3)
    state.robot.joint_pos[0, 1] = 0.0
    assert rewards(HopperRun(), state, ctx)["crouch"] == pytest.approx(math.log(2) ** 2 / 400, rel=1e-5)


def test_the_slope_of_the_forward_reward_falls_linearly_to_zero_at_the_target_speed():
    for speed, slope in ((-4.0, 2.0), (0.0, 1.0), (2.0, 0.5), (4.0, 0.0), (6.0, -0.5)):  # 2 x 2/4 (1 - v/4)
        state, ctx = standing("hopper")
        state.robot.joint_pos[0, 0], state.robot.joint_vel[0, 0] = 100.0, speed
        assert slopes(HopperRun(), state, ctx, "joint_vel")[0].tolist() == [slope, 0.0, 0.0, 0.0, 0.0, 0.0]


def test_a_low_hip_and_a_pitched_torso_end_the_episode():
    task = HopperRun()
    state, ctx = standing("hopper")
    assert ends(task, state, ctx) == []
    state.robot.joint_pos[0, 2] = -1.01
    assert ends(task, state, ctx) == ["fallen"]
    state.robot.joint_pos[0, 1:3] = torch.tensor([-0.31, 0.0])
    assert ends(task, state, ctx) == ["fallen"]


def test_the_policy_does_not_observe_the_distance_run():
    task = HopperRun()
    state, ctx = standing("hopper")
    state.robot.joint_pos[0, 0] = 7.0
    state.robot.joint_pos[0, 4] += 0.25
    position = task.items("policy")[0].compute(state, ctx)
    assert position[0].tolist() == pytest.approx(
        [0.0, 0.0, 0.0, 0.25, 0.0]
    )  # root_z, root_pitch, hip, knee, ankle


def test_joint_targets_are_home_plus_scale_times_action():
    _, ctx = standing("hopper")
    targets = HopperRun().joint_targets(torch.tensor([[1.0, -1.0, 0.5]]), ctx)[0]
    assert list(ACTION_SCALE.values()) == [0.6, 0.8, 0.6]
    assert targets.tolist() == pytest.approx([-0.45 + 0.6, 0.9 - 0.8, -0.45 + 0.3])


def test_episodes_start_just_above_the_ground(make_env):
    env = make_env(HopperRun(), num_envs=32)
    robot = env.backend.state.robot
    assert (robot.joint_pos[:, 0] == 0).all()
    assert robot.foot_pos[:, 0, 2].min() > -0.03  # the heel or toe may dip
    assert robot.foot_pos[:, 0, 2].max() < 0.12
    assert not env.step(torch.zeros(32, 3)).terminated.any()
