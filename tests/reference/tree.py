"""Binary trees over the episodes: the Central-Privatizer, and its refinement from below."""

import numpy as np

from reference.reports import Privatizer


def trailing_zeros(k):
    """Index i of the lowest set bit of k >= 1."""
    i = 0
    while (k >> i) & 1 == 0:
        i += 1
    return i


class TreeLaplace(Privatizer):
    """Central-Privatizer (CZ, section 5.1) = binary mechanism of Chan, Shi and Song (their Algorithm 2), per counter.

    At episode k let i be the lowest set bit of k:
        alpha_i = sum_{j<i} alpha_j + x_k;   alpha_j = alphahat_j = 0 for j < i;   alphahat_i = alpha_i + b * z_k,
        release  sum of alphahat_j over the set bits j of k,
    with z_k the unit-scale draw of episode k (it belongs to the one node that episode k creates). The paper's scale is
    b = 3H log(K)/eps; here b = `scale`.
    """

    def __init__(self, Hs, S, A, scale, families=3):
        super().__init__(Hs, S, A, scale, families)
        self.alpha = [{} for _ in range(3)]
        self.alphahat = [{} for _ in range(3)]

    def update(self, counts, noise):
        self.episode += 1
        k = self.episode
        i = trailing_zeros(k)
        released = [None, None, None]
        for f in self.perturbed():
            alpha, alphahat = self.alpha[f], self.alphahat[f]
            total = np.asarray(counts[f], dtype=float)
            for j in range(i):
                total = total + alpha[j]
            for j in range(i):
                alpha[j] = np.zeros(self.shapes[f])
                alphahat[j] = np.zeros(self.shapes[f])
            alpha[i] = total
            alphahat[i] = total + self.scale[f] * np.asarray(noise[f], dtype=float)
            output = np.zeros(self.shapes[f])
            for j in range(k.bit_length()):
                if (k >> j) & 1:
                    output = output + alphahat[j]
            released[f] = output
        return self.assemble(released)


class TreeGaussian(TreeLaplace):
    """The same binary mechanism with standard normal unit draws and `scale` = the node standard deviation."""


def honaker_variance(level):
    """Variance factor of a refined node of height `level` (leaf = 0): v_0 = 1, v_j = 1 / (1 + 1/(2 v_{j-1})).

    Inverse variance weighting of the node's own value (variance 1) with the sum of its two refined children
    (variance 2 v_{j-1}); the closed form is 2^j / (2^(j+1) - 1).
    """
    v = 1.0
    for _ in range(level):
        v = 1.0 / (1.0 + 1.0 / (2.0 * v))
    return v


class HonakerTree(Privatizer):
    """Binary tree with bottom-up variance reduction (Honaker's estimate "from below"), online.

    Node (j, m) covers episodes m*2^j + 1 .. (m+1)*2^j. Its noisy value is y = (sum of x over the node) + b * z with one
    unit draw z per node. Refined estimates:
        leaf:   yhat = y
        node:   yhat = w * y + (1 - w) * (yhat_left + yhat_right),
                w = (1/1) / (1/1 + 1/(2 v_{j-1})),   v_j = 1 / (1/1 + 1/(2 v_{j-1})).
    Release after episode k: the sum of yhat over the nodes of the binary expansion of k, which cover 1..k disjointly.

    `noise` of episode k is a dict {level: (visits, costs, transitions)} with one entry for each node that is completed
    by episode k, i.e. levels 0..trailing_zeros(k).
    """

    def __init__(self, Hs, S, A, scale, families=3):
        super().__init__(Hs, S, A, scale, families)
        self.increments = [[], [], []]
        self.refined = [{}, {}, {}]

    def update(self, counts, noise):
        self.episode += 1
        k = self.episode
        released = [None, None, None]
        for f in self.perturbed():
            self.increments[f].append(np.asarray(counts[f], dtype=float))
            for j in range(trailing_zeros(k) + 1):
                m = k // 2**j - 1
                total = np.zeros(self.shapes[f])
                for t in range(m * 2**j, (m + 1) * 2**j):
                    total = total + self.increments[f][t]
                own = total + self.scale[f] * np.asarray(noise[j][f], dtype=float)
                if j == 0:
                    self.refined[f][(0, m)] = own
                else:
                    below = self.refined[f][(j - 1, 2 * m)] + self.refined[f][(j - 1, 2 * m + 1)]
                    precision_own = 1.0
                    precision_below = 1.0 / (2.0 * honaker_variance(j - 1))
                    w = precision_own / (precision_own + precision_below)
                    self.refined[f][(j, m)] = w * own + (1.0 - w) * below
            output = np.zeros(self.shapes[f])
            start = 0
            for j in range(k.bit_length() - 1, -1, -1):
                if (k >> j) & 1:
                    output = output + self.refined[f][(j, start // 2**j)]
                    start += 2**j
            released[f] = output
        return self.assemble(released)
