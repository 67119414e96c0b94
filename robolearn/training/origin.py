"""Records with what a run was trained: versions, commit and machine, at its start and at each time it is resumed."""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
from datetime import datetime
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

from robolearn import __version__
from robolearn.core.threads import usable_cores
from robolearn.files import replacing
from robolearn.runtime.measure import processor

SCHEMA = 1
"""Version of the file's layout."""

FILE_NAME = "starts.json"

PACKAGES = (
    "torch",
    "numpy",
    "mujoco",
    "mujoco-warp",
    "warp-lang",
    "isaaclab",
    "newton",
    "gymnasium",
    "mjlab",
    "pettingzoo",
    "mpe2",
)
"""Packages that decide what a training computes; those that are installed are recorded."""

SOURCE = Path(__file__).resolve().parents[2]


def record_start(folder: Path, iteration: int, found: dict[str, Any]) -> None:
    """Add a start after `iteration`, with what `here` found, to starts.json; a damaged file is written anew.

    Raises:
        ConfigError: the file cannot be written.
    """
    path = folder / FILE_NAME
    try:
        starts = list(json.loads(path.read_text(encoding="utf-8"))["starts"])
    except (OSError, ValueError, KeyError, TypeError):
        starts = []
    starts.append({"iteration": iteration, **found})
    with replacing(path) as part:
        part.write_text(json.dumps({"schema": SCHEMA, "starts": starts}, indent=1) + "\n", encoding="utf-8")


def record_finish(folder: Path, iteration: int) -> None:
    """Note in starts.json that training is complete after `iteration`, before the last one that was asked for; nothing
    where the file is missing or damaged.

    Raises:
        ConfigError: the file cannot be written.
    """
    try:
        content = json.loads((folder / FILE_NAME).read_text(encoding="utf-8"))
        content["starts"][-1]["finished"] = iteration
    except (OSError, ValueError, KeyError, TypeError, IndexError):
        return
    with replacing(folder / FILE_NAME) as part:
        part.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


def here(device: torch.device) -> dict[str, Any]:
    """Time, versions, commit and machine of this process."""
    return {
        "at": datetime.now().astimezone().isoformat(timespec="seconds"),
        "versions": versions(),
        "commit": commit(),
        "machine": machine(device),
    }


def versions() -> dict[str, str]:
    """Versions of Python, RoboLearn and the installed ones of PACKAGES."""
    out = {"robolearn": __version__, "python": platform.python_version()}
    for name in PACKAGES:
        try:
            out[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return out


def commit(source: Path = SOURCE) -> str | None:
    """The commit of RoboLearn's source, with `-dirty` where files differ from it; None where it is no checkout."""
    # Only a checkout of RoboLearn itself: a virtual environment may lie in another project's.
    if not (source / ".git").exists() or shutil.which("git") is None:
        return None
    try:
        words = ["git", "describe", "--always", "--abbrev=40", "--match=", "--dirty"]
        done = subprocess.run(words, cwd=source, capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip() or None


def machine(device: torch.device) -> dict[str, Any]:
    """Processor, cores that the process may use, memory, and the GPU where the run uses one."""
    out: dict[str, Any] = {
        "processor": processor() or platform.processor() or platform.machine(),
        "architecture": platform.machine(),
        "system": platform.system(),
        "cores": usable_cores(),
        "memory_gb": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9, 1),
    }
    if device.type == "cuda":
        out["gpu"] = torch.cuda.get_device_name(device)
        out["cuda"] = torch.version.cuda
    return out
