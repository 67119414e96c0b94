"""Height scan: how far the ground is below the base at a grid of places around it, and how a robot's own scan errs.

The critic has the true one. A policy has it as a sensor, from a lidar or a depth camera and a map; in a training its
readings have the errors of such a map.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch

from robolearn.envs.state import State, Tensor
from robolearn.tasks.mdp.context import Context, Random
from robolearn.tasks.mdp.sensors import Sensor
from robolearn.tasks.mdp.terms import heading

NAME = "height_scan"
"""Name of the observation and of the sensor."""
SHIFT, KEY, DELAY, PAST = "scan_shift", "scan_key", "scan_delay", "scan_past"
"""Task state of a scan with errors: how far the map is off (N, 3) [m], the key of its random numbers (N,), the delay of
the episode (N,) [control steps], and the last readings (N, D, K), the newest first."""


@dataclass(frozen=True)
class HeightScan:
    """The places of a scan: a grid in the heading's axes, centred below the base."""

    length: float = field(default=1.6, metadata={"min": 0.0, "max": 20.0})
    """Length of the grid, forwards and backwards together [m]."""
    width: float = field(default=1.0, metadata={"min": 0.0, "max": 20.0})
    """Width of the grid [m]."""
    spacing: float = field(default=0.2, metadata={"min": 0.01, "max": 10.0})
    """Distance of two places [m]."""

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

    def points(self, like: Tensor) -> Tensor:
        """The places (K, 2), on the device of a tensor."""
        return torch.tensor(self.places, device=like.device)


@dataclass(frozen=True)
class ScanErrors:
    """How the scan of a robot errs in a training."""

    noise: float = field(default=0.02, metadata={"min": 0.0, "max": 10.0})
    """Half-width of the uniform noise on each place, drawn once a step [m]."""
    dropout: float = field(default=0.02, metadata={"min": 0.0, "max": 1.0})
    """Share of the places that are lost in a step: they read the mean of the scan."""
    delay: tuple[int, int] = field(default=(0, 3), metadata={"min": 0, "max": 50})
    """Range of the age of a reading [control steps], drawn at each reset."""
    shift: float = field(default=0.05, metadata={"min": 0.0, "max": 10.0})
    """How far the map is off along x and y, at most, drawn at each reset [m]."""
    lift: float = field(default=0.02, metadata={"min": 0.0, "max": 10.0})
    """How far it is too high or too low, at most, drawn at each reset [m]."""

    @property
    def active(self) -> bool:
        """Whether there are any."""
        return any((self.noise, self.dropout, self.delay[1], self.shift, self.lift))


NO_ERRORS = ScanErrors(0.0, 0.0, (0, 0), 0.0, 0.0)


def depths(
    state: State, points: Tensor, ground: Callable[[Tensor], Tensor], shift: Tensor | None = None
) -> Tensor:
    """How deep the ground is below the base at each of the `points` (K, 2), (N, K) [m], of a map that is off by `shift`
    (N, 3) [m]; `ground` as `Context.ground`."""
    place = state.robot.base_pos if shift is None else state.robot.base_pos + shift
    ahead = heading(state.robot.base_quat)
    left = torch.stack((-ahead[:, 1], ahead[:, 0]), dim=1)
    xy = place[:, None, :2] + points[:, :1] * ahead[:, None] + points[:, 1:] * left[:, None]
    return place[:, 2:] - ground(xy)


def true_scan(state: State, ctx: Context, scan: HeightScan) -> Tensor:
    """The scan without errors (N, K) [m]."""
    return depths(state, _points(ctx, scan), ctx.ground)


def scan_start(scan: HeightScan, errors: ScanErrors, num_envs: int, random: Random) -> dict[str, Tensor]:
    """The task state of a scan with errors at the start of an episode."""
    low, high = errors.delay
    reach = (errors.shift, errors.shift, errors.lift)
    state = {
        SHIFT: random.uniform(tuple(-side for side in reach), reach, num_envs),
        KEY: (random.uniform(0.0, 1.0, num_envs) * 2.0**24).long(),
        DELAY: random.uniform(float(low), float(high + 1), num_envs).long().clamp(max=high),
    }
    places = len(scan.places)
    return state | ({PAST: torch.zeros(num_envs, high + 1, places, device=random.device)} if high else {})


def scan_advance(state: State, ctx: Context, scan: HeightScan, errors: ScanErrors) -> dict[str, Tensor]:
    """That task state after one more control step."""
    same = {name: ctx.task_state[name] for name in (SHIFT, KEY, DELAY)}
    if PAST not in ctx.task_state:
        return same
    now, past = _erring(state, ctx, scan, errors)[:, None], ctx.task_state[PAST]
    first = (ctx.episode_time < 1.5 * ctx.dt)[:, None, None]
    return {**same, PAST: torch.where(first, now, torch.cat((now, past[:, :-1]), dim=1))}


def erring_scan(state: State, ctx: Context, scan: HeightScan, errors: ScanErrors) -> Tensor:
    """The scan with its errors (N, K) [m]."""
    if PAST not in ctx.task_state:
        return _erring(state, ctx, scan, errors)
    past, delay = ctx.task_state[PAST], ctx.task_state[DELAY]
    arrived = past.gather(1, delay[:, None, None].expand(-1, 1, past.shape[2]))[:, 0]
    # Before the first step there are no past readings.
    return torch.where((ctx.episode_time < 0.5 * ctx.dt)[:, None], _erring(state, ctx, scan, errors), arrived)


def _erring(state: State, ctx: Context, scan: HeightScan, errors: ScanErrors) -> Tensor:
    """The scan of now with its errors, without delay."""
    depth = depths(state, _points(ctx, scan), ctx.ground, ctx.task_state[SHIFT])
    step = (ctx.episode_time / ctx.dt).round().long()
    places = torch.arange(depth.shape[1], device=depth.device)
    if errors.noise:
        depth = depth + errors.noise * (2 * _uniform(ctx.task_state[KEY], step, places) - 1)
    if errors.dropout:
        lost = _uniform(ctx.task_state[KEY] + 2**24, step, places) < errors.dropout
        depth = torch.where(lost, depth.mean(dim=1, keepdim=True), depth)
    return depth


def scan_sensor(scan: HeightScan, ground: Callable[[State, Tensor], Tensor]) -> Sensor:
    """The scan as a sensor that the robot has to provide, from its own map of the ground. `ground`: a State and places
    (N, K, 2) to heights (N, K) [m]."""
    along, across = scan.shape
    return Sensor(
        NAME,
        f"m, how deep the ground is below the base at {along} x {across} places {scan.spacing:g} m apart, from the "
        "rearmost row on and in each from right to left",
        "origin of the base, x along its heading, z up",
        compute=lambda state: depths(state, scan.points(state.robot.base_pos), lambda xy: ground(state, xy)),
    )


def _points(ctx: Context, scan: HeightScan) -> Tensor:
    """The places (K, 2), sent to the device once."""
    tables = ctx.robot.tables
    if (NAME, scan) not in tables:
        tables[NAME, scan] = scan.points(ctx.robot.home)
    return tables[NAME, scan]


def _uniform(key: Tensor, step: Tensor, places: Tensor) -> Tensor:
    """Uniform numbers from 0 to 1 (N, K) of a key (N,), a step (N,) and a place (K,), int64 each: a hash, which makes
    them a pure function (the finalizer of splitmix64, Steele et al., OOPSLA 2014, on wrapping integers)."""
    x = (key * 1_000_003 + step)[:, None] * 1_048_583 + places
    for shift, factor in ((30, -4658895280553007687), (27, -7723592293110705685)):
        x = (x ^ ((x >> shift) & ((1 << (64 - shift)) - 1))) * factor
    x = x ^ ((x >> 31) & ((1 << 33) - 1))
    return (x & (2**24 - 1)).float() / 2.0**24
