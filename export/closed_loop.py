"""Closed loop: the bundle drives simulated robots from their raw sensors, beside the trained policy."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch

from robolearn.config import Config
from robolearn.env import Env, NonFiniteTerm, make_env
from robolearn.envs.backend import Tensor
from robolearn.evaluate import NEVER_TRAINED
from robolearn.export.record import phase_of, raw_sensors
from robolearn.runs import Act, forget
from robolearn.runtime.bundle import Bundle
from robolearn.runtime.errors import NOT_THE_SAME, Refused
from robolearn.runtime.robot import Runtime
from robolearn.runtime.sessions import Session

Driver = Callable[[Tensor], tuple[Tensor, Tensor | None]]
"""The robots still running (N,) bool -> actions and targets (N, A) each; no targets: the task's own."""

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

    @property
    def inside(self) -> bool:
        """The whole interval is within LIMIT."""
        return max(abs(self.low), abs(self.high)) <= LIMIT


def closed_loop(
    config: Config, policy: Act, bundle: Bundle, session: Session, starts: int, seconds: float
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

    Raises:
        Refused: the gap is too large, or the bundle drives the robot somewhere not finite.
    """
    steps = round(min(seconds, config.task.episode_length_s) / config.task.control_dt)
    trained, stood = _episodes(config, starts, steps, lambda env: _trained(env, policy))
    try:
        shipped, stood_too = _episodes(config, starts, steps, lambda env: _Bundled(env, bundle, session))
    except NonFiniteTerm as error:
        raise Refused(f"closed loop: the bundle does not drive the robot: {error}", NOT_THE_SAME) from None
    difference = shipped - trained
    # Where a return is near zero by chance, its spread says what is much.
    scale = max(abs(float(trained.mean())), float(trained.std()), 1e-9)
    mean = float(difference.mean()) / scale
    half = 1.96 * float(difference.std(ddof=1)) / np.sqrt(starts) / scale
    gap = Gap(
        mean, mean - half, mean + half, starts, steps * config.task.control_dt,
        float(trained.mean()), float(shipped.mean()), float(stood.mean()), float(stood_too.mean()),
    )  # fmt: skip
    if not gap.inside:
        interval = (
            f"95 % interval {100 * gap.low:+.2f} to {100 * gap.high:+.2f} % (allowed ±{100 * LIMIT:g} %)"
        )
        raise Refused(
            f"closed loop: over {starts} paired starts the bundle's return is off by {100 * mean:+.2f} % of the "
            f"trained policy's, {interval}; {100 * gap.bundle_survival:.1f} % stay up, trained "
            f"{100 * gap.trained_survival:.1f} %",
            NOT_THE_SAME,
        )
    return gap


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
        return total.cpu().numpy(), stood.cpu().numpy()
    finally:
        env.close()


def _trained(env: Env, policy: Act) -> Driver:
    forget(policy)
    return lambda running: (policy(env.observations["policy"]), None)


class _Bundled:
    """One runtime a robot, all on one session."""

    def __init__(self, env: Env, bundle: Bundle, session: Session) -> None:
        self.env, self.runtimes = env, [Runtime(bundle, session) for _ in range(env.num_envs)]
        for runtime, phase in zip(self.runtimes, phase_of(env), strict=True):
            runtime.reset(float(phase))
        first = self.runtimes[0]
        # By name: the robot's wiring is what it is, whatever order a manifest lists its joints in.
        self.read = [env.robot.joints.index(name) for name in first.joints]
        self.send = [first.actuators.index(actuator.joint) for actuator in env.robot.actuators]

    def __call__(self, running: Tensor) -> tuple[Tensor, Tensor]:
        sensors = raw_sensors(self.env.backend.state)
        for name in ("joint_pos", "joint_vel"):
            sensors[name] = sensors[name][:, self.read]
        command = self.env.ctx.command.cpu().numpy()
        actions = np.zeros((len(self.runtimes), len(self.send)), np.float32)
        targets = actions.copy()
        for i in running.nonzero().squeeze(-1).tolist():
            targets[i] = self.runtimes[i].step({name: rows[i] for name, rows in sensors.items()}, command[i])
            actions[i] = self.runtimes[i].action
        return torch.from_numpy(actions[:, self.send]), torch.from_numpy(targets[:, self.send])
