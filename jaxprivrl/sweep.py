"""Many runs: a grid of seeds, epsilons and hyper-parameters as one compiled program, in tiles and chunks."""

import collections
import dataclasses
import functools
import itertools
import math
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import xarray as xr
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from jaxprivrl import _validate, accounting, environments, noise, published, results, simulation
from jaxprivrl import mdp as mdp_lib
from jaxprivrl.batching import vmap_last
from jaxprivrl.learners import LEARNERS, Hyperparameters, Learner, default_learning_rate
from jaxprivrl.mdp import MDP, Counts, Dynamics, Shape
from jaxprivrl.postprocess import DEFAULTS, POSTPROCESSORS, compose
from jaxprivrl.privatizers import PRIVATIZERS, NoiseParameters, Privatizer, PrivatizerState, host_strategy
from jaxprivrl.runtime import COMPILER_OPTIONS
from jaxprivrl.simulation import RunState, Streams

Array = jax.Array

CHUNK = 1000  # episodes of one call of the program
_TABLE_ROWS = 257  # rows of an error table, the same for all mechanisms, so that K and name do not change shapes
_TILE_RUNS = 64  # runs of a tile on a CPU device, unless 8 seeds are more; found by measuring, see benchmarks/README.md
_TILE_COUNTERS = 2**20


@dataclasses.dataclass(frozen=True)
class SweepSpec:
    """A grid of runs by names and numbers. Every field is checked by `resolve`.

    Attributes:
      environment: name in ENVIRONMENTS, or any label when an MDP is passed along.
      learner, privatizer: names in LEARNERS and PRIVATIZERS.
      epsilons: targets; ignored by `exact`, whose epsilon is infinity.
      seeds: number of seeds, from `seed_start` on.
      episodes: K; the mechanisms are calibrated for exactly as many.
      bonus_scales: multipliers of the whole bonus.
      learning_rates: step sizes of mirror descent; None means the paper's sqrt(2 ln A / (H^2 K)).
      calibration: tight, printed or published_code (see `accounting`).
      target: "pure" or "approximate"; None means the mechanism's default.
      dp_delta: delta of an approximate target, and of the epsilon reported beside a pure one.
      families: 3 released count families, or 2 with visits derived by summing.
      homogeneous: pool counts over h.
      centred_costs: count c - 1/2 in the place of c: a user moves less, so less noise is needed (see `sensitivity`).
      failure_prob: the learner's delta.
      error_scale: multiplies the error bounds E that learners read; like the bonus, it is free to choose.
      precision: "worst_case" (the paper's fixed E) or "time_varying" (the error at each episode).
      postprocess: name in POSTPROCESSORS; None means what the learner's paper says.
      record_every: keep the cumulative regret of every so many episodes; None keeps about 200 of them.
    """

    environment: str = "river_swim"
    learner: str = "ucb_vi"
    privatizer: str = "central_laplace"
    epsilons: tuple[float, ...] = (1.0,)
    seeds: int = 20
    seed_start: int = 0
    episodes: int = 20_000
    bonus_scales: tuple[float, ...] = (1.0,)
    learning_rates: tuple[float, ...] | None = None
    calibration: str = "tight"
    target: str | None = None
    dp_delta: float = 1e-5
    families: int = 3
    homogeneous: bool = False
    centred_costs: bool = False
    failure_prob: float = 0.1
    error_scale: float = 1.0
    precision: str = "worst_case"
    postprocess: str | None = None
    record_every: int | None = None


class Names(NamedTuple):
    """The names that, with the sizes, fix a program."""

    learner: str
    privatizer: str
    postprocess: str


class Cell(NamedTuple):
    """Traced numbers of one grid cell; batched over the cells of a grid."""

    noise: NoiseParameters
    hyper: Hyperparameters


# The strategy of a mechanism is shared by all cells: it shapes the noise, which a seed's cells share.
_CELL_AXES = Cell(NoiseParameters(0, 0, None), 0)


class Plan(NamedTuple):
    """A checked spec with all that a sweep needs.

    Attributes:
      spec: the spec.
      names: resolved names of the program.
      dynamics: arrays of the MDP.
      shape: static sizes of the program.
      grid: (epsilon, bonus_scale, learning_rate) of each cell, in order.
      cells: Cell with a leading axis over the grid.
      calibrations: one for each epsilon.
      records: episode numbers kept, ending in K and including floor(0.9 K).
      tile: seeds run at once, over all devices.
      mesh: devices.
    """

    spec: SweepSpec
    names: Names
    dynamics: Dynamics
    shape: Shape
    grid: tuple[tuple[float, float, float], ...]
    cells: Cell
    calibrations: tuple[accounting.Calibration, ...]
    records: np.ndarray
    tile: int
    mesh: Mesh


def resolve(spec: SweepSpec, mdp: MDP | None = None) -> Plan:
    """Checks a spec, builds its MDP if none is given, and asks accounting for every noise scale."""
    _validate.one_of("learner", spec.learner, LEARNERS | published.LEARNERS)
    _validate.one_of("privatizer", spec.privatizer, PRIVATIZERS | published.PRIVATIZERS)
    if (spec.learner in published.LEARNERS) != (spec.privatizer in published.PRIVATIZERS):
        raise ValueError(
            f"'{spec.learner}' does not run with '{spec.privatizer}': the published experiment is a set of its own. "
            f"Pair {', '.join(published.LEARNERS)} with {', '.join(published.PRIVATIZERS)}."
        )
    _validate.positive_int("episodes", spec.episodes, "Pass the number of users, one episode each.")
    if spec.episodes >= 2**31:
        raise ValueError(f"Expected episodes={spec.episodes} < 2**31, the largest number of users. Pass fewer.")
    _validate.positive_int("seeds", spec.seeds)
    if spec.seed_start < 0 or spec.seed_start + spec.seeds > 2**31:
        raise ValueError(f"Expected seed_start={spec.seed_start} from 0 to 2**31 - seeds. Pass another start.")
    _validate.probability("failure_prob", spec.failure_prob)
    _validate.finite_at_least("error_scale", spec.error_scale, 0.0, "Use 1 for the bounds as derived.")
    _validate.one_of("precision", spec.precision, ("worst_case", "time_varying"))
    if spec.families not in (2, 3):
        raise ValueError(f"Expected families={spec.families} to be 3 (the paper) or 2 (visits derived by summing).")
    for scale in spec.bonus_scales:
        _validate.finite_at_least("bonus_scale", scale, 0.0, "Use 1 for the bonus as derived, 0 for none.")
    for rate in spec.learning_rates or ():
        _validate.finite_at_least("learning_rate", rate, 0.0, "Leave it out for the paper's step size.")
    epsilons = (math.inf,) if spec.privatizer in ("exact", "published_none") else spec.epsilons
    axes = {"epsilons": epsilons, "bonus_scales": spec.bonus_scales, "learning_rates": spec.learning_rates}
    for name, values in axes.items():
        if values is not None and (not values or len(set(values)) < len(values)):
            raise ValueError(f"Expected {name}={list(values)} to be distinct and at least one. Drop repeated values.")
    for epsilon in epsilons:
        _validate.epsilon(epsilon)
    if mdp is None:
        _validate.one_of("environment", spec.environment, environments.ENVIRONMENTS)
        mdp = environments.ENVIRONMENTS[spec.environment]()
    H, S, A = mdp.shape
    if spec.homogeneous and not mdp_lib.is_homogeneous(mdp):
        raise ValueError("The stages of this MDP differ, so counts cannot be pooled over h. Drop homogeneous.")
    problem = accounting.Problem(H, S, A, spec.episodes, spec.homogeneous, spec.families, spec.centred_costs)
    calibrations = tuple(_calibrate(spec, problem, epsilon) for epsilon in epsilons)
    postprocess = spec.postprocess or DEFAULTS.get(spec.learner, "none")
    names = Names(spec.learner, spec.privatizer, _validate.one_of("postprocess", postprocess, POSTPROCESSORS))
    rates = (default_learning_rate(H, A, spec.episodes),) if spec.learning_rates is None else spec.learning_rates
    combinations = tuple(itertools.product(range(len(epsilons)), spec.bonus_scales, rates))
    cells = [_cell(spec, problem, calibrations[i], scale, rate) for i, scale, rate in combinations]
    shape = shape_of(problem, stack_episodes(spec.episodes))
    mesh = jax.make_mesh((len(jax.devices()),), ("runs",), axis_types=(AxisType.Auto,))
    return Plan(
        spec=spec,
        names=names,
        dynamics=mdp_lib.prepare(mdp),
        shape=shape,
        grid=tuple((epsilons[i], scale, rate) for i, scale, rate in combinations),
        cells=_stack(cells, host_strategy(spec.privatizer, spec.episodes)),
        calibrations=calibrations,
        records=_records(spec),
        tile=_tile(spec.seeds, len(cells), mesh.size, shape),
        mesh=mesh,
    )


def sweep(
    spec: SweepSpec, mdp: MDP | None = None, *, progress: Callable[[int, int, float], None] | None = None
) -> xr.Dataset:
    """Runs a grid and returns cumulative regret by epsilon, hyper-parameter, seed and episode.

    Args:
      spec: the grid.
      mdp: the MDP; by default the environment that the spec names.
      progress: called after each chunk with (runs * episodes done, runs * episodes in all, seconds of compiling).

    Returns:
      A Dataset with `regret` (float64, cumulative exact pseudo-regret), the accounted epsilons as coordinates, and
      the guarantees and timings in its attributes (see `results`).

    Privacy: the guarantee of each epsilon is that of one run. Runs of a seed share their noise across epsilons.
    """
    plan = resolve(spec, mdp)
    return results.to_dataset(plan, *run(plan, progress))


def run(plan: Plan, progress: Callable[[int, int, float], None] | None = None) -> tuple[np.ndarray, dict[str, float]]:
    """Runs a plan: regret f64[cell, seed, record], and seconds of compiling and of running."""
    spec, G = plan.spec, len(plan.grid)
    regret = np.zeros((G, spec.seeds, len(plan.records)))
    total = spec.seeds * G * spec.episodes
    compile_seconds = run_seconds = 0.0
    done = 0
    program, seconds = compiled(plan)
    compile_seconds += seconds
    if progress:
        progress(0, total, compile_seconds)
    for first in range(0, spec.seeds, plan.tile):
        # A last, shorter tile is filled up with seeds whose results are dropped: one shape, one program.
        seeds = spec.seed_start + first + np.arange(plan.tile)
        lanes = min(plan.tile, spec.seeds - first)
        state, keys = initial(plan, seeds)
        running = np.zeros((G, plan.tile))
        for start, count in chunks(spec.episodes):
            begin = time.perf_counter()
            state, chunk = program(keys, state, plan.cells, plan.dynamics, np.int32(start), np.int32(count))
            block = np.asarray(chunk, np.float64)[:count]
            run_seconds += time.perf_counter() - begin
            # Episode regrets are summed on the host in float64: totals stay exact at any K.
            sums = running + np.cumsum(block, 0)
            running = sums[-1]
            inside = (plan.records > start) & (plan.records <= start + count)
            rows = sums[plan.records[inside] - start - 1]
            regret[:, first : first + lanes, inside] = np.moveaxis(rows, 0, -1)[:, :lanes]
            done += count * lanes * G
            if progress:
                progress(done, total, compile_seconds)
    return regret, {"compile": compile_seconds, "run": run_seconds}


def chunks(episodes: int) -> Iterator[tuple[int, int]]:
    """(first episode, number of episodes) of each call of the program."""
    for start in range(0, episodes, CHUNK):
        yield start, min(CHUNK, episodes - start)


def compiled(plan: Plan) -> tuple[Callable, float]:
    """The compiled program of a plan, and the seconds it took (0 if this process has it already)."""
    begin = time.perf_counter()
    misses = _compile.cache_info().misses
    program = _compile(plan.names, plan.shape, len(plan.grid), plan.tile, plan.mesh)
    seconds = time.perf_counter() - begin if _compile.cache_info().misses > misses else 0.0
    return program, seconds


@functools.lru_cache(maxsize=64)
def _compile(names: Names, shape: Shape, cells: int, tile: int, mesh: Mesh) -> Callable:
    """Compiles the program of a (learner, privatizer, shapes): K, epsilons and other numbers are its data."""
    program = chunk_program(names, shape, mesh)
    return program.lower(*abstract_arguments(names, shape, cells, tile, mesh)).compile()


def chunk_program(names: Names, shape: Shape, mesh: Mesh, compiler_options: dict | None = COMPILER_OPTIONS) -> Any:
    """The jitted program `(keys, state, cells, dynamics, start, count) -> (state, regret f32[CHUNK, cell, seed])`.

    It plays episodes start .. start + count - 1 of every run of a tile. Seeds are the last axis of every array and
    are sharded over the mesh; cells come before them.
    """

    def body(keys, state, cells, dynamics, start, count):
        episodes = start + jnp.arange(CHUNK)
        keys = jax.vmap(
            lambda key: jax.tree.map(lambda k: simulation.episode_keys(k, episodes), simulation.streams(key)),
            out_axes=1,
        )(keys)
        step = _batched_step(names, shape, state)

        def episode(i, carry):
            state, regrets = carry
            now = jax.tree.map(lambda k: k[i], keys)
            state, regret = step(now, state, cells, dynamics)
            return state, jax.lax.dynamic_update_index_in_dim(regrets, regret, i, 0)

        lanes = (cells.hyper.bonus_scale.shape[0], keys.noise.shape[1])
        return jax.lax.fori_loop(0, count, episode, (state, jnp.zeros((CHUNK, *lanes))))

    def sharded(keys, state, cells, dynamics, start, count):
        traces[(names, shape)] += 1
        specs = _partition(state)
        everywhere = PartitionSpec()
        return jax.shard_map(
            body,
            mesh=mesh,
            in_specs=(PartitionSpec("runs"), specs, everywhere, everywhere, everywhere, everywhere),
            out_specs=(specs, PartitionSpec(None, None, "runs")),
            check_vma=False,
        )(keys, state, cells, dynamics, start, count)

    return jax.jit(sharded, donate_argnums=1, compiler_options=compiler_options)


traces: collections.Counter = collections.Counter()  # how often each program was traced; tests read it


def _batched_step(names: Names, shape: Shape, state: RunState) -> Callable:
    """One episode of all runs of a tile: vmap over seeds of vmap over cells, batch axes last."""

    def step(keys: Streams, state: RunState, cell: Cell, dynamics: Dynamics) -> tuple[RunState, Array]:
        realised = names.learner in published.LEARNERS  # the published code sums the gaps at visited steps
        return simulation.step(keys, state, dynamics, shape, *parts(names, shape, cell), realised=realised)

    by_cell, by_seed = _axes(state, noise=None), _axes(state, noise=-1)
    over_cells = vmap_last(step, (None, by_cell, _CELL_AXES, None), (by_cell, -1))
    return vmap_last(over_cells, (0, by_seed, None, None), (by_seed, -1))


def parts(names: Names, shape: Shape, cell: Cell) -> tuple[Learner, Privatizer]:
    """Learner, fed through its post-processing, and privatizer of one cell."""
    learner = (LEARNERS | published.LEARNERS)[names.learner](shape, cell.hyper)
    privatizer = (PRIVATIZERS | published.PRIVATIZERS)[names.privatizer](shape, cell.noise)
    return compose(shape, POSTPROCESSORS[names.postprocess], learner), privatizer


def _axes(state: RunState, noise: int | None) -> RunState:
    """Batch axes of a run's state: none for the episode number; noise is shared by the cells of a seed."""
    release = type(state.release)(*(None if name == "num_episodes" else -1 for name in state.release._fields))
    return RunState(PrivatizerState(None, noise, -1), -1, release)


def _partition(state: RunState) -> Any:
    """The seed axis, last of every array but the episode numbers, is spread over the mesh."""
    return jax.tree.map(lambda x: PartitionSpec(*[None] * (x.ndim - 1), "runs") if x.ndim else PartitionSpec(), state)


def init_batched(names: Names, shape: Shape, cells: Cell, tile: int) -> RunState:
    """State of all runs of a tile before the first episode."""

    def one(cell: Cell) -> RunState:
        return simulation.init(shape, *parts(names, shape, cell))

    first = jax.tree.map(lambda x: x[0], cells._replace(noise=cells.noise._replace(strategy=None)))
    alone = jax.eval_shape(one, first._replace(noise=first.noise._replace(strategy=cells.noise.strategy)))
    over_cells = jax.vmap(one, in_axes=(_CELL_AXES,), out_axes=_axes(alone, noise=None))
    return jax.vmap(lambda _: over_cells(cells), out_axes=_axes(alone, noise=-1))(jnp.arange(tile))


_init_jitted = jax.jit(init_batched, static_argnums=(0, 1, 3))


def initial(plan: Plan, seeds: np.ndarray) -> tuple[RunState, Array]:
    """State and keys of a tile, placed on the devices."""
    state = _init_jitted(plan.names, plan.shape, plan.cells, len(seeds))
    keys = jax.vmap(noise.key)(jnp.asarray(seeds))
    placed = jax.tree.map(lambda x, p: jax.device_put(x, NamedSharding(plan.mesh, p)), state, _partition(state))
    return placed, jax.device_put(keys, NamedSharding(plan.mesh, PartitionSpec("runs")))


def abstract_arguments(names: Names, shape: Shape, cells: int, tile: int, mesh: Mesh) -> tuple:
    """Shapes, types and shardings of the arguments of `chunk_program`."""
    scalar = jax.ShapeDtypeStruct((cells,), jnp.float32)
    table = jax.ShapeDtypeStruct((cells, _TABLE_ROWS), jnp.float32)
    strategy = jax.ShapeDtypeStruct(host_strategy("exact", 1).shape, jnp.float32)
    cell = Cell(NoiseParameters(scalar, Counts(table, table, table), strategy), Hyperparameters(*[scalar] * 4))
    state = jax.eval_shape(functools.partial(init_batched, names, shape, tile=tile), cell)
    state = jax.tree.map(
        lambda x, p: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=NamedSharding(mesh, p)), state, _partition(state)
    )
    keys = jax.eval_shape(lambda: jax.vmap(noise.key)(jnp.arange(tile)))
    keys = jax.ShapeDtypeStruct(keys.shape, keys.dtype, sharding=NamedSharding(mesh, PartitionSpec("runs")))
    H, S, A = shape.horizon, shape.num_states, shape.num_actions
    sa, sas = jax.ShapeDtypeStruct((H, S, A), jnp.float32), jax.ShapeDtypeStruct((H, S, A, S), jnp.float32)
    dynamics = Dynamics(sa, sas, sas, sa, jax.ShapeDtypeStruct((S,), jnp.float32), jax.ShapeDtypeStruct((), jnp.bool_))
    number = jax.ShapeDtypeStruct((), jnp.int32)
    return keys, state, cell, dynamics, number, number


def state_bytes(plan: Plan) -> int:
    """Bytes of state of one run, its share of the seed's noise included."""
    arguments = abstract_arguments(plan.names, plan.shape, len(plan.grid), plan.tile, plan.mesh)
    total = sum(math.prod(x.shape) * x.dtype.itemsize for x in jax.tree.leaves(arguments[1]))
    return math.ceil(total / (plan.tile * len(plan.grid)))


def _calibrate(spec: SweepSpec, problem: accounting.Problem, epsilon: float) -> accounting.Calibration:
    if spec.privatizer in published.PRIVATIZERS:
        return published.calibrate(spec.privatizer, problem, epsilon)
    return accounting.calibrate(
        spec.privatizer,
        problem,
        epsilon,
        dp_delta=spec.dp_delta,
        target=spec.target,
        calibration=spec.calibration,
        failure_prob=spec.failure_prob,
        time_varying=spec.precision == "time_varying",
    )


def noise_parameters(
    privatizer: str, problem: accounting.Problem, calibration: accounting.Calibration
) -> NoiseParameters:
    """What accounting found, as arrays of the shapes that every program expects."""
    tables = Counts(*(_pad(np.asarray(t, np.float32)) for t in calibration.precision))
    # Rounded up: a scale rounded down to float32 would fall short of the proof.
    scale = np.float32(calibration.noise_scale)
    if scale < calibration.noise_scale:
        scale = np.nextafter(scale, np.float32(np.inf))
    return NoiseParameters(scale, tables, host_strategy(privatizer, problem.num_episodes))


def _cell(
    spec: SweepSpec, problem: accounting.Problem, calibration: accounting.Calibration, bonus_scale: float, rate: float
) -> Cell:
    hyper = Hyperparameters(*(np.float32(x) for x in (spec.episodes, bonus_scale, rate, spec.failure_prob)))
    found = noise_parameters(spec.privatizer, problem, calibration)
    error = jax.tree.map(lambda table: np.float32(spec.error_scale) * table, found.error)
    return Cell(found._replace(error=error), hyper)


def _stack(cells: Sequence[Cell], strategy: np.ndarray) -> Cell:
    """Cells with a leading axis over the grid, but for the strategy."""
    bare = [c._replace(noise=c.noise._replace(strategy=None)) for c in cells]
    stacked = jax.tree.map(lambda *x: jnp.stack(x), *bare)
    return stacked._replace(noise=stacked.noise._replace(strategy=jnp.asarray(strategy)))


def _pad(table: np.ndarray) -> np.ndarray:
    return np.concatenate([table, np.full(_TABLE_ROWS - len(table), table[-1])])


def shape_of(problem: accounting.Problem, max_episodes: int) -> Shape:
    """Static sizes of a program for a problem."""
    H, S, A, _, homogeneous, families, centred_costs = problem
    return Shape(H, S, A, 1 if homogeneous else H, families, max_episodes, centred_costs)


def stack_episodes(episodes: int) -> int:
    """The least of 2**8 - 1, 2**16 - 1, 2**24 - 1, 2**31 - 1 that holds K: few distinct programs over all K."""
    return next(2**b - 1 for b in (8, 16, 24, 31) if episodes < 2**b)


def _tile(seeds: int, cells: int, devices: int, shape: Shape) -> int:
    """Seeds at once: enough to fill vectors, few enough to stay in cache; one big tile on an accelerator.

    Vectors hold 8 or 16 lanes, so a few seeds more, whose results are dropped, cost less than a ragged row.
    """
    each = math.ceil(seeds / devices)
    if jax.default_backend() == "cpu":
        counters = shape.num_stages * shape.num_states * shape.num_actions * (shape.num_states + 2)
        lanes = min(_TILE_RUNS, _TILE_COUNTERS // counters) // cells
        lanes = 8 if lanes < 32 else 8 * (lanes // 8)  # beside other cells, rows of 8 measure better than 16 or 24
        each = min(each if each <= 4 else 8 * math.ceil(each / 8), lanes)
    return each * devices


def _records(spec: SweepSpec) -> np.ndarray:
    K = spec.episodes
    every = spec.record_every if spec.record_every is not None else max(1, K // 200)
    _validate.positive_int("record_every", every, "Pass how many episodes lie between two records.")
    kept = set(range(every, K + 1, every)) | {K, 9 * K // 10}
    return np.array(sorted(kept - {0}))
