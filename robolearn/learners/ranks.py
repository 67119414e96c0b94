"""Averages over the ranks of a run, the processes that train one policy together."""

from __future__ import annotations

from collections.abc import Callable

from robolearn.envs.state import Tensor

AllReduceMean = Callable[[Tensor], Tensor]
"""Averages a tensor over all ranks of a run, in place, and returns it."""


def single_rank(tensor: Tensor) -> Tensor:
    """The `AllReduceMean` of a run with one rank: returns the tensor unchanged."""
    return tensor
