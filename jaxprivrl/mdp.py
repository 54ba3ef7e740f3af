"""Finite-horizon tabular MDPs with costs: planning, occupancy and exact regret.

The axis order is always `[..., h, s, a, s2]`. A stage axis has length H, or 1 where counts are pooled over h.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxprivrl.problem import Shape

Array = jax.Array
Policy = jax.Array  # f32[H, S, A], rows sum to one


class MDP(NamedTuple):
    """An episodic MDP with costs in [0, 1]; `validate` checks one, `make` builds and checks one.

    Attributes:
      costs: f32[H, S, A], mean costs in [0, 1].
      transitions: f32[H, S, A, S], rows sum to one.
      initial: f32[S], distribution of the first state.
      bernoulli: bool[], whether an observed cost is a Bernoulli draw of the mean or the mean itself.
    """

    costs: Array
    transitions: Array
    initial: Array
    bernoulli: Array

    @property
    def shape(self) -> tuple[int, int, int]:
        """(H, S, A)."""
        H, S, A = self.costs.shape
        return H, S, A


class Counts(NamedTuple):
    """SENSITIVE: the statistics of one user's episode, or sums of them. Never reaches a learner.

    Attributes:
      visits: [H|1, S, A], N_h(s, a).
      costs: [H|1, S, A], C_h(s, a).
      transitions: [H|1, S, A, S], N_h(s, a, s2).
    """

    visits: Array
    costs: Array
    transitions: Array


def zero_counts(shape: Shape) -> Counts:
    """A Counts of zeros on the stage axis of the counters: f32 `[num_stages, S, A(, S)]`."""
    sa = (shape.num_stages, shape.num_states, shape.num_actions)
    return Counts(jnp.zeros(sa), jnp.zeros(sa), jnp.zeros((*sa, shape.num_states)))


class Solution(NamedTuple):
    """Optimal values of an MDP, in float64 on the host: Q*[H, S, A], V*[H, S] and gaps Q* - V* >= 0."""

    q: np.ndarray
    v: np.ndarray
    gaps: np.ndarray


class Dynamics(NamedTuple):
    """What a simulation needs of an MDP, prepared once.

    Attributes:
      costs: f32[H, S, A].
      transitions: f32[H, S, A, S].
      cumulative: f32[H, S, A, S], cumulative sums of the transition rows, for sampling.
      gaps: f32[H, S, A], Q* - V*.
      initial: f32[S].
      bernoulli: bool[].
    """

    costs: Array
    transitions: Array
    cumulative: Array
    gaps: Array
    initial: Array
    bernoulli: Array


def make(costs: Any, transitions: Any, initial: Any = 0, *, horizon: int | None = None, bernoulli: bool = False) -> MDP:
    """Builds and validates an MDP from arrays with a stage axis of length H, or of length 1 with a horizon.

    Args:
      costs: [H|1, S, A] mean costs in [0, 1].
      transitions: [H|1, S, A, S] rows that sum to one.
      initial: [S] distribution of the first state, or the index of a fixed first state.
      horizon: needed when both stage axes have length 1; must agree with them otherwise.
      bernoulli: whether observed costs are Bernoulli draws of the means.

    Returns:
      An MDP whose stage axes both have length H.
    """
    c, p = np.asarray(costs, np.float64), np.asarray(transitions, np.float64)
    if c.ndim != 3:
        raise ValueError(f"costs has shape {c.shape}; expected [H or 1, S, A]. Add a stage axis of length 1.")
    if p.ndim != 4 or p.shape[1:] != (*c.shape[1:], c.shape[1]):
        want = f"[H or 1, {c.shape[1]}, {c.shape[2]}, {c.shape[1]}]"
        raise ValueError(f"transitions has shape {p.shape}; expected {want} to agree with costs {c.shape}.")
    if 0 in c.shape:
        raise ValueError(f"costs has shape {c.shape}; expected at least one stage, state and action.")
    stages = {n for n in (c.shape[0], p.shape[0]) if n > 1}
    if horizon is not None:
        if int(horizon) != horizon or horizon < 1:
            raise ValueError(f"Expected horizon={horizon} >= 1. Pass the number of steps of an episode.")
        stages.add(int(horizon))
    if len(stages) > 1:
        raise ValueError(f"The stage axes and the horizon disagree: {sorted(stages)}; expected one length (or 1).")
    if not stages:
        if horizon is None:
            raise ValueError("The stage axis has length 1 and no horizon is given. Pass horizon=H.")
        stages = {1}
    H = stages.pop()
    S = c.shape[1]
    start = np.asarray(initial)
    if start.ndim == 0:
        if not 0 <= start < S or int(start) != start:
            raise ValueError(f"initial={start} is not a state; expected a whole number from 0 to {S - 1}.")
        start = np.eye(S)[int(start)]
    host: tuple[Any, ...] = (
        np.broadcast_to(c, (H, *c.shape[1:])),
        np.broadcast_to(p, (H, *p.shape[1:])),
        np.asarray(start, np.float64),
        np.asarray(bernoulli),
    )
    full = MDP(*host)
    validate(full)
    return MDP(
        jnp.asarray(full.costs, jnp.float32),
        jnp.asarray(full.transitions, jnp.float32),
        jnp.asarray(full.initial, jnp.float32),
        jnp.asarray(bool(bernoulli)),
    )


def validate(mdp: MDP, tolerance: float = 1e-5) -> None:
    """Raises ValueError naming the entry that is wrong: costs, probabilities, row sums, initial, shapes."""
    c, p, rho = (np.asarray(x, np.float64) for x in (mdp.costs, mdp.transitions, mdp.initial))
    S = c.shape[1]
    for name, x in (("costs", c), ("transitions", p), ("initial", rho)):
        if not np.all(np.isfinite(x)):
            raise ValueError(f"{name} holds NaN or infinity at {_index(~np.isfinite(x))}; expected finite numbers.")
    if np.any((c < 0) | (c > 1)):
        i = _first((c < 0) | (c > 1))
        raise ValueError(f"costs[h={i[0]}, s={i[1]}, a={i[2]}] is {c[i]:g}; expected 0 to 1. Rescale the costs.")
    if np.any(p < 0):
        i = _first(p < 0)
        raise ValueError(
            f"transitions[h={i[0]}, s={i[1]}, a={i[2]}, s2={i[3]}] is {p[i]:g}; expected a probability >= 0."
        )
    bad = np.abs(p.sum(-1) - 1) > tolerance
    if np.any(bad):
        i = _first(bad)
        raise ValueError(
            f"transitions[h={i[0]}, s={i[1]}, a={i[2]}] sums to {p[i].sum():g}; expected 1 within {tolerance:g}."
        )
    if rho.shape != (S,):
        raise ValueError(f"initial has shape {rho.shape}; expected [{S}] or the index of a state.")
    if np.any(rho < 0) or abs(rho.sum() - 1) > tolerance:
        raise ValueError(f"initial sums to {rho.sum():g} with least entry {rho.min():g}; expected a distribution.")


def is_homogeneous(mdp: MDP) -> bool:
    """Whether every stage has the same costs and transitions."""
    c, p = np.asarray(mdp.costs), np.asarray(mdp.transitions)
    return bool(np.all(c == c[:1]) and np.all(p == p[:1]))


def solve(mdp: MDP) -> Solution:
    """Optimal values by backward induction in float64: Q_h = c_h + P_h V_{h+1}, V_h = min_a Q_h."""
    c, p = np.asarray(mdp.costs, np.float64), np.asarray(mdp.transitions, np.float64)
    q = np.zeros_like(c)
    v = np.zeros(c.shape[:2])
    nxt = np.zeros(c.shape[1])
    for h in reversed(range(c.shape[0])):
        q[h] = c[h] + p[h] @ nxt
        v[h] = nxt = q[h].min(-1)
    return Solution(q, v, q - v[..., None])


def prepare(mdp: MDP) -> Dynamics:
    """The arrays of a simulation; gaps come from float64, so that small ones survive float32."""
    cumulative = np.cumsum(np.asarray(mdp.transitions, np.float64), -1)
    return Dynamics(
        jnp.asarray(mdp.costs, jnp.float32),
        jnp.asarray(mdp.transitions, jnp.float32),
        jnp.asarray(cumulative, jnp.float32),
        jnp.asarray(solve(mdp).gaps, jnp.float32),
        jnp.asarray(mdp.initial, jnp.float32),
        jnp.asarray(mdp.bernoulli),
    )


def policy_value(mdp: MDP, policy: Policy) -> Array:
    """V^pi, f32[H, S]: V_h(s) = sum_a pi_h(a|s) (c_h(s, a) + sum_s2 P_h(s2|s, a) V_{h+1}(s2))."""

    def backward(v_next: Array, stage: tuple[Array, Array, Array]) -> tuple[Array, Array]:
        c, p, pi = stage
        v = jnp.sum(pi * (c + jnp.sum(p * v_next[None, None, :], -1)), -1)
        return v, v

    zero = jnp.zeros_like(mdp.initial)
    return jax.lax.scan(backward, zero, (mdp.costs, mdp.transitions, policy), reverse=True)[1]


def occupancy(mdp: MDP, policy: Policy) -> Array:
    """Probability of (s, a) at stage h under the policy, f32[H, S, A]."""

    def forward(d: Array, stage: tuple[Array, Array]) -> tuple[Array, Array]:
        p, pi = stage
        w = d[:, None] * pi
        return jnp.sum(w[..., None] * p, (0, 1)), w

    return jax.lax.scan(forward, mdp.initial, (mdp.transitions, policy))[1]


def expected_regret(mdp: MDP, gaps: Array, policy: Policy) -> Array:
    """V^pi(initial) - V*(initial) = sum_h E[gap_h(s_h, a_h)], f32[].

    The performance-difference lemma turns a difference of values into a sum of non-negative terms, so float32
    loses nothing to cancellation.
    """
    return jnp.sum(occupancy(mdp, policy) * gaps)


def uniform_regret(mdp: MDP) -> float:
    """Regret of one episode of the uniform policy, in float64 on the host: sum_h E[gap_h(s_h, a_h)].

    It is what a learner pays that learns nothing; the best policy pays 0.
    """
    gaps, p = solve(mdp).gaps, np.asarray(mdp.transitions, np.float64)
    d, total = np.asarray(mdp.initial, np.float64), 0.0
    for h in range(len(gaps)):
        total += float(d @ gaps[h].mean(-1))
        d = np.einsum("s,sat->t", d, p[h]) / p.shape[2]
    return total


def _first(mask: np.ndarray) -> tuple[int, ...]:
    return tuple(int(i) for i in np.argwhere(mask)[0])


def _index(mask: np.ndarray) -> str:
    return str(list(_first(mask)))
