"""Noise on the observations of the policy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from robolearn.envs.state import Tensor
from robolearn.tasks.mdp.context import Random
from robolearn.tasks.mdp.observations import Observation


class ObservationNoise:
    """Uniform noise on each column of one sample of the policy group, drawn separately for each agent of a world."""

    def __init__(
        self,
        half_widths: Mapping[str, float],
        items: Sequence[tuple[Observation, int]],
        agents: int,
        device: torch.device,
    ) -> None:
        """Half-widths by the name of an item, the `items` with their widths, and the number of agents of a world."""
        self.agents = agents
        widths = [half_widths.get(item.name, 0.0) for item, width in items for _ in range(width)]
        self.row = torch.tensor(widths, device=device) if half_widths else None
        """(D,) half-width of each column; None without noise."""

    def draw(self, random: Random, num_envs: int) -> Tensor | float:
        """Noise (N, D), or 0 without any."""
        if self.row is None:
            return 0.0
        # Not a row for each environment, which would be the same for all agents of a world; see `Random.group`.
        width = len(self.row)
        drawn = random.uniform(-1.0, 1.0, num_envs // self.agents, self.agents * width)
        return drawn.view(num_envs, width).mul_(self.row)
