"""The environments of the gymnasium ids: a task by its name, with settings, as a gymnasium Env or VectorEnv."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from hydra.core.override_parser.types import Quote, QuotedString

from robolearn import config
from robolearn.core.env import Env
from robolearn.errors import ConfigError, did_you_mean, listing, quote
from robolearn.training.build import make_env
from robolearn.views.gymnasium import ACTION_BOUND, GymnasiumVectorView, GymnasiumView
from robolearn.views.pictures import MODES, Pictures, check_mode

KEYWORDS = ("backend", "device", "seed")
"""Settings that are keyword arguments too."""
HEADS = ("task", *KEYWORDS)
"""First parts of the keys of valid settings: all others concern training runs only."""

Settings = Mapping[str, Any] | Sequence[str]
"""`{"task.rewards.upright": 0.5}`, or words as on the command line: `["task.rewards.upright=0.5"]`."""


class TaskEnv(GymnasiumView):
    """One environment of a task, as made by `gymnasium.make("robolearn/...")`."""

    metadata: dict[str, Any] = {"render_modes": list(MODES)}  # noqa: RUF012

    def __init__(
        self,
        task: str,
        settings: Settings = (),
        render_mode: str | None = None,
        action_bound: float = ACTION_BOUND,
        **keywords: Any,
    ) -> None:
        """The task's name, settings of the task, backend, device or seed, and the half-width of the action space.

        `keywords` are `backend`, `device` and `seed`. Without a seed each environment gets a random one.

        Raises:
            ConfigError: a setting is invalid or does not concern an environment.
            MissingError: no simulator is installed.
        """
        check_mode(render_mode)
        super().__init__(make(task, 1, settings, keywords), action_bound)
        self.render_mode = render_mode
        self.metadata = {**self.metadata, "render_fps": 1 / self.env.ctx.dt}
        self._pictures = Pictures(self.env, render_mode)

    def render(self) -> np.ndarray | None:
        """An image (480, 640, 3) uint8 of the current state; None without a render mode.

        After the last step of an episode it shows the start of the next one.

        Raises:
            MissingError: no renderer works on this machine.
        """
        return self._pictures.draw()

    def close(self) -> None:
        """Free the simulator and the renderer."""
        self._pictures.close()
        super().close()


class TaskVectorEnv(GymnasiumVectorView):
    """N environments of a task in one simulation, as made by `gymnasium.make_vec("robolearn/...")`."""

    def __init__(
        self,
        task: str,
        num_envs: int = 1,
        settings: Settings = (),
        render_mode: None = None,
        action_bound: float = ACTION_BOUND,
        **keywords: Any,
    ) -> None:
        """Arguments of TaskEnv, and `num_envs`. These environments do not render.

        Raises:
            ConfigError: a setting is invalid, or the environments do not fit into host or GPU memory.
            MissingError: no simulator is installed.
        """
        if render_mode is not None:
            raise ConfigError(
                "environments of gymnasium.make_vec do not render; one of gymnasium.make(...) does"
            )
        super().__init__(make(task, num_envs, settings, keywords), action_bound)


def make(task: str, num_envs: int, settings: Settings, keywords: Mapping[str, Any]) -> Env:
    """The Env of a task with `settings`, and with `backend`, `device` and `seed` in `keywords`.

    Raises:
        ConfigError: a setting is invalid or does not concern an environment.
        MissingError: no simulator is installed.
    """
    for name in keywords:
        if name not in KEYWORDS:
            valid = ("settings", "action_bound", *KEYWORDS)
            fix = did_you_mean(name, valid) or '; give settings of the task as settings={"task...": ...}'
            raise ConfigError(f"there is no keyword argument {quote(name)}{fix}. Valid: {listing(valid)}")
    words = [_word(name, value) for name, value in keywords.items() if value is not None]
    words += _words(settings)
    if not any(word.startswith("seed=") for word in words):
        # With the default seed of a training run, environments made one by one would all be equal.
        words.append(f"seed={np.random.SeedSequence().generate_state(1)[0]}")
    run = config.resolve([f"task={task}", *words, f"num_envs={num_envs}"])
    with _generators_kept():
        return make_env(run)


def _words(settings: Settings) -> list[str]:
    """Settings in the command line's grammar."""
    if isinstance(settings, str) or not isinstance(settings, Mapping | Sequence):
        raise ConfigError('settings= takes {"task.rewards.upright": 0.5} or ["task.rewards.upright=0.5"]')
    if isinstance(settings, Mapping):
        words = [_word(str(key), value) for key, value in settings.items()]
    else:
        words = [str(word) for word in settings]
    for word in words:
        key = word.partition("=")[0]
        head, _, _ = key.partition(".")
        if key == "num_envs":
            raise ConfigError(
                "num_envs is an argument of gymnasium.make_vec; gymnasium.make makes one environment"
            )
        if head not in HEADS or key == "task":
            wanted = "is set by the id" if key == "task" else "is not a setting of an environment"
            raise ConfigError(
                f"{quote(word)}: {key} {wanted}; valid settings begin with task., backend, device or seed"
            )
    return words


def _word(key: str, value: Any) -> str:
    return f"{key}={_text(value)}"


def _text(value: Any) -> str:
    """A Python or numpy value in Hydra's grammar."""
    if isinstance(value, np.generic | np.ndarray | torch.Tensor):
        value = value.tolist()
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, Mapping):
        return "{" + ",".join(f"{k}:{_text(v)}" for k, v in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ",".join(map(_text, value)) + "]"
    if isinstance(value, int | float):
        return repr(value)
    return QuotedString(str(value), Quote.single).with_quotes()


@contextmanager
def _generators_kept() -> Iterator[None]:
    """Restore the global random generators: building an Env seeds them, but they are the caller's."""
    cuda = torch.cuda.is_available() and torch.cuda.is_initialized()
    python, legacy = random.getstate(), np.random.get_state()  # noqa: NPY002
    with torch.random.fork_rng(range(torch.cuda.device_count()) if cuda else []):
        try:
            yield
        finally:
            random.setstate(python)
            np.random.set_state(legacy)  # noqa: NPY002
    if torch.cuda.is_available() and not cuda:
        torch.cuda.manual_seed_all(torch.initial_seed())  # seeds a GPU that is not in use yet
