"""`jaxprivrl tune` and `jaxprivrl compare`."""

import json
from pathlib import Path

from commands import SMALL, check_refused, files


def test_tune_then_sweep_and_compare(run, mdp_file, tmp_path):
    tune = ("tune", "--mdp", mdp_file, "--learners", "ucb_vi", "--privatizers", "exact", *SMALL)
    code, out, _ = run(*tune, "--bonus-scales", 0.01, 1, "--out", "tuned.toml", "--json")
    found = json.loads(out)
    assert code == 0 and found["out"] == "tuned.toml"
    (row,) = found["tuned"]
    assert row["bonus_scale"] in (0.01, 1.0) and row["seed_start"] == 1_000_000 and row["episodes"] == 20
    sweep = ("sweep", "--mdp", mdp_file, *SMALL, "--privatizer", "exact", "--tuned", "tuned.toml", "--json")
    code, out, _ = run(*sweep)
    assert code == 0 and json.loads(out)["summary"][0]["bonus_scale"] == row["bonus_scale"]
    check_refused(run(*sweep, "--seed-start", 1_000_001), "were used for tuning", "Pass another --seed-start")
    check_refused(run(*sweep, "--learner", "ucb_po"), "has no table", "ucb_po.exact")

    compare = ("compare", "--mdp", mdp_file, *SMALL, "--learners", "ucb_vi", "--epsilons", 50)
    code, out, _ = run(*compare, "--privatizers", "exact", "central_laplace", "--out", "cmp", "--json")
    ranking = json.loads(out)["ranking"]
    assert code == 0 and [r["rank"] for r in ranking] == [1, 2] and ranking[0]["p_against_best"] is None
    assert {r["privatizer"] for r in ranking} == {"exact", "central_laplace"}
    wrote = files("cmp")
    for name in ("comparison.csv", "comparison.md", "comparison.png", "comparison.pdf", "ucb_vi-exact/results.nc"):
        assert name in wrote
    kept = {p: (tmp_path / "cmp" / p).read_bytes() for p in wrote if (tmp_path / "cmp" / p).is_file()}
    check_refused(run(*compare, "--privatizers", "exact", "--out", "cmp"), "already holds a comparison", "--overwrite")
    assert kept == {p: (tmp_path / "cmp" / p).read_bytes() for p in kept}
    code, out, _ = run(*compare, "--privatizers", "exact", "--out", "cmp", "--overwrite")
    assert code == 0 and "Wilcoxon" in out


def test_bad_tune_and_compare_write_nothing(run, mdp_file, tmp_path):
    base = ("--mdp", mdp_file, *SMALL)
    tune = ("tune", *base, "--out", "t.toml")
    check_refused(run(*tune, "--privatizers", "exact", "lokal_laplace"), "Did you mean 'local_laplace'?")
    check_refused(run(*tune, "--learners", "ucb_vy"), "Did you mean 'ucb_vi'?")
    check_refused(run("compare", *base, "--learners", "ucb_vi", "pukb", "--out", "c"), "Did you mean 'pucb'?")
    check_refused(run("compare", *base, "--epsilons", "0", "--out", "c"), "epsilon=0.0 > 0")
    check_refused(run("compare", *base, "--tuned", "no.toml", "--out", "c"), "No file 'no.toml'")
    assert files(tmp_path) == []
    Path("t.toml").write_text("[[[")
    check_refused(run(*tune), "is not a TOML file", "Make one with")
    check_refused(run("compare", *base, "--out", "t.toml"), "is a file")
    assert files(tmp_path) == ["t.toml"] and Path("t.toml").read_text() == "[[["


def test_tune_and_compare_of_nothing_are_refused(run, mdp_file, tmp_path):
    base = ("--mdp", mdp_file, *SMALL)
    for command, out in (("tune", "t.toml"), ("compare", "c")):
        for kind in ("--learners", "--privatizers"):
            check_refused(run(command, *base, "--out", out, kind), f"{kind} to name at least one", "Leave it out")
    assert files(tmp_path) == []


def test_compare_and_tune_take_no_single_privatizer(run, mdp_file, tmp_path):
    """Theirs are --privatizers; a flag that would be ignored is an error."""
    for command in ("tune", "compare"):
        code, out, err = run(command, "--mdp", mdp_file, *SMALL, "--privatizer", "exact", "--out", "x.toml")
        assert code == 2 and out == "" and err
    assert files(tmp_path) == []


def test_compare_refuses_parameters_that_do_not_fit(run, mdp_file, tmp_path):
    compare = ("compare", "--mdp", mdp_file, *SMALL, "--privatizers", "exact", "--out", "c")
    check_refused(run(*compare, "--learners", "ucb_vi", "--learning-rate", 0.1), "None of ucb_vi has a learning_rate")
    check_refused(run(*compare, "--learners", "ucb_vi", "--grid", "bonus=1"), "Did you mean 'bonus_scale'?")
    two = run(*compare, "--learners", "ucb_vi", "--grid", "bonus_scale=1,2")
    check_refused(two, "A comparison takes one value of each parameter of a learner. Tune them first.")
    assert files(tmp_path) == []
