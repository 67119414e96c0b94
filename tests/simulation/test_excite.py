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
    assert motion.targets.shape == (21 * 400, 21)  # 8 s at 50 Hz each
    assert np.diff(motion.time) == pytest.approx(0.02)
    for column, part in enumerate(motion.parts):
        rows = motion.targets[400 * column : 400 * (column + 1)]
        moved = np.abs(rows - home).max(axis=0)
        assert moved[column] > 0.9 * part.amplitude > 0.05
        assert np.delete(moved, column).max() == 0
        assert rows[[0, -1], column] == pytest.approx(home[column])
        assert np.abs(np.diff(rows[:2], axis=0)).max() < 1e-3  # it starts slowly
        assert np.abs(np.diff(rows[-2:], axis=0)).max() < 1e-3


def test_targets_keep_out_of_the_ends_of_the_range_and_below_the_largest_speed(humanoid, motion):
    low, high = (np.array(limits)[list(humanoid.actuated)] for limits in mjcf.joint_limits(humanoid))
    assert np.all(motion.targets.min(axis=0) > low + 0.09 * (high - low))
    assert np.all(motion.targets.max(axis=0) < high - 0.09 * (high - low))
    assert np.abs(np.diff(motion.targets, axis=0)).max() / 0.02 < 1.3 * SPEED  # a tenth more while it fades


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


def test_a_base_is_held_above_the_ground(humanoid):
    held = Held(humanoid, 0.02)
    assert held.model.nq == len(humanoid.joints)
    assert held.data.ncon == 0
    assert held.data.body("pelvis").xpos[2] == pytest.approx(humanoid.home_height + 1.0)


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
    assert target.shape == (8 * 800, 8)
    assert time[[0, 1, -1]] == pytest.approx([0, 0.01, 63.99])


def test_another_format_is_refused_before_anything_is_printed(tmp_path, capsys):
    from robolearn import cli

    words = ["robot", str(biped(tmp_path)), "--excite", str(tmp_path / "m.txt")]
    assert exits.exit_code(lambda: cli.app(words, standalone_mode=False)) == exits.BAD_INPUT
    said = capsys.readouterr()
    assert "m.txt" in said.err
    assert ".csv" in said.err
    assert said.out == ""
    assert not (tmp_path / "m.txt").exists()
