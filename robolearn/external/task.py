"""ExternalTask: the settings of somebody else's environment, chosen with `task=DOOR:ID`."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, Self

import torch

from robolearn.external.env import ExternalEnv


@dataclass
class ExternalTask:
    """What can be set about an environment that is not ours: rewards, episodes and simulation are its own."""

    door: ClassVar[str] = ""
    """The word before the colon."""
    id: ClassVar[str] = ""
    """The word after it: which environment."""
    brings_simulator: ClassVar[bool] = True
    """No backend is chosen for it; see `robolearn.config`."""
    devices: ClassVar[tuple[str, ...]] = ("cpu",)
    """Where `device=auto` may let it run, the best first."""
    defaults: ClassVar[dict[str, Any]] = {}
    learner_defaults: ClassVar[dict[str, dict[str, Any]]] = {}
    noise: ClassVar[dict[str, float]] = {}
    """None is added to what its policy observes."""

    actions: Literal["scaled", "clipped"] = "scaled"
    """scaled: a policy's -1 to 1 spans the action space; clipped: its numbers are the environment's. Either way they
    are clipped to the space."""
    control_dt: float = field(default=0.0, metadata={"min": 0.0, "max": 10.0})
    """Control period [s], where the environment does not tell its own; 0 asks the environment."""

    @classmethod
    def named(cls, id: str) -> type[Self]:
        """The class of this door's task `id`, with settings of its own.

        Raises:
            ConfigError: there is no such environment.
        """
        name = "".join(c if c.isalnum() else "_" for c in id)
        return type(name, (cls,), {"id": id, "__doc__": f"{cls.door}:{id}", "__module__": cls.__module__})

    @property
    def name(self) -> str:
        """As the user writes it."""
        return f"{self.door}:{self.id}"

    @abstractmethod
    def make(
        self, num_envs: int, device: torch.device, seed: int, rank: int = 0, render: bool = False
    ) -> ExternalEnv:
        """`num_envs` of the environment, seeded; with `render` able to draw the first.

        Raises:
            ConfigError: it cannot be made so, or its spaces do not fit a policy; the space is named.
        """
        raise NotImplementedError
