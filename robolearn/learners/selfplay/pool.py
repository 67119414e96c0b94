"""The pool: past policies of a training with their ratings, which of them are kept, and which is the next opponent."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from robolearn.envs.state import Tensor
from robolearn.learners.selfplay.rating import expected

EXPLORED = 0.2
"""Share of the draws in which every past policy is as likely as any other, so that none is forgotten."""


@dataclass(frozen=True)
class Member:
    """A past policy; nothing of it changes."""

    iteration: int
    """After which it joined, 0 before the first."""
    rating: float
    """That of the training policy at that time."""
    weights: Mapping[str, Tensor]
    """Its network, with the statistics of its normalizer."""


class Pool:
    """Past policies, from the oldest to the newest."""

    def __init__(self, size: int) -> None:
        """At most `size` members are kept."""
        self.size = size
        self.members: list[Member] = []

    def add(self, iteration: int, rating: float, weights: Mapping[str, Tensor]) -> None:
        """Add a policy; the weights are copied. Of more than `size` members one leaves, see `_crowded`."""
        copies = {name: value.detach().clone() for name, value in weights.items()}
        self.members.append(Member(iteration, rating, copies))
        if len(self.members) > self.size:
            self.members.pop(self._crowded())

    def _crowded(self) -> int:
        """Index of the member whose neighbours are closest together in time, so that those who stay are spread over the
        training. Neither the first nor the newest, unless there is no other."""
        times = [member.iteration for member in self.members]
        inner = range(1, len(times) - 1)
        return min(inner, key=lambda i: times[i + 1] - times[i - 1], default=0)

    def chances(self, rating: float) -> Tensor:
        """(P,) float64 probability of each member as the next opponent of a policy of this rating.

        Members who are expected to score evenly are preferred, by the variance x (1 - x) of a game with the expected
        score x: from those who always lose, or always win, little is to be learned (Vinyals et al., 2019, "Grandmaster
        level in StarCraft II", prioritized fictitious self-play with f_var). A share is drawn from all alike (Bansal
        et al., 2018, "Emergent Complexity via Multi-Agent Competition").
        """
        scores = torch.tensor([expected(rating, m.rating) for m in self.members], dtype=torch.float64)
        even = scores * (1 - scores)
        return (1 - EXPLORED) * even / even.sum() + EXPLORED / len(scores)

    def draw(self, rating: float, generator: torch.Generator) -> Member:
        """The next opponent of a policy of this rating."""
        chosen = torch.multinomial(self.chances(rating), 1, generator=generator)
        return self.members[int(chosen)]

    def state_dict(self) -> list[dict[str, Any]]:
        """What a checkpoint saves: plain values and tensors, not copied."""
        return [
            {"iteration": m.iteration, "rating": m.rating, "weights": dict(m.weights)} for m in self.members
        ]

    def load_state_dict(self, state: list[dict[str, Any]], device: torch.device) -> None:
        """Continue with what `state_dict` returned; of more than `size` members those leave who would have."""
        self.members = []
        for entry in state:
            weights = {name: value.to(device) for name, value in entry["weights"].items()}
            self.add(entry["iteration"], entry["rating"], weights)
