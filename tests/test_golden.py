"""A table of runs and of accounts, recorded once: a rebuild of the package must not change a number.

`golden/accounts.json`: noise scales, epsilons and worst-case errors. `golden/runs.json` and `golden/counts.npz`:
private counts of five releases, their error bounds, and regrets, of every learner without noise and of every
privatizer. They are compared with float32's rounding in mind: a greedy policy may flip at a tie on another machine, so
that two seeds in three must agree, in each run.
"""

import json
import math
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pieces
import pytest

from jaxprivrl.engine import episodes
from jaxprivrl.engine import run as engine
from jaxprivrl.experiments.spec import SweepSpec, resolve
from jaxprivrl.numerics import random
from jaxprivrl.privacy import accounting, errors
from jaxprivrl.privatizers import PRIVATIZERS
from jaxprivrl.problem import Problem
from jaxprivrl.schedules import schedule

FOLDER = Path(__file__).parent / "golden"
ACCOUNTS = json.loads((FOLDER / "accounts.json").read_text())
RUNS = json.loads((FOLDER / "runs.json").read_text())
MODEL = pieces.random_mdp(3, (4, 3, 2), homogeneous=True)
SEEDS = 3


def number(x):
    return math.inf if x == "inf" else x


def rows_of(privatizer, releases):
    return [r for r in ACCOUNTS if (r["privatizer"], r["releases"]) == (privatizer, releases)]


@pytest.mark.parametrize("name, releases", sorted({(r["privatizer"], r["releases"]) for r in ACCOUNTS}))
def test_noise_scales_and_epsilons_are_as_recorded(name, releases):
    """To 1e-9; errors to 3e-6, as they are rounded to float32."""
    for row in rows_of(name, releases):
        problem = Problem(
            20, 6, 2, row["episodes"], row["homogeneous"], row["families"], row["centred_costs"], row["neighbours"],
            schedule(releases),
        )  # fmt: skip
        given = {"calibration": row["calibration"]}
        scale = accounting.noise_scale(PRIVATIZERS[name], problem, row["epsilon"], dp_delta=row["dp_delta"], **given)
        found = accounting.guarantee(PRIVATIZERS[name], problem, scale, **given)
        want = (row["noise_scale"], number(row["epsilon_pure"]), number(row["epsilon_at_delta"]))
        got = (scale, found.epsilon_pure, found.epsilon_at_delta[1e-5])
        assert all(math.isclose(a, b, rel_tol=1e-9) for a, b in zip(got, want, strict=True)), (row, got)
        if "error" in row:
            table = errors.error_table(PRIVATIZERS[name], problem, scale, 0.1)
            np.testing.assert_allclose([x.max() for x in table], row["error"], rtol=3e-6)


def play(row):
    """(counts [seed, release, counter], errors, regret [seed, record]) of a recorded run, by the engine's own step."""
    grid = {"bonus_scale": 0.02, "error_scale": 0.01}
    spec = SweepSpec(
        environment="golden",
        learner=row["learner"],
        privatizer=row["privatizer"],
        releases=row["releases"],
        epsilons=(20.0,),
        seeds=SEEDS,
        episodes=row["episodes"],
        homogeneous=row["homogeneous"],
        grid=grid | ({"learning_rate": 0.1} if row["learner"] == "ucb_po" else {}),
    )
    plan = resolve(spec, MODEL)
    parts = engine.parts(plan.job.program, pieces.cell_of(plan), plan.job.shared)
    agent = parts.agent

    def one(key):
        numbers = jnp.arange(spec.episodes)
        keys = jax.tree.map(lambda k: episodes.episode_keys(k, numbers), episodes.streams(key))

        def body(state, now):
            state, (regret,) = episodes.step(now, state, parts)
            view = agent.runtime.view(agent.parameters, state.released, state.clock)
            return state, (state.released, view.error, regret)

        return jax.lax.scan(body, episodes.begin(agent, parts.learner.init()), keys)[1]

    keys = jax.vmap(random.key)(jnp.arange(SEEDS))
    released, error, regret = pieces.jit(jax.vmap(one))(keys)
    at = np.array(row["at"]) - 1
    counts = np.concatenate([np.asarray(x)[:, at].reshape(SEEDS, len(at), -1) for x in released], -1)
    sums = np.cumsum(np.asarray(regret, np.float64), -1)[:, np.array(row["records"]) - 1]
    return plan, counts, [0.01 * float(np.asarray(x)[0, -1]) for x in error], sums


@pytest.mark.parametrize("row", RUNS, ids=[r["key"] for r in RUNS])
def test_private_counts_and_regrets_are_as_recorded(row):
    plan, counts, error, regret = play(row)
    assert math.isclose(plan.calibrated[0].noise_scale, row["noise_scale"], rel_tol=1e-9)
    np.testing.assert_allclose(error, row["error"], rtol=3e-6)
    with np.load(FOLDER / "counts.npz") as recorded:
        want = recorded[row["key"]]
    size = 1 + np.abs(want).max()
    same_counts = np.abs(counts - want).max(-1) <= 1e-5 * size  # [seed, release]
    same_regret = np.abs(regret - np.array(row["regret"])).max(-1) <= 1e-5 * np.abs(row["regret"]).max()
    assert same_counts[:, 0].all(), "the first release follows the first policy, before anything was learned"
    assert np.sum(same_counts.all(-1) & same_regret) >= 2, (same_counts, same_regret)


def test_control_another_seed_is_no_recorded_run():
    """The comparison sees a difference where there is one."""
    with np.load(FOLDER / "counts.npz") as recorded:
        x = recorded["ucb_vi/central_laplace/every/staged"]
    assert np.abs(x[0] - x[1]).max(-1).min() > 1e-3 * np.abs(x).max()
