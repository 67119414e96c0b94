"""Means with intervals and tests for differences, of a few seeds."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from robolearn.errors import MissingError

LEAST = 3
"""Least number of seeds in each group for a test: with two, a group's spread is hardly known."""

ALPHA = 0.05
"""Rate of false alarms of all tests of a table together. Welch's test is approximate: docs/report.md has the measured
rates."""

LEVEL = 0.95
"""Level of the intervals."""


@dataclass(frozen=True)
class Mean:
    """The mean of some seeds."""

    mean: float
    low: float
    high: float
    """Student's interval of the mean; nan with one seed."""
    count: int


@dataclass(frozen=True)
class Difference:
    """The difference between the means of two groups."""

    difference: float
    low: float
    high: float
    """Welch's interval."""
    p: float
    """Probability of a difference at least that large where the means are equal; nan where neither group varies."""


def _distributions():  # type: ignore[no-untyped-def]  # scipy has no types
    try:
        from scipy import stats
    except ImportError as error:
        raise MissingError(f"a comparison needs scipy ({error}): pip install 'robolearn[report]'") from error
    return stats


def mean_of(values: Sequence[float]) -> Mean:
    """Mean and Student's 95 % interval, mean ± t s / sqrt(n), of at least one value."""
    n = len(values)
    mean = float(np.mean(values))
    if n < 2:
        return Mean(mean, math.nan, math.nan, n)
    half = (
        float(_distributions().t.ppf((1 + LEVEL) / 2, n - 1)) * float(np.std(values, ddof=1)) / math.sqrt(n)
    )
    return Mean(mean, mean - half, mean + half, n)


def welch(first: Sequence[float], second: Sequence[float]) -> Difference:
    """The mean of `second` less that of `first`, by Welch's t-test, which lets the groups vary differently.

    Source: B. L. Welch, The generalization of "Student's" problem when several different population variances are
    involved, Biometrika 34 (1947).
    """
    difference = float(np.mean(second) - np.mean(first))
    parts = [float(np.var(values, ddof=1)) / len(values) for values in (first, second)]
    if sum(parts) == 0:
        return Difference(difference, difference, difference, math.nan)
    error = math.sqrt(sum(parts))
    freedom = sum(parts) ** 2 / sum(
        part**2 / (len(values) - 1) for part, values in zip(parts, (first, second), strict=True)
    )
    t = _distributions().t
    half = float(t.ppf((1 + LEVEL) / 2, freedom)) * error
    return Difference(
        difference, difference - half, difference + half, float(2 * t.sf(abs(difference) / error, freedom))
    )


def holm(values: Sequence[float]) -> list[float]:
    """p values corrected for their number: the rate of any false alarm stays that of one test.

    Source: S. Holm, A simple sequentially rejective multiple test procedure, Scandinavian Journal of Statistics 6
    (1979). A nan is no test, and stays.
    """
    order = sorted((i for i, p in enumerate(values) if not math.isnan(p)), key=lambda i: values[i])
    out, largest = list(values), 0.0
    for rank, i in enumerate(order):
        largest = max(largest, min(1.0, (len(order) - rank) * values[i]))
        out[i] = largest
    return out
