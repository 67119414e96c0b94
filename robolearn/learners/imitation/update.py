"""Gradient steps that fit a policy to given actions: what the losses of cloning and distillation have in common."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import torch
from rsl_rl.models import MLPModel

from robolearn.core.shards import ONE, Shards
from robolearn.envs.state import Tensor
from robolearn.learners.engine import ConstantSteps, Engine, Net
from robolearn.learners.imitation.config import ImitationConfig
from robolearn.learners.networks import deviation
from robolearn.learners.precision import autocast
from robolearn.learners.recurrent import ActorRecurrence
from robolearn.learners.rollout import Batch
from robolearn.learners.workers import Workers
from robolearn.tasks.mdp.symmetry import Symmetry


class Imitation(Engine):
    """Gradient steps of an actor, and a critic where there is one to learn. A subclass gives `losses` and
    `objective`."""

    def __init__(
        self,
        actor: MLPModel,
        critic: MLPModel | None,
        config: ImitationConfig,
        precision: str,
        recurrence: ActorRecurrence | None = None,
        symmetry: Symmetry | None = None,
        exact: Symmetry | None = None,
        shards: Shards = ONE,
        workers: Workers | None = None,
    ) -> None:
        """See `Engine`; without `critic`, none is learned."""
        self.actor, self.critic, self.config = actor, critic, config
        networks = [Net("actor", config.actor_groups, actor, config.estimated_groups, acts=True)]
        if critic is not None:
            networks.append(Net("critic", config.critic_groups, critic))
        steps = ConstantSteps(config.minibatch_size, config.learning_rate, config.max_grad_norm)
        super().__init__(networks, steps, precision, recurrence, symmetry, exact, shards, workers)

    def begin(self) -> None:
        """Start an iteration: `learn` once or several times, then `read`."""
        self._reset_sums()

    def learn(self, batch: Batch, targets: Mapping[str, Tensor], orders: Iterable[Sequence[Tensor]]) -> None:
        """Take gradient steps.

        Args:
            batch: observations and ends of episodes, T steps of N environments.
            targets: further tables (T, N, ...) by name, which the objective takes.
            orders: see `Engine.take`.

        Raises:
            NonFiniteTerm: on a CPU, see `Engine.read`.
        """
        with torch.no_grad():
            self._tables = self._samples({**self._inputs(batch), **targets}, batch.done)
        self.take(orders, batch.reward.numel())

    def told(self) -> dict[str, Tensor]:
        """See `Engine.told`."""
        return {"std": deviation(self.actor).detach().mean()}

    def predicted(self, part: dict[str, Tensor]) -> tuple[Tensor, Tensor, Tensor | None]:
        """Means (B, A) and standard deviations (A,) of the policy, and values (B,) where a critic is learned."""
        with autocast(self.device, self.precision):
            latent = part["actor"] if self.recurrence is None else self.recurrence.replay(part)
            mean = self._outputs(self.networks[0], latent)
            value = None if self.critic is None else self._outputs(self.networks[1], part["critic"])
        return mean.float(), deviation(self.actor), None if value is None else value.float().squeeze(-1)
