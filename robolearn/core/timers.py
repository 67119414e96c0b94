"""Phase timers: where the time of an iteration goes."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

PHASES = ("simulate", "infer", "learn", "synchronize")


class Timers:
    """Time by phase, each measured by itself; phases do not nest.

    On a CUDA device a phase is the time its work takes *there*: the host asks for work long before it is done,
    and nothing waits before `read`. Elsewhere it is wall time.
    """

    def __init__(self, device: torch.device | None = None) -> None:
        """`device` is where the phases' work is done; without one, on the CPU."""
        self._device = device if device is not None and device.type == "cuda" else None
        self._spans: list[tuple[str, Any, Any]] = []
        self._spare: list[Any] = []
        self.start()

    def start(self) -> None:
        """Forget everything; total time counts from here."""
        # Creating an event costs more than recording it.
        self._spare += [mark for _, *marks in self._spans for mark in marks] if self._device else []
        self._spans = []
        self._seconds = dict.fromkeys(PHASES, 0.0)
        self._began = time.perf_counter()

    @contextmanager
    def __call__(self, phase: str) -> Iterator[None]:
        """Time the block as part of `phase`."""
        began = self._mark()
        try:
            yield
        finally:
            ended = self._mark()
            if self._device is None:
                self._seconds[phase] += ended - began
            else:
                self._spans.append((phase, began, ended))

    def _mark(self) -> Any:
        """Now: seconds, or an event that the device reaches with what it was asked for before."""
        if self._device is None:
            return time.perf_counter()
        import torch

        event = self._spare.pop() if self._spare else torch.cuda.Event(enable_timing=True)
        event.record(torch.cuda.current_stream(self._device))
        return event

    def read(self) -> dict[str, float]:
        """Seconds by phase since `start`, with `total`, and `other`: what no phase accounts for.

        On a CUDA device this waits for the last phase, once.
        """
        seconds = dict(self._seconds)
        if self._spans:
            self._spans[-1][2].synchronize()
            for phase, began, ended in self._spans:
                seconds[phase] += began.elapsed_time(ended) / 1000.0
        total = time.perf_counter() - self._began
        return {**seconds, "other": total - sum(seconds.values()), "total": total}
