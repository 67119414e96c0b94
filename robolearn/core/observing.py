"""What is observed of a State: a sample of each item, what happens to it on its way to the policy, and the past."""

from __future__ import annotations

from typing import cast

import torch

from robolearn.core import env_state
from robolearn.core.delay import DelayLine
from robolearn.core.env_state import EnvState, Named
from robolearn.core.history import Columns, ObservationHistory
from robolearn.core.noise import ObservationNoise
from robolearn.core.rows import Rows
from robolearn.envs.state import State, Tensor
from robolearn.tasks.mdp.context import Context, Random, computed_once
from robolearn.tasks.mdp.task import Task


class Observing:
    """Computes the observation groups of an Env; what it keeps from step to step is in the EnvState.

    A sample of the group `policy` becomes what the policy observes in this order: noise, delay, history. Other groups
    have a history only.
    """

    def __init__(self, task: Task, samples: Columns, agents: int, device: torch.device) -> None:
        """`samples` are the items of each group with the width of one sample; `agents` the number of those of a
        world."""
        self._history = ObservationHistory(samples)
        self.columns = self._history.columns
        """Items of each observation group with their widths, in the order of the columns."""
        self.names = {g: [i.name for i, width in items for _ in range(width)] for g, items in samples.items()}
        """The item of each column of one sample, by group."""
        self._noise = ObservationNoise(task.noise, samples["policy"], agents, device)
        self._delay = DelayLine(task.observation_delay)
        self.device = device

    def complete(self, state: EnvState, num_envs: int) -> None:
        """Add to a new EnvState what is kept here."""
        width = len(self.names["policy"])
        state.episode.observation_delay = self._delay.empty(num_envs, width, self.device)
        state.episode.history = self._history.empty(num_envs, self.device)
        if self._noise.row is not None:
            state.transit["noise"] = torch.zeros(num_envs, width, device=self.device)

    def samples(self, state: State, ctx: Context) -> Named:
        """One sample of every group (N, D), as it is."""
        return {
            name: torch.cat([computed_once(item.compute, state, ctx) for item, _ in columns], dim=1)
            for name, columns in self._history.samples.items()
        }

    def draw(self, state: EnvState, random: Random) -> None:
        """Draw the noise of a step. An episode that begins in this step begins with the same."""
        if self._noise.row is not None:
            num_envs = len(state.episode.step)
            state.transit["noise"] = cast(Tensor, self._noise.draw(random, num_envs))

    def arriving(self, state: EnvState, samples: Named) -> Named:
        """The observations (N, D) a group after one more step with these `samples`."""
        episode, seen = state.episode, dict(samples)
        if self._noise.row is not None:
            seen["policy"] = seen["policy"] + state.transit["noise"]
        seen["policy"], episode.observation_delay = self._delay.push(
            episode.observation_delay, seen["policy"]
        )
        episode.history = self._history.push(episode.history, seen)
        return self._history.joined(seen, episode.history)

    def begin(self, state: EnvState, random: Random, samples: Named, rows: Rows) -> Named:
        """The first observations of new episodes in `rows`, of their first `samples`, (K, D) a group each."""
        episode, first = state.episode, dict(samples)
        if self._noise.row is not None:
            first["policy"] = first["policy"] + rows.take(state.transit["noise"])
        line = episode.observation_delay
        if self._delay.delays:
            drawn = self._delay.draw(line, random, rows.spread(first["policy"]))
            episode.observation_delay = env_state.where(rows.mask, drawn, line)
        past = self._history.start(first)
        episode.history = rows.put(past, episode.history)
        return self._history.joined(first, past)
