"""Beats: with takeover, each rank writes once a second what it is doing, and the launcher finds the one that hangs.

torchft only knows whether the process of a rank lives. A rank whose main thread hangs, or that is stopped, would hold
up the others without end.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from robolearn.training.ranks import LOST
from robolearn.training.ranks.watch import BEAT_S


class Beats:
    """A thread that writes what this rank does into a file, until `close`."""

    def __init__(self, folder: Path, rank: int) -> None:
        """`folder` is in the memory of the machine; a file in it is this rank's."""
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self.path = _path(folder, rank)
        self.started = False
        """Whether this rank has done an iteration since ranks have come or gone."""
        self.begun = False
        self.phase: Callable[[], str] = lambda: "the start"
        self._since: float | None = None
        self._left = time.monotonic()
        self._done = threading.Event()
        self._write()
        threading.Thread(target=self._run, name="beats", daemon=True).start()

    def enter(self) -> None:
        """This rank waits for others from now on."""
        self._since = time.monotonic()

    def leave(self) -> None:
        """It goes on."""
        self._since, self._left = None, time.monotonic()

    def close(self) -> None:
        """End the thread."""
        self._done.set()

    def _run(self) -> None:
        parent = os.getppid()
        while not self._done.wait(BEAT_S):
            if os.getppid() != parent:
                # The launcher was killed: nothing would stop this rank, and the run folder is not locked.
                os._exit(LOST)
            # The folder is gone where another launcher has removed what a killed one left, just before this rank ends.
            with suppress(OSError):
                self._write()

    def _write(self) -> None:
        message = {
            "pid": os.getpid(),
            "at": time.monotonic(),
            "since": self._since,
            "left": self._left,
            "started": self.started,
            "phase": self.phase(),
        }
        part = self.path.with_suffix(".part")
        part.write_text(json.dumps(message), encoding="utf-8")
        os.replace(part, self.path)


def _path(folder: Path, rank: int) -> Path:
    return folder / f"beat_{rank}.json"


def living(folder: Path, ranks: int) -> int:
    """How many of the ranks live, and have written lately."""
    count, now = 0, time.monotonic()
    for rank in range(ranks):
        try:
            beat = json.loads(_path(folder, rank).read_text(encoding="utf-8"))
            state = Path(f"/proc/{beat['pid']}/stat").read_text().rpartition(")")[2].split()[0]
        except (OSError, ValueError, IndexError):
            continue
        count += state not in "ZX" and now - beat["at"] < 2.5 * BEAT_S
    return count


def late(folder: Path, processes: dict[int, int], limit_s: float) -> dict[int, str]:
    """What each rank does that hangs or is stopped, by rank.

    Args:
        folder: where they write.
        processes: the process ids of the ranks that are to live.
        limit_s: how long others may wait for a rank, and how long it may write nothing [s].
    """
    now, beats = time.monotonic(), {}
    for rank, pid in processes.items():
        try:
            beat = json.loads(_path(folder, rank).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            continue
        if beat["pid"] == pid:  # not of a process before it
            beats[rank] = beat
    out = {rank: beat["phase"] for rank, beat in beats.items() if now - beat["at"] > max(limit_s, 5 * BEAT_S)}
    # One that has not done an iteration with the others may still compile or load.
    started = {rank: beat for rank, beat in beats.items() if beat["started"]}
    if any(b["since"] is not None and now - b["since"] > limit_s for b in started.values()):
        # Of the others, one that has just gone on is not what they wait for.
        busy = {rank: b for rank, b in started.items() if b["since"] is None and now - b["left"] > limit_s}
        out |= {rank: beat["phase"] for rank, beat in busy.items()}
    return out
