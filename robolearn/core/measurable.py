"""What the policy of a task reads: which fields of State and Context its observations and joint targets depend on.

Found by computing them once while every tensor carries the names of the fields it was computed from. This decides what
a policy may observe: what a robot measures (`Task.sensors`), is told (the command) or remembers (actions, task state).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from robolearn.envs.state import State, Tensor
from robolearn.errors import ConfigError
from robolearn.tasks.mdp.context import Context
from robolearn.tasks.mdp.task import Task

REMEMBERED = ("action", "previous_action", "command", "episode_time")
"""Fields of Context that the robot's computer is given or remembers."""
NOT_REMEMBERED = ("command_time", "push_time")
"""Fields of Context that only the simulation knows: when it drew a command, and when it pushed."""

TARGETS = "joint_targets()"
LEAVING = ("_local_scalar_dense", "nonzero", "equal", "is_nonzero", "masked_select", "unique_consecutive")
"""Operators whose result, or its shape, is read from the numbers of a tensor."""
SHAPES_ONLY = ("zeros_like", "ones_like", "empty_like", "full_like", "new_zeros", "new_ones", "new_empty", "new_full",
               "rand_like", "randn_like")  # fmt: skip
"""Operators that take only the shape of a tensor."""
Names = frozenset[str]


class _Origins(TorchDispatchMode):
    """Follows which named tensors every other one is computed from."""

    def __init__(self) -> None:
        super().__init__()
        self._of: dict[int, Names] = {}
        self._alive: list[Any] = []  # an address is used again once its tensor is gone
        self.left: set[str] = set()
        """Names of the tensors whose numbers were read into Python."""

    def name(self, tensor: Tensor, name: str) -> Tensor:
        """A copy of `tensor` that carries `name`."""
        copy = tensor.detach().clone()
        self._set(copy, frozenset({name}))
        return copy

    def of(self, tensor: Tensor) -> Names:
        """The names that a tensor was computed from."""
        return self._of.get(tensor.untyped_storage()._cdata, frozenset())

    def _set(self, tensor: Tensor, names: Names) -> None:
        self._alive.append(tensor)
        self._of[tensor.untyped_storage()._cdata] = names

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        given = [x for x in tree_leaves((args, kwargs)) if isinstance(x, Tensor)]
        names = frozenset().union(*(self.of(x) for x in given))
        operator = func._schema.name.removeprefix("aten::")
        if operator in LEAVING:
            self.left |= names
        if operator in SHAPES_ONLY:
            names = frozenset()
        for tensor in tree_leaves(out):
            if isinstance(tensor, Tensor):
                self._set(tensor, self.of(tensor) | names)
        return out


@dataclass(frozen=True)
class Reads:
    """What the policy of a task reads."""

    sensors: tuple[str, ...]
    """Names of the sensors, in the order of `Task.all_sensors`."""
    task_state: tuple[str, ...]
    """Names of the task state that observations or joint targets depend on, directly or by its own past."""
    remembered: tuple[str, ...]
    """Fields of Context that they depend on as they were in the step before: `action`, `previous_action`, `command`,
    `episode_time`."""
    targets: tuple[str, ...]
    """What the joint targets depend on: `action`, and other fields, task state and sensors."""


def reads(task: Task, state: State, ctx: Context, num_actions: int) -> Reads:
    """The sensors and the task state that a task's policy observations and joint targets depend on.

    Args:
        state: of N >= 1 environments.
        ctx: of the same.

    Raises:
        ConfigError: one depends on what no robot measures; the observation and the field are named.
    """
    found = _origins(task, state, ctx, num_actions)
    sensors = {f"state.{s.field}" if s.field else f"sensor.{s.name}": s.name for s in task.all_sensors()}
    used: set[str] = set()
    past: set[str] = set()
    keys: dict[str, str] = {}  # task state -> who reads it first
    open_ = [name for name in found if not name.startswith("task_state.")]
    while open_:
        reader = open_.pop(0)
        first = keys.get(reader.removeprefix("task_state."), reader)
        for field in sorted(found[reader]):
            if field in sensors:
                used.add(sensors[field])
            elif field.startswith("task_state."):
                key = field.removeprefix("task_state.")
                if key not in keys:
                    keys[key] = first
                    open_.append(field)
            elif field.removeprefix("ctx.") in REMEMBERED:
                past |= _of_last_step(field.removeprefix("ctx."), reader)
            else:
                through = (
                    "" if first == reader else f" through task state {reader.removeprefix('task_state.')!r}"
                )
                raise ConfigError(_unmeasured(field, first, through))
    _require_unchanged(task, state, ctx, num_actions, frozenset(sensors), frozenset(keys))
    for key in keys:
        if not torch.isfinite(ctx.task_state[key].float()).all():
            raise ConfigError(
                f"task state {key!r} starts at a number that is not finite, and {keys[key]} depends on it; start it at "
                "a finite one"
            )
    order = [s.name for s in task.all_sensors()]
    return Reads(
        tuple(name for name in order if name in used),
        tuple(name for name in ctx.task_state if name in keys),
        tuple(name for name in REMEMBERED if name in past),
        tuple(sorted(name.partition(".")[2] for name in found[TARGETS])),
    )


@dataclass(frozen=True)
class Sources:
    """What the policy of a task is computed from: names of sensors, and of whatever else, such as `ctx.action`."""

    items: dict[str, Names]
    """Of each item of the group `policy`."""
    task_state: dict[str, Names]
    """Of each entry of the task state that the policy depends on."""
    sensors: tuple[str, ...]
    """The sensors that the policy depends on."""


def sources(task: Task, state: State, ctx: Context, num_actions: int) -> Sources:
    """What each item and each entry of the task state is computed from; arguments and errors as for `reads`."""
    needed = reads(task, state, ctx, num_actions)
    found = _origins(task, state, ctx, num_actions)
    sensors = {f"state.{s.field}" if s.field else f"sensor.{s.name}": s.name for s in task.all_sensors()}

    def named(reader: str) -> Names:
        return frozenset(sensors.get(field, field) for field in found[reader])

    items = {item.name: named(f"observation {item.name!r}") for item in task.items("policy")}
    kept = {key: named(f"task_state.{key}") for key in needed.task_state}
    return Sources(items, kept, needed.sensors)


def _of_last_step(field: str, reader: str) -> set[str]:
    """What a field of Context is on the robot, of the step before.

    `ctx.action` is the action of the step before for observations and task state, and that of this step for joint
    targets; the command of this step is known, but the task state advances by the one before.
    """
    if reader == TARGETS:
        return {"action": set(), "previous_action": {"action"}, "command": set()}.get(field, {field})
    if field == "command" and not reader.startswith("task_state."):
        return set()
    return {field, "action"} if field == "previous_action" else {field}


def _unmeasured(field: str, reader: str, through: str) -> str:
    short = field.removeprefix("state.").removeprefix("ctx.")
    move = (
        f"move {reader.partition(' ')[2]} to the critic group" if "observation" in reader else "do without it"
    )
    return (
        f"reward-only field {short} is read by {reader}{through}: no sensor measures it; declare a sensor "
        f"(Task.sensors) or {move}"
    )


def _origins(task: Task, state: State, ctx: Context, num_actions: int) -> Mapping[str, Names]:
    """The fields behind each policy observation, the joint targets and each entry of the task state."""
    mode = _Origins()
    known = named_state(task, state, mode.name)
    given: dict[str, Any] = {
        name: mode.name(getattr(ctx, name), f"ctx.{name}") for name in (*REMEMBERED, *NOT_REMEMBERED)
    }
    task_state = {k: mode.name(v, f"task_state.{k}") for k, v in ctx.task_state.items()}
    per_env = {k: mode.name(v, f"per_env_state.{k}") for k, v in ctx.per_env_state.items()}
    if ctx.origin is not None:
        given["origin"] = mode.name(ctx.origin, "ctx.origin")
    ours = replace(ctx, **given, task_state=task_state, per_env_state=per_env)
    action = mode.name(ctx.action.new_zeros(len(ctx.episode_time), num_actions), "ctx.action")
    found: dict[str, Names] = {}

    def look(name: str, compute: Callable[[], Tensor]) -> None:
        mode.left = set()
        value = compute()
        if mode.left:
            fields = ", ".join(sorted(n.removeprefix("state.").removeprefix("ctx.") for n in mode.left))
            raise ConfigError(
                f"{name} reads numbers of {fields} into Python (`if`, float(), nonzero), which a robot's controller "
                "cannot do: choose with torch.where"
            )
        found[name] = mode.of(value)

    with torch.no_grad(), mode:
        for item in task.items("policy"):
            look(f"observation {item.name!r}", lambda item=item: item.compute(known, ours))  # type: ignore[misc]
        look(TARGETS, lambda: task.joint_targets(action, ours))
        advanced = task.advance(known, ours)
    return found | {f"task_state.{k}": mode.of(v) for k, v in advanced.items()}


def _require_unchanged(
    task: Task, state: State, ctx: Context, num_actions: int, measured: Names, keys: Names
) -> None:
    """Refuse observations and joint targets that change with what no robot measures, although no tensor shows it: where
    a number has left torch, through numpy or a list.

    Raises:
        ConfigError: one does; it is named.
    """
    generator = torch.Generator().manual_seed(0)

    def other(tensor: Tensor, name: str) -> Tensor:
        if name in measured or not tensor.is_floating_point():
            return tensor.clone()
        return torch.rand(tensor.shape, generator=generator).to(tensor)

    action = ctx.action.new_zeros(len(ctx.episode_time), num_actions)
    hidden = {
        n: torch.rand(ctx.push_time.shape, generator=generator).to(ctx.push_time) for n in NOT_REMEMBERED
    }
    task_state = {
        k: v.clone() if k in keys or not v.is_floating_point() else other(v, k)
        for k, v in ctx.task_state.items()
    }
    changed: dict[str, Any] = {**hidden, "task_state": task_state}
    same = named_state(task, state, lambda tensor, _: tensor.clone())
    pair = [(same, ctx), (named_state(task, state, other), replace(ctx, **changed))]
    with torch.no_grad():
        both = [
            {
                **{f"observation {i.name!r}": i.compute(s, c) for i in task.items("policy")},
                TARGETS: task.joint_targets(action, c),
                **{f"task state {k!r}": v for k, v in task.advance(s, c).items() if k in keys},
            }
            for s, c in pair
        ]
    for name, value in both[0].items():
        if not torch.equal(torch.nan_to_num(value.float()), torch.nan_to_num(both[1][name].float())):
            raise ConfigError(
                f"{name} changes with what no sensor measures, although no tensor shows it: compute it with torch from "
                "what a robot measures"
            )


def named_state(task: Task, state: State, name: Callable[[Tensor, str], Tensor]) -> State:
    """The State with each tensor, parameter and sensor replaced by `name(tensor, its name)`."""
    fields = state.tensors()
    by_id = {id(tensor): name(tensor, f"state.{field}") for field, tensor in fields.items()}
    sensors = {
        s.name: name(s(state), f"sensor.{s.name}") for s in task.all_sensors() if s.compute is not None
    }
    params = {k: name(v, f"params.{k}") for k, v in state.params.items()}
    entities = {k: e.each(lambda tensor: by_id[id(tensor)]) for k, e in state.entities.items()}
    return State(entities, params, name(state.diverged, "state.diverged"), sensors)
