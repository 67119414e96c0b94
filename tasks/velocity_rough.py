"""Any robot on legs follows velocity commands on uneven ground: slopes, stairs, blocks and bumps.

The task `velocity` on a terrain. The policy is blind, unless `scan` is on: what it does not feel with its feet it does
not know.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import torch

from robolearn.envs.robot import Robot
from robolearn.envs.scene import Scene
from robolearn.envs.state import State, Tensor
from robolearn.envs.terrain import Terrain
from robolearn.tasks.mdp import terms
from robolearn.tasks.mdp.commands import VelocityCommands
from robolearn.tasks.mdp.context import Context, Random, RobotConstants
from robolearn.tasks.mdp.task import Ratio
from robolearn.tasks.velocity import Velocity

ASKED = "asked"
"""Task state: where the robot would be, had it followed its commands (N, 2) [m]."""


@dataclass
class VelocityRough(Velocity):
    """A robot on legs follows velocity commands over uneven ground."""

    terrain: Terrain = field(default_factory=Terrain)
    """The ground."""
    commands: VelocityCommands | None = field(
        default_factory=lambda: VelocityCommands(
            forward=(0.0, 1.0), sideways=(-0.2, 0.2), standing=0.1, heading=0.7, seconds=(6.0, 12.0)
        )
    )
    """What is asked of the robot, redrawn during an episode: mostly to go somewhere."""

    def scene(self, robot: Robot) -> Scene:
        """The robot on the terrain."""
        return replace(super().scene(robot), terrain=self.terrain)

    def task_state(self, num_envs: int, robot: RobotConstants, random: Random) -> dict[str, Tensor]:
        """That of `velocity`, and where the robot was asked to go."""
        asked = torch.zeros(num_envs, 2, device=random.device)
        return {**super().task_state(num_envs, robot, random), ASKED: asked}

    def advance(self, state: State, ctx: Context) -> dict[str, Tensor]:
        """The same after one more control step."""
        ahead = terms.heading(state.robot.base_quat)
        left = torch.stack((-ahead[:, 1], ahead[:, 0]), dim=1)
        velocity = ctx.command[:, :1] * ahead + ctx.command[:, 1:2] * left
        return {**super().advance(state, ctx), ASKED: ctx.task_state[ASKED] + ctx.dt * velocity}

    def terrain_change(self, state: State, ctx: Context) -> Tensor:
        """Up where the robot has come further than half a tile from its origin; down where it has come less than half
        as far as its commands asked."""
        walked = state.robot.base_pos[:, :2].norm(dim=1)
        up = walked > self.terrain.size / 2
        down = walked < ctx.task_state[ASKED].norm(dim=1) / 2
        return up.float() - (down & ~up).float()

    def metrics(self, state: State, ctx: Context) -> Mapping[str, Tensor | Ratio]:
        """Those of `velocity`, and the mean level of the terrain."""
        level = ctx.per_env_state.get("terrain_level")
        shown = {} if level is None else {"terrain_level": level.float()}
        return {**super().metrics(state, ctx), **shown}
