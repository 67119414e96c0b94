"""Rows: the environments that a reset concerns, so that a CPU computes only those and a GPU waits for no index."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar

import torch

from robolearn.core import env_state
from robolearn.core.env_state import tree_map
from robolearn.envs.state import State, Tensor
from robolearn.tasks.mdp.context import Context

Tree = TypeVar("Tree")


@dataclass(frozen=True)
class Rows:
    """The environments of `mask` (N,) bool.

    With `ids`, the indices (K,) of these environments, functions take and return K rows. Without, they take and return
    all N rows, and `put` selects: the number of indices would have to be read from a GPU, and a CUDA graph needs fixed
    shapes.
    """

    mask: Tensor
    ids: Tensor | None

    @classmethod
    def of(cls, mask: Tensor, by_index: bool) -> Rows:
        """The rows of `mask`; with `by_index` as indices."""
        return cls(mask, mask.nonzero().squeeze(-1) if by_index else None)

    def take(self, tree: Tree) -> Tree:
        """Rows of every tensor of a tree."""
        ids = self.ids
        return tree if ids is None else tree_map(lambda tensor: tensor[ids], tree)

    def put(self, new: Tree, old: Tree) -> Tree:
        """A tree with the rows `new`, and `old` elsewhere."""
        ids = self.ids
        if ids is None:
            return env_state.where(self.mask, new, old)
        return tree_map(lambda old, new: old.index_put((ids,), new), old, new)

    def spread(self, tree: Tree) -> Tree:
        """`tree` with a row for each of the N environments; rows outside of the mask hold no meaning."""
        ids, n = self.ids, len(self.mask)
        if ids is None:
            return tree
        return tree_map(lambda t: t.new_zeros(n, *t.shape[1:]).index_put((ids,), t), tree)

    def state(self, state: State) -> State:
        """The State of these environments."""
        return state if self.ids is None else state.rows(self.ids)

    def context(self, ctx: Context) -> Context:
        """The Context of these environments."""
        return ctx if self.ids is None else ctx.rows(self.ids)

    def env(self, row: int) -> int:
        """The environment that a row belongs to."""
        return row if self.ids is None else int(self.ids[row])


def without(lost: Tensor | None, values: Tensor) -> Tensor:
    """`values` (N, ...) with 0 in the rows `lost` (N,) bool."""
    if lost is None:
        return values
    return torch.where(lost.view(-1, *[1] * (values.dim() - 1)), 0.0, values)
