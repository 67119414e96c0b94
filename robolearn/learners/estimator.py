"""Estimates, for the actor, of what it cannot measure but the simulator knows, such as the base's velocity.

A small network learns it from the actor's own observations by regression: every sample says how wrong it was, in every
column, where a reward says only how well the whole action did. So the actor need not find out by itself which joints'
velocities make up the base's. Ji et al. (2022), "Concurrent Training of a Control Policy and a State Estimator for
Dynamic and Robust Legged Locomotion". The network is part of the policy: exports contain it, and a robot needs no
further sensor.
"""

from __future__ import annotations

from functools import partial
from typing import Any, Protocol

import torch
from rsl_rl.models import MLPModel

from robolearn.core.shards import ONE, Shards
from robolearn.envs.state import Tensor
from robolearn.learners.equivariance import Equivariance
from robolearn.learners.networks import Normalizer, build_model, estimating
from robolearn.learners.optimizer import DeviceAdam
from robolearn.learners.rollout import Batch, permutations
from robolearn.learners.workers import Workers, map_each
from robolearn.tasks.mdp.context import Random
from robolearn.tasks.mdp.symmetry import Reflection, Symmetry, joined

PASSES = 2
"""Passes over a batch."""
SAMPLES = 4096
"""Samples of a gradient step, about."""
RATE = 1e-3
"""Adam's step size."""
WARM_UP = 2000
"""Steps in which the step size rises to RATE where weights were loaded without Adam's moments, whose first steps would
undo what they have learned: 2 / (1 - beta2), Ma and Yarats (2019), "On the adequacy of untuned warmup for adaptive
optimization"."""


class _Groups(Protocol):
    actor_groups: tuple[str, ...]
    estimated_groups: tuple[str, ...]


def estimated_sides(exact: Symmetry | None, config: _Groups) -> tuple[Reflection, Reflection] | None:
    """Reflections of the actor's observations and of what it estimates; None without symmetry."""
    if exact is None:
        return None
    seen, wanted = (
        joined([exact.groups[name] for name in groups])
        for groups in (config.actor_groups, config.estimated_groups)
    )
    return seen, wanted


class Estimator:
    """Trains the estimating network inside an actor's normalizer, once an iteration."""

    def __init__(
        self,
        actor: MLPModel,
        config: _Groups,
        random: Random,
        reflections: tuple[Reflection, Reflection] | None = None,
        shards: Shards = ONE,
        workers: Workers | None = None,
    ) -> None:
        """`actor` was built with estimates; `reflections` are those of its observations and of the estimated groups,
        both with all columns side by side, where its weights are to be symmetric."""
        self.actor, self.config, self.random = actor, config, random
        self.shards, self.workers = shards, workers
        self.normalizer = estimating(actor)
        self.targets: Normalizer = self.normalizer.estimated
        inner = [
            layer.out_features for layer in self.normalizer.estimator if isinstance(layer, torch.nn.Linear)
        ]
        # The actor's copy takes no gradients, so that PPO's steps leave it alone; this one is trained.
        with torch.random.fork_rng(devices=[]):
            self.network = build_model(
                {"obs": self.normalizer.width}, inner[-1], tuple(inner[:-1]), self.normalizer.activation, None
            ).to(random.device)
        self.adam = DeviceAdam({"estimator": self.network}, RATE, 1.0, shards=shards)
        self._reflections = reflections
        self.equivariance = None
        self.take()
        if reflections is not None:
            self.equivariance = Equivariance(self.adam, [(self.network, *reflections)])
            self.equivariance.begin()
            self._give()
        self._error = torch.zeros((), device=random.device)
        self._warm = WARM_UP
        """Steps taken since weights were loaded without moments, up to WARM_UP."""

    def take(self) -> None:
        """Take the weights that the actor has, as after loading a checkpoint."""
        self.network.mlp.load_state_dict(self.normalizer.estimator.state_dict())

    def _give(self) -> None:
        self.normalizer.estimator.load_state_dict(self.network.mlp.state_dict())

    def learn(self, batch: Batch) -> None:
        """Fit the network to a batch."""
        with torch.no_grad():
            truth = batch.observed(self.config.estimated_groups)[:-1]
            inputs = batch.observed(self.config.actor_groups)[:-1]
            reflection = None if self._reflections is None else self._reflections[1]
            size = batch.reward.shape
            self.targets.absorb(batch.parts(truth, self.shards), self.shards, reflection)
            # Those of shards also where a step is not valid: their permutations have one size.
            rows = batch.taken if self.shards.single else partial(torch.flatten, start_dim=0, end_dim=1)
            wanted, seen = self.targets(rows(truth)), self.normalizer.normalized(rows(inputs))
        # Of all samples, also where some are not valid: ranks must take equally many steps.
        parts = max(1, round(self.shards.whole(batch.reward.numel()) / SAMPLES))

        def fit(rows: Tensor) -> tuple[tuple[Tensor, ...], Tensor]:
            missed = (self.network.mlp(seen[rows]) - wanted[rows]).square().mean()
            return torch.autograd.grad(missed, self.adam.parameters), missed.detach()

        errors = []
        for _ in range(PASSES):
            orders = permutations(self.random, self.shards, size, len(wanted))
            for chosen in zip(*(order.tensor_split(parts) for order in orders), strict=True):
                if self.shards.single:
                    self.adam.take(*fit(chosen[0]))
                else:
                    for i, (gradients, missed) in enumerate(map_each(self.workers, fit, chosen)):
                        self.adam.take(gradients, missed, i)
                self.adam.average()
                if self.equivariance is not None:
                    self.equivariance.project_gradients()
                _, finite = self.adam.clip()
                if self._warm < WARM_UP:
                    self._warm += 1
                    self.adam.set_rate(RATE * self._warm / WARM_UP)
                self.adam.step(~finite)
                errors.append(self.adam.extra.clone())
        if self.equivariance is not None:
            self.equivariance.project_weights()
        self._give()
        self._error = torch.cat(errors).mean()

    def error(self) -> float:
        """Mean squared error of the last batch as a share of the variance of what is estimated; waits for a GPU."""
        return float(self._error)

    def state_dict(self) -> dict[str, Any]:
        """What exact resume needs besides the actor's weights."""
        return {**self.adam.state_dict(), "warm": self._warm}

    def load_state_dict(self, state: dict[str, Any] | None) -> None:
        """Restore what `state_dict` returned, after the actor's weights were loaded."""
        self.take()
        self._warm = 0 if state is None else state.get("warm", WARM_UP)
        self.adam.set_rate(RATE * self._warm / WARM_UP)
        if state is not None:
            self.adam.load_state_dict({key: value for key, value in state.items() if key != "warm"})
