"""How far the runs of a sweep are: reads metrics.jsonl while it is written, and shows it."""

from __future__ import annotations

import json
import math
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from robolearn.commands.report.curves import number
from robolearn.commands.sweep.state import FAILED, FINISHED, PRUNED, STOPPED, RunState, Sweep
from robolearn.training.panel import clock

METRICS = "metrics.jsonl"

QUIET = 60.0
"""Without a terminal: seconds between two lines about the runs in progress."""


class Tail:
    """The rows of a metrics.jsonl that another process writes. A resumed run replaces the file; it is read again."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / METRICS
        self.rows: list[dict[str, float]] = []
        self._place: tuple[int, int] = (0, 0)  # inode, bytes read

    def read(self) -> bool:
        """Read what is new; whether anything is."""
        try:
            with self.path.open("rb") as file:
                now = file.seek(0, 2)
                inode = self.path.stat().st_ino
                if inode != self._place[0] or now < self._place[1]:
                    self.rows, self._place = [], (inode, 0)
                file.seek(self._place[1])
                text = file.read()
        except OSError:
            return False
        whole = text[: text.rfind(b"\n") + 1]
        self._place = (inode, self._place[1] + len(whole))
        before = len(self.rows)
        for line in whole.splitlines():
            try:
                row = json.loads(line)
            except ValueError:
                continue
            if isinstance(row, dict) and isinstance(row.get("iteration"), (int, float)):
                self.rows.append(row)
        return len(self.rows) > before

    @property
    def iteration(self) -> int:
        """The last iteration, 0 before the first one."""
        return int(self.rows[-1]["iteration"]) if self.rows else 0

    def mean(self, column: str, last: int, end: int | None = None) -> float | None:
        """Mean of a column over `last` rows before row `end` (the last one by default).

        Where none of them has a value, the last value before them: the return of episodes has one only in iterations in
        which an episode has ended. None where there is none.
        """
        end = len(self.rows) if end is None else end
        begin = max(0, end - last)
        values = [v for row in self.rows[begin:end] if math.isfinite(v := row.get(column, math.nan))]
        if values:
            return sum(values) / len(values)
        before = (row.get(column, math.nan) for row in reversed(self.rows[:begin]))
        return next((value for value in before if math.isfinite(value)), None)


class View:
    """Shows a sweep: a live table on a terminal, elsewhere a line for each start and end."""

    def __init__(self, sweep: Sweep, total: int, metric: str, console: Console | None = None) -> None:
        self.sweep, self.total, self.metric = sweep, total, metric
        self.console = console or Console(file=sys.stdout)
        self._live = Live(console=self.console, refresh_per_second=4) if self.console.is_terminal else None
        self._said = self._began = time.monotonic()
        self._done_before = sweep.count(FINISHED, PRUNED)

    def __enter__(self) -> View:
        if self._live:
            self._live.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        if self._live:
            self._live.update(Text(""))
            self._live.__exit__(*error)

    def note(self, message: str) -> None:
        """Print a line that stays."""
        self.console.print(message, highlight=False, markup=False, soft_wrap=True)

    def started(self, run: RunState, blocked: str | None = None) -> None:
        """Say that a run begins or continues, or that it waits for a process that still trains in its folder."""
        if blocked:
            self.note(f"{run.name} waits for {blocked}, which still trains in it")
        elif not self._live:
            self.note(f"{run.name} starts")

    def ended(self, run: RunState, tail: Tail) -> None:
        """Say how a run ended."""
        done = self.sweep.count(FINISHED, FAILED, PRUNED)
        seconds = clock(tail.rows[-1].get("seconds", 0.0)) if tail.rows else "0:00"
        facts = [f"{tail.iteration} iteration{'s' * (tail.iteration != 1)}", seconds]
        value = tail.mean(self.metric, max(1, tail.iteration // 10))
        if value is not None:
            facts.append(f"{self.metric} {number(value)}")
        if run.status == FAILED:
            facts = [run.error]
        self.note(f"{done}/{self.total} {run.name} {run.status}: {', '.join(facts)}")

    def update(self, active: Mapping[str, Tail]) -> None:
        """Show the runs in progress, by name."""
        if self._live:
            self._live.update(self._render(active))
        elif active and time.monotonic() - self._said > QUIET:
            self._said = time.monotonic()
            runs = [f"{name} {tail.iteration}/{self._of(name)}" for name, tail in active.items()]
            self.note(f"in progress: {', '.join(runs)}")

    def _of(self, name: str) -> int:
        return next(run.iterations for run in self.sweep.runs if run.name == name)

    def _render(self, active: Mapping[str, Tail]) -> Group:
        finished, failed = self.sweep.count(FINISHED), self.sweep.count(FAILED)
        parts = [f"{finished} of {self.total} finished"]
        parts += [f"{failed} failed"] if failed else []
        parts += [f"{n} {status}" for status in (PRUNED, STOPPED) if (n := self.sweep.count(status))]
        shares = [tail.iteration / self._of(name) for name, tail in active.items()]
        done = self.sweep.count(FINISHED, FAILED, PRUNED) + sum(shares)
        head = Text.assemble(("sweep ", "bold"), "   ".join(parts), f"   {clock(self._elapsed)}")
        new = done - self._done_before
        if new > 0.05 and done < self.total:
            head.append(f"   about {clock(self._elapsed * (self.total - done) / new)} left")
        bar = Table.grid(expand=True)
        bar.add_row(ProgressBar(total=self.total, completed=done))
        table = Table.grid(padding=(0, 2))
        for name, tail in active.items():
            value = tail.mean(self.metric, 10)
            said = f"{self.metric} {number(value)}" if value is not None else ""
            rate = f"{tail.rows[-1].get('steps_per_second', 0) / 1e3:.1f}k steps/s" if tail.rows else "starts"
            table.add_row(name, f"{tail.iteration}/{self._of(name)}", rate, said)
        return Group(head, bar, table)

    @property
    def _elapsed(self) -> float:
        return time.monotonic() - self._began


def listed(names: Sequence[str], most: int = 5) -> str:
    """Names for a message, cut."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more
