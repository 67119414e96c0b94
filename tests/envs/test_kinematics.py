"""How far apart the feet of a biped stand, on legs whose length and axes are given."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest

from robolearn.envs.kinematics import feet_apart, widened
from robolearn.envs.robot import Robot
from tests.factories import load_robot

LEG = """
<body name="{s}_thigh" pos="0 {y} 0">
  <joint name="{s}_hip" axis="{axis} 0 0" range="-.6 .6"/>
  <geom type="capsule" fromto="0 0 0 0 0 -.5" size=".03" mass="1"/>
  <body name="{s}_foot" pos="0 0 -.5">
    {ankle}
    <geom type="box" size=".1 .05 .02" pos="0 0 -.05"/>
  </body>
</body>
"""
BIPED = """
<mujoco>
  <compiler angle="radian"/>
  <worldbody>
    <body name="trunk" pos="0 0 1">
      <freejoint/>
      <geom type="box" size=".1 .1 .1" pos="0 0 .2"/>
      {legs}
    </body>
  </worldbody>
</mujoco>
"""
ANKLE = '<joint name="{s}_ankle" axis="1 0 0" range="-.6 .6"/>'


def biped(folder: Path, ankle: str = ANKLE) -> Robot:
    """Legs of 0.5 m, 0.2 m apart, between two joints that turn about the forward axis, the right hip about the other
    end of it; soles 0.07 m below the ankle."""
    left = LEG.format(s="l", y=".1", axis="1", ankle=ankle.format(s="l"))
    right = LEG.format(s="r", y="-.1", axis="-1", ankle=ankle.format(s="r"))
    (folder / "biped.xml").write_text(BIPED.format(legs=left + right))
    return Robot.load(folder / "biped.xml")


def test_legs_are_spread_and_soles_level_until_the_feet_are_as_far_apart_as_asked(tmp_path):
    robot = biped(tmp_path)
    wide = widened(robot, 0.5)
    # 0.2 + 2 x 0.5 sin(angle) = 0.5
    angle = math.asin(0.3)
    home = dict(zip(wide.joints, wide.home, strict=True))
    assert home == pytest.approx(
        {"l_hip": angle, "l_ankle": -angle, "r_hip": angle, "r_ankle": angle}, abs=2e-5
    )
    assert robot.home_height == pytest.approx(0.57, abs=1e-6)
    assert wide.home_height == pytest.approx(0.07 + 0.5 * math.cos(angle), abs=1e-5)


def test_the_distance_of_feet_is_the_one_of_their_soles_in_the_home_pose(tmp_path):
    robot = biped(tmp_path)
    assert feet_apart(robot) == pytest.approx(0.2, abs=1e-6)
    assert feet_apart(widened(robot, 0.5)) == pytest.approx(0.5, abs=1e-4)


def test_feet_that_are_far_enough_apart_stay(tmp_path):
    robot = biped(tmp_path)
    assert widened(robot, 0.2) is robot


def test_legs_are_spread_to_three_quarters_of_a_joints_limit_at_most(tmp_path):
    wide = widened(biped(tmp_path, ankle=ANKLE.replace(".6", ".4")), 0.9)
    assert [abs(angle) for angle in wide.home] == pytest.approx([0.3] * 4, abs=1e-6)


def test_a_joint_whose_range_leaves_out_zero_turns_to_its_limit_and_not_beyond(tmp_path):
    file = biped(tmp_path).source
    text = file.read_text()
    for side, new in (("l", ".1 1"), ("r", "-1 -.1")):
        old = f'"{side}_ankle" axis="1 0 0" range='
        text = text.replace(f'{old}"-.6 .6"', f'{old}"{new}"')
    file.write_text(text)
    robot = replace(Robot.load(file), home=(0.0, 0.5, 0.0, -0.5))
    assert widened(robot, 0.9).home == pytest.approx((0.4, 0.1, 0.4, -0.1), abs=1e-6)


def test_legs_without_a_joint_that_levels_the_sole_stay(tmp_path):
    stiff = biped(tmp_path, ankle="")
    assert widened(stiff, 0.5) is stiff


QUADRUPED = """
<mujoco>
  <compiler angle="radian"/>
  <worldbody>
    <body name="trunk" pos="0 0 .4">
      <freejoint/>
      <geom type="box" size=".2 .1 .05"/>
      {legs}
    </body>
  </worldbody>
</mujoco>
"""
POINT_LEG = """
<body name="{s}_leg" pos="{pos}">
  <joint name="{s}_hip" axis="{axis} 0 0" range="-1 1"/>
  <geom type="capsule" fromto="0 0 0 0 0 -.37" size=".01"/>
  <geom type="sphere" size=".03" pos="0 0 -.37"/>
</body>
"""


def test_legs_of_a_quadruped_are_spread_without_ankles_until_the_means_of_its_sides_are_as_far_apart(
    tmp_path,
):
    places = {
        "fl": (".2 .1 0", "1"),
        "fr": (".2 -.1 0", "-1"),
        "bl": ("-.2 .1 0", "1"),
        "br": ("-.2 -.1 0", "1"),
    }
    legs = "".join(POINT_LEG.format(s=s, pos=pos, axis=axis) for s, (pos, axis) in places.items())
    (tmp_path / "quadruped.xml").write_text(QUADRUPED.format(legs=legs))
    robot = Robot.load(tmp_path / "quadruped.xml")
    assert feet_apart(robot) == pytest.approx(0.2, abs=1e-6)
    # The soles are 0.4 m below the hips: 0.2 + 2 x 0.4 sin(angle) = 0.44.
    wide = widened(robot, 0.44)
    angle = math.asin(0.3)
    home = dict(zip(wide.joints, wide.home, strict=True))
    assert home == pytest.approx(
        {"fl_hip": angle, "fr_hip": angle, "bl_hip": angle, "br_hip": -angle}, abs=2e-5
    )
    assert feet_apart(wide) == pytest.approx(0.44, abs=1e-4)
    assert robot.home_height == pytest.approx(0.4, abs=1e-6)
    assert wide.home_height == pytest.approx(0.4 * math.cos(angle), abs=1e-5)


def test_a_quadruped_with_its_feet_far_enough_apart_stays():
    ant = load_robot("ant")
    assert widened(ant, 0.5) is ant
