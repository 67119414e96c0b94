"""The conversion between conventions, with numbers worked out by hand, and the backend over a fake of Isaac Lab.

These tests do not need Isaac Lab, so a wrong convention fails on every machine. Tests with Isaac Lab are in
tests/isaaclab.
"""

from __future__ import annotations

from dataclasses import replace

import mujoco
import numpy as np
import pytest
import torch

from robolearn.envs import mjcf
from robolearn.envs.isaaclab import convention
from robolearn.envs.isaaclab.backend import IsaacLabBackend, IsaacLabConfig
from robolearn.envs.robot import Robot
from robolearn.envs.state import InitialState, quat_multiply, quat_rotate
from robolearn.errors import ConfigError, RunFailed
from tests.envs.fake_isaaclab import ROBOT, YAML, FakeBridge, Overflow

QUARTER = 0.5**0.5
CPU = torch.device("cpu")


@pytest.fixture
def strider(tmp_path):
    (tmp_path / "strider.xml").write_text(ROBOT)
    (tmp_path / "robot.yaml").write_text(YAML)
    return Robot.load(tmp_path)


@pytest.fixture
def backend(strider):
    return IsaacLabBackend(strider, 3, "cpu", bridge=FakeBridge)


EVERY = torch.ones(3, dtype=torch.bool)


def tilted(n: int = 3) -> InitialState:
    """Every environment in the air, rotated, moving; joints in the robot's order: drag, turn, swing."""
    quat = torch.tensor([0.9, 0.1, -0.2, 0.3])
    return InitialState(
        base_pos=torch.tensor([0.1, -0.2, 1.5]).repeat(n, 1),
        base_quat=(quat / quat.norm()).repeat(n, 1),
        base_lin_vel=torch.tensor([0.3, -0.2, 0.1]).repeat(n, 1),
        base_ang_vel=torch.tensor([0.5, 0.4, -0.6]).repeat(n, 1),
        joint_pos=torch.tensor([0.3, -0.4, 0.5]).repeat(n, 1),
        joint_vel=torch.tensor([1.0, -2.0, 3.0]).repeat(n, 1),
    )


# ------------------------------------------------------------------ the functions


def test_quaternions_convert_between_wxyz_and_xyzw():
    wxyz = torch.tensor([[1.0, 2.0, 3.0, 4.0]])
    assert convention.to_xyzw(wxyz).tolist() == [[2.0, 3.0, 4.0, 1.0]]
    assert convention.to_wxyz(torch.tensor([[2.0, 3.0, 4.0, 1.0]])).tolist() == [[1.0, 2.0, 3.0, 4.0]]


def test_columns_are_reordered_by_name_in_both_directions():
    order = convention.Order(["hip", "knee"], ["knee", "tail", "hip"], CPU)
    assert order.from_isaaclab(torch.tensor([[10.0, 20.0, 30.0]])).tolist() == [[30.0, 10.0]]
    assert order.to_isaaclab(torch.tensor([[1.0, 2.0]])).tolist() == [[2.0, 0.0, 1.0]]


def test_a_name_that_isaac_lab_lacks_or_has_twice_is_refused():
    with pytest.raises(ValueError, match="'toe' 0 times"):
        convention.Order(["toe"], ["hip", "hip"], CPU)
    with pytest.raises(ValueError, match="'hip' 2 times"):
        convention.Order(["hip"], ["hip", "hip"], CPU)


def test_origins_are_subtracted_from_bodies_and_added_to_bases_per_environment():
    origins = torch.tensor([[10.0, 0.0, 0.0], [0.0, 20.0, 0.0]])
    bodies = torch.tensor([[[11.0, 2.0, 3.0], [12.0, 0.0, 0.0]], [[1.0, 22.0, 3.0], [0.0, 20.0, 5.0]]])
    relative = [[[1.0, 2.0, 3.0], [2.0, 0.0, 0.0]], [[1.0, 2.0, 3.0], [0.0, 0.0, 5.0]]]
    assert convention.without_origins(bodies, origins).tolist() == relative
    position, upright = torch.tensor([[1.0, 2.0, 3.0]] * 2), torch.tensor([[1.0, 0.0, 0.0, 0.0]] * 2)
    pose = convention.world_pose(position, upright, origins)
    assert pose.tolist() == [[11.0, 2.0, 3.0, 0.0, 0.0, 0.0, 1.0], [1.0, 22.0, 3.0, 0.0, 0.0, 0.0, 1.0]]


def test_velocities_of_a_base_rotated_by_90_degrees_are_converted_to_link_axes_and_back():
    # xyzw of 90 degrees about z; the world's y is the link's x, the world's x its -y.
    pose = torch.tensor([[0.0, 0.0, 0.0, 0.0, 0.0, QUARTER, QUARTER]])
    velocity = torch.tensor([[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]])
    linear, angular = convention.link_velocity(pose, velocity)
    assert linear[0].tolist() == pytest.approx([2.0, -1.0, 3.0], abs=1e-6)
    assert angular[0].tolist() == pytest.approx([5.0, -4.0, 6.0], abs=1e-6)
    back = convention.world_velocity(convention.to_wxyz(pose[:, 3:]), linear, angular)
    assert back[0].tolist() == pytest.approx(velocity[0].tolist(), abs=1e-6)


def test_a_soles_velocity_includes_the_foots_rotation():
    # The foot at (5, 0, 1), rotated by 90 degrees about z, moves up with 1 m/s and rotates about z with 2 rad/s. The
    # sole 0.5 m ahead of it is at y = 0.5, and omega x r = (0, 0, 2) x (0, 0.5, 0) = (-1, 0, 0).
    soles = convention.Sites(torch.tensor([[0.5, 0.0, 0.0]]), torch.tensor([[QUARTER, 0.0, 0.0, QUARTER]]))
    position, quat, velocity = soles.in_world(
        torch.tensor([[[5.0, 0.0, 1.0]]]),
        torch.tensor([[[QUARTER, 0.0, 0.0, QUARTER]]]),
        torch.tensor([[[0.0, 0.0, 1.0, 0.0, 0.0, 2.0]]]),
    )
    assert position[0, 0].tolist() == pytest.approx([5.0, 0.5, 1.0], abs=1e-6)
    assert velocity[0, 0].tolist() == pytest.approx([-1.0, 0.0, 1.0], abs=1e-6)
    assert quat[0, 0].tolist() == pytest.approx([0.0, 0.0, 0.0, 1.0], abs=1e-6)  # 90 + 90 degrees


def test_multiply_applies_the_second_rotation_first():
    # First 90 degrees about x, which takes y to z, then 90 degrees about z, which leaves z.
    about_z, about_x = torch.tensor([QUARTER, 0.0, 0.0, QUARTER]), torch.tensor([QUARTER, QUARTER, 0.0, 0.0])
    y = torch.tensor([0.0, 1.0, 0.0])
    assert quat_rotate(quat_multiply(about_z, about_x), y).tolist() == pytest.approx([0, 0, 1], abs=1e-6)
    assert quat_rotate(quat_multiply(about_x, about_z), y).tolist() == pytest.approx([-1, 0, 0], abs=1e-6)


# ------------------------------------------------------------------ the backend over the fake


class Plain:
    """One MuJoCo simulation, without conversions."""

    def __init__(self, robot: Robot, initial: InitialState) -> None:
        self.robot, self.model = robot, mjcf.build_model(robot, "isaaclab")
        self.data = mujoco.MjData(self.model)
        self.data.qpos[:7] = [*initial.base_pos[0], *initial.base_quat[0]]
        self.data.qvel[:3] = quat_rotate(initial.base_quat[:1], initial.base_lin_vel[:1])[0]
        self.data.qvel[3:6] = initial.base_ang_vel[0]
        for i, name in enumerate(robot.joints):
            joint = self.model.joint(name)
            self.data.qpos[joint.qposadr[0]] = initial.joint_pos[0, i]
            self.data.qvel[joint.dofadr[0]] = initial.joint_vel[0, i]
        self.data.ctrl[:] = [0.0, initial.joint_pos[0, 2]]  # no force; the drive holds its position
        mujoco.mj_forward(self.model, self.data)

    def step(self, targets: list[float], substeps: int) -> None:
        self.data.ctrl[:] = targets
        for _ in range(substeps):
            mujoco.mj_step(self.model, self.data)
        self.force = [self.data.sensor(f"{foot}_force").data.copy() for foot in self.robot.feet]
        mujoco.mj_forward(self.model, self.data)

    def fields(self) -> dict[str, np.ndarray]:
        data, joints = self.data, [self.model.joint(name) for name in self.robot.joints]
        world = np.zeros(3)
        mujoco.mju_rotVecQuat(world, data.qvel[:3], data.qpos[3:7] * [1, -1, -1, -1])
        return {
            "base_pos": data.qpos[:3], "base_quat": data.qpos[3:7],
            "base_lin_vel": world, "base_ang_vel": data.qvel[3:6],
            "joint_pos": np.array([data.qpos[j.qposadr[0]] for j in joints]),
            "joint_vel": np.array([data.qvel[j.dofadr[0]] for j in joints]),
            "joint_torque": np.array([data.qfrc_actuator[j.dofadr[0]] for j in joints]),
            "body_pos": np.array([data.body(name).xpos for name in self.robot.bodies]),
            **{field: np.array([data.sensor(f"{foot}_{sensor}").data for foot in self.robot.feet])
               for field, sensor in (("foot_pos", "pos"), ("foot_quat", "quat"), ("foot_lin_vel", "vel"))},
        }  # fmt: skip


def assert_is(state, expected: dict[str, np.ndarray], tolerance: float = 1e-4) -> None:
    for name, value in expected.items():
        for row, found in enumerate(getattr(state.robot, name).double().numpy()):
            assert np.abs(found - value).max() < tolerance * max(1.0, np.abs(value).max()), (name, row)


def test_every_field_matches_mujoco_after_a_reset_and_after_steps(backend, strider):
    plain = Plain(strider, tilted())
    backend.reset(EVERY, tilted())
    assert_is(backend.state, plain.fields())
    for step in range(5):
        targets = [0.7 - 0.3 * step, 0.6]  # no torque is near its limit, where rounding decides
        backend.step(torch.tensor(targets).repeat(3, 1), 2)
        plain.step(targets, 2)
        assert_is(backend.state, plain.fields())


def test_foot_forces_are_assigned_to_their_feet(backend, strider):
    pose = tilted()
    pose.base_quat[:] = torch.tensor([1.0, 0.0, 0.0, 0.0])
    pose.base_lin_vel[:] = pose.base_ang_vel[:] = 0.0
    pose.joint_vel[:] = 0.0
    # Straight legs under a trunk at 0.497 m: spheres of 0.05 m at 0.45 m penetrate the ground by 3 mm. The left leg is
    # swung forward, off the ground.
    pose.base_pos[:] = torch.tensor([0.0, 0.0, 0.497])
    pose.joint_pos[:] = torch.tensor([0.0, 0.0, 0.9])
    plain = Plain(strider, pose)
    backend.reset(EVERY, pose)
    left, right = backend.state.robot.foot_force[0]
    assert left.abs().max() == 0
    assert right[2] > 1.0
    expected = np.array([plain.data.sensor(f"{foot}_force").data for foot in strider.feet])
    assert_is(backend.state, {"foot_force": expected})
    backend.step(torch.tensor([0.0, 0.9]).repeat(3, 1), 2)
    plain.step([0.0, 0.9], 2)
    assert_is(backend.state, {"foot_force": np.array(plain.force)}, 1e-3)


def test_environments_at_different_origins_show_the_same_state(backend):
    backend.reset(EVERY, tilted())
    backend.step(torch.tensor([0.5, 0.4]).repeat(3, 1), 4)
    assert backend._bridge.rows()["joint_q"][1, 0] - backend._bridge.rows()["joint_q"][0, 0] > 9.0
    for name, tensor in backend.state.robot.tensors().items():
        assert torch.allclose(tensor[0], tensor[2], atol=2e-5), name


def test_a_reset_changes_only_the_masked_environments(backend):
    backend.reset(EVERY, tilted())
    backend.step(torch.tensor([0.5, 0.4]).repeat(3, 1), 4)
    before = backend.state.clone()
    held = {name: row.clone() for name, row in backend._bridge.rows().items()}
    pose = tilted()
    pose.base_pos[[0, 2]] = torch.nan  # outside the mask: ignored
    pose.joint_pos[[0, 2]] = torch.nan
    backend.reset(torch.tensor([False, True, False]), pose)
    for name, tensor in backend.state.robot.tensors().items():
        assert torch.equal(tensor[[0, 2]], before.robot.tensors()[name][[0, 2]]), name
    for name, row in backend._bridge.rows().items():
        assert torch.equal(row[[0, 2]], held[name][[0, 2]]), name
    assert torch.allclose(backend.state.robot.joint_pos[1], pose.joint_pos[1])
    # The others keep their joint targets: in the fake's order swing is third, drag second.
    assert backend._bridge.position[0].tolist() == pytest.approx([0.0, 0.0, 0.4])
    assert backend._bridge.effort[0].tolist() == pytest.approx([0.0, 0.5, 0.0])
    assert backend._bridge.effort[1].tolist() == [0.0, 0.0, 0.0]


def test_joint_targets_reach_their_joints_and_forces_are_clipped(backend):
    backend.reset(EVERY, tilted())
    backend.step(torch.tensor([[7.0, 9.0], [-7.0, -9.0], [1.0, 0.1]]), 1)  # drag [N m], swing [rad]
    assert backend._bridge.effort[:, 1].tolist() == [2.0, -2.0, 1.0]  # its effort is 2
    assert backend._bridge.position[:, 2].tolist() == pytest.approx([9.0, -9.0, 0.1])
    torque = backend.state.robot.joint_torque
    assert torque[:, 0].tolist() == [2.0, -2.0, 1.0]
    assert torque[:, 1].tolist() == [0.0, 0.0, 0.0]
    assert torque[:2, 2].tolist() == [5.0, -5.0]  # clipped to its effort, 5


def test_a_push_is_in_world_axes(backend):
    backend.reset(EVERY, tilted())
    before = quat_rotate(backend.state.robot.base_quat, backend.state.robot.base_lin_vel)
    backend.push(torch.tensor([False, True, False]), torch.tensor([0.5, 0.2, 0.0]).repeat(3, 1))
    moved = backend._bridge.rows()["joint_qd"][:, :3] - before
    assert moved[1].tolist() == pytest.approx([0.5, 0.2, 0.0], abs=1e-5)
    assert moved[[0, 2]].abs().max() < 1e-5


def test_a_snapshot_row_continues_the_same_at_the_origin_of_another_environment(backend):
    backend.reset(EVERY, tilted())
    backend.step(torch.tensor([[0.5, 0.4], [-0.5, 0.1], [0.0, 0.7]]), 4)
    saved, before = backend.snapshot(), backend.state.clone()
    backend.step(torch.tensor([0.5, 0.4]).repeat(3, 1), 2)
    first = backend.state.clone()
    backend.restore(saved, source_rows=torch.tensor([1, 1, 0]))
    for name, tensor in backend.state.robot.tensors().items():
        assert torch.equal(tensor, before.robot.tensors()[name][[1, 1, 0]]), name
    positions = backend._bridge.rows()["joint_q"][:, :3] - backend._bridge.origins
    assert torch.allclose(positions, before.robot.base_pos[[1, 1, 0]], atol=1e-5)
    backend.step(torch.tensor([0.5, 0.4]).repeat(3, 1), 2)
    for name, tensor in backend.state.robot.tensors().items():
        assert torch.allclose(tensor, first.robot.tensors()[name][[1, 1, 0]], atol=1e-3), name


def test_parameters_change_only_the_masked_rows_of_the_solver(backend):
    mask, nominal = torch.tensor([False, True, True]), backend._nominal
    backend.set_params(mask, {
        "friction": torch.tensor([9.0, 0.3, 0.5]), "gain_scale": torch.tensor([9.0, 2.0, 0.5]),
        "mass_scale": torch.tensor([9.0, 1.5, 1.0]),
    })  # fmt: skip
    rows = backend._bridge._model_rows
    for name, row in rows.items():
        assert torch.equal(row[0], nominal[name][0]), name
    assert rows["geom_friction"][1, :, 0].tolist() == pytest.approx([0.3] * 3)  # two feet and the floor
    assert rows["actuator_gainprm"][1, 1, 0] == 40.0
    assert rows["actuator_biasprm"][1, 1, :3].tolist() == [0.0, -40.0, -2.0]
    assert rows["body_mass"][1].tolist() == pytest.approx([0.0, 4.5, 0.75, 1.05])
    assert backend.state.params["gain_scale"].tolist() == [1.0, 2.0, 0.5]
    # With a scale of 1 the values derived from the masses do not change.
    for name in ("dof_invweight0", "body_invweight0", "meaninertia"):
        assert torch.allclose(rows[name][2], nominal[name][2], rtol=1e-4), name


def test_a_non_finite_environment_is_diverged_until_a_reset(backend):
    backend.reset(EVERY, tilted())
    targets = torch.tensor([0.5, 0.4]).repeat(3, 1)
    backend._bridge.step = lambda substeps: None  # MuJoCo would repair it
    backend._bridge.rows()["joint_qd"][0, 6] = 2000.0
    backend._bridge.rows()["joint_q"][1, 8] = torch.nan
    backend.step(targets, 1)
    assert backend.state.diverged.tolist() == [True, True, False]
    backend.reset(torch.tensor([False, True, False]), tilted())
    assert backend.state.diverged.tolist() == [True, False, False]
    assert all(tensor[1].isfinite().all() for tensor in backend.state.robot.tensors().values())


def test_an_overflow_is_reported_once_with_the_setting_to_raise(backend):
    backend.check()
    backend._bridge.lost = Overflow.NARROWPHASE
    with pytest.raises(RunFailed, match=r"backend\.nconmax.*solver\.isaaclab\.nconmax"):
        backend.check()
    backend.check()


def test_close_closes_the_bridge_and_can_be_called_twice(backend):
    bridge = backend._bridge
    backend.close()
    backend.close()
    assert bridge.closed


# ------------------------------------------------------------------ errors


def test_a_joint_that_isaac_lab_does_not_have_is_refused_by_name(strider):
    class Renamed(FakeBridge):
        def __init__(self, *words):
            super().__init__(*words)
            self.joint_names = {"robot": ["turn", "drag", "wing"]}

    with pytest.raises(ConfigError, match="'swing' 0 times"):
        IsaacLabBackend(strider, 2, "cpu", bridge=Renamed)


def test_a_robot_that_its_usd_conversion_changed_is_refused(strider):
    class Lossy(FakeBridge):
        def __init__(self, *words):
            super().__init__(*words)
            self.solver_model = mjcf.build_model(self.robot, "isaaclab")
            self.solver_model.dof_armature[6] = 0.0

    with pytest.raises(ConfigError, match=r"dof_armature\[6\] is 0, not 0\.01"):
        IsaacLabBackend(strider, 2, "cpu", bridge=Lossy)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"timestep": 0.01, "noslip_iterations": 3}, "solver.isaaclab.noslip_iterations"),
        ({"timestep": 0.01, "solver": "PGS"}, "solver.isaaclab.solver is PGS"),
    ],
)
def test_solver_options_that_isaac_lab_does_not_have_are_refused(strider, options, said):
    other = replace(strider, solver={"isaaclab": options})
    with pytest.raises(ConfigError, match=said):
        IsaacLabBackend(other, 2, "cpu", bridge=FakeBridge)


def test_the_settings_override_the_robots_solver(strider):
    config = IsaacLabConfig(timestep=0.002, solver="cg", iterations=7)
    backend = IsaacLabBackend(strider, 2, "cpu", config, bridge=FakeBridge)
    assert backend.capabilities.timestep == 0.002
    assert backend.model.opt.solver == mujoco.mjtSolver.mjSOL_CG
    assert backend.model.opt.iterations == 7
