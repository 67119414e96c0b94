"""Distillation: Ross, Gordon, Bagnell (2011), "A Reduction of Imitation Learning and Structured Prediction to No-Regret
Online Learning" (DAgger), with a teacher that observes more, as in Chen et al. (2020), "Learning by Cheating".

The student acts, so that it learns in the states that it comes into by itself; the teacher says what it would have done
there. It is DAgger without the aggregation: an iteration learns from its own batch alone, as simulation gives new ones;
batches of earlier iterations, of which DAgger's guarantee is, are dropped. Read `_iterate` first.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import torch

from robolearn.core.learner_env import LearnerEnv
from robolearn.core.shards import ONE, Shards
from robolearn.envs.state import Tensor
from robolearn.errors import ConfigError
from robolearn.learners.distill.config import DistillConfig
from robolearn.learners.distill.teacher import Teacher
from robolearn.learners.distill.update import Distilling
from robolearn.learners.imitation.learner import ImitationLearner
from robolearn.learners.learner import Report
from robolearn.learners.ppo.sampler import Sampler
from robolearn.learners.rollout import Batch, collect


class Distill(ImitationLearner):
    """A learner for one Env and a teacher; `iterate` collects a batch as the student and learns from its labels."""

    config_class: ClassVar[type] = DistillConfig
    config: DistillConfig
    update: Distilling

    def __init__(self, env: LearnerEnv, config: DistillConfig, seed: int = 1, shards: Shards = ONE) -> None:
        if env.resets_take_a_step:
            raise ConfigError(
                "learner=distill: in these environments a reset takes a separate step, or an agent may end before "
                "others, and there is no action to learn; use same-step autoreset, or task.ends_together=true where "
                "agents end together"
            )
        super().__init__(env, config, seed, shards)
        c = config
        assert c.teacher is not None, "its settings are validated before"
        self.teacher = Teacher(c.teacher, env, c.loss == "kl", shards)
        self.set_std()
        self.batch = Batch.empty(env, self.steps, (*c.actor_groups, *c.estimated_groups), ())
        self.labels = torch.zeros_like(self.batch.action)
        """(T, N, A) what the teacher would have done in each step."""
        workers = None if shards.single else self.workers
        self.sampler = Sampler(
            *(self.actor, c.actor_groups, self.batch, env.observations, self.random, self.precision),
            *(self.recurrence, 0.0, shards, workers),
        )
        self.update = Distilling(self.actor, None, c, *self.given())
        if self.teacher.std is not None:
            self.update.teacher_std = self.teacher.std
        self.estimator = self.make_estimator()
        """Trains the part of the actor that estimates; None without one."""
        env.reset(stagger=True)

    @property
    def beta(self) -> float:
        """Share of the steps of this iteration in which the teacher's action is taken."""
        return self.config.beta * self.config.beta_decay**self.iteration

    def _iterate(self, env: LearnerEnv) -> Report:
        """Collect a batch, learn the teacher's actions, update the normalizer."""
        c, beta = self.config, self.beta
        collect(env, self.batch, self._act, self.timers, self._ended, self.shards.cut)
        with self.timers("learn"):
            self.update.begin()
            self.update.learn(self.batch, {"action": self.labels}, self.orders(*self.batch.reward.shape))
            if c.loss == "kl":
                self.keep_std()
            if self.estimator is not None:
                self.estimator.learn(self.batch)
            observed = self.batch.parts(self.batch.observed(c.actor_groups)[:-1], self.shards)
            self.actor.obs_normalizer.absorb(observed, self.shards, self.reflection(c.actor_groups))
        self.iteration += 1
        with self.timers("synchronize"):
            drained = env.drain()
            losses = self.update.read()
        losses["beta"] = beta
        if self.estimator is not None:
            losses["estimate"] = self.estimator.error()
        return Report(self.shards.whole(self.batch.steps), losses, drained, self.timers.read())

    @torch.no_grad()
    def _act(self, observations: Mapping[str, Tensor], t: int) -> Tensor:
        """Actions (N, A): the student's, and with probability `beta` the teacher's, in each environment for itself."""
        student = self.sampler(observations, t)
        self.labels[t] = teacher = self.teacher(observations)
        if not self.config.beta:
            return student
        chosen = self.random.rand(len(student)) < self.beta
        return torch.where(chosen[:, None], teacher, student)

    def _ended(self, done: Tensor) -> None:
        self.sampler.reset_state(done)
        self.teacher.reset(done)

    def set_std(self) -> None:
        """Set the standard deviation where it is not learned."""
        if self.config.loss == "mse":
            self.actor.distribution.requires_grad_(False)
            with torch.no_grad():
                self.actor.distribution.std_param.fill_(self.config.std)

    def state_dict(self) -> dict[str, Any]:
        """See `ImitationLearner.state_dict`."""
        state = super().state_dict()
        if self.estimator is not None:
            state["estimator"] = self.estimator.state_dict()
        if self.recurrence is not None:
            state["memory"] = self.recurrence.now
        if self.teacher.state:
            state["teacher_memory"] = self.teacher.state
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """See `ImitationLearner.load_state_dict`."""
        super().load_state_dict(state)
        self.set_std()
        if self.estimator is not None:
            self.estimator.load_state_dict(state.get("estimator"))
        if self.recurrence is not None:
            self.recurrence.restore(state.get("memory"))
        self.teacher.restore(tuple(x.to(self.device) for x in state.get("teacher_memory", ())))
