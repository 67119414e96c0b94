"""Ranks as threads of one process, which exchange tensors."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Any

import torch

from robolearn.core.shards import Cut, Shards, owned


def together(
    total: int, ranks: int, work: Callable[[Shards], Any], cuts: Mapping[int, Cut] | None = None
) -> list[Any]:
    """`work` of every rank's shards, in threads that exchange tensors; `cuts` are those of some ranks."""
    owners, barrier = owned(total, ranks), threading.Barrier(ranks)
    sent: list[Any] = [None] * ranks
    results: list[Any] = [None] * ranks

    def run(rank: int) -> None:
        def exchange(tensor: torch.Tensor) -> list[torch.Tensor]:
            sent[rank] = tensor
            barrier.wait()
            received = list(sent)
            barrier.wait()
            return received

        def swap(rows: torch.Tensor) -> torch.Tensor:
            return torch.stack([theirs[rank] for theirs in exchange(rows)])

        results[rank] = work(Shards(total, owners[rank], owners, exchange, swap, (cuts or {}).get(rank)))

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(ranks)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results
