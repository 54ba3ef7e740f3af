"""The pieces of an audit: bounds that are true as often as they say, and scores that are likelihood ratios."""

import math

import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from jaxprivrl.audit import attacks
from jaxprivrl.audit import audit as audit_lib
from jaxprivrl.privacy import errors
from jaxprivrl.privacy.laws import Gaussian, Laplace
from jaxprivrl.privacy.sensitivity import sensitivity
from jaxprivrl.privatizers import PRIVATIZERS
from jaxprivrl.privatizers.base import pool
from jaxprivrl.problem import Problem

SMALL = Problem(1, 2, 2, 3, families=2)
PLAIN = [name for name, p in PRIVATIZERS.items() if p.plain]


def of_law(kind):
    return [name for name in PLAIN if isinstance(PRIVATIZERS[name].law, kind)]


@pytest.mark.parametrize("epsilon, dp_delta", [(1.0, 0.0), (0.5, 0.05)])
def test_bound_is_true_as_often_as_it_says(epsilon, dp_delta):
    """Randomised response at the boundary of (epsilon, dp_delta): P(bound > epsilon) <= 5 %; 1000 repetitions.

    With probability dp_delta the answer is given away, else it is e^epsilon times likelier to be true. A count above 70
    of 1000 has probability below 0.4 % if the rate is 5 %.
    """
    rng = np.random.default_rng(0)
    honest = dp_delta + (1 - dp_delta) / (1 + math.exp(-epsilon))
    wrong = 0
    for _ in range(1000):
        inside, out = rng.random(2000) < honest, rng.random(2000) < 1 - honest
        bound = attacks.lower_bound(inside, out, 0.05, dp_delta)
        assert bound == pytest.approx(
            float(attacks.expected_bounds(np.sum(~inside), np.sum(out), 2000, 0.05, dp_delta)), abs=1e-9
        )
        wrong += bound > epsilon
    assert wrong <= 70


def test_bound_holds_for_an_attack_chosen_elsewhere():
    """Choice and bound on separate samples of one mechanism of epsilon 1: at most 5 % of 200 audits exceed it.

    A count above 20 of 200 has probability below 0.1 % if the rate is 5 %.
    """
    rng = np.random.default_rng(1)

    def sample(n):
        return [rng.laplace(x, 1.0, (n, 1)).astype(np.float32) for x in (0.0, 1.0)]

    wrong = 0
    for _ in range(200):
        attack = max(attacks.choose(sample(2000), np.ones(1), 2000, 0.05, 0.0), key=lambda a: a.preference)
        out, inside = (attack.hits(attacks.apply(x, attack.weights)) for x in sample(2000))
        wrong += attacks.lower_bound(inside, out, 0.05, 0.0) > 1.0
    assert wrong <= 20


@pytest.mark.parametrize("name", PLAIN)
def test_dense_noise_has_the_stated_variance(name):
    privatizer = PRIVATIZERS[name]
    B = privatizer.strategy.dense(13, 13)
    std = errors.standard_deviation(privatizer, SMALL.replace(num_episodes=13), 1.0, np.arange(1, 14)).transitions
    np.testing.assert_allclose(np.sqrt(privatizer.law.unit_variance * np.sum(B**2, 1)), std, rtol=1e-5)


@pytest.mark.parametrize("name", of_law(Gaussian))
@pytest.mark.parametrize("position", [1, 2, 5])
def test_gaussian_score_reaches_the_accounted_distance(name, position):
    """|mean shift| / std of the exact score is the mu of the accounting for the worst user, and no more for others."""
    privatizer, K = PRIVATIZERS[name], 6
    weights = attacks.exact_weights(privatizer, K, K, position)[:K]
    B, factor = privatizer.strategy.dense(K, K), privatizer.strategy.norms(K).l2
    mu = np.sum(weights[position - 1 :]) / np.linalg.norm(weights @ B)
    assert mu <= factor * (1 + 1e-9)
    if position == 1 and name != "central_honaker":  # which does not use all that its nodes tell
        assert mu == pytest.approx(factor, rel=1e-6)


@pytest.mark.parametrize("name", of_law(Laplace))
def test_laplace_score_is_the_log_likelihood_ratio(name):
    """Score / scale = log p1 - log p0 of the independent noisy nodes (reports), from their densities."""
    K, position, scale = 5, 3, 1.7
    rng = np.random.default_rng(2)
    first = rng.integers(0, 2, (K, 2)).astype(float)
    second = first.copy()
    second[position - 1] = 1 - first[position - 1]
    views = attacks.make_views(first, second)
    releases = np.cumsum(first, 0) + scale * rng.laplace(size=(K, 2)) * 2
    got = attacks.exact_weights(PRIVATIZERS[name], K, K, position) @ np.asarray(
        attacks.features(views, jnp.asarray(releases, jnp.float32))
    )
    padded, want = np.concatenate([np.zeros((1, 2)), releases]), 0.0
    for k in range(1, K + 1):
        j = k - 1 if PRIVATIZERS[name].strategy.per_user else k & (k - 1)
        for sign, users in ((-1, first), (1, second)):
            want += sign * np.sum(stats.laplace.logpdf(padded[k] - padded[j], users[j:k].sum(0), scale))
    assert got / scale == pytest.approx(want, abs=1e-5)


def test_worst_pair_moves_what_accounting_says():
    for problem in (SMALL, Problem(3, 2, 2, 2), Problem(3, 2, 2, 2, homogeneous=True), Problem(2, 2, 1, 2)):
        shape = problem.shape
        users = [pool(shape, user) for user in audit_lib._users(shape)]
        cells = attacks.changed_cells(users[0], users[1], problem.families)
        moved = np.concatenate([np.ravel(a - b)[list(c)] for a, b, c in zip(*users, cells, strict=True)])
        want = sensitivity(problem)
        assert np.sum(np.abs(moved)) == want.l1
        assert np.linalg.norm(moved) == pytest.approx(want.l2)
