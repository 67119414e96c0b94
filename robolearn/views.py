"""An Env as other people's learners want to see it: rsl_rl's VecEnv, gymnasium's single and vector Env."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium.vector import AutoresetMode
from gymnasium.vector.utils import batch_space
from rsl_rl.env import VecEnv
from tensordict import TensorDict

from robolearn.env import Env, StepResult

ACTION_BOUND = 5.0
"""Actions are unbounded here; gymnasium wants a box. A policy that starts at std 0.5 stays well within."""


def as_rsl_rl(env: Env) -> RslRlView:
    """`env` for rsl_rl's runners, observation groups `policy` and `critic`."""
    return RslRlView(env)


def as_gymnasium(env: Env) -> gymnasium.Env | gymnasium.vector.VectorEnv:
    """`env` as a gymnasium Env where it holds one environment, else as a VectorEnv. Only the `policy`
    group is shown; the critic's is in `info["critic"]`.
    """
    return GymnasiumView(env) if env.num_envs == 1 else GymnasiumVectorView(env)


class RslRlView(VecEnv):
    """rsl_rl's VecEnv. Time-outs are in `extras["time_outs"]`; rsl_rl bootstraps them from the value of
    the observation *before* the step, so the true one, `extras["terminal_observations"]`, is there for
    who wants it.
    """

    def __init__(self, env: Env) -> None:
        self.env = env
        self.num_envs, self.num_actions, self.device = env.num_envs, env.num_actions, env.device
        self.max_episode_length = env.max_episode_steps
        self.cfg = env.task

    @property
    def episode_length_buf(self) -> torch.Tensor:
        """(N,) steps into each episode; rsl_rl sets it to stagger episodes."""
        return self.env.episode_step

    @episode_length_buf.setter
    def episode_length_buf(self, steps: torch.Tensor) -> None:
        self.env.episode_step = steps.to(self.device, copy=True)

    def get_observations(self) -> TensorDict:
        """The current observation groups, copied."""
        return self._groups(self.env.observations)

    def step(self, actions: torch.Tensor) -> tuple[TensorDict, torch.Tensor, torch.Tensor, dict]:
        """(observations, rewards (N,), dones (N,), extras), see rsl_rl."""
        # rsl_rl collects in inference mode; tensors born there could not be written to afterwards.
        with torch.inference_mode(False):
            result = self.env.step(actions.to(self.device, copy=True))
            self.env.check()  # `log` below waits for a GPU anyway
        extras = {
            "time_outs": result.truncated,
            "terminal_observations": self._groups(result.terminal_observations),
            "log": {
                f"/{name}": total.sum() / weight.sum()
                for name, (total, weight) in result.metrics.items()
                if weight.any()
            },
        }
        return self._groups(result.observations), result.reward, result.done.long(), extras

    def _groups(self, observations: dict[str, torch.Tensor]) -> TensorDict:
        return TensorDict(
            {name: obs.clone() for name, obs in observations.items()},
            batch_size=[self.num_envs],
            device=self.device,
        )


def _spaces(env: Env) -> tuple[gymnasium.spaces.Box, gymnasium.spaces.Box]:
    observations = gymnasium.spaces.Box(-np.inf, np.inf, (env.observations["policy"].shape[1],), np.float32)
    actions = gymnasium.spaces.Box(-ACTION_BOUND, ACTION_BOUND, (env.num_actions,), np.float32)
    return observations, actions


def _array(tensor: torch.Tensor) -> np.ndarray:
    """A tensor of any device as an array of its own."""
    return tensor.cpu().numpy().copy()


def _step(env: Env, actions: np.ndarray) -> StepResult:
    """One control period, and what went wrong in it: a GPU keeps that to itself until it is asked."""
    result = env.step(torch.as_tensor(np.array(actions, np.float32), device=env.device))
    env.check()
    return result


def _restart(env: Env, seed: int | None) -> dict[str, torch.Tensor]:
    if seed is not None:
        env.random.generator.manual_seed(seed)
    observations = env.reset()
    env.check()
    return observations


class GymnasiumView(gymnasium.Env):
    """One environment; the step that ends an episode returns the state it ended in."""

    metadata: dict[str, Any] = {"render_modes": []}  # noqa: RUF012

    def __init__(self, env: Env) -> None:
        assert env.num_envs == 1
        self.env = env
        self.observation_space, self.action_space = _spaces(env)

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[np.ndarray, dict]:
        """Start an episode; a seed makes everything after it repeatable."""
        super().reset(seed=seed)
        observations = _restart(self.env, seed)
        return _array(observations["policy"][0]), {"critic": _array(observations["critic"][0])}

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict]:
        """One control period; `action` (A,)."""
        result = _step(self.env, np.asarray(action)[None])
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
    """N environments that reset in the step that ends them; `info["final_obs"]` holds where they ended,
    as gymnasium's same-step autoreset says."""

    def __init__(self, env: Env) -> None:
        self.env, self.num_envs = env, env.num_envs
        self.single_observation_space, self.single_action_space = _spaces(env)
        self.observation_space = batch_space(self.single_observation_space, env.num_envs)
        self.action_space = batch_space(self.single_action_space, env.num_envs)
        self.metadata = {"render_modes": [], "autoreset_mode": AutoresetMode.SAME_STEP}

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[np.ndarray, dict]:
        """Start an episode everywhere."""
        observations = _restart(self.env, seed)
        return _array(observations["policy"]), {"critic": _array(observations["critic"])}

    def step(self, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, dict]:
        """One control period for all; `actions` (N, A)."""
        result = _step(self.env, actions)
        info: dict[str, Any] = {name: _array(m.each()) for name, m in result.metrics.items()}
        info["critic"] = _array(result.observations["critic"])
        done = _array(result.done)
        if done.any():
            final = _array(result.terminal_observations["policy"])
            # gymnasium's layout: an object array with None where no episode ended.
            info["final_obs"] = np.array(
                [row.copy() if d else None for row, d in zip(final, done, strict=True)] + [None], dtype=object
            )[:-1]
            info["_final_obs"] = done
        return (
            _array(result.observations["policy"]),
            _array(result.reward),
            _array(result.terminated),
            _array(result.truncated),
            info,
        )

    def close_extras(self, **kwargs: Any) -> None:
        """Free the simulator."""
        self.env.close()
