"""NOT PRIVATE. The authors' released experiment, kept only to reproduce the published figure number by number.

The figure of Chowdhury and Zhou (AAAI 2022) was drawn by code that differs from the paper: stationary counts with
prior pseudo-counts, Laplace noise of scale 1 / epsilon whatever H and K, central noise drawn anew for each episode
instead of a tree, local noise shared by all (s, a), and a bonus constant of 2 ln 3. No finite epsilon is known to
hold for it (`calibrate` says why), so nothing here belongs to LEARNERS, PRIVATIZERS or MECHANISMS: the registries
below are separate, their members work only with one another, and the guarantee of every run is "none".

How the parts are arranged. In the released code the noise is not a mechanism's output: the planner draws it, already
before the first episode, when no user has reported. So the privatizers here only pool the exact counts; their release
holds these counts, the scale of the noise and, in its type, the way it is drawn. The learner draws the noise with the
key of its own step. That a learner sees exact counts is what the released code does; it is not what a Privatizer is
for. The noise of a seed is drawn at unit scale and shared by every epsilon, as everywhere else in the package.

Costs are turned back into rewards: reward = 1 - cost, summed as visits - costs.
"""

import dataclasses
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxprivrl import _validate, accounting, noise
from jaxprivrl.batching import at_stage, stage_scan
from jaxprivrl.learners.base import Hyperparameters, Learner, LearnerFactory, greedy
from jaxprivrl.mdp import Counts, Policy, Shape
from jaxprivrl.precision import Precision, Problem
from jaxprivrl.privatizers.base import (
    NoiseParameters,
    Privatizer,
    PrivatizerFactory,
    PrivatizerState,
    Totals,
    add_episode,
    true_counts,
    zero_totals,
)

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


def published_none(shape: Shape, parameters: NoiseParameters) -> Privatizer:
    """Exact counts, no noise: the non-private curves of the published figure.

    Privacy: none.
    """
    return _pooled_counts(shape, parameters, ExactRelease)


def published_jdp(shape: Shape, parameters: NoiseParameters) -> Privatizer:
    """Exact counts, to which the learner adds fresh noise: the "JDP" curves of the published figure.

    Privacy: none, whatever epsilon the scale is named after (see `calibrate`).
    """
    return _pooled_counts(shape, parameters, FreshNoiseRelease)


def published_ldp(shape: Shape, parameters: NoiseParameters) -> Privatizer:
    """Exact counts, to which the learner adds shared noise: the "LDP" curves of the published figure.

    Privacy: none, whatever epsilon the scale is named after (see `calibrate`).
    """
    return _pooled_counts(shape, parameters, SharedNoiseRelease)


def published_ucb_vi(shape: Shape, hyper: Hyperparameters) -> Learner:
    """The released code's optimistic value iteration.

      Q_h = rhat + b_r + phat . V_{h+1} + (H - h) b_p,  V_h = max_a Q_h, nothing clipped; ties go to action 0

    The state is the noise summed so far, f32[S + 2], used with `published_ldp` alone.

    Args:
      shape: static sizes.
      hyper: only `bonus_scale` is used; 1 is the published bonus.
    Returns:
      A Learner that takes a PublishedRelease.
    Privacy: none; it reads exact counts.
    Reference: the code released with Chowdhury and Zhou, AAAI 2022.
    """
    H, S = shape.horizon, shape.num_states

    def step(key: Key, summed: Array, release: Any) -> tuple[Array, Policy]:
        summed, model = plan(shape, key, summed, release, hyper.bonus_scale)

        def backward(carry: tuple[Array, Array], h: Array, model: Model) -> tuple[tuple[Array, Array], Array]:
            # Rows of phat may sum to far more than one, so V can outgrow float32. The greedy action does not depend
            # on a positive factor: V / unit is carried, and unit shrinks by a power of two when V is huge.
            scaled, unit = carry
            q = unit * immediate(shape, model, h) + jnp.sum(model.transitions * scaled[None, None, :], -1)
            scaled = jnp.max(q, -1)
            shrink = jnp.where(jnp.max(jnp.abs(scaled)) > _HUGE, 1.0 / _HUGE, 1.0)
            return (scaled * shrink, unit * shrink), -q

        start = (jnp.zeros(S), jnp.ones(()))
        return summed, greedy(stage_scan(backward, start, model, H, reverse=True)[1], jnp.zeros((H, S)))

    return Learner(init=lambda: jnp.zeros(S + 2), step=step)


def published_ucb_po(shape: Shape, hyper: Hyperparameters, *, learning_rate: float = LEARNING_RATE) -> Learner:
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
      A Learner that takes a PublishedRelease.
    Privacy: none; it reads exact counts.
    Reference: the code released with Chowdhury and Zhou, AAAI 2022.
    """
    H, S, A = shape.horizon, shape.num_states, shape.num_actions

    def step(key: Key, state: tuple[Array, Array], release: Any) -> tuple[tuple[Array, Array], Policy]:
        logits, summed = state
        summed, model = plan(shape, key, summed, release, hyper.bonus_scale)
        policy = jax.nn.softmax(logits)

        def backward(value: Array, h: Array, constants: tuple[Model, Array]) -> tuple[Array, Array]:
            model, policy = constants
            q = immediate(shape, model, h) + jnp.sum(model.transitions * value[None, None, :], -1)
            q = jnp.clip(q, 0.0, float(H))
            return jnp.sum(at_stage(policy, h) * q, -1), q

        q = stage_scan(backward, jnp.zeros(S), (model, policy), H, reverse=True)[1]
        logits = logits + learning_rate * q
        return (logits - jnp.max(logits, -1, keepdims=True), summed), policy

    return Learner(init=lambda: (jnp.zeros((H, S, A)), jnp.zeros(S + 2)), step=step)


LEARNERS: dict[str, LearnerFactory] = {"published_ucb_vi": published_ucb_vi, "published_ucb_po": published_ucb_po}
PRIVATIZERS: dict[str, PrivatizerFactory] = {
    "published_none": published_none,
    "published_jdp": published_jdp,
    "published_ldp": published_ldp,
}


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
        unit = fresh_noise(key, terms, (S, A, S + 2), shape.max_episodes)
    elif isinstance(release, SharedNoiseRelease):
        terms = k
        summed = summed + noise.laplace(key, (S + 2,))
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
    draws = jax.vmap(lambda key: noise.laplace(key, shape))(jax.random.split(key, most))
    mask = (jnp.arange(most) < terms).reshape(most, *[1] * len(shape))
    return jnp.sum(jnp.where(mask, draws, 0.0), 0)


def calibrate(privatizer: str, problem: Problem, epsilon: float) -> accounting.Calibration:
    """Noise scale 1 / epsilon as in the released code, with the guarantee that goes with it: none.

    Args:
      privatizer: name in PRIVATIZERS of this module.
      problem: sizes.
      epsilon: what the published figure calls epsilon, > 0; no part in `published_none`.
    Returns:
      Calibration with error tables of zeros, which the learners of this module do not read.
    Privacy: none.
    """
    _validate.one_of("privatizer", privatizer, PRIVATIZERS)
    _validate.epsilon(epsilon)
    epsilon = math.inf if privatizer == "published_none" else float(epsilon)
    scale = 0.0 if math.isinf(epsilon) else 1.0 / epsilon
    moved = accounting.sensitivity(problem._replace(homogeneous=True, families=3))
    guarantee = PublishedGuarantee(
        privatizer=privatizer,
        model="none",
        epsilon_pure=math.inf,
        epsilon_at_delta={},
        neighbours="replace",
        unit="one user = one episode",
        max_episodes=int(problem.num_episodes),
        calibration="published",
        noise_scale=scale,
        sensitivity_l1=moved.l1,
        sensitivity_l2=moved.l2,
        levels=int(problem.num_episodes) if privatizer == "published_jdp" else 1,
        nominal_epsilon=epsilon,
        statement=f"Not private: {_REASONS[privatizer]}",
    )
    nothing = np.zeros(1, np.float32)
    return accounting.Calibration(scale, Precision(nothing, nothing, nothing), guarantee)


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
class PublishedGuarantee(accounting.Guarantee):
    """The absence of a guarantee, under a label that cannot be taken for one."""

    @property
    def label(self) -> str:
        """Short text for a legend: "published code, nominal ε=1: not private"."""
        nominal = self.nominal_epsilon
        noisy = nominal is not None and math.isfinite(nominal)
        return f"published code, {f'nominal ε={nominal:.4g}' if noisy else 'no noise'}: not private"


def _pooled_counts(shape: Shape, parameters: NoiseParameters, kind: type[PublishedRelease]) -> Privatizer:
    """Exact counts summed over users and steps, without the transitions of the last step; the key is not used."""
    if shape.num_stages != shape.horizon:
        raise ValueError(
            f"Expected num_stages={shape.num_stages} to be the horizon {shape.horizon}: the published privatizers pool "
            "the stages themselves. Drop homogeneous."
        )

    def pool(counts: Counts) -> Counts:
        recorded = counts._replace(transitions=counts.transitions[:-1])
        return jax.tree.map(lambda x: jnp.sum(x, 0, keepdims=True), recorded)

    def release(totals: Totals, n: Array) -> Any:
        return kind(true_counts(totals), parameters.scale, n)

    def init(zero_counts: Counts) -> tuple[PrivatizerState, Any]:
        n, totals = jnp.zeros((), jnp.int32), zero_totals(pool(zero_counts))
        return PrivatizerState(n, (), totals), release(totals, n)

    def step(key: Key, state: PrivatizerState, counts: Counts) -> tuple[PrivatizerState, Any]:
        del key
        n, totals = state.num_episodes + 1, add_episode(state.totals, pool(counts))
        return PrivatizerState(n, (), totals), release(totals, n)

    return Privatizer(init, step)
