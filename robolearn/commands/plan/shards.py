"""Measures what it costs to compute a minibatch in shards: several small backward passes instead of a large one."""

from __future__ import annotations

import time
from collections.abc import Sequence
from itertools import pairwise
from statistics import median

import torch
from torch import nn

ROUNDS = 7


def overhead(networks: Sequence[Sequence[int]], rows: int, shards: int) -> float:
    """What a forward and backward pass costs beyond its rows [s].

    The passes of `shards` parts take (shards - 1) x overhead longer than one pass of all rows.

    Args:
        networks: layer widths of each network, input and output included.
        rows: samples of a minibatch.
        shards: number of parts.
    """
    made = [_network(widths) for widths in networks]
    inputs = [torch.randn(rows, widths[0]) for widths in networks]

    def seconds(parts: int) -> float:
        took = []
        for _ in range(ROUNDS):
            began = time.perf_counter()
            for network, x in zip(made, inputs, strict=True):
                for part in x.chunk(parts):
                    network(part).square().mean().backward()
            took.append(time.perf_counter() - began)
        return median(took)

    # Ranks compute with one thread, because sums in another order have other bits.
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        seconds(1)
        whole, parts = seconds(1), seconds(shards)
    finally:
        torch.set_num_threads(threads)
    return max(0.0, parts - whole) / (shards - 1)


def _network(widths: Sequence[int]) -> nn.Sequential:
    layers: list[nn.Module] = []
    for i, (size, following) in enumerate(pairwise(widths)):
        layers += [*([nn.ELU()] if i else []), nn.Linear(size, following)]
    return nn.Sequential(*layers)
