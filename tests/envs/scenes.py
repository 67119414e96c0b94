"""Scenes for tests: robots in their home pose, and a small robot whose files a test can change."""

import mujoco
import numpy as np

from robolearn.envs import mjcf

GRAVITY = 9.81

HOPPER_XML = """
<mujoco>
  <default><geom contype="0" conaffinity="0" condim="1" mass="0.5"/><general gear="7" dyntype="integrator"/></default>
  <worldbody>
    <body name="trunk">
      <freejoint/>
      <geom type="box" size=".1 .1 .1"/>
      <body name="l_leg">
        <joint name="l_leg" type="slide" axis="0 0 1" range="-.2 .2"/>
        <geom type="sphere" size=".05" pos="0 .1 -.4" contype="1" conaffinity="1" condim="3"/>
        <site name="l_leg" pos="0 .1 -.45"/>
      </body>
      <body name="r_leg">
        <joint name="r_leg" type="slide" axis="0 0 1" range="-.2 .2"/>
        <geom type="sphere" size=".05" pos="0 -.1 -.4" contype="1" conaffinity="1" condim="3"/>
        <site name="r_leg" pos="0 -.1 -.45"/>
      </body>
    </body>
  </worldbody>
</mujoco>
"""
HOPPER_YAML = """
schema: 1
description: two legs
mjcf: hopper.xml
base: trunk
home_height: 0.45
feet: [l_leg, r_leg]
bodies: [trunk]
joints:
  l_leg: {home: 0, actuator: leg}
  r_leg: {home: 0, actuator: leg}
actuators:
  leg: {kind: position, kp: 500, kd: 20, effort: 50}
mirror: {left: l_, right: r_, flip: []}
solver:
  mujoco: {timestep: 0.005, integrator: implicitfast, iterations: 10, disable: [eulerdamp]}
"""


def hopper(folder, yaml_change=("", ""), xml_change=("", "")):
    """Write the small robot with one text replaced in each file; returns its folder."""
    for text, change, name in (
        (HOPPER_YAML, yaml_change, "robot.yaml"),
        (HOPPER_XML, xml_change, "hopper.xml"),
    ):
        assert change[0] in text
        (folder / name).write_text(text.replace(change[0], change[1], 1) if change[0] else text)
    return folder


def at_home(robot, model):
    """MjData in the home pose, at rest, with home joint targets."""
    data = mujoco.MjData(model)
    data.qpos[:] = mjcf.home_qpos(robot, model)
    data.ctrl[:] = np.array(robot.home)[list(robot.actuated)]
    mujoco.mj_forward(model, data)
    return data


def total_force(robot, data):
    return sum(data.sensor(f"{foot}_force").data for foot in robot.feet)
