"""The differentiable backend with `engine=own`: refused robots, and gradients against finite differences."""

from __future__ import annotations

import gc
import math

import numpy as np
import pytest
import torch

from robolearn.envs import mjcf
from robolearn.envs.differentiable.backend import DifferentiableBackend
from robolearn.envs.differentiable.mechanics import Mechanics
from robolearn.envs.differentiable.own import split_substeps
from robolearn.envs.differentiable.tree import ignored_contacts, read_tree
from robolearn.envs.robot import Robot
from robolearn.envs.state import InitialState
from robolearn.errors import ConfigError
from tests.envs.scenes import hopper
from tests.factories import home_pose, home_targets, load_robot


def mechanics_of(robot: Robot) -> Mechanics:
    model = mjcf.build_model(robot, "differentiable")
    return Mechanics(read_tree(robot, model, robot.solver["differentiable"]), model.opt.timestep)


@pytest.fixture
def cartpole_backend():
    backend = DifferentiableBackend(load_robot("cartpole"), 4)
    yield backend
    backend.close()


def swing(backend, start: torch.Tensor, force: torch.Tensor, substeps: int = 4) -> torch.Tensor:
    """Positions and velocities (N, 4) of cartpoles after one control step a row of `force` (T, N, 1)."""
    n = len(start)
    zeros = torch.zeros(n, 3)
    quat = torch.tensor([1.0, 0.0, 0.0, 0.0]).repeat(n, 1)
    backend.detach()
    backend.reset(
        torch.ones(n, dtype=torch.bool), InitialState(zeros, quat, zeros, zeros, start[:, :2], start[:, 2:])
    )
    for u in force:
        backend.step(u, substeps)
    return torch.cat((backend.state.robot.joint_pos, backend.state.robot.joint_vel), dim=1)


# ---------------------------------------------------------------------- unsupported robots and options


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (('axis="0 0 1" range', 'frictionloss="1" axis="0 0 1" range'), "joint l_leg has dry friction"),
        (('axis="0 0 1" range', 'actuatorfrcrange="-1 1" axis="0 0 1" range'), "joint l_leg limits its actuators"),
        (('type="sphere" size=".05"', 'type="cylinder" size=".05 .05"'), "is a cylinder; use spheres"),
        (('<body name="l_leg">', '<body name="l_leg" gravcomp="1">'), "gravity compensation"),
        (
            ("</worldbody>", '</worldbody><tendon><fixed name="t"><joint joint="l_leg" coef="1"/></fixed></tendon>'),
            "it has a tendon",
        ),
        (
            ("</worldbody>", '</worldbody><equality><joint joint1="l_leg" joint2="r_leg"/></equality>'),
            "it has an equality constraint",
        ),
        (("<worldbody>", '<option density="1.2"/><worldbody>'), "moves in a medium"),
        (('condim="3"/>', 'condim="6"/>'), "rolling or torsional friction"),
        (('condim="3"/>', 'condim="3" margin="0.01"/>'), "margin or gap"),
        (('condim="3"/>', 'condim="3" friction="1.5"/>'), "different friction on the floor"),
    ],
)  # fmt: skip
def test_an_unsupported_feature_of_a_robot_is_refused_by_name(tmp_path, change, words):
    folder = hopper(tmp_path, yaml_change=("  mujoco:", "  differentiable:"), xml_change=change)
    with pytest.raises(ConfigError, match=f"backend=differentiable cannot simulate robot .*{words}") as error:
        DifferentiableBackend(Robot.load(folder), 1)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("option", "words"),
    [
        ("contact_stiffness: -1", "-1"),
        ("contact_friction_speed: 0", "contact_friction_speed is '0'"),
        ("integrator: RK4", "solver.differentiable has another integrator"),
    ],
)
def test_an_invalid_solver_option_is_refused_by_name(tmp_path, option, words):
    folder = hopper(tmp_path, yaml_change=("  mujoco:", "  differentiable:"))
    text = (folder / "robot.yaml").read_text()
    key = option.partition(":")[0]
    changed = (
        text.replace("integrator: implicitfast", option)
        if key in text
        else text.replace("{timestep", f"{{{option}, timestep")
    )
    (folder / "robot.yaml").write_text(changed)
    with pytest.raises(ConfigError, match=words) as error:
        DifferentiableBackend(Robot.load(folder), 1)
    assert "\n" not in str(error.value)


def test_contacts_between_bodies_of_one_robot_are_listed_as_ignored():
    model = mjcf.build_model(load_robot("humanoid"), "mujoco")
    assert ignored_contacts(model)
    assert ignored_contacts(mjcf.build_model(load_robot("ant"), "mujoco")) == []


def test_a_robot_without_options_for_the_backend_takes_the_backends(tmp_path):
    assert DifferentiableBackend(Robot.load(hopper(tmp_path)), 1).capabilities.timestep == 0.005


# ---------------------------------------------------------------------- gradients


def test_substeps_are_split_into_launches_of_8_4_2_and_1():
    assert [split_substeps(n) for n in (0, 1, 4, 11, 16)] == [[0], [1], [4], [8, 2, 1], [8, 8]]


@pytest.mark.parametrize("substeps", [1, 4, 11])
def test_gradients_by_forces_and_initial_state_match_float64_differences(cartpole_backend, substeps):
    generator = torch.Generator().manual_seed(0)
    start = torch.randn(4, 4, generator=generator, requires_grad=True)
    force = (5 * torch.randn(3, 4, 1, generator=generator)).requires_grad_()
    weights = torch.randn(4, 4, generator=generator)
    (swing(cartpole_backend, start, force, substeps) * weights).sum().backward()
    mechanics = mechanics_of(load_robot("cartpole"))
    direction, pushes = torch.randn(4, 4, generator=generator), torch.randn(3, 4, 1, generator=generator)

    def end(env: int, step: float) -> float:
        row = (start[env] + step * direction[env]).tolist()
        for u in (force + step * pushes)[:, env].tolist():
            for _ in range(substeps):
                row = mechanics.substep(row, u, {})
        return float(np.dot(row, weights[env]))

    for env in range(4):
        # Differences of the equations in float64 are accurate to 1e-8.
        expected = (end(env, 1e-4) - end(env, -1e-4)) / 2e-4
        found = (start.grad[env] * direction[env]).sum() + (force.grad[:, env] * pushes[:, env]).sum()
        assert found.item() == pytest.approx(expected, rel=1e-3, abs=1e-3)


@pytest.mark.parametrize(("height", "limit"), [(1.0, 1e-3), (0.0, 1e-2)], ids=["in the air", "standing"])
def test_gradients_of_a_free_base_match_float64_differences(height, limit):
    robot, generator = load_robot("ant"), torch.Generator().manual_seed(0)
    backend, mechanics = DifferentiableBackend(robot, 2), mechanics_of(load_robot("ant"))
    every, initial = torch.ones(2, dtype=torch.bool), home_pose(robot, 2, height)
    if height:
        turned = torch.tensor([0.9, 0.1, -0.2, 0.3])
        initial.base_quat[:] = turned / turned.norm()
        initial.base_lin_vel[:] = 0.2 * torch.randn(2, 3, generator=generator)
        initial.base_ang_vel[:] = torch.randn(2, 3, generator=generator)
    backend.reset(every, initial)
    for _ in range(0 if height else 60):
        backend.step(home_targets(robot, 2), 4)
    params = {name: backend.state.params[name][0].item() for name in backend.state.params}
    starts = backend.snapshot()["rows"]
    targets = home_targets(robot, 2).repeat(4, 1, 1) + 0.01 * torch.randn(4, 2, 8, generator=generator)
    targets.requires_grad_()
    for u in targets:
        backend.step(u, 4)
    state = backend.state.robot
    weights = torch.randn(2, 13, generator=generator)
    seen = torch.cat((state.base_pos, state.base_quat, state.base_lin_vel, state.base_ang_vel), dim=1)
    (seen * weights).sum().backward()

    def end(env: int, u: torch.Tensor) -> float:
        row = starts[env].tolist()
        for control in u[:, env].double().tolist():
            for _ in range(4):
                row = mechanics.substep(row, control, params)
        return float(np.dot(mechanics.outputs(row, control, params)[:13], weights[env]))

    step = 1e-5 * torch.randn(targets.shape, generator=generator, dtype=torch.float64)
    wanted = [(end(e, targets.detach() + step) - end(e, targets.detach() - step)) / 2 for e in range(2)]
    found = [(targets.grad[:, e] * step[:, e]).sum().item() for e in range(2)]
    assert np.linalg.norm(np.subtract(found, wanted)) < limit * np.linalg.norm(wanted)
    backend.close()


def test_nan_in_rows_outside_the_reset_mask_does_not_reach_gradients(cartpole_backend):
    initial = home_pose(cartpole_backend.robot, 4)
    shift = torch.zeros(4, requires_grad=True)
    initial.base_quat = initial.base_quat + shift
    initial.base_quat.data[1] = math.nan
    angles = torch.zeros(4, 2, requires_grad=True)
    initial.joint_pos = torch.where(torch.tensor([[False], [True], [False], [False]]), torch.nan, angles)
    cartpole_backend.detach()
    cartpole_backend.reset(torch.tensor([True, False, True, True]), initial)
    cartpole_backend.step(torch.ones(4, 1), 4)
    cartpole_backend.state.robot.joint_pos.sum().backward()
    assert angles.grad is not None
    assert torch.isfinite(angles.grad).all()
    assert (angles.grad[[0, 2, 3]] != 0).any()


def test_a_second_derivative_is_refused(cartpole_backend):
    force = torch.ones(1, 4, 1, requires_grad=True)
    end = swing(cartpole_backend, torch.zeros(4, 4), force).square().sum()
    (slope,) = torch.autograd.grad(end, force, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        slope.sum().backward()


def test_overwriting_the_targets_after_a_step_does_not_change_its_gradient(cartpole_backend):
    start = torch.randn(4, 4, generator=torch.Generator().manual_seed(0))

    def gradient(overwrite: bool) -> torch.Tensor:
        push = torch.ones(4, 1, requires_grad=True)
        sent = push * 3.0
        swing(cartpole_backend, start, sent[None])
        angle = cartpole_backend.state.robot.joint_pos[:, 1].cos().sum()
        if overwrite:
            sent.data.fill_(1e6)
            with torch.no_grad():
                cartpole_backend.step(torch.full((4, 1), 50.0), 4)
        angle.backward()
        assert push.grad is not None
        return push.grad

    assert torch.equal(gradient(False), gradient(True))


def test_gradients_stop_at_a_reset_and_at_detach_and_flow_through_other_envs(cartpole_backend):
    backend, start = cartpole_backend, torch.zeros(4, 4)
    force = torch.ones(3, 4, 1, requires_grad=True)
    swing(backend, start, force[:2])
    fallen = torch.tensor([True, False, True, False])
    initial = home_pose(backend.robot, 4)
    backend.reset(fallen, initial)
    backend.step(force[2], 4)
    backend.state.robot.joint_pos.sum().backward(retain_graph=True)
    assert (force.grad[:2, fallen] == 0).all()
    assert (force.grad[:2, ~fallen] != 0).all()
    assert (force.grad[2] != 0).all()
    backend.detach()
    assert not any(tensor.requires_grad for tensor in backend.state.robot.tensors().values())


def test_without_requires_grad_or_under_no_grad_there_is_no_autograd_graph(cartpole_backend):
    swing(cartpole_backend, torch.zeros(4, 4), torch.ones(2, 4, 1))
    assert not cartpole_backend.state.robot.joint_pos.requires_grad
    force = torch.ones(2, 4, 1, requires_grad=True)
    with torch.no_grad():
        swing(cartpole_backend, torch.zeros(4, 4), force)
    assert not cartpole_backend.state.robot.joint_pos.requires_grad


def test_a_diverged_env_is_flagged_and_leaves_the_gradients_of_others_finite(cartpole_backend):
    backend, start = cartpole_backend, torch.zeros(4, 4)
    start[1, 3] = 1e25  # [rad/s]: its square overflows float32
    start[2, 3] = 1e5  # beyond ABSURD_SPEED
    force = torch.ones(1, 4, 1, requires_grad=True)
    ends = swing(backend, start, force)
    assert backend.state.diverged.tolist() == [False, True, True, False]
    assert torch.isfinite(ends).all()
    ends.sum().backward()
    assert (force.grad[0, [1, 2]] == 0.0).all()
    assert (force.grad[0, [0, 3]] != 0).all()
    assert torch.isfinite(force.grad).all()


def test_gradients_repeat_bit_for_bit_and_the_number_of_tensors_does_not_grow(cartpole_backend):
    start = torch.randn(4, 4, generator=torch.Generator().manual_seed(3))

    def gradient() -> torch.Tensor:
        force = torch.ones(8, 4, 1, requires_grad=True)
        swing(cartpole_backend, start, force).sum().backward()
        assert force.grad is not None
        return force.grad

    def alive() -> int:
        gc.collect()
        return sum(type(thing) is torch.Tensor for thing in gc.get_objects())

    gradient()
    first = gradient()
    before = alive()
    for _ in range(200):
        assert torch.equal(gradient(), first)
    assert alive() <= before + 1


def test_the_gradient_of_a_standing_robot_by_its_joint_targets_matches_differences(tmp_path):
    robot = load_robot("hopper")
    backend = DifferentiableBackend(robot, 2)
    initial = home_pose(robot, 2)
    initial.joint_pos[:, 1] = -0.001
    backend.reset(torch.ones(2, dtype=torch.bool), initial)
    for _ in range(20):
        backend.step(home_targets(robot, 2), 4)
    standing, target = backend.snapshot(), home_targets(robot, 2)

    def height(targets: torch.Tensor) -> torch.Tensor:
        backend.restore(standing)
        for _ in range(8):
            backend.step(targets, 4)
        return backend.state.robot.body_pos[:, 0, 2]

    targets = target.clone().requires_grad_()
    height(targets).sum().backward()
    step = torch.zeros_like(target)
    step[:, 1] = 2e-2  # the knee [rad]
    differences = (height(target + step) - height(target - step)) / 4e-2
    assert targets.grad[:, 1].tolist() == pytest.approx(differences.tolist(), rel=2e-2)
    assert abs(differences[0]) > 0.01
    backend.close()
