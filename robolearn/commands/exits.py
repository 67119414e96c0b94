"""What a command raises, as an exit code and one line on stderr.

Exit codes:

    0    ok
    1    a check failed (`sim`: a gate; `grad-check`: a gradient)
    2    bad input: an option, an override, a file
    3    something optional is missing: a package, a renderer, a GPU
    4    the run failed: it diverged, or a term was not finite
    70   a bug of ours; its traceback is shown, please report it
    130  interrupted (Ctrl-C, SIGTERM); a training run has saved a checkpoint

`export` and `deploy` have codes of their own from 3 to 6, those of the bundle's runtime: `robolearn.runtime.errors`.
"""

from __future__ import annotations

import errno
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import typer

from robolearn.errors import ConfigError, MissingError, RunFailed, one_line, quote
from robolearn.runtime.errors import NOT_HERE, NOT_THE_SAME, Refused

OK, CHECK_FAILED, BAD_INPUT, MISSING, RUN_FAILED, BUG, INTERRUPTED = 0, 1, 2, 3, 4, 70, 130

_THE_DISK_SAYS_NO = {
    getattr(errno, f"E{name}")
    for name in ("ACCES", "EXIST", "ISDIR", "NAMETOOLONG", "NOENT", "NOSPC", "NOTDIR", "PERM", "ROFS")
}


def exit_code(work: Callable[[], object]) -> int:
    """Does some work and returns its exit code: its own where it returns one, or that of what it raises."""
    # typer brings click's code along, from some version on; the class is reached through one it exports.
    usage: Any = next(c for c in typer.BadParameter.__mro__ if c.__name__ == "ClickException")
    try:
        result = work()
        return result if isinstance(result, int) else OK
    except MissingError as error:
        return _fail(error, MISSING)
    except RunFailed as error:
        return _fail(error, RUN_FAILED)
    except Refused as error:
        return _fail(error, error.code)
    except ConfigError as error:
        return _fail(error, BAD_INPUT)
    except usage as error:
        return _fail(error.format_message(), BAD_INPUT)
    except (KeyboardInterrupt, typer.Abort):
        return INTERRUPTED
    except SystemExit as stop:
        # Nobody reads our output any more (`| head`): no failure of ours.
        return OK if stop.code == 1 else int(stop.code or 0)
    except OSError as error:
        if error.errno in _THE_DISK_SAYS_NO:
            where = f"{quote(str(error.filename), 120)}: " if error.filename else ""
            return _fail(f"{where}{error.strerror}", BAD_INPUT)
        return _bug()
    except Exception:
        return _bug()


def _fail(message: object, code: int) -> int:
    print(f"robolearn: {one_line(str(message)) or 'bad input'}", file=sys.stderr)
    return code


def _bug() -> int:
    traceback.print_exc()
    return BUG


@contextmanager
def export_codes() -> Iterator[None]:
    """What is missing or fails in `export` and `deploy` has their codes, not those of the other commands."""
    try:
        yield
    except MissingError as error:
        raise Refused(str(error), NOT_HERE) from error
    except RunFailed as error:
        raise Refused(str(error), NOT_THE_SAME) from error
