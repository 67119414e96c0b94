"""What goes into USD, and what is noticed when it does not come out again; without Isaac Lab."""

from __future__ import annotations

import mujoco
import numpy as np
import pytest

from robolearn.envs import isaaclab_install, mjcf
from robolearn.envs.isaaclab import usd
from robolearn.envs.isaaclab.fidelity import Match, differences
from robolearn.envs.robot import Robot
from robolearn.errors import ConfigError
from tests.envs.fake_isaaclab import ROBOT, YAML
from tests.factories import load_robot


def made(tmp_path, xml: str) -> Robot:
    (tmp_path / "strider.xml").write_text(xml)
    (tmp_path / "robot.yaml").write_text(YAML)
    return Robot.load(tmp_path)


@pytest.mark.parametrize("name", ["cartpole", "humanoid", "hopper", "ant"])
def test_a_cleaned_robot_weighs_what_it_did_and_keeps_only_what_collides(name):
    robot = load_robot(name)
    before = mjcf.build_model(robot, "isaaclab")
    model = mujoco.MjModel.from_xml_string(usd.written(usd.clean(robot)))
    assert np.allclose(model.body_mass, before.body_mass)
    assert np.allclose(model.body_inertia, before.body_inertia)
    assert np.allclose(model.body_ipos, before.body_ipos)
    floor = int(robot.base is not None or bool(robot.feet))
    colliding = before.geom_contype | before.geom_conaffinity
    assert model.ngeom == np.count_nonzero(colliding) - floor
    assert model.nsite == model.nlight == model.nmat == model.nu == 0
    # The order of the alphabet is that of MuJoCo.
    joints = [
        model.joint(j).name for j in range(model.njnt) if model.jnt_type[j] != mujoco.mjtJoint.mjJNT_FREE
    ]
    for labels in (joints, [model.body(b).name for b in range(1, model.nbody)]):
        assert labels == sorted(labels)
    assert [usd.number_of(f"/World/{model.body(b).name}") for b in range(1, 3)] == [1, 2]


def test_materials_and_the_worlds_own_geoms_do_not_come_along(tmp_path):
    xml = ROBOT.replace(
        "<default><geom ",
        '<asset><material name="red" rgba="1 0 0 1"/></asset><default><geom material="red" ',
    )
    xml = xml.replace(
        "<worldbody>", '<worldbody><geom type="plane" size="0 0 1" contype="1"/><light pos="0 0 3"/>'
    )
    text = usd.written(usd.clean(made(tmp_path, xml)))
    assert "red" not in text
    assert "plane" not in text
    assert "<light" not in text


@pytest.mark.parametrize(
    ("part", "said"),
    [
        ('<equality><weld body1="left" body2="right"/></equality>', "equality constraints"),
        ('<contact><exclude body1="left" body2="right"/></contact>', "contact exclusions"),
        ('<tendon><fixed name="t"><joint joint="swing" coef="1"/></fixed></tendon>', "tendons"),
    ],
)
def test_what_usd_would_lose_is_refused_by_name(tmp_path, part, said):
    robot = made(tmp_path, ROBOT.replace("</mujoco>", f"{part}</mujoco>"))
    with pytest.raises(ConfigError, match=f"has {said}, which backend=isaaclab does not take over"):
        usd.clean(robot)


def test_joints_with_different_anchors_on_one_body_are_refused(tmp_path):
    robot = made(tmp_path, ROBOT.replace('name="turn" ', 'name="turn" pos="0.1 0 0" '))
    with pytest.raises(ConfigError, match="the joints of body left have different pos"):
        usd.clean(robot)


def test_the_cache_follows_the_content(tmp_path, monkeypatch):
    monkeypatch.setattr(usd.importlib.metadata, "version", lambda name: "1.0")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    converted = []

    def convert(xml, folder):
        converted.append(xml.read_text())
        folder.mkdir()
        (folder / "robot.usdc").write_bytes(b"")

    monkeypatch.setattr(usd, "convert", convert)
    (tmp_path / "robot").mkdir()
    robot = made(tmp_path / "robot", ROBOT)
    first = usd.robot_usd(robot)
    assert usd.robot_usd(robot) == first
    assert len(converted) == 1
    heavier = usd.robot_usd(made(tmp_path / "robot", ROBOT.replace('mass="3"', 'mass="4"')))
    assert heavier != first
    assert len(converted) == 2
    assert first.is_relative_to(tmp_path / "cache" / "robolearn" / "usd")
    monkeypatch.setattr(usd.importlib.metadata, "version", lambda name: "2.0")
    assert usd.robot_usd(robot) not in (first, heavier)
    assert not list((tmp_path / "cache").rglob(".*")), "what it was built in is gone"


def test_a_conversion_that_fails_leaves_nothing_behind(tmp_path, monkeypatch):
    monkeypatch.setattr(usd.importlib.metadata, "version", lambda name: "1.0")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))

    def convert(xml, folder):
        raise RuntimeError("no")

    monkeypatch.setattr(usd, "convert", convert)
    (tmp_path / "robot").mkdir()
    with pytest.raises(RuntimeError, match="no"):
        usd.robot_usd(made(tmp_path / "robot", ROBOT))
    assert not list((tmp_path / "cache" / "robolearn" / "usd").iterdir())


def test_of_two_processes_that_convert_at_once_the_second_takes_the_firsts(tmp_path, monkeypatch):
    monkeypatch.setattr(usd.importlib.metadata, "version", lambda name: "1.0")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "robot").mkdir()
    robot = made(tmp_path / "robot", ROBOT)

    def convert(xml, folder):
        folder.mkdir()
        (folder / "robot.usdc").write_bytes(b"")
        if not nested:  # while this one works, the other one begins and ends
            nested.append(True)
            nested.append(usd.robot_usd(robot))

    nested: list = []
    monkeypatch.setattr(usd, "convert", convert)
    assert usd.robot_usd(robot) == nested[1]
    assert nested[1].is_file()
    assert len(list((tmp_path / "cache" / "robolearn" / "usd").iterdir())) == 1


# ------------------------------------------------------------------ what came out


SWAPPED = ["world", "trunk", "right", "left"]


def pair(tmp_path, xml: str):
    """The strider, and another one."""
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    return (
        mjcf.build_model(made(tmp_path / folder, x), "isaaclab") for folder, x in (("a", ROBOT), ("b", xml))
    )


def swapped() -> str:
    """The strider with its right leg first."""
    left = ROBOT[ROBOT.index('      <body name="left"') : ROBOT.index('      <body name="right"')]
    return ROBOT.replace(left, "").replace(
        "    </body>\n  </worldbody>", f"{left}    </body>\n  </worldbody>"
    )


def test_the_same_robot_with_its_legs_in_another_order_is_the_same(tmp_path):
    ours, theirs = pair(tmp_path, swapped())
    assert [theirs.body(b).name for b in range(4)] == SWAPPED
    match = Match(ours, theirs, SWAPPED)
    assert match.bodies.tolist() == [0, 1, 3, 2]
    assert match.dofs.tolist() == [
        0,
        1,
        2,
        3,
        4,
        5,
        7,
        8,
        6,
    ]  # swing and turn, then drag; there drag is first
    assert differences(ours, theirs, match) == []


@pytest.mark.parametrize(
    ("was", "now", "said"),
    [
        ('armature="0.01"', 'armature="0.05"', "dof_armature[6] is 0.05, not 0.01"),
        ('damping="0.3"', 'damping="0.1"', "dof_damping[8] is 0.1, not 0.3"),
        ('range="-1 1"', 'range="-1 2"', "jnt_range[0, 1] is 2, not 1"),
        ('range="-1 1"', "", "jnt_limited differs"),
        ('mass="3"', 'mass="4"', "body_mass[1] is 4, not 3"),
        ('axis="0 0 1"', 'axis="0 0 -1"', "jnt_axis[1, 2] is -1, not 1"),
        ('size="0.05" pos', 'size="0.06" pos', "the colliding geoms"),
        ('contype="1" friction="0.7', 'contype="0" friction="0.7', "1 geoms collide, not 3"),
        ('contype="1" friction', 'contype="1" conaffinity="1" friction', "3 pairs of geoms can touch, not 2"),
    ],
)
def test_what_differs_is_told_with_both_values(tmp_path, was, now, said):
    ours, theirs = pair(tmp_path, ROBOT.replace(was, now))
    found = differences(ours, theirs, Match(ours, theirs, ["world", "trunk", "left", "right"]))
    assert any(said in line for line in found), found


def test_bodies_that_are_not_the_robots_are_refused(tmp_path):
    ours, theirs = pair(tmp_path, ROBOT)
    with pytest.raises(ValueError, match="has the bodies trunk, left with 9"):
        Match(ours, theirs, ["world", "trunk", "left"])


def test_the_install_line_is_for_this_python():
    assert isaaclab_install((3, 12)).startswith("pip install isaaclab==3.0.0 mujoco-usd-converter==0.6.1")
    other = isaaclab_install((3, 11))
    assert "python3.12 -m venv" in other
    assert "isaaclab==3.0.0 mujoco-usd-converter==0.6.1" in other
