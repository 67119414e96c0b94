"""Recording and closed loop in external environments: the bundle's runtime acts on their observations, and is compared
with the trained policy."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from robolearn.config.run_config import Config
from robolearn.core.finite_check import NonFiniteTerm
from robolearn.envs.state import Tensor
from robolearn.export.closed_loop import LIMIT, DelayResult, Gap, gap_between, student_t_975
from robolearn.export.record import Recording
from robolearn.external.env import NO_LIMIT, ExternalEnv
from robolearn.learners.policy import Act, reset_state
from robolearn.runtime.bundle import Bundle
from robolearn.runtime.contract import GIVEN
from robolearn.runtime.errors import NOT_THE_SAME, Refused
from robolearn.runtime.robot import TOLERANCE, Runtime
from robolearn.runtime.sessions import Session
from robolearn.simulation.episodes import NEVER_TRAINED
from robolearn.training.build import build_external

ZERO_RETURN = "return 0 in every start, so returns cannot be compared"
"""Text where the trained policy's returns are all 0, as they often are with sparse rewards."""

Driver = Callable[[Tensor], tuple[Tensor, Tensor | None]]
"""Environments in their first episode, (N,) bool -> actions (N, A), and the environment's inputs (N, A) or None."""


@dataclass(frozen=True)
class ExternalGap(Gap):
    """A Gap in external environments. `fell` counts terminated episodes, whatever that means in the environment."""

    repeatable: bool = True
    """Two runs of the trained policy from the same seed had bit-identical returns, so starts are paired."""
    action_difference: float = 0.0
    """Largest difference between the actions of the bundle and the trained policy on the same observation, as a share
    of max(1, largest action of the step)."""
    has_return: bool = True
    """The trained policy's return was not 0 in every start."""

    def __str__(self) -> str:
        """One line."""
        gap, low, high = (100 * share for share in (self.mean, self.low, self.high))
        kind = "paired starts" if self.repeatable else "starts, not paired (not repeatable under a seed),"
        undecided = "" if self.inside else f": not shown to be within {100 * LIMIT:g} %"
        earned = f"return {gap:+.3f} % ({low:+.3f} to {high:+.3f}) {self.of}{undecided}"
        return (
            f"{self.starts} {kind} of {self.seconds:g} s: actions within {self.action_difference:.1e}; "
            f"{earned if self.has_return else ZERO_RETURN}; "
            f"{self.fell} terminated, {self.trained_fell} with the trained policy"
        )

    @property
    def conclusive(self) -> bool:
        """Paired returns were compared and are within LIMIT."""
        return self.has_return and self.repeatable and self.inside

    @property
    def significant(self) -> bool:
        """The gap is beyond LIMIT and more than twice the half width of its 95 % interval."""
        half = (self.high - self.low) / 2
        return self.has_return and not self.inside and abs(self.mean) > max(LIMIT, 2 * half)


@torch.no_grad()
def record(env: ExternalEnv, policy: Act, steps: int, initial: dict[str, np.ndarray]) -> Recording:
    """Record `steps` control steps of the trained policy in `env`; all environments are reset in the middle.

    `initial` is the recurrent state after a reset, by name.

    Raises:
        RunFailed: a number was not finite.
    """
    rows: dict[str, list[np.ndarray]] = {}
    fresh = torch.ones(env.num_envs, dtype=torch.bool, device=env.device)
    for t in range(steps):
        if t in (0, steps // 2):
            env.reset()
            reset_state(policy)
            fresh = torch.ones_like(fresh)
        observation = env.observations["policy"]
        action = policy(env.observations)
        now = {"reset": fresh, "observations": observation, "actions": action}
        now["targets"] = env.actions.given(action)
        for name, value in now.items():
            rows.setdefault(name, []).append(value.cpu().numpy().copy())
        result = env.step(action)
        fresh = result.done if result.valid is None else result.done | ~result.valid
        reset_state(policy, fresh)
    env.check()  # on a GPU, errors are recorded and raised here
    whole = {name: np.stack(arrays) for name, arrays in rows.items()}
    many = whole["reset"].shape
    sensors = {GIVEN: whole["observations"], "command": np.zeros((*many, 0), np.float32)}
    pushed = np.zeros(many, bool)
    return Recording(sensors=sensors, pushed=pushed, initial=initial, starts={}, **whole)


def closed_loop(
    config: Config, policy: Act, bundle: Bundle, session: Session, starts: int, seconds: float
) -> ExternalGap:
    """Run the trained policy twice and the bundle's runtime once from the same seed, for one episode or `seconds`.

    Every step compares the runtime's observation, action and output with the environment's observation, the trained
    policy's action on it, and the environment's mapping of that action.

    Args:
        config: of the environments.
        policy: the trained policy.
        bundle: loaded from the disk.
        session: its network.
        starts: number of environments.
        seconds: longest time [s].

    Raises:
        Refused: NOT_THE_SAME; observations, actions, outputs or returns differ.
        RunFailed: the environments cannot be run.
    """
    first, again = (
        _episodes(config, starts, seconds, lambda env: _policy_driver(env, policy)) for _ in range(2)
    )
    drivers: list[_BundleDriver] = []

    def with_bundle(env: ExternalEnv) -> Driver:
        drivers.append(_BundleDriver(env, bundle, session, policy))
        return drivers[0]

    try:
        exported = _episodes(config, starts, seconds, with_bundle)
    except (NonFiniteTerm, ValueError) as error:
        raise Refused(f"closed loop: the bundle cannot be run: {error}", NOT_THE_SAME) from None
    drivers[0].require_match()
    repeats = bool((first.returns == again.returns).all() and (first.survived == again.survived).all())
    between = gap_between if repeats else unpaired
    plain = between(
        first.returns,
        exported.returns,
        first.survived,
        exported.survived,
        first.seconds,
        first.episode_seconds,
    )
    paid = bool(first.returns.any())
    gap = ExternalGap(
        **vars(plain), repeatable=repeats, action_difference=drivers[0].action_difference, has_return=paid
    )
    if repeats and gap.significant:
        raise Refused(f"closed loop: {gap}; the return may differ by {100 * LIMIT:g} % at most", NOT_THE_SAME)
    return gap


def unpaired(
    trained: np.ndarray,
    exported: np.ndarray,
    survived: np.ndarray,
    bundle_survived: np.ndarray,
    seconds: float,
    episode: float,
) -> Gap:
    """`gap_between` for returns (N,) that are not paired: the interval is that of two separate samples."""
    count = len(trained)
    pairs = gap_between(trained, exported, survived, bundle_survived, seconds, episode)
    scale = max(abs(float(trained.mean())), float(trained.std()), 1e-9)
    # With samples of equal size, Welch's degrees of freedom are at least count - 1.
    half = student_t_975(count - 1) * math.hypot(float(trained.std(ddof=1)), float(exported.std(ddof=1)))
    half /= math.sqrt(count) * scale
    return Gap(**{**vars(pairs), "low": pairs.mean - half, "high": pairs.mean + half})


def one_step_late(
    config: Config, bundle: Bundle, session: Session, starts: int, seconds: float
) -> DelayResult:
    """Run the bundle again, with outputs that arrive one control step late; those of action 0 come first.

    Refuses nothing. Arguments as for `closed_loop`.
    """
    try:
        result = _episodes(
            config, starts, seconds, lambda env: _DelayedDriver(_BundleDriver(env, bundle, session, None))
        )
    except (NonFiniteTerm, ValueError):
        return DelayResult(math.nan, 0.0)
    return DelayResult(float(result.returns.mean()), float(result.survived.mean()))


# ---------------------------------------------------------------------------------------- drivers


@dataclass
class _Episodes:
    """Results of the first episodes of N environments."""

    returns: np.ndarray
    """(N,)."""
    survived: np.ndarray
    """(N,) bool: the episode was not terminated."""
    seconds: float
    """Longest time that was simulated [s]."""
    episode_seconds: float
    """Longest episode [s]; infinite where the environment states no limit."""


def _episodes(
    config: Config, starts: int, seconds: float, driver_of: Callable[[ExternalEnv], Driver]
) -> _Episodes:
    env = build_external(config, starts, NEVER_TRAINED)
    try:
        steps = max(1, min(round(seconds / env.dt), env.max_episode_steps))
        env.reset()
        driver = driver_of(env)
        running = torch.ones(env.num_envs, dtype=torch.bool, device=env.device)
        total = torch.zeros(env.num_envs, dtype=torch.float64, device=env.device)
        survived = running.clone()
        with torch.no_grad():
            for _ in range(steps):
                result = env.step(*driver(running))
                total += torch.where(running, result.reward, 0.0)
                survived &= ~(result.terminated & running)
                running = running & ~result.done
                if not bool(running.any()):
                    break
        env.check()
        longest = math.inf if env.max_episode_steps == NO_LIMIT else env.max_episode_steps * env.dt
        return _Episodes(total.cpu().numpy(), survived.cpu().numpy(), steps * env.dt, longest)
    finally:
        env.close()


def _policy_driver(env: ExternalEnv, policy: Act) -> Driver:
    reset_state(policy)
    return lambda running: (policy(env.observations), None)


class _BundleDriver:
    """One Runtime per environment on one session; with `policy`, every step is compared with it."""

    def __init__(self, env: ExternalEnv, bundle: Bundle, session: Session, policy: Act | None) -> None:
        self.env, self.policy = env, policy
        self.runtimes = [Runtime(bundle, session) for _ in range(env.num_envs)]
        self.limit = TOLERANCE[bundle.manifest["controller"]["precision"]]
        self.mismatched = np.zeros(env.num_envs, bool)
        """(N,) environments where something differed from the trained policy."""
        self.first_mismatch = ""
        """The first difference, for the message."""
        self.action_difference = 0.0
        if policy is not None:
            reset_state(policy)

    def __call__(self, running: Tensor) -> tuple[Tensor, Tensor]:
        env = self.env
        observation = env.observations["policy"]
        seen = observation.cpu().numpy()
        actions = np.zeros((env.num_envs, env.num_actions), np.float32)
        given, observed = actions.copy(), np.zeros_like(seen)
        rows = running.nonzero().squeeze(-1).tolist()
        for i in rows:
            runtime = self.runtimes[i]
            given[i] = runtime.step({GIVEN: seen[i]})
            actions[i], observed[i] = runtime.action, runtime.observation
        action, sent = (torch.from_numpy(x).to(env.device) for x in (actions, given))
        if self.policy is not None:
            wanted = self.policy(env.observations)
            size = np.maximum(1.0, np.abs(wanted.cpu().numpy()).max(axis=1, keepdims=True))
            off = np.abs(actions - wanted.cpu().numpy())[rows] / size[rows]
            self.action_difference = max(self.action_difference, float(off.max()))
            made, names = env.actions.given(action).cpu().numpy(), env.actions.names
            self._compare(
                rows, observed, seen, 0 * seen, [f"observation {name}" for name in env.columns["policy"]]
            )
            self._compare(rows, actions, wanted.cpu().numpy(), self.limit * size + 0 * made, names)
            rounding = 1e-5 * np.maximum(1.0, np.abs(made))
            self._compare(rows, given, made, rounding, [f"environment input {name}" for name in names])
        return action, sent

    def _compare(
        self,
        rows: list[int],
        values: np.ndarray,
        expected: np.ndarray,
        allowed: np.ndarray,
        names: Sequence[str],
    ) -> None:
        wrong = ~(np.abs(values - expected)[rows] <= allowed[rows])
        if wrong.any() and not self.first_mismatch:
            row, column = np.argwhere(wrong)[0]
            a, b = values[rows][row, column], expected[rows][row, column]
            self.first_mismatch = f"{names[column]} is {a:.5g}, with the trained policy {b:.5g}"
        self.mismatched[np.array(rows)[wrong.any(axis=1)]] = True

    def require_match(self) -> None:
        """Refuse where more than LIMIT of the environments differed from the trained policy.

        Raises:
            Refused: NOT_THE_SAME; the first number that differed is named.
        """
        if self.mismatched.mean() > LIMIT:
            raise Refused(
                "closed loop: the runtime's observations, actions or outputs differ from the trained policy's in "
                f"{int(self.mismatched.sum())} of {len(self.mismatched)} environments; first, {self.first_mismatch}",
                NOT_THE_SAME,
            )


class _DelayedDriver:
    """A driver whose outputs arrive one control step after they were computed."""

    def __init__(self, driver: _BundleDriver) -> None:
        env = driver.env
        self.driver = driver
        self.before = env.actions.given(torch.zeros(env.num_envs, env.num_actions, device=env.device))

    def __call__(self, running: Tensor) -> tuple[Tensor, Tensor]:
        action, given = self.driver(running)
        arriving, self.before = self.before, given
        return action, arriving
