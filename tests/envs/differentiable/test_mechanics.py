"""Equations of motion against MuJoCo and hand-computed values, on plain floats: no kernel is compiled."""

from __future__ import annotations

import math

import mujoco
import numpy as np
import pytest

from robolearn.envs import mjcf
from robolearn.envs.differentiable.mechanics import Mechanics
from robolearn.envs.differentiable.symbols import Recording, maximum, sin, where_positive
from robolearn.envs.differentiable.tree import read_tree
from robolearn.envs.robot import Robot
from tests.factories import load_robot

SLED_XML = """
<mujoco>
  <worldbody>
    <body name="sled">
      <joint name="x" type="slide" axis="1 0 0"/>
      <joint name="z" type="slide" axis="0 0 1" range="-1 2"/>
      <geom type="sphere" size=".1" pos="0 0 .1" mass="2" contype="1" conaffinity="1" friction="0.3"/>
      <site name="sled"/>
    </body>
  </worldbody>
</mujoco>
"""
SLED_YAML = """
schema: 1
description: a ball that slides along x and falls along z
mjcf: sled.xml
feet: [sled]
bodies: [sled]
joints: {x: {home: 0, actuator: push}, z: {home: 0}}
actuators: {push: {kind: force, effort: 50}}
solver: {differentiable: {timestep: 0.005, integrator: implicitfast}}
"""


def mechanics_of(robot: Robot) -> Mechanics:
    model = mjcf.build_model(robot, "differentiable")
    return Mechanics(read_tree(robot, model, robot.solver["differentiable"]), model.opt.timestep)


@pytest.fixture
def sled(tmp_path) -> Robot:
    (tmp_path / "sled.xml").write_text(SLED_XML)
    (tmp_path / "robot.yaml").write_text(SLED_YAML)
    return Robot.load(tmp_path)


# ---------------------------------------------------------------------- symbols


def test_constants_fold_and_equal_expressions_are_computed_once():
    recording = Recording()
    x, y = recording.input("x[0]"), recording.input("x[1]")
    assert x * 0.0 == 0.0
    assert x * 1.0 is x
    assert x + 0.0 is x
    assert x + y is y + x
    assert (-x).__neg__() is x
    lines, results = recording.code([sin(x) * 2.0 + where_positive(y, 3.0, maximum(x, y)), 0.5])
    assert lines == [
        "t0 = x[0]", "t1 = x[1]", "t4 = wp.sin(t0)", "t5 = t4 * 2.0", "t6 = wp.max(t0, t1)",
        "t7 = wp.where(t1 > 0.0, 3.0, t6)", "t8 = t5 + t7",
    ]  # fmt: skip
    assert results == ["t8", "0.5"]


# ---------------------------------------------------------------------- equations of motion


@pytest.mark.parametrize("name", ["cartpole", "hopper", "ant", "humanoid"])
def test_contact_free_motion_equals_mujocos_to_rounding(name):
    robot = load_robot(name)
    model = mjcf.build_model(robot, "mujoco")  # the same integrator, implicitfast
    mechanics = Mechanics(read_tree(robot, model, {}), model.opt.timestep)
    random, data = np.random.default_rng(1), mujoco.MjData(model)
    base, j = (13 if robot.base else 0), len(robot.joints)
    row = np.concatenate((np.zeros(base), robot.home, random.normal(size=j)))
    if robot.base:
        quat = random.normal(size=4)
        row[:13] = [0.1, 0.2, 5.0, *(quat / np.linalg.norm(quat)), *random.normal(size=6)]
    elif robot.feet:
        row[1] = 3.0
    joints = [model.joint(joint) for joint in robot.joints]
    if robot.base:
        data.qpos[:7], data.qvel[:6] = row[:7], row[7:13]
    for i, joint in enumerate(joints):
        data.qpos[joint.qposadr[0]], data.qvel[joint.dofadr[0]] = row[base + i], row[base + j + i]
    # One target is far away: its motor is clipped to its effort and has no damping.
    target = row[base : base + j][list(robot.actuated)] + 0.1
    target[0] += 3.0
    for _ in range(3):  # ends before the joint reaches its stop
        data.ctrl[:] = target
        mujoco.mj_step(model, data)
        row = np.array(mechanics.substep(row.tolist(), target.tolist(), {}))
    assert data.nefc == 0
    expected = [data.qpos[joint.qposadr[0]] for joint in joints] + [
        data.qvel[joint.dofadr[0]] for joint in joints
    ]
    assert np.abs(row[base:] - expected).max() < 1e-9
    if robot.base:
        assert np.abs(row[:13] - [*data.qpos[:7], *data.qvel[:6]]).max() < 1e-9


def test_a_robot_at_rest_sinks_2_mm_and_the_ground_carries_its_weight(sled):
    mechanics, row = mechanics_of(sled), [0.0, 0.01, 0.0, 0.0]
    for _ in range(400):
        row = mechanics.substep(row, [0.0], {})
    seen = mechanics.outputs(row, [0.0], {})
    assert row[1] == pytest.approx(-0.002, rel=1e-3)  # SAG
    assert seen[-3:] == pytest.approx([0.0, 0.0, 2 * 9.81], rel=1e-3)


def test_friction_decelerates_by_its_coefficient_and_a_push_below_the_limit_only_creeps(sled):
    mechanics = mechanics_of(sled)
    assert mechanics.tree.ground.friction == 0.8  # the floor's, the larger of the two as in MuJoCo
    for friction in (0.8, 0.2):
        row = [0.0, -0.002, 10.0, 0.0]
        for _ in range(20):  # 0.1 s
            row = mechanics.substep(row, [0.0], {"friction": friction})
        # Friction uses the speed of the previous step, which is up to 0.4 % larger.
        assert 10.0 - row[2] == pytest.approx(friction * 9.81 * 0.1, rel=5e-3)
    # Half of the largest friction, 0.8 x 2 kg x 9.81: it creeps at v / sqrt(v^2 + 0.02^2) = 1/2.
    row = [0.0, -0.002, 0.0, 0.0]
    for _ in range(400):
        row = mechanics.substep(row, [0.4 * 2 * 9.81], {})
    assert row[2] == pytest.approx(0.02 / math.sqrt(3.0), rel=1e-2)


def test_the_ground_never_pulls(sled):
    mechanics = mechanics_of(sled)
    for upward in (0.1, 1.0, 5.0):
        row = mechanics.substep([0.0, -0.002, 0.0, upward], [0.0], {})
        assert row[3] >= upward - 9.81 * 0.005 - 1e-9


def test_a_step_is_continuous_where_a_point_touches_or_a_joint_reaches_its_stop(sled):
    # A gradient is useless where a nanometre decides the final velocity of a step.
    mechanics = mechanics_of(sled)
    for before, after, speed in ((1e-9, -1e-9, -0.5), (2.0 - 1e-9, 2.0 + 1e-9, 2.0)):
        ends = [mechanics.substep([0.0, z, 1.0, speed], [0.0], {}) for z in (before, after)]
        assert ends[0][2:] == pytest.approx(ends[1][2:], abs=1e-5)
    # Deep in the ground the whole spring is implicit: (m + h c + h^2 k) a = f - h k v - m g.
    stiffness, mass, h, depth, speed = 2 * 9.81 / 0.002, 2.0, 0.005, 0.02, -0.5
    resist = stiffness * depth * 2.0 * h + stiffness * (1 - 2.0 * speed) * h * h
    push = stiffness * depth * (1 - 2.0 * speed) - h * stiffness * (1 - 2.0 * speed) * speed
    gained = h * (push - mass * 9.81) / (mass + resist)
    assert mechanics.substep([0.0, -depth, 0.0, speed], [0.0], {})[3] == pytest.approx(
        speed + gained, rel=1e-9
    )


def test_a_stop_holds_a_joint_near_its_range(sled):
    mechanics, row = mechanics_of(sled), [0.0, 1.95, 0.0, 3.0]
    highest = 0.0
    for _ in range(50):
        row = mechanics.substep(row, [0.0], {})
        highest = max(highest, row[1])
    assert 2.0 < highest < 2.03
    assert row[3] < 0.5
