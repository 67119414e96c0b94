"""Several policies in one simulation: whose rows each learns from, saving, resuming, evaluation, export, refusals."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import onnx
import pytest
import torch

from robolearn import config
from robolearn.cli import main
from robolearn.errors import ConfigError
from robolearn.export.driver import BundleDriver, config_of
from robolearn.learners.policy import Policy, PolicySpec
from robolearn.learners.ppo.ppo import PPO
from robolearn.learners.several import Several
from robolearn.learners.team import Team, TeamRunner, put_rows, rows_of
from robolearn.training import checkpoint
from robolearn.training.build import build_env, build_external
from robolearn.training.guard.remedies import _smaller_steps, scaled
from robolearn.training.runs import load_policy, open_run
from robolearn.training.train import make_learner, train

TWO = "learner.policies={robot: front, partner: back}"
TINY = ["task=carry", "num_envs=16", "torch_threads=1", "learner.minibatch_size=384"]
QUICK = ["--starts", "4", "--seconds", "0.4", "--measure-seconds", "0"]
SPREAD = [
    "task=pettingzoo:mpe2.simple_spread_v3",
    "num_envs=4",
    "learner.policies={agent_0: a, agent_1: b, agent_2: a}",
]


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> Path:
    """Two iterations of two policies."""
    folder = tmp_path_factory.mktemp("several") / "run"
    return train(config.resolve([*TINY, TWO, "max_iterations=2", f"output={folder}"]))


def made(*words: str):
    run = config.resolve([*TINY, *words])
    env = build_env(run, run.num_envs, training=True)
    return env, make_learner(run, env)


def weights(folder: Path) -> dict[str, torch.Tensor]:
    """The networks' weights of the newest checkpoint, by the name of the policy's learner and their own."""
    content = checkpoint.load(folder / "latest.pt")
    return {
        f"{key}/{name}": value
        for key, state in content.items()
        if key.endswith(("actor_state_dict", "critic_state_dict"))
        for name, value in state.items()
    }


def linear(weight: float) -> Policy:
    """A policy of one input and one action, whose action is about `weight` at an observation of 1."""
    policy = Policy(spec := PolicySpec({"policy": 1}, 1, (1,), "relu"), spec.build())
    with torch.no_grad():
        for parameter in policy.actor.mlp.parameters():
            parameter.fill_(1.0 if parameter.dim() > 1 else 0.0)
        policy.actor.mlp[-1].weight.fill_(weight)
    return policy.eval()


# ---------------------------------------------------------------------- rows


def test_rows_of_chosen_agents_are_taken_from_each_world_and_put_back():
    # Two worlds of three agents; the first and the last have the policy.
    rows = torch.tensor([[0.0], [1.0], [2.0], [10.0], [11.0], [12.0]])
    mine = rows_of(rows, 3, [0, 2])
    assert mine.flatten().tolist() == [0.0, 2.0, 10.0, 12.0]
    put_rows(rows, -mine - 1, 3, [0, 2])
    assert rows.flatten().tolist() == [-1.0, 1.0, -3.0, -11.0, 11.0, -13.0]


def test_each_agent_acts_by_its_own_policy():
    team = Team({"a": linear(2.0), "b": linear(5.0)}, {"x": "a", "y": "b", "z": "a"})
    act = TeamRunner(Team.from_checkpoint({"policy": team.entry()}))
    # An untrained normalizer divides by 1 + 0.01.
    seen = {"policy": torch.full((6, 1), 1.01)}
    assert act(seen).flatten().tolist() == pytest.approx([2, 5, 2, 2, 5, 2])


def test_a_policy_learns_from_the_rows_of_its_agents():
    env, learner = made(TWO)
    before = env.observations["policy"].clone()
    learner.iterate(env)
    front, back = (learner.learners[name].batch for name in ("front", "back"))
    assert torch.equal(front.observations["policy"][0], before[::2])
    assert torch.equal(back.observations["policy"][0], before[1::2])
    assert torch.equal(front.observations["critic"][-1], env.observations["critic"][::2])
    env.close()


def test_the_other_policys_reward_changes_nothing_but_what_it_does(monkeypatch):
    """Of two equal worlds, one pays the agents of `back` more: `front` learns the same in the first iteration."""
    found = []
    for factor in (1.0, 3.0):
        env, learner = made(TWO)
        record = learner.learners["back"].batch.record

        def scaled(t, result, factor=factor, record=record):
            result.reward.mul_(factor)
            record(t, result)

        monkeypatch.setattr(learner.learners["back"].batch, "record", scaled)
        learner.iterate(env)
        found.append({k: v.clone() for k, v in learner.learners["front"].actor.state_dict().items()})
        found.append({k: v.clone() for k, v in learner.learners["back"].critic.state_dict().items()})
        env.close()
    assert all(torch.equal(found[0][key], found[2][key]) for key in found[0])
    assert not all(torch.equal(found[1][key], found[3][key]) for key in found[1])


def test_one_name_for_all_agents_is_the_policy_that_they_share_bit_for_bit(tmp_path):
    for name, words in (("shared", []), ("named", ["learner.policies={robot: a, partner: a}"])):
        train(config.resolve([*TINY, *words, "max_iterations=2", f"output={tmp_path / name}"]))
    shared, named = weights(tmp_path / "shared"), weights(tmp_path / "named")
    assert {f"a.{key}" for key in shared} == set(named)
    assert all(torch.equal(value, named[f"a.{key}"]) for key, value in shared.items())


def test_agents_of_a_policy_may_be_more_than_those_of_another():
    small = ["learner.num_epochs=1", "learner.actor_hidden=[8]", "learner.critic_hidden=[8]"]
    run = config.resolve([*SPREAD, *small, "learner.num_steps=0"])
    env = build_external(run, run.num_envs)
    learner = make_learner(run, env)
    assert isinstance(learner, Several)
    assert {name: each.num_envs for name, each in learner.envs.items()} == {"a": 8, "b": 4}
    report = learner.iterate(env)
    # 12 environments: 256 / sqrt(12) = 73.9 steps of each, for both policies.
    assert report.steps == 12 * 74
    assert {"value/a", "value/b"} <= set(report.losses)
    assert report.losses["value"] == pytest.approx((report.losses["value/a"] + report.losses["value/b"]) / 2)
    env.close()


# ---------------------------------------------------------------------- the value of a team


def test_agents_of_a_team_have_the_mean_of_their_rewards_and_values():
    alone, team = made(), made("learner.team_value=true")
    for env, learner in (alone, team):
        learner.collect(env)
    (value, reward), (joint_value, joint_reward) = alone[1]._evaluate(), team[1]._evaluate()
    assert not torch.equal(value[:, ::2], value[:, 1::2])
    for own, joint in ((value, joint_value), (reward, joint_reward)):
        assert torch.equal(joint[:, ::2], (own[:, ::2] + own[:, 1::2]) / 2)
        assert torch.equal(joint[:, ::2], joint[:, 1::2])
    for env, _ in (alone, team):
        env.close()


def test_a_team_learns_one_advantage():
    env, learner = made("learner.team_value=true")
    learner.iterate(env)
    _, advantage, returns = learner._estimates()
    assert torch.equal(advantage[:, ::2], advantage[:, 1::2])
    assert torch.equal(returns[:, ::2], returns[:, 1::2])
    env.close()


# ---------------------------------------------------------------------- saving, resuming


def test_a_run_with_several_policies_resumes_bit_for_bit(tmp_path, trained):
    shutil.copytree(trained, tmp_path / "run")
    train(config.resolve([*TINY, TWO, "max_iterations=4", f"output={tmp_path / 'straight'}"]))
    assert main(["train", f"resume={tmp_path / 'run'}", "max_iterations=4"]) == 0
    straight, resumed = weights(tmp_path / "straight"), weights(tmp_path / "run")
    assert all(torch.equal(value, resumed[key]) for key, value in straight.items())
    assert "front.actor_state_dict/mlp.0.weight" in straight


def test_each_policy_may_start_from_a_run_with_one(tmp_path, trained):
    folder = tmp_path / "one"
    train(config.resolve([*TINY, "max_iterations=1", f"output={folder}"]))
    env, learner = made(TWO)
    checkpoint.start_with(str(folder), learner)
    one = weights(folder)["actor_state_dict/mlp.0.weight"]
    for each in learner.learners.values():
        assert torch.equal(each.actor.mlp[0].weight, one)
    env.close()


def test_policies_of_other_names_are_refused(tmp_path, trained, capsys):
    words = [*TINY, "learner.policies={robot: left, partner: back}", f"weights={trained}"]
    assert main(["train", *words, f"output={tmp_path / 'run'}"]) == 2
    said = capsys.readouterr().err
    assert all(name in said for name in ("learner.policies", "front", "left", "back"))


def test_a_single_policy_does_not_start_from_several(tmp_path, trained, capsys):
    assert main(["train", *TINY, f"weights={trained}", f"output={tmp_path / 'run'}"]) == 2
    assert "learner.policies" in capsys.readouterr().err


def test_the_policies_are_evaluated_together(trained, tmp_path):
    assert main(["eval", str(trained), "--episodes", "8", "--output", str(tmp_path)]) == 0
    assert json.loads((tmp_path / "metrics.json").read_text())["episodes"] == 16


# ---------------------------------------------------------------------- export


@pytest.mark.slow
def test_each_policy_is_exported_to_a_bundle_and_a_file_says_whose(trained, tmp_path):
    out = tmp_path / "team"
    assert main(["export", str(trained), *QUICK, "--output", str(out)]) == 0
    said = json.loads((out / "team.json").read_text())
    assert said["policies"] == {"front": "front/", "back": "back/"}
    assert said["agents"] == {"robot": "front", "partner": "back"}
    content = checkpoint.load(trained / "latest.pt")
    for name in ("front", "back"):
        manifest = json.loads((out / name / "manifest.json").read_text())
        assert manifest["run"]["policy"] == name
        graph = onnx.load(out / name / "policy.onnx").graph
        found = [onnx.numpy_helper.to_array(tensor) for tensor in graph.initializer]
        bias = content[f"{name}.actor_state_dict"]["mlp.2.bias"].numpy()
        assert any(array.shape == bias.shape and (array == bias).all() for array in found)
        assert sorted(path.name for path in out.iterdir()) == ["back", "front", "team.json"]
    # The same folder again: the bundles are replaced.
    assert main(["export", str(trained), *QUICK, "--output", str(out)]) == 0


def test_one_of_the_policies_is_exported_alone_and_does_not_drive_all_agents(trained, tmp_path, capsys):
    out = tmp_path / "back"
    assert main(["export", str(trained), *QUICK, "--policy", "back", "--output", str(out)]) == 0
    assert json.loads((out / "manifest.json").read_text())["run"]["policy"] == "back"
    env = build_env(config_of(out), 1)
    with pytest.raises(ConfigError, match="back"):
        BundleDriver(out, env)
    env.close()
    capsys.readouterr()
    assert main(["export", str(trained), *QUICK, "--policy", "bak"]) == 2
    assert "bak" in capsys.readouterr().err


def test_a_folder_with_other_files_is_not_replaced_by_a_team(trained, tmp_path, capsys):
    out = tmp_path / "team"
    out.mkdir()
    (out / "notes.txt").write_text("mine")
    assert main(["export", str(trained), *QUICK, "--output", str(out)]) == 2
    assert (out / "notes.txt").read_text() == "mine"
    (out / "team.json").write_text(json.dumps({"policies": {"front": "front/"}}))
    assert main(["export", str(trained), *QUICK, "--output", str(out)]) == 2
    assert "notes.txt" in capsys.readouterr().err
    assert (out / "notes.txt").read_text() == "mine"


def test_weights_of_one_policy_that_are_not_finite_are_refused_by_name(trained, tmp_path, capsys):
    run = shutil.copytree(trained, tmp_path / "run")
    content = checkpoint.load(run / "latest.pt")
    content["policy"]["policies"]["back"]["state"]["actor.mlp.0.bias"][0] = float("nan")
    torch.save(content, run / "latest.pt")
    assert main(["export", str(run), *QUICK, "--output", str(tmp_path / "out")]) == 2
    assert "back.actor.mlp.0.bias" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_a_policy_of_a_run_with_one_has_no_name(tmp_path, capsys):
    train(config.resolve([*TINY, "max_iterations=1", f"output={tmp_path / 'run'}"]))
    assert main(["export", str(tmp_path / "run"), *QUICK, "--policy", "a"]) == 2
    assert "--policy" in capsys.readouterr().err


# ---------------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    ("words", "named"),
    [
        ([*TINY, "learner.policies={robot: a}"], "partner"),
        ([*TINY, "learner.policies={robot: a, partnr: b}"], "partnr"),
        ([*TINY, "learner.policies={robot: a, partner: 'b.c'}"], "policies.partner"),
        ([*TINY, TWO, "learner.preferences=somewhere"], "learner.preferences"),
        (["task=cartpole_balance", "num_envs=4", "learner.policies={robot: a}"], "learner.policies"),
        (["task=cartpole_balance", "num_envs=4", "learner.team_value=true"], "learner.team_value"),
        ([*TINY, TWO, "learner.team_value=true"], "learner.team_value"),
        ([*SPREAD[:2], "learner.team_value=true"], "task.ends_together"),
        ([*SPREAD, "guard=on"], "learner.policies"),
        (["task=sumo", "num_envs=16", "guard=on"], "learner.self_play"),
        (["task=sumo", "num_envs=16", "learner.noise_correlation=0.5"], "noise_correlation"),
        ([*TINY, "learner.team_value=true", "learner.clip_value_loss=true"], "clip_value_loss"),
        (["task=sumo", "num_envs=16", "learner.team_value=true"], "team_value"),
        (["task=sumo", "num_envs=16", "learner.policies={robot: a, opponent: b}"], "policies"),
    ],
)
def test_what_does_not_fit_is_refused_by_name(words, named, tmp_path, capsys):
    assert main(["train", *words, f"output={tmp_path / 'run'}"]) == 2
    lines = capsys.readouterr().err.strip().splitlines()
    assert len(lines) == 1
    assert named in lines[0]
    assert not (tmp_path / "run").exists()


def test_several_policies_of_a_third_party_environment_are_not_exported(tmp_path, capsys):
    train(config.resolve([*SPREAD, "max_iterations=1", f"output={tmp_path / 'run'}"]))
    assert main(["export", str(tmp_path / "run"), *QUICK]) == 2
    assert "learner.policies" in capsys.readouterr().err


def test_a_run_with_several_policies_is_no_reference(trained, capsys, tmp_path):
    words = [*TINY, f"learner.reference={trained}", f"output={tmp_path / 'run'}"]
    assert main(["train", *words]) == 2
    assert "front" in capsys.readouterr().err


def test_a_learner_of_several_policies_is_made_of_ppos():
    env, learner = made(TWO)
    assert [type(each) for each in learner.learners.values()] == [PPO, PPO]
    assert learner.learners["front"].random is not learner.learners["back"].random
    env.close()


def test_policies_that_start_from_a_run_with_one_explore_with_numbers_of_their_own(tmp_path):
    folder = tmp_path / "one"
    train(config.resolve([*TINY, "max_iterations=1", "learner.noise_correlation=0.5", f"output={folder}"]))
    env, learner = made(TWO, "learner.noise_correlation=0.5")
    content = checkpoint.load(folder / "latest.pt")
    checkpoint.restore(content, learner, env, ["learner.policies.robot", "learner.policies.partner"])
    front, back = (learner.learners[name].random.state() for name in ("front", "back"))
    assert not torch.equal(front, back)
    learner.iterate(env)
    env.close()


def test_a_run_goes_on_with_its_agents_grouped_otherwise(trained, tmp_path):
    words = [*TINY, TWO, "learner.noise_correlation=0.5", "max_iterations=1", f"output={tmp_path / 'run'}"]
    train(config.resolve(words))
    again = [
        "learner.policies={robot: front, partner: front}",
        "max_iterations=2",
        f"output={tmp_path / 'more'}",
    ]
    assert main(["train", f"resume={tmp_path / 'run'}", *again]) == 0


def test_the_policies_of_another_number_of_agents_are_refused_by_their_names(trained):
    act = load_policy(open_run(str(trained)))
    with pytest.raises(ConfigError, match="partner"):
        act({"policy": torch.zeros(3, 10)})


def test_smaller_steps_of_the_guard_are_those_of_each_policy_and_need_no_reference(trained):
    run = config.resolve([*TINY, TWO])
    remedy = _smaller_steps(run, trained / "latest.pt")
    assert not any("reference" in word for word in remedy.words)
    content = {"front.learning_rate": 0.004, "back.learning_rate": 0.002, "iter": 3}
    found = scaled(content, remedy.words, [], 0)
    assert found == {"front.learning_rate": 0.002, "back.learning_rate": 0.001}


def test_a_reference_with_other_units_is_refused_with_several_policies_too(tmp_path, capsys):
    folder = tmp_path / "one"
    train(config.resolve([*TINY, "max_iterations=1", f"output={folder}"]))
    words = [*TINY, TWO, f"learner.reference={folder}", "task.drive_scale=2", f"output={tmp_path / 'run'}"]
    assert main(["train", *words]) == 2
    assert "scale" in capsys.readouterr().err


def test_a_checkpoint_whose_agents_and_policies_do_not_fit_is_refused_by_name(trained, tmp_path, capsys):
    run = shutil.copytree(trained, tmp_path / "run")
    content = checkpoint.load(run / "latest.pt")
    del content["policy"]["policies"]["back"]
    torch.save(content, run / "latest.pt")
    assert main(["eval", str(run), "--episodes", "4"]) == 2
    assert "policies" in capsys.readouterr().err


class Mine(PPO):
    """An algorithm of a user's own, of which `learner.policies` would make plain PPO."""


def test_several_policies_of_another_learner_are_refused_by_name(tmp_path, capsys):
    words = [*TINY, f"learner={__file__}:Mine", TWO, f"output={tmp_path / 'run'}"]
    assert main(["train", *words]) == 2
    assert "learner.policies" in capsys.readouterr().err
