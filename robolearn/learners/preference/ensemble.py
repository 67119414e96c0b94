"""A reward learned from preferences: several small networks, and the Bradley-Terry loss.

Christiano et al. (2017), "Deep Reinforcement Learning from Human Preferences", sec. 2.2: the probability that a
segment is preferred is a logistic function of the difference in summed reward (Bradley and Terry, 1952). The mean of
the networks is the reward; how far they are apart tells where it is not known.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from robolearn.envs.state import Tensor
from robolearn.tasks.mdp.context import Random

RATE = 3e-3
"""Adam's step size."""
DECAY = 1e-2
"""Weight decay: Loshchilov and Hutter (2019), "Decoupled Weight Decay Regularization"."""
PAIRS = 32
"""Pairs of a gradient step."""
ROWS = 65536
"""Rows that are evaluated at once."""
LEAST = 1e-6
"""Smallest standard deviation of an observation that is divided by."""
FLAT = 0.1
"""Smallest standard deviation of a network's rewards that they are divided by. In units of the logistic: one standard
deviation in every step of a segment, of FLAT, makes it preferred with the probability sigmoid(FLAT) = 0.525. Where the
answers tell less than that, as where all are equal, the reward stays small."""
APART = 0.1
"""Smallest standard deviation of the networks' normalized mean, relative to their own, that it is divided by: 64
networks that have nothing in common have 1/8."""


def bradley_terry(first: Tensor, second: Tensor, target: Tensor, noise: float = 0.0) -> Tensor:
    """The loss (...) of pairs whose segments have the summed rewards `first` and `second` (...).

    It is the cross entropy of `target` (...), the wanted probability that the first is better: 1, 0, or 1/2 where both
    are equal, and P = (1 - noise) sigmoid(first - second) + noise / 2, where a share `noise` of the answers is random.
    """
    apart = first - second
    if not noise:
        yes, no = nn.functional.logsigmoid(apart), nn.functional.logsigmoid(-apart)
    else:
        yes = ((1 - noise) * torch.sigmoid(apart) + noise / 2).log()
        no = ((1 - noise) * torch.sigmoid(-apart) + noise / 2).log()
    return -(target * yes + (1 - target) * no)


@dataclass
class Compared:
    """Answered pairs of segments, as tensors."""

    observations: Tensor
    """(S, T, D) of S segments, after each step; 0 after the end of a shorter one."""
    counted: Tensor
    """(S, T) 1 in the steps of a segment, and 0 after its end."""
    first: Tensor
    """(P,) int64 rows of the segments of P pairs."""
    second: Tensor
    """(P,)."""
    target: Tensor
    """(P,) wanted probability that the first is better."""
    held_out: Tensor
    """(P,) bool: pairs that are not learned from."""

    def rows(self) -> Tensor:
        """(M, D) the observations of all steps."""
        return self.observations[self.counted > 0]


class Ensemble(nn.Module):
    """K networks of one size, each from observations (B, D) to a reward; they are computed side by side."""

    def __init__(self, inputs: int, members: int, hidden: Sequence[int], random: Random) -> None:
        """Untrained networks on the device of `random`, which draws their weights."""
        super().__init__()
        self.members = members
        widths = [inputs, *hidden, 1]
        self.weights, self.biases = nn.ParameterList(), nn.ParameterList()
        for i, (width, out) in enumerate(itertools.pairwise(widths)):
            bound = 1 / math.sqrt(width)
            last = i == len(hidden)
            # Small rewards at the start: no answer is surer than the data make it.
            scale = 0.1 * bound if last else bound
            self.weights.append(nn.Parameter(random.uniform(-scale, scale, members, width, out)))
            self.biases.append(nn.Parameter(random.uniform(-scale, scale, members, 1, out)))
        device = random.device
        for name, value in (
            ("seen_mean", torch.zeros(inputs)),
            ("seen_std", torch.ones(inputs)),
            ("mean", torch.zeros(members, 1)),
            ("std", torch.ones(members, 1)),
            ("scale", torch.ones(())),
            ("steps", torch.zeros(())),
        ):
            self.register_buffer(name, value.to(device))

    seen_mean: Tensor
    """(D,) mean and standard deviation of the observations that were compared."""
    seen_std: Tensor
    mean: Tensor
    """(K, 1) mean and standard deviation of each network's rewards over the steps that were compared."""
    std: Tensor
    scale: Tensor
    """() standard deviation of their normalized mean over the same steps, relative to that of each."""
    steps: Tensor
    """() number of steps that sums of rewards are divided by: those of the longest segment that was first learned from,
    so that longer ones that come later do not change what the others mean; 0 before."""

    def forward(self, observations: Tensor) -> Tensor:
        """(K, B) rewards of each network, not normalized, of observations (B, D)."""
        x = ((observations - self.seen_mean) / self.seen_std).clamp(-10.0, 10.0)
        x = x.expand(self.members, *x.shape)
        layers = list(zip(self.weights, self.biases, strict=True))
        for weight, bias in layers[:-1]:
            x = nn.functional.elu(torch.baddbmm(bias, x, weight))
        weight, bias = layers[-1]
        return torch.baddbmm(bias, x, weight).squeeze(-1)

    @torch.no_grad()
    def reward(self, observations: Tensor) -> tuple[Tensor, Tensor]:
        """The reward (...) and the disagreement (...) of observations (..., D).

        Each network's reward is normalized to mean 0 and standard deviation 1 over the compared steps; see `normalize`
        for what does not hold. The reward is their mean, scaled to standard deviation 1 again; the disagreement is
        their standard deviation on that scale.
        """
        flat = observations.reshape(-1, observations.shape[-1])
        each = torch.cat([self(part) for part in flat.split(ROWS)], dim=1)
        normalized = (each - self.mean) / self.std
        mean = normalized.mean(dim=0) / self.scale
        spread = normalized.std(dim=0, correction=0) / self.scale
        return mean.view(observations.shape[:-1]), spread.view(observations.shape[:-1])

    @torch.no_grad()
    def normalize(self, rows: Tensor, centered: bool = True) -> None:
        """Set mean and standard deviation of the rewards to those over observations (M, D).

        Without `centered`, the mean stays 0: where segments differ in length, a constant per step changes which of them
        has the larger sum. Rewards that hardly vary are not enlarged, see `FLAT` and `APART`.
        """
        each = torch.cat([self(part) for part in rows.split(ROWS)], dim=1)
        self.mean.copy_(each.mean(dim=1, keepdim=True) if centered else torch.zeros_like(self.mean))
        self.std.copy_(each.std(dim=1, keepdim=True, correction=0).clamp(min=FLAT))
        normalized = (each - self.mean) / self.std
        size = normalized.std(dim=1, correction=0).square().mean().sqrt()
        common = normalized.mean(dim=0).std(correction=0) / size.clamp(min=LEAST)
        self.scale.copy_(common.clamp(min=APART))

    def returns(self, observations: Tensor, counted: Tensor) -> Tensor:
        """(K, S) summed rewards of segments (S, T, D), divided by `steps`, before the first learning by T: a common
        factor, with which the networks need not learn a scale that depends on the length."""
        count, steps, width = observations.shape
        each = self(observations.reshape(-1, width)).view(self.members, count, steps)
        return (each * counted).sum(dim=-1) / torch.where(self.steps > 0, self.steps, float(steps))

    @torch.no_grad()
    def preferred(self, data: Compared) -> Tensor:
        """(K, P) each network's probability that the first segment of a pair is the better one."""
        sizes = max(1, ROWS // data.observations.shape[1])
        parts = zip(data.observations.split(sizes), data.counted.split(sizes), strict=True)
        returns = torch.cat([self.returns(*part) for part in parts], dim=1)
        return torch.sigmoid(returns[:, data.first] - returns[:, data.second])

    def fit(
        self, data: Compared, random: Random, epochs: int, noise: float = 0.0, bootstrap: bool = False
    ) -> None:
        """Learn from the pairs that are not held out, and normalize; the optimizer starts anew.

        Args:
            data: at least one pair that is not held out.
            random: draws the order of the pairs, and with `bootstrap` the sample of each network.
            epochs: passes over the pairs.
            noise: see `bradley_terry`.
            bootstrap: whether each network learns from its own sample (Efron, 1979), drawn with replacement.
        """
        learned = (~data.held_out).nonzero().squeeze(-1)
        rows, count = data.rows(), len(learned)
        longest = torch.full_like(self.steps, data.counted.shape[1])
        self.steps.copy_(torch.where(self.steps > 0, self.steps, longest))
        self.seen_mean.copy_(rows.mean(dim=0))
        self.seen_std.copy_(rows.std(dim=0, correction=0))
        self.seen_std.copy_(torch.where(self.seen_std > LEAST, self.seen_std, 1.0))
        weight = torch.ones(self.members, count, device=rows.device)
        if bootstrap:
            drawn = torch.randint(
                count, (self.members, count), generator=random.generator, device=random.device
            )
            weight = torch.zeros_like(weight).scatter_add_(1, drawn, torch.ones_like(weight))
        adam = torch.optim.AdamW(self.parameters(), lr=RATE, weight_decay=DECAY)
        for _ in range(epochs):
            order = torch.randperm(count, generator=random.generator, device=random.device)
            for chosen in order.split(PAIRS):
                pairs = learned[chosen]
                both = torch.cat((data.first[pairs], data.second[pairs]))
                first, second = self.returns(data.observations[both], data.counted[both]).chunk(2, dim=1)
                loss = bradley_terry(first, second, data.target[pairs], noise)
                adam.zero_grad()
                (loss * weight[:, chosen]).sum(dim=0).mean().backward()
                adam.step()
        self.normalize(rows, centered=bool((data.counted > 0).all()))

    def accuracy(self, data: Compared) -> float:
        """Share of the held-out pairs, without equal ones, whose better segment has the higher sum of `reward`, which
        is what a learner gets; nan where there is no such pair. Waits for the device."""
        wanted = data.held_out & (data.target != 0.5)
        value, _ = self.reward(data.observations)
        returns = (value * data.counted).sum(dim=1)
        agreed = (returns[data.first] > returns[data.second]) == (data.target > 0.5)
        total = int(wanted.sum())
        return int((agreed & wanted).sum()) / total if total else math.nan

    def saved(self) -> dict[str, Any]:
        """Weights and normalization, copied."""
        return {name: value.detach().clone() for name, value in self.state_dict().items()}
