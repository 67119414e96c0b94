"""What a page consists of: sections with tables, curves, pictures. The template page.html draws each kind."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

GOOD, BAD, UNKNOWN, NOTED = "good", "bad", "unknown", "noted"
"""Marks of a cell or a line: passed, failed, no verdict, and worth a look without being good or bad."""


@dataclass(frozen=True)
class Cell:
    """A table's cell with a mark, a colour of a curve, or a number."""

    text: str
    mark: str = ""
    colour: int | None = None


@dataclass(frozen=True)
class Facts:
    """Names with values; `big` ones are shown large."""

    kind: ClassVar[str] = "facts"
    rows: Sequence[tuple[str, str]]
    big: bool = False


@dataclass(frozen=True)
class Table:
    """A table; cells that are numbers are aligned right."""

    kind: ClassVar[str] = "table"
    head: Sequence[str]
    rows: Sequence[Sequence[str | Cell]]
    caption: str = ""
    numeric: int = 99
    """First column whose cells are numbers."""
    folded: str = ""
    """Title of the fold that the table is in; empty where it is shown."""


@dataclass(frozen=True)
class Lines:
    """Lines of text, each with a mark."""

    kind: ClassVar[str] = "lines"
    rows: Sequence[Cell]


@dataclass(frozen=True)
class Text:
    """A paragraph."""

    kind: ClassVar[str] = "text"
    text: str
    heading: str = ""


@dataclass(frozen=True)
class Code:
    """Text as it is, in a fold."""

    kind: ClassVar[str] = "code"
    text: str
    folded: str


@dataclass(frozen=True)
class Pictures:
    """Pictures with captions: (data URI, caption)."""

    kind: ClassVar[str] = "pictures"
    rows: Sequence[tuple[str, str]]


@dataclass(frozen=True)
class Video:
    """A video: its data URI, and a caption."""

    kind: ClassVar[str] = "video"
    uri: str
    caption: str


@dataclass(frozen=True)
class Plots:
    """Curves, side by side where there are several."""

    kind: ClassVar[str] = "plots"
    figures: Sequence[Figure]
    small: bool = False
    folded: str = ""


@dataclass(frozen=True)
class Figure:
    """Curves over one horizontal axis, which the reader chooses."""

    title: str
    traces: Sequence[dict[str, Any]]
    """Each: name, colour (a number), dash, and `points` by axis: x, y and perhaps low and high. `y` instead of `points`
    where the page's own x of each axis holds."""
    unit: str = ""
    stacked: bool = False
    legend: bool = False
    zero: bool = False
    """Whether the vertical axis contains 0."""
    gaps: bool = False
    """Whether a missing value interrupts its curve."""


@dataclass
class Section:
    """A part of the page, which the navigation names."""

    id: str
    title: str
    blocks: list[Any] = field(default_factory=list)
    short: str = ""
    """Title in the navigation, where it is another."""


@dataclass
class Page:
    """A page."""

    title: str
    subtitle: str
    sections: list[Section]
    axes: list[tuple[str, str]] = field(default_factory=list)
    """Horizontal axes of the curves: name and title; the first is shown first."""
    x: dict[str, list[float]] = field(default_factory=dict)
    """Values of each axis for the curves that have no own."""
    notes: list[Cell] = field(default_factory=list)
    """What the reader has to know first: damaged files, a run that is still training."""
    made: str = ""
    """When and with what the page was made."""
