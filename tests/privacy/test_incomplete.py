"""What is left out is never taken to be private: an incomplete mechanism, law or strategy cannot be built."""

import ast
import dataclasses
import json
import math
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from problems import PRIVATE, RIVER, by_name, on

import jaxprivrl
from jaxprivrl.privacy.accounting import calibrate, guarantee, noise_scale
from jaxprivrl.privacy.errors import error_table
from jaxprivrl.privacy.laws import AdditiveLaw, Bits, ComposedLaw, Laplace, Law, NoNoise
from jaxprivrl.privacy.privatizer import TRUST, Privatizer
from jaxprivrl.privacy.report import Report
from jaxprivrl.privacy.strategies import Strategy
from jaxprivrl.privatizers import PRIVATIZERS
from jaxprivrl.privatizers.local import PerUser
from jaxprivrl.privatizers.runtimes import additive
from jaxprivrl.privatizers.tree import Tree
from jaxprivrl.problem import NEIGHBOURS

PARTS = {"trust": "JDP", "report": Report(), "law": Laplace(), "strategy": Tree(), "runtime": additive}

# Privatizers


def test_all_parts_together_are_a_privatizer():
    assert calibrate(Privatizer("mine", **PARTS), RIVER, 1.0).guarantee.label == "ε=1 (JDP)"


@pytest.mark.parametrize("part", PARTS)
def test_a_privatizer_without_a_part_names_the_part(part):
    parts = {name: value for name, value in PARTS.items() if name != part}
    with pytest.raises(ValueError, match=rf"Privatizer 'mine' has no {part}; expected .*\. State it\."):
        Privatizer("mine", **parts)


def test_a_privatizer_of_a_name_alone_is_refused():
    with pytest.raises(ValueError, match="'mine' has no trust; expected one of none, JDP, LDP, SDP"):
        Privatizer("mine")


@pytest.mark.parametrize("wrong", [None, 3, "laplace", Laplace, object()], ids=lambda x: type(x).__name__)
@pytest.mark.parametrize("part", PARTS)
def test_a_privatizer_with_a_part_of_another_type_names_the_part(part, wrong):
    if (part == "trust" and isinstance(wrong, str)) or (part == "runtime" and callable(wrong)):
        return
    with pytest.raises(ValueError, match=rf"Privatizer 'mine' has {part}=.*; expected "):
        Privatizer("mine", **(PARTS | {part: wrong}))


@pytest.mark.parametrize("part", ["report", "law", "strategy"])
def test_a_class_is_not_a_part(part):
    """A strategy has parameters, and a law may: what is accounted for is an object."""
    with pytest.raises(ValueError, match=f"has {part}=<class"):
        Privatizer("mine", **(PARTS | {part: type(PARTS[part])}))


@pytest.mark.parametrize(
    "change, match",
    [
        ({"trust": "CDP"}, "Unknown trust model 'CDP'. Did you mean '.DP'. Available: JDP, LDP, SDP, none"),
        ({"target": "zcdp"}, "Unknown target 'zcdp'"),
        ({"law": Bits()}, "puts randomised bits noise on a report with bits=False; expected bits for a law of bits"),
        ({"report": Report(bits=True)}, "puts Laplace noise on a report with bits=True; .* counts for an additive one"),
        (
            {"trust": "LDP"},
            "lets the agent add the noise by Tree; expected .* the users' own for trust='LDP'",
        ),
        (
            {"trust": "SDP"},
            "lets the agent add the noise by Tree; expected .* the users' own for trust='SDP'",
        ),
        ({"law": Bits(), "report": Report(bits=True)}, "lets the agent add the noise by Tree.* bits=True"),
    ],
)
def test_parts_that_contradict_each_other_are_refused(change, match):
    with pytest.raises(ValueError, match=match):
        Privatizer("mine", **(PARTS | change))


@pytest.mark.parametrize("privatizer", by_name(PRIVATIZERS.values()))
def test_a_part_cannot_be_taken_out_of_a_mechanism_either(privatizer):
    for part in PARTS:
        with pytest.raises(ValueError, match=f"Privatizer '{privatizer.name}' has {part}=None"):
            dataclasses.replace(privatizer, **{part: None})
    with pytest.raises(dataclasses.FrozenInstanceError):
        privatizer.law = None


def test_a_family_of_no_step_is_no_report():
    with pytest.raises(ValueError, match="has no step; expected step=True"):
        Report(family=True)


# Laws and strategies

STATED = {
    Law: {"name": "mine", "pure": False, "additive": False},
    ComposedLaw: {"name": "mine", "additive": False},
    AdditiveLaw: {"name": "mine", "pure": False, "unit_variance": 1.0},
    Strategy: {"summed": True},
}
LEFT_OUT = [(base, part) for base, stated in STATED.items() for part in (*stated, *sorted(base.__abstractmethods__))]


def _subclass(base, without=None):
    """A class with everything that the base asks for, but for one part."""
    methods = {name: lambda self, *args: math.inf for name in base.__abstractmethods__}
    body = {name: value for name, value in {**STATED[base], **methods}.items() if name != without}
    return type("Mine", (base,), body)


@pytest.mark.parametrize("base", STATED)
def test_a_subclass_with_all_parts_can_be_built(base):
    assert isinstance(_subclass(base)(), base)


@pytest.mark.parametrize("base, part", [pytest.param(*x, id=f"{x[0].__name__}-{x[1]}") for x in LEFT_OUT])
def test_a_subclass_without_a_part_cannot_be_built_and_names_it(base, part):
    with pytest.raises(TypeError, match=rf"Mine\b.*\b{part}\b"):
        _subclass(base, without=part)()


def test_the_parts_of_a_law_that_say_what_is_private_have_no_default():
    for part in ("scale_for", "epsilons", "error", "variance", "score"):
        assert part in Law.__abstractmethods__
    assert {"norms", "units", "worst_units", "dense", "noisy_sums", "stream"} <= Strategy.__abstractmethods__
    assert {
        "sample",
        "sample_sum",
        "log_mgf",
        "log_mgf_end",
        "scale_for",
        "epsilons",
    } <= AdditiveLaw.__abstractmethods__
    assert "delta" in ComposedLaw.__abstractmethods__
    for part in ("name", "pure", "additive"):
        assert not hasattr(Law, part)
    assert not hasattr(AdditiveLaw, "unit_variance") and not hasattr(Strategy, "summed")


@pytest.mark.parametrize("privatizer", by_name(PRIVATE))
def test_a_law_that_forgets_its_guarantee_cannot_stand_in_for_one_of_the_registry(privatizer):
    """A subclass of it that unsets a part has no part to fall back on."""
    law = type(privatizer.law)
    with pytest.raises((TypeError, AttributeError)):
        forgetful = type("Forgetful", (law,), {"epsilons": None})()
        guarantee(dataclasses.replace(privatizer, law=forgetful), RIVER, 1.0)


# Uniform noise


def _uniform(key, shape):
    """What a sampler of uniform noise may look like."""


@pytest.mark.parametrize("strategy, trust", [(Tree(), "JDP"), (PerUser(), "LDP")], ids=["agent", "users"])
def test_uniform_noise_is_no_privatizer_without_a_law(strategy, trust):
    with pytest.raises(ValueError, match="Privatizer 'uniform' has no law"):
        Privatizer("uniform", trust=trust, report=Report(), strategy=strategy, runtime=additive)
    with pytest.raises(ValueError, match=r"Privatizer 'uniform' has law=.*_uniform"):
        Privatizer("uniform", trust, Report(), _uniform, strategy, additive)


def test_uniform_noise_has_no_law_that_says_nothing_of_privacy():
    @dataclasses.dataclass(frozen=True)
    class Silent(AdditiveLaw):
        name, pure, unit_variance, log_mgf_end = "uniform", False, 1 / 3, math.inf

        def sample(self, key, shape):
            return _uniform(key, shape)

        def sample_sum(self, key, m, shape):
            return _uniform(key, shape)

        def log_mgf(self, t):
            return 0.0

        def score(self, *args):
            return None

    with pytest.raises(TypeError, match=r"Silent.*epsilons.*scale_for"):
        Silent()


@dataclasses.dataclass(frozen=True)
class Uniform(AdditiveLaw):
    """U(-scale, scale), which says of itself that it keeps no epsilon: its support moves with the data."""

    name, pure, unit_variance, log_mgf_end = "uniform", False, 1 / 3, math.inf

    def scale_for(self, moves, epsilon, dp_delta):
        return math.inf

    def epsilons(self, moves, scale, dp_deltas):
        return math.inf, dict.fromkeys(dp_deltas, math.inf)

    def sample(self, key, shape):
        return _uniform(key, shape)

    def sample_sum(self, key, m, shape):
        return _uniform(key, shape)

    def log_mgf(self, t):
        return abs(t) + math.log(-math.expm1(-2 * abs(t)) / (2 * abs(t))) if t else 0.0

    def score(self, *args):
        return None


@pytest.mark.parametrize("neighbours", NEIGHBOURS)
@pytest.mark.parametrize("releases", ["every", "equal:1"])
@pytest.mark.parametrize("strategy, trust", [(Tree(), "JDP"), (PerUser(), "LDP")], ids=["agent", "users"])
def test_an_honest_law_of_uniform_noise_gets_no_finite_guarantee(strategy, trust, releases, neighbours):
    uniform = Privatizer("uniform", trust, Report(), Uniform(), strategy, additive)
    problem = on(RIVER.replace(neighbours=neighbours), releases)
    assert uniform.target == "approximate"
    for scale in (0.0, 1e-3, 1.0, 1e12):
        found = guarantee(uniform, problem, scale, dp_deltas=(1e-9, 1e-5, 0.5))
        assert found.epsilon_pure == math.inf and set(found.epsilon_at_delta.values()) == {math.inf}
        assert found.label == "no privacy"
        assert found.statement.startswith("no finite epsilon; one user" if scale else "No privacy")
        assert not any(word in found.statement for word in ("differential privacy", "(inf"))
        data = json.loads(json.dumps(found.to_json(), allow_nan=False))
        assert data["epsilon_pure"] == "inf" and set(data["epsilon_at_delta"].values()) == {"inf"}


def test_no_target_can_be_met_with_uniform_noise():
    uniform = Privatizer("uniform", "JDP", Report(), Uniform(), Tree(), additive)
    assert noise_scale(uniform, RIVER, 1.0, dp_delta=1e-5) == math.inf
    with pytest.raises(ValueError, match="Expected noise_scale=inf to be finite"):
        calibrate(uniform, RIVER, 1.0)
    with pytest.raises(ValueError, match="uniform has no pure epsilon"):
        calibrate(uniform, RIVER, 1.0, target="pure")
    claimed = guarantee(uniform, RIVER, 5.0, nominal_epsilon=1.0, nominal_dp_delta=1e-5)
    assert not claimed.holds and claimed.label.startswith("nominal ε=1, holds: (inf, ")
    assert claimed.statement.startswith("The nominal epsilon=1 does not hold (tight); what holds is no finite epsilon;")


def test_errors_of_noise_that_is_not_private_are_known_all_the_same():
    """Of U(-1, 1) and of sums of 14 of it, from the law's own cumulant."""
    uniform = Privatizer("uniform", "JDP", Report(), Uniform(), Tree(), additive)
    table = error_table(uniform, RIVER.replace(num_episodes=20_000), 2.0, 0.1)
    assert np.all(np.isfinite(table.visits)) and table.visits[0] < 2.0 * 14 + 1e-5
    draws = np.random.default_rng(1).uniform(-1, 1, (200_000, 14)).sum(1)
    assert np.mean(np.abs(draws) > uniform.law.quantile(14.0, 1e-3, True)) < 1e-3


# Trust, too, is not taken for granted


@pytest.mark.parametrize("trust", [t for t in TRUST if t != "none"])
def test_no_noise_is_no_privacy_whatever_trust_is_claimed(trust):
    silent = Privatizer("silent", trust, Report(), NoNoise(), PerUser(), additive)
    assert noise_scale(silent, RIVER, 1.0) == 0.0
    for scale in (0.0, 3.0):
        found = guarantee(silent, RIVER, scale)
        assert found.epsilon_pure == math.inf and found.epsilon_at_delta == {1e-5: math.inf}
        assert found.label == "no privacy"
    assert not calibrate(silent, RIVER, 1.0).guarantee.holds


def test_noise_that_protects_nobody_gets_no_guarantee():
    loud = Privatizer("loud", **(PARTS | {"trust": "none"}))
    found = guarantee(loud, RIVER, 1800.0)
    assert found.epsilon_pure == math.inf and found.epsilon_at_delta == {1e-5: math.inf}
    assert found.label == "no privacy" and found.statement.startswith("No privacy")


# No JAX on the host side

PACKAGE = Path(jaxprivrl.__file__).parent
HOST = ["jaxprivrl.problem", "jaxprivrl.schedules", "jaxprivrl.parameters"]
HOST += sorted(f"jaxprivrl.privacy.{path.stem}" for path in (PACKAGE / "privacy").glob("[!_]*.py"))
DEVICE = "{name.partition('.')[0] for name in sys.modules} & {'jax', 'jaxlib', 'jax_privacy', 'chex', 'optax'}"


def _run(code):
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=PACKAGE.parent)


@pytest.mark.parametrize("what", ["each module of accounting", "the registry", "a guarantee of each mechanism"])
def test_host_side_imports_no_jax(what):
    code = {
        "each module of accounting": f"import importlib\nfor name in {HOST}: importlib.import_module(name)",
        "the registry": "from jaxprivrl.privatizers import PRIVATIZERS\nfor p in PRIVATIZERS.values(): hash(p)",
        "a guarantee of each mechanism": (
            "from jaxprivrl.privacy.accounting import calibrate\nfrom jaxprivrl.privatizers import PRIVATIZERS\n"
            "from jaxprivrl.problem import Problem\nproblem = Problem(2, 2, 2, 20, centred_costs=False)\n"
            "for p in PRIVATIZERS.values(): assert calibrate(p, problem, 1.0, target='approximate').guarantee.holds"
        ),
    }[what]
    run = _run(f"import sys\n{code}\nfound = {DEVICE}\nassert not found, found")
    assert run.returncode == 0, run.stderr


def test_control_a_module_that_imports_jax_is_caught():
    run = _run(f"import sys\nimport jaxprivrl.mdp\nfound = {DEVICE}\nassert not found, found")
    assert run.returncode != 0 and "'jax'" in run.stderr


@pytest.mark.parametrize("module", HOST)
def test_modules_import_heavy_libraries_only_when_they_are_called(module):
    source = PACKAGE.joinpath(*module.split(".")[1:]).with_suffix(".py").read_text()
    top = [node for node in ast.parse(source).body if isinstance(node, ast.Import | ast.ImportFrom)]
    names = [alias.name for node in top for alias in node.names] + [getattr(node, "module", "") for node in top]
    assert not [name for name in names if name.startswith(("jax.", "jax_privacy", "dp_accounting")) or name == "jax"]
