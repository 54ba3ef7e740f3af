"""Errors and standard deviations: exact laws against closed forms, brute force and simulation."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from problems import ON_SCHEDULES, PRIVATE, RIVER, by_name, on
from scipy import stats

from jaxprivrl import _validate
from jaxprivrl.privacy.errors import PER_OCTAVE, ROWS, bucket, bucket_units, error_table, standard_deviation
from jaxprivrl.privacy.quantiles import laplace_sum_quantile
from jaxprivrl.privatizers import PRIVATIZERS
from jaxprivrl.problem import Problem

TAIL = 0.1 / (3 * 6 * 2 * 20_000 * 20)  # failure_prob / (3 S A T)
CENTRAL, BITS, BLT = (PRIVATIZERS[name] for name in ("central_laplace", "local_bernoulli", "central_blt"))

# Buckets and worst cases


def test_worst_case_of_the_paper_uses_14_terms():
    table = error_table(CENTRAL, RIVER, 1.0, 0.1)
    assert table.visits.shape == (ROWS,) and table.visits.dtype == np.float32
    assert np.all(table.visits == table.visits[0])
    assert table.visits[0] == pytest.approx(36.9, abs=0.06)
    assert table.transitions[3] == pytest.approx(laplace_sum_quantile(14, TAIL / 6), rel=1e-6)


def test_buckets_are_eighths_of_an_octave():
    units = np.array([0, 0.5, 1, 2, 3, 8, 1024])
    assert bucket(np, units).tolist() == [0, 1, 9, 17, 21, 33, 89] and PER_OCTAVE == 8
    assert bucket(np, np.array([1e-3, 0.4])).tolist() == [1, 1]
    assert bucket(np, np.array(2.0**31)) == ROWS - 1 == bucket(np, np.array(2.0**31 + 1e12))  # as many draws as i32 has
    assert np.all(np.diff(bucket(np, np.linspace(0, 1e4, 99_999))) >= 0)


@pytest.mark.parametrize("summed", [True, False])
def test_the_units_of_a_bucket_are_the_largest_that_fall_in_it(summed):
    worst = 20_000.0
    units = np.arange(20_001.0) if summed else np.append(0, np.geomspace(0.5, worst, 20_001))
    edges = bucket_units(worst, summed)
    rows = bucket(np, units)
    assert np.all(edges[rows] >= units) and np.all(np.diff(edges) >= 0) and edges[-1] == worst
    slack = 2 ** (1 / PER_OCTAVE) * (1 + 1e-4)
    assert np.all(edges[rows] <= units * slack) and (not summed or np.all(edges == np.round(edges)))


@pytest.mark.parametrize("privatizer, releases", ON_SCHEDULES)
def test_time_varying_table_covers_every_release(privatizer, releases):
    """By the row that a release on the device reads, and with the std that it states."""
    problem = on(Problem(horizon=3, num_states=2, num_actions=2, num_episodes=5_000), releases)
    strategy, leaves = privatizer.strategy, privatizer.num_leaves(problem)
    data = strategy.data(leaves)
    table = error_table(privatizer, problem, 2.0, 0.1, time_varying=True)
    ks = np.array([k for k in [*range(12), 15, 16, 17, 255, 256, 1000, 2048, 4095, 4999] if k < leaves])
    units = strategy.units(np, data, ks)
    numbers = jax.tree.map(lambda x: jnp.asarray(x, jnp.float32), data)

    @jax.jit
    @jax.vmap
    def on_device(k):
        found = strategy.units(jnp, numbers, k)
        return bucket(jnp, found), privatizer.law.variance(jnp, privatizer.report, problem.shape, jnp.float32(2), found)

    rows, variances = on_device(jnp.asarray(ks, jnp.int32))
    assert np.max(np.abs(rows - bucket(np, units))) <= 1  # a float32 logarithm may land one bucket away
    for k, i, unit in zip(ks, rows, units, strict=True):
        exact = privatizer.error(problem, 2.0, float(unit), "costs", 0.1 / (3 * 4 * 15_000))
        assert table.costs[i] >= exact * (1 - 1e-7)
        assert table.costs[i] <= exact * (1.13 if k < 20 else 1.06)
    for std, variance in zip(standard_deviation(privatizer, problem, 2.0, ks), variances, strict=True):
        np.testing.assert_allclose(np.sqrt(variance), std, rtol=2e-5)
    assert table.costs[0] == 0 and np.all(np.diff(table.costs) >= 0)


@pytest.mark.parametrize("privatizer, releases", ON_SCHEDULES)
def test_the_worst_case_is_that_of_a_release_that_a_learner_uses(privatizer, releases):
    """Of fewer than K leaves in a tree, whose last release comes after the last user has played."""
    problem = on(Problem(horizon=2, num_states=2, num_actions=2, num_episodes=700), releases)
    leaves = privatizer.num_leaves(problem)
    units = privatizer.strategy.units(np, privatizer.strategy.data(leaves), np.arange(leaves + 1))
    worst = privatizer.strategy.worst_units(leaves)
    assert units[:-1].max() <= worst * (1 + 1e-9) and worst <= units.max() * (1 + 1e-9)
    constant, varying = (error_table(privatizer, problem, 2.0, 0.1, time_varying=v) for v in (False, True))
    for one, many in zip(constant, varying, strict=True):
        assert np.all(one == one[0]) and np.all(many <= one)
        assert many[-1] == one[0]


@pytest.mark.parametrize("privatizer, releases", ON_SCHEDULES)
@pytest.mark.parametrize("time_varying", [False, True])
@pytest.mark.parametrize("sizes", [(1, 1, 1, 1), (20, 6, 2, 10**7)])
def test_tables_are_finite_at_extreme_scales(privatizer, releases, time_varying, sizes):
    for noise_scale in (1e-8, 1.0, 1e10):
        for homogeneous in (False, True):
            problem = on(Problem(*sizes, homogeneous=homogeneous, families=2), releases)
            for row in error_table(privatizer, problem, noise_scale, 0.1, time_varying=time_varying):
                assert np.all(np.isfinite(row)) and np.all(row >= 0)


@pytest.mark.parametrize("privatizer", by_name(PRIVATIZERS.values()))
def test_no_noise_means_no_error(privatizer):
    """At scale 0 also those that round or sample release the counts."""
    assert not any(np.any(row) for row in error_table(privatizer, RIVER, 0.0, 0.1))
    ks = np.array([0, 1, 777, 20_000])
    assert not any(np.any(row) for row in standard_deviation(privatizer, RIVER, 0.0, ks))


def test_derived_visits_carry_the_noise_of_all_next_states():
    table = error_table(CENTRAL, RIVER.replace(families=2), 1.0, 0.1)
    assert table.visits[0] == pytest.approx(laplace_sum_quantile(14 * 6, TAIL), rel=1e-6)
    three = standard_deviation(BLT, RIVER, 1.0, np.array([777]))
    two = standard_deviation(BLT, RIVER.replace(families=2), 1.0, np.array([777]))
    assert two.visits[0] == pytest.approx(math.sqrt(6) * three.visits[0], rel=1e-6)
    assert two.transitions[0] == three.transitions[0]


def test_best_counts_of_the_two_stage_axes():
    from jaxprivrl.privacy.accounting import noise_scale

    for homogeneous, expected in ((False, 141), (True, 631)):
        problem = RIVER.replace(families=2, homogeneous=homogeneous)
        scale = noise_scale(BLT, problem, 1.0, dp_delta=1e-5)
        std = standard_deviation(BLT, problem, scale, np.array([20_000])).costs[0]
        assert std == pytest.approx(expected, abs=1)


# The paper's constants


def test_printed_errors_are_those_of_the_paper():
    central = error_table(CENTRAL, RIVER, 60 * math.log(20_000), 0.1, calibration="printed")
    assert central.visits[0] == pytest.approx(23_343, abs=1) and central.transitions[5] == pytest.approx(24_393, abs=1)
    assert central.costs[0] == central.visits[0]
    local = error_table(PRIVATIZERS["local_laplace"], RIVER, 60.0, 0.1, calibration="printed")
    assert local.visits[0] == pytest.approx(105_923, abs=1)


def test_published_code_uses_the_exact_law():
    code = error_table(CENTRAL, RIVER, 1.0, 0.1, calibration="published_code")
    np.testing.assert_array_equal(code.visits, error_table(CENTRAL, RIVER, 1.0, 0.1).visits)


@pytest.mark.parametrize(
    "kwargs, match",
    [
        ({"privatizer": BLT, "calibration": "printed"}, "'printed' is not defined for central_blt"),
        ({"calibration": "exact"}, "Unknown calibration 'exact'.* Available: printed, published_code, tight"),
        ({"calibration": "printed", "problem": RIVER.replace(num_episodes=1)}, "no noise at num_episodes=1"),
        ({"calibration": "published_code", "problem": RIVER.replace(families=2)}, "families=3, got 2"),
        ({"calibration": "printed", "time_varying": True}, "no time-varying error"),
        ({"failure_prob": 1.0}, "Expected 0 < failure_prob=1.0 < 1"),
        ({"noise_scale": -1.0}, "Expected noise_scale=-1.0 to be finite and >= 0"),
    ],
)
def test_bad_input_is_refused(kwargs, match):
    arguments = {"privatizer": CENTRAL, "problem": RIVER, "noise_scale": 1.0, "failure_prob": 0.1} | kwargs
    with pytest.raises(ValueError, match=match):
        error_table(**arguments)


@pytest.mark.parametrize(
    "make, match",
    [
        (
            lambda: _validate.one_of("privatizer", "central_laplac", PRIVATIZERS),
            "Unknown privatizer 'central_laplac'. Did you mean 'central_laplace'?",
        ),
        (lambda: RIVER.replace(horizon=0), "Expected horizon=0 >= 1"),
        (lambda: RIVER.replace(families=1), r"Expected families=1 to be 3 \(the paper\) or 2"),
    ],
)
def test_bad_names_and_problems_are_refused_before_anything_is_computed(make, match):
    with pytest.raises(ValueError, match=match):
        make()


# Bits and sampled steps


def _bernoulli_noise(rng, bits, flip, users, runs):
    """Sum over users of debiased minus true bit, for `runs` runs; `bits` is the probability of a one."""
    ones = rng.binomial(users, bits, runs)
    kept = rng.binomial(ones, 1 - flip) + rng.binomial(users - ones, flip)
    return (kept - users * flip) / (1 - 2 * flip) - users * bits


@pytest.mark.parametrize("epsilon_of_a_bit", [0.01, 0.5, 3.0, 12.0])
def test_bernoulli_std_and_error(epsilon_of_a_bit):
    problem = Problem(horizon=2, num_states=2, num_actions=2, num_episodes=400)
    flip, users = 1 / (1 + math.exp(epsilon_of_a_bit)), 400
    std = standard_deviation(BITS, problem, 1 / epsilon_of_a_bit, np.array([users]))
    assert std.visits[0] ** 2 == pytest.approx(users * flip * (1 - flip) / (1 - 2 * flip) ** 2, rel=1e-5)
    rng, runs = np.random.default_rng(1), 200_000
    for zeros_only in (0.0, 1.0):
        noise = _bernoulli_noise(rng, zeros_only, flip, users, runs)
        assert noise.var() == pytest.approx(std.visits[0] ** 2, rel=0.05 if epsilon_of_a_bit < 10 else 0.2)
        for tail_prob in (1e-2, 1e-3):
            error = BITS.error(problem, 1 / epsilon_of_a_bit, users, "visits", tail_prob)
            assert np.mean(np.abs(noise) > error) <= tail_prob
    noise = _bernoulli_noise(rng, 0.5, flip, users, runs)  # a cost of 1/2, rounded first
    assert noise.var() <= std.costs[0] ** 2 * 1.02
    error = BITS.error(problem, 1 / epsilon_of_a_bit, users, "costs", 1e-3)
    assert np.mean(np.abs(noise) > error) <= 1e-3


def test_pooled_bits_are_summed_over_steps():
    pooled = error_table(BITS, RIVER.replace(homogeneous=True), 120.0, 0.1)
    wide = BITS.error(RIVER, 120.0, 20 * 20_000.0, "visits", TAIL)
    assert pooled.visits[0] == pytest.approx(wide, rel=1e-6)
    std = standard_deviation(BITS, RIVER.replace(homogeneous=True), 120.0, np.array([9]))
    one = standard_deviation(BITS, RIVER, 120.0, np.array([180]))
    np.testing.assert_allclose(std, one, rtol=1e-6)


@pytest.mark.parametrize("scale", [0.05, 1.0, 120.0])
def test_bernoulli_error_is_the_best_chernoff_bound(scale):
    n, flip, tail_prob = 2_000, 1 / (1 + math.exp(1 / scale)), 1e-6
    error = BITS.error(Problem(1, 1, 1, n), scale, n, "visits", tail_prob)
    rate = flip + error * (1 - 2 * flip) / n
    divergence = rate * math.log(rate / flip) + (1 - rate) * math.log((1 - rate) / (1 - flip))
    assert n * divergence == pytest.approx(math.log(2 / tail_prob), rel=1e-4)
    assert stats.binom.sf(math.floor(n * rate), n, flip) < tail_prob / 2


@pytest.mark.parametrize("privatizer", by_name(p for p in PRIVATE if p.report.step))
@pytest.mark.parametrize("homogeneous", [False, True])
@pytest.mark.parametrize("families", [3, 2])
@pytest.mark.parametrize("scale", [1e-9, 0.1, 6.0])
def test_sampled_std_and_error(privatizer, homogeneous, families, scale):
    H, users, runs = 4, 60, 100_000
    problem = Problem(H, 3, 2, users, homogeneous, families)
    parts = families if privatizer.report.family else 1
    W = H * parts
    std = standard_deviation(privatizer, problem, scale, np.array([users]))
    rng = np.random.default_rng(7)
    for family, terms in (("visits", 3 if families == 2 else 1), ("transitions", 1)):
        laplace = scale * (rng.standard_gamma(terms, (runs, users)) - rng.standard_gamma(terms, (runs, users)))
        if homogeneous:  # as many steps in this cell as make the variance largest
            steps = 2 if parts == 1 else H
            held = rng.integers(0, parts, (runs, users)) == 0
            noise = (W * held * ((rng.integers(0, H, (runs, users)) < steps) + laplace) - steps).sum(axis=1)
        else:  # every user visits the cell
            noise = (W * (rng.integers(0, W, (runs, users)) == 0) * (1 + laplace) - 1).sum(axis=1)
        bound = getattr(std, family)[0] ** 2
        assert noise.var() == pytest.approx(bound, rel=0.03)
        for tail_prob in (1e-2, 1e-3):
            error = privatizer.error(problem, scale, users, family, tail_prob)
            assert np.mean(np.abs(noise) > error) <= tail_prob
            assert error < 7 * math.sqrt(bound)


@pytest.mark.parametrize("privatizer", by_name(p for p in PRIVATE if p.plain and p.strategy.summed))
def test_std_of_additive_noise(privatizer):
    ks = np.array([0, 1, 6, 7, 8, 19_999])
    terms = np.array([k if privatizer.trust == "LDP" else int(k).bit_count() for k in ks])
    expected = 3.0 * np.sqrt(terms * (2 if "laplace" in privatizer.name else 1))
    np.testing.assert_allclose(standard_deviation(privatizer, RIVER, 3.0, ks).costs, expected, rtol=1e-6)


def test_std_of_centred_costs_counts_half_the_visits():
    for families, spread in ((3, 1), (2, 6)):
        std = standard_deviation(CENTRAL, RIVER.replace(centred_costs=True, families=families), 3.0, np.array([7]))
        assert std.costs[0] == pytest.approx(math.sqrt(54 + 54 * spread / 4), rel=1e-6)
        assert std.transitions[0] == pytest.approx(math.sqrt(54), rel=1e-6)


def test_union_of_all_counts_covers():
    """The true counts lie within the errors in all episodes of at least 1 - failure_prob of the runs."""
    problem = Problem(horizon=1, num_states=1, num_actions=2, num_episodes=16)
    table = error_table(CENTRAL, problem, 1.0, 0.5, time_varying=True)
    rng, runs, failed = np.random.default_rng(3), 4_000, 0
    for _ in range(runs):
        nodes = rng.laplace(size=(3, 2, 5, 17))  # family, count, level, episode at which the node is complete
        bad = False
        for k in range(1, 16):
            ends = [(k >> j << j, j) for j in range(5) if k >> j & 1]
            noise = sum(nodes[:, :, j, end] for end, j in ends)
            limits = [row[_ROWS[len(ends)]] for row in table]
            bad |= bool(np.any(np.abs(noise) > np.array(limits)[:, None]))
        failed += bad
    assert 0.02 < failed / runs < 0.5


_ROWS = bucket(np, np.arange(5.0))
