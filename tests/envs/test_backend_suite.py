"""The shared suite for every backend, after steps and not only after a reset."""

from __future__ import annotations

from dataclasses import replace

import mujoco
import numpy as np
import pytest
import torch

from robolearn.envs import mjcf
from robolearn.envs.state import State, quat_rotate
from robolearn.errors import ConfigError
from tests.factories import home_pose, home_targets, load_robot

EVERY = torch.ones(4, dtype=torch.bool)


def assert_same_rows(a: State, b: State, rows_a: list[int], rows_b: list[int]) -> None:
    for name, tensor in a.robot.tensors().items():
        assert torch.equal(tensor[rows_a], b.robot.tensors()[name][rows_b]), name


def wiggle(robot, num_envs: int, step: int) -> torch.Tensor:
    """Joint targets that differ by environment, actuator and time."""
    phase = torch.arange(num_envs)[:, None] + 0.7 * torch.arange(len(robot.actuators)) + 0.3 * step
    return home_targets(robot, num_envs) + 0.2 * torch.sin(phase)


class Reference:
    """One float64 MuJoCo simulation with row 0's initial state and joint targets, and the backend's solver options."""

    def __init__(self, robot, pose, backend):
        self.robot, self.model = robot, mjcf.build_model(robot, backend.capabilities.name)
        self.data = mujoco.MjData(self.model)
        if robot.base:
            self.data.qpos[:7] = [*pose.base_pos[0], *pose.base_quat[0]]
            self.data.qvel[:3] = quat_rotate(pose.base_quat[:1], pose.base_lin_vel[:1])[0]
            self.data.qvel[3:6] = pose.base_ang_vel[0]
        for i, name in enumerate(robot.joints):
            joint = self.model.joint(name)
            self.data.qpos[joint.qposadr[0]] = pose.joint_pos[0, i]
            self.data.qvel[joint.dofadr[0]] = pose.joint_vel[0, i]
        for i, actuator in enumerate(robot.actuators):  # a reset holds the joint positions
            if actuator.kind == "position":
                self.data.ctrl[i] = pose.joint_pos[0, robot.actuated[i]]
        mujoco.mj_forward(self.model, self.data)

    def step(self, targets, substeps: int) -> None:
        self.data.ctrl[:] = targets[0].double()
        for _ in range(substeps):
            mujoco.mj_step(self.model, self.data)

    def assert_matches(self, state: State, lag: int, tolerance: float) -> None:
        robot, data, entity = self.robot, self.data, state.robot
        joints = [self.model.joint(name) for name in robot.joints]
        expected = {
            "joint_pos": [data.qpos[j.qposadr[0]] for j in joints],
            "joint_vel": [data.qvel[j.dofadr[0]] for j in joints],
        }
        if robot.base:
            expected["base_pos"], expected["base_quat"] = data.qpos[:3], data.qpos[3:7]
            expected["base_ang_vel"] = data.qvel[3:6]
            world = np.zeros(3)
            mujoco.mju_rotVecQuat(world, data.qvel[:3], data.qpos[3:7] * [1, -1, -1, -1])
            expected["base_lin_vel"] = world
        if lag == 0:
            mujoco.mj_forward(self.model, data)
        expected["joint_torque"] = [data.qfrc_actuator[j.dofadr[0]] for j in joints]
        expected["body_pos"] = np.array([data.body(name).xpos for name in robot.bodies])
        if robot.feet:
            expected["foot_pos"] = np.array([data.site(name).xpos for name in robot.feet])
            for field, sensor in (("foot_lin_vel", "vel"), ("foot_quat", "quat"), ("foot_force", "force")):
                expected[field] = np.array([data.sensor(f"{foot}_{sensor}").data for foot in robot.feet])
        for name, value in expected.items():
            found = getattr(entity, name)[0].double().numpy()
            scale = max(1.0, np.abs(value).max()) if name in ("joint_torque", "foot_force") else 1.0
            assert np.abs(found - np.asarray(value)).max() < tolerance * scale, name


@pytest.mark.parametrize("name", ["cartpole", "walker"])
def test_kinematics_after_a_reset_and_after_steps_match_mujoco(make_backend, name):
    robot = load_robot(make_backend.walker if name == "walker" else name)
    backend = make_backend(robot, 4)
    pose = home_pose(robot, 4)
    if robot.base:
        turned = torch.tensor([0.9, 0.1, -0.2, 0.3])
        pose.base_quat[:] = turned / turned.norm()
        pose.base_lin_vel[:] = torch.tensor([0.3, -0.2, 0.1])
        pose.base_ang_vel[:] = torch.tensor([0.5, 0.4, -0.6])
        pose.base_pos[:, 2] += 1.0  # in the air: no contact, so rounding does not grow
    pose.joint_vel[:] = 0.3
    reference = Reference(robot, pose, backend)
    backend.reset(EVERY, pose)
    reference.assert_matches(backend.state, 0, 1e-4)
    for step in range(5):
        targets = wiggle(robot, 4, step)
        backend.step(targets, 2)
        reference.step(targets, 2)
        reference.assert_matches(backend.state, backend.capabilities.derived_lag, 1e-4)


def test_a_contact_free_rollout_of_100_substeps_matches_mujoco(make_backend):
    robot = load_robot(make_backend.walker)
    backend, pose = make_backend(robot, 4), home_pose(robot, 4, height=20.0)
    reference = Reference(robot, pose, backend)
    backend.reset(EVERY, pose)
    for step in range(50):
        targets = wiggle(robot, 4, step)
        backend.step(targets, 2)
        reference.step(targets, 2)
    reference.assert_matches(backend.state, backend.capabilities.derived_lag, 1e-3)


def test_foot_forces_of_a_standing_robot_sum_to_its_weight(make_backend):
    robot = load_robot(make_backend.walker)
    backend = make_backend(robot, 4)
    backend.reset(EVERY, home_pose(robot, 4))
    for _ in range(75):
        backend.step(home_targets(robot, 4), 2)
    model = mjcf.build_model(robot, "mujoco")
    weight = model.body_mass.sum() * 9.81
    total = backend.state.robot.foot_force.sum(dim=1)
    assert total[:, 2] == pytest.approx([weight] * 4, rel=0.02)
    assert total[:, :2].abs().max() < 0.05 * weight  # up in world axes, not along a foot's axis


def test_base_velocity_is_in_link_axes(make_backend):
    robot = load_robot(make_backend.walker)
    backend, pose = make_backend(robot, 4), home_pose(robot, 4, height=5.0)
    # Rotated by 90 degrees to the left: forward (x) of the link is y of the world.
    pose.base_quat[:] = torch.tensor([0.5**0.5, 0.0, 0.0, 0.5**0.5])
    pose.base_lin_vel[:] = torch.tensor([1.0, 0.0, 0.0])
    backend.reset(EVERY, pose)
    before = backend.state.robot.base_pos.clone()
    assert torch.allclose(backend.state.robot.base_lin_vel, pose.base_lin_vel, atol=1e-6)
    backend.step(home_targets(robot, 4), 1)
    moved = backend.state.robot.base_pos - before
    assert moved[:, 1].numpy() == pytest.approx([backend.capabilities.timestep] * 4, rel=0.05)
    assert moved[:, 0].abs().max() < 1e-3


def test_a_reset_changes_only_the_masked_environments(make_backend):
    robot = load_robot(make_backend.walker)
    backend, pose = make_backend(robot, 4), home_pose(robot, 4)
    backend.reset(EVERY, pose)
    for step in range(5):
        backend.step(wiggle(robot, 4, step), 2)
    before, rows = backend.state.clone(), backend.snapshot()
    backend.reset(torch.tensor([False, True, False, True]), pose)
    assert_same_rows(before, backend.state, [0, 2], [0, 2])
    assert torch.allclose(backend.state.robot.joint_pos[[1, 3]], pose.joint_pos[[1, 3]], atol=1e-6)
    # The next step of the others is the same as without the reset.
    backend.step(wiggle(robot, 4, 5), 2)
    after = backend.state.clone()
    if backend.capabilities.exact_restore:
        backend.restore(rows)
        backend.step(wiggle(robot, 4, 5), 2)
        assert_same_rows(after, backend.state, [0, 2], [0, 2])


def test_a_robot_with_permuted_joints_behaves_the_same(make_backend):
    robot = load_robot(make_backend.walker)
    order = torch.randperm(len(robot.joints), generator=torch.Generator().manual_seed(0)).tolist()
    rank = [robot.actuators[robot.actuated.index(j)] for j in order]
    permuted = replace(
        robot,
        joints=tuple(robot.joints[j] for j in order),
        home=tuple(robot.home[j] for j in order),
        actuators=tuple(rank),
    )
    plain, shuffled = make_backend(robot, 4), make_backend(permuted, 4)
    pose = home_pose(robot, 4, height=3.0)
    pose.joint_pos += 0.01 * torch.arange(len(order))
    shuffled_pose = replace(pose, joint_pos=pose.joint_pos[:, order], joint_vel=pose.joint_vel[:, order])
    plain.reset(EVERY, pose)
    shuffled.reset(EVERY, shuffled_pose)
    assert torch.allclose(shuffled.state.robot.joint_pos, shuffled_pose.joint_pos, atol=1e-6)
    for step in range(10):
        targets = wiggle(robot, 4, step)
        plain.step(targets, 2)
        shuffled.step(targets[:, order], 2)
    for field in ("joint_pos", "joint_vel", "joint_torque"):
        expected, found = getattr(plain.state.robot, field)[:, order], getattr(shuffled.state.robot, field)
        assert torch.allclose(found, expected, atol=1e-3), field


def test_restored_rows_and_their_next_steps_are_bit_equal(make_backend):
    robot = load_robot(make_backend.walker)
    backend = make_backend(robot, 4)
    backend.reset(EVERY, home_pose(robot, 4))
    for step in range(10):
        backend.step(wiggle(robot, 4, step), 2)
    saved, at_save = backend.snapshot(), backend.state.clone()
    for step in range(10, 20):
        backend.step(wiggle(robot, 4, step), 2)
    first = backend.state.clone()
    assert not torch.equal(first.robot.joint_pos, at_save.robot.joint_pos)
    backend.restore(saved)
    assert_same_rows(at_save, backend.state, [0, 1, 2, 3], [0, 1, 2, 3])
    for step in range(10, 20):
        backend.step(wiggle(robot, 4, step), 2)
    if backend.capabilities.exact_restore:
        assert_same_rows(first, backend.state, [0, 1, 2, 3], [0, 1, 2, 3])


def test_copies_of_a_snapshot_row_start_and_stay_bit_equal(make_backend):
    robot = load_robot(make_backend.walker)
    backend = make_backend(robot, 4)
    backend.reset(EVERY, home_pose(robot, 4))
    for step in range(10):
        backend.step(wiggle(robot, 4, step), 2)
    source = backend.state.clone()
    backend.restore(backend.snapshot(), source_rows=torch.tensor([2, 2, 0, 2]))
    assert_same_rows(source, backend.state, [2, 2, 0, 2], [0, 1, 2, 3])
    same_targets = wiggle(robot, 4, 10)[:1].repeat(4, 1)
    for _ in range(5):
        backend.step(same_targets, 2)
    if backend.capabilities.exact_restore:
        assert_same_rows(backend.state, backend.state, [0, 0], [1, 3])
    assert not torch.equal(backend.state.robot.joint_pos[0], backend.state.robot.joint_pos[2])


def test_parameters_change_the_physics_and_are_part_of_a_snapshot(make_backend):
    robot = load_robot(make_backend.walker)
    backend = make_backend(robot, 4)
    if not {"mass_scale", "gain_scale"} <= backend.capabilities.params:
        pytest.skip(f"{backend.capabilities.name} sets {sorted(backend.capabilities.params)}")
    scale = torch.tensor([1.0, 1.2, 1.0, 1.4])
    backend.set_params(torch.tensor([False, True, True, True]), {"mass_scale": scale})
    assert torch.equal(backend.state.params["mass_scale"], scale)
    backend.reset(EVERY, home_pose(robot, 4))
    for _ in range(75):
        backend.step(home_targets(robot, 4), 2)
    model = mjcf.build_model(robot, "mujoco")
    mass = model.body_mass.sum() * scale.double().numpy()
    assert backend.state.robot.foot_force[:, :, 2].sum(dim=1).numpy() == pytest.approx(mass * 9.81, rel=0.03)

    other = make_backend(robot, 4)
    other.restore(backend.snapshot())
    assert torch.equal(other.state.params["mass_scale"], scale)
    backend.step(home_targets(robot, 4), 2)
    other.step(home_targets(robot, 4), 2)
    if backend.capabilities.exact_restore:
        assert_same_rows(backend.state, other.state, [0, 1, 2, 3], [0, 1, 2, 3])


def test_a_push_adds_to_the_velocity_of_the_masked_environments_in_world_axes(make_backend):
    robot = load_robot(make_backend.walker)
    backend, pose = make_backend(robot, 4), home_pose(robot, 4, height=5.0)
    # Rotated by 90 degrees to the left: the world's x is the base's -y.
    pose.base_quat[:] = torch.tensor([0.5**0.5, 0.0, 0.0, 0.5**0.5])
    pose.base_lin_vel[:, 0] = 0.3
    backend.reset(EVERY, pose)
    jump = torch.tensor([0.5, 0.2, 0.0]).repeat(4, 1)
    backend.push(torch.tensor([False, True, False, True]), jump)
    backend.step(home_targets(robot, 4), 1)
    velocity = backend.state.robot.base_lin_vel
    moved = velocity[[1, 3]] - velocity[[0, 2]]
    # In the air only the limbs act on the base, so after one substep it still has the whole jump.
    assert moved[:, :2].numpy() == pytest.approx(np.array([[0.2, -0.5]] * 2), abs=0.02)
    assert velocity[0, 0].item() == pytest.approx(0.3, abs=0.02)


def test_a_push_that_turns_adds_to_the_angular_velocity_about_the_origin_of_the_base(make_backend):
    robot = load_robot(make_backend.walker)
    backend, pose = make_backend(robot, 4), home_pose(robot, 4, height=5.0)
    pose.base_quat[:] = torch.tensor([0.5**0.5, 0.0, 0.0, 0.5**0.5])  # the world's x is the base's -y
    backend.reset(EVERY, pose)
    turn = torch.tensor([0.5, 0.2, 0.3]).repeat(4, 1)
    backend.push(torch.tensor([False, True, False, True]), torch.zeros(4, 3), turn)
    backend.step(home_targets(robot, 4), 1)
    base = backend.state.robot
    turned = base.base_ang_vel[[1, 3]] - base.base_ang_vel[[0, 2]]
    assert turned.numpy() == pytest.approx(np.array([[0.2, -0.5, 0.3]] * 2), abs=0.05)
    # The origin gets no speed from the jump; in one substep the limbs, which swing with the base, pull it a little.
    assert (base.base_lin_vel[[1, 3]] - base.base_lin_vel[[0, 2]]).abs().max() < 0.03


def test_gain_scale_scales_the_torque_of_a_held_target(make_backend):
    robot = load_robot(make_backend.walker)
    backend = make_backend(robot, 4)
    backend.set_params(EVERY, {"gain_scale": torch.tensor([1.0, 0.5, 2.0, 1.0])})
    backend.reset(EVERY, home_pose(robot, 4, height=5.0))
    targets = home_targets(robot, 4)
    targets[:, 0] += 0.01
    backend.step(targets, 1)
    torque = backend.state.robot.joint_torque[:, robot.actuated[0]]
    motor, joint = robot.actuators[0], robot.actuated[0]
    now = backend.state.robot
    # With derived_lag 1 the State shows the torque before the joint has moved.
    lag = backend.capabilities.derived_lag
    moved = (1 - lag) * (now.joint_pos[:, joint] - robot.home[joint])
    expected = motor.kp * (0.01 - moved) - motor.kd * (1 - lag) * now.joint_vel[:, joint]
    assert (torque / expected).numpy() == pytest.approx([1.0, 0.5, 2.0, 1.0], rel=0.2)


def test_saturated_actuators_move_the_robot_as_in_mujoco(make_backend):
    robot = load_robot(make_backend.walker)
    backend, pose = make_backend(robot, 4), home_pose(robot, 4, height=20.0)
    reference = Reference(robot, pose, backend)
    backend.reset(EVERY, pose)
    # Far enough that most motors saturate in the first step, and some in the next ones.
    ahead = torch.where(torch.arange(len(robot.actuators)) % 2 == 0, 1.0, -1.0)
    targets = home_targets(robot, 4) + ahead
    efforts = np.array([actuator.effort for actuator in robot.actuators])
    saturated = 0
    for _ in range(3):
        backend.step(targets, 1)
        reference.step(targets, 1)
        saturated += int((np.abs(reference.data.actuator_force) >= efforts - 1e-6).sum())
        reference.assert_matches(backend.state, backend.capabilities.derived_lag, 1e-3)
    assert saturated >= len(robot.actuators) // 2


def test_gains_set_before_the_first_step_act_in_the_first_step(make_backend):
    robot = load_robot(make_backend.walker)
    backend, pose = make_backend(robot, 4), home_pose(robot, 4, height=20.0)
    if "gain_scale" not in backend.capabilities.params:
        pytest.skip(f"{backend.capabilities.name} sets {sorted(backend.capabilities.params)}")
    reference = Reference(robot, pose, backend)
    reference.model.actuator_gainprm[:, 0] *= 0.7
    reference.model.actuator_biasprm[:, 1:3] *= 0.7
    backend.set_params(EVERY, {"gain_scale": torch.full((4,), 0.7)})
    backend.reset(EVERY, pose)
    saved = backend.snapshot()
    fresh = make_backend(robot, 4)
    fresh.restore(saved)
    for step in range(3):
        targets = wiggle(robot, 4, step)
        for each in (backend, fresh):
            each.step(targets, 1)
        reference.step(targets, 1)
        for each in (backend, fresh):
            reference.assert_matches(each.state, each.capabilities.derived_lag, 1e-3)


def test_a_joint_target_of_nan_diverges_its_environment_until_a_reset(make_backend):
    robot = load_robot(make_backend.walker)
    backend = make_backend(robot, 4)
    backend.reset(EVERY, home_pose(robot, 4, height=5.0))
    targets = home_targets(robot, 4)
    targets[1, 0] = torch.nan
    backend.step(targets, 1)
    assert backend.state.diverged.tolist() == [False, True, False, False]
    assert backend.state.robot.joint_pos[[0, 2, 3]].isfinite().all()
    backend.reset(torch.tensor([False, True, False, False]), home_pose(robot, 4, height=5.0))
    backend.step(home_targets(robot, 4), 1)
    assert not backend.state.diverged.any()
    assert backend.state.robot.joint_torque.isfinite().all()


def test_a_reset_after_a_restore_equals_a_reset_of_a_new_backend(make_backend):
    robot = load_robot(make_backend.walker)
    used, fresh, pose = make_backend(robot, 4), make_backend(robot, 4), home_pose(robot, 4)
    used.reset(EVERY, pose)
    for step in range(10):
        used.step(wiggle(robot, 4, step), 2)
    used.restore(used.snapshot())
    used.reset(EVERY, pose)
    fresh.reset(EVERY, pose)
    assert_same_rows(used.state, fresh.state, [0, 1, 2, 3], [0, 1, 2, 3])
    for step in range(3):
        for backend in (used, fresh):
            backend.step(wiggle(robot, 4, step), 2)
    if used.capabilities.exact_restore:
        assert_same_rows(used.state, fresh.state, [0, 1, 2, 3], [0, 1, 2, 3])


def test_a_reset_to_the_home_pose_has_zero_torques(make_backend):
    robot = load_robot(make_backend.walker)
    backend = make_backend(robot, 4)
    backend.reset(EVERY, home_pose(robot, 4))
    assert backend.state.robot.joint_torque.abs().max() < 1e-3


def test_an_unknown_parameter_is_refused_by_name(make_backend):
    backend = make_backend(load_robot("cartpole"), 4)
    with pytest.raises(ConfigError, match="gravity"):
        backend.set_params(EVERY, {"gravity": torch.ones(4)})
