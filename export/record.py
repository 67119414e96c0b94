"""Recordings: sensor readings and the trained policy's outputs, step by step; the reference for a bundle."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch

from robolearn.config.run_config import Config
from robolearn.core.env import Env
from robolearn.learners.policy import Act, reset_state


@dataclass
class Recording:
    """T control steps of N robots: sensor readings, observations, actions, joint targets."""

    sensors: dict[str, np.ndarray]
    """The readings of each sensor and the `command`, (T, N, ...) each, float32, in the robot's joint order."""
    reset: np.ndarray
    """(T, N) bool: an episode starts at this step."""
    observations: np.ndarray
    """(T, N, D)."""
    actions: np.ndarray
    """(T, N, A) of the trained policy."""
    targets: np.ndarray
    """(T, N, A) joint targets that the task computes from the actions."""
    pushed: np.ndarray
    """(T, N) bool: the robot was pushed in the step before."""
    starts: dict[str, np.ndarray] = field(default_factory=dict)
    """Task state (T, N, ...) by the name of the controller's state, of use where an episode starts."""
    initial: dict[str, np.ndarray] = field(default_factory=dict)
    """The controller's state after a reset, (1, ...) by name."""

    def of(self, robots: np.ndarray) -> Recording:
        """The recording of some of the robots, (N,) bool."""
        return Recording(
            {name: rows[:, robots] for name, rows in self.sensors.items()},
            self.reset[:, robots],
            self.observations[:, robots],
            self.actions[:, robots],
            self.targets[:, robots],
            self.pushed[:, robots],
            {name: rows[:, robots] for name, rows in self.starts.items()},
            self.initial,
        )


def on_robot(config: Config, noise: bool = False) -> Config:
    """The configuration with the task as on the robot: no noise on observations, no delay of actions or of all
    observations, and the task's `on_robot` values. Pushes, commands, randomized physics, lost packets, and what the
    sensors themselves do (their errors, delays and drop-outs) stay; with `noise`, also the noise, for
    `NoisyReadings`."""
    task: Any = config.task.filled()
    if noise:
        late = {"action_delay": (0, 0), "observation_delay": (0, 0), **type(task).on_robot}
        return replace(config, task=replace(task, **late))
    sensing = {name: replace(each, slow=(0.0, 1.0), bias=(0.0, 0.0)) for name, each in task.sensing.items()}
    changes = {
        "noise": {},
        "sensing": sensing,
        "action_delay": (0, 0),
        "observation_delay": (0, 0),
        **type(task).on_robot,
    }
    return replace(config, task=replace(task, **changes))


def readings(env: Env, names: Iterable[str]) -> dict[str, np.ndarray]:
    """Current readings of the sensors `names` of every robot, (N, ...) each; copies."""
    return arrays(env.readings(names))


def arrays(tensors: Mapping[str, torch.Tensor]) -> dict[str, np.ndarray]:
    """Copies in numpy."""
    return {name: tensor.cpu().numpy().copy() for name, tensor in tensors.items()}


def starts(env: Env, names: Iterable[str]) -> dict[str, np.ndarray]:
    """Current task state of every robot, (N, ...) each, by those names of the controller's state that hold it."""
    task = {f"task_{name}": value for name, value in env.state.episode.task.items()}
    return {name: task[name].float().cpu().numpy().copy() for name in names if name in task}


@torch.no_grad()
def record(
    env: Env, policy: Act, steps: int, sensors: Iterable[str], initial: Mapping[str, torch.Tensor]
) -> Recording:
    """Record `steps` control steps of the trained policy in `env`, which is made with `on_robot`.

    All envs are reset at the start and in the middle, so that the recording has a reset even where no robot falls.

    Args:
        sensors: names of the sensors to record.
        initial: the controller's state after a reset, by name.

    Raises:
        RunFailed: a term was not finite, or the simulator has dropped part of the physics.
    """
    rows: dict[str, list[np.ndarray]] = {}
    began: dict[str, list[np.ndarray]] = {}
    sensors = list(sensors)
    for t in range(steps):
        if t in (0, steps // 2):
            env.reset()
            reset_state(policy)
            fresh = torch.ones(env.num_envs, dtype=torch.bool, device=env.device)
        observation = env.observations["policy"]
        action = policy(env.observations)
        now: dict[str, Any] = {
            **readings(env, sensors),
            "command": env.ctx.command,
            "reset": fresh,
            "pushed": env.ctx.push_time < 1.5 * env.dt,
            "observations": observation,
            "actions": action,
            "targets": env.task.joint_targets(
                action, replace(env.ctx, action=action, previous_action=env.ctx.action)
            ),
        }
        for name, value in now.items():
            array = value.cpu().numpy().copy() if isinstance(value, torch.Tensor) else value
            rows.setdefault(name, []).append(array)
        for name, array in starts(env, initial).items():
            began.setdefault(name, []).append(array)
        env.step(action)
        # Of several agents, one that has ended keeps its task state until its world starts anew.
        fresh = env.state.outcome["renewed"].clone()
        reset_state(policy, fresh)
    env.check()  # on a GPU, errors are recorded and raised here
    whole = {name: np.stack(arrays) for name, arrays in rows.items()}
    kept = {name: whole.pop(name) for name in ("reset", "pushed", "observations", "actions", "targets")}
    return Recording(
        sensors=whole,
        starts={k: np.stack(v) for k, v in began.items()},
        initial={name: value.numpy().copy() for name, value in initial.items()},
        **kept,
    )
