"""The learner protocol and what learners share."""

import functools
import itertools
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from jaxprivrl.batching import batch_last
from jaxprivrl.mdp import Policy, Shape
from jaxprivrl.privatizers import Release

Array = jax.Array
Key = jax.Array


class Hyperparameters(NamedTuple):
    """Traced numbers of a learner: a sweep may vmap over any of them.

    Attributes:
      num_episodes: f32[], K, in the logarithms of the bonuses and the default step size.
      bonus_scale: f32[], multiplies the whole bonus.
      learning_rate: f32[], eta of mirror descent.
      failure_prob: f32[], the learner's delta.
    """

    num_episodes: Array
    bonus_scale: Array
    learning_rate: Array
    failure_prob: Array


def no_values(state: Any, release: Any) -> Array:
    """Stands in for `Learner.values` of a learner without a bound."""
    raise NotImplementedError("This learner states no bound on values. Use one of LEARNERS.")


class Learner(NamedTuple):
    """Pure functions; `step` is a scan body up to its key.

    Attributes:
      init: `() -> state`.
      step: `(key, state, release) -> (state, policy)`: the policy of the next episode; the key is consumed.
      values: `(state, release) -> f32[H, S]`: the optimistic costs to go that `step` plans with from the same state
        and release, also for learners that work with rewards (cost to go = steps to go - reward to go). At
        bonus_scale 1 they lie, with high probability, below V*, or below V of the policy for policy optimization.
    """

    init: Callable[[], Any]
    step: Callable[[Key, Any, Release], tuple[Any, Policy]]
    values: Callable[[Any, Release], Array] = no_values


class LearnerFactory(Protocol):
    """Signature of the entries of LEARNERS."""

    def __call__(self, shape: Shape, hyper: Hyperparameters) -> Learner: ...


def default_learning_rate(horizon: int, num_actions: int, num_episodes: int) -> float:
    """eta = sqrt(2 ln A / (H^2 K)), the step size of the paper's regret theorem for policy optimization."""
    return float(np.sqrt(2.0 * np.log(num_actions) / (horizon**2 * num_episodes)))


def greedy(q: Array, u: Array) -> Policy:
    """The least q, f32[..., A] one-hot; the m tied actions share the unit interval of u[...] equally.

    Ties are exact, so q must have been stored, as what a loop over stages returns has been: XLA may compute a value
    that it fuses into this function twice, with different rounding, and then nothing equals the least.
    """
    actions = batch_last([q[..., a] for a in range(q.shape[-1])])
    least = functools.reduce(jnp.minimum, actions)
    tied = [(x == least).astype(jnp.int32) for x in actions]
    before = [jnp.zeros_like(tied[0]), *itertools.accumulate(tied)]  # tied actions before each action, and in all
    m = before.pop()
    pick = jnp.minimum((u * m.astype(jnp.float32)).astype(jnp.int32), m - 1)
    chosen = [t * (n == pick).astype(jnp.int32) for t, n in zip(tied, before, strict=True)]
    return jnp.stack(chosen, -1).astype(jnp.float32)
