"""Builds the environments of a configuration."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import torch

from robolearn.config import registry
from robolearn.config.run_config import EXTERNAL, Config
from robolearn.core.env import Env
from robolearn.core.learner_env import LearnerEnv
from robolearn.core.shards import ONE, Shards
from robolearn.core.task_check import idle, tried
from robolearn.envs.actuators.backend import with_motors
from robolearn.envs.backend import MOTORS, Backend, require_features
from robolearn.envs.mjcf import build_model
from robolearn.envs.randomize import parameters, settable
from robolearn.envs.robot import Robot
from robolearn.envs.scene import ROBOT, Scene
from robolearn.errors import ConfigError
from robolearn.tasks.mdp.sensing import SENSOR_ERRORS
from robolearn.training.host_memory import enough_memory, require_room

if TYPE_CHECKING:
    from robolearn.external.env import ExternalEnv


def make_learner_env(run: Config, num_envs: int | None = None, rank: int = 0) -> LearnerEnv:
    """The environments of a configuration, RoboLearn's or third-party; `num_envs` overrides the configuration's.

    Raises:
        ConfigError: robot, backend, device and task do not fit together, or memory is too small.
    """
    if run.backend_name != EXTERNAL:
        return make_env(run, num_envs, rank)
    return build_external(run, num_envs or run.num_envs, rank)


def build_external(run: Config, num_envs: int, rank: int = 0, render: bool = False) -> ExternalEnv:
    """Third-party environments, which bring their simulator; with `render`, the first one can be drawn.

    Raises:
        ConfigError: they cannot be created, or their spaces are not supported.
    """
    if device_of(run).type == "cuda" and not torch.cuda.is_available():
        raise ConfigError(f"device={run.device}: PyTorch finds no CUDA GPU here; use device=cpu")
    _seed_globals(run.seed)
    made: ExternalEnv = run.task.make(num_envs, device_of(run), run.seed, rank, render)
    return made


def make_env(run: Config, num_envs: int | None = None, rank: int = 0, training: bool = False) -> Env:
    """The Env of a configuration; `num_envs` overrides that of the configuration, and with `training` the curricula of
    the task are in force.

    Raises:
        ConfigError: robot, backend, device and task do not fit together, or memory is too small.
    """
    require_robolearn_task(run)
    wanted = num_envs or run.num_envs
    require_room(wanted, device_of(run), lambda n: _probe(run, n, rank))
    with enough_memory(wanted):
        return build_env(run, wanted, rank, training)


def _probe(run: Config, num_envs: int, rank: int) -> tuple[Env, Backend]:
    env = build_env(run, num_envs, rank)
    return env, env.backend


def device_of(run: Config) -> torch.device:
    """The device of a run; `auto` is a GPU where there is one that the backend supports.

    Raises:
        ConfigError: it asks for a GPU, and there is none.
    """
    if run.device.startswith("cuda") and not torch.cuda.is_available():
        raise ConfigError(f"device={run.device}: no CUDA GPU was found; use device=cpu")
    if run.device != "auto":
        return torch.device(run.device)
    if run.backend_name == EXTERNAL:
        return torch.device("cuda" if "cuda" in run.task.devices and torch.cuda.is_available() else "cpu")
    return torch.device("cuda" if registry.uses_gpu(run.backend_name, run.device) else "cpu")


def build_env(run: Config, num_envs: int, rank: int = 0, training: bool = False, shards: Shards = ONE) -> Env:
    """`make_env` without the check that memory is large enough; with `training`, the task's curricula are in force.

    `shards` are the parts of the run that the environments are.

    Raises:
        ConfigError: robot, backend, device and task do not fit together.
    """
    _seed_globals(run.seed)
    try:
        robot = make_robot(run)
        backend = _backend(run, robot, num_envs)
        return Env(run.task, robot, backend, run.seed, rank, training, shards)
    except ValueError as error:
        raise ConfigError(str(error)) from error


def make_backend(run: Config, num_envs: int) -> Backend:
    """The simulator of a configuration, without a task.

    Raises:
        ConfigError: robot, backend, device and scene do not fit together.
    """
    try:
        return _backend(run, make_robot(run), num_envs)
    except ValueError as error:
        raise ConfigError(str(error)) from error


def _backend(run: Config, robot: Robot, num_envs: int) -> Backend:
    backend_class = registry.load("backends", run.backend_name)
    try:
        return with_motors(
            lambda scene: backend_class(scene, num_envs, str(device_of(run)), run.backend),
            make_scene(run, robot),
        )
    except NotImplementedError as error:  # raised by MuJoCo Warp for an unsupported feature of the robot
        raise ConfigError(
            f"backend={run.backend_name} cannot simulate robot {robot.name}: {error}; change its robot.yaml or MJCF, "
            "or choose another backend= (robolearn list)"
        ) from error


def make_robot(run: Config) -> Robot:
    """The robot of a configuration, with its changes `robot.<key>=...`.

    Raises:
        ConfigError, MissingError: there is no such robot, its file is not here, or it or a change is invalid.
    """
    name = run.task.robot
    found = registry.load("robots", name)
    if isinstance(found, Robot):
        if run.robot:
            raise ConfigError(
                f"robot.{next(iter(run.robot))}: robot {name} is made by Python code; change it there"
            )
        return found
    return Robot.load(found, run.robot, name if registry.entries("robots").get(name) else "")


def acting_robot(run: Config) -> Robot:
    """The robot that an agent of a configuration's task is: its robot, or the first part of it.

    Raises:
        ConfigError, MissingError: as `make_robot` and `make_scene`.
    """
    robot = make_robot(run)
    first = make_scene(run, robot).robots[ROBOT]
    return robot if first.part is None else first


def make_scene(run: Config, robot: Robot) -> Scene:
    """The scene of a configuration's task with this robot, and with the parts that `task.randomize` names.

    Raises:
        ConfigError: a name in it does not exist, or making it raises.
    """
    scene = tried("scene()", run.task.scene, robot)
    if not isinstance(scene, Scene) or ROBOT not in scene.robots:
        raise ConfigError(
            f"task={run.task_name}: scene() must return a robolearn.envs.scene.Scene with a robot named {ROBOT!r}"
        )
    usual = settable(scene) | idle(run.task, scene)
    own = [name for name in run.task.randomize if name not in usual and name not in SENSOR_ERRORS]
    parts = tuple(name for name in own if name not in scene.params)
    return replace(scene, params=(*scene.params, *parts))


def scene_of(run: Config) -> Scene | None:
    """The scene of a configuration, None of a third-party environment's.

    Raises:
        ConfigError, MissingError: robot, backend and task do not fit together, or the robot's file is not here.
    """
    if run.backend_name == EXTERNAL:
        return None
    try:
        scene = make_scene(run, make_robot(run))
        backend = registry.load("backends", run.backend_name)
        require_features(scene, run.backend_name, backend.features | {MOTORS})
        parameters(scene, build_model(scene))
        return scene
    except ValueError as error:
        raise ConfigError(str(error)) from error


def require_robolearn_task(run: Config, what: str = "this command") -> None:
    """Refuse a third-party environment where a robot, a State and terms are needed.

    Raises:
        ConfigError: the run is of a third-party environment; names the task.
    """
    if run.backend_name == EXTERNAL:
        raise ConfigError(
            f"{what} needs a RoboLearn task, with a robot and a State; task={run.task_name} brings its own "
            "simulator, which train, eval, play, sim, export and deploy support"
        )


def _seed_globals(seed: int) -> None:
    # For users' tasks and libraries: RoboLearn draws nothing from the global generators.
    random.seed(seed)
    np.random.seed(seed)  # noqa: NPY002
    torch.manual_seed(seed)
