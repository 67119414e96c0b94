"""Tasks in the form of the first version, which go on working: weights in `rewards` with their functions in
`reward_terms()`, a method `terminations()`, and settings of other names."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Mapping
from types import MethodType
from typing import Any

from robolearn.tasks.mdp.stated import Reward


class Terminations(dict[str, Any]):
    """The field `terminations` of a task; a call gives its functions, as the method of that name did."""

    task: Any

    def __call__(self) -> dict[str, Callable[..., Any]]:
        """`Task.termination_terms`."""
        terms: dict[str, Callable[..., Any]] = self.task.termination_terms()
        return terms


class FieldOrMethod:
    """The attribute `terminations` of a class: for its instances the field; for `super().terminations()` of a derived
    class the method, which is `method`."""

    def __init__(self, method: Callable[[Any], dict[str, Any]]) -> None:
        self.method = method

    def __get__(self, task: Any, owner: type | None = None) -> Any:
        if task is None:
            return self
        if inspect.getattr_static(type(task), "terminations") is not self:
            return MethodType(self.method, task)
        stated = task.__dict__["terminations"]
        stated.task = task
        return stated

    def __set__(self, task: Any, value: Mapping[str, Any]) -> None:
        task.__dict__["terminations"] = Terminations(value)


def inherited_rewards(cls: type) -> dict[str, Reward]:
    """The rewards that a class and its bases state by default, by name."""
    found: dict[str, Reward] = {}
    for base in reversed(cls.__mro__):
        stated = getattr(base, "__dataclass_fields__", {}).get("rewards")
        if stated is not None and stated.default_factory is not dataclasses.MISSING:
            found |= {k: v for k, v in stated.default_factory().items() if isinstance(v, Reward)}
    return found
