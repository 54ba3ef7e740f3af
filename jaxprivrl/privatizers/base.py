"""The privatizer protocol, and the form that the mechanisms share.

Every additive mechanism is written as exact prefix counts plus a noise stream that does not depend on the data and is
drawn at unit scale. The noise of a seed is then drawn once for all epsilons, the counts stay exact integers, and the
noise can be tested without data. The scale of the noise comes from `accounting`, through `NoiseParameters`.
"""

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from jaxprivrl.mdp import Counts, Shape

Array = jax.Array
Key = jax.Array


class Release(NamedTuple):
    """All that a learner may ever see: noisy cumulative counts and public facts about their noise.

    Attributes:
      counts: noisy Counts, f32 `[H|1, S, A(, S)]`.
      std: Counts of f32[], standard deviation of the noise on one entry of each family.
      error: Counts of f32[], bound on |noisy - true| of each family that holds with high probability (E1, E1, E2).
      num_episodes: i32[], number of users in the counts.
    """

    counts: Counts
    std: Counts
    error: Counts
    num_episodes: Array


class NoiseParameters(NamedTuple):
    """What accounting tells a privatizer: traced numbers, so that a grid of epsilons is one program.

    Attributes:
      scale: f32[], scale of one noise draw.
      error: Counts of f32[M], high-probability error by bucket of the episode number (see `precision`).
      strategy: f32[2, 5], what `host_strategy` returns; read by mechanisms that depend on K. The same for every epsilon
        of a sweep, as the noise of a seed is: it must not be batched where the noise is shared.
    """

    scale: Array
    error: Counts
    strategy: Array | None = None


class Totals(NamedTuple):
    """SENSITIVE: exact sums over users. Integers stay exact to 2**31; cost sums carry their rounding error."""

    visits: Array  # i32[H|1, S, A]
    costs: Array  # f32[H|1, S, A]
    cost_residue: Array  # f32[H|1, S, A]
    transitions: Array  # i32[H|1, S, A, S]


class BatchTotals(NamedTuple):
    """SENSITIVE: Totals of all users so far, and of those whose batch has closed."""

    now: Totals
    closed: Totals


class PrivatizerState(NamedTuple):
    """State of every privatizer, in three parts by what they depend on.

    Attributes:
      num_episodes: i32[], users seen: the same for every run of a batch.
      noise: data-independent noise at unit scale: the same for every epsilon of a seed.
      totals: SENSITIVE Totals of one run, BatchTotals of a batched mechanism.
    """

    num_episodes: Array
    noise: Any
    totals: Any


class Privatizer(NamedTuple):
    """A pair of pure functions; `step` is a scan body up to its key.

    Attributes:
      init: `(zero_counts) -> (state, release)`: exact zeros, what the first episode uses.
      step: `(key, state, counts_of_one_episode) -> (state, release)`; the counts have all H stages, whether the
        counters are pooled or not; the key is consumed.
    """

    init: Callable[[Counts], tuple[PrivatizerState, Release]]
    step: Callable[[Key, PrivatizerState, Counts], tuple[PrivatizerState, Release]]


class PrivatizerFactory(Protocol):
    """Signature of the entries of PRIVATIZERS."""

    def __call__(self, shape: Shape, parameters: NoiseParameters) -> Privatizer: ...


class NoiseStream(NamedTuple):
    """Data-independent noise on a running count, at unit scale.

    Attributes:
      init: `(zeros) -> state` for a tuple of arrays of counters.
      step: `(key, state, n) -> (state, noise)`: the noise of the release after n episodes, like `zeros`; it follows
        the key, or, where noise is made for a block of episodes, the key of the step that starts the block.
      std: `(n) -> f32[]`: standard deviation of one entry of that noise.
      bucket: `(n) -> i32[]`: row of the error table.
    """

    init: Callable[[Any], Any]
    step: Callable[[Key, Any, Array], tuple[Any, Any]]
    std: Callable[[Array], Array]
    bucket: Callable[[Array], Array]


def additive(shape: Shape, parameters: NoiseParameters, stream: NoiseStream) -> Privatizer:
    """Exact prefix counts plus `scale` times a noise stream: the common form of the mechanisms.

    With two families only costs and transitions get noise of their own; visits are the noisy transitions summed over
    s2, and their std grows by sqrt(S).
    """

    def release(totals: Totals, unit: Any, n: Array) -> Release:
        return noisy_release(shape, parameters, totals, unit, stream.std(n), n, stream.bucket(n))

    def init(zero_counts: Counts) -> tuple[PrivatizerState, Release]:
        totals = zero_totals(zero_counts)
        n = jnp.zeros((), jnp.int32)
        state = PrivatizerState(n, stream.init(tuple(zero_counts[-shape.families :])), totals)
        return state, release(totals, None, n)

    def step(key: Key, state: PrivatizerState, counts: Counts) -> tuple[PrivatizerState, Release]:
        n = state.num_episodes + 1
        totals = add_episode(state.totals, pool(shape, counts))
        noise_state, unit = stream.step(key, state.noise, n)
        return PrivatizerState(n, noise_state, totals), release(totals, unit, n)

    return Privatizer(init, step)


def batched(shape: Shape, parameters: NoiseParameters, stream: NoiseStream) -> Privatizer:
    """`additive` with releases that change only when a batch of users closes, on the schedule of `batch_index`.

    The stream counts batches in the place of episodes, and so do the error tables. Between two of them the last
    release stands, and no noise is drawn.
    """

    def release(closed: Totals, unit: Any, n: Array) -> Release:
        j = batch_index(n)
        return noisy_release(shape, parameters, closed, unit, stream.std(j), last_close(n), bucket=j)

    def init(zero_counts: Counts) -> tuple[PrivatizerState, Release]:
        totals, n = zero_totals(zero_counts), jnp.zeros((), jnp.int32)
        unit = tuple(zero_counts[-shape.families :])
        return PrivatizerState(n, (stream.init(unit), unit), BatchTotals(totals, totals)), release(totals, None, n)

    def step(key: Key, state: PrivatizerState, counts: Counts) -> tuple[PrivatizerState, Release]:
        n = state.num_episodes + 1
        now, closed = state.totals
        now = add_episode(now, pool(shape, counts))

        def close(key: Key, noise: Any, now: Totals, closed: Totals) -> tuple[Any, Totals]:
            del closed
            return stream.step(key, noise[0], batch_index(n)), now

        def hold(key: Key, noise: Any, now: Totals, closed: Totals) -> tuple[Any, Totals]:
            del key, now
            return noise, closed

        noise, closed = jax.lax.cond(n == last_close(n), close, hold, key, state.noise, now, closed)
        return PrivatizerState(n, noise, BatchTotals(now, closed)), release(closed, noise[1], n)

    return Privatizer(init, step)


def batch_index(n: Array) -> Array:
    """Batches that n episodes close, i32[]: 4 m + floor(n / 2^m), m = max(floor(log2 n) - 2, 0); four to an octave.

    The same numbers as `strategies.num_batches`, which accounting uses.
    """
    m = _batch_exponent(n)
    return 4 * m + (n >> m)


def last_close(n: Array) -> Array:
    """The last episode up to n that closed a batch, i32[]: n with all but its three leading bits cleared."""
    m = _batch_exponent(n)
    return (n >> m) << m


def _batch_exponent(n: Array) -> Array:
    return jnp.maximum(29 - jax.lax.clz(jnp.maximum(n, 1)), 0)


def noisy_release(
    shape: Shape, parameters: NoiseParameters, totals: Totals, unit: Any, unit_std: Array, n: Array, bucket: Array
) -> Release:
    """The Release of exact totals of n episodes and noise at unit scale, None for none yet.

    Centred costs C - N/2 get half the noisy visits back at once, as C + noise of the costs + half that of the visits.
    """
    scale, families = parameters.scale, shape.families
    if unit is None:
        noisy = true_counts(totals)
    else:
        visits, costs, transitions = (scale * x for x in of_three_families(unit, totals))
        if shape.centred_costs:
            costs = costs + 0.5 * (visits if families == 3 else jnp.sum(transitions, -1))
        noisy = add_noise(totals, Counts(visits, costs, transitions))
    std, spread = scale * unit_std, shape.num_states if families == 2 else 1
    std_costs = std * np.float32(np.sqrt(1 + spread / 4)) if shape.centred_costs else std
    stds = Counts(std * np.float32(np.sqrt(spread)), std_costs, std)
    return make_release(shape, parameters, noisy, stds, n, bucket)


def encode(shape: Shape, counts: Counts) -> Counts:
    """Counts as they get their noise: with centred costs, C - N/2 in the place of C."""
    return counts._replace(costs=counts.costs - 0.5 * counts.visits) if shape.centred_costs else counts


def make_release(
    shape: Shape, parameters: NoiseParameters, noisy: Counts, std: Counts, n: Array, bucket: Array
) -> Release:
    """The Release of n episodes: derives visits if two families are released, and looks the errors up."""
    if shape.families == 2:
        noisy = noisy._replace(visits=jnp.sum(noisy.transitions, -1))
    error = jax.tree.map(lambda table: jax.lax.dynamic_index_in_dim(table, bucket, keepdims=False), parameters.error)
    return Release(noisy, std, error, n)


def pool(shape: Shape, counts: Counts) -> Counts:
    """Counts of one episode, given by step, on the stage axis of the counters: as they are, or summed over h."""
    if shape.num_stages == 1:
        return jax.tree.map(lambda x: jnp.sum(x, 0, keepdims=True), counts)
    return counts


def zero_totals(zero_counts: Counts) -> Totals:
    """Totals of no users, shaped like a Counts of zeros."""
    v, c, t = zero_counts
    return Totals(v.astype(jnp.int32), c, jnp.zeros_like(c), t.astype(jnp.int32))


def add_episode(totals: Totals, counts: Counts) -> Totals:
    """Adds one user's counts."""
    return accumulate(totals, clip_costs(counts))


def clip_costs(counts: Counts) -> Counts:
    """One user's counts with costs in [0, visits]: the sensitivity relies on it."""
    return counts._replace(costs=jnp.clip(counts.costs, 0.0, counts.visits))


def accumulate(totals: Totals, counts: Counts) -> Totals:
    """Adds counts, or reports of them, with integer visits and transitions.

    Cost sums use compensated (Kahan) addition: at a million users plain float32 would lose whole units.
    """
    costs = counts.costs - totals.cost_residue
    total = totals.costs + costs
    return Totals(
        totals.visits + counts.visits.astype(jnp.int32),
        total,
        (total - totals.costs) - costs,
        totals.transitions + counts.transitions.astype(jnp.int32),
    )


def of_three_families(unit: Any, totals: Totals) -> Counts:
    """Noise of the released families as Counts, with zeros for visits that are not released but derived."""
    return Counts(*unit) if len(unit) == 3 else Counts(jnp.zeros_like(totals.costs), *unit)


def add_noise(totals: Totals, noise: Counts) -> Counts:
    """Exact totals plus noise, f32: the noise goes to the small part of each count, before anything is rounded.

    Privacy: sums rounded to float32 and then given noise would move by a unit of rounding in every later release of
      a run, far more in all than the one user who was replaced. What is rounded after the noise is the noise's own
      float32 grid, as everywhere.
    """
    return jax.tree.map(lambda high, low, z: high + (low + z), *exact_parts(totals), noise)


def exact_parts(totals: Totals) -> tuple[Counts, Counts]:
    """(high, low), f32 both, whose sum is exact, for costs to 2^-24 per user.

    The low part is an integer below 4096, or the rounding error of a sum of costs.
    """

    def split(x: Array) -> tuple[Array, Array]:
        low = x & 0xFFF
        return (x - low).astype(jnp.float32), low.astype(jnp.float32)

    (visits, low_visits), (transitions, low_transitions) = split(totals.visits), split(totals.transitions)
    return Counts(visits, totals.costs, transitions), Counts(low_visits, -totals.cost_residue, low_transitions)


def true_counts(totals: Totals) -> Counts:
    """The exact counts, rounded to f32."""
    return Counts(totals.visits.astype(jnp.float32), totals.costs, totals.transitions.astype(jnp.float32))
