"""Post-processing: the projection against a linear-programming solver, errors that hold, and composition."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pieces
import pytest
import reference
from scipy import sparse
from scipy.optimize import brentq, linprog

from jaxprivrl.learners import LEARNERS, POSTPROCESSORS, Steps
from jaxprivrl.learners.postprocess import compose, nearest_counts
from jaxprivrl.mdp import Counts
from jaxprivrl.numerics import random
from jaxprivrl.privatizers.base import Release
from jaxprivrl.problem import Problem, Shape

SIZES = (1, 2, 3, 6, 40)  # 40: beyond the sorting network


@functools.cache
def solve():
    return pieces.jit(nearest_counts)


@functools.cache
def processed(name, shape):
    return pieces.jit(functools.partial(POSTPROCESSORS[name], shape))


def random_rows(rng, S, n):
    """Rows of every kind: noisy counts, integers full of ties, exact counts, rows at the border of feasibility."""
    kind = np.arange(n) % 6
    row = rng.normal(3.0, 8.0, size=(n, S))
    ties = rng.integers(-2, 3, size=(n, S)).astype(float)
    row[kind == 1] = ties[kind == 1]
    row[kind == 2] = np.abs(ties[kind == 2])
    row[kind == 3] = row[kind == 3, :1]
    total = row.sum(-1) + rng.normal(0.0, 10.0, size=n)
    slack = rng.exponential(4.0, size=n)
    whole = kind == 1
    total[whole], slack[whole] = np.round(total[whole]), np.round(slack[whole])
    total[kind == 2], slack[kind == 2] = row[kind == 2].sum(-1), 0.0
    slack[kind == 4] = 0.0
    total[kind == 5] = -slack[kind == 5] + np.where(rng.uniform(size=n) < 0.5, 0.0, 1e-3)[kind == 5]
    return tuple(np.asarray(x, np.float32).astype(float) for x in (row, total, slack))


def package(row, total, slack):
    """`nearest_counts` on a batch of rows, laid out as [1, n, 1, S]."""
    x, sums, t = solve()(*(jnp.asarray(v[None, :, None], jnp.float32) for v in (row, total, slack)))
    return np.asarray(x[0, :, 0], float), np.asarray(sums[0, :, 0], float), np.asarray(t[0, :, 0], float)


def least_t(row, total, slack):
    """The optimal t of every row by HiGHS: one sparse program with a block for each row, all of them feasible."""
    n, S = row.shape
    one, t_of = sparse.identity(n * S), sparse.kron(sparse.identity(n), np.ones((S, 1)))
    sums = sparse.kron(sparse.identity(n), np.ones((1, S)))
    none = sparse.csr_matrix((n, n))
    A = sparse.bmat([[one, -t_of], [-one, -t_of], [sums, none], [-sums, none]], format="csr")
    b = np.concatenate([row.ravel(), -row.ravel(), total + slack, slack - total])
    result = linprog(np.concatenate([np.zeros(n * S), np.ones(n)]), A_ub=A, b_ub=b)
    assert result.status == 0, result.message
    return result.x[n * S :]


@pytest.mark.parametrize("S", SIZES)
def test_projection_solves_the_linear_program(S):
    row, total, slack = random_rows(np.random.default_rng(S), S, 1200 if S < 40 else 120)
    feasible = total + slack >= 0
    assert 0.02 < np.mean(~feasible) < 0.5
    x, sums, t = package(row, total, slack)
    tolerance = 1e-5 * (1.0 + np.abs(row).sum(-1) + np.abs(total))
    best = least_t(row[feasible], total[feasible], slack[feasible])
    np.testing.assert_array_less(np.abs(t[feasible] - best), tolerance[feasible])
    assert np.all(x >= 0)
    np.testing.assert_array_less(np.abs(sums - x.sum(-1)), tolerance)
    off = np.abs(x - row).max(-1) - t
    np.testing.assert_array_less(off[feasible], tolerance[feasible])
    np.testing.assert_array_less((np.abs(sums - total) - slack)[feasible], tolerance[feasible])
    assert np.all(np.isinf(t[~feasible])) and np.all(x[~feasible] == 0) and np.all(sums[~feasible] == 0)


def test_rows_called_infeasible_are_infeasible():
    """The solver, one row at a time, agrees on which rows have no solution."""
    row, total, slack = random_rows(np.random.default_rng(7), 3, 150)
    t = package(row, total, slack)[2]
    for i in range(len(total)):
        slow = reference.projection_program(row[i], total[i], 4.0 * slack[i])[1]
        assert (slow is None) == np.isinf(t[i])
        if slow is not None:
            assert t[i] == pytest.approx(slow, abs=1e-4)


def test_control_a_projection_that_ignores_the_sum_is_caught():
    row, total, slack = random_rows(np.random.default_rng(3), 3, 600)
    feasible = total + slack >= 0
    row, total, slack = row[feasible], total[feasible], slack[feasible]
    wrong = np.maximum(0.0, -row.min(-1))
    assert np.mean(np.abs(wrong - least_t(row, total, slack)) > 1e-3) > 0.3


def true_and_noisy(rng, H, S, A, error, shape_of_noise):
    """Counts of a data set, and a release whose noise stays within the errors: anywhere, or at their corners."""
    transitions = rng.poisson(rng.exponential(6.0, size=(H, S, A, 1)), size=(H, S, A, S)).astype(float)
    transitions *= rng.uniform(size=transitions.shape) < 0.6
    visits = transitions.sum(-1)
    truth = Counts(visits, visits * rng.choice([0.0, 1.0, 0.3], size=visits.shape), transitions)
    counts = []
    for x, e in zip(truth, error, strict=True):
        u = rng.uniform(-1, 1, size=x.shape)
        counts.append(x + e * (np.sign(u) if shape_of_noise == "corners" else u))
    to_float = functools.partial(jax.tree.map, lambda x: jnp.asarray(x, jnp.float32))
    return truth, Release(to_float(Counts(*counts)), to_float(error), to_float(error), jnp.int32(9))


@pytest.mark.parametrize("noise_kind", ["corners", "uniform"])
@pytest.mark.parametrize("name", POSTPROCESSORS)
def test_errors_hold_after_post_processing(name, noise_kind):
    """Whenever the errors of a release hold, so do those of the release made of it; and the result is consistent."""
    rng = np.random.default_rng(0)
    grown = 0.0
    for S in (1, 2, 5):
        shape = Shape(3, S, 2, 3)
        for _ in range(60):
            error = Counts(*rng.choice([0.0, 0.5, 3.0, 20.0], size=3))
            truth, release = true_and_noisy(rng, 3, S, 2, error, noise_kind)
            out = processed(name, shape)(release)
            for family in Counts._fields:
                bound = float(getattr(out.error, family)) * (1 + 1e-5) + 1e-3
                off = np.abs(np.asarray(getattr(out.counts, family), float) - getattr(truth, family))
                assert off.max() <= bound, family
                grown = max(grown, off.max() / (getattr(error, family) + 1e-3))
            if name == "none":
                continue
            visits, costs, transitions = (np.asarray(x, float) for x in out.counts)
            assert np.all(transitions >= 0) and np.all(costs >= 0) and np.all(costs <= visits * (1 + 1e-6))
            np.testing.assert_allclose(transitions.sum(-1), visits, rtol=1e-5, atol=1e-3)
            if name == "project":
                assert np.all(visits >= truth.visits - 1e-3)
    assert (grown > 1.1) == (name != "none"), "errors of the noisy counts would have held: nothing was tested"


def test_project_has_the_errors_of_its_paper():
    """E = 4 e bounds every family, so the learner's E, the largest error, is the paper's."""
    _, release = true_and_noisy(np.random.default_rng(1), 2, 3, 2, Counts(1.0, 2.0, 1.5), "uniform")
    out = processed("project", Shape(2, 3, 2, 2))(release)
    assert float(max(out.error)) == pytest.approx(8.0)
    assert float(out.error.costs) == 2.0
    x, sums, _ = solve()(release.counts.transitions, release.counts.visits, jnp.full((2, 3, 2), 2.0))
    np.testing.assert_allclose(out.counts.transitions, x + 8.0 / 6.0, rtol=1e-6)
    np.testing.assert_allclose(out.counts.visits, sums + 4.0, rtol=1e-6)


def test_clip_is_the_least_squares_projection():
    rng = np.random.default_rng(2)
    _, release = true_and_noisy(rng, 4, 5, 2, Counts(9.0, 9.0, 9.0), "uniform")
    out = processed("clip", Shape(4, 5, 2, 4))(release)
    noisy = np.asarray(release.counts.transitions, float).reshape(-1, 5)
    total = np.maximum(np.asarray(release.counts.visits, float), 0.0).ravel()
    assert np.any(noisy < 0) and np.any(total == 0)
    for row, v, fast in zip(noisy, total, np.asarray(out.counts.transitions).reshape(-1, 5), strict=True):
        tau = brentq(lambda t, row=row, v=v: np.maximum(row - t, 0).sum() - v, row.min() - v - 1, row.max())
        np.testing.assert_allclose(fast, np.maximum(row - tau, 0), atol=1e-4)


@pytest.mark.parametrize("name", POSTPROCESSORS)
def test_exact_counts_stay_as_they_are(name):
    truth, release = true_and_noisy(np.random.default_rng(3), 3, 4, 2, Counts(0.0, 0.0, 0.0), "uniform")
    out = processed(name, Shape(3, 4, 2, 3))(release)
    np.testing.assert_array_equal(out.counts.visits, truth.visits)
    np.testing.assert_array_equal(out.counts.transitions, truth.transitions)
    np.testing.assert_allclose(out.counts.costs, truth.costs, rtol=1e-6)
    assert all(float(e) == 0 for e in out.error)


@pytest.mark.parametrize("stages", [1, 3])
@pytest.mark.parametrize("name", POSTPROCESSORS)
def test_a_lane_of_a_batch_equals_the_run_alone(name, stages):
    shape = Shape(3, 4, 2, stages)
    rng = np.random.default_rng(4)
    releases = [true_and_noisy(rng, stages, 4, 2, Counts(e, e, e), "uniform")[1] for e in (0.0, 2.0, 1e6)]
    batch = jax.tree.map(lambda *x: jnp.stack(x, -1), *releases)
    together = jax.vmap(processed(name, shape), in_axes=-1, out_axes=-1)(batch)
    for i, release in enumerate(releases):
        alone = processed(name, shape)(release)
        assert jax.tree.structure(alone) == jax.tree.structure(release)
        for x, y in zip(jax.tree.leaves(together), jax.tree.leaves(alone), strict=True):
            assert x[..., i].dtype == y.dtype and np.all(np.isfinite(y))
            np.testing.assert_allclose(x[..., i], y, rtol=1e-5, atol=1e-5)


def test_compose_feeds_step_and_values():
    shape = Shape(3, 4, 2, 3)
    hyper = pieces.hyper_of(LEARNERS["ucb_vi"], Problem(3, 4, 2, 50), bonus_scale=0.01)
    learner = LEARNERS["ucb_vi"].make(shape, hyper)
    both = compose(shape, POSTPROCESSORS["clip"], hyper, learner)
    _, release = true_and_noisy(np.random.default_rng(5), 3, 4, 2, Counts(2.0, 2.0, 2.0), "uniform")
    clipped = processed("clip", shape)(release)
    key = random.key(0)
    (_, plan, info), (_, expected, values) = both.step(key, (), release), learner.step(key, (), clipped)
    np.testing.assert_allclose(info.values, values.values, rtol=1e-5)
    np.testing.assert_array_equal(plan.policy, expected.policy)


@pytest.mark.parametrize("name", POSTPROCESSORS)
def test_errors_are_scaled_before_they_are_processed(name):
    """error_scale is what the learner makes of the bounds E: it processes scaled ones; the noise is as it was."""
    shape = Shape(3, 4, 2, 3)
    _, release = true_and_noisy(np.random.default_rng(5), 3, 4, 2, Counts(2.0, 1.0, 3.0), "uniform")
    watch = Steps(init=lambda: (), step=lambda key, state, release: (release, None, None))
    learner = compose(shape, POSTPROCESSORS[name], {"error_scale": jnp.float32(0.25)}, watch)
    seen = learner.step(random.key(0), learner.init(), release)[0]
    scaled = release._replace(error=jax.tree.map(lambda e: 0.25 * e, release.error))
    for x, y in zip(jax.tree.leaves(seen), jax.tree.leaves(processed(name, shape)(scaled)), strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-5)
    assert float(seen.error.transitions) < 0.5 * float(processed(name, shape)(release).error.transitions)
    assert seen.std == release.std


def test_defaults_are_what_the_papers_say():
    assert {n: x.postprocess for n, x in LEARNERS.items() if x.postprocess != "none"} == {"dp_ucb_vi": "project"}
    assert {x.postprocess for x in LEARNERS.values()} <= set(POSTPROCESSORS)
