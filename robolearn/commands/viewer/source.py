"""Where the viewer's actions come from: the checkpoints of a run, or an exported bundle."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Protocol

from robolearn.core.env import Env
from robolearn.envs.state import Tensor
from robolearn.errors import ConfigError
from robolearn.export.driver import BundleDriver
from robolearn.learners import saved
from robolearn.learners.saved import LATEST
from robolearn.learners.team import runner_of

_ITERATION = re.compile(r"iteration_(\d+)\.pt")


class Source(Protocol):
    """Gives the actions of every control step."""

    name: str
    """What is driving, for the panel."""

    def __call__(self) -> tuple[Tensor, Tensor | None]:
        """Actions and joint targets (N, A) as `Env.step` takes them."""

    def reset(self, mask: Tensor | None = None) -> None:
        """Start anew where an episode has begun, `mask` (N,) bool; without `mask`, everywhere."""

    def choices(self) -> list[str]:
        """Names of the checkpoints to choose from, the newest first."""

    def switch(self, name: str) -> None:
        """Act with another of the choices from the next step on."""

    def close(self) -> None:
        """Free its resources."""


class RunSource:
    """The policy of a run, and the run's other checkpoints, of which new ones may appear while it is trained."""

    def __init__(self, env: Env, checkpoint: Path, folder: Path) -> None:
        """
        Args:
            checkpoint: to begin with.
            folder: the run folder.

        Raises:
            ConfigError: the checkpoint holds no policy, or one for other observations or actions.
        """
        self.env, self.folder = env, folder
        self._first = checkpoint
        self.switch(checkpoint.name)

    def __call__(self) -> tuple[Tensor, Tensor | None]:
        """The policy's actions; the task computes the joint targets."""
        return self.runner(self.env.observations), None

    def reset(self, mask: Tensor | None = None) -> None:
        """Reset the policy's recurrent state."""
        self.runner.reset(mask)

    def choices(self) -> list[str]:
        """Files of the run's checkpoints: the one that was asked for first, if it is none of those under checkpoints/,
        then those, the newest first."""
        found = [path.name for path in (self.folder / "checkpoints").glob("iteration_*.pt")]
        found = sorted((name for name in found if _ITERATION.fullmatch(name)), key=iteration_of, reverse=True)
        return found if self._first.name in found else [self._first.name, *found]

    def switch(self, name: str) -> None:
        """Act with another checkpoint; a policy that does not fit leaves the old one in place.

        Raises:
            ConfigError: the file cannot be read, or its policy does not fit.
        """
        path = self._first if name == self._first.name else self.folder / "checkpoints" / name
        runner = runner_of(saved.load(path, self.folder), str(path), self.env.device)
        action = runner(self.env.observations)
        if action.shape[1] != self.env.num_actions:
            raise ConfigError(
                f"{path} has {action.shape[1]} actions and the robot {self.env.num_actions} actuators: it is of "
                "another task or robot"
            )
        runner.reset()
        self.runner, self.name = runner, name

    def close(self) -> None:
        """Nothing to free."""


class BundleSource:
    """The controller of an exported bundle."""

    def __init__(self, env: Env, folder: Path) -> None:
        """
        Raises:
            ConfigError, Refused: see `BundleDriver`.
        """
        self.driver = BundleDriver(folder, env)
        self.name = f"{folder.resolve().name} ({self.driver.name})"

    def __call__(self) -> tuple[Tensor, Tensor | None]:
        """The controller's actions and joint targets."""
        return self.driver()

    def reset(self, mask: Tensor | None = None) -> None:
        """Reset the controller's state."""
        self.driver.reset(mask)

    def choices(self) -> list[str]:
        """The bundle alone."""
        return [self.name]

    def switch(self, name: str) -> None:
        """A bundle has one controller."""

    def close(self) -> None:
        """Release the session."""
        self.driver.close()


def iteration_of(name: str) -> int:
    """The iteration in a checkpoint's name; -1 without one, as of latest.pt."""
    found = _ITERATION.fullmatch(name)
    return int(found[1]) if found else -1


def newest(source: Source) -> str | None:
    """The source's checkpoint of the highest iteration; None without any."""
    found = [name for name in source.choices() if iteration_of(name) >= 0]
    return max(found, key=iteration_of) if found else None


def has_checkpoint(folder: Path) -> bool:
    """Whether a run folder has a checkpoint to begin with."""
    return (folder / LATEST).is_file()
