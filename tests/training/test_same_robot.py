"""A policy is refused for a robot that has the same joints in another order; other motors are named."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import yaml

from robolearn import config
from robolearn.cli import main
from robolearn.commands.exits import BAD_INPUT, OK
from robolearn.errors import ConfigError
from robolearn.training.build import acting_robot
from robolearn.training.same_robot import other_motors, require_same_order
from tests.factories import ROBOTS


def contract(folder, joints, motors):
    """A contract.json of which only the names matter."""
    content = {
        "robot": "other",
        "joints": [{"name": name} for name in joints],
        "actions": [{"joint": name} for name in motors],
    }
    (folder / "contract.json").write_text(json.dumps(content))


@pytest.fixture
def hopper():
    return config.resolve(["task=hopper_run"])


def names(run):
    from robolearn.training.build import acting_robot

    robot = acting_robot(run)
    return list(robot.joints), [each.joint for each in robot.actuators]


def test_the_same_order_and_other_names_pass_and_another_order_names_the_first_joint(hopper, tmp_path):
    require_same_order(tmp_path, hopper, "it does")  # no contract.json: nothing to compare
    joints, motors = names(hopper)
    contract(tmp_path, joints, motors)
    require_same_order(tmp_path, hopper, "it does")
    contract(tmp_path, [f"my_{name}" for name in joints], [f"my_{name}" for name in motors])
    require_same_order(tmp_path, hopper, "it does")
    contract(tmp_path, joints, [motors[1], motors[0], *motors[2:]])
    with pytest.raises(ConfigError, match=rf"{motors[0]} is actuator 1 of it, and was actuator 2 of .*other"):
        require_same_order(tmp_path, hopper, "it does")
    contract(tmp_path, [*joints[:-2], joints[-1], joints[-2]], motors)
    with pytest.raises(ConfigError, match=rf"{joints[-2]} is joint {len(joints) - 1} of it"):
        require_same_order(tmp_path, hopper, "it does")


def test_a_robot_whose_file_has_other_motors_than_a_policy_was_trained_with_is_named(hopper, tmp_path):
    assert other_motors(tmp_path, hopper, "it") == ""  # no contract.json: nothing to compare
    motors = [
        {"joint": a.joint, "kp": a.kp, "kd": a.kd, "effort": a.effort} for a in acting_robot(hopper).actuators
    ]
    (tmp_path / "contract.json").write_text(json.dumps({"actions": motors}))
    assert other_motors(tmp_path, hopper, "it") == ""
    for factor, differs in ((1.005, False), (1.02, True)):
        changed = [*motors[:-1], {**motors[-1], "kd": factor * motors[-1]["kd"]}]
        (tmp_path / "contract.json").write_text(json.dumps({"actions": changed}))
        said = other_motors(tmp_path, hopper, "it")
        assert (f"kd {1.02 * motors[-1]['kd']:g} of {motors[-1]['joint']}" in said) == differs


def test_eval_names_other_motors_on_a_line_of_its_own_unless_the_robot_was_asked_for(
    hopper, tmp_path, capsys
):
    run = tmp_path / "run"
    words = ["task=hopper_run", "num_envs=2", "learner.num_steps=2", "max_iterations=1"]
    assert main(["train", *words, f"output={run}"]) == OK
    found = json.loads((run / "contract.json").read_text())
    found["actions"][0]["kp"] *= 2
    (run / "contract.json").write_text(json.dumps(found))
    for robot, lines in (([], 1), (["robot=hopper"], 0)):
        capsys.readouterr()
        assert main(["eval", str(run), "--episodes", "1", "task.episode_length_s=0.1", *robot]) == OK
        assert capsys.readouterr().err.count(found["actions"][0]["joint"]) == lines


def test_eval_and_weights_refuse_a_robot_with_another_order_of_joints(hopper, tmp_path, capsys):
    run = tmp_path / "run"
    words = ["task=hopper_run", "num_envs=2", "learner.num_steps=2", "max_iterations=1"]
    assert main(["train", *words, f"output={run}"]) == OK
    joints, motors = names(hopper)
    contract(run, joints, motors[::-1])
    for command in (
        ["eval", str(run), "--episodes", "1", "robot=hopper"],
        ["train", *words, f"weights={run}", f"output={tmp_path / 'next'}"],
        ["train", f"resume={run}", "max_iterations=2", "robot.description=another"],
    ):
        capsys.readouterr()
        assert main(command) == BAD_INPUT, command
        (line,) = capsys.readouterr().err.splitlines()
        assert motors[0] in line


def test_a_resume_sees_a_robot_file_that_was_edited_since(tmp_path, monkeypatch, capsys):
    """Its MJCF has the slider before the hinge; a delay of five control steps needs more memory than one of two."""
    monkeypatch.chdir(tmp_path)
    shutil.copytree(ROBOTS / "cartpole", "pole")
    file = Path("pole/robot.yaml")
    plain = file.read_text()

    def edited(backwards=False, **motor):
        content = yaml.safe_load(plain)
        (only,) = content["actuators"].values()
        only |= {"model": "explicit", **motor}
        joints = list(content["joints"].items())
        content["joints"] = dict(joints[::-1] if backwards else joints)
        file.write_text(yaml.safe_dump(content, sort_keys=False))

    def resumed(iterations):
        code = main(["train", "resume=run", f"max_iterations={iterations}"])
        said = capsys.readouterr()
        return code, " ".join(said.out.split()), said.err

    edited(delay=[0, 2])
    assert (
        main(
            ["train", "task=cartpole_balance", "robot=./pole", "num_envs=8", "max_iterations=1", "output=run"]
        )
        == OK
    )
    assert "resumed at iteration 1, exactly" in resumed(2)[1]
    edited(delay=[0, 2], effort=7.0)
    assert "resumed at iteration 2, not bit for bit: file of the robot differs" in resumed(3)[1]
    edited(delay=[0, 5], effort=7.0)
    code, _, error = resumed(4)
    assert code == BAD_INPUT
    assert "motors" in error
    edited(backwards=True, delay=[0, 2])
    code, _, error = resumed(4)
    assert code == BAD_INPUT
    assert "hinge is joint 1" in error
