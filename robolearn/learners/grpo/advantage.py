"""Advantages of rollouts without a critic: each is compared with the others of its group, or of its batch.

A group is G neighbouring environments. With baseline and normalize =
    group, group          GRPO: Shao et al. (2024), "DeepSeekMath", sec. 4.1
    group, none           Dr. GRPO: Liu et al. (2025), "Understanding R1-Zero-Like Training", sec. 3.2
    leave_one_out, none   RLOO: Ahmadian et al. (2024), "Back to Basics", sec. 2.3
    batch, batch          REINFORCE++: Hu et al. (2025), "REINFORCE++", sec. 3.2, without its penalty in the reward
"""

from __future__ import annotations

import torch

from robolearn.core.shards import ONE, Shards
from robolearn.envs.state import Tensor

EQUAL = 1e-6
"""Returns whose spread is a smaller share of their size differ by rounding only."""


def alive(done: Tensor) -> Tensor:
    """(T, N) bool: steps up to the first end of an episode, of `done` (T, N)."""
    ended = done.long().cumsum(dim=0) - done.long()
    return ended == 0


def returns_to_go(reward: Tensor, valid: Tensor, gamma: float) -> Tensor:
    """(T, N) discounted sums of the rewards (T, N) from each step on, over the steps in `valid` (T, N) bool."""
    out, carried = torch.empty_like(reward), torch.zeros_like(reward[0])
    for t in reversed(range(len(reward))):
        carried = torch.where(valid[t], reward[t] + gamma * carried, 0.0)
        out[t] = carried
    return out


def credited(reward: Tensor, valid: Tensor, gamma: float, credit: str) -> Tensor:
    """(T, N) what each step is judged by, or (1, N) where all steps of a rollout are judged by the same; see
    `GRPOConfig.credit`."""
    to_go = returns_to_go(reward, valid, gamma)
    return to_go if credit == "to_go" else to_go[:1]


def group_advantage(
    returns: Tensor,
    group_size: int,
    baseline: str,
    normalize: str,
    valid: Tensor | None = None,
    shards: Shards = ONE,
) -> Tensor:
    """Advantages (T, N) of `returns` (T, N), T = 1 for one number a rollout; see the top of this file.

    `valid` (T, N) bool are the steps that there are; None: all. Where a group is compared with itself and its returns
    are equal, its advantages are 0, whatever they are divided by. Spreads are over all steps of a group, or of all
    rollouts.
    """
    steps, envs = returns.shape
    grouped = returns.view(steps, envs // group_size, group_size)
    counted = torch.ones_like(grouped) if valid is None else valid.view_as(grouped).to(grouped.dtype)
    if baseline in ("group", "leave_one_out"):
        difference = grouped - grouped.mean(dim=-1, keepdim=True)
        # Of equal numbers, the mean may differ from each by rounding, and so may the spread from 0.
        spread, size = _root_mean_square(difference, counted), _root_mean_square(grouped, counted)
        difference = torch.where(spread > EQUAL * size, difference, 0.0)
        if baseline == "leave_one_out":
            difference = difference * (group_size / (group_size - 1))
    else:
        # Each step with the same step of the others: early steps have more left to earn than late ones.
        common = _mean(grouped, counted, shards, by_step=True) if baseline == "batch" else 0.0
        difference = grouped - common
    scale = torch.ones_like(grouped)
    if normalize == "group":
        if baseline in ("group", "leave_one_out"):
            scale = _root_mean_square(difference, counted)
        else:
            spread = _root_mean_square(grouped - grouped.mean(dim=-1, keepdim=True), counted)
            scale = torch.where(spread > EQUAL * _root_mean_square(grouped, counted), spread, 0.0)
    elif normalize == "batch":
        scale = _mean(difference.square(), counted, shards).sqrt()
    advantage = torch.where(scale > 0, difference / torch.where(scale > 0, scale, 1.0), 0.0)
    return advantage.view(steps, envs)


def group_spread(returns: Tensor, group_size: int) -> Tensor:
    """(N / G,) spread of the returns (N,) in each group, 0 where they are equal but for rounding."""
    grouped = returns.view(-1, group_size)
    spread = grouped.std(dim=-1, correction=0)
    return torch.where(spread > EQUAL * grouped.square().mean(dim=-1).sqrt(), spread, 0.0)


def _root_mean_square(grouped: Tensor, counted: Tensor) -> Tensor:
    """(1, M, 1) of each group's numbers (T, M, G), with weights `counted`."""
    total = (grouped.square() * counted).sum(dim=(0, 2), keepdim=True)
    return (total / counted.sum(dim=(0, 2), keepdim=True)).sqrt()


def _mean(grouped: Tensor, counted: Tensor, shards: Shards, by_step: bool = False) -> Tensor:
    """The mean over all rollouts of all ranks, (T, 1, 1) of each step, or ()."""
    dims = (1, 2) if by_step else (0, 1, 2)
    total, count = (
        shards.mean([part.sum(dim=dims, keepdim=by_step) for part in shards.parts(x, dim=1)])
        for x in (grouped * counted, counted)
    )
    return total / count.clamp(min=1.0 / max(1, grouped.shape[1]))


def weights(valid: Tensor, length: str, shards: Shards = ONE) -> Tensor:
    """(T, N) weight of each step in the loss, 0 outside of `valid` (T, N), on average 1 over all T N; see
    `GRPOConfig.length`."""
    lengths = valid.sum(dim=0).float()
    mean = shards.mean([part.mean() for part in shards.parts(lengths)])
    each = len(valid) / (mean.expand_as(lengths) if length == "step" else lengths)
    return valid * each
