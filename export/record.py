"""Recordings: sensor readings and the trained policy's outputs, step by step; the reference for a bundle."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from robolearn.config.run_config import Config
from robolearn.core.env import Env
from robolearn.envs.state import State
from robolearn.learners.policy import Act, reset_state
from robolearn.runtime.observe import OBJECT
from robolearn.tasks.mdp.observations import object_pos

SEGMENTS, SEGMENT_STEPS = 3, 80
"""Part of the recording that goes into a bundle: number of robots, and of their first control steps."""


@dataclass
class Recording:
    """T control steps of N robots: sensor readings, observations, actions, joint targets."""

    sensors: dict[str, np.ndarray]
    """`quat`, `gyro`, `joint_pos`, `joint_vel`, `command`, and `object_pos` in a scene with objects: (T, N, k) each,
    float32, in the robot's joint order."""
    reset: np.ndarray
    """(T, N) bool: an episode starts at this step."""
    observations: np.ndarray
    """(T, N, D)."""
    actions: np.ndarray
    """(T, N, A) of the trained policy."""
    targets: np.ndarray
    """(T, N, A) joint targets that the task computes from the actions."""


def on_robot(config: Config) -> Config:
    """The configuration with the task as on the robot: no sensor noise, no simulated delays, and the task's `on_robot`
    values. Pushes, commands and randomized physics stay."""
    task: Any = config.task
    changes = {"noise": {}, "action_delay": (0, 0), "observation_delay": (0, 0), **type(task).on_robot}
    return replace(config, task=replace(task, **changes))


def raw_sensors(state: State) -> dict[str, np.ndarray]:
    """Current sensor readings of the robots, (N, k) each, and where the scene's objects are; copies."""
    robot = state.robot
    read = {"quat": robot.base_quat, "gyro": robot.base_ang_vel}
    read |= {"joint_pos": robot.joint_pos, "joint_vel": robot.joint_vel}
    if len(state.entities) > 1:
        read[OBJECT] = object_pos(state)
    return {name: value.cpu().numpy().copy() for name, value in read.items()}


@torch.no_grad()
def record(env: Env, policy: Act, steps: int) -> Recording:
    """Record `steps` control steps of the trained policy in `env`, which is made with `on_robot`.

    All envs are reset at the start and in the middle, so that the recording has a reset even where no robot falls.

    Raises:
        RunFailed: a term was not finite, or the simulator has dropped part of the physics.
    """
    rows: dict[str, list[np.ndarray]] = {}
    for t in range(steps):
        if t in (0, steps // 2):
            env.reset()
            reset_state(policy)
            fresh = torch.ones(env.num_envs, dtype=torch.bool, device=env.device)
        observation = env.observations["policy"]
        action = policy(env.observations)
        now: dict[str, Any] = {
            **raw_sensors(env.backend.state),
            "command": env.ctx.command,
            "reset": fresh,
            "observations": observation,
            "actions": action,
            "targets": env.task.joint_targets(action, env.ctx),
        }
        for name, value in now.items():
            array = value.cpu().numpy().copy() if isinstance(value, torch.Tensor) else value
            rows.setdefault(name, []).append(array)
        fresh = env.step(action).done.clone()
        reset_state(policy, fresh)
    env.check()  # on a GPU, errors are recorded and raised here
    whole = {name: np.stack(arrays) for name, arrays in rows.items()}
    kept = {name: whole.pop(name) for name in ("reset", "observations", "actions", "targets")}
    return Recording(sensors=whole, **kept)


def golden(recording: Recording) -> dict[str, np.ndarray]:
    """The part that goes into a bundle: one robot after the other, (K, k) each."""

    def cut(array: np.ndarray) -> np.ndarray:
        return np.concatenate(
            [array[:SEGMENT_STEPS, robot] for robot in range(min(SEGMENTS, array.shape[1]))]
        )

    names = ("reset", "observations", "actions", "targets")
    return {name: cut(a) for name, a in recording.sensors.items()} | {
        n: cut(getattr(recording, n)) for n in names
    }
