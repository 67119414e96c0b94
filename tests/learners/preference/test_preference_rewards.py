"""Batches with the reward that is learned from preferences: the numbers, resuming, new answers, and what is refused."""

from __future__ import annotations

import copy
import json
import math
import shutil
from pathlib import Path

import pytest
import torch

from robolearn import cli, config
from robolearn.core.columns import units_of
from robolearn.core.shards import Shards
from robolearn.errors import ConfigError, RunFailed
from robolearn.learners.ppo.ppo import PPO, PPOConfig
from robolearn.learners.preference.folder import Answer, Preferences
from robolearn.learners.preference.rewards import preference_rewards
from robolearn.tasks.cartpole import CartpoleBalance
from robolearn.training import checkpoint
from robolearn.training.train import train
from tests.learners.preference.made import fill
from tests.no_sync import no_host_sync

SMALL = ["num_envs=8", "torch_threads=1", "learner.num_steps=8", "learner.minibatch_size=64"]
FEW = {"preference_members": 2, "preference_hidden": (8,), "preference_epochs": 2}
LITTLE = ["learner.preference_members=2", "learner.preference_hidden=[8]", "learner.preference_epochs=2"]
JUDGE = """
def judge(first, second):
    a, b = (float(s.item("critic", "joint_pos_rel")[:, 0].mean()) for s in (first, second))
    return 0 if abs(a - b) < 1e-4 else 1 if a > b else 2

def bad(first, second):
    return "left"

number = 3
"""


@pytest.fixture
def script(tmp_path: Path) -> str:
    """A judge that prefers the cart further to the right."""
    (tmp_path / "judge.py").write_text(JUDGE.replace("joint_pos_rel", "joint_pos_rel"))
    return f"{tmp_path / 'judge.py'}:judge"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return fill(tmp_path / "preferences", pairs=12)


class Fixed:
    """A reward of the first column, and a disagreement of half of it."""

    def reward(self, observations: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return observations[..., 0], 0.5 * observations[..., 0]


def test_rewards_are_the_weighted_sum_of_the_tasks_and_the_learned_one_per_step(make_env, folder):
    env = make_env(CartpoleBalance(), num_envs=3)
    settings = PPOConfig(
        num_steps=2,
        preferences=str(folder),
        preference_weight=4.0,
        preference_penalty=2.0,
        task_reward_weight=0.5,
        preference_interval=0,
        **FEW,
    )
    learner = PPO(env, settings)
    rewards, batch = learner.preferences, learner.batch
    rewards.relabel(batch)  # learns from the folder
    rewards.model = Fixed()
    batch.terminal["critic"].zero_()
    batch.terminal["critic"][:, :, 0] = torch.tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])
    batch.reward.fill_(10.0)
    batch.diverged[0, 2] = True
    batch.valid = torch.ones(2, 3, dtype=torch.bool)
    batch.valid[1, 1] = False
    rewards.relabel(batch)
    # 0.5 x 10 + dt (4 x - 2 x / 2) = 5 + 0.02 x 3 x; only the task's part where a step diverged or is not valid.
    assert env.dt == pytest.approx(0.02)
    wanted = [[5.06, 5.12, 5.0], [5.24, 5.0, 5.36]]
    assert batch.reward.tolist() == [pytest.approx(row) for row in wanted]
    told = rewards.told()
    # Steps with 1, 2, 4, 6: mean 13 / 4.
    assert told["raw/preference"] == pytest.approx(3.25)
    assert told["reward/preference"] == pytest.approx(0.02 * 4 * 3.25)
    assert told["preference/disagreement"] == pytest.approx(1.625)
    assert told["reward/preference_penalty"] == pytest.approx(-0.02 * 2 * 1.625)
    assert told["preference/pairs"] == 12


def test_a_time_out_adds_the_value_of_the_last_state_to_the_learned_reward(make_env, folder):
    env = make_env(CartpoleBalance(), num_envs=2)
    learner = PPO(
        env, PPOConfig(num_steps=2, preferences=str(folder), task_reward_weight=0.0, gamma=0.5, **FEW)
    )
    learner.collect(env)
    learner.preferences.relabel(learner.batch)
    batch = learner.batch
    given = batch.reward.clone()
    batch.truncated.zero_()
    batch.truncated[1, 0] = True
    value, reward = learner._evaluate()
    last = learner._value(batch.terminal["critic"][1, 0][None]).item()
    assert reward[1, 0].item() == pytest.approx(given[1, 0].item() + 0.5 * last, abs=1e-6)
    assert reward[1, 1].item() == pytest.approx(given[1, 1].item())
    assert len(value) == 3


def test_between_intervals_nothing_waits_for_a_gpu(make_env, folder, script):
    env = make_env(CartpoleBalance(), num_envs=4)
    settings = {"preferences": str(folder), "preference_script": script, **FEW}
    learner = PPO(env, PPOConfig(num_steps=4, preference_interval=100, **settings))
    learner.iterate(env)
    with no_host_sync():
        learner.preferences.relabel(learner.batch)


def rows(folder: Path) -> list[dict[str, float]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def weights(folder: Path) -> dict[str, torch.Tensor]:
    content = checkpoint.load(folder / "latest.pt")
    return {
        f"{part}.{name}": value
        for part in ("actor_state_dict", "critic_state_dict")
        for name, value in content[part].items()
    } | {f"model.{name}": value for name, value in content["preferences"]["model"].items()}


def same(one: Path, two: Path) -> bool:
    first, second = weights(one), weights(two)
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)


def words_of(folder: Path, script: str, output: Path, iterations: int) -> list[str]:
    return [
        *("task=cartpole_balance", *SMALL, *LITTLE, "checkpoint_interval=2", f"learner.preferences={folder}"),
        *(f"learner.preference_script={script}", "learner.preference_interval=2"),
        *("learner.preference_pairs=5", "learner.preference_seconds=0.1"),
        *(f"max_iterations={iterations}", f"output={output}"),
    ]


def test_a_resumed_run_with_a_script_has_the_bits_of_one_in_one_go(folder, script, tmp_path):
    for name in ("one", "two"):
        shutil.copytree(folder, tmp_path / name)
    whole = train(config.resolve(words_of(tmp_path / "one", script, tmp_path / "whole", 6)))
    parts = train(config.resolve(words_of(tmp_path / "two", script, tmp_path / "parts", 3)))
    again = [f"resume={parts}", "max_iterations=6", f"learner.preference_script={script}"]
    train(config.resolve(again))
    assert same(whole, parts)
    assert [row["preference/pairs"] for row in rows(whole)] == [12, 17, 17, 22, 22, 27]
    # From an earlier checkpoint: what the run that went on has asked is asked again, not known before.
    train(
        config.resolve(
            [f"resume={whole}/latest.pt", "max_iterations=7", *again[2:], f"output={tmp_path / 'x'}"]
        )
    )
    before = [f"resume={whole}/checkpoints/iteration_000002.pt", "max_iterations=3", *again[2:]]
    other = train(config.resolve([*before, f"output={tmp_path / 'other'}"]))
    assert rows(other)[-1]["preference/pairs"] == 17
    assert len(Preferences(tmp_path / "one").answers()) == 27


def test_a_resume_may_leave_the_script_out_and_says_so(folder, script, tmp_path):
    run = tmp_path / "run"
    run.mkdir()
    config.save(config.resolve(words_of(folder, script, run, 3)), run / config.FILE_NAME)
    for words, changed in (
        (["learner.preference_script=null"], ["learner.preference_script"]),
        ([f"learner.preference_script={script}"], []),
        ([f"learner.preference_script={script}", "learner.reference=null"], []),
    ):
        assert config.resume_changes(words, config.resolve([f"resume={run}", *words])) == changed
    with pytest.raises(ConfigError, match="preference_script"):
        config.resolve([f"resume={run}"])


@pytest.mark.slow
def test_a_run_that_goes_on_from_an_older_checkpoint_leaves_segments_and_takes_up_no_answer_about_others(
    make_env, script, tmp_path
):
    def made(name: str, seed: int) -> PPO:
        env = make_env(CartpoleBalance(), num_envs=4)
        settings = {"preferences": str(tmp_path / name), "preference_script": script, **FEW}
        more = {"preference_interval": 1, "preference_seconds": 0.04, "preference_pairs": 3}
        return PPO(env, PPOConfig(num_steps=8, minibatch_size=32, **settings, **more), seed), env

    learner, env = made("p", 1)
    folder = Preferences(tmp_path / "p")
    states = [learner.state_dict()]
    for _ in range(3):
        learner.iterate(env)
        states.append(copy.deepcopy(learner.state_dict()))
    files = {name: folder.path(name).read_bytes() for name in folder.names()}
    assert len(learner.preferences.pairs) == 9
    for start in (0, 1, 2):
        again, env = made("p", 2)  # another seed: other behaviour
        again.load_state_dict(states[start])
        known = set(again.preferences.pairs)
        assert len(known) == 3 * start
        again.iterate(env)
        again.iterate(env)
        assert len(again.preferences.pairs) == 3 * (start + 2)
        new = {name for pair in set(again.preferences.pairs) - known for name in pair}
        old = {name for pair in known for name in pair}
        assert not (new - old) & files.keys()
        # A rollback of a rollback.
        later = copy.deepcopy(again.state_dict())
        again.iterate(env)
        again.load_state_dict(later)
        again.iterate(env)
        assert len(again.preferences.pairs) == 3 * (start + 3)
    assert all(folder.path(name).read_bytes() == content for name, content in files.items())
    # Two runs from one checkpoint, side by side: each has its own.
    (one, env), (two, other) = made("q", 3), made("q", 4)
    state = one.state_dict()
    two.load_state_dict(copy.deepcopy(state))
    for _ in range(2):
        one.iterate(env)
        two.iterate(other)
    assert [len(each.preferences.pairs) for each in (one, two)] == [6, 6]


def test_a_script_starts_from_nothing_and_keeps_to_its_limit(script, tmp_path):
    words = words_of(tmp_path / "new", script, tmp_path / "run", 6)
    run = train(config.resolve([*words, "learner.preference_max_pairs=7"]))
    assert [row["preference/pairs"] for row in rows(run)] == [0, 5, 5, 7, 7, 7]
    assert "reward/preference" not in rows(run)[0]
    assert math.isfinite(rows(run)[-1]["reward/preference"])
    answers = Preferences(tmp_path / "new").answers()
    assert {answer.by for answer in answers.values()} == {f"script {script}"}
    segment = Preferences(tmp_path / "new").segment(next(iter(answers))[0])
    assert segment.steps == 5
    assert set(segment.observations) == {"policy", "critic"}
    # What holds for any run with a script from a file: it is not run unless it is named again.
    assert cli.main(["train", f"resume={run}", "max_iterations=7"]) == 2
    assert cli.main(["eval", str(run), "task.episode_length_s=0.2", "--episodes", "2"]) == 0


def test_answers_that_a_person_adds_or_takes_back_are_taken_up_at_the_next_interval(make_env, folder):
    env = make_env(CartpoleBalance(), num_envs=4)
    settings = PPOConfig(
        num_steps=4, minibatch_size=16, preferences=str(folder), preference_interval=2, **FEW
    )
    learner, answers = PPO(env, settings), Preferences(folder)
    found = []
    for i in range(4):
        found.append(learner.iterate(env).env["preference/pairs"])
        if i == 0:
            answers.append(Answer(("a0", "b3"), "equal", "person"))
            answers.append(Answer(("a1", "b3"), "skip", "person"))
            kept = {name: value.clone() for name, value in learner.preferences.model.state_dict().items()}
        if i == 1:
            answers.append(Answer(("a0", "b0"), None, "person"))
            assert 0.5 in learner.preferences.targets
            assert not torch.equal(kept["weights.0"], learner.preferences.model.weights[0])
    assert found == [12, 13, 13, 12]


def test_the_networks_stay_where_there_is_no_new_answer(make_env, folder):
    env = make_env(CartpoleBalance(), num_envs=4)
    learner = PPO(
        env, PPOConfig(num_steps=4, minibatch_size=16, preferences=str(folder), preference_interval=1, **FEW)
    )
    learner.iterate(env)
    before = learner.preferences.model.weights[0].clone()
    learner.iterate(env)
    assert torch.equal(learner.preferences.model.weights[0], before)


def test_what_cannot_be_learned_is_refused_by_name(make_env, folder, tmp_path, script):
    env = make_env(CartpoleBalance(), num_envs=4)

    def made(**settings: object) -> PPO:
        return PPO(env, PPOConfig(**{"num_steps": 4, "preferences": str(folder), **settings}))

    with pytest.raises(ConfigError, match="nowhere"):
        made(preferences=str(tmp_path / "nowhere"))
    Preferences(tmp_path / "empty", create=True)
    with pytest.raises(ConfigError, match="0 answers"):
        made(preferences=str(tmp_path / "empty"))
    with pytest.raises(ConfigError, match="'crtic'"):
        made(preference_groups=("crtic",))
    with pytest.raises(ConfigError, match="7 columns"):
        made(preferences=str(fill(tmp_path / "other", pairs=3, width=7)))
    with pytest.raises(ConfigError, match="preference_script"):
        made(preference_script="judge")
    with pytest.raises(ConfigError, match="int"):
        made(preference_script=script.replace(":judge", ":number"))
    settings = PPOConfig(preferences=str(folder))
    with pytest.raises(ConfigError, match="ranks"):
        preference_rewards(env, settings, ("critic",), 1, Shards(2))
    base = ["task=cartpole_balance", *SMALL]
    for words, named in (
        (["learner.task_reward_weight=0"], "task_reward_weight"),
        ([f"learner.preference_script={script}"], "preference_script"),
        (
            [
                f"learner.preferences={folder}",
                f"learner.preference_script={script}",
                "learner.preference_interval=0",
            ],
            "preference_interval",
        ),
        ([f"learner.preferences={folder}", "learner.preference_hidden=[]"], "preference_hidden"),
    ):
        with pytest.raises(ConfigError, match=named):
            config.resolve([*base, *words])
    with pytest.raises(ConfigError, match="mode=async"):
        train(
            config.resolve([*base, f"learner.preferences={folder}", "mode=async", f"output={tmp_path / 'a'}"])
        )


def test_segments_longer_than_an_episode_are_refused_and_an_asking_without_a_segment_is_noted_once(
    make_env, script, tmp_path
):
    env = make_env(CartpoleBalance(episode_length_s=0.4), num_envs=4)
    given = {"preferences": str(tmp_path / "p"), "preference_script": script, "preference_interval": 1, **FEW}
    with pytest.raises(ConfigError, match="preference_seconds"):
        PPO(env, PPOConfig(num_steps=4, preference_seconds=0.5, **given))
    # Four steps so far, and a segment has ten.
    learner = PPO(env, PPOConfig(num_steps=4, minibatch_size=16, preference_seconds=0.2, **given))
    found = [learner.iterate(env).notes for _ in range(2)]
    assert ["preference_seconds" in line for line in found[0]] == [True]
    assert found[1] == []


def test_nearly_equal_answers_are_noted(make_env, tmp_path):
    folder = fill(tmp_path / "p", pairs=10)
    for i in range(9):
        Preferences(folder).append(Answer((f"a{i}", f"b{i}"), "equal", "person"))
    env = make_env(CartpoleBalance(), num_envs=4)
    learner = PPO(env, PPOConfig(num_steps=4, minibatch_size=16, preferences=str(folder), **FEW))
    assert ["9 of 10" in line for line in learner.iterate(env).notes] == [True]
    assert learner.iterate(env).notes == []


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"preference_members": 3}, "preference_members"),
        ({"preference_hidden": (9,)}, "preference_hidden"),
        ({"preference_hidden": (8, 8)}, "preference_hidden"),
        ({"preference_groups": ("policy",)}, "preference_groups"),
    ],
)
def test_resuming_with_other_networks_names_the_setting(make_env, folder, change, named):
    env = make_env(CartpoleBalance(), num_envs=4)
    given = {"num_steps": 4, "minibatch_size": 16, "preferences": str(folder), **FEW}
    learner = PPO(env, PPOConfig(**given))
    learner.iterate(env)
    other = PPO(env, PPOConfig(**{**given, **change}))
    with pytest.raises(ConfigError, match=named):
        other.load_state_dict(learner.state_dict())


def test_segments_of_a_training_hold_scale_and_offset_of_the_actions(make_env, script, tmp_path):
    env = make_env(CartpoleBalance(), num_envs=4)
    given = {"preferences": str(tmp_path / "p"), "preference_script": script, "preference_interval": 1, **FEW}
    PPO(env, PPOConfig(num_steps=8, minibatch_size=32, preference_seconds=0.04, **given)).iterate(env)
    folder = Preferences(tmp_path / "p")
    segment = folder.segment(folder.names()[0])
    scale, offset = units_of(env)
    assert segment.scale.tolist() == scale.tolist()
    assert segment.offset.tolist() == offset.tolist()


def test_a_script_that_answers_something_else_ends_the_run(make_env, tmp_path, script):
    env = make_env(CartpoleBalance(), num_envs=4)
    bad = script.replace(":judge", ":bad")
    learner = PPO(
        env,
        PPOConfig(
            num_steps=8,
            minibatch_size=32,
            preferences=str(tmp_path / "p"),
            preference_script=bad,
            preference_interval=1,
            preference_seconds=0.04,
        ),
    )
    with pytest.raises(RunFailed, match="bad"):
        learner.iterate(env)
