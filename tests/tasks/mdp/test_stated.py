"""Rewards and terminations, each stated once: parameters are checked, set, saved and used."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any

import pytest
import torch
import yaml

from robolearn import config
from robolearn.config import fields
from robolearn.envs.state import State, Tensor
from robolearn.errors import ConfigError
from robolearn.tasks.cartpole import CartpoleBalance
from robolearn.tasks.humanoid_walk import HumanoidWalk
from robolearn.tasks.mdp import terms
from robolearn.tasks.mdp.context import Context
from robolearn.tasks.mdp.stated import Reward, Termination, ends, reward
from robolearn.tasks.velocity import swing_height
from tests.tasks.scenes import rewards, standing
from tests.tasks.test_velocity import placed


def near(state: State, ctx: Context, std: Annotated[float, {"above": 0.0}] = 0.5, power: int = 2) -> Tensor:
    return torch.exp(-((state.robot.joint_pos[:, 0].abs() / std) ** power))


def low(state: State, ctx: Context, height: float) -> Tensor:
    return state.robot.base_pos[:, 2] < height


def test_a_reward_has_every_parameter_of_its_function():
    assert reward(near, 2).parameters == {"std": 0.5, "power": 2}
    assert reward(near, 2, power=4).parameters == {"std": 0.5, "power": 4}
    assert reward(terms.alive, 1.0).parameters == {}
    assert ends(low, height=1).parameters == {"height": 1.0}


@dataclass(frozen=True)
class Near:
    """A term that is an object, and has no hash because one of its fields has none."""

    joints: list[int]

    def __call__(self, state: State, ctx: Context, std: float = 0.5) -> Tensor:
        return torch.exp(-((state.robot.joint_pos[:, self.joints] / std) ** 2).sum(dim=1))


def test_a_term_may_be_an_object_without_a_hash():
    stated = reward(Near([0, 1]), 1.0, std=0.1)
    assert stated.parameters == {"std": 0.1}
    assert stated.bound(None).keywords == {"std": 0.1}


def test_the_meaning_of_a_term_is_the_first_sentence_of_its_functions_docstring():
    def told(state: State, ctx: Context) -> Tensor:
        """How much of 0.5 m
        is left (N, 3) [m]. It never grows.

        More.
        """
        raise NotImplementedError

    assert reward(told, 1.0).meaning() == "How much of 0.5 m is left [m]."
    assert reward(near, 1.0).meaning() == ""
    assert reward(Near([0]), 1.0).meaning() == ""  # that of the class is not about the term


@pytest.mark.parametrize(
    ("make", "named"),
    [
        (lambda: reward(near, 1.0, stdd=0.1), ["near", "'stdd'", "did you mean std"]),
        (lambda: reward(terms.alive, 1.0, std=0.1), ["alive", "'std'", "none"]),
        (lambda: reward(near, 1.0, std="wide"), ["near: std", "wide"]),
        (lambda: reward(near, 1.0, std=0.0), ["near: std", "above 0"]),
        (lambda: reward(near, 1.0, power=2.5), ["near: power", "whole number"]),
        (lambda: reward(near, 1.0, std=float("nan")), ["near: std", "finite"]),
        (lambda: ends(low), ["low", "'height'"]),
        (lambda: ends(low, heigth=0.3), ["low", "'heigth'", "did you mean height"]),
        (lambda: reward(3, 1.0), ["3", "function"]),
        (lambda: reward(lambda state, ctx, weight=1.0: weight, 1.0), ["weight"]),
    ],
)
def test_parameters_are_checked_against_the_function_when_the_term_is_stated(make, named: list[str]):
    with pytest.raises(ConfigError) as error:
        make()
    for word in named:
        assert word in str(error.value)
    assert "\n" not in str(error.value)


def resolve(*words: str, task: str = "humanoid_walk") -> config.Config:
    return config.resolve([f"task={task}", *words])


def test_weight_and_parameters_of_a_reward_are_settings():
    run = resolve("task.rewards.swing_height.weight=-3", "task.rewards.swing_height.height=0.1")
    assert run.task.rewards["swing_height"] == Reward(swing_height, {"height": 0.1}, -3.0)
    assert resolve("task.rewards.swing_height=-3").task.rewards["swing_height"] == Reward(
        swing_height, {"height": 0.12}, -3.0
    )
    assert resolve("task.rewards={swing_height: {height: 0.1}}").task.rewards["swing_height"].weight == -2.0


@pytest.mark.parametrize("order", [1, -1])
def test_a_weight_alone_and_a_parameter_hold_together_in_any_order(order: int):
    words = ["task.rewards.swing_height=-3", "task.rewards.swing_height.height=0.1"][::order]
    assert resolve(*words).task.rewards["swing_height"] == Reward(swing_height, {"height": 0.1}, -3.0)
    words = ["task.rewards={swing_height: -3}", "task.rewards.swing_height.height=0.1"][::order]
    assert resolve(*words).task.rewards["swing_height"] == Reward(swing_height, {"height": 0.1}, -3.0)
    words = ["task.terminations.fallen=false", "task.terminations.fallen.height=0.1"][::order]
    fallen = resolve(*words).task.terminations["fallen"]
    assert (fallen.active, fallen.parameters["height"]) == (False, 0.1)


def test_a_termination_is_switched_off_and_on_again():
    run = resolve("task.terminations.fallen=false")
    assert list(run.task.termination_terms()) == ["body_below_ground"]
    again = config.resolve(["task.terminations.fallen=true"], run)
    assert list(again.task.termination_terms()) == ["fallen", "body_below_ground"]
    assert config.changed(run, again) == ["task.terminations.fallen.active"]


def test_a_task_without_an_active_termination_never_falls(make_env):
    run = resolve("task.terminations={fallen: false, body_below_ground: false}", "task.robot=humanoid")
    env = make_env(run.task, num_envs=4)
    assert env.task.reward_terms()["fall"](env.backend.state, env.ctx).tolist() == [0.0] * 4
    assert not env.step(torch.zeros(4, env.num_actions)).terminated.any()


@pytest.mark.parametrize(
    ("alias", "key"),
    [
        ("task.min_height=0.4", "task.terminations.fallen.height=0.4"),
        ("task.min_upright=0.2", "task.terminations.fallen.upright=0.2"),
    ],
)
def test_an_earlier_name_is_the_same_setting(alias: str, key: str):
    one, other = resolve(alias, task="ant_run"), resolve(key, task="ant_run")
    assert one == other
    assert config.changed(resolve(task="ant_run"), one) == [key.partition("=")[0]]


def test_the_earlier_names_of_every_shipped_task_are_read_and_set():
    for task, words in {
        "ant_run": {"min_height": 0.1, "min_upright": 0.4},
        "stand": {"min_height": 0.3, "min_upright": 0.6},
        "hopper_run": {"speed": 2.0, "max_drop": 0.2, "max_pitch": 0.9},
    }.items():
        run = config.resolve([f"task={task}", *(f"task.{name}={value}" for name, value in words.items())])
        assert {name: getattr(run.task, name) for name in words} == words


def test_a_setting_given_by_both_of_its_names_is_refused():
    with pytest.raises(ConfigError, match=r"task\.min_height and task\.terminations\.fallen\.height"):
        resolve("task.min_height=0.4", "task.terminations.fallen.height=0.3", task="ant_run")


@pytest.mark.parametrize(
    ("word", "named"),
    [
        ("task.min_height=-1", ["task.min_height", "at least 0"]),
        ("task.min_height=high", ["task.min_height", "high"]),
        ("task.min_hight=1", ["task.min_hight", "did you mean task.min_height"]),
    ],
)
def test_a_bad_setting_by_an_earlier_name_is_refused_in_one_line_that_has_that_name(
    word: str, named: list[str]
):
    with pytest.raises(ConfigError) as error:
        resolve(word, task="ant_run")
    for part in named:
        assert part in str(error.value)
    assert "\n" not in str(error.value)


def test_a_task_without_earlier_names_refuses_them():
    with pytest.raises(ConfigError, match=r"task\.min_height"):
        resolve("task.min_height=0.4")


@pytest.mark.parametrize(
    ("word", "named"),
    [
        ("task.rewards.swing_height=high", ["task.rewards.swing_height", "high"]),
        ("task.rewards.swing_height.weight=null", ["task.rewards.swing_height.weight", "null"]),
        ("task.rewards.swing_height.hight=1", ["did you mean task.rewards.swing_height.height"]),
        ("task.rewards.swing_height.height=0", ["task.rewards.swing_height.height", "above 0"]),
        ("task.rewards.swing_height.height=[1]", ["task.rewards.swing_height.height"]),
        ("task.rewards.swing_height={}", ["task.rewards.swing_height"]),
        ("task.rewards.swing_height={swing: 1}", ["task.rewards.swing_height.swing"]),
        ("task.rewards.track_velocity.std=0", ["task.rewards.track_velocity.std", "above 0"]),
        ("task.terminations.fallen=3", ["task.terminations.fallen", "true or false"]),
        ("task.terminations.fallen=null", ["task.terminations.fallen", "true or false"]),
        ("task.terminations.falen=false", ["did you mean task.terminations.fallen"]),
        ("task.terminations.fallen.upright=2", ["task.terminations.fallen.upright", "1"]),
        ("task.terminations=false", ["task.terminations"]),
        ("task.terminations={fallen: {hight: 1}}", ["task.terminations.fallen.hight", "height"]),
    ],
)
def test_a_bad_setting_of_a_term_is_refused_in_one_line_that_names_it(word: str, named: list[str]):
    with pytest.raises(ConfigError) as error:
        resolve(word)
    for part in named:
        assert part in str(error.value)
    assert "\n" not in str(error.value)


def test_terms_are_saved_with_their_parameters_and_load_again(tmp_path: Path):
    run = resolve(
        "task.rewards.swing_height.height=0.1", "task.terminations.fallen=false", "task.rewards.posture=-1"
    )
    config.save(run, tmp_path / "config.yaml")
    saved = yaml.safe_load((tmp_path / "config.yaml").read_text())["task"]
    assert saved["rewards"]["swing_height"] == {"weight": -2.0, "height": 0.1}
    assert saved["rewards"]["posture"] == -1.0
    assert saved["terminations"] == {
        "fallen": {"active": False, "height": 0.5, "upright": 0.7},
        "body_below_ground": True,
    }
    assert config.load(tmp_path / "config.yaml") == run


def test_a_run_saved_with_weights_alone_and_earlier_names_loads(tmp_path: Path):
    config.save(resolve(task="ant_run"), tmp_path / "config.yaml")
    content = yaml.safe_load((tmp_path / "config.yaml").read_text())
    del content["task"]["terminations"]
    content["task"]["rewards"] |= {"forward": 3.0, "tilt": -1.0}
    content["task"] |= {"min_height": 0.3, "min_upright": 0.1}
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(content))
    words = [
        "task.rewards.forward=3",
        "task.rewards.tilt=-1",
        "task.min_height=0.3",
        "task.min_upright=0.1",
    ]
    assert config.load(tmp_path / "config.yaml") == resolve(*words, "backend=mujoco", task="ant_run")


def test_a_parameter_changes_the_value_of_its_term():
    state, ctx = standing("cartpole")
    state.robot.joint_pos[0, 1] = 0.5
    task = CartpoleBalance()
    assert "pole_down" in task.termination_terms()
    assert not task.termination_terms()["pole_down"](state, ctx)
    changed: Any = fields.apply(
        task, CartpoleBalance, {"terminations": {"pole_down": {"angle": 0.4}}}, "task", {}
    )
    assert changed.termination_terms()["pole_down"](state, ctx)


def test_a_reward_that_is_the_product_of_two_takes_the_parameters_of_both():
    task = resolve("task.rewards.striding.full=0.5", "task.rewards.track_velocity.std=0.1").task
    state, ctx = placed("humanoid", (0.5, 0.0, 0.0))
    state.robot.base_lin_vel[0, 0] = 0.4  # 0.1 m/s, one std, too slow
    ctx.task_state["contact"] = torch.tensor([[False, True]])
    ctx.task_state["air_time"], ctx.task_state["stance_time"] = (
        torch.tensor([[0.1, 0.0]]),
        torch.tensor([[0.0, 0.3]]),
    )
    assert rewards(task, state, ctx)["striding"] == pytest.approx(0.1 / 0.5 * math.exp(-1))


@dataclass
class Mine(CartpoleBalance):
    """Rewards may be methods of the task."""

    goal: float = 0.25
    rewards: dict[str, Reward] = field(
        default_factory=lambda: {
            "upright": CartpoleBalance().rewards["upright"],
            "close": reward(Mine.close, 3.0, scale=2.0),
        }
    )

    def close(self, state: State, ctx: Context, scale: float) -> Tensor:
        return scale * (state.robot.joint_pos[:, 0] - self.goal)


class Closer(Mine):
    def close(self, state, ctx, scale):
        return -super().close(state, ctx, scale)


def test_a_method_of_the_task_is_a_term_and_may_be_overridden():
    state, ctx = standing("cartpole")
    state.robot.joint_pos[0, 0] = 1.25
    assert Mine().reward_terms()["close"](state, ctx).tolist() == [2.0]
    assert replace(Mine(), goal=0.75).reward_terms()["close"](state, ctx).tolist() == [1.0]
    assert Closer().reward_terms()["close"](state, ctx).tolist() == [-2.0]
    assert Mine().reward_weights() == {"upright": 1.0, "close": 3.0}


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"rewards": {"near": near}}, "rewards.near"),
        ({"terminations": {"low": low}}, "terminations.low"),
        ({"terminations": {"low": 1.0}}, "terminations.low"),
    ],
)
def test_a_bare_function_as_a_term_is_refused_by_name(settings: dict, named: str):
    with pytest.raises(ValueError, match=named):
        replace(CartpoleBalance(), **settings).validate()


def test_terms_of_two_tasks_are_equal_where_function_and_settings_are():
    assert HumanoidWalk() == HumanoidWalk()
    assert isinstance(HumanoidWalk().terminations["fallen"], Termination)
    assert resolve("task.rewards.swing_height.height=0.1").task != HumanoidWalk()
