"""Terms and observations with numbers worked out by hand."""

from __future__ import annotations

import math

import pytest
import torch

from robolearn.envs.state import State, quat_rotate, quat_rotate_inverse, robot_entity
from robolearn.errors import ConfigError
from robolearn.tasks.mdp import terms
from robolearn.tasks.mdp.context import Context, RobotConstants
from robolearn.tasks.mdp.observations import VOCABULARY, projected_gravity
from robolearn.tasks.mdp.symmetry import sagittal
from tests.factories import load_robot

CPU = torch.device("cpu")
QUARTER_LEFT = torch.tensor([[math.sqrt(0.5), 0.0, 0.0, math.sqrt(0.5)]])  # about z: x looks along world y
PITCHED = torch.tensor([[math.cos(0.15), 0.0, math.sin(0.15), 0.0]])  # 0.3 rad nose down


def humanoid(unlimited: tuple[int, ...] = (), **task_state: torch.Tensor) -> tuple[State, Context]:
    """One humanoid at rest in its home pose, without contact, with a command of (0.5, 0.2, -0.3)."""
    robot = load_robot("humanoid")
    entity = robot_entity(robot, 1, CPU)
    entity.base_pos[:, 2] = robot.home_height
    entity.joint_pos[:] = torch.tensor(robot.home)
    limits = [-1.0] * len(robot.joints), [1.0] * len(robot.joints)
    for joint in unlimited:
        limits[0][joint], limits[1][joint] = -math.inf, math.inf
    zeros = torch.zeros(1, len(robot.actuators))
    ctx = Context(
        RobotConstants.of(robot, limits, CPU),
        0.02,
        zeros,
        zeros.clone(),
        torch.tensor([[0.5, 0.2, -0.3]]),
        episode_time=torch.full((1,), 9.0),
        command_time=torch.full((1,), 3.0),
        push_time=torch.full((1,), 1.0),
        task_state=task_state,
    )
    return State({"robot": entity}), ctx


def test_quaternions_rotate_vectors_into_a_frame_and_back():
    ahead = torch.tensor([[1.0, 0.0, 0.0]])
    assert torch.allclose(quat_rotate(QUARTER_LEFT, ahead), torch.tensor([[0.0, 1.0, 0.0]]), atol=1e-6)
    assert torch.allclose(
        quat_rotate_inverse(QUARTER_LEFT, ahead), torch.tensor([[0.0, -1.0, 0.0]]), atol=1e-6
    )


def test_projected_gravity_of_a_robot_that_leans_forward_points_down_and_forward():
    assert torch.allclose(projected_gravity(QUARTER_LEFT), torch.tensor([[0.0, 0.0, -1.0]]), atol=1e-6)
    expected = torch.tensor([[math.sin(0.3), 0.0, -math.cos(0.3)]])
    assert torch.allclose(projected_gravity(PITCHED), expected, atol=1e-6)
    down = torch.tensor([[0.0, 0.0, -1.0]])
    assert torch.allclose(projected_gravity(PITCHED), quat_rotate_inverse(PITCHED, down), atol=1e-6)


def test_velocity_errors_are_measured_in_the_base_frame():
    state, ctx = humanoid()
    state.robot.base_lin_vel[:] = torch.tensor([0.2, -0.2, 9.0])
    state.robot.base_ang_vel[:] = torch.tensor([9.0, 9.0, 0.1])
    assert terms.velocity_error(state, ctx).item() == pytest.approx(0.5)  # 3-4-5: (0.3, 0.4)
    assert terms.yaw_rate_error(state, ctx).item() == pytest.approx(0.4)


def test_squared_cost_terms():
    state, ctx = humanoid()
    state.robot.base_quat[:] = PITCHED
    state.robot.base_lin_vel[:, 2] = -0.5
    state.robot.base_ang_vel[:] = torch.tensor([1.0, 2.0, 7.0])
    state.robot.base_pos[:, 2] += 0.1
    state.robot.joint_torque[:, :2] = torch.tensor([3.0, -4.0])
    ctx.action[0, :3] = torch.tensor([1.0, 1.0, -1.0])
    assert terms.tilt(state, ctx).item() == pytest.approx(math.sin(0.3) ** 2)
    assert terms.vertical_speed(state, ctx).item() == pytest.approx(0.25)
    assert terms.roll_pitch_rate(state, ctx).item() == pytest.approx(5.0)
    assert terms.height_error(state, ctx).item() == pytest.approx(0.01, rel=1e-4)
    assert terms.torque(state, ctx).item() == pytest.approx(25.0)
    assert terms.action_rate(state, ctx).item() == pytest.approx(3.0)


def test_joint_limits_cost_only_in_the_margin_near_the_limits():
    state, ctx = humanoid()
    state.robot.joint_pos[:] = 0.0
    assert terms.joint_limits(state, ctx).item() == 0.0
    state.robot.joint_pos[0, :2] = torch.tensor([0.98, -1.0])  # limits +-1, margin from 0.95 on
    assert terms.joint_limits(state, ctx).item() == pytest.approx(0.03 + 0.05, abs=1e-5)


def test_a_joint_without_limits_costs_nothing_and_has_no_gradient():
    state, ctx = humanoid()
    ctx.robot.lower[0], ctx.robot.upper[0] = -math.inf, math.inf
    state.robot.joint_pos[:] = 0.0
    state.robot.joint_pos[0, :2] = torch.tensor([50.0, -1.0])
    state.robot.joint_pos.requires_grad_()
    cost = terms.joint_limits(state, ctx)
    assert cost.item() == pytest.approx(0.05, abs=1e-5)
    cost.sum().backward()
    assert state.robot.joint_pos.grad[0, :3].tolist() == [0.0, -1.0, 0.0]


def test_foot_spacing_costs_the_missing_distance_across_the_heading():
    state, ctx = humanoid()
    state.robot.base_quat[:] = QUARTER_LEFT  # faces y, so across is x
    state.robot.foot_pos[:] = torch.tensor([[[-0.05, 0.4, 0.0], [0.05, -0.4, 0.3]]])
    assert terms.foot_spacing(state, ctx, distance=0.14).item() == pytest.approx(0.04, abs=1e-6)


def test_foot_yaw_and_tilt_are_relative_to_base_and_ground():
    state, ctx = humanoid()
    state.robot.base_quat[:] = QUARTER_LEFT
    state.robot.foot_quat[:] = QUARTER_LEFT
    assert terms.foot_yaw(state, ctx).item() == pytest.approx(0.0, abs=1e-6)
    assert terms.foot_tilt(state, ctx).item() == pytest.approx(0.0, abs=1e-6)
    state.robot.foot_quat[:, 0] = torch.tensor([1.0, 0.0, 0.0, 0.0])
    assert terms.foot_yaw(state, ctx).item() == pytest.approx(1.0, abs=1e-6)  # sin^2 of a quarter turn
    state.robot.foot_quat[:, 1] = PITCHED
    assert terms.foot_tilt(state, ctx).item() == pytest.approx(math.sin(0.3) ** 2, abs=1e-6)


def test_a_low_or_leaning_base_is_a_fall_and_a_body_below_the_ground_ends_the_episode():
    state, ctx = humanoid()
    assert not terms.fallen(state, ctx, height=0.4, upright=0.5)
    assert not terms.body_below_ground(state, ctx)
    state.robot.base_quat[:] = torch.tensor([[math.cos(0.55), math.sin(0.55), 0.0, 0.0]])  # 1.1 rad: cos < .5
    assert terms.fallen(state, ctx, height=0.4, upright=0.5)
    state.robot.base_quat[:] = QUARTER_LEFT
    state.robot.base_pos[:, 2] = 0.39
    assert terms.fallen(state, ctx, height=0.4, upright=0.5)
    state.robot.body_pos[0, 2, 2] = -0.01
    assert terms.body_below_ground(state, ctx)


def test_joints_with_limits_are_observed_as_angles_and_joints_without_as_sine_and_cosine():
    state, ctx = humanoid(unlimited=(0, 2))
    home = state.robot.joint_pos.clone()
    state.robot.joint_pos[0, :4] = torch.tensor([0.5, 0.25, -math.pi / 2, 0.125])
    limited = VOCABULARY["limited_joint_pos"].compute(state, ctx)[0]
    assert limited.shape == (19,)
    assert limited[:2].tolist() == pytest.approx([0.25 - home[0, 1].item(), 0.125 - home[0, 3].item()])
    assert not limited[2:].any()
    turning = VOCABULARY["turning_joint_pos"].compute(state, ctx)[0]
    assert turning.tolist() == pytest.approx([math.sin(0.5), -1.0, math.cos(0.5), 0.0], abs=1e-6)
    state, ctx = humanoid()
    assert VOCABULARY["turning_joint_pos"].compute(state, ctx).shape == (1, 0)


def test_limited_joints_can_be_mirrored_only_where_they_are_all_joints():
    robot = load_robot("humanoid")
    some = every = VOCABULARY["limited_joint_pos"]
    turning = VOCABULARY["turning_joint_pos"]
    with pytest.raises(ConfigError, match=r"'limited_joint_pos'.*'humanoid'.*learner\.symmetry=none"):
        sagittal(robot, {"policy": [(some, 19)]}, CPU)
    with pytest.raises(ConfigError, match="'turning_joint_pos'"):
        sagittal(robot, {"policy": [(turning, 4)]}, CPU)
    whole = sagittal(robot, {"policy": [(every, 21), (turning, 0)]}, CPU).groups["policy"]
    joints = sagittal(robot, {"policy": [(VOCABULARY["joint_pos_rel"], 21)]}, CPU).groups["policy"]
    assert torch.equal(whole.permutation, joints.permutation)
    assert torch.equal(whole.sign, joints.sign)
