"""batches.jsonl, the log of the batches that a run has used: a line for each, with its key.

    {"iteration": 7, "actor": 2, "incarnation": "9f3c...", "sequence": 6, "version": 5, "lag": 1}

`sequence` numbers the batches of an actor from 0 on, without a gap: an actor that was replaced collects the batch again
that it had begun, as another incarnation. `version` is the number of updates of the policy that acted.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

from robolearn.training.metrics import read_metrics, rewrite

FILE_NAME = "batches.jsonl"


@dataclass(frozen=True)
class Key:
    """What identifies a batch."""

    actor: int
    incarnation: str
    """Identity of the process that collected it."""
    sequence: int
    version: int


class Ledger:
    """Writes the log; every batch is entered once."""

    def __init__(self, folder: Path, resume_at: int = 0) -> None:
        """Open it in a run folder; what was used after iteration `resume_at` is dropped, as it is from the policy."""
        path = folder / FILE_NAME
        if path.exists():
            rewrite(path, [row for row in read_metrics(path) if row["iteration"] <= resume_at])
        self._file = path.open("a", encoding="utf-8")
        self._next: dict[int, int] = {}

    def enter(self, iteration: int, keys: Iterable[tuple[Key, int]]) -> None:
        """Log the keys of an iteration's batches, each with its lag."""
        for key, lag in keys:
            expected = self._next.get(key.actor, key.sequence)
            assert key.sequence == expected, f"actor {key.actor}: batch {key.sequence} instead of {expected}"
            self._next[key.actor] = key.sequence + 1
            self._file.write(json.dumps({"iteration": iteration, **asdict(key), "lag": lag}) + "\n")
        self._file.flush()

    def close(self) -> None:
        """Close the file."""
        self._file.close()
