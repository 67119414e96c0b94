"""Replay files: the last second of one environment, to be simulated again bit for bit."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from robolearn.config import run_config
from robolearn.config.run_config import Config
from robolearn.core.checksum import checksum
from robolearn.core.recorder import play_event
from robolearn.envs.backend import Backend
from robolearn.envs.robot import Robot
from robolearn.envs.scene import ROBOT, Scene
from robolearn.envs.state import State
from robolearn.errors import ConfigError, one_line, quote
from robolearn.files import replacing, save_tensors
from robolearn.training.build import acting_robot, make_backend, make_robot, make_scene

SCHEMA = 1
SUFFIX = ".replay"
KINDS = ("step", "push", "force", "place", "params", "reset")


@dataclass(frozen=True)
class Replay:
    """A recorded second."""

    path: Path
    config_text: str
    """The YAML of its configuration."""
    why: str
    """What happened at its end."""
    env: int
    """Index of the environment among those it was recorded with."""
    snapshot: dict[str, Any]
    events: list[dict[str, Any]]
    checksum: str
    """sha256 of the State at the end."""

    @property
    def steps(self) -> int:
        """Number of control steps."""
        return sum(event["kind"] == "step" for event in self.events)

    def config(self, folder: Path, overrides: Sequence[str] = ()) -> Config:
        """The configuration; `folder` is a temporary one. A task from a file is imported only where an override names
        it again: see `robolearn.config.load`."""
        file = folder / run_config.FILE_NAME
        file.write_text(self.config_text, encoding="utf-8")
        try:
            return run_config.load(file, overrides)
        except ConfigError as error:
            raise ConfigError(str(error).replace(str(file), str(self.path))) from error


def write(path: Path, dump: dict[str, Any], env: int, config: Config, why: str) -> None:
    """Write what a Recorder dumped of environment `env` to `path`, atomically.

    Raises:
        ConfigError: the file cannot be written.
    """
    content = {
        "schema": SCHEMA,
        "kind": "robolearn replay",
        "config": run_config.show(replace(config, resume=None, output=None)),
        "why": one_line(why),
        "env": env,
        **dump,
    }
    with replacing(path) as part:
        save_tensors(content, part)


def read(path: Path) -> Replay:
    """Read a replay file; nothing in it is executed.

    Raises:
        ConfigError: it does not exist, is damaged, or is of another version.
    """
    where = quote(str(path), 120)
    if not path.is_file():
        raise ConfigError(
            f"{where}: there is no such file; `sim --suite` and a failed `train` write {SUFFIX} files"
        )
    try:
        content = torch.load(path, weights_only=True, map_location="cpu")
    except Exception as error:  # a damaged archive raises almost any error
        raise ConfigError(f"{where} is damaged, or no replay that RoboLearn wrote") from error
    if not isinstance(content, dict) or content.get("kind") != "robolearn replay":
        raise ConfigError(f"{where} is not a replay that RoboLearn wrote")
    if content.get("schema") != SCHEMA:
        raise ConfigError(f"{where} has schema {content.get('schema')!r}; this version reads {SCHEMA}")
    types = {"config": str, "why": str, "env": int, "snapshot": dict, "events": list, "checksum": str}
    for key, kind in types.items():
        if not isinstance(content.get(key), kind):
            raise ConfigError(f"{where} is damaged: {key} is missing or not a {kind.__name__}")
    for event in content["events"]:
        if not isinstance(event, dict) or event.get("kind") not in KINDS:
            raise ConfigError(f"{where} is damaged: unknown event {quote(event)}")
    fields = {key: content[key] for key in ("why", "env", "snapshot", "events", "checksum")}
    return Replay(path, content["config"], **fields)


@dataclass(frozen=True)
class Opened:
    """A simulator of one environment, set to the beginning of a replay; there is no task: its inputs are recorded."""

    backend: Backend
    robot: Robot
    scene: Scene
    dt: float
    """Control period [s]."""
    entity: str = ROBOT
    """The robot that the replay is about: of several agents, the one that was recorded."""


@contextmanager
def opened(replay: Replay, folder: Path, overrides: Sequence[str] = ()) -> Iterator[Opened]:
    """The simulator of a replay, set to its beginning.

    Raises:
        ConfigError: its configuration does not fit this installation, or the file is damaged.
    """
    config = replay.config(folder, overrides)
    backend = make_backend(config, 1)
    try:
        robot = acting_robot(config)
        try:
            backend.restore(replay.snapshot)
        except (KeyError, RuntimeError, IndexError, TypeError, AttributeError, ValueError) as error:
            raise ConfigError(
                f"{quote(str(replay.path), 120)} does not fit robot {robot.name} on "
                f"{backend.capabilities.name}: {one_line(str(error), 120)}"
            ) from error
        agents = config.task.agents or (ROBOT,)
        entity = agents[replay.env % len(agents)]
        yield Opened(backend, robot, make_scene(config, make_robot(config)), config.task.control_dt, entity)
    finally:
        backend.close()


def steps_of(
    replay: Replay, env: Opened, told: Callable[[dict[str, Any]], None] | None = None
) -> Iterator[State]:
    """The State at the beginning and after each control step; `told` sees every event before it happens.

    Raises:
        ConfigError: an event does not fit the robot: the file is damaged.
    """
    yield env.backend.state
    for event in replay.events:
        if told is not None:
            told(event)
        try:
            play_event(env.backend, event)
        except (KeyError, RuntimeError, IndexError, TypeError, AttributeError, ValueError) as error:
            raise ConfigError(
                f"{quote(str(replay.path), 120)} is damaged: a recorded {event['kind']} does not fit robot "
                f"{env.robot.name}: {one_line(str(error), 120)}"
            ) from error
        if event["kind"] == "step":
            yield env.backend.state


def same_bits(replay: Replay, env: Opened) -> bool:
    """Whether the State after the last step has the bits that were recorded."""
    return checksum(env.backend.state) == replay.checksum
