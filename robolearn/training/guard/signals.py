"""What the guard measures: sums over the steps of an iteration, on the device, read once at its end."""

from __future__ import annotations

import math

import torch

from robolearn.core.env import Env
from robolearn.core.finite_check import NonFiniteTerm
from robolearn.envs.state import Tensor
from robolearn.errors import ConfigError
from robolearn.tasks.mdp import terms
from robolearn.tasks.mdp.task import Ratio

ON_GROUND = 1.0
"""Contact force from which a foot counts as on the ground [N]."""
SATURATED = 0.99
"""Share of an actuator's largest torque from which it is at its limit."""
EVERY = 6
"""The second of every so many steps is measured, and the first of an iteration."""
LEAST_SPREAD = 1e-6
"""Added to standard deviations before their logarithm: a column that never changes counts, too."""


class Signals:
    """Measures N environments step by step; it changes nothing of them, and draws no random numbers."""

    def __init__(self, env: Env) -> None:
        """Measure `env` from now on."""
        self.stated = False
        """Whether the task states its success."""
        robot, device = env.robot, env.device
        self._feet, self._free = bool(robot.feet), robot.base is not None
        effort = torch.tensor([actuator.effort or torch.inf for actuator in robot.actuators], device=device)
        self._effort, self._actuated = effort, torch.tensor(robot.actuated, dtype=torch.long, device=device)
        finite = effort[torch.isfinite(effort)]
        self._limited, self._strength = len(finite) > 0, float(finite.sum()) or 1.0
        self._names: list[str] = []
        self._before: Tensor | None = None
        self._sums: Tensor | None = None
        self._rows: Tensor | None = None
        self._missing: Tensor | None = None
        self._count = self._step = 0
        self._spreads: dict[str, tuple[Tensor, Tensor]] = {}
        env.watch = self.add

    @torch.no_grad()
    def add(self, env: Env) -> None:
        """Count a step; see `Env.watch`. Early ends are counted in every step, the rest in some (see `EVERY`)."""
        state, outcome = env.backend.state, env.state.outcome
        left = (outcome["terminated"] * (env.max_episode_steps - env.state.episode.step)).sum()
        self._missing = left if self._missing is None else self._missing + left
        self._count += env.num_envs
        self._step += 1
        speed = state.robot.joint_vel
        if self._step == 1 or self._step % EVERY == 2:
            self._measure(env, speed)
        self._before = speed.clone() if self._step % EVERY == 1 else None

    def _measure(self, env: Env, speed: Tensor) -> None:
        """Add the numbers of this step, at joint velocities `speed` (N, J)."""
        state, ctx, outcome = env.backend.state, env.ctx, env.state.outcome
        robot = state.robot
        one = torch.ones_like(outcome["reward"])
        success = env.task.success(state, ctx)
        self.stated = success is not None
        given = success if isinstance(success, Ratio) else Ratio(one if success is None else success, one)
        for part in given:
            if not isinstance(part, torch.Tensor) or part.shape != one.shape:
                found = tuple(part.shape) if isinstance(part, torch.Tensor) else type(part).__name__
                raise ConfigError(
                    f"success of {type(env.task).__name__} must be a tensor ({len(one)},), one number for each "
                    f"environment, or a Ratio of two; it returned {found}"
                )
        columns: dict[str, Tensor] = {"steps": one, "success": given.total, "counted": given.weight}
        if self._before is None:
            columns["changes"] = columns["vibration"] = torch.zeros_like(one)
        else:
            # Of an episode's first step the velocity before is that of another episode.
            goes_on = env.state.episode.step > 1
            columns["changes"] = goes_on
            columns["vibration"] = torch.where(goes_on, (speed - self._before).square().mean(dim=1), 0.0)
        torque = robot.joint_torque[:, self._actuated]
        if self._limited:
            power = (torque * speed[:, self._actuated]).clamp(min=0).sum(dim=1)
            columns["energy"] = power / self._strength
            columns["torque_limit"] = (torque.abs() >= SATURATED * self._effort).float().mean(dim=1)
        if self._feet:
            down = (robot.foot_force[:, :, 2] > ON_GROUND).float()
            columns["down"] = down.sum(dim=1)
            sliding = robot.foot_lin_vel[:, :, :2].norm(dim=-1)
            columns["foot_slide"] = torch.where(down > 0, sliding, 0.0).sum(dim=1)
            columns["penetration"] = (-ctx.above_ground(robot.foot_pos)).clamp(min=0).sum(dim=1)
            columns["impact"] = robot.foot_force.square().sum(dim=(1, 2))
        if self._free:
            columns["spin"] = robot.base_ang_vel.square().sum(dim=1)
            columns["lean"] = terms.tilt(state, ctx)
        table = self._table(columns, outcome["diverged"])
        self._names, self._sums = list(columns), table if self._sums is None else self._sums + table
        self._spread("action_spread", ctx.action)
        self._spread("state_spread", env.observations["policy"])

    def _table(self, columns: dict[str, Tensor], lost: Tensor) -> Tensor:
        """Sums (K,) of columns (N,), without the rows `lost` (N,)."""
        size = len(columns), len(lost)
        if self._rows is None or self._rows.shape != size:
            self._rows = torch.empty(size, device=lost.device)
        for row, column in zip(self._rows, columns.values(), strict=True):
            row.copy_(column)
        return torch.where(lost, 0.0, self._rows).sum(dim=1, dtype=torch.float64)

    def _spread(self, name: str, rows: Tensor) -> None:
        """Add the sums and sums of squares of rows (N, K)."""
        both = rows.sum(dim=0, dtype=torch.float64), rows.square().sum(dim=0, dtype=torch.float64)
        if name in self._spreads:
            past = self._spreads[name]
            both = past[0] + both[0], past[1] + both[1]
        self._spreads[name] = both

    def read(self) -> dict[str, float]:
        """The numbers of the steps since the last call that are finite; waits for the device.

        `length` is the number of steps as a share of those that episodes without a termination would have had. Means
        over the steps: `success` of those that it counts in, and their share `weight`, neither where it counts in none;
        `vibration`, the root mean square change of a joint's velocity from step to step [rad/s]; `energy`, the power of
        the motors over the sum of their largest torques [rad/s]; `torque_limit`, the share of motors at their limit;
        `foot_slide`, the speed of feet on the ground [m/s]; `penetration`, how far soles are below the ground [m];
        `impact` and `spin`, the root mean squares of the contact force of the feet [N] and of the angular velocity of
        the base [rad/s]; `lean`, the squared sine of its tilt. `action_spread` and `state_spread` are geometric means
        of the standard deviations of actions and observations.

        Raises:
            NonFiniteTerm: the task's success was not finite.
        """
        assert self._sums is not None, "no step was taken"
        count = self._sums[self._names.index("steps")]
        spreads = [deviation(*both, count) for both in self._spreads.values()]
        assert self._missing is not None
        last = torch.stack((*spreads, self._missing.double()))
        read = torch.cat((self._sums, last)).tolist()
        sums = dict(zip(self._names, read, strict=False))
        *values, missing = read[len(self._names) :]
        found = dict(zip(self._spreads, values, strict=True))
        length = self._count / (self._count + missing)
        self._names, self._sums, self._before, self._spreads = [], None, None, {}
        self._missing, self._count, self._step = None, 0, 0
        if not math.isfinite(sums["success"]) or not math.isfinite(sums["counted"]):
            raise NonFiniteTerm(
                "success of the task was not finite, so the guard cannot compare the reward with it"
            )
        numbers = {"length": length, **numbers_of(sums), **found}
        return {name: value for name, value in numbers.items() if math.isfinite(value)}


def deviation(total: Tensor, squares: Tensor, count: Tensor) -> Tensor:
    """The geometric mean () of the standard deviations of columns, of their sums (K,), the sums of their squares (K,)
    and the number of rows ()."""
    mean = total / count
    variance = (squares / count - mean.square()).clamp(min=0)
    return (variance.sqrt() + LEAST_SPREAD).log().mean().exp()


def numbers_of(sums: dict[str, float]) -> dict[str, float]:
    """The means that `Signals.read` returns, of the sums over the steps by name."""
    steps = max(sums["steps"], 1.0)
    out: dict[str, float] = {}
    if sums["counted"] > 0:
        out |= {"success": sums["success"] / sums["counted"], "weight": sums["counted"] / steps}
    if sums.get("changes"):
        out["vibration"] = math.sqrt(sums["vibration"] / sums["changes"])
    if sums.get("down"):
        out["foot_slide"] = sums["foot_slide"] / sums["down"]
    for name in ("energy", "torque_limit", "penetration", "lean"):
        if name in sums:
            out[name] = sums[name] / steps
    for name in ("impact", "spin"):
        if name in sums:
            out[name] = math.sqrt(sums[name] / steps)
    return out
