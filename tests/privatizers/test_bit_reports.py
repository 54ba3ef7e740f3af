"""Randomised bits: what they cost by enumeration of all that can be reported, and what pooling makes of them."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from mechanism_pieces import LIMIT, NOISY, alone, jit, parameters, start, user

from jaxprivrl.engine import episodes
from jaxprivrl.numerics import random
from jaxprivrl.privacy import accounting
from jaxprivrl.privatizers import PRIVATIZERS, base
from jaxprivrl.privatizers import bits as bits_lib
from jaxprivrl.privatizers.base import State, Users, report_one
from jaxprivrl.problem import Problem

BITS = [p for p in NOISY if p.report.bits]
COINS = 2**24  # values of a uniform number
WORDS = 2**31  # from -WORDS to WORDS - 1


def test_the_mechanisms_of_bits():
    assert {PRIVATIZERS["local_bernoulli"], PRIVATIZERS["shuffle_bernoulli"]} <= set(BITS)


def test_bits_never_cost_more_than_they_are_accounted_for():
    scales = np.float32(np.geomspace(0.1, 1e4, 400))
    t = np.asarray(jit(jax.vmap(bits_lib.bit_threshold))(jnp.asarray(scales)), np.float64)
    loss = np.log((2.0**31 + t) / (2.0**31 - t))
    accounted = 1 / np.float64(scales)
    assert np.all(loss <= accounted) and np.all(loss >= accounted * (1 - 1e-5))


def test_bits_of_many_users_are_flipped_as_often_as_those_of_one():
    """With the probability that a word is not below its threshold, or a float32 step more."""
    scales = jnp.asarray(np.geomspace(0.04, 1e4, 400), jnp.float32)
    t, flip = jit(jax.vmap(lambda s: (bits_lib.bit_threshold(s), bits_lib._flip(bits_lib.bit_threshold(s)))))(scales)
    by_words = (2.0**31 - np.asarray(t, np.float64)) / 2.0**32
    flip = np.asarray(flip, np.float64)
    assert np.all(flip >= by_words) and np.all(flip <= by_words * (1 + 2e-7)) and np.all(flip <= 0.5)
    assert np.all(np.log1p(-flip) - np.log(flip) <= 1 / np.asarray(scales, np.float64))


@pytest.mark.parametrize("privatizer", BITS, ids=lambda p: p.name)
def test_rare_flips_of_many_users_are_not_lost(privatizer):
    """One bit in 66 million is flipped, which 1 - flip in float32 would not tell from none."""
    users, runs, loss = 2**24, 400, 18.0
    problem = Problem(1, 2, 2, users)
    runtime = privatizer.runtime(privatizer, problem.shape)
    given = parameters(privatizer, problem, 1 / loss)
    empty, zeros = runtime.init()
    everywhere = jax.tree.map(lambda x: x + np.float32(users), zeros)

    def run(key):
        mine = Users(everywhere, None, jnp.int32(users), jnp.int32(0))
        return runtime.absorb(key, given, empty, mine).cell

    totals = jit(jax.vmap(run))(jax.random.split(random.key(2), runs))
    sums = [np.float64(x).reshape(-1) for x in (totals.visits, totals.costs, totals.transitions)]
    flips = (users - np.concatenate(sums)) / 2
    expected = users / (1 + np.exp(loss)) * len(flips)  # 0.26 for each counter
    assert abs(flips.sum() - expected) < LIMIT * np.sqrt(expected)


def bisect(says_yes, low, high):
    """Least whole number in (low, high] that says no, elementwise in i64 arrays; what lies below it says yes."""
    low, high = np.array(low, np.int64), np.array(high, np.int64)
    while np.any(high - low > 1):
        middle = (low + high) // 2
        yes = says_yes(middle)
        low, high = np.where(yes, middle, low), np.where(yes, high, middle)
    return high


def reported_probabilities(monkeypatch, privatizer, problem, scale, counts):
    """P(sign = +1) of every bit of the reports on a batch of counts, f64[batch, bits], exact to the last word.

    A user rounds its costs by a coin for each step; the code says 1 for the coins below a limit. It then reports +1 for
    the words below another. Both limits are found by bisection, and a bit's probability is over both draws.
    """
    fed = {}
    monkeypatch.setattr(base.random, "uniform", lambda key, shape: fed["coins"].reshape(shape))
    monkeypatch.setattr(bits_lib, "draw_like", lambda sample, key, tree: fed["words"])
    shape, given = problem.shape, parameters(privatizer, problem, scale)
    runtime = privatizer.runtime(privatizer, shape)
    empty = runtime.init()[0]

    def rounded(coins, counts):
        fed["coins"] = coins
        return report_one(random.key(0), privatizer.report, shape, jnp.bool_(True), counts, jnp.int32(0))

    def signs(words, coins, counts):
        fed["words"] = words
        totals = runtime.absorb(random.key(1), given, State(empty.seed, empty.cell), rounded(coins, counts)).cell
        return totals.visits, totals.costs.astype(jnp.int32), totals.transitions

    H, users = problem.horizon, len(counts.visits)
    bits_of = jit(jax.vmap(lambda coins, counts: jnp.max(rounded(coins, counts).counts.costs, (1, 2))))

    def says_one(coins):
        return np.asarray(bits_of(jnp.asarray(coins * 2.0**-24, jnp.float32), counts)) > 0

    ones = bisect(says_one, np.full((users, H), -1), np.full((users, H), COINS)) / COINS

    batched = jit(jax.vmap(signs))
    sizes = [x.shape for x in counts]
    splits = np.cumsum([int(np.prod(s[1:])) for s in sizes])[:-1]

    def limits(coin):
        """Of the words, with all coins alike: i64[users, bits]."""
        coins = jnp.full((users, H), coin, jnp.float32)

        def says_plus(flat):
            parts = zip(np.split(flat, splits, 1), sizes, strict=True)
            signs = batched(tuple(jnp.asarray(x.reshape(s), jnp.int32) for x, s in parts), coins, counts)
            return np.concatenate([np.asarray(x).reshape(users, -1) > 0 for x in signs], 1)

        all_bits = users, sum(int(np.prod(s[1:])) for s in sizes)
        return bisect(says_plus, np.full(all_bits, -WORDS), np.full(all_bits, WORDS))

    plus = [(limits(coin) + WORDS) / (2.0 * WORDS) for coin in (0.0, 1 - 1 / COINS)]
    of_cells = [np.broadcast_to(ones[(...,) + (None,) * (len(s) - 2)], s).reshape(users, -1) for s in sizes]
    coin_of_bit = np.concatenate(of_cells, 1)
    return coin_of_bit * plus[0] + (1 - coin_of_bit) * plus[1]


@pytest.mark.parametrize("privatizer", BITS, ids=lambda p: p.name)
def test_likelihood_ratio_of_randomised_bits_by_enumeration(privatizer, monkeypatch):
    """All pairs of users of a small problem, and the report that tells them apart best: the pure epsilon, attained.

    Without a shuffler, which can only help.
    """
    problem, epsilon = Problem(2, 2, 1, 1), 1.3
    scale = accounting.noise_scale(privatizer, problem, epsilon)
    paths = np.array(list(itertools.product((0, 1), (0, 1), (0, 1), (0.0, 0.3, 1.0), (0.0, 0.3, 1.0))))
    states, costs = jnp.asarray(paths[:, :3], jnp.int32), jnp.asarray(paths[:, 3:], jnp.float32)
    trajectories = episodes.Trajectory(states[:, :2], jnp.zeros_like(states[:, :2]), costs, states[:, 1:])
    counts = jit(jax.vmap(functools.partial(episodes.tally, problem.shape)))(trajectories)
    p = reported_probabilities(monkeypatch, privatizer, problem, scale, counts)
    assert p.shape == (72, 2 * (2 + 2 + 4))
    assert np.all((0 < p) & (p < 1))
    ones, zeros = np.log(p)[:, None] - np.log(p)[None], np.log1p(-p)[:, None] - np.log1p(-p)[None]
    loss = np.maximum(ones, zeros).sum(-1).max()  # bits are independent: the worst report is the worst of each bit
    assert epsilon * (1 - 1e-5) < loss <= epsilon
    assert loss <= accounting.guarantee(privatizer, problem, scale).epsilon_pure


def test_a_rounded_cost_is_a_coin_of_that_cost(monkeypatch):
    """Where nothing but the cost differs, its bit alone does: a mixture of the two bits, in proportion."""
    problem, privatizer = Problem(1, 1, 1, 1), PRIVATIZERS["local_bernoulli"]
    costs = np.float32([0.0, 0.25, 0.6, 1.0])
    visits = jnp.ones((4, 1, 1, 1))
    counts = base.Counts(visits, jnp.asarray(costs).reshape(4, 1, 1, 1), visits[..., None])
    p = reported_probabilities(monkeypatch, privatizer, problem, 0.8, counts)
    np.testing.assert_array_equal(p[:, [0, 2]], p[:1, [0, 2]] * np.ones((4, 1)))
    np.testing.assert_allclose(p[:, 1], p[0, 1] + costs * (p[3, 1] - p[0, 1]), atol=1e-7)
    np.testing.assert_allclose(p[0, 1], 1 / (1 + np.exp(1 / 0.8)), rtol=1e-4)


@pytest.mark.parametrize("privatizer", BITS, ids=lambda p: p.name)
def test_pooled_bits_are_the_bits_of_the_steps_summed(privatizer):
    by_step = Problem(2, 2, 2, 130)
    parts = []
    for problem in (by_step, by_step.replace(homogeneous=True)):
        given, step = parameters(privatizer, problem, 3.0), alone(privatizer, problem.shape)
        state, _ = start(privatizer, problem.shape, given)
        parts.append(step(given, (), random.key(4), state, user(by_step))[1].counts)
    for stages, sums in zip(*parts, strict=True):
        np.testing.assert_allclose(np.asarray(stages).sum(0, keepdims=True), sums, rtol=1e-5)
