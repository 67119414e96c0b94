"""Worker processes that an interrupt ends at once, also while they start."""

from __future__ import annotations

import multiprocessing
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from typing import Any

from robolearn.errors import ConfigError, MissingError, RunFailed, one_line
from robolearn.runtime.errors import Refused

SIGNALS = (signal.SIGINT, signal.SIGTERM)


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
    with ProcessPoolExecutor(
        max(1, min(jobs, len(arguments))), mp_context=context, initializer=_start
    ) as pool:
        futures: dict[Future[Any], int] = {}
        try:
            with _signals_deferred():
                for number, given in enumerate(arguments):
                    futures[pool.submit(_guarded, work, *given)] = number
            for future in as_completed(futures):
                try:
                    kind, value = future.result()
                except BrokenProcessPool:
                    kind, value = (
                        "RunFailed",
                        "a worker process died (out of memory, or the simulator crashed)",
                    )
                yield futures[future], kind, value
        except BaseException:
            for future in futures:
                future.cancel()
            for child in multiprocessing.active_children():
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
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the main process ends the workers
    signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)

    import torch

    torch.set_num_threads(1)


@contextmanager
def _signals_deferred() -> Iterator[None]:
    """Deliver Ctrl-C and SIGTERM when the block ends.

    An interrupt within the start of a process would leave one that nobody ends. The processes inherit the blocked
    signals. Blocking is not enough here: the system then hands a signal to another thread, for which Python calls
    the handler in this one.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[int] = []
    before = {
        number: signal.signal(number, lambda n, _: came.append(n))
        for number in SIGNALS
        if signal.getsignal(number) is not signal.SIG_IGN
    }
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        for number, handler in before.items():
            signal.signal(number, handler)
    if came:
        signal.raise_signal(came[0])
