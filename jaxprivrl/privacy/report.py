"""What one user sends. Read by accounting, by the error bounds and by both ends of a simulation."""

import math
from dataclasses import dataclass

from jaxprivrl.privacy.sensitivity import Sensitivity, sensitivity, step_moves
from jaxprivrl.problem import Problem, Shape


@dataclass(frozen=True)
class Report:
    """The part of a user's episode that leaves its hands, before noise.

    Attributes:
      step: one uniformly drawn step in the place of all H, weighted by H afterwards.
      family: of that step one uniformly drawn family, weighted by their number too.
      bits: costs are rounded to Bernoulli(c) by the user, so that every coordinate of every step is a bit.
    """

    step: bool = False
    family: bool = False
    bits: bool = False

    def __post_init__(self) -> None:
        if self.family and not self.step:
            raise ValueError("Report(family=True) has no step; expected step=True, as a family is one of one step.")

    @property
    def counts(self) -> bool:
        """Whether it is the user's counts themselves, all of them."""
        return not (self.step or self.bits)

    def sensitivity(self, problem: Problem) -> Sensitivity:
        """Largest change of one report, of all steps or of the drawn one.

        A drawn step (family) does not depend on the data: the report is a mixture, with the same weights for both
        versions of a user, of reports of one step (one family). Bits are those of each step, before any pooling.
        """
        if not self.step:
            return sensitivity(problem.replace(homogeneous=False) if self.bits else problem)
        one = sensitivity(problem.replace(horizon=1, homogeneous=False))
        if not self.family:
            return one
        return one._replace(l1=max(one.per_family_l1.values()), l2=max(one.per_family_l2.values()))

    def moved(self, problem: Problem) -> tuple[int, float]:
        """Worst pair of neighbours: number of coordinates of a report that move, and by how much each.

        Stage-dependent: each moves by at most 1, and 2 H families of them do. Pooled: per family the positive part of
        the shift sums to at most H, the negative part too, and Laplace noise with one shift of H dominates any split
        of it, as e^{-|y-theta|}/2 is the Green function of 1 - d^2/dtheta^2: the split pair, moved along the diagonal,
        has density m with m - m'' >= 0 and |m'| <= m, so it is a post-processing of the single shift. The two moves
        of a centred cost sum to 1 at a step, to H pooled, and are such a split.
        """
        cells = [[math.ceil(sum(x)) for x in case.values()] for case in step_moves(problem).values()]
        if self.family:
            return max(map(max, cells)), 1.0
        n, steps = max(map(sum, cells)), 1 if self.step else problem.horizon
        return (n, float(steps)) if problem.homogeneous and self.counts else (n * steps, 1.0)

    def parts(self, shape: Shape) -> int:
        """One in how many reports of a step holds a given family."""
        return shape.families if self.family else 1

    def weight(self, shape: Shape) -> int:
        """What a report stands for: 1 for all steps, H for a drawn one, H families for a family of it."""
        return shape.horizon * self.parts(shape) if self.step else 1
