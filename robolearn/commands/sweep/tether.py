"""Runs a module as `python -m MODULE ...` would, and sends it SIGTERM when the process that started it is gone.

    python -m robolearn.commands.sweep.tether MODULE [ARGUMENT]...

Standard input is a pipe whose other end the parent holds: it ends with the parent, also by kill -9. A training then
saves a checkpoint and stops, instead of going on unseen. Unlike PR_SET_PDEATHSIG, this works on every Unix, and does
not depend on which thread started the process.
"""

from __future__ import annotations

import os
import runpy
import signal
import sys
import threading


def _watch() -> None:
    while os.read(0, 4096):
        pass
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    threading.Thread(target=_watch, daemon=True).start()
    sys.argv = sys.argv[1:]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
