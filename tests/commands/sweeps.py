"""Sweeps as processes, and made-up ones that have ended."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from robolearn.commands.sweep import state
from robolearn.commands.sweep.progress import Tail
from robolearn.training import checkpoint
from tests.commands.runs import make_run

TINY = ["task=cartpole_balance", "num_envs=8", "learner.num_steps=8", "learner.schedule=fixed"]
RATE = "learner.learning_rate"


def start(folder: Path, *words: str, cwd: Path | None = None) -> subprocess.Popen[str]:
    """A sweep in a process of its own."""
    return subprocess.Popen(
        [sys.executable, "-m", "robolearn.cli", "sweep", *words],
        cwd=cwd or folder.parent,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def finish(process: subprocess.Popen[str]) -> tuple[int, str]:
    output, _ = process.communicate(timeout=600)
    return process.returncode, output


def until(condition: Callable[[], Any], seconds: float = 600) -> None:
    """Wait until something is true."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.05)


def iterations(folder: Path) -> int:
    """Logged iterations of a run."""
    tail = Tail(folder)
    tail.read()
    return tail.iteration


def statuses(folder: Path) -> dict[str, str]:
    return {run.name: run.status for run in state.load(folder).runs}


def weights(folder: Path) -> dict[str, torch.Tensor]:
    content = checkpoint.load(folder / "latest.pt")
    return dict(content["actor_state_dict"])


def same(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[key], b[key]) for key in a)


ENDLESS = ["max_iterations=100000", "checkpoint_interval=10"]
"""A training that only ends when it is stopped."""


def made_sweep(folder: Path, curves: dict[str, list[float]], axis: str = "seed=1,2,3") -> Path:
    """A sweep whose runs have ended, with made-up curves of episode/return; a name is KEY-VALUE_KEY-VALUE."""
    runs = []
    for name, returns in curves.items():
        pairs = dict(part.split("-", 1) for part in name.split("_"))
        settings = {{"gamma": "learner.gamma"}.get(key, key): value for key, value in pairs.items()}
        words = [f"{key}={value}" for key, value in settings.items() if key != "seed"]
        make_run(folder / name, returns, *words, seed=int(pairs.get("seed", 1)))
        runs.append(state.RunState(name, settings, len(returns), state.FINISHED, exit_code=0))
    folder.mkdir(parents=True, exist_ok=True)
    state.Sweep(folder, ["task=cartpole_balance", axis], runs=runs).save()
    return folder
