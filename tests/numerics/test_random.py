"""The generator is Threefry, both words used; the samplers have the stated laws.

Keys are fixed, so every test is deterministic; a test with level 1e-3 would fail for one key in a thousand.
"""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.extend.random import threefry_2x32
from mechanism_pieces import LIMIT, jit, sum_of_laplace_cdf
from scipy import stats

from jaxprivrl.numerics import random
from jaxprivrl.privacy.laws import AdditiveLaw
from jaxprivrl.privatizers import PRIVATIZERS

N = 200_000
LEVEL = 1e-3
MOMENTS = {
    "laplace": lambda p: math.factorial(p) * (p % 2 == 0),
    "gaussian": lambda p: math.prod(range(1, p, 2)) * (p % 2 == 0),
    "uniform": lambda p: 1 / (p + 1),
}
SAMPLERS = {"laplace": random.laplace, "gaussian": random.gaussian, "uniform": random.uniform}
LAWS = {"laplace": stats.laplace, "gaussian": stats.norm, "uniform": stats.uniform}


def draws(name: str, seed: int = 0, n: int = N) -> np.ndarray:
    return np.asarray(SAMPLERS[name](random.key(seed), (n,)), np.float64)


def test_blocks_are_those_of_jax():
    key = random.key(123)
    words = jax.random.key_data(key)
    n = 1001
    counter = jnp.arange((n + 1) // 2, dtype=jnp.uint32)
    block = threefry_2x32(words, jnp.concatenate([jnp.zeros_like(counter), counter]))
    np.testing.assert_array_equal(jax.random.bits(key, (n,), jnp.uint32), block[:n])


def test_known_answer():
    """The reference vector of Salmon et al. for key and counter zero, and for all ones."""
    zero = jnp.zeros((), jnp.uint32)
    assert [int(w) for w in random.threefry_2x32(jnp.zeros(2, jnp.uint32), zero, zero)] == [0x6B200159, 0x99BA4EFE]
    ones = jnp.full((2,), 0xFFFFFFFF, jnp.uint32)
    assert [int(w) for w in random.threefry_2x32(ones, ones[0], ones[1])] == [0x1CB996FC, 0xBB002BE7]


@pytest.mark.parametrize("name", LAWS)
def test_law_and_controls(name):
    """KS at level 1e-3 accepts the stated scale and rejects 0.8x and 1.25x."""
    x = draws(name)
    law = LAWS[name]
    assert stats.kstest(x, law.cdf).pvalue > LEVEL
    for wrong in (0.8, 1.25):
        assert stats.kstest(x, law(scale=wrong).cdf).pvalue < 1e-12


@pytest.mark.parametrize("name", LAWS)
def test_moments(name):
    """First four moments within 4.5 standard errors: false alarm 7e-6 each."""
    x = draws(name)
    for p in range(1, 5):
        moment, square = MOMENTS[name](p), MOMENTS[name](2 * p)
        assert abs((x**p).mean() - moment) < 4.5 * np.sqrt((square - moment**2) / N)


@pytest.mark.parametrize("name", LAWS)
def test_no_serial_or_cross_stream_correlation(name):
    """Correlations at lags 1..32, at half the length (the two words of a block) and across seeds: |r| < 5/sqrt(n)."""
    x = draws(name)
    x = (x - x.mean()) / x.std()
    for lag in [*range(1, 33), N // 2]:
        assert abs((x[lag:] * x[:-lag]).mean()) < 5 / np.sqrt(N - lag)
    for other in range(1, 6):
        y = draws(name, other)
        assert abs(np.corrcoef(x, y)[0, 1]) < 5 / np.sqrt(N)
    folded = np.asarray(SAMPLERS[name](jax.random.fold_in(random.key(0), 1), (N,)))
    assert abs(np.corrcoef(x, folded)[0, 1]) < 5 / np.sqrt(N)


@pytest.mark.parametrize("name", LAWS)
@pytest.mark.parametrize("shape", [(), (1,), (3,), (4, 5), (7, 1, 3)])
def test_batch_of_keys_gives_what_each_gives_alone(name, shape):
    keys = jax.random.split(random.key(5), 6)
    sample = SAMPLERS[name]
    batched = jax.jit(jax.vmap(lambda k: sample(k, shape)))(keys)
    assert batched.shape == (6, *shape)
    for i in range(6):
        np.testing.assert_allclose(batched[i], jax.jit(lambda k: sample(k, shape))(keys[i]), rtol=2e-6)


def test_bits_of_a_batch_are_bit_for_bit():
    keys = jax.random.split(random.key(5), 6)
    batched = jax.vmap(lambda k: jax.random.bits(k, (11,), jnp.uint32))(keys)
    for i in range(6):
        np.testing.assert_array_equal(batched[i], jax.random.bits(keys[i], (11,), jnp.uint32))


def test_keys_are_distinct():
    split = jax.random.key_data(jax.random.split(random.key(0), 1000))
    folded = jax.random.key_data(jax.vmap(lambda i: jax.random.fold_in(random.key(1), i))(jnp.arange(1000)))
    seeds = jax.random.key_data(jax.vmap(random.key)(jnp.arange(1000)))
    rows = np.concatenate([split, folded, seeds])
    assert len(np.unique(rows, axis=0)) == 3000


def test_words_rarely_repeat():
    """Birthday bound: n = 2e5 words collide n^2/2^33 = 4.7 times on average; more than 20 has probability 1e-7."""
    bits = np.asarray(jax.random.bits(random.key(3), (N,), jnp.uint32))
    assert N - len(np.unique(bits)) <= 20


def test_ranges():
    """Draws stay within the stated supports, and reach far into them."""
    x = np.abs(draws("laplace", n=2_000_000))
    assert x.max() < 22.2
    assert x.max() > 12  # reaches past where 24 bits end less often: P(no |x| > 12 in 2e6) = 4e-6
    assert np.abs(draws("gaussian", n=2_000_000)).max() < 6.7
    u = draws("uniform")
    assert u.min() >= 0 and u.max() < 1


@pytest.mark.parametrize("width", [8, 16, 32])
def test_other_widths(width):
    bits = np.asarray(jax.random.bits(random.key(0), (10_000,), jnp.dtype(f"uint{width}")))
    assert abs(bits.mean() / (2**width - 1) - 0.5) < 5 * 0.2887 / 100  # five standard errors


def test_logarithm():
    """Against float64 over all that a sampler may ask for: 2^-32 to 1, every exponent, to 2e-7 of itself or 1e-7."""
    x = np.float32(np.concatenate([np.geomspace(2.0**-32, 1.0, 1_000_000), 1 - np.arange(1000) * 2.0**-24]))
    true = np.log(x.astype(np.float64))
    error = np.abs(np.asarray(jax.jit(random._log)(x), np.float64) - true)
    assert np.all(error <= 2e-7 * np.abs(true) + 1e-7)
    assert random._log(jnp.float32(1.0)) == 0


@pytest.mark.parametrize("n", [1, 2, 7, 64, 1440])
def test_pairs_of_words_survive_packing(n):
    """A batch computes both words of a block in one pass, packed; all bit patterns come through, jitted or not."""
    keys = jax.vmap(random.key)(jnp.arange(33))
    alone = np.stack([np.asarray(jax.random.bits(k, (n,), jnp.uint32)) for k in keys])
    batched = jax.vmap(lambda k: jax.random.bits(k, (n,), jnp.uint32))
    np.testing.assert_array_equal(batched(keys), alone)
    np.testing.assert_array_equal(jax.jit(batched)(keys), alone)
    square = jax.vmap(jax.vmap(lambda k: jax.random.bits(k, (n,), jnp.uint32)))(keys.reshape(3, 11))
    np.testing.assert_array_equal(square.reshape(33, n), alone)


@pytest.mark.parametrize("shape", [(), (5,), (1, 4, 3)])
def test_batches_of_normals_are_what_each_key_gives_alone(shape):
    keys = jax.vmap(random.key)(jnp.arange(4))
    batch = jit(jax.vmap(lambda key: random.gaussian(key, shape)))(keys)
    assert batch.shape == (4, *shape)
    np.testing.assert_allclose(batch[2], jit(lambda key: random.gaussian(key, shape))(keys[2]), rtol=1e-6)


def test_law_of_the_normals():
    z = np.asarray(jit(lambda: random.gaussian(random.key(11), (200_000,)))(), np.float64)
    assert stats.kstest(z, "norm").pvalue > 1e-3
    assert stats.kstest(0.98 * z, "norm").pvalue < 1e-6
    first, second = z[:100_000], z[100_000:]  # the two draws of a block
    for a, b in ((first, second), (first**2, second**2), (np.abs(first), second)):
        assert abs(np.corrcoef(a, b)[0, 1]) * math.sqrt(len(a)) < LIMIT
    tail = np.mean(np.abs(z) > 4) / (2 * stats.norm.sf(4))
    assert 0.3 < tail < 2.5  # 13 expected


# Sums of draws, made at once


ADDITIVE = {p.law.name: p.law for p in PRIVATIZERS.values() if isinstance(p.law, AdditiveLaw)}
SUM_CDF = {
    "Laplace": lambda x, m: sum_of_laplace_cdf(x, m, 1.0) if m < 100 else stats.norm.cdf(x / math.sqrt(2 * m)),
    "Gaussian": lambda x, m: stats.norm.cdf(x / math.sqrt(m)),
}
SUMS = 20_000


@pytest.mark.parametrize("m", [1, 2, 5, 40, 100_000, 2**31 - 1])
@pytest.mark.parametrize("name", ADDITIVE)
def test_a_sum_has_the_law_of_its_draws_and_controls(name, m):
    """The exact law of few draws, the normal one of many, which is nearer to it than this sample can tell."""
    law = ADDITIVE[name]
    x = np.asarray(jit(lambda m: law.sample_sum(random.key(8), m, (SUMS,)))(jnp.int32(m)), np.float64)
    assert stats.kstest(x, lambda x: SUM_CDF[name](x, m)).pvalue > LEVEL
    for wrong in (0.9, 1.1):
        assert stats.kstest(wrong * x, lambda x: SUM_CDF[name](x, m)).pvalue < 1e-6
    variance = law.unit_variance * m
    kurtosis = 3 / m if name == "Laplace" else 0.0  # in excess of a normal variable's
    assert abs(x.var() / variance - 1) < LIMIT * math.sqrt((2 + kurtosis) / SUMS)


@pytest.mark.parametrize("name", ADDITIVE)
def test_a_sum_is_of_as_many_draws_as_each_entry_says(name):
    law, m = ADDITIVE[name], np.array([[0], [1], [9]])
    x = np.asarray(jit(lambda m: law.sample_sum(random.key(9), m, (3, SUMS)))(jnp.asarray(m, jnp.int32)), np.float64)
    np.testing.assert_array_equal(x[0], 0.0)
    for row, k in zip(x[1:], (1, 9), strict=True):
        assert stats.kstest(row, lambda x, k=k: SUM_CDF[name](x, k)).pvalue > LEVEL
    assert abs(np.corrcoef(x[1], x[2])[0, 1]) * math.sqrt(SUMS) < LIMIT


@pytest.mark.parametrize("name", ADDITIVE)
def test_a_batch_of_sums_is_what_each_key_gives_alone(name):
    law, keys = ADDITIVE[name], jax.random.split(random.key(5), 4)
    m = jnp.asarray([1, 3, 50, 10**6], jnp.int32)

    def draw(key, m):
        return law.sample_sum(key, m, (2, 3))

    batched = jit(jax.vmap(draw))(keys, m)
    for i in range(4):
        np.testing.assert_allclose(batched[i], jit(draw)(keys[i], m[i]), rtol=1e-5)
