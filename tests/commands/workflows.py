"""Workflows as `robolearn workflow` writes them."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from robolearn.cli import main

TASK = ["task=cartpole_balance", "num_envs=16", "max_iterations=3"]
IMAGE = ["--image", "reg/robolearn:1"]
STORE = {"osmo": "s3://bucket/runs", "kuberay": "claim", "slurm": None}
needs_bash = pytest.mark.skipif(shutil.which("bash") is None, reason="bash is not installed")


def written(engine: str, folder: Path, *words: str) -> Path:
    """The folder of a workflow for an engine."""
    store = STORE[engine]
    options = [*IMAGE, *(["--store", store] if store else [])] if engine != "slurm" else []
    assert main(["workflow", "--engine", engine, "--output", str(folder), *options, *TASK, *words]) == 0
    return folder
