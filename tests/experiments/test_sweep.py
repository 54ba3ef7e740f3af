"""Sweeps: limits of epsilon, independence of seeds, hyper-parameter axes, records, extreme sizes, refusals."""

import functools
import json
import math

import jax
import numpy as np
import pieces
import pytest
import reference

from jaxprivrl import mdp
from jaxprivrl.experiments import results
from jaxprivrl.experiments.spec import SweepSpec, resolve
from jaxprivrl.experiments.sweep import sweep
from jaxprivrl.learners import LEARNERS, POSTPROCESSORS
from jaxprivrl.privatizers import PRIVATIZERS

BASE = SweepSpec(
    environment="tiny", epsilons=(100.0,), seeds=2, episodes=30, grid={"bonus_scale": 0.02}, record_every=1
)


@pytest.fixture(scope="module", autouse=True)
def quick():
    with pieces.quick_sweeps():
        yield


@pytest.fixture(scope="module")
def tiny():
    return pieces.random_mdp(2, (2, 3, 2))


def run(tiny, **changes):
    return sweep(BASE.replace(**changes), tiny)


def test_infinite_epsilon_equals_exact(tiny):
    exact, private = run(tiny, privatizer="exact"), run(tiny, epsilons=(math.inf,))
    np.testing.assert_allclose(private.regret, exact.regret, rtol=1e-6)
    assert float(exact.epsilon[0]) == math.inf and exact.attrs["labels"] == ["no privacy"] == private.attrs["labels"]
    assert np.abs(run(tiny).regret.values - exact.regret.values).max() > 0.01


@pytest.mark.parametrize("name", PRIVATIZERS)
def test_infinite_epsilon_releases_the_truth(tiny, name):
    plan = resolve(BASE.replace(privatizer=name, epsilons=(math.inf,), episodes=4), tiny)
    assert plan.calibrated[0].noise_scale == 0.0
    for episode in pieces.episodes(plan, pieces.cell_of(plan)):
        truth = pieces.totals_of(episode.state)
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
    grid = po(grid={"bonus_scale": scales, "learning_rate": rates})
    assert grid.regret.dims == ("epsilon", "bonus_scale", "learning_rate", "seed", "episode")
    assert grid.regret.shape == (1, 2, 2, 2, 30) and grid.regret.dtype == np.float64
    assert len(np.unique(grid.regret.isel(episode=-1))) == 8
    for scale in scales:
        for rate in rates:
            alone = po(grid={"bonus_scale": scale, "learning_rate": rate})
            assert alone.regret.dims == ("epsilon", "seed", "episode")
            np.testing.assert_allclose(alone.regret, grid.regret.sel(bonus_scale=scale, learning_rate=rate), rtol=1e-5)
    rows = results.summarize(grid)
    assert [(r["bonus_scale"], r["learning_rate"]) for r in rows] == [(b, r) for b in scales for r in rates]


def test_default_learning_rate(tiny):
    plan = resolve(BASE.replace(learner="ucb_po"), tiny)
    assert plan.grid[0]["learning_rate"] == pytest.approx(math.sqrt(2 * math.log(2) / (4 * 30)))
    assert reference.UCBPO(2, 3, 2, 30, 0.1).learning_rate == pytest.approx(plan.grid[0]["learning_rate"])


@pytest.mark.parametrize("episodes", [1, 2, 9, 10, 11, 30, 1000, 12_345])
@pytest.mark.parametrize("every", [None, 1, 7, 50_000])
def test_records_include_ninety_percent_and_the_end(tiny, episodes, every):
    if every == 1 and episodes > 1000:
        every = 3
    records = resolve(BASE.replace(episodes=episodes, record_every=every), tiny).job.records
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


def with_learner(plan, learner, i):
    """The plan with another learner, at its defaults, and its i-th cell: accounting does not ask who learns."""
    program = plan.job.program._replace(learner=learner, postprocess=POSTPROCESSORS[learner.postprocess])
    cell = pieces.cell_of(plan, i)._replace(hyper=pieces.hyper_of(learner, plan.problem))
    return plan._replace(learner=learner, job=plan.job._replace(program=program)), cell


def check_finite(learners, privatizer, sizes, episodes):
    plan = plan_at(privatizer, sizes, episodes)
    for name in learners:
        for i, epsilon in enumerate(plan.axes["epsilon"]):
            for episode in pieces.episodes(*with_learner(plan, LEARNERS[name], i)):
                for x in jax.tree.leaves(episode):
                    assert np.all(np.isfinite(x)), f"{name} at epsilon {epsilon}"
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


PO = {"learner": "ucb_po"}
REFUSED = {
    "epsilon zero": ({"epsilons": (0.0,)}, r"Expected epsilon=0\.0 > 0\. Use epsilon=inf for no privacy\."),
    "epsilon negative": ({"epsilons": (1.0, -1.0)}, r"Expected epsilon=-1\.0 > 0"),
    "epsilon nan": ({"epsilons": (math.nan,)}, r"Expected epsilon=nan > 0"),
    "no epsilon": ({"epsilons": ()}, r"Expected epsilon=\[\] to be distinct and at least one"),
    "epsilon twice": ({"epsilons": (1.0, 1.0)}, r"Expected epsilon=\[1\.0, 1\.0\] to be distinct"),
    "learner": ({"learner": "ucbvi"}, r"Unknown learner 'ucbvi'\. Did you mean 'ucb_vi'\? Available: .*ucb_po"),
    "privatizer": ({"privatizer": "laplace_local"}, r"Unknown privatizer .* Did you mean 'local_laplace'\?"),
    "no near name": ({"learner": "zzz"}, r"Unknown learner 'zzz'\. Available: "),
    "episodes zero": ({"episodes": 0}, r"Expected episodes=0 >= 1\. Pass the number of users"),
    "episodes fraction": ({"episodes": 2.5}, r"Expected episodes=2\.5 >= 1"),
    "episodes huge": ({"episodes": 2**31}, r"Expected episodes=2147483648 "),
    "seeds": ({"seeds": 0}, r"Expected seeds=0 >= 1"),
    "seed start": ({"seed_start": -1}, r"Expected seed_start=-1 from 0"),
    "seed range": ({"seed_start": 2**31 - 1}, r"Expected seed_start=2147483647"),
    "failure_prob": ({"grid": {"failure_prob": 1.0}}, r"Expected 0 < failure_prob=1\.0 < 1"),
    "two failure_probs": ({"grid": {"failure_prob": (0.1, 0.2)}}, r"Expected one failure_prob"),
    "dp_delta": ({"dp_delta": 0.0}, r"Expected 0 < dp_delta=0\.0 < 1"),
    "families": ({"families": 1}, r"Expected families=1 to be 3 \(the paper\) or 2"),
    "neighbours": ({"neighbours": "replaced"}, r"Unknown neighbours 'replaced'\. Did you mean 'replace'\?"),
    "bonus negative": ({"grid": {"bonus_scale": -1.0}}, r"Expected bonus_scale=-1\.0 to be finite and >= 0"),
    "bonus nan": ({"grid": {"bonus_scale": math.nan}}, r"Expected bonus_scale=nan to be finite"),
    "no bonus": ({"grid": {"bonus_scale": ()}}, r"Expected bonus_scale=\[\] to be distinct"),
    "bonus twice": ({"grid": {"bonus_scale": (0.1, 0.1)}}, r"Expected bonus_scale=\[0\.1, 0\.1\] to be distinct"),
    "rate infinite": (PO | {"grid": {"learning_rate": math.inf}}, r"Expected learning_rate=inf to be finite"),
    "no rate": (PO | {"grid": {"learning_rate": ()}}, r"Expected learning_rate=\[\] to be distinct"),
    "rate twice": (
        PO | {"grid": {"learning_rate": (0.1, 0.1)}},
        r"Expected learning_rate=\[0\.1, 0\.1\] to be distinct",
    ),
    "rate of another learner": (
        {"grid": {"learning_rate": 0.1}},
        r"Unknown parameter of ucb_vi 'learning_rate'\. .*Available: bonus_scale, error_scale, failure_prob",
    ),
    "releases": ({"releases": "sometimes"}, r"Unknown schedule 'sometimes'\..*Available: .*every"),
    "regret": ({"regret": "real"}, r"Unknown regret 'real'\. Did you mean 'realised'\?"),
    "metric": ({"metrics": ("planned",)}, r"Unknown metric of ucb_vi 'planned'\. Did you mean 'planned_value'\?"),
    "mdp_hash": ({"mdp_hash": "0" * 64}, r"The MDP 'tiny' is not the recorded one"),
    "printed on a schedule": (
        {"calibration": "printed", "releases": "equal:8"},
        r"calibration='printed' is defined for a release after each user, got 'equal:count=8'",
    ),
    "calibration": (
        {"calibration": "tigt"},
        r"Unknown calibration 'tigt'\. Did you mean 'tight'\? Available: .*tight",
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
        resolve(BASE.replace(**changes), tiny)


def test_unknown_environment():
    with pytest.raises(ValueError, match=r"Unknown environment 'riverswim'\. Did you mean 'river_swim'\?"):
        resolve(BASE.replace(environment="riverswim"))


def test_pooled_runs_where_stages_agree():
    plan = resolve(BASE.replace(environment="river_swim", homogeneous=True))
    shape = plan.job.program.shape
    assert shape.num_stages == 1 and shape.horizon == 20


def test_local_printed_at_one_episode_is_allowed(tiny):
    plan = resolve(BASE.replace(calibration="printed", episodes=1, privatizer="local_laplace"), tiny)
    assert plan.calibrated[0].noise_scale == pytest.approx(3 * 2 / 100.0)


def test_progress_counts_every_episode(tiny):
    calls = []
    sweep(BASE.replace(seeds=2), tiny, progress=lambda *a: calls.append(a))
    assert [c[:2] for c in calls] == [(0, 60), (60, 60)]


# Specs, metrics and the realised regret.


def test_a_spec_survives_json(tiny):
    spec = BASE.replace(
        learner="ucb_po", epsilons=(1.0, math.inf), grid={"learning_rate": (0.1, 1.0)}, releases="equal:3", seeds=1
    )
    text = json.dumps(results.json_safe(spec.to_json()))
    assert SweepSpec.from_json(json.loads(text, parse_constant=pytest.fail)) == spec
    recorded = sweep(spec, tiny).attrs["spec"]
    assert SweepSpec.from_json(recorded) == resolve(spec, tiny).spec
    with pytest.raises(ValueError, match=r"Unknown field of a spec 'seed'\. Did you mean 'seeds'\?"):
        SweepSpec.from_json({"seed": 1})


def test_metrics_are_recorded_beside_the_regret(tiny):
    """The planned value is its mean over the episodes between two records."""
    data = run(tiny, metrics=("planned_value",), record_every=3)
    np.testing.assert_allclose(data.regret, run(tiny, record_every=3).regret, rtol=1e-6)
    assert data.planned_value.dims == data.regret.dims
    planned = [
        float(np.sum(tiny.initial * episode.values[0]))
        for episode in pieces.episodes(resolve(BASE, tiny), pieces.cell_of(resolve(BASE, tiny)), 1)
    ]
    want = np.reshape(planned, (-1, 3)).mean(1)
    np.testing.assert_allclose(data.planned_value.sel(seed=1, epsilon=100.0), want, rtol=1e-4)
    assert results.summarize(data)[0]["planned_value"] == pytest.approx(float(data.planned_value[0, :, -1].mean()))


def test_realised_regret_is_the_expected_one_where_nothing_is_drawn(tiny):
    """Deterministic transitions, first state and policies; with random ones (control) they differ, by their noise."""
    H, S, A = tiny.shape
    moves = np.eye(S)[np.random.default_rng(0).integers(0, S, (H, S, A))]
    fixed = mdp.make(np.asarray(tiny.costs), moves, 0)
    expected, realised = (run(fixed, regret=kind).regret for kind in ("expected", "realised"))
    np.testing.assert_allclose(realised, expected, rtol=1e-5)
    one, two = (np.diff(run(tiny, regret=kind, episodes=2000).regret.values) for kind in ("expected", "realised"))
    difference = (two - one).ravel()
    assert abs(difference.mean()) < 4 * difference.std(ddof=1) / math.sqrt(difference.size)
    assert difference.std() > 0.01
