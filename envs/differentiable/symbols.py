"""Symbols: scalars that record the operations that computed them, to generate straight-line code.

An equation written for floats runs on symbols too. Constants are folded, so the code of a planar robot has no
operations of the third dimension, and common subexpressions are computed once.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence

_INFIX = {"add": "+", "sub": "-", "mul": "*", "div": "/"}
_CALLS: dict[str, Callable[..., float]] = {
    "sin": math.sin,
    "cos": math.cos,
    "sqrt": math.sqrt,
    "min": min,
    "max": max,
}


class Recording:
    """The operations of one piece of code, in order."""

    def __init__(self) -> None:
        self.operations: list[tuple[str, tuple[object, ...]]] = []
        self._nodes: dict[tuple[object, ...], Symbol] = {}

    def input(self, name: str) -> Symbol:
        """An input of the code, read by the expression `name`."""
        return self.node("input", name)

    def node(self, operation: str, *arguments: object) -> Symbol:
        """The result of an operation; the same symbol for the same arguments."""
        key = (operation, *(("s", a.index) if isinstance(a, Symbol) else a for a in arguments))
        if key not in self._nodes:
            self.operations.append((operation, arguments))
            self._nodes[key] = Symbol(self, len(self.operations) - 1)
        return self._nodes[key]

    def code(self, outputs: Sequence[Scalar], literal: str = "{}") -> tuple[list[str], list[str]]:
        """Python statements that compute `outputs`, and the expression of each output.

        Operations that no output needs are omitted. A statement has one operation and each name is assigned once.
        `literal` formats a constant.
        """
        needed: set[int] = set()
        waiting = [s.index for s in outputs if isinstance(s, Symbol)]
        while waiting:
            index = waiting.pop()
            if index not in needed:
                needed.add(index)
                waiting += [a.index for a in self.operations[index][1] if isinstance(a, Symbol)]

        def text(scalar: object) -> str:
            if isinstance(scalar, Symbol):
                return f"t{scalar.index}"
            return literal.format(repr(float(scalar)))  # type: ignore[arg-type]

        lines = []
        for index in sorted(needed):
            operation, arguments = self.operations[index]
            if operation == "input":
                value = str(arguments[0])
            elif operation == "neg":
                value = f"-{text(arguments[0])}"
            elif operation in _INFIX:
                value = f"{text(arguments[0])} {_INFIX[operation]} {text(arguments[1])}"
            elif operation == "where":
                condition, yes, no = (text(a) for a in arguments)
                value = f"wp.where({condition} > {literal.format('0.0')}, {yes}, {no})"
            else:
                value = f"wp.{operation}({', '.join(text(a) for a in arguments)})"
            lines.append(f"t{index} = {value}")
        return lines, [text(s) for s in outputs]


class Symbol:
    """A scalar whose value is known only when the generated code runs."""

    __slots__ = ("index", "recording")

    def __init__(self, recording: Recording, index: int) -> None:
        self.recording, self.index = recording, index

    def __add__(self, other: Scalar) -> Scalar:
        if _is(other, 0.0):
            return self
        if isinstance(other, Symbol) and self.recording.operations[other.index][0] == "neg":
            return self - self.recording.operations[other.index][1][0]  # type: ignore[operator]
        first, second = _ordered(self, other)
        return self.recording.node("add", first, second)

    __radd__ = __add__

    def __sub__(self, other: Scalar) -> Scalar:
        if _is(other, 0.0):
            return self
        if isinstance(other, Symbol) and other.index == self.index:
            return 0.0
        return self.recording.node("sub", self, other)

    def __rsub__(self, other: Scalar) -> Scalar:
        return -self if _is(other, 0.0) else self.recording.node("sub", other, self)

    def __mul__(self, other: Scalar) -> Scalar:
        if _is(other, 0.0):
            return 0.0
        if _is(other, 1.0):
            return self
        if _is(other, -1.0):
            return -self
        first, second = _ordered(self, other)
        return self.recording.node("mul", first, second)

    __rmul__ = __mul__

    def __truediv__(self, other: Scalar) -> Scalar:
        if isinstance(other, Symbol):
            return self.recording.node("div", self, other)
        return self * (1.0 / other)

    def __rtruediv__(self, other: Scalar) -> Scalar:
        return 0.0 if _is(other, 0.0) else self.recording.node("div", other, self)

    def __neg__(self) -> Scalar:
        operation, arguments = self.recording.operations[self.index]
        if operation == "neg":
            return arguments[0]  # type: ignore[return-value]
        return self.recording.node("neg", self)


Scalar = float | Symbol
"""A number or a symbol."""


def _is(scalar: Scalar, value: float) -> bool:
    return not isinstance(scalar, Symbol) and float(scalar) == value


def _ordered(a: Scalar, b: Scalar) -> tuple[Scalar, Scalar]:
    """The operands of a sum or product in a fixed order, so that a + b and b + a are the same node."""
    if isinstance(a, Symbol) and isinstance(b, Symbol) and a.index > b.index:
        return b, a
    return (a, b) if isinstance(a, Symbol) else (b, a)


def _call(operation: str, *arguments: Scalar) -> Scalar:
    for argument in arguments:
        if isinstance(argument, Symbol):
            return argument.recording.node(operation, *arguments)
    return float(_CALLS[operation](*arguments))


def sin(x: Scalar) -> Scalar:
    """Sine of an angle [rad]."""
    return _call("sin", x)


def cos(x: Scalar) -> Scalar:
    """Cosine of an angle [rad]."""
    return _call("cos", x)


def sqrt(x: Scalar) -> Scalar:
    """Square root."""
    return _call("sqrt", x)


def minimum(a: Scalar, b: Scalar) -> Scalar:
    """The smaller of two."""
    return _call("min", a, b)


def maximum(a: Scalar, b: Scalar) -> Scalar:
    """The larger of two."""
    return _call("max", a, b)


def where_positive(condition: Scalar, yes: Scalar, no: Scalar) -> Scalar:
    """`yes` where `condition` is above 0, else `no`."""
    if isinstance(condition, Symbol):
        return condition.recording.node("where", condition, yes, no)
    return yes if condition > 0.0 else no


def total(terms: Iterable[Scalar]) -> Scalar:
    """Sum of the terms; 0 for none."""
    result: Scalar = 0.0
    for term in terms:
        result = term + result
    return result
