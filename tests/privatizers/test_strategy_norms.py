"""Strategies as float32 has them: no user moves a release by more than the norm that it is accounted for."""

import jax
import numpy as np
import pytest
from mechanism_pieces import PLAIN, parameters

from jaxprivrl.privatizers import PRIVATIZERS, toeplitz
from jaxprivrl.problem import Problem
from jaxprivrl.schedules import schedule

WITH_DATA = [p for p in PLAIN if p.strategy.data(10) != ()]


def coefficients(scale, one_minus_decay, releases):
    scale, rate = np.float64(scale), np.log1p(-np.float64(one_minus_decay))
    return np.append(1.0, np.exp(np.outer(np.arange(releases - 1), rate)) @ scale)


def strategy_of(rates, weights, releases):
    """First column of C = B^-1 A for b_t = sum_i weights_i (1 - rates_i)^t, f64: what solves B c = (1, 1, ...)."""
    rates, weights = np.float64(rates), np.float64(weights)
    past, c = np.zeros(len(rates)), np.zeros(releases)
    for t in range(releases):
        past *= 1 - rates
        c[t] = (1 - weights @ past) / weights.sum()
        past += c[t]
    return c


@pytest.mark.parametrize("releases", ["every", "octaves"])
@pytest.mark.parametrize("num_episodes", [10, 1000, 20_000, 100_000])
@pytest.mark.parametrize("privatizer", WITH_DATA, ids=lambda p: p.name)
def test_float32_strategies_that_come_as_data_do_not_exceed_the_accounted_norm(privatizer, num_episodes, releases):
    problem = Problem(1, 1, 1, num_episodes, schedule=schedule(releases))
    data, n = parameters(privatizer, problem, 1.0).data, privatizer.num_leaves(problem)
    assert all(x.dtype == np.float32 for x in jax.tree.leaves(data))
    ratio = np.linalg.norm(strategy_of(*data, n)) / privatizer.strategy.norms(n).l2
    assert 1 - 2e-6 < ratio <= 1


@pytest.mark.parametrize("num_episodes", [10, 1000, 20_000, 100_000])
def test_float32_square_root_does_not_exceed_the_accounted_norm(num_episodes):
    buffers = toeplitz.square_root_buffers(2**24 - 1)
    exponentials = toeplitz.noise_exponentials(*(x.astype(np.float64) for x in buffers))
    c = strategy_of(*exponentials, num_episodes)
    np.testing.assert_allclose((1 + 1e-6) * c, coefficients(*buffers, num_episodes), rtol=1e-9, atol=1e-12)
    ratio = np.linalg.norm(c) / PRIVATIZERS["central_toeplitz"].strategy.norms(num_episodes).l2
    assert 1 - 2e-6 < ratio <= 1


@pytest.mark.parametrize("max_releases", [255, 65_535])
def test_square_root_coefficients_are_met_from_below(max_releases):
    c = coefficients(*toeplitz.square_root_buffers(max_releases), max_releases)
    k = np.arange(1, max_releases)
    ratio = c / np.append(1.0, np.cumprod((2 * k - 1) / (2 * k)))
    assert np.all(ratio <= 1) and np.all(ratio > 1 - 2e-6)


def test_blt_is_the_strategy_that_comes_as_data():
    assert PRIVATIZERS["central_blt"] in WITH_DATA
