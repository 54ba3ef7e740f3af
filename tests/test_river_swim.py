"""Every learner learns RiverSwim without noise at its tuned scale, and none of them owes it to the order of actions."""

import jax
import numpy as np
import pytest
from scipy.stats import ks_2samp

from jaxprivrl import environments, mdp, tuning
from jaxprivrl.learners import LEARNERS, ucb
from jaxprivrl.sweep import SweepSpec, sweep

TUNED = tuning.SHIPPED / "exact.toml"
SEEDS = 20  # of one sweep: the same for all tests of a learner, so that it is compiled once
EPISODES = 20_000
MIRROR_EPISODES = 1500
LEVEL = 0.001


def tuned_spec(learner, **fields):
    return tuning.apply(SweepSpec(learner=learner, privatizer="exact", seeds=SEEDS, **fields), TUNED)


def uniform_regret():
    """Regret per episode of the uniform policy."""
    model = environments.river_swim()
    H, S, A = model.shape
    return float(mdp.expected_regret(model, mdp.prepare(model).gaps, jax.numpy.full((H, S, A), 1.0 / A)))


def final_regret(learner, model, seed_start):
    """Final regret of 2 * SEEDS runs."""
    parts = []
    for start in (seed_start, seed_start + SEEDS):
        spec = tuned_spec(learner, seed_start=start, episodes=MIRROR_EPISODES)
        parts.append(sweep(spec, model).regret.isel(episode=-1).values.ravel())
    return np.concatenate(parts)


def mirror_p_value(learner):
    """Two-sample Kolmogorov-Smirnov test of RiverSwim against its mirror image, on seeds of their own."""
    model = environments.river_swim()
    straight = final_regret(learner, model, 100)
    return ks_2samp(straight, final_regret(learner, environments.mirror(model), 200)).pvalue


def test_uniform_policy():
    assert uniform_regret() == pytest.approx(3.3535, abs=1e-3)


@pytest.mark.parametrize("learner", LEARNERS)
def test_last_tenth_costs_less_than_two_percent_of_the_uniform_policy(learner):
    regret = sweep(tuned_spec(learner, episodes=EPISODES)).regret.squeeze("epsilon")
    last = (regret.sel(episode=EPISODES) - regret.sel(episode=9 * EPISODES // 10)) / (EPISODES // 10)
    assert float(last.mean()) < 0.02 * uniform_regret()
    assert float(last.min()) >= 0.0


@pytest.mark.parametrize("learner", LEARNERS)
def test_mirrored_river_gives_the_same_regret(learner):
    assert mirror_p_value(learner) > LEVEL


def test_control_ties_to_the_first_action_are_caught(monkeypatch):
    """Learners that break ties by index find the mirrored river easy, because there the first action swims right."""
    uniform_ties = ucb.greedy
    monkeypatch.setattr(ucb, "greedy", lambda q, u: uniform_ties(q, jax.numpy.zeros_like(u)))
    monkeypatch.setitem(LEARNERS, "first_action", ucb.ucb_vi)
    tables = tuning.load(TUNED)
    tables["river_swim", "first_action", "exact"] = {"bonus_scale": 0.03}
    monkeypatch.setattr(tuning, "load", lambda path: tables)
    assert mirror_p_value("first_action") < LEVEL
