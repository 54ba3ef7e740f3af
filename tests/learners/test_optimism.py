"""Optimism at bonus_scale 1: values bound V*, or V of the policy for policy optimization, with high probability.

Each of 1000 runs has a random MDP of its own. The learner replans at times that grow by sqrt(2), so that K may be
large enough for printed constants to say something; between two times its policy is played as it is. The counts
of those episodes, sums of local noise and nodes of the tree are drawn from their exact laws, so a run is one of the
learner with rare updates. A run fails if one value of one (time, stage, state) lies on the wrong side.
"""

import functools
import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pieces
import pytest

from jaxprivrl.learners import LEARNERS, POSTPROCESSORS
from jaxprivrl.learners.postprocess import compose
from jaxprivrl.mdp import Counts
from jaxprivrl.numerics import random
from jaxprivrl.privacy import accounting
from jaxprivrl.privatizers import PRIVATIZERS
from jaxprivrl.privatizers.base import Release
from jaxprivrl.problem import Problem, Shape

H, S, A = 2, 2, 2
SHAPE = Shape(H, S, A, H)
RUNS = 1000
FAILURE_PROB = 0.1
ROUNDING = 1e-5  # of values in float32
NUMBERS = {"failure_prob": FAILURE_PROB, "learning_rate": 0.3}
INFORMATIVE = 0.05  # least share of values, at the end, above the trivial bound that costs are not negative


class Case(NamedTuple):
    """K, as a power of two, and the epsilons at which privacy costs a good part of what the learner knows."""

    log2_episodes: int
    central: float
    local: float


CASES = {
    "ucb_vi": Case(16, 30.0, 100.0),
    "ucb_po": Case(16, 300.0, 1000.0),
    "pucb": Case(16, 30.0, 100.0),
    "ldp_obi": Case(16, 30.0, 100.0),
    "dp_ucb_vi": Case(26, 30.0, 1000.0),
}
# The learners of Azar et al. know nothing of noise.
EXACT = {name: case.log2_episodes for name, case in CASES.items()} | {"ucb_vi_hoeffding": 20, "ucb_vi_bernstein": 16}
RUNS_OF = [(name, "exact", math.inf, log2) for name, log2 in EXACT.items()]
RUNS_OF += [(name, "central_laplace", case.central, case.log2_episodes) for name, case in CASES.items()]
RUNS_OF += [(name, "local_laplace", case.local, case.log2_episodes) for name, case in CASES.items()]


class Models(NamedTuple):
    """One random MDP for each run."""

    costs: np.ndarray
    transitions: np.ndarray
    initial: np.ndarray


@functools.cache
def models():
    rng = np.random.default_rng(0)
    return Models(
        rng.uniform(size=(RUNS, H, S, A)),
        rng.dirichlet(np.ones(S), size=(RUNS, H, S, A)),
        rng.dirichlet(np.ones(S), size=RUNS),
    )


def values_of(model, policy=None):
    """V* [RUNS, H, S], or V of a policy [RUNS, H, S, A]."""
    out = np.zeros((RUNS, H + 1, S))
    for h in reversed(range(H)):
        q = model.costs[:, h] + np.einsum("rsaz,rz->rsa", model.transitions[:, h], out[:, h + 1])
        out[:, h] = q.min(-1) if policy is None else (policy[:, h] * q).sum(-1)
    return out[:, :H]


def play(rng, model, policy, episodes):
    """Counts of so many episodes under a fixed policy, each cell from its exact law given what came before."""
    visits, costs = np.zeros((2, RUNS, H, S, A))
    transitions = np.zeros((RUNS, H, S, A, S))
    at = rng.multinomial(episodes, model.initial)
    pi = np.asarray(policy, np.float64)
    pi = pi / pi.sum(-1, keepdims=True)
    for h in range(H):
        visits[:, h] = n = rng.multinomial(at, pi[:, h])
        costs[:, h] = rng.binomial(n, model.costs[:, h])
        transitions[:, h] = moves = rng.multinomial(n, model.transitions[:, h])
        at = moves.sum((1, 2))
    return [visits, costs, transitions]


class TreeNoise:
    """Noise of the release after k episodes: one draw for each node of the binary expansion of k."""

    def __init__(self, rng, scale):
        self.rng, self.scale, self.nodes = rng, scale, {}

    def __call__(self, k, shape):
        total, end = 0.0, 0
        for j in reversed(range(k.bit_length())):
            if k >> j & 1:
                end += 2**j
                if (end, j) not in self.nodes:
                    self.nodes[end, j] = self.rng.laplace(scale=self.scale, size=shape)
                total = total + self.nodes[end, j]
        return total


class LocalNoise:
    """Sum of k Laplace draws: a difference of two Gamma(k) variables, which have independent increments."""

    def __init__(self, rng, scale):
        self.rng, self.scale, self.k, self.total = rng, scale, 0, 0.0

    def __call__(self, k, shape):
        gain = self.rng.gamma(k - self.k, size=(2, *shape))
        self.k, self.total = k, self.total + self.scale * (gain[0] - gain[1])
        return self.total


@functools.cache
def program(name):
    """`(keys, hyper, states, releases) -> (states, policies, values)` of all runs."""
    postprocess = POSTPROCESSORS[LEARNERS[name].postprocess]

    def one(key, hyper, state, release):
        learner = compose(SHAPE, postprocess, hyper, LEARNERS[name].make(SHAPE, hyper))
        state, plan, info = learner.step(key, state, release)
        return state, plan.policy, info.values

    release_axes = Release(0, None, None, None)
    return jax.jit(jax.vmap(one, in_axes=(0, None, 0, release_axes)))


def run(name, privatizer, epsilon, log2_episodes, bonus_scale, error_scale=1.0):
    """Share of runs without a value on the wrong side, and share of informative values at the end."""
    K = 2**log2_episodes
    rng, model = np.random.default_rng(1), models()
    problem = Problem(H, S, A, K)
    calibrated = accounting.calibrate(PRIVATIZERS[privatizer], problem, epsilon, failure_prob=FAILURE_PROB)
    error = Counts(*(jnp.float32(table[-1]) for table in calibrated.errors))
    kind = {"central_laplace": TreeNoise, "local_laplace": LocalNoise}.get(privatizer)
    streams = [kind(rng, calibrated.noise_scale) for _ in range(3)] if kind else None
    numbers = {"bonus_scale": bonus_scale, "error_scale": error_scale, **NUMBERS}
    hyper = pieces.hyper_of(LEARNERS[name], problem, **numbers)
    state = jax.tree.map(lambda x: jnp.broadcast_to(x, (RUNS, *x.shape)), LEARNERS[name].make(SHAPE, hyper).init())
    truth = [np.zeros((RUNS, H, S, A)), np.zeros((RUNS, H, S, A)), np.zeros((RUNS, H, S, A, S))]
    noisy, k = truth, 0
    good = np.ones(RUNS, bool)
    optimum = values_of(model)
    for following in [*sorted({int(2 ** (i / 2)) for i in range(2 * log2_episodes)} | {K - 1}), None]:
        keys = jax.random.split(random.key(k), RUNS)
        release = Release(Counts(*(jnp.asarray(x, jnp.float32) for x in noisy)), error, error, jnp.int32(k))
        state, policy, values = program(name)(keys, hyper, state, release)
        values = np.asarray(values, np.float64)
        bound = values_of(model, np.asarray(policy, np.float64)) if name == "ucb_po" else optimum
        good &= np.all(values <= bound + ROUNDING, axis=(1, 2))
        if following is not None:
            gain = play(rng, model, policy, following - k)
            k, truth = following, [x + y for x, y in zip(truth, gain, strict=True)]
            noisy = [x + z(k, x.shape) for x, z in zip(truth, streams, strict=True)] if streams else truth
    return good.mean(), np.mean(values > 0.0)


@pytest.mark.parametrize(("name", "privatizer", "epsilon", "log2_episodes"), RUNS_OF)
def test_values_are_optimistic_and_say_something(name, privatizer, epsilon, log2_episodes):
    optimistic, informative = run(name, privatizer, epsilon, log2_episodes, bonus_scale=1.0)
    assert optimistic >= 1 - 3 * FAILURE_PROB
    assert informative >= INFORMATIVE


@pytest.mark.parametrize(("name", "privatizer", "epsilon", "log2_episodes"), RUNS_OF)
def test_control_without_a_bonus_they_are_not(name, privatizer, epsilon, log2_episodes):
    optimistic, _ = run(name, privatizer, epsilon, log2_episodes, bonus_scale=0.0)
    assert optimistic < 1 - 3 * FAILURE_PROB


@pytest.mark.parametrize("privatizer", ["central_laplace", "local_laplace"])
@pytest.mark.parametrize("name", CASES)
def test_control_with_errors_unknown_to_the_learner_they_are_not(name, privatizer):
    optimistic, _ = run(name, privatizer, 3.0, 16, bonus_scale=1.0, error_scale=0.0)
    assert optimistic < 1 - 3 * FAILURE_PROB


def test_every_learner_is_covered():
    assert set(EXACT) == set(LEARNERS)
    assert set(CASES) == {name for name, learner in LEARNERS.items() if learner.trust != "none"}
