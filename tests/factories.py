"""Factories of robots and environments for tests, loaded as a plugin by conftest.py."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from robolearn import config
from robolearn.config import registry
from robolearn.core.env import Env
from robolearn.envs.backend import Backend
from robolearn.envs.robot import Robot
from robolearn.envs.scene import Scene
from robolearn.envs.state import InitialState, State
from robolearn.tasks.mdp.task import Task
from robolearn.training.train import train

ROBOTS = Path(__file__).parent.parent / "envs" / "robots"
INSTALLED = [name for name, entry in registry.entries("backends").items() if not entry.hint]


@pytest.fixture(autouse=True, scope="session")
def _two_threads() -> None:
    # A fixed number of threads keeps the order of summation the same on every machine.
    torch.set_num_threads(2)


@pytest.fixture(autouse=True)
def _keep_threads() -> Iterator[None]:
    # Commands that run in this process set the number of threads.
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.fixture(autouse=True, scope="session")
def _one_table_of_operators() -> Iterator[None]:
    """torch's exporter makes its table of ONNX functions anew for each graph, which takes longer than the graph."""
    with pytest.MonkeyPatch.context() as patch:
        try:
            from torch.onnx._internal.exporter._registration import ONNXRegistry

            patch.setattr(
                ONNXRegistry, "from_torchlib", staticmethod(functools.cache(ONNXRegistry.from_torchlib))
            )
        except (ImportError, AttributeError):
            pass  # another version of torch: exports take longer
        yield


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a cartpole training run of two tiny iterations."""
    folder = tmp_path_factory.mktemp("trained") / "run"
    small = ["num_envs=8", "max_iterations=2", "learner.actor_hidden=[8]", "learner.critic_hidden=[8]"]
    return train(config.resolve(["task=cartpole_balance", *small, f"output={folder}"]))


def load_robot(name: str) -> Robot:
    """One of the robots in envs/robots."""
    return Robot.load(ROBOTS / name)


def home_pose(robot: Robot, num_envs: int, height: float = 0.0) -> InitialState:
    """The home pose at rest in all environments, with the soles `height` [m] above the ground."""
    zeros = torch.zeros(num_envs, 3)
    position = zeros.clone()
    position[:, 2] = robot.home_height + height
    return InitialState(
        base_pos=position,
        base_quat=torch.tensor([1.0, 0.0, 0.0, 0.0]).repeat(num_envs, 1),
        base_lin_vel=zeros,
        base_ang_vel=zeros.clone(),
        joint_pos=torch.tensor(robot.home).repeat(num_envs, 1),
        joint_vel=torch.zeros(num_envs, len(robot.joints)),
    )


def home_targets(robot: Robot, num_envs: int) -> torch.Tensor:
    """Joint targets (N, A) that hold the home pose."""
    return torch.tensor([robot.home[j] for j in robot.actuated]).repeat(num_envs, 1)


@pytest.fixture
def make_env() -> Iterator[Callable[..., Env]]:
    """(task, num_envs, seed) -> Env on the CPU backend; closed after the test."""
    made: list[Env] = []

    def make(task: Task, num_envs: int = 16, seed: int = 1) -> Env:
        from robolearn.envs.mujoco.backend import MujocoBackend

        robot = load_robot(task.robot)
        made.append(Env(task, robot, MujocoBackend(task.scene(robot), num_envs), seed=seed))
        return made[-1]

    yield make
    for env in made:
        env.close()


class OnHost:
    """Wraps a backend on another device, so that the shared suite passes and gets CPU tensors."""

    def __init__(self, backend: Backend) -> None:
        self.backend = backend
        self.capabilities = backend.capabilities

    def _to_device(self, value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return value.to(self.backend.device)
        if isinstance(value, InitialState):
            return InitialState(**{name: self._to_device(x) for name, x in vars(value).items()})
        return {name: self._to_device(x) for name, x in value.items()} if isinstance(value, dict) else value

    @property
    def state(self) -> State:
        return self.backend.state.each(torch.Tensor.cpu)

    def __getattr__(self, name: str) -> Any:
        method = getattr(self.backend, name)
        return lambda *arguments, **named: method(
            *map(self._to_device, arguments), **{k: self._to_device(v) for k, v in named.items()}
        )


def _backend_params() -> list[Any]:
    """Every installed backend on a CPU, and on a GPU if it supports one."""
    params: list[Any] = []
    for name in INSTALLED:
        params.append(pytest.param((name, "cpu"), id=name))
        if "cuda" in registry.devices(name):
            params.append(pytest.param((name, "cuda"), id=f"{name}_cuda", marks=pytest.mark.cuda))
    return params


@pytest.fixture(params=_backend_params())
def make_backend(request: pytest.FixtureRequest) -> Iterator[Callable[..., Backend | OnHost]]:
    """(robot or scene, num_envs) -> Backend, for every installed backend."""
    name, device = request.param
    cls = registry.load("backends", name)
    made: list[Backend | OnHost] = []

    def make(scene: Scene | Robot, num_envs: int) -> Backend | OnHost:
        backend = cls(scene, num_envs, device, cls.config_class())
        made.append(backend if device == "cpu" else OnHost(backend))
        return made[-1]

    # Robot with legs for this backend: the differentiable kernel of a humanoid takes a minute to compile.
    make.features = cls.features
    make.walker = "ant" if name == "differentiable" else "humanoid"
    yield make
    for backend in made:
        backend.close()
