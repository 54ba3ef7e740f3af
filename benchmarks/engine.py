"""Cost of one episode of one run, beside a NumPy loop, a C loop and the noise alone, all in one go.

RiverSwim, H = 20, stage-dependent counts, three families, exact regret recorded. One-core cases run in a process pinned
to one core and count CPU time; the best of several repeats is kept, because machines are noisy. Ratios count, not
microseconds. Before timing, the engine's regrets are checked against the NumPy loop fed with the same random numbers.
`ratio_to_c` is to the C loop as plainly written, `ratio_to_c_vectorized` to the same source with hints to the compiler;
both run one run at a time. The noise of `ratio_to_noise` is a seed's, divided by the epsilons that share it.

  python benchmarks/engine.py                # all cases, about three minutes
  python benchmarks/engine.py --smoke        # a few episodes of two cases on one core, for the tests
  python benchmarks/engine.py --cores 1      # without the case on both cores
  python benchmarks/engine.py --json
"""

import argparse
import hashlib
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any, NamedTuple

HERE = Path(__file__).resolve().parent
C_FLAGS = ("-O3", "-march=native", "-ffast-math", "-std=c99")
BONUS_SCALE, ETA = 0.02, 0.1


class Case(NamedTuple):
    """One line of the table."""

    learner: str
    privatizer: str
    seeds: int
    epsilons: int

    @property
    def name(self) -> str:
        """Name of the line."""
        return f"{self.learner} {self.privatizer} {self.seeds} seeds x {self.epsilons} epsilon"


CASES = tuple(
    Case(learner, privatizer, seeds, epsilons)
    for learner in ("ucb_vi", "ucb_po")
    for privatizer, seeds, epsilons in (("exact", 64, 1), ("local_laplace", 32, 1), ("central_laplace", 32, 1),
                                        ("local_laplace", 32, 8), ("central_laplace", 32, 8))
)  # fmt: skip
BOTH_CORES = Case("ucb_vi", "central_laplace", 128, 1)  # enough seeds to fill a tile on each core
MAX_COMPILE_SECONDS = 8.0


def plan_of(case: Case, episodes: int) -> Any:
    """The sweep of a case: noise scales of the published code, so that something is learned."""
    from jaxprivrl.experiments.spec import SweepSpec, resolve
    from jaxprivrl.learners import LEARNERS

    grid = {"bonus_scale": (BONUS_SCALE,), "learning_rate": (ETA,)}
    declared = {parameter.name for parameter in LEARNERS[case.learner].parameters}
    return resolve(
        SweepSpec(
            learner=case.learner,
            privatizer=case.privatizer,
            epsilons=tuple(1.0 + i for i in range(case.epsilons)),
            seeds=case.seeds,
            episodes=episodes,
            grid={name: values for name, values in grid.items() if name in declared},
            calibration="tight" if case.privatizer == "exact" else "published_code",
            record_every=episodes,
        )
    )


def time_case(case: Case, episodes: int, repeats: int) -> dict[str, float]:
    """CPU and wall microseconds per episode and run in this process, least of the repeats; compile seconds apart."""
    from jaxprivrl.engine import run as runs

    job = plan_of(case, episodes).job
    begin = time.perf_counter()
    runs.compiled(job)
    compile_seconds = time.perf_counter() - begin
    runs.run(job)
    cpu = wall = float("inf")
    for _ in range(repeats):
        c, w = time.process_time(), time.perf_counter()
        runs.run(job)
        cpu, wall = min(cpu, time.process_time() - c), min(wall, time.perf_counter() - w)
    each = 1e6 / (case.seeds * case.epsilons * episodes)
    return {"cpu": cpu * each, "wall": wall * each, "compile": compile_seconds}


def time_noise(seeds: int, episodes: int, repeats: int) -> float:
    """CPU microseconds per episode and seed to draw the noise of 2 S A H + S^2 A H counters and do nothing else."""
    import jax
    import jax.numpy as jnp

    from jaxprivrl.numerics import random
    from jaxprivrl.numerics.runtime import COMPILER_OPTIONS
    from jaxprivrl.privatizers.streams import draw_like

    zeros = tuple(jnp.zeros(s) for s in ((20, 6, 2), (20, 6, 2), (20, 6, 2, 6)))
    keys = jax.vmap(random.key)(jnp.arange(seeds))

    def loop(keys: Any, count: Any) -> Any:
        def body(i: Any, total: Any) -> Any:
            fresh = jax.vmap(lambda k: draw_like(random.laplace, jax.random.fold_in(k, i), zeros), out_axes=-1)(keys)
            return jax.tree.map(jnp.add, total, fresh)

        return jax.lax.fori_loop(0, count, body, jax.tree.map(lambda x: jnp.zeros((*x.shape, seeds)), zeros))

    program = jax.jit(loop, compiler_options=COMPILER_OPTIONS)
    jax.block_until_ready(program(keys, 1))
    best = float("inf")
    for _ in range(repeats):
        begin = time.process_time()
        jax.block_until_ready(program(keys, episodes))
        best = min(best, time.process_time() - begin)
    return best * 1e6 / (seeds * episodes)


def errors_of(calibrated: Any) -> tuple[float, float, float]:
    """The worst-case error bounds of visits, costs and transitions."""
    visits, costs, transitions = (float(table.max()) for table in calibrated.errors)
    return visits, costs, transitions


PAIRS = tuple((a, b) for a in ("ucb_vi", "ucb_po") for b in ("exact", "local_laplace", "central_laplace"))


def check_equality(episodes: int = 100, pairs: tuple[tuple[str, str], ...] = PAIRS) -> float:
    """Largest difference of the regret of an episode between engine and NumPy loop under the same random numbers."""
    import jax
    import jax.numpy as jnp
    import numpy as np
    import numpy_loop

    from jaxprivrl import environments
    from jaxprivrl.engine import episodes as engine_episodes
    from jaxprivrl.engine import run as runs
    from jaxprivrl.mdp import zero_counts
    from jaxprivrl.numerics import random
    from jaxprivrl.privatizers.streams import draw_like

    mdp = environments.river_swim()
    H, S, _ = mdp.shape
    worst = 0.0
    for learner, privatizer in pairs:
        plan = plan_of(Case(learner, privatizer, 1, 1), episodes)
        ours, _ = runs.run(plan.job._replace(records=np.arange(1, episodes + 1)))
        streams = engine_episodes.streams(random.key(0))
        zeros = tuple(zero_counts(plan.problem.shape))

        @jax.jit
        def numbers(k: Any, streams: Any = streams, zeros: Any = zeros) -> Any:
            now = jax.tree.map(lambda s: jax.random.fold_in(s, k), streams)
            u = random.uniform(now.environment, (H + 1, 3))
            return random.uniform(now.learner, (H, S)), u, draw_like(random.laplace, now.noise, zeros)

        def draws(k: int, numbers: Any = numbers) -> dict[str, Any]:
            ties, u, fresh = numbers(jnp.int32(k))
            names = ("visits", "costs", "transitions")
            return {
                "ties": np.asarray(ties),
                "action": np.asarray(u[:H, 0]),
                "next": np.asarray(u[:H, 1]),
                "cost": np.asarray(u[:H, 2]),
                "noise": dict(zip(names, map(np.asarray, fresh), strict=True)),
            }

        calibrated = plan.calibrated[0]
        theirs = numpy_loop.run(
            np.asarray(mdp.costs, np.float64),
            np.asarray(mdp.transitions, np.float64),
            0,
            episodes,
            learner,
            privatizer,
            calibrated.noise_scale,
            errors_of(calibrated),
            BONUS_SCALE,
            ETA,
            plan.axes["failure_prob"][0],
            draws,
        )
        each = np.diff(ours["regret"][0, 0], prepend=0.0)
        worst = max(worst, float(np.abs(each - theirs).max()))
    if not worst <= 1e-4:
        raise AssertionError(f"Engine and NumPy loop differ by {worst:.2e} in one episode; expected at most 1e-4.")
    return worst


def time_numpy(case: Case, episodes: int) -> float:
    """Microseconds per episode of the NumPy loop, one run."""
    import numpy as np
    import numpy_loop

    from jaxprivrl import environments

    mdp, plan = environments.river_swim(), plan_of(case, 20_000)
    calibrated = plan.calibrated[0]
    begin = time.process_time()
    numpy_loop.run(
        np.asarray(mdp.costs, np.float64), np.asarray(mdp.transitions, np.float64), 0, episodes, case.learner,
        case.privatizer, calibrated.noise_scale, errors_of(calibrated), BONUS_SCALE,
        ETA, 0.1, None,
    )  # fmt: skip
    return (time.process_time() - begin) * 1e6 / episodes


def compile_c(folder: Path, *flags: str) -> Path | None:
    """The C loop, compiled; None where there is no C compiler."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        return None
    program = folder / ("loop" + "".join(flags).replace("-D", "_"))
    source = HERE / "c" / "episode_loop.c"
    subprocess.run([compiler, *C_FLAGS, *flags, "-o", str(program), str(source), "-lm"], check=True)
    return program


def time_c(program: Path, case: Case, episodes: int, runs: int) -> float:
    """CPU microseconds per episode of the C loop, one run at a time; least of three."""
    noise = {"exact": "none", "local_laplace": "local", "central_laplace": "tree"}[case.privatizer]
    numbers = (episodes, runs, 1.0, 5.0, 5.0, BONUS_SCALE, ETA, 0.1)
    found = []
    for seed in range(3):
        command = [str(program), case.learner, noise, *(str(n) for n in numbers), str(seed)]
        output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        found.append(float(json.loads(output)["us_per_episode_run"]))
    return min(found)


def machine(cores: int) -> dict[str, Any]:
    """What the numbers were measured on."""
    import jax

    cpu = Path("/proc/cpuinfo")
    lines = cpu.read_text().splitlines() if cpu.exists() else []
    model = next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), "unknown")
    return {
        "cpu": model,
        "architecture": platform.machine(),
        "cores": cores,
        "python": platform.python_version(),
        "jax": jax.__version__,
        "c_compiler": shutil.which("cc") is not None or shutil.which("gcc") is not None,
    }


def cores_free(seconds: float = 0.5) -> float:
    """How many times the work of one busy thread two get done right now: what caps every speed-up."""
    block = bytes(2**20)

    def spin(until: float, done: list[int]) -> None:
        while time.perf_counter() < until:
            hashlib.sha256(block).digest()  # lets other threads run meanwhile
            done.append(1)

    def rounds(workers: int) -> int:
        done: list[int] = []
        until = time.perf_counter() + seconds
        threads = [threading.Thread(target=spin, args=(until, done)) for _ in range(workers)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return len(done)

    return rounds(2) / rounds(1)


def worker(arguments: argparse.Namespace) -> int:
    """Measures in this process, on the cores asked for, and prints JSON for the parent."""
    if arguments.cores and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: arguments.cores])
    from jaxprivrl.numerics import runtime

    runtime.configure(num_devices=arguments.cores, cache=False)
    if arguments.worker == "noise":
        print(json.dumps({"noise": time_noise(32, arguments.episodes, arguments.repeats)}))
    else:
        case = BOTH_CORES if arguments.worker == "both" else CASES[int(arguments.worker)]
        print(json.dumps(time_case(case, arguments.episodes, arguments.repeats)))
    return 0


def measure(what: str, episodes: int, repeats: int, cores: int) -> dict[str, float]:
    """Runs a worker and reads its JSON."""
    command = [sys.executable, __file__, "--worker", what, "--episodes", str(episodes), "--repeats", str(repeats),
               "--cores", str(cores)]  # fmt: skip
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return json.loads(done.stdout.strip().splitlines()[-1])


def main(argv: list[str] | None = None) -> int:
    """Measures every case and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--episodes", type=int, default=2000)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--cores", type=int, choices=(1, 2), default=2, help="2 measures both cores against one too")
    parser.add_argument("--smoke", action="store_true")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    args = parser.parse_args(argv)
    if str(HERE) not in sys.path:
        sys.path.insert(0, str(HERE))
    if args.worker is not None:
        return worker(args)
    episodes, repeats = (50, 1) if args.smoke else (args.episodes, args.repeats)
    cases = [2] if args.smoke else list(range(len(CASES)))
    difference = check_equality(20, PAIRS[::5]) if args.smoke else check_equality()
    alone = measure("noise", episodes, repeats, 1)["noise"]
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        plain, vectorised = compile_c(Path(folder), "-DPLAIN_LOOPS"), compile_c(Path(folder))
        for i in cases:
            case = CASES[i]
            found = measure(str(i), episodes, repeats, 1)
            numpy_us = time_numpy(case, 20 if args.smoke else 200)
            c_us = [
                None if p is None else time_c(p, case, 200 if args.smoke else 20_000, 5) for p in (plain, vectorised)
            ]
            share = alone / case.epsilons  # the noise of a seed serves all its epsilons
            rows.append(
                {
                    "name": case.name,
                    "us_per_episode_run_cpu": found["cpu"],
                    "us_per_episode_run_wall": found["wall"],
                    "ratio_to_numpy": found["cpu"] / numpy_us,
                    "ratio_to_c": None if c_us[0] is None else found["cpu"] / c_us[0],
                    "ratio_to_c_vectorized": None if c_us[1] is None else found["cpu"] / c_us[1],
                    "ratio_to_noise": None if case.privatizer == "exact" else found["cpu"] / share,
                    "compile_seconds": found["compile"],
                }
            )
            print(f"{case.name}: {found['cpu']:.2f} us", file=sys.stderr)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    speedup = free = None
    if min(cores, args.cores) > 1 and not args.smoke:
        free = cores_free()
        one, two = (measure("both", 5 * episodes, repeats, n)["wall"] for n in (1, 2))
        speedup, free = one / two, min(free, cores_free())
    slow = [row["name"] for row in rows if row["compile_seconds"] > MAX_COMPILE_SECONDS]
    if slow:
        print(f"More than {MAX_COMPILE_SECONDS:g} s to compile: {', '.join(slow)}.", file=sys.stderr)
    result = {
        "cases": rows,
        "machine": machine(cores),
        "noise_alone_us": alone,
        "speedup_of_two_cores": speedup,
        "cores_free": free,
        "largest_difference_to_numpy": difference,
    }
    if args.json:
        print(json.dumps(result))
        return 0
    from jaxprivrl.experiments import tables

    print(tables.plain([{k: "missing" if v is None and "to_c" in k else v for k, v in row.items()} for row in rows]))
    print(f"Noise alone: {alone:.2f} us per episode and seed. Engine and NumPy loop agree to {difference:.1e}.")
    if speedup is not None:
        print(f"Both cores against one (wall, {BOTH_CORES.name}): {speedup:.2f}x, with {free:.2f} free.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
