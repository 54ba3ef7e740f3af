"""PUCB, the first private learner with a regret bound."""

import jax
import jax.numpy as jnp

from jaxprivrl.learners.base import COMMON, PLANNED_VALUE, Hyper, Learner, Steps
from jaxprivrl.learners.planning import Model, next_value, optimistic_learner, worst_error
from jaxprivrl.privatizers.base import Release
from jaxprivrl.problem import Shape

Array = jax.Array


def _pucb(shape: Shape, hyper: Hyper) -> Steps:
    """PUCB: optimistic value iteration on private counts, with rewards R~ = N~ - C~.

      phi = sqrt((2 ln(N~ + E) + 2 ln(SAH/delta)) / max(N~ - E, 1)),  psi = (1 + SH)(3 E/N~ + 2 E^2/N~^2)
      Q_h = min(H, (R~ + sum_s2 N~(s,a,s2) V_{h+1}(s2))/N~ + (H + 1) phi + psi) if N~ >= max(2E, 1), else H
      V_h = max_a Q_h

    E is the largest error of the Release. The paper prints E = (3H/eps) ln((2SAH + S^2 AH)/delta) log(K)^(5/2) for a
    binary mechanism on every counter. Its ceiling is H at every stage, it has no lower limit, and ties are left open
    (here: uniform). It defines the central model alone; the learner runs with any privatizer.

    Privacy: post-processing of the Release.
    Reference: Vietri, Balle, Krishnamurthy and Wu, ICML 2020, algorithms PUCB and PrivQ of the main paper (its
      supplement prints another phi).
    """
    H, S, A = shape.horizon, shape.num_states, shape.num_actions
    log_cells = jnp.log(S * A * H / hyper["failure_prob"])

    def estimate(release: Release) -> Model:
        N, E = release.counts.visits, worst_error(release.error)
        enough = N >= jnp.maximum(2.0 * E, 1.0)
        n = jnp.where(enough, N, 2.0 * E + 1.0)
        phi = jnp.sqrt((2.0 * jnp.log(n + E) + 2.0 * log_cells) / jnp.maximum(n - E, 1.0))
        inverse = 1.0 / n
        psi = (1.0 + S * H) * (E * inverse) * (3.0 + 2.0 * (E * inverse))
        bonus = hyper["bonus_scale"] * ((H + 1.0) * phi + psi)
        rewards = jnp.where(enough, (N - release.counts.costs) * inverse + bonus, float(H))
        return Model(rewards, release.counts.transitions, jnp.where(enough, inverse, 0.0))

    def q_function(model: Model, value: Array, h: Array) -> Array:
        return jnp.minimum(next_value(model, value, h)[0], float(H))

    return optimistic_learner(shape, estimate, q_function)


pucb = Learner(
    "pucb",
    _pucb,
    COMMON,
    metrics=(PLANNED_VALUE,),
    summary="PUCB",
    bound="√(S²AH³T) + S²AH³/ε; none given",
    trust="JDP only",
    paper="Vietri et al. 2020",
)
