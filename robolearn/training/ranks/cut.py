"""Ends rollouts early where enough other ranks have theirs (`rollout_share`), so that a slow rank holds up nobody.

Each rank that has taken its last step counts up a number in the run's store; the others read it between two steps.
Which steps are cut depends on the clocks of the machines: results then differ from run to run.
"""

from __future__ import annotations

import math

import torch
from torch._C._distributed_c10d import Store


class StoreCut:
    """See `robolearn.core.shards.Cut`."""

    def __init__(self, store: Store, ranks: int, share: float) -> None:
        """
        Args:
            store: shared by the ranks.
            ranks: how many there are.
            share: of them whose rollouts are complete, above 0; those of the others then end.
        """
        self.store = store
        self.needed = math.ceil(share * ranks - 1e-9)  # 0.7 of 10 is 7, whatever the rounding
        self.iteration = 0

    def finished(self) -> None:
        """This rank has taken the last step of its rollout."""
        _wait_for_device()
        self.store.add(self._key, 1)

    def due(self) -> bool:
        """Whether enough ranks have taken theirs."""
        _wait_for_device()
        return self.store.add(self._key, 0) >= self.needed

    @property
    def _key(self) -> str:
        return f"finished/{self.iteration}"


def _wait_for_device() -> None:
    """Steps are queued on a GPU; one that is queued is not taken yet."""
    if torch.cuda.is_initialized():
        torch.cuda.synchronize()
