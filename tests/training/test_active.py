"""The list of what is active in a run: complete, and true to the settings."""

from __future__ import annotations

import io

import pytest
import yaml
from rich.console import Console

from robolearn import cli, config
from robolearn.training.active import active, comments, table
from robolearn.training.panel import Panel


def rows(*words: str) -> dict[str, dict[str, str]]:
    return {title: dict(found) for title, found in active(config.resolve(list(words)).task).items()}


def test_every_part_of_a_task_is_listed_with_its_numbers():
    found = rows(
        "task=humanoid_walk",
        "task.action_delay=[0,2]",
        "task.rewards.swing_height={weight: -4, height: 0.08}",
        "task.rewards.posture=-4e-6",
        "task.terminations.fallen={height: 0.5, upright: 0.75}",
        "task.curricula.commands={start: 1, most: 1}",
        "task.curricula.pushes={start: 0.25, most: 3, full: 2, rise: 0.06, drop: 0.6}",
        "task.commands.forward=[-0.5,1]",
        "task.pushes={speed: [0, 0.5], seconds: [4, 8], box: [0, 0, 0.3], turn: [0, 0, 0]}",
        "task.randomize.friction=[0.5,1.2]",
        "task.noise.joint_vel_rel=0.5",
    )
    assert found["rewards"]["swing_height"] == "weight -4, height 0.08"
    assert found["rewards"]["posture"] == "weight -4e-06"
    assert found["terminations"] == {
        "fallen": "height 0.5, upright 0.75",
        "body_below_ground": "",
        "time-out": "after 20 s",
    }
    assert found["curricula"] == {
        "commands": "off",
        "pushes": "start 0.25, most 3, full 2, rise 0.06, drop 0.6",
    }
    assert "forward [-0.5, 1]" in found["commands"]["VelocityCommands"]
    pushes = (
        "speed [0, 0.5], seconds [4, 8], box [0, 0, 0.3], turn [0, 0, 0], force [0, 0], lasting [0.1, 0.3]"
    )
    assert found["pushes"] == {"Pushes": pushes}
    assert found["randomize"]["friction"] == "[0.5, 1.2]"
    assert found["noise"]["joint_vel_rel"] == "0.5"
    assert found["delays"] == {"action": "[0, 2] control steps", "observation": "off"}
    assert found["observations"]["policy"].startswith("base_ang_vel (3 samples), projected_gravity (3 ")


def test_what_happens_to_observations_and_actions_on_their_way_is_listed():
    found = rows(
        "task=cartpole_balance",
        "task.history=5",
        "task.sensing.joint_pos_rel={slow: [0.1, 2], bias: [-0.2, 0.2], delay: [0, 3], dropout: 0.25}",
        "task.sensing.policy={}",
        "task.packet_loss=0.1",
        "task.randomize.encoder_bias=[-0.1,0.1]",
    )
    assert found["sensing"] == {
        "joint_pos_rel": "slow [0.1, 2], bias [-0.2, 0.2], delay [0, 3], dropout 0.25",
        "policy": "off",
    }
    assert found["delays"] == {"action": "off", "observation": "off", "packet loss": "0.1"}
    assert found["randomize"] == {"encoder_bias": "[-0.1, 0.1]"}
    assert found["observations"]["policy"] == "joint_pos_rel (5 samples), joint_vel_rel (5 samples)"
    assert "sensing" not in rows("task=cartpole_balance")


def test_a_reward_of_weight_0_a_termination_and_pushes_that_are_switched_off_are_off():
    words = ["task.rewards.posture=0", "task.terminations.fallen=false", "task.pushes.speed=[0,0]"]
    words += ["task.pushes.box=[0,0,0]", "task.pushes.turn=[0,0,0]"]
    found = rows("task=humanoid_walk", *words)
    assert (found["rewards"]["posture"], found["terminations"]["fallen"], found["pushes"]["Pushes"]) == (
        "off",
    ) * 3


def test_a_task_without_commands_noise_and_pushes_says_none():
    found = rows("task=cartpole_balance")
    assert [found[part] for part in ("commands", "pushes", "noise", "randomize")] == [{"none": ""}] * 4


def test_widths_of_the_observations_are_listed_where_they_are_known(make_env):
    env = make_env(config.resolve(["task=cartpole_balance"]).task)
    found = dict(active(env.task, env.columns)["observations"])
    assert found == {
        "policy (4)": "joint_pos_rel 2, joint_vel_rel 2",
        "critic (5)": "joint_pos_rel 2, joint_vel_rel 2, last_action 1",
    }


def test_a_task_of_an_external_environment_has_no_list():
    assert active(object()) == {}
    assert comments({}) == ""


def test_show_lists_what_is_active_as_comments_of_the_settings(capsys: pytest.CaptureFixture[str]):
    assert cli.main(["train", "task=stand", "task.terminations.fallen=false", "--show"]) == 0
    out = capsys.readouterr().out
    listed = out.partition("# Active in this run:\n")[2].splitlines()
    assert all(line.startswith("#") and len(line) <= 120 for line in listed)
    assert any(line.split()[1:] == ["terminations", "fallen", "off"] for line in listed)
    assert yaml.safe_load(out)["task"]["name"] == "stand"


@pytest.mark.parametrize(
    ("words", "offender"),
    [
        (["task=arm_reach", "task.frame=gripp"], "gripp"),
        (["task=arm_reach", "task.robot=humanoid"], "grip"),
        (["task=arm_lift", "backend=differentiable"], "differentiable"),
        (["task=arm_lift", "task.randomize={cub/mass_scale: [0.5, 2]}"], "cub"),
    ],
)
def test_show_refuses_a_scene_that_training_refuses(words: list[str], offender: str, capsys):
    assert cli.main(["train", *words, "--show"]) == 2
    assert offender in capsys.readouterr().err


@pytest.mark.parametrize("width", [60, 120])
def test_the_table_is_printed_above_the_panel_on_a_terminal_alone(width: int):
    sections = active(config.resolve(["task=cartpole_balance"]).task)
    for terminal in (True, False):
        text = io.StringIO()
        with Panel("a run", 3, Console(file=text, force_terminal=terminal, width=width)) as panel:
            panel.print_active(sections)
        assert ("off_the_rail" in text.getvalue()) == terminal
    text = io.StringIO()
    Console(file=text, width=width).print(table(sections))
    assert max(len(line) for line in text.getvalue().splitlines()) <= width


def test_the_models_of_motors_are_listed():
    from robolearn.training.build import scene_of

    run = config.resolve(["task=hopper_run", "robot.actuators={*:{model:explicit,delay:0.5}}"])
    rows = dict(active(run.task, scene=scene_of(run))["motors"])
    assert rows == {"hip, knee, ankle": "explicit (delay 0.5)"}
    plain = config.resolve(["task=hopper_run"])
    assert "motors" not in active(plain.task, scene=scene_of(plain))


def test_as_many_joints_of_a_motors_model_are_named_as_fit_beside_it():
    from robolearn.training.build import scene_of

    run = config.resolve(["task=humanoid_walk", "robot.actuators={*:{model:explicit,delay:0.5}}"])
    joints = scene_of(run).robots["robot"].joints
    ((name, model),) = active(run.task, scene=scene_of(run))["motors"]
    assert (name, model) == (f"{', '.join(joints[:2])} and {len(joints) - 2} more", "explicit (delay 0.5)")


def test_a_list_of_long_names_alone_is_listed():
    assert comments({"motors": [("x" * 50, "dcmotor")]}).splitlines()[1:] == [
        f"# motors  {'x' * 50}",
        "#           dcmotor",
    ]


def test_values_of_a_name_that_fills_the_line_begin_in_the_next_one():
    long = "x" * 130
    sections = {"motors": [(long, "explicit (delay 0.5)"), ("hip", "dcmotor")]}
    assert comments(sections) == (
        "# Active in this run:\n"
        f"# motors  {long}\n"
        "#              explicit (delay 0.5)\n"
        "#         hip  dcmotor\n"
    )
