"""The training loop: build, resume, iterate, log, checkpoint. It knows no task, no backend, no algorithm."""

from __future__ import annotations

import os
import shlex
import signal
import sys
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import torch

from robolearn import config
from robolearn.config import registry
from robolearn.config.run_config import Config
from robolearn.core.contract import contract_of
from robolearn.core.env import Diverged, Env
from robolearn.core.finite_check import NonFiniteTerm
from robolearn.core.learner_env import LearnerEnv
from robolearn.envs.backend import Backend
from robolearn.errors import ConfigError
from robolearn.files import locked, replacing
from robolearn.learners.learner import Learner, Report
from robolearn.training import checkpoint
from robolearn.training.build import build_env, build_external, device_of
from robolearn.training.host_memory import PLENTY, enough_memory, require_room
from robolearn.training.metrics import MetricsLog
from robolearn.training.panel import Panel

DIVERGED_SHARE = 0.001
"""Share of an iteration's steps that may diverge before training stops."""

WEIGHTS_ONLY = "this checkpoint holds weights only (latest.pt holds the simulation too)"


def train(run: Config, changes: list[str] | None = None) -> Path:
    """Train until `max_iterations`, or Ctrl-C; `changes` are keys that a resumed run overrides.

    Returns:
        The run folder.

    Raises:
        ConfigError: the configuration cannot be built, or does not fit the checkpoint to resume, or another process
            trains in the run's folder.
        RunFailed: a term was not finite, or too many environments diverged; the last checkpoint stays.
        KeyboardInterrupt: after Ctrl-C, with a checkpoint written.
    """
    with ExitStack() as held:
        return _train(run, changes, held)


def _train(run: Config, changes: list[str] | None, held: ExitStack) -> Path:
    """`train`; the lock of the run's folder goes into `held`."""
    set_threads(run)
    folder, content = _resumed(run, held)
    env = _build(run)
    learner = make_learner(run, env)
    numerics = {"torch threads": torch.get_num_threads(), "precision": getattr(learner, "precision", None)}
    start, seconds, steps, exact, why = 0, 0.0, 0, True, ""
    if content is not None:
        exact = checkpoint.restore(content, learner, env, changes or ())
        start, infos = content["iter"], content["infos"] or {}
        seconds, steps = infos.get("seconds", 0.0), infos.get("steps", 0)
        differ = [
            *(changes or ()),
            *(k for k, v in numerics.items() if infos.get("numerics", numerics)[k] != v),
        ]
        why = f"{', '.join(differ)} differ from the saved run" if differ else WEIGHTS_ONLY
        if run.backend_name == config.EXTERNAL:
            why = "somebody else's environment cannot be put back where it was, and starts anew"
        elif exact and not differ and not env.capabilities.exact_restore:
            why = f"backend={run.backend_name} does not repeat a trajectory bit for bit here"
        exact = exact and not differ and env.capabilities.exact_restore
        if start >= run.max_iterations:
            raise ConfigError(
                f"the run is at iteration {start} already; ask for more: max_iterations={2 * start}"
            )
    in_place = folder is not None
    for stale in folder.rglob(".*.part*") if folder else ():
        stale.unlink(missing_ok=True)  # what a kill left half written
    if folder is None:
        folder = checkpoint.new_run_folder(run.task_name, run.output)
        held.enter_context(locked(folder))

    def describe() -> None:
        # Where it came from and where it lies is not what it is: a run can be moved and resumed again.
        config.save(replace(run, resume=None, output=None), folder / config.FILE_NAME)
        contract_of(env).save(folder / "contract.json")

    # A run that goes on in its own folder is described by its old files until it has a checkpoint of its own.
    described = not in_place
    if described:
        describe()
    log = MetricsLog(folder, resume_at=start)
    where = "" if run.backend_name == config.EXTERNAL else f" on {run.backend_name}"
    title = f"{run.task_name}{where}, {run.num_envs} environments, {run.learner_name}"
    panel = Panel(title, run.max_iterations)
    with interruptible() as interrupted, closing(env), closing(log), panel:
        panel.note(f"run {folder}")
        if start:
            panel.note(
                f"resumed at iteration {start}, " + ("exactly" if exact else f"not bit for bit: {why}")
            )
        for iteration in range(start + 1, run.max_iterations + 1):
            report = _iterate(learner, env, folder)
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
            stop = bool(interrupted)
            if stop or iteration == run.max_iterations or iteration % run.checkpoint_interval == 0:
                if not described:
                    describe()
                    described = True
                infos = {"steps": steps, "seconds": seconds, "numerics": numerics}
                checkpoint.save(folder, iteration, learner, env, infos)
            if stop and iteration < run.max_iterations:
                panel.note(f"stopped at iteration {iteration}; go on with: {_going_on(run, folder)}")
                raise KeyboardInterrupt
        panel.note(f"trained {run.task_name}: {folder}")
    return folder


def _going_on(run: Config, folder: Path) -> str:
    """The command that resumes a run; code that comes from a file is only run where it is named again."""
    chosen = {"task": run.task_name, "backend": run.backend_name, "learner": run.learner_name}
    again = [f"{key}={name}" for key, name in chosen.items() if registry.is_file(name)]
    return shlex.join(["robolearn", "train", f"resume={folder}", *again])


def _build(run: Config) -> LearnerEnv:
    """The run's environments, after a look whether there is room for them."""
    if run.backend_name == config.EXTERNAL:
        return build_external(run, run.num_envs)
    require_room(run.num_envs, device_of(run), lambda n: _probe(run, n), _plenty(run))
    with enough_memory(run.num_envs):
        return build_env(run, run.num_envs)


def _probe(run: Config, num_envs: int) -> tuple[Env, Backend, Learner]:
    """What a run holds in memory, for fewer environments."""
    env = build_env(run, num_envs)
    return env, env.backend, make_learner(run, env)


def _plenty(run: Config) -> int:
    """Bytes that no environment of this run needs: its own, and its part of a batch where the learner has one."""
    learner, widths = run.learner, [0]
    for name in ("actor_hidden", "critic_hidden"):
        widths += getattr(learner, name, ())
    # Observations of all kinds, actions and what the networks make of them, forwards and back.
    return PLENTY + 4 * getattr(learner, "num_steps", 0) * (1024 + 2 * max(widths))


def _resumed(run: Config, held: ExitStack) -> tuple[Path | None, dict[str, Any] | None]:
    """The folder to go on in and the checkpoint to go on from; neither for a new run, no folder for one
    that goes on elsewhere."""
    if run.resume is None:
        return None, None
    folder, path = checkpoint.find_run(run.resume)
    if run.output is not None:
        return None, checkpoint.load(path)
    held.enter_context(
        locked(folder)
    )  # before the checkpoint is read: another process may be writing a newer one
    content = checkpoint.load(path)
    checkpoint.require_newest(folder, content)
    return folder, content


def _iterate(learner: Learner, env: LearnerEnv, folder: Path) -> Report:
    """One iteration; what is not finite leaves the State it came from in the run's folder."""
    try:
        return learner.iterate(env)
    except NonFiniteTerm as error:
        if error.state is None:
            raise
        path = folder / "non_finite_state.pt"
        with replacing(path) as part:
            torch.save({name: entity.tensors() for name, entity in error.state.entities.items()}, part)
        raise NonFiniteTerm(f"{error}; saved as {path}") from error


def make_learner(run: Config, env: LearnerEnv) -> Learner:
    """The run's learner, after its needs have met what the backend can do.

    Raises:
        ConfigError: they do not meet; the message names what would.
    """
    cls = registry.load("learners", run.learner_name)
    for need in sorted(cls.requires):
        if not getattr(env.capabilities, need):
            if run.backend_name == config.EXTERNAL:
                raise ConfigError(
                    f"learner={run.learner_name} needs {need}; task={run.task_name} has none; use learner=ppo"
                )
            fix = registry.giving(need) or "another backend= or learner= (robolearn list)"
            raise ConfigError(
                f"learner={run.learner_name} needs {need}; backend={run.backend_name} has none; use {fix}"
            )
    seed = int(np.random.SeedSequence((run.seed, 0, 1)).generate_state(1)[0])
    try:
        with enough_memory(run.num_envs, " with these learner settings"):
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


@contextmanager
def interruptible() -> Iterator[list[int]]:
    """Ctrl-C and SIGTERM ask the loop to end after the running iteration; a second one ends it at once.

    One that the process was started to ignore stays ignored, as the convention is for jobs in the background.
    """
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

    heard = [s for s in (signal.SIGINT, signal.SIGTERM) if signal.getsignal(s) is not signal.SIG_IGN]
    before = {number: signal.signal(number, ask) for number in heard}
    try:
        yield caught
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
