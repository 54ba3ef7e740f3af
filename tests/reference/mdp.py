"""Markov decision processes: draws, ties, values, regret and roll-out."""

import itertools
import math

import numpy as np


def stage(array, h):
    """The slice of `array` for step h: array[h], or array[0] if its stage axis has length 1 (pooled, homogeneous)."""
    array = np.asarray(array)
    if array.shape[0] == 1:
        return array[0]
    return array[h]


def categorical(probabilities, uniform):
    """Index = number of cumulative sums p[0], p[0]+p[1], ... that are <= uniform, capped at n-1."""
    n = len(probabilities)
    index = 0
    total = 0.0
    for i in range(n):
        total = total + float(probabilities[i])
        if total <= uniform:
            index = index + 1
    return min(index, n - 1)


def break_tie(values, uniform, largest):
    """Number min(floor(u*m), m-1) of the m actions whose value equals the best value exactly, in index order."""
    best = max(values) if largest else min(values)
    tied = [a for a in range(len(values)) if values[a] == best]
    m = len(tied)
    return tied[min(math.floor(uniform * m), m - 1)]


def greedy_policy(Q, tie_uniforms, largest):
    """One-hot policy [H,S,A], pi_h(s) = argmax_a or argmin_a Q_h(s,a), with the tie rule of `break_tie`."""
    H, S, A = Q.shape
    policy = np.zeros((H, S, A))
    for h in range(H):
        for s in range(S):
            a = break_tie([Q[h, s, a] for a in range(A)], float(tie_uniforms[h][s]), largest)
            policy[h, s, a] = 1.0
    return policy


def optimal_values(transitions, costs, H):
    """Optimal (minimum) cost by backward induction (CZ, section 2.1).

    V*_{H+1} = 0,  Q*_h(s,a) = c_h(s,a) + sum_{s2} P_h(s2|s,a) V*_{h+1}(s2),  V*_h(s) = min_a Q*_h(s,a).

    transitions [Hs,S,A,S], costs [Hs,S,A] with stage axis H or 1. Returns Q [H,S,A], V [H+1,S].
    """
    S, A = np.asarray(costs).shape[1:]
    Q = np.zeros((H, S, A))
    V = np.zeros((H + 1, S))
    for h in range(H - 1, -1, -1):
        P = stage(transitions, h)
        c = stage(costs, h)
        for s in range(S):
            for a in range(A):
                future = 0.0
                for s2 in range(S):
                    future += P[s, a, s2] * V[h + 1, s2]
                Q[h, s, a] = c[s, a] + future
            V[h, s] = min(Q[h, s, a] for a in range(A))
    return Q, V


def policy_values(transitions, costs, policy):
    """Values of a policy [H,S,A] (CZ, section 2.1).

    V^pi_{H+1} = 0,  Q^pi_h(s,a) = c_h(s,a) + sum_{s2} P_h(s2|s,a) V^pi_{h+1}(s2),
    V^pi_h(s) = sum_a Q^pi_h(s,a) pi_h(a|s).  Returns Q [H,S,A], V [H+1,S].
    """
    H, S, A = policy.shape
    Q = np.zeros((H, S, A))
    V = np.zeros((H + 1, S))
    for h in range(H - 1, -1, -1):
        P = stage(transitions, h)
        c = stage(costs, h)
        for s in range(S):
            for a in range(A):
                future = 0.0
                for s2 in range(S):
                    future += P[s, a, s2] * V[h + 1, s2]
                Q[h, s, a] = c[s, a] + future
            value = 0.0
            for a in range(A):
                value += Q[h, s, a] * policy[h, s, a]
            V[h, s] = value
    return Q, V


def brute_force_optimal_value(transitions, costs, H):
    """min over ALL A^(H*S) deterministic policies of V^pi_1(s), for every s. Tiny problems only. Returns [S]."""
    S, A = np.asarray(costs).shape[1:]
    best = np.full(S, np.inf)
    for actions in itertools.product(range(A), repeat=H * S):
        policy = np.zeros((H, S, A))
        for h in range(H):
            for s in range(S):
                policy[h, s, actions[h * S + s]] = 1.0
        V = policy_values(transitions, costs, policy)[1]
        for s in range(S):
            best[s] = min(best[s], V[0, s])
    return best


def regret(transitions, costs, initial, policy):
    """Pseudo-regret of one episode, sum_{s1} mu(s1) (V^pi_1(s1) - V*_1(s1)) (CZ, section 2.1; mu = initial [S])."""
    H, S, _ = policy.shape
    V_pi = policy_values(transitions, costs, policy)[1]
    V_star = optimal_values(transitions, costs, H)[1]
    total = 0.0
    for s in range(S):
        total += float(initial[s]) * (V_pi[0, s] - V_star[0, s])
    return total


def rollout(
    transitions, costs, initial, policy, uniforms_action, uniforms_next, uniforms_cost, uniform_initial, bernoulli
):
    """One episode: s_1 ~ mu, then a_h ~ pi_h(.|s_h), cost with mean c_h(s_h,a_h), s_{h+1} ~ P_h(.|s_h,a_h).

    All draws follow `categorical`; the cost is 1{u < c} if bernoulli, else c itself.
    Returns states [H+1] (int), actions [H] (int), costs [H] (float).
    """
    H = policy.shape[0]
    states = np.zeros(H + 1, dtype=int)
    actions = np.zeros(H, dtype=int)
    paid = np.zeros(H)
    states[0] = categorical(initial, uniform_initial)
    for h in range(H):
        s = states[h]
        a = categorical(policy[h, s], uniforms_action[h])
        mean = float(stage(costs, h)[s, a])
        if bernoulli:
            paid[h] = 1.0 if uniforms_cost[h] < mean else 0.0
        else:
            paid[h] = mean
        actions[h] = a
        states[h + 1] = categorical(stage(transitions, h)[s, a], uniforms_next[h])
    return states, actions, paid
