"""The measure of the design: a mechanism, a strategy, a learner, a schedule and an environment in a user's own file.

Each test writes a module, registers its object with one line, and uses it wherever a built-in one is used, through the
command line and through the documented conformance functions, without another edit.
"""

import importlib
import json
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

# A new law on an existing strategy: logistic noise, whose log-density has slope 1 / scale like Laplace's.
MECHANISM = '''
import math
from dataclasses import dataclass

import numpy as np

from jaxprivrl.privacy import composition
from jaxprivrl.privacy.laws import AdditiveLaw, ComposedLaw
from jaxprivrl.privacy.report import Report
from jaxprivrl.privatizers import PRIVATIZERS, Privatizer
from jaxprivrl.privatizers.runtimes import additive
from jaxprivrl.privatizers.tree import Tree


@dataclass(frozen=True)
class Logistic(ComposedLaw, AdditiveLaw):
    """Density e^-x / (1 + e^-x)^2: |d ln p / dx| < 1, so a shift by s costs at most s / scale."""

    name, unit_variance, log_mgf_end = "logistic", math.pi**2 / 3, 1.0

    def delta(self, n, loss, epsilon, batch):
        return 0.0 if epsilon >= n * loss else composition.randomized_response_delta(n, loss, epsilon)

    def sample(self, key, shape):
        import jax.numpy as jnp

        from jaxprivrl.numerics import random

        u = random.uniform(key, shape) + np.float32(2.0**-25)
        return jnp.log(u) - jnp.log1p(-u)

    def sample_sum(self, key, m, shape):
        import jax
        import jax.numpy as jnp

        from jaxprivrl.numerics import random

        def body(i, total):
            return total + jnp.where(i < m, self.sample(jax.random.fold_in(key, i), shape), 0.0)

        return jax.lax.fori_loop(0, jnp.max(jnp.asarray(m)), body, jnp.zeros(shape))

    def log_mgf(self, t):
        return math.log(math.pi * t / math.sin(math.pi * t)) if 0 < abs(t) < 1 else (0.0 if t == 0 else math.inf)

    def score(self, strategy, num_users, num_releases, position):
        return None


PRIVATIZERS["logistic_tree"] = Privatizer(
    "logistic_tree", trust="JDP", report=Report(), law=Logistic(), strategy=Tree(), runtime=additive
)
'''

# A new strategy for existing laws: fresh noise for each epoch of users, summed afterwards.
STRATEGY = '''
from dataclasses import dataclass

import numpy as np

from jaxprivrl.privacy.laws import Gaussian, Laplace
from jaxprivrl.privacy.report import Report
from jaxprivrl.privacy.strategies import Norms, NoiseStream, Strategy, as_float
from jaxprivrl.privatizers import PRIVATIZERS, Privatizer
from jaxprivrl.privatizers.runtimes import additive


@dataclass(frozen=True)
class Flat(Strategy):
    """C = I over the releases: a user is in one epoch, whose sum is released once."""

    summed = True

    def norms(self, num_leaves):
        return Norms(1.0, 1.0)

    def units(self, xp, data, j):
        return as_float(xp, j)

    def worst_units(self, num_leaves):
        return float(num_leaves)

    def dense(self, num_leaves, num_releases):
        return np.tri(num_releases)

    def noisy_sums(self, num_releases):
        return [(k, k - 1) for k in range(1, num_releases + 1)]

    def stream(self, shape, law):
        import jax
        import jax.numpy as jnp

        from jaxprivrl.privatizers.streams import draw_like

        def step(key, total, j, data):
            total = jax.tree.map(jnp.add, total, draw_like(law.sample, key, total))
            return total, total

        return NoiseStream(lambda zeros: zeros, step)


for law in (Laplace(), Gaussian()):
    name = f"flat_{law.name.lower()}"
    PRIVATIZERS[name] = Privatizer(
        name, trust="JDP", report=Report(), law=law, strategy=Flat(), runtime=additive
    )
'''

OTHERS = '''
import jax.numpy as jnp
import numpy as np

from jaxprivrl.environments import ENVIRONMENTS, Environment, Table
from jaxprivrl.learners import LEARNERS, Learner, Plan, Steps
from jaxprivrl.parameters import Parameter
from jaxprivrl.schedules import SCHEDULES, ScheduleKind


def first_action(shape, hyper):
    """Always the first action, but for a share of exploration."""
    H, S, A = shape.horizon, shape.num_states, shape.num_actions

    def step(key, state, release):
        row = hyper["explore"] / A + jnp.where(jnp.arange(A) == 0, 1 - hyper["explore"], 0.0)
        return state, Plan(jnp.broadcast_to(row[None, None], (H, S, A))), ()

    return Steps(lambda: (), step)


LEARNERS["first_action"] = Learner(
    "first_action", first_action, (Parameter("explore", 0.5, "share of uniform actions"),)
)
SCHEDULES["squares"] = ScheduleKind("squares", "1, 4, 9, ...", (), lambda K: [i * i for i in range(1, int(K**0.5) + 1)])


def coin(horizon, cost):
    return Table(horizon or 3, np.array([[[0.0, cost]]]), np.ones((1, 1, 2, 1)), 0)


ENVIRONMENTS["coin"] = Environment("coin", "One state, two actions.", (Parameter("cost", 1.0, "of the second"),), coin)
'''


def run(folder, *arguments):
    """(exit code, stdout, stderr) of the command line in a folder."""
    done = subprocess.run(
        [sys.executable, "-m", "jaxprivrl", *arguments], cwd=folder, capture_output=True, text=True, timeout=300
    )
    return done.returncode, done.stdout, done.stderr


@pytest.fixture
def plugin(tmp_path, monkeypatch):
    """Writes a module into a folder of its own and imports it; what it registered is taken back afterwards."""
    from jaxprivrl.environments import ENVIRONMENTS
    from jaxprivrl.learners import LEARNERS
    from jaxprivrl.privatizers import PRIVATIZERS
    from jaxprivrl.schedules import SCHEDULES

    registries = (ENVIRONMENTS, LEARNERS, PRIVATIZERS, SCHEDULES)
    before = [dict(r) for r in registries]

    def write(name, text):
        (tmp_path / f"{name}.py").write_text(textwrap.dedent(text))
        monkeypatch.syspath_prepend(tmp_path)
        return importlib.import_module(name)

    yield write
    for registry, old in zip(registries, before, strict=True):
        registry.clear()
        registry.update(old)


def test_a_new_law_works_everywhere(tmp_path, plugin):
    """sweep, account, audit, noise and the conformance function, with one registered line."""
    plugin("my_law", MECHANISM)
    from jaxprivrl.experiments import conformance
    from jaxprivrl.privatizers import PRIVATIZERS

    conformance.check_privatizer(PRIVATIZERS["logistic_tree"])
    common = ("--plugin", "my_law", "--json")
    code, out, err = run(tmp_path, "account", "--privatizer", "logistic_tree", "--epsilon", "1", *common)
    assert code == 0, err
    account = json.loads(out)
    assert account["noise_scale"] == pytest.approx(1800) and account["epsilon_pure"] == pytest.approx(1)
    assert account["epsilon_at_delta"]["1e-05"] < 1
    code, out, err = run(
        tmp_path, "audit", "--privatizer", "logistic_tree", "--epsilon", "1", "--samples", "20000", *common
    )
    assert code == 0, err
    assert json.loads(out)["verdict"] == "consistent"
    code, out, err = run(tmp_path, "sweep", "--privatizer", "logistic_tree", "--episodes", "50", "--seeds", "2",
                         "--epsilons", "1", "100", "--out", "runs/a", *common)  # fmt: skip
    assert code == 0, err
    assert len(json.loads(out)["summary"]) == 2
    code, _, err = run(tmp_path, "sweep", "--from", "runs/a/run.json", "--out", "runs/b", "--json")
    assert code == 0, err  # run.json names the plugin
    code, out, err = run(tmp_path, "noise", "--privatizers", "logistic_tree", "--episodes", "200", "--horizon", "3",
                         "--seeds", "4", "--out", "n.png", *common)  # fmt: skip
    assert code == 0, err
    row = json.loads(out)["mechanisms"][0]
    assert row["measured_end"] == pytest.approx(row["transitions_std_end"], rel=0.2)


def test_a_new_strategy_works_with_existing_laws(tmp_path, plugin):
    plugin("my_strategy", STRATEGY)
    from jaxprivrl.experiments import conformance
    from jaxprivrl.privatizers import PRIVATIZERS

    for name in ("flat_laplace", "flat_gaussian"):
        conformance.check_privatizer(PRIVATIZERS[name])
    code, out, err = run(tmp_path, "account", "--privatizer", "flat_laplace", "--epsilon", "1", "--plugin",
                         "my_strategy", "--releases", "equal:10", "--json")  # fmt: skip
    assert code == 0, err
    assert json.loads(out)["noise_scale"] == pytest.approx(120)  # 6 H, no levels
    code, out, err = run(tmp_path, "audit", "--privatizer", "flat_gaussian", "--epsilon", "1", "--releases", "equal:2",
                         "--plugin", "my_strategy", "--samples", "20000", "--json")  # fmt: skip
    assert code == 0, err
    assert json.loads(out)["score"] in ("exact", "learned")


def test_control_a_law_that_claims_too_much_is_caught(plugin):
    """A quarter of the noise under the same claim: the audit of the conformance function fails."""
    module = plugin("my_lie", MECHANISM.replace('"logistic_tree"', '"lie"').replace("Logistic", "Lie"))
    from jaxprivrl.experiments import conformance
    from jaxprivrl.privatizers import PRIVATIZERS

    honest = module.Lie.scale_for
    module.Lie.scale_for = lambda self, moves, epsilon, dp_delta: honest(self, moves, epsilon, dp_delta) / 4
    with pytest.raises(AssertionError):
        conformance.check_privatizer(PRIVATIZERS["lie"])


def test_a_learner_a_schedule_and_an_environment_of_ones_own(tmp_path, plugin):
    plugin("my_others", OTHERS)
    from jaxprivrl.environments import ENVIRONMENTS
    from jaxprivrl.experiments import conformance
    from jaxprivrl.learners import LEARNERS
    from jaxprivrl.schedules import SCHEDULES

    conformance.check_learner(LEARNERS["first_action"])
    conformance.check_schedule(SCHEDULES["squares"])
    conformance.check_environment(ENVIRONMENTS["coin"])
    code, out, err = run(
        tmp_path, "sweep", "--plugin", "my_others", "--environment", "coin:cost=0.5", "--learner", "first_action",
        "--releases", "squares", "--grid", "explore=0,1", "--episodes", "60", "--seeds", "2", "--privatizer",
        "central_gaussian", "--json",
    )  # fmt: skip
    assert code == 0, err
    rows = json.loads(out)["summary"]
    assert [row["explore"] for row in rows] == [0.0, 1.0]
    # the second action costs 1/2 at each of 3 steps; half of the uniform policy's actions are the second
    assert [row["final_regret_mean"] for row in rows] == pytest.approx([0.0, 60 * 3 * 0.25])


def test_a_wrong_policy_is_an_error(plugin):
    """Rows that do not sum to one, and rows with negative entries, are named; they never make a wrong regret."""
    plugin("my_wrong", OTHERS)
    import dataclasses

    import jax.numpy as jnp

    from jaxprivrl.experiments.spec import SweepSpec
    from jaxprivrl.experiments.sweep import sweep
    from jaxprivrl.learners import LEARNERS, Plan, Steps

    def wrong(row):
        def make(shape, hyper):
            sizes = (shape.horizon, shape.num_states, shape.num_actions)
            policy = jnp.broadcast_to(jnp.asarray(row, jnp.float32)[None, None], sizes)
            return Steps(lambda: (), lambda key, state, release: (state, Plan(policy), ()))

        return make

    spec = SweepSpec(learner="first_action", privatizer="exact", episodes=20, seeds=2)
    for row in ([0.5, 0.6], [1.5, -0.5]):
        LEARNERS["first_action"] = dataclasses.replace(LEARNERS["first_action"], make=wrong(row))
        with pytest.raises(ValueError, match="rows are no distributions"):
            sweep(spec)
    LEARNERS["first_action"] = dataclasses.replace(LEARNERS["first_action"], make=wrong([0.25, 0.75]))
    assert sweep(spec).regret.shape[-1] > 0


def blocks_of_the_readme():
    """The module and the commands of the README's "Add your own"."""
    text = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8").split("## Add your own")[1]
    module = text.split("```python\n")[1].split("```")[0]
    commands = text.split("```python\n")[1].split("```\n")[2]
    return module, [line.split() for line in commands.strip().splitlines()]


def test_the_readme_is_true_to_the_letter(tmp_path, plugin):
    module, commands = blocks_of_the_readme()
    assert len(commands) == 4 and all(c[0] == "jaxprivrl" for c in commands)
    (tmp_path / "my_module.py").write_text(module)
    for command in commands:
        code, out, err = run(tmp_path, *command[1:])
        assert code == 0 and out, (command, err)
    plugin("my_readme_module", module)
    from jaxprivrl.experiments import conformance
    from jaxprivrl.learners import LEARNERS
    from jaxprivrl.privatizers import PRIVATIZERS

    conformance.check_privatizer(PRIVATIZERS["logistic_tree"])
    conformance.check_learner(LEARNERS["mostly_right"])
