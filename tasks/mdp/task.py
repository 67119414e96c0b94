"""Task: what the robot should do, as numbers and pure functions, apart from any simulator."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple

from robolearn.envs.backend import PARAMETERS
from robolearn.envs.state import InitialState, State, Tensor
from robolearn.errors import did_you_mean, listing
from robolearn.tasks.mdp.commands import Pushes, VelocityCommands
from robolearn.tasks.mdp.context import Context, Random
from robolearn.tasks.mdp.observations import MEASURABLE, VOCABULARY, Observation

BOUNDS = {"friction": (1e-3, 10.0), "mass_scale": (0.01, 100.0), "gain_scale": (0.01, 100.0)}
"""Within which `randomize` may draw each physical parameter: beyond them no robot and no ground is."""

LARGEST_NOISE = 1000.0
"""Largest half-width of noise, in the item's unit."""

Term = Callable[[State, Context], Tensor]
"""A pure function of State and Context to (N,) or (N, k); it draws no random number and changes nothing."""


class Ratio(NamedTuple):
    """A metric in which not every step counts: over steps and environments, sum of `total` / sum of `weight`."""

    total: Tensor
    """(N,)."""
    weight: Tensor
    """(N,) how much this step counts; where it does not, both are 0."""

    def each(self) -> Tensor:
        """(N,) the quotient by itself, NaN where this step does not count."""
        return self.total / self.weight


RENAMED = {"memory": "task_state", "pose": "initial_state", "targets": "joint_targets"}
"""Functions of a task that had another name in the first version."""


@dataclass
class Task:
    """The base of every task. A task is one file: a dataclass of numbers with these functions.

    Its fields are what `task.<field>=...` overrides; its reward weights live in `rewards`.
    """

    robot: str = ""
    """The robot it is for."""
    control_dt: float = field(default=0.02, metadata={"above": 0.0, "max": 1.0})
    """Control period: one action a period [s]."""
    episode_length_s: float = field(default=20.0, metadata={"above": 0.0, "max": 3600.0})
    """Episodes end (time-out, not failure) after this long [s]."""
    action_delay: tuple[int, int] = (0, 0)
    """Control steps by which actions reach the actuators late, drawn from this range at each reset."""
    observation_delay: tuple[int, int] = (0, 0)
    """Control steps by which the policy observes late, drawn from this range at each reset."""
    noise: dict[str, float] = field(default_factory=dict, metadata={"keys": MEASURABLE})
    """Half-width of the uniform noise on each item of the policy's observation."""
    randomize: dict[str, tuple[float, float]] = field(
        default_factory=dict, metadata={"keys": tuple(PARAMETERS)}
    )
    """Range from which each physical parameter (friction, mass_scale, gain_scale) is drawn at a reset."""
    commands: VelocityCommands | None = None
    """What is asked of the robot, redrawn during an episode; none for a task without commands."""
    pushes: Pushes | None = None
    """Shoves of the whole robot; none for a task, such as of a robot bolted down, that knows no shoves."""
    rewards: dict[str, float] = field(default_factory=dict)
    """Weight of each reward term, per second."""

    defaults: ClassVar[dict[str, Any]] = {}
    """Overrides this task applies before the user's: sizes, iterations, settings of its usual learner."""
    learner_defaults: ClassVar[dict[str, dict[str, Any]]] = {}
    """More of them by the name of a learner, applied over `defaults` where that one is chosen."""
    observations: ClassVar[dict[str, tuple[str | Observation, ...]]] = {}
    """Items of each group, `policy` and `critic`, from the vocabulary or the task's own."""
    on_robot: ClassVar[dict[str, Any]] = {}
    """Fields that have another value on the robot than in training, which its runtime is exported with."""
    symmetric: ClassVar[bool] = False
    """The task looks the same to a robot and its mirror image: learners may use that."""

    def reward_terms(self) -> dict[str, Term]:
        """The functions behind `rewards`: a weight needs its term and a term its weight."""
        return {}

    def terminations(self) -> dict[str, Term]:
        """What ends an episode for good, (N,) bool each."""
        return {}

    def items(self, group: str) -> list[Observation]:
        """The observation items of a group, in order."""
        return [VOCABULARY[i] if isinstance(i, str) else i for i in self.observations[group]]

    def validate(self) -> None:
        """Check the numbers against each other.

        Raises:
            ValueError: naming the field, what is wrong with it and what would be right.
        """
        for name in ("action_delay", "observation_delay"):
            low, high = getattr(self, name)
            if not 0 <= low <= high <= 50:
                raise ValueError(f"{name}=[{low},{high}] is not a range of control steps within 0..50")
        for old, new in RENAMED.items():
            if hasattr(self, old):
                raise ValueError(f"the task defines {old}(), which is now called {new}()")
        for name in ("joint_targets", "initial_state"):
            if getattr(type(self), name) is getattr(Task, name):
                raise ValueError(f"the task defines no {name}(); see robolearn.tasks.mdp.task.Task.{name}")
        for group in ("policy", "critic"):
            if group not in self.observations:
                raise ValueError(f"observations has no group {group!r}; a task needs policy and critic")
            for item in self.observations[group]:
                if isinstance(item, str) and item not in VOCABULARY:
                    hint = did_you_mean(item, VOCABULARY) or f"; there are {listing(VOCABULARY, 30)}"
                    raise ValueError(f"observations.{group}: no item is called {item!r}{hint}")
        policy = {item.name for item in self.items("policy")}
        for name in self.noise:
            if name not in policy:
                raise ValueError(
                    f"noise.{name}: the policy does not observe it; it observes {', '.join(policy)}"
                )
            if not 0 <= self.noise[name] <= LARGEST_NOISE:
                raise ValueError(
                    f"noise.{name}={self.noise[name]:g} is no half-width of noise; give 0 to {LARGEST_NOISE:g}"
                )
        for measured in self.items("policy"):
            if measured.deployed is None:
                raise ValueError(
                    f"the policy observes {measured.name!r}, which no robot measures; move it to the critic group"
                )
        if set(self.rewards) != set(self.reward_terms()):
            odd = ", ".join(sorted(set(self.rewards) ^ set(self.reward_terms())))
            raise ValueError(f"rewards and reward_terms() disagree about {odd}; give each term one weight")
        for name, (low, high) in self.randomize.items():
            if name not in PARAMETERS:
                raise ValueError(f"randomize.{name} is none of {', '.join(PARAMETERS)}")
            least, most = BOUNDS[name]
            if not least <= low <= high <= most:
                raise ValueError(
                    f"randomize.{name}=[{low},{high}] is no range within {least:g} to {most:g}, low to high"
                )
        for name in ("commands", "pushes"):
            if (getattr(self, name) is None) != (getattr(type(self)(), name) is None):
                raise ValueError(f"{name}: this task either has {name} or has not; change their parts only")
        for part in (self.commands, self.pushes):
            if part is not None:
                part.validate()

    def task_state(self, num_envs: int, random: Random) -> dict[str, Tensor]:
        """The task's own state at the start of an episode, (N, ...) each; drawn for every environment."""
        return {}

    def advance(self, state: State, ctx: Context) -> dict[str, Tensor]:
        """The task state after one more control step, as new tensors. Called once a step, after simulating."""
        return ctx.task_state

    def per_env_state(self, num_envs: int, random: Random) -> dict[str, Tensor]:
        """What is kept of each environment across resets, such as a terrain level, (N, ...) each, before the first
        episode."""
        return {}

    def advance_per_env(self, state: State, ctx: Context, done: Tensor) -> dict[str, Tensor]:
        """The per-env state after the episodes in `done` (N,) bool have ended, as new tensors; `state` and `ctx` are
        still those of the step they ended with. Rows that are not done stay as they were, whatever is returned."""
        return ctx.per_env_state

    def joint_targets(self, action: Tensor, ctx: Context) -> Tensor:
        """Actions (N, A) to what the actuators are sent, (N, A): positions [rad, m] or forces [N, Nm]."""
        raise NotImplementedError(f"{type(self).__name__}.joint_targets")

    def initial_state(self, num_envs: int, ctx: Context, random: Random) -> InitialState:
        """Where a reset puts the robot, a row for every environment."""
        raise NotImplementedError(f"{type(self).__name__}.pose")

    def metrics(self, state: State, ctx: Context) -> Mapping[str, Tensor | Ratio]:
        """Quantities worth watching that are not rewarded, (N,) each, in SI units; a `Ratio` where not
        every step counts."""
        return {}

    def deployed(self) -> dict[str, Any]:
        """What the robot's computer must know of this task besides names, scales and gains; plain values."""
        return {}
