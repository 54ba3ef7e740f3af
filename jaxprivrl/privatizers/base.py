"""What privatizers share on the device: the types between engine, privatizer and learner, and exact sums.

Every additive mechanism is written as exact sums plus noise that does not depend on the data and is drawn at unit
scale. The noise of a seed is then drawn once for all epsilons, the counts stay exact integers, and the noise can be
tested without data. The scale of the noise comes from `privacy.accounting`, through `Parameters`.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxprivrl.mdp import Counts
from jaxprivrl.numerics import random
from jaxprivrl.numerics.axes import keep_rows
from jaxprivrl.privacy import errors
from jaxprivrl.privacy.accounting import Calibrated
from jaxprivrl.privacy.privatizer import Privatizer
from jaxprivrl.privacy.report import Report
from jaxprivrl.problem import Problem, Shape

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


class Clock(NamedTuple):
    """Public numbers, i32[] each, the same for every run of a batch.

    Attributes:
      users: who have reported.
      releases: that have been made.
      released: users in the last of them.
    """

    users: Array
    releases: Array
    released: Array


class Users(NamedTuple):
    """SENSITIVE: what m users of one policy report, before noise.

    Attributes:
      counts: sums over the users, f32 `[H, S, A(, S)]` by step; of sampled reports those of the drawn steps alone, of
        reports in bits with costs rounded to bits.
      groups: i32[H, parts], users who report each step (and family); None unless steps are drawn.
      number: m; the Python number 1 for a single user.
      before: i32[], users before these.
    """

    counts: Counts
    groups: Array | None
    number: Any
    before: Array


class Parameters(NamedTuple):
    """What accounting tells a privatizer: traced numbers, so that a grid of epsilons is one program.

    Attributes:
      scale: f32[], scale of one noise draw.
      error: Counts of f32[ROWS], high-probability error by bucket of the variance (see `privacy.errors`).
      data: the strategy's numbers that depend on the number of leaves, f32; the same for every epsilon of a sweep, as
        the noise of a seed is.
    """

    scale: Array
    error: Counts
    data: Any


class Totals(NamedTuple):
    """SENSITIVE: exact sums over users. Integers stay exact to 2**31; cost sums carry their rounding error."""

    visits: Array  # i32[H|1, S, A]
    costs: Array  # f32[H|1, S, A]
    cost_residue: Array  # f32[H|1, S, A]
    transitions: Array  # i32[H|1, S, A, S]


class State(NamedTuple):
    """State of every privatizer, by what its parts depend on.

    Attributes:
      seed: data-independent noise at unit scale: the same for every epsilon of a seed.
      cell: SENSITIVE Totals of one run.
    """

    seed: Any
    cell: Any


class Runtime(NamedTuple):
    """The device side of a privatizer: pure functions of one run; keys are consumed.

    Attributes:
      init: `() -> (State, Counts)`: before the first user, and the empty release.
      absorb: `(key, parameters, state, users) -> State`: m users report; the law is that of m single users.
      release: `(key, parameters, state, clock) -> (State, Counts)`: noisy counts of all who have been absorbed;
        clock.releases counts this one too.
      view: `(parameters, counts, clock) -> Release`: what the learner is told.
    """

    init: Callable[[], tuple[State, Counts]]
    absorb: Callable[[Key, Parameters, State, Users], State]
    release: Callable[[Key, Parameters, State, Clock], tuple[State, Counts]]
    view: Callable[[Parameters, Counts, Clock], Any]


def parameters(privatizer: Privatizer, problem: Problem, calibrated: Calibrated) -> Parameters:
    """What accounting found, as arrays of the types that every program expects."""
    data = privatizer.strategy.data(privatizer.num_leaves(problem))
    tables: Any = calibrated.errors
    host: Any = (round_up(calibrated.noise_scale), Counts(*tables), data)
    return Parameters(*jax.tree.map(lambda x: np.asarray(x, np.float32), host))


def round_up(scale: float) -> np.float32:
    """f32: a scale rounded down would fall short of the proof."""
    rounded = np.float32(scale)
    return np.nextafter(rounded, np.float32(np.inf)) if rounded < scale else rounded


def release_view(privatizer: Privatizer, shape: Shape) -> Callable[[Parameters, Counts, Clock], Release]:
    """The Release of noisy counts: with their standard deviations, and the errors of their variance's bucket."""
    strategy = privatizer.strategy

    def view(parameters: Parameters, counts: Counts, clock: Clock) -> Release:
        leaves = clock.released if strategy.per_user else clock.releases
        units = strategy.units(jnp, parameters.data, leaves)
        variances = privatizer.law.variance(jnp, privatizer.report, shape, parameters.scale, units)
        row = errors.bucket(jnp, units)
        error = jax.tree.map(lambda table: jax.lax.dynamic_index_in_dim(table, row, keepdims=False), parameters.error)
        return Release(counts, Counts(*map(jnp.sqrt, variances)), error, clock.released)

    return view


def report_one(key: Key, report: Report, shape: Shape, private: Array, counts: Counts, before: Array) -> Users:
    """What one user sends, from its counts by step; the key is consumed.

    Without noise (`private` false) every mechanism reports the counts themselves.
    """
    H, parts = shape.horizon, report.parts(shape)
    if counts.visits.shape[0] != H:
        raise ValueError(
            f"Got counts of {counts.visits.shape[0]} stages, expected {H}: a user reports the steps of an episode, "
            "before any pooling. Pass the counts by step."
        )
    counts = clip_costs(counts)
    if report.bits:
        u = random.uniform(key, (H, 1, 1))
        bit = (u < counts.costs).astype(jnp.float32)
        counts = counts._replace(costs=jnp.where(private, bit, counts.costs))
    if not report.step:
        return Users(counts, None, 1, before)
    W = report.weight(shape)
    part = jnp.minimum((random.uniform(key, ()) * W).astype(jnp.int32), W - 1)
    steps = jnp.arange(H) == part // parts
    groups = (steps[:, None] & (jnp.arange(parts) == part % parts)[None]).astype(jnp.int32)
    return Users(reported_by(report, shape, private, groups, counts), groups, 1, before)


def reported_by(report: Report, shape: Shape, private: Array, groups: Array, counts: Counts) -> Counts:
    """One user's counts with zeros where it does not report."""
    families = shape.families
    held = [groups[:, i if report.family else 0] > 0 for i in range(families)]
    kept = [keep_rows(x, b | ~private) for x, b in zip(counts[-families:], held, strict=True)]
    visits = kept[0] if families == 3 else counts.visits  # derived from transitions in the release
    return Counts(visits, *kept[-2:])


def encode(shape: Shape, counts: Counts) -> Counts:
    """Counts as they get their noise: with centred costs, C - N/2 in the place of C."""
    return counts._replace(costs=counts.costs - 0.5 * counts.visits) if shape.centred_costs else counts


def derived(shape: Shape, noisy: Counts) -> Counts:
    """The counts with visits summed from the transitions, if two families are released."""
    return noisy._replace(visits=jnp.sum(noisy.transitions, -1)) if shape.families == 2 else noisy


def pool(shape: Shape, counts: Counts) -> Counts:
    """Counts by step on the stage axis of the counters: as they are, or summed over h."""
    if shape.num_stages == 1:
        return jax.tree.map(lambda x: jnp.sum(x, 0, keepdims=True), counts)
    return counts


def zero_totals(zeros: Counts) -> Totals:
    """Totals of no users, shaped like a Counts of zeros."""
    v, c, t = zeros
    return Totals(v.astype(jnp.int32), c, jnp.zeros_like(c), t.astype(jnp.int32))


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
