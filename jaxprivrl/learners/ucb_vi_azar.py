"""The two non-private UCBVI learners of Azar, Osband and Munos."""

import math

import jax
import jax.numpy as jnp

from jaxprivrl.learners.base import COMMON, PLANNED_VALUE, Hyper, Learner, Steps
from jaxprivrl.learners.planning import (
    LEAST_VISITS,
    Model,
    VarianceModel,
    next_value,
    optimistic_learner,
    variance_q,
)
from jaxprivrl.privatizers.base import Release
from jaxprivrl.problem import Shape

Array = jax.Array


def _ucb_vi_hoeffding(shape: Shape, hyper: Hyper) -> Steps:
    """UCBVI with the Chernoff-Hoeffding bonus, rewards R = N - C.

      b = 7 H L/sqrt(N) + sqrt(2 L/N),  L = ln(5 SAT/delta),  T = KH
      Q_h = min(Q_h of the previous episode, H, R/N + sum_s2 N(s,a,s2) V_{h+1}(s2)/N + b), at first H;  V_h = max_a Q_h

    N <= 0 gives Q_h = min(previous, H). The paper has known rewards and counts pooled over h; the second term of b is
    for unknown ones. It is meant for `exact`: with another privatizer it runs and ignores the errors of the Release.

    Privacy: post-processing of the Release.
    Reference: Azar, Osband and Munos, ICML 2017, Algorithms 1 and 2, bonus_1.
    """
    H = shape.horizon
    L = _log_term(shape, hyper)

    def estimate(release: Release) -> Model:
        return _model(shape, release, hyper["bonus_scale"], 7.0 * H * L + jnp.sqrt(2.0 * L), jnp.zeros(()))

    def q_function(model: Model, value: Array, h: Array) -> Array:
        return jnp.minimum(next_value(model, value, h)[0], float(H))

    return optimistic_learner(shape, estimate, q_function, monotone=True)


def _ucb_vi_bernstein(shape: Shape, hyper: Hyper) -> Steps:
    """UCBVI with the Bernstein-Freedman bonus, rewards R = N - C.

      b = sqrt(8 L Var_P(V_{h+1})/N) + 14 H L/(3N) + sqrt(8 sum_s2 P(s2) w_{h+1}(s2)/N) + sqrt(2 L/N)
      w_h(s) = min(100^2 H^3 S^2 A L^2/N_h(s), H^2),  P(s2) = N(s,a,s2)/N,  L = ln(5 SAT/delta),  T = KH

    The recursion, the last term of b and the use of errors are those of `ucb_vi_hoeffding`. N_h(s) = sum_a N_h(s,a)
    <= 0 gives w = H^2, and the third term of b is absent at the last stage.

    Privacy: post-processing of the Release.
    Reference: Azar, Osband and Munos, ICML 2017, Algorithms 1 and 2, bonus_2.
    """
    H, S, A = shape.horizon, shape.num_states, shape.num_actions
    L = _log_term(shape, hyper)

    def estimate(release: Release) -> VarianceModel:
        model = _model(shape, release, hyper["bonus_scale"], jnp.sqrt(2.0 * L), 14.0 / 3.0 * H * L)
        per_state = 1.0 / jnp.maximum(jnp.sum(release.counts.visits, -1), LEAST_VISITS)
        weights = jnp.minimum(1e4 * H**3 * S**2 * A * jnp.square(L) * per_state, float(H) ** 2)
        scale = math.sqrt(8.0) * hyper["bonus_scale"]
        return VarianceModel(model, weights, scale * jnp.sqrt(L), scale)

    def q_function(constants: VarianceModel, value: Array, h: Array) -> Array:
        return variance_q(shape, constants, value, h)

    return optimistic_learner(shape, estimate, q_function, monotone=True)


def _log_term(shape: Shape, hyper: Hyper) -> Array:
    """L = ln(5 SAT/delta), T = KH."""
    SAT = shape.num_states * shape.num_actions * shape.horizon * hyper["num_episodes"]
    return jnp.log(5.0 * SAT / hyper["failure_prob"])


def _model(shape: Shape, release: Release, bonus_scale: Array, root: Array, linear: Array) -> Model:
    """Empirical model with the bonus root/sqrt(N) + linear/N; a cell that was never visited has Q = H."""
    N = release.counts.visits
    seen = N > 0.0
    inverse = 1.0 / jnp.maximum(N, LEAST_VISITS)
    bonus = bonus_scale * (root * jnp.sqrt(inverse) + linear * inverse)
    rewards = jnp.where(seen, (N - release.counts.costs) * inverse + bonus, float(shape.horizon))
    return Model(rewards, release.counts.transitions, jnp.where(seen, inverse, 0.0))


ucb_vi_hoeffding = Learner(
    "ucb_vi_hoeffding",
    _ucb_vi_hoeffding,
    COMMON,
    metrics=(PLANNED_VALUE,),
    summary="UCBVI-CH",
    bound="H√(SAT), not private",
    trust="none",
    paper="Azar et al. 2017",
)


ucb_vi_bernstein = Learner(
    "ucb_vi_bernstein",
    _ucb_vi_bernstein,
    COMMON,
    metrics=(PLANNED_VALUE,),
    summary="UCBVI-BF",
    bound="√(HSAT), not private",
    trust="none",
    paper="Azar et al. 2017",
)
