"""The engine: one trace per program, results that depend on the seed alone, exact totals, export for GPUs."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType

from jaxprivrl import environments, mdp, noise, published, simulation, sweep
from jaxprivrl.learners import LEARNERS
from jaxprivrl.mdp import Counts, Shape
from jaxprivrl.privatizers import PRIVATIZERS
from jaxprivrl.privatizers.base import add_episode, zero_totals
from jaxprivrl.sweep import Names, SweepSpec

MDP = environments.random_mdp(noise.key(7), horizon=3, num_states=4, num_actions=2)
BASE = SweepSpec(
    environment="random", seeds=5, episodes=40, bonus_scales=(0.05,), epsilons=(200.0, 800.0), record_every=1
)


def regret(spec, mdp_=MDP):
    return sweep.sweep(spec, mdp_).regret.transpose("epsilon", "seed", "episode").values


@pytest.fixture(scope="module")
def base():
    return regret(BASE)


def test_one_trace_whatever_the_grid():
    """Other seeds, epsilons, K (up to 255), bonus scales and MDPs of the same shape run the same program."""
    spec = dataclasses.replace(BASE, privatizer="local_laplace", episodes=30)
    regret(spec)
    shape = Shape(3, 4, 2, 3, 3, 255)
    key = (Names("ucb_vi", "local_laplace", "none"), shape)
    before = sweep.traces[key]
    assert before >= 1
    regret(dataclasses.replace(spec, seed_start=50, epsilons=(1.0, 2.0), episodes=200, bonus_scales=(0.5,)))
    regret(spec, environments.mirror(MDP))
    assert sweep.traces[key] == before


def test_doubling_seeds_leaves_the_first_unchanged(base):
    np.testing.assert_array_equal(regret(dataclasses.replace(BASE, seeds=6))[:, :5], base)
    twice = regret(dataclasses.replace(BASE, seeds=10))
    np.testing.assert_allclose(twice[:, :5], base, rtol=1e-5)


def test_subset_of_epsilons_is_the_same_run(base):
    np.testing.assert_allclose(regret(dataclasses.replace(BASE, epsilons=(800.0,)))[0], base[1], rtol=1e-5)


@pytest.mark.parametrize("chunk", [7, 40])
def test_chunks_may_end_anywhere(base, chunk, monkeypatch):
    monkeypatch.setattr(sweep, "CHUNK", chunk)
    sweep._compile.cache_clear()
    try:
        np.testing.assert_allclose(regret(BASE), base, rtol=1e-5)
    finally:
        sweep._compile.cache_clear()


@pytest.mark.parametrize("tile", [2, 4])
def test_tiles_do_not_matter(base, tile, monkeypatch):
    monkeypatch.setattr(sweep, "_tile", lambda *_: tile)
    np.testing.assert_allclose(regret(BASE), base, rtol=1e-5)


def test_number_of_devices_does_not_matter(base):
    assert len(jax.devices()) == 2
    plan = sweep.resolve(BASE, MDP)
    one = jax.make_mesh((1,), ("runs",), axis_types=(AxisType.Auto,), devices=jax.devices()[:1])
    alone, _ = sweep.run(plan._replace(mesh=one, tile=5))
    np.testing.assert_allclose(alone, base, rtol=1e-5)


@pytest.mark.parametrize(
    "learner, privatizer",
    [(a, b) for a in ("ucb_vi", "ucb_po") for b in ("exact", "central_laplace", "local_laplace")]
    + [("ucb_vi", b) for b in ("central_honaker", "central_batched", "central_toeplitz", "local_sampled_family")],
)
def test_one_run_alone_equals_its_lane(learner, privatizer):
    spec = dataclasses.replace(BASE, learner=learner, privatizer=privatizer, seeds=3, episodes=25)
    batch = regret(spec)
    plan = sweep.resolve(spec, MDP)
    bare = plan.cells._replace(noise=plan.cells.noise._replace(strategy=None))
    for i in range(batch.shape[0]):
        cell = jax.tree.map(lambda x, i=i: x[i], bare)
        cell = cell._replace(noise=cell.noise._replace(strategy=plan.cells.noise.strategy))
        learner_, privatizer_ = sweep.parts(plan.names, plan.shape, cell)
        alone = simulation.simulate(noise.key(2), MDP, learner_, privatizer_, plan.shape, 25)
        np.testing.assert_allclose(np.cumsum(np.asarray(alone, np.float64)), batch[i, 2], rtol=1e-5)


def test_totals_stay_exact_over_a_million_episodes():
    """Host sums of float32 episode regrets: relative error under 1e-6; a float32 running sum (control) is far off."""
    values = np.random.default_rng(0).uniform(0, 3.4, (1_000_000, 1))
    singles = values.astype(np.float32)
    running = 0.0
    for start, count in sweep.chunks(len(values)):
        running = (running + np.cumsum(singles[start : start + count].astype(np.float64), 0))[-1]
    true = values.sum()
    assert abs(float(running[0]) - true) / true < 1e-6
    naive = np.cumsum(singles[:, 0], dtype=np.float32)[-1]
    assert abs(naive - true) / true > 1e-6


def test_a_million_episodes_of_a_tiny_mdp():
    """The regret that a run reports is the sum of its episodes: constant policies, where the answer is known."""
    one = mdp.make(np.array([[[0.3, 0.3 + 2**-7]]]), np.ones((1, 1, 2, 1)), 0, horizon=1)
    spec = SweepSpec(environment="one", learner="ucb_po", privatizer="exact", seeds=2, episodes=1_000_000,
                     learning_rates=(0.0,), record_every=1_000_000)  # fmt: skip
    found = sweep.sweep(spec, one).regret.isel(episode=-1).values
    np.testing.assert_allclose(found, 1e6 * 2**-7 / 2, rtol=1e-6)


def test_counts_stay_exact_past_float32():
    """Pooled counts reach H K = 2e8; float32 (control) stops counting at 2**24."""
    shape = Shape(20, 2, 2, 1)
    totals = zero_totals(shape.zero_counts())
    start = 200_000_001
    totals = totals._replace(
        visits=jnp.full_like(totals.visits, start), transitions=jnp.full_like(totals.transitions, start)
    )
    ones = Counts(*(jnp.ones_like(x) for x in shape.zero_counts()))
    for _ in range(3):
        totals = add_episode(totals, ones)
    assert np.all(np.asarray(totals.visits) == start + 3)
    assert np.all(np.asarray(totals.transitions) == start + 3)
    assert int(np.float32(start) + np.float32(1) + np.float32(1)) != start + 2


def test_cost_sums_are_compensated():
    """A million costs of 0.1: float32 alone (control) is off by hundreds, the compensated sum by less than one."""
    shape = Shape(1, 1, 1, 1)
    counts = Counts(jnp.ones((1, 1, 1)), jnp.full((1, 1, 1), 0.1), jnp.ones((1, 1, 1, 1)))
    n = 1_000_000
    run = jax.jit(lambda t: jax.lax.fori_loop(0, n, lambda _, t: add_episode(t, counts), t))
    totals = run(zero_totals(shape.zero_counts()))
    true = n * float(np.float32(0.1))
    assert abs(float(totals.costs[0, 0, 0]) - true) < 0.01
    plain = jax.jit(lambda: jax.lax.fori_loop(0, n, lambda _, x: x + jnp.float32(0.1), jnp.float32(0)))()
    assert abs(float(plain) - true) > 100


def test_memory_does_not_grow_with_the_number_of_episodes():
    small, large = (sweep.resolve(dataclasses.replace(BASE, episodes=K), MDP) for K in (70_000, 10_000_000))
    assert sweep.state_bytes(small) == sweep.state_bytes(large)
    assert small.shape == large.shape


def programs():
    pairs = [(a, "central_laplace") for a in LEARNERS] + [("ucb_vi", b) for b in PRIVATIZERS]
    pairs += [(a, b) for a in published.LEARNERS for b in published.PRIVATIZERS]
    return list(dict.fromkeys(pairs))


@pytest.mark.parametrize("learner, privatizer", programs())
def test_programs_export_for_cuda_without_a_gpu(learner, privatizer):
    names = Names(learner, privatizer, "none")
    shape = Shape(2, 2, 2, 2, 3, 255)
    mesh = jax.make_mesh((1,), ("runs",), axis_types=(AxisType.Auto,), devices=jax.devices()[:1])
    program = sweep.chunk_program(names, shape, mesh, compiler_options=None)
    exported = jax.export.export(
        program,
        platforms=("cpu", "cuda"),
    )(*sweep.abstract_arguments(names, shape, 2, 3, mesh))
    assert exported.platforms == ("cpu", "cuda")
    assert len(exported.mlir_module_serialized) > 1000


@pytest.mark.parametrize("seeds, cells, devices, states, tile", [
    (1, 1, 1, 6, 1), (4, 1, 1, 6, 4), (10, 1, 1, 6, 16), (64, 1, 1, 6, 64), (500, 1, 2, 6, 128),
    (32, 8, 1, 6, 8), (20, 2, 2, 6, 32), (20, 4, 2, 6, 16), (64, 1, 1, 25, 32), (64, 1, 1, 100, 8), (64, 200, 1, 6, 8),
])  # fmt: skip
def test_tiles_fill_vectors_and_fit_caches(seeds, cells, devices, states, tile):
    assert sweep._tile(seeds, cells, devices, Shape(20, states, 2, 20)) == tile
