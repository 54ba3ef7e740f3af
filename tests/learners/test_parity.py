"""Parity: the slow NumPy reference, fed the engine's own random numbers, plays the same 50 episodes.

True counts must agree exactly, noisy counts, Q, V and policy-optimization policies to 1e-5, greedy policies exactly
away from ties. Two wrong references are the controls: they must be caught.
"""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pieces
import pytest
import reference

from jaxprivrl.engine import episodes, run
from jaxprivrl.experiments.spec import SweepSpec, resolve
from jaxprivrl.learners import LEARNERS, ucb
from jaxprivrl.mdp import zero_counts
from jaxprivrl.numerics import random
from jaxprivrl.privatizers import streams

EPISODES = 50
TOLERANCE = 1e-5
NUMBERS = {"bonus_scale": 0.01, "learning_rate": 0.3, "failure_prob": 0.1}
BONUS_SCALE, RATE, FAILURE_PROB = NUMBERS.values()
# Sizes that differ from each other; counts by step on the first, pooled on the second.
SIZES = {False: (4, 3, 2), True: (2, 3, 4)}
# Noise of a size that counts of 50 episodes can be told from.
EPSILON = {"exact": math.inf, "central_laplace": 2e3, "local_laplace": 1e3}
CASES = [
    (learner, privatizer, families, pooled)
    for learner in ("ucb_vi", "ucb_po")
    for privatizer in EPSILON
    for families in (3, 2)
    for pooled in (False, True)
]


def plan_of(learner, privatizer, families, pooled, bernoulli):
    H, S, A = SIZES[pooled]
    model = pieces.random_mdp(12, (H, S, A), homogeneous=pooled, bernoulli=bernoulli)
    spec = SweepSpec(
        environment="random",
        learner=learner,
        privatizer=privatizer,
        epsilons=(EPSILON[privatizer],),
        seeds=2,
        episodes=EPISODES,
        grid={p.name: NUMBERS[p.name] for p in LEARNERS[learner].parameters if p.name in NUMBERS},
        families=families,
        homogeneous=pooled,
    )
    return resolve(spec, model), model


@functools.cache
def _draws(shape):
    """All unit Laplace draws, play uniforms and tie uniforms of a run, from the keys of its episodes."""
    H, S = shape.horizon, shape.num_states
    like = jax.eval_shape(functools.partial(zero_counts, shape))[-shape.families :]

    def one(keys):
        unit = streams.draw_like(random.laplace, keys.noise, like)
        return unit, random.uniform(keys.environment, (H + 1, 3)), random.uniform(keys.learner, (H, S))

    return pieces.jit(jax.vmap(one))


@functools.cache
def package_q(learner, shape):
    """The package's Q_h from its release and its V_{h+1}, f32[H, S, A]."""

    def q(cell, release, values):
        H = shape.horizon
        SAT = shape.num_states * shape.num_actions * H * EPISODES
        Lc = math.sqrt(2 * math.log(4 * SAT / FAILURE_PROB))
        Lp = math.sqrt(4 * shape.num_states * math.log(6 * SAT / FAILURE_PROB))
        log_term = jnp.float32(Lc + H * Lc if learner == "ucb_vi" else Lc + H * Lp)
        estimates = ucb.paper_estimates(shape, release, cell.hyper["bonus_scale"], log_term)
        following = jnp.concatenate([values[1:], jnp.zeros_like(values[:1])])
        return jnp.stack([ucb.optimistic_q(shape, estimates, following[h], jnp.int32(h)) for h in range(H)])

    return pieces.jit(q)


class WithoutTwiceE(reference.UCBVI):
    """A wrong reference: the bonus lacks the terms 2 E of the visits."""

    def beta_cost(self, release, h, s, a):
        E_visits, _, _ = self.errors(release)
        return super().beta_cost(release, h, s, a) - 2.0 * E_visits / self.denominator(release, h, s, a)


def reference_learner(learner, H, S, A):
    if learner == "ucb_vi":
        return reference.UCBVI(H, S, A, EPISODES, FAILURE_PROB, BONUS_SCALE)
    return reference.UCBPO(H, S, A, EPISODES, FAILURE_PROB, BONUS_SCALE, RATE)


def reference_privatizer(privatizer, plan, S, A):
    stages, families = plan.problem.shape.num_stages, plan.problem.families
    if privatizer == "exact":
        return reference.Exact(stages, S, A, families)
    kind = {"central_laplace": reference.TreeLaplace, "local_laplace": reference.LocalLaplace}[privatizer]
    return kind(stages, S, A, float(pieces.cell_of(plan).scale), families)


def compare(learner, privatizer, families, pooled, bernoulli, *, wrong_learner=None, wrong_counts=None):
    """Plays package and reference side by side; returns what could not be compared and how much was in earnest."""
    plan, model = plan_of(learner, privatizer, families, pooled, bernoulli)
    cell, shape = pieces.cell_of(plan), plan.problem.shape
    H, S, A = SIZES[pooled]
    slow = wrong_learner or reference_learner(learner, H, S, A)
    mechanism = reference_privatizer(privatizer, plan, S, A)
    P, c, rho = (np.asarray(x, np.float64) for x in (model.transitions, model.costs, model.initial))
    unit, play, ties = jax.tree.map(lambda x: np.asarray(x, np.float64), _draws(shape)(pieces.keys_of(5, EPISODES)))
    table = [float(e[0]) for e in plan.calibrated[0].errors]
    counts, truth = mechanism.release(), [np.zeros(x.shape) for x in mechanism.release()]
    skipped = inside = 0
    for k, episode in enumerate(pieces.episodes(plan, cell, seed=5)):
        release = episode.before
        np.testing.assert_allclose(np.array(release.error), table, rtol=1e-6)
        for fast_counts, slow_counts in zip(release.counts, counts, strict=True):
            np.testing.assert_allclose(fast_counts, slow_counts, rtol=TOLERANCE, atol=TOLERANCE)
        seen = dict(zip(("visits", "costs", "transitions"), counts, strict=True))
        seen |= dict(zip(("E_visits", "E_costs", "E_transitions"), table, strict=True))
        policy, Q, V = slow.step(seen, ties[k])
        np.testing.assert_allclose(episode.values, V[:-1], atol=TOLERANCE)
        np.testing.assert_allclose(package_q(learner, shape)(cell, release, episode.values), Q, atol=TOLERANCE)
        inside += np.sum((Q > 0) & (Q < (H - np.arange(H))[:, None, None]))
        fast_policy = np.asarray(episode.policy, np.float64)
        if learner == "ucb_vi":
            best = np.sort(Q, -1)[..., :2]
            near = (best[..., 1] - best[..., 0] < TOLERANCE) & (best[..., 0] > 0)
            skipped += near.sum()
            np.testing.assert_array_equal(fast_policy[~near], policy[~near])
            policy = np.where(near[..., None], fast_policy, policy)
        else:
            np.testing.assert_allclose(fast_policy, policy, atol=TOLERANCE)
        assert float(episode.regret) == pytest.approx(reference.regret(P, c, rho, policy), abs=TOLERANCE)
        path = reference.rollout(P, c, rho, policy, *play[k, :H].T, play[k, H, 0], bernoulli)
        np.testing.assert_array_equal(episode.trajectory.states, path[0][:-1])
        np.testing.assert_array_equal(episode.trajectory.next_states, path[0][1:])
        np.testing.assert_array_equal(episode.trajectory.actions, path[1])
        np.testing.assert_allclose(episode.trajectory.costs, path[2], rtol=1e-7)
        increment = reference.counts_of_episode(path, H, S, A, pooled)
        if wrong_counts:
            increment = wrong_counts(path, H, S, A, pooled)
        truth = [x + y for x, y in zip(truth, increment, strict=True)]
        totals = pieces.totals_of(episode.state)
        np.testing.assert_array_equal(totals.visits, truth[0])
        np.testing.assert_array_equal(totals.transitions, truth[2])
        if bernoulli:
            np.testing.assert_array_equal(totals.costs, truth[1])
        np.testing.assert_allclose(totals.costs, truth[1], rtol=1e-6)
        now = [x[k] for x in unit]
        counts = mechanism.update(increment, now if families == 3 else [None, *now])
    return skipped / (EPISODES * H * S), inside / (EPISODES * H * S * A)


@pytest.mark.parametrize("bernoulli", [False, True], ids=["means", "bernoulli"])
@pytest.mark.parametrize(("learner", "privatizer", "families", "pooled"), CASES)
def test_package_equals_reference(learner, privatizer, families, pooled, bernoulli):
    skipped, inside = compare(learner, privatizer, families, pooled, bernoulli)
    assert skipped <= 0.02, "too many near-ties to call the policies equal"
    assert inside >= 0.25, "most values are at a clip: nothing was compared"


def test_control_bonus_without_twice_the_error_is_caught():
    H, S, A = SIZES[False]
    wrong = WithoutTwiceE(H, S, A, EPISODES, FAILURE_PROB, BONUS_SCALE)
    with pytest.raises(AssertionError, match="Not equal to tolerance"):
        compare("ucb_vi", "central_laplace", 3, False, False, wrong_learner=wrong)


def test_control_last_transitions_dropped_are_caught():
    def without_last(path, H, S, A, pooled):
        visits, costs, transitions = reference.counts_of_episode(path, H, S, A, pooled)
        transitions[0 if pooled else H - 1, path[0][H - 1], path[1][H - 1], path[0][H]] -= 1
        return visits, costs, transitions

    with pytest.raises(AssertionError, match="Arrays are not equal"):
        compare("ucb_vi", "exact", 3, False, True, wrong_counts=without_last)


def test_control_another_seed_is_caught(monkeypatch):
    keys_of = pieces.keys_of
    calls = iter(range(2))
    monkeypatch.setattr(pieces, "keys_of", lambda seed, n: keys_of(seed + next(calls), n))
    with pytest.raises(AssertionError):
        compare("ucb_vi", "central_laplace", 3, False, False)


def test_one_call_of_step_equals_its_pieces():
    """`episodes.step` is the composition that the other tests play by hand."""
    plan, _ = plan_of("ucb_vi", "central_laplace", 3, False, True)
    cell, keys = pieces.cell_of(plan), pieces.keys_of(5, EPISODES)

    @pieces.jit
    def step(now, cell, shared, state):
        parts = run.parts(plan.job.program, cell, shared)
        state, (regret,) = episodes.step(now, state, parts)
        return state, regret, parts.agent.runtime.view(parts.agent.parameters, state.released, state.clock)

    state = pieces.initial(plan, cell)[0]
    for k, episode in zip(range(5), pieces.episodes(plan, cell, seed=5), strict=False):
        state, regret, release = step(episodes.Streams(*(x[k] for x in keys)), cell, plan.job.shared, state)
        assert float(regret) == pytest.approx(float(episode.regret), abs=1e-6)
        totals, expected = pieces.totals_of(state), pieces.totals_of(episode.state)
        np.testing.assert_array_equal(totals.transitions, expected.transitions)
        for x, y in zip(jax.tree.leaves(release), jax.tree.leaves(episode.after), strict=True):
            np.testing.assert_allclose(x, y, rtol=1e-6, atol=1e-6)
