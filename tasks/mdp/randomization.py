"""How a randomized parameter is drawn: from which range and distribution, when, and whether the critic sees it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar, Literal

from robolearn.config.fields import Parts, Setting
from robolearn.envs.state import Tensor
from robolearn.tasks.mdp.context import Random

SIGMAS = 2.0
"""Standard deviations between the middle of a range and its ends, of the distribution `gaussian`."""


@dataclass(frozen=True)
class Randomized(Parts):
    """The statement of one randomized parameter; its range alone is enough."""

    range: tuple[float, float]
    """Smallest and largest value."""
    distribution: Literal["uniform", "log_uniform", "gaussian"] = "uniform"
    """log_uniform: every factor is as likely as its inverse; gaussian: around the middle of the range, whose ends are
    two standard deviations away and bound it."""
    when: Literal["reset", "start", "interval"] = "reset"
    """reset: drawn for each episode; start: once for each environment; interval: also within episodes."""
    seconds: tuple[float, float] = (2.0, 5.0)
    """Range of the time between two draws [s], with `interval`."""
    visible: bool = True
    """Whether the observation `physics` of the critic has it."""
    head: ClassVar[str] = "range"

    @classmethod
    def of(cls, value: Any) -> Randomized:
        """The statement that a task gives: one of these, its settings by name, or a range.

        Raises:
            ValueError: it is none of these.
        """
        if isinstance(value, cls):
            return value
        try:
            if isinstance(value, Mapping):
                return cls(**{**value, "range": tuple(map(float, value["range"]))})
            low, high = value
            return cls((float(low), float(high)))
        except (TypeError, ValueError, KeyError) as error:
            names = ", ".join(field.name for field in fields(cls))
            raise ValueError(
                f"randomize: {value!r} is neither a range, (low, high), nor a dictionary with range and "
                f"others of {names}"
            ) from error

    @classmethod
    def stated(cls, value: Any) -> Randomized:
        """See `Parts.stated`; without a value the range is yet to be given."""
        return UNSTATED if value is None else cls.of(value)

    def __iter__(self) -> Iterator[float]:
        """The two ends of the range."""
        return iter(self.range)

    def settings(self) -> dict[str, Setting]:
        """All of its settings."""
        pair = tuple[float, float]
        return {
            "range": Setting(pair, self.range, {}),
            "distribution": Setting(Literal["uniform", "log_uniform", "gaussian"], self.distribution, {}),
            "when": Setting(Literal["reset", "start", "interval"], self.when, {}),
            "seconds": Setting(pair, self.seconds, {"above": 0.0, "max": 1e6}),
            "visible": Setting(bool, self.visible, {}),
        }

    def changed(self, values: Mapping[str, Any]) -> Randomized:
        """The same with other values of the settings."""
        return replace(self, **values)

    def plain(self) -> Any:
        """The range, and the other settings that are not as by default."""
        other = {
            field.name: getattr(self, field.name)
            for field in fields(self)
            if field.name != "range" and getattr(self, field.name) != field.default
        }
        return {"range": self.range, **other} if other else self.range

    def notes(self) -> str:
        """In words: how it differs from a uniform draw at each reset, after a semicolon each."""
        low, high = self.seconds
        words = {
            "start": "drawn once",
            "interval": f"also drawn within episodes, every {low:g} to {high:g} s",
        }
        more = [self.distribution.replace("_", " ")] * (self.distribution != "uniform")
        more += [words.get(self.when, "")] + ["hidden from the critic"] * (not self.visible)
        return "".join(f"; {each}" for each in more if each)

    def validate(self, where: str, least: float, most: float) -> None:
        """Check that it can be drawn.

        Raises:
            ValueError: the range is not within `least` and `most`, has swapped ends, or is not one of its distribution.
        """
        low, high = self.range
        if not least <= low <= high <= most:
            raise ValueError(
                f"{where}=[{low},{high}] must be a range within {least:g} to {most:g}, low to high"
            )
        if self.distribution == "log_uniform" and low <= 0:
            raise ValueError(
                f"{where}.distribution=log_uniform with the range [{low},{high}]: it takes values above 0"
            )
        if self.seconds[0] > self.seconds[1]:
            raise ValueError(f"{where}.seconds={list(self.seconds)}: the ends are swapped")
        if self.when != "interval" and self.seconds != type(self).seconds:
            raise ValueError(
                f"{where}.seconds={list(self.seconds)} is the time between two draws within an episode, and with "
                f"when={self.when} there is one; add {where}.when=interval, or leave seconds out"
            )

    def draw(self, num_envs: int, random: Random) -> Tensor:
        """(N,) values."""
        low, high = self.range
        if self.distribution == "log_uniform":
            return random.uniform(math.log(low), math.log(high), num_envs).exp_().clamp_(low, high)
        if self.distribution == "gaussian":
            spread = (high - low) / (2 * SIGMAS)
            return (random.randn(num_envs) * spread + (low + high) / 2).clamp_(low, high)
        return random.uniform(low, high, num_envs)


UNSTATED = Randomized(None)  # type: ignore[arg-type]
"""A statement whose range is yet to be given."""
