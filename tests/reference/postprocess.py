"""Post-processing of released counts."""

import numpy as np
from scipy.optimize import linprog


def clip(visits, costs, transitions):
    """x(s2) = max(N~(s,a,s2), 0); N(s,a,s2) = x(s2), N(s,a) = sum_{s2} x(s2), C(s,a) = C~(s,a) cut to [0, N(s,a)].

    The released visits are not used. Returns (visits, costs, transitions).
    """
    new_visits = np.zeros(np.shape(visits))
    new_costs = np.zeros(np.shape(costs))
    new_transitions = np.zeros(np.shape(transitions))
    Hs, S, A = new_visits.shape
    for h in range(Hs):
        for s in range(S):
            for a in range(A):
                total = 0.0
                for s2 in range(S):
                    x = max(float(transitions[h, s, a, s2]), 0.0)
                    new_transitions[h, s, a, s2] = x
                    total += x
                new_visits[h, s, a] = total
                new_costs[h, s, a] = min(max(float(costs[h, s, a]), 0.0), total)
    return new_visits, new_costs, new_transitions


def projection_program(noisy, noisy_total, E):
    """DP-UCBVI post-processing of one (h,s,a) (Qiao and Wang, privatizers), with scipy.optimize.linprog.

        minimise t   subject to   |x_s2 - noisy_s2| <= t,   x_s2 >= 0,   |sum_s2 x_s2 - noisy_total| <= E/4.

    Returns (x [S], t). The optimal t is unique, x need not be. Infeasible (noisy_total + E/4 < 0): (zeros, None).
    """
    S = len(noisy)
    objective = np.zeros(S + 1)
    objective[S] = 1.0
    rows, bounds = [], []
    for s2 in range(S):
        row = np.zeros(S + 1)
        row[s2], row[S] = 1.0, -1.0
        rows.append(row)
        bounds.append(float(noisy[s2]))
        row = np.zeros(S + 1)
        row[s2], row[S] = -1.0, -1.0
        rows.append(row)
        bounds.append(-float(noisy[s2]))
    row = np.ones(S + 1)
    row[S] = 0.0
    rows.append(row)
    bounds.append(float(noisy_total) + E / 4.0)
    rows.append(-row)
    bounds.append(-(float(noisy_total) - E / 4.0))
    result = linprog(objective, A_ub=np.array(rows), b_ub=np.array(bounds), bounds=[(0.0, None)] * (S + 1))
    if result.status == 2:
        return np.zeros(S), None
    if result.status != 0:
        raise RuntimeError(result.message)
    return np.array(result.x[:S]), float(result.x[S])


def project(visits, costs, transitions, E):
    """DP-UCBVI post-processing (Qiao and Wang, privatizers) of every (h,s,a); see `projection_program` for x.

        N~(s,a,s2) = x(s2) + E/(2S),   N~(s,a) = sum_s2 x(s2) + E/2;   x = 0 if the program is infeasible.

    E is the E of the paper's formulas (raw errors at most E/4). Costs are returned unchanged.
    Returns (visits, costs, transitions).
    """
    new_visits = np.zeros(np.shape(visits))
    new_transitions = np.zeros(np.shape(transitions))
    Hs, S, A = new_visits.shape
    for h in range(Hs):
        for s in range(S):
            for a in range(A):
                x, _ = projection_program(transitions[h][s][a], visits[h][s][a], E)
                total = 0.0
                for s2 in range(S):
                    new_transitions[h, s, a, s2] = x[s2] + E / (2.0 * S)
                    total += x[s2]
                new_visits[h, s, a] = total + E / 2.0
    return new_visits, np.array(costs, dtype=float), new_transitions
