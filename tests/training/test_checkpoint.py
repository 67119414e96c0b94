"""Checkpoints cannot run code, and damage is told in a line."""

from __future__ import annotations

import os
import pickle
from pathlib import Path

import pytest
import torch

from robolearn.errors import ConfigError
from robolearn.learners.ppo.ppo import PPO, PPOConfig
from robolearn.tasks.cartpole import CartpoleBalance
from robolearn.tasks.humanoid_walk import HumanoidWalk
from robolearn.training import checkpoint


class Bomb:
    """Unpickled by a careless loader, creates the file it is given."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


def saved(make_env, tmp_path: Path) -> Path:
    env = make_env(CartpoleBalance(), num_envs=4)
    (tmp_path / "checkpoints").mkdir()
    return checkpoint.save(tmp_path, 7, PPO(env, PPOConfig()), env)


@pytest.mark.parametrize("how", ["torch", "pickle"])
def test_a_malicious_checkpoint_is_refused_and_runs_nothing(tmp_path, how):
    path, mark = tmp_path / "evil.pt", tmp_path / "pwned"
    content = {"schema": 1, "iter": 1, "actor_state_dict": Bomb(mark)}
    if how == "torch":
        torch.save(content, path)
    else:
        path.write_bytes(pickle.dumps(content, protocol=2))  # what torch itself writes
    with pytest.raises(ConfigError, match="could run code"):
        checkpoint.load(path)
    assert not mark.exists()
    torch.load(path, weights_only=False) if how == "torch" else pickle.loads(path.read_bytes())  # noqa: S301
    assert mark.exists()  # it was a live one


def test_a_truncated_checkpoint_is_told_as_such(make_env, tmp_path):
    path = saved(make_env, tmp_path)
    path.write_bytes(path.read_bytes()[:3000])
    with pytest.raises(ConfigError, match="not a whole checkpoint"):
        checkpoint.load(path)


def test_another_schema_is_refused_naming_both(make_env, tmp_path):
    path = saved(make_env, tmp_path)
    torch.save({**torch.load(path, weights_only=True), "schema": 99}, path)
    with pytest.raises(ConfigError, match="schema 99 and this RoboLearn reads schemas 2 and 3"):
        checkpoint.load(path)


def test_weights_checkpoints_hold_no_simulation_and_latest_does(make_env, tmp_path):
    path = saved(make_env, tmp_path)
    assert "env" not in checkpoint.load(path)
    assert checkpoint.load(tmp_path / "latest.pt")["env"]["backend"]["rows"].shape[0] == 4
    assert not list(tmp_path.rglob("*.part*"))


def test_networks_of_another_shape_are_refused_in_one_line(make_env, tmp_path):
    content = checkpoint.load(saved(make_env, tmp_path))
    env = make_env(CartpoleBalance(), num_envs=4)
    with pytest.raises(ConfigError, match="networks are of other shapes") as error:
        checkpoint.restore(content, PPO(env, PPOConfig(actor_hidden=(8,))), env)
    assert "\n" not in str(error.value)


def test_a_new_run_never_lands_on_an_old_one(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    first, second = (checkpoint.new_run_folder("cartpole_balance", None) for _ in range(2))
    assert first != second
    (first / "config.yaml").touch()
    with pytest.raises(ConfigError, match="already holds a run"):
        checkpoint.new_run_folder("cartpole_balance", str(first))


def test_the_newest_run_is_found_and_no_run_is_said(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match="no run under runs/ yet"):
        checkpoint.find_run(None)
    for name, when in (("old", 1000), ("new", 2000)):
        folder = checkpoint.new_run_folder("t", f"runs/t/{name}")
        for file in ("config.yaml", "latest.pt"):
            (folder / file).touch()
        os.utime(folder / "config.yaml", (when, when))
    assert checkpoint.find_run(None)[0] == Path("runs/t/new")


def test_a_checkpoint_of_another_task_is_told_as_such_and_not_as_another_symmetry(make_env, tmp_path):
    content = checkpoint.load(saved(make_env, tmp_path))
    env = make_env(HumanoidWalk(), num_envs=4)
    with pytest.raises(ConfigError, match="trained for another task"):
        checkpoint.restore(content, PPO(env, PPOConfig()), env)


def test_a_simulation_that_does_not_fit_is_told_apart_from_weights_that_do_not(make_env, tmp_path):
    saved(make_env, tmp_path)
    content = checkpoint.load(tmp_path / "latest.pt")
    del content["env"]["state"]["episode.action_delay.lag"]
    env = make_env(CartpoleBalance(), num_envs=4)
    with pytest.raises(ConfigError, match="simulation in this checkpoint does not fit"):
        checkpoint.restore(content, PPO(env, PPOConfig()), env)


def test_a_gpus_checkpoint_gives_a_cpu_its_weights_and_not_its_random_state(make_env, tmp_path):
    env = make_env(CartpoleBalance(), num_envs=4)
    learner = PPO(env, PPOConfig(), seed=5)
    content = {**learner.state_dict(), "env": env.snapshot()}
    # A CUDA generator's state is a seed and an offset: 16 bytes, where a CPU's has some thousands.
    content["random"] = content["env"]["random"] = torch.arange(16, dtype=torch.uint8)
    other = make_env(CartpoleBalance(), num_envs=4, seed=9)
    taker = PPO(other, PPOConfig(), seed=6)
    drawn = taker.random.get_state()
    assert checkpoint.restore(content, taker, other) is False
    assert torch.equal(taker.random.get_state(), drawn)
    for ours, theirs in zip(taker.actor.parameters(), learner.actor.parameters(), strict=True):
        assert torch.equal(ours, theirs)
