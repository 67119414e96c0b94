"""Log of a run's metrics: metrics.jsonl and TensorBoard."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from robolearn.files import replacing


class MetricsLog:
    """Writes metrics.jsonl, one line per iteration, and the same numbers to TensorBoard."""

    def __init__(self, folder: Path, resume_at: int = 0) -> None:
        """Open both in `folder`; a resumed run first drops what was logged after iteration `resume_at`."""
        # Imported here, to keep `robolearn list` and `--help` fast.
        from torch.utils.tensorboard import SummaryWriter

        self.path = folder / "metrics.jsonl"
        self.damaged: list[int] = []
        """Lines, from 1, that held no row and are dropped, but for a last one that a kill cut off."""
        again = self.path.exists()
        if again:
            lines = self.path.read_bytes().splitlines(keepends=True)
            whole = lines if lines and lines[-1].endswith(b"\n") else lines[:-1]
            self.damaged = [k for k, line in enumerate(whole, 1) if row_of(line) is None]
            rewrite(self.path, [row for row in read_metrics(self.path) if row["iteration"] <= resume_at])
        self._file = self.path.open("a", encoding="utf-8")
        self._writer = SummaryWriter(str(folder), purge_step=resume_at + 1 if again or resume_at else None)

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
    """The rows of a metrics.jsonl, or of another file of JSON lines with a number `iteration` each.

    A line that is no such row is left out, as a last one that was cut off by a kill, and the others stay.
    """
    rows = map(row_of, path.read_bytes().splitlines())
    return [row for row in rows if row is not None]


def row_of(line: bytes) -> dict[str, Any] | None:
    """The row that a line of such a file holds; None where it holds none."""
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):  # also of bytes that are no UTF-8
        return None
    number = row.get("iteration") if isinstance(row, dict) else None
    return row if isinstance(number, (int, float)) and not isinstance(number, bool) else None


def rewrite(path: Path, rows: list[dict[str, Any]]) -> None:
    """Replace the rows of such a file."""
    with replacing(path) as part:
        part.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
