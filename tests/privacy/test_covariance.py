"""L2 sensitivities of Gaussian strategies: from dense matrices, and the tree of Honaker without one."""

import math
import time

import numpy as np
import pytest
from scipy import special, stats

from jaxprivrl.privacy import covariance
from jaxprivrl.privatizers.toeplitz import SquareRoot

SQUARE_ROOT = np.append(1.0, np.cumprod((2 * np.arange(1, 300) - 1) / (2 * np.arange(1, 300))))


def estimate(first: int, height: int) -> dict[tuple[int, int], float]:
    """Noise of a node's estimate from below as weights of the noises of the nodes under it, from the definition."""
    if height == 0:
        return {(first, 0): 1.0}
    own = 2.0**height / (2.0 ** (height + 1) - 1)
    weights = {(first, height): own}
    for child in (first, first + 2 ** (height - 1)):
        for node, weight in estimate(child, height - 1).items():
            weights[node] = weights.get(node, 0.0) + (1 - own) * weight
    return weights


def tree(num_releases: int, refined: bool) -> np.ndarray:
    """B of a tree with a draw for every node, inner ones included."""
    nodes: dict[tuple[int, int], int] = {}
    rows = []
    for n in range(1, num_releases + 1):
        row: dict[tuple[int, int], float] = {}
        first = 0
        for height in reversed(range(n.bit_length())):
            if n >> height & 1:
                part = estimate(first, height) if refined else {(first, height): 1.0}
                for node, weight in part.items():
                    row[node] = row.get(node, 0.0) + weight
                first += 2**height
        rows.append(row)
        for node in row:
            nodes.setdefault(node, len(nodes))
    noise = np.zeros((num_releases, len(nodes)))
    for i, row in enumerate(rows):
        noise[i, [nodes[node] for node in row]] = list(row.values())
    return noise


@pytest.mark.parametrize("J", [*range(1, 34), 52, 63, 64, 65, 100, 127, 128, 200, 256, 300])
def test_honaker_norm_is_that_of_its_matrix(J):
    dense = covariance.l2_sensitivity(tree(J, refined=True))
    assert dense == pytest.approx(covariance.honaker_norm(J), rel=1e-12)
    assert covariance.honaker_norm(J) <= covariance.tree_norm(J) * (1 + 1e-8)


@pytest.mark.parametrize("J", [600])
def test_honaker_norm_of_many_releases(J):
    assert covariance.l2_sensitivity(tree(J, refined=True)) == pytest.approx(covariance.honaker_norm(J), rel=1e-12)


def test_honaker_gains_seven_percent():
    """52 releases: squared norm 5.18 in the place of 6; 20,000: 12.84 in the place of 15."""
    assert covariance.honaker_norm(52) ** 2 == pytest.approx(5.18203, abs=1e-5)
    assert covariance.honaker_norm(20_000) ** 2 == pytest.approx(12.8410, abs=1e-4)


def test_honaker_norm_of_any_size_at_once():
    begin = time.perf_counter()
    for K in (2**24, 2**31 - 1, 2**31, 10**12):
        covariance.honaker_norm.cache_clear()
        assert 0.8 * math.sqrt(K.bit_length()) < covariance.honaker_norm(K) < math.sqrt(K.bit_length())
    assert time.perf_counter() - begin < 1.0


def test_the_tree_needs_all_its_levels():
    for J in (1, 2, 7, 52, 64):
        assert covariance.l2_sensitivity(tree(J, refined=False)) == pytest.approx(covariance.tree_norm(J), rel=1e-8)


def test_toeplitz_needs_its_column():
    """B = A C^-1 with a square C: the norm of the first column, which is the longest."""
    for J in (1, 5, 52, 300):
        c = np.array([[SQUARE_ROOT[i - j] if i >= j else 0.0 for j in range(J)] for i in range(J)])
        found = covariance.l2_sensitivity(np.linalg.solve(c.T, covariance.prefix_sums(J).T).T)
        assert found == pytest.approx(SquareRoot().norms(J).l2, rel=1e-8)


def test_a_leaf_never_moves_less_than_the_strategy_says():
    """For any factorisation A = B C the L2 sensitivity is at most the longest column of C; a random B has many C."""
    rng = np.random.default_rng(0)
    for J in (3, 10):
        b = np.tril(rng.normal(size=(J, J))) + 3 * np.eye(J)
        wide = np.hstack([b, rng.normal(size=(J, 4))])
        for noise in (b, wide):
            columns = np.linalg.pinv(noise) @ covariance.prefix_sums(J)
            longest = np.sqrt((columns**2).sum(0).max())
            assert covariance.l2_sensitivity(noise) == pytest.approx(longest, rel=1e-8)  # the least-norm C


def test_noise_that_is_missing_is_refused():
    with pytest.raises(ValueError, match="no noise of their own"):
        covariance.l2_sensitivity(np.array([[1.0, 0.0], [1.0, 0.0]]))
    with pytest.raises(ValueError, match="draw a release"):
        covariance.l2_sensitivity(np.ones((3, 2)))
    with pytest.raises(ValueError, match="num_releases"):
        covariance.honaker_norm(0)


def test_binomial_masses_of_large_batches():
    """Against the normal tail with its first correction: exact to 1e-6 here; `special.bdtr` is off by 1e-3."""
    for n in (10_000_000, 100_000_000):
        mean, spread = n / 2, math.sqrt(n) / 2
        x = np.floor(mean + spread * np.linspace(-3, 3, 13))
        true = special.ndtr((x + 0.5 - mean) / spread)  # symmetric: no skewness, so the next term is of order 1 / n
        assert np.abs(stats.binom.cdf(x, n, 0.5) - true).max() < 1e-7
        assert np.abs(special.bdtr(x, n, 0.5) - true).max() > 1e-3
