"""Logs in MCAP files, as `ros2 bag record --storage mcap` and Foxglove write them.

Read are messages of these types, encoded as CDR with ROS 2 definitions or as JSON with the same fields:

- `sensor_msgs/msg/JointState`: what was measured, on /joint_states, and, on another topic, the joint targets as its
  positions.
- `control_msgs/msg/JointTrajectoryControllerState`: targets and measurements in one message, as the joint trajectory
  controller of ros2_control publishes it on ~/controller_state.

A message counts at the time of its header, or, where any message has none, all count at the time of recording.
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from robolearn.errors import ConfigError, MissingError, did_you_mean, listing, quote

STATES, CONTROLLERS = (
    (f"{package}/msg/{name}", f"{package}/{name}", f"{package}.{name}", f"{package}.msg.{name}", name)
    for package, name in (("sensor_msgs", "JointState"), ("control_msgs", "JointTrajectoryControllerState"))
)
"""Names of the types that are read."""
MEASURED = "/joint_states"
"""Topic of the measurements where --topics names none."""
TARGET_WORDS = ("target", "command", "cmd", "desired", "reference", "goal")
"""One of them is in the name of a topic that is taken for that of the targets."""
LONGEST = 24 * 3600
"""Longest log [s]; topics that are further apart have different clocks."""
LONGEST_RECORD = 2**31
"""Largest record that is read [bytes]; a cut one may claim more than the file has."""
_PARTS = {"position": "positions", "velocity": "velocities", "torque": "effort"}
"""Signals of a log, and the fields of a JointTrajectoryPoint."""

Columns = dict[str, dict[str, np.ndarray]]
Values = dict[str, tuple[list[str], list[float]]]
"""Joints and their numbers, by signal."""


@dataclass(frozen=True)
class _Kind:
    """How the messages of a topic are read."""

    controller: bool
    encoding: str
    schema: Any


@dataclass(frozen=True)
class _Message:
    recorded: int
    """When it was recorded [ns]."""
    stamp: int
    """That of its header [ns]; 0: it has none."""
    values: Values


def topics_of(text: str | None) -> tuple[str, ...]:
    """The topics that --topics names: of the targets and of the measurements, or of controllers.

    Raises:
        ConfigError: one has no name.
    """
    if text is None:
        return ()
    names = tuple(name.strip() for name in text.split(","))
    if not all(names):
        raise ConfigError(
            f"--topics is {quote(text)}; name the topic of the joint targets and that of the measurements, with a "
            "comma between, or those of controllers, whose state has both"
        )
    return names


@dataclass(frozen=True)
class Recording:
    """What an MCAP file has of a robot's joints."""

    time: np.ndarray
    """(T,) time stamps [s] from 0, increasing."""
    columns: Columns
    """(T,) by signal and joint, NaN where a row lacks them."""
    source: str
    """Topics of the targets and of the measurements, to be shown."""
    notes: tuple[str, ...]
    """What is suspicious about the file."""


def read(path: Path, topics: tuple[str, ...] = ()) -> Recording:
    """Read the targets and measurements of an MCAP file.

    Args:
        path: the file.
        topics: see `topics_of`; where empty, those of the file's controllers, or /joint_states and the only topic of
            joint states whose name says that it has targets.

    Raises:
        MissingError: the package that reads MCAP is not installed.
        ConfigError: the file is no MCAP file, is damaged, or lacks what is needed.
    """
    kinds, raw, notes = _raw(path)
    parts = _chosen(path, kinds, topics)
    found = {topic: _decoded(path, topic, kinds[topic], raw[topic]) for topic in dict(parts)}
    taken = [(message, signals) for topic, signals in parts for message in found[topic]]
    stamped = all(message.stamp for message, _ in taken)
    if not stamped and any(message.stamp for message, _ in taken):
        notes += ("some messages have no time in their headers: all count when they were recorded",)
    times = [message.stamp if stamped else message.recorded for message, _ in taken]
    if max(times) - min(times) > LONGEST * 10**9:
        first = {
            topic: (messages[0].stamp or messages[0].recorded) / 1e9 for topic, messages in found.items()
        }
        raise ConfigError(
            f"{quote(str(path), 120)}: its messages span more than {LONGEST / 3600:g} hours; do all have one clock? "
            f"(first message: {listing(f'{topic} at {time:.1f} s' for topic, time in first.items())})"
        )
    unique, rows = np.unique(np.array(times, dtype=np.int64), return_inverse=True)
    places: dict[tuple[str, str], tuple[list[int], list[float]]] = {}
    for row, (message, signals) in zip(rows.tolist(), taken, strict=True):
        for signal, name in signals.items():
            for joint, number in zip(*message.values.get(signal, ((), ())), strict=True):
                at, numbers = places.setdefault((name, joint), ([], []))
                at.append(row)
                numbers.append(number)
    columns: Columns = {}
    for (name, joint), (at, numbers) in places.items():
        column = columns.setdefault(name, {})[joint] = np.full(len(unique), np.nan)
        column[at] = numbers
    source = "; ".join(f"{_plain(signals)} from {topic}" for topic, signals in parts)
    if not columns.get("target"):
        raise ConfigError(f"{quote(str(path), 120)}: there are no joint targets in it ({source})")
    return Recording((unique - unique[0]) / 1e9, columns, source, notes)


def _plain(signals: Mapping[str, str]) -> str:
    """What a topic gives that has these signals of a log."""
    if "target" not in signals.values():
        return "measurements"
    return "targets" if len(signals) == 1 else "targets and measurements"


def _chosen(
    path: Path, kinds: Mapping[str, _Kind], topics: tuple[str, ...]
) -> list[tuple[str, dict[str, str]]]:
    """Topics to take, each with the signals of a log by those of its messages."""
    measured = {signal: signal for signal in _PARTS}
    both = {"target": "target", **measured}
    shown = quote(str(path), 120)
    if not kinds:
        raise ConfigError(f"{shown}: it has no topic of type {STATES[0]} or {CONTROLLERS[0]}")
    known = listing(sorted(kinds))
    for topic in topics:
        if topic not in kinds:
            raise ConfigError(
                f"{shown}: there is no topic {quote(topic)} of joint states{did_you_mean(topic, kinds)} (topics: "
                f"{known})"
            )
    controllers = [topic for topic, kind in kinds.items() if kind.controller]
    if not topics:
        states = [topic for topic in kinds if topic not in controllers]
        if controllers and not set(states) - {MEASURED}:
            topics = tuple(controllers)
        elif not controllers and MEASURED in states and len(states) == 2:
            (other,) = set(states) - {MEASURED}
            if any(word in other.lower() for word in TARGET_WORDS):
                topics = (other, MEASURED)
        if not topics:
            raise ConfigError(
                f"{shown}: which topics have the joint targets and the measurements? Add --topics "
                f"TARGETS,MEASUREMENTS, or --topics CONTROLLER, whose state has both (topics: {known})"
            )
    if set(topics) <= set(controllers):
        return [(topic, both) for topic in topics]
    if len(topics) != 2 or topics[0] == topics[1] or topics[1] in controllers:
        raise ConfigError(
            f"{shown}: --topics {quote(','.join(topics))}: name the topic of the targets and that of the measurements, "
            f"or topics of controllers (topics: {known})"
        )
    if topics[0] == MEASURED:
        raise ConfigError(
            f"{shown}: --topics names the topic of the targets first; {MEASURED} has measurements"
        )
    return [
        (topics[0], {"target" if topics[0] in controllers else "position": "target"}),
        (topics[1], measured),
    ]


def _raw(path: Path) -> tuple[dict[str, _Kind], dict[str, list[tuple[int, bytes]]], tuple[str, ...]]:
    """Kinds and messages, with the times of their recording [ns], of the topics of joint states that have any; and what
    is suspicious about the file."""
    try:
        reader = importlib.import_module("mcap.stream_reader")
        records = importlib.import_module("mcap.records")
        importlib.import_module("mcap_ros2.decoder")
    except ImportError as error:
        raise MissingError(f"a log in MCAP needs {error.name}: pip install 'robolearn[sysid]'") from error
    schemas: dict[int, Any] = {}
    channels: dict[int, str] = {}
    kinds: dict[str, _Kind] = {}
    raw: dict[str, list[tuple[int, bytes]]] = {}
    notes: tuple[str, ...] = ()
    with path.open("rb") as file:
        try:
            limit = max(LONGEST_RECORD, path.stat().st_size)
            for record in reader.StreamReader(file, record_size_limit=limit, validate_crcs=True).records:
                if isinstance(record, records.Schema):
                    schemas[record.id] = record
                elif isinstance(record, records.Channel):
                    schema = schemas.get(record.schema_id)
                    name = schema.name if schema else ""
                    if name in STATES or name in CONTROLLERS:
                        channels[record.id] = record.topic
                        kinds[record.topic] = _Kind(name in CONTROLLERS, record.message_encoding, schema)
                elif isinstance(record, records.Message) and record.channel_id in channels:
                    raw.setdefault(channels[record.channel_id], []).append((record.log_time, record.data))
        except OSError:
            raise
        except Exception as error:  # the reader and its decompressors raise whatever they like
            about = str(error) or type(error).__name__
            # A wrong sum says that something before is wrong, unless it is of what a cut has shortened; a loss of power
            # leaves zeros behind it.
            if not raw or ("crc" in about.lower() and file.read().strip(b"\0")):
                raise ConfigError(f"{quote(str(path), 120)} is no whole MCAP file: {about}") from error
            notes = (
                f"the file is cut, or damaged after what is used ({about}): its recorder was not stopped properly",
            )
    return {topic: kinds[topic] for topic in raw}, raw, notes


def _decoded(path: Path, topic: str, kind: _Kind, raw: list[tuple[int, bytes]]) -> list[_Message]:
    """The messages of a topic, `raw` with the times of their recording [ns]."""
    shown = f"{quote(str(path), 120)}: topic {quote(topic)}"
    number = 0
    try:
        if kind.encoding == "json":
            decode: Callable[[bytes], Any] | None = json.loads
        else:
            ros2 = importlib.import_module("mcap_ros2.decoder").DecoderFactory()
            decode = ros2.decoder_for(kind.encoding, kind.schema)
        if decode is None:
            raise ConfigError(
                f"{shown}: messages in {kind.encoding} with a definition in {kind.schema.encoding} are not read; CDR "
                "with ros2msg, and JSON, are"
            )
        out = []
        for recorded, data in raw:
            number += 1
            message = decode(data)
            values = _controller(message) if kind.controller else _state(message)
            out.append(_Message(recorded, _stamp(message), values))
    except ConfigError:
        raise
    except Exception as error:  # definitions and messages raise whatever they like
        where = f"message {number}" if number else "its definition"
        raise ConfigError(f"{shown}: {where} cannot be read: {str(error) or type(error).__name__}") from error
    return out


def _get(message: Any, name: str, default: Any = None) -> Any:
    """A field of a decoded message or of JSON."""
    return message.get(name, default) if isinstance(message, dict) else getattr(message, name, default)


def _stamp(message: Any) -> int:
    """Time of the header [ns], 0 for none."""
    stamp = _get(_get(message, "header") or {}, "stamp") or {}
    nanoseconds = _get(stamp, "nanosec", _get(stamp, "nsec", 0))
    time = int(_get(stamp, "sec", 0)) * 10**9 + int(nanoseconds)
    if not 0 <= time < 2**62:
        raise ValueError(f"the time of its header is {time / 1e9:g} s")
    return time


def _numbers(joints: Any, values: Any) -> tuple[list[str], list[float]] | None:
    """Joints with their numbers; None where the field is empty."""
    if values is None or len(values) == 0:
        return None
    if len(joints) != len(values):
        raise ValueError(f"{len(joints)} joints and {len(values)} numbers")
    if not all(isinstance(joint, str) and joint for joint in joints) or len(set(joints)) < len(joints):
        raise ValueError("a joint without a name, or twice")
    return list(joints), [float("nan") if value is None else float(value) for value in values]


def _state(message: Any) -> Values:
    joints = _get(message, "name", [])
    fields = {"position": "position", "velocity": "velocity", "torque": "effort"}
    found = {signal: _numbers(joints, _get(message, field)) for signal, field in fields.items()}
    return {signal: pair for signal, pair in found.items() if pair is not None}


def _controller(message: Any) -> Values:
    """Older releases of ros2_control say desired and actual for reference and feedback; some have both, of which one is
    empty."""
    joints = _get(message, "joint_names", [])
    found: dict[str, tuple[list[str], list[float]] | None] = {}
    for feedback in ("actual", "feedback"):
        for signal, field in _PARTS.items():
            found[signal] = _numbers(joints, _get(_get(message, feedback), field)) or found.get(signal)
    for reference in ("desired", "reference"):
        found["target"] = _numbers(joints, _get(_get(message, reference), "positions")) or found.get("target")
    return {signal: pair for signal, pair in found.items() if pair is not None}
