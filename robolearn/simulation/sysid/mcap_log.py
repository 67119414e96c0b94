"""Logs in MCAP files, as `ros2 bag record --storage mcap` and Foxglove write them.

Read are messages of these types, encoded as CDR with ROS 2 definitions or as JSON with the same fields:

- `sensor_msgs/msg/JointState`: what was measured, on /joint_states, and, on another topic, the joint targets as its
  positions.
- `control_msgs/msg/JointTrajectoryControllerState`: targets and measurements in one message, as the controllers of
  ros2_control publish it.

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

STATE, CONTROLLER = "JointState", "JointTrajectoryControllerState"
MEASURED = "/joint_states"
"""Topic of the measurements where --topics names none."""
_PARTS = {"position": "positions", "velocity": "velocities", "torque": "effort"}
"""Signals of a log, and the fields of a JointTrajectoryPoint."""

Columns = dict[str, dict[str, np.ndarray]]
Values = dict[str, tuple[list[str], list[float]]]
"""Joints and their numbers, by signal."""


@dataclass(frozen=True)
class _Message:
    recorded: int
    """When it was recorded [ns]."""
    stamp: int
    """That of its header [ns]; 0: it has none."""
    values: Values


def topics_of(text: str | None) -> tuple[str, ...]:
    """The topics that --topics names: of the targets, and of the measurements where that is another one.

    Raises:
        ConfigError: not one or two names.
    """
    if text is None:
        return ()
    names = tuple(name.strip() for name in text.split(","))
    if len(names) > 2 or not all(names):
        raise ConfigError(
            f"--topics is {quote(text)}; name the topic of the joint targets and that of the measurements, with a "
            "comma between, or one of a controller's state, which has both"
        )
    return names


def read(path: Path, topics: tuple[str, ...] = ()) -> tuple[np.ndarray, Columns, tuple[str, ...]]:
    """Read the targets and measurements of an MCAP file.

    Args:
        path: the file.
        topics: see `topics_of`; where empty, those of the only controller, or of /joint_states and the only other topic
            of joint states.

    Returns:
        (T,) time stamps [s] from 0, increasing; columns (T,) by signal and joint, NaN where a row lacks them; and what
        is suspicious about the file.

    Raises:
        MissingError: the package that reads MCAP is not installed.
        ConfigError: the file is no MCAP file, is damaged, or lacks what is needed.
    """
    found, notes = _messages(path)
    parts = [(topic, signals) for topic, signals in _chosen(path, found, topics)]
    taken = [(message, signals) for topic, signals in parts for message in found[topic][1]]
    stamped = all(message.stamp for message, _ in taken)
    times = [message.stamp if stamped else message.recorded for message, _ in taken]
    unique, rows = np.unique(np.array(times, dtype=np.int64), return_inverse=True)
    columns: Columns = {}
    for row, (message, signals) in zip(rows, taken, strict=True):
        for signal, name in signals.items():
            joints, numbers = message.values.get(signal, ([], []))
            for joint, number in zip(joints, numbers, strict=True):
                column = columns.setdefault(name, {}).setdefault(joint, np.full(len(unique), np.nan))
                column[row] = number
    return (unique - unique[0]) / 1e9, columns, notes


def _chosen(
    path: Path, found: Mapping[str, tuple[str, list[_Message]]], topics: tuple[str, ...]
) -> list[tuple[str, dict[str, str]]]:
    """Topics to take, each with the signals of a log by those of its messages."""
    measured = {signal: signal for signal in _PARTS}
    both = {"target": "target", **measured}
    known = listing(sorted(found)) if found else f"none; messages of type {STATE} and {CONTROLLER} are read"
    for topic in topics:
        if topic not in found:
            raise ConfigError(
                f"{quote(str(path), 120)}: there is no topic {quote(topic)} of joint states"
                f"{did_you_mean(topic, found)} (topics: {known})"
            )
    controllers = [topic for topic, (kind, _) in found.items() if kind == CONTROLLER]
    if not topics:
        others = [topic for topic in found if topic not in controllers and topic != MEASURED]
        if len(controllers) == 1 and not others:
            topics = (controllers[0],)
        elif not controllers and MEASURED in found and len(others) == 1:
            topics = (others[0], MEASURED)
        else:
            raise ConfigError(
                f"{quote(str(path), 120)}: which topics have the joint targets and the measurements? Add --topics "
                f"TARGETS,MEASUREMENTS (topics: {known})"
            )
    if len(topics) == 1 or topics[0] == topics[1]:
        if topics[0] not in controllers:
            raise ConfigError(
                f"{quote(str(path), 120)}: topic {quote(topics[0])} has measurements or targets, not both; name two, "
                f"--topics TARGETS,MEASUREMENTS (topics: {known})"
            )
        return [(topics[0], both)]
    targets = {"target": "target"} if topics[0] in controllers else {"position": "target"}
    return [(topics[0], targets), (topics[1], measured)]


def _messages(path: Path) -> tuple[dict[str, tuple[str, list[_Message]]], tuple[str, ...]]:
    """Type and messages of each topic of joint states, and what is suspicious about the file."""
    try:
        reader = importlib.import_module("mcap.stream_reader")
        records = importlib.import_module("mcap.records")
        errors = importlib.import_module("mcap.exceptions")
        decoders = importlib.import_module("mcap_ros2.decoder").DecoderFactory()
    except ImportError as error:
        raise MissingError(f"a log in MCAP needs {error.name}: pip install 'robolearn[sysid]'") from error
    schemas: dict[int, Any] = {}
    channels: dict[int, tuple[str, str, Callable[[bytes], Any]]] = {}
    found: dict[str, tuple[str, list[_Message]]] = {}
    notes: tuple[str, ...] = ()
    topic = ""
    try:
        with path.open("rb") as file:
            try:
                for record in reader.StreamReader(file, record_size_limit=path.stat().st_size).records:
                    if isinstance(record, records.Schema):
                        schemas[record.id] = record
                    elif isinstance(record, records.Channel):
                        topic = record.topic
                        schema = schemas.get(record.schema_id)
                        kind = schema.name.replace(".", "/").rpartition("/")[2] if schema else ""
                        if kind not in (STATE, CONTROLLER):
                            continue
                        if record.message_encoding == "json":
                            decode: Callable[[bytes], Any] | None = json.loads
                        else:
                            decode = decoders.decoder_for(record.message_encoding, schema)
                        if decode is None:
                            definition = schema.encoding if schema else "none"
                            raise ConfigError(
                                f"{quote(str(path), 120)}: topic {quote(topic)}: messages in "
                                f"{record.message_encoding} with a definition in {definition} are not read; CDR with "
                                "ros2msg, and JSON, are"
                            )
                        channels[record.id] = (topic, kind, decode)
                    elif isinstance(record, records.Message) and record.channel_id in channels:
                        topic, kind, decode = channels[record.channel_id]
                        message = decode(record.data)
                        values = _state(message) if kind == STATE else _controller(message)
                        stamp = _stamp(message)
                        found.setdefault(topic, (kind, []))[1].append(
                            _Message(record.log_time, stamp, values)
                        )
            except errors.EndOfFile:
                if not found:
                    raise
                notes = ("the file ends early: its recorder was not stopped properly; what it has is used",)
    except (ConfigError, OSError):
        raise
    except Exception as error:  # decompression, definitions and messages raise whatever they like
        where = f" (after topic {quote(topic)})" if topic else ""
        about = str(error) or type(error).__name__
        raise ConfigError(f"{quote(str(path), 120)} is no whole MCAP file{where}: {about}") from error
    return found, notes


def _get(message: Any, name: str, default: Any = None) -> Any:
    """A field of a decoded message or of JSON."""
    return message.get(name, default) if isinstance(message, dict) else getattr(message, name, default)


def _stamp(message: Any) -> int:
    """Time of the header [ns], 0 for none."""
    stamp = _get(_get(message, "header", {}), "stamp", {})
    nanoseconds = _get(stamp, "nanosec", _get(stamp, "nsec", 0))
    return int(_get(stamp, "sec", 0)) * 10**9 + int(nanoseconds)


def _numbers(joints: Any, values: Any) -> tuple[list[str], list[float]] | None:
    """Joints with their numbers; None where the field is empty."""
    if values is None or len(values) == 0:
        return None
    if len(joints) != len(values):
        raise ValueError(f"{len(joints)} joints and {len(values)} numbers in a message")
    if not all(isinstance(joint, str) and joint for joint in joints):
        raise ValueError("a joint without a name in a message")
    return list(joints), [float(value) for value in values]


def _state(message: Any) -> Values:
    joints = _get(message, "name", [])
    fields = {"position": "position", "velocity": "velocity", "torque": "effort"}
    found = {signal: _numbers(joints, _get(message, field)) for signal, field in fields.items()}
    return {signal: pair for signal, pair in found.items() if pair is not None}


def _controller(message: Any) -> Values:
    """Older releases of ros2_control say desired and actual for reference and feedback."""
    joints = _get(message, "joint_names", [])
    feedback = _get(message, "feedback", _get(message, "actual"))
    reference = _get(message, "reference", _get(message, "desired"))
    found = {signal: _numbers(joints, _get(feedback, field)) for signal, field in _PARTS.items()}
    found["target"] = _numbers(joints, _get(reference, "positions"))
    return {signal: pair for signal, pair in found.items() if pair is not None}
