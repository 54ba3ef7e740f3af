"""Telling two neighbouring inputs apart: scores of what was released, thresholds, and the bounds that they give.

Host side (NumPy, SciPy), except that features are computed where the releases are. An attack is chosen on one sample
and used on another: only then is a Clopper-Pearson bound at its threshold a bound with the confidence it states.
"""

from collections.abc import Iterator
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from scipy import special

from jaxprivrl.mdp import Counts
from jaxprivrl.privacy.privatizer import Privatizer

Array = jax.Array

_GRID = 1e-3  # scores are rounded to this part of their spread, so that equal ones compare as equal
_RIDGE = 1e-6  # of the learned score, in units of a feature's variance
_THRESHOLDS = 300  # candidates in each tail
_CHOICE = 10.0  # thresholds are chosen at a level this much stricter, so that a lucky tail is not preferred


class Views(NamedTuple):
    """Linear views of a stream of releases r_1..r_K, and what they hold without noise under either input.

    View v is r_i - r_j with i = left[v] and j = right[v], j = 0 meaning zero.

    Attributes:
      left, right: i32[V].
      low, high: f32[V, C], noise-free views of the changed cells under input 0 and input 1.
      middle: f32[K, C], noise-free releases, mean of both inputs.
      sign: f32[C], how far a cell grows (up to 1) or shrinks (down to -1) from input 0 to input 1.
    """

    left: Array
    right: Array
    low: Array
    high: Array
    middle: Array
    sign: Array


class Attack(NamedTuple):
    """A fixed test of "input 1 rather than input 0": features . weights, rounded to a grid, at least the threshold.

    Attributes:
      score: "exact" (log-likelihood ratio of the mechanism as documented) or "learned".
      weights: f64[F].
      grid: unit of the rounded score.
      threshold: in units of the grid.
      bound: on the sample that chose it; it comes with no confidence.
    """

    score: str
    weights: np.ndarray
    grid: float
    threshold: int
    bound: float

    @property
    def preference(self) -> float:
        """By its bound; a learned score must be clearly better than an exact one."""
        return self.bound * (1.1 if self.score == "exact" else 1.0)

    def hits(self, raw: np.ndarray) -> np.ndarray:
        """Which of the unrounded scores f[n] say "input 1", bool[n]."""
        return round_to_grid(raw, self.grid) >= self.threshold


def pairs(num_releases: int) -> list[tuple[int, int]]:
    """Views (i, j): every release, every difference of two consecutive ones, every node of the binary tree."""
    return sorted({(k, j) for k in range(1, num_releases + 1) for j in (0, k - 1, k & (k - 1))})


def make_views(first: np.ndarray, second: np.ndarray) -> Views:
    """Views of two streams of users' contributions to the changed cells, f[K, C] each."""
    zero, one = (np.concatenate([np.zeros((1, x.shape[1])), np.cumsum(x, 0)]) for x in (first, second))
    left, right = np.array(pairs(len(first)), np.int32).T
    low, high, middle = zero[left] - zero[right], one[left] - one[right], (zero + one)[1:] / 2
    grows = (one - zero)[-1]
    floats = (jnp.asarray(x, jnp.float32) for x in (low, high, middle, grows / np.abs(grows).max()))
    return Views(jnp.asarray(left), jnp.asarray(right), *floats)


def features(views: Views, releases: Array) -> Array:
    """f32[K + V] of releases f32[K, C]: one linear feature per release, one clipped feature per view.

      linear_k = sum_c sign_c (r_kc - middle_kc),   clipped_v = sum_c |y_vc - low_vc| - |y_vc - high_vc|
    Every exact log-likelihood ratio here is linear in them: of Gaussian noise and bits in the first, of Laplace noise
    in the second.
    """
    linear = jnp.sum((releases - views.middle) * views.sign[None], 1)
    padded = jnp.concatenate([jnp.zeros_like(releases[:1]), releases])
    y = padded[views.left] - padded[views.right]
    return jnp.concatenate([linear, jnp.sum(jnp.abs(y - views.low) - jnp.abs(y - views.high), 1)])


def exact_weights(privatizer: Privatizer, num_leaves: int, num_releases: int, position: int) -> np.ndarray | None:
    """Weights f64[J + V] that make the features the log-likelihood ratio of a mechanism, up to a positive factor.

    Its law knows them; None if it knows none, as for shuffled bits, whose sums have no ratio of this form.

    Args:
      privatizer: the mechanism.
      num_leaves: what its strategy was calibrated for.
      num_releases: J, releases that are looked at.
      position: the release that first holds the changed user, from 1.
    """
    score = privatizer.law.score(privatizer.strategy, num_leaves, num_releases, position)
    if score is None or privatizer.trust == "SDP":
        return None
    views = pairs(num_releases)
    if not set(score.clipped) <= set(views):
        return None
    clipped = np.zeros(len(views))
    for view, weight in score.clipped.items():
        clipped[views.index(view)] = weight
    return np.concatenate([score.linear, clipped])


def choose(
    samples: list[np.ndarray], known: np.ndarray | None, runs: int, significance: float, dp_delta: float
) -> Iterator[Attack]:
    """The exact score, if one is known, and a learned one, each with the threshold that bounds epsilon best.

    Args:
      samples: features f32[n, F] under input 0 and under input 1. The first halves fit, the second halves choose.
      known: weights of the exact score, or None.
      runs: runs of each input on which the attack will be used.
      significance, dp_delta: of the bound.
    """
    half = len(samples[0]) // 2
    learned = discriminant(samples[0][:half], samples[1][:half])
    for name, weights in (("exact", known), ("learned", learned)):
        if weights is None:
            continue
        raw = [apply(x[half:], weights) for x in samples]
        grid = _GRID * float(np.std(np.concatenate(raw))) or 1.0
        out, inside = (np.sort(round_to_grid(x, grid)) for x in raw)
        pooled = np.sort(np.concatenate([out, inside]))
        steps = np.geomspace(1, len(pooled), _THRESHOLDS).astype(int)  # dense in both tails
        thresholds = np.unique(np.concatenate([pooled[steps - 1], pooled[-steps]]))
        misses, alarms = np.searchsorted(inside, thresholds), len(out) - np.searchsorted(out, thresholds)
        part = min(1.0, runs / len(out))
        bounds = expected_bounds(part * misses, part * alarms, part * len(out), significance / _CHOICE, dp_delta)
        i = int(np.argmax(bounds))
        yield Attack(name, weights, grid, int(thresholds[i]), float(bounds[i]))


def power(
    samples: list[np.ndarray], known: np.ndarray | None, runs: int, significance: float, dp_delta: float
) -> float:
    """The bound to expect from `runs` runs of each input: attacks chosen on half a sample, rates from the other."""
    half = len(samples[0]) // 2
    expected = 0.0
    for attack in choose(samples, known, runs, significance, dp_delta):
        out, inside = (attack.hits(apply(x[:half], attack.weights)) for x in samples)
        misses, alarms = (np.array(runs * (np.sum(x) + 0.5) / (half + 1)) for x in (~inside, out))
        expected = max(expected, float(expected_bounds(misses, alarms, runs, significance, dp_delta)))
    return expected


def apply(samples: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Unrounded scores f64[n] of features f32[n, F]."""
    return np.einsum("nf,f->n", samples.astype(np.float64), weights)


def round_to_grid(raw: np.ndarray, grid: float) -> np.ndarray:
    """Scores as whole multiples of the grid, f64[n]."""
    return np.rint(raw / grid)


def discriminant(out: np.ndarray, inside: np.ndarray) -> np.ndarray:
    """Fisher's linear discriminant of two samples f32[n, F], f64[F]; a direction without noise gets a huge weight."""
    x, y = out.astype(np.float64), inside.astype(np.float64)
    spread = np.sqrt((x.var(0) + y.var(0)) / 2 + (x.mean(0) - y.mean(0)) ** 2 / 4)
    spread = np.where(spread > 0, spread, 1.0)
    x, y = x / spread, y / spread
    with np.errstate(all="ignore"):  # vector kernels may raise flags for lanes that they pad
        within = (np.atleast_2d(np.cov(x.T)) + np.atleast_2d(np.cov(y.T))) / 2
    return np.linalg.solve(within + _RIDGE * np.eye(len(within)), y.mean(0) - x.mean(0)) / spread


def expected_bounds(
    misses: np.ndarray, alarms: np.ndarray, n: float, significance: float, dp_delta: float
) -> np.ndarray:
    """Clopper-Pearson bounds on epsilon from misses of input 1 and false alarms of input 0 among n runs of each."""
    fnr, fpr = (special.betaincinv(k + 1.0, np.maximum(n - k, 1e-9), 1 - significance / 2) for k in (misses, alarms))
    with np.errstate(divide="ignore"):
        forward = np.log(np.maximum(1 - fnr - dp_delta, 0.0)) - np.log(fpr)
        backward = np.log(np.maximum(1 - fpr - dp_delta, 0.0)) - np.log(fnr)
    return np.maximum(np.maximum(forward, backward), 0.0)


def lower_bound(inside: np.ndarray, out: np.ndarray, significance: float, dp_delta: float) -> float:
    """The bound on epsilon from the hits bool[n] of one fixed attack under input 1 and under input 0.

    log((TPR - dp_delta) / FPR), or the same with the inputs exchanged, with both rates at their Clopper-Pearson limits
    of level significance / 2: true with probability 1 - significance.
    """
    from jax_privacy import auditing

    auditor = auditing.CanaryScoreAuditor(inside.astype(float), out.astype(float))
    fixed = auditing.Explicit(0.5)
    return float(auditor.epsilon_clopper_pearson(significance, dp_delta, one_sided=False, threshold_strategy=fixed))


def changed_cells(first: Counts, second: Counts, families: int) -> tuple[tuple[int, ...], ...]:
    """Flat indices of the cells of each released family in which two users differ; derived visits are left out."""
    cells = tuple(
        tuple(np.flatnonzero(np.asarray(a) != np.asarray(b)).tolist()) for a, b in zip(first, second, strict=True)
    )
    return cells if families == 3 else ((), *cells[1:])
