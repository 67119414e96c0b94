"""A task's `learner_defaults`, and the backend that auto picks for a learner."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

import pytest

from robolearn import config
from robolearn.config import registry
from robolearn.errors import ConfigError
from robolearn.training import build as make

TASKS = """
from __future__ import annotations
from dataclasses import dataclass
from typing import Any, ClassVar
from robolearn.tasks.cartpole import CartpoleBalance

@dataclass
class Both(CartpoleBalance):
    "Has settings for two learners."
    defaults: ClassVar[dict[str, Any]] = {"num_envs": 77, "max_iterations": 9, "learner.gamma": 0.5}
    learner_defaults: ClassVar[dict[str, dict[str, Any]]] = {
        "shac": {"num_envs": 33, "learner.num_steps": 5, "task.force": 10}
    }

@dataclass
class Usual(CartpoleBalance):
    "Has another default learner."
    defaults: ClassVar[dict[str, Any]] = {"learner": "shac", "backend": "mujoco", "learner.gamma": 0.5}
    learner_defaults: ClassVar[dict[str, dict[str, Any]]] = {"ppo": {"learner.lam": 0.5}}

@dataclass
class Elsewhere(CartpoleBalance):
    "Chooses a learner in `learner_defaults`."
    learner_defaults: ClassVar[dict[str, dict[str, Any]]] = {"ppo": {"learner": "shac"}}

@dataclass
class Missing(CartpoleBalance):
    "Sets a key that the learner does not have."
    learner_defaults: ClassVar[dict[str, dict[str, Any]]] = {"ppo": {"learner.target_keep": 0.5}}

@dataclass
class Other(CartpoleBalance):
    "Is about another robot, and with SHAC about a third."
    defaults: ClassVar[dict[str, Any]] = {"robot": "hopper"}
    learner_defaults: ClassVar[dict[str, dict[str, Any]]] = {"shac": {"task.robot": "ant"}}

@dataclass
class Flat(CartpoleBalance):
    "Has a number instead of a dictionary."
    learner_defaults: ClassVar[dict[str, Any]] = {"ppo": 5}
"""


@pytest.fixture
def tasks(tmp_path: Path) -> str:
    path = tmp_path / "tasks.py"
    path.write_text(TASKS)
    return str(path)


def test_learner_defaults_override_defaults_where_that_learner_is_chosen(tasks: str) -> None:
    words = [f"task={tasks}:Both", "backend=mujoco"]
    run = config.resolve(words)
    assert (run.num_envs, run.max_iterations, run.learner.gamma, run.task.force) == (77, 9, 0.5, 20.0)
    run = config.resolve([*words, "learner=shac"])
    assert (run.num_envs, run.max_iterations, run.learner.num_steps, run.task.force) == (33, 9, 5, 10.0)
    assert run.learner.gamma == 0.99  # 0.5 is for PPO
    assert config.resolve([*words, "learner=shac", "num_envs=8", "learner.num_steps=7"]).num_envs == 8


def test_a_robot_in_defaults_is_the_tasks_and_the_users_word_is_the_last(tasks: str) -> None:
    words = [f"task={tasks}:Other", "backend=mujoco"]
    assert config.resolve(words).task.robot == "hopper"
    assert config.resolve([*words, "learner=shac", "backend=differentiable"]).task.robot == "ant"
    assert config.resolve([*words, "robot=cartpole"]).task.robot == "cartpole"


def test_learner_settings_in_defaults_apply_to_the_learner_that_defaults_name(tasks: str) -> None:
    run = config.resolve([f"task={tasks}:Usual"])
    assert (run.learner_name, run.learner.gamma, run.learner.lam) == ("shac", 0.5, 0.95)
    run = config.resolve([f"task={tasks}:Usual", "learner=ppo"])
    assert (run.learner_name, run.learner.gamma, run.learner.lam) == ("ppo", 0.99, 0.5)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("Elsewhere", r"^Elsewhere\.learner_defaults: ppo: cannot choose a learner"),
        ("Missing", r"Missing\.learner_defaults: ppo: learner\.target_keep"),
        ("Flat", r"^Flat\.learner_defaults: ppo: must be a dictionary from dotted keys"),
    ],
)
def test_an_error_in_learner_defaults_names_task_and_learner(tasks: str, name: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        config.resolve([f"task={tasks}:{name}"])


def test_a_learner_that_needs_gradients_gets_a_backend_that_has_them(monkeypatch) -> None:
    picked = []

    def pick(device: str, needs: Collection[str] = ()) -> str:
        picked.append(set(needs))
        return "mujoco"

    monkeypatch.setattr(registry, "pick_backend", pick)
    config.resolve(["task=cartpole_balance"])
    assert picked[-1] == set()
    config.resolve(["task=cartpole_balance", "learner=shac"])
    assert picked[-1] == {"gradients"}


def test_the_gives_of_a_backends_row_equals_its_capabilities() -> None:
    for name, entry in registry.entries("backends").items():
        if not entry.hint and entry.devices:
            run = config.resolve(["task=cartpole_balance", f"backend={name}", "device=cpu"])
            env = make.build_env(run, 1)
            assert ("gradients" in entry.gives) == env.backend.capabilities.gradients, name
            env.close()
