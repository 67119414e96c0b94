"""What is active in a run: observations, rewards, terminations, commands and the differences between reality and model.

The same rows are printed by `train --show` and at the start of a run.
"""

from __future__ import annotations

import dataclasses
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rich.table import Table
from rich.text import Text

from robolearn.core.task_check import idle
from robolearn.envs.actuators.model import by_model
from robolearn.envs.scene import ROBOT, Object, Scene
from robolearn.errors import listing
from robolearn.tasks.mdp.observations import Observation
from robolearn.tasks.mdp.randomization import Randomized
from robolearn.tasks.mdp.stated import Level, StatedTerm
from robolearn.tasks.mdp.task import Task

Columns = Mapping[str, Sequence[tuple[Observation, int]]]
"""Items of each observation group with their widths, as `Env.columns`."""
Sections = dict[str, list[tuple[str, str]]]
"""Rows (name, values) by the title of their section."""

NAME_WIDTH = 36
"""Characters of the names in the list, at most as far as values begin in the same line."""
OFF = "off"
"""Values of what the task has and the settings turn off."""


def active(task: Any, columns: Columns | None = None, scene: Scene | None = None) -> Sections:
    """What is active in `task`; empty for a task of an external environment.

    Args:
        task: the task.
        columns: widths of the observations, where they are known.
        scene: the scene, where it is known; listed unless it is a robot alone.
    """
    if not isinstance(task, Task):
        return {}
    task = task.filled()
    without = idle(task, scene) if scene is not None else ()
    sections = {} if scene is None or _plain(scene) else {"scene": _scene(scene)}
    if scene is not None and (motors := _motors(scene)):
        sections["motors"] = motors
    sections |= {
        "observations": [_group(task, group, columns) for group in task.observations],
        "rewards": [_reward(task, name) for name in task.rewards],
        "terminations": _terminations(task),
        "curricula": _curricula(task),
        "commands": _fields(task.commands),
        "pushes": _fields(task.pushes, off=task.pushes is not None and not task.pushes.active),
        "randomize": [
            (name, OFF if name in without else f"{_value(tuple(each))}{Randomized.of(each).notes()}")
            for name, each in task.randomize.items()
        ],
        "noise": [(name, _value(half) if half else OFF) for name, half in task.noise.items()],
        **({"sensing": _sensing(task)} if task.sensing else {}),
        "delays": [
            (name, f"{_value(steps)} control steps" if max(steps) else OFF)
            for name, steps in (("action", task.action_delay), ("observation", task.observation_delay))
        ]
        + [("packet loss", _value(task.packet_loss))] * bool(task.packet_loss),
    }
    return {title: rows or [("none", "")] for title, rows in sections.items()}


def _motors(scene: Scene) -> list[tuple[str, str]]:
    """The joints with a model of their motors, and that model."""
    rows = []
    for entity, robot in scene.robots.items():
        for model, joints in by_model(
            (a.joint, a.motor.stated()) for a in robot.actuators if a.motor
        ).items():
            names = [joint if entity == ROBOT else f"{entity}/{joint}" for joint in joints]
            told = [listing(names, limit) for limit in (4, 3, 2, 1)]
            rows.append((next((text for text in told if len(text) <= NAME_WIDTH), told[-1]), model))
    return rows


def _plain(scene: Scene) -> bool:
    return scene.alone and not scene.frames and not scene.contacts and scene.terrain is None


def _scene(scene: Scene) -> list[tuple[str, str]]:
    """Every entity, with its frames and contacts."""
    rows = []
    for name, entity in scene.entities.items():
        what = (
            f"{'fixed ' if entity.fixed else ''}{entity.shape} of {_value(entity.size)} m, {entity.mass:g} kg"
            if isinstance(entity, Object)
            else entity.name
        )
        parts = [what]
        if frames := scene.frames.get(name):
            parts.append(f"frames {', '.join(frames)}")
        for label, contact in scene.contacts.get(name, {}).items():
            on = f" on {', '.join(contact.bodies)}" if contact.bodies else ""
            parts.append(f"contact {label}: {contact.other or 'anything'}{on}")
        rows.append((name, "; ".join(parts)))
    if (terrain := scene.terrain) is not None:
        shares = ", ".join(f"{kind} {_value(share)}" for kind, share in terrain.kinds.items() if share)
        rows.append(
            (
                "terrain",
                f"{terrain.rows} rows of {terrain.columns} tiles; {shares or 'all kinds without pits'}",
            )
        )
    return rows


def table(sections: Sections) -> Table:
    """The rows for a terminal."""
    grid = Table.grid(padding=(0, 2))
    for overflow in (False, False, True):
        grid.add_column(no_wrap=not overflow)
    for title, rows in sections.items():
        for i, (name, values) in enumerate(rows):
            style = "dim" if values == OFF else ""
            grid.add_row(
                Text("" if i else title, style="bold"), Text(name, style=style), Text(values, style=style)
            )
    return grid


def comments(sections: Sections, width: int = 110) -> str:
    """The rows as comments of a YAML file, an empty text without rows."""
    if not sections:
        return ""
    left = max(len(title) for title in sections) + 2
    names = [name for rows in sections.values() for name, _ in rows]
    middle = max((len(name) for name in names if len(name) <= NAME_WIDTH), default=0) + 2
    lines = ["# Active in this run:"]
    for title, rows in sections.items():
        for i, (name, values) in enumerate(rows):
            head = f"# {'' if i else title:<{left}}{name:<{middle}}"
            indent = f"#{'':<{left + middle + 1}}"
            found = textwrap.wrap(values, width - len(indent))
            # Values of a longer name begin in the next line.
            first = found.pop(0) if found and len(head) <= len(indent) else ""
            lines.append(f"{head}{first}".rstrip())
            lines += [f"{indent}{more}" for more in found]
    return "\n".join(lines) + "\n"


def _group(task: Task, group: str, columns: Columns | None) -> tuple[str, str]:
    if columns is None:
        return group, ", ".join(f"{item.name}{_history(item)}" for item in task.items(group))
    widths = columns[group]
    total = sum(width for _, width in widths)
    return f"{group} ({total})", ", ".join(f"{item.name} {width}{_history(item)}" for item, width in widths)


def _history(item: Observation) -> str:
    return f" ({item.history} samples)" if item.history > 1 else ""


def _sensing(task: Task) -> list[tuple[str, str]]:
    """What happens to observations before they arrive, besides white noise."""
    return [(name, _listed(each.stated().items()) or OFF) for name, each in task.sensing.items()]


def _reward(task: Task, name: str) -> tuple[str, str]:
    term, weight = task.rewards[name], task.reward_weights()[name]
    if not weight:
        return name, OFF
    return name, _listed([("weight", weight), *_parameters(term)])


def _terminations(task: Task) -> list[tuple[str, str]]:
    """The conditions, and the time-out."""
    acting, stated = task.termination_terms(), task.terminations
    names = dict.fromkeys((*stated, *acting)) if set(stated) >= set(acting) else dict.fromkeys(acting)
    rows = [(name, _listed(_parameters(stated.get(name))) if name in acting else OFF) for name in names]
    return [*rows, ("time-out", f"after {task.episode_length_s:g} s")]


def _curricula(task: Task) -> list[tuple[str, str]]:
    """What becomes harder in training, with its first level; off where it has the full range from the start."""
    return [(name, OFF if term.off else _listed(_level(term))) for name, term in task.curricula.items()]


def _level(term: Level) -> Iterable[tuple[str, Any]]:
    return [("start", term.start), ("most", term.most), ("full", term.full), *_parameters(term)]


def _parameters(term: Any) -> Iterable[tuple[str, Any]]:
    return term.parameters.items() if isinstance(term, StatedTerm) else ()


def _fields(part: Any, off: bool = False) -> list[tuple[str, str]]:
    """The settings of a dataclass in one row, by the name of its class."""
    if part is None:
        return []
    values = (
        [(f.name, getattr(part, f.name)) for f in dataclasses.fields(part)]
        if dataclasses.is_dataclass(part)
        else []
    )
    return [(type(part).__name__, OFF if off else _listed(values))]


def _listed(values: Iterable[tuple[str, Any]]) -> str:
    return ", ".join(f"{name} {_value(value)}" for name, value in values)


def _value(value: Any) -> str:
    if isinstance(value, (tuple, list)):
        return f"[{', '.join(_value(part) for part in value)}]"
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:g}" if isinstance(value, (int, float)) else str(value)
