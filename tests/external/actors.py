"""Environments to export, film and simulate: each has one property that the commands must cope with."""

from typing import ClassVar

import gymnasium
import numpy as np

BOX = gymnasium.spaces.Box


class Push(gymnasium.Env):
    """A point that is to be pushed to 0; the seed says where it starts."""

    observation_space = gymnasium.spaces.Dict(place=BOX(-9, 9, (1,)), speed=BOX(-9, 9, (1,)))
    action_space = BOX(np.array([-1.0], np.float32), np.array([3.0], np.float32))
    metadata: ClassVar = {"render_modes": ["rgb_array"]}
    dt = 0.1

    def __init__(self, render_mode=None):
        self.render_mode = render_mode

    def draw(self):
        return self.np_random.normal(size=2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.x, self.v = self.draw()
        self.steps = 0
        return self.seen(), {}

    def seen(self):
        return {"place": np.array([self.x], np.float32), "speed": np.array([self.v], np.float32)}

    def step(self, action):
        self.steps += 1
        self.v = 0.9 * self.v + 0.1 * float(action[0])
        self.x = np.clip(self.x + self.dt * self.v, -9, 9)
        return self.seen(), -1.0 - abs(self.x), self.over(), self.steps >= 20, {}

    def over(self):
        return False

    def render(self):
        return np.full((50, 75, 3), 200, np.uint8)


class Dice(Push):
    """Starts wherever chance says, and no seed."""

    def draw(self):
        return np.random.default_rng().normal(size=2)


class Short(Push):
    """Ends for good in its third step."""

    def over(self):
        return self.steps >= 3


class Timeless(Push):
    """Does not say how long a step is."""

    dt = None

    def step(self, action):
        self.steps += 1
        self.x += 0.1 * float(action[0])
        return self.seen(), -1.0 - abs(self.x), False, self.steps >= 20, {}


class Blank(Push):
    """Draws nothing."""

    def render(self):
        return None


class Crooked(Push):
    """Draws what is no picture."""

    def render(self):
        return np.zeros((4, 4))
