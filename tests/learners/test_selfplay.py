"""Self-play: who plays whom, what the learner gets of it, and that it resumes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from robolearn import config
from robolearn.cli import main
from robolearn.core.env import Env
from robolearn.errors import ConfigError
from robolearn.learners.ppo.config import PPOConfig
from robolearn.learners.ppo.ppo import PPO
from robolearn.learners.selfplay.pool import Pool
from robolearn.learners.selfplay.self_play import NEW, OLD
from robolearn.tasks.mdp.context import Random
from robolearn.tasks.mdp.task import Ratio
from robolearn.training import checkpoint
from robolearn.training.build import build_env
from robolearn.training.metrics import read_metrics
from robolearn.training.runs import Run, load_opponents, load_policy, open_run
from robolearn.training.train import train
from tests.no_sync import no_host_sync
from tests.training.equal import assert_equal

SMALL = PPOConfig(
    self_play=0.5,
    pool_size=3,
    pool_interval=1,
    num_steps=8,
    num_epochs=1,
    minibatch_size=64,
    actor_hidden=(8,),
    critic_hidden=(8,),
    symmetry="none",
    precision="fp32",
)


@pytest.fixture
def env() -> Iterator[Env]:
    """16 worlds, whose episodes last 12 steps."""
    words = ["task=sumo", "task.episode_length_s=0.24", "torch_threads=1"]
    made = build_env(config.resolve(words), 16)
    yield made
    made.close()


# ------------------------------------------------------------------------------------------------ the pool


def pool_of(size: int, *iterations: int) -> Pool:
    pool = Pool(size)
    for iteration in iterations:
        pool.add(iteration, 1000.0 + iteration, {"w": torch.tensor([float(iteration)])})
    return pool


def test_a_full_pool_keeps_the_first_the_newest_and_those_spread_between():
    # 0 10 20 30 40: all gaps are alike, the earliest leaves; 0 20 30 40 50: 30 stands between 20 and 40, 20 apart.
    assert [m.iteration for m in pool_of(4, 0, 10, 20, 30, 40).members] == [0, 20, 30, 40]
    assert [m.iteration for m in pool_of(4, 0, 10, 20, 30, 40, 50).members] == [0, 20, 40, 50]
    assert [m.iteration for m in pool_of(1, 0, 10, 20).members] == [20]
    assert [m.iteration for m in pool_of(2, 0, 10, 20).members] == [0, 20]


def test_members_do_not_change_with_the_policy_that_they_were():
    weights, pool = {"w": torch.zeros(2)}, Pool(2)
    pool.add(0, 1000.0, weights)
    weights["w"].fill_(1.0)
    assert pool.members[0].weights["w"].tolist() == [0.0, 0.0]


def test_opponents_who_score_evenly_are_preferred_and_none_is_forgotten():
    pool = Pool(2)
    pool.add(0, 1000.0, {})
    pool.add(1, 1400.0, {})
    # Rated 1400, the policy is expected to score 10/11 and 1/2: variances 10/121 = 0.08264 and 1/4, shares 0.24845 and
    # 0.75155; four fifths of these and a tenth each.
    assert pool.chances(1400.0).tolist() == pytest.approx([0.29876, 0.70124], abs=1e-5)
    assert pool.chances(1200.0).tolist() == pytest.approx([0.5, 0.5])


# ------------------------------------------------------------------------------------------------ a batch


def test_rows_of_past_policies_are_a_quarter_in_both_seats_and_in_no_batch(env):
    learner = PPO(env, SMALL)
    assert learner.self_play is not None
    rows = learner.self_play.rows
    assert rows.shape == (8, 1)  # half of 16 worlds, in 8 lanes
    assert (rows // 2).flatten().sort().values.tolist() == list(range(8))  # one agent of each world
    assert (rows % 2).flatten().tolist() == [0, 1] * 4
    assert learner.batch.reward.shape == (8, 24)
    report = learner.iterate(env)
    assert report.steps == 8 * 24


@pytest.mark.parametrize(("share", "firm"), [(0.0, 0), (0.01, 1), (0.5, 4), (0.99, 7), (1.0, 8)])
def test_a_share_of_lanes_without_noise_leaves_some_of_each_kind(share, firm, env):
    play = PPO(env, replace(SMALL, mean_opponents=share)).self_play
    assert play is not None
    assert (play._noise == 0).sum() == firm
    assert sum(play._rated) == (8 - firm or 8)
    for noisy in (0.0, 1.0):
        seats = play.rows[play._noise == noisy] % 2
        assert abs(int((seats == 0).sum()) - int((seats == 1).sum())) <= 1


def test_without_self_play_nothing_is_different(env):
    learner = PPO(env, PPOConfig(num_steps=4, actor_hidden=(8,), critic_hidden=(8,)))
    assert learner.self_play is None
    assert learner.batch.reward.shape == (4, 32)
    assert not {"self_play", "opponents"} & set(learner.state_dict())


def watched(env: Env) -> list[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]:
    """From now on: the policy observations before each step, the actions, and where episodes ended."""
    seen: list[tuple[torch.Tensor, torch.Tensor, torch.Tensor]] = []
    step = env.step

    def noted(action: torch.Tensor, joint_targets: torch.Tensor | None = None) -> object:
        before = env.observations["policy"].clone(), action.clone()
        result = step(action, joint_targets)
        seen.append((*before, result.done.clone()))
        return result

    env.step = noted  # type: ignore[method-assign,assignment]
    return seen


def test_in_their_rows_the_frozen_policy_acts_with_its_own_noise_and_normalizer(env):
    learner = PPO(env, replace(SMALL, pool_interval=1000), seed=3)
    play = learner.self_play
    assert play is not None
    learner.iterate(env)  # whose observations the current normalizer has absorbed
    first = play.pool.members[0]
    assert play.opponents() == [0] * 8
    noise = Random(0, env.device)
    noise.set_state(play.random.state())
    seen = watched(env)
    learner.iterate(env)
    frozen = PPO(env, SMALL, seed=9).actor
    frozen.load_state_dict(dict(first.weights))
    assert not torch.equal(frozen.mlp[0].weight, learner.actor.mlp[0].weight)
    rows = play.rows.flatten()
    for obs, action, _ in seen[:8]:
        with torch.no_grad():
            mean = frozen.mlp(frozen.obs_normalizer(obs[rows]))
        drawn = mean + frozen.distribution.std_param * noise.randn(8, 1, 8).flatten(0, 1)
        assert torch.allclose(action[rows], drawn, atol=1e-5)
    own = play.own
    assert torch.equal(seen[0][1][own], learner.batch.action[0])


def test_in_lanes_of_mean_opponents_there_is_no_noise_and_their_games_move_no_rating(env):
    learner = PPO(env, replace(SMALL, pool_interval=1000, mean_opponents=0.25), seed=3)
    play = learner.self_play
    assert play is not None
    seen = watched(env)
    learner.iterate(env)
    first = PPO(env, SMALL, seed=9).actor
    first.load_state_dict(dict(play.pool.members[0].weights))
    rows = play.rows.flatten()
    obs, action, _ = seen[0]
    with torch.no_grad():
        mean = first.mlp(first.obs_normalizer(obs[rows]))
    close = torch.isclose(action[rows], mean, atol=1e-5).all(dim=1)
    assert close.nonzero().flatten().tolist() == [3, 7]  # a quarter of eight lanes
    assert (rows[[3, 7]] % 2).tolist() == [0, 1]  # both seats
    play._sums.zero_()
    play._sums[:, NEW, 3] = 4.0  # four wins against one without noise
    play.finish(1)
    assert play.rating == 1000.0
    play._sums[:, NEW, 2] = 4.0  # and against one with noise: 4 x 8 x (1 - 0.5)
    play.finish(1)
    assert play.rating == 1016.0


@pytest.mark.slow
def test_a_world_keeps_its_opponent_until_its_episode_ends(env):
    learner = PPO(env, SMALL)
    play = learner.self_play
    assert play is not None
    seen = watched(env)
    for k in range(12):
        # Policies that can be told apart by their actions: near 0.3 times 1, -2, 3, -4, ...
        with torch.no_grad():
            learner.actor.mlp[-1].weight.zero_()
            learner.actor.mlp[-1].bias.fill_(0.3 * (k + 1) * (-1) ** k)
            learner.actor.distribution.std_param.fill_(0.05)
        learner.iterate(env)
    rows = play.rows.flatten()
    who = torch.stack([(action[rows].mean(dim=1) / 0.3).round() for _, action, _ in seen])
    done = torch.stack([ended[rows] for _, _, ended in seen])
    changes = who[1:] != who[:-1]
    assert changes.any(dim=0).all()  # each world met several
    assert done[:-1][changes].all()  # and changed between two episodes alone
    assert len(who.unique()) > 3


def test_a_game_counts_for_the_opponent_that_it_began_with(env):
    learner = PPO(env, SMALL)
    play = learner.self_play
    assert play is not None
    learner.iterate(env)
    play._sums.zero_()
    play._fresh.fill_(False)
    play._fresh[3] = True
    result = env.step(torch.zeros(32, 8))
    score = torch.full((32,), 0.25)
    score[play.rows.flatten()] = 0.75  # of the past policies; theirs and ours add up to 1
    ended = torch.zeros(32)
    lanes = [0, 3, 5]
    for lane in lanes:
        world = int(play.rows[lane, 0]) // 2
        ended[2 * world : 2 * world + 2] = 1.0
    result.metrics["won"] = Ratio(score * ended, ended)
    result.terminated = ended.bool()
    play.count(result)
    scores, games = play._sums
    assert games[OLD].nonzero().flatten().tolist() == [0, 5]
    assert games[NEW].nonzero().flatten().tolist() == [3]
    assert scores.sum(dim=0)[lanes].tolist() == [0.25] * 3
    assert (
        play._fresh.flatten().nonzero().flatten().tolist() == lanes
    )  # the next episodes have the new opponent


def test_a_step_of_past_policies_reads_nothing_from_the_device(env):
    learner = PPO(env, SMALL)
    play = learner.self_play
    assert play is not None
    learner.iterate(env)
    result = env.step(torch.zeros(32, 8))
    own = play.around(env)
    with no_host_sync():
        play.act(env.observations)
        play.count(result)
        own.look()


def test_the_rating_rises_with_games_won_and_the_next_member_has_it(env):
    learner = PPO(env, SMALL)
    play = learner.self_play
    assert play is not None
    play.begun(env)
    play._sums[0, NEW, 0], play._sums[1, NEW, 0] = 3.0, 4.0  # 3 of 4 games against the first, rated 1000
    told = play.finish(8)
    assert told == {"selfplay/elo": 1008.0, "selfplay/games": 4.0, "selfplay/pool": 2.0, "selfplay/won": 0.75}
    assert [m.rating for m in play.pool.members] == [1000.0, 1008.0]
    assert "selfplay/won" not in play.finish(8)  # no game has ended since


# ------------------------------------------------------------------------------------------------ runs

RUN = [
    "task=sumo",
    "num_envs=16",
    "task.episode_length_s=0.4",
    "learner.num_steps=12",
    "learner.pool_interval=2",
    "learner.pool_size=3",
    "learner.minibatch_size=64",
    "torch_threads=1",
    "backend.threads=1",
]


def content(folder: Path) -> dict:
    return checkpoint.load(folder / "latest.pt")


@pytest.mark.slow
def test_a_run_with_a_pool_resumes_bit_for_bit(tmp_path):
    whole, part = tmp_path / "whole", tmp_path / "part"
    train(config.resolve([*RUN, "max_iterations=9", f"output={whole}"]))
    train(config.resolve([*RUN, "max_iterations=5", f"output={part}"]))
    assert main(["train", f"resume={part}", "max_iterations=9"]) == 0
    one, two = content(whole), content(part)
    assert [m["iteration"] for m in one["self_play"]["pool"]] == [0, 4, 8]
    assert one["self_play"]["iteration"] == 9
    for key in ("actor_state_dict", "critic_state_dict", "self_play", "opponents", "random", "env"):
        assert_equal(one[key], two[key], key)
    rows = [
        {k: v for k, v in row.items() if "time" not in k and "second" not in k}
        for folder in (whole, part)
        for row in read_metrics(folder / "metrics.jsonl")
    ]
    assert rows[:9] == rows[9:]
    assert any("selfplay/won" in row for row in rows)


@pytest.mark.slow
def test_weights_alone_keep_the_pool_and_draw_new_opponents(tmp_path):
    folder, again = tmp_path / "run", tmp_path / "again"
    train(config.resolve([*RUN, "max_iterations=4", f"output={folder}"]))
    weights = folder / "checkpoints" / "iteration_000004.pt"
    saved = checkpoint.load(weights)
    assert "opponents" not in saved
    assert main(["train", f"resume={weights}", "max_iterations=6", f"output={again}"]) == 0
    assert [m["iteration"] for m in content(again)["self_play"]["pool"]] == [0, 4, 6]


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["task=carry", "learner.self_play=0.5"], "'won'"),
        (["task=ant_run", "learner.self_play=0.5"], "1 agent"),
        (["task=gymnasium:Pendulum-v1", "learner.self_play=0.5"], "its own simulator"),
        (["task=sumo", "learner.rnn=gru"], "learner.rnn=gru"),
        (["task=sumo", "ranks=2"], "ranks"),
        (["task=sumo", "mode=async"], "mode=async"),
        (["task=sumo", "learner.preferences=somewhere"], "learner.preferences"),
        (["task=sumo", "learner.self_play=1.5"], "learner.self_play"),
        (["task=sumo", "learner.pool_size=0"], "learner.pool_size"),
    ],
)
def test_what_self_play_does_not_work_with_is_refused_by_name(words, named, tmp_path, capsys):
    run = tmp_path / "run"
    assert main(["train", *words, "num_envs=16", f"output={run}"]) == 2
    assert named in capsys.readouterr().err
    assert not run.exists()


def test_self_play_is_measured_by_bench(capsys):
    small = ["num_envs=4", "torch_threads=1", "learner.num_steps=4", "--rounds", "1", "--warmup", "0"]
    assert main(["bench", "task=sumo", *small]) == 0


# ------------------------------------------------------------------------------------------------ to watch


def test_the_first_agent_has_the_policy_of_the_run_and_the_second_that_of_the_opponent(tmp_path):
    small = ["task=sumo", "num_envs=8", "max_iterations=1", "learner.num_steps=4", "learner.actor_hidden=[8]"]
    runs = []
    for seed in (1, 2):
        words = [*small, f"seed={seed}", "torch_threads=1", f"output={tmp_path / str(seed)}"]
        runs.append(open_run(str(train(config.resolve(words)))))
    both = load_opponents(runs[0], str(tmp_path / "2" / "checkpoints" / "iteration_000001.pt"))
    seen = {"policy": torch.randn(6, env_width(runs[0]))}
    mine, theirs = (load_policy(each)(seen) for each in runs)
    shown = both(seen)
    assert torch.allclose(shown[::2], mine[::2], atol=1e-6)
    assert torch.allclose(shown[1::2], theirs[1::2], atol=1e-6)
    assert not torch.allclose(mine, theirs, atol=1e-3)


def test_an_opponent_of_another_task_or_with_other_observations_is_refused_and_named(tmp_path):
    names = ("sumo", "carry", "several")
    small = [
        "num_envs=8",
        "max_iterations=1",
        "learner.num_steps=4",
        "learner.actor_hidden=[8]",
        "torch_threads=1",
    ]
    for name in names:
        words = (
            ["task=carry", "learner.policies={robot: a, partner: b}"]
            if name == "several"
            else [f"task={name}"]
        )
        train(config.resolve([*words, *small, f"output={tmp_path / name}"]))
    with pytest.raises(ConfigError, match="task carry"):
        load_opponents(open_run(str(tmp_path / "sumo")), str(tmp_path / "carry"))
    with pytest.raises(ConfigError, match="several"):
        load_opponents(open_run(str(tmp_path / "carry")), str(tmp_path / "several"))


def env_width(run: Run) -> int:
    return run.content["policy"]["spec"]["inputs"]["policy"]


def test_an_opponent_in_a_task_of_one_agent_is_refused(tmp_path, capsys):
    words = ["task=cartpole_balance", "num_envs=4", "max_iterations=1", f"output={tmp_path / 'run'}"]
    assert main(["train", *words]) == 0
    film = ["--video", str(tmp_path / "x.mp4"), "--opponent", str(tmp_path / "run")]
    assert main(["play", str(tmp_path / "run"), *film]) == 2
    assert "cartpole_balance" in capsys.readouterr().err
    assert not (tmp_path / "x.mp4").exists()
