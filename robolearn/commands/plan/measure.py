"""Measures a machine's constants: real trainings of a few iterations at a few sizes, and lines through their times."""

from __future__ import annotations

import importlib.metadata
import os
import re
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.optimize import nnls

from robolearn.commands.plan import shards
from robolearn.commands.plan.formulas import Linear
from robolearn.commands.plan.machine import Line, Measured, Memory, Phases, Spread, Workload
from robolearn.config.run_config import Config
from robolearn.core.timers import PHASES
from robolearn.errors import ConfigError, MissingError, RunFailed
from robolearn.learners import saved
from robolearn.training.build import device_of
from robolearn.training.host_memory import TOO_LARGE
from robolearn.training.metrics import read_metrics

WARMUP = 3
"""Iterations before the measured ones: the first compile, allocate, and start from equal states."""
LARGEST = 8192
"""Most environments that are measured; a plan for more extrapolates."""
SHARDS = 16
"""Logical shards of a batch where the run does not state them."""

NAMES = (*PHASES, "other")
IGNORED = (
    *("num_envs", "max_iterations", "checkpoint_interval", "output", "resume", "seed", "torch_threads"),
    *("ranks", "shards", "mode", "placement", "schema", "device"),
)
"""Settings that change none of the constants, or that the plan varies itself."""
_PACKAGES = ("torch", "mujoco", "mujoco-warp", "warp-lang")


@dataclass(frozen=True)
class Sample:
    """What one short training showed."""

    num_envs: int
    num_steps: int
    """Steps of each environment in an iteration."""
    seconds: dict[str, float]
    """Median of an iteration by phase; learning as if no gradient step had been left out."""
    spread: dict[str, float]
    """Standard deviation / mean of collect and of learn."""
    host: float
    """Peak of the process's memory [bytes]."""
    gpu: float | None
    """Peak of the GPU's memory beyond what was in use before [bytes]."""
    start: float
    """Wall time outside of the iterations [s]."""
    parameters: int
    actor_parameters: int
    sample_values: int
    networks: list[list[int]]
    """Layer widths of the trained networks."""

    @property
    def samples(self) -> int:
        """Environment steps of an iteration."""
        return self.num_envs * self.num_steps


def key_of(word: str) -> str:
    """The setting of KEY=VALUE."""
    return word.partition("=")[0]


def own_settings(overrides: Sequence[str]) -> list[str]:
    """The overrides that constants depend on, without those that name what is run."""
    named = ("task", "backend", "learner")
    return [w for w in overrides if key_of(w) not in (*IGNORED, *named)]


def sizes_for(num_envs: int, unit: int = 1) -> list[int]:
    """Numbers of environments to measure for a run of `num_envs`: itself, a half and a quarter, or up to LARGEST, in
    multiples of `unit`."""
    most = max(8, min(num_envs, LARGEST))
    return sorted({max(1, size // unit) * unit for size in (most // 4, most // 2, most)})


def measure(
    run: Config,
    overrides: Sequence[str],
    sizes: Sequence[int],
    iterations: int,
    say: Callable[[str], None],
) -> Workload:
    """The constants of a run's task, simulator and learner on this machine.

    Args:
        run: the resolved configuration.
        overrides: the words that it was resolved from.
        sizes: numbers of environments, ascending.
        iterations: number of measured iterations of each.
        say: is told what happens.

    Raises:
        ConfigError, MissingError, RunFailed: a training ended with their exit code, or no size fits into memory.
    """
    words = [w for w in overrides if key_of(w) not in (*IGNORED, "backend")]
    words += [f"backend={run.backend_name}"] if run.backend_name != "external" else []
    words += [f"device={device_of(run)}", f"seed={run.seed}", f"torch_threads={run.torch_threads}"]
    load = os.getloadavg()[0]
    found = []
    for size in sizes:
        say(f"measuring {size} environments, {WARMUP} + {iterations} iterations")
        try:
            found.append(train_briefly(run, words, size, iterations))
        except MemoryError:
            say(f"{size} environments do not fit into memory")
            break
    if not found:
        raise ConfigError(f"num_envs={sizes[0]} {TOO_LARGE}")
    last = found[-1]
    parts = minibatches(run, last.samples)
    backward = 0.0
    if parts and last.networks:
        say("measuring a gradient step in shards")
        backward = shards.overhead(last.networks, max(SHARDS, last.samples // parts), SHARDS)
    return Workload(
        task=run.task_name,
        backend=run.backend_name,
        learner=run.learner_name,
        device="cpu" if device_of(run).type == "cpu" else "cuda",
        settings=own_settings(overrides),
        parameters=found[-1].parameters,
        actor_parameters=found[-1].actor_parameters,
        num_steps=found[-1].num_steps,
        sample_values=found[-1].sample_values,
        start=found[-1].start,
        seconds=phases(found),
        backward=backward,
        spread=Spread(
            **{name: float(np.mean([s.spread[name] for s in found])) for name in ("collect", "learn")}
        ),
        memory=Memory(
            host=line([s.num_envs for s in found], [s.host for s in found]),
            gpu=None
            if found[0].gpu is None
            else line([s.num_envs for s in found], [s.gpu or 0.0 for s in found]),
        ),
        measured=Measured(
            num_envs=[s.num_envs for s in found],
            iterations=iterations,
            versions=_versions(),
            load=round(load, 2),
            residual=residual(found),
        ),
    )


def minibatches(run: Config, samples: int) -> int:
    """Minibatches in a batch, as `Update.parts` counts them; 0 for a learner without them."""
    each = getattr(run.learner, "minibatch_size", 0)
    return max(1, round(samples / each)) if each else 0


# ---------------------------------------------------------------------------------------- fitting


def line(work: Sequence[float], values: Sequence[float]) -> Line:
    """The line through points that has the smallest relative errors, without negative parts."""
    x, y = np.asarray(work, float), np.asarray(values, float)
    y_safe = np.maximum(y, 1e-12)
    if len(set(work)) < 2:
        return Line(fixed=0.0, each=float(y[0] / x[0]))
    matrix = np.stack([np.ones_like(x), x / x.max()], axis=1) / y_safe[:, None]
    (fixed, each), _ = nnls(matrix, y / y_safe)
    return Line(fixed=float(fixed), each=float(each / x.max()))


def phases(found: Sequence[Sample]) -> Phases:
    """The line of each phase through what was measured."""
    lines = {}
    for name in NAMES:
        by_step = name in ("simulate", "infer")
        work = [s.num_envs if by_step else s.samples for s in found]
        lines[name] = line(work, [s.seconds[name] / (s.num_steps if by_step else 1) for s in found])
    return Phases(**lines)


def residual(found: Sequence[Sample]) -> float:
    """Largest relative error of the fitted phases' sum at the measured sizes."""
    fitted = phases(found)
    worst = 0.0
    for s in found:
        model = sum(duration(fitted, name, s.num_envs, s.num_steps) for name in NAMES)
        worst = max(worst, abs(model / sum(s.seconds.values()) - 1))
    return round(worst, 4)


def duration(fitted: Phases, name: str, num_envs: int, num_steps: int) -> float:
    """Seconds of a phase of one iteration."""
    of: Linear = getattr(fitted, name).linear
    if name in ("simulate", "infer"):
        return num_steps * of.at(num_envs)
    return of.at(num_envs * num_steps)


# ---------------------------------------------------------------------------------------- one training


def train_briefly(run: Config, words: Sequence[str], num_envs: int, iterations: int) -> Sample:
    """Train WARMUP + `iterations` iterations in another process, as `robolearn train` does.

    Raises:
        MemoryError: it does not fit into memory.
        ConfigError, MissingError, RunFailed, KeyboardInterrupt: it ended with their exit code.
    """
    first = 0
    if run.resume is not None:
        folder, path = saved.find_run(run.resume)
        first = int(saved.load(path, folder).get("iter", 0))
        words = [
            f"resume={run.resume}",
            *(w for w in words if key_of(w) not in ("task", "backend", "learner")),
        ]
    with tempfile.TemporaryDirectory() as folder_name:
        folder = Path(folder_name) / "run"
        last = first + WARMUP + iterations
        command = [sys.executable, "-m", "robolearn.cli", "train", *words]
        command += [f"num_envs={num_envs}", f"max_iterations={last}", f"output={folder}"]
        command += ["checkpoint_interval=1000000000"]
        done = watched(command, device_of(run), Path(folder_name) / "stderr")
        rows = read_metrics(folder / "metrics.jsonl")
        content = saved.load(folder / "latest.pt", folder)
    every = [{name: row[f"time/{name}"] for name in (*NAMES, "total")} for row in rows]
    before = rows[WARMUP - 1]["steps"]
    steps = (rows[-1]["steps"] - before) / (len(rows) - WARMUP)
    measured = every[WARMUP:]
    full = minibatches(run, round(steps))
    if full and "loss/gradient_steps" in rows[-1]:
        full *= run.learner.num_epochs
        for seconds, row in zip(measured, rows[WARMUP:], strict=True):
            seconds["learn"] *= full / max(1.0, row["loss/gradient_steps"])
    collect = [s["simulate"] + s["infer"] for s in measured]
    learn = [s["learn"] for s in measured]
    trained = {k: v for k, v in content.items() if k.endswith("_state_dict") and "optimizer" not in k}
    total = _count(trained)
    return Sample(
        num_envs=num_envs,
        num_steps=max(1, round(steps / num_envs)),
        seconds={name: max(0.0, float(np.median([s[name] for s in measured]))) for name in NAMES},
        spread={"collect": _spread(collect), "learn": _spread(learn)},
        host=done.host,
        gpu=done.gpu,
        start=max(0.0, done.wall - sum(row["total"] for row in every)),
        parameters=max(1, total),
        actor_parameters=max(1, _count(trained.get("actor_state_dict", trained))),
        sample_values=_sample_values(trained),
        networks=[widths for state in trained.values() if (widths := _widths(state))],
    )


def _spread(values: Sequence[float]) -> float:
    """Standard deviation / mean, from the quartiles: an interruption by another process is no property of the run."""
    low, middle, high = np.percentile(values, (25, 50, 75))
    return round(float((high - low) / 1.349 / middle), 4) if middle > 0 else 0.0


def _count(value: Any) -> int:
    """Number of floating-point values in nested dictionaries of tensors."""
    if isinstance(value, torch.Tensor):
        return value.numel() if value.is_floating_point() else 0
    return sum(_count(item) for item in value.values()) if isinstance(value, dict) else 0


def _sample_values(trained: Mapping[str, Any]) -> int:
    """Numbers that are stored for a step: observations (the critic's twice, see `Batch.terminal`), the action and its
    mean, reward and flags."""
    widths = {
        name: sum(v.shape[-1] for k, v in state.items() if k.endswith("obs_normalizer._mean"))
        for name, state in trained.items()
    }
    actor = trained.get("actor_state_dict", {})
    actions = sum(v.numel() for k, v in actor.items() if k.startswith("distribution."))
    return sum(widths.values()) + widths.get("critic_state_dict", 0) + 2 * actions + 3


def _widths(state: Mapping[str, Any]) -> list[int]:
    """Layer widths of a network of linear layers, from its weights; empty for another one."""
    weights = [v for k, v in state.items() if k.startswith("mlp.") and k.endswith(".weight") and v.ndim == 2]
    return [weights[0].shape[1], *(w.shape[0] for w in weights)] if weights else []


@dataclass(frozen=True)
class Watched:
    """Wall time [s] and peak memory [bytes] of a finished process."""

    wall: float
    host: float
    gpu: float | None


def watched(command: Sequence[str], device: torch.device, errors: Path) -> Watched:
    """Run a command and watch its memory.

    Raises:
        MemoryError, ConfigError, MissingError, RunFailed, KeyboardInterrupt: see `train_briefly`.
    """
    before = _gpu_used(device)
    host, gpu, began = 0.0, 0.0, time.perf_counter()
    with errors.open("w+", encoding="utf-8") as stderr:
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=stderr)
        try:
            while process.poll() is None:
                host = max(host, _peak(process.pid))
                gpu = max(gpu, _gpu_used(device) - before)
                time.sleep(0.05)
        finally:
            if process.poll() is None:
                process.terminate()
                process.wait()
        stderr.seek(0)
        said = stderr.read()
    wall = time.perf_counter() - began
    if process.returncode != 0:
        _raise(process.returncode, said, command)
    if not host:
        host = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * (
            1 if sys.platform == "darwin" else 1024
        )
    return Watched(wall, host, gpu if device.type == "cuda" else None)


def _raise(code: int, said: str, command: Sequence[str]) -> None:
    message = (said.strip().splitlines() or [""])[-1].removeprefix("robolearn: ")
    if code == -9 or (code == 2 and (TOO_LARGE in message or re.search(r"needs about .* fits", message))):
        raise MemoryError
    errors = {2: ConfigError, 3: MissingError, 4: RunFailed, 130: KeyboardInterrupt}
    if code in errors:
        raise errors[code](message)
    raise RuntimeError(f"{' '.join(command)}: exit code {code}\n{said}")


def _peak(pid: int) -> float:
    """Peak memory of another process [bytes]; 0 where the system does not tell."""
    try:
        status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
    except OSError:
        return 0.0
    found = re.search(r"^VmHWM:\s+(\d+) kB", status, re.MULTILINE)
    return float(found[1]) * 1024 if found else 0.0


def _gpu_used(device: torch.device) -> float:
    if device.type != "cuda" or (device.index or 0) >= torch.cuda.device_count():
        return 0.0  # a missing GPU is reported by the training
    free, total = torch.cuda.mem_get_info(device)
    return float(total - free)


def _versions() -> dict[str, str]:
    found = {}
    for package in _PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found
