"""What is known of an environment before anybody learns: sizes, optimal value, the uniform policy's regret."""

from typing import Any

import numpy as np

from jaxprivrl.environments.base import TOLERANCE, Built


def facts(built: Built) -> dict[str, Any]:
    """Numbers of one environment, in float64.

    Returns:
      states, actions, horizon: S, A, H.
      possible_transitions: triples (s, a, s2) that the public support allows, or that have a positive probability at
        some stage where no support is declared; `all_transitions` is S A S.
      optimal_value: rho . V*_1, the least expected cost of an episode; `native_optimum` the same in native units.
      uniform_regret: rho . (V^uniform_1 - V*_1).
      smallest_gap: least Q*_h(s, a) - V*_h(s) > 0 among the (h, s) that some policy reaches; None if there is none.
    """
    from jaxprivrl import mdp

    H, S, A = built.shape
    solution = mdp.solve(built.host)
    best = float(built.initial @ solution.v[0])
    gaps = solution.gaps[reachable(built)]
    positive = gaps[gaps > TOLERANCE]
    allowed = built.transitions > 0 if built.support is None else built.support
    return {
        "states": S,
        "actions": A,
        "horizon": H,
        "possible_transitions": int(allowed.any(0).sum()),
        "all_transitions": S * A * S,
        "optimal_value": best,
        "native_optimum": float(built.native.total(best)),
        "uniform_regret": float(built.initial @ uniform_value(built)) - best,
        "smallest_gap": float(positive.min()) if positive.size else None,
    }


def uniform_value(built: Built) -> np.ndarray:
    """V^pi_1 of the policy that chooses uniformly, f64[S]: V_h = mean_a (c_h + P_h V_{h+1})."""
    c, p = built.costs, built.transitions
    value = np.zeros(built.shape[1])
    for h in reversed(range(built.horizon)):
        value = (c[h % len(c)] + p[h % len(p)] @ value).mean(-1)
    return value


def reachable(built: Built) -> np.ndarray:
    """Whether some policy is in state s at stage h with positive probability, bool[H, S]."""
    H, S, _ = built.shape
    # One [S, S] matrix per stored stage: the whole array of [H, S, A, S] would not fit for large S.
    leads = [(stage > 0).any(1) for stage in built.transitions]
    reached = np.zeros((H, S), bool)
    reached[0] = built.initial > 0
    for h in range(1, H):
        reached[h] = leads[(h - 1) % len(leads)][reached[h - 1]].any(0)
    return reached
