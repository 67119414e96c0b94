"""`robolearn replay`: simulates a recorded second again, bit for bit, and says what went wrong first."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mujoco
import numpy as np
import torch

from robolearn.commands.play.play import CONTAINERS
from robolearn.envs.scene import ROBOT
from robolearn.envs.state import State, quat_rotate
from robolearn.errors import ConfigError, quote
from robolearn.simulation.posed import Posed
from robolearn.training import replay as files
from robolearn.training.replay import Opened, Replay
from robolearn.training.runs import require_writable

SHOWN = 15
"""Rows of the table unless more are asked for."""
FAST = 25.0
"""Frames of a video for each second of its playing time."""


@dataclass(frozen=True)
class Row:
    """The robot after one control step."""

    time: float
    """[s] before the end."""
    height: float
    """Of the base [m]."""
    tilt: float
    """Angle between the base's z axis and the vertical [deg]."""
    speed: float
    """Largest joint velocity, in `unit`."""
    fastest: str
    """Its joint."""
    unit: str
    """rad/s, or m/s of a sliding joint."""
    torque: float
    """Largest joint torque as a share of its limit."""
    strongest: str
    """Its joint."""
    force: float
    """Sum of the contact forces on the feet [N]."""
    depth: float
    """Deepest contact [m]."""
    told: str
    """Pushes, new parameters and resets before the step, and what is not finite after it."""


def replay(
    path: Path,
    video: Path | None = None,
    rows: int = SHOWN,
    slow: float = 4.0,
    overrides: Sequence[str] = (),
    view: bool = False,
    host: str = "127.0.0.1",
    port: int | None = None,
) -> bool:
    """Simulate a replay file again and print a table of its steps.

    Args:
        path: the file.
        video: file for a video; None: none.
        rows: rows of the table, the last ones; 0: all.
        slow: how many times slower than real time the video is.
        overrides: `task=FILE.py:NAME` for a task from a file, which is not imported otherwise.
        view: show it in the browser, until interrupted.
        host: address of the viewer.
        port: of the viewer; None: 8080, or the next free one.

    Returns:
        Whether the end has the recorded bits.

    Raises:
        ConfigError: the file is damaged, or does not fit this installation.
        MissingError: a video was asked for, and there is no renderer or encoder.
    """
    if not 0.1 <= slow <= 100:
        raise ConfigError(f"--slow {slow:g} is not within 0.1..100")
    if video is not None:
        if video.suffix.lower() not in CONTAINERS:
            raise ConfigError(
                f"--video {quote(str(video), 120)}: the file must end in {', '.join(CONTAINERS)}"
            )
        require_writable(video.parent)
    if view:
        from robolearn.commands.viewer.server import free_port, require_viser

        require_viser()
        free_port(host, port)
    recorded = files.read(path)
    with tempfile.TemporaryDirectory() as folder, files.opened(recorded, Path(folder), overrides) as env:
        states: list[State] = []
        table = list(_rows(recorded, env, states if video is not None or view else None))
        same = files.same_bits(recorded, env)
        _print(recorded, env, table, rows, same)
        if video is not None:
            _film(env, states, table, video, slow)
            print(f"wrote {video}")
        if view:
            from robolearn.commands.viewer.stepping import Stepping

            stepping = Stepping(env.scene, states, [_told(row) for row in table], env.dt, host, port)
            print(stepping.url, flush=True)
            stepping.run()
    return same


def _rows(recorded: Replay, env: Opened, states: list[State] | None) -> Iterator[Row]:
    posed = Posed(env.scene)
    told: list[str] = []
    acting = False
    total = recorded.steps * env.dt

    def note(event: dict[str, Any]) -> None:
        nonlocal acting
        if event["kind"] == "push":
            if speed := float(event["jump"][0].norm()):
                told.append(f"pushed by {speed:.2f} m/s")
        elif event["kind"] == "force":
            force, before = float(event["force"][0].norm()), acting
            acting = force > 0
            if acting and not before:
                told.append(f"pushed by {force:.0f} N")
        elif event["kind"] in ("params", "reset"):
            told.append({"params": "new parameters", "reset": "new episode"}[event["kind"]])

    for step, state in enumerate(files.steps_of(recorded, env, note)):
        if states is not None:
            states.append(state.clone())
        yield _row(state, env, posed, total - step * env.dt, told)
        told.clear()


def _row(state: State, env: Opened, posed: Posed, time: float, told: list[str]) -> Row:
    robot, entity = env.robot, state.entities[env.entity]
    wrong = [name for name, values in state.tensors().items() if not bool(torch.isfinite(values).all())]
    effort = {actuator.joint: actuator.effort for actuator in robot.actuators}
    limits = np.array([effort.get(joint) or np.inf for joint in robot.joints])
    speeds = np.abs(entity.joint_vel[0].double().cpu().numpy())
    shares = np.abs(entity.joint_torque[0].double().cpu().numpy()) / limits
    up = quat_rotate(entity.base_quat, torch.tensor([[0.0, 0.0, 1.0]], device=entity.base_quat.device))[0, 2]
    here = torch.ones(1, dtype=torch.bool)
    fast, strong = (int(np.argmax(values)) if len(values) else 0 for values in (speeds, shares))
    return Row(
        time=time,
        height=float(entity.base_pos[0, 2]),
        tilt=float(np.degrees(np.arccos(np.clip(float(up), -1, 1)))),
        speed=float(speeds.max(initial=0.0)),
        fastest=robot.joints[fast] if len(speeds) else "-",
        unit=_unit(env, posed, robot.joints[fast]) if len(speeds) else "rad/s",
        torque=float(shares.max(initial=0.0)),
        strongest=robot.joints[strong] if len(shares) else "-",
        force=float(entity.foot_force.norm(dim=-1).sum()),
        depth=float(posed.penetration(state, here)[0]),
        told=", ".join(
            [*told, *(f"{name} not finite" for name in wrong), *(["diverged"] * bool(state.diverged[0]))]
        ),
    )


def _unit(env: Opened, posed: Posed, joint: str) -> str:
    """Of a joint's velocity."""
    kind = posed.model.joint(env.scene.prefix(env.entity) + joint).type[0]
    return "m/s" if kind == int(mujoco.mjtJoint.mjJNT_SLIDE) else "rad/s"


def _print(recorded: Replay, env: Opened, table: list[Row], rows: int, same: bool) -> None:
    name, backend = env.robot.name, env.backend.capabilities.name
    print(f"{recorded.path}: {recorded.why}")
    who = f"environment {recorded.env}" + ("" if env.entity == ROBOT else f", {env.entity}")
    print(f"{name} on {backend}, {who}: {recorded.steps} control steps of {env.dt:g} s")
    heads = (
        "before end",
        "height",
        "tilt",
        "fastest joint",
        "torque",
        "strongest joint",
        "feet",
        "contact",
        "",
    )
    lines = [
        (
            f"{row.time:.2f} s",
            f"{row.height:.3f} m",
            f"{row.tilt:.0f} deg",
            f"{row.speed:.1f} {row.unit} {row.fastest}",
            f"{100 * row.torque:.0f} %",
            row.strongest,
            f"{row.force:.0f} N",
            f"{1e3 * row.depth:.0f} mm",
            row.told,
        )
        for row in (table[-rows:] if rows else table)
    ]
    widths = [max(len(line[i]) for line in [heads, *lines]) for i in range(len(heads))]
    for line in [heads, *lines]:
        print("  " + "  ".join(f"{cell:<{width}}" for cell, width in zip(line, widths, strict=True)).rstrip())
    if rows and len(table) > rows:
        print(f"  the last {rows} of {len(table)} rows; --rows 0 shows all")
    print(
        "the end has the recorded bits"
        if same
        else "the end differs from the recording: another processor or version"
    )


def _told(row: Row) -> str:
    """A step in Markdown."""
    lines = [
        f"**{row.time:.2f} s before the end**",
        f"base {row.height:.3f} m high, tilted by {row.tilt:.0f} deg",
        f"fastest joint: {row.fastest}, {row.speed:.1f} {row.unit}",
        f"strongest torque: {row.strongest}, {100 * row.torque:.0f} % of its limit",
        f"feet: {row.force:.0f} N; deepest contact: {1e3 * row.depth:.0f} mm",
    ]
    return "\n\n".join([*lines, *([f"**{row.told}**"] if row.told else [])])


def _film(env: Opened, states: list[State], table: list[Row], video: Path, slow: float) -> None:
    from robolearn.simulation.renderer import Renderer
    from robolearn.simulation.video import caption, write_video

    count = max(1, round(len(states) * env.dt * slow * FAST))

    def frames() -> Iterator[np.ndarray]:
        with Renderer(env.scene, 640, 480, backend=env.backend.capabilities.name) as renderer:
            for i in range(count):
                step = min(len(states) - 1, int(i / (slow * FAST * env.dt)))
                row = table[step]
                said = [f"{row.time:.2f} s before the end", *([row.told] if row.told else [])]
                yield caption(renderer.draw(states[step]), said)

    write_video(video, frames(), FAST, count)
