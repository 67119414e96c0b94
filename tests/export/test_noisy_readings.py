"""A bundle that drives a simulated robot meets the noise of the observations in the robot's readings."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from robolearn.cli import main
from robolearn.config.run_config import resolve
from robolearn.core.env import Env
from robolearn.envs.state import quat_rotate_inverse
from robolearn.export.deploy import simulated
from robolearn.export.noisy_readings import NoisyReadings, turned
from robolearn.export.record import on_robot
from robolearn.training.build import make_env

CALM = ["task.pushes.speed=[0,0]", "task.pushes.box=[0,0,0]", "task.pushes.turn=[0,0,0]", "backend.threads=1"]
QUIET = [
    f"task.noise.{name}=0" for name in ("base_ang_vel", "projected_gravity", "joint_pos_rel", "joint_vel_rel")
]
SENSORS = ("quat", "gyro", "joint_pos", "joint_vel")


def deployed(*settings: str, num_envs: int = 4) -> Env:
    env = make_env(on_robot(resolve(list(settings)), noise=True), num_envs=num_envs)
    env.reset()
    return env


def newest(env: Env) -> dict[str, torch.Tensor]:
    """The newest sample of every item of the policy, by name."""
    parts = env.observations["policy"].split([width for _, width in env.columns["policy"]], dim=1)
    items = env.task.items("policy")
    return {i.name: part[:, -part.shape[1] // i.history :] for i, part in zip(items, parts, strict=True)}


def test_the_observations_computed_from_the_readings_have_the_noise_of_the_env() -> None:
    env = deployed("task=humanoid_walk", "task.history=3", *CALM)
    noisy = NoisyReadings(env)
    assert noisy.left_out == []
    for _ in range(5):
        env.step(torch.zeros(4, env.num_actions))
        seen, given, true = newest(env), noisy(SENSORS), env.readings(SENSORS)
        assert torch.allclose(given["joint_pos"] - env.ctx.robot.home, seen["joint_pos_rel"], atol=1e-6)
        assert torch.allclose(given["joint_vel"], seen["joint_vel_rel"], atol=1e-5)
        assert torch.allclose(given["gyro"], seen["base_ang_vel"], atol=1e-6)
        # Gravity of length 1 in the noisy direction; no orientation makes it longer.
        down = quat_rotate_inverse(given["quat"], torch.tensor([0.0, 0.0, -1.0]).expand(4, 3))
        wanted = seen["projected_gravity"] / seen["projected_gravity"].norm(dim=1, keepdim=True)
        assert torch.allclose(down, wanted, atol=1e-6)
        assert torch.allclose(given["quat"].norm(dim=1), torch.ones(4), atol=1e-6)
        # Half-widths of 0.01 rad, 0.5 rad/s and 0.1 rad/s, and each is drawn anew.
        for name, half in (("joint_pos", 0.01), ("joint_vel", 0.5), ("gyro", 0.1)):
            off = (given[name] - true[name]).abs()
            assert 0.5 * half < float(off.max()) <= half * 1.001


def test_without_noise_readings_are_as_they_are() -> None:
    env = deployed("task=humanoid_walk", *QUIET, *CALM)
    env.step(torch.zeros(4, env.num_actions))
    assert all(torch.equal(NoisyReadings(env)(SENSORS)[name], x) for name, x in env.readings(SENSORS).items())


def test_a_reading_that_is_held_keeps_its_noise() -> None:
    # Nothing new ever arrives: the first reading of the episode holds, with the noise that it had.
    env = deployed(
        "task=cartpole_balance",
        "task.noise={joint_pos_rel: 0.05}",
        "task.sensing.policy={dropout: 1.0}",
        "task.sensing.joint_pos_rel={slow: [0.1, 0.2], bias: [0.5, 0.5], dropout: 1.0}",
    )
    noisy = NoisyReadings(env)
    first = noisy(["joint_pos"])["joint_pos"].clone()
    assert float((first - env.readings(["joint_pos"])["joint_pos"]).abs().min()) > 0.1
    for _ in range(3):
        env.step(torch.ones(4, env.num_actions))
        assert torch.allclose(noisy(["joint_pos"])["joint_pos"], first, atol=1e-6)


def test_an_orientation_is_turned_by_the_angle_between_the_directions_and_not_about_them() -> None:
    upright = torch.tensor([[1.0, 0.0, 0.0, 0.0]])
    down, tilted = torch.tensor([[0.0, 0.0, -1.0]]), torch.tensor([[0.6, 0.0, -0.8]])
    quat = turned(upright, down, tilted)
    assert quat_rotate_inverse(quat, down)[0].tolist() == pytest.approx([0.6, 0, -0.8], abs=1e-6)
    # A pitch alone, whose cosine is 0.8: its half has a cosine of sqrt(0.9).
    assert quat[0].tolist() == pytest.approx([0.9**0.5, 0, 0.1**0.5, 0], abs=1e-6)


OWN = """
from dataclasses import dataclass
import torch
from robolearn.tasks.stand import Stand
from robolearn.tasks.mdp.observations import Observation

def policy(*items):
    return {**Stand.observations, "policy": items}

@dataclass
class Odd(Stand):
    observations = policy(
        "projected_gravity",
        "joint_pos_rel",
        Observation("both", lambda s, c: s.robot.joint_pos + s.robot.joint_vel, "joints"),
        Observation("tenth", lambda s, c: 0.1 * s.robot.joint_vel, "joints"),
        Observation("orientation", lambda s, c: s.robot.base_quat, "same"),
        Observation("axis", lambda s, c: s.robot.base_quat[:, 1:], "same"),
        Observation("far", lambda s, c: s.robot.base_ang_vel - 3000.5, "same"),
        Observation("again", lambda s, c: s.robot.joint_pos - 1.0, "joints"),
        Observation("moved", lambda s, c: s.robot.base_ang_vel + c.action[:, :1], "same"),
    )

    def __post_init__(self):
        self.noise = {name: 0.05 for name in (
            "projected_gravity", "joint_pos_rel", "both", "tenth", "orientation", "axis", "again", "moved")}
        self.noise["far"] = 2.0
"""
LEFT_OUT = ["both", "tenth", "orientation", "axis", "again", "moved"]


def own_env(folder: Path) -> Env:
    (folder / "odd.py").write_text(OWN)
    return deployed(f"task={folder / 'odd.py'}:Odd")


def test_items_of_several_readings_or_that_are_no_plain_reading_keep_no_noise_and_are_named(
    tmp_path: Path,
) -> None:
    env = own_env(tmp_path)
    noisy = NoisyReadings(env)
    assert noisy.left_out == LEFT_OUT
    for _ in range(3):
        env.step(torch.zeros(4, env.num_actions))
        given, true, seen = noisy(SENSORS), env.readings(SENSORS), newest(env)
        assert torch.equal(given["joint_vel"], true["joint_vel"])
        assert torch.allclose(given["joint_pos"] - env.ctx.robot.home, seen["joint_pos_rel"], atol=1e-6)
        assert 0.5 < float((given["gyro"] - true["gyro"]).abs().max()) <= 2.001
        # Gravity is off by up to 0.05 in each of three axes: no turn is larger than 0.1 rad.
        cosine = (given["quat"] * true["quat"]).sum(dim=1).abs()
        assert float(cosine.min()) > math.cos(0.1 / 2)


def test_with_a_delay_of_all_observations_no_reading_has_their_noise() -> None:
    words = ["task=cartpole_balance", "task.observation_delay=[1,1]", "task.noise={joint_pos_rel: 0.1}"]
    env = make_env(resolve(words), num_envs=2)
    noisy = NoisyReadings(env)
    assert noisy.left_out == ["joint_pos_rel"]
    assert torch.equal(noisy(["joint_pos"])["joint_pos"], env.readings(["joint_pos"])["joint_pos"])


def test_what_a_task_says_of_delays_on_the_robot_holds_with_noise_too() -> None:
    run = resolve(["task=humanoid_walk"])
    kind = type("Late", (type(run.task),), {"on_robot": {"action_delay": (1, 1)}})
    late = on_robot(replace(run, task=kind()), noise=True).task
    assert (late.action_delay, late.observation_delay) == ((1, 1), (0, 0))
    assert late.noise


def test_deploy_says_whose_noise_it_leaves_out() -> None:
    run = resolve(
        ["task=humanoid_walk", *QUIET[1:], "task.sensing.joint_pos_rel={bias: [0, 0.1], dropout: 0.5}"]
    )
    assert simulated(run.task, ["joint_pos_rel"]) == "base_ang_vel noise 0.1; joint_pos_rel dropout 0.5"


@pytest.mark.parametrize(("noise", "falls"), [(0, False), (100, True)])
def test_deploy_simulates_the_noise_it_is_told_of(noise, falls, exported, capsys) -> None:
    words = ["--seconds", "3", "--max-missed", "1", *CALM[:3], *QUIET, f"task.noise.joint_vel_rel={noise}"]
    assert main(["deploy", str(exported), *words]) == int(falls), capsys.readouterr().out
    assert ("joint_vel_rel noise 100" in capsys.readouterr().out) == falls
