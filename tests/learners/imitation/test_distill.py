"""Distillation: its loss, who acts, what the teacher sees, what is saved, and what is refused."""

from __future__ import annotations

import math
import subprocess
import sys

import pytest
import torch

from robolearn import config
from robolearn.cli import main
from robolearn.core.shards import Shards
from robolearn.errors import ConfigError
from robolearn.learners.distill.config import DistillConfig
from robolearn.learners.distill.distill import Distill
from robolearn.learners.imitation.losses import divergence_from
from robolearn.learners.losses import divergence
from robolearn.learners.networks import deviation
from robolearn.learners.policy import Policy, PolicyRunner
from robolearn.learners.saved import load
from robolearn.tasks.cartpole import CartpoleBalance
from robolearn.training.train import train

SMALL = ["task=cartpole_balance", "num_envs=16", "torch_threads=1", "learner.num_steps=8"]
SMALL += ["learner.minibatch_size=64", "learner.precision=fp32", "learner.symmetry=none"]


@pytest.fixture(scope="module")
def teachers(tmp_path_factory):
    """Runs of a few iterations by name; the actor observes the critic's group, that of "plain" the policy's."""
    folder, out = tmp_path_factory.mktemp("teachers"), {}
    for name, group, rnn in (
        ("none", "critic", "none"),
        ("gru", "critic", "gru"),
        ("plain", "policy", "none"),
    ):
        words = [*SMALL, f"learner.actor_groups=[{group}]", f"learner.rnn={rnn}", "max_iterations=3"]
        out[name] = str(train(config.resolve([*words, f"output={folder / name}"])))
    return out


def settings(teacher: str, **more: object) -> DistillConfig:
    usual = {"num_steps": 8, "minibatch_size": 64, "precision": "fp32", "symmetry": "none", "num_epochs": 4}
    return DistillConfig(teacher=teacher, **{**usual, **more})


def test_the_divergence_is_that_of_the_student_from_the_teacher():
    teacher, mean = torch.tensor([[0.0, 0.0], [2.0, 0.0]]), torch.tensor([[1.0, 0.0], [2.0, 0.0]])
    teacher_std, std = torch.tensor([1.0, 2.0]), torch.tensor([2.0, 2.0])
    found = divergence_from(teacher, teacher_std, mean, std)
    # log(2 / 1) + (1 + 1) / (2 * 4) - 1/2 in the first column of the first sample, where the second has no distance.
    assert found.tolist() == pytest.approx([math.log(2) + 0.25 - 0.5, math.log(2) + 0.125 - 0.5])
    assert found.mean().item() == pytest.approx(divergence(teacher, teacher_std, mean, std).item())


def test_the_divergence_has_the_gradient_of_finite_differences():
    random = torch.Generator().manual_seed(0)
    teacher = torch.randn(4, 3, dtype=torch.float64, generator=random)
    mean = torch.zeros(4, 3, dtype=torch.float64, requires_grad=True)
    std = torch.tensor([0.4, 0.5, 0.9], dtype=torch.float64, requires_grad=True)
    fixed = torch.full((3,), 0.7, dtype=torch.float64)
    assert torch.autograd.gradcheck(lambda m, s: divergence_from(teacher, fixed, m, s), (mean, std))


@pytest.mark.parametrize("loss", ["kl", "mse"])
def test_a_student_comes_to_act_as_its_teacher(loss, make_env, teachers):
    env = make_env(CartpoleBalance(), num_envs=16)
    learner = Distill(env, settings(teachers["plain"], loss=loss, learning_rate=3e-3))
    # A teacher of a few iterations hardly acts yet.
    learner.teacher.policy.actor.mlp[-1].weight.mul_(30)
    errors = [learner.iterate(env).losses["error"] for _ in range(40)]
    assert errors[-1] < 0.1 * errors[0]
    assert learner.policy.spec.inputs == {"policy": 4}
    teacher = Policy.load(teachers["plain"]).actor.distribution.std_param
    std = learner.policy.actor.distribution.std_param
    if loss == "mse":
        assert std.tolist() == pytest.approx([0.2])  # as it is set
    else:
        assert abs(float(std.detach()) - float(teacher)) < abs(0.2 - float(teacher))


@pytest.mark.parametrize(("beta", "share"), [(1.0, 1.0), (0.0, 0.0), (0.5, 0.5)])
def test_the_teacher_acts_in_the_stated_share_of_the_steps(beta, share, make_env, teachers):
    env = make_env(CartpoleBalance(), num_envs=64)
    learner = Distill(env, settings(teachers["none"], beta=beta, beta_decay=0.5))
    taken = learner._act(env.observations, 0)
    by_teacher = (taken == learner.labels[0]).all(dim=1)
    assert float(by_teacher.float().mean()) == pytest.approx(share, abs=0.2)
    assert torch.equal(taken[~by_teacher], learner.batch.action[0][~by_teacher])
    learner.iteration = 3
    assert learner.beta == beta / 8


def test_labels_are_what_the_teacher_does_with_its_own_observations(make_env, teachers):
    env = make_env(CartpoleBalance(), num_envs=16)
    learner = Distill(env, settings(teachers["none"]))
    learner._act(env.observations, 2)
    wanted = Policy.load(teachers["none"]).act({"critic": env.observations["critic"]})
    assert torch.equal(learner.labels[2], wanted)


def test_the_teacher_computes_each_shard_by_itself(make_env, teachers):
    # Other numbers of rows may round in another way, and two ranks have half of those of one.
    env = make_env(CartpoleBalance(), num_envs=16)
    learner = Distill(env, settings(teachers["none"]), shards=Shards(4))
    seen = []
    learner.teacher.policy.actor.mlp.register_forward_pre_hook(lambda _, inputs: seen.append(len(inputs[0])))
    learner._act(env.observations, 0)
    assert seen == [4, 4, 4, 4]
    whole = Policy.load(teachers["none"]).act(env.observations)
    assert torch.allclose(learner.labels[0], whole, atol=1e-6)


@pytest.mark.parametrize("shards", [1, 4])
def test_a_recurrent_teacher_sees_every_step_and_forgets_at_the_end_of_an_episode(shards, make_env, teachers):
    env = make_env(CartpoleBalance(), num_envs=16)
    learner = Distill(env, settings(teachers["gru"]), shards=Shards(shards))
    runner = PolicyRunner(Policy.load(teachers["gru"]))
    ended = torch.zeros(16, dtype=torch.bool)
    ended[3] = True
    for t in range(3):
        learner._act(env.observations, t)
        assert torch.allclose(learner.labels[t], runner(env.observations), atol=1e-6)
        done = env.step(learner.labels[t]).done | ended
        learner._ended(done)
        runner.reset(done)
        assert not learner.teacher.state[0][:, 3].any()
        assert learner.teacher.state[0].any()
        assert torch.allclose(learner.teacher.state[0], runner.state[0], atol=1e-6)
        learner.teacher.restore(learner.teacher.state)


def test_a_symmetric_student_is_refused_where_the_task_is_not(make_env, teachers):
    with pytest.raises(ConfigError, match="symmetry=equivariant"):
        Distill(make_env(CartpoleBalance(), num_envs=4), settings(teachers["none"], symmetry="equivariant"))


@pytest.mark.parametrize("words", [[], ["learner.rnn=lstm"], ["learner.estimated_groups=[critic]"], ["gru"]])
def test_a_resumed_distillation_goes_on_bit_for_bit(words, tmp_path, teachers):
    teacher = teachers["gru" if words == ["gru"] else "none"]
    base = [*SMALL, "learner=distill", f"learner.teacher={teacher}", *(w for w in words if w != "gru")]
    whole = train(config.resolve([*base, "max_iterations=5", f"output={tmp_path / 'whole'}"]))
    train(config.resolve([*base, "max_iterations=2", f"output={tmp_path / 'half'}"]))
    again = [f"resume={tmp_path / 'half'}", "max_iterations=5"]
    half = train(config.resolve(again), config.resume_changes(again, config.resolve(again)))
    one, two = (load(folder / "latest.pt") for folder in (whole, half))
    assert all(torch.equal(x, two["actor_state_dict"][name]) for name, x in one["actor_state_dict"].items())
    assert torch.equal(one["random"], two["random"])
    assert ("teacher_memory" in one) == (words == ["gru"])


REFUSED = [
    ([], "learner.teacher"),
    (["learner.teacher=nowhere"], "nowhere"),
    (["learner.teacher=pretrained:humanoid_walk"], "pretrained:humanoid_walk"),
    (["learner.teacher={none}", "mode=async"], "learner=distill"),
    (["learner.teacher={none}", "learner.actor_groups=[nothing]"], "nothing"),
    (["learner.teacher={none}", "learner.beta=2"], "learner.beta"),
    (["learner.teacher={none}", "task=gymnasium:Pendulum-v1"], "critic"),
]


@pytest.mark.parametrize(("words", "named"), REFUSED, ids=range(len(REFUSED)))
def test_what_does_not_work_is_refused_by_name_and_nothing_is_written(
    words, named, tmp_path, teachers, capsys
):
    given = [*SMALL, "learner=distill", f"output={tmp_path / 'run'}", "max_iterations=1"]
    assert main(["train", *given, *(word.format(**teachers) for word in words)]) == 2
    assert named in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_ranks_distill_the_same_bits(tmp_path, teachers):
    found = []
    for ranks in (1, 2):
        words = [
            *SMALL,
            "shards=4",
            f"ranks={ranks}",
            "learner=distill",
            f"learner.teacher={teachers['none']}",
        ]
        words += ["max_iterations=2", f"output={tmp_path / str(ranks)}"]
        # A process of its own: it starts the ranks.
        subprocess.run([sys.executable, "-m", "robolearn.cli", "train", *words], check=True)
        found.append(load(tmp_path / str(ranks) / "latest.pt")["actor_state_dict"])
    assert all(torch.equal(x, found[1][name]) for name, x in found[0].items())


def test_the_standard_deviation_is_saved_for_ppo(make_env, teachers):
    env = make_env(CartpoleBalance(), num_envs=4)
    learner = Distill(env, settings(teachers["none"], std=0.4))
    learner.iterate(env)
    assert float(deviation(learner.actor).detach()) >= 0.4
