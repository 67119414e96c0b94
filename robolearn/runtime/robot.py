"""Runtime: one robot's policy, from raw sensor readings to joint targets."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from robolearn.runtime.bundle import Bundle
from robolearn.runtime.contract import GIVEN
from robolearn.runtime.errors import NOT_THE_SAME, Refused
from robolearn.runtime.sessions import Session

LARGEST = 1e6
"""Readings must be below this, in the unit of their sensor; those of an external environment only finite."""


class Runtime:
    """A policy on its robot: call `step` once per control period, `reset` after a fall, a stop or a pause.

    Holds the controller's state. Several may share one session, from one thread.

    Raises:
        Refused: BAD_INPUT where the session's network does not fit the bundle.
    """

    def __init__(self, bundle: Bundle, session: Session) -> None:
        bundle.require_fit(session)
        contract, self.session = bundle.contract, session
        self.joints: list[str] = [joint["name"] for joint in contract["joints"]]
        """Joint names in the order of `joint_pos` and `joint_vel`."""
        self.actuators: list[str] = [action["joint"] for action in contract["actions"]]
        """Joint names in the order of the joint targets that `step` returns."""

        def column(key: str) -> np.ndarray:
            return np.array([action[key] for action in contract["actions"]], np.float32)

        self.kp, self.kd, self.effort = column("kp"), column("kd"), column("effort")
        """(A,) gains and torque limit of the actuators: torque = kp (target - position) - kd velocity, clipped to
        +-effort. Units: kp Nm/rad, kd Nm s/rad, effort Nm; for a slide N/m, N s/m, N."""
        self.dt = float(contract["control_dt"])
        """Control period [s]."""
        self.home = np.array([joint["home"] for joint in contract["joints"]], np.float32)
        """(J,) home position [rad or m]: move the joints there, slowly, before the first step."""
        self.sensors = {entry["name"]: tuple(entry["shape"][1:]) for entry in bundle.manifest["sensors"]}
        """The readings that `step` needs: shape of each, by name; the manifest's `sensors` has units and frames."""
        limited = contract["joints"] or contract["actions"]
        ends = {"lower": -math.inf, "upper": math.inf}
        low, high = ([end if one[key] is None else one[key] for one in limited] for key, end in ends.items())
        self.lower, self.upper = np.array(low, np.float32), np.array(high, np.float32)
        """(J,) joint limits [rad or m], infinite where there is none. Joint targets may lie beyond them: a position
        actuator pulls by the difference. For an external environment (A,): `step` clips its outputs to them."""
        ranges = bundle.manifest["command_ranges"]
        wanted = [ranges.get(name, (-math.inf, math.inf)) for name in contract["command"]]
        self.command_low, self.command_high = np.array(wanted, np.float32).reshape(-1, 2).T
        """(C,) range of the commands in training; clip yours to it with `np.clip`."""
        self._initial = {
            f"{entry['name']}_in": np.array(entry["reset"], np.float32).reshape(entry["shape"])
            for entry in bundle.manifest["state"]
        }
        self.feeds, self._given_flat = _arrays(session.inputs)
        """Every input of the controller by name, with a batch of 1."""
        self._out, self._out_flat = _arrays(session.outputs)
        self._run = _bound(session, self.feeds, self._out)
        command = (len(contract["command"]),)
        self._command = self.feeds.get("command", np.zeros((1, 0), np.float32))
        # Of a sensor of one number the whole input: a row of it would be a copy.
        self._places = [
            (n, self.feeds[n][0] if shape else self.feeds[n], shape) for n, shape in self.sensors.items()
        ]
        if self._command.size:
            self._places.append(("command", self._command[0], command))
        self._carried = [(self.feeds[name], self._out[f"{name[:-3]}_out"]) for name in self._initial]
        self._units = [entry["name"] for entry in bundle.manifest["sensors"] if entry.get("unit_length")]
        given = any(action["kind"] == GIVEN for action in contract["actions"])
        self._largest = math.inf if given else LARGEST**2
        self.columns: list[str] = [
            name
            for item in contract["observations"]
            for name in item.get("columns") or (f"{item['name']}[{i}]" for i in range(item["width"]))
        ]
        """Names of the observation's columns."""
        self._given = given
        self.network_seconds = 0.0
        """Time of the controller in the last step [s]."""
        self.reset()

    def reset(self, state: Mapping[str, Any] | None = None) -> None:
        """Start anew: the controller's state after a reset, but for the entries of `state`, by name."""
        for name, value in self._initial.items():
            self.feeds[name][...] = value
        for name, value in (state or {}).items():
            self.feeds[f"{name}_in"][...] = value
        self.action = np.zeros(len(self.actuators), np.float32)
        """(A,) output of the network in the last step."""
        self._out_flat[:] = 0.0
        self.command = np.zeros(self._command.shape[1], np.float32)

    def step(self, sensors: Mapping[str, Any], command: Any = ()) -> np.ndarray:
        """Compute the joint targets of one control step.

        Args:
            sensors: a reading of each of `self.sensors`, by name.
            command: (C,) from now on, in the order of the contract's `command`.

        Returns:
            Joint targets (A,), float32: positions [rad or m] or forces [Nm or N]. For an external environment: its
            inputs, clipped to `lower` and `upper`.

        Raises:
            ValueError: a reading is missing, not finite, too large or of another shape, or is not of unit length where
                it must be, or the result is not finite; the state is then unchanged.
        """
        if not self._command.size and np.size(command):
            raise ValueError("this policy takes no command")
        with np.errstate(over="ignore"):
            for name, place, shape in self._places:
                try:
                    value = command if name == "command" else sensors[name]
                except KeyError:
                    raise ValueError(f"{name} is missing; a step needs {', '.join(self.sensors)}") from None
                try:
                    if len(shape) != 1 or len(value) != shape[0]:
                        _require_shape(name, value, shape)
                    place[...] = value
                except (TypeError, ValueError):
                    _require_shape(name, value, shape)
                    raise
            flat = self._given_flat
            # The dot product is the quickest test; where it fails, one number is too large, or many are not small.
            if not float(flat.dot(flat)) < self._largest:
                self._require_small()
        for name in self._units:
            # An empty sensor message is all zeros, which would count as a rotation.
            norm = math.hypot(*self.feeds[name][0].tolist())
            if not abs(norm - 1) < 0.01:
                raise ValueError(
                    f"{name} has the length {norm:.3g}; it must be a unit quaternion (w, x, y, z)"
                )
        began = time.perf_counter()
        self._run()
        self.network_seconds = time.perf_counter() - began
        with np.errstate(over="ignore"):
            whole = float(self._out_flat.dot(self._out_flat))
        if not math.isfinite(whole):
            self._require_finite()
        self.action = self._out["actions"][0].copy()
        self.command = self._command[0].copy()
        for given, out in self._carried:
            given[...] = out
        return self._out["targets"][0].copy()

    @property
    def observation(self) -> np.ndarray:
        """(D,) input of the network in the last step."""
        return self._out["observations"][0].copy()

    def _require_small(self) -> None:
        """Raise ValueError for a reading that is not finite, or too large."""
        largest = math.inf if self._given else LARGEST
        for name, place, _ in self._places:
            if np.abs(place).max(initial=0.0) < largest:  # false for NaN, too
                continue
            if self._given:
                i = int(np.argmin(np.isfinite(place)))
                raise ValueError(f"{name} must be finite numbers; its column {self.columns[i]} is {place[i]}")
            raise ValueError(f"{name} must be finite numbers below {largest:g}, not {place.tolist()}")

    def _require_finite(self) -> None:
        """Raise ValueError for a result that is not finite."""
        for name in ("targets", "actions"):
            if not np.isfinite(self._out[name]).all():
                raise ValueError(f"the network's action is not finite: {self._out['actions'][0].tolist()}")
        for name, value in self._out.items():
            if not np.isfinite(value).all():
                raise ValueError(f"the controller's {name.removesuffix('_out')} is not finite")


def _arrays(ports: Mapping[str, tuple[int, ...]]) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """An array of zeros for each port, by name, and the flat one of which all are parts."""
    flat = np.zeros(sum(math.prod(shape) for shape in ports.values()), np.float32)
    arrays, begin = {}, 0
    for name, shape in ports.items():
        arrays[name] = flat[begin : begin + math.prod(shape)].reshape(shape)
        begin += math.prod(shape)
    return arrays, flat


def _bound(
    session: Session, feeds: dict[str, np.ndarray], outputs: dict[str, np.ndarray]
) -> Callable[[], None]:
    """A function that computes `outputs` from `feeds`, in place."""
    if bind := getattr(session, "bind", None):
        bound: Callable[[], None] = bind(feeds, outputs)
        return bound

    def run() -> None:
        for name, value in session.run(feeds).items():
            outputs[name][...] = value

    return run


def _require_shape(name: str, value: Any, shape: tuple[int, ...]) -> None:
    """Raise ValueError for a reading that is not numbers of that shape."""
    wanted = f"{'x'.join(map(str, shape))} numbers" if shape else "one number"
    try:
        numbers = np.asarray(value, np.float32)
    except (TypeError, ValueError):
        raise ValueError(f"{name} must be {wanted}, not {value!r:.80}") from None
    if numbers.shape != shape:
        given = "x".join(map(str, numbers.shape)) or "one"
        raise ValueError(f"{name} must be {wanted}, not {given}")


TOLERANCE = {"fp32": 1e-5, "fp16": 8e-3, "bf16": 6.5e-2}
"""Largest allowed difference from the trained policy's action, as a share of max(1, largest action of the step). fp32:
the effect of another order of summation. fp16 and bf16: 16 roundings, 16 x 2^-11 and 16 x 2^-8. Our choice."""


def replay(bundle: Bundle, session: Session, tolerance: float | None = None) -> dict[str, float]:
    """Golden check: replay the recorded sensor readings and compare with the trained policy.

    Args:
        bundle: holds the recording.
        session: its controller.
        tolerance: of actions, as in `TOLERANCE`; None: that of the bundle's precision.

    Returns:
        Largest difference of `observations`, `actions` and `targets`.

    Raises:
        Refused: NOT_THE_SAME where a difference is too large or not finite; step and column are named.
    """
    golden, runtime = bundle.golden, Runtime(bundle, session)
    limit = TOLERANCE[bundle.manifest["controller"]["precision"]] if tolerance is None else tolerance
    worst = {"observations": 0.0, "actions": 0.0, "targets": 0.0}
    scale = np.abs(np.array([action["scale"] for action in bundle.contract["actions"]], np.float32))
    starts = {name.removeprefix("start."): rows for name, rows in golden.items() if name.startswith("start.")}
    episode = -1
    for t in range(len(golden["reset"])):
        if golden["reset"][t]:
            episode += 1
            runtime.reset({name: rows[episode] for name, rows in starts.items()})
        readings = {name: golden[name][t] for name in runtime.sensors}
        try:
            targets = runtime.step(readings, golden["command"][t])
        except ValueError as wrong:
            raise Refused(f"golden check failed in step {t}: {wrong}", NOT_THE_SAME) from None
        off = limit * max(1.0, float(np.abs(golden["actions"][t]).max()))
        seen, rounding = (2e-5 * np.maximum(1.0, np.abs(golden[n][t])) for n in ("observations", "targets"))
        for name, value, allowed, names in (
            ("observations", runtime.observation, seen, runtime.columns),
            ("actions", runtime.action, np.full(len(runtime.actuators), off), runtime.actuators),
            ("targets", targets, np.maximum(off * scale, rounding), runtime.actuators),
        ):
            error = np.abs(value - golden[name][t])
            worst[name] = max(worst[name], float(error.max()))
            if not bool((error <= allowed).all()):
                i = int(np.argmax(np.where(np.isfinite(error), error / allowed, np.inf)))
                raise Refused(
                    f"golden check failed in step {t}: {name} {names[i]} is {value[i]:.6g}, with the trained policy "
                    f"{golden[name][t][i]:.6g} (allowed difference {allowed[i]:.1g})",
                    NOT_THE_SAME,
                )
        # The recorded action is the last action of the next step, so that allowed differences do not add up.
        if "last_action_in" in runtime.feeds:
            runtime.feeds["last_action_in"][0] = golden["actions"][t]
    return worst
