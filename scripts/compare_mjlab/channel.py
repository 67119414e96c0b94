"""Questions and answers between the comparison and its two processes, a line of JSON each.

Standard library only: one of the two runs in an environment that has no robolearn.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any


class SideFailed(RuntimeError):
    """A side's process ended, or could not do what it was asked."""


def environment() -> dict[str, str]:
    """For another interpreter: what is added to this one's import path is nothing for it."""
    return {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "PYTHONHOME")}


def serve(side: Callable[..., Any]) -> None:
    """Answer questions until the other end closes; `side(**first question)` makes what answers the rest.

    Whatever a library prints goes to stderr: stdout carries answers only.
    """
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    made = None
    for line in sys.stdin:
        name, arguments = json.loads(line)
        result = None
        if made is None:
            made = side(**arguments)
        else:
            result = getattr(made, name)(**arguments)
        print(json.dumps(result), file=answers, flush=True)


class Side:
    """One of the two, in a process of its own."""

    def __init__(self, name: str, python: str, script: Path, log: Path, **arguments: Any) -> None:
        """Start it and wait until it is ready to iterate; what it prints goes to `log`."""
        self.name, self.log = name, log
        with log.open("w") as errors:
            self.process = subprocess.Popen(
                [python, str(script)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                env={**environment(), "PYTHONUNBUFFERED": "1", "WANDB_MODE": "disabled"},
            )
        self.ask("start", **arguments)

    def ask(self, question: str, **arguments: Any) -> Any:
        """Its answer; SideFailed with the last line it printed where there is none."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        try:
            self.process.stdin.write(json.dumps([question, arguments]) + "\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            pass  # the missing answer tells
        answer = self.process.stdout.readline()
        if not answer:
            self.process.wait()
            printed = [line for line in self.log.read_text(errors="replace").splitlines() if line.strip()]
            last = printed[-1].strip() if printed else f"exit status {self.process.returncode}"
            raise SideFailed(f"{self.name} ended while asked to {question}: {last}")
        return json.loads(answer)

    def close(self) -> None:
        """End the process."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        try:
            self.process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


class Stopwatch:
    """Seconds by name, around functions of objects that belong to others.

    `sync` waits for the device: asynchronous work is then counted where it was asked for.
    """

    def __init__(self, sync: Callable[[], None]) -> None:
        self.seconds: dict[str, float] = {}
        self.sync, self.waits = sync, True

    def watch(self, owner: Any, function: str, name: str) -> None:
        """Count the time of `owner.function` under `name`."""
        from time import perf_counter

        inner = getattr(owner, function)

        def timed(*args: Any, **kwargs: Any) -> Any:
            began = perf_counter()
            try:
                return inner(*args, **kwargs)
            finally:
                if self.waits:
                    self.sync()
                self.seconds[name] = self.seconds.get(name, 0.0) + perf_counter() - began

        setattr(owner, function, timed)
