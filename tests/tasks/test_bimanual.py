"""The box that two arms of one robot lift: what each arm measures, when it is held up, and that it can be lifted."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import onnx
import pytest
import torch

from robolearn import config
from robolearn.cli import main
from robolearn.core.checksum import checksum
from robolearn.core.env import Env
from robolearn.core.recorder import Recorder, play_event
from robolearn.envs.mujoco.backend import MujocoBackend
from robolearn.errors import ConfigError
from robolearn.tasks.bimanual import (
    BOX,
    BOX_PLACE,
    LOAD,
    PARTNER,
    PRESS,
    Bimanual,
    HeightCommands,
    at_height,
    height,
    pressing,
    squeeze,
    tilt,
)
from robolearn.tasks.mdp.observations import Observation
from robolearn.tasks.mdp.task import Ratio
from robolearn.training import checkpoint, replay
from robolearn.training.build import build_env
from robolearn.training.train import train
from tests.training.equal import assert_equal

QUIET = ["task=bimanual", "task.start_noise=0.0", "task.place_noise=0.0"]


@pytest.fixture
def env() -> Iterator[Env]:
    made = build_env(config.resolve(QUIET), 4)
    yield made
    made.close()


def arm_angles(ahead: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    """Angles (N, 4) of an arm whose level hand has its wrist `ahead` of the shoulder and `up` from it [m]."""
    upper, lower = 0.3, 0.28
    d = (ahead.square() + up.square()).sqrt()
    inner = torch.acos((upper**2 + d.square() - lower**2) / (2 * upper * d))
    shoulder = torch.atan2(ahead, up) - inner
    elbow = math.pi - torch.acos((upper**2 + lower**2 - d.square()) / (2 * upper * lower))
    return torch.stack((0 * elbow, shoulder, elbow, math.pi / 2 - shoulder - elbow), dim=1)


def test_both_arms_measure_the_same_of_a_box_in_the_middle(env):
    state = env.backend.state
    place = BOX_PLACE(state)
    # 0.6 m ahead of either base, and half its height of 0.2 m above the bench, on which the bases stand.
    assert torch.allclose(place, torch.tensor([0.6, 0.0, 0.101]).expand(8, 3), atol=1e-6)
    assert torch.allclose(env.observations["critic"][0, :12], env.observations["critic"][1, :12], atol=1e-6)


def test_the_press_pushes_the_box_from_both_sides_and_each_hand_feels_its_own_force(env):
    press = torch.zeros(8, 4)
    for _ in range(50):
        env.step(press)
    load = LOAD(env.backend.state)
    assert (load[:, 0] < -20.0).all()  # back toward its own arm
    assert torch.allclose(load[::2, 0], load[1::2, 0], rtol=0.05)  # the box rests: equal and opposite
    assert pressing(env.backend.state, env.ctx).tolist() == [1.0] * 8
    weaker = torch.minimum(*(load[i::2].norm(dim=1) for i in (0, 1)))
    assert torch.allclose(
        squeeze(env.backend.state, env.ctx, force=30.0)[::2], (weaker / 30).tanh(), atol=1e-5
    )


def test_arms_that_press_and_rise_together_lift_the_box_to_its_height_and_hold_it(env):
    command = env.ctx.command[:, 0].clone()
    middle = env.ctx.robot.per_actuator(PRESS)
    for step in range(249):
        time = step * 0.02
        ahead = 0.35 - 0.06 * (1 - min(1.0, time / 0.8)) + 0.015 * min(1.0, time / 0.8)
        up = 0.1 - 0.25 + (command + 0.015) * max(0.0, min(1.0, (time - 1.0) / 2.0))
        env.step((arm_angles(torch.full_like(up, ahead), up) - middle) / 0.5)
    held = env.task.metrics(env.backend.state, env.ctx)["held_up"]
    assert isinstance(held, Ratio)
    assert held.each().tolist() == [1.0] * 8


def test_one_arm_alone_does_not_lift_the_box_level(env):
    press, home = env.ctx.robot.per_actuator(PRESS), env.ctx.robot.home
    away, ready = -press / 0.5, (home - press) / 0.5  # straight up, and in front of the box
    highest = torch.zeros(8)
    for step in range(150):
        action = ready.expand(8, 4).clone()
        action[1::2] = torch.lerp(ready, away, min(1.0, step / 50))
        if step > 50:  # press, and rise
            action[::2] = torch.tensor([0.0, -0.02 * (step - 50), 0.0, 0.02 * (step - 50)])
        env.step(action)
        level = tilt(env.backend.state, env.ctx) < 0.1
        highest = torch.maximum(highest, height(env.backend.state) * level)
    assert (highest < 0.03).all()


def test_height_and_tilt_are_those_of_a_box_placed_by_hand(env):
    box = env.backend.state.entities[BOX]
    box.base_pos[:] = torch.tensor([0.0, 0.0, 0.4 + 0.1 + 0.25])
    # 0.2 rad about x, then 0.3 rad about z, which does not tilt it.
    box.base_quat[:] = torch.tensor([0.983844, 0.0987103, 0.0149190, 0.1486955])
    assert torch.allclose(height(env.backend.state), torch.full((8,), 0.25), atol=1e-6)
    assert torch.allclose(tilt(env.backend.state, env.ctx), torch.full((8,), math.sin(0.2)), atol=1e-4)
    env.state.episode.command[:] = 0.22
    near = at_height(env.backend.state, env.ctx, width=0.03)
    assert torch.allclose(near, torch.full((8,), 1 - math.tanh(1.0)), atol=1e-5)


def test_a_box_that_is_lost_counts_as_one_that_is_not_held_up(env):
    env.backend.state.entities[BOX].base_pos[0, 1] = 0.5  # off the bench
    held = env.task.metrics(env.backend.state, env.ctx)["held_up"]
    assert held.total.tolist() == [0.0] * 8
    assert held.weight.tolist() == [50.0] + [0.0] * 7  # the steps of its last second


def test_the_policy_of_an_arm_that_reads_the_other_arm_is_refused_by_name(make_env):
    @dataclass
    class Seeing(Bimanual):
        observations: ClassVar = {
            **Bimanual.observations,
            "policy": (
                *Bimanual.observations["policy"],
                Observation("other_arm", lambda s, c: s.entities[PARTNER].joint_pos, "same"),
            ),
        }

    with pytest.raises(ConfigError, match="'other_arm'"):
        make_env(Seeing(), num_envs=2)


def test_heights_with_swapped_ends_are_refused_by_name():
    with pytest.raises(ValueError, match=r"commands\.height"):
        Bimanual(commands=HeightCommands(height=(0.3, 0.1))).validate()


def test_the_last_second_of_both_arms_is_replayed_bit_for_bit(env):
    recorder = Recorder.install(env)
    generator = torch.Generator().manual_seed(0)
    for _ in range(5):
        env.step(0.3 * torch.randn(8, 4, generator=generator))
    dump = recorder.dump(5)  # the right arm of world 2
    alone = MujocoBackend(env.scene, 1)
    alone.restore(dump["snapshot"])
    for event in dump["events"]:
        play_event(alone, event)
    assert checksum(alone.state) == dump["checksum"]
    assert torch.equal(alone.state.entities[PARTNER].joint_pos[0], env.backend.state.robot.joint_pos[5])


def test_a_replay_shows_the_first_arm_and_its_bits_agree(tmp_path, capsys):
    run = config.resolve([*QUIET, "num_envs=4", "torch_threads=1"])
    env = build_env(run, 4)
    recorder = Recorder.install(env)
    for _ in range(5):
        env.step(torch.full((8, 4), 0.1))
    path = tmp_path / "arms.replay"
    replay.write(path, recorder.dump(2), 2, run, "a test")
    env.close()
    assert main(["replay", str(path)]) == 0
    shown = capsys.readouterr().out
    assert "recorded bits" in shown.strip().splitlines()[-1]
    assert "elbow_pitch" in shown


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["backend=differentiable"], "backend=differentiable"),
        (["task.robot=arm"], "left_"),
        (["learner=shac"], "differentiable"),
    ],
)
def test_what_cannot_simulate_two_arms_is_refused_by_name(words, named, tmp_path, capsys):
    assert main(["train", "task=bimanual", *words, f"output={tmp_path / 'run'}"]) == 2
    assert named in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_a_run_of_two_arms_goes_on_bit_for_bit(tmp_path):
    small = ["task=bimanual", "num_envs=16", "torch_threads=1", "learner.num_steps=8"]
    whole = train(config.resolve([*small, "max_iterations=4", f"output={tmp_path / 'whole'}"]))
    part = train(config.resolve([*small, "max_iterations=2", f"output={tmp_path / 'part'}"]))
    assert main(["train", f"resume={part}", "max_iterations=4"]) == 0
    ends = [checkpoint.load(folder / "latest.pt") for folder in (whole, part)]
    for end in ends:
        end["infos"].pop("seconds")  # wall time differs
    assert_equal(*ends)


@pytest.mark.slow
def test_the_bundle_of_an_arm_has_its_own_sensors_and_joints_alone(tmp_path, capsys):
    small = ["num_envs=64", "max_iterations=3", "torch_threads=1", f"output={tmp_path / 'run'}"]
    folder = train(config.resolve(["task=bimanual", *small]))
    words = ["export", str(folder), "--output", str(tmp_path / "bundle"), "--starts", "8"]
    assert main([*words, "--seconds", "2", "--measure-seconds", "0"]) == 0
    manifest = json.loads((tmp_path / "bundle" / "manifest.json").read_text())
    assert [sensor["name"] for sensor in manifest["sensors"]] == [
        "joint_pos",
        "joint_vel",
        "load",
        "box_place",
    ]
    contract = manifest["contract"]
    assert [joint["name"] for joint in contract["joints"]] == [
        "shoulder_yaw", "shoulder_pitch", "elbow_pitch", "wrist_pitch",
    ]  # fmt: skip
    inputs = onnx.load(tmp_path / "bundle" / "policy.onnx").graph.input
    assert [i.type.tensor_type.shape.dim[1].dim_value for i in inputs] == [19]  # the critic has 42
