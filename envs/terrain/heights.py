"""Heights: all tiles of a terrain as one grid of heights, and where each tile's robots start."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from robolearn.envs.terrain.kinds import KINDS, Tile

if TYPE_CHECKING:
    from robolearn.envs.terrain.settings import Terrain

START = 0.3
"""Half of the edge of the square in the middle of a tile whose highest point is the origin's height [m]."""


@dataclass(frozen=True, eq=False)
class Heights:
    """A grid of heights, centred on the world's origin, as MuJoCo's height fields are stored."""

    unit: np.ndarray
    """(Y, X) float32 heights from 0, the lowest, to 1, the highest."""
    low: float
    """The lowest height [m]."""
    span: float
    """Highest minus lowest height [m]."""
    resolution: float
    """Distance of two samples [m]."""
    origins: np.ndarray
    """(rows, columns, 3) float32 the middle of each tile in the world [m]."""
    surfaces: dict[Any, Any] = field(default_factory=dict, repr=False)
    """By device, what `Ground.of` has made of them."""

    @property
    def z(self) -> np.ndarray:
        """(Y, X) float32 heights in the world [m]."""
        return (self.unit.astype(np.float64) * self.span + self.low).astype(np.float32)

    @property
    def reach(self) -> tuple[float, float]:
        """Distance of the ends of the grid from its middle along x and y [m]."""
        rows, columns = self.unit.shape
        return (columns - 1) * self.resolution / 2, (rows - 1) * self.resolution / 2

    @classmethod
    def of(cls, terrain: Terrain) -> Heights:
        """The heights of a terrain."""
        s, margin, resolution = terrain.samples, terrain.margin, terrain.resolution
        z = np.zeros(terrain.shape)
        origins = np.zeros((terrain.rows, terrain.columns, 3))
        near = max(1, round(START / resolution))
        inner, outer = terrain.inner, terrain.outer
        for column, kind in enumerate(terrain.kind_of):
            for row in range(terrain.rows):
                tile = Tile(terrain, terrain.difficulty_of(row), s, inner, outer)
                made = KINDS[kind](tile, np.random.default_rng([terrain.seed, row, column]))
                y, x = margin + column * s, margin + row * s
                z[y : y + s + 1, x : x + s + 1] = made
                middle = made[s // 2 - near : s // 2 + near + 1, s // 2 - near : s // 2 + near + 1]
                place = ((row + 0.5 - terrain.rows / 2) * s, (column + 0.5 - terrain.columns / 2) * s)
                origins[row, column] = (place[0] * resolution, place[1] * resolution, middle.max())
        low = float(z.min())
        span = float(z.max() - low) or 1.0
        return cls(((z - low) / span).astype(np.float32), low, span, resolution, origins.astype(np.float32))
