"""An Env as a gymnasium Env or VectorEnv."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium.vector import AutoresetMode
from gymnasium.vector.utils import batch_space

from robolearn.core.env import Env, StepResult
from robolearn.errors import ConfigError, listing
from robolearn.tasks.mdp.task import Ratio

ACTION_BOUND = 5.0
"""Half-width of the declared action space: gymnasium needs a Box, RoboLearn's actions are unbounded. Actions of a
policy that starts at standard deviation 0.5 are well inside."""


def as_gymnasium(env: Env, action_bound: float = ACTION_BOUND) -> gymnasium.Env | gymnasium.vector.VectorEnv:
    """`env` as a gymnasium Env if it holds one environment, else as a VectorEnv. Observations are the group
    `policy`; the critic's are in `info["critic"]`.

    `action_bound` is the half-width of the declared action space; actions outside are not clipped.
    """
    return (GymnasiumView if env.num_envs == 1 else GymnasiumVectorView)(env, action_bound)


def _spaces(env: Env, bound: float) -> tuple[gymnasium.spaces.Box, gymnasium.spaces.Box]:
    if not 0 < bound < np.inf:
        raise ConfigError(f"action_bound={bound:g} must be a finite number above 0")
    if env.agents > 1:
        raise ConfigError(
            f"{type(env.task).__name__} has the agents {listing(env.task.agents)}, and a gymnasium environment has "
            "one: use robolearn.views.pettingzoo.parallel_env"
        )
    observations = gymnasium.spaces.Box(-np.inf, np.inf, (env.observations["policy"].shape[1],), np.float32)
    actions = gymnasium.spaces.Box(-bound, bound, (env.num_actions,), np.float32)
    return observations, actions


def _array(tensor: torch.Tensor) -> np.ndarray:
    """A tensor on any device as a copied array."""
    return tensor.detach().cpu().numpy().copy()


def _step(env: Env, actions: np.ndarray) -> StepResult:
    """One control period; raises its errors at once, which a GPU otherwise reports in `drain`."""
    given = np.array(actions, np.float32)
    if given.shape != (env.num_envs, env.num_actions):
        shape = given.shape[1:] if env.num_envs == 1 else given.shape
        wanted = (env.num_actions,) if env.num_envs == 1 else (env.num_envs, env.num_actions)
        raise ConfigError(f"the action has shape {shape}; expected {wanted}")
    result = env.step(torch.as_tensor(given, device=env.device))
    env.check()
    return result


def _restart(env: Env, seed: int | None, options: dict | None) -> dict[str, torch.Tensor]:
    if options:
        # Ignoring an option such as `reset_mask` would reset all environments.
        raise ConfigError(f"reset takes no options, but was given {', '.join(map(str, options))}")
    if seed is not None:
        env.random.generator.manual_seed(int(seed))
    observations = env.reset()
    env.check()
    return observations


class GymnasiumView(gymnasium.Env):
    """One environment; the step that ends an episode returns the observations of the state it ended in."""

    metadata: dict[str, Any] = {"render_modes": []}  # noqa: RUF012

    def __init__(self, env: Env, action_bound: float = ACTION_BOUND) -> None:
        self.observation_space, self.action_space = _spaces(env, action_bound)
        assert env.num_envs == 1
        self.env = env
        self._begun = False

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[np.ndarray, dict]:
        """Start an episode; a seed makes everything after it reproducible. There are no options."""
        super().reset(seed=seed)
        # The step that ended an episode has already started the next one; a second reset would be wasted.
        begun = self._begun and seed is None and not options
        observations = self.env.observations if begun else _restart(self.env, seed, options)
        self._begun = False
        return _array(observations["policy"][0]), {"critic": _array(observations["critic"][0])}

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict]:
        """One control period; `action` (A,)."""
        result = _step(self.env, np.asarray(action)[None])
        self._begun = bool(result.done[0])
        info: dict[str, Any] = {k: float(m.each()[0]) for k, m in result.metrics.items() if m.weight[0]}
        info["critic"] = _array(result.terminal_observations["critic"][0])
        return (
            _array(result.terminal_observations["policy"][0]),
            float(result.reward[0]),
            bool(result.terminated[0]),
            bool(result.truncated[0]),
            info,
        )

    def close(self) -> None:
        """Free the simulator."""
        self.env.close()


class GymnasiumVectorView(gymnasium.vector.VectorEnv):
    """N environments with same-step autoreset, with the return values of gymnasium's vector environments in that
    mode: where episodes ended, `info["final_obs"]` and `info["final_info"]` hold observations and infos of the state
    they ended in, and `info["_NAME"]` (N,) marks the rows for which `info["NAME"]` is valid.
    """

    def __init__(self, env: Env, action_bound: float = ACTION_BOUND) -> None:
        self.env, self.num_envs = env, env.num_envs
        self.single_observation_space, self.single_action_space = _spaces(env, action_bound)
        self.observation_space = batch_space(self.single_observation_space, env.num_envs)
        self.action_space = batch_space(self.single_action_space, env.num_envs)
        self.metadata = {"render_modes": [], "autoreset_mode": AutoresetMode.SAME_STEP}

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[np.ndarray, dict]:
        """Start an episode in all environments; one seed for all makes everything after it reproducible. No options."""
        if seed is not None and not isinstance(seed, int | np.integer):
            raise ConfigError(
                "reset(seed=) takes one whole number: all environments share one random generator"
            )
        super().reset(seed=seed)
        observations = _restart(self.env, seed, options)
        everywhere = np.ones(self.num_envs, bool)
        return _array(observations["policy"]), _rows_info({}, observations["critic"], everywhere, everywhere)

    def step(self, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, dict]:
        """One control period for all; `actions` (N, A)."""
        result = _step(self.env, actions)
        done = _array(result.done)
        # Rows that were reset have no metrics yet in their new episode.
        info = _rows_info(result.metrics, result.observations["critic"], ~done, np.ones_like(done))
        if done.any():
            final = _array(result.terminal_observations["policy"])
            rows = np.full(self.num_envs, None, dtype=object)
            for row in np.flatnonzero(done):
                rows[row] = final[row].copy()
            info["final_obs"], info["_final_obs"] = rows, done
            critic = result.terminal_observations["critic"]
            info["final_info"] = _rows_info(result.metrics, critic, done, done)
            info["_final_info"] = done.copy()
        return (
            _array(result.observations["policy"]),
            _array(result.reward).astype(np.float64),
            _array(result.terminated),
            _array(result.truncated),
            info,
        )

    def close_extras(self, **kwargs: Any) -> None:
        """Free the simulator."""
        self.env.close()


def _rows_info(
    metrics: dict[str, Ratio], critic: torch.Tensor, measured: np.ndarray, seen: np.ndarray
) -> dict[str, Any]:
    """The info of N environments: metrics of the rows `measured` (N,) where their weight is not 0, and the critic's
    observations of the rows `seen` (N,); zeros elsewhere."""
    info: dict[str, Any] = {}
    for name, metric in metrics.items():
        there = measured & (_array(metric.weight) != 0)
        if there.any():
            info[name] = np.where(there, _array(metric.each()), 0.0).astype(np.float64)
            info[f"_{name}"] = there
    info["critic"] = np.where(seen[:, None], _array(critic), np.float32(0.0))
    info["_critic"] = seen.copy()
    return info
