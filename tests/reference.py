"""Slow, plain NumPy reference of private tabular episodic reinforcement learning.

Everything is written with loops over (h, s, a, s2) in float64, straight from the printed formulas. Nothing is drawn
at random in this file: every uniform, Laplace or Gaussian draw is an argument.

Conventions
-----------
* Axis order [h, s, a, s2]. Code index h = 0..H-1 stands for the papers' step h+1, so the papers' H-h+1 is `H - h`.
* Statistics are triples (visits [Hs,S,A], costs [Hs,S,A], transitions [Hs,S,A,S]); Hs is H, or 1 when the counts are
  pooled over the steps of an episode. A stage axis of length 1 is used for every h.
* Costs are in [0, 1]. Reward papers are translated once by r = 1 - c: the learner receives cost sums C~ and visits N~,
  so its reward sum is R~ = N~ - C~; its values are rewards-to-go and its policy is an argmax.
* Ties: among the m best actions (exact float equality), in index order, the one with number min(floor(u*m), m-1).
* Categorical draw with uniform u: the number of cumulative sums of p that are <= u, capped at n-1.
* Bernoulli cost with mean c and uniform u: 1 if u < c, else 0.

Sources
-------
Chowdhury and Zhou, "Differentially Private Regret Minimization in Episodic Markov Decision Processes" (CZ);
Vietri et al., "Private Reinforcement Learning with PAC and Regret Guarantees" (PUCB); Garcelon et al., "Local
Differential Privacy for Regret Minimization in Reinforcement Learning" (LDP-OBI); Qiao and Wang, "Near-Optimal
Differentially Private Reinforcement Learning" (DP-UCBVI); Azar, Osband and Munos, "Minimax Regret Bounds for
Reinforcement Learning" (UCBVI); Chan, Shi and Song, "Private and Continual Release of Statistics" (binary mechanism);
Honaker, "Efficient Use of Differentially Private Binary Trees"; Fichtenberger, Henzinger and Upadhyay, "Constant
Matters" (square-root factorization); Dvijotham et al., "Efficient and Near-Optimal Noise Generation for Streaming
Differential Privacy" (BLT).
"""

import itertools
import math

import numpy as np
from scipy.optimize import linprog

# ---------------------------------------------------------------------------------------------------------------------
# Small helpers
# ---------------------------------------------------------------------------------------------------------------------


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


# ---------------------------------------------------------------------------------------------------------------------
# 1. Markov decision process: values, regret, roll-out, counts
# ---------------------------------------------------------------------------------------------------------------------


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


def counts_of_episode(trajectory, H, S, A, pooled):
    """Increments of N_h(s,a), C_h(s,a), N_h(s,a,s2) from one episode (CZ, section 3), all H steps included.

    visits 1{s_h=s,a_h=a}, costs c_h 1{s_h=s,a_h=a}, transitions 1{s_h=s,a_h=a,s_{h+1}=s2}; pooled sums them over h
    into a stage axis of length 1.
    """
    states, actions, paid = trajectory
    Hs = 1 if pooled else H
    visits = np.zeros((Hs, S, A))
    costs = np.zeros((Hs, S, A))
    transitions = np.zeros((Hs, S, A, S))
    for h in range(H):
        g = 0 if pooled else h
        s, a, s2 = states[h], actions[h], states[h + 1]
        visits[g, s, a] += 1.0
        costs[g, s, a] += paid[h]
        transitions[g, s, a, s2] += 1.0
    return visits, costs, transitions


# ---------------------------------------------------------------------------------------------------------------------
# 2. Privatizers
# ---------------------------------------------------------------------------------------------------------------------


def trailing_zeros(k):
    """Index i of the lowest set bit of k >= 1."""
    i = 0
    while (k >> i) & 1 == 0:
        i += 1
    return i


class Privatizer:
    """Common part: three streams (visits, costs, transitions) of arrays, released after every episode.

    `counts` and `noise` are triples (visits, costs, transitions). `scale` is the noise scale of one unit draw: a
    number, or a triple with one number per stream. families=3 perturbs all three streams; families=2 perturbs only
    costs and transitions and derives visits(s,a) = sum_{s2} released transitions(s,a,s2) (the visit noise is ignored
    and may be None).
    """

    def __init__(self, Hs, S, A, scale=0.0, families=3):
        if families not in (2, 3):
            raise ValueError("families must be 2 or 3")
        self.shapes = [(Hs, S, A), (Hs, S, A), (Hs, S, A, S)]
        self.scale = [float(x) for x in scale] if np.ndim(scale) else [float(scale)] * 3
        self.families = families
        self.episode = 0

    def perturbed(self):
        """Streams that carry their own noise."""
        return [0, 1, 2] if self.families == 3 else [1, 2]

    def assemble(self, streams):
        """(visits, costs, transitions) from the released streams, visits derived when families = 2."""
        costs = np.array(streams[1], dtype=float)
        transitions = np.array(streams[2], dtype=float)
        if self.families == 3:
            return np.array(streams[0], dtype=float), costs, transitions
        visits = np.zeros(self.shapes[0])
        Hs, S, A = self.shapes[0]
        for h in range(Hs):
            for s in range(S):
                for a in range(A):
                    for s2 in range(S):
                        visits[h, s, a] += transitions[h, s, a, s2]
        return visits, costs, transitions

    def release(self):
        """Release before any episode: CZ, Algorithms 1 and 2, line 2: all counts are zero."""
        return self.assemble([np.zeros(shape) for shape in self.shapes])

    def update(self, counts, noise=None):
        raise NotImplementedError


class Exact(Privatizer):
    """Non-private running sums: N^{k+1} = N^k + (counts of episode k). The noise argument is ignored."""

    def __init__(self, Hs, S, A, families=3):
        super().__init__(Hs, S, A, 0.0, families)
        self.total = [np.zeros(shape) for shape in self.shapes]

    def update(self, counts, noise=None):
        self.episode += 1
        for f in range(3):
            self.total[f] = self.total[f] + np.asarray(counts[f], dtype=float)
        return self.assemble(self.total)


class LocalLaplace(Privatizer):
    """Local-Privatizer (CZ, section 5.2): N~^k = sum_{j<k} (sigma^j + b * z^j), fresh unit draw z^j in every cell.

    The paper's scale is b = 3H/eps; here b = `scale`.
    """

    def __init__(self, Hs, S, A, scale, families=3):
        super().__init__(Hs, S, A, scale, families)
        self.total = [np.zeros(shape) for shape in self.shapes]

    def update(self, counts, noise):
        self.episode += 1
        for f in self.perturbed():
            report = np.asarray(counts[f], dtype=float) + self.scale[f] * np.asarray(noise[f], dtype=float)
            self.total[f] = self.total[f] + report
        return self.assemble(self.total)


class TreeLaplace(Privatizer):
    """Central-Privatizer (CZ, section 5.1) = binary mechanism of Chan, Shi and Song (their Algorithm 2), per counter.

    At episode k let i be the lowest set bit of k:
        alpha_i = sum_{j<i} alpha_j + x_k;   alpha_j = alphahat_j = 0 for j < i;   alphahat_i = alpha_i + b * z_k,
        release  sum of alphahat_j over the set bits j of k,
    with z_k the unit-scale draw of episode k (it belongs to the one node that episode k creates). The paper's scale is
    b = 3H log(K)/eps; here b = `scale`.
    """

    def __init__(self, Hs, S, A, scale, families=3):
        super().__init__(Hs, S, A, scale, families)
        self.alpha = [{} for _ in range(3)]
        self.alphahat = [{} for _ in range(3)]

    def update(self, counts, noise):
        self.episode += 1
        k = self.episode
        i = trailing_zeros(k)
        released = [None, None, None]
        for f in self.perturbed():
            alpha, alphahat = self.alpha[f], self.alphahat[f]
            total = np.asarray(counts[f], dtype=float)
            for j in range(i):
                total = total + alpha[j]
            for j in range(i):
                alpha[j] = np.zeros(self.shapes[f])
                alphahat[j] = np.zeros(self.shapes[f])
            alpha[i] = total
            alphahat[i] = total + self.scale[f] * np.asarray(noise[f], dtype=float)
            output = np.zeros(self.shapes[f])
            for j in range(k.bit_length()):
                if (k >> j) & 1:
                    output = output + alphahat[j]
            released[f] = output
        return self.assemble(released)


class TreeGaussian(TreeLaplace):
    """The same binary mechanism with standard normal unit draws and `scale` = the node standard deviation."""


def honaker_variance(level):
    """Variance factor of a refined node of height `level` (leaf = 0): v_0 = 1, v_j = 1 / (1 + 1/(2 v_{j-1})).

    Inverse variance weighting of the node's own value (variance 1) with the sum of its two refined children
    (variance 2 v_{j-1}); the closed form is 2^j / (2^(j+1) - 1).
    """
    v = 1.0
    for _ in range(level):
        v = 1.0 / (1.0 + 1.0 / (2.0 * v))
    return v


class HonakerTree(Privatizer):
    """Binary tree with bottom-up variance reduction (Honaker's estimate "from below"), online.

    Node (j, m) covers episodes m*2^j + 1 .. (m+1)*2^j. Its noisy value is y = (sum of x over the node) + b * z with one
    unit draw z per node. Refined estimates:
        leaf:   yhat = y
        node:   yhat = w * y + (1 - w) * (yhat_left + yhat_right),
                w = (1/1) / (1/1 + 1/(2 v_{j-1})),   v_j = 1 / (1/1 + 1/(2 v_{j-1})).
    Release after episode k: the sum of yhat over the nodes of the binary expansion of k, which cover 1..k disjointly.

    `noise` of episode k is a dict {level: (visits, costs, transitions)} with one entry for each node that is completed
    by episode k, i.e. levels 0..trailing_zeros(k).
    """

    def __init__(self, Hs, S, A, scale, families=3):
        super().__init__(Hs, S, A, scale, families)
        self.increments = [[], [], []]
        self.refined = [{}, {}, {}]

    def update(self, counts, noise):
        self.episode += 1
        k = self.episode
        released = [None, None, None]
        for f in self.perturbed():
            self.increments[f].append(np.asarray(counts[f], dtype=float))
            for j in range(trailing_zeros(k) + 1):
                m = k // 2**j - 1
                total = np.zeros(self.shapes[f])
                for t in range(m * 2**j, (m + 1) * 2**j):
                    total = total + self.increments[f][t]
                own = total + self.scale[f] * np.asarray(noise[j][f], dtype=float)
                if j == 0:
                    self.refined[f][(0, m)] = own
                else:
                    below = self.refined[f][(j - 1, 2 * m)] + self.refined[f][(j - 1, 2 * m + 1)]
                    precision_own = 1.0
                    precision_below = 1.0 / (2.0 * honaker_variance(j - 1))
                    w = precision_own / (precision_own + precision_below)
                    self.refined[f][(j, m)] = w * own + (1.0 - w) * below
            output = np.zeros(self.shapes[f])
            start = 0
            for j in range(k.bit_length() - 1, -1, -1):
                if (k >> j) & 1:
                    output = output + self.refined[f][(j, start // 2**j)]
                    start += 2**j
            released[f] = output
        return self.assemble(released)


def prefix_sum_matrix(K):
    """A with A[t, j] = 1 for j <= t, else 0: (A x)_t = x_0 + ... + x_t."""
    A = np.zeros((K, K))
    for t in range(K):
        for j in range(t + 1):
            A[t, j] = 1.0
    return A


def toeplitz_matrix(coefficients):
    """Lower-triangular Toeplitz matrix C[t, j] = c_{t-j} for j <= t."""
    K = len(coefficients)
    C = np.zeros((K, K))
    for t in range(K):
        for j in range(t + 1):
            C[t, j] = coefficients[t - j]
    return C


def blt_matrix(decay, scale, K):
    """Strategy matrix of a buffered linear Toeplitz mechanism: c_0 = 1, c_k = sum_i s_i d_i^(k-1) for k >= 1."""
    c = [1.0]
    for k in range(1, K):
        c.append(sum(float(s) * float(d) ** (k - 1) for s, d in zip(scale, decay, strict=False)))
    return toeplitz_matrix(c)


def sqrt_toeplitz_matrix(K):
    """Square root of the prefix-sum matrix: A = C C with c_k = binom(2k, k) / 4^k."""
    return toeplitz_matrix([math.comb(2 * k, k) / 4**k for k in range(K)])


def blt_noise(decay, scale, z):
    """Noise in the released prefix sums of a BLT mechanism: A C^{-1} z, i.e. prefix sums of C^{-1} z. z is [K, ...]."""
    z = np.asarray(z, dtype=float)
    K = z.shape[0]
    C = blt_matrix(decay, scale, K)
    correlated = np.linalg.solve(C, z.reshape(K, -1))
    return (prefix_sum_matrix(K) @ correlated).reshape(z.shape)


def sqrt_toeplitz_noise(z):
    """Noise in the released prefix sums of the square-root mechanism: A C^{-1} z = C z. z is [K, ...]."""
    z = np.asarray(z, dtype=float)
    K = z.shape[0]
    return (sqrt_toeplitz_matrix(K) @ z.reshape(K, -1)).reshape(z.shape)


class MatrixMechanism(Privatizer):
    """Prefix sums plus B z for a factorization A = B C: release_k = sum_{j<=k} x_j + scale * sum_{j<=k} B[k-1,j-1] z_j.

    `decoder` is the dense lower-triangular K x K matrix B. BLT: B = A C^{-1}; square-root Toeplitz: B = C.
    """

    def __init__(self, Hs, S, A, scale, decoder, families=3):
        super().__init__(Hs, S, A, scale, families)
        self.decoder = np.asarray(decoder, dtype=float)
        self.total = [np.zeros(shape) for shape in self.shapes]
        self.draws = [[], [], []]

    def update(self, counts, noise):
        self.episode += 1
        k = self.episode
        released = [None, None, None]
        for f in self.perturbed():
            self.total[f] = self.total[f] + np.asarray(counts[f], dtype=float)
            self.draws[f].append(np.asarray(noise[f], dtype=float))
            output = np.array(self.total[f])
            for j in range(k):
                output = output + self.scale[f] * self.decoder[k - 1, j] * self.draws[f][j]
            released[f] = output
        return self.assemble(released)


def blt_decoder(decay, scale, K):
    """B = A C^{-1} for a BLT strategy C."""
    return prefix_sum_matrix(K) @ np.linalg.inv(blt_matrix(decay, scale, K))


# ---------------------------------------------------------------------------------------------------------------------
# 3. Learners
# ---------------------------------------------------------------------------------------------------------------------


class Learner:
    """Common part. step(release, tie_uniforms) -> (policy [H,S,A], Q [H,S,A], V [H+1,S]) of the next episode.

    `release` is a dict with the arrays visits, costs, transitions and the numbers E_visits, E_costs, E_transitions
    (high-probability bounds on the error of one released entry). tie_uniforms is [H,S].
    bonus_scale multiplies the whole exploration bonus. T = K*H.
    """

    def __init__(self, H, S, A, K, failure_prob, bonus_scale=1.0):
        self.H, self.S, self.A, self.K = int(H), int(S), int(A), int(K)
        self.T = self.K * self.H
        self.failure_prob = float(failure_prob)
        self.bonus_scale = float(bonus_scale)
        self.episode = 0

    @staticmethod
    def errors(release):
        return float(release["E_visits"]), float(release["E_costs"]), float(release["E_transitions"])


class _ChowdhuryZhou(Learner):
    """Estimates and bonuses shared by CZ Algorithms 1 and 2. Costs are minimised.

    M = max(1, N~_h(s,a) + E_visits);   c~ = C~_h(s,a) / M,   P~(s2) = N~_h(s,a,s2) / M        (CZ, equation 1)
    beta^c  = Lc / sqrt(M) + (E_costs + 2 E_visits) / M,        Lc = sqrt(2 ln(4SAT/delta))      (CZ, Lemma 3.1)
    beta^p  = Lp / sqrt(M) + (S E_transitions + 2 E_visits)/M,  Lp = sqrt(4 S ln(6SAT/delta))    (CZ, Lemma 3.1)
    beta^pv = H Lc / sqrt(M) + H (S E_transitions + 2 E_visits) / M                              (CZ, Lemma 4.1)
    (E_costs + 2 E_visits = 3 E_1 when both are the paper's E_1; E_transitions is the paper's E_2.)
    """

    def denominator(self, release, h, s, a):
        E_visits = self.errors(release)[0]
        return max(1.0, float(stage(release["visits"], h)[s, a]) + E_visits)

    def beta_cost(self, release, h, s, a):
        E_visits, E_costs, _ = self.errors(release)
        M = self.denominator(release, h, s, a)
        Lc = math.sqrt(2.0 * math.log(4.0 * self.S * self.A * self.T / self.failure_prob))
        return Lc / math.sqrt(M) + (E_costs + 2.0 * E_visits) / M

    def beta_transition(self, release, h, s, a):
        E_visits, _, E_transitions = self.errors(release)
        M = self.denominator(release, h, s, a)
        Lp = math.sqrt(4.0 * self.S * math.log(6.0 * self.S * self.A * self.T / self.failure_prob))
        return Lp / math.sqrt(M) + (self.S * E_transitions + 2.0 * E_visits) / M

    def beta_value(self, release, h, s, a):
        E_visits, _, E_transitions = self.errors(release)
        M = self.denominator(release, h, s, a)
        Lc = math.sqrt(2.0 * math.log(4.0 * self.S * self.A * self.T / self.failure_prob))
        return self.H * Lc / math.sqrt(M) + self.H * (self.S * E_transitions + 2.0 * E_visits) / M

    def backup(self, release, h, s, a, V_next, bonus):
        """min{H-h+1, max{0, c~ + sum_{s2} V(s2) P~(s2) - bonus_scale * bonus}} (CZ, Algorithms 1 and 2)."""
        M = self.denominator(release, h, s, a)
        cost = float(stage(release["costs"], h)[s, a]) / M
        future = 0.0
        for s2 in range(self.S):
            future += V_next[s2] * (float(stage(release["transitions"], h)[s, a, s2]) / M)
        return min(float(self.H - h), max(0.0, cost + future - self.bonus_scale * bonus))


class UCBVI(_ChowdhuryZhou):
    """Private-UCB-VI (CZ, Algorithm 2), costs.

    Q_h(s,a) = min{H-h+1, max{0, c~ + sum_{s2} V_{h+1}(s2) P~(s2) - (beta^c + beta^pv)}},
    V_h(s) = min_a Q_h(s,a), pi_h(s) = argmin_a Q_h(s,a), V_{H+1} = 0.
    """

    def step(self, release, tie_uniforms):
        self.episode += 1
        Q = np.zeros((self.H, self.S, self.A))
        V = np.zeros((self.H + 1, self.S))
        for h in range(self.H - 1, -1, -1):
            for s in range(self.S):
                for a in range(self.A):
                    bonus = self.beta_cost(release, h, s, a) + self.beta_value(release, h, s, a)
                    Q[h, s, a] = self.backup(release, h, s, a, V[h + 1], bonus)
                V[h, s] = min(Q[h, s, a] for a in range(self.A))
        return greedy_policy(Q, tie_uniforms, largest=False), Q, V


class UCBPO(_ChowdhuryZhou):
    """Private-UCB-PO (CZ, Algorithm 1), costs.

    pi^1 uniform;  Q_h(s,a) = min{H-h+1, max{0, c~ + sum_{s2} V_{h+1}(s2) P~(s2) - (beta^c + H beta^p)}},
    V_h(s) = sum_a Q_h(s,a) pi^k_h(a|s); the policy of episode k is pi^k (returned), and afterwards
    pi^{k+1}_h(a|s) = pi^k_h(a|s) exp(-eta Q_h(s,a)) / sum_b pi^k_h(b|s) exp(-eta Q_h(s,b)).
    Default eta = sqrt(2 ln A / (H^2 K)) (CZ, Theorem 3.2). The tie uniforms are not used.
    """

    def __init__(self, H, S, A, K, failure_prob, bonus_scale=1.0, learning_rate=None):
        super().__init__(H, S, A, K, failure_prob, bonus_scale)
        if learning_rate is None:
            learning_rate = math.sqrt(2.0 * math.log(self.A) / (self.H**2 * self.K))
        self.learning_rate = float(learning_rate)
        self.policy = np.full((self.H, self.S, self.A), 1.0 / self.A)

    def step(self, release, tie_uniforms=None):
        self.episode += 1
        current = np.array(self.policy)
        Q = np.zeros((self.H, self.S, self.A))
        V = np.zeros((self.H + 1, self.S))
        for h in range(self.H - 1, -1, -1):
            for s in range(self.S):
                value = 0.0
                for a in range(self.A):
                    bonus = self.beta_cost(release, h, s, a) + self.H * self.beta_transition(release, h, s, a)
                    Q[h, s, a] = self.backup(release, h, s, a, V[h + 1], bonus)
                    value += Q[h, s, a] * current[h, s, a]
                V[h, s] = value
        for h in range(self.H):
            for s in range(self.S):
                weight = [current[h, s, a] * math.exp(-self.learning_rate * Q[h, s, a]) for a in range(self.A)]
                for a in range(self.A):
                    self.policy[h, s, a] = weight[a] / sum(weight)
        return current, Q, V


class PUCB(Learner):
    """PUCB (Vietri et al., algorithms PUCB and PrivQ of the main paper), reward form: R~ = N~ - C~.

    E = max(E_visits, E_costs, E_transitions), beta = failure_prob, n = N~_h(s,a):
        phi  = sqrt( (2 ln(n + E) + 2 ln(SAH/beta)) / max(n - E, 1) )
        psi  = (1 + S H) (3 E / n + 2 E^2 / n^2)
        Q~   = (R~_h(s,a) + sum_{s2} V_{h+1}(s2) N~_h(s,a,s2)) / n
        Q+   = min{H, Q~ + (H+1) phi + psi}   if n >= max(2E, 1),   else Q+ = H
        V_h(s) = max_a Q+_h(s,a), greedy argmax.
    Values are rewards-to-go. There is no lower clip. bonus_scale multiplies (H+1) phi + psi.
    """

    def step(self, release, tie_uniforms):
        self.episode += 1
        H, S, A = self.H, self.S, self.A
        E = max(self.errors(release))
        Q = np.zeros((H, S, A))
        V = np.zeros((H + 1, S))
        for h in range(H - 1, -1, -1):
            N = stage(release["visits"], h)
            C = stage(release["costs"], h)
            N3 = stage(release["transitions"], h)
            for s in range(S):
                for a in range(A):
                    n = float(N[s, a])
                    if n < max(2.0 * E, 1.0):
                        Q[h, s, a] = float(H)
                        continue
                    reward_sum = n - float(C[s, a])
                    future = 0.0
                    for s2 in range(S):
                        future += V[h + 1, s2] * float(N3[s, a, s2])
                    estimate = (reward_sum + future) / n
                    log_term = 2.0 * math.log(n + E) + 2.0 * math.log(S * A * H / self.failure_prob)
                    phi = math.sqrt(log_term / max(n - E, 1.0))
                    psi = (1.0 + S * H) * (3.0 * E / n + 2.0 * E**2 / n**2)
                    conf = (H + 1.0) * phi + psi
                    Q[h, s, a] = min(float(H), estimate + self.bonus_scale * conf)
                V[h, s] = max(Q[h, s, a] for a in range(A))
        return greedy_policy(Q, tie_uniforms, largest=True), Q, V


class LDP_OBI(Learner):
    """LDP-OBI (Garcelon et al.), reward form: R~ = N~ - C~. The constants below are not verified against the paper.

    k = episode (1, 2, ...), alpha = 2, c_1 = E_costs, c_2 = c_3 = E_visits, c_4 = E_transitions, delta = failure_prob,
    L_k = ln(4 pi^2 S A H k^3 / (3 delta)):
        D_r = max(1, N~ + alpha c_2),  D_p = max(1, N~ + alpha c_3)
        r~ = R~ / D_r,   p~(s2) = N~(s,a,s2) / D_p
        beta^r = sqrt(2 L_k / D_r) + ((alpha+1) c_2 + c_1) / D_r
        beta^p = sqrt(14 S L_k / D_p) + (S c_4 + (alpha+1) c_3) / D_p
        b_h = beta^r + (H-h+1) beta^p
        Q_h = r~ + sum_{s2} p~(s2) V_{h+1}(s2) + b_h,   V_h = min{H-h+1, max_a Q_h},   greedy argmax of Q_h.
    Values are rewards-to-go. Q itself is not clipped, as printed; clip_q=True returns min{H-h+1, Q_h} and takes the
    argmax of that instead (V is the same).
    """

    def __init__(self, H, S, A, K, failure_prob, bonus_scale=1.0, alpha=2.0, clip_q=False):
        super().__init__(H, S, A, K, failure_prob, bonus_scale)
        self.alpha = float(alpha)
        self.clip_q = clip_q

    def step(self, release, tie_uniforms):
        self.episode += 1
        k = self.episode
        H, S, A, alpha = self.H, self.S, self.A, self.alpha
        E_visits, E_costs, E_transitions = self.errors(release)
        c1, c2, c3, c4 = E_costs, E_visits, E_visits, E_transitions
        L = math.log(4.0 * math.pi**2 * S * A * H * k**3 / (3.0 * self.failure_prob))
        Q = np.zeros((H, S, A))
        V = np.zeros((H + 1, S))
        for h in range(H - 1, -1, -1):
            N = stage(release["visits"], h)
            C = stage(release["costs"], h)
            N3 = stage(release["transitions"], h)
            for s in range(S):
                for a in range(A):
                    n = float(N[s, a])
                    D_r = max(1.0, n + alpha * c2)
                    D_p = max(1.0, n + alpha * c3)
                    reward = (n - float(C[s, a])) / D_r
                    future = 0.0
                    for s2 in range(S):
                        future += (float(N3[s, a, s2]) / D_p) * V[h + 1, s2]
                    beta_r = math.sqrt(2.0 * L / D_r) + ((alpha + 1.0) * c2 + c1) / D_r
                    beta_p = math.sqrt(14.0 * S * L / D_p) + (S * c4 + (alpha + 1.0) * c3) / D_p
                    bonus = beta_r + (H - h) * beta_p
                    Q[h, s, a] = reward + future + self.bonus_scale * bonus
                    if self.clip_q:
                        Q[h, s, a] = min(float(H - h), Q[h, s, a])
                V[h, s] = min(float(H - h), max(Q[h, s, a] for a in range(A)))
        return greedy_policy(Q, tie_uniforms, largest=True), Q, V


def mean_and_variance(P, V):
    """m = sum_y P(y) V(y) and max(0, sum_y P(y) (V(y) - m)^2).

    The maximum matters only when P has negative entries (noisy counts that were not post-processed).
    """
    mean = 0.0
    for y in range(len(P)):
        mean += P[y] * V[y]
    variance = 0.0
    for y in range(len(P)):
        variance += P[y] * (V[y] - mean) ** 2
    return mean, max(0.0, variance)


def next_state_counts(visits, h, S, A):
    """N_{h+1}(y) = sum_a N_{h+1}(y,a) for h < H (code index h+1; the same pooled array if the stage axis is 1)."""
    N = stage(visits, h + 1)
    totals = []
    for y in range(S):
        total = 0.0
        for a in range(A):
            total += float(N[y, a])
        totals.append(total)
    return totals


class DP_UCBVI(Learner):
    """DP-UCBVI (Qiao and Wang, Algorithm 1), reward form: R~ = N~ - C~, on post-processed counts (see `project`).

    E = max(E_visits, E_costs, E_transitions), iota = ln(30 H S A T / failure_prob), N~ = N~_h(s,a):
        P~(s2) = N~_h(s,a,s2) / N~,   r~ = clip(R~ / N~, 0, 1),   N~_{h+1}(s2) = sum_a N~_{h+1}(s2,a)
        b = 2 sqrt( Var_{P~}(V_{h+1}) iota / N~ ) + sqrt(2 iota / N~) + 20 H S E iota / N~
            + 4 sqrt(iota) sqrt( sum_{s2} P~(s2) min{ 1000^2 H^3 S A iota^2 / N~_{h+1}(s2)
                + 1000^2 H^4 S^4 A^2 E^2 iota^4 / N~_{h+1}(s2)^2
                + 1000^2 H^6 S^4 A^2 iota^4 / N~_{h+1}(s2)^2 , H^2 } / N~ )
        Q^k_h = min{ Q^{k-1}_h, H, r~ + sum_{s2} P~(s2) V_{h+1}(s2) + b },   Q^0 = H;   V = max_a Q;   argmax.
    N~ <= 0: the third member is H. N~_{h+1}(s2) <= 0: that minimum is H^2. At the last step the fourth term is 0.
    A negative sum under the last root counts as 0. Values are rewards-to-go. bonus_scale multiplies b.
    """

    def __init__(self, H, S, A, K, failure_prob, bonus_scale=1.0):
        super().__init__(H, S, A, K, failure_prob, bonus_scale)
        self.Q_previous = np.full((self.H, self.S, self.A), float(self.H))

    def step(self, release, tie_uniforms):
        self.episode += 1
        H, S, A = self.H, self.S, self.A
        E = max(self.errors(release))
        iota = math.log(30.0 * H * S * A * self.T / self.failure_prob)
        Q = np.zeros((H, S, A))
        V = np.zeros((H + 1, S))
        for h in range(H - 1, -1, -1):
            N = stage(release["visits"], h)
            C = stage(release["costs"], h)
            N3 = stage(release["transitions"], h)
            for s in range(S):
                for a in range(A):
                    n = float(N[s, a])
                    if n <= 0.0:
                        Q[h, s, a] = min(self.Q_previous[h, s, a], float(H))
                        continue
                    P = [float(N3[s, a, s2]) / n for s2 in range(S)]
                    reward = min(1.0, max(0.0, (n - float(C[s, a])) / n))
                    mean, variance = mean_and_variance(P, V[h + 1])
                    bonus = 2.0 * math.sqrt(variance * iota / n)
                    bonus += math.sqrt(2.0 * iota / n)
                    bonus += 20.0 * H * S * E * iota / n
                    if h < H - 1:
                        n_next = next_state_counts(release["visits"], h, S, A)
                        total = 0.0
                        for s2 in range(S):
                            inner = float(H**2)
                            if n_next[s2] > 0.0:
                                x = 1000.0**2 * H**3 * S * A * iota**2 / n_next[s2]
                                x += 1000.0**2 * H**4 * S**4 * A**2 * E**2 * iota**4 / n_next[s2] ** 2
                                x += 1000.0**2 * H**6 * S**4 * A**2 * iota**4 / n_next[s2] ** 2
                                inner = min(x, inner)
                            total += P[s2] * inner
                        bonus += 4.0 * math.sqrt(iota) * math.sqrt(max(0.0, total) / n)
                    candidate = reward + mean + self.bonus_scale * bonus
                    Q[h, s, a] = min(self.Q_previous[h, s, a], float(H), candidate)
                V[h, s] = max(Q[h, s, a] for a in range(A))
        self.Q_previous = np.array(Q)
        return greedy_policy(Q, tie_uniforms, largest=True), Q, V


class _Azar(Learner):
    """UCBVI (Azar, Osband and Munos, Algorithms 1 and 2), reward form with unknown costs: R = N - C.

    N = N_h(s,a) > 0:  Q_{k,h}(s,a) = min{ Q_{k-1,h}(s,a), H, R/N + sum_y Phat(y) V_{k,h+1}(y) + b },  Phat = N(s,a,y)/N
    otherwise the third member is H.  Q_{0,h} = H, V = max_a Q, argmax, V_{H+1} = 0.  L = ln(5 S A T / delta).
    The bonus b carries an extra sqrt(2 L / N) for the unknown costs. The released counts are used as they are and the
    errors E are ignored. Values are rewards-to-go. bonus_scale multiplies b, the extra term included.
    """

    def __init__(self, H, S, A, K, failure_prob, bonus_scale=1.0):
        super().__init__(H, S, A, K, failure_prob, bonus_scale)
        self.Q_previous = np.full((self.H, self.S, self.A), float(self.H))
        self.L = math.log(5.0 * self.S * self.A * self.T / self.failure_prob)

    def bonus(self, n, P, V_next, h, visits):
        raise NotImplementedError

    def step(self, release, tie_uniforms):
        self.episode += 1
        H, S, A = self.H, self.S, self.A
        Q = np.zeros((H, S, A))
        V = np.zeros((H + 1, S))
        for h in range(H - 1, -1, -1):
            N = stage(release["visits"], h)
            C = stage(release["costs"], h)
            N3 = stage(release["transitions"], h)
            for s in range(S):
                for a in range(A):
                    n = float(N[s, a])
                    if n <= 0.0:
                        Q[h, s, a] = min(self.Q_previous[h, s, a], float(H))
                        continue
                    P = [float(N3[s, a, y]) / n for y in range(S)]
                    reward = (n - float(C[s, a])) / n
                    future = 0.0
                    for y in range(S):
                        future += P[y] * V[h + 1, y]
                    bonus = self.bonus(n, P, V[h + 1], h, release["visits"]) + math.sqrt(2.0 * self.L / n)
                    candidate = reward + future + self.bonus_scale * bonus
                    Q[h, s, a] = min(self.Q_previous[h, s, a], float(H), candidate)
                V[h, s] = max(Q[h, s, a] for a in range(A))
        self.Q_previous = np.array(Q)
        return greedy_policy(Q, tie_uniforms, largest=True), Q, V


class UCBVI_CH(_Azar):
    """UCBVI with the Chernoff-Hoeffding bonus (Azar et al., bonus_1): b = 7 H L / sqrt(N)  [+ sqrt(2 L / N)]."""

    def bonus(self, n, P, V_next, h, visits):
        return 7.0 * self.H * self.L / math.sqrt(n)


class UCBVI_BF(_Azar):
    """UCBVI with the Bernstein-Freedman bonus (Azar et al., bonus_2).

    b = sqrt( 8 L Var_{y~Phat}(V_{h+1}(y)) / N ) + 14 H L / (3 N)
        + sqrt( 8 sum_y Phat(y) min{ 100^2 H^3 S^2 A L^2 / N'_{h+1}(y), H^2 } / N )   [+ sqrt(2 L / N)]
    N'_{h+1}(y) = sum_a N_{h+1}(y,a) (pooled counts if the stage axis is 1); N'_{h+1}(y) <= 0 gives H^2; at the last
    step the third term is 0. A negative sum under the last root counts as 0.
    """

    def bonus(self, n, P, V_next, h, visits):
        H, S, A, L = self.H, self.S, self.A, self.L
        variance = mean_and_variance(P, V_next)[1]
        total_bonus = math.sqrt(8.0 * L * variance / n) + 14.0 * H * L / (3.0 * n)
        if h < H - 1:
            n_next = next_state_counts(visits, h, S, A)
            total = 0.0
            for y in range(S):
                inner = float(H**2)
                if n_next[y] > 0.0:
                    inner = min(100.0**2 * H**3 * S**2 * A * L**2 / n_next[y], inner)
                total += P[y] * inner
            total_bonus += math.sqrt(8.0 * max(0.0, total) / n)
        return total_bonus


# ---------------------------------------------------------------------------------------------------------------------
# 4. Post-processing of released counts
# ---------------------------------------------------------------------------------------------------------------------


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
