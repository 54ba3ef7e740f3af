"""The binary tree and the sum of local reports: what is released is the truth plus exactly the noises of live nodes.

The laws are checked on a fixed key over 8,400 counters. A right law is accepted at p > 1e-3, which a fresh key would
fail once in a thousand times for each of the checks below; a scale that is off by 0.8 or 1.25 is rejected at p < 1e-6.
"""

import dataclasses
import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pieces
import pytest
from mechanism_pieces import alone, nobody, parameters, start, sum_of_laplace_cdf
from scipy import stats

from jaxprivrl.engine import episodes
from jaxprivrl.mdp import zero_counts
from jaxprivrl.numerics import random
from jaxprivrl.privatizers import PRIVATIZERS, streams
from jaxprivrl.problem import Problem, Shape

ACCEPT, REJECT = 1e-3, 1e-6
SCALE = 3.5
SMALL = Shape(3, 2, 2, 3, 3, max_releases=21)
WIDE = Shape(1, 40, 5, 1, 3, max_releases=31)  # 200 + 200 + 8,000 independent counters


def live_nodes(n):
    """Releases that completed the nodes of the binary expansion of n: 6 = 4 + 2 gives 4 and 6."""
    nodes, end = [], 0
    for level in reversed(range(n.bit_length())):
        if n >> level & 1:
            end += 1 << level
            nodes.append(end)
    return nodes


def random_episode(shape, rng):
    """Counts of an episode with random steps."""
    H, S, A = shape.horizon, shape.num_states, shape.num_actions
    states, actions = rng.integers(S, size=H + 1), rng.integers(A, size=H)
    path = episodes.Trajectory(*(jnp.asarray(x) for x in (states[:-1], actions)), jnp.ones(H), jnp.asarray(states[1:]))
    return episodes.tally(shape, path)


@functools.cache
def run(name, shape, users, played):
    """(states, releases, keys) after each of the users."""
    privatizer = PRIVATIZERS[name]
    given = parameters(privatizer, Problem(shape.horizon, shape.num_states, shape.num_actions, users), SCALE)
    rng = np.random.default_rng(1)
    keys = episodes.episode_keys(random.key(4), jnp.arange(users))
    states, releases = ([x] for x in start(privatizer, shape, given))
    for k in range(users):
        counts = random_episode(shape, rng) if played else nobody(shape)
        state, release = alone(privatizer, shape)(given, (), keys[k], states[-1], counts)
        states.append(state)
        releases.append(release)
    return states, releases, keys


def units(shape, keys):
    """The unit draws of every user, by family, from the keys alone."""
    like = tuple(jax.eval_shape(functools.partial(zero_counts, shape)))[-shape.families :]
    draw = pieces.jit(jax.vmap(lambda key: streams.draw_like(random.laplace, key, like)))
    return [np.asarray(x, np.float64) for x in draw(keys)]


def added_noise(state, release):
    truth = (state.cell.visits, state.cell.costs, state.cell.transitions)
    return [np.asarray(x, np.float64) - np.asarray(t, np.float64) for x, t in zip(release.counts, truth, strict=True)]


def p_value(sample, terms, scale):
    return stats.ks_1samp(sample, lambda x: sum_of_laplace_cdf(x, terms, scale)).pvalue


def test_reference_law_equals_simulation():
    rng = np.random.default_rng(0)
    for terms in (1, 2, 4):
        assert p_value(rng.laplace(0, 2.0, (20_000, terms)).sum(1), terms, 2.0) > ACCEPT
        assert p_value(rng.laplace(0, 2.0, (20_000, terms)).sum(1), terms, 1.8) < REJECT


def test_live_nodes():
    assert [live_nodes(n) for n in (1, 2, 3, 6, 13)] == [[1], [2], [2, 3], [4, 6], [8, 12, 13]]
    assert all(len(live_nodes(n)) == n.bit_count() for n in range(1, 200))


def test_released_minus_true_is_the_sum_of_live_node_noises():
    states, releases, keys = run("central_laplace", SMALL, 21, True)
    unit = units(SMALL, keys)
    assert float(np.sum(releases[0].counts.transitions)) == 0.0
    for n in range(1, 22):
        level = (n & -n).bit_length() - 1
        for family, found in enumerate(added_noise(states[n], releases[n])):
            nodes = sum(unit[family][end - 1] for end in live_nodes(n))
            np.testing.assert_allclose(found, SCALE * nodes, atol=1e-4)
            stored = np.asarray(states[n].seed[family][level], np.float64)
            np.testing.assert_allclose(found, SCALE * stored, atol=1e-4)


def test_each_slot_is_the_sum_of_node_noises_from_its_level_up():
    states, _, keys = run("central_laplace", SMALL, 21, True)
    unit = units(SMALL, keys)
    for n in range(1, 22):
        for level in range(5):
            if n >> level & 1:
                nodes = live_nodes(n >> level << level)
                for family in range(3):
                    want = sum(unit[family][end - 1] for end in nodes)
                    np.testing.assert_allclose(states[n].seed[family][level], want, atol=1e-5)


def test_noise_of_a_live_node_never_changes():
    states, _, _ = run("central_laplace", SMALL, 21, True)
    kept = 0
    for n in range(1, 21):
        for level in range(5):
            if n >> level & 1 and (n + 1) >> level == n >> level:  # the node is live before and after
                for before, after in zip(states[n].seed, states[n + 1].seed, strict=True):
                    np.testing.assert_array_equal(before[level], after[level])
                kept += 1
    assert kept > 20


def test_one_fresh_draw_per_counter_and_episode():
    _, _, keys = run("central_laplace", SMALL, 21, True)
    draws = np.concatenate([x.reshape(-1) for x in units(SMALL, keys)])
    assert len(np.unique(draws)) == len(draws) == 21 * (12 + 12 + 24)


def test_noise_does_not_depend_on_the_data():
    played, _, _ = run("central_laplace", SMALL, 21, True)
    idle, _, _ = run("central_laplace", SMALL, 21, False)
    for x, y in zip(played, idle, strict=True):
        jax.tree.map(np.testing.assert_array_equal, x.seed, y.seed)
        jax.tree.map(np.testing.assert_array_equal, x.clock, y.clock)
    assert int(played[-1].clock.users) == 21


@pytest.mark.parametrize("releases_made", [8, 9, 11, 15, 16, 31])
def test_tree_law(releases_made):
    """The count used in episode k = releases_made + 1 has the law of a sum of popcount(k - 1) Lap(b)."""
    states, releases, _ = run("central_laplace", WIDE, 31, False)
    terms = releases_made.bit_count()
    sample = np.concatenate([x.reshape(-1) for x in added_noise(states[releases_made], releases[releases_made])])
    check_law(sample, terms, releases[releases_made])


@pytest.mark.parametrize("users", [1, 2, 5, 12])
def test_local_law(users):
    """After k users every count carries k Lap(b), whatever k is in binary."""
    states, releases, _ = run("local_laplace", WIDE, 12, False)
    sample = np.concatenate([x.reshape(-1) for x in added_noise(states[users], releases[users])])
    check_law(sample, users, releases[users])


def check_law(sample, terms, release):
    variance = terms * 2 * SCALE**2
    # Five standard errors of the sample variance, whose kurtosis is 3 + 3 / terms.
    assert sample.var() == pytest.approx(variance, rel=5 * math.sqrt((2 + 3 / terms) / len(sample)))
    np.testing.assert_allclose(np.array(release.std) ** 2, variance, rtol=1e-5)
    assert p_value(sample, terms, SCALE) > ACCEPT
    assert p_value(sample, terms, 0.8 * SCALE) < REJECT
    assert p_value(sample, terms, 1.25 * SCALE) < REJECT


def test_local_release_is_the_sum_of_noisy_reports():
    states, releases, keys = run("local_laplace", SMALL, 12, True)
    unit = units(SMALL, keys)
    for n in range(1, 13):
        for family, found in enumerate(added_noise(states[n], releases[n])):
            np.testing.assert_allclose(found, SCALE * unit[family][:n].sum(0), atol=1e-4)


def test_derived_visits_are_the_sum_of_noisy_transitions():
    shape = dataclasses.replace(SMALL, families=2)
    states, releases, keys = run("central_laplace", shape, 7, True)
    unit = units(shape, keys)
    assert len(unit) == 2
    for n in range(1, 8):
        visits, costs, transitions = added_noise(states[n], releases[n])
        np.testing.assert_allclose(visits, transitions.sum(-1), atol=1e-4)
        np.testing.assert_allclose(transitions, SCALE * sum(unit[1][end - 1] for end in live_nodes(n)), atol=1e-4)
        np.testing.assert_allclose(costs, SCALE * sum(unit[0][end - 1] for end in live_nodes(n)), atol=1e-4)
        assert float(releases[n].std.visits) == pytest.approx(math.sqrt(2) * float(releases[n].std.transitions))


@pytest.mark.parametrize("releases_made", [1, 2, 3, 5])
def test_least_stacks_hold_their_tree(releases_made):
    """A stack made for exactly K releases, K = 1 and K not a power of two included."""
    shape = dataclasses.replace(SMALL, max_releases=releases_made)
    states, releases, keys = run("central_laplace", shape, releases_made, True)
    assert states[0].seed[0].shape[0] == releases_made.bit_length() + 1
    unit = units(shape, keys)
    for n in range(1, releases_made + 1):
        for family, found in enumerate(added_noise(states[n], releases[n])):
            np.testing.assert_allclose(found, SCALE * sum(unit[family][e - 1] for e in live_nodes(n)), atol=1e-4)
