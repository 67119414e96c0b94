"""The part of a terrain around a robot, for drawing: a whole terrain has a million triangles out of sight."""

from __future__ import annotations

from typing import Any

import numpy as np

from robolearn.envs.terrain import Heights

HALF = 12.0
"""Half of the edge of the square that is drawn [m]."""
STEP = 4.0
"""By how much it moves at once [m]: a whole number of squares of the floor's pattern, so that where the resolution
divides it the pattern stays."""


class Window:
    """The height field "floor" of an MjModel, cut to a square that follows a place. Only what is drawn changes."""

    def __init__(self, model: Any, heights: Heights) -> None:
        """`model` is compiled with all `heights`."""
        self._model, self._heights = model, heights
        rows, columns = heights.unit.shape
        edge = 2 * round(HALF / heights.resolution) + 1
        self._shape = min(rows, edge), min(columns, edge)
        self._geom, self._corner = model.geom("floor").id, (-1, -1)
        # A model that was compiled with a floor at height 0 takes its body's position for it.
        model.geom_sameframe[self._geom] = 0
        model.hfield_nrow[0], model.hfield_ncol[0] = self._shape
        model.hfield_size[0, :2] = [(count - 1) * heights.resolution / 2 for count in self._shape[::-1]]
        self.follow(np.zeros(2))

    def follow(self, place: np.ndarray) -> bool:
        """Move the square to around `place` (x, y) in the world [m]; returns whether it has moved."""
        heights, model = self._heights, self._model
        if not np.isfinite(place).all():  # of a robot that has diverged
            return False
        step = max(1, round(STEP / heights.resolution))
        corner, middle = [], []
        # y goes with the rows and x with the columns.
        for at, whole, count in zip(place[1::-1], heights.unit.shape, self._shape, strict=True):
            sample = round(float(at) / heights.resolution) + whole // 2 - count // 2
            first = min(max(step * round(sample / step), 0), whole - count)
            corner.append(first)
            middle.append((first + (count - whole) / 2) * heights.resolution)
        if tuple(corner) == self._corner:
            return False
        self._corner = (corner[0], corner[1])
        rows, columns = (
            slice(first, first + count) for first, count in zip(corner, self._shape, strict=True)
        )
        part = heights.unit[rows, columns]
        model.hfield_data[: part.size] = part.flatten()
        model.geom_pos[self._geom, :2] = middle[::-1]
        return True
