"""Users who report one step, or one family of it: which one does not depend on them."""

import itertools

import numpy as np
import pytest
from mechanism_pieces import NOISY, alone, parameters, start, user

from jaxprivrl.numerics import random
from jaxprivrl.privatizers import PRIVATIZERS
from jaxprivrl.problem import Problem

STEPS = [p for p in NOISY if p.report.step and not p.report.family]
FAMILIES = [p for p in NOISY if p.report.family]


def touched(privatizer, problem, seed, k):
    """(family, step) pairs of the counters that the report of user k touches."""
    given = parameters(privatizer, problem, 1.0)
    state, _ = start(privatizer, problem.shape, given)
    counts = alone(privatizer, problem.shape)(given, (), random.key(seed), state, user(problem, k))[1].counts
    H = problem.horizon
    rows = [np.flatnonzero(np.any(np.asarray(x).reshape(H, -1) != 0, 1)) for x in counts]
    return [(f, int(h)) for f, row in enumerate(rows) for h in row]


@pytest.mark.parametrize("privatizer", STEPS, ids=lambda p: p.name)
def test_one_step_is_reported_and_it_does_not_depend_on_the_user(privatizer):
    problem, drawn = Problem(4, 2, 2, 130), []
    for seed in range(40):
        first, second = (touched(privatizer, problem, seed, k) for k in (0, 1))
        assert first == second
        assert [f for f, _ in first] == [0, 1, 2] and len({h for _, h in first}) == 1
        drawn.append(first[0][1])
    assert set(drawn) == {0, 1, 2, 3}


@pytest.mark.parametrize("privatizer", FAMILIES, ids=lambda p: p.name)
def test_one_family_of_one_step_is_reported(privatizer):
    problem, drawn = Problem(3, 2, 2, 130), []
    for seed in range(60):
        first, second = (touched(privatizer, problem, seed, k) for k in (0, 1))
        assert first == second and len(first) == 1
        drawn += first
    assert set(drawn) == set(itertools.product(range(3), range(3)))


def test_the_mechanisms_that_sample():
    assert PRIVATIZERS["local_sampled"] in STEPS
    assert PRIVATIZERS["local_sampled_family"] in FAMILIES
