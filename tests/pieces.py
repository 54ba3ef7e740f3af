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
from jaxprivrl import noise, runtime, simulation
from jaxprivrl import sweep as engine
from jaxprivrl.mdp import MDP, Counts, Shape
from jaxprivrl.privatizers import PrivatizerState, Release
from jaxprivrl.simulation import Streams, Trajectory

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
    """All that one episode saw and made."""

    before: Release
    learner_state: Any
    policy: jax.Array
    values: jax.Array
    trajectory: Trajectory
    regret: jax.Array
    privatizer_state: PrivatizerState
    after: Release


@functools.cache
def learner_step(names: engine.Names, shape: Shape) -> Any:
    """`(key, cell, state, release) -> (state, policy, values)`."""

    def step(key, cell, state, release):
        learner, _ = engine.parts(names, shape, cell)
        return *learner.step(key, state, release), learner.values(state, release)

    return jit(step)


@functools.cache
def privatizer_step(names: engine.Names, shape: Shape) -> Any:
    """`(key, cell, state, counts) -> (state, release)`."""

    def step(key, cell, state, counts):
        _, privatizer = engine.parts(names, shape, cell)
        return privatizer.step(key, state, counts)

    return jit(step)


@functools.cache
def play(shape: Shape) -> Any:
    """`(key, dynamics, policy) -> (trajectory, regret, counts)`."""

    def step(key, dynamics, policy):
        trajectory, regret = simulation.play(key, dynamics, policy)
        return trajectory, regret, simulation.tally(shape, trajectory)

    return jit(step)


def cell_of(plan: engine.Plan, i: int = 0) -> engine.Cell:
    """The i-th cell of a plan's grid."""
    shared = plan.cells.noise.strategy  # the same for every cell, as the noise of a seed is
    cells = plan.cells._replace(noise=plan.cells.noise._replace(strategy=None))
    one = jax.tree.map(lambda x: x[i], cells)
    return one._replace(noise=one.noise._replace(strategy=shared))


@functools.cache
def _initial(names: engine.Names, shape: Shape) -> Any:
    return jit(lambda cell: simulation.init(shape, *engine.parts(names, shape, cell)))


def initial(plan: engine.Plan, cell: engine.Cell) -> simulation.RunState:
    """State of one run before its first episode."""
    of_noise = _initial(_privatizer_alone(plan.names), plan.shape)(cell)
    return of_noise._replace(learner=_initial(_learner_alone(plan.names), plan.shape)(cell).learner)


def _learner_alone(names: engine.Names) -> engine.Names:
    return names._replace(privatizer="exact")


def _privatizer_alone(names: engine.Names) -> engine.Names:
    return engine.Names("ucb_vi", names.privatizer, "none")


def one_episode(plan: engine.Plan) -> Counts:
    """Counts of one played episode under the uniform policy."""
    H, S, A = plan.dynamics.costs.shape
    return play(plan.shape)(noise.key(7), plan.dynamics, jnp.full((H, S, A), 1.0 / A))[2]


@functools.cache
def _keys(n: int) -> Any:
    def keys(key):
        return jax.tree.map(lambda k: simulation.episode_keys(k, jnp.arange(n)), simulation.streams(key))

    return jit(keys)


def keys_of(seed: int, episodes: int) -> Streams:
    """The keys of each episode of a run, as the engine derives them."""
    return _keys(episodes)(noise.key(seed))


def episodes(plan: engine.Plan, cell: engine.Cell, seed: int = 0) -> Iterator[Episode]:
    """Plays the run of a seed, episode by episode."""
    names, shape = plan.names, plan.shape
    plan_step = learner_step(_learner_alone(names), shape)
    noise_step = privatizer_step(_privatizer_alone(names), shape)
    keys = [Streams(*row) for row in zip(*(list(x) for x in keys_of(seed, plan.spec.episodes)), strict=True)]
    state, learner_state, release = initial(plan, cell)
    for now in keys:
        new_state, policy, values = plan_step(now.learner, cell, learner_state, release)
        trajectory, regret, counts = play(shape)(now.environment, plan.dynamics, policy)
        state, after = noise_step(now.noise, cell, state, counts)
        yield Episode(release, learner_state, policy, values, trajectory, regret, state, after)
        learner_state, release = new_state, after


def totals_of(state):
    """The exact sums over all users so far, whether or not a batch is open."""
    return getattr(state.totals, "now", state.totals)
