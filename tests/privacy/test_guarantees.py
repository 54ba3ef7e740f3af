"""What people read of a guarantee, what is refused, and that the registry is complete."""

import importlib
import json
import math
import pkgutil

import pytest
from problems import ON_SCHEDULES, RIVER, by_name, on

import jaxprivrl.privatizers
from jaxprivrl import _validate
from jaxprivrl.privacy.accounting import calibrate, guarantee, noise_scale
from jaxprivrl.privacy.privatizer import CALIBRATIONS, TRUST, Privatizer
from jaxprivrl.privatizers import PRIVATIZERS
from jaxprivrl.privatizers.tree import Honaker, Tree

CENTRAL, LOCAL = PRIVATIZERS["central_laplace"], PRIVATIZERS["local_laplace"]
BLT, SAMPLED = PRIVATIZERS["central_blt"], PRIVATIZERS["local_sampled"]


def test_labels():
    labels = {
        ("central_laplace", None, "tight"): "ε=1 (JDP)",
        ("local_laplace", "approximate", "tight"): "(1, 1e-5)-LDP",
        ("central_blt", None, "tight"): "(1, 1e-5)-JDP",
        ("central_laplace", None, "published_code"): "nominal ε=1, holds: ε=1800 (published_code)",
        ("local_laplace", None, "printed"): "nominal ε=1, holds: ε=2 (printed)",
        ("exact", None, "tight"): "no privacy",
    }
    for (name, target, calibration), label in labels.items():
        result = calibrate(PRIVATIZERS[name], RIVER, 1.0, target=target, calibration=calibration)
        assert result.guarantee.label == label
    assert guarantee(BLT, RIVER, 100.0).label.endswith(", 1e-5)-JDP")
    assert guarantee(LOCAL, RIVER, 12.0).label == "ε=10 (LDP)"


def test_statements_say_what_holds():
    honest = calibrate(CENTRAL, RIVER, 1.0).guarantee.statement
    assert honest.startswith("epsilon=1 and (0.07021, 1e-5) joint differential privacy")
    assert "one user = one episode" in honest and "at most 20000 episodes" in honest
    assert "one user replaced" in honest
    removed = calibrate(CENTRAL, RIVER.replace(neighbours="add_remove"), 1.0).guarantee.statement
    assert "one user's contribution removed" in removed
    code = calibrate(CENTRAL, RIVER, 1.0, calibration="published_code").guarantee.statement
    assert code.startswith("The nominal epsilon=1 does not hold (published_code); what holds is epsilon=1800 ")
    gaussian = calibrate(PRIVATIZERS["local_gaussian"], RIVER, 1.0).guarantee.statement
    assert gaussian.startswith("(1, 1e-5) local differential privacy")


@pytest.mark.parametrize("privatizer", by_name(PRIVATIZERS.values()))
def test_json(privatizer):
    text = json.dumps(calibrate(privatizer, RIVER, 1.0).guarantee.to_json(), allow_nan=False)
    data = json.loads(text)
    keys = [
        "noise_scale",
        "sensitivity_l1",
        "sensitivity_l2",
        "levels",
        "epsilon_pure",
        "epsilon_at_delta",
        "model",
        "neighbours",
    ]
    assert {*keys, "calibration", "statement", "label", "unit", "max_episodes", "nominal_epsilon"} <= set(data)
    assert list(data["epsilon_at_delta"]) == ["1e-05"]
    assert (data["epsilon_pure"] == "inf") is not (privatizer.private and privatizer.law.pure)
    assert data["model"] == privatizer.trust and data["privatizer"] == privatizer.name


@pytest.mark.parametrize("privatizer, releases", ON_SCHEDULES)
def test_the_levels_of_a_guarantee_are_the_sums_that_hold_one_user(privatizer, releases):
    problem = on(RIVER, releases)
    levels = guarantee(privatizer, problem, 1.0).levels
    sums = privatizer.strategy.noisy_sums(num_leaves := privatizer.num_leaves(problem))
    if sums is not None:
        assert levels == max(sum(j < leaf <= i for i, j in sums) for leaf in (1, 2, num_leaves // 2, num_leaves))
    assert levels == (problem.num_releases.bit_length() if isinstance(privatizer.strategy, Tree | Honaker) else 1)


def test_registry_is_complete():
    """It holds every mechanism that a module of the folder defines, under its name."""
    folder = jaxprivrl.privatizers
    modules = [importlib.import_module(f"{folder.__name__}.{m.name}") for m in pkgutil.iter_modules(folder.__path__)]
    defined = {id(x): x for module in modules for x in vars(module).values() if isinstance(x, Privatizer)}
    assert set(defined) == {id(p) for p in PRIVATIZERS.values()} and len(PRIVATIZERS) >= 12
    for name, privatizer in PRIVATIZERS.items():
        assert privatizer.name == name and privatizer.summary and privatizer.noise
        assert privatizer.trust in TRUST
        assert privatizer.trust == {"e": "none", "c": "JDP", "l": "LDP", "s": "SDP"}[name[0]]
        approximate = privatizer.target == "approximate"
        assert approximate is (not privatizer.law.pure or privatizer.trust == "SDP")
        assert set(dict(privatizer.calibrations)) <= set(CALIBRATIONS) - {"tight"}
    paper = {name for name, privatizer in PRIVATIZERS.items() if privatizer.calibrations}
    assert paper == {"central_laplace", "local_laplace"}
    assert all(p.strategy.per_user for p in PRIVATIZERS.values() if p.trust in ("LDP", "SDP"))


def test_mechanisms_are_hashed_by_value():
    assert len(set(PRIVATIZERS.values())) == len(PRIVATIZERS)
    for name, privatizer in PRIVATIZERS.items():
        assert {privatizer: 1}[PRIVATIZERS[name]] == 1


@pytest.mark.parametrize(
    "call, match",
    [
        (lambda: noise_scale(CENTRAL, RIVER, -1.0), r"Expected epsilon=-1.0 > 0. Use epsilon=inf for no"),
        (lambda: noise_scale(CENTRAL, RIVER, math.nan), "Expected epsilon=nan > 0"),
        (lambda: noise_scale(CENTRAL, RIVER, 1.0, dp_delta=0.0), "Expected 0 < dp_delta=0.0 < 1"),
        (lambda: noise_scale(BLT, RIVER, 1.0), "has no pure epsilon. Use target='approximate'"),
        (lambda: calibrate(BLT, RIVER, 1.0, target="pure"), "central_blt has no pure epsilon. Use target='approximate"),
        (lambda: calibrate(PRIVATIZERS["local_gaussian"], RIVER, 1.0, target="pure"), "local_gaussian has no pure eps"),
        (lambda: calibrate(LOCAL, RIVER, 1.0, target="zcdp"), "Unknown target 'zcdp'. Available: approx"),
        (lambda: noise_scale(SAMPLED, RIVER, 1.0, calibration="printed"), "not defined for local_sampled"),
        (lambda: noise_scale(LOCAL, RIVER, 1.0, dp_delta=1e-5, calibration="printed"), "a pure target"),
        (
            lambda: calibrate(CENTRAL, RIVER.replace(num_episodes=1), 1.0, calibration="printed"),
            "has no noise at num_episodes=1",
        ),
        (lambda: calibrate(LOCAL, RIVER.replace(families=2), 1.0, calibration="printed"), "families=3"),
        (
            lambda: calibrate(CENTRAL, on(RIVER, "equal:8"), 1.0, calibration="printed"),
            "'printed' is defined for a release after each user, got 'equal:count=8'. Use 'tight'",
        ),
        (lambda: RIVER.replace(neighbours="swap"), "Unknown neighbours 'swap'. Available: add_remove, replace"),
        (lambda: guarantee(CENTRAL, RIVER, -2.0), "Expected noise_scale=-2.0 to be finite and >= 0"),
        (lambda: guarantee(CENTRAL, RIVER, 1.0, dp_deltas=(2.0,)), "Expected 0 < dp_delta=2.0 < 1"),
        (
            lambda: _validate.one_of("privatizer", "binary_tree", PRIVATIZERS),
            "Unknown privatizer 'binary_tree'.* Available: central_blt",
        ),
        (lambda: RIVER.replace(num_states=1.5), "Expected num_states=1.5 >= 1"),
        (lambda: RIVER.replace(num_actions=True), "Expected num_actions=True >= 1"),
        (lambda: RIVER.replace(schedule="equal:8"), "Expected schedule='equal:8' to be a Schedule"),
    ],
)
def test_refusals(call, match):
    with pytest.raises(ValueError, match=match):
        call()


@pytest.mark.parametrize("privatizer", by_name(p for p in PRIVATIZERS.values() if p.private))
def test_an_epsilon_too_small_to_compute_with_is_refused(privatizer):
    for dp_delta in (None, 1e-5) if privatizer.law.pure else (1e-5,):
        assert math.isfinite(noise_scale(privatizer, RIVER, 1e-299, dp_delta=dp_delta))
        with pytest.raises(ValueError, match="Expected epsilon=5e-324 >= 1e-300"):
            noise_scale(privatizer, RIVER, 5e-324, dp_delta=dp_delta)


@pytest.mark.parametrize("privatizer", by_name(PRIVATIZERS.values()))
def test_whole_numbers_may_be_written_as_floats(privatizer):
    """1e6 users are a million of them."""
    assert calibrate(privatizer, RIVER.replace(num_episodes=2e4, horizon=20.0), 1.0).noise_scale == pytest.approx(
        calibrate(privatizer, RIVER, 1.0).noise_scale, rel=1e-15
    )
    assert RIVER.replace(num_episodes=2e4) == RIVER and type(RIVER.replace(num_episodes=2e4).num_episodes) is int
