"""The stages of an identification: what moved, what the logs can tell, the solution, intervals, the held-out check."""

from __future__ import annotations

import io
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from robolearn.envs.elements import compiled
from robolearn.envs.mjcf import joint_limits
from robolearn.envs.robot import Robot
from robolearn.errors import ConfigError, RunFailed, listing
from robolearn.simulation.sysid import information
from robolearn.simulation.sysid.log import Log, findings, moved, noise, require_joints
from robolearn.simulation.sysid.problem import Problem, hanging, orientation, require_servos
from robolearn.simulation.sysid.unknowns import CLOCK, FIELDS, Unknown, clock_unknown, unknowns

LEAST_NOISE = 1e-5
"""Smallest standard deviation of noise assumed of a signal, [rad, rad/s, Nm] and the like."""
BLOCK = 1.0
"""Length of a held-out part that is spread over a log [s]."""
CORRELATED = 0.5
"""Time over which residuals may be correlated [s]."""
OUTLIER, MOST_OUTLIERS = 6.0, 0.01
"""Residuals beyond so many standard deviations are left out, of the largest ones at most this share."""
WORSE = 1.5
"""How many times as large as in the fit errors may be in the held-out part."""
DAMPED = 1e-3, 10**0.5
"""Smallest damping of a step (Levenberg and Marquardt), where columns of the Jacobian have length 1, and the factor by
which it grows. The toolbox's own are made for residuals near 1, where a hundred steps are tried before one is short."""
SETTLED, TRIES, STEPS = 0.05, 10, 40
"""A solution is found where half the sum of squared residuals, divided by their variance, falls by less than SETTLED (a
change of an estimate by a third of its standard deviation), or where TRIES shorter steps do not make it fall; after
STEPS at most."""
ROUNDS = 3
"""Solutions with better weights each."""
UNEXPLAINED, CLEARLY = 0.5, 30.0
"""Errors of a fit as a share of the motion from which it explains nothing, and motion as a multiple of the noise."""
MISFIT = 3.0
"""How many times as large as the noise errors of a joint may be before that is said."""
FLAT, FAR, BETTER = 0.5, 2.0, 1.0
"""An interval is too narrow where the sum of squared residuals, FAR times as far from the solution, rises by less than
the share FLAT of what the Jacobian says; a solution is none where it falls there by BETTER times their variance."""


@dataclass(frozen=True)
class Estimate:
    """What is known of one parameter afterwards."""

    unknown: Unknown
    value: float
    """In units of the parameter, of the first target. Where the logs cannot tell it, it is near the nominal value."""
    half: float
    """Half width of the 95 % interval of the first target, with what is assumed of the parameters that the logs cannot
    tell; 0 of a joint that does not move."""
    reason: str = ""
    """Why the logs cannot tell it; "": they can."""
    at_bound: bool = False

    @property
    def unit(self) -> str:
        """Unit of its values."""
        return self.unknown.unit

    @property
    def remark(self) -> str:
        """What a row of a table with the numbers of the first target has to say beside them."""
        notes = ["at its bound"] * self.at_bound
        first, scale = self.unknown.targets[0], self.unknown.scale
        if len(set(scale)) > 1:  # a common factor on what the robot's file says
            factor = f"{self.value / scale[0]:.4g} times nominal"
            notes.append(f"numbers of {first}; all {len(scale)} are {factor}")
        return "; ".join(notes)

    @property
    def values(self) -> list[float]:
        """A value for each target."""
        return self._each(self.value)

    @property
    def halves(self) -> list[float]:
        """A half width for each target: those of a common factor differ as what the robot's file says does."""
        return [scale * self.half / self.unknown.scale[0] for scale in self.unknown.scale]

    @property
    def lows(self) -> list[float]:
        """A lower end for each target."""
        return self._each(self.low)

    @property
    def highs(self) -> list[float]:
        """An upper end for each target."""
        return self._each(self.high)

    def _each(self, first: float) -> list[float]:
        """A value or end for each target, from that of the first one; nominal ones where nothing moves."""
        if not self.half:
            return list(self.unknown.nominal)
        return [scale * first / self.unknown.scale[0] for scale in self.unknown.scale]

    @property
    def low(self) -> float:
        """Lower end of the interval of the first target, not below what is possible."""
        return max(self.value - self.half, self.unknown.physical(self.unknown.low))

    @property
    def high(self) -> float:
        """Upper end of the interval of the first target."""
        return min(self.value + self.half, self.unknown.physical(self.unknown.high))


@dataclass(frozen=True)
class Fit:
    """How well one joint's measured positions are met, root mean squares [rad or m]; NaN without any."""

    joint: str
    noise: float
    """Of the measurement, estimated without a model."""
    before: float
    """With the nominal parameters, in the held-out part."""
    fitted: float
    """In the part that was fitted."""
    held: float
    """In the held-out part."""
    moved: float = 0.0
    """Of the joint's motion about its mean, in the part that was fitted."""

    @property
    def failure(self) -> str:
        """Why the fit or the held-out part is not met; empty where they are, or there is none."""
        if self.moved > CLEARLY * self.noise and self.fitted > UNEXPLAINED * self.moved:
            return (
                f"errors of the fit are {self.fitted:.2g}, and all that it moves is {self.moved:.2g}: are the log's "
                "units [rad, s], signs and joints those of the robot's file?"
            )
        if np.isnan(self.held) or np.isnan(self.fitted):
            return ""
        if self.held > WORSE * max(self.fitted, self.noise, LEAST_NOISE):
            return f"errors are {self.held:.2g} in the held-out part, {self.fitted:.2g} in the fit"
        if self.held > 1.1 * self.before and self.held > WORSE * self.noise:
            return "in the held-out part the nominal parameters are better"
        return ""


@dataclass
class Result:
    """An identification."""

    robot: Robot
    problem: Problem
    estimates: list[Estimate]
    clocks: dict[str, float]
    """By log, 1 where its stamps are noise about a regular clock; logs without such a clock are left out."""
    values: dict[str, float]
    """Number of every parameter."""
    nominal: dict[str, float]
    fits: list[Fit]
    held_text: str
    """What was held out."""
    passed: bool
    """Whether the held-out part is met."""
    problem_text: str
    """Why not."""
    findings: list[str] = field(default_factory=list)
    """About the logs."""
    outliers: int = 0
    """Values that the fit left out, of all logs and signals."""

    @property
    def told(self) -> list[Estimate]:
        """Those that the logs can tell."""
        return [one for one in self.estimates if not one.reason]

    @property
    def untold(self) -> list[Estimate]:
        """Those that they cannot."""
        return [one for one in self.estimates if one.reason]


def identify(
    robot: Robot,
    logs: Sequence[Log],
    items: Sequence[str],
    holdout: float | Sequence[Log] = 0.2,
    timestep: float | None = None,
    say: Callable[[str], None] = lambda _: None,
) -> Result:
    """Fit parameters of a robot to logs of it.

    Args:
        robot: with nominal parameters.
        logs: recordings of it, its base held.
        items: what to fit, see `unknowns`.
        holdout: share of each log that is only checked, or logs for that.
        timestep: physics step [s]; None: the robot's own, with which it is trained.
        say: called with a line at each stage.

    Raises:
        ConfigError: a log or an item does not fit the robot, a motor is more than its PD law, or the logs can tell no
            parameter; these are named.
        MissingError: mujoco.sysid is not installed.
        RunFailed: the simulation diverges.
    """
    logging.getLogger("absl").setLevel(logging.ERROR)
    extra = [] if isinstance(holdout, float | int) else list(holdout)
    driven = [actuator.joint for actuator in robot.actuators]
    require_servos(robot)
    require_joints([*logs, *extra], robot.joints, driven, robot.name)
    if twice := {
        log.name for log in (*logs, *extra) if [o.name for o in (*logs, *extra)].count(log.name) > 1
    }:
        raise ConfigError(f"two logs are called {min(twice)}; rename one")
    spec = hanging(robot, timestep, orientation([*logs, *extra]))
    period = float(np.median([log.period for log in logs]))
    asked = unknowns(items, robot, compiled(robot, spec), period)
    clocks = [clock_unknown(log.name) for log in logs if log.clock().regular is not None]
    problem = Problem(robot, spec, [*logs, *extra], [*asked, *clocks])
    said = _findings(problem, [*logs, *extra])
    for line in said:
        say(f"log  {line}")
    still = _still(problem, logs, asked)
    if len(still) == len(asked):
        raise ConfigError(
            f"the logs cannot tell {listing([one.name for one in asked], 8)}: {next(iter(still.values()))}; "
            "record a motion, see robolearn robot NAME --excite"
        )
    moving = [one for one in asked if one.name not in still]
    text = _hold_out(problem, len(logs), holdout, moving)
    _first_weights(problem)
    solver = _Solver(problem, [*moving, *clocks])
    count = sum(int(used.sum()) for s in problem.fitted for used in s.used.values())
    if not count:
        raise ConfigError(
            f"nothing is left to fit {listing([one.name for one in moving], 8)} to: what moves is held out; "
            "record it twice, or give another log to --holdout"
        )
    say(f"fit  {len(moving)} parameters to {count} measured values")
    solver.tell()
    outliers = 0
    for number in range(ROUNDS):
        solver.solve(1e-3 if number < ROUNDS - 1 else 0.0)
        say(f"  round {number + 1}: residuals are {solver.loss():.3g} times the noise assumed")
        outliers += _reweigh(problem, solver.values)
    while solver.tell(at_solution=True):
        solver.solve(0.0)
    result = _result(solver, asked, still, text, said, outliers)
    for line in (lines := _misfits(result.fits)):
        say(f"fit  {line}")
    result.findings += lines
    return result


class _Settled(Exception):
    """The solution does not get better."""


class _Solver:
    """Parameters that are solved for, their numbers, and which of them the logs cannot tell."""

    def __init__(self, problem: Problem, chosen: Sequence[Unknown]) -> None:
        self.problem = problem
        self.active = list(chosen)
        self.untold: dict[str, information.Untold] = {}
        """By name."""
        self.values = {one.name: one.held for one in problem.unknowns} | {
            one.name: one.start for one in chosen
        }
        self.half: dict[str, float] = {}
        """Half widths of intervals at the solution, in scales."""
        self._found: dict[int, information.Untold] = {}
        """What the logs cannot tell at a solution, by index; it stays so, and solutions come to an end."""
        self._restarts = 0
        self._pinned: list[tuple[int, float, float]] = []
        """What a parameter is held at, like a prior."""

    @property
    def priors(self) -> list[tuple[int, float, float]]:
        """What is assumed of the parameters that the logs cannot tell, see `Problem.residual_fn`."""
        known = [(k, one.held, one.prior) for k, one in enumerate(self.active) if one.name in self.untold]
        return known + self._pinned

    def parameters(self) -> tuple[Any, Any, np.ndarray]:
        """(residual function, parameters of mujoco.sysid, their numbers)."""
        names = [one.name for one in self.active]
        held = {name: value for name, value in self.values.items() if name not in names}
        params = self.problem.parameters(self.values, names)
        return self.problem.residual_fn(held, self.priors), params, params.as_vector()

    def linear(self) -> tuple[np.ndarray, np.ndarray]:
        """(residuals (n,), their Jacobian (n, P)), weighted, in scales; those of the priors last."""
        fn, params, x = self.parameters()
        residuals = np.concatenate(fn(x, params)[0])
        return residuals, self.problem.jacobian(fn, params, x, residuals, self.priors)

    def loss(self) -> float:
        """Root mean square of the weighted residuals."""
        fn, params, x = self.parameters()
        return float(np.sqrt(np.mean(np.square(np.concatenate(fn(x, params)[0])))))

    def tell(self, at_solution: bool = False) -> bool:
        """Find what the logs cannot tell; whether that is something else than before, or the solution is none. At the
        solution the intervals count as they are reported.

        Raises:
            ConfigError: they can tell nothing.
        """
        residuals, jacobian = self.linear()
        ranks = [len(FIELDS) if one.field == CLOCK else list(FIELDS).index(one.field) for one in self.active]
        factors, widest = np.ones(len(self.active)), 2 * information.WIDEST
        size = factors
        if at_solution:
            size = np.maximum(1.0, np.abs([self.values[one.name] for one in self.active]))
            factors, widest = self._intervals(residuals, jacobian) / size, information.WIDEST
        measured = jacobian[: len(jacobian) - len(self.priors)]
        priors = [one.prior for one in self.active]
        found = information.untold(measured / factors, ranks, priors, widest, self._found)
        before = set(self.untold)
        more = {one.index: one for one in found}
        moved = False
        if at_solution:
            self._found |= more
            if {self.active[k].name for k in self._found} == before:
                moved = self._follow(residuals, jacobian)
                widths = np.array([self.half[one.name] for one in self.active]) / size
                left = [k for k in range(len(self.active)) if k not in self._found]
                if not moved and widths[left].max() > widest:
                    k = information.first(left, widths, ranks, widest)
                    covariance = np.linalg.pinv(jacobian.T @ jacobian)
                    width = float(widths[k] * size[k])
                    self._found[k] = information.Untold(k, width, information.partners(covariance, k))
            more = self._found
        self.untold = {self.active[k].name: one for k, one in more.items()}
        if all(one.name in self.untold for one in self.active if one.field != CLOCK):
            names = [name for name in self.untold if not name.startswith(CLOCK)]
            raise ConfigError(
                f"the logs cannot tell {listing(names, 8)}: {self.reason(names[0])}; fit fewer, or record a motion: "
                "robolearn robot NAME --excite"
            )
        return moved or set(self.untold) != before

    def _follow(self, residuals: np.ndarray, jacobian: np.ndarray) -> bool:
        """Check the intervals along the parameter that depends most on the others (largest variance inflation factor):
        hold it beyond either end of its interval and solve for the others (profile likelihood).

        The Jacobian may be of the edge of a flat valley, as where a motor just reaches its limit: on one side the
        residuals tell something, on the other nothing. Where they rise too little, intervals get as wide as the valley.

        Returns:
            Whether there are smaller residuals on the way; then the numbers are set to those.
        """
        gram, x = jacobian.T @ jacobian, np.array([self.values[one.name] for one in self.active])
        inverse = np.linalg.pinv(gram)
        free = [one.field != CLOCK and k not in self._found for k, one in enumerate(self.active)]
        k = int(np.argmax(np.where(free, np.diag(inverse) * np.diag(gram), 0.0)))
        low, high = (np.array([getattr(one, end) for one in self.active]) for end in ("low", "high"))
        tied = np.abs(inverse[k]) > 0.5 * np.sqrt(inverse[k, k] * np.diag(inverse))  # by their correlation
        wide = np.array([self.half[one.name] for one in self.active])
        total, half, solution = float(residuals @ residuals), wide[k], dict(self.values)
        for side, room in ((-1, x[k] - low[k]), (1, high[k] - x[k])):
            start, length, longest = x, 0.0, min(room, 2 * information.WIDEST * max(1.0, abs(x[k])))
            while length < longest and half < longest:
                step = min(max(FAR * half, FAR**2 * length), longest) - length
                start = np.clip(start + side * step * inverse[:, k] / inverse[k, k], low, high)
                length += step
                self._set(start)
                self._pinned = [(k, float(x[k] + side * length), 0.01 * half)]
                self.solve(0.0)
                self._pinned = []
                fn, params, start = self.parameters()
                loss = float(np.square(np.concatenate(fn(start, params)[0])).sum())
                if loss < total * (1 - BETTER / len(residuals)) and self._restarts < ROUNDS:
                    self._restarts += 1
                    return True
                share = (loss - total) * inverse[k, k] / half**2  # 1 at the end of an interval
                if share < FLAT * (length / half) ** 2:
                    reached = np.abs(start - x) / np.sqrt(max(share, 1.0))
                    wide = np.where(tied, np.maximum(wide, reached), wide)
                if share > 1:
                    break
        self.values = solution
        self.half = {one.name: float(width) for one, width in zip(self.active, wide, strict=True)}
        return False

    def _set(self, numbers: np.ndarray) -> None:
        self.values |= {one.name: float(number) for one, number in zip(self.active, numbers, strict=True)}

    def reason(self, name: str) -> str:
        """Why the logs cannot tell a parameter."""
        found = self.untold[name]
        unknown = self.active[found.index]
        partners = [self.active[k] for k in found.partners if self.active[k].field != CLOCK]
        width = (
            f"+-{min(found.width, information.Z * information.PRIOR) * unknown.scale[0]:.2g} {unknown.unit}"
        )
        if partners:
            names = listing([one.name for one in partners], 4)
            return f"cannot be told apart from {names} (its 95 % interval would be {width})"
        return f"has too little effect on what was measured (its 95 % interval would be {width})"

    def solve(self, tolerance: float) -> None:
        """Solve the least squares from the numbers so far, with mujoco.sysid, until half the sum of the squared
        residuals falls by less than `tolerance` of it, or by SETTLED.

        Raises:
            RunFailed: the residuals are not finite.
        """
        fn, params, x = self.parameters()
        best, tries = x, 0

        def jacobian(x: np.ndarray, r: np.ndarray) -> np.ndarray:
            nonlocal best, tries
            best, tries = x.ravel().copy(), 0
            return self.problem.jacobian(fn, params.copy(), x, r, self.priors)

        def residuals(x: np.ndarray, params: Any) -> Any:
            nonlocal tries
            tries += 1
            if tries > TRIES:
                raise _Settled
            return fn(x, params)

        def settled(trace: Sequence[Any]) -> None:
            # A single short step may be one through a narrow bend of a valley.
            last = trace[-1:] if self._pinned else trace[-2:]
            if len(trace) > len(last) and all(
                0 < one.reduction < max(SETTLED, tolerance * one.objective) for one in last
            ):
                raise _Settled

        try:
            found, _ = self.problem.sysid.optimize(
                params, residuals, optimizer="mujoco", verbose=False, jacobian=jacobian, iter_callback=settled,
                x_scale="jac", mu_min=DAMPED[0], mu_factor=DAMPED[1], max_iters=STEPS, output=io.StringIO(),
            )  # fmt: skip
            best = found.as_vector()
        except _Settled:
            pass
        except (ValueError, np.linalg.LinAlgError) as error:
            raise RunFailed(f"the least squares cannot be solved: {error}") from error
        self._set(best)

    def _intervals(self, residuals: np.ndarray, jacobian: np.ndarray) -> np.ndarray:
        """Set the half widths; (P,) factors of the standard deviations on those of residuals of variance 1."""
        _, rows, logs = self.problem.rows()
        stamps = rows + np.concatenate(([0], np.cumsum([len(s.stamps) for s in self.problem.fitted])))[logs]
        period = float(np.median([np.median(np.diff(s.stamps)) for s in self.problem.fitted]))
        lags = max(1, round(CORRELATED / period))
        # Priors are correlated with nothing.
        stamps = np.append(stamps, stamps.max() + (1 + np.arange(len(self.priors))) * (lags + 1))
        _, half = self.problem.sysid.calculate_intervals([residuals], jacobian)
        wider = information.widened(jacobian, residuals, stamps, lags)
        self.half = {one.name: float(h * w) for one, h, w in zip(self.active, half, wider, strict=True)}
        spread = np.sqrt(residuals @ residuals / max(1, len(residuals) - len(self.active)))
        return np.asarray(spread * wider)


def _findings(problem: Problem, logs: Sequence[Log]) -> list[str]:
    low, high = joint_limits(problem.robot)
    limits = {name: (a, b) for name, a, b in zip(problem.robot.joints, low, high, strict=True)}
    efforts = {actuator.joint: actuator.effort for actuator in problem.robot.actuators}
    return [f"{log.name}: {line}" for log in logs for line in findings(log, limits, efforts)]


def _still(problem: Problem, logs: Sequence[Log], asked: Sequence[Unknown]) -> dict[str, str]:
    """Why parameters of joints that do not move cannot be told, by name."""
    found, still = {}, {}
    for k, name in enumerate(problem.joints):
        least = problem.still(k)
        if all(moved(log, name) < least for log in logs):
            still[name] = least
    for one in asked:
        about = problem.joints if one.field == "mass" else one.targets
        if all(name in still for name in about):
            if one.field == "mass" or len(still) == len(problem.joints):
                what = "no joint moves"
            else:
                what = (
                    f"{about[0]} does not move" if len(about) == 1 else f"none of {listing(about, 3)} moves"
                )
            unmeasured = all(log.joints.count(name) == 0 for log in logs for name in about)
            found[one.name] = (
                f"{what}{' (not measured)' if unmeasured else f' (by more than {still[about[0]]:g})'}"
            )
    return found


def _hold_out(problem: Problem, count: int, holdout: float | Sequence[Log], moving: Sequence[Unknown]) -> str:
    """Set what is only checked: other logs, the last part of each, or parts all over it where its last part has most of
    the motion of a joint, or the fastest; returns what, in words."""
    for sequence in problem.sequences[count:]:
        sequence.held = sequence.used
        sequence.used = {s: np.zeros_like(mask) for s, mask in sequence.used.items()}
    if not isinstance(holdout, float | int):
        return listing([s.log.name for s in problem.sequences[count:]])
    if not holdout:
        return ""
    wanted = {name for one in moving if one.field != "mass" for name in one.targets}
    masks = []
    for sequence in problem.sequences:
        last = sequence.stamps > (1 - holdout) * sequence.stamps[-1]
        masks.append(last)
    spread = False
    for n, actuator in enumerate(problem.robot.actuators):
        steps = [np.abs(np.diff(s.commands[:, n], append=s.commands[-1, n])) for s in problem.sequences]
        whole = sum(float(part.sum()) for part in steps)
        late = sum(float(part[mask].sum()) for part, mask in zip(steps, masks, strict=True))
        fastest = [
            max(
                float(part[mask == is_late].max(initial=0.0)) for part, mask in zip(steps, masks, strict=True)
            )
            for is_late in (False, True)
        ]
        # What only happens at the end, as the fastest part of a chirp, must be fitted, too.
        spread |= actuator.joint in wanted and (late > 0.5 * whole > 0 or fastest[1] > 1.05 * fastest[0])
    if spread:
        every = BLOCK / holdout
        masks = [(s.stamps % every) > every - BLOCK for s in problem.sequences]
    for sequence, mask in zip(problem.sequences, masks, strict=True):
        sequence.held = {s: used & mask[:, None] for s, used in sequence.used.items()}
        sequence.used = {s: used & ~mask[:, None] for s, used in sequence.used.items()}
    if spread:
        return f"{BLOCK:g} s of every {every:g} s (some joints move most, or fastest, in the last part)"
    return f"the last {100 * holdout:g} %"


def _first_weights(problem: Problem) -> None:
    for sequence in problem.sequences:
        for signal, matrix in sequence.measured.items():
            for k in range(matrix.shape[1]):
                sequence.weights[signal][:, k] = 1 / max(noise(matrix[:, k]), LEAST_NOISE)


def _reweigh(problem: Problem, values: Mapping[str, float]) -> int:
    """Set the weights by the residuals: a variance of each signal of each joint, and for positions one of the stamps of
    the log times the squared speed. Leaves outliers out, for good; returns how many more."""
    outliers = 0
    for sequence in problem.fitted:
        found = problem.signals(sequence, values)
        speed = np.nan_to_num(found["velocity"])
        for signal, measured in sequence.measured.items():
            used = sequence.used[signal]
            square = np.where(used, np.nan_to_num(measured - found[signal]) ** 2, 0.0)
            count = np.maximum(used.sum(axis=0), 1)
            variance, stamps = square.sum(axis=0) / count + LEAST_NOISE**2, 0.0
            fast = np.where(used, speed**2, 0.0)
            for _ in range(5 if signal == "position" else 1):
                trust = 1 / variance**2
                over = ((square - np.where(used, variance, 0.0)) * fast * trust).sum()
                stamps = (
                    max(0.0, float(over / max((fast**2 * trust).sum(), 1e-30)))
                    if signal == "position"
                    else 0.0
                )
                variance = np.maximum((square - stamps * fast).sum(axis=0) / count, LEAST_NOISE**2)
            total = variance + stamps * speed**2
            sequence.weights[signal] = 1 / np.sqrt(total)
            beyond = used & (square > OUTLIER**2 * total)
            if 0 < beyond.sum() <= MOST_OUTLIERS * used.sum():
                sequence.used[signal] = used & ~beyond
                outliers += int(beyond.sum())
    return outliers


def _result(
    solver: _Solver,
    asked: Sequence[Unknown],
    still: Mapping[str, str],
    text: str,
    said: list[str],
    outliers: int,
) -> Result:
    problem, estimates = solver.problem, []
    nominal = {one.name: 0.0 if one.field == CLOCK else one.held for one in problem.unknowns}
    clocks = {one.targets[0]: solver.values[one.name] for one in problem.unknowns if one.field == CLOCK}
    # The stamps of other logs are taken to be like those of the fitted ones.
    for sequence in problem.sequences:
        if clocks and sequence.log.name not in clocks:
            solver.values[f"{CLOCK}/{sequence.log.name}"] = float(np.mean(list(clocks.values())))
    for one in asked:
        number = solver.values[one.name]
        if one.name in still:
            estimates.append(Estimate(one, one.nominal[0], 0.0, still[one.name]))
            continue
        why = solver.reason(one.name) if one.name in solver.untold else ""
        at_bound = min(number - one.low, one.high - number) < 1e-6
        half = solver.half[one.name] * one.scale[0]
        estimates.append(Estimate(one, one.physical(number), half, why, at_bound))
    before = nominal | {name: value for name, value in solver.values.items() if name.startswith(CLOCK)}
    fits = _fits(problem, before, solver.values)
    passed, why = _judged(fits)
    return Result(
        problem.robot,
        problem,
        estimates,
        clocks,
        dict(solver.values),
        before,
        fits,
        text,
        passed,
        why,
        said,
        outliers,
    )


def _fits(problem: Problem, before: Mapping[str, float], values: Mapping[str, float]) -> list[Fit]:
    sums = np.zeros((3, 2, len(problem.joints)))
    for sequence in problem.sequences:
        measured = sequence.measured["position"]
        after = measured - problem.signals(sequence, values)["position"]
        first = measured - problem.signals(sequence, before)["position"]
        parts = ((first, sequence.held), (after, sequence.used), (after, sequence.held))
        for n, (errors, masks) in enumerate(parts):
            mask = masks["position"]
            sums[n, 0] += np.where(mask, np.nan_to_num(errors) ** 2, 0.0).sum(axis=0)
            sums[n, 1] += mask.sum(axis=0)
    with np.errstate(divide="ignore", invalid="ignore"):
        found = np.sqrt(sums[:, 0] / sums[:, 1])
    spread = [
        max(noise(s.measured["position"][:, k]) for s in problem.sequences)
        for k in range(len(problem.joints))
    ]
    moved = problem.motion()
    rows = np.vstack((found, moved)).T.tolist()
    return [Fit(name, spread[k], *rows[k]) for k, name in enumerate(problem.joints)]


def _misfits(fits: Sequence[Fit]) -> list[str]:
    """Joints whose errors are more than noise, which intervals do not know."""
    shares = {fit.joint: fit.fitted / max(fit.noise, LEAST_NOISE) for fit in fits}
    return [
        f"{joint}: errors of the fit are {share:.2g} times the noise of the encoder; the model lacks something, and "
        "the intervals do not include that"
        for joint, share in shares.items()
        if share > MISFIT
    ]


def _judged(fits: Sequence[Fit]) -> tuple[bool, str]:
    """Whether the fit and the held-out part are met, and why not."""
    failures = [f"{fit.joint}: {fit.failure}" for fit in fits if fit.failure]
    return not failures, failures[0] if failures else ""
