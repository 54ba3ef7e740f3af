"""DP-UCBVI, the private learner with the sharpest leading term."""

import jax
import jax.numpy as jnp

from jaxprivrl.learners.base import COMMON, PLANNED_VALUE, Hyper, Learner, Steps
from jaxprivrl.learners.planning import LEAST_VISITS, Model, VarianceModel, optimistic_learner, variance_q, worst_error
from jaxprivrl.privatizers.base import Release
from jaxprivrl.problem import Shape

Array = jax.Array


def _dp_ucb_vi(shape: Shape, hyper: Hyper) -> Steps:
    """DP-UCBVI: value iteration with a Bernstein bonus and a Q that never grows, rewards R~ = N~ - C~.

      P(s2) = N~(s,a,s2)/N~,  r = clip(R~/N~, 0, 1),  iota = ln(30 HSAT/delta),  T = KH
      b = 2 sqrt(Var_P(V_{h+1}) iota/N~) + sqrt(2 iota/N~) + 20 HSE iota/N~
          + 4 sqrt(iota sum_s2 P(s2) w_{h+1}(s2)/N~)
      w_h(s) = min(1000^2 H^3 SA iota^2/N~_h(s) + (1000 H^2 S^2 A iota^2/N~_h(s))^2 (E^2 + H^2), H^2)
      Q_h = min(Q_h of the previous episode, H, r + sum_s2 P(s2) V_{h+1}(s2) + b), at first H;  V_h = max_a Q_h

    N~ <= 0 gives Q_h = min(previous, H); N~_h(s) = sum_a N~_h(s,a) <= 0 gives w = H^2; the last term is absent at
    the last stage. E is the largest error of the Release. The paper feeds it counts post-processed so that each row
    of P is a distribution and N~ is never below the truth (`project`, this learner's default), whose E is four times
    the error of the noisy counts, of order (H/eps) ln^2(HSAT/delta) for the binary mechanism and
    (H/eps) sqrt(K ln(HSAT/delta)) for local noise (the paper prints no constants).

    Privacy: post-processing of the Release.
    Reference: Qiao and Wang, AISTATS 2023, Algorithm 1.
    """
    H, S, A = shape.horizon, shape.num_states, shape.num_actions
    iota = jnp.log(30.0 * H * S * A * H * hyper["num_episodes"] / hyper["failure_prob"])

    def estimate(release: Release) -> VarianceModel:
        N, E = release.counts.visits, worst_error(release.error)
        seen = N > 0.0
        inverse = 1.0 / jnp.maximum(N, LEAST_VISITS)
        bonus = jnp.sqrt(2.0 * iota * inverse) + 20.0 * H * S * iota * (E * inverse)
        mean = jnp.clip((N - release.counts.costs) * inverse, 0.0, 1.0)
        rewards = jnp.where(seen, mean + hyper["bonus_scale"] * bonus, float(H))
        model = Model(rewards, release.counts.transitions, jnp.where(seen, inverse, 0.0))
        per_state = 1.0 / jnp.maximum(jnp.sum(N, -1), LEAST_VISITS)
        slow = 1e6 * H**3 * S * A * jnp.square(iota) * per_state
        fast = 1e3 * H**2 * S**2 * A * jnp.square(iota) * per_state * jnp.sqrt(jnp.square(E) + H**2)
        weights = jnp.minimum(slow + jnp.square(jnp.minimum(fast, float(H))), float(H) ** 2)
        root = hyper["bonus_scale"] * jnp.sqrt(iota)
        return VarianceModel(model, weights, 2.0 * root, 4.0 * root)

    def q_function(constants: VarianceModel, value: Array, h: Array) -> Array:
        return variance_q(shape, constants, value, h)

    return optimistic_learner(shape, estimate, q_function, monotone=True)


dp_ucb_vi = Learner(
    "dp_ucb_vi",
    _dp_ucb_vi,
    COMMON,
    postprocess="project",
    metrics=(PLANNED_VALUE,),
    summary="DP-UCBVI, Bernstein bonus, projected counts",
    bound="√(SAH²T) + S²AH³/ε; + S²A√(H⁵T)/ε",
    trust="both",
    paper="Qiao and Wang 2023",
)
