"""How many environments fit into memory, asked before a run begins and not by its crash."""

from __future__ import annotations

import gc
import resource
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import torch

from robolearn.errors import ConfigError, MissingError, RunFailed

PLENTY = 2**21
"""Bytes that no environment of ours needs (a humanoid takes 0.1 MB): where there is this much, nothing is measured."""
PROBE = 1024
"""Environments that are built to measure what one takes, or as many as are asked for."""
USABLE = 0.8
"""Share of the free memory that may be planned with: a run takes more than what stands before its first step."""
TOO_LARGE = "needs more memory than there is"


def require_room(
    num_envs: int, device: torch.device, build: Callable[[int], Sequence[Any]], plenty: int = PLENTY
) -> None:
    """Refuse a number of environments that does not fit in memory.

    Args:
        num_envs: what was asked for.
        device: where they are to be.
        build: makes what will be held for a small number of environments: an Env, its backend, maybe a learner.
            What takes more for a while says so in its `scratch_bytes`. It must not ask for room itself.
        plenty: bytes that no environment needs: where there is this much for each, nothing is measured.

    Raises:
        ConfigError: it does not fit; the message has the largest number that would.
    """
    free = free_bytes(device)
    if free is None or num_envs * plenty < free:
        return
    probe, before = min(PROBE, max(2, num_envs)), taken_bytes(device)
    with enough_memory(num_envs):
        one, many = (_grown(build, n, device, before) for n in (1, probe))
    each = max(1.0, (many - one) / (probe - 1))
    most = int((USABLE * free - one) / each) + 1
    if num_envs > most:
        fitting = max(0, most - most % (1 if most < 256 else 64))
        need = (one + (num_envs - 1) * each) / 2**30
        raise ConfigError(
            f"num_envs={num_envs} needs about {need:.1f} GiB, and {device.type} has {free / 2**30:.1f} GiB free; "
            f"at most num_envs={fitting} fits"
        )


def _grown(build: Callable[[int], Sequence[Any]], num_envs: int, device: torch.device, before: int) -> int:
    """Bytes that are taken with so many environments, beyond those taken before."""
    made = build(num_envs)
    with closing(made[0]):
        size = taken_bytes(device) - before + sum(getattr(part, "scratch_bytes", 0) for part in made)
    del made
    gc.collect()  # an Env and its recorded parts know each other
    return size


@contextmanager
def enough_memory(num_envs: int, what: str = "") -> Iterator[None]:
    """Say in one line what memory is not enough for, whichever library finds out; `what` comes with the environments.

    Raises:
        ConfigError: an allocation failed: torch's and Warp's are RuntimeErrors, NumPy's is a MemoryError.
    """
    try:
        yield
    except (MissingError, RunFailed):
        raise
    except (MemoryError, RuntimeError) as error:
        text = str(error).lower()
        if not isinstance(error, MemoryError) and "alloc" not in text and "out of memory" not in text:
            raise
        raise ConfigError(f"num_envs={num_envs}{what} {TOO_LARGE}") from error


def taken_bytes(device: torch.device) -> int:
    """Memory that is taken: of a GPU by everybody, of the host by this process."""
    return -(free_bytes(device) or 0) if device.type == "cuda" else process_bytes()


def process_bytes(statm: Path = Path("/proc/self/statm")) -> int:
    """Memory of the host that this process has now, without the files it has mapped; its peak where no one says."""
    try:
        _, resident, shared, *_ = statm.read_text().split()
    except OSError:
        return peak_bytes()
    return (int(resident) - int(shared)) * resource.getpagesize()


def peak_bytes() -> int:
    """The most memory of the host that this process had at any time."""
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most * (1 if sys.platform == "darwin" else 1024)  # bytes there, KiB on Linux


def free_bytes(device: torch.device) -> int | None:
    """Memory that can still be had; None where the system does not tell."""
    if device.type == "cuda":
        # Where no such GPU is, the backend says so, and better.
        if (device.index or 0) >= torch.cuda.device_count():
            return None
        # What torch keeps for its next allocation is taken, for the driver, but free for us.
        kept = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return int(torch.cuda.mem_get_info(device)[0]) + kept
    machine = [x * 1024 for x in _numbers(Path("/proc/meminfo"), "MemAvailable:")]
    return min([*machine, *_left_to_container()], default=None)


def _left_to_container(groups: Path = Path("/sys/fs/cgroup")) -> list[int]:
    """What a container may still take, by control groups of version 2 or of version 1; empty without a limit."""
    names = ("memory.max", "memory.current"), ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes")
    for limit, used in names:
        try:
            most, now = ((groups / name).read_text().strip() for name in (limit, used))
        except OSError:
            continue
        # Pages of files can be given back. Version 1 counts those of groups within this one by another name.
        stat = (groups / limit).with_name("memory.stat")
        back = max([0, *_numbers(stat, "inactive_file"), *_numbers(stat, "total_inactive_file")])
        return [] if most == "max" else [int(most) - int(now) + back]
    return []


def _numbers(path: Path, name: str) -> list[int]:
    """The number after a name in a table of the system; empty where there is none."""
    rows = (line.split() for line in path.read_text().splitlines()) if path.exists() else ()
    return [int(row[1]) for row in rows if row and row[0] == name]
