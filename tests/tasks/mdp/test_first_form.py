"""Tasks in the form of the first version go on working: weights with reward_terms(), and a method terminations()."""

from __future__ import annotations

import copy
from dataclasses import dataclass, field
from functools import partial

import torch

from robolearn.config import fields
from robolearn.envs.state import State, Tensor
from robolearn.tasks.ant_run import AntRun
from robolearn.tasks.cartpole import CartpoleBalance, centred, pole_down, upright
from robolearn.tasks.mdp import terms
from robolearn.tasks.mdp.context import Context
from robolearn.tasks.mdp.stated import ends, reward
from robolearn.tasks.mdp.task import Task, Term
from tests.tasks.scenes import standing


def never(state: State, ctx: Context) -> Tensor:
    return torch.zeros_like(ctx.episode_time, dtype=torch.bool)


@dataclass
class Old(CartpoleBalance):
    limit: float = 0.4
    rewards: dict[str, float] = field(default_factory=lambda: {"upright": 2.0, "mine": -1.0})

    def reward_terms(self) -> dict[str, Term]:
        return {"upright": super().reward_terms()["upright"], "mine": terms.effort}

    def terminations(self) -> dict[str, Term]:
        return {"tipped": partial(pole_down, angle=self.limit)}


@dataclass
class Older(Old):
    def terminations(self) -> dict[str, Term]:
        return {**super().terminations(), "never": never}


@dataclass
class Extended(AntRun):
    def terminations(self) -> dict[str, Term]:
        return {**super().terminations(), "never": never}


def changed(task: Task, update: dict) -> Task:
    new: Task = fields.apply(task, type(task), update, "task", {})
    return new


def test_weights_and_functions_in_two_places_train_as_before(make_env):
    task = Old()
    task.validate()
    env = make_env(task)
    assert env.task.reward_weights() == {"upright": 2.0, "mine": -1.0}
    env.step(torch.ones(16, 1))
    assert {"reward/upright", "reward/mine"} <= set(env.drain())
    assert changed(task, {"rewards": {"mine": -3.0}}).reward_weights()["mine"] == -3.0


def test_a_method_of_terminations_reads_the_fields_of_its_task():
    state, ctx = standing("cartpole")
    state.robot.joint_pos[0, 1] = 0.5
    assert Old().termination_terms()["tipped"](state, ctx)
    assert not changed(Old(), {"limit": 0.6}).termination_terms()["tipped"](state, ctx)


def test_a_method_of_terminations_extends_those_of_its_base():
    assert list(Older().terminations()) == ["tipped", "never"]
    assert list(Older().termination_terms()) == ["tipped", "never"]
    assert list(Extended().terminations()) == ["fallen", "body_below_ground", "never"]
    assert list(copy.deepcopy(Extended()).terminations()) == ["fallen", "body_below_ground", "never"]


def test_settings_of_stated_terminations_reach_a_method_that_extends_them():
    state, ctx = standing("ant")
    assert not Extended().termination_terms()["fallen"](state, ctx)
    for update in ({"terminations": {"fallen": {"height": 9.0}}}, {"min_height": 9.0}):
        assert changed(Extended(), update).termination_terms()["fallen"](state, ctx)


def test_a_stated_task_still_gives_its_terminations_when_it_is_called():
    assert list(AntRun().terminations()) == ["fallen", "body_below_ground"]
    assert AntRun().min_height == 0.14


@dataclass
class Lower(AntRun):
    min_height: float = 0.05


def test_a_field_with_an_earlier_name_gives_the_parameter_its_value():
    state, ctx = standing("ant")
    state.robot.base_pos[0, 2] = 0.1
    assert AntRun().termination_terms()["fallen"](state, ctx)
    assert not Lower().termination_terms()["fallen"](state, ctx)
    assert changed(Lower(), {"min_height": 0.12}).termination_terms()["fallen"](state, ctx)


@dataclass
class Mixed(CartpoleBalance):
    rewards: dict[str, float] = field(default_factory=lambda: {**CartpoleBalance().rewards, "mine": 1.0})

    def reward_terms(self) -> dict[str, Term]:
        return {**super().reward_terms(), "mine": terms.effort}


def test_stated_rewards_and_weights_may_stand_side_by_side():
    task = Mixed()
    task.validate()
    assert task.reward_weights() == {
        "upright": 1.0,
        "centred": -0.5,
        "effort": -0.01,
        "alive": 1.0,
        "mine": 1.0,
    }
    assert changed(task, {"rewards": {"mine": 2.0, "upright": 5.0}}).reward_weights()["upright"] == 5.0


@dataclass
class Weights(CartpoleBalance):
    rewards: dict[str, float] = field(
        default_factory=lambda: {"upright": 3.0, "centred": -1.0, "effort": 0.0, "alive": 0.0}
    )


def test_weights_alone_keep_the_functions_of_the_base():
    task = Weights()
    task.validate()
    assert task.reward_terms()["centred"] is centred
    assert task.reward_terms()["upright"] is upright
    assert task.reward_weights()["upright"] == 3.0


@dataclass
class New(Old):
    """A stated task that derives from one with methods."""

    rewards: dict = field(default_factory=lambda: {"upright": reward(upright, 1.0)})
    terminations: dict = field(default_factory=lambda: {"never": ends(never)})

    def reward_terms(self) -> dict[str, Term]:
        return Task.reward_terms(self)


def test_a_stated_task_may_derive_from_one_with_methods():
    assert list(New().termination_terms()) == ["never"]
    assert list(New().reward_terms()) == ["upright"]
