"""Targets: the computers a policy is exported for, each a file of figures that say what they are worth.

A target is data, `targets/NAME.yaml` or a file of the user's in the same layout. Nothing here computes with the
figures; `robolearn.export.latency.latency` does.
"""

from __future__ import annotations

import dataclasses
import difflib
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from robolearn.config import yaml_file
from robolearn.errors import ConfigError, listing, quote
from robolearn.runtime.measure import is_target

SCHEMA = 1
"""Version of a target file's layout."""

MARKS = ("measured", "derived", "assumed")
"""What a figure is worth: measured on this very board, derived from the vendor's specification (as stated, or by
arithmetic), or assumed, for want of better; what was measured on another board is assumed here."""

_FOLDER = Path(__file__).parent / "targets"
_T = TypeVar("_T")


@dataclass(frozen=True)
class Figure:
    """A number with its provenance. Its unit is in the name it goes by, such as `memory_bandwidth_gbs`."""

    value: float
    mark: str
    """One of MARKS."""
    source: str
    """Who says so, or how it was worked out."""


@dataclass(frozen=True)
class Gpu:
    """A GPU as TensorRT uses it: rates as achieved by programs, not peaks."""

    fp32_tflops: Figure
    """Matrix products in fp32, without TF32 [1e12 FLOP/s]."""
    fp16_tflops: Figure
    """Matrix products in fp16 [1e12 FLOP/s]."""
    bf16_tflops: Figure
    """Matrix products in bf16 [1e12 FLOP/s]."""
    memory_bandwidth_gbs: Figure
    """Reading memory [1e9 bytes/s]."""
    kernel_launch_us: Figure
    """Launching one kernel by itself [us]."""
    graph_us: Figure
    """Launching a CUDA graph, however short [us]."""
    graph_node_us: Figure
    """Each kernel in a CUDA graph on top of that [us]."""
    copy_us: Figure
    """A copy between host and device in one direction, however small [us]."""
    wake_us: Figure
    """What a call costs on top because the thread and the GPU slept until then: paced, not in a hot loop [us]."""
    l2_mb: Figure | None = None
    """Second-level cache [1e6 bytes]. The model does not count on it: other programs use it between two steps."""


@dataclass(frozen=True)
class Cpu:
    """One core as ONNX Runtime uses it on one thread."""

    fixed_us: Figure
    """A call of an empty network, paced at the control rate: waking, caches gone cold, calling; the network's call
    only [us]."""
    fp32_gflops: Figure
    """Products of a matrix and a vector out of the caches [1e9 FLOP/s]."""
    memory_bandwidth_gbs: Figure
    """Reading memory with one core [1e9 bytes/s]."""


@dataclass(frozen=True)
class Power:
    """The range of the board's power modes."""

    min_w: Figure
    """Lowest mode [W]."""
    max_w: Figure
    """Highest mode [W]."""


@dataclass(frozen=True)
class Software:
    """A release of the board's system that the export supports."""

    jetpack: str
    tensorrt: str
    mark: str
    """One of MARKS."""
    source: str
    cuda: str = ""
    """Empty where not known."""


@dataclass(frozen=True)
class Budget:
    """The time one control step may take, from sensor readings to targets, as shares of the control period, between 0
    and 1."""

    p50: Figure
    """The median."""
    p99: Figure
    """The 99th percentile."""
    max: Figure
    """The longest step."""
    jitter: Figure
    """p99 - p50."""

    def ms(self, rate_hz: float) -> dict[str, float]:
        """The same at a control rate: `p50`, `p99`, `max` and `jitter` [ms].

        Raises:
            ConfigError: the rate is not a positive number.
        """
        if not (math.isfinite(rate_hz) and rate_hz > 0):
            raise ConfigError(f"a control rate of {rate_hz} Hz; give a positive number")
        return {f.name: getattr(self, f.name).value * 1e3 / rate_hz for f in dataclasses.fields(self)}


@dataclass(frozen=True, kw_only=True)
class ExportTarget:
    """A computer a policy is exported for."""

    name: str
    """What the user types; the file's name without .yaml."""
    title: str
    """What people call it."""
    family: str
    """Boards of one family run each other's programs, not each other's engines."""
    budget: Budget
    aliases: tuple[str, ...] = ()
    """Other names of its compute capability, such as sm_110."""
    compute_capability: str = ""
    """CUDA's, such as 11.0; empty without a GPU."""
    detect: tuple[str, ...] = ()
    """The board is this target where its device-tree model holds one of these, in capitals or not."""
    any_machine: bool = False
    """Whether whatever machine the command runs on is this target."""
    memory_gb: Figure | None = None
    """Memory, shared by CPU and GPU [1e9 bytes]."""
    power: Power | None = None
    software: tuple[Software, ...] = ()
    peak: Mapping[str, Figure] = dataclasses.field(default_factory=dict)
    """What the hardware could do at most, dense, by the name the figure has in `gpu`; only for comparison."""
    step_us: Figure | None = None
    """What runtime.py adds around the network to a control step, paced at the control rate: from readings to
    observations, from actions to targets [us]. The same Python runs around TensorRT and ONNX Runtime, so it stands in
    neither section; a file with `gpu` or `cpu` must have it, and without it nothing is modelled."""
    gpu: Gpu | None = None
    """None: TensorRT cannot be modelled here."""
    cpu: Cpu | None = None
    """None: ONNX Runtime cannot be modelled here."""

    def figures(self) -> dict[str, Figure]:
        """Every figure by its dotted name in the file, such as `gpu.wake_us`."""
        found: dict[str, Figure] = {}
        for name, value in vars(self).items():
            if isinstance(value, Figure):
                found[name] = value
            elif isinstance(value, (Budget, Power, Gpu, Cpu, dict)):
                inner = value if isinstance(value, dict) else vars(value)
                found |= {f"{name}.{key}": item for key, item in inner.items() if item is not None}
        return found


def names() -> list[str]:
    """The targets that are shipped, in alphabetical order."""
    return sorted(path.stem for path in _FOLDER.glob("*.yaml"))


def load(name: str) -> ExportTarget:
    """A shipped target by its name, or the user's by the path of its .yaml file.

    Raises:
        ConfigError: there is none of that name (the valid ones are listed, nearest first), or its file is not valid;
            the file and the key are named.
    """
    if name in names():
        return _read(_FOLDER / f"{name}.yaml")
    if name.endswith((".yaml", ".yml")):
        return _read(Path(name))
    raise ConfigError(
        f"there is no target {quote(name)}; valid are {listing(_nearest(name))} and the path of a .yaml file"
    )


def here(target: ExportTarget, board: str | None) -> bool:
    """Whether a machine is that target.

    Args:
        target: The target.
        board: What the machine calls itself, `runtime.cuda.device_tree_model()`; None where it does not.
    """
    return is_target({"any_machine": target.any_machine, "detect": target.detect}, board)


def _nearest(name: str) -> list[str]:
    """Every shipped name: those that hold what was typed first, then by how alike they are."""
    word = name[:200].lower().replace("_", "-")

    def distance(valid: str) -> tuple[bool, float]:
        return not (word and word in valid), -difflib.SequenceMatcher(None, word, valid).ratio()

    return sorted(names(), key=distance)


# ---------------------------------------------------------------------------------------- reading a file

_SECTIONS: dict[str, type] = {"budget": Budget, "power": Power, "gpu": Gpu, "cpu": Cpu}
_TEXTS = ("title", "family", "compute_capability")
_LISTS = ("aliases", "detect")


def _read(path: Path) -> ExportTarget:
    """A target file, all of it checked."""
    content, where = yaml_file.read(path), quote(str(path), 120)
    if content.pop("schema", None) != SCHEMA:
        raise ConfigError(f"{where}: schema must be {SCHEMA}, the layout that this RoboLearn reads")
    keys = [f.name for f in dataclasses.fields(ExportTarget) if f.name != "name"]
    _known(content, keys, ["title", "family", "budget"], where)
    made: dict[str, Any] = {}
    for key, value in content.items():
        at = f"{where}: {key}"
        if key in _SECTIONS:
            made[key] = _section(_SECTIONS[key], value, at)
        elif key in _TEXTS:
            made[key] = _text(value, at)
        elif key in _LISTS:
            made[key] = tuple(_text(item, at) for item in _list(value, at))
        elif key in ("memory_gb", "step_us"):
            made[key] = _figure(value, at)
        elif key == "peak":
            made[key] = {name: _figure(item, f"{at}.{name}") for name, item in _mapping(value, at).items()}
        elif key == "software":
            made[key] = tuple(_software(item, f"{at}[{i}]") for i, item in enumerate(_list(value, at)))
        else:
            if not isinstance(value, bool):
                raise ConfigError(f"{at} is {quote(value)}; it must be true or false")
            made[key] = value
    target = ExportTarget(name=path.stem, **made)
    _consistent(target, where)
    return target


def _consistent(target: ExportTarget, where: str) -> None:
    """What no figure says by itself."""
    budget = {f.name: getattr(target.budget, f.name).value for f in dataclasses.fields(Budget)}
    for key, share in budget.items():
        if share > 1:
            raise ConfigError(f"{where}: budget.{key} is {share}; a share of the control period is at most 1")
    if not budget["p50"] <= budget["p99"] <= budget["max"]:
        raise ConfigError(f"{where}: budget.p50, p99 and max must not fall in this order")
    achieved = vars(target.gpu) if target.gpu else {}
    for key, peak in target.peak.items():
        figure = achieved.get(key)
        if figure and figure.value > peak.value:
            raise ConfigError(f"{where}: gpu.{key} is {figure.value}, above its peak of {peak.value}")
    if target.any_machine and (target.gpu or target.cpu or target.step_us or target.detect):
        # A model of "whatever machine this is" would be a model of no machine.
        raise ConfigError(
            f"{where}: any_machine does not go with gpu, cpu, step_us or detect; it is measured"
        )
    if (target.gpu or target.cpu) and not target.step_us:
        raise ConfigError(
            f"{where}: step_us is missing; the budget is for the whole step, not the network alone"
        )
    if target.any_machine != (target.name == "host"):
        # The runtime on the robot's computer goes by the name.
        raise ConfigError(f"{where}: any_machine: true belongs to a target of the name host, and to no other")


def _section(kind: type[_T], value: Any, at: str) -> _T:
    """A group of figures; those that have a default in `kind` may be left out."""
    fields = dataclasses.fields(kind)  # type: ignore[arg-type]
    content = _mapping(value, at)
    required = [f.name for f in fields if f.default is dataclasses.MISSING]
    _known(content, [f.name for f in fields], required, at)
    return kind(**{key: _figure(item, f"{at}.{key}") for key, item in content.items()})


def _figure(value: Any, at: str) -> Figure:
    content = _mapping(value, at)
    _known(content, ["value", "mark", "source"], ["value", "mark", "source"], at)
    number = content["value"]
    least = "0 or more" if at.endswith("_us") else "more than 0"  # rates divide, delays may be none
    real = isinstance(number, (int, float)) and not isinstance(number, bool)
    if not (real and (1e-9 <= number <= 1e9 or (number == 0 and at.endswith("_us")))):
        raise ConfigError(f"{at}: value is {quote(number)}; it must be a number, {least}, and at most 1e9")
    return Figure(float(number), *_provenance(content, at))


def _software(value: Any, at: str) -> Software:
    content = _mapping(value, at)
    required = ["jetpack", "tensorrt", "mark", "source"]
    _known(content, [*required, "cuda"], required, at)
    _provenance(content, at)
    # Unquoted, YAML makes 10.10 the number 10.1: only text is taken.
    return Software(**{key: _text(item, f"{at}.{key}") for key, item in content.items()})


def _provenance(content: Mapping[str, Any], at: str) -> tuple[str, str]:
    """Mark and source."""
    if content["mark"] not in MARKS:
        raise ConfigError(f"{at}: mark is {quote(content['mark'])}; valid are {listing(MARKS)}")
    return content["mark"], _text(content["source"], f"{at}.source")


def _known(content: Mapping[str, Any], keys: list[str], required: list[str], at: str) -> None:
    """Refuses unknown keys and missing ones."""
    for key in content:
        if key not in keys:
            raise ConfigError(f"{at}: unknown key {quote(key)}; valid are {listing(keys, 20)}")
    for key in required:
        if key not in content:
            raise ConfigError(f"{at}: {key} is missing")


def _mapping(value: Any, at: str) -> dict[str, Any]:
    if not isinstance(value, dict) or not all(isinstance(key, str) for key in value):
        raise ConfigError(f"{at} is {quote(value)}; it must be a mapping of names")
    return value


def _list(value: Any, at: str) -> list[Any]:
    if not isinstance(value, list):
        raise ConfigError(f"{at} is {quote(value)}; it must be a list")
    return value


def _text(value: Any, at: str) -> str:
    if not isinstance(value, str) or not value.strip() or not value.isprintable():
        raise ConfigError(
            f"{at} is {quote(value)}; it must be one line of text, in quotes where it looks like a number"
        )
    return value
