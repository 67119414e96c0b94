"""Phase timers: the time of an iteration by phase."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

PHASES = ("simulate", "infer", "learn", "synchronize")


class Timers:
    """Time by phase; phases do not nest.

    On a CUDA device a phase is the time that its work takes on the device, measured with events that only `read`
    waits for. Elsewhere it is wall time.
    """

    def __init__(self, device: torch.device | None = None) -> None:
        """`device` does the work of the phases; without one, the CPU does."""
        self._device = device if device is not None and device.type == "cuda" else None
        self._spans: list[tuple[str, Any, Any]] = []
        self._spare: list[Any] = []
        self.current = ""
        """The phase that has begun last."""
        self.start()

    def start(self) -> None:
        """Set every phase to 0; `total` counts from here."""
        # Creating an event costs more than recording it.
        self._spare += [mark for _, *marks in self._spans for mark in marks] if self._device else []
        self._spans = []
        self._seconds = dict.fromkeys(PHASES, 0.0)
        self._began = time.perf_counter()

    @contextmanager
    def __call__(self, phase: str) -> Iterator[None]:
        """Time the block as part of `phase`."""
        self.current = phase
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
        """Now: seconds, or an event after the work that is queued on the device."""
        if self._device is None:
            return time.perf_counter()
        import torch

        event = self._spare.pop() if self._spare else torch.cuda.Event(enable_timing=True)
        event.record(torch.cuda.current_stream(self._device))
        return event

    def read(self) -> dict[str, float]:
        """Seconds by phase since `start`, with `total`, and `other`: the time outside of all phases.

        On a CUDA device this waits for the last phase, once.
        """
        seconds = dict(self._seconds)
        if self._spans:
            self._spans[-1][2].synchronize()
            for phase, began, ended in self._spans:
                seconds[phase] += began.elapsed_time(ended) / 1000.0
        total = time.perf_counter() - self._began
        return {**seconds, "other": total - sum(seconds.values()), "total": total}
