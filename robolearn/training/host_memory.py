"""Predicts before a run whether its environments fit into memory, of the host or of a GPU."""

from __future__ import annotations

import gc
import math
import resource
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import torch

from robolearn.errors import ConfigError, MissingError, RunFailed

PLENTY = 2**21
"""Upper bound [bytes] of an environment's size (a humanoid takes 0.1 MB); where it fits, nothing is measured."""
PROBE = 1024
"""Number of environments that are built to measure the size of one; fewer where `num_envs` is smaller."""
USABLE = 0.8
"""Usable share of the free memory: a run allocates more after it is built."""
TOO_LARGE = "needs more memory than there is"


def require_room(
    num_envs: int,
    device: torch.device,
    build: Callable[[int], Sequence[Any]],
    plenty: int = PLENTY,
    unit: int = 1,
) -> None:
    """Refuse a number of environments that does not fit into memory.

    The size of one is measured by building one environment (or `unit`), and then PROBE of them.

    Args:
        num_envs: number of environments of the run.
        device: device of the environments.
        build: builds the parts of a run with a given number of environments: an Env, which is closed afterwards, its
            backend, maybe a learner. A part's `scratch_bytes`, if any, is what it takes temporarily.
        plenty: upper bound [bytes] of the size of one; where it fits, nothing is measured.
        unit: environments can be built in multiples of it only.

    Raises:
        ConfigError: they do not fit; the message has the largest number that does.
    """
    free = free_bytes(device)
    if free is None or num_envs * plenty < free:
        return
    gc.collect()  # garbage that is freed between the two measurements would make the environments look smaller
    probe, before = max(2 * unit, min(PROBE, num_envs) // unit * unit), taken_bytes(device)
    with enough_memory(num_envs):
        one, many = (_grown(build, n, device, before) for n in (unit, probe))
    each = max(1.0, (many - one) / (probe - unit))
    most = int((USABLE * free - one) / each) + unit
    if num_envs > most:
        fitting = max(0, most - most % math.lcm(unit, 1 if most < 256 else 64))
        need = (one + (num_envs - unit) * each) / 2**30
        raise ConfigError(
            f"num_envs={num_envs} needs about {need:.1f} GiB, and {device.type} has {free / 2**30:.1f} GiB free; "
            f"at most num_envs={fitting} fits"
        )


def _grown(build: Callable[[int], Sequence[Any]], num_envs: int, device: torch.device, before: int) -> int:
    """Bytes taken by `num_envs` environments, beyond `before`."""
    made = build(num_envs)
    with closing(made[0]):
        size = taken_bytes(device) - before + sum(getattr(part, "scratch_bytes", 0) for part in made)
    del made
    gc.collect()  # an Env and its CUDA graphs refer to each other
    return size


@contextmanager
def enough_memory(num_envs: int, what: str = "") -> Iterator[None]:
    """Turns a failed allocation of torch, Warp or NumPy into a one-line error; `what` follows num_envs in it.

    Raises:
        ConfigError: an allocation failed: a RuntimeError of torch or Warp, or a MemoryError of NumPy.
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
    """Memory in use: of a GPU by all processes, of the host by this process."""
    return -(free_bytes(device) or 0) if device.type == "cuda" else process_bytes()


def process_bytes(statm: Path = Path("/proc/self/statm")) -> int:
    """Host memory of this process without mapped files; where the system does not tell, its peak."""
    try:
        _, resident, shared, *_ = statm.read_text().split()
    except OSError:
        return peak_bytes()
    return (int(resident) - int(shared)) * resource.getpagesize()


def peak_bytes() -> int:
    """Peak of this process's host memory."""
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most * (1 if sys.platform == "darwin" else 1024)  # bytes on macOS, KiB on Linux


def free_bytes(device: torch.device) -> int | None:
    """Free memory; None where the system does not tell."""
    if device.type == "cuda":
        # A missing GPU is reported by the backend.
        if (device.index or 0) >= torch.cuda.device_count():
            return None
        # torch's cache is in use for the driver, but free for torch.
        kept = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return int(torch.cuda.mem_get_info(device)[0]) + kept
    machine = [x * 1024 for x in _numbers(Path("/proc/meminfo"), "MemAvailable:")]
    return min([*machine, *_left_to_container()], default=None)


def _left_to_container(groups: Path = Path("/sys/fs/cgroup")) -> list[int]:
    """Memory left to a container by its cgroup (version 2 or 1); empty without a limit."""
    names = ("memory.max", "memory.current"), ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes")
    for limit, used in names:
        try:
            most, now = ((groups / name).read_text().strip() for name in (limit, used))
        except OSError:
            continue
        # Cached pages of files can be freed. In version 1, total_* includes child groups.
        stat = (groups / limit).with_name("memory.stat")
        back = max([0, *_numbers(stat, "inactive_file"), *_numbers(stat, "total_inactive_file")])
        return [] if most == "max" else [int(most) - int(now) + back]
    return []


def _numbers(path: Path, name: str) -> list[int]:
    """The numbers after a name in a system file; empty where it has none."""
    rows = (line.split() for line in path.read_text().splitlines()) if path.exists() else ()
    return [int(row[1]) for row in rows if row and row[0] == name]
