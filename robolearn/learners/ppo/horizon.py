"""How far ahead a learner looks: a discount that grows with the time between two falls."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from robolearn.envs.state import Tensor
from robolearn.learners.ranks import AllReduceMean, single_rank

SHARE = 0.1
"""Horizon as a share of the mean time between two falls."""
KEPT = 0.9
"""Share that the mean rate of falls keeps in each iteration."""


class Horizon:
    """A discount between `first` and `last`.

    The horizon 1 / (1 - discount), in steps, is `SHARE` of the mean time between two falls. A robot that falls every
    second cannot learn from what happens two seconds later: that only adds noise to its returns. One that seldom falls
    learns from it to avoid the next fall.
    """

    def __init__(
        self, first: float, last: float, device: torch.device, all_reduce_mean: AllReduceMean = single_rank
    ) -> None:
        self.first, self.last, self.all_reduce_mean = first, last, all_reduce_mean
        self.falls = SHARE * (1.0 - first)
        """Smoothed number of falls a step; at the start the one that gives `first`."""
        self.discount: Tensor = torch.tensor(first, device=device)
        """() the discount; it keeps its address."""

    @property
    def progress(self) -> float:
        """How far the horizon has grown, 0 to 1."""
        found = 1.0 - self.falls / SHARE
        return min(max((found - self.first) / max(self.last - self.first, 1e-9), 0.0), 1.0)

    def observe(self, means: Mapping[str, float]) -> None:
        """Take what `Env.drain` returned for an iteration."""
        falls = means["episodes"] * means.get("episode/fall_rate", 0.0) / max(means["steps"], 1.0)
        falls = float(self.all_reduce_mean(torch.tensor(falls, device=self.discount.device)))
        self.set(KEPT * self.falls + (1.0 - KEPT) * falls)

    def set(self, falls: float) -> None:
        """Set the smoothed number of falls a step."""
        self.falls = falls
        self.discount.fill_(min(max(1.0 - falls / SHARE, self.first), self.last))
