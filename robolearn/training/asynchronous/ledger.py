"""batches.jsonl, the log of the batches that a run has used: a line for each, with its key.

    {"iteration": 7, "actor": 2, "incarnation": "9f3c...", "sequence": 6, "version": 5, "lag": 1}

`sequence` numbers the batches of an actor from 0 on, without a gap, also where a run is resumed: an actor that was
replaced collects the batch again that it had begun, as another incarnation. `version` is the number of updates of the
policy that acted.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from robolearn.errors import ConfigError
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
        self.path = path = folder / FILE_NAME
        self._next: dict[int, int] = {}
        if path.exists():
            rows = [row for row in read_metrics(path) if row["iteration"] <= resume_at]
            rewrite(path, rows)
            self._next = {row["actor"]: row["sequence"] + 1 for row in rows}
        self._file = path.open("a", encoding="utf-8")

    def starts(self, known: Mapping[int, tuple[Any, int]]) -> dict[int, tuple[Any, int]]:
        """State and number of the next batch of each actor that was in the run before.

        Args:
            known: the same from a checkpoint, by actor; the number is 0 where the checkpoint does not know it.

        Raises:
            ConfigError: the checkpoint goes on with another batch than this log.
        """
        out = dict(known)
        for actor, number in self._next.items():
            state, sequence = known.get(actor, (None, 0))
            if sequence not in (0, number):
                raise ConfigError(
                    f"{self.path}: the checkpoint goes on with batch {sequence} of actor {actor}, and this file with "
                    f"batch {number}; it was changed or cut off: move it away, and another one begins"
                )
            out[actor] = state, number
        return out

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
