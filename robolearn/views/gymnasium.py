"""An Env as gymnasium wants to see it: a single Env or a VectorEnv."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium.vector import AutoresetMode
from gymnasium.vector.utils import batch_space

from robolearn.core.env import Env, StepResult
from robolearn.errors import ConfigError
from robolearn.tasks.mdp.task import Ratio

ACTION_BOUND = 5.0
"""Actions are unbounded here; gymnasium wants a box. A policy that starts at std 0.5 stays well within."""


def as_gymnasium(env: Env, action_bound: float = ACTION_BOUND) -> gymnasium.Env | gymnasium.vector.VectorEnv:
    """`env` as a gymnasium Env where it holds one environment, else as a VectorEnv. Only the `policy`
    group is shown; the critic's is in `info["critic"]`.

    `action_bound` is the half-width of the box of actions that is declared; what is outside is not clipped here.
    """
    return (GymnasiumView if env.num_envs == 1 else GymnasiumVectorView)(env, action_bound)


def _spaces(env: Env, bound: float) -> tuple[gymnasium.spaces.Box, gymnasium.spaces.Box]:
    if not 0 < bound < np.inf:
        raise ConfigError(f"action_bound={bound:g} is the half-width of a box: a number above 0")
    observations = gymnasium.spaces.Box(-np.inf, np.inf, (env.observations["policy"].shape[1],), np.float32)
    actions = gymnasium.spaces.Box(-bound, bound, (env.num_actions,), np.float32)
    return observations, actions


def _array(tensor: torch.Tensor) -> np.ndarray:
    """A tensor of any device as an array of its own."""
    return tensor.detach().cpu().numpy().copy()


def _step(env: Env, actions: np.ndarray) -> StepResult:
    """One control period, and what went wrong in it: a GPU keeps that to itself until it is asked."""
    given = np.array(actions, np.float32)
    if given.shape != (env.num_envs, env.num_actions):
        shape = given.shape[1:] if env.num_envs == 1 else given.shape
        wanted = (env.num_actions,) if env.num_envs == 1 else (env.num_envs, env.num_actions)
        raise ConfigError(f"the action has shape {shape}, and {wanted} is expected")
    result = env.step(torch.as_tensor(given, device=env.device))
    env.check()
    return result


def _restart(env: Env, seed: int | None, options: dict | None) -> dict[str, torch.Tensor]:
    if options:
        # Silently starting everything anew would not be what was asked for with, say, `reset_mask`.
        raise ConfigError(f"reset takes no options, and was given {', '.join(map(str, options))}")
    if seed is not None:
        env.random.generator.manual_seed(int(seed))
    observations = env.reset()
    env.check()
    return observations


class GymnasiumView(gymnasium.Env):
    """One environment; the step that ends an episode returns the state it ended in."""

    metadata: dict[str, Any] = {"render_modes": []}  # noqa: RUF012

    def __init__(self, env: Env, action_bound: float = ACTION_BOUND) -> None:
        assert env.num_envs == 1
        self.env = env
        self.observation_space, self.action_space = _spaces(env, action_bound)
        self._begun = False

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[np.ndarray, dict]:
        """Start an episode; a seed makes everything after it repeatable. There are no options."""
        super().reset(seed=seed)
        # The step that ended an episode has begun the next one already; a second reset would be work for nothing.
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
    """N environments that reset in the step that ends them. All that is returned is laid out as gymnasium's own
    vector environments do it in that mode: where episodes ended, `info["final_obs"]` and `info["final_info"]`
    tell what they ended with, and `info["_NAME"]` (N,) says of which rows `info["NAME"]` holds.
    """

    def __init__(self, env: Env, action_bound: float = ACTION_BOUND) -> None:
        self.env, self.num_envs = env, env.num_envs
        self.single_observation_space, self.single_action_space = _spaces(env, action_bound)
        self.observation_space = batch_space(self.single_observation_space, env.num_envs)
        self.action_space = batch_space(self.single_action_space, env.num_envs)
        self.metadata = {"render_modes": [], "autoreset_mode": AutoresetMode.SAME_STEP}

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[np.ndarray, dict]:
        """Start an episode everywhere; a seed, one for all, makes everything after it repeatable. No options."""
        if seed is not None and not isinstance(seed, int | np.integer):
            raise ConfigError("one generator draws for all environments: reset(seed=) takes one whole number")
        super().reset(seed=seed)
        observations = _restart(self.env, seed, options)
        everywhere = np.ones(self.num_envs, bool)
        return _array(observations["policy"]), _rows_info({}, observations["critic"], everywhere, everywhere)

    def step(self, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, dict]:
        """One control period for all; `actions` (N, A)."""
        result = _step(self.env, actions)
        done = _array(result.done)
        # A row that has begun anew tells of its new episode, in which nothing was measured yet.
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
    """The infos of N environments as one: metrics of the rows `measured` (N,) that count, and what the critic
    sees of the rows `seen` (N,); zeros elsewhere."""
    info: dict[str, Any] = {}
    for name, metric in metrics.items():
        there = measured & (_array(metric.weight) != 0)
        if there.any():
            info[name] = np.where(there, _array(metric.each()), 0.0).astype(np.float64)
            info[f"_{name}"] = there
    info["critic"] = np.where(seen[:, None], _array(critic), np.float32(0.0))
    info["_critic"] = seen.copy()
    return info
