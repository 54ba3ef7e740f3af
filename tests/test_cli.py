"""The command line, in process: every command, its JSON, its exit codes, and that bad input writes nothing."""

import json
import math
import resource
import subprocess
import sys
from pathlib import Path

import numpy as np
import pieces
import pytest

from jaxprivrl import environments, results
from jaxprivrl.__main__ import main
from jaxprivrl.cli import COMMANDS, simulate
from jaxprivrl.learners import LEARNERS
from jaxprivrl.privatizers import PRIVATIZERS

SMALL = ("--seeds", "2", "--episodes", "20")
SUMMARY_KEYS = {
    "epsilon",
    "bonus_scale",
    "learning_rate",
    "final_regret_mean",
    "final_regret_std",
    "last_tenth_regret_per_episode",
    "guarantee",
}
ACCOUNT_KEYS = {
    "noise_scale",
    "sensitivity_l1",
    "sensitivity_l2",
    "levels",
    "epsilon_pure",
    "epsilon_at_delta",
    "model",
    "neighbours",
    "calibration",
    "statement",
}


@pytest.fixture(scope="module", autouse=True)
def quick():
    with pieces.quick_sweeps():
        yield


@pytest.fixture(scope="module")
def mdp_file(tmp_path_factory):
    """A small MDP of a user: two steps, two states, two actions."""
    mdp = pieces.random_mdp(0, (2, 2, 2))
    path = tmp_path_factory.mktemp("mdp") / "small.npz"
    np.savez(path, costs=mdp.costs, transitions=mdp.transitions, initial=mdp.initial)
    return str(path)


@pytest.fixture
def run(capsys, monkeypatch, tmp_path):
    """Runs a command in an empty folder; returns (exit code, stdout, stderr)."""
    monkeypatch.chdir(tmp_path)

    def call(*argv):
        try:
            code = main([str(a) for a in argv])
        except SystemExit as error:
            code = error.code
        out, err = capsys.readouterr()
        return code, out, err

    return call


def files(folder):
    return sorted(str(p.relative_to(folder)) for p in Path(folder).rglob("*"))


# -- help ------------------------------------------------------------------------------------------


def child_seconds():
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def test_help_is_quick_and_imports_no_jax():
    """Processor time, so that a busy machine does not fail it."""
    before = child_seconds()
    help_ = subprocess.run([sys.executable, "-m", "jaxprivrl", "--help"], capture_output=True, text=True, check=False)
    assert child_seconds() - before < 3
    assert help_.returncode == 0 and all(name in help_.stdout for name in COMMANDS)
    script = (
        "import sys\nfrom jaxprivrl.__main__ import main\n"
        "try:\n    main(['sweep', '--help'])\nexcept SystemExit:\n    pass\n"
        "print(sorted({'jax', 'xarray', 'matplotlib', 'scipy'} & set(sys.modules)), file=sys.stderr)\n"
    )
    probe = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert probe.stderr.strip() == "[]" and "--epsilons" in probe.stdout


@pytest.mark.parametrize("command", COMMANDS)
def test_help_of_every_command(run, command):
    code, out, err = run(command, "--help")
    assert code == 0 and err == "" and "--help" in out


def test_unknown_flag_and_command(run, tmp_path):
    for argv in (("sweep", "--episods", "3"), ("swep",), ()):
        code, out, err = run(*argv)
        assert code == 2 and out == "" and err
    assert files(tmp_path) == []


# -- sweep -----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def swept(mdp_file, tmp_path_factory):
    """A run folder made by the command line, and what was printed."""
    out = tmp_path_factory.mktemp("runs") / "central"
    command = ["sweep", "--mdp", mdp_file, *SMALL, "--epsilons", "50", "--out", str(out)]
    assert main(command) == 0
    return out, command


def test_sweep_json(run, swept, mdp_file, tmp_path):
    code, out, _ = run("sweep", "--mdp", mdp_file, *SMALL, "--epsilons", 50, "--out", "runs/a", "--json")
    found = json.loads(out)
    assert code == 0 and set(found) == {"summary", "seconds", "out"}
    assert set(found["seconds"]) == {"compile", "run"} and found["out"] == "runs/a"
    (row,) = found["summary"]
    assert set(row) >= SUMMARY_KEYS and row["epsilon"] == 50.0 and row["bonus_scale"] == 1.0
    assert row["learning_rate"] == pytest.approx(math.sqrt(2 * math.log(2) / (4 * 20)))
    assert "epsilon=50" in row["guarantee"] and "JDP" in row["guarantee"]
    data = results.load(tmp_path / "runs/a")
    final = data.regret.isel(episode=-1, epsilon=0).values
    assert row["final_regret_mean"] == pytest.approx(final.mean())
    assert row["final_regret_std"] == pytest.approx(final.std(ddof=1))
    tenth = (final - data.regret.sel(episode=18).isel(epsilon=0).values) / 2
    assert row["last_tenth_regret_per_episode"] == pytest.approx(tenth.mean())
    np.testing.assert_array_equal(data.regret, results.load(swept[0]).regret)


def test_run_folder(swept):
    folder, _ = swept
    assert files(folder) == ["results.nc", "run.json"] and files(folder.parent) == ["central", *sorted(
        f"central/{name}" for name in ("results.nc", "run.json"))]  # fmt: skip
    facts = json.loads((folder / "run.json").read_text())
    assert set(facts) >= {"spec", "guarantee", "versions", "device", "seconds"}
    assert facts["spec"]["epsilons"] == [50.0] and facts["spec"]["episodes"] == 20
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


# -- bad input -------------------------------------------------------------------------------------


def check_refused(answer, *words):
    """Exit code 2, nothing on stdout, one line on stderr with all the words."""
    code, out, err = answer
    assert code == 2 and out == "", answer
    assert err.count("\n") == 1 and err.startswith("jaxprivrl: "), err
    for word in words:
        assert word in err, err


BAD_FLAGS = {
    "epsilon zero": (("--epsilons", "0"), "epsilon=0.0 > 0. Use epsilon=inf"),
    "epsilon negative": (("--epsilons", "1", "-2"), "epsilon=-2.0 > 0"),
    "epsilon nan": (("--epsilons", "nan"), "epsilon=nan > 0"),
    "learner": (("--learner", "ucbvi"), "Unknown learner 'ucbvi'. Did you mean 'ucb_vi'? Available: "),
    "privatizer": (("--privatizer", "central_laplas"), "Did you mean 'central_laplace'? Available: "),
    "calibration": (("--calibration", "tite"), "Unknown calibration 'tite'. ", "Available: "),
    "postprocess": (("--postprocess", "klip"), "Did you mean 'clip'? Available: "),
    "target": (("--target", "puree"), "Unknown target 'puree'. ", "Available: "),
    "episodes": (("--episodes", "0"), "episodes=0 >= 1. Pass the number of users"),
    "episodes negative": (("--episodes", "-5"), "episodes=-5 >= 1"),
    "seeds": (("--seeds", "0"), "seeds=0 >= 1"),
    "families": (("--families", "4"), "families=4 to be 3"),
    "failure_prob": (("--failure-prob", "0"), "0 < failure_prob=0.0 < 1"),
    "dp_delta": (("--dp-delta", "2"), "0 < dp_delta=2.0 < 1"),
    "bonus": (("--bonus-scales", "-1"), "bonus_scale=-1.0"),
    "record": (("--record-every", "0"), "record_every=0 >= 1"),
    "printed at one": (("--episodes", "1", "--calibration", "printed"), "ln 1 = 0", "Use calibration='tight'"),
    "pooled": (("--homogeneous",), "stages of this MDP differ", "Drop homogeneous"),
    "horizon": (("--horizon", "3"), "disagree", "[2, 3]"),
    "tuned": (("--tuned", "nowhere.toml"), "No file 'nowhere.toml'. Make one with 'jaxprivrl tune"),
}


@pytest.mark.parametrize("case", BAD_FLAGS)
def test_bad_flags_write_nothing(run, mdp_file, tmp_path, case):
    flags, *words = BAD_FLAGS[case]
    check_refused(run("sweep", "--mdp", mdp_file, *SMALL, "--out", "runs/a", *flags), *words)
    assert files(tmp_path) == []


def test_unknown_environment(run, tmp_path):
    check_refused(run("sweep", "--environment", "riverswim", *SMALL, "--out", "a"), "Did you mean 'river_swim'?")
    check_refused(run("sweep", "--horizon", 0, *SMALL, "--out", "a"), "horizon=0 >= 1")
    assert files(tmp_path) == []


def row_off(p):
    p[1, 0, 1, 0] += 0.1


def row_negative(p):
    p[1, 0, 1] = [-0.5, 1.5]


BAD_MDPS = {
    "row": ({"transitions": row_off}, "transitions[h=1, s=0, a=1] sums to 1.1; expected 1"),
    "negative": ({"transitions": row_negative}, "transitions[h=1, s=0, a=1, s2=0] is -0.5", "expected a probability"),
    "cost": ({"costs": lambda c: np.put(c, 0, 1.5)}, "costs[h=0, s=0, a=0] is 1.5; expected 0 to 1"),
    "shapes": ({"costs": lambda c: np.zeros((2, 3, 2))}, "transitions has shape (2, 2, 2, 2)", "expected"),
    "start": ({"initial": lambda x: np.array(9)}, "initial=9 is not a state"),
}


@pytest.mark.parametrize("case", BAD_MDPS)
def test_bad_mdp_files_write_nothing(run, mdp_file, tmp_path, case):
    changes, *words = BAD_MDPS[case]
    with np.load(mdp_file) as file:
        arrays = {name: np.array(file[name]) for name in file.files}
    for name, change in changes.items():
        changed = change(arrays[name])
        arrays[name] = arrays[name] if changed is None else changed
    np.savez("bad.npz", **arrays)
    check_refused(run("sweep", "--mdp", "bad.npz", *SMALL, "--out", "runs/a"), *words)
    assert files(tmp_path) == ["bad.npz"]


def test_files_that_are_not_mdps(run, tmp_path):
    Path("a.npz").write_text("not an archive")
    check_refused(run("sweep", "--mdp", "a.npz", *SMALL, "--out", "runs/a"), "'a.npz' is not an .npz file", "savez")
    check_refused(run("sweep", "--mdp", "b.npz", *SMALL, "--out", "runs/a"), "No file 'b.npz'", "Pass an .npz")
    assert files(tmp_path) == ["a.npz"]


# -- tune and compare ------------------------------------------------------------------------------


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


# -- plot ------------------------------------------------------------------------------------------


def test_plot(run, swept, tmp_path):
    folder, _ = swept
    for name in ("regret.png", "figures/regret.pdf"):
        code, out, err = run("plot", folder, folder, "--out", name)
        assert code == 0 and err == "" and name in out and (tmp_path / name).stat().st_size > 2000


def test_bad_plots_write_nothing(run, swept, tmp_path):
    folder, _ = swept
    check_refused(run("plot", folder, "--out", "regret.doc"), "to end in .png, .pdf or .svg")
    check_refused(run("plot", tmp_path, "--out", "r.png"), "holds no results.nc", "jaxprivrl sweep --out")
    check_refused(run("plot", "--out", "r.png"), "at least one run folder")
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "results.nc").write_text("not netCDF")
    check_refused(run("plot", "broken", "--out", "r.png"), "is not a results file", "Run the sweep again")
    (tmp_path / "taken.png").mkdir()
    check_refused(run("plot", folder, "--out", "taken.png"), "taken.png is a folder")
    assert files(tmp_path) == ["broken", "broken/results.nc", "taken.png"]


# -- account, audit, list, mechanisms --------------------------------------------------------------


def test_account_json(run):
    flags = ("--epsilon", 1, "--horizon", 20, "--episodes", 20_000, "--json")
    code, out, err = run("account", "--privatizer", "central_laplace", *flags)
    facts = json.loads(out)
    assert code == 0 and err == "" and set(facts) >= ACCOUNT_KEYS
    assert facts["noise_scale"] == pytest.approx(1800) and facts["levels"] == 15
    assert facts["sensitivity_l1"] == 120 and facts["sensitivity_l2"] == pytest.approx(10.954, abs=1e-3)
    assert facts["epsilon_pure"] == pytest.approx(1) and facts["model"] == "JDP" and facts["neighbours"] == "replace"
    assert facts["epsilon_at_delta"]["1e-05"] == pytest.approx(0.07, abs=0.01) and facts["calibration"] == "tight"
    code, out, _ = run("account", "--privatizer", "local_laplace", *flags)
    facts = json.loads(out)
    assert facts["noise_scale"] == pytest.approx(120) and facts["levels"] == 1 and facts["model"] == "LDP"


def test_account_of_a_noise_scale_and_in_words(run):
    sizes = ("--horizon", 2, "--episodes", 4)
    code, out, _ = run("account", "--privatizer", "local_laplace", "--noise-scale", 6, *sizes, "--json")
    assert code == 0 and json.loads(out)["epsilon_pure"] == pytest.approx(2.0)
    code, out, _ = run("account", "--epsilon", 1, *sizes)
    assert code == 0 and "noise_scale" in out and "joint differential privacy" in out
    code, out, _ = run("account", "--privatizer", "exact", "--epsilon", 1, *sizes, "--json")
    assert json.loads(out)["epsilon_pure"] == "inf" and json.loads(out)["model"] == "none"


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ((), ("either --epsilon or --noise-scale",)),
        (("--epsilon", 1, "--noise-scale", 1), ("not both",)),
        (("--epsilon", 0), ("epsilon=0.0 > 0",)),
        (("--epsilon", "nan"), ("epsilon=nan > 0",)),
        (("--noise-scale", -1), ("noise_scale=-1.0",)),
        (("--epsilon", 1, "--privatizer", "central_laplac"), ("Did you mean 'central_laplace'?",)),
        (("--epsilon", 1, "--neighbours", "swap"), ("Unknown neighbours 'swap'", "replace")),
        (("--epsilon", 1, "--calibration", "x"), ("Unknown calibration 'x'", "tight")),
        (("--epsilon", 1, "--episodes", 0), ("episodes=0 >= 1",)),
        (("--epsilon", 1, "--horizon", 0), ("horizon=0 >= 1",)),
        (("--epsilon", 1, "--dp-delta", 0), ("0 < dp_delta=0.0 < 1",)),
        (("--epsilon", 1, "--families", 5), ("families=5",)),
        (("--epsilon", 1, "--privatizer", "central_gaussian", "--target", "pure"), ("no pure epsilon", "approximate")),
    ],
)
def test_bad_accounts(run, flags, words):
    check_refused(run("account", "--horizon", 2, "--episodes", 4, *flags), *words)


def test_audit_verdicts(run):
    audit = ("audit", "--privatizer", "local_laplace", "--epsilon", 1, "--horizon", 1, "--samples", 5000)
    code, out, _ = run(*audit, "--json")
    facts = json.loads(out)
    assert code == 0 and facts["verdict"] == "consistent" and facts["epsilon_claimed"] == 1.0
    keys = {"epsilon_claimed", "epsilon_lower_bound", "confidence", "samples", "dp_delta", "verdict"}
    assert set(facts) >= keys and facts["epsilon_lower_bound"] <= 1 and facts["confidence"] == 0.95
    code, out, _ = run(*audit, "--calibration", "published_code")
    assert code == 1 and "violated" in out
    check_refused(run("audit", "--privatizer", "lokal"), "Unknown privatizer 'lokal'", "Available: ")
    check_refused(run("audit", "--samples", 0), "samples=0 >= 1")
    check_refused(run("audit", "--epsilon", 0), "epsilon=0.0 > 0")


def test_list(run):
    code, out, err = run("list", "--json")
    names = json.loads(out)
    assert code == 0 and err == ""
    assert set(names["learners"]) == set(LEARNERS) and set(names["privatizers"]) == set(PRIVATIZERS)
    assert set(names["environments"]) == set(environments.ENVIRONMENTS)
    assert names["privatizers"]["central_laplace"]["guarantee"] == "JDP"
    assert names["privatizers"]["exact"]["guarantee"] == "none"
    assert names["calibrations"] == ["tight", "printed", "published_code"]
    assert all(text for kind in ("environments", "learners") for text in names[kind].values())
    code, out, _ = run("list")
    assert code == 0 and all(name in out for name in (*LEARNERS, *PRIVATIZERS))


# -- reproduce -------------------------------------------------------------------------------------


def test_reproduce_small(run, tmp_path):
    code, out, _ = run("reproduce", "--variant", "paper", "--episodes", 200, "--seeds", 2, "--out", "figure")
    wrote = files("figure")
    assert code == 0 and "final_regret_mean" in out
    for name in ("paper.png", "paper.pdf", "results.nc", "table.md", "claims.md"):
        assert name in wrote
    assert out.count("non-private < JDP < LDP") >= 4, "the verdict on the order of regrets, by panel and epsilon"


def test_reproduce_of_one_episode(run):
    code, out, _ = run("reproduce", "--variant", "code", "--episodes", 1, "--seeds", 2, "--out", "figure")
    assert code == 0 and "claim" in out


def test_bad_reproduce_writes_nothing(run, tmp_path):
    check_refused(run("reproduce", "--variant", "papr", "--out", "f"), "Did you mean 'paper'?")
    check_refused(run("reproduce", "--episodes", 0, "--out", "f"), "episodes=0 >= 1")
    check_refused(run("reproduce", "--seeds", 0, "--out", "f"), "seeds=0 >= 1")
    Path("f").write_text("")
    check_refused(run("reproduce", "--out", "f/g"), "f is a file")
    assert files(tmp_path) == ["f"]
