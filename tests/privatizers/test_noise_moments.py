"""The noise of every mechanism is unbiased, as large as is accounted for and stated, and gone at scale 0."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from mechanism_pieces import (
    CASES,
    CHECKED,
    EPISODES,
    FULLY_TESTED,
    LIMIT,
    NOISY,
    PROBLEMS,
    SETTINGS,
    Case,
    alone,
    data,
    deviation,
    errors,
    exact_variance,
    held,
    leaves_of,
    predicted_std,
    released,
    run_alone,
    scale_of,
    start,
    times_of,
    user,
)

from jaxprivrl.numerics import random
from jaxprivrl.privacy import accounting
from jaxprivrl.privacy import errors as errors_lib
from jaxprivrl.privatizers import PRIVATIZERS, base
from jaxprivrl.problem import Problem
from jaxprivrl.schedules import schedule


@pytest.mark.parametrize(("case", "kind"), SETTINGS)
def test_noise_is_unbiased_and_its_std_is_the_prediction(case, kind):
    setting = case.privatizer, case.problem(kind), scale_of(case.privatizer)
    rows = np.array(CHECKED) - 1
    for error, variance in zip(errors(*setting), exact_variance(*setting), strict=True):
        assert deviation(error[rows], 0.0) < LIMIT
        assert deviation(error[rows] ** 2, variance[rows]) < LIMIT


@pytest.mark.parametrize("factor", [0.8, 1.25])
@pytest.mark.parametrize("privatizer", NOISY, ids=lambda p: p.name)
def test_control_noise_of_another_scale_is_caught(privatizer, factor):
    problem, scale = PROBLEMS["three_families"], scale_of(privatizer)
    variance = exact_variance(privatizer, problem, factor * scale).transitions[-1]
    assert deviation(errors(privatizer, problem, scale).transitions[-1] ** 2, variance) > LIMIT


@pytest.mark.parametrize("factor", [0.8, 1.25])
@pytest.mark.parametrize("case", [c for c in CASES if c.releases != "every"], ids=str)
def test_control_noise_of_another_scale_is_caught_in_epochs(case, factor):
    setting = case.privatizer, case.problem("pooled")
    variance = exact_variance(*setting, factor * scale_of(case.privatizer)).transitions[-1]
    assert deviation(errors(*setting, scale_of(case.privatizer)).transitions[-1] ** 2, variance) > LIMIT


@pytest.mark.parametrize(("case", "kind"), SETTINGS)
def test_released_std_is_that_of_accounting_and_covers_the_data(case, kind):
    setting = case.privatizer, case.problem(kind), scale_of(case.privatizer)
    mine, predicted = released(*setting).std, predicted_std(*setting)
    for own, table, variance in zip(mine, predicted, exact_variance(*setting), strict=True):
        np.testing.assert_allclose(own, table, rtol=1e-5)
        largest = np.sqrt(variance.reshape(EPISODES, -1).max(-1))
        assert np.all(own >= largest * (1 - 1e-5))


@pytest.mark.parametrize("kind", ["two_families", "pooled"])
@pytest.mark.parametrize("case", FULLY_TESTED, ids=str)
def test_a_lane_of_scan_and_vmap_last_is_the_run_alone(case, kind):
    setting, seed = (case.privatizer, case.problem(kind), scale_of(case.privatizer)), 3
    batch = released(*setting)
    for k, counts in enumerate(run_alone(*setting, seed, 20)):
        for mine, lane in zip(counts, batch.counts, strict=True):
            np.testing.assert_allclose(mine, lane[k, ..., seed], rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("time_varying", [False, True])
@pytest.mark.parametrize("case", FULLY_TESTED, ids=str)
def test_released_error_is_the_row_of_its_bucket(case, time_varying):
    K, privatizer = 100, case.privatizer
    problem = case.problem("two_families", num_episodes=K)
    calibrated = accounting.calibrate(privatizer, problem, 2.0, time_varying=time_varying)
    given = jax.tree.map(jnp.asarray, base.parameters(privatizer, problem, calibrated))
    strategy, numbers = privatizer.strategy, privatizer.strategy.data(privatizer.num_leaves(problem))
    users, releases, leaves = (np.append(0, x) for x in (*held(problem), leaves_of(privatizer, problem)))
    step, times = alone(privatizer, problem.shape), times_of(problem)
    empty, release = start(privatizer, problem.shape, given)
    for n in (0, 1, 2, 7, 64, 99, 100):
        if n:
            before = base.Clock(*(jnp.int32(x) for x in (n - 1, releases[n - 1], users[n - 1])))
            _, release = step(given, times, random.key(n), empty._replace(clock=before), user(problem))
        units = strategy.units(np, numbers, leaves[[n]])[0]
        row = errors_lib.bucket(np, units)
        for error, table in zip(release.error, calibrated.errors, strict=True):
            assert float(error) == table[row]


@pytest.mark.parametrize(("case", "kind"), SETTINGS)
def test_no_noise_releases_what_exact_releases(case, kind):
    problem = case.problem(kind)
    mine = released.__wrapped__(case.privatizer, problem, 0.0)  # not kept
    exact = released(PRIVATIZERS["exact"], PROBLEMS[kind], 0.0)
    users = held(problem)[0]
    for a, b in zip(mine.counts, exact.counts, strict=True):
        np.testing.assert_array_equal(a, np.concatenate([np.zeros_like(b[:1]), b])[users])
    np.testing.assert_array_equal(mine.num_episodes, users)
    for std in mine.std:
        np.testing.assert_array_equal(std, 0.0)


@pytest.mark.parametrize("case", FULLY_TESTED, ids=str)
def test_one_episode(case):
    privatizer, releases = case.privatizer, "every" if case.releases == "every" else "equal:1"
    problem = Problem(2, 2, 1, 1, schedule=schedule(releases))
    calibrated = accounting.calibrate(privatizer, problem, 1.0)
    given = jax.tree.map(jnp.asarray, base.parameters(privatizer, problem, calibrated))
    empty, first = start(privatizer, problem.shape, given)
    assert all(np.all(np.asarray(x) == 0) for x in jax.tree.leaves((first.counts, first.std)))
    _, release = alone(privatizer, problem.shape)(given, times_of(problem), random.key(0), empty, user(problem))
    assert all(np.all(np.isfinite(np.asarray(x))) for x in jax.tree.leaves(release))
    changed = [np.mean(np.asarray(x) != y[0]) for x, y in zip(release.counts, data(problem), strict=True)]
    assert max(changed) >= 0.5  # sampled mechanisms add noise to one of the two steps, or to one family of it
    assert int(release.num_episodes) == 1


def test_every_noisy_privatizer_of_the_registry_is_tested():
    assert {case.privatizer for case in CASES} | {PRIVATIZERS["exact"]} == set(PRIVATIZERS.values())
    assert Case(PRIVATIZERS["shuffle_bernoulli"], "equal:8") in CASES
    assert Case(PRIVATIZERS["central_blt"], "octaves") in CASES
