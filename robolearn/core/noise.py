"""Noise on the observations of the policy: white, drawn anew in each step; slow; and a bias."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import torch

from robolearn.core.env_state import Named
from robolearn.envs.state import Tensor
from robolearn.tasks.mdp.context import Random
from robolearn.tasks.mdp.observations import Observation
from robolearn.tasks.mdp.sensing import PERFECT, Sensing

Items = Sequence[tuple[Observation, int]]
"""Items of one sample of the policy group with their widths."""


def drawn_of_agents(draw: Callable[..., Tensor], num_envs: int, width: int, agents: int) -> Tensor:
    """(num_envs, width) numbers, drawn separately for each of the `agents` of a world.

    Not with a row for each environment, which would be the same for all agents of a world; see `Random.group`.
    """
    return draw(num_envs // agents, agents * width).view(num_envs, width)


class ObservationNoise:
    """Uniform noise on each column of one sample of the policy group, drawn separately for each agent of a world."""

    def __init__(
        self,
        half_widths: Mapping[str, float],
        items: Items,
        agents: int,
        device: torch.device,
    ) -> None:
        """Half-widths by the name of an item, the `items` with their widths, and the number of agents of a world."""
        self.agents = agents
        widths = [half_widths.get(item.name, 0.0) for item, width in items for _ in range(width)]
        self.row = torch.tensor(widths, device=device) if half_widths else None
        """(D,) half-width of each column; None without noise."""

    def draw(self, random: Random, num_envs: int) -> Tensor:
        """Noise (N, D)."""
        assert self.row is not None
        drawn = drawn_of_agents(
            lambda *shape: random.uniform(-1.0, 1.0, *shape), num_envs, len(self.row), self.agents
        )
        return drawn.mul_(self.row)


class EpisodeNoise:
    """Slow noise and bias of each column of one sample of the policy group.

    Slow noise is an Ornstein-Uhlenbeck process of standard deviation s and time constant T, stationary from the start
    of an episode: x' = a x + s sqrt(1 - a^2) z with a = exp(-dt / T) and z normal, which is exact for any dt
    (D. T. Gillespie, "Exact numerical simulation of the Ornstein-Uhlenbeck process and its integral", Physical Review E
    54, 1996). Its variance is s^2, and the correlation of two values a time t apart exp(-t / T).

    Its state is a node of the EnvState: `slow` and `bias` (N, D), each where an item has it.
    """

    def __init__(
        self, sensing: Mapping[str, Sensing], items: Items, dt: float, agents: int, device: torch.device
    ) -> None:
        """`sensing` by the name of an item, `dt` the control period [s], `agents` the number of those of a world."""
        self.agents = agents
        of_column = [sensing.get(item.name, PERFECT) for item, width in items for _ in range(width)]
        self.width = len(of_column)

        def row(value: Callable[[Sensing], float]) -> Tensor:
            return torch.tensor([value(each) for each in of_column], dtype=torch.float32, device=device)

        self.slow = any(each.slow[0] > 0 for each in of_column)
        """Whether any column has slow noise."""
        self.biased = any(each.bias != (0.0, 0.0) for each in of_column)
        """Whether any column has a bias."""
        self._std = row(lambda each: each.slow[0])
        self._kept = row(lambda each: math.exp(-dt / each.slow[1]) if each.slow[0] > 0 else 0.0)
        self._fresh = self._std * (1.0 - self._kept**2).sqrt()
        self._low = row(lambda each: each.bias[0])
        self._span = row(lambda each: each.bias[1]) - self._low

    def empty(self, num_envs: int, device: torch.device) -> Named:
        """No noise and no bias."""
        names = ["slow"] * self.slow + ["bias"] * self.biased
        return {name: torch.zeros(num_envs, self.width, device=device) for name in names}

    def normal(self, random: Random, num_envs: int) -> Tensor:
        """z of a step, (N, D)."""
        return drawn_of_agents(random.randn, num_envs, self.width, self.agents)

    def advanced(self, noise: Named, normal: Tensor) -> Named:
        """The noise one step later."""
        return {**noise, "slow": self._kept * noise["slow"] + self._fresh * normal}

    def start(self, noise: Named, random: Random, normal: Tensor | None) -> Named:
        """The noise of new episodes."""
        new = dict(noise)
        if normal is not None:
            new["slow"] = self._std * normal
        if self.biased:
            part = drawn_of_agents(random.rand, len(noise["bias"]), self.width, self.agents)
            new["bias"] = self._low + self._span * part
        return new
