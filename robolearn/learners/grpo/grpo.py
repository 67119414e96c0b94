"""GRPO: what an action is worth is told by comparing rollouts that differ in nothing else, without a critic.

Shao et al. (2024), "DeepSeekMath: Pushing the Limits of Mathematical Reasoning in Open Language Models", sec. 4.1, for
robots: a group of G environments starts in one state of the simulator, and meets the same commands, pushes and noise.
Read `iterate` first.
"""

from __future__ import annotations

import math
from typing import Any, ClassVar

import torch
from torch import nn

from robolearn.core.env import Env
from robolearn.core.learner_env import LearnerEnv
from robolearn.core.shards import ONE, Shards
from robolearn.core.threads import one_thread
from robolearn.core.timers import Timers
from robolearn.envs.state import Tensor
from robolearn.errors import ConfigError
from robolearn.learners.equivariance import choose_symmetry
from robolearn.learners.estimator import Estimator, estimated_sides
from robolearn.learners.grpo.advantage import alive, credited, group_advantage, group_spread, weights
from robolearn.learners.grpo.config import GRPOConfig
from robolearn.learners.grpo.update import Update
from robolearn.learners.learner import Report
from robolearn.learners.networks import build_model, require_unfolded
from robolearn.learners.policy import Policy, PolicySpec
from robolearn.learners.ppo.sampler import Sampler
from robolearn.learners.precision import choose_precision
from robolearn.learners.recurrent import require_same_rnn
from robolearn.learners.reference import Reference, groups_of
from robolearn.learners.rollout import Batch, collect, permutations
from robolearn.learners.workers import Workers
from robolearn.tasks.mdp.context import Random
from robolearn.tasks.mdp.symmetry import joined


class GRPO:
    """A learner for one Env; `iterate` collects groups of rollouts and learns from their comparison."""

    config_class: ClassVar[type] = GRPOConfig
    requires: ClassVar[frozenset[str]] = frozenset()
    shares_settings_of: ClassVar[str] = "ppo"
    """The learner whose settings in a task's `defaults` hold here too, where this one has them."""

    def __init__(self, env: LearnerEnv, config: GRPOConfig, seed: int = 1, shards: Shards = ONE) -> None:
        self.config, self.shards, self.device = config, shards, env.device
        _require_groups(env, config.group_size, shards)
        self.random = Random(shards.seeds(seed), self.device)
        self.batch = _empty_batch(env, config)
        self.precision = choose_precision(config.precision)
        widths = {name: obs.shape[1] for name, obs in env.observations.items()}
        self._inputs = {name: widths[name] for name in config.actor_groups}
        self._estimated = sum(widths[name] for name in config.estimated_groups)
        c, few = config, config.estimator_hidden if config.estimated_groups else ()
        with torch.random.fork_rng(devices=[]), one_thread(self.device, not shards.single):
            torch.default_generator.manual_seed(seed)  # torch.manual_seed would reseed GPUs too
            self.actor = build_model(
                *(self._inputs, env.num_actions, c.actor_hidden, c.activation, c.init_std),
                estimated=self._estimated,
                estimator_hidden=c.estimator_hidden,
            ).to(self.device)
            nn.init.orthogonal_(self.actor.mlp[-1].weight, 0.01)
        threads = torch.get_num_threads()
        self.workers = Workers(threads) if self.device.type == "cpu" and threads > 1 else None
        shard_workers = None if shards.single else self.workers
        self.sampler = Sampler(
            *(self.actor, c.actor_groups, self.batch, env.observations, self.random, self.precision),
            *(None, c.noise_correlation, shards, shard_workers),
        )
        symmetry = choose_symmetry(env, c.symmetry, (*c.actor_hidden, *few))
        exact = None if c.symmetry == "augment" else symmetry
        reference = Reference(c.reference, env.num_actions, self.device, env) if c.reference else None
        self.update = Update(
            *(self.actor, config, self.precision, symmetry if exact is None else None, exact, shards),
            *(self.workers, reference),
        )
        self._reflection = None if exact is None else joined([exact.groups[name] for name in c.actor_groups])
        self.estimator = None
        """Trains the part of the actor that estimates; None without one."""
        if c.estimated_groups:
            sides = estimated_sides(exact, c)
            self.estimator = Estimator(self.actor, c, self.random, sides, shards, shard_workers)
        self.timers = Timers(self.device)
        assert isinstance(env, Env)
        env.random.group(c.group_size, env.num_envs)
        env.reset(stagger=True)

    @property
    def policy(self) -> Policy:
        """The current policy, deterministic. It shares this learner's weights."""
        c = self.config
        spec = PolicySpec(
            self._inputs,
            len(self.actor.distribution.std_param),
            c.actor_hidden,
            c.activation,
            estimated=self._estimated,
            estimator_hidden=c.estimator_hidden if self._estimated else (),
        )
        return Policy(spec, self.actor).to(self.device)

    @property
    def learning_rate(self) -> float:
        """Adam's current step size; reading it waits for a GPU."""
        return float(self.update.adam.rate)

    @property
    def scratch_bytes(self) -> int:
        """Temporary memory in every iteration: the batch as input of the network, and its activations."""
        seen = sum(obs.shape[-1] for obs in self.batch.observations.values())
        return 4 * self.batch.reward.numel() * 2 * (seen + max(self.config.actor_hidden))

    def iterate(self, env: LearnerEnv) -> Report:
        """Collect groups of rollouts, compare the returns in each, take the gradient steps, update the normalizer.

        Raises:
            NonFiniteTerm: a term of the Env or a gradient was not finite; see `Env.drain` and `Update.read`.
        """
        with one_thread(self.device, not self.shards.single):
            return self._iterate(env)

    def _iterate(self, env: LearnerEnv) -> Report:
        c, batch = self.config, self.batch
        self.timers.start()
        with self.timers("simulate"):
            self.start_together(env)
        # Ranks all take the same number of steps: a shard's random numbers must not depend on those beside it.
        until = _AllEnded(env, self.update.read_at_once and self.shards.single)
        collect(env, batch, self.sampler, self.timers, until.note, until)
        with self.timers("learn"):
            valid = alive(batch.done)
            returns = credited(batch.reward * c.reward_scale, valid, c.gamma, c.credit)
            counted = valid if c.credit == "to_go" else None
            advantage = group_advantage(returns, c.group_size, c.baseline, c.normalize, counted, self.shards)
            measured = self._measured(returns[0], valid)
            weight = weights(valid, c.length, self.shards)
            orders, used = self._orders(valid)
            self.update.learn(batch, advantage.expand_as(batch.reward), weight * used, orders)
            if self.estimator is not None:
                self.estimator.learn(batch)
            observed = self.shards.parts(batch.observed(c.actor_groups)[:-1], dim=1)
            rows = [part.flatten(0, 1) for part in observed]
            self.actor.obs_normalizer.absorb(rows, self.shards, self._reflection)
        with self.timers("synchronize"):
            # The Env first: a non-finite reward makes the gradient non-finite too, and the Env names the reward term.
            drained = env.drain()
            losses = self.update.read()
            names = ("rollout_return", "group_spread", "equal_groups", "rollout_length")
            losses |= dict(zip(names, measured.tolist(), strict=True))
        if self.estimator is not None:
            losses["estimate"] = self.estimator.error()
        taken = until.steps * batch.reward.shape[1]
        if self.update.read_at_once:
            counts = [torch.tensor(taken // self.shards.count)] * self.shards.count
            taken = int(self.shards.sum(counts))
        else:
            taken = self.shards.whole(taken)
        return Report(taken, losses, drained, self.timers.read())

    def start_together(self, env: LearnerEnv) -> None:
        """Give each group one state to start in: that of one of its environments, drawn at random, or with
        `rollout_steps=0` the start of a new episode."""
        size, rows = self.config.group_size, torch.arange(self.batch.reward.shape[1], device=self.device)
        drawn = (self.random.rand(len(rows)) * size).long().clamp(max=size - 1)
        first = rows // size * size
        env.restore(env.snapshot(), first + drawn[first])
        if not self.config.rollout_steps:
            env.reset()  # after the copy: levels of curricula belong to the environment, and a group has one

    def _measured(self, returns: Tensor, valid: Tensor) -> Tensor:
        """(4,) what is reported of rollouts with these `returns` (N,) and steps in `valid` (T, N): the mean return, the
        mean spread in a group, the share of groups without any, and the mean length."""
        spread = group_spread(returns, self.config.group_size)
        numbers = returns, spread, (spread == 0).float(), valid.sum(dim=0).float()
        return torch.stack([self._mean(each) for each in numbers])

    def _mean(self, rows: Tensor) -> Tensor:
        """() the mean of numbers (..., N) of all ranks."""
        return self.shards.mean([part.mean() for part in self.shards.parts(rows, dim=-1)])

    def _orders(self, valid: Tensor) -> tuple[list[list[Tensor]], float]:
        """For each epoch a permutation of each shard's samples, and the share of all T N samples that are in it.

        On a GPU these are all, because sizes must not depend on the data; those that are not in `valid` (T, N) have
        the weight 0. A CPU leaves out as many whole minibatches of them as it can."""
        steps, envs = valid.shape
        parts = self.update.parts(valid.numel())
        kept = parts
        if self.update.read_at_once:
            kept = min(parts, max(1, math.ceil(float(self._mean(valid.float())) * parts - 1e-6)))
        size = valid.numel() // self.shards.count // parts * kept
        flat = valid.flatten()

        def used(order: Tensor) -> Tensor:
            if kept == parts:
                return order
            return order[torch.argsort(~flat[order], stable=True)[:size].sort().values]

        drawn = (
            permutations(self.random, self.shards, (steps, envs), steps * envs)
            for _ in range(self.config.num_epochs)
        )
        orders = [[used(order) for order in epoch] for epoch in drawn]
        return orders, sum(len(order) for order in orders[0]) / valid.numel()

    # ------------------------------------------------------------------ saving

    def state_dict(self) -> dict[str, Any]:
        """Weights under rsl_rl's names, and what exact resume needs."""
        return {
            "actor_state_dict": self.actor.state_dict(),
            "optimizer_state_dict": self.update.adam.state_dict(),
            "learning_rate": self.learning_rate,
            "random": self.random.state(),
            **({} if self.sampler.noise is None else {"noise": self.sampler.noise}),
            **({} if self.estimator is None else {"estimator": self.estimator.state_dict()}),
            **({} if self.update.reference is None else {"reference_coef": float(self.update.coefficient)}),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load the actor of a checkpoint, also of PPO's or SHAC's; optimizer, learning rate and random state where it
        has them and they are this learner's.

        Raises:
            ValueError: the actor is recurrent, or the weights need a gait clock, see `require_unfolded`.
        """
        c = self.config
        require_unfolded(state)
        actor = dict(state["actor_state_dict"])
        require_same_rnn(actor, "none", 0, 0)
        if "distribution.log_std_param" in actor:  # SHAC learns the logarithm
            actor["distribution.std_param"] = actor.pop("distribution.log_std_param").exp()
        self.actor.load_state_dict(actor)
        if self.update.equivariance is not None:
            self.update.equivariance.take(self.actor)
        self.sampler.noise = None if "noise" not in state else state["noise"].to(self.device)
        if self.estimator is not None:
            self.estimator.load_state_dict(state.get("estimator"))
        if "reference_coef" in state and c.reference_kl:
            self.update.coefficient.fill_(state["reference_coef"])
        if "optimizer_state_dict" in state:
            self.update.adam.load_state_dict(state["optimizer_state_dict"])
            self.update.clear_graphs()
        rate = state.get("learning_rate", c.learning_rate)
        self.update.adam.set_rate(min(max(rate, c.min_learning_rate), c.max_learning_rate))
        if "random" in state and self.random.fits(state["random"]):
            self.random.set_state(state["random"])


class _AllEnded:
    """Ends a rollout once an episode has ended in each environment: what follows is not learned from."""

    def __init__(self, env: LearnerEnv, active: bool) -> None:
        """`active`: whether it looks; on a GPU each look would wait for the device."""
        self.steps, self._active = 0, active
        self._ended = torch.zeros(env.num_envs, dtype=torch.bool, device=env.device)

    def note(self, done: Tensor) -> None:
        """A step was taken, with `done` (N,) bool."""
        self.steps += 1
        if self._active:
            self._ended |= done

    def due(self) -> bool:
        """Whether all have ended."""
        return self._active and bool(self._ended.all())

    def finished(self) -> None:
        """The rollout has its full length."""


def _require_groups(env: LearnerEnv, size: int, shards: Shards) -> None:
    """Raise ConfigError where environments cannot be in groups of this size."""
    if not isinstance(env, Env):
        raise ConfigError(
            "learner=grpo starts a group in one state, which it restores: it needs a RoboLearn task, in this process; "
            "use learner=ppo with a third-party environment or mode=async"
        )
    if env.agents > 1:
        raise ConfigError(
            f"learner=grpo does not know several agents, which {type(env.task).__name__} has; use learner=ppo"
        )
    share = env.num_envs // shards.count
    if share % size:
        among = "" if shards.single else f" in each of shards={shards.total}"
        fits = max(1, round(share / size)) * size * shards.total
        raise ConfigError(
            f"num_envs={shards.whole(env.num_envs)} does not make groups of learner.group_size={size}{among}; use "
            f"num_envs={fits}"
        )


def _empty_batch(env: LearnerEnv, config: GRPOConfig) -> Batch:
    """A batch for the steps of a rollout, with the groups that actor, estimator and reference take."""
    groups = (*config.actor_groups, *config.estimated_groups, *groups_of(config.reference))
    return Batch.empty(env, config.rollout_steps or env.max_episode_steps, groups)
