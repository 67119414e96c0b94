"""Closed loop: the bundle controls simulated robots from raw sensor readings; compared with the trained policy."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import torch

from robolearn.config.run_config import Config
from robolearn.core.env import Env
from robolearn.core.finite_check import NonFiniteTerm
from robolearn.envs.state import Tensor
from robolearn.export.record import readings, starts
from robolearn.learners.policy import Act, reset_state
from robolearn.runtime.bundle import Bundle
from robolearn.runtime.errors import BAD_INPUT, NOT_THE_SAME, Refused
from robolearn.runtime.robot import TOLERANCE, Runtime
from robolearn.runtime.sessions import Session
from robolearn.simulation.episodes import NEVER_TRAINED
from robolearn.training.build import make_env

Driven = Callable[[int], np.ndarray]
"""The number of robots N -> which of them a bundle controls, (N,) bool."""

Driver = Callable[[Tensor], tuple[Tensor, Tensor | None]]
"""Robots in their first episode, (N,) bool -> actions and joint targets, (N, A) each. None: the task computes the
joint targets."""

OF_JOINTS = ("joint_pos", "joint_vel")
"""Sensors with a number for each joint."""

STARTS, SECONDS = 512, 10.0
"""Default number of starts, and default length of each [s]."""

TARGET_LIMIT = 1e-5
"""Largest allowed difference of joint targets from those of the trained policy, as a share of their range."""

LIMIT = 0.01
"""Largest allowed change of the return, as a share: the 95 % interval must lie within +-LIMIT."""


@dataclass(frozen=True)
class Gap:
    """Return of the bundle minus that of the trained policy over paired starts, as a share; see `of`."""

    mean: float
    low: float
    high: float
    """Ends of the 95 % interval."""
    starts: int
    seconds: float
    """Length of each start [s]."""
    trained_return: float
    bundle_return: float
    trained_survival: float
    """Share of the starts in which no episode was terminated."""
    bundle_survival: float
    of: str = "of the trained policy's"
    """Reference of the shares: the mean return or, where that is smaller, the standard deviation of the returns."""
    episode: float = SECONDS
    """Length of an episode of the task [s]."""
    target_difference: float = 0.0
    """Largest difference between a joint target of the bundle and the trained policy's in the same step, as a share of
    the target's range."""

    def __str__(self) -> str:
        """One line."""
        gap, low, high = (100 * share for share in (self.mean, self.low, self.high))
        return (
            f"{self.starts} paired starts of {self.seconds:g} s: return {gap:+.3f} % ({low:+.3f} to {high:+.3f}) "
            f"{self.of}; joint targets within {self.target_difference:.1e} of their range; {self.fell} fell, "
            f"{self.trained_fell} with the trained policy"
        )

    @property
    def too_few(self) -> str:
        """What to add to a refusal where the gap itself is inside: the starts that would make the interval half as wide
        as it may be; else ""."""
        if self.inside or abs(self.mean) > LIMIT:
            return ""
        wanted = self.starts * ((self.high - self.low) / LIMIT) ** 2
        return f": too few starts to tell, try --starts {100 * math.ceil(wanted / 100 - 1e-6)}"

    @property
    def fell(self) -> int:
        """Number of starts in which an episode was terminated."""
        return round(self.starts * (1 - self.bundle_survival))

    @property
    def trained_fell(self) -> int:
        """The same for the trained policy."""
        return round(self.starts * (1 - self.trained_survival))

    @property
    def thorough(self) -> bool:
        """At least STARTS starts of SECONDS s each, or of whole episodes."""
        return self.starts >= STARTS and self.seconds >= min(SECONDS, self.episode) - 1e-6

    @property
    def inside(self) -> bool:
        """The whole 95 % interval is within +-LIMIT."""
        return max(abs(self.low), abs(self.high)) <= LIMIT


def closed_loop(
    config: Config,
    policy: Act,
    bundle: Bundle,
    session: Session,
    starts: int,
    seconds: float,
    episode: float,
    driven: Driven | None = None,
) -> Gap:
    """Run both from the same starts under the same pushes, commands and physics, for one episode or `seconds`.

    The trained policy acts on the simulation's observations. The bundle's runtime gets sensor readings, by joint name,
    and the command; its joint targets go to the actuators.

    Args:
        config: with the task as on the robot; see `record.on_robot`.
        policy: the trained policy.
        bundle: loaded from the disk.
        session: its network.
        starts: number of robots.
        seconds: longest time [s].
        episode: length of an episode in training [s], for `Gap.thorough`.
        driven: which robots the bundle controls; the trained policies control the others. None: all.

    Raises:
        Refused: NOT_THE_SAME where the gap is too large, or where the bundle's observations or joint targets differ or
            are not finite; BAD_INPUT where the trained policy's return is 0 in every start.
        RunFailed: the simulator has dropped part of the physics.
    """
    steps = _steps(config, seconds)
    trained, survived = _episodes(config, starts, steps, lambda env: _policy_driver(env, policy))
    drivers: list[_BundleDriver] = []

    def with_bundle(env: Env) -> Driver:
        drivers.append(_BundleDriver(env, bundle, session, policy, driven=driven))
        return drivers[0]

    try:
        exported, bundle_survived = _episodes(config, starts, steps, with_bundle)
    except (NonFiniteTerm, ValueError) as error:
        raise Refused(f"closed loop: the bundle cannot control the robot: {error}", NOT_THE_SAME) from None
    drivers[0].require_match()
    length = steps * config.task.control_dt
    if not trained.any():
        raise Refused(
            "closed loop: the trained policy's return is 0 in every start, so returns cannot be compared",
            BAD_INPUT,
        )
    plain = gap_between(trained, exported, survived, bundle_survived, length, episode)
    gap = replace(plain, target_difference=drivers[0].target_difference)
    if not gap.inside:
        raise Refused(
            f"closed loop: {gap}; the whole 95 % interval must lie within ±{100 * LIMIT:g} %{gap.too_few}",
            NOT_THE_SAME,
        )
    return gap


@dataclass(frozen=True)
class DelayResult:
    """Result of a bundle whose joint targets reach the actuators one control step late, from the same starts."""

    mean_return: float
    """NaN where the simulation did not stay finite."""
    survival: float
    """Share of the starts in which no episode was terminated."""


def one_step_late(
    config: Config,
    bundle: Bundle,
    session: Session,
    starts: int,
    seconds: float,
    policy: Act | None = None,
    driven: Driven | None = None,
) -> DelayResult:
    """Run the bundle again, with joint targets that arrive one control step late; those of action 0 come first.

    Refuses nothing: it shows what a delay costs, not whether the bundle is right. Arguments as for `closed_loop`; with
    `driven` it needs the trained `policy`, whose joint targets are late too.
    """
    try:
        returns, survived = _episodes(
            config,
            starts,
            _steps(config, seconds),
            lambda env: _DelayedDriver(_BundleDriver(env, bundle, session, policy, False, driven)),
        )
    except (NonFiniteTerm, ValueError):
        return DelayResult(math.nan, 0.0)
    return DelayResult(float(returns.mean()), float(survived.mean()))


def _steps(config: Config, seconds: float) -> int:
    return max(1, round(min(seconds, config.task.episode_length_s) / config.task.control_dt))


def gap_between(
    trained: np.ndarray,
    exported: np.ndarray,
    survived: np.ndarray,
    bundle_survived: np.ndarray,
    seconds: float,
    episode: float,
) -> Gap:
    """The Gap of paired starts.

    Args:
        trained: (N,) returns of the trained policy, N > 2.
        exported: (N,) returns of the bundle from the same starts.
        survived: (N,) bool, the trained policy's episode was not terminated.
        bundle_survived: (N,) bool, the same for the bundle.
        seconds: length of each start [s].
        episode: length of an episode in training [s].
    """
    difference, count = exported - trained, len(trained)
    mean, spread = abs(float(trained.mean())), float(trained.std())
    # A mean return near zero is no reference; the standard deviation of the returns is.
    of = "of the trained policy's" if mean >= spread else "of the spread of the trained policy's"
    scale = max(mean, spread, 1e-9)
    middle = float(difference.mean()) / scale
    half = student_t_975(count - 1) * float(difference.std(ddof=1)) / math.sqrt(count) / scale
    return Gap(
        middle, middle - half, middle + half, count, seconds, float(trained.mean()), float(exported.mean()),
        float(survived.mean()), float(bundle_survived.mean()), of, episode,
    )  # fmt: skip


def student_t_975(freedom: int) -> float:
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
    """(N,) returns of the first episode of each start, the mean of a world's agents, and (N,) bool, whether it was not
    terminated."""
    env = make_env(config, num_envs=starts, rank=NEVER_TRAINED)
    try:
        driver = driver_of(env)
        running = torch.ones(env.num_envs, dtype=torch.bool, device=env.device)
        driven = running.clone()  # an agent that has ended goes on moving until its world starts anew
        total = torch.zeros(env.num_envs, dtype=torch.float64, device=env.device)
        survived = running.clone()
        with torch.no_grad():
            for t in range(steps):
                # Seeded every step: a robot that falls earlier in one run must not shift the commands and pushes of
                # the others.
                env.random.generator.manual_seed(t)
                action, targets = driver(driven)
                result = env.step(action, targets)
                total += torch.where(running, result.reward, 0.0)
                survived &= ~(result.terminated & running)
                running = running & ~result.done
                driven = driven & ~env.state.outcome["renewed"]
                if not bool(running.any()):
                    break
        env.check()  # on a GPU, errors are recorded and raised here
        of_worlds = total.view(starts, -1).mean(dim=1)
        return of_worlds.cpu().numpy(), survived.view(starts, -1).all(dim=1).cpu().numpy()
    finally:
        env.close()


def _policy_driver(env: Env, policy: Act) -> Driver:
    reset_state(policy)
    return lambda running: (policy(env.observations), None)


def in_order(sensors: dict[str, np.ndarray], joints: list[int]) -> dict[str, np.ndarray]:
    """Readings (N, ...) with those of the joints in the order `joints`."""
    return {name: rows[:, joints] if name in OF_JOINTS else rows for name, rows in sensors.items()}


class _BundleDriver:
    """One Runtime per robot on one session; each step is compared with the simulation's observations and, with
    `policy`, with the joint targets of the trained policy there."""

    def __init__(
        self,
        env: Env,
        bundle: Bundle,
        session: Session,
        policy: Act | None,
        compared: bool = True,
        driven: Driven | None = None,
    ) -> None:
        """With `driven`, `policy` controls the other robots; unless `compared`, it is for that alone."""
        self.env, self.policy, self.compared = env, policy, compared
        self.driven = np.ones(env.num_envs, bool) if driven is None else driven(env.num_envs)
        self.runtimes = [Runtime(bundle, session) for _ in range(env.num_envs)]
        first = self.runtimes[0]
        # Mapped by joint name, so that a wrong order in the manifest shows as a difference.
        self.read = [env.robot.joints.index(name) for name in first.joints]
        self.send = [first.actuators.index(actuator.joint) for actuator in env.robot.actuators]
        self.limit, self.reach = TOLERANCE[bundle.manifest["controller"]["precision"]], _reach(env)
        scale = np.array([abs(action["scale"]) for action in bundle.contract["actions"]])
        self.scale = scale[self.send]
        if policy is not None:
            reset_state(policy)
        self.mismatched = np.zeros(env.num_envs, bool)
        """(N,) robots with an observation or joint target that differed from the simulation's."""
        self.first_mismatch = ""
        """The first such column, for the message."""
        self.target_difference = 0.0
        began = starts(env, (entry["name"] for entry in bundle.manifest["state"]))
        for i, runtime in enumerate(self.runtimes):
            runtime.reset({name: rows[i] for name, rows in began.items()})
        self.columns = [f"{item.name}[{i}]" for item, width in env.columns["policy"] for i in range(width)]

    def __call__(self, running: Tensor) -> tuple[Tensor, Tensor]:
        sensors = in_order(readings(self.env, self.runtimes[0].sensors), self.read)
        command = self.env.ctx.command.cpu().numpy()
        actions = np.zeros((len(self.runtimes), len(self.send)), np.float32)
        targets, observed = actions.copy(), np.zeros((len(self.runtimes), len(self.columns)), np.float32)
        rows = np.flatnonzero(running.cpu().numpy() & self.driven).tolist()
        for i in rows:
            targets[i] = self.runtimes[i].step(
                {name: value[i] for name, value in sensors.items()}, command[i]
            )
            actions[i], observed[i] = self.runtimes[i].action, self.runtimes[i].observation
        sent = targets[:, self.send]
        action = torch.from_numpy(actions[:, self.send]).to(self.env.device)
        motors = [f"the joint target of {actuator.joint}" for actuator in self.env.robot.actuators]
        seen = self.env.observations["policy"]
        rounding = 1e-4 * seen.abs().clamp(min=1.0).cpu().numpy()[rows]
        self._compare(rows, observed, seen, self.columns, rounding)
        if self.policy is not None:
            wanted = self.policy(self.env.observations)
            ctx = replace(self.env.ctx, action=wanted, previous_action=self.env.ctx.action)
            expected = self.env.task.joint_targets(wanted, ctx)
            others = torch.from_numpy(~self.driven).to(action.device)
            action = torch.where(others[:, None], wanted, action)
            sent[~self.driven] = expected.cpu().numpy()[~self.driven]
            if self.compared:
                share = np.abs(sent[rows] - expected.cpu().numpy()[rows]) / self.reach
                self.target_difference = max(self.target_difference, float(share.max(initial=0.0)))
                # Another order of summation moves an action by a share of the largest one.
                allowed = self.limit * self.scale * max(1.0, float(wanted.abs().max()))
                self._compare(rows, sent, expected, motors, np.maximum(TARGET_LIMIT * self.reach, allowed))
        return action, torch.from_numpy(sent).to(self.env.device)

    def _compare(
        self, rows: list[int], values: np.ndarray, simulated: Tensor, names: list[str], allowed: np.ndarray
    ) -> None:
        """Compare (N, K) with what the simulation says; `allowed`, (K,) or (n, K), is the largest difference."""
        expected = simulated.cpu().numpy()[rows]
        wrong = ~(np.abs(values[rows] - expected) <= allowed)
        if wrong.any() and not self.first_mismatch:
            row, column = np.argwhere(wrong)[0]
            a, b = values[rows][row, column], expected[row, column]
            self.first_mismatch = f"{names[column]} is {a:.5g}, in the simulation {b:.5g}"
        self.mismatched[np.array(rows)[wrong.any(axis=1)]] = True

    def require_match(self) -> None:
        """Refuse where an observation or joint target of any robot differed from the trained policy's in any step.

        Raises:
            Refused: NOT_THE_SAME; the first column that differed is named.
        """
        if self.mismatched.any():
            raise Refused(
                "closed loop: the runtime's observations or joint targets differ from the trained policy's on "
                f"{int(self.mismatched.sum())} of {len(self.mismatched)} robots; first, {self.first_mismatch}",
                NOT_THE_SAME,
            )


def _reach(env: Env) -> np.ndarray:
    """(A,) range of each joint target: from limit to limit for a position, both signs of the effort for a force."""
    constants = env.ctx.robot
    span = (constants.upper - constants.lower)[constants.actuated]
    whole = torch.where(torch.isfinite(span), span, 2 * math.pi)
    position = torch.tensor(
        [actuator.kind == "position" for actuator in env.robot.actuators], device=env.device
    )
    return torch.where(position, whole, 2 * constants.effort).cpu().numpy()


class _DelayedDriver:
    """A driver whose joint targets arrive one control step after they were computed."""

    def __init__(self, driver: _BundleDriver) -> None:
        self.driver, self.before = driver, torch.empty(0)

    def __call__(self, running: Tensor) -> tuple[Tensor, Tensor]:
        env = self.driver.env
        if not len(self.before):
            zero = torch.zeros(env.num_envs, env.num_actions, device=env.device)
            self.before = env.task.joint_targets(zero, env.ctx)
        action, targets = self.driver(running)
        arriving, self.before = self.before, targets
        return action, arriving
