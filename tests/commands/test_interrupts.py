"""Ctrl-C and SIGTERM are not lost where Python ignores what is raised."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

PROGRAM = """
import os, signal, sys, time
from robolearn.commands import interrupts

SENT, SIGINT = signal.Signals(int(sys.argv[1])), sys.argv[2]
signal.signal(signal.SIGINT, signal.SIG_IGN if SIGINT == "ignored" else signal.default_int_handler)
signal.signal(signal.SIGTERM, signal.SIG_DFL)
signal.pthread_sigmask(signal.SIG_UNBLOCK, interrupts.NUMBERS)

class Deleted:
    def __del__(self):
        signal.raise_signal(SENT)

def after_fork():
    signal.raise_signal(SENT)

interrupts.listen()
try:
    if sys.argv[3] == "del":
        Deleted()
    else:
        os.register_at_fork(after_in_parent=after_fork)
        if not (child := os.fork()):
            os._exit(0)
        os.waitpid(child, 0)
    time.sleep(600)
except KeyboardInterrupt:
    interrupts.ignore()
    signal.raise_signal(SENT)  # as from someone who presses Ctrl-C twice
    sys.exit(130)
"""


def ended(sent: signal.Signals, sigint: str, lost_in: str) -> subprocess.CompletedProcess[str]:
    # Python 3.13 warns of a fork beside the thread that sends the signal again.
    words = [
        sys.executable,
        "-W",
        "ignore::DeprecationWarning",
        "-c",
        PROGRAM,
        str(int(sent)),
        sigint,
        lost_in,
    ]
    return subprocess.run(words, capture_output=True, text=True, timeout=120, check=False)


@pytest.mark.parametrize("lost_in", ["del", "fork"])
@pytest.mark.parametrize(
    ("sent", "sigint"),
    [(signal.SIGINT, "raises"), (signal.SIGTERM, "raises"), (signal.SIGTERM, "ignored")],
)
def test_an_interrupt_in_a_callback_that_ignores_it_still_ends_the_command(
    sent: signal.Signals, sigint: str, lost_in: str
) -> None:
    done = ended(sent, sigint, lost_in)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


def test_another_error_in_such_a_callback_is_still_shown() -> None:
    program = """
from robolearn.commands import interrupts
class Deleted:
    def __del__(self):
        raise OSError("of a callback")
interrupts.listen()
Deleted()
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0
    assert "OSError: of a callback" in done.stderr
