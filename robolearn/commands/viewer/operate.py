"""What the viewer's user asks of the robots: commands and pushes. Only the loop's thread may use it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from robolearn.core.env import Env
from robolearn.envs.state import State, Tensor
from robolearn.simulation.script import give_commands
from robolearn.tasks.mdp.commands import PoseCommands, VelocityCommands
from robolearn.tasks.mdp.context import Context
from robolearn.tasks.mdp.terms import forward_axis


@dataclass(frozen=True)
class Column:
    """One column of a task's commands."""

    name: str
    unit: str
    low: float
    high: float
    """Ends of its slider: the task's range, to the next whole step."""
    step: float
    """Least change."""
    start: float
    """Its value before the user has moved it."""
    left_positive: bool
    """Whether a positive value points to the left."""


class Operator:
    """The user's commands, which replace the task's own where `mine`, and pushes.

    Changes are in force from the next step on.
    """

    def __init__(self, env: Env) -> None:
        """Installs the commands in the env."""
        self.env = env
        self.columns = columns_of(env)
        self.mine = torch.zeros(env.num_envs, dtype=torch.bool, device=env.device)
        """(N,) the robots that follow the user's commands."""
        start = torch.tensor([column.start for column in self.columns], device=env.device)
        self.values = start.repeat(env.num_envs, 1)
        """(N, C) the user's commands."""
        commands = env.task.commands
        self._quaternion = isinstance(commands, PoseCommands) and len(self.columns) == 7
        if self.columns:
            give_commands(env, self._give, redrawn=True)

    def _give(self, own: Tensor, state: State, ctx: Context) -> Tensor:
        return torch.where(self.mine[:, None], self.values, own)

    @property
    def pushable(self) -> bool:
        """Whether the robot has a free base, whose velocity a push changes; several agents cannot be pushed."""
        return self.env.robot.base is not None and self.env.agents == 1

    def give(self, values: Sequence[float], robots: Tensor) -> None:
        """Give the commands `values` (C,), within their ranges, to the `robots` (N,) bool, which follow the user from
        now on. The quaternion of a pose is scaled to unit length."""
        ranged = [
            min(max(value, column.low), column.high)
            for value, column in zip(values, self.columns, strict=True)
        ]
        wanted = torch.tensor(ranged, dtype=torch.float32, device=self.env.device)
        if self._quaternion:
            length = wanted[3:].norm()
            straight = wanted.new_tensor((1.0, 0.0, 0.0, 0.0))
            wanted[3:] = wanted[3:] / length if float(length) > 1e-6 else straight
        changed = robots & (~self.mine | (self.values != wanted).any(dim=1))
        # In place: the CUDA graphs of the env hold these tensors.
        self.values[robots] = wanted
        self.mine |= robots
        self.env.restart_command_time(changed)

    def release(self) -> None:
        """Let all robots follow the task's own commands again, which are redrawn at once."""
        left = self.env.state.episode.command_left
        self.env.state.episode.command_left = torch.where(self.mine, 0.0, left)
        self.mine.zero_()

    def before_step(self) -> None:
        """Keep the task from redrawing, and so restarting, commands that are the user's."""
        if self.columns:
            left = self.env.state.episode.command_left
            self.env.state.episode.command_left = torch.where(self.mine, torch.inf, left)

    def push(self, speed: float, direction: float, robots: Tensor) -> None:
        """Push the `robots` (N,) bool: their velocity jumps by `speed` [m/s] in `direction` [deg] from where each
        faces; left is positive."""
        angle = torch.full((self.env.num_envs,), math.radians(direction), device=self.env.device)
        ahead, across = forward_axis(self.env.backend.state.robot.base_quat).unbind(-1)
        angle = angle + torch.atan2(across, ahead)
        jump = torch.stack((speed * angle.cos(), speed * angle.sin(), torch.zeros_like(angle)), dim=1)
        self.env.push(robots, jump)


def columns_of(env: Env) -> list[Column]:
    """The columns of a task's commands, with ranges that a slider can have; [] for a task without commands."""
    commands = env.task.commands
    if commands is None:
        return []
    ranges, velocity = commands.ranges(), isinstance(commands, VelocityCommands)
    out = []
    for name, unit in zip(commands.names, commands.units, strict=True):
        low, high = ranges.get(name, (-1.0, 1.0))
        if velocity or low == high:  # a robot must be able to stand, and a slider needs a length
            low, high = min(low, 0.0), max(high, 0.0)
        if low == high:
            low, high = low - 1.0, high + 1.0
        step = nice_step(high - low)
        if low < 0 < high or velocity:  # 0 must be on the slider, so its ends are whole steps
            low, high = math.floor(low / step + 1e-6) * step, math.ceil(high / step - 1e-6) * step
            low, high = round(low, 9), round(high, 9)
        start = 1.0 if name == "qw" else min(max(0.0, low), high)
        if isinstance(commands, PoseCommands) and name in ("x", "y", "z"):
            start = (low + high) / 2  # reachable, unlike the base itself
        left = isinstance(commands, PoseCommands) or "left is positive" in unit
        out.append(Column(name, unit.partition(",")[0], low, high, step, start, left))
    return out


def nice_step(span: float) -> float:
    """1, 2 or 5 times a power of ten, about a hundredth of `span`."""
    power = 10.0 ** math.floor(math.log10(span / 100))
    return next(round(k * power, 12) for k in (1, 2, 5, 10) if k * power >= span / 100 * 0.999)
