"""Noise of local reports, an epoch of users at once: sums of many draws, each rounded by its own user.

All sums are integers in steps of the grid on which users report. Programs are built by `binomial.in_64_bits`.
"""

import jax
import jax.numpy as jnp
import numpy as np

from jaxprivrl.numerics import lanes
from jaxprivrl.numerics.binomial import binomial, poisson
from jaxprivrl.numerics.lanes import REJECTED, Words

Array = jax.Array
Key = jax.Array


def rounded_laplace_sum(key: Key, users: Array, scale: Array) -> Array:
    """Sum of `users` draws of Laplace noise, each rounded to the nearest step, i64[...]; the key is consumed.

    Of m draws Binomial(m, e^(-1/2b)) are not rounded to zero, half of them positive in law; a magnitude is one plus
    a geometric number of further steps, failure chance e^(-1/b). So the sum is, exactly,
      n+ - n- + NegativeBinomial(n+) - NegativeBinomial(n-),
      n ~ Binomial(m, e^(-1/2b)), n+ ~ Binomial(n, 1/2), n- = n - n+.

    Args:
      key: of the package's generator.
      users: i64[...], how many draws; users * scale must stay below 2^62.
      scale: f64[...] of the same shape, b > 0 in steps of the grid.

    Privacy: the law of the sum of local reports, each with Laplace noise rounded after it was added; the scale comes
    from accounting.

    Reference: the rounding of one report, and why it is post-processing: Mironov (2012); sums of geometric numbers are
    negative binomial, a Poisson law whose mean has a gamma law.
    """
    lanes.need_64_bits(scale, "scale")
    key_any, key_sign, key_gamma, key_steps = jax.random.split(key, 4)
    moved = binomial(key_any, users, jnp.exp(-0.5 / scale))
    up = binomial(key_sign, moved, jnp.full(moved.shape, 0.5, jnp.float64))
    signed = jnp.stack([up, moved - up])
    mean = gamma(key_gamma, signed.astype(jnp.float64)) / jnp.expm1(1.0 / scale)[None]
    total = signed + poisson(key_steps, mean)
    return total[0] - total[1]


def rounded_gaussian_sum(key: Key, users: Array, scale: Array) -> Array:
    """Sum of `users` draws of Gaussian noise, each rounded to the nearest step, i64[...]; the key is consumed.

    round(N(0, m s^2 + (m - 1)/12)): the sum has the variance m (s^2 + 1/12), of which this rounding adds one 1/12.
    Exact for m = 1; else, for s >= 1, the total variation from the exact law is at most 5e-4/(m (s^2 + 1/12)^2). Below
    s = 1/2 a rounded draw has less variance than s^2 + 1/12, and this law is
    off by .03 in total variation, at s = .3 by .2: use a finer grid there.

    Args:
      key: of the package's generator.
      users: i64[...], how many draws, m; zero users have no noise.
      scale: f64[...] of the same shape, the standard deviation s in steps of the grid.

    Privacy: the law of the sum of local reports, up to the distance above; the scale comes from accounting.
    """
    lanes.need_64_bits(scale, "scale")
    m = users.astype(jnp.float64)
    variance = m * scale * scale + (m - 1.0) * (1 / 12)
    bits = jax.random.bits(key, (3, *scale.shape), jnp.uint32)
    z = lanes.normal(lanes.uniform(bits[0], bits[1]), bits[2])
    return jnp.where(users > 0, jnp.round(jnp.sqrt(jnp.maximum(variance, 0.0)) * z), 0.0).astype(jnp.int64)


def gamma(key: Key, shape: Array) -> Array:
    """Gamma(shape) of scale one for every entry, f64[...]; zero where the shape is below 1; the key is consumed.

    Reference: Marsaglia and Tsang, A simple method for generating gamma variables, 2000. d (ln v - v + 1) is computed
    from v - 1, so that shapes of 1e12 lose nothing.
    """
    lanes.need_64_bits(shape, "shape")
    return _gamma(jax.random.key_data(key), shape.reshape(-1)).reshape(shape.shape)


def _gamma_first(words: Words, lane: Array, shape: Array) -> Array:
    return _gamma_again(words, lane, jnp.zeros((), jnp.uint32), shape)


def _gamma_again(words: Words, lane: Array, turn: Array, shape: Array) -> Array:
    u, word, coin = lanes.randomness(words, lane, turn * np.uint32(2))
    z = lanes.normal(u, word)
    d = jnp.maximum(shape, 1.0) - 1 / 3
    root = 1.0 / jnp.sqrt(9.0 * d)
    t = root * z
    excess = t * (3.0 + t * (3.0 + t))  # of v = (1 + t)^3 over 1
    accepted = lanes.log(coin) < 0.5 * z * z + d * (3.0 * lanes.log1p(t) - excess)
    x = jnp.where((t > -1.0) & accepted, d + d * excess, REJECTED)
    return jnp.where(shape < 1.0, 0.0, x)


_gamma = lanes.until_settled(_gamma_first, _gamma_again)
