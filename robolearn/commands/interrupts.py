"""Ctrl-C and SIGTERM end a command, wherever in it they arrive."""

from __future__ import annotations

import signal
import sys
import threading
from contextlib import suppress
from typing import Any

NUMBERS = (signal.SIGINT, signal.SIGTERM)
AGAIN = 0.01
"""How long after it was lost an interrupt is sent again [s]: by then Python has left the callback that lost it."""

_over = threading.Event()


def listen() -> None:
    """Let SIGTERM raise KeyboardInterrupt as Ctrl-C does, and send an interrupt again that Python has ignored.

    Python ignores what is raised in some callbacks, such as `__del__` and what runs after a fork (a film's encoder is
    started with one). An interrupt that arrived there was lost: the command went on.
    """
    if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, signal.default_int_handler)
    before = sys.unraisablehook

    def ignored(what: Any) -> None:
        if what.exc_type is None or not issubclass(what.exc_type, KeyboardInterrupt):
            before(what)
        else:
            threading.Thread(target=_send_again, daemon=True).start()

    sys.unraisablehook = ignored


def ignore() -> None:
    """Ignore both signals, for a command whose exit code is known."""
    _over.set()
    for number in NUMBERS:
        signal.signal(number, signal.SIG_IGN)


def _send_again() -> None:
    """Send the main thread one of the signals, once one raises KeyboardInterrupt: under nohup SIGINT is ignored, and
    while processes start both may be."""
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, ())  # as in the main thread, which started this one
    main = threading.main_thread().ident
    while main is not None and not _over.wait(AGAIN):
        for number in NUMBERS:
            if callable(signal.getsignal(number)) and number not in blocked:
                with suppress(ProcessLookupError):  # it has ended meanwhile
                    signal.pthread_kill(main, number)
                return
