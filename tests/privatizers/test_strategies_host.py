"""How the noise of a counter runs over the releases, on the host: norms and variances against dense matrices."""

import json
import math
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from problems import PRIVATE, RIVER, by_name

from jaxprivrl.privacy.accounting import guarantee
from jaxprivrl.privatizers import PRIVATIZERS, toeplitz
from jaxprivrl.privatizers.toeplitz import BLT, BLT_PARAMETERS, SquareRoot, blt_parameters
from jaxprivrl.privatizers.tree import Honaker, Tree, heaviest_below, honaker_variance

STRATEGIES = list({type(p.strategy): p for p in PRIVATE}.values())  # one mechanism of each
SLACK = 1 + 1e-6  # what the weights of buffers are larger by than the strategy asks for


def _largest_error(strategy, num_leaves):
    """Norm of C times the std of the last release: its error at unit privacy."""
    return strategy.norms(num_leaves).l2 * _stds(strategy, num_leaves, [num_leaves])[0]


def _stds(strategy, num_leaves, ks):
    return np.sqrt(strategy.units(np, strategy.data(num_leaves), np.asarray(ks)))


# All strategies


@pytest.mark.parametrize("num_leaves", [1, 2, 3, 5, 8, 100])
def test_levels_are_brute_force(num_leaves):
    problem = RIVER.replace(num_episodes=num_leaves)
    member = np.zeros(num_leaves, int)  # nodes that hold each user
    for end in range(1, num_leaves + 1):
        size = end & -end  # episode `end` completes one new node per trailing zero; the stored one covers `size` users
        member[end - size : end] += 1
    norms = Tree().norms(num_leaves)
    assert norms.l1 == member.max() and norms.l2**2 == pytest.approx(member.max(), rel=1e-15)
    refined = Honaker().norms(num_leaves)
    assert refined.l1 == member.max() and refined.l2 <= norms.l2 * (1 + 1e-8)
    for privatizer in PRIVATE:
        tree = isinstance(privatizer.strategy, Tree | Honaker)
        assert guarantee(privatizer, problem, 1.0).levels == (member.max() if tree else 1)


@pytest.mark.parametrize("num_leaves", [1, 2, 3, 7, 8, 9, 33, 100])
@pytest.mark.parametrize("privatizer", by_name(STRATEGIES))
def test_units_are_the_squared_rows_of_the_dense_matrix(privatizer, num_leaves):
    strategy = privatizer.strategy
    for num_releases in {num_leaves, num_leaves // 2 + 1, 1}:
        B = strategy.dense(num_leaves, num_releases)
        units = _stds(strategy, num_leaves, np.arange(num_releases + 1)) ** 2
        assert units[0] == 0 and len(B) == num_releases
        np.testing.assert_allclose(units[1:], np.sum(B * B, 1), rtol=3e-6)
        assert np.all(np.sum(B * B, 1) <= units[1:] * (1 + 2e-8))  # what the series of `SquareRoot` leaves out
        if strategy.summed:
            assert set(np.unique(B)) <= {0.0, 1.0}


@pytest.mark.parametrize("num_leaves", [1, 2, 3, 7, 8, 9, 33, 100])
@pytest.mark.parametrize("privatizer", by_name(STRATEGIES))
def test_norms_are_those_of_the_columns_of_the_noisy_sums(privatizer, num_leaves):
    """C from A = B C, where B can be inverted, else from the sums of leaves that the strategy says are released."""
    strategy, A = privatizer.strategy, np.tri(num_leaves)
    sums = strategy.noisy_sums(num_leaves)
    B = strategy.dense(num_leaves, num_leaves)
    if sums is not None:
        C = np.array([[float(j < leaf <= i) for leaf in range(1, num_leaves + 1)] for i, j in sums])
    elif isinstance(strategy, Honaker):
        ends = [(end, 2**j) for end in range(1, num_leaves + 1) for j in range(end.bit_length()) if end % 2**j == 0]
        C = np.array([(np.arange(num_leaves) >= end - n) & (np.arange(num_leaves) < end) for end, n in ends], float)
        np.testing.assert_allclose(B @ C, A, atol=1e-12)
    else:
        C = np.linalg.solve(B, A)
        np.testing.assert_allclose(B @ C, A, atol=1e-9)
    norms = strategy.norms(num_leaves)
    assert norms.l1 == pytest.approx(np.abs(C).sum(0).max(), rel=1e-9)
    if isinstance(strategy, Honaker):  # the best C of these releases, not the tree's
        L = np.linalg.cholesky(B @ B.T)
        assert norms.l2 == pytest.approx(np.linalg.norm(np.linalg.solve(L, A), axis=0).max(), rel=1e-7)
        assert norms.l2 <= np.sqrt((C * C).sum(0)).max() * (1 + 1e-8)
    else:
        assert norms.l2 == pytest.approx(np.sqrt((C * C).sum(0)).max(), rel=1e-9)


@pytest.mark.parametrize("privatizer", by_name(STRATEGIES))
def test_one_leaf_is_one_draw(privatizer):
    strategy = privatizer.strategy
    assert strategy.norms(1) == pytest.approx((1.0, 1.0), rel=1e-8) and strategy.worst_units(1) <= SLACK**2
    np.testing.assert_allclose(_stds(strategy, 1, [1]), 1, rtol=2e-6)


# Trees


@pytest.mark.parametrize("num_leaves", [1, 2, 3, 7, 8, 9, 100, 293, 300])
def test_heaviest_release_is_brute_force(num_leaves):
    for weight in (lambda j: 1.0, honaker_variance):
        brute = max(sum(weight(j) for j in range(12) if k >> j & 1) for k in range(num_leaves))
        assert heaviest_below(num_leaves, weight) == pytest.approx(brute, rel=1e-14)
    assert Tree().worst_units(num_leaves) == heaviest_below(num_leaves, lambda j: 1.0)
    assert Honaker().worst_units(num_leaves) == heaviest_below(num_leaves, honaker_variance)


def test_honaker_variances():
    variance = 1.0
    for height in range(12):
        assert honaker_variance(height) == pytest.approx(variance, rel=1e-12)
        assert honaker_variance(height) == pytest.approx(2**height / (2 ** (height + 1) - 1), rel=1e-12)
        variance = 1 / (1 + 1 / (2 * variance))
    # std in units of z D2: node noise sqrt(15); the largest over k < 2e4 and its value with a plain tree
    worst = math.sqrt(15 * heaviest_below(20_000, honaker_variance))
    assert worst == pytest.approx(10.82, abs=0.01)
    assert math.sqrt(15 * heaviest_below(20_000, lambda j: 1.0)) == pytest.approx(14.49, abs=0.01)
    norm = Honaker().norms(20_000).l2 / math.sqrt(15)  # of its own releases, not of the tree's
    assert norm == pytest.approx(math.sqrt(12.841 / 15), rel=1e-4)
    assert Honaker().norms(20_000).l2 * math.sqrt(Honaker().worst_units(20_000)) == pytest.approx(
        norm * worst, rel=1e-12
    )


# Buffered linear Toeplitz


def _blt_coefficients(num_leaves):
    """(c, b) of the shipped strategy by its recurrence."""
    decay, scale = map(np.asarray, blt_parameters(num_leaves))
    c = np.append(1.0, (scale[:, None] * decay[:, None] ** np.arange(num_leaves - 1)).sum(axis=0))
    increments, buffers = np.empty(num_leaves), np.zeros_like(decay)
    for t in range(num_leaves):
        x = (t == 0) - scale @ buffers
        buffers = decay * buffers + x
        increments[t] = x
    return c, np.cumsum(increments)


@pytest.mark.parametrize("num_leaves", [1, 2, 5, 1_000, 20_000])
def test_blt_norms_equal_the_recurrence(num_leaves):
    c, b = _blt_coefficients(num_leaves)
    assert BLT().norms(num_leaves).l2 == pytest.approx(np.linalg.norm(c), rel=1e-10)
    assert BLT().norms(num_leaves).l1 == pytest.approx(np.sum(c), rel=1e-10)
    ks = np.unique([0, 1, 2, num_leaves // 3, num_leaves])
    ks = ks[ks <= num_leaves]
    expected = [np.linalg.norm(b[:k]) for k in ks]
    np.testing.assert_allclose(_stds(BLT(), num_leaves, ks), np.multiply(expected, SLACK), rtol=1e-9)
    assert BLT().worst_units(num_leaves) == pytest.approx((SLACK * np.linalg.norm(b)) ** 2, rel=2e-9)
    if num_leaves <= 1_000:  # b is the first column of (prefix sum) C^-1
        C = np.array([[c[i - j] if i >= j else 0.0 for j in range(num_leaves)] for i in range(num_leaves)])
        np.testing.assert_allclose(np.cumsum(np.linalg.inv(C)[:, 0]), b, atol=1e-9)
        np.testing.assert_allclose(BLT().dense(num_leaves, num_leaves)[:, 0], b, atol=1e-9)


def test_blt_reference_rung():
    assert BLT().norms(20_000).l2 == pytest.approx(2.0507, abs=1e-4)
    assert _largest_error(BLT(), 20_000) == pytest.approx(4.228, abs=1e-3)
    decay, scale = blt_parameters(20_000)
    np.testing.assert_allclose(decay, [0.999945191, 0.998776155, 0.981879244, 0.762697927], atol=1e-8)
    np.testing.assert_allclose(scale, [0.010335241, 0.030298763, 0.113033551, 0.317739778], atol=1e-8)


@pytest.mark.parametrize("rung", sorted(BLT_PARAMETERS))
def test_every_blt_rung_is_a_local_optimum_near_the_best_toeplitz(rung, monkeypatch):
    decay, scale = BLT_PARAMETERS[rung]

    def largest_error(decay, scale):
        monkeypatch.setitem(toeplitz.BLT_PARAMETERS, rung, (tuple(decay), tuple(scale)))
        return _largest_error(BLT(), rung)

    best = largest_error(decay, scale)
    square_root = SquareRoot().norms(rung).l2 ** 2
    assert 0.999 * square_root < best < (1.004 if rung <= 20_000 else 1.035) * square_root
    for i in range(4):
        for step in (0.97, 1.03):
            nearby = [1 - (1 - d) * (step if j == i else 1) for j, d in enumerate(decay)]
            assert largest_error(nearby, scale) > best * (1 - 1e-6)
            nearby = [s * (step if j == i else 1) for j, s in enumerate(scale)]
            assert largest_error(decay, nearby) > best * (1 - 1e-6)


def test_blt_takes_the_next_rung_up():
    assert blt_parameters(1) == BLT_PARAMETERS[32]
    assert blt_parameters(257) == BLT_PARAMETERS[1_000]
    assert blt_parameters(20_001) == BLT_PARAMETERS[100_000]
    assert blt_parameters(10**8) == BLT_PARAMETERS[10**7]


def test_tuning_script_runs():
    script = Path(__file__).parents[2] / "benchmarks" / "tune_blt.py"
    run = subprocess.run([sys.executable, str(script), "--smoke"], capture_output=True, text=True, check=True)
    rung = json.loads(run.stdout)
    assert rung["num_episodes"] == 1_000 and len(rung["decay"]) == len(rung["scale"]) == 4
    assert rung["max_error"] < 1.05 * 3.2654  # few steps already come close to the shipped optimum


# Square-root Toeplitz


def _square_root(num_leaves):
    k = np.arange(1, num_leaves)
    return np.append(1.0, np.cumprod((2 * k - 1) / (2 * k)))


@pytest.mark.parametrize("num_leaves", [1, 7, 20_000, 600_000])
def test_toeplitz_norms(num_leaves):
    c = _square_root(num_leaves)
    assert SquareRoot().norms(num_leaves).l2 == pytest.approx(np.linalg.norm(c), rel=1e-10)
    assert SquareRoot().norms(num_leaves).l1 == pytest.approx(np.sum(c), rel=1e-9)
    ks = np.unique([0, 1, num_leaves // 2, num_leaves])
    expected = [np.linalg.norm(c[:n]) for n in ks]
    np.testing.assert_allclose(_stds(SquareRoot(), num_leaves, ks), expected, rtol=1e-10)
    assert SquareRoot().worst_units(num_leaves) == pytest.approx(np.sum(c * c), rel=1e-10)
    if num_leaves == 20_000:
        assert SquareRoot().norms(num_leaves).l2 ** 2 == pytest.approx(4.219, abs=1e-3)


def test_toeplitz_variances_go_from_table_to_series_without_a_jump():
    c = _square_root(3_000)
    exact = np.append(0.0, np.cumsum(c * c))
    units = _stds(SquareRoot(), 3_000, np.arange(3_001)) ** 2
    np.testing.assert_allclose(units, exact, rtol=2e-8)
    assert np.all(np.diff(units) > 0)


def test_toeplitz_refuses_more_releases_than_its_buffers_are_fitted_for():
    for num_leaves in (2**24, 10**9):
        with pytest.raises(ValueError, match=r"at most 16777215 releases, got up to .* Use central_blt, or a schedule"):
            SquareRoot().norms(num_leaves)
    many = RIVER.replace(num_episodes=2**24)
    with pytest.raises(ValueError, match="central_toeplitz is for at most"):
        guarantee(PRIVATIZERS["central_toeplitz"], many, 1.0)
