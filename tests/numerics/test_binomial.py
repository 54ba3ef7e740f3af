"""Batched draws have the exact laws, from one trial to 1e12 and from chances of 1e-9 to 1 - 1e-9.

Keys are fixed, so every test is deterministic. A family of chi-square tests raises a false alarm for one key in a
thousand: each of its m members is tested at the level 1e-3/m. Bins come from the exact law, at least 20 expected draws
in each.
"""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from pieces import QUICK
from scipy import stats

from jaxprivrl.numerics import binomial as lib
from jaxprivrl.numerics import lanes, random
from jaxprivrl.numerics.axes import vmap_last
from jaxprivrl.numerics.epoch_noise import gamma, rounded_gaussian_sum, rounded_laplace_sum

in_64_bits = functools.partial(lanes.in_64_bits, compiler_options=QUICK)
DRAWS = 2**16
LEVEL = 1e-3
TRIALS = (1, 2, 5, 20, 300, 10**4, 10**6, 10**9, 10**12)
CHANCES = (1e-9, 1e-6, 1e-3, 0.05, 0.3, 0.5, 0.7, 0.999, 1 - 1e-9)
MEANS = (0.3, 1.9, 2.0, 5.0, 40.0, 1e4, 1e9)

binomial = in_64_bits(lib.binomial)
multinomial = in_64_bits(lib.multinomial)
poisson = in_64_bits(lib.poisson)


def chi_square(x: np.ndarray, law: stats.rv_discrete) -> float:
    """p-value of draws against a frozen law of scipy, in at most 60 bins; 1 if all of it is a single bin."""
    share = max(1 / 60, 20 / len(x))
    edges = np.unique(law.ppf(np.arange(share, 1, share)))
    cdf = np.concatenate([[0.0], law.cdf(edges), [1.0]])
    upper = np.concatenate([edges, [np.inf]])
    while len(upper) > 1 and np.min(np.diff(cdf)) * len(x) < 20:
        thin = int(np.argmin(np.diff(cdf)))
        drop = thin if thin < len(upper) - 1 else thin - 1
        upper, cdf = np.delete(upper, drop), np.delete(cdf, drop + 1)
    expected = np.diff(cdf) * len(x)
    observed = np.bincount(np.searchsorted(upper, x), minlength=len(upper))
    return float(stats.chi2.sf(np.sum((observed - expected) ** 2 / expected), max(len(upper) - 1, 1)))


def draws(n: float, p: float, seed: int = 0) -> np.ndarray:
    return np.asarray(binomial(random.key(seed), np.full(DRAWS, n, np.float64), np.full(DRAWS, p)))


def test_binomial_draws_have_the_exact_law():
    for i, n in enumerate(TRIALS):
        for j, p in enumerate(CHANCES):
            x = draws(n, p, seed=100 * i + j)
            assert np.all((x >= 0) & (x <= n) & (x == np.floor(x)))
            # Close to one the law of the failures is the better known one.
            sample, chance = (n - x, 1 - p) if p > 0.5 else (x, p)
            assert chi_square(sample, stats.binom(n, chance)) > LEVEL / (len(TRIALS) * len(CHANCES)), (n, p)


def test_binomial_draws_around_the_change_of_method_have_the_exact_law():
    cases = [(n, m / n) for n in (4, 5, 7, 13, 40, 1000, 10**7) for m in (1.9, 2.0, 2.5, 4.0) if m / n <= 0.5]
    for i, (n, p) in enumerate(cases):
        assert chi_square(draws(n, p, seed=i), stats.binom(n, p)) > LEVEL / len(cases), (n, p)


def test_means_and_variances_are_exact():
    """Within 4.5 standard errors each: false alarm 7e-6 each, 2e-4 in all."""
    for n, p in [(50, 0.1), (10**3, 0.4), (10**7, 0.02), (10**12, 1e-9), (10**12, 0.5), (10**12, 0.999), (2**53, 0.3)]:
        x, q = draws(n, p, seed=7) - n * p, 1 - p
        variance = n * p * q
        kurtosis = 3 + (1 - 6 * p * q) / variance
        assert abs(x.mean()) < 4.5 * math.sqrt(variance / DRAWS)
        assert abs((x**2).mean() / variance - 1) < 4.5 * math.sqrt((kurtosis - 1) / DRAWS)


def test_what_is_slightly_wrong_is_caught():
    """Controls: one trial missing, a mean 0.05 sd off, and normal draws in the place of binomial ones."""
    assert chi_square(draws(49, 0.3), stats.binom(50, 0.3)) < 1e-8
    n, p = 10**9, 0.2
    assert chi_square(draws(n, p) + round(0.05 * math.sqrt(n * p * (1 - p))), stats.binom(n, p)) < 1e-8
    rng = np.random.default_rng(0)
    for n, p in [(1500, 0.01), (30, 0.5)]:
        normal = np.round(rng.normal(n * p, math.sqrt(n * p * (1 - p)), DRAWS))
        assert chi_square(normal, stats.binom(n, p)) < (1e-8 if p < 0.5 else 1.0)
        assert chi_square(draws(n, p), stats.binom(n, p)) > LEVEL
    assert chi_square(draws(1500, 0.01), stats.poisson(15)) > LEVEL / 10  # not to be told apart at this size


def test_the_tests_reference_agrees_with_many_digits():
    """Masses of scipy's binomial law between quantiles against the integral of mpmath's pmf, Euler-Maclaurin."""
    mp = pytest.importorskip("mpmath").mp
    with mp.workdps(40):
        for n, p in [(10**12, 0.5), (10**12, 1e-6), (10**9, 0.3)]:
            P = mp.mpf(p)

            def pmf(x, n=n, P=P):
                top = mp.loggamma(n + 1) - mp.loggamma(x + 1) - mp.loggamma(n - x + 1)
                return mp.exp(top + x * mp.log(P) + (n - x) * mp.log1p(-P))

            a, b = stats.binom.ppf([0.3, 0.55], n, p)
            lower, upper = mp.mpf(a) + 0.5, mp.mpf(b) + 0.5
            mass = mp.quad(pmf, [lower, upper]) - (mp.diff(pmf, upper) - mp.diff(pmf, lower)) / 24
            got = stats.binom.cdf(b, n, p) - stats.binom.cdf(a, n, p)
            assert abs(got - float(mass)) < 1e-8


def test_proposals_cover_the_law_with_the_stated_bound():
    """l(y) sqrt(v) T'(z) <= (1 + 0.18/v) phi(z) for every binomial law with p <= 1/2, n p >= 2, and Poisson laws."""
    means = [*np.arange(2, 6, 0.1), *np.geomspace(6, 1e5, 30)]
    cases = [(math.ceil(m / p), p) for m in means for p in (0.5, 0.49, 0.4, 0.3, 0.2, 0.1, 0.03, 1e-3, 1e-7)]
    cases += [(n, p) for n in range(4, 60) for p in np.linspace(2 / n, 0.5, 9)]
    laws = [(n, n * p, n * p * (1 - p), p, stats.binom(n, p).pmf) for n, p in cases]
    laws += [(math.inf, m, m, 0.0, stats.poisson(m).pmf) for m in means]
    worst = 0.0
    for n, mu, var, p, pmf in laws:
        v = var + 0.25
        sd, a = math.sqrt(v), (var * (1 - 2 * p)) * v**-1.5 / 6
        low, high = max(-1, math.floor(mu - 9 * sd)), math.ceil(min(n + 1, mu + 14 * sd))
        k = np.unique(np.floor(np.linspace(low, high, 400)))[:, None]
        t = np.linspace(0, 1, 9)[None]
        density = (1 - t) * pmf(k) + t * pmf(k + 1)
        y = (k + t - mu) / sd
        root = 1 + 4 * a * (a + y)
        assert np.all(density[root <= 0] == 0)  # nothing of the target is out of the proposals' reach
        z = 2 * (a + y) / (1 + np.sqrt(np.maximum(root, 0)))
        with np.errstate(over="ignore", invalid="ignore"):
            ratio = density * sd * (1 + 2 * a * z) * math.sqrt(2 * math.pi) * np.exp(z * z / 2)
        worst = max(worst, float(np.max((np.where(density > 0, ratio, 0) - 1) * v)))
    assert 0.16 < worst < 0.95 * lib._EXCESS


def test_logarithms_and_stirlings_remainder_are_accurate():
    x = np.concatenate([np.geomspace(1e-300, 1e300, 2001), 1 + np.linspace(-0.6, 1.5, 2001)])
    got = np.asarray(in_64_bits(lanes.log)(x))
    np.testing.assert_allclose(got, np.log(x), rtol=4e-16, atol=1e-17)
    small = np.concatenate([-np.geomspace(1e-18, 0.999, 2000), np.geomspace(1e-18, 1e6, 2000)])
    np.testing.assert_allclose(np.asarray(in_64_bits(lanes.log1p)(small)), np.log1p(small), rtol=5e-16)
    mp = pytest.importorskip("mpmath").mp
    with mp.workdps(40):
        k = np.array([*range(40), 100, 10**4, 10**8])
        top, bottom = in_64_bits(lanes.stirling)(k + 0.5)
        for y, value in zip(k + 0.5, np.asarray(top) / np.asarray(bottom), strict=True):
            exact = mp.loggamma(y + 0.5) - y * mp.log(y) + y - mp.log(2 * mp.pi) / 2
            assert abs(value + exact) < 1e-13
    assert abs(float(top[-1] / bottom[-1]) * 24e8 - 1) < 1e-8


def test_strange_arguments_give_counts():
    n = np.array([0, 7, 7, 7, 7, 7, 10**12, 10**12, 3], np.int64)
    p = np.array([0.5, 0.0, 1.0, -3.0, 1 + 1e-7, np.nan, 0.0, 1.0, 1 - 1e-16])
    x = binomial(random.key(0), n, p)
    assert x.dtype == jnp.int64
    np.testing.assert_array_equal(x, [0, 0, 7, 0, 7, 0, 0, 10**12, 3])
    wild = np.array([np.nan, -4.0, 2.5, np.inf])
    x = np.asarray(binomial(random.key(0), wild, np.ones(4)))
    np.testing.assert_array_equal(x, [0, 0, 2, 2**53])
    assert np.asarray(binomial(random.key(0), np.zeros((3, 0)), np.zeros((3, 0)))).shape == (3, 0)


def test_the_callers_types_are_left_alone():
    binomial(random.key(0), np.ones(3), np.ones(3))
    assert jnp.zeros(()).dtype == jnp.float32
    assert not jax.config.jax_enable_x64
    with pytest.raises(TypeError, match="in_64_bits"):
        jax.jit(lib.binomial)(random.key(0), jnp.ones(3), jnp.ones(3))


def test_a_batch_gives_what_each_of_its_keys_gives_alone():
    with jax.enable_x64(True):
        keys = jax.random.split(random.key(5), (3, 7))
    n = np.random.default_rng(0).integers(0, 60, (3, 7, 24)).astype(np.float64)
    p = np.random.default_rng(1).uniform(size=(3, 7, 24))
    alone = np.stack([[np.asarray(binomial(keys[i, j], n[i, j], p[i, j])) for j in range(7)] for i in range(3)])
    np.testing.assert_array_equal(in_64_bits(jax.vmap(jax.vmap(lib.binomial)))(keys, n, p), alone)
    last = in_64_bits(vmap_last(lib.binomial, (0, 0, 0)))(keys[0], n[0], p[0])
    np.testing.assert_array_equal(np.asarray(last).T, alone[0])
    many = np.tile(n[0], 25), np.tile(p[0], 25)  # more lanes than one block, and not a whole number of blocks
    batch = np.asarray(in_64_bits(jax.vmap(lib.binomial))(keys[0], *many))
    for j in range(2):
        np.testing.assert_array_equal(batch[j], binomial(keys[0, j], many[0][j], many[1][j]))


def test_multinomial_counts_add_up_and_have_the_exact_marginals():
    """Chi-square of every category at the level 1e-3 over all; chances that are not normalised, one of them tiny."""
    p = np.array([3.0, 0.0, 1.0, 0.5, 1e-9, 2.0, 0.5])
    rows = np.broadcast_to(p, (DRAWS, 7))
    for i, n in enumerate((3, 100, 10**12)):
        x = np.asarray(multinomial(random.key(i), np.full(DRAWS, n, np.int64), rows))
        assert x.dtype == np.int64 and np.all(x.sum(-1) == n) and np.all(x >= 0) and np.all(x[:, 1] == 0)
        for w in range(7):
            assert chi_square(x[:, w], stats.binom(n, p[w] / p.sum())) > LEVEL / 21, (n, w)
        share = p[2] / (p[2] + p[5])  # given the sum of two categories, one of them is binomial
        total = x[:, 2] + x[:, 5]
        z = (x[:, 2] - total * share) / np.sqrt(np.maximum(total, 1) * share * (1 - share))
        assert abs(np.mean(z)) < 4.5 / math.sqrt(DRAWS) and abs(np.corrcoef(z, total)[0, 1]) < 4.5 / math.sqrt(DRAWS)


@pytest.mark.parametrize("width", [1, 2, 4, 5])
def test_multinomial_of_few_has_the_exact_joint_law(width):
    p = np.arange(1.0, width + 1) / np.sum(np.arange(1.0, width + 1))
    x = np.asarray(multinomial(random.key(width), np.full(DRAWS, 3.0), np.broadcast_to(p, (DRAWS, width))))
    found, observed = np.unique(x, axis=0, return_counts=True)
    expected = stats.multinomial.pmf(found, 3, p) * DRAWS
    keep = expected >= 20
    rest = DRAWS - expected[keep].sum()
    cells = np.append(expected[keep], rest) if rest > 20 else expected[keep]
    seen = np.append(observed[keep], observed[~keep].sum()) if rest > 20 else observed[keep]
    assert stats.chi2.sf(np.sum((seen - cells) ** 2 / cells), max(len(cells) - 1, 1)) > LEVEL / 4


def test_poisson_draws_have_the_exact_law():
    for i, mean in enumerate(MEANS):
        x = np.asarray(poisson(random.key(i), np.full(DRAWS, mean)))
        assert chi_square(x, stats.poisson(mean)) > LEVEL / len(MEANS), mean
    assert chi_square(x + round(0.05 * math.sqrt(1e9)), stats.poisson(1e9)) < 1e-8


def test_poisson_draws_of_huge_means_keep_their_last_digits():
    """Mean 2^60: float64 knows multiples of 256 there; draws have all remainders, and the right variance."""
    x = np.asarray(poisson(random.key(0), np.full(DRAWS, 2.0**60))) - 2**60
    assert stats.kstest(x / 2.0**30, stats.norm.cdf).pvalue > LEVEL
    assert stats.chisquare(np.bincount(x % 16, minlength=16)).pvalue > LEVEL


def test_gamma_draws_have_the_exact_law():
    for i, shape in enumerate((1.0, 2.0, 17.0, 1e4, 1e12)):
        x = np.asarray(in_64_bits(gamma)(random.key(i), np.full(DRAWS, shape)))
        assert stats.kstest(x, stats.gamma(shape).cdf).pvalue > LEVEL / 5, shape
        assert stats.kstest(x + 0.04 * math.sqrt(shape), stats.gamma(shape).cdf).pvalue < 1e-8
    assert not np.any(in_64_bits(gamma)(random.key(0), np.zeros(5)))


def power(pmf: np.ndarray, m: int) -> np.ndarray:
    """The law of a sum of m draws of a law on -L..L, on the same range, which must hold all of it."""
    transform = np.fft.rfft(np.fft.ifftshift(pmf)) ** m
    return np.clip(np.fft.fftshift(np.fft.irfft(transform, len(pmf))), 0, None)


def rounded(cdf, L: int) -> np.ndarray:
    edges = np.arange(-L, L + 2) - 0.5
    return np.diff(cdf(edges))


def check(x: np.ndarray, pmf: np.ndarray) -> float:
    """p-value of draws against a pmf on -L..L."""
    L = len(pmf) // 2
    law = stats.rv_discrete(values=(np.arange(-L, L + 1), pmf / pmf.sum()))
    return chi_square(x, law)


@pytest.mark.parametrize(("users", "scale"), [(1, 0.4), (1, 3.0), (2, 1.5), (5, 0.2), (1000, 2.0)])
def test_sums_of_rounded_laplace_noise_have_the_exact_law(users, scale):
    """Against the convolution of the law of one report; 1.04 of the scale, or one more user, is caught."""
    draw = in_64_bits(rounded_laplace_sum)
    L = int(40 * scale * math.sqrt(users)) + 20
    pmf = power(rounded(stats.laplace(scale=scale).cdf, L), users)
    x = np.asarray(draw(random.key(users), np.full(DRAWS, users, np.int64), np.full(DRAWS, scale)))
    assert check(x, pmf) > LEVEL / 5
    wrong = draw(random.key(users), np.full(DRAWS, users, np.int64), np.full(DRAWS, 1.04 * scale))
    assert check(np.asarray(wrong), pmf) < 1e-6
    if users == 5:
        more = draw(random.key(users), np.full(DRAWS, users + 1, np.int64), np.full(DRAWS, scale))
        assert check(np.asarray(more), pmf) < 1e-6


def test_sums_of_rounded_laplace_noise_of_a_trillion_users():
    """Scale 60 on a grid of 2^-14: partial sums of 1e18, a sum of 1.4e12 in standard deviation, exact as an integer."""
    scale, users = 60 * 2.0**14, 10**12
    x = np.asarray(in_64_bits(rounded_laplace_sum)(random.key(0), np.full(DRAWS, users), np.full(DRAWS, scale)))
    sd = math.sqrt(users) * scale * math.sqrt(2)
    assert stats.kstest(x / sd, stats.norm.cdf).pvalue > LEVEL
    assert stats.chisquare(np.bincount(x % 16, minlength=16)).pvalue > LEVEL


@pytest.mark.parametrize(("users", "scale"), [(1, 0.3), (1, 2.0), (2, 1.0), (3, 1.5), (1000, 1.0)])
def test_sums_of_rounded_gaussian_noise_are_as_close_as_stated(users, scale):
    L = int(12 * math.sqrt(users * (scale**2 + 0.1))) + 20
    exact = power(rounded(stats.norm(scale=scale).cdf, L), users)
    used = rounded(stats.norm(scale=math.sqrt(users * scale**2 + (users - 1) / 12)).cdf, L)
    distance = np.abs(exact - used).sum() / 2
    assert distance < (1e-12 if users == 1 else 5e-4 / (users * (scale**2 + 1 / 12) ** 2))
    draw = in_64_bits(rounded_gaussian_sum)
    x = np.asarray(draw(random.key(users), np.full(DRAWS, users, np.int64), np.full(DRAWS, scale)))
    assert check(x, exact) > LEVEL / 5
    wrong = draw(random.key(users), np.full(DRAWS, users, np.int64), np.full(DRAWS, 1.04 * scale))
    assert check(np.asarray(wrong), exact) < 1e-4
