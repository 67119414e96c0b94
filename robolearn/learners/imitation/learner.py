"""The networks and the state of a learner that imitates; `Clone` and `Distill` are such."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from rsl_rl.models import MLPModel
from torch import nn

from robolearn.core.learner_env import LearnerEnv
from robolearn.core.shards import ONE, Shards
from robolearn.core.threads import one_thread
from robolearn.core.timers import Timers
from robolearn.envs.state import Tensor
from robolearn.errors import ConfigError, did_you_mean, listing, quote
from robolearn.learners.equivariance import choose_symmetry
from robolearn.learners.estimator import Estimator, estimated_sides
from robolearn.learners.imitation.config import ImitationConfig
from robolearn.learners.imitation.update import Imitation
from robolearn.learners.learner import Report
from robolearn.learners.networks import build_model, require_unfolded, rnn_of
from robolearn.learners.policy import Policy, PolicySpec
from robolearn.learners.precision import choose_precision
from robolearn.learners.recurrent import ActorRecurrence, require_same_rnn
from robolearn.learners.rollout import permutations
from robolearn.learners.workers import Workers
from robolearn.tasks.mdp.context import Random
from robolearn.tasks.mdp.symmetry import Reflection, Symmetry, joined


class ImitationLearner:
    """Networks, estimator, symmetry and random numbers, made as PPO's are, so that PPO can go on with them."""

    config_class: ClassVar[type] = ImitationConfig
    requires: ClassVar[frozenset[str]] = frozenset()
    shares_settings_of: ClassVar[str] = "ppo"
    """The learner whose settings in a task's `defaults` hold here too, where this one has them."""
    update: Imitation

    def __init__(self, env: LearnerEnv, config: ImitationConfig, seed: int = 1, shards: Shards = ONE) -> None:
        self.config, self.shards, self.device = config, shards, env.device
        c = config
        self.random = Random(shards.seeds(seed), self.device)
        self.steps = c.steps_of(shards.whole(env.num_envs))
        widths = {name: obs.shape[1] for name, obs in env.observations.items()}
        for name in (*c.actor_groups, *c.critic_groups, *c.estimated_groups):
            if name not in widths:
                hint = did_you_mean(name, widths)
                raise ConfigError(
                    f"there is no observation group {quote(name)}{hint}; valid: {listing(widths)}"
                )
        self.widths = widths
        self._inputs = {name: widths[name] for name in c.actor_groups}
        self._estimated = sum(widths[name] for name in c.estimated_groups)
        self.precision = choose_precision(c.precision)
        hidden = (*c.actor_hidden, *c.critic_hidden, *(c.estimator_hidden if c.estimated_groups else ()))
        self.symmetry = choose_symmetry(env, c.symmetry, hidden, c.rnn)
        # Of shards with one thread of torch, throughout: its rounding depends on the number of threads.
        with torch.random.fork_rng(devices=[]), one_thread(self.device, not shards.single):
            torch.default_generator.manual_seed(seed)  # torch.manual_seed would reseed GPUs too
            self.actor = self.policy_spec(env.num_actions).build().to(self.device)
            critic_inputs = {name: widths[name] for name in c.critic_groups}
            self.critic = build_model(critic_inputs, 1, c.critic_hidden, c.activation, None).to(self.device)
            # A small last layer: the first actions are near zero, at the home pose, whatever the initialization.
            nn.init.orthogonal_(self.actor.mlp[-1].weight, 0.01)
        with torch.no_grad():
            self.actor.distribution.std_param.fill_(c.std)
        rnn = rnn_of(self.actor)
        self.recurrence = None if rnn is None else ActorRecurrence(rnn, env.num_envs)
        threads = torch.get_num_threads()
        split = self.device.type == "cpu" and threads > 1 and (self.recurrence is None or not shards.single)
        self.workers = Workers(threads) if split else None
        """They take a part of a minibatch each, or whole shards; gradients through time stay together."""
        self.timers = Timers(self.device)
        self.iteration = 0
        """Iterations so far."""

    # ------------------------------------------------------------------ the policy

    def policy_spec(self, actions: int) -> PolicySpec:
        """The description of the policy that is learned."""
        c = self.config
        return PolicySpec(
            self._inputs,
            actions,
            c.actor_hidden,
            c.activation,
            rnn=c.rnn,
            rnn_hidden=c.rnn_hidden,
            rnn_layers=c.rnn_layers,
            estimated=self._estimated,
            estimator_hidden=c.estimator_hidden if self._estimated else (),
        )

    def as_policy(self, actor: MLPModel) -> Policy:
        """An actor's deterministic policy, which shares its weights."""
        return Policy(self.policy_spec(len(actor.distribution.std_param)), actor).to(self.device)

    @property
    def policy(self) -> Policy:
        """The current policy."""
        return self.as_policy(self.actor)

    # ------------------------------------------------------------------ learning

    def iterate(self, env: LearnerEnv) -> Report:
        """One iteration; see the learners.

        Raises:
            NonFiniteTerm: a term of the Env or a gradient was not finite; see `Env.drain` and `Engine.read`.
        """
        with one_thread(self.device, not self.shards.single):
            self.timers.start()
            return self._iterate(env)

    def _iterate(self, env: LearnerEnv) -> Report:
        raise NotImplementedError

    def given(self) -> tuple[Any, ...]:
        """Arguments of `Imitation` after actor, critic and settings."""
        augmented = self.symmetry if self.config.symmetry == "augment" else None
        return (self.precision, self.recurrence, augmented, self.exact, self.shards, self.workers)

    @property
    def exact(self) -> Symmetry | None:
        """The symmetry that the networks are kept to."""
        return None if self.config.symmetry == "augment" else self.symmetry

    def reflection(self, groups: tuple[str, ...]) -> Reflection | None:
        """That of the columns of these groups side by side, where the networks are symmetric."""
        return None if self.exact is None else joined([self.exact.groups[group] for group in groups])

    def make_estimator(self) -> Estimator | None:
        """What trains the estimating part of the actor; None without one. Made after `update`, whose symmetric weights
        it takes."""
        c = self.config
        if not c.estimated_groups:
            return None
        shard_workers = None if self.shards.single else self.workers
        sides = estimated_sides(self.exact, c)
        return Estimator(self.actor, c, self.random, sides, self.shards, shard_workers)

    def orders(self, steps: int, columns: int) -> list[list[Tensor]]:
        """For each epoch a permutation of each shard's samples of `steps` steps in `columns` environments, or of the
        environments where the actor is recurrent; see `permutations`."""
        size = (1 if self.recurrence is not None else steps), columns
        count = size[0] * columns
        return [permutations(self.random, self.shards, size, count) for _ in range(self.config.num_epochs)]

    @torch.no_grad()
    def keep_std(self) -> None:
        """Raise standard deviations below the least one."""
        self.actor.distribution.std_param.clamp_(min=self.config.std)

    # ------------------------------------------------------------------ the rest

    def state_dict(self) -> dict[str, Any]:
        """Weights under rsl_rl's names, so that PPO and rsl_rl load them, and what exact resume needs."""
        return {
            "actor_state_dict": self.actor.state_dict(),
            "critic_state_dict": self.critic.state_dict(),
            "optimizer_state_dict": self.update.adam.state_dict(),
            "iteration": self.iteration,
            "random": self.random.state(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load weights of a checkpoint, PPO's too; optimizer, iteration and random state where it has those of this
        learner.

        Raises:
            ValueError: the actor has other recurrent layers, or the weights need a gait clock, see `require_unfolded`.
        """
        c = self.config
        require_unfolded(state)
        require_same_rnn(state["actor_state_dict"], c.rnn, c.rnn_hidden, c.rnn_layers)
        self.actor.load_state_dict(state["actor_state_dict"])
        self.critic.load_state_dict(state["critic_state_dict"])
        if self.update.equivariance is not None:
            self.update.equivariance.take(self.actor)
        self.iteration = int(state.get("iteration", 0))
        if "optimizer_state_dict" in state:
            self.update.adam.load_state_dict(state["optimizer_state_dict"])
            self.update.clear_graphs()
        # A GPU's generator has another state than a CPU's; then the run goes on with this learner's seed, not exactly.
        if "random" in state and self.random.fits(state["random"]):
            self.random.set_state(state["random"])
