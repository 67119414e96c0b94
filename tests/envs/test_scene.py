"""Scenes as values: what they refuse, how their names appear in the model, and what parameters of a part change."""

import mujoco
import numpy as np
import pytest
import torch

from robolearn.envs import mjcf
from robolearn.envs.backend import asked_features, require_features
from robolearn.envs.kinematics import inverse
from robolearn.envs.mujoco.backend import MujocoBackend
from robolearn.envs.randomize import parameter
from robolearn.envs.robot import Robot
from robolearn.envs.scene import Contact, Object, Place, Scene
from robolearn.envs.state import State, packed_state, scene_state
from robolearn.errors import ConfigError
from tests.factories import load_robot

CPU = torch.device("cpu")


def two() -> Scene:
    return Scene({"robot": load_robot("arm"), "cube": Object(), "ant": load_robot("ant")})


@pytest.mark.parametrize(
    ("make", "offender"),
    [
        (lambda: Object("ball"), "ball"),
        (lambda: Object("sphere", (0.1, 0.1, 0.1)), "sphere"),
        (lambda: Object(size=(0.1, -0.1, 0.1)), "-0.1"),
        (lambda: Object("box", 0.1), "0.1"),
        (lambda: Object("box", ("a", "b", "c")), "box"),
        (lambda: Object(mass=0.0), "mass"),
        (lambda: Object(friction=float("nan")), "friction"),
        (lambda: Scene({"cube": Object()}), "robot"),
        (lambda: Scene({"ground": load_robot("arm")}), "ground"),
        (lambda: Scene({"a/b": load_robot("arm")}), "a/b"),
        (lambda: Scene({"robot": load_robot("arm")}, frames={"cub": ("x",)}), "cub"),
        (lambda: Scene({"robot": load_robot("arm")}, contacts={"robot": {"c": Contact(("hand",), "cube")}}), "cube"),
        (lambda: Scene({"robot": load_robot("arm")}, contacts={"robot": {"c": Contact()}}), "robot.c"),
        (lambda: Scene({"robot": load_robot("arm"), "c": Object()}, contacts={"c": {"x": Contact(("c",))}}), "c.x"),
        (lambda: Scene({"robot": load_robot("arm")}, places={"robot": Place((1, 0, 0))}), "robot"),
        (lambda: Scene({"robot": load_robot("arm"), "c": Object()}, places={"c": Place((1, 0, 0))}), "c"),
        (lambda: Scene({"robot": load_robot("arm"), "ant": load_robot("ant")}, places={"ant": Place()}), "ant"),
    ],
)  # fmt: skip
def test_a_scene_that_cannot_be_is_refused_by_name(make, offender):
    with pytest.raises(ConfigError, match=offender):
        make()


@pytest.mark.parametrize(
    ("asked", "offender"),
    [
        ({"frames": {"robot": ("gripp",)}}, "gripp"),
        ({"contacts": {"robot": {"c": Contact(("hnd",), "ground")}}}, "hnd"),
        ({"contacts": {"robot": {"c": Contact(("hand",), "ant/torsoo")}}}, "torsoo"),
    ],
)
def test_frames_and_contacts_that_the_files_lack_are_refused_by_name(asked, offender):
    scene = Scene(two().entities, **asked)
    with pytest.raises(ConfigError, match=f"'{offender}'.*did you mean"):
        mjcf.build_spec(scene)


def test_contacts_with_the_ground_need_a_floor():
    scene = Scene({"robot": load_robot("arm")}, contacts={"robot": {"c": Contact(("hand",), "ground")}})
    with pytest.raises(ConfigError, match="floor"):
        mjcf.build_spec(scene)


def test_the_first_robots_names_stay_and_those_of_others_begin_with_the_entity():
    model = mjcf.build_model(two())
    bodies = [model.body(i).name for i in range(model.nbody)]
    assert {"base", "hand", "cube/object", "ant/torso"} <= set(bodies)
    assert [model.actuator(i).name for i in range(9, 11)] == [
        f"ant/{actuator.joint}" for actuator in load_robot("ant").actuators[:2]
    ]
    assert model.geom("floor").id >= 0  # for the ant and the cube; a lone arm has none
    alone = mjcf.build_model(load_robot("arm"))
    assert mujoco.mj_name2id(alone, mujoco.mjtObj.mjOBJ_GEOM, "floor") == -1


def test_an_object_has_the_mass_and_inertia_of_its_shape():
    model = mjcf.build_model(
        Scene({"robot": load_robot("arm"), "box": Object("box", (0.1, 0.2, 0.3), mass=6.0)})
    )
    body = model.body("box/object")
    # A solid box: m (b^2 + c^2) / 12 about each axis.
    inertia = sorted([6.0 * (0.04 + 0.09) / 12, 6.0 * (0.01 + 0.09) / 12, 6.0 * (0.01 + 0.04) / 12])
    assert body.mass[0] == pytest.approx(6.0)
    assert sorted(body.inertia) == pytest.approx(inertia)


def test_nothing_is_computed_that_no_one_asks_for():
    plain = Scene({"robot": load_robot("arm"), "cube": Object()})
    asking = Scene(plain.entities, frames={"robot": ("grip",)}, contacts={"cube": {"any": Contact()}})
    assert mjcf.build_model(plain).nsensor == 0
    assert mjcf.build_model(asking).nsensor == 5  # position, orientation, two velocities; one force
    state = MujocoBackend(plain, 1).state
    assert state.robot.frames == {}
    assert state.entities["cube"].contacts == {}


def test_a_backend_names_the_feature_that_it_lacks_and_where_the_scene_asks_for_it():
    legs = {"robot": {"own": Contact(("hand",), "robot"), "down": Contact(("hand",), "ground")}}
    scene = Scene(
        two().entities, frames={"robot": ("grip",)}, contacts=legs, params=("robot/mass_scale/hand",)
    )
    assert set(asked_features(scene)) == {
        "objects", "robots", "frames", "self_contact", "contacts", "selected_masses",
    }  # fmt: skip
    with pytest.raises(ConfigError, match=r"backend=simple.*itself.*contacts\.robot\.own"):
        require_features(scene, "simple", frozenset(asked_features(scene)) - {"self_contact"})


@pytest.mark.parametrize(
    ("name", "kind", "expected"),
    [
        ("cube/friction", "geom", {"cube/object"}),
        ("robot/friction/*_finger", "body", {"l_finger", "r_finger"}),
        ("robot/mass_scale/hand", "body", {"hand"}),
        ("ant/mass_scale/torso", "body", {"ant/torso"}),
        ("robot/gain_scale/wrist_*", "actuator", {"wrist_pitch", "wrist_roll"}),
    ],
)
def test_a_parameter_of_a_part_changes_that_part(name, kind, expected):
    scene = two()
    model = mjcf.build_model(scene)
    ids = parameter(name, scene, model).ids
    if name.split("/")[1] == "friction" and kind == "body":
        ids = np.unique(model.geom_bodyid[ids])
    assert {getattr(model, kind)(int(i)).name for i in ids} == expected


@pytest.mark.parametrize(
    ("name", "offender"),
    [
        ("cub/friction", "cub"),
        ("cube/frction", "frction"),
        ("cube/friction/left", "cube"),
        ("robot/mass_scale/hnd", "hnd"),
        ("cube/gain_scale", "cube"),
    ],
)
def test_a_parameter_of_a_part_that_is_not_there_is_refused_by_name(name, offender):
    scene = two()
    with pytest.raises(ConfigError, match=offender):
        parameter(name, scene, mjcf.build_model(scene))


def test_friction_and_masses_of_a_part_refine_those_of_the_whole_scene():
    scene = Scene(two().entities, params=("cube/friction", "cube/mass_scale", "robot/mass_scale/hand"))
    backend = MujocoBackend(scene, 2)
    every = torch.ones(2, dtype=torch.bool)
    values = {
        "friction": 0.5,
        "mass_scale": 2.0,
        "cube/mass_scale": 3.0,
        "robot/mass_scale/hand": 1.5,
        "cube/friction": 0.9,
    }
    backend.set_params(every, {name: torch.full((2,), value) for name, value in values.items()})
    model, mass = backend.model, backend._batch.expand("body_mass")[1]
    assert mass[model.body("cube/object").id] == pytest.approx(6.0 * 0.1)
    hand = model.body("hand").id
    assert mass[hand] == pytest.approx(3.0 * model.body_mass[hand])
    torso = model.body("ant/torso").id
    assert mass[torso] == pytest.approx(2.0 * model.body_mass[torso])
    sliding = backend._batch.expand("geom_friction")[1, :, 0]
    assert sliding[model.geom("cube/object").id] == pytest.approx(0.9)
    assert sliding[model.geom("floor").id] == pytest.approx(0.5)


def test_a_packed_state_is_the_same_state_in_one_tensor():
    scene = Scene(two().entities, frames={"ant": ("torso",)})
    plain = State(scene_state(scene, 3, CPU)).tensors()
    entities, packed, starts = packed_state(scene, 3, CPU)
    views = State(entities).tensors()
    assert {name: tensor.shape for name, tensor in views.items()} == {n: t.shape for n, t in plain.items()}
    packed.copy_(torch.arange(float(len(packed))))
    # The second environment's second number of a tensor of 4 numbers each, which begins at 3 N there.
    begin = starts["ant/frames.torso.quat"]
    assert views["ant/frames.torso.quat"][1, 1] == 3 * begin + 4 + 1


def test_inverse_kinematics_puts_the_gripper_where_it_is_asked_to_be():
    robot = load_robot("arm")
    down = np.array([[0.0, 0.0, 1.0, 0.0]])
    position = np.array([[0.4, 0.1, 0.2]])
    joints = inverse(robot, "grip", position, down)
    scene = Scene({"robot": robot}, frames={"robot": ("grip",)})
    model = mjcf.build_model(scene)
    data = mujoco.MjData(model)
    for name, value in zip(robot.joints, joints[0], strict=True):
        data.qpos[model.joint(name).qposadr[0]] = value
    mujoco.mj_forward(model, data)
    assert data.sensor("frame:robot/grip:pos").data == pytest.approx(position[0], abs=1e-3)
    assert abs(data.sensor("frame:robot/grip:quat").data @ down[0]) == pytest.approx(1.0, abs=1e-5)


def test_inverse_kinematics_refuses_a_place_out_of_reach_and_a_site_that_is_not_there():
    robot, down = load_robot("arm"), np.array([[0.0, 0.0, 1.0, 0.0]])
    with pytest.raises(ConfigError, match=r"2\.00"):
        inverse(robot, "grip", np.array([[2.0, 0.0, 0.2]]), down)
    with pytest.raises(ConfigError, match="grap"):
        inverse(robot, "grap", np.array([[0.4, 0.0, 0.2]]), down)


def test_parts_of_a_scene_of_the_wrong_type_are_refused_by_name():
    robot = load_robot("cartpole")
    for made, offender in (
        (lambda: Scene([robot]), "entities"),
        (lambda: Scene({"robot": "cartpole"}), "robot"),
        (lambda: Scene({"robot": robot}, contacts={"robot": Contact(("pole",))}), "contacts.robot"),
        (lambda: Scene({"robot": robot}, frames=["pole"]), "frames"),
    ):
        with pytest.raises(ConfigError, match=offender):
            made()


def test_an_empty_selector_is_refused_by_the_parameters_name():
    scene = Scene({"robot": load_robot("cartpole")})
    with pytest.raises(ConfigError, match=r"robot/friction/"):
        parameter("robot/friction/", scene, mjcf.build_model(scene))


def test_a_snapshot_of_a_scene_with_other_parameters_is_refused_by_the_parameter():
    robot = load_robot("cartpole")
    more = MujocoBackend(Scene({"robot": robot}, params=("robot/mass_scale",)), 2, "cpu", {})
    plain = MujocoBackend(Scene({"robot": robot}), 2, "cpu", {})
    for here, other in ((more, plain), (plain, more)):
        with pytest.raises(ConfigError, match="robot/mass_scale"):
            here.restore(other.snapshot())
    more.close()
    plain.close()


def test_the_first_robots_options_hold_and_those_of_others_are_left_out_in_silence(tmp_path, recwarn, capfd):
    other = tmp_path / "other.xml"
    other.write_text(
        """<mujoco><option timestep="0.001" gravity="0 0 -1" cone="elliptic"/><worldbody><body name="arm" pos="0 0 1">
        <joint name="turn" axis="0 1 0" armature="0.01" actuatorfrcrange="-5 5"/><geom size="0.02 0.2" type="capsule"/>
        </body></worldbody></mujoco>"""
    )
    robots = {"robot": load_robot("humanoid"), "other": Robot.load(other)}
    model = mjcf.build_model(Scene(robots, places={"other": Place((1.0, 0.0, 0.0))}))
    assert (model.opt.timestep, model.opt.gravity[2]) == (0.01, -9.81)
    assert not recwarn.list
    assert "conflict" not in capfd.readouterr().err
