"""Terrain: what a scene says of its ground, and a user can set."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import cached_property

from robolearn.envs.terrain.heights import Heights
from robolearn.envs.terrain.kinds import KINDS
from robolearn.errors import ConfigError, did_you_mean, listing

MIXTURE = {
    "flat": 0.05,
    "rough": 0.1,
    "slope_up": 0.25,
    "slope_down": 0.05,
    "stairs_up": 0.35,
    "stairs_down": 0.1,
    "boxes": 0.1,
}
"""Shares of the columns where none are stated: most of what takes longest to learn, the way up."""
RANGES: dict[str, tuple[str, ...]] = {
    "flat": (),
    "rough": ("roughness", "bump_width"),
    "slope_up": ("slope",),
    "slope_down": ("slope",),
    "stairs_up": ("step_height", "step_width"),
    "stairs_down": ("step_height", "step_width"),
    "boxes": ("box_height", "box_width"),
    "gaps": ("gap", "ledge", "pit_depth"),
    "stepping_stones": ("stone_width", "gap", "stone_offset", "pit_depth"),
}
"""What each kind is made from, to be stated. A pair is of the easiest and of the hardest row, a number of all rows."""
LAID_OUT = ("bump_width", "step_width", "box_width", "gap", "ledge", "stone_width")
"""Those of them that are laid out in samples."""
MOST_SAMPLES = 40_000_000
"""Largest number of samples of a terrain; more would take gigabytes."""
_LENGTH = {"min": 0.01, "max": 100.0}
_HEIGHT = {"min": 0.0, "max": 10.0}


@dataclass(frozen=True)
class Terrain:
    """A grid of square tiles: row 0 is the easiest and the last row the hardest; each column is of one kind.

    Ranges are of the easiest and the hardest row. The same settings give the same terrain.
    """

    rows: int = field(default=10, metadata={"min": 1, "max": 100})
    """Number of rows, the levels of difficulty, along x."""
    columns: int = field(default=20, metadata={"min": 1, "max": 200})
    """Number of columns, along y."""
    size: float = field(default=8.0, metadata={"min": 1.0, "max": 100.0})
    """Edge of a tile [m]."""
    kinds: dict[str, float] = field(
        default_factory=dict,
        metadata={"keys": tuple(KINDS), "example": "{stairs_up: 1}", "min": 0.0, "max": 1e6},
    )
    """Shares of the columns by kind; none stated: a mixture of all that need no pits, of which few columns leave some
    out."""
    seed: int = field(default=0, metadata={"min": 0})
    """Of the random numbers that tiles are made with."""
    resolution: float = field(default=0.1, metadata={"min": 0.01, "max": 1.0})
    """Distance of two samples of the height field [m]: vertical faces are as wide as this. Widths are multiples of it;
    those that change from row to row (`gap`, `stone_width`) are rounded to the nearest one."""
    border: float = field(default=4.0, metadata={"min": 1.0, "max": 100.0})
    """Width of the flat ground around the grid, at least [m]."""
    platform: float = field(default=2.0, metadata=_LENGTH)
    """Edge of the flat square in the middle of a tile, where robots start [m]."""
    edge: float = field(default=0.2, metadata={"min": 0.0, "max": 100.0})
    """Width of the flat edge of a tile [m]."""
    ends: bool = True
    """Whether an episode times out where the robot leaves its tile. Otherwise it goes on over other tiles, and times
    out in the border."""
    difficulty: tuple[float, float] = field(default=(0.0, 1.0), metadata={"min": 0.0, "max": 1.0})
    """Difficulty of the first and of the last row; a single row has that of the last."""
    start_level: int = field(default=0, metadata={"min": 0})
    """Highest row that environments start a training in."""
    roughness: tuple[float, float] = field(default=(0.01, 0.08), metadata=_HEIGHT)
    """`rough`: largest height of bumps [m]."""
    bump_width: float = field(default=0.3, metadata=_LENGTH)
    """`rough`: distance of two bumps [m]."""
    slope: tuple[float, float] = field(default=(2.0, 25.0), metadata={"min": 0.0, "max": 60.0})
    """`slope_up`, `slope_down`: angle [degrees]."""
    step_height: tuple[float, float] = field(default=(0.02, 0.15), metadata=_HEIGHT)
    """`stairs_up`, `stairs_down`: height of a step [m]."""
    step_width: float = field(default=0.3, metadata=_LENGTH)
    """`stairs_up`, `stairs_down`: depth of a step [m]."""
    box_height: tuple[float, float] = field(default=(0.01, 0.08), metadata=_HEIGHT)
    """`boxes`: largest height of a block above and below 0 [m]."""
    box_width: float = field(default=0.5, metadata=_LENGTH)
    """`boxes`: edge of a block [m]."""
    gap: tuple[float, float] = field(default=(0.1, 0.4), metadata={"min": 0.0, "max": 10.0})
    """`gaps`, `stepping_stones`: width of a gap [m]; 0: none."""
    ledge: float = field(default=0.7, metadata=_LENGTH)
    """`gaps`: level ground between two gaps [m]."""
    stone_width: tuple[float, float] = field(default=(0.9, 0.4), metadata={"min": 0.05, "max": 10.0})
    """`stepping_stones`: edge of a stone [m]."""
    stone_offset: tuple[float, float] = field(default=(0.0, 0.05), metadata=_HEIGHT)
    """`stepping_stones`: how far stones are higher or lower, at most [m]."""
    pit_depth: float = field(default=0.6, metadata=_HEIGHT)
    """`gaps`, `stepping_stones`: depth of the pits [m]."""

    def __post_init__(self) -> None:
        """Raise ConfigError for numbers that make no terrain."""
        for name in self.kinds:
            if name not in KINDS:
                raise ConfigError(
                    f"terrain.kinds: there is no kind {name!r}{did_you_mean(name, KINDS)} (valid: {listing(KINDS)})"
                )
            share = self.kinds[name]
            if not 0 <= share < 1e6:
                raise ConfigError(f"terrain.kinds.{name}={share:g}; a share is 0 or more")
        if self.kinds and not sum(self.kinds.values()) > 0:
            raise ConfigError(f"terrain.kinds: all shares are 0; give one of {listing(KINDS)} a share")
        half = self.size / 2 / self.resolution
        if abs(half - round(half)) > 1e-6:
            raise ConfigError(
                f"terrain.size={self.size:g} is no even multiple of terrain.resolution={self.resolution:g}; use "
                f"{2 * self.resolution * max(1, round(half)):g}"
            )
        if self.platform + 2 * self.edge > self.size - 2 * self.resolution:
            raise ConfigError(
                f"terrain.size={self.size:g} has no room beside platform={self.platform:g} and two flat edges of "
                f"{self.edge:g} m; use a larger size"
            )
        self._check_kinds()
        if self.start_level >= self.rows:
            raise ConfigError(
                f"terrain.start_level={self.start_level}: the last of {self.rows} rows is {self.rows - 1}"
            )
        if math.prod(self.shape) > MOST_SAMPLES:
            raise ConfigError(
                f"terrain: {self.shape[0]} x {self.shape[1]} samples are too many; use fewer rows or columns, or a "
                "larger resolution"
            )

    def _check_kinds(self) -> None:
        """Raise ConfigError where the kinds would not be as stated: a width that is no whole number of samples, a part
        of which a tile has no room for a single one, or a kind without a column."""
        made = set(self.kind_of)
        if left := [name for name in self.shares if self.kinds and name not in made]:
            more = next(
                (n for n in range(self.columns, 201) if set(self._kinds_of(n)) == set(self.shares)), None
            )
            fix = f"use task.terrain.columns={more}" if more else "give it a larger share"
            raise ConfigError(
                f"terrain.kinds.{left[0]}={self.kinds[left[0]]:g} is the share of none of {self.columns} columns; "
                f"{fix}, or 0"
            )
        used = {name for kind in made for name in RANGES.get(kind, ()) if name in LAID_OUT}
        wrong = {}
        for name in ("platform", "edge", *sorted(used)):
            value, of = getattr(self, name), 2 if name == "platform" else 1
            first, last = value if isinstance(value, tuple) else (value, value)
            samples = first / self.resolution / of
            # One that changes from row to row is rounded.
            if first == last and abs(samples - round(samples)) > 1e-6:
                nearest = f"{self.resolution * of * max(1, round(samples)):g}"
                wrong[name] = first, nearest if value == first else f"[{nearest},{nearest}]"
        if wrong:
            name, (width, _) = next(iter(wrong.items()))
            fix = " ".join(f"task.terrain.{each}={nearest}" for each, (_, nearest) in wrong.items())
            raise ConfigError(
                f"terrain.{name}={width:g} is no multiple of terrain.resolution={self.resolution:g} (platform: an even "
                f"one); use {fix}"
            )
        room = self.outer - self.inner
        beside = f"beside platform={self.platform:g} and two flat edges of {self.edge:g} m; use a larger size"
        for kind in sorted(made & {"stairs_up", "stairs_down"}):
            if room < self.count(self.step_width):
                raise ConfigError(
                    f"terrain.size={self.size:g} has no room for a step of {kind}, "
                    f"terrain.step_width={self.step_width:g}, {beside}"
                )
        rows = [self.difficulty_of(row) for row in range(self.rows)]
        for hard in rows if "stepping_stones" in made else ():
            gap, stone = (self.count(low + (high - low) * hard) for low, high in (self.gap, self.stone_width))
            places = range(self.inner + 1, self.outer)
            if gap and not any((place + stone // 2) % (gap + stone) >= stone for place in places):
                raise ConfigError(
                    f"terrain.size={self.size:g} has no room for a gap between stones of stepping_stones, "
                    f"terrain.stone_width={list(self.stone_width)}, {beside}"
                )
        widths = [self.gap[0] + (self.gap[1] - self.gap[0]) * hard for hard in rows]
        gap = max(map(self.count, widths))
        if "gaps" in made and gap and room - 1 < self.count(self.ledge) + gap:
            raise ConfigError(
                f"terrain.size={self.size:g} has no room for a gap, terrain.ledge={self.ledge:g} and then "
                f"gap={max(widths):g}, {beside}"
            )

    def count(self, length: float) -> int:
        """A length [m] in samples, at least one; none of 0."""
        samples = length / self.resolution
        return max(1, round(samples)) if samples > 1e-6 else 0

    @property
    def inner(self) -> int:
        """Samples from the middle of a tile to the edge of the platform."""
        return round(self.platform / 2 / self.resolution)

    @property
    def outer(self) -> int:
        """Samples from the middle of a tile to its flat edge."""
        return self.samples // 2 - round(self.edge / self.resolution)

    @property
    def samples(self) -> int:
        """S, samples from one edge of a tile to the other."""
        return 2 * round(self.size / 2 / self.resolution)

    @property
    def margin(self) -> int:
        """Samples of the border."""
        return math.ceil(self.border / self.resolution - 1e-6)

    @property
    def shape(self) -> tuple[int, int]:
        """Samples along y and along x."""
        s, m = self.samples, self.margin
        return self.columns * s + 2 * m + 1, self.rows * s + 2 * m + 1

    @property
    def shares(self) -> dict[str, float]:
        """The shares of the kinds that have one."""
        return {name: share for name, share in (self.kinds or MIXTURE).items() if share > 0}

    def stated(self) -> dict[str, dict[str, float | list[float]]]:
        """Of each kind: its share of the columns, and what it is made from [m, degrees of slopes], of the first and of
        the last row; widths that change are those that were made, in whole samples."""
        first, last = self.difficulty_of(0), self.difficulty_of(self.rows - 1)
        out: dict[str, dict[str, float | list[float]]] = {}
        for kind in dict.fromkeys(self.kind_of):
            entry = out[kind] = {"share": round(self.kind_of.count(kind) / self.columns, 4)}
            for name in RANGES.get(kind, ()):
                value = getattr(self, name)
                if isinstance(value, tuple):
                    low, high = value
                    ends = [low + (high - low) * hard for hard in (first, last)]
                    if name in LAID_OUT:
                        ends = [self.count(width) * self.resolution for width in ends]
                    entry[name] = [round(end, 6) for end in ends]
                else:
                    entry[name] = value
        return out

    @property
    def flat(self) -> bool:
        """Whether it is level ground and nothing else."""
        return set(self.shares) == {"flat"}

    @property
    def kind_of(self) -> tuple[str, ...]:
        """The kind of each column: kinds follow one another, each as many columns as its share says."""
        return self._kinds_of(self.columns)

    def _kinds_of(self, columns: int) -> tuple[str, ...]:
        """The same for another number of columns."""
        total, ends, passed = sum(self.shares.values()), [], 0.0
        for share in self.shares.values():
            passed += share
            ends.append(passed / total)
        names = list(self.shares)
        middles = [(column + 0.5) / columns for column in range(columns)]
        return tuple(names[next(i for i, end in enumerate(ends) if m < end + 1e-9)] for m in middles)

    def difficulty_of(self, row: int) -> float:
        """The difficulty of a row, 0 to 1."""
        low, high = self.difficulty
        return high if self.rows == 1 else low + (high - low) * row / (self.rows - 1)

    @cached_property
    def heights(self) -> Heights:
        """The heights of all of it, made when first asked for."""
        return Heights.of(self)
