"""Gymnasium's environments, stepped for real: transitions, rewards, ends and first states against the tables.

Seeds are fixed, so a run of this file always ends the same way; the rates below are those over all seeds.
"""

import sys
from typing import NamedTuple

import gymnasium
import numpy as np
import pytest
from scipy.stats import chi2

from jaxprivrl import environments
from jaxprivrl.environments import summary

LEVEL = 1e-4  # false alarm rate of each chi-square test
SIGMAS = 5.0  # of each mean reward: a false alarm rate of 6e-7 each, of 1e-3 over all state-action pairs of a table
TAXI = next(name for name in gymnasium.registry if name.startswith("Taxi-v"))


class Case(NamedTuple):
    """A text of ours, gymnasium's id with its arguments, and how long to step."""

    text: str
    id: str
    arguments: dict
    steps: int


CASES = {
    case.text: case
    for case in (
        Case("gym:FrozenLake-v1", "FrozenLake-v1", {}, 40_000),
        Case("gym:FrozenLake-v1:slippery=false", "FrozenLake-v1", {"is_slippery": False}, 5_000),
        Case("gym:FrozenLake-v1:size=8", "FrozenLake-v1", {"map_name": "8x8"}, 100_000),
        Case("gym:CliffWalking-v1", "CliffWalking-v1", {}, 20_000),
        Case("gym:CliffWalking-v1:slippery=true", "CliffWalking-v1", {"is_slippery": True}, 60_000),
        Case("gym:Taxi-v3", TAXI, {}, 60_000),
    )
}


class Steps(NamedTuple):
    """What real steps were: counts [S, A, S], sums and extremes of rewards [S, A], first states [S], ends."""

    counts: np.ndarray
    rewards: np.ndarray
    low: np.ndarray
    high: np.ndarray
    first: np.ndarray
    stopped: set
    went_on: set


@pytest.fixture(scope="module", params=CASES)
def case(request):
    chosen = CASES[request.param]
    built = environments.make(chosen.text)
    inside = np.setdiff1d(np.flatnonzero(summary.reachable(built).any(0)), built.ends)
    return built, step(chosen, inside)


def step(case, inside, length=20):
    """Plays uniform actions for at most `length` steps, from every state inside an episode alike."""
    env = gymnasium.make(case.id, max_episode_steps=length, disable_env_checker=True, **case.arguments)
    S, A = int(env.observation_space.n), int(env.action_space.n)
    rng = np.random.default_rng(1)
    empty = np.zeros((S, A))
    seen = Steps(np.zeros((S, A, S)), empty, empty + np.inf, empty - np.inf, np.zeros(S), set(), set())
    env.reset(seed=0)
    over = True
    for a in rng.integers(A, size=case.steps):
        if over:
            seen.first[env.reset()[0]] += 1
            s = env.unwrapped.s = int(rng.choice(inside))
        s2, reward, terminated, truncated, _ = env.step(int(a))
        seen.counts[s, a, s2] += 1
        seen.rewards[s, a] += reward
        seen.low[s, a], seen.high[s, a] = min(seen.low[s, a], reward), max(seen.high[s, a], reward)
        (seen.stopped if terminated else seen.went_on).add(s2)
        s, over = s2, terminated or truncated
    env.close()
    return seen


def p_value(counts, rows):
    """Pearson's chi-square of counts [n, S] against rows [n, S], pooled over rows expected five times everywhere.

    A count where the row has probability zero gives 0 at once. Rows with one possible outcome add nothing else.
    """
    if np.any(counts[rows == 0] > 0):
        return 0.0
    expected = counts.sum(-1, keepdims=True) * rows
    often = np.where(rows > 0, expected, np.inf).min(-1) >= 5
    if not often.any():
        return 1.0
    possible = rows[often] > 0
    terms = (counts[often] - expected[often])[possible] ** 2 / expected[often][possible]
    freedom = int((possible.sum(-1) - 1).sum())
    return float(chi2.sf(terms.sum(), freedom)) if freedom else 1.0


def wrong_means(seen, means, rows):
    """State-action pairs whose mean reward is too far off, by the variance of two values low and high.

    Taken once for a pair with one outcome, and forty times for others, so that no value of probability 1/3 is left out.
    """
    n = seen.counts.sum(-1)
    often = np.where((rows == 1).any(-1), n >= 1, n >= 40)
    n, means = n[often], means[often]
    low, high = seen.low[often], seen.high[often]
    spread = np.sqrt(np.maximum((high - means) * (means - low), 0.0) / n)
    return int((np.abs(seen.rewards[often] / n - means) > SIGMAS * spread + 1e-9).sum())


def native_rewards(built):
    return built.native.offset + built.native.scale * built.costs[0]


def test_transitions_are_those_of_the_real_environment(case):
    built, seen = case
    S, A = seen.rewards.shape
    assert built.shape[1:] == (S, A)
    rows, counts = built.transitions[0].reshape(-1, S), seen.counts.reshape(-1, S)
    assert (counts.sum(-1) >= 5).sum() > 0.5 * (built.transitions[0].sum((0, 1)) > 1).sum()
    assert p_value(counts, rows) > LEVEL


def test_control_other_tables_are_caught(case):
    """A table with its actions in reverse order, or one that prefers an outcome by a tenth."""
    built, seen = case
    P = built.transitions[0]
    S = P.shape[-1]
    counts = seen.counts.reshape(-1, S)
    assert p_value(counts, P[:, ::-1].reshape(-1, S)) < LEVEL
    if np.any((P > 0) & (P < 1)):  # where moves are certain there is nothing to prefer
        skewed = 0.9 * P + 0.1 * np.eye(S)[(P > 0).argmax(-1)]
        assert p_value(counts, skewed.reshape(-1, S)) < LEVEL


def test_rewards_are_those_of_the_real_environment(case):
    built, seen = case
    means, P = native_rewards(built), built.transitions[0]
    assert wrong_means(seen, means, P) == 0
    assert wrong_means(seen, means[:, ::-1], P) > 0  # control: actions in reverse order
    assert wrong_means(seen, 1.5 * means, P) > 0  # control: the wrong units


def test_episodes_end_where_the_table_has_its_ends(case):
    built, seen = case
    assert seen.stopped and seen.stopped <= set(built.ends)
    assert not seen.went_on & set(built.ends)


def test_first_states_are_those_of_the_real_environment(case):
    built, seen = case
    assert p_value(seen.first[None], built.initial[None]) > LEVEL
    wrong = np.roll(built.initial, 1)
    assert p_value(seen.first[None], wrong[None]) < LEVEL


def test_any_environment_with_a_table_may_be_named():
    """gym:ID reads the same table as the environment's own name, and its horizon is gymnasium's limit."""
    own, by_id = environments.make("gym:Taxi-v3", 5), environments.make(f"gym:{TAXI}", 5)
    np.testing.assert_array_equal(own.transitions, by_id.transitions)
    np.testing.assert_array_equal(own.costs, by_id.costs)
    assert environments.make("gym:FrozenLake8x8-v1").shape == (200, 64, 4)
    lake = environments.make("gym:FrozenLake8x8-v1", 80)
    np.testing.assert_array_equal(lake.transitions, environments.make("gym:FrozenLake-v1:size=8").transitions)


def test_ends_that_are_also_passed_through_get_a_state_of_their_own():
    """State 1 ends the episode if entered by action 0, and is a place like others if entered by action 1."""
    from jaxprivrl.environments.gym_tables import from_outcomes

    outcomes = {
        0: {0: [(1.0, 1, 2.0, True)], 1: [(0.5, 1, 0.0, False), (0.5, 0, -1.0, False)]},
        1: {0: [(1.0, 0, 1.0, False)], 1: [(1.0, 1, 0.0, False)]},
    }
    table = from_outcomes(outcomes, [1.0, 0.0], 4, environments.Grid(1, 2, np.arange(2)))
    assert table.ends == (2,) and table.costs.shape == (1, 3, 2) and table.grid.cells.tolist() == [0, 1, -1]
    np.testing.assert_array_equal(table.transitions[0, 0], [[0, 0, 1], [0.5, 0.5, 0]])
    np.testing.assert_array_equal(table.transitions[0, 1], [[1, 0, 0], [0, 1, 0]])
    scale, offset = table.native
    np.testing.assert_allclose(offset + scale * table.costs[0], [[2, -0.5], [1, 0], [0, 0]], atol=1e-12)


@pytest.mark.parametrize("text", ["gym:Taxi-v3", "gym:FrozenLake-v1", "gym:CliffWalking-v1", "gym:FrozenLake8x8-v1"])
def test_without_gymnasium_the_error_says_what_to_install(text, monkeypatch):
    for name in [name for name in sys.modules if name.split(".")[0] == "gymnasium"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "gymnasium", None)
    with pytest.raises(ValueError, match=r"needs gymnasium, .*\. Run pip install 'jaxprivrl\[envs\]'\."):
        environments.make(text)
