"""Takeover: ranks that leave and join while a run goes on, with torchft (`recovery=takeover`).

Each rank is a replica group of torchft. Before every iteration all agree on who takes part, which costs a few
milliseconds. Where that has changed, or an exchange has failed because a rank was lost in it, those that take part
divide the shards among themselves, load the newest copies and go on: no process starts anew. Results do not depend on
which rank has which shards, so the bits are those of an undisturbed run.
"""

from __future__ import annotations

import concurrent.futures.thread
import logging
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import torch
from torch._C._distributed_c10d import AllgatherOptions, AllToAllOptions, PrefixStore, TCPStore

from robolearn.config.run_config import Config
from robolearn.core.shards import Shards, owned
from robolearn.envs.state import Tensor
from robolearn.errors import ConfigError, MissingError, tell_line
from robolearn.training.ranks import Regrouped
from robolearn.training.ranks.beats import Beats, living
from robolearn.training.ranks.copies import RUN, memory_folder
from robolearn.training.ranks.cut import StoreCut
from robolearn.training.ranks.world import STARTING_S, World

LIGHTHOUSE = "ROBOLEARN_LIGHTHOUSE"
"""Environment variable with the address of torchft's lighthouse, which knows the ranks."""
RETRY_S = 60.0
"""Longest that a rank looks for the lighthouse [s]: it may be started again."""


def require_torchft() -> None:
    """Raise MissingError where torchft is not installed."""
    try:
        import torchft  # noqa: F401
    except ImportError as error:
        raise MissingError(
            "recovery=takeover needs torchft: pip install 'robolearn[cluster]', or use recovery=restart"
        ) from error


class Member:
    """This rank as a replica group of torchft."""

    def __init__(self, run: Config, rank: int) -> None:
        require_torchft()
        if missing := [name for name in (LIGHTHOUSE, RUN) if name not in os.environ]:
            raise ConfigError(
                f"recovery=takeover: {missing[0]} is not set; start the ranks with robolearn train, or use "
                "recovery=restart under torchrun"
            )
        from torchft import Manager, ProcessGroupGloo

        for name in ("torchft", "torchft_errors", "torchft_quorums", "torchft_commits"):
            logging.getLogger(name).setLevel(logging.CRITICAL)
        member = self

        class Group(ProcessGroupGloo):
            """A process group that notes that it was made anew."""

            def configure(self, store_addr: str, *args: Any, **kwargs: Any) -> None:
                member.changed, member.store_address = True, store_addr
                super().configure(store_addr, *args, **kwargs)

        self.run, self.rank, self.again = run, rank, False
        self._folder = memory_folder(os.environ[RUN])
        self.beats = Beats(self._folder, rank)
        self.changed = True
        """Whether the process group is another one than that of the last `world`."""
        self.store_address = ""
        """Address of the store that the ranks of this group share."""
        self._agreed = self._met = False
        limit = timedelta(seconds=run.rank_timeout)
        self.group = Group(timeout=limit)
        host = os.environ.get("ROBOLEARN_ADDRESS", "localhost")
        self._store = TCPStore(host, 0, is_master=True, wait_for_workers=False)
        self._manager = Manager(
            pg=self.group,
            load_state_dict=None,
            state_dict=None,
            min_replica_size=1,
            use_async_quorum=False,
            timeout=limit,
            quorum_timeout=timedelta(seconds=600),  # others may be in a long iteration
            rank=0,
            world_size=1,
            hostname=host,
            store_addr=host,
            store_port=self._store.port,
            lighthouse_addr=os.environ[LIGHTHOUSE],
            replica_id=f"rank{rank:05d}",
            init_sync=False,
            quorum_retries=1200,  # torchft waits for timeout / retries between two of them: half a second
        )

    def world(self) -> World:
        """The ranks that take part from now on."""
        until = time.monotonic() + self.run.rank_timeout
        if not self._agreed:  # by `check`, as the others have
            self._agree()
        # A lighthouse that was started again does not know all ranks at once. Two groups must not train side by side.
        while self._leaves_out() and time.monotonic() < until:
            self._ask_for_another()
            time.sleep(0.2)
            self._agree()
        self.beats.started = self.beats.begun = False
        self.beats.phase = lambda: "the start"
        self.changed = self._agreed = False
        rank, ranks = self._manager.participating_rank(), self._manager.num_participants()
        world = World(int(rank or 0), ranks, member=self)
        total = self.run.shards
        owners = owned(total, ranks)
        between: tuple[Any, ...] = (world.exchange, world.swap, self._cut(ranks)) if ranks > 1 else ()
        world.shards = Shards(total, owners[world.rank], owners, *between)
        world.again, self.again = self.again, True
        # Where another rank could not make the group, it asks for another one, and this exchange ends soon.
        self._met = False
        members = world.share(self.rank)
        self._met = True
        missing = [r for r in range(self.run.ranks) if r not in members]
        if world.writes and world.again:
            shown = f"without rank {', '.join(map(str, missing))}" if missing else f"with all {ranks} ranks"
            tell_line(f"the run goes on {shown}")
        return world

    def _leaves_out(self) -> bool:
        """Whether a rank lives that is not in the group."""
        return self._manager.num_participants() < living(self._folder, self.run.ranks)

    def _cut(self, ranks: int) -> StoreCut | None:
        """What ends the rollouts of this group of ranks early; None where they are complete."""
        from torchft.process_group import create_store_client

        if self.run.rollout_share == 1:
            return None
        store = create_store_client(self.store_address, timedelta(seconds=self.run.rank_timeout))
        return StoreCut(PrefixStore("cut", store), ranks, self.run.rollout_share)

    def check(self) -> None:
        """Agree on who takes part in the next iteration.

        Raises:
            Regrouped: a rank has come or gone.
        """
        self._agree()
        if self.changed:
            self._agreed = True
            raise Regrouped

    def gather(self, out: list[Tensor], tensor: Tensor) -> None:
        """Fill `out` with the tensors of all ranks.

        Raises:
            RuntimeError: a rank is lost, or has not answered within `rank_timeout`.
        """
        options = AllgatherOptions()
        options.timeout = self._longest()
        with self._failing():
            self.group.allgather([out], [tensor], options).wait()

    def swap(self, out: Tensor, rows: Tensor) -> None:
        """Fill `out` (W, K) with the rows of all ranks that are for this one.

        Raises:
            RuntimeError: a rank is lost, or has not answered within `rank_timeout`.
        """
        options = AllToAllOptions()
        options.timeout = self._longest()
        with self._failing():
            self.group.alltoall_base(out, rows, [], [], options).wait()

    @contextmanager
    def _failing(self) -> Iterator[None]:
        """Asks for another process group where an exchange of this one fails."""
        try:
            if self._broken:
                raise RuntimeError("there is no process group")
            yield
        except RuntimeError:
            self._ask_for_another()
            raise

    @property
    def _broken(self) -> bool:
        """Whether the process group could not be made: one of those that were to be in it was lost meanwhile."""
        group: Any = self.group
        return group._pg is None

    def _ask_for_another(self) -> None:
        """Let the lighthouse number the next group anew: torchft makes one only where the number has changed, and a
        lighthouse that was started again counts from 0."""
        manager: Any = self._manager
        manager._commit_failures = 1
        if self._broken:
            manager._quorum_id = -1
        self.changed = True

    def _longest(self) -> timedelta:
        """How long an exchange may take. In the first one of a group nobody has anything to do before; after it, until
        the first iteration is done, others may build and compile."""
        soon = self.beats.started or not self._met
        return timedelta(seconds=self.run.rank_timeout if soon else STARTING_S)

    def close(self) -> None:
        """Leave."""
        self.beats.close()
        self._manager.shutdown(wait=False)
        # A thread of torchft may wait for others, and Python would wait for it at its end.
        waiting: Any = concurrent.futures.thread._threads_queues
        waiting.clear()

    def _agree(self) -> None:
        self.beats.enter()
        until = time.monotonic() + RETRY_S
        while True:
            try:
                self._manager.start_quorum(allow_heal=False)
                self._manager.wait_quorum()
                if self._manager.errored() is None and not self._broken:
                    manager: Any = self._manager
                    manager._commit_failures = 0
                    self.beats.leave()
                    return
            except (RuntimeError, TimeoutError, torch.distributed.DistError):
                if time.monotonic() > until:
                    raise
            self._ask_for_another()
            time.sleep(0.2)
