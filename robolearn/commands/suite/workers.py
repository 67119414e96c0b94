"""Worker processes that an interrupt ends at once, also while they start."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from typing import Any

from robolearn.errors import ConfigError, MissingError, RunFailed, one_line
from robolearn.runtime.errors import Refused

SIGNALS = (signal.SIGINT, signal.SIGTERM)
LOOK = 0.2
"""How often the main process looks whether a signal has come [s]."""
DIED = "a worker process died (out of memory, or the simulator crashed)"


def each_in_a_worker(
    work: Callable[..., Any], arguments: Sequence[Sequence[Any]], jobs: int
) -> Iterator[tuple[int, str, Any]]:
    """Call `work` with each of `arguments` in worker processes, each with one thread of torch.

    Args:
        work: a function of a module.
        arguments: positional arguments of each call.
        jobs: calls at once, at least 1.

    Yields:
        (index into `arguments`, kind of error or "", result or message of the error) as the calls end.

    Raises:
        KeyboardInterrupt: after Ctrl-C or SIGTERM; the workers have ended.
    """
    # Not forked: threads of torch and of the simulators do not survive a fork.
    context = multiprocessing.get_context("spawn")
    others = set(multiprocessing.active_children())
    with (
        _signals_noted() as came,
        ProcessPoolExecutor(
            max(1, min(jobs, len(arguments))), mp_context=context, initializer=_start
        ) as pool,
    ):
        futures: dict[Future[Any], int] = {}
        try:
            with _signals_blocked():
                for number, given in enumerate(arguments):
                    try:
                        futures[pool.submit(_guarded, work, *given)] = number
                    except BrokenProcessPool:
                        break
            pending = set(futures)
            while pending and not came:
                done, pending = wait(pending, LOOK, FIRST_COMPLETED)
                for future in done:
                    try:
                        kind, value = future.result()
                    except BrokenProcessPool:
                        kind, value = "RunFailed", DIED
                    yield futures[future], kind, value
            if came:
                raise KeyboardInterrupt
            for number in range(len(futures), len(arguments)):
                yield number, "RunFailed", DIED
        except BaseException:
            # The calls that are left fail as soon as their workers are gone, and leaving the pool waits for these.
            for child in set(multiprocessing.active_children()) - others:
                child.terminate()
            raise


def _guarded(work: Callable[..., Any], *arguments: Any) -> tuple[str, Any]:
    """("", result), or the kind of a foreseen error and its message: not every error survives the way back."""
    try:
        return "", work(*arguments)
    except (ConfigError, MissingError, RunFailed, Refused) as error:
        return type(error).__name__, one_line(str(error))


def _start() -> None:
    """Prepare a worker process: one thread for torch, so that no bit depends on the number of cores."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the main process ends the workers,
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # by a signal that it may itself have been told to ignore
    signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
    # MuJoCo's import would start a process that asks GLFW for its version, and that prints a traceback when this worker
    # ends first. Films open OpenGL without it (`renderer.open_context`).
    os.environ.setdefault("MUJOCO_GL", "disable")

    import torch

    torch.set_num_threads(1)


def _in_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()


@contextmanager
def _signals_noted() -> Iterator[list[int]]:
    """Note Ctrl-C and SIGTERM in a list: an exception would come anywhere, also in what starts and ends processes."""
    came: list[int] = []
    before = {
        number: signal.signal(number, lambda n, _: came.append(n))
        for number in (SIGNALS if _in_main_thread() else ())
        if signal.getsignal(number) is not signal.SIG_IGN
    }
    try:
        yield came
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def _signals_blocked() -> Iterator[None]:
    """Start processes with blocked signals: before `_start` a Ctrl-C in a terminal would end them with a traceback."""
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
