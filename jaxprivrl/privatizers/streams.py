"""Noise streams: data-independent noise on running counts, at unit scale."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxprivrl import noise
from jaxprivrl.batching import read_slot, write_slot
from jaxprivrl.mdp import Shape
from jaxprivrl.privatizers.base import NoiseStream

Array = jax.Array
Key = jax.Array


def tree_stream(shape: Shape, distribution: str) -> NoiseStream:
    """Noise of a binary-tree counter: one node per episode, O(1) work per counter and release.

    Slot j of the stack holds the summed noise of the live nodes at level j and above, so the release after episode
    n, whose lowest set bit is t, is slot t = (slot of the next set bit) + fresh node. Slots below t belong to nodes
    that are no longer needed and are never read again before they are overwritten.
    """
    sample = noise.SAMPLERS[distribution]
    unit_variance = {"laplace": 2.0, "gaussian": 1.0}[distribution]
    slots = shape.max_episodes.bit_length() + 1  # one more slot, always zero, stands above the root

    def init(zeros: Any) -> Any:
        return jax.tree.map(lambda x: jnp.zeros((slots, *x.shape), x.dtype), zeros)

    def step(key: Key, stack: Any, n: Array) -> tuple[Any, Any]:
        level = trailing_zeros(n)
        rest = n & (n - 1)
        above = jnp.where(rest == 0, slots - 1, trailing_zeros(rest))
        fresh = draw_like(sample, key, jax.tree.map(lambda x: x[0], stack))
        stack = write_slot(stack, jax.tree.map(jnp.add, read_slot(stack, above), fresh), level)
        # Reading the sum back from the new stack, at an index that XLA cannot tell to be `level`, lets it update
        # the stack in place; otherwise it reads the old stack again for the release and copies it every episode.
        return stack, read_slot(stack, 31 - jax.lax.clz(n & -n))

    def std(n: Array) -> Array:
        return jnp.sqrt(np.float32(unit_variance) * jax.lax.population_count(n).astype(jnp.float32))

    return NoiseStream(init, step, std, bucket=lambda n: jax.lax.population_count(n))


def local_stream(distribution: str) -> NoiseStream:
    """Noise of a sum of local reports: one fresh draw per counter and user, all of them summed."""
    sample = noise.SAMPLERS[distribution]
    unit_variance = {"laplace": 2.0, "gaussian": 1.0}[distribution]

    def step(key: Key, total: Any, n: Array) -> tuple[Any, Any]:
        del n
        total = jax.tree.map(jnp.add, total, draw_like(sample, key, total))
        return total, total

    return NoiseStream(
        init=lambda zeros: zeros,
        step=step,
        std=lambda n: jnp.sqrt(np.float32(unit_variance) * n.astype(jnp.float32)),
        bucket=log_bucket,
    )


def draw_like(sample: Callable[[Key, tuple[int, ...]], Array], key: Key, tree: Any) -> Any:
    """One independent unit draw for every entry of a tuple of arrays; the key is consumed."""
    keys = jax.random.split(key, len(tree))
    return tuple(sample(keys[i], x.shape) for i, x in enumerate(tree))


def trailing_zeros(n: Array) -> Array:
    """Index of the lowest set bit of n > 0, i32[]."""
    return jax.lax.population_count((n & -n) - 1)


def log_bucket(n: Array) -> Array:
    """Row of an error table in eighths of an octave: 0 for n = 0, else 1 + floor(8 log2 n), from integers alone.

    The exponent is the bit length; the eighth comes from comparing the mantissa with 2**(i/8), so that host and
    device agree on every n.
    """
    exponent = 31 - jax.lax.clz(jnp.maximum(n, 1))
    mantissa = n << (30 - exponent)
    thresholds = np.ceil(2.0 ** (30 + np.arange(1, 8) / 8)).astype(np.int32)
    eighth = sum((mantissa >= t).astype(jnp.int32) for t in thresholds)
    return jnp.where(n == 0, 0, 1 + 8 * exponent + eighth)
