"""From a configuration to an Env: robot, backend and device looked up, seeded and put together."""

from __future__ import annotations

import random

import numpy as np
import torch

from robolearn import registry
from robolearn.config import Config
from robolearn.env import Env
from robolearn.envs.robot import Robot
from robolearn.errors import ConfigError
from robolearn.memory import require_room


def make_env(run: Config, num_envs: int | None = None, rank: int = 0) -> Env:
    """The Env a configuration describes, with `num_envs` instead of its own where given.

    Raises:
        ConfigError: robot, backend, device and task do not fit together, or the environments not into memory.
    """
    wanted = num_envs or run.num_envs
    require_room(wanted, device_of(run), lambda n: _make(run, n, rank))
    return _make(run, wanted, rank)


def device_of(run: Config) -> torch.device:
    """Where a run computes: `auto` is a GPU where its backend can use one that is there."""
    if run.device != "auto":
        return torch.device(run.device)
    cuda = "cuda" in registry.devices(run.backend_name) and torch.cuda.is_available()
    return torch.device("cuda" if cuda else "cpu")


def _make(run: Config, num_envs: int, rank: int) -> Env:
    # Nothing of ours draws from the global generators; what a user's task or library draws repeats too.
    random.seed(run.seed)
    np.random.seed(run.seed)  # noqa: NPY002
    torch.manual_seed(run.seed)
    try:
        found = registry.load("robots", run.task.robot)
        robot = found if isinstance(found, Robot) else Robot.load(found)
        backend_class = registry.load("backends", run.backend_name)
        backend = backend_class(robot, num_envs, str(device_of(run)), run.backend)
        return Env(run.task, robot, backend, seed=run.seed, rank=rank)
    except ValueError as error:
        raise ConfigError(str(error)) from error
