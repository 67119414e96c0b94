"""Numbers and tables as text."""

from __future__ import annotations

from collections.abc import Sequence


def table(rows: Sequence[Sequence[str]], align: str, indent: str = "  ") -> list[str]:
    """Rows of cells as aligned lines; `align` has l or r for each column."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(align))]
    out = []
    for row in rows:
        cells = [
            f"{cell:>{width}}" if side == "r" else f"{cell:<{width}}"
            for cell, width, side in zip(row, widths, align, strict=True)
        ]
        out.append((indent + "  ".join(cells)).rstrip())
    return out


def bytes_text(size: float) -> str:
    """A size in decimal units, as memory of GPUs and networks is given: 2.52 TB, 140 GB, 512 MB."""
    for unit, name in ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if size >= unit:
            return f"{size / unit:.3g} {name}"
    return f"{size:.0f} B"


def seconds_text(seconds: float) -> str:
    """A duration: 850 us, 12.3 ms, 4.51 s, 12.3 min, 5.0 h."""
    if seconds >= 7200:
        return f"{seconds / 3600:.1f} h"
    if seconds >= 120:
        return f"{seconds / 60:.1f} min"
    for unit, name in ((1.0, "s"), (1e-3, "ms")):
        if seconds >= unit:
            return f"{seconds / unit:.3g} {name}"
    return f"{seconds / 1e-6:.0f} us"
