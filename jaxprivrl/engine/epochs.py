"""The reports of an epoch, all its users at once: exact joint laws, at a cost that does not grow with their number.

The users of an epoch play one policy, independently. What they report is added up, and the law of the sum is a chain
of multinomials: users split over first states, then over actions, then over next states, and so on. Every function is
written for one run and batched by `vmap` or `vmap_last`; programs are built by `binomial.in_64_bits`.

Counts are integers: visits and transitions in users, costs in steps of 2^-bits, to which every user's cost is rounded
by an unbiased coin of its own. All counts are SENSITIVE.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxprivrl.mdp import MDP, Counts, Policy
from jaxprivrl.numerics.axes import at_stage, read_rows, stage_scan
from jaxprivrl.numerics.binomial import binomial, multinomial
from jaxprivrl.numerics.random import PRNG

Array = jax.Array
Key = jax.Array
Indices = np.ndarray[Any, np.dtype[Any]]

MOST_COST_BITS = 16


class EpochDynamics(NamedTuple):
    """What drawing an epoch needs of an MDP, with draws only where there is a choice; `prepare` makes it.

    R state-action pairs of a stage have more than one next state, W of them at most; W1 states can be the first one.
    Arrays of places say where each entry of a full array is found among the drawn ones.

    Attributes:
      initial: f64[W1], chances of the possible first states.
      initial_places: i32[S], into the W1 draws and a zero.
      rows: i32[H|1, R], pairs s A + a that branch.
      chances: f64[H|1, R, W], of their next states; rows sum to one.
      places: i32[H|1, S A S], into the R W draws, the S A visits and a zero.
      cost_rows: i32[C], indices of the flattened costs that are not settled by the number of visits alone.
      cost_chances: f64[C].
      cost_places: i32[H S A], into the C draws and a zero.
      cost_floor: i64[H, S, A]; n visits cost cost_floor n + cost_step Binomial(n, chance), in steps of the grid.
      cost_step: i64[].
    """

    initial: Array
    initial_places: Array
    rows: Array
    chances: Array
    places: Array
    cost_rows: Array
    cost_chances: Array
    cost_places: Array
    cost_floor: Array
    cost_step: Array


def cost_bits(horizon: int, num_episodes: int) -> int:
    """The finest grid 2^-bits of costs, at most 2^-16, on which all sums of costs stay below 2^62."""
    bits = MOST_COST_BITS
    while bits > 0 and horizon * num_episodes << bits >= 2**62:
        bits -= 1
    return bits


def prepare(mdp: MDP, bits: int) -> EpochDynamics:
    """The dynamics of an MDP as host arrays, with costs on the grid 2^-bits.

    A cost c becomes floor(2^bits c) or one more, with mean 2^bits c; a Bernoulli cost is 0 or 2^bits. With bits = 0
    both are Bernoulli(c): the bit that a user of a bit report sends. Rows of chances are divided by their sums.
    """
    H, S, A = mdp.shape
    P = np.asarray(mdp.transitions, np.float64).reshape(H, S * A, S)
    if (P == P[:1]).all():
        P = P[:1]
    P = P / P.sum(-1, keepdims=True)
    width = np.sum(P > 0, -1)
    W, R = int(width.max()), max(int(np.sum(width > 1, -1).max()), 1)
    stages = P.shape[0]
    rows, chances = np.zeros((stages, R), np.int32), np.zeros((stages, R, W))
    chances[..., 0] = 1.0  # of a place that no entry is read from
    places = np.full((stages, S * A, S), R * W + S * A, np.int32)
    for h in range(stages):
        branching = np.flatnonzero(width[h] > 1)
        rows[h, : len(branching)] = branching
        for i, cell in enumerate(branching):
            to = np.flatnonzero(P[h, cell])
            chances[h, i] = 0.0
            chances[h, i, : len(to)] = P[h, cell, to]
            places[h, cell, to] = i * W + np.arange(len(to))
        only = np.flatnonzero(width[h] == 1)
        places[h, only, P[h, only].argmax(-1)] = R * W + only
    first = np.flatnonzero(np.asarray(mdp.initial))
    initial = np.asarray(mdp.initial, np.float64)[first]

    cost = np.asarray(mdp.costs, np.float64).reshape(-1)
    bernoulli = bool(np.asarray(mdp.bernoulli))
    scaled = cost if bernoulli else cost * 2.0**bits
    floor, step = np.floor(scaled).astype(np.int64), 2**bits if bernoulli else 1
    open_cells = np.flatnonzero(scaled > floor)
    cost_rows = open_cells if len(open_cells) else np.zeros(1, int)
    arrays: list[Any] = [
        initial / initial.sum(), _places(first, S), rows, chances, places.reshape(stages, -1),
        cost_rows.astype(np.int32), (scaled - floor)[cost_rows], _places(open_cells, cost.size, len(cost_rows)),
        (floor * step).reshape(H, S, A), np.asarray(step, np.int64),
    ]  # fmt: skip
    return EpochDynamics(*arrays)


def _places(drawn: Indices, size: int, zero: int | None = None) -> Indices:
    """Where each of `size` entries is found among the drawn ones, i32[size]; the others are at the zero behind them."""
    places = np.full(size, len(drawn) if zero is None else zero, np.int32)
    places[drawn] = np.arange(len(drawn))
    return places


def draw_counts(key: Key, dynamics: EpochDynamics, policy: Policy, users: Array) -> Counts:
    """SENSITIVE: the sum of the counts of so many users, i64[H, S, A(, S)]; the key is consumed.

    n_1 ~ Multinomial(users, initial); n_h(s, .) ~ Multinomial(n_h(s), pi_h(. | s));
    n_h(s, a, .) ~ Multinomial(n_h(s, a), P_h(. | s, a)); n_{h+1}(s2) = sum_{s, a} n_h(s, a, s2).

    Args:
      key: of the package's generator.
      dynamics: of the MDP.
      policy: f[H, S, A].
      users: i64[].
    """
    key_first, key_walk, key_cost = jax.random.split(key, 3)
    H, S, A = policy.shape

    def step(n: Array, h: Array, constants: tuple[Array, Array, EpochDynamics]) -> tuple[Array, tuple[Array, Array]]:
        words, policy, dynamics = constants
        key_action, key_next = _keys(at_stage(words, h))
        visits = multinomial(key_action, n, at_stage(policy, h))
        moves = _moves(key_next, visits.reshape(S * A), dynamics, h, S)
        return jnp.sum(moves, 0), (visits, moves.reshape(S, A, S))

    constants = (_words(key_walk, H, 2), policy.astype(jnp.float64), dynamics)
    _, (visits, transitions) = stage_scan(step, _first(key_first, dynamics, users), constants, H)
    return Counts(visits, _costs(key_cost, dynamics, visits), transitions)


def draw_sampled_steps(
    key: Key, dynamics: EpochDynamics, policy: Policy, users: Array, shares: Array
) -> tuple[Counts, Array]:
    """SENSITIVE: counts of users who report one step each, or one family of one step; the key is consumed.

    Users fall into groups, Multinomial(users, shares), by a public coin of each. Only step h of group h is ever seen,
    and what a user does at step h has the law d_h(s) pi_h(a | s) P_h(s2 | s, a), d the occupancy: the group is drawn
    from that law, without a walk. Steps are independent given the sizes, which counts of all users are not.

    Args:
      key: of the package's generator.
      dynamics: of the MDP.
      policy: f[H, S, A].
      users: i64[].
      shares: f[G, H], chances of a group and a step. G = 1: every family of the step; G = 2: costs or transitions;
        G = 3: visits, costs or transitions.

    Returns:
      Counts i64[H, S, A(, S)] (no visits if G = 2), and the public sizes of the groups i64[G, H].
    """
    G, H = shares.shape
    _, S, A = policy.shape
    key_groups, key_walk, key_cost = jax.random.split(key, 3)
    sizes = multinomial(key_groups, _whole(users), shares.astype(jnp.float64).reshape(-1)).reshape(G, H)
    policy = policy.astype(jnp.float64)
    pi = policy / jnp.sum(policy, -1, keepdims=True)

    def step(d: Array, h: Array, constants: tuple[Any, ...]) -> tuple[Array, tuple[Array, Array]]:
        words, pi, by_stage, dynamics = constants
        key_state, key_action, key_next = _keys(at_stage(words, h))
        n = multinomial(key_state, at_stage(by_stage, h), _repeat(d, G, 0))
        visits = multinomial(key_action, n, _repeat(at_stage(pi, h), G, 0))
        moves = _moves(key_next, visits[G - 1].reshape(S * A), dynamics, h, S)
        occupied = (d[:, None] * at_stage(pi, h)).reshape(S * A)
        return jnp.sum(_expected_moves(occupied, dynamics, h, S), 0), (visits, moves.reshape(S, A, S))

    d = _spread(dynamics.initial, dynamics.initial_places)
    constants = (_words(key_walk, H, 3), pi, sizes.T, dynamics)
    _, (visits, transitions) = stage_scan(step, d, constants, H)
    costs = _costs(key_cost, dynamics, visits[:, G // 2 if G == 3 else 0])
    return Counts(jnp.zeros_like(costs) if G == 2 else visits[:, 0], costs, transitions), sizes


def draw_capped_counts(
    key: Key, dynamics: EpochDynamics, policy: Policy, rule: Array, users: Array, cap: int
) -> Counts:
    """SENSITIVE: counts of users who report at most `cap` steps each, by a public rule; the key is consumed.

    At step h, before the next state is seen, a user with fewer than `cap` reports so far reports this step with
    chance rule_h(s, a). Users are followed by level, the number of their reports; one at the cap has nothing left to
    report and is followed no further.

    Args:
      key: of the package's generator.
      dynamics: of the MDP.
      policy: f[H, S, A].
      rule: f[H, S, A] in [0, 1].
      users: i64[].
      cap: at least 1.

    Returns:
      Counts i64[H, S, A(, S)] of the reported steps alone.
    """
    key_first, key_walk, key_cost = jax.random.split(key, 3)
    H, S, A = policy.shape
    first = _first(key_first, dynamics, users)
    levels = jnp.concatenate([first[:, None], jnp.zeros((S, cap - 1), first.dtype)], -1)

    def step(n: Array, h: Array, constants: tuple[Any, ...]) -> tuple[Array, tuple[Array, Array]]:
        words, policy, rule, dynamics = constants
        key_action, key_report, key_next = _keys(at_stage(words, h))
        visits = jnp.moveaxis(multinomial(key_action, n, _repeat(at_stage(policy, h), cap, 1)), 1, 2)  # [S, A, level]
        reported = binomial(key_report, visits, _repeat(at_stage(rule, h), cap, 2))
        both = jnp.stack([reported, visits - reported], -1).reshape(S * A, cap * 2)
        moves = _moves(key_next, both, dynamics, h, S).reshape(S * A, S, cap, 2)
        after = jnp.sum(moves, 0)
        raised = jnp.concatenate([jnp.zeros((S, 1), n.dtype), after[:, : cap - 1, 0]], -1)
        seen = jnp.sum(moves[..., 0], -1).reshape(S, A, S)
        return after[..., 1] + raised, (jnp.sum(reported, -1), seen)

    constants = (_words(key_walk, H, 3), policy.astype(jnp.float64), rule.astype(jnp.float64), dynamics)
    _, (visits, transitions) = stage_scan(step, levels, constants, H)
    return Counts(visits, _costs(key_cost, dynamics, visits), transitions)


def flip_bits(key: Key, ones: Array, users: Array, flip: Array) -> Array:
    """Sums of the randomised bits of so many users, of whom `ones` have a true bit, i64[...]; the key is consumed.

    Binomial(ones, 1 - flip) + Binomial(users - ones, flip), independently for each entry.

    Args:
      key: of the package's generator.
      ones: i64[...], users whose bit is true: visits, transitions, or costs drawn with bits = 0.
      users: i64[...], how many send this bit; of the shape of ones.
      flip: f64[], the chance that a bit is sent wrong.

    Privacy: each bit is sent wrong with chance flip, independently; accounting turns flip into epsilon.
    """
    of = jnp.stack([ones, users - ones])
    wrong = binomial(key, of, jnp.broadcast_to(flip, of.shape))
    return ones - wrong[0] + wrong[1]


def _first(key: Key, dynamics: EpochDynamics, users: Array) -> Array:
    """Users by first state, i64[S]."""
    return _spread(multinomial(key, _whole(users), dynamics.initial), dynamics.initial_places)


def _whole(users: Array) -> Array:
    return jnp.asarray(users).astype(jnp.int64)


def _moves(key: Key, visits: Array, dynamics: EpochDynamics, h: Array, S: int) -> Array:
    """Users of each pair by next state, i64[S A, S, ...], from visits i64[S A, ...]."""
    of = read_rows(visits, at_stage(dynamics.rows, h))
    chances = at_stage(dynamics.chances, h)
    for axis, size in enumerate(visits.shape[1:], 1):
        chances = _repeat(chances, size, axis)
    drawn = jnp.moveaxis(multinomial(key, of, chances), -1, 1)
    return _at_places(drawn, visits, dynamics, h, S)


def _expected_moves(visits: Array, dynamics: EpochDynamics, h: Array, S: int) -> Array:
    """Chances of each pair and next state, f64[S A, S], from chances of pairs f64[S A]."""
    of = read_rows(visits, at_stage(dynamics.rows, h))
    return _at_places(of[:, None] * at_stage(dynamics.chances, h), visits, dynamics, h, S)


def _at_places(drawn: Array, visits: Array, dynamics: EpochDynamics, h: Array, S: int) -> Array:
    pool = jnp.concatenate([drawn.reshape(-1, *visits.shape[1:]), visits])
    return _spread(pool, at_stage(dynamics.places, h)).reshape(visits.shape[0], S, *visits.shape[1:])


def _costs(key: Key, dynamics: EpochDynamics, visits: Array) -> Array:
    """Cost sums of so many visits, i64[H, S, A], in steps of the grid."""
    extra = binomial(key, read_rows(visits.reshape(-1), dynamics.cost_rows), jnp.asarray(dynamics.cost_chances))
    spread = _spread(extra, dynamics.cost_places).reshape(visits.shape)
    return dynamics.cost_floor * visits + dynamics.cost_step * spread


def _spread(drawn: Array, places: Array) -> Array:
    """Every entry of the first axis from its place among the drawn ones, or zero."""
    return read_rows(jnp.concatenate([drawn, jnp.zeros((1, *drawn.shape[1:]), drawn.dtype)]), places)


def _words(key: Key, *shape: int) -> Array:
    """Words of new keys, u32[..., 2]: loops over steps read rows of arrays, which keys are not."""
    return jax.random.key_data(jax.random.split(key, shape))


def _keys(words: Array) -> list[Key]:
    return [jax.random.wrap_key_data(words[i], impl=PRNG) for i in range(words.shape[0])]


def _repeat(x: Array, size: int, axis: int) -> Array:
    """The array with a new axis along which it does not change."""
    return jax.lax.broadcast_in_dim(
        x, (*x.shape[:axis], size, *x.shape[axis:]), [i + (i >= axis) for i in range(x.ndim)]
    )
