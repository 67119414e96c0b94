"""Motors in robot.yaml: how entries are merged, and what is refused in one line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from robolearn.commands.robot import stated
from robolearn.envs.actuators.model import MotorModel, merged
from robolearn.envs.robot import Robot
from robolearn.errors import ConfigError
from tests.envs.actuators.robots import ARM, arm

CURVE = [[0, 60], [10, 50], [20, 0]]


def derived(folder: Path, actuators: dict[str, Any], changes: dict[str, Any] | None = None) -> Robot:
    """The arm, of which everything that is not stated is derived."""
    (folder / "arm.xml").write_text(ARM, encoding="utf-8")
    content = {"schema": 2, "mjcf": "arm.xml", "base": None, "feet": [], "actuators": actuators}
    (folder / "robot.yaml").write_text(yaml.safe_dump(content), encoding="utf-8")
    return Robot.load(folder, changes and {"actuators": changes})


def test_a_pattern_gives_all_its_motors_a_model(tmp_path):
    robot = derived(tmp_path, {"*": {"model": "dc", "saturation": 60, "no_load_speed": 20, "delay": 0.5}})
    model = MotorModel("dc", delay=(0.5, 0.5), saturation=60.0, no_load_speed=20.0)
    assert [a.motor for a in robot.actuators] == [model, model]


def test_a_complete_file_takes_patterns_of_its_actuators_or_joints_too(tmp_path):
    arm(tmp_path, {"lag": 0.01, "model": "explicit"})
    every = Robot.load(tmp_path, {"actuators": {"*": {"model": "explicit", "delay": 0.5}}})
    assert [a.motor for a in every.actuators] == [
        MotorModel("explicit", (0.5, 0.5), lag=0.01),
        MotorModel("explicit", (0.5, 0.5)),
    ]
    one = Robot.load(tmp_path, {"actuators": {"elb*": {"model": "explicit", "delay": 0.5}}})
    assert one.actuators[1].motor == MotorModel("explicit", (0.5, 0.5))
    with pytest.raises(ConfigError, match=r"knee\*"):
        Robot.load(tmp_path, {"actuators": {"knee*": {"model": "explicit"}}})


def test_an_entry_of_one_joint_changes_what_the_pattern_says(tmp_path):
    every = {"model": "dc", "saturation": 60, "no_load_speed": 20, "delay": [0.2, 0.8]}
    robot = derived(tmp_path, {"*": every, "elbow": {"lag": 0.01}})
    assert robot.actuators[1].motor == MotorModel("dc", (0.2, 0.8), 0.01, saturation=60.0, no_load_speed=20.0)
    robot = derived(tmp_path, {"*": every, "elbow": {"curve": CURVE}})
    assert robot.actuators[1].motor == MotorModel(
        "dc", (0.2, 0.8), curve=((0.0, 60.0), (10.0, 50.0), (20.0, 0.0))
    )
    assert derived(tmp_path, {"*": every, "elbow": {"model": "implicit"}}).actuators[1].motor is None
    robot = derived(tmp_path, {"*": every}, {"elbow": {"model": "explicit", "lag": 0.02}})
    assert robot.actuators[1].motor == MotorModel("explicit", lag=0.02)
    assert robot.actuators[0].motor is not None
    assert robot.actuators[0].motor.name == "dc"
    assert merged({"delay": 1.0}, {"model": "dc"}) == {"delay": 1.0, "model": "dc"}


def test_a_change_of_the_model_does_away_with_what_the_file_says_of_the_one_before(tmp_path):
    every = {"model": "dc", "saturation": 60, "no_load_speed": 20, "delay": [0.2, 0.8]}
    implicit = {"model": "implicit"}
    assert [a.motor for a in derived(tmp_path, {"*": every}, {"*": implicit}).actuators] == [None, None]
    robot = derived(tmp_path, {"elbow": {**every, "kp": 33.0}}, {"elbow": implicit})
    assert (robot.actuators[1].motor, robot.actuators[1].kp) == (None, 33.0)
    # Of an entry that leaves the model to a pattern, the keys go that the new model does not have.
    robot = derived(tmp_path, {"*": every, "elbow": {"lag": 0.01}}, {"elbow": implicit})
    assert robot.actuators[1].motor is None
    robot = derived(tmp_path, {"*": every, "elbow": {"lag": 0.01}}, {"elbow": {"model": "explicit"}})
    assert robot.actuators[1].motor == MotorModel("explicit", lag=0.01)
    arm(tmp_path, {"lag": 0.01, "model": "explicit"})
    assert Robot.load(tmp_path, {"actuators": {"one": implicit}}).actuators[0].motor is None


@pytest.mark.parametrize(
    ("keys", "named"),
    [
        ({"model": "dx"}, ("actuators.one.model", "'dx'", "dc, network, dcmotor")),
        ({"saturation": 5}, ("one.saturation", "model: dc", "implicit")),
        ({"model": "explicit", "saturation": 5}, ("one.saturation", "explicit", "delay, lag, backlash")),
        ({"model": "dc"}, ("one has no saturation",)),
        ({"model": "dc", "saturation": 5}, ("one has no no_load_speed",)),
        ({"model": "dc", "saturation": -5, "no_load_speed": 3}, ("one.saturation is -5",)),
        ({"model": "dc", "curve": CURVE, "saturation": 5}, ("one has curve", "saturation")),
        ({"model": "dc", "curve": [[1, 5], [2, 0]]}, ("one.curve", "begin at 0")),
        ({"model": "dc", "curve": [[0, 5], [0, 3]]}, ("one.curve", "rise")),
        ({"model": "dc", "curve": [[0, 5], [2, -1]]}, ("one.curve", "-1")),
        ({"model": "dc", "curve": [[0, 5], 3]}, ("one.curve", "point 3")),
        ({"model": "dc", "curve": 7}, ("one.curve", "points")),
        ({"model": "explicit", "delay": -1}, ("one.delay", "control steps")),
        ({"model": "explicit", "delay": [0.8, 0.2]}, ("one.delay", "shortest, longest")),
        ({"model": "explicit", "delay": 100}, ("one.delay", "20")),
        ({"model": "explicit", "delay": "long"}, ("one.delay", "number")),
        ({"model": "explicit", "lag": -0.1}, ("one.lag",)),
        ({"model": "explicit", "backlash": float("inf")}, ("one.backlash",)),
        ({"model": "network"}, ("one has no network", "ONNX")),
        ({"model": "network", "network": "none.onnx"}, ("one.network", "none.onnx")),
        ({"model": "dcmotor", "resistance": 1}, ("one has no motor_constant",)),
        (
            {"kind": "force", "kp": None, "kd": None, "model": "explicit", "backlash": 0.1},
            ("backlash", "force"),
        ),
        ({"kind": "force", "kp": None, "kd": None, "model": "network"}, ("model network", "force")),
    ],
)
def test_what_no_motor_can_be_is_refused_in_one_line(tmp_path, keys, named):
    with pytest.raises(ConfigError) as error:
        arm(tmp_path, keys)
    for text in ("robot.yaml", *named):
        assert text in str(error.value)


def test_a_history_is_a_whole_number(tmp_path):
    (tmp_path / "motor.onnx").touch()
    for history in (0, 1.5, 1000):
        with pytest.raises(ConfigError, match="history"):
            arm(tmp_path, {"model": "network", "network": "motor.onnx", "history": history})


def test_a_written_robot_yaml_states_the_motors(tmp_path):
    keys = {"model": "dc", "curve": CURVE, "delay": [0.2, 0.8], "lag": 0.01, "backlash": 0.002}
    made = arm(tmp_path, keys, {"model": "explicit", "delay": 0.5})
    (tmp_path / "again").mkdir()
    (tmp_path / "again" / "robot.yaml").write_text(stated(made), encoding="utf-8")
    again = Robot.load(tmp_path / "again")
    assert [a.motor for a in again.actuators] == [a.motor for a in made.actuators]
