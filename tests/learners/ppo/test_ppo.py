"""Advantages, by hand."""

from __future__ import annotations

import pytest
import torch

from robolearn.learners.ppo.ppo import gae

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


def test_gae_does_not_cross_the_end_of_an_episode():
    done = torch.tensor([[False], [True], [False]])
    first, _ = gae(column(1, 0, 1), column(*VALUES[:3]), column(0.8)[0], done, 0.99, 0.95)
    second, _ = gae(column(1, 0, 100), column(*VALUES[:2], -50), column(7.0)[0], done, 0.99, 0.95)
    assert torch.equal(first[:2], second[:2])
    assert first[1, 0] == pytest.approx(0 - 0.6)  # terminal: the reward less the value, nothing after
