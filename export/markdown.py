"""Pieces of a report in Markdown."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from robolearn.export.closed_loop import LIMIT


def interval(low: float, high: float) -> str:
    """An interval of shares in percent: as ± where it is nearly symmetric or within LIMIT %."""
    low, high = 100 * low, 100 * high
    narrow, wide = sorted((abs(low), abs(high)))
    if low <= 0 <= high and (narrow >= wide / 2 or wide <= LIMIT):
        return f"within ±{max(1, math.ceil(1e3 * wide - 1e-6)) / 1e3:g} % of"
    return f"{low:+.3f} to {high:+.3f} % off"


def span(low: float, high: float) -> str:
    """`low to high`, or one number where they are equal."""
    return f"{low:g}" if low == high else f"{low:g} to {high:g}"


def columns(item: dict[str, Any]) -> str:
    """First and last column of an observation."""
    return span(item["column"], item["column"] + item["width"] - 1)


def number(value: float | None) -> str:
    """A number, or `none`."""
    return "none" if value is None else f"{value:g}"


def bullets(items: Iterable[str]) -> str:
    """A Markdown list."""
    return "\n".join(f"- {item}" for item in items)


def figures_table(title: str, figures: Mapping[str, Any]) -> str:
    """Figures of an export target, each with mark and source."""
    rows = [(f"`{name}`", f"{f.value:g}", f.mark, f.source) for name, f in figures.items()]
    return table((title, "Value", "Mark", "Source"), rows)


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table."""
    cells = [tuple(cell.replace("|", "/") for cell in row) for row in rows]
    return "\n".join(f"| {' | '.join(row)} |" for row in (tuple(head), ("---",) * len(head), *cells))
