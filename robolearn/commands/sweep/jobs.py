"""One training of a sweep as a process: started or resumed in its run folder, watched, stopped."""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from robolearn import config
from robolearn.commands.exits import BAD_INPUT, INTERRUPTED
from robolearn.commands.sweep import tether
from robolearn.commands.sweep.grammar import setting
from robolearn.config import registry
from robolearn.errors import ConfigError, one_line
from robolearn.files import holder
from robolearn.learners import saved

LOG = "train.log"
"""A run's output, in its folder."""


@dataclass(frozen=True)
class Training:
    """What a job trains; it is sent to other machines."""

    folder: str
    """The run folder, absolute."""
    words: tuple[str, ...]
    """The settings of a new run."""
    iterations: int
    """`max_iterations`."""
    directory: str = field(default_factory=os.getcwd)
    """Working directory, in which the settings' relative paths are."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """Variables that the process gets besides those that are set."""

    def command(self) -> list[str]:
        """The arguments of `robolearn train`: resume where there is a checkpoint, else a new run."""
        folder = Path(self.folder)
        if not (folder / saved.LATEST).is_file():
            return [*self.words, setting("output", self.folder)]
        # Files are named again: their code is not run otherwise.
        files = [word for word in self.words if registry.is_file(word.partition("=")[2].strip("'\""))]
        return [setting("resume", self.folder), *files]


class Job(Protocol):
    """A training that runs somewhere."""

    def poll(self) -> int | None:
        """The exit code; None while it runs."""

    def stop(self) -> None:
        """Ask it to save a checkpoint and to end; a second call ends it at once."""

    def why(self) -> str:
        """After its end: the error, one line."""


class Place(Protocol):
    """Where jobs run."""

    def start(self, training: Training) -> Job:
        """Start a training; it may wait for resources first."""

    def close(self) -> None:
        """Release what the place holds."""


class LocalJob:
    """A training in a process of this machine, in a session of its own: Ctrl-C in the terminal does not reach it."""

    def __init__(self, training: Training) -> None:
        self.training = training
        self.folder = Path(training.folder)
        self.process: subprocess.Popen[bytes] | None = None
        self.blocked: str | None = None
        """The process that still trains in the run folder, which the job waits for."""
        self._code: int | None = None
        self._error = ""
        self._asked = 0
        self.poll()

    def poll(self) -> int | None:
        """See `Job`."""
        if self._code is None and self.process is None:
            if self._asked:
                self._code = INTERRUPTED
            else:
                self.blocked = holder(self.folder)
                if self.blocked is None:
                    try:
                        self._launch()
                    except (ConfigError, OSError) as error:  # a damaged checkpoint, a full disk
                        self._code, self._error = BAD_INPUT, one_line(str(error))
        if self._code is None and self.process is not None:
            self._code = self.process.poll()
            if self._code is not None and self.process.stdin is not None:
                self.process.stdin.close()
        return self._code

    def _launch(self) -> None:
        folder = self.folder
        if (folder / saved.LATEST).is_file():
            # A sweep that was killed may not have seen the end of the run.
            if int(saved.load(folder / saved.LATEST, folder).get("iter", 0)) >= self.training.iterations:
                self._code = 0
                return
        else:
            _clear(folder)
        arguments = self.training.command()
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / LOG).open("ab") as log:
            log.write(f"$ {shlex.join(['robolearn', 'train', *arguments])}\n".encode())
            log.flush()
            self.process = subprocess.Popen(
                [sys.executable, "-m", tether.__name__, "robolearn.cli", "train", *arguments],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=self.training.directory,
                env={**os.environ, **self.training.environment},
                start_new_session=True,
            )

    def stop(self) -> None:
        """See `Job`; a third call kills it."""
        self._asked += 1
        if self.process is None or self.process.poll() is not None:
            return
        with suppress(ProcessLookupError):
            if self._asked > 2:
                os.killpg(self.process.pid, signal.SIGKILL)
            else:
                self.process.send_signal(signal.SIGTERM)

    def why(self) -> str:
        """See `Job`."""
        return self._error or reason(self.folder, self._code or 0)


class LocalPlace:
    """This machine."""

    def start(self, training: Training) -> Job:
        """See `Place`."""
        return LocalJob(training)

    def close(self) -> None:
        """See `Place`."""


def _clear(folder: Path) -> None:
    """Remove what a run without a checkpoint has left; its log stays. Only files that a run writes are removed."""
    written = (config.FILE_NAME, "contract.json", "starts.json", "metrics.jsonl", "events.out.tfevents.*")
    for pattern in written:
        for path in folder.glob(pattern):
            path.unlink()
    shutil.rmtree(folder / "checkpoints", ignore_errors=True)


def reason(folder: Path, code: int) -> str:
    """Why a training ended with an exit code that is not 0: the last line of its log, or the signal."""
    if code < 0:
        name = signal.Signals(-code).name if -code in set(signal.Signals) else f"signal {-code}"
        memory = "; the system may have run out of memory" if -code == signal.SIGKILL else ""
        return f"killed by {name}{memory}"
    try:
        with (folder / LOG).open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - 8192))
            lines = file.read().decode("utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    said = next((line for line in reversed(lines) if line.strip() and not line.startswith("$ ")), "")
    return one_line(said.strip().removeprefix("robolearn: ")) or f"exit code {code}"


def refuse_files(words: Sequence[str], named: Sequence[str], resume: str) -> None:
    """Refuse saved settings that name a file, whose code would run, unless the user names it again.

    Raises:
        ConfigError: `words` name a file that `named` do not.
    """
    for word in words:
        key, _, value = word.partition("=")
        if registry.is_file(value.strip("'\"")) and word not in named:
            raise ConfigError(
                f"the sweep's {key} comes from a file, which is only run where you name it again: "
                f"{shlex.join(['robolearn', 'sweep', setting('resume', resume), word])}"
            )
