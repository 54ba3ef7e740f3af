"""Chains: RiverSwim, a chain with a prize at either end, and the combination lock."""

from typing import TYPE_CHECKING

import numpy as np

from jaxprivrl.environments.base import Environment, Grid, Table, rescale
from jaxprivrl.parameters import Parameter, at_least, between

if TYPE_CHECKING:
    from jaxprivrl.mdp import MDP


def _line(num_states: int, hidden: int = 0) -> Grid:
    """States in one row, the last `hidden` ones left out."""
    cells = np.arange(num_states)
    cells[num_states - hidden :] = -1
    return Grid(1, num_states - hidden, cells)


def _river_swim(horizon: int | None, num_states: int) -> Table:
    S = num_states
    rewards = np.zeros((1, S, 2))
    rewards[0, 0, 0], rewards[0, S - 1, 1] = 0.005, 1.0
    P = np.zeros((1, S, 2, S))
    for s in range(S):
        P[0, s, 0, max(s - 1, 0)] = 1.0
    P[0, 0, 1, :2] = 0.4, 0.6
    for s in range(1, S - 1):
        P[0, s, 1, s - 1 : s + 2] = 0.05, 0.6, 0.35
    P[0, S - 1, 1, S - 2 :] = 0.4, 0.6
    costs, native = rescale(rewards, best=1.0, worst=0.0)
    return Table(horizon or 20, costs, P, 0, native, (), P > 0, _line(S), ("left", "right"))


RIVER_SWIM = Environment(
    "river_swim",
    "A swimmer against the current: a crumb on the left bank, the prize on the right one.",
    (Parameter("num_states", 6, "places in the river", at_least(2, "RiverSwim needs a left and a right bank.")),),
    _river_swim,
)


def river_swim(horizon: int = 20, num_states: int = 6, *, bernoulli: bool = False) -> "MDP":
    """RiverSwim: action 0 swims left and succeeds, action 1 swims right against the current.

    Rewards 0.005 at (first state, left) and 1 at (last state, right), turned into costs 1 - reward. Right moves
    up with probability 0.6 from the first state and 0.35 from an inner one, where it also falls back with 0.05;
    at the last state it holds with 0.6.

    Reference: Strehl and Littman 2008; Osband et al. 2013; the probabilities are those of the experiments of
    Chowdhury and Zhou, AAAI 2022.
    """
    return RIVER_SWIM.build(horizon, bernoulli, num_states=num_states)


def _double_chain(horizon: int | None, length: int, slip: float, left: float) -> Table:
    """Two ways out of the middle; the nearest prize is not the best one.

    States 0, ..., L - 1, start in the middle. An action moves its way with probability 1 - slip and the other way
    otherwise; ends hold. Every step at state L - 1 pays 1, every step at state 0 pays `left`, the others nothing.

    Reference: dynamics as in Kaufmann et al., Adaptive Reward-Free Exploration, ALT 2021.
    """
    L = length
    P = np.zeros((1, L, 2, L))
    for s in range(L):
        for a, step in enumerate((-1, 1)):
            P[0, s, a, np.clip(s + step, 0, L - 1)] += 1 - slip
            P[0, s, a, np.clip(s - step, 0, L - 1)] += slip
    rewards = np.zeros((1, L, 2))
    rewards[0, 0], rewards[0, L - 1] = left, 1.0
    costs, native = rescale(rewards, best=1.0, worst=0.0)
    return Table(horizon or 20, costs, P, L // 2, native, (), P > 0, _line(L), ("left", "right"))


DOUBLE_CHAIN = Environment(
    "double_chain",
    "A chain entered in the middle, with a small prize at the left end and the full one at the right end.",
    (
        Parameter("length", 11, "states of the chain", at_least(3, "The chain needs a middle and two ends.")),
        Parameter("slip", 0.1, "probability of moving the other way", between(0, 1, "Pass a probability.")),
        Parameter("left", 0.5, "what a step at the left end pays", between(0, 1, "The right end pays 1.")),
    ),
    _double_chain,
)


def _lock(horizon: int | None, length: int, actions: int, slip: float, seed: int) -> Table:
    """A combination lock: one right action per position, and everything else is lost at once.

    The right action moves on with probability 1 - slip; on the last position it pays 1 if it does not slip. Whatever
    else happens ends the episode. V* pays (1 - slip)^length; the uniform policy pays ((1 - slip) / actions)^length.

    Reference: Langford's combination lock, as in Koenig and Simmons 1993 and Azizzadenesheli et al. 2018.
    """
    horizon = horizon or length
    if horizon < length:
        raise ValueError(f"Expected horizon={horizon} >= length={length}. A lock cannot be opened in fewer steps.")
    combination = np.random.default_rng(seed).integers(actions, size=length)
    S, over = length + 1, length
    P = np.zeros((1, S, actions, S))
    P[..., over] = 1.0
    rewards = np.zeros((1, S, actions))
    for s, a in enumerate(combination):
        P[0, s, a, over] -= 1 - slip
        P[0, s, a, s + 1] += 1 - slip  # s + 1 is `over` from the last position
    rewards[0, length - 1, combination[-1]] = 1 - slip
    costs, native = rescale(rewards, best=1.0, worst=0.0)
    # Which action is right is the secret, so the public support allows every action to move on.
    support = np.zeros(P.shape, bool)
    support[..., over] = True
    support[0, np.arange(length), :, np.arange(1, S)] = True
    return Table(horizon, costs, P, 0, native, (over,), support, _line(S, hidden=1))


LOCK = Environment(
    "lock",
    "A combination lock: the right action at every position opens it, any other one ends the episode.",
    (
        Parameter("length", 6, "positions of the lock", at_least(1, "A lock has at least one position.")),
        Parameter("actions", 3, "choices at each position", at_least(2, "One choice is no lock.")),
        Parameter("slip", 0.0, "probability that the right action fails", between(0, 1, "Pass a probability.")),
        Parameter("seed", 0, "draws the combination", at_least(0, "Pass a whole number.")),
    ),
    _lock,
)
