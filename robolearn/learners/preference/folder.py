"""A folder of preferences: segments, and the answers to which of two is better.

    FOLDER/
      config.yaml          the configuration that segments were simulated with; see `robolearn prefer`
      segments/NAME.npz    see `robolearn.learners.preference.segments`
      preferences.jsonl    one answer a line
      queue.json           pairs that `robolearn prefer` has chosen and not yet shown
      videos/NAME.mp4      films of segments

A line of preferences.jsonl:

    {"schema": 1, "pair": ["a", "b"], "answer": 1, "by": "person", "time": "2026-01-31T12:00:00+00:00"}

`answer` is 1 where the first segment is better, 2 where the second is, "equal", "skip" where there is no answer, or
null, which takes the pair's answer back. The last line of a pair counts; empty lines, and a line that a kill has cut,
count for nothing. Lines are only ever added, under a lock: several processes may add at the same time, and a kill loses
no answer that was acknowledged.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import re
from collections.abc import Collection, Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from robolearn.errors import ConfigError, quote
from robolearn.learners.preference import segments
from robolearn.learners.preference.segments import Segment

SCHEMA = 1
FILE = "preferences.jsonl"
EQUAL, SKIP = "equal", "skip"
ANSWERS = (1, 2, EQUAL, SKIP, None)
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,119}\Z")

Pair = tuple[str, str]
"""Names of two segments."""


@dataclass(frozen=True)
class Answer:
    """The answer to one pair."""

    pair: Pair
    answer: int | str | None
    """1, 2, "equal", "skip", or None."""
    by: str
    time: str = ""

    @property
    def target(self) -> float | None:
        """Wanted probability that the first segment is the better one; None where there is no answer."""
        return {1: 1.0, 2: 0.0, EQUAL: 0.5}.get(self.answer)


class Preferences:
    """A folder of preferences, see the module."""

    def __init__(self, folder: Path | str, create: bool = False) -> None:
        """
        Raises:
            ConfigError: it does not exist, or cannot be written.
        """
        self.folder = Path(folder).expanduser()  # a shell leaves ~ in learner.preferences=~/x
        self.file = self.folder / FILE
        if create:
            try:
                (self.folder / "segments").mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise ConfigError(f"cannot write to {quote(str(folder), 120)}: {error.strerror}") from None
        elif not self.folder.is_dir():
            raise ConfigError(
                f"there is no folder of preferences {quote(str(folder), 120)}; robolearn prefer RUN --output FOLDER "
                "makes one"
            )
        self._read: dict[str, Segment] = {}

    # ------------------------------------------------------------------ segments

    def path(self, name: str) -> Path:
        """The file of a segment.

        Raises:
            ConfigError: it cannot be the name of one.
        """
        if not _NAME.match(name):
            raise ConfigError(f"{quote(str(self.file), 120)}: {quote(name)} is not the name of a segment")
        return self.folder / "segments" / f"{name}.npz"

    def add(self, segment: Segment) -> None:
        """Write a segment.

        Raises:
            ConfigError: there is another one of this name, which answers may be about, or it cannot be written.
        """
        path = self.path(segment.name)
        if path.exists() and path.read_bytes() != segments.content_of(segment):
            raise ConfigError(
                f"{quote(str(path), 160)} is another segment already, which answers may be about; it is not "
                "overwritten: does another process write to this folder?"
            )
        segments.write(segment, path)

    def segment(self, name: str) -> Segment:
        """A segment, read once.

        Raises:
            ConfigError: it is not there, or damaged.
        """
        if name not in self._read:
            self._read[name] = segments.read(self.path(name))
        return self._read[name]

    def names(self) -> list[str]:
        """Names of all segments, sorted."""
        return sorted(path.stem for path in (self.folder / "segments").glob("[!.]*.npz"))

    # ------------------------------------------------------------------ answers

    def append(self, answer: Answer) -> None:
        """Add an answer; it is on the disk when this returns.

        Raises:
            ConfigError: it cannot be written.
        """
        content = {
            "schema": SCHEMA,
            "pair": list(answer.pair),
            "answer": answer.answer,
            "by": answer.by,
            "time": answer.time or datetime.now(UTC).isoformat(timespec="seconds"),
        }
        line = json.dumps(content) + "\n"
        try:
            file = os.open(self.file, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
            try:
                # Until the line is written: one that another process is writing is not a cut one, and one that its kill
                # cuts is seen. A file system may have no locks.
                with suppress(OSError):
                    fcntl.flock(file, fcntl.LOCK_EX)
                size = os.fstat(file).st_size
                if size and os.pread(file, 1, size - 1) != b"\n":
                    line = "\n" + line  # after one that a kill or a loss of power has cut
                if os.write(file, line.encode()) < len(line.encode()):
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                with suppress(OSError):
                    fcntl.flock(file, fcntl.LOCK_UN)
                os.fsync(file)
            finally:
                os.close(file)
        except OSError as error:
            raise ConfigError(f"cannot write {quote(str(self.file), 120)}: {error.strerror}") from error

    def answers(self) -> dict[Pair, Answer]:
        """The answer of each pair that has one (1, 2, equal or skip), in the order in which pairs were first answered.

        Raises:
            ConfigError: a line is no answer; names it.
        """
        last: dict[Pair, Answer] = {}
        for answer in self._lines():
            last[answer.pair] = answer
        return {pair: answer for pair, answer in last.items() if answer.answer is not None}

    def last(self, pairs: Collection[Pair]) -> Pair:
        """The one of these answered pairs whose answer came last."""
        order = [answer.pair for answer in self._lines()]
        return max(pairs, key=lambda pair: len(order) - order[::-1].index(pair))

    def _lines(self) -> Iterator[Answer]:
        if not self.file.exists():
            return
        try:
            lines = self.file.read_bytes().split(b"\n")
        except OSError as error:
            raise ConfigError(f"cannot read {quote(str(self.file), 120)}: {error.strerror}") from error
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            try:
                yield _answer(json.loads(line))
            except (ValueError, KeyError, TypeError) as error:
                if _cut(line):
                    continue  # cut by a kill or a loss of power
                raise ConfigError(
                    f"{quote(str(self.file), 120)}: line {number} is no answer ({error}); correct or remove it"
                ) from error


def _answer(content: Any) -> Answer:
    """The answer in a line's content; raises ValueError, KeyError or TypeError where it is none."""
    if content["schema"] != SCHEMA:
        raise ValueError(f"schema {content['schema']!r}, and this version reads {SCHEMA}")
    first, second = content["pair"]
    answer = content["answer"]
    known = isinstance(answer, str) or answer is None or type(answer) is int
    if not known or answer not in ANSWERS:
        raise ValueError(f"answer {answer!r} is none of 1, 2, equal, skip, null")
    for name in (first, second):
        if not isinstance(name, str) or not _NAME.match(name):
            raise ValueError(f"{name!r} is not the name of a segment")
    if first == second:
        raise ValueError(f"segment {first} is compared with itself")
    return Answer((first, second), answer, str(content.get("by", "")), str(content.get("time", "")))


def _cut(line: bytes) -> bool:
    """Whether a line is the beginning of an answer, whose end is missing."""
    start = b'{"schema"'
    return (line.startswith(start) or start.startswith(line)) and not line.rstrip().endswith(b"}")
