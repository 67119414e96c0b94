"""Checks names of columns of metrics.jsonl that the user gives, before anything is trained where that is possible, else
at the first row that is logged."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from robolearn.errors import ConfigError, did_you_mean, listing, near, quote

PLAIN = ("iteration", "steps", "seconds", "steps_per_second", "diverged")
"""The columns without a group."""
EPISODE = ("episode/return", "episode/length", "episode/fall_rate")
"""The columns of the group `episode`; they have a value in iterations in which an episode has ended."""
EXAMPLES = (*EPISODE, "reward/total", "metric/NAME", "loss/NAME", *PLAIN)
"""What messages list before a run has logged a row."""
LATE = ("episode/", "metric/", "eval/", "async/")
"""Groups whose columns may come later than the first iteration."""


def require_possible(option: str, name: str) -> None:
    """Refuse a name that no run can have.

    Raises:
        ConfigError: it is none of the columns without a group, or of the group `episode`.
    """
    group, slash, _ = name.partition("/")
    valid = EPISODE if group == "episode" and slash else PLAIN
    if name in valid or (slash and valid is PLAIN):
        return
    hint = did_you_mean(name, (*EPISODE, *PLAIN))
    raise ConfigError(
        f"{option} {quote(name)} is no column of metrics.jsonl{hint or '.'} Valid: {listing(EXAMPLES)}"
    )


def require_logged(option: str, name: str, rows: Sequence[Mapping[str, float]]) -> None:
    """Refuse a name that the rows logged so far rule out.

    Raises:
        ConfigError: no row has it, and it is of no group that comes later, or is nearly the name of a column.
    """
    if not rows or any(name in row for row in rows):
        return
    there = list(dict.fromkeys(column for row in rows for column in row))
    if name not in EPISODE and not (name.startswith(LATE) and not near(name, there, cutoff=0.9)):
        raise ConfigError(
            f"{option} {quote(name)} is no column of metrics.jsonl{did_you_mean(name, there) or '.'} "
            f"Valid: {listing(there, 40)}"
        )


def missing(option: str, name: str, rows: Sequence[Mapping[str, float]]) -> ConfigError:
    """The error where a complete run has no value of a column."""
    if name in EPISODE:
        return ConfigError(
            f"{option} {quote(name)}: no episode ended in {len(rows)} iterations; train longer, or choose a column "
            "that every iteration has, such as reward/total"
        )
    there = list(dict.fromkeys(column for row in rows for column in row))
    return ConfigError(
        f"{option} {quote(name)}: a complete run has no value of it{did_you_mean(name, there) or '.'} "
        f"Valid: {listing(there, 40)}"
    )
