"""Warp's CUDA graphs beside PyTorch: recorded once, launched on PyTorch's current stream."""

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
    """Records Warp launches on one device as graphs and launches them: CUDA graphs, or Warp's equivalent on a CPU."""

    def __init__(self, device: torch.device) -> None:
        self.device, self.warp = device, wp.device_from_torch(device)
        self._streams: dict[int, wp.Stream] = {}

    def record(self, function: Callable[[], object]) -> wp.Graph:
        """Record the launches of `function` as one graph. Its kernels must be compiled already."""
        with wp.ScopedDevice(self.warp), wp.ScopedCapture() as capture:
            function()
        return capture.graph

    def launch(self, graph: wp.Graph) -> None:
        """Launch a graph. On a GPU it runs on torch's current stream, so no synchronization is needed."""
        if self.device.type != "cuda":
            wp.capture_launch(graph)
            return
        stream = torch.cuda.current_stream(self.device)
        if stream.cuda_stream not in self._streams:
            self._streams[stream.cuda_stream] = wp.stream_from_torch(stream)
        wp.capture_launch(graph, stream=self._streams[stream.cuda_stream])


def quiet() -> None:
    """Initialize Warp without printing its banner, its list of modules, or a warning where CUDA has no driver."""
    wp.config.log_level = max(wp.config.log_level, wp.LOG_ERROR)
    if ctypes.util.find_library("cuda"):
        wp.init()
        return
    sys.stderr.flush()
    stderr, devnull = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(devnull, 2)  # the warning is printed in C
    try:
        wp.init()
    finally:
        os.dup2(stderr, 2)
        os.close(stderr)
        os.close(devnull)


def require_device(device: str, backend: str) -> torch.device:
    """The torch device, with its index.

    Raises:
        ValueError: the device does not exist, or Warp cannot use it.
    """
    found = torch.device(device)
    if found.type not in ("cpu", "cuda"):
        raise ValueError(
            f"backend={backend} runs on cpu or cuda, not on device={device}; use device=cpu or cuda"
        )
    if found.type == "cuda":
        if not torch.cuda.is_available() or not wp.is_cuda_available():
            raise ValueError(f"device={device}: no CUDA GPU was found; use device=cpu")
        found = torch.device("cuda", torch.cuda.current_device() if found.index is None else found.index)
        if found.index >= torch.cuda.device_count():
            raise ValueError(
                f"device={device} does not exist (valid: cuda:0 to cuda:{torch.cuda.device_count() - 1})"
            )
    return found


@contextmanager
def patience(what: str, seconds: float = 4.0) -> Iterator[None]:
    """Print a note if the block takes longer than `seconds`: kernels are compiled once per robot, then cached."""
    note = f"compiling {what} for this robot, about a minute; the result is cached\n"
    timer = threading.Timer(seconds, lambda: sys.stderr.write(note))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
