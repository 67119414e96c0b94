"""Checkpoints: they run no code, damage and misfits are named in one line, and the newest run is found."""

from __future__ import annotations

import os
import pickle
import struct
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

import pytest
import torch

from robolearn import config
from robolearn.core.env import Env
from robolearn.errors import ConfigError
from robolearn.learners.ppo.ppo import PPO, PPOConfig
from robolearn.tasks.cartpole import CartpoleBalance
from robolearn.tasks.humanoid_walk import HumanoidWalk
from robolearn.training import checkpoint, train
from robolearn.training.build import build_env
from robolearn.training.ranks.world import ALONE


class Bomb:
    """Creates the folder `path` when it is unpickled."""

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
        path.write_bytes(pickle.dumps(content, protocol=2))  # torch's protocol
    with pytest.raises(ConfigError, match="could run code"):
        checkpoint.load(path)
    assert not mark.exists()
    torch.load(path, weights_only=False) if how == "torch" else pickle.loads(path.read_bytes())  # noqa: S301
    assert mark.exists()  # an unsafe loader runs it


@dataclass
class TwoGroups(CartpoleBalance):
    observations: ClassVar = {**CartpoleBalance.observations, "speeds": ("joint_vel_rel", "joint_torque")}


def test_the_same_groups_in_another_order_are_refused_though_their_widths_fit(make_env, tmp_path):
    env = make_env(TwoGroups(), num_envs=4)
    assert env.observations["speeds"].shape == env.observations["policy"].shape
    checkpoint.save(tmp_path, 1, PPO(env, PPOConfig(actor_groups=("policy", "speeds"))), env)
    content = checkpoint.load(tmp_path / "latest.pt")
    with pytest.raises(
        ConfigError, match=r"were policy \(4\), speeds \(4\) and are now speeds \(4\), policy"
    ):
        checkpoint.restore(content, PPO(env, PPOConfig(actor_groups=("speeds", "policy"))), env)
    assert checkpoint.restore(content, PPO(env, PPOConfig(actor_groups=("policy", "speeds"))), env)


def test_an_entry_of_a_learner_with_a_reserved_name_is_refused_and_named(make_env, tmp_path, monkeypatch):
    env = make_env(CartpoleBalance(), num_envs=4)
    learner = PPO(env, PPOConfig())
    monkeypatch.setattr(learner, "state_dict", lambda: {"actor_state_dict": {}, "policy": {}})
    (tmp_path / "checkpoints").mkdir()
    with pytest.raises(ConfigError, match=r"PPO.*'policy'"):
        checkpoint.save(tmp_path, 1, learner, env)
    assert list((tmp_path / "checkpoints").iterdir()) == []


def test_a_truncated_checkpoint_is_refused(make_env, tmp_path):
    path = saved(make_env, tmp_path)
    path.write_bytes(path.read_bytes()[:3000])
    with pytest.raises(ConfigError, match="damaged checkpoint"):
        checkpoint.load(path)


def test_a_checkpoint_that_a_full_disk_does_not_take_names_the_file_and_the_disk_and_keeps_the_old_one(
    tmp_path,
):
    path = tmp_path / "latest.pt"
    checkpoint.write_content({"iter": 1}, path)
    (tmp_path / f".latest.{os.getpid()}.part.pt").symlink_to("/dev/full")
    with pytest.raises(ConfigError, match=r"latest\.pt.*No space left on device"):
        checkpoint.write_content({"iter": 2, "weights": torch.zeros(100_000)}, path)
    assert os.listdir(tmp_path) == ["latest.pt"]
    assert torch.load(path, weights_only=True) == {"iter": 1}


@pytest.mark.parametrize("error", [AttributeError, TypeError, AssertionError, struct.error])
def test_any_error_while_a_checkpoint_is_read_means_that_it_is_damaged(
    make_env, tmp_path, monkeypatch, error
):
    path = saved(make_env, tmp_path)

    def fails(*args, **options):
        raise error("flipped bits")

    monkeypatch.setattr(torch, "load", fails)
    with pytest.raises(ConfigError, match=r"iteration_000007\.pt.*damaged checkpoint \(flipped bits\)"):
        checkpoint.load(path)


@pytest.mark.parametrize(
    "place",
    [
        *(
            ("policy", "spec"),
            ("policy", "spec", "inputs"),
            ("env", "state"),
            ("env", "random"),
        ),
        *(("env", "backend"), ("global_random",), ("global_random", "numpy")),
    ],
    ids=".".join,
)
@pytest.mark.parametrize("value", [None, 5, [1, 1, 1, 1]], ids=repr)
def test_a_checkpoint_with_a_part_of_another_kind_is_refused(make_env, tmp_path, place, value):
    saved(make_env, tmp_path)
    content = checkpoint.load(tmp_path / "latest.pt")
    part = content
    for name in place[:-1]:
        part = part[name]
    part[place[-1]] = value
    env = make_env(CartpoleBalance(), num_envs=4)
    with pytest.raises(ConfigError):
        checkpoint.restore(content, PPO(env, PPOConfig()), env)


def test_infos_of_another_kind_are_refused_by_name(make_env, tmp_path):
    path = saved(make_env, tmp_path)
    torch.save({**torch.load(path, weights_only=True), "infos": 5}, path)
    with pytest.raises(ConfigError, match=r"iteration_000007\.pt.*infos"):
        checkpoint.load(path)


def test_what_is_wrong_with_a_damaged_checkpoint_leaves_room_for_the_advice(make_env, tmp_path, monkeypatch):
    path = saved(make_env, tmp_path)

    def fails(*args, **options):
        raise RuntimeError("PytorchStreamReader " + 500 * "x")

    monkeypatch.setattr(torch, "load", fails)
    with pytest.raises(
        ConfigError, match=r"damaged checkpoint \(PytorchStreamReader x+\.\.\.\); use an older one"
    ):
        checkpoint.load(path)


def test_where_the_newest_checkpoint_is_damaged_the_run_goes_on_from_the_one_in_checkpoints(
    make_env, tmp_path
):
    seven = checkpoint.load(saved(make_env, tmp_path))
    latest = tmp_path / "latest.pt"
    latest.write_bytes(latest.read_bytes()[:3000])
    checkpoint.require_newest(tmp_path, seven)
    with pytest.raises(ConfigError, match=r"iteration 6, and the run is at 7"):
        checkpoint.require_newest(tmp_path, {**seven, "iter": 6})


def test_an_unsupported_schema_is_refused_naming_all_versions(make_env, tmp_path):
    path = saved(make_env, tmp_path)
    torch.save({**torch.load(path, weights_only=True), "schema": 99}, path)
    with pytest.raises(ConfigError, match="schema 99 and this RoboLearn reads schemas 2 and 3"):
        checkpoint.load(path)


def test_latest_pt_holds_the_simulation_and_checkpoints_hold_only_weights(make_env, tmp_path):
    path = saved(make_env, tmp_path)
    assert "env" not in checkpoint.load(path)
    assert checkpoint.load(tmp_path / "latest.pt")["env"]["backend"]["rows"].shape[0] == 4
    assert not list(tmp_path.rglob("*.part*"))


def test_networks_of_other_shapes_are_refused_in_one_line(make_env, tmp_path):
    content = checkpoint.load(saved(make_env, tmp_path))
    env = make_env(CartpoleBalance(), num_envs=4)
    with pytest.raises(ConfigError, match="networks have other shapes") as error:
        checkpoint.restore(content, PPO(env, PPOConfig(actor_hidden=(8,))), env)
    assert "\n" not in str(error.value)


def test_observations_of_another_history_are_refused_with_both_widths(make_env, tmp_path):
    content = checkpoint.load(saved(make_env, tmp_path))
    env = make_env(CartpoleBalance(history={"policy": 3}), num_envs=4)
    with pytest.raises(ConfigError, match=r"policy \(4\) and here policy \(12\)") as error:
        checkpoint.restore(content, PPO(env, PPOConfig()), env)
    assert "task.history" in str(error.value)


def test_a_new_run_gets_a_new_folder_and_never_an_existing_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    first, second = (checkpoint.new_run_folder("cartpole_balance", None) for _ in range(2))
    assert first != second
    (first / "config.yaml").touch()
    with pytest.raises(ConfigError, match="already holds a run"):
        checkpoint.new_run_folder("cartpole_balance", str(first))


@pytest.mark.parametrize("name", ["metrics.jsonl", "latest.pt", "checkpoints/iteration_000003.pt"])
def test_a_new_run_overwrites_no_file_of_the_user(name, tmp_path):
    file = tmp_path / name
    file.parent.mkdir(exist_ok=True)
    file.write_text("mine")
    with pytest.raises(ConfigError, match=file.name):
        checkpoint.new_run_folder("cartpole_balance", str(tmp_path))
    assert file.read_text() == "mine"


def test_a_checkpoint_of_a_newer_version_is_not_damaged_and_is_not_gone_on_beside(make_env, tmp_path):
    old = checkpoint.load(saved(make_env, tmp_path))
    latest = tmp_path / "latest.pt"
    torch.save({**torch.load(latest, weights_only=True), "schema": 99, "iter": 9}, latest)
    with pytest.raises(ConfigError, match="schema 99"):
        checkpoint.require_newest(tmp_path, old)
    latest.write_bytes(latest.read_bytes()[:3000])
    checkpoint.require_newest(tmp_path, old)  # iteration 7 is the newest file in checkpoints/
    assert checkpoint.saved_at(tmp_path) == 7


def test_an_error_of_a_learner_is_no_damage(make_env, tmp_path):
    content = checkpoint.load(saved(make_env, tmp_path))
    env = make_env(CartpoleBalance(), num_envs=4)

    class Faulty(PPO):
        @property
        def policy(self):
            raise TypeError("a fault of this learner")

    with pytest.raises(TypeError, match="a fault of this learner"):
        checkpoint.restore(content, Faulty(env, PPOConfig()), env)


def test_another_robot_starts_the_simulation_anew(make_env, tmp_path):
    content = checkpoint.load(saved(make_env, tmp_path).parents[1] / "latest.pt")
    env = make_env(CartpoleBalance(), num_envs=4)
    learner = PPO(env, PPOConfig())
    assert checkpoint.restore(content, learner, env)
    assert not checkpoint.restore(content, learner, env, ["robot.actuators.*.delay"])


def test_the_newest_run_is_found_and_without_a_run_it_is_refused(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match="no run under runs/ yet"):
        checkpoint.find_run(None)
    for name, when in (("t/old", 1000), ("t/new", 2000), ("named", 3000)):
        folder = checkpoint.new_run_folder("t", f"runs/{name}")
        for file in ("config.yaml", "latest.pt"):
            (folder / file).touch()
        os.utime(folder / "config.yaml", (when, when))
        assert checkpoint.find_run(None)[0] == Path("runs") / name
    # A folder of preferences has the configuration of its run.
    (Path("runs/preferences") / "segments").mkdir(parents=True)
    Path("runs/preferences/config.yaml").touch()
    assert checkpoint.find_run(None)[0] == Path("runs/named")


def test_a_checkpoint_of_another_task_is_refused_naming_the_task_as_the_cause(make_env, tmp_path):
    content = checkpoint.load(saved(make_env, tmp_path))
    env = make_env(HumanoidWalk(), num_envs=4)
    with pytest.raises(ConfigError, match="trained for another task"):
        checkpoint.restore(content, PPO(env, PPOConfig()), env)


def test_a_simulation_that_does_not_fit_is_refused_as_such(make_env, tmp_path):
    saved(make_env, tmp_path)
    content = checkpoint.load(tmp_path / "latest.pt")
    del content["env"]["state"]["episode.action_delay.lag"]
    env = make_env(CartpoleBalance(), num_envs=4)
    with pytest.raises(ConfigError, match="simulation in this checkpoint does not fit"):
        checkpoint.restore(content, PPO(env, PPOConfig()), env)


def test_curricula_go_on_at_their_mean_levels_where_the_simulation_does_not():
    def training(num_envs: int, *words: str) -> Env:
        run = config.resolve(["task=humanoid_walk", "device=cpu", f"num_envs={num_envs}", *words])
        return build_env(run, num_envs, training=True)

    env = training(4)
    learner = PPO(env, PPOConfig())
    env.state.per_env["level_pushes"] = torch.tensor([0.5, 1.5, 1.5, 2.5])
    content = checkpoint.local(3, learner, env, {})
    for num_envs, words, expected in (
        (2, ["num_envs"], 1.5),
        (4, ["task.rewards.still"], 1.5),
        (4, ["task.curricula.pushes.rise"], 0.0),
        (4, ["robot.actuators"], 0.0),
    ):
        other = training(num_envs)
        assert checkpoint.restore(content, PPO(other, PPOConfig()), other, words) is False
        assert other.state.per_env["level_pushes"].tolist() == [expected] * num_envs, words
    lower = training(2, "task.curricula.pushes.most=1.0", "task.curricula.pushes.full=1.0")
    lower.keep_levels(content["env"])
    assert lower.state.per_env["level_pushes"].tolist() == [1.0, 1.0]
    ranks = config.resolve(["task=humanoid_walk", "num_envs=8", "ranks=1", "shards=2"])
    of_rank = checkpoint.rows_of(content, ranks, ALONE)
    other = training(8)
    assert checkpoint.restore(of_rank, PPO(other, PPOConfig()), other, ["num_envs", "ranks"]) is False
    assert other.state.per_env["level_pushes"].tolist() == [1.5] * 8
    weights = {name: value for name, value in content.items() if name != "env"}
    other = training(4)
    assert checkpoint.restore(weights, PPO(other, PPOConfig()), other) is False
    assert other.state.per_env["level_pushes"].tolist() == [0.0] * 4


def test_robots_go_on_at_the_level_of_the_terrain_that_was_reached_in_their_column():
    def training(num_envs: int) -> Env:
        words = ["task=velocity_rough", "device=cpu", f"num_envs={num_envs}", "task.terrain.columns=2"]
        return build_env(config.resolve(words), num_envs, training=True)

    env = training(4)
    learner = PPO(env, PPOConfig())
    assert env.state.per_env["terrain_column"].tolist() == [0, 1, 0, 1]
    env.state.per_env["level_terrain"] = torch.tensor([5, 1, 7, 2])
    content = checkpoint.local(3, learner, env, {})
    other = training(6)
    assert checkpoint.restore(content, PPO(other, PPOConfig()), other, ["num_envs"]) is False
    # The means are 6 and 1.5, rounded to an even number.
    assert other.state.per_env["level_terrain"].tolist() == [6, 2, 6, 2, 6, 2]
    assert "level_terrain" in other.levels
    other = training(4)
    other.state.per_env["level_pushes"] = torch.zeros(4)
    content["env"]["state"]["per_env.level_pushes"] = torch.full((4,), 0.5)
    assert checkpoint.restore(content, PPO(other, PPOConfig()), other, ["task.terrain.rows"]) is False
    assert other.state.per_env["level_pushes"].tolist() == [0.5] * 4
    assert other.state.per_env["level_terrain"].max() <= other.scene.terrain.start_level


def test_a_simulation_saved_before_its_task_kept_something_continues(make_env, tmp_path):
    env = make_env(HumanoidWalk(), num_envs=4)
    learner = PPO(env, PPOConfig())
    env.reset()
    for _ in range(3):
        env.step(torch.zeros(4, env.num_actions))
    checkpoint.save(tmp_path, 3, learner, env, {})
    content = checkpoint.load(tmp_path / "latest.pt")
    kept = content["env"]["state"]
    assert kept["episode.task.placed"].all()
    del kept["episode.task.placed"], kept["episode.task.foot_place"]
    other = make_env(HumanoidWalk(), num_envs=4, seed=9)
    other.reset()
    assert checkpoint.restore(content, PPO(other, PPOConfig()), other) is True
    now = other.snapshot()["state"]
    assert sorted(other.lacking(content["env"])) == ["episode.task.foot_place", "episode.task.placed"]
    assert not now["episode.task.placed"].any()
    assert torch.equal(now["episode.task.air_time"], kept["episode.task.air_time"])
    assert torch.equal(now["episode.time"], kept["episode.time"])
    other.step(torch.zeros(4, other.num_actions))


def test_a_gpu_checkpoint_loads_its_weights_on_a_cpu_but_not_its_random_state(make_env, tmp_path):
    env = make_env(CartpoleBalance(), num_envs=4)
    learner = PPO(env, PPOConfig(), seed=5)
    content = {**learner.state_dict(), "env": env.snapshot()}
    # The state of a CUDA generator is a seed and an offset, 16 bytes; a CPU's has thousands.
    content["random"] = content["env"]["random"] = torch.arange(16, dtype=torch.uint8)
    other = make_env(CartpoleBalance(), num_envs=4, seed=9)
    taker = PPO(other, PPOConfig(), seed=6)
    drawn = taker.random.state()
    assert checkpoint.restore(content, taker, other) is False
    assert torch.equal(taker.random.state(), drawn)
    for loaded, saved_weight in zip(taker.actor.parameters(), learner.actor.parameters(), strict=True):
        assert torch.equal(loaded, saved_weight)


@pytest.mark.parametrize("file", ["manifest.json", "team.json"])
def test_a_bundle_is_not_taken_for_a_run(tmp_path, file):
    (tmp_path / file).write_text("{}")
    (tmp_path / "config.yaml").write_text("schema: 2\n")
    with pytest.raises(ConfigError, match="exported bundle"):
        checkpoint.find_run(str(tmp_path))


def test_ranks_that_begin_where_latest_pt_is_damaged_take_the_checkpoint_that_is_named(
    make_env, tmp_path, monkeypatch
):
    path = saved(make_env, tmp_path)
    run = config.resolve(["task=cartpole_balance"])
    config.save(run, tmp_path / "config.yaml")
    latest = tmp_path / "latest.pt"
    latest.write_bytes(latest.read_bytes()[:3000])
    monkeypatch.setattr(train, "launched_folder", lambda: tmp_path)
    with ExitStack() as held:
        folder, content = train._begun(replace(run, resume=str(path)), held, None)
        assert (folder, content["iter"]) == (tmp_path, 7)
        for resume in (None, str(tmp_path)):  # nothing else is named
            with pytest.raises(ConfigError, match=r"latest\.pt.*damaged"):
                train._begun(replace(run, resume=resume), held, None)
