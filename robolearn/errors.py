"""Errors that a user can cause or meet, and helpers for their one-line messages.

`robolearn.commands.exits` turns each into one line on stderr and an exit code; any other exception is a bug of
RoboLearn and keeps its traceback.
"""

from __future__ import annotations

import difflib
import errno
import sys
import traceback
from collections.abc import Iterable

LINE = 400
"""Longest message printed [characters]."""


class _OneLine(Exception):
    """An exception whose message is one printable line."""

    def __init__(self, message: str) -> None:
        super().__init__(one_line(message))


class ConfigError(_OneLine, ValueError):
    """The user's input is invalid; the message says what, where, the valid choices and the fix, in one line."""


class MissingError(_OneLine, RuntimeError):
    """An optional package or a capability of the machine (a renderer, a GPU) is missing."""


class RunFailed(_OneLine, RuntimeError):
    """A run started and had to stop: it diverged, a term was not finite, or the guard had rolled back too often."""


class OtherRankFailed(Exception):
    """Another rank of the run has ended, and has said why where it could; this one ends with the same exit code."""

    def __init__(self, code: int) -> None:
        super().__init__(f"another rank ended with exit code {code}")
        self.code = code


EXIT_CODES: dict[type[Exception], int] = {ConfigError: 2, MissingError: 3, RunFailed: 4}
"""Exit codes of the errors that a user can cause or meet; BUG for any other."""
BUG = 70
"""Exit code of a bug in RoboLearn."""


_FILE_ERRORS = {
    getattr(errno, f"E{name}")
    for name in ("ACCES", "EXIST", "ISDIR", "NAMETOOLONG", "NOENT", "NOSPC", "NOTDIR", "PERM", "ROFS")
}


def exit_code_of(error: BaseException) -> int:
    """The exit code of a command that ends with this error."""
    if isinstance(error, OSError) and error.errno in _FILE_ERRORS:
        return EXIT_CODES[ConfigError]
    return next((code for kind, code in EXIT_CODES.items() if isinstance(error, kind)), BUG)


def tell(error: BaseException) -> int:
    """Print an error on stderr, as one line, or with its traceback where it is a bug.

    Returns:
        The exit code of a command that ends with it.
    """
    code = exit_code_of(error)
    if code == BUG:
        traceback.print_exception(error)
    elif isinstance(error, OSError):
        where = f"{quote(str(error.filename), 120)}: " if error.filename else ""
        tell_line(f"{where}{error.strerror}")
    else:
        tell_line(str(error) or "bad input")
    sys.stderr.flush()
    return code


def tell_line(message: str) -> None:
    """Print a line on stderr that names the program."""
    print(f"robolearn: {one_line(message)}", file=sys.stderr, flush=True)


def printable(text: str) -> str:
    """`text` with unprintable characters (control, newline, lone surrogate) escaped."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)


def one_line(text: str, limit: int = LINE) -> str:
    """`text` as one printable line of at most `limit` characters."""
    text = printable(" ".join(text.split()))
    return text if len(text) <= limit else text[: limit - 3] + "..."


def quote(value: object, limit: int = 60) -> str:
    """A value in quotes, escaped and shortened."""
    text = value if isinstance(value, str) else repr(value)
    if len(text) > limit:  # cut before escaping: escapes are up to ten times longer
        text = text[: limit - 3] + "..."
    return f"'{one_line(printable(text), 2 * limit)}'"


def near(word: str, choices: Iterable[str], count: int = 3, cutoff: float = 0.6) -> list[str]:
    """The choices that `word` is probably a misspelling, an abbreviation or the first words of, best first; with
    `cutoff` 1, only equal words."""
    by_fold: dict[str, str] = {}
    for choice in choices:
        by_fold.setdefault(choice.lower(), choice)
    word = word.lower()[:200]
    found = [choice for choice in by_fold if cutoff < 1 and _abbreviation(choice) == word]
    found += [c for c in difflib.get_close_matches(word, by_fold, count, cutoff) if c not in found]
    if cutoff < 1 and len(word) > 2:
        found += [c for c in by_fold if c.startswith(f"{word}_") and c not in found]
    return [by_fold[choice] for choice in found[:count]]


def _abbreviation(name: str) -> str | None:
    """`learner.lr` of `learner.learning_rate`; None where the last part is one word."""
    head, dot, last = name.rpartition(".")
    words = [word for word in last.split("_") if word]
    return f"{head}{dot}{''.join(word[0] for word in words)}" if len(words) > 1 else None


def did_you_mean(word: str, choices: Iterable[str]) -> str:
    """`": did you mean a or b?"`, or an empty text where no choice is similar."""
    found = near(word, choices)
    return f": did you mean {' or '.join(found)}?" if found else ""


def listing(choices: Iterable[str], limit: int = 12) -> str:
    """`a, b, c` for a message, cut after `limit` names."""
    names = list(choices)
    more = f" and {len(names) - limit} more" if len(names) > limit else ""
    return (", ".join(names[:limit]) + more) or "none"
