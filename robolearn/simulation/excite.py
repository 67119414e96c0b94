"""A motion that excites the joints of a robot one after another, within their limits: to record a log for system
identification.

Each joint makes a chirp, a sine whose frequency rises exponentially, at or near its home, while the others hold theirs.
The base is held. Slow parts show friction and gains, fast ones inertia and delay.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import mujoco
import numpy as np

from robolearn.envs import mjcf
from robolearn.envs.robot import Robot
from robolearn.errors import ConfigError, quote
from robolearn.files import replacing

SECONDS = 8.0
"""Of one joint's motion [s]."""
SLOWEST, FASTEST = 0.2, 5.0
"""First and last frequency of a chirp [Hz]."""
SAMPLES = 8
"""Fewest control steps in a period of the fastest frequency."""
ANGLE, SPEED = 0.4, 2.0
"""Largest amplitude of a joint target [rad] and its largest speed [rad/s] of a hinge."""
LENGTH, PACE = 0.1, 0.5
"""The same of a slide [m, m/s]."""
FASTER = 2.0
"""How many times as fast as its target may ever be a joint may move, where it resonates."""
EDGE = 0.1
"""Share of a joint's range at either end that its target keeps out of."""
TORQUE = 0.8
"""Share of its largest torque that a motor may reach."""
SMALLER, TRIES = 0.7, 8
"""Factor on the amplitude of a joint whose motion is not safe, and how many amplitudes are tried."""
APART = 0.01
"""Distance that parts of the robot keep from each other, or half of that at home where this is less [m]."""
FADE = 0.5
"""Time in which a chirp grows and fades [s]."""
PERIOD = 0.02
"""Control period unless another one is given [s]."""
FORMATS = (".csv", ".npz")
DIVERGED = (
    mujoco.mjtWarning.mjWARN_BADQPOS,
    mujoco.mjtWarning.mjWARN_BADQVEL,
    mujoco.mjtWarning.mjWARN_BADQACC,
)


@dataclass(frozen=True)
class Excited:
    """The motion of one joint, as simulated."""

    joint: str
    amplitude: float
    """Of its target, at the slowest frequency [rad or m]; 0: it is left out."""
    torque: float
    """Largest share of its motor's torque."""
    speed: float
    """Largest speed [rad/s or m/s]."""
    unit: str
    """"rad" or "m"."""
    problem: str
    """Why a larger amplitude is not safe; "" where the largest one is."""


@dataclass(frozen=True)
class Motion:
    """Joint targets over time."""

    joints: tuple[str, ...]
    """Names of the columns, A of them."""
    time: np.ndarray
    """(T,) [s]."""
    targets: np.ndarray
    """(T, A) [rad or m]."""
    parts: tuple[Excited, ...]

    def write(self, path: Path) -> None:
        """Write a CSV with the columns `time` and `target.JOINT`, or an NPZ of `time`, `joints` and `target`.

        Raises:
            ConfigError: another suffix, or the file cannot be written.
        """
        require_format(path)
        with replacing(path) as part:
            if path.suffix.lower() == ".npz":
                np.savez(part, time=self.time, joints=np.array(self.joints), target=self.targets)
                return
            with part.open("w", encoding="utf-8", newline="") as file:
                lines = csv.writer(file, lineterminator="\n")
                lines.writerow(("time", *(f"target.{name}" for name in self.joints)))
                for time, row in zip(self.time, self.targets, strict=True):
                    lines.writerow([f"{x:.6f}" for x in (time, *row)])


def require_format(path: Path) -> None:
    """Refuse a file that is neither CSV nor NPZ."""
    if path.suffix.lower() not in FORMATS:
        raise ConfigError(f"{quote(str(path), 120)}: an excitation is written as {' or '.join(FORMATS)}")


def excite(robot: Robot, period: float = PERIOD, seconds: float = SECONDS) -> Motion:
    """The motion of all joints, and what the simulator says about it.

    A joint's amplitude shrinks until the parts of the robot that do not touch at home keep `APART`, its motor needs at
    most `TORQUE` of its torque, and it stays within its range; where none of `TRIES` does, it holds its home.

    Args:
        robot: one with servos.
        period: control period [s].
        seconds: duration of each joint's motion [s].

    Raises:
        ConfigError: a motor takes torques, or no joint can move.
    """
    for actuator in robot.actuators:
        if actuator.kind != "position":
            raise ConfigError(
                f"robot {robot.name}: the motor of {actuator.joint} takes torques: an excitation is of joint targets, "
                "for servos (kind: position)"
            )
    held = Held(robot, period)
    found = [_largest(held, column, seconds) for column in range(len(robot.actuators))]
    targets = np.concatenate([targets for _, targets in found])
    if not len(targets):
        raise ConfigError(f"robot {robot.name}: no joint can move safely: {found[0][0].problem}")
    names = tuple(actuator.joint for actuator in robot.actuators)
    return Motion(names, np.arange(len(targets)) * period, targets, tuple(part for part, _ in found))


def _largest(held: Held, column: int, seconds: float) -> tuple[Excited, np.ndarray]:
    """The largest safe motion of one joint, and its targets (T, A); with amplitude 0, none, where there is none."""
    name, unit = held.names[column], "m" if held.slides[column] else "rad"
    middle, amplitude = held.middle(column)
    said, tries = "", TRIES
    if amplitude <= 0:
        said, tries = "its range is empty", 0
    elif held.holding[column] > TORQUE:
        share = f"{100 * held.holding[column]:.0f} % of its motor's torque"
        said, tries = f"to hold that needs {share}, see robot.actuators.{name}.effort", 0
    for _ in range(tries):
        targets = held.targets(column, middle, amplitude, seconds)
        torque, speed, problem = held.try_out(column, targets)
        if not problem:
            return Excited(name, amplitude, torque, speed, unit, said), targets
        said = problem
        amplitude *= SMALLER
    return Excited(name, 0.0, 0.0, 0.0, unit, said), np.empty((0, len(held.names)))


def chirp(time: np.ndarray, seconds: float, fastest: float) -> tuple[np.ndarray, np.ndarray]:
    """Phase [rad] and frequency [Hz] (T,) of an exponential sweep from `SLOWEST` to `fastest` (Farina, 2000)."""
    growth = math.log(fastest / SLOWEST)
    frequency = SLOWEST * np.exp(growth * time / seconds)
    return 2 * math.pi * seconds / growth * (frequency - SLOWEST), frequency


class Held:
    """A robot in MuJoCo with its base held, without ground.

    Attributes:
        names: the joints that are driven, A of them.
        home: (A,) [rad or m].
        holding: (A,) share of its torque that each motor needs at home.
    """

    def __init__(self, robot: Robot, period: float) -> None:
        self.names = tuple(actuator.joint for actuator in robot.actuators)
        self.home = np.array([robot.home[joint] for joint in robot.actuated], dtype=float)
        self.period = period
        spec = held_spec(robot)
        # Contacts up to the sum of both gaps are listed; those that do not touch make no force.
        for geom in spec.geoms:
            geom.gap = APART / 2
        for pair in spec.pairs:
            pair.gap = APART
        self.model = spec.compile()
        self.substeps = max(1, math.ceil(period / self.model.opt.timestep - 1e-9))
        self.model.opt.timestep = period / self.substeps
        self.data = mujoco.MjData(self.model)
        self.joints = [self.model.joint(name).id for name in self.names]
        self.slides = [self.model.jnt_type[j] == int(mujoco.mjtJoint.mjJNT_SLIDE) for j in self.joints]
        self.efforts = np.array([actuator.effort for actuator in robot.actuators])
        self._start = self.model.qpos0.copy()
        there = {joint.name for joint in spec.joints}
        for name, home in zip(robot.joints, robot.home, strict=True):
            if name in there:
                self._start[self.model.joint(name).qposadr[0]] = home
        self.limits = [self._limits(joint) for joint in self.joints]
        self._begin()
        self.holding = np.abs(self.data.actuator_force) / self.efforts
        settled = [float(self.data.qpos[self.model.jnt_qposadr[joint]]) for joint in self.joints]
        # A home at the end of a range may sag beyond it.
        self._bounds = [
            (min(low, at - 1e-3), max(high, at + 1e-3))
            for (low, high), at in zip(self.limits, settled, strict=True)
        ]
        self._least = {
            pair: min(APART, distance / 2) if distance > 0 else -math.inf
            for pair, distance in self._distances().items()
        }

    def _limits(self, joint: int) -> tuple[float, float]:
        if not self.model.jnt_limited[joint]:
            return -math.inf, math.inf
        low, high = self.model.jnt_range[joint]
        return float(low), float(high)

    def middle(self, column: int) -> tuple[float, float]:
        """Middle of the motion of a joint, as near to its home as its range allows, and its largest amplitude."""
        home, (low, high) = float(self.home[column]), self.limits[column]
        largest = LENGTH if self.slides[column] else ANGLE
        if math.isinf(low) or math.isinf(high):
            return home, largest
        edge = EDGE * (high - low)
        amplitude = min(largest, (high - low) / 2 - edge)
        return float(np.clip(home, low + edge + amplitude, high - edge - amplitude)), amplitude

    def fastest(self, column: int) -> float:
        """Largest speed of the target of a joint [rad/s or m/s]."""
        return PACE if self.slides[column] else SPEED

    def targets(self, column: int, middle: float, amplitude: float, seconds: float) -> np.ndarray:
        """Targets of all joints (T, A) while one moves to the middle of its motion, makes the chirp, and returns."""
        steps = max(2, round(seconds / self.period))
        time = np.arange(steps) * self.period
        phase, frequency = chirp(time, seconds, min(FASTEST, 1 / (SAMPLES * self.period)))
        # Smoothly from the whole amplitude to that of the largest speed.
        largest = self.fastest(column)
        swing = amplitude / np.sqrt(1 + (2 * math.pi * frequency * amplitude / largest) ** 2)
        wave = _smooth(np.minimum(time, time[::-1]) / FADE) * swing * np.sin(phase)
        wave *= min(1.0, largest * self.period / np.abs(np.diff(wave)).max())  # it grows and fades on top
        away = middle - self.home[column]
        # The steepest part of `_smooth` is 1.5 times its mean.
        move = _smooth(np.linspace(0, 1, 1 + math.ceil(1.5 * abs(away) / largest / self.period)))
        found = np.concatenate((move[:-1] * away, away + wave, away * move[:-1][::-1]))
        rows = np.tile(self.home, (len(found), 1))
        rows[:, column] += found
        return rows

    def try_out(self, column: int, targets: np.ndarray) -> tuple[float, float, str]:
        """(share of the torque, speed, problem or "") at most of one joint over the targets (T, A)."""
        self._begin()
        joint, data = self.joints[column], self.data
        place, speed_at = self.model.jnt_qposadr[joint], self.model.jnt_dofadr[joint]
        low, high = self._bounds[column]
        moved = self._subtree(int(self.model.jnt_bodyid[joint]))
        torque = speed = 0.0
        for row in targets:
            data.ctrl[:] = row
            for _ in range(self.substeps):
                mujoco.mj_step(self.model, data)
                share = abs(data.actuator_force[column]) / self.efforts[column]
                torque, speed = max(torque, float(share)), max(speed, abs(float(data.qvel[speed_at])))
                if any(data.warning[int(warning)].number for warning in DIVERGED):
                    return torque, speed, "the simulation diverges"
                if torque > TORQUE:
                    return torque, speed, f"its motor needs more than {100 * TORQUE:.0f} % of its torque"
                if speed > FASTER * self.fastest(column):
                    return torque, speed, "it resonates"
                if not low <= data.qpos[place] <= high:
                    return torque, speed, "it reaches the end of its range"
                near = [
                    pair
                    for pair, found in self._distances().items()
                    if found < self._least.get(pair, APART) and len(moved.intersection(pair)) == 1
                ]
                if near:
                    return torque, speed, "{} touches {}, or nearly".format(*min(near))
        return torque, speed, ""

    def _begin(self) -> None:
        """At home, at rest, where PD control has settled."""
        mujoco.mj_resetData(self.model, self.data)
        self.data.qpos[:] = self._start
        self.data.ctrl[:] = self.home
        for _ in range(round(1.0 / self.model.opt.timestep)):
            mujoco.mj_step(self.model, self.data)

    def _subtree(self, body: int) -> set[str]:
        """Names of the bodies that a joint of this body moves."""
        found = {body}
        for child in range(body + 1, self.model.nbody):  # parents come first
            if int(self.model.body_parentid[child]) in found:
                found.add(child)
        return {self.model.body(k).name for k in found}

    def _distances(self) -> dict[tuple[str, str], float]:
        """Distance [m] of the bodies, by name, that are nearer to each other than `APART`."""
        bodies = self.model.geom_bodyid
        found: dict[tuple[str, str], float] = {}
        for contact in self.data.contact[: self.data.ncon]:
            one, other = sorted(self.model.body(int(bodies[g])).name for g in contact.geom)
            found[one, other] = min(float(contact.dist), found.get((one, other), math.inf))
        return found


def held_spec(robot: Robot) -> mujoco.MjSpec:
    """The model of a robot that hangs in the air, its base held, without ground; not yet compiled."""
    spec = mjcf.build_spec(robot)
    _hold(spec, robot)
    return spec


def _hold(spec: mujoco.MjSpec, robot: Robot) -> None:
    """Fix what carries the joints with a motor, and take the ground away: the robot hangs.

    That is a free base, level, or the bodies of rails without a motor.
    """
    driven = [actuator.joint for actuator in robot.actuators]
    carriers = set.intersection(*(_above(spec, name) for name in driven))
    loose = [joint for name in carriers for joint in spec.body(name).joints if joint.name not in driven]
    held = bool(loose)
    for joint in loose:
        spec.delete(joint)
    if robot.base is not None:
        base = spec.body(robot.base)
        base.quat, base.alt.type = (1.0, 0.0, 0.0, 0.0), mujoco.mjtOrientation.mjORIENTATION_QUAT
    if (floor := spec.geom("floor")) is not None:
        spec.delete(floor)
    # MuJoCo lets neighbours overlap, but not where one of them cannot move, nor what is fixed to it.
    fixed: list[str] = []
    moving: list[str] = []
    todo = [body for body in spec.worldbody.bodies if not list(body.joints)]
    while todo:
        body = todo.pop()
        fixed.append(body.name)
        todo += [child for child in body.bodies if not list(child.joints)]
        moving += [child.name for child in body.bodies if list(child.joints)]
    for one in fixed if held else ():
        for other in moving:
            spec.add_exclude(bodyname1=one, bodyname2=other)


def _above(spec: mujoco.MjSpec, joint: str) -> set[str]:
    """Names of the bodies that carry a joint, from its own down to the one on the world."""
    body, found = spec.joint(joint).parent, set()
    while body.name != spec.worldbody.name:
        found.add(body.name)
        body = body.parent
    return found


def _smooth(share: np.ndarray) -> np.ndarray:
    """0 to 1 with a derivative of 0 at both ends, for a share of the way."""
    share = share.clip(0.0, 1.0)
    return share * share * (3 - 2 * share)


def summary(parts: Sequence[Excited], motion: Motion) -> list[str]:
    """Lines of text about a motion."""
    moving = [part for part in parts if part.amplitude]
    hardest = max(moving, key=lambda part: part.torque)
    period = motion.time[1] - motion.time[0]
    seconds = len(motion.time) * period
    joints = f"{len(moving)} of {len(parts)} joints, one after another"
    peaks = [f"{100 * hardest.torque:.0f} % of a motor's torque ({hardest.joint})"]
    for unit in ("rad", "m"):
        if same := [part for part in moving if part.unit == unit]:
            fastest = max(same, key=lambda part: part.speed)
            peaks.append(f"{fastest.speed:.2g} {unit}/s ({fastest.joint})")
    lines = [
        f"excitation  {joints}, {seconds:.0f} s at {1 / period:.0f} Hz, base held",
        f"  at most {', '.join(peaks)}",
    ]
    for part in parts:
        if not part.amplitude:
            lines.append(f"  {part.joint} holds its home: {part.problem}")
        elif part.problem:
            lines.append(
                f"  {part.joint} moves by {part.amplitude:.3g} {part.unit}: with more {part.problem}"
            )
    return lines
