"""Expands Hydra's sweep grammar: `seed=1,2,3`, `choice(...)`, `range(...)`, `interval(...)`, with Hydra's parser."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from robolearn.config import overrides
from robolearn.errors import ConfigError, quote

MOST = 10_000
"""Largest number of runs in a sweep."""

LONGEST_NAME = 100
"""Longest name of a run's folder, without its number [characters]."""


@dataclass(frozen=True)
class Axis:
    """A setting with several values."""

    key: str
    """The dotted key."""
    word: str
    """The setting as written."""
    choices: tuple[str, ...] = ()
    """The values as text in Hydra's grammar; empty for an interval."""
    numbers: tuple[float, float, float] | None = None
    """First value, last value and step of a range; of an interval both ends, and step 0."""
    integer: bool = False
    """Whether the numbers of a range or an interval are integers."""
    log: bool = False
    """Whether an interval is searched on a logarithmic scale: `tag(log, interval(...))`."""


@dataclass(frozen=True)
class Plan:
    """What the settings of a sweep say."""

    items: tuple[str | Axis, ...]
    """In the order written: settings with one value as they are, and axes."""

    @property
    def axes(self) -> list[Axis]:
        """The settings that vary."""
        return [item for item in self.items if isinstance(item, Axis)]

    def words(self, settings: Mapping[str, str]) -> list[str]:
        """The settings of one run, in the order written; `settings` are the values of the axes by key."""
        return [f"{i.key}={settings[i.key]}" if isinstance(i, Axis) else i for i in self.items]

    def product(self) -> Iterator[dict[str, str]]:
        """The values of the axes, every combination; the last axis varies fastest."""
        axes = self.axes
        for values in itertools.product(*(axis.choices for axis in axes)):
            yield {axis.key: value for axis, value in zip(axes, values, strict=True)}


def parse(words: Sequence[str], search: bool = False) -> Plan:
    """The plan that settings describe.

    Args:
        words: `key=value` words; values that vary are written in Hydra's sweep grammar.
        search: whether the axes are a search space, which may contain intervals.

    Raises:
        ConfigError: a word has no valid sweep, sets a key twice, or there are too many combinations. Words without a
            sweep are checked by `robolearn.config.resolve`, not here.
    """
    items = tuple(_item(word, search) for word in words)
    seen: dict[str, str] = {}
    varying = {item.key for item in items if isinstance(item, Axis)}
    for item in items:
        key = item.key if isinstance(item, Axis) else item.partition("=")[0]
        word = item.word if isinstance(item, Axis) else item
        if key in seen and key in varying:
            raise ConfigError(f"{quote(word)}: {key} is set twice, by {quote(seen[key])} too; leave one out")
        seen[key] = word
    if not search:
        count = 1
        for item in items:
            count *= len(item.choices) if isinstance(item, Axis) else 1
            if count > MOST:
                raise ConfigError(f"these are more than {MOST} runs; leave values out, or use --search")
    return Plan(items)


def _item(word: str, search: bool) -> str | Axis:
    key, equals, raw = word.partition("=")
    if not equals or len(word) > overrides.LONGEST:
        return word  # refused by name when the run is resolved
    _refuse_slips(word, key, raw)
    parsed = _hydra(word)
    if parsed is None and re.match(r"\s*(choice|range|interval|tag|shuffle|sort|glob)\s*\(", raw):
        raise ConfigError(
            f"{quote(word)} cannot be read; write {key}=A,B,C or choice(A,B), range(START,STOP,STEP), or with --search "
            "interval(LOW,HIGH), tag(log,interval(LOW,HIGH))"
        )
    if parsed is None or not parsed.is_sweep_override():
        return word
    from hydra.core.override_parser.types import Glob, IntervalSweep, RangeSweep

    sweep = parsed._value
    if isinstance(sweep, Glob):
        raise ConfigError(f"{quote(word)}: glob() is not supported; list the values: {key}=A,B")
    if "${" in raw:
        raise ConfigError(f"{quote(word)} has an interpolation, which is not supported; write the values")
    log = "log" in (tag.lower() for tag in sweep.tags)
    if unknown := sorted(tag for tag in sweep.tags if tag.lower() != "log"):
        raise ConfigError(f"{quote(word)}: there is no tag {quote(unknown[0])}; valid: log")
    if log and not isinstance(sweep, IntervalSweep):
        raise ConfigError(
            f"{quote(word)}: only an interval has a logarithmic scale: tag(log,interval(LOW,HIGH))"
        )
    if isinstance(sweep, IntervalSweep):
        return _interval(word, key, sweep, log, search)
    if isinstance(sweep, RangeSweep) and sweep.step == 0:
        raise ConfigError(f"{quote(word)}: the step of a range is not 0")
    choices = tuple(itertools.islice(parsed.sweep_string_iterator(), MOST + 1))
    if isinstance(sweep, RangeSweep):
        # Adding up the steps, Hydra may stay just below the stop: 0.7999999999999999.
        tidy = [_tidy(choice) for choice in choices]
        choices = tuple(text for text in tidy if float(text) != sweep.stop)
    if not choices:
        raise ConfigError(f"{quote(word)} has no value: a range ends before its stop, range(START,STOP,STEP)")
    if twice := [choice for i, choice in enumerate(choices) if choice in choices[:i]]:
        raise ConfigError(f"{quote(word)} has the value {twice[0]} twice")
    if isinstance(sweep, RangeSweep) and len(choices) > 1 and not sweep.shuffle:
        first, last = float(choices[0]), float(choices[-1])
        integer = all(re.fullmatch(r"[+-]?\d+", choice) for choice in choices)
        step = float(f"{(last - first) / (len(choices) - 1):.12g}")
        return Axis(key, word, choices, (first, last, step), integer)
    return Axis(key, word, choices)


def _refuse_slips(word: str, key: str, raw: str) -> None:
    """Refuse what was meant as several values, and is none in the grammar."""
    if found := re.fullmatch(r"\s*([+-]?\d+)\s*\.\.\.?\s*([+-]?\d+)\s*", raw):
        written = f"{key}=range({found[1]},{int(found[2]) + 1})"
        raise ConfigError(f"{quote(word)} is no range; write {written}, or list the values: {key}=A,B,C")
    if (
        "," in raw
        and not re.search(r"[\[\]{}()'\"]", raw)
        and not all(part.strip() for part in raw.split(","))
    ):
        raise ConfigError(
            f"{quote(word)} has an empty value: remove the comma, or write '' for an empty text"
        )


def _interval(word: str, key: str, sweep: Any, log: bool, search: bool) -> Axis:
    low, high = sweep.start, sweep.end
    if not search:
        raise ConfigError(f"{quote(word)}: an interval needs --search; without it, list values: {key}=A,B,C")
    if not low < high:
        raise ConfigError(f"{quote(word)}: an interval is interval(LOW,HIGH), with LOW below HIGH")
    if log and low <= 0:
        raise ConfigError(f"{quote(word)}: a logarithmic interval begins above 0")
    return Axis(key, word, (), (low, high, 0.0), isinstance(low, int) and isinstance(high, int), log)


def _tidy(text: str) -> str:
    """A value of a range without the rounding error of its steps: 0.7000000000000001 is 0.7."""
    return text if re.fullmatch(r"[+-]?\d+", text) else repr(float(f"{float(text):.12g}"))


def _hydra(word: str) -> Any:
    """Hydra's override; None where its grammar cannot read the word, which `config.resolve` then refuses or reads."""
    from hydra.errors import HydraException

    try:
        parsed = _parser().parse_override(word)
    except (HydraException, ValueError, TypeError, RecursionError):
        return None
    return parsed


@cache
def _parser() -> Any:
    from hydra.core.override_parser.overrides_parser import OverridesParser

    return OverridesParser.create()


# ---------------------------------------------------------------------- names


def short_keys(keys: Sequence[str]) -> dict[str, str]:
    """Each dotted key by its last parts, as few as tell it from the others."""
    short = {}
    for key in keys:
        parts = key.split(".")
        for count in range(1, len(parts) + 1):
            end = ".".join(parts[-count:])
            if not any(other != key and f".{other}".endswith(f".{end}") for other in keys):
                break
        short[key] = end
    return short


def run_name(settings: Mapping[str, str]) -> str:
    """A folder's name from the settings that vary: gamma-0.97_seed-1. Hydra's grammar reads it without quotes."""
    short = short_keys(list(settings))
    return "_".join(f"{short[key]}-{_plain(value)}" for key, value in settings.items())[:LONGEST_NAME]


def run_names(combinations: Sequence[Mapping[str, str]]) -> list[str]:
    """A different name for each combination: a number is added where several would have the same one."""
    names = [run_name(settings) for settings in combinations]
    count = {name: names.count(name) for name in set(names)}
    digits = len(str(len(names)))
    return [
        name if count[name] == 1 and name else f"{i:0{digits}d}_{name}".rstrip("_")
        for i, name in enumerate(names, 1)
    ]


def _plain(value: str) -> str:
    """A value as a part of a file's name; of a path, its last part."""
    text = value.strip("'\"")
    if "/" in text and "," not in text:
        text = Path(text).name
    return re.sub(r"[^A-Za-z0-9.+-]+", "-", text).strip("-." if not text.startswith("-") else ".") or "empty"


def setting(key: str, value: str) -> str:
    """`key=value`, with quotes where Hydra's grammar needs them for a text such as a path."""
    if re.fullmatch(r"[\w./:+-]+", value, re.ASCII):
        return f"{key}={value}"
    # The grammar reads backslashes as they are, but for those before a quote or at the end.
    escaped = re.sub(r"(\\*)('|\Z)", lambda found: 2 * found[1] + ("\\'" if found[2] else ""), value)
    return f"{key}='{escaped}'"


def text(value: float, integer: bool = False) -> str:
    """A number of a range or an interval as text: at most six significant digits, so that names stay short."""
    return str(round(value)) if integer else repr(float(f"{value:.6g}"))
