"""`jaxprivrl sweep --from run.json` runs again what was run, bit for bit."""

import json
import shutil
import sys
from pathlib import Path

import numpy as np
import pieces
import pytest
from commands import SMALL, check_refused, files

from jaxprivrl.environments import ENVIRONMENTS
from jaxprivrl.experiments import results

WATCHED = ("spec", "guarantees", "labels", "parameters")
SMALL_FILE = ("--mdp", "small.npz", "--privatizer")
TOWN = ("--environment", "random:states=2,actions=2,seed=3", "--horizon", "2", "--privatizer", "exact")
# What is run, and a flag that makes another run of it: the fields of run.json are really read. Sizes are alike, so that
# few programs serve all.
CASES = {
    "an environment with parameters and another horizon": (
        (*TOWN, "--bonus-scales", "0.01"),
        ("--environment", "random:states=2,actions=2,seed=4"),
    ),
    "Bernoulli costs": (
        (*SMALL_FILE, "exact", "--bonus-scales", "0.01", "--bernoulli-costs"),
        ("--no-bernoulli-costs",),
    ),
    "other neighbours": (
        (*SMALL_FILE, "local_laplace", "--epsilons", "50", "inf", "--bonus-scales", "0.01", "--error-scale", "0",
         "--neighbours", "add_remove"),
        ("--neighbours", "replace"),
    ),
    "a grid on a schedule": (
        (*SMALL_FILE, "central_laplace", "--epsilons", "50", "200", "--grid", "bonus_scale=0.01,0.1", "--grid",
         "error_scale=0,1", "--releases", "geometric:first=2,growth=1.5"),
        ("--releases", "geometric:first=3,growth=1.5"),
    ),
    "seeds and records": (
        (*SMALL_FILE, "exact", "--seed-start", "5", "--record-every", "3"),
        ("--seed-start", "6"),
    ),
}  # fmt: skip


@pytest.fixture
def small_file(mdp_file, tmp_path):
    """The small MDP by a relative path."""
    shutil.copy(mdp_file, tmp_path / "small.npz")


@pytest.mark.parametrize("case", CASES)
def test_a_run_is_run_again_bit_for_bit(run, small_file, case):
    flags, other = CASES[case]
    assert run("sweep", *SMALL, *flags, "--out", "first")[0] == 0
    code, out, _ = run("sweep", "--from", "first/run.json", "--out", "again", "--json")
    assert code == 0 and json.loads(out)["out"] == "again"
    first, again = results.load("first"), results.load("again")
    assert set(first.data_vars) == set(again.data_vars) and float(first.regret[..., -1].min()) > 0
    for name in (*first.data_vars, *first.coords):
        np.testing.assert_array_equal(again[name].values, first[name].values, strict=True, err_msg=str(name))
    assert {k: again.attrs[k] for k in WATCHED} == {k: first.attrs[k] for k in WATCHED}
    assert json.loads(out)["summary"] == json.loads(Path("first/run.json").read_text())["summary"]
    # A later flag of the same name wins.
    assert run("sweep", *SMALL, *flags, *other, "--out", "other")[0] == 0
    assert results.load("other").attrs["spec"] != first.attrs["spec"]
    assert results.load("other").regret.shape == first.regret.shape
    assert not np.array_equal(results.load("other").regret.values, first.regret.values)


def test_what_flags_and_files_said_is_in_run_json(run, small_file):
    """Shorthands, tuned numbers and defaults: nothing but run.json is needed."""
    Path("t.toml").write_text("['file:small.npz'.ucb_vi.exact]\nbonus_scale = 0.125\n")
    sweep = ("sweep", *SMALL, "--mdp", "small.npz", "--privatizer", "exact", "--error-scale", "0.5")
    assert run(*sweep, "--tuned", "t.toml", "--out", "first")[0] == 0
    Path("t.toml").unlink()
    spec = json.loads(Path("first/run.json").read_text())["spec"]
    assert spec["grid"] == {"error_scale": [0.5], "bonus_scale": [0.125]}
    assert run("sweep", "--from", "first/run.json", "--out", "again")[0] == 0
    np.testing.assert_array_equal(results.load("again").regret.values, results.load("first").regret.values)


def test_no_privacy_goes_through_json(run, small_file):
    """JSON has no infinity; the string stands for it."""
    flags, _ = CASES["other neighbours"]
    assert run("sweep", *SMALL, *flags, "--out", "first")[0] == 0
    assert json.loads(Path("first/run.json").read_text())["spec"]["epsilons"] == [50.0, "inf"]
    assert run("sweep", "--from", "first/run.json", "--out", "again")[0] == 0
    np.testing.assert_array_equal(results.load("again").regret.values, results.load("first").regret.values)
    assert list(results.load("again").epsilon.values) == [50.0, np.inf]


def test_a_changed_mdp_file_is_refused_by_its_hash(run, small_file, tmp_path):
    assert run("sweep", *SMALL, "--mdp", "small.npz", "--privatizer", "exact", "--out", "first")[0] == 0
    mdp = pieces.random_mdp(1, (2, 2, 2))
    np.savez("small.npz", costs=mdp.costs, transitions=mdp.transitions, initial=mdp.initial)
    again = run("sweep", "--from", "first/run.json", "--out", "again")
    check_refused(again, "'file:small.npz' is not the recorded one", "SHA-256", "Restore its file, or run without")
    Path("small.npz").unlink()
    check_refused(run("sweep", "--from", "first/run.json", "--out", "again"), "No file 'small.npz'")
    assert files(tmp_path) == ["first", "first/results.nc", "first/run.json"]


def test_a_plugin_is_loaded_again(run, monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setitem(ENVIRONMENTS, "two_towns", None)  # so that it is forgotten afterwards
    Path("own_town.py").write_text(
        "import numpy as np\n"
        "from jaxprivrl.environments import ENVIRONMENTS, Environment, Table\n"
        "def table(horizon):\n"
        "    return Table(2, np.full((1, 2, 2), [0.5, 0.25]), np.full((1, 2, 2, 2), 0.5), 0)\n"
        "ENVIRONMENTS['two_towns'] = Environment('two_towns', 'of my own', (), table)\n"
    )
    sweep = ("sweep", *SMALL, "--environment", "two_towns", "--privatizer", "exact", "--out", "first")
    assert run(*sweep, "--plugin", "own_town")[0] == 0
    ENVIRONMENTS.pop("two_towns"), sys.modules.pop("own_town")
    assert run("sweep", "--from", "first/run.json", "--out", "again")[0] == 0
    np.testing.assert_array_equal(results.load("again").regret.values, results.load("first").regret.values)
    sys.modules.pop("own_town")


@pytest.fixture(scope="module")
def record(swept):
    """A run.json."""
    return swept[0] / "run.json"


@pytest.mark.parametrize(
    "flags",
    [
        ("--seeds", 3),
        ("--seeds", 20),  # the default: typed is typed
        ("--episodes=10",),
        ("--seed_start", 0),
        ("--epsilons", 1),
        ("--environment", "river_swim"),
        ("--mdp", "small.npz"),
        ("--no-homogeneous",),
        ("--releases", "every"),
        ("--grid", "bonus_scale=1"),
        ("--bonus-scales", 1),
        ("--tuned", "t.toml"),
        ("--learner", "ucb_vi"),
        ("--metrics",),
        ("--plugin", "my_module"),
    ],
)
def test_from_with_a_flag_that_says_what_is_run_is_refused(run, record, tmp_path, flags):
    name = str(flags[0]).partition("=")[0].replace("_", "-")
    refused = run("sweep", "--from", record, "--out", "runs/a", *flags)
    check_refused(refused, f"--from says all of what is run, so {name} has no place beside it. Drop one of them.")
    assert files(tmp_path) == []


def test_from_goes_with_flags_about_the_output(run, record, tmp_path):
    code, out, _ = run("sweep", "--from", record, "--dry-run", "--json")
    assert code == 0 and json.loads(out)["runs"] == 2 and files(tmp_path) == []
    assert run("sweep", f"--from={record}", "--out", "a", "--no-overwrite")[0] == 0
    check_refused(run("sweep", "--from", "a/run.json", "--out", "a"), "already holds results. Pass --overwrite")
    assert run("sweep", "--from", "a/run.json", "--out", "a", "--overwrite")[0] == 0
    assert files(tmp_path) == ["a", "a/results.nc", "a/run.json"]


def test_what_is_no_run_json_is_refused(run, record, tmp_path):
    facts = json.loads(record.read_text())
    check_refused(run("sweep", "--from", "nowhere/run.json", "--out", "a"), "No file 'nowhere/run.json'", "Pass its")
    check_refused(run("sweep", "--from", tmp_path, "--out", "a"), "expected the run.json of a run folder")
    wrong = {
        "words": "not JSON",
        "list": "[]",
        "number": "3",
        "nospec": json.dumps({"summary": []}),
        "none": json.dumps({"spec": None}),
        "grid": json.dumps({"spec": facts["spec"] | {"grid": 3}}),
    }
    for name, text in wrong.items():
        Path(name).write_text(text)
        check_refused(run("sweep", "--from", name, "--out", "a"), f"'{name}' is not a run.json of this package")
    Path("bytes").write_bytes(b"\xff\xfe\x00")
    check_refused(run("sweep", "--from", "bytes", "--out", "a"), "'bytes' is not a run.json of this package")
    Path("field").write_text(json.dumps({"spec": facts["spec"] | {"epsilon": 1}}))
    check_refused(run("sweep", "--from", "field", "--out", "a"), "Unknown field of a spec 'epsilon'", "'epsilons'?")
    assert not Path("a").exists()
