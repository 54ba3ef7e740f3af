"""The linear map from draws to releases, read off a mechanism by feeding it unit vectors as draws.

Its covariance over time is that of the dense matrix of the strategy, and of the plain reference: so the noise of all
releases is jointly what accounting speaks of, for users and for epochs.
"""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import reference
from mechanism_pieces import (
    PLAIN,
    Case,
    blt_noise_coefficients,
    initial,
    jit,
    leaves_of,
    nobody,
    parameters,
    times_of,
    with_releases,
)

from jaxprivrl.engine import episodes
from jaxprivrl.engine.episodes import Agent
from jaxprivrl.numerics import random
from jaxprivrl.privacy import errors
from jaxprivrl.privatizers import PRIVATIZERS, additive, base, streams, toeplitz
from jaxprivrl.privatizers.local import PerUser
from jaxprivrl.privatizers.toeplitz import BLT, SquareRoot
from jaxprivrl.privatizers.tree import Honaker, Tree
from jaxprivrl.problem import Problem
from jaxprivrl.schedules import schedule

SIZES = Problem(1, 8, 2, 128)  # 128 transition counters, each fed another draw; visits and costs come before them
CASES = [Case(p, releases) for releases in ("every", "octaves") for p in PLAIN]


def feed_unit_vectors(monkeypatch, leaf):
    """Makes draw j at user `n`, whose key is `random.key(n)`, one if j = leaf(n) - 1, else zero.

    Column j of what is released then shows draw j + 1, in the counters of transitions.
    """

    def draw_like(sample, key, tree):
        n = leaf(jax.random.key_data(key)[1].astype(jnp.int32))
        return tuple((jnp.arange(x.size) == n - 1).astype(jnp.float32).reshape(x.shape) for x in tree)

    monkeypatch.setattr(streams, "draw_like", draw_like)
    monkeypatch.setattr(additive, "draw_like", draw_like)


def feed_blocks_of_unit_vectors(monkeypatch, leaf):
    """The same for noise made in blocks: row k of the draws at the start n of a block shows draw leaf(n) + k."""

    def draw_like(sample, key, tree):
        [(block, width)] = [x.shape for x in tree]
        n = leaf(jax.random.key_data(key)[1].astype(jnp.int32))
        column = jnp.arange(width) - 2 * 16  # transitions come after visits and costs
        return ((column[None, :] == n - 1 + jnp.arange(block)[:, None]).astype(jnp.float32),)

    monkeypatch.setattr(streams, "draw_like", draw_like)
    monkeypatch.setattr(streams, "stage_key", lambda key, h: key)


def linear_map(monkeypatch, privatizer, problem):
    """(B, std, leaves) of the release that stands after each user: noise B z, z the draws of all leaves; f64[K, K]."""
    leaves = leaves_of(privatizer, problem)
    table = jnp.asarray(np.append(0, leaves), jnp.int32)
    feed = feed_blocks_of_unit_vectors if privatizer.strategy.block > 1 else feed_unit_vectors
    feed(monkeypatch, (lambda n: n) if privatizer.strategy.per_user else (lambda n: table[n]))
    shape, given = problem.shape, parameters(privatizer, problem, 1.0)
    runtime = privatizer.runtime(privatizer, shape)
    agent, empty = Agent(shape, privatizer, runtime, given, times_of(problem)), nobody(problem)

    def body(state, n):
        state = episodes.observe(random.key(n), state, agent, empty)
        std = runtime.view(given, state.released, state.clock).std.transitions
        return state, (state.released.transitions.reshape(-1), std)

    users = jnp.arange(1, problem.num_episodes + 1)
    B, std = jit(lambda: jax.lax.scan(body, initial(privatizer, shape), users)[1])()
    return np.asarray(B, np.float64)[:, : problem.num_episodes], np.asarray(std, np.float64), leaves


def tree_map(releases, refined):
    """Dense map from a draw for every node to the releases, from the reference's tree with a draw for each node."""
    nodes = 2 * releases
    make = reference.HonakerTree if refined else reference.TreeGaussian
    tree = make(1, 1, nodes, 1.0)
    zero, rows, used = (np.zeros((1, 1, nodes)), np.zeros((1, 1, nodes)), np.zeros((1, 1, nodes, 1))), [], 0
    for n in range(1, releases + 1):
        draws = {}
        for level in range(reference.trailing_zeros(n) + 1 if refined else 1):
            unit = (np.arange(nodes) == used).astype(float).reshape(1, 1, nodes)
            draws[level] = (unit, unit, unit[..., None])
            used += 1
        rows.append(tree.update(zero, draws if refined else draws[0])[0].reshape(-1))
    return np.array(rows)


# The dense map of each strategy by the reference, for so many leaves.
REFERENCE = {
    PerUser: np.tri,
    Tree: lambda n: tree_map(n, refined=False),
    Honaker: lambda n: tree_map(n, refined=True),
    BLT: lambda n: reference.blt_decoder(*toeplitz.blt_parameters(n), n),
    SquareRoot: reference.sqrt_toeplitz_matrix,
}
STRATEGIES = {p.strategy: p for p in PLAIN}


@pytest.mark.parametrize("leaves", [1, 2, 7, 45, 100])
@pytest.mark.parametrize("strategy", STRATEGIES, ids=lambda s: type(s).__name__)
def test_dense_matrix_of_a_strategy_is_that_of_the_reference(strategy, leaves):
    mine, other = strategy.dense(leaves, leaves), REFERENCE[type(strategy)](leaves)
    np.testing.assert_allclose(mine @ mine.T, other @ other.T, rtol=1e-9, atol=1e-9)
    early = strategy.dense(leaves, (leaves + 1) // 2)  # the first releases of the same mechanism
    np.testing.assert_allclose(early @ early.T, (mine @ mine.T)[: len(early), : len(early)], rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("users", [1, 100])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_joint_covariance_over_time_is_that_of_the_dense_matrix(case, users, monkeypatch):
    privatizer = case.privatizer
    strategy, problem = privatizer.strategy, SIZES.replace(num_episodes=users, schedule=schedule(case.releases))
    B, std, leaves = linear_map(monkeypatch, privatizer, problem)
    n = privatizer.num_leaves(problem)
    for dense in (strategy.dense(n, n)[leaves - 1], REFERENCE[type(strategy)](n)[leaves - 1]):
        np.testing.assert_allclose(B @ B.T, dense @ dense.T, rtol=3e-6, atol=3e-6)
        unit = math.sqrt(privatizer.law.unit_variance)
        np.testing.assert_allclose(std, unit * np.linalg.norm(dense, axis=1), rtol=2e-6)
    assert np.all(B[np.arange(users) >= leaves[:, None]] == 0)  # a release never uses a later draw
    if strategy.block > 1:  # not only the law: the matrix itself
        np.testing.assert_allclose(B, np.pad(dense, ((0, 0), (0, users - n))), rtol=3e-6, atol=2e-6)
        # B is as float32 has it, and so is the strategy C = B^-1 A: no leaf moves it by more than is accounted for.
        own = B[np.unique(leaves, return_index=True)[1], :n]
        moved = np.linalg.norm(np.linalg.solve(own, np.tri(n)), axis=0)
        assert np.all(moved <= strategy.norms(n).l2)


def test_control_a_tree_without_refinement_is_caught(monkeypatch):
    B, _, _ = linear_map(monkeypatch, PRIVATIZERS["central_gaussian"], SIZES.replace(num_episodes=45))
    dense = REFERENCE[Honaker](45)
    assert np.max(np.abs(B @ B.T - dense @ dense.T)) > 0.3


# Many releases


def coefficients_of_square_root(releases):
    """c_k = binom(2k, k) / 4^k, f64."""
    k = np.arange(1, releases)
    return np.append(1.0, np.cumprod((2 * k - 1) / (2 * k)))


# Variance of release j for each j up to J, in units of one draw, by sums over the coefficients or the live nodes.
BY_SUMS = {
    PerUser: lambda J: np.arange(1, J + 1),
    Tree: lambda J: np.bitwise_count(np.arange(1, J + 1)),
    Honaker: lambda J: sum(
        (np.arange(1, J + 1) >> i & 1) * reference.honaker_variance(i) for i in range(J.bit_length())
    ),
    BLT: lambda J: np.cumsum(np.square(blt_noise_coefficients(J, np.arange(J)))),
    SquareRoot: lambda J: np.cumsum(np.square(coefficients_of_square_root(J))),
}


@pytest.mark.parametrize("num_episodes", [20_000, 10**6])
@pytest.mark.parametrize("privatizer", PLAIN, ids=lambda p: p.name)
def test_std_agrees_with_accounting_at_large_n(privatizer, num_episodes):
    problem = Problem(1, 1, 1, num_episodes)
    js = np.unique(np.round(np.geomspace(1, num_episodes, 30)).astype(int))
    predicted = errors.standard_deviation(privatizer, problem, 1.0, js).transitions
    shape = with_releases(problem, 2**24 - 1)
    runtime, given = privatizer.runtime(privatizer, shape), parameters(privatizer, problem, 1.0)
    zeros = runtime.init()[1]
    std = jit(jax.vmap(lambda j: runtime.view(given, zeros, base.Clock(j, j, j)).std.transitions))
    np.testing.assert_allclose(std(jnp.asarray(js, jnp.int32)), predicted, rtol=2e-6)
    summed = privatizer.law.unit_variance * BY_SUMS[type(privatizer.strategy)](num_episodes)[js - 1]
    np.testing.assert_allclose(predicted, np.sqrt(summed), rtol=2e-6)


def test_blocks_keep_their_precision_over_a_million_episodes():
    K, privatizer, block = 1_000_000, PRIVATIZERS["central_blt"], toeplitz.BLOCK
    problem = Problem(1, 1, 1, K)
    stream = privatizer.strategy.stream(problem.shape, privatizer.law)
    strategy = parameters(privatizer, problem, 1.0).data
    key = random.key(3)

    def body(state, n):
        now = jax.random.fold_in(key, n)
        state, noisy = stream.step(now, state, n, strategy)
        return state, noisy[0][0, 0, 0]

    def draws(n):
        now = streams.stage_key(jax.random.fold_in(key, n), jnp.int32(0))
        return streams.draw_like(random.gaussian, now, (jnp.zeros((block, 3)),))[0][:, 0]

    noisy = jax.jit(lambda: jax.lax.scan(body, stream.init(None), jnp.arange(1, K + 1))[1])()
    z = jax.jit(lambda: jax.lax.map(draws, jnp.arange(1, K + 1, block)))().reshape(-1)
    noisy, z = np.asarray(noisy, np.float64), np.asarray(z, np.float64)
    b = blt_noise_coefficients(K, np.arange(K))
    for n in (1000, 123_456, 500_000, K):
        assert abs(noisy[n - 1] - b[:n][::-1] @ z[:n]) < 2e-3  # the noise itself is about 2.3


def test_every_strategy_of_the_registry_has_a_reference():
    """A new one states its dense map above, written without the package, and its variance as a sum."""
    assert {type(s) for s in STRATEGIES} == set(REFERENCE) == set(BY_SUMS)
