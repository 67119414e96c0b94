"""Behaviour cloning: a policy learned from recorded episodes (Pomerleau, 1988, "ALVINN").

The actor learns to act as recorded, the critic what rewards followed, so that PPO can start with both. Read `_iterate`
first.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any, ClassVar

import torch
from rsl_rl.models import MLPModel

from robolearn.core.columns import columns_of, units_of
from robolearn.core.env import Env
from robolearn.core.learner_env import LearnerEnv
from robolearn.core.shards import ONE, Shards
from robolearn.envs.state import Tensor
from robolearn.learners.clone.best import Best
from robolearn.learners.clone.config import CloneConfig
from robolearn.learners.clone.samples import Samples, shuffled, streams
from robolearn.learners.clone.update import Cloning
from robolearn.learners.demonstrations.demonstrations import Demonstrations, returns
from robolearn.learners.demonstrations.reading import Wanted, load
from robolearn.learners.imitation.learner import ImitationLearner
from robolearn.learners.imitation.losses import negative_log_likelihood, squared_error
from robolearn.learners.learner import Report
from robolearn.learners.networks import blank_state, deviation
from robolearn.learners.policy import Policy, PolicyRunner
from robolearn.learners.precision import autocast
from robolearn.learners.recurrent import ActorRecurrence, unroll
from robolearn.learners.rollout import Batch

ROWS = 65536
"""Samples that are evaluated at once."""
HALVINGS = 3
"""Times that the step size halves before `CloneConfig.patience` ends."""


class Clone(ImitationLearner):
    """A learner for one Env and its demonstrations; `iterate` passes over them once."""

    config_class: ClassVar[type] = CloneConfig
    config: CloneConfig
    update: Cloning

    def __init__(self, env: LearnerEnv, config: CloneConfig, seed: int = 1, shards: Shards = ONE) -> None:
        super().__init__(env, config, seed, shards)
        c, episodes = config, self._load(env)
        learned, held_out = _divided(episodes, c.held_out, seed)
        self._notes = list(episodes.notes)
        if c.held_out and held_out is None:
            self._notes.append(
                f"learner.held_out={c.held_out:g}: there is one episode only, so none is held out; the last policy is "
                "kept, and training ends with max_iterations"
            )
        self.set_std()
        arrange = shuffled if self.recurrence is None else partial(streams, window=self.steps)
        self.samples = arrange(learned, shards)
        if self.recurrence is not None:
            self.recurrence = ActorRecurrence(self.recurrence.rnn, self.samples.rows.shape[1])
        self.targets = self._targets(learned, self.samples)
        out = episodes.episodes - learned.episodes
        read = f"{episodes.episodes} episodes of {episodes.steps} steps in all, {out} of them held out"
        value = "the critic learns their returns"
        if "returns" not in self.targets:
            value = (
                "the critic is not learned: it lacks rewards, its groups or known returns, or its weight is 0"
            )
        self._notes.insert(0, f"{read}; {value}")
        critic = self.critic if "returns" in self.targets else None
        self.update = Cloning(self.actor, critic, c, *self.given())
        self.estimator = self.make_estimator()
        """Trains the part of the actor that estimates; None without one."""
        for groups, network in ((c.actor_groups, self.actor), (c.critic_groups, critic)):
            if network is not None:
                seen = torch.cat([learned.observations[name] for name in groups], dim=1)
                network.obs_normalizer.absorb(seen, reflection=self.reflection(groups))
        self.held_out = None if held_out is None else arrange(held_out, ONE)
        """Episodes that are not learned from; None without any."""
        self._held_targets = (
            {} if held_out is None or self.held_out is None else self._targets(held_out, self.held_out)
        )
        judged = critic is not None and "returns" in self._held_targets
        self.best = None if held_out is None else Best(self.actor)
        self.best_critic = Best(self.critic) if judged else None
        self.halved = 0
        """Times that the step size was halved."""
        self._acting = PolicyRunner(self.policy)
        env.reset(stagger=True)

    # ------------------------------------------------------------------ an iteration

    def _iterate(self, env: LearnerEnv) -> Report:
        """Pass over the demonstrations, keep the weights if they are the best so far, take some steps of the
        environments."""
        c = self.config
        self.iteration += 1
        with self.timers("learn"):
            self.update.begin()
            self._learn()
            if c.loss == "nll":
                self.keep_std()
            if self.estimator is not None:
                self.estimator.learn(self.samples.batch)
            judged = self._judge()
        due = bool(c.rollout_interval) and self.iteration % c.rollout_interval == 0
        if due:
            self._roll_out(env)
        with self.timers("synchronize"):
            drained = env.drain() if due else {"diverged": 0.0}
            losses = self.update.read()
            losses |= {name: float(number) for name, number in judged.items()}
        if self.update.critic is None:
            losses.pop("value", None)
        if self.estimator is not None:
            losses["estimate"] = self.estimator.error()
        steps = self.shards.whole(env.num_envs) * self.steps if due else 0
        notes, self._notes = self._notes, []
        return Report(steps, losses, drained, self.timers.read(), self._slow_down(), notes)

    def _learn(self) -> None:
        """Gradient steps on all samples; recurrent layers run along the episodes, window by window."""
        if self.recurrence is None:
            batch = self.samples.batch
            self.update.learn(batch, self.targets, self.orders(*batch.reward.shape))
            return
        self.recurrence.restore(None)
        for steps, batch in self.samples.windows(self.steps):
            self.recurrence.begin()
            self._run_along(batch)
            targets = {name: x[steps] for name, x in self.targets.items()}
            self.update.learn(batch, targets, self.orders(*batch.reward.shape))

    @torch.no_grad()
    def _run_along(self, batch: Batch) -> None:
        """Advance the recurrent state through a window, to where the next one begins."""
        assert self.recurrence is not None
        latent = self.actor.obs_normalizer(batch.observed(self.config.actor_groups)[:-1])
        parts = list(zip(self.shards.parts(latent, dim=1), self.shards.rows(latent.shape[1]), strict=True))
        for t, done in enumerate(batch.done):
            for inputs, rows in parts:  # each by itself: rounding depends on the number of rows
                self.recurrence.step(inputs[t], rows)
            self.recurrence.reset(done)

    def _roll_out(self, env: LearnerEnv) -> None:
        """Steps of the environments with the best policy, from which nothing is learned."""
        for _ in range(self.steps):
            with self.timers("infer"):
                action = self._acting(env.observations)
            with self.timers("simulate"):
                done = env.step(action).done
            self._acting.reset(done)

    # ------------------------------------------------------------------ judging

    @torch.no_grad()
    def _judge(self) -> dict[str, Tensor]:
        """Losses () on the episodes that are not learned from, by name; the weights are kept where they are the
        best."""
        if self.held_out is None or self.best is None:
            return {}
        c, batch, targets = self.config, self.held_out.batch, self._held_targets
        mean = self._means(batch)
        counts = targets.get("weight_of_action", torch.ones_like(batch.reward))
        error = (counts * squared_error(mean, batch.action)).mean()
        loss = error
        if c.loss == "nll":
            loss = (counts * negative_log_likelihood(mean, deviation(self.actor), batch.action)).mean()
        self.best.offer(loss)
        found = {"held_out": loss, "held_out_error": error, "held_out_best": self.best.error}
        if self.best_critic is not None:
            value = self._values(batch)
            missed = (targets["weight_of_value"] * (value - targets["returns"]).square()).mean()
            self.best_critic.offer(missed)
            found["held_out_value"] = missed
        return found

    def _means(self, batch: Batch) -> Tensor:
        """The actor's mean actions (T, N, A) for a batch, from the starts of its episodes on."""
        seen = batch.observed(self.config.actor_groups)[:-1]
        with autocast(self.device, self.precision):
            if self.recurrence is None:
                return self._in_parts(self.actor, seen)
            start = blank_state(self.recurrence.rnn, seen.shape[1])
            latent = unroll(self.recurrence.rnn, self.actor.obs_normalizer(seen), start, batch.done)
            return self.actor.mlp(latent).float()

    def _values(self, batch: Batch) -> Tensor:
        """The critic's values (T, N)."""
        with autocast(self.device, self.precision):
            seen = batch.observed(self.config.critic_groups)[:-1]
            return self._in_parts(self.critic, seen).squeeze(-1)

    @staticmethod
    def _in_parts(network: MLPModel, seen: Tensor) -> Tensor:
        """Outputs (T, N, K) for observations (T, N, D)."""
        rows = seen.flatten(0, 1).split(ROWS)
        parts = [network.mlp(network.obs_normalizer(part)).float() for part in rows]
        return torch.cat(parts).view(*seen.shape[:2], -1)

    def _slow_down(self) -> bool:
        """Halve the step size where the policy has not become better for a while; True where training is to end."""
        patience = self.config.patience
        if self.best is None or not patience:
            return False
        since = int(self.best.since)
        if since and since % max(1, patience // HALVINGS) == 0:
            self.halved += 1
            self._set_rate()
        return since >= patience

    def _set_rate(self) -> None:
        self.update.adam.set_rate(self.config.learning_rate * 0.5**self.halved)

    # ------------------------------------------------------------------ demonstrations

    def _load(self, env: LearnerEnv) -> Demonstrations:
        """The demonstrations, on the device.

        Raises:
            ConfigError, MissingError: see `load`.
        """
        c = self.config
        groups = dict.fromkeys((*c.actor_groups, *c.estimated_groups, *c.critic_groups))
        required = {*c.actor_groups, *c.estimated_groups}
        wanted = Wanted(
            {name: self.widths[name] for name in groups},
            env.num_actions,
            tuple(name for name in groups if name not in required),
            getattr(env, "dt", None),
        )
        if isinstance(env, Env):
            scale, offset = units_of(env)
            wanted = replace(wanted, columns=columns_of(env), scale=scale, offset=offset)
        return load(c.paths, wanted, c.keys, c.action_kind).to(self.device)

    def _targets(self, demonstrations: Demonstrations, samples: Samples) -> dict[str, Tensor]:
        """Tables (T, N, ...) by name: what is learned besides observations, see `Cloning.objective`."""
        c = self.config
        targets = {"action": samples.of(demonstrations.action)}
        if samples.share < 1:
            targets["weight_of_action"] = samples.valid / samples.share
        seen = all(name in demonstrations.observations for name in c.critic_groups)
        if demonstrations.reward is None or not seen or not c.value_loss_coef:
            return targets
        found, known = returns(demonstrations, c.gamma, c.reward_scale)
        if bool(known.any()):
            # Of all steps, not of this rank's: ranks must weight alike.
            weight = known.float() / (known.float().mean() * samples.share)
            targets |= {"returns": samples.of(found), "weight_of_value": samples.of(weight)}
        return targets

    def set_std(self) -> None:
        """Set the standard deviation where it is not learned."""
        if self.config.loss == "mse":
            self.actor.distribution.requires_grad_(False)
            with torch.no_grad():
                self.actor.distribution.std_param.fill_(self.config.std)

    # ------------------------------------------------------------------ the rest

    @property
    def policy(self) -> Policy:
        """The best policy so far; the latest one where there is nothing to judge it by."""
        return self.as_policy(self.actor if self.best is None else self.best.kept)

    def state_dict(self) -> dict[str, Any]:
        """The best weights, with which PPO starts, and what exact resume needs: the latest ones too."""
        state = super().state_dict()
        # Not the step size of this learner: PPO reads it.
        state |= {"learning_rate": self.config.ppo_learning_rate, "halved": self.halved}
        if self.best is not None:
            state |= {"actor_state_dict": self.best.kept.state_dict(), "best": self.best.state_dict()}
            state["latest_actor"] = self.actor.state_dict()
        if self.best_critic is not None:
            state |= {"critic_state_dict": self.best_critic.kept.state_dict()}
            state |= {"best_critic": self.best_critic.state_dict(), "latest_critic": self.critic.state_dict()}
        if self.estimator is not None:
            state["estimator"] = self.estimator.state_dict()
        if self._acting.state:
            state["memory"] = self._acting.state
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """See `ImitationLearner.load_state_dict`."""
        super().load_state_dict(state)
        for best, name in ((self.best, "actor"), (self.best_critic, "critic")):
            if best is not None:
                best.kept.load_state_dict(state[f"{name}_state_dict"])
                best.load_state_dict(state.get("best" if name == "actor" else "best_critic"))
                best.network.load_state_dict(state.get(f"latest_{name}", state[f"{name}_state_dict"]))
        self.set_std()
        if self.estimator is not None:
            self.estimator.load_state_dict(state.get("estimator"))
        self.halved = int(state.get("halved", 0))
        self._set_rate()
        self._acting.state = tuple(x.to(self.device) for x in state.get("memory", ()))


def _divided(
    demonstrations: Demonstrations, share: float, seed: int
) -> tuple[Demonstrations, Demonstrations | None]:
    """The episodes to learn from, and those held out: this share of them, at least one; none where there is one
    episode only."""
    count = demonstrations.episodes
    out = min(max(1, round(share * count)), count - 1) if share else 0
    if not out:
        return demonstrations, None
    order = torch.randperm(count, generator=torch.Generator().manual_seed(seed)).tolist()
    return demonstrations.select(sorted(order[out:])), demonstrations.select(sorted(order[:out]))
