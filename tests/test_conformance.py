"""Conformance: every registered learner and privatizer keeps its protocol, alone and in pairs.

A step leaves structure, shapes and types of its state as they were, is a pure function of its arguments, gives the
same with and without jit, and in a lane of a vmap what it gives alone. The first release is exact zeros.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pieces
import pytest

from jaxprivrl import noise
from jaxprivrl import sweep as engine
from jaxprivrl.learners import LEARNERS
from jaxprivrl.postprocess import DEFAULTS
from jaxprivrl.privatizers import PRIVATIZERS, Release, streams

EPISODES = 3
LANES = 3
MADE_IN_BLOCKS = ("central_blt", "central_toeplitz", "central_batched")  # by the key of the step that starts a block


@functools.cache
def plan_of(learner, privatizer):
    model = pieces.random_mdp(1, (2, 3, 2), bernoulli=True)
    spec = engine.SweepSpec(
        environment="random",
        learner=learner,
        privatizer=privatizer,
        epsilons=(5.0, 50.0, 500.0),
        seeds=2,
        episodes=EPISODES,
        bonus_scales=(0.02,),
        postprocess=DEFAULTS.get(learner, "none"),
    )
    return engine.resolve(spec, model)


@functools.cache
def played(learner, privatizer, cell=0, seed=0):
    """The episodes of a short run."""
    plan = plan_of(learner, privatizer)
    return tuple(pieces.episodes(plan, pieces.cell_of(plan, cell), seed))


def check_like(x, y):
    """Same structure, shapes and types."""
    assert jax.tree.structure(x) == jax.tree.structure(y)
    for a, b in zip(jax.tree.leaves(x), jax.tree.leaves(y), strict=True):
        assert a.shape == b.shape and a.dtype == b.dtype


def check_equal(x, y, tolerance=0.0):
    """Same structure and, to a tolerance, the same numbers."""
    assert jax.tree.structure(x) == jax.tree.structure(y)
    for a, b in zip(jax.tree.leaves(x), jax.tree.leaves(y), strict=True):
        np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance)


def stack(trees):
    return jax.tree.map(lambda *x: jnp.stack(x), *trees)


def lane(tree, i):
    return jax.tree.map(lambda x: x[i], tree)


def privatizer_setting(name):
    """(step, key, cell, state, counts) in the middle of a run, and the cells of the other epsilons."""
    plan = plan_of("ucb_vi", name)
    step = pieces.privatizer_step(engine.Names("ucb_vi", name, "none"), plan.shape)
    cells = [pieces.cell_of(plan, i) for i in range(len(plan.grid))]
    state = played("ucb_vi", name)[-1].privatizer_state
    return step, noise.key(9), cells, state, pieces.one_episode(plan)


def learner_setting(name):
    """(step, key, cell, state, release) in the middle of a run, and the cells of the other epsilons."""
    plan = plan_of(name, "central_laplace")
    step = pieces.learner_step(plan.names._replace(privatizer="exact"), plan.shape)
    cells = [pieces.cell_of(plan, i) for i in range(len(plan.grid))]
    last = played(name, "central_laplace")[-1]
    return step, noise.key(9), cells, last.learner_state, last.before


@pytest.mark.parametrize("name", PRIVATIZERS)
class TestPrivatizers:
    def test_first_release_is_exact_zeros(self, name):
        plan = plan_of("ucb_vi", name)
        state, _, release = pieces.initial(plan, pieces.cell_of(plan))
        assert isinstance(release, Release) and int(release.num_episodes) == int(state.num_episodes) == 0
        assert not any(np.any(x) for x in (*release.counts, *release.std, *jax.tree.leaves(state.totals)))
        stages, S, A = plan.shape.num_stages, plan.shape.num_states, plan.shape.num_actions
        assert [x.shape for x in release.counts] == [(stages, S, A), (stages, S, A), (stages, S, A, S)]
        assert all(x.shape == () and x.dtype == jnp.float32 for x in (*release.std, *release.error))

    def test_step_keeps_structure_and_counts_users(self, name):
        plan = plan_of("ucb_vi", name)
        state, _, release = pieces.initial(plan, pieces.cell_of(plan))
        for k, episode in enumerate(played("ucb_vi", name)):
            check_like(state, episode.privatizer_state)
            check_like(release, episode.after)
            assert int(episode.after.num_episodes) == int(episode.privatizer_state.num_episodes) == k + 1

    def test_step_is_pure(self, name):
        step, key, cells, state, counts = privatizer_setting(name)
        check_equal(step(key, cells[0], state, counts), step(key, cells[0], state, counts))

        def released(key):
            """Counts after one step, or after as many as are sure to start a block of noise."""
            now = state
            for i in range(streams.BLOCK if name in MADE_IN_BLOCKS else 1):
                now, release = step(jax.random.fold_in(key, i), cells[0], now, counts)
            return release.counts

        one, other = released(key), released(noise.key(10))
        check_equal(one, released(key))
        same = all(np.array_equal(x, y) for x, y in zip(one, other, strict=True))
        assert same == (name == "exact"), "noise must follow the key, and nothing else may"

    def test_jit_equals_no_jit(self, name):
        step, key, cells, state, counts = privatizer_setting(name)
        with jax.disable_jit():
            plain = step(key, cells[0], state, counts)
        check_equal(step(key, cells[0], state, counts), plain, 1e-4)

    def test_lanes_equal_single_runs(self, name):
        """Lanes with another key and scale each."""
        step, _, cells, state, counts = privatizer_setting(name)
        scales = jnp.array([0.5, 1.0, 2.0])
        keys = jax.vmap(noise.key)(jnp.arange(LANES))

        def of_lane(key, scale, cell, state, counts):
            return step.__wrapped__(key, cell._replace(noise=cell.noise._replace(scale=scale)), state, counts)

        batch = pieces.jit(jax.vmap(of_lane, (0, 0, None, None, None)))
        out = batch(keys, scales, cells[0], state, counts)
        for i in range(LANES):
            alone = cells[0]._replace(noise=cells[0].noise._replace(scale=scales[i]))
            check_equal(lane(out, i), step(keys[i], alone, state, counts), 1e-4)


@pytest.mark.parametrize("name", LEARNERS)
class TestLearners:
    def test_step_keeps_structure_and_gives_a_policy(self, name):
        plan = plan_of(name, "central_laplace")
        state = pieces.initial(plan, pieces.cell_of(plan)).learner
        for episode in played(name, "central_laplace"):
            check_like(state, episode.learner_state)
            assert episode.policy.shape == plan.dynamics.costs.shape and episode.policy.dtype == jnp.float32
            assert np.all(np.asarray(episode.policy) >= 0)
            np.testing.assert_allclose(np.sum(episode.policy, -1), 1.0, rtol=1e-6)
            assert episode.values.shape == plan.dynamics.costs.shape[:2]

    def test_step_is_pure(self, name):
        step, key, cells, state, release = learner_setting(name)
        check_equal(step(key, cells[0], state, release), step(key, cells[0], state, release))

    def test_jit_equals_no_jit(self, name):
        step, key, cells, state, release = learner_setting(name)
        with jax.disable_jit():
            plain = step(key, cells[0], state, release)
        check_equal(step(key, cells[0], state, release), plain, 1e-4)

    def test_lanes_equal_single_runs(self, name):
        """Lanes with another key, release and state each."""
        step, _, cells, _, _ = learner_setting(name)
        runs = [played(name, "central_laplace", cell=i, seed=i)[-1] for i in range(LANES)]
        keys = jax.vmap(noise.key)(jnp.arange(LANES))
        hyper = stack([c.hyper for c in cells])
        states, releases = stack([r.learner_state for r in runs]), stack([r.before for r in runs])

        def of_lane(key, hyper, state, release, cell):
            return step.__wrapped__(key, cell._replace(hyper=hyper), state, release)

        batch = pieces.jit(jax.vmap(of_lane, (0, 0, 0, 0, None)))
        out = batch(keys, hyper, states, releases, cells[0])
        for i, run in enumerate(runs):
            check_equal(lane(out, i), step(keys[i], cells[i], run.learner_state, run.before), 1e-4)


@pytest.mark.parametrize("privatizer", PRIVATIZERS)
@pytest.mark.parametrize("learner", LEARNERS)
def test_every_pair_plays(learner, privatizer):
    plan = plan_of(learner, privatizer)
    first, again = played(learner, privatizer), tuple(pieces.episodes(plan, pieces.cell_of(plan)))
    check_equal(first, again)
    before = pieces.initial(plan, pieces.cell_of(plan))
    for episode in first:
        check_like(before, before._replace(privatizer=episode.privatizer_state, learner=episode.learner_state))
        check_like(before.release, episode.after)
        assert 0 <= float(episode.regret) <= 2
    assert any(np.any(x) for x in pieces.totals_of(first[-1].privatizer_state))
