"""`absorb` of m users at once has the law of m times `absorb` of one, for every privatizer of the registry.

Two arms play the same users through the real reports, `RUNS` runs each with keys of their own: one absorbs the users of
each of two epochs at once, the other one by one; a release follows each epoch. Their released counts are compared by
two-sample Kolmogorov-Smirnov tests of several counters, by the means of the same counters, and by the mean over runs of
the squared deviations, summed over all counters of a family. With fresh keys one run of this file in a thousand would
fail: a p-value may not be below `FALSE_ALARMS` over the number of all comparisons made here. Wrong noise in one arm is
found by that same rule.
"""

import functools
import itertools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from mechanism_pieces import data, parameters, scale_of
from pieces import QUICK
from scipy import stats

from jaxprivrl.numerics import random
from jaxprivrl.privatizers import PRIVATIZERS
from jaxprivrl.privatizers.base import Clock, Users, report_one
from jaxprivrl.problem import FAMILIES, Problem

RUNS, EPOCHS, USERS = 2000, 2, 5  # users of each epoch
COUNTERS = 3  # of each family whose law is compared
FALSE_ALARMS = 1e-3
KINDS = {
    "by_step": Problem(2, 2, 2, EPOCHS * USERS),
    "pooled": Problem(3, 2, 1, EPOCHS * USERS, homogeneous=True),
}
SETTINGS = [
    pytest.param(privatizer, problem.replace(families=families), id=f"{privatizer.name}-{kind}-{families}")
    for privatizer, (kind, problem), families in itertools.product(PRIVATIZERS.values(), KINDS.items(), (2, 3))
]
QUICKER = QUICK | {"xla_cpu_use_fusion_emitters": False}  # halves the time to compile
NOISY = [s for s in SETTINGS if s.values[0].private]
# For each release and family: a law and a mean for each counter, and one spread.
COMPARISONS = len(SETTINGS) * EPOCHS * len(FAMILIES) * (2 * COUNTERS + 1)


class Keys(NamedTuple):
    """All keys of a run, for each epoch: of reports [arms, users], of absorbing [1 + users], of releases [arms]."""

    reports: jax.Array
    absorb: jax.Array
    release: jax.Array


@functools.cache
def keys_of_runs():
    """Drawn once for all programs: what makes keys takes longer to compile than what uses them."""
    keys = jax.random.split(random.key(0), (RUNS, EPOCHS, 3 * USERS + 3))
    return Keys(keys[..., : 2 * USERS].reshape(RUNS, EPOCHS, 2, USERS), keys[..., 2 * USERS : -2], keys[..., -2:])


@functools.cache
def program(privatizer, shape):
    """`(keys, parameters, scales, number, users) -> (exact sums, counts)`, both for [at once, one by one].

    `scales` are those that each arm absorbs with, and those that it releases with; `number` is how many of an epoch's
    users add noise where they are absorbed at once.
    """
    runtime = privatizer.runtime(privatizer, shape)

    def one_run(keys, given, scales, number, users):
        absorbing, releasing = scales

        def report(key, counts):
            return report_one(key, privatizer.report, shape, absorbing[0] > 0, counts, jnp.int32(0))[:2]

        def at_once(key, state, reports, before):
            counts, groups = reports
            if groups is not None:
                noisy = (jnp.arange(USERS) < number).astype(jnp.int32)
                groups = jnp.sum(groups * noisy[:, None, None], 0)
            together = Users(jax.tree.map(lambda x: jnp.sum(x, 0), counts), groups, number, before)
            return runtime.absorb(key, given._replace(scale=absorbing[0]), state, together)

        def one_by_one(keys, state, reports, before):
            def body(state, now):
                key, (counts, groups), i = now
                alone = Users(counts, groups, 1, before + i)
                return runtime.absorb(key, given._replace(scale=absorbing[1]), state, alone), None

            return jax.lax.scan(body, state, (keys, reports, jnp.arange(USERS)))[0]

        def epoch(states, now):
            keys, e, counts = now
            reports = jax.vmap(jax.vmap(report), in_axes=(0, None))(keys.reports, counts)
            (first, second), (these, those) = (
                [jax.tree.map(lambda x, i=i: x[i], tree) for i in (0, 1)] for tree in (states, reports)
            )
            both = (
                at_once(keys.absorb[0], first, these, e * USERS),
                one_by_one(keys.absorb[1:], second, those, e * USERS),
            )
            clock = Clock((e + 1) * USERS, e + 1, (e + 1) * USERS)

            def release(key, scale, state):
                return runtime.release(key, given._replace(scale=scale), state, clock)

            return jax.vmap(release)(keys.release, releasing, jax.tree.map(lambda *x: jnp.stack(x), *both))

        start = jax.tree.map(lambda x: jnp.stack([x, x]), runtime.init()[0])
        states, noisy = jax.lax.scan(epoch, start, (keys, jnp.arange(EPOCHS), users))
        return states.cell, noisy

    return jax.jit(jax.vmap(one_run, in_axes=(0, None, None, None, None)), compiler_options=QUICKER)


def sample(privatizer, problem, absorbing=1.0, releasing=1.0, number=USERS):
    """(exact sums `[RUNS, arms, ...]`, released counts `[RUNS, EPOCHS, arms, ...]`).

    The first arm, at once, may have other scales than it should, or the noise of fewer users.
    """
    scale = scale_of(privatizer)
    scales = jnp.asarray([[absorbing * scale, scale], [releasing * scale, scale]], jnp.float32)
    users = jax.tree.map(lambda x: jnp.asarray(x[: EPOCHS * USERS]).reshape(EPOCHS, USERS, *x.shape[1:]), data(problem))
    run = program(privatizer, problem.shape)
    out = run(keys_of_runs(), parameters(privatizer, problem, scale), scales, jnp.int32(number), users)
    return jax.tree.map(np.asarray, out)


def p_values(noisy):
    """Of all comparisons of the released counts f32[RUNS, EPOCHS, 2, ...] of the two arms."""
    found = []
    for e, family in itertools.product(range(EPOCHS), noisy):
        x, y = (np.float64(family[:, e, arm]).reshape(RUNS, -1) for arm in (0, 1))
        mean, std = (x.mean(0) + y.mean(0)) / 2, np.concatenate([x, y]).std(0)
        still = std < 1e-5 * (1 + np.abs(mean))  # no noise: nothing but rounding, in both arms
        np.testing.assert_allclose(x.mean(0)[still], y.mean(0)[still], rtol=1e-5, atol=1e-5)
        if np.all(still):
            continue
        for c in np.flatnonzero(~still)[np.linspace(0, np.sum(~still) - 1, COUNTERS).astype(int)]:
            found.append(stats.ks_2samp(x[:, c], y[:, c], method="asymp").pvalue)
            found.append(stats.ttest_ind(x[:, c], y[:, c], equal_var=False).pvalue)
        spread = (np.sum(((v - v.mean(0))[:, ~still] / std[~still]) ** 2, 1) for v in (x, y))
        found.append(stats.ttest_ind(*spread, equal_var=False).pvalue)
    return np.array(found)


def is_told_apart(noisy):
    return min(p_values(noisy), default=1.0) < FALSE_ALARMS / COMPARISONS


@pytest.mark.parametrize(("privatizer", "problem"), SETTINGS)
def test_many_users_at_once_have_the_law_of_each_alone(privatizer, problem):
    sums, noisy = sample(privatizer, problem)
    assert all(np.all(np.isfinite(x)) for x in noisy)
    found = p_values(noisy)
    assert len(found) == (COMPARISONS // len(SETTINGS) if privatizer.private else 0)
    assert min(found, default=1.0) >= FALSE_ALARMS / COMPARISONS
    if privatizer.report.counts:
        check_sums(sums)


def check_sums(sums):
    """Where users draw nothing, exact sums are the same either way but for the rounding of costs, in every run.

    So the law of noise that is the agent's own is the same too, whatever statistics can tell.
    """
    for total in (sums.visits, sums.transitions, sums.costs - sums.cost_residue):
        np.testing.assert_allclose(total[:, 0], total[:, 1], rtol=1e-6, atol=1e-6)
        np.testing.assert_array_equal(total, np.broadcast_to(total[:1], total.shape))


@pytest.mark.parametrize(("privatizer", "problem"), [s for s in NOISY if s.values[0].law.additive])
def test_control_noise_of_a_smaller_scale_is_told_apart(privatizer, problem):
    assert is_told_apart(sample(privatizer, problem, releasing=0.85)[1])


@pytest.mark.parametrize(
    ("privatizer", "problem"), [s for s in NOISY if s.values[0].law.additive and s.values[0].strategy.per_user]
)
def test_control_noise_of_one_user_less_is_told_apart(privatizer, problem):
    assert is_told_apart(sample(privatizer, problem, number=USERS - 1)[1])


@pytest.mark.parametrize(("privatizer", "problem"), [s for s in NOISY if s.values[0].report.bits])
def test_control_bits_flipped_with_another_probability_are_told_apart(privatizer, problem):
    assert is_told_apart(sample(privatizer, problem, absorbing=0.85)[1])
    assert is_told_apart(
        sample(privatizer, problem, absorbing=0.85, releasing=0.85)[1]
    )  # unbiased, and too little noise
