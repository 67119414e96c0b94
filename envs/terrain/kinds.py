"""The kinds of tiles: each a function of a Tile, its settings and random numbers to heights.

A tile is a square of (S + 1, S + 1) samples. Its middle is a flat platform, on which robots start, and its edge is flat
at height 0, so that tiles of every kind fit together. Settings of a kind are ranges: the first value at the lowest
difficulty, the second at the highest.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from robolearn.envs.terrain.settings import Terrain


@dataclass(frozen=True)
class Tile:
    """One tile: where its parts are, in samples, and how hard it is."""

    settings: Terrain
    difficulty: float
    """0 to 1."""
    samples: int
    """S, the number of samples from one edge to the other; even."""
    inner: int
    """Samples from the middle to the edge of the platform."""
    outer: int
    """Samples from the middle to the flat edge of the tile."""

    @property
    def distance(self) -> np.ndarray:
        """(S + 1, S + 1) samples between each sample and the middle, along x or y, whichever are more: squares around
        the middle have one value."""
        away = np.abs(np.arange(self.samples + 1) - self.samples // 2)
        return np.maximum(away[:, None], away[None, :])

    @property
    def between(self) -> np.ndarray:
        """(S + 1, S + 1) bool: outside of the platform and inside of the flat edge."""
        return (self.distance > self.inner) & (self.distance < self.outer)

    def at(self, ends: tuple[float, float]) -> float:
        """A setting at this difficulty: between its ends."""
        return ends[0] + (ends[1] - ends[0]) * self.difficulty

    def count(self, length: float) -> int:
        """A length [m] in samples, at least one; none of 0."""
        return self.settings.count(length)


Kind = Callable[[Tile, np.random.Generator], np.ndarray]
"""(tile, random numbers) -> heights (S + 1, S + 1) [m], 0 at the edge; the first index along y, the second along x."""


def flat(tile: Tile, random: np.random.Generator) -> np.ndarray:
    """Level ground."""
    return np.zeros((tile.samples + 1, tile.samples + 1))


def rough(tile: Tile, random: np.random.Generator) -> np.ndarray:
    """Uneven ground: heights from 0 to `roughness`, drawn every `bump_width` and interpolated."""
    step = tile.count(tile.settings.bump_width)
    knots = tile.samples // step + 2
    drawn = random.uniform(0.0, tile.at(tile.settings.roughness), (knots, knots))
    place = np.arange(tile.samples + 1) / step
    low = place.astype(int)
    part = place - low
    along = drawn[:, low] * (1 - part) + drawn[:, low + 1] * part
    return np.where(tile.between, along[low] * (1 - part)[:, None] + along[low + 1] * part[:, None], 0.0)


def slope_up(tile: Tile, random: np.random.Generator) -> np.ndarray:
    """A pit with sloping sides; robots start at its bottom and walk up at the angle `slope`."""
    return -slope_down(tile, random)


def slope_down(tile: Tile, random: np.random.Generator) -> np.ndarray:
    """A hill with sloping sides; robots start on top and walk down at the angle `slope`."""
    below = np.clip(tile.outer - tile.distance, 0, tile.outer - tile.inner)
    return below * tile.settings.resolution * np.tan(np.radians(tile.at(tile.settings.slope)))


def stairs_up(tile: Tile, random: np.random.Generator) -> np.ndarray:
    """A pit with stairs; robots start at its bottom and walk up steps of `step_height`, each `step_width` deep."""
    return -stairs_down(tile, random)


def stairs_down(tile: Tile, random: np.random.Generator) -> np.ndarray:
    """A pyramid of stairs; robots start on top and walk down steps of `step_height`, each `step_width` deep."""
    width = tile.count(tile.settings.step_width)
    steps = (tile.outer - tile.inner) // width
    taken = np.clip(np.ceil((tile.distance - tile.inner) / width), 0, steps)
    return (steps - taken) * tile.at(tile.settings.step_height)


def boxes(tile: Tile, random: np.random.Generator) -> np.ndarray:
    """Blocks side by side, `box_width` wide, with tops from -`box_height` to +`box_height`."""
    width = tile.count(tile.settings.box_width)
    count = tile.samples // width + 1
    height = tile.at(tile.settings.box_height)
    each = np.arange(tile.samples + 1) // width
    tops = random.uniform(-height, height, (count, count))
    return np.where(tile.between, tops[each[:, None], each[None, :]], 0.0)


def gaps(tile: Tile, random: np.random.Generator) -> np.ndarray:
    """Trenches around the platform, `gap` wide, with `ledge` of level ground between them."""
    gap = tile.count(tile.at(tile.settings.gap))
    ledge = tile.count(tile.settings.ledge)
    inside = (tile.distance - tile.inner - 1) % (gap + ledge) >= ledge
    return np.where(tile.between & inside, -tile.settings.pit_depth, 0.0)


def stepping_stones(tile: Tile, random: np.random.Generator) -> np.ndarray:
    """Square stones in a pit, `stone_width` wide, with `gap` between them, up to `stone_offset` higher or lower."""
    gap, stone = tile.count(tile.at(tile.settings.gap)), tile.count(tile.at(tile.settings.stone_width))
    period = gap + stone
    # Stones lie symmetrically about the middle, where the platform is.
    place = np.arange(tile.samples + 1) - tile.samples // 2 + stone // 2
    each, within = place // period, place % period < stone
    offset = tile.at(tile.settings.stone_offset)
    tops = random.uniform(-offset, offset, (each.max() - each.min() + 1,) * 2)
    index = each - each.min()
    height = np.where(
        within[:, None] & within[None, :], tops[index[:, None], index[None, :]], -tile.settings.pit_depth
    )
    return np.where(tile.between, height, 0.0)


KINDS: dict[str, Kind] = {
    "flat": flat,
    "rough": rough,
    "slope_up": slope_up,
    "slope_down": slope_down,
    "stairs_up": stairs_up,
    "stairs_down": stairs_down,
    "boxes": boxes,
    "gaps": gaps,
    "stepping_stones": stepping_stones,
}
"""The kinds by name."""
