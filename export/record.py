"""Recordings: what a robot measured, what the trained policy did, step by step; the truth a bundle is held against."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from robolearn.config.run_config import Config
from robolearn.core.env import Env
from robolearn.envs.state import State
from robolearn.learners.policy import Act, reset_state

SEGMENTS, SEGMENT_STEPS = 3, 80
"""What of it travels with a bundle: the first steps of so many robots."""


@dataclass
class Recording:
    """T steps of N robots, in the order things happen: sensors, observation, action, targets."""

    sensors: dict[str, np.ndarray]
    """`quat`, `gyro`, `joint_pos`, `joint_vel`, `command`: (T, N, k) each, float32, the robot's joint order."""
    reset: np.ndarray
    """(T, N) bool: an episode begins with this step."""
    phase: np.ndarray
    """(T, N) of the gait clock, where the task has one [cycles]."""
    observations: np.ndarray
    """(T, N, D)."""
    actions: np.ndarray
    """(T, N, A) of the trained policy."""
    targets: np.ndarray
    """(T, N, A) the task makes of them."""


def on_robot(config: Config) -> Config:
    """The configuration with the task as on the robot: nothing is added to what the sensors say, no delay but the
    robot's own, and the task's `on_robot` values. Pushes, commands and other physics stay."""
    task: Any = config.task
    changes = {"noise": {}, "action_delay": (0, 0), "observation_delay": (0, 0), **type(task).on_robot}
    return replace(config, task=replace(task, **changes))


def raw_sensors(state: State) -> dict[str, np.ndarray]:
    """What the robots' sensors say now, (N, k) each; copies."""
    robot = state.robot
    read = {"quat": robot.base_quat, "gyro": robot.base_ang_vel}
    read |= {"joint_pos": robot.joint_pos, "joint_vel": robot.joint_vel}
    return {name: value.cpu().numpy().copy() for name, value in read.items()}


def phase_of(env: Env) -> np.ndarray:
    """(N,) phase of each robot's gait clock; zeros where the task has none."""
    phase = env.ctx.task_state.get("phase")
    return np.zeros(env.num_envs, np.float32) if phase is None else phase.cpu().numpy().copy()


@torch.no_grad()
def record(env: Env, policy: Act, steps: int) -> Recording:
    """Let the trained policy control `env`, made with `on_robot`, and write everything down.

    Half way everybody begins anew, so that there is a reset to get right even where nobody falls.

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
            "phase": phase_of(env),
            "observations": observation,
            "actions": action,
            "targets": env.task.joint_targets(action, env.ctx),
        }
        for name, value in now.items():
            array = value.cpu().numpy().copy() if isinstance(value, torch.Tensor) else value
            rows.setdefault(name, []).append(array)
        fresh = env.step(action).done.clone()
        reset_state(policy, fresh)
    env.check()  # a GPU keeps to itself what went wrong until it is asked
    whole = {name: np.stack(arrays) for name, arrays in rows.items()}
    kept = {name: whole.pop(name) for name in ("reset", "phase", "observations", "actions", "targets")}
    return Recording(sensors=whole, **kept)


def golden(recording: Recording) -> dict[str, np.ndarray]:
    """The part that travels with a bundle: one robot after the other, (K, k) each."""

    def cut(array: np.ndarray) -> np.ndarray:
        return np.concatenate(
            [array[:SEGMENT_STEPS, robot] for robot in range(min(SEGMENTS, array.shape[1]))]
        )

    names = ("reset", "phase", "observations", "actions", "targets")
    return {name: cut(a) for name, a in recording.sensors.items()} | {
        n: cut(getattr(recording, n)) for n in names
    }
