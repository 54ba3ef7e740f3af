"""Post-processing of releases: free of privacy cost, composable with every learner.

Noisy counts may be negative, and visits need not be the sum of transitions. Each step returns a Release whose errors
hold whenever those of the one it was given do. `std` stays that of the noise that was added.
"""

import functools
import itertools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from jaxprivrl.learners.base import Hyper, Plan, Steps
from jaxprivrl.learners.planning import worst_error
from jaxprivrl.mdp import Counts
from jaxprivrl.numerics.axes import at_stage, batch_last, stage_scan
from jaxprivrl.privatizers.base import Release
from jaxprivrl.problem import Shape

Array = jax.Array
Postprocessor = Callable[[Shape, Release], Release]

_NETWORK_SIZE = 32  # beyond it a sorting network takes too long to compile
_TINY = 1e-30


def none(shape: Shape, release: Release) -> Release:
    """The release as it is."""
    del shape
    return release


def clip(shape: Shape, release: Release) -> Release:
    """Non-negative and renormalised: visits cut at 0, and the nearest non-negative transitions that sum to them.

      N(s,a) = max(N~(s,a), 0),  N(s,a,s2) = max(N~(s,a,s2) - tau, 0) with tau such that sum_s2 N(s,a,s2) = N(s,a)
      C(s,a) = C~(s,a) cut to [0, N(s,a)]

    Nearest means least squares. Cutting transitions at 0 and taking visits from their sum would be simpler, but the
    noise of empty cells then adds up in the visits: the regret of `ucb_vi` on RiverSwim doubles instead of falling.

    While the errors e of the Release hold, tau lies between -(e_P + e_N/S) and e_P + e_N, so a transition count is off
    by at most 2 e_P + e_N. Visits stay within e_N, and a cost sum that is cut at N(s,a) is within e_N of the truth.
    """
    visits = jnp.maximum(release.counts.visits, 0.0)
    largest = itertools.accumulate(_descending(release.counts.transitions))  # sums of the n largest entries
    tau = functools.reduce(jnp.maximum, ((partial - visits) / n for n, partial in enumerate(largest, 1)))
    transitions = jnp.maximum(release.counts.transitions - _spread(tau, shape.num_states), 0.0)
    costs = jnp.clip(release.counts.costs, 0.0, visits)
    e = release.error
    error = Counts(e.visits, jnp.maximum(e.costs, e.visits), 2.0 * e.transitions + e.visits)
    return release._replace(counts=Counts(visits, costs, transitions), error=error)


def project(shape: Shape, release: Release) -> Release:
    """The post-processing of DP-UCBVI: the nearest counts that are non-negative and agree with the noisy visits.

      x solves  min t  s.t.  |x(s2) - N~(s,a,s2)| <= t,  x >= 0,  |sum_s2 x(s2) - N~(s,a)| <= E/4
      N(s,a,s2) = x(s2) + E/(2S),  N(s,a) = sum_s2 x(s2) + E/2,  C(s,a) = C~(s,a) cut to [0, N(s,a)]

    E is 4 times the largest error e of the Release, and x = 0 where the program has no solution (N~(s,a) + e < 0).
    While the errors of the Release hold, the true counts are feasible with t = e, so x is within 2e of them, and
    N(s,a) lies between the true visits and E more. Hence the new errors: E for visits and E/2 + E/(2S) for
    transitions; cutting costs to an interval that holds the true sum leaves their error as it was.

    Reference: Qiao and Wang, AISTATS 2023, the private counts of Sections 5.1 and 5.2.
    """
    S = shape.num_states
    worst = worst_error(release.error)
    e = batch_last(jnp.broadcast_to(worst, release.counts.visits.shape))
    x, total, _ = nearest_counts(release.counts.transitions, release.counts.visits, e)
    visits = total + 2.0 * e
    costs = jnp.clip(release.counts.costs, 0.0, visits)
    error = Counts(4.0 * worst, release.error.costs, (2.0 + 2.0 / S) * worst)
    return release._replace(counts=Counts(visits, costs, x + 2.0 / S * _spread(e, S)), error=error)


def nearest_counts(transitions: Array, visits: Array, slack: Array) -> tuple[Array, Array, Array]:
    """Solves min t s.t. |x - transitions| <= t, x >= 0, |sum x - visits| <= slack for each row, in closed form.

    A box of half-width t around the transitions meets the constraints if and only if its upper corner is
    non-negative and sums to at least visits - slack, and its lower corner, cut at 0, sums to at most visits + slack.
    The sum of the cut corner is the largest of 0 and sum_{i <= n} (i-th largest entry - t) over n, so each condition
    is a lower bound on t. The minimiser is not unique: x is the point on the line between the two corners whose sum
    is nearest to visits.

    Args:
      transitions: f32[H, S, A, S], of any sign.
      visits: f32[H, S, A].
      slack: f32[H, S, A], >= 0.

    Returns:
      x f32[H, S, A, S], its sums f32[H, S, A] and t f32[H, S, A]; (0, 0, infinity) for visits + slack < 0.
    """
    S = transitions.shape[-1]

    # The loop over stages keeps XLA from sorting again for every entry of x.
    def solve(carry: tuple[Any, ...], h: Array, constants: Any) -> tuple[tuple[Any, ...], Any]:
        row, total, e = (at_stage(x, h) for x in constants)
        low, high = total - e, total + e
        largest = list(itertools.accumulate(_descending(row)))  # sums of the n largest entries
        t = jnp.maximum(jnp.maximum(-jnp.min(row, -1), 0.0), (low - largest[-1]) / S)
        for n, partial in enumerate(largest, 1):
            t = jnp.maximum(t, (partial - high) / n)
        least = functools.reduce(jnp.maximum, (partial - n * t for n, partial in enumerate(largest, 1)))
        least, most = jnp.maximum(least, 0.0), largest[-1] + S * t
        target = jnp.clip(total, jnp.maximum(low, least), jnp.minimum(high, most))
        share = jnp.clip((target - least) / jnp.maximum(most - least, _TINY), 0.0, 1.0)
        return carry, (t, share, target, (high >= 0.0).astype(jnp.float32))

    constants = (transitions, visits, slack)
    t, share, target, feasible = stage_scan(solve, (), constants, transitions.shape[0])[1]
    half_width = _spread(t, S)
    lower, upper = jnp.maximum(transitions - half_width, 0.0), jnp.maximum(transitions + half_width, 0.0)
    x = (lower + _spread(share, S) * (upper - lower)) * _spread(feasible, S)
    return x, target * feasible, jnp.where(feasible > 0.0, t, jnp.inf)


def _spread(x: Array, n: int) -> Array:
    """Repeats x n times along a new last axis."""
    return batch_last(jnp.broadcast_to(x[..., None], (*x.shape, n)))


def _descending(x: Array) -> list[Array]:
    """The entries of the last axis in descending order, one array each.

    For few entries a sorting network of elementwise operations, which XLA fuses: a hundred times faster than its sort.
    """
    n = x.shape[-1]
    if n > _NETWORK_SIZE:
        x = jnp.sort(x, axis=-1, descending=True)
    columns = batch_last([x[..., i] for i in range(n)])
    for i, j in _exchanges(n) if n <= _NETWORK_SIZE else ():
        columns[i], columns[j] = jnp.maximum(columns[i], columns[j]), jnp.minimum(columns[i], columns[j])
    return columns


def _exchanges(n: int) -> list[tuple[int, int]]:
    """Compare-exchange pairs of Batcher's odd-even merge sort of n entries."""
    pairs = []
    p = 1
    while p < n:
        k = p
        while k >= 1:
            for j in range(k % p, n - k, 2 * k):
                for i in range(j, j + min(k, n - j - k)):
                    if i // (2 * p) == (i + k) // (2 * p):
                        pairs.append((i, i + k))
            k //= 2
        p *= 2
    return pairs


def compose(shape: Shape, postprocessor: Postprocessor, hyper: Hyper, learner: Steps) -> Steps:
    """The learner, fed with post-processed releases; their errors are first multiplied by its error_scale, if any."""

    def step(key: Array, state: Any, release: Release) -> tuple[Any, Plan, Any]:
        if "error_scale" in hyper:
            release = release._replace(error=jax.tree.map(lambda e: hyper["error_scale"] * e, release.error))
        return learner.step(key, state, postprocessor(shape, release))

    return Steps(learner.init, step)


POSTPROCESSORS: dict[str, Postprocessor] = {"none": none, "clip": clip, "project": project}
