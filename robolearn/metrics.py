"""Where a run's time goes, and where its numbers go: phase timers, metrics.jsonl, TensorBoard."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from robolearn.files import replacing

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


class MetricsLog:
    """metrics.jsonl, a line an iteration, and the same numbers for TensorBoard."""

    def __init__(self, folder: Path, resume_at: int = 0) -> None:
        """Open both in `folder`; a resumed run first drops what was logged after iteration `resume_at`."""
        # Imported here: `robolearn list` and `--help` must not wait for TensorBoard.
        from torch.utils.tensorboard import SummaryWriter

        self.path = folder / "metrics.jsonl"
        if self.path.exists():
            _rewrite(self.path, [row for row in read_metrics(self.path) if row["iteration"] <= resume_at])
        self._file = self.path.open("a", encoding="utf-8")
        self._writer = SummaryWriter(str(folder), purge_step=resume_at + 1 if resume_at else None)

    def write(self, row: dict[str, Any]) -> None:
        """Append one iteration's numbers; `iteration` is the step of every curve."""
        self._file.write(json.dumps(row, allow_nan=False) + "\n")
        self._file.flush()
        for name, value in row.items():
            if name != "iteration":
                self._writer.add_scalar(name if "/" in name else f"run/{name}", value, row["iteration"])

    def close(self) -> None:
        """Flush and close both files."""
        self._file.close()
        self._writer.close()


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """The rows of a metrics.jsonl; a last line cut off by a kill is dropped."""
    rows = []
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            rows.append(json.loads(line))
        except json.JSONDecodeError:
            break
    return rows


def _rewrite(path: Path, rows: list[dict[str, Any]]) -> None:
    with replacing(path) as part:
        part.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
