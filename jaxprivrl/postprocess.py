"""Post-processing of releases: free of privacy cost, composable with every learner.

Noisy counts may be negative, and visits need not be the sum of transitions. Each step returns a Release whose errors
hold whenever those of the one it was given do. `std` stays that of the noise that was added.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp

from jaxprivrl.batching import batch_last
from jaxprivrl.learners import Learner
from jaxprivrl.learners.rewards import worst_error
from jaxprivrl.mdp import Counts, Shape
from jaxprivrl.privatizers import Release

Array = jax.Array
Postprocessor = Callable[[Shape, Release], Release]

_NETWORK_SIZE = 32  # beyond it a sorting network takes too long to compile


def none(shape: Shape, release: Release) -> Release:
    """The release as it is."""
    del shape
    return release


def clip(shape: Shape, release: Release) -> Release:
    """Non-negative and renormalised: negative transition counts become 0, and visits their sum.

      N(s,a,s2) = max(N~(s,a,s2), 0),  N(s,a) = sum_s2 N(s,a,s2),  C(s,a) = C~(s,a) cut to [0, N(s,a)]
    """
    transitions = jnp.maximum(release.counts.transitions, 0.0)
    visits = jnp.sum(transitions, -1)
    costs = jnp.clip(release.counts.costs, 0.0, visits)
    e = release.error
    error = Counts(shape.num_states * e.transitions, e.costs + shape.num_states * e.transitions, e.transitions)
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
    e = batch_last(jnp.broadcast_to(worst_error(release.error), release.counts.visits.shape))
    x, _ = nearest_counts(release.counts.transitions, release.counts.visits, e)
    visits = jnp.sum(x, -1) + 2.0 * e
    costs = jnp.clip(release.counts.costs, 0.0, visits)
    worst = worst_error(release.error)
    error = Counts(4.0 * worst, release.error.costs, (2.0 + 2.0 / S) * worst)
    return release._replace(counts=Counts(visits, costs, x + 2.0 / S * e[..., None]), error=error)


def nearest_counts(transitions: Array, visits: Array, slack: Array) -> tuple[Array, Array]:
    """Solves min t s.t. |x - transitions| <= t, x >= 0, |sum x - visits| <= slack for each row, in closed form.

    A box of half-width t around the transitions meets the constraints if and only if its upper corner is
    non-negative and sums to at least visits - slack, and its lower corner, cut at 0, sums to at most visits + slack.
    The cut sum is the largest of sum_{i in I} (transitions_i - t) over sets I, and the sets of the largest entries
    suffice, so each condition is a lower bound on t. The minimiser is not unique: x is the point on the line between
    the two corners whose sum is nearest to visits.

    Args:
      transitions: f32[..., S], of any sign.
      visits: f32[...].
      slack: f32[...], >= 0.

    Returns:
      x f32[..., S] and t f32[...]; (0, infinity) where visits + slack < 0: no solution.
    """
    S = transitions.shape[-1]
    low, high = visits - slack, visits + slack
    total = jnp.sum(transitions, -1)
    t = jnp.maximum(jnp.maximum(0.0, -jnp.min(transitions, -1)), (low - total) / S)
    largest_sum = jnp.zeros(())
    for count, column in enumerate(_descending(transitions), 1):
        largest_sum = largest_sum + column
        t = jnp.maximum(t, (largest_sum - high) / count)
    lower = jnp.maximum(transitions - t[..., None], 0.0)
    upper = jnp.maximum(transitions + t[..., None], 0.0)
    least, most = jnp.sum(lower, -1), jnp.sum(upper, -1)
    target = jnp.clip(visits, jnp.maximum(low, least), jnp.minimum(high, most))
    share = jnp.clip((target - least) / jnp.maximum(most - least, 1e-30), 0.0, 1.0)
    x = lower + share[..., None] * (upper - lower)
    feasible = high >= 0.0
    return jnp.where(feasible[..., None], x, 0.0), jnp.where(feasible, t, jnp.inf)


def _descending(x: Array) -> list[Array]:
    """The entries of the last axis in descending order, one array each.

    For few entries a sorting network of elementwise operations, which XLA fuses: a hundred times faster than its sort.
    """
    n = x.shape[-1]
    if n > _NETWORK_SIZE:
        x = jnp.sort(x, axis=-1, descending=True)
    columns = [x[..., i] for i in range(n)]
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


def compose(shape: Shape, postprocessor: Postprocessor, learner: Learner) -> Learner:
    """The learner, fed with post-processed releases."""
    return Learner(
        learner.init,
        lambda key, state, release: learner.step(key, state, postprocessor(shape, release)),
        lambda state, release: learner.values(state, postprocessor(shape, release)),
    )


POSTPROCESSORS: dict[str, Postprocessor] = {"none": none, "clip": clip, "project": project}

# What each learner's paper says; "none" where it says nothing.
DEFAULTS: dict[str, str] = {"dp_ucb_vi": "project"}
