"""PettingZoo environments whose numbers can be worked out by hand.

In episode e of a world, agent k observes [100 e + 10 k, steps taken] and more. A step pays it its number + the first
of its actions. An action of 0.75 or more ends the agent for good; after three steps the time of all is up.
"""

import gymnasium
import numpy as np
from pettingzoo import AECEnv, ParallelEnv

BOX = gymnasium.spaces.Box


class Counters(ParallelEnv):
    """Three alike."""

    metadata = {"name": "counters", "render_fps": 4}  # noqa: RUF012
    widths = (2, 2, 2)
    highs = ((1.0,), (1.0,), (1.0,))

    def __init__(self, limit=3, render_mode=None):
        self.possible_agents = ["a", "b", "c"][: len(self.widths)]
        self.limit, self.episode, self.render_mode = limit, -1, render_mode
        self.agents = []
        self.given = []

    def observation_space(self, agent):
        return BOX(-1e6, 1e6, (self.widths[self.possible_agents.index(agent)],), np.float64)

    def action_space(self, agent):
        high = np.array(self.highs[self.possible_agents.index(agent)], np.float32)
        return BOX(-high, high)

    def _see(self):
        return {
            agent: np.array([100.0 * self.episode + 10 * k, self.steps, *[-1.0] * (self.widths[k] - 2)])
            for k, agent in enumerate(self.possible_agents)
            if agent in self.agents
        }

    def reset(self, seed=None, options=None):
        self.agents, self.steps = list(self.possible_agents), 0
        self.episode += 1
        return self._see(), {agent: {} for agent in self.agents}

    def step(self, actions):
        assert set(actions) == set(self.agents)
        self.given.append({agent: action.tolist() for agent, action in actions.items()})
        self.steps += 1
        seen = self._see()
        rewards = {a: self.possible_agents.index(a) + float(actions[a][0]) for a in self.agents}
        ended = {agent: bool(actions[agent][0] >= 0.75) for agent in self.agents}
        late = dict.fromkeys(self.agents, self.steps >= self.limit)
        self.agents = [a for a in self.agents if not ended[a] and not late[a]]
        return seen, rewards, ended, late, {agent: {} for agent in seen}

    def render(self):
        return np.full((4, 5, 3), self.steps, np.uint8)


class Unlike(Counters):
    """Two, of which the second observes and does more."""

    widths = (2, 3)
    highs = ((1.0,), (2.0, 4.0))


class Discrete(Counters):
    def action_space(self, agent):
        return gymnasium.spaces.Discrete(3)


class Keyed(Counters):
    def observation_space(self, agent):
        return gymnasium.spaces.Dict(at=super().observation_space(agent))


class Spaceless(Counters):
    def action_space(self, agent):
        raise KeyError(agent)


class Pictured(Counters):
    def observation_space(self, agent):
        return BOX(0, 255, (8, 8, 3), np.uint8)


class Nameless(Counters):
    def __init__(self):
        super().__init__()
        self.possible_agents = []


class Vanishing(Counters):
    """The second agent leaves without an end."""

    def step(self, actions):
        found = super().step(actions)
        self.agents = [agent for agent in self.agents if agent != "b"]
        return found


class Staying(Counters):
    """Agents that have ended stay in `agents`, and get no observations."""

    def step(self, actions):
        self.agents = list(actions)
        found = super().step(actions)
        self.agents = list(self.possible_agents)
        for agent, ended in found[2].items():
            if ended:
                del found[0][agent]
        return found


class Unseen(Counters):
    """Agents whose time is up get no observations."""

    def step(self, actions):
        found = super().step(actions)
        return ({} if self.steps == self.limit else found[0], *found[1:])


class Late(Counters):
    """The third agent joins after the first step."""

    def reset(self, seed=None, options=None):
        super().reset()
        self.agents = ["a", "b"]
        return self._see(), {}

    def step(self, actions):
        found = super().step(actions)
        if self.steps == 1:
            self.agents.append("c")
            found[0].update(self._see())
        return found


class Failing(Counters):
    def step(self, actions):
        raise ZeroDivisionError("by hand")


class Blind(Counters):
    def render(self):
        return None


class Shapeless(Counters):
    def _see(self):
        return {agent: np.zeros(5) for agent in self.agents}


class Turns(AECEnv):
    """Its agents act in turn."""


def nothing():
    return None


NUMBER = 3


class Unpaid(Counters):
    """Says nothing of the second agent's reward."""

    def step(self, actions):
        seen, rewards, *rest = super().step(actions)
        del rewards["b"]
        return seen, rewards, *rest
