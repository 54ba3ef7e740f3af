"""Errors and standard deviations: exact laws against closed forms, brute force and simulation."""

import ast
import math
import pathlib

import numpy as np
import pytest
from scipy import stats

from jaxprivrl import precision as tables
from jaxprivrl import strategies
from jaxprivrl.precision import Problem, precision
from jaxprivrl.strategies import MECHANISMS

RIVER = Problem(horizon=20, num_states=6, num_actions=2, num_episodes=20_000)
TAIL = 0.1 / (3 * 6 * 2 * 20_000 * 20)  # failure_prob / (3 S A T)
NOISY = [name for name, mech in MECHANISMS.items() if mech.noise != "none"]


@pytest.mark.parametrize("module", ["precision", "accounting", "strategies", "sensitivity"])
def test_modules_do_not_import_jax(module):
    source = pathlib.Path(tables.__file__).with_name(f"{module}.py").read_text()
    top = [node for node in ast.parse(source).body if isinstance(node, ast.Import | ast.ImportFrom)]
    names = [alias.name for node in top for alias in node.names] + [getattr(node, "module", "") for node in top]
    assert not [name for name in names if name.startswith(("jax.", "jax_privacy", "dp_accounting")) or name == "jax"]


# Sums of Laplace variables


@pytest.mark.parametrize("tail_prob", [0.5, 1e-3, TAIL, 1e-25])
def test_one_and_two_terms_have_closed_forms(tail_prob):
    assert tables.laplace_sum_quantile(1, tail_prob) == pytest.approx(-math.log(tail_prob), rel=1e-8)
    assert tables.laplace_sum_quantile(1, tail_prob) == pytest.approx(-stats.laplace.ppf(tail_prob / 2), rel=1e-8)
    x = tables.laplace_sum_quantile(2, tail_prob)
    assert math.exp(-x) * (2 + x) / 2 == pytest.approx(tail_prob, rel=1e-6)  # P(|X| > x)


@pytest.mark.parametrize("num_terms, expected", [(10, 32.7), (14, 36.9), (15, 37.8)])
def test_known_two_sided_quantiles(num_terms, expected):
    assert tables.laplace_sum_quantile(num_terms, TAIL) == pytest.approx(expected, abs=0.06)
    assert tables.laplace_sum_quantile(num_terms, 2 * TAIL) < expected - 0.8  # the one-sided ones are smaller


@pytest.mark.parametrize("num_terms", [3, 14])
def test_quantile_against_simulation(num_terms):
    n, tail_prob = 400_000, 0.01
    draws = np.random.default_rng(num_terms).laplace(size=(n, num_terms)).sum(axis=1)
    exceed = np.mean(np.abs(draws) > tables.laplace_sum_quantile(num_terms, tail_prob))
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
    x = tables.laplace_sum_quantile(num_terms, tail_prob)
    assert _saddlepoint_tail(num_terms, x) == pytest.approx(tail_prob / 2, rel=2e-4)
    log_inverse = math.log(2 / tail_prob)
    assert x < 2 * math.sqrt(num_terms * log_inverse) + log_inverse
    t = (math.hypot(num_terms, x) - num_terms) / x
    assert t * x + num_terms * math.log1p(-t * t) < log_inverse  # Chernoff exponent of a smaller x


def test_quantile_grows_with_terms():
    values = [tables.laplace_sum_quantile(m, TAIL) for m in (0, 1, 2, 3, 50, 51, 4_000, 4_001, 10**6, 10**6 + 1)]
    assert values[0] == 0 and np.all(np.diff(values) > 0)


# Buckets and worst cases


@pytest.mark.parametrize("num_episodes", [1, 2, 3, 7, 8, 9, 100, 293, 300])
def test_heaviest_release_is_brute_force(num_episodes):
    for weight in (lambda j: 1.0, strategies.honaker_variance):
        brute = max(sum(weight(j) for j in range(12) if k >> j & 1) for k in range(num_episodes))
        assert tables._heaviest_below(num_episodes, weight) == pytest.approx(brute, rel=1e-14)


def test_worst_case_of_the_paper_uses_14_terms():
    table = precision("central_laplace", RIVER, 1.0, 0.1)
    assert table.visits.shape == (16,) and table.visits.dtype == np.float32
    assert np.all(table.visits == table.visits[0])
    assert table.visits[0] == pytest.approx(36.9, abs=0.06)
    assert table.transitions[3] == pytest.approx(tables.laplace_sum_quantile(14, TAIL / 6), rel=1e-6)


def test_bucket_kinds_and_sizes():
    kinds = {name: tables.bucket_kind(name) for name in MECHANISMS}
    assert kinds["exact"] == "none" and kinds["central_honaker"] == "popcount" and kinds["central_blt"] == "log"
    assert [tables.num_buckets("popcount", K) for K in (1, 2, 3, 4, 20_000)] == [2, 3, 3, 4, 16]
    assert tables.num_buckets("log", 1) == tables.num_buckets("log", 10**7) == 257
    assert tables.num_buckets("none", 5) == 1
    assert [tables.bucket("log", k) for k in (0, 1, 2, 3, 8)] == [0, 1, 9, 13, 25]
    with pytest.raises(ValueError, match="Unknown bucket kind 'linear'"):
        tables.num_buckets("linear", 3)


@pytest.mark.parametrize("name", NOISY)
def test_time_varying_table_covers_every_episode(name):
    problem = Problem(horizon=3, num_states=2, num_actions=2, num_episodes=5_000)
    kind, mech = tables.bucket_kind(name), MECHANISMS[name]
    table = precision(name, problem, 2.0, 0.1, time_varying=True)
    std = tables.standard_deviation(name, problem, 2.0)
    for k in [*range(12), 15, 16, 17, 255, 256, 1000, 2048, 4095, 4999]:
        i = tables.bucket(kind, k, 5_000)
        if kind == "log" and k > 0:  # a float32 logarithm may land one bucket away at a power of two
            low = 1 + int(np.floor(np.nextafter(np.float32(8 * math.log2(k)), np.float32(0))))
            assert low >= i - 1
            i = max(1, min(i, low))
        units = tables._units(mech, 5_000, np.array([k]))[0]
        exact = tables._error(mech, problem, 2.0, float(units), "costs", 0.1 / (3 * 4 * 15_000))
        assert table.costs[i] >= exact * (1 - 1e-7)
        slack = 1.45 if mech.stream == "honaker" else 1.13 if k < 20 else 1.06
        assert table.costs[i] <= exact * slack
        assert std.costs[i] >= tables.standard_deviation(name, problem, 2.0, np.array([k])).costs[0]
    assert table.costs[0] == 0 and np.all(np.diff(table.costs) >= 0)


@pytest.mark.parametrize("name", NOISY)
@pytest.mark.parametrize("time_varying", [False, True])
@pytest.mark.parametrize("sizes", [(1, 1, 1, 1), (20, 6, 2, 10**7)])
def test_tables_are_finite_at_extreme_scales(name, time_varying, sizes):
    for noise_scale in (1e-8, 1.0, 1e10):
        for homogeneous in (False, True):
            problem = Problem(*sizes, homogeneous=homogeneous, families=2)
            for row in precision(name, problem, noise_scale, 0.1, time_varying=time_varying):
                assert np.all(np.isfinite(row)) and np.all(row >= 0)


@pytest.mark.parametrize("name", ["exact", *NOISY])
def test_no_noise_means_no_error(name):
    table = precision(name, RIVER, 0.0, 0.1)
    assert not any(np.any(row) for row in table)  # at scale 0 also those that round or sample release the counts


def test_derived_visits_carry_the_noise_of_all_next_states():
    table = precision("central_laplace", RIVER._replace(families=2), 1.0, 0.1)
    assert table.visits[0] == pytest.approx(tables.laplace_sum_quantile(14 * 6, TAIL), rel=1e-6)
    three = tables.standard_deviation("central_blt", RIVER, 1.0, np.array([777]))
    two = tables.standard_deviation("central_blt", RIVER._replace(families=2), 1.0, np.array([777]))
    assert two.visits[0] == pytest.approx(math.sqrt(6) * three.visits[0], rel=1e-6)
    assert two.transitions[0] == three.transitions[0]


# The paper's constants


def test_printed_errors_are_those_of_the_paper():
    central = precision("central_laplace", RIVER, 60 * math.log(20_000), 0.1, calibration="printed")
    assert central.visits[0] == pytest.approx(23_343, abs=1) and central.transitions[5] == pytest.approx(24_393, abs=1)
    assert central.costs[0] == central.visits[0]
    local = precision("local_laplace", RIVER, 60.0, 0.1, calibration="printed")
    assert local.visits[0] == pytest.approx(105_923, abs=1)


def test_published_code_uses_the_exact_law():
    code = precision("central_laplace", RIVER, 1.0, 0.1, calibration="published_code")
    np.testing.assert_array_equal(code.visits, precision("central_laplace", RIVER, 1.0, 0.1).visits)


@pytest.mark.parametrize(
    "kwargs, match",
    [
        ({"privatizer": "central_blt", "calibration": "printed"}, "'printed' is not defined for central_blt"),
        ({"calibration": "exact"}, "Unknown calibration 'exact'. Available: tight, printed, published_code"),
        ({"calibration": "printed", "problem": RIVER._replace(num_episodes=1)}, "no noise at num_episodes=1"),
        ({"calibration": "published_code", "problem": RIVER._replace(families=2)}, "families=3, got 2"),
        ({"calibration": "printed", "time_varying": True}, "no time-varying error"),
        ({"failure_prob": 1.0}, "Expected 0 < failure_prob=1.0 < 1"),
        ({"noise_scale": -1.0}, "Expected noise_scale=-1.0 to be finite and >= 0"),
        ({"privatizer": "central_laplac"}, "Unknown privatizer 'central_laplac'. Did you mean 'central_laplace'?"),
        ({"problem": RIVER._replace(horizon=0)}, "Expected horizon=0 >= 1"),
        ({"problem": RIVER._replace(families=1)}, r"Expected families=1 in \(2, 3\)"),
    ],
)
def test_bad_input_is_refused(kwargs, match):
    arguments = {"privatizer": "central_laplace", "problem": RIVER, "noise_scale": 1.0, "failure_prob": 0.1} | kwargs
    with pytest.raises(ValueError, match=match):
        precision(**arguments)


# Gaussian streams


def test_honaker_variances():
    variance = 1.0
    for height in range(12):
        assert strategies.honaker_variance(height) == pytest.approx(variance, rel=1e-12)
        assert strategies.honaker_variance(height) == pytest.approx(2**height / (2 ** (height + 1) - 1), rel=1e-12)
        variance = 1 / (1 + 1 / (2 * variance))
    # std in units of z D2: node noise sqrt(15); the largest over k < 2e4 and its value with a plain tree
    worst = math.sqrt(15 * tables._heaviest_below(20_000, strategies.honaker_variance))
    assert worst == pytest.approx(10.82, abs=0.01)
    assert math.sqrt(15 * tables._heaviest_below(20_000, lambda j: 1.0)) == pytest.approx(14.49, abs=0.01)


def _blt_coefficients(num_episodes):
    """(c, b) of the shipped strategy by its recurrence."""
    decay, scale = map(np.asarray, strategies.blt_parameters(num_episodes))
    c = np.append(1.0, (scale[:, None] * decay[:, None] ** np.arange(num_episodes - 1)).sum(axis=0))
    increments, buffers = np.empty(num_episodes), np.zeros_like(decay)
    for t in range(num_episodes):
        x = (t == 0) - scale @ buffers
        buffers = decay * buffers + x
        increments[t] = x
    return c, np.cumsum(increments)


@pytest.mark.parametrize("num_episodes", [1, 2, 5, 1_000, 20_000])
def test_blt_norms_equal_the_recurrence(num_episodes):
    c, b = _blt_coefficients(num_episodes)
    assert strategies.strategy_norm("blt", num_episodes) == pytest.approx(np.linalg.norm(c), rel=1e-10)
    ks = np.unique([0, 1, 2, num_episodes // 3, num_episodes])
    ks = ks[ks <= num_episodes]
    expected = [np.linalg.norm(b[:k]) for k in ks]
    np.testing.assert_allclose(strategies.noise_norms("blt", num_episodes, ks), expected, rtol=1e-9)
    if num_episodes <= 1_000:  # b is the first column of (prefix sum) C^-1
        C = np.array([[c[i - j] if i >= j else 0.0 for j in range(num_episodes)] for i in range(num_episodes)])
        np.testing.assert_allclose(np.cumsum(np.linalg.inv(C)[:, 0]), b, atol=1e-9)


def test_blt_reference_rung():
    assert strategies.strategy_norm("blt", 20_000) == pytest.approx(2.0507, abs=1e-4)
    largest = strategies.strategy_norm("blt", 20_000) * strategies.noise_norms("blt", 20_000, np.array([20_000]))[0]
    assert largest == pytest.approx(4.228, abs=1e-3)
    decay, scale = strategies.blt_parameters(20_000)
    np.testing.assert_allclose(decay, [0.999945191, 0.998776155, 0.981879244, 0.762697927], atol=1e-8)
    np.testing.assert_allclose(scale, [0.010335241, 0.030298763, 0.113033551, 0.317739778], atol=1e-8)


@pytest.mark.parametrize("rung", sorted(strategies.BLT_PARAMETERS))
def test_every_blt_rung_is_a_local_optimum_near_the_best_toeplitz(rung, monkeypatch):
    decay, scale = strategies.BLT_PARAMETERS[rung]

    def largest_error(decay, scale):
        monkeypatch.setitem(strategies.BLT_PARAMETERS, rung, (tuple(decay), tuple(scale)))
        strategies._square_norms.cache_clear()
        return strategies.strategy_norm("blt", rung) * strategies.noise_norms("blt", rung, np.array([rung]))[0]

    best = largest_error(decay, scale)
    toeplitz = strategies.strategy_norm("toeplitz", rung) ** 2
    assert 0.999 * toeplitz < best < (1.004 if rung <= 20_000 else 1.035) * toeplitz
    for i in range(4):
        for step in (0.97, 1.03):
            nearby = [1 - (1 - d) * (step if j == i else 1) for j, d in enumerate(decay)]
            assert largest_error(nearby, scale) > best * (1 - 1e-6)
            nearby = [s * (step if j == i else 1) for j, s in enumerate(scale)]
            assert largest_error(decay, nearby) > best * (1 - 1e-6)
    monkeypatch.undo()
    strategies._square_norms.cache_clear()


def test_blt_takes_the_next_rung_up():
    assert strategies.blt_parameters(1) == strategies.BLT_PARAMETERS[32]
    assert strategies.blt_parameters(257) == strategies.BLT_PARAMETERS[1_000]
    assert strategies.blt_parameters(20_001) == strategies.BLT_PARAMETERS[100_000]
    assert strategies.blt_parameters(10**8) == strategies.BLT_PARAMETERS[10**7]


@pytest.mark.parametrize("num_episodes", [1, 7, 20_000, 600_000])
def test_toeplitz_norms(num_episodes):
    k = np.arange(1, num_episodes)
    c = np.append(1.0, np.cumprod((2 * k - 1) / (2 * k)))
    assert strategies.strategy_norm("toeplitz", num_episodes) == pytest.approx(np.linalg.norm(c), rel=1e-10)
    ks = np.unique([0, 1, num_episodes // 2, num_episodes])
    expected = [np.linalg.norm(c[:n]) for n in ks]
    np.testing.assert_allclose(strategies.noise_norms("toeplitz", num_episodes, ks), expected, rtol=1e-10)
    if num_episodes == 20_000:
        assert strategies.strategy_norm("toeplitz", num_episodes) ** 2 == pytest.approx(4.219, abs=1e-3)


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
    std = tables.standard_deviation("local_bernoulli", problem, 1 / epsilon_of_a_bit, np.array([users]))
    assert std.visits[0] ** 2 == pytest.approx(users * flip * (1 - flip) / (1 - 2 * flip) ** 2, rel=1e-5)
    rng, runs = np.random.default_rng(1), 200_000
    for zeros_only in (0.0, 1.0):
        noise = _bernoulli_noise(rng, zeros_only, flip, users, runs)
        assert noise.var() == pytest.approx(std.visits[0] ** 2, rel=0.05 if epsilon_of_a_bit < 10 else 0.2)
        for tail_prob in (1e-2, 1e-3):
            error = tables._error(
                MECHANISMS["local_bernoulli"], problem, 1 / epsilon_of_a_bit, users, "visits", tail_prob
            )
            assert np.mean(np.abs(noise) > error) <= tail_prob
    noise = _bernoulli_noise(rng, 0.5, flip, users, runs)  # a cost of 1/2, rounded first
    assert noise.var() <= std.costs[0] ** 2 * 1.02
    error = tables._error(MECHANISMS["local_bernoulli"], problem, 1 / epsilon_of_a_bit, users, "costs", 1e-3)
    assert np.mean(np.abs(noise) > error) <= 1e-3


def test_pooled_bits_are_summed_over_steps():
    pooled = precision("local_bernoulli", RIVER._replace(homogeneous=True), 120.0, 0.1)
    wide = tables._error(MECHANISMS["local_bernoulli"], RIVER, 120.0, 20 * 20_000.0, "visits", TAIL)
    assert pooled.visits[0] == pytest.approx(wide, rel=1e-6)
    std = tables.standard_deviation("local_bernoulli", RIVER._replace(homogeneous=True), 120.0, np.array([9]))
    one = tables.standard_deviation("local_bernoulli", RIVER, 120.0, np.array([180]))
    np.testing.assert_allclose(std, one, rtol=1e-6)


@pytest.mark.parametrize("scale", [0.05, 1.0, 120.0])
def test_bernoulli_error_is_the_best_chernoff_bound(scale):
    n, flip, tail_prob = 2_000, 1 / (1 + math.exp(1 / scale)), 1e-6
    problem = Problem(1, 1, 1, n)
    error = tables._error(MECHANISMS["local_bernoulli"], problem, scale, n, "visits", tail_prob)
    rate = flip + error * (1 - 2 * flip) / n
    divergence = rate * math.log(rate / flip) + (1 - rate) * math.log((1 - rate) / (1 - flip))
    assert n * divergence == pytest.approx(math.log(2 / tail_prob), rel=1e-4)
    assert stats.binom.sf(math.floor(n * rate), n, flip) < tail_prob / 2


@pytest.mark.parametrize("name", ["local_sampled", "local_sampled_family"])
@pytest.mark.parametrize("homogeneous", [False, True])
@pytest.mark.parametrize("families", [3, 2])
@pytest.mark.parametrize("scale", [0.0, 0.1, 6.0])
def test_sampled_std_and_error(name, homogeneous, families, scale):
    H, users, runs = 4, 60, 100_000
    problem = Problem(H, 3, 2, users, homogeneous, families)
    mech, parts = MECHANISMS[name], families if name == "local_sampled_family" else 1
    W = H * parts
    std = tables.standard_deviation(name, problem, scale, np.array([users]))
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
            error = tables._error(mech, problem, scale, users, family, tail_prob)
            assert np.mean(np.abs(noise) > error) <= tail_prob
            assert error < 7 * math.sqrt(bound)


@pytest.mark.parametrize("name", ["central_laplace", "central_gaussian", "local_laplace", "local_gaussian"])
def test_std_of_additive_noise(name):
    ks = np.array([0, 1, 6, 7, 8, 19_999])
    terms = np.array([k if name.startswith("local") else int(k).bit_count() for k in ks])
    expected = 3.0 * np.sqrt(terms * (2 if "laplace" in name else 1))
    np.testing.assert_allclose(tables.standard_deviation(name, RIVER, 3.0, ks).costs, expected, rtol=1e-6)


def test_union_of_all_counts_covers():
    """The true counts lie within the errors in all episodes of at least 1 - failure_prob of the runs."""
    problem = Problem(horizon=1, num_states=1, num_actions=2, num_episodes=16)
    table = precision("central_laplace", problem, 1.0, 0.5, time_varying=True)
    rng, runs, failed = np.random.default_rng(3), 4_000, 0
    for _ in range(runs):
        nodes = rng.laplace(size=(3, 2, 5, 17))  # family, count, level, episode at which the node is complete
        bad = False
        for k in range(1, 16):
            ends = [(k >> j << j, j) for j in range(5) if k >> j & 1]
            noise = sum(nodes[:, :, j, end] for end, j in ends)
            limits = [row[int(k).bit_count()] for row in table]
            bad |= bool(np.any(np.abs(noise) > np.array(limits)[:, None]))
        failed += bad
    assert 0.02 < failed / runs < 0.5
