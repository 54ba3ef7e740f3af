"""How far a noisy count may lie from the true one: standard deviations and high-probability errors.

Host side (NumPy, SciPy). Everything here is public: it depends on sizes and noise scales, never on data.
"""

import functools
import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from scipy import optimize, special

from jaxprivrl.sensitivity import FAMILIES, Problem, check_problem
from jaxprivrl.strategies import (
    CALIBRATIONS,
    Mechanism,
    batch_end,
    honaker_variance,
    mechanism,
    noise_norms,
    num_batches,
    shuffle_size,
)

LOG_BUCKETS_PER_OCTAVE = 8


class Precision(NamedTuple):
    """Two-sided high-probability error (or std) of each family, by bucket of the number k of released episodes.

    Attributes:
      visits: f32[M], M = num_buckets(bucket_kind(privatizer), K).
      costs: f32[M].
      transitions: f32[M].
    """

    visits: np.ndarray
    costs: np.ndarray
    transitions: np.ndarray


def check_noise_scale(noise_scale: float) -> None:
    """Raises ValueError unless the scale is finite and not negative."""
    if not (math.isfinite(noise_scale) and noise_scale >= 0):
        raise ValueError(f"Expected noise_scale={noise_scale} to be finite and >= 0. Use 0 for no noise.")


def check_calibration(privatizer: str, problem: Problem, calibration: str) -> Mechanism:
    """Returns the mechanism; raises ValueError unless the calibration is defined for this privatizer and problem."""
    check_problem(problem)
    mech = mechanism(privatizer)
    if calibration not in CALIBRATIONS:
        raise ValueError(f"Unknown calibration '{calibration}'. Available: {', '.join(CALIBRATIONS)}.")
    if problem.centred_costs and mech.noise != "none" and not mech.additive:
        raise ValueError(
            f"{privatizer} does not add noise to counts, so it has no centred_costs. Leave them as they are."
        )
    if mech.noise == "none" or calibration == "tight":
        return mech
    if problem.centred_costs:
        raise ValueError(f"calibration='{calibration}' is defined for costs as they are. Use 'tight' to centre them.")
    if calibration not in mech.calibrations:
        raise ValueError(f"calibration='{calibration}' is not defined for {privatizer}. Use calibration='tight'.")
    if problem.families != 3:
        raise ValueError(f"calibration='{calibration}' is defined for families=3, got {problem.families}. Use 'tight'.")
    if calibration == "printed" and mech.stream == "tree" and problem.num_episodes == 1:
        raise ValueError("calibration='printed' has no noise at num_episodes=1 (ln 1 = 0). Use calibration='tight'.")
    return mech


def bucket_kind(privatizer: str) -> str:
    """How a release after k episodes indexes its tables: "popcount" (trees), "batches", "rounds", "log" or "none"."""
    stream = mechanism(privatizer).stream
    kinds = {"none": "none", "tree": "popcount", "honaker": "popcount", "batched": "batches", "shuffled": "rounds"}
    return kinds.get(stream, "log")


def num_buckets(kind: str, num_episodes: int) -> int:
    """Length M of a table: one more than the largest bucket of K episodes; 257 for "log" whatever K."""
    if kind not in ("popcount", "batches", "rounds", "log", "none"):
        raise ValueError(f"Unknown bucket kind '{kind}'. Available: popcount, batches, rounds, log, none.")
    K = int(num_episodes)
    sizes = {"popcount": K.bit_length() + 1, "batches": num_batches(K) + 1, "rounds": K // shuffle_size(K) + 1}
    return (sizes | {"log": 1 + 32 * LOG_BUCKETS_PER_OCTAVE, "none": 1})[kind]


def bucket(kind: str, k: int, num_episodes: int | None = None) -> int:
    """Index of the release after k episodes.

    popcount(k); num_batches(k); floor(k / shuffle_size(K)), which alone depends on K; 1 + floor(8 log2 k), or 0 for 0.
    """
    if kind == "rounds":
        return int(k) // shuffle_size(int(num_episodes or k))
    if kind in ("popcount", "batches"):
        return int(k).bit_count() if kind == "popcount" else num_batches(k)
    return 0 if kind == "none" or k == 0 else 1 + math.floor(LOG_BUCKETS_PER_OCTAVE * math.log2(k))


def _largest_in_bucket(num_episodes: int) -> np.ndarray:
    """Largest k of each "log" bucket, capped at K; a little more, so that a float32 log2 may fall one bucket short."""
    index = np.arange(num_buckets("log", num_episodes), dtype=np.float64)
    edge = np.minimum(2.0 ** (index / LOG_BUCKETS_PER_OCTAVE) * (1 + 1e-5), float(num_episodes))
    return np.where(index == 0, 0, np.maximum(np.floor(edge), 1)).astype(np.int64)


def _heaviest_below(num_episodes: int, weight: Callable[[int], float]) -> float:
    """max over 0 <= k < K of the sum of weight(j) over the set bits j of k, for positive weights."""
    last = num_episodes - 1
    bits = [j for j in range(last.bit_length()) if last >> j & 1]
    candidates = [sum(map(weight, bits))]
    for i in bits:  # k leaves the prefix of K - 1 at bit i: all lower bits are then free
        candidates.append(sum(weight(j) for j in bits if j > i) + sum(map(weight, range(i))))
    return max(candidates)


@functools.lru_cache(maxsize=65536)
def laplace_sum_quantile(num_terms: int, tail_prob: float) -> float:
    """Two-sided quantile of a sum X of m independent Lap(1): the x with P(|X| > x) = tail_prob, from the exact law.

    X is the difference of two Gamma(m) variables; the m-th arrival of a Poisson process passes x + Gamma(m) exactly if
      P(X > x) = P(Poisson(x) + NegBinomial(m, 1/2) <= m - 1) = sum_j Poisson(x; j) I_{1/2}(m, m - j),
    positive terms only. Terms outside a window that holds all but tail_prob * 1e-13 are added as their upper bound.

    Args:
      num_terms: m >= 0.
      tail_prob: in (0, 1).
    Returns:
      x, rounded up by 1e-9 of itself; 0 if m = 0.
    Reference: Chan, Shi and Song 2011 for the use; the law is that of a symmetric variance-gamma variable.
    """
    if num_terms == 0:
        return 0.0
    m = float(num_terms)
    log_half = math.log(tail_prob / 2)

    def log_tail(x: float) -> float:
        slack = 30.0 - log_half  # Bernstein: P(|Poisson(x) - x| >= width) <= 2 exp(-slack)
        width = slack / 3 + math.sqrt(slack * slack / 9 + 2 * slack * x)
        j = np.arange(max(0.0, math.floor(x - width)), min(m - 1, math.ceil(x + width)) + 1)
        log_poisson = special.xlogy(j, x) - x - special.gammaln(j + 1)
        total = np.sum(np.exp(log_poisson - log_half) * special.betainc(m, m - j, 0.5)) + 2e-13
        return math.log(total)

    upper = 2 * math.sqrt(-m * log_half) - log_half  # Bernstein's bound for sub-gamma variables, above the quantile
    root = optimize.brentq(log_tail, 0.0, upper * (1 + 1e-9) + 1e-9, xtol=1e-12, rtol=1e-11)
    return float(root) * (1 + 1e-9)


def _chernoff_quantile(cgf: Callable[[float], float], variance: float, t_max: float, tail_prob: float) -> float:
    """Smallest Chernoff bound x = min_t (cgf(t) + ln(2 / tail_prob)) / t over 0 < t < t_max; any t gives a valid x."""
    if variance == 0:
        return 0.0
    log_inverse = math.log(2 / tail_prob)
    centre = min(math.sqrt(2 * log_inverse / variance), 0.5 * t_max)
    bounds = (math.log(centre) - 7, min(math.log(centre) + 7, math.log(t_max) - 1e-9))

    def bound(log_t: float) -> float:
        t = math.exp(log_t)
        return math.log(cgf(t) + log_inverse) - log_t

    best = optimize.minimize_scalar(bound, bounds=bounds, method="bounded", options={"xatol": 1e-6})
    return math.exp(min(float(best.fun), bound(math.log(centre))))


def _printed(problem: Problem, mech: Mechanism, noise_scale: float, failure_prob: float) -> list[float]:
    """The paper's E1, E1, E2 with natural logarithms, written with the printed noise scale."""
    H, S, A, K = problem[:4]
    terms = math.log(K) if mech.stream == "tree" else float(K)  # scale 3H ln K / eps and 3H / eps respectively
    pairs = (S * A, S * A, S * S * A)
    return [noise_scale * math.sqrt(8 * terms * math.log(6 * n * K * H / failure_prob)) for n in pairs]


def _round_up(values: np.ndarray) -> np.ndarray:
    """Float32 values that are not below the float64 ones."""
    rounded = np.asarray(values, np.float32)
    return np.where(rounded < values, np.nextafter(rounded, np.float32(np.inf)), rounded)


def _units(mech: Mechanism, num_episodes: int, ks: np.ndarray) -> np.ndarray:
    """Noise of the releases after ks episodes: draws in the sum, or its variance in units of one draw. f64 like ks."""
    if mech.stream in ("toeplitz", "blt", "batched"):
        return np.square(noise_norms(mech.stream, num_episodes, ks))
    if mech.stream == "tree":
        return np.array([float(int(k).bit_count()) for k in ks])
    if mech.stream == "honaker":
        return np.array([math.fsum(honaker_variance(j) for j in range(int(k).bit_length()) if k >> j & 1) for k in ks])
    if mech.stream == "shuffled":  # users in closed batches
        size = shuffle_size(num_episodes)
        return (ks // size * size).astype(np.float64)
    return ks.astype(np.float64)


def _bucket_units(privatizer: str, num_episodes: int, time_varying: bool) -> np.ndarray:
    """_units of each bucket: the largest of its own k, or the largest of all releases that a learner uses."""
    mech, kind = mechanism(privatizer), bucket_kind(privatizer)
    size = num_buckets(kind, num_episodes)
    if kind == "popcount" and not time_varying:
        weight = honaker_variance if mech.stream == "honaker" else lambda j: 1.0
        return np.full(size, _heaviest_below(num_episodes, weight))
    if kind == "popcount":
        return _units(mech, num_episodes, 2 ** np.arange(size) - 1)  # the m lowest bits: the worst k of popcount m
    if kind in ("batches", "rounds"):
        step = shuffle_size(num_episodes)
        ends = [
            (batch_end(j) if kind == "batches" else j * step) if time_varying else num_episodes for j in range(size)
        ]
        return _units(mech, num_episodes, np.array(ends))
    return _units(mech, num_episodes, _largest_in_bucket(num_episodes) if time_varying else np.full(size, num_episodes))


def _spread(problem: Problem, family: str) -> int:
    """Released counts that one count of the family sums: S for visits that are derived from transitions."""
    return problem.num_states if family == "visits" and problem.families == 2 else 1


def _shares(mech: Mechanism, problem: Problem) -> tuple[int, int]:
    """(weight of a sampled report, one in how many reports holds a given family): (H, 1), or (H families, families)."""
    families = problem.families if mech.stream == "sampled_family" else 1
    return problem.horizon * families, families


def _variance(mech: Mechanism, problem: Problem, scale: float, units: float, family: str) -> float:
    """Variance of one count (a public upper bound where it depends on data)."""
    H, pooled, spread = problem.horizon, problem.homogeneous, _spread(problem, family)
    if mech.noise == "none":
        return 0.0
    if mech.stream in ("sampled", "sampled_family"):
        W, F = _shares(mech, problem)
        drawing = (H * H * (F - 1) if F > 1 else H * H / 4) if pooled else W - 1
        return units * (drawing + 2 * (W * H if pooled else W) * scale**2 * spread)
    if mech.noise == "bernoulli":
        bits = units * spread * (H if pooled else 1)
        if family == "costs":
            return bits / 4 if scale == 0 else bits / (4 * math.tanh(0.5 / scale) ** 2)
        return 0.0 if scale < 2e-3 else bits / (4 * math.sinh(0.5 / scale) ** 2)
    own = (2.0 if mech.noise == "laplace" else 1.0) * scale**2 * units * spread
    if family == "costs" and problem.centred_costs:  # centred costs and half the visits, whose noises are independent
        return own + _variance(mech, problem, scale, units, "visits") / 4
    return own


def _sampled_cgf(mech: Mechanism, problem: Problem, scale: float, spread: int, t: float) -> float:
    """Bound on the cumulant of one report of one step, or of one family of it, with its weight W; of both signs of t.

    Stage-dependent: W B (x + Lap) - x with B ~ Bernoulli(1/W); the cumulant is convex in x, so x in {0, 1} is worst.
    Pooled: W (x_h + Lap) - sum_h x_h with h uniform, W = H; Hoeffding's t^2 H^2 / 8 for the step, exact for the noise.
    Pooled, with B ~ Bernoulli(1/F) for the family, W = H F: e^{t W x} lies below its chord, so the cumulant is at most
    -t s + ln(a + b s), s = sum_h x_h, which is concave in s.
    """
    H, (W, F) = problem.horizon, _shares(mech, problem)
    noise = -spread * math.log1p(-((t * W * scale) ** 2))
    if problem.homogeneous and F == 1:
        return t * t * H * H / 8 + noise
    if problem.homogeneous:
        if t * W > 600:
            return math.inf
        bounds = []
        for sign in (t, -t):
            a, b = 1 + math.expm1(noise) / F, math.exp(noise) * math.expm1(sign * W) / W
            s = min(max(1 / sign - a / b, 0.0), float(H))
            bounds.append(-sign * s + math.log(a + b * s))
        return max(bounds)
    rest = math.log1p(-1 / W) if W > 1 else -math.inf
    shifts = ((0.0, 0.0), (t * W, -t), (-t * W, t))
    return max(shift + float(np.logaddexp(rest, step + noise - math.log(W))) for step, shift in shifts)


def _error(mech: Mechanism, problem: Problem, scale: float, units: float, family: str, tail_prob: float) -> float:
    """Two-sided error of one count at its tail probability: exact law, or Chernoff for sampled steps and flipped bits.

    A cost is rounded to a bit before it is flipped: only the range 1 / (1 - 2 flip) of the debiased bit is used. The
    error of centred Laplace costs is their own and half that of the visits: while both hold, so does their sum.
    """
    spread = _spread(problem, family)
    if mech.stream in ("sampled", "sampled_family"):
        variance = _variance(mech, problem, scale, units, family)
        t_max = 1 / (_shares(mech, problem)[0] * scale) if scale > 0 else math.inf

        def reports(t: float) -> float:
            return units * _sampled_cgf(mech, problem, scale, spread, t)

        return _chernoff_quantile(reports, variance, t_max, tail_prob)
    if mech.noise == "bernoulli":
        bits = units * spread * (problem.horizon if problem.homogeneous else 1)
        gap = 1.0 if scale == 0 else math.tanh(0.5 / scale)  # 1 - 2 flip
        flip = 0.0 if scale < 2e-3 else 1 / (1 + math.exp(1 / scale))
        if family == "costs":
            return math.sqrt(0.5 * bits * math.log(2 / tail_prob)) / gap

        def cgf(t: float) -> float:
            u = t / gap
            return bits * (float(np.logaddexp(math.log1p(-flip), math.log(flip) + u)) - flip * u)

        variance = _variance(mech, problem, scale, units, family)
        return min(_chernoff_quantile(cgf, variance, math.inf, tail_prob), bits * (1 - flip) / gap)
    if mech.noise == "laplace":
        own = scale * laplace_sum_quantile(round(units) * spread, tail_prob)
        halved = family == "costs" and problem.centred_costs
        return own + (0.5 * _error(mech, problem, scale, units, "visits", tail_prob) if halved else 0.0)
    return math.sqrt(_variance(mech, problem, scale, units, family)) * -float(special.ndtri(tail_prob / 2))


def standard_deviation(
    privatizer: str, problem: Problem, noise_scale: float, ks: np.ndarray | None = None
) -> Precision:
    """Standard deviation of the noise on one count of each family in the releases after ks episodes.

    Tree: scale sqrt(2 popcount(k)) (Gaussian: without the 2); Honaker: the nodes' own variances; Toeplitz and BLT:
    scale ||b_0..b_{k-1}||_2, by batch if batched; local: sqrt(k) times one report's. Exact for additive noise; for
    sampled steps and the costs of `local_bernoulli` a public upper bound, as sampling and rounding
    variance depend on the data.

    Args:
      privatizer: name in MECHANISMS.
      problem: sizes.
      noise_scale: scale of one draw.
      ks: i[N], numbers of released episodes; None for a table by bucket (largest std of each bucket), N = M.
    Returns:
      Precision of f32[N].
    Privacy: a public function of sizes.
    """
    mech = check_calibration(privatizer, problem, "tight")
    K = int(problem.num_episodes)
    units = _bucket_units(privatizer, K, True) if ks is None else _units(mech, K, np.asarray(ks, np.int64))
    rows = ([math.sqrt(_variance(mech, problem, noise_scale, u, family)) for u in units] for family in FAMILIES)
    return Precision(*(_round_up(np.asarray(row)) for row in rows))


def precision(
    privatizer: str,
    problem: Problem,
    noise_scale: float,
    failure_prob: float,
    *,
    calibration: str = "tight",
    time_varying: bool = False,
) -> Precision:
    """Table of the two-sided error that all counts of a family keep within, in all episodes, with high probability.

    Each count of visits and costs exceeds its error with probability at most failure_prob / (3 S A T) per release,
    each count of transitions with failure_prob / (3 S^2 A T), T = K H: a union bound leaves 1 - failure_prob.
    The law is exact for Laplace and Gaussian noise, an optimised Chernoff bound for the other mechanisms; `printed` is
    the paper's E1 = (3H/eps) sqrt(8 ln^3 K ln(6SAT/failure_prob)) (local: K for ln^3 K), E2 with 6S^2AT.

    Args:
      privatizer: name in MECHANISMS.
      problem: sizes.
      noise_scale: scale of one draw, as `accounting.noise_scale` returns it; at 0 every privatizer, those that round
        or sample included, releases the counts themselves.
      failure_prob: in (0, 1).
      calibration: "tight", "printed" or "published_code".
      time_varying: False repeats the worst case (of any release a learner uses) in every bucket, also for k = 0;
        True gives each bucket the largest error of its own k, and 0 for k = 0.
    Returns:
      Precision of f32[M], rounded up. A derived family (visits, families=2) carries the noise of S transitions.
    Privacy: a public function of sizes; using it costs nothing.
    Reference: Chowdhury and Zhou, AAAI 2022, Assumption on the privatizer and the lemmas on both privatizers.
    """
    mech = check_calibration(privatizer, problem, calibration)
    if not 0.0 < failure_prob < 1.0:
        raise ValueError(f"Expected 0 < failure_prob={failure_prob} < 1. Pass a probability such as failure_prob=0.1.")
    check_noise_scale(noise_scale)
    size = num_buckets(bucket_kind(privatizer), problem.num_episodes)
    if mech.noise == "none" or noise_scale == 0.0:
        return Precision(*(np.zeros(size, np.float32) for _ in FAMILIES))
    if calibration == "printed":
        if time_varying:
            raise ValueError("calibration='printed' has no time-varying error. Use calibration='tight'.")
        values = _printed(problem, mech, noise_scale, failure_prob)
        return Precision(*(_round_up(np.full(size, value)) for value in values))
    H, S, A, K = problem[:4]
    units = _bucket_units(privatizer, int(K), time_varying)
    distinct, inverse = np.unique(units, return_inverse=True)
    tables = []
    for family in FAMILIES:
        tail_prob = failure_prob / (3.0 * S * A * K * H * (S if family == "transitions" else 1))
        errors = np.array([_error(mech, problem, noise_scale, float(u), family, tail_prob) for u in distinct])
        tables.append(_round_up(errors[inverse]))
    return Precision(*tables)
