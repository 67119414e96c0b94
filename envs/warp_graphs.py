"""Warp's graphs beside PyTorch: recorded once, launched behind whatever PyTorch has queued."""

from __future__ import annotations

import ctypes.util
import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
import warp as wp


class Recorder:
    """Records Warp launches on one device as graphs, and launches those. On a CPU Warp keeps graphs of its own."""

    def __init__(self, device: torch.device) -> None:
        self.device, self.warp = device, wp.device_from_torch(device)
        self._streams: dict[int, wp.Stream] = {}

    def record(self, function: Callable[[], object]) -> wp.Graph:
        """The launches that `function` makes, as one graph; its kernels must be compiled already."""
        with wp.ScopedDevice(self.warp), wp.ScopedCapture() as capture:
            function()
        return capture.graph

    def launch(self, graph: wp.Graph) -> None:
        """Run a graph, on a GPU behind torch's own work on the same stream: neither has to wait for the other."""
        if self.device.type != "cuda":
            wp.capture_launch(graph)
            return
        stream = torch.cuda.current_stream(self.device)
        if stream.cuda_stream not in self._streams:
            self._streams[stream.cuda_stream] = wp.stream_from_torch(stream)
        wp.capture_launch(graph, stream=self._streams[stream.cuda_stream])


def quiet() -> None:
    """Start Warp without its banner, its list of modules and, where CUDA has no driver, the line that says so."""
    wp.config.log_level = max(wp.config.log_level, wp.LOG_ERROR)
    if ctypes.util.find_library("cuda"):
        wp.init()
        return
    sys.stderr.flush()
    kept, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)  # it is printed in C
    try:
        wp.init()
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nowhere)


def require_device(device: str, backend: str) -> torch.device:
    """The torch device with its number.

    Raises ValueError where there is none, or Warp cannot use it.
    """
    found = torch.device(device)
    if found.type not in ("cpu", "cuda"):
        raise ValueError(f"backend={backend} runs on cuda or cpu, not on device={device}")
    if found.type == "cuda":
        if not torch.cuda.is_available() or not wp.is_cuda_available():
            raise ValueError(f"device={device}: no CUDA GPU was found; use device=cpu")
        found = torch.device("cuda", torch.cuda.current_device() if found.index is None else found.index)
        if found.index >= torch.cuda.device_count():
            raise ValueError(
                f"device={device}: there are {torch.cuda.device_count()} CUDA GPUs, from cuda:0 on"
            )
    return found


@contextmanager
def patience(what: str, seconds: float = 4.0) -> Iterator[None]:
    """Say what is going on where it takes long: kernels are compiled once for every new robot, then kept."""
    note = f"compiling {what} for this robot: once, about a minute\n"
    timer = threading.Timer(seconds, lambda: sys.stderr.write(note))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
