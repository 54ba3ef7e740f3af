"""Toeplitz strategies: buffered linear Toeplitz noise, and the square-root matrix that it comes close to."""

import functools
import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from scipy import linalg, optimize

from jaxprivrl.privacy.laws import Gaussian
from jaxprivrl.privacy.privatizer import Privatizer
from jaxprivrl.privacy.report import Report
from jaxprivrl.privacy.strategies import NoiseStream, Norms, Strategy, as_float
from jaxprivrl.privatizers.runtimes import additive
from jaxprivrl.problem import Shape

BLOCK = 8  # releases whose noise is made at once
_TABLE = 64  # releases whose norm is tabulated
_MAX_TOEPLITZ_RELEASES = 2**24 - 1
_MAX_TOEPLITZ_BYTES = 2**30


class Exponentials(NamedTuple):
    """Noise coefficients b_t = sum_i weights_i (1 - rates_i)^t: f[m] each."""

    rates: Any
    weights: Any


@dataclass(frozen=True)
class BLT(Strategy):
    """Buffered linear Toeplitz: within 0.3 % of the least error of any Toeplitz mechanism, in 4 buffers.

    Release j = true counts + scale * (A C^-1 z)_j, with A the prefix sums, z white noise, and C the Toeplitz matrix of
    c_0 = 1, c_k = sum_i s_i d_i^(k-1). The s and d are those tuned for the next J up.

    Privacy: the releases are A C^-1 (C x + scale z), x the leaves, hence a function of C x + scale z, released row by
      row. A user enters it through one column of C, so replacing it moves C x by at most ||c||_2 D2 in L2; C is lower
      triangular, so users may react to earlier releases.
    Reference: Dvijotham, McMahan, Pillutla, Steinke and Thakurta 2024 (arXiv:2404.16706); McMahan, Xu and Zhang 2024.
    """

    summed, block = False, BLOCK

    def data(self, num_leaves: int) -> Exponentials:
        """Rates and weights of the noise coefficients for so many leaves."""
        decay, scale = (np.asarray(x, np.float64) for x in blt_parameters(num_leaves))
        return noise_exponentials(scale, 1 - decay)

    def norms(self, num_leaves: int) -> Norms:
        """Of the coefficients c, in closed form."""
        decay, scale = map(np.asarray, blt_parameters(num_leaves))
        after = np.array([num_leaves - 1])
        l2 = math.sqrt(1.0 + float(_exponential_norms(decay, scale, after)[0]))
        return Norms(1.0 + float(np.sum(scale * -np.expm1((num_leaves - 1) * np.log(decay)) / (1 - decay))), l2)

    def units(self, xp: Any, data: Exponentials, j: Any) -> Any:
        """b_0^2 + ... + b_{j-1}^2: sums of geometric series."""
        rates, weights = data
        both = rates[:, None] + rates[None, :] - rates[:, None] * rates[None, :]
        some = xp.where(both > 0, both, 0.5)
        time = as_float(xp, j)[..., None, None]
        series = xp.where(both > 0, -xp.expm1(time * xp.log1p(-some)) / some, time)
        return xp.sum(weights[:, None] * weights[None, :] * series, (-2, -1))

    def worst_units(self, num_leaves: int) -> float:
        """Of the last release."""
        return float(self.units(np, self.data(num_leaves), np.array([num_leaves]))[0])

    def dense(self, num_leaves: int, num_releases: int) -> np.ndarray:
        """A C^-1."""
        decay, scale = map(np.asarray, blt_parameters(num_leaves))
        lag = np.arange(1, num_releases)
        c = np.append(1.0, (scale * decay ** (lag[:, None] - 1)).sum(1))
        return np.tri(num_releases) @ np.linalg.inv(toeplitz_matrix(c))

    def noisy_sums(self, num_releases: int) -> None:
        """No release is a noisy sum with one draw."""
        return None

    def stream(self, shape: Shape, law: Any) -> NoiseStream:
        """Blocks of releases."""
        from jaxprivrl.privatizers import streams

        return streams.block_stream(shape, law.sample, BLOCK)


@dataclass(frozen=True)
class SquareRoot(Strategy):
    """Square-root Toeplitz matrix C C = A, c_k = binom(2k, k) / 4^k: the optimum that `BLT` comes close to.

    The noise is streamed rather than computed beforehand by an FFT, which would take a memory of J numbers per counter
    and several times as long: c_k, a moment sequence, is a sum of exponentials to within 1e-6 of itself for all k below
    J, one or two for each doubling of J, so that C is a buffered linear Toeplitz strategy with many buffers, whose
    noise comes in blocks of a few releases.

    Privacy: as `BLT`, with this c. The exponentials are fitted from below, so that their norm does not exceed that of
      c, for which the noise is calibrated.
    Reference: Fichtenberger, Henzinger and Upadhyay, ICML 2023.
    """

    summed, block = False, BLOCK

    def norms(self, num_leaves: int) -> Norms:
        """Of the coefficients c; they sum to 2 J c_J."""
        _refuse_many(num_leaves)
        l1 = 2 * num_leaves * float(_square_root_coefficients(np.array([float(num_leaves)]))[0])
        return Norms(l1, math.sqrt(_square_root_square_norm(num_leaves)))

    def units(self, xp: Any, data: Any, j: Any) -> Any:
        """c_0^2 + ... + c_{j-1}^2, a Landau constant: tabulated, then by its asymptotic series."""
        squares = np.append(1.0, _square_root_coefficients(np.arange(1.0, _TABLE))) ** 2
        table = as_float(xp, xp.asarray(np.append(0.0, np.cumsum(squares))))
        t = as_float(xp, xp.maximum(j, 1))
        constant = float(np.euler_gamma + 4 * math.log(2)) / math.pi
        series = constant + (xp.log(t) - 0.25 / t + 5 / 192 / (t * t)) * (1 / math.pi)
        return xp.where(j <= _TABLE, table[xp.minimum(j, _TABLE)], series)

    def worst_units(self, num_leaves: int) -> float:
        """Of the last release."""
        return _square_root_square_norm(num_leaves)

    def dense(self, num_leaves: int, num_releases: int) -> np.ndarray:
        """C itself, as A C^-1 = C."""
        lag = np.arange(1, num_releases)
        return toeplitz_matrix(np.cumprod(np.append(1.0, (2 * lag - 1) / (2 * lag))))

    def noisy_sums(self, num_releases: int) -> None:
        """No release is a noisy sum with one draw."""
        return None

    def stream(self, shape: Shape, law: Any) -> NoiseStream:
        """Blocks of releases, with buffers for the largest number of them."""
        from jaxprivrl.privatizers import streams

        _refuse_many(shape.max_releases)
        scale, decay = square_root_buffers(shape.max_releases)
        exponentials = noise_exponentials(scale.astype(np.float64), decay.astype(np.float64))
        rates, weights = (x[1:] for x in exponentials)  # nothing in b_t stays for ever
        counters = shape.num_stages * shape.num_states * shape.num_actions * (shape.num_states + shape.families - 1)
        size = 4 * counters * (len(rates) + BLOCK)
        if size > _MAX_TOEPLITZ_BYTES:
            raise ValueError(
                f"central_toeplitz would need {size / 2**20:.0f} MiB for the noise of one seed "
                f"({len(rates) + BLOCK} numbers for each of {counters} counts), more than {_MAX_TOEPLITZ_BYTES >> 20}. "
                "Use central_blt."
            )
        return streams.block_stream(shape, law.sample, BLOCK, Exponentials(rates, weights))


def toeplitz_matrix(c: np.ndarray) -> np.ndarray:
    """Lower-triangular Toeplitz matrix with first column c."""
    return linalg.toeplitz(c, np.zeros_like(c))


def _refuse_many(num_releases: int) -> None:
    if num_releases > _MAX_TOEPLITZ_RELEASES:
        raise ValueError(
            f"central_toeplitz is for at most {_MAX_TOEPLITZ_RELEASES} releases, got up to {num_releases}. "
            "Use central_blt, or a schedule with fewer releases."
        )


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
def _square_root_square_norm(num_leaves: int) -> float:
    """c_0^2 + ... + c_{J-1}^2, summed."""
    last, total = 1.0, 0.0
    for start in range(0, num_leaves, 2**18):
        k = np.arange(start, min(start + 2**18, num_leaves), dtype=np.float64)
        c = last * np.cumprod(np.where(k == 0, 1.0, (2 * k - 1) / np.maximum(2 * k, 1.0)))
        total += float(np.sum(c * c))
        last = float(c[-1])
    return total


def noise_exponentials(scale: np.ndarray, decay: np.ndarray) -> Exponentials:
    """Rates and weights, f64 each, of the coefficients b_t = sum_i weights_i (1 - rates_i)^t of the noise A C^-1 z.

    For c_0 = 1, c_k = sum_i scale_i (1 - decay_i)^(k-1) the noise of the increments is x = z - <scale, u> with buffers
    u <- u - M u + z, M = diag(decay) + 1 scale^T, which has the eigenvalues of the symmetric diag(decay) +
    sqrt(scale) sqrt(scale)^T: they are the rates, and the weights are positive. A rate of 0 comes first, for the part
    1 / (1 + sum scale / decay) of b_t that does not decay; it has no weight if a decay is 0.

    Privacy: weights are larger by 1e-6 than the strategy asks for, more than rounding to float32 takes away.
    """
    root = np.sqrt(scale)
    rates, vectors = np.linalg.eigh(np.diag(decay) + np.outer(root, root))
    constant = 0.0 if decay.min() == 0 else 1 / (1 + np.sum(scale / decay))
    weights = np.append(constant, (root @ vectors) ** 2 / rates)
    return Exponentials(np.append(0.0, rates), (1 + 1e-6) * weights)


def _round_down(values: np.ndarray) -> np.ndarray:
    rounded = np.asarray(values, np.float32)
    return np.where(rounded > values, np.nextafter(rounded, np.float32(-np.inf)), rounded)


@functools.lru_cache(maxsize=16)
def square_root_buffers(max_releases: int) -> tuple[np.ndarray, np.ndarray]:
    """(scale, 1 - decay), f32[m] each, of sum_i scale_i decay_i^(k-1) just below binom(2k, k) / 4^k for 0 < k < K.

    binom(2k, k) / 4^k = (1/pi) integral of x^k / sqrt(x (1 - x)) over [0, 1]: exponentials with positive weights. The
    decays are spaced evenly in ln(-ln d); non-negative least squares of the relative error gives the weights.
    """
    K = max(max_releases, 32)
    k = np.unique(np.concatenate([np.arange(1, 32), np.round(np.geomspace(32, K, 40 * K.bit_length()))]))
    exact = _square_root_coefficients(k)
    low, high = -0.75 - math.log(K), 1.5
    exponents = np.append(0.0, np.exp(np.linspace(low, high, math.ceil((high - low) / 0.62) + 1)))
    basis = np.exp(-np.outer(k - 1, exponents)) / exact[:, None]
    weights = optimize.nnls(basis, np.ones(len(k)))[0]
    used = weights > 0
    excess = np.max(basis @ weights)
    return _round_down(weights[used] / excess * (1 - 1e-7)), -_round_down(np.expm1(-exponents[used]))


def _square_root_coefficients(k: np.ndarray) -> np.ndarray:
    """binom(2k, k) / 4^k for k >= 1, f64, by Stirling's series where the product is long."""
    small = np.cumprod((2 * np.arange(1, 65) - 1) / (2 * np.arange(1, 65)))
    series = (1 - 1 / (8 * k) + 1 / (128 * k**2) + 5 / (1024 * k**3) - 21 / (32768 * k**4)) / np.sqrt(np.pi * k)
    return np.where(k <= 64, small[np.minimum(k, 64).astype(int) - 1], series)


# Privacy: (epsilon, dp_delta)-JDP through the billboard lemma; see the strategy.
central_blt = Privatizer(
    "central_blt",
    trust="JDP",
    report=Report(),
    law=Gaussian(),
    strategy=BLT(),
    runtime=additive,
    summary="Buffered linear Toeplitz mechanism: within 0.3 % of the least error of any Toeplitz mechanism.",
    noise="buffered linear Toeplitz, about (ln k)/π + 1",
)

# Privacy: (epsilon, dp_delta)-JDP through the billboard lemma; see the strategy.
central_toeplitz = Privatizer(
    "central_toeplitz",
    trust="JDP",
    report=Report(),
    law=Gaussian(),
    strategy=SquareRoot(),
    runtime=additive,
    summary="Square-root Toeplitz mechanism: the optimum that `central_blt` comes close to, for comparison.",
    noise="square-root Toeplitz, the optimum to compare with; moderate K",
)
