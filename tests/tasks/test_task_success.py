"""The success that tasks state, on states set by hand."""

from __future__ import annotations

import math

import pytest
import torch

from robolearn import config
from robolearn.training.build import build_env


@pytest.fixture
def of(request):
    env = build_env(config.resolve([f"task={request.param}", "num_envs=4"]), 4)
    env.step(torch.zeros(4, env.num_actions))
    yield env
    env.close()


def success(env) -> list[float]:
    found = env.task.success(env.backend.state, env.ctx)
    return [float(value) for value in found]


@pytest.mark.parametrize("of", ["velocity"], indirect=True)
def test_a_robot_that_is_asked_to_turn_has_success_by_its_turning(of):
    robot = of.backend.state.robot
    robot.base_quat[:] = torch.tensor([1.0, 0.0, 0.0, 0.0])
    robot.base_lin_vel[:], robot.base_ang_vel[:] = 0.0, 0.0
    of.ctx.command[:] = torch.tensor([0.0, 0.0, 1.0])
    # Turning as asked, half of it, standing, and turning the other way.
    robot.base_ang_vel[:, 2] = torch.tensor([1.0, 0.5, 0.0, -1.0])
    assert success(of) == pytest.approx([1.0, 0.5, 0.0, -1.0])
    of.ctx.command[:] = 0.0
    robot.base_ang_vel[:] = 0.0
    assert success(of) == pytest.approx([1.0] * 4)


@pytest.mark.parametrize("of", ["cartpole_swingup"], indirect=True)
def test_a_pole_that_spins_has_little_success(of):
    pole = of.backend.state.robot.joint_pos[:, 1]
    pole[:] = torch.tensor([math.pi, math.pi / 2, 0.3, 0.1])
    assert success(of) == pytest.approx([0.0, 0.15, 0.15 * (1 + math.cos(0.3)), 1.0], abs=1e-6)
    turn = []
    for angle in torch.arange(0, 2 * math.pi, 0.01):
        pole[:] = angle
        turn.append(success(of)[0])
    assert sum(turn) / len(turn) < 0.25


@pytest.mark.parametrize("of", ["ant_run"], indirect=True)
def test_progress_of_the_ant_is_along_the_worlds_x(of):
    robot = of.backend.state.robot
    half = math.sqrt(0.5)
    # Facing x, facing y (so that its own y points to -x), on its side about x, facing x.
    robot.base_quat[:] = torch.tensor(
        [[1.0, 0, 0, 0], [half, 0, 0, half], [half, half, 0, 0], [1.0, 0, 0, 0]]
    )
    robot.base_lin_vel[:] = torch.tensor([[1.5, 9, 9], [9, 1.5, 9], [1.5, 9, 9], [-6.0, 0, 0]])
    assert success(of) == pytest.approx([0.5, -0.5, 0.5, -1.0], abs=1e-5)
