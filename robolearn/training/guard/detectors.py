"""What the guard makes of its numbers: symptoms, and whether success bears the reward out.

A symptom alone proves nothing: a robot that learns to run uses more energy than one that lies. It is confirmed where,
for several iterations in a row, the reward has risen and success has not, or has fallen. A clear fall of success while
the reward rises needs no symptom.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from robolearn.config.guarding import GuardConfig

SMOOTH = 5
"""Iterations over which reward and success are averaged."""
SHARE = 0.15
"""Share of the longest episode that success over whole episodes is averaged over, at least: where few episodes end in
an iteration, their lengths scatter."""
LEAST, SOME = 0.05, 0.03
"""Smallest loss of success, and smallest gain, that mean something; 1 is all of it."""
GOOD = 0.5
"""Success from which it need not rise for the reward to be borne out."""
GAIN = 0.3
"""Share by which the reward must have risen since the baseline."""
MARGIN = 0.05
"""Share by which the reward must have risen since success was best."""
MEMORY = 0.9
"""Share of its moving average that the KL divergence keeps in an iteration."""
NO_FIT = 0.2
"""Share of explained variance below which the value function does not fit."""

FLOORS = {
    "vibration": 0.5,
    "foot_slide": 0.1,
    "penetration": 0.001,
    "impact": 10.0,
    "spin": 0.5,
    "lean": 0.1,
    "energy": 0.1,
    "torque_limit": 0.02,
    "ends_early": 0.05,
}
"""Signals that are symptoms where they are a multiple of their baseline, or of this where that is less."""
SPREADS = ("action_spread", "state_spread")
WHOLE, WHILE = "whole", "while"
"""Success over whole episodes, and while they last."""
REWARD = "reward/"
"""Prefix of the rewards by their name, weighted and per step."""
LEVEL, HARDER = "metric/level_", 0.05
"""Prefix of the levels of curricula, and by how much one rises before success is compared anew."""
SUCCESS, KL, VALUE, ENTROPY = "success", "kl", "value_error", "entropy"

MEANING = {
    SUCCESS: "success falls while the reward rises",
    KL: "the KL divergence of the updates is far above its moving average",
    VALUE: "the value error has risen and the value function does not fit",
    ENTROPY: "the policy has become far more random",
    "action_spread": "the diversity of actions has collapsed",
    "state_spread": "the diversity of states has collapsed",
    "vibration": "joints vibrate",
    "foot_slide": "feet slide on the ground",
    "penetration": "feet are pressed into the ground",
    "impact": "feet hammer on the ground",
    "spin": "the base spins",
    "lean": "the base leans",
    "energy": "motors spend far more energy",
    "torque_limit": "motors are at their limit",
    "ends_early": "episodes end early",
}
"""Findings in words."""


@dataclass
class Track:
    """What is remembered of the iterations so far; plain values, part of a checkpoint."""

    recent: list[dict[str, float]] = field(default_factory=list)
    """Numbers of the last `SMOOTH` iterations."""
    whole: list[dict[str, float]] = field(default_factory=list)
    """`success`, `weight` and `length` of as many as success over whole episodes is averaged over."""
    sums: dict[str, float] = field(default_factory=dict)
    """Sums over the iterations of the warm-up, by signal; see `base`."""
    counts: dict[str, float] = field(default_factory=dict)
    """What to divide them by."""
    counted: int = 0
    """Iterations of the warm-up of success, which begins where it first counts."""
    warmup: int = 0
    """The setting that baselines are taken with."""
    seen: int = 0
    """Iterations since the start, or since the last rollback."""
    start: int = 0
    """The iteration before the first of them."""
    best: dict[str, dict[str, float]] = field(default_factory=dict)
    """`iteration`, `success`, `reward` and single rewards where success was best, of `WHOLE` and `WHILE`."""
    kl: float = 0.0
    """Moving average of the KL divergence."""
    streaks: dict[str, int] = field(default_factory=dict)
    """Iterations in a row for which each finding has held."""

    @property
    def base(self) -> dict[str, float]:
        """Means over the iterations of the warm-up, by signal."""
        return {name: total / self.counts[name] for name, total in self.sums.items()}

    def plain(self) -> dict[str, Any]:
        """As it is saved: a copy. (`asdict` copies each number, which takes as long as all else in an iteration.)"""
        out: dict[str, Any] = {each.name: getattr(self, each.name) for each in fields(self)}
        out |= {name: [dict(row) for row in out[name]] for name in ("recent", "whole")}
        out |= {name: dict(out[name]) for name in ("sums", "counts", "streaks")}
        return out | {"best": {kind: dict(best) for kind, best in self.best.items()}}


@dataclass(frozen=True)
class Finding:
    """Something suspicious in an iteration."""

    name: str
    value: float
    limit: float
    """What the value is beyond; of `SUCCESS`, the best so far."""
    onset: int
    """The last iteration before it began."""
    streak: int
    """Iterations in a row for which it has held, with the evidence of success."""
    confirmed: bool


def smoothed(recent: Sequence[Mapping[str, float]], whole: bool = True) -> float:
    """Success over several iterations, of which one counts at least: of full-length episodes, where steps that a
    termination has cost have none, or else while they last. A quotient of sums, so that an iteration weighs as much as
    it has steps that count, and with those that it lacks."""
    rows = [row for row in recent if "success" in row]
    total = sum(row["success"] * _weight(row) for row in rows)
    return total / sum(_weight(row) / (max(row["length"], 1e-9) if whole else 1.0) for row in rows)


def _weight(row: Mapping[str, float]) -> float:
    """Share of the steps of an iteration in which success counts."""
    return row.get("weight", 1.0)


def numbers_of(
    signals: Mapping[str, float], losses: Mapping[str, float], rewards: Mapping[str, float]
) -> dict[str, float]:
    """The signals of an iteration, with the numbers of the learner and of the Env that the guard reads."""
    names = {"kl": KL, "value": VALUE, "explained_variance": "fit", "std": ENTROPY}
    mine = {mine: losses[theirs] for theirs, mine in names.items() if theirs in losses}
    single = {k: v for k, v in rewards.items() if k.startswith((REWARD, LEVEL)) and k != "reward/total"}
    return {**signals, **mine, **single}


def window(max_episode_steps: int, steps: int) -> int:
    """Iterations of this many steps of an environment that success over whole episodes is averaged over."""
    return max(SMOOTH, math.ceil(SHARE * max_episode_steps / max(1, steps)))


def mean_terms(recent: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Means of the single rewards over several iterations."""
    names = dict.fromkeys(name for row in recent for name in row if name.startswith(REWARD))
    return {name: sum(row.get(name, 0.0) for row in recent) / len(recent) for name in names}


def look(
    track: Track,
    row: Mapping[str, float],
    iteration: int,
    stated: bool,
    c: GuardConfig,
    width: int = SMOOTH,
) -> list[Finding]:
    """What is suspicious after an iteration, of which `row` are the numbers (see `numbers_of`); changes `track`.

    Args:
        track: of the iterations before.
        row: with `reward` and `length`, `success` where it counts, with `weight`, the share of the steps in which it
            does, and whichever of the others there are.
        iteration: its number.
        stated: whether the task states its success; without, success is survival, which need not rise.
        c: thresholds.
        width: iterations over which success over whole episodes is averaged, see `window`.
    """
    if track.warmup not in (0, c.warmup):
        vars(track).update(vars(Track()))
    track.warmup = c.warmup
    track.seen += 1
    if track.seen == 1:
        track.start = iteration - 1
    track.recent = [*track.recent[1 - SMOOTH :], dict(row)]
    kept = {name: row[name] for name in ("success", "weight", "length") if name in row}
    track.whole = [*track.whole[1 - width :], kept]
    warms = "success" in row and track.counted < c.warmup
    if warms:
        _begin_success(track, row)
    if track.seen <= c.warmup:
        _begin(track, row)
        return []
    reward = sum(each["reward"] for each in track.recent) / len(track.recent)
    known = stated or "success" in row
    counts = track.counted >= c.warmup and not warms and any("success" in each for each in track.recent)
    fell = _fallen(track, reward, iteration, stated, c) if counts else {}
    symptoms = _symptoms(track, row, c)
    if "kl" in row:
        track.kl = MEMORY * track.kl + (1 - MEMORY) * row["kl"]
    rises = reward - track.base["reward"] > GAIN * abs(track.base["reward"])
    if not known:
        held = {name: pair for name, pair in symptoms.items() if rises and name == KL}
    elif not counts:
        held = {name: pair for name, pair in symptoms.items() if name in track.streaks}
    else:
        borne = not stated or smoothed(track.whole) >= min(GOOD, track.base["success"] + SOME)
        idle = rises and not borne
        held = {name: pair for name, pair in symptoms.items() if fell or (idle and name in FLOORS)}
    if fell:
        held[SUCCESS] = next(iter(fell.values()))
    # No evidence of success, or success that comes back: neither for nor against.
    more = int((counts or not known) and not (fell and all(_comes_back(track, kind) for kind in fell)))
    track.streaks = {name: track.streaks.get(name, 0) + more for name in held}
    onset = max(int(track.best[kind]["iteration"]) for kind in fell) if fell else track.start
    enough = c.patience if known else 2 * c.patience
    found = []
    for name, (value, limit) in (symptoms | held).items():
        streak = track.streaks.get(name, 0)
        found.append(Finding(name, value, limit, onset, streak, streak >= enough))
    return sorted(found, key=lambda finding: -finding.streak)


def _fallen(
    track: Track, reward: float, iteration: int, stated: bool, c: GuardConfig
) -> dict[str, tuple[float, float]]:
    """Where success has fallen although the `reward` is higher than when it was best: what it is and was."""
    now, fell = {WHOLE: smoothed(track.whole)}, {}
    if stated:
        now[WHILE] = smoothed(track.recent, whole=False)
    for kind, success in now.items():
        best = track.best.get(kind)
        if best is None or success >= best["success"] or _harder(track.recent[-1], best):
            levels = {k: v for k, v in track.recent[-1].items() if k.startswith(LEVEL)}
            terms = mean_terms(track.recent) | levels
            best = track.best[kind] = {"iteration": iteration, "success": success, "reward": reward, **terms}
        lost = success < best["success"] - max(LEAST, c.drop * abs(best["success"]))
        if lost and reward > best["reward"] + MARGIN * abs(best["reward"]):
            fell[kind] = success, best["success"]
    return fell


def _comes_back(track: Track, kind: str) -> bool:
    """Whether success rises within the iterations that it is averaged over: the policy changes, and for the better."""
    rows = track.whole if kind == WHOLE else track.recent
    some = [row for row in rows if "success" in row]
    half = len(some) // 2
    if not half:
        return False
    before, after = (smoothed(part, kind == WHOLE) for part in (some[:half], some[-half:]))
    return after > before + SOME


def _harder(row: Mapping[str, float], best: Mapping[str, float]) -> bool:
    """Whether a curriculum has become notably harder since success was best."""
    return any(
        name.startswith(LEVEL) and value >= best.get(name, value) + HARDER for name, value in row.items()
    )


def _begin(track: Track, row: Mapping[str, float]) -> None:
    """Add an iteration of the warm-up to the baselines."""
    full = 1 / max(row["length"], 1e-9)
    _add(track, "ends_early", full - 1, full)
    for name, value in row.items():
        if name != "success":
            _add(track, name, value)
    track.kl = track.base.get("kl", 0.0)


def _begin_success(track: Track, row: Mapping[str, float]) -> None:
    """Add an iteration to the baseline of success over whole episodes."""
    track.counted += 1
    _add(track, "success", row["success"] * _weight(row), _weight(row) / max(row["length"], 1e-9))


def _add(track: Track, name: str, value: float, count: float = 1.0) -> None:
    track.sums[name] = track.sums.get(name, 0.0) + value
    track.counts[name] = track.counts.get(name, 0.0) + count


def _symptoms(track: Track, row: Mapping[str, float], c: GuardConfig) -> dict[str, tuple[float, float]]:
    """Value and limit of each signal that is beyond its limit."""
    base, found = track.base, {}
    ends = 1 - len(track.whole) / sum(1 / max(each["length"], 1e-9) for each in track.whole)
    now = {**row, "ends_early": ends}
    for name, floor in FLOORS.items():
        limit = c.rise * max(base.get(name, 0.0), floor)
        if name in now and now[name] > limit:
            found[name] = now[name], limit
    for name in SPREADS:
        if name in row and row[name] < (limit := c.diversity * base.get(name, 0.0)):
            found[name] = row[name], limit
    if "kl" in row and row["kl"] > (limit := c.kl * track.kl) > 0:
        found[KL] = row["kl"], limit
    for name in (VALUE, ENTROPY):
        fits = name == VALUE and row.get("fit", 1.0) >= NO_FIT
        if name in row and name in base and row[name] > (limit := c.rise * base[name]) and not fits:
            found[name] = row[name], limit
    return found
