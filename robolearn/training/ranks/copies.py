"""Copies of the state of a run in memory, made after every iteration: what the ranks go on from when one was lost.

A rank writes its copy to a file in the memory of its machine, where it outlives the process. Where ranks run on several
machines, each also sends its environments to a rank of another machine, which keeps them there, so that no machine is
the only one to have them. The copies of two iterations are kept: ranks are never further apart than that.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from robolearn.training.ranks.world import World, in_rows, joined_rows, packed, unpacked

RUN = "ROBOLEARN_RANKS"
"""Environment variable with the identity of a start of all ranks, which our launcher sets; torchrun sets its own."""


def memory_folder(identity: str) -> Path:
    """The folder of the copies of a run on this machine."""
    memory = Path("/dev/shm")
    parent = memory if memory.is_dir() and os.access(memory, os.W_OK) else Path(tempfile.gettempdir())
    name = hashlib.sha256(identity.encode()).hexdigest()[:16]
    host = os.environ.get("ROBOLEARN_HOST", "")
    return parent / f"robolearn-{os.getuid()}" / f"{name}{host}"


def _identity() -> str | None:
    """What tells the starts of runs on this machine apart; None where nothing would start a lost rank again."""
    if own := os.environ.get(RUN):
        return own
    if not (named := os.environ.get("TORCHELASTIC_RUN_ID")):
        return None
    # Without --rdzv-id every run of torchrun has the id "none". Its agent, the parent of ranks, outlives them.
    agent = os.getppid()
    began = ""
    with suppress(OSError):  # process ids are used again
        began = Path(f"/proc/{agent}/stat").read_text().rpartition(")")[2].split()[19]
    return f"{named} {agent} {began}"


class Copies:
    """The copies of this run that are on this rank's machine; nothing where a run has one rank."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.folder: Path | None = None
        identity = _identity()
        if not identity or (world.ranks == 1 and world.member is None):
            return
        self.folder = memory_folder(identity)
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        hosts = world.share(world.host)
        self._partner, self._given = _partners(hosts, world.rank)

    def keep(self, content: dict[str, Any]) -> None:
        """Keep the content of this rank's checkpoint; its "iter" is the iteration."""
        own, iteration, shards = packed(content), int(content["iter"]), self.world.shards
        self._write(shards.mine, iteration, own)
        if self._partner is not None:
            for giver, theirs in self.world.pass_on(own, self._partner, self._given).items():
                self._write(shards.owners[giver], iteration, theirs)

    def newest(self, saved: dict[str, Any] | None) -> dict[str, Any] | None:
        """The content of a checkpoint of the newest iteration of which all shards are there, with the environments of
        all ranks; `saved` where none is as new as it. The ranks need not be those that made the copies."""
        if self.folder is None:
            return saved
        world = self.world
        there = [{Kept(*kept) for kept in found} for found in world.share(self._found())]
        known = set().union(*there)
        for iteration in sorted({kept.iteration for kept in known}, reverse=True):
            if saved is not None and saved["iter"] > iteration:
                break
            chosen = _covering([kept for kept in known if kept.iteration == iteration], world.shards.total)
            if chosen:
                return _joined([unpacked(self._fetch(kept, there)) for kept in chosen])
        return saved

    def clear(self) -> None:
        """Remove them, once every rank is here: the checkpoint on disk is as new."""
        if self.folder is not None:
            self.world.share("saved")
            for file in self.folder.glob("shards_*"):
                file.unlink(missing_ok=True)
            with suppress(OSError):  # the launcher's files, or another rank's, are in it
                self.folder.rmdir()

    def _fetch(self, kept: Kept, there: list[set[Kept]]) -> bytes:
        """The bytes of a copy, from this machine, or from a rank that has it where any rank does not."""
        if all(kept in found for found in there):
            return self._path(kept).read_bytes()
        holder = next(rank for rank, found in enumerate(there) if kept in found)
        return self.world.share_bytes(self._path(kept).read_bytes() if holder == self.world.rank else b"")[
            holder
        ]

    def _path(self, kept: Kept) -> Path:
        assert self.folder is not None
        return self.folder / kept.name

    def _write(self, shards: range, iteration: int, content: bytes) -> None:
        path = self._path(Kept(shards.start, shards.stop, iteration))
        # No fsync: the file is in memory. The rename makes it whole or absent.
        part = path.with_suffix(f".{os.getpid()}.part")
        part.write_bytes(content)
        os.replace(part, path)
        for old in self._found():
            if old.iteration < iteration - 1:
                self._path(old).unlink(missing_ok=True)

    def _found(self) -> list[Kept]:
        """The copies that are on this machine."""
        assert self.folder is not None
        return _kept_in(self.folder)


def newest_whole(identity: str, shards: int) -> dict[str, Any] | None:
    """The content of a checkpoint of the newest iteration of which all `shards` are in this machine's memory; None
    without one. For the launcher, once the ranks have ended."""
    folder = memory_folder(identity)
    found = _kept_in(folder)
    for iteration in sorted({kept.iteration for kept in found}, reverse=True):
        if chosen := _covering([kept for kept in found if kept.iteration == iteration], shards):
            return _joined([unpacked((folder / kept.name).read_bytes()) for kept in chosen])
    return None


def _kept_in(folder: Path) -> list[Kept]:
    return [Kept(*map(int, path.stem.split("_")[1:])) for path in folder.glob("shards_*.pt")]


class Kept(NamedTuple):
    """Names a copy: of the shards from `start` to `stop`, after an iteration."""

    start: int
    stop: int
    iteration: int

    @property
    def name(self) -> str:
        """The name of its file."""
        return f"shards_{self.start}_{self.stop}_{self.iteration}.pt"


def _covering(copies: list[Kept], total: int) -> list[Kept]:
    """Copies that have each of `total` shards once, in their order; none where a shard is in none."""
    chosen: list[Kept] = []
    position = 0
    while position < total:
        fitting = [kept for kept in copies if kept.start == position]
        if not fitting:
            return []
        chosen.append(max(fitting))
        position = chosen[-1].stop
    return chosen if position == total else []


def _joined(parts: list[dict[str, Any]]) -> dict[str, Any]:
    """One content of those of some ranks, in the order of their shards."""
    first = parts[0]
    rows = in_rows(first) | {name: 0 for name in ("env",) if name in first}
    return {**first, **{name: joined_rows([part[name] for part in parts], dim) for name, dim in rows.items()}}


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
