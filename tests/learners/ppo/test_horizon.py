"""The discount that grows with the time between two falls."""

from __future__ import annotations

import math

import pytest
import torch

from robolearn import config
from robolearn.learners.ppo.config import PPOConfig
from robolearn.learners.ppo.horizon import Horizon
from robolearn.learners.ppo.ppo import PPO
from robolearn.tasks.cartpole import CartpoleBalance
from robolearn.training.train import train

CPU = torch.device("cpu")


def means(steps: float, episodes: float, share: float | None) -> dict[str, float]:
    found = {"steps": steps, "episodes": episodes}
    return found if share is None else {**found, "episode/fall_rate": share}


def test_the_horizon_is_a_tenth_of_the_time_between_two_falls():
    horizon = Horizon(0.96, 0.99, CPU)
    # 4 of 10 episodes that ended in 2000 steps were falls: one in 500 steps, so 50 steps ahead.
    for _ in range(200):
        horizon.observe(means(2000.0, 10.0, 0.4))
    assert float(horizon.discount) == pytest.approx(1 - 1 / 50, abs=1e-6)


def test_the_first_iteration_moves_a_tenth_of_the_way():
    horizon = Horizon(0.96, 0.99, CPU)
    horizon.observe(means(1000.0, 0.0, None))
    # No fall at all: the rate of falls, 0.1 x 0.04 at the start, becomes 0.9 times as large.
    assert float(horizon.discount) == pytest.approx(1 - 0.9 * 0.04, abs=1e-6)


def test_it_stays_between_its_ends():
    horizon = Horizon(0.97, 0.99, CPU)
    horizon.observe(means(1000.0, 1000.0, 1.0))
    assert float(horizon.discount) == pytest.approx(0.97)
    for _ in range(100):
        horizon.observe(means(1000.0, 0.0, None))
    assert float(horizon.discount) == pytest.approx(0.99)


def test_the_rate_of_falls_is_that_of_all_ranks():
    horizon = Horizon(0.96, 0.99, CPU, lambda mine: (mine + 0.0) / 2)  # another rank of which nothing fell
    horizon.observe(means(1000.0, 8.0, 1.0))
    assert float(horizon.discount) == pytest.approx(1 - 0.04, abs=1e-6)


def test_the_tensor_that_a_graph_has_recorded_is_changed_in_place():
    horizon = Horizon(0.96, 0.99, CPU)
    before = horizon.discount.data_ptr()
    horizon.set(0.0)
    assert horizon.discount.data_ptr() == before
    assert float(horizon.discount) == pytest.approx(0.99)


def test_the_bound_on_exploration_falls_with_the_progress_of_the_horizon(make_env):
    config = PPOConfig(gamma=0.9, final_gamma=0.99, init_std=1.0, final_std=0.25, precision="fp32")
    learner = PPO(make_env(CartpoleBalance(), num_envs=4), config)
    std = learner.actor.distribution.std_param
    learner._calm(0.0)
    assert std.tolist() == [1.0]
    learner._calm(0.5)  # the bound is 0.5; a hundredth at a time
    assert std.tolist() == pytest.approx([0.99])
    std.data.fill_(0.503)
    learner._calm(0.5)
    assert std.tolist() == pytest.approx([0.5])
    learner._calm(0.2)  # it never widens
    assert std.tolist() == pytest.approx([0.5])


def test_the_progress_of_the_horizon_goes_from_0_to_1():
    horizon = Horizon(0.96, 0.99, CPU)
    found = []
    for steps_between_falls in (100, 400, 1000, 5000):  # discounts 0.90, 0.975, 0.99, 0.998
        horizon.set(1 / steps_between_falls)
        found.append(horizon.progress)
    assert found == pytest.approx([0.0, 0.5, 1.0, 1.0])


def test_a_final_std_without_a_growing_horizon_is_refused():
    with pytest.raises(ValueError, match="final_std"):
        config.resolve(["task=cartpole_balance", "learner.final_std=0.2"])


def test_a_final_gamma_below_gamma_is_refused():
    with pytest.raises(ValueError, match="final_gamma"):
        config.resolve(["task=cartpole_balance", "learner.gamma=0.98", "learner.final_gamma=0.97"])


def test_a_resumed_run_goes_on_with_its_discount(tmp_path):
    small = [
        "task=cartpole_balance",
        "num_envs=8",
        "device=cpu",
        "learner.gamma=0.9",
        "learner.final_gamma=0.99",
    ]
    small += ["learner.actor_hidden=[8]", "learner.critic_hidden=[8]"]
    whole = train(config.resolve([*small, "max_iterations=4", f"output={tmp_path / 'whole'}"]))
    half = train(config.resolve([*small, "max_iterations=2", f"output={tmp_path / 'half'}"]))
    train(config.resolve([*small, "max_iterations=4", f"resume={half}"]), ["max_iterations"])
    one, other = (torch.load(path / "latest.pt", weights_only=True) for path in (whole, half))
    assert one["falls"] == other["falls"]
    assert not math.isclose(one["falls"], 0.1 * 0.1)
    for name, weight in one["critic_state_dict"].items():
        assert torch.equal(weight, other["critic_state_dict"][name])
