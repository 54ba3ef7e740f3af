"""Samplers and arithmetic of integer releases: break points against the exact law, draws, lattices, ranges.

A draw is a decreasing function of one number of 94 bits, the digits of U. Counting the numbers that map beyond x, by
bisection, gives the sampler's exact probabilities: no draws, no chance. Keys of the other tests are fixed; a test with
level 1e-3 would fail for one key in a thousand, and its control for none.
"""

import itertools
import math

import jax
import jax.numpy as jnp
import mpmath
import numpy as np
import pytest
from scipy import stats

from jaxprivrl.numerics import lattice, random
from jaxprivrl.numerics.axes import vmap_last

N = 1_000_000
LEVEL = 1e-3
LAWS = {"laplace": stats.laplace, "gaussian": stats.norm}
DIGITS = 31 + 32 + 31  # of `own` after its sign, of `low`, and of `fill`, whose last is left at 0


def words(number: int) -> tuple[int, int, int]:
    return number >> 63, (number >> 31) & 0xFFFFFFFF, (number & 0x7FFFFFFF) << 1


def as_words(numbers: list[int]) -> list[np.ndarray]:
    return [np.array(part, np.uint32) for part in zip(*map(words, numbers), strict=True)]


def counts_where(test, size: int) -> list[int]:
    """For each of `size` tests, true up to some number and false beyond: how many numbers pass. All at once."""
    low, high = [0] * size, [2**DIGITS] * size
    while any(b - a > 0 for a, b in zip(low, high, strict=True)):
        middle = [(a + b) // 2 for a, b in zip(low, high, strict=True)]
        passed = np.asarray(test(*as_words(middle)))
        for i in range(size):
            if low[i] < high[i]:
                low[i], high[i] = (middle[i] + 1, high[i]) if passed[i] else (low[i], middle[i])
    return low


def log_survival(law: str, x: float) -> mpmath.mpf:
    with mpmath.workdps(40):
        x = mpmath.mpf(x)
        return -x if law == "laplace" else mpmath.log(mpmath.erfc(x / mpmath.sqrt(2)))


def log_share(count: int) -> mpmath.mpf:
    return mpmath.log(count) - DIGITS * mpmath.log(2)


@pytest.mark.parametrize("law", LAWS)
def test_break_points_have_the_exact_law(law):
    """P(|Z| >= x) of the sampler to 1e-8 of itself from x = 1e-6 to the end of its range."""
    x = np.concatenate([np.geomspace(1e-6, 1.0, 40), np.linspace(1.0, lattice.range_of(law) * (1 - 1e-12), 120)])
    draw = jax.jit(lambda *w: lattice.draw_from_words(law, *w))
    found = counts_where(lambda *w: np.abs(np.asarray(draw(*w))) >= x, len(x))
    with mpmath.workdps(40):
        error = [abs(float(log_share(n) - log_survival(law, y))) for n, y in zip(found, x, strict=True)]
    assert max(error) < 1e-8
    assert max(error) < lattice.density_error(law) + 1e-12
    one_minus = [float(1 - mpmath.mpf(n) / 2**DIGITS) for n in found[:40]]  # of the body near 0: P(|Z| < x)
    true = [float(-mpmath.expm1(log_survival(law, y))) for y in x[:40]]
    np.testing.assert_allclose(one_minus, true, rtol=1e-8)


@pytest.mark.parametrize("law", LAWS)
def test_ends_of_the_range(law):
    """The law is exact to a mass of 2^-62, all that is beyond comes before the stated largest draw."""
    every = np.array([0], np.uint32), np.array([0], np.uint32)
    last = float(np.abs(lattice.draw_from_words(law, *every, np.array([0], np.uint32)))[0])
    assert lattice.range_of(law) < last <= lattice.largest(law)
    assert lattice.log_survival(law, lattice.range_of(law)) == pytest.approx(-62 * math.log(2), rel=1e-12)
    assert lattice.range_of("laplace") > 33 and lattice.range_of("gaussian") > 7.9
    assert lattice.tail_mass(law) == pytest.approx(2.0**-62, rel=1e-8)
    for shift in (0.0, 0.5, 3.0):
        exact = log_survival(law, lattice.range_of(law) - shift)
        assert lattice.log_tail_mass(law, shift) == pytest.approx(float(exact), rel=1e-12)
    assert lattice.tail_mass(law, 1e3) == pytest.approx(1.0)


def test_break_points_find_a_short_tail():
    """The control: the float32 sampler has no draw beyond 22.2 scales, where the law has 2e-10."""

    def float32_sampler(own):
        magnitude = own.astype(jnp.int32).astype(jnp.float32)
        return -random._log((magnitude + np.float32(0.5)) * np.float32(2.0**-31))

    x = np.array([5.0, 15.0, 22.0, 22.3])
    found = counts_where(lambda own, low, fill: np.asarray(float32_sampler(jnp.asarray(own))) >= x, 4)
    error = [abs(n / 2**DIGITS / math.exp(-y) - 1) for n, y in zip(found, x, strict=True)]
    assert error[0] < 1e-5 and error[1] > 1e-4 and error[2] > 1e-2 and found[3] == 0


@pytest.mark.parametrize(("law", "scale"), [("laplace", 3.0), ("laplace", 1e7), ("gaussian", 5.0), ("gaussian", 1e7)])
def test_integers_have_their_masses(law, scale):
    """Masses of single integers, counted, against the ideal ones: within the stated error, from 0 to the range."""
    end = 40.0 if law == "laplace" else 8.8
    n = np.unique(np.concatenate([[1, 2, 3], np.linspace(1.0, end, 40) * scale]).astype(np.int64))
    edges = np.concatenate([n, n + 1]).astype(np.int32)
    rounded = jax.jit(lambda *w: lattice.round_to_grid(jnp.float32(scale), lattice.draw_from_words(law, *w)))
    found = counts_where(lambda *w: np.asarray(rounded(*w)) >= edges, len(edges))
    stated = lattice.mass_error(law, scale) + 2e-8  # of the count itself: whole numbers of 94 bits
    with mpmath.workdps(60):
        for i, k in enumerate(n.tolist()):
            low, high = (mpmath.exp(log_survival(law, (mpmath.mpf(k) + e) / scale)) for e in (-0.5, 0.5))
            share = mpmath.mpf(found[i] - found[i + len(n)]) / 2**DIGITS
            depth = float(-mpmath.log(low) / mpmath.log(2))
            digits = 2 * scale * 2.0 ** (depth - 92)  # what `log_coarse_mass` is about
            assert abs(float(mpmath.log(share / (low - high)))) < stated + digits


def test_a_report_on_a_small_grid_keeps_its_epsilon():
    """All masses of x + round(b Z), b = 2, for x = 0 and 1: both possible everywhere, loss 1/2 and no more."""
    scale, shift = 2.0, 1
    n = np.arange(1, 85, dtype=np.int32)
    rounded = jax.jit(lambda *w: lattice.round_to_grid(jnp.float32(scale), lattice.draw_from_words("laplace", *w)))
    beyond = counts_where(lambda *w: np.asarray(rounded(*w)) >= n, len(n))  # |noise| >= 1..84
    mass = [2 * (2**DIGITS - beyond[0])] + [a - b for a, b in itertools.pairwise(beyond)]
    both = [*mass[:0:-1], *mass]
    assert min(both) > 0
    losses = [abs(float(mpmath.log(a) - mpmath.log(b))) for a, b in zip(both[shift:], both[:-shift], strict=True)]
    assert max(losses) <= shift / scale + 2 * lattice.mass_error("laplace", scale) + 1e-9


def test_float32_noise_on_float32_counts_fails_that():
    """The control: a third of the outputs of 1 + 6 Z are outputs of 0 + 6 Z for no word of the generator."""
    scale = np.float32(6.0)

    @jax.jit
    def magnitudes(own):
        return scale * -random._log((own.astype(jnp.float32) + np.float32(0.5)) * np.float32(2.0**-31))

    own = np.asarray(jax.random.bits(random.key(0), (4000,), jnp.uint32))
    outputs = np.float32(1.0) + np.where(own & 1, 1, -1).astype(np.float32) * magnitudes((own >> 1).astype(np.int32))
    nearest = np.rint(np.exp(-np.abs(np.asarray(outputs, np.float64)) / 6) * 2**31).astype(np.int64)
    others = np.clip(nearest[:, None] + np.arange(-1000, 1001), 0, 2**31 - 1).astype(np.int32)
    possible = (np.asarray(magnitudes(others)) == np.abs(np.asarray(outputs))[:, None]).any(1)
    assert 0.3 < 1 - possible.mean() < 0.45


@pytest.mark.parametrize("words_each", [1, 2])
@pytest.mark.parametrize("law", LAWS)
def test_draws_have_the_law_and_controls_fail(law, words_each):
    """KS and chi-square in 200 equal cells, level 1e-3 each; 1 % more scale is found by both with 2e6 draws."""
    x = np.asarray(lattice.SAMPLERS[law](random.key(7), (2 * N,), words_each))
    assert stats.kstest(x, LAWS[law].cdf).pvalue > LEVEL
    assert stats.kstest(x * 1.01, LAWS[law].cdf).pvalue < 1e-4

    def chi_square(y):
        return stats.chisquare(np.histogram(LAWS[law].cdf(y), 200, (0, 1))[0]).pvalue

    assert chi_square(x) > LEVEL
    assert chi_square(x * 1.01) < 1e-6
    for p, moment, square in ((1, 0, 1), (2, 1, 3), (3, 0, 15), (4, 3, 105)):
        if law == "gaussian":
            assert abs((x**p).mean() - moment) < 4.5 * np.sqrt((square - moment**2) / len(x))


@pytest.mark.parametrize("words_each", [1, 2])
def test_draws_are_independent(words_each):
    """Correlations at many lags, across keys, and of low digits of draws that share bits: |r| < 5 / sqrt(n)."""
    size = 16 * 10_000
    x = np.asarray(lattice.laplace(random.key(3), (size,), words_each))
    y = np.asarray(lattice.laplace(random.key(4), (size,), words_each))
    assert abs(np.corrcoef(x, y)[0, 1]) < 5 / np.sqrt(size)
    for lag in [*range(1, 20), size // 16, size // 8, size // 2]:
        assert abs(np.corrcoef(x[lag:], x[:-lag])[0, 1]) < 5 / np.sqrt(size - lag)
    digits = np.floor(x * 2.0**27) % 2  # beyond what a word alone determines
    groups = digits.reshape(16, -1) - 0.5
    for i in range(16):
        for j in range(i):
            assert abs((4 * groups[i] * groups[j]).mean()) < 5 / np.sqrt(size / 16)


def test_shared_digits_are_pairwise_independent():
    """What two of 16 draws add to a word differs, in its first 17 bits, by every number equally often: rank 17."""
    for i in range(16):
        for j in range(i):
            rows = [sum(1 << (b - k) for k in (i, j)) for b in range(15, 32)]
            rank, seen = 0, []
            for row in rows:
                for pivot in seen:
                    row = min(row, row ^ pivot)
                if row:
                    seen.append(row)
                    rank += 1
            assert rank == 17


@pytest.mark.parametrize("scale", [120.0, 1e4, 1e6])
def test_shared_bits_are_rarely_used(scale):
    """How often a draw with one word of its own needs shared bits: at most what `sharing_loss` says, not much less."""
    own = np.asarray(jax.random.bits(random.key(0), (2 * N,), jnp.uint32))
    ends = [
        np.asarray(lattice.round_to_grid(scale, lattice.draw_from_words("laplace", own, np.full_like(own, b), own * 0)))
        for b in (0, 2**32 - 1)
    ]
    mu = 2 * (lattice.largest("laplace") * scale + 1) * 2.0**-31
    used = (ends[0] != ends[1]).mean()
    assert used <= mu + 5 * math.sqrt(mu / own.size)
    assert used >= mu / 20 or scale < 1e4
    assert lattice.sharing_loss("laplace", scale, 2) < 1e-20 < lattice.sharing_loss("laplace", scale, 1)


@pytest.mark.parametrize("words_each", [1, 2])
@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize("shape", [(), (1,), (3,), (4, 5), (7, 1, 3)])
def test_batch_of_keys_and_scales_gives_what_each_gives_alone(law, words_each, shape):
    keys, scales = jax.random.split(random.key(5), 3), jnp.array([0.5, 120.0, 1e6, 4e7], jnp.float32)

    def draw(key, scale):
        return lattice.round_to_grid(scale, lattice.SAMPLERS[law](key, shape, words_each))

    batched = jax.jit(jax.vmap(jax.vmap(draw, (None, 0)), (0, None)))(keys, scales)
    assert batched.shape == (3, 4, *shape) and batched.dtype == jnp.int32
    last = jax.jit(vmap_last(vmap_last(draw, (None, -1)), (-1, None)))(keys, scales)
    np.testing.assert_array_equal(np.moveaxis(last, (-1, -2), (0, 1)), batched)
    for i in range(3):
        for j in range(4):
            np.testing.assert_array_equal(jax.jit(draw)(keys[i], scales[j]), batched[i, j])


def test_a_key_is_used_once():
    with jax.debug_key_reuse(True), pytest.raises(jax.errors.KeyReuseError):
        jax.jit(lambda k: (lattice.laplace(k, (3,)), lattice.laplace(k, (3,))))(random.key(1))


def test_precision_of_the_caller_does_not_change():
    lattice.round_to_grid(3.0, lattice.gaussian(random.key(0), (3,)))
    assert jnp.arange(2.0).dtype == jnp.float32 and not jax.config.jax_enable_x64


def low_bits(x: np.ndarray) -> float:
    """p-value of the last three bits being uniform."""
    return float(stats.chisquare(np.bincount(np.asarray(x, np.int64) & 7, minlength=8)).pvalue)


@pytest.mark.parametrize(
    ("law", "power"), [("laplace", 22), ("laplace", 25), ("gaussian", 23), ("gaussian", 25), ("gaussian", 27)]
)
def test_noise_has_no_lattice(law, power):
    """Low bits of noise at large scales are uniform, also among large values; those of float32 products are not."""
    scale = jnp.float32(2.0**power)
    unit = lattice.SAMPLERS[law](random.key(11), (N,))
    x = np.asarray(lattice.round_to_grid(scale, unit), np.int64)
    far = np.abs(x) > 2.0 ** (power + 1)
    assert low_bits(x) > LEVEL and low_bits(x[far]) > LEVEL
    naive = np.asarray(jnp.round(scale * jnp.asarray(np.asarray(unit), jnp.float32)), np.int64)
    assert low_bits(naive[far]) < 1e-12 and low_bits(naive) < 1e-12


def test_small_scales_round_to_the_right_integers():
    """At any scale, P(0) = P(|Z| < 1 / (2 b)): most of the mass at small ones, and no overflow or NaN at tiny ones."""
    unit = lattice.laplace(random.key(2), (N,))
    for scale in (0.05, 0.3, 2.0):
        p = 1 - math.exp(-0.5 / scale)
        share = (np.asarray(lattice.round_to_grid(scale, unit)) == 0).mean()
        assert abs(share - p) < 5 * math.sqrt(p * (1 - p) / N) + 1e-9
    assert not np.asarray(lattice.round_to_grid(lattice.scale_up("laplace", 1e-35), unit)).any()


@pytest.mark.parametrize("law", LAWS)
def test_scales_are_rounded_up_and_refused_beyond_the_grid(law):
    rng = np.random.default_rng(0)
    for scale in [1e-44, 0.1, 1.0, 1 / 3, *np.exp(rng.uniform(-20, 17, 200))]:
        assert 1 <= lattice.scale_up(law, scale) / scale < 1 + 2e-7 or scale < 1e-37
    most = lattice.max_scale(law)
    end = np.uint32(0)
    largest = lattice.round_to_grid(lattice.scale_up(law, most), lattice.draw_from_words(law, *np.array([[end]] * 3)))
    assert 2**31 * 0.98 < int(largest[0]) <= 2**31 - 1
    for scale in (0.0, -1.0, most * 1.001, math.inf, math.nan):
        with pytest.raises(ValueError, match="out of range"):
            lattice.scale_up(law, scale)


def test_stated_errors_grow_with_the_scale():
    for law in LAWS:
        errors = [lattice.mass_error(law, s) for s in (1.0, 1e4, 1e7)]
        assert errors == sorted(errors) and errors[0] < 2e-8 and errors[2] < 2e-6
        assert lattice.log_coarse_mass(1e3) == -math.inf
        assert -45 * math.log(2) > lattice.log_coarse_mass(1e7) > -62 * math.log(2)
        assert lattice.sharing_loss(law, 1e7, 2) < 1e-18
        assert lattice.sharing_loss(law, 1e9, 1) == 1.0 and lattice.sharing_loss(law, 2.0**20) < 1e-19


def test_coins_round_without_bias_and_leave_the_grid_alone():
    on_grid = jnp.arange(2**10 + 1, dtype=jnp.float32) * np.float32(2.0**-10)
    for seed in range(3):
        np.testing.assert_array_equal(lattice.coin_round(random.key(seed), on_grid, 10), np.arange(2**10 + 1))
        np.testing.assert_array_equal(lattice.coin_round(random.key(seed), on_grid, 16), 64 * np.arange(2**10 + 1))
    for cost in (0.995, 1 / 3, 1e-4):
        x = np.asarray(lattice.coin_round(random.key(1), jnp.full((N,), cost, jnp.float32), 4), np.float64)
        scaled = float(np.float32(cost)) * 16
        assert set(np.unique(x)) <= {math.floor(scaled), math.floor(scaled) + 1}
        p = scaled - math.floor(scaled)
        assert abs(x.mean() - scaled) < 5 * math.sqrt(p * (1 - p) / N)
    outside = jnp.array([-1.0, 2.0], jnp.float32)
    np.testing.assert_array_equal(lattice.coin_round(random.key(0), outside, 3), [0, 8])


def test_grid_of_costs():
    assert lattice.grid_bits(20, 20_000) == 12
    assert lattice.grid_bits(20, 20_000, 62) == 16
    assert lattice.grid_bits(1, 1) == 16
    for H, K in ((20, 20_000), (20, 10**7), (1, 2**29), (7, 12_345)):
        k = lattice.grid_bits(H, K)
        assert H * K * 2**k < 2**31 and (k == 16 or H * K * 2 ** (k + 1) >= 2**31)
    assert lattice.grid_bits(1, 2**30, centred=False) == 0
    for K in (2**30, 2**31):
        with pytest.raises(ValueError, match="do not fit"):
            lattice.grid_bits(1, K)
    with pytest.raises(ValueError, match="do not fit"):
        lattice.grid_bits(1, 2**31, centred=False)


@pytest.mark.parametrize("scale", [0.01, 0.7, 3.0, 120.0, 1800.0, 30_000.0])
def test_division_is_exact_and_moves_with_the_data(scale):
    """round(total / k) by integers of any size, at the worst places: next to halves, and at the ends of 32 bits."""
    k = int(lattice.divisor(scale))
    assert k % 2 == 1 and scale <= 2**20 / k <= scale * (1 + 2 / k) * (1 + 1e-9)
    rng = np.random.default_rng(0)
    halves = rng.integers(-(2**30) // k, 2**30 // k, 20_000) * k + k // 2 + rng.integers(-1, 3, 20_000)
    ends = [-(2**31), 2**31 - 1]
    total = np.clip(np.concatenate([halves, rng.integers(-(2**31), 2**31, 20_000), ends]), *ends)
    found = np.asarray(lattice.divide(np.int32(k), jnp.asarray(total, jnp.int32)))
    np.testing.assert_array_equal(found, (2 * total + k) // (2 * k))
    inside = total[np.abs(total) < 2**31 - k]
    moved = np.asarray(lattice.divide(np.int32(k), jnp.asarray(inside + k, jnp.int32)))
    np.testing.assert_array_equal(moved, (2 * inside + k) // (2 * k) + 1)


def test_shared_unit_noise_has_the_law_of_each_scale():
    unit = lattice.unit_integers("laplace", random.key(9), (N,))
    scales = (2.0, 120.0)
    ks = jnp.array([lattice.divisor(s) for s in scales], jnp.int32)
    both = jax.vmap(lattice.divide, (0, None))(ks, unit)
    assert both.shape == (2, N) and both.dtype == jnp.int32
    for x, k in zip(np.asarray(both), np.asarray(ks), strict=True):
        law = stats.laplace(scale=2**20 / int(k))
        cells = np.unique(np.round(law.ppf(np.linspace(0.001, 0.999, 60)))) + 0.5
        share = np.diff(law.cdf(np.concatenate([[-np.inf], cells, [np.inf]])))
        found = np.histogram(x, np.concatenate([[-np.inf], cells, [np.inf]]))[0]
        assert stats.chisquare(found, share * N).pvalue > LEVEL
        wrong = np.diff(stats.laplace(scale=1.01 * 2**20 / int(k)).cdf(np.concatenate([[-np.inf], cells, [np.inf]])))
        assert stats.chisquare(found, wrong * N).pvalue < 1e-6
    for scale in (0.0, 2e6, 1e-5):
        with pytest.raises(ValueError, match="no divisor"):
            lattice.divisor(scale)
