"""PPO with a central critic: Schulman et al. (2017), "Proximal Policy Optimization Algorithms".

The actor sees what a robot can measure, the critic everything (Pinto et al., 2017, "Asymmetric Actor
Critic"). Read `iterate` first.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import chain
from typing import Any, ClassVar, Literal

import torch
from torch import nn

from robolearn.env import Env, NonFiniteTerm
from robolearn.learners.learner import Reduce, Report, Tensor, alone
from robolearn.learners.models import DeployedPolicy, MirroredClock, build_model, rnn_of
from robolearn.learners.recurrent import ActorMemory, require_same_memory
from robolearn.metrics import Timers
from robolearn.rollout import Batch, collect


@dataclass
class PPOConfig:
    """Proximal policy optimization."""

    num_steps: int = field(default=24, metadata={"min": 1, "max": 4096})
    """Steps of every environment in a batch; with `rnn` also how many steps gradients flow back."""
    num_epochs: int = field(default=4, metadata={"min": 1, "max": 100})
    """Passes over a batch, each with a fresh permutation."""
    minibatch_size: int = field(default=6144, metadata={"min": 2, "max": 10_000_000})
    """Samples in one gradient step, about: a batch is cut into equal parts, with `rnn` of whole environments."""
    learning_rate: float = field(default=1e-3, metadata={"above": 0.0, "max": 1.0})
    """Adam's step size at the start."""
    schedule: Literal["adaptive", "fixed"] = "adaptive"
    """adaptive: the rate follows the measured KL divergence; fixed: it stays."""
    desired_kl: float = field(default=0.01, metadata={"above": 0.0, "max": 10.0})
    """KL divergence from the collecting policy that the last epoch should be near, within a factor of two."""
    max_kl: float = field(default=0.06, metadata={"above": 0.0})
    """Stop the remaining gradient steps of an iteration once the policy has moved this far."""
    min_learning_rate: float = field(default=1e-5, metadata={"above": 0.0})
    """The adaptive rate stays above."""
    max_learning_rate: float = field(default=1e-2, metadata={"above": 0.0})
    """The adaptive rate stays below."""
    gamma: float = field(default=0.99, metadata={"min": 0.0, "max": 1.0})
    """Discount of a step."""
    lam: float = field(default=0.95, metadata={"min": 0.0, "max": 1.0})
    """Lambda of the advantage estimate."""
    clip: float = field(default=0.2, metadata={"above": 0.0, "max": 1.0})
    """How far the probability ratio may leave 1 before it earns nothing more."""
    clip_value_loss: bool = False
    """Clip the value function's change by `clip` too."""
    value_loss_coef: float = field(default=1.0, metadata={"min": 0.0})
    """Weight of the value loss."""
    entropy_coef: float = field(default=0.003, metadata={"min": 0.0})
    """Weight of the entropy bonus."""
    max_grad_norm: float = field(default=1.0, metadata={"above": 0.0})
    """Largest gradient norm, for actor and critic apart."""
    init_std: float = field(default=0.5, metadata={"above": 0.0, "max": 10.0})
    """Standard deviation of the first actions."""
    actor_hidden: tuple[int, ...] = (256, 128)
    """Hidden layers of the actor."""
    critic_hidden: tuple[int, ...] = (256, 128)
    """Hidden layers of the critic."""
    activation: Literal["elu", "relu", "swish", "tanh"] = "elu"
    """Activation of both."""
    rnn: Literal["none", "gru", "lstm"] = "none"
    """Memory of the actor, between what it observes and its hidden layers; the critic needs none."""
    rnn_hidden: int = field(default=128, metadata={"min": 1, "max": 8192})
    """Units in a layer of the memory."""
    rnn_layers: int = field(default=1, metadata={"min": 1, "max": 8})
    """Layers of the memory."""
    symmetry: Literal["auto", "none", "clock", "augment"] = "auto"
    """Left-right symmetry. clock: play the second half of the gait as the mirror of the first; augment:
    learn from every sample and its mirror image; auto: the first of them that the task allows."""
    precision: Literal["auto", "fp32", "bf16"] = "auto"
    """Arithmetic of the networks; auto takes bf16 where the processor multiplies it in hardware. A memory has fp32."""

    def validate(self) -> None:
        """Raise ValueError for numbers that contradict each other."""
        if not self.min_learning_rate <= self.learning_rate <= self.max_learning_rate:
            raise ValueError(
                f"learning_rate={self.learning_rate:g} is not between min_learning_rate="
                f"{self.min_learning_rate:g} and max_learning_rate={self.max_learning_rate:g}; widen them"
            )
        if self.max_kl < self.desired_kl:
            raise ValueError(f"max_kl={self.max_kl:g} is below desired_kl={self.desired_kl:g}; raise it")
        for name in ("actor_hidden", "critic_hidden"):
            sizes = getattr(self, name)
            if not sizes or min(sizes) < 1 or max(sizes) > 65536:
                raise ValueError(f"{name}={list(sizes)} must be one or more layer sizes within 1..65536")


def gae(
    reward: Tensor, value: Tensor, last_value: Tensor, done: Tensor, gamma: float, lam: float
) -> tuple[Tensor, Tensor]:
    """Generalized advantage estimation (Schulman et al., 2016, eq. 16) and the returns it implies.

    Args:
        reward: (T, N); for a time-out it already holds the discounted value of the state it ended in.
        value: (T, N) of the states before each step.
        last_value: (N,) of the state after the last step.
        done: (T, N) bool; nothing flows back across an episode's end.
        gamma: discount.
        lam: lambda; 0 is one-step TD, 1 the Monte-Carlo return.

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
    return advantage, advantage + value


def clipped_surrogate(
    log_prob: Tensor, old_log_prob: Tensor, advantage: Tensor, clip: float
) -> tuple[Tensor, Tensor]:
    """PPO's loss (Schulman et al., 2017, eq. 7, negated) and the share of samples it clips."""
    ratio = (log_prob - old_log_prob).exp()
    clipped = ratio.clamp(1 - clip, 1 + clip)
    loss = -torch.min(ratio * advantage, clipped * advantage).mean()
    return loss, ((ratio - 1).abs() > clip).float().mean()


class PPO:
    """One learner for one Env; `iterate` collects a batch and learns from it."""

    config_class: ClassVar[type] = PPOConfig
    requires: ClassVar[frozenset[str]] = frozenset()

    def __init__(self, env: Env, config: PPOConfig, seed: int = 1, reduce: Reduce = alone) -> None:
        self.config, self.reduce = config, reduce
        self.device = env.device
        self.random = torch.Generator(self.device).manual_seed(seed)
        self.symmetry, self.clock = self._choose_symmetry(env)
        self.precision = self._choose_precision()
        widths = {name: obs.shape[1] for name, obs in env.observations.items()}
        c = config
        memory = (c.rnn, c.rnn_hidden, c.rnn_layers)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.actor = build_model(
                "policy", widths["policy"], env.num_actions, c.actor_hidden, c.activation, c.init_std, *memory
            ).to(self.device)
            self.critic = build_model("critic", widths["critic"], 1, c.critic_hidden, c.activation, None).to(
                self.device
            )
            # A small first policy: actions start at home, not at the whim of the initialization.
            nn.init.orthogonal_(self.actor.mlp[-1].weight, 0.01)
        rnn = rnn_of(self.actor)
        self.memory = None if rnn is None else ActorMemory(rnn, env.num_envs)
        self.learning_rate = c.learning_rate
        self.optimizer = torch.optim.Adam(
            chain(self.actor.parameters(), self.critic.parameters()), lr=c.learning_rate, fused=True
        )
        self.batch = Batch.empty(env, c.num_steps)
        self.timers = Timers()
        env.reset(stagger=True)

    @property
    def policy(self) -> DeployedPolicy:
        """The policy as it stands: deterministic, without the critic."""
        return DeployedPolicy(self.actor, self.clock)

    def iterate(self, env: Env) -> Report:
        """Collect a batch, estimate advantages, take the gradient steps, update the normalizers."""
        self.timers.start()
        collect(env, self.batch, self._act, self.timers, self.memory.forget if self.memory else None)
        with self.timers("learn"):
            self._fold_critic(env.observations["critic"], len(self.batch.reward))
            value, reward = self._evaluate()
            advantage, returns = gae(
                reward, value[:-1], value[-1], self.batch.done, self.config.gamma, self.config.lam
            )
            losses = self._update(self._normalized(advantage), returns, value[:-1])
            self.actor.obs_normalizer.absorb(self.batch.policy.flatten(0, 1), self.reduce)
            self.critic.obs_normalizer.absorb(self.batch.critic[:-1].flatten(0, 1), self.reduce)
        steps = self.batch.reward.numel()
        return Report(steps, losses, env.drain(), self.timers.read())

    # ------------------------------------------------------------------ collecting

    @torch.no_grad()
    def _act(self, observations: dict[str, Tensor], t: int) -> Tensor:
        """Draw actions (N, A) for the robot; what was seen and decided is stored folded by the clock."""
        obs = observations["policy"]
        flipped = self.clock.second_half(obs) if self.clock else None
        if self.clock and flipped is not None:
            obs = self.clock.fold(obs, "policy", flipped)
        self._fold_critic(observations["critic"], t)
        with self._autocast():
            seen = self.actor.obs_normalizer(obs)
            mean = self.actor.mlp(seen if self.memory is None else self.memory.step(seen, t)).float()
        self.actor.distribution.update(mean)
        noise = torch.randn(mean.shape, generator=self.random, device=self.device)
        action = mean + self.actor.distribution.std * noise
        batch = self.batch
        batch.policy[t], batch.action[t], batch.mean[t] = obs, action, mean
        return action if flipped is None or not self.clock else self.clock.unfold(action, flipped)

    def _fold_critic(self, obs: Tensor, t: int) -> None:
        self.batch.critic[t] = self._folded_critic(obs)

    def _folded_critic(self, obs: Tensor) -> Tensor:
        if self.clock is None:
            return obs
        return self.clock.fold(obs, "critic", self.clock.second_half(obs, "critic"))

    # ------------------------------------------------------------------ learning

    @torch.no_grad()
    def _evaluate(self) -> tuple[Tensor, Tensor]:
        """Values (T + 1, N) in one pass, and rewards (T, N) where a time-out adds the discounted value of
        the very state it ended in (Pardo et al., 2018, "Time Limits in Reinforcement Learning")."""
        value = self._value(self.batch.critic)
        reward = self.batch.reward.clone()
        for t, rows, obs in self.batch.truncated:
            reward[t, rows] += self.config.gamma * self._value(self._folded_critic(obs))
        return value, reward

    def _value(self, obs: Tensor) -> Tensor:
        with self._autocast():
            return self.critic.mlp(self.critic.obs_normalizer(obs)).float().squeeze(-1)

    def _normalized(self, advantage: Tensor) -> Tensor:
        """Advantages at mean 0 and variance 1 over the whole batch of all ranks."""
        mean = self.reduce(advantage.mean())
        variance = self.reduce((advantage - mean).square().mean())
        return (advantage - mean) / (variance.sqrt() + 1e-8)

    def _update(self, advantage: Tensor, returns: Tensor, value: Tensor) -> dict[str, float]:
        c, batch = self.config, self.batch
        with torch.no_grad():
            self.actor.distribution.update(batch.mean)
            old_std = self.actor.distribution.std[0, 0].clone()
            old_log_prob = self.actor.distribution.log_prob(batch.action)
            dtype = torch.bfloat16 if self.precision == "bf16" else torch.float32
            # Normalizers stand still during an update, so each sample is normalized once.
            data = {
                "policy": self.actor.obs_normalizer(batch.policy).to(dtype),
                "critic": self.critic.obs_normalizer(batch.critic[:-1]).to(dtype),
                "action": batch.action,
                "mean": batch.mean,
                "log_prob": old_log_prob,
                "advantage": advantage,
                "returns": returns,
                "value": value,
            }
        size = returns.numel()
        parts = max(1, round(size / c.minibatch_size))
        units = size if self.memory is None else returns.shape[1]
        epochs: list[list[dict[str, float]]] = []
        stopped = False
        for _ in range(c.num_epochs):
            epochs.append([])
            order = torch.randperm(units, generator=self.random, device=self.device)
            for rows in order.chunk(parts):
                if self.memory is None:
                    part = {name: x.flatten(0, 1).index_select(0, rows) for name, x in data.items()}
                else:
                    part = self.memory.part(data, batch.done, rows)
                losses = self._gradient_step(part, old_std)
                if losses is None:
                    stopped = True
                    break
                epochs[-1].append(losses)
            if stopped:
                break
        self._steer_rate(stopped, _mean(epochs[-1]).get("kl", 0.0))
        steps = [losses for epoch in epochs for losses in epoch]
        out = _mean(steps)
        explained = 1 - (returns - value).var(correction=0) / returns.var(correction=0).clamp(min=1e-8)
        return out | {
            "learning_rate": self.learning_rate,
            "gradient_steps": float(len(steps)),
            "std": float(self.actor.distribution.std.detach().mean()),
            "explained_variance": float(explained),
        }

    def _gradient_step(self, part: dict[str, Tensor], old_std: Tensor) -> dict[str, float] | None:
        """One minibatch; None, and nothing changed, where the policy has moved too far already."""
        c, actor, critic = self.config, self.actor, self.critic
        if self.symmetry is not None and self.clock is None:
            part = self._augmented(part)
        with self._autocast():
            mean = actor.mlp(part["policy"] if self.memory is None else self.memory.replay(part))
            value = critic.mlp(part["critic"])
        mean, value = mean.float(), value.float().squeeze(-1)
        actor.distribution.update(mean)

        # How far has the policy moved since it collected? Too far: stop before making it worse.
        with torch.no_grad():
            std = actor.distribution.std
            kl = actor.distribution.kl_divergence((part["mean"], old_std.expand_as(mean)), (mean, std)).mean()
            kl = float(self.reduce(kl))
        if kl > c.max_kl:
            return None

        # Losses.
        log_prob = actor.distribution.log_prob(part["action"])
        surrogate, clipped = clipped_surrogate(log_prob, part["log_prob"], part["advantage"], c.clip)
        value_loss = (value - part["returns"]).square()
        if c.clip_value_loss:
            near = part["value"] + (value - part["value"]).clamp(-c.clip, c.clip)
            value_loss = torch.max(value_loss, (near - part["returns"]).square())
        value_loss = value_loss.mean()
        entropy = actor.distribution.entropy.mean()
        loss = surrogate + c.value_loss_coef * value_loss - c.entropy_coef * entropy

        # Step.
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        for parameter in chain(actor.parameters(), critic.parameters()):
            if parameter.grad is not None:
                self.reduce(parameter.grad)
        norms = [nn.utils.clip_grad_norm_(m.parameters(), c.max_grad_norm) for m in (actor, critic)]
        if not torch.isfinite(norms[0] + norms[1]):
            raise NonFiniteTerm(
                f"the gradient is not finite (surrogate {surrogate.item():g}, value loss {value_loss.item():g}); "
                "lower learner.learning_rate, or look at the reward terms in metrics.jsonl"
            )
        self.optimizer.step()
        names = ("surrogate", "value", "entropy", "kl", "clip_fraction")
        return dict(
            zip(names, (surrogate.item(), value_loss.item(), entropy.item(), kl, clipped.item()), strict=True)
        )

    def _augmented(self, part: dict[str, Tensor]) -> dict[str, Tensor]:
        """The minibatch and its mirror image: Mittal et al. (2024), "Symmetry Considerations for Learning
        Task Symmetric Robot Policies"."""
        assert self.symmetry is not None
        normal = {"policy": self.actor.obs_normalizer, "critic": self.critic.obs_normalizer}
        mirrored = dict(part)
        for group, normalizer in normal.items():
            scale = normalizer._std + normalizer.eps
            raw = part[group].float() * scale + normalizer._mean
            mirrored[group] = normalizer(self.symmetry.groups[group](raw)).to(part[group].dtype)
        mirrored["action"] = self.symmetry.action(part["action"])
        mirrored["mean"] = self.symmetry.action(part["mean"])
        return {name: torch.cat((x, mirrored[name])) for name, x in part.items()}

    # ------------------------------------------------------------------ the rest

    def _steer_rate(self, stopped: bool, kl: float) -> None:
        """Change Adam's step size once an iteration, by how far its last epoch ended from `desired_kl`.

        Once, where others do so after every minibatch: the divergence is measured from the policy that
        collected, so within an iteration it only grows, and the rate would swing with it.
        """
        c = self.config
        if c.schedule == "fixed":
            return
        if stopped or kl > 2 * c.desired_kl:
            rate = self.learning_rate / 1.5
        elif kl < c.desired_kl / 2:
            rate = self.learning_rate * 1.5
        else:
            return
        self._set_rate(rate)

    def _set_rate(self, rate: float) -> None:
        self.learning_rate = min(max(rate, self.config.min_learning_rate), self.config.max_learning_rate)
        for group in self.optimizer.param_groups:
            group["lr"] = self.learning_rate

    def _choose_symmetry(self, env: Env) -> tuple[Any, MirroredClock | None]:
        wanted = self.config.symmetry
        symmetry = env.symmetry() if wanted != "none" else None
        if symmetry is None:
            if wanted in ("clock", "augment"):
                raise ValueError(
                    f"learner.symmetry={wanted}: this task states no symmetry; use learner.symmetry=none"
                )
            return None, None
        if wanted == "augment" and self.config.rnn != "none":
            raise ValueError(
                "learner.symmetry=augment: what the mirror image would remember is not known; "
                f"use learner.symmetry=none (or clock, for a gait) with learner.rnn={self.config.rnn}"
            )
        if wanted == "clock" and symmetry.clock is None:
            raise ValueError(
                "learner.symmetry=clock: this task has no gait clock; use learner.symmetry=augment"
            )
        clock = MirroredClock(symmetry) if symmetry.clock is not None and wanted != "augment" else None
        return (symmetry, clock) if clock is not None or self.config.rnn == "none" else (None, None)

    def _choose_precision(self) -> str:
        if self.config.precision != "auto":
            return self.config.precision
        if self.device.type == "cpu":
            # Without a bf16 multiplier (AMX, or AVX-512's own) the casts cost more than they save.
            fast = torch.cpu._is_amx_tile_supported() or torch.cpu._is_avx512_bf16_supported()
            return "bf16" if fast else "fp32"
        return "bf16" if torch.cuda.is_bf16_supported() else "fp32"

    def _autocast(self) -> torch.autocast:
        return torch.autocast(self.device.type, torch.bfloat16, enabled=self.precision == "bf16")

    def state_dict(self) -> dict[str, Any]:
        """Weights under rsl_rl's own names, so that its runner loads them, and what exact resume needs."""
        return {
            "actor_state_dict": self.actor.state_dict(),
            "critic_state_dict": self.critic.state_dict(),
            "optimizer_state_dict": self.optimizer.state_dict(),
            "learning_rate": self.learning_rate,
            "random": self.random.get_state(),
            "folded": self.clock is not None,
            **({} if self.memory is None else {"memory": self.memory.now}),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take weights and optimizer from a checkpoint of ours or of rsl_rl's; rate, random state and what
        the actor remembers where it has them.

        Raises:
            ValueError: the actor has another kind of memory, or its weights were learned with `symmetry=clock`
                and this learner has it off, or the reverse: the same shape, but not the same meaning.
        """
        c = self.config
        require_same_memory(state["actor_state_dict"], c.rnn, c.rnn_hidden, c.rnn_layers)
        self.actor.load_state_dict(state["actor_state_dict"])
        self.critic.load_state_dict(state["critic_state_dict"])
        folded = bool(state.get("folded", False))
        if folded != (self.clock is not None):
            learned, fix = ("with", "clock") if folded else ("without", "none")
            raise ValueError(
                f"these weights were learned {learned} a mirrored clock: use learner.symmetry={fix}"
            )
        if "optimizer_state_dict" in state:  # a shipped policy is there to be used, and comes without
            self.optimizer.load_state_dict(state["optimizer_state_dict"])
        self._set_rate(state.get("learning_rate", self.config.learning_rate))
        if "random" in state:
            self.random.set_state(state["random"])
        if self.memory is not None:
            self.memory.restore(state.get("memory"))


def _mean(rows: list[dict[str, float]]) -> dict[str, float]:
    """The mean of each number over some gradient steps; nothing where there were none."""
    return {name: sum(row[name] for row in rows) / len(rows) for name in (rows[0] if rows else ())}
