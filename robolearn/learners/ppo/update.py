"""PPO's objective: what its gradient steps learn from, and its loss."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from rsl_rl.models import MLPModel

from robolearn.core.shards import ONE, Shards
from robolearn.envs.state import Tensor
from robolearn.learners.engine import Engine, Net
from robolearn.learners.losses import beyond, clipped_surrogate, divergence, entropy, log_prob, value_loss
from robolearn.learners.minibatch import Tables
from robolearn.learners.networks import deviation
from robolearn.learners.ppo.config import PPOConfig
from robolearn.learners.ppo.correction import Correction
from robolearn.learners.precision import autocast
from robolearn.learners.recurrent import ActorRecurrence
from robolearn.learners.reference import Reference, divergence_from, steer
from robolearn.learners.rollout import Batch
from robolearn.learners.workers import Workers
from robolearn.tasks.mdp.symmetry import Symmetry

LOSSES = ("surrogate", "value", "entropy", "kl", "clip_fraction", "reference_kl")
"""Names of the reported losses, means over the gradient steps of an iteration."""
KL, REFERENCE = LOSSES.index("kl"), LOSSES.index("reference_kl")


class Update(Engine):
    """PPO's gradient steps on a batch: `learn`, then `read`."""

    losses = LOSSES

    def __init__(
        self,
        actor: MLPModel,
        critic: MLPModel,
        config: PPOConfig,
        precision: str,
        recurrence: ActorRecurrence | None = None,
        symmetry: Symmetry | None = None,
        exact: Symmetry | None = None,
        shards: Shards = ONE,
        workers: Workers | None = None,
        reference: Reference | None = None,
    ) -> None:
        """See `Engine`. With `reference`, the learned policy is kept near it."""
        self.actor, self.critic, self.config, self.reference = actor, critic, config, reference
        networks = (
            Net("actor", config.actor_groups, actor, config.estimated_groups, acts=True),
            Net("critic", config.critic_groups, critic),
        )
        super().__init__(networks, config, precision, recurrence, symmetry, exact, shards, workers)
        self._old_std = deviation(actor).detach().clone()
        self._explained = self._number()
        self.coefficient = self._number(dtype=torch.float32).fill_(config.reference_coef)
        """() weight of the divergence from the reference."""

    def learn(
        self,
        batch: Batch,
        advantage: Tensor,
        returns: Tensor,
        value: Tensor,
        orders: Iterable[Sequence[Tensor]],
        stale: Correction | None = None,
    ) -> None:
        """Take the gradient steps of an iteration.

        Args:
            batch: what was collected, T steps of N environments.
            advantage: (T, N), normalized.
            returns: (T, N), the critic's regression targets.
            value: (T, N), the critic's values before the update.
            orders: see `Engine.take`.
            stale: the correction of a batch that an older policy has collected.

        Raises:
            NonFiniteTerm: on a CPU, see `read`.
        """
        self._begin(batch.parts(returns, self.shards), batch.parts(value, self.shards))
        self._tables = self._tables_of(batch, advantage, returns, value, stale)
        self.take(orders, returns.numel())
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
        return {
            "std": deviation(self.actor).detach().mean(),
            "explained_variance": self._explained,
            **weight,
        }

    def objective(self, part: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
        """PPO's loss, and what is reported of it."""
        c = self.config
        actor, critic = self.networks
        with autocast(self.device, self.precision):
            latent = part["actor"] if self.recurrence is None else self.recurrence.replay(part)
            mean, value = self._outputs(actor, latent), self._outputs(critic, part["critic"])
        mean, value, std = mean.float(), value.float().squeeze(-1), deviation(self.actor)
        with torch.no_grad():
            # Not of mirror images: how far a policy is from symmetric is no step that it took.
            rows = self._originals(mean)
            moved = divergence(part["mean"][rows], self._old_std, mean[rows], std)
        new = log_prob(part["action"], mean, std)
        surrogate, clipped = clipped_surrogate(
            new, part["log_prob"], part["advantage"], c.clip, part.get("weight")
        )
        squared = value_loss(value, part["returns"], part.get("value"), c.clip)
        bonus = entropy(std)
        loss = surrogate + c.value_loss_coef * squared - c.entropy_coef * bonus
        if c.mean_bound:
            loss = loss + c.mean_bound_coef * beyond(mean, c.mean_bound)
        apart = torch.zeros_like(moved)
        if self.reference is not None:
            apart = divergence_from(self.reference, c.reference_estimator, part, mean, std)
            loss = loss + self.coefficient * apart
        return loss, torch.stack((surrogate, squared, bonus, moved, clipped, apart))

    # ------------------------------------------------------------------ tables

    @torch.no_grad()
    def _begin(self, returns: list[Tensor], value: list[Tensor]) -> None:
        """Reset the sums, and note the explained variance of `returns` and `value`, (M,) of each shard."""
        self._old_std.copy_(deviation(self.actor))
        self._reset_sums()
        errors = [r - v for r, v in zip(returns, value, strict=True)]
        unexplained = self._variance(errors) / self._variance(returns).clamp(min=1e-8)
        self._explained.copy_(1 - unexplained)

    def _variance(self, parts: list[Tensor]) -> Tensor:
        """() the variance of all samples, (M,) of each shard."""
        if self.shards.single:
            return parts[0].var(correction=0)
        mean = self.shards.mean([part.mean() for part in parts])
        return self.shards.mean([(part - mean).square().mean() for part in parts])

    @torch.no_grad()
    def _tables_of(
        self,
        batch: Batch,
        advantage: Tensor,
        returns: Tensor,
        value: Tensor,
        stale: Correction | None = None,
    ) -> Tables:
        data = {
            **self._inputs(batch),
            "action": batch.action,
            "mean": batch.mean,
            "log_prob": log_prob(batch.action, batch.mean, self._old_std),
            "returns": returns,
            "advantage": advantage,
        }
        if stale is not None:
            data |= {"mean": stale.mean, "log_prob": stale.log_prob}
            if stale.weight is not None:
                data["weight"] = stale.weight
        if self.config.clip_value_loss:
            data["value"] = value
        if self.reference is not None:
            data["reference"] = self.reference.means(batch, self.shards)
        return self._samples(data, batch.done)
