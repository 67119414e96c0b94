"""The gradient steps of an iteration, asked for without once waiting for their outcome.

One step is: rows gathered into fixed tensors; forward and backward; an average over the ranks; clipping and Adam.
The second and the last are CUDA graphs where there is CUDA. Whether a step may still be taken is decided on the
device, and a step that may not leaves everything as it is: the host asks for all of them and reads what came of it
once, at the end. On a CPU the same code reads after each step, where that is free, and leaves out the rest.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from math import isfinite

import torch
from rsl_rl.models import MLPModel
from torch import nn

from robolearn.core.finite_check import NonFiniteTerm
from robolearn.core.graphs import Graphed
from robolearn.envs.state import Tensor
from robolearn.learners.losses import clipped_surrogate, divergence, entropy, log_prob, value_loss
from robolearn.learners.networks import Normalizer, deviation
from robolearn.learners.optimizer import DeviceAdam
from robolearn.learners.ppo.config import PPOConfig
from robolearn.learners.ppo.minibatch import Minibatch, Tables, with_mirror_image
from robolearn.learners.precision import autocast
from robolearn.learners.products import forward
from robolearn.learners.ranks import AllReduceMean, single_rank
from robolearn.learners.recurrent import ActorRecurrence
from robolearn.learners.rollout import Batch
from robolearn.tasks.mdp.symmetry import Reflection, Symmetry, joined

LOSSES = ("surrogate", "value", "entropy", "kl", "clip_fraction")
"""What is reported of an iteration, as means over its gradient steps."""
KL = LOSSES.index("kl")


class Update:
    """PPO's gradient steps on a batch: `learn`, then `read`."""

    def __init__(
        self,
        actor: MLPModel,
        critic: MLPModel,
        config: PPOConfig,
        precision: str,
        recurrence: ActorRecurrence | None = None,
        symmetry: Symmetry | None = None,
        all_reduce_mean: AllReduceMean = single_rank,
    ) -> None:
        """With `recurrence`, the actor's, minibatches are whole environments; with `symmetry` each sample is learned
        with its mirror image."""
        self.actor, self.critic, self.config, self.precision = actor, critic, config, precision
        self.recurrence, self.symmetry, self.all_reduce_mean = recurrence, symmetry, all_reduce_mean
        self._mirror: dict[str, tuple[Reflection, Normalizer]] = {}
        """How what each network sees is reflected, and what normalizes it, where samples are mirrored."""
        if symmetry is not None:
            for name, groups, net in self._networks():
                reflection = joined([symmetry.groups[group] for group in groups])
                self._mirror[name] = reflection, net.obs_normalizer
        self.adam = DeviceAdam({"actor": actor, "critic": critic}, config.learning_rate, config.max_grad_norm)
        self.device = self.adam.rate.device
        self.read_at_once = self.device.type == "cpu"
        """Whether to look after each step if there may be another; where not, all are asked for."""

        def number(*shape: int, dtype: torch.dtype = torch.float64) -> Tensor:
            return torch.zeros(shape, dtype=dtype, device=self.device)

        # Under autocast the networks choose their own products.
        self._through = forward if precision == "fp32" else nn.Sequential.__call__
        # Fixed tensors: what graphs read and write.
        self._old_std = deviation(actor).detach().clone()
        self._losses = number(len(LOSSES) + 1)  # of the running step, and 1: a step
        self._losses[-1] = 1.0
        self._sums = number(len(LOSSES) + 1)  # of it over the steps taken in this iteration
        self._epoch = number(len(LOSSES) + 1)  # ... and over those of its last epoch
        self._stopped, self._failed = number(dtype=torch.bool), number(dtype=torch.bool)
        self._failed_losses = number(len(LOSSES) + 1)
        self._failed_norms = number(len(self.adam.parameters), dtype=torch.float32)
        self._explained = number()
        self._tables: Tables = {}
        self._rooms: dict[int, tuple[Minibatch, Graphed[None]]] = {}
        self._step = Graphed(self._clip_and_step, self.device)

    # ------------------------------------------------------------------ an iteration

    def learn(
        self, batch: Batch, advantage: Tensor, returns: Tensor, value: Tensor, orders: Iterable[Tensor]
    ) -> None:
        """Take the gradient steps of an iteration.

        Args:
            batch: what was collected, T steps of N environments.
            advantage: (T, N), normalized.
            returns: (T, N), what the critic learns.
            value: (T, N), what it said before.
            orders: for each epoch a permutation of the T N samples (N environments, if recurrent), int64 on
                the device; it is cut into equal parts of about `minibatch_size` samples.

        Raises:
            NonFiniteTerm: where it reads at once, see `read`.
        """
        self._begin(batch.taken(returns), batch.taken(value))
        self._tables = self._tables_of(batch, advantage, returns, value)
        for order in orders:
            self._epoch.zero_()
            minibatches = order.chunk(self.parts(returns.numel()))
            if not all(self._gradient_step(chosen) for chosen in minibatches):
                break
        if self.read_at_once and self._failed:
            raise NonFiniteTerm(self._what_failed())
        self._steer_rate()

    def read(self) -> dict[str, float]:
        """Losses and numbers of the last `learn` by name; this waits for the device.

        Raises:
            NonFiniteTerm: a gradient was not finite. The message names the first tensor that was not: an input of
                the networks, a weight, or the gradient of one. That step changed nothing, nor did any after it.
        """
        std = deviation(self.actor).detach().mean()
        last = (self._failed, self.adam.rate, std, self._explained)
        numbers = torch.cat((self._sums, torch.stack([x.double() for x in last]))).tolist()
        *sums, steps, failed, rate, spread, explained = numbers
        if failed:
            raise NonFiniteTerm(self._what_failed())
        self._tables = {}
        means = {name: total / steps for name, total in zip(LOSSES, sums, strict=True)} if steps else {}
        return means | {
            "learning_rate": rate,
            "gradient_steps": steps,
            "std": spread,
            "explained_variance": explained,
        }

    def parts(self, samples: int) -> int:
        """Into how many minibatches a batch of so many samples is cut."""
        return max(1, round(samples / self.config.minibatch_size))

    def forget_graphs(self) -> None:
        """Record anew: a checkpoint has put other tensors into the optimizer."""
        self._rooms.clear()
        self._step = Graphed(self._clip_and_step, self.device)

    # ------------------------------------------------------------------ its parts

    @torch.no_grad()
    def _begin(self, returns: Tensor, value: Tensor) -> None:
        self._old_std.copy_(deviation(self.actor))
        for tensor in (self._sums, self._epoch, self._stopped, self._failed):
            tensor.zero_()
        unexplained = (returns - value).var(correction=0) / returns.var(correction=0).clamp(min=1e-8)
        self._explained.copy_(1 - unexplained)

    @torch.no_grad()
    def _tables_of(self, batch: Batch, advantage: Tensor, returns: Tensor, value: Tensor) -> Tables:
        dtype = torch.bfloat16 if self.precision == "bf16" else torch.float32
        # Normalizers stand still during an update, so each sample is normalized once.
        data = {
            **{n: net.obs_normalizer(batch.observed(g)[:-1]).to(dtype) for n, g, net in self._networks()},
            "action": batch.action,
            "mean": batch.mean,
            "log_prob": log_prob(batch.action, batch.mean, self._old_std),
            "returns": returns,
            "advantage": advantage,
        }
        if self.config.clip_value_loss:
            data["value"] = value
        if self.recurrence is not None:
            return self.recurrence.tables(data, batch.done)
        return {name: x.flatten(0, 1) for name, x in data.items()}

    def _networks(self) -> list[tuple[str, tuple[str, ...], MLPModel]]:
        """Name, observation groups and network of both."""
        c = self.config
        return [("actor", c.actor_groups, self.actor), ("critic", c.critic_groups, self.critic)]

    def _gradient_step(self, chosen: Tensor) -> bool:
        """One minibatch, of these samples or environments; False where it looked and there may be no further."""
        size = len(chosen)
        if size not in self._rooms:
            fresh = Minibatch(self._tables, size, self.recurrence)
            self._rooms[size] = fresh, Graphed(partial(self._descend, fresh.part), self.device)
        room, descend = self._rooms[size]
        room.gather(self._tables, chosen)
        descend()
        self.all_reduce_mean(self.adam.shared)
        self._step()
        return not (self.read_at_once and bool(self.adam.skip))

    def _descend(self, part: dict[str, Tensor]) -> None:
        """Losses and gradients of a minibatch, and how far the policy has moved since it collected."""
        c, actor, critic = self.config, self.actor, self.critic
        if self.symmetry is not None:
            part = with_mirror_image(part, self.symmetry.action, self._mirror)
        with autocast(self.device, self.precision):
            latent = part["actor"] if self.recurrence is None else self.recurrence.replay(part)
            mean, value = self._through(actor.mlp, latent), self._through(critic.mlp, part["critic"])
        mean, value, std = mean.float(), value.float().squeeze(-1), deviation(actor)
        with torch.no_grad():
            self.adam.extra.copy_(divergence(part["mean"], self._old_std, mean, std))
        new = log_prob(part["action"], mean, std)
        surrogate, clipped = clipped_surrogate(new, part["log_prob"], part["advantage"], c.clip)
        squared = value_loss(value, part["returns"], part.get("value"), c.clip)
        bonus = entropy(std)
        loss = surrogate + c.value_loss_coef * squared - c.entropy_coef * bonus
        self.adam.take(torch.autograd.grad(loss, self.adam.parameters))
        losses = torch.stack((surrogate, squared, bonus, self.adam.extra, clipped)).detach()
        self._losses[:-1].copy_(losses)

    @torch.no_grad()
    def _clip_and_step(self) -> None:
        """One step of Adam, unless the policy has moved too far or the gradient is not finite, now or before."""
        self._losses[KL].copy_(self.adam.extra)  # the mean of all ranks
        norms, finite = self.adam.clip()
        # How far has the policy moved since it collected? Too far: stop before making it worse.
        self._stopped.logical_or_(self._losses[KL] > self.config.max_kl)
        first = ~(finite | self._stopped | self._failed)
        self._failed.logical_or_(first)
        self._failed_losses.copy_(torch.where(first, self._losses, self._failed_losses))
        self._failed_norms.copy_(torch.where(first, norms, self._failed_norms))
        skip = self._stopped | self._failed
        self.adam.step(skip)
        taken = torch.where(skip, 0.0, self._losses)
        self._sums.add_(taken)
        self._epoch.add_(taken)

    @torch.no_grad()
    def _steer_rate(self) -> None:
        """Change Adam's step size once an iteration, by how far its last epoch ended from `desired_kl`.

        Once, where others do so after every minibatch: the divergence is measured from the policy that
        collected, so within an iteration it only grows, and the rate would swing with it.
        """
        c, rate = self.config, self.adam.rate
        if c.schedule == "fixed":
            return
        kl = self._epoch[KL] / self._epoch[-1].clamp(min=1.0)
        lower = self._stopped | (kl > 2 * c.desired_kl)
        higher = torch.where(kl < c.desired_kl / 2, rate * 1.5, rate)
        new = torch.where(lower, rate / 1.5, higher).clamp(c.min_learning_rate, c.max_learning_rate)
        self.adam.set_rate(torch.where(self._failed, rate, new))

    def _what_failed(self) -> str:
        """The error message for a gradient that is not finite, with the name of the tensor where that began."""
        spoken = {"actor": "actor observations", "critic": "critic observations"}
        named = {spoken.get(name, name): x for name, x in self._tables.items()}
        weights = {f"weights {n}": p for n, p in zip(self.adam.names, self.adam.parameters, strict=True)}
        observed = {name: named.pop(name) for name in spoken.values()}
        found = [k for k, x in (observed | weights | named).items() if not torch.isfinite(x).all()]
        if not found:
            norms = self._failed_norms.tolist()
            guilty = [i for i, norm in enumerate(norms) if not isfinite(norm)]
            # Together they may overflow where none does alone; then the largest is named.
            found = [f"gradient of {self.adam.names[guilty[0] if guilty else norms.index(max(norms))]}"]
        surrogate, squared, *_ = self._failed_losses.tolist()
        return (
            f"the gradient is not finite, and the first that is not is: {found[0]} (surrogate {surrogate:g}, value "
            f"loss {squared:g}); lower learner.learning_rate, or look at the reward terms in metrics.jsonl"
        )
