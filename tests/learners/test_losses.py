"""PPO's losses, by hand."""

from __future__ import annotations

import math

import pytest
import torch

from robolearn.learners.losses import beyond, clipped_surrogate, divergence, entropy, log_prob, value_loss


def test_clipped_surrogate_of_one_sample():
    loss, clipped = clipped_surrogate(torch.tensor([-1.5]), torch.tensor([-2.0]), torch.tensor([0.8]), 0.2)
    assert math.exp(0.5) == pytest.approx(1.6487, abs=5e-5)
    assert loss.item() == pytest.approx(-0.96)  # clipped at 1.2 x .8
    assert clipped.item() == 1.0


def test_clipped_surrogate_takes_the_pessimistic_side_of_each_sample():
    # ratios 1.5, 1, .5, 1 with A 1, 1, -1, -1: min(1.5, 1.2) + 1 + min(-.5, -.8) - 1 = .4, mean .1
    ratio = torch.tensor([1.5, 1.0, 0.5, 1.0])
    loss, clipped = clipped_surrogate(ratio.log(), torch.zeros(4), torch.tensor([1.0, 1.0, -1.0, -1.0]), 0.2)
    assert loss.item() == pytest.approx(-0.1)
    assert clipped.item() == pytest.approx(0.5)


def test_log_density_of_two_actions():
    std = torch.tensor([1.0, 2.0])
    action, mean = torch.tensor([[1.0, 4.0], [0.0, 0.0]]), torch.tensor([[1.0, 2.0], [2.0, 0.0]])
    # z is (0, 1) and (-2, 0); the rest is log 2 + log(2 pi) = .6931 + 1.8379 = 2.5310.
    assert log_prob(action, mean, std).tolist() == pytest.approx([-0.5 - 2.5310, -2.0 - 2.5310], abs=5e-5)


def test_divergence_is_zero_for_equal_gaussians_and_quadratic_in_the_distance():
    mean, std = torch.tensor([[0.3, -1.0], [0.0, 2.0]]), torch.tensor([0.5, 2.0])
    assert divergence(mean, std, mean, std).item() == 0.0
    # One of the two samples moves by .5 in the first action, a whole deviation: 1/2 there, 1/4 in the mean.
    moved = mean + torch.tensor([[0.5, 0.0], [0.0, 0.0]])
    assert divergence(mean, std, moved, std).item() == pytest.approx(0.25)


def test_divergence_from_a_narrower_and_a_wider_gaussian():
    mean = torch.zeros(3, 1)
    one, two = torch.tensor([1.0]), torch.tensor([2.0])
    # log 2 + 1/8 - 1/2 = .3181 where the new one is wider, -log 2 + 4/2 - 1/2 = .8069 where it is narrower.
    assert divergence(mean, one, mean, two).item() == pytest.approx(0.3181, abs=5e-5)
    assert divergence(mean, two, mean, one).item() == pytest.approx(0.8069, abs=5e-5)


def test_entropy_of_two_dimensions():
    # 1/2 log(2 pi e) = 1.41894 each, and log 2 for the second.
    assert entropy(torch.tensor([1.0, 2.0])).item() == pytest.approx(2 * 1.41894 + 0.69315, abs=2e-5)


def test_clipped_value_loss_takes_the_larger_error():
    value, returns, old = torch.tensor([1.0, 1.0]), torch.tensor([0.0, 2.0]), torch.tensor([0.0, 0.0])
    assert value_loss(value, returns, None, 0.2).item() == 1.0
    # From 0 a value may move to .2: errors .2 and 1.8; the worse of 1 and .04 is 1, of 1 and 3.24 is 3.24.
    assert value_loss(value, returns, old, 0.2).item() == pytest.approx((1.0 + 3.24) / 2)


def test_gradients_of_the_log_density_by_mean_and_deviation():
    mean = torch.tensor([[1.0]], requires_grad=True)
    std = torch.tensor([2.0], requires_grad=True)
    log_prob(torch.tensor([[4.0]]), mean, std).sum().backward()
    assert mean.grad.item() == pytest.approx(3 / 4)  # (a - m) / s^2
    assert std.grad.item() == pytest.approx(9 / 8 - 1 / 2)  # (a - m)^2 / s^3 - 1 / s


def test_means_beyond_a_bound_cost_the_square_of_the_distance():
    mean = torch.tensor([[1.0, -5.0, 2.0], [0.0, 4.0, -2.0]], requires_grad=True)
    cost = beyond(mean, 2.0)
    assert cost.item() == pytest.approx(
        (9.0 + 4.0) / 2
    )  # -5 is 3 beyond, 4 is 2 beyond, 2 and -2 are on the bound
    cost.backward()
    assert mean.grad.tolist() == [[0.0, -3.0, 0.0], [0.0, 2.0, 0.0]]  # 2 x the distance / 2 samples
