"""Compares `jaxprivrl.published` with the figures of the authors' public code, number by number.

For every figure of jaxprivrl/published/data/published_runs.json: the mean regret of our seeds against that of the
public code, as z = (ours - public) / (sd sqrt(1/n_ours + 1/n_public)) with the standard deviation of ours, and, for the
figures of 16 seeds, the p-value of a two-sample Kolmogorov-Smirnov test. The claim is |z| <= 4 and p >= 0.001
everywhere. If the two programs have the same law, one setting and episode fails with probability 6e-5 by z and 1e-3
by p.

    python benchmarks/published.py                     200 seeds to episode 20,000: about two minutes on one core
    python benchmarks/published.py --smoke             40 seeds to episode 500

Exit code 1 if the claim is false.
"""

import argparse
import json
import math
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
from scipy import stats

FIGURES = Path(__file__).parents[1] / "jaxprivrl" / "published" / "data" / "published_runs.json"
MAX_Z = 4.0
MIN_P = 1e-3


def settings() -> list[dict[str, Any]]:
    """The settings of the public code's runs: learner, privatizer, epsilon, and regrets `long` and `short`."""
    return json.loads(FIGURES.read_text())["settings"]


def simulate(setting: dict[str, Any], seeds: int, episodes: int, mdp: Any = None, **changes: Any) -> dict[str, Any]:
    """Runs a setting, with fields of its SweepSpec changed at will: our cumulative regrets f64[seed] by episode."""
    from jaxprivrl.experiments.spec import SweepSpec
    from jaxprivrl.experiments.sweep import sweep

    listed = [n for part in ("long", "short") for n in setting[part]["episodes"]]
    fields = {
        "learner": setting["learner"],
        "privatizer": setting["privatizer"],
        "epsilons": (setting["epsilon"] or math.inf,),
        "seeds": seeds,
        "episodes": episodes,
        "record_every": math.gcd(*listed),
    }
    start = time.perf_counter()
    data = sweep(SweepSpec(**{**fields, **changes}), mdp)
    regret = data["regret"].squeeze("epsilon").transpose("episode", "seed")
    regrets = {int(n): regret.sel(episode=n).to_numpy() for n in regret["episode"]}
    return {"regrets": regrets, "seconds": {"wall": time.perf_counter() - start, **data.attrs["seconds"]}}


def compare(setting: dict[str, Any], regrets: dict[int, np.ndarray]) -> list[dict[str, Any]]:
    """One row for each figure of the public code whose episode is in `regrets`."""
    rows = []
    for part in ("short", "long"):
        for i, episode in enumerate(setting[part]["episodes"]):
            if episode not in regrets:
                continue
            public, ours = np.array(setting[part]["regret"])[:, i], regrets[episode]
            error = ours.std(ddof=1) * math.sqrt(1 / len(ours) + 1 / len(public))
            z = float((ours.mean() - public.mean()) / error)
            p = float(stats.ks_2samp(ours, public).pvalue) if part == "short" else None
            rows.append(
                {
                    "learner": setting["learner"],
                    "privatizer": setting["privatizer"],
                    "epsilon": setting["epsilon"],
                    "episode": episode,
                    "public_seeds": len(public),
                    "public_mean": float(public.mean()),
                    "seeds": len(ours),
                    "mean": float(ours.mean()),
                    "std": float(ours.std(ddof=1)),
                    "z": z,
                    "ks_p": p,
                    "agrees": abs(z) <= MAX_Z and (p is None or p >= MIN_P),
                }
            )
    return rows


def main(argv: list[str] | None = None) -> int:
    """Runs every setting and prints the table, or one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--smoke", action="store_true", help="40 seeds to episode 500")
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout")
    args = parser.parse_args(argv)
    from jaxprivrl.experiments import tables
    from jaxprivrl.numerics import runtime

    runtime.configure()
    seeds, episodes = (40, 500) if args.smoke else (200, 20_000)
    rows, timings = [], []
    for setting in settings():
        ours = simulate(setting, seeds, episodes)
        rows += compare(setting, ours["regrets"])
        micros = 1e6 * ours["seconds"]["run"] / (seeds * episodes)
        name = {key: setting[key] for key in ("learner", "privatizer", "epsilon")}
        timings.append({**name, "us_per_episode": micros, "compile_s": ours["seconds"]["compile"]})
    agrees = all(row["agrees"] for row in rows)
    if args.json:
        print(json.dumps({"agrees": agrees, "figures": rows, "timings": timings}))
    else:
        print(f"{tables.plain(rows)}\n\n{tables.plain(timings)}\n")
        worst = max(abs(row["z"]) for row in rows)
        least = min(row["ks_p"] for row in rows if row["ks_p"] is not None)
        print(f"Largest |z| {worst:.2f} (at most {MAX_Z:g}), least p {least:.3g} (at least {MIN_P:g}): {agrees}.")
    return 0 if agrees else 1


if __name__ == "__main__":
    sys.exit(main())
