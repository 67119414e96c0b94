"""Export targets: the computers that a policy is exported for, each a file of figures with marks and sources.

An export target is a file, `targets/NAME.yaml` or a user's file with the same layout.
`robolearn.export.latency.latency` computes with the figures.
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
"""Version of the layout of an export target's file."""

MARKS = ("measured", "derived", "assumed")
"""Origin of a figure: measured on this board, derived from the vendor's specification (as stated, or by arithmetic), or
assumed. A figure that was measured on another board is assumed here."""

_FOLDER = Path(__file__).parent / "targets"
_T = TypeVar("_T")


@dataclass(frozen=True)
class Figure:
    """A number with its provenance. Its name contains the unit, such as `memory_bandwidth_gbs`."""

    value: float
    mark: str
    """One of MARKS."""
    source: str
    """Where it is published, or how it was calculated."""


@dataclass(frozen=True)
class Gpu:
    """A GPU under TensorRT: achieved rates, not peaks."""

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
    """Launching a CUDA graph, without its nodes [us]."""
    graph_node_us: Figure
    """Additional time per kernel in a CUDA graph [us]."""
    copy_us: Figure
    """A small copy between host and device in one direction [us]."""
    wake_us: Figure
    """Additional time of a paced call, because thread and GPU sleep between steps; 0 in a hot loop [us]."""
    l2_mb: Figure | None = None
    """Second-level cache [1e6 bytes]. Not used by the model: other programs fill it between two steps."""


@dataclass(frozen=True)
class Cpu:
    """One CPU core under ONNX Runtime with one thread."""

    fixed_us: Figure
    """A call of an empty network, paced at the control rate: waking up, cold caches, the call itself; without
    runtime.py [us]."""
    fp32_gflops: Figure
    """Matrix-vector products from the caches [1e9 FLOP/s]."""
    memory_bandwidth_gbs: Figure
    """Reading memory with one core [1e9 bytes/s]."""


@dataclass(frozen=True)
class Power:
    """Range of the board's power modes."""

    min_w: Figure
    """Lowest mode [W]."""
    max_w: Figure
    """Highest mode [W]."""


@dataclass(frozen=True)
class Software:
    """A software release of the board that the export supports."""

    jetpack: str
    tensorrt: str
    mark: str
    """One of MARKS."""
    source: str
    cuda: str = ""
    """Empty where not known."""


@dataclass(frozen=True)
class Budget:
    """Longest times of one control step, from sensor readings to joint targets, as shares (0..1) of the control
    period."""

    p50: Figure
    """The median."""
    p99: Figure
    """The 99th percentile."""
    max: Figure
    """The longest step."""
    jitter: Figure
    """p99 - p50."""

    def ms(self, rate_hz: float) -> dict[str, float]:
        """The budget at a control rate: `p50`, `p99`, `max` and `jitter` [ms].

        Raises:
            ConfigError: the rate is not a positive number.
        """
        if not (math.isfinite(rate_hz) and rate_hz > 0):
            raise ConfigError(f"control rate is {rate_hz} Hz; give a positive number")
        return {f.name: getattr(self, f.name).value * 1e3 / rate_hz for f in dataclasses.fields(self)}


@dataclass(frozen=True, kw_only=True)
class ExportTarget:
    """A computer that a policy is exported for."""

    name: str
    """Value of --target; the file's name without .yaml."""
    title: str
    """Name for reports."""
    family: str
    """Boards of one family run the same programs; engines are not portable within a family."""
    budget: Budget
    aliases: tuple[str, ...] = ()
    """Other names of its compute capability, such as sm_110."""
    compute_capability: str = ""
    """CUDA's, such as 11.0; empty without a GPU."""
    detect: tuple[str, ...] = ()
    """The board is this target where its device-tree model contains one of these words; case does not matter."""
    any_machine: bool = False
    """Whether every machine is this target; true only for `host`."""
    memory_gb: Figure | None = None
    """RAM, shared by CPU and GPU [1e9 bytes]."""
    power: Power | None = None
    software: tuple[Software, ...] = ()
    peak: Mapping[str, Figure] = dataclasses.field(default_factory=dict)
    """Peak rates of the hardware, dense, by the figure's name in `gpu`; only for comparison."""
    step_us: Figure | None = None
    """Time of runtime.py around the network in a paced control step: readings to observation, actions to joint targets
    [us]. The same Python code runs around TensorRT and ONNX Runtime, so it is in neither section; required with `gpu`
    or `cpu`."""
    gpu: Gpu | None = None
    """None: no model of TensorRT."""
    cpu: Cpu | None = None
    """None: no model of ONNX Runtime."""

    def figures(self) -> dict[str, Figure]:
        """All figures by dotted name, such as `gpu.wake_us`."""
        found: dict[str, Figure] = {}
        for name, value in vars(self).items():
            if isinstance(value, Figure):
                found[name] = value
            elif isinstance(value, (Budget, Power, Gpu, Cpu, dict)):
                inner = value if isinstance(value, dict) else vars(value)
                found |= {f"{name}.{key}": item for key, item in inner.items() if item is not None}
        return found


def names() -> list[str]:
    """Names of the shipped export targets, in alphabetical order."""
    return sorted(path.stem for path in _FOLDER.glob("*.yaml"))


def load(name: str) -> ExportTarget:
    """A shipped export target by name, or a user's by the path of its .yaml file.

    Raises:
        ConfigError: unknown name (the valid ones are listed, nearest first), or invalid file; file and key are
            named.
    """
    if name in names():
        return _read(_FOLDER / f"{name}.yaml")
    if name.endswith((".yaml", ".yml")):
        return _read(Path(name))
    raise ConfigError(
        f"there is no target {quote(name)}; valid: {listing(_nearest(name))}, or the path of a .yaml file"
    )


def here(target: ExportTarget, board: str | None) -> bool:
    """Whether a machine is the export target.

    Args:
        target: the export target.
        board: name of the machine from `runtime.cuda.device_tree_model()`; None where it has none.
    """
    return is_target({"any_machine": target.any_machine, "detect": target.detect}, board)


def _nearest(name: str) -> list[str]:
    """All shipped names: those that contain `name` first, then by similarity."""
    word = name[:200].lower().replace("_", "-")

    def distance(valid: str) -> tuple[bool, float]:
        return not (word and word in valid), -difflib.SequenceMatcher(None, word, valid).ratio()

    return sorted(names(), key=distance)


# ---------------------------------------------------------------------------------------- reading a file

_SECTIONS: dict[str, type] = {"budget": Budget, "power": Power, "gpu": Gpu, "cpu": Cpu}
_TEXTS = ("title", "family", "compute_capability")
_LISTS = ("aliases", "detect")


def _read(path: Path) -> ExportTarget:
    """Read an export target's file and check all of it."""
    content, where = yaml_file.read(path), quote(str(path), 120)
    if content.pop("schema", None) != SCHEMA:
        raise ConfigError(f"{where}: schema must be {SCHEMA}")
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
    """Check conditions between several figures."""
    budget = {f.name: getattr(target.budget, f.name).value for f in dataclasses.fields(Budget)}
    for key, share in budget.items():
        if share > 1:
            raise ConfigError(f"{where}: budget.{key} is {share}; a share of the control period is at most 1")
    if not budget["p50"] <= budget["p99"] <= budget["max"]:
        raise ConfigError(f"{where}: budget must have p50 <= p99 <= max")
    achieved = vars(target.gpu) if target.gpu else {}
    for key, peak in target.peak.items():
        figure = achieved.get(key)
        if figure and figure.value > peak.value:
            raise ConfigError(f"{where}: gpu.{key} is {figure.value}, above its peak of {peak.value}")
    if target.any_machine and (target.gpu or target.cpu or target.step_us or target.detect):
        # There is no model of an unknown machine.
        raise ConfigError(f"{where}: any_machine excludes gpu, cpu, step_us and detect; remove them")
    if (target.gpu or target.cpu) and not target.step_us:
        raise ConfigError(
            f"{where}: step_us is missing; gpu and cpu need it because the budget is for the whole step"
        )
    if target.any_machine != (target.name == "host"):
        # The runtime on the robot's computer checks the name.
        raise ConfigError(f"{where}: any_machine must be true for the target host, and for no other")


def _section(kind: type[_T], value: Any, at: str) -> _T:
    """A section of figures; those with a default in `kind` are optional."""
    fields = dataclasses.fields(kind)  # type: ignore[arg-type]
    content = _mapping(value, at)
    required = [f.name for f in fields if f.default is dataclasses.MISSING]
    _known(content, [f.name for f in fields], required, at)
    return kind(**{key: _figure(item, f"{at}.{key}") for key, item in content.items()})


def _figure(value: Any, at: str) -> Figure:
    content = _mapping(value, at)
    _known(content, ["value", "mark", "source"], ["value", "mark", "source"], at)
    number = content["value"]
    least = "0 or more" if at.endswith("_us") else "more than 0"  # rates are divisors, delays may be 0
    real = isinstance(number, (int, float)) and not isinstance(number, bool)
    if not (real and (1e-9 <= number <= 1e9 or (number == 0 and at.endswith("_us")))):
        raise ConfigError(f"{at}: value is {quote(number)}; it must be a number, {least}, and at most 1e9")
    return Figure(float(number), *_provenance(content, at))


def _software(value: Any, at: str) -> Software:
    content = _mapping(value, at)
    required = ["jetpack", "tensorrt", "mark", "source"]
    _known(content, [*required, "cuda"], required, at)
    _provenance(content, at)
    # Without quotes, YAML reads 10.10 as the number 10.1, so only text is accepted.
    return Software(**{key: _text(item, f"{at}.{key}") for key, item in content.items()})


def _provenance(content: Mapping[str, Any], at: str) -> tuple[str, str]:
    """(mark, source)."""
    if content["mark"] not in MARKS:
        raise ConfigError(f"{at}: mark is {quote(content['mark'])}; valid: {listing(MARKS)}")
    return content["mark"], _text(content["source"], f"{at}.source")


def _known(content: Mapping[str, Any], keys: list[str], required: list[str], at: str) -> None:
    """Refuse unknown and missing keys."""
    for key in content:
        if key not in keys:
            raise ConfigError(f"{at}: unknown key {quote(key)}; valid: {listing(keys, 20)}")
    for key in required:
        if key not in content:
            raise ConfigError(f"{at}: {key} is missing")


def _mapping(value: Any, at: str) -> dict[str, Any]:
    if not isinstance(value, dict) or not all(isinstance(key, str) for key in value):
        raise ConfigError(f"{at} is {quote(value)}; it must be a mapping")
    return value


def _list(value: Any, at: str) -> list[Any]:
    if not isinstance(value, list):
        raise ConfigError(f"{at} is {quote(value)}; it must be a list")
    return value


def _text(value: Any, at: str) -> str:
    if not isinstance(value, str) or not value.strip() or not value.isprintable():
        raise ConfigError(
            f"{at} is {quote(value)}; it must be one line of text; quote it if it looks like a number"
        )
    return value
