"""Sweeps: limits of epsilon, independence of seeds, hyper-parameter axes, records, extreme sizes, refusals."""

import dataclasses
import functools
import math

import jax
import numpy as np
import pieces
import pytest
import reference

from jaxprivrl import results
from jaxprivrl import sweep as engine
from jaxprivrl.learners import LEARNERS
from jaxprivrl.postprocess import DEFAULTS
from jaxprivrl.privatizers import PRIVATIZERS
from jaxprivrl.sweep import SweepSpec, resolve, sweep

BASE = SweepSpec(environment="tiny", epsilons=(100.0,), seeds=2, episodes=30, bonus_scales=(0.02,), record_every=1)


@pytest.fixture(scope="module", autouse=True)
def quick():
    with pieces.quick_sweeps():
        yield


@pytest.fixture(scope="module")
def tiny():
    return pieces.random_mdp(2, (2, 3, 2))


def run(tiny, **changes):
    return sweep(dataclasses.replace(BASE, **changes), tiny)


def test_infinite_epsilon_equals_exact(tiny):
    exact, private = run(tiny, privatizer="exact"), run(tiny, epsilons=(math.inf,))
    np.testing.assert_allclose(private.regret, exact.regret, rtol=1e-6)
    assert float(exact.epsilon[0]) == math.inf and exact.attrs["labels"] == ["no privacy"] == private.attrs["labels"]
    assert np.abs(run(tiny).regret.values - exact.regret.values).max() > 0.01


@pytest.mark.parametrize("name", PRIVATIZERS)
def test_infinite_epsilon_releases_the_truth(tiny, name):
    plan = resolve(dataclasses.replace(BASE, privatizer=name, epsilons=(math.inf,), episodes=4), tiny)
    assert plan.calibrations[0].noise_scale == 0.0
    for episode in pieces.episodes(plan, pieces.cell_of(plan)):
        truth = pieces.totals_of(episode.privatizer_state)
        np.testing.assert_allclose(episode.after.counts.visits, truth.visits, atol=1e-6)
        np.testing.assert_allclose(episode.after.counts.costs, truth.costs, atol=1e-6)
        np.testing.assert_allclose(episode.after.counts.transitions, truth.transitions, atol=1e-6)
        assert not any(np.any(x) for x in (*episode.after.std, *episode.after.error))


def test_exact_ignores_epsilons(tiny):
    data = run(tiny, privatizer="exact", epsilons=(0.5, 1.0))
    assert data.sizes["epsilon"] == 1 and float(data.epsilon[0]) == math.inf
    np.testing.assert_array_equal(data.regret, run(tiny, privatizer="exact", epsilons=()).regret)


def test_doubling_seeds_leaves_the_first_unchanged(tiny):
    two, four = run(tiny), run(tiny, seeds=4)
    np.testing.assert_allclose(four.regret.isel(seed=slice(2)), two.regret, rtol=1e-5)
    assert list(four.seed.values) == [0, 1, 2, 3]
    assert len(np.unique(four.regret.isel(episode=-1))) == 4
    later = run(tiny, seed_start=2)
    np.testing.assert_allclose(four.regret.isel(seed=slice(2, 4)), later.regret, rtol=1e-5)


def test_same_spec_twice_gives_the_same(tiny):
    np.testing.assert_array_equal(run(tiny).regret, run(tiny).regret)


def test_hyper_parameter_axes(tiny):
    """Every cell of a grid of two bonus scales and two step sizes is the run of that cell alone."""
    scales, rates = (0.001, 0.02), (0.05, 0.8)
    po = functools.partial(run, tiny, learner="ucb_po", privatizer="exact")
    grid = po(bonus_scales=scales, learning_rates=rates)
    assert grid.regret.dims == ("epsilon", "bonus_scale", "learning_rate", "seed", "episode")
    assert grid.regret.shape == (1, 2, 2, 2, 30) and grid.regret.dtype == np.float64
    assert len(np.unique(grid.regret.isel(episode=-1))) == 8
    for scale in scales:
        for rate in rates:
            alone = po(bonus_scales=(scale,), learning_rates=(rate,))
            assert alone.regret.dims == ("epsilon", "seed", "episode")
            np.testing.assert_allclose(alone.regret, grid.regret.sel(bonus_scale=scale, learning_rate=rate), rtol=1e-5)
    rows = results.summarize(grid)
    assert [(r["bonus_scale"], r["learning_rate"]) for r in rows] == [(b, r) for b in scales for r in rates]


def test_default_learning_rate(tiny):
    plan = resolve(dataclasses.replace(BASE, learner="ucb_po"), tiny)
    assert plan.grid[0][2] == pytest.approx(math.sqrt(2 * math.log(2) / (4 * 30)))
    assert reference.UCBPO(2, 3, 2, 30, 0.1).learning_rate == pytest.approx(plan.grid[0][2])


@pytest.mark.parametrize("episodes", [1, 2, 9, 10, 11, 30, 1000, 12_345])
@pytest.mark.parametrize("every", [None, 1, 7, 50_000])
def test_records_include_ninety_percent_and_the_end(tiny, episodes, every):
    if every == 1 and episodes > 1000:
        every = 3
    records = resolve(dataclasses.replace(BASE, episodes=episodes, record_every=every), tiny).records
    assert records[-1] == episodes and records[0] >= 1 and np.all(np.diff(records) > 0)
    assert 9 * episodes // 10 in records or episodes == 1
    if every:
        assert all(k in records for k in range(every, episodes + 1, every))
    else:
        assert len(records) <= 405


def test_thinned_records_equal_the_full_ones(tiny):
    full, thin = run(tiny), run(tiny, record_every=8)
    assert list(thin.episode.values) == [8, 16, 24, 27, 30]
    np.testing.assert_array_equal(thin.regret, full.regret.sel(episode=thin.episode))
    assert np.all(np.diff(full.regret.values, axis=-1) >= 0)


@pytest.mark.parametrize("episodes", [1, 5, 30])
def test_last_tenth(tiny, episodes):
    data = run(tiny, episodes=episodes)
    ninety = 9 * episodes // 10
    before = data.regret.sel(episode=ninety).values if ninety else 0.0
    want = (data.regret.sel(episode=episodes).values - before) / (episodes - ninety)
    np.testing.assert_allclose(results.last_tenth(data), want)
    assert results.summarize(data)[0]["last_tenth_regret_per_episode"] == pytest.approx(want.mean())


def test_one_episode_has_the_regret_of_the_first_policy(tiny):
    data = run(tiny, episodes=1)
    assert data.regret.shape == (1, 2, 1) and list(data.episode.values) == [1]
    assert 0 <= data.regret.values.min() <= data.regret.values.max() <= 2
    assert data.attrs["guarantees"][0]["levels"] == 1


def test_batch_equals_playing_episode_by_episode(tiny):
    data = run(tiny)
    plan = resolve(BASE, tiny)
    for seed in range(2):
        regrets = [float(e.regret) for e in pieces.episodes(plan, pieces.cell_of(plan), seed)]
        np.testing.assert_allclose(data.regret.sel(seed=seed, epsilon=100.0), np.cumsum(regrets), rtol=1e-4)


# Every learner with every privatizer at every extreme epsilon, K = 1 included, on a plain MDP and on one where H, S
# and A are 1; the paper's learners and privatizers where only one of them is.
EPSILONS = (1e-6, 1.0, 1e6)
ALL = {"plain": (2, 3, 2), "H=S=A=1": (1, 1, 1)}
PAPER = {"H=1": (1, 3, 2), "S=1": (2, 1, 2), "A=1": (2, 3, 1)}


@functools.cache
def plan_at(privatizer, sizes, episodes):
    model = pieces.random_mdp(1, sizes, bernoulli=True)
    spec = SweepSpec(environment="random", privatizer=privatizer, epsilons=EPSILONS, seeds=2, episodes=episodes)
    return resolve(spec, model)


def check_finite(learners, privatizer, sizes, episodes):
    plan = plan_at(privatizer, sizes, episodes)
    for learner in learners:
        names = engine.Names(learner, privatizer, DEFAULTS.get(learner, "none"))
        for i in range(len(plan.grid)):
            for episode in pieces.episodes(plan._replace(names=names), pieces.cell_of(plan, i)):
                for x in jax.tree.leaves(episode):
                    assert np.all(np.isfinite(x)), f"{learner} at epsilon {plan.grid[i][0]}"
                np.testing.assert_allclose(np.sum(episode.policy, -1), 1.0, rtol=1e-5)
                assert 0 <= float(episode.regret) <= sizes[0]


@pytest.mark.parametrize("sizes", ALL.values(), ids=ALL)
@pytest.mark.parametrize("privatizer", PRIVATIZERS)
def test_every_pair_stays_finite(privatizer, sizes):
    for episodes in (1, 3):
        check_finite(LEARNERS, privatizer, sizes, episodes)


@pytest.mark.parametrize("sizes", PAPER.values(), ids=PAPER)
@pytest.mark.parametrize("privatizer", ["exact", "central_laplace", "local_laplace"])
def test_the_paper_stays_finite_at_each_least_size(privatizer, sizes):
    check_finite(("ucb_vi", "ucb_po"), privatizer, sizes, 3)


def test_extreme_epsilons_in_one_batch(tiny):
    data = run(tiny, epsilons=(1e-6, 1e-3, 1.0, 100.0, 1e6))
    assert np.all(np.isfinite(data.regret)) and np.all(np.isfinite(data.noise_scale))
    assert np.all(np.diff(data.noise_scale) < 0)
    # Episode 1 plans on exact zeros, so all epsilons begin alike; noise enters from episode 2 on.
    first = data.regret.sel(episode=1)
    np.testing.assert_allclose(first, np.broadcast_to(first[:1], first.shape), rtol=1e-6)
    np.testing.assert_allclose(data.regret.sel(epsilon=[100.0]), run(tiny).regret, rtol=1e-5)


REFUSED = {
    "epsilon zero": ({"epsilons": (0.0,)}, r"Expected epsilon=0\.0 > 0\. Use epsilon=inf for no privacy\."),
    "epsilon negative": ({"epsilons": (1.0, -1.0)}, r"Expected epsilon=-1\.0 > 0"),
    "epsilon nan": ({"epsilons": (math.nan,)}, r"Expected epsilon=nan > 0"),
    "no epsilon": ({"epsilons": ()}, r"Expected epsilons=\[\] to be distinct and at least one"),
    "epsilon twice": ({"epsilons": (1.0, 1.0)}, r"Expected epsilons=\[1\.0, 1\.0\] to be distinct"),
    "learner": ({"learner": "ucbvi"}, r"Unknown learner 'ucbvi'\. Did you mean 'ucb_vi'\? Available: .*ucb_po"),
    "privatizer": ({"privatizer": "laplace_local"}, r"Unknown privatizer .* Did you mean 'local_laplace'\?"),
    "no near name": ({"learner": "zzz"}, r"Unknown learner 'zzz'\. Available: "),
    "episodes zero": ({"episodes": 0}, r"Expected episodes=0 >= 1\. Pass the number of users"),
    "episodes fraction": ({"episodes": 2.5}, r"Expected episodes=2\.5 >= 1"),
    "episodes huge": ({"episodes": 2**31}, r"Expected episodes=2147483648 "),
    "seeds": ({"seeds": 0}, r"Expected seeds=0 >= 1"),
    "seed start": ({"seed_start": -1}, r"Expected seed_start=-1 from 0"),
    "seed range": ({"seed_start": 2**31 - 1}, r"Expected seed_start=2147483647"),
    "failure_prob": ({"failure_prob": 1.0}, r"Expected 0 < failure_prob=1\.0 < 1"),
    "dp_delta": ({"dp_delta": 0.0}, r"Expected 0 < dp_delta=0\.0 < 1"),
    "families": ({"families": 1}, r"Expected families=1 to be 3 \(the paper\) or 2"),
    "bonus negative": ({"bonus_scales": (-1.0,)}, r"Expected bonus_scale=-1\.0 to be finite and >= 0"),
    "bonus nan": ({"bonus_scales": (math.nan,)}, r"Expected bonus_scale=nan to be finite"),
    "no bonus": ({"bonus_scales": ()}, r"Expected bonus_scales=\[\] to be distinct"),
    "bonus twice": ({"bonus_scales": (0.1, 0.1)}, r"Expected bonus_scales=\[0\.1, 0\.1\] to be distinct"),
    "rate infinite": ({"learning_rates": (math.inf,)}, r"Expected learning_rate=inf to be finite"),
    "no rate": ({"learning_rates": ()}, r"Expected learning_rates=\[\] to be distinct"),
    "rate twice": ({"learning_rates": (0.1, 0.1)}, r"Expected learning_rates=\[0\.1, 0\.1\] to be distinct"),
    "calibration": (
        {"calibration": "tigt"},
        r"Unknown calibration 'tigt'\..*Available: tight, printed",
    ),
    "target": ({"target": "impure"}, r"Unknown target 'impure'\..*Available: approximate, pure"),
    "precision": ({"precision": "worst"}, r"Unknown precision 'worst'\. Did you mean 'worst_case'\?"),
    "postprocess": ({"postprocess": "projct"}, r"Unknown postprocess 'projct'\. Did you mean 'project'\?"),
    "record_every": ({"record_every": 0}, r"Expected record_every=0 >= 1"),
    "printed at one episode": ({"calibration": "printed", "episodes": 1}, r"no noise at num_episodes=1 \(ln 1 = 0\)"),
    "printed with two": ({"calibration": "printed", "families": 2}, r"defined for families=3, got 2"),
    "printed for gaussian": (
        {"calibration": "printed", "privatizer": "central_gaussian"},
        r"calibration='printed' is not defined for central_gaussian\. Use calibration='tight'",
    ),
    "pooled": ({"homogeneous": True}, r"The stages of this MDP differ, .* Drop homogeneous"),
    "published learner": ({"learner": "published_ucb_vi"}, r"does not run with 'central_laplace'"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refusals(tiny, case):
    changes, message = REFUSED[case]
    with pytest.raises(ValueError, match=message):
        resolve(dataclasses.replace(BASE, **changes), tiny)


def test_unknown_environment():
    with pytest.raises(ValueError, match=r"Unknown environment 'riverswim'\. Did you mean 'river_swim'\?"):
        resolve(dataclasses.replace(BASE, environment="riverswim"))


def test_pooled_runs_where_stages_agree():
    plan = resolve(dataclasses.replace(BASE, environment="river_swim", homogeneous=True))
    assert plan.shape.num_stages == 1 and plan.shape.horizon == 20


def test_local_printed_at_one_episode_is_allowed(tiny):
    plan = resolve(dataclasses.replace(BASE, calibration="printed", episodes=1, privatizer="local_laplace"), tiny)
    assert plan.calibrations[0].noise_scale == pytest.approx(3 * 2 / 100.0)


def test_progress_counts_every_episode(tiny):
    calls = []
    sweep(dataclasses.replace(BASE, seeds=2), tiny, progress=lambda *a: calls.append(a))
    assert [c[:2] for c in calls] == [(0, 60), (60, 60)]
