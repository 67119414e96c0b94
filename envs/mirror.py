"""Left and right: which joints and feet of a robot mirror one another, from their names or from where they are."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

_ENDS = "frhbm"
"""Which end of a robot a limb is at: front, rear, hind, back, middle."""
_SIDES = {
    "left": ("right", ""),
    "l": ("r", ""),
    **{f"{end}l": (f"{end}r", end) for end in _ENDS},
    **{f"l{end}": (f"r{end}", end) for end in _ENDS if end != "r"},
}
"""Words for the left side: the word for the right one, and what is left of both without a side (which end of it)."""
_OTHER = {a: (b, end) for left, (right, end) in _SIDES.items() for a, b in ((left, right), (right, left))}
_PARTS = re.compile(r"([_./ -]+)")
_CAMEL = re.compile(r"(?:(?<=[a-z0-9])|(?<![A-Za-z]))(?P<side>[Ll]eft|[Rr]ight|LEFT|RIGHT)(?![a-z])")
_RUN_TOGETHER = re.compile(r"\A(?P<side>[LR])(?=[A-Z][a-z])|\A(?P<word>left|right|Left|Right)(?=[A-Z_0-9])")


@dataclass(frozen=True)
class Mirror:
    """The robot's reflection across its sagittal (x-z) plane, given by names."""

    twins: Mapping[str, str] = field(hash=False)
    """The name on the other side of every joint and foot; those without a side are their own."""
    flip: tuple[str, ...]
    """Joints whose sign changes: those that turn about x or z, or slide along y, in the same sense on both sides."""
    bases: Mapping[str, str] = field(hash=False)
    """Every name that has a side, without it."""
    stated: Mapping[str, Any] | None = field(default=None, hash=False, compare=False)
    """left, right and flip as a robot.yaml states them; None where the mirror was derived."""

    def base(self, name: str) -> str:
        """The name without its side."""
        return self.bases.get(name, name)

    def twin(self, name: str) -> str:
        """The name on the other side; a name without a side is its own twin."""
        if name in self.twins:
            return self.twins[name]
        found = other_side(name)  # a body's, for example
        return found[0] if found else name

    def lone(self, joints: Sequence[str], feet: Sequence[str]) -> str | None:
        """The first of these joints, or of the feet, whose twin is not among them; None where all have theirs."""
        for names in (joints, feet):
            for name in names:
                if self.twin(name) not in names:
                    return name
        return None

    @property
    def pairs(self) -> list[tuple[str, str]]:
        """Every pair of twins, once."""
        return sorted({(min(a, b), max(a, b)) for a, b in self.twins.items() if a != b})

    def flips(self, name: str) -> bool:
        """Whether the sign of a joint changes."""
        return name in self.flip

    @classmethod
    def by_prefix(
        cls, left: Sequence[str], right: Sequence[str], flip: Iterable[str], names: Iterable[str]
    ) -> Mirror:
        """The mirror of names with prefixes such as ["FL_", "RL_"] and ["FR_", "RR_"]; `flip` has joints without their
        prefix."""
        names = tuple(names)
        twins, bases = {name: name for name in names}, {}
        for name in names:
            for one, other in (*zip(left, right, strict=True), *zip(right, left, strict=True)):
                if name.startswith(one):
                    twins[name], bases[name] = other + name[len(one) :], name[len(one) :]
                    break
        stated = {"left": [*left], "right": [*right], "flip": [*flip]}
        flips = tuple(name for name in names if bases.get(name, name) in stated["flip"])
        return cls(twins, flips, bases, stated)


def other_side(name: str) -> tuple[str, str] | None:
    """(the name on the other side, the name without a side), by the field's ways to write one; None without a side.

    `left_knee`, `knee_l`, `FL_hip`, `LF_HAA`, `LeftKnee` and `LKnee` have a side.
    """
    parts = _PARTS.split(name)
    for i, part in enumerate(parts):
        if part.lower() in _OTHER:
            other, end = _OTHER[part.lower()]
            rest = [*parts[:i], _like(end, part), *parts[i + 1 :]]
            return "".join([*parts[:i], _like(other, part), *parts[i + 1 :]]), _joined(rest)
    for pattern in (_CAMEL, _RUN_TOGETHER):
        if match := pattern.search(name):
            start, end_of_side = match.span()
            side = match.group(0)
            swapped = _like(_OTHER[side.lower()][0], side)
            return name[:start] + swapped + name[end_of_side:], _joined([name[:start], name[end_of_side:]])
    return None


def without_side(name: str) -> str:
    """The name without the part that says where a limb is: `FL_calf_joint` and `RR_calf_joint` are `calf_joint`."""
    parts = _PARTS.split(name)
    for i, part in enumerate(parts):
        if part.lower() in _OTHER:
            return _joined([*parts[:i], *parts[i + 1 :]])
    found = other_side(name)
    return found[1] if found else name


def is_left(name: str) -> bool:
    """Whether a name with a side is of the left one."""
    for part in _PARTS.split(name):
        if part.lower() in _OTHER:
            return part.lower() in _SIDES
    match = _CAMEL.search(name) or _RUN_TOGETHER.search(name)
    return match is not None and match.group(0).lower() in _SIDES


def _like(word: str, model: str) -> str:
    """`word` in the letter case of `model`."""
    if model.isupper():
        return word.upper()
    return word.capitalize() if model[0].isupper() else word


def _joined(parts: Sequence[str]) -> str:
    """What is left of a name, without doubled or dangling separators."""
    text = re.sub(r"([_./ -])[_./ -]+", r"\1", "".join(parts))
    return text.strip("_./ -")


def by_names(names: Sequence[str]) -> tuple[dict[str, str], dict[str, str]] | None:
    """(twins, names without side) of a robot's joints or feet; None where no name has a side, or one lacks its twin."""
    twins, bases = {}, {}
    for name in names:
        found = other_side(name)
        if found is None:
            continue
        if found[0] not in names:
            return None
        twins[name], bases[name] = found
    return (twins, bases) if twins else None
