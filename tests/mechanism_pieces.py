"""What the tests of mechanisms share: small problems, users who report in them, and the releases of many seeds.

What is statistical uses fixed keys and 1,000 seeds, and accepts a mean within 4.5 standard errors: with fresh keys one
check in 150,000 would fail. Noise that is 0.8 or 1.25 times as large is rejected by the same rule.
"""

import dataclasses
import functools
import itertools
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pieces
import pytest
from scipy import special

from jaxprivrl.engine import episodes
from jaxprivrl.engine.episodes import Agent, RunState
from jaxprivrl.engine.run import release_times
from jaxprivrl.mdp import Counts
from jaxprivrl.numerics import random
from jaxprivrl.numerics.axes import vmap_last
from jaxprivrl.privacy import errors as errors_lib
from jaxprivrl.privacy.accounting import Calibrated
from jaxprivrl.privacy.privatizer import Privatizer
from jaxprivrl.privatizers import PRIVATIZERS, toeplitz
from jaxprivrl.privatizers.base import Parameters, Release
from jaxprivrl.privatizers.base import parameters as arrays_of
from jaxprivrl.problem import Problem, Shape
from jaxprivrl.schedules import schedule

LIMIT = 4.5  # standard errors
SEEDS = 1000
EPISODES = 130
CHECKED = (1, 2, 3, 7, 8, 21, 63, 64, 127, 130)
PROBLEMS = {
    "three_families": Problem(2, 2, 2, EPISODES),
    "two_families": Problem(2, 2, 2, EPISODES, families=2),
    "pooled": Problem(3, 2, 1, EPISODES, homogeneous=True, families=2),
}
jit = pieces.jit


class Case(NamedTuple):
    """A privatizer on a schedule."""

    privatizer: Privatizer
    releases: str = "every"

    def __str__(self) -> str:
        return self.privatizer.name if self.releases == "every" else f"{self.privatizer.name}-{self.releases}"

    def problem(self, kind: str, **changes: Any) -> Problem:
        return PROBLEMS[kind].replace(schedule=schedule(self.releases), **changes)


def epochs_of(privatizer: Privatizer) -> str:
    """Releases that end epochs of several users: the agent's own noise from the first user on, reports once in 16."""
    return "equal:8" if privatizer.strategy.per_user else "octaves"


NOISY = [p for p in PRIVATIZERS.values() if p.private]
PLAIN = [p for p in NOISY if p.plain]  # true counts plus noise
REPORTS = [p for p in NOISY if not p.plain]  # users round, flip or sample
IN_EPOCHS = [Case(p, epochs_of(p)) for p in NOISY]
CASES = [*(Case(p) for p in NOISY), *IN_EPOCHS]
# Epochs matter most where noise comes in blocks or reports are shuffled: there all that is tested on `every` is too.
FULLY_TESTED = [
    c for c in CASES if c.releases == "every" or c.privatizer.strategy.block > 1 or c.privatizer.trust == "SDP"
]
SETTINGS = [
    pytest.param(case, kind, id=f"{case}-{kind}")
    for case in CASES
    for kind in PROBLEMS
    if case in FULLY_TESTED or kind == "pooled"
]


def scale_of(privatizer: Privatizer) -> float:
    """One at which noise and data are of one size."""
    return 1.5 if privatizer.report.bits else 0.7 if privatizer.report.step else 2.0


def parameters(privatizer: Privatizer, problem: Problem, scale: float) -> Parameters:
    """Those of a noise scale, with errors of zero."""
    nothing = np.zeros(errors_lib.ROWS)
    given: Any = Calibrated(scale, errors_lib.ErrorTable(nothing, nothing, nothing), None)  # type: ignore[arg-type]
    return jax.tree.map(jnp.asarray, arrays_of(privatizer, problem, given))


def times_of(problem: Problem) -> Any:
    """Release times as a program takes them."""
    times = release_times(problem.schedule.times(problem.num_episodes), problem.schedule.every)
    return jnp.asarray(times) if len(times) else ()


def held(problem: Problem) -> tuple[np.ndarray, np.ndarray]:
    """Users in the last release, and releases made, after each user: i64[K] each."""
    times = problem.schedule.times(problem.num_episodes)
    releases = np.searchsorted(times, np.arange(1, problem.num_episodes + 1), side="right")
    return np.append(0, times)[releases], releases


def leaves_of(privatizer: Privatizer, problem: Problem) -> np.ndarray:
    """Leaves of the strategy in the last release, after each user: i64[K]."""
    users, releases = held(problem)
    return users if privatizer.strategy.per_user else releases


# Users


@functools.cache
def _data(H: int, S: int, A: int) -> Counts:
    rng = np.random.default_rng(5)
    counts = Counts(*(np.zeros((EPISODES, H, S, A, *tail), np.float32) for tail in ((), (), (S,))))
    for k, h in itertools.product(range(EPISODES), range(H)):
        cell = k, h, rng.integers(S), rng.integers(A)
        counts.visits[cell] = 1
        counts.costs[cell] = rng.choice([0.0, 0.25, 0.6, 1.0])
        counts.transitions[(*cell, rng.integers(S))] = 1
    return counts


def data(sizes: Problem | Shape) -> Counts:
    """Counts by step of random users with costs in [0, 1], f32 `[EPISODES, H, S, A(, S)]`."""
    return _data(sizes.horizon, sizes.num_states, sizes.num_actions)


def user(sizes: Problem | Shape, k: int = 0) -> Counts:
    """One of them."""
    return jax.tree.map(lambda x: jnp.asarray(x[k]), data(sizes))


def nobody(sizes: Problem | Shape) -> Counts:
    """A user who visits nothing."""
    return jax.tree.map(jnp.zeros_like, user(sizes))


def since_zero(x: np.ndarray) -> np.ndarray:
    """Running sums over the first axis, f64, with a row of zeros before the first."""
    return np.cumsum(np.concatenate([np.zeros((1, *x.shape[1:])), np.asarray(x, np.float64)]), 0)


def true_sums(problem: Problem) -> Counts:
    """Exact counts in the last release after each user, f64 `[EPISODES, H|1, S, A(, S)]`."""
    sums = (since_zero(x)[held(problem)[0]] for x in data(problem))
    return Counts(*(x.sum(1, keepdims=True) if problem.homogeneous else x for x in sums))


# Releases


@functools.cache
def alone(privatizer: Privatizer, shape: Shape) -> Any:
    """`(parameters, times, key, state, counts) -> (state, Release)`: one user of one run."""
    runtime = privatizer.runtime(privatizer, shape)

    def step(given: Parameters, times: Any, key: Any, state: RunState, counts: Counts) -> tuple[RunState, Release]:
        state = episodes.observe(key, state, Agent(shape, privatizer, runtime, given, times), counts)
        return state, runtime.view(given, state.released, state.clock)

    return jit(step)


@functools.cache
def _start(privatizer: Privatizer, shape: Shape) -> Any:
    runtime = privatizer.runtime(privatizer, shape)

    def start(given: Parameters) -> tuple[RunState, Release]:
        state = episodes.init(runtime, ())
        return state, runtime.view(given, state.released, state.clock)

    return jit(start)


def start(privatizer: Privatizer, shape: Shape, given: Parameters) -> tuple[RunState, Release]:
    """State before the first user, and what a learner is told then."""
    return _start(privatizer, shape)(given)


def initial(privatizer: Privatizer, shape: Shape) -> RunState:
    """State before the first user, where a program is traced."""
    return episodes.init(privatizer.runtime(privatizer, shape), ())


@functools.cache
def run_alone(privatizer: Privatizer, problem: Problem, scale: float, seed: int, users: int) -> list[Counts]:
    """Counts of the releases of one seed of `released`, for the first users, one call for each."""
    shape, given, times = problem.shape, parameters(privatizer, problem, scale), times_of(problem)
    step, (state, _), found = alone(privatizer, shape), start(privatizer, shape, given), []
    for k in range(users):
        state, release = step(given, times, jax.random.fold_in(random.key(seed), k), state, user(problem, k))
        found.append(release.counts)
    return found


_SHARED = RunState(**dict.fromkeys(RunState._fields))  # type: ignore[arg-type]
BY_SEED = _SHARED._replace(seed=-1, cell=-1, released=-1)  # batch axes over seeds
BY_SCALE = _SHARED._replace(cell=-1, released=-1)  # over epsilons, which share the noise


@functools.cache
def _program(privatizer: Privatizer, shape: Shape) -> Any:
    step = alone(privatizer, shape).__wrapped__
    outputs = BY_SEED, Release(-1, None, None, None)  # type: ignore[arg-type]

    def run(given: Parameters, times: Any, stream: Counts) -> Release:
        keys = jax.vmap(random.key)(jnp.arange(SEEDS))
        state = jax.vmap(lambda _: initial(privatizer, shape), out_axes=BY_SEED)(keys)

        def body(state: RunState, now: Any) -> tuple[RunState, Release]:
            k, counts = now
            keys_now = jax.vmap(lambda key: jax.random.fold_in(key, k))(keys)
            batched = vmap_last(functools.partial(step, given, times), (0, BY_SEED, None), outputs)
            return batched(keys_now, state, counts)

        return jax.lax.scan(body, state, (jnp.arange(EPISODES), stream))[1]

    return jit(run)


@functools.cache
def released(privatizer: Privatizer, problem: Problem, scale: float) -> Release:
    """What a learner is told after each user: counts f32 `[EPISODES, ..., SEEDS]`, the rest without seeds.

    By the real code for a single user, batched over seeds and scanned over users.
    """
    given = parameters(privatizer, problem, scale)
    run = _program(privatizer, problem.shape)
    return jax.tree.map(np.asarray, run(given, times_of(problem), data(problem)))


def errors(privatizer: Privatizer, problem: Problem, scale: float) -> Counts:
    """Released minus true, f64 `[EPISODES, ..., SEEDS]` by family."""
    noisy = released(privatizer, problem, scale).counts
    return Counts(*(np.float64(r) - t[..., None] for r, t in zip(noisy, true_sums(problem), strict=True)))


def deviation(samples: np.ndarray, expected: Any) -> float:
    """Largest distance of the means over the last axis from what is expected, in standard errors."""
    standard_error = samples.std(-1, ddof=1) / math.sqrt(samples.shape[-1])
    return float(np.max(np.abs(samples.mean(-1) - expected) / np.maximum(standard_error, 1e-12)))


# What they should be


def predicted_std(privatizer: Privatizer, problem: Problem, scale: float) -> errors_lib.ErrorTable:
    """Standard deviations on the host, after each user: f32[EPISODES] by family."""
    return errors_lib.standard_deviation(privatizer, problem, scale, leaves_of(privatizer, problem))


def exact_variance(privatizer: Privatizer, problem: Problem, scale: float) -> Counts:
    """Variance of each released count, given the data, `[EPISODES, ...]` by family, from textbook formulas."""
    H, S, pooled, report = problem.horizon, problem.num_states, problem.homogeneous, privatizer.report
    if privatizer.plain:
        std = predicted_std(privatizer, problem, scale)
        shapes = (x.shape for x in true_sums(problem))
        return Counts(*(np.broadcast_to(np.float64(v) ** 2, s[::-1]).T for v, s in zip(std, shapes, strict=True)))
    x = Counts(*(np.asarray(v, np.float64) for v in data(problem)))
    if report.bits:
        gain = math.tanh(0.5 / scale)

        def of_bits(x: np.ndarray) -> np.ndarray:
            p = 0.5 + gain * (x - 0.5)
            return p * (1 - p) / gain**2

        each = Counts(*(of_bits(v) for v in x))
        if pooled:
            each = Counts(*(v.sum(1, keepdims=True) for v in each))
        if problem.families == 2:
            each = each._replace(visits=each.transitions.sum(-1))
    else:
        W, unit = H * (problem.families if report.family else 1), privatizer.law.unit_variance

        def of_samples(x: np.ndarray, spread: int) -> np.ndarray:
            if pooled:
                drawing = W * (x**2).sum(1, keepdims=True) - x.sum(1, keepdims=True) ** 2
                return drawing + unit * W * H * scale**2 * spread
            return (W - 1) * x**2 + unit * W * scale**2 * spread

        visits = of_samples(x.visits, S if problem.families == 2 else 1)
        each = Counts(visits, of_samples(x.costs, 1), of_samples(x.transitions, 1))
    return Counts(*(since_zero(v)[held(problem)[0]] for v in each))


def blt_noise_coefficients(num_leaves: int, lags: np.ndarray) -> np.ndarray:
    """b_t of the noise A C^-1 z of the buffered strategy for so many leaves, f64, by its recurrence's eigenvectors."""
    decay, scale = (np.asarray(x) for x in toeplitz.blt_parameters(num_leaves))
    rates, vectors = np.linalg.eig(np.diag(decay) - np.outer(np.ones(4), scale))
    gains = -(scale @ vectors) * np.linalg.solve(vectors, np.ones(4)) / (1 - rates)
    return 1 + gains.sum() - np.exp(np.outer(lags, np.log(rates))) @ gains


def with_releases(problem: Problem, max_releases: int) -> Shape:
    """The problem's shape, made for another number of releases."""
    return dataclasses.replace(problem.shape, max_releases=max_releases)


def sum_of_laplace_cdf(x: np.ndarray, terms: int, scale: float) -> np.ndarray:
    """CDF of a sum of Lap(scale): its size is Gamma(terms - k) with probability C(terms-1+k, k) / 2^(terms-1+k)."""
    size = np.abs(x) / scale
    inside = sum(
        math.comb(terms - 1 + k, k) / 2 ** (terms - 1 + k) * special.gammainc(terms - k, size) for k in range(terms)
    )
    return 0.5 + 0.5 * np.sign(x) * inside
