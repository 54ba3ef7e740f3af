"""One run: play an episode, feed the privatizer, scan over episodes. Batches are made by `vmap`, in `sweep`."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxprivrl import mdp as mdp_lib
from jaxprivrl import noise
from jaxprivrl.batching import at_stage, stage_scan
from jaxprivrl.learners import Learner
from jaxprivrl.mdp import MDP, Counts, Dynamics, Policy, Shape
from jaxprivrl.privatizers import Privatizer, PrivatizerState, Release

Array = jax.Array
Key = jax.Array


class Streams(NamedTuple):
    """Three independent keys of a seed: the noise, the environment with the users' actions, the learner's ties."""

    noise: Key
    environment: Key
    learner: Key


class RunState(NamedTuple):
    """What one run carries from episode to episode."""

    privatizer: PrivatizerState
    learner: Any
    release: Release


class Trajectory(NamedTuple):
    """SENSITIVE: one user's episode: states i32[H], actions i32[H], costs f32[H], next states i32[H]."""

    states: Array
    actions: Array
    costs: Array
    next_states: Array


def streams(key: Key) -> Streams:
    """The three streams of a run; the key is consumed."""
    return Streams(*jax.random.split(key, 3))


def episode_keys(key: Key, episodes: Array) -> Key:
    """Key of each episode number in i32[n]: it depends on the number alone, so chunks may end anywhere."""
    return jax.vmap(lambda k: jax.random.fold_in(key, k))(episodes)


def init(shape: Shape, learner: Learner, privatizer: Privatizer) -> RunState:
    """State before the first episode."""
    privatizer_state, release = privatizer.init(shape.zero_counts())
    return RunState(privatizer_state, learner.init(), release)


def step(
    keys: Streams,
    state: RunState,
    dynamics: Dynamics,
    shape: Shape,
    learner: Learner,
    privatizer: Privatizer,
    *,
    realised: bool = False,
) -> tuple[RunState, Array]:
    """One episode: plan on the last release, play, count, release.

    Returns the state and the regret f32[]: the exact expected one of the policy, or, if `realised`, the sum of the
    gaps at the visited steps, which has the same mean.
    """
    learner_state, policy = learner.step(keys.learner, state.learner, state.release)
    trajectory, regret = play(keys.environment, dynamics, policy)
    if realised:
        regret = jnp.sum(dynamics.gaps[jnp.arange(shape.horizon), trajectory.states, trajectory.actions])
    counts = tally(shape, trajectory)
    privatizer_state, release = privatizer.step(keys.noise, state.privatizer, counts)
    return RunState(privatizer_state, learner_state, release), regret


def play(key: Key, dynamics: Dynamics, policy: Policy) -> tuple[Trajectory, Array]:
    """Rolls out one episode and, in the same pass, the occupancy of the policy; the key is consumed.

    regret = sum_h sum_{s,a} d_h(s) pi_h(a|s) gap_h(s, a): the performance-difference lemma.
    """
    H, S, _ = dynamics.costs.shape
    u = noise.uniform(key, (H + 1, 3))
    first = sample_index(cumulate(dynamics.initial), u[H, 0])

    def forward(carry: tuple[Array, Array, Array], h: Array, constants: Any) -> tuple[tuple[Array, Array, Array], Any]:
        s, d, regret = carry
        policy, u, dynamics = constants
        pi, u_h = at_stage(policy, h), at_stage(u, h)
        row = jnp.sum(jnp.where((jnp.arange(S) == s)[:, None], pi, 0.0), 0)
        a = sample_index(cumulate(row), u_h[0])
        s2 = sample_index(dynamics.cumulative[h, s, a], u_h[1])
        mean = dynamics.costs[h, s, a]
        cost = jnp.where(dynamics.bernoulli, (u_h[2] < mean).astype(jnp.float32), mean)
        w = d[:, None] * pi
        regret = regret + jnp.sum(w * at_stage(dynamics.gaps, h))
        d = jnp.sum(w[..., None] * at_stage(dynamics.transitions, h), (0, 1))
        return (s2, d, regret), Trajectory(s, a, cost, s2)

    start = (first, dynamics.initial, jnp.zeros(()))
    (_, _, regret), trajectory = stage_scan(forward, start, (policy, u, dynamics), H)
    return trajectory, regret


def sample_index(cumulative: Array, u: Array) -> Array:
    """Inverse-CDF sampling: how many of the cumulative sums f32[n] are at most u, at most n - 1; i32[]."""
    return jnp.minimum(jnp.sum(cumulative <= u, dtype=jnp.int32), cumulative.shape[0] - 1)


def cumulate(p: Array) -> Array:
    """Cumulative sums of f32[n] for the small n of an action set: one fused pass, where cumsum is a kernel call."""
    return jnp.sum(jnp.where(np.tri(p.shape[0], dtype=bool), p[None], 0.0), -1)


def tally(shape: Shape, trajectory: Trajectory) -> Counts:
    """Counts of one episode by step, f32 `[H, S, A(, S)]`; a privatizer pools them if its counters are pooled.

    Dense one-hots rather than a scatter: XLA fuses them into the sums that follow.
    """
    S, A = shape.num_states, shape.num_actions
    at_s = trajectory.states[:, None] == jnp.arange(S)[None]
    at_a = trajectory.actions[:, None] == jnp.arange(A)[None]
    at_s2 = trajectory.next_states[:, None] == jnp.arange(S)[None]
    cell = at_s[:, :, None] & at_a[:, None, :]
    visits = cell.astype(jnp.float32)
    costs = jnp.where(cell, trajectory.costs[:, None, None], 0.0)
    transitions = (cell[..., None] & at_s2[:, None, None, :]).astype(jnp.float32)
    return Counts(visits, costs, transitions)


def simulate(key: Key, mdp: MDP, learner: Learner, privatizer: Privatizer, shape: Shape, num_episodes: int) -> Array:
    """Exact pseudo-regret of each episode, f32[num_episodes], of one run; the key is consumed."""
    dynamics = mdp_lib.prepare(mdp)
    keys = jax.tree.map(lambda k: episode_keys(k, jnp.arange(num_episodes)), streams(key))

    def body(state: RunState, keys_of_episode: Streams) -> tuple[RunState, Array]:
        return step(keys_of_episode, state, dynamics, shape, learner, privatizer)

    return jax.lax.scan(body, init(shape, learner, privatizer), keys)[1]
