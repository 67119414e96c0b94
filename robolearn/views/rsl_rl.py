"""An Env as rsl_rl's VecEnv."""

from __future__ import annotations

import torch
from rsl_rl.env import VecEnv
from tensordict import TensorDict

from robolearn.core.env import Env


def as_rsl_rl(env: Env) -> RslRlView:
    """`env` for rsl_rl's runners, observation groups `policy` and `critic`."""
    return RslRlView(env)


class RslRlView(VecEnv):
    """rsl_rl's VecEnv. Time-outs are in `extras["time_outs"]`; rsl_rl bootstraps them from the value of
    the observation *before* the step; the observations of the state that the step ended in are in
    `extras["terminal_observations"]`.
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
        # rsl_rl collects in inference mode; tensors created in it cannot be changed later outside of it.
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
