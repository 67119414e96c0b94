"""An environment with the manners of Isaac Lab's DirectMARLEnv, written by hand.

In episode e of world w, agent k observes [1000 w + 100 e + 10 k, steps taken] and more. A step pays it its number + the
first of its actions. An action of 0.75 or more ends the agent for good in this step; after three steps the time of all
is up. The state of a world is [1000 w + 100 e, steps taken, the sum of the first number that each agent observes].
"""

from __future__ import annotations

import math
from types import SimpleNamespace

import gymnasium
import numpy as np
import torch

LIMIT = 3
BOX = gymnasium.spaces.Box


def flat(width, high=np.inf):
    return BOX(-high, high, (width,))


class Agents(gymnasium.Env):
    """Its step is in the order of DirectMARLEnv's; its dictionaries are never emptied, its tensors are live."""

    widths = (2, 2, 2)
    actions_of = (flat(1), flat(1), flat(1))

    def __init__(self, num_envs=2, state_space=0, **cfg):
        self.cfg = SimpleNamespace(state_space=state_space, compute_final_obs=True, **cfg)
        self.num_envs, self.closed = num_envs, False
        self.step_dt, self.max_episode_length = 0.25, LIMIT
        self.possible_agents = ["a", "b", "c"][: len(self.widths)]
        self.observation_spaces = {
            agent: flat(w) for agent, w in zip(self.possible_agents, self.widths, strict=True)
        }
        self.action_spaces = dict(zip(self.possible_agents, self.actions_of, strict=True))
        self.state_space = flat(3) if state_space > 0 else None
        self.episode = torch.full((num_envs,), -1)
        self.episode_length_buf = torch.zeros(num_envs, dtype=torch.long)
        self.reset_buf = torch.zeros(num_envs, dtype=torch.bool)
        self.extras = {agent: {} for agent in self.possible_agents}
        self.live = {
            a: torch.full((num_envs, w), -1.0) for a, w in zip(self.possible_agents, self.widths, strict=True)
        }
        self.given = []

    def _get_observations(self):
        for k, live in enumerate(self.live.values()):
            live[:, 0] = 1000.0 * torch.arange(self.num_envs) + 100.0 * self.episode + 10 * k
            live[:, 1] = self.episode_length_buf
        return dict(self.live)

    def _get_states(self):
        first = sum(seen[:, 0] for seen in self.obs_dict.values())
        world = 1000.0 * torch.arange(self.num_envs) + 100.0 * self.episode
        return torch.stack([world, self.episode_length_buf.float(), first], dim=1)

    def _get_rewards(self):
        return {agent: k + self.given[-1][agent][:, 0] for k, agent in enumerate(self.possible_agents)}

    def _get_dones(self):
        ended = {agent: self.given[-1][agent][:, 0] >= 0.75 for agent in self.possible_agents}
        return ended, dict.fromkeys(self.possible_agents, self.episode_length_buf >= self.max_episode_length)

    def _reset_idx(self, env_ids):
        self.episode[env_ids] += 1
        self.episode_length_buf[env_ids] = 0
        self.extras.setdefault("log", {})["resets"] = torch.tensor(float(len(env_ids)))
        self.extras["a"]["log"] = {"resets": torch.tensor(float(len(env_ids)))}

    def state(self):
        return self._get_states() if self.cfg.state_space > 0 else None

    def reset(self, seed=None, options=None):
        self._reset_idx(torch.arange(self.num_envs))
        self.obs_dict = self._get_observations()
        return self.obs_dict, self.extras

    def step(self, actions):
        self.given.append(actions)
        self.episode_length_buf += 1
        self.terminated_dict, self.time_out_dict = self._get_dones()
        self.reset_buf[:] = math.prod(self.terminated_dict.values()) | math.prod(self.time_out_dict.values())
        self.reward_dict = self._get_rewards()
        ids = self.reset_buf.nonzero().squeeze(-1)
        if len(ids):
            if self.cfg.compute_final_obs:
                for agent, seen in self._get_observations().items():
                    self.extras[agent]["final_obs"] = seen
            self._reset_idx(ids)
        self.obs_dict = self._get_observations()
        return self.obs_dict, self.reward_dict, self.terminated_dict, self.time_out_dict, self.extras

    def close(self):
        self.closed = True


class Unlike(Agents):
    """Two, of which the second observes and does more."""

    widths = (2, 3)
    actions_of = (flat(1, 1.0), BOX(np.float32([-2, -4]), np.float32([2, 4])))
