"""How far a noisy count may lie from the true one: mechanisms, standard deviations and high-probability errors.

Host side (NumPy, SciPy). Everything here is public: it depends on sizes and noise scales, never on data.
"""

import difflib
import functools
import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from scipy import optimize, special

LOG_BUCKETS_PER_OCTAVE = 8
FAMILIES = ("visits", "costs", "transitions")


class Problem(NamedTuple):
    """Public sizes that fix the sensitivity of one user's counts.

    Attributes:
      horizon: H, steps of an episode; one user is one episode.
      num_states: S.
      num_actions: A.
      num_episodes: K, the largest number of episodes that will ever be released.
      homogeneous: True if counts are pooled over the steps h (a stage axis of length 1).
      families: 3 releases visits, costs and transitions; 2 releases costs and transitions, visits are summed over s2.
    """

    horizon: int
    num_states: int
    num_actions: int
    num_episodes: int
    homogeneous: bool = False
    families: int = 3


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


class Mechanism(NamedTuple):
    """What accounting and precision must know about a privatizer.

    Attributes:
      trust: "none", "JDP" (a trusted agent, through the billboard lemma) or "LDP" (each user randomises its report).
      noise: "none", "laplace", "gaussian" or "bernoulli".
      stream: how the noise of a running sum grows: "none", "tree", "honaker", "toeplitz", "blt", "local", "sampled".
      target: default target of a calibration, "pure" or "approximate".
      calibrations: the calibrations that are defined for it.
    """

    trust: str
    noise: str
    stream: str
    target: str
    calibrations: tuple[str, ...] = ("tight",)

    def levels(self, num_episodes: int) -> int:
        """Number of released nodes one user is part of: floor(log2 K) + 1 in a tree, else 1."""
        return int(num_episodes).bit_length() if self.stream in ("tree", "honaker") else 1

    def factor(self, num_episodes: int) -> float:
        """Growth of one user's L1 (Laplace) or L2 (Gaussian) sensitivity: levels, sqrt(levels), ||c||_2, or 1."""
        if self.stream in ("toeplitz", "blt"):
            return strategy_norm(self.stream, int(num_episodes))
        levels = self.levels(num_episodes)
        return math.sqrt(levels) if self.noise == "gaussian" else float(levels)


_ALL = ("tight", "printed", "published_code")
MECHANISMS: dict[str, Mechanism] = {
    "exact": Mechanism("none", "none", "none", "pure"),
    "central_laplace": Mechanism("JDP", "laplace", "tree", "pure", _ALL),
    "local_laplace": Mechanism("LDP", "laplace", "local", "pure", _ALL),
    "central_gaussian": Mechanism("JDP", "gaussian", "tree", "approximate"),
    "central_honaker": Mechanism("JDP", "gaussian", "honaker", "approximate"),
    "central_blt": Mechanism("JDP", "gaussian", "blt", "approximate"),
    "central_toeplitz": Mechanism("JDP", "gaussian", "toeplitz", "approximate"),
    "local_gaussian": Mechanism("LDP", "gaussian", "local", "approximate"),
    "local_bernoulli": Mechanism("LDP", "bernoulli", "local", "pure"),
    "local_sampled": Mechanism("LDP", "laplace", "sampled", "pure"),
}


def mechanism(privatizer: str) -> Mechanism:
    """Looks a privatizer up in MECHANISMS; an unknown name raises with the nearest one."""
    if privatizer not in MECHANISMS:
        near = difflib.get_close_matches(privatizer, MECHANISMS, n=1)
        hint = f" Did you mean '{near[0]}'?" if near else ""
        raise ValueError(f"Unknown privatizer '{privatizer}'.{hint} Available: {', '.join(sorted(MECHANISMS))}.")
    return MECHANISMS[privatizer]


def check_problem(problem: Problem) -> None:
    """Raises ValueError unless all sizes are integers of at least 1 and families is 2 or 3."""
    for name in ("horizon", "num_states", "num_actions", "num_episodes"):
        value = getattr(problem, name)
        if value != int(value) or value < 1:
            raise ValueError(f"Expected {name}={value} >= 1. Pass a whole number for {name}.")
    if problem.families not in (2, 3):
        raise ValueError(f"Expected families={problem.families} in (2, 3). Use 3 as in the paper, 2 to derive visits.")


def check_noise_scale(noise_scale: float) -> None:
    """Raises ValueError unless the scale is finite and not negative."""
    if not (math.isfinite(noise_scale) and noise_scale >= 0):
        raise ValueError(f"Expected noise_scale={noise_scale} to be finite and >= 0. Use 0 for no noise.")


def check_calibration(privatizer: str, problem: Problem, calibration: str) -> Mechanism:
    """Returns the mechanism; raises ValueError unless the calibration is defined for this privatizer and problem."""
    check_problem(problem)
    mech = mechanism(privatizer)
    if calibration not in _ALL:
        raise ValueError(f"Unknown calibration '{calibration}'. Available: {', '.join(_ALL)}.")
    if mech.noise == "none" or calibration == "tight":
        return mech
    if calibration not in mech.calibrations:
        raise ValueError(f"calibration='{calibration}' is not defined for {privatizer}. Use calibration='tight'.")
    if problem.families != 3:
        raise ValueError(f"calibration='{calibration}' is defined for families=3, got {problem.families}. Use 'tight'.")
    if calibration == "printed" and mech.stream == "tree" and problem.num_episodes == 1:
        raise ValueError("calibration='printed' has no noise at num_episodes=1 (ln 1 = 0). Use calibration='tight'.")
    return mech


def bucket_kind(privatizer: str) -> str:
    """How a release after k episodes indexes its tables: "popcount" for trees, "log" for the other noise, "none"."""
    stream = mechanism(privatizer).stream
    return {"none": "none", "tree": "popcount", "honaker": "popcount"}.get(stream, "log")


def num_buckets(kind: str, num_episodes: int) -> int:
    """Length M of a table: floor(log2 K) + 2 for "popcount", 257 for "log" whatever K, 1 for "none"."""
    if kind not in ("popcount", "log", "none"):
        raise ValueError(f"Unknown bucket kind '{kind}'. Available: popcount, log, none.")
    return {"popcount": int(num_episodes).bit_length() + 1, "log": 1 + 32 * LOG_BUCKETS_PER_OCTAVE, "none": 1}[kind]


def bucket(kind: str, k: int) -> int:
    """Index of the release after k episodes: popcount(k); 0 for k = 0, else 1 + floor(8 log2 k); 0."""
    if kind == "popcount":
        return int(k).bit_count()
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


def honaker_variance(height: int) -> float:
    """Variance of a completed node of height j in units of the node noise: 2^j / (2^(j+1) - 1), 1 for a leaf.

    v_j = 1 / (1 + 1 / (2 v_{j-1})): inverse-variance mean of the node and of the sum of its two children's estimates.
    Reference: Honaker 2015, bottom-up estimate.
    """
    return 1.0 / (2.0 - 0.5**height)


# Four buffers per K with the smallest largest error over K releases; benchmarks/tune_blt.py derives them.
_BLT_DECAY = {
    1_000: (0.99921307588763, 0.988704168931374, 0.920926213022951, 0.560810759268476),
    4_000: (0.999770023677118, 0.995979150073636, 0.960048907659551, 0.666771943838433),
    20_000: (0.999945191105423, 0.998776154565806, 0.98187924417987, 0.762697926998466),
    100_000: (0.999986724374142, 0.999612780369445, 0.991576837509619, 0.831868038552588),
    400_000: (0.999996022721818, 0.999850526561084, 0.995531327093117, 0.874677730015381),
    1_000_000: (0.999998204385686, 0.999919248784458, 0.997034812321598, 0.896714938316499),
    4_000_000: (0.999999465763497, 0.999968072775442, 0.998402165516717, 0.923126005098009),
    10_000_000: (0.999999762137113, 0.999982757185854, 0.998940247892122, 0.93694443311706),
}
_BLT_SCALE = {
    1_000: (0.037533957656828, 0.069401533424536, 0.160330165410443, 0.229556878948559),
    4_000: (0.020677026608399, 0.047669436723748, 0.14002243188369, 0.280692165285869),
    20_000: (0.010335240990278, 0.030298763323038, 0.113033551287846, 0.317739778417488),
    100_000: (0.005233692496572, 0.0192349437249, 0.088604700275726, 0.332148112442938),
    400_000: (0.002953578206596, 0.01307137307817, 0.071101957998929, 0.330868560781898),
    1_000_000: (0.002029804407164, 0.010132070301963, 0.061228811640685, 0.325041429363305),
    4_000_000: (0.001145945713715, 0.006853424231561, 0.048440341532042, 0.310682474694373),
    10_000_000: (0.000781281883411, 0.005262467455316, 0.041243808284382, 0.298410621545769),
}
BLT_PARAMETERS = {K: (decay, _BLT_SCALE[K]) for K, decay in _BLT_DECAY.items()}


def blt_parameters(num_episodes: int) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """(decay, output scale) of the strategy c_0 = 1, c_k = sum_i scale_i decay_i^(k-1) tuned for the next K up.

    Beyond the last rung the last one is used: its privacy is accounted for the K at hand, its error is not the optimum.
    Reference: Dvijotham, McMahan, Pillutla, Steinke and Thakurta 2024 (arXiv:2404.16706).
    """
    rungs = sorted(BLT_PARAMETERS)
    return BLT_PARAMETERS[next((rung for rung in rungs if rung >= num_episodes), rungs[-1])]


def _exponential_norms(rates: np.ndarray, weights: np.ndarray, ks: np.ndarray) -> np.ndarray:
    """Squared norms sum_{t<k} (sum_i weights_i rates_i^t)^2 for every k, in closed form; rates in (-1, 1]."""
    product = np.outer(rates, rates)[None]
    k = ks.astype(np.float64)[:, None, None]
    with np.errstate(divide="ignore", invalid="ignore"):
        power = np.where(product > 0.5, np.expm1(k * np.log(product)), np.power(product, k) - 1)
        geometric = np.where(product == 1, k, power / (product - 1))
    return np.einsum("i,kij,j->k", weights, geometric, weights)


@functools.lru_cache(maxsize=64)
def _square_norms(stream: str, num_episodes: int, ks: tuple[int, ...], noise: bool) -> tuple[float, ...]:
    """Squared prefix norms of the strategy c, or of the noise coefficients b (running sums of 1/c), at ascending ks."""
    wanted = np.asarray(ks, np.int64)
    if stream == "blt":
        decay, scale = map(np.asarray, blt_parameters(num_episodes))
        if not noise:
            tail = _exponential_norms(decay, scale, np.maximum(wanted - 1, 0))
            return tuple(np.where(wanted > 0, 1 + tail, 0.0))
        # Impulse in: x_0 = 1, buffers 1; then x_t = -scale.buffers and buffers <- (diag(decay) - 1 scale^T) buffers.
        rates, vectors = np.linalg.eig(np.diag(decay) - np.outer(np.ones_like(decay), scale))
        gains = -(scale @ vectors) * np.linalg.solve(vectors, np.ones_like(decay)) / (1 - rates)
        return tuple(_exponential_norms(np.append(1.0, rates), np.append(1 + gains.sum(), -gains), wanted))
    totals = np.zeros(len(wanted))  # square-root Toeplitz: c_k = c_{k-1} (2k - 1) / (2k), and b = c
    last, total = 1.0, 0.0
    for start in range(0, int(wanted.max(initial=0)), 2**18):
        k = np.arange(start, start + 2**18, dtype=np.float64)
        ratio = np.where(k == 0, 1.0, (2 * k - 1) / np.maximum(2 * k, 1.0))
        c = last * np.cumprod(ratio)
        sums = np.append(0.0, np.cumsum(c * c)) + total
        inside = (wanted > start) & (wanted <= start + 2**18)
        totals[inside] = sums[wanted[inside] - start]
        last, total = float(c[-1]), float(sums[-1])
    return tuple(totals)


def strategy_norm(stream: str, num_episodes: int) -> float:
    """||c||_2 over K releases: the factor by which one user's L2 sensitivity grows under "toeplitz" or "blt".

    Reference: Fichtenberger, Henzinger and Upadhyay, ICML 2023, for the square-root Toeplitz strategy.
    """
    return math.sqrt(_square_norms(stream, num_episodes, (num_episodes,), False)[0])


def noise_norms(stream: str, num_episodes: int, ks: np.ndarray) -> np.ndarray:
    """||b_0..b_{k-1}||_2, f64 like ks: std of the release after k episodes in units of one draw ("toeplitz", "blt")."""
    distinct, inverse = np.unique(ks, return_inverse=True)
    squares = _square_norms(stream, num_episodes, tuple(int(k) for k in distinct), True)
    return np.sqrt(np.asarray(squares))[inverse]


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
    if mech.stream in ("toeplitz", "blt"):
        return np.square(noise_norms(mech.stream, num_episodes, ks))
    if mech.stream == "tree":
        return np.array([float(int(k).bit_count()) for k in ks])
    if mech.stream == "honaker":
        return np.array([math.fsum(honaker_variance(j) for j in range(int(k).bit_length()) if k >> j & 1) for k in ks])
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
    return _units(mech, num_episodes, _largest_in_bucket(num_episodes) if time_varying else np.full(size, num_episodes))


def _spread(problem: Problem, family: str) -> int:
    """Released counts that one count of the family sums: S for visits that are derived from transitions."""
    return problem.num_states if family == "visits" and problem.families == 2 else 1


def _variance(mech: Mechanism, problem: Problem, scale: float, units: float, family: str) -> float:
    """Variance of one count (a public upper bound where it depends on data)."""
    H, pooled, spread = problem.horizon, problem.homogeneous, _spread(problem, family)
    if mech.noise == "none":
        return 0.0
    if mech.stream == "sampled":
        return units * ((H * H / 4 if pooled else H - 1) + 2 * (H * H if pooled else H) * scale**2 * spread)
    if mech.noise == "bernoulli":
        bits = units * spread * (H if pooled else 1)
        if family == "costs":
            return bits / 4 if scale == 0 else bits / (4 * math.tanh(0.5 / scale) ** 2)
        return 0.0 if scale < 2e-3 else bits / (4 * math.sinh(0.5 / scale) ** 2)
    return (2.0 if mech.noise == "laplace" else 1.0) * scale**2 * units * spread


def _sampled_cgf(problem: Problem, scale: float, spread: int, t: float) -> float:
    """Bound on the cumulant of one report of one step, weighted by H.

    Stage-dependent: H B (x + Lap) - x with B ~ Bernoulli(1/H); the cumulant is convex in x, so x in {0, 1} is worst.
    Pooled: H (x_h + Lap) - sum_h x_h with h uniform; Hoeffding's t^2 H^2 / 8 for the step, exact for the noise.
    """
    H = problem.horizon
    noise = -spread * math.log1p(-((t * H * scale) ** 2))
    if problem.homogeneous:
        return t * t * H * H / 8 + noise
    rest = math.log1p(-1 / H) if H > 1 else -math.inf
    shifts = ((0.0, 0.0), (t * H, -t), (-t * H, t))
    return max(shift + float(np.logaddexp(rest, step + noise - math.log(H))) for step, shift in shifts)


def _error(mech: Mechanism, problem: Problem, scale: float, units: float, family: str, tail_prob: float) -> float:
    """Two-sided error of one count at its tail probability: exact law, or Chernoff for sampled steps and flipped bits.

    A cost is rounded to a bit before it is flipped: only the range 1 / (1 - 2 flip) of the debiased bit is used.
    """
    spread = _spread(problem, family)
    if mech.stream == "sampled":
        variance = _variance(mech, problem, scale, units, family)
        t_max = 1 / (problem.horizon * scale) if scale > 0 else math.inf
        return _chernoff_quantile(lambda t: units * _sampled_cgf(problem, scale, spread, t), variance, t_max, tail_prob)
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
        return scale * laplace_sum_quantile(round(units) * spread, tail_prob)
    return scale * math.sqrt(units * spread) * -float(special.ndtri(tail_prob / 2))


def standard_deviation(
    privatizer: str, problem: Problem, noise_scale: float, ks: np.ndarray | None = None
) -> Precision:
    """Standard deviation of the noise on one count of each family in the releases after ks episodes.

    Tree: scale sqrt(2 popcount(k)) (Gaussian: without the 2); Honaker: the nodes' own variances; Toeplitz and BLT:
    scale ||b_0..b_{k-1}||_2; local: sqrt(k) times one report's. Exact for additive noise; for `local_sampled` and the
    costs of `local_bernoulli` a public upper bound, as sampling and rounding variance depend on the data.

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
