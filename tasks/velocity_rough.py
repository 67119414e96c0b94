"""Any robot on legs follows velocity commands on uneven ground: slopes, stairs, blocks and bumps.

The task `velocity` on a terrain. The policy is blind, unless `scan` is on: it learns of the ground by its feet alone.
The critic always has a height scan.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import torch

from robolearn.envs.robot import Robot
from robolearn.envs.scene import Scene
from robolearn.envs.state import State, Tensor
from robolearn.envs.terrain import Ground, Terrain
from robolearn.tasks.mdp import height_scan as scans
from robolearn.tasks.mdp import terms
from robolearn.tasks.mdp.commands import VelocityCommands
from robolearn.tasks.mdp.context import Context, Random, RobotConstants
from robolearn.tasks.mdp.height_scan import NO_ERRORS, HeightScan, ScanErrors
from robolearn.tasks.mdp.observations import Observation
from robolearn.tasks.mdp.sensors import Sensor
from robolearn.tasks.mdp.stated import Level, level
from robolearn.tasks.mdp.task import Ratio
from robolearn.tasks.velocity import Velocity

ASKED = "asked"
"""Task state: where the robot would be, had it followed its commands (N, 2) [m]."""
LEVEL = "level_terrain"
"""Per-env state in a training: the row of the terrain."""


@dataclass
class VelocityRough(Velocity):
    """A robot on legs follows velocity commands over uneven ground."""

    terrain: Terrain = field(default_factory=Terrain)
    """The ground: a grid of tiles by difficulty and kind."""
    scan: bool = False
    """Whether the policy has a height scan; the robot then has to provide it. Without, it is blind."""
    height_scan: HeightScan = field(default_factory=HeightScan)
    """The places of the height scan, the critic's and the policy's."""
    scan_errors: ScanErrors = field(default_factory=ScanErrors)
    """Errors of the policy's height scan."""
    commands: VelocityCommands | None = field(
        default_factory=lambda: VelocityCommands(
            forward=(0.0, 0.8), sideways=(-0.2, 0.2), standing=0.1, heading=0.8, seconds=(6.0, 12.0)
        )
    )
    """What is asked of the robot, redrawn during an episode: mostly to go somewhere."""
    curricula: dict[str, Level] = field(
        default_factory=lambda: {
            "commands": level(Velocity.keeping_up, 1.0, rise=0.0, drop=0.0),
            "pushes": level(Velocity.staying_up, 0.0, rise=0.2, drop=1.2),
        }
    )
    """Function, first level and parameters of each curriculum; that of the terrain is `terrain_change`."""

    on_robot: ClassVar[dict[str, Any]] = {"scan_errors": NO_ERRORS}

    def scene(self, robot: Robot) -> Scene:
        """The robot on the terrain."""
        return replace(super().scene(robot), terrain=self.terrain)

    def items(self, group: str) -> list[Observation]:
        """Those of `velocity`; the critic has a height scan, and with `scan` the policy too."""
        found = super().items(group)
        if group == "critic":
            found.append(self._scan_item(lambda s, c: scans.true_scan(s, c, self.height_scan)))
        if group == "policy" and self.scan:
            found.append(self._scan_item(self._reading))
        return found

    def _scan_item(self, compute: Any) -> Observation:
        return Observation(
            scans.NAME, compute, "permuted", "m, depth of the ground", order=self.height_scan.mirrored
        )

    def _reading(self, state: State, ctx: Context) -> Tensor:
        """The policy's scan (N, K): on a robot what the sensor gives, in a training with its errors."""
        if scans.NAME in state.sensors:
            return state.sensors[scans.NAME]
        if not self.scan_errors.active:
            return scans.true_scan(state, ctx, self.height_scan)
        return scans.erring_scan(state, ctx, self.height_scan, self.scan_errors)

    def all_sensors(self) -> tuple[Sensor, ...]:
        """Those of every robot, and the height scan where the policy has it."""
        if not self.scan:
            return super().all_sensors()
        return (*super().all_sensors(), scans.scan_sensor(self.height_scan, self._ground))

    def _ground(self, state: State, xy: Tensor) -> Tensor:
        if state.origin is None:
            return torch.zeros_like(xy[..., 0])
        return Ground.of(self.terrain.heights, xy.device).height(xy, state.origin)

    def task_state(self, num_envs: int, robot: RobotConstants, random: Random) -> dict[str, Tensor]:
        """That of `velocity`, where the robot was asked to go, and the errors of the policy's scan."""
        state = super().task_state(num_envs, robot, random)
        state[ASKED] = torch.zeros(num_envs, 2, device=random.device)
        if self.scan and self.scan_errors.active:
            state |= scans.scan_start(self.height_scan, self.scan_errors, num_envs, random)
        return state

    def advance(self, state: State, ctx: Context) -> dict[str, Tensor]:
        """The same after one more control step."""
        ahead = terms.heading(state.robot.base_quat)
        left = torch.stack((-ahead[:, 1], ahead[:, 0]), dim=1)
        velocity = ctx.command[:, :1] * ahead + ctx.command[:, 1:2] * left
        new = {**super().advance(state, ctx), ASKED: ctx.task_state[ASKED] + ctx.dt * velocity}
        if scans.KEY in ctx.task_state:
            new |= scans.scan_advance(state, ctx, self.height_scan, self.scan_errors)
        return new

    def terrain_change(self, state: State, ctx: Context) -> Tensor:
        """Up where the robot has come further than half a tile from its origin; down where it has come less than half
        as far as its commands asked."""
        walked = state.robot.base_pos[:, :2].norm(dim=1)
        up = walked > self.terrain.size / 2
        down = walked < ctx.task_state[ASKED].norm(dim=1) / 2
        return up.float() - (down & ~up).float()

    def metrics(self, state: State, ctx: Context) -> Mapping[str, Tensor | Ratio]:
        """Those of `velocity`, and in a training the level of the terrain as a share of the mean row."""
        row = ctx.per_env_state.get(LEVEL)
        middle = max(0.5, (self.terrain.rows - 1) / 2)
        shown = {} if row is None else {LEVEL: row.clamp(max=self.terrain.rows - 1) / middle}
        return {**super().metrics(state, ctx), **shown}
