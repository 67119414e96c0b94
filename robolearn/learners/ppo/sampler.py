"""Drawing the actions of a rollout, from the observations of a step to what the robots are told to do."""

from __future__ import annotations

import torch
from rsl_rl.models import MLPModel

from robolearn.core.graphs import Graphed
from robolearn.learners.learner import Tensor
from robolearn.learners.models import MirroredClock, deviation
from robolearn.learners.precision import autocast
from robolearn.learners.recurrent import ActorMemory
from robolearn.learners.rollout import Batch


class Sampler:
    """The exploring policy: a Gaussian around the actor's action, drawn from one generator.

    What it sees and decides is written into the batch, folded by the clock where there is one.
    """

    def __init__(
        self,
        actor: MLPModel,
        batch: Batch,
        observations: dict[str, Tensor],
        random: torch.Generator,
        precision: str,
        memory: ActorMemory | None = None,
        clock: MirroredClock | None = None,
    ) -> None:
        """`observations` show the shapes (N, D) of the groups `policy` and `critic`."""
        self.actor, self.batch, self.random = actor, batch, random
        self.precision, self.memory, self.clock = precision, memory, clock
        self.device = random.device
        self._seen = {name: torch.zeros_like(observations[name]) for name in ("policy", "critic")}
        self._decide = Graphed(self._decided, self.device, (random,))

    @torch.no_grad()
    def __call__(self, observations: dict[str, Tensor], t: int) -> Tensor:
        """Actions (N, A) for the robots at step t of the batch."""
        if self.memory is not None and t == 0:
            self.memory.begin()
        if self._decide.fixed:
            for name, seen in self._seen.items():
                seen.copy_(observations[name])
        else:
            self._seen = observations
        batch = self.batch
        batch.policy[t], batch.critic[t], batch.mean[t], batch.action[t], action = self._decide()
        return action

    def forget(self, done: Tensor) -> None:
        """The episodes of these environments, (N,) bool, have ended."""
        if self.memory is not None:
            self.memory.forget(done)

    def folded_critic(self, obs: Tensor) -> Tensor:
        """The critic's observations (M, D) as it learns from them."""
        if self.clock is None:
            return obs
        return self.clock.fold(obs, "critic", self.clock.second_half(obs, "critic"))

    @torch.no_grad()
    def _decided(self) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        """What the actor sees, what the critic sees, the mean, the action, and the action for the robot."""
        obs, critic = self._seen["policy"], self.folded_critic(self._seen["critic"])
        flipped = self.clock.second_half(obs) if self.clock else None
        if self.clock and flipped is not None:
            obs = self.clock.fold(obs, "policy", flipped)
        with autocast(self.device, self.precision):
            latent = self.actor.obs_normalizer(obs)
            mean = self.actor.mlp(latent if self.memory is None else self.memory.step(latent)).float()
        noise = torch.randn(mean.shape, generator=self.random, device=self.device)
        action = mean + deviation(self.actor) * noise
        robot = action if flipped is None or not self.clock else self.clock.unfold(action, flipped)
        return obs, critic, mean, action, robot
