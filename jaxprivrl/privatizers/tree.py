"""Binary trees over the releases: the paper's Central-Privatizer, its Gaussian form, and the refinement of Honaker."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from jaxprivrl.privacy.covariance import honaker_norm
from jaxprivrl.privacy.laws import Gaussian, Laplace
from jaxprivrl.privacy.privatizer import Calibration, Privatizer
from jaxprivrl.privacy.report import Report
from jaxprivrl.privacy.strategies import NoiseStream, Norms, Strategy, as_float
from jaxprivrl.privatizers.local import printed_errors, published_scale
from jaxprivrl.privatizers.runtimes import additive
from jaxprivrl.problem import Problem, Shape

_BITS = 31


def honaker_variance(height: int) -> float:
    """Variance of a completed node of height j in units of the node noise: 2^j / (2^(j+1) - 1), 1 for a leaf.

    v_j = 1 / (1 + 1 / (2 v_{j-1})): inverse-variance mean of the node and of the sum of its two children's estimates.
    Reference: Honaker 2015, bottom-up estimate.
    """
    return 1.0 / (2.0 - 0.5**height)


@dataclass(frozen=True)
class Tree(Strategy):
    """Binary tree: C has a row for each node, and a release sums the nodes in the binary expansion of its number.

    Reference: Chan, Shi and Song 2011.
    """

    summed = True

    def norms(self, num_leaves: int) -> Norms:
        """A leaf is in floor(log2 J) + 1 nodes at most, leaf 1 in as many."""
        levels = self.levels(num_leaves)
        return Norms(float(levels), math.sqrt(levels))

    def levels(self, num_leaves: int) -> int:
        """floor(log2 J) + 1."""
        return int(num_leaves).bit_length()

    def units(self, xp: Any, data: Any, j: Any) -> Any:
        """popcount(j)."""
        return as_float(xp, xp.bitwise_count(j))

    def worst_units(self, num_leaves: int) -> float:
        """The most ones of any number below J."""
        return heaviest_below(num_leaves, lambda j: 1.0)

    def dense(self, num_leaves: int, num_releases: int) -> np.ndarray:
        """One draw for each node that is released."""
        return tree_matrix(num_releases, refined=False)

    def noisy_sums(self, num_releases: int) -> list[tuple[int, int]] | None:
        """The node that release k completes: all leaves but those of the release without its lowest bit."""
        return [(k, k & (k - 1)) for k in range(1, num_releases + 1)]

    def stream(self, shape: Shape, law: Any) -> NoiseStream:
        """One node a release."""
        from jaxprivrl.privatizers import streams

        return streams.tree_stream(shape, law.sample)


@dataclass(frozen=True)
class Honaker(Strategy):
    """The binary tree with each node re-estimated from its subtree: less noise in a release, the same privacy.

    A node of height j averages its own noisy sum and the sum of its two children's estimates by inverse variance,
    which leaves the variance 2^j / (2^(j+1) - 1) of the 1 it had. The estimates are linear functions of the noisy nodes
    of that tree, known when they are used: post-processing. One draw a release has the law of this computation only
    if sums of draws stay in the family: normal ones.

    Reference: Honaker 2015, estimation from below; Kairouz et al., ICML 2021, for its use online.
    """

    summed = False

    def norms(self, num_leaves: int) -> Norms:
        """L1 that of the tree; L2 from the covariance of the releases, 7 % below the tree's: see `honaker_norm`."""
        return Norms(Tree().norms(num_leaves).l1, honaker_norm(num_leaves))

    def levels(self, num_leaves: int) -> int:
        """Those of the tree."""
        return Tree().levels(num_leaves)

    def units(self, xp: Any, data: Any, j: Any) -> Any:
        """Sum of the variances of the live nodes."""
        variances = as_float(xp, xp.asarray([honaker_variance(i) for i in range(_BITS)]))
        live = (j[..., None] >> xp.arange(_BITS, dtype=j.dtype)) & 1
        return xp.sum(as_float(xp, live) * variances.reshape((1,) * j.ndim + (-1,)), -1)

    def worst_units(self, num_leaves: int) -> float:
        """The heaviest live nodes of any number below J."""
        return heaviest_below(num_leaves, honaker_variance)

    def dense(self, num_leaves: int, num_releases: int) -> np.ndarray:
        """One draw for each node, refined."""
        return tree_matrix(num_releases, refined=True)

    def noisy_sums(self, num_releases: int) -> None:
        """A release is a weighted mean of noisy sums."""
        return None

    def stream(self, shape: Shape, law: Any) -> NoiseStream:
        """One draw a release."""
        from jaxprivrl.privatizers import streams

        if not isinstance(law, Gaussian):
            raise ValueError(f"Honaker's estimate is streamed for Gaussian noise, got {law.name}. Use Tree.")
        return streams.honaker_stream(shape, law.sample)


def heaviest_below(num_leaves: int, weight: Callable[[int], float]) -> float:
    """max over 0 <= k < J of the sum of weight(j) over the set bits j of k, for positive weights."""
    last = num_leaves - 1
    bits = [j for j in range(last.bit_length()) if last >> j & 1]
    candidates = [math.fsum(map(weight, bits))]
    for i in bits:  # k leaves the prefix of J - 1 at bit i: all lower bits are then free
        candidates.append(math.fsum(weight(j) for j in bits if j > i) + math.fsum(map(weight, range(i))))
    return max(candidates)


def tree_matrix(num_releases: int, refined: bool) -> np.ndarray:
    """B of a tree, f64[J, nodes]: the draws of the live nodes of each release, as they are or refined from below."""
    J = num_releases
    nodes = [(end, j) for end in range(1, J + 1) for j in range(end.bit_length()) if end % 2**j == 0]
    unit = dict(zip(nodes, np.eye(len(nodes)), strict=True))  # the node of 2^j leaves that ends with `end`

    def estimate(end: int, j: int) -> np.ndarray:
        if not refined or j == 0:
            return unit[end, j]
        own = honaker_variance(j)  # also the weight of the node itself in the inverse-variance mean
        return own * unit[end, j] + (1 - own) * (estimate(end, j - 1) + estimate(end - 2 ** (j - 1), j - 1))

    blocks = [[(k >> j << j, j) for j in range(k.bit_length()) if k >> j & 1] for k in range(1, J + 1)]
    return np.array([np.sum([estimate(*node) for node in row], 0) for row in blocks])


def _log_users(problem: Problem) -> float:
    """ln K."""
    if problem.num_episodes == 1:
        raise ValueError("calibration='printed' has no noise at num_episodes=1 (ln 1 = 0). Use calibration='tight'.")
    return math.log(problem.num_episodes)


def _printed_scale(problem: Problem, epsilon: float) -> float:
    """3H ln K / epsilon."""
    return 3.0 * problem.horizon * _log_users(problem) / epsilon


# Release after n leaves = true counts + scale * sum of the noises of the live nodes (the ones in the binary expansion
# of n). One fresh draw per counter and release: that of the node that it completes.
# Privacy: JDP through the billboard lemma, at the epsilon that accounting computes from the scale, for one user = one
#   episode and at most as many episodes as it was calibrated for.
# Reference: Chowdhury and Zhou, AAAI 2022, Central-Privatizer; Chan, Shi and Song 2011 for the counter.
central_laplace = Privatizer(
    "central_laplace",
    trust="JDP",
    report=Report(),
    law=Laplace(),
    strategy=Tree(),
    runtime=additive,
    summary="The paper's Central-Privatizer: a binary tree with Laplace noise on every counter.",
    noise="binary tree, Laplace: √(2·popcount k) nodes",
    calibrations=(
        (
            "printed",
            Calibration(_printed_scale, lambda p, scale, prob: printed_errors(p, scale, prob, _log_users(p))),
        ),
        ("published_code", Calibration(published_scale)),
    ),
)

# The same tree with Gaussian noise on its nodes.
# Privacy: (epsilon, dp_delta)-JDP through the billboard lemma. A user is in at most L = floor(log2 J) + 1 nodes, so
#   replacing it moves the vector of all nodes by at most sqrt(L) D2 in L2, D2 the sensitivity of one user's counts; the
#   releases are sums of nodes, and the Gaussian mechanism covers users who react to earlier releases.
# Reference: Chan, Shi and Song 2011 for the tree; Balle and Wang, ICML 2018, for the scale of the noise.
central_gaussian = Privatizer(
    "central_gaussian",
    trust="JDP",
    report=Report(),
    law=Gaussian(),
    strategy=Tree(),
    runtime=additive,
    summary="The binary tree of `central_laplace` with Gaussian noise on its nodes.",
    noise="binary tree, Gaussian: √(popcount k) nodes",
)

# Privacy: as `central_gaussian`: the refinement is post-processing of its tree. The stream of all releases has exactly
#   the law of that computation, whatever the users do, as its noise is drawn independently of them. The tree shows more
#   than its refined releases do, so that these need 7 % less noise: what they show of a user is read off their
#   covariance.
# Reference: Honaker 2015; Kairouz et al., ICML 2021.
central_honaker = Privatizer(
    "central_honaker",
    trust="JDP",
    report=Report(),
    law=Gaussian(),
    strategy=Honaker(),
    runtime=additive,
    summary="The Gaussian tree with each node re-estimated from its subtree: about 0.74 times the error, online.",
    noise="the same tree, nodes refined bottom-up: up to √2 less",
)
