"""How a coordinate gets its noise: what a scale guarantees, which scale a target needs, how large the noise is.

Host side; JAX is imported by the samplers alone, when they are called. A law is a frozen dataclass, so that a
privatizer is hashed by value. Nothing here has a default that could pass for a guarantee: a law that leaves out a part
cannot be built.
"""

import abc
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np
from scipy import special

from jaxprivrl.privacy import composition
from jaxprivrl.privacy.quantiles import chernoff_quantile, laplace_sum_quantile
from jaxprivrl.privacy.report import Report
from jaxprivrl.problem import FAMILIES, Shape

if TYPE_CHECKING:
    from jaxprivrl.privacy.strategies import Strategy


class Moves(NamedTuple):
    """How far one user can move all noisy numbers that it is part of, over all releases.

    Attributes:
      l1, l2: norms of the largest shift, strategy included.
      coordinates: numbers that move in the worst pair.
      shift: by how much each.
      batch: users whose reports a shuffler mixes before anyone sees them; 1 for none.
    """

    l1: float
    l2: float
    coordinates: int
    shift: float
    batch: int = 1


class Law(abc.ABC):
    """How a coordinate gets its noise.

    Attributes:
      name: word for people.
      pure: whether a finite scale gives a finite pure epsilon.
      additive: whether a release is the true counts plus noise that does not depend on them.
    """

    name: ClassVar[str]
    pure: ClassVar[bool]
    additive: ClassVar[bool]

    def __new__(cls, *args: Any, **kwargs: Any) -> "Law":
        """Names the attributes a law leaves out; abstract methods are named by Python itself."""
        parts = {"name": "a word", "pure": "True or False", "additive": "True or False"}
        if issubclass(cls, AdditiveLaw):
            parts["unit_variance"] = "the variance of one unit draw"
        for part, meaning in parts.items():
            if not hasattr(cls, part):
                raise TypeError(f"Law {cls.__name__} has no {part}; expected {meaning}. State it in its class.")
        return super().__new__(cls)

    @abc.abstractmethod
    def scale_for(self, moves: Moves, epsilon: float, dp_delta: float | None) -> float:
        """Smallest scale of one draw that keeps epsilon (pure) or (epsilon, dp_delta), rounded up."""

    @abc.abstractmethod
    def epsilons(self, moves: Moves, scale: float, dp_deltas: tuple[float, ...]) -> tuple[float, dict[float, float]]:
        """(pure epsilon, {dp_delta: epsilon}) that a scale > 0 gives, rounded up; inf where none holds."""

    @abc.abstractmethod
    def variance(self, xp: Any, report: Report, shape: Shape, scale: Any, units: Any) -> tuple[Any, Any, Any]:
        """Variance of one visit, cost and transition count, or a public upper bound where it depends on data.

        Written once for host (xp = numpy) and device (xp = jax.numpy). `units` is the noise of the release as a
        multiple of one draw's variance, or the number of users where each adds its own; scale 0 means no noise.
        """

    @abc.abstractmethod
    def error(
        self, report: Report, shape: Shape, scale: float, units: float, family: str, tail_prob: float, summed: bool
    ) -> float:
        """Two-sided error of one count of a family that is exceeded with probability tail_prob at most.

        `summed` says that the noise is a sum of `units` whole draws, not a weighted one.
        """

    @abc.abstractmethod
    def score(self, strategy: "Strategy", num_users: int, num_releases: int, position: int) -> "Score | None":
        """The exact log-likelihood ratio of releases in an audit's terms, up to a positive factor; None if unknown.

        `position` is the leaf of the changed user, from 1.
        """


class Score(NamedTuple):
    """Weights of an audit's features: f64[K] of the releases, and those of their views, by (i, j)."""

    linear: np.ndarray
    clipped: dict[tuple[int, int], float]


@dataclass(frozen=True)
class NoNoise(Law):
    """No noise, and no privacy: what the non-private baselines use."""

    name, pure, additive = "none", True, True

    def scale_for(self, moves: Moves, epsilon: float, dp_delta: float | None) -> float:
        """0, whatever was asked."""
        return 0.0

    def epsilons(self, moves: Moves, scale: float, dp_deltas: tuple[float, ...]) -> tuple[float, dict[float, float]]:
        """None hold."""
        return math.inf, dict.fromkeys(dp_deltas, math.inf)

    def variance(self, xp: Any, report: Report, shape: Shape, scale: Any, units: Any) -> tuple[Any, Any, Any]:
        """0."""
        zero = 0.0 * units
        return zero, zero, zero

    def error(
        self, report: Report, shape: Shape, scale: float, units: float, family: str, tail_prob: float, summed: bool
    ) -> float:
        """0."""
        return 0.0

    def score(self, strategy: "Strategy", num_users: int, num_releases: int, position: int) -> Score | None:
        """What the user adds to its release."""
        return _own_report(num_releases, position)


class ComposedLaw(Law):
    """A law of coordinates with a pure loss each: L1 / scale, and what composition makes of it at a delta."""

    pure = True

    @abc.abstractmethod
    def delta(self, n: int, loss: float, epsilon: float, batch: int) -> float:
        """Upper bound on delta(epsilon) of n coordinates of pure loss shift / scale each."""

    def scale_for(self, moves: Moves, epsilon: float, dp_delta: float | None) -> float:
        """L1 / epsilon, or the smallest scale whose composed loss keeps (epsilon, dp_delta)."""
        pure = moves.l1 / epsilon
        if dp_delta is None:
            return pure
        loss = composition.loss_for(self, moves.coordinates, epsilon, dp_delta, moves.batch)
        return min(pure, moves.shift / loss)

    def epsilons(self, moves: Moves, scale: float, dp_deltas: tuple[float, ...]) -> tuple[float, dict[float, float]]:
        """L1 / scale, and the composed epsilon of each dp_delta where it is smaller."""
        pure, loss = moves.l1 / scale, moves.shift / scale
        found = (composition.epsilon_at(self, moves.coordinates, loss, d, moves.batch) for d in dp_deltas)
        return pure, {d: min(pure, e) for d, e in zip(dp_deltas, found, strict=True)}


class AdditiveLaw(Law):
    """Noise of its own for each counter, `scale` times a unit draw: what an additive law states beside its privacy.

    Attributes:
      unit_variance: variance of one unit draw, whose mean is 0.
    """

    additive = True
    unit_variance: ClassVar[float]

    @abc.abstractmethod
    def sample(self, key: Any, shape: tuple[int, ...]) -> Any:
        """Independent unit draws, f32[shape]; the key is consumed."""

    @abc.abstractmethod
    def sample_sum(self, key: Any, m: Any, shape: tuple[int, ...]) -> Any:
        """Independent sums of m unit draws, f32[shape], for a number m of any size; the key is consumed."""

    @abc.abstractmethod
    def log_mgf(self, t: float) -> float:
        """ln E exp(t Z) of a unit draw Z, inf where it is."""

    @property
    @abc.abstractmethod
    def log_mgf_end(self) -> float:
        """Where `log_mgf` becomes infinite."""

    def quantile(self, units: float, tail_prob: float, summed: bool) -> float:
        """Two-sided error of a sum of draws with weights of at most 1 and squared norm `units`: a Chernoff bound.

        The cumulant of a draw with weight w is at most w^2 log_mgf(t), as log_mgf(sqrt(x) t) is convex in x for the
        laws here.
        """
        variance = units * self.unit_variance
        return chernoff_quantile(lambda t: units * self.log_mgf(t), variance, self.log_mgf_end, tail_prob)

    def variance(self, xp: Any, report: Report, shape: Shape, scale: Any, units: Any) -> tuple[Any, Any, Any]:
        """unit_variance scale^2 units; derived visits S times that, centred costs a quarter of the visits' more.

        A sampled report adds what drawing a step costs: at most W - 1 per user, pooled H^2 / 4 or H^2 (families - 1).
        """
        spread = shape.num_states if shape.families == 2 else 1
        own = self.unit_variance * scale * scale * units
        if report.step:
            pooled, W, F = _pooled(shape), report.weight(shape), report.parts(shape)
            largest = (shape.horizon**2 * (F - 1) if F > 1 else shape.horizon**2 / 4) if pooled else W - 1
            drawing, own = xp.where(scale > 0, float(largest), 0.0) * units, own * (W * shape.horizon if pooled else W)
            return drawing + spread * own, drawing + own, drawing + own
        return own * spread, own * (1 + spread / 4) if shape.centred_costs else own, own

    def error(
        self, report: Report, shape: Shape, scale: float, units: float, family: str, tail_prob: float, summed: bool
    ) -> float:
        """The quantile of the noise; a Chernoff bound for sampled reports.

        The error of centred costs is their own and half that of the visits: while both hold, so does their sum.
        """
        spread = shape.num_states if family == "visits" and shape.families == 2 else 1
        if report.step:
            variance = self.variance(np, report, shape, scale, units)[FAMILIES.index(family)]
            end = self.log_mgf_end / (report.weight(shape) * scale) if scale > 0 else math.inf

            def reports(t: float) -> float:
                return units * self._sampled_log_mgf(report, shape, scale, spread, t)

            return chernoff_quantile(reports, float(variance), end, tail_prob)
        own = scale * self.quantile(units * spread, tail_prob, summed)
        if family == "costs" and shape.centred_costs:
            own += 0.5 * self.error(report, shape, scale, units, "visits", tail_prob, summed)
        return own

    def _sampled_log_mgf(self, report: Report, shape: Shape, scale: float, spread: int, t: float) -> float:
        """Bound on the cumulant of a report of one step, or of one family of it, with its weight W; of both signs of t.

        Stage-dependent: W B (x + Z) - x with B ~ Bernoulli(1/W); the cumulant is convex in x, so x in {0, 1} is worst.
        Pooled: W (x_h + Z) - sum_h x_h with h uniform, W = H; Hoeffding's t^2 H^2 / 8 for the step, exact for the
        noise. Pooled, with B ~ Bernoulli(1/F) for the family, W = H F: e^{t W x} lies below its chord, so the cumulant
        is at most -t s + ln(a + b s), s = sum_h x_h, which is concave in s.
        """
        H, W, F = shape.horizon, report.weight(shape), report.parts(shape)
        noise = spread * self.log_mgf(t * W * scale)
        if not _pooled(shape):
            rest = math.log1p(-1 / W) if W > 1 else -math.inf
            shifts = ((0.0, 0.0), (t * W, -t), (-t * W, t))
            return max(shift + float(np.logaddexp(rest, step + noise - math.log(W))) for step, shift in shifts)
        if F == 1:
            return t * t * H * H / 8 + noise
        if t * W > 600:
            return math.inf
        bounds = []
        for sign in (t, -t):
            a, b = 1 + math.expm1(noise) / F, math.exp(noise) * math.expm1(sign * W) / W
            s = min(max(1 / sign - a / b, 0.0), float(H))
            bounds.append(-sign * s + math.log(a + b * s))
        return max(bounds)


@dataclass(frozen=True)
class Laplace(ComposedLaw, AdditiveLaw):
    """Lap(scale): pure epsilon = L1 / scale, and the composed privacy loss distribution of the worst pair at a delta.

    Pessimistic, never above the pure epsilon; bounded by composed randomised responses where a grid would be too
    large or too fine.
    """

    name, unit_variance, log_mgf_end = "Laplace", 2.0, 1.0

    def delta(self, n: int, loss: float, epsilon: float, batch: int) -> float:
        """Of the composed loss distribution; what a shuffler would add is not counted."""
        return composition.laplace_delta(n, loss, epsilon)

    def sample(self, key: Any, shape: tuple[int, ...]) -> Any:
        """Lap(1)."""
        from jaxprivrl.numerics import random

        return random.laplace(key, shape)

    def sample_sum(self, key: Any, m: Any, shape: tuple[int, ...]) -> Any:
        """sqrt(2 G) N with G ~ Gamma(m) and N normal: a sum of m Lap(1)."""
        from jaxprivrl.numerics import random

        return random.laplace_sum(key, m, shape)

    def log_mgf(self, t: float) -> float:
        """-ln(1 - t^2)."""
        return -math.log1p(-(t * t)) if abs(t) < 1 else math.inf

    def quantile(self, units: float, tail_prob: float, summed: bool) -> float:
        """From the exact law of a sum of whole draws; a Chernoff bound for weighted ones."""
        if summed:
            return laplace_sum_quantile(round(units), tail_prob)
        return super().quantile(units, tail_prob, summed)

    def score(self, strategy: "Strategy", num_users: int, num_releases: int, position: int) -> Score | None:
        """Sum of the clipped features of the noisy sums that hold the user, where the strategy releases such sums."""
        sums = strategy.noisy_sums(num_releases)
        if sums is None:
            return None
        return Score(np.zeros(num_releases), {(k, j): float(j < position) for k, j in sums if k >= position})


@dataclass(frozen=True)
class Gaussian(AdditiveLaw):
    """N(0, scale^2): the analytic Gaussian mechanism, and no pure epsilon."""

    name, pure, unit_variance, log_mgf_end = "Gaussian", False, 1.0, math.inf

    def scale_for(self, moves: Moves, epsilon: float, dp_delta: float | None) -> float:
        """z(epsilon, dp_delta) L2."""
        if dp_delta is None:
            raise ValueError("Gaussian noise has no pure epsilon. Use target='approximate' with a dp_delta.")
        return composition.gaussian_multiplier(epsilon, dp_delta) * moves.l2 * (1 + 1e-9)

    def epsilons(self, moves: Moves, scale: float, dp_deltas: tuple[float, ...]) -> tuple[float, dict[float, float]]:
        """Of the analytic formula at L2 / scale."""
        return math.inf, {d: composition.gaussian_epsilon(moves.l2 / scale, d) for d in dp_deltas}

    def sample(self, key: Any, shape: tuple[int, ...]) -> Any:
        """N(0, 1)."""
        from jaxprivrl.numerics import random

        return random.gaussian(key, shape)

    def sample_sum(self, key: Any, m: Any, shape: tuple[int, ...]) -> Any:
        """N(0, m)."""
        from jaxprivrl.numerics import random

        return random.gaussian_sum(key, m, shape)

    def log_mgf(self, t: float) -> float:
        """t^2 / 2."""
        return t * t / 2

    def quantile(self, units: float, tail_prob: float, summed: bool) -> float:
        """Exact."""
        return math.sqrt(units) * -float(special.ndtri(tail_prob / 2))

    def error(
        self, report: Report, shape: Shape, scale: float, units: float, family: str, tail_prob: float, summed: bool
    ) -> float:
        """Exact for counts plus noise, centred costs included, whose two noises are one normal variable."""
        if report.step:
            return super().error(report, shape, scale, units, family, tail_prob, summed)
        variance = self.variance(np, report, shape, scale, units)[FAMILIES.index(family)]
        return math.sqrt(variance) * self.quantile(1.0, tail_prob, summed)

    def score(self, strategy: "Strategy", num_users: int, num_releases: int, position: int) -> Score:
        """With noise B z on the releases their shift m, whitened: m' (B B')^-1 r."""
        B = strategy.dense(num_users, num_releases)
        return Score(np.linalg.pinv(B @ B.T) @ (np.arange(1, num_releases + 1) >= position), {})


@dataclass(frozen=True)
class Bits(ComposedLaw):
    """Randomised response: a bit is flipped with probability 1 / (1 + e^(1/scale)), so 1 / scale is its epsilon.

    Privacy: at most two bits per step and family change, so the log-ratio is at most their number over the scale. A
      debiased bit has variance e^{x/2} / (e^{x/2} - 1)^2 = cosh(x/4)^2 / sinh(x/2)^2, x = 2 / scale. Unequal flips
      (keep a one with 1/2, raise a zero with 1/(e^x + 1)) have 1 / sinh(x/2)^2 for a zero and coth(x/2)^2 for a one at
      the same epsilon: cosh(x/4)^2 better on zeros, which is 1 + 2e-5 at epsilon=1, H=20, and 2.4 only at epsilon =
      4 H families; so bits are symmetric. Mixed by a shuffler, their sums over a batch hide far more.
    Reference: Warner 1965; Wang et al., USENIX Security 2017, for unequal flips.
    """

    name, additive = "randomised bits", False

    def delta(self, n: int, loss: float, epsilon: float, batch: int) -> float:
        """Of composed randomised responses, or of their shuffled sums."""
        return composition.bits_delta(n, loss, epsilon, batch)

    def variance(self, xp: Any, report: Report, shape: Shape, scale: Any, units: Any) -> tuple[Any, Any, Any]:
        """bits / (4 sinh^2(1 / (2 scale))) of visits and transitions; of costs, rounded by users, bits / (4 tanh^2)."""
        spread = shape.num_states if shape.families == 2 else 1
        bits = units * (shape.horizon // shape.num_stages)
        shrink = xp.exp(-1.0 / xp.maximum(scale, 1e-9))  # e^{-2x} for sinh(x) and tanh(x), x = 1 / (2 scale)
        own = bits * shrink / xp.square(1.0 - shrink)
        costs = xp.where(scale > 0, bits * 0.25 * xp.square((1.0 + shrink) / (1.0 - shrink)), 0.0 * bits)
        return own * spread, costs, own

    def error(
        self, report: Report, shape: Shape, scale: float, units: float, family: str, tail_prob: float, summed: bool
    ) -> float:
        """Chernoff bound for flipped bits.

        A cost is rounded to a bit before it is flipped: only the range 1 / (1 - 2 flip) of the debiased bit is used.
        """
        spread = shape.num_states if family == "visits" and shape.families == 2 else 1
        bits = units * spread * (shape.horizon // shape.num_stages)
        gap = 1.0 if scale == 0 else math.tanh(0.5 / scale)  # 1 - 2 flip
        flip = 0.0 if scale < 2e-3 else 1 / (1 + math.exp(1 / scale))
        if family == "costs":
            return math.sqrt(0.5 * bits * math.log(2 / tail_prob)) / gap
        if flip == 0.0:
            return 0.0

        def log_mgf(t: float) -> float:
            u = t / gap
            return bits * (float(np.logaddexp(math.log1p(-flip), math.log(flip) + u)) - flip * u)

        variance = float(self.variance(np, report, shape, scale, units)[FAMILIES.index(family)])
        return min(chernoff_quantile(log_mgf, variance, math.inf, tail_prob), bits * (1 - flip) / gap)

    def score(self, strategy: "Strategy", num_users: int, num_releases: int, position: int) -> Score | None:
        """The user's own report; shuffled sums have no likelihood ratio of this form."""
        return _own_report(num_releases, position) if strategy.per_user and num_users == num_releases else None


def _pooled(shape: Shape) -> bool:
    """Whether several steps share a counter."""
    return shape.num_stages == 1 and shape.horizon > 1


def _own_report(num_releases: int, position: int) -> Score:
    linear = np.zeros(num_releases)
    linear[position - 1] = 1.0
    linear[: position - 1][-1:] = -1.0
    return Score(linear, {})
