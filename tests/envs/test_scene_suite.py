"""The shared suite for scenes of several entities, on every backend that has their features."""

from __future__ import annotations

import mujoco
import numpy as np
import pytest
import torch

from robolearn.envs import mjcf
from robolearn.envs.backend import asked_features
from robolearn.envs.robot import Robot
from robolearn.envs.scene import Contact, Object, Place, Scene
from robolearn.envs.state import InitialState, home, quat_rotate_inverse
from robolearn.errors import ConfigError
from tests.factories import home_targets, load_robot

pytestmark = pytest.mark.slow  # MuJoCo Warp compiles kernels for each scene
N = 3
EVERY = torch.ones(N, dtype=torch.bool)
CPU = torch.device("cpu")

LEGS_XML = """
<mujoco model="scissors">
  <compiler angle="radian" autolimits="true"/>
  <default><geom condim="3" friction="0.5 0.005 0.0001"/></default>
  <worldbody>
    <body name="hip" pos="0 0 1">
      <geom type="box" size="0.05 0.15 0.05" mass="1" contype="0" conaffinity="0"/>
      <body name="l_leg" pos="0 0.1 0">
        <joint name="l_leg" axis="1 0 0" range="-1.5 1.5" damping="0.5" armature="0.02"/>
        <geom type="capsule" size="0.03" fromto="0 0 -0.05 0 0 -0.5" mass="1"/>
      </body>
      <body name="r_leg" pos="0 -0.1 0">
        <joint name="r_leg" axis="1 0 0" range="-1.5 1.5" damping="0.5" armature="0.02"/>
        <geom type="capsule" size="0.03" fromto="0 0 -0.05 0 0 -0.5" mass="1"/>
      </body>
    </body>
  </worldbody>
</mujoco>
"""
LEGS_YAML = """
schema: 2
mjcf: scissors.xml
base: null
feet: []
bodies: []
joints: {l_leg: {home: 0.0}, r_leg: {home: 0.0}}
actuators:
  "*_leg": {kind: position, kp: 40, kd: 2, effort: 20}
mirror: null
solver:
  mujoco: {timestep: 0.005, integrator: implicitfast, iterations: 20, ls_iterations: 20}
  mujoco_warp: {timestep: 0.005, integrator: implicitfast, iterations: 20, ls_iterations: 20}
  isaaclab: {timestep: 0.005, integrator: implicitfast, iterations: 20, ls_iterations: 20}
"""


@pytest.fixture
def make(make_backend):
    """`make_backend` for scenes; a backend that lacks a feature of the scene must say so, and is skipped."""

    def build(scene: Scene, num_envs: int = N):
        if missing := asked_features(scene).keys() - make_backend.features:
            with pytest.raises(ConfigError, match="does not support"):
                make_backend(scene, num_envs)
            pytest.skip(f"it lacks {', '.join(sorted(missing))}")
        return make_backend(scene, num_envs)

    return build


def starts(scene: Scene, num_envs: int = N) -> dict[str, InitialState]:
    """Every entity where its scene has it."""
    return {name: home(scene, name, num_envs, CPU) for name in scene.entities}


def held(scene: Scene, num_envs: int = N) -> dict[str, torch.Tensor]:
    """Joint targets that hold every robot's home pose; force actuators apply nothing."""
    out = {}
    for name, robot in scene.robots.items():
        servos = torch.tensor([float(a.kind == "position") for a in robot.actuators])
        out[name] = home_targets(robot, num_envs) * servos
    return out


def trio() -> Scene:
    """A floating robot, a fixed-base arm beside it and a free cube."""
    return Scene(
        {"robot": load_robot("ant"), "arm": load_robot("arm"), "cube": Object(mass=0.2)},
        frames={"robot": ("torso",), "arm": ("grip", "hand"), "cube": ("cube",)},
        contacts={"cube": {"ground": Contact((), "ground"), "arm": Contact((), "arm")}},
        places={"arm": Place((1.5, 0.5, 0.0), (0.5**0.5, 0.0, 0.0, 0.5**0.5))},
    )


class Reference:
    """One float64 MuJoCo simulation of a scene from row 0 of the initial states."""

    def __init__(self, scene: Scene, given: dict[str, InitialState], backend) -> None:
        self.scene, self.model = scene, mjcf.build_model(scene, backend.capabilities.name)
        self.data = mujoco.MjData(self.model)
        for name, start in given.items():
            prefix = scene.prefix(name)
            if scene.moves(name):
                joint = mjcf.root_joint(scene, name, self.model)
                q, d = int(joint.qposadr[0]), int(joint.dofadr[0])
                self.data.qpos[q : q + 7] = [*start.base_pos[0], *start.base_quat[0]]
                turned = np.zeros(3)
                mujoco.mju_rotVecQuat(
                    turned, start.base_lin_vel[0].double().numpy(), start.base_quat[0].double().numpy()
                )
                self.data.qvel[d : d + 6] = [*turned, *start.base_ang_vel[0]]
            if name in scene.robots:
                robot = scene.robots[name]
                for i, label in enumerate(robot.joints):
                    joint = self.model.joint(prefix + label)
                    self.data.qpos[joint.qposadr[0]] = start.joint_pos[0, i]
                    self.data.qvel[joint.dofadr[0]] = start.joint_vel[0, i]
                for actuator, i in zip(robot.actuators, robot.actuated, strict=True):
                    if actuator.kind == "position":
                        number = self.model.actuator(prefix + actuator.joint).id
                        self.data.ctrl[number] = start.joint_pos[0, i]
        mujoco.mj_forward(self.model, self.data)

    def step(self, targets: dict[str, torch.Tensor], substeps: int) -> None:
        for name, values in targets.items():
            for actuator, value in zip(self.scene.robots[name].actuators, values[0], strict=True):
                number = self.model.actuator(self.scene.prefix(name) + actuator.joint).id
                self.data.ctrl[number] = float(value)
        for _ in range(substeps):
            mujoco.mj_step(self.model, self.data)

    def assert_matches(self, state, lag: int, tolerance: float) -> None:
        scene, data, model = self.scene, self.data, self.model
        expected = {}
        for name in scene.entities:
            prefix, entity = scene.prefix(name), state.entities[name]
            if scene.moves(name):
                joint = mjcf.root_joint(scene, name, model)
                q, d = int(joint.qposadr[0]), int(joint.dofadr[0])
                expected[f"{name} pos"] = entity.base_pos, data.qpos[q : q + 3]
                expected[f"{name} quat"] = entity.base_quat, data.qpos[q + 3 : q + 7]
                expected[f"{name} ang_vel"] = entity.base_ang_vel, data.qvel[d + 3 : d + 6]
            if name in scene.robots:
                joints = [model.joint(prefix + label) for label in scene.robots[name].joints]
                expected[f"{name} joints"] = entity.joint_pos, [data.qpos[j.qposadr[0]] for j in joints]
                expected[f"{name} speeds"] = entity.joint_vel, [data.qvel[j.dofadr[0]] for j in joints]
        if lag == 0:
            mujoco.mj_forward(model, data)
        for name, frames in scene.frames.items():
            for frame in frames:
                found = state.entities[name].frames[frame]
                for kind, value in (
                    ("pos", found.pos), ("quat", found.quat), ("vel", found.lin_vel), ("angvel", found.ang_vel),
                ):  # fmt: skip
                    sensor = data.sensor(mjcf.frame_sensor(scene, name, frame, kind))
                    expected[f"{name} {frame} {kind}"] = value, sensor.data.copy()
        for what, (found, value) in expected.items():
            mine, value = found[0].double().numpy(), np.asarray(value)
            off = np.abs(mine - value).max()
            if "quat" in what:  # a quaternion and its negative are one orientation
                off = min(off, np.abs(mine + value).max())
            assert off < tolerance, (what, off)


def test_a_floating_robot_an_arm_and_a_cube_move_as_in_mujoco(make):
    scene = trio()
    backend, given = make(scene), starts(scene)
    given["robot"].base_pos[:, 2] += 2.0
    turned = torch.tensor([0.9, 0.1, -0.2, 0.3])
    given["cube"] = InitialState(
        torch.tensor([[-1.0, 0.3, 3.0]]).repeat(N, 1),
        (turned / turned.norm()).repeat(N, 1),
        torch.tensor([[0.3, -0.2, 0.5]]).repeat(N, 1),
        torch.tensor([[2.0, -1.0, 0.5]]).repeat(N, 1),
        torch.zeros(N, 0),
        torch.zeros(N, 0),
    )
    given["arm"].joint_vel[:] = 0.2
    reference = Reference(scene, given, backend)
    backend.reset(EVERY, given)
    reference.assert_matches(backend.state, 0, 1e-4)
    for step in range(6):
        targets = held(scene)
        for number, values in enumerate(targets.values()):
            values += 0.1 * np.sin(0.4 * step + number)
        backend.step(targets, 2)
        reference.step(targets, 2)
        reference.assert_matches(backend.state, backend.capabilities.derived_lag, 5e-4)
    fixed = backend.state.entities["arm"]
    assert fixed.base_pos[0].tolist() == [1.5, 0.5, 0.0]
    assert fixed.base_quat[0].tolist() == pytest.approx([0.5**0.5, 0.0, 0.0, 0.5**0.5])


def test_a_reset_and_a_restore_of_a_scene_change_only_their_rows(make):
    scene = trio()
    backend, given = make(scene), starts(scene)
    given["cube"].base_pos[:] = torch.tensor([-1.0, 0.3, 0.5])
    backend.reset(EVERY, given)
    for _ in range(5):
        backend.step(held(scene), 2)
    saved, before = backend.snapshot(), backend.state.clone()
    backend.reset(torch.tensor([False, True, False]), given)
    for name, tensor in backend.state.tensors().items():
        assert torch.equal(tensor[[0, 2]], before.tensors()[name][[0, 2]]), name
    assert torch.allclose(backend.state.entities["cube"].base_pos[1], given["cube"].base_pos[1], atol=1e-6)
    for _ in range(3):
        backend.step(held(scene), 2)
    after = backend.state.clone()
    backend.restore(saved)
    for name, tensor in backend.state.tensors().items():
        assert torch.equal(tensor, before.tensors()[name]), name
    for _ in range(3):
        backend.step(held(scene), 2)
    if backend.capabilities.exact_restore:
        for name, tensor in backend.state.tensors().items():
            assert torch.equal(tensor[[0, 2]], after.tensors()[name][[0, 2]]), name


def test_an_entity_without_an_initial_state_starts_where_its_scene_has_it(make):
    cube = Object("sphere", (0.1,), position=(0.5, -0.4, 0.05))
    scene = Scene({"robot": load_robot("arm"), "ball": cube})
    backend = make(scene)
    backend.reset(EVERY, starts(scene)["robot"])
    for _ in range(10):
        backend.step(held(scene)["robot"], 1)
    assert backend.state.entities["ball"].base_pos[0].tolist() == pytest.approx([0.5, -0.4, 0.05], abs=1e-3)


def test_a_cube_that_pushes_another_passes_on_its_momentum_and_the_contact_force_is_its_rate(make):
    """In free fall, so that nothing else acts along x. 0.3 kg at 1 m/s: 0.3 Ns."""
    cubes = {"a": Object(mass=0.3), "b": Object(mass=0.1)}
    scene = Scene(
        {"robot": load_robot("arm"), **cubes},
        contacts={
            "a": {"b": Contact((), "b")},
            "b": {"a": Contact((), "a"), "ground": Contact((), "ground")},
        },
    )
    backend, given = make(scene), starts(scene)
    given["a"].base_pos[:] = torch.tensor([-1.0, 1.0, 4.0])
    given["b"].base_pos[:] = torch.tensor([-0.95, 1.0, 4.0])  # 1 cm between them
    given["a"] = InitialState.at_rest(given["a"].base_pos)
    given["a"].base_lin_vel = torch.tensor([[1.0, 0.0, 0.0]]).repeat(N, 1)
    backend.reset(EVERY, given)
    dt, impulse = backend.capabilities.timestep, torch.zeros(N, 2, 3)
    for _ in range(30):
        backend.step(held(scene), 1)
        entities = backend.state.entities
        impulse[:, 0] += dt * entities["a"].contacts["b"].force[:, 0]
        impulse[:, 1] += dt * entities["b"].contacts["a"].force[:, 0]
        assert not entities["b"].contacts["ground"].touching().any()
    velocity = [backend.state.entities[name].base_lin_vel[:, 0] for name in ("a", "b")]
    assert (velocity[1] > velocity[0]).all()  # they have parted, or move as one
    momentum = 0.3 * velocity[0] + 0.1 * velocity[1]
    assert momentum.tolist() == pytest.approx([0.3] * N, abs=1e-3)
    assert impulse[:, 1, 0].tolist() == pytest.approx((0.1 * velocity[1]).tolist(), abs=1e-3)
    assert impulse[:, 0, 0].tolist() == pytest.approx((0.3 * (velocity[0] - 1.0)).tolist(), abs=1e-3)


def test_a_plate_carries_the_weight_of_a_robot_and_the_ground_that_of_both(make):
    robot, plate = load_robot("ant"), Object("box", (2.0, 2.0, 0.05), mass=20.0, position=(0, 0, 0.025))
    scene = Scene(
        {"robot": robot, "plate": plate},
        contacts={
            "robot": {"plate": Contact(robot.feet, "plate"), "ground": Contact(robot.feet, "ground")},
            "plate": {"ground": Contact((), "ground"), "robot": Contact((), "robot")},
        },
    )
    backend, given = make(scene), starts(scene)
    given["robot"].base_pos[:, 2] += 0.05
    backend.reset(EVERY, given)
    for _ in range(150):
        backend.step(held(scene), 2)
    total = float(mjcf.build_model(robot).body_mass.sum()) * 9.81
    contacts = {name: backend.state.entities[name].contacts for name in scene.entities}
    on_feet = contacts["robot"]["plate"].force.sum(dim=1)
    assert on_feet[:, 2].tolist() == pytest.approx([total] * N, rel=0.02)
    assert contacts["plate"]["robot"].force[:, 0, 2].tolist() == pytest.approx([-total] * N, rel=0.02)
    assert contacts["plate"]["ground"].force[:, 0, 2].tolist() == pytest.approx([total + 196.2] * N, rel=0.02)
    assert not contacts["robot"]["ground"].touching().any()
    assert contacts["robot"]["plate"].touching(1.0).all()


def contact_force(model: mujoco.MjModel, data: mujoco.MjData, body: str) -> np.ndarray:
    """The net contact force on a body, world axes, summed from MuJoCo's own contacts."""
    number, total = model.body(body).id, np.zeros(3)
    for i in range(data.ncon):
        contact, wrench = data.contact[i], np.zeros(6)
        mujoco.mj_contactForce(model, data, i, wrench)
        force = contact.frame.reshape(3, 3).T @ wrench[:3]  # on the second geom
        bodies = [int(model.geom_bodyid[geom]) for geom in (contact.geom1, contact.geom2)]
        total += force * (bodies[1] == number) - force * (bodies[0] == number)
    return total


def test_legs_that_press_against_each_other_feel_mujocos_own_contact_force(make, tmp_path):
    (tmp_path / "scissors.xml").write_text(LEGS_XML)
    (tmp_path / "robot.yaml").write_text(LEGS_YAML)
    robot = Robot.load(tmp_path)
    scene = Scene(
        {"robot": robot},
        contacts={
            "robot": {"own": Contact(("l_leg", "r_leg"), "robot"), "left": Contact(("r_leg",), "robot/l_leg")}
        },
    )
    backend, given = make(scene), starts(scene)
    reference = Reference(scene, given, backend)
    backend.reset(EVERY, given)
    inward = {"robot": torch.tensor([[-0.6, 0.6]]).repeat(N, 1)}
    for _ in range(100):
        backend.step(inward, 2)
        reference.step(inward, 2)
    own = backend.state.robot.contacts["own"].force
    left = contact_force(reference.model, reference.data, "l_leg")
    assert np.linalg.norm(left) > 10.0
    scale = np.abs(left).max()
    assert np.abs(own[0, 0].numpy() - left).max() < 0.02 * scale
    assert np.abs(own[0, 1].numpy() + left).max() < 0.02 * scale  # action and reaction
    assert torch.allclose(
        backend.state.robot.contacts["left"].force[:, 0], own[:, 1], atol=0.02 * float(scale)
    )


def test_a_parameter_of_one_entity_changes_that_entity_alone(make):
    cube, ball = (
        Object(mass=0.5, position=(-0.5, 0, 0.02)),
        Object("sphere", (0.1,), 0.5, position=(-0.5, 1, 0.05)),
    )
    scene = Scene(
        {"robot": load_robot("arm"), "cube": cube, "ball": ball},
        contacts={name: {"ground": Contact((), "ground")} for name in ("cube", "ball")},
        params=("cube/mass_scale", "robot/gain_scale/elbow_*"),
    )
    backend = make(scene)
    assert backend.state.params["cube/mass_scale"].tolist() == [1.0] * N
    scale = torch.tensor([1.0, 2.0, 3.0])
    backend.set_params(EVERY, {"cube/mass_scale": scale})
    backend.set_params(torch.tensor([False, False, True]), {"robot/gain_scale/elbow_*": 0.1 * torch.ones(N)})
    backend.reset(EVERY, starts(scene))
    for _ in range(100):
        backend.step(held(scene), 2)
    forces = {
        name: backend.state.entities[name].contacts["ground"].force[:, 0, 2] for name in ("cube", "ball")
    }
    assert forces["cube"].tolist() == pytest.approx([4.905, 9.81, 14.715], rel=0.01)
    assert forces["ball"].tolist() == pytest.approx([4.905] * N, rel=0.01)
    elbow = scene.robot.joints.index("elbow_pitch")
    sag = (backend.state.robot.joint_pos - torch.tensor(scene.robot.home)).abs()
    assert sag[0, elbow] == pytest.approx(float(sag[1, elbow]), rel=1e-3)
    assert sag[2, elbow] > 5 * sag[0, elbow]  # a tenth of the stiffness
    copy = make(scene)
    copy.restore(backend.snapshot())
    assert copy.state.params["cube/mass_scale"].tolist() == scale.tolist()
    copy.step(held(scene), 2)
    backend.step(held(scene), 2)
    if backend.capabilities.exact_restore:
        for name, tensor in copy.state.tensors().items():
            assert torch.equal(tensor, backend.state.tensors()[name]), name


def test_a_push_moves_the_first_robot_alone(make):
    scene = trio()
    backend, given = make(scene), starts(scene)
    given["robot"].base_pos[:, 2] += 2.0
    given["cube"].base_pos[:] = torch.tensor([-1.0, 0.3, 2.0])
    backend.reset(EVERY, given)
    backend.push(EVERY, torch.tensor([[0.5, 0.2, 0.0]]).repeat(N, 1))
    backend.step(held(scene), 1)
    pushed, cube = backend.state.robot, backend.state.entities["cube"]
    world = quat_rotate_inverse(pushed.base_quat * torch.tensor([1.0, -1, -1, -1]), pushed.base_lin_vel)
    assert world[0, :2].tolist() == pytest.approx([0.5, 0.2], abs=0.05)
    assert cube.base_lin_vel[:, :2].abs().max() < 1e-5
