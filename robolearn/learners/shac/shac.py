"""SHAC: Xu et al. (2022), "Accelerated Policy Learning with Parallel Differentiable Simulation", ICLR.

The actor follows the gradient of its return, computed through the simulator over a short horizon; beyond the horizon
the critic estimates the return. A short horizon keeps gradients from exploding, and the critic, a smooth function,
smooths the objective. Read `iterate` first.
"""

from __future__ import annotations

import copy
from math import isfinite
from typing import Any, ClassVar

import torch
from torch import nn

from robolearn.core.finite_check import NonFiniteTerm
from robolearn.core.learner_env import LearnerEnv
from robolearn.core.shards import ONE, Shards
from robolearn.core.timers import Timers
from robolearn.envs.state import Tensor
from robolearn.learners.learner import Report
from robolearn.learners.losses import entropy, value_loss
from robolearn.learners.networks import build_model, deviation, require_unfolded
from robolearn.learners.optimizer import DeviceAdam
from robolearn.learners.policy import Policy, PolicySpec
from robolearn.learners.rollout import Batch, side_by_side
from robolearn.learners.shac.config import SHACConfig
from robolearn.tasks.mdp.context import Random


def horizon_return(reward: Tensor, following: Tensor, done: Tensor, gamma: float) -> Tensor:
    """The actor's objective (Xu et al., eq. 5): the discounted return of the horizon, a mean over its steps.

    Args:
        reward: (T, N), with their autograd graph.
        following: (T, N) value of the state after the last step of an episode or of the horizon; 0 after a termination
            and for every other step.
        done: (T, N) bool; the discount starts again at 1 with the next step.
        gamma: discount.

    Returns:
        () the sum over all steps and environments, divided by T N.
    """
    weight, factor = torch.empty_like(reward), torch.ones_like(reward[0])
    for t in range(len(reward)):
        weight[t] = factor
        factor = torch.where(done[t], 1.0, gamma * factor)
    return (weight * (reward + gamma * following)).mean()


def td_lambda(reward: Tensor, next_value: Tensor, done: Tensor, gamma: float, lam: float) -> Tensor:
    """The critic's regression targets (Xu et al., eq. 7 and 8): all k-step returns, weighted by lambda^(k-1).

    As a recursion from the end: R_t = r_t + gamma ((1 - lambda) V_t + lambda R_(t+1)), where V_t is the value of
    the state that step t ended in; after the last step of an episode or of the horizon R_t = r_t + gamma V_t.

    Args:
        reward: (T, N).
        next_value: (T, N) value of the state each step ended in, before any reset; 0 after a termination.
        done: (T, N) bool; no return crosses the end of an episode.
        gamma: discount.
        lam: lambda.

    Returns:
        (T, N).
    """
    returns, following = torch.empty_like(reward), next_value[-1]
    for t in reversed(range(len(reward))):
        mixed = (1.0 - lam) * next_value[t] + lam * following
        returns[t] = following = reward[t] + gamma * torch.where(done[t], next_value[t], mixed)
    return returns


class SHAC:
    """A learner for one Env; `iterate` simulates a horizon and learns from it."""

    config_class: ClassVar[type] = SHACConfig
    requires: ClassVar[frozenset[str]] = frozenset({"gradients"})

    def __init__(self, env: LearnerEnv, config: SHACConfig, seed: int = 1, shards: Shards = ONE) -> None:
        self.config, self.shards, self.device = config, shards, env.device
        if shards.count > 1:
            # One autograd graph holds all environments of a rank.
            raise ValueError(f"learner=shac needs one shard a rank; use shards={len(shards.owners)}")
        self._shard = None if shards.single else 0
        self.random = Random(shards.seeds(seed), self.device)
        c = config
        self.batch = Batch.empty(env, c.num_steps, (*c.actor_groups, *c.critic_groups))
        widths = {name: obs.shape[1] for name, obs in env.observations.items()}
        self._inputs = {name: widths[name] for name in c.actor_groups}
        critic_inputs = {name: widths[name] for name in c.critic_groups}
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(seed)  # torch.manual_seed would reseed GPUs too
            # Adam changes each parameter by about its step size. If the standard deviation itself were learned, not its
            # logarithm, it and all exploration would vanish in the first few dozen iterations.
            self.actor = build_model(
                *(self._inputs, env.num_actions, c.actor_hidden, c.activation, c.init_std),
                std_type="log",
            ).to(self.device)
            self.critic = build_model(critic_inputs, 1, c.critic_hidden, c.activation, None).to(self.device)
            # A small last layer: the first actions are near zero, at the home pose, whatever the initialization.
            nn.init.orthogonal_(self.actor.mlp[-1].weight, 0.01)
        self.target_critic = copy.deepcopy(self.critic.mlp).requires_grad_(False)
        """The target critic: a slowly following copy of the critic, used for all value estimates. Its inputs are
        normalized by the critic's normalizer."""
        self.actor_adam = DeviceAdam(
            {"actor": self.actor}, c.learning_rate, c.max_grad_norm, c.betas, shards=shards
        )
        self.critic_adam = DeviceAdam(
            {"critic": self.critic}, c.critic_learning_rate, c.max_grad_norm, c.betas, shards=shards
        )
        self.iterations = 0
        """Iterations so far."""
        # Number of gradient rows in this iteration that were dropped, and scaled down.
        self._guarded = torch.zeros(2, dtype=torch.float64, device=self.device)
        self.timers = Timers(self.device)
        env.reset(stagger=True)

    @property
    def policy(self) -> Policy:
        """The current policy: deterministic, without the critic. It shares this learner's weights."""
        c, actions = self.config, len(self.actor.distribution.log_std_param)
        spec = PolicySpec(self._inputs, actions, c.actor_hidden, c.activation, std_type="log")
        return Policy(spec, self.actor)

    @property
    def scratch_bytes(self) -> int:
        """Temporary memory in every iteration: the autograd graph of a horizon, without the simulator's part."""
        batch, c = self.batch, self.config
        widths = 8 * sum(obs.shape[-1] for obs in batch.observations.values()) + 3 * sum(c.actor_hidden)
        return 4 * batch.reward.numel() * (widths + 2 * sum(c.critic_hidden))

    def iterate(self, env: LearnerEnv) -> Report:
        """Simulate a horizon, improve the actor through it, fit the critic to it, update the normalizers.

        Raises:
            NonFiniteTerm: a term of the Env or the critic's gradient was not finite; see `Env.drain`. A non-finite
                gradient of the actor is no error: through a simulator it can happen; the step is skipped and counted.
        """
        assert env.gradients, "train.make_learner refuses backends without gradients"
        self.timers.start()
        self._set_rates()
        reward, following = self._simulate(env)
        with self.timers("learn"):
            actor_loss, norm, taken = self._improve_actor(reward, following)
            # The autograd graph is no longer needed.
            env.detach()
            critic_loss = self._fit_critic(following.detach())
            self._update_target_critic()
            c = self.config
            for groups, network in ((c.actor_groups, self.actor), (c.critic_groups, self.critic)):
                network.obs_normalizer.absorb(self.batch.observed(groups)[:-1].flatten(0, 1), self.shards)
        self.iterations += 1
        with self.timers("synchronize"):
            # The Env first: a non-finite reward makes everything else non-finite, and the Env names the reward term.
            drained = env.drain()
            losses = self._read(actor_loss, norm, taken, critic_loss)
        return Report(reward.numel(), losses, drained, self.timers.read())

    # ------------------------------------------------------------------ the horizon

    def _simulate(self, env: LearnerEnv) -> tuple[Tensor, Tensor]:
        """T steps with their autograd graph; `batch` stores them detached.

        Returns:
            `reward` and `following` (T, N) of `horizon_return`.
        """
        batch = self.batch
        rewards, terminal = [], []
        self._guarded.zero_()
        for t in range(len(batch.reward)):
            with self.timers("infer"):
                for name, seen in batch.observations.items():
                    seen[t] = env.observations[name].detach()
                action = self._act(side_by_side(env.observations, self.config.actor_groups))
            with self.timers("simulate"):
                result = env.step(action)
            rewards.append(result.reward)
            terminal.append(side_by_side(result.terminal_observations, self.config.critic_groups))
            batch.reward[t] = result.reward.detach()
            batch.done[t], batch.truncated[t] = result.done, result.truncated
        with self.timers("infer"):
            last = side_by_side(env.observations, self.config.critic_groups)
            for name, seen in batch.observations.items():
                seen[-1] = env.observations[name].detach()
            # Only those rows: a gradient of 0 times an infinite slope would be NaN.
            rows = batch.truncated.flatten().nonzero().squeeze(-1)
            ended = self._value(torch.stack(terminal).flatten(0, 1)[rows])
            following = torch.zeros_like(batch.reward).flatten().index_copy(0, rows, ended)
            following = following.view_as(batch.reward)
            final = torch.where(batch.done[-1], following[-1], self._value(last))
            return torch.stack(rewards), torch.cat((following[:-1], final[None]))

    def _act(self, obs: Tensor) -> Tensor:
        """Actions (N, A), drawn with the reparametrization trick (Kingma and Welling, 2014)."""
        mean = self.actor.mlp(self.actor.obs_normalizer(obs))
        noise = torch.randn(mean.shape, generator=self.random.generator, device=self.device)
        action = mean + deviation(self.actor) * noise
        action.register_hook(self._guard)
        return action

    @torch.no_grad()
    def _guard(self, gradient: Tensor) -> Tensor:
        """The gradient (N, A) by a step's actions, with non-finite rows set to zero and large rows scaled down.

        It then flows to the actor and, through the actor's observations, to the step before. So a chaotic moment of one
        environment, such as a contact, does not spoil the update of all. Through the simulation itself the original
        gradient flows to earlier steps of that environment, where this hook is applied again.
        """
        limit = self.config.max_row_grad_norm / self.batch.reward.numel()  # because the loss is a mean
        norm = torch.linalg.vector_norm(gradient, dim=1, keepdim=True)
        finite, large = torch.isfinite(norm), norm > limit
        self._guarded += torch.stack(((~finite).sum(), (finite & large).sum()))
        return torch.where(finite, torch.where(large, gradient * (limit / norm), gradient), 0.0)

    def _value(self, obs: Tensor) -> Tensor:
        """Values (M,) of the target critic for observations (M, D)."""
        return self.target_critic(self.critic.obs_normalizer(obs)).squeeze(-1)

    # ------------------------------------------------------------------ learning

    def _improve_actor(self, reward: Tensor, following: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """One gradient step of the actor: its loss, the gradient's norm, and () bool whether it was taken."""
        objective = horizon_return(reward, following, self.batch.done, self.config.gamma)
        loss = -objective - self.config.entropy_coef * entropy(deviation(self.actor))
        self.actor_adam.take(torch.autograd.grad(loss, self.actor_adam.parameters), shard=self._shard)
        self.actor_adam.average()
        norms, finite = self.actor_adam.clip()
        self.actor_adam.step(~finite)
        return loss.detach(), torch.linalg.vector_norm(norms), finite

    def _fit_critic(self, following: Tensor) -> Tensor:
        """Gradient steps of the critic towards `td_lambda`; returns their mean loss."""
        batch, c = self.batch, self.config
        critic_obs = batch.observed(c.critic_groups)
        with torch.no_grad():
            next_value = torch.where(batch.done, following, self._value(critic_obs[1:]))
            self.returns = td_lambda(batch.reward, next_value, batch.done, c.gamma, c.lam)
            obs = self.critic.obs_normalizer(critic_obs[:-1]).flatten(0, 1)
        returns, losses = self.returns.flatten(), []
        for _ in range(c.critic_epochs):
            order = torch.randperm(len(returns), generator=self.random.generator, device=self.device)
            for chosen in order.chunk(c.critic_minibatches):
                loss = value_loss(self.critic.mlp(obs[chosen]).squeeze(-1), returns[chosen], None, 0.0)
                gradients = torch.autograd.grad(loss, self.critic_adam.parameters)
                self.critic_adam.take(gradients, shard=self._shard)
                self.critic_adam.average()
                _, finite = self.critic_adam.clip()
                self.critic_adam.step(~finite)
                losses.append(torch.where(finite, loss.detach(), torch.nan))
        return torch.stack(losses).mean()

    @torch.no_grad()
    def _update_target_critic(self) -> None:
        """Move the target critic towards the critic (Polyak averaging)."""
        for old, new in zip(self.target_critic.parameters(), self.critic.mlp.parameters(), strict=True):
            old.lerp_(new, 1.0 - self.config.target_keep)

    def _set_rates(self) -> None:
        c, share = self.config, 1.0
        if c.decay_iterations:
            share -= (1.0 - c.decay_to) * min(1.0, self.iterations / c.decay_iterations)
        self.actor_adam.set_rate(c.learning_rate * share)
        self.critic_adam.set_rate(c.critic_learning_rate * share)

    def _read(self, actor_loss: Tensor, norm: Tensor, taken: Tensor, critic_loss: Tensor) -> dict[str, float]:
        """The reported numbers of an iteration by name; waits for the device.

        Raises:
            NonFiniteTerm: a gradient of the critic was not finite. That step was skipped.
        """
        std = deviation(self.actor).detach()
        numbers = (
            actor_loss,
            critic_loss,
            norm,
            taken,
            entropy(std),
            std.mean(),
            self.actor_adam.rate,
            *self._guarded,
        )
        found = torch.stack([x.double() for x in numbers]).tolist()
        loss, value, length, was_taken, nats, spread, rate, dropped, clipped = found
        if not isfinite(value):
            raise NonFiniteTerm(self._failure())
        out = {
            "actor": loss,
            "value": value,
            "entropy": nats,
            "std": spread,
            "learning_rate": rate,
            "dropped_gradients": dropped / self.batch.reward.numel(),
            "clipped_gradients": clipped / self.batch.reward.numel(),
            "skipped_steps": 1.0 - was_taken,
        }
        return out | ({"grad_norm": length} if was_taken else {})

    def _failure(self) -> str:
        """The error message for a non-finite gradient of the critic, with the first non-finite tensor."""
        named = {
            "critic observations": self.batch.observed(self.config.critic_groups),
            "rewards": self.batch.reward,
        }
        named |= {
            f"weights {n}": p
            for n, p in zip(self.critic_adam.names, self.critic_adam.parameters, strict=True)
        }
        named["returns"] = self.returns
        found = [name for name, x in named.items() if not torch.isfinite(x).all()] or ["the critic's loss"]
        return (
            f"the critic's gradient is not finite; the first non-finite tensor: {found[0]}; lower "
            "learner.critic_learning_rate, or check the reward terms in metrics.jsonl"
        )

    # ------------------------------------------------------------------ the rest

    def state_dict(self) -> dict[str, Any]:
        """Weights under rsl_rl's names, and what exact resume needs."""
        return {
            "actor_state_dict": self.actor.state_dict(),
            "critic_state_dict": self.critic.state_dict(),
            "target_critic_state_dict": self.target_critic.state_dict(),
            "actor_optimizer_state_dict": self.actor_adam.state_dict(),
            "critic_optimizer_state_dict": self.critic_adam.state_dict(),
            "iterations": self.iterations,
            "random": self.random.state(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load the weights of a checkpoint, PPO's too; target critic, optimizers, iterations and random state where
        it has them. Step sizes follow from the iterations and the settings.

        Raises:
            ValueError: the weights need a gait clock, see `require_unfolded`.
        """
        require_unfolded(state)
        actor = dict(state["actor_state_dict"])
        if "distribution.std_param" in actor:  # PPO learns the standard deviation itself
            actor["distribution.log_std_param"] = actor.pop("distribution.std_param").clamp(min=1e-3).log()
        self.actor.load_state_dict(actor)
        self.critic.load_state_dict(state["critic_state_dict"])
        self.target_critic.load_state_dict(
            state.get("target_critic_state_dict", self.critic.mlp.state_dict())
        )
        for adam, name in ((self.actor_adam, "actor"), (self.critic_adam, "critic")):
            if f"{name}_optimizer_state_dict" in state:
                adam.load_state_dict(state[f"{name}_optimizer_state_dict"])
        self.iterations = int(state.get("iterations", 0))
        # A GPU's generator has another state than a CPU's; then the run goes on with this learner's seed, not exactly.
        if "random" in state and self.random.fits(state["random"]):
            self.random.set_state(state["random"])
