"""Whether a sweep fits in memory, before anything of its size is made."""

import math
from typing import NamedTuple

import jax
from jax.sharding import Mesh

from jaxprivrl.engine import run as engine
from jaxprivrl.experiments.folders import gigabytes
from jaxprivrl.numerics import runtime
from jaxprivrl.problem import Problem

_TABLE_COPIES = 40  # bytes of each cost and probability: float32 arrays that stay, float64 ones while they are prepared
_REPLICA = 16  # bytes of each on every further device


class Need(NamedTuple):
    """Bytes that a sweep needs at most.

    Attributes:
      tables: costs, transitions and what is prepared of them.
      states: of the runs of a tile, with what an episode computes of them.
      outputs: keys and numbers of the episodes between two looks at the results.
      results: what is kept of all episodes, until it is written.
    """

    tables: int
    states: int
    outputs: int
    results: int


_REMEDY = {
    "tables": "Pass a smaller horizon or fewer states",
    "states": "Pass fewer seeds, values of epsilon or of the grid, a smaller horizon or pooled counts",
    "outputs": "Pass fewer values of epsilon and of the grid",
    "results": "Pass a larger --record-every or fewer seeds",
}


def need(
    program: engine.Program, problem: Problem, cells: int, seeds: int, tile: int, mesh: Mesh, records: int
) -> Need:
    """What a sweep needs but for its states, which `states` estimates; a little too much rather than too little."""
    H, S, A = problem.horizon, problem.num_states, problem.num_actions
    entries, metrics, runs = H * S * A * (S + 1), 1 + len(program.metrics), tile * cells
    times = 0 if problem.schedule.every else 24 * problem.num_releases
    return Need(
        tables=(_TABLE_COPIES + _REPLICA * (mesh.size - 1)) * entries,
        states=0,
        outputs=engine.CHUNK * (24 * tile + 20 * metrics * runs) + times,
        results=24 * metrics * seeds * cells * records,
    )


def states(program: engine.Program, problem: Problem, cells: int, tile: int, mesh: Mesh) -> int:
    """Bytes of the states of a tile, twice while they are made, and of the counts that an episode works on."""
    releases = () if problem.schedule.every else problem.num_releases
    state = engine.abstract_arguments(program, cells, tile, mesh, releases)[1]
    held = sum(math.prod(x.shape) * x.dtype.itemsize for x in jax.tree.leaves(state))
    counters = problem.shape.num_stages * problem.num_states * problem.num_actions * (problem.num_states + 2)
    return 2 * held + 8 * counters * tile * cells


def check(
    program: engine.Program, problem: Problem, cells: int, seeds: int, tile: int, mesh: Mesh, records: int
) -> None:
    """Raises unless a sweep fits in the memory that is free, with its size and what to change."""
    free = runtime.available_memory()
    if free is None:
        return
    found = need(program, problem, cells, seeds, tile, mesh, records)
    if sum(found) <= free:  # what is far too large is not even traced
        found = found._replace(states=states(program, problem, cells, tile, mesh))
    if sum(found) <= free:
        return
    sizes = sorted(((size, part) for part, size in found._asdict().items()), reverse=True)
    listed = ", ".join(f"{part} {gigabytes(size)}" for size, part in sizes if size > 0.01 * sum(found))
    raise ValueError(
        f"This sweep needs {gigabytes(sum(found))} of memory or so ({listed}), and {gigabytes(free)} are free. "
        f"{_REMEDY[sizes[0][1]]}."
    )
