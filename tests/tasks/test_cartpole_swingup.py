"""The swing-up's rewards, initial states and observations, with numbers worked out by hand."""

from __future__ import annotations

import math

import pytest
import torch

from robolearn.core.contract import contract_of
from robolearn.export.bundle import contract_entry
from robolearn.runtime.contract import checked_contract
from robolearn.runtime.errors import Refused
from robolearn.tasks.cartpole_swingup import CartpoleSwingup
from tests.tasks.scenes import ends, rewards, slopes, standing


def test_every_reward_of_a_swinging_pole():
    state, ctx = standing("cartpole")
    state.robot.joint_pos[:] = torch.tensor([0.5, 2 * math.pi / 3])  # 120 degrees from upright
    state.robot.joint_vel[:] = torch.tensor([-2.0, 3.0])
    ctx.action[:] = 0.5
    expected = {
        "upright": -0.5,
        "alive": 1,
        "centred": 0.25,
        "cart_speed": 4,
        "pole_speed": 9,
        "effort": 0.25,
    }
    assert rewards(CartpoleSwingup(), state, ctx) == pytest.approx(expected, abs=1e-6)


def test_hanging_in_the_middle_earns_zero():
    task = CartpoleSwingup()
    state, ctx = standing("cartpole")
    state.robot.joint_pos[:, 1] = math.pi
    earned = sum(task.reward_weights()[name] * value for name, value in rewards(task, state, ctx).items())
    assert earned == pytest.approx(0.0, abs=1e-6)


def test_whole_turns_of_the_pole_change_neither_observations_nor_rewards():
    task = CartpoleSwingup()
    state, ctx = standing("cartpole")
    results = []
    for turns in (0, 3):
        state.robot.joint_pos[:] = torch.tensor([0.2, 0.7 + 2 * math.pi * turns])
        observed = torch.cat([item.compute(state, ctx) for item in task.items("policy")], dim=1)
        results.append((observed, rewards(task, state, ctx)))
    assert torch.allclose(results[0][0], results[1][0], atol=1e-5)
    assert results[0][1] == pytest.approx(results[1][1], abs=1e-5)


def test_the_gradient_of_the_reward_points_to_upright_and_centred():
    state, ctx = standing("cartpole")
    state.robot.joint_pos[:] = torch.tensor([1.0, 2.0])
    assert slopes(CartpoleSwingup(), state, ctx, "joint_pos")[0].tolist() == pytest.approx(
        [-0.2, -math.sin(2)]
    )


def test_only_the_end_of_the_rail_ends_an_episode():
    task = CartpoleSwingup()
    state, ctx = standing("cartpole")
    state.robot.joint_pos[:] = torch.tensor([-2.25, 3.0])
    assert ends(task, state, ctx) == []
    state.robot.joint_pos[:, 0] = -2.35
    assert ends(task, state, ctx) == ["off_the_rail"]


def test_the_metric_upright_is_one_within_a_fifth_of_a_radian_after_any_turns():
    state, ctx = standing("cartpole")
    for angle, up in ((0.19, 1.0), (0.21, 0.0), (2 * math.pi - 0.19, 1.0), (math.pi, 0.0)):
        state.robot.joint_pos[:, 1] = angle
        assert CartpoleSwingup().metrics(state, ctx)["upright"].item() == up, angle


def test_poles_start_near_hanging_and_the_contract_lists_the_observations(make_env):
    env = make_env(CartpoleSwingup(start_spread=0.4), num_envs=64)
    lean = env.backend.state.robot.joint_pos[:, 1] - math.pi
    assert lean.abs().max() <= 0.4
    assert lean.min() < -0.2
    assert lean.max() > 0.2
    contract = contract_of(env)
    assert [(o["name"], o["width"]) for o in contract.observations] == [
        ("limited_joint_pos", 1),
        ("turning_joint_pos", 2),
        ("joint_vel_rel", 2),
    ]
    plain = contract_entry(contract, CartpoleSwingup().items("policy"))
    assert checked_contract(plain, "it") == plain
    plain["observations"][1]["column"] = 2
    with pytest.raises(Refused, match="turning_joint_pos takes 2 columns from 2, not from 1"):
        checked_contract(plain, "it")
    assert (contract.actions[0]["offset"], contract.actions[0]["scale"]) == (0.0, 12.0)
