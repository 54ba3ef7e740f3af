"""Noise streams: data-independent noise on running counts, at unit scale."""

import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxprivrl.mdp import zero_counts
from jaxprivrl.numerics.axes import add_multiple, read_row, read_slot, write_slot
from jaxprivrl.privacy.strategies import NoiseStream
from jaxprivrl.problem import Shape

Array = jax.Array
Key = jax.Array

Sample = Callable[[Key, tuple[int, ...]], Array]

BUFFERS = 5  # exponentials of a strategy that comes as data


def tree_stream(shape: Shape, sample: Sample) -> NoiseStream:
    """Noise of a binary-tree counter: one node per release, O(1) work per counter and release.

    Slot j of the stack holds the summed noise of the live nodes at level j and above, so release n, whose lowest set
    bit is t, is slot t = (slot of the next set bit) + fresh node. Slots below t belong to nodes that are no longer
    needed and are never read again before they are overwritten.
    """
    slots = shape.max_releases.bit_length() + 1  # one more slot, always zero, stands above the root

    def init(zeros: Any) -> Any:
        return jax.tree.map(lambda x: jnp.zeros((slots, *x.shape), x.dtype), zeros)

    def step(key: Key, stack: Any, n: Array, data: Any) -> tuple[Any, Any]:
        del data
        level = trailing_zeros(n)
        rest = n & (n - 1)
        above = jnp.where(rest == 0, slots - 1, trailing_zeros(rest))
        fresh = draw_like(sample, key, jax.tree.map(lambda x: x[0], stack))
        stack = write_slot(stack, jax.tree.map(jnp.add, read_slot(stack, above), fresh), level)
        # Reading the sum back from the new stack, at an index that XLA cannot tell to be `level`, lets it update
        # the stack in place; otherwise it reads the old stack again for the release and copies it every time.
        return stack, read_slot(stack, _lowest_bit_again(n))

    return NoiseStream(init, step)


def honaker_stream(shape: Shape, sample: Sample) -> NoiseStream:
    """Noise of a Gaussian tree whose nodes are re-estimated from below: one draw per counter and release.

    The refined noise of a node of height j is r = w own + (1 - w) (r_left + r_right), w = 2^j / (2^(j+1) - 1), so that
    q = (2^(j+1) - 1) r = sum over the nodes u of its subtree of 2^height(u) own_u. Release n completes the nodes of
    heights 0..t of one right spine, t the lowest set bit of n; the rest of the subtree of its top node hangs from the
    live nodes of n - 1 of heights 0..t-1, whose q are known. Hence, with one draw z for the whole spine,
      q_n = (sum of the q of the live nodes below t) + c_t z,  c_t^2 = 1 + 4 + ... + 4^t = (4^(t+1) - 1) / 3,
      release = (release of n without its bit t) + q_n / (2^(t+1) - 1).
    Spines of different releases are disjoint, so all releases together have the law of a tree with a draw per node.

    Two slots per level: the release, as in `tree_stream`, and the sum of the q over the run of set bits that starts at
    that level, of which the one at level 0 is what the next q needs. Only terms of one size are added: no cancellation.
    """
    slots = shape.max_releases.bit_length() + 1  # one more slot, always zero, stands above the root
    height = np.arange(slots)
    spine = jnp.asarray(np.sqrt((4.0 ** (height + 1) - 1) / 3), jnp.float32)
    inverse = jnp.asarray(1 / (2.0 ** (height + 1) - 1), jnp.float32)

    def init(zeros: Any) -> Any:
        stack = jax.tree.map(lambda x: jnp.zeros((slots, *x.shape), x.dtype), zeros)
        return workspace(zeros), stack, stack

    def step(key: Key, state: Any, n: Array, data: Any) -> tuple[Any, Any]:
        del data
        rows, releases, runs = state
        level = trailing_zeros(n)
        rest = n & (n - 1)
        above = jnp.where(rest == 0, slots - 1, trailing_zeros(rest))
        below = read_slot(runs, jnp.where(level == 0, slots - 1, 0))
        fresh = draw_like(sample, key, below)
        rows, q = settle(rows, add_multiple(below, spine[level], fresh), n)
        longer = read_slot(runs, jnp.where((n >> level) & 2 == 0, slots - 1, level + 1))
        runs = write_slot(runs, jax.tree.map(jnp.add, longer, q), level)
        releases = write_slot(releases, add_multiple(read_slot(releases, above), inverse[level], q), level)
        return (rows, releases, runs), read_slot(releases, _lowest_bit_again(n))

    return NoiseStream(init, step)


def block_stream(shape: Shape, sample: Sample, block: int, fixed: Any = None) -> NoiseStream:
    """Noise B z of a Toeplitz matrix b_t = sum_i weights_i (1 - rates_i)^t, made for a block of releases at once.

    y_i = sum of (1 - rates_i)^(n-k) z_k over the draws up to n sums up the past. Fresh draws z for a block of releases
    and the y before it give the noise of all of them, and the y after it:
      noise_i = sum_{k <= i} b_{i-k} z_k + sum_j weights_j (1 - rates_j)^(i+1) y_j,   i = 0 .. block - 1
      y_j <- (1 - rates_j)^block y_j + sum_k (1 - rates_j)^(block-1-k) z_k
    So the y are read once per block, not once per release. It is done stage by stage, which keeps the rows of a stage
    in the cache, with the counters of all families in one row. State: block + m numbers per counter, and room for the
    draws of one stage. Rates, not 1 - rates: float32 would lose the digits of a small one.

    Args:
      shape: sizes of the counters.
      sample: of unit draws.
      block: releases to a block.
      fixed: (rates, weights), f64[m] each on the host; None for those that come as data, f32[m] with m = BUFFERS.
    """
    families = jax.eval_shape(functools.partial(zero_counts, shape))[-shape.families :]
    ends = np.cumsum([math.prod(x.shape[1:]) for x in families])
    m, xp = (BUFFERS, jnp) if fixed is None else (len(fixed[0]), np)

    def init(zeros: Any) -> Any:
        del zeros
        return jnp.zeros((2, block, ends[-1])), jnp.zeros((shape.num_stages, block + m, ends[-1]))

    def step(key: Key, state: Any, n: Array, data: Any) -> tuple[Any, Any]:
        place = (n - 1) % block
        rates, weights = data if fixed is None else fixed
        powers = xp.exp(xp.log1p(-rates)[:, None] * np.arange(block + 1, dtype=rates.dtype)[None])  # [j, t]
        past = weights[:, None] * powers

        def refill(h: Array, state: Any) -> Any:
            fresh, stages = state
            z = draw_like(sample, stage_key(key, h), (fresh[0],))[0]
            fresh, z = settle(fresh, z, h + 1)
            return fresh, write_slot(stages, next_block(powers, past, z, read_slot(stages, h)[block:]), h)

        # No rounds but at the start of a block.
        fresh, stages = jax.lax.fori_loop(0, jnp.where(place == 0, shape.num_stages, 0), refill, state)
        row = read_row(stages, place)
        parts = (row[:, end - math.prod(x.shape[1:]) : end] for end, x in zip(ends, families, strict=True))
        return (fresh, stages), tuple(part.reshape(x.shape) for part, x in zip(parts, families, strict=True))

    def next_block(powers: Any, past: Any, z: Array, y: Array) -> Array:
        b = xp.sum(past, 0)

        def total(factors: Any, given: Any) -> Array:
            return functools.reduce(jnp.add, (f.astype(np.float32) * x for f, x in zip(factors, given, strict=True)))

        noises = [total(b[i::-1], z[: i + 1]) + total(past[:, i + 1], y) for i in range(block)]
        sums = [total([powers[j, block], *powers[j, block - 1 :: -1]], [y[j], *z]) for j in range(m)]
        return jnp.stack(noises + sums)

    return NoiseStream(init, step)


def workspace(zeros: Any) -> Any:
    """Room for `settle`: two slots per entry."""
    return jax.tree.map(lambda x: jnp.zeros((2, *x.shape), x.dtype), zeros)


def settle(rows: Any, x: Any, n: Array) -> tuple[Any, Any]:
    """x, computed once and kept in memory, for a value that several updates use.

    XLA would compute a fused value, generator and all, once for each use, and copy the state that it was made of.
    Writing it to one of two slots and reading it back, at an index that XLA cannot tell to be the same, stops that.
    """
    rows = write_slot(rows, x, trailing_zeros(n) & 1)
    return rows, read_slot(rows, _lowest_bit_again(n) & 1)


def _lowest_bit_again(n: Array) -> Array:
    """trailing_zeros(n), written so that XLA does not notice."""
    return 31 - jax.lax.clz(n & -n)


def draw_like(sample: Callable[[Key, tuple[int, ...]], Array], key: Key, tree: Any) -> Any:
    """One independent unit draw for every entry of a tuple of arrays; the key is consumed."""
    keys = jax.random.split(key, len(tree))
    return tuple(sample(keys[i], x.shape) for i, x in enumerate(tree))


def stage_key(key: Key, h: Array) -> Key:
    """Key of the draws of one stage."""
    return jax.random.fold_in(key, h)


def trailing_zeros(n: Array) -> Array:
    """Index of the lowest set bit of n > 0, i32[]."""
    return jax.lax.population_count((n & -n) - 1)
