"""Commands, which an operator gives to the robot while it runs, and pushes, which disturb it."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import torch

from robolearn.envs.state import Tensor
from robolearn.tasks.mdp.context import Random


@dataclass
class VelocityCommands:
    """Velocity commands: forward, sideways and turning rate of the base, redrawn every few seconds."""

    forward: tuple[float, float] = field(default=(-0.5, 1.0), metadata={"min": -100.0, "max": 100.0})
    """Range of the forward velocity [m/s]."""
    sideways: tuple[float, float] = field(default=(-0.3, 0.3), metadata={"min": -100.0, "max": 100.0})
    """Range of the sideways velocity [m/s]; left is positive."""
    yaw: tuple[float, float] = field(default=(-0.8, 0.8), metadata={"min": -100.0, "max": 100.0})
    """Range of the turning rate [rad/s]; left is positive."""
    standing: float = field(default=0.2, metadata={"min": 0.0, "max": 1.0})
    """Share of commands that are zero: stand still."""
    seconds: tuple[float, float] = field(default=(3.0, 8.0), metadata={"max": 1e6})
    """Range of a command's duration [s]."""

    def validate(self) -> None:
        """Raise ValueError for a range whose ends are swapped or a duration that is not positive."""
        for name in ("forward", "sideways", "yaw", "seconds"):
            low, high = getattr(self, name)
            if low > high:
                raise ValueError(f"commands.{name}=[{low},{high}]: the ends are swapped; use [{high},{low}]")
        if self.seconds[0] <= 0:
            raise ValueError(
                f"commands.seconds starts at {self.seconds[0]:g}; a command must last longer than 0 s"
            )

    def sample(self, num_envs: int, random: Random) -> tuple[Tensor, Tensor]:
        """Draw commands (N, 3) [m/s, m/s, rad/s] and the duration of each (N,) [s]."""
        low, high = zip(self.forward, self.sideways, self.yaw, strict=True)
        command = random.uniform(low, high, num_envs)
        command = command * (random.uniform(0.0, 1.0, num_envs, 1) >= self.standing)
        return command, random.uniform(*self.seconds, num_envs)


@dataclass
class Pushes:
    """Every few seconds the base's horizontal velocity jumps, in a random direction."""

    speed: tuple[float, float] = field(default=(0.0, 0.0), metadata={"min": 0.0, "max": 10.0})
    """Range of the jump [m/s]; [0,0] turns pushes off."""
    seconds: tuple[float, float] = field(default=(4.0, 8.0), metadata={"above": 0.0, "max": 1e6})
    """Range of the time between two pushes [s]."""

    def validate(self) -> None:
        """Raise ValueError for a range whose ends are swapped."""
        for name in ("speed", "seconds"):
            low, high = getattr(self, name)
            if low > high:
                raise ValueError(f"pushes.{name}=[{low},{high}]: the ends are swapped; use [{high},{low}]")

    def sample(self, num_envs: int, random: Random) -> tuple[Tensor, Tensor]:
        """Draw velocity jumps of the base in world axes (N, 3) [m/s] and the time until the next push (N,) [s]."""
        speed = random.uniform(*self.speed, num_envs)
        angle = random.uniform(-math.pi, math.pi, num_envs)
        jump = torch.stack((speed * angle.cos(), speed * angle.sin(), torch.zeros_like(speed)), dim=1)
        return jump, random.uniform(*self.seconds, num_envs)
