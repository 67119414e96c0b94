"""Arrival: what sensors send arrives late, or not at all."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from robolearn.core.env_state import Named
from robolearn.core.noise import Items, drawn_of_agents
from robolearn.envs.state import Tensor
from robolearn.errors import ConfigError
from robolearn.tasks.mdp.context import Random
from robolearn.tasks.mdp.sensing import POLICY, Sensing
from robolearn.tasks.mdp.sensors import AGENT

Late = tuple[tuple[int, int], float]
"""Range of the delay [control steps], and probability of a drop-out."""


def resolved(
    sensing: Mapping[str, Sensing],
    items: Items,
    sources: Mapping[str, frozenset[str]],
    sensors: Sequence[str],
) -> dict[str, Sensing]:
    """`Task.sensing` by item: that of `policy` for each item that is computed from sensors alone and not named."""
    out = {name: each for name, each in sensing.items() if name != POLICY}
    if POLICY in sensing:
        known = set(sensors) - {AGENT.name}  # a robot knows which one it is
        measured = [i.name for i, _ in items if sources[i.name] and sources[i.name] <= known]
        out = {**dict.fromkeys(measured, sensing[POLICY]), **out}
    return out


def channels_of(
    sensing: Mapping[str, Sensing],
    sources: Mapping[str, frozenset[str]],
    sensors: Sequence[str],
    task_state: Mapping[str, frozenset[str]],
) -> list[tuple[frozenset[str], Late]]:
    """The channels by which sensors send what arrives late: their sensors, and how late. Sensors that one item reads
    together share a channel.

    Args:
        sensing: by item, see `resolved`.
        sources: what each item of the group `policy` is computed from: names of sensors, and of whatever else.
        sensors: names of the sensors.
        task_state: sensors that each entry of the task state is computed from, of those that the policy depends on.

    Raises:
        ConfigError: an item that is not computed from sensors alone would have to arrive late, or one sensor is read by
            items or task state with different delays; they are named.
    """
    known = set(sensors)
    late = {name: (each.delay, each.dropout) for name, each in sensing.items() if each.late}
    if not late:
        return []
    for name in late:
        if remembered := sorted(sources[name] - known):
            raise ConfigError(
                f"sensing.{name}: {name} is computed from {remembered[0]}, which the robot's "
                "computer knows at once; only what sensors measure has a delay or drop-out"
            )
        if not sources[name]:
            raise ConfigError(f"sensing.{name}: {name} is computed from no sensor, so nothing arrives late")
    found: list[tuple[set[str], Late, str]] = []
    for name, how in late.items():
        mine, first = set(sources[name]), name
        for other_sensors, other_how, other in [each for each in found if each[0] & mine]:
            if other_how != how:
                raise ConfigError(
                    f"sensing.{name}: {name} and {other} are computed from the same sensor "
                    f"({', '.join(sorted(other_sensors & mine))}), so their delay and dropout must be the same"
                )
            mine, first = mine | other_sensors, other
            found.remove((other_sensors, other_how, other))
        found.append((mine, how, first))
    for mine, _, first in found:
        for name, read in sources.items():
            if name not in late and (shared := sorted(read & mine)):
                raise ConfigError(
                    f"sensing.{first}: {name} is computed from the same sensor ({shared[0]}), so its delay and dropout "
                    "must be the same"
                )
        for name, read in task_state.items():
            if shared := sorted(read & mine):
                raise ConfigError(
                    f"sensing.{first}: the task state {name!r} is computed from the same sensor ({shared[0]}), and its "
                    "delay or drop-out is not simulated"
                )
    return [(frozenset(mine), how) for mine, how, _ in found]


class Arrival:
    """Holds and delays some columns of the values (N, K) of a step: samples of the policy group, then readings of the
    sensors that these are computed from, which arrive with them.

    Where a channel drops out, its values of the step before hold; the values of `lag` steps before arrive. Lags are
    drawn at a reset with one number for all channels, as of one bus: those of the same range are the same.

    Its state is a node of the EnvState: `lag` (N, C) int64 of each channel, and `past` (N, longest lag + 1, K), the
    newest first.
    """

    def __init__(
        self, late: Sequence[Late], channel: Sequence[int], agents: int, device: torch.device
    ) -> None:
        """
        Args:
            late: delay and drop-out of each channel.
            channel: of each column, its channel; -1 for one that always arrives at once.
            agents: number of agents of a world.
        """
        self.agents, self.count = agents, len(late)
        self.longest = max((delay[1] for delay, _ in late), default=0)
        self.dropping = any(dropout > 0 for _, dropout in late)
        """Whether any channel drops out."""
        # One more channel for the columns that have none: lag 0, no drop-out.
        rows = [(*delay, dropout) for delay, dropout in late] + [(0, 0, 0.0)]
        table = torch.tensor(rows, dtype=torch.float32, device=device)
        self._low, self._high, self._dropout = table.unbind(dim=1)
        self._channel = torch.tensor([c % (self.count + 1) for c in channel], device=device)

    @property
    def on(self) -> bool:
        """Whether any value arrives late."""
        return self.count > 0

    def empty(self, num_envs: int, device: torch.device) -> Named:
        """Nothing on its way."""
        if not self.on:
            return {}
        return {
            "lag": torch.zeros(num_envs, self.count + 1, dtype=torch.long, device=device),
            "past": torch.zeros(num_envs, self.longest + 1, len(self._channel), device=device),
        }

    def none(self, num_envs: int) -> Tensor:
        """(N, C + 1) bool: no channel drops out."""
        return torch.zeros(num_envs, self.count + 1, dtype=torch.bool, device=self._dropout.device)

    def drops(self, random: Random, num_envs: int) -> Tensor:
        """(N, C + 1) bool: which channels drop out in this step."""
        part = drawn_of_agents(random.rand, num_envs, self.count + 1, self.agents)
        return part < self._dropout

    def push(self, line: Named, values: Tensor, drops: Tensor | None) -> tuple[Tensor, Named]:
        """Put in this step's values (N, K).

        Returns:
            The values (N, K) that arrive in this step, and the line after it.
        """
        newest = values
        if drops is not None:
            newest = torch.where(drops[:, self._channel], line["past"][:, 0], values)
        past = torch.cat((newest[:, None], line["past"][:, :-1]), dim=1)
        line = {**line, "past": past}
        return self.arrived(line), line

    def arrived(self, line: Named) -> Tensor:
        """The values (N, K) that have arrived last."""
        lag = line["lag"][:, self._channel]
        return line["past"].gather(1, lag[:, None]).squeeze(1)

    def start(self, line: Named, random: Random, values: Tensor) -> Named:
        """A line with new lags that is filled with the first values (N, K) of episodes."""
        part = random.rand(len(values))[:, None]
        lag = (self._low + part * (self._high + 1 - self._low)).long()
        lag = torch.minimum(lag, self._high.long())
        return {**line, "lag": lag, "past": values[:, None].expand_as(line["past"]).contiguous()}
