"""Small robots for the tests of the Newton engine, written to a folder."""

from __future__ import annotations

from pathlib import Path

from robolearn.envs.robot import Robot

ROBOT_YAML = """
schema: 1
description: a test robot
mjcf: robot.xml
{base}
bodies: {bodies}
joints: {joints}
actuators:
  motor: {{kind: position, kp: 5, kd: 0.2, effort: 2}}{push}
solver:
  newton: {{timestep: 0.002, integrator: Euler, disable: [eulerdamp]}}
"""

# In robot.yaml the joints are in another order than in the MJCF.
MIXED = (
    """<mujoco><compiler angle="radian"/><worldbody>
    <body name="a" pos="0.1 0 1" euler="0.3 0.2 0.1">
      <joint name="x" type="slide" axis="1 0 0" ref="0.2" damping="0.1"/>
      <joint name="y" type="slide" axis="0 1 0" pos="0.1 0 0" stiffness="3" springref="0.1"/>
      <joint name="turn" axis="0 0 1" pos="0.1 0 0.05" armature="0.01" damping="0.05"/>
      <geom type="box" size="0.1 0.05 0.03" mass="1" contype="0" conaffinity="0"/>
      <body name="b" pos="0.2 0 0" euler="0 0.5 0">
        <geom type="sphere" size="0.05" pos="0 0 0.1" mass="0.5" contype="0" conaffinity="0"/>
        <body name="c" pos="0 0 0.2" euler="0.4 0 0">
          <joint name="bend" axis="0 1 0" ref="0.5" armature="0.01" pos="0 0 -0.02"/>
          <joint name="roll" axis="1 0 0" damping="0.02" pos="0 0 -0.02"/>
          <geom type="capsule" size="0.02 0.1" pos="0.05 0 0.1" mass="0.3" contype="0" conaffinity="0"/>
        </body></body></body></worldbody></mujoco>""",
    "",
    "[a, b, c]",
    """
  roll: {home: 0, actuator: push}
  x: {home: 0.2}
  bend: {home: 0.5, actuator: motor}
  turn: {home: 0}
  y: {home: 0}""",
)


def write_robot(folder: Path, parts: tuple[str, str, str, str]) -> Robot:
    xml, base, bodies, joints = parts
    (folder / "robot.xml").write_text(xml)
    push = "\n  push: {kind: force, effort: 1}" if "push" in joints else ""
    (folder / "robot.yaml").write_text(ROBOT_YAML.format(base=base, bodies=bodies, joints=joints, push=push))
    return Robot.load(folder)


def one_body(inside: str, joint: str = '<joint name="j" axis="0 1 0"/>', more: str = "") -> tuple[str, ...]:
    """A robot with a free base and one body on it."""
    xml = f"""<mujoco><compiler angle="radian"/><asset>
    <mesh name="m" vertex="0 0 0  1 0 0  0 1 0  0 0 1"/></asset><worldbody>
    <body name="base"><freejoint/><geom type="box" size="0.1 0.1 0.1" mass="1"/>
    <body name="arm" pos="0 0 0.2">{joint}{inside}
    <geom type="sphere" size="0.05" mass="0.1" contype="0" conaffinity="0"/></body></body></worldbody>{more}</mujoco>"""
    return xml, "base: base\nhome_height: 0.1", "[arm]", "{j: {home: 0, actuator: motor}}"
