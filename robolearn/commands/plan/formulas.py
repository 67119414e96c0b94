"""The formulas of `robolearn plan`: memory, devices, transfers, ranks, overlap, staleness.

Seconds, bytes and bytes per second throughout. Everything here is a function of its arguments, so that the numbers of a
robot and of a language model come from the same code.
"""

from __future__ import annotations

import heapq
import math
from dataclasses import dataclass, replace

import numpy as np

from robolearn.core.shards import LARGE, blocks, owned

MIXED_PRECISION_ADAM = {"weights": 2, "gradients": 2, "optimizer": 12}
"""Bytes for each trained parameter: weights and gradients of two bytes each, and in fp32 a copy of the weights and
Adam's two moments (Rajbhandari et al., 2020, "ZeRO: Memory Optimizations Toward Training Trillion Parameter Models",
section 3.1)."""
FROZEN = {"weights": 2}
"""Bytes for each parameter of a network that is only evaluated, in two bytes."""

VALUE = 4
"""Bytes of a weight or a gradient here: fp32."""

QUANTILE = 1.645
"""Standard deviations above the mean below which 95 % of normally distributed durations lie."""


# ---------------------------------------------------------------------------------------- memory


def state_bytes(parameters: float, per_parameter: dict[str, float]) -> dict[str, float]:
    """Bytes of a network by part: parameters x bytes for each of them."""
    return {part: parameters * each for part, each in per_parameter.items()}


def devices_for(needed: float, usable: float, per_node: int) -> int:
    """Number of devices whose memory holds `needed` bytes.

    `usable` bytes of each count. Up to a node the number is rounded up to a power of two, so that tensors divide
    evenly; beyond it to whole nodes of `per_node` devices.
    """
    count = max(1, math.ceil(needed / usable))
    if count <= per_node:
        return min(per_node, 1 << (count - 1).bit_length())
    return per_node * math.ceil(count / per_node)


def fitting(free: float, fixed: float, each: float) -> int:
    """The most items that fit into `free` bytes, where they take `fixed` + `each` x items."""
    return max(0, math.floor((free - fixed) / each)) if each > 0 else 2**31


# ---------------------------------------------------------------------------------------- networks


@dataclass(frozen=True)
class Link:
    """A connection between two processes."""

    latency: float
    """Time of an empty message [s]."""
    bandwidth: float
    """Bytes per second."""

    def seconds(self, size: float) -> float:
        """Time to send `size` bytes: latency + size / bandwidth."""
        return self.latency + size / self.bandwidth


def gather_seconds(ranks: int, size: float, link: Link) -> float:
    """Time of an all-gather of `size` bytes from each rank, in a ring.

    Each of ranks - 1 rounds sends `size` bytes (Thakur, Rabenseifner and Gropp, 2005, "Optimization of Collective
    Communication Operations in MPICH", section 4.1).
    """
    return (ranks - 1) * link.seconds(size)


def sum_seconds(ranks: int, size: float, link: Link, shards: int) -> float:
    """Time of a sum of `size` bytes over the ranks, whose bits do not depend on their number.

    The values of the shards are added in pairs along one tree (`robolearn.core.shards`). A rank adds what lies below
    the nodes that its shards complete: one node where the number of ranks is a power of two, else up to `nodes`.

    A large tensor, and one node a rank: each rank sums a slice of `size` / ranks. It sends ranks - 1 slices to the
    others, each as a message of its own, and the sums of the slices are gathered in a ring of ranks - 1 rounds, so the
    time is 2 (ranks - 1) x (latency + size / (ranks x bandwidth)).

    Else every rank gathers all nodes and adds them: (ranks - 1) x (latency + nodes x size / bandwidth).
    """
    nodes = max(len(blocks(mine)) for mine in owned(shards, ranks))
    if nodes == 1 and size >= VALUE * LARGE:
        return 2 * gather_seconds(ranks, size / ranks, link)
    return gather_seconds(ranks, nodes * size, link)


# ---------------------------------------------------------------------------------------- time


@dataclass(frozen=True)
class Linear:
    """A duration that grows with the amount of work: fixed + each x work."""

    fixed: float
    each: float

    def at(self, work: float) -> float:
        """The duration for this amount of work [s]."""
        return self.fixed + self.each * work


@dataclass(frozen=True)
class Iteration:
    """Seconds of one training iteration by phase."""

    simulate: float
    infer: float
    learn: float
    synchronize: float
    other: float

    @property
    def total(self) -> float:
        """All phases, one after the other."""
        return self.collect + self.learn + self.synchronize + self.other

    @property
    def collect(self) -> float:
        """What an actor does: it simulates and infers in turn."""
        return self.simulate + self.infer


def overlap_ceiling(iteration: Iteration) -> float:
    """Upper bound of the speed-up by collecting the next batch while learning from the last one.

    total / max(collect, learn): the longer of the two remains. It needs hardware for both at once.
    """
    return iteration.total / max(iteration.collect, iteration.learn)


# ---------------------------------------------------------------------------------------- ranks


@dataclass(frozen=True)
class Work:
    """How an iteration's time divides between ranks."""

    whole: Iteration
    """On one rank."""
    fixed: Iteration
    """The part of it that every rank repeats, however many there are."""
    shards: int
    """Logical shards of the batch. A rank computes whole shards, so the slowest has ceil(shards / ranks) of them."""
    minibatches: int
    """Gradient steps in an iteration. Each shard has a backward pass of its own in each of them."""
    backward: float
    """What a backward pass costs beyond its samples [s]; `whole` has one for each gradient step."""
    reductions: int
    """Sums over the ranks in an iteration."""
    reduced: float
    """Bytes of each sum."""


@dataclass(frozen=True)
class Scaling:
    """An iteration on a number of ranks."""

    ranks: int
    seconds: float
    reduce: float
    """The part of it that is spent in sums over the ranks [s]."""
    speedup: float
    """Against one process that computes whole batches, as without `ranks`."""
    efficiency: float
    """Speed-up / ranks."""
    added: float
    """Speed-up since the row before."""


def on_ranks(work: Work, ranks: int, link: Link) -> float:
    """Seconds of an iteration on this many ranks, each with hardware of its own.

    fixed + (whole - fixed) x share + minibatches x backward x (own - share) + reductions x sum, where
    own = ceil(shards / ranks) is the number of shards of the slowest rank, and share = own / shards. `whole` has one
    backward pass in each gradient step; sharded, there are `own`.
    """
    own = math.ceil(work.shards / ranks)
    share = own / work.shards
    fixed, whole = work.fixed.total, work.whole.total
    more = work.minibatches * work.backward * (own - share)
    return fixed + (whole - fixed) * share + more + reduce_seconds(work, ranks, link)


def reduce_seconds(work: Work, ranks: int, link: Link) -> float:
    """Seconds of an iteration that are spent in sums over the ranks."""
    return work.reductions * sum_seconds(ranks, work.reduced, link, work.shards)


def scaling(work: Work, link: Link, most: int = 16) -> list[Scaling]:
    """A row for each number of ranks from 1 to `most`, or to the number of shards."""
    rows: list[Scaling] = []
    alone = work.whole.total
    for ranks in range(1, min(most, work.shards) + 1):
        seconds = on_ranks(work, ranks, link)
        speedup = alone / seconds
        added = speedup - rows[-1].speedup if rows else speedup
        rows.append(
            Scaling(ranks, seconds, reduce_seconds(work, ranks, link), speedup, speedup / ranks, added)
        )
    return rows


def ranks_that_pay(rows: list[Scaling], least: float) -> Scaling:
    """The most ranks of which each added at least `least` of one process's speed, on average since the last such
    number. Shards are whole, so speed rises in stairs, and a number between two stairs never pays."""
    best = rows[0]
    for row in rows[1:]:
        if (row.speedup - best.speedup) / (row.ranks - best.ranks) >= least:
            best = row
    return best


# ---------------------------------------------------------------------------------------- asynchronous


@dataclass(frozen=True)
class Duration:
    """A duration that varies."""

    mean: float
    std: float = 0.0


@dataclass(frozen=True)
class Pipeline:
    """Actors that collect batches while a learner learns from earlier ones."""

    collect: Duration
    """From the request of a batch to its arrival, with the actors that share one batch."""
    learn: Duration
    """The learner's time for a batch."""
    transfer: float
    """Weights to the actors, and the batch back [s]."""
    actors: int = 1
    """Batches that are collected at the same time."""


def period(pipeline: Pipeline) -> float:
    """Seconds for a batch where nothing waits: the slower of the actors together and the learner."""
    return max(pipeline.collect.mean / pipeline.actors, pipeline.learn.mean)


def round_trip(pipeline: Pipeline, quantile: float = QUANTILE) -> float:
    """Seconds that 95 % of batches need at most, from the weights that collect them to the weights learned from them.

    collect + transfer + learn + quantile x sqrt(std_collect^2 + std_learn^2), for independent durations.
    """
    collect, learn = pipeline.collect, pipeline.learn
    spread = quantile * math.hypot(collect.std, learn.std)
    return collect.mean + pipeline.transfer + learn.mean + spread


def staleness(pipeline: Pipeline, quantile: float = QUANTILE) -> int:
    """The smallest bound K on staleness at which the slower side never waits, in 95 % of the iterations.

    Little's law (Little, 1961, "A Proof for the Queuing Formula: L = lambda W"): a system that finishes one batch in
    each `period` and keeps each for `round_trip` has round_trip / period batches in flight. A bound K allows K + 1 of
    them, so K = ceil(round_trip / period) - 1. K = 0 is synchronous.
    """
    return max(0, math.ceil(round_trip(pipeline, quantile) / period(pipeline) - 1e-9) - 1)


def busy(pipeline: Pipeline, bound: int, batches: int = 4000, seed: int = 0) -> float:
    """Share of the time that the learner learns at a bound on staleness, simulated.

    Durations are drawn from gamma distributions with the pipeline's means and deviations. Batch i is asked for once
    update i - bound - 1 is done, waits for a free actor, and is learned from in order.
    """
    random = np.random.default_rng(seed)

    def draw(duration: Duration) -> np.ndarray:
        if duration.std == 0:
            return np.full(batches, duration.mean)
        ratio = duration.std / duration.mean
        return random.gamma(1 / ratio**2, duration.std * ratio, batches)

    collect, learn = draw(pipeline.collect), draw(pipeline.learn)
    done = np.zeros(batches)
    free = [0.0] * pipeline.actors
    now = 0.0
    for i in range(batches):
        asked = done[i - bound - 1] if i > bound else 0.0
        arrived = max(asked, heapq.heappop(free)) + collect[i]
        heapq.heappush(free, arrived)
        now = max(arrived + pipeline.transfer, now) + learn[i]
        done[i] = now
    return float(learn.sum() / now)


def with_actors(pipeline: Pipeline) -> Pipeline:
    """The same with as many actors as the learner can use: ceil(collect / learn)."""
    return replace(pipeline, actors=max(1, math.ceil(pipeline.collect.mean / pipeline.learn.mean - 1e-9)))
