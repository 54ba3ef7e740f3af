"""`jaxprivrl sweep`: its JSON, its run folder, what it never overwrites."""

import dataclasses
import json
import math

import numpy as np
import pytest
from commands import SMALL, check_refused, files

from jaxprivrl.cli import simulate
from jaxprivrl.experiments import results
from jaxprivrl.experiments.spec import SweepSpec
from jaxprivrl.learners import LEARNERS

SUMMARY_KEYS = {
    "epsilon",
    "final_regret_mean",
    "final_regret_std",
    "last_tenth_regret_per_episode",
    "guarantee",
}


def test_sweep_json(run, swept, mdp_file, tmp_path):
    code, out, _ = run("sweep", "--mdp", mdp_file, *SMALL, "--epsilons", 50, "--out", "runs/a", "--json")
    found = json.loads(out)
    assert code == 0 and set(found) == {"summary", "seconds", "out"}
    assert set(found["seconds"]) == {"compile", "run"} and found["out"] == "runs/a"
    (row,) = found["summary"]
    assert set(row) >= SUMMARY_KEYS and row["epsilon"] == 50.0 and row["bonus_scale"] == 1.0
    assert set(row) >= {parameter.name for parameter in LEARNERS["ucb_vi"].parameters} and "learning_rate" not in row
    assert "epsilon=50" in row["guarantee"] and "JDP" in row["guarantee"]
    data = results.load(tmp_path / "runs/a")
    final = data.regret.isel(episode=-1, epsilon=0).values
    assert row["final_regret_mean"] == pytest.approx(final.mean())
    assert row["final_regret_std"] == pytest.approx(final.std(ddof=1))
    tenth = (final - data.regret.sel(episode=18).isel(epsilon=0).values) / 2
    assert row["last_tenth_regret_per_episode"] == pytest.approx(tenth.mean())
    np.testing.assert_array_equal(data.regret, results.load(swept[0]).regret)


def test_policy_optimization_has_a_step_size_of_its_own(run, mdp_file):
    code, out, _ = run("sweep", "--mdp", mdp_file, *SMALL, "--privatizer", "exact", "--learner", "ucb_po", "--json")
    (row,) = json.loads(out)["summary"]
    assert code == 0 and set(row) >= {parameter.name for parameter in LEARNERS["ucb_po"].parameters}
    assert row["learning_rate"] == pytest.approx(math.sqrt(2 * math.log(2) / (4 * 20)))


def test_metrics_are_recorded_beside_the_regret(run, mdp_file, tmp_path):
    metric = LEARNERS["ucb_vi"].metrics[0].name
    sweep = ("sweep", "--mdp", mdp_file, *SMALL, "--privatizer", "exact", "--out", "a", "--json")
    code, out, _ = run(*sweep, "--metrics", metric)
    (row,) = json.loads(out)["summary"]
    assert code == 0 and set(results.load(tmp_path / "a").data_vars) == {"regret", metric}
    assert row[metric] == pytest.approx(float(results.load(tmp_path / "a")[metric].isel(episode=-1).mean()))
    check_refused(run(*sweep, "--overwrite", "--metrics", "value"), "Unknown metric of ucb_vi 'value'", metric)


def test_run_folder(swept):
    folder, _ = swept
    assert files(folder) == ["results.nc", "run.json"] and files(folder.parent) == ["central", *sorted(
        f"central/{name}" for name in ("results.nc", "run.json"))]  # fmt: skip
    facts = json.loads((folder / "run.json").read_text())
    assert set(facts) >= {"spec", "guarantee", "versions", "device", "seconds"}
    assert set(facts["spec"]) == {field.name for field in dataclasses.fields(SweepSpec)}
    assert facts["spec"]["epsilons"] == [50.0] and facts["spec"]["episodes"] == 20
    assert facts["spec"]["environment"].startswith("file:") and len(facts["spec"]["mdp_hash"]) == 64
    assert facts["guarantee"][0]["epsilon_pure"] == pytest.approx(50.0)
    assert facts["guarantee"][0]["max_episodes"] == 20 and facts["guarantee"][0]["calibration"] == "tight"


def test_sweep_in_words(run, mdp_file):
    code, out, _ = run("sweep", "--mdp", mdp_file, *SMALL, "--epsilons", 50)
    assert code == 0 and "final_regret_mean" in out and "Guarantee: epsilon=50" in out and "Compiled in" in out


def test_exact_prints_inf_as_a_string(run, mdp_file, tmp_path):
    code, out, _ = run("sweep", "--mdp", mdp_file, *SMALL, "--privatizer", "exact", "--json")
    (row,) = json.loads(out)["summary"]
    assert code == 0 and row["epsilon"] == "inf" and row["guarantee"] == "none" and json.loads(out)["out"] is None
    assert files(tmp_path) == []


def test_printed_calibration_says_what_holds(run, mdp_file):
    command = ("sweep", "--mdp", mdp_file, *SMALL, "--epsilons", 50, "--calibration", "printed")
    code, out, _ = run(*command, "--json")
    (row,) = json.loads(out)["summary"]
    assert code == 0 and "nominal epsilon=50 does not hold" in row["guarantee"]
    assert row["accounting"]["epsilon_pure"] == pytest.approx(50 * 2 * 5 / math.log(20))


def test_dry_run(run, mdp_file, tmp_path):
    argv = ("sweep", "--mdp", mdp_file, *SMALL, "--epsilons", "1", "2", "--out", "runs/a", "--dry-run")
    code, out, err = run(*argv, "--json")
    facts = json.loads(out)
    assert code == 0 and err == "" and facts["runs"] == 4 and facts["grid_cells"] == 2 and files(tmp_path) == []
    assert facts["state_bytes_per_run"] > 0
    code, out, _ = run(*argv)
    assert code == 0 and "state_bytes_per_run" in out


def test_results_are_kept_unless_overwrite(run, mdp_file, swept, tmp_path):
    command = ("sweep", "--mdp", mdp_file, *SMALL, "--epsilons", 50, "--out", tmp_path / "a")
    assert run(*command)[0] == 0
    before = {name: (tmp_path / "a" / name).read_bytes() for name in ("results.nc", "run.json")}
    check_refused(run(*command, "--seed-start", 7), r"already holds results. Pass --overwrite or another --out.")
    assert {name: (tmp_path / "a" / name).read_bytes() for name in before} == before
    assert run(*command, "--seed-start", 7, "--overwrite")[0] == 0
    assert list(results.load(tmp_path / "a").seed.values) == [7, 8] and files(tmp_path / "a") == sorted(before)


def test_other_files_are_never_replaced(run, mdp_file, tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "thesis.tex").write_text("all of it")
    command = ("sweep", "--mdp", mdp_file, *SMALL, "--out", tmp_path / "a", "--overwrite")
    check_refused(run(*command), "holds other files")
    assert (tmp_path / "a" / "thesis.tex").read_text() == "all of it"
    check_refused(run("sweep", "--mdp", mdp_file, *SMALL, "--out", tmp_path / "a" / "thesis.tex"), "is a file")
    check_refused(run("sweep", "--mdp", mdp_file, *SMALL, "--out", tmp_path / "a" / "thesis.tex" / "b"), "is a file")
    assert files(tmp_path) == ["a", "a/thesis.tex"]


@pytest.mark.parametrize("calls", [1, 2])
def test_interrupted_run_writes_nothing(run, mdp_file, swept, monkeypatch, tmp_path, calls):
    count = iter(range(10))

    def interrupted(label):
        def update(done, total, seconds):
            if next(count) + 1 >= calls:
                raise KeyboardInterrupt

        return update

    monkeypatch.setattr(simulate, "progress_bar", interrupted)
    code, out, err = run("sweep", "--mdp", mdp_file, *SMALL, "--epsilons", 50, "--out", "runs/a")
    assert code == 130 and out == "" and err.count("\n") == 1 and "interrupted" in err
    assert files(tmp_path) == []


def test_user_mdp_with_horizon_and_bernoulli_costs(run, tmp_path):
    np.savez("small.npz", costs=np.full((1, 2, 2), 0.5), transitions=np.full((1, 2, 2, 2), 0.5), initial=1)
    argv = ("sweep", "--mdp", "small.npz", "--dry-run", "--homogeneous", "--bernoulli-costs", *SMALL)
    check_refused(run(*argv), "no horizon is given")
    assert run(*argv, "--horizon", 3)[0] == 0
