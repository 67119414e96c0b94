"""Cloning: its losses, what it learns, keeps and saves, and what it refuses."""

from __future__ import annotations

import json
import math
import threading
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from robolearn import config
from robolearn.cli import main
from robolearn.core.shards import Shards
from robolearn.learners.clone.best import Best
from robolearn.learners.clone.clone import Clone
from robolearn.learners.clone.config import CloneConfig
from robolearn.learners.clone.samples import shuffled, streams
from robolearn.learners.demonstrations.demonstrations import Demonstrations
from robolearn.learners.imitation.losses import negative_log_likelihood, squared_error
from robolearn.learners.networks import build_model, deviation
from robolearn.learners.policy import Policy, PolicyRunner
from robolearn.learners.ppo.ppo import PPO, PPOConfig
from robolearn.learners.saved import load
from robolearn.tasks.cartpole import CartpoleBalance
from robolearn.training import checkpoint
from robolearn.training.train import train
from tests.learners.scripted import Scripted, symmetry
from tests.threaded_ranks import together

STEPS, EPISODES = 20, 6
HIDDEN = {"actor_hidden": (16, 16), "critic_hidden": (16, 16)}


def expert(policy: np.ndarray) -> np.ndarray:
    """(M, 1) actions of a linear controller of observations (M, 4)."""
    return policy @ np.array([[0.4], [-0.3], [0.2], [0.1]], np.float32)


def recorded(path: Path, noise: float = 0.0, **changes: object) -> str:
    """Episodes of a linear controller of the cartpole, whose last one ends for good."""
    random = np.random.default_rng(0)
    seen = random.standard_normal((STEPS * EPISODES, 4)).astype(np.float32)
    action = expert(seen) + noise * random.standard_normal((len(seen), 1)).astype(np.float32)
    ends = np.arange(len(seen)) % STEPS == STEPS - 1
    last = np.arange(len(seen)) == len(seen) - 1
    content = {
        "observations/policy": seen,
        "observations/critic": np.concatenate([seen, action], axis=1),
        "actions": action,
        "rewards": np.ones(len(seen), np.float32),
        "terminated": ends & last,
        "truncated": ends & ~last,
    } | {name.replace("__", "/"): value for name, value in changes.items()}
    np.savez(path, **{name: value for name, value in content.items() if value is not None})
    return str(path)


def settings(path: str | tuple[str, ...], **more: object) -> CloneConfig:
    usual = {
        "num_steps": 4,
        "minibatch_size": 20,
        "held_out": 0.2,
        "learning_rate": 3e-3,
        "precision": "fp32",
    }
    usual |= HIDDEN
    return CloneConfig(demonstrations=path, **{**usual, **more})


# ---------------------------------------------------------------------------------------- losses


def test_the_squared_error_is_the_mean_over_actuators():
    found = squared_error(torch.tensor([[1.0, 2.0], [0.0, 0.0]]), torch.tensor([[0.0, 4.0], [0.0, 0.0]]))
    assert found.tolist() == [2.5, 0.0]  # (1 + 4) / 2


def test_the_likelihood_is_that_of_gaussians_and_has_the_gradient_of_finite_differences():
    mean, std = torch.tensor([[1.0, 0.0]]), torch.tensor([0.5, 2.0])
    found = negative_log_likelihood(mean, std, torch.tensor([[0.0, 2.0]]))
    # (1 / 0.5)^2 / 2 + (2 / 2)^2 / 2 + log 0.5 + log 2 + log 2 pi
    assert found.item() == pytest.approx(2.0 + 0.5 + math.log(2 * math.pi))
    action = torch.randn(4, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    given = torch.zeros(4, 2, dtype=torch.float64, requires_grad=True)
    spread = torch.tensor([0.4, 0.9], dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda m, s: negative_log_likelihood(m, s, action), (given, spread))


# ---------------------------------------------------------------------------------------- learning


def test_a_clone_acts_as_the_expert_that_was_recorded(make_env, tmp_path):
    path = recorded(tmp_path / "a.npz")
    learner = Clone(env := make_env(CartpoleBalance(), num_envs=4), settings(path, symmetry="none"))
    reports = [learner.iterate(env) for _ in range(60)]
    seen = np.random.default_rng(1).standard_normal((200, 4)).astype(np.float32)
    action = learner.policy.act({"policy": torch.from_numpy(seen)}).numpy()
    missed = np.square(action - expert(seen)).mean() / np.square(expert(seen)).mean()
    assert missed < 0.02
    assert reports[-1].losses["held_out_error"] < 0.1 * reports[0].losses["held_out_error"]
    assert reports[-1].steps == 4 * 4
    assert "episode/return" in reports[-1].env or "reward/total" in reports[-1].env


def test_the_likelihood_also_learns_how_much_the_actions_scatter(make_env, tmp_path):
    path = recorded(tmp_path / "a.npz", noise=0.3)
    given = settings(path, loss="nll", held_out=0.0, std=0.05, learning_rate=1e-2)
    learner = Clone(env := make_env(CartpoleBalance(), num_envs=4), replace(given, symmetry="none"))
    with torch.no_grad():
        learner.actor.distribution.std_param.fill_(1.0)
    for _ in range(40):
        learner.iterate(env)
    assert 0.1 < float(deviation(learner.actor).detach()) < 0.4
    floor = Clone(env, replace(given, std=0.6, symmetry="none"))
    for _ in range(10):
        floor.iterate(env)
    assert float(deviation(floor.actor).detach()) == pytest.approx(0.6)


def test_the_standard_deviation_that_is_not_learned_stays_as_it_is_set(make_env, tmp_path):
    learner = Clone(
        env := make_env(CartpoleBalance(), num_envs=4), settings(recorded(tmp_path / "a.npz"), std=0.3)
    )
    for _ in range(3):
        learner.iterate(env)
    assert learner.policy.actor.distribution.std_param.tolist() == pytest.approx([0.3])


def test_the_critic_learns_the_returns_and_is_left_alone_without_rewards(make_env, tmp_path):
    env = make_env(CartpoleBalance(), num_envs=4)
    given = settings(
        recorded(tmp_path / "a.npz"), gamma=0.5, held_out=0.0, symmetry="none", learning_rate=1e-2
    )
    learner = Clone(env, given)
    for _ in range(80):
        losses = learner.iterate(env).losses
    # A reward of 1 a step has the return 2 far from the end: 1 / (1 - 0.5).
    known = learner.samples.batch.observations["critic"][:10, 0]
    value = learner.critic.mlp(learner.critic.obs_normalizer(known))
    assert value.flatten().tolist() == pytest.approx([2.0] * 10, abs=0.3)
    assert losses["value"] < 0.1
    for path, more in (
        (recorded(tmp_path / "b.npz", rewards=None), {}),
        (given.demonstrations, {"value_loss_coef": 0.0}),
    ):
        without = Clone(env, settings(path, **more))
        before = without.state_dict()["critic_state_dict"]["mlp.0.weight"].clone()
        assert "value" not in without.iterate(env).losses
        assert torch.equal(without.critic.mlp[0].weight, before)


def test_the_weights_with_the_least_held_out_error_are_kept_and_training_ends(make_env, tmp_path):
    # Actions that nothing explains: what is learned of them is worse on other episodes.
    path = recorded(tmp_path / "a.npz", noise=3.0)
    given = settings(path, patience=6, learning_rate=2e-2, symmetry="none")
    learner = Clone(env := make_env(CartpoleBalance(), num_envs=4), given)
    errors, kept, finished = [], [], False
    while not finished:
        report = learner.iterate(env)
        errors.append(report.losses["held_out"])
        kept.append(learner.policy.actor.mlp[0].weight.clone())
        finished = report.finished
    best = errors.index(min(errors))
    assert len(errors) == best + 1 + 6
    assert torch.equal(kept[-1], kept[best])
    assert not torch.equal(kept[-1], learner.actor.mlp[0].weight)
    assert report.losses["held_out_best"] == pytest.approx(min(errors))
    # After each third of the patience, 2 iterations, the step size halves.
    assert float(learner.update.adam.rate) == pytest.approx(2e-2 / 2**learner.halved)
    assert learner.halved >= 3


def test_the_best_weights_are_those_of_the_lowest_error_offered_and_never_of_nan():
    network = build_model({"x": 1}, 1, (2,), "elu", None)
    best, kept = Best(network), []
    for i, error in enumerate([3.0, 1.0, 2.0, math.nan]):
        network.mlp[0].weight.data.fill_(i)
        best.offer(torch.tensor(error))
        kept.append(float(best.kept.mlp[0].weight[0]))
    assert kept == [0, 1, 1, 1]
    assert (float(best.error), int(best.since)) == (1.0, 2)


def test_estimates_are_learned_from_groups_that_the_demonstrations_hold(make_env, tmp_path):
    given = settings(recorded(tmp_path / "a.npz"), estimated_groups=("critic",), symmetry="none")
    learner = Clone(env := make_env(CartpoleBalance(), num_envs=4), given)
    found = [learner.iterate(env).losses["estimate"] for _ in range(40)]
    assert found[-1] < 0.5 * found[0]
    assert learner.policy.spec.estimated == 5


@pytest.mark.parametrize("kind", ["equivariant", "augment"])
def test_a_symmetric_clone_acts_mirrored_in_the_mirror_image(kind, tmp_path):
    env = Scripted(mirrored=symmetry())
    seen = np.random.default_rng(0).standard_normal((40, 6)).astype(np.float32)
    arrays = {
        "observations/policy": seen,
        "actions": seen[:, :2] * 0.3,
        "terminated": np.arange(40) % 10 == 9,
        "truncated": np.zeros(40, bool),
    }
    np.savez(tmp_path / "a.npz", **arrays)
    given = settings(str(tmp_path / "a.npz"), symmetry=kind, rollout_interval=0)
    learner = Clone(env, given)
    for _ in range(3):
        learner.iterate(env)
    obs = torch.from_numpy(seen)
    act = learner.policy.act
    turned = act({"policy": symmetry().groups["policy"](obs)})
    if kind == "equivariant":
        assert torch.allclose(turned, symmetry().action(act({"policy": obs})), atol=1e-5)
    else:
        assert learner.update.symmetry is not None


# ---------------------------------------------------------------------------------------- recurrent


def few(lengths: tuple[int, ...]) -> Demonstrations:
    steps = sum(lengths)
    rows = torch.arange(steps, dtype=torch.float32)[:, None]
    return Demonstrations({"policy": rows}, rows, lengths, torch.zeros(len(lengths), dtype=torch.bool))


def test_streams_hold_each_step_once_in_order_and_end_where_episodes_do():
    found = streams(few((2, 5, 3)), Shards(2), window=3)
    # The longest episode fills the first column; the others follow each other in the second: 3 + 2 steps.
    assert found.valid.sum(dim=0).tolist() == [5, 5]
    assert len(found.rows) == 6  # a multiple of 3
    assert found.batch.action[:5, :, 0].T.tolist() == [[2, 3, 4, 5, 6], [7, 8, 9, 0, 1]]
    assert found.batch.done[:, 1].tolist() == [False, False, True, False, True, True]
    assert [steps.start for steps, _ in found.windows(3)] == [0, 3]


def test_shuffled_samples_hold_each_step_once():
    found = shuffled(few((2, 5, 3)), Shards(2))
    assert sorted(found.batch.action.flatten().tolist()) == list(range(10))
    assert found.rows.shape == (5, 2)


@pytest.mark.slow
@pytest.mark.parametrize("rnn", ["gru", "lstm"])
def test_a_recurrent_clone_remembers_what_one_observation_does_not_tell(rnn, make_env, tmp_path):
    # The action is the first column of the step before, which the observation does not contain.
    random = np.random.default_rng(0)
    seen = random.standard_normal((30 * 20, 4)).astype(np.float32)
    action = np.roll(seen[:, :1], 1, axis=0)
    action[::20] = 0
    path = recorded(
        tmp_path / "a.npz",
        observations__policy=seen,
        observations__critic=None,
        actions=action,
        rewards=None,
        terminated=np.zeros(len(seen), bool),
        truncated=np.arange(len(seen)) % 20 == 19,
    )
    given = settings(path, rnn=rnn, rnn_hidden=32, num_steps=10, minibatch_size=80, learning_rate=1e-2)
    given.rollout_interval = 0
    learner = Clone(env := make_env(CartpoleBalance(), num_envs=4), given)
    for _ in range(40):
        losses = learner.iterate(env).losses
    assert losses["held_out_best"] < 0.7  # without memory it is the variance, 1
    runner = PolicyRunner(learner.policy)
    acted = [runner({"policy": torch.from_numpy(seen[t : t + 1])}).item() for t in range(20)]
    assert np.square(np.array(acted) - action[:20, 0]).mean() < 0.7


# ---------------------------------------------------------------------------------------- runs


SMALL = ["task=cartpole_balance", "num_envs=8", "torch_threads=1", "learner=clone", "learner.num_steps=4"]
SMALL += ["learner.precision=fp32"]


@pytest.mark.parametrize("words", [[], ["learner.rnn=gru", "learner.held_out=0"], ["learner.loss=nll"]])
def test_a_resumed_clone_goes_on_bit_for_bit(words, tmp_path):
    path = recorded(tmp_path / "a.npz", noise=0.1)
    base = [*SMALL, f"learner.demonstrations={path}", "learner.minibatch_size=32", *words]
    whole = train(config.resolve([*base, "max_iterations=5", f"output={tmp_path / 'whole'}"]))
    train(config.resolve([*base, "max_iterations=2", f"output={tmp_path / 'half'}"]))
    words = [f"resume={tmp_path / 'half'}", "max_iterations=5"]
    half = train(config.resolve(words), config.resume_changes(words, config.resolve(words)))
    one, two = (load(folder / "latest.pt") for folder in (whole, half))
    for key in ("actor_state_dict", "critic_state_dict"):
        assert all(torch.equal(x, two[key][name]) for name, x in one[key].items())
    assert torch.equal(one["random"], two["random"])
    if "latest_actor" in one:
        assert all(torch.equal(x, two["latest_actor"][name]) for name, x in one["latest_actor"].items())


def test_ppo_starts_with_the_cloned_networks_their_spread_and_a_small_step(tmp_path, make_env):
    path = recorded(tmp_path / "a.npz")
    words = [*SMALL, f"learner.demonstrations={path}", "learner.std=0.3", "max_iterations=3"]
    folder = train(config.resolve([*words, f"output={tmp_path / 'run'}"]))
    learner = PPO(make_env(CartpoleBalance(), num_envs=8), PPOConfig(num_steps=4, minibatch_size=32))
    checkpoint.start_with(str(folder), learner)
    seen = torch.randn(5, 4, generator=torch.Generator().manual_seed(0))
    assert torch.equal(learner.policy.act({"policy": seen}), Policy.load(str(folder)).act({"policy": seen}))
    assert deviation(learner.actor).tolist() == pytest.approx([0.3])
    assert learner.learning_rate == pytest.approx(1e-4)


def test_a_tasks_settings_for_ppo_hold_for_a_clone_where_it_has_them(tmp_path):
    path = recorded(tmp_path / "a.npz")
    run = config.resolve(["task=humanoid_walk", "learner=clone", f"learner.demonstrations={path}"])
    assert run.learner.estimated_groups == ("estimated",)
    assert run.learner.activation == "relu"
    assert run.learner.gamma == 0.97
    assert not hasattr(run.learner, "final_std")


def test_ranks_clone_the_same_bits(tmp_path):
    path = recorded(tmp_path / "a.npz", noise=0.1)
    given = settings(path, rollout_interval=0, gamma=0.8)  # the last 13 steps before a time-out do not count
    alone = threading.Lock()
    torch.set_num_threads(1)

    def work(shards: Shards) -> dict[str, torch.Tensor]:
        class Four(Scripted):
            num_actions = 1

        env = Four(num_envs=4 * shards.count)
        env.observations = {"policy": torch.zeros(4 * shards.count, 4), "critic": torch.zeros(4, 5)}
        env.num_actions = 1
        with alone:  # the initial weights come from a generator that the threads share
            learner = Clone(env, given, seed=3, shards=shards)
        for _ in range(3):
            learner.iterate(env)
        state = learner.state_dict()
        return {f"{key} {n}": x for key in ("latest_actor", "latest_critic") for n, x in state[key].items()}

    one, two = together(4, 1, work), together(4, 2, work)
    for found in two:
        assert all(torch.equal(x, one[0][name]) for name, x in found.items())


REFUSED = [
    (["learner.demonstrations=null"], "learner.demonstrations"),
    (["learner.demonstrations=nowhere.npz"], "nowhere.npz"),
    (["learner.actor_groups=[policy,nothing]"], "nothing"),
    (["learner.estimated_groups=[policy]"], "estimated_groups"),
    (["learner.rnn=gru", "learner.estimated_groups=[critic]"], "rnn=gru"),
    (["learner.symmetry=augment", "learner.rnn=gru"], "symmetry=augment"),
    (["learner.keys.nothing=[policy]"], "learner.keys.nothing"),
    (["task.control_dt=0.05"], "task.control_dt=0.02"),
    (["mode=async"], "learner=clone"),
    (["learner.std=0.01"], "learner.std"),
    (["task=arm_reach"], "a.npz"),
]


@pytest.mark.parametrize(("words", "named"), REFUSED, ids=[named for _, named in REFUSED])
def test_what_does_not_work_is_refused_by_name_and_nothing_is_written(words, named, tmp_path, capsys):
    path = recorded(tmp_path / "a.npz", control_dt=np.float64(0.02))
    given = [
        *SMALL,
        f"learner.demonstrations={path}",
        f"output={tmp_path / 'run'}",
        "max_iterations=1",
        *words,
    ]
    assert main(["train", *given]) == 2
    assert named in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_a_group_to_estimate_that_the_file_lacks_is_refused_by_name(tmp_path, capsys):
    path = recorded(tmp_path / "a.npz", observations__critic=None)
    words = [*SMALL, f"learner.demonstrations={path}", "learner.estimated_groups=[critic]"]
    assert main(["train", *words, f"output={tmp_path / 'run'}"]) == 2
    assert "learner.keys.critic" in capsys.readouterr().err


def test_a_run_ends_with_a_checkpoint_where_the_clone_no_longer_improves(tmp_path, capsys):
    path = recorded(tmp_path / "a.npz", noise=3.0)
    words = [*SMALL, f"learner.demonstrations={path}", "learner.patience=2", "learner.learning_rate=0.02"]
    words += ["learner.rollout_interval=0", "max_iterations=5000", f"output={tmp_path / 'run'}"]
    assert main(["train", *words]) == 0
    iterations = load(tmp_path / "run" / "latest.pt")["iter"]
    assert 3 <= iterations < 5000
    assert f"finished at iteration {iterations}" in capsys.readouterr().out
    starts = json.loads((tmp_path / "run" / "starts.json").read_text())["starts"]
    assert starts[-1]["finished"] == iterations


def test_one_episode_and_what_a_file_lacks_are_noted_once(make_env, tmp_path):
    ends = np.arange(STEPS * EPISODES) == STEPS * EPISODES - 1
    one = recorded(tmp_path / "one.npz", terminated=ends, truncated=~ends & ends)
    env = make_env(CartpoleBalance(), num_envs=4)
    learner = Clone(env, settings(one))
    found = [learner.iterate(env).notes for _ in range(2)]
    read, alone = found[0]
    assert f"1 episodes of {STEPS * EPISODES} steps in all, 0 of them held out" in read
    assert "learner.held_out" in alone
    assert found[1] == []
    two = recorded(tmp_path / "two.npz", rewards=None)
    notes = Clone(env, settings((one, two))).iterate(env).notes
    read, lacking = notes
    assert "the critic is not learned" in read
    assert lacking.startswith("rewards")
    assert "two.npz" in lacking
