"""The training loop: build, resume, iterate, log, checkpoint. It is independent of task, backend and algorithm."""

from __future__ import annotations

import gc
import hashlib
import inspect
import os
import shlex
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import torch

from robolearn import config
from robolearn.config import presets, registry
from robolearn.config.run_config import Config, agents_of
from robolearn.core.env import Env
from robolearn.core.finite_check import Diverged, NonFiniteTerm
from robolearn.core.learner_env import LearnerEnv
from robolearn.core.recorder import Recorder
from robolearn.core.shards import ONE, Shards
from robolearn.core.threads import usable_cores
from robolearn.errors import ConfigError, quote, tell_line
from robolearn.files import locked, remove_leftovers, replacing, save_tensors
from robolearn.learners.distill.teacher import Teacher
from robolearn.learners.learner import Learner, Report
from robolearn.learners.ppo.ppo import PPO
from robolearn.learners.reference import Reference
from robolearn.learners.saved import Damaged
from robolearn.learners.several import Several
from robolearn.training import checkpoint, replay
from robolearn.training.asynchronous.pool import Stopped
from robolearn.training.asynchronous.remote import RemoteEnvs
from robolearn.training.build import build_env, build_external, device_of, make_robot
from robolearn.training.guard.evidence import Film
from robolearn.training.guard.guard import KEY as GUARD
from robolearn.training.guard.guard import Guard, Healthy, RolledBack
from robolearn.training.guard.remedies import completed
from robolearn.training.host_memory import PLENTY, enough_memory, require_room
from robolearn.training.ranks import Regrouped
from robolearn.training.ranks.copies import Copies
from robolearn.training.ranks.launched import launched_folder, started_by_launcher
from robolearn.training.ranks.slow import Slow
from robolearn.training.ranks.world import World, goes_on, joined, with_ranks
from robolearn.training.record import Record
from robolearn.training.same_groups import ALL, require_same_groups
from robolearn.training.same_robot import require_same_order, robot_digest

DIVERGED_SHARE = 0.001
"""Training stops where more than this share of an iteration's steps diverges."""

ROBOT_FILE = "file of the robot"
WEIGHTS_ONLY = "this checkpoint holds weights only; latest.pt holds the simulation too"


def train(run: Config, changes: list[str] | None = None, film: Film | None = None) -> Path:
    """Train until `max_iterations` or Ctrl-C; `changes` are the dotted keys that a resumed run changes, and `film`
    makes a video of what the guard finds.

    Returns:
        The run folder.

    Raises:
        ConfigError: the configuration cannot be built or does not fit the checkpoint to resume, or another process
            trains in the run folder.
        RunFailed: a term was not finite, too many environments diverged, or the guard has rolled back as often as it
            may or has nothing left to change; the last checkpoint is kept.
        KeyboardInterrupt: after Ctrl-C, once a checkpoint is written.
    """
    run = with_ranks(run)
    if goes_on(run) and (Path(run.output or "") / checkpoint.LATEST).exists():
        changes = config.resume_changes(config.named_files(run), replace(run, resume=run.output))
        _require_same(run.output or "", run, changes)
        run = replace(completed(replace(run, resume=run.output)), resume=run.resume)
    run = completed(run)
    if run.recovery == "takeover" and run.ranks > 1:
        return _train_with_takeover(run, changes)
    with ExitStack() as held:
        world = held.enter_context(joined(run))
        back: Healthy | None = None
        signals: list[int] = []  # one may arrive just before a rollback
        while True:
            try:
                return _train(run, changes, held, world, signals, film, back)
            except RolledBack as rolled:
                back = rolled.healthy
            # Only now are the exception and, by its traceback, the old environments let go; they are in cycles.
            gc.collect()
            run, changes = back.run, []


def _train_with_takeover(run: Config, changes: list[str] | None) -> Path:
    """See `train`; begins again, in this process, whenever a rank has come or gone."""
    from robolearn.training.ranks.takeover import Member

    signals: list[int] = []  # one may arrive just before a rank is lost
    with closing(Member(run, int(os.environ["RANK"]))) as member, interruptible(True, signals):
        while True:
            with ExitStack() as held, suppress(Regrouped):
                return _train(run, changes, held, member.world(), signals)


def _train(
    run: Config,
    changes: list[str] | None,
    held: ExitStack,
    world: World,
    caught: list[int] | None = None,
    film: Film | None = None,
    back: Healthy | None = None,
) -> Path:
    """See `train`; the lock of the run folder is entered into `held`, signals into `caught`. After a rollback of the
    guard it goes on from `back`."""
    set_threads(run)
    world.require_same(run)
    folder, content = _begun(run, held, back) if world.writes else (None, None)
    content = world.from_first(content)
    copies = Copies(world)
    env = _build(run, world)
    if isinstance(env, RemoteEnvs):
        set_threads(replace(run, torch_threads=env.torch_threads))  # not saved: the placement says it again
    learner = make_learner(run, env, env.shards if isinstance(env, RemoteEnvs) else world.shards)
    known = {"precision": getattr(learner, "precision", None), **_policies_read(learner), **_files(run)}
    if not run.ranks:  # a shard is always computed by one thread
        known["torch threads"] = torch.get_num_threads()
    content = checkpoint.rows_of(copies.newest(content), run, world)
    if content is None and run.weights is not None:
        source = checkpoint.find_run(run.weights)[0]
        require_same_order(source, run, f"weights={quote(run.weights, 120)} do")
        require_same_groups(source, run, f"weights={quote(run.weights, 120)} do")
        checkpoint.start_with(run.weights, learner)
    if run.resume is not None and world.writes:
        _require_same(run.resume, run, changes or [])
    parts = run.shards if run.ranks else 0
    if isinstance(env, RemoteEnvs) and not env.shards.single:
        parts = env.shards.total
    if parts and content is not None and (content.get("infos") or {}).get("shards") == parts:
        # Actors without lag and ranks compute the same; a shard is computed by one thread.
        changes = [key for key in changes or [] if key not in ("ranks", "shards", "torch_threads")]
    start, infos, said = _restored(run, content, learner, env, known, changes or [], world.again, parts)
    goes_on = content is not None
    del content  # it holds a whole simulation
    if world.writes and folder is None:
        folder = checkpoint.new_run_folder(run.task_name, run.output)
        held.enter_context(locked(folder))
    folder = Path(world.share(str(folder))[0])
    if world.writes and goes_on:
        remove_leftovers(folder, folder / "checkpoints", *folder.glob("guard/**/"))

    steps, seconds = infos.get("steps", 0), infos.get("seconds", 0.0)
    recorder = Recorder.for_training(env)
    slow = Slow(world.share(world.host), world.rank)
    described = env.described if isinstance(env, RemoteEnvs) else env
    actors = env.actors if isinstance(env, RemoteEnvs) else ""
    again = world.again or back is not None
    record = Record(run, folder, described, start, world.ranks, world.writes, actors, again)
    guard = Guard(run, env, folder, infos.get(GUARD)) if run.guard.mode == "on" else None
    guarded = {GUARD: infos[GUARD]} if guard is None and GUARD in infos else {}
    """The state of a guard that is off now, for when it is on again."""
    quiet = not world.writes or started_by_launcher()
    with interruptible(quiet, caught) as signals, closing(env), record:
        if guard is not None:
            resumes = run.resume is not None and back is None
            saved_in = checkpoint.find_run(run.resume)[0] if resumes else None
            guard.begin(start, saved_in, lambda: checkpoint.local(start, learner, env, infos))
        if start and back is None:
            record.note(f"resumed at iteration {start}, {said}")
        few = _fewer_on_cpu(run)
        if few and not start and run.num_envs > few:
            record.note(f"num_envs={run.num_envs} on a CPU: num_envs={few} learns more from a step")
        if run.rollout_share < 1 and not world.again:
            record.note(
                f"rollout_share={run.rollout_share:g}: the rollouts of slow ranks are cut, so the same command gives "
                "other weights each time"
            )
        if start >= run.max_iterations:  # a rank was lost while it was being saved
            record.describe()
            checkpoint.save(folder, start, learner, env, infos, world)
        # A signal may have arrived while ranks came and went; another rank may have saved, said so, and ended.
        if world.member is not None and start < run.max_iterations and world.agree(bool(signals), [])[0]:
            if start > world.share(checkpoint.saved_at(folder) if world.writes else 0)[0]:
                record.describe()
                checkpoint.save(folder, start, learner, env, infos, world)
                record.note(f"stopped at iteration {start}; resume with: {_resume_command(run, folder)}")
            elif not start:
                record.note("stopped before the first iteration")
            copies.clear()
            raise KeyboardInterrupt
        if isinstance(env, RemoteEnvs):
            env.launch(folder, start, learner, tell_line, lambda: bool(signals))
        saved = start
        for iteration in range(start + 1, run.max_iterations + 1):
            began = time.perf_counter()
            world.begin(iteration, getattr(learner, "timers", None))
            try:
                report = _iterate(learner, env, folder, run, recorder, world)
            except Stopped:  # before this iteration has changed anything
                if saved < iteration - 1:
                    record.describe()
                    checkpoint.save(folder, iteration - 1, learner, env, infos, world)
                where = f"stopped at iteration {iteration - 1}; resume with: {_resume_command(run, folder)}"
                record.note(where if iteration > 1 else "stopped before the first iteration")
                raise KeyboardInterrupt from None
            report.seconds.setdefault("total", time.perf_counter() - began)
            steps += report.steps
            seconds += report.seconds["total"]
            stop, times = world.agree(bool(signals), slow.mine(report.seconds, world.waited))
            of_ranks, late = slow.found(times)
            seen = {} if guard is None else guard.look(iteration, report, learner)
            record.row(_row(iteration, steps, seconds, report) | of_ranks | seen)
            unwritten = "" if guard is None else guard.take_note()
            for line in (*report.notes, unwritten, late):
                if line:
                    record.note(line)
            record.divergence(recorder, iteration, world.suffix)
            if report.env["diverged"] > max(1, DIVERGED_SHARE * report.steps):
                raise Diverged(
                    f"{report.env['diverged']:.0f} of {report.steps} steps diverged in iteration {iteration} (limit "
                    f"{100 * DIVERGED_SHARE:g} %): lower the timestep or the gains; the last checkpoint is kept"
                )
            infos = {
                "steps": steps,
                "seconds": seconds,
                "numerics": known,
                "shards": parts,
                **guarded,
            }
            if guard is not None:
                infos[GUARD] = guard.state(iteration)
                if guard.alarm is not None:
                    raise guard.roll_back(iteration, learner, recorder, infos, record.note, film)
                if guard.due(iteration):
                    guard.keep(iteration, checkpoint.local(iteration, learner, env, infos))
                    infos[GUARD] = guard.state(iteration)
                    guard.prune()
            if copies.folder is not None:
                copies.keep(checkpoint.local(iteration, learner, env, infos))
            stop = stop or (world.ranks == 1 and bool(signals))  # one that has arrived since
            last = report.finished or iteration == run.max_iterations
            if stop or last or iteration % run.checkpoint_interval == 0:
                record.describe()
                checkpoint.save(folder, iteration, learner, env, infos, world)
                if guard is not None:
                    guard.prune(saved=True)
                saved = iteration
            if stop and not last:
                record.note(f"stopped at iteration {iteration}; resume with: {_resume_command(run, folder)}")
                copies.clear()
                raise KeyboardInterrupt
            if report.finished:
                record.finished(iteration)
                break
        record.done()
        copies.clear()
    return folder


def _require_same(resumed: str, run: Config, changes: list[str]) -> None:
    """Refuse to resume with the same joints or observation groups in another order; `changes` are other settings."""
    shown = f"resume={quote(resumed, 120)} does"
    require_same_order(checkpoint.find_run(resumed)[0], run, shown)
    if any(key.rpartition(".")[2] in ALL for key in changes):
        require_same_groups(checkpoint.find_run(resumed)[0], run, shown, ALL)


def _restored(
    run: Config,
    content: dict[str, Any] | None,
    learner: Learner,
    env: LearnerEnv,
    known: dict[str, Any],
    changes: list[str],
    again: bool,
    parts: int,
) -> tuple[int, dict[str, Any], str]:
    """Restore learner and environments from the content of a checkpoint, of which `changes` are other settings now, and
    `known` what else bits depend on; `parts` are those of ranks or actors, 0 without.

    Returns:
        The iteration, what the checkpoint says of the run, and how exactly it goes on, for the user.
    """
    if content is None:
        return 0, {}, ""
    exact = simulated = checkpoint.restore(content, learner, env, changes)
    lacking = env.lacking(content["env"]) if exact and isinstance(env, Env) else []
    start, infos = content.get("iter", 0), content.get("infos") or {}
    saved = infos.get("numerics", known)
    differ = [*changes, *(name for name, value in known.items() if saved.get(name, value) != value)]
    if any(f"{key}.".startswith(("task.robot.", "robot.")) for key in changes):
        differ = [name for name in differ if name != ROBOT_FILE]  # it is not the file that was changed
    differ += [path.removeprefix("episode.") for path in lacking]
    if infos.get("shards", parts) != parts and not {"ranks", "shards"} & set(changes):
        differ.append("number of actors")
    verb = "differs" if len(differ) == 1 else "differ"
    why = f"{', '.join(differ)} {verb} from the saved run" if differ else WEIGHTS_ONLY
    if run.backend_name == config.EXTERNAL:
        why = "a third-party environment cannot be restored, and starts again"
    elif isinstance(env, RemoteEnvs) and not env.exact:
        why = "actors collect ahead"
    elif run.rollout_share < 1:
        why = "rollouts are cut where a rank is slow"
    elif exact and not differ and not env.capabilities.exact_restore:
        why = f"backend={run.backend_name} does not repeat a trajectory bit for bit here"
    if not simulated and isinstance(env, Env) and env.levels:
        kept = checkpoint.keeps_levels(content, env, changes)
        why += "; curricula go on at their mean levels" if kept else "; curricula begin anew"
    if start >= run.max_iterations and not again:
        raise ConfigError(
            f"the run is at iteration {start} already; for more, set max_iterations={2 * start}"
        )
    exact = exact and not differ and env.capabilities.exact_restore and run.rollout_share == 1
    return start, infos, "exactly" if exact else f"not bit for bit: {why}"


def _policies_read(learner: Learner) -> dict[str, str]:
    """Of the policies of other runs that a learner learns from, a sha256 of what was read, by what it is of.

    Their runs may train on, and then a resume learns from others.
    """
    first = next(iter(learner.learners.values())) if isinstance(learner, Several) else learner
    holders = (first, getattr(first, "update", None))
    return {
        f"the weights of learner.{name}": held.digest
        for name in ("reference", "teacher")
        for holder in holders
        if isinstance(held := getattr(holder, name, None), (Reference, Teacher))
    }


def _files(run: Config) -> dict[str, str]:
    """Digests of the files that the task and its robot come from: one that was edited since computes something else."""
    source = Path(run.task_name.rpartition(":")[0])
    known = {}
    if source.suffix == ".py" and source.is_file():
        known["file of the task"] = hashlib.sha256(source.read_bytes()).hexdigest()
    if run.backend_name != config.EXTERNAL:
        known[ROBOT_FILE] = robot_digest(make_robot(run))
    return known


def _fewer_on_cpu(run: Config) -> int:
    """The task's number of environments for a CPU where PPO trains on one, else 0: not measured for other learners."""
    if run.learner_name != "ppo" or device_of(run).type != "cpu":
        return 0
    return presets.cpu_envs(type(run.task), presets.stated_by(type(run.task), "ppo"))


def _resume_command(run: Config, folder: Path) -> str:
    """The command that resumes a run."""
    return shlex.join(["robolearn", "train", f"resume={folder}", *config.named_files(run)])


def _build(run: Config, world: World) -> LearnerEnv:
    """This rank's environments, after a check that memory is large enough."""
    if run.mode == "async":
        return RemoteEnvs(run)
    if run.backend_name == config.EXTERNAL:
        return build_external(run, run.num_envs)
    num_envs = world.mine(run.num_envs)
    # A rank measures what fits into its share of the memory of a machine.
    require_room(num_envs, device_of(run), lambda n: _probe(run, n), _plenty(run), _unit(run))
    with enough_memory(num_envs):
        return build_env(run, num_envs, training=True, shards=world.shards)


def _probe(run: Config, num_envs: int) -> tuple[Any, ...]:
    """The parts of a run that take memory, with fewer environments."""
    env = build_env(run, num_envs, training=True)
    # A flight recorder holds two snapshots.
    return env, env.backend, make_learner(run, env), Recorder.for_training(env), env.backend.snapshot()


def _unit(run: Config) -> int:
    """Environments are in multiples of this number: the groups of learner=grpo."""
    return int(getattr(run.learner, "group_size", 1))


def _plenty(run: Config) -> int:
    """An upper bound [bytes] of what an environment of this run needs, with its part of the learner's batch."""
    learner, widths = run.learner, [0]
    for name in ("actor_hidden", "critic_hidden"):
        widths += getattr(learner, name, ())
    # Observations, actions, and activations of the networks with their gradients.
    steps = getattr(learner, "num_steps", 0)
    if hasattr(learner, "steps_of"):
        steps = learner.steps_of(run.num_envs * agents_of(run))
    if not steps and hasattr(run.task, "episode_length_s"):  # rollouts are whole episodes
        steps = round(run.task.episode_length_s / run.task.control_dt)
    return agents_of(run) * (PLENTY + 4 * steps * (1024 + 2 * max(widths)))


def _begun(run: Config, held: ExitStack, back: Healthy | None) -> tuple[Path | None, dict[str, Any] | None]:
    """The run folder and the checkpoint to resume; both None for a new run, no folder where the run resumes in another
    one. Where ranks are started again, the folder is there."""
    if back is not None:
        return back.folder, back.take()
    chosen = launched_folder()  # which the launcher has locked
    if chosen is None and goes_on(run):
        chosen = Path(run.output or "")
        held.enter_context(locked(chosen))
    if chosen is not None:
        if (chosen / checkpoint.LATEST).exists():
            try:
                return chosen, checkpoint.load(chosen / checkpoint.LATEST)
            except Damaged:
                if run.resume is None:  # else a file in checkpoints/ may be named in its place
                    raise
        if run.resume is None:
            return chosen, None
        return chosen, checkpoint.load(checkpoint.find_run(run.resume)[1])
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
    learner: Learner, env: LearnerEnv, folder: Path, run: Config, recorder: Recorder | None, world: World
) -> Report:
    """One iteration; the State at a non-finite term is saved in the run folder, and a replay of the second before."""
    try:
        return learner.iterate(env)
    except NonFiniteTerm as error:
        if error.state is None:
            raise
        path = folder / f"non_finite_state{world.suffix}.pt"
        with replacing(path) as part:
            save_tensors({name: entity.tensors() for name, entity in error.state.entities.items()}, part)
        said = f"{error}; saved as {path}"
        if recorder is not None and error.env is not None:
            file = folder / f"non_finite{world.suffix}{replay.SUFFIX}"
            replay.write(file, recorder.dump(error.env), error.env, run, str(error))
            said = f"{said}; look at the second before with robolearn replay {file}"
        raise NonFiniteTerm(said) from error


def make_learner(run: Config, env: LearnerEnv, shards: Shards = ONE) -> Learner:
    """The run's learner, of environments that are these `shards` of all.

    Raises:
        ConfigError: the backend lacks a capability that the learner requires, or a setting of the learner is invalid.
    """
    cls = registry.load("learners", run.learner_name)
    if getattr(run.learner, "policies", None):
        if cls is not PPO:
            raise ConfigError(
                f"learner.policies with learner={run.learner_name}: only learner=ppo trains several policies; leave "
                "learner.policies out"
            )
        cls = Several
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
    more = {} if shards.single else {"shards": shards}
    if more and "shards" not in inspect.signature(cls).parameters:
        raise ConfigError(
            f"learner={run.learner_name} takes no shards, so it cannot train with ranks={run.ranks}"
        )
    if shards.cut is not None and not getattr(cls, "learns_from_cut_rollouts", False):
        raise ConfigError(
            f"learner={run.learner_name} needs complete rollouts, so rollout_share={run.rollout_share:g} does not fit; "
            "leave it out, or use learner=ppo"
        )
    try:
        with enough_memory(run.num_envs, " with these learner settings"):
            return cls(env, run.learner, seed=seed, **more)
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
def interruptible(quiet: bool = False, caught: list[int] | None = None) -> Iterator[list[int]]:
    """Ctrl-C and SIGTERM end the loop after the current iteration, which is said unless `quiet`; a second signal ends
    it at once.

    A signal that the process ignored from its start stays ignored, as is the convention for background jobs.

    Yields:
        A list that is non-empty once a signal has arrived.
    """
    signals: list[int] = [] if caught is None else caught

    def on_signal(number: int, frame: FrameType | None) -> None:
        if signals:
            raise KeyboardInterrupt
        signals.append(number)
        if quiet:
            return
        print(
            "stopping after this iteration, with a checkpoint; press Ctrl-C again to stop now",
            file=sys.stderr,
            flush=True,
        )

    handled = [s for s in (signal.SIGINT, signal.SIGTERM) if signal.getsignal(s) is not signal.SIG_IGN]
    before = {number: signal.signal(number, on_signal) for number in handled}
    try:
        yield signals
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
