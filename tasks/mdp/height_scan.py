"""Height scan: how far the ground is below the base at a grid of places around it.

The critic has the true one. A policy has it as a sensor, from a lidar or a depth camera and a map, with the errors that
sensors have (`robolearn.tasks.mdp.sensing`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache

import torch

from robolearn.envs.state import State, Tensor
from robolearn.errors import ConfigError
from robolearn.tasks.mdp.context import Context
from robolearn.tasks.mdp.sensors import Sensor
from robolearn.tasks.mdp.terms import heading

NAME = "height_scan"
"""Name of the observation and of the sensor."""
MOST_PLACES = 10_000
"""Most places of a scan: each is a column of the observations of every environment."""


@dataclass(frozen=True)
class HeightScan:
    """The places of a scan: a grid in the heading's axes, centred below the base."""

    length: float = field(default=1.6, metadata={"min": 0.0, "max": 20.0})
    """Length of the grid, forwards and backwards together [m]."""
    width: float = field(default=1.0, metadata={"min": 0.0, "max": 20.0})
    """Width of the grid [m]."""
    spacing: float = field(default=0.2, metadata={"min": 0.01, "max": 10.0})
    """Distance of two places [m]."""

    def __post_init__(self) -> None:
        """Raise ConfigError for more places than a robot or a network could do with."""
        along, across = self.shape
        if along * across > MOST_PLACES:
            raise ConfigError(
                f"height_scan.spacing={self.spacing:g} makes {along} x {across} places; use a larger spacing, or a "
                f"smaller length or width: there may be {MOST_PLACES}"
            )

    @property
    def shape(self) -> tuple[int, int]:
        """Number of places along and across."""
        return tuple(int(side / self.spacing + 1e-6) + 1 for side in (self.length, self.width))  # type: ignore[return-value]

    @property
    def places(self) -> list[tuple[float, float]]:
        """The places, forwards and to the left of the base [m]: the rearmost row first, each from right to left."""
        along, across = self.shape
        return [
            ((i - (along - 1) / 2) * self.spacing, (j - (across - 1) / 2) * self.spacing)
            for i in range(along)
            for j in range(across)
        ]

    @property
    def mirrored(self) -> tuple[int, ...]:
        """For each place, the number of the one on the other side of the robot."""
        along, across = self.shape
        return tuple(i * across + across - 1 - j for i in range(along) for j in range(across))

    def points(self, device: torch.device) -> Tensor:
        """The places (K, 2) on a device. They are sent there once: a copy in each step would make the host wait, and
        keep the step out of its CUDA graph."""
        return _sent(self, device)


@cache  # never dropped: a CUDA graph may have its address
def _sent(scan: HeightScan, device: torch.device) -> Tensor:
    with torch.inference_mode(False):
        return torch.tensor(scan.places, dtype=torch.float32, device=device)


def depths(state: State, points: Tensor, ground: Callable[[Tensor], Tensor]) -> Tensor:
    """How deep the ground is below the base at each of the `points` (K, 2), (N, K) [m]; `ground`: `Context.ground`."""
    place = state.robot.base_pos
    ahead = heading(state.robot.base_quat)
    left = torch.stack((-ahead[:, 1], ahead[:, 0]), dim=1)
    xy = place[:, None, :2] + points[:, :1] * ahead[:, None] + points[:, 1:] * left[:, None]
    return place[:, 2:] - ground(xy)


def true_scan(state: State, ctx: Context, scan: HeightScan) -> Tensor:
    """The scan (N, K) [m]."""
    return depths(state, scan.points(state.robot.base_pos.device), ctx.ground)


def scan_sensor(scan: HeightScan, ground: Callable[[State, Tensor], Tensor]) -> Sensor:
    """The scan as a sensor that the robot has to provide, from its own map of the ground. `ground`: a State and places
    (N, K, 2) to heights (N, K) [m]."""
    along, across = scan.shape
    return Sensor(
        NAME,
        f"m, how deep the ground is below the base at {along} x {across} places {scan.spacing:g} m apart, from the "
        "rearmost row on and in each from right to left",
        "origin of the base, x along its heading, z up",
        compute=lambda state: depths(
            state, scan.points(state.robot.base_pos.device), lambda xy: ground(state, xy)
        ),
        of_map=True,
    )
