"""Collects batches for a PPO learner in another process: the actor's network, without critic and update."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from rsl_rl.models import MLPModel

from robolearn.core.learner_env import LearnerEnv
from robolearn.core.shards import ONE, Shards
from robolearn.core.threads import one_thread
from robolearn.core.timers import Timers
from robolearn.envs.state import Tensor
from robolearn.learners.networks import build_model, deviation
from robolearn.learners.ppo.config import PPOConfig
from robolearn.learners.ppo.sampler import Sampler
from robolearn.learners.reference import groups_of
from robolearn.learners.rollout import Batch, collect
from robolearn.tasks.mdp.context import Random


def build_actor(config: PPOConfig, widths: Mapping[str, int], num_actions: int) -> MLPModel:
    """The actor's network for observation groups of these `widths`, on the CPU."""
    c = config
    return build_model(
        {name: widths[name] for name in c.actor_groups},
        num_actions,
        c.actor_hidden,
        c.activation,
        c.init_std,
        rnn=c.rnn,
        rnn_hidden=c.rnn_hidden,
        rnn_layers=c.rnn_layers,
        estimated=sum(widths[name] for name in c.estimated_groups),
        estimator_hidden=c.estimator_hidden,
    )


def empty_batch(env: LearnerEnv, config: PPOConfig, steps: int, more: tuple[str, ...] = ()) -> Batch:
    """A batch for `steps` steps of `env`, with the groups that actor, critic and estimator take, and `more`, which the
    reward is learned from."""
    groups = (*config.actor_groups, *config.critic_groups, *config.estimated_groups)
    groups += groups_of(config.reference)
    batch = Batch.empty(env, steps, (*groups, *more), (*config.critic_groups, *more))
    if more:
        batch.diverged = torch.zeros_like(batch.done)
    return batch


def keep_last(env: LearnerEnv, batch: Batch) -> None:
    """Write the observations after the last step into the batch."""
    for name, obs in batch.observations.items():
        obs[-1] = env.observations[name]


class Collector:
    """The exploring policy of a PPO learner in `env`, whose weights come from there."""

    def __init__(
        self,
        env: LearnerEnv,
        config: PPOConfig,
        steps: int,
        seed: int,
        precision: str,
        shards: Shards = ONE,
    ) -> None:
        """
        Args:
            env: the environments; an episode starts in each.
            config: the learner's settings.
            steps: of every environment in a batch.
            seed: of the exploration noise.
            precision: the learner's, see `choose_precision`.
            shards: the parts of the run that the environments are.
        """
        self.env, self.shards = env, shards
        self.random = Random(shards.seeds(seed), env.device)
        self.batch = empty_batch(env, config, steps)
        widths = {name: obs.shape[1] for name, obs in env.observations.items()}
        with torch.random.fork_rng(devices=[]):
            self.actor = build_actor(config, widths, env.num_actions).to(env.device)
        self.actor.requires_grad_(False)
        self.sampler = Sampler(
            *(self.actor, config.actor_groups, self.batch, env.observations, self.random, precision),
            *(None, config.noise_correlation, shards),
        )
        self.timers = Timers(env.device)
        env.reset(stagger=True)

    def collect(self) -> Batch:
        """The next batch, valid until the next call."""
        self.timers.start()
        with one_thread(self.env.device, not self.shards.single):
            collect(self.env, self.batch, self.sampler, self.timers)
            with self.timers("infer"):
                keep_last(self.env, self.batch)
        return self.batch

    def load(self, actor: Mapping[str, Tensor]) -> None:
        """Take over the weights of the learner's actor."""
        self.actor.load_state_dict(dict(actor))

    @property
    def std(self) -> Tensor:
        """(A,) standard deviations of the actions."""
        return deviation(self.actor).detach()

    def state(self) -> dict[str, Any]:
        """The state of generator and noise, as in a learner's state."""
        noise = self.sampler.noise
        return {"random": self.random.state(), **({} if noise is None else {"noise": noise})}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue from what `state` returned."""
        if "random" in state and self.random.fits(state["random"]):
            self.random.set_state(state["random"])
        self.sampler.noise = state["noise"].to(self.env.device) if "noise" in state else None
