"""Quantiles of sums of noise: exact for Laplace draws, Chernoff bounds for the rest. Host side (NumPy, SciPy)."""

import functools
import math
from collections.abc import Callable

import numpy as np
from scipy import optimize, special


@functools.lru_cache(maxsize=65536)
def laplace_sum_quantile(num_terms: int, tail_prob: float) -> float:
    """Two-sided quantile of a sum X of m independent Lap(1): the x with P(|X| > x) = tail_prob, from the exact law.

    X is the difference of two Gamma(m) variables; the m-th arrival of a Poisson process passes x + Gamma(m) exactly if
      P(X > x) = P(Poisson(x) + NegBinomial(m, 1/2) <= m - 1) = sum_j Poisson(x; j) I_{1/2}(m, m - j),
    positive terms only. Terms outside a window that holds all but tail_prob * 1e-13 are added as their upper bound.

    Args:
      num_terms: m >= 0.
      tail_prob: in (0, 1).
    Returns:
      x, rounded up by 1e-9 of itself; 0 if m = 0.
    Reference: Chan, Shi and Song 2011 for the use; the law is that of a symmetric variance-gamma variable.
    """
    if num_terms == 0:
        return 0.0
    m = float(num_terms)
    log_half = math.log(tail_prob / 2)

    def log_tail(x: float) -> float:
        slack = 30.0 - log_half  # Bernstein: P(|Poisson(x) - x| >= width) <= 2 exp(-slack)
        width = slack / 3 + math.sqrt(slack * slack / 9 + 2 * slack * x)
        j = np.arange(max(0.0, math.floor(x - width)), min(m - 1, math.ceil(x + width)) + 1)
        log_poisson = special.xlogy(j, x) - x - special.gammaln(j + 1)
        total = np.sum(np.exp(log_poisson - log_half) * special.betainc(m, m - j, 0.5)) + 2e-13
        return math.log(total)

    upper = 2 * math.sqrt(-m * log_half) - log_half  # Bernstein's bound for sub-gamma variables, above the quantile
    root = optimize.brentq(log_tail, 0.0, upper * (1 + 1e-9) + 1e-9, xtol=1e-12, rtol=1e-11)
    return float(root) * (1 + 1e-9)


def chernoff_quantile(cgf: Callable[[float], float], variance: float, t_max: float, tail_prob: float) -> float:
    """Smallest Chernoff bound x = min_t (cgf(t) + ln(2 / tail_prob)) / t over 0 < t < t_max; any t gives a valid x."""
    if variance == 0:
        return 0.0
    log_inverse = math.log(2 / tail_prob)
    centre = min(math.sqrt(2 * log_inverse / variance), 0.5 * t_max)
    bounds = (math.log(centre) - 7, min(math.log(centre) + 7, math.log(t_max) - 1e-9))

    def bound(log_t: float) -> float:
        t = math.exp(log_t)
        return math.log(cgf(t) + log_inverse) - log_t

    best = optimize.minimize_scalar(bound, bounds=bounds, method="bounded", options={"xatol": 1e-6})
    return math.exp(min(float(best.fun), bound(math.log(centre))))
