"""Limits PyTorch's threads while an Env computes on a CPU."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

import torch

ONE_THREAD_ENVS = 8192
"""Up to this many environments an operation of a term is shorter than waking the other threads for it."""


@contextmanager
def step_threads(num_envs: int, device: torch.device) -> Iterator[None]:
    """One thread for PyTorch's operations within, for up to ONE_THREAD_ENVS environments on a CPU.

    The threads of a simulator are its own and stay as they are. docs/performance.md has the measurement.
    """
    with one_thread(device, num_envs <= ONE_THREAD_ENVS):
        yield


@contextmanager
def one_thread(device: torch.device, only: bool = True) -> Iterator[None]:
    """One thread for PyTorch's operations within, on a CPU and where `only`."""
    before = torch.get_num_threads()
    if device.type != "cpu" or not only or before == 1:
        yield
        return
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def usable_cores() -> int:
    """Number of cores that this process may use: its share, where torchrun has started several on this machine."""
    # macOS does not tell which cores a process may use, only how many there are.
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, cores // int(os.environ.get("LOCAL_WORLD_SIZE", "1")))
