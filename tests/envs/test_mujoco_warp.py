"""What only the mujoco_warp backend promises, on Warp's CPU device."""

from __future__ import annotations

import mujoco
import numpy as np
import pytest
import torch

pytest.importorskip("mujoco_warp")

import mujoco_warp as mjw

from robolearn.envs import mjcf
from robolearn.envs.contacts import Room, colliding_pairs, room_for
from robolearn.envs.mujoco_warp import MujocoWarpBackend, MujocoWarpConfig
from robolearn.envs.randomize import InverseWeights
from robolearn.errors import RunFailed
from tests.factories import home_pose, home_targets, load_robot


@pytest.fixture(scope="module")
def humanoid():
    return load_robot("humanoid")


def every(n: int) -> torch.Tensor:
    return torch.ones(n, dtype=torch.bool)


def test_a_nan_in_one_robots_state_diverges_that_robot_only_until_it_is_reset(humanoid):
    backend = MujocoWarpBackend(humanoid, 4)
    pose, targets = home_pose(humanoid, 4), home_targets(humanoid, 4)
    backend.reset(every(4), pose)
    backend._sim.rows["qpos"][3, 9] = torch.nan
    for _ in range(2):
        backend.step(targets, 2)
        assert backend.state.diverged.tolist() == [False, False, False, True]
    for name, tensor in backend.state.robot.tensors().items():
        assert torch.isfinite(tensor).all(), name  # it keeps what it showed last
    backend.reset(torch.tensor([False, False, False, True]), pose)
    assert not backend.state.diverged.any()
    backend.step(targets, 2)
    assert not backend.state.diverged.any()


def test_an_absurd_velocity_counts_as_diverged(humanoid):
    backend, pose = MujocoWarpBackend(humanoid, 4), home_pose(humanoid, 4, height=1.0)
    pose.base_ang_vel[2] = 5000.0
    backend.reset(every(4), pose)
    backend.step(home_targets(humanoid, 4), 1)
    assert backend.state.diverged.tolist() == [False, False, True, False]


def test_more_resets_than_fit_one_group_are_all_made(humanoid):
    # 80 environments in groups of 32: three passes, the last with 15 of them.
    backend = MujocoWarpBackend(humanoid, 80)
    assert backend._group == 32
    pose = home_pose(humanoid, 80)
    pose.joint_pos += 0.001 * torch.arange(80)[:, None]
    mask = torch.ones(80, dtype=torch.bool)
    mask[[7]] = False
    before = backend.state.clone()
    backend.reset(mask, pose)
    assert torch.equal(backend.state.robot.joint_pos[mask], pose.joint_pos[mask])
    assert torch.equal(backend.state.robot.joint_pos[7], before.robot.joint_pos[7])
    # Each shows the kinematics of its own pose: in a group of one it would show the same.
    single = MujocoWarpBackend(humanoid, 1)
    for env in (0, 31, 32, 79):
        single.reset(every(1), type(pose)(**{k: v[env : env + 1] for k, v in vars(pose).items()}))
        for name, tensor in single.state.robot.tensors().items():
            ours = backend.state.robot.tensors()[name][env]
            assert torch.allclose(ours, tensor[0], atol=1e-3 if name == "foot_force" else 1e-6), (env, name)


def test_contacts_that_do_not_fit_end_the_run_with_what_to_set(humanoid):
    targets = home_targets(humanoid, 2)
    contacts = MujocoWarpBackend(humanoid, 2, config=MujocoWarpConfig(nconmax=3))  # of eight, four a foot
    contacts.reset(every(2), home_pose(humanoid, 2))
    with pytest.raises(RunFailed, match=r"no room for all contacts .*raise backend.nconmax, now 3"):
        contacts.step(targets, 1)
    rows = MujocoWarpBackend(humanoid, 2, config=MujocoWarpConfig(njmax=12))  # four a contact
    rows.reset(every(2), home_pose(humanoid, 2))
    with pytest.raises(RunFailed, match=r"no room for all constraints .*raise backend.njmax, now 12"):
        rows.step(targets, 1)
    contacts.reset(every(2), home_pose(humanoid, 2, height=5.0))
    contacts.step(targets, 1)  # told once; in the air there is nothing to tell


def test_room_for_the_humanoid_is_all_that_its_feet_can_ever_need(humanoid):
    model = mjcf.build_model(humanoid, "mujoco_warp")
    # Four spheres a foot on the ground, and sphere on sphere between the feet: 8 + 16 pairs of one contact; four
    # rows a contact (pyramid, condim 3), one a joint with limits.
    assert len(colliding_pairs(model)) == 8 + 16
    assert room_for(model) == Room(24, 4 * 24 + 21)
    assert room_for(model, contacts=10) == Room(10, 4 * 10 + 21)


def test_pairs_that_can_touch_are_those_that_mujoco_warp_tests(humanoid):
    model = mjcf.build_model(humanoid, "mujoco_warp")
    theirs = {tuple(sorted(map(int, p))) for p in mjw.put_model(model).nxn_geom_pair_filtered.numpy()}
    assert {tuple(sorted(p)) for p in colliding_pairs(model)} == theirs


@pytest.mark.parametrize("scale", [0.7, 1.0, 1.4])
def test_inverse_weights_for_a_mass_scale_are_those_that_mujoco_computes(humanoid, scale):
    model = mjcf.build_model(humanoid, "mujoco_warp")
    weights = InverseWeights(model)
    gains = 1 / (scale + weights.poles)
    model.body_mass *= scale
    model.body_inertia *= scale
    mujoco.mj_setConst(model, mujoco.MjData(model))
    assert weights.dofs @ gains == pytest.approx(model.dof_invweight0, rel=1e-9)
    assert weights.bodies @ gains == pytest.approx(model.body_invweight0, rel=1e-9)
    slope, rest = weights.mean_inertia
    assert slope * scale + rest == pytest.approx(model.stat.meaninertia, rel=1e-9)


def test_a_mass_scale_reaches_every_field_that_depends_on_it(humanoid):
    backend = MujocoWarpBackend(humanoid, 3)
    backend.set_params(torch.tensor([False, True, False]), {"mass_scale": torch.full((3,), 1.1)})
    nominal, heavy = (mjcf.build_model(humanoid, "mujoco_warp") for _ in range(2))
    heavy.body_mass *= 1.1
    heavy.body_inertia *= 1.1
    mujoco.mj_setConst(heavy, mujoco.MjData(heavy))
    for name in ("body_mass", "body_inertia", "body_subtreemass", "body_invweight0", "dof_invweight0"):
        ours = getattr(backend._sim.model, name).numpy()
        assert ours[1] == pytest.approx(getattr(heavy, name), rel=1e-5), name
        assert ours[0] == pytest.approx(getattr(nominal, name), rel=1e-5), name
        assert ours[2] == pytest.approx(getattr(nominal, name), rel=1e-5), name


def test_a_force_actuators_gain_is_not_scaled():
    robot = load_robot("cartpole")
    backend = MujocoWarpBackend(robot, 2)
    assert backend.capabilities.params == {"friction"}


def test_solver_options_can_be_asked_for_and_a_solver_it_lacks_is_not_offered(humanoid):
    fine = MujocoWarpBackend(humanoid, 1, config=MujocoWarpConfig(timestep=0.005, solver="cg", iterations=50))
    assert fine.capabilities.timestep == 0.005
    assert int(fine._sim.model.opt.solver) == int(mujoco.mjtSolver.mjSOL_CG)
    assert fine._sim.model.opt.iterations == 50
    assert float(fine._sim.model.opt.timestep.numpy()[0]) == pytest.approx(0.005)
    with pytest.raises(ValueError, match=r"below 0\.0001 s"):
        MujocoWarpBackend(humanoid, 1, config=MujocoWarpConfig(timestep=1e-6))


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_gpu_that_is_not_there_is_refused_with_the_fix(humanoid):
    with pytest.raises(ValueError, match="no CUDA GPU was found; use device=cpu"):
        MujocoWarpBackend(humanoid, 1, device="cuda")


def test_its_parameters_change_the_same_physics_as_mujocos(humanoid):
    """A sliding robot: with half the friction it decelerates half as fast, on either simulator."""
    from robolearn.envs.mujoco import MujocoBackend

    slowed = []
    for cls in (MujocoBackend, MujocoWarpBackend):
        backend = cls(humanoid, 2)
        backend.set_params(every(2), {"friction": torch.tensor([0.2, 0.4])})
        pose = home_pose(humanoid, 2)
        pose.base_lin_vel[:, 0] = 1.0
        backend.reset(every(2), pose)
        for _ in range(10):
            backend.step(home_targets(humanoid, 2), 1)
        slowed.append(1.0 - backend.state.robot.base_lin_vel[:, 0].numpy())
    assert slowed[1] == pytest.approx(slowed[0], abs=0.02)
    assert np.all(slowed[0][1] > 1.3 * slowed[0][0])


@pytest.mark.cuda
def test_a_step_on_a_gpu_waits_for_nothing(humanoid):
    backend = MujocoWarpBackend(humanoid, 64, device="cuda")
    pose = home_pose(humanoid, 64)
    there = type(pose)(**{name: x.cuda() for name, x in vars(pose).items()})
    mask, targets = every(64).cuda(), home_targets(humanoid, 64).cuda()
    for _ in range(2):
        backend.reset(mask, there)
        backend.step(targets, 2)
    torch.cuda.set_sync_debug_mode("error")
    try:
        for _ in range(20):
            backend.step(targets, 2)
            backend.push(mask, there.base_lin_vel)
            backend.set_params(mask, {"mass_scale": torch.ones_like(there.base_pos[:, 0])})
            backend.reset(mask, there)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    backend.check()
