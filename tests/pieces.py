"""The package's own step functions, jitted one by one and shared by the tests that play episode by episode.

A learner meets a privatizer only through a Release, so a pair needs no program of its own: one program for each
learner, each privatizer and each set of sizes serves all pairs.
"""

import contextlib
import functools
from collections.abc import Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxprivrl import mdp as mdp_lib
from jaxprivrl.engine import episodes as engine_episodes
from jaxprivrl.engine import run as engine
from jaxprivrl.engine.episodes import Agent, RunState, Streams, Trajectory
from jaxprivrl.experiments.spec import Plan
from jaxprivrl.learners import LEARNERS, Hyper, Learner
from jaxprivrl.learners.postprocess import none
from jaxprivrl.mdp import MDP, Counts
from jaxprivrl.numerics import random, runtime
from jaxprivrl.privatizers import PRIVATIZERS
from jaxprivrl.privatizers.base import Parameters, Release
from jaxprivrl.problem import Problem, Shape

# Tests compile many small programs and run each for moments: machine code is not worth optimising.
QUICK = {"xla_backend_optimization_level": 0}
jit = functools.partial(jax.jit, compiler_options=QUICK)


@contextlib.contextmanager
def quick_sweeps() -> Iterator[None]:
    """Sweeps compile quickly inside; their programs are forgotten afterwards."""
    before = dict(runtime.COMPILER_OPTIONS)
    engine._compile.cache_clear()
    runtime.COMPILER_OPTIONS.update(QUICK)
    try:
        yield
    finally:
        runtime.COMPILER_OPTIONS.clear()
        runtime.COMPILER_OPTIONS.update(before)
        engine._compile.cache_clear()


def random_mdp(seed: int, sizes: tuple[int, int, int], *, homogeneous: bool = False, bernoulli: bool = False) -> MDP:
    """A random MDP of (H, S, A), drawn by NumPy: nothing to compile."""
    H, S, A = sizes
    rng = np.random.default_rng(seed)
    stages = 1 if homogeneous else H
    rows = rng.dirichlet(np.ones(S), (stages, S, A))
    costs = rng.uniform(size=(stages, S, A))
    return mdp_lib.make(costs, rows, rng.dirichlet(np.ones(S)), horizon=H, bernoulli=bernoulli)


class Episode(NamedTuple):
    """All that one episode saw and made. `before` and `after` are RunStates: the learner's part is that of before."""

    before: Release
    learner_state: Any
    policy: jax.Array
    values: jax.Array
    trajectory: Trajectory
    regret: jax.Array
    state: RunState
    after: Release


def parts_of(program: engine.Program, cell: engine.Cell, shared: engine.Shared) -> engine.Parts:
    """The functions and numbers of one run."""
    return engine.parts(program, cell, shared)


def agent_of(plan: Plan, cell: engine.Cell | None = None) -> Agent:
    """The privatizer's side of one run of a plan."""
    return engine.parts(plan.job.program, cell_of(plan) if cell is None else cell, plan.job.shared).agent


@functools.cache
def learner_step(program: engine.Program) -> Any:
    """`(key, cell, state, release) -> (state, policy, values)`."""

    def step(key, cell, state, release):
        _, learner = engine.functions(program, cell)
        state, plan, info = learner.step(key, state, release)
        return state, plan.policy, info.values

    return jit(step)


@functools.cache
def privatizer_step(program: engine.Program) -> Any:
    """`(key, cell, shared, state, counts by step) -> (state, release)`: a user reports, and the learner's next view."""

    def step(key, cell, shared, state, counts):
        agent = engine.parts(program, cell, shared).agent
        state = engine_episodes.observe(key, state, agent, counts)
        return state, agent.runtime.view(agent.parameters, state.released, state.clock)

    return jit(step)


@functools.cache
def play(shape: Shape) -> Any:
    """`(key, dynamics, policy) -> (trajectory, regret, counts)`."""

    def step(key, dynamics, policy):
        trajectory, regret, _ = engine_episodes.play(key, dynamics, policy)
        return trajectory, regret, engine_episodes.tally(shape, trajectory)

    return jit(step)


def cell_of(plan: Plan, i: int = 0) -> engine.Cell:
    """The i-th cell of a plan's grid."""
    return jax.tree.map(lambda x: x[i], plan.job.cells)


def hyper_of(learner: Learner, problem: Problem, **numbers: Any) -> Hyper:
    """The numbers of a learner, f32: those given of the parameters that it declares, its defaults for the others."""
    values = {"num_episodes": problem.num_episodes} | learner.defaults(problem)
    return {name: jnp.asarray(numbers.get(name, value), jnp.float32) for name, value in values.items()}


def parameters_of(plan: Plan, cell: engine.Cell) -> Parameters:
    """What accounting tells the privatizer of a cell."""
    return Parameters(cell.scale, cell.error, plan.job.shared.data)


@functools.cache
def _initial(program: engine.Program) -> Any:
    def init(cell, shared):
        parts = engine.parts(program, cell, shared)
        state = engine_episodes.begin(parts.agent, parts.learner.init())
        return state, parts.agent.runtime.view(parts.agent.parameters, state.released, state.clock)

    return jit(init)


def initial(plan: Plan, cell: engine.Cell) -> tuple[RunState, Release]:
    """State of one run before its first episode, and what its learner is shown."""
    state, release = _initial(privatizer_alone(plan))(_with_hyper(cell, "ucb_vi"), plan.job.shared)
    learner_state = _initial(learner_alone(plan))(cell, plan.job.shared._replace(data=()))[0].learner
    return state._replace(learner=learner_state), release


def learner_alone(plan: Plan) -> engine.Program:
    """The plan's program without noise: a learner meets a privatizer only through a Release."""
    return plan.job.program._replace(privatizer=PRIVATIZERS["exact"])


def privatizer_alone(plan: Plan) -> engine.Program:
    """The plan's program with a plain learner."""
    return plan.job.program._replace(learner=LEARNERS["ucb_vi"], postprocess=none)


def _with_hyper(cell: engine.Cell, learner: str) -> engine.Cell:
    names = ("num_episodes", *(p.name for p in LEARNERS[learner].parameters))
    return cell._replace(hyper={name: cell.hyper.get(name, jnp.float32(1)) for name in names})


def one_episode(plan: Plan) -> Counts:
    """Counts of one played episode under the uniform policy, by step."""
    H, S, A = plan.job.shared.dynamics.costs.shape
    return play(plan.job.program.shape)(random.key(7), plan.job.shared.dynamics, jnp.full((H, S, A), 1.0 / A))[2]


@functools.cache
def _keys(n: int) -> Any:
    def keys(key):
        return jax.tree.map(lambda k: engine_episodes.episode_keys(k, jnp.arange(n)), engine_episodes.streams(key))

    return jit(keys)


def keys_of(seed: int, num_episodes: int) -> Streams:
    """The keys of each episode of a run, as the engine derives them."""
    return _keys(num_episodes)(random.key(seed))


def episodes(plan: Plan, cell: engine.Cell, seed: int = 0) -> Iterator[Episode]:
    """Plays the run of a seed, episode by episode."""
    shape, shared = plan.job.program.shape, plan.job.shared
    plan_step, noise_step = learner_step(learner_alone(plan)), privatizer_step(privatizer_alone(plan))
    keys = [Streams(*row) for row in zip(*(list(x) for x in keys_of(seed, plan.spec.episodes)), strict=True)]
    state, release = initial(plan, cell)
    learner_state, plain = state.learner, _with_hyper(cell, "ucb_vi")
    state = state._replace(learner=())
    for now in keys:
        new_state, policy, values = plan_step(now.learner, cell, learner_state, release)
        trajectory, regret, counts = play(shape)(now.environment, shared.dynamics, policy)
        state, after = noise_step(now.noise, plain, shared, state, counts)
        yield Episode(release, learner_state, policy, values, trajectory, regret, state, after)
        learner_state, release = new_state, after


def simulate(key: jax.Array, plan: Plan, cell: engine.Cell | None = None, num_episodes: int | None = None) -> jax.Array:
    """Exact pseudo-regret of each episode, f32[num_episodes], of one run of a plan; the key is consumed."""
    parts = engine.parts(plan.job.program, cell_of(plan) if cell is None else cell, plan.job.shared)
    n = plan.spec.episodes if num_episodes is None else num_episodes
    keys = jax.tree.map(lambda k: engine_episodes.episode_keys(k, jnp.arange(n)), engine_episodes.streams(key))

    def body(state, now):
        state, (regret, *_) = engine_episodes.step(now, state, parts)
        return state, regret

    return jax.lax.scan(body, engine_episodes.begin(parts.agent, parts.learner.init()), keys)[1]


def totals_of(state: RunState) -> Any:
    """The exact sums over all users so far."""
    return state.cell
