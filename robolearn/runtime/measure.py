"""How long a control step takes: paced as on the robot, and in a hot loop."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from robolearn.runtime.robot import SENSORS, Runtime


def is_target(target: Mapping[str, Any], board: str | None) -> bool:
    """Whether a board of that name is the target that a manifest states; every machine is its own `host`."""
    if target["any_machine"]:
        return True
    return board is not None and any(word.lower() in board.lower() for word in target["detect"])


def statistics(seconds: np.ndarray) -> dict[str, float]:
    """p50, p99, jitter (p99 - p50), maximum and mean [ms] of some durations (n,) [s]."""
    p50, p99 = (float(x) for x in np.percentile(seconds, (50, 99)))
    out = {"p50_ms": p50, "p99_ms": p99, "jitter_ms": p99 - p50}
    out |= {"max_ms": float(seconds.max()), "mean_ms": float(seconds.mean())}
    return {name: 1e3 * value for name, value in out.items()} | {"count": len(seconds)}


def paced(step: Callable[[], Any], rate: float, seconds: float) -> tuple[np.ndarray, np.ndarray]:
    """Call `step` at a fixed rate, asleep in between as a controller is: caches cool down and the clock slows.

    Returns:
        How long each call took, and how late each began, (n,) each [s].
    """
    period, count = 1.0 / rate, max(2, round(seconds * rate))
    took, late = np.zeros(count), np.zeros(count)
    start = time.perf_counter() + period
    for i in range(count):
        due = start + i * period
        rest = due - time.perf_counter()
        if rest > 0:
            time.sleep(rest)
        began = time.perf_counter()
        step()
        took[i], late[i] = time.perf_counter() - began, began - due
    return took, late


def measure(
    runtime: Runtime, golden: Mapping[str, np.ndarray], seconds: float, hot: int = 5000
) -> dict[str, Any]:
    """Time whole control steps, from sensor readings to targets, on recorded readings.

    Args:
        runtime: is reset.
        golden: readings to play, over and over.
        seconds: how long to go at the control rate.
        hot: how many steps to take one after the other.

    Returns:
        `paced` and `hot` (statistics of the whole step), `network` (of the network alone, paced), `late` (of how late
        the paced steps began) and `first_ms`, the first call. A histogram of the paced steps is in `histogram`.
    """
    rows = [
        ({name: golden[name][t] for name in SENSORS}, golden["command"][t])
        for t in range(len(golden["reset"]))
    ]
    network: list[float] = []
    turn = 0

    def step() -> None:
        nonlocal turn
        readings, command = rows[turn % len(rows)]
        turn += 1
        runtime.step(readings, command)
        network.append(runtime.network_seconds)

    runtime.reset()
    began = time.perf_counter()
    step()
    first = time.perf_counter() - began
    for _ in range(20):
        step()
    gc.collect()
    network.clear()
    took, late = paced(step, 1.0 / runtime.dt, seconds)
    alone = np.array(network)
    hot_took = np.zeros(hot)
    for i in range(hot):
        began = time.perf_counter()
        step()
        hot_took[i] = time.perf_counter() - began
    counts, edges = np.histogram(took * 1e3, bins=40)
    return {
        "runtime": runtime.session.name,
        "paced": statistics(took) | {"rate_hz": 1.0 / runtime.dt},
        "network": statistics(alone) | {"rate_hz": 1.0 / runtime.dt},
        "hot": statistics(hot_took),
        "late": statistics(late),
        "first_ms": 1e3 * first,
        "histogram": {"edges_ms": edges.tolist(), "counts": counts.tolist()},
    }


def over_budget(measured: Mapping[str, Any], budget: Mapping[str, float]) -> list[str]:
    """What of a measurement is over its budget, a line each; none where it fits.

    Args:
        measured: a result of `measure`.
        budget: `p50`, `p99`, `max` and `jitter` (p99 - p50) as shares of the control period.
    """
    step = measured["paced"]
    period = 1e3 / step["rate_hz"]
    values = {"p50": step["p50_ms"], "p99": step["p99_ms"], "max": step["max_ms"]}
    values["jitter"] = step["p99_ms"] - step["p50_ms"]
    return [
        f"{name} {value:.3f} ms is over {budget[name] * period:.3f} ms, {100 * budget[name]:g} % of the period"
        for name, value in values.items()
        if value > budget[name] * period
    ]
