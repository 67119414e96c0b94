"""task=mjlab:ID with mjlab: its cartpole, and a few robots of its G1 velocity task."""

from __future__ import annotations

import json

import pytest
import torch

from robolearn import config
from robolearn.cli import main
from robolearn.errors import ConfigError
from robolearn.training.build import build_external

pytest.importorskip("mjlab.tasks")

POLE = "Mjlab-Cartpole-Balance"
ON_CPU = ("device=cpu", "torch_threads=1")


@pytest.fixture
def make():
    made = []

    def build(id: str, *more: str, num_envs: int = 8, rank: int = 0):
        made.append(build_external(config.resolve([f"task=mjlab:{id}", *ON_CPU, *more]), num_envs, rank))
        return made[-1]

    yield build
    for env in made:
        env.close()


def test_at_a_time_out_the_terminal_observations_follow_from_the_last_step_and_a_new_episode_starts(make):
    env = make(POLE, "task.cfg.episode_length_s=0.2")
    assert env.max_episode_steps == 4
    place, speed = env.columns["policy"].index("cart_pos[0]"), env.columns["policy"].index("cart_vel[0]")
    env.reset()
    jumps = []
    for step in range(1, 13):
        before = env.observations["policy"].clone()
        result = env.step(torch.full((8, 1), 0.3))
        last, following = result.terminal_observations["policy"], result.observations["policy"]
        assert result.truncated.all() == (step % 4 == 0)
        assert not result.terminated.any()
        # The cart has gone where its speed took it, also in the step that ended the episode.
        gone = last[:, place] - before[:, place]
        assert gone == pytest.approx(env.dt * (last[:, speed] + before[:, speed]) / 2, abs=5e-3)
        jumps.append(float((following - last).abs().max()))
    assert all((jump > 0.01) == (step % 4 == 0) for step, jump in enumerate(jumps, 1))


def test_only_ended_environments_are_reset(make):
    env = make(POLE, "task.cfg.episode_length_s=0.2")
    env.reset()
    env.inner.episode_length_buf[:] = torch.tensor([3, 0, 0, 0, 0, 0, 0, 0])
    result = env.step(torch.zeros(8, 1))
    assert result.truncated.tolist() == [True] + [False] * 7
    assert torch.equal(result.observations["policy"][1:], result.terminal_observations["policy"][1:])
    assert not torch.equal(result.observations["policy"][0], result.terminal_observations["policy"][0])
    assert env.inner.episode_length_buf.tolist() == [0] + [1] * 7


def test_a_seed_is_reproducible_and_an_evaluation_starts_elsewhere(make):
    def walk(*more, rank=0):
        env = make(POLE, *more, rank=rank)
        for _ in range(5):
            result = env.step(torch.full((8, 1), 0.5))
        return result.observations["policy"].clone()

    first = walk()
    assert torch.equal(walk(), first)
    assert not torch.equal(walk("seed=2"), first)
    assert not torch.equal(walk(rank=1_000_000), first)


def test_invalid_settings_are_refused_in_one_line(make):
    with pytest.raises(ConfigError, match=r"'task\.cfg\.rewards\.smoth_reward': did you mean smooth_reward"):
        make(POLE, "task.cfg.rewards.smoth_reward.weight=2")
    with pytest.raises(ConfigError, match="did you mean Mjlab-Cartpole-Balance"):
        config.resolve(["task=mjlab:Mjlab-Cartpole-Balanse"])


def test_ppo_learns_the_cartpole(tmp_path):
    run = str(tmp_path / "run")
    learner = ["num_steps=16", "minibatch_size=512", "gamma=0.98", "entropy_coef=0.0"]
    settings = ["num_envs=256", "max_iterations=50", "task.cfg.episode_length_s=5", f"output={run}"]
    words = [f"task=mjlab:{POLE}", *ON_CPU, *settings, *(f"learner.{word}" for word in learner)]
    assert main(["train", *words]) == 0
    assert main(["eval", run, "--episodes", "128"]) == 0
    metrics = json.loads((tmp_path / "run" / "metrics.json").read_text())
    # Balanced it earns one a second; an untrained policy keeps about a third of that.
    assert metrics["return_mean"] > 4.5
    assert metrics["episode_length_s"] == pytest.approx(5.0)


def test_a_humanoid_trains_and_is_evaluated_without_mjlabs_tables(tmp_path, capfd):
    run = str(tmp_path / "run")
    words = ["num_envs=16", "max_iterations=2", "task.cfg.episode_length_s=1", f"output={run}"]
    assert main(["train", "task=mjlab:Velocity-Flat-Unitree-G1", *ON_CPU, *words]) == 0
    assert main(["eval", run, "--episodes", "16"]) == 0
    contract = json.loads((tmp_path / "run" / "contract.json").read_text())
    assert contract["actions"][0]["joint"] == "joint_pos.left_hip_pitch_joint"
    assert contract["observations"][0]["columns"][0] == "base_lin_vel[0]"
    out, err = capfd.readouterr()
    assert "Active" not in out
    assert len(out.splitlines()) < 30
    assert "Traceback" not in err
