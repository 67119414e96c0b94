"""The correction of batches that an older policy has collected, with numbers worked out by hand."""

from __future__ import annotations

import math

import pytest
import torch

from robolearn.learners.losses import clipped_surrogate, log_prob
from robolearn.learners.ppo.correction import correction, divergences, effective_share, vtrace
from robolearn.learners.ppo.ppo import gae
from robolearn.learners.rollout import Batch


def column(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)[:, None]


def never(steps: int) -> torch.Tensor:
    return torch.zeros(steps, 1, dtype=torch.bool)


def test_v_trace_is_the_estimate_of_gae_where_both_policies_are_the_same():
    # The founding documents' example: A = .4292, .3564, .2801, .2.
    reward, value, done = column(0, 0, 0, 1), column(0.5, 0.6, 0.7, 0.8), never(4)
    done[-1] = True
    ones = torch.ones_like(reward)
    last = torch.zeros(1, dtype=torch.float64)
    advantage, target = vtrace(reward, value, last, done, 0.99, 0.95, ones, ones)
    assert advantage.squeeze().tolist() == pytest.approx([0.4292, 0.3564, 0.2801, 0.2], abs=5e-5)
    expected = gae(reward, value, last, done, 0.99, 0.95)
    assert torch.equal(advantage, expected[0])
    assert torch.allclose(target, expected[1], atol=1e-15)


def test_v_trace_of_two_steps_weights_the_errors_as_in_the_paper():
    # delta_1 = 2 + .5 * 4 - 1 = 3, delta_0 = 1 + .5 * 1 - 2 = -.5; gamma .5, lambda 1, rho .5 and .8, c .5 and .6.
    # v_1 = 1 + .8 * 3 = 3.4; v_0 = 2 + .5 * -.5 + .5 * .5 * (.8 * 3) = 2.35.
    # Advantages: step 1: delta_1 = 3; step 0: r + gamma v_1 - V = 1 + .5 * 3.4 - 2 = .7.
    advantage, target = vtrace(
        column(1, 2),
        column(2, 1),
        torch.tensor([4.0], dtype=torch.float64),
        never(2),
        0.5,
        1.0,
        column(0.5, 0.8),
        column(0.5, 0.6),
    )
    assert target.squeeze().tolist() == pytest.approx([2.35, 3.4])
    assert advantage.squeeze().tolist() == pytest.approx([0.7, 3.0])


def test_nothing_of_v_trace_crosses_the_end_of_an_episode_or_an_event():
    reward, value, last = column(1, 1), column(0, 5), torch.zeros(1, dtype=torch.float64)
    half = column(0.5, 0.5)
    ended = torch.tensor([[True], [False]])
    advantage, target = vtrace(reward, value, last, ended, 1.0, 1.0, half, half)
    assert advantage[0] == 1.0  # r - V
    assert target[0] == 0.5  # weighted by rho
    event = torch.tensor([[False], [True]])
    advantage, _ = vtrace(reward, value, last, never(2), 1.0, 1.0, half, half, event)
    assert advantage[0] == 6.0  # r + V(x') - V(x): valued by the state before the event


def made_batch(lag: list[int]) -> Batch:
    """One step of one action in two environments: behaviour N(0, 1), action 1."""
    zeros = torch.zeros(1, 2)
    return Batch(
        observations={},
        action=torch.ones(1, 2, 1),
        mean=torch.zeros(1, 2, 1),
        reward=zeros,
        done=zeros.bool(),
        truncated=zeros.bool(),
        terminal={},
        lag=torch.tensor(lag),
        std=torch.ones(2, 1),
    )


def test_importance_weights_are_ratios_of_densities_and_one_for_the_current_policy():
    # Now N(1, 1): at the action 1 the log densities differ by 1/2, so the ratio is e^.5 = 1.6487; KL = 1/2.
    found = correction(made_batch([2, 0]), torch.ones(1, 2, 1), torch.ones(1), 1.5, 1.2, decoupled=True)
    assert found.rho.squeeze().tolist() == pytest.approx([1.5, 1.0])
    assert found.c.squeeze().tolist() == pytest.approx([1.2, 1.0])
    assert found.weight is found.rho
    assert found.mean.squeeze().tolist() == [1.0, 0.0]  # the stored mean where the policy is the same
    a, b = math.exp(0.5), 1.0
    variance, effective, kl = found.numbers.tolist()
    assert variance == pytest.approx(((a - b) / 2) ** 2, rel=1e-6)
    assert effective == pytest.approx((a + b) ** 2 / (2 * (a * a + b * b)), rel=1e-6)
    assert kl == pytest.approx(0.25)  # the mean of 1/2 and 0


def test_the_ratio_is_taken_to_the_behaviour_policy_where_the_clip_is_not_decoupled():
    batch = made_batch([1, 1])
    found = correction(batch, torch.ones(1, 2, 1), torch.ones(1), 1.0, 1.0, decoupled=False)
    assert found.weight is None
    assert torch.equal(found.log_prob, log_prob(batch.action, batch.mean, torch.ones(1)))
    decoupled = correction(batch, torch.ones(1, 2, 1), torch.ones(1), 1.0, 1.0, decoupled=True)
    assert torch.equal(decoupled.log_prob, log_prob(batch.action, torch.ones(1, 2, 1), torch.ones(1)))


def test_the_decoupled_surrogate_counts_each_sample_by_its_weight():
    # Ratios to the proximal policy 1.5 and .5, advantages 1 and -1: clipped gains 1.2 and -.8; weights .5 and 1.
    new = torch.tensor([1.5, 0.5]).log()
    loss, clipped = clipped_surrogate(
        new, torch.zeros(2), torch.tensor([1.0, -1.0]), 0.2, torch.tensor([0.5, 1.0])
    )
    assert float(loss) == pytest.approx(-(0.5 * 1.2 - 0.8) / 2)
    assert float(clipped) == 1.0


def test_divergences_of_gaussians_with_standard_deviations_of_their_own():
    # log 2 + (1 + 1) / 8 - 1/2 for N(0, 1) from N(1, 2).
    found = divergences(torch.zeros(1, 1), torch.ones(1, 1), torch.ones(1, 1), torch.full((1,), 2.0))
    assert float(found) == pytest.approx(math.log(2) + 0.25 - 0.5)


def test_effective_samples_are_all_of_equal_weights_and_one_of_a_single_weight():
    assert float(effective_share(torch.ones(8).double())) == 1.0
    assert float(effective_share(torch.tensor([1.0, 0, 0, 0]).double())) == 0.25
