"""Mechanisms with Gaussian noise: approximate guarantees, and far less noise than their pure counterparts."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
from scipy import optimize

from jaxprivrl.mdp import Shape
from jaxprivrl.privatizers.base import NoiseParameters, NoiseStream, Privatizer, additive, batched
from jaxprivrl.privatizers.streams import BLOCK, block_stream, honaker_stream, local_stream, tree_stream
from jaxprivrl.strategies import blt_parameters, num_batches, shuffle_size

Array = jax.Array

_NUM_BUFFERS = 4  # of every strategy that `blt_parameters` returns
_MAX_TOEPLITZ_EPISODES = 2**24 - 1
_MAX_TOEPLITZ_BYTES = 2**30


def central_gaussian(shape: Shape, parameters: NoiseParameters) -> Privatizer:
    """The binary tree of `central_laplace` with Gaussian noise on its nodes.

    Release after n episodes = true counts + scale * sum of the noises of the live nodes, N(0, popcount(n)).

    Privacy: (epsilon, dp_delta)-JDP through the billboard lemma. A user is in at most L = floor(log2 K) + 1 nodes, so
      replacing it moves the vector of all nodes by at most sqrt(L) D2 in L2, D2 the sensitivity of one user's counts;
      the releases are sums of nodes, and the Gaussian mechanism covers users who react to earlier releases.
    Reference: Chan, Shi and Song 2011 for the tree; Balle and Wang, ICML 2018, for the scale of the noise.
    """
    return additive(shape, parameters, tree_stream(shape, "gaussian"))


def central_honaker(shape: Shape, parameters: NoiseParameters) -> Privatizer:
    """The Gaussian tree with each node re-estimated from its subtree: about 0.74 times the error, online.

    A node of height j averages its own noisy sum and the sum of its two children's estimates by inverse variance,
    which leaves the variance 2^j / (2^(j+1) - 1) of the 1 it had. Release after n episodes = sum of the estimates of
    the live nodes. One draw per counter and episode (see `honaker_stream`).

    Privacy: as `central_gaussian`, at the same scale. The estimates are linear functions of the noisy nodes of that
      tree, known when they are used: post-processing. The stream of all releases has exactly the law of this
      computation, whatever the users do, as its noise is drawn independently of them; no more is needed.
    Reference: Honaker 2015, estimation from below; Kairouz et al., ICML 2021, for its use online.
    """
    return additive(shape, parameters, honaker_stream(shape))


def central_blt(shape: Shape, parameters: NoiseParameters) -> Privatizer:
    """Buffered linear Toeplitz mechanism: within 0.3 % of the least error of any Toeplitz mechanism, in 4 buffers.

    Release after n episodes = true counts + scale * (A C^-1 z)_n, with A the prefix sums, z white noise, and C the
    Toeplitz matrix of c_0 = 1, c_k = sum_i s_i d_i^(k-1). The s and d tuned for the next K up come as data in
    `parameters.strategy`, from `host_strategy`. The noise is made by `block_stream`.

    Privacy: (epsilon, dp_delta)-JDP through the billboard lemma. The releases are A C^-1 (C x + scale z), x the users'
      counts, hence a function of C x + scale z, released row by row. A user enters it through one column of C, so
      replacing it moves C x by at most ||c||_2 D2 in L2; C is lower triangular, so users may react to earlier releases.
    Reference: Dvijotham, McMahan, Pillutla, Steinke and Thakurta 2024 (arXiv:2404.16706); McMahan, Xu and Zhang 2024.
    """
    return additive(shape, parameters, _tuned_stream("central_blt", shape, parameters))


def central_batched(shape: Shape, parameters: NoiseParameters) -> Privatizer:
    """`central_blt` over batches of users: releases change four times per doubling, and carry half the noise.

    A learner gains little from a release after every episode, while each one costs noise: K = 2e4 episodes close 52
    batches, and the largest error of a strategy for 52 releases is 0.56 of that of one for 2e4. Between the ends of
    batches (1..8, 10, 12, 14, 16, 20, 24, 28, 32, 40, ...) the last release stands, and no noise is drawn at all.

    Privacy: as `central_blt`, with the sums of batches in the place of users: (epsilon, dp_delta)-JDP through the
      billboard lemma. A user is part of one batch, so it enters C x through one column of C, and replacing it moves
      C x by at most ||c||_2 D2, c the strategy for the batches of K episodes. The schedule does not depend on data.
    Reference: Dvijotham et al. 2024 for the strategy; rare updates as in Bai, Xie, Jiang and Wang, NeurIPS 2019.
    """
    return batched(shape, parameters, _tuned_stream("central_batched", shape, parameters))


def _tuned_stream(name: str, shape: Shape, parameters: NoiseParameters) -> NoiseStream:
    """The stream of the strategy in the parameters."""
    if parameters.strategy is None:
        raise ValueError(f"{name} has no strategy. Pass NoiseParameters(strategy=host_strategy('{name}', K)).")
    rates, weights = parameters.strategy[0], parameters.strategy[1]

    def std(n: Array) -> Array:
        """Root of b_0^2 + ... + b_{n-1}^2, b_t = sum_i weights_i (1 - rates_i)^t."""
        time = n.astype(jnp.float32)
        both = rates[:, None] + rates[None, :] - rates[:, None] * rates[None, :]
        some = jnp.where(both > 0, both, 1.0)
        sums = jnp.where(both > 0, -jnp.expm1(time * jnp.log1p(-some)) / some, time)
        return jnp.sqrt(jnp.sum(weights[:, None] * weights[None, :] * sums))

    return block_stream(shape, rates, weights, std)


def central_toeplitz(shape: Shape, parameters: NoiseParameters) -> Privatizer:
    """Square-root Toeplitz mechanism: the optimum that `central_blt` comes close to, for comparison.

    Release after n episodes = true counts + scale * (C z)_n with C C = A, c_k = binom(2k, k) / 4^k. The noise is
    streamed rather than computed beforehand by an FFT, which would take a memory of K numbers per counter and several
    times as long: c_k, a moment sequence, is a sum of exponentials to within 1e-6 of itself for all k below K, one or
    two for each doubling of K, so that C is a buffered linear Toeplitz strategy with many buffers, whose noise comes in
    blocks of a few episodes.

    Privacy: as `central_blt`, with this c. The exponentials are fitted from below, so that their norm does not exceed
      that of c, for which the noise is calibrated.
    Reference: Fichtenberger, Henzinger and Upadhyay, ICML 2023.
    """
    if shape.max_episodes > _MAX_TOEPLITZ_EPISODES:
        raise ValueError(
            f"central_toeplitz is for at most {_MAX_TOEPLITZ_EPISODES} episodes, the run is made for up to "
            f"{shape.max_episodes}. Use central_blt."
        )
    scale, decay = square_root_buffers(shape.max_episodes)
    rates, weights = noise_exponentials(scale.astype(np.float64), decay.astype(np.float64))
    rates, weights = rates[1:], weights[1:]  # nothing in b_t stays for ever
    counters = sum(math.prod(x.shape) for x in jax.eval_shape(shape.zero_counts)[-shape.families :])
    size = 4 * counters * (len(rates) + BLOCK)
    if size > _MAX_TOEPLITZ_BYTES:
        raise ValueError(
            f"central_toeplitz would need {size / 2**20:.0f} MiB for the noise of one seed "
            f"({len(rates) + BLOCK} numbers for each of {counters} counts), more than {_MAX_TOEPLITZ_BYTES >> 20}. "
            "Use central_blt."
        )
    return additive(shape, parameters, block_stream(shape, rates, weights, _square_root_std))


def local_gaussian(shape: Shape, parameters: NoiseParameters) -> Privatizer:
    """Each user adds fresh Gaussian noise to every entry of what it reports.

    Release after n episodes = true counts + scale * sum of n unit draws, N(0, n).

    Privacy: (epsilon, dp_delta)-LDP: replacing a user's episode moves its report by at most D2 in L2.
    Reference: Chowdhury and Zhou, AAAI 2022, Local-Privatizer, with the noise of Balle and Wang, ICML 2018.
    """
    return additive(shape, parameters, local_stream("gaussian"))


def host_strategy(privatizer: str, num_episodes: int) -> np.ndarray:
    """What `NoiseParameters.strategy` holds: numbers that depend on K, as data, so that K does not fix a program.

    Args:
      privatizer: name in MECHANISMS.
      num_episodes: K, which picks the rung of the ladder of tuned strategies.

    Returns:
      f32[2, 5]; zeros except for `shuffle_batched`, where the first number is the size of a batch, and for
      `central_blt` and `central_batched`, where the rows are the rates and the weights of the noise coefficients b_t.

    Privacy: a public function of sizes. Rounded up by more than float32 can lose, so that the noise is never less than
      accounting takes it to be.
    """
    numbers = np.zeros((2, 1 + _NUM_BUFFERS), np.float32)
    if privatizer not in ("central_blt", "central_batched"):
        numbers[0, 0] = shuffle_size(num_episodes) if privatizer == "shuffle_batched" else 0
        return numbers
    releases = num_episodes if privatizer == "central_blt" else num_batches(num_episodes)
    decay, scale = (np.asarray(x, np.float64) for x in blt_parameters(releases))
    return np.stack(noise_exponentials(scale, 1 - decay)).astype(np.float32)


def noise_exponentials(scale: np.ndarray, decay: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(rates, weights), f64 each, of the coefficients b_t = sum_i weights_i (1 - rates_i)^t of the noise A C^-1 z.

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
    return np.append(0.0, rates), (1 + 1e-6) * weights


def _round_down(values: np.ndarray) -> np.ndarray:
    rounded = np.asarray(values, np.float32)
    return np.where(rounded > values, np.nextafter(rounded, np.float32(-np.inf)), rounded)


@functools.lru_cache(maxsize=16)
def square_root_buffers(max_episodes: int) -> tuple[np.ndarray, np.ndarray]:
    """(scale, 1 - decay), f32[m] each, of sum_i scale_i decay_i^(k-1) just below binom(2k, k) / 4^k for 0 < k < K.

    binom(2k, k) / 4^k = (1/pi) integral of x^k / sqrt(x (1 - x)) over [0, 1]: exponentials with positive weights. The
    decays are spaced evenly in ln(-ln d); non-negative least squares of the relative error gives the weights.
    """
    K = max(max_episodes, 32)
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


def _square_root_std(n: Array) -> Array:
    """sqrt(c_0^2 + ... + c_{n-1}^2) for c_k = binom(2k, k) / 4^k: a Landau constant, by its asymptotic series."""
    square = np.append(1.0, _square_root_coefficients(np.arange(1.0, 16.0))) ** 2
    table = jnp.asarray(np.append(0.0, np.cumsum(square)), jnp.float32)
    t = jnp.maximum(n, 1).astype(jnp.float32)
    constant = np.float32((np.euler_gamma + 4 * math.log(2)) / math.pi)
    series = constant + (jnp.log(t) - 0.25 / t + np.float32(5 / 192) / (t * t)) * np.float32(1 / math.pi)
    return jnp.sqrt(jnp.where(n < 16, table[jnp.minimum(n, 16)], series))
