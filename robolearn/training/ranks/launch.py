"""Starts the ranks of a run on this machine, with torch's elastic agent, and starts them again where one is lost.

The agent is that of torchrun. Around it stands what torchrun leaves to its user: the run folder is chosen and locked
once for all starts; two environment variables without which restarts fail; a rank's error ends the run with its exit
code and is not tried again; a stop signal leaves ranks the time for a checkpoint; ranks that make progress may be lost
any number of times.
"""

from __future__ import annotations

import logging
import math
import os
import shutil
import signal
import sys
import tempfile
import time
import uuid
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from robolearn.config.run_config import Config
from robolearn.errors import OtherRankFailed, RunFailed, tell_line
from robolearn.files import LOCK, holder, locked
from robolearn.training.ranks import LOST
from robolearn.training.ranks.launched import FINAL, FOLDER, GRACE_S, RESTARTS, lost_again, newest_copy

if TYPE_CHECKING:
    from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent

STOPPING_S = 10**6
"""Timeout that torch's agent hands on with a stop signal [s]: ranks finish their iteration, however long it takes."""


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

    if run.recovery == "takeover":
        from robolearn.training.ranks.takeover import require_torchft

        require_torchft()
    with ExitStack() as held:
        if run.resume is not None and run.output is None:
            folder, path = checkpoint.find_run(run.resume)
            held.enter_context(locked(folder))
            checkpoint.require_newest(folder, checkpoint.load(path))
        else:
            folder = checkpoint.new_run_folder(run.task_name, run.output)
            held.callback(_remove_if_unused, folder)
            held.enter_context(locked(folder))
        identity = uuid.uuid4().hex
        memory = memory_folder(identity)
        _remove_left_over(memory.parent)
        memory.mkdir(parents=True, mode=0o700)
        held.enter_context(locked(memory))
        held.callback(shutil.rmtree, memory, ignore_errors=True)
        os.environ |= {
            FOLDER: str(folder.absolute()),
            RUN: identity,
            # Without it torch keeps one store over restarts, and the new group reads addresses of dead processes.
            "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
            # A rank that is lost is named in one line, not by each socket of the others, nor by torchft.
            "TORCH_CPP_LOG_LEVEL": os.environ.get("TORCH_CPP_LOG_LEVEL", "FATAL"),
            "RUST_LOG": os.environ.get("RUST_LOG", "error"),
            # torchrun sets 1 itself, but only for more than one rank: bits depend on it.
            "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1"),
        }
        try:
            if run.recovery == "takeover":
                from robolearn.training.ranks.supervise import supervise

                return supervise(run, words)
            return _run(run, words, folder)
        except (KeyboardInterrupt, RunFailed):
            _save_copies(run, folder)
            raise


def _save_copies(run: Config, folder: Path) -> None:
    """Write a checkpoint from the ranks' copies, where they are newer than the last one: ranks that start again, or are
    killed, cannot."""
    from robolearn.training import checkpoint
    from robolearn.training.ranks.copies import RUN, newest_whole

    content = newest_whole(os.environ[RUN], run.shards)
    if content is None or checkpoint.saved_at(folder) >= content["iter"]:
        return
    checkpoint.write(folder, content)
    print(
        f"stopped at iteration {content['iter']}; resume with: robolearn train resume={folder}",
        file=sys.stderr,
        flush=True,
    )


def _run(run: Config, words: Sequence[str], folder: Path) -> int:
    from torch.distributed.elastic.multiprocessing import SignalException

    logs = tempfile.mkdtemp(prefix="robolearn-")
    try:
        agent = _agent(run, words, logs)
        for name in list(logging.root.manager.loggerDict):
            if name.startswith("torch.distributed"):  # what a user needs to know is said here
                logging.getLogger(name).setLevel(logging.CRITICAL)
        result = agent.run()
    except SignalException:
        raise KeyboardInterrupt from None
    finally:
        shutil.rmtree(logs, ignore_errors=True)
    if not result.is_failed():
        return 0
    if (final := final_code(result.failures)) is not None:
        raise OtherRankFailed(final)  # the rank has said why
    raise lost_again(folder, run.ranks)


def _agent(run: Config, words: Sequence[str], logs: str) -> LocalElasticAgent:
    import torch.distributed.elastic.rendezvous.registry as registry
    from torch.distributed.elastic.agent.server.api import RunResult, WorkerGroup, WorkerSpec, WorkerState
    from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent
    from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs
    from torch.distributed.elastic.rendezvous import RendezvousParameters

    class Agent(LocalElasticAgent):
        """torch's agent, with what `launch` adds."""

        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            self.lost_at = -1

        def _monitor_workers(self, worker_group: WorkerGroup) -> RunResult:
            result: RunResult = super()._monitor_workers(worker_group)
            if result.state not in (WorkerState.FAILED, WorkerState.UNHEALTHY):
                return result
            if final_code(result.failures) is not None:
                self._remaining_restarts = 0
                return result
            if (reached := newest_copy()) > self.lost_at:
                self._remaining_restarts, self.lost_at = RESTARTS, reached
            if self._remaining_restarts:
                _tell(result.failures, run.ranks, reached)
            return result

        def _start_workers(self, worker_group: WorkerGroup) -> dict[int, Any]:
            started: dict[int, Any] = super()._start_workers(worker_group)
            context: Any = self._pcontext
            close = context.close
            # Where one has ended, torch would give the others 30 s.
            context.close = lambda death_sig=None, timeout=GRACE_S: close(death_sig, min(timeout, GRACE_S))
            return started

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
                if stopping:
                    self._stop(death_sig)
            finally:
                # Survivors of a lost rank have nothing to save.
                super()._shutdown(signal.SIGKILL, GRACE_S)

        def _stop(self, signal_: signal.Signals) -> None:
            """Wait for the ranks' checkpoint; not longer than GRACE_S after one of them has ended in another way."""
            handlers = list(getattr(self._pcontext, "subprocess_handlers", {}).values())
            for handler in handlers:
                if handler.proc.poll() is None:
                    handler.proc.send_signal(signal_)
            lost_since = math.inf
            while self._running() and time.monotonic() < lost_since + GRACE_S:
                time.sleep(0.05)
                if any(handler.proc.poll() not in (None, 0, 130) for handler in handlers):
                    lost_since = min(lost_since, time.monotonic())

    rendezvous = RendezvousParameters(
        backend="c10d",
        endpoint="localhost:0",
        run_id=uuid.uuid4().hex,
        min_nodes=1,
        max_nodes=1,
        is_host=True,
    )
    registry._register_default_handlers()
    # A signal that the process ignored from its start stays ignored, as is the convention for background jobs.
    handled = [s for s in (signal.SIGTERM, signal.SIGINT) if signal.getsignal(s) is not signal.SIG_IGN]
    os.environ["TORCHELASTIC_SIGNALS_TO_HANDLE"] = ",".join(each.name for each in handled)
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


def final_code(failures: dict[int, Any]) -> int | None:
    """The exit code of ranks that another start would not change; None where they are to be started again."""
    codes = [failure.exitcode for failure in sorted(failures.values(), key=lambda f: f.timestamp)]
    # Only the first one may be interrupted: torch stops the others with SIGTERM.
    return next((code for i, code in enumerate(codes) if code in FINAL and (i == 0 or code != 130)), None)


def _tell(failures: dict[int, Any], ranks: int, reached: int) -> None:
    """Say which rank was lost and from where all go on."""
    # Of those that ended because another one did, nothing is said.
    codes = {rank: f.exitcode for rank, f in failures.items() if f.exitcode not in (LOST, -signal.SIGTERM)}
    named = []
    for rank, code in sorted(codes.items()):
        how = f"ended with exit code {code}"
        with suppress(ValueError):
            how = f"was killed by {signal.Signals(-code).name}"
        named.append(f"rank {rank} of {ranks} {how}")
    what = ", ".join(named) or "a rank was lost"
    where = f"iteration {reached}" if reached > 0 else "the start"
    tell_line(f"{what}; all ranks go on from {where}")


def _remove_if_unused(folder: Path) -> None:
    """Remove a run folder in which nothing was written: the ranks have refused the run."""
    if any(path.is_file() and path.name != LOCK for path in folder.rglob("*")):
        return
    shutil.rmtree(folder, ignore_errors=True)


def _remove_left_over(parent: Path) -> None:
    """Remove the copies of runs whose launcher was killed; without a launcher, those that nobody has written for a
    day."""
    for folder in parent.glob("[0-9a-f]" * 16 + "*"):  # not the batches of actors, which are beside them
        with suppress(OSError):
            launched = (folder / LOCK).exists()
            unused = holder(folder) is None if launched else time.time() - folder.stat().st_mtime > 86400
            if unused:
                shutil.rmtree(folder, ignore_errors=True)
