"""Every learner learns RiverSwim without noise at its tuned scale, and none of them owes it to the order of actions."""

import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest
from scipy.stats import ks_2samp

from jaxprivrl import environments, mdp
from jaxprivrl.experiments import tune
from jaxprivrl.experiments.spec import SweepSpec
from jaxprivrl.experiments.sweep import sweep
from jaxprivrl.learners import LEARNERS, planning, ucb
from jaxprivrl.learners.base import greedy

TUNED = tune.SHIPPED / "exact.toml"
SEEDS = 20  # of one sweep: the same for all tests of a learner, so that it is compiled once
EPISODES = 20_000
MIRROR_EPISODES = 1500
TIED = 30.0  # times the tuned scale: bonuses so large that ties decide most of the first episodes
LEVEL = 0.001


def tuned_spec(learner, factor=1.0, **fields):
    spec = tune.apply(SweepSpec(learner=learner, privatizer="exact", seeds=SEEDS, **fields), TUNED)
    return spec.replace(grid=spec.grid | {"bonus_scale": factor * spec.grid["bonus_scale"][0]})


def uniform_regret():
    """Regret per episode of the uniform policy."""
    model = environments.river_swim()
    H, S, A = model.shape
    return float(mdp.expected_regret(model, mdp.prepare(model).gaps, jnp.full((H, S, A), 1.0 / A)))


def final_regret(spec, model, seed_start):
    """Final regret of 2 * SEEDS runs."""
    starts = (seed_start, seed_start + SEEDS)
    runs = [sweep(spec.replace(seed_start=start), model) for start in starts]
    return np.concatenate([run.regret.isel(episode=-1).values.ravel() for run in runs])


def mirror_p_value(spec):
    """Two-sample Kolmogorov-Smirnov test of RiverSwim against its mirror image, on seeds of their own."""
    model = environments.river_swim()
    return ks_2samp(final_regret(spec, model, 100), final_regret(spec, environments.mirror(model), 200)).pvalue


def test_uniform_policy():
    assert uniform_regret() == pytest.approx(3.3535, abs=1e-3)


@pytest.mark.parametrize("learner", LEARNERS)
def test_last_tenth_costs_less_than_two_percent_of_the_uniform_policy(learner):
    regret = sweep(tuned_spec(learner, episodes=EPISODES)).regret.squeeze("epsilon")
    last = (regret.sel(episode=EPISODES) - regret.sel(episode=9 * EPISODES // 10)) / (EPISODES // 10)
    assert float(last.mean()) < 0.02 * uniform_regret()
    assert float(last.min()) >= 0.0


@pytest.mark.parametrize("factor", [1.0, TIED])
@pytest.mark.parametrize("learner", LEARNERS)
def test_mirrored_river_gives_the_same_regret(learner, factor):
    assert mirror_p_value(tuned_spec(learner, factor, episodes=MIRROR_EPISODES)) > LEVEL


@pytest.mark.parametrize("learner", ["ucb_vi", "dp_ucb_vi"])
def test_control_ties_to_the_first_action_are_caught(learner, monkeypatch):
    """Learners that break ties by index find the mirrored river easy, because there the first action swims right."""
    for module in (ucb, planning):
        monkeypatch.setattr(module, "greedy", lambda q, u: greedy(q, jnp.zeros_like(u)))
    name = f"first_action_{learner}"  # a program of its own
    monkeypatch.setitem(LEARNERS, name, dataclasses.replace(LEARNERS[learner], name=name))
    spec = tuned_spec(learner, TIED, episodes=MIRROR_EPISODES)
    assert mirror_p_value(spec.replace(learner=name)) < LEVEL
