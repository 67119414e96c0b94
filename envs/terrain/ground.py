"""Ground: the height of a terrain's surface at any place, in torch."""

from __future__ import annotations

import torch

from robolearn.envs.terrain.heights import Heights

Tensor = torch.Tensor


class Ground:
    """The surface between the samples of a height field, as MuJoCo has it: two triangles between four samples, split
    from the sample with the smallest x and y to the one with the largest.

    Lookups are gathers of fixed shapes, without a transfer to the host.
    """

    def __init__(self, heights: Heights, device: torch.device) -> None:
        self.heights = heights
        self._rows, self._columns = heights.z.shape
        self._z, self._resolution = torch.tensor(heights.z, device=device).flatten(), heights.resolution

    @classmethod
    def of(cls, heights: Heights, device: torch.device) -> Ground:
        """The surface of these heights on a device, made once and kept as long as they are: a CUDA graph reads the
        memory of a surface that was made before it."""
        made: dict[torch.device, Ground] = heights.surfaces
        if device not in made:
            made[device] = cls(heights, device)
        return made[device]

    def height(self, xy: Tensor, origin: Tensor) -> Tensor:
        """Height (N, ...) of the surface [m] at the places `xy` (N, ..., 2) [m], both relative to `origin` (N, 3), the
        environments' origins in the world [m]. Beyond the ends of the grid it is that of the nearest end."""
        # An origin may be 100 m away, where float32 has 8 micrometres: its part is computed in float64.
        start = origin[:, :2].double() / self._resolution
        whole = start.round()
        start, whole = (start - whole).to(xy), whole.long()
        shape = (-1, *[1] * (xy.dim() - 2))
        u = xy[..., 0] / self._resolution + start[:, 0].view(shape)
        v = xy[..., 1] / self._resolution + start[:, 1].view(shape)
        left, fu = _split(u, whole[:, 0].view(shape) + (self._columns - 1) // 2, self._columns)
        low, fv = _split(v, whole[:, 1].view(shape) + (self._rows - 1) // 2, self._rows)
        first = low * self._columns + left
        # Below the diagonal the triangle's third corner is along x from the first, above it along y.
        third = first + torch.where(fu > fv, 1, self._columns)
        near, far, side = self._z[first], self._z[first + self._columns + 1], self._z[third]
        large, small = torch.maximum(fu, fv), torch.minimum(fu, fv)
        return near + large * (side - near) + small * (far - side) - origin[:, 2].view(shape)


def _split(place: Tensor, first: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The sample before a place, counted in samples from sample `first`, and how far beyond it, 0 to 1; a place outside
    of the `count` samples is moved to the nearest end."""
    floor = place.floor()
    index = floor.long() + first
    kept = index.clamp(0, count - 2)
    part = place - floor + (index - kept)
    return kept, part.clamp(0.0, 1.0)
