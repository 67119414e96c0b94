"""How far ahead a learner looks: a discount that grows with the levels of the task's curricula."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from robolearn.core.learner_env import LEVEL
from robolearn.envs.state import Tensor

LEVELS = f"metric/{LEVEL}"
"""Prefix of the mean levels in what `Env.drain` returns."""


class Horizon:
    """A discount between `first` and `last`.

    The horizon 1 / (1 - discount), in steps, grows in proportion to the progress of the curricula: the mean of their
    levels, each as a share of that of a complete training. Before a robot walks, what happens two seconds later adds
    only noise to its returns, and it learns to stand still, which is safe; once it walks, the same two seconds teach it
    not to fall.
    """

    def __init__(self, first: float, last: float, device: torch.device) -> None:
        self.first, self.last = first, last
        self.progress = 0.0
        """Progress of the curricula, 0 to 1; 0 without any."""
        self.discount: Tensor = torch.tensor(first, device=device)
        """() the discount; it keeps its address."""

    def observe(self, means: Mapping[str, float]) -> None:
        """Take what `Env.drain` returned for an iteration, means of all ranks."""
        levels = [min(value, 1.0) for name, value in means.items() if name.startswith(LEVELS)]
        self.set(float(torch.tensor(sum(levels) / max(len(levels), 1))))

    def set(self, progress: float) -> None:
        """Set the progress."""
        self.progress = progress
        if self.first == self.last:
            return
        steps = [1.0 / (1.0 - discount) for discount in (self.first, self.last)]
        self.discount.fill_(1.0 - 1.0 / ((1.0 - progress) * steps[0] + progress * steps[1]))
