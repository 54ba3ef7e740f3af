"""Environments: optimal values against a linear program and closed forms, ends, native units, public support."""

import math

import numpy as np
import pytest
from scipy import sparse
from scipy.optimize import linprog
from scipy.stats import poisson

from jaxprivrl import environments
from jaxprivrl import mdp as mdp_lib
from jaxprivrl.environments import ENVIRONMENTS, facts
from jaxprivrl.environments.base import TOLERANCE, Table, finish

SMALL = 10**6  # entries [H, S, A] above which the linear program takes too long
VARIANTS = (
    "river_swim:num_states=9",
    "deep_sea:size=5",
    "double_chain:length=6,slip=0.3,left=1",
    "lock:length=3,actions=2,slip=0.2,seed=4",
    "four_rooms:slip=0,goal=10.10",
    "grid_world:rows=3,columns=4,slip=0.25,walls=1.1/1.2,goal=0.3,start=2.0",
    "garnet:states=7,actions=2,branching=1,seed=5",
    "inventory:capacity=3,demand=0.5",
    "queue:capacity=1,arrival=1",
    "random:states=3,actions=2,concentration=0.1,seed=1",
    "random:stationary=true",
    "gym:FrozenLake-v1:slippery=false",
    "gym:FrozenLake-v1:size=8",
    "gym:CliffWalking-v1:slippery=true",
    "mirror:lock:seed=2",
)
NAMES = (*(name for name, environment in ENVIRONMENTS.items() if not environment.required), *VARIANTS)


def make(text):
    """Every environment once: a big table is not made for each test anew."""
    if text not in make.kept:
        make.kept[text] = environments.make(text)
    return make.kept[text]


make.kept = {}


def native_payoffs(built):
    """Mean native payoff of every step, [H|1, S, A]."""
    return built.native.offset + built.native.scale * built.costs


def linear_program(built):
    """V*[H, S] from: maximise sum V_h(s) subject to V_h(s) <= c_h(s, a) + sum_s2 P_h(s2|s, a) V_{h+1}(s2)."""
    H, S, A = built.shape
    n, rows = S * A, []
    pick = sparse.kron(sparse.eye(S), np.ones((A, 1)), "csr")
    leads = [sparse.csr_matrix(p.reshape(n, S)) for p in built.transitions]
    for h in range(H):
        blocks = [sparse.csr_matrix((n, S))] * H
        blocks[h] = pick
        if h + 1 < H:
            blocks[h + 1] = -leads[h % len(leads)]
        rows.append(sparse.hstack(blocks, "csr"))
    costs = np.concatenate([built.costs[h % len(built.costs)].ravel() for h in range(H)])
    result = linprog(-np.ones(H * S), sparse.vstack(rows), costs, bounds=(None, None), method="highs")
    assert result.status == 0, result.message
    return result.x.reshape(H, S)


@pytest.mark.parametrize("text", [n for n in NAMES if n != "icu_sepsis"])  # which has a file of its own
def test_optimal_values_solve_the_linear_program(text):
    built = make(text)
    if math.prod(built.shape) * built.shape[1] > SMALL:
        built = environments.make(text, horizon=3)
    solution = mdp_lib.solve(built.host)
    np.testing.assert_allclose(linear_program(built), solution.v, atol=1e-6)
    assert facts(built)["optimal_value"] == pytest.approx(built.initial @ solution.v[0], abs=1e-9)


# -- closed forms ----------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1, 2, 3, 8, 20])
@pytest.mark.parametrize("more", [0, 3])
def test_deep_sea_pays_its_closed_form(size, more):
    """Always right: N steps of -0.01 / N and the treasure. Uniform: half the moves, and 2^-N of the treasure."""
    built = environments.make(f"deep_sea:{size}", size + more)
    known = facts(built)
    assert known["states"] == size * (size + 1) // 2 + 1
    assert known["native_optimum"] == pytest.approx(0.99, abs=1e-12)
    uniform = built.native.total(known["optimal_value"] + known["uniform_regret"])
    assert uniform == pytest.approx(2.0**-size - 0.005, abs=1e-12)


def test_deep_sea_sinks_to_either_side():
    """Three rows by hand: states 0 | 1 2 | 3 4 5, and 6 for the end."""
    built = environments.make("deep_sea:3")
    np.testing.assert_array_equal(built.transitions[0].argmax(-1), [[1, 2], [3, 4], [3, 5], *[[6, 6]] * 4])
    assert np.all(built.transitions.max(-1) == 1)
    assert built.grid.cells.tolist() == [0, 3, 4, 6, 7, 8, -1]
    right = [-0.01 / 3] * 5 + [1 - 0.01 / 3, 0]
    np.testing.assert_allclose(native_payoffs(built)[0], np.stack([np.zeros(7), right], -1), atol=1e-12)
    either = [{1, 2}, {3, 4}, {3, 5}, {6}, {6}, {6}, {6}]  # whichever action it is
    assert [set(np.flatnonzero(row)) for row in built.support[0, :, 0]] == either
    np.testing.assert_array_equal(built.support[0, :, 0], built.support[0, :, 1])


@pytest.mark.parametrize("slip", [0.0, 0.3])
@pytest.mark.parametrize("more", [0, 2])
def test_a_lock_pays_its_closed_form(slip, more):
    built = environments.make(f"lock:length=5,actions=4,slip={slip},seed=7", 5 + more)
    known = facts(built)
    assert known["native_optimum"] == pytest.approx((1 - slip) ** 5, abs=1e-12)
    assert built.native.loss(known["uniform_regret"]) == pytest.approx((1 - slip) ** 5 * (1 - 0.25**5), abs=1e-12)
    assert known["possible_transitions"] == 4 * 4 * 2 + 4 + 4  # on or over, by any action; over from the last; the end


def test_double_chain_pays_for_time_spent_at_its_ends():
    """Without slips, L // 2 steps lead to the right end; the regret of going left is the difference of the prizes."""
    built = environments.make("double_chain:length=7,slip=0,left=0.25", 12)
    assert facts(built)["native_optimum"] == pytest.approx(12 - 3, abs=1e-12)
    solution = mdp_lib.solve(built.host)
    np.testing.assert_allclose(12 - solution.v[0, ::6], [0.25 + 12 - 6, 12], atol=1e-12)
    left = np.zeros(built.shape[1])
    for _ in range(12):
        left = built.costs[0, :, 0] + built.transitions[0, :, 0] @ left
    assert built.native.total(left[3]) == pytest.approx(0.25 * (12 - 3), abs=1e-12)


def test_double_chain_slips_the_other_way():
    built = environments.make("double_chain:length=3,slip=0.25,left=0.5")
    left = [[0.75, 0.25, 0], [0.75, 0, 0.25], [0, 0.75, 0.25]]
    np.testing.assert_allclose(built.transitions[0, :, 0], left)
    np.testing.assert_allclose(built.transitions[0, :, 1], np.array(left)[::-1, ::-1])
    np.testing.assert_allclose(native_payoffs(built)[0], [[0.5, 0.5], [0, 0], [1, 1]])
    assert built.initial.tolist() == [0, 1, 0]


def test_four_rooms_is_the_published_plan():
    built = make("four_rooms")
    assert built.shape == (40, 104, 4) and built.grid.rows == built.grid.columns == 11
    walls = np.setdiff1d(np.arange(121), built.grid.cells)
    assert len(walls) == 17
    s = int(np.flatnonzero(built.grid.cells == 3 * 11 + 2)[0])  # inside a room, no wall about
    np.testing.assert_allclose(np.sort(built.transitions[0, s, 0])[-4:], [1 / 9, 1 / 9, 1 / 9, 2 / 3])
    free = environments.make("four_rooms:slip=0", 14)
    assert facts(free)["native_optimum"] == 1.0  # the hallway lies 14 steps from the corner
    assert facts(environments.make("four_rooms:slip=0", 13))["native_optimum"] == 0.0


def test_walls_are_walked_around():
    open_grid = "grid_world:rows=3,columns=3,slip=0,goal=0.2"
    for walls, steps in (("", 2), (",walls=0.1", 4), (",walls=0.1/1.1", 6)):
        assert facts(environments.make(open_grid + walls, steps))["native_optimum"] == 1.0
        assert facts(environments.make(open_grid + walls, steps - 1))["native_optimum"] == 0.0
    assert facts(environments.make(open_grid + ",walls=0.1/1.1/2.1", 20))["native_optimum"] == 0.0


def test_taxi_and_cliff_pay_what_is_known_of_them():
    """13 steps along the cliff; the mean best return of a taxi is 7.93."""
    assert facts(make("gym:CliffWalking-v1"))["native_optimum"] == pytest.approx(-13, abs=1e-9)
    assert facts(make("gym:Taxi-v3"))["native_optimum"] == pytest.approx(7.93, abs=5e-3)
    assert facts(make("gym:Taxi-v3"))["possible_transitions"] == 500 * 6


@pytest.mark.parametrize("text", ["inventory", "inventory:capacity=3,demand=0.5,fixed=0,price=1"])
def test_inventory_is_what_its_rule_says(text):
    """Against sums over the demand, drawn out to where its tail is nothing."""
    built = make(text)
    given = environments.parameters.parse(text, "environment", ENVIRONMENTS)[1]
    p = environments.parameters.resolve(ENVIRONMENTS["inventory"].parameters, given)
    M = p["capacity"]
    for x in range(M + 1):
        for a in range(M + 1):
            order = min(a, M - x)
            payoff, row = 0.0, np.zeros(M + 1)
            for demand in range(80):
                chance = poisson.pmf(demand, p["demand"])
                sold = min(x + order, demand)
                payoff += chance * (p["price"] * sold - (p["fixed"] if order else 0.0))
                payoff -= chance * (p["unit"] * order + p["holding"] * (x + order))
                row[x + order - sold] += chance
            assert native_payoffs(built)[0, x, a] == pytest.approx(payoff, abs=1e-9)
            np.testing.assert_allclose(built.transitions[0, x, a], row, atol=1e-12)


def test_queue_is_what_its_rule_says():
    """By hand for two places: empty, one, full."""
    built = environments.make("queue:capacity=2,arrival=0.25,slow=0.5,fast=1,effort=2,loss=8")
    slow, fast = built.transitions[0, :, 0], built.transitions[0, :, 1]
    np.testing.assert_allclose(slow, [[0.75, 0.25, 0], [0.375, 0.5, 0.125], [0, 0.375, 0.625]])
    np.testing.assert_allclose(fast, [[0.75, 0.25, 0], [0.75, 0.25, 0], [0, 0.75, 0.25]])
    np.testing.assert_allclose(native_payoffs(built)[0], [[0, 2], [1, 3], [2 + 8 * 0.125, 4]], atol=1e-12)
    assert built.native == (12.0, 0.0, 20)  # a cost: 0 at best, everything at once at worst


def test_garnet_has_its_branches():
    built = environments.make("garnet:states=30,actions=4,branching=5,seed=1")
    assert np.all((built.transitions > 0).sum(-1) == 5) and facts(built)["possible_transitions"] == 30 * 4 * 5
    again, other = (environments.make(f"garnet:states=30,actions=4,branching=5,seed={i}") for i in (1, 2))
    np.testing.assert_array_equal(built.transitions, again.transitions)
    assert not np.array_equal(built.transitions, other.transitions)


def test_random_is_drawn_from_its_seed():
    built = environments.make("random:states=4,actions=3,seed=1", 6)
    assert built.costs.shape == (6, 4, 3) and not built.stationary and built.support is None
    assert environments.make("random:stationary=true").stationary
    np.testing.assert_array_equal(built.costs, environments.make("random:states=4,actions=3,seed=1", 6).costs)
    assert not np.array_equal(built.costs, environments.make("random:states=4,actions=3,seed=2", 6).costs)
    spread, sharp = (environments.make(f"random:concentration={c}").transitions.max(-1).mean() for c in (100, 0.01))
    assert spread < 0.35 and sharp > 0.9
    assert np.all(np.isfinite(environments.make("random:concentration=1e-9").transitions))


# -- ends, native units, support -------------------------------------------------------------------


@pytest.mark.parametrize("text", NAMES)
def test_after_an_end_nothing_changes(text):
    """Whatever is played: an end is never left, is worth zero in native units, and any longer episode stays there."""
    built = make(text)
    H, _, A = built.shape
    for end in built.ends:
        assert np.all(built.transitions[:, end, :, end] == 1.0)
        np.testing.assert_allclose(native_payoffs(built)[:, end], 0.0, atol=TOLERANCE)
        solution = mdp_lib.solve(built.host)
        left = np.arange(H, 0, -1)  # steps that are left at stage h
        native = built.native.offset * left + built.native.scale * solution.v[:, end]
        np.testing.assert_allclose(native, 0.0, atol=1e-9 * H * abs(built.native.scale))
        assert np.all(solution.gaps[:, end] <= TOLERANCE * H) and solution.gaps[:, end].shape == (H, A)


@pytest.mark.parametrize(
    "text", ["deep_sea", "deep_sea:size=5", "lock", "lock:length=3,slip=0.2", "gym:CliffWalking-v1"]
)
def test_steps_after_every_episode_has_ended_are_free(text):
    """Where all good episodes end in time, a longer horizon changes neither the native optimum nor the regret."""
    H = make(text).horizon
    short, long = (facts(environments.make(text, horizon)) for horizon in (H, H + 7))
    assert long["native_optimum"] == pytest.approx(short["native_optimum"], abs=1e-9)
    if not text.startswith("gym"):  # a uniform walker is still under way
        assert long["uniform_regret"] == pytest.approx(short["uniform_regret"], abs=1e-9)


@pytest.mark.parametrize("text", NAMES)
def test_native_units_are_those_of_the_steps(text):
    """An episode's native return, added up step by step, is the affine map of its cost."""
    built = make(text)
    H, S, A = built.shape
    rng = np.random.default_rng(0)
    s, cost, native = rng.choice(S, p=built.initial), 0.0, 0.0
    payoffs = native_payoffs(built)
    for h in range(H):
        a = rng.integers(A)
        cost += built.costs[h % len(built.costs), s, a]
        native += payoffs[h % len(payoffs), s, a]
        p = built.transitions[h % len(built.transitions), s, a]
        s = rng.choice(S, p=p / p.sum())
    assert built.native.steps == H
    assert built.native.total(cost) == pytest.approx(native, abs=1e-9 * H * (1 + abs(built.native.scale)))
    assert built.native.total(cost + 0.5) - native == pytest.approx(0.5 * built.native.scale, abs=1e-6)
    assert built.native.loss(0.5) == pytest.approx(0.5 * abs(built.native.scale))


@pytest.mark.parametrize("text", NAMES)
def test_support_holds_every_possible_transition(text):
    built = make(text)
    H, S, A = built.shape
    if built.support is None:
        assert text.startswith("random")
        return
    assert built.support.dtype == bool and built.support.shape in ((1, S, A, S), (H, S, A, S))
    assert not np.any((built.transitions > 0) & ~built.support)
    assert facts(built)["possible_transitions"] < facts(built)["all_transitions"]


@pytest.mark.parametrize("text", NAMES)
def test_grids_have_a_cell_for_every_state(text):
    built = make(text)
    if built.grid is not None:
        rows, columns, cells = built.grid
        assert cells.shape == (built.shape[1],) and cells.min() >= -1 and cells.max() < rows * columns
        assert np.all(cells[np.setdiff1d(np.arange(built.shape[1]), built.ends)] >= 0)
    assert built.actions is None or len(built.actions) == built.shape[2]


def test_the_smallest_gap_is_that_of_states_somebody_reaches():
    """State 2 has a tiny gap, but no episode sees it."""
    costs = np.array([[[0.0, 0.5], [0.25, 0.25], [0.0, 1e-3]]])
    P = np.zeros((1, 3, 2, 3))
    P[..., 1] = 1.0
    built = finish(Table(2, costs, P, 0), bernoulli=False)
    known = facts(built)
    assert known["smallest_gap"] == 0.5 and known["optimal_value"] == 0.25 and known["uniform_regret"] == 0.25
    flat = finish(Table(2, np.full((1, 3, 2), 0.5), P, 0), bernoulli=False)
    assert facts(flat)["smallest_gap"] is None


def test_tables_that_break_their_word_are_refused():
    P = np.full((1, 2, 2, 2), 0.5)
    costs = np.full((1, 2, 2), 0.5)
    with pytest.raises(ValueError, match=r"State 1 is no end; expected every action to stay there and to pay nothing"):
        finish(Table(3, costs, P, 0, ends=(1,)), bernoulli=False)
    stay = np.broadcast_to(np.eye(2)[None, :, None], (1, 2, 2, 2))
    with pytest.raises(ValueError, match=r"State 1 is no end"):
        finish(Table(3, costs, stay, 0, ends=(1,)), bernoulli=False)
    assert finish(Table(3, costs, stay, 0, native=(-2.0, 1.0), ends=(1,)), bernoulli=False).ends == (1,)
    with pytest.raises(ValueError, match=r"transitions\[h=0, s=0, a=0, s2=1\] is 0\.5; expected 0 outside the support"):
        finish(Table(3, costs, P, 0, support=stay > 0), bernoulli=False)
    with pytest.raises(ValueError, match=r"Payoffs span 0 to 2; expected 0 to 1"):
        environments.rescale(np.array([0.0, 2.0]), best=1.0, worst=0.0)
