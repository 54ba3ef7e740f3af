"""Quantiles of sums of noise against closed forms, simulation and a saddlepoint."""

import math

import numpy as np
import pytest
from scipy import stats

from jaxprivrl.privacy.quantiles import chernoff_quantile, laplace_sum_quantile

TAIL = 0.1 / (3 * 6 * 2 * 20_000 * 20)  # failure_prob / (3 S A T)


@pytest.mark.parametrize("tail_prob", [0.5, 1e-3, TAIL, 1e-25])
def test_one_and_two_terms_have_closed_forms(tail_prob):
    assert laplace_sum_quantile(1, tail_prob) == pytest.approx(-math.log(tail_prob), rel=1e-8)
    assert laplace_sum_quantile(1, tail_prob) == pytest.approx(-stats.laplace.ppf(tail_prob / 2), rel=1e-8)
    x = laplace_sum_quantile(2, tail_prob)
    assert math.exp(-x) * (2 + x) / 2 == pytest.approx(tail_prob, rel=1e-6)  # P(|X| > x)


@pytest.mark.parametrize("num_terms, expected", [(10, 32.7), (14, 36.9), (15, 37.8)])
def test_known_two_sided_quantiles(num_terms, expected):
    assert laplace_sum_quantile(num_terms, TAIL) == pytest.approx(expected, abs=0.06)
    assert laplace_sum_quantile(num_terms, 2 * TAIL) < expected - 0.8  # the one-sided ones are smaller


@pytest.mark.parametrize("num_terms", [3, 14])
def test_quantile_against_simulation(num_terms):
    n, tail_prob = 400_000, 0.01
    draws = np.random.default_rng(num_terms).laplace(size=(n, num_terms)).sum(axis=1)
    exceed = np.mean(np.abs(draws) > laplace_sum_quantile(num_terms, tail_prob))
    assert abs(exceed - tail_prob) < 5 * math.sqrt(tail_prob / n)  # 5 sigma: false alarm 6e-7


def _saddlepoint_tail(num_terms, x):
    """Lugannani-Rice approximation of P(X > x), relative error of order 1 / m."""
    t = (math.hypot(num_terms, x) - num_terms) / x
    cumulant = -num_terms * math.log1p(-t * t)
    w = math.sqrt(2 * (t * x - cumulant))
    u = t * math.sqrt(2 * num_terms * (1 + t * t)) / (1 - t * t)
    return stats.norm.sf(w) + stats.norm.pdf(w) * (1 / u - 1 / w)


@pytest.mark.parametrize("num_terms", [1_000, 20_000, 10**6, 10**7, 6 * 10**7])
@pytest.mark.parametrize("tail_prob", [1e-3, TAIL, 1e-20])
def test_many_terms_agree_with_saddlepoint_and_stay_below_chernoff(num_terms, tail_prob):
    x = laplace_sum_quantile(num_terms, tail_prob)
    assert _saddlepoint_tail(num_terms, x) == pytest.approx(tail_prob / 2, rel=2e-4)
    log_inverse = math.log(2 / tail_prob)
    assert x < 2 * math.sqrt(num_terms * log_inverse) + log_inverse
    t = (math.hypot(num_terms, x) - num_terms) / x
    assert t * x + num_terms * math.log1p(-t * t) < log_inverse  # Chernoff exponent of a smaller x


def test_quantile_grows_with_terms():
    values = [laplace_sum_quantile(m, TAIL) for m in (0, 1, 2, 3, 50, 51, 4_000, 4_001, 10**6, 10**6 + 1)]
    assert values[0] == 0 and np.all(np.diff(values) > 0)


@pytest.mark.parametrize("num_terms", [1, 14, 20_000])
def test_a_chernoff_bound_lies_above_the_exact_quantile_and_is_optimal(num_terms):
    def log_mgf(t):
        return -num_terms * math.log1p(-t * t)

    x = chernoff_quantile(log_mgf, 2.0 * num_terms, 1.0, TAIL)
    assert laplace_sum_quantile(num_terms, TAIL) < x
    exponents = [t * x - log_mgf(t) for t in np.linspace(1e-5, 1 - 1e-5, 100_001)]
    assert max(exponents) == pytest.approx(math.log(2 / TAIL), rel=1e-5)


def test_a_chernoff_bound_of_a_normal_is_the_textbook_one():
    for variance in (1e-6, 1.0, 1e12):
        x = chernoff_quantile(lambda t, v=variance: v * t * t / 2, variance, math.inf, TAIL)
        assert x == pytest.approx(math.sqrt(2 * variance * math.log(2 / TAIL)), rel=1e-9)
    assert chernoff_quantile(lambda t: 0.0, 0.0, math.inf, TAIL) == 0
