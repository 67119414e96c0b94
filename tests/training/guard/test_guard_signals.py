"""What the guard measures, on numbers worked out by hand."""

from __future__ import annotations

import math

import pytest
import torch

from robolearn import config
from robolearn.core.finite_check import NonFiniteTerm
from robolearn.errors import ConfigError
from robolearn.tasks.mdp.task import Ratio
from robolearn.training.build import build_env
from robolearn.training.guard.signals import LEAST_SPREAD, Signals, deviation, numbers_of
from tests.no_sync import no_host_sync


def test_numbers_are_means_over_the_steps_and_roots_of_mean_squares():
    sums = {
        "steps": 10.0,
        "success": 4.0,
        "counted": 8.0,
        "changes": 9.0,
        "vibration": 36.0,
        "energy": 20.0,
        "torque_limit": 1.0,
        "down": 4.0,
        "foot_slide": 2.0,
        "penetration": 0.1,
        "impact": 90.0,
        "spin": 40.0,
        "lean": 1.0,
    }
    assert numbers_of(sums) == pytest.approx(
        {
            "success": 0.5,
            "weight": 0.8,
            "vibration": 2.0,
            "foot_slide": 0.5,
            "energy": 2.0,
            "torque_limit": 0.1,
            "penetration": 0.01,
            "impact": 3.0,
            "spin": 2.0,
            "lean": 0.1,
        }
    )


def test_the_spread_is_the_geometric_mean_of_the_columns_deviations():
    # Deviations 1 and 4: their geometric mean is 2.
    rows = torch.tensor([[1.0, 4.0], [-1.0, -4.0]])
    spread = deviation(rows.sum(dim=0), rows.square().sum(dim=0), torch.tensor(2.0))
    assert float(spread) == pytest.approx(math.sqrt((1 + LEAST_SPREAD) * (4 + LEAST_SPREAD)))


@pytest.fixture
def ant():
    env = build_env(
        config.resolve(["task=ant_run", "num_envs=4", "task.terminations.fallen.active=false"]), 4
    )
    yield env
    env.close()


def test_a_step_of_a_spinning_leaning_robot_is_measured(ant):
    signals = Signals(ant)
    ant.step(torch.zeros(4, 8))
    signals.read()
    robot = ant.backend.state.robot
    robot.base_ang_vel[:] = torch.tensor([0.0, 3.0, 4.0])  # 5 rad/s
    robot.base_quat[:] = torch.tensor(
        [math.cos(math.pi / 12), math.sin(math.pi / 12), 0.0, 0.0]
    )  # 30 degrees
    robot.foot_pos[:, :, 2], robot.foot_force[:] = -0.01, 0.0
    robot.foot_force[:, 0, 2], robot.foot_lin_vel[:, 0] = 20.0, torch.tensor([0.3, 0.4, 9.0])
    robot.joint_torque[:], robot.joint_vel[:] = 0.0, 0.0
    first = ant.robot.actuated[0]
    robot.joint_torque[:, first] = ant.robot.actuators[0].effort
    robot.joint_vel[:, first] = 2.0
    signals.add(ant)
    found = signals.read()
    assert found["spin"] == pytest.approx(5.0)
    assert found["lean"] == pytest.approx(0.25)  # sin^2 30
    assert found["penetration"] == pytest.approx(0.04)  # four feet
    assert (found["impact"], found["foot_slide"]) == (pytest.approx(20.0), pytest.approx(0.5))
    assert found["torque_limit"] == pytest.approx(1 / 8)
    strength = sum(actuator.effort for actuator in ant.robot.actuators)
    assert found["energy"] == pytest.approx(2 * ant.robot.actuators[0].effort / strength)


def test_the_change_of_joint_velocities_is_that_between_two_steps_of_an_episode(ant):
    signals, robot = Signals(ant), ant.backend.state.robot
    ant.state.episode.step[:] = 5
    robot.joint_vel[:] = 1.0
    signals.add(ant)
    robot.joint_vel[:] = -2.0
    signals.add(ant)
    assert signals.read()["vibration"] == pytest.approx(3.0)
    signals.add(ant)
    ant.state.episode.step[:] = 1  # a new episode
    robot.joint_vel[:] = 7.0
    signals.add(ant)
    assert "vibration" not in signals.read()


def test_a_termination_costs_the_rest_of_its_episode(ant):
    signals = Signals(ant)
    ant.step(torch.zeros(4, 8))
    signals.read()
    ant.state.outcome["terminated"] = torch.tensor([True, False, False, False])
    ant.state.episode.step[:] = ant.max_episode_steps - 12
    signals.add(ant)
    assert signals.read()["length"] == pytest.approx(4 / (4 + 12))


def test_a_diverged_environment_counts_in_nothing(ant):
    signals = Signals(ant)
    ant.step(torch.zeros(4, 8))
    signals.read()
    ant.backend.state.robot.base_ang_vel[0] = torch.nan
    ant.state.outcome["diverged"] = torch.tensor([True, False, False, False])
    signals.add(ant)
    assert math.isfinite(signals.read()["spin"])


def test_a_velocity_that_was_not_finite_before_a_reset_counts_in_nothing(ant):
    signals, robot = Signals(ant), ant.backend.state.robot
    ant.state.episode.step[:] = 5
    robot.joint_vel[:] = 1.0
    signals.add(ant)
    robot.joint_vel[1] = torch.nan
    ant.state.outcome["diverged"] = torch.tensor([False, True, False, False])
    signals._before = robot.joint_vel.clone()
    robot.joint_vel[:] = 3.0
    ant.state.episode.step[1] = 1
    ant.state.outcome["diverged"][:] = False
    signals._step = 0
    signals.add(ant)
    # Three of four robots change by 2 m/s.
    assert signals.read()["vibration"] == pytest.approx(2.0)


@pytest.mark.parametrize(
    ("given", "error"),
    [
        (lambda: torch.full((4,), torch.nan), NonFiniteTerm),
        (lambda: torch.full((4,), torch.inf), NonFiniteTerm),
        (lambda: torch.ones(4, 1), ConfigError),
        (lambda: 1.0, ConfigError),
    ],
)
def test_a_success_that_cannot_be_counted_is_named(ant, monkeypatch, given, error):
    signals = Signals(ant)
    ant.step(torch.zeros(4, 8))
    signals.read()
    monkeypatch.setattr(ant.task, "success", lambda state, ctx: given())

    def measure() -> None:
        signals.add(ant)
        signals.read()

    with pytest.raises(error, match="success"):
        measure()


def test_a_success_that_counts_in_no_step_is_left_out(ant, monkeypatch):
    signals = Signals(ant)
    ant.step(torch.zeros(4, 8))
    signals.read()
    monkeypatch.setattr(ant.task, "success", lambda state, ctx: Ratio(torch.zeros(4), torch.zeros(4)))
    signals.add(ant)
    assert not {"success", "weight"} & set(signals.read())


@pytest.mark.parametrize("task", ["hopper_run", "arm_lift", "humanoid_walk", "stand"])
def test_measuring_a_step_never_waits_for_a_gpu(task):
    env = build_env(config.resolve([f"task={task}", "num_envs=4"]), 4)
    signals = Signals(env)
    env.step(torch.zeros(4, env.num_actions))
    with no_host_sync():
        for _ in range(3):
            signals.add(env)
    assert math.isfinite(signals.read()["success"])
    env.close()
