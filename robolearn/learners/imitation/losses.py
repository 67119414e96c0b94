"""Losses of imitation, one number a sample."""

from __future__ import annotations

from robolearn.envs.state import Tensor
from robolearn.learners.losses import log_prob


def squared_error(mean: Tensor, action: Tensor) -> Tensor:
    """Mean over the actuators of the squared difference, (B,), of means and actions (B, A)."""
    return (mean - action).square().mean(dim=-1)


def negative_log_likelihood(mean: Tensor, std: Tensor, action: Tensor) -> Tensor:
    """Minus the log density [nat] (B,) of actions (B, A) under Gaussians with means (B, A) and standard deviations
    (A,)."""
    return -log_prob(action, mean, std)


def divergence_from(teacher: Tensor, teacher_std: Tensor, mean: Tensor, std: Tensor) -> Tensor:
    """KL(teacher || student) [nat] (B,) of Gaussians with means (B, A) and standard deviations (A,): the student's is
    the second one, so that its standard deviation covers the teacher's actions. See
    `robolearn.learners.losses.divergence` for the formula."""
    spread = (teacher_std / std).square()
    moved = ((teacher - mean) * std.reciprocal()).square().sum(dim=-1)
    return 0.5 * ((spread - 1 - spread.log()).sum() + moved)
