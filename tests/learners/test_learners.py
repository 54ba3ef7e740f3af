"""Learners: those of other papers against the slow reference; all of them finite at every epsilon, with any counts."""

import functools
import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pieces
import pytest
import reference

from jaxprivrl import environments
from jaxprivrl.experiments import spec as specs
from jaxprivrl.experiments.spec import SweepSpec, resolve
from jaxprivrl.learners import LEARNERS, POSTPROCESSORS
from jaxprivrl.learners.postprocess import compose
from jaxprivrl.mdp import Counts
from jaxprivrl.numerics import random
from jaxprivrl.privatizers.base import Release
from jaxprivrl.problem import Problem, Shape
from jaxprivrl.published.experiment import PRIVATIZERS as PUBLISHED

EPISODES = 50
FAILURE_PROB = 0.1
TOLERANCE = 1e-5
REFERENCES = {
    "pucb": reference.PUCB,
    "ldp_obi": reference.LDP_OBI,
    "dp_ucb_vi": reference.DP_UCBVI,
    "ucb_vi_hoeffding": reference.UCBVI_CH,
    "ucb_vi_bernstein": reference.UCBVI_BF,
}
PAPERS_OWN = ("ucb_vi", "ucb_po")  # compared in test_parity
# Their state is Q, which never grows.
MONOTONE = tuple(name for name, kind in REFERENCES.items() if hasattr(kind(1, 1, 1, 1, 0.1), "Q_previous"))
# Small enough for 50 episodes to bring values below their ceiling.
BONUS_SCALE = {
    "pucb": 0.02,
    "ldp_obi": 0.003,
    "dp_ucb_vi": 1e-4,
    "ucb_vi_hoeffding": 1e-3,
    "ucb_vi_bernstein": 0.01,
}
EPSILON = {"exact": math.inf, "central_laplace": 2e3, "local_laplace": 1e3}
SIZES = {False: (4, 3, 2), True: (3, 2, 4)}  # counts by stage, and pooled


def plan_of(learner, privatizer, pooled):
    H, S, A = SIZES[pooled]
    model = environments.random_mdp(random.key(12), H, S, A, homogeneous=pooled, bernoulli=True)
    spec = SweepSpec(
        environment="random",
        learner=learner,
        privatizer=privatizer,
        epsilons=(EPSILON[privatizer],),
        seeds=2,
        episodes=EPISODES,
        grid={"bonus_scale": BONUS_SCALE[learner], "failure_prob": FAILURE_PROB},
        homogeneous=pooled,
    )
    return resolve(spec, model)


@functools.cache
def seen_by_learner(postprocess, shape):
    return pieces.jit(functools.partial(postprocess, shape))


def as_reference(release):
    """A Release as the reference takes it; float32 numbers are exact in float64."""
    names = ("visits", "costs", "transitions", "E_visits", "E_costs", "E_transitions")
    arrays = (np.asarray(x, np.float64) for x in (*release.counts, *release.error))
    return dict(zip(names, arrays, strict=True))


def decided(Q, ceiling):
    """Where float32 and float64 must agree on the best action: far from a tie, or exactly tied at the ceiling."""
    best = Q.max(-1, keepdims=True)
    gap = best - Q
    far = gap > 1e-3 * np.maximum(1.0, np.abs(best))
    at_ceiling = (gap == 0) & (best == ceiling)
    return np.all(far | at_ceiling | (np.arange(Q.shape[-1]) == Q.argmax(-1)[..., None]), -1)


def compare(learner, privatizer, pooled, scale_of_reference=1.0):
    """Plays 50 episodes; the reference gets the same releases and ties. Shares of decided and unclipped values."""
    plan = plan_of(learner, privatizer, pooled)
    H, S, A = SIZES[pooled]
    scale = float(np.float32(BONUS_SCALE[learner])) * scale_of_reference
    slow = REFERENCES[learner](H, S, A, EPISODES, FAILURE_PROB, scale)
    keys = pieces.keys_of(3, EPISODES)
    ceiling = (H - np.arange(H))[:, None] if learner == "ldp_obi" else np.full((H, 1), H)
    to_go = (H - np.arange(H))[:, None]
    before, states, sure, unclipped = None, [], 0, 0
    for k, episode in enumerate(pieces.episodes(plan, pieces.cell_of(plan), seed=3)):
        if learner in MONOTONE:
            states.append(np.asarray(episode.learner_state))
            if before is not None:
                np.testing.assert_allclose(states[-1], before, rtol=TOLERANCE, atol=TOLERANCE)
        release = seen_by_learner(plan.job.program.postprocess, plan.problem.shape)(episode.before)
        ties = np.asarray(random.uniform(keys.learner[k], (H, S)), np.float64)
        policy, before, V = slow.step(as_reference(release), ties)
        np.testing.assert_allclose(to_go - np.asarray(episode.values), V[:H], rtol=TOLERANCE, atol=TOLERANCE)
        same = decided(before, ceiling[..., None] if learner != "ldp_obi" else np.inf)
        np.testing.assert_array_equal(np.asarray(episode.policy)[same], policy[same])
        sure, unclipped = sure + same.mean() / EPISODES, unclipped + np.mean(V[:H] < ceiling) / EPISODES
    assert all(np.all(new <= old) for old, new in itertools.pairwise(states))
    return sure, unclipped


@pytest.mark.parametrize("pooled", [False, True], ids=["stages", "pooled"])
@pytest.mark.parametrize("privatizer", EPSILON)
@pytest.mark.parametrize("learner", REFERENCES)
def test_learner_equals_its_reference(learner, privatizer, pooled):
    sure, unclipped = compare(learner, privatizer, pooled)
    assert sure >= 0.8, "too many near-ties to call the policies equal"
    assert unclipped >= 0.25, "most values are at their ceiling: nothing was compared"


@pytest.mark.parametrize("learner", REFERENCES)
def test_control_a_bonus_two_percent_larger_is_caught(learner):
    with pytest.raises(AssertionError, match="Not equal to tolerance"):
        compare(learner, "central_laplace", False, scale_of_reference=1.02)


@functools.cache
def batched_steps(learner, shape):
    """`(keys, hypers, states, releases) -> {postprocess: (states, policies, values)}` over lanes."""

    def step(name, key, hyper, state, release):
        steps = compose(shape, POSTPROCESSORS[name], hyper, LEARNERS[learner].make(shape, hyper))
        state, plan, info = steps.step(key, state, release)
        return state, plan.policy, info.values

    def all_of_them(key, hyper, states, release):
        return {name: step(name, key, hyper, states[name], release) for name in POSTPROCESSORS}

    return pieces.jit(jax.vmap(all_of_them, in_axes=(None, 0, 0, 0)))


def hyper_of(learner, shape, **numbers):
    problem = Problem(shape.horizon, shape.num_states, shape.num_actions, EPISODES)
    return pieces.hyper_of(LEARNERS[learner], problem, **numbers)


def made(learner, shape, **numbers):
    return LEARNERS[learner].make(shape, hyper_of(learner, shape, **numbers))


def initial_states(learner, shape, lanes):
    state = made(learner, shape).init()
    lanes_of = jax.tree.map(lambda x: jnp.broadcast_to(x, (lanes, *x.shape)), state)
    return dict.fromkeys(POSTPROCESSORS, lanes_of)


@pytest.mark.parametrize("shape", [Shape(5, 3, 2, 5), Shape(1, 1, 1, 1)], ids=["small", "one"])
@pytest.mark.parametrize("learner", LEARNERS)
def test_finite_at_every_epsilon(learner, shape):
    """From epsilon 1e-6 to 1e6, K = 1 to 1e7, with noise inside and far outside its bounds, and any bonus scale."""
    rng = np.random.default_rng(0)
    H, S, A = shape.horizon, shape.num_states, shape.num_actions
    grid = [
        (K, scale, epsilon, excess)
        for K in (1.0, 1e7)
        for scale in (0.0, 1e-3, 1.0)
        for epsilon in (1e-6, 1.0, 1e6, math.inf)
        for excess in (0.3, 30.0)
    ]
    K, scale, epsilon, excess = np.array(grid).T
    numbers = {"num_episodes": K, "bonus_scale": scale, "learning_rate": 0.3, "failure_prob": 0.1}
    hyper = hyper_of(learner, shape, **numbers)
    hyper = {name: jnp.broadcast_to(x, len(grid)) for name, x in hyper.items()}
    std = 6.0 * H * np.sqrt(2 * K) / epsilon
    states = initial_states(learner, shape, len(grid))
    structure = jax.tree.map(lambda x: (x.shape, x.dtype), states)
    for k in range(4):
        visits = np.floor(rng.uniform(size=(len(grid), H, S, A)) ** 8 * K[:, None, None, None])
        transitions = visits[..., None] * rng.dirichlet(np.ones(S), size=visits.shape)
        counts = []
        for x in (visits, visits * rng.uniform(size=visits.shape), transitions):
            width = (std * excess).reshape(-1, *[1] * (x.ndim - 1))
            counts.append(jnp.asarray(x + width * rng.laplace(size=x.shape), jnp.float32))
        error = Counts(*[jnp.asarray(6.0 * std, jnp.float32)] * 3)
        n = jnp.full(len(grid), k, jnp.int32)
        out = batched_steps(learner, shape)(random.key(k), hyper, states, Release(Counts(*counts), error, error, n))
        for name, (state, policy, values) in out.items():
            for x in jax.tree.leaves((state, values)):
                assert np.all(np.isfinite(x)), name
            np.testing.assert_allclose(np.sum(policy, -1), 1.0, atol=1e-5)
            assert values.shape == (len(grid), H, S)
        states = {name: state for name, (state, _, _) in out.items()}
        assert jax.tree.map(lambda x: (x.shape, x.dtype), states) == structure


def random_release(rng, shape, error):
    H, S, A = shape.num_stages, shape.num_states, shape.num_actions
    transitions = rng.poisson(8.0, size=(H, S, A, S)) + rng.uniform(-error, error, size=(H, S, A, S))
    visits = transitions.sum(-1)
    counts = Counts(
        *(jnp.asarray(x, jnp.float32) for x in (visits, visits * rng.uniform(size=visits.shape), transitions))
    )
    errors = Counts(*[jnp.float32(error)] * 3)
    return Release(counts, errors, errors, jnp.int32(40))


@pytest.mark.parametrize("learner", LEARNERS)
def test_pooled_counts_serve_every_stage(learner):
    """A stage axis of length 1 means the same as its row repeated H times."""
    rng = np.random.default_rng(1)
    pooled, staged = Shape(4, 3, 2, 1), Shape(4, 3, 2, 4)
    first, second = (made(learner, shape, bonus_scale=1e-3, learning_rate=0.3) for shape in (pooled, staged))
    state = first.init(), second.init()
    for k in range(3):
        one = random_release(rng, pooled, 0.5)
        many = one._replace(counts=jax.tree.map(lambda x: jnp.repeat(x, 4, 0), one.counts))
        a, plan_a, info_a = first.step(random.key(k), state[0], one)
        b, plan_b, info_b = second.step(random.key(k), state[1], many)
        np.testing.assert_allclose(info_a.values, info_b.values, rtol=1e-6)
        np.testing.assert_allclose(plan_a.policy, plan_b.policy, rtol=1e-6)
        state = a, b


@pytest.mark.parametrize("learner", MONOTONE)
def test_values_are_those_of_the_planned_q(learner):
    shape = Shape(4, 3, 2, 4)
    steps = made(learner, shape, bonus_scale=1e-3)
    release = random_release(np.random.default_rng(2), shape, 0.5)
    q, plan, info = steps.step(random.key(0), steps.init(), release)
    to_go = 4.0 - np.arange(4.0)[:, None]
    np.testing.assert_allclose(info.values, to_go - np.max(q, -1), rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(np.sum(plan.policy * q, -1), np.max(q, -1))


def test_every_learner_of_another_paper_has_a_reference():
    assert {*REFERENCES, *PAPERS_OWN} == set(LEARNERS)


WITHOUT_A_BOUND = [name for name, learner in specs.learners().items() if not learner.metrics]


def test_every_learner_of_the_registry_says_what_its_plans_are_worth():
    assert WITHOUT_A_BOUND and not set(WITHOUT_A_BOUND) & set(LEARNERS)
    for learner in LEARNERS.values():
        assert "planned_value" in {metric.name for metric in learner.metrics}


@pytest.mark.parametrize("learner", WITHOUT_A_BOUND)
def test_a_learner_without_a_bound_says_so(learner):
    """Its values cannot be asked for: a sweep that would record them is refused."""
    spec = SweepSpec(learner=learner, privatizer=next(iter(PUBLISHED)), metrics=("planned_value",))
    with pytest.raises(ValueError, match=rf"Unknown metric of {learner} 'planned_value'\. Available: none\."):
        resolve(spec)
