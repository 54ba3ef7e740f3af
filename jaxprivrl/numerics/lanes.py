"""Many random draws at once in 64 bits: lanes in step, and those that fail drawn again.

A sampler with rejection is a loop of unknown length for one draw. For thousands of draws in step it would be as long
as the unluckiest takes. Here a first attempt is made in all lanes; then the lanes that failed are picked out, one of
every column of at most 16, and tried again until none is left. Attempts are selects and arithmetic, without a branch,
so that XLA makes one vector loop of each, generator included.

Everything runs under `in_64_bits`: counts reach 1e12 and more, and float32 stops counting at 2^24.
"""

import math
from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.custom_batching import custom_vmap

from jaxprivrl.numerics.random import threefry_2x32

Array = jax.Array
Words = Any  # a pair of arrays u32[...], the words of a key
Attempt = Callable[..., Array]

REJECTED, CUT_SHORT = -math.inf, -1e308
"""In the place of a draw: try again with new randomness; finish what the first attempt began."""

_COLUMN = 16
_BLOCK = 120  # lanes of a key that are settled together: with a batch of 64 their arrays stay in the cache


def in_64_bits(fn: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    """`jax.jit(fn)` with 64-bit types inside, whatever the caller's own setting, which is left as it is.

    Python and NumPy arguments keep their 64 bits; results are 64-bit arrays that may be used anywhere.
    """
    jitted = jax.jit(fn, **options)

    @wraps(fn)
    def call(*args: Any, **kwargs: Any) -> Any:
        with jax.enable_x64(True):
            return jitted(*args, **kwargs)

    return call


def need_64_bits(x: Array, what: str) -> None:
    """Raises TypeError unless x is f64."""
    if x.dtype != jnp.float64:
        raise TypeError(f"{what} has type {x.dtype}; expected float64. Build and call the program by in_64_bits.")


def until_settled(first: Attempt, again: Attempt, finish: Attempt | None = None) -> Callable[..., Array]:
    """Draws f64[R] from the words of a key u32[2] and parameters f64[R]; `vmap` puts the batch last, in one loop.

    A draw depends on its key, its place and its parameters, and on those of its own key in its column: what shares a
    batch with it changes nothing.

    Args:
      first: (words, lane, *parameters) -> draws, or marks REJECTED or CUT_SHORT.
      again: (words, lane, turn, *parameters) -> draws or REJECTED; turn counts from 1.
      finish: (words, lane, turn, *parameters) -> draws, where the mark is CUT_SHORT.
    """

    def settle(
        mark: float, attempt: Attempt, x: Array, words: Words, lane: Array, parameters: Sequence[Array]
    ) -> Array:
        G, stride = lane.shape[:2]
        row = jax.lax.broadcasted_iota(jnp.uint32, lane.shape, 0)

        def turn(state: tuple[Array, Array]) -> tuple[Array, Array]:
            x, number = state
            place = jnp.min(jnp.where(x == mark, row, np.uint32(G)), 0)
            chosen = row == place[None]
            values = [jnp.sum(jnp.where(chosen, v, 0.0), 0) for v in parameters]
            y = attempt(words, lane[0] + place * np.uint32(stride), number, *values)
            return jnp.where(chosen & (y != mark)[None], y[None], x), number + np.uint32(1)

        def unsettled(state: tuple[Array, Array]) -> Array:
            return jnp.any(state[0] == mark)

        return jax.lax.while_loop(unsettled, turn, (x, jnp.ones((), jnp.uint32)))[0]

    def block(words: Array, lane_0: Array, parameters: Sequence[Array]) -> Array:
        """Lanes lane_0 and following of all keys: parameters f64[R, size]."""
        R, size = parameters[0].shape
        G = next(g for g in range(min(max(R, 1), _COLUMN), 0, -1) if R % g == 0)
        shape = (G, R // G, size)
        row, column = (jax.lax.broadcasted_iota(jnp.uint32, shape, axis) for axis in (0, 1))
        lane = row * np.uint32(R // G) + column + lane_0
        everywhere = tuple(jax.lax.broadcast_in_dim(word, shape, (2,)) for word in words)
        by_column = tuple(jax.lax.broadcast_in_dim(word, shape[1:], (1,)) for word in words)
        values = [v.reshape(shape) for v in parameters]
        x = settle(REJECTED, again, first(everywhere, lane, *values), by_column, lane, values)
        if finish is not None:
            x = settle(CUT_SHORT, finish, x, by_column, lane, values)
        return x.reshape(R, size)

    @custom_vmap
    def draw(words: Array, *parameters: Array) -> Array:
        shape = parameters[0].shape
        R, size = shape[0], math.prod(shape[1:])
        key, values = words.reshape(2, size), [v.reshape(R, size) for v in parameters]
        if R <= 2 * _BLOCK:
            return block(key, jnp.zeros((), jnp.uint32), values).reshape(shape)
        blocks = -(-R // _BLOCK)
        padding = ((0, blocks * _BLOCK - R), (0, 0))  # zeros are settled at once
        rows = tuple(jnp.pad(v, padding).reshape(blocks, _BLOCK, size) for v in values)
        starts = jnp.arange(blocks, dtype=jnp.uint32) * np.uint32(_BLOCK)

        def step(now: tuple[Array, ...], following: tuple[Array, ...]) -> tuple[tuple[Array, ...], Array]:
            # A block is read one step before it is drawn. Read in the same step, XLA reads it inside the loop over
            # lanes, which is no vector loop then and takes three times as long.
            return following, block(key, now[0], now[1:])

        sequence = (starts, *rows)
        following = tuple(jnp.roll(v, -1, 0) for v in sequence)
        x = jax.lax.scan(step, tuple(v[0] for v in sequence), following)[1]
        return x.reshape(blocks * _BLOCK, size)[:R].reshape(shape)

    @draw.def_vmap
    def rule(size: int, batched: list[bool], *args: Array) -> tuple[Array, bool]:
        last = [
            jnp.moveaxis(x, 0, -1) if b else jnp.broadcast_to(x[..., None], (*x.shape, size))
            for x, b in zip(args, batched, strict=True)
        ]
        return jnp.moveaxis(draw(*last), -1, 0), True

    return draw


def randomness(words: Words, lane: Array, block: Array | np.uint32) -> tuple[Array, Array, Array]:
    """A uniform number of 52 bits, a word and a uniform number of 32 bits, from two blocks of each lane."""
    first = jnp.zeros_like(lane) + block
    high, low = threefry_2x32(words, first, lane)
    word, coin = threefry_2x32(words, first + np.uint32(1), lane)
    return uniform(high, low), word, (_float(coin) + 0.5) * 2.0**-32


def uniform(high: Array, low: Array) -> Array:
    """Uniform on (0, 1), f64, from 52 of the 64 bits of two words: neither 0 nor 1, symmetric about 1/2."""
    return _float(high) * 2.0**-32 + (_float(low >> np.uint32(12)) + 0.5) * 2.0**-52


def normal(u: Array, word: Array) -> Array:
    """N(0, 1), f64, |x| <= 8.6, from a uniform number and a word: a radius, a sign, and an angle of 31 bits."""
    radius = jnp.sqrt(-2.0 * log(u))
    a = (_float(word >> np.uint32(1)) + 0.5) * 2.0**-32  # in (0, 1/2): the sign stands for the other quadrants
    sine = a * polynomial(_SINE, a * a)
    return jnp.where((word & np.uint32(1)) == 0, radius * sine, -radius * sine)


def invert(u: Array, first: Array, factor: Callable[[int], Array], steps: int) -> Array:
    """How many cumulative probabilities are at most u, f64, at most steps + 1; f(0) is given, and f(k + 1)/f(k)."""
    term, total, x = first, first, jnp.where(u < first, 0.0, 1.0)
    for k in range(steps):
        term = term * factor(k)
        total = total + term
        x = x + jnp.where(u < total, 0.0, 1.0)
    return x


def stirling(y: Array) -> tuple[Array, Array]:
    """Numerator and denominator of -r(y), r(y) = ln Gamma(y + 1/2) - y ln y + y - ln(2 pi)/2.

    -r(y) is about 1/(24 y). y P(y^2)/Q(y^2) is equal to it at y = 1/2, 3/2, 5/2, 7/2, 11/2, 17/2, 31/2 and infinity,
    and off by at most 6e-14 at the other half-integers.
    """
    square = y * y
    return y * polynomial(_STIRLING_P, square), polynomial(_STIRLING_Q, square)


def log(x: Array) -> Array:
    """ln x of a normal positive f64, a unit or two in the last place: XLA's own takes six times longer on CPU."""
    return _log(x, x - 1.0)


def log1p(x: Array) -> Array:
    """ln(1 + x), f64, x > -1, with a small relative error near 0 too."""
    return _log(1.0 + x, x)


def polynomial(coefficients: tuple[float, ...], x: Array) -> Array:
    """Horner's rule; the coefficient of degree 0 comes first."""
    y = jnp.full_like(x, coefficients[-1])
    for c in coefficients[-2::-1]:
        y = y * x + c
    return y


def _log(x: Array, excess: Array) -> Array:
    """ln x = e ln 2 + 2 artanh s, s = m/(2 + m), x = 2^e (1 + m), 1 + m in [sqrt(1/2), sqrt(2)); excess is x - 1."""
    bits = jax.lax.bitcast_convert_type(x, jnp.int64)
    e = (bits - np.int64(0x3FE6A09E667F3BCD)) >> np.int64(52)
    m = jax.lax.bitcast_convert_type(bits - (e << np.int64(52)), jnp.float64) - 1.0
    m = jnp.where(e == 0, excess, m)
    s = m / (m + 2.0)
    square = s * s
    return _float(e) * math.log(2.0) + (m - s * (m - square * polynomial(_ARTANH, square)))


def _float(x: Array) -> Array:
    return x.astype(jnp.float64)


_STIRLING_P = (0.02624578461703171, 0.16841279998665752, 0.18449175564767467, 1 / 24)
_STIRLING_Q = (0.011783043336013026, 0.8112572041952264, 4.285146081263067, 4.4861354688055548, 1.0)

# Interpolation at Chebyshev points of 2 (artanh(s)/s - 1)/s^2 in s^2, to 2e-18 in ln x, and of sin(pi a)/a in a^2.
_ARTANH = (
    0.666666666666667, 0.39999999999899505, 0.28571428625975487, 0.2222221113479508, 0.18182889125261723,
    0.15331721600556042, 0.14616449685043406,
)  # fmt: skip
_SINE = (
    3.1415926535897927, -5.1677127800497855, 2.5501640398618677, -0.599264528825224, 0.08214587881631043,
    -0.0073703643265304155, 0.0004659870158043378, -2.113362735205297e-05,
)  # fmt: skip
