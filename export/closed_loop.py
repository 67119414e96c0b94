"""Closed loop: the bundle drives simulated robots from their raw sensors, beside the trained policy."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch

from robolearn.commands.evaluate import NEVER_TRAINED
from robolearn.config.run_config import Config
from robolearn.core.env import Env
from robolearn.core.finite_check import NonFiniteTerm
from robolearn.envs.state import Tensor
from robolearn.export.record import phase_of, raw_sensors
from robolearn.learners.policy import Act, reset_state
from robolearn.runtime.bundle import Bundle
from robolearn.runtime.errors import BAD_INPUT, NOT_THE_SAME, Refused
from robolearn.runtime.robot import Runtime
from robolearn.runtime.sessions import Session
from robolearn.training.build import make_env

Driver = Callable[[Tensor], tuple[Tensor, Tensor | None]]
"""The robots still running (N,) bool -> actions and targets (N, A) each; no targets: the task's own."""

STARTS, SECONDS = 512, 10.0
"""What is looked at unless asked otherwise."""

LIMIT = 0.01
"""How much of the return a bundle may gain or lose, with its 95 % interval."""


@dataclass(frozen=True)
class Gap:
    """The bundle's return less the trained policy's, over paired starts, as a share of the latter's mean."""

    mean: float
    low: float
    high: float
    """The 95 % interval."""
    starts: int
    seconds: float
    """Length of each start [s]."""
    trained_return: float
    bundle_return: float
    trained_survival: float
    """Share of the starts in which no episode was terminated."""
    bundle_survival: float
    of: str = "of the trained policy's"
    """What the shares are of: its mean return or, where that is smaller, the spread of its returns."""
    episode: float = SECONDS
    """Length of an episode of the task [s]."""

    def __str__(self) -> str:
        """One line."""
        gap, low, high = (100 * share for share in (self.mean, self.low, self.high))
        return (
            f"{self.starts} paired starts of {self.seconds:g} s: return {gap:+.3f} % ({low:+.3f} to {high:+.3f}) "
            f"{self.of}; {self.fell} fell, with the trained policy {self.trained_fell}"
        )

    @property
    def fell(self) -> int:
        """In how many starts an episode was terminated."""
        return round(self.starts * (1 - self.bundle_survival))

    @property
    def trained_fell(self) -> int:
        """The same of the trained policy."""
        return round(self.starts * (1 - self.trained_survival))

    @property
    def thorough(self) -> bool:
        """As much as the default looks at, or whole episodes of as many robots."""
        return self.starts >= STARTS and self.seconds >= min(SECONDS, self.episode) - 1e-6

    @property
    def inside(self) -> bool:
        """The whole interval is within LIMIT."""
        return max(abs(self.low), abs(self.high)) <= LIMIT


def closed_loop(
    config: Config,
    policy: Act,
    bundle: Bundle,
    session: Session,
    starts: int,
    seconds: float,
    episode: float,
) -> Gap:
    """Run both from the same starts under the same pushes, commands and physics, for one episode or `seconds`.

    The trained policy acts on the simulation's observations; the bundle's runtime is given what the sensors say, by
    joint name, and nothing else, and its targets go to the actuators.

    Args:
        config: as on the robot; see `record.on_robot`.
        policy: what was trained.
        bundle: as it lies on the disk.
        session: its network.
        starts: how many robots.
        seconds: how long at most.
        episode: length of an episode in training [s], which says how much is thorough.

    Raises:
        Refused: the gap is too large, or the bundle drives the robot somewhere not finite.
        RunFailed: the simulator has dropped part of the physics.
    """
    steps = _steps(config, seconds)
    trained, stood = _episodes(config, starts, steps, lambda env: _trained(env, policy))
    bundled: list[_Bundled] = []

    def with_bundle(env: Env) -> Driver:
        bundled.append(_Bundled(env, bundle, session))
        return bundled[0]

    try:
        shipped, stood_too = _episodes(config, starts, steps, with_bundle)
    except (NonFiniteTerm, ValueError) as error:
        raise Refused(f"closed loop: the bundle does not drive the robot: {error}", NOT_THE_SAME) from None
    bundled[0].require_alike()
    length = steps * config.task.control_dt
    if not trained.any():
        raise Refused(
            "closed loop: the trained policy's return is 0 in every start: nothing to compare", BAD_INPUT
        )
    gap = gap_between(trained, shipped, stood, stood_too, length, episode)
    if not gap.inside:
        raise Refused(
            f"closed loop: {gap}; the whole 95 % interval must lie within ±{100 * LIMIT:g} %", NOT_THE_SAME
        )
    return gap


@dataclass(frozen=True)
class Late:
    """What becomes of a bundle whose targets reach the actuators one control step late, from the same starts."""

    mean_return: float
    survival: float
    """Share of the starts in which no episode was terminated."""


def one_step_late(config: Config, bundle: Bundle, session: Session, starts: int, seconds: float) -> Late:
    """Drive the robots again, each target sent one control step after it was computed; until the first arrives they
    hold what action 0 asks for. Nothing is refused: it tells what a delay costs, not whether the bundle is right.

    Args: as of `closed_loop`.
    """
    try:
        returns, stood = _episodes(
            config, starts, _steps(config, seconds), lambda env: _Late(_Bundled(env, bundle, session))
        )
    except (NonFiniteTerm, ValueError):
        return Late(math.nan, 0.0)
    return Late(float(returns.mean()), float(stood.mean()))


def _steps(config: Config, seconds: float) -> int:
    return max(1, round(min(seconds, config.task.episode_length_s) / config.task.control_dt))


def gap_between(
    trained: np.ndarray,
    shipped: np.ndarray,
    stood: np.ndarray,
    stood_too: np.ndarray,
    seconds: float,
    episode: float,
) -> Gap:
    """The gap between paired returns (N,), and who stayed up (N,) bool, N > 2, over starts of `seconds`."""
    difference, count = shipped - trained, len(trained)
    mean, spread = abs(float(trained.mean())), float(trained.std())
    # Where a return is near zero by chance, its spread says what is much.
    of = "of the trained policy's" if mean >= spread else "of the spread of the trained policy's"
    scale = max(mean, spread, 1e-9)
    middle = float(difference.mean()) / scale
    half = student(count - 1) * float(difference.std(ddof=1)) / math.sqrt(count) / scale
    return Gap(
        middle, middle - half, middle + half, count, seconds, float(trained.mean()), float(shipped.mean()),
        float(stood.mean()), float(stood_too.mean()), of, episode,
    )  # fmt: skip


def student(freedom: int) -> float:
    """The 97.5 % quantile of Student's t for 2 degrees of freedom or more: Abramowitz and Stegun 26.7.5."""
    z, n = 1.959964, freedom
    terms = (
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
        (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / 92160,
    )
    return z + sum(term / n**power for power, term in enumerate(terms, 1))


def _episodes(
    config: Config, starts: int, steps: int, driver_of: Callable[[Env], Driver]
) -> tuple[np.ndarray, np.ndarray]:
    """Return (N,) of each robot's first episode, and whether it stayed up."""
    env = make_env(config, num_envs=starts, rank=NEVER_TRAINED)
    try:
        driver = driver_of(env)
        running = torch.ones(starts, dtype=torch.bool, device=env.device)
        total = torch.zeros(starts, dtype=torch.float64, device=env.device)
        stood = running.clone()
        with torch.no_grad():
            for t in range(steps):
                # A robot that falls earlier here than there must not shift everybody's commands and pushes.
                env.random.generator.manual_seed(t)
                action, targets = driver(running)
                result = env.step(action, targets)
                total += torch.where(running, result.reward, 0.0)
                stood &= ~(result.terminated & running)
                running = running & ~result.done
                if not bool(running.any()):
                    break
        env.check()  # a GPU keeps to itself what went wrong until it is asked
        return total.cpu().numpy(), stood.cpu().numpy()
    finally:
        env.close()


def _trained(env: Env, policy: Act) -> Driver:
    reset_state(policy)
    return lambda running: (policy(env.observations), None)


class _Bundled:
    """One runtime a robot, all on one session; each step is also held against what the simulation would have done."""

    def __init__(self, env: Env, bundle: Bundle, session: Session) -> None:
        self.env, self.runtimes = env, [Runtime(bundle, session) for _ in range(env.num_envs)]
        for runtime, phase in zip(self.runtimes, phase_of(env), strict=True):
            runtime.reset(float(phase))
        first = self.runtimes[0]
        # By name: the robot's wiring is what it is, whatever order a manifest lists its joints in.
        self.read = [env.robot.joints.index(name) for name in first.joints]
        self.send = [first.actuators.index(actuator.joint) for actuator in env.robot.actuators]
        self.odd = np.zeros(env.num_envs, bool)
        """Robots of which an observation or a target was another one than the simulation's."""
        self.why = ""
        """The first such column."""
        self.columns = [f"{item.name}[{i}]" for item, width in env.columns["policy"] for i in range(width)]

    def __call__(self, running: Tensor) -> tuple[Tensor, Tensor]:
        sensors = raw_sensors(self.env.backend.state)
        for name in ("joint_pos", "joint_vel"):
            sensors[name] = sensors[name][:, self.read]
        command = self.env.ctx.command.cpu().numpy()
        actions = np.zeros((len(self.runtimes), len(self.send)), np.float32)
        targets, observed = actions.copy(), np.zeros((len(self.runtimes), len(self.columns)), np.float32)
        rows = running.nonzero().squeeze(-1).tolist()
        for i in rows:
            targets[i] = self.runtimes[i].step(
                {name: value[i] for name, value in sensors.items()}, command[i]
            )
            actions[i], observed[i] = self.runtimes[i].action, self.runtimes[i].observation
        sent = targets[:, self.send]
        action = torch.from_numpy(actions[:, self.send]).to(self.env.device)
        motors = [f"the target of {actuator.joint}" for actuator in self.env.robot.actuators]
        self._compare(rows, observed, self.env.observations["policy"], self.columns)
        self._compare(rows, sent, self.env.task.joint_targets(action, self.env.ctx), motors)
        return action, torch.from_numpy(sent).to(self.env.device)

    def _compare(self, rows: list[int], ours: np.ndarray, simulated: Tensor, names: list[str]) -> None:
        theirs = simulated.cpu().numpy()[rows]
        wrong = ~(np.abs(ours[rows] - theirs) <= 1e-4 * np.maximum(1.0, np.abs(theirs)))
        if wrong.any() and not self.why:
            row, column = np.argwhere(wrong)[0]
            self.why = f"{names[column]} is {ours[rows][row, column]:.5g}, the simulation's {theirs[row, column]:.5g}"
        self.odd[np.array(rows)[wrong.any(axis=1)]] = True

    def require_alike(self) -> None:
        """Refuse where more than LIMIT of the robots saw or did something else than the simulation.

        Not where a single one did: a gait clock may start one step later where a lean is at its threshold to the last
        bit.

        Raises:
            Refused: the first column that differed is named.
        """
        if self.odd.mean() > LIMIT:
            raise Refused(
                f"closed loop: the runtime saw or did something else than the simulation on {int(self.odd.sum())} of "
                f"{len(self.odd)} robots; first, {self.why}",
                NOT_THE_SAME,
            )


class _Late:
    """A driver whose targets arrive one control step after they were computed."""

    def __init__(self, driver: _Bundled) -> None:
        self.driver, self.before = driver, torch.empty(0)

    def __call__(self, running: Tensor) -> tuple[Tensor, Tensor]:
        env = self.driver.env
        if not len(self.before):
            nothing = torch.zeros(env.num_envs, env.num_actions, device=env.device)
            self.before = env.task.joint_targets(nothing, env.ctx)
        action, targets = self.driver(running)
        arriving, self.before = self.before, targets
        return action, arriving
