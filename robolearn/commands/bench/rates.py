"""How fast a robot is simulated, acts and learns: rates measured side by side from the same state.

Every round measures all rates one after the other, so that a machine whose speed drifts, drifts for all of them.
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
"""What is measured, each with more in it than the one before; see `Measurement.rates`."""

SHARES = (*PHASES, "other")

_CALLS = ("step", "reset", "push", "set_params")
_CALLS_ON_A_GPU = ("step", "reset")


@dataclasses.dataclass(frozen=True)
class Spread:
    """A number over the rounds."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: list[float]) -> Spread:
        """Over these, one a round."""
        return cls(median(values), min(values), max(values))


@dataclasses.dataclass(frozen=True)
class Measurement:
    """What was measured of one Env and its learner; ratios are medians of the rounds' own ratios."""

    steps: int
    """Environment steps in an iteration: what a round measures each rate over."""
    rates: dict[str, Spread]
    """Environment steps a second. raw: the backend alone, with the run's own targets, pushes, resets and parameters.
    environment: `Env.step` with the run's own actions. inference: collecting a batch; not there where the learner
    has no `collect(env)`. learning: whole iterations."""
    of_raw: dict[str, float]
    """Each rate over the raw one."""
    phases: dict[str, float]
    """Share of an iteration's time by phase, and `other`."""
    overlap_ceiling: float
    """What collecting the next batch while learning from the last one would speed an iteration up by, at most."""


class Recorder:
    """Stands between an Env, who acts in it, and its backend, and remembers what is asked of both.

    On a CUDA device pushes and parameters are parts of what Env replays as graphs, without any Python: what is
    remembered there, and replayed, are steps and resets alone. That makes the raw rate a little higher than it is.
    """

    def __init__(self, env: Env) -> None:
        """Records while it is entered as a context."""
        self.env = env
        self._calls: list[tuple[Callable[..., None], tuple[Any, ...]]] = []
        self._actions: list[Tensor] = []
        self._names = _CALLS_ON_A_GPU if env.device.type == "cuda" else _CALLS

    def __enter__(self) -> Recorder:
        for name in self._names:
            setattr(self.env.backend, name, self._recording(getattr(self.env.backend, name)))
        step = self.env.step

        def act(action: Tensor, joint_targets: Tensor | None = None) -> Any:
            self._actions.append(action.clone())
            return step(action, joint_targets)

        setattr(self.env, "step", act)  # noqa: B010  mypy refuses the plain assignment
        return self

    def _recording(self, function: Callable[..., None]) -> Callable[..., None]:
        def record(*arguments: Any) -> None:
            # Copies: on a GPU these tensors lie at fixed addresses, and the next step overwrites them.
            self._calls.append((function, tuple(_kept(x) for x in arguments)))
            function(*arguments)

        return record

    def __exit__(self, *error: object) -> None:
        for name in self._names:
            delattr(self.env.backend, name)
        del self.env.step

    def simulate(self) -> None:
        """Have the backend do all of it again, from the state it began in."""
        for function, arguments in self._calls:
            function(*arguments)

    def step(self) -> None:
        """Have the Env take all those actions again, from the state it began in."""
        for action in self._actions:
            self.env.step(action)


def _kept(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.clone()
    if isinstance(value, dict):
        return {name: _kept(x) for name, x in value.items()}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return dataclasses.replace(value, **{name: _kept(x) for name, x in vars(value).items()})
    return value


def bookmark(env: Env, learner: Learner) -> Callable[[], None]:
    """A function that restores the simulation, the random numbers and the actor's recurrent state of this moment, any
    number of times; what was learned since stays."""
    start, random = env.snapshot(), getattr(learner, "random", None)
    noise = None if random is None else random.get_state()
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
    """Seconds that some work takes, until the device has done it."""

    def now() -> float:
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        return time.perf_counter()

    began = now()
    work()
    return now() - began


def one_round(env: Env, learner: Learner) -> tuple[dict[str, float], Report]:
    """Seconds of each rate over one iteration's steps, all from the same state, and what the iteration reported."""
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
    """All rates, medians over `rounds` rounds; the learner goes on learning meanwhile.

    Raises:
        RunFailed: a term was not finite, or the simulator dropped part of the physics.
    """
    done = [one_round(env, learner) for _ in range(rounds)]
    steps = done[0][1].steps
    names = [name for name in RATES if name in done[0][0]]

    def busiest(seconds: dict[str, float]) -> float:
        return max(seconds["simulate"] + seconds["infer"], seconds["learn"])

    told = [report.seconds for _, report in done]
    return Measurement(
        steps=steps,
        rates={name: Spread.of([steps / seconds[name] for seconds, _ in done]) for name in names},
        of_raw={name: median(seconds["raw"] / seconds[name] for seconds, _ in done) for name in names},
        phases={name: median(s[name] / s["total"] for s in told) for name in SHARES},
        overlap_ceiling=median(s["total"] / busiest(s) for s in told),
    )


def memory(env: Env, before: float) -> dict[str, float]:
    """What a run needs of it [bytes], by name, read while it still stands.

    Args:
        env: what was run.
        before: `process_bytes` when there was no Env yet.

    Returns:
        `process`: the process's peak. On a CUDA device also `torch_allocated` and `torch_reserved`, the most that
        torch used and kept; `warp`, the most that Warp's pool held, where Warp simulates; and `device`, what all
        processes have taken of the device now. `per_env`: what one environment needs, there of torch's and Warp's
        peaks, elsewhere of the process's growth.
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
