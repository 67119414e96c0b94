"""The discount, and the bound on exploration, that follow the levels of the task's curricula."""

from __future__ import annotations

import pytest
import torch

from robolearn import config
from robolearn.learners.ppo.config import PPOConfig
from robolearn.learners.ppo.horizon import Horizon
from robolearn.learners.ppo.ppo import PPO
from robolearn.learners.ppo.update import KL
from robolearn.tasks.cartpole import CartpoleBalance
from robolearn.training.train import train

CPU = torch.device("cpu")


def test_the_horizon_grows_in_proportion_to_the_mean_level():
    horizon = Horizon(0.95, 0.99, CPU)  # 20 to 100 steps
    horizon.observe({"metric/level_pushes": 0.5, "metric/level_commands": 0.0, "metric/foot_slip": 9.0})
    assert float(horizon.discount) == pytest.approx(1 - 1 / 40, abs=1e-6)
    horizon.observe({"metric/level_pushes": 1.0})
    assert float(horizon.discount) == pytest.approx(0.99, abs=1e-6)


def test_a_level_above_1_counts_as_1_and_no_curriculum_as_0():
    horizon = Horizon(0.95, 0.99, CPU)
    horizon.observe({"metric/level_pushes": 1.8})
    assert float(horizon.discount) == pytest.approx(0.99, abs=1e-6)
    horizon.observe({"steps": 8.0})
    assert float(horizon.discount) == pytest.approx(0.95, abs=1e-6)


def test_the_tensor_that_a_graph_has_recorded_is_changed_in_place():
    horizon = Horizon(0.95, 0.99, CPU)
    before = horizon.discount.data_ptr()
    horizon.set(1.0)
    assert horizon.discount.data_ptr() == before


def test_the_bound_on_exploration_falls_with_the_progress(make_env):
    config = PPOConfig(init_std=1.0, final_std=0.25, precision="fp32")
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
    assert float(learner.horizon.discount) == pytest.approx(0.99)


def test_the_wanted_divergence_falls_with_the_progress(make_env):
    config = PPOConfig(desired_kl=0.04, final_kl=0.01, learning_rate=1e-3, precision="fp32")
    update = PPO(make_env(CartpoleBalance(), num_envs=4), config).update
    # A measured divergence of 0.012: less than half of 0.04, within a factor of two of 0.02 and of 0.01. At 0.025 it is
    # more than twice 0.01, and not of 0.02.
    for progress, rate in ((0.0, 1.5e-3), (2 / 3, 1.5e-3), (1.0, 1.5e-3)):
        update._epoch[KL], update._epoch[-1] = 0.012, 1.0
        update.follow(progress)
        update._adapt_rate()
        assert float(update.adam.rate) == pytest.approx(rate)
    update._epoch[KL] = 0.025
    update.follow(2 / 3)
    update._adapt_rate()
    assert float(update.adam.rate) == pytest.approx(1.5e-3)
    update.follow(1.0)
    update._adapt_rate()
    assert float(update.adam.rate) == pytest.approx(1e-3)


@pytest.mark.parametrize(
    "words",
    [
        ["learner.gamma=0.98", "learner.final_gamma=0.97"],
        ["learner.final_std=0.9"],
        ["learner.desired_kl=0.01", "learner.final_kl=0.02"],
    ],
)
def test_a_final_value_on_the_wrong_side_of_the_first_is_refused(words):
    with pytest.raises(ValueError, match=words[-1].partition("=")[0].partition(".")[2]):
        config.resolve(["task=cartpole_balance", *words])


def test_a_resumed_run_goes_on_with_its_discount(tmp_path):
    small = ["task=velocity", "robot=humanoid", "num_envs=8", "device=cpu", "learner.num_steps=8"]
    small += ["learner.actor_hidden=[8]", "learner.critic_hidden=[8]", "task.curricula.pushes=0.5"]
    whole = train(config.resolve([*small, "max_iterations=4", f"output={tmp_path / 'whole'}"]))
    half = train(config.resolve([*small, "max_iterations=2", f"output={tmp_path / 'half'}"]))
    train(config.resolve([*small, "max_iterations=4", f"resume={half}"]), ["max_iterations"])
    one, other = (torch.load(path / "latest.pt", weights_only=True) for path in (whole, half))
    assert one["progress"] == other["progress"]
    assert 0 < one["progress"] < 1
    for name, weight in one["critic_state_dict"].items():
        assert torch.equal(weight, other["critic_state_dict"][name])
