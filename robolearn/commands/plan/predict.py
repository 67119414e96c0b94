"""Predicts a run from a machine's constants: the formulas, applied to a configuration."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from robolearn.commands.plan import formulas
from robolearn.commands.plan.formulas import VALUE, Duration, Iteration, Link, Pipeline, Scaling, Work
from robolearn.commands.plan.machine import Machine, Workload
from robolearn.commands.plan.measure import NAMES, SHARDS, duration, minibatches
from robolearn.config.run_config import Config, agents_of
from robolearn.errors import ConfigError
from robolearn.training.host_memory import USABLE


@dataclass(frozen=True)
class Prediction:
    """What a run will take."""

    num_envs: int
    num_steps: int
    """Steps of each environment in an iteration."""
    iteration: Iteration
    iterations: int
    start: float
    """Before the first iteration and after the last one [s]."""
    host_bytes: float
    gpu_bytes: float | None
    most_envs: int
    """Environments that fit into memory."""
    per_env: float
    """Bytes for a further environment, where memory is shortest."""
    device_count: int
    """GPUs, or machines without one, whose memory holds the run."""
    ceiling: float
    """Bound of the speed-up by overlap."""
    ranks: list[Scaling]
    best: Scaling
    """The ranks that pay."""
    pipeline: Pipeline
    """Actors and a learner, each on hardware of its own."""
    bound: int
    """Staleness at which nothing waits."""
    busy: dict[int, float]
    """Share of the time in which the learner learns, by bound on staleness."""

    @property
    def samples(self) -> int:
        """Environment steps of an iteration."""
        return self.num_envs * self.num_steps

    @property
    def steps_per_second(self) -> float:
        """Environment steps per second of training."""
        return self.samples / self.iteration.total

    @property
    def seconds(self) -> float:
        """The whole run [s]."""
        return self.start + self.iterations * self.iteration.total

    def on(self, row: Scaling) -> float:
        """The whole run on that many ranks [s]."""
        return self.start + self.iterations * row.seconds

    @property
    def asynchronous(self) -> float:
        """Environment steps per second with actors and a learner that never waits."""
        return self.samples / formulas.period(self.pipeline)


def steps_of(run: Config, workload: Workload) -> int:
    """Steps of each environment in an iteration of this run."""
    learner = run.learner
    if hasattr(learner, "steps_of"):
        return int(learner.steps_of(run.num_envs))
    return int(getattr(learner, "num_steps", 0) or getattr(learner, "horizon", 0) or workload.num_steps)


def require_one_agent(run: Config) -> None:
    """Refuse a task with several agents."""
    if agents_of(run) > 1 or hasattr(run.task, "agent_id"):  # those of a third-party task are not known yet
        raise ConfigError(f"task={run.task_name} has several agents, of which no plan knows the cost yet")


def predict(run: Config, machine: Machine, workload: Workload, least: float, link: Link) -> Prediction:
    """Apply the formulas.

    Args:
        run: the run.
        machine: its constants.
        workload: the constants of the run's task on it.
        least: share of a process's speed that each further rank must add.
        link: the connection between ranks, and between actors and learner.
    """
    n, steps = run.num_envs, steps_of(run, workload)
    lines = workload.seconds
    whole = Iteration(**{name: duration(lines, name, n, steps) for name in NAMES})
    fixed = Iteration(**{name: duration(lines, name, 0, steps) for name in NAMES})
    parts = minibatches(run, n * steps) * getattr(run.learner, "num_epochs", 1)
    work = Work(
        whole=whole,
        fixed=fixed,
        shards=int(getattr(run, "shards", 0) or SHARDS),
        minibatches=parts,
        backward=min(workload.backward, whole.learn / max(1, parts)),
        reductions=max(1, parts),
        reduced=VALUE * workload.parameters,
    )
    rows = formulas.scaling(work, link)
    pipeline = pipeline_of(workload, whole, link, n * steps)
    host = workload.memory.host.linear
    gpu = None if workload.memory.gpu is None else workload.memory.gpu.linear
    limits = [(formulas.fitting(USABLE * machine.memory, host.fixed, host.each), host, machine.memory)]
    if gpu is not None and machine.gpu_memory is not None:
        limits.append(
            (formulas.fitting(USABLE * machine.gpu_memory, gpu.fixed, gpu.each), gpu, machine.gpu_memory)
        )
    most, shortest, free = min(limits, key=lambda limit: limit[0])
    bound = formulas.staleness(pipeline)
    return Prediction(
        num_envs=n,
        num_steps=steps,
        iteration=whole,
        iterations=run.max_iterations,
        start=workload.start,
        host_bytes=host.at(n),
        gpu_bytes=None if gpu is None else gpu.at(n),
        most_envs=most,
        per_env=shortest.each,
        device_count=formulas.devices_for(shortest.at(n), USABLE * free, 8),
        ceiling=formulas.overlap_ceiling(whole),
        ranks=rows,
        best=formulas.ranks_that_pay(rows, least),
        pipeline=pipeline,
        bound=bound,
        busy={k: formulas.busy(pipeline, k) for k in sorted({0, 1, 2, 3, 5, bound})},
    )


def pipeline_of(workload: Workload, whole: Iteration, link: Link, samples: int) -> Pipeline:
    """As many actors as the learner can use, and the learner, each on hardware like this machine's."""
    collect, learn = whole.collect, whole.learn + whole.synchronize + whole.other
    # Weights go out; observations, actions and rewards come back: about as many values as an observation has.
    sent = link.seconds(VALUE * workload.actor_parameters) + link.seconds(
        VALUE * workload.sample_values * samples
    )
    return formulas.with_actors(
        Pipeline(
            Duration(collect, workload.spread.collect * collect),
            Duration(learn, workload.spread.learn * learn),
            sent,
        )
    )


def as_dict(prediction: Prediction, machine: Machine, workload: Workload) -> dict[str, Any]:
    """For --json: everything that is printed, in seconds and bytes."""
    p = prediction
    iteration = {**asdict(p.iteration), "total": p.iteration.total}
    return {
        "machine": machine.name,
        "task": workload.task,
        "backend": workload.backend,
        "learner": workload.learner,
        "num_envs": p.num_envs,
        "num_steps": p.num_steps,
        "iteration_seconds": iteration,
        "steps_per_second": p.steps_per_second,
        "max_iterations": p.iterations,
        "seconds": p.seconds,
        "usd": None if machine.price is None else machine.price * p.seconds / 3600,
        "memory": {"host": p.host_bytes, "gpu": p.gpu_bytes, "per_env": p.per_env, "most_envs": p.most_envs},
        "overlap_ceiling": p.ceiling,
        "ranks": [asdict(row) for row in p.ranks],
        "ranks_that_pay": p.best.ranks,
        "asynchronous": {
            "actors": p.pipeline.actors,
            "staleness": p.bound,
            "steps_per_second": p.asynchronous,
            "learner_busy": {str(k): share for k, share in p.busy.items()},
        },
        "residual": workload.measured.residual,
    }
