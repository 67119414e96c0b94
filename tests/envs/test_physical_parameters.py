"""Every physical parameter changes what the simulator does, by the amount that its value says, in each backend that has
it."""

import math

import pytest
import torch

from robolearn.config.registry import load
from robolearn.envs.backend import Backend
from robolearn.envs.robot import Robot
from robolearn.envs.scene import Object, Scene
from robolearn.envs.state import InitialState
from robolearn.errors import ConfigError

EVERY = torch.ones(2, dtype=torch.bool)
CRANE = """
<mujoco>
  <option timestep="0.002" integrator="implicitfast"/>
  <worldbody>
    <body name="rail" pos="0 0 3">
      <joint name="lift" type="slide" axis="0 0 1" armature="1"/>
      <geom name="rail" type="box" size="0.1 0.1 0.1" mass="2" contype="0" conaffinity="0"/>
      <body name="arm">
        <joint name="swing" axis="0 1 0"/>
        <geom name="arm" type="box" size="0.1 0.1 0.1" pos="0.5 0 0" mass="3" contype="0" conaffinity="0"/>
      </body>
    </body>
  </worldbody>
</mujoco>
"""
"""A mass of 2 kg that a motor lifts, with an armature of 1 kg, and 3 kg on an arm of 0.5 m that a servo swings."""
ROBOT = """
schema: 1
description: a crane
mjcf: crane.xml
bodies: [rail, arm]
joints:
  lift: {home: 0.0, actuator: motor}
  swing: {home: 0.0, actuator: servo}
actuators:
  motor: {kind: force, effort: 100}
  servo: {kind: position, kp: 50, kd: 12, effort: 20}
solver:
  mujoco: {timestep: 0.002, integrator: implicitfast, solver: Newton, iterations: 20}
  mujoco_warp: {timestep: 0.002, integrator: implicitfast, solver: Newton, iterations: 20}
"""
GRAVITY = 9.81


def crane(folder) -> Robot:
    (folder / "crane.xml").write_text(CRANE)
    (folder / "robot.yaml").write_text(ROBOT)
    return Robot.load(folder)


@pytest.fixture(params=["mujoco", "mujoco_warp"])
def backend_of(request, tmp_path):
    """Makes a backend of two cranes with these parameters."""
    robot = crane(tmp_path)
    made: list[Backend] = []

    def make(*params: str) -> Backend:
        cls = load("backends", request.param)
        made.append(cls(Scene({"robot": robot}, params=params), 2, "cpu", cls.config_class()))
        return made[-1]

    yield make
    for backend in made:
        backend.close()


def start(backend: Backend, swing: float = 0.0, velocity: tuple[float, float] = (0.0, 0.0), **values: float):
    """Set each parameter in the second of two environments, then begin at rest or with a velocity."""
    params = {
        name.replace("__", "/"): torch.stack(
            [backend.state.params[name.replace("__", "/")][0], torch.tensor(v)]
        )
        for name, v in values.items()
    }
    backend.set_params(EVERY, params)
    backend.reset(
        EVERY,
        InitialState(
            base_pos=torch.tensor([[0.0, 0.0, 0.0]]).repeat(2, 1),
            base_quat=torch.tensor([[1.0, 0.0, 0.0, 0.0]]).repeat(2, 1),
            base_lin_vel=torch.zeros(2, 3),
            base_ang_vel=torch.zeros(2, 3),
            joint_pos=torch.tensor([[0.0, swing]]).repeat(2, 1),
            joint_vel=torch.tensor([velocity]).repeat(2, 1),
        ),
    )


def accelerations(backend: Backend, force: float = 0.0, target: float = 0.0) -> torch.Tensor:
    """(2, 2) accelerations of lift [m/s^2] and swing [rad/s^2] over one step of 2 ms."""
    before = backend.state.robot.joint_vel.clone()
    backend.step(torch.tensor([[force, target]]).repeat(2, 1), 1)
    return (backend.state.robot.joint_vel - before) / 0.002


def lifted(mass: float, force: float, armature: float = 1.0) -> float:
    """Acceleration of a mass that a force lifts [m/s^2]: its weight pulls, the armature has none."""
    return (force - mass * GRAVITY) / (mass + armature)


def held(backend: Backend, force: float, **values: float) -> list[float]:
    """Accelerations of lift in both environments with the arm hanging straight down, where it does not swing."""
    start(backend, swing=math.pi / 2, **values)
    return accelerations(backend, force, target=math.pi / 2)[:, 0].tolist()


def test_a_payload_adds_its_mass(backend_of):
    got = held(backend_of("robot/payload/rail"), 60.0, robot__payload__rail=1.5)
    assert got == pytest.approx([lifted(5.0, 60.0), lifted(6.5, 60.0)], rel=1e-3)


def test_a_mass_and_a_payload_of_the_same_body_add_up(backend_of):
    backend = backend_of("robot/payload/rail", "robot/mass_scale/rail")
    got = held(backend, 60.0, robot__payload__rail=1.5, robot__mass_scale__rail=2.0)
    assert got == pytest.approx([lifted(5.0, 60.0), lifted(8.5, 60.0)], rel=1e-3)


def test_a_payload_of_nothing_leaves_the_constants_of_the_model(backend_of):
    got = held(backend_of("robot/payload/rail"), 60.0, robot__payload__rail=0.0)
    assert got[0] == got[1]


def test_an_armature_slows_the_motor_and_weighs_nothing(backend_of):
    got = held(backend_of("robot/armature_scale/lift"), 60.0, robot__armature_scale__lift=3.0)
    assert got == pytest.approx([lifted(5.0, 60.0), lifted(5.0, 60.0, armature=3.0)], rel=1e-3)


def test_dry_friction_takes_its_torque_from_a_moving_joint(backend_of):
    backend = backend_of("robot/joint_friction/lift")
    start(backend, swing=math.pi / 2, velocity=(1.0, 0.0), robot__joint_friction__lift=12.0)
    got = accelerations(backend, 60.0, math.pi / 2)[:, 0].tolist()
    assert got == pytest.approx([lifted(5.0, 60.0), lifted(5.0, 60.0 - 12.0)], rel=2e-2)


def test_dry_friction_holds_a_joint_that_is_pulled_less(backend_of):
    backend = backend_of("robot/joint_friction/lift")
    start(backend, swing=math.pi / 2, robot__joint_friction__lift=60.0)
    for _ in range(100):
        backend.step(torch.tensor([[0.0, math.pi / 2]]).repeat(2, 1), 1)
    # Free it falls g/1.2 t^2/2 = 0.16 m in 0.2 s.
    fallen = -backend.state.robot.joint_pos[:, 0]
    assert fallen[0].item() == pytest.approx(0.5 * GRAVITY / 1.2 * 0.2**2, rel=0.02)
    assert fallen[1] < 0.01


def test_damping_takes_a_force_in_proportion_to_speed(backend_of):
    backend = backend_of("robot/damping/lift")
    start(backend, swing=math.pi / 2, velocity=(2.0, 0.0), robot__damping__lift=5.0)
    got = accelerations(backend, 60.0, math.pi / 2)[:, 0].tolist()
    # The integrator takes the damping at the end of the step: (F - d v) / (m + h d).
    damped = (60.0 - 5.0 * GRAVITY - 5.0 * 2.0) / (6.0 + 0.002 * 5.0)
    assert got == pytest.approx([lifted(5.0, 60.0), damped], rel=1e-3)


def test_a_weaker_motor_saturates_sooner(backend_of):
    got = held(backend_of("torque_scale"), 80.0, torque_scale=0.5)
    # Its largest force is 100 N; 80 N are within that, and half of it is not.
    assert got == pytest.approx([lifted(5.0, 80.0), lifted(5.0, 50.0)], rel=1e-3)


def test_a_stronger_motor_has_more_than_its_file_says(backend_of):
    got = held(backend_of("torque_scale"), 140.0, torque_scale=1.3)
    assert got == pytest.approx([lifted(5.0, 100.0), lifted(5.0, 130.0)], rel=1e-3)


def test_a_weaker_servo_saturates_sooner(backend_of):
    backend = backend_of("robot/torque_scale/swing")
    start(backend, robot__torque_scale__swing=0.25)
    backend.step(torch.tensor([[0.0, 2.0]]).repeat(2, 1), 2)
    # It asks for 50 * 2 = 100 Nm and has 20, or 5.
    assert backend.state.robot.joint_torque[:, 1].tolist() == pytest.approx([20.0, 5.0], rel=1e-3)


@pytest.mark.parametrize(
    ("name", "expected"),
    [("kp_scale", [-5.0 + 2.4, -10.0 + 2.4]), ("kd_scale", [-5.0 + 2.4, -5.0 + 4.8])],
)
def test_stiffness_and_damping_of_a_servo_scale_apart(backend_of, name, expected):
    backend = backend_of(name)
    # 50 Nm/rad pull back from 0.1 rad, and 12 Nm s/rad brake -0.2 rad/s.
    start(backend, swing=0.1, velocity=(0.0, -0.2), **{name: 2.0})
    backend.step(torch.zeros(2, 2), 1)
    # The torque that is published belongs to the start of the step.
    assert backend.state.robot.joint_torque[:, 1].tolist() == pytest.approx(expected, rel=0.05)


def test_a_centre_of_mass_further_out_pulls_harder(backend_of):
    backend = backend_of("robot/com_x/arm")
    start(backend, robot__com_x__arm=0.1)
    for _ in range(10):
        backend.step(torch.tensor([[5 * GRAVITY, 0.0]]).repeat(2, 1), 50)
    # The servo gives way by q until 50 q = 3 g r cos q: 14.13 Nm at r = 0.5 m, 16.69 Nm at 0.6 m.
    held_back = -backend.state.robot.joint_torque[:, 1]
    assert held_back.tolist() == pytest.approx([14.13, 16.69], rel=0.01)


def test_a_larger_inertia_turns_slower(backend_of):
    backend = backend_of("robot/inertia_scale/arm")
    start(backend, robot__inertia_scale__arm=10.0)
    swing = accelerations(backend, 5 * GRAVITY, target=0.3)[:, 1]
    # 3 kg at 0.5 m on a rail that gives way (2 + 1 + 3 kg): 0.75 - 1.5^2 / 6 = 0.375; a cube of 0.2 m has 0.02 kg m^2.
    # The servo's damping counts as h kd = 0.024 in an implicit step.
    light, heavy = 0.375 + 0.02 + 0.024, 0.375 + 0.2 + 0.024
    assert (swing[0] / swing[1]).item() == pytest.approx(heavy / light, rel=0.02)


def test_gravity_turns_about_both_axes(backend_of):
    backend = backend_of("gravity_pitch", "gravity_roll")
    start(backend, swing=math.pi / 2, gravity_pitch=0.5)
    got = accelerations(backend, 0.0, math.pi / 2)
    # R_y(0.5) (0, 0, -g) = g (-sin 0.5, 0, -cos 0.5): less along the rail, and the arm swings back, about +y.
    assert got[1, 0].item() == pytest.approx(got[0, 0].item() * math.cos(0.5), rel=0.02)
    assert abs(got[0, 1]) < 1e-3
    # 3 g sin 0.5 at 0.5 m on 0.75 + 0.02 kg m^2, and h kd as above.
    assert got[1, 1].item() == pytest.approx(3 * GRAVITY * math.sin(0.5) * 0.5 / 0.794, rel=0.02)
    start(backend, swing=math.pi / 2, gravity_pitch=0.0, gravity_roll=0.5)
    got = accelerations(backend, 0.0, math.pi / 2)
    assert got[1, 0].item() == pytest.approx(got[0, 0].item() * math.cos(0.5), rel=0.02)
    assert abs(got[1, 1]) < 1e-3  # its axis is y, and gravity turned within the plane of y and z


def test_gravity_that_rolls_pushes_to_the_left(tmp_path):
    # R_x(0.5) (0, 0, -g) = g (0, sin 0.5, -cos 0.5).
    scene = Scene({"robot": crane(tmp_path), "box": Object(mass=1.0)}, params=("gravity_roll",), floor=False)
    for name in ("mujoco", "mujoco_warp"):
        cls = load("backends", name)
        backend = cls(scene, 2, "cpu", cls.config_class())
        backend.set_params(EVERY, {"gravity_roll": torch.tensor([0.0, 0.5])})
        backend.reset(EVERY, {"box": InitialState.at_rest(torch.tensor([[2.0, 0.0, 5.0]]).repeat(2, 1))})
        backend.step({"robot": torch.zeros(2, 2)}, 50)
        fallen = backend.state.entities["box"].base_lin_vel[1]
        expected = [0.0, GRAVITY * math.sin(0.5) * 0.1, -GRAVITY * math.cos(0.5) * 0.1]
        assert fallen.tolist() == pytest.approx(expected, abs=1e-3)
        backend.close()


def test_both_backends_fall_alike_with_every_parameter_drawn(tmp_path):
    robot = crane(tmp_path)
    values = {
        "robot/payload/arm": 0.5,
        "robot/com_x/arm": 0.1,
        "robot/com_z/arm": -0.05,
        "robot/inertia_scale/arm": 2.0,
        "robot/mass_scale/rail": 1.3,
        "armature_scale": 1.5,
        "damping": 0.4,
        "joint_friction": 0.7,
        "kp_scale": 0.8,
        "kd_scale": 1.2,
        "gravity_pitch": 0.05,
    }
    ends = []
    for name in ("mujoco", "mujoco_warp"):
        cls = load("backends", name)
        scene = Scene({"robot": robot}, params=tuple(values))
        backend = cls(scene, 2, "cpu", cls.config_class())
        start(backend, swing=0.2, **{name.replace("/", "__"): value for name, value in values.items()})
        for _ in range(50):
            backend.step(torch.tensor([[40.0, 0.3]]).repeat(2, 1), 2)
        ends.append(backend.state.robot.joint_pos.clone())
        backend.close()
    assert torch.allclose(ends[0], ends[1], atol=2e-4)
    assert not torch.allclose(ends[0][0], ends[0][1], atol=0.01)


def test_other_environments_keep_their_parameters(backend_of):
    backend = backend_of("robot/payload/rail", "robot/com_x/arm")
    start(backend, swing=math.pi / 2, robot__payload__rail=1.5)
    backend.set_params(torch.tensor([True, False]), {"robot/com_x/arm": torch.tensor([0.2, 0.2])})
    got = accelerations(backend, 60.0, math.pi / 2)[:, 0].tolist()
    assert got[1] == pytest.approx(lifted(6.5, 60.0), rel=1e-3)


def test_a_snapshot_keeps_the_constants_that_follow_from_parameters(backend_of):
    backend = backend_of("robot/payload/rail", "robot/joint_friction/lift")
    start(backend, swing=1.0, robot__payload__rail=1.5, robot__joint_friction__lift=5.0)
    snapshot = backend.snapshot()
    targets = torch.tensor([[60.0, 0.2]]).repeat(2, 1)
    backend.step(targets, 20)
    first = backend.state.robot.joint_pos.clone()
    start(backend, swing=0.0, robot__payload__rail=0.2, robot__joint_friction__lift=0.0)
    backend.restore(snapshot)
    backend.step(targets, 20)
    assert torch.equal(backend.state.robot.joint_pos, first)


def test_a_backend_that_lacks_a_parameter_names_it(tmp_path):
    scene = Scene({"robot": crane(tmp_path)}, params=("robot/payload/rail",))
    cls = load("backends", "differentiable")
    with pytest.raises(ConfigError, match="robot/payload/rail"):
        cls(scene, 2, "cpu", cls.config_class())


@pytest.mark.parametrize("axis", [0, 1, 2])
@pytest.mark.parametrize("name", ["mujoco", "mujoco_warp"])
def test_a_free_object_spins_about_its_shifted_centre_of_mass(name, axis, tmp_path):
    # Its centre of mass is 3 cm ahead along an axis; it spins about the axis before that one.
    sideways, about = (axis + 1) % 3, (axis + 2) % 3
    changed = f"box/com_{'xyz'[axis]}"
    cls = load("backends", name)
    scene = Scene({"robot": crane(tmp_path), "box": Object(mass=1.0)}, params=(changed,), floor=False)
    backend = cls(scene, 2, "cpu", cls.config_class())
    backend.set_params(EVERY, {changed: torch.tensor([0.0, 0.03])})
    start = InitialState.at_rest(torch.tensor([[2.0, 0.0, 5.0]]).repeat(2, 1))
    start.base_ang_vel[:, about] = 10.0
    backend.reset(EVERY, {"box": start})
    for _ in range(50):
        backend.step({"robot": torch.tensor([[5 * GRAVITY, 0.0]]).repeat(2, 1)}, 1)
    box = backend.state.entities["box"]
    # A cube's inertia is the same about every axis: in free fall its spin stays.
    spin = torch.zeros(2, 3)
    spin[:, about] = 10.0
    assert torch.allclose(box.base_ang_vel, spin, atol=1e-3)
    # The origin turns by 1 rad about the centre of mass, and began at 0.03 m * 10 rad/s sideways.
    expected = [0.0, 0.0, 0.0]
    expected[axis] = 0.03 - 0.03 * math.cos(1.0)
    expected[sideways] = 0.03 * 10.0 * 0.1 - 0.03 * math.sin(1.0)
    moved = box.base_pos[1] - box.base_pos[0]
    assert moved.tolist() == pytest.approx(expected, abs=5e-4)
    backend.close()
