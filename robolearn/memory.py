"""Memory: how many environments fit, asked before a run begins and not by its crash."""

from __future__ import annotations

import types
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import torch

from robolearn.errors import ConfigError

PLENTY = 2**21
"""Bytes that no environment of ours needs (a humanoid takes 0.1 MB): where there is this much, nothing is measured."""
PROBES = (512, 1024)
"""Environments of the two measurements, whose difference is what one environment takes."""
USABLE = 0.8
"""Share of the free memory that may be planned with: simulators and allocators take more than the arrays that they
show (a quarter more was measured with mjbatch)."""


def require_room(num_envs: int, device: torch.device, build: Callable[[int], Any]) -> None:
    """Refuse a number of environments that does not fit in memory.

    Args:
        num_envs: what was asked for.
        device: where they are to be.
        build: makes what will be held (an Env, or an Env with its learner) for a small number of environments,
            with a `close`.

    Raises:
        ConfigError: it does not fit; the message has the largest number that would.
    """
    free = free_bytes(device)
    if free is None or num_envs * PLENTY < free:
        return
    few, more = (_measured(build, n) for n in PROBES)
    each = max(1.0, (more - few) / (PROBES[1] - PROBES[0]))
    fixed = max(0.0, few - each * PROBES[0])
    most = int((USABLE * free - fixed) / each)
    if num_envs <= most:
        return
    step = 1 if most < 256 else 64
    fitting = max(0, most - most % step)
    raise ConfigError(
        f"num_envs={num_envs} needs about {(fixed + num_envs * each) / 2**30:.1f} GiB, and {device.type} has "
        f"{free / 2**30:.1f} GiB free; at most num_envs={fitting} fits"
    )


def free_bytes(device: torch.device) -> int | None:
    """Memory that can still be had; None where the system does not tell."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
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


def _measured(build: Callable[[int], Any], num_envs: int) -> int:
    with closing(build(num_envs)) as made:
        return held_bytes(made)


def _meminfo() -> int | None:
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return None
    return next((1024 * int(line.split()[1]) for line in lines if line.startswith("MemAvailable:")), None)


def _group_limit() -> int | None:
    """What a container may still take (control groups, version 2)."""
    folder = Path("/sys/fs/cgroup")
    try:
        limit, used = ((folder / name).read_text().strip() for name in ("memory.max", "memory.current"))
        statistics = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
    except (OSError, ValueError):
        return None
    # Pages of files can be given back.
    return None if limit == "max" else int(limit) - int(used) + int(statistics.get("inactive_file", 0))
