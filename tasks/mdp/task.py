"""Task: what the robot should do, as numbers and pure functions, independent of any simulator."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import Field, dataclass, field, replace
from typing import Any, ClassVar, NamedTuple, get_args

import torch

from robolearn.envs.parameters import PARAMETERS, changed_by
from robolearn.envs.robot import Robot
from robolearn.envs.scene import Scene
from robolearn.envs.state import Initial, State, Tensor, quat_multiply, quat_rotate
from robolearn.errors import did_you_mean, listing
from robolearn.tasks.mdp.commands import POSE, VELOCITY, Command, Pushes
from robolearn.tasks.mdp.context import Context, Random, RobotConstants
from robolearn.tasks.mdp.first_form import FieldOrMethod, inherited_rewards
from robolearn.tasks.mdp.observations import VOCABULARY, Mirror, Observation
from robolearn.tasks.mdp.randomization import UNSTATED, Randomized
from robolearn.tasks.mdp.sensing import (
    PERFECT,
    SENSOR_ERRORS,
    Sensing,
    check_error,
    check_sensing,
    with_histories,
)
from robolearn.tasks.mdp.sensors import AGENT, OBJECT_POS, ON_EVERY_ROBOT, Sensor, check_sensors
from robolearn.tasks.mdp.stated import Level, Reward, StatedTerm, Termination

LARGEST_NOISE = 1000.0
"""Largest half-width of noise, in the unit of the item."""

Term = Callable[[State, Context], Tensor]
"""A pure function of State and Context to (N,) or (N, k): it draws no random numbers and changes nothing in place."""


class Ratio(NamedTuple):
    """A metric that counts only in some steps: sum of `total` / sum of `weight`, over steps and environments."""

    total: Tensor
    """(N,) summand of the numerator."""
    weight: Tensor
    """(N,) summand of the denominator; where a step does not count, both are 0."""

    def each(self) -> Tensor:
        """(N,) quotient of this step alone, NaN where it does not count."""
        return self.total / self.weight


RENAMED = {"memory": "task_state", "pose": "initial_state", "targets": "joint_targets"}
"""New names of a task's functions by those of the first version."""


@dataclass
class Task:
    """Base of every task: a dataclass of numbers, in one file, with these functions.

    `task.<field>=...` overrides a field.
    """

    robot: str = ""
    """Name of the robot."""
    control_dt: float = field(default=0.02, metadata={"above": 0.0, "max": 1.0})
    """Control period [s]; each has one action."""
    episode_length_s: float = field(default=20.0, metadata={"above": 0.0, "max": 3600.0})
    """Episode length [s]; running out of it is a time-out, not a failure."""
    action_delay: tuple[int, int] = (0, 0)
    """Range of the delay of actions [control steps], drawn at each reset."""
    observation_delay: tuple[int, int] = (0, 0)
    """Range of the delay of the `policy` observations [control steps], drawn at each reset; it delays the past actions
    among them, too, see `sensing` for a delay of the sensors."""
    packet_loss: float = field(default=0.0, metadata={"min": 0.0, "max": 1.0, "neutral": 0.0})
    """Probability in each control step that an action does not arrive, so that the last joint targets hold."""
    noise: dict[str, float] = field(
        default_factory=dict, metadata={"keys": tuple(VOCABULARY), "open": r"\w+", "names": "_observed"}
    )
    """Half-width of the uniform noise on each item of the `policy` observations, in its unit."""
    sensing: dict[str, Sensing] = field(
        default_factory=dict,
        metadata={
            "keys": ("policy", *VOCABULARY),
            "open": r"\w+",
            "names": "_observed",
            "of": PERFECT,
        },
    )
    """What else happens to an item of the `policy` observations before it arrives: slow noise, bias, delay, drop-out.
    `policy` is every item that is computed from sensors alone and not named itself."""
    history: dict[str, int] = field(
        default_factory=dict,
        metadata={
            "keys": ("policy", "critic", *VOCABULARY),
            "open": r"\w+",
            "names": "_observed",
            "head": "policy",
            "neutral": {},
            "min": 1,
            "max": 1000,
        },
    )
    """Number of samples of an observation group (5 alone is that of `policy`), or of one item of `policy`, the oldest
    first; without, what the items state themselves."""
    randomize: dict[str, Randomized] = field(
        default_factory=dict,
        metadata={"keys": (*PARAMETERS, *SENSOR_ERRORS), "open": ".+/.+", "of": UNSTATED},
    )
    """Range of each physical parameter (`robolearn.envs.parameters`) and of each error of the sensors (imu_tilt,
    imu_bias, encoder_bias), drawn at each reset. A physical one is of the whole scene by its name, of a part as
    `entity/name` or `entity/name/selector`. Of two surfaces in contact the larger friction counts, so that of a part
    shows only above that of what it touches (the floor has 0.8). `distribution`, `when` and `visible` are settings of a
    physical one, see `robolearn.tasks.mdp.randomization`."""
    commands: Command | None = None
    """Commands to the robot, redrawn during an episode; none for a task without commands."""
    pushes: Pushes | None = None
    """Pushes of the robot's base; none for a task without pushes, such as with a fixed base."""
    rewards: dict[str, Reward] = field(default_factory=dict)
    """Function, weight per second and parameters of each reward, stated with `reward`."""
    terminations: dict[str, Termination] = field(default_factory=dict)
    """Function and parameters of each condition that ends an episode without bootstrap, stated with `ends`; time-outs
    are not among them."""

    curricula: dict[str, Level] = field(default_factory=dict)
    """How training becomes harder: what scales with the level of each environment, `commands`, `pushes` or `randomize`,
    and how the level changes, stated with `level`. Evaluation always has the full ranges."""

    defaults: ClassVar[dict[str, Any]] = {}
    """Overrides applied before the user's: sizes, iterations, settings of the task's default learner."""
    cpu_envs: ClassVar[int] = 0
    """`num_envs` on a CPU, in place of the one in `defaults`; 0: the same."""
    learner_defaults: ClassVar[dict[str, dict[str, Any]]] = {}
    """Overrides by the name of a learner, applied over `defaults` where that learner is chosen."""
    observations: ClassVar[dict[str, tuple[str | Observation, ...]]] = {}
    """Items of each observation group: names from VOCABULARY, or Observations. `policy`, what a robot can measure, and
    `critic` are required; other groups may have any name (`learner.actor_groups`, `learner.critic_groups`)."""
    sensors: ClassVar[tuple[Sensor, ...]] = ()
    """What the robot measures besides orientation, angular velocity, joints, and the places of objects."""
    on_robot: ClassVar[dict[str, Any]] = {}
    """Fields with another value on the robot than in training; exports use these."""
    aliases: ClassVar[dict[str, str]] = {}
    """Further names of settings, each with the one it stands for: `{"min_height": "terminations.fallen.height"}`."""
    agents: ClassVar[tuple[str, ...]] = ()
    """The robots of the scene, or parts of one (`robolearn.envs.parts`), that act, `robot` first: every environment is
    then a world as one of them sees it, see `robolearn.envs.agents`. An episode begins for all of a world at once.
    (): one robot."""
    ends_together: ClassVar[bool] = True
    """Whether an episode ends for all agents of a world where one of them terminates. False: each ends alone; what it
    does from then on counts for nothing, and the world starts anew once all have ended."""
    symmetric: ClassVar[bool] = False
    """Whether the task is the same for the robot and its mirror image, which learners may exploit."""

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        own = cls.__dict__.get("terminations")
        if isinstance(own, Field):
            cls._terminations = Task._stated_terminations
        elif callable(own):  # a method, as in the first version
            cls._terminations = own
            cls.terminations = FieldOrMethod(own)  # type: ignore[assignment]

    def __getattr__(self, name: str) -> Any:
        """The value of a setting by its further name, see `aliases`."""
        if target := type(self).aliases.get(name):
            part, key, parameter = target.split(".")
            terms = getattr(self, part)
            if key in terms and parameter in terms[key].parameters:
                return terms[key].parameters[parameter]
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def filled(self) -> Task:
        """The task that acts in an environment: this one, or a copy whose `noise`, `sensing` and `randomize` also have
        what other settings imply. The fields themselves hold only what is stated: a saved run that stated the rest
        would not follow the settings that imply it."""
        return self

    def all_sensors(self) -> tuple[Sensor, ...]:
        """Everything that the robot measures."""
        return (*ON_EVERY_ROBOT, OBJECT_POS, AGENT, *self.sensors)

    def scene(self, robot: Robot) -> Scene:
        """The scene of the task: the robot, what else is in it, and which frames and contacts terms read."""
        return Scene.of(robot)

    def reward_terms(self) -> dict[str, Term]:
        """The functions (state, ctx) -> (N,) of all rewards, by name.

        A task that states only weights in `rewards`, as in the first version, gives their functions here.
        """
        stated = {name: term for name, term in self.rewards.items() if isinstance(term, Reward)}
        if len(stated) < len(self.rewards):
            stated = inherited_rewards(type(self)) | stated
        return {name: self._bound("rewards", name, term) for name, term in stated.items()}

    def reward_weights(self) -> dict[str, float]:
        """The weight of each reward, per second, by name."""
        return {name: float(term) for name, term in self.rewards.items()}

    def termination_terms(self) -> dict[str, Term]:
        """The functions (state, ctx) -> (N,) bool of the active terminations, by name."""
        return self._terminations()

    def terminated(self, state: State, ctx: Context) -> Tensor:
        """One in a step in which an active termination ends the episode (N,)."""
        ended = [term(state, ctx) for term in self.termination_terms().values()]
        return torch.stack(ended).any(dim=0).float() if ended else torch.zeros_like(ctx.episode_time)

    def _stated_terminations(self) -> dict[str, Term]:
        stated = self.__dict__["terminations"]
        return {name: self._bound("terminations", name, term) for name, term in stated.items() if term.active}

    _terminations = _stated_terminations

    def level_terms(self) -> dict[str, Term]:
        """The functions (state, ctx) -> (N,) change of each level in a step, by name."""
        return {name: self._bound("curricula", name, term) for name, term in self.curricula.items()}

    def active_levels(self) -> dict[str, Term]:
        """Those of curricula that are not off, as they are from a first level of 1 with no higher one."""
        return {k: term for k, term in self.level_terms().items() if not self.curricula[k].off}

    def _bound(self, part: str, name: str, term: StatedTerm) -> Term:
        """The function of a reward or termination; a field of the name of an alias replaces the parameter."""
        ours = {target: alias for alias, target in self.aliases.items() if alias in self.__dict__}
        own = {
            key: self.__dict__[ours[f]] for key in term.parameters if (f := f"{part}.{name}.{key}") in ours
        }
        return (replace(term, parameters={**term.parameters, **own}) if own else term).bound(self)

    def _observed(self) -> list[str]:
        """The names of the observation groups and of the items of `policy`."""
        items = self.observations.get("policy", ())
        names = [item if isinstance(item, str) else getattr(item, "name", "") for item in items]
        return [*self.observations, *(name for name in names if name.isidentifier())]

    def items(self, group: str) -> list[Observation]:
        """The observation items of a group, in column order."""
        stated = [VOCABULARY[i] if isinstance(i, str) else i for i in self.observations[group]]
        return with_histories(stated, group, self.history, self.observations)

    def validate(self) -> None:
        """Check the fields for consistency.

        Raises:
            ValueError: names the field, the problem and the fix.
        """
        for name in ("action_delay", "observation_delay"):
            low, high = getattr(self, name)
            if not 0 <= low <= high <= 50:
                raise ValueError(
                    f"{name}=[{low},{high}] must be a range of control steps within 0 to 50, low to high"
                )
        for old, new in RENAMED.items():
            if hasattr(self, old):
                raise ValueError(f"the task defines {old}(), which is now called {new}(); rename it")
        if len(inspect.signature(self.task_state).parameters) == 2:
            raise ValueError(
                "task_state(num_envs, random) is now task_state(num_envs, robot, random); add robot"
            )
        for name, term in self.rewards.items():
            if not isinstance(term, (Reward, int, float)):
                raise ValueError(f"rewards.{name} must be stated as reward(function, weight), not {term!r}")
        for name, end in self.terminations.items():
            if not isinstance(end, Termination):
                raise ValueError(f"terminations.{name} must be stated as ends(function), not {end!r}")
        for name in ("joint_targets", "initial_state"):
            if getattr(type(self), name) is getattr(Task, name):
                raise ValueError(
                    f"the task defines no {name}(); implement it, see robolearn.tasks.mdp.task.Task.{name}"
                )
        for group in ("policy", "critic"):
            if group not in self.observations:
                raise ValueError(
                    f"observations has no group {group!r}; a task needs the groups policy and critic"
                )
        for group, items in self.observations.items():
            if isinstance(items, str) or not isinstance(items, Sequence):
                raise ValueError(
                    f"observations.{group}={items!r} must be a tuple of items, such as ({items!r},)"
                )
            for item in items:
                if not isinstance(item, str | Observation):
                    raise ValueError(
                        f"observations.{group}: {getattr(item, '__name__', item)!r} is neither a name nor an "
                        'Observation; wrap a function as Observation("its_name", function, "same")'
                    )
                if isinstance(item, Observation) and item.mirror not in get_args(Mirror):
                    valid = ", ".join(get_args(Mirror))
                    raise ValueError(
                        f"observations.{group}: {item.name}.mirror={item.mirror!r}; valid: {valid}"
                    )
                if isinstance(item, Observation) and (
                    type(item.history) is not int or not 1 <= item.history <= 1000
                ):
                    raise ValueError(
                        f"observations.{group}: {item.name}.history={item.history!r} must be a whole number, 1 to 1000"
                    )
                if isinstance(item, str) and item not in VOCABULARY:
                    hint = did_you_mean(item, VOCABULARY) or f"; there are {listing(VOCABULARY, 30)}"
                    raise ValueError(f"observations.{group}: no item is called {item!r}{hint}")
        for name, example in (("pushes", "Pushes(speed=(0, 0.5))"), ("commands", "VelocityCommands()")):
            if isinstance(getattr(self, name), Mapping):
                raise ValueError(
                    f"{name} is a dictionary; state it as {name}: {example.partition('(')[0]} | None = "
                    f"field(default_factory=lambda: {example}), of robolearn.tasks.mdp.commands"
                )
        check_sensors(self.sensors)
        sensing, observed = self.filled().sensing, [item.name for item in self.items("policy")]
        check_sensing(sensing, self.history, observed, self.observations)
        if not 0 <= self.packet_loss <= 1:
            raise ValueError(f"packet_loss={self.packet_loss:g} must be a probability, 0 to 1")
        for group in self.observations:
            held = [item.name for item in self.items(group) if item.history > 1]
            if twice := sorted({name for name in held if held.count(name) > 1}):
                raise ValueError(
                    f"observations.{group} holds {twice[0]!r} twice with a history; give one another name"
                )
        self._check_commands()
        policy = list(dict.fromkeys(item.name for item in self.items("policy")))
        for name in self.noise:
            if name not in policy:
                raise ValueError(
                    f"noise.{name}: the group policy has no such item; it has {', '.join(policy)}"
                )
            if not 0 <= self.noise[name] <= LARGEST_NOISE:
                raise ValueError(f"noise.{name}={self.noise[name]:g} must be within 0 to {LARGEST_NOISE:g}")
        if set(self.rewards) != set(self.reward_terms()):
            unmatched = ", ".join(sorted(set(self.rewards) ^ set(self.reward_terms())))
            raise ValueError(
                f"rewards and reward_terms() do not match: {unmatched}; give each term one weight"
            )
        for name, off in (
            ("commands", ""),
            ("pushes", "; {speed: [0,0], box: [0,0,0], turn: [0,0,0]} are none"),
        ):
            if (getattr(self, name) is None) != (getattr(type(self)(), name) is None):
                raise ValueError(
                    f"{name} can be neither added nor removed; change its fields: {name}.<field>=...{off}"
                )
        for name, stated in self.curricula.items():
            if not isinstance(stated, Level):
                raise ValueError(f"curricula.{name} is {stated!r}; it must be a Level")
            if name not in ("commands", "pushes", "randomize") or getattr(self, name) is None:
                raise ValueError(
                    f"curricula.{name}: the task has no {name} to make harder; it takes commands, pushes and randomize"
                )
            if stated.start > stated.most:
                raise ValueError(
                    f"curricula.{name}.start={stated.start:g} is above its highest level: at most "
                    f"curricula.{name}.most={stated.most:g}"
                )
            if name == "commands" and stated.start < 1 and stated.parameters.get("rise", 1.0) == 0:
                raise ValueError(
                    f"curricula.commands.start={stated.start:g} would stay: curricula.commands.rise is 0; use "
                    "curricula.commands.rise=0.2"
                )
            if name != "pushes" and stated.most > 1:
                raise ValueError(
                    f"curricula.{name}.most={stated.most:g}: {name} stays within its ranges; widen these and use 1"
                )
        once = [name for name, drawn in self.randomize.items() if Randomized.of(drawn).when == "start"]
        if once and "randomize" in self.active_levels():
            raise ValueError(
                f"randomize.{once[0]}.when=start with curricula.randomize: it would be drawn before its level rises; "
                "use when=reset"
            )
        for name, drawn in self.randomize.items():
            if name in SENSOR_ERRORS:
                check_error(name, Randomized.of(drawn))
                continue
            entity, _, rest = name.partition("/")
            changed = changed_by(name)
            if changed not in PARAMETERS and entity in PARAMETERS:
                raise ValueError(
                    f"randomize.{name}: a part of the scene is ENTITY/NAME/PATTERN, such as robot/{entity}/{rest}"
                )
            if changed not in PARAMETERS:
                raise ValueError(
                    f"randomize.{name} is unknown{did_you_mean(changed, (*PARAMETERS, *SENSOR_ERRORS))}; there are "
                    f"{', '.join(PARAMETERS)}, each of them for a part of the scene, ENTITY/NAME, and "
                    f"{', '.join(SENSOR_ERRORS)}"
                )
            field_ = PARAMETERS[changed]
            Randomized.of(drawn).validate(f"randomize.{name}", field_.least, field_.most)
        for part in (self.commands, self.pushes):
            if part is not None:
                part.validate()
        names = self.agents
        if not isinstance(names, tuple) or not all(isinstance(name, str) for name in names):
            raise ValueError(f'agents={names!r} must be a tuple of names of robots, as ("robot", "partner")')
        if len(set(names)) < len(names):
            raise ValueError(f"agents={names!r} has a name twice; each robot acts once")
        if not isinstance(self.ends_together, bool):
            raise ValueError(f"ends_together={self.ends_together!r} must be True or False")
        if len(names) > 1 and (self.pushes is not None or self.curricula):
            raise ValueError("agents: a task of several agents has neither pushes nor curricula yet")

    def _check_commands(self) -> None:
        """Refuse observations of a command that the task does not have."""
        names = () if self.commands is None else self.commands.names
        if self.commands is not None and not len(names) == len(self.commands.units) == self.commands.width:
            raise ValueError(
                f"commands: {type(self.commands).__name__} has {len(names)} names, {len(self.commands.units)} "
                f"units and width {self.commands.width}; each column has one name and one unit"
            )
        for group, items in self.observations.items():
            for item, valid in (("velocity_commands", (VELOCITY,)), ("pose_commands", (POSE, POSE[:3]))):
                if item in items and names not in valid:
                    raise ValueError(
                        f"observations.{group}: {item} needs commands with the columns {', '.join(valid[0])}; "
                        f"those of the task are {', '.join(names) or 'none'}"
                    )

    def goal(self, state: State, ctx: Context) -> Tensor | None:
        """Where films and the viewer mark the goal: positions (N, 3) [m] in the world, or poses (N, 7) with
        orientations wxyz; None: nowhere. By default the poses of commands that are poses."""
        names, robot = () if self.commands is None else self.commands.names, state.robot
        if names not in (POSE, POSE[:3]):
            return None
        place = robot.base_pos + quat_rotate(robot.base_quat, ctx.command[:, :3])
        if names != POSE:
            return place
        return torch.cat((place, quat_multiply(robot.base_quat, ctx.command[:, 3:])), dim=1)

    def task_state(self, num_envs: int, robot: RobotConstants, random: Random) -> dict[str, Tensor]:
        """Task state at the start of an episode, by name, (N, ...) each, drawn for every environment of this robot; see
        `advance`."""
        return {}

    def advance(self, state: State, ctx: Context) -> dict[str, Tensor]:
        """Task state after one more control step, as new tensors; called once a step, between simulation and terms."""
        return ctx.task_state

    def per_env_state(self, num_envs: int, random: Random) -> dict[str, Tensor]:
        """What each environment keeps across resets, such as a terrain level, by name, (N, ...) each: the values before
        the first episode."""
        return {}

    def advance_per_env(self, state: State, ctx: Context, done: Tensor) -> dict[str, Tensor]:
        """Per-env state after the episodes in `done` (N,) bool have ended, as new tensors. `state` and `ctx` are those
        of the last step of these episodes. Rows that are not done, or that diverged, keep their values, whatever is
        returned."""
        return ctx.per_env_state

    def terrain_change(self, state: State, ctx: Context) -> Tensor:
        """Change (N,) of the terrain's level should the episode end in this step: 1 harder, -1 easier, 0 as it is.

        A task that does not define it has no levels: its environments get another row at each reset.
        """
        return torch.zeros_like(ctx.episode_time)

    @property
    def has_levels(self) -> bool:
        """Whether the levels of a terrain follow what the robot achieves."""
        return type(self).terrain_change is not Task.terrain_change

    def joint_targets(self, action: Tensor, ctx: Context) -> Tensor:
        """Joint targets (N, A) for actions (N, A): positions [rad, m] or forces [N, Nm], as the actuators take."""
        raise NotImplementedError(f"{type(self).__name__}.joint_targets")

    def initial_state(self, num_envs: int, ctx: Context, random: Random) -> Initial:
        """State after a reset, one row for every environment: of the robot, or of several entities by name. Entities
        that are left out start where the scene has them."""
        raise NotImplementedError(f"{type(self).__name__}.initial_state")

    def metrics(self, state: State, ctx: Context) -> Mapping[str, Tensor | Ratio]:
        """Logged quantities that are not rewarded, (N,) each, in SI units; a `Ratio` where not every step counts."""
        return {}

    def success(self, state: State, ctx: Context) -> Tensor | Ratio | None:
        """How well the robot does what the task is for in this step (N,): 0 for nothing useful, 1 for all of it, below
        0 for the contrary. No reward sees it; `guard=on` compares rewards with it, see docs/guard.md. Measure the
        outcome, such as the motion of the base in the world, and not what a reward measures. None: staying clear of
        terminations is all that is known."""
        return None


# After the dataclass is made, which would take it for the field's default.
Task.terminations = FieldOrMethod(Task._stated_terminations)  # type: ignore[assignment]
