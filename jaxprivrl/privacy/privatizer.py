"""A privatizer: everything that is true of one mechanism, in one object."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from jaxprivrl import _validate
from jaxprivrl.privacy.laws import Law, Moves
from jaxprivrl.privacy.report import Report
from jaxprivrl.privacy.sensitivity import Sensitivity
from jaxprivrl.privacy.strategies import Strategy
from jaxprivrl.problem import Problem

TRUST = {
    "none": "nobody is protected",
    "JDP": "users trust the agent",
    "LDP": "users trust nobody",
    "SDP": "users trust a shuffler that mixes the reports of an epoch",
}
TARGETS = ("pure", "approximate")
CALIBRATIONS = ("tight", "printed", "published_code")


class Calibration(NamedTuple):
    """Another way to a noise scale than the proof, for a pure target, on schedule `every`.

    Attributes:
      scale: `(problem, epsilon) -> scale`.
      errors: `(problem, scale, failure_prob) -> (visits, costs, transitions)`, bounds that go with it; None for those
        of the noise that is really added.
    """

    scale: Callable[[Problem, float], float]
    errors: Callable[[Problem, float, float], tuple[float, float, float]] | None = None


@dataclass(frozen=True)
class _Missing:
    """Stands for a part that was left out."""


_MISSING: Any = _Missing()
_PARTS = {
    "trust": f"one of {', '.join(TRUST)}",
    "report": "a Report: what one user sends",
    "law": "a Law: how a coordinate gets its noise, and what that guarantees",
    "strategy": "a Strategy: how noise runs over the releases",
    "runtime": "a function (privatizer, shape) -> Runtime",
}


@dataclass(frozen=True)
class Privatizer:
    """One mechanism: trust, report, law, strategy and runtime. Hashed by value, so that it is jit's static argument.

    Attributes:
      name: as in the registry.
      trust: "none", "JDP" (users trust the agent, through the billboard lemma), "LDP" (each user randomises its
        report) or "SDP" (so it does, and trusts a shuffler to mix the reports of an epoch).
      report: what one user sends.
      law: how a coordinate gets its noise.
      strategy: how noise runs over the releases.
      runtime: `(privatizer, shape) -> Runtime`, the JAX side; it imports JAX when it is called.
      summary: one line for people.
      target: default target of a calibration, "pure" or "approximate"; by default pure where the law can be.
      calibrations: besides "tight", which every privatizer has.
      noise: half a sentence for tables: how the noise on a count grows.
    """

    name: str
    trust: str = _MISSING
    report: Report = _MISSING
    law: Law = _MISSING
    strategy: Strategy = _MISSING
    runtime: Callable[..., Any] = _MISSING
    summary: str = ""
    target: str = ""
    calibrations: tuple[tuple[str, Calibration], ...] = ()
    noise: str = field(default="", compare=False)

    def __post_init__(self) -> None:
        for part, meaning in _PARTS.items():
            if isinstance(getattr(self, part), _Missing):
                raise ValueError(f"Privatizer '{self.name}' has no {part}; expected {meaning}. State it.")
        kinds: dict[str, Any] = {"trust": str, "report": Report, "law": Law, "strategy": Strategy, "runtime": Callable}
        for part, kind in kinds.items():
            if not isinstance(getattr(self, part), kind):
                raise ValueError(
                    f"Privatizer '{self.name}' has {part}={getattr(self, part)!r}; expected {_PARTS[part]}."
                )
        _validate.one_of("trust model", self.trust, TRUST)
        if not self.target:
            object.__setattr__(self, "target", "pure" if self.law.pure else "approximate")
        _validate.one_of("target", self.target, TARGETS)
        if self.report.bits == self.law.additive and self.trust != "none":
            raise ValueError(
                f"Privatizer '{self.name}' puts {self.law.name} noise on a report with bits={self.report.bits}; "
                "expected bits for a law of bits, and counts for an additive one. Change one of them."
            )
        if (self.trust in ("LDP", "SDP") or self.report.bits) and not self.strategy.per_user:
            raise ValueError(
                f"Privatizer '{self.name}' lets the agent add the noise by {type(self.strategy).__name__}; expected a "
                f"strategy of the users' own for trust='{self.trust}' and bits={self.report.bits}. Change one of them."
            )

    @property
    def private(self) -> bool:
        """Whether it protects anybody."""
        return self.trust != "none"

    @property
    def plain(self) -> bool:
        """Whether a release is the true counts plus noise that does not depend on them."""
        return self.private and self.law.additive and self.report.counts

    def check(self, problem: Problem, calibration: str = "tight") -> None:
        """Raises ValueError unless the calibration is defined for this privatizer and problem."""
        _validate.one_of("calibration", calibration, {*CALIBRATIONS, *dict(self.calibrations)})
        if problem.centred_costs and self.private and not self.plain:
            raise ValueError(
                f"{self.name} does not add noise to counts, so it has no centred_costs. Leave them as they are."
            )
        if not self.private or calibration == "tight":
            return
        if not problem.schedule.every:
            raise ValueError(
                f"calibration='{calibration}' is defined for a release after each user, got "
                f"'{problem.schedule.text}'. Use 'tight', or the schedule 'every'."
            )
        if problem.centred_costs:
            raise ValueError(
                f"calibration='{calibration}' is defined for costs as they are. Use 'tight' to centre them."
            )
        if calibration not in dict(self.calibrations):
            raise ValueError(f"calibration='{calibration}' is not defined for {self.name}. Use calibration='tight'.")
        if problem.families != 3:
            raise ValueError(
                f"calibration='{calibration}' is defined for families=3, got {problem.families}. Use 'tight'."
            )

    def num_leaves(self, problem: Problem) -> int:
        """Leaves of the strategy: users where each adds noise, else releases."""
        return problem.num_episodes if self.strategy.per_user else problem.num_releases

    def sensitivity(self, problem: Problem) -> Sensitivity:
        """Of one user's report, before the strategy."""
        return self.report.sensitivity(problem)

    def moves(self, problem: Problem) -> Moves:
        """How far one user can move all noisy numbers that it is part of."""
        own, (coordinates, shift) = self.sensitivity(problem), self.report.moved(problem)
        norms = self.strategy.norms(self.num_leaves(problem))
        # Entries of a column below one are shifts that one of full size would dominate (see `Report.moved`).
        rows = -int(-norms.l1 // 1)
        batch = problem.schedule.smallest_epoch(problem.num_episodes) if self.trust == "SDP" else 1
        return Moves(own.l1 * norms.l1, own.l2 * norms.l2, coordinates * rows, shift, batch)

    def scale_for(self, problem: Problem, epsilon: float, dp_delta: float | None) -> float:
        """Scale of one draw for a target, by the proof; 0 where nobody is protected."""
        return self.law.scale_for(self.moves(problem), epsilon, dp_delta)

    def variance(self, xp: Any, problem_shape: Any, scale: Any, data: Any, leaves: Any) -> tuple[Any, Any, Any]:
        """Variance of one count of each family in the release after so many leaves; host and device."""
        units = self.strategy.units(xp, data, leaves)
        return self.law.variance(xp, self.report, problem_shape, scale, units)

    def error(self, problem: Problem, scale: float, units: float, family: str, tail_prob: float) -> float:
        """Two-sided error of one count of a family that is exceeded with probability tail_prob at most."""
        return self.law.error(self.report, problem.shape, scale, units, family, tail_prob, self.strategy.summed)
