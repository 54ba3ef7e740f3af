"""Factorizations A = B C of the prefix sums: square root, buffered linear Toeplitz (BLT), and noise from them."""

import math

import numpy as np

from reference.reports import Privatizer


def prefix_sum_matrix(K):
    """A with A[t, j] = 1 for j <= t, else 0: (A x)_t = x_0 + ... + x_t."""
    A = np.zeros((K, K))
    for t in range(K):
        for j in range(t + 1):
            A[t, j] = 1.0
    return A


def toeplitz_matrix(coefficients):
    """Lower-triangular Toeplitz matrix C[t, j] = c_{t-j} for j <= t."""
    K = len(coefficients)
    C = np.zeros((K, K))
    for t in range(K):
        for j in range(t + 1):
            C[t, j] = coefficients[t - j]
    return C


def blt_matrix(decay, scale, K):
    """Strategy matrix of a buffered linear Toeplitz mechanism: c_0 = 1, c_k = sum_i s_i d_i^(k-1) for k >= 1."""
    c = [1.0]
    for k in range(1, K):
        c.append(sum(float(s) * float(d) ** (k - 1) for s, d in zip(scale, decay, strict=False)))
    return toeplitz_matrix(c)


def sqrt_toeplitz_matrix(K):
    """Square root of the prefix-sum matrix: A = C C with c_k = binom(2k, k) / 4^k."""
    return toeplitz_matrix([math.comb(2 * k, k) / 4**k for k in range(K)])


def blt_noise(decay, scale, z):
    """Noise in the released prefix sums of a BLT mechanism: A C^{-1} z, i.e. prefix sums of C^{-1} z. z is [K, ...]."""
    z = np.asarray(z, dtype=float)
    K = z.shape[0]
    C = blt_matrix(decay, scale, K)
    correlated = np.linalg.solve(C, z.reshape(K, -1))
    return (prefix_sum_matrix(K) @ correlated).reshape(z.shape)


def sqrt_toeplitz_noise(z):
    """Noise in the released prefix sums of the square-root mechanism: A C^{-1} z = C z. z is [K, ...]."""
    z = np.asarray(z, dtype=float)
    K = z.shape[0]
    return (sqrt_toeplitz_matrix(K) @ z.reshape(K, -1)).reshape(z.shape)


class MatrixMechanism(Privatizer):
    """Prefix sums plus B z for a factorization A = B C: release_k = sum_{j<=k} x_j + scale * sum_{j<=k} B[k-1,j-1] z_j.

    `decoder` is the dense lower-triangular K x K matrix B. BLT: B = A C^{-1}; square-root Toeplitz: B = C.
    """

    def __init__(self, Hs, S, A, scale, decoder, families=3):
        super().__init__(Hs, S, A, scale, families)
        self.decoder = np.asarray(decoder, dtype=float)
        self.total = [np.zeros(shape) for shape in self.shapes]
        self.draws = [[], [], []]

    def update(self, counts, noise):
        self.episode += 1
        k = self.episode
        released = [None, None, None]
        for f in self.perturbed():
            self.total[f] = self.total[f] + np.asarray(counts[f], dtype=float)
            self.draws[f].append(np.asarray(noise[f], dtype=float))
            output = np.array(self.total[f])
            for j in range(k):
                output = output + self.scale[f] * self.decoder[k - 1, j] * self.draws[f][j]
            released[f] = output
        return self.assemble(released)


def blt_decoder(decay, scale, K):
    """B = A C^{-1} for a BLT strategy C."""
    return prefix_sum_matrix(K) @ np.linalg.inv(blt_matrix(decay, scale, K))
