"""Placement: where the processes of an asynchronous training run, a small YAML file.

    engine: local             # or ray
    staleness: 1              # updates that a policy may be behind when its batch is used
    actor: {count: 4}
    evaluator: {every: 20}

Every key has a default; docs/async.md explains them.
"""

from __future__ import annotations

import math
import os
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from robolearn.config import fields, yaml_file
from robolearn.errors import ConfigError, quote


def usable_cores() -> int:
    """Number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


_DEVICE = {"pattern": r"auto|cpu|cuda(:\d{1,2})?", "form": "auto, cpu, cuda or cuda:N (a GPU's number)"}


@dataclass(frozen=True)
class ActorRole:
    """The processes that simulate."""

    count: int = field(default=0, metadata={"min": 0, "max": 65536})
    """Number of actors; 0: the cores of this machine but one, or the next lower divisor of num_envs."""
    envs: int = field(default=0, metadata={"min": 0, "max": 1_048_576})
    """Environments of each actor; 0: num_envs divided among the batches of an update."""
    device: str | None = field(default=None, metadata=_DEVICE)
    """Device of each; null: the run's."""
    cores: int = field(default=1, metadata={"min": 1, "max": 1024})
    """Cores of each: threads of its simulator and of torch."""
    resources: dict[str, float] = field(default_factory=dict, metadata={"open": True})
    """Ray: custom resources that each takes, such as {sim: 1}; GPU: n for GPUs."""
    labels: dict[str, str] = field(default_factory=dict, metadata={"open": True})
    """Ray: labels of the nodes that they may run on, such as {role: sim}."""


@dataclass(frozen=True)
class LearnerRole:
    """The process that learns and writes the run folder: that of the command."""

    device: str | None = field(default=None, metadata=_DEVICE)
    """Its device; null: the run's."""
    cores: int = field(default=0, metadata={"min": 0, "max": 1024})
    """Its threads of torch; 0: the run's torch_threads."""


@dataclass(frozen=True)
class EvaluatorRole:
    """A process that evaluates the newest policy; there is none unless the file has `evaluator:`."""

    every: int = field(default=10, metadata={"min": 1, "max": 1_000_000_000})
    """Iterations between two evaluations."""
    episodes: int = field(default=64, metadata={"min": 1, "max": 1_000_000})
    """Environments of an evaluation, which runs an episode in each."""
    device: str | None = field(default=None, metadata=_DEVICE)
    """Its device; null: the run's."""
    cores: int = field(default=1, metadata={"min": 1, "max": 1024})
    """Its cores."""
    resources: dict[str, float] = field(default_factory=dict, metadata={"open": True})
    """As for actors."""
    labels: dict[str, str] = field(default_factory=dict, metadata={"open": True})
    """As for actors."""


@dataclass(frozen=True)
class Placement:
    """Roles and their places."""

    engine: Literal["auto", "local", "ray"] = "auto"
    """local: processes of this machine; ray: a Ray cluster; auto: ray where `address` is given, else local."""
    address: str | None = None
    """Ray: address of the cluster, auto for the one of this machine; null: start one here."""
    staleness: int = field(default=1, metadata={"min": 0, "max": 1000})
    """How many updates old the policy may be that collected a batch, when the batch is used. 0: synchronous."""
    batches: int = field(default=0, metadata={"min": 0, "max": 65536})
    """Batches of an update, which together have num_envs environments; 0: as many as there are actors."""
    fresh: float = field(default=0.0, metadata={"min": 0.0, "max": 1.0})
    """Share of an update's batches that are not collected ahead: 0.5 gives half-fresh updates. 1 overlaps nothing."""
    timeout: float = field(default=600.0, metadata={"min": 1.0, "max": 1e6})
    """Longest time for a batch [s]; after it an actor is replaced."""
    actor: ActorRole = field(default_factory=ActorRole)
    learner: LearnerRole = field(default_factory=LearnerRole)
    evaluator: EvaluatorRole | None = None

    @property
    def on_ray(self) -> bool:
        """Whether actors run on Ray."""
        return self.engine == "ray" or (self.engine == "auto" and self.address is not None)

    @property
    def ahead(self) -> int:
        """Batches that all actors together may collect beyond those of the current update."""
        return math.floor(self.staleness * self.batches * (1 - self.fresh))


def read(path: str | None, num_envs: int, cores: int | None = None) -> Placement:
    """The placement in a file, or the default one, complete for a run with so many environments.

    Args:
        path: the file; an empty one is the default placement.
        num_envs: environments of the run.
        cores: of this machine, for the number of actors where none is given.

    Raises:
        ConfigError: the file cannot be read, has an unknown key or a value out of range, does not fit `num_envs`, or
            sets for local processes what only Ray can do.
    """
    if path is None:
        return _complete(Placement(), num_envs, cores)
    try:
        made = _written(path)
        _require_ray(made)
        return _complete(made, num_envs, cores)
    except ConfigError as error:
        shown = quote(path, 120)
        raise ConfigError(str(error) if shown in str(error) else f"{shown}: {error}") from error


def actors_in(path: str) -> int:
    """The number of actors that a file asks for, 0 where it leaves it open.

    Raises:
        ConfigError: as for `read`.
    """
    return _written(path).actor.count


def _written(path: str) -> Placement:
    """The placement in a file, with the zeros that it leaves open."""
    content = yaml_file.read(Path(path), empty=True)
    for role, example in {"actor": "count: 2", "learner": "cores: 2", "evaluator": "every: 10"}.items():
        given = content.get(role, {})
        if given is None and role != "evaluator":  # all keys below it are commented out
            del content[role]
        elif given is not None and not isinstance(given, dict):
            inner = f"count: {given}" if role == "actor" and type(given) is int else example
            raise ConfigError(f"{role} takes settings, not {quote(given)}; write {role}: {{{inner}}}")
    # Whole: the file's dictionaries may be empty.
    made: Placement = fields.apply(Placement(), Placement, content, "placement", {}, whole=True)
    return made


def _require_ray(placement: Placement) -> None:
    """Raise ConfigError for settings that only Ray knows where processes are local."""
    if placement.on_ray:
        return
    for name, role in (("actor", placement.actor), ("evaluator", placement.evaluator)):
        for key in ("resources", "labels"):
            if role is not None and getattr(role, key):
                raise ConfigError(
                    f"{name}.{key} is for Ray, and these processes are local ones; leave it out, or set engine: ray"
                )


def _complete(placement: Placement, num_envs: int, cores: int | None) -> Placement:
    """The placement with the numbers that its zeros stand for."""
    actor, batches = placement.actor, placement.batches
    if not actor.count:
        most = min(max(1, (cores or usable_cores()) - 1), num_envs)
        count = batches or next(n for n in range(most, 0, -1) if num_envs % n == 0)
        actor = replace(actor, count=num_envs // actor.envs or 1 if actor.envs else count)
    batches = batches or actor.count
    envs = actor.envs or max(1, num_envs // batches)
    if envs * batches != num_envs:
        raise ConfigError(_misfit(placement, num_envs, cores, envs * batches))
    made = replace(placement, batches=batches, actor=replace(actor, envs=envs))
    if actor.count > batches + made.ahead:
        raise ConfigError(
            f"actor.count={actor.count}: with batches={batches}, staleness={made.staleness} and fresh={made.fresh:g} "
            f"only {batches + made.ahead} may collect at a time; raise batches or staleness"
        )
    return made


def _misfit(placement: Placement, num_envs: int, cores: int | None, product: int) -> str:
    """The message for numbers whose `product`, the environments of an update, is not `num_envs`."""
    actor, batches = placement.actor, placement.batches
    parts = {"batches": batches, "actor.count": 0 if batches else actor.count, "actor.envs": actor.envs}
    given = {name: value for name, value in parts.items() if value}

    def nearest(value: int) -> int:
        return min((n for n in range(1, num_envs + 1) if num_envs % n == 0), key=lambda n: abs(n - value))

    fixes: dict[str, Placement] = {}
    if len(given) == 1:
        ((name, value),) = given.items()
        what = f"{name}={value} does not divide num_envs={num_envs}"
        near = nearest(value)
        fixes[f"use {name.rpartition('.')[2]}: {near}"] = {
            "batches": replace(placement, batches=near),
            "actor.count": replace(placement, actor=replace(actor, count=near)),
            "actor.envs": replace(placement, actor=replace(actor, envs=near)),
        }[name]
    else:
        what = f"{' times '.join(f'{k}={v}' for k, v in given.items())} is {product}, not num_envs={num_envs}"
        if num_envs % actor.envs == 0:
            fixes[f"use batches: {num_envs // actor.envs}"] = replace(
                placement, batches=num_envs // actor.envs
            )
        fixes["leave actor.envs out"] = replace(placement, actor=replace(actor, envs=0))
        near = nearest(batches or actor.count)
        both = replace(actor, count=actor.count if batches else near, envs=num_envs // near)
        fixes[f"use {'batches' if batches else 'actor.count'}: {near} and actor.envs: {num_envs // near}"] = (
            replace(placement, batches=near if batches else 0, actor=both)
        )
    works = [text for text, fix in fixes.items() if _fits(fix, num_envs, cores)][:1]
    if _fits(placement, product, cores):
        works.append(f"use num_envs={product}")
    return f"{what}; {', or '.join(works) or 'use fewer actors'}"


def _fits(placement: Placement, num_envs: int, cores: int | None) -> bool:
    try:
        _complete(placement, num_envs, cores)
    except ConfigError:
        return False
    return True
