"""Checks a task against its backend, and every part of it once, so that an error names the part and its place."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from robolearn.core.learner_env import LEVEL
from robolearn.core.measurable import reads
from robolearn.envs.backend import MOTOR_DELAY, Capabilities
from robolearn.envs.parameters import PARAMETERS
from robolearn.envs.randomize import ALWAYS, settable
from robolearn.envs.scene import ROBOT, Scene
from robolearn.envs.state import Initial, InitialState, State, Tensor, by_entity
from robolearn.errors import ConfigError
from robolearn.tasks.mdp.commands import Command, Drawn
from robolearn.tasks.mdp.context import Context, Random
from robolearn.tasks.mdp.observations import Observation
from robolearn.tasks.mdp.randomization import Randomized
from robolearn.tasks.mdp.sensing import SENSOR_ERRORS
from robolearn.tasks.mdp.task import Ratio, Task


def idle(task: Task, scene: Scene) -> frozenset[str]:
    """The parameters of `task.randomize` that nothing in the scene has, and that nobody asked for: gains where no motor
    is a PD law, or masses where nothing moves, within the task's own default range or one that changes nothing."""
    usual = settable(scene)
    absent = [name for name in ALWAYS if name in task.randomize and name not in usual]

    def unasked(name: str) -> bool:
        drawn, neutral = Randomized.of(task.randomize[name]), PARAMETERS[name].neutral
        if tuple(drawn) == (neutral, neutral):
            return True
        own = type(task)().randomize
        return name in own and drawn == Randomized.of(own[name])

    return frozenset(name for name in absent if unasked(name))


def check_backend(task: Task, scene: Scene, capabilities: Capabilities) -> int:
    """Physics steps in a control step of this task.

    Raises:
        ValueError: they are no whole number, or the backend cannot set a parameter that the task randomizes.
    """
    timestep, name = capabilities.timestep, capabilities.name
    substeps = round(task.control_dt / timestep)
    if substeps < 1 or abs(substeps * timestep - task.control_dt) > 1e-9:
        raise ValueError(
            f"task.control_dt={task.control_dt:g} is not a multiple of the {timestep:g} s physics step of "
            f"backend={name}; use {max(1, substeps) * timestep:g}"
        )
    unsettable = set(task.randomize) - capabilities.params - set(SENSOR_ERRORS) - idle(task, scene)
    if MOTOR_DELAY in unsettable:
        raise ValueError(
            f"task.randomize.{MOTOR_DELAY}: no motor of the robot has a range of delays; state one, such as "
            "robot.actuators.JOINT={model: explicit, delay: [0, 2]}"
        )
    if unsettable:
        raise ValueError(
            f"task.randomize.{min(unsettable)}: backend={name} cannot set it; it can set "
            f"{', '.join(sorted(capabilities.params))}"
        )
    if task.pushes is not None and task.pushes.forces and "forces" not in capabilities.features:
        raise ValueError(
            f"task.pushes.force={list(task.pushes.force)}: backend={name} has no forces on a robot's base; use "
            "task.pushes.force=[0,0], or choose another backend"
        )
    return substeps


def check_parts(
    task: Task, state: State, ctx: Context, num_actions: int
) -> dict[str, list[tuple[Observation, int]]]:
    """Call every term and function of a task once and check what it returns.

    Returns:
        The items of each observation group with their widths, in the order of the columns.

    Raises:
        ConfigError: one of them raises, or returns another shape or type than it must.
    """
    n, device = len(ctx.episode_time), ctx.episode_time.device
    levels = {name: term for name, term in task.active_levels().items() if LEVEL + name in ctx.per_env_state}
    for kind, terms, dtype in (
        ("reward", task.reward_terms(), None),
        ("termination", task.termination_terms(), torch.bool),
        ("curriculum", levels, None),
    ):
        for name, term in terms.items():
            value = tried(f"{kind} {name!r}", term, state, ctx)
            require_shape(f"{kind} {name!r}", value, (n,), "one number an environment")
            if dtype is not None and value.dtype != dtype:
                raise ConfigError(
                    f"{kind} {name!r} returns {value.dtype}, and must return {dtype}: compare it"
                )
    for name, value in tried("metrics()", task.metrics, state, ctx).items():
        for part in value if isinstance(value, Ratio) else (value,):
            require_shape(f"metric {name!r}", part, (n,), "one number an environment")
    following = tried("advance()", task.advance, state, ctx)
    _require_same_tree("task state", "task_state() and advance()", state, ctx.task_state, following)
    never = torch.zeros(n, dtype=torch.bool, device=device)
    following = tried("advance_per_env()", task.advance_per_env, state, ctx, never)
    kept = ctx.per_env_state
    if isinstance(kept, dict) and isinstance(following, dict):
        # Beside the task's own there are the levels and what a terrain adds, which it may leave out.
        own = tried("per_env_state()", task.per_env_state, n, Random(0, device))
        following = {name: value for name, value in kept.items() if name not in own} | following
    _require_same_tree("per-env state", "per_env_state() and advance_per_env()", state, kept, following)
    _check_commands(task, state, ctx)
    shape = (n, num_actions)
    targets = tried("joint_targets()", task.joint_targets, torch.zeros(shape, device=device), ctx)
    require_shape("joint_targets()", targets, shape, "one an actuator")
    columns: dict[str, list[tuple[Observation, int]]] = {}
    for group in task.observations:
        columns[group] = []
        for item in task.items(group):
            value = tried(f"observation {item.name!r}", item.compute, state, ctx)
            width = value.shape[1] if isinstance(value, Tensor) and value.dim() == 2 else 1
            require_shape(
                f"{group} observation {item.name!r}", value, (n, width), "columns, even if only one"
            )
            columns[group].append((item, width))
    # What the policy observes has to be there on the robot: known before a training, not at its export.
    reads(task, state, ctx, num_actions)
    if len(task.agents) > 1:
        _require_own_rows(task, state, ctx, num_actions)
    return columns


def draw(commands: Command, n: int, random: Random) -> Drawn:
    """Commands of n environments.

    Raises:
        ConfigError: `sample` raises, or returns something else.
    """
    drawn = tried("commands.sample()", commands.sample, n, random)
    if not isinstance(drawn, Drawn):
        raise ConfigError(
            "commands.sample() must return robolearn.tasks.mdp.commands.Drawn(values, seconds, aim)"
        )
    return drawn


def _check_commands(task: Task, state: State, ctx: Context) -> None:
    """Draw and follow the task's commands once, and check the shapes."""
    commands, n = task.commands, len(ctx.episode_time)
    if commands is None:
        return
    values, seconds, aim = draw(commands, n, Random(0, ctx.episode_time.device))
    shape, meaning = (n, commands.width), "a row of values an environment"
    require_shape("commands.sample(): values", values, shape, meaning)
    require_shape("commands.sample(): seconds", seconds, (n,), "one number an environment")
    for name, value in aim.items():
        if not isinstance(value, Tensor) or value.shape[:1] != (n,):
            raise ConfigError(f"commands.sample(): aim {name!r} must be a tensor ({n}, ...)")
    following = tried("commands.follow()", commands.follow, values, aim, state, ctx)
    require_shape("commands.follow()", following, shape, meaning)


def takes_rows(task: Task, state: State, ctx: Context) -> bool:
    """Whether the observations of some environments are those rows of the observations of all: not where the task holds
    tensors with a row for each, or counts rows."""
    n = len(ctx.episode_time)
    if n <= 2:
        return False
    ids = torch.tensor([0, n - 1], device=ctx.episode_time.device)
    some, few = state.rows(ids), ctx.rows(ids)
    for item in (item for group in task.observations for item in task.items(group)):
        try:
            value = item.compute(some, few)
        except (RuntimeError, IndexError):
            return False  # shapes that do not fit
        if not torch.equal(value, item.compute(state, ctx)[ids]):
            return False
    return True


def _require_own_rows(task: Task, state: State, ctx: Context, num_actions: int) -> None:
    """Refuse policy observations and joint targets of an environment that depend on other environments, such as the
    neighbouring one, which is the same world as another agent sees it.

    Raises:
        ConfigError: one does; it is named.
    """
    generator = torch.Generator().manual_seed(0)

    def other(tensor: Tensor) -> Tensor:
        if not tensor.is_floating_point():
            return tensor
        return torch.rand(tensor.shape, generator=generator).to(tensor)

    named = ("action", "previous_action", "command", "episode_time", "command_time", "push_time")
    fields: dict[str, Any] = {name: other(getattr(ctx, name)) for name in named}
    varied = replace(
        ctx,
        **fields,
        task_state={name: other(value) for name, value in ctx.task_state.items()},
        per_env_state={name: other(value) for name, value in ctx.per_env_state.items()},
    )
    world, action = state.each(other), other(ctx.action.new_zeros(len(ctx.episode_time), num_actions))
    parts: dict[str, Callable[[State, Context, Tensor], Tensor]] = {
        f"observation {item.name!r}": lambda s, c, a, item=item: item.compute(s, c)  # type: ignore[misc]
        for item in task.items("policy")
    }
    parts["joint_targets()"] = lambda s, c, a: task.joint_targets(a, c)
    one = torch.tensor([1], device=ctx.episode_time.device)
    for name, compute in parts.items():
        try:
            alone = compute(world.rows(one), varied.rows(one), action[one])
            fits = torch.allclose(
                alone, compute(world, varied, action)[one], rtol=1e-4, atol=1e-6, equal_nan=True
            )
        except (RuntimeError, IndexError):
            fits = False
        if not fits:
            raise ConfigError(
                f"{name} of an environment depends on other environments: a robot does not know what another agent "
                "sees; compute it from its own row alone"
            )


def _require_same_tree(
    what: str, functions: str, state: State, starts: dict[str, Tensor], following: dict[str, Tensor]
) -> None:
    """Refuse tensors of which two functions give different shapes or types, or that the next step overwrites."""
    if not isinstance(starts, dict) or not isinstance(following, dict):
        raise ConfigError(f"{what}: {functions} must each return a dictionary of tensors by name")
    taken = {t.untyped_storage().data_ptr() for t in state.tensors().values()}
    n = len(state.robot.base_pos)
    for name in {**starts, **following}:
        value, start = following.get(name), starts.get(name)
        if value is None or start is None or value.shape != start.shape or value.shape[:1] != (n,):
            raise ConfigError(f"{what} {name!r}: {functions} must both give it, of one shape ({n}, ...)")
        if value.dtype != start.dtype:
            raise ConfigError(
                f"{what} {name!r}: {functions} must agree on its type, {start.dtype} or {value.dtype}"
            )
        if value.untyped_storage().data_ptr() in taken:
            raise ConfigError(
                f"{what} {name!r} is a tensor of the State, overwritten by the next step; clone it"
            )


def tried(what: str, function: Any, *arguments: Any) -> Any:
    """Call a part of a task for the first time.

    Raises:
        ConfigError: it raised; the part, the error and the line are named.
    """
    try:
        return function(*arguments)
    except ConfigError as error:
        raise ConfigError(f"{what}: {error}") from error
    except Exception as error:
        place = traceback.extract_tb(error.__traceback__)[-1]
        where = f"{Path(place.filename).name}:{place.lineno}"
        raise ConfigError(f"{what} raised {type(error).__name__}: {error} ({where})") from error


def require_shape(name: str, value: Any, shape: tuple[int, ...], meaning: str) -> None:
    """Raise ConfigError, naming it, for anything but a tensor of that shape."""
    found = tuple(value.shape) if isinstance(value, Tensor) else type(value).__name__
    if found != shape:
        raise ConfigError(f"{name} returns {found}, and must return a tensor {shape}: {meaning}")


def initial_values(
    initial: Initial, state: State, num_envs: int, agents: Sequence[str] = ()
) -> Iterator[tuple[str, Tensor]]:
    """The values of a task's initial states with their names, such as `joint_pos`, or `ENTITY.joint_pos` of an entity
    that is not the robot.

    Raises:
        ConfigError: one is no initial state, a value has another shape, or one of several agents has none.
    """
    given = by_entity(initial, state.entities)
    if len(agents) > 1 and (missing := [name for name in agents if name not in given]):
        raise ConfigError(
            f"initial_state() leaves out the agent {missing[0]!r}; give the states of {', '.join(agents)} by name"
        )
    rows = "a row an environment" + (
        f", {len(agents)} a world, one for each agent" if len(agents) > 1 else ""
    )
    for entity, start in given.items():
        joints = state.entities[entity].joint_pos.shape[1]
        widths = {"base_quat": 4, "joint_pos": joints, "joint_vel": joints}
        what = "initial_state()" if entity == ROBOT else f"initial_state()[{entity!r}]"
        if not isinstance(start, InitialState):
            raise ConfigError(f"{what} is {start!r:.80}; it must be a robolearn.envs.state.InitialState")
        for name, value in vars(start).items():
            require_shape(f"{what}.{name}", value, (num_envs, widths.get(name, 3)), rows)
            yield (name if entity == ROBOT else f"{entity}.{name}"), value
