"""Progress of a training run: a live panel on a terminal, one line per iteration elsewhere."""

from __future__ import annotations

import os
import sys
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from robolearn.core.timers import PHASES
from robolearn.training.active import Sections, table


class Panel:
    """Shows the rows of metrics of a run (see `robolearn.training.train`); a context manager."""

    def __init__(
        self, title: str, iterations: int, console: Console | None = None, shown: bool = False
    ) -> None:
        """Of a run with this `title`, which is not printed where it was `shown` before."""
        self.title, self.iterations, self._shown = title, iterations, shown
        self.console = console or Console(file=sys.stdout)
        self._live = Live(console=self.console, refresh_per_second=4) if self.console.is_terminal else None
        self._rate: float | None = None

    def __enter__(self) -> Panel:
        if self._live:
            self._live.__enter__()
        elif not self._shown:
            self._print(self.title)
        return self

    def _print(self, line: str) -> None:
        """Print a line; training goes on if the reader of the output has gone (`| head`)."""
        try:
            print(line, file=self.console.file, flush=True)
        except BrokenPipeError:
            # The buffered rest needs a destination too, or closing the stream fails again.
            os.dup2(os.open(os.devnull, os.O_WRONLY), self.console.file.fileno())

    def __exit__(self, *error: Any) -> None:
        if self._live:
            self._live.__exit__(*error)

    def note(self, message: str) -> None:
        """Print a line that stays above the panel."""
        if self._live:
            self.console.print(message, highlight=False)
        else:
            self._print(message)

    def print_active(self, sections: Sections) -> None:
        """Print what is active in the run above the panel; not in a log, whose run folder has config.yaml."""
        if self._live and sections:
            self.console.print(table(sections), highlight=False)

    def show(self, row: dict[str, Any]) -> None:
        """Show the metrics of one iteration."""
        # Smoothed, so that one slow iteration does not change the estimate much.
        seconds = row["time/total"]
        self._rate = seconds if self._rate is None else 0.9 * self._rate + 0.1 * seconds
        left = (self.iterations - row["iteration"]) * self._rate
        if self._live:
            self._live.update(self._render(row, left))
        else:
            self._print(one_line(row, self.iterations, left))

    def _render(self, row: dict[str, Any], left: float) -> Group:
        head = Text.assemble(
            (self.title, "bold"),
            f"   iteration {row['iteration']}/{self.iterations}   {row['steps'] / 1e6:.2f}M steps"
            f"   {row['steps_per_second'] / 1e3:.1f}k steps/s   {clock(row['seconds'])}   ETA {clock(left)}",
        )
        phases = "   ".join(
            f"{name} {100 * row[f'time/{name}'] / row['time/total']:.0f} %" for name in PHASES
        )
        other = f"   other {100 * row['time/other'] / row['time/total']:.1f} %"
        bar = Table.grid(expand=True)  # a bare bar ends without a newline and swallows the line after it
        bar.add_row(ProgressBar(total=self.iterations, completed=row["iteration"]))
        return Group(head, bar, Text(phases + other, style="dim"), self._columns(row))

    def _columns(self, row: dict[str, Any]) -> Table:
        table = Table.grid(padding=(0, 2))
        blocks = {
            "episode": ("episode/", "metric/", "selfplay/"),
            "reward": ("reward/",),
            "learner": ("loss/",),
        }
        for _ in blocks:
            table.add_column()
        cells = []
        for title, prefixes in blocks.items():
            inner = Table.grid(padding=(0, 1))
            inner.add_column(no_wrap=True)
            inner.add_column(justify="right", no_wrap=True)
            inner.add_row(Text(title, style="bold"), "")
            for name, value in row.items():
                if name.startswith(prefixes):
                    inner.add_row(name.split("/", 1)[1], f"{value:.4g}")
            cells.append(inner)
        table.add_row(*cells)
        return table


def one_line(row: dict[str, Any], iterations: int, left: float) -> str:
    """The metrics of an iteration in one line, for logs."""
    parts = [
        f"{row['iteration']:>{len(str(iterations))}}/{iterations}",
        f"{clock(row['seconds'])}",
        f"{row['steps_per_second'] / 1e3:.1f}k steps/s",
    ]
    if "reward/total" in row:
        parts.append(f"reward {row['reward/total']:.4f}")
    if "loss/held_out" in row:
        parts.append(f"held-out loss {row['loss/held_out']:.4g}")
    if "episode/length" in row:
        parts.append(
            f"episode {row['episode/length']:.2f} s, {100 * row['episode/fall_rate']:.0f} % end early"
        )
    measured = [f"{name[7:]} {value:.3f}" for name, value in row.items() if name.startswith("metric/")]
    parts += measured[:2]  # a task lists its most important metrics first
    if "selfplay/elo" in row:
        parts.append(f"elo {row['selfplay/elo']:.0f}")
    return "  ".join([*parts, f"ETA {clock(left)}"])


def clock(seconds: float) -> str:
    """Seconds as m:ss or h:mm:ss."""
    minutes, second = divmod(int(seconds), 60)
    hour, minute = divmod(minutes, 60)
    return f"{hour}:{minute:02d}:{second:02d}" if hour else f"{minute}:{second:02d}"
