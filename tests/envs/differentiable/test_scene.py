"""Scenes on the differentiable backend: frames and contacts on both engines, and what is refused."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator

import mujoco
import numpy as np
import pytest
import torch

from robolearn.envs import mjcf
from robolearn.envs.differentiable.backend import DifferentiableBackend, DifferentiableConfig
from robolearn.envs.differentiable.engine import Layout
from robolearn.envs.differentiable.mechanics import Mechanics
from robolearn.envs.differentiable.parameters import Parameters
from robolearn.envs.differentiable.tree import ignored_contacts, read_tree
from robolearn.envs.robot import Robot
from robolearn.envs.scene import Contact, Object, Place, Scene
from robolearn.envs.state import Frame
from robolearn.errors import ConfigError
from tests.envs.scenes import GRAVITY, hopper
from tests.factories import home_pose, home_targets, load_robot

N = 2
EVERY = torch.ones(N, dtype=torch.bool)
FRAMES = ("tip", "l_leg", "trunk", "mark")
"""A turned site of a leg, a body, the base, and a site of the world."""
CONTACTS = {
    "feet": Contact(("r_leg", "l_leg"), "ground"),
    "trunk": Contact(("trunk",)),
    "leg": Contact(("l_leg",)),
}
SENSORS = {"pos": "pos", "quat": "quat", "lin_vel": "vel", "ang_vel": "angvel"}
Make = Callable[..., DifferentiableBackend]

newton = pytest.mark.skipif(
    importlib.util.find_spec("newton") is None, reason="the extra 'newton' is not installed"
)
engines = pytest.mark.parametrize("engine", ["own", pytest.param("newton", marks=newton)])


@pytest.fixture
def robot(tmp_path) -> Robot:
    folder = hopper(
        tmp_path,
        yaml_change=("\n  mujoco: {timestep: 0.005", "\n  differentiable: {timestep: 0.005"),
        xml_change=(
            '<site name="l_leg"',
            '<site name="tip" pos=".1 .2 -.3" quat=".6 0 .8 0"/>\n        <site name="l_leg"',
        ),
    )
    file = folder / "hopper.xml"
    file.write_text(file.read_text().replace("<worldbody>", '<worldbody><site name="mark" pos="1 2 3"/>'))
    return Robot.load(folder)


@pytest.fixture
def make() -> Iterator[Make]:
    """(scene, engine) -> backend of N environments, closed after the test."""
    made: list[DifferentiableBackend] = []

    def make(scene: Scene | Robot, engine: str = "own") -> DifferentiableBackend:
        made.append(DifferentiableBackend(scene, N, "cpu", DifferentiableConfig(engine=engine)))
        return made[-1]

    yield make
    for backend in made:
        backend.close()


def asking(robot: Robot) -> Scene:
    return Scene({"robot": robot}, frames={"robot": FRAMES}, contacts={"robot": CONTACTS})


def tumbling(robot: Robot):
    """In the air, turned and turning."""
    initial, turned = home_pose(robot, N, height=1.0), torch.tensor([0.9, 0.1, -0.2, 0.3])
    initial.base_quat[:] = turned / turned.norm()
    initial.base_lin_vel[:] = torch.tensor([0.3, -0.2, 0.1])
    initial.base_ang_vel[:] = torch.tensor([0.5, 0.4, -0.6])
    initial.joint_vel[:] = 0.3
    return initial


def at_row(scene: Scene, model: mujoco.MjModel, row: np.ndarray) -> mujoco.MjData:
    """MuJoCo's data, with all sensors, in the state of a row."""
    data, robot = mujoco.MjData(model), scene.robot
    base, count = 13 if robot.base else 0, len(robot.joints)
    if robot.base:
        data.qpos[:7], data.qvel[:6] = row[:7], row[7:13]
    for i, joint in enumerate(map(model.joint, robot.joints)):
        data.qpos[joint.qposadr[0]], data.qvel[joint.dofadr[0]] = row[base + i], row[base + count + i]
    mujoco.mj_forward(model, data)
    return data


def largest_error(scene: Scene, data: mujoco.MjData, frames: dict[str, Frame]) -> float:
    """The largest difference between the first row of any field of a frame and MuJoCo's sensor of it."""
    return max(
        np.abs(
            getattr(frames[name], field)[0].detach().double().numpy()
            - data.sensor(mjcf.frame_sensor(scene, "robot", name, kind)).data
        ).max()
        for name in scene.frames["robot"]
        for field, kind in SENSORS.items()
    )


# ---------------------------------------------------------------------- frames and contacts


@pytest.mark.parametrize(
    ("name", "names"),
    [("ant", ("torso", "l_front_foot", "r_hind_leg")), ("arm", ("grip", "forearm", "base"))],
)
def test_equations_of_frames_equal_mujocos_sensors_to_rounding(name, names):
    robot, random = load_robot(name), np.random.default_rng(2)
    scene, j = Scene({"robot": robot}, frames={"robot": names}), len(robot.joints)
    model = mjcf.build_model(scene, "differentiable")
    mechanics = Mechanics(read_tree(scene, model, {}), model.opt.timestep)
    quat = random.normal(size=4)
    base = [0.1, 0.2, 2.0, *(quat / np.linalg.norm(quat)), *random.normal(size=6)] if robot.base else []
    row = [*base, *(np.array(robot.home) + 0.2 * random.normal(size=j)), *random.normal(size=j)]
    seen = mechanics.outputs(row, [0.0] * len(robot.actuators), {})
    frames = Layout(scene).entity(torch.tensor([seen], dtype=torch.float64)).frames
    assert largest_error(scene, at_row(scene, model, np.array(row)), frames) < 1e-9


@engines
def test_frames_of_a_moving_robot_equal_mujocos_sensors(make, robot, engine):
    scene = asking(robot)
    backend, model = make(scene, engine), mjcf.build_model(scene, "differentiable")
    backend.reset(EVERY, tumbling(robot))
    for step in range(4):
        data = at_row(scene, model, backend.snapshot()["rows"][0].double().numpy())
        assert largest_error(scene, data, backend.state.robot.frames) < 1e-4, step
        backend.step(home_targets(robot, N) + 0.1 * step, 4)
    assert backend.state.robot.frames["tip"].ang_vel.abs().min() > 1e-3


@engines
def test_contact_forces_at_rest_equal_the_weight(make, robot, engine):
    backend = make(replaced_params(asking(robot), ("robot/mass_scale",)), engine)
    scale = torch.tensor([1.0, 1.4])
    backend.set_params(EVERY, {"robot/mass_scale": scale})
    backend.reset(EVERY, home_pose(robot, N))
    for _ in range(100):
        backend.step(home_targets(robot, N), 4 if engine == "own" else 20)
    entity = backend.state.robot
    feet = entity.contacts["feet"].force
    weight = mjcf.build_model(robot).body_mass.sum() * GRAVITY * scale.double().numpy()
    assert feet[:, :, 2].sum(dim=1).numpy() == pytest.approx(weight, rel=0.02)
    assert feet[:, :, :2].abs().max() < 0.02 * weight[0]
    # In the order that the scene has them, right before left.
    assert torch.equal(feet, entity.foot_force[:, [1, 0]])
    assert torch.equal(entity.contacts["leg"].force, feet[:, 1:])
    assert entity.contacts["feet"].touching().all()
    assert not entity.contacts["trunk"].force.any()


def replaced_params(scene: Scene, params: tuple[str, ...]) -> Scene:
    return Scene(scene.entities, scene.frames, scene.contacts, params=params)


@engines
@pytest.mark.parametrize("standing", [False, True], ids=["in the air", "standing"])
def test_gradients_of_frames_and_contacts_by_joint_targets_equal_differences(make, robot, engine, standing):
    backend, substeps = make(asking(robot), engine), 4 if engine == "own" else 20
    backend.reset(EVERY, home_pose(robot, N) if standing else tumbling(robot))
    for _ in range(50 if standing else 0):
        backend.step(home_targets(robot, N), substeps)
    start = backend.snapshot()
    turn = torch.tensor([1.0, -2.0, 0.5, 1.5])

    def results(targets: torch.Tensor) -> torch.Tensor:
        """(N, 3) position, orientation, velocity of the site; or its position and the forces on the feet."""
        backend.restore(start)
        for _ in range(3):
            backend.step(targets, substeps)
        tip, feet = backend.state.robot.frames["tip"], backend.state.robot.contacts["feet"].force
        if standing:
            return torch.stack((tip.pos[:, 2], 1e-2 * feet[:, 0, 2], 1e-2 * feet[:, 1, 2]), dim=1)
        return torch.stack((tip.pos[:, 2], tip.quat @ turn, tip.lin_vel[:, 2]), dim=1)

    targets, size = home_targets(robot, N), 1e-3 if standing else 2e-2
    targets[:, 0] += 0.01
    step = torch.zeros_like(targets)
    step[:, 0] = size  # the left leg [m]
    with torch.no_grad():
        differences = (results(targets + step) - results(targets - step)) / (2 * size)
    by_target = targets.clone().requires_grad_()
    found = results(by_target)
    gradients = torch.stack(
        [torch.autograd.grad(found[:, k].sum(), by_target, retain_graph=True)[0][:, 0] for k in range(3)],
        dim=1,
    )
    limit = 2e-2 if standing else 2e-3
    assert (gradients - differences).norm() < limit * differences.norm()
    assert (gradients.abs().amin(dim=0) > 1e-4).all()


def test_what_a_scene_asks_for_does_not_change_the_rest(make, robot):
    plain, asked = make(robot), make(asking(robot))
    for backend in (plain, asked):
        backend.reset(EVERY, home_pose(robot, N))
        for step in range(10):
            backend.step(home_targets(robot, N) + 0.02 * step, 4)
    rest = asked.state.robot.tensors()
    for name, tensor in plain.state.robot.tensors().items():
        assert torch.equal(tensor, rest[name]), name
    assert Layout(robot).shapes == {k: s for k, s in Layout(asking(robot)).shapes.items() if "." not in k}


# ---------------------------------------------------------------------- the scene


def test_initial_states_and_joint_targets_may_be_by_entity(make, robot):
    one, other = make(robot), make(robot)
    initial, targets = tumbling(robot), home_targets(robot, N) + 0.1
    one.reset(EVERY, initial)
    one.step(targets, 2)
    other.reset(EVERY, {"robot": initial})
    other.step({"robot": targets}, 2)
    for name, tensor in one.state.robot.tensors().items():
        assert torch.equal(tensor, other.state.robot.tensors()[name]), name
    other.reset(EVERY, {})  # where the scene has it: home, on its soles
    assert other.state.robot.base_pos[:, 2].tolist() == pytest.approx([robot.home_height] * N)
    with pytest.raises(ValueError, match="robot"):
        other.step({"cube": targets}, 2)


def test_an_entity_keeps_the_name_that_the_scene_gives_it(make):
    robot = load_robot("cartpole")
    backend = make(Scene({"cart": robot}, frames={"cart": ("pole",)}, params=("cart/mass_scale",)))
    assert backend.capabilities.params == {"friction", "cart/mass_scale"}
    backend.set_params(EVERY, {"cart/mass_scale": torch.tensor([1.0, 2.0])})
    backend.step({"cart": torch.ones(N, 1)}, 4)
    cart = backend.state.entities["cart"]
    assert list(backend.state.entities) == ["cart"]
    # Twice the mass, half the acceleration; the slider's damping changes that by less than a percent.
    assert (cart.joint_vel[0, 0] / cart.joint_vel[1, 0]).item() == pytest.approx(2.0, rel=1e-2)
    assert torch.allclose(cart.frames["pole"].lin_vel[:, 0], cart.joint_vel[:, 0], atol=1e-6)


def test_without_a_floor_nothing_holds_a_robot_with_feet(robot):
    scene = Scene({"robot": robot}, contacts={"robot": {"legs": Contact(("l_leg",))}}, floor=False)
    model = mjcf.build_model(scene, "differentiable")
    mechanics, targets = Mechanics(read_tree(scene, model, {}), model.opt.timestep), [0.0, 0.0]
    row = Layout(scene).rows(home_pose(robot, 1))[0].tolist()
    for _ in range(40):  # 0.2 s
        row = mechanics.substep(row, targets, {})
    assert row[9] == pytest.approx(-0.2 * GRAVITY)
    assert mechanics.outputs(row, targets, {})[-3:] == [0.0, 0.0, 0.0]


@newton
def test_without_a_floor_newton_has_no_contact_points(make, robot):
    backend = make(
        Scene({"robot": robot}, contacts={"robot": {"legs": Contact(("l_leg",))}}, floor=False), "newton"
    )
    for _ in range(10):  # 0.2 s
        backend.step(home_targets(robot, N), 20)
    falling = backend.state.robot
    assert falling.base_lin_vel[:, 2].tolist() == pytest.approx([-0.2 * GRAVITY] * N, rel=1e-4)
    assert not falling.contacts["legs"].force.any()


def test_the_fixed_base_of_an_arm_is_no_obstacle_and_a_table_is(tmp_path):
    arm = load_robot("arm")
    model = mjcf.build_model(arm, "differentiable")
    assert not read_tree(arm, model, {}).points
    assert any("body base" in pair for pair in ignored_contacts(model))
    table = (
        '<body name="table"><geom type="box" size="1 1 .1" pos="0 0 -1" contype="1" conaffinity="1"/></body>'
    )
    folder = hopper(tmp_path, xml_change=('<body name="trunk">', f'{table}<body name="trunk">'))
    with pytest.raises(ConfigError, match="it stands on a geom of body table"):
        DifferentiableBackend(Robot.load(folder), 1)


# ---------------------------------------------------------------------- parameters and refusals


def test_parameters_of_the_robot_join_those_of_the_scene(robot):
    names = ("robot/friction", "robot/mass_scale", "robot/gain_scale")
    scene = Scene({"robot": robot}, params=names)
    known = Parameters(scene, mjcf.build_model(scene, "differentiable"))
    engine = ("friction", "gain_scale", "mass_scale")
    row = dict(known.nominal)
    assert (row["friction"], row["robot/friction"]) == (1.0, 1.0)  # MuJoCo's default; the floor has 0.8

    def joined(**changed: float) -> list[float]:
        values = {**row, **{name.replace("robot_", "robot/"): value for name, value in changed.items()}}
        return known.of_engine(torch.tensor([[values[name] for name in known.names]]), engine)[0].tolist()

    assert joined() == [1.0, 1.0, 1.0]
    assert joined(mass_scale=2.0, robot_mass_scale=1.5, robot_gain_scale=0.5) == [1.0, 0.5, 3.0]
    # Of two surfaces the larger friction counts: the floor's 0.8, or what the scene's parameter sets it to.
    assert joined(robot_friction=0.25) == pytest.approx([0.8, 1.0, 1.0])
    assert joined(robot_friction=1.25)[0] == 1.25
    assert joined(robot_friction=0.25, friction=0.5)[0] == 0.5


@engines
@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"more": {"cube": Object()}}, r"objects .*entities\.cube"),
        ({"more": {"other": "robot"}}, r"several robots .*entities\.other"),
        ({"contacts": {"own": Contact(("l_leg",), "robot")}}, r"itself .*contacts\.robot\.own"),
        ({"contacts": {"own": Contact(("l_leg",), "robot/r_leg")}}, r"itself .*contacts\.robot\.own"),
        ({"params": ("robot/mass_scale/l_leg",)}, r"masses of some bodies .*robot/mass_scale/l_leg"),
        ({"params": ("robot/gain_scale/l_leg",)}, "robot/gain_scale/l_leg.*valid: friction, gain_scale"),
        ({"params": ("robot/friction/*_leg",)}, r"robot/friction/\*_leg.*valid: friction, gain_scale"),
        (
            {"contacts": {"foot": Contact(("l_leg",), "ground")}, "floor": False},
            r"contacts\.robot\.foot.*no floor",
        ),
        ({"frames": ("tipp",)}, "tipp.*did you mean tip"),
    ],
)
def test_what_it_cannot_do_is_refused_by_name_before_anything_is_compiled(robot, engine, change, words):
    more = {name: robot if entity == "robot" else entity for name, entity in change.get("more", {}).items()}
    scene = Scene(
        {"robot": robot, **more},
        frames={"robot": change.get("frames", ())},
        contacts={"robot": change.get("contacts", {})},
        places={name: Place((2.0, 0.0, 1.0)) for name in more if name == "other"},
        floor=change.get("floor"),
        params=change.get("params", ()),
    )
    with pytest.raises(ConfigError, match=words) as error:
        DifferentiableBackend(scene, 1, "cpu", DifferentiableConfig(engine=engine))
    assert "\n" not in str(error.value)
