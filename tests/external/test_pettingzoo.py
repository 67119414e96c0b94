"""task=pettingzoo:ID: rows of worlds and agents, the joint state, ends of agents, settings and refusals."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from mpe2 import simple_spread_v3

from robolearn import config
from robolearn.cli import main
from robolearn.config import registry
from robolearn.errors import ConfigError, MissingError, RunFailed
from robolearn.learners.ppo.ppo import PPO
from robolearn.learners.rollout import collect
from robolearn.simulation.episodes import tally
from robolearn.training.build import build_external

WORLDS = Path(__file__).with_name("worlds.py")
SPREAD = "pettingzoo:mpe2.simple_spread_v3"
SMALL = ["learner.num_steps=8", "learner.actor_hidden=[8]", "learner.critic_hidden=[8]", "num_envs=2"]


@pytest.fixture
def make():
    made = []

    def build(name: str, *words: str, num_envs: int = 2, render: bool = False):
        task = name if ":" in name else f"pettingzoo:{WORLDS}:{name}"
        made.append(build_external(config.resolve([f"task={task}", *words]), num_envs, render=render))
        return made[-1]

    yield build
    for env in made:
        env.close()


def refusal(capsys, *words: str, code: int = 2) -> str:
    assert main(["train", *words]) == code
    lines = capsys.readouterr().err.strip().splitlines()
    assert len(lines) == 1
    return lines[0]


def column(*rows: float) -> torch.Tensor:
    return torch.tensor(rows)[:, None]


# ---------------------------------------------------------------------- rows and groups


def test_rows_are_agents_of_worlds_and_the_critic_sees_its_own_agent_first(make):
    env = make("Counters")
    assert (env.num_envs, env.num_actions, env.agents, env.agent_names) == (6, 1, 3, ["a", "b", "c"])
    assert env.observations["policy"].tolist() == [[0, 0], [10, 0], [20, 0]] * 2
    assert (
        env.observations["critic"].tolist()
        == [
            [0, 0, 10, 0, 20, 0],
            [10, 0, 20, 0, 0, 0],
            [20, 0, 0, 0, 10, 0],
        ]
        * 2
    )
    assert env.columns["critic"] == [
        *("observation[0]", "observation[1]"),
        *("other1.observation[0]", "other1.observation[1]"),
        *("other2.observation[0]", "other2.observation[1]"),
    ]
    result = env.step(column(0, 0.25, 0.5, -1, -0.5, 0))
    assert result.reward.tolist() == [0, 1.25, 2.5, -1, 0.5, 2]
    assert result.valid is None
    assert env.observations["policy"].tolist() == [[0, 1], [10, 1], [20, 1]] * 2
    assert env.worlds[1].given == [{"a": [-1.0], "b": [-0.5], "c": [0.0]}]
    assert env.dt == 0.25


def test_the_groups_name_the_agent_where_it_is_asked_for(make):
    env = make("Counters", "task.agent_id=on", num_envs=1)
    assert env.observations["policy"].tolist() == [[0, 0, 1, 0, 0], [10, 0, 0, 1, 0], [20, 0, 0, 0, 1]]
    assert env.observations["critic"][1].tolist() == [10, 0, 20, 0, 0, 0, 0, 1, 0]
    assert env.columns["policy"][2:] == ["agent[a]", "agent[b]", "agent[c]"]


def test_agents_of_unlike_spaces_are_padded_and_named(make):
    env = make("Unlike", num_envs=1)
    assert env.num_actions == 2
    assert env.observations["policy"].tolist() == [[0, 0, 0, 1, 0], [10, 0, -1, 0, 1]]
    assert env.observations["critic"].tolist() == [[0, 0, 0, 10, 0, -1, 1, 0], [10, 0, -1, 0, 0, 0, 0, 1]]
    env.step(torch.tensor([[0.5, 9.0], [0.25, -0.5]]))
    # -1 to 1 spans the box of each: 1 of the first, 2 and 4 of the second.
    assert env.worlds[0].given == [{"a": [0.5], "b": [0.5, -2.0]}]
    plain = make("Unlike", "task.agent_id=off", num_envs=1)
    assert plain.observations["policy"].tolist() == [[0, 0, 0], [10, 0, -1]]


def test_clipped_actions_are_each_agents_own(make):
    env = make("Unlike", "task.actions=clipped", num_envs=1)
    env.step(torch.tensor([[0.5, 9.0], [3.0, -3.0]]))
    assert env.worlds[0].given == [{"a": [0.5], "b": [2.0, -3.0]}]
    assert (env.actions.low.tolist(), env.actions.high.tolist()) == ([-2, -4], [2, 4])


# ---------------------------------------------------------------------- ends


def test_an_agent_that_ends_early_has_no_steps_until_its_world_starts_again(make):
    env = make("Counters")
    one = env.step(column(0, 0, 0, 0, 0, 0))
    assert one.valid is None
    # Agent b of the first world ends in its second step.
    two = env.step(column(0, 1, 0, 0, 0, 0))
    assert two.valid is None
    assert two.terminated.tolist() == [False, True, False, False, False, False]
    assert two.terminal_observations["policy"].tolist() == [[0, 2], [10, 2], [20, 2]] * 2
    assert two.observations["policy"].tolist() == [[0, 2], [0, 0], [20, 2], [0, 2], [10, 2], [20, 2]]
    assert two.observations["critic"][2].tolist() == [20, 2, 0, 2, 0, 0]
    # In the third it takes no step; the time of all others is up, and both worlds start again.
    three = env.step(column(0.5, 0.5, 0.5, 0, 0, 0))
    assert three.valid.tolist() == [True, False, True, True, True, True]
    assert three.reward.tolist() == [0.5, 0, 2.5, 0, 1, 2]
    assert three.truncated.tolist() == [True, False, True, True, True, True]
    assert not three.terminated.any()
    assert env.worlds[0].given[2] == {"a": [0.5], "c": [0.5]}
    assert three.terminal_observations["critic"][0].tolist() == [0, 3, 0, 0, 20, 3]
    assert three.observations["policy"].tolist() == [[100, 0], [110, 0], [120, 0]] * 2
    four = env.step(column(0, 0, 0, 0, 0, 0))
    assert four.valid is None


def test_a_world_starts_again_when_its_last_agent_ends_and_others_go_on(make):
    env = make("Counters")
    env.step(column(1, 1, 0, 0, 0, 0))
    two = env.step(column(0, 0, 1, 0, 0, 0))
    assert two.valid.tolist() == [False, False, True, True, True, True]
    assert two.terminated.tolist() == [False, False, True, False, False, False]
    assert two.observations["policy"].tolist() == [[100, 0], [110, 0], [120, 0], [0, 2], [10, 2], [20, 2]]


def test_episodes_are_counted_agent_by_agent(make):
    env = make("Counters", num_envs=1)

    def act(observations):
        # Agent a ends in its second step.
        seen = observations["policy"]
        return torch.where((seen[:, 0] % 100 == 0) & (seen[:, 1] == 1), 1.0, 0.0)[:, None]

    counted = tally(env, act, episodes_each=2)
    pairs = sorted(
        zip(counted.returns.tolist(), counted.steps.tolist(), counted.survived.tolist(), strict=True)
    )
    assert pairs == [(1, 2, False), (1, 2, False), (3, 3, True), (3, 3, True), (6, 3, True), (6, 3, True)]
    assert counted.metrics == {"return_a": 1, "return_b": 3, "return_c": 6}
    env.reset()
    env.drain()
    for _ in range(6):
        env.step(act(env.observations))
    means = env.drain()
    assert means["episodes"] == 6
    assert means["steps"] == 16
    assert means["episode/return"] == pytest.approx(20 / 6)
    assert means["metric/return_c"] == 6


def test_the_mean_return_of_an_agent_is_of_its_episodes_and_not_of_the_steps_in_which_some_end(make):
    env = make("Counters", num_envs=3)
    env.reset()
    env.drain()
    # Agent a of world 0 ends in its first step with a return of 1, those of worlds 1 and 2 in their third with 1.5.
    action = torch.full((9, 1), 0.5)
    action[0] = 1.0
    for _ in range(3):
        env.step(action)
    assert env.drain()["metric/return_a"] == pytest.approx((1.0 + 1.5 + 1.5) / 3)


def test_ppo_does_not_learn_from_agents_that_have_ended():
    env = build_external(config.resolve([f"task=pettingzoo:{WORLDS}:Counters", *SMALL]), 1)
    learner = PPO(env, config.resolve([f"task=pettingzoo:{WORLDS}:Counters", *SMALL]).learner)
    env.reset()
    # Agent a ends in its first step each time.
    collect(env, learner.batch, lambda seen, t: column(1, 0, 0), learner.timers)
    valid = learner.batch.valid
    assert valid[:, 1:].all()
    assert valid[:, 0].tolist() == [True, False, False, True, False, False, True, False]
    for (order,) in learner.orders():
        assert valid.flatten()[order].all()
    env.close()


def test_an_agent_that_has_ended_does_not_come_back_in_its_episode(make):
    env = make("Staying", num_envs=1)
    env.step(column(0, 1, 0))
    two = env.step(column(0, 0, 1))
    assert two.valid.tolist() == [True, False, True]
    assert two.terminated.tolist() == [False, False, True]
    # Of an agent that ended for good, what it saw last is its terminal observation where there is none.
    assert two.terminal_observations["policy"].tolist() == [[0, 2], [0, 0], [20, 1]]
    three = env.step(column(0, 0, 0))
    assert three.valid.tolist() == [True, False, False]
    assert three.observations["policy"].tolist() == [[100, 0], [110, 0], [120, 0]]


def test_an_agent_that_joins_later_has_steps_from_then_on(make):
    env = make("Late", num_envs=1)
    one, two = env.step(column(0, 0, 0)), env.step(column(0, 0, 0))
    assert one.valid.tolist() == [True, True, False]
    assert one.observations["policy"].tolist() == [[0, 1], [10, 1], [20, 1]]
    assert two.valid is None


def test_the_time_limit_of_the_setting_ends_all_agents(make):
    env = make("Counters", "task.episode_steps=2", num_envs=1)
    env.step(column(0, 0, 0))
    two = env.step(column(0, 0, 1))
    assert two.truncated.tolist() == [True, True, False]
    assert two.terminated.tolist() == [False, False, True]
    assert two.observations["policy"].tolist() == [[100, 0], [110, 0], [120, 0]]
    assert env.max_episode_steps == 2


def test_an_early_end_is_refused_where_agents_are_to_end_together(make):
    env = make("Counters", "task.ends_together=true")
    assert not env.resets_take_a_step
    with pytest.raises(RunFailed, match="ends_together"):
        env.step(column(1, 0, 0, 0, 0, 0))


def test_an_agent_without_a_reward_is_named(make):
    env = make("Unpaid", num_envs=1)
    with pytest.raises(RunFailed, match="reward of b,"):
        env.step(column(0, 0, 0))


def test_recurrent_policies_need_agents_that_end_together(capsys, tmp_path):
    words = [f"task={SPREAD}", *SMALL, "max_iterations=1", "learner.rnn=gru", "learner.rnn_hidden=8"]
    assert "learner.rnn=gru" in refusal(capsys, *words, f"output={tmp_path / 'a'}")
    assert main(["train", *words, "task.ends_together=true", f"output={tmp_path / 'b'}"]) == 0


# ---------------------------------------------------------------------- a real environment


def test_one_world_is_the_environment_itself(make):
    env = make(SPREAD, "seed=3", num_envs=1)
    seed = int(np.random.SeedSequence((3, 0)).generate_state(1)[0]) >> 1
    itself = simple_spread_v3.parallel_env(continuous_actions=True)
    seen, _ = itself.reset(seed=seed)
    random = torch.Generator().manual_seed(0)
    assert (env.num_envs, env.max_episode_steps, env.dt) == (3, 25, 0.1)
    for _ in range(60):
        for k, agent in enumerate(env.agent_names):
            assert env.observations["policy"][k].tolist() == seen[agent].tolist()
        assert env.observations["critic"][0].tolist() == np.concatenate(list(seen.values())).tolist()
        action = torch.randn(3, 5, generator=random)
        result = env.step(action)
        given = (0.5 + 0.5 * action).clamp(0, 1).numpy()
        seen, rewards, _, truncated, _ = itself.step(dict(zip(env.agent_names, given, strict=True)))
        assert result.reward.tolist() == [np.float32(rewards[agent]) for agent in env.agent_names]
        assert result.truncated.tolist() == list(truncated.values())
        if not itself.agents:
            seen, _ = itself.reset()
    itself.close()


def test_a_run_trains_evaluates_and_resumes(tmp_path, capsys):
    out = tmp_path / "run"
    assert main(["train", f"task={SPREAD}", *SMALL, "max_iterations=2", f"output={out}"]) == 0
    rows = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    assert [row["steps"] for row in rows] == [48, 96]
    assert main(["train", f"resume={out}", "max_iterations=3"]) == 0
    assert main(["eval", str(out), "--episodes", "4"]) == 0
    found = json.loads((out / "metrics.json").read_text())
    assert found["episodes"] == 12  # four of two worlds, of three agents each
    assert set(found["metrics"]) == {"return_agent_0", "return_agent_1", "return_agent_2"}
    assert np.mean(list(found["metrics"].values())) == pytest.approx(found["return_mean"])


@pytest.mark.slow
def test_the_policy_is_exported_and_compared_for_every_agent(tmp_path, capsys):
    out, bundle = tmp_path / "run", tmp_path / "bundle"
    assert main(["train", f"task={SPREAD}", *SMALL, "max_iterations=1", f"output={out}"]) == 0
    small = ["--starts", "4", "--seconds", "1", "--measure-seconds", "0"]
    assert main(["export", "--target", "jetson-thor", str(out), "--output", str(bundle), *small]) == 0
    manifest = json.loads((bundle / "manifest.json").read_text())
    assert manifest["contract"]["observations"][0]["width"] == 18
    capsys.readouterr()
    assert main(["deploy", str(bundle), "--seconds", "0.2"]) == 2
    assert "3 agents" in capsys.readouterr().err


def test_a_run_is_filmed_and_simulated(tmp_path):
    out = tmp_path / "run"
    assert main(["train", f"task={SPREAD}", *SMALL, "max_iterations=1", f"output={out}"]) == 0
    assert main(["play", str(out), "--video", str(tmp_path / "a.mp4"), "--seconds", "0.5"]) == 0
    assert (
        main(["sim", "--policy", str(out), "--steps", "30", "--num-envs", "2", "--min-real-time-factor", "0"])
        == 0
    )


def test_independent_critics_are_a_setting(tmp_path):
    words = [f"task={SPREAD}", *SMALL, "max_iterations=1", "learner.critic_groups=[policy]"]
    assert main(["train", *words, f"output={tmp_path / 'run'}"]) == 0


def test_pictures_are_those_of_the_first_world(make):
    env = make("Counters", render=True)
    env.step(column(0, 0, 0, 0, 0, 0))
    assert env.render().tolist() == np.full((4, 5, 3), 1).tolist()
    with pytest.raises(ConfigError):
        make("Blind", render=True).render()


# ---------------------------------------------------------------------- names and refusals


@pytest.mark.parametrize(
    ("id", "named"),
    [
        ("mpe2.simple_spred_v3", "mpe2.simple_spread_v3"),
        ("mpe2.simple_spread_v3.env", "parallel_env"),
        ("mpe2", "parallel_env"),
        ("pettingzoo.mpe.simple_spread_v3", "MPE2"),
        ("no_such_package.thing", "no_such_package"),
        ("os.path.no_such_function", "no_such_function"),
        ("mpe2..simple", "mpe2..simple"),
        ("a/b", "path.py:NAME"),
        ("mpe2:simple_spread_v3", "module.function"),
        (f"{WORLDS}:NUMBER", "int"),
        (f"{WORLDS}:Missing", "Missing"),
    ],
)
def test_a_name_that_is_no_environment_is_refused(capsys, id, named):
    assert named in refusal(capsys, f"task=pettingzoo:{id}")


@pytest.mark.parametrize(
    ("name", "named"),
    [
        ("Discrete", "a: the action space Discrete(3)"),
        ("Keyed", "a: the observation space Dict"),
        ("Pictured", "image"),
        ("Nameless", "possible_agents"),
        ("Turns", "Turns"),
        ("Spaceless", "spaces"),
        ("nothing", "NoneType"),
    ],
)
def test_an_environment_that_does_not_fit_is_refused(capsys, name, named):
    assert named in refusal(capsys, f"task=pettingzoo:{WORLDS}:{name}", *SMALL)


def test_an_argument_that_does_not_exist_is_refused(capsys):
    assert "no_such" in refusal(capsys, f"task={SPREAD}", "task.kwargs.no_such=1")
    discrete = refusal(capsys, f"task={SPREAD}", "task.kwargs.continuous_actions=false")
    assert "agent_0" in discrete


@pytest.mark.parametrize(
    ("name", "named"), [("Vanishing", "b"), ("Failing", "by hand"), ("Shapeless", "a"), ("Unseen", "a")]
)
def test_an_environment_that_breaks_the_api_ends_the_run(capsys, tmp_path, name, named):
    words = [f"task=pettingzoo:{WORLDS}:{name}", *SMALL, f"output={tmp_path / 'run'}"]
    assert named in refusal(capsys, *words, code=4)


def test_a_package_that_is_missing_is_named_with_the_extra(capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "mpe2", None)
    monkeypatch.delitem(sys.modules, "mpe2.simple_spread_v3")
    monkeypatch.setattr(registry, "_installed", lambda module: True)
    with pytest.raises(MissingError, match=r"robolearn\[pettingzoo\]"):
        registry.load("tasks", "pettingzoo:mpe2.simple_spread_v3")
    monkeypatch.setattr(registry, "_installed", lambda module: module != "pettingzoo")
    assert "robolearn[pettingzoo]" in refusal(capsys, f"task={SPREAD}", code=3)


def test_asynchronous_actors_are_refused(capsys, tmp_path):
    assert "mode=async" in refusal(capsys, f"task={SPREAD}", "mode=async", f"output={tmp_path / 'run'}")


def test_a_saved_run_imports_only_known_packages(tmp_path, monkeypatch, capsys):
    (tmp_path / "my_worlds.py").write_text(WORLDS.read_text())
    monkeypatch.syspath_prepend(str(tmp_path))
    out = tmp_path / "run"
    words = ["max_iterations=1", f"output={out}", *SMALL]
    assert main(["train", "task=pettingzoo:my_worlds.Counters", *words]) == 0
    capsys.readouterr()
    assert main(["eval", str(out)]) == 2
    assert "task=pettingzoo:my_worlds.Counters" in capsys.readouterr().err
    assert main(["eval", str(out), "task=pettingzoo:my_worlds.Counters", "--episodes", "2"]) == 0
    assert registry.is_file("pettingzoo:os.system")
    assert not registry.is_file(SPREAD)
