"""What a run of a mechanism keeps, in numbers per counter, and what is refused because it would not fit."""

import jax
import numpy as np
import pytest
from mechanism_pieces import NOISY, PLAIN, alone, initial, nobody, parameters, start, times_of, with_releases

from jaxprivrl.numerics import random
from jaxprivrl.privatizers import PRIVATIZERS
from jaxprivrl.privatizers.base import report_one
from jaxprivrl.privatizers.toeplitz import BLOCK
from jaxprivrl.privatizers.tree import Honaker, Tree
from jaxprivrl.problem import Problem, Shape
from jaxprivrl.schedules import schedule

SIZES = Problem(2, 3, 2, 1000)


def numbers_per_counter(privatizer, max_releases, releases="every", part="seed"):
    """Sizes of a part of the state in units of the released counters."""
    shape = with_releases(SIZES.replace(schedule=schedule(releases)), max_releases)
    runtime = privatizer.runtime(privatizer, shape)
    counters = sum(x.size for x in jax.eval_shape(lambda: runtime.init()[1]))
    state = jax.eval_shape(lambda: initial(privatizer, shape))
    return sum(x.size for x in jax.tree.leaves(getattr(state, part))) / counters


@pytest.mark.parametrize("releases", ["every", "octaves"])
@pytest.mark.parametrize("levels", [8, 24])
def test_state_is_as_small_as_advertised(levels, releases):
    top = 2**levels - 1
    block = BLOCK + 2 * BLOCK / 2  # noise of eight releases, and two slots for the draws of one of the two stages
    for privatizer in NOISY:
        found, strategy = numbers_per_counter(privatizer, top, releases), privatizer.strategy
        assert numbers_per_counter(privatizer, top, releases, "released") == 1  # stands until the next one
        if privatizer.report.bits:
            assert found == 0
        elif privatizer.report.step:
            assert found == 1 + 2 / 2  # two slots for one of the two stages
        elif strategy.per_user:
            assert found == 1
        elif isinstance(strategy, Tree):
            assert found == levels + 1
        elif isinstance(strategy, Honaker):
            assert found == 2 * (levels + 1) + 2
        elif strategy.data(10) != ():
            assert found == 4 + 1 + block
        else:
            assert found <= block + 7 + 1.1 * levels
    assert numbers_per_counter(PRIVATIZERS["central_toeplitz"], top, releases) <= block + 7 + 1.1 * levels
    assert numbers_per_counter(PRIVATIZERS["central_blt"], top, releases) == 4 + 1 + block


@pytest.mark.parametrize("privatizer", NOISY, ids=lambda p: p.name)
def test_numbers_of_a_strategy_have_one_shape_whatever_the_number_of_leaves(privatizer):
    """They are data of a program: K fixes none."""
    few, many = (jax.tree.map(np.shape, privatizer.strategy.data(n)) for n in (10, 10_000_000))
    assert few == many


# Refusals


def test_toeplitz_refuses_what_does_not_fit():
    toeplitz = PRIVATIZERS["central_toeplitz"]
    with pytest.raises(ValueError, match=r"at most 16777215 releases.*Use central_blt"):
        toeplitz.runtime(toeplitz, Shape(2, 2, 2, 2, 3, max_releases=2**31 - 1))
    with pytest.raises(ValueError, match=r"MiB for the noise of one seed.*Use central_blt"):
        toeplitz.runtime(toeplitz, Shape(200, 300, 10, 200, 3, max_releases=2**16 - 1))


@pytest.mark.parametrize("privatizer", [p for p in PLAIN if p.strategy.data(10) != ()], ids=lambda p: p.name)
def test_without_the_numbers_of_its_strategy_there_is_no_noise_and_no_release(privatizer):
    given = parameters(privatizer, SIZES, 1.0)._replace(data=())
    with pytest.raises(ValueError, match="unpack"):
        start(privatizer, SIZES.shape, given)
    with pytest.raises(ValueError, match="unpack"):
        step = alone(privatizer, SIZES.shape)
        step(given, times_of(SIZES), random.key(0), initial(privatizer, SIZES.shape), nobody(SIZES))


@pytest.mark.parametrize("privatizer", PRIVATIZERS.values(), ids=lambda p: p.name)
def test_counts_pooled_too_early_are_refused(privatizer):
    problem = Problem(3, 2, 1, 10, homogeneous=True, families=2)
    pooled = jax.tree.map(lambda x: x[:1], nobody(problem))
    with pytest.raises(ValueError, match="counts of 1 stages, expected 3"):
        step = alone(privatizer, problem.shape)
        step(parameters(privatizer, problem, 1.0), (), random.key(0), initial(privatizer, problem.shape), pooled)
    with pytest.raises(ValueError, match="counts of 1 stages, expected 3"):
        report_one(random.key(0), privatizer.report, problem.shape, np.True_, pooled, np.int32(0))
