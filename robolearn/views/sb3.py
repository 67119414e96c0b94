"""Vector environments for stable-baselines3, which has its own interface for them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode
from stable_baselines3.common.vec_env import VecEnv, VecMonitor

from robolearn.errors import ConfigError


def as_sb3(envs: gymnasium.vector.VectorEnv) -> VecMonitor:
    """`envs` for stable-baselines3's learners, with logging of episode returns and lengths.

    Raises:
        ConfigError: the environments do not reset in the step that ends them (AutoresetMode.SAME_STEP).
    """
    if envs.metadata.get("autoreset_mode") is not AutoresetMode.SAME_STEP:
        raise ConfigError(
            f"{envs} does not reset in the step that ends an episode; stable-baselines3 needs AutoresetMode.SAME_STEP"
        )
    return VecMonitor(SB3View(envs))


class SB3View(VecEnv):
    """stable-baselines3's VecEnv over gymnasium's."""

    def __init__(self, envs: gymnasium.vector.VectorEnv) -> None:
        self.envs = envs
        super().__init__(envs.num_envs, envs.single_observation_space, envs.single_action_space)

    def reset(self) -> np.ndarray:
        """(N, D) the first observations; a seed set with `seed()` is used once."""
        observations, _ = self.envs.reset(seed=self._seeds[0], options=self._options[0] or None)
        self._reset_seeds()
        self._reset_options()
        return observations

    def step_async(self, actions: np.ndarray) -> None:
        """Store the actions (N, A) for `step_wait`."""
        self._actions = actions

    def step_wait(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, list[dict[str, Any]]]:
        """Observations (N, D), rewards (N,), dones (N,), and infos with the terminal observations."""
        observations, rewards, terminated, truncated, info = self.envs.step(self._actions)
        infos: list[dict[str, Any]] = [{} for _ in range(self.num_envs)]
        done = terminated | truncated
        for row in np.flatnonzero(done):
            out_of_time = bool(truncated[row] and not terminated[row])
            infos[row] = {"terminal_observation": info["final_obs"][row], "TimeLimit.truncated": out_of_time}
        return observations, rewards.astype(np.float32), done, infos

    def close(self) -> None:
        """Free the simulator."""
        self.envs.close()

    def get_attr(self, attr_name: str, indices: int | Iterable[int] | None = None) -> list[Any]:
        """An attribute of all environments, repeated for each of `indices`."""
        return [getattr(self.envs, attr_name)] * len(list(self._get_indices(indices)))

    def set_attr(self, attr_name: str, value: Any, indices: int | Iterable[int] | None = None) -> None:
        """Set an attribute of all environments."""
        setattr(self.envs, attr_name, value)

    def env_method(
        self, method_name: str, *args: Any, indices: int | Iterable[int] | None = None, **named: Any
    ) -> Any:
        """Not available: there are no single environments."""
        raise NotImplementedError(f"{method_name}: the environments are simulated together")

    def env_is_wrapped(self, wrapper_class: Any, indices: int | Iterable[int] | None = None) -> list[bool]:
        """False for each: there are no wrappers around single environments."""
        return [False] * len(list(self._get_indices(indices)))
