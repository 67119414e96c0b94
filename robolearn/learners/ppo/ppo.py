"""PPO with a privileged critic: Schulman et al. (2017), "Proximal Policy Optimization Algorithms".

The actor observes what a robot can measure, the critic everything (Pinto et al., 2017, "Asymmetric Actor Critic for
Image-Based Robot Learning"). Read `iterate` first.
"""

from __future__ import annotations

import copy
from typing import Any, ClassVar

import torch
from torch import nn

from robolearn.core.graphs import Graphed
from robolearn.core.learner_env import LearnerEnv
from robolearn.core.shards import ONE, Shards
from robolearn.core.threads import one_thread
from robolearn.core.timers import Timers
from robolearn.envs.state import Tensor
from robolearn.errors import ConfigError
from robolearn.learners.equivariance import choose_symmetry
from robolearn.learners.estimator import Estimator, estimated_sides
from robolearn.learners.learner import Report
from robolearn.learners.networks import build_model, deviation, require_unfolded, rnn_of
from robolearn.learners.policy import Policy, PolicySpec
from robolearn.learners.ppo.collector import build_actor, empty_batch, keep_last
from robolearn.learners.ppo.config import PPOConfig
from robolearn.learners.ppo.correction import NONE, NUMBERS, Correction, correction, vtrace
from robolearn.learners.ppo.horizon import Horizon
from robolearn.learners.ppo.sampler import Sampler
from robolearn.learners.ppo.update import Update
from robolearn.learners.precision import autocast, choose_precision
from robolearn.learners.preference.rewards import preference_rewards
from robolearn.learners.recurrent import ActorRecurrence, require_same_rnn
from robolearn.learners.reference import Reference
from robolearn.learners.rollout import BatchSource, collect, permutations, side_by_side
from robolearn.learners.selfplay.self_play import self_play_of
from robolearn.learners.workers import Workers, map_each
from robolearn.tasks.mdp.context import Random
from robolearn.tasks.mdp.symmetry import Symmetry, joined


def gae(
    reward: Tensor,
    value: Tensor,
    last_value: Tensor,
    done: Tensor,
    gamma: float | Tensor,
    lam: float,
    event: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Generalized advantage estimation (Schulman et al., 2016, eq. 16) and the returns.

    Args:
        reward: (T, N); at a time-out it includes the discounted value of the state that the episode ended in.
        value: (T, N) values of the states before each step.
        last_value: (N,) values of the states after the last step.
        done: (T, N) bool; no advantage crosses the end of an episode.
        gamma: discount, a number or a tensor ().
        lam: lambda; 0 is one-step TD, 1 the Monte-Carlo return.
        event: (T, N) bool; steps before such a one are valued by the state that it started in. It is a return with
            a lambda for each step, 0 there (Sutton and Barto, 2018, "Reinforcement Learning", ch. 12.8).

    Returns:
        Advantages and returns, (T, N) each.
    """
    alive = 1.0 - done.to(reward.dtype)
    advantage = torch.empty_like(reward)
    following, carried = last_value, torch.zeros_like(last_value)
    for t in reversed(range(len(reward))):
        delta = reward[t] + gamma * alive[t] * following - value[t]
        carried = delta + gamma * lam * alive[t] * carried
        advantage[t], following = carried, value[t]
        if event is not None:
            carried = torch.where(event[t], 0.0, carried)
    return advantage, advantage + value


TOGETHER = "task.ends_together=true (of a RoboLearn task: ends_together = True in its class)"
"""What makes all agents of a world end at once, for messages."""


def _require_fit(config: PPOConfig) -> None:
    """Raise ConfigError for settings that do not work where some steps are not the policy's, see `StepResult.valid`."""
    where = "in these environments a reset takes a separate step, or an agent may end before others, and"
    how = f"use same-step autoreset, {TOGETHER} where agents end together, or"
    if config.rnn != "none":
        raise ConfigError(
            f"learner.rnn={config.rnn}: {where} the recurrent state would be updated there; {how} learner.rnn=none"
        )
    if config.num_steps == 1:
        raise ConfigError(
            f"learner.num_steps={config.num_steps}: {where} a batch may hold nothing else; {how} learner.num_steps=2 "
            "or more"
        )


def _team_of(env: LearnerEnv) -> int:
    """Number of agents of a world, which are neighbouring environments.

    Raises:
        ConfigError: there is one agent, or an agent may end before others.
    """
    agents: int = getattr(env, "agents", 1)
    if agents < 2:
        raise ConfigError(
            "learner.team_value=true: no two agents share this policy; leave learner.team_value out"
        )
    if env.resets_take_a_step:
        raise ConfigError(
            "learner.team_value=true: an agent may end before others here, and has no value from then on; use "
            f"{TOGETHER} where agents end together, or leave learner.team_value out"
        )
    return agents


class PPO:
    """A learner for one Env; `iterate` collects a batch and learns from it."""

    config_class: ClassVar[type] = PPOConfig
    requires: ClassVar[frozenset[str]] = frozenset()
    learns_from_others: ClassVar[bool] = True
    """Whether it can learn from batches that other processes collect, see `BatchSource`."""
    learns_from_cut_rollouts: ClassVar[bool] = True
    """Whether it can learn from a batch of which some steps are missing, see `Batch.end_at`."""

    def __init__(self, env: LearnerEnv, config: PPOConfig, seed: int = 1, shards: Shards = ONE) -> None:
        self.config, self.shards = config, shards
        if not shards.single:
            shards.uneven = env.resets_take_a_step
        if env.resets_take_a_step:
            _require_fit(config)
        self.device = env.device
        self._team = _team_of(env) if config.team_value else 1
        self.self_play = self_play_of(env, config, seed, shards, config.rnn, config.preferences)
        """Past policies as opponents; None without any, see `SelfPlayConfig`."""
        whole = getattr(env, "whole", env)
        env = env if self.self_play is None else self.self_play.around(env)
        self.random = Random(shards.seeds(seed), self.device)
        hidden = (*config.actor_hidden, *config.critic_hidden)
        hidden += config.estimator_hidden if config.estimated_groups else ()
        self.symmetry = choose_symmetry(env, config.symmetry, hidden, config.rnn)
        self.preferences = preference_rewards(env, config, config.critic_groups, seed, shards)
        """The reward that is learned from preferences; None without any, see `PreferenceConfig`."""
        more = () if self.preferences is None else self.preferences.terminal_groups
        self.batch = empty_batch(env, config, config.steps_of(shards.whole(env.num_envs)), more)
        self.precision = choose_precision(config.precision)
        widths = {name: obs.shape[1] for name, obs in env.observations.items()}
        self._inputs = {name: widths[name] for name in config.actor_groups}
        critic_inputs = {name: widths[name] for name in config.critic_groups}
        c = config
        self._estimated = sum(widths[name] for name in c.estimated_groups)
        # Of shards with one thread of torch, throughout: its rounding depends on the number of threads.
        with torch.random.fork_rng(devices=[]), one_thread(self.device, not shards.single):
            torch.default_generator.manual_seed(seed)  # torch.manual_seed would reseed GPUs too
            self.actor = build_actor(c, widths, env.num_actions).to(self.device)
            self.critic = build_model(critic_inputs, 1, c.critic_hidden, c.activation, None).to(self.device)
            # A small last layer: the first actions are near zero, at the home pose, whatever the initialization.
            nn.init.orthogonal_(self.actor.mlp[-1].weight, 0.01)
        if self.self_play is not None:
            self.self_play.prepare(self.actor, c.actor_groups, self.precision)
        rnn = rnn_of(self.actor)
        self.recurrence = None if rnn is None else ActorRecurrence(rnn, env.num_envs)
        # Each thread takes a part of a minibatch, or whole shards; gradients through time stay together.
        threads = torch.get_num_threads()
        split = self.device.type == "cpu" and threads > 1 and (self.recurrence is None or not shards.single)
        self.workers = Workers(threads) if split else None
        self._shard_workers = None if shards.single else self.workers
        self.sampler = Sampler(
            *(self.actor, c.actor_groups, self.batch, env.observations, self.random, self.precision),
            *(self.recurrence, c.noise_correlation, shards, self._shard_workers),
        )
        augmented = self.symmetry if c.symmetry == "augment" else None
        exact = None if c.symmetry == "augment" else self.symmetry
        reference = c.reference and Reference(c.reference, env.num_actions, self.device, whole)
        self.update = Update(
            *(self.actor, self.critic, config, self.precision, self.recurrence),
            *(augmented, exact, shards, self.workers, reference or None),
        )
        self.estimator = self._make_estimator(exact)
        """Trains the part of the actor that estimates; None without one, see `PPOConfig.estimated_groups`."""
        self._reflections = {
            groups: None if exact is None else joined([exact.groups[group] for group in groups])
            for groups in (c.actor_groups, c.critic_groups)
        }
        self.averaged = copy.deepcopy(self.actor) if c.average else None
        """The mean of the actor's past weights, see `PPOConfig.average`; None without averaging."""
        self._averaged = 0
        self.horizon = (
            Horizon(c.gamma, c.final_gamma or c.gamma, self.device)
            if c.final_gamma or c.final_std or c.final_kl
            else None
        )
        """The growing discount, see `PPOConfig.final_gamma`; None where nothing follows the curricula."""
        self._estimate = Graphed(self._estimates, self.device)
        self.timers = Timers(self.device)
        env.reset(stagger=True)

    @property
    def policy(self) -> Policy:
        """The current policy: deterministic, without the critic. It shares this learner's weights, or their mean."""
        c = self.config
        spec = PolicySpec(
            self._inputs,
            len(self.actor.distribution.std_param),
            c.actor_hidden,
            c.activation,
            rnn=c.rnn,
            rnn_hidden=c.rnn_hidden,
            rnn_layers=c.rnn_layers,
            estimated=self._estimated,
            estimator_hidden=c.estimator_hidden if self._estimated else (),
        )
        return Policy(spec, self.averaged or self.actor).to(self.device)

    @property
    def learning_rate(self) -> float:
        """Adam's current step size; reading it waits for a GPU."""
        return float(self.update.adam.rate)

    @property
    def discount(self) -> float | Tensor:
        """Discount of the next iteration, a number or a tensor ()."""
        return self.config.gamma if self.horizon is None else self.horizon.discount

    @property
    def scratch_bytes(self) -> int:
        """Temporary memory in every iteration: the batch as input of the networks, and their activations."""
        batch, c = self.batch, self.config
        seen = sum(obs.shape[-1] for obs in batch.observations.values())
        widths = 2 * seen + 2 * max(*c.actor_hidden, *c.critic_hidden)
        return 4 * batch.reward.numel() * widths

    def iterate(self, env: LearnerEnv) -> Report:
        """Collect a batch, estimate advantages, take the gradient steps, update the normalizers.

        On a GPU all of it is queued, and `synchronize` is the first phase that waits.

        Raises:
            NonFiniteTerm: a term of the Env or a gradient was not finite; see `Env.drain` and `Update.read`.
        """
        with one_thread(self.device, not self.shards.single):
            return self._iterate(env)

    def _iterate(self, env: LearnerEnv) -> Report:
        self.timers.start()
        self.collect(env)
        return self.learn(env)

    def learn(self, env: LearnerEnv) -> Report:
        """Learn from the batch that was collected in `env`; the second half of `iterate`."""
        if self.batch.valid is not None and self.shards.single and not bool(self.batch.valid.any()):
            # All agents of this policy had ended before, and their worlds went on.
            return Report(0, {}, env.drain(), self.timers.read())
        with self.timers("learn"):
            if self.preferences is not None:
                self.preferences.relabel(self.batch)
            stale = self._correction()
            value, advantage, returns = self._estimate() if stale is None else self._estimates(stale)
            self.update.learn(self.batch, self._normalized(advantage), returns, value, self.orders(), stale)
            if self.estimator is not None:
                self.estimator.learn(self.batch)
            for groups, network in (
                (self.config.actor_groups, self.actor),
                (self.config.critic_groups, self.critic),
            ):
                observed = self.batch.parts(self.batch.observed(groups)[:-1], self.shards)
                network.obs_normalizer.absorb(observed, self.shards, self._reflections[groups])
            self._average()
        with self.timers("synchronize"):
            # The Env first: a non-finite reward makes the gradient non-finite too, and the Env names the reward term.
            drained = env.drain()
            losses = self.update.read()
            if self.preferences is not None:
                drained |= self.preferences.told()
            if self.self_play is not None:
                drained |= self.self_play.finish(len(self.batch.reward))
        if self.batch.lag is not None:
            losses |= NONE if stale is None else dict(zip(NUMBERS, stale.numbers.tolist(), strict=True))
        if self.estimator is not None:
            losses["estimate"] = self.estimator.error()
        if self.horizon is not None:
            losses["gamma"] = float(self.horizon.discount)
            self.horizon.observe(drained)
            self._calm(self.horizon.progress)
            self.update.follow(self.horizon.progress)
        notes = [] if self.preferences is None else self.preferences.notes()
        return Report(self._steps(drained), losses, drained, self.timers.read(), notes=notes)

    def _steps(self, drained: dict[str, float]) -> int:
        """Steps of all ranks; where rollouts may be cut, the share that was cut is noted beside the Env's numbers."""
        if self.shards.cut is None and not self.shards.uneven:
            return self.shards.whole(self.batch.steps)
        steps = self.shards.total_rows(self.batch.parts(self.batch.reward, self.shards))
        if self.shards.cut is not None:
            drained["rollout/cut"] = 1 - steps / self.shards.whole(self.batch.reward.numel())
        return steps

    @torch.no_grad()
    def _calm(self, progress: float) -> None:
        """Shrink standard deviations above the bound that `final_std` sets after this progress of the curricula, 0 to
        1, by a hundredth at most: the policy should change by learning."""
        c = self.config
        if c.final_std:
            bound = c.init_std ** (1 - progress) * c.final_std**progress
            std = self.actor.distribution.std_param
            std.copy_(torch.minimum(std, (0.99 * std).clamp(min=bound)))

    @torch.no_grad()
    def _average(self) -> None:
        """Add the actor's weights, and the statistics of its normalizer, to their mean."""
        if self.averaged is None:
            return
        self._averaged += 1
        # Early on, when the weights change most, the mean forgets faster.
        kept = min(self.config.average, self._averaged / (self._averaged + 9))
        now, mean = self.actor.state_dict(), self.averaged.state_dict()
        for name, value in mean.items():
            if value.is_floating_point():
                value.lerp_(now[name], 1 - kept)
            else:
                value.copy_(now[name])

    def collect(self, env: LearnerEnv) -> None:
        """Fill `batch` with the next T steps and the observations after them."""
        if self.self_play is not None:
            env = self.self_play.begun(env)
        if isinstance(env, BatchSource):
            # Also the state of the generator: an actor without lag continues the same random numbers.
            weights = {"actor": self.actor.state_dict(), "random": self.random.state()}
            if self.averaged is not None:
                weights["averaged"] = self.averaged.state_dict()
            taken = env.gather(self.batch, weights, self.timers)
            if "random" in taken:
                self.random.set_state(taken["random"])
            self.sampler.noise = taken.get("noise")
            return
        collect(env, self.batch, self.sampler, self.timers, self.sampler.reset_state, self.shards.cut)
        with self.timers("infer"):
            keep_last(env, self.batch)

    def orders(self) -> list[list[Tensor]]:
        """For each epoch a permutation of each shard's samples, or environments if the actor is recurrent; see
        `permutations`."""
        # All at once: an early stop must not change the random numbers drawn after it.
        steps, envs = self.batch.reward.shape
        size = (1 if self.recurrence is not None else steps), envs
        epochs = range(self.config.num_epochs)
        return [
            [
                self._taken(order, generator)
                for order, generator in zip(
                    permutations(self.random, self.shards, size, size[0] * envs),
                    self.random.generators,
                    strict=True,
                )
            ]
            for _ in epochs
        ]

    def _taken(self, order: Tensor, generator: torch.Generator) -> Tensor:
        """The permutation with invalid samples replaced by valid ones among it, drawn at random."""
        if self.batch.valid is None:
            return order
        valid = self.batch.valid.flatten()[order]
        steps = order[valid].sort().values
        drawn = torch.randint(len(steps), order.shape, generator=generator, device=self.device)
        return torch.where(valid, order, steps[drawn])

    # ------------------------------------------------------------------ estimating

    @property
    def _events(self) -> Tensor | None:
        """(T, N) bool: steps that teach nothing of their actions, see `PPOConfig.skip_events`; None without any."""
        return self.batch.exogenous if self.config.skip_events else None

    @torch.no_grad()
    def _estimates(self, stale: Correction | None = None) -> tuple[Tensor, Tensor, Tensor]:
        """Values, advantages and returns of the batch, (T, N) each."""
        value, reward = self._evaluate()
        given = (reward, value[:-1], value[-1], self.batch.done, self.discount, self.config.lam)
        if stale is None:
            advantage, returns = gae(*given, event=self._events)
        else:
            advantage, returns = vtrace(*given, stale.rho, stale.c, event=self._events)
        return value[:-1], advantage, returns

    @torch.no_grad()
    def _correction(self) -> Correction | None:
        """The correction of a batch that an older policy has collected; None where the current one has."""
        c = self.config
        if not self.batch.stale:
            return None
        with autocast(self.device, self.precision):
            seen = self.actor.obs_normalizer(self.batch.observed(c.actor_groups)[:-1])
            mean = self.actor.mlp(seen).float()
        return correction(
            self.batch, mean, deviation(self.actor), c.max_rho, c.max_trace, c.proximal == "current"
        )

    @torch.no_grad()
    def _evaluate(self) -> tuple[Tensor, Tensor]:
        """Values (T + 1, N) in one pass, and rewards (T, N) to which a time-out adds the discounted value of the
        state that the episode ended in (Pardo et al., 2018, "Time Limits in Reinforcement Learning")."""
        reward = self.batch.reward * self.config.reward_scale
        observed = self.batch.observed(self.config.critic_groups)
        value = torch.cat(
            map_each(self._shard_workers, self._value, self.shards.parts(observed, dim=1)), dim=1
        )
        reward = reward + self.discount * self._terminal_value()
        return (self._of_team(value), self._of_team(reward)) if self.config.team_value else (value, reward)

    def _of_team(self, rows: Tensor) -> Tensor:
        """The mean (T, N) over the agents of each world, which are neighbours."""
        each = rows.view(len(rows), -1, self._team)
        # Added one after another: how a sum over a dimension rounds may depend on the number of rows.
        total = each[:, :, 0]
        for k in range(1, self._team):
            total = total + each[:, :, k]
        return (total / self._team).repeat_interleave(self._team, dim=1)

    def _terminal_value(self) -> Tensor:
        """Values (T, N) of the states that episodes ended in by a time-out, and 0 elsewhere."""
        groups = {name: self.shards.parts(obs, dim=1) for name, obs in self.batch.terminal.items()}
        parts = [
            (truncated, {name: obs[i] for name, obs in groups.items()})
            for i, truncated in enumerate(self.shards.parts(self.batch.truncated, dim=1))
        ]
        return torch.cat(map_each(self._shard_workers, self._value_of_ended, parts), dim=1)

    @torch.no_grad()
    def _value_of_ended(self, part: tuple[Tensor, dict[str, Tensor]]) -> Tensor:
        """Those of a shard (T, n), of `truncated` (T, n) and the terminal observations (T, n, D) by group."""
        truncated, terminal = part
        terminal = {name: obs.flatten(0, 1) for name, obs in terminal.items()}
        if not self.update.read_at_once:
            # The host does not know these rows without a sync: evaluate all rows in one pass of fixed size.
            value = self._value(self._critic_obs(terminal)).view_as(truncated)
            return torch.where(truncated, value, 0.0)
        value = torch.zeros(truncated.shape)
        rows = truncated.flatten().nonzero().squeeze(-1)
        if len(rows):
            ended = self._critic_obs({name: obs.index_select(0, rows) for name, obs in terminal.items()})
            value.view(-1).index_copy_(0, rows, self._value(ended))
        return value

    def _critic_obs(self, observations: dict[str, Tensor]) -> Tensor:
        """The critic's groups side by side, (M, D)."""
        return side_by_side(observations, self.config.critic_groups)

    @torch.no_grad()
    def _value(self, obs: Tensor) -> Tensor:
        with autocast(self.device, self.precision):
            return self.critic.mlp(self.critic.obs_normalizer(obs)).float().squeeze(-1)

    def _normalized(self, advantage: Tensor) -> Tensor:
        """Advantages at mean 0 and variance 1 over the whole batch of all ranks; those of events are 0
        and not counted."""
        events = self._events

        def mean_of(rows: Tensor) -> Tensor:
            return self.shards.mean([part.mean() for part in self.batch.parts(rows, self.shards)])

        if events is None:
            mean = mean_of(advantage)
            variance = mean_of((advantage - mean).square())
            return (advantage - mean) / (variance.sqrt() + 1e-8)
        usual = (~events).to(advantage.dtype)  # weights, not rows: sizes must not depend on the data
        share = mean_of(usual).clamp(min=1e-8)
        mean = mean_of(usual * advantage) / share
        variance = mean_of(usual * (advantage - mean).square()) / share
        return torch.where(events, 0.0, (advantage - mean) / (variance.sqrt() + 1e-8))

    # ------------------------------------------------------------------ the rest

    def _make_estimator(self, exact: Symmetry | None) -> Estimator | None:
        c = self.config
        if not c.estimated_groups:
            return None
        return Estimator(
            self.actor, c, self.random, estimated_sides(exact, c), self.shards, self._shard_workers
        )

    def state_dict(self) -> dict[str, Any]:
        """Weights under rsl_rl's names, so that its runner loads them, and what exact resume needs."""
        return {
            "actor_state_dict": self.actor.state_dict(),
            "critic_state_dict": self.critic.state_dict(),
            "optimizer_state_dict": self.update.adam.state_dict(),
            "learning_rate": self.learning_rate,
            "random": self.random.state(),
            **(
                {}
                if self.averaged is None
                else {"averaged": self.averaged.state_dict(), "count": self._averaged}
            ),
            **({} if self.sampler.noise is None else {"noise": self.sampler.noise}),
            **({} if self.recurrence is None else {"memory": self.recurrence.now}),
            **({} if self.horizon is None else {"progress": self.horizon.progress}),
            **({} if self.estimator is None else {"estimator": self.estimator.state_dict()}),
            **({} if self.update.reference is None else {"reference_coef": float(self.update.coefficient)}),
            **({} if self.preferences is None else self.preferences.entries()),
            **({} if self.self_play is None else self.self_play.entries()),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load weights and optimizer of a checkpoint of RoboLearn or rsl_rl; learning rate, random state and the
        actor's recurrent state where it has them.

        Raises:
            ValueError: the actor has other recurrent layers, or the weights need a gait clock, see `require_unfolded`.
        """
        c = self.config
        require_unfolded(state)
        require_same_rnn(state["actor_state_dict"], c.rnn, c.rnn_hidden, c.rnn_layers)
        actor = dict(state["actor_state_dict"])
        if "distribution.log_std_param" in actor:  # SHAC learns the logarithm
            actor["distribution.std_param"] = actor.pop("distribution.log_std_param").exp()
        self.actor.load_state_dict(actor)
        self.critic.load_state_dict(state["critic_state_dict"])
        if self.update.equivariance is not None:
            self.update.equivariance.take(self.actor)
        if self.averaged is not None:
            self.averaged.load_state_dict(state.get("averaged", actor))
            self._averaged = state.get("count", 0)
        self.sampler.noise = None if "noise" not in state else state["noise"].to(self.device)
        if self.estimator is not None:
            self.estimator.load_state_dict(state.get("estimator"))
        if self.preferences is not None:
            self.preferences.load_state_dict(state.get("preferences"), state.get("recent"))
        if self.self_play is not None:
            self.self_play.load_state_dict(state.get("self_play"), state.get("opponents"))
        if self.horizon is not None and "progress" in state:
            self.horizon.set(state["progress"])
            self.update.follow(state["progress"])
        if "reference_coef" in state and c.reference_kl:
            self.update.coefficient.fill_(state["reference_coef"])
        if "optimizer_state_dict" in state:  # shipped policies have none
            self.update.adam.load_state_dict(state["optimizer_state_dict"])
            self.update.clear_graphs()
        rate = state.get("learning_rate", c.learning_rate)
        self.update.adam.set_rate(min(max(rate, c.min_learning_rate), c.max_learning_rate))
        # A GPU's generator has another state than a CPU's; then the run goes on with this learner's seed, not exactly.
        if "random" in state and self.random.fits(state["random"]):
            self.random.set_state(state["random"])
        if self.recurrence is not None:
            self.recurrence.restore(state.get("memory"))
