"""Runtime: one robot's policy, from raw sensor readings to joint targets."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
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
        self.feeds = {name: np.zeros(shape, np.float32) for name, shape in session.inputs.items()}
        """Every input of the controller by name, with a batch of 1."""
        self._command = self.feeds.get("command", np.zeros((1, 0), np.float32))
        self._units = [entry["name"] for entry in bundle.manifest["sensors"] if entry.get("unit_length")]
        given = any(action["kind"] == GIVEN for action in contract["actions"])
        self._largest = math.inf if given else LARGEST
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
        self.observation = np.zeros(len(self.columns), np.float32)
        """(D,) input of the network in the last step."""
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
        for name, shape in self.sensors.items():
            try:
                value = sensors[name]
            except KeyError:
                raise ValueError(f"{name} is missing; a step needs {', '.join(self.sensors)}") from None
            self._put(name, shape, value)
        if self._command.size:
            self._put("command", self._command.shape[1:], command)
        elif np.size(command):
            raise ValueError("this policy takes no command")
        for name in self._units:
            # An empty sensor message is all zeros, which would count as a rotation.
            norm = math.hypot(*self.feeds[name][0].tolist())
            if not abs(norm - 1) < 0.01:
                raise ValueError(
                    f"{name} has the length {norm:.3g}; it must be a unit quaternion (w, x, y, z)"
                )
        began = time.perf_counter()
        out = self.session.run(self.feeds)
        self.network_seconds = time.perf_counter() - began
        targets, action = out["targets"][0], out["actions"][0]
        if not math.isfinite(targets.sum() + action.sum()):
            raise ValueError(f"the network's action is not finite: {action.tolist()}")
        state = {name: out[f"{name[:-3]}_out"] for name in self._initial}
        for name, value in state.items():
            if not math.isfinite(value.sum()):
                raise ValueError(f"the controller's state {name[:-3]} is not finite")
        self.action, self.observation = action.copy(), out["observations"][0].copy()
        self.command = self._command[0].copy()
        for name, value in state.items():
            self.feeds[name][...] = value
        return targets.copy()

    def _put(self, name: str, shape: tuple[int, ...], value: Any) -> None:
        """Put a reading into its input.

        Raises:
            ValueError: it is of another shape, not finite, or too large.
        """
        size = shape[0] if len(shape) == 1 else "x".join(map(str, shape))
        try:
            with np.errstate(over="ignore"):
                numbers = np.asarray(value, np.float32)
        except (TypeError, ValueError):
            raise ValueError(f"{name} must be {size} numbers, not {value!r:.80}") from None
        if numbers.shape != shape:
            raise ValueError(
                f"{name} must be {size} numbers, not {'x'.join(map(str, numbers.shape)) or 'one'}"
            )
        if not np.abs(numbers).max(initial=0.0) < self._largest:  # true for NaN, too
            if self._given:
                i = int(np.argmin(np.isfinite(numbers)))
                raise ValueError(
                    f"{name} must be finite numbers; its column {self.columns[i]} is {numbers[i]}"
                )
            raise ValueError(f"{name} must be finite numbers below {self._largest:g}, not {numbers.tolist()}")
        self.feeds[name][0] = numbers


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
