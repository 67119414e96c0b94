"""Gates: limits of a scenario's measures."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from robolearn.commands.checks import Check
from robolearn.errors import ConfigError, did_you_mean, listing, one_line, quote
from robolearn.simulation.measures import ALIASES, MEASURES

OF_THE_RUN = {
    "real_time_factor": "simulated seconds of one environment per second of wall time",
    "divergence": "environment steps in which the simulation diverged",
    "latency_ms": "99th percentile of the time that a bundle's controller takes on this machine",
}
"""Gates on the run itself; all but divergence depend on the machine."""

ALWAYS = ("finite", "divergence")
"""Gates of every scenario."""

_TEXT = re.compile(r"\s*(>=|<=)\s*(\S+)\s*\Z")
_RANGE = re.compile(r"\s*(\S+)\s*\.\.\s*(\S+)\s*\Z")


@dataclass(frozen=True)
class Gate:
    """A range that the mean of a measure must lie in."""

    measure: str
    low: float = -math.inf
    high: float = math.inf

    @classmethod
    def of(cls, name: str, value: object, place: str) -> Gate:
        """A gate as a suite states it: `survival: ">= 0.95"`, `"<= 0.2"`, `"1 .. 3"` or {min: 1, max: 3}.

        Raises:
            ConfigError: it is none of these.
        """
        place = f"{place}: {name}"
        if isinstance(value, str):
            if found := _TEXT.match(value):
                number = _number(found[2], place)
                return cls(name, low=number) if found[1] == ">=" else cls(name, high=number)
            if found := _RANGE.match(value):
                return cls._ordered(name, _number(found[1], place), _number(found[2], place), place)
        if isinstance(value, Mapping) and value and set(value) <= {"min", "max"}:
            low, high = (_number(value[k], place) if k in value else None for k in ("min", "max"))
            return cls._ordered(
                name, -math.inf if low is None else low, math.inf if high is None else high, place
            )
        raise ConfigError(
            f'{place}: {quote(value)} is no limit; write ">= 0.95", "<= 0.2", "1 .. 3" or {{min: 1}}'
        )

    @classmethod
    def _ordered(cls, name: str, low: float, high: float, place: str) -> Gate:
        if low > high:
            raise ConfigError(f"{place}: {low:g} is above {high:g}; swap them")
        return cls(name, low, high)

    @property
    def key(self) -> str:
        """Name of its measure in a trial."""
        return ALIASES.get(self.measure, self.measure)

    @property
    def limit(self) -> str:
        """The range as text."""
        if self.low == -math.inf:
            return f"<= {self.high:g}"
        return f">= {self.low:g}" if self.high == math.inf else f"{self.low:g} .. {self.high:g}"

    def passes(self, value: float) -> bool:
        """Whether a value lies within; NaN does not."""
        return self.low <= value <= self.high


@dataclass(frozen=True)
class Verdict(Check):
    """The result of one gate, or of a comparison with the baseline, of a scenario on a backend."""

    scenario: str = ""
    backend: str = ""

    @property
    def message(self) -> str:
        """One line that says everything; why, where it was not checked."""
        if self.passed is None:
            return one_line(self.why)
        compared = "baseline" if self.name.startswith("baseline") else "limit"
        name = self.name.removeprefix("baseline ")
        line = f"{self.scenario} on {self.backend}: {name} is {self.value}, {compared} {self.limit}"
        return one_line(f"{line}; {self.why}" if self.why else line)


def require_known(gates: Collection[Gate], metrics: Collection[str], place: str) -> None:
    """Check that every gate has a measure.

    Args:
        gates: of a scenario.
        metrics: names of the task's metrics.
        place: for messages.

    Raises:
        ConfigError: one has none; the message names it and those that exist.
    """
    valid = [*MEASURES, *ALIASES, *OF_THE_RUN, *metrics]
    for gate in gates:
        if gate.measure not in valid:
            raise ConfigError(
                f"{place}: gates: there is no measure {quote(gate.measure)}{did_you_mean(gate.measure, valid) or '.'} "
                f"Valid: {listing(dict.fromkeys(valid), 40)}"
            )


def _number(value: object, place: str) -> float:
    try:
        number = (
            float(value) if isinstance(value, str | int | float) and not isinstance(value, bool) else math.nan
        )
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise ConfigError(f"{place}: {quote(value)} is no number")
    return number
