"""The light collision set: which shapes of a robot can touch which."""

from __future__ import annotations

import mujoco
import numpy as np
import pytest

from robolearn.envs.contacts import colliding_pairs
from robolearn.envs.mjcf import build_model, home_qpos
from robolearn.envs.robot import Robot
from robolearn.envs.scene import ROBOT, Scene
from robolearn.errors import ConfigError
from tests.factories import load_robot


def light(robot: Robot) -> mujoco.MjModel:
    return build_model(Scene({ROBOT: robot}, collisions="light"))


def touching(model: mujoco.MjModel) -> set[frozenset[str]]:
    """The pairs of bodies that can touch."""
    bodies = [[model.body(model.geom_bodyid[g]).name for g in pair] for pair in colliding_pairs(model)]
    return {frozenset(pair) for pair in bodies}


def test_feet_touch_the_ground_legs_legs_and_arms_legs_and_arms():
    found = touching(light(load_robot("humanoid")))
    legs = {side: [f"{side}_{part}" for part in ("thigh", "shin", "foot")] for side in "lr"}
    arms = {side: [f"{side}_forearm", f"{side}_hand"] for side in "lr"}
    expected = {frozenset(("world", f"{side}_foot")) for side in "lr"}
    expected |= {frozenset((a, b)) for a in legs["l"] for b in legs["r"]}
    expected |= {frozenset((a, b)) for a in arms["l"] for b in arms["r"]}
    expected |= {frozenset((a, b)) for a in arms["l"] + arms["r"] for b in legs["l"] + legs["r"]}
    assert found == expected


def test_a_foot_of_the_humanoid_stands_on_its_four_spheres():
    model = light(load_robot("humanoid"))
    ground = [g for g in range(model.ngeom) if model.geom_bodyid[g] and model.geom_conaffinity[g] & 1]
    assert [int(model.geom_type[g]) for g in ground] == [int(mujoco.mjtGeom.mjGEOM_SPHERE)] * 8


def test_crossed_legs_push_each_other_apart_and_home_is_free_of_contacts():
    robot = load_robot("humanoid")
    for model in (light(robot), build_model(robot)):
        data = mujoco.MjData(model)
        data.qpos[:] = home_qpos(robot, model)
        mujoco.mj_forward(model, data)
        assert all(0 in model.geom_bodyid[contact.geom] for contact in data.contact)
        data.joint("l_hip_roll").qpos[0] = -0.4
        data.joint("r_hip_roll").qpos[0] = 0.4
        mujoco.mj_forward(model, data)
        assert any(0 not in model.geom_bodyid[contact.geom] for contact in data.contact)


FOOT = """
<mujoco><compiler angle="radian"/><worldbody>
  <body name="trunk" pos="0 0 0.5"><freejoint/><geom type="box" size="0.1 0.1 0.05" mass="5"/>
    {legs}
  </body></worldbody></mujoco>
"""
LEG = """
<body name="{name}_thigh" pos="0 {y} -0.05">
  <joint name="{name}_hip" axis="0 1 0" range="-1 1" armature="0.01"/>
  <geom type="capsule" fromto="0 0 -0.05 0 0 -0.35" size="0.03" mass="1"/>
  <body name="{name}_foot" pos="0 0 -0.4">
    <joint name="{name}_ankle" axis="0 1 0" range="-1 1" armature="0.01"/>
    <geom type="capsule" fromto="-0.05 -0.02 -0.03 0.10 -0.02 -0.03" size="0.01" mass="0.1"/>
    <geom type="capsule" fromto="-0.05 0.0 -0.03 0.11 0.0 -0.03" size="0.01" mass="0.1"/>
    <geom type="capsule" fromto="-0.05 0.02 -0.03 0.10 0.02 -0.03" size="0.01" mass="0.1"/>
    <geom type="capsule" fromto="0 0 0 0 0 0.05" size="0.01" mass="0.1"/>
  </body>
</body>
"""


def test_a_sole_of_many_capsules_becomes_four_spheres_at_its_corners(tmp_path):
    legs = LEG.format(name="left", y=0.1) + LEG.format(name="right", y=-0.1)
    (tmp_path / "biped.xml").write_text(FOOT.format(legs=legs), encoding="utf-8")
    robot = Robot.load(tmp_path / "biped.xml")
    full, model = build_model(robot), light(robot)
    corners = [
        model.geom_pos[g]
        for g in range(model.ngeom)
        if model.geom_conaffinity[g] & 1 and model.body(model.geom_bodyid[g]).name == "left_foot"
    ]
    expected = [(x, y, -0.03) for x in (-0.05, 0.10) for y in (-0.02, 0.02)]
    assert sorted(map(tuple, np.round(corners, 6))) == sorted(expected)
    assert np.allclose(model.body_mass, full.body_mass)
    assert np.allclose(model.body_inertia, full.body_inertia)


MESH_LEG = """
<body name="{name}_thigh" pos="0 {y} 0">
  <joint name="{name}_hip" axis="0 1 0" range="-1 1"/>
  <geom {leg} type="mesh" mesh="plate"/>
  <body name="{name}_foot" pos="0 0 -0.22">
    <joint name="{name}_ankle" axis="0 1 0" range="-1 1"/>
    <geom name="{name}_sole" type="box" size="0.08 0.04 0.01" mass="0.3"/>
    <geom name="{name}_toe" type="sphere" pos="0.09 0 0" size="0.01" mass="0.02"/>
    <geom name="{name}_ankle" type="box" pos="0 0 0.05" size="0.02 0.02 0.02" mass="0.02"/>
  </body>
</body>
"""
PLATE = " ".join(f"{x} {y} {z}" for x in (-0.12, 0.12) for y in (-0.01, 0.01) for z in (-0.2, 0))
ROBOT_OF_MESHES = """
<mujoco><compiler angle="radian"/><asset><mesh name="plate" vertex="{plate}"/></asset><worldbody>
  <body name="trunk" pos="0 0 0.3"><freejoint/><geom type="box" size="0.1 0.1 0.05" mass="5"/>
    <geom type="mesh" mesh="plate" contype="0" conaffinity="0" pos="0 0 0.2"/>{legs}
  </body></worldbody></mujoco>
"""


ARM = """
<body name="{name}_arm" pos="0.2 {y} 0.05">
  <joint name="{name}_shoulder" axis="0 1 0" range="-1 1" armature="0.01"/>
  <geom type="capsule" fromto="0 0 0 0 0 -0.2" size="0.02" mass="0.6"/>
  <body name="{name}_palm" pos="0 0 -0.25">
    <joint name="{name}_wrist" axis="0 1 0" range="-1 1" armature="0.01"/>
    <geom type="sphere" size="0.02" mass="0.1"/>
    <body name="{name}_thumb" pos="0 -0.02 -0.02">
      <joint name="{name}_thumb" axis="1 0 0" range="-1 1" armature="0.001"/>
      <geom type="sphere" size="0.01" mass="0.02"/>
    </body>
    <body name="{name}_finger" pos="0 0.02 -0.02">
      <joint name="{name}_finger" axis="1 0 0" range="-1 1" armature="0.001"/>
      <geom type="sphere" size="0.01" mass="0.02"/>
    </body>
  </body>
</body>
"""


def test_a_hand_with_fingers_is_the_palm_and_all_fingers_and_no_arm(tmp_path):
    file = tmp_path / "robot.xml"
    sides = (("left", 0.15), ("right", -0.15))
    limbs = [part.format(name=name, y=y) for part in (LEG, ARM) for name, y in sides]
    file.write_text(FOOT.format(legs="".join(limbs)))
    found = touching(light(Robot.load(file)))
    hands = {side: [f"{side}_{part}" for part in ("palm", "thumb", "finger")] for side, _ in sides}
    assert {frozenset((a, b)) for a in hands["left"] for b in hands["right"]} <= found
    assert {frozenset((hand, "left_thigh")) for hand in hands["left"] + hands["right"]} <= found
    assert not any({"left_arm", "right_arm"} & pair for pair in found)
    assert not any(pair <= set(hands["left"]) for pair in found)


def test_a_linkage_beside_a_foot_is_no_hand_that_holds_the_foot(tmp_path):
    rod = """<body name="{name}_rod" pos="0 0 -0.2"><joint name="{name}_rod" axis="0 1 0" range="-1 1" armature="0.01"/>
      <geom type="sphere" size="0.01" pos="0.1 0 0" mass="0.02"/></body></body>"""
    legs = [
        (LEG.rstrip().removesuffix("</body>") + rod).format(name=n, y=y)
        for n, y in (("left", 0.1), ("right", -0.1))
    ]
    file = tmp_path / "robot.xml"
    file.write_text(FOOT.format(legs="".join(legs)).replace('mass="5"', 'mass="50"'))
    found = touching(light(Robot.load(file)))
    assert frozenset(("left_foot", "right_foot")) in found
    assert not any({"left_thigh", "right_thigh"} & pair for pair in found)


def of_meshes(tmp_path, leg: str) -> Robot:
    """A biped with plates for legs, the collision geoms of which have a name or none, and one that is only seen."""
    legs = "".join(
        MESH_LEG.format(name=name, y=y, leg=leg and f'name="{name}_plate"')
        for name, y in (("left", 0.1), ("right", -0.1))
    )
    (tmp_path / "plates.xml").write_text(ROBOT_OF_MESHES.format(plate=PLATE, legs=legs), encoding="utf-8")
    return Robot.load(tmp_path / "plates.xml")


@pytest.mark.parametrize("leg", ["named", ""])
def test_legs_of_meshes_collide_as_capsules_and_weigh_what_the_meshes_do(tmp_path, leg):
    robot = of_meshes(tmp_path, leg)
    full, model = build_model(robot), light(robot)
    thigh = model.body("left_thigh").id
    kinds = {
        int(model.geom_type[g])
        for g in range(model.ngeom)
        if model.geom_bodyid[g] == thigh and (model.geom_contype[g] or model.geom_conaffinity[g])
    }
    assert kinds == {int(mujoco.mjtGeom.mjGEOM_CAPSULE)}
    assert full.body("left_thigh").mass == pytest.approx(0.24 * 0.02 * 0.2 * 1000)
    assert np.allclose(model.body_mass, full.body_mass)
    assert np.allclose(model.body_inertia, full.body_inertia)


def test_what_is_seen_of_a_robot_stays_as_it_is(tmp_path):
    robot = of_meshes(tmp_path, "")

    def seen(collisions: str) -> list[tuple[int, int]]:
        """Body and type of what is drawn: groups 0 to 2, of the robot."""
        model = build_model(Scene({ROBOT: robot}, collisions=collisions), visual=True)
        drawn = [g for g in range(model.ngeom) if model.geom_group[g] < 3 and model.geom_bodyid[g]]
        return [(int(model.geom_bodyid[g]), int(model.geom_type[g])) for g in drawn]

    assert seen("light") == seen("all")
    assert [kind for _, kind in seen("light")].count(int(mujoco.mjtGeom.mjGEOM_MESH)) == 3


def test_a_flat_sole_beside_a_toe_touches_the_ground_and_what_is_higher_does_not(tmp_path):
    model = light(of_meshes(tmp_path, ""))
    ground = {model.geom(g).name for g in range(model.ngeom) if model.geom_conaffinity[g] & 1}
    assert {name for name in ground if name.startswith("left")} == {"left_sole", "left_toe"}


def test_a_robot_without_legs_keeps_its_collisions():
    arm = load_robot("arm")
    assert touching(light(arm)) == touching(build_model(arm))


def test_an_unknown_collision_set_is_refused():
    with pytest.raises(ConfigError, match="collisions"):
        Scene({ROBOT: load_robot("humanoid")}, collisions="some")
