"""Errors of third-party code as one line."""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from robolearn.errors import RunFailed, one_line


def describe(error: BaseException) -> str:
    """An exception of an environment's code as one line, with the file and line that raised it where they are known."""
    frames = traceback.extract_tb(error.__traceback__)
    # Gymnasium's vector environments of several processes raise an error again, whose place is lost.
    known = bool(frames) and Path(frames[-1].filename).name != "async_vector_env.py"
    place = f" ({Path(frames[-1].filename).name}:{frames[-1].lineno})" if known else ""
    return one_line(f"{type(error).__name__}: {error}", 240) + place


@contextmanager
def failing(what: str, task: str) -> Iterator[None]:
    """Turn an exception of the environment's code into RunFailed, one line with its place.

    Args:
        what: `reset` or `step`.
        task: the environment's name.
    """
    try:
        yield
    except (KeyboardInterrupt, RunFailed):
        raise
    except Exception as error:
        raise RunFailed(f"{what} of task={task} raised {describe(error)}") from error
