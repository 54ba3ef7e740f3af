"""The mechanisms beyond the paper's: their noise is exactly the one that the accounting speaks of.

What is deterministic is checked as such: the linear map from draws to releases, by feeding unit vectors as draws. What
is statistical uses fixed keys and 1,000 seeds, and accepts a mean within 4.5 standard errors: with fresh keys one check
in 150,000 would fail. Noise that is 0.8 or 1.25 times as large is rejected by the same rule.
"""

import functools
import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import reference
from scipy import stats

from jaxprivrl import accounting, noise, precision, simulation, strategies, sweep
from jaxprivrl.mdp import Counts, Shape
from jaxprivrl.privatizers import PRIVATIZERS, NoiseParameters, PrivatizerState, Release, base, gaussian, host_strategy
from jaxprivrl.privatizers import reports as reports_lib
from jaxprivrl.privatizers import streams as streams_lib

LIMIT = 4.5  # standard errors
SEEDS = 1000
EPISODES = 130
CHECKED = (1, 2, 3, 7, 8, 21, 63, 64, 127, 130)
ADDITIVE = (
    "central_gaussian", "central_honaker", "central_blt", "central_toeplitz", "central_batched", "local_gaussian",
)  # fmt: skip
REPORTS = ("local_bernoulli", "shuffle_batched", "local_sampled", "local_sampled_family")
MECHANISMS = ADDITIVE + REPORTS
BLOCKS = ("central_blt", "central_toeplitz", "central_batched")  # their noise comes in blocks
SCALES = {
    "local_bernoulli": 1.5,
    "shuffle_batched": 1.5,
    "local_sampled": 0.7,
    "local_sampled_family": 0.7,
}  # others: 2
SHAPES = {
    "three_families": Shape(2, 2, 2, 2, 3, 255),
    "two_families": Shape(2, 2, 2, 2, 2, 255),
    "pooled": Shape(3, 2, 1, 1, 2, 255),
}
CENTRED = {
    "three_families": SHAPES["three_families"]._replace(centred_costs=True),
    "two_families": SHAPES["two_families"]._replace(centred_costs=True),
    "pooled": SHAPES["pooled"]._replace(centred_costs=True),
}
# Small programs that run for moments: compiling them is what takes the time.
jit = functools.partial(jax.jit, compiler_options={"xla_backend_optimization_level": 0})


def scale_of(name):
    return SCALES.get(name, 2.0)


def parameters(name, scale, num_episodes=EPISODES):
    zero = jnp.zeros(257)
    strategy = jnp.asarray(host_strategy(name, num_episodes))
    return NoiseParameters(jnp.float32(scale), Counts(zero, zero, zero), strategy)


@functools.cache
def data(shape):
    """Counts of random episodes with costs in [0, 1], f32 `[episodes, H, S, A(, S)]`."""
    rng = np.random.default_rng(5)
    H, S, A = shape.horizon, shape.num_states, shape.num_actions
    counts = Counts(*(np.zeros((EPISODES, H, S, A, *tail), np.float32) for tail in ((), (), (S,))))
    for k, h in itertools.product(range(EPISODES), range(H)):
        cell = k, h, rng.integers(S), rng.integers(A)
        counts.visits[cell] = 1
        counts.costs[cell] = rng.choice([0.0, 0.25, 0.6, 1.0])
        counts.transitions[(*cell, rng.integers(S))] = 1
    return counts


def problem_of(shape, num_episodes=EPISODES):
    H, S, A, stages, families, _, centred = shape
    return precision.Problem(H, S, A, num_episodes, stages == 1, families, centred)


def held(name):
    """Users in the release after each episode: all of them, or those up to the end of the last batch."""
    if name == "shuffle_batched":
        return np.arange(1, EPISODES + 1) // 16 * 16
    closes = [1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 20, 24, 28, 32, 40, 48, 56, 64, 80, 96, 112, 128]
    users = range(1, EPISODES + 1)
    return np.array([max(n for n in closes if n <= k) if name == "central_batched" else k for k in users])


def true_sums(shape, name="exact"):
    """Exact counts in the releases of a mechanism, f64 `[episodes, H|1, S, A(, S)]`."""
    pooled = shape.num_stages == 1
    sums = (since_zero(x)[held(name)] for x in data(shape))
    return Counts(*(x.sum(1, keepdims=True) if pooled else x for x in sums))


def since_zero(x):
    """Running sums over the first axis, f64, with a row of zeros before the first."""
    return np.cumsum(np.concatenate([np.zeros((1, *x.shape[1:])), np.asarray(x, np.float64)]), 0)


@functools.cache
def program(name, shape):
    """`(parameters) -> releases` after each episode: counts `[episodes, ..., seeds]`, the rest without seeds."""
    axes = PrivatizerState(None, -1, -1), Release(-1, None, None, None)

    def run(given, stream):
        privatizer = PRIVATIZERS[name](shape, given)
        keys = jax.vmap(noise.key)(jnp.arange(SEEDS))
        state = jax.vmap(lambda _: privatizer.init(shape.zero_counts())[0], out_axes=axes[0])(keys)

        def body(state, now):
            k, counts = now
            keys_now = jax.vmap(lambda key: jax.random.fold_in(key, k))(keys)
            return jax.vmap(privatizer.step, in_axes=(0, axes[0], None), out_axes=axes)(keys_now, state, counts)

        return jax.lax.scan(body, state, (jnp.arange(EPISODES), stream))[1]

    return jit(run)


@functools.cache
def released(name, shape, scale):
    """Releases of the real privatizer, batched over seeds and scanned over episodes."""
    return jax.tree.map(np.asarray, program(name, shape)(parameters(name, scale), data(shape)))


@functools.cache
def alone(name, shape):
    """`(parameters, key, state, counts) -> (state, release)` of one run."""
    return jit(lambda given, *arguments: PRIVATIZERS[name](shape, given).step(*arguments))


def initial(name, shape, given):
    return PRIVATIZERS[name](shape, given).init(shape.zero_counts())


def episode(shape, k=0):
    return jax.tree.map(lambda x: jnp.asarray(x[k]), data(shape))


def errors(name, shape, scale):
    """Released minus true, f64 `[episodes, ..., seeds]` by family."""
    release = released(name, shape, scale)
    return Counts(*(np.float64(r) - t[..., None] for r, t in zip(release.counts, true_sums(shape, name), strict=True)))


def deviation(samples, expected):
    """Largest distance of the means over the last axis from what is expected, in standard errors."""
    standard_error = samples.std(-1, ddof=1) / math.sqrt(samples.shape[-1])
    return float(np.max(np.abs(samples.mean(-1) - expected) / np.maximum(standard_error, 1e-12)))


# The linear map


def feed_unit_vectors(monkeypatch):
    """Makes draw j of the episode with key `noise.key(n)` one if j = n - 1, else zero: column j shows draw j + 1."""

    def draw_like(sample, key, tree):
        n = jax.random.key_data(key)[1].astype(jnp.int32)
        return tuple((jnp.arange(x.size) == n - 1).astype(jnp.float32).reshape(x.shape) for x in tree)

    monkeypatch.setattr(streams_lib, "draw_like", draw_like)


def feed_blocks_of_unit_vectors(monkeypatch, index=lambda n: n):
    """The same for noise made in blocks: row k of the draws at the start n of a block shows draw n + k."""

    def draw_like(sample, key, tree):
        [(block, width)] = [x.shape for x in tree]
        n = index(jax.random.key_data(key)[1].astype(jnp.int32))
        column = jnp.arange(width) - 2 * 16  # transitions come after visits and costs
        return ((column[None, :] == n - 1 + jnp.arange(block)[:, None]).astype(jnp.float32),)

    monkeypatch.setattr(streams_lib, "draw_like", draw_like)
    monkeypatch.setattr(streams_lib, "stage_key", lambda key, h: key)


def linear_map(monkeypatch, name, episodes):
    """B with release noise = B z for the draws z_1..z_K, f64[K, K], read off the privatizer's own releases."""
    if name in BLOCKS:
        index = base.batch_index if name == "central_batched" else (lambda n: n)
        feed_blocks_of_unit_vectors(monkeypatch, index)  # a batched mechanism draws for batches
    else:
        feed_unit_vectors(monkeypatch)
    shape = Shape(1, 8, 2, 1, 3, 2**8 - 1)  # 128 transition counters, each fed another draw
    privatizer = PRIVATIZERS[name](shape, parameters(name, 1.0, episodes))
    empty = jax.tree.map(jnp.asarray, shape.zero_counts())

    def body(state, n):
        state, release = privatizer.step(noise.key(n), state, empty)
        return state, (release.counts.transitions.reshape(-1), release.std.transitions)

    start = privatizer.init(shape.zero_counts())[0]
    B, std = jit(lambda: jax.lax.scan(body, start, jnp.arange(1, episodes + 1))[1])()
    return np.asarray(B, np.float64)[:, :episodes], np.asarray(std, np.float64)


def tree_map(episodes, refined):
    """Dense map from a draw for every node to the releases, from the reference's tree with a draw for each node."""
    nodes = 2 * episodes
    make = reference.HonakerTree if refined else reference.TreeGaussian
    tree = make(1, 1, nodes, 1.0)
    zero, rows, used = (np.zeros((1, 1, nodes)), np.zeros((1, 1, nodes)), np.zeros((1, 1, nodes, 1))), [], 0
    for n in range(1, episodes + 1):
        draws = {}
        for level in range(reference.trailing_zeros(n) + 1 if refined else 1):
            unit = (np.arange(nodes) == used).astype(float).reshape(1, 1, nodes)
            draws[level] = (unit, unit, unit[..., None])
            used += 1
        rows.append(tree.update(zero, draws if refined else draws[0])[0].reshape(-1))
    return np.array(rows)


def dense_map(name, episodes):
    if name == "central_blt":
        return reference.blt_decoder(*strategies.blt_parameters(episodes), episodes)
    if name == "central_batched":
        closes = held(name)[:episodes]
        batch = np.unique(closes, return_inverse=True)[1]  # from 0
        J = batch[-1] + 1
        return reference.blt_decoder(*strategies.blt_parameters(J), J)[batch]
    if name == "central_toeplitz":
        return reference.sqrt_toeplitz_matrix(episodes)
    if name == "local_gaussian":
        return np.tri(episodes)
    return tree_map(episodes, refined=name == "central_honaker")


@pytest.mark.parametrize("name", ADDITIVE)
@pytest.mark.parametrize("episodes", [1, 100])
def test_joint_covariance_over_time_is_that_of_the_dense_matrix(name, episodes, monkeypatch):
    B, std = linear_map(monkeypatch, name, episodes)
    dense = dense_map(name, episodes)
    np.testing.assert_allclose(B @ B.T, dense @ dense.T, rtol=3e-6, atol=3e-6)
    np.testing.assert_allclose(std, np.linalg.norm(dense, axis=1), rtol=2e-6)
    assert np.all(np.triu(B, 1) == 0)  # a release never uses a later draw
    if name in ("central_blt", "central_toeplitz"):  # not only the law: the matrix itself
        np.testing.assert_allclose(B, dense, rtol=3e-6, atol=2e-6)
        # B is as float32 has it, and so is the strategy C = B^-1 A: no user moves it by more than is accounted for.
        moved = np.linalg.norm(np.linalg.solve(B, np.tri(episodes)), axis=0)
        assert np.all(moved <= strategies.strategy_norm(name.removeprefix("central_"), episodes))


def test_control_a_tree_without_refinement_is_caught(monkeypatch):
    B, _ = linear_map(monkeypatch, "central_gaussian", 45)
    dense = dense_map("central_honaker", 45)
    assert np.max(np.abs(B @ B.T - dense @ dense.T)) > 0.3


@pytest.mark.parametrize(
    ("name", "num_episodes"),
    [("central_honaker", 10**6), ("central_toeplitz", 10**6), ("central_blt", 20_000), ("central_blt", 10**6)],
)
def test_std_agrees_with_precision_at_large_n(name, num_episodes, monkeypatch):
    stds = []
    monkeypatch.setattr(gaussian, "additive", lambda shape, parameters, stream: stds.append(stream.std))
    PRIVATIZERS[name](Shape(1, 1, 1, 1, 3, 2**24 - 1), parameters(name, 1.0, num_episodes))
    ks = np.unique(np.round(np.geomspace(1, num_episodes, 30)).astype(int))
    problem = precision.Problem(1, 1, 1, num_episodes)
    predicted = precision.standard_deviation(name, problem, 1.0, ks).transitions
    np.testing.assert_allclose(jit(jax.vmap(stds[0]))(jnp.asarray(ks)), predicted, rtol=2e-6)


def test_blocks_keep_their_precision_over_a_million_episodes():
    K, block = 1_000_000, streams_lib.BLOCK
    rates, weights = jnp.asarray(host_strategy("central_blt", K))
    stream = streams_lib.block_stream(Shape(1, 1, 1, 1, 3, 2**24 - 1), rates, weights, lambda n: jnp.ones(()))
    key = noise.key(3)

    def body(state, n):
        now = jax.random.fold_in(key, n)
        state, noisy = stream.step(now, state, n)
        return state, noisy[0][0, 0, 0]

    def draws(n):
        now = streams_lib.stage_key(jax.random.fold_in(key, n), jnp.int32(0))
        return streams_lib.draw_like(noise.gaussian, now, (jnp.zeros((block, 3)),))[0][:, 0]

    noisy = jax.jit(lambda: jax.lax.scan(body, stream.init(None), jnp.arange(1, K + 1))[1])()
    z = jax.jit(lambda: jax.lax.map(draws, jnp.arange(1, K + 1, block)))().reshape(-1)
    noisy, z = np.asarray(noisy, np.float64), np.asarray(z, np.float64)
    decay, scale = (np.asarray(x) for x in strategies.blt_parameters(K))
    rates, vectors = np.linalg.eig(np.diag(decay) - np.outer(np.ones(4), scale))
    gains = -(scale @ vectors) * np.linalg.solve(vectors, np.ones(4)) / (1 - rates)
    lags = np.arange(K)
    b = 1 + gains.sum() - np.exp(np.outer(lags, np.log(rates))) @ gains
    for n in (1000, 123_456, 500_000, K):
        assert abs(noisy[n - 1] - b[:n][::-1] @ z[:n]) < 2e-3  # the noise itself is about 2.3


# Measured noise


def exact_variance(name, shape, scale):
    """Variance of each released count, given the data, `[episodes, ...]` by family, from textbook formulas."""
    H, S, pooled = shape.horizon, shape.num_states, shape.num_stages == 1
    users = np.arange(1, EPISODES + 1)
    if name in ADDITIVE:
        std = precision.standard_deviation(name, problem_of(shape), scale, users)
        shapes = (x.shape for x in true_sums(shape))
        return Counts(*(np.broadcast_to(np.float64(v) ** 2, s[::-1]).T for v, s in zip(std, shapes, strict=True)))
    x = Counts(*(np.asarray(v, np.float64) for v in data(shape)))
    if name in ("local_bernoulli", "shuffle_batched"):
        gain = math.tanh(0.5 / scale)

        def variance(x):
            p = 0.5 + gain * (x - 0.5)
            return p * (1 - p) / gain**2

        each = Counts(*(variance(v) for v in x))
        if pooled:
            each = Counts(*(v.sum(1, keepdims=True) for v in each))
        if shape.families == 2:
            each = each._replace(visits=each.transitions.sum(-1))
    else:
        spread = S if shape.families == 2 else 1

        W = H * (shape.families if name == "local_sampled_family" else 1)

        def variance(x, spread):
            if pooled:
                drawing = W * (x**2).sum(1, keepdims=True) - x.sum(1, keepdims=True) ** 2
                return drawing + 2 * W * H * scale**2 * spread
            return (W - 1) * x**2 + 2 * W * scale**2 * spread

        each = Counts(variance(x.visits, spread), variance(x.costs, 1), variance(x.transitions, 1))
    return Counts(*(since_zero(v)[held(name)] for v in each))


@pytest.mark.parametrize("kind", SHAPES)
@pytest.mark.parametrize("name", MECHANISMS)
def test_noise_is_unbiased_and_its_std_is_the_prediction(name, kind):
    shape, scale = SHAPES[kind], scale_of(name)
    rows = np.array(CHECKED) - 1
    for error, variance in zip(errors(name, shape, scale), exact_variance(name, shape, scale), strict=True):
        assert deviation(error[rows], 0.0) < LIMIT
        assert deviation(error[rows] ** 2, variance[rows]) < LIMIT


@pytest.mark.parametrize("factor", [0.8, 1.25])
@pytest.mark.parametrize("name", MECHANISMS)
def test_control_noise_of_another_scale_is_caught(name, factor):
    shape, scale = SHAPES["three_families"], scale_of(name)
    variance = exact_variance(name, shape, factor * scale).transitions[-1]
    assert deviation(errors(name, shape, scale).transitions[-1] ** 2, variance) > LIMIT


@pytest.mark.parametrize("kind", SHAPES)
@pytest.mark.parametrize("name", MECHANISMS)
def test_released_std_is_that_of_precision_and_covers_the_data(name, kind):
    shape, scale = SHAPES[kind], scale_of(name)
    predicted = precision.standard_deviation(name, problem_of(shape), scale, np.arange(1, EPISODES + 1))
    released_std = released(name, shape, scale).std
    for mine, table, variance in zip(released_std, predicted, exact_variance(name, shape, scale), strict=True):
        np.testing.assert_allclose(mine, table, rtol=1e-5)
        largest = np.sqrt(variance.reshape(EPISODES, -1).max(-1))
        assert np.all(mine >= largest * (1 - 1e-5))


@pytest.mark.parametrize("time_varying", [False, True])
@pytest.mark.parametrize("name", MECHANISMS)
def test_released_error_is_the_row_of_its_bucket(name, time_varying):
    K, shape = 100, SHAPES["two_families"]
    problem = precision.Problem(shape.horizon, shape.num_states, shape.num_actions, K, families=2)
    calibration = accounting.calibrate(name, problem, 2.0, time_varying=time_varying)
    given = sweep.noise_parameters(name, problem, calibration)
    state, release = initial(name, shape, given)
    kind = precision.bucket_kind(name)
    for n in (0, 1, 2, 7, 64, 99, 100):
        if n:
            state = state._replace(num_episodes=jnp.int32(n - 1))
            _, release = alone(name, shape)(given, noise.key(n), state, episode(shape))
        for error, table in zip(release.error, calibration.precision, strict=True):
            assert float(error) == table[precision.bucket(kind, n, K)]


# Without noise


@pytest.mark.parametrize("kind", SHAPES)
@pytest.mark.parametrize("name", MECHANISMS)
def test_no_noise_releases_what_exact_releases(name, kind):
    shape = SHAPES[kind]
    mine, exact = (released(x, shape, 0.0) for x in (name, "exact"))
    for a, b in zip(mine.counts, exact.counts, strict=True):
        np.testing.assert_array_equal(a, np.concatenate([np.zeros_like(b[:1]), b])[held(name)])
    np.testing.assert_array_equal(mine.num_episodes, held(name))
    for std in mine.std:
        np.testing.assert_array_equal(std, 0.0)


@pytest.mark.parametrize("name", MECHANISMS)
def test_one_episode(name):
    shape = Shape(2, 2, 1, 2, 3, 1)
    problem = precision.Problem(2, 2, 1, 1)
    calibration = accounting.calibrate(name, problem, 1.0)
    given = sweep.noise_parameters(name, problem, calibration)
    state, first = initial(name, shape, given)
    assert all(np.all(np.asarray(x) == 0) for x in jax.tree.leaves((first.counts, first.std)))
    _, release = alone(name, shape)(given, noise.key(0), state, episode(shape))
    assert all(np.all(np.isfinite(np.asarray(x))) for x in jax.tree.leaves(release))
    changed = [np.mean(np.asarray(x) != y[0]) for x, y in zip(release.counts, data(shape), strict=True)]
    assert max(changed) >= 0.5  # sampled mechanisms add noise to one of the two steps, or to one family of it
    assert int(release.num_episodes) == 1


# State and batching


def numbers_per_counter(name, max_episodes, num_episodes=1000):
    """Sizes of the noise state in units of the released counters."""
    shape = Shape(2, 3, 2, 2, 3, max_episodes)
    state = jax.eval_shape(lambda given: initial(name, shape, given)[0], parameters(name, 1.0, num_episodes))
    counters = sum(x.size for x in jax.eval_shape(shape.zero_counts))
    return sum(x.size for x in jax.tree.leaves(state.noise)) / counters


def test_state_is_as_small_as_advertised():
    for levels in (8, 24):
        top = 2**levels - 1
        assert numbers_per_counter("central_gaussian", top) == levels + 1
        assert numbers_per_counter("central_honaker", top) == 2 * (levels + 1) + 2
        block = 8 + 2 * 8 / 2  # noise of eight episodes, and two slots for the draws of one of the two stages
        assert numbers_per_counter("central_toeplitz", top) <= block + 7 + 1.1 * levels
        for num_episodes in (10, 10_000_000):
            assert numbers_per_counter("central_blt", top, num_episodes) == 4 + 1 + block
            assert numbers_per_counter("central_batched", top, num_episodes) == 4 + 1 + block + 1
        assert numbers_per_counter("local_gaussian", top) == 1
        assert numbers_per_counter("local_bernoulli", top) == numbers_per_counter("shuffle_batched", top) == 0
        for name in ("local_sampled", "local_sampled_family"):
            assert numbers_per_counter(name, top) == 1 + 2 / 2  # two slots for one of the two stages


@pytest.mark.parametrize("kind", ["two_families", "pooled"])
@pytest.mark.parametrize("name", MECHANISMS)
def test_a_lane_of_scan_and_vmap_is_the_run_alone(name, kind):
    shape, scale, seed = SHAPES[kind], scale_of(name), 3
    batch, given = released(name, shape, scale), parameters(name, scale)
    state, _ = initial(name, shape, given)
    for k in range(20):
        key = jax.random.fold_in(noise.key(seed), k)
        state, release = alone(name, shape)(given, key, state, episode(shape, k))
        for mine, lane in zip(release.counts, batch.counts, strict=True):
            np.testing.assert_allclose(mine, lane[k, ..., seed], rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("name", MECHANISMS)
def test_epsilons_share_the_noise_of_a_seed(name):
    """Batched over scales, as a grid of epsilons is, the noise state has no axis of its own; lanes are runs alone."""
    shape, given = SHAPES["two_families"], parameters(name, 1.0)
    axes = PrivatizerState(None, None, -1), Release(-1, -1, -1, None)
    state, counts, key = initial(name, shape, given)[0], episode(shape), noise.key(1)

    def step(scale):
        return PRIVATIZERS[name](shape, given._replace(scale=scale)).step(key, state, counts)

    both = jit(jax.vmap(step, out_axes=axes))(jnp.asarray([0.5, 1.0], jnp.float32))[1]
    for mine, lane in zip(alone(name, shape)(given, key, state, counts)[1].counts, both.counts, strict=True):
        np.testing.assert_allclose(mine, lane[..., 1], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("shape", [(), (5,), (1, 4, 3)])
def test_batches_of_normals_are_what_each_key_gives_alone(shape):
    keys = jax.vmap(noise.key)(jnp.arange(4))
    batch = jit(jax.vmap(lambda key: noise.gaussian(key, shape)))(keys)
    assert batch.shape == (4, *shape)
    np.testing.assert_allclose(batch[2], jit(lambda key: noise.gaussian(key, shape))(keys[2]), rtol=1e-6)


def test_law_of_the_normals():
    z = np.asarray(jit(lambda: noise.gaussian(noise.key(11), (200_000,)))(), np.float64)
    assert stats.kstest(z, "norm").pvalue > 1e-3
    assert stats.kstest(0.98 * z, "norm").pvalue < 1e-6
    first, second = z[:100_000], z[100_000:]  # the two draws of a block
    for a, b in ((first, second), (first**2, second**2), (np.abs(first), second)):
        assert abs(np.corrcoef(a, b)[0, 1]) * math.sqrt(len(a)) < LIMIT
    tail = np.mean(np.abs(z) > 4) / (2 * stats.norm.sf(4))
    assert 0.3 < tail < 2.5  # 13 expected


# Privacy of the strategies and of the bits


def coefficients(scale, one_minus_decay, episodes):
    scale, rate = np.float64(scale), np.log1p(-np.float64(one_minus_decay))
    return np.append(1.0, np.exp(np.outer(np.arange(episodes - 1), rate)) @ scale)


def strategy_of(rates, weights, episodes):
    """First column of C = B^-1 A for b_t = sum_i weights_i (1 - rates_i)^t, f64: what solves B c = (1, 1, ...)."""
    rates, weights = np.float64(rates), np.float64(weights)
    past, c = np.zeros(len(rates)), np.zeros(episodes)
    for t in range(episodes):
        past *= 1 - rates
        c[t] = (1 - weights @ past) / weights.sum()
        past += c[t]
    return c


@pytest.mark.parametrize("num_episodes", [10, 1000, 20_000, 100_000])
def test_float32_strategies_do_not_exceed_the_accounted_norm(num_episodes):
    blt = strategy_of(*host_strategy("central_blt", num_episodes), num_episodes)
    batches = strategies.num_batches(num_episodes)
    batched = strategy_of(*host_strategy("central_batched", num_episodes), batches)
    buffers = gaussian.square_root_buffers(2**24 - 1)
    exponentials = gaussian.noise_exponentials(*(x.astype(np.float64) for x in buffers))
    square_root = strategy_of(*exponentials, num_episodes)
    np.testing.assert_allclose((1 + 1e-6) * square_root, coefficients(*buffers, num_episodes), rtol=1e-9, atol=1e-12)
    for stream, c in (("blt", blt), ("batched", batched), ("toeplitz", square_root)):
        ratio = np.linalg.norm(c) / strategies.strategy_norm(stream, num_episodes)
        assert 1 - 2e-6 < ratio <= 1


@pytest.mark.parametrize("max_episodes", [255, 65_535])
def test_square_root_coefficients_are_met_from_below(max_episodes):
    c = coefficients(*gaussian.square_root_buffers(max_episodes), max_episodes)
    k = np.arange(1, max_episodes)
    ratio = c / np.append(1.0, np.cumprod((2 * k - 1) / (2 * k)))
    assert np.all(ratio <= 1) and np.all(ratio > 1 - 2e-6)


def test_bits_never_cost_more_than_they_are_accounted_for():
    scales = np.float32(np.geomspace(0.1, 1e4, 400))
    t = np.asarray(jit(jax.vmap(reports_lib.bit_threshold))(jnp.asarray(scales)), np.float64)
    loss = np.log((2.0**31 + t) / (2.0**31 - t))
    accounted = 1 / np.float64(scales)
    assert np.all(loss <= accounted) and np.all(loss >= accounted * (1 - 1e-5))


def reported_probabilities(monkeypatch, shape, scale, counts):
    """P(sign = +1) of every bit of the reports on a batch of counts, f64[batch, bits], exact to the last word.

    The code reports +1 for the words below a limit, which is found by bisection.
    """
    fed = {}
    monkeypatch.setattr(reports_lib, "draw_like", lambda sample, key, tree: fed["words"])
    given = parameters("local_bernoulli", scale)
    state, _ = initial("local_bernoulli", shape, given)

    def signs(words, counts):
        fed["words"] = words
        totals = PRIVATIZERS["local_bernoulli"](shape, given).step(noise.key(0), state, counts)[0].totals
        return totals.visits, totals.costs.astype(jnp.int32), totals.transitions

    batched = jit(jax.vmap(signs))
    low = tuple(np.full(x.shape, -(2**31), np.int64) for x in counts)  # the limit lies in (low, high]
    high = tuple(np.full(x.shape, 2**31, np.int64) for x in counts)
    for _ in range(32):
        middle = tuple((a + b) // 2 for a, b in zip(low, high, strict=True))
        below = [np.asarray(x) > 0 for x in batched(tuple(jnp.asarray(m, jnp.int32) for m in middle), counts)]
        low = tuple(np.where(p, m, a) for p, m, a in zip(below, middle, low, strict=True))
        high = tuple(np.where(p, b, m) for p, m, b in zip(below, middle, high, strict=True))
    return np.concatenate([((x + 2**31) / 2.0**32).reshape(len(x), -1) for x in high], 1)


def test_likelihood_ratio_of_randomised_bits_by_enumeration(monkeypatch):
    """All pairs of users of a small problem, and the report that tells them apart best: the pure epsilon, attained."""
    shape, problem = Shape(2, 2, 1, 2, 3, 1), precision.Problem(2, 2, 1, 1)
    epsilon = 1.3
    scale = accounting.noise_scale("local_bernoulli", problem, epsilon)
    paths = np.array(list(itertools.product((0, 1), (0, 1), (0, 1), (0.0, 0.3, 1.0), (0.0, 0.3, 1.0))))
    states, costs = jnp.asarray(paths[:, :3], jnp.int32), jnp.asarray(paths[:, 3:], jnp.float32)
    trajectories = simulation.Trajectory(states[:, :2], jnp.zeros_like(states[:, :2]), costs, states[:, 1:])
    counts = jit(jax.vmap(functools.partial(simulation.tally, shape)))(trajectories)
    p = reported_probabilities(monkeypatch, shape, scale, counts)
    assert p.shape == (72, 2 * (2 + 2 + 4))
    assert np.all((0 < p) & (p < 1))
    ones, zeros = np.log(p)[:, None] - np.log(p)[None], np.log1p(-p)[:, None] - np.log1p(-p)[None]
    loss = np.maximum(ones, zeros).sum(-1).max()  # bits are independent: the worst report is the worst of each bit
    assert epsilon * (1 - 1e-5) < loss <= epsilon


def test_pooled_bits_are_the_bits_of_the_steps_summed():
    by_step, pooled = Shape(2, 2, 2, 2, 3, 255), Shape(2, 2, 2, 1, 3, 255)
    given, parts = parameters("local_bernoulli", 3.0), []
    for shape in (by_step, pooled):
        state, _ = initial("local_bernoulli", shape, given)
        step = alone("local_bernoulli", shape)
        parts.append(step(given, noise.key(4), state, episode(by_step))[1].counts)
    for stages, sums in zip(*parts, strict=True):
        np.testing.assert_allclose(np.asarray(stages).sum(0, keepdims=True), sums, rtol=1e-5)


def test_one_step_is_reported_and_it_does_not_depend_on_the_user():
    shape = Shape(4, 2, 2, 4, 3, 255)
    given = parameters("local_sampled", 1.0)
    state, _ = initial("local_sampled", shape, given)
    step = alone("local_sampled", shape)
    drawn = []
    for seed in range(40):
        touched = []
        for k in (0, 1):
            release = step(given, noise.key(seed), state, episode(shape, k))[1].counts
            touched.append([np.flatnonzero(np.any(np.asarray(x).reshape(4, -1) != 0, 1)) for x in release])
        assert all(list(x) == list(touched[0][0]) for family in touched for x in family) and len(touched[0][0]) == 1
        drawn.append(int(touched[0][0][0]))
    assert set(drawn) == {0, 1, 2, 3}


def test_one_family_of_one_step_is_reported():
    shape = Shape(3, 2, 2, 3, 3, 255)
    given = parameters("local_sampled_family", 1.0)
    state, _ = initial("local_sampled_family", shape, given)
    step, drawn = alone("local_sampled_family", shape), []
    for seed in range(60):
        touched = []
        for k in (0, 1):  # two users: what is drawn does not depend on them
            counts = step(given, noise.key(seed), state, episode(shape, k))[1].counts
            rows = [np.flatnonzero(np.any(np.asarray(x).reshape(3, -1) != 0, 1)) for x in counts]
            touched.append([(f, int(h)) for f, row in enumerate(rows) for h in row])
        assert touched[0] == touched[1] and len(touched[0]) == 1
        drawn += touched[0]
    assert set(drawn) == set(itertools.product(range(3), range(3)))


# Batches


def test_batches_of_device_and_host_agree():
    n = np.unique(np.concatenate([np.arange(3000), np.round(np.geomspace(1, 2**31 - 1, 5000)).astype(np.int64)]))
    index, last = (jit(f)(jnp.asarray(n, jnp.int32)) for f in (base.batch_index, base.last_close))
    np.testing.assert_array_equal(index, [strategies.num_batches(k) for k in n])
    np.testing.assert_array_equal(last, [strategies.batch_end(strategies.num_batches(k)) for k in n])
    assert strategies.num_batches(20_000) == 52


def test_a_batched_release_stands_until_the_next_batch_closes():
    release = released("central_batched", SHAPES["two_families"], 2.0)
    same = [np.array_equal(a, b) for a, b in itertools.pairwise(release.counts.transitions)]
    np.testing.assert_array_equal(same, held("central_batched")[1:] == held("central_batched")[:-1])


def test_batches_carry_about_half_the_noise():
    stds = [
        accounting.noise_scale(name, problem_of(SHAPES["pooled"], 20_000), 1.0, dp_delta=1e-5)
        * precision.standard_deviation(name, problem_of(SHAPES["pooled"], 20_000), 1.0).transitions.max()
        for name in ("central_batched", "central_blt")
    ]
    assert 0.5 < stds[0] / stds[1] < 0.6


# Centred costs


@pytest.mark.parametrize("kind", CENTRED)
@pytest.mark.parametrize("name", ADDITIVE)
def test_centred_costs_are_unbiased_and_carry_half_the_noise_of_visits(name, kind):
    shape, rows = CENTRED[kind], np.array(CHECKED) - 1
    error, variance = errors(name, shape, 2.0), exact_variance(name, shape, 2.0)
    for e, v in zip(error, variance, strict=True):
        assert deviation(e[rows], 0.0) < LIMIT
        assert deviation(e[rows] ** 2, v[rows]) < LIMIT
    own = error.costs - error.visits / 2  # the noise of the centred costs themselves
    assert deviation(own[rows] ** 2, exact_variance(name, SHAPES[kind], 2.0).costs[rows]) < LIMIT
    assert deviation((own * error.visits)[rows], 0.0) < LIMIT
    for mine, table in zip(released(name, shape, 2.0).std, variance, strict=True):
        np.testing.assert_allclose(mine, np.sqrt(table.reshape(EPISODES, -1)[:, 0]), rtol=1e-5)


@pytest.mark.parametrize("name", ["central_laplace", "central_blt"])
def test_errors_of_centred_costs_cover(name):
    """At the tail probability of one count; the sum of two Laplace errors is a bound, the Gaussian one exact."""
    shape, scale, tail_prob = CENTRED["two_families"], 2.0, 0.02
    mech, units = strategies.MECHANISMS[name], {"central_laplace": 3.0, "central_blt": None}[name]
    k = 7
    if units is None:
        units = float(precision.standard_deviation(name, problem_of(shape), 1.0, np.array([k])).transitions[0] ** 2)
    bound = precision._error(mech, problem_of(shape), scale, units, "costs", tail_prob)
    missed = np.mean(np.abs(errors(name, shape, scale).costs[k - 1]) > bound)
    assert missed <= tail_prob + LIMIT * math.sqrt(tail_prob / (SEEDS * 8))
    if name == "central_blt":
        assert missed >= tail_prob - LIMIT * math.sqrt(tail_prob / (SEEDS * 8))


@pytest.mark.parametrize("name", REPORTS)
def test_reports_have_no_centred_costs(name):
    with pytest.raises(ValueError, match="has no centred_costs"):
        accounting.calibrate(name, problem_of(CENTRED["pooled"]), 1.0)


# Refusals


def test_toeplitz_refuses_what_does_not_fit():
    given = parameters("central_toeplitz", 1.0)
    with pytest.raises(ValueError, match=r"at most 16777215 episodes.*Use central_blt"):
        PRIVATIZERS["central_toeplitz"](Shape(2, 2, 2, 2, 3, 2**31 - 1), given)
    with pytest.raises(ValueError, match=r"MiB for the noise of one seed.*Use central_blt"):
        PRIVATIZERS["central_toeplitz"](Shape(200, 300, 10, 200, 3, 2**16 - 1), given)


@pytest.mark.parametrize("name", ["central_blt", "central_batched", "shuffle_batched"])
def test_without_a_strategy_it_says_where_to_get_one(name):
    with pytest.raises(ValueError, match="host_strategy"):
        PRIVATIZERS[name](SHAPES["pooled"], parameters(name, 1.0)._replace(strategy=None))


@pytest.mark.parametrize("name", REPORTS)
def test_counts_pooled_too_early_are_refused(name):
    shape = SHAPES["pooled"]
    privatizer = PRIVATIZERS[name](shape, parameters(name, 1.0))
    state, _ = privatizer.init(shape.zero_counts())
    with pytest.raises(ValueError, match="counts of 1 stages, expected 3"):
        privatizer.step(noise.key(0), state, shape.zero_counts())
