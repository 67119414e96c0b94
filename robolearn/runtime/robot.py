"""Runtime: one robot's policy, from raw sensor readings to joint targets."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from typing import Any

import numpy as np

from robolearn.runtime.bundle import STATES, Bundle
from robolearn.runtime.errors import NOT_THE_SAME, Refused
from robolearn.runtime.observe import (
    GIVEN,
    OBSERVATIONS,
    sensors_of,
)
from robolearn.runtime.sessions import Session

SENSORS = {"quat": "(4,) wxyz", "gyro": "(3,) rad/s", "joint_pos": "(J,)", "joint_vel": "(J,)"}
"""Sensor readings of a robot, joints in the order of `Runtime.joints`. A policy of an external environment takes
`given` (D,) instead: the observation, assembled as in that environment."""

LARGEST = 1e6
"""Readings must be below this, in rad, m, rad/s or m/s."""

LIMITS = {"lower": -math.inf, "upper": math.inf}
"""Keys of a range, and the value where there is no limit."""


def _or(value: float | None, otherwise: float) -> float:
    return otherwise if value is None else value


class Runtime:
    """A policy on its robot: call `step` once per control period, `reset` after a fall, a stop or a pause.

    Holds the last action and the recurrent state. Several may share one session, from one thread.

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
        self.sensors = sensors_of(contract)
        """The readings that `step` needs: length of each, by name."""
        self._robot = GIVEN not in self.sensors
        limited = contract["joints"] if self._robot else contract["actions"]
        low, high = ([_or(one[key], end) for one in limited] for key, end in LIMITS.items())
        self.lower, self.upper = np.array(low, np.float32), np.array(high, np.float32)
        """(J,) joint limits [rad or m], infinite where there is none. Joint targets may lie beyond them: a position
        actuator pulls by the difference. For an external environment (A,): `step` clips its outputs to them."""
        ranges = bundle.manifest.get("command_ranges") or {}
        wanted = [ranges.get(name, (-math.inf, math.inf)) for name in contract["command"]]
        self.command_low, self.command_high = np.array(wanted, np.float32).reshape(-1, 2).T
        """(C,) range of the commands in training; clip yours to it with `np.clip`."""
        self._scale, self._offset = column("scale"), column("offset")
        self._items = [
            (slice(item["column"], item["column"] + item["width"]), OBSERVATIONS[item["name"]])
            for item in contract["observations"]
        ]
        self._obs = np.zeros(session.inputs["obs"], np.float32)
        self._state = [name for name in STATES if f"{name}_in" in session.inputs]
        sizes = self.sensors | {"command": len(contract["command"])}
        self._raw = np.zeros(sum(sizes.values()), np.float32)
        ends = np.cumsum(list(sizes.values()))
        self._readings: dict[str, Any] = {
            name: self._raw[end - size : end] for (name, size), end in zip(sizes.items(), ends, strict=True)
        }
        self._given = list(self._readings.items())
        self._readings["home"] = self.home
        # The observation of an external environment has no known unit, so it must only be finite.
        self._largest = LARGEST if self._robot else math.inf
        self._columns = contract["observations"][0].get("columns", ())
        self._readings["limited"] = np.isfinite(self.lower) & np.isfinite(self.upper)
        self.network_seconds = 0.0
        """Time of the network in the last step [s]."""
        self.reset()

    def reset(self) -> None:
        """Clear last action, command and recurrent state."""
        self.action = np.zeros(len(self.actuators), np.float32)
        """(A,) output of the network in the last step."""
        self.command = np.zeros_like(self._readings["command"])
        self.feeds = {"obs": self._obs}
        self.feeds |= {f"{n}_in": np.zeros(self.session.inputs[f"{n}_in"], np.float32) for n in self._state}

    @property
    def observation(self) -> np.ndarray:
        """(D,) input of the network in the last step."""
        return self._obs[0]

    def step(self, sensors: Mapping[str, Any], command: Any = ()) -> np.ndarray:
        """Compute the joint targets of one control step.

        Args:
            sensors: `quat`, `gyro`, `joint_pos`, `joint_vel`, and `object_pos` where the policy observes objects; or
                `given` alone; see `SENSORS`.
            command: (C,) from now on, in the order of the contract's `command`.

        Returns:
            Joint targets (A,), float32: positions [rad or m] or forces [Nm or N]. For an external environment: its
            inputs, clipped to `lower` and `upper`.

        Raises:
            ValueError: a reading is missing, not finite, too large or of another length, or `quat` is not a rotation;
                the runtime's state is then unchanged. Or the network's action is not finite.
        """
        readings = self._readings
        with np.errstate(over="ignore"):
            for name, place in self._given:
                try:
                    value = command if name == "command" else sensors[name]
                    if len(value) != len(place):
                        raise ValueError(f"{name} must be {len(place)} numbers, not {len(value)}")
                    place[:] = value
                except KeyError:
                    raise ValueError(f"{name} is missing; a step needs {', '.join(self.sensors)}") from None
                except TypeError:
                    raise ValueError(f"{name} must be {len(place)} numbers, not {value!r}") from None
        if not np.abs(self._raw).max() < self._largest:  # true for NaN, too
            name, place = next((n, p) for n, p in self._given if not (np.abs(p) < self._largest).all())
            if not self._robot:
                i = int(np.argmin(np.isfinite(place)))
                raise ValueError(
                    f"{name} must be finite numbers; its column {self._columns[i]} is {place[i]}"
                )
            raise ValueError(f"{name} must be finite numbers below {LARGEST:g}, not {place.tolist()}")
        if self._robot:
            # An empty sensor message is all zeros, which would count as upright.
            norm = math.hypot(*readings["quat"].tolist())
            if not abs(norm - 1) < 0.01:
                raise ValueError(f"quat has the length {norm:.3g}; it must be a unit quaternion (w, x, y, z)")
        self.command[:] = readings["command"]
        readings["last_action"] = self.action
        for columns, compute in self._items:
            self._obs[0, columns] = compute(readings)
        began = time.perf_counter()
        out = self.session.run(self.feeds)
        self.network_seconds = time.perf_counter() - began
        action = out["actions"][0]
        if not math.isfinite(action.sum()):
            raise ValueError(f"the network's action is not finite: {action.tolist()}")
        self.action = action.copy()
        for name in self._state:
            self.feeds[f"{name}_in"] = out[f"{name}_out"].copy()
        targets = self._offset + self._scale * self.action
        return targets if self._robot else np.clip(targets, self.lower, self.upper)


TOLERANCE = {"fp32": 1e-5, "fp16": 8e-3, "bf16": 6.5e-2}
"""Largest allowed difference from the trained policy's action, as a share of max(1, largest action of the step). fp32:
the effect of another order of summation. fp16 and bf16: 16 roundings, 16 x 2^-11 and 16 x 2^-8. Our choice."""


def replay(bundle: Bundle, session: Session, tolerance: float | None = None) -> dict[str, float]:
    """Golden check: replay the recorded sensor readings and compare with the trained policy.

    Args:
        bundle: holds the recording.
        session: its network.
        tolerance: of actions, as in `TOLERANCE`; None: that of the bundle's precision.

    Returns:
        Largest difference of `observations`, `actions` and `targets`.

    Raises:
        Refused: NOT_THE_SAME where a difference is too large or not finite; step and column are named.
    """
    golden, runtime = bundle.golden, Runtime(bundle, session)
    limit = TOLERANCE[bundle.manifest["graph"]["precision"]] if tolerance is None else tolerance
    worst = {"observations": 0.0, "actions": 0.0, "targets": 0.0}
    observed = [
        f"{item['name']}[{i}]" for item in bundle.contract["observations"] for i in range(item["width"])
    ]
    for t in range(len(golden["reset"])):
        if golden["reset"][t]:
            runtime.reset()
        readings = {name: golden[name][t] for name in runtime.sensors}
        try:
            targets = runtime.step(readings, golden["command"][t])
        except ValueError as wrong:
            raise Refused(f"golden check failed in step {t}: {wrong}", NOT_THE_SAME) from None
        off = limit * max(1.0, float(np.abs(golden["actions"][t]).max()))
        rounding = 2e-5 * np.maximum(1.0, np.abs(golden["targets"][t]))
        for name, value, allowed, names in (
            ("observations", runtime.observation, np.full(len(observed), 2e-5), observed),
            ("actions", runtime.action, np.full(len(runtime.actuators), off), runtime.actuators),
            ("targets", targets, np.maximum(off * np.abs(runtime._scale), rounding), runtime.actuators),
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
        runtime.action = golden["actions"][t].astype(np.float32)
    return worst
