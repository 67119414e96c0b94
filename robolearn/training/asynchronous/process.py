"""The program of an actor or an evaluator that `local.py` starts: orders come over a socket, tensors through files.

It ends when the other end of the socket is closed, so it does not outlive its learner, even one that was killed.
"""

from __future__ import annotations

import json
import os
import queue
import signal
import sys
import threading
import time
import traceback
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any


def main(descriptor: int, folder: Path) -> int:
    """Carry out the orders that come over the socket `descriptor`; files are in `folder`."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the learner, which then ends this process
    socket = Connection(descriptor)
    orders: queue.Queue[dict[str, Any]] = queue.Queue()

    def listen() -> None:
        try:
            while True:
                orders.put(json.loads(socket.recv_bytes()))
        except (EOFError, OSError):
            os._exit(0)

    def tell(**message: Any) -> None:
        socket.send_bytes(json.dumps(message).encode())

    threading.Thread(target=listen, daemon=True).start()
    first = orders.get()
    try:
        serve(first, orders, tell, folder)
    except BaseException as error:
        code, message = described(error)
        tell(event="failed", code=code, message=message)
        time.sleep(1.0)  # the listening thread ends this process as soon as the learner has read it
        return code
    return 0


def described(error: BaseException) -> tuple[int, str]:
    """Exit code and line for an error; the traceback of a bug is printed."""
    from robolearn.errors import BUG, exit_code_of

    if (code := exit_code_of(error)) != BUG:
        return code, str(error)
    traceback.print_exception(error)
    return code, f"{type(error).__name__}: {error}"


def serve(first: dict[str, Any], orders: queue.Queue[dict[str, Any]], tell: Any, folder: Path) -> None:
    """Build what the first message describes, and carry out one order after the other."""
    from robolearn.training.asynchronous import store
    from robolearn.training.asynchronous.engine import Setup
    from robolearn.training.asynchronous.worker import ActorWorker, EvaluatorWorker

    setup = Setup(**{**first["setup"], "words": tuple(first["setup"]["words"])})
    name = first["incarnation"]
    state = None if first["state"] is None else store.read_tree(Path(first["state"]))
    actor = ActorWorker(setup, state) if setup.role == "actor" else None
    evaluator = EvaluatorWorker(setup) if actor is None else None
    del state
    tell(event="ready")
    number = 0
    while True:
        version = int(orders.get()["version"])
        began = time.perf_counter()
        weights = store.read_weights(folder, version)[1]
        if evaluator is not None:
            numbers = {**evaluator.evaluate(weights), "version": version}
            tell(event="done", result="", busy=time.perf_counter() - began, numbers=numbers)
            continue
        assert actor is not None
        path = folder / f"{name}-{number}.batch"
        number += 1
        store.write_tree(actor.collect(weights), path)
        busy = time.perf_counter() - began
        tell(event="done", result=str(path), busy=busy, simulate=actor.seconds["simulate"])


if __name__ == "__main__":
    # The first word is for lists of processes: actor-0, evaluator.
    sys.exit(main(int(sys.argv[2]), Path(sys.argv[3])))
