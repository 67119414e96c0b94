"""Golden steps: the part of a recording that travels with a bundle, chosen so that whatever goes wrong on the robot's
computer shows in them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
import onnx

from robolearn.config.run_config import Config
from robolearn.export.onnx.branches import Branches, Way
from robolearn.export.record import Recording, on_robot
from robolearn.runtime.bundle import GOLDEN_ROWS

LEAST_EPISODES, MOST_EPISODES = 4, 12
"""Number of episodes among the golden steps."""
EPISODE_STEPS = 80
"""Most control steps of one of them."""
LEAN = 0.15
"""Length of the horizontal part of gravity, in the base's axes, from which a robot leans."""

EVENTS = {
    "command changes": "a command that changes",
    "stop": "a command to stand after one to move",
    "start": "a command to move after one to stand",
    "push standing": "a push while it is told to stand",
    "push moving": "a push while it is told to move",
    "lean": "a lean of more than 9 degrees",
    "reset": "a reset after steps of another episode",
    "other start": "an episode that starts with another task state than the first",
}
"""What should happen in the golden steps, where the task has it: name -> in words."""


@dataclass(frozen=True)
class Golden:
    """The golden steps and what they show."""

    arrays: dict[str, np.ndarray]
    """By name, one episode after the other, (K, ...) each; of task state where an episode starts, (episodes, ...)."""
    events: dict[str, int]
    """How often each of `EVENTS` that the task has happens in them."""
    taken: tuple[int, int]
    """How many ways of branches of the task's code were taken, and how many there are."""
    not_taken: tuple[str, ...]
    """The others, such as `Greater gt_3[0]: false`."""

    def entry(self) -> dict[str, Any]:
        """The manifest's account of them."""
        return {
            "episodes": int(np.count_nonzero(self.arrays["reset"])),
            "steps": len(self.arrays["reset"]),
            "events": self.events,
            "branches": {"ways": self.taken[1], "taken": self.taken[0], "not_taken": list(self.not_taken)},
        }


def eventful(config: Config) -> Config:
    """The configuration to record in: as on the robot, with commands and pushes that come often."""
    run = on_robot(config)
    task: Any = run.task
    changes: dict[str, Any] = {}
    if isinstance(getattr(task.commands, "seconds", None), tuple):
        often = {"seconds": (0.3, 1.0)}
        if isinstance(getattr(task.commands, "standing", None), float):
            often["standing"] = 0.4  # type: ignore[assignment]
        changes["commands"] = replace(task.commands, **often)
    if task.pushes is not None and task.pushes.active:
        changes["pushes"] = replace(task.pushes, seconds=(0.4, 1.2))
    return replace(run, task=replace(task, **changes))


def choose(recording: Recording, model: onnx.ModelProto) -> Golden:
    """The episodes that show the most of `EVENTS` and of the branches of the controller.

    Args:
        recording: T steps of N robots.
        model: the controller.
    """
    branches = Branches(model)
    episodes = _episodes(recording)
    shown = [_shown(recording, branches, robot, start, end) for robot, start, end in episodes]
    possible = set().union(*(set(found) for found in shown))
    chosen: list[int] = []
    missing, steps = set(possible), 0
    while len(chosen) < len(episodes):
        enough = len(chosen) >= LEAST_EPISODES and steps >= GOLDEN_ROWS
        left = [i for i in range(len(episodes)) if i not in chosen]
        # Of episodes that show the same, the longer one.
        best = max(left, key=lambda i: (len(missing & set(shown[i])), episodes[i][2] - episodes[i][1], -i))
        if enough and (not missing & set(shown[best]) or len(chosen) >= MOST_EPISODES):
            break
        chosen.append(best)
        missing -= set(shown[best])
        steps += episodes[best][2] - episodes[best][1]
    parts = [episodes[i] for i in chosen]
    events: dict[str, int] = dict.fromkeys((name for name in EVENTS if _has(recording, name)), 0)
    taken: set[Way] = set()
    for i in chosen:
        for what, count in shown[i].items():
            if isinstance(what, tuple):
                taken.add(what)
            else:
                events[what] += count
    events["reset"] = len(chosen) - 1
    if "other start" in events:
        starts = [_start_of(recording, *parts[0]), *(_start_of(recording, *part) for part in parts[1:])]
        events["other start"] = sum(start != starts[0] for start in starts)
    not_taken = tuple(f"{name}[{i}]: {way}" for name, i, way in sorted(branches.all - taken))
    return Golden(_cut(recording, parts), events, (len(taken), len(branches.all)), not_taken)


def _episodes(recording: Recording) -> list[tuple[int, int, int]]:
    """(robot, first step, end) of every episode, at most EPISODE_STEPS of each."""
    found = []
    steps, robots = recording.reset.shape
    for robot in range(robots):
        starts = [*np.flatnonzero(recording.reset[:, robot]).tolist(), steps]
        found += [(robot, a, min(b, a + EPISODE_STEPS)) for a, b in pairwise(starts)]
    return found


def _start_of(recording: Recording, robot: int, start: int, end: int) -> bytes:
    return b"".join(rows[start, robot].tobytes() for rows in recording.starts.values())


def _has(recording: Recording, event: str) -> bool:
    """Whether a task has such an event at all."""
    if event.startswith("push"):
        return bool(recording.pushed.any())
    if event == "command changes":
        return bool(recording.sensors["command"].shape[-1])
    if event in ("stop", "start"):
        moving = np.abs(recording.sensors["command"]).max(axis=-1, initial=0.0) > 0.01
        return bool(moving.any() and not moving.all())
    if event == "lean":
        return "quat" in recording.sensors
    if event == "other start":
        return any((rows[0] != rows[0, :1]).any() for rows in recording.starts.values())
    return True


def _shown(
    recording: Recording, branches: Branches, robot: int, start: int, end: int
) -> Mapping[str | Way, int]:
    """How often each event happens in an episode, and 1 for each way of a branch that is taken."""
    found: dict[str | Way, int] = {}
    rows = slice(start, end)
    command = recording.sensors["command"][rows, robot]
    moving = np.abs(command).max(axis=1, initial=0.0) > 0.01
    pushed = recording.pushed[rows, robot]
    counts = {
        "command changes": (np.abs(np.diff(command, axis=0)).max(axis=1, initial=0.0) > 0.05).sum(),
        "stop": (moving[:-1] & ~moving[1:]).sum(),
        "start": (~moving[:-1] & moving[1:]).sum(),
        "push standing": (pushed & ~moving).sum(),
        "push moving": (pushed & moving).sum(),
    }
    if "quat" in recording.sensors:
        w, x, y, z = recording.sensors["quat"][rows, robot].T
        aside = np.hypot(2 * (w * y - x * z), 2 * (y * z + w * x))
        counts["lean"] = (aside > LEAN).sum()
    found |= {name: int(count) for name, count in counts.items() if count and _has(recording, name)}
    for way in _ways(recording, branches, robot, start, end):
        found[way] = 1
    return found


def _ways(recording: Recording, branches: Branches, robot: int, start: int, end: int) -> set[Way]:
    if not branches.nodes:
        return set()
    taken: set[Way] = set()
    state = {f"{name}_in": value.copy() for name, value in recording.initial.items()}
    for name, rows in recording.starts.items():
        state[f"{name}_in"][...] = rows[start, robot]
    for t in range(start, end):
        feeds = {name: rows[t, robot][None] for name, rows in recording.sensors.items() if rows.shape[-1]}
        out, found = branches.run({**feeds, **state})
        taken |= found
        state = {name: out[f"{name[:-3]}_out"] for name in state}
    return taken


def _cut(recording: Recording, parts: Sequence[tuple[int, int, int]]) -> dict[str, np.ndarray]:
    def cut(array: np.ndarray) -> np.ndarray:
        return np.concatenate([array[start:end, robot] for robot, start, end in parts])

    out = {name: cut(rows) for name, rows in recording.sensors.items()}
    out |= {n: cut(getattr(recording, n)) for n in ("reset", "observations", "actions", "targets")}
    starts = {
        f"start.{name}": np.stack([rows[start, robot] for robot, start, _ in parts])
        for name, rows in recording.starts.items()
    }
    return out | starts
