"""Requests and responses between the comparison and its two processes, one line of JSON each.

Standard library only: mjlab's process runs in a Python environment without robolearn.
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
    """The process of a side ended without a response."""


def environment() -> dict[str, str]:
    """Environment variables for another interpreter, without additions to this interpreter's import path."""
    return {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "PYTHONHOME")}


def serve(side: Callable[..., Any]) -> None:
    """Answer requests until stdin closes; the first one makes the object, `side(**arguments)`, and others call it.

    Output of libraries goes to stderr: stdout carries responses only.
    """
    responses = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    served = None
    for line in sys.stdin:
        name, arguments = json.loads(line)
        result = None
        if served is None:
            served = side(**arguments)
        else:
            result = getattr(served, name)(**arguments)
        print(json.dumps(result), file=responses, flush=True)


class Side:
    """mjlab or robolearn, in a separate process."""

    def __init__(self, name: str, python: str, script: Path, log: Path, **arguments: Any) -> None:
        """Start the process and wait until it is ready to iterate; its output goes to `log`."""
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
        self.call("start", **arguments)

    def call(self, method: str, **arguments: Any) -> Any:
        """Call a method of the side and return its result.

        Raises:
            SideFailed: the process ended; the message has the last line of its log.
        """
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        try:
            self.process.stdin.write(json.dumps([method, arguments]) + "\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            pass  # reported below, by the missing response
        response = self.process.stdout.readline()
        if not response:
            self.process.wait()
            printed = [line for line in self.log.read_text(errors="replace").splitlines() if line.strip()]
            last = printed[-1].strip() if printed else f"exit status {self.process.returncode}"
            raise SideFailed(f"{self.name} ended during {method}: {last}")
        return json.loads(response)

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
    """Seconds by name, measured around methods of given objects.

    `sync` waits for the device, so that asynchronous work counts for the call that launched it.
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
