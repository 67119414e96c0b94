"""Which parameters a log can tell: from the information matrix, before anything is solved and again at the solution.

Residuals r are divided by the standard deviation of their noise, and parameters by their scale, so that 1 is a change
that matters: the whole of what the robot's file says, 0.05 rad of an encoder bias, a control period of a delay. The
information matrix of the Jacobian J is F = J'J (Gauss-Newton, unit variances); the covariance of the estimates is
(F + I / PRIOR^2)^-1, where the weak prior bounds what a log cannot tell at all. A parameter is told if the half width
of its 95 % interval, Z times its standard deviation, is at most WIDEST of its scale. Otherwise

- it has no effect, if that holds even with all other parameters known: Z / sqrt(F_jj) is larger too;
- it cannot be told apart from others, if only their being unknown makes it so: those that must change by a tenth of
  their scale or more when it changes by its whole scale.

The widest is taken to be what the robot's file says, to within a prior of its own, and the rest looked at again, one at
a time. It stays in the solution with that prior: what is not known of it widens the intervals of the others, where to
hold it at a nominal value would make them wrong and narrow.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np

Z = 1.959964
"""Half width of a 95 % interval in standard deviations of a normal distribution."""
WIDEST = 0.5
"""Widest half width of a 95 % interval that is an answer, in scales, at the solution of the larger of scale and value.
Before the solution, where the values are not yet known, twice that."""
PRIOR = 10.0
"""Standard deviation of the weak prior, in scales."""
APART = 0.1
"""Smallest change of another parameter that counts as being confused with it."""


@dataclass(frozen=True)
class Untold:
    """A parameter that a log cannot tell."""

    index: int
    width: float
    """Expected half width of its 95 % interval, in scales."""
    partners: tuple[int, ...]
    """The parameters that it cannot be told apart from; empty: it has no effect."""


def untold(
    jacobian: np.ndarray,
    ranks: Sequence[int],
    priors: Sequence[float],
    widest: float = WIDEST,
    before: Collection[int] = (),
) -> list[Untold]:
    """The parameters that a log cannot tell, in the order in which they are found.

    Args:
        jacobian: (n, P) of the weighted residuals, parameters in scales.
        ranks: for each parameter a number; of two as wide as each other, the one with the larger number is not told.
        priors: for each parameter the standard deviation, in scales, that is assumed of it then.
        widest: largest half width, in scales.
        before: indices of those already found, which have their priors from the beginning.
    """
    information = jacobian.T @ jacobian
    known = np.full(len(information), 1 / PRIOR**2)
    known[list(before)] = 1 / np.square([priors[k] for k in before])
    left = [k for k in range(len(information)) if k not in before]
    found: list[Untold] = []
    while left:
        covariance = np.linalg.inv(information + np.diag(known))
        widths = Z * np.sqrt(np.diag(covariance))
        if widths[left].max() <= widest:
            break
        k = first(left, widths, ranks, widest)
        alone = Z / np.sqrt(information[k, k] + known[k])
        found.append(Untold(k, float(widths[k]), partners(covariance, k) if alone <= widest else ()))
        known[k] = 1 / priors[k] ** 2
        left.remove(k)
    return found


def first(left: Sequence[int], widths: np.ndarray, ranks: Sequence[int], widest: float) -> int:
    """Of the parameters `left`, the one that is not told first: of those about as wide as the widest, by its rank."""
    wide = [k for k in left if widths[k] > max(widest, 0.5 * widths[left].max())]
    return max(wide, key=lambda one: (ranks[one], widths[one]))


def partners(covariance: np.ndarray, k: int) -> tuple[int, ...]:
    """The parameters that must change when parameter k does, by a covariance (P, P), those that change most first."""
    slopes = np.abs(covariance[:, k] / covariance[k, k])
    return tuple(int(n) for n in np.argsort(-slopes) if n != k and slopes[n] >= APART)


def widened(jacobian: np.ndarray, residuals: np.ndarray, group: np.ndarray, lags: int) -> np.ndarray:
    """(P,) factors, 1 or more, on the standard deviations of estimates whose residuals are correlated in time or of
    unequal variance.

    The covariance is H^-1 S H^-1 with H = J'J and S the long-run covariance of the scores J'r, a sum over lags with
    Bartlett's weights (Newey and West, 1987); the factor compares it with s^2 H^-1, which holds for white residuals of
    one variance. Where it is smaller, 1 holds: S itself is an estimate.

    Args:
        jacobian: (n, P), weighted.
        residuals: (n,), weighted.
        group: (n,) number of the time stamp of each residual; those of a stamp may be correlated.
        lags: number of stamps over which residuals may be correlated.
    """
    count, size = jacobian.shape
    scores = np.zeros((int(group.max()) + 1, size))
    np.add.at(scores, group, jacobian * residuals[:, None])
    total = scores.T @ scores
    for lag in range(1, min(lags, len(scores) - 1) + 1):
        product = scores[lag:].T @ scores[:-lag]
        total += (1 - lag / (lags + 1)) * (product + product.T)
    inverse = np.linalg.pinv(jacobian.T @ jacobian)
    white = np.diag(inverse) * (residuals @ residuals) / max(1, count - size)
    robust = np.diag(inverse @ total @ inverse)
    return np.sqrt(np.maximum(1.0, np.maximum(robust, 0.0) / np.maximum(white, 1e-300)))
