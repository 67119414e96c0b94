"""The flight recorder, replay files, and `robolearn replay`."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from robolearn import config
from robolearn.cli import main
from robolearn.commands.replay import _unit
from robolearn.core.recorder import Recorder
from robolearn.envs.scene import Scene
from robolearn.errors import ConfigError
from robolearn.simulation.posed import Posed
from robolearn.training import replay
from robolearn.training.build import make_env
from tests.factories import INSTALLED, load_robot

BACKENDS = [name for name in ("mujoco", "mujoco_warp") if name in INSTALLED]


def record(folder: Path, backend: str, steps: int, *settings: str, row: int = 2) -> Path:
    """A replay of environment `row` of 4 after `steps` of random actions, with pushes and resets."""
    words = [
        "task=humanoid_walk",
        f"backend={backend}",
        "task.pushes.seconds=[0.2,0.4]",
        "task.pushes.speed=[1,2]",
    ]
    run = config.resolve([*words, *settings])
    env = make_env(run, num_envs=4)
    recorder = Recorder.install(env, seconds=0.3)
    generator = torch.Generator().manual_seed(0)
    env.reset()
    for _ in range(steps):
        env.step(torch.rand(4, env.num_actions, generator=generator) * 2 - 1)
    path = folder / "x.replay"
    replay.write(path, recorder.dump(row), row, run, "a test")
    env.close()
    return path


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("steps", [3, 40])
def test_a_replay_repeats_pushes_parameters_and_resets_bit_for_bit(tmp_path, backend, steps) -> None:
    path = record(tmp_path, backend, steps, "task.episode_length_s=0.5")
    found = replay.read(path)
    assert found.steps == (
        3 if steps == 3 else 25
    )  # 15 of the whole stretch and 10 of the one that has begun
    kinds = {event["kind"] for event in found.events}
    if steps == 40:
        assert kinds == {"step", "push", "params", "reset"}
    with replay.opened(found, tmp_path) as env:
        assert env.backend.num_envs == 1
        states = sum(1 for _ in replay.steps_of(found, env))
        assert states == found.steps + 1
        assert replay.same_bits(found, env)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_replay_repeats_forces_and_places_on_a_terrain_bit_for_bit(tmp_path, backend) -> None:
    settings = ("task=humanoid_rough", "task.pushes.force=[50,100]", "task.pushes.lasting=[0.1,0.2]")
    path = record(tmp_path, backend, 40, *settings, "task.episode_length_s=0.5")
    found = replay.read(path)
    assert {"force", "place", "reset"} <= {event["kind"] for event in found.events}
    with replay.opened(found, tmp_path) as env:
        for _ in replay.steps_of(found, env):
            pass
        assert replay.same_bits(found, env)


def test_a_changed_input_changes_the_bits(tmp_path) -> None:
    path = record(tmp_path, "mujoco", 10)
    content = torch.load(path, weights_only=True)
    next(e for e in content["events"] if e["kind"] == "step")["targets"]["robot"][0, 0] += 1e-3
    torch.save(content, path)
    found = replay.read(path)
    with replay.opened(found, tmp_path) as env:
        for _ in replay.steps_of(found, env):
            pass
        assert not replay.same_bits(found, env)
    assert main(["replay", str(path)]) == 1


def test_a_sliding_joint_moves_in_metres_per_second():
    scene = Scene.of(load_robot("cartpole"))
    env = SimpleNamespace(scene=scene, entity=scene.first)
    assert [_unit(env, Posed(scene), joint) for joint in scene.robot.joints] == ["m/s", "rad/s"]


def test_an_armed_recorder_holds_the_end_of_the_episode_not_the_start_of_the_next(tmp_path) -> None:
    run = config.resolve(["task=humanoid_walk", "backend=mujoco", "task.episode_length_s=0.2"])
    env = make_env(run, num_envs=2)
    recorder = Recorder.install(env)
    recorder.arm(1)
    env.reset()
    assert recorder.take() is not None  # the reset of all
    recorder.arm(1)
    for _ in range(12):
        env.step(torch.zeros(2, env.num_actions))
    held = recorder.take()
    assert held is not None
    assert held[0] == 1
    assert [event["kind"] for event in held[1]["events"]][-1] == "step"
    assert recorder.take() is None


@pytest.mark.parametrize("damage", ["cut", "text", "other", "schema", "event", "robot", "missing"])
def test_a_damaged_file_is_one_line_and_exit_code_2(tmp_path, capsys, damage) -> None:
    path = record(tmp_path, "mujoco", 4)
    content: Any = torch.load(path, weights_only=True)
    if damage == "cut":
        path.write_bytes(path.read_bytes()[:2000])
    elif damage == "text":
        path.write_text("hello")
    elif damage == "missing":
        path.unlink()
    else:
        if damage == "other":
            content = {"weights": torch.zeros(3)}
        elif damage == "schema":
            content["schema"] = 99
        elif damage == "event":
            content["events"][0]["kind"] = "explode"
        else:
            next(e for e in content["events"] if e["kind"] == "step")["targets"]["robot"] = torch.zeros(1, 3)
        torch.save(content, path)
    capsys.readouterr()
    assert main(["replay", str(path)]) == 2
    assert len(capsys.readouterr().err.strip().splitlines()) == 1


def test_a_replay_that_a_full_disk_does_not_take_names_the_file_and_the_disk(tmp_path) -> None:
    (tmp_path / f".x.{os.getpid()}.part.replay").symlink_to("/dev/full")
    content = {"snapshot": {"rows": torch.zeros(100_000)}, "events": [], "checksum": ""}
    with pytest.raises(ConfigError, match=r"x\.replay.*No space left on device"):
        replay.write(tmp_path / "x.replay", content, 0, config.resolve(["task=cartpole_balance"]), "a test")
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_would_execute_code_is_refused(tmp_path) -> None:
    path = tmp_path / "evil.replay"
    torch.save({"kind": "robolearn replay", "evil": Evil()}, path)
    with pytest.raises(ConfigError, match="evil"):
        replay.read(path)


@dataclass
class Evil:
    """A class of our own, which weights_only does not load."""

    value: int = 0


def test_the_table_ends_with_the_moment_and_says_that_the_bits_agree(tmp_path, capsys) -> None:
    path = record(tmp_path, "mujoco", 20)
    capsys.readouterr()
    assert main(["replay", str(path), "--rows", "3"]) == 0
    lines = capsys.readouterr().out.strip().splitlines()
    assert lines[0].endswith("a test")
    assert lines[-3].split()[:2] == ["0.00", "s"]
    assert "recorded bits" in lines[-1]


def test_a_push_by_force_is_said_where_it_begins_and_not_as_a_jump_of_nothing(tmp_path, capsys) -> None:
    still = ["task.pushes.speed=[0,0]", "task.pushes.box=[0,0,0]", "task.pushes.turn=[0,0,0]"]
    forces = ["task.pushes.force=[70,70]", "task.pushes.seconds=[0.1,0.1]", "task.pushes.lasting=[0.04,0.04]"]
    path = record(tmp_path, "mujoco", 12, *still, *forces, "task.curricula.pushes=1")
    capsys.readouterr()
    assert main(["replay", str(path), "--rows", "50"]) == 0
    said = capsys.readouterr().out
    # One every 0.1 s, from 0.1 s on; the recording is the 12 steps, 0.24 s.
    assert said.count("pushed by 70 N") == 2
    assert "m/s" not in "".join(line for line in said.splitlines() if "pushed" in line)


TASK = """
from dataclasses import dataclass
import torch
from robolearn.tasks.cartpole import CartpoleBalance


@dataclass
class Breaks(CartpoleBalance):
    '''A reward that is not a number in environment 3 from the 20th step on.'''

    def reward_terms(self):
        def broken(state, ctx):
            out = ctx.episode_time.clone()
            out[3] = torch.where(out[3] > 0.395, torch.nan, out[3])
            return out

        return {**super().reward_terms(), "upright": broken}
"""


def test_a_training_that_meets_nan_leaves_a_replay_of_that_environment(tmp_path, capsys) -> None:
    (tmp_path / "breaks.py").write_text(TASK)
    words = [f"task={tmp_path}/breaks.py:Breaks", "num_envs=8", "max_iterations=9", f"output={tmp_path}/run"]
    words += ["backend=mujoco", "learner.actor_hidden=[8]", "learner.critic_hidden=[8]"]
    assert main(["train", *words]) == 4
    path = tmp_path / "run" / "non_finite.replay"
    assert str(path) in capsys.readouterr().err.replace("\n", "")
    assert replay.read(path).env == 3
    # The task is code of a file: it is not imported unless the command names it.
    assert main(["replay", str(path)]) == 2
    assert main(["replay", str(path), words[0]]) == 0
