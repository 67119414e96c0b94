"""Runs the trainings of a sweep, some at once, until all have ended or the user stops them."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import Protocol

from robolearn.commands.exits import INTERRUPTED
from robolearn.commands.sweep.jobs import Job, LocalJob, Place, Training
from robolearn.commands.sweep.progress import Tail, View
from robolearn.commands.sweep.state import FAILED, FINISHED, PRUNED, RUNNING, STOPPED, RunState, Sweep
from robolearn.errors import ConfigError

PAUSE = 0.2
"""Seconds between two looks at the jobs."""


class Source(Protocol):
    """What says which run is next, and learns how runs go."""

    def next(self) -> RunState | None:
        """The next run to start; None where there is none now."""

    def watch(self, run: RunState, tail: Tail) -> bool:
        """Called when a run has new metrics; whether to end it early, as pruned."""

    def ended(self, run: RunState, tail: Tail) -> None:
        """Called after a run's status is final, or it has been stopped; before sweep.json is written.

        Raises:
            ConfigError: the sweep cannot go on; all other runs are stopped.
        """


@dataclass
class _Active:
    run: RunState
    job: Job
    tail: Tail
    slot: int
    pruned: bool = False


def run_all(
    sweep: Sweep,
    source: Source,
    place: Place,
    jobs: int,
    training: Callable[[RunState, int], Training],
    view: View,
) -> bool:
    """Run what the source gives, at most `jobs` at once; `training` describes a run to start in a slot.

    Returns:
        Whether all ran to their ends; False after Ctrl-C or SIGTERM, which let each training save a checkpoint. A
        second signal ends them at once, a third one kills them.

    Raises:
        Whatever `source` raises, after all jobs were stopped.
    """
    active: list[_Active] = []
    asked = 0
    problem: BaseException | None = None
    with _signals() as caught:
        while True:
            if problem is None and not caught:
                try:
                    _start(sweep, source, place, jobs, training, view, active)
                except Exception as error:
                    problem = error
            if not active:
                break
            while asked < min(3, max(len(caught), problem is not None)):
                asked += 1
                for each in active:
                    each.job.stop()
            for each in list(active):
                code = each.job.poll()
                if each.tail.read() and code is None and not asked and not each.pruned and problem is None:
                    try:
                        each.pruned = source.watch(each.run, each.tail)
                    except Exception as error:
                        problem = error
                    if each.pruned:
                        each.job.stop()
                if code is not None:
                    active.remove(each)
                    try:
                        _end(sweep, source, view, each, code)
                    except ConfigError as error:
                        problem = problem or error
            view.update({each.run.name: each.tail for each in active})
            time.sleep(PAUSE)
    if problem is not None:
        raise problem
    return not caught


def _start(
    sweep: Sweep,
    source: Source,
    place: Place,
    jobs: int,
    training: Callable[[RunState, int], Training],
    view: View,
    active: list[_Active],
) -> None:
    while len(active) < jobs and (run := source.next()) is not None:
        slot = min(set(range(jobs)) - {each.slot for each in active})
        run.status, run.error, run.exit_code = RUNNING, "", None
        sweep.save()
        job = place.start(training(run, slot))
        active.append(_Active(run, job, Tail(sweep.path(run)), slot))
        view.started(run, job.blocked if isinstance(job, LocalJob) else None)


def _end(sweep: Sweep, source: Source, view: View, each: _Active, code: int) -> None:
    run = each.run
    run.exit_code = code
    if code == 0:
        run.status = FINISHED
    elif code == INTERRUPTED or (code == -signal.SIGTERM):
        run.status = PRUNED if each.pruned else STOPPED
    else:
        run.status, run.error = FAILED, each.job.why()
    each.tail.read()
    try:
        source.ended(run, each.tail)
    finally:
        sweep.save()
    view.ended(run, each.tail)


@contextmanager
def _signals() -> Iterator[list[int]]:
    """Collects Ctrl-C and SIGTERM; a signal that is ignored stays ignored, as is the convention for background jobs."""
    caught: list[int] = []

    def on_signal(number: int, frame: FrameType | None) -> None:
        caught.append(number)
        said = (
            "stopping: each run saves a checkpoint after its iteration; press Ctrl-C again to stop now",
            "stopping now: the last checkpoints are kept",
            "killing the runs: the last checkpoints are kept",
        )
        print(said[min(len(caught), 3) - 1], file=sys.stderr, flush=True)

    handled = [s for s in (signal.SIGINT, signal.SIGTERM) if signal.getsignal(s) is not signal.SIG_IGN]
    before = {number: signal.signal(number, on_signal) for number in handled}
    try:
        yield caught
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
