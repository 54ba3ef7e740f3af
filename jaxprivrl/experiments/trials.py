"""Small runs of one object at a time, for the checks of `conformance`: the device side, compiled in a moment."""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxprivrl.engine import episodes
from jaxprivrl.engine.run import axes, release_times
from jaxprivrl.learners import POSTPROCESSORS, Learner, Plan
from jaxprivrl.learners.postprocess import compose
from jaxprivrl.mdp import Counts
from jaxprivrl.numerics.axes import vmap_last
from jaxprivrl.privacy import accounting
from jaxprivrl.privatizers import Privatizer
from jaxprivrl.privatizers.base import Clock, Parameters, Release, Users, parameters, report_one
from jaxprivrl.problem import Problem, Shape

Array = jax.Array
Key = jax.Array

DP_DELTA = 1e-5
_QUICK = {"xla_backend_optimization_level": 0}


class Numbers(NamedTuple):
    """What accounting says for one epsilon, and release times; () on schedule `every`."""

    parameters: Parameters
    times: Any


def numbers(privatizer: Privatizer, problem: Problem, epsilon: float) -> Numbers:
    """The numbers of a mechanism at its own target."""
    calibrated = accounting.calibrate(privatizer, problem, epsilon, dp_delta=DP_DELTA)
    times = release_times(problem.schedule.times(problem.num_episodes), problem.schedule.every)
    return jax.tree.map(jnp.asarray, Numbers(parameters(privatizer, problem, calibrated), times))


def users(problem: Problem, seed: int = 0) -> Counts:
    """Counts by step of users with random episodes, f32[K, H, S, A(, S)]."""
    rng, S, A = np.random.default_rng(seed), problem.num_states, problem.num_actions
    size = (problem.num_episodes, problem.horizon)
    s, a, s2 = (rng.integers(0, n, size) for n in (S, A, S))
    at = np.eye(S)[s][..., None] * np.eye(A)[a][..., None, :]
    costs, moves = at * rng.uniform(size=size)[..., None, None], at[..., None] * np.eye(S)[s2][..., None, None, :]
    return Counts(*(jnp.asarray(x, jnp.float32) for x in (at, costs, moves)))


def true_counts(problem: Problem, counts: Counts, number: np.ndarray) -> Counts:
    """Sums over the first `number` users, f64[n, H|1, S, A(, S)]."""

    def sums(x: Array) -> np.ndarray:
        total = np.cumsum(np.asarray(x, np.float64), 0)
        total = np.concatenate([np.zeros_like(total[:1]), total])[number]
        return total.sum(1, keepdims=True) if problem.homogeneous else total

    return jax.tree.map(sums, counts)


def start(privatizer: Privatizer, shape: Shape, numbers: Numbers) -> tuple[episodes.RunState, Any]:
    """State before the first user, and what a learner is shown then."""
    runtime = privatizer.runtime(privatizer, shape)
    state = episodes.init(runtime, ())
    return state, runtime.view(numbers.parameters, state.released, state.clock)


def observe(
    privatizer: Privatizer, shape: Shape, key: Key, numbers: Numbers, state: Any, counts: Counts
) -> tuple[episodes.RunState, Any]:
    """One user reports; state, and what a learner is shown, afterwards."""
    runtime = privatizer.runtime(privatizer, shape)
    agent = episodes.Agent(shape, privatizer, runtime, *numbers)
    state = episodes.observe(key, state, agent, counts)
    return state, runtime.view(numbers.parameters, state.released, state.clock)


@functools.partial(jax.jit, static_argnums=(0, 1), compiler_options=_QUICK)
def run(privatizer: Privatizer, shape: Shape, key: Key, numbers: Numbers, counts: Counts) -> tuple[Any, Any]:
    """State and view after each user, whose key is `fold_in(key, number from 0)`."""

    def step(state: Any, now: tuple[Array, Counts]) -> Any:
        state, view = observe(privatizer, shape, jax.random.fold_in(key, now[0]), numbers, state, now[1])
        return state, (state, view)

    number = jnp.arange(len(counts.visits))
    return jax.lax.scan(step, start(privatizer, shape, numbers)[0], (number, counts))[1]


@functools.partial(jax.jit, static_argnums=(0, 1), compiler_options=_QUICK)
def run_batch(
    privatizer: Privatizer, shape: Shape, keys: Key, scales: Array, numbers: Numbers, counts: Counts
) -> Counts:
    """Last releases [scale, .., key]: scales by `vmap`, keys as the engine does it, with the batch as the last axis."""
    by_key = axes(seed=-1)

    def of_scale(scale: Array) -> Counts:
        mine = numbers._replace(parameters=numbers.parameters._replace(scale=scale))

        def step(i: Array, state: Any) -> Any:
            now, one = jax.vmap(lambda key: jax.random.fold_in(key, i))(keys), row(counts, i)
            each = functools.partial(_next, privatizer, shape, mine, one)
            return vmap_last(each, (0, by_key), by_key)(now, state)

        lanes = jax.vmap(lambda _: start(privatizer, shape, mine)[0], out_axes=by_key)(jnp.arange(keys.shape[0]))
        return jax.lax.fori_loop(0, len(counts.visits), step, lanes).released

    return jax.vmap(of_scale)(scales)


def _next(privatizer: Privatizer, shape: Shape, numbers: Numbers, counts: Counts, key: Key, state: Any) -> Any:
    return observe(privatizer, shape, key, numbers, state, counts)[0]


@functools.partial(jax.jit, static_argnums=(0, 1, 2), compiler_options=_QUICK)
def absorb(privatizer: Privatizer, shape: Shape, at_once: bool, keys: Key, numbers: Numbers, counts: Counts) -> Counts:
    """One release of all users [key, ..], who are absorbed at once or one by one."""
    m, params = len(counts.visits), numbers.parameters

    def report(key: Key, counts: Counts, before: Array) -> Any:
        return report_one(key, privatizer.report, shape, params.scale > 0, counts, before)[:2]

    def one(key: Key) -> Counts:
        runtime, (coins, own, last) = privatizer.runtime(privatizer, shape), jax.random.split(key, 3)
        before, state = jnp.arange(m), runtime.init()[0]
        reports = jax.vmap(report)(jax.random.split(coins, m), counts, before)
        if at_once:
            sums = jax.tree.map(lambda x: jnp.sum(x, 0), reports)
            state = runtime.absorb(own, params, state, Users(sums[0], sums[1], jnp.int32(m), jnp.int32(0)))
        else:

            def body(state: Any, now: Any) -> Any:
                return runtime.absorb(now[0], params, state, Users(now[1][0], now[1][1], 1, now[2])), ()

            state = jax.lax.scan(body, state, (jax.random.split(own, m), reports, before))[0]
        return runtime.release(last, params, state, Clock(jnp.int32(m), jnp.int32(1), jnp.int32(m)))[1]

    return jax.vmap(one)(keys)


class Planned(NamedTuple):
    """What one step of a learner gives."""

    state: Any
    plan: Plan
    info: Any
    metrics: tuple[Array, ...]


def plan(learner: Learner, shape: Shape, key: Key, hyper: Any, state: Any, release: Release) -> Planned:
    """One step of a learner, fed as the engine does it, and its metrics from a uniform first state."""
    steps = compose(shape, POSTPROCESSORS[learner.postprocess], hyper, learner.make(shape, hyper))
    state, plan, info = steps.step(key, state, release)
    initial = jnp.full((shape.num_states,), 1.0 / shape.num_states)
    return Planned(state, plan, info, tuple(metric.of(info, initial) for metric in learner.metrics))


plan_alone = jax.jit(plan, static_argnums=(0, 1), compiler_options=_QUICK)


@functools.partial(jax.jit, static_argnums=(0, 1), compiler_options=_QUICK)
def plan_lanes(learner: Learner, shape: Shape, *lanes: Any) -> Planned:
    """`plan` of keys, hyper-parameters, states and releases, each with a leading axis."""
    return jax.vmap(functools.partial(plan, learner, shape))(*lanes)


def row(tree: Any, i: Any) -> Any:
    """Entry i of the first axis of every array."""
    return jax.tree.map(lambda x: x[i], tree)


def equal(x: Any, y: Any, tolerance: float = 0.0) -> bool:
    """Whether two trees hold the same numbers, to a tolerance."""
    pairs = zip(jax.tree.leaves(x), jax.tree.leaves(y), strict=True)
    return all(np.allclose(a, b, rtol=tolerance, atol=tolerance) for a, b in pairs)
