"""Where every epsilon comes from: sensitivity, noise scales, and the guarantee that a noise scale really gives.

Host side (NumPy, SciPy, dp-accounting). One user is one episode; neighbours replace one user unless said otherwise.
"""

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from scipy import special

from jaxprivrl import precision as tables
from jaxprivrl.precision import FAMILIES, Mechanism, Precision, Problem, check_calibration, check_problem, mechanism

MECHANISMS = tables.MECHANISMS
BLT_PARAMETERS = tables.BLT_PARAMETERS
blt_parameters = tables.blt_parameters
CALIBRATIONS = ("tight", "printed", "published_code")
NEIGHBOURS = ("replace", "add_remove")
_MAX_COORDINATES = 30_000  # beyond it the composition is bounded in closed form
_MIN_LOSS = 1e-6  # per coordinate; below it a discretised loss distribution loses digits
_ROUND_OFF = 1e-12  # added to every delta that comes out of an FFT


class Sensitivity(NamedTuple):
    """Largest change of one user's whole released vector, before tree levels.

    Attributes:
      per_family_l1: {family: L1}, released families only.
      per_family_l2: {family: L2}.
      l1: sum over families.
      l2: root of the sum of squares over families.
    """

    per_family_l1: dict[str, float]
    per_family_l2: dict[str, float]
    l1: float
    l2: float


def _check_neighbours(neighbours: str) -> None:
    if neighbours not in NEIGHBOURS:
        raise ValueError(f"Unknown neighbours '{neighbours}'. Available: {', '.join(NEIGHBOURS)}.")


def _check_epsilon(epsilon: float) -> None:
    if math.isnan(epsilon) or epsilon <= 0:
        raise ValueError(f"Expected epsilon={epsilon} > 0. Use epsilon=inf for no privacy.")


def _check_dp_delta(dp_delta: float) -> None:
    if not 0.0 < dp_delta < 1.0:
        raise ValueError(f"Expected 0 < dp_delta={dp_delta} < 1. Pass a probability such as dp_delta=1e-5.")


def sensitivity(problem: Problem, neighbours: str = "replace") -> Sensitivity:
    """L1 and L2 sensitivity of one user's counts.

    At each step a user adds 1 (costs: at most 1) to one cell of each family. Replacing the user moves two cells:
      stage-dependent counts: L1 = 2H, L2 = sqrt(2H);   pooled over h: L1 = 2H, L2 = sqrt(2) H (all steps in one cell).
    Setting the contribution to zero (add_remove) moves one: H and sqrt(H), pooled H and H.

    Args:
      problem: sizes; S and A do not matter.
      neighbours: "replace" or "add_remove" (the user's contribution set to zero, the slot stays).
    Returns:
      Sensitivity of the released families.
    Privacy: relies on costs in [0, 1]; the privatizer clips them.
    Reference: the replace-one factor 2 is missing in Chowdhury and Zhou, AAAI 2022, and in Vietri et al., ICML 2020.
    """
    check_problem(problem)
    _check_neighbours(neighbours)
    cells, H, F = (2 if neighbours == "replace" else 1), problem.horizon, problem.families
    l1 = float(cells * H)
    l2 = math.sqrt(cells) * H if problem.homogeneous else math.sqrt(cells * H)
    names = FAMILIES if F == 3 else FAMILIES[1:]
    return Sensitivity(dict.fromkeys(names, l1), dict.fromkeys(names, l2), F * l1, math.sqrt(F) * l2)


def levels(privatizer: str, problem: Problem) -> int:
    """Released nodes that one user is part of: floor(log2 K) + 1 for a tree, 1 for the others."""
    check_problem(problem)
    return mechanism(privatizer).levels(problem.num_episodes)


def _reported(mech: Mechanism, problem: Problem) -> Problem:
    """The problem whose sensitivity counts: what one user's report holds before the noise.

    `local_sampled` reports one step; `local_bernoulli` randomises the bits of each step before any pooling.
    """
    if mech.stream == "sampled":
        return problem._replace(horizon=1, homogeneous=False)
    return problem._replace(homogeneous=False) if mech.noise == "bernoulli" else problem


def _moved(mech: Mechanism, problem: Problem, neighbours: str) -> tuple[int, float]:
    """Worst pair of neighbours: number of noisy coordinates that move (over all nodes), and by how much each.

    Stage-dependent: each moves by at most 1, and 2 H families levels of them do. Pooled: per node and family the
    positive part of the shift sums to at most H, the negative part too, and Lap noise with one shift of H dominates
    any split of it, as e^{-|y-theta|}/2 is the Green function of 1 - d^2/dtheta^2: the split pair, moved along the
    diagonal, has density m with m - m'' >= 0 and |m'| <= m, so it is a post-processing of the single shift.
    """
    reported = _reported(mech, problem)
    cells = (2 if neighbours == "replace" else 1) * reported.families * mech.levels(reported.num_episodes)
    return (cells, float(reported.horizon)) if reported.homogeneous else (cells * reported.horizon, 1.0)


def _largest(keeps: Callable[[float], bool], low: float, tolerance: float) -> float:
    """Largest x with keeps(x), rounded down, from a `low` that keeps; what is returned was tested or is `low`."""
    high = 2.0 * low
    while keeps(high):
        low, high = high, 2.0 * high
    while high - low > tolerance * low:
        middle = 0.5 * (low + high)
        low, high = (middle, high) if keeps(middle) else (low, middle)
    return low


def _smallest(keeps: Callable[[float], bool], high: float) -> float:
    """Smallest x >= 0 with keeps(x), rounded up, from a `high` that keeps."""
    if keeps(0.0):
        return 0.0
    low = 0.0
    while high - low > 1e-11 * high:
        middle = 0.5 * (low + high)
        low, high = (low, middle) if keeps(middle) else (middle, high)
    return high


def _randomized_response_delta(n: int, loss: float, epsilon: float) -> float:
    """delta(epsilon) of n randomised responses of `loss` each, exact; an upper bound for any n mechanisms of that loss.

    Reference: Kairouz, Oh and Viswanath, ICML 2015: randomised response is the worst of all loss-DP mechanisms.
    """
    flip = float(special.expit(-loss))
    centre, width = n * flip, 40.0 * math.sqrt(n * flip) + 40.0
    j = np.arange(max(0, math.floor(centre - width)), min(n, math.ceil(centre + width)) + 1)
    log_pmf = special.gammaln(n + 1) - special.gammaln(j + 1) - special.gammaln(n - j + 1)
    log_pmf += special.xlogy(j, flip) + special.xlog1py(n - j, -flip)
    gap = np.minimum(epsilon - loss * (n - 2.0 * j), 0.0)
    return float(np.sum(np.exp(log_pmf) * -np.expm1(gap))) * (1 + 1e-6) + _ROUND_OFF


@functools.lru_cache(maxsize=4)
def _laplace_pld(n: int, loss: float) -> Any:
    """Pessimistic privacy loss distribution of n Laplace coordinates, on a grid of a tenth of one's loss or finer."""
    from dp_accounting.pld import privacy_loss_distribution

    parts = max(10, min(math.ceil(20 * loss), 4096, 2**18 // n))
    pld = privacy_loss_distribution.from_laplace_mechanism(1 / loss, value_discretization_interval=loss / parts)
    return pld.self_compose(n)


def _delta(noise: str, n: int, loss: float, epsilon: float) -> float:
    """Upper bound on delta(epsilon) of n coordinates of pure loss `loss` each; 0 from the pure epsilon n loss on."""
    if epsilon >= n * loss:
        return 0.0
    if noise == "bernoulli" or n > _MAX_COORDINATES or loss < _MIN_LOSS:
        return _randomized_response_delta(n, loss, epsilon)
    return float(_laplace_pld(n, loss).get_delta_for_epsilon(epsilon)) + _ROUND_OFF


@functools.lru_cache(maxsize=4096)
def _epsilon_at(noise: str, n: int, loss: float, dp_delta: float) -> float:
    """Smallest epsilon with delta(epsilon) <= dp_delta, rounded up; never above the pure epsilon n loss."""
    return _smallest(lambda epsilon: _delta(noise, n, loss, epsilon) <= dp_delta, n * loss)


@functools.lru_cache(maxsize=4096)
def _loss_for(noise: str, n: int, epsilon: float, dp_delta: float) -> float:
    """Largest loss of one of n coordinates that keeps (epsilon, dp_delta), rounded down; at least epsilon / n."""
    target = epsilon * (1 - 1e-9)
    return _largest(lambda loss: _delta(noise, n, loss, target) <= dp_delta, target / n, 1e-6)


def gaussian_delta(shift: float, epsilon: float) -> float:
    """delta(epsilon) of N(0, 1) against N(shift, 1), exact and without cancellation.

    delta = Phi(shift/2 - epsilon/shift) - e^epsilon Phi(-shift/2 - epsilon/shift)
    Reference: Balle and Wang, ICML 2018, Theorem 8.
    """
    y, x = shift / 2 - epsilon / shift, shift / 2 + epsilon / shift  # e^epsilon phi(x) = phi(y)
    second = 0.5 * special.erfcx(x / math.sqrt(2))
    if y > 0:
        return float(special.ndtr(y) - math.exp(-y * y / 2) * second)
    return math.exp(-y * y / 2) * float(0.5 * special.erfcx(-y / math.sqrt(2)) - second)


@functools.lru_cache(maxsize=4096)
def gaussian_multiplier(epsilon: float, dp_delta: float) -> float:
    """z with sigma = z * L2 sensitivity for (epsilon, dp_delta), rounded up: the analytic Gaussian mechanism."""
    target, log_inverse = epsilon * (1 - 1e-9), -math.log(dp_delta)
    shift = math.sqrt(2) * target / (math.sqrt(log_inverse + target) + math.sqrt(log_inverse))  # keeps it (zCDP)
    return 1.0 / _largest(lambda mu: gaussian_delta(mu, target) <= dp_delta, shift, 1e-12)


@functools.lru_cache(maxsize=4096)
def gaussian_epsilon(shift: float, dp_delta: float) -> float:
    """Smallest epsilon with gaussian_delta(shift, epsilon) <= dp_delta, rounded up; shift = L2 sensitivity / sigma."""
    enough = shift * shift / 2 + shift * math.sqrt(-2 * math.log(dp_delta))
    return _smallest(lambda epsilon: gaussian_delta(shift, epsilon) <= dp_delta, enough)


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
    `local_sampled`: 2 families / epsilon, as one uniformly drawn step is reported, weighted by H afterwards.

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
      coordinates; drawing one family too would give 2 / epsilon and the weight H families.
    Reference: Chowdhury and Zhou, AAAI 2022, for `printed`; their released code for `published_code`; Wang et al.,
      USENIX Security 2017, for unequal flips.
    """
    mech = check_calibration(privatizer, problem, calibration)
    _check_neighbours(neighbours)
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
    n, shift = _moved(mech, problem, neighbours)
    return shift * n / epsilon if dp_delta is None else shift / _loss_for(mech.noise, n, epsilon, dp_delta)


def _number(value: float) -> str:
    """Four digits, for people: 0.07021, 1e-5, inf."""
    return f"{value:.4g}".replace("e-0", "e-").replace("e+0", "e")


@dataclass(frozen=True)
class Guarantee:
    """The privacy that a noise scale gives, whatever epsilon was asked for.

    Attributes:
      privatizer: name of the mechanism.
      model: "JDP", "LDP" or "none".
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
    too large or too fine). Bits: composed randomised responses. Gaussian: no pure epsilon, the analytic formula.

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
    _check_neighbours(neighbours)
    tables.check_noise_scale(noise_scale)
    deltas = dict.fromkeys([*dp_deltas, *([] if nominal_dp_delta is None else [nominal_dp_delta])])
    for dp_delta in deltas:
        _check_dp_delta(dp_delta)
    pure, at_delta = math.inf, dict.fromkeys(deltas, math.inf)
    if mech.noise == "gaussian" and noise_scale > 0:
        mu = sensitivity(problem, neighbours).l2 * mech.factor(problem.num_episodes) / noise_scale
        at_delta = {dp_delta: gaussian_epsilon(mu, dp_delta) for dp_delta in deltas}
    elif mech.noise != "none" and noise_scale > 0:
        n, shift = _moved(mech, problem, neighbours)
        pure = n * shift / noise_scale
        at_delta = {dp_delta: _epsilon_at(mech.noise, n, shift / noise_scale, dp_delta) for dp_delta in deltas}
    moved = sensitivity(_reported(mech, problem), neighbours)
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
