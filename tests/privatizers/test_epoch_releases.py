"""Releases at the end of epochs: when they are made, that they stand until the next one, and what they save."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from mechanism_pieces import (
    EPISODES,
    IN_EPOCHS,
    PROBLEMS,
    Case,
    alone,
    held,
    initial,
    leaves_of,
    nobody,
    parameters,
    released,
    scale_of,
    times_of,
)

from jaxprivrl.numerics import random
from jaxprivrl.privacy import accounting, errors
from jaxprivrl.privatizers import PRIVATIZERS
from jaxprivrl.problem import Problem
from jaxprivrl.schedules import schedule


def last_close(n):
    """n with all but its three leading bits cleared: the last of four releases to a doubling."""
    m = max(n.bit_length() - 3, 0)
    return n >> m << m


def test_octaves_are_the_numbers_of_three_leading_bits():
    octaves = schedule("octaves")
    for K in (1, 2, 3, 7, 8, 9, 21, 64, 130, 1000, 20_000, 2**20 + 1, 2**31 - 1):
        times = octaves.times(K)
        closes = times[[last_close(int(t)) == t for t in times]]
        np.testing.assert_array_equal(times, np.unique(np.append(closes, K)))  # and the last user's, whatever it is
        m = max(K.bit_length() - 3, 0)
        assert len(closes) == 4 * m + (K >> m)
    short = [1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 20, 24, 28, 32, 40, 48, 56, 64, 80, 96, 112, 128]
    np.testing.assert_array_equal(octaves.times(130), [*short, 130])
    assert octaves.num_releases(20_000) == 52 + 1
    n = np.arange(1, 3001)
    times = octaves.times(3000)
    np.testing.assert_array_equal(
        times[np.searchsorted(times, n[:-1], side="right") - 1], [last_close(int(k)) for k in n[:-1]]
    )


@pytest.mark.parametrize("releases", ["every", "octaves", "equal:8", "geometric:first=3,growth=1.3", "equal:1"])
def test_clock_of_device_and_schedule_agree(releases):
    """Users, releases and users in the last of them, after each user, by the code that plays one user at a time."""
    privatizer = PRIVATIZERS["exact"]
    problem = PROBLEMS["pooled"].replace(schedule=schedule(releases))
    step = alone(privatizer, problem.shape).__wrapped__
    given, times, empty = parameters(privatizer, problem, 0.0), times_of(problem), nobody(problem)

    def body(state, k):
        state, release = step(given, times, random.key(k), state, empty)
        return state, (state.clock, release.num_episodes)

    clock, told = jax.jit(lambda: jax.lax.scan(body, initial(privatizer, problem.shape), jnp.arange(EPISODES))[1])()
    users, made = held(problem)
    np.testing.assert_array_equal(clock.users, np.arange(1, EPISODES + 1))
    np.testing.assert_array_equal(clock.releases, made)
    np.testing.assert_array_equal(clock.released, users)
    np.testing.assert_array_equal(told, users)
    assert users[-1] == EPISODES and made[-1] == problem.num_releases  # nobody is left out


@pytest.mark.parametrize("case", IN_EPOCHS, ids=str)
def test_a_release_stands_until_the_next_epoch_ends(case):
    problem = case.problem("pooled")
    release, users = released(case.privatizer, problem, scale_of(case.privatizer)), held(problem)[0]
    for family in release.counts:
        same = [np.array_equal(a, b) for a, b in itertools.pairwise(family)]
        np.testing.assert_array_equal(same, users[1:] == users[:-1])
    np.testing.assert_array_equal(release.num_episodes, users)
    for std in release.std:
        np.testing.assert_array_equal(std > 0, leaves_of(case.privatizer, problem) > 0)


@pytest.mark.parametrize("case", [c for c in IN_EPOCHS if c.privatizer.strategy.per_user], ids=str)
def test_noise_of_users_is_that_of_a_release_after_each(case):
    """What users add does not know the schedule: at the end of an epoch the sums are those of `every`."""
    privatizer, problem = case.privatizer, case.problem("pooled")
    scale, ends = scale_of(privatizer), problem.schedule.times(EPISODES) - 1
    rare, often = (released(privatizer, p, scale).counts for p in (problem, Case(privatizer).problem("pooled")))
    for a, b in zip(rare, often, strict=True):
        np.testing.assert_allclose(a[ends], b[ends], rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("kind", PROBLEMS)
def test_epochs_carry_about_half_the_noise(kind):
    privatizer, stds = PRIVATIZERS["central_blt"], []
    for releases in ("octaves", "every"):
        problem = PROBLEMS[kind].replace(num_episodes=20_000, schedule=schedule(releases))
        js = np.arange(1, problem.num_releases + 1)
        unit = errors.standard_deviation(privatizer, problem, 1.0, js).transitions.max()
        stds.append(accounting.noise_scale(privatizer, problem, 1.0, dp_delta=1e-5) * unit)
    assert 0.5 < stds[0] / stds[1] < 0.6


def test_fewer_releases_never_need_more_noise():
    for case in IN_EPOCHS:
        scales = []
        for releases in ("every", "equal:64", "equal:8", "equal:1"):
            problem = Problem(3, 2, 2, 640, schedule=schedule(releases))
            scales.append(accounting.calibrate(case.privatizer, problem, 1.0).noise_scale)
        assert all(b <= a * (1 + 1e-9) for a, b in itertools.pairwise(scales))
