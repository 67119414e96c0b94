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
from robolearn.memory import enough_memory, require_room


def make_env(run: Config, num_envs: int | None = None, rank: int = 0) -> Env:
    """The Env a configuration describes, with `num_envs` instead of its own where given.

    Raises:
        ConfigError: robot, backend, device and task do not fit together, or the environments not into memory.
    """
    wanted = num_envs or run.num_envs
    require_room(wanted, device_of(run), lambda n: build_env(run, n, rank))
    with enough_memory(wanted):
        return build_env(run, wanted, rank)


def device_of(run: Config) -> torch.device:
    """Where a run computes: `auto` is a GPU where its backend can use one that is there."""
    if run.device != "auto":
        return torch.device(run.device)
    cuda = "cuda" in registry.devices(run.backend_name) and torch.cuda.is_available()
    return torch.device("cuda" if cuda else "cpu")


def build_env(run: Config, num_envs: int, rank: int = 0) -> Env:
    """`make_env` for who has asked already whether there is room: it measures nothing.

    Raises:
        ConfigError: robot, backend, device and task do not fit together.
    """
    # Nothing of ours draws from the global generators; what a user's task or library draws repeats too.
    random.seed(run.seed)
    np.random.seed(run.seed)  # noqa: NPY002
    torch.manual_seed(run.seed)
    try:
        found = registry.load("robots", run.task.robot)
        robot = found if isinstance(found, Robot) else Robot.load(found)
        backend_class = registry.load("backends", run.backend_name)
        try:
            backend = backend_class(robot, num_envs, str(device_of(run)), run.backend)
        except NotImplementedError as error:  # MuJoCo Warp's word for what the robot asks for and it lacks
            raise ConfigError(
                f"backend={run.backend_name} cannot simulate robot {robot.name}: {error}; change its robot.yaml or "
                "MJCF, or choose another backend= (robolearn list)"
            ) from error
        return Env(run.task, robot, backend, seed=run.seed, rank=rank)
    except ValueError as error:
        raise ConfigError(str(error)) from error
