"""Draws the actions of a rollout from the observations of each step."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from rsl_rl.models import MLPModel

from robolearn.core.graphs import Graphed
from robolearn.core.shards import ONE, Shards
from robolearn.envs.state import Tensor
from robolearn.learners.networks import deviation
from robolearn.learners.precision import autocast
from robolearn.learners.recurrent import ActorRecurrence
from robolearn.learners.rollout import Batch, side_by_side
from robolearn.learners.workers import Workers, map_each
from robolearn.tasks.mdp.context import Random


class Sampler:
    """The exploring policy: a Gaussian around the actor's mean.

    Observations, mean and action are written into the batch.
    """

    def __init__(
        self,
        actor: MLPModel,
        groups: Sequence[str],
        batch: Batch,
        observations: Mapping[str, Tensor],
        random: Random,
        precision: str,
        recurrence: ActorRecurrence | None = None,
        correlation: float = 0.0,
        shards: Shards = ONE,
        workers: Workers | None = None,
    ) -> None:
        """`groups` are the actor's; `observations` give the shapes (N, D) of all groups; `correlation` is that of the
        noise of a step with that of the step before."""
        self.shards, self.workers = shards, workers
        self.actor, self.groups, self.batch, self.random = actor, groups, batch, random
        self.precision, self.recurrence = precision, recurrence
        self.device = random.device
        self.correlation = correlation
        self.noise: Tensor | None = None
        """(N, A) the noise of the last step, of variance 1; None before the first, and without correlation."""
        self._seen = {name: torch.zeros_like(observations[name]) for name in batch.observations}
        self._decide = Graphed(self._decided, self.device, random.generators)

    @torch.no_grad()
    def __call__(self, observations: Mapping[str, Tensor], t: int) -> Tensor:
        """Actions (N, A) for the robots at step t of the batch."""
        if self.recurrence is not None and t == 0:
            self.recurrence.begin()
        if self._decide.fixed:
            for name, seen in self._seen.items():
                seen.copy_(observations[name])
        else:
            self._seen = {name: observations[name] for name in self._seen}
        batch, (mean, action) = self.batch, self._decide()
        for name, obs in self._seen.items():
            batch.observations[name][t] = obs
        batch.mean[t], batch.action[t] = mean, action
        return action

    def reset_state(self, done: Tensor) -> None:
        """Reset the recurrent state where an episode ended, `done` (N,) bool."""
        if self.recurrence is not None:
            self.recurrence.reset(done)

    @torch.no_grad()
    def _decided(self) -> tuple[Tensor, Tensor]:
        """Mean and action (N, A) each."""
        seen = side_by_side(self._seen, self.groups)
        means = map_each(
            self.workers,
            self._mean,
            list(zip(self.shards.parts(seen), self.shards.rows(len(seen)), strict=True)),
        )
        mean = means[0] if len(means) == 1 else torch.cat(means)
        noise = self.random.randn(*mean.shape)
        if self.correlation:
            if self.noise is None:
                self.noise = noise.clone()
            else:
                fresh = math.sqrt(1 - self.correlation**2)
                self.noise.mul_(self.correlation).add_(noise, alpha=fresh)
            noise = self.noise
        action = mean + deviation(self.actor) * noise
        return mean, action

    @torch.no_grad()
    def _mean(self, part: tuple[Tensor, slice]) -> Tensor:
        """The actor's mean (n, A) for observations (n, D) of some rows of the environments."""
        seen, rows = part
        with autocast(self.device, self.precision):
            latent = self.actor.obs_normalizer(seen)
            if self.recurrence is not None:
                latent = self.recurrence.step(latent, rows)
            return self.actor.mlp(latent).float()
