"""Microseconds per epoch and run: epochs drawn by the package, and by a loop over steps in NumPy.

    python benchmarks/epoch_baseline.py [--runs 64] [--epochs 50] [--repeats 7] [--smoke]

Both draw the same thing on RiverSwim (H = 20, S = 6, A = 2) on one core: visits, cost sums on a grid of 2^-16 and
transitions, by step, of `runs` runs at once, each with a policy of its own, and add them up over the epochs. NumPy's
generator takes all runs and states of a step in one call, which is the fastest loop there is without compiling.
Times are the best of repeats taken in turn.
"""

import argparse
import time
from collections.abc import Callable
from typing import Any

from jaxprivrl.numerics import runtime

runtime.configure(num_devices=1, cache=False)

import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402

from jaxprivrl import environments  # noqa: E402
from jaxprivrl.engine import epochs  # noqa: E402
from jaxprivrl.mdp import MDP, Counts  # noqa: E402
from jaxprivrl.numerics import random  # noqa: E402
from jaxprivrl.numerics.axes import vmap_last  # noqa: E402
from jaxprivrl.numerics.lanes import in_64_bits  # noqa: E402

COST_BITS = 16
EPISODES = (10**5, 10**8, 10**12)


def numpy_epoch(rng: np.random.Generator, mdp: MDP, policies: np.ndarray, users: int) -> list[np.ndarray]:
    """Visits, costs and transitions of one epoch of all runs, from policies f64[runs, H, S, A]."""
    P, initial = (np.asarray(x, np.float64) for x in (mdp.transitions, mdp.initial))
    P = P / P.sum(-1, keepdims=True)
    n = rng.multinomial(np.full(len(policies), users), initial / initial.sum())
    visits, transitions = [], []
    for h in range(P.shape[0]):
        visits.append(rng.multinomial(n, policies[:, h]))
        transitions.append(rng.multinomial(visits[-1], P[h]))
        n = transitions[-1].sum((1, 2))
    v = np.stack(visits, 1)
    scaled = np.asarray(mdp.costs, np.float64) * 2.0**COST_BITS
    floor = np.floor(scaled).astype(np.int64)
    return [v, floor * v + rng.binomial(v, scaled - floor), np.stack(transitions, 1)]


def numpy_loop(mdp: MDP, policies: np.ndarray, users: int, num_epochs: int) -> list[np.ndarray]:
    """Sums over epochs."""
    rng = np.random.default_rng(0)
    total = numpy_epoch(rng, mdp, policies, users)
    for _ in range(num_epochs - 1):
        total = [x + y for x, y in zip(total, numpy_epoch(rng, mdp, policies, users), strict=True)]
    return total


def program(mdp: MDP, num_epochs: int) -> Callable[..., Any]:
    """The same sums by the package, for a batch of keys and policies, with the batch last."""
    dynamics = epochs.prepare(mdp, COST_BITS)
    H, S, A = mdp.shape

    def run(key: jax.Array, policy: jax.Array, users: jax.Array) -> Counts:
        def body(total: Counts, key: jax.Array) -> tuple[Counts, None]:
            return jax.tree.map(jnp.add, total, epochs.draw_counts(key, dynamics, policy, users)), None

        sizes = ((H, S, A), (H, S, A), (H, S, A, S))
        start = Counts(*(jnp.zeros(shape, jnp.int64) for shape in sizes))
        return jax.lax.scan(body, start, jax.random.split(key, num_epochs))[0]

    return in_64_bits(vmap_last(run, (0, 0, None)), compiler_options=runtime.COMPILER_OPTIONS)


def policies_of(kind: str, runs: int, shape: tuple[int, int, int]) -> np.ndarray:
    """Policies as learners play them: one action per state, right in nine of ten; or all actions at random."""
    rng = np.random.default_rng(1)
    if kind == "mixed":
        return rng.dirichlet(np.ones(shape[2]), (runs, *shape[:2]))
    action = np.where(rng.uniform(size=(runs, *shape[:2])) < 0.9, 1, 0)
    return np.eye(shape[2])[action]


def seconds(fn: Callable[[], Any]) -> float:
    start = time.perf_counter()
    jax.tree.map(np.asarray, fn())
    return time.perf_counter() - start


def main(argv: list[str] | None = None) -> None:
    """Prints a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=64)
    parser.add_argument("--epochs", type=int, default=50)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--smoke", action="store_true", help="two runs of two epochs, once")
    args = parser.parse_args(argv)
    if args.smoke:
        args.runs, args.epochs, args.repeats = 2, 2, 1
    mdp = environments.river_swim(20)
    with jax.enable_x64(True):
        keys = jax.random.split(random.key(0), args.runs)
    draw = program(mdp, args.epochs)
    policies = {kind: policies_of(kind, args.runs, mdp.shape) for kind in ("greedy", "mixed")}
    first = seconds(lambda: draw(keys, policies["greedy"], np.int64(1)))
    print(f"trace and compile: {first:.1f} s")
    print("policy  episodes  package us  numpy us  ratio")
    for kind, policy in policies.items():
        for episodes in EPISODES:
            users = episodes // args.epochs
            ours: list[float] = []
            theirs: list[float] = []
            for _ in range(args.repeats):
                ours.append(seconds(lambda u=users, p=policy: draw(keys, p, np.int64(u))))  # type: ignore[misc]
                theirs.append(seconds(lambda u=users, p=policy: numpy_loop(mdp, p, u, args.epochs)))  # type: ignore[misc]
            a, b = (min(x) / args.runs / args.epochs * 1e6 for x in (ours, theirs))
            print(f"{kind:7} {episodes:8.0e} {a:11.1f} {b:9.1f} {b / a:6.2f}", flush=True)


if __name__ == "__main__":
    main()
