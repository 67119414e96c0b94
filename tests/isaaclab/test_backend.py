"""Tests of the isaaclab backend alone, with Isaac Lab 3.

They take about a minute, and one more if kernels have to be compiled first.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import mujoco
import numpy as np
import pytest
import torch

from robolearn.envs import mjcf
from robolearn.envs.state import quat_rotate_inverse
from robolearn.errors import ConfigError, RunFailed
from tests.factories import home_pose, home_targets, load_robot

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("isaaclab_newton") is None, reason="Isaac Lab 3 is not installed"
)


@pytest.fixture
def make():
    """(robot's name, num_envs, settings) -> backend; closed after the test."""
    from robolearn.envs.isaaclab.backend import IsaacLabBackend, IsaacLabConfig

    made = []

    def build(name: str, num_envs: int = 4, **settings):
        made.append(IsaacLabBackend(load_robot(name), num_envs, "cpu", IsaacLabConfig(**settings)))
        return made[-1]

    yield build
    for backend in made:
        backend.close()


def every(n: int) -> torch.Tensor:
    return torch.ones(n, dtype=torch.bool)


def test_a_cartpole_matches_mujoco_for_200_steps(make):
    robot, backend = load_robot("cartpole"), make("cartpole")
    pose = home_pose(robot, 4)
    pose.joint_pos[:, 1] = torch.tensor([0.1, -0.2, 0.3, 3.0])
    backend.reset(every(4), pose)
    model = mjcf.build_model(robot, "isaaclab")
    plain = [mujoco.MjData(model) for _ in range(4)]
    for row, data in enumerate(plain):
        data.qpos[:] = pose.joint_pos[row]
    worst = 0.0
    for step in range(200):
        force = 3.0 * torch.sin(torch.arange(4) + 0.1 * step)[:, None]
        backend.step(force, 1)
        for row, data in enumerate(plain):
            data.ctrl[:] = force[row]
            mujoco.mj_step(model, data)
            found = torch.cat([backend.state.robot.joint_pos[row], backend.state.robot.joint_vel[row]])
            worst = max(worst, np.abs(found.numpy() - np.concatenate([data.qpos, data.qvel])).max())
    assert worst < 1e-4, worst


@pytest.mark.parametrize(("name", "seconds"), [("humanoid", 1.0), ("ant", 2.0), ("hopper", 1.0)])
def test_a_standing_robots_feet_carry_its_weight(make, name, seconds):
    robot, backend = load_robot(name), make(name)
    backend.reset(every(4), home_pose(robot, 4))
    for _ in range(round(seconds / backend.capabilities.timestep / 2)):
        backend.step(home_targets(robot, 4), 2)
    weight = float(backend.model.body_mass.sum()) * 9.81
    total = backend.state.robot.foot_force.sum(dim=1)
    assert total[:, 2].tolist() == pytest.approx([weight] * 4, rel=0.01)
    backend.check()


def test_after_a_reset_the_foot_forces_are_those_of_the_initial_state(make):
    robot, backend = load_robot("humanoid"), make("humanoid")
    pose = home_pose(robot, 4, height=-0.002)  # 2 mm into the ground
    backend.reset(every(4), pose)
    data = mujoco.MjData(backend.model)
    data.qpos[:] = mjcf.home_qpos(robot, backend.model)
    data.qpos[2] -= 0.002
    data.ctrl[:] = home_targets(robot, 1)[0]
    mujoco.mj_forward(backend.model, data)
    expected = np.array([data.sensor(f"{foot}_force").data for foot in robot.feet])
    assert expected[0, 2] > 10
    found = backend.state.robot.foot_force[2].numpy()
    assert np.abs(found - expected).max() < 0.01 * np.abs(expected).max()


def test_a_partial_reset_changes_neither_the_state_nor_the_next_steps_of_the_others(make):
    robot, backend = load_robot("humanoid"), make("humanoid", 6)
    pose = home_pose(robot, 6)
    backend.reset(every(6), pose)
    targets = home_targets(robot, 6) + 0.1 * torch.arange(6)[:, None]
    for _ in range(5):
        backend.step(targets, 2)
    start = backend.snapshot()
    for _ in range(5):
        backend.step(targets, 2)
    undisturbed = backend.state.clone()
    backend.restore(start)
    others, mask = [0, 2, 3, 5], torch.tensor([False, True, False, False, True, False])
    before = backend.state.clone()
    backend.reset(mask, pose)
    for name, tensor in backend.state.robot.tensors().items():
        assert torch.equal(tensor[others], before.robot.tensors()[name][others]), name
    for _ in range(5):
        backend.step(targets, 2)
    for name, tensor in backend.state.robot.tensors().items():
        assert torch.equal(tensor[others], undisturbed.robot.tensors()[name][others]), name
    assert not torch.equal(backend.state.robot.joint_pos[1], undisturbed.robot.joint_pos[1])


def test_a_non_finite_environment_is_diverged_until_a_reset(make):
    robot, backend = load_robot("humanoid"), make("humanoid")
    pose, targets = home_pose(robot, 4), home_targets(robot, 4)
    backend.reset(every(4), pose)
    backend.step(targets, 2)
    backend._bridge.rows()["joint_q"][1] = torch.nan
    backend.step(targets, 2)
    assert backend.state.diverged.tolist() == [False, True, False, False]
    assert not backend.state.robot.joint_pos[1].isfinite().any()
    backend.reset(torch.tensor([True, True, False, False]), pose)
    for _ in range(10):
        backend.step(targets, 2)
    assert not backend.state.diverged.any()
    for (
        name,
        tensor,
    ) in backend.state.robot.tensors().items():  # equal to an environment that was always finite
        assert torch.equal(tensor[0], tensor[1]), name


def test_newtons_model_has_the_masses_and_options_of_the_mjcf(make):
    # From humanoid.xml: 5.2 + 2 (3.8 + 2.3 + 0.8) + 10.2 + 1.6 + 2 (1.4 + 0.8 + 0.3) = 35.8 kg; knees have an
    # armature of 0.02, ankles 0.012, arms 0.008, all joints a damping of 0.2. The backend compares the rest.
    backend = make("humanoid")
    solver_model = backend._bridge.solver_model
    assert solver_model.body_mass.sum() == pytest.approx(35.8, rel=1e-6)
    assert sorted(set(np.round(solver_model.dof_armature[6:], 4))) == [0.008, 0.012, 0.02]
    assert set(np.round(solver_model.dof_damping[6:], 4)) == {0.2}
    assert set(solver_model.dof_frictionloss) == {0.0}
    assert solver_model.geom_friction[:, 0] == pytest.approx(
        [0.8] * 24
    )  # 15 bodies, eight spheres and the floor
    assert solver_model.opt.integrator == mujoco.mjtIntegrator.mjINT_IMPLICITFAST
    assert (solver_model.opt.iterations, solver_model.opt.ls_iterations) == (6, 12)


def test_a_reset_keeps_the_joint_order(make):
    robot, backend = load_robot("humanoid"), make("humanoid", 2)
    pose = home_pose(robot, 2, height=2.0)
    pose.joint_pos += 0.01 * torch.arange(len(robot.joints))
    pose.joint_vel += 0.1 * torch.arange(len(robot.joints))
    backend.reset(every(2), pose)
    assert torch.allclose(backend.state.robot.joint_pos, pose.joint_pos, atol=1e-6)
    assert torch.allclose(backend.state.robot.joint_vel, pose.joint_vel, atol=1e-5)


def test_backends_can_be_created_again_after_close_and_several_at_once(make):
    robot = load_robot("cartpole")
    pose = home_pose(robot, 4)
    pose.joint_pos[:, 1] = 0.2

    def drive(backend) -> torch.Tensor:
        backend.step(torch.ones(4, 1), 3)
        return backend.state.robot.joint_pos.clone()

    alone = make("cartpole")
    alone.reset(every(4), pose)
    expected = [drive(alone) for _ in range(4)]
    alone.close()
    for _ in range(2):
        again = make("cartpole")
        again.reset(every(4), pose)
        assert torch.equal(drive(again), expected[0])
        again.close()
    one, other, third = make("cartpole"), make("humanoid"), make("cartpole")
    one.reset(every(4), pose)
    third.reset(every(4), pose)
    standing = home_targets(load_robot("humanoid"), 4)
    for step in range(2):  # taking turns does not change the results
        assert torch.equal(drive(one), expected[step])
        other.step(standing, 1)
        assert torch.equal(drive(third), expected[step])
    other.close()
    for step in (2, 3):
        assert torch.equal(drive(one), expected[step])
        assert torch.equal(drive(third), expected[step])


def test_an_external_simulation_context_is_refused_and_kept(make):
    from isaaclab.sim import SimulationCfg, SimulationContext
    from isaaclab_newton.physics import NewtonCfg

    backend, closed = make("cartpole"), make("cartpole")
    closed.close()
    external = SimulationContext(SimulationCfg(device="cpu", physics=NewtonCfg()))
    try:
        with pytest.raises(ConfigError, match="clear_instance"):
            make("cartpole")
        with pytest.raises(ConfigError, match="clear_instance"):
            backend.step(torch.zeros(4, 1), 1)
        assert SimulationContext.instance() is external
    finally:
        SimulationContext.clear_instance()
    backend.step(torch.ones(4, 1), 1)  # continues afterwards
    assert backend.state.robot.joint_vel[0, 0] > 0


def test_a_robot_slides_further_with_less_friction(make):
    robot, backend = load_robot("ant"), make("ant", 2)
    backend.set_params(every(2), {"friction": torch.tensor([0.8, 0.1])})
    pose = home_pose(robot, 2)
    pose.base_lin_vel[:, 0] = 1.0
    backend.reset(every(2), pose)
    for _ in range(100):
        backend.step(home_targets(robot, 2), 2)
    # On a plane a slide of 1 m/s ends after v^2 / (2 mu g): 0.06 m with 0.8 and 0.51 m with 0.1.
    rough, smooth = backend.state.robot.base_pos[:, 0].tolist()
    assert rough < 0.15
    assert 0.4 < smooth < 0.6


def test_an_array_overflow_ends_the_run_and_names_the_setting_to_raise(make):
    robot, backend = load_robot("humanoid"), make("humanoid", 4, nconmax=1, njmax=60)
    backend.reset(every(4), home_pose(robot, 4))
    backend.step(home_targets(robot, 4), 2)
    with pytest.raises(RunFailed, match=r"backend\.nconmax, now 1"):
        backend.check()


def test_base_velocity_is_that_of_the_links_origin_not_its_centre_of_mass(make):
    # The pelvis's centre of mass is 25 mm above its origin: turning about y with 2 rad/s moves it by 50 mm/s.
    robot, backend = load_robot("humanoid"), make("humanoid", 2)
    pose = home_pose(robot, 2, height=1.0)
    pose.base_ang_vel[:, 1] = 2.0
    backend.reset(every(2), pose)
    assert backend.state.robot.base_lin_vel.abs().max() < 1e-5
    backend.step(home_targets(robot, 2), 1)
    now = backend.state.robot
    down = quat_rotate_inverse(now.base_quat, torch.tensor([[0.0, 0.0, -1.0]] * 2))
    assert down[:, 0].tolist() == pytest.approx([np.sin(2 * backend.capabilities.timestep)] * 2, rel=0.1)


SILENT = """
import socket

def never(*words):
    raise AssertionError("network access")

socket.socket.connect = socket.socket.connect_ex = socket.create_connection = socket.getaddrinfo = never
import torch
from robolearn.envs.isaaclab.backend import IsaacLabBackend
from tests.factories import home_pose, home_targets, load_robot

robot = load_robot("ant")
backend = IsaacLabBackend(robot, 2)
backend.reset(torch.ones(2, dtype=torch.bool), home_pose(robot, 2))
backend.step(home_targets(robot, 2), 2)
backend.check()
backend.close()
"""


def test_it_uses_no_network_and_prints_nothing(tmp_path):
    root = Path(__file__).parents[2]
    import warp

    # An empty cache, so that the robot is converted here; compiled kernels are reused.
    where = {**os.environ, "XDG_CACHE_HOME": str(tmp_path), "PYTHONPATH": str(root)}
    where["WARP_CACHE_PATH"] = str(Path(warp.config.kernel_cache_dir).parent)
    done = subprocess.run(
        [sys.executable, "-c", SILENT], capture_output=True, text=True, env=where, cwd=tmp_path, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert len(list((tmp_path / "robolearn" / "usd").iterdir())) == 2  # the ant and the ground
    assert sorted(path.name for path in tmp_path.iterdir()) == ["robolearn"]


def test_a_robot_is_converted_once(tmp_path, monkeypatch):
    from robolearn.envs.isaaclab import usd

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    first = usd.robot_usd(load_robot("cartpole"))
    stamp = first.stat().st_mtime_ns
    assert usd.robot_usd(load_robot("cartpole")) == first
    assert first.stat().st_mtime_ns == stamp
