"""robolearn robot --excite: a motion within a robot's limits, for system identification."""

import math

import mujoco
import numpy as np
import pytest

from robolearn.commands import exits
from robolearn.config import registry
from robolearn.envs import mjcf
from robolearn.envs.robot import Robot
from robolearn.errors import ConfigError
from robolearn.simulation.excite import SPEED, Held, chirp, excite
from tests.envs.test_derive import biped


@pytest.fixture(scope="module")
def humanoid() -> Robot:
    return Robot.load(registry.load("robots", "humanoid"), {}, "humanoid")


@pytest.fixture(scope="module")
def motion(humanoid):
    return excite(humanoid)


def test_a_chirp_rises_from_its_first_to_its_last_frequency_and_its_phase_is_their_integral():
    time = np.linspace(0, 10, 10001)
    phase, frequency = chirp(time, 10.0, 3.2)
    assert (frequency[0], frequency[-1]) == pytest.approx((0.2, 3.2))
    assert frequency[5000] == pytest.approx(0.8)  # the geometric mean, in the middle
    assert np.diff(phase) / 1e-3 / (2 * math.pi) == pytest.approx(
        (frequency[1:] + frequency[:-1]) / 2, rel=1e-4
    )


def test_one_joint_moves_at_a_time_from_home_to_home(humanoid, motion):
    home = np.array([humanoid.home[joint] for joint in humanoid.actuated])
    assert motion.joints == tuple(humanoid.joints)
    assert len(motion.targets) >= 21 * 400  # 8 s at 50 Hz each, and the ways to the middle and back
    assert np.diff(motion.time) == pytest.approx(0.02)
    away = np.abs(motion.targets - home) > 1e-9
    assert away.sum(axis=1).max() == 1
    begins = [int(np.flatnonzero(column)[0]) for column in away.T]
    assert begins == sorted(begins)
    assert not away[[0, -1]].any()
    for column, part in enumerate(motion.parts):
        rows = np.flatnonzero(away[:, column])
        one = motion.targets[rows[0] - 1 : rows[-1] + 2, column]
        assert np.ptp(one) > 1.4 * part.amplitude > 0.1
        assert np.abs(np.diff(one[[0, 1, -2, -1]])[[0, 2]]).max() < 0.02  # it starts and ends slowly


def test_targets_keep_out_of_the_ends_of_the_range_and_below_the_largest_speed(humanoid, motion):
    home = np.array([humanoid.home[joint] for joint in humanoid.actuated])
    low, high = (np.array(limits)[list(humanoid.actuated)] for limits in mjcf.joint_limits(humanoid))
    assert np.all(motion.targets.min(axis=0) > low + 0.09 * (high - low))
    assert np.all(motion.targets.max(axis=0) < high - 0.09 * (high - low))
    assert np.abs(np.diff(motion.targets, axis=0)).max() / 0.02 < 1.001 * SPEED
    assert np.abs(motion.targets - home).max() < 2 * 0.4


def test_played_in_another_simulation_nothing_touches_and_no_motor_saturates(humanoid, motion):
    model = mjcf.build_model(humanoid)
    model.opt.timestep = 0.005
    data = mujoco.MjData(model)
    data.qpos[:] = mjcf.home_qpos(humanoid, model)
    data.qpos[2] = 2.0
    base = data.qpos[:7].copy()
    effort = np.array([actuator.effort for actuator in humanoid.actuators])
    touching, largest = [], 0.0
    for row in motion.targets:
        data.ctrl[:] = row
        for _ in range(4):
            data.qpos[:7], data.qvel[:6] = base, 0.0  # somebody holds it
            mujoco.mj_step(model, data)
        largest = max(largest, float(np.abs(data.actuator_force / effort).max()))
        touching.append({tuple(sorted(contact.geom)) for contact in data.contact if contact.dist <= 0})
    assert set.union(*touching) == touching[0]
    assert 0.1 < largest < 0.85


def test_a_joint_that_would_touch_moves_less_and_the_bodies_are_named(motion):
    part = next(part for part in motion.parts if part.joint == "r_shoulder_roll")
    assert 0.05 < part.amplitude < 0.4
    assert "r_hand" in part.problem
    assert "r_thigh" in part.problem


def test_a_weak_motor_moves_its_joint_less(tmp_path):
    path = biped(tmp_path)
    strong, weak = (Robot.load(path, {"actuators": {"l_knee": {"effort": effort}}}) for effort in (200, 3))
    by_name = [{part.joint: part for part in excite(robot).parts} for robot in (strong, weak)]
    assert by_name[1]["l_knee"].amplitude < by_name[0]["l_knee"].amplitude
    assert by_name[1]["r_knee"] == by_name[0]["r_knee"]
    assert "torque" in by_name[1]["l_knee"].problem


def test_a_base_is_held_and_there_is_no_ground(humanoid):
    held = Held(humanoid, 0.02)
    assert held.model.nq == len(humanoid.joints)
    assert held.data.ncon == 0
    assert all(held.model.geom(k).type[0] != mujoco.mjtGeom.mjGEOM_PLANE for k in range(held.model.ngeom))


def test_a_base_that_its_file_tilts_is_held_level(tmp_path):
    path = biped(tmp_path, change=('<body name="trunk"', '<body name="trunk" euler="0 0.4 0"'))
    held = Held(Robot.load(path), 0.02)
    assert held.data.body("trunk").xquat == pytest.approx([1, 0, 0, 0])


RAIL = """
<mujoco><compiler angle="radian"/><option timestep="0.002"/><worldbody>
  <body name="a" pos="0 0 1"><joint name="rail" type="slide" axis="1 0 0" range="-2.5 2.5" limited="true"/>
    <geom size=".05" mass="1"/>
    <body name="b" pos=".1 0 0"><joint name="yaw" axis="0 0 1" range="-13 13" limited="true"/>
      <geom type="capsule" fromto="0 0 0 .2 0 0" size=".03" mass=".5"/></body>
  </body></worldbody>
  <actuator><position name="yaw" joint="yaw" kp="20" kv="2" forcerange="-20 20"/>{more}</actuator>
</mujoco>
"""
DRIVEN = '<position name="rail" joint="rail" kp="2000" kv="200" forcerange="-300 300"/>'


def test_a_home_at_the_end_of_a_wide_range_is_left_no_faster(tmp_path):
    (tmp_path / "rail.xml").write_text(RAIL.replace("{more}", DRIVEN))
    homes = {"joints": {"rail": {"home": -2.4}, "yaw": {"home": -12.9}}}
    found = excite(Robot.load(tmp_path / "rail.xml", homes))
    speed = np.abs(np.diff(found.targets, axis=0)).max(axis=0) / 0.02
    rail, yaw = found.joints.index("rail"), found.joints.index("yaw")
    assert 0.4 < speed[rail] < 0.5005  # PACE
    assert 1.6 < speed[yaw] < 2.002
    assert found.targets[:, rail].min() == -2.4
    assert found.targets[:, rail].max() == pytest.approx(
        -2.0 + 2 * 0.1, abs=0.02
    )  # a tenth of 5 m from its end


def test_a_rail_without_a_motor_that_carries_the_robot_is_held(tmp_path):
    (tmp_path / "rail.xml").write_text(RAIL.replace("{more}", ""))
    held = Held(Robot.load(tmp_path / "rail.xml"), 0.02)
    assert held.names == ("yaw",)
    assert held.model.njnt == 1


def test_a_hopper_hangs_in_the_air_as_its_rails_are_held():
    held = Held(Robot.load(registry.load("robots", "hopper"), {}, "hopper"), 0.02)
    assert held.model.njnt == len(held.names) == 3
    assert held.data.ncon == 0


def test_parts_that_a_joint_does_not_move_against_each_other_do_not_limit_it(tmp_path):
    fingers = (
        '<body name="l" pos=".3 .0205 0"><geom size=".02" mass=".1"/></body>'
        '<body name="r" pos=".3 -.0205 0"><joint name="free" range="-1 1" limited="true"/>'
        '<geom size=".02" mass=".1"/></body>'
    )
    text = RAIL.replace("{more}", "").replace('mass=".5"/>', f'mass=".5"/>{fingers}')
    (tmp_path / "rail.xml").write_text(text)
    (part,) = excite(Robot.load(tmp_path / "rail.xml")).parts
    assert (part.amplitude, part.problem) == (0.4, "")


def test_a_motor_that_can_hardly_hold_its_home_is_named(tmp_path):
    text = RAIL.replace("{more}", "").replace('name="yaw" axis="0 0 1"', 'name="yaw" axis="0 1 0"')
    (tmp_path / "rail.xml").write_text(text.replace("-20 20", "-0.3 0.3"))  # 0.5 Nm hold it level
    with pytest.raises(ConfigError, match="yaw"):
        excite(Robot.load(tmp_path / "rail.xml"))


def test_motors_that_take_torques_are_refused_by_name():
    robot = registry.load("robots", "cartpole")
    with pytest.raises(ConfigError, match="slider"):
        excite(robot if isinstance(robot, Robot) else Robot.load(robot, {}, "cartpole"))


@pytest.mark.parametrize("name", ["m.csv", "m.npz"])
def test_the_file_has_the_targets_by_the_joints_names(tmp_path, capsys, name):
    from robolearn import cli

    path = tmp_path / name
    words = ["robot", str(biped(tmp_path)), "--excite", str(path), "--period", "0.01"]
    assert exits.exit_code(lambda: cli.app(words, standalone_mode=False)) == exits.OK
    assert "8 of 8 joints" in capsys.readouterr().out
    if path.suffix == ".npz":
        with np.load(path, allow_pickle=False) as file:
            joints, time, target = list(file["joints"]), file["time"], file["target"]
    else:
        header, *lines = path.read_text().splitlines()
        first, *columns = header.split(",")
        assert first == "time"
        joints = [column.removeprefix("target.") for column in columns]
        table = np.array([[float(x) for x in line.split(",")] for line in lines])
        time, target = table[:, 0], table[:, 1:]
    assert len(joints) == 8
    assert "l_knee" in joints
    assert target.shape == (len(time), 8)
    assert len(time) >= 8 * 800
    assert time == pytest.approx(np.arange(len(time)) * 0.01)


def test_a_period_without_a_file_is_refused(tmp_path, capsys):
    from robolearn import cli

    words = ["robot", str(biped(tmp_path)), "--period", "0.01"]
    assert exits.exit_code(lambda: cli.app(words, standalone_mode=False)) == exits.BAD_INPUT
    assert "--excite" in capsys.readouterr().err


def test_another_format_is_refused_before_anything_is_printed(tmp_path, capsys):
    from robolearn import cli

    words = ["robot", str(biped(tmp_path)), "--excite", str(tmp_path / "m.txt")]
    assert exits.exit_code(lambda: cli.app(words, standalone_mode=False)) == exits.BAD_INPUT
    said = capsys.readouterr()
    assert "m.txt" in said.err
    assert ".csv" in said.err
    assert said.out == ""
    assert not (tmp_path / "m.txt").exists()
