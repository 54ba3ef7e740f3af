"""Noise for releases that are integers: samplers with far tails, and the arithmetic of one grid for data and noise.

A release is x + round(b Z), x an integer number of grid units and b the scale of the noise in those units. As
round(x + b Z) = x + round(b Z) for an integer x, it is a function of x + b Z alone: post-processing of the mechanism
that accounting knows, with the same set of possible outputs under every neighbour. Three things must then hold of the
random Z that stands in for the ideal one, and float32 gives none of them:
  - its tail ends so far out that what is cut off is negligible (`range_of`, `tail_mass`);
  - every integer has the mass that it should have to a small relative error, which adds to the privacy loss of every
    draw (`mass_error`): Z needs many more values than round(b Z) has, and the product many more digits;
  - the draws are independent (`sharing_loss`).
So a draw is made from 95 random bits by double-precision arithmetic, which is scoped to this module: nothing of it
depends on the precision that the caller has set, and integers come out of `round_to_grid`.
"""

import functools
import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from scipy import optimize, special

from jaxprivrl.numerics.axes import batch_last, on_leading_axes
from jaxprivrl.numerics.random import threefry_2x32

Array = jax.Array
Key = jax.Array

LAWS = ("laplace", "gaussian")
GROUP = 16  # draws that share a block of bits
BITS = 62  # the law is exact, to `mass_error`, for quantiles down to 2^-BITS; nothing is drawn beyond 2^-(BITS+1)
MAX_INTEGER = 2**31 - 1
MAX_COST_BITS = 16

_EXPONENT_ONE = np.uint64(0x3FF0000000000000)  # of 1.0
_EXPONENT_DIGITS = np.uint64(0x4330000000000000)  # of 2^52, whose digits are integers


def laplace(key: Key, shape: tuple[int, ...], words: int = 2) -> Array:
    """Lap(1), f64[shape], variance 2; the key is consumed.

    |Z| = -ln U, U uniform: k ln 2 + h(m) for U = 2^-k m with m in [1/2, 1).

    Args:
      key: consumed.
      shape: of the draws.
      words: 2 or 1, random words of its own that a draw has. The rest of its bits it shares with 15 others, which is
        harmless at any scale with two words, at scales of a few hundred grid units with one (`sharing_loss`).
    Returns:
      Draws, for `round_to_grid`.
    Privacy: `range_of`, `mass_error` and `sharing_loss` say how far this is from the ideal.
    """
    return _sampler("laplace", tuple(shape), words)(_key_words(key))


def gaussian(key: Key, shape: tuple[int, ...], words: int = 2) -> Array:
    """N(0, 1), f64[shape], by the inverse of its distribution function; the key is consumed.

    |Z| = q(E), E = -ln U exponential and P(|N| > q(E)) = exp(-E). One increasing function of one uniform number per
    draw, where the Box-Muller transform mixes two: its break points can be checked one by one.

    Args:
      key: consumed.
      shape: of the draws.
      words: as for `laplace`.
    Returns:
      Draws, for `round_to_grid`.
    Privacy: as for `laplace`.
    """
    return _sampler("gaussian", tuple(shape), words)(_key_words(key))


SAMPLERS: dict[str, Callable[..., Array]] = {"laplace": laplace, "gaussian": gaussian}


def _key_words(key: Key) -> Array:
    """u32[2] of a key that descends from this one, which is thereby used up, and seen to be by `debug_key_reuse`."""
    words: Array = batch_last(jax.random.key_data(jax.random.split(key, 1)[0]))
    return words


def draw_from_words(law: str, own: Array, low: Array, fill: Array) -> Array:
    """The draw that three words u32[...] make, f64[...]: what the samplers do with each draw's bits.

    The first bit of `own` is the sign. Its other 31 bits, then `low`, then `fill`, are the binary digits of U:
    the larger the number that they are, the smaller |Z|. Only the 53 digits from the leading one on are read, so that
    U is as fine, relative to itself, in the tail as elsewhere.
    """
    with jax.enable_x64(True):
        high = (own.astype(jnp.uint64) << np.uint64(33)) | (low.astype(jnp.uint64) << np.uint64(1))
        zeros = jax.lax.clz(high | np.uint64(2))  # at most 62: what would be smaller shares the last octave
        more = (fill.astype(jnp.uint64) << np.uint64(32)) >> (np.uint64(BITS) - zeros)
        digits = ((high << zeros) << np.uint64(1)) | more
        m = jax.lax.bitcast_convert_type((digits >> np.uint64(12)) | _EXPONENT_ONE, jnp.float64)  # in [1, 2)
        k = jax.lax.bitcast_convert_type(zeros | _EXPONENT_DIGITS, jnp.float64) - np.float64(2.0**52)
        t = np.float64(2.0) - m
        e = k * np.float64(math.log(2)) + t * _polynomial(_LOG, t)
        x = jnp.where((own >> np.uint32(31)) == 0, e, -e)
        return x if law == "laplace" else _normal(x)


def _normal(x: Array) -> Array:
    """The N(0, 1) at the quantile of a Lap(1): x times a power series in y = 1 / sqrt(1 + |x| / 1.5), in [0.18, 1]."""
    y = np.float64(1.0) / jnp.sqrt(np.float64(1.0) + jnp.abs(x) * np.float64(1 / 1.5))
    return x * y * _polynomial(_QUANTILE, y - np.float64(0.625))


def _polynomial(coefficients: tuple[float, ...], x: Array) -> Array:
    p = jnp.full_like(x, coefficients[-1])
    for c in coefficients[-2::-1]:
        p = p * x + np.float64(c)
    return p


# -ln(1 - t/2) / t on [0, 1], fitted so that octaves join: at t = 1 it is ln 2 to the last digit.
_LOG = (
    0.5000000000333972, 0.12499999036409209, 0.041667130183783284, 0.015616203493615597, 0.006336905309461711,
    0.002093441997130433, 0.0030359435320586707, -0.004311383204504385, 0.008318932656061456, -0.009072051318567313,
    0.006758016169232085, -0.0028873709754507417, 0.0005914223196452454,
)  # fmt: skip
_QUANTILE = (
    1.1370420903590375, 0.10891019629742112, 0.35918001466062194, 0.2782267961613071, 0.2839431902257851,
    0.3721205894904822, 0.3489177996452622, 0.5029736349439269, 0.5314134024365368, 0.668410073209161,
    0.42714446206721396, 1.0486920576051861, 2.6450998799977623, 2.7657661351492204,
)  # fmt: skip


@functools.cache
def _sampler(law: str, shape: tuple[int, ...], words: int) -> Callable[[Array], Array]:
    """A sampler as a function of u32[2, ...], the words of a key, with batch axes last."""
    if law not in LAWS or words not in (1, 2):
        raise ValueError(f"Expected law='{law}' in {LAWS} and words={words} in (1, 2). Use words=2 for any scale.")
    size = math.prod(shape)
    columns = -(-size // GROUP)

    def sample(key: Array) -> Array:
        batch = key.shape[1:]
        pairs = _blocks(key, GROUP // 2 * words + 1, columns)
        shared, others = pairs[-1:], pairs[:-1]
        first, second = _word(jnp.real(shared)), _word(jnp.imag(shared))
        if words == 2:
            own, low = _word(jnp.real(others)), _word(jnp.imag(others))
            fill = first ^ second  # loops that read only one word of a pair are slow
        else:
            # Two words for 16: what two draws get differs in at least its first 17 bits by a uniform number.
            own, fill = _both_words(others), second[None]
            place = np.arange(GROUP, dtype=np.uint32).reshape(2, GROUP // 2, 1, *[1] * len(batch))
            low = first[None] ^ (fill << place)
        draws = draw_from_words(law, own, low, fill)
        return draws.reshape(-1, *batch)[:size].reshape(*shape, *batch)

    return on_leading_axes(f"{law}_{words}", sample)


def _blocks(key: Array, rows: int, columns: int) -> Array:
    """Threefry blocks 0..rows*columns-1 of a key u32[2, *batch], both words of each as one c64[rows, columns, *batch].

    A loop of XLA has one output on CPU, so two outputs would be two loops that each do all rounds: the words travel as
    a complex number, which is moved but never computed with. The loop over rows keeps XLA from undoing that, and from
    making the keys anew for every block. Its innermost axis is the batch, as everywhere: loops that read the words
    need no transposition, which makes this faster than `jax.random.bits` of a batch of keys.
    """
    batch = key.shape[1:]

    def row(r: Array) -> Array:
        counter = jax.lax.broadcasted_iota(jnp.uint32, (columns, *batch), 0) + r * np.uint32(columns)
        first, second = threefry_2x32(key[:, None], jnp.zeros_like(counter), counter)
        return jax.lax.complex(*(jax.lax.bitcast_convert_type(x, jnp.float32) for x in (first, second)))

    blocks: Array = jax.lax.map(row, jnp.arange(rows, dtype=jnp.uint32))
    return blocks


def _word(part: Array) -> Array:
    return jax.lax.bitcast_convert_type(part, jnp.uint32)


def _both_words(pairs: Array) -> Array:
    """u32[2, ...] of c64[...]."""
    first = (np.arange(2) == 0).reshape(2, *[1] * pairs.ndim)
    return _word(jnp.where(first, jnp.real(pairs)[None], jnp.imag(pairs)[None]))


def _round(scale: Array, unit: Array) -> Array:
    with jax.enable_x64(True):
        scale = scale.reshape(*[1] * (unit.ndim - scale.ndim), *scale.shape)
        # Adding 1.5 * 2^52 rounds to a whole number, ties to even, and leaves it in the last digits.
        shifted = scale.astype(jnp.float64) * unit.astype(jnp.float64) + np.float64(1.5 * 2.0**52)
        return jax.lax.bitcast_convert_type(shifted, jnp.int64).astype(jnp.int32)


_rounded = on_leading_axes("round_to_grid", _round)


def round_to_grid(scale: Array, unit: Array) -> Array:
    """round(scale * z), i32 like `unit`: noise in grid units.

    The product is made and rounded in double precision. Of float32's 24 digits the integers beyond 2^24 would be
    multiples of 2, 4, 8, ..., and data added to them would show its last bits to everyone.

    Args:
      scale: f32[], scale of the noise in grid units, from `scale_up`: at most `max_scale(law)`.
      unit: f64[...], draws of a sampler.
    Returns:
      Integers; no draw can exceed 2^31 - 1 at a scale that `scale_up` lets pass. Sums of them with counts may wrap,
      which is arithmetic modulo 2^32 on data and noise alike: wrong counts, but nobody's privacy.
    Privacy: x + round(b Z) = round(x + b Z) for integer x.
    """
    with jax.enable_x64(True):  # or the draws would be cut to float32 on their way
        return _rounded(jnp.asarray(scale, jnp.float32), unit)


def unit_integers(law: str, key: Key, shape: tuple[int, ...], unit_bits: int = 20) -> Array:
    """round(2^unit_bits z), i32[shape]: unit noise that is itself integers, for noise that several scales share.

    With an odd number k the noise round(sum of such integers / k), by `divide`, has the scale b = 2^unit_bits / k in
    grid units. Sums of nodes stay exact, once for all scales, and one division makes a release of them.

    Privacy: k x + noise is the mechanism, an integer mechanism of scale 2^unit_bits for sums x times k; for whole x,
      x + round(noise / k) = round((k x + noise) / k) is a function of it. Its masses are right to
      `mass_error(law, 2^unit_bits)`, whatever k.
    """
    return round_to_grid(jnp.float32(2.0**unit_bits), SAMPLERS[law](key, shape))


def divisor(scale: float, unit_bits: int = 20) -> np.int32:
    """The largest odd k with 2^unit_bits / k >= scale: noise of at least that scale, at most 2 / k of itself more."""
    least, most = 2.0 ** (unit_bits - 31), 2.0**unit_bits
    if not least < scale <= most:
        raise ValueError(
            f"A noise scale of {scale:g} grid units has no divisor of 2^{unit_bits}, expected {least:g} to {most:g}. "
            "Use a coarser grid or other unit_bits."
        )
    k = math.floor(most / scale)
    return np.int32(k - 1 + k % 2)


def _divide(k: Array, total: Array) -> Array:
    with jax.enable_x64(True):
        k = k.reshape(*[1] * (total.ndim - k.ndim), *k.shape)
        # An odd k leaves no ties: the quotient is 1 / (2 k) or more from a half, its error is below 2^-20 / k.
        quotient = total.astype(jnp.float64) * (np.float64(1.0) / k.astype(jnp.float64))
        return jax.lax.bitcast_convert_type(quotient + np.float64(1.5 * 2.0**52), jnp.int64).astype(jnp.int32)


_divided = on_leading_axes("divide_to_grid", _divide)


def divide(k: Array, total: Array) -> Array:
    """round(total / k), exactly, i32 like `total`: the noise of a release from a sum of `unit_integers`.

    Args:
      k: i32[], odd, from `divisor`.
      total: i32[...].
    Privacy: divide(k, total + k x) = x + divide(k, total) for whole x, to the last digit.
    """
    return _divided(jnp.asarray(k, jnp.int32), total)


def coin_round(key: Key, x: Array, bits: int) -> Array:
    """x in [0, 1] as a multiple of 2^-bits, i32 in those units, rounded up with probability its fractional part.

    The mean is x, to 2^-32 of a unit; an x on the grid is given back exactly, whatever the coin.

    Args:
      key: consumed.
      x: f32[...], costs; clipped to [0, 1].
      bits: k of `grid_bits`.
    Returns:
      i32 like x, in 0..2^bits.
    Privacy: a user's own coin, tossed before anything else: sensitivities stay those of costs in [0, 1].
    """
    scaled = jnp.clip(x, 0.0, 1.0) * np.float32(2.0**bits)  # exact, a shift of the exponent
    floor = jnp.floor(scaled)
    coin = batch_last(jax.random.bits(key, x.shape, jnp.uint32))
    up = coin < ((scaled - floor) * np.float32(2.0**32)).astype(jnp.uint32)
    rounded: Array = floor.astype(jnp.int32) + up.astype(jnp.int32)
    return rounded


def grid_bits(horizon: int, num_episodes: int, counter_bits: int = 31, centred: bool = True) -> int:
    """k of the grid 2^-k of costs: the largest up to 16 with H K 2^k < 2^counter_bits, so that no sum overflows.

    Args:
      horizon: H.
      num_episodes: K.
      counter_bits: 31 for i32 counters, 62 for i64 with room to spare.
      centred: c - 1/2 in the place of c, which needs k >= 1.
    """
    spare = 2**counter_bits - 1
    k: int = min(MAX_COST_BITS, (spare // (int(horizon) * int(num_episodes))).bit_length() - 1)
    if k < (1 if centred else 0):
        raise ValueError(
            f"H K = {horizon * num_episodes} costs do not fit counters of {counter_bits} bits, expected less than "
            f"2^{counter_bits - centred}. Use fewer episodes or wider counters."
        )
    return k


def max_scale(law: str) -> float:
    """Largest scale, in grid units, at which no draw of a law leaves 32-bit integers."""
    return MAX_INTEGER / largest(law) * (1 - 1e-6)


def scale_up(law: str, scale: float) -> np.float32:
    """The smallest f32 that is at least `scale`, a noise scale in grid units; refuses what the grid cannot hold."""
    if not 0 < scale <= max_scale(law):
        raise ValueError(
            f"A noise scale of {scale:g} grid units is out of range, expected more than 0 and at most "
            f"{max_scale(law):.3g}. Use a larger epsilon or a coarser grid."
        )
    rounded = np.float32(scale)
    rounded = rounded if rounded >= scale else np.nextafter(rounded, np.float32(np.inf))
    return max(rounded, np.float32(np.finfo(np.float32).tiny))


def _quantile(law: str, e: float) -> float:
    """x with P(|Z| > x) = exp(-e) under the ideal law."""
    if law == "laplace":
        return e
    guess = -float(special.ndtri_exp(-e - math.log(2)))
    return float(optimize.brentq(lambda x: log_survival(law, x) + e, 0.9 * guess, 1.1 * guess + 1e-9, xtol=1e-14))


def log_survival(law: str, x: float) -> float:
    """ln P(|Z| > x) under the ideal law; 0 for x <= 0."""
    if x <= 0:
        return 0.0
    return -x if law == "laplace" else math.log(2) + float(special.log_ndtr(-x))


def range_of(law: str) -> float:
    """The |z| up to which the sampler has the ideal law: 43.0 scales, 9.0 standard deviations."""
    return _quantile(law, BITS * math.log(2))


def largest(law: str) -> float:
    """The largest |z| that the sampler can return: 43.7 scales, 9.1 standard deviations."""
    return _quantile(law, (BITS + 1) * math.log(2)) * (1 + 1e-9)


def log_tail_mass(law: str, shift: float = 0.0) -> float:
    """ln P(|Z| > range - |shift|): what a neighbour that is `shift` scales away can see beyond the sampler's range.

    Within the range the sampler has the ideal law to `mass_error`. Let T be the outputs within the range of both
    neighbours. Then P(S) <= P(S in T) + P(not T), and the last is at most the mass beyond range - |shift|; the
    sampler's own mass beyond its range is that of the ideal law, in a different place.
    """
    return log_survival(law, range_of(law) - abs(shift))


def tail_mass(law: str, shift: float = 0.0) -> float:
    """exp(log_tail_mass), rounded up: to add to delta, for every draw that a user moves by `shift` scales."""
    return math.exp(log_tail_mass(law, shift)) * (1 + 1e-9)


@functools.cache
def density_error(law: str) -> float:
    """Largest |ln| of the ratio of the sampler's density to the ideal one, within the range: error of the polynomials.

    With E(z) the inverse of the computed function z(E), the sampler has density exp(-E) / z'(E) at z.
    """
    t = np.linspace(0.0, 1.0, 20_001)
    q = np.polynomial.Polynomial(_LOG)
    octave = np.polynomial.Polynomial([0.0, *_LOG])
    log_part = np.abs(np.log(octave.deriv()(t) * (2 - t))) + np.abs(t * q(t) + np.log1p(-t / 2))
    worst = float(log_part.max())
    if law == "gaussian":
        e = (BITS + 1) * math.log(2) * np.linspace(1e-6, 1.0, 200_001) ** 2
        y = 1 / np.sqrt(1 + e / 1.5)
        p = np.polynomial.Polynomial(_QUANTILE)
        slope = (y - e * y**3 / 3) * p(y - 0.625) - e * y**4 / 3 * p.deriv()(y - 0.625)
        z = e * y * p(y - 0.625)
        ideal = math.log(math.sqrt(2 / math.pi)) - z * z / 2
        worst += float(np.abs(-e - np.log(slope) - ideal).max())
    return worst * 1.01 + 1e-12


def mass_error(law: str, scale: float) -> float:
    """Bound on |ln of the ratio| of an integer's mass under round(scale * draw) to its ideal mass, within the range.

    Three parts: the error of the density; the digits of U, 32 or more after the leading one out to the end of the
    range and 52 in all but the last 2^-42 of the law, against the cells of the grid, scale ln 2 or more to an octave;
    and the rounding of double precision, which displaces the boundaries of a cell by 2^-53 of |z| a few times over.

    Privacy: a draw that a user moves has its loss changed by at most twice this; draws that no user moves do not count.
    """
    boundary = {"laplace": 4, "gaussian": 12}[law] * largest(law) * 2.0**-53 * scale
    return density_error(law) + 2 * boundary + 2 * scale * 2.0**-52


def log_coarse_mass(scale: float, error: float = 1e-6) -> float:
    """ln of the mass so far out that the digits of U there leave a relative error above `error` in an integer's mass.

    U = 2^-k m has 94 - k digits after its leading one. Values of |z| that follow each other are at most 2^-digits
    apart, or 1.26 times that (slopes of |z| in ln U), and a cell of the grid, 1/scale wide, is off by one of them.
    """
    digits = math.log2(2 * scale / error) if scale > 0 else 0.0
    k = 94 - digits
    return -math.inf if k >= BITS else -math.log(2) * max(k, 0.0)


def sharing_loss(law: str, scale: float, words: int = 2) -> float:
    """Bound on the total variation that a draw's shared bits cost: its distance from independence of the other draws.

    A draw uses shared bits only if a boundary of the grid lies between the two ends that its own bits leave open. The
    grid has at most M = 2 (range scale + 1) boundaries, so that has probability at most mu = M 2^-31, or M 2^-63 with
    two words. If one draw of a group of 16 does, the others tell nothing about the bits it uses.
      two words:  some other draw does as well: 15 mu^2
      one word:   what two draws get differs in its first 17 bits by a uniform number, so that if two do, a boundary
                  must also fall within 2^-17 of one of them; or three do: 15 mu^2 2^-16 + 105 mu^3

    Args:
      law: "laplace" or "gaussian".
      scale: in grid units; 2^unit_bits for `unit_integers`.
      words: of the sampler.
    Privacy: with this loss for each of n draws that a user moves, delta grows by at most (1 + e^epsilon) n times it.
    """
    mu = min(1.0, 2 * (largest(law) * scale + 1) * 2.0 ** (1 - 32 * words))
    others = GROUP - 1
    if words == 2:
        return min(1.0, others * mu**2)
    return min(1.0, others * mu**2 * 2.0**-16 + others * (others - 1) / 2 * mu**3)
