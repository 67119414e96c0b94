"""GRPO's objective: what its gradient steps learn from, and its loss."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from rsl_rl.models import MLPModel

from robolearn.core.shards import ONE, Shards
from robolearn.envs.state import Tensor
from robolearn.learners.engine import Engine, Net
from robolearn.learners.grpo.config import GRPOConfig
from robolearn.learners.losses import clipped_surrogate, divergence, entropy, log_prob
from robolearn.learners.networks import deviation
from robolearn.learners.precision import autocast
from robolearn.learners.reference import Reference, divergence_from, steer
from robolearn.learners.rollout import Batch
from robolearn.learners.workers import Workers
from robolearn.tasks.mdp.symmetry import Symmetry

LOSSES = ("surrogate", "entropy", "kl", "clip_fraction", "reference_kl")
"""Names of the reported losses, means over the gradient steps of an iteration."""
REFERENCE = LOSSES.index("reference_kl")


class Update(Engine):
    """GRPO's gradient steps on a batch: `learn`, then `read`."""

    losses = LOSSES

    def __init__(
        self,
        actor: MLPModel,
        config: GRPOConfig,
        precision: str,
        symmetry: Symmetry | None = None,
        exact: Symmetry | None = None,
        shards: Shards = ONE,
        workers: Workers | None = None,
        reference: Reference | None = None,
    ) -> None:
        """See `Engine`. With `reference`, the learned policy is kept near it."""
        self.actor, self.config, self.reference = actor, config, reference
        networks = (Net("actor", config.actor_groups, actor, config.estimated_groups, acts=True),)
        super().__init__(networks, config, precision, None, symmetry, exact, shards, workers)
        self._old_std = deviation(actor).detach().clone()
        self.coefficient = self._number(dtype=torch.float32).fill_(config.reference_coef)
        """() weight of the divergence from the reference."""

    def learn(
        self,
        batch: Batch,
        advantage: Tensor,
        weight: Tensor,
        orders: Sequence[Sequence[Tensor]],
    ) -> None:
        """Take the gradient steps of an iteration.

        Args:
            batch: what was collected, T steps of N environments.
            advantage: (T, N).
            weight: (T, N) of each step in the loss, 1 on average.
            orders: see `Engine.take`.

        Raises:
            NonFiniteTerm: on a CPU, see `read`.
        """
        self._old_std.copy_(deviation(self.actor).detach())
        self._reset_sums()
        self._tables = self._tables_of(batch, advantage, weight)
        self.take(orders, sum(len(order) for order in orders[0]))
        if self.reference is not None and self.config.reference_kl:
            steer(self.coefficient, self._epoch, REFERENCE, self.config.reference_kl)

    def read(self) -> dict[str, float]:
        """See `Engine.read`."""
        found = super().read()
        if self.reference is None:
            found.pop("reference_kl", None)
        return found

    def told(self) -> dict[str, Tensor]:
        """See `Engine.told`."""
        weight = {} if self.reference is None else {"reference_coef": self.coefficient}
        return {"std": deviation(self.actor).detach().mean(), **weight}

    def objective(self, part: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
        """GRPO's loss, and what is reported of it."""
        c = self.config
        with autocast(self.device, self.precision):
            mean = self._outputs(self.networks[0], part["actor"])
        mean, std = mean.float(), deviation(self.actor)
        with torch.no_grad():
            # Not of mirror images: how far a policy is from symmetric is no step that it took.
            rows = self._originals(mean)
            moved = divergence(part["mean"][rows], self._old_std, mean[rows], std)
        new = log_prob(part["action"], mean, std)
        surrogate, clipped = clipped_surrogate(
            new, part["log_prob"], part["advantage"], c.clip, part["weight"], c.clip_high
        )
        bonus = entropy(std)
        loss = surrogate - c.entropy_coef * bonus
        apart = torch.zeros_like(moved)
        if self.reference is not None:
            apart = divergence_from(self.reference, c.reference_estimator, part, mean, std)
            loss = loss + self.coefficient * apart
        return loss, torch.stack((surrogate, bonus, moved, clipped, apart))

    @torch.no_grad()
    def _tables_of(self, batch: Batch, advantage: Tensor, weight: Tensor) -> dict[str, Tensor]:
        data = {
            **self._inputs(batch),
            "action": batch.action,
            "mean": batch.mean,
            "log_prob": log_prob(batch.action, batch.mean, self._old_std),
            "advantage": advantage,
            "weight": weight,
        }
        if self.reference is not None:
            data["reference"] = self.reference.means(batch, self.shards)
        return self._samples(data, batch.done)
