"""Engine: starts the processes of an asynchronous training, and carries orders, weights and batches.

An engine knows nothing of credits, keys or policies: `pool.py` does, and is the same for every engine.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Protocol

Handle = Any
"""A tree of tensors that an engine keeps: a file, or a reference."""


@dataclass(frozen=True)
class Setup:
    """What a process needs to know at its start; plain values."""

    role: str
    """actor or evaluator."""
    index: int
    """Number of the actor."""
    count: int
    """Number of parts that the environments of an update have."""
    envs: int
    """Environments of the process."""
    steps: int
    """Steps of a batch."""
    precision: str
    """Arithmetic of the networks."""
    cores: int
    config: str
    """The run's configuration, YAML."""
    words: tuple[str, ...]
    """Overrides that name files, whose code may be imported."""
    folder: str
    """The run folder, for replays of what went wrong."""
    resources: dict[str, float] = field(default_factory=dict)
    labels: dict[str, str] = field(default_factory=dict)
    device: str | None = None
    """Its device; that of the configuration where omitted."""

    @property
    def name(self) -> str:
        """As messages name it."""
        return f"actor {self.index}" if self.role == "actor" else f"the {self.role}"

    @property
    def label(self) -> str:
        """As lists of processes show it: actor-0, evaluator."""
        return f"actor-{self.index}" if self.role == "actor" else self.role


@dataclass(frozen=True)
class Event:
    """Something that a process did. Those of a process that the pool has replaced are to be ignored, by incarnation."""

    incarnation: str


@dataclass(frozen=True)
class Ready(Event):
    """It can take orders."""


@dataclass(frozen=True)
class Done(Event):
    """It has carried out its order."""

    result: Handle
    busy: float
    """Time that it took [s]."""
    simulate: float = 0.0
    """Of it, in the simulator [s]."""
    numbers: dict[str, float] = field(default_factory=dict)
    """Of an evaluator: means by name."""


@dataclass(frozen=True)
class Lost(Event):
    """It has ended, or does not answer, and did not say why."""

    why: str
    """What is known of it, such as: killed by SIGKILL."""


@dataclass(frozen=True)
class Failed(Event):
    """It ended with an error, with this exit code and message."""

    code: int
    message: str


class Engine(Protocol):
    """Processes; methods are called by one thread at a time, except `load` and `publish`."""

    def start(self, incarnation: str, setup: Setup, state: Handle | None) -> None:
        """Start a process, which goes on from `state`."""

    def order(self, incarnation: str, version: int) -> None:
        """Let it collect a batch, or evaluate, with the weights of this version. It has no other order."""

    def place_wanted(self, incarnation: str) -> str | None:
        """What a process that has not started waits for, such as resources of a cluster; None where it has started."""

    def poll(self, seconds: float) -> list[Event]:
        """Events since the last call; waits for the first one for at most this time."""

    def kill(self, incarnation: str) -> None:
        """End it at once; there may be further events."""

    def publish(self, version: int, weights: dict[str, Any]) -> None:
        """Make the weights of a version available to all."""

    def put(self, tree: Any) -> Handle:
        """Keep a tree of tensors."""

    def load(self, handle: Handle) -> Any:
        """The tree of tensors behind a handle; not to be written to."""

    def release(self, handle: Handle) -> None:
        """The handle is not needed any more; what was loaded from it stays."""

    def close(self) -> None:
        """End all processes, and free everything."""
