"""Broken MJCF and URDF files are refused in one line that names the file and the element."""

from pathlib import Path

import mujoco
import pytest

from robolearn.envs import mjcf, model_file
from robolearn.envs.robot import Robot
from robolearn.errors import ConfigError
from tests.envs.test_derive import biped, urdf

FREE = "<freejoint/>"
ASSET = '</worldbody>\n  <asset><mesh name="hull" file="{}"/></asset>'
MESH = '<collision><geometry><mesh filename="package://none/x.stl"/></geometry></collision>'
LINK = '<link name="FL_foot">'


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (("</worldbody>", ASSET.format("gone.stl")), ["gone.stl"]),
        (("</worldbody>", ASSET.format("huge.stl")), ["hull", "huge.stl", "200 MB"]),
        ((FREE, FREE + '<inertial pos="0 0 0" mass="nan" diaginertia="1 1 1"/>'), ["trunk"]),
        (("<worldbody>", '<extension><plugin plugin="my.magic"/></extension><worldbody>'), ["my.magic"]),
        (("</mujoco>", ""), ["XML"]),
        (("<mujoco", "<!DOCTYPE m [<!ENTITY a 'b'>]><mujoco"), ["entities"]),
        (('<mujoco model="biped">', "<sdf>"), ["XML"]),
    ],
)
def test_a_broken_mjcf_is_refused_by_name(tmp_path, change, words):
    with (tmp_path / "huge.stl").open("wb") as file:
        file.truncate(200_000_000)
    path = biped(tmp_path, change=change)
    with pytest.raises(ConfigError) as error:
        model_file.read(path)
    assert str(error.value).startswith(str(path))
    assert "\n" not in str(error.value)
    for word in words:
        assert word in str(error.value)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ((LINK, LINK + MESH), ["FL_foot", "package://none/x.stl"]),
        (("</robot>", '<link name="lone"/></robot>'), ["2 roots", "lone"]),
        (('<child link="FL_foot"/>', '<child link="trunk"/>'), ["trunk"]),
        (('<parent link="FL_thigh"/>', '<parent link="thigh"/>'), ["thigh"]),
        (('<mass value="5"/>', '<mass value="inf"/>'), ["trunk", "finite"]),
        (('<mass value="5"/>', '<mass value="heavy"/>'), ["trunk"]),
    ],
)
def test_a_broken_urdf_is_refused_by_name(tmp_path, change, words):
    path = urdf(tmp_path, change)
    with pytest.raises(ConfigError) as error:
        model_file.read(path)
    assert str(error.value).startswith(str(path))
    for word in words:
        assert word in str(error.value)


def test_a_file_that_changes_is_read_again(tmp_path):
    path = biped(tmp_path)
    assert model_file.read(path) is model_file.read(path)
    before = model_file.read(path).model.nbody
    path.write_text(
        path.read_text().replace(
            '<body name="l_foot"', '<body name="extra"><geom size=".01"/></body><body name="l_foot"'
        )
    )
    assert model_file.read(path).model.nbody == before + 1


def test_meshes_of_a_urdf_are_found_in_the_folders_above_it(tmp_path):
    shape = '<collision><geometry><mesh filename="package://walker_description/meshes/toe.obj"/></geometry></collision>'
    folder = tmp_path / "walker_description"
    (folder / "meshes").mkdir(parents=True)
    (folder / "urdf").mkdir()
    (folder / "meshes" / "toe.obj").write_text(
        "v 0 0 0\nv .1 0 0\nv 0 .1 0\nv 0 0 .1\nf 1 3 2\nf 1 2 4\nf 1 4 3\nf 2 3 4\n"
    )
    assert model_file.read(urdf(folder / "urdf", (LINK, LINK + shape))).model.nmesh == 1


def two_toes(folder: Path) -> Path:
    """A URDF with two meshes of one name, the second four times as large."""
    text = "v 0 0 0\nv {0} 0 0\nv 0 {0} 0\nv 0 0 {0}\nf 1 3 2\nf 1 2 4\nf 1 4 3\nf 2 3 4\n"
    for name, size in (("a", 0.1), ("b", 0.4)):
        (folder / name).mkdir()
        (folder / name / "toe.obj").write_text(text.format(size))
    shape = '<collision><geometry><mesh filename="{}/toe.obj"/></geometry></collision>'
    return urdf(folder, (LINK, LINK + shape.format("a") + shape.format("b")))


def test_meshes_of_one_name_in_two_folders_are_two_meshes(tmp_path):
    assert model_file.read(two_toes(tmp_path)).model.nmesh == 2


def test_names_of_the_file_that_are_those_of_added_elements_do_not_clash(tmp_path):
    sky = '<texture name="sky" type="2d" builtin="flat" width="4" height="4"/>'
    assets = f'<asset>{sky}<material name="floor"/></asset>'
    box = '<geom name="floor" type="box" size="1 1 .1" pos="0 0 -.1" material="floor"/>'
    named = ("<worldbody>", f"{assets}<worldbody>{box}")
    robot = Robot.load(biped(tmp_path, change=named))
    model = mjcf.build_model(robot, visual=True)
    assert model.geom("floor").type == int(mujoco.mjtGeom.mjGEOM_PLANE)
    assert model.geom("floor_of_the_file").type == int(mujoco.mjtGeom.mjGEOM_BOX)


def test_missing_visual_meshes_of_a_urdf_are_a_note_that_counts_and_names_them(tmp_path):
    visual = '<visual><geometry><mesh filename="package://none/{}.stl"/></geometry></visual>'
    path = urdf(tmp_path, (LINK, LINK + visual.format("sock") + visual.format("shoe")))
    (note,) = model_file.read(path).notes
    assert "2 visual meshes" in note
    assert "package://none/sock.stl" in note


def test_the_floor_of_a_file_is_taken_out_where_a_body_holds_it_too(tmp_path):
    floor = '<body name="ground"><geom name="g" type="plane" size="1 1 .1"/></body></worldbody>'
    path = biped(tmp_path, change=("</worldbody>", floor))
    spec = model_file.read(path).spec
    assert mujoco.mjtGeom.mjGEOM_PLANE not in [geom.type for geom in spec.geoms]
