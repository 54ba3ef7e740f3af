"""Centred costs: unbiased, with their own noise and half that of the visits, where noise is added to counts."""

import math

import numpy as np
import pytest
from mechanism_pieces import (
    CHECKED,
    EPISODES,
    FULLY_TESTED,
    LIMIT,
    PROBLEMS,
    REPORTS,
    SEEDS,
    deviation,
    errors,
    exact_variance,
    released,
    scale_of,
)

from jaxprivrl.privacy import accounting
from jaxprivrl.privacy import errors as errors_lib
from jaxprivrl.privatizers import PRIVATIZERS

# In epochs too where noise comes in blocks, of all kinds of counts where they come with data of their own.
SETTINGS = [
    pytest.param(case, kind, id=f"{case}-{kind}")
    for case in FULLY_TESTED
    for kind in PROBLEMS
    if case.privatizer.plain
    and (case.releases == "every" or kind == "pooled" or case.privatizer.strategy.data(EPISODES) != ())
]


@pytest.mark.parametrize(("case", "kind"), SETTINGS)
def test_centred_costs_are_unbiased_and_carry_half_the_noise_of_visits(case, kind):
    scale, rows = scale_of(case.privatizer), np.array(CHECKED) - 1
    setting = case.privatizer, case.problem(kind, centred_costs=True), scale
    error, variance = errors(*setting), exact_variance(*setting)
    for e, v in zip(error, variance, strict=True):
        assert deviation(e[rows], 0.0) < LIMIT
        assert deviation(e[rows] ** 2, v[rows]) < LIMIT
    own = error.costs - error.visits / 2  # the noise of the centred costs themselves
    assert deviation(own[rows] ** 2, exact_variance(case.privatizer, case.problem(kind), scale).costs[rows]) < LIMIT
    assert deviation((own * error.visits)[rows], 0.0) < LIMIT
    for mine, table in zip(released(*setting).std, variance, strict=True):
        np.testing.assert_allclose(mine, np.sqrt(table.reshape(EPISODES, -1)[:, 0]), rtol=1e-5)


@pytest.mark.parametrize("name", ["central_laplace", "central_blt"])
def test_errors_of_centred_costs_cover(name):
    """At the tail probability of one count; the sum of two Laplace errors is a bound, the Gaussian one exact."""
    privatizer, problem = PRIVATIZERS[name], PROBLEMS["two_families"].replace(centred_costs=True)
    scale, tail_prob, k = 2.0, 0.02, 7
    strategy = privatizer.strategy
    units = float(strategy.units(np, strategy.data(EPISODES), np.array([k]))[0])
    std = errors_lib.standard_deviation(privatizer, problem, 1.0, np.array([k])).transitions[0]
    assert units * privatizer.law.unit_variance == pytest.approx(float(std) ** 2, rel=1e-6)
    bound = privatizer.error(problem, scale, units, "costs", tail_prob)
    missed = np.mean(np.abs(errors(privatizer, problem, scale).costs[k - 1]) > bound)
    assert missed <= tail_prob + LIMIT * math.sqrt(tail_prob / (SEEDS * 8))
    if name == "central_blt":
        assert missed >= tail_prob - LIMIT * math.sqrt(tail_prob / (SEEDS * 8))


@pytest.mark.parametrize("privatizer", REPORTS, ids=lambda p: p.name)
def test_reports_have_no_centred_costs(privatizer):
    with pytest.raises(ValueError, match="has no centred_costs"):
        accounting.calibrate(privatizer, PROBLEMS["pooled"].replace(centred_costs=True), 1.0)
