"""Corrects PPO for batches that an older policy has collected, the behaviour policy.

Three policies are told apart: behaviour, which acted; proximal, the learner's before the update; and the one being
trained. The critic learns from V-trace's targets (Espeholt et al., 2018, "IMPALA: Scalable Distributed Deep-RL with
Importance Weighted Actor-Learner Architectures"), and the surrogate is clipped around the proximal policy and weighted
by the ratio of proximal and behaviour (Hilton et al., 2021, "Batch size-invariance for policy optimization"). Where
both are the same policy, all weights are 1, and V-trace is generalized advantage estimation.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from robolearn.envs.state import Tensor
from robolearn.learners.losses import log_prob
from robolearn.learners.rollout import Batch

NUMBERS = ("importance_variance", "effective_sample_size", "behaviour_kl")
"""What is reported of a correction: variance of the ratios; effective samples as a share of all; the divergence of the
policy before the update from the one that acted [nat]."""
NONE = dict(zip(NUMBERS, (0.0, 1.0, 0.0), strict=True))
"""Those of a batch of the current policy."""


@dataclass
class Correction:
    """What an update needs to know about a batch of T steps in N environments that is not of the current policy."""

    mean: Tensor
    """(T, N, A) mean of the proximal policy."""
    log_prob: Tensor
    """(T, N) log density of the actions under the policy that the clipped ratio is taken to."""
    rho: Tensor
    """(T, N) ratio of proximal and behaviour, at most `max_rho`."""
    c: Tensor
    """(T, N) the same, at most `max_trace`."""
    weight: Tensor | None
    """(T, N) weight of each sample in the surrogate; None: 1."""
    numbers: Tensor
    """(3,) in the order of NUMBERS."""


def correction(
    batch: Batch, mean: Tensor, std: Tensor, max_rho: float, max_trace: float, decoupled: bool
) -> Correction:
    """The correction of a batch whose `std` and `lag` are set.

    Args:
        batch: what was collected.
        mean: (T, N, A) the current policy's, for the observations of the batch; used where another one acted.
        std: (A,) the current policy's.
        max_rho: bound of the weight of a step, V-trace's rho-bar.
        max_trace: bound of the weight of what follows, V-trace's c-bar.
        decoupled: clip around the current policy; else around the behaviour policy, as PPO does.
    """
    assert batch.std is not None
    assert batch.lag is not None
    older = (batch.lag > 0).to(mean.device)
    # Rounding differs from that of the actor's own computation; where it is the same policy, its numbers are exact.
    mean = torch.where(older[:, None], mean, batch.mean)
    behaviour = log_prob(batch.action, batch.mean, batch.std)
    now = torch.where(older, log_prob(batch.action, mean, std), behaviour)
    ratio = (now - behaviour).exp()
    rho = ratio.clamp(max=max_rho)
    kl = divergences(batch.mean, batch.std, mean, std) * older
    counted = batch.taken(ratio).double()
    numbers = torch.stack(
        (counted.var(correction=0), effective_share(counted), batch.taken(kl).double().mean())
    )
    weight = rho if decoupled else None
    return Correction(mean, now if decoupled else behaviour, rho, ratio.clamp(max=max_trace), weight, numbers)


def divergences(old_mean: Tensor, old_std: Tensor, mean: Tensor, std: Tensor) -> Tensor:
    """Kullback-Leibler divergence KL(old || new) of Gaussians (..., A), for each sample (...); see
    `robolearn.learners.losses.divergence`."""
    spread = (old_std / std).square()
    return 0.5 * (spread - 1 - spread.log() + ((old_mean - mean) / std).square()).sum(dim=-1)


def effective_share(ratio: Tensor) -> Tensor:
    """Effective sample size of importance weights (M,) as a share of M: (sum w)^2 / (M sum w^2), Kong (1992), "A note
    on importance sampling using standardized weights"."""
    return ratio.sum().square() / (len(ratio) * ratio.square().sum()).clamp(min=1e-300)


def vtrace(
    reward: Tensor,
    value: Tensor,
    last_value: Tensor,
    done: Tensor,
    gamma: float | Tensor,
    lam: float,
    rho: Tensor,
    c: Tensor,
    event: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Advantages and V-trace targets, (T, N) each: Espeholt et al. (2018), eq. 1, with c_i = lambda min(c-bar, ratio).

    The advantage of a step is r + gamma (V(x') + lambda (v' - V(x'))) - V(x), where v' is the next step's target: with
    lambda 1 that of the paper, with all ratios 1 that of `gae`. It is not weighted by the step's own rho: the surrogate
    is.

    Args:
        reward, value, last_value, done, gamma, lam, event: as for `gae`.
        rho: (T, N) truncated ratios of the steps.
        c: (T, N) truncated ratios of the traces.
    """
    alive = 1.0 - done.to(reward.dtype)
    advantage, target = torch.empty_like(reward), torch.empty_like(reward)
    following, carried = last_value, torch.zeros_like(last_value)
    for t in reversed(range(len(reward))):
        delta = reward[t] + gamma * alive[t] * following - value[t]
        later = gamma * lam * alive[t] * carried
        advantage[t] = delta + later
        carried = rho[t] * delta + c[t] * later
        target[t], following = value[t] + carried, value[t]
        if event is not None:
            carried = torch.where(event[t], 0.0, carried)
    return advantage, target
