"""The mechanisms as accounting knows them: trust, noise, and the strategy by which noise is added to running sums.

Host side (NumPy). Everything here is public: it depends on the number of episodes, never on data.
"""

import difflib
import functools
import math
from typing import NamedTuple

import numpy as np


class Mechanism(NamedTuple):
    """What accounting and precision must know about a privatizer.

    Attributes:
      trust: "none", "JDP" (a trusted agent, through the billboard lemma), "LDP" (each user randomises its report) or
        "SDP" (so it does, and trusts a shuffler to mix the reports of a batch).
      noise: "none", "laplace", "gaussian" or "bernoulli".
      stream: how the noise of a running sum grows: "none", "tree", "honaker", "toeplitz", "blt", "batched", "local",
        "sampled", "sampled_family" or "shuffled".
      target: default target of a calibration, "pure" or "approximate".
      calibrations: the calibrations that are defined for it.
    """

    trust: str
    noise: str
    stream: str
    target: str
    calibrations: tuple[str, ...] = ("tight",)

    @property
    def additive(self) -> bool:
        """Whether a release is the true counts plus noise that does not depend on them."""
        return self.noise in ("laplace", "gaussian") and self.stream not in ("sampled", "sampled_family")

    def levels(self, num_episodes: int) -> int:
        """Number of released nodes one user is part of: floor(log2 K) + 1 in a tree, else 1."""
        return int(num_episodes).bit_length() if self.stream in ("tree", "honaker") else 1

    def factor(self, num_episodes: int) -> float:
        """Growth of one user's L1 (Laplace) or L2 (Gaussian) sensitivity: levels, sqrt(levels), ||c||_2, or 1."""
        if self.stream in ("toeplitz", "blt", "batched"):
            return strategy_norm(self.stream, int(num_episodes))
        levels = self.levels(num_episodes)
        return math.sqrt(levels) if self.noise == "gaussian" else float(levels)


CALIBRATIONS = ("tight", "printed", "published_code")
MECHANISMS: dict[str, Mechanism] = {
    "exact": Mechanism("none", "none", "none", "pure"),
    "central_laplace": Mechanism("JDP", "laplace", "tree", "pure", CALIBRATIONS),
    "local_laplace": Mechanism("LDP", "laplace", "local", "pure", CALIBRATIONS),
    "central_gaussian": Mechanism("JDP", "gaussian", "tree", "approximate"),
    "central_honaker": Mechanism("JDP", "gaussian", "honaker", "approximate"),
    "central_blt": Mechanism("JDP", "gaussian", "blt", "approximate"),
    "central_toeplitz": Mechanism("JDP", "gaussian", "toeplitz", "approximate"),
    "central_batched": Mechanism("JDP", "gaussian", "batched", "approximate"),
    "local_gaussian": Mechanism("LDP", "gaussian", "local", "approximate"),
    "local_bernoulli": Mechanism("LDP", "bernoulli", "local", "pure"),
    "local_sampled": Mechanism("LDP", "laplace", "sampled", "pure"),
    "local_sampled_family": Mechanism("LDP", "laplace", "sampled_family", "pure"),
    "shuffle_batched": Mechanism("SDP", "bernoulli", "shuffled", "approximate"),
}


def mechanism(privatizer: str) -> Mechanism:
    """Looks a privatizer up in MECHANISMS; an unknown name raises with the nearest one."""
    if privatizer not in MECHANISMS:
        near = difflib.get_close_matches(privatizer, MECHANISMS, n=1)
        hint = f" Did you mean '{near[0]}'?" if near else ""
        raise ValueError(f"Unknown privatizer '{privatizer}'.{hint} Available: {', '.join(sorted(MECHANISMS))}.")
    return MECHANISMS[privatizer]


def num_batches(num_episodes: int) -> int:
    """Batches that k episodes close, four to an octave: k for k < 8, else 4 m + floor(k / 2^m), 2^(m+2) <= k < 2^(m+3).

    Batches end at 1..7, 8, 10, 12, 14, 16, 20, 24, 28, 32, 40, ...: a schedule that is public and does not depend on K.
    """
    m = max(int(num_episodes).bit_length() - 3, 0)
    return 4 * m + (int(num_episodes) >> m)


def batch_end(index: int) -> int:
    """The episode that closes the given batch, from 1; 0 for the empty release before the first."""
    m = max((int(index) - 4) // 4, 0)
    return (int(index) - 4 * m) << m


def shuffle_size(num_episodes: int) -> int:
    """Users of a batch of `shuffle_batched`: K / 8, at least one, rounded down to what float32 holds exactly."""
    size = max(int(num_episodes) // 8, 1)
    spare = max(size.bit_length() - 24, 0)
    return size >> spare << spare


def honaker_variance(height: int) -> float:
    """Variance of a completed node of height j in units of the node noise: 2^j / (2^(j+1) - 1), 1 for a leaf.

    v_j = 1 / (1 + 1 / (2 v_{j-1})): inverse-variance mean of the node and of the sum of its two children's estimates.
    Reference: Honaker 2015, bottom-up estimate.
    """
    return 1.0 / (2.0 - 0.5**height)


# Four buffers per K with the smallest largest error over K releases; benchmarks/tune_blt.py derives them.
_BLT_DECAY = {
    32: (0.986929104618258, 0.875999280451589, 0.621193248754441, 0.231646531055441),
    64: (0.992394722119896, 0.922546937904173, 0.72108310992448, 0.305161101234446),
    128: (0.995592348073856, 0.951729062234918, 0.795940803935248, 0.37604554577299),
    256: (0.997476072795453, 0.969900712747469, 0.850093429454563, 0.441041902359283),
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
    32: (0.145528981684928, 0.148290925537892, 0.137920887662395, 0.068253799762142),
    64: (0.112190977883052, 0.130153587096156, 0.156652314272443, 0.100979459380054),
    128: (0.086234895114494, 0.112287581520919, 0.166190647506605, 0.135147779461713),
    256: (0.065926172694027, 0.096616316759789, 0.168946507907257, 0.167996399205345),
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
    if stream == "batched":
        num_episodes, wanted = num_batches(num_episodes), np.array([num_batches(k) for k in ks], np.int64)
    if stream in ("blt", "batched"):
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
    """||c||_2 over all releases: how one user's L2 sensitivity grows under "toeplitz", "blt" or "batched".

    "batched" is "blt" with a batch of users in the place of one, num_batches(K) releases in all.

    Reference: Fichtenberger, Henzinger and Upadhyay, ICML 2023, for the square-root Toeplitz strategy.
    """
    return math.sqrt(_square_norms(stream, num_episodes, (num_episodes,), False)[0])


def noise_norms(stream: str, num_episodes: int, ks: np.ndarray) -> np.ndarray:
    """||b_0..b_{k-1}||_2, f64 like ks: std of the release after k episodes in units of one draw, likewise."""
    distinct, inverse = np.unique(ks, return_inverse=True)
    squares = _square_norms(stream, num_episodes, tuple(int(k) for k in distinct), True)
    return np.sqrt(np.asarray(squares))[inverse]
