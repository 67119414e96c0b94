"""Trainings with ranks as real processes."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import torch

from robolearn.cli import main
from robolearn.training import checkpoint
from robolearn.training.metrics import read_metrics

TINY = [
    "task=cartpole_balance",
    "num_envs=32",
    "shards=4",
    "learner.num_steps=8",
    "learner.minibatch_size=64",
]
"""Words of a small training."""


def start(folder: Path, *words: str, **environment: str) -> subprocess.Popen[str]:
    """`robolearn train` in a process of its own, with its output in `folder`.log."""
    with folder.with_suffix(".log").open("w") as log:
        return subprocess.Popen(
            [sys.executable, "-m", "robolearn.cli", "train", *words, f"output={folder}"],
            stdout=log,
            stderr=subprocess.STDOUT,
            text=True,
            cwd=folder.parent,
            env={**os.environ, **environment},
        )


def run(folder: Path, *words: str, **environment: str) -> int:
    return start(folder, *words, **environment).wait(timeout=600)


def run_here(folder: Path, *words: str) -> int:
    """As `run`, of one rank, without a process of its own, which takes seconds to start."""
    with folder.with_suffix(".log").open("w") as log, redirect_stdout(log), redirect_stderr(log):
        return main(["train", *words, "ranks=1", f"output={folder}"])


def said(folder: Path) -> str:
    return folder.with_suffix(".log").read_text()


def until(condition: Callable[[], Any], seconds: float = 300) -> Any:
    """Wait until something is true, and return it."""
    end = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.02)
    return found


def iterations(folder: Path) -> int:
    """Logged iterations: lines, which are counted many times a second while a run trains."""
    path = folder / "metrics.jsonl"
    return path.read_bytes().count(b"\n") if path.exists() else 0


def last_row(folder: Path) -> dict[str, Any]:
    """The last logged numbers."""
    path = folder / "metrics.jsonl"
    rows = read_metrics(path) if path.exists() else []
    return rows[-1] if rows else {}


def ranks_of(launcher: subprocess.Popen[str]) -> dict[int, int]:
    """The process of each rank that a launcher has started."""
    found = {}
    for entry in Path("/proc").iterdir():
        try:
            parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            environment = (entry / "environ").read_bytes().decode(errors="replace").split("\0")
        except (OSError, ValueError, IndexError):
            continue
        if parent == launcher.pid:
            found |= {int(e[5:]): int(entry.name) for e in environment if e.startswith("RANK=")}
    return found


def child(launcher: subprocess.Popen[str], program: str) -> int | None:
    """A process that the launcher has started, by its command; None where there is none."""
    for entry in Path("/proc").iterdir():
        try:
            parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            command = (entry / "cmdline").read_bytes().decode(errors="replace")
        except (OSError, ValueError, IndexError):
            continue
        if parent == launcher.pid and program in command:
            return int(entry.name)
    return None


def alive(pid: int) -> bool:
    try:
        return (Path("/proc") / str(pid) / "stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def tensors(folder: Path) -> dict[str, torch.Tensor]:
    """Everything in the newest checkpoint that a later step depends on."""
    content = checkpoint.load(folder / "latest.pt")
    kept = {key: content[key] for key in content if key not in ("infos", "global_random")}
    found: dict[str, torch.Tensor] = {}

    def walk(value: Any, path: str) -> None:
        if isinstance(value, torch.Tensor):
            found[path] = value
        elif isinstance(value, dict):
            for key, item in value.items():
                walk(item, f"{path}.{key}")
        elif isinstance(value, (list, tuple)):
            for i, item in enumerate(value):
                walk(item, f"{path}.{i}")

    walk(kept, "")
    return found


def differing(one: Path, other: Path) -> list[str]:
    """The tensors that differ between the newest checkpoints of two runs."""
    a, b = tensors(one), tensors(other)
    return [
        name for name in {**a, **b} if name not in a or name not in b or not torch.equal(a[name], b[name])
    ]


def totals(folder: Path) -> list[dict[str, float]]:
    """The logged numbers of each iteration that are no times."""
    timed = ("seconds", "steps_per_second")
    return [
        {k: v for k, v in row.items() if k not in timed and not k.startswith(("time/", "rank"))}
        for row in read_metrics(folder / "metrics.jsonl")
    ]
