"""The ant's rewards, terminations and mirror image, with numbers worked out by hand."""

from __future__ import annotations

import math

import pytest
import torch

from robolearn.envs.state import Entity
from robolearn.tasks.ant_run import AntRun
from tests.tasks.scenes import ends, rewards, slopes, standing


def turned(yaw: float) -> torch.Tensor:
    return torch.tensor([[math.cos(yaw / 2), 0.0, 0.0, math.sin(yaw / 2)]])


def test_forward_speed_is_along_the_worlds_x_for_any_heading():
    state, ctx = standing("ant")
    state.robot.base_quat[:] = turned(math.pi / 3)  # 60 degrees to the left
    state.robot.base_lin_vel[:] = torch.tensor([2.0, 0.0, 0.4])  # along the torso's axes
    state.robot.base_ang_vel[:] = torch.tensor([5.0, 5.0, -0.5])
    ctx.action[0, :2] = torch.tensor([1.0, -0.5])
    expected = {
        "forward": 1.0,  # 2 cos 60
        "alive": 1.0,
        "sideways": 3.0,  # (2 sin 60)^2
        "turned_away": 0.5,
        "turning": 0.25,
        "tilt": 0.0,
        "effort": 1.25,
        "action_rate": 1.25,
    }
    assert rewards(AntRun(), state, ctx) == pytest.approx(expected, abs=1e-6)
    assert AntRun().metrics(state, ctx)["turned"].item() == pytest.approx(math.sin(math.pi / 3))


def test_the_gradient_of_the_reward_turns_the_torso_towards_x():
    state, ctx = standing("ant")
    state.robot.base_quat[:] = turned(0.2)
    slope = slopes(AntRun(), state, ctx, "base_quat")[0]
    left = torch.tensor([-math.sin(0.1), 0.0, 0.0, math.cos(0.1)]) / 2  # change of the quaternion with yaw
    assert (slope @ left).item() == pytest.approx(-math.sin(0.2), abs=1e-5)


def test_a_low_torso_a_tilted_torso_and_a_body_below_the_ground_end_the_episode():
    task = AntRun()
    state, ctx = standing("ant")
    assert ends(task, state, ctx) == []
    state.robot.body_pos[0, 3, 2] = -0.01
    assert ends(task, state, ctx) == ["body_below_ground"]
    state.robot.body_pos[0, 3, 2] = 0.0
    state.robot.base_pos[0, 2] = 0.13
    assert ends(task, state, ctx) == ["fallen"]
    state.robot.base_pos[0, 2] = 0.3
    state.robot.base_quat[:] = torch.tensor([[0.0, 1.0, 0.0, 0.0]])
    assert ends(task, state, ctx) == ["fallen"]


def test_a_mirrored_state_gives_mirrored_observations_and_equal_rewards(make_env):
    env = make_env(AntRun(), num_envs=8)
    env.step(torch.randn(8, 8, generator=torch.Generator().manual_seed(0)))
    symmetry, state, ctx = env.symmetry(), env.backend.state.clone(), env.ctx
    assert symmetry is not None
    vector, pseudo = torch.tensor([1.0, -1.0, 1.0]), torch.tensor([-1.0, 1.0, -1.0])
    robot = state.robot
    swap = [1, 0, 3, 2]  # front left and right, hind left and right
    joints, sign = [2, 3, 0, 1, 6, 7, 4, 5], torch.tensor([-1.0, 1.0] * 4)
    mirrored = Entity(**{name: x.clone() for name, x in robot.tensors().items()})
    mirrored.base_pos[:] = robot.base_pos * vector
    mirrored.base_quat[:] = robot.base_quat * torch.tensor([1.0, -1.0, 1.0, -1.0])
    mirrored.base_lin_vel[:], mirrored.base_ang_vel[:] = (
        robot.base_lin_vel * vector,
        robot.base_ang_vel * pseudo,
    )
    for name in ("joint_pos", "joint_vel", "joint_torque"):
        getattr(mirrored, name)[:] = getattr(robot, name)[:, joints] * sign
    for name in ("foot_pos", "foot_force"):
        getattr(mirrored, name)[:] = getattr(robot, name)[:, swap] * vector
    observed = {
        group: torch.cat([item.compute(state, ctx) for item, _ in items], dim=1)
        for group, items in env.columns.items()
    }
    before = {name: term(state, ctx) for name, term in env.task.reward_terms().items()}
    ctx.action, ctx.previous_action = symmetry.action(ctx.action), symmetry.action(ctx.previous_action)
    state.entities["robot"] = mirrored
    for group, items in env.columns.items():
        other = torch.cat([item.compute(state, ctx) for item, _ in items], dim=1)
        assert torch.allclose(other, symmetry.groups[group](observed[group]), atol=1e-5), group
    for name, term in env.task.reward_terms().items():
        assert torch.allclose(term(state, ctx), before[name], atol=1e-5), name
