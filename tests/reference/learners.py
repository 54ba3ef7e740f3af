"""Learners: from a release to the policy, Q and V of the next episode."""

import math

import numpy as np

from reference.mdp import greedy_policy, stage


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
