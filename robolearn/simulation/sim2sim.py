"""Sim-to-sim: one policy in several simulators from the same starts, and why they differ."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any

import numpy as np

from robolearn.simulation.measures import described
from robolearn.simulation.side import Side

SCHEMA = 1
FILE_NAME = "sim2sim.json"

RESAMPLES = 10_000
"""Of the bootstrap over pairs of episodes."""
MANY = 5000
"""Pairs from which on intervals are those of a normal distribution."""
LEAST = 3
"""Pairs below which nothing is said to differ: the bootstrap of so few is no test."""
ROUNDING = 1e-6
"""Differences below this share of the mean are rounding errors."""
APART = 0.1
"""Observations have diverged where a column differs by more than this share of its standard deviation."""
LEAST_SPREAD = 1e-3
"""Smallest standard deviation taken for that: of a column that is nearly constant."""

JOINTS_AGREE = 0.05
"""The joints' responses agree within this share of the response."""
CONTACT_AGREES = 0.1
"""Forces and speeds in contact agree within this share."""
SINK_AGREES = 0.005
"""Heights of the base in contact agree within this [m]."""
LAGGING = (
    "energy_per_metre",
    "peak_torque",
    "power",
    "swing_height",
    "torque",
    "torque_saturation",
)
"""Measures of fields that some simulators show one physics step late (`Capabilities.derived_lag`)."""
SHIFTS = (-2, -1, 0, 1, 2)
"""Delays that are tried [control steps]."""


@dataclass(frozen=True)
class Gap:
    """Difference of a measure, the other simulator minus the reference, over pairs of episodes."""

    reference: float
    other: float
    mean: float
    low: float
    high: float
    """Ends of the 95 % interval of the mean difference (bootstrap over pairs)."""
    pairs: int
    """Pairs of episodes; where worlds have several agents, whose episodes are not independent, pairs of worlds."""
    differs: bool
    """Whether it is more than chance: 5 % over all measures together, and more than a rounding error."""
    lag: int = 0
    """Physics steps by which the other simulator shows what is measured earlier than the reference."""


@dataclass(frozen=True)
class Divergence:
    """When and where the observations of two simulators part."""

    share: float
    """Share of the environments in which they do."""
    median: float | None
    """Median time into the episode [s], of those."""
    columns: tuple[tuple[str, float], ...]
    """Columns that differ first, each with the share of those environments."""


@dataclass(frozen=True)
class Cause:
    """One of the usual causes of a gap."""

    name: str
    excluded: bool | None
    """None: this robot cannot be probed for it."""
    evidence: str


@dataclass(frozen=True)
class Comparison:
    """One simulator against the reference."""

    reference: str
    other: str
    gaps: dict[str, Gap]
    divergence: Divergence
    causes: tuple[Cause, ...]

    @property
    def survival(self) -> float:
        """Survival as a share of that in the reference; 1 where nothing survives there."""
        gap = self.gaps["survival"]
        return gap.other / gap.reference if gap.reference > 0 else 1.0


def compare(reference: Side, other: Side) -> Comparison:
    """Compare two sides of the same request."""
    return Comparison(
        reference.backend,
        other.backend,
        gaps(reference, other),
        divergence(reference, other),
        causes(reference, other),
    )


def gaps(reference: Side, other: Side) -> dict[str, Gap]:
    """The gap of every measure that both have."""
    out = {}
    tested, agents = max(1, len(reference.episodes)), reference.facts.get("agents", 1)
    for name, before in reference.episodes.items():
        after = other.episodes.get(name)
        if after is None or len(after) != len(before):
            continue
        both = ~(np.isnan(before) | np.isnan(after))
        if not both.any():
            continue
        difference = _of_worlds(after - before, agents)
        low, high, lower, higher = bootstrap(difference, (0.05, 0.05 / tested))
        means = float(before[both].mean()), float(after[both].mean()), float(difference.mean())
        lag = reference.facts["derived_lag"] - other.facts["derived_lag"] if name in LAGGING else 0
        least = ROUNDING * max(abs(means[0]), abs(means[1]))
        differs = len(difference) >= LEAST and (lower > 0 or higher < 0) and abs(means[2]) > least
        out[name] = Gap(*means, low, high, len(difference), bool(differs), lag)
    return out


def _of_worlds(differences: np.ndarray, agents: int) -> np.ndarray:
    """The mean difference of the agents of each world, of one for each agent; NaN is left out."""
    there = ~np.isnan(differences).reshape(-1, agents)
    total = np.where(there, differences.reshape(-1, agents), 0.0).sum(axis=1)
    return total[there.any(axis=1)] / there.sum(axis=1)[there.any(axis=1)]


def bootstrap(values: np.ndarray, levels: Sequence[float]) -> list[float]:
    """Ends of the intervals of a mean at each level, low and high, over resampled values (E,).

    From MANY values on the intervals are those of a normal distribution, which the bootstrap approaches.
    """
    if len(values) >= MANY:
        spread = values.std(ddof=1) / np.sqrt(len(values))
        ends = [NormalDist().inv_cdf(1 - level / 2) * spread for level in levels]
        return [float(values.mean() + sign * end) for end in ends for sign in (-1, 1)]
    random = np.random.default_rng(0)  # the same episodes give the same interval
    means = np.array(
        [values[random.integers(len(values), size=len(values))].mean() for _ in range(RESAMPLES)]
    )
    quantiles = [q for level in levels for q in (level / 2, 1 - level / 2)]
    return [float(end) for end in np.quantile(means, quantiles)]


def divergence(reference: Side, other: Side) -> Divergence:
    """When the observations of the same environment part, and which column does so first."""
    steps = min(len(reference.observations), len(other.observations))
    a, b = reference.observations[:steps], other.observations[:steps]
    spread = np.maximum(np.nanstd(reference.observations, axis=(0, 1)), LEAST_SPREAD)
    apart = np.abs(a - b) / spread
    # An episode that has ended in one simulator only: they have parted, by whatever column is then not a number.
    ended = np.isnan(a).any(axis=2) ^ np.isnan(b).any(axis=2)
    over = (apart > APART) & ~np.isnan(apart)
    parted = over.any(axis=2) | ended
    envs = parted.any(axis=0)
    first = parted.argmax(axis=0)
    counts: dict[str, int] = {}
    for env in np.flatnonzero(envs):
        at = over[first[env], env]
        worst = np.where(at, np.nan_to_num(apart[first[env], env]), -1.0)
        name = reference.columns[int(worst.argmax())] if at.any() else "episode ended"
        counts[name] = counts.get(name, 0) + 1
    ranked = sorted(counts.items(), key=lambda pair: -pair[1])[:3]
    total = int(envs.sum())
    return Divergence(
        float(envs.mean()),
        float(np.median(first[envs] + 1) * reference.dt) if total else None,
        tuple((name, count / total) for name, count in ranked),
    )


def causes(reference: Side, other: Side) -> tuple[Cause, ...]:
    """The usual causes of a gap, each with the evidence for or against it."""
    return (
        _joint_order(reference, other),
        _gains(reference, other),
        _delay(reference, other),
        _friction(reference, other),
        _contact(reference, other),
    )


def _responses(side: Side) -> np.ndarray:
    """(T, A, J) how each joint moves after a step of each actuator's target: less what it does without one."""
    moved = side.probes["joint_pos"]
    out: np.ndarray = moved[:, :-1] - moved[:, -1:]
    return out


def _joint_order(reference: Side, other: Side) -> Cause:
    ends = [_responses(side)[-1] for side in (reference, other)]
    wrong = []
    for i, actuator in enumerate(reference.facts["actuators"]):
        joints = [
            side.facts["joints"][int(np.abs(end[i]).argmax())]
            for side, end in zip((reference, other), ends, strict=True)
        ]
        own = [
            float(end[i, side.facts["joints"].index(actuator)])
            for side, end in zip((reference, other), ends, strict=True)
        ]
        if joints[0] != joints[1] or own[0] * own[1] <= 0:
            wrong.append(
                f"{actuator} moves {joints[1]} by {own[1]:+.3f}, {joints[0]} by {own[0]:+.3f} in the reference"
            )
    if wrong:
        return Cause("joint order and signs", False, "; ".join(wrong[:3]))
    count = len(reference.facts["actuators"])
    return Cause(
        "joint order and signs", True, f"each of {count} actuators moves the same joint the same way"
    )


def _relative(a: np.ndarray, b: np.ndarray) -> float:
    return float(np.sqrt(np.square(b - a).sum() / max(np.square(a).sum(), 1e-30)))


def _gains(reference: Side, other: Side) -> Cause:
    a, b = _responses(reference), _responses(other)
    joints = reference.facts["joints"]
    own = [joints.index(actuator) for actuator in reference.facts["actuators"]]
    each = np.array([_relative(a[:, i, j], b[:, i, j]) for i, j in enumerate(own)])
    worst = int(each.argmax())
    said = (
        f"steps of the joint targets without contact: responses differ by {100 * np.median(each):.2g} % (median), "
        f"at most {100 * each[worst]:.2g} % ({reference.facts['actuators'][worst]})"
    )
    return Cause("gains, armature, joint friction", bool(each[worst] <= JOINTS_AGREE), said)


def _delay(reference: Side, other: Side) -> Cause:
    steps = [side.probes["joint_vel"] for side in (reference, other)]
    a, b = (v[:, :-1] - v[:, -1:] for v in steps)
    padded = np.concatenate([np.zeros_like(a[:2]), a, np.zeros_like(a[:2])])
    errors = []
    for shift in SHIFTS:
        moved = padded[2 - shift : 2 - shift + len(a)]
        # Only steps that exist in both: the padding behind the end is no motion of the reference.
        kept = len(a) - max(0, -shift)
        errors.append(_relative(moved[:kept], b[:kept]))
    best = SHIFTS[int(np.argmin(errors))]
    if best:
        return Cause(
            "delay",
            False,
            f"its joints answer {abs(best)} control steps {'later' if best > 0 else 'earlier'}",
        )
    ahead = min(error for shift, error in zip(SHIFTS, errors, strict=True) if shift)
    return Cause(
        "delay",
        True,
        f"the joints answer in the same control step: responses differ by {100 * errors[2]:.2g} %, and by "
        f"{100 * ahead:.2g} % where one is shifted by a step",
    )


def _friction(reference: Side, other: Side) -> Cause:
    name = "friction"
    if "slide_speed" not in reference.probes:
        return Cause(name, None, "the base is fixed, or the robot has no feet")
    a, b = (side.probes["slide_speed"] for side in (reference, other))
    lost = [1.0 - float(v.min()) for v in (a, b)]
    if min(lost) <= 0:
        return Cause(
            name, None, "sliding at 1 m/s it gets faster, as a robot does that tips over: not told by this"
        )
    error = float(np.abs(a - b).max()) / max(lost[0], 0.05)
    said = (
        f"sliding at 1 m/s it loses {lost[1]:.3f} m/s in 0.3 s, {lost[0]:.3f} in {reference.backend}; speeds differ by "
        f"at most {100 * error:.2g} % of that"
    )
    return Cause(name, error <= CONTACT_AGREES, said)


def _contact(reference: Side, other: Side) -> Cause:
    name = "contact model"
    if "drop_height" not in reference.probes:
        return Cause(name, None, "the base is fixed, or the robot has no feet")
    height = float(np.abs(other.probes["drop_height"] - reference.probes["drop_height"]).max())
    forces = [side.probes["drop_force"] for side in (reference, other)]
    peak = [float(force.max()) for force in forces]
    relative = abs(peak[1] - peak[0]) / max(peak[0], 1e-9)
    said = (
        f"dropped from 2 cm: heights differ by at most {1e3 * height:.2g} mm, the largest force is {peak[1]:.0f} N, "
        f"{peak[0]:.0f} in {reference.backend}"
    )
    return Cause(name, height <= SINK_AGREES and relative <= CONTACT_AGREES, said)


# ---------------------------------------------------------------------------------------- output


def content(reference: Side, comparisons: Sequence[Comparison], sides: Sequence[Side]) -> dict[str, Any]:
    """The content of sim2sim.json."""
    facts = reference.facts
    return {
        "schema": SCHEMA,
        "run": facts["run"],
        "iteration": facts["iteration"],
        "task": facts["task"],
        "robot": facts["robot"],
        "episodes": len(reference.episodes["survival"]),
        "reference": reference.backend,
        "backends": {
            side.backend: {
                "measures": {
                    name: float(np.nanmean(values))
                    for name, values in side.episodes.items()
                    if not np.isnan(values).all()
                },
                "timestep": side.facts["timestep"],
                "pd": side.facts["pd"],
                "derived_lag": side.facts["derived_lag"],
                "seconds": side.facts["seconds"],
            }
            for side in (reference, *sides)
        },
        "comparisons": {
            each.other: {
                "survival_share": each.survival,
                "gaps": {name: vars(gap) for name, gap in each.gaps.items()},
                "divergence": {
                    **vars(each.divergence),
                    "columns": [list(pair) for pair in each.divergence.columns],
                },
                "causes": [vars(cause) for cause in each.causes],
            }
            for each in comparisons
        },
    }


def table(reference: Side, comparison: Comparison) -> str:
    """A comparison as text."""
    agents = reference.facts.get("agents", 1)
    pairs = len(reference.episodes["survival"]) // agents
    what = "episodes" if agents == 1 else f"worlds of {agents} agents"
    head = f"{comparison.other} against {comparison.reference}: {pairs} pairs of {what}"
    lines = [f"{head}, same starts, commands, pushes and noise"]
    rows = [("measure", comparison.reference, comparison.other, "difference (95 %)", "")]
    for name, gap in comparison.gaps.items():
        unit = described(name).unit
        label = f"{name.replace('_', ' ')}{f' [{unit}]' if unit else ''}"
        interval = f"{gap.mean:+.3g} ({gap.low:+.3g} to {gap.high:+.3g})"
        verdict = "differs" if gap.differs else ""
        if gap.pairs < pairs:
            interval += f", {gap.pairs} pairs"
        if gap.differs and gap.lag:
            verdict = "differs; measured one physics step apart"
        rows.append((label, f"{gap.reference:.4g}", f"{gap.other:.4g}", interval, verdict))
    widths = [max(len(row[i]) for row in rows) for i in range(5)]
    lines += [
        "  " + "  ".join(f"{c:<{w}}" for c, w in zip(row, widths, strict=True)).rstrip() for row in rows
    ]
    parted = comparison.divergence
    if parted.median is None:
        lines.append("  observations never part")
    else:
        first = ", ".join(f"{name} ({100 * share:.0f} %)" for name, share in parted.columns)
        lines.append(
            f"  observations part after {parted.median:.2f} s (median; {100 * parted.share:.0f} % of the episodes), "
            f"first in {first}"
        )
    for cause in comparison.causes:
        verdict = {True: "excluded", False: "NOT excluded", None: "not probed"}[cause.excluded]
        lines.append(f"  {cause.name}: {verdict}: {cause.evidence}")
    return "\n".join(lines)
