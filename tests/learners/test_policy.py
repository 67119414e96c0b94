"""Policy: loads without its learner, an Env or a simulator, and takes observation groups by name."""

from __future__ import annotations

import shutil
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

import numpy as np
import onnxruntime
import pytest
import torch

from robolearn import config
from robolearn.cli import main
from robolearn.config import yaml_file
from robolearn.errors import ConfigError
from robolearn.export.onnx.graph import build_graph
from robolearn.learners import saved
from robolearn.learners.learner import Report
from robolearn.learners.policy import Policy, PolicyRunner, PolicySpec
from robolearn.learners.ppo.config import PPOConfig
from robolearn.learners.ppo.ppo import PPO
from robolearn.learners.team import Team
from robolearn.tasks.cartpole import CartpoleBalance
from robolearn.tasks.humanoid_walk import HumanoidWalk
from robolearn.training import checkpoint
from robolearn.training.runs import load_policy, open_run
from robolearn.training.train import train

SMALL = PPOConfig(num_steps=4, actor_hidden=(8,), critic_hidden=(8,))


def made(spec: PolicySpec) -> Policy:
    return Policy(spec, spec.build())


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run") / "run"
    words = ["task=cartpole_balance", "num_envs=8", "learner.num_steps=4", "max_iterations=1"]
    train(config.resolve([*words, f"output={folder}"]))
    return folder


@pytest.mark.slow
def test_a_policy_loads_where_no_simulator_can_be_imported(run):
    code = """
import sys
for name in ("mujoco", "mujoco.batch", "mujoco_warp", "warp", "newton", "mjbatch", "isaaclab"):
    sys.modules[name] = None  # importing it raises ImportError
from robolearn.learners.policy import Policy
import torch
policy = Policy.load(sys.argv[1])
assert policy.act({"policy": torch.zeros(3, 4)}).shape == (3, 1)
assert Policy.load("pretrained:humanoid_walk").spec.actions == 21
"""
    subprocess.run([sys.executable, "-c", code, str(run)], check=True)


def test_a_loaded_policy_acts_as_the_saved_learner(make_env, tmp_path):
    env = make_env(HumanoidWalk(), num_envs=8)
    learner = PPO(env, SMALL)
    torch.nn.init.normal_(learner.actor.mlp[-1].weight, std=0.5)  # a first policy acts almost nothing
    path = tmp_path / "latest.pt"
    checkpoint.save(tmp_path, 1, learner, env)
    policy = Policy.from_checkpoint(saved.load(path))
    for _ in range(5):
        assert torch.equal(policy.act(env.observations), learner.policy.act(env.observations))
        env.step(torch.randn(8, 21))


def as_schema_2(folder: Path, **more: object) -> dict:
    """Rewrite a run's checkpoint as schema 2, which did not describe its policy; returns what it was."""
    content = torch.load(folder / "latest.pt", weights_only=True)
    old = {name: value for name, value in content.items() if name not in ("policy", "env")}
    torch.save({**old, "schema": 2, **more}, folder / "latest.pt")
    return content


@pytest.mark.parametrize("rnn", ["none", "lstm"])
def test_a_checkpoint_of_schema_2_has_a_policy_too(tmp_path, rnn):
    folder = tmp_path / "run"
    words = ["task=cartpole_balance", "num_envs=8", "learner.num_steps=4", "max_iterations=1"]
    train(config.resolve([*words, f"learner.rnn={rnn}", f"output={folder}"]))
    today = Policy.from_checkpoint(as_schema_2(folder))
    again = Policy.load(str(folder))
    assert again.spec == today.spec
    state = today.state_dict()
    assert all(torch.equal(value, state[name]) for name, value in again.state_dict().items())


def test_a_checkpoint_of_schema_2_that_needs_a_gait_clock_is_refused(run, tmp_path):
    folder = shutil.copytree(run, tmp_path / "old_walker")
    as_schema_2(folder, folded=True)
    with pytest.raises(ConfigError, match=r"old_walker.*gait clock"):
        Policy.load(str(folder))


def test_a_saved_policy_that_needs_a_gait_clock_is_refused_and_one_that_does_not_loads():
    entry = made(PolicySpec({"policy": 3}, 2, (4,), "elu")).entry()
    with pytest.raises(ConfigError, match=r"walker\.pt .*gait clock"):
        Policy.from_checkpoint({"policy": {**entry, "spec": {**entry["spec"], "cycle": 1}}}, "walker.pt")
    loaded = Policy.from_checkpoint({"policy": {**entry, "spec": {**entry["spec"], "cycle": None}}})
    assert loaded.spec == PolicySpec({"policy": 3}, 2, (4,), "elu")


LEARNER_FROM_A_FILE = """
from dataclasses import dataclass
from robolearn.learners.ppo.config import PPOConfig
from robolearn.learners.ppo.ppo import PPO

@dataclass
class Settings(PPOConfig):
    temperature: float = 0.5

class Mine(PPO):
    config_class = Settings
"""


def test_a_run_is_used_without_the_file_that_its_learner_came_from(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "mine.py"
    file.write_text(LEARNER_FROM_A_FILE)
    small = ["task=cartpole_balance", "num_envs=4", "max_iterations=1", "learner.actor_hidden=[8]"]
    assert main(["train", *small, "learner=mine.py:Mine", "learner.temperature=0.25", "output=run"]) == 0
    capsys.readouterr()
    # A setting of the learner needs the learner: its file must be named again.
    assert main(["eval", "run", "learner.temperature=0.5", "--episodes", "4"]) == 2
    assert f"learner={file}:Mine" in capsys.readouterr().err
    file.unlink()
    assert main(["eval", "run", "seed=3", "backend=auto", "--episodes", "4"]) == 0
    found = open_run("run", ["seed=3"])
    assert found.config.seed == 3
    saved_settings = yaml_file.read(tmp_path / "run" / "config.yaml")["learner"]
    assert saved_settings["temperature"] == 0.25
    assert config.to_dict(found.config)["learner"] == saved_settings


POLICY_ALONE = """
from dataclasses import dataclass
import torch
from robolearn.learners.learner import Report
from robolearn.learners.policy import Policy, PolicySpec

@dataclass
class Settings:
    pass

class Constant:
    config_class, requires = Settings, frozenset()

    def __init__(self, env, config, seed=1):
        spec = PolicySpec({"policy": 4}, env.num_actions, (8,), "elu", head="deterministic")
        self.policy = Policy(spec, spec.build())

    def iterate(self, env):
        with torch.no_grad():
            env.step(self.policy.act(env.observations))
        return Report(env.num_envs, {}, env.drain())

    def state_dict(self):
        return {"net": self.policy.actor.state_dict()}

    def load_state_dict(self, state):
        self.policy.actor.load_state_dict(state["net"])
"""


def test_a_learner_that_saves_only_its_policy_and_times_nothing_is_trained_resumed_and_exported(
    tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    Path("constant.py").write_text(POLICY_ALONE)
    learner = "learner=constant.py:Constant"
    assert (
        main(["train", "task=cartpole_balance", "num_envs=4", "max_iterations=1", learner, "output=run"]) == 0
    )
    assert main(["train", "resume=run", "max_iterations=2", learner]) == 0
    assert "actor_state_dict" not in saved.load(Path("run/latest.pt"))
    assert main(["eval", "run", "--episodes", "4"]) == 0
    quick = ["--starts", "4", "--seconds", "0.1", "--measure-seconds", "0"]
    assert main(["export", "run", "--target", "host", *quick, "--output", "bundle"]) == 0


def test_a_run_is_used_without_the_package_that_its_learner_came_from(run, tmp_path):
    folder = shutil.copytree(run, tmp_path / "run")
    text = (folder / "config.yaml").read_text().replace("name: ppo", "name: learner_not_installed")
    (folder / "config.yaml").write_text(text)
    found = open_run(str(folder))
    assert found.config.learner_name == "learner_not_installed"
    assert load_policy(found).policy.spec.inputs == {"policy": 4}


# ---------------------------------------------------------------------------------------- open groups


@dataclass
class Told(CartpoleBalance):
    """A made-up observation group, as for a teacher."""

    observations: ClassVar = {**CartpoleBalance.observations, "told": ("joint_torque", "physics")}


def test_a_made_up_observation_group_reaches_networks_batch_and_checkpoint(make_env, tmp_path):
    env = make_env(Told(), num_envs=8)
    width = env.observations["told"].shape[1]
    learner = PPO(
        env, PPOConfig(num_steps=4, actor_groups=("told", "policy"), critic_groups=("critic", "told"))
    )
    learner.iterate(env)
    assert learner.batch.observations["told"].shape == (5, 8, width)
    assert learner.actor.obs_normalizer._mean.shape == (1, width + 4)
    assert learner.critic.obs_normalizer._mean.shape[1] == env.observations["critic"].shape[1] + width
    checkpoint.save(tmp_path, 1, learner, env)
    policy = Policy.from_checkpoint(saved.load(tmp_path / "latest.pt"))
    assert policy.spec.inputs == {"told": width, "policy": 4}
    assert torch.equal(policy.act(env.observations), learner.policy.act(env.observations))


def test_a_missing_group_and_one_of_another_width_are_named(make_env):
    env = make_env(CartpoleBalance(), num_envs=2)
    with pytest.raises(ConfigError, match="'teacher'"):
        PPO(env, PPOConfig(critic_groups=("teacher",)))
    policy = made(PolicySpec({"policy": 4, "map": 2}, 1, (8,), "elu"))
    with pytest.raises(ConfigError, match="'map'"):
        policy.act(env.observations)
    with pytest.raises(ConfigError, match="2 columns of observation group 'map'"):
        policy.act({**env.observations, "map": torch.zeros(2, 3)})


# ---------------------------------------------------------------------------------------- a teacher


class Student:
    """A made-up learner: it imitates the policy of another run, one gradient step an iteration."""

    @dataclass
    class Config:
        teacher: str = ""
        hidden: tuple[int, ...] = field(default=(8,))

    config_class, requires = Config, frozenset()

    def __init__(self, env, config, seed=1):
        self.teacher = PolicyRunner(Policy.load(config.teacher))
        self.policy = made(
            PolicySpec({"policy": 4}, env.num_actions, config.hidden, "elu", head="deterministic")
        )
        self.adam = torch.optim.Adam(self.policy.parameters(), lr=1e-2)

    def iterate(self, env):
        wanted = self.teacher(env.observations)
        actor, obs = self.policy.actor, env.observations["policy"]
        loss = (actor.mlp(actor.obs_normalizer(obs)) - wanted).square().mean()
        self.adam.zero_grad()
        loss.backward()
        self.adam.step()
        env.step(wanted)
        return Report(env.num_envs, {"imitation": loss.item()}, env.drain())


def test_a_made_up_learner_loads_the_policy_of_another_run_as_its_teacher(make_env, run):
    env = make_env(CartpoleBalance(), num_envs=32)
    student = Student(env, Student.Config(str(run)))
    first, *_, last = (student.iterate(env).losses["imitation"] for _ in range(100))
    assert last < first / 10


# ---------------------------------------------------------------------------------------- heads


@pytest.mark.filterwarnings("ignore")  # of the exporter, about itself
@pytest.mark.parametrize(
    ("head", "expected"), [("gaussian", 2.0), ("squashed", 0.96402758), ("deterministic", 2.0)]
)
def test_every_head_acts_the_same_in_onnx(head, expected):
    policy = made(PolicySpec({"policy": 3}, 2, (4,), "elu", head=head))
    last = policy.actor.mlp[-1]
    torch.nn.init.zeros_(last.weight)
    torch.nn.init.constant_(last.bias, 2.0)  # tanh(2) = 0.96402758
    assert policy.act({"policy": torch.ones(1, 3)}).tolist() == [pytest.approx([expected] * 2, abs=1e-6)]
    model = build_graph(policy, 3, "fp32", {})
    session = onnxruntime.InferenceSession(model.SerializeToString())
    (action,) = session.run(None, {"obs": np.ones((1, 3), np.float32)})
    assert action.tolist() == [pytest.approx([expected] * 2, abs=1e-6)]


def test_an_unknown_head_is_named():
    with pytest.raises(ConfigError, match="'sharp'"):
        made(PolicySpec({"policy": 3}, 2, (4,), "elu", head="sharp"))  # type: ignore[arg-type]


@pytest.mark.parametrize("policies", [5, None, "ab", [1]], ids=repr)
def test_several_policies_that_are_none_are_refused_and_the_checkpoint_is_named(policies):
    with pytest.raises(ConfigError, match=r"here\.pt"):
        Policy.from_checkpoint({"policy": {"policies": policies}}, "here.pt")


@pytest.mark.parametrize("agents", [{"robot": ["a"]}, {"robot": 5}, {5: "a"}, 5], ids=repr)
def test_agents_of_a_team_that_are_no_names_are_refused_and_the_checkpoint_is_named(agents):
    entry = {"agents": agents, "policies": {"a": made(PolicySpec({"policy": 2}, 1, (4,), "elu")).entry()}}
    with pytest.raises(ConfigError, match=r"here\.pt"):
        Team.from_checkpoint({"policy": entry}, "here.pt")
