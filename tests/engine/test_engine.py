"""The engine: one trace per program, results that depend on the seed alone, exact totals, export for GPUs."""

import jax
import jax.numpy as jnp
import numpy as np
import pieces
import pytest
from jax.sharding import AxisType

from jaxprivrl import environments, mdp
from jaxprivrl.engine import run as engine
from jaxprivrl.engine.run import Program
from jaxprivrl.experiments.spec import SweepSpec, resolve
from jaxprivrl.experiments.sweep import sweep
from jaxprivrl.learners import LEARNERS, Learner, Plan, Steps
from jaxprivrl.learners.postprocess import none
from jaxprivrl.mdp import Counts, zero_counts
from jaxprivrl.numerics import random
from jaxprivrl.privatizers import PRIVATIZERS
from jaxprivrl.privatizers.base import accumulate, clip_costs, zero_totals
from jaxprivrl.problem import Shape
from jaxprivrl.published import experiment as published

MDP = environments.random_mdp(random.key(7), horizon=3, num_states=4, num_actions=2)
BASE = SweepSpec(
    environment="random", seeds=5, episodes=40, grid={"bonus_scale": 0.05}, epsilons=(200.0, 800.0), record_every=1
)


def regret(spec, mdp_=MDP):
    return sweep(spec, mdp_).regret.transpose("epsilon", "seed", "episode").values


@pytest.fixture(scope="module")
def base():
    return regret(BASE)


def test_one_trace_whatever_the_grid():
    """Other seeds, epsilons, K (up to 255), bonus scales and MDPs of the same shape run the same program."""
    spec = BASE.replace(privatizer="local_laplace", episodes=30)
    regret(spec)
    key = ("ucb_vi", "local_laplace", Shape(3, 4, 2, 3, max_releases=255))
    before = engine.traces[key]
    assert before >= 1
    regret(spec.replace(seed_start=50, epsilons=(1.0, 2.0), episodes=200, grid={"bonus_scale": 0.5}))
    regret(spec, environments.mirror(MDP))
    assert engine.traces[key] == before


def test_doubling_seeds_leaves_the_first_unchanged(base):
    np.testing.assert_array_equal(regret(BASE.replace(seeds=6))[:, :5], base)
    twice = regret(BASE.replace(seeds=10))
    np.testing.assert_allclose(twice[:, :5], base, rtol=1e-5)


def test_subset_of_epsilons_is_the_same_run(base):
    np.testing.assert_allclose(regret(BASE.replace(epsilons=(800.0,)))[0], base[1], rtol=1e-5)


@pytest.mark.parametrize("chunk", [7, 40])
def test_chunks_may_end_anywhere(base, chunk):
    kept, _ = engine.run(resolve(BASE, MDP).job, chunk=chunk)
    np.testing.assert_allclose(kept["regret"], base, rtol=1e-5)


@pytest.mark.parametrize("tile", [2, 4])
def test_tiles_do_not_matter(base, tile):
    kept, _ = engine.run(resolve(BASE, MDP).job._replace(tile=tile))
    np.testing.assert_allclose(kept["regret"], base, rtol=1e-5)


def mesh_of(devices):
    """The first of the two devices, or both, as one axis of runs."""
    return jax.make_mesh((devices,), ("runs",), axis_types=(AxisType.Auto,), devices=jax.devices()[:devices])


def test_number_of_devices_does_not_matter(base):
    assert len(jax.devices()) == 2
    alone, _ = engine.run(resolve(BASE, MDP).job._replace(mesh=mesh_of(1), tile=5))
    np.testing.assert_allclose(alone["regret"], base, rtol=1e-5)


# One mechanism of each kind of code; its law does not matter here.
KINDS = {(p.private, p.strategy, p.report): name for name, p in reversed(PRIVATIZERS.items())}
PAIRS = [
    (learner, privatizer, "every") for learner in ("ucb_vi", "ucb_po") for privatizer in ("exact", "local_laplace")
]
PAIRS += [("ucb_vi", name, "every") for name in KINDS.values()] + [("ucb_po", "central_laplace", "every")]
PAIRS += [("ucb_vi", "central_blt", "octaves"), ("ucb_vi", "local_bernoulli", "equal:5")]


@pytest.mark.parametrize("learner, privatizer, releases", dict.fromkeys(PAIRS))
def test_one_run_alone_equals_its_lane(learner, privatizer, releases):
    spec = BASE.replace(learner=learner, privatizer=privatizer, releases=releases, seeds=3, episodes=25)
    batch, plan = regret(spec), resolve(spec, MDP)
    alone = pieces.jit(lambda cell: pieces.simulate(random.key(2), plan, cell))
    for i, lane in enumerate(batch[:, 2]):
        regrets = np.asarray(alone(pieces.cell_of(plan, i)), np.float64)
        np.testing.assert_allclose(np.cumsum(regrets), lane, rtol=1e-5)


@pytest.mark.parametrize("row", [(0.4, 0.4), (1.5, -0.5), (np.nan, 1.0)])
def test_a_policy_whose_rows_are_no_distributions_is_refused(row):
    """A wrong policy is an error, never a wrong regret."""

    def make(shape, hyper):
        policy = jnp.broadcast_to(jnp.array(row, jnp.float32)[None, None], MDP.shape)
        return Steps(lambda: (), lambda key, state, release: (state, Plan(policy), ()))

    job = resolve(BASE, MDP).job
    cells = job.cells._replace(hyper={"num_episodes": job.cells.hyper["num_episodes"]})
    wrong = job._replace(program=job.program._replace(learner=Learner("wrong", make)), cells=cells)
    with pytest.raises(ValueError, match=r"Learner 'wrong' returned a policy in episode 1 whose rows are no distrib"):
        engine.run(wrong)


def test_totals_stay_exact_over_a_million_episodes():
    """Host sums of float32 episode regrets: relative error under 1e-6; a float32 running sum (control) is far off."""
    values = np.random.default_rng(0).uniform(0, 3.4, (1_000_000, 1))
    singles = values.astype(np.float32)
    running = 0.0
    for start, count in engine.chunks(len(values)):
        running = (running + np.cumsum(singles[start : start + count].astype(np.float64), 0))[-1]
    true = values.sum()
    assert abs(float(running[0]) - true) / true < 1e-6
    naive = np.cumsum(singles[:, 0], dtype=np.float32)[-1]
    assert abs(naive - true) / true > 1e-6


def test_a_million_episodes_of_a_tiny_mdp():
    """The regret that a run reports is the sum of its episodes: constant policies, where the answer is known."""
    one = mdp.make(np.array([[[0.3, 0.3 + 2**-7]]]), np.ones((1, 1, 2, 1)), 0, horizon=1)
    spec = SweepSpec(environment="one", learner="ucb_po", privatizer="exact", seeds=2, episodes=1_000_000,
                     grid={"learning_rate": 0.0}, record_every=1_000_000)  # fmt: skip
    found = sweep(spec, one).regret.isel(episode=-1).values
    np.testing.assert_allclose(found, 1e6 * 2**-7 / 2, rtol=1e-6)


def test_counts_stay_exact_past_float32():
    """Pooled counts reach H K = 2e8; float32 (control) stops counting at 2**24."""
    shape = Shape(20, 2, 2, 1)
    totals = zero_totals(zero_counts(shape))
    start = 200_000_001
    totals = totals._replace(
        visits=jnp.full_like(totals.visits, start), transitions=jnp.full_like(totals.transitions, start)
    )
    ones = Counts(*(jnp.ones_like(x) for x in zero_counts(shape)))
    for _ in range(3):
        totals = accumulate(totals, clip_costs(ones))
    assert np.all(np.asarray(totals.visits) == start + 3)
    assert np.all(np.asarray(totals.transitions) == start + 3)
    assert int(np.float32(start) + np.float32(1) + np.float32(1)) != start + 2


def test_cost_sums_are_compensated():
    """A million costs of 0.1: float32 alone (control) is off by hundreds, the compensated sum by less than one."""
    shape = Shape(1, 1, 1, 1)
    counts = Counts(jnp.ones((1, 1, 1)), jnp.full((1, 1, 1), 0.1), jnp.ones((1, 1, 1, 1)))
    n = 1_000_000
    run = jax.jit(lambda t: jax.lax.fori_loop(0, n, lambda _, t: accumulate(t, clip_costs(counts)), t))
    totals = run(zero_totals(zero_counts(shape)))
    true = n * float(np.float32(0.1))
    assert abs(float(totals.costs[0, 0, 0]) - true) < 0.01
    plain = jax.jit(lambda: jax.lax.fori_loop(0, n, lambda _, x: x + jnp.float32(0.1), jnp.float32(0)))()
    assert abs(float(plain) - true) > 100


def test_memory_does_not_grow_with_the_number_of_episodes():
    small, large = (resolve(BASE.replace(episodes=K), MDP).job for K in (70_000, 10_000_000))
    assert engine.state_bytes(small) == engine.state_bytes(large)
    assert small.program.shape == large.program.shape


def programs():
    pairs = [(learner, PRIVATIZERS["central_laplace"]) for learner in LEARNERS.values()]
    pairs += [(LEARNERS["ucb_vi"], privatizer) for privatizer in PRIVATIZERS.values()]
    pairs += [(a, b) for a in published.LEARNERS.values() for b in published.PRIVATIZERS.values()]
    return dict.fromkeys(pairs)


@pytest.mark.parametrize("learner, privatizer", programs(), ids=lambda x: x.name)
def test_programs_export_for_cuda_without_a_gpu(learner, privatizer):
    program = Program(learner, privatizer, none, Shape(2, 2, 2, 2, max_releases=255))
    mesh = mesh_of(1)
    exported = jax.export.export(
        engine.chunk_program(program, mesh, engine.CHUNK, compiler_options=None),
        platforms=("cpu", "cuda"),
    )(*engine.abstract_arguments(program, 2, 3, mesh))
    assert exported.platforms == ("cpu", "cuda")
    assert len(exported.mlir_module_serialized) > 1000


@pytest.mark.parametrize("seeds, cells, devices, states, tile", [
    (1, 1, 1, 6, 1), (4, 1, 1, 6, 4), (10, 1, 1, 6, 16), (64, 1, 1, 6, 64), (500, 1, 2, 6, 128),
    (32, 8, 1, 6, 8), (20, 2, 2, 6, 32), (20, 4, 2, 6, 16), (64, 1, 1, 25, 32), (64, 1, 1, 100, 8), (64, 200, 1, 6, 8),
])  # fmt: skip
def test_tiles_fill_vectors_and_fit_caches(seeds, cells, devices, states, tile):
    assert engine.tile_seeds(seeds, cells, mesh_of(devices), Shape(20, states, 2, 20)) == tile
