"""Latency of a control step: paced at the control rate as on the robot, and in a hot loop."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from robolearn.runtime.robot import Runtime


def is_target(target: Mapping[str, Any], board: str | None) -> bool:
    """Whether the board is a manifest's export target; every machine is the target `host`."""
    if target["any_machine"]:
        return True
    return board is not None and any(word.lower() in board.lower() for word in target["detect"])


def statistics(seconds: np.ndarray) -> dict[str, float]:
    """p50, p99, jitter (p99 - p50), maximum and mean [ms] of durations (n,) [s]."""
    p50, p99 = (float(x) for x in np.percentile(seconds, (50, 99)))
    out = {"p50_ms": p50, "p99_ms": p99, "jitter_ms": p99 - p50}
    out |= {"max_ms": float(seconds.max()), "mean_ms": float(seconds.mean())}
    return {name: 1e3 * value for name, value in out.items()} | {"count": len(seconds)}


def ticks(rate: float, count: int) -> Iterator[float]:
    """Yields the due time [s of perf_counter] of each of `count` control steps; sleeps until it is due."""
    start = time.perf_counter() + 1.0 / rate
    for i in range(count):
        due = start + i / rate
        rest = due - time.perf_counter()
        if rest > 0:
            time.sleep(rest)
        yield due


def paced(step: Callable[[], Any], rate: float, seconds: float) -> tuple[np.ndarray, np.ndarray]:
    """Call `step` at a fixed rate [Hz] for `seconds`, sleeping in between as a controller does.

    Between two calls caches are evicted and the CPU clock falls, so a step takes longer than in a hot loop.

    Returns:
        Duration and start delay of each call, (n,) each [s].
    """
    count = max(2, round(seconds * rate))
    took, late = np.zeros(count), np.zeros(count)
    for i, due in enumerate(ticks(rate, count)):
        began = time.perf_counter()
        step()
        took[i], late[i] = time.perf_counter() - began, began - due
    return took, late


def measure(
    runtime: Runtime, golden: Mapping[str, np.ndarray], seconds: float, hot: int = 5000
) -> dict[str, Any]:
    """Time whole control steps, from sensor readings to joint targets, on recorded readings.

    Args:
        runtime: is reset.
        golden: readings to replay in a loop.
        seconds: duration of the paced steps [s].
        hot: number of steps in the hot loop.

    Returns:
        `paced` and `hot` (statistics of the whole step), `network` (of the network alone, paced), `late` (of the start
        delay of paced steps), `paced_ms` (every paced step) and their `histogram`.
    """
    rows = [
        ({name: golden[name][t] for name in runtime.sensors}, golden["command"][t])
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
    # Logarithmic bins: one slow step must not push all others into one bin.
    edges = np.geomspace(took.min() * 1e3 * 0.999, took.max() * 1e3 * 1.001, 41)
    counts, _ = np.histogram(took * 1e3, bins=edges)
    return {
        "runtime": runtime.session.name,
        "paced": statistics(took) | {"rate_hz": 1.0 / runtime.dt},
        "network": statistics(alone) | {"rate_hz": 1.0 / runtime.dt},
        "hot": statistics(hot_took),
        "late": statistics(late),
        "paced_ms": (1e3 * took).tolist(),
        "histogram": {"edges_ms": edges.tolist(), "counts": counts.tolist()},
    }


def processor(path: Path = Path("/proc/cpuinfo")) -> str:
    """Model name of the CPU; empty on boards whose /proc/cpuinfo has none."""
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return ""
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")


LEAST_STEPS = 500
"""Least number of paced control steps for a verdict: with fewer, p99 would rest on less than five steps."""


def best_of(results: Sequence[Mapping[str, Any]], budget: Mapping[str, float]) -> Mapping[str, Any]:
    """The measurement with the smallest p99 among those within the budget, or among all where none is."""
    fitting = [result for result in results if not over_budget(result, budget)]
    return min(fitting or results, key=lambda result: result["paced"]["p99_ms"])


def over_budget(measured: Mapping[str, Any], budget: Mapping[str, float]) -> list[str]:
    """One line for each of p50, p99, max and jitter that is over its budget.

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
