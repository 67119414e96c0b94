"""What several scripts need: to stop with one line, and to name the machine."""

from __future__ import annotations

import argparse
import os
import platform
import sys
from pathlib import Path
from typing import NoReturn


def stop(code: int, message: str) -> NoReturn:
    """Print one line to stderr and exit with `code`."""
    print(f"{Path(sys.argv[0]).name}: {' '.join(message.split())[:400]}", file=sys.stderr)
    raise SystemExit(code)


def machine(gpu: str | None) -> str:
    """Processor, number of usable cores, and GPU."""
    path = Path("/proc/cpuinfo")
    lines = path.read_text().splitlines() if path.exists() else []
    cpu = next((x.split(":")[1].strip() for x in lines if x.startswith("model name")), platform.processor())
    return f"{cpu}, {cores()} cores" + (f", {gpu}" if gpu else "")


def in_folder(text: str) -> Path:
    """A file to write, from the command line; its folder must be there before hours of measurements, not after.

    Raises:
        argparse.ArgumentTypeError: the folder does not exist, or the path is one.
    """
    path = Path(text)
    if path.is_dir() or not path.parent.is_dir():
        raise argparse.ArgumentTypeError(f"{text!r} is no file in a folder that exists")
    return path


def cores() -> int:
    """Number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
