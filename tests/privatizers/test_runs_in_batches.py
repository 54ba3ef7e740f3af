"""A run of a mechanism does not depend on the runs beside it, whether they have another seed or another epsilon.

Under the ordinary `vmap`; the same under `vmap_last`, which sweeps use, is tested with the moments of the noise.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from mechanism_pieces import (
    BY_SCALE,
    BY_SEED,
    FULLY_TESTED,
    alone,
    data,
    initial,
    jit,
    parameters,
    run_alone,
    times_of,
)

from jaxprivrl.numerics import random
from jaxprivrl.privatizers.base import Release

SEEDS, USERS, SCALES = 4, 20, (0.5, 1.0)


@functools.cache
def batch(case):
    """(unit noise at the end, counts of the releases f32[users, ..., scales, seeds]): epsilons within seeds."""
    privatizer, problem = case.privatizer, case.problem("two_families")
    step, given, times = (
        alone(privatizer, problem.shape).__wrapped__,
        parameters(privatizer, problem, 1.0),
        times_of(problem),
    )

    def over_scales(key, state, counts):
        def at(scale, state):
            return step(given._replace(scale=scale), times, key, state, counts)

        axes = BY_SCALE, Release(-1, -1, -1, None)
        return jax.vmap(at, in_axes=(0, BY_SCALE), out_axes=axes)(jnp.asarray(SCALES, jnp.float32), state)

    def run(stream):
        keys = jax.vmap(random.key)(jnp.arange(SEEDS))

        def start(_):
            return jax.vmap(lambda _: initial(privatizer, problem.shape), out_axes=BY_SCALE)(jnp.arange(len(SCALES)))

        def body(state, now):
            k, counts = now
            keys_now = jax.vmap(lambda key: jax.random.fold_in(key, k))(keys)
            axes = BY_SEED, Release(-1, None, None, None)
            return jax.vmap(over_scales, in_axes=(0, BY_SEED, None), out_axes=axes)(keys_now, state, counts)

        state = jax.vmap(start, out_axes=BY_SEED)(keys)
        state, releases = jax.lax.scan(body, state, (jnp.arange(USERS), stream))
        return state.seed, releases.counts

    return jit(run)(jax.tree.map(lambda x: x[:USERS], data(problem)))


def check_lane(case, scale, seed, atol):
    problem = case.problem("two_families")
    for k, counts in enumerate(run_alone(case.privatizer, problem, SCALES[scale], seed, USERS)):
        for mine, lane in zip(counts, batch(case)[1], strict=True):
            np.testing.assert_allclose(mine, lane[k, ..., scale, seed], rtol=1e-5, atol=atol)
            assert k < USERS - 1 or np.any(np.asarray(mine) != 0)


@pytest.mark.parametrize("case", FULLY_TESTED, ids=str)
def test_a_lane_of_scan_and_vmap_is_the_run_alone(case):
    check_lane(case, scale=1, seed=3, atol=1e-4)


@pytest.mark.parametrize("case", FULLY_TESTED, ids=str)
def test_epsilons_share_the_noise_of_a_seed(case):
    """Batched over scales, as a grid of epsilons is, the noise state has no axis of its own; lanes are runs alone."""
    check_lane(case, scale=0, seed=3, atol=1e-5)
    kept = jax.eval_shape(lambda: initial(case.privatizer, case.problem("two_families").shape)).seed
    for now, one in zip(jax.tree.leaves(batch(case)[0]), jax.tree.leaves(kept), strict=True):
        assert now.shape == (*one.shape, SEEDS)
