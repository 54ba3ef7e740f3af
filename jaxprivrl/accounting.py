"""Where every epsilon comes from: sensitivity, noise scales, and the guarantee that a noise scale really gives.

Host side (NumPy, SciPy, dp-accounting). One user is one episode; neighbours replace one user unless said otherwise.
"""

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

from jaxprivrl import precision as tables
from jaxprivrl.composition import Law, epsilon_at, gaussian_delta, gaussian_epsilon, gaussian_multiplier, loss_for
from jaxprivrl.precision import Precision, check_calibration
from jaxprivrl.sensitivity import NEIGHBOURS, Problem, Sensitivity, check_neighbours, check_problem, sensitivity
from jaxprivrl.sensitivity import step_moves as _step_moves
from jaxprivrl.strategies import (
    BLT_PARAMETERS,
    CALIBRATIONS,
    MECHANISMS,
    Mechanism,
    blt_parameters,
    mechanism,
    shuffle_size,
)

__all__ = [
    "BLT_PARAMETERS",
    "CALIBRATIONS",
    "MECHANISMS",
    "NEIGHBOURS",
    "Calibration",
    "Guarantee",
    "Problem",
    "Sensitivity",
    "blt_parameters",
    "calibrate",
    "gaussian_delta",
    "gaussian_epsilon",
    "gaussian_multiplier",
    "guarantee",
    "levels",
    "noise_scale",
    "sensitivity",
]


def _check_epsilon(epsilon: float) -> None:
    if math.isnan(epsilon) or epsilon <= 0:
        raise ValueError(f"Expected epsilon={epsilon} > 0. Use epsilon=inf for no privacy.")


def _check_dp_delta(dp_delta: float) -> None:
    if not 0.0 < dp_delta < 1.0:
        raise ValueError(f"Expected 0 < dp_delta={dp_delta} < 1. Pass a probability such as dp_delta=1e-5.")


def levels(privatizer: str, problem: Problem) -> int:
    """Released nodes that one user is part of: floor(log2 K) + 1 for a tree, 1 for the others."""
    check_problem(problem)
    return mechanism(privatizer).levels(problem.num_episodes)


def _report(mech: Mechanism, problem: Problem, neighbours: str) -> Sensitivity:
    """Sensitivity of what one user's report holds before the noise.

    The sampled mechanisms report one step, or one family of one step; `local_bernoulli` randomises the bits of each
    step before any pooling.
    """
    if mech.stream not in ("sampled", "sampled_family"):
        return sensitivity(problem._replace(homogeneous=False) if mech.noise == "bernoulli" else problem, neighbours)
    step = sensitivity(problem._replace(horizon=1, homogeneous=False), neighbours)
    if mech.stream == "sampled":
        return step
    return step._replace(l1=max(step.per_family_l1.values()), l2=max(step.per_family_l2.values()))


def _law(mech: Mechanism, problem: Problem) -> Law:
    return Law(mech.noise, shuffle_size(problem.num_episodes) if mech.stream == "shuffled" else 1)


def _moved(mech: Mechanism, problem: Problem, neighbours: str) -> tuple[int, float]:
    """Worst pair of neighbours: number of noisy coordinates that move (over all nodes), and by how much each.

    Stage-dependent: each moves by at most 1, and 2 H families levels of them do. Pooled: per node and family the
    positive part of the shift sums to at most H, the negative part too, and Lap noise with one shift of H dominates
    any split of it, as e^{-|y-theta|}/2 is the Green function of 1 - d^2/dtheta^2: the split pair, moved along the
    diagonal, has density m with m - m'' >= 0 and |m'| <= m, so it is a post-processing of the single shift. The two
    moves of a centred cost sum to 1 at a step, to H pooled, and are such a split.
    """
    pooled = problem.homogeneous and mech.noise != "bernoulli" and mech.stream in ("tree", "local")
    cells = [[math.ceil(sum(x)) for x in case.values()] for case in _step_moves(problem, neighbours).values()]
    if mech.stream == "sampled_family":
        return max(map(max, cells)), 1.0
    n = max(map(sum, cells)) * mech.levels(problem.num_episodes)
    steps = 1 if mech.stream == "sampled" else problem.horizon
    return (n, float(steps)) if pooled else (n * steps, 1.0)


def noise_scale(
    privatizer: str,
    problem: Problem,
    epsilon: float,
    *,
    dp_delta: float | None = None,
    calibration: str = "tight",
    neighbours: str = "replace",
) -> float:
    """Scale of one noise draw for a target epsilon (pure) or (epsilon, dp_delta).

    Laplace, pure: L1 * levels / epsilon; approximate: the smallest scale whose composed privacy loss distribution keeps
    (epsilon, dp_delta). `printed`: 3H ln K / epsilon (central), 3H / epsilon (local); `published_code`: 1 / epsilon.
    Gaussian: z(epsilon, dp_delta) * L2 * factor; factor sqrt(levels) for a tree, ||c||_2 for Toeplitz and BLT, else 1.
    `local_bernoulli`: 1 / scale is the epsilon of one bit, each bit is flipped with probability 1 / (1 + e^{1/scale}).
    `shuffle_batched`: likewise, with the smallest flip probability whose composed sums over a batch keep the target.
    `local_sampled`: 2 families / epsilon, as one uniformly drawn step is reported, weighted by H afterwards;
    `local_sampled_family`: 2 / epsilon, as one family of one step is, weighted by H families.
    Centred costs: 5 H of the 6 H in L1, or 3 H of the 4 H of two families (see `sensitivity`).

    Args:
      privatizer: name in MECHANISMS.
      problem: sizes.
      epsilon: > 0; inf gives 0.
      dp_delta: None for a pure target.
      calibration: one of CALIBRATIONS; only "tight" gives what it says.
      neighbours: "replace" or "add_remove".
    Returns:
      The scale of a draw, rounded up.
    Privacy: ask `guarantee` what the scale gives. Bits: at most two per step and family change (a cost is rounded to
      Bernoulli(c) first, a mixture), so the log-ratio is at most 2 H families / scale; a debiased bit has variance
      e^{x/2} / (e^{x/2} - 1)^2 = cosh(x/4)^2 / sinh(x/2)^2, x = 2 / scale. Unequal flips (keep a one with 1/2, raise a
      zero with 1/(e^x + 1)) have 1 / sinh(x/2)^2 for a zero and coth(x/2)^2 for a one at the same epsilon: cosh(x/4)^2
      better on zeros, which is 1 + 2e-5 at epsilon=1, H=20, and 2.4 only at epsilon = 4 H families; so bits are
      symmetric. A sampled step is drawn independently of the data: a mixture over h of pairs that move 2 families
      coordinates; with one family drawn as well, a mixture of pairs that move 2.
    Reference: Chowdhury and Zhou, AAAI 2022, for `printed`; their released code for `published_code`; Wang et al.,
      USENIX Security 2017, for unequal flips.
    """
    mech = check_calibration(privatizer, problem, calibration)
    check_neighbours(neighbours)
    _check_epsilon(epsilon)
    if dp_delta is not None:
        _check_dp_delta(dp_delta)
    if mech.noise == "none" or math.isinf(epsilon):
        return 0.0
    if calibration != "tight":
        if dp_delta is not None:
            raise ValueError(f"calibration='{calibration}' is defined for a pure target. Use calibration='tight'.")
        if calibration == "published_code":
            return 1.0 / epsilon
        log_K = math.log(problem.num_episodes) if mech.stream == "tree" else 1.0
        return 3.0 * problem.horizon * log_K / epsilon
    if mech.noise == "gaussian":
        if dp_delta is None:
            raise ValueError(f"{privatizer} has no pure epsilon. Use target='approximate' with a dp_delta.")
        l2 = sensitivity(problem, neighbours).l2
        return gaussian_multiplier(epsilon, dp_delta) * l2 * mech.factor(problem.num_episodes) * (1 + 1e-9)
    pure = _report(mech, problem, neighbours).l1 * mech.levels(problem.num_episodes) / epsilon
    if dp_delta is None:
        return pure
    n, shift = _moved(mech, problem, neighbours)
    return min(pure, shift / loss_for(_law(mech, problem), n, epsilon, dp_delta))


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
      sensitivity_l1: of one user's whole released vector, before levels.
      sensitivity_l2: likewise.
      levels: released nodes one user is part of.
      nominal_epsilon: what was asked for, or None.
      nominal_dp_delta: what was asked for, or None for a pure target.
      statement: one plain sentence.
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
        if self.noise_scale == 0.0 or self.model == "none":
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

        return {name: safe(getattr(self, name)) for name in (*self.__dataclass_fields__, "label")}


def _statement(result: Guarantee) -> str:
    """The guarantee as one plain sentence."""
    if result.noise_scale == 0.0 or result.model == "none":
        return "No privacy: the exact counts are released."
    model = {
        "JDP": "joint differential privacy (JDP, through the billboard lemma)",
        "LDP": "local differential privacy (LDP)",
        "SDP": "shuffle differential privacy (SDP: users trust a shuffler, not the agent)",
    }[result.model]
    pairs = [f"({_number(e)}, {_number(d)})" for d, e in result.epsilon_at_delta.items()]
    pure = [f"epsilon={_number(result.epsilon_pure)}"] if math.isfinite(result.epsilon_pure) else []
    relation = {"replace": "one user replaced", "add_remove": "one user's contribution removed"}[result.neighbours]
    what = " and ".join(pure + pairs) or "no finite epsilon"
    text = f"{what} {model}; {result.unit}, {relation}, at most {result.max_episodes} episodes."
    if result.holds:
        return text
    nominal = _number(result.nominal_epsilon or math.nan)
    return f"The nominal epsilon={nominal} does not hold ({result.calibration}); what holds is {text}"


def guarantee(
    privatizer: str,
    problem: Problem,
    noise_scale: float,
    *,
    dp_deltas: tuple[float, ...] = (1e-5,),
    calibration: str = "tight",
    neighbours: str = "replace",
    nominal_epsilon: float | None = None,
    nominal_dp_delta: float | None = None,
) -> Guarantee:
    """The privacy that a noise scale gives: the inverse of `noise_scale`.

    Laplace: epsilon_pure = L1 * levels / scale; epsilon at dp_delta from the composed privacy loss distribution of the
    worst pair (pessimistic, never above epsilon_pure; bounded by composed randomised responses where a grid would be
    too large or too fine). Bits: composed randomised responses, shuffled ones with their privacy blanket. Gaussian: no
    pure epsilon, the analytic formula.

    Args:
      privatizer: name in MECHANISMS.
      problem: sizes.
      noise_scale: scale of one draw, >= 0.
      dp_deltas: each gets its epsilon.
      calibration: label only, and checked to exist.
      neighbours: "replace" or "add_remove".
      nominal_epsilon: the epsilon asked for, if any.
      nominal_dp_delta: its dp_delta; None for a pure target.
    Returns:
      Guarantee.
    Privacy: what is returned holds whatever the calibration.
    Reference: Hsu et al. 2014 for the billboard lemma; Koskela et al. 2020 for privacy loss distributions.
    """
    mech = check_calibration(privatizer, problem, calibration)
    check_neighbours(neighbours)
    tables.check_noise_scale(noise_scale)
    deltas = dict.fromkeys([*dp_deltas, *([] if nominal_dp_delta is None else [nominal_dp_delta])])
    for dp_delta in deltas:
        _check_dp_delta(dp_delta)
    pure, at_delta = math.inf, dict.fromkeys(deltas, math.inf)
    moved = _report(mech, problem, neighbours)
    if mech.noise == "gaussian" and noise_scale > 0:
        mu = moved.l2 * mech.factor(problem.num_episodes) / noise_scale
        at_delta = {dp_delta: gaussian_epsilon(mu, dp_delta) for dp_delta in deltas}
    elif mech.noise != "none" and noise_scale > 0:
        law, (n, shift) = _law(mech, problem), _moved(mech, problem, neighbours)
        pure = moved.l1 * mech.levels(problem.num_episodes) / noise_scale
        at_delta = {d: min(pure, epsilon_at(law, n, shift / noise_scale, d)) for d in deltas}
    fields: dict[str, Any] = {
        "privatizer": privatizer,
        "model": mech.trust,
        "epsilon_pure": pure,
        "epsilon_at_delta": at_delta,
        "neighbours": neighbours,
        "unit": "one user = one episode",
        "max_episodes": int(problem.num_episodes),
        "calibration": calibration,
        "noise_scale": float(noise_scale),
        "sensitivity_l1": moved.l1,
        "sensitivity_l2": moved.l2,
        "levels": mech.levels(problem.num_episodes),
        "nominal_epsilon": nominal_epsilon,
        "nominal_dp_delta": nominal_dp_delta,
    }
    return Guarantee(**fields, statement=_statement(Guarantee(**fields)))


class Calibration(NamedTuple):
    """What a privatizer and a learner need for one target.

    Attributes:
      noise_scale: scale of one draw.
      precision: error tables, f32[M] per family.
      guarantee: what holds.
    """

    noise_scale: float
    precision: Precision
    guarantee: Guarantee


def calibrate(
    privatizer: str,
    problem: Problem,
    epsilon: float,
    *,
    dp_delta: float = 1e-5,
    target: str | None = None,
    calibration: str = "tight",
    neighbours: str = "replace",
    failure_prob: float = 0.1,
    time_varying: bool = False,
) -> Calibration:
    """Noise scale, error tables and guarantee for one target.

    Args:
      privatizer: name in MECHANISMS.
      problem: sizes.
      epsilon: > 0; inf means no noise. Ignored by `exact`.
      dp_delta: used by an approximate target, and always reported on.
      target: "pure", "approximate", or None for the mechanism's own (pure unless its noise is Gaussian).
      calibration: one of CALIBRATIONS.
      neighbours: "replace" or "add_remove".
      failure_prob: of the learner's confidence sets.
      time_varying: errors by episode rather than the worst case.
    Returns:
      Calibration.
    Privacy: as stated by the guarantee.
    """
    mech = check_calibration(privatizer, problem, calibration)
    target = mech.target if target is None else target
    if target not in ("pure", "approximate"):
        raise ValueError(f"Unknown target '{target}'. Available: approximate, pure.")
    if target == "pure" and mech.noise == "gaussian":
        raise ValueError(f"{privatizer} has no pure epsilon. Use target='approximate' with a dp_delta.")
    _check_epsilon(epsilon)
    _check_dp_delta(dp_delta)
    nominal = None if target == "pure" else dp_delta
    scale = noise_scale(privatizer, problem, epsilon, dp_delta=nominal, calibration=calibration, neighbours=neighbours)
    errors = tables.precision(
        privatizer, problem, scale, failure_prob, calibration=calibration, time_varying=time_varying
    )
    result = guarantee(
        privatizer,
        problem,
        scale,
        dp_deltas=(dp_delta,),
        calibration=calibration,
        neighbours=neighbours,
        nominal_epsilon=math.inf if mech.noise == "none" else epsilon,
        nominal_dp_delta=nominal,
    )
    return Calibration(scale, errors, result)
