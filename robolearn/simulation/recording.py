"""Records the episodes of an evaluation as demonstrations; docs/demonstrations.md describes the file."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from robolearn.core.columns import columns_of, units_of
from robolearn.core.env import Env
from robolearn.core.learner_env import LearnerEnv
from robolearn.core.step_result import StepResult
from robolearn.envs.state import Tensor
from robolearn.errors import ConfigError, quote
from robolearn.learners.demonstrations import npz


class Recording:
    """The steps of N environments, of which those of counted episodes are written."""

    def __init__(self, env: LearnerEnv) -> None:
        self._env = env
        self._steps: dict[str, list[np.ndarray]] = {}

    def before(self, observations: Mapping[str, Tensor], action: Tensor) -> None:
        """Note what is observed (N, D) by group, and the action (N, A) that the policy takes."""
        for name, obs in observations.items():
            self._add(f"observations/{name}", obs)
        self._add("actions", action)

    def after(self, result: StepResult, counted: Tensor) -> None:
        """Note the result of the step, which belongs to a counted episode where `counted` (N,) bool is set."""
        for name, rows in (
            ("rewards", result.reward),
            ("terminated", result.terminated),
            ("truncated", result.truncated),
            ("counted", counted if result.valid is None else counted & result.valid),
        ):
            self._add(name, rows)

    def _add(self, name: str, rows: Tensor) -> None:
        array = rows.detach().cpu().numpy()
        self._steps.setdefault(name, []).append(array.copy())  # the Env overwrites its tensors

    def write(self, path: Path, task: str) -> int:
        """Write the counted episodes, those of each environment one after the other; returns their number."""
        counted = np.stack(self._steps.pop("counted"), axis=1)  # (N, S)
        arrays: dict[str, np.ndarray] = {}
        for name in list(self._steps):
            arrays[name] = np.stack(self._steps.pop(name), axis=1)[counted]
        npz.write(path, {**arrays, **self._about(task)})
        return int((arrays["terminated"] | arrays["truncated"]).sum())

    def _about(self, task: str) -> dict[str, np.ndarray]:
        env = self._env
        about: dict[str, Any] = {"task": task, "control_dt": env.dt}
        if isinstance(env, Env):
            about["robot"] = env.robot.name
            about |= {f"columns/{name}": list(names) for name, names in columns_of(env).items()}
            about |= dict(zip(("action_scale", "action_offset"), units_of(env), strict=True))
        return {name: np.asarray(value) for name, value in about.items()}


def require_file(path: Path) -> None:
    """Raise ConfigError where a recording has another ending than NPZ files."""
    if path.suffix.lower() != npz.SUFFIX:
        raise ConfigError(f"--record {quote(str(path), 120)}: demonstrations are written as FILE{npz.SUFFIX}")
