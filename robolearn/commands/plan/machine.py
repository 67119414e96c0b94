"""A machine's constants: what `plan --save` writes and `plan --machine` reads."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import pydantic

from robolearn.commands.plan import packaged
from robolearn.commands.plan.formulas import Linear, Link
from robolearn.commands.strict import Strict, checked
from robolearn.config import yaml_file
from robolearn.errors import ConfigError, listing, quote

SCHEMA = 1
"""Version of the layout of the file."""

Positive = Annotated[float, pydantic.Field(gt=0, allow_inf_nan=False)]
NotNegative = Annotated[float, pydantic.Field(ge=0, allow_inf_nan=False)]
Count = Annotated[int, pydantic.Field(ge=1)]


class Line(Strict):
    """A duration [s] or a size [bytes]: fixed + each x work."""

    fixed: NotNegative
    each: NotNegative

    @property
    def linear(self) -> Linear:
        """The same as a formula."""
        return Linear(self.fixed, self.each)


class Phases(Strict):
    """Seconds by phase. The work of simulate and infer is the environments, for each of the iteration's steps; that of
    learn, synchronize and other the samples, once for each iteration."""

    simulate: Line
    infer: Line
    learn: Line
    synchronize: Line
    other: Line


class Spread(Strict):
    """Standard deviations from one iteration to the next, divided by the means."""

    collect: NotNegative
    learn: NotNegative


class Memory(Strict):
    """Bytes by environment: of the host, and of a GPU where there is one."""

    host: Line
    gpu: Line | None = None


class Measured(Strict):
    """Where the constants of a workload come from."""

    num_envs: list[Count]
    iterations: Count
    versions: dict[str, str]
    load: NotNegative | None = None
    """Processes that wanted to run on this machine beforehand, a mean over a minute; they slow a measurement down."""
    residual: NotNegative = 0.0
    """Largest relative error of the model at the measured sizes."""


class Workload(Strict):
    """One task on one simulator with one learner."""

    task: str
    backend: str
    learner: str
    device: str
    settings: list[str] = pydantic.Field(default_factory=list)
    """Settings that it was measured with, besides the task's defaults."""
    parameters: Count
    """Parameters of all trained networks."""
    actor_parameters: Count
    """Parameters that an actor needs."""
    num_steps: Count
    """Steps of each environment in an iteration, for a learner that does not state them."""
    sample_values: Count
    """Numbers in a step of an environment as the learner stores it: observations, action, reward."""
    start: NotNegative
    """From the command to the first iteration, and the end of the last one [s]."""
    seconds: Phases
    backward: NotNegative = 0.0
    """What a backward pass costs beyond its samples [s]."""
    spread: Spread
    memory: Memory
    measured: Measured


class Network(Strict):
    """The connection between two ranks."""

    latency: NotNegative
    """Of an empty message [s]."""
    bandwidth: Positive
    """Bytes per second."""
    source: str = "given"
    """How these numbers were found."""

    @property
    def link(self) -> Link:
        """The same as a formula."""
        return Link(self.latency, self.bandwidth)


class Machine(Strict):
    """A machine and what was measured on it."""

    version: Annotated[int, pydantic.Field(alias="schema")] = SCHEMA
    name: str
    processor: str
    cores: Count
    memory: Positive
    """Bytes of host memory that a run may use."""
    gpu: str | None = None
    gpu_memory: Positive | None = None
    """Bytes of the GPU's memory that a run may use."""
    price: NotNegative | None = None
    """USD for an hour."""
    network: Network
    workloads: Annotated[list[Workload], pydantic.Field(min_length=1)]

    @pydantic.field_validator("version")
    @classmethod
    def _version(cls, value: int) -> int:
        if value != SCHEMA:
            raise ValueError(f"{value} is not {SCHEMA}, the version that this RoboLearn reads")
        return value

    @pydantic.model_validator(mode="after")
    def _whole(self) -> Machine:
        seen = [(w.task, w.backend, w.learner, w.device) for w in self.workloads]
        for each in seen:
            if seen.count(each) > 1:
                raise ValueError(f"workloads: {' '.join(each)} occurs {seen.count(each)} times; keep one")
        for w in self.workloads:
            if w.device != "cpu" and (self.gpu_memory is None or w.memory.gpu is None):
                raise ValueError(f"workloads: {w.task} ran on a GPU; state gpu_memory and its memory.gpu")
        return self

    def workload(self, task: str, backend: str, learner: str, device: str | None = None) -> Workload:
        """The constants of this task, simulator and learner; of several those on the device, cpu or cuda.

        Raises:
            ConfigError: they were not measured on this machine; names what was.
        """
        found = [w for w in self.workloads if (w.task, w.backend, w.learner) == (task, backend, learner)]
        if found:
            return next((w for w in found if w.device == device), found[0])
        held = [f"task={w.task} backend={w.backend} learner={w.learner}" for w in self.workloads]
        wanted = f"task={task} backend={backend} learner={learner}"
        raise ConfigError(
            f"machine {quote(self.name)} has no measurement of {wanted}; it has {listing(held, 4)}; measure there with "
            f"robolearn plan {wanted} --save FILE"
        )


def find(name: str) -> Machine:
    """A machine by file or by name.

    Raises:
        ConfigError: there is none, or the file is invalid.
    """
    hint = "; write a file on that machine with robolearn plan ... --save FILE"
    return load(packaged.find("machines", "--machine", name, hint))


def load(path: Path) -> Machine:
    """Read a machine's file.

    Raises:
        ConfigError: it cannot be read, or a field is unknown, missing or invalid; names file and field.
    """
    return checked(Machine, yaml_file.read(path), quote(str(path), 120))


def save(machine: Machine, path: Path) -> None:
    """Write a machine's file; one that is there keeps the workloads that were not measured again.

    Raises:
        ConfigError: it cannot be written, or what is there is no machine's file, or another machine's.
    """
    workloads: Sequence[Workload] = machine.workloads
    if path.exists():
        before = load(path)
        require_same(before, path, machine.processor, machine.cores, machine.gpu)
        if machine.gpu is None:  # one that is not used here
            kept_gpu = {"gpu": before.gpu, "gpu_memory": before.gpu_memory}
            machine = machine.model_copy(update=kept_gpu)
        new = {(w.task, w.backend, w.learner, w.device) for w in workloads}
        kept = [w for w in before.workloads if (w.task, w.backend, w.learner, w.device) not in new]
        workloads = [*kept, *workloads]
    content = machine.model_copy(update={"workloads": list(workloads)})
    yaml_file.write(_rounded(content.model_dump(by_alias=True, exclude_none=True)), path)


def require_same(before: Machine, path: Path, processor: str, cores: int, gpu: str | None) -> None:
    """Check that a machine's file is of this one; a GPU counts where both name one.

    Raises:
        ConfigError: it is of another.
    """
    gpus = {name for name in (before.gpu, gpu) if name is not None}
    if (before.processor, before.cores) != (processor, cores) or len(gpus) > 1:
        raise ConfigError(
            f"--save {quote(str(path), 120)}: it is of another machine ({quote(before.processor)}, "
            f"{before.cores} cores, {before.gpu or 'no GPU'}); name another file"
        )


def _rounded(value: Any) -> Any:
    """The same with floats of six digits: more are noise, and hard to read."""
    if isinstance(value, float):
        return float(f"{value:.6g}")
    if isinstance(value, dict):
        return {key: _rounded(item) for key, item in value.items()}
    return [_rounded(item) for item in value] if isinstance(value, list) else value
