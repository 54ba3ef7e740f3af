"""Private learning at a true epsilon: regret at K = 2e4, and how many episodes each mechanism needs to learn.

RiverSwim, H = 20, counts pooled over h, two released families, clipped estimates, UCB-VI. The bonus and the error
bounds are post-processing; their scales were chosen on seeds from a million on, as `jaxprivrl tune` does.

  python benchmarks/headline.py                 # all of it, about half an hour on two cores
  python benchmarks/headline.py --part curves   # only the curves at K = 2e4
  python benchmarks/headline.py --smoke         # a minute's worth, for the tests
"""

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

UNIFORM = 3.35  # regret per episode of the uniform policy on RiverSwim, H = 20
EPSILONS = (0.5, 1.0, 2.0, 4.0)


class Mechanism(NamedTuple):
    """A privatizer on a schedule. Pure and approximate guarantees stand side by side, never as if they were equal."""

    privatizer: str
    target: str | None
    releases: str = "every"

    @property
    def name(self) -> str:
        """As in legends."""
        return self.privatizer if self.releases == "every" else f"{self.privatizer} on {self.releases}"


CENTRAL = Mechanism("central_blt", "approximate", "octaves")
SHUFFLE = Mechanism("shuffle_bernoulli", "approximate", "equal:8")
CURVES = (
    CENTRAL,
    Mechanism("central_blt", "approximate"),
    Mechanism("central_honaker", "approximate"),
    Mechanism("central_gaussian", "approximate"),
    Mechanism("central_laplace", "approximate"),
    Mechanism("central_laplace", "pure"),
    SHUFFLE,
)
LADDER = (
    *CURVES,
    Mechanism("local_gaussian", "approximate"),
    Mechanism("local_laplace", "pure"),
    Mechanism("local_sampled_family", "pure"),
)
SETTINGS: dict[str, Any] = dict(learner="ucb_vi", homogeneous=True, families=2, postprocess="clip")
BONUS_SCALE = 1e-3
# What else is free. Costs counted as c - 1/2 move less, and visits released as a family of their own carry less noise
# than visits derived from S transitions; both are in the accounting. A larger bonus is post-processing.
FREE: dict[Mechanism, dict[str, Any]] = {
    CENTRAL: dict(families=3, centred_costs=True, bonus_scale=3e-2),
    SHUFFLE: dict(families=3, bonus_scale=3e-2),
}


def spec(mechanism: Mechanism, *, bonus_scale: float = BONUS_SCALE, **fields: Any) -> Any:
    """The sweep of one mechanism."""
    from jaxprivrl.experiments.spec import SweepSpec

    grid = {"error_scale": (0.0,), "bonus_scale": (bonus_scale,)}
    return SweepSpec(**mechanism._asdict(), dp_delta=1e-5, grid=grid, **(SETTINGS | fields))


def curves(seeds: int, episodes: int) -> list[dict[str, Any]]:
    """Regret of each mechanism at epsilon 1, pure or with delta 1e-5."""
    from jaxprivrl.experiments import results
    from jaxprivrl.experiments.sweep import sweep

    rows = []
    small = episodes <= 1000
    jobs: list[tuple[Mechanism, dict[str, Any]]] = [(Mechanism("exact", None), {})]
    jobs += list(FREE.items())[: 1 if small else None]
    jobs += [(m, {}) for m in (CURVES[-2:-1] if small else CURVES)]
    for mechanism, changes in jobs:
        data = sweep(spec(mechanism, epsilons=(1.0,), seeds=seeds, episodes=episodes, **changes))
        tenth = results.last_tenth(data).isel(epsilon=0).values
        rows.append(
            {
                "privatizer": mechanism.privatizer,
                "releases": mechanism.releases,
                "settings": "all that is free" if changes else "as the others",
                "guarantee": data.attrs["labels"][0],
                "last_tenth_regret_per_episode": float(tenth.mean()),
                "standard_error": float(tenth.std(ddof=1) / np.sqrt(len(tenth))),
                "share_of_uniform": float(tenth.mean() / UNIFORM),
                "final_regret_mean": float(data.regret.isel(epsilon=0, episode=-1).mean()),
                "_mechanism": mechanism,
                "_episode": data.episode.values,
                "_regret": data.regret.isel(epsilon=0).transpose("seed", "episode").values,
            }
        )
        print(f"{mechanism.name:<27} {rows[-1]['guarantee']:<18} {tenth.mean():.3f}", file=sys.stderr)
    return rows


def ladder(seeds: int, first: int, last: int, mechanisms: Any = LADDER) -> list[dict[str, Any]]:
    """The smallest K, doubling from `first`, at which a run calibrated for K ends below a tenth of uniform regret."""
    from jaxprivrl.experiments import results
    from jaxprivrl.experiments.sweep import sweep

    rows = []
    jobs: list[tuple[Mechanism, dict[str, Any]]] = [(m, FREE[m]) for m in FREE if m in mechanisms]
    for mechanism, changes in [*jobs, *((m, {}) for m in mechanisms)]:
        found: dict[float, int | None] = dict.fromkeys(EPSILONS)
        K = first
        while K <= last and None in found.values():
            open_ = tuple(e for e in EPSILONS if found[e] is None)
            few = seeds if K <= 80_000 else min(seeds, 4)  # a rare slow seed weighs less among more
            data = sweep(spec(mechanism, epsilons=open_, seeds=few, episodes=K, record_every=K, **changes))
            tenth = results.last_tenth(data).mean("seed").values
            for e, value in zip(open_, tenth, strict=True):
                if value < 0.1 * UNIFORM:
                    found[e] = K
            print(f"{mechanism.name:<27} {mechanism.target:<12} K={K:<9,} "
                  f"{dict(zip(open_, tenth.round(3), strict=True))}", file=sys.stderr)  # fmt: skip
            K *= 2
        rows.append(
            {
                "privatizer": mechanism.privatizer,
                "releases": mechanism.releases,
                "settings": "all that is free" if changes else "as the others",
                "target": mechanism.target,
            }
            | {f"epsilon={e:g}": f"> {last:,}" if k is None else k for e, k in found.items()}
        )
    return rows


def figure(rows: list[dict[str, Any]], steps: list[dict[str, Any]], path: Path) -> None:
    """Left: regret curves at epsilon 1. Right: episodes to learn against epsilon."""
    from jaxprivrl.experiments import plots

    fig, axes = plots.new_figure(columns=2, width=7.4, height=4.4)
    colours = dict(zip(LADDER, plots.COLOURS, strict=False))  # one colour for a mechanism and target in both panels
    ax = axes[0, 0]
    for row in rows:
        best = row["settings"] != "as the others"
        mechanism = row["_mechanism"]
        colour = "black" if mechanism.privatizer == "exact" else colours[mechanism]
        label = f"{mechanism.name}{', all that is free' if best else ''}: {row['guarantee']}"
        plots.band(ax, row["_episode"], row["_regret"], label=label, color=colour, linestyle="-." if best else "-")
    plots.finish(ax, "RiverSwim, counts pooled over h")
    ax = axes[0, 1]
    for i, row in enumerate(steps):
        ks = [(e, row[f"epsilon={e:g}"]) for e in EPSILONS if isinstance(row[f"epsilon={e:g}"], int)]
        kind = "pure ε" if row["target"] == "pure" else "(ε, 1e-5)"
        best = row["settings"] != "as the others"
        mechanism = Mechanism(row["privatizer"], row["target"], row["releases"])
        style = {"color": colours[mechanism], "markersize": 12 - i,
                 "marker": "o" if row["target"] == "approximate" else "s",
                 "linestyle": "-." if best else "--" if i % 2 else "-"}  # fmt: skip
        if ks:
            free = ", all that is free" if best else ""
            ax.plot(*zip(*ks, strict=True), label=f"{mechanism.name}{free}, {kind}", **style)
    ax.set(xscale="log", yscale="log", xlabel="ε", ylabel="episodes to learn (last tenth below 10 % of uniform)")
    ax.set_xticks(EPSILONS, [f"{e:g}" for e in EPSILONS])
    ax.minorticks_off()
    ax.grid(alpha=0.25)
    ax.set_title("smallest K on a doubling ladder")
    if steps:
        ax.legend(frameon=False, fontsize=8, loc="center left", bbox_to_anchor=(1.0, 0.5))
    plots.save(fig, path)


def main(argv: list[str] | None = None) -> int:
    """Runs the parts asked for; prints tables, writes figure and JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--part", choices=("curves", "ladder", "all"), default="all")
    parser.add_argument("--seeds", type=int, default=400, help="of the curves; the ladder takes at most 16")
    parser.add_argument("--last", type=int, default=1_280_000, help="last rung of the ladder")
    parser.add_argument("--out", type=Path, default=Path("results/headline.png"))
    parser.add_argument("--smoke", action="store_true")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args(argv)
    from jaxprivrl.experiments import tables
    from jaxprivrl.experiments.results import json_safe
    from jaxprivrl.numerics import runtime

    runtime.configure()
    begin = time.perf_counter()
    rows: list[dict[str, Any]] = []
    steps: list[dict[str, Any]] = []
    if args.part in ("curves", "all"):
        rows = curves(4 if args.smoke else args.seeds, 1000 if args.smoke else 20_000)
    if args.part in ("ladder", "all"):
        small = {"mechanisms": CURVES[:1]} if args.smoke else {}
        first, last = (1000, 2000) if args.smoke else (2_500, args.last)
        steps = ladder(2 if args.smoke else min(args.seeds, 16), first, last, **small)
    figure(rows, steps, args.out)
    public = [{k: v for k, v in row.items() if not k.startswith("_")} for row in rows]
    result = {"curves": public, "episodes_to_learn": steps, "seconds": time.perf_counter() - begin}
    args.out.with_suffix(".json").write_text(json.dumps(json_safe(result), indent=1) + "\n")
    if args.json:
        print(json.dumps(json_safe(result)))
        return 0
    for part in (public, steps):
        if part:
            print(tables.plain(part), "\n")
    print(f"Wrote {args.out}.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
