"""Any robot on legs follows velocity commands on uneven ground: slopes, stairs, blocks and bumps.

The task `velocity` on a terrain. The policy is blind, unless `scan` is on: it learns of the ground by its feet alone.
The critic always has a height scan.
"""

from __future__ import annotations

import copy
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
from robolearn.tasks.mdp.commands import Pushes, VelocityCommands
from robolearn.tasks.mdp.context import Context, Random, RobotConstants
from robolearn.tasks.mdp.gait_metrics import level_velocities
from robolearn.tasks.mdp.height_scan import HeightScan
from robolearn.tasks.mdp.observations import Observation
from robolearn.tasks.mdp.randomization import Randomized
from robolearn.tasks.mdp.sensing import Sensing, with_histories
from robolearn.tasks.mdp.sensors import Sensor
from robolearn.tasks.mdp.stated import Level, Reward, level, reward
from robolearn.tasks.mdp.task import Ratio
from robolearn.tasks.velocity import PUSHES, RANDOMIZE, Velocity

ASKED = "asked"
"""Task state: where the robot would be, had it followed its commands (N, 2) [m]."""
TURNED = "turned"
"""Task state: the turning rate less the commanded one, averaged over the last steps (N,) [rad/s]."""
TURNING_TIME = 0.5
"""Time constant of that average [s]: longer than a step, in which a robot swings to both sides."""
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
    scan_noise: float = field(default=0.02, metadata={"min": 0.0, "max": 10.0})
    """Half-width of the noise on the policy's height scan where `noise.height_scan` is not stated [m]."""
    look_ahead: float = field(default=0.35, metadata={"min": 0.0, "max": 2.0, "neutral": 0.0})
    """How far ahead of a moving foot, and behind it, the ground counts for its clearance, as a share of the base's
    height."""
    commands: VelocityCommands | None = field(
        default_factory=lambda: VelocityCommands(
            forward=(0.0, 0.8), sideways=(-0.2, 0.2), standing=0.1, heading=0.8, seconds=(6.0, 12.0)
        )
    )
    """What is asked of the robot, redrawn during an episode: mostly to go somewhere."""
    rewards: dict[str, Reward] = field(
        default_factory=lambda: {
            **Velocity().rewards,
            "heading_drift": reward(VelocityRough.heading_drift, -6.0),
        }
    )
    """Function, weight per second and parameters of each reward."""
    pushes: Pushes | None = field(default_factory=lambda: replace(PUSHES, seconds=(3.0, 6.0)))
    """Shoves, half as often as on flat ground: a robot that has to catch itself all the time learns no stairs."""
    randomize: dict[str, Randomized] = field(
        default_factory=lambda: {**RANDOMIZE, "friction": Randomized((0.5, 1.2))}
    )
    """Range from which each physical parameter is drawn at a reset. Friction of 0.3 holds nobody on a slope of more
    than 17 degrees: a robot that sees such a slope, and not its friction, may learn to keep off."""
    curricula: dict[str, Level] = field(
        default_factory=lambda: {
            "commands": level(Velocity.keeping_up, 1.0, rise=0.0, drop=0.0),
            "pushes": level(Velocity.staying_up, 0.0, rise=0.2, drop=1.2),
        }
    )
    """Function, first level and parameters of each curriculum; that of the terrain is `terrain_change`."""

    on_robot: ClassVar[dict[str, Any]] = {"scan_noise": 0.0}
    defaults: ClassVar[dict[str, Any]] = {
        **Velocity.defaults,
        "max_iterations": 5300,
        "learner.mean_bound": 10.0,
    }
    scan_sensing: ClassVar[Sensing] = Sensing(delay=(0, 3), dropout=0.02)
    """What else happens to it on its way where `sensing` states nothing."""
    map_errors: ClassVar[dict[str, tuple[float, float]]] = {
        "map_shift": (-0.05, 0.05),
        "map_lift": (-0.02, 0.02),
    }
    """Errors of its map where `randomize` states none [m]."""

    def validate(self) -> None:
        """Also that a blind policy has no height scan to be noisy."""
        super().validate()
        own = {item.name for item in self.items("policy")}
        if scans.NAME in self.noise and scans.NAME not in own:
            raise ValueError(f"noise.{scans.NAME}: the policy is blind; use task.scan=true, or leave it out")

    def filled(self) -> VelocityRough:
        """With `scan`, a copy that has the errors of the scan that are not stated, too."""
        if not self.scan:
            return self
        full = copy.copy(self)
        if self.scan_noise:
            full.noise = {scans.NAME: self.scan_noise, **self.noise}
        full.sensing = {scans.NAME: self.scan_sensing, **self.sensing}
        full.randomize = {**{k: Randomized(v) for k, v in self.map_errors.items()}, **self.randomize}
        return full

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
        # A map does not move between steps, and three of it are many numbers.
        return with_histories(found, group, {scans.NAME: 1, **self.history}, self.observations)

    def _observed(self) -> list[str]:
        """Those of `velocity`, and the height scan, whether or not it is on."""
        return [*super()._observed(), scans.NAME]

    def _scan_item(self, compute: Any) -> Observation:
        return Observation(
            scans.NAME, compute, "permuted", "m, depth of the ground", order=self.height_scan.mirrored
        )

    def _reading(self, state: State, ctx: Context) -> Tensor:
        """The policy's scan (N, K): what the sensor gives, or the true one where nothing is said of it."""
        if scans.NAME in state.sensors:
            return state.sensors[scans.NAME]
        return scans.true_scan(state, ctx, self.height_scan)

    def all_sensors(self) -> tuple[Sensor, ...]:
        """Those of every robot, and the height scan where the policy has it."""
        if not self.scan:
            return super().all_sensors()
        return (*super().all_sensors(), scans.scan_sensor(self.height_scan, self._ground))

    def _ground(self, state: State, xy: Tensor) -> Tensor:
        if state.origin is None:
            return torch.zeros_like(xy[..., 0])
        return Ground.of(self.terrain.heights, xy.device).height(xy, state.origin)

    def feet_above(self, state: State, ctx: Context) -> Tensor:
        """Height of the feet above what they have to clear (N, F) [m]: the lowest line that no ground pierces within
        `look_ahead` of them, ahead and behind in the direction in which they move, and that is as steep as that ground
        is on average. Over stairs it goes through the edges of the steps; a slope is that line itself."""
        robot = state.robot
        velocity = robot.foot_lin_vel[:, :, :2]
        far = self.look_ahead * ctx.robot.spec.home_height
        way = velocity / velocity.norm(dim=-1, keepdim=True).clamp(min=1e-6)
        places = torch.linspace(-far, far, 5, device=way.device)
        ground = ctx.ground(robot.foot_pos[:, :, None, :2] + places[:, None] * way[:, :, None])
        # Of the line of least squares: the places are symmetric about the foot.
        slope = (ground * places).sum(dim=2, keepdim=True) / places.square().sum().clamp(min=1e-6)
        return robot.foot_pos[:, :, 2] - (ground - slope * places).amax(dim=2)

    def heading_drift(self, state: State, ctx: Context) -> Tensor:
        """How fast the heading drifts from the commanded one (N,) [rad/s], times `steadiness`: the error of the turning
        rate, averaged over `TURNING_TIME`. A robot that turns around on a slope pays for it all the time, one that
        turns as it is asked to pays nothing, and the sway within a step does not count."""
        return ctx.task_state[TURNED].abs() * self.steadiness(ctx)

    def task_state(self, num_envs: int, robot: RobotConstants, random: Random) -> dict[str, Tensor]:
        """That of `velocity`, where the robot was asked to go, and how it turned."""
        state = super().task_state(num_envs, robot, random)
        state[TURNED] = torch.zeros(num_envs, device=random.device)
        state[ASKED] = torch.zeros(num_envs, 2, device=random.device)
        return state

    def advance(self, state: State, ctx: Context) -> dict[str, Tensor]:
        """The same after one more control step."""
        ahead = terms.heading(state.robot.base_quat)
        left = torch.stack((-ahead[:, 1], ahead[:, 0]), dim=1)
        velocity = ctx.command[:, :1] * ahead + ctx.command[:, 1:2] * left
        past = ctx.task_state
        error = level_velocities(state)[1] - ctx.command[:, 2]
        turned = past[TURNED] + ctx.dt / TURNING_TIME * (error - past[TURNED])
        return {**super().advance(state, ctx), ASKED: past[ASKED] + ctx.dt * velocity, TURNED: turned}

    def terrain_change(self, state: State, ctx: Context) -> Tensor:
        """Up where the robot has come further than half a tile from its origin; down where it has come less than half
        as far as its commands asked."""
        walked = state.robot.base_pos[:, :2].norm(dim=1)
        up = walked > self.terrain.size / 2
        down = walked < ctx.task_state[ASKED].norm(dim=1) / 2
        return up.float() - (down & ~up).float()

    def metrics(self, state: State, ctx: Context) -> Mapping[str, Tensor | Ratio]:
        """Those of `velocity`, and in a training the level of the terrain as a share of the mean row; of a single row
        there is no level."""
        row, last = ctx.per_env_state.get(LEVEL), self.terrain.rows - 1
        shown = {} if row is None or not last else {LEVEL: row.clamp(max=last) / (last / 2)}
        return {**super().metrics(state, ctx), **shown}
