"""Watch: tells the ranks of a run why one of them has ended, and which one the others wait for.

Each rank counts the exchanges that it has entered, and a thread of it writes the count into the store of the run once a
second. A rank that has waited in an exchange for longer than allowed reads the counts of the others: those that have
entered fewer are late, and those whose thread does not write any more are stopped.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from torch._C._distributed_c10d import PrefixStore, TCPStore

from robolearn.errors import OtherRankFailed, tell_line
from robolearn.training.ranks import LOST

BEAT_S = 1.0
"""Time between two messages of a rank [s]."""
REASON_S = 3.0
"""Longest that a rank waits for another one's reason to end [s]."""


class Watch:
    """Messages of this rank to the others, through a store that rank 0 holds."""

    def __init__(
        self, store: TCPStore, rank: int, ranks: int, limit_s: float, incarnation: str = "0"
    ) -> None:
        """`limit_s` is how long an exchange may wait, from the first iteration on [s]."""
        self.rank, self.ranks, self.limit_s = rank, ranks, limit_s
        self.store = PrefixStore(f"watch/{incarnation}", store)
        self.started = False
        """Whether the first iteration is done: before it, ranks may compile for minutes."""
        self.begun = False
        self.phase: Callable[[], str] = lambda: "the start"
        self._entered = 0
        self._since: float | None = None
        self._failed = False
        self._done = threading.Event()
        # A connection of its own: the store of the main thread may be in use.
        own: Any = store  # torch does not declare the method
        self._beats = PrefixStore(f"watch/{incarnation}", own.clone())
        self._thread = threading.Thread(target=self._beat, name="watch", daemon=True)
        self._thread.start()

    def enter(self) -> None:
        """This rank enters an exchange."""
        self._entered += 1
        self._since = time.monotonic()

    def leave(self) -> None:
        """The exchange is done."""
        self._since = None

    # ------------------------------------------------------------------ errors

    def first_to_fail(self) -> bool:
        """Whether this rank, which ends with an error, is the first to do so."""
        self._failed = True
        try:
            return self.store.add("failures", 1) == 1
        except RuntimeError:  # the store is gone with rank 0
            return True

    def announce(self, code: int) -> None:
        """Tell the others that this rank has said why it ends, and with which exit code."""
        with suppress(RuntimeError):
            self.store.set("failure", json.dumps({"rank": self.rank, "code": code}))

    def reason(self) -> OtherRankFailed:
        """Why an exchange has failed: another rank's error that it has announced, or it is lost."""
        self._since = None
        until = time.monotonic() + REASON_S
        while time.monotonic() < until:
            try:
                if self.store.check(["failure"]):
                    found = json.loads(self.store.get("failure"))
                    self.store.add("read", 1)
                    return OtherRankFailed(int(found["code"]))
            except (RuntimeError, ValueError):
                break
            time.sleep(0.05)
        return OtherRankFailed(LOST)

    def close(self) -> None:
        """End the thread; rank 0, which holds the store, first lets the others read why it ends."""
        self._done.set()
        if self.rank == 0 and self._failed:
            until = time.monotonic() + REASON_S
            while time.monotonic() < until and self.store.add("read", 0) < self.ranks - 1:
                time.sleep(0.05)

    # ------------------------------------------------------------------ the thread

    def _beat(self) -> None:
        beats = 0
        parent = os.getppid()
        while not self._done.wait(BEAT_S):
            if os.getppid() != parent:
                os._exit(LOST)  # the launcher was killed: nobody would stop this rank
            beats += 1
            since = self._since
            message = {
                "beats": beats,
                "entered": self._entered,
                "phase": self.phase(),
                "host": os.uname().nodename,
            }
            try:
                self._beats.set(f"rank/{self.rank}", json.dumps(message))
            except RuntimeError:
                continue  # the main thread finds out
            if since is not None and time.monotonic() - since > self.limit_s:
                late = self._late()
                if self._since == since and not self._done.is_set() and (late or self.started):
                    self._report(late)

    def _late(self) -> dict[int, dict[str, Any] | None]:
        """The last messages of the ranks that the others wait for; None of one that has sent none."""
        first = self._messages()
        # Before the first iteration is done, others may load and compile, for which a thread may have to wait, too.
        self._done.wait(2.5 * BEAT_S if self.started else max(2.5 * BEAT_S, self.limit_s))
        second = self._messages()
        stopped = {r: m for r, m in second.items() if r != self.rank and m is not None and m == first.get(r)}
        if not self.started:
            return dict(stopped)
        behind = {r: m for r, m in second.items() if m is None or m["entered"] < self._entered}
        return {**stopped, **behind}

    def _messages(self) -> dict[int, dict[str, Any] | None]:
        out: dict[int, dict[str, Any] | None] = {}
        for rank in range(self.ranks):
            key = f"rank/{rank}"
            out[rank] = json.loads(self._beats.get(key)) if self._beats.check([key]) else None
        return out

    def _report(self, late: dict[int, dict[str, Any] | None]) -> None:
        """Name the late ranks, once for all, and end this process."""
        try:
            first = self._beats.add("hangs", 1) == 1
        except RuntimeError:
            first = True
        if first:
            named = ", ".join(
                f"rank {r} of {self.ranks}" + (f" on {m['host']} (in {m['phase']})" if m else "")
                for r, m in sorted(late.items())
            )
            tell_line(f"{named or 'a rank'} has not answered for {self.limit_s:g} s (rank_timeout)")
        os._exit(LOST)  # the main thread is inside an exchange that does not end
