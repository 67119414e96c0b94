"""Parses `key=value` words with Hydra's override grammar, and refuses what a single run cannot use.

Lists, dictionaries, quotes and casts are written as in Hydra. Hydra's sweeps, `+`/`~`, packages and interpolations
are refused.
"""

from __future__ import annotations

import functools
import os
import re
import unicodedata
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from robolearn.errors import ConfigError, did_you_mean, quote

LONGEST = 4096
"""Longest override accepted [characters]; the grammar's parser is slow on longer ones."""

_KEY = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)*\Z")


@dataclass(frozen=True)
class Scalar:
    """A number or truth value together with the text it was written as.

    The grammar reads `output=001` as the number 1; a setting that takes text needs the text.
    """

    value: int | float | bool
    """The parsed value."""
    text: str
    """What the user wrote."""


@dataclass(frozen=True)
class Override:
    """One `key=value`."""

    text: str
    """The whole word as written."""
    key: tuple[str, ...]
    """The dotted key, split."""
    value: Any
    """Scalar, str, None, list or dict."""

    @property
    def dotted(self) -> str:
        """The key as written."""
        return ".".join(self.key)


def split(words: list[str] | None, backend: str | None = None) -> tuple[str | None, list[str]]:
    """[RUN] [KEY=VALUE]... as (run, overrides); a `backend` is appended as an override."""
    runs = [word for word in words or [] if "=" not in word or os.path.exists(word)]
    overrides = [word for word in words or [] if word not in runs]
    if len(runs) > 1:
        raise ConfigError(f"{quote(runs[1])} is a second run; give one run, then settings as key=value")
    return (runs[0] if runs else None), overrides + ([] if backend is None else [f"backend={backend}"])


def parse(words: Iterable[str], known: Iterable[str] = ()) -> list[Override]:
    """Parses overrides in order; `known` keys are suggested for a key with a look-alike letter.

    Raises:
        ConfigError: names the first word that cannot be parsed.
    """
    known = list(known)
    return [_parse(word, known) for word in words]


def _parse(word: str, known: list[str]) -> Override:
    key, equals, raw = word.partition("=")
    if len(word) > LONGEST:
        _refuse(word, f"is {len(word)} characters long; an override may have at most {LONGEST}")
    if key.startswith("~"):
        _refuse(word, "deletes a key, but a run's keys are fixed; give the setting another value instead")
    if key.startswith("+"):
        plain = word.lstrip("+")
        _refuse(word, f"adds a key, but a run's keys are fixed; write {quote(plain)} to set an existing one")
    if not equals:
        _refuse(word, "is not a setting; write key=value, such as num_envs=4096")
    _check_key(word, key, known)
    if not raw.strip():
        _refuse(word, f"has no value; write {key}=VALUE")
    if raw.strip() == "???":
        _refuse(word, f"leaves the value open (???); write {key}=VALUE")
    if "${" in raw:
        _refuse(word, f"has an interpolation, which is not supported; write the value itself: {key}=VALUE")
    return Override(word, tuple(key.split(".")), _value(word, key, raw))


def _check_key(word: str, key: str, known: list[str]) -> None:
    if re.match(r"hydra([./:@]|\Z)", key):
        _refuse(
            word, "is a setting of Hydra's launcher, which is not used here; output=DIR sets the run folder"
        )
    if _KEY.match(key):
        return
    if not key.strip():
        _refuse(word, "has no key before the '='; write key=value, such as num_envs=4096")
    strange = next((c for c in key if not c.isascii() or not c.isprintable()), None)
    if strange:
        hint = did_you_mean(key, known)
        raise ConfigError(
            f"{_shown(word)}: the key has {_character(strange)}{hint or '; keys are plain ASCII'}"
        )
    if "@" in key:
        _refuse(word, "names a package (@), which is not supported; write task=NAME")
    if key.startswith("task.randomize.") and "/" in key:
        part = key.removeprefix("task.randomize.")
        _refuse(word, f"has a '/' in its key; write it in braces: 'task.randomize={{{part}:[LOW,HIGH]}}'")
    before, star, after = key.partition("*")
    if star and "." in before:
        outer, _, start = before.rpartition(".")
        name, *inner = (start + "*" + after).split(".")
        value = word.partition("=")[2] or "VALUE"
        for part in reversed(inner):
            value = f"{{{part}:{value}}}"
        _refuse(word, f"has a '*' in its key; write it in braces: '{outer}={{{name}:{value}}}'")
    if "/" in key:
        _refuse(word, f"has a '/' in its key; parts are joined with dots: {key.replace('/', '.')}=...")
    _refuse(
        word, "has a key that cannot be read; a key is names joined with dots, such as task.rewards.upright"
    )


def _value(word: str, key: str, raw: str) -> Any:
    from hydra.core.override_parser.types import Override as HydraOverride
    from hydra.errors import HydraException

    if (not raw.isascii() or "~" in raw) and re.fullmatch(r"[\w ./~:@+-]+", raw):
        # Text, such as a path, with a letter or ~ that the grammar cannot read. Shells leave the home directory in
        # learner.reference=~/run, some also in output=~/run.
        text = raw.strip()
        try:
            return str(Path(text).expanduser()) if text.startswith("~/") else text
        except RuntimeError:
            _refuse(word, "starts with ~/, and this user has no home directory here")
    strange = next((c for c in raw if not c.isprintable()), None)
    if strange:
        _refuse(word, f"has {_character(strange)} in its value")
    try:
        parsed: HydraOverride = _parser().parse_override(word)
    except (HydraException, ValueError, TypeError, RecursionError):
        # Hydra's messages are lists of grammar tokens; say what to do instead.
        if raw.lstrip().startswith("("):
            _refuse(word, f"uses parentheses; write a list in brackets: {key}=[...]")
        if quoted := re.search(r"[{,]\s*([\"'])([^\"']*)\1\s*:", raw):
            _refuse(word, f"has a key in quotes; write {quoted[2]} without them")
        _refuse(word, f"has a value that cannot be read; put text in quotes: {key}=\"'...'\"")
    if parsed.is_sweep_override():
        _refuse(
            word,
            "is a sweep of several values, but a run takes one; start one run for each, "
            "or write a list in brackets: [a,b]",
        )
    try:
        value = _plain(parsed._value)
    except RecursionError:
        _refuse(word, "is nested too deeply")
    return Scalar(value, raw.strip()) if isinstance(value, (bool, int, float)) else value


def _plain(value: Any) -> Any:
    """A value parsed by Hydra as Python values."""
    from hydra.core.override_parser.types import QuotedString

    if isinstance(value, QuotedString):
        return value.text
    if isinstance(value, list):
        return [_plain(item) for item in value]
    if isinstance(value, dict):
        return {str(_plain(key)): _plain(item) for key, item in value.items()}
    return value


@functools.cache
def _parser() -> Any:
    from hydra.core.override_parser.overrides_parser import OverridesParser

    return OverridesParser.create()


def _shown(word: str) -> str:
    """The word in quotes; non-ASCII characters of its key are escaped, so that a look-alike letter shows."""
    key, equals, raw = word.partition("=")
    return quote(ascii(key)[1:-1] + equals + raw)


def _character(strange: str) -> str:
    """A character by its name and number."""
    return f"{unicodedata.name(strange, 'an unprintable character')} (U+{ord(strange):04X})"


def _refuse(word: str, why: str) -> NoReturn:
    raise ConfigError(f"{_shown(word)} {why}")
