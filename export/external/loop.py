"""Closed loop and recording in somebody else's environments: the bundle's runtime acts on their observations, beside
the trained policy."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from robolearn.commands.evaluate import NEVER_TRAINED
from robolearn.config.run_config import Config
from robolearn.core.finite_check import NonFiniteTerm
from robolearn.envs.state import Tensor
from robolearn.export.closed_loop import LIMIT, Gap, Late, gap_between, student
from robolearn.export.record import Recording
from robolearn.external.env import NO_LIMIT, ExternalEnv
from robolearn.learners.policy import Act, reset_state
from robolearn.runtime.bundle import Bundle
from robolearn.runtime.errors import NOT_THE_SAME, Refused
from robolearn.runtime.observe import GIVEN
from robolearn.runtime.robot import TOLERANCE, Runtime
from robolearn.runtime.sessions import Session
from robolearn.training.build import build_external

UNPAID = "return 0 in every start: returns tell nothing"
"""What is said where a trained policy earns nothing, as one often does of rewards for a goal alone."""

Driver = Callable[[Tensor], tuple[Tensor, Tensor | None]]
"""The environments still in their first episode (N,) bool -> actions (N, A), and what the environment is given."""


@dataclass(frozen=True)
class ExternalGap(Gap):
    """A Gap in somebody else's environments. Falls are episodes that were terminated, whatever that means there."""

    repeats: bool = True
    """The trained policy earned the same twice from the same seed, to the last bit: starts are pairs."""
    apart: float = 0.0
    """Largest difference between an action of the bundle and the trained policy's on the same observation, as a share
    of the largest action (>= 1) of its step."""
    paid: bool = True
    """The trained policy's return was not 0 in every start."""

    def __str__(self) -> str:
        """One line."""
        gap, low, high = (100 * share for share in (self.mean, self.low, self.high))
        kind = "paired starts" if self.repeats else "starts, not paired (it does not repeat under a seed),"
        undecided = "" if self.inside else f": not shown to be within {100 * LIMIT:g} %"
        earned = f"return {gap:+.3f} % ({low:+.3f} to {high:+.3f}) {self.of}{undecided}"
        return (
            f"{self.starts} {kind} of {self.seconds:g} s: actions within {self.apart:.1e}; "
            f"{earned if self.paid else UNPAID}; {self.fell} terminated, with the trained policy {self.trained_fell}"
        )

    @property
    def decided(self) -> bool:
        """Returns were compared in pairs, and are within LIMIT of each other."""
        return self.paid and self.repeats and self.inside

    @property
    def differs(self) -> bool:
        """A gap beyond LIMIT that no chance explains: it is twice as large as its 95 % interval reaches."""
        half = (self.high - self.low) / 2
        return self.paid and not self.inside and abs(self.mean) > max(LIMIT, 2 * half)


@torch.no_grad()
def record(env: ExternalEnv, policy: Act, steps: int) -> Recording:
    """Let the trained policy act in `env` and write everything down; half way everybody begins anew.

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
    env.check()  # a GPU keeps to itself what went wrong until it is asked
    whole = {name: np.stack(arrays) for name, arrays in rows.items()}
    many = whole["reset"].shape
    sensors = {GIVEN: whole["observations"], "command": np.zeros((*many, 0), np.float32)}
    return Recording(sensors=sensors, phase=np.zeros(many, np.float32), **whole)


def closed_loop(
    config: Config, policy: Act, bundle: Bundle, session: Session, starts: int, seconds: float
) -> ExternalGap:
    """Run the trained policy twice and the bundle's runtime once from the same seed, for one episode or `seconds`.

    In every step what the runtime saw, did and gave is held against the environment's observation, the trained policy's
    action on it, and what the environment makes of that.

    Args:
        config: of the environments.
        policy: what was trained.
        bundle: as it lies on the disk.
        session: its network.
        starts: how many environments.
        seconds: how long at most.

    Raises:
        Refused: the bundle saw or did something else, or earns something else.
        RunFailed: the environments themselves do not run.
    """
    first, again = (_episodes(config, starts, seconds, lambda env: _trained(env, policy)) for _ in range(2))
    bundled: list[_Bundled] = []

    def with_bundle(env: ExternalEnv) -> Driver:
        bundled.append(_Bundled(env, bundle, session, policy))
        return bundled[0]

    try:
        shipped = _episodes(config, starts, seconds, with_bundle)
    except (NonFiniteTerm, ValueError) as error:
        raise Refused(f"closed loop: the bundle does not run: {error}", NOT_THE_SAME) from None
    bundled[0].require_alike()
    repeats = bool((first.returns == again.returns).all() and (first.stood == again.stood).all())
    between = gap_between if repeats else unpaired
    plain = between(
        first.returns, shipped.returns, first.stood, shipped.stood, first.seconds, first.episode_seconds
    )
    paid = bool(first.returns.any())
    gap = ExternalGap(**vars(plain), repeats=repeats, apart=bundled[0].apart, paid=paid)
    if repeats and gap.differs:
        raise Refused(f"closed loop: {gap}; at most {100 * LIMIT:g} % are allowed", NOT_THE_SAME)
    return gap


def unpaired(
    trained: np.ndarray,
    shipped: np.ndarray,
    stood: np.ndarray,
    stood_too: np.ndarray,
    seconds: float,
    episode: float,
) -> Gap:
    """`gap_between` for returns (N,) that are no pairs: the spread of both counts, not that of their difference."""
    count = len(trained)
    pairs = gap_between(trained, shipped, stood, stood_too, seconds, episode)
    scale = max(abs(float(trained.mean())), float(trained.std()), 1e-9)
    # As many on either side, so Welch's degrees of freedom are at least count - 1.
    half = student(count - 1) * math.hypot(float(trained.std(ddof=1)), float(shipped.std(ddof=1)))
    half /= math.sqrt(count) * scale
    return Gap(**{**vars(pairs), "low": pairs.mean - half, "high": pairs.mean + half})


def one_step_late(config: Config, bundle: Bundle, session: Session, starts: int, seconds: float) -> Late:
    """Run the bundle again, each of its outputs given one control step after it was computed; until the first arrives
    the environments get what action 0 asks for. Nothing is refused.

    Args: as of `closed_loop`.
    """
    try:
        went = _episodes(config, starts, seconds, lambda env: _OneLate(_Bundled(env, bundle, session, None)))
    except (NonFiniteTerm, ValueError):
        return Late(math.nan, 0.0)
    return Late(float(went.returns.mean()), float(went.stood.mean()))


# ---------------------------------------------------------------------------------------- driving


@dataclass
class _Went:
    """What the first episodes of N environments came to."""

    returns: np.ndarray
    stood: np.ndarray
    """(N,) bool: it was not terminated."""
    seconds: float
    """How long was looked [s]."""
    episode_seconds: float
    """The longest an episode can be [s]; infinite where the environment tells no limit."""


def _episodes(
    config: Config, starts: int, seconds: float, driver_of: Callable[[ExternalEnv], Driver]
) -> _Went:
    env = build_external(config, starts, NEVER_TRAINED)
    try:
        steps = max(1, min(round(seconds / env.dt), env.max_episode_steps))
        env.reset()
        driver = driver_of(env)
        running = torch.ones(starts, dtype=torch.bool, device=env.device)
        total = torch.zeros(starts, dtype=torch.float64, device=env.device)
        stood = running.clone()
        with torch.no_grad():
            for _ in range(steps):
                result = env.step(*driver(running))
                total += torch.where(running, result.reward, 0.0)
                stood &= ~(result.terminated & running)
                running = running & ~result.done
                if not bool(running.any()):
                    break
        env.check()
        longest = math.inf if env.max_episode_steps == NO_LIMIT else env.max_episode_steps * env.dt
        return _Went(total.cpu().numpy(), stood.cpu().numpy(), steps * env.dt, longest)
    finally:
        env.close()


def _trained(env: ExternalEnv, policy: Act) -> Driver:
    reset_state(policy)
    return lambda running: (policy(env.observations), None)


class _Bundled:
    """One runtime an environment, all on one session; with `policy`, each step is held against it."""

    def __init__(self, env: ExternalEnv, bundle: Bundle, session: Session, policy: Act | None) -> None:
        self.env, self.policy = env, policy
        self.runtimes = [Runtime(bundle, session) for _ in range(env.num_envs)]
        self.limit = TOLERANCE[bundle.manifest["graph"]["precision"]]
        self.odd = np.zeros(env.num_envs, bool)
        """Environments of which something was another than the trained policy's."""
        self.why = ""
        """The first such number."""
        self.apart = 0.0
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
            self.apart = max(self.apart, float(off.max()))
            made, names = env.actions.given(action).cpu().numpy(), env.actions.names
            self._compare(
                rows, observed, seen, 0 * seen, [f"observed {name}" for name in env.columns["policy"]]
            )
            self._compare(rows, actions, wanted.cpu().numpy(), self.limit * size + 0 * made, names)
            rounding = 1e-5 * np.maximum(1.0, np.abs(made))
            self._compare(
                rows, given, made, rounding, [f"what the environment gets as {name}" for name in names]
            )
        return action, sent

    def _compare(
        self, rows: list[int], ours: np.ndarray, theirs: np.ndarray, allowed: np.ndarray, names: Sequence[str]
    ) -> None:
        wrong = ~(np.abs(ours - theirs)[rows] <= allowed[rows])
        if wrong.any() and not self.why:
            row, column = np.argwhere(wrong)[0]
            a, b = ours[rows][row, column], theirs[rows][row, column]
            self.why = f"{names[column]} is {a:.5g}, of the trained policy and its environment {b:.5g}"
        self.odd[np.array(rows)[wrong.any(axis=1)]] = True

    def require_alike(self) -> None:
        """Refuse where more than LIMIT of the environments had something else than with the trained policy.

        Raises:
            Refused: the first number that differed is named.
        """
        if self.odd.mean() > LIMIT:
            raise Refused(
                f"closed loop: the runtime saw or did something else than the trained policy in {int(self.odd.sum())} "
                f"of {len(self.odd)} environments; first, {self.why}",
                NOT_THE_SAME,
            )


class _OneLate:
    """A driver whose outputs arrive one control step after they were computed."""

    def __init__(self, driver: _Bundled) -> None:
        env = driver.env
        self.driver = driver
        self.before = env.actions.given(torch.zeros(env.num_envs, env.num_actions, device=env.device))

    def __call__(self, running: Tensor) -> tuple[Tensor, Tensor]:
        action, given = self.driver(running)
        arriving, self.before = self.before, given
        return action, arriving
