"""Private-UCB-VI and Private-UCB-PO as a researcher would write them in NumPy: one run, one episode after the other.

The baseline that the engine is compared with, for equality of results first and for speed second. It follows
Algorithms 1 and 2 of Chowdhury & Zhou (AAAI 2022) line by line and shares no code with the package. All randomness
comes in through ``draws``, so another implementation fed with the same numbers must return the same regrets.

    python benchmarks/numpy_loop.py ucb_vi central_laplace --episodes 2000 --runs 5
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
Families = dict[str, Array]  # "visits" [H,S,A], "costs" [H,S,A], "transitions" [H,S,A,S]
Draws = Callable[[int], Mapping[str, Any]]


def river_swim(num_states: int = 6, horizon: int = 20) -> tuple[Array, Array]:
    """Costs [H,S,A] = 1 - reward and transitions [H,S,A,S] of RiverSwim; action 0 is left, 1 is right; start in 0."""
    reward = np.zeros((num_states, 2))
    reward[0, 0], reward[-1, 1] = 0.005, 1.0
    transitions = np.zeros((num_states, 2, num_states))
    for s in range(num_states):
        transitions[s, 0, max(s - 1, 0)] = 1.0
        if s == 0:
            transitions[s, 1, :2] = 0.4, 0.6
        elif s == num_states - 1:
            transitions[s, 1, s - 1 :] = 0.4, 0.6
        else:
            transitions[s, 1, s - 1 : s + 2] = 0.05, 0.6, 0.35
    return np.tile(1.0 - reward, (horizon, 1, 1)), np.tile(transitions, (horizon, 1, 1, 1))


def random_draws(horizon: int, num_states: int, num_actions: int, seed: int, *, noisy: bool) -> Draws:
    """Draw the randomness of a run from ``np.random.default_rng(seed)``; to be called for k = 0, 1, 2, ... in order."""
    rng = np.random.default_rng(seed)

    def draws(k: int) -> dict[str, Any]:
        drawn: dict[str, Any] = {
            "ties": rng.random((horizon, num_states), dtype=np.float32),
            "action": rng.random(horizon, dtype=np.float32),
            "next": rng.random(horizon, dtype=np.float32),
        }
        if noisy:
            shape = (horizon, num_states, num_actions)
            drawn["noise"] = {
                "visits": rng.laplace(size=shape),
                "costs": rng.laplace(size=shape),
                "transitions": rng.laplace(size=(*shape, num_states)),
            }
        return drawn

    return draws


class Privatizer(Protocol):
    """Turns the statistics of one more episode into private counts of all episodes so far."""

    def update(self, episode: Families, noise: Mapping[str, Array]) -> Families:
        """Return the private counts after one more episode. ``noise`` has unit scale and the shapes of ``episode``."""


class Exact:
    """No privacy: the counts themselves."""

    def __init__(self, zeros: Families) -> None:
        self.total = {name: zero.copy() for name, zero in zeros.items()}

    def update(self, episode: Families, noise: Mapping[str, Array]) -> Families:
        """Add the episode."""
        for name, increment in episode.items():
            self.total[name] += increment
        return self.total


class LocalLaplace:
    """LOCAL-PRIVATIZER: every user adds fresh noise to each entry; the agent sums what the users send."""

    def __init__(self, zeros: Families, scale: float) -> None:
        self.scale = scale
        self.total = {name: zero.copy() for name, zero in zeros.items()}

    def update(self, episode: Families, noise: Mapping[str, Array]) -> Families:
        """Add the noisy episode."""
        for name, increment in episode.items():
            self.total[name] += increment + self.scale * noise[name]
        return self.total


class CentralLaplace:
    """CENTRAL-PRIVATIZER: the binary mechanism of Chan, Shi and Song (Algorithm 2) on every counter.

    After episode t, with i the lowest set bit of t: alpha_i = sum_{j<i} alpha_j + x_t, the levels below are emptied,
    alphahat_i = alpha_i + noise; the private count is the sum of alphahat_j over the set bits j of t.
    """

    def __init__(self, zeros: Families, scale: float, num_episodes: int) -> None:
        self.scale = scale
        self.levels = num_episodes.bit_length()
        self.t = 0
        self.alpha = {name: np.zeros((self.levels, *zero.shape)) for name, zero in zeros.items()}
        self.noisy = {name: np.zeros((self.levels, *zero.shape)) for name, zero in zeros.items()}

    def update(self, episode: Families, noise: Mapping[str, Array]) -> Families:
        """Close one node, and sum the live ones (those of unset bits of t are zero)."""
        self.t += 1
        level = (self.t & -self.t).bit_length() - 1
        release = {}
        for name, increment in episode.items():
            alpha, noisy = self.alpha[name], self.noisy[name]
            alpha[level] = alpha[:level].sum(axis=0) + increment
            alpha[:level] = 0.0
            noisy[:level] = 0.0
            noisy[level] = alpha[level] + self.scale * noise[name]
            release[name] = noisy.sum(axis=0)
        return release


def make_privatizer(name: str, zeros: Families, scale: float, num_episodes: int) -> Privatizer:
    """Make the privatizer called ``name``, at counts ``zeros``."""
    if name == "exact":
        return Exact(zeros)
    if name == "local_laplace":
        return LocalLaplace(zeros, scale)
    if name == "central_laplace":
        return CentralLaplace(zeros, scale, num_episodes)
    raise ValueError(f"unknown privatizer {name!r}: use exact, local_laplace or central_laplace")


def optimal_gaps(costs: Array, transitions: Array) -> Array:
    """Q*_h(s,a) - V*_h(s) [H,S,A] by backward induction."""
    gaps = np.zeros(costs.shape)
    value = np.zeros(costs.shape[1])
    for h in reversed(range(costs.shape[0])):
        q = costs[h] + transitions[h] @ value
        value = q.min(axis=1)
        gaps[h] = q - value[:, None]
    return gaps


def exact_regret(gaps: Array, transitions: Array, policy: Array, initial_state: int) -> float:
    """V^pi_1(s_1) - V*_1(s_1) = D_1(s_1), D_h(s) = sum_a pi_h(a|s) (gap_h(s,a) + sum_s' P_h(s'|s,a) D_{h+1}(s'))."""
    excess = np.zeros(gaps.shape[1])
    for h in reversed(range(gaps.shape[0])):
        excess = (policy[h] * (gaps[h] + transitions[h] @ excess)).sum(axis=1)
    return float(excess[initial_state])


def categorical(cumulative: Array, u: float) -> int:
    """Sample an index: the number of cumulative probabilities that are <= u, at most the last index."""
    return min(int((cumulative <= u).sum()), len(cumulative) - 1)


def greedy(q: Array, u: Array) -> Array:
    """One-hot argmin_a q(s,a) for each s; of m tied actions, in index order, number min(floor(u(s) m), m - 1)."""
    tied = q == q.min(axis=1, keepdims=True)
    m = tied.sum(axis=1)
    number = np.minimum(np.floor(u * m), m - 1)
    chosen: Array = tied & (np.cumsum(tied, axis=1) == number[:, None] + 1)
    return chosen


def run(
    mdp_costs: Array,
    mdp_transitions: Array,
    initial_state: int,
    num_episodes: int,
    learner: str,
    privatizer: str,
    noise_scale: float,
    errors: tuple[float, float, float],
    bonus_scale: float,
    learning_rate: float,
    failure_prob: float,
    draws: Draws | None = None,
    seed: int = 0,
) -> NDArray[np.float64]:
    """Run one learner fed by one privatizer; return the exact pseudo-regret of each episode, [K].

    Algorithm 2 (ucb_vi) and Algorithm 1 (ucb_po), for k = 1..K:
      1. for h = H..1, from the private counts of episodes 1..k-1 and with M = max(1, N~_h(s,a) + E_visits):
           c~ = C~/M,  P~(s') = N~(s,a,s')/M    (equation 1)
           beta^c = Lc/sqrt(M) + (E_costs + 2 E_visits)/M
           ucb_vi: beta = beta^c + H Lc/sqrt(M) + H (S E_transitions + 2 E_visits)/M
           ucb_po: beta = beta^c + H (Lp/sqrt(M) + (S E_transitions + 2 E_visits)/M)
           Q_h(s,a) = min{H-h+1, max{0, c~ + sum_s' P~(s') V_{h+1}(s') - beta}}
           ucb_vi: V_h(s) = min_a Q_h(s,a), pi_h(s) = argmin_a Q_h(s,a);  ucb_po: V_h(s) = sum_a pi_h(a|s) Q_h(s,a)
      2. roll out a trajectory with pi^k; the privatizer gives the counts of episodes 1..k
      3. ucb_po: pi_h(a|s) <- pi_h(a|s) exp(-eta Q_h(s,a)) / norm
    with Lc = sqrt(2 ln(4SAT/delta)), Lp = sqrt(4 S ln(6SAT/delta)), T = K H. Costs are deterministic.

    Args:
        mdp_costs: expected costs, [H,S,A].
        mdp_transitions: transition probabilities, [H,S,A,S].
        initial_state: the state every episode starts in.
        num_episodes: K.
        learner: "ucb_vi" or "ucb_po".
        privatizer: "exact", "local_laplace" or "central_laplace".
        noise_scale: Laplace scale of a counter in an episode (local) or of a node of the tree (central).
        errors: E_visits, E_costs and E_transitions.
        bonus_scale: multiplies beta.
        learning_rate: eta of ucb_po.
        failure_prob: delta.
        draws: maps the 0-based episode to {"ties": u[H,S], "action": u[H], "next": u[H], "cost": u[H] (not read: costs
            are deterministic), "noise": unit-scale Laplace {"visits", "costs", "transitions"} that enters the counts
            after this episode}. By default drawn here from ``seed``.
        seed: of the default draws.
    """
    horizon, num_states, num_actions = mdp_costs.shape
    if learner not in ("ucb_vi", "ucb_po"):
        raise ValueError(f"unknown learner {learner!r}: use ucb_vi or ucb_po")
    noisy = privatizer != "exact"
    if draws is None:
        draws = random_draws(horizon, num_states, num_actions, seed, noisy=noisy)
    gaps = optimal_gaps(mdp_costs, mdp_transitions)
    cumulative = np.cumsum(mdp_transitions.astype(np.float32), axis=-1)

    e_visits, e_costs, e_transitions = errors
    pairs_steps = num_states * num_actions * num_episodes * horizon
    lc = np.sqrt(2.0 * np.log(4.0 * pairs_steps / failure_prob))
    lp = np.sqrt(4.0 * num_states * np.log(6.0 * pairs_steps / failure_prob))
    root_bonus = lc + horizon * (lc if learner == "ucb_vi" else lp)
    linear_bonus = e_costs + 2.0 * e_visits + horizon * (num_states * e_transitions + 2.0 * e_visits)

    zeros = {
        "visits": np.zeros((horizon, num_states, num_actions)),
        "costs": np.zeros((horizon, num_states, num_actions)),
        "transitions": np.zeros((horizon, num_states, num_actions, num_states)),
    }
    mechanism = make_privatizer(privatizer, zeros, noise_scale, num_episodes)
    counts = {name: zero.copy() for name, zero in zeros.items()}
    logits = np.zeros((horizon, num_states, num_actions))
    policy = np.full((horizon, num_states, num_actions), 1.0 / num_actions)
    q = np.zeros((horizon, num_states, num_actions), dtype=np.float32)
    regret = np.zeros(num_episodes)

    for k in range(num_episodes):
        drawn = draws(k)

        # Optimistic planning. Q is float32 so that ties are those of a float32 implementation.
        value = np.zeros(num_states, dtype=np.float32)
        for h in reversed(range(horizon)):
            m = np.maximum(1.0, counts["visits"][h] + e_visits)
            cost = counts["costs"][h] / m
            transition = counts["transitions"][h] / m[:, :, None]
            bonus = bonus_scale * (root_bonus / np.sqrt(m) + linear_bonus / m)
            q[h] = np.clip(cost + transition @ value - bonus, 0.0, horizon - h)
            if learner == "ucb_vi":
                value = q[h].min(axis=1)
                policy[h] = greedy(q[h], drawn["ties"][h])
            else:
                value = (policy[h] * q[h]).sum(axis=1)
        regret[k] = exact_regret(gaps, mdp_transitions, policy, initial_state)

        # Roll out one trajectory.
        episode = {name: np.zeros_like(zero) for name, zero in zeros.items()}
        s = initial_state
        for h in range(horizon):
            a = categorical(np.cumsum(policy[h, s].astype(np.float32)), drawn["action"][h])
            s_next = categorical(cumulative[h, s, a], drawn["next"][h])
            episode["visits"][h, s, a] += 1.0
            episode["costs"][h, s, a] += mdp_costs[h, s, a]
            episode["transitions"][h, s, a, s_next] += 1.0
            s = s_next
        counts = mechanism.update(episode, drawn["noise"] if noisy else {})

        # Mirror descent, on logits whose largest is 0.
        if learner == "ucb_po":
            logits -= learning_rate * q
            logits -= logits.max(axis=-1, keepdims=True)
            weights = np.exp(logits)
            policy = weights / weights.sum(axis=-1, keepdims=True)
    return regret


def main() -> None:
    """Time the loop on RiverSwim and print one JSON line with the keys of ``benchmarks/c/episode_loop.c``."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("learner", choices=("ucb_vi", "ucb_po"))
    parser.add_argument("privatizer", choices=("exact", "local_laplace", "central_laplace"))
    parser.add_argument("--episodes", type=int, default=1000)
    parser.add_argument("--runs", type=int, default=1)
    parser.add_argument("--noise-scale", type=float, default=1.0)
    parser.add_argument("--errors", type=float, nargs=3, default=(0.0, 0.0, 0.0), metavar=("VISITS", "COSTS", "TRANS"))
    parser.add_argument("--bonus-scale", type=float, default=0.02)
    parser.add_argument("--learning-rate", type=float, default=0.05)
    parser.add_argument("--failure-prob", type=float, default=0.1)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    costs, transitions = river_swim()
    start = time.process_time()
    regrets = np.stack(
        [
            run(
                costs,
                transitions,
                0,
                args.episodes,
                args.learner,
                args.privatizer,
                args.noise_scale,
                tuple(args.errors),
                args.bonus_scale,
                args.learning_rate,
                args.failure_prob,
                seed=args.seed + i,
            )
            for i in range(args.runs)
        ]
    )
    seconds = time.process_time() - start
    final = regrets.sum(axis=1)
    result = {
        "cpu_seconds": seconds,
        "us_per_episode_run": 1e6 * seconds / (args.episodes * args.runs),
        "mean_final_regret": float(final.mean()),
        "std_final_regret": float(final.std(ddof=1)) if args.runs > 1 else 0.0,
        "last_tenth_regret_per_episode": float(regrets[:, -((args.episodes + 9) // 10) :].mean()),
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
