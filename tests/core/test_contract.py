"""The Contract says in numbers what the task does in code."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch

from robolearn.core.contract import Contract, contract_of, mapping
from robolearn.errors import ConfigError
from robolearn.tasks.cartpole import CartpoleBalance
from robolearn.tasks.humanoid_walk import HumanoidWalk


@pytest.mark.parametrize("share", [0.25, 0.1])
def test_joint_targets_follow_from_the_contract_alone(share, make_env):
    env = make_env(HumanoidWalk(action_scale=share), num_envs=8)
    for _ in range(12):
        env.step(torch.zeros(8, 21))
    contract = contract_of(env)
    assert contract.extra == {}
    knee = next(entry for entry in contract.actions if entry["joint"] == "l_knee")
    assert (knee["offset"], knee["scale"]) == pytest.approx((0.6, share))  # its kp is its largest torque
    action = torch.randn(8, 21, generator=torch.Generator().manual_seed(0))
    targets = env.task.joint_targets(action, env.ctx)
    for i, entry in enumerate(contract.actions):
        expected = entry["offset"] + entry["scale"] * action[:, i]
        assert torch.allclose(targets[:, i], expected, atol=1e-5), entry["joint"]


def test_observation_columns_are_those_of_the_policy_group(make_env):
    env = make_env(HumanoidWalk(), num_envs=4)
    contract = contract_of(env)
    assert [o["name"] for o in contract.observations] == [item.name for item in env.task.items("policy")]
    last = contract.observations[-1]
    assert last["column"] + last["width"] == env.observations["policy"].shape[1]


def test_joints_and_gains_are_the_robots(make_env):
    env = make_env(HumanoidWalk(), num_envs=2)
    contract = contract_of(env)
    knee = next(a for a in contract.actions if a["joint"] == "r_knee")
    assert (knee["kind"], knee["kp"], knee["kd"], knee["effort"]) == ("position", 120.0, 4.0, 120.0)
    assert knee["offset"] == pytest.approx(0.6)
    joint = next(j for j in contract.joints if j["name"] == "r_knee")
    assert joint["lower"] < joint["home"] < joint["upper"]


def test_making_a_contract_draws_none_of_the_envs_random_numbers(make_env):
    env = make_env(HumanoidWalk(), num_envs=2)
    before = env.random.generator.get_state()
    contract_of(env)
    assert torch.equal(before, env.random.generator.get_state())


def test_a_contract_is_equal_after_saving_and_another_schema_is_refused(make_env, tmp_path):
    contract = contract_of(make_env(CartpoleBalance(), num_envs=2))
    path = tmp_path / "contract.json"
    contract.save(path)
    assert (
        json.loads(path.read_text())["joints"][1]["upper"] is None
    )  # the pole turns freely; JSON has no inf
    again = Contract.load(path)
    assert again == contract
    replace(contract, schema=2).save(path)
    with pytest.raises(ConfigError, match="schema 2 and this RoboLearn reads schema 1"):
        Contract.load(path)


def test_joint_targets_that_are_not_linear_in_the_action_have_the_scale_of_small_actions(
    make_env, monkeypatch
):
    env = make_env(CartpoleBalance(), num_envs=2)
    assert mapping(env.task, env.ctx.rows(slice(0, 1)), 1)[2]
    monkeypatch.setattr(CartpoleBalance, "joint_targets", lambda self, action, ctx: 20 * action.tanh())
    assert not mapping(env.task, env.ctx.rows(slice(0, 1)), 1)[2]
    (action,) = contract_of(env).actions
    assert (action["offset"], action["scale"]) == (0.0, pytest.approx(20.0, rel=1e-3))
