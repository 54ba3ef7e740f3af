"""NOT PRIVATE. The authors' released experiment, kept only to reproduce the published figure number by number.

The figure of Chowdhury and Zhou (AAAI 2022) was drawn by code that differs from the paper: stationary counts with
prior pseudo-counts, Laplace noise of scale 1 / epsilon whatever H and K, central noise drawn anew for each episode
instead of a tree, local noise shared by all (s, a), and a bonus constant of 2 ln 3. No finite epsilon is known to
hold for it (`Unaccounted` says why), so nothing here belongs to LEARNERS or PRIVATIZERS: the registries
below are separate, their members work only with one another, and the guarantee of every run is "none".

How the parts are arranged. In the released code the noise is not a mechanism's output: the planner draws it, already
before the first episode, when no user has reported. So the privatizers here only pool the exact counts; their release
holds these counts, the scale of the noise and, in its type, the way it is drawn. The learner draws the noise with the
key of its own step. That a learner sees exact counts is what the released code does; it is not what a Privatizer is
for. The noise of a seed is drawn at unit scale and shared by every epsilon, as everywhere else in the package.

Costs are turned back into rewards: reward = 1 - cost, summed as visits - costs.
"""

import dataclasses
import functools
import math
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxprivrl.learners.base import BONUS_SCALE, Hyper, Learner, Plan, Steps, greedy
from jaxprivrl.mdp import Counts, zero_counts
from jaxprivrl.numerics import random
from jaxprivrl.numerics.axes import at_stage, stage_scan
from jaxprivrl.privacy.laws import Moves, NoNoise, Score
from jaxprivrl.privacy.privatizer import Privatizer
from jaxprivrl.privacy.report import Report
from jaxprivrl.privacy.strategies import Strategy
from jaxprivrl.privatizers.base import (
    Clock,
    Parameters,
    Runtime,
    State,
    Users,
    accumulate,
    true_counts,
    zero_totals,
)
from jaxprivrl.privatizers.local import PerUser
from jaxprivrl.problem import Shape

Array = jax.Array
Key = jax.Array

BONUS_CONSTANT = 2.0 * math.log(3.0)  # g
LEARNING_RATE = math.sqrt(2.0 / 1000.0)  # eta, whatever K
_LOG_THRESHOLDS = np.array([math.ceil(math.exp(j)) for j in range(1, 22)], np.int32)  # first k with floor(ln k) = j
_HUGE = 2.0**32


class PublishedRelease(NamedTuple):
    """SENSITIVE: what a learner of this module is given. It is not a release in any private sense.

    Attributes:
      counts: exact Counts pooled over h, f32 `[1, S, A(, S)]`; transitions without those of the last step.
      scale: f32[], scale of one Laplace draw, 1 / epsilon.
      num_episodes: i32[], number of users in the counts.
    """

    counts: Counts
    scale: Array
    num_episodes: Array


class ExactRelease(PublishedRelease):
    """The learner adds no noise."""


class FreshNoiseRelease(PublishedRelease):
    """The learner adds noise drawn anew for each episode and (s, a): the released code's "JDP"."""


class SharedNoiseRelease(PublishedRelease):
    """The learner adds noise summed over users and shared by all (s, a): the released code's "LDP"."""


class Model(NamedTuple):
    """Optimistic stationary model of one planning step.

    Attributes:
      rewards: f32[S, A], rhat + b_r.
      bonus: f32[S, A], b_p, to be multiplied by the steps left.
      transitions: f32[S, A, S], phat; it may be negative and need not sum to one.
    """

    rewards: Array
    bonus: Array
    transitions: Array


def ucb_vi_steps(shape: Shape, hyper: Hyper) -> Steps:
    """The released code's optimistic value iteration.

      Q_h = rhat + b_r + phat . V_{h+1} + (H - h) b_p,  V_h = max_a Q_h, nothing clipped; ties go to action 0

    The state is the noise summed so far, f32[S + 2], used with `published_ldp` alone.

    Args:
      shape: static sizes.
      hyper: only `bonus_scale` is used; 1 is the published bonus.
    Returns:
      Steps that take a PublishedRelease.
    Privacy: none; it reads exact counts.
    Reference: the code released with Chowdhury and Zhou, AAAI 2022.
    """
    H, S = shape.horizon, shape.num_states

    def step(key: Key, summed: Array, release: Any) -> tuple[Array, Plan, tuple[()]]:
        summed, model = plan(shape, key, summed, release, hyper["bonus_scale"])

        def backward(carry: tuple[Array, Array], h: Array, model: Model) -> tuple[tuple[Array, Array], Array]:
            # Rows of phat may sum to far more than one, so V can outgrow float32. The greedy action does not depend
            # on a positive factor: V / unit is carried, and unit shrinks by a power of two when V is huge.
            scaled, unit = carry
            q = unit * immediate(shape, model, h) + jnp.sum(model.transitions * scaled[None, None, :], -1)
            scaled = jnp.max(q, -1)
            shrink = jnp.where(jnp.max(jnp.abs(scaled)) > _HUGE, 1.0 / _HUGE, 1.0)
            return (scaled * shrink, unit * shrink), -q

        start = (jnp.zeros(S), jnp.ones(()))
        policy = greedy(stage_scan(backward, start, model, H, reverse=True)[1], jnp.zeros((H, S)))
        return summed, Plan(policy), ()

    return Steps(init=lambda: jnp.zeros(S + 2), step=step)


def ucb_po_steps(shape: Shape, hyper: Hyper, *, learning_rate: float = LEARNING_RATE) -> Steps:
    """The released code's optimistic policy optimization.

      Q_h = clip(rhat + b_r + phat . V_{h+1} + (H - h) b_p, 0, H),  V_h = <pi_h, Q_h>
      pi^{k+1} proportional to pi^k exp(eta Q^k), pi^1 uniform

    The state is the pair of the logits, f32[H, S, A], centred at their largest, and the noise summed so far. A double
    that holds pi itself underflows below e^-744, logits do not. Of 32 seeds at K = 2e4 and epsilon 1, setting such a pi
    to zero for good changes none with `published_none` or `published_jdp`, and five with `published_ldp`, whose mean
    final regret moves by 2 %.

    Args:
      shape: static sizes.
      hyper: only `bonus_scale` is used; 1 is the published bonus. The step size does not follow a sweep's.
      learning_rate: eta; other values than the released code's exist for the controls of the tests.
    Returns:
      Steps that take a PublishedRelease.
    Privacy: none; it reads exact counts.
    Reference: the code released with Chowdhury and Zhou, AAAI 2022.
    """
    H, S, A = shape.horizon, shape.num_states, shape.num_actions

    def step(key: Key, state: tuple[Array, Array], release: Any) -> tuple[tuple[Array, Array], Plan, tuple[()]]:
        logits, summed = state
        summed, model = plan(shape, key, summed, release, hyper["bonus_scale"])
        policy = jax.nn.softmax(logits)

        def backward(value: Array, h: Array, constants: tuple[Model, Array]) -> tuple[Array, Array]:
            model, policy = constants
            q = immediate(shape, model, h) + jnp.sum(model.transitions * value[None, None, :], -1)
            q = jnp.clip(q, 0.0, float(H))
            return jnp.sum(at_stage(policy, h) * q, -1), q

        q = stage_scan(backward, jnp.zeros(S), (model, policy), H, reverse=True)[1]
        logits = logits + learning_rate * q
        return (logits - jnp.max(logits, -1, keepdims=True), summed), Plan(policy), ()

    return Steps(init=lambda: (jnp.zeros((H, S, A)), jnp.zeros(S + 2)), step=step)


def plan(shape: Shape, key: Key, summed: Array, release: Any, bonus_scale: Array) -> tuple[Array, Model]:
    """The noisy optimistic model from which episode k = num_episodes + 1 is planned; the key is consumed.

      m = 1 + transitions, n_P = sum_s2 m, n_R = 1 + visits, R = 1 + rewards, g = 2 ln 3
      exact:   phat = m/n_P,  rhat = R/n_R,  b_p = sqrt(g/n_P),  b_r = sqrt(g/n_R)
      fresh:   D_P = max(1, n_P + x1 + e),  D_R = max(1, n_R + x1 + e),  phat = (m + x2)/D_P,  rhat = (R + x3)/D_R,
               b_p = sqrt(g/D_P) + S e/D_P,  b_r = sqrt(g/D_R) + S e/D_R,  e = sqrt(floor(ln k) + 1)/epsilon
      shared:  the same with y for x and e = sqrt(k)/epsilon, but b_p = sqrt(g/D_P)

    Args:
      shape: static sizes.
      key: of the learner's step.
      summed: f32[S + 2], unit noise of users 1..k-1 (`shared` alone reads and returns it changed).
      release: PublishedRelease, whose type says which noise.
      bonus_scale: f32[], multiplies b_p and b_r.
    Returns:
      The noise of users 1..k, and the Model.
    """
    if not isinstance(release, PublishedRelease):
        raise TypeError(
            f"A published learner got a {type(release).__name__}; expected a PublishedRelease. "
            f"Use a privatizer of {', '.join(PRIVATIZERS)}."
        )
    visits, costs, m = (x[0] for x in release.counts)
    m = 1.0 + m
    n_P, n_R, R = jnp.sum(m, -1), 1.0 + visits, 1.0 + (visits - costs)
    S, A = shape.num_states, shape.num_actions
    k = release.num_episodes + 1
    terms = jnp.zeros((), jnp.int32)
    if isinstance(release, FreshNoiseRelease):
        terms = fresh_terms(k)
        unit = fresh_noise(key, terms, (S, A, S + 2), shape.max_releases)
    elif isinstance(release, SharedNoiseRelease):
        terms = k
        summed = summed + random.laplace(key, (S + 2,))
        unit = jnp.broadcast_to(summed[None, None], (S, A, S + 2))
    else:
        unit = jnp.zeros((S, A, S + 2))
    x1, x3, x2 = (release.scale * x for x in (unit[..., 0], unit[..., 1], unit[..., 2:]))
    e = release.scale * jnp.sqrt(terms.astype(jnp.float32))
    D_P, D_R = jnp.maximum(1.0, n_P + x1 + e), jnp.maximum(1.0, n_R + x1 + e)
    b_p, b_r = jnp.sqrt(BONUS_CONSTANT / D_P), jnp.sqrt(BONUS_CONSTANT / D_R) + S * e / D_R
    if isinstance(release, FreshNoiseRelease):
        b_p = b_p + S * e / D_P
    return summed, Model((R + x3) / D_R + bonus_scale * b_r, bonus_scale * b_p, (m + x2) / D_P[..., None])


def immediate(shape: Shape, model: Model, h: Array) -> Array:
    """rhat + b_r + (steps left) b_p at the 0-based stage h, f32[S, A]."""
    return model.rewards + (shape.horizon - 1 - h).astype(jnp.float32) * model.bonus


def fresh_terms(k: Array) -> Array:
    """J = floor(ln k) + 1 for k >= 1, i32[], from integers alone."""
    return 1 + jnp.sum(k >= _LOG_THRESHOLDS, dtype=jnp.int32)


def fresh_noise(key: Key, terms: Array, shape: tuple[int, ...], max_episodes: int) -> Array:
    """Independent sums of `terms` draws of Lap(1), f32[shape]; the key is consumed.

    As many draws are made as `max_episodes` may ever need, and masked; the sums do not depend on that number.
    """
    most = 1 + int(np.sum(_LOG_THRESHOLDS <= max_episodes))
    draws = jax.vmap(lambda key: random.laplace(key, shape))(jax.random.split(key, most))
    mask = (jnp.arange(most) < terms).reshape(most, *[1] * len(shape))
    return jnp.sum(jnp.where(mask, draws, 0.0), 0)


_REASONS = {
    "published_none": "the learner reads the exact counts.",
    "published_jdp": (
        "the released code draws its noise anew for every episode, so that it averages out, ignores the H steps of a "
        "user, and adds one and the same draw to two denominators, whose difference is then exact; no finite epsilon "
        "is known to hold."
    ),
    "published_ldp": (
        "the released code adds one and the same noise to the counts of all (s, a), whose differences are then exact, "
        "and ignores the H steps of a user; no finite epsilon is known to hold."
    ),
}


@dataclasses.dataclass(frozen=True)
class Unaccounted(NoNoise):
    """Noise of scale 1 / epsilon, as in the released code, for which no finite epsilon is known.

    Attributes:
      unaccounted: why.
    """

    unaccounted: str
    name: ClassVar[str] = "published"
    pure: ClassVar[bool] = True
    additive: ClassVar[bool] = True

    def scale_for(self, moves: Moves, epsilon: float, dp_delta: float | None) -> float:
        """1 / epsilon: what the published figure calls epsilon."""
        return 0.0 if math.isinf(epsilon) else 1.0 / epsilon

    def score(self, strategy: Strategy, num_users: int, num_releases: int, position: int) -> Score | None:
        """None is known."""
        return None


@dataclasses.dataclass(frozen=True)
class Silent(Unaccounted):
    """The released code's runs without noise."""

    name: ClassVar[str] = "none"

    def scale_for(self, moves: Moves, epsilon: float, dp_delta: float | None) -> float:
        """0."""
        return 0.0


def _runtime(kind: type[PublishedRelease], privatizer: Privatizer, shape: Shape) -> Runtime:
    """Exact counts summed over users and steps, without the transitions of the last step; keys are not used."""
    if shape.num_stages != shape.horizon:
        raise ValueError(
            f"Expected num_stages={shape.num_stages} to be the horizon {shape.horizon}: the published privatizers pool "
            "the stages themselves. Drop homogeneous."
        )
    del privatizer

    def pool(counts: Counts) -> Counts:
        recorded = counts._replace(transitions=counts.transitions[:-1])
        return jax.tree.map(lambda x: jnp.sum(x, 0, keepdims=True), recorded)

    def init() -> tuple[State, Counts]:
        zeros = pool(zero_counts(shape))
        return State((), zero_totals(zeros)), zeros

    def absorb(key: Key, parameters: Parameters, state: State, users: Users) -> State:
        del key, parameters
        return State((), accumulate(state.cell, pool(users.counts)))

    def release(key: Key, parameters: Parameters, state: State, clock: Clock) -> tuple[State, Counts]:
        del key, parameters, clock
        return state, true_counts(state.cell)

    def view(parameters: Parameters, counts: Counts, clock: Clock) -> PublishedRelease:
        return kind(counts, parameters.scale, clock.released)

    return Runtime(init, absorb, release, view)


_KINDS = {
    "published_none": ExactRelease,
    "published_jdp": FreshNoiseRelease,
    "published_ldp": SharedNoiseRelease,
}
_SUMMARIES = {
    "published_none": "Exact counts, no noise: the non-private curves of the published figure.",
    "published_jdp": 'Exact counts, to which the learner adds fresh noise: the "JDP" curves of the published figure.',
    "published_ldp": 'Exact counts, to which the learner adds shared noise: the "LDP" curves of the published figure.',
}
PRIVATIZERS: dict[str, Privatizer] = {
    name: Privatizer(
        name,
        trust="none",
        report=Report(),
        law=(Silent if name == "published_none" else Unaccounted)(_REASONS[name]),
        strategy=PerUser(),
        runtime=functools.partial(_runtime, kind),
        summary=_SUMMARIES[name],
    )
    for name, kind in _KINDS.items()
}
LEARNERS: dict[str, Learner] = {
    "published_ucb_vi": Learner(
        "published_ucb_vi",
        ucb_vi_steps,
        (BONUS_SCALE,),
        realised=True,
        summary="The released code's optimistic value iteration.",
    ),
    "published_ucb_po": Learner(
        "published_ucb_po",
        ucb_po_steps,
        (BONUS_SCALE,),
        realised=True,
        summary="The released code's optimistic policy optimization.",
    ),
}


def check_pair(learner: Learner, privatizer: Privatizer) -> None:
    """Raises unless both belong to the published experiment, or neither does."""
    if (learner.name in LEARNERS) != (privatizer.name in PRIVATIZERS):
        raise ValueError(
            f"'{learner.name}' does not run with '{privatizer.name}': the published experiment is a set of its own. "
            f"Pair {', '.join(LEARNERS)} with {', '.join(PRIVATIZERS)}."
        )
