"""MotorModel: what a robot.yaml says of how a motor turns joint targets into torque.

    actuators:
      "*_knee": {model: dc, saturation: 60, no_load_speed: 20, delay: 0.5, lag: 0.01, backlash: 0.005}

Without `model` a motor is a PD law inside the solver (`implicit`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, NoReturn, Protocol

from robolearn.config.catalog import PACKAGE, locate
from robolearn.errors import listing

MODELS: dict[str, tuple[str, ...]] = {
    "implicit": (),
    "explicit": ("delay", "lag", "backlash"),
    "dc": ("saturation", "no_load_speed", "curve", "delay", "lag", "backlash"),
    "network": ("network", "history", "interval", "delay", "lag"),
    "dcmotor": ("resistance", "motor_constant", "inductance", "voltage"),
}
"""The models of a motor, each with the keys of robot.yaml that it takes besides `model`."""
KEYS = ("model", *dict.fromkeys(key for keys in MODELS.values() for key in keys))
"""All of these keys."""
LONGEST_DELAY = 20.0
"""The longest delay of a motor [control steps]."""


@dataclass(frozen=True)
class MotorModel:
    """How a motor turns joint targets into torque: delay, controller, clamp; see `robolearn.envs.actuators.layer`."""

    name: str
    """`explicit`, `dc`, `network` or `dcmotor`; see MODELS. `implicit` is None instead of a MotorModel."""
    delay: tuple[float, float] = (0.0, 0.0)
    """Shortest and longest delay between a joint target and the motor [control steps]; each episode draws one."""
    lag: float = 0.0
    """Time constant of the torque [s]; 0: none."""
    backlash: float = 0.0
    """Width of the play between motor and joint [rad or m]; 0: none."""
    saturation: float = 0.0
    """Torque or force at standstill that the supply voltage allows [Nm or N]; 0: no linear torque-speed curve."""
    no_load_speed: float = 0.0
    """Speed at which that torque has fallen to 0 [rad/s or m/s]."""
    curve: tuple[tuple[float, float], ...] = ()
    """Torque-speed curve as points (speed, largest torque), from speed 0 on; empty: none."""
    network: Path | None = None
    """ONNX file of a learned motor."""
    history: int = 0
    """Samples of position error and velocity that the network takes; 0: what its file says."""
    interval: float = 0.0
    """Time between two of them [s]; 0: what its file says, else a physics substep."""
    resistance: float = 0.0
    """Of MuJoCo's DC motor: of the winding [ohm]."""
    motor_constant: float = 0.0
    """Torque of the joint per current [Nm/A], and back-EMF per speed of the joint [V s/rad]."""
    inductance: float = 0.0
    """Of the winding [H]; 0: the current follows at once."""
    voltage: float = 0.0
    """Of the supply [V]; 0: unlimited."""

    @property
    def outside(self) -> bool:
        """Whether the torque is computed outside the simulator, before each physics substep."""
        return self.name != "dcmotor"

    @property
    def is_pd(self) -> bool:
        """Whether the torque is that of its PD law within the effort, at once."""
        late = self.delay[1] > 0 or self.lag or self.backlash
        return self.name in ("implicit", "explicit") and not late

    def stated(self) -> dict[str, Any]:
        """The keys of robot.yaml that say the same."""
        out: dict[str, Any] = {"model": self.name}
        if self.delay != (0.0, 0.0):
            out["delay"] = self.delay[0] if self.delay[0] == self.delay[1] else list(self.delay)
        if self.curve:
            out["curve"] = [list(point) for point in self.curve]
        if self.network is not None:
            out["network"] = str(self.network)
        plain = [key for key in KEYS if key not in ("model", "delay", "curve", "network")]
        return out | {key: getattr(self, key) for key in plain if getattr(self, key)}


def by_model(motors: Iterable[tuple[str, Mapping[str, Any]]]) -> dict[str, list[str]]:
    """The joints of motors with a model, of which `MotorModel.stated` is given, by that model in words."""
    found: dict[str, list[str]] = {}
    for joint, keys in motors:
        rest = ", ".join(f"{key} {value}" for key, value in keys.items() if key != "model")
        found.setdefault(f"{keys['model']} ({rest})" if rest else keys["model"], []).append(joint)
    return found


class Reader(Protocol):
    """What reads a robot.yaml: values of one type, and one-line errors that name the file."""

    file: Path

    def fail(self, message: str) -> NoReturn:
        """Raise ConfigError."""

    def fail_name(self, problem: str, name: object, valid: Iterable[str]) -> NoReturn:
        """Raise ConfigError about a name that is not valid."""

    def number(self, where: str, raw: object) -> float:
        """A finite number."""

    def text(self, where: str, raw: object) -> str:
        """Text that is not empty."""


def merged(general: Mapping[str, Any], particular: Mapping[str, Any]) -> dict[str, Any]:
    """The keys of an actuator, changed by those of a more particular entry. Another model, or another torque-speed
    curve, does away with the keys of the one before."""
    out = dict(general)
    if "model" in out and particular.get("model", out["model"]) != out["model"]:
        out = {key: value for key, value in out.items() if key not in KEYS}
    linear = {"saturation", "no_load_speed"}
    if "curve" in particular and not linear & set(particular):
        out = {key: value for key, value in out.items() if key not in linear}
    elif linear & set(particular) and "curve" not in particular:
        out.pop("curve", None)
    return out | dict(particular)


def read(reader: Reader, where: str, raw: Mapping[str, Any], kind: str) -> MotorModel | None:
    """The model that an entry `where` of `actuators:` states, for a motor of this kind; None for PD in the solver.

    Raises:
        ConfigError: a value is invalid, missing, or of another model; one line names it.
    """
    name = raw.get("model", "implicit")
    if not isinstance(name, str) or name not in MODELS:
        reader.fail_name(f"{where}.model is", name, MODELS)
    for key in raw:
        if key in KEYS and key != "model" and key not in MODELS[name]:
            models = [model for model, keys in MODELS.items() if key in keys]
            valid = listing(MODELS[name]) or "none"
            of = f"the {'models' if len(models) > 1 else 'model'} {listing(models)}"
            stated = f"is {name}" if "model" in raw else f"is not stated, which means {name}"
            reader.fail(
                f"{where}.{key} is of {of}, and {where}.model {stated} (its keys: {valid}); state model: {models[0]}, "
                f"or remove {key}"
            )
    if name == "implicit":
        return None
    if kind == "force" and (name in ("network", "dcmotor") or "backlash" in raw):
        what = "backlash" if "backlash" in raw else f"model {name}"
        reader.fail(f"{where} is of kind force, and {what} is for position targets; use kind: position")
    numbers = _Numbers(reader, where, raw)
    about: dict[str, Any] = {"name": name}
    if "delay" in raw:
        about["delay"] = numbers.delay()
    about |= {key: numbers.least(key, 0.0) for key in ("lag", "backlash", "interval") if key in raw}
    about |= {key: numbers.least(key, 0.0) for key in ("inductance", "voltage") if key in raw}
    if name == "dc":
        about |= numbers.limits()
    if name == "network":
        about["network"] = _file(reader, where, raw)
        if "history" in raw:
            about["history"] = numbers.count("history", 1, 100)
    if name == "dcmotor":
        about |= {key: numbers.above("dcmotor", key) for key in ("resistance", "motor_constant")}
    return MotorModel(**about)


class _Numbers:
    """The numbers of one entry."""

    def __init__(self, reader: Reader, where: str, raw: Mapping[str, Any]) -> None:
        self.reader, self.where, self.raw = reader, where, raw

    def least(self, key: str, lowest: float) -> float:
        value = self.reader.number(f"{self.where}.{key}", self.raw[key])
        if value < lowest:
            self.reader.fail(f"{self.where}.{key} is {value:g}; it must be {lowest:g} or more")
        return value

    def above(self, model: str, key: str) -> float:
        if key not in self.raw:
            self.reader.fail(f"{self.where} has no {key}, which model {model} requires")
        value = self.reader.number(f"{self.where}.{key}", self.raw[key])
        if value <= 0:
            self.reader.fail(f"{self.where}.{key} is {value:g}; it must be above 0")
        return value

    def count(self, key: str, lowest: int, highest: int) -> int:
        value = self.reader.number(f"{self.where}.{key}", self.raw[key])
        if value != int(value) or not lowest <= value <= highest:
            self.reader.fail(
                f"{self.where}.{key} is {value:g}; it must be a whole number, {lowest} to {highest}"
            )
        return int(value)

    def delay(self) -> tuple[float, float]:
        raw, where = self.raw["delay"], f"{self.where}.delay"
        pair = raw if isinstance(raw, list | tuple) and len(raw) == 2 else (raw, raw)
        low, high = (self.reader.number(where, value) for value in pair)
        if not 0 <= low <= high <= LONGEST_DELAY:
            self.reader.fail(
                f"{where} is {raw}; it takes control steps, 0 to {LONGEST_DELAY:g}, or a range [shortest, longest]"
            )
        return low, high

    def limits(self) -> dict[str, Any]:
        """The torque-speed curve of the model dc."""
        if "curve" not in self.raw:
            return {key: self.above("dc", key) for key in ("saturation", "no_load_speed")}
        if "saturation" in self.raw or "no_load_speed" in self.raw:
            self.reader.fail(
                f"{self.where} has curve, and saturation or no_load_speed, which state another torque-speed curve; "
                "remove one of them"
            )
        where, raw = f"{self.where}.curve", self.raw["curve"]
        form = "it takes points [speed, torque], such as [[0, 60], [10, 50], [20, 0]]"
        if not isinstance(raw, list | tuple) or len(raw) < 2:
            self.reader.fail(f"{where} is {raw!r:.80}; {form}")
        points = []
        for point in raw:
            if not isinstance(point, list | tuple) or len(point) != 2:
                self.reader.fail(f"{where} has the point {point!r:.80}; {form}")
            points.append((self.reader.number(where, point[0]), self.reader.number(where, point[1])))
        speeds = [speed for speed, _ in points]
        if speeds[0] != 0 or any(a >= b for a, b in pairwise(speeds)):
            self.reader.fail(
                f"{where} has the speeds {listing(f'{speed:g}' for speed in speeds)}; they must begin at 0 and rise"
            )
        if any(torque < 0 for _, torque in points) or points[0][1] == 0:
            self.reader.fail(
                f"{where} has the torques {listing(f'{torque:g}' for _, torque in points)}; they must be 0 or more, "
                "and above 0 at standstill"
            )
        return {"curve": tuple(points)}


def _file(reader: Reader, where: str, raw: Mapping[str, Any]) -> Path:
    """The ONNX file of a network: beside the robot's file, else in the current folder."""
    if "network" not in raw:
        reader.fail(f"{where} has no network, which model network requires: the name of an ONNX file")
    name = reader.text(f"{where}.network", raw["network"])
    places = [locate(name)] if name.startswith(PACKAGE) else [reader.file.parent / name, Path(name)]
    found = next((place for place in places if place.is_file()), None)
    if found is None:
        reader.fail(
            f"{where}.network names {name!r}, which is not a file in {reader.file.parent}, nor in the current folder; "
            "correct the name"
        )
    return found.resolve()
