"""Turns the exceptions of a command into an exit code and one line on stderr.

Exit codes:

    0    ok
    1    a check failed (`sim`: a gate; `grad-check`: a gradient; `robot`: its model; `sysid`: what a log tells)
    2    bad input: an option, an override, a file
    3    something optional is missing: a package, a renderer, a GPU
    4    the run failed: it diverged, a term was not finite, or the guard had rolled back too often
    70   a bug in RoboLearn; its traceback is shown, please report it
    75   a rank of a training that another one has left; our launcher starts the ranks again
    130  interrupted (Ctrl-C, SIGTERM); a training run has saved a checkpoint

`export` and `deploy` use the exit codes 3 to 6 of the bundle's runtime instead: `robolearn.runtime.errors`.
"""

from __future__ import annotations

import errno
import logging
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import typer

from robolearn.config.schema import SCALARS, SECTIONS
from robolearn.errors import MissingError, OtherRankFailed, RunFailed, tell, tell_line
from robolearn.runtime.errors import NOT_HERE, NOT_THE_SAME, Refused
from robolearn.training.ranks import under_torchrun

OK, CHECK_FAILED, BAD_INPUT, MISSING, RUN_FAILED, BUG, LOST, INTERRUPTED = 0, 1, 2, 3, 4, 70, 75, 130


def exit_code(work: Callable[[], object]) -> int:
    """Call `work` and return its exit code: the int it returns, else 0, or the code of what it raises."""
    # Newer versions of typer contain click's code; the class is found through one that typer exports.
    usage: Any = next(c for c in typer.BadParameter.__mro__ if c.__name__ == "ClickException")
    try:
        result = work()
        return result if isinstance(result, int) else OK
    except OtherRankFailed as error:
        return error.code
    except Refused as error:
        tell_line(str(error))
        return error.code
    except usage as error:
        tell_line(_of_usage(error))
        return BAD_INPUT
    except (KeyboardInterrupt, typer.Abort):
        return INTERRUPTED
    except SystemExit as stop:
        cause = stop.__context__
        if isinstance(cause, OSError) and cause.errno == errno.EPIPE:
            return OK  # the reader of the output has gone (`| head`), which is no failure
        tell_line(f"a task, an environment or a package has ended the process with sys.exit({stop.code!r})")
        return RUN_FAILED
    except Exception as error:
        return tell(error)


def _of_usage(error: Any) -> str:
    """The message of a wrong option, with the fix where it is a setting, such as `--num_envs`."""
    said = str(error.format_message())
    name = str(getattr(error, "option_name", "")).lstrip("-").replace("-", "_")
    if name.partition(".")[0] not in (*SCALARS, *SECTIONS):
        return said
    return f"{said.rstrip('.')}; settings have no dashes: write {name}=VALUE"


def ended(code: int) -> int:
    """The exit code, once nothing is left to do; the process of a rank ends here.

    Threads of torch's process groups may still wait for ranks that have gone. Python would take down torch beside them,
    which can abort the process and so replace its exit code.
    """
    if under_torchrun():
        logging.shutdown()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    return code


@contextmanager
def export_codes() -> Iterator[None]:
    """Gives MissingError and RunFailed the exit codes of `export` and `deploy`."""
    try:
        yield
    except MissingError as error:
        raise Refused(str(error), NOT_HERE) from error
    except RunFailed as error:
        raise Refused(str(error), NOT_THE_SAME) from error
