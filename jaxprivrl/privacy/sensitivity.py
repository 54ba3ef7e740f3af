"""How far one user can move what is released: the sensitivities of a problem.

Host side. One user is one episode.
"""

import math
from typing import NamedTuple

from jaxprivrl.problem import Problem


class Sensitivity(NamedTuple):
    """Largest change of one user's whole released vector, before tree levels.

    Attributes:
      per_family_l1: {family: L1}, released families only.
      per_family_l2: {family: L2}.
      l1: of all families together.
      l2: likewise; no more than the root of the sum of squares over families, which need not be worst together.
    """

    per_family_l1: dict[str, float]
    per_family_l2: dict[str, float]
    l1: float
    l2: float


def step_moves(problem: Problem) -> dict[str, dict[str, tuple[float, ...]]]:
    """What one step of a user can change: for each case, by family, the largest moves of the cells that move.

    Replacing a user: its two versions are "apart", in different cells (s, a), or they share the cell and are "leaving"
    it for different states, or "staying" together with different costs. Costs lie in [0, 1], so two cells move by 1
    each, or by 1/2 each if costs are centred; one cell by 1.
    """
    cost = 0.5 if problem.centred_costs else 1.0
    replaced: dict[str, dict[str, tuple[float, ...]]] = {
        "apart": {"visits": (1.0, 1.0), "costs": (cost, cost), "transitions": (1.0, 1.0)},
        "leaving": {"visits": (), "costs": (1.0,), "transitions": (1.0, 1.0)},
        "staying": {"visits": (), "costs": (1.0,), "transitions": ()},
    }
    removed: dict[str, dict[str, tuple[float, ...]]] = {
        "removed": {"visits": (1.0,), "costs": (cost,), "transitions": (1.0,)}
    }
    cases = {"replace": replaced, "add_remove": removed}[problem.neighbours]
    return {case: {f: moves[f] for f in problem.released_families} for case, moves in cases.items()}


def pooled_centred_pair(horizon: int) -> float:
    """Largest squared L2 distance of two users' pooled, centred costs and transitions: 5/2 H^2, or 3 if H = 1.

    Attained by two users who stay in different cells, with costs 0 or 1: H^2/4 and H^2 for each of them.

    No two users do worse. Let n, m be their steps in a cell (s, a), and alpha <= n, beta <= m those of them that leave
    s. The cost sums of the cell, in [-n/2, n/2] and [-m/2, m/2], differ by at most (n + m)/2; the transitions that
    stay differ by (n - alpha) - (m - beta), those that leave by at most alpha^2 + beta^2 in squares. Hence a cell adds
      5/4 (n^2 + m^2) + g,   g = 2 alpha (alpha - n) + 2 beta (beta - m) + 2 m alpha + 2 n beta - 2 alpha beta - 3/2 n m
    at most. Sums of squares of steps are H^2 less sum_cells n (H - n), so that 5/2 H^2 is a bound if in each cell
      g <= 5/4 n (H - n) + 5/4 m (H - m).
    It does: who leaves s is elsewhere next, if there is a next step, so alpha <= min(n, H - n + 1), and so for beta. As
    g is convex in alpha and in beta, it is largest with each at 0 or at its bound. Let r = alpha / n, q = beta / m.
      both 0:           g = -3/2 n m.
      alpha = n:        n <= (H + 1)/2, and g <= n m / 2 <= 5/4 n (H - n) as m <= H.
      alpha < n, beta = 0:  m < n (1 + r), so g < n^2 (4 r^2 - 3/2 r - 3/2) if r > 3/4, else g <= 0; the bracket is at
                        most 5/4 r - 1/4, so that g <= 5/4 n (alpha - 1) if n >= 5.
      0 < alpha < n, 0 < beta < m, say r <= q:  g = n m / 2 - 2 (n - alpha) (m - beta) - 2 alpha (n - alpha) - 2 beta
                        (m - beta). If r > 1/2: n m / 2 <= (n^2 + m^2) / 4 and n^2 / 4 <= 5/4 n (alpha - 1) + 2 alpha (n
                        - alpha), likewise m. If q > 1/2 >= r: n < m (1 + q), g < m^2 (3 q^2 - 3/2 q - 1/2) <= m^2 (5/4
                        q - 1/4) <= 5/4 m (beta - 1) if m >= 5. If q <= 1/2: g <= 0.
    What is left has H <= 6; a test goes through it, and through every H up to 200. One cell fails, by 1/2: H = 3,
    n = alpha = 2, m = 3, beta = 0; the third step of the first user is in a cell that has 5/2 to spare.
    With H = 1 two users may share a cell and leave it for different states: 1 + 2 = 3.
    """
    return 3.0 if horizon == 1 else 2.5 * horizon**2


def sensitivity(problem: Problem) -> Sensitivity:
    """L1 and L2 sensitivity of one user's counts.

    At each step a user adds 1 (costs: at most 1) to one cell of each family. Replacing the user moves two cells:
      stage-dependent counts: L1 = 2H, L2 = sqrt(2H);   pooled over h: L1 = 2H, L2 = sqrt(2) H (all steps in one cell).
    Setting the contribution to zero (add_remove) moves one: H and sqrt(H), pooled H and H.

    Centred costs move by c - 1/2: L1 = H and L2 = sqrt(H), pooled H. Of all families together, by step,
      L1: 5 of 6 (two families: 3 of 4),   L2^2: 4.5 of 6 (two families: 2.75 of 4).
    The last figure: two versions of a user that share a cell and leave it for different states move by 3, but are
    apart at the next step, where they move by 2.5; no other steps move more. Pooled, their steps add up in fewer cells
    than they would have to: see `pooled_centred_pair`. All these numbers are attained, by some pair of users.
    The learner gets the costs as centred + visits/2, so that the mean cost C/N = 1/2 + centred/N loses nothing.

    Left out, as they save little: not counting the last step's transitions (2 of 6H in L1, 1.7 % at H = 20, but a
    pooled learner loses 1/H of its data), and a first state and action that all users share (3 of 6H, 2.5 %).

    Args:
      problem: S, A and the schedule do not matter.
    Returns:
      Sensitivity of the released families.
    Privacy: relies on counts of a path, whose steps end where the next ones start, and on costs in [0, 1], to which
      the privatizer clips them. Counts pooled over h are sums of the steps' counts:
      by the triangle inequality they move by no more than the steps do, one after the other.
    Reference: the replace-one factor 2 is missing in Chowdhury and Zhou, AAAI 2022, and in Vietri et al., ICML 2020.
    """
    H, cases = problem.horizon, step_moves(problem)

    def total(families: tuple[str, ...], power: int, outer: float) -> float:
        """Sum over the worst H steps of (sum of |moves|^power)^outer."""
        sizes = {c: math.fsum(x**power for f in families for x in moves[f]) ** outer for c, moves in cases.items()}
        leaving = sizes.pop("leaving", 0.0)
        often = max(sizes.values())
        return H * often + math.ceil(H / 2) * max(leaving - often, 0.0)  # every second step at most

    def l1(*families: str) -> float:
        return total(families, 1, 1.0)

    def l2(*families: str) -> float:
        if problem.homogeneous and problem.centred_costs and problem.neighbours == "replace":
            if set(families) == {"costs", "transitions"}:
                return math.sqrt(pooled_centred_pair(H))
        return total(families, 2, 0.5) if problem.homogeneous else math.sqrt(total(families, 2, 1.0))

    names = problem.released_families
    return Sensitivity({f: l1(f) for f in names}, {f: l2(f) for f in names}, l1(*names), l2(*names))
