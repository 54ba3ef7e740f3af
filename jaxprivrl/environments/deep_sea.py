"""Deep sea: a treasure that only one of 2^N ways down finds."""

import numpy as np

from jaxprivrl.environments.base import Environment, Grid, Table, rescale
from jaxprivrl.parameters import Parameter, at_least

MOVE_COST = 0.01  # of a whole dive to the right


def _deep_sea(horizon: int | None, size: int) -> Table:
    """A diver sinks one row per step, to the left (action 0) or to the right (action 1), on an N x N grid.

    A step to the right pays -0.01 / N; the step to the right out of the bottom right cell pays 1 more. After N steps
    the episode is over. States are the N (N + 1) / 2 cells that can be reached, and the end. Going right all the way
    is best, and pays V* = 0.99 for every N; a uniform diver pays 2^-N - 0.005.

    Reference: Osband et al., Behaviour Suite for Reinforcement Learning, ICLR 2020 (deterministic, actions not
    permuted).
    """
    N = size
    horizon = horizon or N
    if horizon < N:
        raise ValueError(f"Expected horizon={horizon} >= size={N}. The treasure lies {N} steps away.")
    cells = [(row, column) for row in range(N) for column in range(row + 1)]
    index = {cell: s for s, cell in enumerate(cells)}
    S, over = len(cells) + 1, len(cells)
    rewards, P = np.zeros((1, S, 2)), np.zeros((1, S, 2, S))
    for (row, column), s in index.items():
        for a, step in enumerate((-1, 1)):
            below = (row + 1, max(column + step, 0))
            P[0, s, a, index.get(below, over)] = 1.0
        rewards[0, s, 1] = -MOVE_COST / N
    rewards[0, index[N - 1, N - 1], 1] += 1.0
    P[0, over, :, over] = 1.0
    costs, native = rescale(rewards, best=1.0, worst=-MOVE_COST / N)
    # Which action goes which way is what a diver must find out, so either may, as far as the public knows.
    support = np.broadcast_to((P > 0).any(2, keepdims=True), P.shape)
    drawn = np.array([row * N + column for row, column in cells] + [-1])
    return Table(horizon, costs, P, 0, native, (over,), support, Grid(N, N, drawn), ("left", "right"))


DEEP_SEA = Environment(
    "deep_sea",
    "A diver sinks row by row; only going right at every step finds the treasure.",
    (Parameter("size", 10, "rows and columns of the sea", at_least(1, "The sea needs a cell.")),),
    _deep_sea,
)
