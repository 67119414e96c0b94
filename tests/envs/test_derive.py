"""What is derived from a robot's file: base, home, feet, soles, motors, mirror."""

import math

import numpy as np
import pytest
import yaml

from robolearn.envs import lint, mjcf
from robolearn.envs.robot import Robot
from robolearn.errors import ConfigError
from tests.envs.scenes import at_home
from tests.factories import load_robot

LEG = """
<body name="{s}_thigh" pos="0 {y} 0">
  <joint name="{s}_hip_roll" axis="1 0 0" range="-.5 .5"/>
  <joint name="{s}_hip_pitch" axis="0 1 0" range="-1.5 1.5"/>
  <geom type="capsule" fromto="0 0 0 0 0 -.3" size=".03" contype="0" conaffinity="0"/>
  <body name="{s}_shin" pos="0 0 -.3">
    <joint name="{s}_knee" axis="0 1 0" range="0 2"/>
    <geom type="capsule" fromto="0 0 0 0 0 -.3" size=".03" contype="0" conaffinity="0"/>
    <body name="{s}_foot" pos="0 0 -.3">
      <joint name="{s}_ankle" axis="0 1 0" range="-1 1"/>
      <geom type="box" size=".1 .05 .02" pos=".03 0 -.05"/>
    </body>
  </body>
</body>
"""
BIPED = """
<mujoco model="biped">
  <compiler angle="radian"/>
  <option timestep="0.004"/>
  <worldbody>
    <geom name="ground" type="plane" size="5 5 1"/>
    <body name="trunk" pos="0 0 2">
      <freejoint/>
      <geom type="box" size=".1 .1 .1" pos="0 0 .1" contype="0" conaffinity="0"/>
      {legs}
    </body>
  </worldbody>
  {more}
</mujoco>
"""


def biped(folder, more="", left="l", right="r", change=("", "")):
    """Write a robot of 8 joints on two flat feet; returns its file."""
    legs = LEG.format(s=left, y=".1") + LEG.format(s=right, y="-.1")
    text = BIPED.format(legs=legs, more=more)
    assert change[0] in text
    path = folder / "biped.xml"
    path.write_text(text.replace(*change))
    return path


def test_base_feet_soles_and_height_come_from_the_geometry(tmp_path):
    robot = Robot.load(biped(tmp_path))
    assert (robot.name, robot.base, robot.feet) == ("biped", "trunk", ("l_foot", "r_foot"))
    assert len(robot.joints) == len(robot.actuators) == 8
    position, orientation = robot.soles["l_foot"]
    # The box is 0.05 + 0.02 m below the ankle and 0.03 m ahead of it; in the home pose its sole is level.
    np.testing.assert_allclose(position, [0.03, 0, -0.07], atol=2e-3)
    np.testing.assert_allclose(orientation, [1, 0, 0, 0], atol=0.02)
    data = at_home(robot, mjcf.build_model(robot))
    lowest = min(
        data.geom_xpos[g, 2] - 0.02
        for g in range(data.model.ngeom)
        if data.model.geom_bodyid[g] and data.model.geom_contype[g]
    )
    assert abs(lowest) < 1e-3


def test_the_stance_bends_the_knees_and_puts_the_mass_above_the_feet(tmp_path):
    robot = Robot.load(biped(tmp_path))
    home = dict(zip(robot.joints, robot.home, strict=True))
    assert home["l_knee"] > 0.1  # 0 is its limit
    assert home["l_hip_pitch"] + home["l_knee"] + home["l_ankle"] == pytest.approx(
        0, abs=0.02
    )  # a level sole
    data = at_home(robot, mjcf.build_model(robot))
    soles = [data.site(foot).xpos[0] for foot in robot.feet]
    assert np.mean(soles) == pytest.approx(data.subtree_com[0, 0], abs=0.01)
    assert lint.hold(robot).held


def test_a_keyframe_named_home_is_the_home_pose(tmp_path):
    keys = '<keyframe><key name="crouch"/><key name="home" qpos="0 0 1 1 0 0 0 0 -.3 .6 -.3 0 -.3 .6 -.3"/></keyframe>'
    robot = Robot.load(biped(tmp_path, keys))
    assert robot.home == (0, -0.3, 0.6, -0.3) * 2


def test_servos_of_the_file_keep_their_gains_and_motors_their_limit(tmp_path):
    motors = """<actuator>
      <position joint="l_knee" kp="50" kv="3" forcerange="-20 20"/>
      <motor joint="r_knee" gear="5" ctrlrange="-2 2"/>
    </actuator>"""
    actuators = {a.joint: a for a in Robot.load(biped(tmp_path, motors)).actuators}
    assert set(actuators) == {"l_knee", "r_knee"}  # a file with actuators says which joints have one
    assert (actuators["l_knee"].kp, actuators["l_knee"].kd, actuators["l_knee"].effort) == (50, 3, 20)
    assert actuators["r_knee"].effort == 10  # 5 x 2 Nm


def test_gains_without_a_servo_come_from_the_armature(tmp_path):
    armature = ('<joint name="l_hip_roll"', '<joint armature="0.2" name="l_hip_roll"')
    hip = next(a for a in Robot.load(biped(tmp_path, change=armature)).actuators if a.joint == "l_hip_roll")
    w = 20 * math.pi  # 10 Hz, at a damping ratio of 2
    assert hip.kp == pytest.approx(0.2 * w**2, rel=1e-6)
    assert hip.kd == pytest.approx(4 * 0.2 * w, rel=1e-6)


@pytest.mark.parametrize(("left", "right"), [("l", "r"), ("left", "right"), ("LF", "RF"), ("FL", "FR")])
def test_left_and_right_are_known_by_their_names(tmp_path, left, right):
    mirror = Robot.load(biped(tmp_path, left=left, right=right)).mirror
    assert mirror.twin(f"{left}_knee") == f"{right}_knee"
    assert mirror.twin(f"{right}_foot") == f"{left}_foot"
    assert set(mirror.flip) == {f"{left}_hip_roll", f"{right}_hip_roll"}


def test_left_and_right_without_such_names_are_known_by_where_they_are(tmp_path):
    robot = Robot.load(biped(tmp_path, left="a", right="b"))
    assert robot.mirror.twin("a_knee") == "b_knee"
    assert robot.mirror.twin("b_foot") == "a_foot"
    assert robot.mirror_feet() == [1, 0]


def test_an_axis_that_points_the_other_way_on_one_side_changes_no_sign(tmp_path):
    path = biped(tmp_path)
    path.write_text(
        path.read_text().replace('name="r_hip_roll" axis="1 0 0"', 'name="r_hip_roll" axis="-1 0 0"')
    )
    assert Robot.load(path).mirror.flip == ()


def test_changes_apply_to_both_sides_by_the_name_without_one(tmp_path):
    robot = Robot.load(
        biped(tmp_path),
        {"actuators": {"knee": {"kp": 70}, "l_ankle": {"effort": 9}}, "joints": {"l_knee": {"home": 0.5}}},
    )
    actuators = {a.joint: a for a in robot.actuators}
    assert actuators["l_knee"].kp == actuators["r_knee"].kp == 70
    assert actuators["l_ankle"].effort == 9 != actuators["r_ankle"].effort
    assert dict(zip(robot.joints, robot.home, strict=True))["l_knee"] == 0.5


@pytest.mark.parametrize("turned", [False, True])
def test_the_more_particular_entry_of_an_actuator_wins_wherever_it_stands(tmp_path, turned):
    entries = {"*": {"kp": 10}, "*_knee": {"kp": 20}, "knee": {"kp": 30}, "l_knee": {"kp": 40}}
    path = biped(tmp_path)
    for upto, expected in ((2, (20, 20)), (3, (30, 30)), (4, (40, 30))):
        some = list(entries.items())[:upto]
        robot = Robot.load(path, {"actuators": dict(some[::-1] if turned else some)})
        kp = {a.joint: a.kp for a in robot.actuators}
        assert (kp["l_knee"], kp["r_knee"], kp["l_ankle"]) == (*expected, 10)


def test_a_torque_limit_of_the_file_that_is_replaced_is_a_warning(tmp_path):
    path = tmp_path / "arm.xml"
    path.write_text(
        """<mujoco><worldbody><body name="upper"><joint name="shoulder" axis="0 1 0"/>
        <geom type="capsule" size="0.03" fromto="0 0 0 0.3 0 0" mass="1"/></body></worldbody>
        <actuator><motor joint="shoulder" ctrlrange="-LIMIT LIMIT" ctrllimited="true"/></actuator></mujoco>"""
    )
    text = path.read_text()
    for limit, warned in ((10, False), (5000, True)):  # three times what holds the arm are 4.4 Nm
        path.write_text(text.replace("LIMIT", str(limit)))
        robot = Robot.load(path)
        found = [f.text for f in lint.check(robot) if f.check == "effort"]
        assert bool(found) == warned
        assert (robot.actuators[0].effort == limit) != warned
        assert all("shoulder: 5000" in text for text in found)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"actuators": {"kne": {"kp": 1}}}, ["'kne'", "knee"]),
        ({"actuators": {"knee": {"kpp": 1}}}, ["kpp", "kp"]),
        ({"joints": {"l_kne": {"home": 0}}}, ["'l_kne'", "l_knee"]),
        ({"feet": ["l_fot"]}, ["'l_fot'", "l_foot"]),
        ({"base": "trunc"}, ["'trunc'", "trunk"]),
        ({"fet": []}, ["'fet'", "feet"]),
    ],
)
def test_a_change_of_what_the_robot_lacks_is_refused_by_name(tmp_path, changes, words):
    path = biped(tmp_path)
    with pytest.raises(ConfigError) as error:
        Robot.load(path, changes)
    assert str(error.value).startswith("robot")  # the setting, and not the file
    for word in words:
        assert word in str(error.value)


def test_a_robot_yaml_beside_the_file_states_what_differs(tmp_path):
    path = biped(tmp_path)
    (tmp_path / "robot.yaml").write_text(
        "schema: 2\nmjcf: biped.xml\ndescription: mine\nfeet: [r_foot]\nmirror: null\n"
    )
    robot = Robot.load(path)
    assert (robot.description, robot.feet, robot.mirror) == ("mine", ("r_foot",), None)


def test_bodies_that_overlap_at_home_do_not_push_one_another(tmp_path):
    inside = ('<body name="l_shin"', '<geom name="extra" size=".05" pos="0 0 -.6"/><body name="l_shin"')
    robot = Robot.load(biped(tmp_path, change=inside), {"home_height": 1.0})
    assert ("l_thigh", "l_foot") in robot.apart
    model = mjcf.build_model(robot)
    assert model.nexclude == len(robot.apart)


URDF = """
<robot name="walker">
  <link name="trunk"><inertial><mass value="5"/>
    <inertia ixx=".1" iyy=".1" izz=".1" ixy="0" ixz="0" iyz="0"/></inertial></link>
  {legs}
</robot>
"""
URDF_LEG = """
<link name="{s}_thigh"><inertial><origin xyz="0 0 -.1"/><mass value="1"/>
  <inertia ixx=".01" iyy=".01" izz=".01" ixy="0" ixz="0" iyz="0"/></inertial></link>
<link name="{s}_foot"><collision><geometry><sphere radius=".03"/></geometry></collision></link>
<joint name="{s}_hip" type="revolute"><parent link="trunk"/><child link="{s}_thigh"/><origin xyz="{x} {y} 0"/>
  <axis xyz="0 1 0"/><limit lower="-1" upper="1" effort="12" velocity="9"/></joint>
<joint name="{s}_tip" type="fixed"><parent link="{s}_thigh"/><child link="{s}_foot"/><origin xyz="0 0 -.3"/></joint>
"""


def urdf(folder, change=("", "")):
    """Write a URDF of four one-joint legs whose feet are fixed links; returns its file."""
    legs = "".join(
        URDF_LEG.format(s=f"{x}{y}".upper(), x=a, y=b)
        for x, a in (("f", 0.2), ("r", -0.2))
        for y, b in (("l", 0.1), ("r", -0.1))
    )
    text = URDF.format(legs=legs)
    assert change[0] in text
    path = folder / "walker.urdf"
    path.write_text(text.replace(*change))
    return path


def test_a_urdf_on_legs_has_a_free_base_and_its_limits(tmp_path):
    robot = Robot.load(urdf(tmp_path))
    assert (robot.base, robot.feet) == ("trunk", ("FL_foot", "FR_foot", "RL_foot", "RR_foot"))
    assert {a.effort for a in robot.actuators} == {12}
    assert robot.home_height == pytest.approx(0.33, abs=0.01)
    assert lint.hold(robot).held


def test_a_urdf_without_legs_is_fixed(tmp_path):
    text = urdf(tmp_path).read_text()
    one = text[: text.index('<link name="FR_thigh">')] + "</robot>"
    (tmp_path / "arm.urdf").write_text(one)
    robot = Robot.load(tmp_path / "arm.urdf")
    assert (robot.base, robot.feet, robot.home_height) == (None, (), 0.0)


@pytest.mark.parametrize("name", ["humanoid", "ant"])
def test_what_is_derived_of_our_robots_is_what_their_robot_yaml_states(tmp_path, name):
    stated = load_robot(name)
    rest = {"joints": {n: {"home": h} for n, h in zip(stated.joints, stated.home, strict=True)}}
    content = {"schema": 2, "mjcf": str(stated.mjcf), **rest}
    (tmp_path / "robot.yaml").write_text(yaml.safe_dump(content, sort_keys=False))
    derived = Robot.load(tmp_path)
    assert (derived.base, derived.feet) == (stated.base, stated.feet)
    assert derived.home_height == pytest.approx(stated.home_height, abs=1e-4)
    assert derived.mirror_joints() == stated.mirror_joints()
    assert derived.mirror_feet() == stated.mirror_feet()
    assert derived.soles == {}  # their files have sites at the soles
    assert derived.apart == ()


def test_one_stated_solver_option_leaves_the_others_of_the_file(tmp_path):
    robot = Robot.load(biped(tmp_path), {"solver": {"mujoco": {"iterations": 7}}})
    options = mjcf.options(robot, "mujoco")
    assert options == {"timestep": 0.004, "integrator": "implicitfast", "iterations": 7}


def test_a_misspelt_backend_in_the_solver_options_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="mujco"):
        Robot.load(biped(tmp_path), {"solver": {"mujco": {"timestep": 0.001}}})


def test_the_name_of_a_joint_means_that_joint_alone(tmp_path):
    middle = ("<freejoint/>", '<freejoint/><body name="head"><joint name="knee"/><geom size=".02"/></body>')
    robot = Robot.load(
        biped(tmp_path, change=middle), {"actuators": {"knee": {"kp": 5}, "*_knee": {"kp": 70}}}
    )
    kp = {a.joint: a.kp for a in robot.actuators}
    assert (kp["knee"], kp["l_knee"], kp["r_knee"]) == (5, 70, 70)


def test_a_joint_on_no_side_whose_name_ends_like_one_is_its_own_twin(tmp_path):
    middle = (
        "<freejoint/>",
        '<freejoint/><body name="head"><joint name="waist_r" axis="1 0 0"/><geom size=".02"/></body>',
    )
    mirror = Robot.load(biped(tmp_path, change=middle)).mirror
    assert mirror.twin("waist_r") == "waist_r"
    assert mirror.twin("l_knee") == "r_knee"
    assert "waist_r" in mirror.flip


def test_motors_on_one_side_only_leave_no_mirror(tmp_path):
    robot = Robot.load(biped(tmp_path, '<actuator><motor joint="l_knee" ctrlrange="-1 1"/></actuator>'))
    assert robot.mirror is None


def test_a_base_turned_over_in_its_file_is_refused(tmp_path):
    path = biped(tmp_path, change=('<body name="trunk" pos="0 0 2">', '<body name="trunk" euler="1.6 0 0">'))
    with pytest.raises(ConfigError, match="trunk"):
        Robot.load(path)


def test_what_stands_beside_the_robot_in_its_file_does_not_move_its_stance(tmp_path):
    (tmp_path / "plain").mkdir()
    beside = (
        '<body name="trunk"',
        '<body name="post" pos="1 0 0"><geom size=".3" mass="99"/></body><body name="trunk"',
    )
    first, second = Robot.load(biped(tmp_path / "plain")), Robot.load(biped(tmp_path, change=beside))
    assert second.home == pytest.approx(first.home, abs=1e-6)
    assert second.home_height == first.home_height


def test_servos_on_one_joint_add_up(tmp_path):
    servo = '<position joint="l_knee" kp="50" forcerange="-20 20"/>'
    knee = next(a for a in Robot.load(biped(tmp_path, f"<actuator>{servo}{servo}</actuator>")).actuators)
    assert (knee.kp, knee.effort) == (100, 40)


def test_a_robot_without_a_motor_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="actuator"):
        Robot.load(
            urdf(tmp_path), {"joints": {f"{leg}_hip": {"actuator": None} for leg in ("FL", "FR", "RL", "RR")}}
        )


def test_a_urdf_whose_root_is_the_link_world_is_fixed_to_it(tmp_path):
    mount = '<link name="world"/><joint name="mount" type="fixed"><parent link="world"/><child link="trunk"/></joint>'
    assert Robot.load(urdf(tmp_path, ('<link name="trunk">', f'{mount}<link name="trunk">'))).base is None


def test_a_stated_armature_replaces_the_files_and_gives_the_gains(tmp_path):
    """kp = I w^2 and kd = 4 I w with w = 2 pi 10/s; the knee's is stated in robot.yaml, the hips' left as they are."""
    path = biped(tmp_path)
    plain = Robot.load(path)
    robot = Robot.load(path, {"actuators": {"knee": {"armature": 0.05}}})
    gains = {a.joint: (a.kp, a.kd) for a in robot.actuators}
    w = 2 * math.pi * 10
    assert gains["l_knee"] == pytest.approx((0.05 * w**2, 4 * 0.05 * w), rel=1e-5)
    assert gains["l_hip_pitch"] == pytest.approx(
        next((a.kp, a.kd) for a in plain.actuators if a.joint == "l_hip_pitch"), rel=1e-5
    )
    model = mjcf.build_model(robot)
    assert model.joint("l_knee").name == "l_knee"
    assert model.dof_armature[model.joint("l_knee").dofadr[0]] == 0.05
    assert model.dof_armature[model.joint("l_hip_pitch").dofadr[0]] == 0.0


def test_a_negative_armature_is_refused_by_name(tmp_path):
    with pytest.raises(ConfigError, match=r"actuators\.knee\.armature is -0\.1"):
        Robot.load(biped(tmp_path), {"actuators": {"knee": {"armature": -0.1}}})
