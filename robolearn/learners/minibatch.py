"""Minibatches: rows of a batch, gathered into tensors at fixed addresses, as CUDA graphs need them."""

from __future__ import annotations

import torch

from robolearn.envs.state import Tensor
from robolearn.learners.networks import Normalizer
from robolearn.learners.recurrent import ActorRecurrence
from robolearn.tasks.mdp.symmetry import Reflection

Tables = dict[str, Tensor]
"""A batch's data by name: (M, ...) of samples, or (T, N, ...) where minibatches are whole environments."""


class Minibatch:
    """Buffers for the rows of one minibatch; gathering overwrites them."""

    def __init__(self, tables: Tables, size: int, recurrence: ActorRecurrence | None) -> None:
        """Buffers for `size` samples of tables like these; with a recurrent actor, for `size` environments."""
        self._dim = 0 if recurrence is None else 1
        self._rows = {
            name: x.new_empty(*x.shape[: self._dim], size, *x.shape[self._dim + 1 :])
            for name, x in tables.items()
        }
        self.part = self._rows if recurrence is None else recurrence.as_samples(self._rows)
        """The gathered samples by name; see `ActorRecurrence.as_samples`."""

    def gather(self, tables: Tables, chosen: Tensor) -> None:
        """Gather these rows, int64 (size,)."""
        for name, buffer in self._rows.items():
            torch.index_select(tables[name], self._dim, chosen, out=buffer)


def with_mirror_image(
    part: dict[str, Tensor], action: Reflection, seen: dict[str, tuple[Reflection, Normalizer]]
) -> dict[str, Tensor]:
    """A minibatch (B, ...) followed by its mirror image, (2 B, ...): Mittal et al. (2024), "Symmetry
    Considerations for Learning Task Symmetric Robot Policies".

    `seen` maps the names of observations in it to the reflection of their columns and their normalizer.
    """
    mirrored = dict(part)
    for name, (reflection, normalizer) in seen.items():
        # Reflect the raw observations: left and right columns are normalized with different scales.
        raw = normalizer.inverse(part[name].float())
        mirrored[name] = normalizer(reflection(raw)).to(part[name].dtype)
    mirrored["action"] = action(part["action"])
    for name in ("mean", "reference"):
        if name in part:
            mirrored[name] = action(part[name])
    return {name: torch.cat((x, mirrored[name])) for name, x in part.items()}
