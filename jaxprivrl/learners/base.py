"""The learner protocol and what learners share."""

import functools
import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxprivrl import _validate
from jaxprivrl.mdp import Policy
from jaxprivrl.numerics.axes import batch_last
from jaxprivrl.parameters import Parameter
from jaxprivrl.privatizers.base import Release
from jaxprivrl.problem import Problem, Shape

Array = jax.Array
Key = jax.Array
Hyper = Mapping[str, Array]  # traced numbers f32[] by name: the declared parameters, and num_episodes


class Plan(NamedTuple):
    """What the users of the next epoch play and report.

    Attributes:
      policy: f32[H, S, A], rows sum to one.
      reporting: the public rule by which users report, f32[H, S, A]; None for every step, or the privatizer's own rule.
    """

    policy: Policy
    reporting: Array | None = None


class Info(NamedTuple):
    """What a learner says of its planning.

    Attributes:
      values: f32[H, S], the optimistic costs to go that the plan was made with, also of learners that work with rewards
        (cost to go = steps to go - reward to go). At bonus_scale 1 they lie, with high probability, below V*, or below
        V of the policy for policy optimization.
    """

    values: Array


class Metric(NamedTuple):
    """A number that a learner reports beside its plan.

    Attributes:
      name: in results.
      meaning: for people.
      reduce: over the episodes between two records: "sum" (from the start), "mean" or "last".
      of: `(info, initial) -> f32[]`, initial f32[S] the distribution of the first state.
    """

    name: str
    meaning: str
    reduce: str
    of: Callable[[Any, Array], Array]


class Steps(NamedTuple):
    """A learner of given sizes and numbers: pure functions; `step` is a scan body up to its key.

    Attributes:
      init: `() -> state`.
      step: `(key, state, release) -> (state, plan, info)`: the plan of the next users, and a NamedTuple, or (), of what
        the learner says of it; the key is consumed.
    """

    init: Callable[[], Any]
    step: Callable[[Key, Any, Release], tuple[Any, Plan, Any]]


@dataclass(frozen=True)
class Learner:
    """A learner as the registry knows it.

    Attributes:
      name: as in the registry.
      make: `(shape, hyper) -> Steps`, for one run; hyper has the declared parameters and num_episodes.
      parameters: what a sweep may vary, with defaults; a default may be a function of the Problem.
      postprocess: what its paper does to releases, a name in POSTPROCESSORS.
      metrics: what a sweep may record beside the regret.
      realised: whether its regret is the realised one, unless a spec says otherwise.
      summary: one line for people.
      bound, trust, paper: for the table of the README.
    """

    name: str
    make: Callable[[Shape, Hyper], Steps]
    parameters: tuple[Parameter, ...] = ()
    postprocess: str = "none"
    metrics: tuple[Metric, ...] = ()
    realised: bool = False
    summary: str = ""
    bound: str = ""
    trust: str = ""
    paper: str = ""

    def defaults(self, problem: Problem) -> dict[str, float]:
        """Value of each declared parameter for a problem, unless it is given."""
        return {p.name: float(p.default(problem) if callable(p.default) else p.default) for p in self.parameters}


def _not_negative(name: str, value: float) -> float:
    return _validate.finite_at_least(name, value, 0.0, "Use 1 for what the paper derives, 0 for none.")


BONUS_SCALE = Parameter("bonus_scale", 1.0, "multiplies the whole exploration bonus", _not_negative)
ERROR_SCALE = Parameter("error_scale", 1.0, "multiplies the error bounds E that the learner reads", _not_negative)
FAILURE_PROB = Parameter("failure_prob", 0.1, "the learner's failure probability (delta)", _validate.probability)
COMMON = (BONUS_SCALE, ERROR_SCALE, FAILURE_PROB)
PLANNED_VALUE = Metric(
    "planned_value",
    "the optimistic cost of an episode that the plan was made with",
    "mean",
    lambda info, initial: jnp.sum(initial * info.values[0]),
)


def default_learning_rate(problem: Problem) -> float:
    """eta = sqrt(2 ln A / (H^2 K)), the step size of the paper's regret theorem for policy optimization."""
    H, A, K = problem.horizon, problem.num_actions, problem.num_episodes
    return float(np.sqrt(2.0 * np.log(A) / (H**2 * K)))


LEARNING_RATE = Parameter(
    "learning_rate",
    default_learning_rate,
    "step size of mirror descent, by default sqrt(2 ln A / (H^2 K))",
    lambda name, value: _validate.finite_at_least(name, value, 0.0, "Leave it out for the paper's step size."),
    float,
)


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
