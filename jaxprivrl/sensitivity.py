"""How far one user can move what is released: public sizes of a problem and the sensitivities that follow from them.

Host side. One user is one episode; neighbours replace one user unless said otherwise.
"""

import math
from typing import NamedTuple

FAMILIES = ("visits", "costs", "transitions")
NEIGHBOURS = ("replace", "add_remove")


class Problem(NamedTuple):
    """Public sizes that fix the sensitivity of one user's counts.

    Attributes:
      horizon: H, steps of an episode; one user is one episode.
      num_states: S.
      num_actions: A.
      num_episodes: K, the largest number of episodes that will ever be released.
      homogeneous: True if counts are pooled over the steps h (a stage axis of length 1).
      families: 3 releases visits, costs and transitions; 2 releases costs and transitions, visits are summed over s2.
      centred_costs: True if a user adds c - 1/2 rather than c to its cells; half the noisy visits are added back.
    """

    horizon: int
    num_states: int
    num_actions: int
    num_episodes: int
    homogeneous: bool = False
    families: int = 3
    centred_costs: bool = False


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


def check_problem(problem: Problem) -> None:
    """Raises ValueError unless all sizes are integers of at least 1 and families is 2 or 3."""
    for name in ("horizon", "num_states", "num_actions", "num_episodes"):
        value = getattr(problem, name)
        if value != int(value) or value < 1:
            raise ValueError(f"Expected {name}={value} >= 1. Pass a whole number for {name}.")
    if problem.families not in (2, 3):
        raise ValueError(f"Expected families={problem.families} in (2, 3). Use 3 as in the paper, 2 to derive visits.")


def check_neighbours(neighbours: str) -> None:
    """Raises ValueError unless the relation is one of NEIGHBOURS."""
    if neighbours not in NEIGHBOURS:
        raise ValueError(f"Unknown neighbours '{neighbours}'. Available: {', '.join(NEIGHBOURS)}.")


def released_families(problem: Problem) -> tuple[str, ...]:
    """Names of the families that get noise of their own."""
    return FAMILIES[-problem.families :]


def step_moves(problem: Problem, neighbours: str) -> dict[str, dict[str, tuple[float, ...]]]:
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
    cases = {"replace": replaced, "add_remove": removed}[neighbours]
    return {case: {f: moves[f] for f in released_families(problem)} for case, moves in cases.items()}


def sensitivity(problem: Problem, neighbours: str = "replace") -> Sensitivity:
    """L1 and L2 sensitivity of one user's counts.

    At each step a user adds 1 (costs: at most 1) to one cell of each family. Replacing the user moves two cells:
      stage-dependent counts: L1 = 2H, L2 = sqrt(2H);   pooled over h: L1 = 2H, L2 = sqrt(2) H (all steps in one cell).
    Setting the contribution to zero (add_remove) moves one: H and sqrt(H), pooled H and H.

    Centred costs move by c - 1/2: L1 = H and L2 = sqrt(H), pooled H. Of all families together, by step,
      L1: 5 of 6 (two families: 3 of 4),   L2^2: 4.5 of 6 (two families: 2.75 of 4).
    The last figure: two versions of a user that share a cell and leave it for different states move by 3, but are
    apart at the next step, where they move by 2.5; no other steps move more.
    The learner gets the costs as centred + visits/2, so that the mean cost C/N = 1/2 + centred/N loses nothing.

    Left out, as they save little: not counting the last step's transitions (2 of 6H in L1, 1.7 % at H = 20, but a
    pooled learner loses 1/H of its data), and a first state and action that all users share (3 of 6H, 2.5 %).

    Args:
      problem: sizes; S and A do not matter.
      neighbours: "replace" or "add_remove" (the user's contribution set to zero, the slot stays).
    Returns:
      Sensitivity of the released families.
    Privacy: relies on counts of a path, whose steps end where the next ones start, and on costs in [0, 1], to which
      the privatizer clips them. Counts pooled over h are sums of the steps' counts:
      by the triangle inequality they move by no more than the steps do, one after the other.
    Reference: the replace-one factor 2 is missing in Chowdhury and Zhou, AAAI 2022, and in Vietri et al., ICML 2020.
    """
    check_problem(problem)
    check_neighbours(neighbours)
    H, cases = problem.horizon, step_moves(problem, neighbours)

    def total(families: tuple[str, ...], power: int, outer: float) -> float:
        """Sum over the worst H steps of (sum of |moves|^power)^outer."""
        sizes = {c: math.fsum(x**power for f in families for x in moves[f]) ** outer for c, moves in cases.items()}
        leaving = sizes.pop("leaving", 0.0)
        often = max(sizes.values())
        return H * often + math.ceil(H / 2) * max(leaving - often, 0.0)  # every second step at most

    def l1(*families: str) -> float:
        return total(families, 1, 1.0)

    def l2(*families: str) -> float:
        return total(families, 2, 0.5) if problem.homogeneous else math.sqrt(total(families, 2, 1.0))

    names = released_families(problem)
    return Sensitivity({f: l1(f) for f in names}, {f: l2(f) for f in names}, l1(*names), l2(*names))
