"""Derives the strategies of `central_blt`: prints the table `privatizers.toeplitz.BLT_PARAMETERS`.

For each rung K it minimises the largest error over K releases, ||c||_2 * ||b||_2, of a buffered linear Toeplitz
strategy c_0 = 1, c_k = sum_i scale_i decay_i^(k-1), with jax-privacy's closed forms in float64.

    python benchmarks/tune_blt.py                      all rungs, 10 to 60 s each
    python benchmarks/tune_blt.py --smoke              the first rung only, few steps

Reference: Dvijotham, McMahan, Pillutla, Steinke and Thakurta 2024 (arXiv:2404.16706).
"""

import argparse
import json
import sys
import time
from typing import Any

RUNGS = (1_000, 4_000, 20_000, 100_000, 400_000, 1_000_000, 4_000_000, 10_000_000)


def tune(num_episodes: int, buffers: int, steps: int) -> dict[str, Any]:
    """One rung: decays, output scales (both descending in decay), ||c||_2 and the largest error at unit noise."""
    import jax

    jax.config.update("jax_enable_x64", True)
    from jax_privacy.matrix_factorization import buffered_toeplitz as bt

    loss_fn = bt.LossFn.build_closed_form_single_participation(n=num_episodes)
    start = time.perf_counter()
    blt, loss = bt.optimize_loss(loss_fn, num_buffers=buffers, max_optimizer_steps=steps)
    sensitivity = float(bt.sensitivity_squared(blt, num_episodes)) ** 0.5
    return {
        "num_episodes": num_episodes,
        "decay": [float(d) for d in blt.buf_decay],
        "scale": [float(s) for s in blt.output_scale],
        "sensitivity": sensitivity,
        "max_error": float(bt.max_loss(blt, num_episodes)) ** 0.5,
        "loss": float(loss),
        "seconds": round(time.perf_counter() - start, 1),
    }


def main(argv: list[str] | None = None) -> int:
    """Prints one JSON line per rung."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rungs", type=int, nargs="+", default=list(RUNGS))
    parser.add_argument("--buffers", type=int, default=4)
    parser.add_argument("--steps", type=int, default=600, help="largest number of optimizer steps per rung")
    parser.add_argument("--smoke", action="store_true", help="first rung, few steps")
    args = parser.parse_args(argv)
    rungs, steps = (args.rungs[:1], 5) if args.smoke else (args.rungs, args.steps)
    for num_episodes in rungs:
        print(json.dumps(tune(num_episodes, args.buffers, steps)), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
