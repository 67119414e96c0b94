"""Measures rates of physics, environment, inference and learning, from the same state.

Every round measures all rates, so that a drift of the machine's speed affects all of them.
"""

from __future__ import annotations

import dataclasses
import sys
import time
from collections.abc import Callable
from statistics import median
from typing import Any

import torch

from robolearn.core.env import Env
from robolearn.core.timers import PHASES
from robolearn.envs.state import Tensor
from robolearn.learners.learner import Learner, Report
from robolearn.training.host_memory import peak_bytes, process_bytes

RATES = {
    "raw": "raw physics",
    "environment": "environment",
    "inference": "with inference",
    "learning": "with learning",
}
"""Rates and their labels, each including more work than the one before; see `Measurement.rates`."""

SHARES = (*PHASES, "other")

_CALLS = ("step", "reset", "push", "set_params")
_CALLS_ON_A_GPU = ("step", "reset")


@dataclasses.dataclass(frozen=True)
class Spread:
    """Median, lowest and highest value over the rounds."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: list[float]) -> Spread:
        """The spread of these values, one per round."""
        return cls(median(values), min(values), max(values))


@dataclasses.dataclass(frozen=True)
class Measurement:
    """Results for one Env and its learner; ratios are medians over the rounds of each round's ratio."""

    steps: int
    """Environment steps per iteration; a round measures each rate over as many."""
    rates: dict[str, Spread]
    """Environment steps per second. raw: the backend alone, with the recorded joint targets, pushes, resets and
    parameters. environment: `Env.step` with the recorded actions. inference: collecting a batch; absent where the
    learner has no `collect(env)`. learning: whole iterations."""
    of_raw: dict[str, float]
    """Each rate divided by the raw one."""
    phases: dict[str, float]
    """Share of an iteration's time by phase, and `other`."""
    overlap_ceiling: float
    """Upper bound of the speed-up by collecting the next batch while learning from the last one."""


class Recorder:
    """Records the calls of an Env's backend and the actions of its steps, to repeat them.

    On a CUDA device pushes and parameters are part of the Env's CUDA graphs, so only steps and resets are recorded and
    repeated, and the raw rate is slightly too high.
    """

    def __init__(self, env: Env) -> None:
        """Records while its context is entered."""
        self.env = env
        self._calls: list[tuple[Callable[..., None], tuple[Any, ...]]] = []
        self._actions: list[Tensor] = []
        self._names = _CALLS_ON_A_GPU if env.device.type == "cuda" else _CALLS

    def __enter__(self) -> Recorder:
        for name in self._names:
            setattr(self.env.backend, name, self._recording(getattr(self.env.backend, name)))
        step = self.env.step

        def recording_step(action: Tensor, joint_targets: Tensor | None = None) -> Any:
            self._actions.append(action.clone())
            return step(action, joint_targets)

        setattr(self.env, "step", recording_step)  # noqa: B010  mypy refuses the plain assignment
        return self

    def _recording(self, function: Callable[..., None]) -> Callable[..., None]:
        def record(*arguments: Any) -> None:
            # Copies: on a GPU these tensors have fixed addresses, and the next step overwrites them.
            self._calls.append((function, tuple(_copy(x) for x in arguments)))
            function(*arguments)

        return record

    def __exit__(self, *error: object) -> None:
        for name in self._names:
            delattr(self.env.backend, name)
        del self.env.step

    def simulate(self) -> None:
        """Repeat the recorded calls of the backend; it must be in the state at which recording began."""
        for function, arguments in self._calls:
            function(*arguments)

    def step(self) -> None:
        """Repeat the recorded steps of the Env; it must be in the state at which recording began."""
        for action in self._actions:
            self.env.step(action)


def _copy(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.clone()
    if isinstance(value, dict):
        return {name: _copy(x) for name, x in value.items()}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return dataclasses.replace(value, **{name: _copy(x) for name, x in vars(value).items()})
    return value


def bookmark(env: Env, learner: Learner) -> Callable[[], None]:
    """A function that restores the simulation, the random numbers and the actor's recurrent state of this moment, any
    number of times; what was learned since stays."""
    start, random = env.snapshot(), getattr(learner, "random", None)
    noise = None if random is None else random.state()
    recurrence = getattr(learner, "recurrence", None)
    recurrent = None if recurrence is None else tuple(x.clone() for x in recurrence.now)

    def rewind() -> None:
        env.restore(start)
        if random is not None:
            random.set_state(noise)
        if recurrence is not None:
            recurrence.restore(recurrent)

    return rewind


def timed(work: Callable[[], object], device: torch.device) -> float:
    """Duration [s] of `work`, until the device has finished it."""

    def now() -> float:
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        return time.perf_counter()

    began = now()
    work()
    return now() - began


def one_round(env: Env, learner: Learner) -> tuple[dict[str, float], Report]:
    """Seconds of each rate for the steps of one iteration, from the same state, and the report of the iteration."""
    rewind = bookmark(env, learner)
    collect = getattr(learner, "collect", None)
    with Recorder(env) as recorder:
        (collect or learner.iterate)(env)
    reports: list[Report] = []
    work: dict[str, Callable[[], object]] = {"raw": recorder.simulate, "environment": recorder.step}
    if collect is not None:
        work["inference"] = lambda: collect(env)
    work["learning"] = lambda: reports.append(learner.iterate(env))
    seconds = {}
    for name, function in work.items():
        rewind()
        seconds[name] = timed(function, env.device)
    return seconds, reports[0]


def measure(env: Env, learner: Learner, rounds: int) -> Measurement:
    """Measure all rates over `rounds` rounds, in each of which the learner learns for one iteration.

    Raises:
        RunFailed: a term was not finite, or the simulator dropped part of the physics.
    """
    done = [one_round(env, learner) for _ in range(rounds)]
    steps = done[0][1].steps
    names = [name for name in RATES if name in done[0][0]]

    def busiest(seconds: dict[str, float]) -> float:
        return max(seconds["simulate"] + seconds["infer"], seconds["learn"])

    phase_seconds = [report.seconds for _, report in done]
    return Measurement(
        steps=steps,
        rates={name: Spread.of([steps / seconds[name] for seconds, _ in done]) for name in names},
        of_raw={name: median(seconds["raw"] / seconds[name] for seconds, _ in done) for name in names},
        phases={name: median(s[name] / s["total"] for s in phase_seconds) for name in SHARES},
        overlap_ceiling=median(s["total"] / busiest(s) for s in phase_seconds),
    )


def memory(env: Env, before: float) -> dict[str, float]:
    """Memory use of a run [bytes], by name.

    Args:
        env: the run's Env, not yet closed.
        before: `process_bytes` before the Env was built.

    Returns:
        `process`: peak host memory of the process. On a CUDA device also `torch_allocated` and `torch_reserved`, the
        peaks of torch's used and reserved memory; `warp`, the peak of Warp's pool, if it is used; and `device`, the
        memory that all processes use now. `per_env`: memory per environment: on a CUDA device torch's and Warp's
        peaks, else the growth of the process, divided by the number of environments.
    """
    device, peak = env.device, float(peak_bytes())
    if device.type != "cuda":
        return {"process": peak, "per_env": max(0.0, process_bytes() - before) / env.num_envs}
    free, total = torch.cuda.mem_get_info(device)
    out = {
        "process": peak,
        "device": float(total - free),
        "torch_allocated": float(torch.cuda.max_memory_allocated(device)),
        "torch_reserved": float(torch.cuda.max_memory_reserved(device)),
    }
    warp = sys.modules.get("warp")
    if warp is not None and warp.is_mempool_enabled(str(device)):
        out["warp"] = float(warp.get_mempool_used_mem_high(str(device)))
    return {**out, "per_env": (out["torch_reserved"] + out.get("warp", 0.0)) / env.num_envs}
