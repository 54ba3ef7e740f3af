"""Release schedules: their times by hand and by brute force, what is refused, and what of them reaches a mechanism."""

import itertools
import math
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from problems import RIVER

from jaxprivrl import schedules
from jaxprivrl.parameters import Parameter
from jaxprivrl.privacy.accounting import noise_scale
from jaxprivrl.privatizers import PRIVATIZERS
from jaxprivrl.problem import Problem
from jaxprivrl.schedules import EVERY, SCHEDULES, Schedule, ScheduleKind, schedule

SIZES = [1, 2, 3, 7, 8, 9, 31, 100, 257, 1_000]


def times(text, num_episodes):
    return schedule(text).times(num_episodes).tolist()


# What every schedule is


@pytest.mark.parametrize("num_episodes", [8, 9, 100, 12_345])
@pytest.mark.parametrize("name", SCHEDULES)
def test_times_increase_and_end_with_the_last_user(name, num_episodes):
    found = schedule(name)
    ends = found.times(num_episodes)
    assert ends.dtype == np.int64 and ends[0] >= 1 and ends[-1] == num_episodes and np.all(np.diff(ends) > 0)
    assert found.num_releases(num_episodes) == len(ends)
    epochs = found.epochs(num_episodes)
    assert epochs.sum() == num_episodes and np.array_equal(np.cumsum(epochs), ends)
    assert found.smallest_epoch(num_episodes) == epochs.min() >= 1
    found.check(num_episodes)


@pytest.mark.parametrize("name", SCHEDULES)
def test_no_report_is_thrown_away(name):
    """Each user is in one epoch, whatever the number of users."""
    for num_episodes in range(8, 200):
        ends = times(name, num_episodes)
        users = [u for start, end in itertools.pairwise([0, *ends]) for u in range(start + 1, end + 1)]
        assert users == list(range(1, num_episodes + 1))


@pytest.mark.parametrize("num_episodes", SIZES)
def test_every_user_is_an_epoch(num_episodes):
    assert times("every", num_episodes) == list(range(1, num_episodes + 1))
    assert EVERY.every and EVERY == schedule("every") and EVERY.smallest_epoch(num_episodes) == 1
    assert EVERY.num_releases(10**12) == 10**12  # nothing is listed


def test_every_is_the_default_and_the_only_one_of_its_kind():
    assert Problem(2, 2, 2, 5).schedule == EVERY
    assert [name for name in SCHEDULES if schedule(name).every] == ["every"]


# Kinds


@pytest.mark.parametrize(
    "text, num_episodes, expected",
    [
        ("equal:1", 10, [10]),
        ("equal:5", 10, [2, 4, 6, 8, 10]),
        ("equal:count=4", 10, [2, 5, 7, 10]),
        ("equal:3", 20_000, [6_666, 13_333, 20_000]),
        ("equal:7", 7, [1, 2, 3, 4, 5, 6, 7]),
        ("equal:8", 10**9, [125_000_000 * i for i in range(1, 9)]),
    ],
)
def test_equal_by_hand(text, num_episodes, expected):
    assert times(text, num_episodes) == expected


@pytest.mark.parametrize("num_episodes", SIZES)
def test_equal_epochs_differ_by_one_user_at_most(num_episodes):
    for count in {1, 2, 3, 7, num_episodes // 2, num_episodes} & set(range(1, num_episodes + 1)):
        found = schedule(f"equal:{count}")
        epochs = found.epochs(num_episodes)
        assert len(epochs) == count and epochs.max() - epochs.min() <= 1
        assert found.smallest_epoch(num_episodes) == num_episodes // count


@pytest.mark.parametrize(
    "text, num_episodes, expected",
    [
        ("geometric", 20, [1, 2, 4, 8, 16, 20]),
        ("geometric:first=3,growth=2", 24, [3, 6, 12, 24]),
        ("geometric:first=3,growth=2", 25, [3, 6, 12, 24, 25]),
        ("geometric:first=4,growth=1.5", 30, [4, 6, 9, 13, 19, 28, 30]),
        ("geometric:first=2,growth=1.25", 12, [2, 3, 4, 5, 6, 7, 8, 10, 12]),  # one user more at least
        ("geometric:first=0.25,growth=2", 100, [25, 50, 100]),
        ("geometric:first=0.001,growth=10", 100, [1, 10, 100]),  # a share of less than one user is one user
        ("geometric:first=5,growth=2", 5, [5]),
        ("geometric:first=10,growth=1e308", 100, [10, 100]),  # a product beyond all floats
        ("geometric:first=0.05,growth=2", 10**9, [50_000_000 * 2**i for i in range(5)] + [10**9]),
    ],
)
def test_geometric_by_hand(text, num_episodes, expected):
    assert times(text, num_episodes) == expected


@pytest.mark.parametrize("num_episodes", SIZES)
@pytest.mark.parametrize("first, growth", [(1, 1.1), (1, 3), (5, 1.01), (0.05, 1.1), (0.5, 1.5)])
def test_geometric_is_its_recursion(first, growth, num_episodes):
    if first > num_episodes:
        return
    expected, t = [], max(1, math.floor(first if first >= 1 else first * num_episodes))
    while t < num_episodes:
        expected.append(t)
        t = max(t + 1, math.floor(growth * t))
    assert times(f"geometric:first={first},growth={growth}", num_episodes) == [*expected, num_episodes]


@pytest.mark.parametrize(
    "text, num_episodes, expected",
    [
        ("octaves", 45, [1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 20, 24, 28, 32, 40, 45]),
        ("octaves:per=4", 40, [1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 20, 24, 28, 32, 40]),
        ("octaves:2", 30, [1, 2, 3, 4, 6, 8, 12, 16, 24, 30]),
        ("octaves:per=1", 100, [1, 2, 4, 8, 16, 32, 64, 100]),
        ("octaves", 3, [1, 2, 3]),
    ],
)
def test_octaves_by_hand(text, num_episodes, expected):
    assert times(text, num_episodes) == expected


@pytest.mark.parametrize("per", [1, 2, 4, 8, 16])
@pytest.mark.parametrize("num_episodes", SIZES)
def test_octaves_have_so_many_releases_to_a_doubling(per, num_episodes):
    """Every user at first; between 2^m and 2^(m+1) the multiples of 2^m / per."""
    expected = {num_episodes}
    for t in range(1, num_episodes + 1):
        octave = 2 ** (t.bit_length() - 1)
        if t <= 2 * per or (t - octave) % (octave // per) == 0:
            expected.add(t)
    assert times(f"octaves:{per}", num_episodes) == sorted(expected)


def test_octaves_do_not_depend_on_the_number_of_users_but_for_the_last():
    assert times("octaves", 20_000)[:-1] == [t for t in times("octaves", 10**6) if t < 20_000]
    assert schedule("octaves").num_releases(20_000) == 53 and len(times("octaves", 10**9)) < 130


# Text


@pytest.mark.parametrize(
    "text",
    [
        *SCHEDULES,
        "equal:32",
        "geometric:first=0.05,growth=1.1",
        "geometric:growth=1.0000001,first=12345",
        "geometric:0.1",
        "octaves:16",
    ],
)
def test_text_round_trip(text):
    found = schedule(text)
    again = schedule(found.text)
    assert again == found and again.text == found.text and hash(again) == hash(found)
    assert np.array_equal(again.times(50_000), found.times(50_000))


def test_texts_say_all_values():
    assert schedule("every").text == "every" and schedule("equal:32").text == "equal:count=32"
    assert schedule("geometric:first=0.05,growth=1.1").text == "geometric:first=0.05,growth=1.1"
    assert schedule("octaves").text == "octaves:per=4"
    assert schedule("equal:1e3") == schedule("equal:1000") == SCHEDULES["equal"](count=1000)


# Bad schedules raise one line: value, expectation, remedy

ONE_LINE = re.compile(r"[^\n]+\.")


@pytest.mark.parametrize(
    "text, match",
    [
        ("equa:8", "Unknown schedule 'equa'. Did you mean 'equal'?"),
        ("weekly", "Unknown schedule 'weekly'.* Available: equal, every, geometric, octaves"),
        ("every:1", "Schedule 'every' has no parameters; got '1'. Write 'every'."),
        ("equal:", "Nothing follows the colon of 'equal:'"),
        ("equal:0", "Expected count=0 >= 1"),
        ("equal:-3", "Expected count=-3 >= 1"),
        ("equal:2.5", "Expected count=2.5 to be a whole number"),
        ("equal:many", "Expected count=many to be a whole number"),
        ("equal:count=8,count=9", "gives count twice"),
        ("equal:size=8", "Unknown parameter of equal 'size'.* Available: count"),
        ("geometric:growth=1", "Expected growth=1.0 > 1"),
        ("geometric:growth=0.5", "Expected growth=0.5 > 1"),
        ("geometric:growth=inf", "Expected growth=inf > 1"),
        ("geometric:growth=nan", "Expected growth=nan to be a number"),
        ("geometric:first=0", "Expected first=0.0 > 0"),
        ("geometric:first=-1", "Expected first=-1.0 > 0"),
        ("octaves:3", "Expected per=3 to be a power of two"),
        ("octaves:0", "Expected per=0 >= 1"),
    ],
)
def test_bad_texts_are_refused(text, match):
    with pytest.raises(ValueError, match=match) as caught:
        schedule(text)
    assert ONE_LINE.fullmatch(str(caught.value))


@pytest.mark.parametrize(
    "text, num_episodes, match",
    [
        ("equal:8", 7, "Expected count=8 <= 7, the number of users"),
        ("geometric:first=101", 100, "Expected first=101 <= 100, the number of users"),
        ("geometric:growth=1.0000000001", 10**9, "makes more than 16777216 releases. Pass a larger growth"),
        ("equal:1000000000", 10**9, "Schedule 'equal:count=1000000000' makes more than 16777216 releases"),
    ],
)
def test_schedules_that_do_not_fit_the_users_are_refused_with_the_problem(text, num_episodes, match, monkeypatch):
    if num_episodes == 10**9:  # as many as that take seconds to list
        monkeypatch.setattr(schedules, "_MAX_RELEASES", 1_000)
        match = match.replace("16777216", "1000")
    with pytest.raises(ValueError, match=match) as caught:
        Problem(2, 2, 2, num_episodes, schedule=schedule(text))
    assert ONE_LINE.fullmatch(str(caught.value))


# Kinds of a user's own


def kind(times, *parameters):
    return ScheduleKind("mine", "a user's own", parameters, times)


def test_a_user_may_add_a_kind():
    def squares(num_episodes, power):
        return (t for t in itertools.takewhile(lambda t: t <= num_episodes, (i**power for i in itertools.count(1))))

    mine = kind(squares, Parameter("power", 2, "exponent"))
    registry = {**SCHEDULES, "mine": mine}
    assert schedule("mine", registry).times(30).tolist() == [1, 4, 9, 16, 25, 30]
    cubes = schedule("mine:3", registry)
    assert cubes.times(30).tolist() == [1, 8, 27, 30] and cubes == mine(power=3)
    assert schedule(cubes.text, registry) == cubes and not cubes.every
    problem = RIVER.replace(schedule=cubes)
    assert problem.num_releases == 28 and not problem.shape.every and problem.shape.max_releases == 255
    fewer = noise_scale(PRIVATIZERS["central_laplace"], problem, 1.0)
    assert fewer == 120 * 5 == noise_scale(PRIVATIZERS["central_laplace"], RIVER.replace(num_episodes=28), 1.0)


@pytest.mark.parametrize(
    "value, default, of",
    [
        (None, None, int),
        (7, None, int),
        (7, 8, None),
        (True, False, None),
        (False, True, None),
        (0.1, 1.0, None),
        ("word", "other", None),
        ("a=1,b=2", "other", None),
    ],
)
def test_values_of_any_type_survive_the_text(value, default, of):
    mine = kind(lambda num_episodes, x: [num_episodes], Parameter("x", default, "", None, of))
    found = mine(x=value)
    assert schedule(found.text, {"mine": mine}) == found and dict(found.values) == {"x": value}


@pytest.mark.parametrize(
    "found, match",
    [
        ([], "Schedule 'mine' has no release. Make at least one"),
        ([0, 5], "'mine' releases after 0 users, after one at 0, of 10; expected increasing times from 1"),
        ([-2, 5], "'mine' releases after -2 users"),
        ([3, 3], "'mine' releases after 3 users, after one at 3"),
        ([5, 3], "'mine' releases after 3 users, after one at 5"),
        ([5, 11], "'mine' releases after 11 users, after one at 5, of 10"),
        ([2.0, 5], "'mine' has the time 2.0; expected whole numbers of users"),
        ([2.5], "'mine' has the time 2.5"),
        ([math.nan], "'mine' has the time nan"),
        ([True, 5], "'mine' has the time True"),
        (["5"], "'mine' has the time '5'"),
        ([None], "'mine' has the time None"),
        (np.array([1.0, 2.0]), r"'mine' has the time np.float64\(1.0\)"),
        (itertools.count(1), "'mine' makes more than 1000 releases"),
    ],
)
def test_times_that_are_no_schedule_are_refused(found, match, monkeypatch):
    monkeypatch.setattr(schedules, "_MAX_RELEASES", 1_000)
    bad = kind(lambda num_episodes: found)()
    for call in (bad.times, bad.num_releases, bad.epochs, bad.smallest_epoch, bad.check):
        with pytest.raises(ValueError, match=match) as caught:
            call(10)
        assert ONE_LINE.fullmatch(str(caught.value))
    with pytest.raises(ValueError, match=match):
        Problem(2, 2, 2, 10, schedule=bad)


def test_whole_numbers_of_numpy_are_times():
    found = kind(lambda num_episodes: np.arange(2, num_episodes, 3, dtype=np.int32))()
    assert found.times(10).tolist() == [2, 5, 8, 10]
    assert all(type(t) is int for t in schedules._times(found, 10))


# Times are public: they cannot depend on data


def test_numbers_of_the_device_are_no_times():
    """Counts live there."""
    with pytest.raises(ValueError, match=r"has the time Array\(3.*; expected whole numbers of users") as caught:
        kind(lambda num_episodes: [jnp.int32(3)])().check(10)
    assert ONE_LINE.fullmatch(str(caught.value))


def test_traced_numbers_are_no_times():
    """What a program computes from counts is traced, whatever it is made into."""

    @jax.jit
    def program(noisy_visits):
        found = kind(lambda num_episodes: [(noisy_visits > 3).astype(jnp.int32) + 1])()
        return jnp.asarray(found.times(10))

    with pytest.raises(ValueError, match="expected whole numbers of users"):
        program(jnp.float32(5))

    @jax.jit
    def concrete(noisy_visits):
        return jnp.asarray(kind(lambda num_episodes: [int(noisy_visits)])().times(10))

    with pytest.raises(jax.errors.ConcretizationTypeError):
        concrete(jnp.float32(5))


def test_a_schedule_sees_the_number_of_users_and_its_own_parameters_alone():
    seen = []

    def spy(*args, **kwargs):
        seen.append((args, kwargs))
        return [5]

    kind(spy, Parameter("x", 3, ""))().check(10)
    assert seen == [((10,), {"x": 3})]
    with pytest.raises(TypeError, match="counts"):
        kind(lambda num_episodes, counts: [5])().check(10)


def test_times_are_found_once_for_accounting_and_engine_alike():
    """A kind that does not answer twice the same is asked once."""
    answers = iter(range(1, 10))
    found = kind(lambda num_episodes: [next(answers)])()
    assert found.times(10).tolist() == found.times(10).tolist() == [1, 10]
    assert found.num_releases(10) == 2 and found.smallest_epoch(10) == 1
    assert Problem(2, 2, 2, 10, schedule=found).num_releases == 2 and next(answers) == 2


def test_a_caller_cannot_change_the_times_of_others():
    found = schedule("equal:4")
    found.times(8)[0] = 7
    assert found.times(8).tolist() == [2, 4, 6, 8]
    with pytest.raises(AttributeError):
        found.values = ()
    assert isinstance(found, Schedule)
