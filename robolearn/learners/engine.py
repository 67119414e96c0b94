"""Gradient steps of a learner on a batch, queued on a GPU without waiting for their results.

A step consists of: gathering rows into fixed tensors; forward and backward pass; average over the shards of all ranks;
clipping and Adam. On CUDA the second and the last are CUDA graphs. The device decides whether a step is still taken,
and a skipped step changes nothing: the host queues all steps and reads the results once, at the end. On a CPU, where
reading is free, the same code reads after each step and stops early.

An algorithm derives from `Engine`, and says what its tables and its loss are.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from math import isfinite
from typing import ClassVar, NamedTuple, Protocol

import torch
from rsl_rl.models import MLPModel
from torch import nn

from robolearn.core.finite_check import NonFiniteTerm
from robolearn.core.graphs import Graphed
from robolearn.core.shards import ONE, Shards
from robolearn.envs.state import Tensor
from robolearn.learners.blocks import LEAST_ROWS, Blocks, can_halve
from robolearn.learners.equivariance import Equivariance
from robolearn.learners.minibatch import Minibatch, Tables, with_mirror_image
from robolearn.learners.networks import Normalizer
from robolearn.learners.optimizer import DeviceAdam
from robolearn.learners.products import forward
from robolearn.learners.recurrent import ActorRecurrence
from robolearn.learners.rollout import Batch
from robolearn.learners.workers import Workers, map_each
from robolearn.tasks.mdp.symmetry import Reflection, Symmetry, joined

WORTH_SPLITTING = 2048
"""Samples of a minibatch from which threads take a part each."""


class StepSettings(Protocol):
    """The settings of a learner that gradient steps need; `PPOConfig` documents them."""

    minibatch_size: int
    learning_rate: float
    min_learning_rate: float
    max_learning_rate: float
    desired_kl: float
    max_kl: float
    max_grad_norm: float

    @property
    def schedule(self) -> str:
        """adaptive, or fixed."""

    @property
    def final_kl(self) -> float:
        """0 where the wanted divergence does not follow the task's curricula."""


@dataclass
class ConstantSteps:
    """The settings of a learner whose step size is constant and whose steps no KL divergence stops."""

    minibatch_size: int
    learning_rate: float
    max_grad_norm: float
    min_learning_rate: float = 0.0
    max_learning_rate: float = 1.0
    desired_kl: float = 0.0
    final_kl: float = 0.0
    max_kl: float = 0.0
    schedule: str = "fixed"


class Net(NamedTuple):
    """A network that is learned."""

    name: str
    groups: tuple[str, ...]
    """Observation groups that it takes."""
    model: MLPModel
    estimated: tuple[str, ...] = ()
    """Groups that it estimates from them."""
    acts: bool = False
    """Whether its outputs are actions."""


class Engine:
    """Gradient steps on a batch: `take`, then `read`. A subclass gives `losses` and `objective`."""

    losses: ClassVar[tuple[str, ...]]
    """Names of the reported numbers of `objective`. "kl", if there is one, stops the steps of an iteration and sets the
    learning rate."""

    def __init__(
        self,
        networks: Sequence[Net],
        config: StepSettings,
        precision: str,
        recurrence: ActorRecurrence | None = None,
        symmetry: Symmetry | None = None,
        exact: Symmetry | None = None,
        shards: Shards = ONE,
        workers: Workers | None = None,
    ) -> None:
        """With `recurrence`, the actor's, minibatches are whole environments; with `symmetry` each sample is learned
        together with its mirror image; with `exact` the networks are kept equivariant. Each of the `shards` has its
        share of every minibatch and its own gradient; `workers`, if any, compute at the same time."""
        self.networks, self.precision = networks, precision
        self._settings = config
        self.recurrence, self.symmetry, self.shards = recurrence, symmetry, shards
        self._kl = self.losses.index("kl") if "kl" in self.losses else None
        self._mirror: dict[str, tuple[Reflection, Normalizer]] = {}
        """Reflection and normalizer of each network's observations, where samples are mirrored."""
        if symmetry is not None:
            for net in networks:
                reflection = joined([symmetry.groups[group] for group in net.groups])
                self._mirror[net.name] = reflection, net.model.obs_normalizer
        self.adam = DeviceAdam(
            {net.name: net.model for net in networks},
            config.learning_rate,
            config.max_grad_norm,
            extra=len(self.losses),
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
        # Under autocast torch chooses the matrix products.
        self._through = forward if precision == "fp32" else nn.Sequential.__call__
        self._workers = workers
        # Fixed tensors, which CUDA graphs read and write.
        self._losses = self._number(len(self.losses) + 1)  # of the current step, and 1 to count it
        self._losses[-1] = 1.0
        self._sums = self._number(len(self.losses) + 1)  # sums over the steps taken in this iteration
        self._epoch = self._number(len(self.losses) + 1)  # sums over those of its last epoch
        self._stopped, self._failed = self._number(dtype=torch.bool), self._number(dtype=torch.bool)
        self._failed_losses = self._number(len(self.losses) + 1)
        self._failed_norms = self._number(len(self.adam.parameters), dtype=torch.float32)
        self._wanted_kl = self._number().fill_(config.desired_kl)
        self._tables: Tables = {}
        self._minibatches: dict[int, tuple[list[Minibatch], Graphed[None]]] = {}
        self._weighted: dict[int, tuple[list[Minibatch], Graphed[None]]] = {}  # of batches of an older policy
        self._step = Graphed(self._clip_and_step, self.device)

    def _number(self, *shape: int, dtype: torch.dtype = torch.float64) -> Tensor:
        return torch.zeros(shape, dtype=dtype, device=self.device)

    # ------------------------------------------------------------------ what an algorithm gives

    def objective(self, part: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
        """The loss () of the samples of a minibatch, tables (B, ...) by name, and the numbers (L,) named by `losses`,
        as means over them."""
        raise NotImplementedError

    def told(self) -> dict[str, Tensor]:
        """Further numbers () to report, by name."""
        return {}

    # ------------------------------------------------------------------ an iteration

    def take(self, orders: Iterable[Sequence[Tensor]], samples: int) -> None:
        """Take the gradient steps of an iteration, on the current tables.

        Args:
            orders: for each epoch, a permutation of each shard's samples (environments, if recurrent), int64 on the
                device; it is split into equal parts, which together have about `minibatch_size` samples.
            samples: how many the batch has on this rank.

        Raises:
            NonFiniteTerm: on a CPU, see `read`.
        """
        for order in orders:
            self._epoch.zero_()
            minibatches = [each.chunk(self.parts(samples)) for each in order]
            if not all(self._gradient_step(chosen) for chosen in zip(*minibatches, strict=True)):
                break
        if self.read_at_once and self._failed:
            raise NonFiniteTerm(self._failure())
        if self.equivariance is not None:
            self.equivariance.project_weights()  # of what rounding has added
        self._adapt_rate()

    def read(self) -> dict[str, float]:
        """Losses and other numbers of the last steps by name; waits for the device.

        Raises:
            NonFiniteTerm: a gradient was not finite. The message names the first non-finite tensor: an input of the
                networks, a weight, or the gradient of one. That step and all after it changed nothing.
        """
        more = self.told()
        last = (self._failed, self.adam.rate, *more.values())
        numbers = torch.cat((self._sums, torch.stack([x.double() for x in last]))).tolist()
        count = len(self.losses)
        sums, (steps, failed, rate, *rest) = numbers[:count], numbers[count:]
        if failed:
            raise NonFiniteTerm(self._failure())
        self._tables = {}
        means = {name: total / steps for name, total in zip(self.losses, sums, strict=True)} if steps else {}
        found = {"learning_rate": rate, "gradient_steps": steps}
        return means | found | dict(zip(more, rest, strict=True))

    def parts(self, samples: int) -> int:
        """Number of minibatches of a batch with this many samples on this rank."""
        return max(1, round(self.shards.whole(samples) / self._settings.minibatch_size))

    def follow(self, progress: float) -> None:
        """Set the wanted KL divergence, `desired_kl` to `final_kl`, after this progress of the curricula, 0 to 1."""
        c = self._settings
        if c.final_kl:
            self._wanted_kl.fill_((1 - progress) * c.desired_kl + progress * c.final_kl)

    def clear_graphs(self) -> None:
        """Capture the CUDA graphs again at the next step: loading a checkpoint replaced the optimizer's tensors."""
        self._minibatches.clear()
        self._weighted.clear()
        self._step = Graphed(self._clip_and_step, self.device)

    # ------------------------------------------------------------------ its parts

    def _reset_sums(self) -> None:
        for tensor in (self._sums, self._epoch, self._stopped, self._failed):
            tensor.zero_()

    def _inputs(self, batch: Batch) -> dict[str, Tensor]:
        """What each network takes in each step of a batch (T, N, D), by its name."""
        dtype = torch.bfloat16 if self.precision == "bf16" else torch.float32
        # Normalizers do not change during an update, so each sample is normalized once.
        samples, shares = batch.reward.numel(), 1 if self._workers is None else self._workers.count
        if not self.shards.single:
            shares = self.shards.count  # not the workers: rounding must not depend on their number
        large = samples // (self.parts(samples) * shares) >= LEAST_ROWS
        self._halved = self._blocks if large else {}
        workers = None if self.shards.single else self._workers
        observed = {}
        for net in self.networks:
            seen = self.shards.parts(batch.observed(net.groups)[:-1], dim=1)
            inputs = map_each(workers, partial(self._input, net.name, net.model, dtype), seen)
            observed[net.name] = inputs[0] if len(inputs) == 1 else torch.cat(inputs, dim=1)
        return observed

    @torch.no_grad()
    def _input(self, name: str, net: MLPModel, dtype: torch.dtype, seen: Tensor) -> Tensor:
        """What a network takes of its observations (T, n, D): normalized, and where it is halved, their parts."""
        normalized = net.obs_normalizer(seen).to(dtype)
        return self._halved[name].parts(normalized) if name in self._halved else normalized

    def _outputs(self, net: Net, inputs: Tensor) -> Tensor:
        """The network's outputs (B, K) for its inputs (B, D) of the tables, in the engine's precision."""
        out: Tensor = self._halved.get(net.name, partial(self._through, net.model.mlp))(inputs)
        return out

    def _samples(self, data: dict[str, Tensor], done: Tensor) -> Tables:
        """Tables of samples, or of environments where the actor is recurrent, of `data` (T, N, ...) by name."""
        if self.recurrence is not None:
            return self.recurrence.tables(data, done)
        return {name: x.flatten(0, 1) for name, x in data.items()}

    def _equivariant(self, symmetry: Symmetry) -> Equivariance:
        """Make the networks, whose weights are new, symmetric."""
        pairs = zip(self.networks, self._seen(symmetry), strict=True)
        made = Equivariance(
            self.adam, [(net.model, seen, symmetry.action if net.acts else None) for net, seen in pairs]
        )
        made.begin()
        return made

    def _seen(self, symmetry: Symmetry) -> list[Reflection]:
        """Reflections of what each network observes, estimates included."""
        return [
            joined([symmetry.groups[group] for group in (*net.groups, *net.estimated)])
            for net in self.networks
        ]

    def _blocks_of(self, exact: Symmetry) -> dict[str, Blocks]:
        """Of the networks, by name, those that are worth it."""
        plain = self.recurrence is None and self.symmetry is None
        if not plain or self.device.type != "cpu" or self.precision != "fp32":
            return {}
        pairs = zip(self.networks, self._seen(exact), strict=True)
        return {net.name: Blocks(net.model.mlp, seen) for net, seen in pairs if can_halve(net.model.mlp)}

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
        size = len(next(iter(part.values())))
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
        """Gradient of each parameter and the numbers of `losses`, as means over these samples."""
        if self.symmetry is not None:
            part = with_mirror_image(part, self.symmetry.action, self._mirror)
        loss, numbers = self.objective(part)
        return torch.autograd.grad(loss, self.adam.parameters), numbers.detach()

    def _originals(self, rows: Tensor) -> slice:
        """The samples among the rows that `objective` gets, which may be followed by their mirror images."""
        return slice(len(rows) // 2 if self.symmetry is not None else None)

    @torch.no_grad()
    def _clip_and_step(self) -> None:
        """One step of Adam, skipped after the KL divergence exceeded `max_kl` or a gradient was not finite."""
        self._losses[:-1].copy_(self.adam.extra)
        if self.equivariance is not None:
            self.equivariance.project_gradients()
        norms, finite = self.adam.clip()
        # Stop before a step that would move the policy even further.
        if self._kl is not None:
            self._stopped.logical_or_(self._losses[self._kl] > self._settings.max_kl)
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
        c, rate = self._settings, self.adam.rate
        if c.schedule == "fixed" or self._kl is None:
            return
        kl = self._epoch[self._kl] / self._epoch[-1].clamp(min=1.0)
        lower = self._stopped | (kl > 2 * self._wanted_kl)
        higher = torch.where(kl < self._wanted_kl / 2, rate * 1.5, rate)
        new = torch.where(lower, rate / 1.5, higher).clamp(c.min_learning_rate, c.max_learning_rate)
        self.adam.set_rate(torch.where(self._failed, rate, new))

    def _failure(self) -> str:
        """The error message for a non-finite gradient, with the name of the first non-finite tensor."""
        shown = {"actor": "actor observations", "critic": "critic observations"}
        named = {shown.get(name, name): x for name, x in self._tables.items()}
        weights = {f"weights {n}": p for n, p in zip(self.adam.names, self.adam.parameters, strict=True)}
        observed = {name: named.pop(name) for name in shown.values() if name in named}
        found = [k for k, x in (observed | weights | named).items() if not torch.isfinite(x).all()]
        if not found:
            norms = self._failed_norms.tolist()
            bad = [i for i, norm in enumerate(norms) if not isfinite(norm)]
            # The sum may overflow although no single norm does; then name the largest.
            found = [f"gradient of {self.adam.names[bad[0] if bad else norms.index(max(norms))]}"]
        said = ", ".join(
            f"{name} {value:g}"
            for name, value in zip(self.losses[:2], self._failed_losses.tolist(), strict=False)
        )
        return (
            f"the gradient is not finite; the first non-finite tensor: {found[0]} ({said}); "
            "lower learner.learning_rate, or check the reward terms in metrics.jsonl"
        )
