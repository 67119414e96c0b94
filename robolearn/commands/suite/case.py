"""Cases: one scenario on one backend, simulated in a worker process."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from robolearn.commands.suite.spec import BUILT_IN, Scenario, file_stem

KEPT_SECONDS = 3.0
"""Length of the video of the worst episode, up to its end [s]."""


@dataclass(frozen=True)
class Case:
    """One scenario on one backend."""

    scenario: Scenario
    backend: str
    extra: tuple[str, ...] = ()
    """Settings of the command line."""
    threads: int = 1
    """Threads of the simulator; they change no bit."""

    @property
    def name(self) -> str:
        """SCENARIO on BACKEND."""
        return f"{self.scenario.name} on {self.backend}"

    @property
    def stem(self) -> str:
        """The name of its files, without their endings."""
        return f"{file_stem(self.scenario.name)}-{self.backend}"


@dataclass
class Outcome:
    """What a case measured."""

    episodes: dict[str, np.ndarray] = field(default_factory=dict)
    """(E,) by measure, of all seeds."""
    seeds: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))
    """(E,) seed of each episode."""
    envs: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))
    """(E,)."""
    ends: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))
    """(E,) see `Trial`."""
    seconds: float = 0.0
    """Wall time of the simulation [s]."""
    simulated: float = 0.0
    """Simulated time of one environment [s]."""
    diverged: int = 0
    problem: str = ""
    """What was not finite."""
    problem_at: tuple[int, int, int] | None = None
    """(seed, environment, number of control steps) of the problem."""
    diverged_at: tuple[int, int, int] | None = None
    """(seed, environment, number of control steps) of the first divergence."""
    checksums: tuple[str, ...] = ()
    """Of each seed's trial."""
    latency_ms: float | None = None
    """Of a bundle."""
    device: str = ""

    @property
    def mean(self) -> dict[str, float]:
        """Mean of each measure over the episodes that have it."""
        return {k: float(np.nanmean(v)) for k, v in self.episodes.items() if not np.isnan(v).all()}


def start_worker() -> None:
    """Prepare a worker process: one thread for torch, so that no bit depends on the number of cores."""
    import signal

    import torch

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the main process ends the workers
    torch.set_num_threads(1)


def metric_names(case: Case) -> tuple[list[str], tuple[str, ...]]:
    """(names of the task's metrics, columns of its commands) of a case, checked in an Env of one environment.

    Raises:
        ConfigError, MissingError: policy, settings, backend or script are invalid.
    """
    from robolearn.core.env import Env
    from robolearn.errors import ConfigError
    from robolearn.simulation.script import Director

    _require_own_task(case)
    config, make_driver = opened(case, case.scenario.seeds[0])
    env = made(config, 1)
    try:
        assert isinstance(env, Env)  # `_require_own_task` refuses others
        place = f"scenario {case.scenario.name!r}: "
        script, steps = case.scenario.script, case.scenario.steps or env.max_episode_steps
        for key, times in (
            ("commands", [at for at, _ in script.commands]),
            ("pushes", [p.at for p in script.pushes or ()]),
        ):
            for at in times:
                if round(at / env.dt) >= steps:
                    raise ConfigError(f"{place}{key}: {at:g} s is after the end, at {steps * env.dt:g} s")
        if script:
            Director(env, script, where=place)
        env.reset()
        make_driver(env)()
        names = list(env.task.metrics(env.backend.state, env.ctx))
        return names, env.task.commands.names if env.task.commands else ()
    finally:
        env.close()


def _require_own_task(case: Case) -> None:
    """Raise ConfigError for a third-party environment: it brings its own simulator."""
    from robolearn import config
    from robolearn.config.run_config import EXTERNAL
    from robolearn.errors import ConfigError
    from robolearn.export.driver import is_bundle
    from robolearn.training.runs import open_run

    scenario = case.scenario
    if is_bundle(scenario.policy):
        return  # `config_of` refuses its own
    if scenario.policy in BUILT_IN:
        found = config.resolve([f"task={scenario.task}"])
    else:
        found = open_run(scenario.policy).config
    if found.backend_name == EXTERNAL:
        raise ConfigError(
            f"task={found.task_name} brings its own simulator; suites simulate RoboLearn's: use robolearn sim"
        )


def opened(case: Case, seed: int) -> tuple[Any, Callable[[Any], Any]]:
    """(configuration, a function that makes the driver for its environments).

    Raises:
        ConfigError, MissingError, Refused: the policy or a setting is invalid.
    """
    from robolearn import config
    from robolearn.export.driver import BundleDriver, config_of, is_bundle
    from robolearn.simulation.trial import PolicyDriver
    from robolearn.training.runs import load_policy, open_run, random_policy, zero_policy

    scenario = case.scenario
    words = scenario.words(case.backend, seed, case.extra)
    if scenario.policy in BUILT_IN:
        run = config.resolve(words)
        if scenario.policy == "zero":
            return run, lambda env: PolicyDriver(env, zero_policy(env))
        return run, lambda env: PolicyDriver(env, random_policy(env, seed))
    if is_bundle(scenario.policy):
        folder = Path(scenario.policy)
        return config_of(folder, words), lambda env: BundleDriver(folder, env)
    found = open_run(scenario.policy, words)
    policy = load_policy(found)
    return found.config, lambda env: PolicyDriver(env, policy)


def made(config: Any, num_envs: int, threads: int = 1) -> Any:
    """The environments of a case; random numbers are those of evaluations."""
    from robolearn.simulation.episodes import NEVER_TRAINED
    from robolearn.training.build import make_learner_env

    if config.backend_name == "mujoco":
        config = replace(config, backend=replace(config.backend, threads=threads))
    return make_learner_env(config, num_envs=num_envs, rank=NEVER_TRAINED)


def run_case(case: Case) -> Outcome:
    """Simulate every seed of a case.

    Raises:
        ConfigError, MissingError, Refused, RunFailed: it cannot be simulated.
    """
    scenario, out = case.scenario, Outcome()
    columns: list[dict[str, np.ndarray]] = []
    marks: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = []
    for seed in scenario.seeds:
        config, make_driver = opened(case, seed)
        env = made(config, scenario.num_envs, case.threads)
        try:
            trial = _trial(case, env, make_driver, seed)
            out.device = env.device.type
        finally:
            env.close()
        columns.append(trial.episodes)
        marks.append((np.full(len(trial.envs), seed), trial.envs, trial.ends))
        out.seconds += trial.seconds
        out.simulated += trial.steps * trial.dt
        out.diverged += trial.diverged
        out.checksums += (trial.checksum,)
        if trial.diverged_at is not None and out.diverged_at is None:
            out.diverged_at = (seed, *trial.diverged_at)
        if trial.problem and not out.problem:
            out.problem, out.problem_at = trial.problem, (seed, trial.problem_env or 0, trial.steps)
    names = sorted({name for part in columns for name in part})
    for name in names:
        parts = [
            part.get(name, np.full(len(rows[0]), np.nan)) for part, rows in zip(columns, marks, strict=True)
        ]
        out.episodes[name] = np.concatenate(parts)
    out.seeds, out.envs, out.ends = (np.concatenate(parts) for parts in zip(*marks, strict=True))
    return out


def _trial(
    case: Case, env: Any, make_driver: Callable[[Any], Any], seed: int, observers: tuple[Any, ...] = ()
) -> Any:
    from robolearn.simulation.trial import run_trial

    scenario = case.scenario
    return run_trial(
        env,
        make_driver,
        scenario.script,
        seed,
        episodes_each=-(-scenario.episodes // scenario.num_envs),
        steps=scenario.steps,
        observers=observers,
        where=f"scenario {scenario.name!r}: ",
    )


def latency(folder: Path, steps: int = 2000) -> float:
    """99th percentile [ms] of the time of a control step of a bundle on this machine, one step after the other.

    Raises:
        ConfigError: `folder` is no bundle.
        Refused: the bundle is damaged.
    """
    import time

    from robolearn.errors import ConfigError
    from robolearn.export.deploy import own_runtime, told
    from robolearn.export.driver import is_bundle

    if not is_bundle(folder):
        raise ConfigError(f"gates: latency_ms needs the folder of a bundle as policy, not {str(folder)!r}")
    ours = own_runtime(folder)
    bundle: Any = told(ours, lambda: ours.Bundle.load(folder))
    name = told(ours, lambda: ours.available(bundle)[0])
    session: Any = told(ours, lambda: ours.open_session(bundle, name))
    try:
        runtime = ours.Runtime(bundle, session)
        sensors = {name: np.zeros(shape, np.float32) for name, shape in runtime.sensors.items()}
        for entry in bundle.manifest["sensors"]:
            if entry.get("unit_length"):
                sensors[entry["name"]].flat[0] = 1.0
        if "joint_pos" in sensors:
            sensors["joint_pos"][...] = runtime.home
        command = np.zeros(len(bundle.contract["command"]), np.float32)
        took = np.zeros(steps)
        for i in range(steps):
            began = time.perf_counter()
            runtime.step(sensors, command) if command.size else runtime.step(sensors)
            took[i] = time.perf_counter() - began
        return float(np.percentile(took[steps // 10 :], 99) * 1e3)
    finally:
        session.close()


def record_case(case: Case, seed: int, row: int, end: int, folder: Path, why: str) -> tuple[list[str], str]:
    """Simulate a case again, which has the same bits on a CPU, and keep the worst episode: a replay of its last second
    and a short video.

    Args:
        case: the case.
        seed: of the trial.
        row: environment of the episode.
        end: number of control steps of the trial after which it ended.
        folder: for the files.
        why: what happened.

    Returns:
        (the files, why there is no video).

    Raises:
        ConfigError: a file cannot be written.
    """
    from robolearn.core.env import Env
    from robolearn.core.recorder import Recorder
    from robolearn.errors import one_line
    from robolearn.simulation.video import write_video
    from robolearn.training import replay

    stem = case.stem
    config, make_driver = opened(case, seed)
    env = made(config, case.scenario.num_envs, case.threads)
    files: list[str] = []
    if not isinstance(env, Env) or not env.capabilities.exact_restore:
        env.close()
        return files, "nothing is recorded where results do not repeat bit for bit, as on a GPU"
    states: list[Any] = []
    try:
        recorder = Recorder.install(env)
        index = None

        def watch(moment: Any) -> None:
            nonlocal index
            import torch

            index = torch.tensor([row], device=env.device) if index is None else index
            if end - round(KEPT_SECONDS / env.dt) <= moment.step < end - 1:
                states.append(env.backend.state.rows(index))
            if moment.step == end - 2:
                recorder.arm(row)
            if moment.step == end - 1:
                raise _Seen

        with suppress(_Seen):
            _trial(case, env, make_driver, seed, (watch,))
        # Without a held dump no reset has followed: the trial counts steps, or a value was not finite.
        path = folder / f"{stem}{replay.SUFFIX}"
        held = recorder.take()
        replay.write(path, held[1] if held else recorder.dump(row), row, config, f"{case.name}: {why}")
        files.append(str(path))
        video = folder / f"{stem}.mp4"
        if not states:
            return files, "no video: the episode is too short"
        try:
            frames = _frames(env, states, [case.name, why])
            write_video(video, frames, 25.0, len(states[:: _every(env.dt)]))
        except Exception as error:  # OpenGL and encoders raise almost anything; the replay is written
            return files, one_line(f"no video: {error or type(error).__name__}")
        return [*files, str(video)], ""
    finally:
        env.close()


class _Seen(Exception):
    """The episode to be recorded has ended."""


def _every(dt: float) -> int:
    """Control steps from one frame to the next, at 25 frames a second."""
    return max(1, round(0.04 / dt))


def _frames(env: Any, states: list[Any], title: list[str]) -> Any:
    from robolearn.simulation.renderer import Renderer
    from robolearn.simulation.video import caption

    before = (len(states) - 1) * env.dt
    with Renderer(env.scene, 640, 480, backend=env.backend.capabilities.name) as renderer:
        for i in range(0, len(states), _every(env.dt)):
            said = f"{before - i * env.dt:.2f} s before the end"
            yield caption(renderer.draw(states[i]), [*title, said])


def cores() -> int:
    """Number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
