"""Starts the ranks of a run with torchft on this machine, each by itself, and each again where it is lost.

torchft leaves that to its user. It brings the lighthouse, the process that knows which ranks there are; it too is
started again where it is lost.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import Any

from robolearn.config.run_config import Config
from robolearn.errors import MissingError, OtherRankFailed, tell_line
from robolearn.training.ranks.beats import late
from robolearn.training.ranks.copies import RUN, memory_folder
from robolearn.training.ranks.launched import FINAL, FOLDER, GRACE_S, RESTARTS, lost_again, newest_copy
from robolearn.training.ranks.takeover import LIGHTHOUSE

POLL_S = 0.1
"""Time between two looks at the processes [s]."""


def supervise(run: Config, words: Sequence[str]) -> int:
    """Train with `run.ranks` processes; `words` are the overrides of the command.

    Returns:
        The exit code of the run.

    Raises:
        MissingError: torchft's lighthouse is not installed.
        OtherRankFailed: a rank has ended with an error, and has said why.
        RunFailed: a rank was lost again and again without an iteration between.
        KeyboardInterrupt: after Ctrl-C or SIGTERM, once a checkpoint is written.
    """
    ranks = _Ranks(run, words)
    signals: list[int] = []

    def on_signal(number: int, frame: FrameType | None) -> None:
        signals.append(number)

    # A signal that the process ignored from its start stays ignored.
    handled = [s for s in (signal.SIGTERM, signal.SIGINT) if signal.getsignal(s) is not signal.SIG_IGN]
    before = {number: signal.signal(number, on_signal) for number in handled}
    try:
        while True:
            if signals:
                print(
                    "stopping after this iteration, with a checkpoint; press Ctrl-C again to stop now",
                    file=sys.stderr,
                    flush=True,
                )
                ranks.stop(signals)
                raise KeyboardInterrupt
            if ranks.look():
                return 0
            time.sleep(POLL_S)
    finally:
        ranks.kill()
        for number, handler in before.items():
            signal.signal(number, handler)


class _Ranks:
    """The processes of the ranks, and of the lighthouse."""

    def __init__(self, run: Config, words: Sequence[str]) -> None:
        self.run, self.words = run, words
        # Scripts of the environment stand beside its Python; they may not be on the path.
        found = shutil.which("torchft_lighthouse", path=str(Path(sys.executable).parent)) or shutil.which(
            "torchft_lighthouse"
        )
        if found is None:
            raise MissingError("torchft_lighthouse is not there: pip install 'robolearn[cluster]'")
        self._program, self._port = found, _free_port()
        self._lighthouse = self._light()
        self._processes = {rank: self._start(rank) for rank in range(run.ranks)}
        self._lost = dict.fromkeys(range(run.ranks), 0)
        self._reached = -1
        self._done = False

    def look(self) -> bool:
        """Start again what was lost; whether the run is complete.

        Raises:
            OtherRankFailed, RunFailed: see `supervise`.
        """
        if self._lighthouse.poll() is not None:
            tell_line("torchft's lighthouse was lost, and starts again")
            self._lighthouse = self._light()
        reached = newest_copy()
        if reached > self._reached:
            self._reached, self._lost = reached, dict.fromkeys(self._lost, 0)
        self._kill_late()
        for rank, process in list(self._processes.items()):
            code = process.poll()
            if code is None:
                continue
            if code == 0 or self._done:
                self._done = True
                del self._processes[rank]
            elif code in FINAL:
                self.stop([])
                raise OtherRankFailed(code)
            else:
                self._lost[rank] += 1
                if self._lost[rank] > RESTARTS:
                    raise lost_again(Path(os.environ[FOLDER]), self.run.ranks)
                how = (
                    f"was killed by {signal.Signals(-code).name}"
                    if code < 0
                    else f"ended with exit code {code}"
                )
                tell_line(
                    f"rank {rank} of {self.run.ranks} {how}, and starts again; until it is back the others have its "
                    "environments"
                )
                self._processes[rank] = self._start(rank)
        return not self._processes

    def _kill_late(self) -> None:
        """Name and kill the ranks that hang or are stopped."""
        alive = {rank: process.pid for rank, process in self._processes.items() if process.poll() is None}
        for rank, doing in late(memory_folder(os.environ[RUN]), alive, self.run.rank_timeout).items():
            tell_line(
                f"rank {rank} of {self.run.ranks} (in {doing}) has not answered for {self.run.rank_timeout:g} s "
                "(rank_timeout); the launcher kills it"
            )
            self._processes[rank].kill()
            self._processes[rank].wait()

    def stop(self, signals: list[int]) -> None:
        """End all ranks after a checkpoint; at once where a second signal arrives, and those that are left soon after
        the first has ended by itself."""
        for process in self._processes.values():
            process.terminate()
        ended_since = float("inf")
        while any(p.poll() is None for p in self._processes.values()) and len(signals) < 2:
            # All have written the checkpoint before one ends.
            codes = [process.poll() for process in self._processes.values()]
            if any(code is not None and code >= 0 for code in codes):
                ended_since = min(ended_since, time.monotonic())
            if time.monotonic() > ended_since + GRACE_S:
                break
            self._kill_late()
            time.sleep(POLL_S)

    def kill(self) -> None:
        """End what is left."""
        for process in (*self._processes.values(), self._lighthouse):
            process.kill()
            process.wait()

    def _start(self, rank: int) -> subprocess.Popen[bytes]:
        ranks = str(self.run.ranks)
        environment = {
            **os.environ,
            "RANK": str(rank),
            "LOCAL_RANK": str(rank),
            "WORLD_SIZE": ranks,
            "LOCAL_WORLD_SIZE": ranks,
            LIGHTHOUSE: f"http://localhost:{self._port}",
        }
        command = [sys.executable, "-m", "robolearn.cli", "train", *self.words]
        return _started(command, env=environment)

    def _light(self) -> subprocess.Popen[bytes]:
        # One that is lost stops its heartbeat. One that is in an iteration is waited for, or two groups would train.
        waiting = str(round(1000 * self.run.rank_timeout))
        limits = ["--join_timeout_ms", waiting, "--heartbeat_timeout_ms", "1000", "--quorum_tick_ms", "50"]
        command = [self._program, "--min_replicas", "1", "--bind", f"[::]:{self._port}", *limits]
        return _started(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


_LIBC = ctypes.CDLL(None)


def _end_with_launcher() -> None:
    """Let the kernel kill this process where the launcher is gone: the lighthouse is not ours to change, and a rank
    that is stopped, or inside an exchange, may not find out."""
    _LIBC.prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG


def _started(command: list[str], **options: Any) -> subprocess.Popen[bytes]:
    """A process of its own that ends with this one."""
    # Safe: this process has no other threads, and the function only calls the kernel.
    ends = _end_with_launcher if sys.platform == "linux" else None
    return subprocess.Popen(command, start_new_session=True, preexec_fn=ends, **options)  # noqa: PLW1509


def _free_port() -> int:
    """A port where nothing listens."""
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        return int(probe.getsockname()[1])
