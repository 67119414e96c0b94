"""ExternalTask: the settings of an environment of another library, chosen with `task=DOOR:ID`."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, Self

import torch

from robolearn.external.env import ExternalEnv


@dataclass
class ExternalTask:
    """Settings of an external environment, which brings its rewards, episodes and simulation."""

    door: ClassVar[str] = ""
    """The word before the colon in `task=DOOR:ID`."""
    id: ClassVar[str] = ""
    """The word after the colon: the environment."""
    brings_simulator: ClassVar[bool] = True
    """`backend=` cannot be chosen; see `robolearn.config`."""
    devices: ClassVar[tuple[str, ...]] = ("cpu",)
    """Devices that `device=auto` chooses from, the best first."""
    defaults: ClassVar[dict[str, Any]] = {}
    learner_defaults: ClassVar[dict[str, dict[str, Any]]] = {}
    noise: ClassVar[dict[str, float]] = {}
    """RoboLearn adds no observation noise."""

    actions: Literal["scaled", "clipped"] = "scaled"
    """scaled: -1 to 1 of the policy's actions span the action space; clipped: they are the environment's actions. Both
    are clipped to the space."""
    control_dt: float = field(default=0.0, metadata={"min": 0.0, "max": 10.0})
    """Control period [s], for an environment that does not state it; 0: the environment's."""

    @classmethod
    def named(cls, id: str) -> type[Self]:
        """The task class of environment `id`.

        Raises:
            ConfigError: there is no such environment.
        """
        name = "".join(c if c.isalnum() else "_" for c in id)
        return type(name, (cls,), {"id": id, "__doc__": f"{cls.door}:{id}", "__module__": cls.__module__})

    @property
    def name(self) -> str:
        """As written on the command line: DOOR:ID."""
        return f"{self.door}:{self.id}"

    @abstractmethod
    def make(
        self, num_envs: int, device: torch.device, seed: int, rank: int = 0, render: bool = False
    ) -> ExternalEnv:
        """Make `num_envs` seeded environments; with `render` the first can be rendered.

        Raises:
            ConfigError: the environment cannot be made, or a space, which is named, does not fit a policy.
        """
        raise NotImplementedError
