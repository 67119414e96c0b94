"""World: the ranks of a run as one of them sees them.

A rank is a process that simulates a part of the environments and computes its part of every gradient. All ranks have
the same weights and take the same decisions; rank 0 writes the run folder.
"""

from __future__ import annotations

import io
import json
import os
import socket
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore, TCPStore

from robolearn import __version__
from robolearn.config.run_config import FILE_NAME, Config, flat, to_dict, validate
from robolearn.core.shards import ONE, Shards, owned
from robolearn.core.timers import Timers
from robolearn.envs.state import Tensor
from robolearn.errors import ConfigError, OtherRankFailed, exit_code_of, tell, tell_line
from robolearn.training.ranks import Regrouped, under_torchrun
from robolearn.training.ranks.cut import StoreCut
from robolearn.training.ranks.watch import Watch

if TYPE_CHECKING:
    from robolearn.training.ranks.takeover import Member

STARTING_S = 600.0
"""Longest that ranks wait for each other before the first iteration [s]: one may compile kernels for all."""


ROWS = {"random": 0, "noise": 0, "memory": 1, "teacher_memory": 1}
"""Keys of a learner's state with a row for each shard or environment, where ranks share them; with the dimension."""


def in_rows(state: Mapping[str, Any]) -> dict[str, int]:
    """The keys among those of a learner's state that are in rows, see `ROWS`; of several policies also those after
    their names, as in `a.noise`."""
    return {key: ROWS[name] for key in state if (name := key.rpartition(".")[2]) in ROWS}


class World:
    """One rank among `ranks`."""

    def __init__(
        self,
        rank: int = 0,
        ranks: int = 1,
        shards: Shards = ONE,
        watch: Watch | None = None,
        member: Member | None = None,
    ) -> None:
        self.rank, self.ranks, self.shards, self.watch, self.member = rank, ranks, shards, watch, member
        self._told = watch if member is None else member.beats
        """Is told what this rank does, for the others."""
        self.again = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") != "0"
        """Whether the ranks have begun before in this start of the run, and one was lost."""
        self.waited = 0.0
        """Time in exchanges in this iteration [s]."""
        self.host = os.environ.get("ROBOLEARN_HOST", socket.gethostname())

    @property
    def suffix(self) -> str:
        """What the names of files end in that a rank other than 0 writes."""
        return f"_rank{self.rank}" if self.rank else ""

    def begin(self, iteration: int, timers: Timers | None) -> None:
        """This rank begins an iteration; `timers` tell the phase that it is in."""
        self.waited = 0.0
        if self.member is not None:
            self.member.check()
        if isinstance(self.shards.cut, StoreCut):
            self.shards.cut.iteration = iteration
        if self._told is not None:
            self._told.started = self._told.begun
            self._told.begun = True
            self._told.phase = lambda: f"{timers.current if timers else 'it'} of iteration {iteration}"

    @property
    def device(self) -> str:
        """Where tensors must be to be exchanged."""
        return "cuda" if dist.is_initialized() and dist.get_backend() == "nccl" else "cpu"

    @property
    def writes(self) -> bool:
        """Whether this rank writes the run folder and prints."""
        return self.rank == 0

    # ------------------------------------------------------------------ exchange

    def exchange(self, tensor: Tensor) -> list[Tensor]:
        """The tensors of all ranks, equal in shape, in their order.

        Raises:
            OtherRankFailed: a rank has ended, or does not answer.
        """
        out = [torch.empty_like(tensor) for _ in range(self.ranks)]
        began = time.perf_counter()
        with self._waiting():
            if self.member is None:
                dist.all_gather(out, tensor.contiguous())
            else:
                self.member.gather(out, tensor.contiguous())
        self.waited += time.perf_counter() - began
        return out

    def swap(self, rows: Tensor) -> Tensor:
        """The rows (W, K) of all ranks that are for this one, of `rows` (W, K), one for each rank.

        Raises:
            OtherRankFailed, Regrouped: a rank has ended, or does not answer.
        """
        out = torch.empty_like(rows)
        began = time.perf_counter()
        with self._waiting():
            if self.member is None:
                dist.all_to_all_single(out, rows.contiguous())
            else:
                self.member.swap(out, rows.contiguous())
        self.waited += time.perf_counter() - began
        return out

    def share(self, value: Any) -> list[Any]:
        """A plain value (what JSON can hold) of each rank, in their order."""
        return [json.loads(text) for text in self.share_bytes(json.dumps(value).encode())]

    def share_tensors(self, value: Any) -> list[Any]:
        """A tree of tensors and plain values of each rank, in their order."""
        if self.ranks == 1:
            return [value]
        return [unpacked(text) for text in self.share_bytes(packed(value))]

    def from_first(self, value: Any) -> Any:
        """Rank 0's tree of tensors and plain values; that of the others is ignored."""
        if self.ranks == 1:
            return value
        return unpacked(self.share_bytes(packed(value) if self.writes else b"")[0])

    def share_bytes(self, content: bytes) -> list[bytes]:
        """The bytes of each rank, in their order."""
        if self.ranks == 1:
            return [content]
        device = self.device
        sizes = [int(n) for n in self.exchange(torch.tensor([len(content)], device=device))]
        padded = torch.zeros(max(sizes), dtype=torch.uint8)
        padded[: len(content)] = torch.frombuffer(bytearray(content) or bytearray(1), dtype=torch.uint8)[
            : len(content)
        ]
        received = self.exchange(padded.to(device))
        return [bytes(tensor[:n].cpu().numpy().tobytes()) for tensor, n in zip(received, sizes, strict=True)]

    def pass_on(self, content: bytes, to: int, givers: Sequence[int]) -> dict[int, bytes]:
        """Send bytes to a rank, and receive those of each of the `givers`, which have chosen this rank."""
        group: Any = dist.group.WORLD if self.member is None else self.member.group
        with self._waiting():
            data = torch.frombuffer(bytearray(content), dtype=torch.uint8)
            sent = [group.send([torch.tensor([len(content)])], to, 1), group.send([data], to, 2)]
            out = {}
            for giver in givers:
                size = torch.zeros(1, dtype=torch.long)
                group.recv([size], giver, 1).wait()
                received = torch.empty(int(size), dtype=torch.uint8)
                group.recv([received], giver, 2).wait()
                out[giver] = received.numpy().tobytes()
            for work in sent:
                work.wait()
        return out

    def agree(self, stop: bool, seconds: Sequence[float]) -> tuple[bool, list[list[float]]]:
        """Whether any rank is to stop after this iteration, and the `seconds` of each rank."""
        if self.ranks == 1:
            return stop, [list(seconds)]
        mine = torch.tensor([float(stop), *seconds], dtype=torch.float64, device=self.device)
        rows = [row.tolist() for row in self.exchange(mine)]
        return any(row[0] for row in rows), [row[1:] for row in rows]

    def require_same(self, run: Config) -> None:
        """Require the same version, configuration and seed of every rank.

        Raises:
            ConfigError: one differs from rank 0; it is named, with what differs.
        """
        device = run.device.partition(":")[0]  # each rank has its own GPU
        same: dict[str, Any] = {"resume": None, "output": None}
        same |= {"torch_threads": 0, "ranks": self.ranks, "device": device}
        plain = to_dict(replace(run, **same))
        mine = {"version": __version__, "torch": torch.__version__, "host": self.host, "config": plain}
        all_ranks = self.share(mine)
        first = all_ranks[0]
        for rank, theirs in enumerate(all_ranks):
            where = f"rank {rank} of {self.ranks} on {theirs['host']}"
            for name, what in (("version", "RoboLearn"), ("torch", "torch")):
                if theirs[name] != first[name]:
                    raise ConfigError(
                        f"{where} has {what} {theirs[name]}, and rank 0 has {first[name]}; install the same everywhere"
                    )
            if theirs["config"] != first["config"]:
                ours, others = dict(flat(first["config"])), dict(flat(theirs["config"]))
                key = next(k for k in {**ours, **others} if ours.get(k) != others.get(k))
                raise ConfigError(
                    f"{where} has {key}={others.get(key)}, and rank 0 has {ours.get(key)}; start every rank with "
                    "the same command"
                )

    @contextmanager
    def _waiting(self) -> Iterator[None]:
        """Turns the error of a collective operation into the reason for it."""
        if self._told is not None:
            self._told.enter()
        try:
            yield
        except RuntimeError as error:
            if self.watch is None:
                raise Regrouped from error
            raise self.watch.reason() from error
        if self._told is not None:
            self._told.leave()

    # ------------------------------------------------------------------ environments

    def mine(self, num_envs: int) -> int:
        """How many of the run's environments this rank simulates."""
        return num_envs // self.shards.total * self.shards.count

    def my_rows(self, tree: Any, dim: int = 0) -> Any:
        """The rows of this rank's shards, of a tree of tensors that hold the rows of all."""
        total, mine = self.shards.total, self.shards.mine

        def rows(tensor: Tensor) -> Tensor:
            size = tensor.shape[dim] // total
            return tensor.narrow(dim, size * mine.start, size * len(mine)).clone()

        return _mapped(rows, tree)

    # ------------------------------------------------------------------ errors

    @contextmanager
    def failing_together(self) -> Iterator[None]:
        """Announces an error of this rank to the others, so that all end, and only the first one says why."""
        if self.watch is None:
            yield
            return
        try:
            yield
        except (OtherRankFailed, KeyboardInterrupt):
            raise
        except Exception as error:
            # The others end once the error is said: whatever stops all ranks then cannot come before it.
            if self.watch.first_to_fail():
                if self.rank:
                    tell_line(f"rank {self.rank} of {self.ranks} on {self.host}:")
                self.watch.announce(tell(error))
            else:
                self.watch.reason()
            raise OtherRankFailed(exit_code_of(error)) from error


ALONE = World()
"""The world of a run without ranks."""


def packed(value: Any) -> bytes:
    """A tree of tensors and plain values as bytes."""
    buffer = io.BytesIO()
    torch.save(value, buffer)
    return buffer.getvalue()


def unpacked(content: bytes) -> Any:
    """What `packed` packed; it cannot run code."""
    return torch.load(io.BytesIO(content), weights_only=True, map_location="cpu")


def joined_rows(parts: Sequence[Any], dim: int = 0) -> Any:
    """One tree of those of all ranks, each tensor with the rows of all."""
    first = parts[0]
    if isinstance(first, Tensor):
        return torch.cat([part.cpu() for part in parts], dim)
    if isinstance(first, dict):
        return {key: joined_rows([part[key] for part in parts], dim) for key in first}
    if isinstance(first, (list, tuple)):
        return type(first)(joined_rows(each, dim) for each in zip(*parts, strict=True))
    return first


def _mapped(function: Any, tree: Any) -> Any:
    if isinstance(tree, Tensor):
        return function(tree)
    if isinstance(tree, dict):
        return {key: _mapped(function, value) for key, value in tree.items()}
    if isinstance(tree, (list, tuple)):
        return type(tree)(_mapped(function, value) for value in tree)
    return tree


def with_ranks(run: Config) -> Config:
    """The configuration with the number of ranks that torchrun has started, and with this rank's GPU.

    Raises:
        ConfigError: it has started another number than `ranks`.
    """
    if not under_torchrun():
        if run.ranks > 1:
            raise ConfigError(f"ranks={run.ranks}: start them with robolearn train, or with torchrun")
        if run.rollout_share < 1:
            raise ConfigError(
                f"rollout_share={run.rollout_share:g} is for several ranks, of which some are slow; set ranks=2 or "
                "more, or leave it out"
            )
        return run
    ranks = int(os.environ["WORLD_SIZE"])
    if run.ranks not in (0, ranks):
        raise ConfigError(
            f"ranks={run.ranks}, but torchrun has started {ranks}; leave ranks out, or start that many"
        )
    if run.device == "cuda" or (run.device == "auto" and torch.cuda.is_available()):
        run = replace(run, device=f"cuda:{os.environ.get('LOCAL_RANK', '0')}")
    run = replace(run, ranks=ranks)
    validate(run)
    return run


def goes_on(run: Config) -> bool:
    """Whether torchrun, or a scheduler, has started the command of a run again whose folder is there."""
    by_hand = under_torchrun() and "ROBOLEARN_RUN_FOLDER" not in os.environ
    return (
        by_hand and run.resume is None and run.output is not None and (Path(run.output) / FILE_NAME).exists()
    )


@contextmanager
def joined(run: Config) -> Iterator[World]:
    """The world of this process in a run: alone, or one of the ranks that torchrun has started.

    Raises:
        OtherRankFailed: another rank has ended.
    """
    if run.ranks < 2:
        yield World(shards=Shards(run.shards)) if run.ranks else World()
        return
    rank, ranks, cuda = int(os.environ["RANK"]), run.ranks, run.device.startswith("cuda")
    store = TCPStore(
        os.environ["MASTER_ADDR"],
        int(os.environ["MASTER_PORT"]),
        is_master=rank == 0 and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True",
        timeout=timedelta(seconds=STARTING_S),
    )
    incarnation = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    watch = Watch(store, rank, ranks, run.rank_timeout, incarnation)
    dist.init_process_group(
        "nccl" if cuda else "gloo",
        store=PrefixStore(f"group/{incarnation}", store),
        rank=rank,
        world_size=ranks,
        timeout=timedelta(seconds=STARTING_S),
    )
    world = World(rank, ranks, watch=watch)
    owners = owned(run.shards, ranks)
    cut = None
    if run.rollout_share < 1:
        cut = StoreCut(PrefixStore(f"cut/{incarnation}", store), ranks, run.rollout_share)
    world.shards = Shards(run.shards, owners[rank], owners, world.exchange, world.swap, cut)
    try:
        with world.failing_together():
            yield world
    finally:
        watch.close()
        # Not destroy_process_group: it would wait for ranks that are gone.
