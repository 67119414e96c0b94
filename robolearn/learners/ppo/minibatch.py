"""Minibatches: rows of a batch, gathered into tensors that stay where they are."""

from __future__ import annotations

import torch

from robolearn.envs.state import Tensor
from robolearn.learners.networks import Normalizer
from robolearn.learners.recurrent import ActorRecurrence
from robolearn.tasks.mdp.symmetry import Reflection

Tables = dict[str, Tensor]
"""What a batch holds of each sample, by name: (M, ...), or (T, N, ...) where whole environments are learned from."""


class Minibatch:
    """Room for the rows of one minibatch; gathering overwrites it."""

    def __init__(self, tables: Tables, size: int, recurrence: ActorRecurrence | None) -> None:
        """Room for `size` samples of tables like these, or of a recurrent actor for `size` environments."""
        self._dim = 0 if recurrence is None else 1
        self._rows = {
            name: x.new_empty(*x.shape[: self._dim], size, *x.shape[self._dim + 1 :])
            for name, x in tables.items()
        }
        self.part = self._rows if recurrence is None else recurrence.as_samples(self._rows)
        """What was gathered, by name; see `ActorRecurrence.as_samples`."""

    def gather(self, tables: Tables, chosen: Tensor) -> None:
        """Take these rows, int64 (size,)."""
        for name, room in self._rows.items():
            torch.index_select(tables[name], self._dim, chosen, out=room)


def with_mirror_image(
    part: dict[str, Tensor], action: Reflection, seen: dict[str, tuple[Reflection, Normalizer]]
) -> dict[str, Tensor]:
    """A minibatch (B, ...) and after it its mirror image, (2 B, ...): Mittal et al. (2024), "Symmetry
    Considerations for Learning Task Symmetric Robot Policies".

    `seen` has, for each kind of observations in it, how their columns are reflected and what normalized them.
    """
    mirrored = dict(part)
    for name, (reflection, normalizer) in seen.items():
        # What is mirrored is what was observed: the normalized columns of left and right have other scales.
        raw = normalizer.inverse(part[name].float())
        mirrored[name] = normalizer(reflection(raw)).to(part[name].dtype)
    mirrored["action"] = action(part["action"])
    mirrored["mean"] = action(part["mean"])
    return {name: torch.cat((x, mirrored[name])) for name, x in part.items()}
