"""Observations with a history: the last samples of an item, the oldest first, one after the other in its columns."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import torch

from robolearn.core.env_state import Named
from robolearn.envs.state import Tensor
from robolearn.tasks.mdp.observations import Observation

Columns = Mapping[str, Sequence[tuple[Observation, int]]]
"""Items of each group, in the order of the columns, with their widths."""


class ObservationHistory:
    """Keeps the past of items with `Observation.history` above 1.

    Its state is a node of the EnvState: for each such item, by group and name, the last samples
    (N, history, width of one sample), the oldest first. After a reset all of them are the first sample.
    """

    def __init__(self, samples: Columns) -> None:
        """`samples` has the width of one sample of each item."""
        self.samples = samples
        self.columns = {g: [(item, item.history * k) for item, k in items] for g, items in samples.items()}
        """The items with the widths they take in the observation."""

    def _past(self) -> Iterator[tuple[str, str, slice, int]]:
        """(name, group, columns among the samples, history) of each item that has one."""
        for group, items in self.samples.items():
            column = 0
            for item, width in items:
                if item.history > 1:
                    yield f"{group}/{item.name}", group, slice(column, column + width), item.history
                column += width

    def empty(self, num_envs: int, device: torch.device) -> Named:
        """A past of zeros."""
        return {
            name: torch.zeros(num_envs, history, part.stop - part.start, device=device)
            for name, _, part, history in self._past()
        }

    def start(self, samples: Named) -> Named:
        """The past after a reset, of the first `samples`, (N, D) a group."""
        return {
            name: samples[group][:, part][:, None].repeat(1, history, 1)
            for name, group, part, history in self._past()
        }

    def push(self, past: Named, samples: Named) -> Named:
        """The past with one more sample of each item, (N, D) a group."""
        return {
            name: torch.cat((past[name][:, 1:], samples[group][:, part][:, None]), dim=1)
            for name, group, part, _ in self._past()
        }

    def joined(self, samples: Named, past: Named) -> dict[str, Tensor]:
        """The observations: `samples` with those of an item with a history replaced by its whole past."""
        out = dict(samples)
        for group, items in self.samples.items():
            if group in samples and any(item.history > 1 for item, _ in items):
                parts, column = [], 0
                for item, width in items:
                    own = samples[group][:, column : column + width]
                    parts.append(past[f"{group}/{item.name}"].flatten(1) if item.history > 1 else own)
                    column += width
                out[group] = torch.cat(parts, dim=1)
        return out
