"""Context: what a term may read besides the State: actions, commands, times and the task state."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import wraps
from typing import Any

import torch

from robolearn.envs.robot import Robot
from robolearn.envs.state import State, Tensor
from robolearn.envs.terrain import Ground
from robolearn.errors import ConfigError


@dataclass(frozen=True)
class RobotConstants:
    """A robot's constants as tensors, for terms and joint targets; J joints, A actuators."""

    spec: Robot
    home: Tensor
    """(J,) home position [rad or m]."""
    lower: Tensor
    """(J,) lower joint limit; -inf without one."""
    upper: Tensor
    """(J,) upper joint limit; inf without one."""
    actuated: Tensor
    """(A,) index of each actuator's joint."""
    effort: Tensor
    """(A,) largest torque or force of each actuator [Nm or N]."""
    kp: Tensor
    """(A,) stiffness of each actuator [Nm/rad or N/m]; 0 of one that is given a torque or force."""
    limited: Tensor
    """(K,) index of each joint that has limits."""
    turning: Tensor
    """(U,) index of each joint without limits, U = J - K."""

    tables: dict[tuple, Tensor] = field(default_factory=dict)
    """Tables already turned into tensors; see `per_joint`."""

    @classmethod
    def of(
        cls, robot: Robot, limits: tuple[list[float], list[float]], device: torch.device
    ) -> RobotConstants:
        """Constants of `robot`, with its joint limits (J,) lower and upper."""
        lower, upper = limits
        bounded = [math.isfinite(low) and math.isfinite(high) for low, high in zip(lower, upper, strict=True)]

        def indices(chosen: Iterable[bool]) -> Tensor:
            return torch.tensor([i for i, yes in enumerate(chosen) if yes], dtype=torch.long, device=device)

        return cls(
            robot,
            torch.tensor(robot.home, device=device),
            torch.tensor(lower, device=device),
            torch.tensor(upper, device=device),
            torch.tensor(robot.actuated, dtype=torch.long, device=device),
            torch.tensor([actuator.effort for actuator in robot.actuators], device=device),
            torch.tensor([actuator.kp for actuator in robot.actuators], device=device),
            indices(bounded),
            indices(not yes for yes in bounded),
        )

    def per_joint(self, table: Mapping[str, float]) -> Tensor:
        """A table such as {"knee": 0.7} as a row (J,): joints by their name without its side, 0 where not named."""
        key = tuple(table.items())
        if key not in self.tables:
            mirror = self.spec.mirror
            names = [mirror.base(joint) if mirror else joint for joint in self.spec.joints]
            unknown = set(table) - set(names)
            if unknown:
                valid = ", ".join(dict.fromkeys(names))
                raise ConfigError(
                    f"robot {self.spec.name!r} has no joint {', '.join(unknown)}; it has {valid}"
                )
            row = [table.get(name, 0.0) for name in names]
            self.tables[key] = torch.tensor(row, device=self.home.device)
        return self.tables[key]

    def per_actuator(self, table: Mapping[str, float]) -> Tensor:
        """The same as a row (A,), one entry an actuator."""
        return self.per_joint(table)[self.actuated]


Bounds = float | tuple[float, ...] | list[float]


class Random:
    """Random numbers of an Env, seeded and checkpointed with it: one generator, or one for each shard of the
    environments, so that the numbers of a shard do not depend on which others there are."""

    def __init__(self, seed: int | Sequence[int], device: torch.device) -> None:
        """A seed, or one a shard."""
        self.device = device
        self._alone = isinstance(seed, int)
        seeds = [seed] if isinstance(seed, int) else seed
        self.generators = [torch.Generator(device).manual_seed(each) for each in seeds]
        self._used: Sequence[bool] = [True] * len(self.generators)
        self._group_size, self._grouped_rows = 1, 0
        self._bounds: dict[Any, tuple[Tensor, Tensor]] = {}

    def fork(self) -> Random:
        """Another generator, for a look at a task that must not change the numbers drawn after it."""
        return Random(0, self.device)

    @property
    def generator(self) -> torch.Generator:
        """The only generator."""
        (generator,) = self.generators
        return generator

    def state(self) -> Tensor:
        """The state: (L,) uint8 of one generator, (S, L) of those of shards."""
        states = [generator.get_state() for generator in self.generators]
        return states[0] if self._alone else torch.stack(states)

    def set_state(self, state: Tensor) -> None:
        """Continue from a state that `state` returned; it stays on the CPU, also for generators on a GPU."""
        for generator, each in zip(self.generators, state[None] if state.dim() == 1 else state, strict=True):
            generator.set_state(each.clone())  # torch reads the start of the storage, also of a view

    def fits(self, state: Tensor) -> bool:
        """Whether this is the state of as many generators on the same kind of device."""
        mine = self.state()
        return state.numel() == mine.numel() and state.shape[-1] == mine.shape[-1]

    def uniform(self, low: Bounds, high: Bounds, *shape: int) -> Tensor:
        """Uniform numbers between `low` and `high`, of `shape`, or (*shape, k) for bounds that are tuples of k."""
        # Bounds are sent to the device once: each transfer would wait for everything queued there.
        key = tuple(tuple(side) if isinstance(side, list) else side for side in (low, high))
        if key not in self._bounds:
            bounds = torch.as_tensor(key, dtype=torch.float32, device=self.device)
            self._bounds[key] = bounds[0], bounds[1] - bounds[0]
        start, span = self._bounds[key]
        return self.rand(*shape, *start.shape).mul_(span).add_(start)

    def rand(self, *shape: int) -> Tensor:
        """Uniform numbers from 0 to 1; of several generators, each gives its shard's share of the rows."""
        return self._drawn(torch.rand, shape)

    def randn(self, *shape: int) -> Tensor:
        """Gaussian numbers of mean 0 and variance 1, likewise."""
        return self._drawn(torch.randn, shape)

    def group(self, size: int, rows: int) -> None:
        """From now on draw the same for `size` neighbouring rows wherever a number is drawn for each of `rows`
        environments: these then differ in their actions alone."""
        self._group_size, self._grouped_rows = size, rows

    def _drawn(self, draw: Callable[..., Tensor], shape: tuple[int, ...]) -> Tensor:
        if self._group_size > 1 and shape[:1] == (self._grouped_rows,):
            some = self._each_drawn(draw, (shape[0] // self._group_size, *shape[1:]))
            return some.repeat_interleave(self._group_size, dim=0)
        return self._each_drawn(draw, shape)

    def _each_drawn(self, draw: Callable[..., Tensor], shape: tuple[int, ...]) -> Tensor:
        if len(self.generators) == 1 and self._used[0]:
            return draw(shape, generator=self.generator, device=self.device)
        share = (shape[0] // len(self.generators), *shape[1:])
        return torch.cat(
            [
                draw(share, generator=each, device=self.device)
                if used
                else torch.zeros(share, device=self.device)
                for each, used in zip(self.generators, self._used, strict=True)
            ]
        )

    @contextmanager
    def only(self, used: Sequence[bool]) -> Iterator[None]:
        """Within, only the generators of these shards draw; the numbers of the others are 0 and not to be used."""
        self._used = used
        yield
        self._used = [True] * len(self.generators)


@dataclass
class Context:
    """N environments between two steps, as terms read them. Env makes a new one whenever its EnvState changes."""

    robot: RobotConstants
    dt: float
    """Control period [s]."""
    action: Tensor
    """(N, A) the policy's latest action."""
    previous_action: Tensor
    """(N, A) the one before."""
    command: Tensor
    """(N, C) the command; C = 0 without commands."""
    episode_time: Tensor
    """(N,) time since the reset [s]."""
    command_time: Tensor
    """(N,) time since the command was drawn [s]."""
    push_time: Tensor
    """(N,) time since the last push of this episode [s]; inf before the first."""
    task_state: dict[str, Tensor]
    """Task state of the episode, by name, (N, ...) each; see `Task.advance`."""
    per_env_state: dict[str, Tensor] = field(default_factory=dict)
    """State of each environment that survives resets, by name, (N, ...) each; see `Task.per_env_state`."""
    hidden: frozenset[str] = frozenset()
    """Randomized parameters that the observation `physics` leaves out."""
    terrain: Ground | None = None
    """The surface of the terrain; None on flat ground."""
    origin: Tensor | None = None
    """(N, 3) the environments' origins on it, in the world [m]; None on flat ground."""
    shared: dict[Any, tuple[State, Tensor]] | None = field(default=None, init=False, repr=False)
    """Values of `once` functions of one State and this Context; Env provides the dictionary, a copy has none."""

    @property
    def memory(self) -> dict[str, Tensor]:
        """The name of `task_state` in the first version."""
        raise AttributeError("ctx.memory is now ctx.task_state")

    def rows(self, index: Tensor | slice) -> Context:
        """The Context of some of the environments."""
        fields = ("action", "previous_action", "command", "episode_time", "command_time", "push_time")
        some = replace(
            self,
            **{name: getattr(self, name)[index] for name in fields},
            task_state={name: value[index] for name, value in self.task_state.items()},
            per_env_state={name: value[index] for name, value in self.per_env_state.items()},
            origin=None if self.origin is None else self.origin[index],
        )
        return some if self.shared is None else some.sharing()

    def ground(self, xy: Tensor) -> Tensor:
        """Height (N, ...) of the ground [m] at places (N, ..., 2) [m], from the environments' origins as the positions
        of a State are. It is exactly the surface that the simulator has; 0 on flat ground."""
        if self.terrain is None or self.origin is None:
            return torch.zeros_like(xy[..., 0])
        return self.terrain.height(xy, self.origin)

    def above_ground(self, pos: Tensor) -> Tensor:
        """Height (N, ...) of positions (N, ..., 3) of a State above the ground under them [m]."""
        if self.terrain is None:
            return pos[..., 2]
        return pos[..., 2] - self.ground(pos[..., :2])

    def sharing(self) -> Context:
        """This Context, in which the values of `once` functions are kept from now on."""
        self.shared = {}
        return self


def once(term: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """A function of (state, ctx) that Env computes once a step, however many terms and observations call it.

    Its other arguments are given by keyword. As everywhere in terms, the returned tensor is not changed in place.
    """

    @wraps(term)
    def shared(state: State, ctx: Context, **parameters: float) -> Tensor:
        return computed_once(term, state, ctx, **parameters)

    return shared


def computed_once(term: Callable[..., Tensor], state: State, ctx: Context, **parameters: float) -> Tensor:
    """`term(state, ctx, **parameters)`, or its value from an earlier call with the very same State and Context."""
    if ctx.shared is None:
        return term(state, ctx, **parameters)
    key = (term, *parameters.items())
    try:
        kept = ctx.shared.get(key)
    except TypeError:  # an object without a hash
        return term(state, ctx, **parameters)
    if kept is None:
        kept = ctx.shared[key] = state, term(state, ctx, **parameters)
    computed_of, value = kept
    return value if computed_of is state else term(state, ctx, **parameters)
