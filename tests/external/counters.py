"""Environments that count steps, so that their episodes can be worked out by hand.

Environment number `start` observes [start, steps taken], and begins its next episode at 10 more. A step pays 1 + the
action. An action of 1 or more ends the episode for good; without one its time is up after three steps.
"""

import gymnasium
import numpy as np
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv

BOX = gymnasium.spaces.Box


class Counter(gymnasium.Env):
    """One of them."""

    observation_space = BOX(-1e6, 1e6, (2,), np.float64)
    action_space = BOX(-4.0, 4.0, (1,), np.float32)
    dt = 0.25

    def __init__(self, start=0.0, limit=3):
        self.next, self.limit = start, limit

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.at, self.steps = self.next, 0
        self.next += 10.0
        return np.array([self.at, 0.0]), {}

    def step(self, action):
        self.steps += 1
        ended = bool(action[0] >= 1.0)
        return np.array([self.at, self.steps]), 1.0 + action[0], ended, self.steps >= self.limit, {}


class Noisy(Counter):
    """Draws from its own generator."""

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self.np_random.normal(size=2), {}

    def step(self, action):
        return self.np_random.normal(size=2), *super().step(action)[1:]


class Grouped(Counter):
    """A policy that sees less than its critic."""

    observation_space = gymnasium.spaces.Dict(
        critic=gymnasium.spaces.Dict(
            at=BOX(-1e6, 1e6, (), np.float64), steps=BOX(-1e6, 1e6, (1, 1), np.float64)
        ),
        policy=BOX(-1e6, 1e6, (1,), np.float64),
    )

    def _groups(self, row):
        return {"critic": {"at": np.array(row[0]), "steps": row[1:, None]}, "policy": row[:1]}

    def reset(self, **named):
        row, info = super().reset(**named)
        return self._groups(row), info

    def step(self, action):
        row, *rest = super().step(action)
        return self._groups(row), *rest


class Discrete(Counter):
    action_space = gymnasium.spaces.Discrete(3)


class Whole(Counter):
    action_space = BOX(0, 5, (1,), np.int64)


class Picture(Counter):
    observation_space = BOX(0, 255, (8, 8, 3), np.uint8)


class Pair(Counter):
    observation_space = gymnasium.spaces.Tuple((Counter.observation_space, gymnasium.spaces.Discrete(2)))


class Broken(Counter):
    """Observes something that is not a number in its second step."""

    def step(self, action):
        row, *rest = super().step(action)
        return np.where(self.steps == 2, np.nan, row), *rest


class Mute(Counter):
    """Does not say how long a step takes, and never ends by itself."""

    dt = None

    def step(self, action):
        row, reward, ended, _, info = super().step(action)
        return row, reward, ended, False, info


class NoAction(Counter):
    action_space = BOX(-1.0, 1.0, (0,), np.float32)


class NoSight(Counter):
    observation_space = BOX(-1.0, 1.0, (0,), np.float32)


class Twice(Counter):
    observation_space = gymnasium.spaces.Dict(
        {"a": gymnasium.spaces.Dict({"b": BOX(0, 1, (1,))}), "a.b": BOX(0, 1, (1,))}
    )


class Motor(Counter):
    """Does not survive its first step."""

    def step(self, action):
        raise RuntimeError("motor on fire")


class Strict(Counter):
    """Takes nothing but what it says."""

    action_space = BOX(-0.4, 0.4, (1,), np.float64)

    def step(self, action):
        assert self.action_space.contains(action), action
        return super().step(action)


class Wide(Counter):
    action_space = BOX(-3.4e38, 3.4e38, (1,), np.float32)


class Numpy(Counter):
    dt = np.float32(0.5)


def _vector(kind, mode):
    def make(num_envs):
        return kind([lambda i=i: Counter(1000.0 * i) for i in range(num_envs)], autoreset_mode=mode)

    return make


class _Vector(gymnasium.vector.VectorWrapper):
    """A vector environment of a user's own, with one kind of autoreset."""

    kind, mode = SyncVectorEnv, AutoresetMode.SAME_STEP

    def __init__(self, num_envs):
        super().__init__(_vector(self.kind, self.mode)(num_envs))


class SameStep(_Vector):
    pass


class NextStep(_Vector):
    mode = AutoresetMode.NEXT_STEP


class Disabled(_Vector):
    mode = AutoresetMode.DISABLED


class InProcesses(_Vector):
    kind = AsyncVectorEnv


class Everybody(Disabled):
    """Resets all environments, whatever the mask."""

    def reset(self, *, seed=None, options=None):
        return self.env.reset(seed=seed)


class Liar(SameStep):
    """Says that it resets in the next step."""

    def __init__(self, num_envs):
        super().__init__(num_envs)
        self._metadata = {"autoreset_mode": AutoresetMode.NEXT_STEP}


class Silent(_Vector):
    """Does not say when it resets."""

    def __init__(self, num_envs):
        super().__init__(num_envs)
        self._metadata = {}


class Forgetful(SameStep):
    """Says that it resets in the same step, and tells no final observation."""

    def step(self, actions):
        *rest, _ = super().step(actions)
        return *rest, {}
