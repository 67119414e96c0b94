"""A trial: a policy drives N environments under a script, and every episode is measured.

`sim --suite` and comparisons between simulators run trials. `measures.py` says what is measured.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import torch

from robolearn.core.checksum import checksum
from robolearn.core.env import Env
from robolearn.core.finite_check import NonFiniteTerm
from robolearn.core.learner_env import LearnerEnv
from robolearn.core.step_result import StepResult
from robolearn.envs.state import Tensor
from robolearn.errors import RunFailed
from robolearn.learners.policy import Act, reset_state
from robolearn.simulation.measures import Measures
from robolearn.simulation.script import Director, Script


class Driver(Protocol):
    """What moves the robots: a policy, or the controller of a bundle."""

    def __call__(self) -> tuple[Tensor, Tensor | None]:
        """Actions and joint targets (N, A) each of the current observations; None: the task computes the targets."""

    def reset(self, mask: Tensor) -> None:
        """Start anew in the environments in `mask` (N,) bool, which have begun an episode."""


class PolicyDriver:
    """Drives by a policy that acts on the observations."""

    def __init__(self, env: LearnerEnv, policy: Act) -> None:
        self._env, self._policy = env, policy
        reset_state(policy)  # the policy may have been used before

    def __call__(self) -> tuple[Tensor, Tensor | None]:
        """See `Driver`."""
        return self._policy(self._env.observations), None

    def reset(self, mask: Tensor) -> None:
        """See `Driver.reset`."""
        reset_state(self._policy, mask)


@dataclass(frozen=True)
class Moment:
    """One control step of a trial, as observers see it."""

    step: int
    """Number of control steps before it."""
    action: Tensor
    """(N, A)."""
    result: StepResult
    told: dict[str, Tensor]
    """What the script did; see `Director.before_step`."""


Observer = Callable[[Moment], None]


@dataclass
class Trial:
    """The episodes of a trial, in the order they ended."""

    episodes: dict[str, np.ndarray] = field(default_factory=dict)
    """(E,) float64 by measure; NaN where an episode has no value."""
    envs: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))
    """(E,) environment of each episode."""
    ends: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))
    """(E,) number of control steps of the trial after which it ended."""
    steps: int = 0
    """Control steps simulated."""
    dt: float = 0.0
    """Control period [s]."""
    seconds: float = 0.0
    """Wall time of the policy and the environments [s], without that of measuring."""
    diverged: int = 0
    """Number of environment steps that diverged."""
    diverged_at: tuple[int, int] | None = None
    """(environment, number of control steps) of the first divergence."""
    problem: str = ""
    """What was not finite, and ended the trial; empty where everything was."""
    problem_env: int | None = None
    """Environment of the problem, where it is known."""
    checksum: str = ""
    """sha256 of all episodes and of the State after the last step: equal bits, equal text."""

    @property
    def real_time_factor(self) -> float:
        """Simulated seconds of one environment per second of wall time."""
        return self.steps * self.dt / self.seconds if self.seconds else 0.0


@torch.no_grad()
def run_trial(
    env: LearnerEnv,
    make_driver: Callable[[LearnerEnv], Driver],
    script: Script | None = None,
    seed: int = 0,
    episodes_each: int = 1,
    steps: int | None = None,
    observers: tuple[Observer, ...] = (),
    where: str = "",
) -> Trial:
    """Reset every environment and drive them until each has finished its episodes.

    Args:
        env: the environments.
        make_driver: makes what drives them, after the reset.
        script: commands and pushes; None: the task's own.
        seed: of the directions that the script draws.
        episodes_each: episodes that each environment contributes, from its first one on: the first to end are mostly
            failures.
        steps: count instead this number of control steps of each environment as one episode, which survives where
            none of them ends in a termination.
        observers: called after each step, before the trial's own measures.
        where: place of the script, for messages.

    Raises:
        ConfigError: the script does not fit the task.
        RunFailed: the simulator dropped part of the physics, or an environment did not finish in time.
    """
    trial = Trial(dt=env.dt)
    director = Director(env, script, seed, where) if script and isinstance(env, Env) else None
    env.reset()
    driver = make_driver(env)
    measures = Measures(env, episodes_each, whole=steps is not None)
    takes_a_step = getattr(env, "resets_take_a_step", False)
    most = steps if steps is not None else episodes_each * (env.max_episode_steps + takes_a_step)
    try:
        while trial.steps < most and not measures.complete:
            began = time.perf_counter()
            told = director.before_step() if director else {}
            action, targets = driver()
            if not bool(torch.isfinite(action).all()):
                trial.problem_env = int((~torch.isfinite(action)).any(dim=1).nonzero()[0])
                raise NonFiniteTerm(f"the policy's action is not finite after step {trial.steps}")
            result = env.step(action, targets)
            env.check()
            trial.seconds += time.perf_counter() - began
            trial.steps += 1
            diverged = int(result.diverged.sum())
            trial.diverged += diverged
            if diverged and trial.diverged_at is None:
                trial.diverged_at = int(result.diverged.nonzero()[0]), trial.steps
            moment = Moment(trial.steps - 1, action, result, told)
            for observe in observers:
                observe(moment)
            measures.add(result)
            begins = result.done if result.valid is None else result.done | ~result.valid
            driver.reset(begins)
    except NonFiniteTerm as error:
        trial.problem = str(error)
        if error.env is not None:
            trial.problem_env = error.env
    if steps is None and not measures.complete and not trial.problem:
        raise RunFailed(
            f"{measures.lacking} of {env.num_envs} environments had not finished {episodes_each} episodes within "
            f"{most} steps: give them a time limit (task.episode_steps=1000)"
        )
    trial.episodes, trial.envs, trial.ends = measures.columns()
    trial.checksum = _checksum(trial, env)
    return trial


def _checksum(trial: Trial, env: LearnerEnv) -> str:
    digest = hashlib.sha256()
    for name, values in sorted(trial.episodes.items()):
        digest.update(name.encode() + np.ascontiguousarray(values).tobytes())
    if isinstance(env, Env):
        digest.update(checksum(env.backend.state).encode())
    return digest.hexdigest()
