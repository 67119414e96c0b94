"""Copies of the state of a run in memory, made after every iteration: what the ranks go on from when one was lost.

A rank writes its copy to a file in the memory of its machine, where it outlives the process. Where ranks run on several
machines, each also sends its environments to a rank of another machine, which keeps them there, so that no machine is
the only one to have them. The copies of two iterations are kept: ranks are never further apart than that.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any

from robolearn.training.ranks.world import World, packed, unpacked

RUN = "ROBOLEARN_RANKS"
"""Environment variable with the identity of a start of all ranks, which our launcher sets; torchrun sets its own."""


def memory_folder(identity: str) -> Path:
    """The folder of the copies of a run on this machine."""
    memory = Path("/dev/shm")
    parent = memory if memory.is_dir() and os.access(memory, os.W_OK) else Path(tempfile.gettempdir())
    name = hashlib.sha256(identity.encode()).hexdigest()[:16]
    host = os.environ.get("ROBOLEARN_HOST", "")
    return parent / f"robolearn-{os.getuid()}" / f"{name}{host}"


class Copies:
    """The copies of this run that are on this rank's machine; nothing where there is one rank."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.folder: Path | None = None
        identity = os.environ.get(RUN) or os.environ.get("TORCHELASTIC_RUN_ID")
        if world.ranks == 1 or not identity:
            return
        self.folder = memory_folder(identity)
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        hosts = world.share(world.host)
        self._partner, self._given = _partners(hosts, world.rank)

    def keep(self, content: dict[str, Any]) -> None:
        """Keep the content of this rank's checkpoint; its "iter" is the iteration."""
        rank, iteration = self.world.rank, int(content["iter"])
        own = packed(content)
        self._write(rank, iteration, own)
        if self._partner is not None:
            for giver, theirs in self.world.pass_on(own, self._partner, self._given).items():
                self._write(giver, iteration, theirs)

    def newest(self, saved: dict[str, Any] | None) -> dict[str, Any] | None:
        """This rank's content of the newest iteration that is there of every rank; None where there is none, or the
        checkpoint `saved` is newer."""
        if self.folder is None:
            return None
        world = self.world
        here = [(rank, n) for rank in range(world.ranks) for n in self._iterations(rank)]
        there = [[tuple(pair) for pair in pairs] for pairs in world.share(here)]
        known = {pair for pairs in there for pair in pairs}
        common = [n for _, n in known if all((rank, n) in known for rank in range(world.ranks))]
        if not common or (saved is not None and saved["iter"] > max(common)):
            return None
        iteration, mine = max(common), None
        for rank in range(world.ranks):
            holder = next(r for r, pairs in enumerate(there) if (rank, iteration) in pairs)
            if (rank, iteration) in there[rank]:
                if rank == world.rank:
                    mine = self._read(rank, iteration)
            else:
                given = world.share_bytes(
                    self._path(rank, iteration).read_bytes() if holder == world.rank else b""
                )
                if rank == world.rank:
                    mine = given[holder]
        assert mine is not None
        content: dict[str, Any] = unpacked(mine)
        return content

    def clear(self) -> None:
        """Remove them: the run has ended, or its checkpoint is on disk."""
        if self.folder is not None:
            shutil.rmtree(self.folder, ignore_errors=True)

    def _path(self, rank: int, iteration: int) -> Path:
        assert self.folder is not None
        return self.folder / f"rank{rank}_{iteration}.pt"

    def _read(self, rank: int, iteration: int) -> bytes:
        return self._path(rank, iteration).read_bytes()

    def _write(self, rank: int, iteration: int, content: bytes) -> None:
        path = self._path(rank, iteration)
        # No fsync: the file is in memory. The rename makes it whole or absent.
        part = path.with_suffix(f".{os.getpid()}.part")
        part.write_bytes(content)
        os.replace(part, path)
        for old in self._iterations(rank):
            if old < iteration - 1:
                with suppress(FileNotFoundError):
                    self._path(rank, old).unlink()

    def _iterations(self, rank: int) -> list[int]:
        """The iterations of which copies of a rank are here."""
        assert self.folder is not None
        return [int(path.stem.rpartition("_")[2]) for path in self.folder.glob(f"rank{rank}_*.pt")]


def _partners(hosts: list[str], rank: int) -> tuple[int | None, list[int]]:
    """The rank on another machine that keeps this rank's copy, None on a single machine; and those whose copies this
    rank keeps: each rank's is kept by the next one, in a circle, that is on another machine."""

    def keeper(of: int) -> int | None:
        others = [(of + i) % len(hosts) for i in range(1, len(hosts))]
        # Spread over the ranks of that machine: the i-th rank of a machine gives to the i-th of the next one.
        elsewhere = [r for r in others if hosts[r] != hosts[of]]
        if not elsewhere:
            return None
        machine = [r for r in elsewhere if hosts[r] == hosts[elsewhere[0]]]
        place = [r for r in range(len(hosts)) if hosts[r] == hosts[of]].index(of)
        return sorted(machine)[place % len(machine)]

    return keeper(rank), [r for r in range(len(hosts)) if keeper(r) == rank]
