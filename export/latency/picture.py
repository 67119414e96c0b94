"""latency.png: how long the control steps took, beside the budget they are held against."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from matplotlib.axes import Axes

BINS_PER_DECADE = 50
"""A bar is 5 % wide: fine enough to show a small spread, coarse enough to have more than a step in most bars."""

MANY = 30
"""Where the tallest bar is so many times the smallest, the steps are counted on a logarithmic scale."""

COLOURS = {"p50": "tab:green", "p99": "tab:orange", "max": "tab:red"}


def draw_latency(
    path: Path, measured: Sequence[Mapping[str, Any]], budget_ms: Mapping[str, float], title: str
) -> None:
    """A histogram of all paced control steps for each runtime, and where the budget's p50, p99 and maximum lie.

    Args:
        path: the PNG to write.
        measured: results of the runtime's `measure`, of one control rate.
        budget_ms: `p50`, `p99` and `max` [ms].
        title: what was measured where.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    times = [np.asarray(result["paced_ms"], float) for result in measured]
    period = 1e3 / measured[0]["paced"]["rate_hz"]
    low = min(*(t.min() for t in times), budget_ms["p50"]) / 1.4
    # A step that took longer than the period is the one that must not be cut off.
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
        f"sensor readings to targets [ms], {until} the control period of {period:g} ms", fontsize=9
    )
    figure.savefig(path, dpi=130)


def _bars(axes: Axes, counts: np.ndarray, edges: np.ndarray) -> None:
    """The histogram, with room above for the budget's labels."""
    axes.stairs(counts, edges, fill=True, color="tab:blue", alpha=0.75)
    axes.set_ylabel("control steps", fontsize=9)
    tallest = int(counts.max())
    if tallest > MANY * int(counts[counts > 0].min()):
        axes.set_yscale("log")
        # From a half: the bar of a single late step has a height.
        axes.set_ylim(0.5, 0.5 * (2 * tallest) ** 1.35)
        ticks = [10**i for i in range(math.floor(math.log10(tallest)) + 1)]
        axes.set_yticks(ticks, [f"{tick}" for tick in ticks])
        axes.yaxis.minorticks_off()
    else:
        axes.set_ylim(0, 1.35 * tallest)
        axes.locator_params(axis="y", integer=True)


def _budget(axes: Axes, budget_ms: Mapping[str, float]) -> None:
    """A line for each of the budget's times, its name beside its upper end."""
    row, former = 0, 0.0
    for name, colour in COLOURS.items():
        limit = budget_ms[name]
        axes.axvline(limit, color=colour, linestyle="--", linewidth=1.2)
        # Close lines would write over each other: each label stands a row lower then.
        row = row + 1 if limit < 1.9 * former else 0
        axes.text(
            limit * 1.03, 0.98 - 0.12 * row, f"{name} budget\n{limit:g} ms",
            transform=axes.get_xaxis_transform(), color=colour, fontsize=7, va="top",
            bbox={"facecolor": "white", "edgecolor": "none", "alpha": 0.8, "pad": 0.5},
        )  # fmt: skip
        former = limit


def _ticks(low: float, high: float) -> list[float]:
    """1, 2 and 5 of each decade, within low..high."""
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    every = [digit * 10.0**decade for decade in decades for digit in (1, 2, 5)]
    return [tick for tick in every if low * 0.999 <= tick <= high * 1.001]
