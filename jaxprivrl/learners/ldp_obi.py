"""LDP-OBI, the first locally private learner with a regret bound."""

import math

import jax
import jax.numpy as jnp

from jaxprivrl.learners.base import COMMON, PLANNED_VALUE, Hyper, Learner, Steps
from jaxprivrl.learners.planning import Model, next_value, optimistic_learner
from jaxprivrl.numerics.axes import at_stage
from jaxprivrl.privatizers.base import Release
from jaxprivrl.problem import Shape

Array = jax.Array

ALPHA = 2.0  # any number above 1


def _ldp_obi(shape: Shape, hyper: Hyper) -> Steps:
    """LDP-OBI: optimistic value iteration with a bonus for the L1 error of the transitions, rewards R~ = N~ - C~.

      D = max(1, N~ + alpha E_N),  L_k = ln(4 pi^2 SAH k^3 / (3 delta)),  k the episode, alpha = 2
      beta_r = sqrt(2 L_k/D) + ((alpha + 1) E_N + E_C)/D
      beta_p = sqrt(14 S L_k/D) + (S E_P + (alpha + 1) E_N)/D
      Q_h = R~/D + sum_s2 N~(s,a,s2) V_{h+1}(s2)/D + beta_r + (H - h + 1) beta_p
      V_h = min(H - h + 1, max_a Q_h)

    Certain: local privacy, counts pooled over h (run it on a homogeneous Release to match), and a transition bonus
    of order sqrt(S/N) from an L1 bound. Recalled, not checked against the paper: the constants 2, 14, alpha and the
    logarithm; that Q itself has no ceiling, so that the greedy action follows the bonuses even where V is at its
    ceiling. The paper has one error for each statistic, c_1 (rewards), c_2 and c_3 (visits) and c_4 (transitions);
    here they are E_C, E_N and E_P of the Release. Recalled for Laplace noise of scale 1/eps0, eps0 = eps/(6H):
    c_1 = c_2 = c_4 = max(sqrt(k), ln(6SA/delta_k)) sqrt(8 ln(6SA/delta_k))/eps0 and c_3 = sqrt(S) c_1.

    Privacy: post-processing of the Release.
    Reference: Garcelon, Perchet, Pike-Burke and Pirotta, NeurIPS 2021.
    """
    H, S, A = shape.horizon, shape.num_states, shape.num_actions
    log_cells = jnp.log(4.0 * math.pi**2 * S * A * H / (3.0 * hyper["failure_prob"]))

    def estimate(release: Release) -> tuple[Model, Array]:
        (N, C, transitions), e = release.counts, release.error
        k = (release.num_episodes + 1).astype(jnp.float32)
        L = log_cells + 3.0 * jnp.log(k)
        D = jnp.maximum(1.0, N + ALPHA * e.visits)
        inverse, root = 1.0 / D, jnp.sqrt(L) * jax.lax.rsqrt(D)
        beta_r = math.sqrt(2.0) * root + ((ALPHA + 1.0) * e.visits + e.costs) * inverse
        beta_p = math.sqrt(14.0 * S) * root + (S * e.transitions + (ALPHA + 1.0) * e.visits) * inverse
        rewards = (N - C) * inverse + hyper["bonus_scale"] * beta_r
        return Model(rewards, transitions, inverse), hyper["bonus_scale"] * beta_p

    def q_function(constants: tuple[Model, Array], value: Array, h: Array) -> Array:
        model, beta_p = constants
        return next_value(model, value, h)[0] + (H - h).astype(jnp.float32) * at_stage(beta_p, h)

    return optimistic_learner(shape, estimate, q_function, steps_left=True)


ldp_obi = Learner(
    "ldp_obi",
    _ldp_obi,
    COMMON,
    metrics=(PLANNED_VALUE,),
    summary="LDP-OBI (constants partly recalled)",
    bound="none given; √(S²AH³T) + S²A√(H⁵T)/ε",
    trust="LDP only",
    paper="Garcelon et al. 2021",
)
