"""Baselines: what a suite measured once, and whether it has become worse since.

A baseline holds the mean of every measure, its spread over the episodes, and a 95 % interval of the mean (bootstrap).
A later run has become worse in a measure where a one-sided test says so at the level ALPHA / m, m the number of
comparisons of the suite (Bonferroni): so an unchanged policy fails a suite in at most ALPHA of the runs, also with
other seeds or on another processor. On the same machine with the same seeds it has the same bits and never fails.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from robolearn.commands.suite.gates import Verdict
from robolearn.errors import ConfigError, one_line, quote
from robolearn.files import replacing
from robolearn.simulation.measures import described
from robolearn.simulation.sim2sim import bootstrap

SCHEMA = 1

ALPHA = 0.01
"""Largest probability that a suite with an unchanged policy fails against its baseline."""

TOLERANCE = 0.02
"""Changes below this share of the baseline's mean never fail, however certain they are; of survival, this much of 1."""

LEAST = 8
"""Fewest episodes with a value that are compared."""


@dataclass(frozen=True)
class Recorded:
    """One measure in a baseline."""

    mean: float
    low: float
    high: float
    """Ends of the 95 % interval of the mean."""
    std: float
    """Standard deviation over the episodes."""
    count: int
    """Episodes that have a value."""


def recorded(values: np.ndarray) -> Recorded | None:
    """Statistics of one measure (E,), NaN left out; None without values."""
    values = values[~np.isnan(values)]
    if not len(values):
        return None
    low, high = bootstrap(values, (0.05,))
    std = float(values.std(ddof=1)) if len(values) > 1 else 0.0
    return Recorded(_short(values.mean()), _short(low), _short(high), _short(std), len(values))


def _short(value: float) -> float:
    return float(f"{float(value):.6g}")


def entry(fingerprint: str, episodes: Mapping[str, np.ndarray]) -> dict[str, Any]:
    """A baseline's entry of one case."""
    measures = {name: recorded(values) for name, values in sorted(episodes.items())}
    return {
        "scenario": fingerprint,
        "measures": {name: vars(each) for name, each in measures.items() if each is not None},
    }


def write(path: Path, entries: Mapping[str, Mapping[str, Any]], version: str) -> None:
    """Write a baseline: `entries` by `SCENARIO on BACKEND`.

    Raises:
        ConfigError: the file cannot be written.
    """
    content = {"schema": SCHEMA, "robolearn": version, "cases": dict(sorted(entries.items()))}
    with replacing(path) as part:
        part.write_text(json.dumps(content, indent=1, allow_nan=False) + "\n", encoding="utf-8")


def read(path: Path) -> dict[str, Any]:
    """The entries of a baseline by `SCENARIO on BACKEND`; empty without a file.

    Raises:
        ConfigError: it is damaged or of another version.
    """
    where = quote(str(path), 120)
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError(
            f"{where} cannot be read: {one_line(str(error), 100)}; --update-baseline writes it"
        ) from error
    cases = content.get("cases") if isinstance(content, dict) else None
    if not isinstance(cases, dict) or content.get("schema") != SCHEMA:
        raise ConfigError(f"{where} is no baseline of schema {SCHEMA}; --update-baseline writes one")
    for name, case in cases.items():
        try:
            dict_of = {k: Recorded(**v) for k, v in case["measures"].items()}
            numbers = [x for r in dict_of.values() for x in vars(r).values()]
            if not isinstance(case["scenario"], str) or not all(math.isfinite(x) for x in numbers):
                raise TypeError
        except (TypeError, KeyError, AttributeError) as error:
            raise ConfigError(
                f"{where} is damaged at {quote(name)}; --update-baseline writes it anew"
            ) from error
    return cases


def comparable(case: Mapping[str, Any], episodes: Mapping[str, np.ndarray]) -> list[str]:
    """Measures that can become worse and have enough episodes in both."""
    return [
        name
        for name, before in case["measures"].items()
        if described(name).better
        and before["count"] >= LEAST
        and name in episodes
        and (~np.isnan(episodes[name])).sum() >= LEAST
    ]


def compare(
    scenario: str, backend: str, case: Mapping[str, Any], episodes: Mapping[str, np.ndarray], comparisons: int
) -> list[Verdict]:
    """A verdict for each measure of one case.

    Args:
        scenario: its name.
        backend: its backend.
        case: the baseline's entry.
        episodes: (E,) by measure, now.
        comparisons: m, number of comparisons in the whole suite.
    """
    verdicts = []
    fitting = comparable(case, episodes)
    for name, stated in case["measures"].items():
        before = Recorded(**stated)
        if not described(name).better:
            continue
        if name not in fitting:
            count = int((~np.isnan(episodes[name])).sum()) if name in episodes else 0
            few = f"{before.count} episodes had a value, {count} have one now; at least {LEAST} are compared"
            lost = False if before.count >= LEAST else None
            limit = f"{before.mean:.4g}"
            verdicts.append(Verdict(f"baseline {name}", lost, "-", limit, few, scenario, backend))
            continue
        now = recorded(episodes[name])
        assert now is not None  # `comparable` has counted its episodes
        measure = described(name)
        p = worse(name, before, now, measure.better)
        change = measure.better * (now.mean - before.mean)
        allowed = TOLERANCE * (1.0 if name == "survival" else abs(before.mean))
        bad = p < ALPHA / comparisons and change < -allowed
        unit = f" {measure.unit}" if measure.unit else ""
        why = ""
        if bad:
            share = f", {100 * (now.mean - before.mean) / abs(before.mean):+.1f} %" if before.mean else ""
            why = f"worse than the baseline by {abs(change):.4g}{unit}{share} (p = {p:.1g})"
        limit = f"{before.mean:.4g} ({before.low:.4g} to {before.high:.4g})"
        verdicts.append(
            Verdict(f"baseline {name}", not bad, f"{now.mean:.4g}{unit}", limit, why, scenario, backend)
        )
    return verdicts


def worse(name: str, before: Recorded, now: Recorded, better: int) -> float:
    """p-value, one-sided, of the hypothesis that `now` is no worse than `before`.

    Shares (survival): Fisher's exact test. Means: Welch's t-test, with at least the spread of a rounding error, so that
    values which never varied can be compared.
    """
    from scipy import stats

    if name == "survival":
        counts = [[round(r.mean * r.count), r.count - round(r.mean * r.count)] for r in (now, before)]
        return float(stats.fisher_exact(counts, alternative="less")[1])
    least = 1e-6 * max(abs(before.mean), abs(now.mean), 1e-12)
    result = stats.ttest_ind_from_stats(
        now.mean,
        max(now.std, least),
        now.count,
        before.mean,
        max(before.std, least),
        before.count,
        equal_var=False,
        alternative="less" if better > 0 else "greater",
    )
    return float(result.pvalue)
