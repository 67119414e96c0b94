"""A task whose reward rises and whose success falls with time, whatever the policy does: the guard's worst case, in
milliseconds."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from robolearn.envs.state import State, Tensor
from robolearn.tasks.cartpole import CartpoleBalance
from robolearn.tasks.mdp import terms
from robolearn.tasks.mdp.context import Context, Random
from robolearn.tasks.mdp.stated import Reward, Termination, reward


def episodes(state: State, ctx: Context) -> Tensor:
    """Episodes that the environment has had (N,)."""
    return ctx.per_env_state["episodes"]


@dataclass
class Counting(CartpoleBalance):
    """Earns the more the more episodes it has had, and does its job the less."""

    episode_length_s: float = 0.1
    rewards: dict[str, Reward] = field(
        default_factory=lambda: {"episodes": reward(episodes, 1.0), "alive": reward(terms.alive, 1.0)}
    )
    terminations: dict[str, Termination] = field(default_factory=dict)

    def per_env_state(self, num_envs: int, random: Random) -> dict[str, Tensor]:
        """No episode yet."""
        return {"episodes": torch.zeros(num_envs, device=random.device)}

    def advance_per_env(self, state: State, ctx: Context, done: Tensor) -> dict[str, Tensor]:
        """One more."""
        return {"episodes": ctx.per_env_state["episodes"] + 1}

    def success(self, state: State, ctx: Context) -> Tensor:
        """1 at first, and a twentieth less with each episode (N,)."""
        return 1 - ctx.per_env_state["episodes"] / 20
