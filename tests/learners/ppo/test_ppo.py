"""Advantages, by hand."""

from __future__ import annotations

import pytest
import torch

from robolearn.learners.ppo.config import PPOConfig
from robolearn.learners.ppo.ppo import PPO, gae
from robolearn.tasks.cartpole import CartpoleBalance

VALUES = [0.5, 0.6, 0.7, 0.8]


def column(*numbers: float) -> torch.Tensor:
    return torch.tensor(numbers, dtype=torch.float64)[:, None]


def test_gae_with_a_terminal_last_step():
    # delta_3 = 1 - .8 = .2; delta_2 = .99 x .8 - .7 = .092; delta_1 = .093; delta_0 = .094; decay .9405.
    advantage, returns = gae(
        column(0, 0, 0, 1), column(*VALUES), column(123.0)[0], column(0, 0, 0, 1).bool(), 0.99, 0.95
    )
    assert advantage[:, 0].tolist() == pytest.approx([0.4292, 0.3564, 0.2801, 0.2], abs=5e-5)
    assert returns[:, 0].tolist() == pytest.approx([0.9292, 0.9564, 0.9801, 1.0], abs=5e-5)


@pytest.mark.parametrize(
    ("lam", "expected"),
    [
        (0.95, [2.1474, 1.1200, 1.0920]),
        (0.0, [1.094, 0.093, 1.092]),  # one-step TD: 1 + .99 x .6 - .5, .99 x .7 - .6, 1 + .99 x .8 - .7
        (1.0, [2.2563, 1.1741, 1.092]),  # Monte Carlo: 1 + .99^2 + .99^3 x .8 - .5, ...
    ],
)
def test_gae_bootstraps_from_the_value_after_the_last_step(lam, expected):
    never = torch.zeros(3, 1, dtype=torch.bool)
    advantage, _ = gae(column(1, 0, 1), column(*VALUES[:3]), column(0.8)[0], never, 0.99, lam)
    assert advantage[:, 0].tolist() == pytest.approx(expected, abs=5e-5)


def test_gae_values_steps_before_an_event_by_the_state_that_it_came_in():
    # The deltas of the first test: .094, .093, .092, .2. With an event in step 2, .2801 is not passed on to step 1:
    # advantages .094 + .9405 x .093, .093, .092 + .9405 x .2, .2.
    event = column(0, 0, 1, 0).bool()
    ends = (column(0, 0, 0, 1), column(*VALUES), column(123.0)[0], column(0, 0, 0, 1).bool())
    advantage, returns = gae(*ends, 0.99, 0.95, event=event)
    assert advantage[:, 0].tolist() == pytest.approx([0.18147, 0.093, 0.2801, 0.2], abs=5e-6)
    assert returns[:, 0].tolist() == pytest.approx([0.68147, 0.693, 0.9801, 1.0], abs=5e-6)
    never = torch.zeros_like(event)
    assert torch.equal(gae(*ends, 0.99, 0.95, event=never)[0], gae(*ends, 0.99, 0.95)[0])


def test_steps_of_events_have_no_advantage_and_leave_the_scale_of_the_others_alone(make_env):
    learner = PPO(make_env(CartpoleBalance(), num_envs=2), PPOConfig(num_steps=2, precision="fp32"))
    learner.batch.exogenous = torch.tensor([[False, True], [False, False]])
    # Without the 100 the advantages 1, 2, 3 have the mean 2 and the variance (1 + 1) / 3.
    scaled = learner._normalized(torch.tensor([[1.0, 100.0], [2.0, 3.0]]))
    assert scaled.flatten().tolist() == pytest.approx([-(1.5**0.5), 0.0, 0.0, 1.5**0.5])
    learner.config.skip_events = False
    # With it the mean is 26.5 and the largest advantage is that of the event.
    assert learner._normalized(torch.tensor([[1.0, 100.0], [2.0, 3.0]])).argmax() == 1


def test_gae_does_not_cross_the_end_of_an_episode():
    done = torch.tensor([[False], [True], [False]])
    first, _ = gae(column(1, 0, 1), column(*VALUES[:3]), column(0.8)[0], done, 0.99, 0.95)
    second, _ = gae(column(1, 0, 100), column(*VALUES[:2], -50), column(7.0)[0], done, 0.99, 0.95)
    assert torch.equal(first[:2], second[:2])
    assert first[1, 0] == pytest.approx(0 - 0.6)  # terminal: the reward less the value, nothing after
