"""The training loop: build, resume, iterate, log, checkpoint. It is independent of task, backend and algorithm."""

from __future__ import annotations

import shlex
import signal
import sys
import time
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
from robolearn.core.env import Diverged
from robolearn.core.finite_check import NonFiniteTerm
from robolearn.core.learner_env import LearnerEnv
from robolearn.core.recorder import Recorder
from robolearn.core.threads import usable_cores
from robolearn.errors import ConfigError
from robolearn.files import locked, replacing
from robolearn.learners.learner import Learner, Report
from robolearn.training import checkpoint, origin, replay
from robolearn.training.active import active
from robolearn.training.build import build_env, build_external, device_of
from robolearn.training.host_memory import PLENTY, enough_memory, require_room
from robolearn.training.metrics import MetricsLog
from robolearn.training.panel import Panel

DIVERGED_SHARE = 0.001
"""Training stops where more than this share of an iteration's steps diverges."""

WEIGHTS_ONLY = "this checkpoint holds weights only; latest.pt holds the simulation too"


def train(run: Config, changes: list[str] | None = None) -> Path:
    """Train until `max_iterations` or Ctrl-C; `changes` are the dotted keys that a resumed run changes.

    Returns:
        The run folder.

    Raises:
        ConfigError: the configuration cannot be built or does not fit the checkpoint to resume, or another process
            trains in the run folder.
        RunFailed: a term was not finite, or too many environments diverged; the last checkpoint is kept.
        KeyboardInterrupt: after Ctrl-C, once a checkpoint is written.
    """
    with ExitStack() as held:
        return _train(run, changes, held)


def _train(run: Config, changes: list[str] | None, held: ExitStack) -> Path:
    """See `train`; the lock of the run folder is entered into `held`."""
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
            why = "a third-party environment cannot be restored, and starts again"
        elif exact and not differ and not env.capabilities.exact_restore:
            why = f"backend={run.backend_name} does not repeat a trajectory bit for bit here"
        exact = exact and not differ and env.capabilities.exact_restore
        if start >= run.max_iterations:
            raise ConfigError(
                f"the run is at iteration {start} already; for more, set max_iterations={2 * start}"
            )
    in_place = folder is not None
    for stale in folder.rglob(".*.part*") if folder else ():
        stale.unlink(missing_ok=True)  # left half written by a kill
    if folder is None:
        folder = checkpoint.new_run_folder(run.task_name, run.output)
        held.enter_context(locked(folder))

    began_with = origin.here(env.device)  # now: a resumed run writes it with its first checkpoint

    def describe() -> None:
        # Without resume and output, so that the run can be moved and resumed again.
        config.save(replace(run, resume=None, output=None), folder / config.FILE_NAME)
        contract_of(env).save(folder / "contract.json")
        origin.record_start(folder, start, began_with)

    # A run resumed in the same folder keeps its old files until it has written a checkpoint.
    described = not in_place
    if described:
        describe()
    log = MetricsLog(folder, resume_at=start)
    where = "" if run.backend_name == config.EXTERNAL else f" on {run.backend_name}"
    title = f"{run.task_name}{where}, {run.num_envs} environments, {run.learner_name}"
    panel = Panel(title, run.max_iterations)
    recorder = Recorder.for_training(env)
    with interruptible() as interrupted, closing(env), closing(log), panel:
        panel.note(f"run {folder}")
        panel.print_active(active(run.task, getattr(env, "columns", None), getattr(env, "scene", None)))
        if start:
            panel.note(
                f"resumed at iteration {start}, " + ("exactly" if exact else f"not bit for bit: {why}")
            )
        for iteration in range(start + 1, run.max_iterations + 1):
            began = time.perf_counter()
            report = _iterate(learner, env, folder, run, recorder)
            report.seconds.setdefault("total", time.perf_counter() - began)
            steps += report.steps
            seconds += report.seconds["total"]
            row = _row(iteration, steps, seconds, report)
            log.write(row)
            panel.show(row)
            if recorder is not None and (caught := recorder.take()):
                file = folder / f"diverged{replay.SUFFIX}"
                replay.write(
                    file, caught[1], caught[0], run, f"the simulation diverged in iteration {iteration}"
                )
                panel.note(f"an environment diverged; look at it with robolearn replay {file}")
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
                panel.note(f"stopped at iteration {iteration}; resume with: {_resume_command(run, folder)}")
                raise KeyboardInterrupt
        panel.note(f"trained {run.task_name}: {folder}")
    return folder


def _resume_command(run: Config, folder: Path) -> str:
    """The command that resumes a run; it names files again, whose code is not run otherwise."""
    chosen = {"task": run.task_name, "backend": run.backend_name, "learner": run.learner_name}
    again = [f"{key}={name}" for key, name in chosen.items() if registry.is_file(name)]
    return shlex.join(["robolearn", "train", f"resume={folder}", *again])


def _build(run: Config) -> LearnerEnv:
    """The run's environments, after a check that memory is large enough."""
    if run.backend_name == config.EXTERNAL:
        return build_external(run, run.num_envs)
    require_room(run.num_envs, device_of(run), lambda n: _probe(run, n), _plenty(run))
    with enough_memory(run.num_envs):
        return build_env(run, run.num_envs, training=True)


def _probe(run: Config, num_envs: int) -> tuple[Any, ...]:
    """The parts of a run that take memory, with fewer environments."""
    env = build_env(run, num_envs, training=True)
    # A flight recorder holds two snapshots.
    return env, env.backend, make_learner(run, env), Recorder.for_training(env), env.backend.snapshot()


def _plenty(run: Config) -> int:
    """An upper bound [bytes] of what an environment of this run needs, with its part of the learner's batch."""
    learner, widths = run.learner, [0]
    for name in ("actor_hidden", "critic_hidden"):
        widths += getattr(learner, name, ())
    # Observations, actions, and activations of the networks with their gradients.
    steps = getattr(learner, "num_steps", 0)
    if hasattr(learner, "steps_of"):
        steps = learner.steps_of(run.num_envs)
    return PLENTY + 4 * steps * (1024 + 2 * max(widths))


def _resumed(run: Config, held: ExitStack) -> tuple[Path | None, dict[str, Any] | None]:
    """The run folder and the checkpoint to resume; both None for a new run, no folder where the run resumes in another
    one."""
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


def _iterate(
    learner: Learner, env: LearnerEnv, folder: Path, run: Config, recorder: Recorder | None
) -> Report:
    """One iteration; the State at a non-finite term is saved in the run folder, and a replay of the second before."""
    try:
        return learner.iterate(env)
    except NonFiniteTerm as error:
        if error.state is None:
            raise
        path = folder / "non_finite_state.pt"
        with replacing(path) as part:
            torch.save({name: entity.tensors() for name, entity in error.state.entities.items()}, part)
        said = f"{error}; saved as {path}"
        if recorder is not None and error.env is not None:
            file = folder / f"non_finite{replay.SUFFIX}"
            replay.write(file, recorder.dump(error.env), error.env, run, str(error))
            said = f"{said}; look at the second before with robolearn replay {file}"
        raise NonFiniteTerm(said) from error


def make_learner(run: Config, env: LearnerEnv) -> Learner:
    """The run's learner.

    Raises:
        ConfigError: the backend lacks a capability that the learner requires, or a setting of the learner is invalid.
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
    """Set the number of PyTorch's CPU threads: `torch_threads`, or where 0 as many as the process may use."""
    torch.set_num_threads(run.torch_threads or usable_cores())


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
    """Ctrl-C and SIGTERM end the loop after the current iteration; a second signal ends it at once.

    A signal that the process ignored from its start stays ignored, as is the convention for background jobs.

    Yields:
        A list that is non-empty once a signal has arrived.
    """
    caught: list[int] = []

    def on_signal(number: int, frame: FrameType | None) -> None:
        if caught:
            raise KeyboardInterrupt
        caught.append(number)
        print(
            "stopping after this iteration, with a checkpoint; press Ctrl-C again to stop now",
            file=sys.stderr,
            flush=True,
        )

    handled = [s for s in (signal.SIGINT, signal.SIGTERM) if signal.getsignal(s) is not signal.SIG_IGN]
    before = {number: signal.signal(number, on_signal) for number in handled}
    try:
        yield caught
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
