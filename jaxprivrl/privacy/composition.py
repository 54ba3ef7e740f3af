"""What many noisy coordinates give together: delta of an epsilon, epsilon of a delta, and the loss that one may have.

Host side (NumPy, SciPy, dp-accounting). Coordinates get Laplace noise, or are randomised bits, or bits that a shuffler
mixes with those of a batch of users. Every number is rounded towards less privacy.
"""

import functools
import math
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
from scipy import special

_MAX_COORDINATES = 30_000  # beyond it the composition is bounded in closed form
_MIN_LOSS = 1e-6  # per coordinate; below it a discretised loss distribution loses digits
_MAX_LOSS = 200.0  # beyond it its exponentials overflow
_MAX_SHUFFLED_LOSS = 30.0  # beyond it nobody tosses a coin, and a shuffler hides nothing
_ROUND_OFF = 1e-12  # added to every delta that comes out of an FFT


class Composable(Protocol):
    """A law of which delta is known when coordinates come together; hashed by value."""

    def __hash__(self) -> int: ...

    def delta(self, n: int, loss: float, epsilon: float, batch: int) -> float:
        """Upper bound on delta(epsilon) of n coordinates of pure loss `loss` each, mixed over a batch of users."""


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


def randomized_response_delta(n: int, loss: float, epsilon: float) -> float:
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


def _binomial(m: int, c: np.ndarray) -> np.ndarray:
    """P(c of m fair coins show heads); 0 outside 0..m."""
    inside = (c >= 0) & (c <= m)
    x = np.where(inside, c, 0)
    log_pmf = special.gammaln(m + 1) - special.gammaln(x + 1) - special.gammaln(m - x + 1) - m * math.log(2)
    return np.where(inside, np.exp(log_pmf), 0.0)


@functools.lru_cache(maxsize=4)
def _shuffled_pld(batch: int, n: int, loss: float) -> Any:
    """Pessimistic privacy loss distribution of n sums of shuffled bits, each over the users of a batch.

    A bit flipped with probability p is a fair coin with probability 2p, else the truth. Whoever sees the sum of a batch
    is told more: who tossed a coin among the others, m of them, and the truth of the rest. What is left is
      Binomial(m, 1/2) + Bernoulli(1 - p)  against  Binomial(m, 1/2) + Bernoulli(p),   m ~ Binomial(batch - 1, 2p)
    and the coins of different bits are independent. Fewer coins hide less (the missing ones could be added afterwards),
    so each m is rounded down to one of a few; what lies beyond 7 standard deviations counts as no coin at all.
    Reference: Balle, Bell, Gascon and Nissim, CRYPTO 2019, for the privacy blanket.
    """
    from scipy import stats

    p, others = float(special.expit(-loss)), batch - 1
    mean, spread = 2 * p * others, math.sqrt(2 * p * (1 - 2 * p) * others)
    grid = np.append(0, np.clip(np.floor(np.linspace(mean - 7 * spread, mean + 7 * spread, 49)), 0, others))
    coins = np.unique(grid.astype(np.int64))
    below = np.append(stats.binom.cdf(coins - 1, others, 2 * p), 1.0)
    losses, masses = [], []
    for m, weight in zip(coins.tolist(), np.diff(below).tolist(), strict=True):
        half_width = 5 * math.sqrt(m) + 20
        c = np.arange(max(0, math.floor(m / 2 - half_width)), min(m + 1, math.ceil(m / 2 + half_width)) + 1)
        more, same = weight * _binomial(m, c - 1), weight * _binomial(m, c)
        one, zero = (1 - p) * more + p * same, p * more + (1 - p) * same
        kept = (one > 0) & (zero > 0)
        losses.append(np.log(one[kept] / zero[kept]))
        masses.append(one[kept])
    typical = min(loss, 2 * (1 - 2 * p) / math.sqrt(max(mean, 1.0)))
    interval = min(max(0.02 * typical, loss / 200_000), loss / 10)
    return _pld_on_grid(np.concatenate(losses), np.concatenate(masses), interval).self_compose(n)


def _pld_on_grid(losses: np.ndarray, masses: np.ndarray, interval: float) -> Any:
    """Privacy loss distribution of a pair of laws P, Q that swap roles, on multiples of `interval`.

    An outcome of P-mass x and loss l = ln(P/Q) becomes two, at the multiples below and above l, with the same P-mass
    and the same Q-mass in all: joining them again gives the outcome back, so the pair that is left hides no more than
    the one it stands for, and exceeds it in second order of the interval alone. The mass that is missing in P is
    counted as an unlimited loss.
    Reference: Doroshenko, Ghazi, Kamath, Kumar and Manurangsi, PETS 2022 ("connect the dots").
    """
    from dp_accounting.pld import privacy_loss_distribution

    index = np.floor(losses / interval)
    above = masses * np.clip(np.expm1(index * interval - losses) / math.expm1(-interval), 0.0, 1.0)
    first = int(index.min())
    place = (index - first).astype(np.int64)
    mass = np.bincount(place, masses - above, place.max() + 2) + np.bincount(place + 1, above, place.max() + 2)
    used = np.flatnonzero(mass)
    rounded = dict(zip((used + first).tolist(), mass[used].tolist(), strict=True))
    missing = max(1 - math.fsum(masses.tolist()), 0.0) + 1e-15
    return privacy_loss_distribution.PrivacyLossDistribution.create_from_rounded_probability(
        rounded, missing, interval, symmetric=True
    )


def bits_delta(n: int, loss: float, epsilon: float, batch: int) -> float:
    """delta(epsilon) of n randomised bits, each summed over a batch of users by a shuffler; 0 from n loss on."""
    if epsilon >= n * loss:
        return 0.0
    if batch > 1 and loss <= _MAX_SHUFFLED_LOSS:
        return float(_shuffled_pld(batch, n, loss).get_delta_for_epsilon(epsilon)) + _ROUND_OFF
    return randomized_response_delta(n, loss, epsilon)


def laplace_delta(n: int, loss: float, epsilon: float) -> float:
    """delta(epsilon) of n coordinates with Laplace noise, loss = shift / scale; 0 from n loss on."""
    if epsilon >= n * loss:
        return 0.0
    if n > _MAX_COORDINATES or not _MIN_LOSS <= loss <= _MAX_LOSS:
        return randomized_response_delta(n, loss, epsilon)
    return float(_laplace_pld(n, loss).get_delta_for_epsilon(epsilon)) + _ROUND_OFF


@functools.lru_cache(maxsize=4096)
def epsilon_at(law: Composable, n: int, loss: float, dp_delta: float, batch: int = 1) -> float:
    """Smallest epsilon with delta(epsilon) <= dp_delta, rounded up; never above the pure epsilon n loss."""
    return _smallest(lambda epsilon: law.delta(n, loss, epsilon, batch) <= dp_delta, n * loss)


@functools.lru_cache(maxsize=4096)
def loss_for(law: Composable, n: int, epsilon: float, dp_delta: float, batch: int = 1) -> float:
    """Largest loss of one of n coordinates that keeps (epsilon, dp_delta), rounded down; at least epsilon / n."""
    target = epsilon * (1 - 1e-9)
    low, tolerance = target / n, 1e-6
    if batch > 1:  # shuffling only helps
        low, tolerance = loss_for(law, n, epsilon, dp_delta), 1e-5
    return _largest(lambda loss: law.delta(n, loss, target, batch) <= dp_delta, low, tolerance)


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
