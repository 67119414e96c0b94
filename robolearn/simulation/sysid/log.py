"""Recorded joint trajectories: files, and what is wrong with the recordings.

A CSV has the columns `time` [s], `target.JOINT`, `position.JOINT` and, where they were recorded, `velocity.JOINT`,
`torque.JOINT` and `base.qw`, `base.qx`, `base.qy`, `base.qz`; an empty cell is a value that this row does not have. An
NPZ has `time` (T,), `joints` (A,), `target` (T, A), `position` (T, A), and perhaps `velocity`, `torque` (T, A) and
`base` (T, 4) wxyz, with NaN for what is missing. `simulation.excite` writes `time` and the targets in these forms.
MCAP files: `mcap_log`.
"""

from __future__ import annotations

import csv
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from robolearn.errors import ConfigError, did_you_mean, listing, one_line, quote
from robolearn.files import replacing
from robolearn.simulation.excite import FORMATS as WRITTEN
from robolearn.simulation.sysid import mcap_log

FORMATS = (*WRITTEN, ".mcap")
"""Files that are logs, by their suffix."""

SIGNALS = ("target", "position", "velocity", "torque")
"""Of each joint: commanded [rad or m], measured [rad or m], measured [rad/s or m/s], measured [Nm or N]."""
BASE = ("qw", "qx", "qy", "qz")
BASE_COLUMNS = "base.qw, base.qx, base.qy and base.qz"
OFF = 0.1
"""The norm of a quaternion that differs by more from 1 is that of no orientation."""
SHORTEST = 2.0
"""Shortest log [s]."""
SLOWEST = 0.25
"""Longest median interval between rows [s]: a log in milliseconds has longer ones, and a slower log tells nothing."""
GAP = 5.0
"""A pause between rows of this many median intervals is a gap."""
LARGEST = 2_000_000_000
"""Largest file read [bytes]."""
DAMAGED = (
    *(OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile, zlib.error),
    *(RuntimeError, MemoryError, OverflowError),
)
"""What reading a damaged NPZ raises; RuntimeError where it is encrypted or packed in a way that is not known."""
FASTEST, STRONGEST = 100.0, 1e5
"""Speeds [rad/s or m/s] and torques [Nm or N] above these are not those of a robot."""


@dataclass(frozen=True)
class Log:
    """A recording. Matrices have a row a time stamp and a column a joint of `joints`; NaN is not measured."""

    name: str
    """Of its file."""
    joints: tuple[str, ...]
    time: np.ndarray
    """(T,) [s], from 0, increasing."""
    target: np.ndarray
    """(T, A) joint targets sent at that time; NaN: the last one holds."""
    position: np.ndarray
    """(T, A) [rad or m]."""
    velocity: np.ndarray
    """(T, A) [rad/s or m/s]."""
    torque: np.ndarray
    """(T, A) [Nm or N]."""
    base: np.ndarray | None = None
    """(T, 4) orientation of the base, wxyz; None: not recorded."""
    notes: tuple[str, ...] = ()
    """What is suspicious about its file."""
    source: str = ""
    """Where in its file the signals were, to be shown."""

    @property
    def period(self) -> float:
        """Median interval of the rows with a target [s]."""
        rows = self.time[~np.isnan(self.target).all(axis=1)]
        return float(np.median(np.diff(rows))) if len(rows) > 1 else float(np.median(np.diff(self.time)))

    def commands(self) -> np.ndarray:
        """The targets (T, A) with the last one wherever there is none, and the first one before it; NaN in the columns
        of joints without any."""
        rows = np.where(np.isnan(self.target), 0, np.arange(len(self.time))[:, None])
        first = np.argmax(~np.isnan(self.target), axis=0)
        held = np.maximum(np.maximum.accumulate(rows, axis=0), first)
        return np.take_along_axis(self.target, held, axis=0)

    def clock(self) -> Clock:
        """What its time stamps are like; see `clock`. Where targets and measurements have rows of their own, each has a
        clock, and the period is that of the targets."""
        sent = ~np.isnan(self.target).all(axis=1)
        measured = ~np.isnan(np.concatenate((self.position, self.velocity, self.torque), axis=1)).all(axis=1)
        if (sent & measured).any() or min(sent.sum(), measured.sum()) < 3:
            return clock(self.time)
        targets, measurements = clock(self.time[sent]), clock(self.time[measured])
        regular: np.ndarray | None = None
        if targets.regular is not None and measurements.regular is not None and (sent | measured).all():
            regular = np.empty_like(self.time)
            regular[sent], regular[measured] = targets.regular, measurements.regular
            if (np.diff(regular) <= 0).any():  # a target and a measurement would change places
                regular = None
        jitter = max(targets.jitter, measurements.jitter)
        return Clock(targets.period, jitter, regular, targets.gaps + measurements.gaps)

    def known(self, joints: Sequence[str]) -> Log:
        """The log without the joints that are only measured and not among `joints`: grippers and wheels, which
        /joint_states often has; its notes name them."""
        commanded = np.isfinite(self.target).any(axis=0)
        kept = [k for k, name in enumerate(self.joints) if name in joints or commanded[k]]
        left = [name for name in self.joints if name not in {self.joints[k] for k in kept}]
        if not left or not kept:
            return self
        note = f"joints that the robot does not have are left out: {listing(left, 12)}"
        cut = {signal: getattr(self, signal)[:, kept] for signal in SIGNALS}
        return replace(self, joints=tuple(self.joints[k] for k in kept), notes=(*self.notes, note), **cut)

    def write(self, path: Path) -> None:
        """Write it as CSV or NPZ; columns without any value are left out of a CSV.

        Raises:
            ConfigError: another suffix, or the file cannot be written.
        """
        if path.suffix.lower() not in WRITTEN:
            raise ConfigError(f"{quote(str(path), 120)}: a log is written as {' or '.join(WRITTEN)}")
        with replacing(path) as part:
            if path.suffix.lower() == ".npz":
                more: dict[str, Any] = {"base": self.base} if self.base is not None else {}
                np.savez(part, time=self.time, joints=np.array(self.joints),
                         target=self.target, position=self.position,
                         velocity=self.velocity, torque=self.torque, **more)  # fmt: skip
                return
            named = [
                (f"{s}.{joint}", getattr(self, s)[:, k])
                for s in SIGNALS
                for k, joint in enumerate(self.joints)
            ]
            if self.base is not None:
                named += [(f"base.{axis}", self.base[:, k]) for k, axis in enumerate(BASE)]
            named = [(name, column) for name, column in named if not np.isnan(column).all()]
            with part.open("w", encoding="utf-8", newline="") as file:
                lines = csv.writer(file, lineterminator="\n")
                lines.writerow(("time", *(name for name, _ in named)))
                for time, *row in zip(self.time, *(column for _, column in named), strict=True):
                    lines.writerow([f"{time:.6f}", *("" if np.isnan(x) else f"{x:.9g}" for x in row)])


def read(path: Path, topics: tuple[str, ...] = ()) -> Log:
    """Read a log; `topics` are those of an MCAP file, see `mcap_log.read`.

    Raises:
        ConfigError: the file cannot be read, or is not a log; the message names the file and the column or row.
        MissingError: it is an MCAP file, and the package that reads it is not installed.
    """
    if path.suffix.lower() not in FORMATS:
        raise ConfigError(f"{quote(str(path), 120)}: a log is {listing(FORMATS)}")
    try:
        size = path.stat().st_size
        if size > LARGEST:
            _fail(path, f"is {size / 1e9:.1f} GB; a log has at most {LARGEST / 1e9:.0f} GB")
        if path.suffix.lower() == ".mcap":
            found = mcap_log.read(path, topics)
            log = _checked(path, found.time, found.columns, None)
            return replace(log, notes=found.notes, source=found.source)
        parts = _npz(path) if path.suffix.lower() == ".npz" else _csv(path)
    except OSError as error:
        _fail(path, f"cannot be read: {error.strerror or error}")
    return _checked(path, *parts)


def _fail(path: Path, message: str) -> NoReturn:
    raise ConfigError(f"{quote(str(path), 120)}: {message}")


def _csv(path: Path) -> tuple[np.ndarray, dict[str, dict[str, np.ndarray]], np.ndarray | None]:
    """(time, columns by signal and joint, base)."""
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            lines = csv.reader(file)
            head = [word.strip() for word in next(lines, [])]
            rows = []
            for row in lines:
                if not any(cell.strip() for cell in row):
                    continue
                if len(row) != len(head):
                    _fail(path, f"line {lines.line_num} has {len(row)} cells, the first line has {len(head)}")
                try:
                    rows.append([float(cell) if cell.strip() else np.nan for cell in row])
                except ValueError as error:
                    _fail(path, f"line {lines.line_num}: {error}")
    except (UnicodeDecodeError, csv.Error) as error:
        _fail(path, f"is not a CSV of text: {error}")
    if "time" not in head:
        _fail(path, f"has no column time{did_you_mean('time', head)} (columns: {listing(head)})")
    if twice := {name for name in head if head.count(name) > 1}:
        _fail(path, f"has the column {quote(min(twice))} twice")
    table = np.array(rows, dtype=float).reshape(-1, len(head))
    columns: dict[str, dict[str, np.ndarray]] = {}
    base: dict[str, np.ndarray] = {}
    for k, name in enumerate(head):
        signal, _, joint = name.partition(".")
        if name == "time":
            continue
        if signal == "base" and joint in BASE:
            base[joint] = table[:, k]
        elif signal in SIGNALS and joint:
            columns.setdefault(signal, {})[joint] = table[:, k]
        else:
            valid = [f"{s}.JOINT" for s in SIGNALS] + [f"base.{axis}" for axis in BASE]
            _fail(path, f"has the unknown column {quote(name)} (valid: time, {listing(valid)})")
    if base and len(base) < len(BASE):
        _fail(
            path,
            f"has {listing(f'base.{a}' for a in base)} but not all of base.qw, base.qx, base.qy, base.qz",
        )
    whole = np.stack([base[axis] for axis in BASE], axis=1) if base else None
    return table[:, head.index("time")], columns, whole


def _npz(path: Path) -> tuple[np.ndarray, dict[str, dict[str, np.ndarray]], np.ndarray | None]:
    try:
        with path.open("rb") as stream:  # NumPy leaves a damaged file open
            file = np.load(stream, allow_pickle=False)
            if isinstance(file, np.ndarray):
                _fail(path, "is a single array, not an NPZ of arrays")
            content = {name: file[name] for name in file.files}
    except DAMAGED as error:
        _fail(path, f"is not an NPZ of arrays: {one_line(str(error), 160) or type(error).__name__}")
    for name, array in content.items():
        if not isinstance(array, np.ndarray):  # NumPy gives the bytes of another file
            _fail(path, f"has {quote(name)}, which is no array")
    for name in ("time", "joints"):
        if name not in content:
            _fail(path, f"has no array {name}{did_you_mean(name, content)} (arrays: {listing(content)})")
    joints = [str(name) for name in content["joints"].ravel()]
    if len(set(joints)) < len(joints):
        _fail(path, "names a joint twice in joints")
    time = content["time"]
    if time.ndim != 1:
        _fail(path, f"time has shape {time.shape}, not (T,)")
    valid = {"time": (len(time),), "joints": (len(joints),), "base": (len(time), 4)}
    valid |= {name: (len(time), len(joints)) for name in SIGNALS}
    for name, array in content.items():
        if name not in valid:
            _fail(
                path,
                f"has the unknown array {quote(name)}{did_you_mean(name, valid)} (valid: {listing(valid)})",
            )
        if array.shape != valid[name]:
            _fail(path, f"{name} has shape {array.shape}, not {valid[name]}")
        if name != "joints" and array.dtype.kind not in "fiu":
            _fail(path, f"{name} is not an array of numbers")
    columns = {
        s: {joint: content[s][:, k].astype(float) for k, joint in enumerate(joints)}
        for s in SIGNALS
        if s in content
    }
    base = content["base"].astype(float) if "base" in content else None
    return time.astype(float), columns, base


def _checked(
    path: Path, time: np.ndarray, columns: Mapping[str, Mapping[str, np.ndarray]], base: np.ndarray | None
) -> Log:
    if not columns.get("target"):
        _fail(
            path, "has no joint targets (target.JOINT): what was commanded is needed beside what was measured"
        )
    if not any(np.isfinite(column).any() for column in columns.get("position", {}).values()):
        _fail(path, "has no measured joint positions (position.JOINT); an excitation alone is no log")
    if not np.isfinite(time).all():
        _fail(path, f"row {int(np.flatnonzero(~np.isfinite(time))[0]) + 1} has no time")
    back = np.flatnonzero(np.diff(time) <= 0)
    if len(back):
        k = int(back[0])
        _fail(path, f"time does not increase at row {k + 2}: {time[k]:g} s, then {time[k + 1]:g} s")
    if len(time) < 2 or time[-1] - time[0] < SHORTEST:
        span = time[-1] - time[0] if len(time) else 0.0
        _fail(path, f"is {span:.2f} s long; a log has at least {SHORTEST:g} s")
    joints = tuple(dict.fromkeys(joint for signal in SIGNALS for joint in columns.get(signal, {})))
    missing = np.full(len(time), np.nan)
    parts: dict[str, Any] = {
        signal: np.stack([columns.get(signal, {}).get(joint, missing) for joint in joints], axis=1)
        for signal in SIGNALS
    }
    for signal, matrix in parts.items():
        if np.isinf(matrix).any():
            row, column = np.argwhere(np.isinf(matrix))[0]
            _fail(path, f"{signal}.{joints[column]} is infinite in row {row + 1}")
    apart = _apart(time, columns)
    if apart:
        _fail(path, apart)
    if (interval := float(np.median(np.diff(time)))) > SLOWEST:
        _fail(
            path,
            f"time rises by {interval:g} s from row to row, at most {SLOWEST:g}: is it in milliseconds? It is in s",
        )
    return Log(path.name, joints, time - time[0], **parts, base=base)


def _apart(time: np.ndarray, columns: Mapping[str, Mapping[str, np.ndarray]]) -> str | None:
    """What is wrong where targets and positions were hardly recorded at the same time."""
    spans = []
    for signal in ("target", "position"):
        there = np.any([np.isfinite(column) for column in columns[signal].values()], axis=0)
        spans.append(time[there][[0, -1]] if there.any() else np.zeros(2))
    (sent, last_sent), (seen, last_seen) = spans
    if min(last_sent, last_seen) - max(sent, seen) >= SHORTEST / 2:
        return None
    return (
        f"targets are from {sent:.2f} to {last_sent:.2f} s and positions from {seen:.2f} to {last_seen:.2f} s; both "
        "are needed at the same time: do they have one clock?"
    )


@dataclass(frozen=True)
class Clock:
    """What the time stamps of a log are like."""

    period: float
    """Median interval [s]."""
    jitter: float
    """Standard deviation of the stamps about a regular clock, else of the intervals [s]."""
    regular: np.ndarray | None
    """(T,) times of the regular clock about which the stamps scatter [s]; None: the intervals differ, and each stamp
    holds."""
    gaps: tuple[tuple[float, float], ...]
    """Begin and length of each pause [s]."""


def clock(time: np.ndarray) -> Clock:
    """Tell time stamps that scatter about a regular clock from intervals that differ.

    Noise on the stamps of a regular clock makes successive intervals anticorrelated, by -1/2; where each interval has
    its own length the stamps wander away from every regular clock. A regular clock is followed through the log from its
    beginning, over twice as many rows each time, so that a row's number is certain although single intervals are not.
    """
    steps = np.diff(time)
    period = float(np.median(steps))
    gaps = tuple((float(time[k]), float(steps[k])) for k in np.flatnonzero(steps > GAP * period))
    spread = float(np.std(steps[steps <= GAP * period]))
    if spread < 1e-3 * period:
        return Clock(period, spread, None, gaps)
    regular = _regular(time, period)
    if regular is None:
        return Clock(period, spread, None, gaps)
    return Clock(period, float(np.std(time - regular)), regular, gaps)


def _regular(time: np.ndarray, period: float) -> np.ndarray | None:
    count = min(16, len(time))
    number = np.round((time[:count] - np.median(time[:count] - np.arange(count) * period)) / period)
    line = np.polyfit(number, time[:count], 1)
    while count < len(time):
        count = min(2 * count, len(time))
        number = np.round((time[:count] - line[1]) / line[0])
        line = np.polyfit(number, time[:count], 1)
    regular = np.polyval(line, number)
    if len(np.unique(number)) < len(number) or np.abs(time - regular).max() > 0.5 * period:
        return None
    steps = np.diff(time) - np.diff(number) * line[0]
    if np.mean(steps[1:] * steps[:-1]) > -0.25 * np.mean(steps**2):
        return None
    return np.asarray(regular)


def noise(column: np.ndarray) -> float:
    """Standard deviation of the noise of a signal that is smooth, from its third differences, of which most are small
    (their median, so that fast motions do not count); 0 with fewer than ten values."""
    values = column[np.isfinite(column)]
    if len(values) < 10:
        return 0.0
    third = np.abs(np.diff(values, 3))
    return float(np.median(third)) / 0.6745 / np.sqrt(20.0)


def unit_rows(base: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Which rows (T,) of base quaternions (T, 4) have a norm near 1, and the numbers of those that have another one, as
    where a sensor had nothing to say: zeros, or no quaternions at all. A row without a value is neither."""
    there = ~np.isnan(base).any(axis=1)
    with np.errstate(over="ignore", invalid="ignore"):
        valid = there & (np.abs(np.linalg.norm(base, axis=1) - 1) <= OFF)
    return valid, np.flatnonzero(there & ~valid)


def findings(log: Log, limits: Mapping[str, tuple[float, float]], efforts: Mapping[str, float]) -> list[str]:
    """What is suspicious about a log, a line each.

    Args:
        log: the recording.
        limits: lower and upper limit of each joint of the robot [rad or m].
        efforts: largest torque of each motor [Nm or N].

    Raises:
        ConfigError: positions are far beyond a joint's range, as degrees are.
    """
    lines = list(log.notes)
    stamps = log.clock()
    if stamps.gaps:
        begin, length = max(stamps.gaps, key=lambda gap: gap[1])
        lines.append(
            f"{len(stamps.gaps)} gaps; the longest is {length:.2f} s, at {begin:.1f} s: the last targets hold"
        )
    wrong = unit_rows(log.base)[1] if log.base is not None else np.empty(0, dtype=int)
    if len(wrong):
        lines.append(
            f"{len(wrong)} rows of {BASE_COLUMNS} are left out, first row {wrong[0] + 1}: their norm is not near 1"
        )
    commands = log.commands()
    for k, joint in enumerate(log.joints):
        low, high = limits.get(joint, (-np.inf, np.inf))
        target, position = commands[:, k], log.position[:, k]
        measured = position[np.isfinite(position)]
        if (
            np.isfinite(target).any()
            and not low - 1e-6 <= np.nanmin(target) <= np.nanmax(target) <= high + 1e-6
        ):
            lines.append(f"{joint}: targets reach beyond its range, {low:.3g} to {high:.3g}")
        if len(measured):
            if (most := np.abs(measured).max()) > 20 and most > 5 * max(abs(low), abs(high)):
                raise ConfigError(
                    f"{quote(log.name)}: positions of {joint} reach {most:.4g}, and its range is {low:.3g} to "
                    f"{high:.3g} rad; if they are degrees, convert them to rad"
                )
            share = float(np.mean(np.diff(measured) == 0))
            if share > 0.5 and np.ptp(measured) > 1e-3 and np.isfinite(target).any() and _moves(target) > 0.3:
                lines.append(
                    f"{joint}: {100 * share:.0f} % of its positions repeat the one before: a slow encoder or bus"
                )
            edge = 0.005 * (high - low) if np.isfinite(high - low) else 0.0
            at_end = float(np.mean((measured < low + edge) | (measured > high - edge))) if edge else 0.0
            if at_end > 0.02 and np.isfinite(target).any() and np.ptp(target) > 0:
                lines.append(f"{joint}: {100 * at_end:.0f} % of its positions are at an end of its range")
        speed, torque = log.velocity[:, k], log.torque[:, k]
        if np.isfinite(speed).any() and np.nanmax(np.abs(speed)) > FASTEST:
            lines.append(
                f"{joint}: velocities reach {np.nanmax(np.abs(speed)):.4g}; are they degrees per second?"
            )
        if np.isfinite(torque).any():
            effort = efforts.get(joint, np.inf)
            held = float(np.nanmean(np.abs(torque) > 0.98 * effort))
            if np.nanmax(np.abs(torque)) > min(STRONGEST, 3 * effort):
                lines.append(
                    f"{joint}: torques reach {np.nanmax(np.abs(torque)):.4g}, its motor's limit is {effort:.4g}"
                )
            elif held > 0.01:
                lines.append(f"{joint}: its motor is at its torque limit {100 * held:.0f} % of the time")
    return lines


def _moves(target: np.ndarray) -> float:
    """Share of the rows in which a target changes."""
    return float(np.mean(np.diff(target) != 0))


def moved(log: Log, joint: str) -> float:
    """How far a joint moved: range of its measured positions without the extreme hundredths, less that of its noise
    [rad or m]."""
    if joint not in log.joints:
        return 0.0
    column = log.position[:, log.joints.index(joint)]
    values = column[np.isfinite(column)]
    if len(values) < 10:
        return 0.0
    low, high = np.quantile(values, (0.01, 0.99))
    return max(0.0, float(high - low) - 4.7 * noise(values))


def require_joints(logs: Sequence[Log], joints: Sequence[str], driven: Sequence[str], robot: str) -> None:
    """Check that the names of logs are those of a robot.

    Raises:
        ConfigError: a joint does not exist, or has a target but no motor.
    """
    for log in logs:
        for k, name in enumerate(log.joints):
            if name not in joints:
                raise ConfigError(
                    f"{quote(log.name)}: robot {robot} has no joint {quote(name)}{did_you_mean(name, joints)} "
                    f"(valid: {listing(joints, 24)})"
                )
            if name not in driven and np.isfinite(log.target[:, k]).any():
                raise ConfigError(
                    f"{quote(log.name)}: target.{name}: this joint of robot {robot} has no motor (driven: "
                    f"{listing(driven, 24)})"
                )
