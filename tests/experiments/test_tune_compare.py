"""Tuning files and comparisons: the best cell, TOML there and back, disjoint seeds, ranks, intervals and tests."""

import math

import numpy as np
import pieces
import pytest
import xarray as xr
from scipy import stats

from jaxprivrl.experiments import compare, results, tune
from jaxprivrl.experiments.compare import Entry
from jaxprivrl.experiments.spec import SweepSpec
from jaxprivrl.learners import LEARNERS

SPEC = SweepSpec(environment="tiny", privatizer="exact", seeds=2, episodes=20, record_every=2)
TABLE = {
    "bonus_scale": 0.01,
    "learning_rate": 0.3,
    "final_regret_mean": 12.5,
    "calibration": "tight",
    "homogeneous": False,
    "epsilons": [math.inf, 1.0],
    "episodes": 20,
    "seed_start": 1_000_000,
    "seeds": 8,
}


@pytest.fixture(scope="module", autouse=True)
def quick():
    with pieces.quick_sweeps():
        yield


@pytest.fixture(scope="module")
def tiny():
    return pieces.random_mdp(2, (2, 2, 2))


@pytest.fixture(scope="module")
def tuned(tiny):
    spec = SPEC.replace(grid={"bonus_scale": (0.003, 1.0)}, seed_start=tune.SEED_START)
    return tune.tune(spec, tiny), spec


# -- tuning ------------------------------------------------------------------------------------------


def made_up(values, scales=(0.1, 1.0), rates=(0.01, 0.5)):
    """A Dataset whose final regrets are f[epsilon, bonus_scale, learning_rate, seed]."""
    dims = ("epsilon", "bonus_scale", "learning_rate", "seed", "episode")
    values = np.asarray(values, float)
    regret = np.stack([np.zeros_like(values), values], -1)
    coords = {"epsilon": [1.0, 2.0], "bonus_scale": list(scales), "learning_rate": list(rates), "episode": [1, 2]}
    return xr.Dataset({"regret": (dims, regret)}, coords=coords, attrs={"parameters": list(dims[1:3])})


def test_best_is_the_least_mean_over_seeds_and_epsilons():
    values = np.full((2, 2, 2, 3), 10.0)
    values[0, 0, 1] = 0.0  # best at one epsilon, not on average
    values[1, 0, 1] = 30.0
    values[:, 1, 0] = 9.0
    assert tune.best(made_up(values)) == ({"bonus_scale": 1.0, "learning_rate": 0.01}, 9.0)
    one = made_up(values).isel(learning_rate=0)
    assert tune.best(one) == ({"bonus_scale": 1.0, "learning_rate": 0.01}, 9.0)


def test_tune_agrees_with_the_sweep_it_runs(tuned, tiny):
    table, spec = tuned
    assert table["bonus_scale"] in spec.grid["bonus_scale"] and table["seed_start"] == 1_000_000 and table["seeds"] == 2
    assert table["epsilons"] == [math.inf] and table["episodes"] == 20 and table["calibration"] == "tight"
    assert table["final_regret_mean"] == pytest.approx(tune.tune(spec, tiny)["final_regret_mean"])


@pytest.mark.parametrize("learner", LEARNERS.values(), ids=LEARNERS)
def test_tuned_are_the_parameters_that_a_learner_declares(learner):
    values = tune.searched(learner)
    assert set(values) == {p.name for p in learner.parameters} & set(tune.SEARCHED) and values
    assert all(len(set(x)) == len(x) > 1 for x in values.values())


def test_file_there_and_back(tmp_path):
    path = tmp_path / "sub" / "tuned.toml"
    odd = ('C:\\mdp "x"\n.npz', "ucb_vi", "exact")
    tune.write({("river_swim", "ucb_po", "exact"): TABLE, odd: TABLE}, path)
    tune.write({("river_swim", "ucb_vi", "exact"): TABLE | {"bonus_scale": 0.5}}, path)
    tables = tune.load(path)
    assert set(tables) == {("river_swim", "ucb_po", "exact"), ("river_swim", "ucb_vi", "exact"), odd}
    assert tables[("river_swim", "ucb_po", "exact")] == TABLE == tables[odd]
    tune.write({("river_swim", "ucb_vi", "exact"): TABLE}, path)
    assert tune.load(path)[("river_swim", "ucb_vi", "exact")] == TABLE and len(tune.load(path)) == 3


def test_apply(tmp_path):
    path = tmp_path / "tuned.toml"
    bare = {k: v for k, v in TABLE.items() if k != "learning_rate"}
    tune.write({("tiny", "ucb_vi", "exact"): bare, ("tiny", "ucb_po", "exact"): TABLE}, path)
    spec = tune.apply(SPEC, path)
    assert spec.grid == {"bonus_scale": (0.01,)} and spec.seeds == SPEC.seeds
    spec = tune.apply(SPEC.replace(learner="ucb_po", grid={"bonus_scale": 5.0, "failure_prob": 0.2}), path)
    assert spec.grid == {"bonus_scale": (5.0,), "failure_prob": (0.2,), "learning_rate": (0.3,)}, "what is given wins"
    with pytest.raises(ValueError, match=r"has no table \[tiny\.pucb\.exact\]; it holds .*tiny\.ucb_vi\.exact"):
        tune.apply(SPEC.replace(learner="pucb"), path)


@pytest.mark.parametrize(
    ("start", "overlap"), [(999_997, False), (999_999, True), (1_000_007, True), (1_000_008, False)]
)
def test_tuning_seeds_are_not_used_again(tmp_path, start, overlap):
    path = tmp_path / "tuned.toml"
    tune.write({("tiny", "ucb_vi", "exact"): TABLE}, path)
    spec = SPEC.replace(seed_start=start)
    if not overlap:
        assert tune.apply(spec, path).grid["bonus_scale"] == (0.01,)
        return
    with pytest.raises(ValueError, match=r"were used for tuning \(1000000 to 1000007\)\. Pass another --seed-start"):
        tune.apply(spec, path)


@pytest.mark.parametrize(
    "text", ["[[[", "x = 1", "[tiny]\nucb_vi = 2", "[tiny.ucb_vi.exact]\nlearning_rate = 1.0", "[a.b]\nc = [1]"]
)
def test_files_that_are_not_tuning_files(tmp_path, text):
    path = tmp_path / "bad.toml"
    path.write_text(text)
    with pytest.raises(ValueError, match=r"bad\.toml'"):
        tune.apply(SPEC, path)
    assert path.read_text() == text


def test_missing_and_binary_files(tmp_path):
    with pytest.raises(ValueError, match=r"No file .*nowhere\.toml'\. Make one with 'jaxprivrl tune"):
        tune.load(tmp_path / "nowhere.toml")
    (tmp_path / "b.toml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ValueError, match="is not a TOML file"):
        tune.load(tmp_path / "b.toml")


def test_shipped_files_are_readable_and_use_seeds_of_their_own():
    paths = sorted(tune.SHIPPED.glob("*.toml"))
    assert paths
    for path in paths:
        for key, table in tune.load(path).items():
            assert len(key) == 3 and table["bonus_scale"] > 0
            assert table["seed_start"] >= 1000, "the seeds of figures start at 0"


# -- statistics --------------------------------------------------------------------------------------


def test_holm():
    np.testing.assert_allclose(compare.holm([0.01, 0.04, 0.03]), [0.03, 0.06, 0.06])
    np.testing.assert_allclose(compare.holm([0.6, 0.5]), [1.0, 1.0])
    assert compare.holm([]) == []


def test_bootstrap_interval():
    rng = np.random.default_rng(3)
    values = rng.normal(10.0, 2.0, 400)
    low, high = compare.bootstrap_interval(values)
    error = values.std(ddof=1) / math.sqrt(400)
    assert low == pytest.approx(values.mean() - 1.96 * error, abs=0.05)
    assert high == pytest.approx(values.mean() + 1.96 * error, abs=0.05)
    assert compare.bootstrap_interval(values) == (low, high)
    assert compare.bootstrap_interval(np.array([3.0])) == (3.0, 3.0)
    assert compare.bootstrap_interval(np.full(5, 2.0)) == (2.0, 2.0)


def test_paired_p_value():
    rng = np.random.default_rng(4)
    x = rng.normal(size=20)
    assert compare.paired_p_value(x, x) == 1.0
    assert compare.paired_p_value(x, x + 1) == stats.wilcoxon(x, x + 1).pvalue < 1e-4
    assert compare.paired_p_value(x, x + rng.normal(size=20)) > 0.01
    for n in (1, 2, 3):
        assert 0 < compare.paired_p_value(x[:n], x[:n] + 1) <= 1
    some_equal = x.copy()
    some_equal[:15] += 0.5
    assert 0 < compare.paired_p_value(x, some_equal) < 0.01


def entry(name, final):
    final = np.asarray(final, float)
    return Entry(name, "exact", math.inf, "no privacy", np.array([9, 10]), np.stack([0.5 * final, final], 1))


def test_rank():
    rng = np.random.default_rng(5)
    base = rng.uniform(1, 2, 12)
    rows = compare.rank([entry("a", base), entry("b", base + 0.001 * rng.normal(size=12)), entry("c", base + 1)])
    assert [r["rank"] for r in rows] == [1, 2, 3] and [r["learner"] for r in rows] == ["a", "b", "c"]
    assert rows[0]["p_against_best"] is None and rows[1]["p_against_best"] > 0.05 > rows[2]["p_against_best"]
    for row, values in zip(rows, (base, None, base + 1), strict=True):
        assert row["ci95_low"] <= row["final_regret_mean"] <= row["ci95_high"]
        if values is not None:
            assert row["final_regret_mean"] == pytest.approx(values.mean())
            assert row["last_tenth_regret_per_episode"] == pytest.approx(0.5 * values.mean())


def test_rank_at_one_episode():
    alone = Entry("a", "exact", math.inf, "no privacy", np.array([1]), np.array([[2.0], [4.0]]))
    (row,) = compare.rank([alone])
    assert row["last_tenth_regret_per_episode"] == 3.0 == row["final_regret_mean"]


# -- comparisons -------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def compared(tiny):
    base = SPEC.replace(grid={"bonus_scale": 0.01}, epsilons=(100.0,))
    return compare.compare(compare.grid(base, ("ucb_vi",), ("exact", "central_laplace")), tiny)


def test_compare_ranks_every_cell(compared):
    rows, entries, data = compared
    assert [e.privatizer for e in entries] == [r["privatizer"] for r in rows] and len(data) == 2
    means = [r["final_regret_mean"] for r in rows]
    assert means == sorted(means)
    for e in entries:
        one = next(d for d in data if d.attrs["spec"]["privatizer"] == e.privatizer)
        np.testing.assert_array_equal(e.regret, one.regret.isel(epsilon=0).values)
    assert {r["guarantee"] for r in rows} == {"no privacy", "ε=100 (JDP)"}


def test_compare_is_saved_whole(compared, tmp_path):
    compare.save(*compared, tmp_path / "c")
    names = {str(p.relative_to(tmp_path / "c")) for p in (tmp_path / "c").rglob("*") if p.is_file()}
    folders = ("ucb_vi-exact", "ucb_vi-central_laplace")
    assert names == {f"comparison.{x}" for x in ("csv", "md", "png", "pdf")} | {
        f"{folder}/{name}" for folder in folders for name in ("results.nc", "run.json")
    }
    text = (tmp_path / "c" / "comparison.csv").read_text().split("\n")
    assert text[0].startswith("rank,learner,privatizer,guarantee") and len(text) == 4
    xr.testing.assert_equal(results.load(tmp_path / "c" / "ucb_vi-exact"), compared[2][0])


def test_grid_is_every_learner_with_every_privatizer():
    specs = compare.grid(SPEC, ("ucb_vi", "ucb_po"), ("exact", "local_laplace"))
    assert [(s.learner, s.privatizer) for s in specs] == [
        ("ucb_vi", "exact"),
        ("ucb_vi", "local_laplace"),
        ("ucb_po", "exact"),
        ("ucb_po", "local_laplace"),
    ]
    assert {s.seeds for s in specs} == {2}


def test_a_grid_of_hyper_parameters_is_refused(tiny, tuned):
    _, spec = tuned
    with pytest.raises(ValueError, match=r"takes one value of each parameter of a learner\. Tune them first"):
        compare.compare([spec], tiny)


def test_check_refuses_before_anything_runs(tiny):
    with pytest.raises(ValueError, match=r"Expected episodes=0 >= 1"):
        compare.check(SPEC.replace(episodes=0), tiny)
