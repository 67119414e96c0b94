"""Functions over fixed tensors that a GPU records once and then replays with a single launch.

A gradient step on thousands of robots is some hundred small kernels, and launching them one by one from Python
takes longer than running them. A CUDA graph keeps the launches with the *addresses* they were made with, which is
the whole contract here: what a graphed function reads and writes stays where it is from call to call. Inputs are
copied into fixed tensors before it, nothing is rebound to a new tensor behind its back, and no value is read back
in it.
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
"""Calls before the recording: libraries choose their algorithms, and optimizers create their state, in the first."""


class Graph(Protocol):
    """What records a function's work on tensors and does that work again."""

    def warm_up(self, function: Callable[[], Result]) -> Result:
        """Call the function as `capture` is going to, and give what it gives."""

    def rehearse(self, function: Callable[[], Result]) -> Result:
        """The last call before `capture`: raises RuntimeError where the function waits for the device, which no
        recording can."""

    def capture(self, function: Callable[[], Result], generators: Sequence[torch.Generator]) -> Result:
        """Record what the function would do, and do none of it; give its outputs, which `replay` fills.

        `generators` are those it draws from, other than torch's own.
        """

    def replay(self) -> None:
        """Do what was recorded, on the tensors it was recorded with; random numbers are drawn anew."""


class CudaGraph:
    """A Graph of one CUDA device. It is recorded on a side stream, as CUDA demands; so is the warm-up, because
    what torch keeps from it is bound to the stream it was made on."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.graph = torch.cuda.CUDAGraph()

    def warm_up(self, function: Callable[[], Result]) -> Result:
        """Call the function on the side stream, after all that was asked for and before all that will be."""
        side, current = _side_stream(self.device), torch.cuda.current_stream(self.device)
        side.wait_stream(current)
        with torch.cuda.stream(side):
            result = function()
        current.wait_stream(side)
        return result

    def rehearse(self, function: Callable[[], Result]) -> Result:
        """Call it once more with torch on the watch. A recording that fails would tell too, but leaves streams,
        generators and the allocator as they were in the middle of it."""
        mode = torch.cuda.get_sync_debug_mode()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that it is a prototype
            torch.cuda.set_sync_debug_mode("error")
        try:
            return self.warm_up(function)
        finally:
            torch.cuda.set_sync_debug_mode(mode)

    def capture(self, function: Callable[[], Result], generators: Sequence[torch.Generator]) -> Result:
        """Record the function; the device waits for it, once."""
        for generator in generators:
            self.graph.register_generator_state(generator)
        # Only this thread's calls can spoil the recording: a thread that watches collectives or writes a log may
        # go on asking the device how far it is.
        recording = torch.cuda.graph(
            self.graph, stream=_side_stream(self.device), capture_error_mode="thread_local"
        )
        # What the garbage collector frees meanwhile, a simulation say, may be CUDA's and spoil the recording.
        gc.collect()
        before, collecting = torch.cuda.current_stream(self.device), gc.isenabled()
        gc.disable()
        try:
            with torch.cuda.device(self.device), recording:
                return function()
        finally:
            torch.cuda.set_stream(before)  # torch forgets it where the recording fails
            if collecting:
                gc.enable()

    def replay(self) -> None:
        """Do it all on the current stream."""
        self.graph.replay()


@functools.cache
def _side_stream(device: torch.device) -> torch.cuda.Stream:
    return torch.cuda.Stream(device)


def make_graph(device: torch.device) -> Graph | None:
    """What records functions on a device; None where calling them costs nothing to speak of, as on a CPU."""
    return CudaGraph(device) if device.type == "cuda" else None


class Graphed(Generic[Result]):
    """A function without arguments, called on a CPU and replayed on a GPU.

    Each call has the function's effect exactly once: the first `WARM_UP` run it, the next records and replays
    it, and all after that replay it. The function itself runs in the first of these only: whatever it decides in
    Python is decided for good.
    """

    def __init__(
        self,
        function: Callable[[], Result],
        device: torch.device,
        generators: Sequence[torch.Generator] = (),
        make: Callable[[torch.device], Graph | None] | None = None,
    ) -> None:
        """`generators` are those on the device that it draws from; `make` is `make_graph` where not given."""
        self.function, self.generators = function, tuple(generators)
        self._graph = (make or make_graph)(device)
        self._calls = 0
        self.recorded = False
        """Whether calls are replays by now."""
        self._outputs: Any = None

    @property
    def fixed(self) -> bool:
        """Whether it is recorded, so that the tensors it reads must stay where they are."""
        return self._graph is not None

    def __call__(self) -> Result:
        """The function's own outputs; once it is recorded, the same tensors every time, written anew."""
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
