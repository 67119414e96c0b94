"""MuJoCo's DC motor: its formula, in every backend that has it; the others refuse it by name."""

from __future__ import annotations

import math

import pytest
import torch

from robolearn.config import registry
from robolearn.envs.actuators.backend import with_motors
from robolearn.envs.backend import Backend
from robolearn.envs.robot import Robot
from robolearn.errors import ConfigError
from tests.envs.actuators.robots import arm
from tests.factories import INSTALLED, home_pose, home_targets

EVERY = torch.ones(3, dtype=torch.bool)
MOTOR = {"model": "dcmotor", "resistance": 0.5, "motor_constant": 0.8, "voltage": 12.0}
"""Torque at standstill: 0.8 x 12 / 0.5 = 19.2 Nm. Speed without load: 12 / 0.8 = 15 rad/s."""
HAVING = [name for name in ("mujoco", "mujoco_warp") if name in INSTALLED]


def make(name: str, robot: Robot, num_envs: int = 3) -> Backend:
    cls = registry.load("backends", name)
    return with_motors(lambda scene: cls(scene, num_envs, "cpu", cls.config_class()), robot)


@pytest.mark.parametrize("name", HAVING)
def test_the_voltage_of_the_supply_limits_the_torque_by_speed(tmp_path, name):
    robot = arm(tmp_path, {**MOTOR, "kp": 30.0, "kd": 0.0})
    backend, start = make(name, robot), home_pose(robot, 3)
    start.joint_vel[:, 0] = torch.tensor([0.0, 10.0, 0.0])
    backend.reset(EVERY, start)
    targets = home_targets(robot, 3)
    targets[:, 0] += torch.tensor([0.1, 1.0, 1.0])
    backend.step(targets, 1)
    # kp 0.1 = 3 Nm; at 10 rad/s 0.8 (12 - 0.8 x 10) / 0.5 = 6.4 Nm; at standstill 19.2 Nm of the 30 asked for.
    found = backend.state.robot.joint_torque[:, 0].tolist()
    assert found == pytest.approx([3.0, 6.4, 19.2], rel=1e-5)


@pytest.mark.parametrize("name", HAVING)
def test_the_drive_gives_no_more_than_its_effort(tmp_path, name):
    robot = arm(tmp_path, {**MOTOR, "kp": 200.0, "effort": 7.0})
    backend = make(name, robot)
    backend.reset(EVERY, home_pose(robot, 3))
    backend.step(home_targets(robot, 3) + torch.tensor([1.0, 0.0]), 1)
    assert backend.state.robot.joint_torque[:, 0].tolist() == pytest.approx([7.0] * 3)


@pytest.mark.parametrize("name", HAVING)
def test_the_current_follows_with_the_time_constant_of_the_winding(tmp_path, name):
    robot = arm(tmp_path, {**MOTOR, "inductance": 0.005, "kp": 200.0, "kd": 0.0})
    backend = make(name, robot)
    backend.reset(EVERY, home_pose(robot, 3))
    backend.step(home_targets(robot, 3) + torch.tensor([1.0, 0.0]), 1)
    # L / R = 10 ms, a step is 2 ms: 19.2 (1 - exp(-0.2)) Nm.
    expected = 19.2 * (1 - math.exp(-0.2))
    assert backend.state.robot.joint_torque[:, 0].tolist() == pytest.approx([expected] * 3, rel=1e-4)
    before = backend.snapshot()
    backend.step(home_targets(robot, 3) + torch.tensor([1.0, 0.0]), 3)
    wanted = backend.state.robot.joint_pos.clone()
    backend.reset(torch.tensor([True, False, False]), home_pose(robot, 3))
    backend.step(home_targets(robot, 3), 1)
    assert float(backend.state.robot.joint_torque[0, 0]) == pytest.approx(0.0, abs=1e-6)  # no current is left
    backend.restore(before)
    backend.step(home_targets(robot, 3) + torch.tensor([1.0, 0.0]), 3)
    assert torch.equal(backend.state.robot.joint_pos, wanted)


@pytest.mark.skipif(len(HAVING) < 2, reason="MuJoCo Warp is not installed")
def test_both_simulators_move_a_dc_motor_alike(tmp_path):
    robot = arm(tmp_path, {**MOTOR, "inductance": 0.005}, {"model": "explicit", "delay": 0.5})
    backends = [make(name, robot) for name in HAVING]
    for backend in backends:
        backend.reset(EVERY, home_pose(robot, 3))
        for step in range(60):
            backend.step(home_targets(robot, 3) + 0.5 * math.sin(0.2 * step), 5)
    apart = backends[0].state.robot.joint_pos - backends[1].state.robot.joint_pos
    assert apart.abs().max() < 1e-4


def test_its_gains_are_not_among_those_that_are_scaled(tmp_path):
    robot = arm(tmp_path, MOTOR)
    backend = make("mujoco", robot)
    for each in ([1.0] * 3, [0.5] * 3):
        backend.set_params(EVERY, {"gain_scale": torch.tensor(each)})
        backend.reset(EVERY, home_pose(robot, 3))
        backend.step(home_targets(robot, 3) + 0.1, 1)
        assert backend.state.robot.joint_torque[:, 0].tolist() == pytest.approx([4.0] * 3, abs=1e-3)
    assert "gain_scale" not in make("mujoco", arm(tmp_path, MOTOR, MOTOR)).capabilities.params


def test_backends_without_it_say_so(tmp_path):
    from robolearn.envs.isaaclab.backend import IsaacLabBackend
    from tests.envs.fake_isaaclab import FakeBridge

    robot = arm(tmp_path, MOTOR)
    with pytest.raises(ConfigError) as error:
        IsaacLabBackend(robot, 3, "cpu", bridge=FakeBridge)
    assert "isaaclab" in str(error.value)
    assert "dcmotor" in str(error.value)
    if "differentiable" in INSTALLED:
        with pytest.raises(ConfigError, match="dcmotor"):
            make("differentiable", robot)
