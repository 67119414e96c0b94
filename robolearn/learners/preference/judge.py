"""A script that compares segments in a person's place."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from robolearn.config import registry
from robolearn.errors import ConfigError, RunFailed, one_line, quote
from robolearn.learners.preference.folder import EQUAL
from robolearn.learners.preference.segments import Segment

Judge = Callable[[Segment, Segment], Any]


def load(name: str, option: str) -> Judge:
    """The function that `path.py:NAME` names, which runs the file; `option` is how the user has given it.

    Raises:
        ConfigError: there is no such function.
    """
    if not registry.is_file(name):
        raise ConfigError(f"{option}{quote(name, 120)}: name a function in a file, such as judge.py:judge")
    found = registry.from_file(name)
    if not callable(found):
        raise ConfigError(f"{option}{quote(name, 120)} is no function but {type(found).__name__}")
    judge: Judge = found
    return judge


def ask(judge: Judge, first: Segment, second: Segment) -> int | str:
    """The answer of a script: 1, 2 or equal.

    Raises:
        RunFailed: it raised an error, or returned something else.
    """
    name = getattr(judge, "__name__", "the judge")
    try:
        answer = judge(first, second)
        number = int(answer)
        if number != answer or number not in (0, 1, 2):
            raise ValueError(f"it returned {answer!r}, and must return 1, 2, or 0 for equal")
    except Exception as error:
        why = f"{type(error).__name__}: {one_line(str(error), 200)}"
        raise RunFailed(f"{name} failed on segments {first.name} and {second.name}: {why}") from error
    return number or EQUAL
