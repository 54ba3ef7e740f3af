"""The paper's learners: Private-UCB-VI and Private-UCB-PO."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from jaxprivrl.learners.base import COMMON, LEARNING_RATE, PLANNED_VALUE, Hyper, Info, Learner, Plan, Steps, greedy
from jaxprivrl.mdp import Policy
from jaxprivrl.numerics import random
from jaxprivrl.numerics.axes import at_stage, stage_scan
from jaxprivrl.privatizers.base import Release
from jaxprivrl.problem import Shape

Array = jax.Array
Key = jax.Array


class Estimates(NamedTuple):
    """Private empirical model of eq. (1) and its bonus, by stage.

    Attributes:
      costs: f32[H|1, S, A], C~ / M less the bonus.
      transitions: f32[H|1, S, A, S], N~(s, a, s2), not yet divided by M.
      inverse: f32[H|1, S, A], 1 / M.
    """

    costs: Array
    transitions: Array
    inverse: Array


def _ucb_vi(shape: Shape, hyper: Hyper) -> Steps:
    """Private-UCB-VI: optimistic value iteration on private counts.

      M = max(1, N~ + E1),  bonus = Lc/sqrt(M) + 3 E1/M + H Lc/sqrt(M) + H (S E2 + 2 E1)/M
      Q_h = clip(C~/M + sum_s2 N~(s,a,s2) V_{h+1}(s2)/M - bonus, 0, H - h + 1),  V_h = min_a Q_h

    Ties are broken uniformly at random for each (h, s) and episode. With `exact` this is UCB-VI.

    Privacy: post-processing of the Release.
    Reference: Chowdhury and Zhou, AAAI 2022, Algorithm 2, eq. (1) and the lemma on value-iteration bonuses.
    """
    H, S = shape.horizon, shape.num_states
    log_term, _ = _confidence(shape, hyper)

    def plan(release: Release) -> Array:
        estimates = paper_estimates(shape, release, hyper["bonus_scale"], log_term * (1.0 + H))

        def backward(value: Array, h: Array, estimates: Estimates) -> tuple[Array, Array]:
            q = optimistic_q(shape, estimates, value, h)
            return jnp.min(q, -1), q

        return stage_scan(backward, jnp.zeros(S), estimates, H, reverse=True)[1]

    def step(key: Key, state: tuple[()], release: Release) -> tuple[tuple[()], Plan, Info]:
        q = plan(release)
        return state, Plan(greedy(q, random.uniform(key, (H, S)))), Info(jnp.min(q, -1))

    return Steps(init=lambda: (), step=step)


def _ucb_po(shape: Shape, hyper: Hyper) -> Steps:
    """Private-UCB-PO: optimistic policy evaluation on private counts, then a mirror-descent step.

      M = max(1, N~ + E1),  bonus = Lc/sqrt(M) + 3 E1/M + H (Lp/sqrt(M) + (S E2 + 2 E1)/M)
      Q_h = clip(C~/M + sum_s2 N~(s,a,s2) V_{h+1}(s2)/M - bonus, 0, H - h + 1),  V_h = <pi_h, Q_h>
      pi^{k+1} proportional to pi^k exp(-eta Q^k): a gradient step of size eta on the logits.

    With `exact` this is OPPO. The state holds the logits, centred so that they never grow large, and the state of
    the optax transformation.

    Privacy: post-processing of the Release.
    Reference: Chowdhury and Zhou, AAAI 2022, Algorithm 1, eq. (1) and the lemma on concentration.
    """
    H, S, A = shape.horizon, shape.num_states, shape.num_actions
    log_c, log_p = _confidence(shape, hyper)
    optimizer = optax.sgd(hyper["learning_rate"])

    def init() -> Any:
        logits = jnp.zeros((H, S, A))
        return logits, optimizer.init(logits)

    def evaluate(policy: Policy, release: Release) -> Array:
        estimates = paper_estimates(shape, release, hyper["bonus_scale"], log_c + H * log_p)

        def backward(value: Array, h: Array, constants: Any) -> tuple[Array, Array]:
            estimates, policy = constants
            q = optimistic_q(shape, estimates, value, h)
            return jnp.sum(at_stage(policy, h) * q, -1), q

        return stage_scan(backward, jnp.zeros(S), (estimates, policy), H, reverse=True)[1]

    def step(key: Key, state: Any, release: Release) -> tuple[Any, Plan, Info]:
        del key
        logits, optimizer_state = state
        policy = jax.nn.softmax(logits)
        q = evaluate(policy, release)
        updates, optimizer_state = optimizer.update(q, optimizer_state, logits)
        logits = optax.apply_updates(logits, updates)
        state = logits - jnp.max(logits, -1, keepdims=True), optimizer_state
        return state, Plan(policy), Info(jnp.sum(policy * q, -1))

    return Steps(init, step)


def paper_estimates(shape: Shape, release: Release, bonus_scale: Array, log_term: Array) -> Estimates:
    """Estimates of eq. (1) with the bonus of both algorithms, which differ in `log_term` alone.

    bonus = log_term/sqrt(M) + ((E_C + 2 E_N) + H (S E_P + 2 E_N))/M,  E_N = E_C = E1 and E_P = E2 in the paper
    """
    e = release.error
    M = jnp.maximum(1.0, release.counts.visits + e.visits)
    inverse = 1.0 / M
    privacy = e.costs + 2.0 * e.visits + shape.horizon * (shape.num_states * e.transitions + 2.0 * e.visits)
    bonus = bonus_scale * (log_term * jax.lax.rsqrt(M) + privacy * inverse)
    return Estimates(release.counts.costs * inverse - bonus, release.counts.transitions, inverse)


def optimistic_q(shape: Shape, estimates: Estimates, value: Array, h: Array) -> Array:
    """Q_h = clip(costs - bonus + N~ V/M, 0, H - h + 1) for the 0-based stage h; f32[S, A]."""
    costs, transitions, inverse = (at_stage(x, h) for x in estimates)
    q = costs + inverse * jnp.sum(transitions * value[None, None, :], -1)
    return jnp.clip(q, 0.0, (shape.horizon - h).astype(jnp.float32))


def _confidence(shape: Shape, hyper: Hyper) -> tuple[Array, Array]:
    """Lc = sqrt(2 ln(4SAT/delta)) and Lp = sqrt(4S ln(6SAT/delta)), T = KH."""
    SAT = shape.num_states * shape.num_actions * shape.horizon * hyper["num_episodes"]
    Lc = jnp.sqrt(2.0 * jnp.log(4.0 * SAT / hyper["failure_prob"]))
    Lp = jnp.sqrt(4.0 * shape.num_states * jnp.log(6.0 * SAT / hyper["failure_prob"]))
    return Lc, Lp


ucb_vi = Learner(
    "ucb_vi",
    _ucb_vi,
    COMMON,
    metrics=(PLANNED_VALUE,),
    summary="Private-UCB-VI; with `exact`, UCB-VI",
    bound="√(SAH³T) + S²AH³/ε; + S²A√(H⁵T)/ε",
    trust="both",
    paper="Chowdhury and Zhou 2022, Alg. 2",
)
ucb_po = Learner(
    "ucb_po",
    _ucb_po,
    (*COMMON, LEARNING_RATE),
    metrics=(PLANNED_VALUE,),
    summary="Private-UCB-PO; with `exact`, OPPO",
    bound="√(S²AH³T) + S²AH³/ε; + S²A√(H⁵T)/ε",
    trust="both",
    paper="Chowdhury and Zhou 2022, Alg. 1",
)
