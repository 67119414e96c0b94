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
from robolearn.envs.mujoco_warp.backend import MujocoWarpBackend, MujocoWarpConfig
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


@pytest.mark.parametrize("asked", ["nconmax=3", "njmax=12"])  # of eight contacts, four rows each
@pytest.mark.parametrize("by", ["reset", "step"])
def test_what_does_not_fit_ends_the_run_with_what_to_set(humanoid, asked, by):
    name, value = asked.split("=")
    backend = MujocoWarpBackend(humanoid, 2, config=MujocoWarpConfig(**{name: int(value)}))
    if by == "reset":
        # Twice the contacts have room where robots start: all of them may stand.
        few = MujocoWarpConfig(nconmax=1) if name == "nconmax" else MujocoWarpConfig(njmax=12)
        backend = MujocoWarpBackend(humanoid, 2, config=few)
        value = "1" if name == "nconmax" else value
    backend.read_at_once = False
    backend.reset(every(2), home_pose(humanoid, 2))
    if by == "step":
        backend._overflows.zero_()
        backend.step(home_targets(humanoid, 2), 1)
    with pytest.raises(RunFailed, match=f"no room for all .* raise backend.{name}, now {value}"):
        backend.check()
    backend.reset(every(2), home_pose(humanoid, 2, height=5.0))
    backend.step(home_targets(humanoid, 2), 1)
    backend.check()  # told once; in the air there is nothing to tell


def test_a_target_that_is_no_number_diverges_its_robot(humanoid):
    backend, targets = MujocoWarpBackend(humanoid, 3), home_targets(humanoid, 3)
    backend.reset(every(3), home_pose(humanoid, 3))
    targets[1, 4] = torch.nan
    backend.step(targets, 2)
    assert backend.state.diverged.tolist() == [False, True, False]


def test_parameters_reach_their_own_environments_and_a_restore_changes_nothing_else(humanoid):
    backend = MujocoWarpBackend(humanoid, 3)
    before = {name: rows.clone() for name, rows in backend._sim.everything_torch.items()}
    scales = dict.fromkeys(("friction", "gain_scale", "mass_scale"), torch.full((3,), 1.3))
    backend.set_params(torch.tensor([False, True, False]), scales)
    for name in backend._sim.model_rows:
        rows = backend._sim.everything_torch[name]
        assert torch.equal(rows[[0, 2]], before[name][[0, 2]]), name
        assert not torch.equal(rows[1], before[name][1]), name
    changed = {name: rows.clone() for name, rows in backend._sim.everything_torch.items()}
    backend.restore(backend.snapshot(), torch.tensor([2, 1, 1]))
    for name in backend._sim.model_rows:
        assert torch.equal(backend._sim.everything_torch[name], changed[name][[2, 1, 1]]), name


@pytest.mark.parametrize("num_envs", [2, 3, 6])
def test_copies_of_an_environment_stay_equal_whatever_their_row(humanoid, num_envs):
    backend = MujocoWarpBackend(humanoid, num_envs)
    masses = torch.linspace(0.9, 1.1, num_envs)
    backend.set_params(every(num_envs), {"mass_scale": masses})
    backend.reset(every(num_envs), home_pose(humanoid, num_envs))
    backend.step(home_targets(humanoid, num_envs), 2)
    backend.restore(backend.snapshot(), torch.ones(num_envs, dtype=torch.long))
    for _ in range(10):
        backend.step(home_targets(humanoid, num_envs) + 0.1, 2)
    for name, tensor in backend.state.robot.tensors().items():
        assert torch.equal(tensor, tensor[:1].expand_as(tensor)), name


def test_it_can_be_closed_twice():
    backend = MujocoWarpBackend(load_robot("cartpole"), 2)
    backend.close()
    backend.close()


TENDON = """
<mujoco>
  <worldbody>
    <body name="base"><freejoint/><geom size=".1" mass="2"/>
      <body pos=".2 0 0"><joint name="a" axis="0 1 0"/><geom size=".05" pos=".2 0 0" mass="1"/>
        <body pos=".3 0 0"><joint name="b" axis="0 1 0" armature=".01"/><geom size=".05" pos=".2 0 0" mass=".5"/></body>
      </body>
    </body>
  </worldbody>
  <tendon><fixed><joint joint="a" coef="1"/><joint joint="b" coef="-2"/></fixed></tendon>
</mujoco>
"""


def test_inverse_weights_of_tendons_are_mujocos_too():
    model = mujoco.MjModel.from_xml_string(TENDON)
    weights = InverseWeights(model)
    model.body_mass *= 1.7
    model.body_inertia *= 1.7
    mujoco.mj_setConst(model, mujoco.MjData(model))
    assert weights.tendons @ (1 / (1.7 + weights.poles)) == pytest.approx(model.tendon_invweight0, rel=1e-9)


def test_a_pairs_own_dimension_counts_for_the_room():
    model = mujoco.MjModel.from_xml_string("""
    <mujoco><worldbody><body name="a"><freejoint/><geom name="a" size=".1" contype="0" conaffinity="0"/></body>
    <body name="b"><freejoint/><geom name="b" size=".1" contype="0" conaffinity="0"/></body></worldbody>
    <contact><pair geom1="a" geom2="b" condim="6"/></contact></mujoco>""")
    assert room_for(model) == Room(1, 2 * (6 - 1))


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
    # The mean of the inertia's diagonal, which only older versions keep in the model (stat.meaninertia).
    data, inertia = mujoco.MjData(model), np.zeros((model.nv, model.nv))
    mujoco.mj_forward(model, data)
    mujoco.mj_fullM(model, data, inertia)
    slope, rest = weights.mean_inertia
    assert slope * scale + rest == pytest.approx(np.trace(inertia) / model.nv, rel=1e-9)


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
    from robolearn.envs.mujoco.backend import MujocoBackend

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
    # More than one group of resets: the loop in a graph, on memory made before.
    backend = MujocoWarpBackend(humanoid, 600, device="cuda")
    pose = home_pose(humanoid, 600)
    there = type(pose)(**{name: x.cuda() for name, x in vars(pose).items()})
    mask, targets = every(600).cuda(), home_targets(humanoid, 600).cuda()
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
