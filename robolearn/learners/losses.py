"""Losses of policy gradients, in closed form for Gaussians whose standard deviations do not depend on the state."""

from __future__ import annotations

import math

import torch

from robolearn.envs.state import Tensor

HALF_LOG_2PI = 0.5 * math.log(2 * math.pi)


def log_prob(action: Tensor, mean: Tensor, std: Tensor) -> Tensor:
    """Log density (B,) of actions (B, A) under independent Gaussians with means (B, A) and standard deviations (A,), or
    (B, A) where they differ from sample to sample."""
    z = (action - mean) * std.reciprocal()
    return -0.5 * z.square().sum(dim=-1) - (std.log() + HALF_LOG_2PI).sum(dim=-1)


def divergence(old_mean: Tensor, old_std: Tensor, mean: Tensor, std: Tensor) -> Tensor:
    """Kullback-Leibler divergence of the new Gaussians from the old, KL(old || new), as a mean over the samples.

    Means are (B, A), standard deviations (A,). In one dimension it is
    log(std / old_std) + (old_std^2 + (old_mean - mean)^2) / (2 std^2) - 1/2: Kullback (1959), "Information Theory
    and Statistics", ch. 9.
    """
    spread = (old_std / std).square()
    moved = ((old_mean - mean) * std.reciprocal()).square().sum(dim=-1).mean()
    return 0.5 * ((spread - 1 - spread.log()).sum() + moved)


def entropy(std: Tensor) -> Tensor:
    """Differential entropy [nat] of independent Gaussians with standard deviations (A,): sum log(std sqrt(2 pi e))."""
    return (std.log() + (0.5 + HALF_LOG_2PI)).sum()


def beyond(mean: Tensor, bound: float) -> Tensor:
    """Squared distance of means (B, A) from the box within -`bound` and `bound`, summed over A, as a mean over the
    samples: 0 where all are in it."""
    return (mean.abs() - bound).clamp(min=0.0).square().sum(dim=-1).mean()


def clipped_surrogate(
    log_prob: Tensor,
    old_log_prob: Tensor,
    advantage: Tensor,
    clip: float,
    weight: Tensor | None = None,
    clip_high: float | None = None,
) -> tuple[Tensor, Tensor]:
    """PPO's loss (Schulman et al., 2017, eq. 7, negated) and the share of samples it clips, () each; inputs (B,).

    With `weight` each sample counts by its own: decoupled PPO's loss, see `robolearn.learners.ppo.correction`. Ratios
    are clipped to within 1 - `clip` and 1 + `clip_high`, which is `clip` where omitted.
    """
    ratio = (log_prob - old_log_prob).exp()
    clipped = ratio.clamp(1 - clip, 1 + (clip if clip_high is None else clip_high))
    gain = torch.min(ratio * advantage, clipped * advantage)
    loss = -(gain if weight is None else weight * gain).mean()
    beyond = (ratio - 1).abs() > clip if clip_high is None else ratio != clipped
    return loss, beyond.float().mean()


def value_loss(value: Tensor, returns: Tensor, old_value: Tensor | None, clip: float) -> Tensor:
    """Mean squared error of values (B,); with `old_value` (B,), the mean of the larger error of the value and of the
    value clipped to within `clip` of the old one."""
    error = (value - returns).square()
    if old_value is not None:
        near = old_value + (value - old_value).clamp(-clip, clip)
        error = torch.max(error, (near - returns).square())
    return error.mean()
