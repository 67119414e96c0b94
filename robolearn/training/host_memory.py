"""Memory: how many environments fit, asked before a run begins and not by its crash."""

from __future__ import annotations

import gc
import types
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch

from robolearn.errors import ConfigError, MissingError, RunFailed

PLENTY = 2**21
"""Bytes that no environment of ours needs (a humanoid takes 0.1 MB): where there is this much, nothing is measured."""
PROBE = 1024
"""Environments of the larger of two measurements, the other one is of half as many; their difference is what an
environment takes. Where fewer are asked for, no more are built."""
USABLE = 0.8
"""Share of the free memory that may be planned with: simulators and allocators take more than the arrays that they
show (a quarter more was measured with mjbatch)."""

TOO_LARGE = "needs more memory than there is"


def require_room(
    num_envs: int, device: torch.device, build: Callable[[int], Any], plenty: int = PLENTY
) -> None:
    """Refuse a number of environments that does not fit in memory.

    Args:
        num_envs: what was asked for.
        device: where they are to be.
        build: makes what will be held (an Env, or an Env with its learner) for a small number of environments,
            with a `close`. It must not ask for room itself: it would measure again, and tell of the small number.
        plenty: bytes that no environment needs: where there is this much for each, nothing is measured.

    Raises:
        ConfigError: it does not fit; the message has the largest number that would.
    """
    free = free_bytes(device)
    if free is None or num_envs * plenty < free:
        return
    large = min(PROBE, max(2, num_envs))
    small = large // 2
    with enough_memory(num_envs):
        few, more = (_measured(build, n, device) for n in (small, large))
    each = max(1.0, (more - few) / (large - small))
    fixed = max(0.0, few - each * small)
    most = int((USABLE * free - fixed) / each)
    if num_envs <= most:
        return
    step = 1 if most < 256 else 64
    fitting = max(0, most - most % step)
    raise ConfigError(
        f"num_envs={num_envs} needs about {(fixed + num_envs * each) / 2**30:.1f} GiB, and {device.type} has "
        f"{free / 2**30:.1f} GiB free; at most num_envs={fitting} fits"
    )


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


def free_bytes(device: torch.device) -> int | None:
    """Memory that can still be had; None where the system does not tell."""
    if device.type == "cuda":
        # Where no such GPU is, the backend says so, and better.
        if (device.index or 0) >= torch.cuda.device_count():
            return None
        # What torch keeps for its next allocation is taken, for the driver, but free for us.
        kept = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return int(torch.cuda.mem_get_info(device)[0]) + kept
    found = [_meminfo(), _group_limit()]
    return min((x for x in found if x is not None), default=None)


def held_bytes(*things: Any) -> int:
    """Bytes of all tensors and arrays that can be reached from `things`, each once.

    torch tensors, numpy arrays and Warp arrays, in attributes, dictionaries and sequences; a backend whose
    simulator holds more than that says so in its `scratch_bytes`.
    """
    sizes: dict[int, int] = {}
    scratch = 0
    seen: set[int] = set()
    waiting: list[Any] = list(things)
    while waiting:
        thing = waiting.pop()
        if id(thing) in seen or isinstance(thing, str | bytes | int | float | type | types.ModuleType):
            continue
        seen.add(id(thing))
        if isinstance(thing, torch.Tensor):
            storage = thing.untyped_storage()
            sizes[storage.data_ptr()] = storage.nbytes()
            waiting.append(thing.grad if thing.is_leaf else None)
        elif isinstance(thing, np.ndarray):
            root = thing
            while isinstance(root.base, np.ndarray):
                root = root.base
            sizes.setdefault(root.__array_interface__["data"][0], root.nbytes)
        elif hasattr(thing, "ptr") and hasattr(thing, "capacity"):
            if thing.ptr:
                sizes[thing.ptr] = max(thing.capacity, sizes.get(thing.ptr, 0))
        elif isinstance(thing, dict):
            waiting += thing.values()
        elif isinstance(thing, list | tuple | set):
            waiting += thing
        elif hasattr(thing, "__dict__"):
            scratch += int(getattr(thing, "scratch_bytes", 0))
            waiting += vars(thing).values()
    return sum(sizes.values()) + scratch


def _measured(build: Callable[[int], Any], num_envs: int, device: torch.device) -> int:
    with closing(build(num_envs)) as made:
        size = held_bytes(made)
    del made
    gc.collect()  # an Env and its recorded parts know each other
    if device.type == "cuda":
        torch.cuda.empty_cache()
    return size


def _meminfo() -> int | None:
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return None
    return next((1024 * int(line.split()[1]) for line in lines if line.startswith("MemAvailable:")), None)


GROUPS = (
    ("memory.max", "memory.current", "inactive_file"),
    ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes", "total_inactive_file"),
)
"""Where control groups of version 2 and of version 1 tell limit and use, and what they call pages of files."""


def _group_limit(folder: Path = Path("/sys/fs/cgroup")) -> int | None:
    """What a container may still take."""
    for limit_file, used_file, inactive in GROUPS:
        try:
            limit, used = ((folder / name).read_text().strip() for name in (limit_file, used_file))
            lines = (folder / limit_file).with_name("memory.stat").read_text().splitlines()
            if limit == "max":
                return None
            # Pages of files can be given back. Version 1 says "no limit" with a number beyond any machine's memory.
            return int(limit) - int(used) + int(dict(line.split() for line in lines).get(inactive, 0))
        except (OSError, ValueError):
            continue
    return None
