"""The conversion to USD and the check of its result; without Isaac Lab."""

from __future__ import annotations

import mujoco
import numpy as np
import pytest

from robolearn.config.tables import isaaclab_install
from robolearn.envs import mjcf
from robolearn.envs.isaaclab import usd
from robolearn.envs.isaaclab.fidelity import Match, differences
from robolearn.envs.robot import Robot
from robolearn.errors import ConfigError
from tests.envs.fake_isaaclab import ROBOT, YAML
from tests.factories import load_robot


def strider(tmp_path, xml: str) -> Robot:
    (tmp_path / "strider.xml").write_text(xml)
    (tmp_path / "robot.yaml").write_text(YAML)
    return Robot.load(tmp_path)


@pytest.mark.parametrize("name", ["cartpole", "humanoid", "hopper", "ant"])
def test_a_cleaned_robot_keeps_its_masses_and_only_colliding_geoms(name):
    robot = load_robot(name)
    before = mjcf.build_model(robot, "isaaclab")
    model = mujoco.MjModel.from_xml_string(usd.to_xml(usd.clean(robot)))
    assert np.allclose(model.body_mass, before.body_mass)
    assert np.allclose(model.body_inertia, before.body_inertia)
    assert np.allclose(model.body_ipos, before.body_ipos)
    floor = int(robot.base is not None or bool(robot.feet))
    colliding = before.geom_contype | before.geom_conaffinity
    assert model.ngeom == np.count_nonzero(colliding) - floor
    assert model.nsite == model.nlight == model.nmat == model.nu == 0
    # Sorted by name they are in MuJoCo's order.
    joints = [
        model.joint(j).name for j in range(model.njnt) if model.jnt_type[j] != mujoco.mjtJoint.mjJNT_FREE
    ]
    for labels in (joints, [model.body(b).name for b in range(1, model.nbody)]):
        assert labels == sorted(labels)
    assert [usd.mujoco_id(f"/World/{model.body(b).name}") for b in range(1, 3)] == [1, 2]


def test_materials_lights_and_geoms_of_the_world_are_removed(tmp_path):
    xml = ROBOT.replace(
        "<default><geom ",
        '<asset><material name="red" rgba="1 0 0 1"/></asset><default><geom material="red" ',
    )
    xml = xml.replace(
        "<worldbody>", '<worldbody><geom type="plane" size="0 0 1" contype="1"/><light pos="0 0 3"/>'
    )
    text = usd.to_xml(usd.clean(strider(tmp_path, xml)))
    assert "red" not in text
    assert "plane" not in text
    assert "<light" not in text


@pytest.mark.parametrize(
    ("part", "said"),
    [
        ('<equality><weld body1="left" body2="right"/></equality>', "equality constraints"),
        (
            '<contact><exclude body1="world" body2="right"/></contact>',
            "a contact exclusion with the body world",
        ),
        ('<tendon><fixed name="t"><joint joint="swing" coef="1"/></fixed></tendon>', "tendons"),
    ],
)
def test_elements_that_usd_would_lose_are_refused_by_name(tmp_path, part, said):
    robot = strider(tmp_path, ROBOT.replace("</mujoco>", f"{part}</mujoco>"))
    with pytest.raises(ConfigError, match=f"has {said}"):
        usd.clean(robot)


def test_contact_exclusions_follow_the_new_names_of_their_bodies(tmp_path):
    part = '<contact><exclude body1="left" body2="right"/></contact>'
    # A joint may have the name of another body.
    xml = ROBOT.replace("</mujoco>", f"{part}</mujoco>").replace('joint name="turn"', 'joint name="right"')
    (tmp_path / "strider.xml").write_text(xml)
    (tmp_path / "robot.yaml").write_text(YAML.replace("turn:", "right:"))
    robot = Robot.load(tmp_path)
    before = mjcf.build_model(robot, "isaaclab")
    names = [usd.usd_name("body", before.body(name).id) for name in ("left", "right")]
    model = mujoco.MjModel.from_xml_string(usd.to_xml(usd.clean(robot)))
    one, other = sorted(model.body(name).id for name in names)
    assert model.exclude_signature.tolist() == [(one << 16) + other]


def test_joints_with_different_anchors_on_one_body_are_refused(tmp_path):
    robot = strider(tmp_path, ROBOT.replace('name="turn" ', 'name="turn" pos="0.1 0 0" '))
    with pytest.raises(ConfigError, match=r"body left.* pos"):
        usd.clean(robot)


@pytest.mark.parametrize(
    ("was", "now", "said"),
    [
        ('name="turn" ', 'name="turn" actuatorfrcrange="-1 1" ', "joint turn has an actuatorfrcrange"),
        ('name="drag" ', 'name="drag" ref="0.5" ', "joint drag has a ref"),
        (
            '<geom type="sphere" size="0.05" pos="0 0 -0.45" mass="0" contype="1"',
            '<geom type="mesh" mesh="wedge" contype="1"',
            "mesh wedge has no file",
        ),
    ],
)
def test_elements_that_isaac_lab_would_read_differently_are_refused_by_name(tmp_path, was, now, said):
    wedge = '<asset><mesh name="wedge" vertex="0 0 0 .1 0 0 0 .1 0 0 0 -.3"/></asset><worldbody>'
    robot = strider(tmp_path, ROBOT.replace("<worldbody>", wedge).replace(was, now))
    with pytest.raises(ConfigError, match=said) as refusal:
        usd.clean(robot)
    assert "\n" not in str(refusal.value)


def test_a_mesh_that_does_not_collide_needs_no_file(tmp_path):
    wedge = '<asset><mesh name="wedge" vertex="0 0 0 .1 0 0 0 .1 0 0 0 -.3"/></asset><worldbody>'
    looks = ROBOT.replace("<worldbody>", wedge).replace(
        '<geom type="capsule" size="0.03" fromto="0 0 0 0 0 -0.4" mass="0.5"/>',
        '<geom type="mesh" mesh="wedge" mass="0.5"/>',
    )
    assert not usd.clean(strider(tmp_path, looks)).meshes


def test_a_robot_with_a_single_body_is_refused(tmp_path):
    start = ROBOT.index('      <body name="left"')
    robot = strider(tmp_path, ROBOT[:start] + "</body></worldbody></mujoco>")
    with pytest.raises(ConfigError, match="is a single body"):
        usd.clean(robot)


def test_usd_names_do_not_depend_on_the_robots_names(tmp_path):
    xml = ROBOT.replace('model="strider"', 'model="a/b.c"').replace('name="left"', 'name="b-1.x"')
    xml = xml.replace('name="right"', 'name="body0001"').replace("feet: [left, right]", "")
    xml = xml.replace('name="swing"', 'name="j+1"').replace('<geom type="box"', '<geom name="n-1" type="box"')
    model = mujoco.MjModel.from_xml_string(usd.to_xml(usd.clean(strider(tmp_path, xml))))
    assert [model.body(b).name for b in range(1, 4)] == ["body0001", "body0002", "body0003"]
    assert [model.joint(j).name for j in range(1, 4)] == ["joint0001", "joint0002", "joint0003"]
    assert [model.geom(g).name for g in range(model.ngeom)] == ["geom0000", "geom0001"]
    assert model.names.startswith(b"robot\0")
    assert usd.mujoco_id("/World/envs/env_0/Robot/Geometry/body0001/joint0003") == 3


def test_the_cache_key_is_a_hash_of_the_content_and_the_converters_version(tmp_path, monkeypatch):
    monkeypatch.setattr(usd.importlib.metadata, "version", lambda name: "1.0")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    converted = []

    def convert(xml, folder):
        converted.append(xml.read_text())
        folder.mkdir()
        (folder / "robot.usdc").write_bytes(b"usd")

    monkeypatch.setattr(usd, "convert", convert)
    (tmp_path / "robot").mkdir()
    robot = strider(tmp_path / "robot", ROBOT)
    first = usd.robot_usd(robot)
    assert usd.robot_usd(robot) == first
    assert len(converted) == 1
    heavier = usd.robot_usd(strider(tmp_path / "robot", ROBOT.replace('mass="3"', 'mass="4"')))
    assert heavier != first
    assert len(converted) == 2
    assert first.is_relative_to(tmp_path / "cache" / "robolearn" / "usd")
    monkeypatch.setattr(usd.importlib.metadata, "version", lambda name: "2.0")
    assert usd.robot_usd(robot) not in (first, heavier)
    assert not list((tmp_path / "cache").rglob(".*")), "the build folder is removed"


def test_a_failed_conversion_is_one_line_and_leaves_no_file(tmp_path, monkeypatch):
    monkeypatch.setattr(usd.importlib.metadata, "version", lambda name: "1.0")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))

    message = [""]

    def convert(xml, folder):
        raise RuntimeError(message[0])

    monkeypatch.setattr(usd, "convert", convert)
    (tmp_path / "robot").mkdir()
    robot = strider(tmp_path / "robot", ROBOT)
    messages = (  # a USD error, and another one
        "\n\tError in 'a.b' at line 52 in file b.py : 'Python runtime error: Mesh m is bad'",
        "Mesh m\nis bad",
    )
    for line in messages:
        message[:] = [line]
        with pytest.raises(ConfigError) as refusal:
            usd.robot_usd(robot)
        assert str(refusal.value).startswith(f"{robot.mjcf}: ")
        assert str(refusal.value).endswith(": Mesh m is bad")
    monkeypatch.setattr(usd, "convert", lambda xml, folder: folder.mkdir())
    with pytest.raises(ConfigError, match="nothing was written"):
        usd.robot_usd(robot)
    assert not list((tmp_path / "cache" / "robolearn" / "usd").iterdir())


@pytest.mark.parametrize("damage", ["missing", "empty"])
def test_a_missing_or_empty_cached_file_is_written_again(tmp_path, monkeypatch, damage):
    monkeypatch.setattr(usd.importlib.metadata, "version", lambda name: "1.0")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))

    def convert(xml, folder):
        folder.mkdir()
        (folder / "robot.usdc").write_bytes(b"usd")

    monkeypatch.setattr(usd, "convert", convert)
    (tmp_path / "robot").mkdir()
    robot = strider(tmp_path / "robot", ROBOT)
    for write in (lambda: usd.robot_usd(robot), usd.ground_usd):
        file = write()
        whole = file.read_bytes()
        assert whole
        if damage == "missing":
            file.unlink()
        else:
            file.write_bytes(b"")
        assert write() == file
        assert file.read_bytes() == whole


def test_an_unwritable_cache_is_refused_with_the_variable_to_set(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.raises(ConfigError, match=r"file/robolearn/usd: .*XDG_CACHE_HOME") as refusal:
        usd.ground_usd()
    assert "\n" not in str(refusal.value)

    def full(*words):
        raise OSError(28, "No space left on device")

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(usd.os, "replace", full)
    with pytest.raises(ConfigError, match=r"No space left on device.*XDG_CACHE_HOME"):
        usd.ground_usd()
    assert not list((tmp_path / "cache" / "robolearn" / "usd").iterdir())


def test_two_processes_that_convert_the_same_robot_at_once_get_one_file(tmp_path, monkeypatch):
    monkeypatch.setattr(usd.importlib.metadata, "version", lambda name: "1.0")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "robot").mkdir()
    robot = strider(tmp_path / "robot", ROBOT)

    def convert(xml, folder):
        folder.mkdir()
        (folder / "robot.usdc").write_bytes(b"usd")
        if not nested:  # another conversion starts and ends during this one
            nested.append(True)
            nested.append(usd.robot_usd(robot))

    nested: list = []
    monkeypatch.setattr(usd, "convert", convert)
    assert usd.robot_usd(robot) == nested[1]
    assert nested[1].is_file()
    assert len(list((tmp_path / "cache" / "robolearn" / "usd").iterdir())) == 1


# ------------------------------------------------------------------ comparing models


SWAPPED = ["world", "trunk", "right", "left"]


def pair(tmp_path, xml: str):
    """The models of the strider and of another MJCF."""
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    return (
        mjcf.build_model(strider(tmp_path / folder, x), "isaaclab")
        for folder, x in (("a", ROBOT), ("b", xml))
    )


def swapped() -> str:
    """The strider with its right leg first."""
    left = ROBOT[ROBOT.index('      <body name="left"') : ROBOT.index('      <body name="right"')]
    return ROBOT.replace(left, "").replace(
        "    </body>\n  </worldbody>", f"{left}    </body>\n  </worldbody>"
    )


def test_a_robot_with_its_legs_in_another_order_has_no_differences(tmp_path):
    ours, theirs = pair(tmp_path, swapped())
    assert [theirs.body(b).name for b in range(4)] == SWAPPED
    match = Match(ours, theirs, SWAPPED)
    assert match.bodies.tolist() == [0, 1, 3, 2]
    # swing, turn, drag in ours; drag, swing, turn in theirs
    assert match.dofs.tolist() == [*range(6), 7, 8, 6]
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
        ('size="0.05" pos', 'size="0.06" pos', "the shape of a sphere of body left"),
        (
            'contype="1" friction="0.7',
            'contype="0" friction="0.7',
            "body left lost a colliding geom: sphere",
        ),
        ('contype="1" friction', 'contype="1" conaffinity="1" friction', "1 of left and right, not 0"),
        (
            'mass="3"',
            'mass="3" contype="1"',
            "of body trunk that can touch another: box in Isaac Lab, none in MuJoCo",
        ),
        ('<body name="left"', '<body name="left" euler="0 0.1 0"', "the axes of body_quat"),
        ('<body name="left"', '<body name="left" gravcomp="1"', "body_gravcomp[2] is 1, not 0"),
        ('size="0.2 0.1 0.05" mass', 'size="0.2 0.1 0.05" euler="0 0.1 0" mass', "the inertia (kg m2 / "),
        ('name="drag"', 'name="drag" ref="0.5"', "qpos0[2] is 0.5, not 0"),
        ('name="drag"', 'name="drag" springref="0.5"', "qpos_spring[2] is 0.5, not 0"),
        ('name="drag"', 'name="drag" pos="0 0 0.1"', "jnt_pos[2, 2] is 0.1, not 0"),
        ('contype="1" friction', 'contype="1" priority="2" friction', "geom_priority of a sphere"),
        ('contype="1" friction', 'contype="1" solmix="2" friction', "geom_solmix of a sphere"),
        ("<default>", '<option density="1000"/><default>', "option density is 1000, not 0"),
        ("<default>", '<option viscosity="0.1"/><default>', "option viscosity is 0.1, not 0"),
        ("<default>", '<option wind="1 0 0"/><default>', "option wind[0] is 1, not 0"),
        ("<default>", '<option gravity="0 0 -1"/><default>', "option gravity[2] is -1, not -9.81"),
        ("<default>", '<option><flag gravity="disable"/></option><default>', "the flag gravity is disabled"),
        ("<default>", '<option><flag override="enable"/></option><default>', "the flag override is enabled"),
    ],
)
def test_differences_name_the_field_and_both_values(tmp_path, was, now, said):
    ours, theirs = pair(tmp_path, ROBOT.replace(was, now))
    found = differences(ours, theirs, Match(ours, theirs, ["world", "trunk", "left", "right"]))
    assert any(said in line for line in found), found


SHIN = '<geom type="capsule" size="0.03" fromto="0 0 0 0 0 -0.4" mass="0.5"/>'


@pytest.mark.parametrize(
    ("ours", "theirs", "same"),
    [
        ('type="box" size=".1 .2 .3"', 'type="box" size=".2 .1 .3" euler="0 0 1.57079633"', True),
        ('type="box" size=".1 .2 .3"', 'type="box" size=".1 .2 .3" euler="0 0 0.1"', False),
        ('type="capsule" size=".1 .2"', 'type="capsule" size=".1 .2" euler="3.14159265 0 1"', True),
        ('type="capsule" size=".1 .2"', 'type="capsule" size=".1 .2" euler="0.1 0 0"', False),
        ('type="cylinder" size=".1 .2"', 'type="cylinder" size=".1 .2" euler="3.14159265 0 1"', True),
        ('type="cylinder" size=".1 .2"', 'type="cylinder" size=".1 .21"', False),
        ('type="ellipsoid" size=".1 .2 .3"', 'type="ellipsoid" size=".1 .2 .3" euler="0.1 0 0"', False),
        ('type="mesh" mesh="m"', 'type="mesh" mesh="m" pos="0.01 0 0"', False),
        ('type="mesh" mesh="m"', 'type="mesh" mesh="other"', True),
    ],
)
def test_comparing_shapes_does_not_depend_on_their_axes(tmp_path, ours, theirs, same):
    points = ["0 0 0", ".1 0 0", "0 .2 0", "0 0 -.3"]
    meshes = f'''<asset><mesh name="m" vertex="{" ".join(points)}"/>
      <mesh name="other" vertex="{" ".join(points[::-1])}"/></asset><default>'''

    def scene(folder: str, shape: str) -> mujoco.MjModel:
        xml = ROBOT.replace("<default>", meshes).replace(SHIN, f'{SHIN}<geom {shape} mass="0" contype="1"/>')
        (tmp_path / folder).mkdir()
        return mjcf.build_model(strider(tmp_path / folder, xml), "isaaclab")

    one, two = scene("a", ours), scene("b", theirs)
    found = differences(one, two, Match(one, two, ["world", "trunk", "left", "right"]))
    assert (found == []) is same, found
    assert same or "the shape of a" in found[0]


def test_friction_solver_parameters_are_compared_only_with_joint_friction(tmp_path):
    for number, (loss, said) in enumerate((("0", []), ("0.1", ["dof_solref[0, 1] is 2, not 1"]))):
        (tmp_path / str(number)).mkdir()
        xml = ROBOT.replace('name="drag"', f'name="drag" frictionloss="{loss}"')
        ours, theirs = pair(
            tmp_path / str(number), xml.replace("frictionloss", 'solreffriction="0.02 2" frictionloss')
        )
        ours = mjcf.build_model(strider(tmp_path / str(number) / "a", xml), "isaaclab")
        assert differences(ours, theirs, Match(ours, theirs, ["world", "trunk", "left", "right"])) == said


def test_models_with_different_bodies_do_not_match(tmp_path):
    ours, theirs = pair(tmp_path, ROBOT)
    with pytest.raises(ValueError, match="trunk, left with 9"):
        Match(ours, theirs, ["world", "trunk", "left"])


def test_the_install_hint_depends_on_the_python_version():
    assert isaaclab_install((3, 12)).startswith("pip install isaaclab==3.0.0 mujoco-usd-converter==0.6.1")
    other = isaaclab_install((3, 11))
    assert "python3.12 -m venv" in other
    assert "isaaclab==3.0.0 mujoco-usd-converter==0.6.1" in other
