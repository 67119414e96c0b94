"""Agents of a world as neighbouring rows: what the doors to environments of several agents share.

Row w K + k is world w as agent k sees it. Observations are as wide as the widest agent's, with zeros behind a narrower
one; of an action an agent takes the first numbers, as many as its own has.
"""

from __future__ import annotations

from collections.abc import Sequence

import gymnasium
import torch

from robolearn.core.step_result import StepResult
from robolearn.envs.state import Tensor
from robolearn.errors import ConfigError, one_line
from robolearn.external.env import Actions, ExternalEnv
from robolearn.external.spaces import Box, observation_columns
from robolearn.tasks.mdp.task import Ratio


class AgentsEnv(ExternalEnv):
    """Environments of several agents, whose returns are metrics too."""

    agent_names: list[str]
    """K names, in the order of the rows."""
    _returns: Tensor
    """(2, K) of each agent, the sum of the returns of its episodes since the last `drain`, and their number."""

    def reset(self, stagger: bool = False) -> dict[str, Tensor]:
        """See `ExternalEnv.reset`."""
        self._returns = torch.zeros(2, self.agents, device=self.device)
        return super().reset(stagger)

    def step(self, action: Tensor, joint_targets: Tensor | None = None) -> StepResult:
        """See `ExternalEnv.step`. The metrics are the returns of each agent, in the steps that end its episodes."""
        before = self.episode_return
        result = super().step(action, joint_targets)
        if self.agents == 1:
            return result
        total, done = (before + result.reward).view(-1, self.agents), result.done.view(-1, self.agents)
        ended = torch.where(done, total, 0.0)
        self._returns = self._returns + torch.stack([ended.sum(dim=0), done.sum(dim=0).to(ended.dtype)])
        for k, agent in enumerate(self.agent_names):
            mine = torch.zeros_like(done)
            mine[:, k] = done[:, k]
            result.metrics[f"return_{agent}"] = Ratio(
                torch.where(mine, total, 0.0).flatten(), mine.flatten().to(total.dtype)
            )
        return result

    def drain(self) -> dict[str, float]:
        """See `ExternalEnv.drain`; with the mean return of each agent."""
        (totals, counts), self._returns = self._returns.tolist(), torch.zeros_like(self._returns)
        returns = zip(self.agent_names, totals, counts, strict=True)
        found = {f"metric/return_{agent}": total / count for agent, total, count in returns if count}
        return super().drain() | (found if self.agents > 1 else {})


def agent_of(name: str, agent: str) -> str:
    """Names an agent of a task in messages that begin with `task=`."""
    return f"{name}, {agent}"


def require_observations(space: gymnasium.Space, name: str) -> gymnasium.spaces.Box:
    """The observation space of an agent, `name`, which must be a Box.

    Raises:
        ConfigError: it is another space, which is named, or has more than two dimensions.
    """
    if not isinstance(space, Box):
        raise ConfigError(
            f"task={name}: the observation space {one_line(str(space), 120)} is not a Box; wrap the environment so "
            "that its agents observe one"
        )
    observation_columns(space, name)
    return space


def id_columns(agents: Sequence[str]) -> list[str]:
    """Names of the columns that tell an agent which one it is."""
    return [f"agent[{agent}]" for agent in agents]


def own_columns(width: int) -> list[str]:
    """Names of the columns of an agent's own observation."""
    return [f"observation[{i}]" for i in range(width)]


def joint_columns(width: int, agents: int) -> list[str]:
    """Names of the columns of the observations of all agents, of which `other1` is the agent that comes next."""
    own = own_columns(width)
    return own + [f"other{j}.{column}" for j in range(1, agents) for column in own]


def joint_actions(own: Sequence[Actions], shared: bool, device: torch.device) -> Actions:
    """The actions of the policy: the agents', where these are alike; otherwise as wide as the widest's, before each
    agent's are scaled, between the lowest and the highest bound."""
    if shared:
        one = own[0]
        low, high, offset, scale = (t.to(device) for t in (one.low, one.high, one.offset, one.scale))
        return Actions(low, high, offset, scale, one.names)
    width = max(len(each.low) for each in own)
    low, high = torch.full((width,), torch.inf), torch.full((width,), -torch.inf)
    for each in own:
        n = len(each.low)
        bounds = [((end - each.offset) / each.scale).cpu() for end in (each.low, each.high)]
        low[:n] = torch.minimum(low[:n], bounds[0])
        high[:n] = torch.maximum(high[:n], bounds[1])
    names = tuple(f"action[{i}]" for i in range(width))
    low, high = low.to(device), high.to(device)
    return Actions(low, high, torch.zeros_like(low), torch.ones_like(low), names)
