"""Measures the connection between two ranks on this machine: all-gathers of a small and a large tensor with gloo."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from statistics import median

from robolearn.commands.plan.machine import Network
from robolearn.errors import RunFailed, one_line

SMALL, LARGE = 256, 1_048_576
"""Values of four bytes in the two tensors."""
ROUNDS = 30
TIMEOUT = 120
"""Seconds after which the measurement is given up."""


def measure() -> Network:
    """Latency and bandwidth of an all-gather between two processes here.

    Raises:
        RunFailed: the two processes could not be connected.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "robolearn.commands.plan.network", str(port)]
    processes = [
        subprocess.Popen(
            [*command, str(rank)], env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        for rank in (0, 1)
    ]
    try:
        output, errors = processes[0].communicate(timeout=TIMEOUT)
        processes[1].communicate(timeout=TIMEOUT)
    except subprocess.TimeoutExpired:
        raise RunFailed(f"two processes on this machine did not connect within {TIMEOUT} s") from None
    finally:
        for process in processes:
            if process.poll() is None:
                process.kill()
                process.wait()
    if processes[0].returncode != 0:
        why = one_line((errors.strip().splitlines() or ["no message"])[-1], 240)
        raise RunFailed(f"two processes on this machine could not be connected: {why}")
    small, large = (float(word) for word in output.split())
    bandwidth = 4 * (LARGE - SMALL) / max(large - small, 1e-9)
    return Network(latency=small, bandwidth=bandwidth, source="two processes on this machine, gloo")


def _rank(port: int, rank: int) -> None:
    import torch
    from torch import distributed as dist

    store = dist.TCPStore("127.0.0.1", port, 2, is_master=rank == 0)  # type: ignore[attr-defined]
    dist.init_process_group("gloo", store=store, rank=rank, world_size=2)
    found = []
    for size in (SMALL, LARGE):
        part = torch.ones(size)
        out = [torch.empty(size) for _ in range(2)]
        took = []
        for _ in range(ROUNDS):
            dist.barrier()
            began = time.perf_counter()
            dist.all_gather(out, part)
            took.append(time.perf_counter() - began)
        found.append(median(took))
    dist.destroy_process_group()
    if rank == 0:
        print(*found)


if __name__ == "__main__":
    _rank(int(sys.argv[1]), int(sys.argv[2]))
