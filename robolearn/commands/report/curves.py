"""The curves of one run: what its metrics.jsonl holds, as sections of the page."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from robolearn.commands.report.blocks import Cell, Figure, Plots, Section, Table, Text
from robolearn.commands.report.reading import RunData
from robolearn.core.timers import PHASES

POINTS = 400
"""Largest number of points of a curve: each is the mean of as many iterations as that takes."""

AXES = [("steps", "environment steps"), ("seconds", "wall time [min]"), ("iteration", "iteration")]
"""Horizontal axes: column and title. Seconds are shown as minutes."""

UNITS = {
    "episode/length": "s",
    "metric/linear_velocity_error": "m/s",
    "metric/yaw_rate_error": "rad/s",
    "metric/foot_slip": "m/s",
    "metric/swing_height": "m",
    "metric/step_frequency": "1/s",
    "metric/standing_drift": "m",
    "metric/energy_per_metre": "J/m",
    "steps_per_second": "1/s",
}
"""Units of columns whose unit is known."""

TITLES = {
    "episode/return": "return of an episode",
    "episode/length": "episode length",
    "episode/fall_rate": "share of episodes terminated",
    "reward/total": "reward of a step",
    "steps_per_second": "environment steps per second, learning included",
}
"""What a column is, where its name does not say it."""

LEVEL = "metric/level_"
"""Columns of the levels of curricula, as shares of the level of a complete training."""


def number(value: float | None, digits: int = 4) -> str:
    """A number for a table."""
    if value is None or not math.isfinite(value):
        return "-"
    if value == 0:
        return "0"
    if abs(value) >= 10**digits:
        return f"{value:,.0f}"
    return f"{value:.{digits}g}"


def word(name: str) -> str:
    """What a column is, in words: its name without the group."""
    return TITLES.get(name) or name.rpartition("/")[2].replace("_", " ")


def binned(values: np.ndarray, count: int = POINTS) -> np.ndarray:
    """Means of as many consecutive values as make at most `count`; nan where all of a bin are."""
    width = width_of(len(values), count)
    if width == 1:
        return values
    padded = np.full(-(-len(values) // width) * width, np.nan)
    padded[: len(values)] = values
    rows = padded.reshape(-1, width)
    known = np.isfinite(rows)
    total = np.where(known, rows, 0.0).sum(axis=1)
    counted = known.sum(axis=1)
    return np.where(counted > 0, total / np.maximum(counted, 1), np.nan)


def width_of(length: int, count: int = POINTS) -> int:
    """Iterations that one point of a curve is the mean of."""
    return max(1, -(-length // count))


def plain(values: Iterable[float], digits: int = 6) -> list[float | None]:
    """Values for JSON: rounded, None for what is not finite."""
    return [float(f"{value:.{digits}g}") if math.isfinite(value) else None for value in values]


def x_of(run: RunData) -> dict[str, list[Any]]:
    """The values of each horizontal axis for the run's curves."""
    out: dict[str, list[Any]] = {}
    for name, _ in AXES:
        if name in run.columns:
            values = run.columns[name] / (60 if name == "seconds" else 1)
            out[name] = plain(binned(values), 8)
    return out


def trace(run: RunData, name: str, label: str = "", colour: int = 0, scale: float = 1.0) -> dict[str, Any]:
    """One column as a curve."""
    return {
        "name": label or word(name),
        "colour": colour,
        "y": plain(scale * binned(run.columns[name])),
    }


def single(run: RunData, name: str, title: str = "", zero: bool = False) -> Figure:
    """A figure of one column."""
    return Figure(title or word(name), [trace(run, name)], UNITS.get(name, ""), zero=zero)


def sections(run: RunData) -> list[Section]:
    """Every section with curves; what the run has not logged is left out."""
    made = [learning(run), rewards(run), episodes(run), metrics(run), curricula(run), losses(run), times(run)]
    return [section for section in made if section.blocks]


def learning(run: RunData) -> Section:
    """The return and the errors, large."""
    section = Section("learning", "Learning curves", short="Learning")
    names = ("episode/return", "reward/total", "metric/linear_velocity_error", "metric/yaw_rate_error")
    figures = [single(run, name) for name in names if name in run.columns]
    if figures:
        width = width_of(run.iterations)
        of = f"Each point is the mean of {width} iterations." if width > 1 else "Each point is one iteration."
        section.blocks = [Text(of), Plots(figures)]
    return section


def rewards(run: RunData) -> Section:
    """Weighted terms in one figure with a table, raw terms side by side."""
    section = Section("rewards", "Reward terms", short="Rewards")
    terms = [name for name in run.columns if name.startswith("reward/") and name != "reward/total"]
    terms.sort(key=lambda name: -abs(run.final(name) or 0.0))
    acting = [name for name in terms if np.nanmax(np.abs(run.columns[name]), initial=0.0) > 0]
    if not terms:
        return section
    traces = [trace(run, name, word(name), i) for i, name in enumerate(acting)]
    section.blocks.append(Plots([Figure("weighted, mean of a step", traces, legend=True, zero=True)]))
    total = sum(abs(run.final(name) or 0.0) for name in terms)
    rows: list[Sequence[str | Cell]] = []
    for name in terms:
        final, raw = run.final(name), run.final(name.replace("reward/", "raw/", 1))
        share = "-" if final is None or not total else f"{100 * abs(final) / total:.1f} %"
        colour = acting.index(name) if name in acting else None
        rows.append((Cell(word(name), colour=colour), number(final), number(raw), share))
    caption = (
        "Means of the last tenth of the iterations; the share is that of the sum of all absolute values."
    )
    section.blocks.append(Table(("term", "weighted", "raw", "share"), rows, caption, numeric=1))
    figures = [single(run, name) for name in run.columns if name.startswith("raw/")]
    if figures:
        title = f"Raw terms, before their weights ({len(figures)})"
        section.blocks.append(Plots(figures, small=True, folded=title))
    return section


def episodes(run: RunData) -> Section:
    """Lengths and ends of the episodes."""
    section = Section("episodes", "Episodes")
    figures = []
    if "episode/length" in run.columns:
        figures.append(single(run, "episode/length", "length of the episodes that ended", zero=True))
    if "episode/fall_rate" in run.columns:
        ended = run.columns["episode/fall_rate"]
        shares = [
            {"name": "terminated", "colour": 1, "y": plain(100 * binned(ended))},
            {"name": "timed out", "colour": 0, "y": plain(100 * binned(1 - ended))},
        ]
        figures.append(Figure("how they ended", shares, "%", stacked=True, legend=True, zero=True))
    diverged = run.columns.get("diverged")
    if diverged is not None and np.nanmax(diverged, initial=0) > 0:
        figures.append(single(run, "diverged", "diverged steps of an iteration", zero=True))
    section.blocks = [Plots(figures)] if figures else []
    if diverged is not None:
        count = np.nansum(diverged)
        section.blocks.append(Text(f"{count:,.0f} steps diverged." if count else "No step diverged."))
    return section


def metrics(run: RunData) -> Section:
    """What is measured but not rewarded."""
    names = [name for name in run.columns if name.startswith("metric/") and not name.startswith(LEVEL)]
    figures = [single(run, name) for name in names]
    return Section("metrics", "Metrics", [Plots(figures, small=True)] if figures else [])


def curricula(run: RunData) -> Section:
    """Levels of the curricula."""
    names = [name for name in run.columns if name.startswith(LEVEL)]
    if not names:
        return Section("curricula", "Curricula")
    traces = [trace(run, name, word(name).removeprefix("level "), i) for i, name in enumerate(names)]
    figure = Figure("levels, as shares of a complete training's", traces, legend=True, zero=True)
    return Section("curricula", "Curricula", [Plots([figure])])


def losses(run: RunData) -> Section:
    """The learner's numbers."""
    # Of several policies, each has its own after the name: kl of front.
    figures = []
    for name in (name for name in run.columns if name.startswith("loss/")):
        head, policy = name.rsplit("/", 1) if name.count("/") > 1 else (name, "")
        figures.append(single(run, name, f"{word(head)} of {policy}" if policy else ""))
    blocks: list[Any] = [Plots(figures, small=True)] if figures else []
    rated = [
        single(run, name, f"self-play: {word(name)}") for name in run.columns if name.startswith("selfplay/")
    ]
    return Section("losses", "Losses", [*([Plots(rated)] if rated else []), *blocks])


def times(run: RunData) -> Section:
    """Where the time goes, and steps per second."""
    section = Section("time", "Time")
    phases = [phase for phase in (*PHASES, "other") if f"time/{phase}" in run.columns]
    figures = []
    if phases and "time/total" in run.columns:
        with np.errstate(divide="ignore", invalid="ignore"):
            shares = [
                100 * binned(run.columns[f"time/{phase}"] / run.columns["time/total"]) for phase in phases
            ]
        traces = [
            {"name": phase, "colour": i, "y": plain(share)}
            for i, (phase, share) in enumerate(zip(phases, shares, strict=True))
        ]
        figures.append(Figure("share of an iteration", traces, "%", stacked=True, legend=True, zero=True))
    if "steps_per_second" in run.columns:
        figures.append(single(run, "steps_per_second", zero=True))
    if figures:
        section.blocks.append(Plots(figures))
    if phases:
        sums = {phase: float(np.nansum(run.columns[f"time/{phase}"])) for phase in phases}
        total = sum(sums.values()) or 1.0
        rows = [(phase, f"{value:,.1f}", f"{100 * value / total:.1f} %") for phase, value in sums.items()]
        section.blocks.append(
            Table(("phase", "seconds", "share"), rows, "Of all logged iterations.", numeric=1)
        )
    return section
