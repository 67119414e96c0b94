"""GRPO: how rollouts of a group are compared, that they differ in their actions alone, and that it learns."""

from __future__ import annotations

import pytest
import torch

from robolearn import config
from robolearn.cli import main
from robolearn.core.shards import Shards
from robolearn.errors import ConfigError
from robolearn.learners.grpo.advantage import (
    alive,
    credited,
    group_advantage,
    group_spread,
    returns_to_go,
    weights,
)
from robolearn.learners.grpo.config import GRPOConfig
from robolearn.learners.grpo.grpo import GRPO
from robolearn.learners.losses import clipped_surrogate
from robolearn.learners.policy import Policy
from robolearn.tasks.mdp.context import Random
from robolearn.training import checkpoint
from robolearn.training.build import build_env
from robolearn.training.metrics import read_metrics
from robolearn.training.train import train
from tests.training.ranks.processes import differing, run

CARTPOLE = ["task=cartpole_balance", "learner=grpo", "num_envs=32", "torch_threads=1"]
CARTPOLE += ["learner.actor_hidden=[16]", "learner.minibatch_size=256"]
HUMANOID = ["task=humanoid_walk", "learner=grpo", "num_envs=16", "learner.group_size=4", "torch_threads=1"]
RETURNS = torch.tensor([[1.0, 2.0, 3.0, 6.0, 5.0, 5.0, 5.0, 5.0]])
"""Two groups of 4: mean 3 and variance (4 + 1 + 0 + 9) / 4 = 3.5; no spread."""


def made(words):
    """A learner and its environments."""
    resolved = config.resolve(words)
    env = build_env(resolved, resolved.num_envs, training=True)
    return GRPO(env, resolved.learner, seed=3), env


# ------------------------------------------------------------------------------------ advantages


def test_a_group_is_compared_with_its_mean_and_divided_by_its_spread():
    found = group_advantage(RETURNS, 4, "group", "group")
    assert found[0, :4].tolist() == pytest.approx([x / 3.5**0.5 for x in (-2, -1, 0, 3)])
    assert found[0, 4:].tolist() == [0, 0, 0, 0]


def test_without_the_division_advantages_are_differences_of_returns():
    assert group_advantage(RETURNS, 4, "group", "none").tolist() == [[-2, -1, 0, 3, 0, 0, 0, 0]]


def test_rloo_compares_with_the_mean_of_the_others():
    found = group_advantage(RETURNS, 4, "leave_one_out", "none")
    # 1 - (2 + 3 + 6) / 3, 2 - (1 + 3 + 6) / 3, 3 - 3, 6 - 2.
    assert found[0].tolist() == pytest.approx([-8 / 3, -4 / 3, 0, 4, 0, 0, 0, 0])


def test_reinforce_plus_plus_compares_with_all_and_divides_by_the_spread_of_all():
    found = group_advantage(RETURNS, 4, "batch", "batch")
    # The mean of all is 4, the variance (9 + 4 + 1 + 4 + 4 * 1) / 8 = 2.75.
    assert found[0].tolist() == pytest.approx([x / 2.75**0.5 for x in (-3, -2, -1, 2, 1, 1, 1, 1)])


def test_a_mean_of_the_group_may_be_divided_by_the_spread_of_all():
    found = group_advantage(RETURNS, 4, "group", "batch")
    assert found[0].tolist() == pytest.approx([x / (14 / 8) ** 0.5 for x in (-2, -1, 0, 3, 0, 0, 0, 0)])


@pytest.mark.parametrize("normalize", ["group", "batch", "none"])
@pytest.mark.parametrize("baseline", ["group", "leave_one_out"])
def test_a_group_has_mean_zero_and_one_without_spread_is_zero(baseline, normalize):
    returns = 10 + torch.randn(5, 64, generator=torch.Generator().manual_seed(0))
    # A mean of eight equal numbers such as 0.1 and 1e3 + 0.1 is rounded: what is left must not be divided by itself.
    returns[:, 8:16], returns[:, 16:24] = 0.1, 1e3 + 0.1
    found = group_advantage(returns, 8, baseline, normalize).view(5, 8, 8)
    assert found.mean(dim=-1).abs().max() < 1e-5
    assert not found[:, 1:3].any()
    assert found[:, 0].abs().max() > 0.1


def test_a_group_is_divided_by_its_own_spread_whatever_it_is_compared_with():
    for baseline, common in (("batch", 4.0), ("none", 0.0)):
        found = group_advantage(RETURNS, 4, baseline, "group")
        # The first group is 1, 2, 3, 6, of mean 3 and variance 3.5; in the second all are equal.
        wanted = [(x - common) / 3.5**0.5 for x in (1, 2, 3, 6)] + [0.0] * 4
        assert found[0].tolist() == pytest.approx(wanted)
        # Returns that differ by rounding alone are equal.
        near = torch.tensor([[4.8, 4.8, 4.8, 4.8 + 5e-7]])
        assert not group_advantage(near, 4, baseline, "group").any()


def test_statistics_of_shards_are_those_of_all():
    returns = torch.randn(3, 32, generator=torch.Generator().manual_seed(1))
    for baseline, normalize in (("batch", "batch"), ("group", "batch")):
        one = group_advantage(returns, 4, baseline, normalize)
        many = group_advantage(returns, 4, baseline, normalize, None, Shards(4))
        assert torch.allclose(one, many, atol=1e-6)


def test_the_spread_of_equal_returns_is_zero():
    assert group_spread(RETURNS[0], 4).tolist() == pytest.approx([3.5**0.5, 0])


def test_steps_after_the_end_of_an_episode_count_neither_as_rewards_nor_as_samples():
    reward = torch.tensor([[1.0, 1.0], [2.0, 2.0], [4.0, 4.0]])
    done = torch.tensor([[False, False], [True, False], [False, True]])
    valid = alive(done)
    assert valid.tolist() == [[True, True], [True, True], [False, True]]
    # 1 + 2/2 and 2; 1 + 2/2 + 4/4, 2 + 4/2 and 4.
    assert returns_to_go(reward, valid, 0.5).tolist() == [[2, 3], [2, 4], [0, 4]]
    assert credited(reward, valid, 0.5, "outcome").tolist() == [[2, 3]]
    assert credited(reward, valid, 0.5, "to_go").tolist() == [[2, 3], [2, 4], [0, 4]]


def test_steps_or_rollouts_have_the_same_weight_and_steps_after_the_end_none():
    valid = torch.tensor([[True, True], [False, True], [False, True]])
    # 4 of 6 steps are there: 6 / 4 each; or lengths of 1 and 3, each of 6 / 2 in all.
    assert weights(valid, "step").flatten().tolist() == pytest.approx([1.5, 1.5, 0, 1.5, 0, 1.5])
    assert weights(valid, "rollout").sum(dim=0).tolist() == pytest.approx([3, 3])
    assert weights(valid, "rollout")[:, 1].tolist() == pytest.approx([1, 1, 1])


def test_what_is_left_to_earn_is_compared_at_the_same_step_among_those_that_go_on():
    # Two rollouts earn 1 a step, one ends after a step, one earns 2 a step: at the second step 1, 1 and 2 remain.
    returns = torch.tensor([[2.0, 2.0, 1.0, 4.0], [1.0, 1.0, 0.0, 2.0]])
    valid = torch.tensor([[True] * 4, [True, True, False, True]])
    found = group_advantage(returns, 2, "batch", "none", valid)
    third = 4 / 3
    assert found[0].tolist() == pytest.approx([2 - 9 / 4, 2 - 9 / 4, 1 - 9 / 4, 4 - 9 / 4])
    assert found[1, [0, 1, 3]].tolist() == pytest.approx([1 - third, 1 - third, 2 - third])
    scaled = group_advantage(returns, 2, "batch", "batch", valid)
    assert (scaled.square() * valid).sum() / valid.sum() == pytest.approx(1)


def test_better_actions_may_gain_more_than_worse_ones_lose():
    new, old = torch.tensor([1.5, 0.5]).log(), torch.zeros(2)
    advantage = torch.tensor([1.0, -1.0])
    # Ratios 1.5 and 0.5 are clipped to 1.4 and 0.8: gains 1.4 and min(-0.5, -0.8).
    loss, share = clipped_surrogate(new, old, advantage, 0.2, clip_high=0.4)
    assert (loss.item(), share.item()) == pytest.approx((-(1.4 - 0.8) / 2, 1.0))


# ------------------------------------------------------------------------------------ groups


@pytest.mark.parametrize("seed", [5, [5, 6]], ids=["one generator", "two shards"])
def test_rows_of_a_group_are_drawn_alike_and_groups_differ(seed):
    random = Random(seed, torch.device("cpu"))
    random.group(4, 16)
    for drawn in (random.rand(16, 3), random.randn(16), random.uniform((0.0, 1.0), (1.0, 2.0), 16)):
        grouped = drawn.view(4, 4, -1)
        assert torch.equal(grouped, grouped[:, :1].expand_as(grouped))
        assert len(grouped[:, 0].unique(dim=0)) == 4


def rows_of(env):
    """Everything that an environment is, by name: (N, ...) each."""
    found = env.snapshot()
    rows = {f"state.{name}": x for name, x in found["state"].items() if name != "stats"}
    rows |= {f"backend.{name}": x for name, x in found["backend"].items() if isinstance(x, torch.Tensor)}
    return {name: x for name, x in rows.items() if x.dim() and len(x) == env.num_envs}


def unequal_in_groups(env, size, only=""):
    return [
        name
        for name, x in rows_of(env).items()
        if only in name and not torch.equal(x, x[torch.arange(len(x)) // size * size])
    ]


@pytest.mark.parametrize("steps", [6, 0], ids=["segments", "episodes"])
def test_a_group_starts_with_equal_bits_and_groups_differ(steps):
    learner, env = made([*HUMANOID, f"learner.rollout_steps={steps}", "task.episode_length_s=0.4"])
    for _ in range(2):
        learner.iterate(env)
        assert unequal_in_groups(env, 4, "observations.policy")
        learner.start_together(env)
        assert unequal_in_groups(env, 4) == []
        assert len(rows_of(env)["state.observations.policy"].unique(dim=0)) == 4


def test_with_equal_actions_a_group_stays_equal_through_pushes_commands_and_resets():
    words = [
        *HUMANOID,
        "learner.rollout_steps=6",
        "task.episode_length_s=0.5",
        "task.pushes.seconds=[0.1,0.2]",
    ]
    words += ["task.action_delay=[0,2]", "task.observation_delay=[0,1]"]
    learner, env = made([*words, "task.commands.seconds=[0.1,0.3]"])
    learner.start_together(env)
    random = torch.Generator().manual_seed(0)
    pushed, ended = False, False
    for _ in range(40):
        action = torch.randn(4, env.num_actions, generator=random).repeat_interleave(4, dim=0)
        result = env.step(action)
        pushed, ended = pushed or bool(result.exogenous.any()), ended or bool(result.done.any())
    assert pushed
    assert ended
    assert unequal_in_groups(env, 4) == []


def test_with_other_actions_commands_and_pushes_of_a_group_stay_the_same():
    words = [*HUMANOID, "learner.rollout_steps=6", "task.pushes.seconds=[0.1,0.2]"]
    learner, env = made([*words, "task.commands.seconds=[0.1,0.3]"])
    learner.start_together(env)
    for _ in range(10):
        env.step(torch.randn(16, env.num_actions))
    assert unequal_in_groups(env, 4, "observations.policy")
    for name in ("aim", "command_left", "push_left", "push_time"):
        assert unequal_in_groups(env, 4, f"episode.{name}") == []


def test_a_group_may_start_where_any_of_its_members_was():
    learner, env = made([*CARTPOLE, "learner.rollout_steps=4"])
    first = []
    for _ in range(12):
        learner.iterate(env)
        before = env.observations["policy"].clone()
        learner.start_together(env)
        same = (before[:8] == env.observations["policy"][0]).all(dim=1)
        first.append(int(same.nonzero()[0]))
    assert len(set(first)) > 2


def test_on_a_cpu_only_minibatches_that_valid_steps_fill_are_learned():
    learner, _ = made([*CARTPOLE, "learner.rollout_steps=64", "learner.num_epochs=2"])
    valid = torch.arange(64)[:, None] < torch.randint(
        1, 40, (32,), generator=torch.Generator().manual_seed(0)
    )
    orders, used = learner._orders(valid)
    for (order,) in orders:
        picked = valid.flatten()[order]
        assert picked.sum() == valid.sum() == len(order[picked].unique())  # each of them, once
        assert len(order) % 256 == 0
        assert len(order) - int(valid.sum()) < 256
        assert used == len(order) / valid.numel()
        assert 0 < picked[: len(order) // 2].sum() < picked.sum()  # the others are among them, not at the end
    learner.update.read_at_once = False  # as on a GPU, where sizes do not depend on the data
    orders, used = learner._orders(valid)
    assert used == 1
    assert sorted(orders[0][0].tolist()) == list(range(64 * 32))


def test_whole_episodes_end_when_all_have_ended_and_the_steps_taken_are_counted(tmp_path):
    words = [
        *CARTPOLE,
        "learner.rollout_steps=0",
        "max_iterations=1",
        "task.terminations.pole_down.angle=0.3",
    ]
    folder = train(config.resolve([*words, f"output={tmp_path / 'run'}"]))
    row = read_metrics(folder / "metrics.jsonl")[0]
    assert row["loss/rollout_length"] < 250
    assert row["steps"] % 32 == 0
    assert row["loss/rollout_length"] * 32 < row["steps"] < 500 * 32


# ------------------------------------------------------------------------------------ the update


def test_the_divergence_from_the_reference_has_a_gradient_that_finite_differences_find(trained):
    learner, env = made(
        [*CARTPOLE, "learner.rollout_steps=8", f"learner.reference={trained}", "learner.reference_coef=0.5"]
    )
    learner.iterate(env)
    batch, update = learner.batch, learner.update
    valid = alive(batch.done)
    zero = torch.zeros_like(batch.reward)
    update._tables = update._tables_of(
        batch, zero, torch.ones_like(zero)
    )  # no advantage: the divergence alone
    part = {name: x.double() for name, x in update._tables.items()}
    learner.actor.double()
    update.reference.std = update.reference.std.double()
    update._old_std = update._old_std.double()
    update.coefficient = update.coefficient.double()
    bias = learner.actor.mlp[-1].bias

    def loss() -> torch.Tensor:
        return update.objective(part)[0]

    (found,) = torch.autograd.grad(loss(), [bias])
    with torch.no_grad():
        sides = []
        for step in (1e-5, -1e-5):
            bias += step
            sides.append(loss())
            bias -= step
    assert valid.any()
    assert found.item() != 0
    assert found.item() == pytest.approx(((sides[0] - sides[1]) / 2e-5).item(), rel=1e-4)


def test_the_policy_stays_nearer_to_a_reference_with_a_larger_coefficient(trained, tmp_path):
    found = []
    for coefficient in (0, 10):
        words = [*CARTPOLE, "learner.rollout_steps=16", f"learner.reference={trained}", "max_iterations=6"]
        words += ["learner.actor_hidden=[8]", f"weights={trained}"]
        folder = train(
            config.resolve(
                [*words, f"learner.reference_coef={coefficient}", f"output={tmp_path / str(coefficient)}"]
            )
        )
        found.append(read_metrics(folder / "metrics.jsonl")[-1]["loss/reference_kl"])
    assert 0 <= found[1] < found[0] / 2


# ------------------------------------------------------------------------------------ a run


@pytest.mark.parametrize("steps", [16, 0], ids=["segments", "episodes"])
def test_a_resumed_run_has_the_bits_of_one_that_was_not_stopped(steps, tmp_path):
    words = [*CARTPOLE, f"learner.rollout_steps={steps}", "task.episode_length_s=1.0"]
    straight = train(config.resolve([*words, "max_iterations=4", f"output={tmp_path / 'straight'}"]))
    stopped = tmp_path / "stopped"
    train(config.resolve([*words, "max_iterations=2", f"output={stopped}"]))
    assert main(["train", f"resume={stopped}", "max_iterations=4"]) == 0
    assert differing(straight, stopped) == []


@pytest.mark.slow
def test_ranks_give_the_same_bits(tmp_path):
    words = [
        "task=humanoid_walk",
        "learner=grpo",
        "num_envs=64",
        "learner.group_size=4",
        "learner.rollout_steps=8",
    ]
    for ranks in (1, 2):
        assert run(tmp_path / str(ranks), *words, "max_iterations=3", f"ranks={ranks}") == 0
    assert differing(tmp_path / "1", tmp_path / "2") == []


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["num_envs=30"], "num_envs=30"),
        (["num_envs=32", "ranks=1", "shards=8"], "shards"),
        (["learner.group_size=1"], "group_size=1"),
        (["learner.rnn=gru"], "learner.rnn"),
        (["learner.reference_kl=0.1", "learner.reference_coef=0"], "reference_coef=0"),
    ],
)
def test_settings_that_do_not_fit_are_refused_by_name(words, named, tmp_path, capsys):
    assert main(["train", *CARTPOLE, *words, "max_iterations=1", f"output={tmp_path / 'run'}"]) == 2
    assert named in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_environments_that_cannot_be_restored_are_refused(tmp_path, capsys):
    words = ["task=gymnasium:Pendulum-v1", "learner=grpo", "num_envs=8", "max_iterations=1"]
    assert main(["train", *words, f"output={tmp_path / 'run'}"]) == 2
    assert "learner=grpo" in capsys.readouterr().err


def test_a_policy_of_ppo_is_a_start_and_acts_as_it_did_there():
    words = [*HUMANOID, "task.history.policy=1", "learner.rollout_steps=4"]
    learner, env = made(words)
    checkpoint.start_with("pretrained:humanoid_walk", learner)
    saved = Policy.load("pretrained:humanoid_walk")
    seen = {name: env.observations[name] for name in saved.spec.inputs}
    # Its weights are made symmetric to the bit, which those of the checkpoint are to rounding.
    assert (learner.policy.act(seen) - saved.act(seen)).abs().max() < 0.05
    report = learner.iterate(env)
    assert report.losses["gradient_steps"] > 0
    assert "estimate" in report.losses


@pytest.mark.slow
def test_cartpole_learns_to_balance(tmp_path):
    words = [
        "task=cartpole_balance",
        "learner=grpo",
        "num_envs=128",
        "learner.rollout_steps=32",
        "torch_threads=1",
    ]
    words += ["learner.minibatch_size=512", "max_iterations=40"]
    folder = train(config.resolve([*words, f"output={tmp_path / 'run'}"]))
    rows = read_metrics(folder / "metrics.jsonl")
    # About three times as long in the end, on one processor a little less; without learning as long as before.
    assert rows[-1]["episode/length"] > 2 * rows[1]["episode/length"]
    assert main(["eval", str(folder), "--episodes", "16"]) == 0


def test_one_group_of_all_environments_trains(tmp_path):
    words = [*CARTPOLE, "num_envs=8", "learner.rollout_steps=8", "max_iterations=2"]
    folder = train(config.resolve([*words, f"output={tmp_path / 'run'}"]))
    assert read_metrics(folder / "metrics.jsonl")[-1]["steps"] == 2 * 64


def test_numbers_that_are_not_drawn_for_each_environment_are_drawn_as_usual():
    random = Random(5, torch.device("cpu"))
    random.group(4, 16)
    assert len(random.rand(3).unique()) == 3


def test_memory_is_measured_with_whole_groups(monkeypatch):
    built = []

    def probe(run, num_envs):
        built.append(num_envs)
        raise ConfigError("measured")

    monkeypatch.setattr("robolearn.training.train._probe", probe)
    monkeypatch.setattr("robolearn.training.host_memory.free_bytes", lambda device: 1)
    with pytest.raises(ConfigError, match="measured"):
        train(config.resolve([*CARTPOLE, "max_iterations=1"]))
    assert built == [8]


@pytest.mark.parametrize("learner", ["grpo", "ppo"])
def test_weights_of_another_activation_are_refused_by_name(learner, tmp_path):
    words = ["task=humanoid_walk", f"learner={learner}", "num_envs=16", "weights=pretrained:humanoid_walk"]
    words += ["learner.activation=elu", "max_iterations=1", "torch_threads=1", f"output={tmp_path / 'run'}"]
    with pytest.raises(ConfigError, match=r"learner\.activation"):
        train(config.resolve(words))


def test_ppo_names_the_critic_that_a_run_of_grpo_lacks(tmp_path):
    words = [*CARTPOLE, "learner.rollout_steps=4", "max_iterations=1", f"output={tmp_path / 'run'}"]
    folder = train(config.resolve(words))
    more = ["task=cartpole_balance", "num_envs=16", "learner.actor_hidden=[16]", f"weights={folder}"]
    with pytest.raises(ConfigError, match="critic"):
        train(config.resolve([*more, "torch_threads=1", f"output={tmp_path / 'ppo'}"]))


def test_an_older_checkpoint_of_the_learner_names_what_is_missing(tmp_path):
    learner, _ = made([*CARTPOLE, "learner.rollout_steps=4"])
    with pytest.raises(ConfigError, match="actor_state_dict"):
        checkpoint.restore({"iter": 1, "infos": None}, learner, None)


def test_a_batch_is_an_episode_long_where_no_steps_are_given():
    learner, env = made([*CARTPOLE, "task.episode_length_s=0.6", "learner.rollout_steps=0"])
    assert len(learner.batch.reward) == env.max_episode_steps
    assert GRPOConfig().rollout_steps == 48
