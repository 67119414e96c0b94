"""Tests of the mujoco backend alone."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import mujoco
import numpy as np
import pytest
import torch

from robolearn.envs.mujoco.backend import MujocoBackend, MujocoConfig
from robolearn.envs.robot import Robot
from robolearn.errors import RunFailed
from tests.factories import ROBOTS, home_pose, home_targets, load_robot

EVERY = torch.ones(4, dtype=torch.bool)
ONE = torch.tensor([False, True, False, False])


def test_a_nan_in_one_environment_diverges_only_that_environment_each_time():
    robot = load_robot("humanoid")
    backend = MujocoBackend(robot, 8)
    backend.reset(torch.ones(8, dtype=torch.bool), home_pose(robot, 8))
    backend._qpos[3, 9] = np.nan
    backend.step(home_targets(robot, 8), 2)
    assert backend.state.diverged.tolist() == [i == 3 for i in range(8)]
    assert torch.isfinite(backend.state.robot.joint_pos).all()
    backend.step(home_targets(robot, 8), 2)  # MuJoCo has reset it: reported once
    assert not backend.state.diverged.any()
    backend._qpos[3, 9] = np.nan  # a second time, without Backend.reset in between
    backend.step(home_targets(robot, 8), 2)
    assert backend.state.diverged.tolist() == [i == 3 for i in range(8)]


def in_16_kb(folder: Path) -> Robot:
    """The humanoid with too little memory for a contact: MuJoCo raises an error when a foot meets the ground."""
    path = shutil.copytree(ROBOTS / "humanoid", folder / "humanoid")
    mjcf = path / "humanoid.xml"
    text = mjcf.read_text()
    mjcf.write_text(text.replace("<compiler", '<size memory="18000"/>\n  <compiler', 1))
    return Robot.load(path)


def test_a_mujoco_error_in_one_environment_marks_it_diverged_until_a_reset(tmp_path):
    small, plain = in_16_kb(tmp_path), load_robot("humanoid")
    pose = home_pose(small, 4, height=1.0)
    pose.base_pos[1, 2] -= 0.9
    pose.base_lin_vel[1, 2] = -5.0  # 10 cm above the ground: it meets it in the third substep of 10 ms
    backends = [MujocoBackend(robot, 4) for robot in (small, plain)]
    for backend in backends:
        backend.reset(EVERY, pose)
    failing, reference = backends
    assert not failing.state.diverged.any()
    before = failing.state.clone()

    with pytest.warns(UserWarning, match=r"\(1\).*stack overflow"):
        failing.step(home_targets(small, 4), 5)
    reference.step(home_targets(small, 4), 5)
    assert failing.state.diverged.tolist() == [False, True, False, False]
    assert torch.equal(failing.state.robot.base_pos[1], before.robot.base_pos[1])
    for name, tensor in reference.state.robot.tensors().items():
        assert torch.equal(failing.state.robot.tensors()[name][[0, 2, 3]], tensor[[0, 2, 3]]), name

    failing.step(home_targets(small, 4), 5)  # still failing: marked again, without a second warning
    assert failing.state.diverged.tolist() == [False, True, False, False]
    reference.step(home_targets(small, 4), 5)
    for backend in backends:
        backend.reset(ONE, home_pose(small, 4, height=1.0))
        assert not backend.state.diverged.any()
        backend.step(home_targets(small, 4), 5)
        assert not backend.state.diverged.any()
    for name, tensor in reference.state.robot.tensors().items():
        assert torch.equal(failing.state.robot.tensors()[name], tensor), name


def test_a_mujoco_error_in_a_reset_marks_the_environment_diverged(tmp_path):
    backend = MujocoBackend(in_16_kb(tmp_path), 4)
    backend.reset(EVERY, home_pose(backend.robot, 4, height=1.0))
    with pytest.warns(UserWarning, match="stack overflow"):
        backend.reset(ONE, home_pose(backend.robot, 4, height=-0.01))
    assert backend.state.diverged.tolist() == [False, True, False, False]


def test_a_reset_clears_the_warnings_of_its_environments_only():
    robot = load_robot("humanoid")
    backend = MujocoBackend(robot, 4)
    backend._warning[:, 1, 1] = 1  # a contact that did not fit
    backend.reset(ONE, home_pose(robot, 4))
    assert backend._warning[:, 1, 1].tolist() == [1, 0, 1, 1]
    with pytest.raises(RunFailed, match="size memory"):
        backend.check()
    backend.check()


def test_a_reset_does_not_publish_changes_of_other_environments():
    robot = load_robot("humanoid")
    backend = MujocoBackend(robot, 4)
    backend.reset(EVERY, home_pose(robot, 4, height=1.0))
    backend.step(home_targets(robot, 4), 2)
    before = backend.state.clone()
    backend.push(EVERY, torch.ones(4, 3))
    backend.reset(ONE, home_pose(robot, 4, height=2.0))
    for name, tensor in backend.state.robot.tensors().items():
        assert torch.equal(tensor[[0, 2, 3]], before.robot.tensors()[name][[0, 2, 3]]), name
    assert backend.state.robot.base_pos[1, 2] == pytest.approx(robot.home_height + 2.0)


def test_a_robot_with_feet_and_no_free_base_stands_on_the_floor():
    robot = load_robot("hopper")
    backend = MujocoBackend(robot, 4)
    backend.reset(torch.ones(4, dtype=torch.bool), home_pose(robot, 4))
    for _ in range(80):
        backend.step(home_targets(robot, 4), 2)
    entity = backend.state.robot
    assert entity.foot_force[:, 0, 2].tolist() == pytest.approx([6.4 * 9.81] * 4, rel=0.03)
    assert entity.foot_pos[:, 0, 2].abs().max() < 0.01
    assert entity.base_pos.abs().max() == 0.0


def test_an_absurd_velocity_counts_as_diverged():
    robot = load_robot("humanoid")
    backend, pose = MujocoBackend(robot, 4), home_pose(robot, 4, height=1.0)
    pose.base_ang_vel[2] = 5000.0
    backend.reset(torch.ones(4, dtype=torch.bool), pose)
    backend.step(home_targets(robot, 4), 1)
    assert backend.state.diverged.tolist() == [False, False, True, False]


def test_the_number_of_threads_does_not_change_the_numbers():
    robot = load_robot("humanoid")
    states = []
    for threads in (1, 2):
        backend = MujocoBackend(robot, 8, config=MujocoConfig(threads=threads))
        backend.reset(torch.ones(8, dtype=torch.bool), home_pose(robot, 8))
        for _ in range(20):
            backend.step(home_targets(robot, 8) + 0.1, 2)
        states.append(backend.state.clone())
    for name, tensor in states[0].robot.tensors().items():
        assert torch.equal(tensor, states[1].robot.tensors()[name]), name


def test_close_ends_the_threads_and_can_be_called_twice():
    backend = MujocoBackend(load_robot("cartpole"), 16, config=MujocoConfig(threads=8))
    before = len(os.listdir("/proc/self/task"))
    backend.close()
    assert len(os.listdir("/proc/self/task")) == before - 7  # the caller is the eighth
    backend.close()


def test_device_cuda_is_refused_with_the_fix():
    with pytest.raises(ValueError, match="device=cpu"):
        MujocoBackend(load_robot("cartpole"), 4, device="cuda")


def test_gain_scale_requires_a_position_actuator():
    assert "gain_scale" in MujocoBackend(load_robot("humanoid"), 1).capabilities.params
    assert "gain_scale" not in MujocoBackend(load_robot("cartpole"), 1).capabilities.params


def test_settings_override_the_robots_timestep_and_solver():
    robot = load_robot("humanoid")
    fine = MujocoBackend(robot, 1, config=MujocoConfig(timestep=0.005, solver="newton", iterations=50))
    options = fine.model.opt
    assert (options.timestep, options.iterations) == (0.005, 50)
    assert options.solver == int(mujoco.mjtSolver.mjSOL_NEWTON)
    assert fine.capabilities.timestep == 0.005
    default = MujocoBackend(robot, 1, config=MujocoConfig())
    solver = robot.solver["mujoco"]
    assert (default.model.opt.timestep, default.model.opt.iterations) == (
        solver["timestep"],
        solver["iterations"],
    )


def test_mass_scale_scales_every_body_and_its_inertia():
    robot = load_robot("humanoid")
    backend = MujocoBackend(robot, 3)
    backend.set_params(torch.tensor([False, True, False]), {"mass_scale": torch.full((3,), 1.1)})
    mass = backend._expand("body_mass")
    assert mass[1] == pytest.approx(1.1 * backend.model.body_mass)
    assert backend._expand("body_inertia")[1] == pytest.approx(1.1 * backend.model.body_inertia)
    assert mass[2] == pytest.approx(backend.model.body_mass)
