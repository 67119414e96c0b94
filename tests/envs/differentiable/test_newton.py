"""The Newton engine against MuJoCo and finite differences, and proof that its two work-arounds are necessary."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import mujoco
import numpy as np
import pytest
import torch

from robolearn.envs import mjcf
from robolearn.envs.differentiable.engine import ControlStep, Layout
from robolearn.envs.randomize import nominal, parameter
from robolearn.envs.robot import Robot
from robolearn.envs.scene import Scene
from robolearn.envs.state import InitialState
from tests.envs.newton_robots import MIXED, write_robot
from tests.factories import home_pose, home_targets, load_robot

pytest.importorskip("newton", reason="the extra 'newton' is not installed")
from robolearn.envs.differentiable.newton import NewtonEngine

N = 4
Make = Callable[..., "Sim"]


class Sim:
    """An engine with its layout, model and physical parameters."""

    def __init__(self, what: Robot | Scene, device: str = "cpu", **flags: bool) -> None:
        # What a walk touches: this engine has no contacts of a robot with itself.
        scene = replace(Scene.of(what), collisions="light")
        self.robot, self.layout = scene.robot, Layout(scene)
        self.model = mjcf.build_model(scene, "newton")
        options = self.robot.solver["newton"]
        self.engine = NewtonEngine(scene, N, torch.device(device), self.model, options, **flags)
        known = [nominal(parameter(name, scene, self.model), self.model) for name in self.engine.params]
        self.params = torch.tensor([known] * N)

    def forward(self, rows, targets, substeps):
        return self.engine.forward(rows, targets, self.params, substeps)

    def entity(self, rows, targets):
        return self.layout.entity(self.forward(rows, targets, 0)[1])

    def column(self, name):
        return self.params[:, self.engine.params.index(name)]


@pytest.fixture
def make() -> Iterator[Make]:
    """(robot or its name, device, **flags) -> Sim, closed after the test."""
    made: list[Sim] = []

    def make(robot: Robot | str, *device: str, **flags: bool) -> Sim:
        made.append(Sim(load_robot(robot) if isinstance(robot, str) else robot, *device, **flags))
        return made[-1]

    yield make
    for sim in made:
        sim.engine.close()


def tumbling(robot: Robot) -> InitialState:
    """In the air, rotated, with linear, angular and joint velocities."""
    initial = home_pose(robot, N, height=1.0)
    turned = torch.tensor([0.9, 0.1, -0.2, 0.3])
    initial.base_quat[:] = turned / turned.norm()
    initial.base_lin_vel[:] = torch.tensor([0.3, -0.2, 0.1])
    initial.base_ang_vel[:] = torch.tensor([0.5, 0.4, -0.6])
    initial.joint_vel[:] = 0.3
    return initial


def wiggle(robot: Robot, step: int) -> torch.Tensor:
    phase = torch.arange(N)[:, None] + 0.7 * torch.arange(len(robot.actuators)) + 0.3 * step
    return home_targets(robot, N) + 0.2 * torch.sin(phase)


def standing(sim: Sim) -> tuple[torch.Tensor, torch.Tensor]:
    """Rows and joint targets of robots that have stood for 0.4 s in slightly different stances."""
    targets = home_targets(sim.robot, N)
    targets += 0.02 * torch.randn(targets.shape, generator=torch.Generator().manual_seed(1))
    rows = sim.layout.rows(home_pose(sim.robot, N))
    for _ in range(20):
        rows, _ = sim.forward(rows, targets, 10)
    return rows, targets


# ---------------------------------------------------------------------- the motion


class Reference:
    """MuJoCo in float64 with the same options, from row 0."""

    def __init__(self, sim: Sim, rows: torch.Tensor) -> None:
        self.sim, self.data = sim, mujoco.MjData(sim.model)
        row, base, data = rows[0].double().numpy(), sim.layout.base, self.data
        if base:
            data.qpos[:7], data.qvel[:6] = row[:7], row[7:13]
        self.joints = [sim.model.joint(name) for name in sim.robot.joints]
        for i, joint in enumerate(self.joints):
            data.qpos[joint.qposadr[0]] = row[base + i]
            data.qvel[joint.dofadr[0]] = row[base + len(self.joints) + i]

    def step(self, targets: torch.Tensor, substeps: int) -> None:
        self.data.ctrl[:] = targets[0].double()
        for _ in range(substeps):
            mujoco.mj_step(self.sim.model, self.data)

    def error(self, entity: Any, targets: torch.Tensor) -> dict[str, float]:
        """The largest difference in each field; forces relative to the largest one."""
        robot, model, data = self.sim.robot, self.sim.model, self.data
        data.ctrl[:] = targets[0].double()
        mujoco.mj_forward(model, data)
        expected = {
            "joint_pos": [data.qpos[j.qposadr[0]] for j in self.joints],
            "joint_vel": [data.qvel[j.dofadr[0]] for j in self.joints],
            "joint_torque": [data.qfrc_actuator[j.dofadr[0]] for j in self.joints],
            "body_pos": [data.body(name).xpos for name in robot.bodies],
        }
        if robot.base:
            local = np.zeros(3)
            mujoco.mju_rotVecQuat(local, data.qvel[:3], data.qpos[3:7] * [1, -1, -1, -1])
            expected |= {"base_pos": data.qpos[:3], "base_quat": data.qpos[3:7], "base_lin_vel": local}
            expected |= {"base_ang_vel": data.qvel[3:6], "foot_pos": [data.site(f).xpos for f in robot.feet]}
            for field, sensor in (("foot_lin_vel", "vel"), ("foot_quat", "quat"), ("foot_force", "force")):
                expected[field] = [data.sensor(f"{foot}_{sensor}").data for foot in robot.feet]
        errors = {}
        for name, value in expected.items():
            value = np.array(value)
            scale = max(1.0, np.abs(value).max()) if name == "joint_torque" else 1.0
            errors[name] = np.abs(getattr(entity, name)[0].double().numpy() - value).max() / scale
        return errors


@pytest.mark.parametrize("name", ["cartpole", "humanoid"])
def test_every_field_of_state_equals_mujocos_after_several_steps(make, name):
    sim = make(name)
    rows = sim.layout.rows(tumbling(sim.robot))
    reference = Reference(sim, rows)
    targets = wiggle(sim.robot, 0)
    for step in range(6):
        found = reference.error(sim.entity(rows, targets), targets)
        assert max(found.values()) < 1e-4, (step, found)
        targets = wiggle(sim.robot, step)
        rows, seen = sim.forward(rows, targets, 2)
        reference.step(targets, 2)
        assert torch.equal(sim.layout.entity(seen).joint_vel, sim.entity(rows, targets).joint_vel)


def test_a_contact_free_rollout_of_100_substeps_agrees_with_mujoco(make):
    sim = make("humanoid")
    rows = sim.layout.rows(home_pose(sim.robot, N, height=20.0))
    reference = Reference(sim, rows)
    for step in range(50):
        targets = wiggle(sim.robot, step)
        rows, _ = sim.forward(rows, targets, 2)
        reference.step(targets, 2)
    found = reference.error(sim.entity(rows, targets), targets)
    assert max(found.values()) < 1e-3, found


def test_the_foot_forces_of_a_standing_robot_equal_its_weight(make):
    sim = make("humanoid")
    scales = torch.tensor([1.0, 1.0, 0.8, 1.2])
    sim.column("mass_scale").copy_(scales)
    rows, targets = standing(sim)
    total = sim.entity(rows, targets).foot_force.sum(dim=1)
    weight = sim.model.body_mass.sum() * 9.81 * scales.numpy()
    assert total[:, 2].numpy() == pytest.approx(weight, rel=0.03)
    assert total[:, :2].abs().max() < 0.05 * weight.max()
    assert (rows[:, 2] - sim.robot.home_height).abs().max() < 0.03


def test_a_foot_slides_at_low_friction_and_hardly_at_high_friction(make):
    sim = make("humanoid")
    rows, targets = standing(sim)
    rows[:, 8] += 0.3  # a push to the left
    slides = []
    for friction in (0.05, 1.0):
        sim.column("friction").fill_(friction)
        _, seen = sim.forward(rows, targets, 10)
        entity = sim.layout.entity(seen)
        force = entity.foot_force
        assert (force[..., :2].norm(dim=-1) < friction * force[..., 2] + 1e-3).all()
        slides.append(entity.foot_lin_vel[..., 1].mean().item())
    assert slides[0] > 3 * slides[1]


def test_motor_torque_scales_with_the_gain_and_is_clipped_to_the_effort(make):
    sim = make("humanoid")
    sim.column("gain_scale").copy_(torch.tensor([1.0, 0.5, 2.0, 1.0]))
    targets = home_targets(sim.robot, N)
    targets[:3, 0] += 0.1
    targets[3, 0] += 10.0
    rows = sim.layout.rows(home_pose(sim.robot, N, height=1.0))
    motor = sim.robot.actuators[0]
    torque = sim.entity(rows, targets).joint_torque[:, sim.robot.actuated[0]]
    expected = [0.1 * motor.kp, 0.05 * motor.kp, 0.2 * motor.kp, motor.effort]
    assert torque.numpy() == pytest.approx(expected, rel=1e-4)


def test_a_stop_keeps_a_joint_in_its_range(make):
    sim = make("cartpole")
    initial = home_pose(sim.robot, N)
    initial.joint_vel[:, 0] = torch.tensor([0.0, 2.0, 4.0, -4.0])
    initial.joint_pos[:, 0] = torch.tensor([0.0, 2.3, 2.3, -2.3])
    rows, targets = sim.layout.rows(initial), torch.zeros(N, 1)
    farthest = torch.zeros(N)
    for _ in range(50):
        rows, _ = sim.forward(rows, targets, 2)
        farthest = torch.maximum(farthest, rows[:, 0].abs())
    assert farthest.max() < 2.4 + 0.1
    assert (rows[1:, 0].abs() < 2.4).all(), "it bounced back"


def test_reordered_joints_refs_welds_and_several_joints_per_body_match_mujoco(make, tmp_path):
    sim = make(write_robot(tmp_path, MIXED))
    initial = home_pose(sim.robot, N)
    initial.joint_pos += torch.tensor([0.3, -0.2, 0.4, 0.1, 0.5])
    initial.joint_vel += torch.tensor([0.5, 0.3, -0.4, 0.7, -0.2])
    rows = sim.layout.rows(initial)
    reference = Reference(sim, rows)
    for step in range(20):
        targets = torch.full((N, 2), 0.1 * step)
        rows, _ = sim.forward(rows, targets, 2)
        reference.step(targets, 2)
    found = reference.error(sim.entity(rows, targets), targets)
    assert max(found.values()) < 5e-4, found


def test_results_repeat_bit_for_bit_and_nan_does_not_spread_between_environments(make):
    sim = make("humanoid")
    rows, targets = standing(sim)
    ones = torch.ones(N, sim.layout.seen)

    def both(rows):
        out = sim.forward(rows, targets, 3)
        return (*out, *sim.engine.backward(rows, targets, sim.params, 3, torch.ones_like(rows), ones))

    clean = both(rows)
    broken = rows.clone()
    broken[1] = torch.nan
    with_nan, again = both(broken), both(rows)
    for before, during, after in zip(clean, with_nan, again, strict=True):
        assert torch.equal(before, after)
        assert torch.equal(before[[0, 2, 3]], during[[0, 2, 3]])
        assert torch.isfinite(before).all()
    assert torch.isnan(with_nan[0][1]).any()
    ones[1] = 0.0
    grad = torch.ones_like(rows)
    grad[1] = 0.0
    by_rows, by_targets = sim.engine.backward(broken, targets, sim.params, 3, grad, ones)
    assert not by_rows[1].any()
    assert not by_targets[1].any()


def test_process_memory_does_not_grow_over_steps(make):
    sim = make("cartpole")
    rows, targets = sim.layout.rows(home_pose(sim.robot, N)), torch.zeros(N, 1)
    ones = torch.ones(N, sim.layout.seen)

    def work(times):
        for _ in range(times):
            sim.forward(rows, targets, 2)
            sim.engine.backward(rows, targets, sim.params, 2, rows, ones)
        return int(Path("/proc/self/statm").read_text().split()[1])

    if not Path("/proc/self/statm").exists():
        pytest.skip("this system has no /proc/self/statm")
    before = work(200)
    assert work(2000) - before < 500, "pages of 4 kB"


# ---------------------------------------------------------------------- the gradients


def mismatch(
    sim: Sim, rows: torch.Tensor, targets: torch.Tensor, steps: int, substeps: int, by: str, size: float
) -> float:
    """Relative error, over N envs, of a derivative along one direction of the initial rows or of the joint targets.

    The derivative is that of a randomly weighted sum of all results of `steps` control steps, with a fixed seed; the
    reference is a central difference with step `size`.
    """
    generator = torch.Generator().manual_seed(2)
    moved_rows, moved_targets = torch.zeros_like(rows), torch.zeros_like(targets)
    moved = moved_rows if by == "rows" else moved_targets
    moved.copy_(torch.randn(moved.shape, generator=generator))
    if by == "rows" and sim.robot.base:  # tangential to the sphere of unit quaternions
        quat, turn = rows[:, 3:7], moved[:, 3:7].clone()
        moved[:, 3:7] = turn - (turn * quat).sum(dim=1, keepdim=True) * quat
    scales = {"foot_force": 0.01, "joint_torque": 0.1}  # so that no field dominates
    fields = zip(sim.layout.shapes, sim.layout.widths, strict=True)
    scale = torch.cat([torch.full((width,), scales.get(name, 1.0)) for name, width in fields])
    weights = [torch.randn(scale.shape, generator=generator) * scale for _ in range(steps)]

    def loss(rows, targets):
        total = torch.zeros(N, dtype=torch.float64)
        for weight in weights:
            rows, seen = ControlStep.apply(sim.engine, rows, targets, sim.params, substeps)
            total = total + seen.double() @ weight.double() + rows.double().sum(dim=1)
        return total

    start = rows.clone().requires_grad_(), targets.clone().requires_grad_()
    by_rows, by_targets = torch.autograd.grad(loss(*start).sum(), start)
    found = (by_rows.double() * moved_rows).sum(dim=1) + (by_targets.double() * moved_targets).sum(dim=1)
    with torch.no_grad():
        ahead = loss(rows + size * moved_rows, targets + size * moved_targets)
        behind = loss(rows - size * moved_rows, targets - size * moved_targets)
    expected = (ahead - behind) / (2 * size)
    return float((found - expected).norm() / expected.norm())


def swinging(sim: Sim) -> tuple[torch.Tensor, torch.Tensor]:
    initial, generator = home_pose(sim.robot, N), torch.Generator().manual_seed(3)
    initial.joint_pos += 0.5 * torch.randn(initial.joint_pos.shape, generator=generator)
    initial.joint_vel += torch.randn(initial.joint_vel.shape, generator=generator)
    return sim.layout.rows(initial), 3 * torch.randn(N, 1, generator=generator)


@pytest.mark.parametrize("steps", [1, 8])
@pytest.mark.parametrize(("by", "size"), [("rows", 1e-2), ("targets", 0.1)])
def test_gradients_of_the_cartpole(make, steps, by, size):
    sim = make("cartpole")
    assert mismatch(sim, *swinging(sim), steps, 2, by, size) < 1e-3


@pytest.mark.parametrize("steps", [1, 8])
@pytest.mark.parametrize(("by", "size"), [("rows", 1e-3), ("targets", 1e-2)])
def test_gradients_of_a_humanoid_in_the_air(make, steps, by, size):
    sim = make("humanoid")
    rows = sim.layout.rows(tumbling(sim.robot))
    assert mismatch(sim, rows, wiggle(sim.robot, 0), steps, 3, by, size) < 1e-3


@pytest.mark.parametrize("steps", [1, 8])
@pytest.mark.parametrize(("by", "size", "substeps"), [("rows", 3e-4, 3), ("targets", 3e-2, 10)])
def test_gradients_of_a_standing_humanoid(make, steps, by, size, substeps):
    # Fewer substeps by rows: a step of the rows that exceeds rounding would lift a foot in more substeps.
    sim = make("humanoid")
    assert mismatch(sim, *standing(sim), steps, substeps, by, size) < 1e-2


def test_one_solver_for_all_substeps_gives_wrong_gradients(make):
    errors = [
        mismatch(sim, *swinging(sim), 8, 2, "rows", 1e-2)
        for sim in (make("cartpole"), make("cartpole", _solver_each=False))
    ]
    assert errors[0] < 1e-3
    assert errors[1] > 1e-2, "Newton has fixed it: one solver is enough"


def test_without_restored_body_forces_gradients_are_wrong(make):
    errors = [
        mismatch(sim, *standing(sim), 8, 10, "targets", 3e-2)
        for sim in (make("humanoid"), make("humanoid", _restore_forces=False))
    ]
    assert errors[0] < 1e-2
    assert errors[1] > 5e-2, "Newton has fixed it: restoring the forces is unnecessary"


def test_gradients_at_a_touchdown_are_inexact(make):
    # The force is continuous there, its derivative is not: a difference across the touchdown mixes both sides.
    sim = make("humanoid")
    rows = sim.layout.rows(home_pose(sim.robot, N, height=2e-5))
    rows[:, 9] = -0.005
    assert mismatch(sim, rows, home_targets(sim.robot, N), 1, 3, "rows", 1e-4) > 1e-2


@pytest.mark.cuda
def test_cpu_and_gpu_agree(make):
    cpu, gpu = make("humanoid"), make("humanoid", "cuda:0")
    rows, targets = standing(cpu)
    grads = torch.ones_like(rows), 0.01 * torch.ones(N, cpu.layout.seen)
    arguments = rows, targets, cpu.params
    on_gpu = [x.cuda() for x in arguments]
    for _ in range(2):
        expected = *cpu.engine.forward(*arguments, 10), *cpu.engine.backward(*arguments, 10, *grads)
        found = (
            *gpu.engine.forward(*on_gpu, 10),
            *gpu.engine.backward(*on_gpu, 10, *(g.cuda() for g in grads)),
        )
        for a, b in zip(expected, found, strict=True):
            assert (a - b.cpu()).norm() < 1e-2 * a.norm()
