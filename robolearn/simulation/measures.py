"""What a trial measures of every episode."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from robolearn.core.env import Env
from robolearn.core.learner_env import LearnerEnv
from robolearn.core.step_result import StepResult
from robolearn.envs.state import Tensor
from robolearn.simulation.episodes import Displacement
from robolearn.simulation.posed import Posed

ON_GROUND = 1.0
"""Contact force from which a foot counts as on the ground [N]."""

PENETRATION_INTERVAL = 10
"""Penetration is measured every so many control steps: it takes a collision detection of its own."""


@dataclass(frozen=True)
class Measure:
    """A measure of an episode; the value of a trial is its mean over the episodes."""

    meaning: str
    unit: str = ""
    better: int = 0
    """1: higher is better; -1: lower is better; 0: neither."""


MEASURES = {
    "survival": Measure("share of the episodes that no termination ended", "", 1),
    "return": Measure("sum of the rewards", "", 1),
    "episode_length": Measure("length of an episode", "s", 1),
    "distance": Measure("displacement along the initial heading", "m"),
    "torque": Measure("root mean square of the joint torques, as a share of their limits", "", -1),
    "peak_torque": Measure("largest joint torque, as a share of its limit", "", -1),
    "power": Measure("mean positive mechanical power of all joints", "W", -1),
    "foot_slide": Measure("mean horizontal speed of the soles that stay on the ground", "m/s", -1),
    "penetration": Measure("largest depth of a contact", "m", -1),
}
"""Measures of every robot that has what they need; a task's own metrics join them by name."""

OF_TASKS = {
    "linear_velocity_error": Measure("error of the horizontal velocity", "m/s", -1),
    "yaw_rate_error": Measure("error of the turning rate", "rad/s", -1),
    "foot_slip": Measure("mean horizontal speed of the soles that stay on the ground", "m/s", -1),
    "swing_height": Measure("height of a swing", "m"),
    "step_frequency": Measure("steps a second a foot", "1/s"),
    "standing_drift": Measure("drift of a standing robot in 10 s", "m", -1),
    "torque_saturation": Measure("share of motors at their limit", "", -1),
    "action_rate": Measure("change of the actions from one step to the next", "", -1),
    "energy_per_metre": Measure("positive mechanical work for each metre", "J/m", -1),
    "position_error": Measure("error of the position", "m", -1),
    "rotation_error": Measure("error of the orientation", "rad", -1),
}
"""Metrics of RoboLearn's own tasks."""

ALIASES = {
    "survival_rate": "survival",
    "tracking_error": "linear_velocity_error",
    "yaw_tracking_error": "yaw_rate_error",
    "energy": "power",
}
"""Other names of measures."""


def described(name: str) -> Measure:
    """What a measure or a task's metric means; of a metric whose name ends in `_error`, lower is better."""
    known = MEASURES.get(name) or OF_TASKS.get(name)
    return known or Measure(f"the task's metric {name}", "", -1 if name.endswith("_error") else 0)


class Measures:
    """Collects the measures of N environments, episode by episode."""

    def __init__(self, env: LearnerEnv, episodes_each: int, whole: bool = False) -> None:
        """
        Args:
            env: just reset.
            episodes_each: episodes of each environment that count.
            whole: everything until `columns` is one episode of each environment.
        """
        self._env = env if isinstance(env, Env) else None
        self._any, self._each, self._whole = env, episodes_each, whole
        n = env.num_envs
        self._finished = torch.zeros(n, dtype=torch.long, device=env.device)
        self._survived = torch.ones(n, dtype=torch.bool, device=env.device)
        self._fell = torch.zeros(n, dtype=torch.long, device=env.device)
        """Number of control steps at the first termination; 0 without one."""
        self._sums: dict[str, tuple[Tensor, Tensor]] = {}
        """Totals and weights (N,) float64 of means, by measure."""
        self._peaks: dict[str, Tensor] = {}
        self._return = torch.zeros(n, dtype=torch.float64, device=env.device)
        self._steps = torch.zeros(n, dtype=torch.long, device=env.device)
        self._displacement = Displacement(env)
        self._soles: tuple[Tensor, Tensor] | None = None
        """Where each sole was after the last control step (N, F, 2) [m], and whether on the ground (N, F) bool."""
        self._count = 0
        self._ended: list[tuple[dict[str, Tensor], Tensor, int]] = []
        self._posed = None
        if self._env is not None:
            self._posed = Posed(self._env.scene)
            robot, device = self._env.robot, env.device
            effort = {actuator.joint: actuator.effort for actuator in robot.actuators}
            limits = [effort.get(joint) or torch.inf for joint in robot.joints]
            self._effort = torch.tensor(limits, dtype=torch.float64, device=device)
            self._limited = torch.isfinite(self._effort)

    @property
    def complete(self) -> bool:
        """Whether every environment has finished its episodes."""
        return not self._whole and bool((self._finished >= self._each).all())

    @property
    def lacking(self) -> int:
        """Number of environments that have not."""
        return int((self._finished < self._each).sum())

    def add(self, result: StepResult) -> None:
        """Count one control step."""
        done = result.done
        took = torch.ones_like(done) if result.valid is None else result.valid
        self._count += 1
        self._steps += took
        self._return += result.reward
        first = result.terminated & self._survived
        self._fell = torch.where(first, self._count, self._fell)
        self._survived &= ~result.terminated
        for name, (total, weight) in result.metrics.items():
            self._mean(name, total.double(), weight.double())
        if self._env is not None:
            # Where an episode has ended, the State is that of the next one.
            self._measure(self._env, (took & ~done).double())
        if self._whole:
            return
        counting = done & (self._finished < self._each)
        if bool(counting.any()):
            rows = counting.nonzero().squeeze(-1)
            self._ended.append(({k: v[rows] for k, v in self._values().items()}, rows, self._count))
        self._finished += done
        if bool(done.any()):
            self._restart(done)
        self._displacement.update(done | ~took)

    def _mean(self, name: str, total: Tensor, weight: Tensor) -> None:
        if name in self._sums:
            total, weight = self._sums[name][0] + total, self._sums[name][1] + weight
        self._sums[name] = total, weight

    def _peak(self, name: str, value: Tensor) -> None:
        self._peaks[name] = torch.maximum(self._peaks[name], value) if name in self._peaks else value.clone()

    def _measure(self, env: Env, counts: Tensor) -> None:
        robot = env.backend.state.robot
        torque, velocity = robot.joint_torque.double(), robot.joint_vel.double()
        self._mean("power", counts * (torque * velocity).clamp(min=0).sum(dim=1), counts)
        if bool(self._limited.any()):
            share = (torque / self._effort)[:, self._limited]
            self._mean("torque", counts * share.square().mean(dim=1), counts)
            self._peak("peak_torque", counts * share.abs().amax(dim=1))
        if robot.foot_force.shape[1]:
            down = (robot.foot_force[:, :, 2] > ON_GROUND) & (counts > 0)[:, None]
            place = robot.foot_pos[:, :, :2].double()
            # By places, not speeds: a simulator may show the speed from before the ground acted.
            place_before, down_before = self._soles or (place, torch.zeros_like(down))
            held = (down & down_before).double()
            slid = held * (place - place_before).norm(dim=-1)
            self._mean("foot_slide", slid.sum(dim=1), env.dt * held.sum(dim=1))
            self._soles = place, down
        if self._posed is not None and self._count % PENETRATION_INTERVAL == 1:
            depth = self._posed.penetration(env.backend.state, counts > 0)
            self._peak("penetration", torch.from_numpy(depth).to(counts.device))

    def _values(self) -> dict[str, Tensor]:
        """The measures (N,) float64 of the episodes so far."""
        out = {
            "survival": self._survived.double(),
            "return": self._return.clone(),
            "episode_length": self._steps.double() * self._any.dt,
        }
        if self._displacement.known and not self._whole:  # a reset puts the base back
            out["distance"] = self._displacement.distance.clone()
        for name, (total, weight) in self._sums.items():
            # Not a number where nothing counted: an episode without a step has no swing height.
            out[name] = torch.where(weight > 0, total / weight.clamp(min=1e-12), torch.nan)
        if "torque" in out:
            out["torque"] = out["torque"].sqrt()
        return {**out, **{name: value.clone() for name, value in self._peaks.items()}}

    def _restart(self, done: Tensor) -> None:
        self._survived |= done
        self._return = torch.where(done, 0.0, self._return)
        self._steps = torch.where(done, 0, self._steps)
        self._sums = {
            name: (torch.where(done, 0.0, total), torch.where(done, 0.0, weight))
            for name, (total, weight) in self._sums.items()
        }
        self._peaks = {name: torch.where(done, 0.0, value) for name, value in self._peaks.items()}

    def columns(self) -> tuple[dict[str, np.ndarray], np.ndarray, np.ndarray]:
        """(measures, environments, ends) of the episodes; see `Trial`."""
        if self._whole:
            every = torch.arange(self._any.num_envs)
            self._ended = [(self._values(), every, self._count)]
            falls = self._fell.cpu().numpy()
        names = sorted({name for values, _, _ in self._ended for name in values})
        columns = {}
        for name in names:
            parts = [
                values.get(name, torch.full((len(rows),), torch.nan, dtype=torch.float64)).cpu()
                for values, rows, _ in self._ended
            ]
            columns[name] = torch.cat(parts).numpy()
        envs = [rows.cpu() for _, rows, _ in self._ended]
        ends = [np.full(len(rows), count, np.int64) for _, rows, count in self._ended]
        if not envs:
            return columns, np.zeros(0, np.int64), np.zeros(0, np.int64)
        last = np.concatenate(ends)
        if self._whole:
            last = np.where(falls > 0, falls, last)  # what a replay should show
        return columns, torch.cat(envs).numpy(), last
