"""Checks of the slow reference itself: identities and hand-computed values that do not use any other implementation."""

import ast
import math
import pathlib

import numpy as np
import pytest
import reference as ref


def test_the_reference_imports_nothing_of_the_package():
    """It is written from the papers: an error of the package cannot be its own."""
    files = list(pathlib.Path(ref.__file__).parent.glob("*.py"))
    nodes = [node for file in files for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))]
    names = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    names |= {node.module for node in nodes if isinstance(node, ast.ImportFrom)}
    assert {name.split(".")[0] for name in names} == {"itertools", "math", "numpy", "reference", "scipy"}


def random_mdp(rng, H, S, A, Hs):
    transitions = rng.dirichlet(np.ones(S), size=(Hs, S, A))
    costs = rng.uniform(size=(Hs, S, A))
    initial = rng.dirichlet(np.ones(S))
    return transitions, costs, initial


def random_episode(rng, mdp, H, S, A, pooled):
    policy = rng.dirichlet(np.ones(A), size=(H, S))
    path = ref.rollout(*mdp, policy, rng.uniform(size=H), rng.uniform(size=H), rng.uniform(size=H), rng.uniform(), True)
    return ref.counts_of_episode(path, H, S, A, pooled)


def unit_noise(rng, Hs, S, A):
    return rng.laplace(size=(Hs, S, A)), rng.laplace(size=(Hs, S, A)), rng.laplace(size=(Hs, S, A, S))


@pytest.mark.parametrize("stages", [1, 2])
def test_backward_induction_against_all_deterministic_policies(stages):
    rng = np.random.default_rng(0)
    for _ in range(5):
        transitions, costs, initial = random_mdp(rng, 2, 2, 2, stages)
        Q, V = ref.optimal_values(transitions, costs, 2)
        np.testing.assert_allclose(V[0], ref.brute_force_optimal_value(transitions, costs, 2), atol=1e-12)
        greedy = ref.greedy_policy(Q, np.zeros((2, 2)), largest=False)
        assert abs(ref.regret(transitions, costs, initial, greedy)) < 1e-12
        assert ref.regret(transitions, costs, initial, rng.dirichlet(np.ones(2), size=(2, 2))) >= 0


def test_policy_value_against_enumerated_trajectories():
    """V^pi_1(s1) is the probability-weighted sum of costs over all (a_1, s_2, a_2)."""
    rng = np.random.default_rng(1)
    P, c, _ = random_mdp(rng, 2, 2, 2, 2)
    pi = rng.dirichlet(np.ones(2), size=(2, 2))
    for s1 in range(2):
        total = 0.0
        for a1 in range(2):
            for s2 in range(2):
                for a2 in range(2):
                    total += pi[0, s1, a1] * P[0, s1, a1, s2] * pi[1, s2, a2] * (c[0, s1, a1] + c[1, s2, a2])
        assert ref.policy_values(P, c, pi)[1][0, s1] == pytest.approx(total, abs=1e-12)


def test_draw_conventions():
    assert [ref.categorical([0.25, 0.25, 0.5], u) for u in (0.0, 0.2, 0.25, 0.49, 0.5, 0.99)] == [0, 0, 1, 1, 2, 2]
    assert ref.categorical([0.5, 0.4], 0.95) == 1
    assert [ref.break_tie([1.0, 0.0, 0.0, 0.0], u, False) for u in (0.0, 0.34, 0.67, 0.999)] == [1, 2, 3, 3]
    assert ref.break_tie([1.0, 2.0, 2.0], 0.5, True) == 2


def test_rollout_and_counts():
    H, S, A = 3, 2, 2
    P = np.zeros((1, S, A, S))
    P[0, :, 0] = [0.5, 0.5]
    P[0, :, 1] = [0.0, 1.0]
    c = np.array([[[0.3, 0.6], [0.1, 0.9]]])
    policy = np.full((H, S, A), 0.5)
    args = (P, c, [0.5, 0.5], policy, [0.1, 0.6, 0.4], [0.2, 0.0, 0.7], [0.29, 0.6, 0.1], 0.4)
    states, actions, paid = ref.rollout(*args, True)
    assert list(states) == [0, 0, 1, 1] and list(actions) == [0, 1, 0] and list(paid) == [1.0, 0.0, 0.0]
    trajectory = ref.rollout(*args, False)
    assert list(trajectory[2]) == [0.3, 0.6, 0.1]
    visits, costs, transitions = ref.counts_of_episode(trajectory, H, S, A, False)
    assert visits[0, 0, 0] == visits[1, 0, 1] == visits[2, 1, 0] == 1.0 and visits.sum() == 3.0
    assert costs[1, 0, 1] == 0.6 and transitions[1, 0, 1, 1] == 1.0
    np.testing.assert_array_equal(transitions.sum(-1), visits)
    pooled = ref.counts_of_episode(trajectory, H, S, A, True)
    for one, many in zip(pooled, (visits, costs, transitions), strict=False):
        np.testing.assert_array_equal(one, many.sum(0, keepdims=True))


@pytest.mark.parametrize("families", [2, 3])
@pytest.mark.parametrize("kind", ["TreeLaplace", "TreeGaussian"])
def test_tree_minus_truth_is_sum_of_live_nodes(kind, families):
    """After episode k the error is b times the draws of the episodes e_1 = 2^j1, e_2 = e_1 + 2^j2, ... adding to k."""
    rng = np.random.default_rng(2)
    H, S, A, K, b = 2, 3, 2, 21, 1.7
    mdp = random_mdp(rng, H, S, A, H)
    tree = getattr(ref, kind)(H, S, A, b, families)
    exact = ref.Exact(H, S, A)
    assert all(np.all(x == 0) for x in tree.release())
    draws = []
    for k in range(1, K + 1):
        counts = random_episode(rng, mdp, H, S, A, False)
        draws.append(unit_noise(rng, H, S, A))
        released = tree.update(counts, draws[-1] if families == 3 else (None, *draws[-1][1:]))
        truth = exact.update(counts)
        live, end = [], 0
        for j in range(k.bit_length() - 1, -1, -1):
            if (k >> j) & 1:
                end += 2**j
                live.append(end)
        assert len(live) == k.bit_count() and end == k
        errors = [b * sum(draws[e - 1][f] for e in live) for f in range(3)]
        if families == 2:
            errors[0] = errors[2].sum(-1)
        for f in range(3):
            np.testing.assert_allclose(released[f] - truth[f], errors[f], atol=1e-10)


@pytest.mark.parametrize("families", [2, 3])
def test_local_noise_accumulates(families):
    rng = np.random.default_rng(3)
    H, S, A = 2, 2, 2
    mdp = random_mdp(rng, H, S, A, 1)
    local, exact = ref.LocalLaplace(1, S, A, (1.0, 2.0, 3.0), families), ref.Exact(1, S, A)
    total = [0.0, 0.0, 0.0]
    for _ in range(6):
        counts, noise = random_episode(rng, mdp, H, S, A, True), unit_noise(rng, 1, S, A)
        released, truth = local.update(counts, noise), exact.update(counts)
        total = [t + b * z for t, b, z in zip(total, (1.0, 2.0, 3.0), noise, strict=False)]
        expected = [total[0] if families == 3 else total[2].sum(-1), total[1], total[2]]
        for f in range(3):
            np.testing.assert_allclose(released[f] - truth[f], expected[f], atol=1e-10)


def honaker_coefficients(k):
    """Linear coefficients of the release after episode k on (node draws, episode data), by unit impulses."""
    nodes = [(t, j) for t in range(1, k + 1) for j in range(ref.trailing_zeros(t) + 1)]

    def run(node=None, leaf=None):
        tree = ref.HonakerTree(1, 1, 1, 1.0)
        for t in range(1, k + 1):
            x = 1.0 if t == leaf else 0.0
            noise = {}
            for j in range(ref.trailing_zeros(t) + 1):
                z = 1.0 if (t, j) == node else 0.0
                noise[j] = (np.full((1, 1, 1), z), np.full((1, 1, 1), z), np.full((1, 1, 1, 1), z))
            out = tree.update((np.full((1, 1, 1), x), np.zeros((1, 1, 1)), np.zeros((1, 1, 1, 1))), noise)
        return out[0][0, 0, 0]

    return np.array([run(node=n) for n in nodes]), np.array([run(leaf=t) for t in range(1, k + 1)])


def test_honaker_variance_factor():
    for j in range(5):
        noise, data = honaker_coefficients(2**j)
        np.testing.assert_allclose(data, 1.0, atol=1e-12)
        assert math.sqrt((noise**2).sum()) == pytest.approx(math.sqrt(2**j / (2 ** (j + 1) - 1)), abs=1e-12)
        assert ref.honaker_variance(j) == pytest.approx(2**j / (2 ** (j + 1) - 1), abs=1e-12)
    for k in (3, 6, 13):
        noise, data = honaker_coefficients(k)
        np.testing.assert_allclose(data, 1.0, atol=1e-12)
        expected = sum(2**j / (2 ** (j + 1) - 1) for j in range(k.bit_length()) if (k >> j) & 1)
        assert (noise**2).sum() == pytest.approx(expected, abs=1e-12)


def test_honaker_weights_are_the_least_squares_estimate_of_a_subtree():
    """The refined root of 4 leaves equals the ordinary least-squares estimate of its sum from its 7 node values."""
    cover = [[1, 0, 0, 0], [0, 1, 0, 0], [1, 1, 0, 0], [0, 0, 1, 0], [0, 0, 0, 1], [0, 0, 1, 1], [1, 1, 1, 1]]
    weights = np.ones(4) @ np.linalg.pinv(np.array(cover, dtype=float))
    np.testing.assert_allclose(honaker_coefficients(4)[0], weights, atol=1e-12)


DECAY, SCALE = [0.98, 0.7], [0.1, 0.3]


def test_square_root_toeplitz_identity():
    K = 12
    C = ref.sqrt_toeplitz_matrix(K)
    np.testing.assert_allclose(C @ C, ref.prefix_sum_matrix(K), atol=1e-12)
    z = np.random.default_rng(4).normal(size=(K, 3))
    np.testing.assert_allclose(ref.sqrt_toeplitz_noise(z), np.cumsum(np.linalg.solve(C, z), axis=0), atol=1e-12)


def test_blt_identity_and_buffer_recursion():
    """A = B C, and C^{-1} z equals the streaming recursion x_t = z_t - <s, buf>, buf <- d*buf + x_t."""
    K = 12
    C = ref.blt_matrix(DECAY, SCALE, K)
    np.testing.assert_allclose(ref.blt_decoder(DECAY, SCALE, K) @ C, ref.prefix_sum_matrix(K), atol=1e-12)
    assert C[0, 0] == 1.0 and C[1, 0] == pytest.approx(0.4) and C[3, 0] == pytest.approx(0.1 * 0.98**2 + 0.3 * 0.49)
    z = np.random.default_rng(5).normal(size=K)
    buffers, total, expected = np.zeros(2), 0.0, []
    for t in range(K):
        x = z[t] - np.dot(SCALE, buffers)
        buffers = np.array(DECAY) * buffers + x
        total += x
        expected.append(total)
    np.testing.assert_allclose(ref.blt_noise(DECAY, SCALE, z), expected, atol=1e-12)


@pytest.mark.parametrize("families", [2, 3])
@pytest.mark.parametrize("kind", ["blt", "sqrt"])
def test_matrix_mechanism_release(kind, families):
    rng = np.random.default_rng(6)
    H, S, A, K, sigma = 2, 2, 2, 9, 2.5
    mdp = random_mdp(rng, H, S, A, H)
    decoder = ref.blt_decoder(DECAY, SCALE, K) if kind == "blt" else ref.sqrt_toeplitz_matrix(K)
    mechanism, exact = ref.MatrixMechanism(H, S, A, sigma, decoder, families), ref.Exact(H, S, A)
    noise = [unit_noise(rng, H, S, A) for _ in range(K)]
    dense = [np.stack([n[f] for n in noise]) for f in range(3)]
    dense = [ref.blt_noise(DECAY, SCALE, z) if kind == "blt" else ref.sqrt_toeplitz_noise(z) for z in dense]
    if families == 2:
        dense[0] = dense[2].sum(-1)
    for k in range(K):
        counts = random_episode(rng, mdp, H, S, A, False)
        released, truth = mechanism.update(counts, noise[k]), exact.update(counts)
        for f in range(3):
            np.testing.assert_allclose(released[f] - truth[f], sigma * dense[f][k], atol=1e-10)


LEARNERS = [ref.UCBVI, ref.UCBPO, ref.PUCB, ref.LDP_OBI, ref.DP_UCBVI, ref.UCBVI_CH, ref.UCBVI_BF]


def exact_release(transitions, costs, n, H, Hs):
    """Counts that are exactly proportional to the model: N = n, C = n c, N(s2) = n P(s2)."""
    shape = (Hs, *np.shape(costs)[1:])
    visits = np.full(shape, float(n))
    return {
        "visits": visits,
        "costs": visits * costs,
        "transitions": visits[..., None] * transitions,
        "E_visits": 0.0,
        "E_costs": 0.0,
        "E_transitions": 0.0,
    }


@pytest.mark.parametrize("stages", [1, 3])
@pytest.mark.parametrize("kind", LEARNERS)
def test_learners_plan_exactly_with_a_known_model_and_no_bonus(kind, stages):
    rng = np.random.default_rng(7)
    H, S, A, K = 3, 3, 2, 10
    transitions, costs, initial = random_mdp(rng, H, S, A, stages)
    learner = kind(H, S, A, K, 0.1, bonus_scale=0.0)
    policy, Q, V = learner.step(exact_release(transitions, costs, 1000, H, stages), rng.uniform(size=(H, S)))
    if kind is ref.UCBPO:
        Q_pi, V_pi = ref.policy_values(transitions, costs, np.full((H, S, A), 0.5))
        np.testing.assert_allclose(Q, Q_pi, atol=1e-12)
        np.testing.assert_allclose(V, V_pi, atol=1e-12)
        np.testing.assert_allclose(policy, 0.5)
        weights = np.exp(-math.sqrt(2 * math.log(A) / (H * H * K)) * Q)
        np.testing.assert_allclose(learner.policy, weights / weights.sum(-1, keepdims=True), atol=1e-12)
        return
    Q_star, V_star = ref.optimal_values(transitions, costs, H)
    if kind is not ref.UCBVI:
        left = np.arange(H, 0, -1.0)
        Q_star, V_star = left[:, None, None] - Q_star, np.append(left, 0.0)[:, None] - V_star
    np.testing.assert_allclose(Q, Q_star, atol=1e-10)
    np.testing.assert_allclose(V, V_star, atol=1e-10)
    assert abs(ref.regret(transitions, costs, initial, policy)) < 1e-10


@pytest.mark.parametrize("kind", LEARNERS)
def test_empty_counts_are_fully_optimistic(kind):
    H, S, A = 3, 2, 2
    release = exact_release(np.full((H, S, A, S), 0.5), np.zeros((H, S, A)), 0, H, H)
    policy, Q, V = kind(H, S, A, 10, 0.1).step(release, np.full((H, S), 0.7))
    np.testing.assert_allclose(policy.sum(-1), 1.0)
    if kind in (ref.UCBVI, ref.UCBPO):
        assert np.all(Q == 0) and np.all(V == 0)
    elif kind is ref.LDP_OBI:
        np.testing.assert_allclose(V, np.repeat([[3.0], [2.0], [1.0], [0.0]], S, axis=1))
    else:
        assert np.all(Q == H) and np.all(V[:H] == H)
    if kind is not ref.UCBPO:
        assert np.all(policy[..., 1] == 1.0)


def one_cell(n, cost, E_visits, E_costs, E_transitions):
    return {
        "visits": np.full((1, 1, 1), n),
        "costs": np.full((1, 1, 1), cost),
        "transitions": np.full((1, 1, 1, 1), n),
        "E_visits": E_visits,
        "E_costs": E_costs,
        "E_transitions": E_transitions,
    }


def test_bonuses_with_one_state_by_hand():
    """H = S = A = 1, K = 100, delta = 0.1: the last step has V_{H+1} = 0, so Q is mean -/+ scale * bonus."""
    tie = np.zeros((1, 1))

    def q(kind, n, cost, E, scale):
        return kind(1, 1, 1, 100, 0.1, bonus_scale=scale).step(one_cell(n, cost, *E), tie)[1][0, 0, 0]

    M = 405.0
    lc, lp = math.sqrt(2 * math.log(4000)), math.sqrt(4 * math.log(6000))
    beta_c = lc / math.sqrt(M) + (2 + 2 * 5) / M
    vi = 300 / M - 0.1 * (beta_c + lc / math.sqrt(M) + (3 + 10) / M)
    po = 300 / M - 0.1 * (beta_c + lp / math.sqrt(M) + (3 + 10) / M)
    assert q(ref.UCBVI, 400.0, 300.0, (5, 2, 3), 0.1) == pytest.approx(vi, abs=1e-14)
    assert q(ref.UCBPO, 400.0, 300.0, (5, 2, 3), 0.1) == pytest.approx(po, abs=1e-14)
    phi = math.sqrt((2 * math.log(405) + 2 * math.log(10)) / 395)
    psi = 2 * (15 / 400 + 50 / 160000)
    assert q(ref.PUCB, 400.0, 300.0, (5, 2, 3), 0.1) == pytest.approx(0.25 + 0.1 * (2 * phi + psi), abs=1e-14)
    assert q(ref.PUCB, 9.9, 9.0, (5, 2, 3), 0.1) == 1.0
    log = math.log(4 * math.pi**2 / 0.3)
    obi = 100 / 410 + 0.1 * (math.sqrt(2 * log / 410) + 17 / 410 + math.sqrt(14 * log / 410) + (3 + 15) / 410)
    assert q(ref.LDP_OBI, 400.0, 300.0, (5, 2, 3), 0.1) == pytest.approx(obi, abs=1e-14)
    iota = math.log(30 * 100 / 0.1)
    dp = 0.25 + 0.1 * (math.sqrt(2 * iota / 400) + 20 * 5 * iota / 400)
    assert q(ref.DP_UCBVI, 400.0, 300.0, (5, 2, 3), 0.1) == pytest.approx(dp, abs=1e-14)
    L = math.log(5000)
    ch = 0.25 + 0.1 * (7 * L / 20 + math.sqrt(2 * L / 400))
    bf = 0.25 + 0.1 * (14 * L / 1200 + math.sqrt(2 * L / 400))
    assert q(ref.UCBVI_CH, 400.0, 300.0, (5, 2, 3), 0.1) == pytest.approx(ch, abs=1e-14)
    assert q(ref.UCBVI_BF, 400.0, 300.0, (5, 2, 3), 0.1) == pytest.approx(bf, abs=1e-14)


@pytest.mark.parametrize("kind", [ref.DP_UCBVI, ref.UCBVI_CH, ref.UCBVI_BF])
def test_monotone_learners_never_raise_q(kind):
    rng = np.random.default_rng(8)
    H, S, A = 2, 2, 2
    transitions, costs, _ = random_mdp(rng, H, S, A, H)
    learner, previous = kind(H, S, A, 50, 0.1, bonus_scale=1e-3), np.full((H, S, A), float(H))
    for n in (50, 5, 500, 0):
        Q = learner.step(exact_release(transitions, costs, n, H, H), np.zeros((H, S)))[1]
        assert np.all(Q <= previous)
        previous = Q


def test_clip():
    visits, costs = np.array([[[3.0, -1.0]]]), np.array([[[9.0, -2.0]]])
    transitions = np.array([[[[4.0], [-3.0]]]])
    new_visits, new_costs, new_transitions = ref.clip(visits, costs, transitions)
    np.testing.assert_array_equal(new_visits, [[[4.0, 0.0]]])
    np.testing.assert_array_equal(new_costs, [[[4.0, 0.0]]])
    np.testing.assert_array_equal(new_transitions, [[[[4.0], [0.0]]]])


def test_project():
    """Feasible noisy counts stay (t = 0); an infeasible cell gives x = 0; results satisfy the constraints."""
    x, t = ref.projection_program([3.0, 4.0], 7.5, 4.0)
    np.testing.assert_allclose(x, [3.0, 4.0], atol=1e-9)
    assert t == pytest.approx(0.0, abs=1e-9)
    x, t = ref.projection_program([3.0, 4.0], 10.0, 4.0)
    np.testing.assert_allclose(x, [4.0, 5.0], atol=1e-9)
    assert t == pytest.approx(1.0)
    x, t = ref.projection_program([1.0, 2.0], -1.5, 4.0)
    assert t is None and np.all(x == 0)
    rng = np.random.default_rng(9)
    E = 8.0
    visits, costs = rng.normal(5, 4, size=(2, 3, 2)), rng.normal(size=(2, 3, 2))
    transitions = rng.normal(2, 3, size=(2, 3, 2, 3))
    new_visits, new_costs, new_transitions = ref.project(visits, costs, transitions, E)
    np.testing.assert_array_equal(new_costs, costs)
    np.testing.assert_allclose(new_transitions.sum(-1), new_visits, atol=1e-9)
    assert np.all(new_transitions >= E / 6 - 1e-9)
    feasible = visits + E / 4 >= 0
    assert np.all(np.abs(new_visits - E / 2 - visits)[feasible] <= E / 4 + 1e-7)
    np.testing.assert_allclose(new_visits[~feasible], E / 2)


@pytest.mark.parametrize("stages", [1, 2])
def test_variance_bonuses_at_the_first_step(stages):
    """Second, array-wise evaluation of the first-step bonuses of DP-UCBVI and UCBVI_BF with H = 2, S = 3, A = 2."""
    rng = np.random.default_rng(10)
    H, S, A, K, delta = 2, 3, 2, 100, 0.1
    transitions = rng.uniform(2e9, 4e9, size=(stages, S, A, S))
    transitions[:, :, :, 2] = 1.0
    visits = transitions.sum(-1)
    visits[-1, 1] = 1e-4 * visits[-1, 1]
    transitions[-1, 1] = 1e-4 * transitions[-1, 1]
    costs = rng.uniform(size=visits.shape) * visits
    release = {"visits": visits, "costs": costs, "transitions": transitions}
    release.update(E_visits=1.0, E_costs=50.0, E_transitions=1.5)
    n, P = visits[0], transitions[0] / visits[0][..., None]
    follow = visits[-1].sum(-1)
    reward = 1 - costs[0] / n

    def variance(V):
        return P @ V**2 - (P @ V) ** 2

    _, Q, V = ref.DP_UCBVI(H, S, A, K, delta).step(release, np.zeros((H, S)))
    iota, E = np.log(30 * H * S * A * K * H / delta), 50.0
    inner = 1e6 * (
        H**3 * S * A * iota**2 / follow
        + H**4 * S**4 * A**2 * E**2 * iota**4 / follow**2
        + H**6 * S**4 * A**2 * iota**4 / follow**2
    )
    assert inner.min() < H**2 < inner.max()
    b = 2 * np.sqrt(variance(V[1]) * iota / n) + np.sqrt(2 * iota / n) + 20 * H * S * E * iota / n
    b += 4 * np.sqrt(iota) * np.sqrt(P @ np.minimum(inner, H**2) / n)
    assert Q[0].max() < H
    np.testing.assert_allclose(Q[0] - reward - P @ V[1], b, rtol=1e-8)

    _, Q, V = ref.UCBVI_BF(H, S, A, K, delta).step(release, np.zeros((H, S)))
    L = np.log(5 * S * A * K * H / delta)
    inner = 100**2 * H**3 * S**2 * A * L**2 / follow
    assert inner.min() < H**2 < inner.max()
    b = np.sqrt(8 * L * variance(V[1]) / n) + 14 * H * L / (3 * n) + np.sqrt(2 * L / n)
    b += np.sqrt(8 * (P @ np.minimum(inner, H**2)) / n)
    assert Q[0].max() < H
    np.testing.assert_allclose(Q[0] - reward - P @ V[1], b, rtol=1e-8)
