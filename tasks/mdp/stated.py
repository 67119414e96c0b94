"""Rewards, terminations and curricula as a task states them, each once: a function, and its parameters, which are
settings."""

from __future__ import annotations

import inspect
import re
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from types import FunctionType
from typing import Any, ClassVar, Self

from robolearn.config.fields import Parts, Setting, apply
from robolearn.envs.state import Tensor
from robolearn.errors import ConfigError, did_you_mean, listing

_SENTENCE = re.compile(r".*?(?:\.(?= |$)|$)")
_SHAPE = re.compile(r" \(N[^()]*\)(?: bool)?")


@dataclass(frozen=True)
class StatedTerm(Parts):
    """A function (state, ctx, **parameters) -> tensor, and the values of all its parameters."""

    function: Callable[..., Tensor] = field(compare=False)
    """The function, or a method of the task's class, such as `HumanoidWalk.fall`."""
    parameters: Mapping[str, Any]
    """Value of each parameter by name."""

    def bound(self, task: object) -> Callable[..., Tensor]:
        """(state, ctx) -> tensor; a method is that of `task`, so that a derived class may override it."""
        function = self.function
        if _is_method(function):
            function = getattr(task, function.__name__)
        return partial(function, **self.parameters) if self.parameters else function

    def meaning(self) -> str:
        """The first sentence of the function's docstring, without the shapes."""
        # What is no plain function, such as a `partial`, has the docstring of its class.
        told = self.function.__doc__ if isinstance(self.function, FunctionType) else None
        first = _SENTENCE.match(" ".join((told or "").split("\n\n")[0].split()))
        return _SHAPE.sub("", first.group()) if first else ""

    def settings(self) -> dict[str, Setting]:
        """The setting that stands for all, `head`, and the parameters."""
        hints = _hints(self.function)
        own = {}
        for name, value in self.parameters.items():
            hint, meta = _narrowed(hints.get(name, _type_of(value)))
            own[name] = Setting(hint, value, meta)
        return {self.head: self._head(), **own}

    def _head(self) -> Setting:
        raise NotImplementedError

    def changed(self, values: Mapping[str, Any]) -> Self:
        """The same function with other values of the settings."""
        own = {name: values[name] for name in self.parameters}
        return replace(self, parameters=own, **{self.head: values[self.head]})


@dataclass(frozen=True)
class Reward(StatedTerm):
    """A reward: what a function returns (N,), times a weight per second. Made by `reward`."""

    weight: float
    """Weight, per second; a cost has a negative one."""
    head: ClassVar[str] = "weight"

    def _head(self) -> Setting:
        return Setting(float, self.weight, {})

    def __float__(self) -> float:
        """The weight."""
        return self.weight


@dataclass(frozen=True)
class Termination(StatedTerm):
    """A condition (N,) bool that ends an episode without bootstrap. Made by `ends`."""

    active: bool = True
    """Whether it ends episodes."""
    head: ClassVar[str] = "active"

    def _head(self) -> Setting:
        return Setting(bool, self.active, {})


@dataclass(frozen=True)
class Level(StatedTerm):
    """A curriculum: the level of each environment, from 0 to `most`. Made by `level`."""

    start: float = 0.0
    """Level at the start of a training; 1, with `most` 1: no curriculum."""
    most: float = 1.0
    """Highest level; above 1 a training becomes harder than what is asked outside of it."""
    full: float = 1.0
    """Level from which a training counts as complete: what follows the curricula, such as a learner's discount, then
    has its last value. Levels are logged as shares of it."""
    head: ClassVar[str] = "start"

    @property
    def off(self) -> bool:
        """Whether there is no curriculum: the level is 1 from the start and rises no further."""
        return self.start >= 1 >= self.most

    @property
    def complete(self) -> float:
        """`full`, or `most` where that is less."""
        return min(self.full, self.most)

    def _head(self) -> Setting:
        return Setting(float, self.start, {"min": 0.0, "max": 10.0})

    def settings(self) -> dict[str, Setting]:
        """The first level, the highest, the one of a complete training, and the parameters."""
        bounds = {"min": 1.0, "max": 10.0}
        own = {name: Setting(float, getattr(self, name), bounds) for name in ("most", "full")}
        return {**super().settings(), **own}

    def changed(self, values: Mapping[str, Any]) -> Self:
        """The same function with other values of the settings."""
        return replace(super().changed(values), most=values["most"], full=values["full"])


def reward(function: Callable[..., Tensor], weight: float, /, **parameters: Any) -> Reward:
    """A reward of a task: `weight` per second times `function(state, ctx, **parameters)` (N,).

    Raises:
        ConfigError: the function lacks a parameter, has none of that name, or takes another type; it is named.
    """
    return Reward(function, _checked(function, parameters, Reward.head), float(weight))


def ends(function: Callable[..., Tensor], /, **parameters: Any) -> Termination:
    """A termination of a task: an episode ends where `function(state, ctx, **parameters)` (N,) bool is true.

    Raises:
        ConfigError: as for `reward`.
    """
    return Termination(function, _checked(function, parameters, Termination.head))


def level(
    function: Callable[..., Tensor], start: float, /, most: float = 1.0, full: float = 1.0, **parameters: Any
) -> Level:
    """A curriculum of a task: the level of each environment begins at `start`, changes in every control step by
    `function(state, ctx, **parameters)` (N,), and stays within 0 and `most`. A training counts as complete from the
    level `full` on.

    Raises:
        ConfigError: as for `reward`; or `start` is not within 0 and `most`, `full` not within 1 and `most`.
    """
    name = getattr(function, "__name__", str(function))
    if not 0 <= start <= most or not 1 <= full <= most:
        raise ConfigError(
            f"{name}: start {start:g} must be within 0 and most {most:g}, and full {full:g} within 1 and most"
        )
    checked = _checked(function, parameters, Level.head, "most", "full")
    return Level(function, checked, float(start), float(most), float(full))


def _checked(function: Callable[..., Tensor], given: Mapping[str, Any], *reserved: str) -> dict[str, Any]:
    """Every parameter of a function with its value: the one given, or the default.

    Raises:
        ConfigError: see `reward`.
    """
    name = getattr(function, "__name__", str(function))
    try:
        signature = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        raise ConfigError(f"{name} is not a function (state, ctx) -> tensor") from None
    own = signature[3 if _is_method(function) else 2 :]
    named = {p.name: p for p in own if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}
    for setting in reserved:
        if setting in named:
            raise ConfigError(
                f"{name}: the parameter {setting} needs another name; {setting} is a setting of every such term"
            )
    if not any(p.kind is p.VAR_KEYWORD for p in own):
        for key in given:
            if key not in named:
                there = f"; it has {listing(named)}" if named else "; it has none"
                raise ConfigError(f"{name} has no parameter {key!r}{did_you_mean(key, named) or there}")
    values = {key: p.default for key, p in named.items() if p.default is not p.empty} | dict(given)
    if missing := [key for key in named if key not in values]:
        raise ConfigError(f"{name} needs a value of its parameter {missing[0]!r}")
    hints = _hints(function)
    checked = {}
    for key, value in values.items():
        hint, meta = _narrowed(hints.get(key, _type_of(value)))
        checked[key] = apply(value, hint, value, f"{name}: {key}", meta)
    return {key: checked[key] for key in (*named, *given) if key in checked}


def _is_method(function: Callable[..., Tensor]) -> bool:
    """Whether it is a function in a class's body, which takes the task first."""
    return isinstance(function, FunctionType) and _takes_self(function)


@lru_cache(maxsize=256)  # a task that asks for its terminations in each step would read signatures in each
def _takes_self(function: Callable[..., Tensor]) -> bool:
    try:
        first = next(iter(inspect.signature(function).parameters), "")
    except (TypeError, ValueError):
        return False
    return first == "self"


def _hints(function: Callable[..., Tensor]) -> dict[str, Any]:
    """Type of each parameter, where it is known."""
    try:
        return typing.get_type_hints(function, include_extras=True)
    except (NameError, TypeError, AttributeError):
        return {}


def _narrowed(hint: Any) -> tuple[Any, Mapping[str, Any]]:
    """`Annotated[float, {"min": 0.0}]` as the type and its bounds."""
    if typing.get_origin(hint) is typing.Annotated:
        plain, *notes = typing.get_args(hint)
        return plain, {
            key: bound for note in notes if isinstance(note, Mapping) for key, bound in note.items()
        }
    return hint, {}


def _type_of(value: Any) -> Any:
    """The type of a parameter that has no annotation: that of its value."""
    return float if type(value) is int else type(value) if isinstance(value, (bool, float, str)) else Any
