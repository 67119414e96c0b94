"""Shards: the environments of a run in equal parts, and sums over them that do not depend on which process has which.

Sums of floating-point numbers depend on the order in which they are added. Where several processes, the ranks, train
one policy, each part therefore adds up its own numbers, and the sums of the parts are added in pairs, along one fixed
binary tree. A rank adds what lies below the nodes of the tree that it has complete, and hands only these to the others.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np
import torch

from robolearn.envs.state import Tensor

Exchange = Callable[[Tensor], Sequence[Tensor]]
"""From each rank's tensor, equal in shape, to those of all ranks in their order."""
Swap = Callable[[Tensor], Tensor]
"""From each rank's rows (W, K), one for each of W ranks, to the rows (W, K) that are for this rank."""
LARGE = 4096
"""Numbers from which ranks sum a tensor in slices."""


class Cut(Protocol):
    """Ends the rollout of a rank before its last step, where enough other ranks have theirs."""

    def finished(self) -> None:
        """This rank has taken the last step of its rollout."""

    def due(self) -> bool:
        """Whether enough ranks have taken theirs."""


def blocks(mine: range) -> list[tuple[int, int]]:
    """The nodes of the tree that parts `mine` complete: (first part, number of parts), the fewest there are."""
    found, start = [], mine.start
    while start < mine.stop:
        size = 1
        while start % (2 * size) == 0 and start + 2 * size <= mine.stop:
            size *= 2
        found.append((start, size))
        start += size
    return found


def owned(total: int, ranks: int) -> list[range]:
    """The parts that each rank has: neighbours, as equal in number as can be."""
    return [range(total * r // ranks, total * (r + 1) // ranks) for r in range(ranks)]


class Shards:
    """`total` equal parts of all environments, a power of two, of which this process simulates the parts `mine`.

    `Shards()` is a run in one process that computes whole batches: one part.
    """

    def __init__(
        self,
        total: int = 1,
        mine: range | None = None,
        owners: Sequence[range] = (),
        exchange: Exchange | None = None,
        swap: Swap | None = None,
        cut: Cut | None = None,
    ) -> None:
        """
        Args:
            total: number of parts.
            mine: parts of this process, neighbours; all where omitted.
            owners: parts of each rank; this process alone where omitted.
            exchange: how ranks exchange tensors, in the order of `owners`.
            swap: how they exchange slices of a large tensor; by `exchange` where omitted.
            cut: what ends rollouts early; they are complete where omitted.
        """
        if total < 1 or total & (total - 1):
            raise ValueError(f"shards={total} must be a power of two")
        self.total, self.mine = total, range(total) if mine is None else mine
        self.owners, self.exchange, self.swap = list(owners) or [self.mine], exchange, swap
        self.cut = cut
        self.uneven = False
        """Whether parts may have different numbers of valid steps although no rollout is cut."""
        self.count = len(self.mine)
        """Number of parts that this process has."""
        self.single = total == 1
        """Whether there is nothing to divide."""
        self._blocks = [blocks(parts) for parts in self.owners]
        self._most = max(len(nodes) for nodes in self._blocks)

    def whole(self, number: int) -> int:
        """The number, such as one of environments, of all parts, from that of this process's parts."""
        return number // self.count * self.total

    def total_rows(self, parts: Sequence[Tensor]) -> int:
        """The number of rows of all parts of all ranks, of one tensor a part of this process."""
        mine = [len(part) for part in parts]
        if self.cut is None and not self.uneven:
            return self.whole(sum(mine))
        return int(self.sum([torch.tensor(n, device=parts[0].device) for n in mine]))

    def rows(self, length: int) -> list[slice]:
        """The rows of each part of this process among its `length` rows."""
        size = length // self.count
        return [slice(i * size, (i + 1) * size) for i in range(self.count)]

    def parts(self, tensor: Tensor, dim: int = 0) -> list[Tensor]:
        """The tensor's rows of each part along dimension `dim`, contiguous: what is computed from them then does not
        depend on the rows beside them."""
        if self.count == 1:
            return [tensor]
        return [part.contiguous() for part in tensor.chunk(self.count, dim)]

    def sum(self, parts: Sequence[Tensor]) -> Tensor:
        """The sum over all parts of all ranks, of one tensor a part of this process."""
        nodes = {
            (start, size): _tree(parts[start - self.mine.start : start - self.mine.start + size])
            for start, size in blocks(self.mine)
        }
        if self.exchange is None:
            return self._assembled(nodes)
        sent = list(nodes.values())
        sent += [torch.zeros_like(sent[0])] * (self._most - len(sent))
        if self.swap is not None and self._most == 1 and sent[0].numel() >= LARGE:
            return self._sum_in_slices(sent[0], self.swap, self.exchange)
        return self._of_ranks(self.exchange(sent[0] if self._most == 1 else torch.stack(sent)))

    def _sum_in_slices(self, mine: Tensor, swap: Swap, exchange: Exchange) -> Tensor:
        """The sum of one node a rank: each rank sums a slice of all nodes, so that what it receives does not grow with
        the number of ranks. Every number is added as in `sum`."""
        ranks, size = len(self.owners), mine.numel()
        width = -(-size // ranks)
        padded = torch.nn.functional.pad(mine.flatten(), (0, width * ranks - size)).view(ranks, width)
        slices = exchange(self._of_ranks(swap(padded).unbind()))
        return torch.cat(list(slices))[:size].view_as(mine)

    def _of_ranks(self, received: Sequence[Tensor]) -> Tensor:
        """The sum of the nodes that each rank has sent."""
        nodes: dict[tuple[int, int], Tensor] = {}
        for theirs, tensor in zip(self._blocks, received, strict=True):
            values = [tensor] if self._most == 1 else tensor.unbind()
            nodes |= dict(zip(theirs, values, strict=False))
        return self._assembled(nodes)

    def _assembled(self, nodes: dict[tuple[int, int], Tensor]) -> Tensor:
        """The root of the tree, from nodes that cover all parts."""

        def value(start: int, size: int) -> Tensor:
            if (start, size) in nodes:
                return nodes[start, size]
            half = size // 2
            return value(start, half) + value(start + half, half)

        return value(0, self.total)

    def mean(self, parts: Sequence[Tensor]) -> Tensor:
        """The mean over all parts of all ranks, of one tensor a part of this process."""
        # Exact: the number of parts is a power of two.
        return parts[0] if self.single else self.sum(parts) * (1.0 / self.total)

    def seeds(self, seed: int) -> int | list[int]:
        """A seed for each part of this process; `seed` itself where nothing is divided."""
        if self.single:
            return seed
        return [int(np.random.SeedSequence((seed, part)).generate_state(1)[0]) for part in self.mine]


def _tree(parts: Sequence[Tensor]) -> Tensor:
    """The sum of 2^k tensors, added in pairs."""
    values = list(parts)
    while len(values) > 1:
        values = [a + b for a, b in zip(values[::2], values[1::2], strict=True)]
    return values[0]


ONE = Shards()
"""A run in one process that computes whole batches."""
