"""An environment with the manners of Isaac Lab's, written by hand, and a task's configuration object.

Robot number `at` observes [at, steps taken]; after a reset it is at 10 more. A step pays 1 + the action. An action of 1
or more ends the episode for good; without one its time is up after three steps.
"""

from __future__ import annotations

from enum import Enum
from types import SimpleNamespace

import gymnasium
import numpy as np
import torch

LIMIT = 3
BOX = gymnasium.spaces.Box


class Terms:
    """An observation and an action manager in one: what the terms are called and how wide they are."""

    def __init__(self, active, sizes):
        self.active_terms, self.group_obs_term_dim, self.action_term_dim = active, sizes, sizes

    def get_term(self, name):
        return SimpleNamespace(_joint_names=["hip", "knee"] if name == "legs" else None)


class Lab(gymnasium.Env):
    """ManagerBasedRLEnv's manners: it resets by itself, hands out its own tensors, never empties its dictionaries."""

    def __init__(self, cfg=None, num_envs=2, groups=("policy",)):
        self.cfg = cfg or Config()
        self.num_envs, self.groups, self.closed = num_envs, groups, False
        self.step_dt, self.max_episode_length = 0.02, LIMIT
        self.single_action_space = BOX(-np.inf, np.inf, (1,))
        self.at = 100.0 * torch.arange(num_envs)
        self.episode_length_buf = torch.zeros(num_envs, dtype=torch.long)
        self.reward_buf = torch.zeros(num_envs)
        self.terminated = torch.zeros(num_envs, dtype=torch.bool)
        self.time_outs = torch.zeros(num_envs, dtype=torch.bool)
        self.live = torch.zeros(num_envs, 2)
        self.extras = {}

    def observe(self):
        # Written in place, as a view of the simulator's memory is.
        self.live[:] = torch.stack([self.at, self.episode_length_buf.float()], dim=1)
        return dict.fromkeys(self.groups, self.live)

    def reset(self):
        self._reset(torch.ones(self.num_envs, dtype=torch.bool))
        return self.observe(), self.extras

    def _reset(self, rows):
        self.at[rows] += 10
        self.episode_length_buf[rows] = 0
        ended = torch.tensor(float(rows.sum()))
        self.extras["log"] = {"Episode_Reward/alive": ended, "name": "not a number"}

    def step(self, action):
        self.episode_length_buf += 1
        self.reward_buf[:] = 1 + action[:, 0]
        self.terminated[:] = action[:, 0] >= 1
        self.time_outs[:] = self.episode_length_buf >= self.max_episode_length
        done = self.terminated | self.time_outs
        if done.any():
            if self.cfg.compute_final_obs:
                self.extras["final_obs"] = {g: x.clone() for g, x in self.observe().items()}
            self._reset(done)
        return self.observe(), self.reward_buf, self.terminated, self.time_outs, self.extras

    def close(self):
        self.closed = True


class Frame(Enum):
    WORLD = "w"
    BASE = "b"


class Physx:
    pass


class Newton:
    def __init__(self, solver_cfg=None):
        self.solver_cfg = solver_cfg


class Config:
    """A task's configuration object."""

    def __init__(self):
        self.scene = SimpleNamespace(
            num_envs=4096, robot=SimpleNamespace(usd_path="far/away.usd", scale=(1, 1))
        )
        self.sim = SimpleNamespace(physics=Physx(), device="cuda:0", dt=0.005)
        self.rewards = {"alive": SimpleNamespace(weight=1.0, params={"std": 0.5})}
        self.seed, self.compute_final_obs, self.episode_length_s = None, True, 5.0
        self.debug, self.frame, self.terminations = False, Frame.WORLD, SimpleNamespace(fell=object())
