"""Small robots for tests of system identification, and logs of them."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from robolearn.envs.robot import Robot
from robolearn.simulation.excite import Motion, chirp
from robolearn.simulation.sysid import made
from robolearn.simulation.sysid.log import Log

LINKS = """
<mujoco><compiler angle="radian"/><option timestep="0.002"/><worldbody><body name="upper" pos="0 0 1">
  <joint name="shoulder" axis="0 1 0" range="-2 2" limited="true" armature="0.01" damping="0.05"/>
  <geom type="capsule" fromto="0 0 0 0 0 -.3" size=".02" mass=".8"/>
  <body name="lower" pos="0 .1 -.3"><joint name="elbow" axis="0 1 0" range="-2 2" limited="true" armature="0.01"/>
    <geom type="capsule" fromto="0 0 0 0 0 -.2" size=".02" mass=".4"/></body></body></worldbody>
  <actuator><position name="shoulder" joint="shoulder" kp="25" kv="1" forcerange="-20 20"/>
    <position name="elbow" joint="elbow" kp="12" kv=".4" forcerange="-10 10"/></actuator></mujoco>
"""
TRUTH = {
    "kp/shoulder": 21.0,
    "armature/shoulder": 0.02,
    "friction/shoulder": 0.15,
    "damping/shoulder": 0.3,
    "encoder_bias/shoulder": 0.03,
    "kp/elbow": 14.0,
    "armature/elbow": 0.014,
    "friction/elbow": 0.1,
    "damping/elbow": 0.12,
    "encoder_bias/elbow": -0.02,
    "delay": 0.010,
}


def two_links(folder: Path, text: str = LINKS) -> Robot:
    """An arm of two links that hangs."""
    path = folder / "links.xml"
    path.write_text(text)
    return Robot.load(path, {"joints": {"shoulder": {"home": 0.3}, "elbow": {"home": 0.4}}})


def motion(robot: Robot, moves: tuple[str, ...] = ("shoulder", "elbow"), seconds: float = 6.0) -> Motion:
    """Half a second of rest, then a chirp of each joint of `moves`, one after another."""
    joints = tuple(actuator.joint for actuator in robot.actuators)
    home = np.array([robot.home[k] for k in robot.actuated])
    time = np.arange(0, seconds, 0.02)
    wave = 0.3 * np.sin(chirp(time, seconds, 4.0)[0]) * np.clip(np.minimum(time, time[::-1]) / 0.5, 0, 1)
    parts = [np.tile(home, (25, 1))]
    for name in moves:
        part = np.tile(home, (len(time), 1))
        part[:, joints.index(name)] += wave
        parts.append(part)
    if not moves:
        parts.append(np.tile(home, (200, 1)))
    targets = np.concatenate(parts)
    return Motion(joints, np.arange(len(targets)) * 0.02, targets, ())


def recorded(robot: Robot, moves: tuple[str, ...] = ("shoulder", "elbow"), **settings: object) -> Log:
    """A log of the arm with the parameters TRUTH, encoder noise, and noise on its time stamps."""
    given = {"planted": TRUTH, "noise": 2e-4, "jitter": 2e-3, **settings}
    return made.play(robot, motion(robot, moves), **given)  # type: ignore[arg-type]


@contextmanager
def without(package: str) -> Iterator[None]:
    """As on a machine that lacks a package which mujoco.sysid imports; the modules of before are there again
    afterwards, and none that was imported without the package."""
    ours = lambda: [name for name in sys.modules if name.startswith("mujoco.sysid") or name == package]  # noqa: E731
    before = {name: sys.modules.pop(name) for name in ours()}
    sys.modules[package] = None  # type: ignore[assignment]
    try:
        yield
    finally:
        for name in ours():
            del sys.modules[name]
        sys.modules.update(before)
