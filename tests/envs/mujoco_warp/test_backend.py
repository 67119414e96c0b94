"""Tests of the mujoco_warp backend alone, on Warp's CPU device."""

from __future__ import annotations

import mujoco
import numpy as np
import pytest
import torch

pytest.importorskip("mujoco_warp")

import mujoco_warp as mjw

from robolearn.envs import mjcf
from robolearn.envs.contacts import ArraySizes, array_sizes, colliding_pairs
from robolearn.envs.mujoco_warp.backend import CONSTANTS, MujocoWarpBackend, MujocoWarpConfig
from robolearn.envs.randomize import InverseWeights
from robolearn.envs.scene import ROBOT, Scene
from robolearn.errors import RunFailed
from tests.factories import home_pose, home_targets, load_robot


@pytest.fixture(scope="module")
def humanoid():
    return load_robot("humanoid")


def every(n: int) -> torch.Tensor:
    return torch.ones(n, dtype=torch.bool)


def test_a_nan_in_one_environment_diverges_only_that_environment_until_a_reset(humanoid):
    backend = MujocoWarpBackend(humanoid, 4)
    pose, targets = home_pose(humanoid, 4), home_targets(humanoid, 4)
    backend.reset(every(4), pose)
    backend._sim.rows["qpos"][3, 9] = torch.nan
    for _ in range(2):
        backend.step(targets, 2)
        assert backend.state.diverged.tolist() == [False, False, False, True]
    for name, tensor in backend.state.robot.tensors().items():
        assert torch.isfinite(tensor).all(), name  # the State keeps its last values
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


def test_a_reset_of_more_environments_than_one_batch_resets_them_all(humanoid):
    # 79 of 80 environments in batches of 32: three passes, the last with 15 of them.
    backend = MujocoWarpBackend(humanoid, 80)
    assert backend._batch_size == 32
    pose = home_pose(humanoid, 80)
    pose.joint_pos += 0.001 * torch.arange(80)[:, None]
    mask = torch.ones(80, dtype=torch.bool)
    mask[[7]] = False
    before = backend.state.clone()
    backend.reset(mask, pose)
    assert torch.equal(backend.state.robot.joint_pos[mask], pose.joint_pos[mask])
    assert torch.equal(backend.state.robot.joint_pos[7], before.robot.joint_pos[7])
    # Each shows the kinematics of its initial state: a backend with one environment shows the same.
    single = MujocoWarpBackend(humanoid, 1)
    for env in (0, 31, 32, 79):
        single.reset(every(1), type(pose)(**{k: v[env : env + 1] for k, v in vars(pose).items()}))
        for name, tensor in single.state.robot.tensors().items():
            found = backend.state.robot.tensors()[name][env]
            assert torch.allclose(found, tensor[0], atol=1e-3 if name == "foot_force" else 1e-6), (env, name)


@pytest.mark.parametrize("setting", ["nconmax=3", "njmax=12"])  # of eight contacts, four rows each
@pytest.mark.parametrize("by", ["reset", "step"])
def test_an_array_overflow_ends_the_run_and_names_the_setting_to_raise(humanoid, setting, by):
    name, value = setting.split("=")
    backend = MujocoWarpBackend(humanoid, 2, config=MujocoWarpConfig(**{name: int(value)}))
    if by == "reset":
        # The simulation for resets has twice the contacts.
        few = MujocoWarpConfig(nconmax=1) if name == "nconmax" else MujocoWarpConfig(njmax=12)
        backend = MujocoWarpBackend(humanoid, 2, config=few)
        value = "1" if name == "nconmax" else value
    backend.read_at_once = False
    backend.reset(every(2), home_pose(humanoid, 2))
    if by == "step":
        backend._overflows.zero_()
        backend.step(home_targets(humanoid, 2), 1)
    with pytest.raises(RunFailed, match=rf"raise backend\.{name}, now {value}"):
        backend.check()
    backend.reset(every(2), home_pose(humanoid, 2, height=5.0))
    backend.step(home_targets(humanoid, 2), 1)
    backend.check()  # reported once; in the air nothing overflows


def test_a_joint_target_of_nan_diverges_its_environment(humanoid):
    backend, targets = MujocoWarpBackend(humanoid, 3), home_targets(humanoid, 3)
    backend.reset(every(3), home_pose(humanoid, 3))
    targets[1, 4] = torch.nan
    backend.step(targets, 2)
    assert backend.state.diverged.tolist() == [False, True, False]


def test_parameters_change_only_the_masked_environments_and_restore_copies_their_rows(humanoid):
    backend = MujocoWarpBackend(humanoid, 3)
    before = {name: rows.clone() for name, rows in backend._sim.inputs_torch.items()}
    scales = dict.fromkeys(("friction", "gain_scale", "mass_scale"), torch.full((3,), 1.3))
    backend.set_params(torch.tensor([False, True, False]), scales)
    for name in backend._sim.model_rows:
        rows = backend._sim.inputs_torch[name]
        assert torch.equal(rows[[0, 2]], before[name][[0, 2]]), name
        assert not torch.equal(rows[1], before[name][1]), name
    changed = {name: rows.clone() for name, rows in backend._sim.inputs_torch.items()}
    backend.restore(backend.snapshot(), torch.tensor([2, 1, 1]))
    for name in backend._sim.model_rows:
        assert torch.equal(backend._sim.inputs_torch[name], changed[name][[2, 1, 1]]), name


@pytest.mark.parametrize("num_envs", [2, 3, 6])
def test_copies_of_an_environment_stay_equal_in_every_row(humanoid, num_envs):
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


def test_close_can_be_called_twice():
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


def test_inverse_weights_of_tendons_equal_mujocos():
    model = mujoco.MjModel.from_xml_string(TENDON)
    weights = InverseWeights(model)
    model.body_mass *= 1.7
    model.body_inertia *= 1.7
    mujoco.mj_setConst(model, mujoco.MjData(model))
    assert weights.tendons @ (1 / (1.7 + weights.poles)) == pytest.approx(model.tendon_invweight0, rel=1e-9)


def test_array_sizes_use_the_condim_of_an_explicit_pair():
    model = mujoco.MjModel.from_xml_string("""
    <mujoco><worldbody><body name="a"><freejoint/><geom name="a" size=".1" contype="0" conaffinity="0"/></body>
    <body name="b"><freejoint/><geom name="b" size=".1" contype="0" conaffinity="0"/></body></worldbody>
    <contact><pair geom1="a" geom2="b" condim="6"/></contact></mujoco>""")
    assert array_sizes(model, 8) == ArraySizes(1, 2 * (6 - 1))


def test_array_sizes_of_the_humanoid_hold_every_possible_contact(humanoid):
    model = mjcf.build_model(Scene({ROBOT: humanoid}, collisions="light"), "mujoco_warp")
    # Four spheres per foot on the ground; 7 shapes of a leg with 7 of the other; 2 of an arm with 14 of the legs, and
    # with 2 of the other arm. Of the 8 contacts with the ground all fit, and 24 more; four rows per contact (pyramid,
    # condim 3), one per joint with limits.
    assert len(colliding_pairs(model)) == 8 + 7 * 7 + 2 * 2 * 14 + 2 * 2
    assert array_sizes(model, 100) == array_sizes(model, 1) == ArraySizes(8 + 24, 4 * 32 + 21)
    # Fewer contacts on average do not take rows from one environment; more of them have rows.
    assert array_sizes(model, 100, contacts=10) == ArraySizes(10, 4 * 32 + 21)
    assert array_sizes(model, 100, contacts=50) == ArraySizes(50, 4 * 50 + 21)


def test_array_sizes_of_a_robot_that_states_its_own_contacts_hold_them_in_each_environment(humanoid):
    model = mjcf.build_model(Scene({ROBOT: humanoid}, collisions="light"), "mujoco_warp")
    # 8 + 40 contacts of one environment fit into the rows of each; the shared contacts of two hold 24 each on average,
    # and one alone has room for all.
    assert array_sizes(model, 100, self_contacts=40) == ArraySizes(8 + 24, 4 * 48 + 21)
    assert array_sizes(model, 2, self_contacts=40) == ArraySizes(8 + 24, 4 * 48 + 21)
    assert array_sizes(model, 1, self_contacts=40) == ArraySizes(8 + 40, 4 * 48 + 21)
    assert array_sizes(model, 100, self_contacts=4) == ArraySizes(8 + 4, 4 * 12 + 21)
    assert array_sizes(model, 100, rows=77, self_contacts=40) == ArraySizes(8 + 24, 77)


def test_colliding_pairs_are_those_that_mujoco_warp_tests(humanoid):
    model = mjcf.build_model(humanoid, "mujoco_warp")
    expected = {tuple(sorted(map(int, p))) for p in mjw.put_model(model).nxn_geom_pair_filtered.numpy()}
    assert {tuple(sorted(p)) for p in colliding_pairs(model)} == expected


@pytest.mark.parametrize("scale", [0.7, 1.0, 1.4])
def test_inverse_weights_of_a_mass_scale_equal_mujocos(humanoid, scale):
    model = mjcf.build_model(humanoid, "mujoco_warp")
    weights = InverseWeights(model)
    gains = 1 / (scale + weights.poles)
    model.body_mass *= scale
    model.body_inertia *= scale
    mujoco.mj_setConst(model, mujoco.MjData(model))
    assert weights.dofs @ gains == pytest.approx(model.dof_invweight0, rel=1e-9)
    assert weights.bodies @ gains == pytest.approx(model.body_invweight0, rel=1e-9)
    # The mean of the inertia's diagonal, which only older versions store in the model (stat.meaninertia).
    data, inertia = mujoco.MjData(model), np.zeros((model.nv, model.nv))
    mujoco.mj_forward(model, data)
    mujoco.mj_fullM(model, data, inertia)
    slope, rest = weights.mean_inertia
    assert (slope * scale + rest).sum() == pytest.approx(np.trace(inertia) / model.nv, rel=1e-9)


def test_a_mass_scale_changes_every_field_that_depends_on_mass(humanoid):
    backend = MujocoWarpBackend(humanoid, 3)
    backend.set_params(torch.tensor([False, True, False]), {"mass_scale": torch.full((3,), 1.1)})
    nominal, heavy = (mjcf.build_model(humanoid, "mujoco_warp") for _ in range(2))
    heavy.body_mass *= 1.1
    heavy.body_inertia *= 1.1
    mujoco.mj_setConst(heavy, mujoco.MjData(heavy))
    for name in ("body_mass", "body_inertia", "body_subtreemass", "body_invweight0", "dof_invweight0"):
        found = getattr(backend._sim.model, name).numpy()
        assert found[1] == pytest.approx(getattr(heavy, name), rel=1e-5), name
        assert found[0] == pytest.approx(getattr(nominal, name), rel=1e-5), name
        assert found[2] == pytest.approx(getattr(nominal, name), rel=1e-5), name


def test_a_robot_with_force_actuators_has_no_gain_scale():
    robot = load_robot("cartpole")
    backend = MujocoWarpBackend(robot, 2)
    assert backend.capabilities.params == {"friction"}


def test_settings_override_the_robots_solver_and_a_too_short_timestep_is_refused(humanoid):
    fine = MujocoWarpBackend(humanoid, 1, config=MujocoWarpConfig(timestep=0.005, solver="cg", iterations=50))
    assert fine.capabilities.timestep == 0.005
    assert int(fine._sim.model.opt.solver) == int(mujoco.mjtSolver.mjSOL_CG)
    assert fine._sim.model.opt.iterations == 50
    assert float(fine._sim.model.opt.timestep.numpy()[0]) == pytest.approx(0.005)
    with pytest.raises(ValueError, match=r"backend\.timestep=1e-06"):
        MujocoWarpBackend(humanoid, 1, config=MujocoWarpConfig(timestep=1e-6))


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_missing_gpu_is_refused_with_the_fix(humanoid):
    with pytest.raises(ValueError, match=r"device=cuda.*use device=cpu"):
        MujocoWarpBackend(humanoid, 1, device="cuda")


def test_friction_decelerates_a_sliding_robot_as_in_mujoco(humanoid):
    """With half the friction a sliding robot decelerates about half as fast in both simulators."""
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
def test_a_parameter_with_derived_constants_acts_on_a_gpu_as_on_a_cpu(humanoid):
    scene, found = Scene({"robot": humanoid}, params=("payload",)), {}
    for device, count in (("cpu", 2), ("cuda", 600)):
        backend = MujocoWarpBackend(scene, count, device=device)
        mask = every(count).to(device)
        for _ in range(2):
            backend.set_params(mask, {"payload": torch.full((count,), 5.0, device=device)})
        found[device] = {name: backend._sim.inputs_torch[name][-1].cpu() for name in CONSTANTS[:3]}
        backend.close()
    for name, values in found["cpu"].items():
        assert torch.allclose(found["cuda"][name], values, rtol=1e-4, atol=1e-6), name


@pytest.mark.cuda
def test_steps_and_resets_on_a_gpu_do_not_synchronize(humanoid):
    # More than one batch of resets: the loop in the CUDA graph, with device memory allocated before.
    backend = MujocoWarpBackend(humanoid, 600, device="cuda")
    pose = home_pose(humanoid, 600)
    initial = type(pose)(**{name: x.cuda() for name, x in vars(pose).items()})
    mask, targets = every(600).cuda(), home_targets(humanoid, 600).cuda()
    for _ in range(2):
        backend.reset(mask, initial)
        backend.step(targets, 2)
    torch.cuda.set_sync_debug_mode("error")
    try:
        for _ in range(20):
            backend.step(targets, 2)
            backend.push(mask, initial.base_lin_vel)
            backend.set_params(mask, {"mass_scale": torch.ones_like(initial.base_pos[:, 0])})
            backend.reset(mask, initial)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    backend.check()
