"""The runtime of randomised bits: each user's bits flipped at random, summed, and debiased."""

import jax
import jax.numpy as jnp
import numpy as np

from jaxprivrl.mdp import Counts, zero_counts
from jaxprivrl.numerics.axes import batch_last
from jaxprivrl.privacy.privatizer import Privatizer
from jaxprivrl.privatizers.base import (
    Clock,
    Parameters,
    Runtime,
    State,
    Users,
    accumulate,
    derived,
    pool,
    release_view,
    true_counts,
    zero_totals,
)
from jaxprivrl.privatizers.streams import draw_like
from jaxprivrl.problem import Shape

Array = jax.Array
Key = jax.Array


def runtime(privatizer: Privatizer, shape: Shape) -> Runtime:
    """Release = (sum of the signs of the flipped bits) / (2 (1 - 2 flip)) + bits / 2.

    `absorb` takes users whose costs have been rounded to bits. Of m users with x ones, Binomial(x, 1 - flip) +
    Binomial(m - x, flip) bits are ones afterwards, independently for each step, family and cell.

    Privacy: reports are 32-bit words compared with a threshold that is rounded towards the fair coin.
    """
    families = shape.families
    per_counter = np.float32(shape.horizon // shape.num_stages)  # bits of each counter in one report

    def init() -> tuple[State, Counts]:
        zeros = zero_counts(shape)
        return State((), zero_totals(zeros)), zeros

    def absorb(key: Key, parameters: Parameters, state: State, users: Users) -> State:
        private, threshold = parameters.scale > 0, bit_threshold(parameters.scale)
        ones = tuple(users.counts[-families:])
        if isinstance(users.number, int) and users.number == 1:
            words = draw_like(_words, key, ones)
            signs = [jnp.where(w < jnp.where(x > 0, threshold, -threshold), np.float32(1), np.float32(-1))
                     for w, x in zip(words, ones, strict=True)]  # fmt: skip
        else:
            keys, flip = jax.random.split(key, families), _flip(threshold)
            signs = [_sign_sums(keys[i], x, users.number, flip) for i, x in enumerate(ones)]
        visits = signs[0] if families == 3 else jnp.zeros_like(users.counts.visits)
        reports = Counts(visits, signs[-2], signs[-1])
        chosen = jax.tree.map(lambda y, x: jnp.where(private, y, x), reports, users.counts)
        return State((), accumulate(state.cell, pool(shape, chosen)))

    def release(key: Key, parameters: Parameters, state: State, clock: Clock) -> tuple[State, Counts]:
        del key
        private, gain = parameters.scale > 0, _gain(bit_threshold(parameters.scale))
        half = 0.5 * per_counter * clock.users.astype(jnp.float32)
        noisy = jax.tree.map(lambda x: jnp.where(private, x * (0.5 / gain) + half, x), true_counts(state.cell))
        return state, derived(shape, noisy)

    return Runtime(init, absorb, release, release_view(privatizer, shape))


def bit_threshold(scale: Array) -> Array:
    """t, i32[] in [0, 2^31): a uniform int32 word is below t with probability 1/2 + tanh(1 / (2 scale)) / 2, or less.

    ln(P(word < t) / P(word >= t)) never exceeds 1 / scale, and is within 1e-5 of it for scales from 0.1 to 1e4. Near
    certainty t comes from the small probability of a flip, elsewhere from the small difference of the two.
    """
    gain = jnp.tanh(0.5 / scale)
    flips = jnp.ceil(np.float32(2.0**32 * (1 + 6e-6)) / (1.0 + jnp.exp(1.0 / scale)))
    flips = jnp.clip(flips, 1.0, np.float32(2.0**30)).astype(jnp.int32)
    near = jnp.floor(jnp.minimum(gain, 0.5) * np.float32(2.0**31 * (1 - 1e-6))).astype(jnp.int32)
    return jnp.where(gain < 0.5, near, np.int32(2**31 - 1) - (flips - 1))


def _gain(threshold: Array) -> Array:
    """1 - 2 flip."""
    return threshold.astype(jnp.float32) * np.float32(2.0**-31)


def _words(key: Key, shape: tuple[int, ...]) -> Array:
    """Uniform i32[shape]; the key is consumed."""
    return batch_last(jax.lax.bitcast_convert_type(jax.random.bits(key, shape, jnp.uint32), jnp.int32))


def _flip(threshold: Array) -> Array:
    """Probability that a word is not below the threshold, rounded up: 1 - flip would lose the digits of a rare flip."""
    words = (np.int32(2**31 - 1) - threshold).astype(jnp.float32) + np.float32(1)
    return jnp.minimum(jnp.nextafter(words * np.float32(2.0**-32), np.float32(1)), np.float32(0.5))


def _sign_sums(key: Key, ones: Array, m: Array, flip: Array) -> Array:
    """Sums of the signs of m flipped bits, of which `ones` were ones."""
    users = jnp.asarray(m).astype(jnp.float32)
    lowered, raised = jax.random.binomial(key, jnp.stack([ones, users - ones]), flip)
    return 2.0 * (ones - lowered + raised) - users
