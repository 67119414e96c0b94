"""The table at the end of a sweep: a row for each run, means over seeds, both as CSV, and the page of comparison."""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from rich import box
from rich.console import Console
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from robolearn.commands.report import statistics
from robolearn.commands.report.blocks import BAD, GOOD, UNKNOWN, Cell, Section
from robolearn.commands.report.blocks import Table as PageTable
from robolearn.commands.report.blocks import Text as PageText
from robolearn.commands.report.compare import page_of
from robolearn.commands.report.curves import UNITS, number
from robolearn.commands.report.page import plotly_js, write
from robolearn.commands.report.reading import METRICS, RunData, read, read_columns
from robolearn.commands.sweep.grammar import short_keys
from robolearn.commands.sweep.state import FAILED, FINISHED, PRUNED, STOPPED, RunState, Sweep
from robolearn.errors import ConfigError
from robolearn.files import replacing

RUNS, GROUPS, PAGE = "table.csv", "groups.csv", "compare.html"

USUAL = ("episode/return", "episode/length", "episode/fall_rate")
"""Columns of the table where none is chosen; two of the task's metrics follow."""

RATE = re.compile(r"(fall|success|survival|failure)_rate$|(success|survival|share|fraction)$")
"""Columns that are shares: 0 to 1."""
EARLIER = "*"
"""Marks a value of an iteration before the averaged ones."""

BEST_ON_PAGE, MOST_ON_PAGE = 12, 120
"""Number of runs whose curves the page shows: of a search the best ones, else the first ones."""


@dataclass(frozen=True)
class Row:
    """A run with its numbers."""

    run: RunState
    columns: dict[str, np.ndarray]
    """Its metrics.jsonl, as `robolearn.commands.report.reading.read_columns` returns it."""
    last: int

    @property
    def iteration(self) -> int:
        """The last iteration, 0 where there is none."""
        return int(self.columns["iteration"][-1]) if "iteration" in self.columns else 0

    @property
    def speed(self) -> float | None:
        """Environment steps per second of training."""
        if "steps" not in self.columns or "seconds" not in self.columns:
            return None
        seconds = float(self.columns["seconds"][-1])
        return float(self.columns["steps"][-1]) / seconds if seconds else None

    def final(self, name: str) -> float | None:
        """Mean of a column over the last iterations, or the last value before them, as `progress.Tail.mean`; None where
        it has no value."""
        known = self._known(name)
        if not known.any():
            return None
        column, begin = self.columns[name], self._begin(name)
        if known[begin:].any():
            return float(column[begin:][known[begin:]].mean())
        return float(column[np.flatnonzero(known)[-1]])

    def is_earlier(self, name: str) -> bool:
        """Whether `final` is of an iteration before the averaged ones, in which the column has no value."""
        known = self._known(name)
        return bool(known.any() and not known[self._begin(name) :].any())

    def _known(self, name: str) -> np.ndarray:
        return np.isfinite(self.columns.get(name, np.empty(0)))

    def _begin(self, name: str) -> int:
        length = len(self.columns.get(name, ()))
        return max(0, length - (self.last or max(1, length // 10)))


def rows_of(sweep: Sweep) -> list[Row]:
    """The runs of a sweep with their metrics; of a search, the best first."""
    rows = [Row(run, read_columns(sweep.path(run) / METRICS)[0], sweep.last) for run in sweep.runs]
    if sweep.search is not None:
        sign = -1 if sweep.search.direction == "maximize" else 1
        rows.sort(key=lambda row: math.inf if row.run.value is None else sign * row.run.value)
        rows.sort(key=lambda row: row.run.status != FINISHED)
    return rows


def columns_of(sweep: Sweep, rows: Sequence[Row]) -> list[str]:
    """The metrics that the table shows."""
    there = dict.fromkeys(name for row in rows for name in row.columns)
    if sweep.columns:
        return list(sweep.columns)
    first = [sweep.search.metric] if sweep.search else []
    metrics = [name for name in there if name.startswith("metric/")][:2]
    return list(dict.fromkeys([*first, *(name for name in USUAL if name in there), *metrics]))


# ---------------------------------------------------------------------- over seeds


@dataclass(frozen=True)
class SeedGroup:
    """Runs whose settings differ by the seed only."""

    settings: dict[str, str]
    rows: list[Row]

    def mean(self, name: str) -> statistics.Mean | None:
        """Mean of a column's final values with Student's 95 % interval, of a rate's within 0..1; None where no run has
        it."""
        values = [value for row in self.rows if (value := row.final(name)) is not None]
        if not values:
            return None
        mean = statistics.mean_of(values)
        if not RATE.search(name) or math.isnan(mean.low):
            return mean
        return replace(mean, low=max(0.0, mean.low), high=min(1.0, mean.high))


def groups_of(rows: Sequence[Row]) -> list[SeedGroup]:
    """Finished runs by their settings without the seed; empty where the seed does not vary."""
    if not any("seed" in row.run.settings for row in rows):
        return []
    groups: dict[tuple[tuple[str, str], ...], SeedGroup] = {}
    for row in rows:
        settings = {key: value for key, value in row.run.settings.items() if key != "seed"}
        group = groups.setdefault(tuple(settings.items()), SeedGroup(settings, []))
        if row.run.status == FINISHED:
            group.rows.append(row)
    return list(groups.values())


# ---------------------------------------------------------------------- on the terminal and as CSV


def title(name: str) -> str:
    """Heading of a column: its name without the group, and its unit."""
    return name.rpartition("/")[2].replace("_", " ") + (f" [{UNITS[name]}]" if name in UNITS else "")


def show(sweep: Sweep, rows: Sequence[Row], console: Console | None = None) -> None:
    """Print the tables of `rows_of` a sweep, and write table.csv and, where seeds vary, groups.csv."""
    console = console or Console()
    columns = columns_of(sweep, rows)
    keys = list(dict.fromkeys(key for run in sweep.runs for key in run.settings))
    short = short_keys(keys)
    print_fitting(console, lambda shown: _run_table(sweep, rows, shown, short), columns)
    said = f"Metrics are {_means(sweep)}{_gaps(rows, columns)}"
    console.print(said, style="dim", highlight=False, soft_wrap=True)
    groups = groups_of(rows)
    if any(len(group.rows) > 1 for group in groups):
        console.print()
        print_fitting(console, lambda shown: _group_table(groups, shown, short), columns)
        said = "Means over the seeds of finished runs, ± half of Student's 95 % interval of the mean"
        said += "; of a rate, the interval's ends." if any(map(RATE.search, columns)) else "."
        few = [name for name in columns if any(_few(group, name) for group in groups)]
        if few:
            said += f" (N of M): {_why(few)} in the other runs."
        console.print(said, style="dim", highlight=False, soft_wrap=True)
    _write_runs(sweep, rows, columns, keys)
    if groups:
        _write_groups(sweep.folder / GROUPS, groups, columns)


def _means(sweep: Sweep) -> str:
    if sweep.last == 1:
        return "those of the last iteration, with exploration noise."
    last = f"the last {sweep.last} iterations" if sweep.last else "the last tenth of the iterations"
    return f"means over {last}, with exploration noise."


def _why(columns: Sequence[str]) -> str:
    """Why runs have no value in some iterations."""
    ended = all(name.startswith("episode/") for name in columns)
    return "no episode ended" if ended else "there is no value"


def _gaps(rows: Sequence[Row], columns: Sequence[str]) -> str:
    """What the marks in the table of runs mean; empty where there are none."""
    said = ""
    if earlier := [name for name in columns if any(row.is_earlier(name) for row in rows)]:
        said += f" {EARLIER}: {_why(earlier)} in these; the last value before them."
    never = [n for n in columns if any(row.final(n) is None and row.run.status == FINISHED for row in rows)]
    return f"{said} -: {_why(never)} in the whole run." if never else said


def _few(group: SeedGroup, name: str) -> bool:
    mean = group.mean(name)
    return mean is not None and mean.count < len(group.rows)


def _cell(row: Row, name: str) -> str:
    return number(row.final(name)) + (EARLIER if row.is_earlier(name) else "")


def print_fitting(console: Console, table: Callable[[Sequence[str]], Table], columns: Sequence[str]) -> None:
    """Print a table with as many of the columns as fit the terminal; all of them where there is none."""
    shown = list(columns)
    if not console.is_terminal:
        console = Console(file=console.file, width=max(console.width, _width(console, table(shown))))
    while len(shown) > 1 and _width(console, table(shown)) > console.width:
        shown.pop()
    console.print(table(shown))
    if left := list(columns[len(shown) :]):
        said = f"Not enough room for {', '.join(title(name) for name in left)}: see the .csv file."
        console.print(said, style="dim", highlight=False, soft_wrap=True)


def _width(console: Console, table: Table) -> int:
    return Measurement.get(console, console.options.update(max_width=10_000), table).maximum


def _new_table() -> Table:
    return Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)


def _run_table(sweep: Sweep, rows: Sequence[Row], columns: Sequence[str], short: dict[str, str]) -> Table:
    table = _new_table()
    numbered = sweep.search is not None
    if numbered:
        table.add_column("trial", justify="right")
    for head in short.values():
        table.add_column(head, justify="right", overflow="fold")
    table.add_column("status", no_wrap=True)
    for head in ("iterations", "steps/s", *(title(name) for name in columns)):
        table.add_column(head, justify="right", no_wrap=True)
    colour = {FINISHED: "green", FAILED: "red", STOPPED: "yellow", PRUNED: "dim"}
    for row in rows:
        run, speed = row.run, row.speed
        table.add_row(
            *([str(sweep.runs.index(run))] if numbered else []),
            *(run.settings.get(key, "") for key in short),
            Text(run.status, style=colour.get(run.status, "")),
            f"{row.iteration}/{run.iterations}",
            "-" if speed is None else f"{speed:,.0f}",
            *(_cell(row, name) for name in columns),
        )
    return table


def _group_table(groups: Sequence[SeedGroup], columns: Sequence[str], short: dict[str, str]) -> Table:
    table = _new_table()
    for key in groups[0].settings:
        table.add_column(short[key], justify="right", overflow="fold")
    for head in ("seeds", *(title(name) for name in columns)):
        table.add_column(head, justify="right", no_wrap=True)
    for group in groups:
        cells = []
        for name in columns:
            mean = group.mean(name)
            if mean is None:
                cells.append("-")
                continue
            half = "" if math.isnan(mean.low) else f" ± {number(mean.high - mean.mean, 2)}"
            if half and RATE.search(name):
                half = f" [{number(mean.low, 2)}, {number(mean.high, 2)}]"
            of = f" ({mean.count} of {len(group.rows)})" if mean.count < len(group.rows) else ""
            cells.append(number(mean.mean) + half + of)
        table.add_row(*group.settings.values(), str(len(group.rows)), *cells)
    return table


def _write_runs(sweep: Sweep, rows: Sequence[Row], columns: Sequence[str], keys: Sequence[str]) -> None:
    there = dict.fromkeys(name for row in rows for name in row.columns)
    known = [name for name in there if name.startswith(("episode/", "metric/")) or name == "reward/total"]
    metrics = list(dict.fromkeys([*columns, *known]))
    search = ["value"] if sweep.search else []
    head = ["run", *search, *keys, "status", "exit_code", "error", "iterations", "steps", "seconds"]
    head += ["steps_per_second", *metrics]
    lines: list[list[object]] = [list(head)]
    for row in rows:
        run = row.run
        totals = [
            float(row.columns[name][-1]) if name in row.columns else None for name in ("steps", "seconds")
        ]
        lines.append(
            [
                run.name,
                *([run.value] if search else []),
                *(run.settings.get(key, "") for key in keys),
                run.status,
                run.exit_code,
                run.error,
                row.iteration,
                *totals,
                row.speed,
                *(row.final(name) for name in metrics),
            ]
        )
    _csv(sweep.folder / RUNS, lines)


def _write_groups(path: Path, groups: Sequence[SeedGroup], columns: Sequence[str]) -> None:
    parts = [f"{name}{end}" for name in columns for end in ("", "_low", "_high", "_seeds")]
    lines: list[list[object]] = [[*groups[0].settings, "seeds", *parts]]
    for group in groups:
        values: list[object] = []
        for name in columns:
            mean = group.mean(name)
            ends = [] if mean is None else [mean.mean, mean.low, mean.high]
            values += [None if math.isnan(end) else end for end in ends] or [None] * 3
            values.append(mean.count if mean else 0)
        lines.append([*group.settings.values(), len(group.rows), *values])
    _csv(path, lines)


def _csv(path: Path, lines: Sequence[Sequence[object]]) -> None:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(lines)
    with replacing(path) as part:
        part.write_text(text.getvalue(), encoding="utf-8")


# ---------------------------------------------------------------------- the page


def write_page(sweep: Sweep, rows: Sequence[Row]) -> Path | None:
    """Write compare.html of `rows_of` a sweep; None where fewer than two runs have curves.

    Raises:
        MissingError: plotly is not installed.
    """
    shown = [row.run for row in rows if row.iteration][:MOST_ON_PAGE]
    if sweep.search is not None:
        shown = [run for run in shown if run.status == FINISHED][:BEST_ON_PAGE]
    runs = [data for run in shown if (data := _data(sweep, run)) is not None]
    if len(runs) < 2:
        return None
    page = page_of(runs)
    kind, what = ("Search", "trials") if sweep.search else ("Sweep", "runs")
    page.title = f"{kind} of {page.title.partition(' runs of ')[2]}: {len(sweep.runs)} {what}"
    page.sections.insert(0, _overview(sweep, rows, len(runs)))
    path = sweep.folder / PAGE
    write(page, path, plotly_js())
    return path


def _data(sweep: Sweep, run: RunState) -> RunData | None:
    try:
        data = read(str(sweep.path(run)))
    except ConfigError:  # refused before it wrote its configuration
        return None
    data.name = run.name
    return data if data.iterations else None


def _overview(sweep: Sweep, rows: Sequence[Row], curves: int) -> Section:
    columns = columns_of(sweep, rows)
    keys = list(dict.fromkeys(key for run in sweep.runs for key in run.settings))
    short = short_keys(keys)
    marks = {FINISHED: GOOD, FAILED: BAD}
    body: list[Sequence[str | Cell]] = [
        (
            *([str(sweep.runs.index(row.run))] if sweep.search else []),
            *(row.run.settings.get(key, "") for key in keys),
            Cell(row.run.status, marks.get(row.run.status, UNKNOWN)),
            f"{row.iteration}/{row.run.iterations}",
            "-" if row.speed is None else f"{row.speed:,.0f}",
            *(_cell(row, name) for name in columns),
        )
        for row in rows
    ]
    head = [*(["trial"] if sweep.search else []), *(short[key] for key in keys)]
    head += ["status", "iterations", "steps/s", *(title(name) for name in columns)]
    caption = f"Metrics are {_means(sweep)}{_gaps(rows, columns)}"
    blocks: list[Any] = [PageTable(head, body, caption, numeric=0)]
    if sweep.search is not None and curves < len(rows):
        blocks.append(
            PageText(f"The curves below are of the {curves} best trials that were trained to the end.")
        )
    elif curves == MOST_ON_PAGE < len(rows):
        blocks.append(PageText(f"The curves below are of the first {curves} runs."))
    return Section("sweep", "Search" if sweep.search else "Sweep", blocks)
