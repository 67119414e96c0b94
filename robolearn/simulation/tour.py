"""A tour: a script of commands that shows what a policy can do in a few seconds."""

from __future__ import annotations

from robolearn.simulation.script import GivenCommands, Push, Script
from robolearn.tasks.mdp.commands import VELOCITY, Command, Pushes, VelocityCommands

SHARE = 0.8
"""Of the range of a command, how much the tour asks for: at the very end of the range tracking is worst."""
FASTEST = {"forward": 1.0, "sideways": 0.5, "yaw": 1.0}
"""Largest velocities of a tour [m/s, m/s, rad/s]; what is faster leaves the picture blurred."""
SLOWER = 0.6
"""Share of the forward velocity with which a robot turns as it walks."""

STAGES = ("stand", "walk", "walk and turn", "turn", "sideways", "stop")
_LENGTHS = {
    "stand": 2.0,
    "walk": 5.0,
    "walk and turn": 3.5,
    "turn": 2.5,
    "sideways": 2.5,
    "stop": 4.5,
}
"""Relative length of each stage."""
_PUSHED_AFTER = 1 / 3
"""Share of the last stage after which the robot is pushed: it has come to rest, and there is time to recover."""


def tour(commands: Command | None, seconds: float = 20.0, pushes: Pushes | None = None) -> Script:
    """Stand, walk, walk and turn, turn on the spot, step sideways, stop; and one push, from the left, while it stands.

    Args:
        commands: the task's commands. Velocities are within their ranges; a stage that they leave no room for is left
            out. For commands that are no velocities, and for none, the script is empty: the task's own hold.
        seconds: length of the tour [s].
        pushes: the task's pushes, the largest horizontal one of which the tour has, by speed, force or both; None: no
            push.
    """
    if isinstance(commands, GivenCommands):
        commands = commands.drawn
    if not isinstance(commands, VelocityCommands):
        return Script()
    ranges = commands.ranges()
    fast = {name: _within(*ranges[name], most=FASTEST[name]) for name in VELOCITY}
    rest = {name: _rest(*ranges[name], stands=commands.standing > 0) for name in VELOCITY}
    moves: dict[str, dict[str, float]] = {
        "stand": {},
        "walk": {"forward": fast["forward"]},
        "walk and turn": {"forward": SLOWER * fast["forward"], "yaw": fast["yaw"]},
        "turn": {"yaw": -fast["yaw"] if commands.yaw[0] <= -fast["yaw"] <= commands.yaw[1] else fast["yaw"]},
        "sideways": {"sideways": fast["sideways"]},
        "stop": {},
    }
    stages = [name for name in STAGES if name in ("stand", "stop") or all(moves[name].values())]
    scale = seconds / sum(_LENGTHS[name] for name in stages)
    at, entries = 0.0, []
    for name in stages:
        entries.append((at, {**rest, **moves[name]}))
        at += scale * _LENGTHS[name]
    hardest = 0.0 if pushes is None else pushes.speed[1] + max(pushes.box[:2])
    force, lasting = (0.0, 0.0) if pushes is None else (pushes.force[1], pushes.lasting[1])
    when = entries[-1][0] + scale * _LENGTHS["stop"] * _PUSHED_AFTER
    shoves = (Push(when, hardest, -90.0, force=force, lasting=lasting),) if hardest or force else None
    return Script(tuple(entries), shoves)


def _within(low: float, high: float, most: float) -> float:
    """A velocity towards the further end of a range, and inside it."""
    value = min(SHARE * high, most) if high >= -low else max(SHARE * low, -most)
    return min(max(value, low), high)


def _rest(low: float, high: float, stands: bool) -> float:
    """0, or what is nearest to it in the range of a robot that never learnt to stand."""
    return 0.0 if stands else min(max(0.0, low), high)
