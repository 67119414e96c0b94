"""The training loop: build, resume, iterate, log, checkpoint. It knows no task, no backend, no algorithm."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from types import FrameType

import numpy as np
import torch

from robolearn import checkpoint, config, registry
from robolearn.config import Config
from robolearn.contract import contract_of
from robolearn.env import Diverged, Env, make_env
from robolearn.errors import ConfigError
from robolearn.learners.learner import Learner, Report
from robolearn.metrics import MetricsLog
from robolearn.panel import Panel

DIVERGED_SHARE = 0.001
"""Share of an iteration's steps that may diverge before training stops."""


def train(run: Config, changes: list[str] | None = None) -> Path:
    """Train until `max_iterations`, or Ctrl-C; `changes` are keys that a resumed run overrides.

    Returns:
        The run folder.

    Raises:
        ConfigError: the configuration cannot be built, or does not fit the checkpoint to resume.
        RunFailed: a term was not finite, or too many environments diverged; the last checkpoint stays.
        KeyboardInterrupt: after Ctrl-C, with a checkpoint written.
    """
    set_threads(run)
    content, folder = None, None
    if run.resume is not None:
        folder, path = checkpoint.find_run(run.resume)
        content = checkpoint.load(path)
        folder = Path(run.output) if run.output else folder
    env = make_env(run)
    learner = make_learner(run, env)
    start, exact, seconds, steps = 0, True, 0.0, 0
    if content is not None:
        exact = checkpoint.restore(content, learner, env) and not changes
        start = content["iter"]
        if start >= run.max_iterations:
            raise ConfigError(
                f"the run is at iteration {start} already; ask for more: max_iterations={2 * start}"
            )
    if folder is None or run.output:
        folder = checkpoint.new_run_folder(run.task_name, run.output)
    # Where it came from and where it lies is not what it is: a saved run can be moved and resumed again.
    config.save(replace(run, resume=None, output=None), folder / config.FILE_NAME)
    contract_of(env).save(folder / "contract.json")

    log = MetricsLog(folder, resume_at=start)
    if log.last:
        seconds, steps = log.last["seconds"], log.last["steps"]
    title = f"{run.task_name} on {run.backend_name}, {run.num_envs} environments, {run.learner_name}"
    panel = Panel(title, run.max_iterations)
    with closing(env), closing(log), panel, interruptible() as interrupted:
        panel.note(f"run {folder}")
        if start:
            panel.note(f"resumed at iteration {start}, " + ("exactly" if exact else _why_inexact(changes)))
        for iteration in range(start + 1, run.max_iterations + 1):
            report = learner.iterate(env)
            steps += report.steps
            seconds += report.seconds["total"]
            row = _row(iteration, steps, seconds, report)
            log.write(row)
            panel.show(row)
            if report.env["diverged"] > max(1, DIVERGED_SHARE * report.steps):
                raise Diverged(
                    f"{report.env['diverged']:.0f} of {report.steps} steps diverged in iteration {iteration} (limit "
                    f"{100 * DIVERGED_SHARE:g} %): lower the timestep or the gains; the last checkpoint is kept"
                )
            last = iteration == run.max_iterations or bool(interrupted)
            if last or iteration % run.checkpoint_interval == 0:
                checkpoint.save(folder, iteration, learner, env)
            if interrupted:
                panel.note(f"stopped at iteration {iteration}; go on with: robolearn train resume={folder}")
                break
    if interrupted:
        raise KeyboardInterrupt
    print(f"trained {run.task_name}: {folder}")
    return folder


def make_learner(run: Config, env: Env) -> Learner:
    """The run's learner, after its needs have met what the backend can do.

    Raises:
        ConfigError: they do not meet; the message names what would.
    """
    cls = registry.load("learners", run.learner_name)
    for need in sorted(cls.requires):
        if not getattr(env.backend.capabilities, need):
            raise ConfigError(
                f"learner={run.learner_name} needs {need}; backend={run.backend_name} has none; choose another "
                "backend= or learner= (robolearn list)"
            )
    seed = int(np.random.SeedSequence((run.seed, 0, 1)).generate_state(1)[0])
    try:
        return cls(env, run.learner, seed=seed)
    except ValueError as error:
        raise ConfigError(str(error)) from error


def set_threads(run: Config) -> None:
    """PyTorch's threads on a CPU: as many as the process may use, unless the run says otherwise."""
    # Not every system can say which cores a process may use: macOS knows only how many there are.
    allowed = getattr(os, "sched_getaffinity", lambda _: range(os.cpu_count() or 1))
    torch.set_num_threads(run.torch_threads or len(allowed(0)))


def _row(iteration: int, steps: int, seconds: float, report: Report) -> dict[str, float]:
    return {
        "iteration": iteration,
        "steps": steps,
        "seconds": seconds,
        "steps_per_second": report.steps / report.seconds["total"],
        **{k: v for k, v in report.env.items() if "/" in k},
        "diverged": report.env["diverged"],
        **{f"loss/{k}": v for k, v in report.losses.items()},
        **{f"time/{k}": v for k, v in report.seconds.items()},
    }


def _why_inexact(changes: list[str] | None) -> str:
    if changes:
        return f"not bit for bit: {', '.join(changes)} differ from the saved run"
    return "not bit for bit: this checkpoint holds weights only (latest.pt holds the simulation too)"


@contextmanager
def interruptible() -> Iterator[list[int]]:
    """Ctrl-C and SIGTERM ask the loop to end after the running iteration; a second one ends it at once."""
    caught: list[int] = []

    def ask(number: int, frame: FrameType | None) -> None:
        if caught:
            raise KeyboardInterrupt
        caught.append(number)
        print(
            "stopping after this iteration, with a checkpoint; once more to stop now",
            file=sys.stderr,
            flush=True,
        )

    before = {s: signal.signal(s, ask) for s in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield caught
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
