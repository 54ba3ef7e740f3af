"""Many runs: a grid of seeds, epsilons and hyper-parameters as one compiled program, in tiles and chunks."""

import collections
import functools
import math
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from jaxprivrl.engine import episodes
from jaxprivrl.engine.episodes import Agent, Parts, RunState, Streams
from jaxprivrl.learners import Learner, Metric, Steps
from jaxprivrl.learners.postprocess import Postprocessor, compose
from jaxprivrl.mdp import Counts, Dynamics
from jaxprivrl.numerics import random
from jaxprivrl.numerics.axes import vmap_last
from jaxprivrl.numerics.runtime import COMPILER_OPTIONS
from jaxprivrl.privacy.errors import ROWS
from jaxprivrl.privacy.privatizer import Privatizer
from jaxprivrl.privatizers.base import Parameters, Runtime
from jaxprivrl.problem import Shape

Array = jax.Array

CHUNK = 1000  # episodes of one call of the program, unless a caller says otherwise
_TILE_RUNS = 64  # runs of a tile on a CPU device, unless 8 seeds are more; found by measuring, see benchmarks/README.md
_TILE_COUNTERS = 2**20


class Program(NamedTuple):
    """What fixes a program, by value: the static argument of jit.

    Attributes:
      learner, privatizer, postprocess: the objects.
      shape: static sizes.
      realised: which regret.
      metrics: recorded beside it.
    """

    learner: Learner
    privatizer: Privatizer
    postprocess: Postprocessor
    shape: Shape
    realised: bool = False
    metrics: tuple[Metric, ...] = ()


class Cell(NamedTuple):
    """Traced numbers of one grid cell; batched over the cells of a grid.

    Attributes:
      scale: f32[], of the noise.
      error: Counts of f32[ROWS].
      hyper: the learner's numbers by name, f32[] each.
    """

    scale: Array
    error: Counts
    hyper: dict[str, Array]


class Shared(NamedTuple):
    """Traced numbers that all cells share.

    Attributes:
      dynamics: of the MDP.
      data: of the privatizer's strategy.
      times: i32[J], release times; () on schedule `every`.
    """

    dynamics: Dynamics
    data: Any
    times: Any


class Job(NamedTuple):
    """A program with all its numbers.

    Attributes:
      program: what fixes it.
      cells: Cell with a leading axis over the grid.
      shared: what they share.
      seeds: first seed and number of them.
      num_episodes: K.
      records: i[R], episode numbers kept, ending in K.
      tile: seeds run at once, over all devices.
      mesh: devices.
    """

    program: Program
    cells: Cell
    shared: Shared
    seeds: tuple[int, int]
    num_episodes: int
    records: np.ndarray
    tile: int
    mesh: Mesh

    @property
    def num_cells(self) -> int:
        """Cells of the grid."""
        return int(self.cells.scale.shape[0])


def devices() -> Mesh:
    """All devices as one axis of runs."""
    return jax.make_mesh((len(jax.devices()),), ("runs",), axis_types=(AxisType.Auto,))


def run(
    job: Job, progress: Callable[[int, int, float], None] | None = None, *, chunk: int = CHUNK
) -> tuple[dict[str, np.ndarray], dict[str, float]]:
    """Runs a job: {"regret" or metric: f64[cell, seed, record]}, and seconds of compiling and of running."""
    G, (first_seed, num_seeds), K = job.num_cells, job.seeds, job.num_episodes
    names = ("regret", *(metric.name for metric in job.program.metrics))
    reduce = ("sum", *(metric.reduce for metric in job.program.metrics))
    kept = {name: np.zeros((G, num_seeds, len(job.records))) for name in names}
    total, done, run_seconds = num_seeds * G * K, 0, 0.0
    program, compile_seconds = compiled(job, chunk)
    if progress:
        progress(0, total, compile_seconds)
    for first in range(0, num_seeds, job.tile):
        # A last, shorter tile is filled up with seeds whose results are dropped: one shape, one program.
        lanes = min(job.tile, num_seeds - first)
        state, keys = initial(job, first_seed + first + np.arange(job.tile))
        running = {name: np.zeros((G, job.tile)) for name in names}
        for start, count in chunks(K, chunk):
            begin = time.perf_counter()
            state, outputs = program(keys, state, job.cells, job.shared, np.int32(start), np.int32(count))
            blocks = np.moveaxis(np.asarray(outputs, np.float64)[:count], 1, 0)
            run_seconds += time.perf_counter() - begin
            _check_policies(job.program.learner, blocks[0][..., :lanes], start)
            inside = (job.records > start) & (job.records <= start + count)
            at = job.records[inside] - start - 1
            for name, kind, block in zip(names, reduce, blocks, strict=True):
                # Sums are taken on the host in float64: totals stay exact at any K.
                sums = block if kind == "last" else running[name] + np.cumsum(block, 0)
                running[name] = sums[-1]
                kept[name][:, first : first + lanes, inside] = np.moveaxis(sums[at], 0, -1)[:, :lanes]
            done += count * lanes * G
            if progress:
                progress(done, total, compile_seconds)
    for name, kind in zip(names, reduce, strict=True):
        if kind == "mean":
            kept[name] = np.diff(kept[name], prepend=0.0, axis=-1) / np.diff(job.records, prepend=0)
    return kept, {"compile": compile_seconds, "run": run_seconds}


def _check_policies(learner: Learner, regret: np.ndarray, start: int) -> None:
    if not np.all(np.isfinite(regret)):
        episode = start + 1 + int(np.argwhere(~np.isfinite(regret))[0][0])
        raise ValueError(
            f"Learner '{learner.name}' returned a policy in episode {episode} whose rows are no distributions; "
            "expected f32[H, S, A] of numbers >= 0 that sum to 1 over actions. Mend its step."
        )


def chunks(num_episodes: int, chunk: int = CHUNK) -> Iterator[tuple[int, int]]:
    """(first episode, number of episodes) of each call of the program."""
    for start in range(0, num_episodes, chunk):
        yield start, min(chunk, num_episodes - start)


def compiled(job: Job, chunk: int = CHUNK) -> tuple[Callable[..., Any], float]:
    """The compiled program of a job, and the seconds it took (0 if this process has it already)."""
    begin = time.perf_counter()
    misses = _compile.cache_info().misses
    releases = () if job.program.shape.every else len(job.shared.times)
    program = _compile(job.program, job.num_cells, job.tile, job.mesh, chunk, releases)
    seconds = time.perf_counter() - begin if _compile.cache_info().misses > misses else 0.0
    return program, seconds


@functools.lru_cache(maxsize=64)
def _compile(program: Program, cells: int, tile: int, mesh: Mesh, chunk: int, releases: Any) -> Callable[..., Any]:
    """Compiles a program for sizes: K, epsilons and other numbers are its data."""
    return (
        chunk_program(program, mesh, chunk).lower(*abstract_arguments(program, cells, tile, mesh, releases)).compile()
    )


def chunk_program(
    program: Program, mesh: Mesh, chunk: int, compiler_options: dict[str, Any] | None = COMPILER_OPTIONS
) -> Any:
    """The jitted `(keys, state, cells, shared, start, count) -> (state, outputs f32[chunk, metric, cell, seed])`.

    It plays episodes start .. start + count - 1 of every run of a tile. Seeds are the last axis of every array and
    are sharded over the mesh; cells come before them.
    """
    outputs = 1 + len(program.metrics)

    def body(keys: Any, state: RunState, cells: Cell, shared: Shared, start: Array, count: Array) -> Any:
        numbers = start + jnp.arange(chunk)
        keys = jax.vmap(
            lambda key: jax.tree.map(lambda k: episodes.episode_keys(k, numbers), episodes.streams(key)), out_axes=1
        )(keys)
        step = _batched_step(program, state)

        def episode(i: Array, carry: Any) -> Any:
            state, kept = carry
            now = jax.tree.map(lambda k: k[i], keys)
            state, values = step(now, state, cells, shared)
            return state, jax.lax.dynamic_update_index_in_dim(kept, jnp.stack(values), i, 0)

        lanes = (cells.scale.shape[0], keys.noise.shape[1])
        return jax.lax.fori_loop(0, count, episode, (state, jnp.zeros((chunk, outputs, *lanes))))

    def sharded(keys: Any, state: RunState, cells: Cell, shared: Shared, start: Array, count: Array) -> Any:
        traces[(program.learner.name, program.privatizer.name, program.shape)] += 1
        specs, everywhere = _partition(state), PartitionSpec()
        return jax.shard_map(
            body,
            mesh=mesh,
            in_specs=(PartitionSpec("runs"), specs, everywhere, everywhere, everywhere, everywhere),
            out_specs=(specs, PartitionSpec(None, None, None, "runs")),
            check_vma=False,
        )(keys, state, cells, shared, start, count)

    return jax.jit(sharded, donate_argnums=1, compiler_options=compiler_options)


traces: collections.Counter[Any] = collections.Counter()  # how often each program was traced; tests read it


def _batched_step(program: Program, state: RunState) -> Callable[..., Any]:
    """One episode of all runs of a tile: vmap over seeds of vmap over cells, batch axes last."""

    def step(keys: Streams, state: RunState, cell: Cell, shared: Shared) -> tuple[RunState, tuple[Array, ...]]:
        return episodes.step(
            keys, state, parts(program, cell, shared), realised=program.realised, metrics=program.metrics
        )

    by_cell, by_seed = axes(seed=None), axes(seed=-1)
    over_cells = vmap_last(step, (None, by_cell, 0, None), (by_cell, -1))
    return vmap_last(over_cells, (0, by_seed, None, None), (by_seed, -1))


def parts(program: Program, cell: Cell, shared: Shared) -> Parts:
    """The functions and numbers of one run."""
    runtime, learner = functions(program, cell)
    parameters = Parameters(cell.scale, cell.error, shared.data)
    agent = Agent(program.shape, program.privatizer, runtime, parameters, shared.times)
    return Parts(agent, learner, shared.dynamics)


def functions(program: Program, cell: Cell) -> tuple[Runtime, Steps]:
    """Runtime of the privatizer, and steps of the learner, fed through its post-processing."""
    shape, hyper = program.shape, cell.hyper
    learner = compose(shape, program.postprocess, hyper, program.learner.make(shape, hyper))
    return program.privatizer.runtime(program.privatizer, shape), learner


def axes(seed: int | None) -> RunState:
    """Batch axes of a run's state, over cells (seed=None, as they share the noise) or over seeds (-1)."""
    return RunState(None, seed, -1, -1, -1, -1)  # type: ignore[arg-type]


def _partition(state: RunState) -> Any:
    """The seed axis, last of every array but the clock, is spread over the mesh."""
    return jax.tree.map(lambda x: PartitionSpec(*[None] * (x.ndim - 1), "runs") if x.ndim else PartitionSpec(), state)


def init_batched(program: Program, cells: Cell, shared: Shared, tile: int) -> RunState:
    """State of all runs of a tile before the first episode."""

    def one(cell: Cell) -> RunState:
        agent, learner, _ = parts(program, cell, shared)
        return episodes.begin(agent, learner.init())

    over_cells = jax.vmap(one, in_axes=(0,), out_axes=axes(seed=None))
    return jax.vmap(lambda _: over_cells(cells), out_axes=axes(seed=-1))(jnp.arange(tile))


_init_jitted = jax.jit(init_batched, static_argnums=(0, 3))


def initial(job: Job, seeds: np.ndarray) -> tuple[RunState, Array]:
    """State and keys of a tile, placed on the devices."""
    state = _init_jitted(job.program, job.cells, job.shared, len(seeds))
    keys = jax.vmap(random.key)(jnp.asarray(seeds))
    placed = jax.tree.map(lambda x, p: jax.device_put(x, NamedSharding(job.mesh, p)), state, _partition(state))
    return placed, jax.device_put(keys, NamedSharding(job.mesh, PartitionSpec("runs")))


def abstract_arguments(program: Program, cells: int, tile: int, mesh: Mesh, releases: Any = ()) -> tuple[Any, ...]:
    """Shapes, types and shardings of the arguments of `chunk_program`."""
    shape = program.shape
    H, S, A = shape.horizon, shape.num_states, shape.num_actions
    scalar, table = _like(cells), _like(cells, ROWS)
    names = ("num_episodes", *(p.name for p in program.learner.parameters))
    cell = Cell(scalar, Counts(table, table, table), dict.fromkeys(names, scalar))
    sa, sas = _like(H, S, A), _like(H, S, A, S)
    dynamics = Dynamics(sa, sas, sas, sa, _like(S), _like(dtype=jnp.bool_))
    data = jax.tree.map(lambda x: _like(*x.shape), program.privatizer.strategy.data(2))
    times = () if releases == () else _like(releases, dtype=jnp.int32)
    shared = Shared(dynamics, data, times)
    state = jax.eval_shape(functools.partial(init_batched, program, tile=tile), cell, shared)
    state = jax.tree.map(lambda x, p: _placed(x, mesh, p), state, _partition(state))
    keys = _placed(jax.eval_shape(lambda: jax.vmap(random.key)(jnp.arange(tile))), mesh, PartitionSpec("runs"))
    number = _like(dtype=jnp.int32)
    return keys, state, cell, shared, number, number


def _like(*shape: int, dtype: Any = jnp.float32) -> Any:
    """Stands for an array where a program is compiled."""
    return jax.ShapeDtypeStruct(shape, dtype)


def _placed(x: Any, mesh: Mesh, partition: PartitionSpec) -> Any:
    """The same, on the devices of a mesh."""
    return jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=NamedSharding(mesh, partition))


def state_bytes(job: Job) -> int:
    """Bytes of state of one run, its share of the seed's noise included."""
    state = abstract_arguments(job.program, job.num_cells, job.tile, job.mesh)[1]
    total = sum(math.prod(x.shape) * x.dtype.itemsize for x in jax.tree.leaves(state))
    return math.ceil(total / (job.tile * job.num_cells))


def tile_seeds(seeds: int, cells: int, mesh: Mesh, shape: Shape) -> int:
    """Seeds at once: enough to fill vectors, few enough to stay in cache; one big tile on an accelerator.

    Vectors hold 8 or 16 lanes, so a few seeds more, whose results are dropped, cost less than a ragged row.
    """
    each = math.ceil(seeds / mesh.size)
    if jax.default_backend() == "cpu":
        counters = shape.num_stages * shape.num_states * shape.num_actions * (shape.num_states + 2)
        lanes = min(_TILE_RUNS, _TILE_COUNTERS // counters) // cells
        lanes = 8 if lanes < 32 else 8 * (lanes // 8)  # beside other cells, rows of 8 measure better than 16 or 24
        each = min(each if each <= 4 else 8 * math.ceil(each / 8), lanes)
    return each * mesh.size


def release_times(times: np.ndarray, every: bool) -> Any:
    """Release times as data, padded to a rung so that few distinct programs serve all schedules."""
    if every:
        return ()
    rung = 2 ** max(5, int(np.ceil(np.log2(len(times) + 1))))
    return np.pad(times.astype(np.int32), (0, rung - len(times)), constant_values=np.int32(-1))
