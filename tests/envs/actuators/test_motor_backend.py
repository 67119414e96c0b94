"""Motors outside the simulator: the same motion in every backend, exact restoring, gradients, parameters."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from robolearn.config import registry
from robolearn.envs.actuators.backend import MotorBackend, with_motors
from robolearn.envs.backend import Backend
from robolearn.envs.mujoco.backend import MujocoBackend, MujocoConfig
from robolearn.envs.robot import Robot
from robolearn.envs.scene import Place, Scene
from robolearn.errors import ConfigError
from tests.envs.actuators.robots import arm
from tests.factories import INSTALLED, home_pose, home_targets

EVERY = torch.ones(4, dtype=torch.bool)
DC = {"model": "dc", "saturation": 40.0, "no_load_speed": 12.0, "delay": 0.5, "lag": 0.004, "backlash": 0.002}
"""A motor with all of it."""
PD = {"model": "explicit"}


def in_mujoco(what: Robot | Scene, num_envs: int = 4, timestep: float = 0.0) -> Backend:
    config = MujocoConfig(threads=1, timestep=timestep)
    return with_motors(lambda scene: MujocoBackend(scene, num_envs, "cpu", config), what)


def in_backend(name: str, what: Robot | Scene, num_envs: int = 4) -> Backend:
    cls = registry.load("backends", name.partition(":")[0])
    config = cls.config_class(**({"engine": "newton"} if name.endswith(":newton") else {}))
    return with_motors(lambda scene: cls(scene, num_envs, "cpu", config), what)


def swing(robot: Robot, step: int, num_envs: int = 4) -> torch.Tensor:
    """Joint targets that differ by environment, motor and time."""
    phase = torch.arange(num_envs)[:, None] + 0.7 * torch.arange(len(robot.actuators)) + 0.15 * step
    return home_targets(robot, num_envs) + 0.5 * torch.sin(phase)


def run(backend: Backend, robot: Robot, steps: int, first: int = 0) -> None:
    for step in range(first, first + steps):
        backend.step(swing(robot, step), 5)


def test_explicit_pd_moves_as_pd_in_the_solver_the_more_the_smaller_the_step(tmp_path):
    inside, outside = arm(tmp_path), arm(tmp_path, PD, PD)
    apart = []
    for timestep in (0.002, 0.0005):
        backends = [in_mujoco(robot, timestep=timestep) for robot in (inside, outside)]
        for backend in backends:
            backend.reset(EVERY, home_pose(inside, 4))
            for step in range(60):
                backend.step(swing(inside, step), round(0.01 / timestep))
        a, b = (backend.state.robot.joint_pos for backend in backends)
        apart.append(float((a - b).abs().max()))
        assert (a - home_pose(inside, 4).joint_pos).abs().max() > 0.1  # it does move
    assert apart[0] < 0.03
    assert apart[1] < 0.3 * apart[0]  # a quarter, as both are of first order


def test_a_robot_without_models_of_motors_gets_the_bare_simulator(tmp_path):
    assert type(in_mujoco(arm(tmp_path))) is MujocoBackend
    assert isinstance(in_mujoco(arm(tmp_path, PD)), MotorBackend)


@pytest.mark.parametrize(
    "name",
    [*(n for n in INSTALLED if n != "mujoco"), pytest.param("differentiable:newton", marks=pytest.mark.slow)],
)
def test_motion_is_the_same_in_every_backend(tmp_path, name):
    if name.endswith("newton"):
        pytest.importorskip("newton")
    robot = arm(tmp_path, DC, {**PD, "delay": 1.25, "lag": 0.002})
    if name.endswith("newton"):  # its integrator is Euler's, so MuJoCo gets that too
        options = {"timestep": 0.002, "integrator": "Euler", "disable": ["eulerdamp"]}
        robot = replace(robot, solver={**robot.solver, "mujoco": options})
    backends = [in_mujoco(robot), in_backend(name, robot)]
    for backend in backends:
        backend.reset(EVERY, home_pose(robot, 4))
        run(backend, robot, 100)
    ours, theirs = (backend.state.robot for backend in backends)
    assert (ours.joint_pos - theirs.joint_pos).abs().max() < 1e-4
    assert (ours.joint_vel - theirs.joint_vel).abs().max() < 2e-3
    assert not backends[1].state.diverged.any()


def test_motion_is_the_same_in_isaac_labs_convention(tmp_path):
    from robolearn.envs.isaaclab.backend import IsaacLabBackend
    from tests.envs.fake_isaaclab import ROBOT, YAML, FakeBridge

    (tmp_path / "strider.xml").write_text(ROBOT, encoding="utf-8")
    solver = "solver: Newton, iterations: 20, ls_iterations: 20"
    option = f"  mujoco: {{timestep: 0.005, integrator: implicitfast, {solver}}}\n"
    models = (
        "{kind: position, kp: 20, kd: 1, effort: 5, model: dc, saturation: 6, no_load_speed: 9, delay: 0.5}"
    )
    yaml = YAML.replace("{kind: position, kp: 20, kd: 1, effort: 5}", models)
    (tmp_path / "robot.yaml").write_text(yaml + option, encoding="utf-8")
    robot = Robot.load(tmp_path)
    backends = [
        in_mujoco(robot),
        with_motors(lambda scene: IsaacLabBackend(scene, 4, "cpu", bridge=FakeBridge), robot),
    ]
    start = home_pose(robot, 4, height=20.0)  # in the air
    for backend in backends:
        backend.reset(EVERY, start)
        for step in range(50):
            phase = torch.arange(4)[:, None] + 0.2 * step
            backend.step(torch.cat([torch.sin(phase), 0.2 + 0.4 * torch.cos(phase)], dim=1), 4)
    ours, theirs = (backend.state.robot for backend in backends)
    assert (ours.joint_pos - theirs.joint_pos).abs().max() < 1e-4


def test_a_restored_environment_goes_on_bit_for_bit(tmp_path):
    robot = arm(tmp_path, DC, {**PD, "delay": [0.2, 2.0], "lag": 0.002})
    backend, other = in_mujoco(robot), in_mujoco(robot)
    backend.set_params(EVERY, {"motor_delay": torch.tensor([0.0, 0.3, 0.6, 1.0])})
    backend.set_params(EVERY, {"gain_scale": torch.tensor([0.8, 0.9, 1.1, 1.2])})
    backend.reset(EVERY, home_pose(robot, 4))
    run(backend, robot, 7)
    before, rows = backend.snapshot(), torch.tensor([2, 0, 3, 3])
    run(backend, robot, 6, first=7)
    wanted = {name: value.clone() for name, value in backend.state.robot.tensors().items()}
    other.restore(before, rows)
    for step in range(7, 13):
        other.step(swing(robot, step)[rows], 5)
    for name, value in other.state.robot.tensors().items():
        assert torch.equal(value, wanted[name][rows]), name
    assert torch.equal(other.state.params["motor_delay"], torch.tensor([0.6, 0.0, 1.0, 1.0]))
    assert not torch.equal(wanted["joint_pos"][0], wanted["joint_pos"][2])


def test_a_reset_changes_the_motors_of_its_environments_only(tmp_path):
    robot = arm(tmp_path, DC, {**PD, "delay": 2.0})
    backend, untouched = in_mujoco(robot), in_mujoco(robot)
    for each in (backend, untouched):
        each.reset(EVERY, home_pose(robot, 4))
        run(each, robot, 5)
    backend.reset(torch.tensor([True, False, False, True]), home_pose(robot, 4))
    fresh = in_mujoco(robot)
    fresh.reset(EVERY, home_pose(robot, 4))
    for each in (backend, untouched, fresh):
        run(each, robot, 5, first=9)
    for name, value in backend.state.robot.tensors().items():
        assert torch.equal(value[1:3], untouched.state.robot.tensors()[name][1:3]), name
        assert torch.equal(value[[0, 3]], fresh.state.robot.tensors()[name][[0, 3]]), name


def test_a_weaker_motor_saturates(tmp_path):
    robot = arm(tmp_path, {**PD, "kp": 500.0, "kd": 5.0})
    weak = arm(tmp_path, {"model": "dc", "kp": 500.0, "kd": 5.0, "saturation": 8.0, "no_load_speed": 6.0})
    reached = {}
    for name, each in (("strong", robot), ("weak", weak)):
        backend = in_mujoco(each)
        backend.reset(EVERY, home_pose(each, 4))
        most = torch.zeros(())
        for _ in range(30):
            backend.step(home_targets(each, 4) + torch.tensor([1.5, 0.0]), 5)
            most = torch.maximum(most, backend.state.robot.joint_torque[:, 0].abs().max())
        reached[name] = float(most), float(backend.state.robot.joint_pos[0, 0])
    assert reached["strong"][0] == pytest.approx(30.0)  # its effort
    assert reached["weak"][0] <= 8.0 + 1e-5
    assert reached["weak"][1] < reached["strong"][1]


def test_gains_outside_the_simulator_are_scaled_for_all_or_for_some(tmp_path):
    robot = arm(tmp_path, PD, PD)
    scene = replace(Scene.of(robot), params=("robot/gain_scale/elbow",))
    backend = in_mujoco(scene)
    assert {"gain_scale", "robot/gain_scale/elbow"} <= backend.capabilities.params
    backend.reset(EVERY, home_pose(robot, 4))
    backend.set_params(EVERY, {"gain_scale": torch.tensor([1.0, 0.5, 1.0, 0.5])})
    backend.set_params(EVERY, {"robot/gain_scale/elbow": torch.tensor([1.0, 1.0, 0.5, 0.5])})
    backend.step(home_targets(robot, 4) + 0.1, 1)
    # The first torque, from rest: kp 0.1 = 4 Nm.
    expected = [[4.0, 4.0], [2.0, 2.0], [4.0, 2.0], [2.0, 1.0]]
    assert backend.state.robot.joint_torque.tolist() == [pytest.approx(row, abs=1e-4) for row in expected]
    assert backend.state.params["robot/gain_scale/elbow"].tolist() == [1.0, 1.0, 0.5, 0.5]
    with pytest.raises(ConfigError, match="motor_delay"):
        backend.set_params(EVERY, {"motor_delay": torch.zeros(4)})  # no delay has a range


def test_stiffness_damping_and_torque_limit_outside_the_simulator_scale_apart(tmp_path):
    robot = arm(tmp_path, PD, PD)
    scene = replace(Scene.of(robot), params=("kp_scale", "robot/kd_scale/elbow", "torque_scale"))
    backend = in_mujoco(scene)
    start = replace(home_pose(robot, 4), joint_vel=torch.full((4, 2), 0.5))
    backend.set_params(EVERY, {"kp_scale": torch.tensor([1.0, 2.0, 1.0, 1.0])})
    backend.set_params(EVERY, {"robot/kd_scale/elbow": torch.tensor([1.0, 1.0, 3.0, 1.0])})
    backend.reset(EVERY, start)
    backend.step(home_targets(robot, 4) + 0.1, 1)
    # kp 0.1 - kd 0.5 = 4 - 1 Nm.
    expected = [[3.0, 3.0], [7.0, 7.0], [3.0, 1.0], [3.0, 3.0]]
    assert backend.state.robot.joint_torque.tolist() == [pytest.approx(row, abs=1e-3) for row in expected]
    backend.set_params(EVERY, {"torque_scale": torch.tensor([1.0, 1.0, 0.5, 1.5])})
    backend.reset(EVERY, home_pose(robot, 4))
    backend.step(home_targets(robot, 4) + 2.0, 1)
    # 80 Nm are asked of motors that have 30 Nm.
    assert backend.state.robot.joint_torque[[0, 2, 3], 0].tolist() == pytest.approx(
        [30.0, 15.0, 45.0], abs=1e-3
    )


def test_a_torque_limit_above_that_of_a_joint_in_the_file_scales_with_the_motor(tmp_path):
    arm(tmp_path, PD, PD)
    path = tmp_path / "arm.xml"
    path.write_text(path.read_text().replace('name="shoulder"', 'name="shoulder" actuatorfrcrange="-30 30"'))
    robot = Robot.load(tmp_path)
    backend = in_mujoco(replace(Scene.of(robot), params=("torque_scale",)))
    backend.set_params(EVERY, {"torque_scale": torch.tensor([1.0, 1.0, 0.5, 1.5])})
    backend.reset(EVERY, home_pose(robot, 4))
    backend.step(home_targets(robot, 4) + 2.0, 1)
    # 80 Nm are asked of motors that have 30 Nm.
    assert backend.state.robot.joint_torque[:, 0].tolist() == pytest.approx(
        [30.0, 30.0, 15.0, 45.0], abs=1e-3
    )


def test_a_torque_limit_is_refused_where_the_simulator_has_no_such_parameter(tmp_path):
    scene = replace(Scene.of(arm(tmp_path, PD, PD)), params=("torque_scale",))
    with pytest.raises(ConfigError, match="torque_scale"):
        in_backend("differentiable", scene)


class Deaf(MujocoBackend):
    """A simulator that has none of the parameters that a scene names, and says so in its capabilities alone."""

    def __init__(self, scene: Scene) -> None:
        super().__init__(replace(scene, params=()), 4, "cpu", MujocoConfig(threads=1))


@pytest.mark.parametrize("name", ["kp_scale", "kd_scale", "torque_scale"])
def test_a_parameter_of_motors_inside_and_outside_is_no_ones_where_the_simulator_lacks_it(tmp_path, name):
    outside = f"robot/{name}/shoulder"
    scene = replace(Scene.of(arm(tmp_path, PD)), params=(name, outside))  # the elbow is in the simulator
    backend = with_motors(Deaf, scene)
    assert name not in backend.capabilities.params
    assert outside in backend.capabilities.params
    with pytest.raises(ConfigError, match=f"'{name}'"):
        backend.set_params(EVERY, {name: torch.full((4,), 0.5)})
    assert {name, outside} <= in_mujoco(scene).capabilities.params


def test_isaac_lab_is_asked_for_no_parameter_of_motors_outside_it_and_refuses_others(tmp_path):
    from robolearn.envs.isaaclab.backend import IsaacLabBackend
    from tests.envs.fake_isaaclab import ROBOT, YAML, FakeBridge

    (tmp_path / "strider.xml").write_text(ROBOT, encoding="utf-8")
    yaml = YAML.replace("{kind: position, kp: 20,", "{kind: position, model: explicit, kp: 20,")
    (tmp_path / "robot.yaml").write_text(yaml, encoding="utf-8")
    robot = Robot.load(tmp_path)

    def backend(*params: str) -> Backend:
        scene = replace(Scene.of(robot), params=params)
        return with_motors(lambda each: IsaacLabBackend(each, 4, "cpu", bridge=FakeBridge), scene)

    # The position actuator is outside Isaac Lab, and the force actuator in it.
    soft = backend("kp_scale")
    assert "kp_scale" in soft.capabilities.params
    soft.set_params(EVERY, {"kp_scale": torch.tensor([1.0, 0.5, 2.0, 1.0])})
    soft.reset(EVERY, home_pose(robot, 4))
    soft.step(home_targets(robot, 4) + 0.1, 1)
    # From rest: kp 0.1 = 2 Nm of a motor that has 5 Nm.
    assert soft.state.robot.joint_torque[:, 2].tolist() == pytest.approx([2.0, 1.0, 4.0, 2.0], abs=1e-4)
    for name in ("torque_scale", "robot/payload"):
        with pytest.raises(ConfigError, match=f"backend=isaaclab cannot set the parameter '{name}'"):
            backend(name)


def test_one_motor_outside_and_one_inside_the_solver(tmp_path):
    mixed, inside = arm(tmp_path, PD), arm(tmp_path)
    scene = replace(Scene.of(mixed), params=("robot/gain_scale",))
    backend, reference = in_mujoco(scene, timestep=0.0005), in_mujoco(inside, timestep=0.0005)
    for each in (backend, reference):
        each.reset(EVERY, home_pose(mixed, 4))
        for step in range(40):
            each.step(swing(mixed, step), 20)
    apart = backend.state.robot.joint_pos - reference.state.robot.joint_pos
    assert apart.abs().max() < 0.005
    backend.reset(EVERY, home_pose(mixed, 4))
    backend.set_params(EVERY, {"gain_scale": torch.full((4,), 0.5)})
    backend.set_params(EVERY, {"robot/gain_scale": torch.full((4,), 0.5)})
    backend.step(home_targets(mixed, 4) + 0.4, 1)
    # kp 0.4 / 4 = 4 Nm, of the one in the solver a little less, as it counts the motion within the substep.
    assert backend.state.robot.joint_torque[0].tolist() == pytest.approx([4.0, 4.0], abs=0.02)


def test_two_robots_have_motors_of_their_own(tmp_path):
    (tmp_path / "a").mkdir(), (tmp_path / "b").mkdir()
    first, second = arm(tmp_path / "a", DC), arm(tmp_path / "b", {**PD, "delay": 1.0})
    scene = Scene({"robot": first, "other": second}, places={"other": Place((0.0, 2.0, 0.0))})
    backend = in_mujoco(scene)
    alone = [in_mujoco(first), in_mujoco(second)]
    backend.reset(EVERY, {"robot": home_pose(first, 4), "other": home_pose(second, 4)})
    for each in alone:
        each.reset(EVERY, home_pose(first, 4))
    for step in range(20):
        backend.step({"robot": swing(first, step), "other": swing(second, step + 5)}, 5)
        alone[0].step(swing(first, step), 5)
        alone[1].step(swing(second, step + 5), 5)
    for name, each in (("robot", alone[0]), ("other", alone[1])):
        apart = backend.state.entities[name].joint_pos - each.state.robot.joint_pos
        assert apart.abs().max() < 1e-5, name
    before = backend.state.entities["other"].joint_pos.clone()
    backend.step({"robot": swing(first, 0)}, 5)  # the other holds its last joint targets
    assert (backend.state.entities["other"].joint_pos - before).abs().max() > 0


def test_divergence_within_a_control_step_is_reported(tmp_path):
    robot = arm(tmp_path, PD)
    backend = in_mujoco(robot)
    backend.reset(EVERY, home_pose(robot, 4))
    targets = home_targets(robot, 4)
    targets[1, 0] = torch.nan
    backend.step(targets, 5)
    assert backend.state.diverged.tolist() == [False, True, False, False]
    backend.reset(torch.tensor([False, True, False, False]), home_pose(robot, 4))
    backend.step(home_targets(robot, 4), 5)
    assert not backend.state.diverged.any()
    assert torch.isfinite(backend.state.robot.joint_pos).all()


def test_a_simulator_by_itself_refuses_motors_outside_of_it(tmp_path):
    with pytest.raises(ConfigError, match="motors"):
        MujocoBackend(arm(tmp_path, PD), 2)


@pytest.mark.skipif("differentiable" not in INSTALLED, reason="Warp is not installed")
@pytest.mark.parametrize("engine", ["own", pytest.param("newton", marks=pytest.mark.slow)])
def test_gradients_through_motors_are_those_of_finite_differences(tmp_path, engine):
    if engine == "newton":
        pytest.importorskip("newton")
    keys = {"delay": 0.3, "lag": 0.004, "saturation": 40.0, "no_load_speed": 30.0, "backlash": 0.002}
    robot = arm(tmp_path, {"model": "dc", **keys}, {**PD, "delay": 0.6})
    name = "differentiable" if engine == "own" else "differentiable:newton"
    backend = in_backend(name, robot, 2)
    start = home_pose(robot, 2)

    def last(targets: torch.Tensor) -> torch.Tensor:
        """Sum of the joint positions after three control steps."""
        backend.detach()
        backend.reset(torch.ones(2, dtype=torch.bool), start)
        for step in range(3):
            backend.step(targets[step], 5)
        return backend.state.robot.joint_pos.sum()

    targets = torch.stack([home_targets(robot, 2) + 0.1 * (step + 1) for step in range(3)]).requires_grad_()
    last(targets).backward()
    gradient = targets.grad
    assert gradient is not None
    with torch.no_grad():
        for index in ((0, 0, 0), (0, 0, 1), (1, 1, 0), (1, 0, 1)):
            change = torch.zeros_like(targets)
            change[index] = 0.02
            slope = (last(targets + change) - last(targets - change)) / 0.04
            assert float(gradient[index]) == pytest.approx(float(slope), rel=0.02, abs=2e-5), index
