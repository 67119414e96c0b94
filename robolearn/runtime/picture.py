"""latency.png: histogram of the control steps' times, with the budget; needs matplotlib, unlike the rest."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from matplotlib.axes import Axes

BINS_PER_DECADE = 50
"""Bars 5 % wide: a small spread is visible, and most bars hold more than one step."""

MANY = 30
"""Logarithmic count axis where the tallest bar is more than this many times the smallest."""

COLOURS = {"p50": "tab:green", "p99": "tab:orange", "max": "tab:red"}


def draw_latency(
    path: Path, measured: Sequence[Mapping[str, Any]], budget_ms: Mapping[str, float], title: str
) -> None:
    """Draw a histogram of all paced control steps per runtime, with lines at the budget's p50, p99 and maximum.

    Args:
        path: the PNG to write.
        measured: results of the runtime's `measure`, all at one control rate.
        budget_ms: `p50`, `p99` and `max` [ms].
        title: subject and machine.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    times = [np.asarray(result["paced_ms"], float) for result in measured]
    period = 1e3 / measured[0]["paced"]["rate_hz"]
    low = min(*(t.min() for t in times), budget_ms["p50"]) / 1.4
    # A step longer than the control period must be visible.
    longest = max(t.max() for t in times)
    high = period if longest <= period else 1.1 * longest
    edges = np.geomspace(low, high, 1 + math.ceil(BINS_PER_DECADE * math.log10(high / low)))

    figure = Figure(figsize=(7.2, 0.9 + 2.5 * len(measured)), layout="constrained")
    FigureCanvasAgg(figure)
    figure.suptitle(title, fontsize=10)
    rows: Any = figure.subplots(len(measured), sharex=True, squeeze=False)
    for axes, result, took in zip(rows[:, 0], measured, times, strict=True):
        counts, _ = np.histogram(took, bins=edges)
        _bars(axes, counts, edges)
        _budget(axes, budget_ms)
        axes.axvline(period, color="black")
        step = result["paced"]
        said = ", ".join(f"{name} {step[f'{name}_ms']:.3f}" for name in COLOURS)
        axes.set_title(f"{result['runtime']}, {len(took)} steps: {said} ms", fontsize=9)
    axes.set_xscale("log")
    axes.set_xlim(low, high)
    axes.set_xticks(ticks := _ticks(low, high), [f"{tick:g}" for tick in ticks])
    axes.minorticks_off()
    until = "up to" if high == period else "and beyond"
    axes.set_xlabel(
        f"sensor readings to joint targets [ms], {until} the control period of {period:g} ms", fontsize=9
    )
    figure.savefig(path, dpi=130)


def _bars(axes: Axes, counts: np.ndarray, edges: np.ndarray) -> None:
    """The histogram, with room above for the budget's labels."""
    axes.stairs(counts, edges, fill=True, color="tab:blue", alpha=0.75)
    axes.set_ylabel("control steps", fontsize=9)
    tallest = int(counts.max())
    if tallest > MANY * int(counts[counts > 0].min()):
        axes.set_yscale("log")
        # From 0.5, so that the bar of a single step has a height.
        axes.set_ylim(0.5, 0.5 * (2 * tallest) ** 1.35)
        ticks = [10**i for i in range(math.floor(math.log10(tallest)) + 1)]
        axes.set_yticks(ticks, [f"{tick}" for tick in ticks])
        axes.yaxis.minorticks_off()
    else:
        axes.set_ylim(0, 1.35 * tallest)
        axes.locator_params(axis="y", integer=True)


def _budget(axes: Axes, budget_ms: Mapping[str, float]) -> None:
    """A vertical line for each time of the budget, labelled at its upper end."""
    row, former = 0, 0.0
    for name, colour in COLOURS.items():
        limit = budget_ms[name]
        axes.axvline(limit, color=colour, linestyle="--", linewidth=1.2)
        # Labels of close lines would overlap, so each is one row lower.
        row = row + 1 if limit < 1.9 * former else 0
        axes.text(
            limit * 1.03, 0.98 - 0.12 * row, f"{name} budget\n{limit:g} ms",
            transform=axes.get_xaxis_transform(), color=colour, fontsize=7, va="top",
            bbox={"facecolor": "white", "edgecolor": "none", "alpha": 0.8, "pad": 0.5},
        )  # fmt: skip
        former = limit


def _ticks(low: float, high: float) -> list[float]:
    """1, 2 and 5 times each power of ten within low..high."""
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    every = [digit * 10.0**decade for decade in decades for digit in (1, 2, 5)]
    return [tick for tick in every if low * 0.999 <= tick <= high * 1.001]
