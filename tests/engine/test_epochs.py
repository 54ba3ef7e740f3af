"""An epoch drawn at once has the joint law of its users' reports, one by one.

Two evaluators on S = A = H = 2 and two users: one adds up the probabilities of a chain of multinomials, as the
package draws it, the other those of all pairs of users with all their trajectories and coins. They agree to 1e-12, for
every kind of report; draws of the package then pass a chi-square test against that law, and wrong draws fail it.
Keys are fixed; each family of tests raises a false alarm for one key in a thousand.
"""

import functools
import itertools
import math
from collections import defaultdict
from collections.abc import Iterator

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from pieces import QUICK, random_mdp
from scipy import stats

from jaxprivrl import environments
from jaxprivrl import mdp as mdp_lib
from jaxprivrl.engine import epochs
from jaxprivrl.mdp import MDP
from jaxprivrl.numerics import lanes, random
from jaxprivrl.numerics.axes import vmap_last

Law = dict[tuple[int, ...], float]
Record = tuple[int, int, int, int, int]  # h, s, a, cost in steps of the grid, s2

in_64_bits = functools.partial(lanes.in_64_bits, compiler_options=QUICK)
H = S = A = USERS = 2
CELLS = H * S * A
BITS = 1
DRAWS = 2**16
LEVEL = 1e-3
SHARES = {
    1: np.array([[0.4, 0.6]]),
    2: np.array([[0.1, 0.3], [0.4, 0.2]]),
    3: np.array([[0.1, 0.2], [0.2, 0.1], [0.3, 0.1]]),
}
RULE = np.array([[[0.3, 1.0], [0.6, 0.0]], [[0.9, 0.2], [0.5, 1.0]]])
POLICY = np.array([[[0.3, 0.7], [0.8, 0.2]], [[0.6, 0.4], [0.0, 1.0]]])


@functools.cache
def small(bernoulli: bool = False) -> MDP:
    """Rows of one and of two next states, costs between the points of the grid 2^-1, and at both ends."""
    transitions = np.array([[[[0.7, 0.3], [0.0, 1.0]], [[0.5, 0.5], [0.1, 0.9]]]] * 2)
    transitions[1] = [[[0.2, 0.8], [0.6, 0.4]], [[1.0, 0.0], [0.35, 0.65]]]
    costs = np.array([[[0.2, 0.45], [0.9, 0.0]], [[1.0, 0.35], [0.6, 0.15]]])
    return mdp_lib.make(costs, transitions, [0.4, 0.6], bernoulli=bernoulli)


def exact(mdp: MDP) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Costs, transitions and first states in float64, rows normalised as `prepare` does."""
    P, first = np.asarray(mdp.transitions, np.float64), np.asarray(mdp.initial, np.float64)
    return np.asarray(mdp.costs, np.float64), P / P.sum(-1, keepdims=True), first / first.sum()


def cost_law(c: float, bernoulli: bool, bits: int) -> list[tuple[int, float]]:
    """What one user's cost of mean c is on the grid, with its chances."""
    if bernoulli:
        return [(0, 1 - c), (2**bits, c)]
    low = math.floor(c * 2**bits)
    return [(low, 1 - (c * 2**bits - low)), (low + 1, c * 2**bits - low)]


# --- users one by one


def trajectories(mdp: MDP, bits: int) -> Iterator[tuple[list[Record], float]]:
    costs, P, first = exact(mdp)
    bernoulli = bool(mdp.bernoulli)

    def walk(h: int, s: int) -> Iterator[tuple[list[Record], float]]:
        if h == H:
            yield [], 1.0
            return
        for a, s2 in itertools.product(range(A), range(S)):
            chance = POLICY[h, s, a] * P[h, s, a, s2]
            if chance > 0:
                for cost, p in cost_law(costs[h, s, a], bernoulli, bits):
                    if p > 0:
                        for rest, q in walk(h + 1, s2):
                            yield [(h, s, a, cost, s2), *rest], chance * p * q

    for s in range(S):
        for records, p in walk(0, s):
            yield records, first[s] * p


def vector(records: list[Record], families: str = "vct") -> np.ndarray:
    """Visits, costs and transitions of a list of steps, of the families named."""
    v, c, t = np.zeros((H, S, A), int), np.zeros((H, S, A), int), np.zeros((H, S, A, S), int)
    for h, s, a, cost, s2 in records:
        v[h, s, a] += "v" in families
        c[h, s, a] += cost * ("c" in families)
        t[h, s, a, s2] += "t" in families
    return np.concatenate([v.ravel(), c.ravel(), t.ravel()])


def add(law: Law, x: np.ndarray, p: float) -> None:
    law[tuple(int(i) for i in x)] += p


def two_users(one: Law) -> Law:
    law: Law = defaultdict(float)
    for (x, p), (y, q) in itertools.product(one.items(), one.items()):
        law[tuple(map(sum, zip(x, y, strict=True)))] += p * q
    return law


def one_by_one(mdp: MDP, kind: str, bits: int = BITS) -> Law:
    one: Law = defaultdict(float)
    name, number = kind.split("-") if "-" in kind else (kind, "0")
    for records, p in trajectories(mdp, bits):
        if name == "counts":
            add(one, vector(records), p)
        elif name == "sampled":
            shares = SHARES[int(number)]
            families = {1: ["vct"], 2: ["c", "t"], 3: ["v", "c", "t"]}[int(number)]
            for g, h in itertools.product(range(shares.shape[0]), range(H)):
                group = np.zeros(shares.size, int)
                group[g * H + h] = 1
                add(one, np.concatenate([vector([records[h]], families[g]), group]), p * shares[g, h])
        else:  # capped
            for coins in itertools.product((False, True), repeat=H):
                reported: list[Record] = []
                chance = p
                for record, coin in zip(records, coins, strict=True):
                    u = RULE[record[:3]] if len(reported) < int(number) else 0.0
                    chance *= u if coin else 1 - u
                    reported += [record] if coin else []
                add(one, vector(reported), chance)
    return two_users(one)


# --- the chain of multinomials


def split(n: int, p: np.ndarray) -> list[tuple[tuple[int, ...], float]]:
    """All outcomes of Multinomial(n, p) that are possible, with their probabilities."""
    options = [x for x in itertools.product(range(n + 1), repeat=len(p)) if sum(x) == n]
    out = []
    for x in options:
        chance = math.factorial(n) * math.prod(p[i] ** k / math.factorial(k) for i, k in enumerate(x))
        if chance > 0:
            out.append((x, chance))
    return out


def splits(n: np.ndarray, p: np.ndarray) -> Iterator[tuple[np.ndarray, float]]:
    """Independent splits of the entries of n[...] by p[..., W]: i[..., W] and probabilities."""
    W = p.shape[-1]
    for parts in itertools.product(*(split(int(k), row) for k, row in zip(n.ravel(), p.reshape(-1, W), strict=True))):
        yield np.array([x for x, _ in parts], int).reshape(*n.shape, W), math.prod(q for _, q in parts)


def thinned(n: np.ndarray, p: np.ndarray) -> Iterator[tuple[np.ndarray, float]]:
    for x, chance in splits(n, np.stack([p, 1 - p], -1)):
        yield x[..., 0], chance


def with_costs(mdp: MDP, law: Law, bits: int, visits: slice) -> Law:
    """Adds cost sums, floor n + step Binomial(n, chance), after the visits that they belong to."""
    costs = exact(mdp)[0].ravel()
    laws = [cost_law(c, bool(mdp.bernoulli), bits) for c in costs]
    out: Law = defaultdict(float)
    for x, p in law.items():
        n = np.array(x[visits])
        for k, q in thinned(n, np.array([cell[1][1] for cell in laws])):
            sums = [low * (m - j) + high * j for ((low, _), (high, _)), m, j in zip(laws, n, k, strict=True)]
            out[(*x[:CELLS], *sums, *x[visits.stop :])] += p * q
    return out


def chain_counts(mdp: MDP, cap: int | None) -> Law:
    """Visits and transitions, of all steps or of the reported ones, by level of reports."""
    _, P, first = exact(mdp)
    levels = cap or 1
    states: dict = defaultdict(float)
    for n, p in splits(np.array(USERS), first):
        start = np.zeros((levels, S), int)
        start[0] = n
        states[tuple(start.ravel()), ()] += p
    for h in range(H):
        after: dict = defaultdict(float)
        for (flat, seen), p in states.items():
            n = np.array(flat).reshape(levels, S)
            for visits, p1 in splits(n, np.broadcast_to(POLICY[h], (levels, S, S))):
                rule = np.ones((levels, S, A)) if cap is None else np.broadcast_to(RULE[h], (levels, S, A))
                for reported, p2 in thinned(visits, rule):
                    both = np.stack([reported, visits - reported])
                    for moves, p3 in splits(both, np.broadcast_to(P[h], (2, levels, S, A, S))):
                        going = moves.sum((2, 3)) if cap is None else moves.sum((2, 3)).copy()
                        following = going[0] + going[1] if cap is None else going[1]
                        if cap is not None:
                            following = following.copy()
                            following[1:] += going[0][:-1]
                        record = (tuple(reported.sum(0).ravel()), tuple(moves[0].sum(0).ravel()))
                        after[tuple(following.ravel()), (*seen, record)] += p * p1 * p2 * p3
        states = after
    law: Law = defaultdict(float)
    for (_, seen), p in states.items():
        law[(*itertools.chain(*(v for v, _ in seen)), *itertools.chain(*(t for _, t in seen)))] += p
    return law


def chain_sampled(mdp: MDP, G: int) -> Law:
    """Groups by a multinomial, then each from the occupancy of its step."""
    _, P, first = exact(mdp)
    shares = SHARES[G]
    d = [first]
    for h in range(H - 1):
        d.append(np.einsum("s,sa,sat->t", d[h], POLICY[h], P[h]))
    families = {1: ["vct"], 2: ["c", "t"], 3: ["v", "c", "t"]}[G]
    law: Law = defaultdict(float)
    for sizes, p in splits(np.array(USERS), shares.ravel()):
        groups = []
        for g, h in itertools.product(range(G), range(H)):
            joint = (d[h][:, None, None] * POLICY[h][..., None] * P[h]).ravel()
            groups.append([(g, h, np.array(x).reshape(S, A, S), q) for x, q in split(int(sizes[g * H + h]), joint)])
        for outcome in itertools.product(*groups):
            v, n, t = np.zeros((H, S, A), int), np.zeros((H, S, A), int), np.zeros((H, S, A, S), int)
            for g, h, x, _ in outcome:
                v[h] += x.sum(-1) * ("v" in families[g])
                n[h] += x.sum(-1) * ("c" in families[g])
                t[h] += x * ("t" in families[g])
                p_outcome = p * math.prod(q for *_, q in outcome)
            law[(*v.ravel(), *n.ravel(), *t.ravel(), *sizes)] += p_outcome
    return law


def by_chain(mdp: MDP, kind: str, bits: int = BITS) -> Law:
    name, number = kind.split("-") if "-" in kind else (kind, "0")
    if name == "sampled":
        law = chain_sampled(mdp, int(number))
        return with_costs(mdp, law, bits, slice(CELLS, 2 * CELLS))
    law = chain_counts(mdp, int(number) if name == "capped" else None)
    doubled: Law = defaultdict(float)
    for x, p in law.items():
        doubled[(*x[:CELLS], *x[:CELLS], *x[CELLS:])] += p
    return with_costs(mdp, doubled, bits, slice(CELLS, 2 * CELLS))


KINDS = ("counts", "sampled-1", "sampled-2", "sampled-3", "capped-1", "capped-2")


@functools.cache
def enumerated(kind: str, bernoulli: bool, bits: int = BITS) -> Law:
    return one_by_one(small(bernoulli), kind, bits)


@pytest.mark.parametrize("bernoulli", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_the_chain_of_multinomials_is_the_law_of_users_one_by_one(kind, bernoulli):
    chain, users = by_chain(small(bernoulli), kind), enumerated(kind, bernoulli)
    assert abs(sum(users.values()) - 1) < 1e-12
    assert max(abs(chain.get(x, 0.0) - users.get(x, 0.0)) for x in {*chain, *users}) < 1e-12


# --- draws


@functools.cache
def program(kind: str):
    name, number = kind.split("-") if "-" in kind else (kind, "0")

    def draw(key, dynamics, users):
        if name == "counts":
            return epochs.draw_counts(key, dynamics, POLICY, users), ()
        if name == "sampled":
            return epochs.draw_sampled_steps(key, dynamics, POLICY, users, SHARES[int(number)])
        return epochs.draw_capped_counts(key, dynamics, POLICY, RULE, users, int(number)), ()

    def flat(key, dynamics, users):
        return jnp.concatenate([x.reshape(-1) for x in jax.tree.leaves(draw(key, dynamics, users))])

    return in_64_bits(vmap_last(flat, (0, None, None)))


def drawn(kind: str, dynamics: epochs.EpochDynamics, seed: int, users: int = USERS) -> np.ndarray:
    with jax.enable_x64(True):
        keys = jax.random.split(random.key(seed), DRAWS)
    return np.asarray(program(kind)(keys, dynamics, np.int64(users))).T


def check(x: np.ndarray, law: Law) -> float:
    """p-value of rows against a joint law; zero if one of them is impossible. Rare outcomes are one bin."""
    weights = np.random.default_rng(0).integers(1, 2**40, x.shape[1])  # a hash: wraps around alike on both sides
    outcomes = np.array(list(law))
    codes, chances = outcomes @ weights, np.array(list(law.values()))
    assert len(np.unique(codes)) == len(codes)
    found, counts = np.unique(x @ weights, return_counts=True)
    if not np.isin(found, codes).all():
        return 0.0
    observed = np.zeros(len(codes))
    order = np.argsort(codes)
    observed[order[np.searchsorted(codes[order], found)]] = counts
    often = chances * len(x) >= 20
    expected = np.append(chances[often], chances[~often].sum()) * len(x)
    seen = np.append(observed[often], observed[~often].sum())
    if expected[-1] < 20:
        expected, seen = expected[:-1], seen[:-1]
    return float(stats.chi2.sf(np.sum((seen - expected) ** 2 / expected), len(expected) - 1))


@pytest.mark.parametrize("kind", KINDS)
def test_draws_have_the_enumerated_law(kind):
    for bernoulli in (False, True):
        x = drawn(kind, epochs.prepare(small(bernoulli), BITS), seed=len(kind) + bernoulli)
        assert check(x, enumerated(kind, bernoulli)) > LEVEL / (2 * len(KINDS))


def test_wrong_epochs_are_caught():
    """One user short; costs of the other step, with chances only slightly off; a policy of the wrong step."""
    mdp, law = small(True), enumerated("counts", True)
    dynamics = epochs.prepare(mdp, BITS)
    assert check(drawn("counts", dynamics, 0, users=USERS - 1), law) < 1e-8
    chances = dynamics.cost_chances.copy()
    chances[:2] = chances[:2][::-1]
    assert check(drawn("counts", dynamics._replace(cost_chances=chances), 0), law) < 1e-8
    other = dynamics._replace(chances=dynamics.chances[::-1], rows=dynamics.rows[::-1], places=dynamics.places[::-1])
    assert check(drawn("counts", other, 0), law) < 1e-8
    assert check(drawn("counts", dynamics, 0), law) > LEVEL


def test_sampled_steps_resampled_from_sums_are_caught():
    """All users walk; of each step's records as many are picked as the group has, independently over steps.

    Each step alone then has the right law, but one user may report two steps.
    """
    mdp, kind = small(False), "sampled-1"
    users = list(trajectories(mdp, BITS))
    table = np.array([[r for records, _ in [u] for r in records] for u in users])  # [trajectory, H, 5]
    chances = np.array([p for _, p in users])
    rng = np.random.default_rng(0)
    walks = table[rng.choice(len(users), (DRAWS, USERS), p=chances / chances.sum())]
    sizes = rng.multinomial(USERS, SHARES[1].ravel(), DRAWS)

    def reports(of: np.ndarray) -> np.ndarray:
        """of bool[DRAWS, USERS, H]: which user reports which step."""
        v, c = np.zeros((DRAWS, H, S, A), int), np.zeros((DRAWS, H, S, A), int)
        t = np.zeros((DRAWS, H, S, A, S), int)
        for user, h in itertools.product(range(USERS), range(H)):
            _, s, a, cost, s2 = walks[:, user, h].T
            i = np.arange(DRAWS)
            v[i, h, s, a] += of[:, user, h]
            c[i, h, s, a] += of[:, user, h] * cost
            t[i, h, s, a, s2] += of[:, user, h]
        return np.concatenate([v.reshape(DRAWS, -1), c.reshape(DRAWS, -1), t.reshape(DRAWS, -1), sizes], -1)

    law = enumerated(kind, False)
    order = np.argsort(rng.uniform(size=(DRAWS, USERS)), 1)
    right = np.stack([order < sizes[:, :1], order >= sizes[:, :1]], -1)
    assert check(reports(right), law) > LEVEL
    again = np.argsort(rng.uniform(size=(DRAWS, USERS)), 1)
    wrong = np.stack([order < sizes[:, :1], again < sizes[:, 1:]], -1)
    assert check(reports(wrong), law) < 1e-8


BIT_CELLS = np.array([0, 3, 5, 9, 12, 17, 27])  # of 8 visits, 8 costs and 16 transitions, from both steps


def flip_law(x: int, m: int, q: float) -> np.ndarray:
    return np.convolve(stats.binom.pmf(range(x + 1), x, 1 - q), stats.binom.pmf(range(m - x + 1), m - x, q))


def test_bit_reports_have_the_law_of_users_who_flip_their_bits():
    """Seven cells of both steps and all families: the joint law of their sums from all pairs of users and all flips."""
    q, mdp = 0.2, small(False)
    one: Law = defaultdict(float)
    for records, p in trajectories(mdp, 0):
        truth = vector(records)[BIT_CELLS]
        for flips in itertools.product((0, 1), repeat=len(BIT_CELLS)):
            chance = math.prod(q if f else 1 - q for f in flips)
            add(one, truth ^ np.array(flips), p * chance)
    users = two_users(one)
    chain: Law = defaultdict(float)
    for x, p in by_chain(mdp, "counts", 0).items():
        cells = [flip_law(x[i], USERS, q) for i in BIT_CELLS]
        for y in itertools.product(range(USERS + 1), repeat=len(BIT_CELLS)):
            chain[y] += p * math.prod(cell[i] for cell, i in zip(cells, y, strict=True))
    assert max(abs(chain[x] - users.get(x, 0.0)) for x in chain) < 1e-12

    truth = drawn("counts", epochs.prepare(mdp, 0), seed=3)

    def flip(ones, flips):
        return epochs.flip_bits(random.key(11), ones, jnp.full(ones.shape, USERS, jnp.int64), flips)

    sent = np.asarray(in_64_bits(flip)(truth, np.float64(q)))
    assert check(sent[:, BIT_CELLS], users) > LEVEL
    assert check(np.asarray(in_64_bits(flip)(truth, np.float64(0.21)))[:, BIT_CELLS], users) < 1e-8


# --- at scale


TRILLION = 10**12


@functools.cache
def every_kind():
    def draw(key, dynamics, policy, rule):
        keys, steps = jax.random.split(key, 3), policy.shape[0]
        users = jnp.asarray(TRILLION, jnp.int64)
        return (
            epochs.draw_counts(keys[0], dynamics, policy, users),
            epochs.draw_sampled_steps(keys[1], dynamics, policy, users, np.full((1, steps), 1 / steps)),
            epochs.draw_capped_counts(keys[2], dynamics, policy, rule, users, 2),
        )

    return in_64_bits(draw)


@pytest.mark.parametrize("bernoulli", [False, True])
def test_a_trillion_users_are_counted_to_the_last_one(bernoulli):
    """Totals are exact, means are the occupancy's to 6 standard errors, cost sums are on their grid."""
    m, mdp = TRILLION, random_mdp(1, (5, 4, 3), bernoulli=bernoulli)
    steps, states, actions = mdp.shape
    bits = epochs.cost_bits(steps, m)
    assert bits == 16 and steps * m << bits < 2**62
    dynamics = epochs.prepare(mdp, bits)
    policy = np.random.default_rng(0).dirichlet(np.ones(actions), (steps, states)).astype(np.float32)
    rule = np.random.default_rng(1).uniform(size=(steps, states, actions))
    costs, P, first = exact(mdp)
    pi = policy / policy.astype(np.float64).sum(-1, keepdims=True)

    arrays = every_kind()(random.key(0), dynamics, policy, rule)
    counts, (sampled, sizes), capped = jax.tree.map(np.asarray, arrays)
    d, level, reported = first, np.stack([first, 0 * first]), []
    occupied = []
    for h in range(steps):
        occupied.append(d[:, None] * pi[h])
        d = np.einsum("sa,sat->t", occupied[h], P[h])
        x = level[..., None] * pi[h]
        reported.append((x * rule[h]).sum(0))
        stay, up = x * (1 - rule[h]), x * rule[h]
        level = np.einsum("lsa,sat->lt", stay, P[h])
        level[1] += np.einsum("sa,sat->t", up[0], P[h])

    def close(got, chance, users):
        assert got.dtype == np.int64 and np.all(got >= 0)
        error = got - users * chance
        assert np.all(np.abs(error) <= 6 * np.sqrt(users * chance * (1 - chance)) + 1)

    assert np.all(counts.visits.sum((1, 2)) == m) and np.all(counts.transitions.sum(-1) == counts.visits)
    assert np.all(counts.transitions[:-1].sum((1, 2)) == counts.visits[1:].sum(-1))
    assert sizes.sum() == m and np.all(sampled.visits.sum((1, 2)) == sizes[0])
    assert np.all(sampled.transitions.sum(-1) == sampled.visits)
    assert np.all(capped.transitions.sum(-1) == capped.visits) and capped.visits.sum() <= 2 * m
    close(counts.visits, np.array(occupied), m)
    close(counts.transitions, np.array(occupied)[..., None] * P, m)
    close(sampled.visits, np.array(occupied), sizes[0][:, None, None])
    close(capped.visits, np.array(reported), m)
    close(capped.transitions, np.array(reported)[..., None] * P, m)
    for x in (counts, sampled, capped):
        extra = x.costs - dynamics.cost_floor * x.visits
        assert np.all(extra % dynamics.cost_step == 0)
        chance = costs if bool(mdp.bernoulli) else costs * 2**bits - np.floor(costs * 2**bits)
        close(extra // dynamics.cost_step, chance, x.visits)


def test_a_trillion_users_of_river_swim():
    """Pairs with a single next state need no draw, and no user is lost there; a cost of one is exact."""
    mdp = environments.river_swim(20)
    dynamics = epochs.prepare(mdp, 16)
    policy = np.full(mdp.shape, 0.5)
    counts = in_64_bits(epochs.draw_counts)(random.key(0), dynamics, policy, np.int64(TRILLION))
    visits, costs, transitions = (np.asarray(x) for x in counts)
    assert np.all(visits.sum((1, 2)) == TRILLION) and np.all(transitions.sum(-1) == visits)
    assert np.all(transitions[np.asarray(mdp.transitions) == 0] == 0)
    whole = np.asarray(mdp.costs) == 1
    assert np.all(costs[whole] == visits[whole] << 16)
    assert abs(costs[5, 0, 0] / (visits[5, 0, 0] * 2.0**16 * np.float64(mdp.costs[5, 0, 0])) - 1) < 1e-9


def test_a_run_alone_equals_the_run_in_a_batch():
    dynamics = epochs.prepare(random_mdp(2, (3, 3, 2)), 16)
    with jax.enable_x64(True):
        keys = jax.random.split(random.key(9), 5)
    policies = np.random.default_rng(0).dirichlet(np.ones(2), (5, 3, 3))
    users = np.array([1, 7, 40, 10**5, 10**11])
    alone = in_64_bits(epochs.draw_counts)
    axes = (0, None, 0, 0)
    for axis, batched in ((0, jax.vmap(epochs.draw_counts, axes)), (-1, vmap_last(epochs.draw_counts, axes))):
        batch = in_64_bits(batched)(keys, dynamics, policies, users)
        for i in range(5):
            one = alone(keys[i], dynamics, policies[i], users[i])
            assert all(np.array_equal(x, np.take(np.asarray(y), i, axis)) for x, y in zip(one, batch, strict=True))


def test_the_grid_of_costs_fits_64_bits():
    assert epochs.cost_bits(20, 20_000) == 16
    assert epochs.cost_bits(20, 10**12) == 16
    assert epochs.cost_bits(20, 10**15) < 16
    for horizon, episodes in [(20, 10**15), (1000, 10**14)]:
        bits = epochs.cost_bits(horizon, episodes)
        assert horizon * episodes << bits < 2**62 <= horizon * episodes << (bits + 1)
