"""How the cost of an episode grows with S, A, H, K and the numbers of runs and epsilons, with fitted exponents.

python benchmarks/scaling.py             # about five minutes on one core
python benchmarks/scaling.py --smoke     # two points of two axes, for the tests
"""

import argparse
import json
import math
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

# Values of each axis; the others stay at S = 6, A = 2, H = 20, 32 seeds, one epsilon.
AXES: dict[str, tuple[int, ...]] = {
    "states": (6, 12, 25, 50, 100),
    "actions": (2, 4, 8, 16),
    "horizon": (5, 10, 20, 40),
    "episodes": (10_000, 100_000, 1_000_000),
    "seeds": (4, 8, 16, 32, 64, 128),
    "epsilons": (1, 2, 4, 8, 16),
}
THEORY = {"states": "2 (counters grow as S^2)", "counters": "1", "actions": "1", "horizon": "1", "episodes": "0",
          "seeds": "0 per run, once lanes are full", "epsilons": "below 0 per run: noise is shared"}  # fmt: skip


def cost(axis: str, value: int, privatizer: str, budget: float) -> dict[str, Any]:
    """CPU microseconds per episode and run; episodes are timed where K says they lie, not all K of them."""
    import jax

    from jaxprivrl import environments
    from jaxprivrl.engine import run as runs
    from jaxprivrl.experiments.spec import SweepSpec, resolve
    from jaxprivrl.numerics import random

    sizes = {"states": 6, "actions": 2, "horizon": 20, "episodes": 10_000, "seeds": 32, "epsilons": 1} | {axis: value}
    mdp = environments.random_mdp(random.key(0), sizes["horizon"], sizes["states"], sizes["actions"], homogeneous=True)
    spec = SweepSpec(
        environment="random",
        privatizer=privatizer,
        epsilons=tuple(100.0 * (i + 1) for i in range(sizes["epsilons"])),
        seeds=sizes["seeds"],
        episodes=sizes["episodes"],
        grid={"bonus_scale": (0.01,)},
        record_every=sizes["episodes"],
    )
    job = resolve(spec, mdp).job
    program, compile_seconds = runs.compiled(job)
    num_runs = job.tile * job.num_cells
    state, keys = runs.initial(job, np.arange(job.tile))
    # Late episodes, with the state told so: a tree's deepest levels are in use.
    start = max(0, sizes["episodes"] - 10 * runs.CHUNK)
    state = state._replace(clock=jax.tree.map(lambda x: jax.device_put(np.int32(start), x.sharding), state.clock))
    best, spent, n = math.inf, 0.0, 100
    while spent < budget:
        begin = time.process_time()
        state, outputs = program(keys, state, job.cells, job.shared, np.int32(start), np.int32(n))
        jax.tree.map(np.asarray, outputs)
        seconds = time.process_time() - begin
        spent += seconds
        best = min(best, seconds / n)
        n = min(runs.CHUNK, max(20, int(n * 0.3 * budget / max(seconds, 1e-6))))
    return {
        "axis": axis,
        "value": value,
        "privatizer": privatizer,
        "counters": math.prod(mdp.shape) * (mdp.shape[1] + 2),
        "us_per_episode_run_cpu": best * 1e6 / num_runs,
        "state_bytes_per_run": runs.state_bytes(job),
        "compile_seconds": compile_seconds,
    }


def cost_in_c(states: int, privatizer: str) -> dict[str, Any] | None:
    """The same point for the plain C loop, whose growth is the machine's own: its caches end somewhere, too."""
    import engine

    counters = 2 * 20 * states * (states + 2)
    with tempfile.TemporaryDirectory() as folder:
        program = engine.compile_c(Path(folder), "-DPLAIN_LOOPS", f"-DNUM_STATES={states}")
        if program is None:
            return None
        us = engine.time_c(program, engine.Case("ucb_vi", privatizer, 1, 1), max(20, 10_000_000 // counters), 2)
    return {"axis": "states", "value": states, "privatizer": f"C loop, {privatizer}", "counters": counters,
            "us_per_episode_run_cpu": us}  # fmt: skip


def fit(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Least-squares exponent of cost in each axis, over its upper half where fixed costs are past.

    The axis of states gives the exponent in the number of counters too, over all of it.
    """
    fits = []
    rows = rows + [r | {"axis": "counters", "value": r["counters"]} for r in rows if r["axis"] == "states"]
    for axis in dict.fromkeys(r["axis"] for r in rows):
        for privatizer in dict.fromkeys(r["privatizer"] for r in rows):
            mine = [r for r in rows if r["axis"] == axis and r["privatizer"] == privatizer]
            if not mine:
                continue
            upper = mine if axis == "counters" else mine[-max(2, len(mine) // 2 + 1) :]
            x, y = np.log([r["value"] for r in upper]), np.log([r["us_per_episode_run_cpu"] for r in upper])
            fits.append({"axis": axis, "privatizer": privatizer, "exponent": float(np.polyfit(x, y, 1)[0]),
                         "expected": THEORY[axis]})  # fmt: skip
    return fits


def figure(rows: list[dict[str, Any]], path: Path) -> None:
    """One log-log panel per axis."""
    from jaxprivrl.experiments import plots

    axes_names = list(dict.fromkeys(r["axis"] for r in rows))
    columns = min(3, len(axes_names))
    fig, axes = plots.new_figure(columns, -(-len(axes_names) // columns), width=3.8, height=3.2)
    for ax, name in zip(axes.flat, axes_names, strict=False):
        for i, privatizer in enumerate(dict.fromkeys(r["privatizer"] for r in rows)):
            mine = [r for r in rows if r["axis"] == name and r["privatizer"] == privatizer]
            if not mine:
                continue
            colour = "black" if privatizer == "exact" else plots.COLOURS[i]
            style = "o--" if privatizer.startswith("C loop") else "o-"
            ax.plot([r["value"] for r in mine], [r["us_per_episode_run_cpu"] for r in mine], style, color=colour,
                    label=privatizer)  # fmt: skip
        ax.set(xscale="log", yscale="log", xlabel=f"number of {name}" if name != "horizon" else "horizon H")
        ax.set_ylabel("CPU µs per episode and run")
        ticks = sorted({r["value"] for r in rows if r["axis"] == name})
        ax.set_xticks(ticks, [f"{t:,}" for t in ticks])  # the measured values; matplotlib's own labels overlap
        ax.tick_params(axis="x", which="minor", bottom=False, labelbottom=False)
        plots.plain_logs(ax.yaxis)
        ax.grid(alpha=0.25, which="both")
        ax.legend(frameon=False, fontsize=7)
    plots.save(fig, path)


def main(argv: list[str] | None = None) -> int:
    """Measures all axes, prints points and exponents, draws the figure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("results/scaling.png"))
    parser.add_argument("--budget", type=float, default=3.0, help="CPU seconds for each point")
    parser.add_argument("--smoke", action="store_true")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args(argv)
    from jaxprivrl.experiments import tables
    from jaxprivrl.numerics import runtime

    runtime.configure(num_devices=1)
    grid = {"states": (3, 6), "episodes": (10_000, 20_000)} if args.smoke else AXES
    names = ("central_laplace",) if args.smoke else ("exact", "central_laplace", "local_laplace")
    budget = 0.05 if args.smoke else args.budget
    rows = []
    for axis, values in grid.items():
        for value in values:
            for privatizer in names:
                rows.append(cost(axis, value, privatizer, budget))
                print(f"{axis}={value} {privatizer}: {rows[-1]['us_per_episode_run_cpu']:.2f} us", file=sys.stderr)
    for states in grid["states"]:
        for privatizer in names[:2]:
            row = cost_in_c(states, privatizer)
            rows += [row] if row else []
    fits = fit(rows)
    figure(rows, args.out)
    if args.json:
        print(json.dumps({"points": rows, "fits": fits, "out": str(args.out)}))
    else:
        print(tables.plain(rows), tables.plain(fits), f"Wrote {args.out}.", sep="\n\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
