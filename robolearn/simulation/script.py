"""Scripts: what an operator asks of a robot and how it is pushed, by the time into the episode."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from robolearn.config import yaml_file
from robolearn.core.env import Env
from robolearn.envs.state import State, Tensor
from robolearn.errors import ConfigError, did_you_mean, listing, quote
from robolearn.tasks.mdp.commands import Command, Drawn
from robolearn.tasks.mdp.context import Context, Random
from robolearn.tasks.mdp.terms import forward_axis

Give = Callable[[Tensor, State, Context], Tensor]
"""(the task's own commands (N, C), State, Context) -> the commands (N, C) to follow; a pure function."""

DIRECTIONS = {"forward": 0.0, "left": 90.0, "back": 180.0, "right": -90.0}
"""Directions of a push by name [deg], from where the base faces; left is positive."""
RANDOM = "random"

FASTEST = 100.0
"""Largest speed of a push [m/s], and largest value of a command."""
STRONGEST = 1e5
"""Largest force of a push [N]."""
LASTING = 0.2
"""How long a force acts where nothing is said [s]."""


class GivenCommands(Command):
    """A task's commands, replaced by those that a function gives: an operator's, or a script's."""

    def __init__(self, drawn: Command, give: Give, redrawn: bool = True, first: Tensor | None = None) -> None:
        """
        Args:
            redrawn: whether the task's own commands are still redrawn as they expire.
            first: commands (C,) at the start of an episode, which a task's initial state may depend on: a robot that is
                told to stand must not start at the speed of a command that was drawn. None: those drawn.
        """
        self.drawn, self.give, self.redrawn, self.first = drawn, give, redrawn, first

    @property
    def names(self) -> tuple[str, ...]:
        """See `Command.names`."""
        return self.drawn.names

    @property
    def units(self) -> tuple[str, ...]:
        """See `Command.units`."""
        return self.drawn.units

    def ranges(self) -> dict[str, tuple[float, float]]:
        """See `Command.ranges`."""
        return self.drawn.ranges()

    def validate(self) -> None:
        """See `Command.validate`."""
        self.drawn.validate()

    def sample(self, num_envs: int, random: Random) -> Drawn:
        """The task's own commands; they hold forever unless they are redrawn."""
        drawn = self.drawn.sample(num_envs, random)
        if self.first is not None:
            drawn = drawn._replace(values=self.first.expand_as(drawn.values).clone())
        return drawn if self.redrawn else drawn._replace(seconds=torch.full_like(drawn.seconds, torch.inf))

    def eased(self, values: Tensor, level: Tensor) -> Tensor:
        """See `Command.eased`."""
        return self.drawn.eased(values, level)

    def follow(self, values: Tensor, aim: dict[str, Tensor], state: State, ctx: Context) -> Tensor:
        """The given commands (N, C)."""
        return self.give(self.drawn.follow(values, aim, state, ctx), state, ctx)


def give_commands(env: Env, give: Give, redrawn: bool = True, first: Tensor | None = None) -> None:
    """From the next step on, the commands of `env` are those of `give`; see `GivenCommands`.

    Raises:
        ConfigError: the task has no commands.
    """
    own = env.task.commands
    if own is None:
        raise ConfigError("this task has no commands")
    if isinstance(own, GivenCommands):
        own = own.drawn
    env.task = copy.copy(env.task)  # the task is part of the configuration, which stays as it is
    env.task.commands = GivenCommands(own, give, redrawn, first)
    if env.device.type == "cuda":
        env.capture()  # the CUDA graphs hold the commands of before


@dataclass(frozen=True)
class Push:
    """A jump of the velocity of a robot's base, a force that acts on it for a while, or both."""

    at: float
    """Time into the episode [s]."""
    speed: float
    """Size of the jump [m/s], horizontal."""
    direction: float | None
    """[deg] from where the base faces, left is positive; None: drawn for each environment."""
    up: float = 0.0
    """Vertical part [m/s]."""
    turn: tuple[float, float, float] = (0.0, 0.0, 0.0)
    """Jump of the angular velocity about the world's axes [rad/s]."""
    force: float = 0.0
    """Horizontal force at the base's centre of mass, in the same direction [N]."""
    lasting: float = LASTING
    """How long the force acts [s]."""


@dataclass(frozen=True)
class Script:
    """Commands and pushes of an episode."""

    commands: tuple[tuple[float, dict[str, float]], ...] = ()
    """(time [s], value of each column by name) in the order of time; columns that are not named are 0. Empty: the
    task's own commands."""
    pushes: tuple[Push, ...] | None = None
    """The only pushes; None: the task's own."""

    def __bool__(self) -> bool:
        return bool(self.commands) or self.pushes is not None

    @classmethod
    def of(cls, commands: object, pushes: object, where: str = "") -> Script:
        """The script that a YAML file states.

        Args:
            commands: {forward: 1.0}, or a list of such with `at` [s] each.
            pushes: a list of {at: 5, speed: 1.0, direction: left} or {at: 5, force: 80, lasting: 0.3}; direction:
                forward, left, back, right, random or degrees.
            where: place in the file, for messages.

        Raises:
            ConfigError: a part is invalid; the message names it.
        """
        timed = []
        for i, entry in enumerate(_entries(commands, f"{where}commands")):
            place = f"{where}commands[{i}]" if isinstance(commands, Sequence) else f"{where}commands"
            values = {str(k): _number(v, f"{place}.{k}") for k, v in entry.items()}
            timed.append((_at(values.pop("at", 0.0), place), values))
        if [at for at, _ in timed] != sorted({at for at, _ in timed}):
            raise ConfigError(f"{where}commands: the times `at` must rise from one entry to the next")
        if timed and timed[0][0] != 0:
            raise ConfigError(f"{where}commands: the first entry must begin at 0 s")
        shoves = []
        for i, entry in enumerate(_entries(pushes, f"{where}pushes")):
            shoves.append(_push(entry, f"{where}pushes[{i}]"))
        by_time = tuple(sorted(shoves, key=lambda push: push.at))
        return cls(tuple(timed), None if pushes is None else by_time)

    @classmethod
    def read(cls, path: Path) -> Script:
        """The script in a YAML file with `commands:` and `pushes:`, see `of`.

        Raises:
            ConfigError: the file cannot be read, or a part of it is invalid.
        """
        content = yaml_file.read(path)
        shown = quote(str(path), 120)
        valid = ("commands", "pushes")
        for key in content:
            if key not in valid:
                raise ConfigError(
                    f"{shown}: unknown key {quote(key)}{did_you_mean(key, valid)} (valid: {listing(valid)})"
                )
        return cls.of(content.get("commands"), content.get("pushes"), f"{shown}: ")

    def require_columns(self, names: Sequence[str], where: str = "") -> None:
        """Check that the commands' columns are among `names`.

        Raises:
            ConfigError: one is not.
        """
        for _, values in self.commands:
            for name in values:
                if name not in names:
                    raise ConfigError(
                        f"{where}commands: this task has no command {quote(name)}{did_you_mean(name, names)} "
                        f"(valid: at, {listing(names)})"
                    )

    def require_within(self, steps: int, dt: float, where: str = "") -> None:
        """Check that everything happens within `steps` control steps of `dt` seconds.

        Raises:
            ConfigError: a command or a push comes later.
        """
        for key, times in (
            ("commands", [at for at, _ in self.commands]),
            ("pushes", [push.at for push in self.pushes or ()]),
        ):
            for at in times:
                if round(at / dt) >= steps:
                    raise ConfigError(
                        f"{where}{key}: {at:g} s is after the last control step, which begins at "
                        f"{(steps - 1) * dt:g} s; leave it out, or end later"
                    )


class Director:
    """Plays a script in an Env: call `before_step` before each `env.step`."""

    def __init__(self, env: Env, script: Script, seed: int = 0, where: str = "") -> None:
        """Installs the script's commands; they are in force from the next reset on.

        Raises:
            ConfigError: the task lacks a command that the script names, or a free base to push; the backend has no
                forces.
        """
        self.env, self.script = env, script
        if script.pushes and env.robot.base is None:
            raise ConfigError(f"{where}pushes: {env.robot.name} stands on a fixed base and cannot be pushed")
        if script.pushes and env.agents > 1:
            raise ConfigError(
                f"{where}pushes: {type(env.task).__name__} has several agents, which cannot be pushed; leave pushes out"
            )
        self._forces = [push for push in script.pushes or () if push.force]
        self._held = [torch.zeros(env.num_envs, 3, device=env.device) for _ in self._forces]
        """(N, 3) [N] in world axes, of each push with a force, from its beginning on."""
        if self._forces and "forces" not in env.backend.capabilities.features:
            raise ConfigError(
                f"{where}pushes: backend={env.backend.capabilities.name} has no forces on a robot's base; push by "
                "speed, or choose another backend"
            )
        if script.pushes is not None:
            env.task = copy.copy(env.task)
            env.task.pushes = None
            if "forces" in env.backend.capabilities.features:
                # The last force that was applied acts until there is another one.
                env.backend.apply_force(torch.zeros(env.num_envs, 3, device=env.device))
                env.state.episode.shove = {k: torch.zeros_like(v) for k, v in env.state.episode.shove.items()}
        self._generator = torch.Generator().manual_seed(seed)
        self._changes = torch.tensor([round(at / env.dt) for at, _ in script.commands[1:]], device=env.device)
        if script.commands:
            names = env.task.commands.names if env.task.commands else ()
            script.require_columns(names, where)
            self._times = torch.tensor([at for at, _ in script.commands], device=env.device)
            table = [[values.get(name, 0.0) for name in names] for _, values in script.commands]
            self._table = torch.tensor(table, dtype=torch.float32, device=env.device)
            give_commands(env, self._command, redrawn=False, first=self._table[0])

    def _command(self, own: Tensor, state: State, ctx: Context) -> Tensor:
        entry = torch.searchsorted(self._times, ctx.episode_time + ctx.dt / 2, right=True) - 1
        return self._table[entry.clamp(min=0)]

    def before_step(self) -> dict[str, Tensor]:
        """Push the robots whose time has come.

        Returns:
            `pushed` (N,) bool, the jumps (N, 3) [m/s] as `jump`, and, where the script has forces, those that act in
            this step (N, 3) [N] as `force`; all in world axes.
        """
        env = self.env
        step = torch.round(env.state.episode.time / env.dt).long()
        if len(self._changes):
            due = (step[:, None] == self._changes).any(dim=1)
            env.restart_command_time(due)
        pushed = torch.zeros_like(env.state.outcome["done"])
        whole = torch.zeros(env.num_envs, 3, device=env.device)
        ways: list[Tensor] = []
        for push in self.script.pushes or ():
            due = step == round(push.at / env.dt)
            way = self._way(push)
            jump = push.speed * way
            jump[:, 2] = push.up
            turn = torch.tensor(push.turn, device=env.device).expand_as(jump) if any(push.turn) else None
            env.push(due, jump, turn)
            pushed |= due
            whole = torch.where(due[:, None], jump, whole)
            if push.force:
                ways.append(way)
        told = {"pushed": pushed, "jump": whole}
        return {**told, "force": self._act(step, ways)} if self._forces else told

    def _act(self, step: Tensor, ways: list[Tensor]) -> Tensor:
        """Let the forces act that last in `step` (N,), and return their sum (N, 3); those that begin have the
        directions `ways`, (N, 3) each."""
        total = torch.zeros(self.env.num_envs, 3, device=self.env.device)
        for i, (push, way) in enumerate(zip(self._forces, ways, strict=True)):
            since = step - round(push.at / self.env.dt)
            self._held[i] = torch.where((since == 0)[:, None], push.force * way, self._held[i])
            acts = (since >= 0) & (since < max(1, round(push.lasting / self.env.dt)))
            total = total + acts[:, None] * self._held[i]
        self.env.backend.apply_force(total)
        return total

    def _way(self, push: Push) -> Tensor:
        """Direction of a push (N, 3) in world axes, level and of length 1."""
        n, device = self.env.num_envs, self.env.device
        if push.direction is None:
            angle = (2 * torch.rand(n, generator=self._generator) - 1).to(device) * math.pi
        else:
            angle = torch.full((n,), math.radians(push.direction), device=device)
        ahead, across = forward_axis(self.env.backend.state.robot.base_quat).unbind(-1)
        angle = angle + torch.atan2(across, ahead)
        return torch.stack((angle.cos(), angle.sin(), torch.zeros_like(angle)), dim=1)


def _entries(value: object, where: str) -> list[Mapping[str, Any]]:
    entries: list[Any] = [] if value is None else value if isinstance(value, list) else [value]
    for entry in entries:
        if not isinstance(entry, Mapping) or not entry or not all(isinstance(key, str) for key in entry):
            raise ConfigError(
                f"{where}: expected entries such as {{at: 0, forward: 1.0}}, not {quote(entry)}"
            )
    return entries


def _push(entry: Mapping[str, Any], where: str) -> Push:
    valid = ("at", "speed", "direction", "up", "turn", "force", "lasting")
    for key in entry:
        if key not in valid:
            raise ConfigError(
                f"{where}: unknown key {quote(key)}{did_you_mean(str(key), valid)} (valid: {listing(valid)})"
            )
    direction = entry.get("direction", "forward")
    if isinstance(direction, str):
        if direction not in (*DIRECTIONS, RANDOM):
            raise ConfigError(
                f"{where}.direction: {quote(direction)} is not {', '.join((*DIRECTIONS, RANDOM))} or degrees"
            )
        angle = DIRECTIONS.get(direction)
    else:
        angle = _number(direction, f"{where}.direction", 360.0)
    turn = entry.get("turn", [0, 0, 0])
    if not isinstance(turn, list) or len(turn) != 3:
        raise ConfigError(f"{where}.turn: expected three numbers [rad/s], not {quote(turn)}")
    x, y, z = (_number(value, f"{where}.turn") for value in turn)
    speed, up = (_number(entry.get(key, 0.0), f"{where}.{key}") for key in ("speed", "up"))
    force = _number(entry.get("force", 0.0), f"{where}.force", STRONGEST)
    for name, value in (("speed", speed), ("force", force)):
        if value < 0:
            raise ConfigError(f"{where}.{name}: {value:g} is negative; turn the direction instead")
    if not any((speed, up, x, y, z, force)):
        raise ConfigError(f"{where}: speed, up, turn or force must say how hard, such as speed: 1.0")
    lasting = _number(entry.get("lasting", LASTING), f"{where}.lasting")
    if "lasting" in entry and not (force and lasting > 0):
        problem = f"{lasting:g} s is no time" if force else "there is no force that could last"
        raise ConfigError(f"{where}.lasting: {problem}; write such as {{force: 80, lasting: 0.3}}")
    at = _at(_number(entry.get("at", 0.0), f"{where}.at", 1e6), where)
    return Push(at, speed, angle, up, (x, y, z), force, lasting)


def _at(value: float, where: str) -> float:
    if value < 0:
        raise ConfigError(f"{where}.at: {value:g} is before the episode begins")
    return value


def _number(value: object, where: str, most: float = FASTEST) -> float:
    fine = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    if where.endswith(".at"):
        most = 1e6
    if not fine or abs(float(value)) > most:  # type: ignore[arg-type]
        raise ConfigError(f"{where}: expected a number within +-{most:g}, not {quote(value)}")
    return float(value)  # type: ignore[arg-type]
