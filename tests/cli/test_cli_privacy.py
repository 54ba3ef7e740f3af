"""`jaxprivrl account`, `jaxprivrl audit` and `jaxprivrl noise`."""

import json

import pytest
from commands import check_refused, files

from jaxprivrl.privatizers import PRIVATIZERS

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


def test_account_of_a_schedule_counts_its_releases(run):
    """Seven levels hold a hundred leaves, two hold two or three; even a growth whose product is infinite is one."""
    account = ("account", "--epsilon", 1, "--horizon", 2, "--episodes", 100, "--json", "--releases")
    levels = {"every": 7, "equal:3": 2, "geometric:first=1,growth=2": 4, "geometric:first=2,growth=1e308": 2}
    for releases, expected in levels.items():
        code, out, _ = run(*account, releases)
        assert code == 0 and json.loads(out)["levels"] == expected, releases


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


# -- noise -----------------------------------------------------------------------------------------

SIZES = ("--horizon", 2, "--episodes", 16, "--num-states", 2, "--seeds", 2)


def test_noise_lays_predicted_beside_measured_errors(run, tmp_path):
    pure, approximate = "central_laplace", "central_gaussian"
    code, out, _ = run("noise", *SIZES, "--privatizers", "exact", pure, approximate, "--out", "n.png", "--json")
    found = json.loads(out)
    assert code == 0 and set(found) == {"mechanisms", "out"} and (tmp_path / "n.png").stat().st_size > 2000
    rows = found["mechanisms"]
    assert {row["privatizer"] for row in rows} == {pure, approximate} and len(rows) == 3, "nothing to say of exact"
    for row in rows:
        assert row["transitions_std_end"] > 0 and row["measured_end"] > 0 and row["guarantee"]


def test_noise_leaves_out_what_does_not_fit_and_says_why(run):
    bits = next(name for name, privatizer in PRIVATIZERS.items() if privatizer.report.bits)
    noise = ("noise", *SIZES, "--centred-costs", "--out", "n.png", "--privatizers")
    code, out, err = run(*noise, "central_laplace", bits)
    assert code == 0 and "central_laplace" in out and bits not in out and "Wrote n.png" in out
    assert f"left out {bits}: {bits} does not add noise to counts, so it has no centred_costs" in err
    code, out, err = run(*noise, bits)
    assert code == 2 and out == "" and "No mechanism fits these sizes" in err.splitlines()[-1]


def test_bad_noise_writes_nothing(run, tmp_path):
    check_refused(run("noise", *SIZES, "--privatizers", "central_laplac"), "Did you mean 'central_laplace'?")
    check_refused(run("noise", *SIZES, "--epsilon", 0), "epsilon=0.0 > 0")
    check_refused(run("noise", *SIZES, "--dp-delta", 1), "0 < dp_delta=1.0 < 1")
    check_refused(run("noise", *SIZES, "--seeds", 0), "seeds=0 >= 1")
    check_refused(run("noise", *SIZES, "--privatizers", "exact"), "None of exact adds noise")
    check_refused(run("noise", *SIZES, "--out", "n.doc"), "to end in .png, .pdf or .svg")
    assert files(tmp_path) == []
