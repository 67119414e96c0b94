"""Parts of a robot as robots of their own: names, State, joint targets, and what is refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import mujoco
import numpy as np
import pytest
import torch

from robolearn.envs import mjcf
from robolearn.envs.agents import AgentBackend
from robolearn.envs.backend import asked_features, require_features
from robolearn.envs.mujoco.backend import MujocoBackend
from robolearn.envs.parts import part
from robolearn.envs.robot import Robot
from robolearn.envs.scene import Contact, Object, Place, Scene
from robolearn.envs.state import InitialState, State
from robolearn.errors import ConfigError
from robolearn.export.robot_model import bundle_model, joint_facts
from robolearn.simulation.posed import Posed
from tests.factories import INSTALLED, load_robot

ARMS = load_robot("two_arms")
LEFT, RIGHT = part(ARMS, "left_"), part(ARMS, "right_")
BOX = Object("box", (0.1, 0.1, 0.1), position=(0.0, 0.0, 2.0))
NAMES = ("robot", "partner")
SCENE = Scene(
    {"robot": LEFT, "partner": RIGHT, "box": BOX},
    frames=dict.fromkeys(NAMES, ("palm",)),
    contacts={name: {"box": Contact(("hand",), "box")} for name in NAMES},
)
JOINTS = ("shoulder_yaw", "shoulder_pitch", "elbow_pitch", "wrist_pitch")

# A walker on a free base whose two legs are one hinge each, and a waist that is in neither of them.
WALKER = """
<mujoco>
  <compiler angle="radian"/>
  <worldbody>
    <body name="trunk" pos="0 0 1"> <freejoint/> <geom type="box" size="0.1 0.1 0.1" mass="500"/>
      <body name="a_leg" pos="0 0.2 0">
        <joint name="a_hip" axis="0 1 0" range="-1 1"/> <geom type="capsule" size="0.05" fromto="0 0 0 0 0 -0.4"/>
      </body>
      <body name="b_leg" pos="0 -0.2 0">
        <joint name="b_hip" axis="0 1 0" range="-1 1"/> <geom type="capsule" size="0.05" fromto="0 0 0 0 0 -0.4"/>
      </body>
    </body>
  </worldbody>
  <actuator>
    <position joint="a_hip" kp="50" forcerange="-90 90"/>
    <position joint="b_hip" kp="50" forcerange="-90 90"/>
  </actuator>
</mujoco>
"""


def walker(folder: Path, changed: tuple[str, str] = ("", "")) -> Robot:
    file = folder / "walker.xml"
    file.write_text(WALKER.replace(*changed) if changed[0] else WALKER)
    return Robot.load(file, {"feet": []})


def test_a_part_has_the_joints_home_and_actuators_of_its_side_without_the_prefix():
    assert LEFT.joints == RIGHT.joints == JOINTS
    assert LEFT.home == RIGHT.home == (0.0, 1.123, 1.984, -1.536)
    assert [actuator.kp for actuator in RIGHT.actuators] == [400, 500, 350, 80]
    assert LEFT.bodies == RIGHT.bodies == ("hand",)
    # Where its first body is: the right arm at x = 0.6 m, turned by half a turn, so that it faces -x.
    assert LEFT.part.position == (-0.6, 0.0, 0.4)
    assert LEFT.part.quat == (1.0, 0.0, 0.0, 0.0)
    assert RIGHT.part.position == (0.6, 0.0, 0.4)
    assert RIGHT.part.quat == pytest.approx((0.0, 0.0, 0.0, 1.0), abs=1e-6)
    assert LEFT.part.limits == ((-1.5, 1.5), (-0.6, 2.4), (-0.1, 2.7), (-2.6, 1.6))


def test_the_robot_is_simulated_once_and_the_state_shows_each_part_its_columns():
    backend = MujocoBackend(SCENE, 2)
    assert backend.model.nu == 8
    left, right = (torch.arange(8.0).view(2, 4) / 100 + offset for offset in (0.1, 0.5))
    still = torch.zeros(2, 3)
    backend.reset(
        torch.tensor([True, True]),
        {
            "robot": InitialState.at_rest(still, joint_pos=left),
            "partner": InitialState.at_rest(still, joint_pos=right),
        },
    )
    state, qpos = backend.state, backend._qpos
    assert torch.equal(state.robot.joint_pos, left)
    assert torch.equal(state.entities["partner"].joint_pos, right)
    address = [int(backend.model.joint(f"right_{name}").qposadr[0]) for name in JOINTS]
    assert torch.equal(qpos[:, address].float(), right)
    assert state.robot.base_pos.tolist() == [[pytest.approx(-0.6), 0.0, pytest.approx(0.4)]] * 2
    assert state.entities["partner"].base_pos[0].tolist() == pytest.approx([0.6, 0.0, 0.4])


def test_at_equal_joints_each_arm_sees_its_palm_at_the_same_place_of_its_base():
    backend = AgentBackend(MujocoBackend(SCENE, 1), SCENE, NAMES)
    joints = torch.tensor([LEFT.home]).repeat(2, 1)
    start = InitialState.at_rest(torch.zeros(2, 3), joint_pos=joints)
    backend.reset(torch.tensor([True, True]), dict.fromkeys(NAMES, start))
    palm = backend.state.robot.frames["palm"].pos
    # Forward 0.38 m and up 0.1 m: 0.3 sin 1.123 + 0.28 sin 3.107 + 0.1 sin 1.571, and 0.25 + the cosines.
    assert palm[0].tolist() == pytest.approx([-0.6 + 0.380, 0.0, 0.4 + 0.100], abs=1e-3)
    assert palm[1].tolist() == pytest.approx([0.6 - 0.380, 0.0, 0.4 + 0.100], abs=1e-3)


def test_joint_targets_move_the_joints_of_their_part_alone():
    backend = AgentBackend(MujocoBackend(SCENE, 2), SCENE, NAMES)
    home = torch.tensor([LEFT.home]).repeat(4, 1)
    backend.reset(
        torch.ones(4, dtype=torch.bool),
        dict.fromkeys(NAMES, InitialState.at_rest(torch.zeros(4, 3), joint_pos=home)),
    )
    targets = home.clone()
    targets[3, 0] = 0.5  # world 1, right arm
    for _ in range(50):
        backend.step(targets, 1)
    moved = (backend.state.robot.joint_pos[:, 0].abs() > 0.1).tolist()
    assert moved == [False, False, False, True]
    yaw = int(backend.worlds.model.joint("right_shoulder_yaw").qposadr[0])
    assert backend.worlds._qpos[1, yaw] == pytest.approx(0.5, abs=0.02)


def test_the_contact_forces_of_a_part_are_those_on_its_own_body():
    backend = MujocoBackend(SCENE, 1)
    bodies = [mjcf.contact_bodies(SCENE, name, SCENE.contacts[name]["box"]) for name in NAMES]
    assert bodies == [("left_hand",), ("right_hand",)]
    # The box put on the right hand, 0.1 m forward and up of its wrist.
    home = torch.tensor([LEFT.home])
    box = torch.tensor([[0.6 - 0.36, 0.0, 0.4 + 0.1 + 0.105]])
    backend.reset(
        torch.tensor([True]),
        {
            "robot": InitialState.at_rest(torch.zeros(1, 3), joint_pos=home),
            "partner": InitialState.at_rest(torch.zeros(1, 3), joint_pos=home),
            "box": InitialState.at_rest(box),
        },
    )
    most = torch.zeros(2)
    for _ in range(15):
        backend.step({"robot": home, "partner": home}, 1)
        felt = [backend.state.entities[name].contacts["box"].force.norm() for name in NAMES]
        most = torch.maximum(most, torch.stack(felt))
    assert most[0] == 0.0
    assert most[1] > 0.5


def test_one_part_of_all_joints_is_the_robot_bit_for_bit():
    arm = load_robot("arm")
    scenes = [Scene({"robot": one, "box": BOX}, frames={"robot": ("grip",)}) for one in (arm, part(arm, ""))]
    plain, parted = (MujocoBackend(scene, 3) for scene in scenes)
    generator = torch.Generator().manual_seed(0)
    for _ in range(20):
        targets = torch.tensor(arm.home) + 0.2 * torch.randn(3, 9, generator=generator)
        plain.step(targets, 2)
        parted.step(targets, 2)
    for name, tensor in plain.state.tensors().items():
        assert torch.equal(tensor, parted.state.tensors()[name]), name


def test_an_arm_by_itself_moves_as_it_does_beside_a_still_one():
    alone, both = MujocoBackend(Scene.of(LEFT), 1), MujocoBackend(SCENE, 1)
    assert {alone.model.body(i).name for i in range(alone.model.nbody)} == {
        "world", "bench", "base", "shoulder", "upper_arm", "forearm", "hand",
    }  # fmt: skip
    home = torch.tensor([LEFT.home])
    for backend, names in ((alone, NAMES[:1]), (both, NAMES)):
        start = InitialState.at_rest(torch.zeros(1, 3), joint_pos=home)
        backend.reset(torch.tensor([True]), dict.fromkeys(names, start))
        for _ in range(30):
            backend.step(dict.fromkeys(names, home) | {"robot": home + 0.2}, 1)
    assert torch.allclose(alone.state.robot.joint_pos, both.state.robot.joint_pos, atol=1e-5)
    assert torch.allclose(alone.state.robot.base_pos, both.state.robot.base_pos)


def test_the_bundle_of_a_part_holds_that_part_with_the_names_of_the_policy():
    model = mujoco.MjModel.from_xml_string(bundle_model(RIGHT, 0.01))
    assert [model.joint(i).name for i in range(model.njnt)] == list(JOINTS)
    assert [model.actuator(i).name for i in range(model.nu)] == list(JOINTS)
    # In the axes of its own base, in which both arms are alike.
    facts = joint_facts(LEFT)
    assert facts == joint_facts(RIGHT)
    assert facts["elbow_pitch"]["parent"] == "upper_arm"
    assert facts["shoulder_pitch"]["positive"] == "what points forward turns down"


def test_parts_of_a_free_base_share_it(tmp_path):
    robot = walker(tmp_path)
    scene = Scene({"robot": part(robot, "a_"), "partner": part(robot, "b_")}, floor=False)
    backend = AgentBackend(MujocoBackend(scene, 2), scene, NAMES)
    place = torch.tensor([[0.0, 0.0, 3.0], [0.0, 0.0, 3.0], [1.0, 0.0, 4.0], [1.0, 0.0, 4.0]])
    start = InitialState.at_rest(place, joint_pos=torch.zeros(4, 1))
    backend.reset(torch.ones(4, dtype=torch.bool), dict.fromkeys(NAMES, start))
    targets = torch.tensor([[0.0], [0.0], [0.0], [0.8]])
    for _ in range(50):
        backend.step(targets, 1)
    state = backend.state
    assert torch.equal(state.robot.base_pos[::2], state.robot.base_pos[1::2])
    assert state.robot.base_pos[::2, 2].tolist() != [3.0, 4.0]  # it falls
    assert (state.robot.joint_pos.abs() > 0.1).flatten().tolist() == [False, False, False, True]


def test_the_whole_robot_is_drawn_as_each_part_sees_the_world():
    backend = AgentBackend(MujocoBackend(SCENE, 2), SCENE, NAMES)
    targets = torch.tensor([LEFT.home]).repeat(4, 1)
    targets[:, 0] = torch.tensor([0.1, 0.2, 0.3, 0.4])
    for _ in range(60):
        backend.step(targets, 1)
    posed = Posed(SCENE)
    qpos = posed.placing.qpos(backend.state)
    assert np.array_equal(qpos[::2], qpos[1::2])
    yaw = [int(posed.model.joint(f"{side}_shoulder_yaw").qposadr[0]) for side in ("left", "right")]
    assert qpos[::2][:, yaw] == pytest.approx(np.array([[0.1, 0.2], [0.3, 0.4]]), abs=0.01)


def test_a_mass_that_is_randomized_for_a_part_is_its_own_bodies():
    scene = replace(SCENE, params=("partner/mass_scale/hand",))
    # The CPU backend sets masses in its own copy of the model; the names are what a part adds.
    found = MujocoBackend(scene, 1)._changes.parameters["partner/mass_scale/hand"].ids
    assert [MujocoBackend(scene, 1).model.body(int(i)).name for i in found] == ["right_hand"]


@pytest.mark.parametrize(
    ("make", "offender"),
    [
        (lambda: part(ARMS, "lefft_"), "'lefft_'.*did you mean left_"),
        (lambda: part(ARMS, "left_shoulder_yaw"), "left_shoulder_yaw"),
        (lambda: part(LEFT, "shoulder_"), "shoulder_"),
        (lambda: part(replace(ARMS, actuators=ARMS.actuators[4:]), "left_"), "left_.*actuator"),
        (lambda: part(ARMS, "left_elbow"), "left_elbow"),
        (lambda: Scene({"robot": LEFT, "partner": LEFT}), "left_shoulder_yaw.*robot and partner"),
        (lambda: Scene({"robot": LEFT, "partner": part(ARMS, "")}), "left_shoulder_yaw"),
        (lambda: Scene({"robot": LEFT, "p": RIGHT}, places={"p": Place((1, 0, 0))}), "places has p"),
        (lambda: Scene({"robot": load_robot("arm"), "p": RIGHT}), "p is a part of another robot than robot"),
        (lambda: Scene({"robot": LEFT, "p": part(load_robot("arm"), "")}), "p is a part of another robot"),
    ],
)
def test_parts_that_cannot_be_are_refused_by_name(make, offender):
    with pytest.raises(ConfigError, match=offender):
        make()


def test_a_joint_that_is_in_no_part_is_refused_by_its_name(tmp_path):
    robot = walker(tmp_path, ("a_hip", "hip"))
    with pytest.raises(ConfigError, match="no joint"):
        part(robot, "a_")
    waist = '<body name="w"> <joint name="waist" axis="0 0 1"/> <geom size="0.1"/> </body>'
    robot = walker(tmp_path, ('<body name="a_leg"', waist + '<body name="a_leg"'))
    with pytest.raises(ConfigError, match="waist is in no part"):
        Scene({"robot": part(robot, "a_"), "partner": part(robot, "b_")})


@pytest.mark.parametrize(
    ("change", "offender"),
    [({"home": (0.1, 1.123, 1.984, -1.536)}, "home"), ({"bodies": ()}, "bodies")],
)
def test_parts_that_are_not_alike_are_refused_as_agents_and_what_differs_is_named(change, offender):
    scene = replace(SCENE, entities={**SCENE.entities, "partner": replace(RIGHT, **change)})
    with pytest.raises(ConfigError, match=f"partner.*{offender}"):
        AgentBackend(MujocoBackend(SCENE, 2), scene, NAMES)


def test_parts_with_other_joint_limits_are_refused_as_agents(tmp_path):
    robot = walker(tmp_path, ('"b_hip" axis="0 1 0" range="-1 1"', '"b_hip" axis="0 1 0" range="-1 0.5"'))
    scene = Scene({"robot": part(robot, "a_"), "partner": part(robot, "b_")})
    with pytest.raises(ConfigError, match=r"partner.*joint limits"):
        AgentBackend(MujocoBackend(scene, 2), scene, NAMES)


def test_a_simulator_without_parts_refuses_them_by_name():
    assert asked_features(SCENE)["parts"] == "entities.robot"
    assert "robots" not in asked_features(SCENE)
    from robolearn.envs.isaaclab.backend import IsaacLabBackend  # its class needs no Isaac Lab

    with pytest.raises(ConfigError, match=r"isaaclab.*parts of a robot.*entities\.robot"):
        require_features(SCENE, "isaaclab", IsaacLabBackend.features)


def test_a_part_of_a_state_is_cloned_and_indexed_like_any_other():
    state = AgentBackend(MujocoBackend(SCENE, 2), SCENE, NAMES).state
    one: State = state.rows(torch.tensor([3]))
    assert one.robot.base_pos[0].tolist() == pytest.approx([0.6, 0.0, 0.4])
    assert one.in_world("robot", "base_pos")[0].tolist() == pytest.approx([-0.6, 0.0, 0.4])


@pytest.mark.slow
@pytest.mark.skipif("mujoco_warp" not in INSTALLED, reason="needs MuJoCo Warp")
def test_mujoco_warp_shows_each_part_what_mujoco_does():
    from robolearn.envs.mujoco_warp.backend import MujocoWarpBackend

    states = []
    for worlds in (MujocoBackend(SCENE, 2), MujocoWarpBackend(SCENE, 2, "cpu")):
        backend = AgentBackend(worlds, SCENE, NAMES)
        home = torch.tensor([LEFT.home]).repeat(4, 1)
        start = InitialState.at_rest(torch.zeros(4, 3), joint_pos=home)
        box = InitialState.at_rest(torch.tensor([[0.0, 0.0, 0.46]]).repeat(4, 1))
        backend.reset(torch.ones(4, dtype=torch.bool), dict.fromkeys(NAMES, start) | {"box": box})
        targets = home - torch.tensor([[0.05], [0.1], [0.15], [0.2]])  # away from the bench
        for _ in range(20):
            backend.step(targets, 1)
        states.append(backend.state)
    ours, theirs = states
    for entity in NAMES:
        a, b = ours.entities[entity], theirs.entities[entity]
        assert torch.allclose(a.joint_pos, b.joint_pos, atol=1e-3)
        assert torch.allclose(a.base_pos, b.base_pos, atol=1e-6)
        assert torch.allclose(a.base_quat, b.base_quat, atol=1e-6)
        # One of them is a substep behind the other: 0.01 s at up to 1 m/s.
        assert torch.allclose(a.frames["palm"].pos, b.frames["palm"].pos, atol=0.01)
