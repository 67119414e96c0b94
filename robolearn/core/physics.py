"""Draws the randomized physical parameters of an Env: at its start, at resets, and within episodes."""

from __future__ import annotations

import torch

from robolearn.core.env_state import Named
from robolearn.core.task_check import idle
from robolearn.envs.backend import Backend
from robolearn.envs.scene import Scene
from robolearn.envs.state import Tensor
from robolearn.tasks.mdp.context import Random
from robolearn.tasks.mdp.randomization import Randomized
from robolearn.tasks.mdp.sensing import SENSOR_ERRORS
from robolearn.tasks.mdp.task import Task


class Physics:
    """The parameters of `task.randomize` in N environments.

    With a level of the curriculum `randomize` a parameter is that much of the way from its value in the robot's file to
    the one drawn: at 0 nothing is randomized. The state is a node of the EnvState: for each parameter that is drawn
    within episodes, the time until its next draw (N,) [s].
    """

    def __init__(self, task: Task, scene: Scene, backend: Backend) -> None:
        ranges = {**backend.capabilities.drawn, **task.randomize}
        for name in idle(task, scene):
            del ranges[name]
        every = {name: Randomized.of(ranges[name]) for name in sorted(ranges)}
        stated = {name: each for name, each in every.items() if name not in SENSOR_ERRORS}
        self._num_envs, self._device = backend.num_envs, backend.device
        self._at_start = {name: each for name, each in stated.items() if each.when == "start"}
        self._at_reset = {name: each for name, each in stated.items() if each.when != "start"}
        self._within = {name: each for name, each in stated.items() if each.when == "interval"}
        self.hidden = frozenset(name for name, each in every.items() if not each.visible)
        """Parameters, and errors of the sensors, that the critic does not see."""
        params = backend.state.params
        self._nominal = {name: params[name].clone() for name in stated}

    def empty(self) -> Named:
        """The state before the first reset."""
        zeros = torch.zeros(self._num_envs, device=self._device)
        return {name: zeros.clone() for name in self._within}

    def start(self, backend: Backend, random: Random, level: Tensor | None) -> None:
        """Draw what is drawn once."""
        if self._at_start:
            everywhere = torch.ones(self._num_envs, dtype=torch.bool, device=self._device)
            self._set(backend, everywhere, self._at_start, random, level)

    def renew(self, backend: Backend, mask: Tensor, random: Random, level: Tensor | None) -> Named:
        """Draw new parameters for the episodes that begin in `mask` (N,) bool.

        Returns:
            The time until the next draw of each parameter that is drawn within episodes, of every environment.
        """
        if self._at_reset:
            self._set(backend, mask, self._at_reset, random, level)
        return self._waits(random)

    def advance(
        self, backend: Backend, left: Named, dt: float, random: Random, level: Tensor | None
    ) -> Named:
        """Draw the parameters anew whose time `left` [s] ends in this step of `dt` [s]; returns the times after it."""
        waits, after = self._waits(random), {}
        for name, each in self._within.items():
            remaining = left[name] - dt
            due = remaining <= 0
            self._set(backend, due, {name: each}, random, level)
            after[name] = torch.where(due, waits[name], remaining)
        return after

    def _waits(self, random: Random) -> Named:
        return {name: random.uniform(*each.seconds, self._num_envs) for name, each in self._within.items()}

    def _set(
        self,
        backend: Backend,
        mask: Tensor,
        stated: dict[str, Randomized],
        random: Random,
        level: Tensor | None,
    ) -> None:
        drawn = {name: each.draw(self._num_envs, random) for name, each in stated.items()}
        if level is not None:
            share = level.clamp(max=1.0)
            drawn = {
                name: self._nominal[name] + share * (value - self._nominal[name])
                for name, value in drawn.items()
            }
        backend.set_params(mask, drawn)
