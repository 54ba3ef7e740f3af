"""Results: the labelled Dataset, run folders and back, summaries, tables and figures."""

import json
import math

import numpy as np
import pieces
import pytest
import xarray as xr

from jaxprivrl.experiments import plots, results, tables
from jaxprivrl.experiments.spec import SweepSpec, resolve
from jaxprivrl.learners import LEARNERS

SPEC = SweepSpec(
    environment="random",
    learner="ucb_po",
    epsilons=(1.0, 10.0),
    grid={"bonus_scale": (0.1, 1.0), "learning_rate": (0.01, 0.1, 1.0)},
    seeds=3,
    seed_start=5,
    episodes=20,
    record_every=5,
)


@pytest.fixture(scope="module")
def mdp():
    return pieces.random_mdp(0, (2, 2, 2))


def dataset(mdp, **changes):
    """A Dataset of increasing made-up regrets."""
    plan = resolve(SPEC.replace(**changes), mdp)
    rng = np.random.default_rng(0)
    regret = np.cumsum(rng.uniform(size=(len(plan.grid), plan.spec.seeds, len(plan.job.records))), -1)
    return results.to_dataset(plan, {"regret": regret}, {"compile": 1.5, "run": 0.25}), regret


def test_axes_and_coordinates(mdp):
    data, regret = dataset(mdp)
    assert data.regret.dims == ("epsilon", "bonus_scale", "learning_rate", "seed", "episode")
    assert list(data.seed.values) == [5, 6, 7] and list(data.episode.values) == [5, 10, 15, 18, 20]
    cell = data.regret.sel(epsilon=10.0, bonus_scale=0.1, learning_rate=1.0)
    np.testing.assert_array_equal(cell, regret[6 + 2])
    np.testing.assert_allclose(data.epsilon_pure, [1.0, 10.0])
    np.testing.assert_allclose(data.noise_scale[0] / data.noise_scale[1], 10.0)
    assert np.all(data.epsilon_at_delta <= data.epsilon_pure)
    assert data.attrs["labels"] == ["ε=1 (JDP)", "ε=10 (JDP)"] and data.attrs["spec"]["learner"] == "ucb_po"


def test_cells_come_in_the_order_of_the_grid(mdp):
    """With all parameters of the learner, those of one value included."""
    data, regret = dataset(mdp)
    assert data.attrs["parameters"] == [p.name for p in LEARNERS["ucb_po"].parameters]
    found = list(results.cells(data))
    assert [(SPEC.epsilons[i], values) for i, values, _ in found] == [
        (row["epsilon"], {name: row[name] for name in data.attrs["parameters"]}) for row in resolve(SPEC, mdp).grid
    ]
    for (_, _, cell), values in zip(found, regret, strict=True):
        np.testing.assert_array_equal(cell.regret, values)


def test_axes_of_one_value_become_scalars(mdp):
    data, _ = dataset(mdp, grid={"bonus_scale": 0.5})
    assert data.regret.dims == ("epsilon", "seed", "episode")
    assert float(data.bonus_scale) == 0.5 and float(data.learning_rate) > 0


def test_save_and_load(mdp, tmp_path):
    data, _ = dataset(mdp, privatizer="exact")
    folder = results.save(data, tmp_path / "deep" / "run")
    assert sorted(p.name for p in folder.iterdir()) == ["results.nc", "run.json"]
    again = results.load(folder)
    xr.testing.assert_equal(again, data)
    assert again.attrs["labels"] == ["no privacy"] and again.attrs["seconds"] == {"compile": 1.5, "run": 0.25}
    facts = json.loads((folder / "run.json").read_text(), parse_constant=pytest.fail)
    assert facts["guarantee"][0]["epsilon_pure"] == "inf" and facts["seconds"]["run"] == 0.25
    assert facts["summary"][0]["epsilon"] == "inf" and facts["versions"]["jax"]
    assert results.summarize(again) == facts["summary"]


def test_save_refuses_to_overwrite(mdp, tmp_path):
    first, second = dataset(mdp)[0], dataset(mdp, seed_start=50)[0]
    folder = results.save(first, tmp_path / "run")
    before = {p.name: p.read_bytes() for p in folder.iterdir()}
    with pytest.raises(ValueError, match=r"already holds results\. Pass --overwrite or another --out"):
        results.save(second, folder)
    assert before == {p.name: p.read_bytes() for p in folder.iterdir()}
    results.save(second, folder, overwrite=True)
    assert list(results.load(folder).seed.values) == [50, 51, 52]
    assert [p.name for p in tmp_path.iterdir()] == ["run"]


def test_a_failed_save_keeps_the_old_run(mdp, tmp_path, monkeypatch):
    data, _ = dataset(mdp)
    folder = results.save(data, tmp_path / "run")
    before = {p.name: p.read_bytes() for p in folder.iterdir()}

    def fail(_):
        raise OSError("disk full")

    monkeypatch.setattr(results, "describe", fail)
    for out in (folder, tmp_path / "other"):
        with pytest.raises(OSError, match="disk full"):
            results.save(data, out, overwrite=True)
    assert before == {p.name: p.read_bytes() for p in folder.iterdir()}
    assert [p.name for p in tmp_path.iterdir()] == ["run"]


def test_empty_folders_are_free_and_others_are_not(mdp, tmp_path):
    (tmp_path / "empty").mkdir()
    results.save(dataset(mdp)[0], tmp_path / "empty")
    (tmp_path / "notes.txt").write_text("mine")
    for folder, message in ((tmp_path, "holds other files"), (tmp_path / "notes.txt", "is a file")):
        with pytest.raises(ValueError, match=message):
            results.check_free(folder, overwrite=True)


def test_load_explains_itself(tmp_path):
    with pytest.raises(ValueError, match=r"holds no results\.nc; expected a run folder"):
        results.load(tmp_path)
    (tmp_path / "results.nc").write_bytes(b"nothing")
    with pytest.raises(ValueError, match=r"is not a results file of this package"):
        results.load(tmp_path)
    other = xr.Dataset({"x": ("t", np.arange(3))}, attrs={"labels": "["})
    other.to_netcdf(tmp_path / "results.nc", engine="h5netcdf")
    with pytest.raises(ValueError, match=r"is not a results file of this package"):
        results.load(tmp_path)


def test_load_refuses_a_dataset_of_another_kind(tmp_path):
    xr.Dataset({"x": ("t", np.arange(3))}).to_netcdf(tmp_path / "results.nc", engine="h5netcdf")
    with pytest.raises(ValueError, match=r"is not a results file of this package"):
        results.load(tmp_path)


def test_summary(mdp):
    data, regret = dataset(mdp)
    rows = results.summarize(data)
    assert len(rows) == 12 and len(json.dumps(rows)) > 0
    for row, values in zip(rows, regret, strict=True):
        assert row["final_regret_mean"] == pytest.approx(values[:, -1].mean())
        assert row["final_regret_std"] == pytest.approx(values[:, -1].std(ddof=1))
        assert row["last_tenth_regret_per_episode"] == pytest.approx(((values[:, 4] - values[:, 3]) / 2).mean())
    assert [(r["epsilon"], r["bonus_scale"], r["learning_rate"]) for r in rows][:4] == [
        (1.0, 0.1, 0.01),
        (1.0, 0.1, 0.1),
        (1.0, 0.1, 1.0),
        (1.0, 1.0, 0.01),
    ]
    alone = results.summarize(dataset(mdp, seeds=1)[0])
    assert all(row["final_regret_std"] == 0.0 for row in alone)


@pytest.mark.parametrize(("episodes", "ninety"), [(1, 0), (9, 8), (10, 9), (11, 9), (20, 18), (25, 22)])
def test_last_tenth_starts_after_nine_tenths(mdp, episodes, ninety):
    data, _ = dataset(mdp, episodes=episodes, record_every=1, epsilons=(1.0,), grid={"bonus_scale": 1.0})
    regret = np.concatenate([np.zeros((1, 3, 1)), data.regret.values], -1)
    want = (regret[..., episodes] - regret[..., ninety]) / (episodes - ninety)
    np.testing.assert_allclose(results.last_tenth(data), want)


def test_json_safe():
    tree = {1e-5: [np.float32(0.5), np.int64(3), math.inf, -math.inf, None, True, "x"], "t": (np.inf,)}
    assert results.json_safe(tree) == {"1e-05": [0.5, 3, "inf", "-inf", None, True, "x"], "t": ["inf"]}
    assert json.loads(json.dumps(results.json_safe(tree)))["t"] == ["inf"]


ROWS = [{"name": "a", "n": 1, "x": 0.123456}, {"name": "bc", "n": 20, "x": 123456.7}, {"name": "d", "n": 3, "x": None}]


def test_tables():
    lines = tables.plain(ROWS).split("\n")
    assert lines[0].split() == ["name", "n", "x"] and lines[2].split() == ["a", "1", "0.1235"]
    assert lines[3].split() == ["bc", "20", "123,457"] and lines[4].split() == ["d", "3"]
    assert tables.markdown(ROWS).split("\n")[2] == "| a | 1 | 0.1235 |"
    assert tables.to_csv(ROWS).split("\n")[:3] == ["name,n,x", "a,1,0.123456", "bc,20,123456.7"]


def test_tables_of_nothing():
    assert tables.plain([]).strip() == "" and tables.to_csv([]).strip() == ""


def test_cells_that_would_break_a_markdown_row():
    text = tables.markdown([{"who": "a|b", "note": "two\nlines"}])
    assert len(text.strip().split("\n")) == 3 and text.strip().split("\n")[2].count(" | ") == 1


def test_regret_figure(mdp, tmp_path):
    private, _ = dataset(mdp, grid={"bonus_scale": 1.0})
    exact, _ = dataset(mdp, privatizer="exact", grid={"bonus_scale": 1.0})
    axes = plots.regret([exact, private])
    labels = [text.get_text() for text in axes.get_legend().get_texts()]
    assert labels == [
        "ucb_po, exact: no privacy",
        "ucb_po, central_laplace: ε=1 (JDP)",
        "ucb_po, central_laplace: ε=10 (JDP)",
    ]
    black, *others = [line.get_color() for line in axes.get_lines()]
    assert black == "black" and len(set(others)) == 2 and "black" not in others
    mean = private.regret.isel(epsilon=0).mean("seed")
    np.testing.assert_allclose(axes.get_lines()[1].get_ydata(), mean)
    plots.save(axes.figure, tmp_path / "a" / "r.png", tmp_path / "r.pdf")
    assert (tmp_path / "a" / "r.png").stat().st_size > 2000 and (tmp_path / "r.pdf").stat().st_size > 2000


def test_figure_of_a_hyper_parameter_grid_names_every_cell(mdp):
    data, _ = dataset(mdp, epsilons=(1.0,), calibration="printed")
    axes = plots.regret([data])
    labels = [text.get_text() for text in axes.get_legend().get_texts()]
    assert len(set(labels)) == 6 and all("bonus ×" in x and "η =" in x for x in labels)
    assert all("nominal ε=1, holds: ε=" in x and "(printed)" in x for x in labels)
    plots.save(axes.figure)


def test_figure_of_one_seed(mdp):
    data, _ = dataset(mdp, seeds=1, grid={"bonus_scale": 1.0})
    plots.save(plots.regret([data]).figure)
