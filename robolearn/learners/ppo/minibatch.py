"""Minibatches: rows of a batch, gathered into tensors that stay where they are."""

from __future__ import annotations

import torch

from robolearn.learners.learner import Tensor
from robolearn.learners.models import Normalizer
from robolearn.learners.recurrent import ActorMemory
from robolearn.tasks.mdp.symmetry import Symmetry

Tables = dict[str, Tensor]
"""What a batch holds of each sample, by name: (M, ...), or (T, N, ...) where whole environments are learned from."""


class Minibatch:
    """Room for the rows of one minibatch; gathering overwrites it."""

    def __init__(self, tables: Tables, size: int, memory: ActorMemory | None) -> None:
        """Room for `size` samples of tables like these, or with a memory for `size` environments."""
        self._dim = 0 if memory is None else 1
        self._rows = {
            name: x.new_empty(*x.shape[: self._dim], size, *x.shape[self._dim + 1 :])
            for name, x in tables.items()
        }
        self.part = self._rows if memory is None else memory.as_samples(self._rows)
        """What was gathered, by name; see `ActorMemory.as_samples` where there is a memory."""

    def gather(self, tables: Tables, chosen: Tensor) -> None:
        """Take these rows, int64 (size,)."""
        for name, room in self._rows.items():
            torch.index_select(tables[name], self._dim, chosen, out=room)


def with_mirror_image(
    part: dict[str, Tensor], symmetry: Symmetry, normalizers: dict[str, Normalizer]
) -> dict[str, Tensor]:
    """A minibatch (B, ...) and after it its mirror image, (2 B, ...): Mittal et al. (2024), "Symmetry
    Considerations for Learning Task Symmetric Robot Policies".

    `normalizers` are those that the groups of observations in it went through.
    """
    mirrored = dict(part)
    for group, normalizer in normalizers.items():
        # What is mirrored is what was observed: the normalized columns of left and right have other scales.
        scale = normalizer._std + normalizer.eps
        raw = part[group].float() * scale + normalizer._mean
        mirrored[group] = normalizer(symmetry.groups[group](raw)).to(part[group].dtype)
    mirrored["action"] = symmetry.action(part["action"])
    mirrored["mean"] = symmetry.action(part["mean"])
    return {name: torch.cat((x, mirrored[name])) for name, x in part.items()}
