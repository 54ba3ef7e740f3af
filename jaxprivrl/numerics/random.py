"""Unit-scale samplers with explicit keys, and the generator behind every random number of the package.

The generator is Threefry-2x32 with its full 20 rounds (Salmon et al. 2011), the one JAX uses by default. Two things
differ from JAX's own: both words of a block are used, computed in one pass, and the rounds are unrolled, so that XLA
makes one loop of them. Keys are typed keys of their own implementation (`jax.random.key(seed, impl=PRNG)`), so that
`jax.random` works on them, `jax.debug_key_reuse` watches them, and a batch of keys gives what each key gives alone.
"""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.custom_batching import custom_vmap
from jax.extend.random import define_prng_impl

from jaxprivrl.numerics.axes import batch_last, merge_rows

Array = jax.Array
Key = jax.Array

_ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
_PARITY = np.uint32(0x1BD11BDA)


def threefry_2x32(key: Array, hi: Array, lo: Array) -> tuple[Array, Array]:
    """One Threefry-2x32-20 block per counter: u32[2] and counters u32[...] to two words u32[...]."""
    k0, k1 = key[0], key[1]
    schedule = (k0, k1, k0 ^ k1 ^ _PARITY)
    x0, x1 = hi + k0, lo + k1
    for i in range(5):
        for rotation in _ROTATIONS[i % 2]:
            x0 = x0 + x1
            x1 = x0 ^ ((x1 << np.uint32(rotation)) | (x1 >> np.uint32(32 - rotation)))
        x0 = x0 + schedule[(i + 1) % 3]
        x1 = x1 + schedule[(i + 2) % 3] + np.uint32(i + 1)
    return x0, x1


def _seed(seed: Array) -> Array:
    """u32[2] key words from an integer, as JAX's own threefry does."""
    if seed.dtype.itemsize == 8:
        return jnp.stack([(seed >> 32).astype(jnp.uint32), seed.astype(jnp.uint32)])
    return jnp.stack([jnp.zeros((), jnp.uint32), seed.astype(jnp.uint32)])


def _fold_in(key: Array, data: Any) -> Array:
    return jnp.stack(threefry_2x32(key, jnp.zeros((), jnp.uint32), data.astype(jnp.uint32)))


def _split(key: Array, shape: tuple[int, ...]) -> Array:
    counter = jax.lax.iota(jnp.uint32, math.prod(shape)).reshape(shape)
    return jnp.stack(threefry_2x32(key, jnp.zeros_like(counter), counter), axis=-1)


def _blocks(key: Array, n: int) -> Array:
    """Words of blocks 0..n-1, u32[2, n]."""

    def words(key: Array) -> tuple[Array, Array]:
        counter = jax.lax.iota(jnp.uint32, n)
        return threefry_2x32(key, jnp.zeros_like(counter), counter)

    def stacked(key: Array) -> Array:
        return jnp.stack(words(key))

    def key_by_key(keys: Array) -> Array:
        # A loop of XLA has one output on CPU, so two outputs are two loops that each do all rounds. A pair of words
        # travels as one complex number instead, which is moved but never computed with; the loop over keys keeps
        # XLA from undoing that.
        def pair(key: Array) -> Array:
            return jax.lax.complex(*(jax.lax.bitcast_convert_type(word, jnp.float32) for word in words(key)))

        pairs = jax.lax.map(pair, keys)[:, None]
        first = (np.arange(2) == 0)[None, :, None]
        return jax.lax.bitcast_convert_type(jnp.where(first, jnp.real(pairs), jnp.imag(pairs)), jnp.uint32)

    @custom_vmap
    def blocks(key: Array) -> Array:
        return stacked(key)

    @blocks.def_vmap
    def rule(axis_size: int, in_batched: list[Any], keys: Array) -> tuple[Array, bool]:
        del axis_size, in_batched
        return jax.lax.platform_dependent(keys, cpu=key_by_key, default=jax.vmap(stacked)), True

    return blocks(key)


def _random_bits(key: Array, bit_width: int, shape: tuple[int, ...]) -> Array:
    """Random bits of any width: word 0 of blocks 0..n/2-1, then word 1 of the same blocks."""
    words = math.prod(shape) * (2 if bit_width == 64 else 1)
    bits = _blocks(key, (words + 1) // 2).reshape(-1)[:words]
    if bit_width == 32:
        return bits.reshape(shape)
    if bit_width == 64:
        low, high = bits[: words // 2].astype(jnp.uint64), bits[words // 2 :].astype(jnp.uint64)
        return (low | (high << np.uint64(32))).reshape(shape)
    return (bits >> np.uint32(32 - bit_width)).astype({8: jnp.uint8, 16: jnp.uint16}[bit_width]).reshape(shape)


PRNG = define_prng_impl(
    key_shape=(2,), seed=_seed, split=_split, random_bits=_random_bits, fold_in=_fold_in, name="threefry_fused",
    tag="tff",
)  # fmt: skip


def key(seed: int | Array) -> Key:
    """The key of a seed: every random number of a run descends from it."""
    return jax.random.key(seed, impl=PRNG)


def laplace(key: Key, shape: tuple[int, ...]) -> Array:
    """Lap(1), f32[shape], variance 2; the key is consumed.

    One 32-bit word per draw: one bit of sign, 31 bits of -ln(U). |x| never exceeds 22.2, and near 0 has steps of 6e-8.
    """
    bits = batch_last(jax.random.bits(key, shape, jnp.uint32))
    # The detour over int32 is exact for 31 bits and converts in one vector instruction, which uint32 does not.
    magnitude = (bits >> np.uint32(1)).astype(jnp.int32).astype(jnp.float32)
    x = -_log((magnitude + np.float32(0.5)) * np.float32(2.0**-31))
    return jnp.where((bits & np.uint32(1)) == 0, x, -x)


def _log(x: Array) -> Array:
    """ln x of a normal positive f32 to 2e-7 of itself or 6e-8: half the cost of `jnp.log`, which covers all of f32.

    x = 2^e (1 + m) with 1 + m in [sqrt(1/2), sqrt(2)); ln(1 + m) by the polynomial of the Cephes library.
    """
    bits = jax.lax.bitcast_convert_type(x, jnp.int32)
    e = (bits - np.int32(0x3F3504F3)) >> np.int32(23)
    m = jax.lax.bitcast_convert_type(bits - (e << np.int32(23)), jnp.float32) - np.float32(1.0)
    p = jnp.full_like(m, _LOG[-1])
    for c in _LOG[-2::-1]:
        p = p * m + np.float32(c)
    square = m * m
    return e.astype(jnp.float32) * np.float32(math.log(2.0)) + (m + square * (m * p - np.float32(0.5)))


_LOG = (
    3.3333331174e-1, -2.4999993993e-1, 2.0000714765e-1, -1.6668057665e-1, 1.4249322787e-1, -1.2420140846e-1,
    1.1676998740e-1, -1.1514610310e-1, 7.0376836292e-2,
)  # fmt: skip


def gaussian(key: Key, shape: tuple[int, ...]) -> Array:
    """N(0, 1), f32[shape], by the Box-Muller transform: |x| never exceeds 6.7; the key is consumed.

    A block of two words gives the draws +-r cos(pi x) and +-r sin(pi x), half the first axis apart: r from 31 bits of
    the first word and the sign from its last bit, x in [-1/2, 1/2) from the second word. cos(pi x) = sin(pi/2 - pi |x|)
    makes both draws one formula, which XLA fuses with the generator.
    """
    rows, *rest = shape or (1,)
    words = batch_last(jax.random.bits(key, (2, (rows + 1) // 2, *rest), jnp.uint32))
    magnitude = (words[:1] >> np.uint32(1)).astype(jnp.int32).astype(jnp.float32)
    radius = jnp.sqrt(np.float32(-2.0) * jnp.log((magnitude + np.float32(0.5)) * np.float32(2.0**-31)))
    radius = jnp.where((words[:1] & np.uint32(1)) == 0, radius, -radius)
    x = jax.lax.bitcast_convert_type(words[1:], jnp.int32).astype(jnp.float32) * np.float32(2.0**-32)
    first = np.arange(2).reshape(2, *[1] * (x.ndim - 1)) == 0
    x = jnp.where(first, np.float32(0.5) - jnp.abs(x), x)
    square, sine = x * x, jnp.full_like(x, _SINE[-1])
    for c in _SINE[-2::-1]:
        sine = sine * square + np.float32(c)
    return merge_rows(radius * (x * sine))[:rows].reshape(shape)


# Minimax polynomial in x^2 for sin(pi x) / x on |x| <= 1/2; its relative error is 5e-9.
_SINE = (3.14159264, -5.16770968, 2.55006973, -0.59824213, 0.07756039)


def uniform(key: Key, shape: tuple[int, ...]) -> Array:
    """Uniform on [0, 1), f32[shape], 24 bits; the key is consumed."""
    bits = batch_last(jax.random.bits(key, shape, jnp.uint32))
    return (bits >> np.uint32(8)).astype(jnp.int32).astype(jnp.float32) * np.float32(2.0**-24)


def laplace_sum(key: Key, m: Array, shape: tuple[int, ...]) -> Array:
    """Sums of m draws of Lap(1), f32[shape], for m of that shape or less: sqrt(2 G) N, G ~ Gamma(m).

    The key is consumed.
    """
    key_gamma, key_normal = jax.random.split(key)
    count = jnp.broadcast_to(jnp.asarray(m).astype(jnp.float32), shape)
    gamma = jax.random.gamma(key_gamma, jnp.maximum(count, 1.0))
    return jnp.where(count > 0, jnp.sqrt(2.0 * gamma), 0.0) * gaussian(key_normal, shape)


def gaussian_sum(key: Key, m: Array, shape: tuple[int, ...]) -> Array:
    """Sums of m draws of N(0, 1), f32[shape], m broadcast to the shape; the key is consumed."""
    return jnp.sqrt(jnp.broadcast_to(jnp.asarray(m).astype(jnp.float32), shape)) * gaussian(key, shape)
