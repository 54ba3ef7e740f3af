"""Mechanisms whose reports are not the counts plus noise: randomised bits, shuffled bits, one step out of H."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxprivrl import noise
from jaxprivrl.batching import add_to_rows, batch_last, keep_rows
from jaxprivrl.mdp import Counts, Shape
from jaxprivrl.privatizers.base import (
    BatchTotals,
    NoiseParameters,
    Privatizer,
    PrivatizerState,
    Release,
    Totals,
    accumulate,
    add_noise,
    clip_costs,
    make_release,
    of_three_families,
    pool,
    true_counts,
    zero_totals,
)
from jaxprivrl.privatizers.streams import draw_like, log_bucket, settle, workspace

Array = jax.Array
Key = jax.Array


def local_bernoulli(shape: Shape, parameters: NoiseParameters) -> Privatizer:
    """Randomised response: each user flips every indicator bit of every step with probability 1 / (1 + e^(1/scale)).

    The bits of step h are 1{s_h = s, a_h = a}, the same with s_{h+1} = s2, and a cost bit, 1 with probability c_h at
    the visited (s, a). With g = 1 - 2 flip = tanh(1 / (2 scale)), a reported sign y = +-1 has mean g (2 bit - 1), so
      release after n episodes = (sum of the signs) / (2 g) + n / 2
    is unbiased; pooled counters sum the signs of all H steps, and n H / 2. A scale of 0 reports the counts themselves.
    `Release.std` is exact for visits and transitions; for costs, whose rounding adds to it, it is an upper bound.

    Privacy: pure LDP at 2 H families / scale. At each step and for each family, the cells of two users' visits are at
      most two, so at most two bits differ; each changes the log-likelihood of its report by at most 1 / scale. A
      rounded cost is a mixture of the two bits, and so is its report: no probability leaves [flip, 1 - flip]. Reports
      are 32-bit words compared with a threshold that is rounded towards the fair coin. Summing is post-processing.
    Reference: Chowdhury and Zhou, AAAI 2022, remark on Bernoulli noise; Warner 1965.
    """
    randomise, release = _bits("local_bernoulli", shape, parameters)

    def init(zero_counts: Counts) -> tuple[PrivatizerState, Release]:
        n, totals = jnp.zeros((), jnp.int32), zero_totals(zero_counts)
        return PrivatizerState(n, (), totals), release(totals, n, log_bucket(n))

    def step(key: Key, state: PrivatizerState, counts: Counts) -> tuple[PrivatizerState, Release]:
        n = state.num_episodes + 1
        totals = accumulate(state.totals, randomise(key, counts))
        return PrivatizerState(n, (), totals), release(totals, n, log_bucket(n))

    return Privatizer(init, step)


def shuffle_batched(shape: Shape, parameters: NoiseParameters) -> Privatizer:
    """The bits of `local_bernoulli`, mixed by a shuffler over batches of K / 8 users: far fewer need to be flipped.

    For each bit of each step the shuffler permutes the bits of a batch, so the agent learns their sum. The release
    after n episodes is the debiased sum of the bits of the users in the batches that have closed, and stands until the
    next one closes; a last, smaller batch is never released. `parameters.strategy` holds the size of a batch.

    Privacy: (epsilon, dp_delta)-SDP: users trust the shuffler of their batch, not the agent. At each step and for each
      family at most two bits of a user differ; the sum of a bit over the batch hides it among the coins that the
      others tossed (see `composition`), and those of different bits are independent. A user is in one batch, which
      alone depends on it; later users may react to its sums. Without the shuffler the reports are still LDP at
      2 H families / scale, which is what `epsilon_pure` says.
    Reference: Balle, Bell, Gascon and Nissim, CRYPTO 2019, for the privacy blanket; Chowdhury and Zhou, AAAI 2022, for
      the bits. Batches and constants are our own: Bai et al. (arXiv:2411.11647) give no constants to follow.
    """
    if parameters.strategy is None:
        raise ValueError("shuffle_batched has no batch. Pass NoiseParameters(strategy=host_strategy(name, K)).")
    size = jnp.maximum(parameters.strategy[0, 0].astype(jnp.int32), 1)
    randomise, release = _bits("shuffle_batched", shape, parameters)

    def init(zero_counts: Counts) -> tuple[PrivatizerState, Release]:
        n, totals = jnp.zeros((), jnp.int32), zero_totals(zero_counts)
        return PrivatizerState(n, (), BatchTotals(totals, totals)), release(totals, n, n)

    def step(key: Key, state: PrivatizerState, counts: Counts) -> tuple[PrivatizerState, Release]:
        n = state.num_episodes + 1
        now, closed = state.totals
        now = accumulate(now, randomise(key, counts))
        closed = jax.tree.map(lambda new, old: jnp.where(n % size == 0, new, old), now, closed)
        batches = n // size
        return PrivatizerState(n, (), BatchTotals(now, closed)), release(closed, batches * size, batches)

    return Privatizer(init, step)


def _bits(
    name: str, shape: Shape, parameters: NoiseParameters
) -> tuple[Callable[[Key, Counts], Counts], Callable[[Totals, Array, Array], Release]]:
    """`randomise(key, counts)`: signs of the flipped bits; `release(totals, n, bucket)`: their debiased sums."""
    H, families, private = shape.horizon, shape.families, parameters.scale > 0
    threshold = bit_threshold(parameters.scale)
    bits = np.float32(H // shape.num_stages)  # of each counter in one report
    gain = threshold.astype(jnp.float32) * np.float32(2.0**-31)
    unit = 0.5 / jnp.sinh(0.5 / parameters.scale)
    unit_costs = jnp.where(private, 0.5 / gain, 0.0)
    unit_visits = unit * np.float32(np.sqrt(shape.num_states)) if families == 2 else unit

    def randomise(key: Key, counts: Counts) -> Counts:
        _check_stages(name, shape, counts)
        counts = clip_costs(counts)
        words = draw_like(_words, key, tuple(counts[-families:]))
        signs = [_sign(word, x, threshold) for word, x in zip(words, counts[-families:], strict=True)]
        visits = signs[0] if families == 3 else jnp.zeros_like(counts.visits)
        reports = Counts(visits, signs[-2], signs[-1])
        return pool(shape, jax.tree.map(lambda y, x: jnp.where(private, y, x), reports, counts))

    def release(totals: Totals, n: Array, bucket: Array) -> Release:
        half = 0.5 * bits * n.astype(jnp.float32)
        noisy = jax.tree.map(lambda x: jnp.where(private, x * (0.5 / gain) + half, x), true_counts(totals))
        root = jnp.sqrt(bits * n.astype(jnp.float32))
        std = Counts(root * unit_visits, root * unit_costs, root * unit)
        return make_release(shape, parameters, noisy, std, n, bucket)

    return randomise, release


def local_sampled(shape: Shape, parameters: NoiseParameters) -> Privatizer:
    """Each user reports one step h, drawn uniformly, with the whole budget; the report is weighted by H.

      report = H 1{h drawn} (x_h + scale * Lap(1)) for each counter of step h (pooled: of the one stage there is)

    Unbiased. The noise of a stage-dependent count has variance 2 H scale^2, with a scale that is H times smaller than
    that of `local_laplace`: H times less. Drawing a step adds the variance (H - 1) x_h^2, which depends on the data
    (pooled: H sum_h x_h^2 - (sum_h x_h)^2); `Release.std` holds its largest value, (H - 1) or H^2 / 4 per user. A scale
    of 0 reports the counts themselves, all steps of them.

    Privacy: pure LDP at 2 families / scale. The drawn step does not depend on the data, so the report is a mixture over
      h, with the same weights for both users, of reports in which at most two cells of each family differ, by at most
      1; that h is public does not change this.
    Reference: Nguyen et al. 2016 (arXiv:1606.05053) and Wang et al., ICDE 2019, who sample attributes in this way.
    """
    return _sampled("local_sampled", shape, parameters, 1)


def local_sampled_family(shape: Shape, parameters: NoiseParameters) -> Privatizer:
    """Each user reports one family of one step, both drawn uniformly, with the whole budget, weighted by H families.

      report = H F 1{h and f drawn} (x_hf + scale * Lap(1)) for each counter of family f at step h, F = families

    Unbiased. A second lever beside `local_sampled`: the scale is F times smaller again and the weight F times larger,
    but one report in F carries noise, so its variance, 2 H F scale^2, is F times less, pooled counts (H times that)
    included. Drawing adds (H F - 1) x_h^2, pooled H F sum_h x_h^2 - (sum_h x_h)^2; `Release.std` holds the largest
    value, H F - 1 or H^2 (F - 1) per user. It pays while 8 H F / epsilon^2 is large beside that.

    Privacy: pure LDP at 2 / scale: a mixture over (h, f), drawn independently of the data, of reports in which at most
      two cells of one family differ, by at most 1.
    Reference: as for `local_sampled`.
    """
    return _sampled("local_sampled_family", shape, parameters, shape.families)


def _sampled(name: str, shape: Shape, parameters: NoiseParameters, parts: int) -> Privatizer:
    """Reports of one step, of all families (one part) or of one of them (as many parts as families)."""
    H, families, scale = shape.horizon, shape.families, parameters.scale
    pooled, private, W = shape.num_stages == 1, scale > 0, shape.horizon * parts
    weight = jnp.where(private, np.float32(W), np.float32(1))
    largest = (H * H * (parts - 1) if parts > 1 else H * H / 4) if pooled else W - 1
    drawing = jnp.where(private, np.float32(largest), 0.0)
    own = np.float32(2 * (W * H if pooled else W)) * scale * scale
    spread = np.float32(shape.num_states if families == 2 else 1)

    def release(totals: Totals, unit: Any, n: Array) -> Release:
        noisy = add_noise(totals, jax.tree.map(lambda x: scale * x, of_three_families(unit, totals)))
        noisy = jax.tree.map(lambda x: weight * x, noisy)
        users = n.astype(jnp.float32)
        std = jnp.sqrt(users * (drawing + own))
        std_visits = jnp.sqrt(users * (drawing + spread * own))
        return make_release(shape, parameters, noisy, Counts(std_visits, std, std), n, log_bucket(n))

    def init(zero_counts: Counts) -> tuple[PrivatizerState, Release]:
        n, totals, unit = jnp.zeros((), jnp.int32), zero_totals(zero_counts), tuple(zero_counts[-families:])
        rows = workspace(jax.tree.map(lambda x: x[0], unit))
        return PrivatizerState(n, (rows, unit), totals), release(totals, unit, n)

    def step(key: Key, state: PrivatizerState, counts: Counts) -> tuple[PrivatizerState, Release]:
        _check_stages(name, shape, counts)
        n = state.num_episodes + 1
        key_step, key_noise = jax.random.split(key)
        part = jnp.minimum((noise.uniform(key_step, ()) * W).astype(jnp.int32), W - 1)
        drawn = jnp.arange(H) == part // parts
        held = [(part % parts == i) | (parts == 1) for i in range(families)]  # which of the released families
        counts = clip_costs(counts)
        rows, unit = state.noise
        rows, fresh = settle(rows, draw_like(noise.laplace, key_noise, jax.tree.map(lambda x: x[0], unit)), n)
        stages = jnp.ones((1,), bool) if pooled else drawn
        unit = tuple(add_to_rows(x, y, stages & b) for x, y, b in zip(unit, fresh, held, strict=True))
        reported = [keep_rows(x, (drawn & b) | ~private) for x, b in zip(counts[-families:], held, strict=True)]
        visits = reported[0] if families == 3 else counts.visits  # derived from transitions in the release
        totals = accumulate(state.totals, pool(shape, Counts(visits, *reported[-2:])))
        return PrivatizerState(n, (rows, unit), totals), release(totals, unit, n)

    return Privatizer(init, step)


def bit_threshold(scale: Array) -> Array:
    """t, i32[] in [0, 2^31): a uniform int32 word is below t with probability 1/2 + tanh(1 / (2 scale)) / 2, or less.

    ln(P(word < t) / P(word >= t)) never exceeds 1 / scale, and is within 1e-5 of it for scales from 0.1 to 1e4. Near
    certainty t comes from the small probability of a flip, elsewhere from the small difference of the two.
    """
    gain = jnp.tanh(0.5 / scale)
    flips = jnp.ceil(np.float32(2.0**32 * (1 + 6e-6)) / (1.0 + jnp.exp(1.0 / scale)))
    flips = jnp.clip(flips, 1.0, np.float32(2.0**30)).astype(jnp.int32)
    near = jnp.floor(jnp.minimum(gain, 0.5) * np.float32(2.0**31 * (1 - 1e-6))).astype(jnp.int32)
    return jnp.where(gain < 0.5, near, np.int32(2**31 - 1) - (flips - 1))


def _words(key: Key, shape: tuple[int, ...]) -> Array:
    """Uniform i32[shape]; the key is consumed."""
    return batch_last(jax.lax.bitcast_convert_type(jax.random.bits(key, shape, jnp.uint32), jnp.int32))


def _sign(word: Array, x: Array, threshold: Array) -> Array:
    """+1.0 with probability 1/2 + gain (x - 1/2), else -1.0, for x in [0, 1]: a Bernoulli(x) bit, flipped or not."""
    largest = jnp.minimum(threshold.astype(jnp.float32), np.float32(2.0**31 - 128))
    limit = ((2.0 * x - 1.0) * largest).astype(jnp.int32)
    limit = jnp.where(x == 1.0, threshold, jnp.where(x == 0.0, -threshold, jnp.clip(limit, -threshold, threshold)))
    return jnp.where(word < limit, np.float32(1), np.float32(-1))


def _check_stages(name: str, shape: Shape, counts: Counts) -> None:
    if counts.visits.shape[0] != shape.horizon:
        raise ValueError(
            f"{name} got counts of {counts.visits.shape[0]} stages, expected {shape.horizon}: it randomises each step "
            "of an episode before any pooling. Pass the counts by step."
        )
