"""One user at a time: play an episode, report, release, learn. Batches are made by `vmap`, in `run`."""

from typing import Any, NamedTuple

import chex
import jax
import jax.numpy as jnp
import numpy as np

from jaxprivrl.learners import Metric, Plan, Steps
from jaxprivrl.mdp import Counts, Dynamics, Policy
from jaxprivrl.numerics import random
from jaxprivrl.numerics.axes import at_stage, stage_scan
from jaxprivrl.privacy.privatizer import Privatizer
from jaxprivrl.privatizers.base import Clock, Parameters, Runtime, State, report_one
from jaxprivrl.problem import Shape

Array = jax.Array
Key = jax.Array

_CHECKED = 100  # episodes whose policies are looked at row by row
_MAX_WRONG = 1e-3  # of a row's sum: far above rounding


class Streams(NamedTuple):
    """Three independent keys of a seed: the noise, the environment with the users' actions, the learner's ties."""

    noise: Key
    environment: Key
    learner: Key


class RunState(NamedTuple):
    """What one run carries from episode to episode. Where a leaf lives fixes its batch axes (see `run`).

    Attributes:
      clock: the same for every run.
      seed: unit noise, shared by the cells of a seed.
      cell: SENSITIVE exact sums of one run.
      learner: state of the learner.
      released: noisy counts of the last release.
      told: the rest of what its learner is told, computed once a release: XLA would work out numbers that are only used
        by each counter's own arithmetic again for every counter.
    """

    clock: Clock
    seed: Any
    cell: Any
    learner: Any
    released: Counts
    told: Any = ()


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


class Agent(NamedTuple):
    """The privatizer of one run, with its numbers.

    Attributes:
      shape: static sizes.
      privatizer: what it is.
      runtime: its functions.
      parameters: what accounting found.
      times: i32[J], release times; () on schedule `every`.
    """

    shape: Shape
    privatizer: Privatizer
    runtime: Runtime
    parameters: Parameters
    times: Any


class Parts(NamedTuple):
    """The functions and numbers of one run: the agent, the learner fed through its post-processing, and the MDP."""

    agent: Agent
    learner: Steps
    dynamics: Dynamics


def init(runtime: Runtime, learner_state: Any) -> RunState:
    """State before the first episode: the first plan is made on exact zeros."""
    (state, empty), zero = runtime.init(), jnp.zeros((), jnp.int32)
    return RunState(Clock(zero, zero, zero), state.seed, state.cell, learner_state, empty)


def begin(agent: Agent, learner_state: Any) -> RunState:
    """State before the first episode of a run that is played by `step`."""
    return tell(agent, init(agent.runtime, learner_state))


def tell(agent: Agent, state: RunState) -> RunState:
    """The state with what the learner is told of the last release."""
    view = agent.runtime.view(agent.parameters, state.released, state.clock)
    return state._replace(told=view._replace(counts=()))


def step(
    keys: Streams, state: RunState, parts: Parts, *, realised: bool = False, metrics: tuple[Metric, ...] = ()
) -> tuple[RunState, tuple[Array, ...]]:
    """One episode: plan on the last release, play, report, and release if it is time.

    Returns the state, and the regret f32[] with the metrics asked for: the exact expected regret of the policy, or, if
    `realised`, the sum of the gaps at the visited steps, which has the same mean; NaN if the policy is no policy.
    """
    agent, dynamics = parts.agent, parts.dynamics
    view = state.told._replace(counts=state.released)
    learner_state, plan, info = parts.learner.step(keys.learner, state.learner, view)
    check_plan(agent.shape, plan)
    trajectory, regret, wrong = play(keys.environment, dynamics, plan.policy)
    if realised:
        regret = jnp.sum(dynamics.gaps[jnp.arange(agent.shape.horizon), trajectory.states, trajectory.actions])
    counts = tally(agent.shape, trajectory)
    state = tell(agent, observe(keys.noise, state._replace(learner=learner_state), agent, counts))
    extra = tuple(metric.of(info, dynamics.initial) for metric in metrics)
    # Later rows are only seen through the mass that they let through; a learner that gets signs wrong does so at once.
    first = state.clock.users <= _CHECKED
    wrong = jnp.maximum(wrong, jax.lax.cond(first, how_wrong, lambda policy: jnp.zeros(()), plan.policy))
    return state, (jnp.where(wrong <= _MAX_WRONG, regret, jnp.nan), *extra)


def how_wrong(policy: Policy) -> Array:
    """How far rows of a policy are from distributions, f32[]: in their sums, or below zero."""
    return jnp.maximum(jnp.max(jnp.abs(jnp.sum(policy, -1) - 1.0)), -jnp.min(policy))


def observe(key: Key, state: RunState, agent: Agent, counts: Counts) -> RunState:
    """One user reports its counts by step, and a release follows if it is time; the key is consumed."""
    shape, privatizer, runtime, parameters, times = agent
    at_user, at_release = noise_keys(key, privatizer)
    coins, own = at_user, at_user
    if privatizer.report.step or privatizer.report.bits:
        coins, own = jax.random.split(at_user)
    private = parameters.scale > 0
    users = report_one(coins, privatizer.report, shape, private, counts, state.clock.users)
    held = runtime.absorb(own, parameters, State(state.seed, state.cell), users)
    now = state.clock.users + 1

    closing = Clock(now, state.clock.releases + 1, now)

    def release(held: State, released: Counts) -> tuple[State, Counts]:
        del released
        return runtime.release(at_release, parameters, held, closing)

    def hold(held: State, released: Counts) -> tuple[State, Counts]:
        return held, released

    clock = closing
    if shape.every:
        held, released = release(held, state.released)
    else:
        is_time = now == times[state.clock.releases]
        held, released = jax.lax.cond(is_time, release, hold, held, state.released)
        clock = jax.tree.map(lambda new, old: jnp.where(is_time, new, old), closing, state.clock._replace(users=now))
    return state._replace(clock=clock, seed=held.seed, cell=held.cell, released=released)


def noise_keys(key: Key, privatizer: Privatizer) -> tuple[Key, Key]:
    """Independent keys of what users draw and of what the agent draws, from that of an episode; it is consumed.

    Who draws by the trust model takes the key itself; the other gets one folded from it, which costs nothing if it is
    not used.
    """
    other = jax.random.fold_in(key, 1)
    return (key, other) if privatizer.trust in ("LDP", "SDP") else (other, key)


def check_plan(shape: Shape, plan: Plan) -> None:
    """Raises when the program is traced unless the plan has the shapes that the protocol asks for."""
    if not isinstance(plan, Plan):
        raise TypeError(
            f"A learner returned a plan of type {type(plan).__name__}; expected a Plan. Return Plan(policy)."
        )
    chex.assert_shape(plan.policy, (shape.horizon, shape.num_states, shape.num_actions))
    chex.assert_type(plan.policy, jnp.float32)
    if plan.reporting is not None:
        raise ValueError(
            "A learner gave a reporting rule; expected None, as no mechanism here takes one. Leave it out."
        )


def play(key: Key, dynamics: Dynamics, policy: Policy) -> tuple[Trajectory, Array, Array]:
    """Rolls out one episode and, in the same pass, the occupancy of the policy; the key is consumed.

    regret = sum_h sum_{s,a} d_h(s) pi_h(a|s) gap_h(s, a): the performance-difference lemma.
    The third output is |sum_s |d_{H+1}(s)| - 1|: 0 but for rounding, unless a row of the policy that is reached does
    not sum to one.
    """
    H, S, _ = dynamics.costs.shape
    u = random.uniform(key, (H + 1, 3))
    first = sample_index(cumulate(dynamics.initial), u[H, 0])

    def forward(carry: tuple[Array, ...], h: Array, constants: Any) -> tuple[tuple[Array, ...], Any]:
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
    (_, d, regret), trajectory = stage_scan(forward, start, (policy, u, dynamics), H)
    return trajectory, regret, jnp.abs(jnp.sum(jnp.abs(d)) - 1.0)


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
