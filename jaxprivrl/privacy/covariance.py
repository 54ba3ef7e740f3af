"""L2 sensitivities of Gaussian strategies, from the matrix of the noise that is really added.

Host side (NumPy). The releases are y = A x + B z: x the contributions of the leaves (users, or epochs of them), A the
prefix sums, z independent N(0, 1), all times the noise scale. What can be learned from y about a change of one leaf by
a vector of length 1 depends on the covariance B B^T alone.
"""

import functools
import math

import numpy as np

Matrix = np.ndarray

_ROUNDED_UP = 1 + 1e-9  # more than double precision loses in these sums


def prefix_sums(num_releases: int) -> Matrix:
    """A of `l2_sensitivity`, f64[J, J]: release j is the sum of leaves 0..j."""
    return np.tril(np.ones((num_releases, num_releases)))


def l2_sensitivity(noise: Matrix, sums: Matrix | None = None) -> float:
    """max_i ||L^-1 A e_i||_2 with L L^T = B B^T: how far one leaf moves the releases in units of their noise, exactly.

    L^-1 y = L^-1 A x + standard normal noise is as informative as y, and a leaf that moves by d, |d| = 1, shifts it
    by (L^-1 A e_i) d. L^T is the R of a QR decomposition of B^T, which loses half the digits that B B^T would.

    Args:
      noise: B, f64[J, N] of rank J: release j has the noise sum_i B[j, i] z_i.
      sums: A, f64[J, leaves]; by default prefix sums over J leaves.
    Returns:
      The factor by which the L2 sensitivity of a leaf grows, rounded up.
    Privacy: exact for any B, so no more noise is needed than for the best matrix C with A = B C. Rows may be chosen
      in the light of earlier releases, as long as the matrices are fixed beforehand and B can be made lower triangular.
    Reference: Li, Miklau, Hay, McGregor and Rastogi, VLDB Journal 2015, for the matrix mechanism; Denisov, McMahan,
      Rush, Smith and Thakurta, NeurIPS 2022, for adaptive inputs.
    """
    from scipy.linalg import solve_triangular

    noise = np.asarray(noise, np.float64)
    sums = prefix_sums(len(noise)) if sums is None else np.asarray(sums, np.float64)
    if noise.shape[1] < noise.shape[0]:
        raise ValueError(f"{noise.shape[0]} releases have {noise.shape[1]} draws. Pass a matrix with a draw a release.")
    upper = np.linalg.qr(noise.T, mode="r")
    diagonal = np.abs(np.diag(upper))
    if not diagonal.min() > 1e-12 * diagonal.max():
        raise ValueError("Some releases have no noise of their own. Pass a noise matrix of full row rank.")
    moved = solve_triangular(upper, sums, trans="T")
    return float(np.sqrt((moved**2).sum(0).max())) * _ROUNDED_UP


def tree_norm(num_releases: int) -> float:
    """`l2_sensitivity` of the binary tree whose noise is one draw per node: sqrt(floor(log2 J) + 1), of leaf 1."""
    return math.sqrt(int(num_releases).bit_length())


@functools.lru_cache(maxsize=1024)
def honaker_norm(num_releases: int) -> float:
    """`l2_sensitivity` of the tree whose nodes are re-estimated from below, exactly and without its matrix; rounded up.

    Release n is a sum of estimates of nodes, and release n less release n without its lowest set bit is the estimate of
    the node that episode n completes, of height t = trailing zeros of n: all releases together are one estimate for
    each n. With D_t = 2^(t+1) - 1 it is noisy as
      D_t S_n + sum of the D_h noise_h of the live nodes of n - 1 of heights h < t + c_t z_n,  c_t^2 = (4^(t+1) - 1) / 3
    S_n the sum of the node's leaves. Less the estimates of those live nodes, which are known, D_t S_n - sum D_h S_h has
    the noise c_t z_n of its own: white. Leaf i is part of the nodes of n_0 = i, n_1 = n_0 + its lowest set bit, and so
    on up to J, whose heights t_0 < t_1 < ... are that of i and the zero bits of i above it. It moves them by D_(t_0),
    then, as part of the live node of height t_(k-1), by D_(t_k) - D_(t_(k-1)):
      ||.||^2 = 3 (2^(t_0+1) - 1) / (2^(t_0+1) + 1) + sum_k 12 (2^(t_k) - 2^(t_(k-1)))^2 / (4^(t_k+1) - 1).
    The largest over i <= J is found bit by bit from the top: what the bits below add depends on the height above and
    on whether the bits above are those of J. O(log^2 J).
    """
    J = int(num_releases)
    if J < 1:
        raise ValueError(f"Expected num_releases={num_releases} >= 1. Pass the number of releases.")

    def first(t: int) -> float:
        return 3.0 * (2.0 ** (t + 1) - 1) / (2.0 ** (t + 1) + 1)

    def step(below: int, above: int | None) -> float:
        if above is None:
            return 0.0
        return 12.0 * (1 - 2.0 ** (below - above)) ** 2 / (4 - 4.0**-above)

    @functools.cache
    def best(p: int, above: int | None, tight: bool) -> float:
        """Most that bits p, p-1, ..., 0 of i add, if `above` is the next height and `tight` says that i agrees with J.

        A zero at p adds the node of the number that has a one there instead, zeros below: beyond J if tight on a zero.
        """
        if p < 0:
            return -math.inf  # i has no lowest set bit
        bit = (J >> p) & 1
        zero_is_height = not tight or bit == 1
        found = [best(p - 1, p, False) + step(p, above)] if zero_is_height else [best(p - 1, above, True)]
        if not tight or bit == 1:
            found.append(best(p - 1, above, tight))  # a one that is not the lowest
            found.append(first(p) + step(p, above))  # the lowest
        return max(found)

    return math.sqrt(best(J.bit_length() - 1, None, True)) * _ROUNDED_UP
