"""Starts the ranks of a run on this machine, with torch's elastic agent, and starts them again where one is lost.

The agent is that of torchrun. Around it stands what torchrun leaves to its user: the run folder is chosen and locked
once for all starts; two environment variables without which restarts fail; a rank's error ends the run with its exit
code and is not tried again; a stop signal leaves ranks the time for a checkpoint; ranks that make progress may be lost
any number of times.
"""

from __future__ import annotations

import logging
import os
import shutil
import signal
import sys
import tempfile
import uuid
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from robolearn.config.run_config import Config
from robolearn.errors import OtherRankFailed, RunFailed
from robolearn.files import locked

if TYPE_CHECKING:
    from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent

FOLDER = "ROBOLEARN_RUN_FOLDER"
"""Environment variable with the run folder that the launcher has chosen and locked."""
RESTARTS = 3
"""How many times ranks are started again without any iteration between."""
FINAL = (1, 2, 3, 4, 70, 130)
"""Exit codes of a rank that another start would not change."""
GRACE_S = 5
"""Time that ranks have to end after one of them was lost, before they are killed [s]."""
STOPPING_S = 3600
"""Time that ranks have to finish an iteration and save a checkpoint after a stop signal [s]."""


def launched_folder() -> Path | None:
    """The run folder that a launcher has chosen for this process; None where none started it."""
    folder = os.environ.get(FOLDER)
    return Path(folder) if folder else None


def started_by_launcher() -> bool:
    """Whether `launch` has started this process."""
    return FOLDER in os.environ


def launch(run: Config, words: Sequence[str]) -> int:
    """Train with `run.ranks` processes on this machine; `words` are the overrides of the command.

    Returns:
        The exit code of the run.

    Raises:
        ConfigError: the run folder cannot be written, or another process trains in it.
        RunFailed: ranks were lost again and again without an iteration between.
        KeyboardInterrupt: after Ctrl-C or SIGTERM, once a checkpoint is written.
    """
    from robolearn.training import checkpoint
    from robolearn.training.ranks.copies import RUN, memory_folder

    with ExitStack() as held:
        if run.resume is not None and run.output is None:
            folder = checkpoint.find_run(run.resume)[0]
        else:
            folder = checkpoint.new_run_folder(run.task_name, run.output)
        held.enter_context(locked(folder))
        identity = uuid.uuid4().hex
        held.callback(shutil.rmtree, memory_folder(identity), ignore_errors=True)
        _remove_left_over(memory_folder(identity).parent)
        os.environ |= {
            FOLDER: str(folder.absolute()),
            RUN: identity,
            # Without it torch keeps one store over restarts, and the new group reads addresses of dead processes.
            "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
            # torchrun sets 1 itself, but only for more than one rank: bits depend on it.
            "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1"),
        }
        return _run(run, words, folder)


def _run(run: Config, words: Sequence[str], folder: Path) -> int:
    from torch.distributed.elastic.multiprocessing import SignalException

    for name in ("torch.distributed.elastic", "torch.distributed.launcher", "torch.distributed.run"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    logs = tempfile.mkdtemp(prefix="robolearn-")
    try:
        agent = _agent(run, words, logs)
        result = agent.run()
    except SignalException:
        raise KeyboardInterrupt from None
    finally:
        shutil.rmtree(logs, ignore_errors=True)
    if not result.is_failed():
        return 0
    codes = sorted({failure.exitcode for failure in result.failures.values()})
    final = next((code for code in codes if code in FINAL), None)
    if final is not None:
        raise OtherRankFailed(final)  # the rank has said why
    raise RunFailed(
        f"the ranks were lost {RESTARTS + 1} times without an iteration between; the last checkpoint is kept: "
        f"robolearn train resume={folder} ranks={run.ranks}"
    )


def _agent(run: Config, words: Sequence[str], logs: str) -> LocalElasticAgent:
    import torch.distributed.elastic.rendezvous.registry as registry
    from torch.distributed.elastic.agent.server.api import RunResult, WorkerGroup, WorkerSpec, WorkerState
    from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent
    from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, SignalException
    from torch.distributed.elastic.rendezvous import RendezvousParameters

    class Agent(LocalElasticAgent):
        """torch's agent, with what `launch` adds."""

        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            self.reached = 0
            self.lost_at = -1

        def _monitor_workers(self, worker_group: WorkerGroup) -> RunResult:
            result: RunResult = super()._monitor_workers(worker_group)
            if result.state not in (WorkerState.FAILED, WorkerState.UNHEALTHY):
                return result
            failures = result.failures.values()
            if any(failure.exitcode in FINAL for failure in failures):
                self._remaining_restarts = 0
                return result
            if (reached := _newest_copy()) > self.lost_at:
                self._remaining_restarts, self.lost_at = RESTARTS, reached
            if self._remaining_restarts:
                _tell(result.failures, run.ranks, reached)
            return result

        def _running(self) -> bool:
            handlers = getattr(self._pcontext, "subprocess_handlers", {})
            return any(handler.proc.poll() is None for handler in handlers.values())

        def _shutdown(self, death_sig: Any = signal.SIGTERM, timeout: int = GRACE_S) -> None:
            stopping = timeout == STOPPING_S and self._running()
            if stopping:
                print(
                    "stopping after this iteration, with a checkpoint; press Ctrl-C again to stop now",
                    file=sys.stderr,
                    flush=True,
                )
            try:
                # Survivors of a lost rank have nothing to save.
                super()._shutdown(death_sig if stopping else signal.SIGKILL, timeout)
            except SignalException:
                super()._shutdown(signal.SIGKILL, GRACE_S)
                raise

    rendezvous = RendezvousParameters(
        backend="c10d",
        endpoint="localhost:0",
        run_id=uuid.uuid4().hex,
        min_nodes=1,
        max_nodes=1,
        is_host=True,
    )
    registry._register_default_handlers()
    os.environ["TORCHELASTIC_SIGNALS_TO_HANDLE"] = "SIGTERM,SIGINT,SIGHUP,SIGQUIT"
    spec = WorkerSpec(
        role="robolearn",
        local_world_size=run.ranks,
        entrypoint=sys.executable,
        args=("-m", "robolearn.cli", "train", *words),
        rdzv_handler=registry.get_rendezvous_handler(rendezvous),
        max_restarts=RESTARTS,
        monitor_interval=0.1,
        local_addr="localhost",
    )
    return Agent(spec, DefaultLogsSpecs(log_dir=logs), shutdown_timeout=STOPPING_S)


def _newest_copy() -> int:
    """The newest iteration of which there is a copy of any rank; -1 without one."""
    from robolearn.training.ranks.copies import RUN, memory_folder

    files = memory_folder(os.environ[RUN]).glob("rank*_*.pt")
    return max((int(path.stem.rpartition("_")[2]) for path in files), default=-1)


def _tell(failures: dict[int, Any], ranks: int, reached: int) -> None:
    """Say which rank was lost and from where all go on."""
    killed = {rank: -f.exitcode for rank, f in failures.items() if f.exitcode < 0}
    named = []
    for rank, number in sorted(killed.items()):
        with suppress(ValueError):
            named.append(f"rank {rank} of {ranks} was killed by {signal.Signals(number).name}")
    what = ", ".join(named) or f"rank {min(failures)} of {ranks} has ended"
    where = f"iteration {reached}" if reached > 0 else "the start"
    print(f"robolearn: {what}; all ranks go on from {where}", file=sys.stderr, flush=True)


def _remove_left_over(parent: Path) -> None:
    """Remove the copies of runs whose launcher was killed: those that nobody has written for a day."""
    import time

    for folder in parent.glob("*"):
        with suppress(OSError):
            if time.time() - folder.stat().st_mtime > 86400:
                shutil.rmtree(folder, ignore_errors=True)
