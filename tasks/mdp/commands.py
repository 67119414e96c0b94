"""Commands, which an operator gives to the robot while it runs, and pushes, which disturb it."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

import torch

from robolearn.envs.state import State, Tensor
from robolearn.tasks.mdp.context import Context, Random
from robolearn.tasks.mdp.terms import forward_axis

VELOCITY = ("forward", "sideways", "yaw")
"""Columns of velocity commands."""
POSE = ("x", "y", "z", "qw", "qx", "qy", "qz")
"""Columns of pose commands; the first three without orientation."""


class Drawn(NamedTuple):
    """New commands, one row for each environment."""

    values: Tensor
    """(N, width) the commands."""
    seconds: Tensor
    """(N,) how long each holds [s]."""
    aim: dict[str, Tensor]
    """Further tensors by name, (N, ...) each, that `Command.follow` steers by; usually none."""


class Command(Protocol):
    """What a task asks of the robot, as a dataclass of settings; redrawn during an episode.

    Derive from it to get the defaults of `width`, `validate` and `follow`.
    """

    @property
    def names(self) -> tuple[str, ...]:
        """Name of each column."""
        ...

    @property
    def units(self) -> tuple[str, ...]:
        """Unit of each column."""
        ...

    @property
    def width(self) -> int:
        """Number of columns."""
        return len(self.names)

    def ranges(self) -> dict[str, tuple[float, float]]:
        """Lowest and highest value of each column, by name."""
        ...

    def validate(self) -> None:
        """Raise ValueError for settings that contradict each other; the message begins with `commands.`."""

    def sample(self, num_envs: int, random: Random) -> Drawn:
        """Draw a command for every environment."""
        ...

    def eased(self, values: Tensor, level: Tensor) -> Tensor:
        """Commands (N, width) for environments at `level` (N,) of a curriculum: the full ones at 1. Commands that do
        not know an easier form stay as they are."""
        return values

    def follow(self, values: Tensor, aim: dict[str, Tensor], state: State, ctx: Context) -> Tensor:
        """The commands (N, width) in a new state of the robot, from those before; a pure function.

        Env calls it once a step, after expired commands are redrawn and before it observes, and at the start of an
        episode. A command that the operator gives directly stays as it is.
        """
        return values


def require_ordered(command: object, names: tuple[str, ...], where: str = "commands") -> None:
    """Raise ValueError for a range whose ends are swapped."""
    for name in names:
        low, high = getattr(command, name)
        if low > high:
            raise ValueError(f"{where}.{name}=[{low},{high}]: the ends are swapped; use [{high},{low}]")


def _require_lasting(seconds: tuple[float, float]) -> None:
    """Raise ValueError for a duration that is not positive."""
    if seconds[0] <= 0:
        raise ValueError(f"commands.seconds starts at {seconds[0]:g}; a command must last longer than 0 s")


@dataclass
class VelocityCommands(Command):
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
    heading: float = field(default=0.0, metadata={"min": 0.0, "max": 1.0})
    """Share of the other commands whose turning rate steers the base to a target heading."""
    heading_range: tuple[float, float] = field(
        default=(-3.14, 3.14), metadata={"min": -2 * math.pi, "max": 2 * math.pi}
    )
    """Range of the target heading in world axes [rad]; 0 faces along x, left is positive."""
    heading_gain: float = field(default=0.5, metadata={"above": 0.0, "max": 100.0})
    """Turning rate for each radian that the base is off its target heading [1/s], within the range `yaw`."""

    @property
    def names(self) -> tuple[str, ...]:
        """Name of each column."""
        return VELOCITY

    @property
    def units(self) -> tuple[str, ...]:
        """Unit of each column."""
        return ("m/s", "m/s, left is positive", "rad/s, left is positive")

    def ranges(self) -> dict[str, tuple[float, float]]:
        """Lowest and highest value of each column; a command to stand is 0 and may lie outside."""
        return {name: getattr(self, name) for name in VELOCITY}

    def validate(self) -> None:
        """Raise ValueError for a range whose ends are swapped or a duration that is not positive."""
        require_ordered(self, (*VELOCITY, "seconds", "heading_range"))
        _require_lasting(self.seconds)

    def sample(self, num_envs: int, random: Random) -> Drawn:
        """Draw commands (N, 3) [m/s, m/s, rad/s] and the duration of each; where `heading` is above 0 the aim holds
        the target `heading` (N,) [rad] and whether the command `steers` to it (N,) bool."""
        low, high = zip(self.forward, self.sideways, self.yaw, strict=True)
        command = random.uniform(low, high, num_envs)
        moving = random.uniform(0.0, 1.0, num_envs, 1) >= self.standing
        seconds = random.uniform(*self.seconds, num_envs)
        aim = {}
        if self.heading:
            steers = random.uniform(0.0, 1.0, num_envs) < self.heading
            aim = {"heading": random.uniform(*self.heading_range, num_envs), "steers": steers & moving[:, 0]}
        return Drawn(command * moving, seconds, aim)

    def eased(self, values: Tensor, level: Tensor) -> Tensor:
        """The same directions, slower: `level` (N,) times the velocities (N, 3)."""
        return level[:, None] * values

    def follow(self, values: Tensor, aim: dict[str, Tensor], state: State, ctx: Context) -> Tensor:
        """The turning rate of commands that steer to a heading: `heading_gain` times the angle that is left to it, the
        shorter way round, clipped to the range `yaw`; as much of it as the level of a curriculum of `commands`."""
        if not aim:
            return values
        ahead, across = forward_axis(state.robot.base_quat).unbind(-1)
        left = aim["heading"] - torch.atan2(across, ahead)
        left = torch.remainder(left + math.pi, 2 * math.pi) - math.pi
        rate = (self.heading_gain * left).clamp(*self.yaw) * ctx.per_env_state.get("level_commands", 1.0)
        return torch.cat((values[:, :2], torch.where(aim["steers"], rate, values[:, 2])[:, None]), dim=1)


@dataclass
class PoseCommands(Command):
    """Poses of an end effector, in the axes and from the origin of the robot's base, redrawn every few seconds."""

    x: tuple[float, float] = field(default=(0.3, 0.6), metadata={"min": -100.0, "max": 100.0})
    """Range of the position along x [m]; forward is positive."""
    y: tuple[float, float] = field(default=(-0.3, 0.3), metadata={"min": -100.0, "max": 100.0})
    """Range of the position along y [m]; left is positive."""
    z: tuple[float, float] = field(default=(0.1, 0.5), metadata={"min": -100.0, "max": 100.0})
    """Range of the position along z [m]; up is positive."""
    roll: tuple[float, float] = field(default=(0.0, 0.0), metadata={"min": -2 * math.pi, "max": 2 * math.pi})
    """Range of the turn about x [rad], the first of the three."""
    pitch: tuple[float, float] = field(default=(0.0, 0.0), metadata={"min": -2 * math.pi, "max": 2 * math.pi})
    """Range of the turn about y [rad], the second, about the base's axis."""
    yaw: tuple[float, float] = field(
        default=(-3.14, 3.14), metadata={"min": -2 * math.pi, "max": 2 * math.pi}
    )
    """Range of the turn about z [rad], the last, about the base's axis."""
    orientation: bool = True
    """Whether commands hold an orientation; if not, they are positions alone."""
    seconds: tuple[float, float] = field(default=(3.0, 6.0), metadata={"max": 1e6})
    """Range of a command's duration [s]."""

    @property
    def names(self) -> tuple[str, ...]:
        """Name of each column."""
        return POSE if self.orientation else POSE[:3]

    @property
    def units(self) -> tuple[str, ...]:
        """Unit of each column."""
        return tuple("1, of a unit quaternion" if name.startswith("q") else "m" for name in self.names)

    def ranges(self) -> dict[str, tuple[float, float]]:
        """Lowest and highest value of each column. Those of the quaternion are its bounds, whatever the angles."""
        ends = {"x": self.x, "y": self.y, "z": self.z}
        return {name: ends.get(name, (-1.0, 1.0)) for name in self.names}

    def validate(self) -> None:
        """Raise ValueError for a range whose ends are swapped or a duration that is not positive."""
        require_ordered(self, ("x", "y", "z", "roll", "pitch", "yaw", "seconds"))
        _require_lasting(self.seconds)

    def sample(self, num_envs: int, random: Random) -> Drawn:
        """Draw positions [m] and, with `orientation`, quaternions wxyz, (N, 3) or (N, 7)."""
        low, high = zip(self.x, self.y, self.z, strict=True)
        pose = random.uniform(low, high, num_envs)
        if self.orientation:
            low, high = zip(self.roll, self.pitch, self.yaw, strict=True)
            pose = torch.cat((pose, quat_of(random.uniform(low, high, num_envs))), dim=1)
        return Drawn(pose, random.uniform(*self.seconds, num_envs), {})


def quat_of(angles: Tensor) -> Tensor:
    """Quaternions wxyz (N, 4) of turns by roll, pitch and yaw (N, 3) [rad] about the fixed x, y and z axes, one after
    the other: yaw * pitch * roll. Continuous in the angles: a sign chosen by one component would jump where that
    component is 0, as w is of a gripper that points down."""
    half = angles / 2
    (cr, cp, cy), (sr, sp, sy) = half.cos().unbind(-1), half.sin().unbind(-1)
    w, x = cr * cp * cy + sr * sp * sy, sr * cp * cy - cr * sp * sy
    y, z = cr * sp * cy + sr * cp * sy, cr * cp * sy - sr * sp * cy
    return torch.stack((w, x, y, z), dim=-1)


@dataclass
class Pushes:
    """Every few seconds the base's velocity jumps: by `speed` in a random horizontal direction, and by up to `box` and
    `turn` along and about each axis of the world."""

    speed: tuple[float, float] = field(default=(0.0, 0.0), metadata={"min": 0.0, "max": 10.0})
    """Range of the horizontal jump [m/s]."""
    seconds: tuple[float, float] = field(default=(4.0, 8.0), metadata={"above": 0.0, "max": 1e6})
    """Range of the time between two pushes [s]."""
    box: tuple[float, float, float] = field(default=(0.0, 0.0, 0.0), metadata={"min": 0.0, "max": 10.0})
    """Largest further jump along x, y and z, either way [m/s]."""
    turn: tuple[float, float, float] = field(default=(0.0, 0.0, 0.0), metadata={"min": 0.0, "max": 50.0})
    """Largest jump of the angular velocity about x, y and z, either way [rad/s]."""
    force: tuple[float, float] = field(default=(0.0, 0.0), metadata={"min": 0.0, "max": 1e5})
    """Range of a horizontal force at the base's centre of mass, in a random direction [N]."""
    lasting: tuple[float, float] = field(default=(0.1, 0.3), metadata={"above": 0.0, "max": 100.0})
    """Range of the time that the force acts [s]."""

    @property
    def active(self) -> bool:
        """Whether anything is pushed; not with `speed`, `box`, `turn` and `force` of 0."""
        return any((self.speed[1], *self.box, *self.turn)) or self.forces

    @property
    def forces(self) -> bool:
        """Whether forces act."""
        return self.force[1] > 0

    def validate(self) -> None:
        """Raise ValueError for a range whose ends are swapped."""
        require_ordered(self, ("speed", "seconds", "force", "lasting"), "pushes")

    def sample(self, num_envs: int, random: Random) -> tuple[Tensor, Tensor | None, Tensor]:
        """Draw jumps of the base's velocity [m/s] and, where `turn` is not 0, of its angular velocity [rad/s], (N, 3)
        in world axes, and the time until the next push (N,) [s]."""
        speed = random.uniform(*self.speed, num_envs)
        angle = random.uniform(-math.pi, math.pi, num_envs)
        jump = torch.stack((speed * angle.cos(), speed * angle.sin(), torch.zeros_like(speed)), dim=1)
        seconds = random.uniform(*self.seconds, num_envs)
        if any(self.box):
            jump = jump + _within(self.box, num_envs, random)
        return jump, _within(self.turn, num_envs, random) if any(self.turn) else None, seconds

    def sample_force(self, num_envs: int, random: Random) -> tuple[Tensor, Tensor]:
        """Draw forces (N, 3) in world axes [N], and how long each acts (N,) [s]."""
        angle = random.uniform(-math.pi, math.pi, num_envs)
        size = random.uniform(*self.force, num_envs)
        force = torch.stack((size * angle.cos(), size * angle.sin(), torch.zeros_like(size)), dim=1)
        return force, random.uniform(*self.lasting, num_envs)


def _within(half: tuple[float, float, float], num_envs: int, random: Random) -> Tensor:
    """Uniform vectors (N, 3) of a box about 0 with these half-widths."""
    return random.uniform(tuple(-side for side in half), tuple(half), num_envs)
