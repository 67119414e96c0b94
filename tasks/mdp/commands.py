"""Commands: what the operator asks of the robot while it runs; pushes: what else happens to it."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import torch

from robolearn.envs.state import Tensor
from robolearn.tasks.mdp.context import Random


@dataclass
class VelocityCommands:
    """Walk commands: base velocity forward and sideways, and turning, redrawn every few seconds."""

    forward: tuple[float, float] = field(default=(-0.5, 1.0), metadata={"min": -100.0, "max": 100.0})
    """Range of the forward velocity [m/s]."""
    sideways: tuple[float, float] = field(default=(-0.3, 0.3), metadata={"min": -100.0, "max": 100.0})
    """Range of the sideways velocity, left is positive [m/s]."""
    yaw: tuple[float, float] = field(default=(-0.8, 0.8), metadata={"min": -100.0, "max": 100.0})
    """Range of the turning rate, left is positive [rad/s]."""
    standing: float = field(default=0.2, metadata={"min": 0.0, "max": 1.0})
    """Share of commands that ask to stand still."""
    seconds: tuple[float, float] = field(default=(3.0, 8.0), metadata={"max": 1e6})
    """Range of a command's duration [s]."""

    def validate(self) -> None:
        """Raise ValueError for a range that runs backwards or a duration that is not positive."""
        for name in ("forward", "sideways", "yaw", "seconds"):
            low, high = getattr(self, name)
            if low > high:
                raise ValueError(f"commands.{name}=[{low},{high}] runs backwards; write [{high},{low}]")
        if self.seconds[0] <= 0:
            raise ValueError(
                f"commands.seconds starts at {self.seconds[0]}; a command must last longer than 0 s"
            )

    def sample(self, num_envs: int, random: Random) -> tuple[Tensor, Tensor]:
        """Draw commands (N, 3) and how long each lasts (N,) [s]."""
        low, high = zip(self.forward, self.sideways, self.yaw, strict=True)
        command = random.uniform(low, high, num_envs)
        command = command * (random.uniform(0.0, 1.0, num_envs, 1) >= self.standing)
        return command, random.uniform(*self.seconds, num_envs)


@dataclass
class Pushes:
    """Shoves: every few seconds the base's horizontal velocity jumps, in any direction."""

    speed: tuple[float, float] = field(default=(0.0, 0.0), metadata={"min": 0.0, "max": 10.0})
    """Range of the jump [m/s]; [0,0] is none."""
    seconds: tuple[float, float] = field(default=(4.0, 8.0), metadata={"above": 0.0, "max": 1e6})
    """Range of the time between two [s]."""

    def validate(self) -> None:
        """Raise ValueError for a range that runs backwards."""
        for name in ("speed", "seconds"):
            low, high = getattr(self, name)
            if low > high:
                raise ValueError(f"pushes.{name}=[{low},{high}] runs backwards; write [{high},{low}]")

    def sample(self, num_envs: int, random: Random) -> tuple[Tensor, Tensor]:
        """Draw jumps of the base's velocity in the world (N, 3) [m/s] and the time until the next (N,) [s]."""
        speed = random.uniform(*self.speed, num_envs)
        angle = random.uniform(-math.pi, math.pi, num_envs)
        jump = torch.stack((speed * angle.cos(), speed * angle.sin(), torch.zeros_like(speed)), dim=1)
        return jump, random.uniform(*self.seconds, num_envs)
