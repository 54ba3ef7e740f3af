"""Noise scales and what they guarantee: attained by the worst pair, inverse of each other, known for the paper."""

import dataclasses
import itertools
import math

import numpy as np
import pytest
from problems import ON_SCHEDULES, PRIVATE, RIVER, by_name, on

from jaxprivrl.privacy.accounting import calibrate, guarantee, noise_scale
from jaxprivrl.privacy.privatizer import Privatizer
from jaxprivrl.privacy.report import Report
from jaxprivrl.privacy.sensitivity import sensitivity
from jaxprivrl.privatizers import PRIVATIZERS
from jaxprivrl.privatizers.runtimes import additive
from jaxprivrl.problem import NEIGHBOURS, Problem

# Pure epsilon is attained


def _worst_pair(H, homogeneous):
    """Flattened counts of two trajectories whose cells are disjoint, all costs 1."""
    S, A = 2, 2
    result = []
    for state in (0, 1):
        counts = [np.zeros((H, S, A)), np.zeros((H, S, A)), np.zeros((H, S, A, S))]
        for x in counts:
            x[(slice(None), state, state) + (state,) * (x.ndim - 3)] = 1
        result.append(np.concatenate([(x.sum(axis=0) if homogeneous else x).ravel() for x in counts]))
    return result


def _log_density(y, x, scale):
    return -np.abs(y - x).sum() / scale - y.size * math.log(2 * scale)


@pytest.mark.parametrize("homogeneous", [False, True])
@pytest.mark.parametrize("privatizer, num_episodes", [("local_laplace", 9), ("central_laplace", 9)])
def test_pure_epsilon_is_attained(privatizer, num_episodes, homogeneous):
    H, privatizer = 3, PRIVATIZERS[privatizer]
    problem = Problem(H, 2, 2, num_episodes, homogeneous)
    scale = noise_scale(privatizer, problem, 0.7)
    claimed = guarantee(privatizer, problem, scale).epsilon_pure
    a, b = _worst_pair(H, homogeneous)
    users = np.tile(a, (num_episodes, 1))
    replaced = users.copy()
    replaced[0] = b
    if privatizer.trust == "LDP":
        release, other = users, replaced  # every user's report
    else:  # every stored node of the tree
        ends = range(1, num_episodes + 1)
        release = np.array([users[end - (end & -end) : end].sum(axis=0) for end in ends])
        other = np.array([replaced[end - (end & -end) : end].sum(axis=0) for end in ends])
    ratio = _log_density(release, release, scale) - _log_density(release, other, scale)
    assert claimed == pytest.approx(0.7, abs=1e-12)
    assert ratio == pytest.approx(claimed, abs=1e-9)


@pytest.mark.parametrize("releases", ["every", "octaves", "equal:4", "geometric:first=3,growth=1.5"])
@pytest.mark.parametrize("privatizer", by_name(p for p in PRIVATE if p.plain and p.law.pure))
def test_pure_epsilon_is_attained_by_one_user_of_any_epoch(privatizer, releases):
    """The densities of all noisy sums that the strategy says are released; the worst user attains, no user exceeds."""
    problem = on(Problem(3, 2, 2, 25), releases)
    scale = noise_scale(privatizer, problem, 0.7)
    a, b = _worst_pair(3, False)
    ends = np.arange(1, 26) if privatizer.strategy.per_user else problem.schedule.times(25)
    assert len(ends) == privatizer.num_leaves(problem)
    sums = [(np.append(0, ends)[j], ends[i - 1]) for i, j in privatizer.strategy.noisy_sums(len(ends))]
    ratios = []
    for changed in range(25):
        users = np.tile(a, (25, 1))
        users[changed] = b
        found = [_log_density(n * a, n * a, scale) - _log_density(n * a, users[i : i + n].sum(0), scale)
                 for i, n in ((start, end - start) for start, end in sums)]  # fmt: skip
        ratios.append(sum(found))
    assert max(ratios) == pytest.approx(0.7, abs=1e-9)


def test_pure_epsilon_of_bits_is_attained():
    problem, bits = Problem(3, 2, 2, 9), PRIVATIZERS["local_bernoulli"]
    scale = noise_scale(bits, problem, 0.7)
    a, b = _worst_pair(3, False)
    keep = 1 / (1 + math.exp(-1 / scale))
    ratio = np.log(np.where(a == b, 1.0, keep / (1 - keep))).sum()
    assert ratio == pytest.approx(guarantee(bits, problem, scale).epsilon_pure, abs=1e-9)
    assert ratio == pytest.approx(0.7, abs=1e-9)


# Known numbers


@pytest.mark.parametrize(
    "privatizer, calibration, scale, epsilon",
    [
        ("central_laplace", "tight", 1800.0, 1.0),
        ("local_laplace", "tight", 120.0, 1.0),
        ("central_laplace", "printed", 60 * math.log(20_000), 3.0292),
        ("local_laplace", "printed", 60.0, 2.0),
        ("central_laplace", "published_code", 1.0, 1800.0),
        ("local_laplace", "published_code", 1.0, 120.0),
    ],
)
@pytest.mark.parametrize("homogeneous", [False, True])
def test_known_scales_and_epsilons(privatizer, calibration, scale, epsilon, homogeneous):
    problem = RIVER.replace(homogeneous=homogeneous)
    result = calibrate(PRIVATIZERS[privatizer], problem, 1.0, calibration=calibration)
    assert result.noise_scale == pytest.approx(scale, rel=1e-12)
    assert result.guarantee.epsilon_pure == pytest.approx(epsilon, rel=1e-4)
    assert result.guarantee.holds is (calibration == "tight")
    assert result.guarantee.epsilon_at_delta[1e-5] < epsilon


@pytest.mark.parametrize(
    "privatizer, factor",
    [
        ("central_gaussian", math.sqrt(15)),
        ("central_honaker", math.sqrt(12.841)),  # from the covariance of its releases
        ("central_blt", 2.0507),
        ("central_toeplitz", math.sqrt(4.219)),
        ("local_gaussian", 1.0),
    ],
)
@pytest.mark.parametrize("homogeneous", [False, True])
def test_gaussian_scales(privatizer, factor, homogeneous):
    problem, privatizer = RIVER.replace(families=2, homogeneous=homogeneous), PRIVATIZERS[privatizer]
    l2 = 20 * math.sqrt(2 * 2) if homogeneous else math.sqrt(2 * 20 * 2)
    assert noise_scale(privatizer, problem, 1.0, dp_delta=1e-5) == pytest.approx(3.7306 * l2 * factor, rel=2e-4)
    assert privatizer.strategy.norms(20_000).l2 == pytest.approx(factor, rel=1e-4)


def test_sampling_a_step_is_paid_by_one_step():
    sampled, bits = PRIVATIZERS["local_sampled"], PRIVATIZERS["local_bernoulli"]
    assert noise_scale(sampled, RIVER, 1.0) == 6.0
    assert noise_scale(sampled, RIVER.replace(homogeneous=True, families=2), 1.0) == 4.0
    result = guarantee(sampled, RIVER, 6.0)
    assert (result.sensitivity_l1, result.levels, result.model) == (6.0, 1, "LDP")
    # pooled counts: bits are randomised per step, before they are summed
    pooled = guarantee(bits, RIVER.replace(homogeneous=True), 120.0)
    assert pooled.epsilon_pure == pytest.approx(1.0)
    assert pooled.epsilon_at_delta == guarantee(bits, RIVER, 120.0).epsilon_at_delta


# A user is in one epoch


@pytest.mark.parametrize("privatizer", by_name(p for p in PRIVATE if not p.strategy.per_user))
def test_noise_of_an_agent_is_that_of_as_many_users_as_releases(privatizer):
    few = RIVER.replace(num_episodes=13)
    for releases in ("geometric:first=19988,growth=1.00001", "equal:13"):
        problem = on(RIVER, releases)
        assert problem.num_releases == privatizer.num_leaves(problem) == 13
        for delta in (None, 1e-5) if privatizer.law.pure else (1e-5,):
            assert noise_scale(privatizer, problem, 1.0, dp_delta=delta) == noise_scale(
                privatizer, few, 1.0, dp_delta=delta
            )
    assert noise_scale(privatizer, problem, 1.0, dp_delta=1e-5) < noise_scale(privatizer, RIVER, 1.0, dp_delta=1e-5)


@pytest.mark.parametrize("privatizer", by_name(p for p in PRIVATE if p.trust == "LDP"))
def test_noise_of_users_does_not_depend_on_when_releases_are_made(privatizer):
    scales = {noise_scale(privatizer, on(RIVER, r), 1.0, dp_delta=1e-5) for r in ("every", "equal:1", "octaves")}
    assert len(scales) == 1 and privatizer.num_leaves(on(RIVER, "equal:1")) == 20_000


# Inversion, ordering, extremes


@pytest.mark.parametrize("privatizer, releases", ON_SCHEDULES)
@pytest.mark.parametrize("target", ["pure", "approximate"])
@pytest.mark.parametrize("neighbours", NEIGHBOURS)
@pytest.mark.parametrize("homogeneous", [False, True])
def test_scale_and_guarantee_are_inverse(privatizer, releases, target, neighbours, homogeneous):
    if target == "pure" and not privatizer.law.pure:
        return
    problem = on(RIVER.replace(homogeneous=homogeneous, neighbours=neighbours), releases)
    scales = []
    for epsilon in (0.1, 1.0, 10.0):
        result = calibrate(privatizer, problem, epsilon, target=target)
        held = result.guarantee
        reached = held.epsilon_pure if target == "pure" else held.epsilon_at_delta[1e-5]
        assert held.holds and reached <= epsilon * (1 + 1e-12) and held.neighbours == neighbours
        assert reached == pytest.approx(epsilon, rel=1e-4)
        scales.append(result.noise_scale)
    assert scales == sorted(scales, reverse=True)
    if target == "approximate" and privatizer.law.pure:
        assert all(s < noise_scale(privatizer, problem, e) for s, e in zip(scales, (0.1, 1, 10), strict=True))


@pytest.mark.parametrize("privatizer, releases", ON_SCHEDULES)
@pytest.mark.parametrize("epsilon", [1e-6, 1e-3, 1e3, 1e6])
@pytest.mark.parametrize("sizes", [(1, 1, 1, 1), (20, 6, 2, 20_000), (500, 3, 2, 10**7)])
def test_extremes_are_finite_and_hold(privatizer, releases, epsilon, sizes):
    problem = on(Problem(*sizes), releases)
    for target in ("pure", "approximate"):
        if target == "pure" and not privatizer.law.pure:
            continue
        result = calibrate(privatizer, problem, epsilon, target=target)
        assert math.isfinite(result.noise_scale) and result.noise_scale > 0
        assert all(np.all(np.isfinite(row)) for row in result.errors)
        assert result.guarantee.holds
        if target == "approximate":
            assert result.guarantee.epsilon_at_delta[1e-5] <= epsilon


@pytest.mark.parametrize("privatizer", by_name(PRIVATIZERS.values()))
def test_infinite_epsilon_means_no_noise(privatizer):
    result = calibrate(privatizer, RIVER, math.inf)
    assert result.noise_scale == 0.0 and math.isinf(result.guarantee.epsilon_pure)
    assert result.guarantee.epsilon_at_delta == {1e-5: math.inf}
    assert result.guarantee.label == "no privacy" and result.guarantee.statement.startswith("No privacy")


# Laws and strategies that no mechanism of the registry puts together

_LAWS = {p.law.name: p.law for p in PRIVATE if p.law.additive}
_STRATEGIES = {type(p.strategy).__name__: p.strategy for p in PRIVATE}


@pytest.mark.parametrize("strategy", _STRATEGIES)
@pytest.mark.parametrize("law", _LAWS)
def test_any_additive_law_is_accounted_for_on_any_strategy(law, strategy):
    law, strategy = _LAWS[law], _STRATEGIES[strategy]
    both = Privatizer("both", "JDP", Report(), law, strategy, additive)
    assert both.target == ("pure" if law.pure else "approximate")
    for homogeneous, families in itertools.product((False, True), (2, 3)):
        problem = Problem(5, 3, 2, 100, homogeneous, families)
        norms, own = strategy.norms(both.num_leaves(problem)), sensitivity(problem)
        assert both.moves(problem).l1 == own.l1 * norms.l1 and both.moves(problem).l2 == own.l2 * norms.l2
        result = calibrate(both, problem, 0.5)
        assert result.guarantee.holds and all(np.all(np.isfinite(row)) for row in result.errors)
        if law.pure:
            assert result.noise_scale == pytest.approx(own.l1 * norms.l1 / 0.5, rel=1e-12)
            approximate = calibrate(both, problem, 0.5, target="approximate")
            assert approximate.guarantee.holds and approximate.noise_scale <= result.noise_scale


@pytest.mark.parametrize("privatizer", by_name(PRIVATE))
def test_another_runtime_or_name_changes_no_number(privatizer):
    """Accounting asks law, strategy and report alone, and knows no mechanism by name."""
    other = dataclasses.replace(privatizer, name="another", runtime=lambda privatizer, shape: None, summary="")
    for target in ("pure", "approximate") if privatizer.law.pure else ("approximate",):
        a, b = (calibrate(p, RIVER, 2.0, target=target) for p in (privatizer, other))
        assert a.noise_scale == b.noise_scale
        assert dataclasses.replace(a.guarantee, privatizer="another") == b.guarantee
