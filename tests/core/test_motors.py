"""Env with motors that are computed outside the simulator: drawn delays, exact resume, agents, no sync."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from robolearn import config
from robolearn.cli import main
from robolearn.core.env import Env
from robolearn.core.recorder import Recorder
from robolearn.envs.actuators.backend import MotorBackend
from robolearn.training import replay
from robolearn.training.build import build_env
from tests.as_on_gpu import warp_env
from tests.no_sync import no_host_sync
from tests.training.equal import assert_equal

MOTORS = [
    "robot.actuators.hip={model: explicit, delay: [0.2, 1.8], lag: 0.005}",
    "robot.actuators.knee={model: dc, saturation: 90, no_load_speed: 20, delay: 0.5, backlash: 0.004}",
]
"""Of the hopper; its ankle stays a servo in the solver."""


def hopper(*words: str, num_envs: int = 6) -> Env:
    return build_env(config.resolve(["task=hopper_run", *MOTORS, *words]), num_envs)


def drive(env: Env, steps: int, seed: int = 0) -> None:
    random = torch.Generator().manual_seed(seed)
    for _ in range(steps):
        env.step(torch.randn(env.num_envs, env.num_actions, generator=random))


def test_each_episode_draws_a_place_in_the_range_of_the_delay():
    env = hopper("task.episode_length_s=0.2")
    first = env.backend.state.params["motor_delay"].clone()
    assert first.unique().numel() == 6
    assert 0 <= float(first.min()) < float(first.max()) <= 1
    drive(env, 10)  # episodes of ten control steps
    assert not (env.backend.state.params["motor_delay"] == first).any()
    fixed = hopper("task.randomize={motor_delay: [0.25, 0.25]}")
    assert fixed.backend.state.params["motor_delay"].tolist() == [0.25] * 6


def test_robots_without_a_range_draw_nothing():
    plain = build_env(config.resolve(["task=hopper_run"]), 6)
    other = build_env(config.resolve(["task=hopper_run", MOTORS[1]]), 6)
    assert isinstance(other.backend, MotorBackend)
    assert plain.capabilities.drawn == other.capabilities.drawn == {}
    assert torch.equal(plain.random.state(), other.random.state())


def test_a_run_resumes_to_the_same_bits(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    small = [
        "num_envs=8",
        "torch_threads=1",
        "checkpoint_interval=2",
        "learner.num_steps=8",
        "task.episode_length_s=0.3",
    ]
    random = "task.randomize={gain_scale: [0.8, 1.2]}"
    run = ["train", "task=hopper_run", *MOTORS, *small, random]
    assert main([*run, "max_iterations=4", "output=whole"]) == 0
    assert main([*run, "max_iterations=2", "output=run"]) == 0
    capsys.readouterr()
    assert main(["train", "resume=run", "max_iterations=4"]) == 0
    assert "resumed at iteration 2, exactly" in capsys.readouterr().out
    ended = [torch.load(Path(name) / "latest.pt", weights_only=True) for name in ("whole", "run")]
    for content in ended:
        content["infos"].pop("seconds")
    assert_equal(*ended)


@pytest.mark.slow
def test_a_shac_run_learns_through_motors_and_resumes_to_the_same_bits(tmp_path, monkeypatch, capsys):
    pytest.importorskip("warp")
    monkeypatch.chdir(tmp_path)
    curve = "model: dc, curve: [[0, 60], [3, 30], [9, 0]]"
    motor = f"robot.actuators.drive={{{curve}, delay: [0.2, 1.2], lag: 0.02}}"
    small = ["num_envs=6", "torch_threads=1", "checkpoint_interval=2", "learner.num_steps=8"]
    run = ["train", "task=cartpole_swingup", "learner=shac", "device=cpu", motor, *small]
    run += ["learner.critic_epochs=2", "learner.decay_iterations=4", "task.episode_length_s=0.1"]
    assert main([*run, "max_iterations=4", "output=whole"]) == 0
    assert main([*run, "max_iterations=2", "output=run"]) == 0
    assert main(["train", "resume=run", "max_iterations=4"]) == 0
    assert "resumed at iteration 2, exactly" in capsys.readouterr().out
    ended = [torch.load(Path(name) / "latest.pt", weights_only=True) for name in ("whole", "run")]
    for content in ended:
        content["infos"].pop("seconds")
    assert_equal(*ended)


def test_a_replay_of_one_environment_repeats_its_bits(tmp_path):
    run = config.resolve(["task=hopper_run", *MOTORS])
    env = build_env(run, 6)
    recorder = Recorder.install(env, 0.2)
    drive(env, 25)
    replay.write(tmp_path / "x.replay", recorder.dump(3), 3, run, "a test")
    read = replay.read(tmp_path / "x.replay")
    with replay.opened(read, tmp_path) as opened:
        for _ in replay.steps_of(read, opened):
            pass
        assert replay.same_bits(read, opened)


def test_a_step_waits_for_nothing_on_a_gpu():
    env = warp_env("hopper_run", 4, *MOTORS)
    drive(env, 2)
    action = torch.zeros(4, env.num_actions)
    with no_host_sync():
        env.step(action)


def test_agents_of_a_world_have_motors_too():
    joint = build_env(config.resolve(["task=carry"]), 2).robot.actuators[0].joint
    env = build_env(
        config.resolve(["task=carry", f"robot.actuators.{joint}={{model: explicit, lag: 0.02}}"]), 2
    )
    drive(env, 3)
    assert env.capabilities.pd == "explicit"
    assert torch.isfinite(env.backend.state.robot.joint_pos).all()


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["robot.actuators.knee.model=dd"], "knee.model"),
        (["robot.actuators.knee.delay=0.5"], "model: explicit"),
        (["task.randomize={motor_delay: [0, 1]}"], "motor_delay"),
        (["task.randomize={robot/motor_delay: [0, 1]}", MOTORS[0]], "motor_delay"),
    ],
)
def test_settings_that_cannot_be_are_one_line(tmp_path, monkeypatch, capsys, words, named):
    monkeypatch.chdir(tmp_path)
    assert main(["train", "task=hopper_run", "num_envs=4", "max_iterations=1", *words]) == 2
    said = capsys.readouterr().err
    assert named in said
    assert said.count("\n") == 1
    assert not (tmp_path / "runs").exists()
