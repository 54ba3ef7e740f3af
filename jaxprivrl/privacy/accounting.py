"""Where every epsilon comes from: noise scales, and the guarantee that a noise scale really gives.

Host side. Everything is asked of a `Privatizer` object; no mechanism is known here by name, and what a law does not
state has no default. One user is one episode.
"""

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from jaxprivrl import _validate
from jaxprivrl.privacy.errors import ErrorTable, check_noise_scale, error_table
from jaxprivrl.privacy.privatizer import TARGETS, Privatizer
from jaxprivrl.problem import Problem

_LEAST_EPSILON, _LEAST_PROBABILITY = 1e-300, 1e-300  # their inverses are floats
_MAX_RELEASES = 2**31
_LARGEST_STD, _LEAST_SCALE = 2.0**60, 2.0**-60  # their squares, the variances, are normal numbers of float32
_LARGEST_SHARE = 2.0**31  # of the largest possible count: float32 has 24 bits


def _check_dp_delta(dp_delta: float) -> None:
    if not 0.0 < dp_delta < 1.0:
        raise ValueError(f"Expected 0 < dp_delta={dp_delta} < 1. Pass a probability such as dp_delta=1e-5.")
    if dp_delta < _LEAST_PROBABILITY:
        raise ValueError(
            f"Expected dp_delta={dp_delta} >= {_LEAST_PROBABILITY} to be able to compute with it. Pass more."
        )


def _check_range(privatizer: Privatizer, problem: Problem, scale: float, asked: str, more: str, less: str) -> None:
    """Raises unless a scale > 0 is one that float32, in which counts are released, can hold beside them.

    The standard deviation of every count is at most 2^60 and 2^31 K H: noise that is 2^31 times as large as all that K
    users can report leaves nothing of it in the 24 bits of a release. A scale below 2^-60 has a variance that float32
    takes for no noise at all.
    """
    if problem.num_releases >= _MAX_RELEASES:
        raise ValueError(
            f"Expected {problem.num_releases} releases < 2**31, the largest number. Pass fewer episodes, or a schedule "
            "with fewer releases."
        )
    if not privatizer.private or scale == 0.0:
        return
    if scale < _LEAST_SCALE:
        raise ValueError(
            f"Expected {asked} to mean a noise scale of at least {_LEAST_SCALE:.2g}, got {scale:.2g}, which float32 "
            f"takes for none. {less}"
        )
    with np.errstate(all="ignore"):
        std = float(np.sqrt(np.max(_variances(privatizer, problem, np.float64(scale)))))
    largest = min(_LARGEST_STD, _LARGEST_SHARE * problem.num_episodes * problem.horizon)
    if not std <= largest:
        raise ValueError(
            f"Expected {asked} to mean noise that float32 holds beside counts, of a standard deviation of at most "
            f"{largest:.2g}, got {std:.2g}. {more}"
        )


def check_float32(privatizer: Privatizer, problem: Problem, epsilon: float, scale: float) -> None:
    """Raises unless float32 can compute with the noise: more than accounting, which is done in float64, needs.

    Bits that are flipped with probability 1/2 - 2^-26 or more are all alike to it.
    """
    if not privatizer.private or scale == 0.0:
        return
    with np.errstate(all="ignore"):
        found = _variances(privatizer, problem, np.float32(scale))
    if not np.all(np.isfinite(found)):
        raise ValueError(
            f"Expected epsilon={epsilon} to mean noise that float32 can compute with, got a scale of {scale:.2g} for "
            f"{privatizer.name}. Pass a larger epsilon."
        )


def _variances(privatizer: Privatizer, problem: Problem, scale: Any) -> Any:
    """Largest variances of one count of each family, computed in the type of the scale."""
    worst = type(scale)(privatizer.strategy.worst_units(privatizer.num_leaves(problem)))
    return privatizer.law.variance(np, privatizer.report, problem.shape, scale, worst)


def noise_scale(
    privatizer: Privatizer,
    problem: Problem,
    epsilon: float,
    *,
    dp_delta: float | None = None,
    calibration: str = "tight",
) -> float:
    """Scale of one noise draw for a target epsilon (pure) or (epsilon, dp_delta).

    Tight: what the privatizer's law needs for the moves of its worst pair of neighbours: L1 levels / epsilon for
    Laplace noise on a tree and z(epsilon, dp_delta) L2 ||C|| for Gaussian noise. Sampled reports pay for one step.
    Centred costs: 5 H of the 6 H in L1, or 3 H of the 4 H of two families (see `sensitivity`).

    Args:
      privatizer: the mechanism.
      problem: sizes, neighbours, schedule.
      epsilon: > 0; inf gives 0.
      dp_delta: None for a pure target.
      calibration: "tight", which gives what it says, or one that the privatizer declares.
    Returns:
      The scale of a draw, rounded up.
    Privacy: ask `guarantee` what the scale gives.
    Reference: Chowdhury and Zhou, AAAI 2022, for `printed`; their released code for `published_code`.
    """
    privatizer.check(problem, calibration)
    _validate.epsilon(epsilon)
    if dp_delta is not None:
        _check_dp_delta(dp_delta)
    if not privatizer.private or math.isinf(epsilon):
        return privatizer.law.scale_for(privatizer.moves(problem), epsilon, dp_delta) if not privatizer.private else 0.0
    if epsilon < _LEAST_EPSILON:
        raise ValueError(f"Expected epsilon={epsilon} >= {_LEAST_EPSILON} to be able to compute with it. Pass more.")
    if calibration == "tight":
        try:
            return privatizer.scale_for(problem, epsilon, dp_delta)
        except OverflowError:
            raise ValueError(f"Expected epsilon={epsilon} to be large enough to compute with. Pass more.") from None
    if dp_delta is not None:
        raise ValueError(f"calibration='{calibration}' is defined for a pure target. Use calibration='tight'.")
    return dict(privatizer.calibrations)[calibration].scale(problem, epsilon)


def _number(value: float) -> str:
    """Four digits, for people: 0.07021, 1e-5, inf; rounded up, as an epsilon must not look smaller than it is."""
    if math.isfinite(value) and value > 0:
        unit = 10.0 ** (math.floor(math.log10(value)) - 3)
        value = math.ceil(value / unit * (1 - 1e-9)) * unit
    return f"{value:.4g}".replace("e-0", "e-").replace("e+0", "e")


@dataclass(frozen=True)
class Guarantee:
    """The privacy that a noise scale gives, whatever epsilon was asked for.

    Attributes:
      privatizer: name of the mechanism.
      model: "JDP", "LDP", "SDP" or "none".
      epsilon_pure: pure epsilon that holds, inf if none does.
      epsilon_at_delta: {dp_delta: epsilon} that hold as well.
      neighbours: "replace" or "add_remove".
      unit: what one user contributes.
      max_episodes: the guarantee ends after so many episodes.
      calibration: how the scale was chosen.
      noise_scale: scale of one draw.
      sensitivity_l1: of one user's whole report.
      sensitivity_l2: likewise.
      levels: released sums one user is part of.
      nominal_epsilon: what was asked for, or None.
      nominal_dp_delta: what was asked for, or None for a pure target.
      statement: one plain sentence.
      unaccounted: why no guarantee is known for noise that is added all the same; empty for all that is accounted.
    """

    privatizer: str
    model: str
    epsilon_pure: float
    epsilon_at_delta: dict[float, float]
    neighbours: str
    unit: str
    max_episodes: int
    calibration: str
    noise_scale: float
    sensitivity_l1: float
    sensitivity_l2: float
    levels: int
    nominal_epsilon: float | None = None
    nominal_dp_delta: float | None = None
    statement: str = ""
    unaccounted: str = ""

    @property
    def holds(self) -> bool:
        """Whether the nominal target, if there is one, is true."""
        if self.nominal_epsilon is None:
            return True
        delta = self.nominal_dp_delta
        real = self.epsilon_pure if delta is None else self.epsilon_at_delta.get(delta, self.epsilon_pure)
        return real <= self.nominal_epsilon * (1 + 1e-9)

    def _claim(self) -> str:
        """What holds, in the form of the target: "ε=1 (JDP)" or "(1, 1e-5)-JDP"."""
        approximate = self.nominal_dp_delta is not None or math.isinf(self.epsilon_pure)
        if approximate and self.epsilon_at_delta:
            dp_delta = self.nominal_dp_delta
            if dp_delta not in self.epsilon_at_delta:
                dp_delta = min(self.epsilon_at_delta)
            return f"({_number(self.epsilon_at_delta[dp_delta])}, {_number(dp_delta)})-{self.model}"
        return f"ε={_number(self.epsilon_pure)} ({self.model})"

    @property
    def label(self) -> str:
        """Short text for a legend; a nominal epsilon that does not hold is shown beside what does."""
        if self.unaccounted:
            nominal = self.nominal_epsilon
            noisy = nominal is not None and math.isfinite(nominal)
            return f"published code, {f'nominal ε={nominal:.4g}' if noisy else 'no noise'}: not private"
        found = self.epsilon_at_delta.values()
        nothing = (
            bool(found) and self.nominal_epsilon is None and not any(map(math.isfinite, (self.epsilon_pure, *found)))
        )
        if self.noise_scale == 0.0 or self.model == "none" or nothing:
            return "no privacy"
        if self.holds:
            return self._claim()
        holds = self._claim().removesuffix(f" ({self.model})")
        return f"nominal ε={_number(self.nominal_epsilon or math.nan)}, holds: {holds} ({self.calibration})"

    def to_json(self) -> dict[str, Any]:
        """All fields and the label as JSON-safe values; infinity is the string "inf", dp_delta keys are strings."""

        def safe(value: Any) -> Any:
            if isinstance(value, dict):
                return {str(key): safe(item) for key, item in value.items()}
            return "inf" if isinstance(value, float) and math.isinf(value) else value

        names = [name for name in self.__dataclass_fields__ if name != "unaccounted"]
        return {name: safe(getattr(self, name)) for name in (*names, "label")}


def _statement(result: Guarantee) -> str:
    """The guarantee as one plain sentence."""
    if result.unaccounted:
        return f"Not private: {result.unaccounted}"
    if result.noise_scale == 0.0 or result.model == "none":
        return "No privacy: the exact counts are released."
    model = {
        "JDP": "joint differential privacy (JDP, through the billboard lemma)",
        "LDP": "local differential privacy (LDP)",
        "SDP": "shuffle differential privacy (SDP: users trust a shuffler, not the agent)",
    }[result.model]
    pairs = [f"({_number(e)}, {_number(d)})" for d, e in result.epsilon_at_delta.items() if math.isfinite(e)]
    pure = [f"epsilon={_number(result.epsilon_pure)}"] if math.isfinite(result.epsilon_pure) else []
    relation = {"replace": "one user replaced", "add_remove": "one user's contribution removed"}[result.neighbours]
    what = f"{' and '.join(pure + pairs)} {model}" if pure or pairs else "no finite epsilon"
    text = f"{what}; {result.unit}, {relation}, at most {result.max_episodes} episodes."
    if result.holds:
        return text
    nominal = _number(result.nominal_epsilon or math.nan)
    return f"The nominal epsilon={nominal} does not hold ({result.calibration}); what holds is {text}"


def guarantee(
    privatizer: Privatizer,
    problem: Problem,
    noise_scale: float,
    *,
    dp_deltas: tuple[float, ...] = (1e-5,),
    calibration: str = "tight",
    nominal_epsilon: float | None = None,
    nominal_dp_delta: float | None = None,
) -> Guarantee:
    """The privacy that a noise scale gives: the inverse of `noise_scale`.

    Args:
      privatizer: the mechanism, whose law answers.
      problem: sizes, neighbours, schedule.
      noise_scale: scale of one draw, >= 0.
      dp_deltas: each gets its epsilon.
      calibration: label only, and checked to exist.
      nominal_epsilon: the epsilon asked for, if any.
      nominal_dp_delta: its dp_delta; None for a pure target.
    Returns:
      Guarantee.
    Privacy: what is returned holds whatever the calibration.
    Reference: Hsu et al. 2014 for the billboard lemma; Koskela et al. 2020 for privacy loss distributions.
    """
    privatizer.check(problem, calibration)
    check_noise_scale(noise_scale)
    asked = f"noise_scale={noise_scale}"
    _check_range(privatizer, problem, noise_scale, asked, "Pass a smaller noise_scale.", "Use 0 for no noise.")
    deltas = tuple(dict.fromkeys([*dp_deltas, *([] if nominal_dp_delta is None else [nominal_dp_delta])]))
    for dp_delta in deltas:
        _check_dp_delta(dp_delta)
    pure, at_delta = math.inf, dict.fromkeys(deltas, math.inf)
    if privatizer.private and noise_scale > 0:
        pure, at_delta = privatizer.law.epsilons(privatizer.moves(problem), noise_scale, deltas)
    moved = privatizer.sensitivity(problem)
    fields: dict[str, Any] = {
        "privatizer": privatizer.name,
        "model": privatizer.trust,
        "epsilon_pure": pure,
        "epsilon_at_delta": at_delta,
        "neighbours": problem.neighbours,
        "unit": "one user = one episode",
        "max_episodes": int(problem.num_episodes),
        "calibration": calibration,
        "noise_scale": float(noise_scale),
        "sensitivity_l1": moved.l1,
        "sensitivity_l2": moved.l2,
        # Entries of a column that are all 0 or 1 say which sums hold a leaf: they add up to their sum of squares.
        "levels": privatizer.strategy.levels(privatizer.num_leaves(problem)),
        "nominal_epsilon": nominal_epsilon,
        "nominal_dp_delta": nominal_dp_delta,
        "unaccounted": getattr(privatizer.law, "unaccounted", ""),
    }
    return Guarantee(**fields, statement=_statement(Guarantee(**fields)))


class Calibrated(NamedTuple):
    """What a privatizer and a learner need for one target.

    Attributes:
      noise_scale: scale of one draw.
      errors: ErrorTable, f64[rows] per family.
      guarantee: what holds.
    """

    noise_scale: float
    errors: ErrorTable
    guarantee: Guarantee


def calibrate(
    privatizer: Privatizer,
    problem: Problem,
    epsilon: float,
    *,
    dp_delta: float = 1e-5,
    target: str | None = None,
    calibration: str = "tight",
    failure_prob: float = 0.1,
    time_varying: bool = False,
) -> Calibrated:
    """Noise scale, error tables and guarantee for one target.

    Args:
      privatizer: the mechanism.
      problem: sizes, neighbours, schedule.
      epsilon: > 0; inf means no noise. Ignored where nobody is protected.
      dp_delta: used by an approximate target, and always reported on.
      target: "pure", "approximate", or None for the mechanism's own.
      calibration: "tight", or one that the privatizer declares.
      failure_prob: of the learner's confidence sets.
      time_varying: errors by release rather than the worst case.
    Returns:
      Calibrated.
    Privacy: as stated by the guarantee.
    """
    privatizer.check(problem, calibration)
    target = _validate.one_of("target", privatizer.target if target is None else target, TARGETS)
    if target == "pure" and not privatizer.law.pure:
        raise ValueError(f"{privatizer.name} has no pure epsilon. Use target='approximate' with a dp_delta.")
    _validate.epsilon(epsilon)
    _check_dp_delta(dp_delta)
    nominal = None if target == "pure" else dp_delta
    scale = noise_scale(privatizer, problem, epsilon, dp_delta=nominal, calibration=calibration)
    check_noise_scale(scale)
    asked = f"epsilon={epsilon}"
    _check_range(privatizer, problem, scale, asked, "Pass a larger epsilon.", "Use epsilon=inf for no privacy.")
    errors = error_table(privatizer, problem, scale, failure_prob, calibration=calibration, time_varying=time_varying)
    noiseless = not privatizer.private and scale == 0.0
    result = guarantee(
        privatizer,
        problem,
        scale,
        dp_deltas=(dp_delta,),
        calibration=calibration,
        nominal_epsilon=math.inf if noiseless else epsilon,
        nominal_dp_delta=nominal,
    )
    return Calibrated(scale, errors, result)
