"""The beam that two vehicles carry: how it lies, when it drops, and that it can be carried."""

from __future__ import annotations

import json
from collections.abc import Iterator

import onnx
import pytest
import torch

from robolearn import config
from robolearn.cli import main
from robolearn.core.env import Env
from robolearn.tasks.carry import BEAM, LOAD, Carry, GoalCommands, beam_from_goal, tilt
from robolearn.tasks.mdp.task import Ratio
from robolearn.training.build import build_env
from robolearn.training.train import train

WEIGHT = 3.0 * 9.81
"""Of the beam [N]."""


@pytest.fixture
def env() -> Iterator[Env]:
    made = build_env(config.resolve(["task=carry"]), 8)
    yield made
    made.close()


def held(env: Env) -> torch.Tensor:
    """Actions that leave drives without force and lifts where they are."""
    lift = env.backend.state.robot.joint_pos[:, 1]
    return torch.stack((torch.zeros_like(lift), (lift - 0.2) / 0.2), dim=1)


def test_at_the_start_the_beam_lies_on_both_trays(env):
    action = held(env)
    for _ in range(25):
        assert not env.step(action).terminated.any()
    load = LOAD(env.backend.state)[:, 1].view(8, 2)
    assert torch.allclose(load.sum(dim=1), torch.full((8,), -WEIGHT), rtol=0.05)
    assert (load < -0.3 * WEIGHT).all()


def test_a_beam_whose_one_tray_drives_away_drops_for_both(env):
    action, dropped = held(env), torch.zeros(16, dtype=torch.bool)
    action[::2, 0] = -10.0  # the rear one, backwards
    for _ in range(60):
        dropped |= env.step(action).terminated
    assert dropped.all()


def test_a_controller_that_sees_what_the_policy_sees_carries_every_beam_to_its_goal(env):
    own = env.observations["policy"].shape[1] - 2
    for _ in range(299):
        seen = env.observations["policy"]
        way, speed = seen[:, own:], seen[:, 2:4]
        # Near the goal a spring and a damper; far from it as fast for both, so that nothing slides.
        drive = (8 * way[:, 0]).clamp(-1.0, 1.0) - 1.5 * speed[:, 0]
        lift = env.backend.state.robot.joint_pos[:, 1] + way[:, 1].clamp(-0.1, 0.1)
        env.step(torch.stack((drive, (lift - 0.2) / 0.2), dim=1))
    arrived = env.task.metrics(env.backend.state, env.ctx)["arrived"]
    assert isinstance(arrived, Ratio)
    assert arrived.each().tolist() == [1.0] * 16


def test_a_beam_that_drops_counts_as_one_that_has_not_arrived(env):
    beam = env.backend.state.entities[BEAM]
    beam.base_pos[0, 2] = 0.1  # on the floor, early in the episode
    arrived = env.task.metrics(env.backend.state, env.ctx)["arrived"]
    assert arrived.total.tolist() == [0.0] * 16
    assert arrived.weight.tolist() == [50.0] + [0.0] * 15  # the steps of its last second


def test_the_goal_and_the_tilt_are_those_of_a_beam_placed_by_hand(env):
    beam = env.backend.state.entities[BEAM]
    beam.base_pos[:] = torch.tensor([0.5, 0.0, 0.35 + 0.03])  # on the lowest trays, at their places
    beam.base_quat[:] = torch.tensor([0.995004, 0.0, 0.0998334, 0.0])  # 0.2 rad about y: its front is down
    command = env.ctx.command
    assert torch.allclose(beam_from_goal(env.backend.state, env.ctx), -command, atol=1e-6)
    goal = env.task.goal(env.backend.state, env.ctx)
    assert torch.allclose((goal - beam.base_pos)[:, ::2], command, atol=1e-6)
    assert torch.allclose(tilt(env.backend.state, env.ctx), torch.full((16,), 0.198669), atol=1e-5)


def test_goals_with_swapped_ends_are_refused_by_name():
    with pytest.raises(ValueError, match=r"commands\.height"):
        Carry(commands=GoalCommands(height=(0.3, 0.1))).validate()


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["mode=async"], "mode=async"),
        (["learner=grpo", "num_envs=16"], "learner=grpo"),
        (["backend=differentiable"], "backend=differentiable"),
        (["task.agents=[robot]"], "task.agents"),
    ],
)
def test_what_does_not_know_several_agents_is_refused_by_name(words, named, tmp_path, capsys):
    assert main(["train", "task=carry", *words, f"output={tmp_path / 'run'}"]) == 2
    assert named in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_a_policy_that_a_central_critic_has_taught_is_exported_with_the_sensors_of_one_robot(
    tmp_path, capsys
):
    small = ["num_envs=64", "max_iterations=3", "torch_threads=1", f"output={tmp_path / 'run'}"]
    folder = train(config.resolve(["task=carry", *small]))
    words = ["export", str(folder), "--output", str(tmp_path / "bundle"), "--starts", "8"]
    assert main([*words, "--seconds", "2", "--measure-seconds", "0"]) == 0
    manifest = json.loads((tmp_path / "bundle" / "manifest.json").read_text())
    assert [sensor["name"] for sensor in manifest["sensors"]] == ["joint_pos", "joint_vel", "load"]
    inputs = onnx.load(tmp_path / "bundle" / "policy.onnx").graph.input
    assert [i.type.tensor_type.shape.dim[1].dim_value for i in inputs] == [10]  # the critic has 21
