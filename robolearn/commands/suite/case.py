"""Cases: one scenario on one backend, simulated in a worker process."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from robolearn.commands.suite.spec import Scenario, file_stem
from robolearn.training.runs import BUILT_IN


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


def check_case(case: Case) -> tuple[list[str], tuple[str, ...]]:
    """(names of the task's metrics, columns of its commands) of a case, checked in an Env of one environment.

    Raises:
        ConfigError, MissingError: policy, settings, backend or script are invalid.
    """
    from robolearn.core.env import Env
    from robolearn.simulation.script import Director

    _require_own_task(case)
    config, make_driver = opened(case, case.scenario.seeds[0])
    env = made(config, 1)
    try:
        assert isinstance(env, Env)  # `_require_own_task` refuses others
        place = f"scenario {case.scenario.name!r}: "
        script, steps = case.scenario.script, case.scenario.steps or env.max_episode_steps
        script.require_within(steps, env.dt, place)
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
    else:  # a task from a file is only run where it is named again
        words = scenario.words(case.backend, scenario.seeds[0], case.extra) if scenario.task else []
        found = open_run(scenario.policy, words).config
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
            trial = simulate(case, env, make_driver, seed)
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


def simulate(
    case: Case, env: Any, make_driver: Callable[[Any], Any], seed: int, observers: tuple[Any, ...] = ()
) -> Any:
    """The Trial of one seed of a case in `env`; see `robolearn.simulation.trial.run_trial`."""
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
