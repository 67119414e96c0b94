"""Runs the steps here, one after the other, each as a process of its own."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

from robolearn.commands.workflow.steps import CLAIM, DONE, RUN, SUITE, Request, Step, steps_of
from robolearn.config import FILE_NAME
from robolearn.files import locked, replacing


def run(request: Request, folder: Path) -> int:
    """Run what is not done yet.

    Returns:
        0, or the exit code of the first step that failed; what follows it is not started.

    Raises:
        ConfigError: another process runs the steps in this folder.
        KeyboardInterrupt: interrupted; a training has saved a checkpoint.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with locked(folder):
        for name, content in ((SUITE, request.suite), (CLAIM, f"{request.digest}\n"), *request.files):
            with replacing(folder / name) as part:
                part.write_text(content, encoding="utf-8")
        steps = steps_of(request)
        for number, step in enumerate(steps, 1):
            if is_done(step, folder):
                _say(f"[{number}/{len(steps)}] {step.name}: done before")
                continue
            words = arguments(step, folder)
            _say(f"[{number}/{len(steps)}] {step.name}: robolearn {' '.join(words)}")
            began = time.perf_counter()
            code = _run(words, folder)
            if code != 0:
                _say(
                    f"[{number}/{len(steps)}] {step.name}: exit code {code}; the same command continues here"
                )
                return code
            _mark(step, folder)
            _say(
                f"[{number}/{len(steps)}] {step.name}: {time.perf_counter() - began:.0f} s, {folder / step.folder}"
            )
    return 0


def is_done(step: Step, folder: Path) -> bool:
    """Whether a step has succeeded and its result is there. A training is complete with its last checkpoint."""
    there = (folder / step.result).exists()
    return there and (step.name == "train" or (folder / DONE / step.mark).exists())


def arguments(step: Step, folder: Path) -> list[str]:
    """The words of a step; a training resumes where it has a checkpoint, and starts again where it has none."""
    if step.name != "train":
        return list(step.words)
    if (folder / RUN / "latest.pt").exists():
        return ["train", f"resume={RUN}", *step.words[1:]]
    if (folder / RUN / FILE_NAME).exists():  # of a training that was ended before its first checkpoint
        shutil.rmtree(folder / RUN, ignore_errors=True)
    return ["train", f"output={RUN}", *step.words[1:]]


def _mark(step: Step, folder: Path) -> None:
    (folder / DONE).mkdir(exist_ok=True)
    (folder / DONE / step.mark).touch()


def _run(words: list[str], folder: Path) -> int:
    # In a session of its own: else Ctrl-C reaches the step twice, and a second signal ends a training at once.
    command = [sys.executable, "-m", "robolearn.cli", *words]
    process = subprocess.Popen(command, cwd=folder, start_new_session=True)
    try:
        return process.wait()
    except KeyboardInterrupt:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait()
        except KeyboardInterrupt:  # pressed again: at once
            process.send_signal(signal.SIGTERM)
            process.wait()
        raise


def _say(text: str) -> None:
    print(text, flush=True)
