"""`robolearn plan --example`: the same formulas for a language model, from the inputs in a YAML file."""

from __future__ import annotations

import math
from typing import Annotated, Any, Literal

import pydantic

from robolearn.commands.plan import formulas, packaged
from robolearn.commands.plan.formulas import Duration, Link, Pipeline
from robolearn.commands.plan.machine import Count, NotNegative, Positive
from robolearn.commands.plan.tables import bytes_text, seconds_text, table
from robolearn.commands.strict import Strict, checked
from robolearn.config import yaml_file
from robolearn.errors import quote

SCHEMA = 1


class Bytes(Strict):
    """Bytes for each parameter, by part."""

    trained: dict[str, Positive]
    frozen: dict[str, Positive]


class Gpu(Strict):
    """A GPU, and how many of them are in a node."""

    name: str
    memory: Positive
    """Usable bytes."""
    per_node: Count


class Connection(Strict):
    """The network between learner and generators."""

    gigabits: Positive
    """Gigabits per second."""
    latency: NotNegative
    """Seconds."""


class Varying(Strict):
    """A duration [s]."""

    mean: Positive
    std: NotNegative


class Stages(Strict):
    """Generating a batch and learning from it."""

    generate: Varying
    learn: Varying
    at_once: Count
    """Batches that are generated at the same time."""


class Example(Strict):
    """Networks that are trained together."""

    version: Annotated[int, pydantic.Field(alias="schema")]
    title: str
    parameters: Positive
    algorithms: dict[str, dict[str, Literal["trained", "frozen"]]]
    bytes: Bytes
    gpu: Gpu
    link: Connection
    pipeline: Stages

    @pydantic.field_validator("version")
    @classmethod
    def _version(cls, value: int) -> int:
        if value != SCHEMA:
            raise ValueError(f"{value} is not {SCHEMA}, the version that this RoboLearn reads")
        return value


def find(name: str) -> Example:
    """An example by name or file.

    Raises:
        ConfigError: there is none, or the file is invalid.
    """
    path = packaged.find("examples", "--example", name)
    return checked(Example, yaml_file.read(path), quote(str(path), 120))


def results(example: Example) -> dict[str, Any]:
    """What the formulas give for an example: by algorithm, and for weights and staleness."""
    found: dict[str, Any] = {"algorithms": {}}
    per = {"trained": example.bytes.trained, "frozen": example.bytes.frozen}
    for name, roles in example.algorithms.items():
        parts = {role: formulas.state_bytes(example.parameters, per[kind]) for role, kind in roles.items()}
        total = sum(sum(part.values()) for part in parts.values())
        gpus = formulas.devices_for(total, example.gpu.memory, example.gpu.per_node)
        found["algorithms"][name] = {"roles": parts, "bytes": total, "gpus": gpus}
    weights = formulas.state_bytes(example.parameters, per["frozen"])["weights"]
    sync = Link(example.link.latency, example.link.gigabits * 1e9 / 8).seconds(weights)
    stages = example.pipeline
    pipeline = Pipeline(
        Duration(stages.generate.mean, stages.generate.std),
        Duration(stages.learn.mean, stages.learn.std),
        sync,
        stages.at_once,
    )
    bound = formulas.staleness(pipeline)
    found["weights"] = {"bytes": weights, "seconds": sync}
    found["staleness"] = {
        "best": bound,
        "period": formulas.period(pipeline),
        "round_trip": formulas.round_trip(pipeline),
        "busy": {k: formulas.busy(pipeline, k) for k in sorted({0, 1, 2, 3, 5, 10, bound})},
    }
    return found


def lines(example: Example, found: dict[str, Any]) -> list[str]:
    """The results as text, with the formula and the inputs beside each."""
    per = {"trained": example.bytes.trained, "frozen": example.bytes.frozen}
    gpu, link, stages = example.gpu, example.link, example.pipeline
    out = [f"{example.title}, {example.parameters / 1e9:g} billion parameters in each network", ""]
    rows = [["", "network", "", "bytes a parameter", "memory"]]
    for name, roles in example.algorithms.items():
        result = found["algorithms"][name]
        for i, (role, kind) in enumerate(roles.items()):
            each = " + ".join(f"{size:g} {part}" for part, size in per[kind].items())
            size = sum(result["roles"][role].values())
            rows.append([name if i == 0 else "", role, kind, each, bytes_text(size)])
        all_roles = sum(sum(per[kind].values()) for kind in roles.values())
        rows.append(["", "in all", "", f"{all_roles:g}", bytes_text(result["bytes"])])
        rows.append(["", "GPUs", "", f"{result['bytes'] / gpu.memory:.2f}", f"{result['gpus']} {gpu.name}"])
    out += table(rows, "lllrr")
    rounded = f"rounded up to a power of two, beyond {gpu.per_node} to whole nodes of {gpu.per_node}"
    out += [
        "",
        "memory = parameters x bytes a parameter, without activations, the generators' caches and buffers",
    ]
    out += [f"GPUs = memory / {bytes_text(gpu.memory)}, {rounded}", ""]
    weights, stale = found["weights"], found["staleness"]
    size = bytes_text(weights["bytes"])
    out.append(
        f"new weights for the generators: {size} over {link.gigabits:g} Gb/s take {weights['seconds']:.2f} s"
    )
    out += ["  seconds = latency + bytes / bandwidth", ""]
    best = f"staleness: K = {stale['best']} is the least bound at which the learner waits in less than 5 % of updates"
    parts = f"generate {stages.generate.mean:g} s + weights {weights['seconds']:.1f} s + learn {stages.learn.mean:g} s"
    spread = f"{formulas.QUANTILE:g} x spread {math.hypot(stages.generate.std, stages.learn.std):g} s"
    out += [best, "  K = ceil(round trip / period) - 1, by Little's law"]
    out += [f"  round trip = {parts} + {spread} = {stale['round_trip']:.1f} s"]
    out += [
        f"  period = max(generate / {stages.at_once} at once, learn) = {seconds_text(stale['period'])}",
        "",
    ]
    rows = [["K", *(str(k) for k in stale["busy"])]]
    rows.append(["learner busy", *(f"{100 * share:.0f} %" for share in stale["busy"].values())])
    return out + table(rows, "l" + "r" * len(stale["busy"]))
