"""Sensitivities against every pair of users of small problems: all of them are attained, none is exceeded."""

import itertools

import numpy as np
import pytest

from jaxprivrl.privacy.sensitivity import pooled_centred_pair, sensitivity
from jaxprivrl.problem import Problem


def contributions(H: int, S: int, A: int, pooled: bool, families: int, centred: bool) -> np.ndarray:
    """Counts of all users, f32[users, cells]. Distances are convex in the costs, so costs 0 and 1 are enough."""
    stages, found = 1 if pooled else H, set()
    steps = list(itertools.product(range(A), range(S), (0, 1)))
    for start, *path in itertools.product(range(S), *[steps] * H):
        visits, costs, transitions = np.zeros((stages, S, A)), np.zeros((stages, S, A)), np.zeros((stages, S, A, S))
        s = start
        for h, (a, s2, cost) in enumerate(path):
            stage = 0 if pooled else h
            visits[stage, s, a] += 1
            costs[stage, s, a] += cost - 0.5 * centred
            transitions[stage, s, a, s2] += 1
            s = s2
        kept = (visits, costs, transitions)[-families:]
        found.add(tuple(np.concatenate([x.ravel() for x in kept])))
    return np.array(sorted(found), np.float32)


def worst(users: np.ndarray, neighbours: str) -> tuple[float, float]:
    """Largest L1 and largest squared L2 distance."""
    if neighbours == "add_remove":
        return float(np.abs(users).sum(1).max()), float((users**2).sum(1).max())
    square = (users**2).sum(1)
    l2 = (square[:, None] + square[None] - 2 * users @ users.T).max()
    l1 = max(np.abs(users[i : i + 64, None] - users[None]).sum(-1).max() for i in range(0, len(users), 64))
    return float(l1), float(l2)


@pytest.mark.parametrize(("H", "S", "A"), [(1, 3, 2), (2, 2, 2), (2, 3, 1), (3, 2, 1), (3, 3, 1), (4, 2, 1)])
@pytest.mark.parametrize("pooled", [True, False])
@pytest.mark.parametrize("families", [2, 3])
@pytest.mark.parametrize("centred", [True, False])
def test_sensitivities_are_attained_and_not_exceeded(H, S, A, pooled, families, centred):
    users = contributions(H, S, A, pooled, families, centred)
    for neighbours in ("replace", "add_remove"):
        stated = sensitivity(Problem(H, S, A, 10, pooled, families, centred, neighbours))
        l1, l2 = worst(users, neighbours)
        np.testing.assert_allclose((l1, l2), (stated.l1, stated.l2**2), rtol=1e-5)


def excess(H: int) -> np.ndarray:
    """f[H + 1, H + 1]: by how much a cell of two pooled users exceeds its share of 5/2 H^2, for each n and m."""
    n, m = np.arange(H + 1)[:, None], np.arange(H + 1)[None]
    found = np.full((H + 1, H + 1), -np.inf)
    for alpha, beta in itertools.product((0 * n, np.minimum(n, H - n + 1)), (0 * m, np.minimum(m, H - m + 1))):
        g = 2 * alpha * (alpha - n) + 2 * beta * (beta - m) + 2 * m * alpha + 2 * n * beta - 2 * alpha * beta
        found = np.maximum(found, g - 1.5 * n * m - 1.25 * n * (H - n) - 1.25 * m * (H - m))
    return found


def test_pooled_centred_pairs_cell_by_cell():
    for H in range(2, 201):
        found = excess(H)
        if H == 3:
            assert sorted(zip(*np.nonzero(found > 0), strict=True)) == [(2, 3), (3, 2)]
            assert found.max() == 0.5
        else:
            assert found.max() == 0.0
    assert excess(1).max() == 0.5  # the control: H = 1 has a worse pair, 3 in the place of 5/2
    assert pooled_centred_pair(1) == 3.0 and pooled_centred_pair(4) == 40.0
