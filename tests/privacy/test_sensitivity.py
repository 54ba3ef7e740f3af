"""How far one user can move what is released, against brute force over all pairs of trajectories."""

import itertools
import math

import numpy as np
import pytest
from problems import PRIVATE, RIVER, by_name

from jaxprivrl.privacy.sensitivity import sensitivity
from jaxprivrl.privatizers import PRIVATIZERS
from jaxprivrl.problem import FAMILIES, NEIGHBOURS, Problem


def _all_counts(H, S, A, homogeneous):
    """Counts of every trajectory with costs in {0, 1}: three arrays [trajectory, cells]."""
    rows = []
    for states in itertools.product(range(S), repeat=H + 1):
        for actions in itertools.product(range(A), repeat=H):
            for costs in itertools.product((0, 1), repeat=H):
                visits, cost_sums = np.zeros((H, S, A)), np.zeros((H, S, A))
                transitions = np.zeros((H, S, A, S))
                for h in range(H):
                    visits[h, states[h], actions[h]] += 1
                    cost_sums[h, states[h], actions[h]] += costs[h]
                    transitions[h, states[h], actions[h], states[h + 1]] += 1
                arrays = (visits, cost_sums, transitions)
                rows.append([(x.sum(axis=0) if homogeneous else x).ravel() for x in arrays])
    return [np.array([row[i] for row in rows]) for i in range(3)]


@pytest.mark.parametrize("centred", [False, True])
@pytest.mark.parametrize("homogeneous", [False, True])
@pytest.mark.parametrize("neighbours", NEIGHBOURS)
@pytest.mark.parametrize("families", [2, 3])
@pytest.mark.parametrize("sizes", [(1, 2, 2), (2, 2, 2), (2, 3, 1), (3, 2, 1)])
def test_sensitivity_is_brute_force(centred, homogeneous, neighbours, families, sizes):
    counts = _all_counts(*sizes, homogeneous)
    if centred:
        counts[1] = counts[1] - counts[0] / 2
    differences = [x[:, None] - x[None] for x in counts] if neighbours == "replace" else [x[:, None] for x in counts]
    l1 = {n: np.abs(d).sum(axis=-1) for n, d in zip(FAMILIES, differences, strict=True)}
    l2 = {n: np.square(d).sum(axis=-1) for n, d in zip(FAMILIES, differences, strict=True)}
    released = FAMILIES[3 - families :]
    problem = Problem(*sizes, 10, homogeneous, families, centred, neighbours)
    result = sensitivity(problem)
    assert set(result.per_family_l1) == set(result.per_family_l2) == set(released) == set(problem.released_families)
    for name in released:
        assert result.per_family_l1[name] == l1[name].max()
        assert result.per_family_l2[name] == pytest.approx(math.sqrt(l2[name].max()), rel=1e-12)
    assert result.l1 == sum(l1[name] for name in released).max()
    worst = math.sqrt(sum(l2[name] for name in released).max())
    if centred and homogeneous and families == 2 and neighbours == "replace" and sizes[0] > 1:
        assert worst <= result.l2 <= 1.2 * worst  # a bound: the moves of different steps need not add up
    else:
        assert result.l2 == pytest.approx(worst, rel=1e-12)


def test_sensitivity_of_the_paper():
    assert sensitivity(RIVER).l1 == 120 and sensitivity(RIVER).l2 == pytest.approx(10.954, abs=1e-3)
    pooled = sensitivity(RIVER.replace(homogeneous=True))
    assert pooled.l1 == 120 and pooled.per_family_l2["costs"] == pytest.approx(20 * math.sqrt(2))


def test_sensitivity_does_not_depend_on_sizes_or_on_when_releases_are_made():
    many = RIVER.replace(num_states=60, num_actions=7, num_episodes=10**9)
    assert sensitivity(many) == sensitivity(RIVER)


@pytest.mark.parametrize(
    "privatizer, problem, coordinates, shift",
    [
        ("central_laplace", RIVER, 2 * 20 * 3 * 15, 1),
        ("central_laplace", RIVER.replace(homogeneous=True), 2 * 3 * 15, 20),
        ("central_laplace", RIVER.replace(homogeneous=True, neighbours="add_remove"), 3 * 15, 20),
        ("local_laplace", RIVER.replace(families=2), 2 * 20 * 2, 1),
        ("local_laplace", RIVER.replace(neighbours="add_remove"), 20 * 3, 1),
        ("local_sampled", RIVER, 6, 1),
        ("local_sampled", RIVER.replace(homogeneous=True, families=2, neighbours="add_remove"), 2, 1),
        ("local_sampled_family", RIVER, 2, 1),
        ("local_bernoulli", RIVER.replace(homogeneous=True), 2 * 20 * 3, 1),
    ],
)
def test_coordinates_that_move(privatizer, problem, coordinates, shift):
    moves = PRIVATIZERS[privatizer].moves(problem)
    assert (moves.coordinates, moves.shift) == (coordinates, shift)
    assert moves.l1 == coordinates * shift


@pytest.mark.parametrize("neighbours", NEIGHBOURS)
@pytest.mark.parametrize("centred", [False, True])
@pytest.mark.parametrize("homogeneous", [False, True])
@pytest.mark.parametrize("privatizer", by_name(PRIVATE))
def test_the_moves_of_the_worst_pair_are_enough_for_both_norms(privatizer, homogeneous, centred, neighbours):
    if centred and not privatizer.plain:
        return
    problem = RIVER.replace(homogeneous=homogeneous, centred_costs=centred, neighbours=neighbours)
    moves = privatizer.moves(problem)
    assert moves.l1 <= moves.coordinates * moves.shift * (1 + 1e-12)
    assert moves.l2 <= math.sqrt(moves.coordinates) * moves.shift * (1 + 1e-12)
    assert moves.l2 <= moves.l1
