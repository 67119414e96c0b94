"""The arm's tasks: terms with numbers worked out by hand, and where episodes start."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from robolearn import config
from robolearn.core.env import Env
from robolearn.envs.mujoco.backend import MujocoBackend
from robolearn.export.record import on_robot
from robolearn.tasks.arm_lift import CUBE, EDGE, FAR, HELD, NEAR, ArmLift
from robolearn.tasks.arm_reach import GRIP, ArmReach
from robolearn.tasks.cartpole import CartpoleBalance
from robolearn.tasks.mdp import manipulation as arm
from tests.factories import load_robot

DOWN = torch.tensor([0.0, 0.0, 1.0, 0.0])
"""Half a turn about y."""
LESS = 1.0 - math.tanh(1.0)
"""Closeness at the width."""


@pytest.fixture
def made():
    """(task, num_envs) -> Env on the CPU backend, with the task's own scene."""
    envs = []

    def make(task, num_envs=8, seed=1):
        robot = load_robot("arm")
        envs.append(Env(task, robot, MujocoBackend(task.scene(robot), num_envs), seed=seed))
        return envs[-1]

    yield make
    for env in envs:
        env.close()


def rewards(env) -> dict[str, torch.Tensor]:
    state, ctx = env.backend.state, env.ctx
    return {name: term(state, ctx) for name, term in env.task.reward_terms().items()}


def test_reaching_is_worth_most_at_the_commanded_pose(made):
    env = made(ArmReach(), 2)
    state, grip = env.backend.state, env.backend.state.robot.frames[GRIP]
    grip.pos[:] = torch.tensor([0.4, 0.1, 0.2])
    grip.quat[:] = DOWN
    command = env.ctx.command
    command[0] = torch.tensor([0.4, 0.1, 0.2, *-DOWN])  # the same orientation
    # 3 cm off along x, turned by 0.5 rad about z.
    command[1] = torch.tensor([0.43, 0.1, 0.2, 0.0, -math.sin(0.25), math.cos(0.25), 0.0])
    found = rewards(env)
    assert found["exact"].tolist() == pytest.approx([1.0, LESS], abs=1e-4)
    assert found["align"].tolist() == pytest.approx([1.0, LESS], abs=1e-4)
    assert found["near"].tolist() == pytest.approx([1.0, 1.0 - math.tanh(0.15)], abs=1e-4)
    assert arm.frame_angle(state, env.ctx, frame=GRIP).tolist() == pytest.approx([0.0, 0.5], abs=1e-4)


def test_films_mark_the_commanded_pose_in_the_world(made):
    env = made(ArmReach(), 2)
    robot = env.backend.state.robot
    robot.base_pos[:] = torch.tensor([1.0, 2.0, 0.5])
    robot.base_quat[:] = torch.tensor([0.5**0.5, 0.0, 0.0, 0.5**0.5])  # a quarter turn to the left
    env.ctx.command[:] = torch.tensor([0.4, 0.1, 0.2, 1.0, 0.0, 0.0, 0.0])
    goal = env.task.goal(env.backend.state, env.ctx)
    assert goal[0].tolist() == pytest.approx([0.9, 2.4, 0.7, 0.5**0.5, 0.0, 0.0, 0.5**0.5], abs=1e-6)
    assert CartpoleBalance().goal(env.backend.state, env.ctx) is None


def test_a_goal_is_in_the_axes_of_the_robots_base(made):
    env = made(ArmLift(), 2)
    robot = env.backend.state.robot
    robot.base_pos[:] = torch.tensor([1.0, 2.0, 0.5])
    robot.base_quat[:] = torch.tensor([0.5**0.5, 0.0, 0.0, 0.5**0.5])  # a quarter turn to the left
    env.ctx.command[:] = torch.tensor([0.4, 0.1, 0.2])
    goal = arm.goal_position(env.backend.state, env.ctx)
    assert goal[0].tolist() == pytest.approx([0.9, 2.4, 0.7], abs=1e-6)


def test_lifting_counts_only_what_both_fingers_hold(made):
    env = made(ArmLift(), 4)
    state = env.backend.state
    cube, force = state.entities[CUBE], state.robot.contacts[CUBE].force
    env.ctx.command[:] = torch.tensor([0.4, 0.0, 0.2])
    cube.base_pos[:] = torch.tensor([0.4, 0.0, 0.2])
    cube.base_pos[2, 2] = EDGE / 2 + 0.01  # half of the 2 cm that count
    cube.base_pos[3, 0] += 0.05
    state.robot.frames[GRIP].pos[:] = cube.base_pos
    force.zero_()
    force[:, 0, 1], force[1:, 1, 1] = 5.0, -5.0  # in the first environment one finger alone
    found = rewards(env)
    assert found["grasp"].tolist() == [0.0, 1.0, 1.0, 1.0]
    assert found["lift"].tolist() == pytest.approx([0.0, 1.0, 0.5, 1.0], abs=1e-5)
    assert found["place_exact"][[0, 1, 3]].tolist() == pytest.approx([0.0, 1.0, LESS], abs=1e-4)
    assert found["approach"].tolist() == pytest.approx([1.0] * 4, abs=1e-5)


def test_an_episode_ends_when_the_cube_is_out_of_reach(made):
    env = made(ArmLift(), 2)
    env.backend.state.entities[CUBE].base_pos[:] = torch.tensor([[0.48, 0.63, 0.0], [0.48, 0.65, 0.0]])
    ends = env.task.termination_terms()["cube_lost"](env.backend.state, env.ctx)
    assert ends.tolist() == [False, True]  # 0.79 m and 0.81 m


def test_a_lost_cube_counts_as_one_that_has_missed_its_goal_for_the_time_that_counts(made):
    env = made(ArmLift(), 4)
    cube = env.backend.state.entities[CUBE].base_pos
    env.ctx.command[:] = cube[:] = torch.tensor([0.4, 0.0, 0.2])
    cube[2:] = torch.tensor([0.9, 0.0, 0.0])  # out of reach
    start = torch.tensor([FAR, FAR, FAR, HELD])
    ctx = replace(
        env.ctx,
        task_state={**env.ctx.task_state, "start": start},
        episode_time=torch.tensor([env.task.episode_length_s, 1.0, 1.0, 1.0]),
    )
    found = env.task.metrics(env.backend.state, ctx)["within_5cm"]
    # The first has come to its end, the second not yet; half a second is 25 steps. What starts held does not count.
    assert found.total.tolist() == [1.0, 0.0, 0.0, 0.0]
    assert found.weight.tolist() == [1.0, 0.0, pytest.approx(0.5 / env.dt), 0.0]


@pytest.mark.parametrize("start", [FAR, NEAR, HELD])
def test_episodes_start_with_the_gripper_at_home_open_on_the_way_or_holding_the_cube(made, start):
    env = made(ArmLift(near_starts=float(start == NEAR), held_starts=float(start == HELD)), 64)
    assert (env.ctx.task_state["start"] == start).all()
    cube, grip = env.backend.state.entities[CUBE].base_pos, env.backend.state.robot.frames[GRIP].pos
    away = (grip - cube).norm(dim=1)
    if start == HELD:
        assert away.max() < 2e-3
        assert cube[:, 2].min() > 0.05
        return
    assert cube[:, 2].sub(EDGE / 2).abs().max() < 2e-3
    if start == FAR:
        assert away.min() > 0.1
        return
    # All the way: from around the cube, whose half diagonal is 3.5 cm, to as far as home is.
    assert away.min() < 0.05
    assert away.max() > 0.15
    robot = env.backend.state.robot
    assert torch.allclose(robot.joint_pos[:, 7:], env.ctx.robot.upper[7:].expand(64, -1), atol=1e-4)
    assert robot.contacts[CUBE].force.norm(dim=-1).max() < 1.0  # no finger starts inside the cube


def test_a_held_cube_stays_in_the_closed_gripper(made):
    env = made(ArmLift(near_starts=0.0, held_starts=1.0), 16)
    joints = env.backend.state.robot.joint_pos.clone()
    joints[:, 7:] = 0.0
    for _ in range(50):
        env.step(torch.zeros(16, 9), joint_targets=joints)
    state = env.backend.state
    assert state.robot.contacts[CUBE].touching(5.0).all()
    assert (state.robot.frames[GRIP].pos - state.entities[CUBE].base_pos).norm(dim=1).max() < 0.01


def test_the_policy_sees_where_the_cube_is_in_the_arms_axes(made):
    env = made(ArmLift(noise={}), 4)
    columns, first = {}, 0
    for item, width in env.columns["policy"]:
        columns[item.name] = slice(first, first + width)
        first += width
    seen = env.observations["policy"][:, columns["object_pos"]]
    assert torch.allclose(seen, env.backend.state.entities[CUBE].base_pos, atol=1e-6)


def test_on_the_robot_no_episode_starts_with_the_cube_held_or_near():
    run = config.resolve(["task=arm_lift"])
    assert run.task.held_starts > 0
    deployed = on_robot(run).task
    assert (deployed.near_starts, deployed.held_starts) == (0.0, 0.0)
