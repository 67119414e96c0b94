"""PPO's gradient steps, queued on a GPU without waiting for their results.

A step consists of: gathering rows into fixed tensors; forward and backward pass; average over the shards of all ranks;
clipping and Adam. On CUDA the second and the last are CUDA graphs. The device decides whether a step is still taken,
and a skipped step changes nothing: the host queues all steps and reads the results once, at the end. On a CPU, where
reading is free, the same code reads after each step and stops early.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from functools import partial
from math import isfinite

import torch
from rsl_rl.models import MLPModel
from torch import nn

from robolearn.core.finite_check import NonFiniteTerm
from robolearn.core.graphs import Graphed
from robolearn.core.shards import ONE, Shards
from robolearn.envs.state import Tensor
from robolearn.learners.blocks import LEAST_ROWS, Blocks, can_halve
from robolearn.learners.equivariance import Equivariance
from robolearn.learners.losses import clipped_surrogate, divergence, entropy, log_prob, value_loss
from robolearn.learners.networks import Normalizer, deviation
from robolearn.learners.optimizer import DeviceAdam
from robolearn.learners.ppo.config import PPOConfig
from robolearn.learners.ppo.correction import Correction
from robolearn.learners.ppo.minibatch import Minibatch, Tables, with_mirror_image
from robolearn.learners.precision import autocast
from robolearn.learners.products import forward
from robolearn.learners.recurrent import ActorRecurrence
from robolearn.learners.reference import Reference, exact_divergence, sampled_divergence, steered
from robolearn.learners.rollout import Batch
from robolearn.learners.workers import Workers, map_each
from robolearn.tasks.mdp.symmetry import Reflection, Symmetry, joined

LOSSES = ("surrogate", "value", "entropy", "kl", "clip_fraction", "reference_kl")
"""Names of the reported losses, means over the gradient steps of an iteration."""
KL, REFERENCE = LOSSES.index("kl"), LOSSES.index("reference_kl")
WORTH_SPLITTING = 2048
"""Samples of a minibatch from which threads take a part each."""


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
        exact: Symmetry | None = None,
        shards: Shards = ONE,
        workers: Workers | None = None,
        reference: Reference | None = None,
    ) -> None:
        """With `recurrence`, the actor's, minibatches are whole environments; with `symmetry` each sample is learned
        together with its mirror image; with `exact` the networks are kept equivariant. Each of the `shards` has its
        share of every minibatch and its own gradient; `workers`, if any, compute at the same time. With
        `reference`, the learned policy is kept near it."""
        self.reference = reference
        self.actor, self.critic, self.config, self.precision = actor, critic, config, precision
        self.recurrence, self.symmetry, self.shards = recurrence, symmetry, shards
        self._mirror: dict[str, tuple[Reflection, Normalizer]] = {}
        """Reflection and normalizer of each network's observations, where samples are mirrored."""
        if symmetry is not None:
            for name, groups, net in self._networks():
                reflection = joined([symmetry.groups[group] for group in groups])
                self._mirror[name] = reflection, net.obs_normalizer
        self.adam = DeviceAdam(
            {"actor": actor, "critic": critic},
            config.learning_rate,
            config.max_grad_norm,
            extra=len(LOSSES),
            shards=shards,
        )
        self.equivariance = None if exact is None else self._equivariant(exact)
        """Keeps the networks symmetric; None where they need not be."""
        self.device = self.adam.rate.device
        self._blocks = {} if exact is None else self._blocks_of(exact)
        """By name, the networks whose gradients can take half the multiplications."""
        self._halved: dict[str, Blocks] = {}
        """Those whose gradients do so with the current tables, which hold even and odd parts of their observations."""
        self.read_at_once = self.device.type == "cpu"
        """Whether to read after each step whether to stop; if not, all steps are queued."""

        def number(*shape: int, dtype: torch.dtype = torch.float64) -> Tensor:
            return torch.zeros(shape, dtype=dtype, device=self.device)

        # Under autocast torch chooses the matrix products.
        self._through = forward if precision == "fp32" else nn.Sequential.__call__
        self._workers = workers
        # Fixed tensors, which CUDA graphs read and write.
        self._old_std = deviation(actor).detach().clone()
        self._losses = number(len(LOSSES) + 1)  # of the current step, and 1 to count it
        self._losses[-1] = 1.0
        self._sums = number(len(LOSSES) + 1)  # sums over the steps taken in this iteration
        self._epoch = number(len(LOSSES) + 1)  # sums over those of its last epoch
        self._stopped, self._failed = number(dtype=torch.bool), number(dtype=torch.bool)
        self._failed_losses = number(len(LOSSES) + 1)
        self._failed_norms = number(len(self.adam.parameters), dtype=torch.float32)
        self._explained = number()
        self._wanted_kl = number().fill_(config.desired_kl)
        self.coefficient = number(dtype=torch.float32).fill_(config.reference_coef)
        """() weight of the divergence from the reference."""
        self._tables: Tables = {}
        self._minibatches: dict[int, tuple[list[Minibatch], Graphed[None]]] = {}
        self._weighted: dict[int, tuple[list[Minibatch], Graphed[None]]] = {}  # of batches of an older policy
        self._step = Graphed(self._clip_and_step, self.device)

    # ------------------------------------------------------------------ an iteration

    def learn(
        self,
        batch: Batch,
        advantage: Tensor,
        returns: Tensor,
        value: Tensor,
        orders: Iterable[Sequence[Tensor]],
        stale: Correction | None = None,
    ) -> None:
        """Take the gradient steps of an iteration.

        Args:
            batch: what was collected, T steps of N environments.
            advantage: (T, N), normalized.
            returns: (T, N), the critic's regression targets.
            value: (T, N), the critic's values before the update.
            orders: for each epoch, a permutation of each shard's samples (environments, if recurrent), int64 on the
                device; it is split into equal parts, which together have about `minibatch_size` samples.
            stale: the correction of a batch that an older policy has collected.

        Raises:
            NonFiniteTerm: on a CPU, see `read`.
        """
        self._begin(batch.parts(returns, self.shards), batch.parts(value, self.shards))
        self._tables = self._tables_of(batch, advantage, returns, value, stale)
        for order in orders:
            self._epoch.zero_()
            minibatches = [each.chunk(self.parts(returns.numel())) for each in order]
            if not all(self._gradient_step(chosen) for chosen in zip(*minibatches, strict=True)):
                break
        if self.read_at_once and self._failed:
            raise NonFiniteTerm(self._failure())
        if self.equivariance is not None:
            self.equivariance.project_weights()  # of what rounding has added
        self._adapt_rate()
        self._steer()

    def read(self) -> dict[str, float]:
        """Losses and other numbers of the last `learn` by name; waits for the device.

        Raises:
            NonFiniteTerm: a gradient was not finite. The message names the first non-finite tensor: an input of the
                networks, a weight, or the gradient of one. That step and all after it changed nothing.
        """
        std = deviation(self.actor).detach().mean()
        last = (self._failed, self.adam.rate, std, self._explained)
        numbers = torch.cat((self._sums, torch.stack([x.double() for x in last]))).tolist()
        *sums, steps, failed, rate, spread, explained = numbers
        if failed:
            raise NonFiniteTerm(self._failure())
        self._tables = {}
        means = {name: total / steps for name, total in zip(LOSSES, sums, strict=True)} if steps else {}
        if self.reference is None:
            means.pop("reference_kl", None)
        else:
            means["reference_coef"] = float(self.coefficient)
        return means | {
            "learning_rate": rate,
            "gradient_steps": steps,
            "std": spread,
            "explained_variance": explained,
        }

    def parts(self, samples: int) -> int:
        """Number of minibatches of a batch with this many samples on this rank."""
        return max(1, round(self.shards.whole(samples) / self.config.minibatch_size))

    def follow(self, progress: float) -> None:
        """Set the wanted KL divergence, `desired_kl` to `final_kl`, after this progress of the curricula, 0 to 1."""
        c = self.config
        if c.final_kl:
            self._wanted_kl.fill_((1 - progress) * c.desired_kl + progress * c.final_kl)

    def clear_graphs(self) -> None:
        """Capture the CUDA graphs again at the next step: loading a checkpoint replaced the optimizer's tensors."""
        self._minibatches.clear()
        self._weighted.clear()
        self._step = Graphed(self._clip_and_step, self.device)

    # ------------------------------------------------------------------ its parts

    @torch.no_grad()
    def _begin(self, returns: list[Tensor], value: list[Tensor]) -> None:
        """Reset the sums, and note the explained variance of `returns` and `value`, (M,) of each shard."""
        self._old_std.copy_(deviation(self.actor))
        for tensor in (self._sums, self._epoch, self._stopped, self._failed):
            tensor.zero_()
        errors = [r - v for r, v in zip(returns, value, strict=True)]
        unexplained = self._variance(errors) / self._variance(returns).clamp(min=1e-8)
        self._explained.copy_(1 - unexplained)

    def _variance(self, parts: list[Tensor]) -> Tensor:
        """() the variance of all samples, (M,) of each shard."""
        if self.shards.single:
            return parts[0].var(correction=0)
        mean = self.shards.mean([part.mean() for part in parts])
        return self.shards.mean([(part - mean).square().mean() for part in parts])

    @torch.no_grad()
    def _tables_of(
        self,
        batch: Batch,
        advantage: Tensor,
        returns: Tensor,
        value: Tensor,
        stale: Correction | None = None,
    ) -> Tables:
        dtype = torch.bfloat16 if self.precision == "bf16" else torch.float32
        # Normalizers do not change during an update, so each sample is normalized once.
        samples, shares = returns.numel(), 1 if self._workers is None else self._workers.count
        if not self.shards.single:
            shares = self.shards.count  # not the workers: rounding must not depend on their number
        large = samples // (self.parts(samples) * shares) >= LEAST_ROWS
        self._halved = self._blocks if large else {}
        workers = None if self.shards.single else self._workers
        observed = {}
        for name, groups, net in self._networks():
            seen = self.shards.parts(batch.observed(groups)[:-1], dim=1)
            inputs = map_each(workers, partial(self._input, name, net, dtype), seen)
            observed[name] = inputs[0] if len(inputs) == 1 else torch.cat(inputs, dim=1)
        data = {
            **observed,
            "action": batch.action,
            "mean": batch.mean,
            "log_prob": log_prob(batch.action, batch.mean, self._old_std),
            "returns": returns,
            "advantage": advantage,
        }
        if stale is not None:
            data |= {"mean": stale.mean, "log_prob": stale.log_prob}
            if stale.weight is not None:
                data["weight"] = stale.weight
        if self.config.clip_value_loss:
            data["value"] = value
        if self.reference is not None:
            data["reference"] = self.reference.means(batch)
        if self.recurrence is not None:
            return self.recurrence.tables(data, batch.done)
        return {name: x.flatten(0, 1) for name, x in data.items()}

    @torch.no_grad()
    def _input(self, name: str, net: MLPModel, dtype: torch.dtype, seen: Tensor) -> Tensor:
        """What a network takes of its observations (T, n, D): normalized, and where it is halved, their parts."""
        normalized = net.obs_normalizer(seen).to(dtype)
        return self._halved[name].parts(normalized) if name in self._halved else normalized

    def _networks(self) -> list[tuple[str, tuple[str, ...], MLPModel]]:
        """Name, observation groups and network of actor and critic."""
        c = self.config
        return [("actor", c.actor_groups, self.actor), ("critic", c.critic_groups, self.critic)]

    def _equivariant(self, symmetry: Symmetry) -> Equivariance:
        """Make the networks, whose weights are new, symmetric."""
        actor, critic = self._seen(symmetry)
        made = Equivariance(self.adam, [(self.actor, actor, symmetry.action), (self.critic, critic, None)])
        made.begin()
        return made

    def _seen(self, symmetry: Symmetry) -> list[Reflection]:
        """Reflections of what actor and critic observe, estimates included."""
        c = self.config
        inputs = ((*c.actor_groups, *c.estimated_groups), c.critic_groups)
        return [joined([symmetry.groups[group] for group in groups]) for groups in inputs]

    def _blocks_of(self, exact: Symmetry) -> dict[str, Blocks]:
        """Of the networks, by name, those that are worth it."""
        plain = self.recurrence is None and self.symmetry is None
        if not plain or self.device.type != "cpu" or self.precision != "fp32":
            return {}
        pairs = zip(self._networks(), self._seen(exact), strict=True)
        return {name: Blocks(net.mlp, seen) for (name, _, net), seen in pairs if can_halve(net.mlp)}

    def _gradient_step(self, chosen: Sequence[Tensor]) -> bool:
        """One step on these samples or environments of each shard; False if it was read at once and skipped."""
        size = len(chosen[0])
        kept = self._weighted if "weight" in self._tables else self._minibatches
        if size not in kept:
            made = [Minibatch(self._tables, size, self.recurrence) for _ in chosen]
            parts = [minibatch.part for minibatch in made]
            descend = self._descend if self.shards.single else self._descend_each
            kept[size] = made, Graphed(partial(descend, parts), self.device)
        minibatches, descend_now = kept[size]
        for minibatch, rows in zip(minibatches, chosen, strict=True):
            minibatch.gather(self._tables, rows)
        descend_now()
        self.adam.average()
        self._step()
        return not (self.read_at_once and bool(self.adam.skip))

    def _descend_each(self, parts: list[dict[str, Tensor]]) -> None:
        """The same as `_descend` for each shard's share of a minibatch."""
        for shard, (gradients, losses) in enumerate(map_each(self._workers, self._gradients, parts)):
            self.adam.take(gradients, losses, shard)

    def _descend(self, parts: list[dict[str, Tensor]]) -> None:
        """Losses and gradients of a minibatch, and the KL divergence from the policy that collected it."""
        (part,) = parts
        size = len(part["advantage"])
        if self._workers is None or size < WORTH_SPLITTING or self.recurrence is not None:
            gradients, losses = self._gradients(part)
        else:
            cuts = [size * k // self._workers.count for k in range(self._workers.count + 1)]
            shares = [(end - start) / size for start, end in itertools.pairwise(cuts)]
            pieces = [{k: x[i:j] for k, x in part.items()} for i, j in itertools.pairwise(cuts)]
            found = self._workers.map(self._gradients, pieces)
            summed, losses = [x * shares[0] for x in found[0][0]], found[0][1] * shares[0]
            for share, (more, other) in zip(shares[1:], found[1:], strict=True):
                torch._foreach_add_(summed, list(more), alpha=share)
                losses += share * other
            gradients = summed
        self.adam.take(gradients, losses)

    def _gradients(self, part: dict[str, Tensor]) -> tuple[Sequence[Tensor], Tensor]:
        """Gradient of each parameter and the losses, in the order of LOSSES, as means over these samples."""
        c, actor, critic = self.config, self.actor, self.critic
        if self.symmetry is not None:
            part = with_mirror_image(part, self.symmetry.action, self._mirror)
        with autocast(self.device, self.precision):
            latent = part["actor"] if self.recurrence is None else self.recurrence.replay(part)
            mean = self._halved.get("actor", partial(self._through, actor.mlp))(latent)
            value = self._halved.get("critic", partial(self._through, critic.mlp))(part["critic"])
        mean, value, std = mean.float(), value.float().squeeze(-1), deviation(actor)
        with torch.no_grad():
            moved = divergence(part["mean"], self._old_std, mean, std)
        new = log_prob(part["action"], mean, std)
        surrogate, clipped = clipped_surrogate(
            new, part["log_prob"], part["advantage"], c.clip, part.get("weight")
        )
        squared = value_loss(value, part["returns"], part.get("value"), c.clip)
        bonus = entropy(std)
        loss = surrogate + c.value_loss_coef * squared - c.entropy_coef * bonus
        apart = torch.zeros_like(moved) if self.reference is None else self._apart(part, mean, std)
        if self.reference is not None:
            loss = loss + self.coefficient * apart
        gradients = torch.autograd.grad(loss, self.adam.parameters)
        return gradients, torch.stack((surrogate, squared, bonus, moved, clipped, apart)).detach()

    def _apart(self, part: dict[str, Tensor], mean: Tensor, std: Tensor) -> Tensor:
        """KL divergence () of the learned policy from the reference, with a gradient."""
        assert self.reference is not None
        theirs = part["reference"], self.reference.std
        if self.config.reference_estimator == "exact":
            return exact_divergence(mean, std, *theirs)
        return sampled_divergence(part["action"], mean, std, *theirs)

    @torch.no_grad()
    def _steer(self) -> None:
        """Change the weight of the reference by the divergence of the last epoch from the wanted one."""
        if self.reference is None or not self.config.reference_kl:
            return
        found = self._epoch[REFERENCE] / self._epoch[-1].clamp(min=1.0)
        new = steered(self.coefficient, found.float(), self.config.reference_kl)
        self.coefficient.copy_(torch.where(self._epoch[-1] > 0, new, self.coefficient))

    @torch.no_grad()
    def _clip_and_step(self) -> None:
        """One step of Adam, skipped after the KL divergence exceeded `max_kl` or a gradient was not finite."""
        self._losses[:-1].copy_(self.adam.extra)
        if self.equivariance is not None:
            self.equivariance.project_gradients()
        norms, finite = self.adam.clip()
        # Stop before a step that would move the policy even further.
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
    def _adapt_rate(self) -> None:
        """Change Adam's step size once per iteration, by the KL divergence of its last epoch from the wanted one.

        Other implementations do so after every minibatch. But the divergence is measured from the policy that collected
        the batch, so it grows within an iteration, and the rate would oscillate with it.
        """
        c, rate = self.config, self.adam.rate
        if c.schedule == "fixed":
            return
        kl = self._epoch[KL] / self._epoch[-1].clamp(min=1.0)
        lower = self._stopped | (kl > 2 * self._wanted_kl)
        higher = torch.where(kl < self._wanted_kl / 2, rate * 1.5, rate)
        new = torch.where(lower, rate / 1.5, higher).clamp(c.min_learning_rate, c.max_learning_rate)
        self.adam.set_rate(torch.where(self._failed, rate, new))

    def _failure(self) -> str:
        """The error message for a non-finite gradient, with the name of the first non-finite tensor."""
        shown = {"actor": "actor observations", "critic": "critic observations"}
        named = {shown.get(name, name): x for name, x in self._tables.items()}
        weights = {f"weights {n}": p for n, p in zip(self.adam.names, self.adam.parameters, strict=True)}
        observed = {name: named.pop(name) for name in shown.values()}
        found = [k for k, x in (observed | weights | named).items() if not torch.isfinite(x).all()]
        if not found:
            norms = self._failed_norms.tolist()
            bad = [i for i, norm in enumerate(norms) if not isfinite(norm)]
            # The sum may overflow although no single norm does; then name the largest.
            found = [f"gradient of {self.adam.names[bad[0] if bad else norms.index(max(norms))]}"]
        surrogate, squared, *_ = self._failed_losses.tolist()
        return (
            f"the gradient is not finite; the first non-finite tensor: {found[0]} (surrogate {surrogate:g}, value loss "
            f"{squared:g}); lower learner.learning_rate, or check the reward terms in metrics.jsonl"
        )
