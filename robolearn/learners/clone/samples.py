"""Demonstrations as batches, from which gradient steps take minibatches."""

from __future__ import annotations

import torch

from robolearn.core.shards import Shards
from robolearn.envs.state import Tensor
from robolearn.learners.demonstrations.demonstrations import Demonstrations
from robolearn.learners.rollout import Batch

MAX_STREAMS = 256
"""Most rows of episodes, one after the other, that recurrent layers run along at the same time."""


class Samples:
    """Steps of demonstrations as a batch of T steps in N columns.

    Each shard has its own columns. The steps of a column follow each other where they are `streams`; elsewhere their
    order has no meaning.
    """

    def __init__(self, demonstrations: Demonstrations, rows: Tensor, valid: Tensor, share: float) -> None:
        """`rows` (T, N) int64 are the demonstrations' steps at each place, `valid` (T, N) bool whether there is one;
        `share` is that of the places with one, of all shards."""
        self.rows, self.valid, self.share = rows, valid, share
        done = torch.zeros(demonstrations.steps, dtype=torch.bool, device=rows.device)
        done[torch.as_tensor(demonstrations.lengths, device=rows.device).cumsum(0) - 1] = True
        self._demonstrations, self._done = demonstrations, done
        self.batch = self._batch(slice(None))

    def _batch(self, steps: slice) -> Batch:
        rows, d = self.rows[steps], self._demonstrations
        none = torch.zeros_like(rows, dtype=torch.bool)
        return Batch(
            observations={name: self._followed(x[rows]) for name, x in d.observations.items()},
            action=d.action[rows],
            mean=d.action[rows],
            reward=torch.zeros(rows.shape, device=rows.device),
            done=self._done[rows] | ~self.valid[steps],  # what follows the last episode starts anew
            truncated=none,
            terminal={},
        )

    @staticmethod
    def _followed(obs: Tensor) -> Tensor:
        """The observations (T, N, D) with one more step, which no loss reads."""
        return torch.cat((obs, obs[-1:]))

    def of(self, values: Tensor) -> Tensor:
        """Values (M, ...) of the demonstrations' steps at each place, (T, N, ...); 0 where there is none."""
        taken = values[self.rows]
        return torch.where(self.valid.view(*self.valid.shape, *[1] * (taken.dim() - 2)), taken, 0)

    def windows(self, length: int) -> list[tuple[slice, Batch]]:
        """Batches of `length` successive steps, with their places."""
        starts = range(0, len(self.rows), length)
        return [(steps, self._batch(steps)) for start in starts for steps in [slice(start, start + length)]]


def shuffled(demonstrations: Demonstrations, shards: Shards) -> Samples:
    """All steps, in one column a shard; the last few are left out where they do not divide among the shards."""
    device = demonstrations.action.device
    count = demonstrations.steps // shards.total
    rows = torch.arange(count * shards.total, device=device).view(count, shards.total)
    mine = rows[:, shards.mine.start : shards.mine.stop].contiguous()
    return Samples(demonstrations, mine, torch.ones_like(mine, dtype=torch.bool), 1.0)


def streams(demonstrations: Demonstrations, shards: Shards, window: int = 1) -> Samples:
    """Whole episodes, one after the other in columns of about equal length, a multiple of `window`; places at the end
    of the shorter ones hold no step."""
    wanted = min(MAX_STREAMS, demonstrations.episodes)
    count = max(shards.total, wanted // shards.total * shards.total)
    columns: list[list[Tensor]] = [[] for _ in range(count)]
    filled = [0] * count
    starts = [0, *torch.as_tensor(demonstrations.lengths).cumsum(0).tolist()]
    for i, steps in sorted(enumerate(demonstrations.lengths), key=lambda each: (-each[1], each[0])):
        shortest = filled.index(min(filled))
        columns[shortest].append(torch.arange(starts[i], starts[i] + steps))
        filled[shortest] += steps
    length = -(-max(filled) // window) * window  # fixed sizes, as minibatches need
    rows = torch.zeros(length, count, dtype=torch.int64)
    valid = torch.zeros(length, count, dtype=torch.bool)
    for column, parts in enumerate(columns):
        if parts:
            rows[: filled[column], column], valid[: filled[column], column] = torch.cat(parts), True
    mine = slice(shards.mine.start, shards.mine.stop)
    device = demonstrations.action.device
    share = demonstrations.steps / rows.numel()
    places = (rows[:, mine].contiguous().to(device), valid[:, mine].contiguous().to(device))
    return Samples(demonstrations, *places, share)
