"""The local engine: processes of this machine, which exchange tensors through files in its memory."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from contextlib import suppress
from dataclasses import asdict
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from robolearn.training.asynchronous import store
from robolearn.training.asynchronous.engine import Done, Event, Failed, Lost, Ready, Setup


class LocalEngine:
    """See `Engine`."""

    def __init__(self, keep: int) -> None:
        """`keep`: how many versions of weights may be ordered at a time."""
        self.store = store.Store()
        self._keep = keep
        self._processes: dict[str, tuple[subprocess.Popen[bytes], Connection]] = {}
        self._kept = 0

    def start(self, incarnation: str, setup: Setup, state: str | None) -> None:
        """See `Engine`."""
        ours, theirs = socket.socketpair()
        program = [sys.executable, "-m", "robolearn.training.asynchronous.process"]
        process = subprocess.Popen(
            [*program, setup.label, str(theirs.fileno()), str(self.store.folder)],
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            start_new_session=True,  # a terminal's Ctrl-C is for the learner alone
            env={**os.environ, "OMP_NUM_THREADS": str(setup.cores)},
        )
        theirs.close()
        connection = Connection(ours.detach())
        self._processes[incarnation] = process, connection
        self._tell(incarnation, {"setup": asdict(setup), "incarnation": incarnation, "state": state})

    def order(self, incarnation: str, version: int) -> None:
        """See `Engine`."""
        self._tell(incarnation, {"version": version})

    def place_wanted(self, incarnation: str) -> None:
        """See `Engine`; a process of this machine starts at once."""

    def _tell(self, incarnation: str, message: dict[str, Any]) -> None:
        with suppress(OSError):  # it has ended: `poll` says so
            self._processes[incarnation][1].send_bytes(json.dumps(message).encode())

    def poll(self, seconds: float) -> list[Event]:
        """See `Engine`."""
        names = {connection: name for name, (_, connection) in list(self._processes.items())}
        events: list[Event] = []
        for ready in wait(list(names), seconds) if names else []:
            assert isinstance(ready, Connection)
            name = names[ready]
            try:
                events.append(_event(name, json.loads(ready.recv_bytes())))
            except (EOFError, OSError):
                if (why := self._ended(name)) is not None:
                    events.append(Lost(name, why))
            else:
                if isinstance(events[-1], Failed):
                    self._ended(name)
        return events

    def _ended(self, incarnation: str) -> str | None:
        """How a process has ended, of which the socket is closed; None where another thread has just killed it."""
        if (known := self._processes.pop(incarnation, None)) is None:
            return None
        process, connection = known
        connection.close()
        try:
            code = process.wait(2.0)
        except subprocess.TimeoutExpired:
            process.kill()
            return "it did not answer"
        if code >= 0:
            return f"it ended with exit code {code}"
        try:
            return f"killed by {signal.Signals(-code).name}"
        except ValueError:
            return f"killed by signal {-code}"

    def kill(self, incarnation: str) -> None:
        """See `Engine`."""
        if incarnation in self._processes:
            process, connection = self._processes.pop(incarnation)
            process.kill()
            process.wait()
            connection.close()

    def pid(self, incarnation: str) -> int:
        """The id of a process."""
        return self._processes[incarnation][0].pid

    def publish(self, version: int, weights: dict[str, Any]) -> None:
        """See `Engine`."""
        store.write_weights(self.store.folder, version, weights, self._keep)

    def put(self, tree: Any) -> str:
        """See `Engine`."""
        self._kept += 1
        path = self.store.folder / f"{self._kept}.tree"
        store.write_tree(tree, path)
        return str(path)

    def load(self, handle: str) -> Any:
        """See `Engine`."""
        return store.read_tree(Path(handle))

    def release(self, handle: str) -> None:
        """See `Engine`."""
        store.forget(Path(handle))

    def close(self) -> None:
        """See `Engine`."""
        for incarnation in list(self._processes):
            self.kill(incarnation)
        self.store.close()


def _event(incarnation: str, message: dict[str, Any]) -> Event:
    kind = {"ready": Ready, "done": Done, "failed": Failed}[message.pop("event")]
    made: Event = kind(incarnation, **message)
    return made
