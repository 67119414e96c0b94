"""CUDA graphs: functions that a GPU records once and then replays with a single launch.

A gradient step on thousands of robots is some hundred small kernels, and launching them one by one from Python takes
longer than running them. A CUDA graph stores the launches with the *addresses* of their tensors. So the tensors that a
graphed function reads and writes must keep their addresses between calls: callers copy inputs into fixed tensors, and
the function reads no value back to the host.
"""

from __future__ import annotations

import functools
import gc
import warnings
from collections.abc import Callable, Sequence
from typing import Any, Generic, Protocol, TypeVar

import torch

Result = TypeVar("Result")

WARM_UP = 3
"""Calls before the recording: in the first, libraries choose their algorithms and optimizers create their state."""


class Graph(Protocol):
    """A recording of the work that a function does on tensors."""

    def warm_up(self, function: Callable[[], Result]) -> Result:
        """Call the function in the way that `capture` will; returns its result."""

    def rehearse(self, function: Callable[[], Result]) -> Result:
        """The last call before `capture`.

        Raises:
            RuntimeError: the function synchronizes with the device, which cannot be recorded.
        """

    def capture(self, function: Callable[[], Result], generators: Sequence[torch.Generator]) -> Result:
        """Record the work of the function without doing it; returns its outputs, which `replay` fills.

        `generators` are those that it draws from, besides torch's default one.
        """

    def replay(self) -> None:
        """Do the recorded work, on the recorded tensors; random numbers are drawn anew."""


class CudaGraph:
    """A Graph of one CUDA device, recorded on a side stream, as CUDA requires. The warm-up uses this stream too: what
    torch caches in it belongs to the stream it was made on."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.graph = torch.cuda.CUDAGraph()

    def warm_up(self, function: Callable[[], Result]) -> Result:
        """Call the function on the side stream, in order with the work before and after it."""
        side, current = _side_stream(self.device), torch.cuda.current_stream(self.device)
        side.wait_stream(current)
        with torch.cuda.stream(side):
            result = function()
        current.wait_stream(side)
        return result

    def rehearse(self, function: Callable[[], Result]) -> Result:
        """Call it with torch's check for synchronization. A failed recording would show the same, but would leave
        streams, generators and the allocator in the middle of it."""
        mode = torch.cuda.get_sync_debug_mode()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the mode is a prototype
            torch.cuda.set_sync_debug_mode("error")
        try:
            return self.warm_up(function)
        finally:
            torch.cuda.set_sync_debug_mode(mode)

    def capture(self, function: Callable[[], Result], generators: Sequence[torch.Generator]) -> Result:
        """Record the function."""
        for generator in generators:
            self.graph.register_generator_state(generator)
        # thread_local: a thread that watches collectives or writes a log may synchronize with the device meanwhile.
        recording = torch.cuda.graph(
            self.graph, stream=_side_stream(self.device), capture_error_mode="thread_local"
        )
        # A CUDA object freed by the garbage collector meanwhile would break the recording.
        gc.collect()
        before, collecting = torch.cuda.current_stream(self.device), gc.isenabled()
        gc.disable()
        try:
            with torch.cuda.device(self.device), recording:
                return function()
        finally:
            torch.cuda.set_stream(before)  # torch does not restore it where the recording fails
            if collecting:
                gc.enable()

    def replay(self) -> None:
        """Launch the recorded work on the current stream."""
        self.graph.replay()


@functools.cache
def _side_stream(device: torch.device) -> torch.cuda.Stream:
    return torch.cuda.Stream(device)


def make_graph(device: torch.device) -> Graph | None:
    """A Graph for this device; None on a CPU."""
    return CudaGraph(device) if device.type == "cuda" else None


class Graphed(Generic[Result]):
    """A function without arguments, called on a CPU and replayed on a GPU.

    Each call has the function's effect exactly once: the first `WARM_UP` calls run it, the next records and replays it,
    and all later ones replay it. Decisions that the function makes in Python are those of the recording.
    """

    def __init__(
        self,
        function: Callable[[], Result],
        device: torch.device,
        generators: Sequence[torch.Generator] = (),
        make: Callable[[torch.device], Graph | None] | None = None,
    ) -> None:
        """`generators` are those on the device that the function draws from; `make` is `make_graph` by default."""
        self.function, self.generators = function, tuple(generators)
        self._graph = (make or make_graph)(device)
        self._calls = 0
        self.recorded = False
        """Whether calls are replays."""
        self._outputs: Any = None

    @property
    def fixed(self) -> bool:
        """Whether it is or will be recorded, so that the tensors it reads must keep their addresses."""
        return self._graph is not None

    def __call__(self) -> Result:
        """The function's outputs; once it is recorded, the same tensors every time, overwritten."""
        graph = self._graph
        if graph is None:
            return self.function()
        self._calls += 1
        if self._calls < WARM_UP:
            return graph.warm_up(self.function)
        if self._calls == WARM_UP:
            return graph.rehearse(self.function)
        if not self.recorded:
            self._outputs = graph.capture(self.function, self.generators)
            self.recorded = True
        graph.replay()
        outputs: Result = self._outputs
        return outputs
