"""The paper's experiment (RiverSwim, H = 20, K = 2e4, 20 seeds), three ways, with its three claims checked.

code    the authors' released experiment, which is not private (`published`).
paper   Algorithms 1 and 2 with the real tree and local mechanisms, at the noise scale of the released code.
honest  the same learners at an epsilon that holds, at a K large enough to see where private learning starts.
"""

import dataclasses
import itertools
import json
import math
import sys
from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import xarray as xr

from jaxprivrl import plotting, results, tables, tuning
from jaxprivrl.progress import progress_bar
from jaxprivrl.sweep import SweepSpec, sweep

VARIANTS = ("code", "paper", "honest")
PANELS = {"PO": "ucb_po", "VI": "ucb_vi"}
TITLES = {"PO": "policy optimization (UCB-PO)", "VI": "value iteration (UCB-VI)"}
_LATE_SHARE = (1 - math.sqrt(0.5)) / 2  # between a constant and sqrt(K)
HONEST_EPISODES = 400_000
HONEST_SEEDS = 4
HONEST_EPSILONS = (0.5, 1.0, 10.0, 100.0, 1000.0)


# What better mechanisms do at the same trust: pooled counts, batched releases, centred costs, clipped estimates; see
# benchmarks/headline.py.
BEST = SweepSpec(
    learner="ucb_vi",
    privatizer="central_batched",
    epsilons=(0.5, 1.0),
    homogeneous=True,
    centred_costs=True,
    postprocess="clip",
    error_scale=0.0,
    bonus_scales=(3e-2,),
)


class Curve(NamedTuple):
    """One curve: panel, trust model, target epsilon, what really holds, cumulative regret f64[seed, episode]."""

    panel: str
    model: str  # "none", "JDP" or "LDP", as the figure means it; "best" for the mechanism of our own
    epsilon: float
    label: str
    episode: np.ndarray
    regret: np.ndarray

    @property
    def final(self) -> float:
        """Mean final regret."""
        return float(self.regret[:, -1].mean())


def specs(variant: str, seeds: int, episodes: int) -> list[tuple[str, str, SweepSpec]]:
    """(panel, model, spec) of every sweep of a variant."""
    rows = []
    for panel, learner in PANELS.items():
        for model, privatizer in (("none", "exact"), ("JDP", "central_laplace"), ("LDP", "local_laplace")):
            if variant == "code":
                spec = SweepSpec(
                    learner=f"published_{learner}",
                    privatizer={"none": "published_none", "JDP": "published_jdp", "LDP": "published_ldp"}[model],
                    epsilons=(0.5, 1.0),
                    seeds=seeds,
                    episodes=episodes,
                )
            elif variant == "paper":
                spec = SweepSpec(
                    learner=learner,
                    privatizer=privatizer,
                    epsilons=(0.5, 1.0),
                    seeds=seeds,
                    episodes=episodes,
                    calibration="published_code",
                )
                spec = tuning.apply(spec, tuning.SHIPPED / "paper.toml")
            else:
                spec = SweepSpec(
                    learner=learner,
                    privatizer=privatizer,
                    epsilons=HONEST_EPSILONS,
                    seeds=min(seeds, HONEST_SEEDS),
                    episodes=HONEST_EPISODES if episodes >= 20_000 else episodes,
                )
                spec = tuning.apply(spec, tuning.SHIPPED / "honest.toml")
            rows.append((panel, model, spec))
    if variant == "honest":
        length = HONEST_EPISODES if episodes >= 20_000 else episodes
        rows.append(("VI", "best", dataclasses.replace(BEST, seeds=min(seeds, HONEST_SEEDS), episodes=length)))
    return rows


def run(variant: str, seeds: int, episodes: int) -> tuple[list[Curve], list[xr.Dataset]]:
    """Runs a variant; progress goes to stderr."""
    curves, data = [], []
    for panel, model, spec in specs(variant, seeds, episodes):
        d = sweep(spec, progress=progress_bar(f"{variant}: {spec.learner} x {spec.privatizer}"))
        data.append(d)
        for i, label in enumerate(d.attrs["labels"]):
            name = {"none": "non-private", "best": f"central_batched, pooled: {label}"}.get(model, f"{model}, {label}")
            values = d.regret.isel(epsilon=i).transpose("seed", "episode").values
            curves.append(Curve(panel, model, float(d.epsilon[i]), name, d.episode.values, values))
    return curves, data


def table(variant: str, curves: Sequence[Curve]) -> list[dict[str, Any]]:
    """Final regret of each curve beside that of the authors' public code, where it was run."""
    public = _public_runs()
    rows = []
    for c in curves:
        K = int(c.episode[-1])
        found = public.get((c.panel, c.model, None if c.model == "none" else c.epsilon), {}).get(K)
        before = c.regret[:, c.episode == 9 * K // 10].sum(1)  # nothing if K = 1
        tenth = (c.regret[:, -1] - before) / (K - 9 * K // 10)
        rows.append(
            {
                "variant": variant,
                "panel": c.panel,
                "curve": c.label,
                "episodes": K,
                "seeds": len(c.regret),
                "final_regret_mean": c.final,
                "final_regret_std": float(c.regret[:, -1].std(ddof=1)) if len(c.regret) > 1 else 0.0,
                "last_tenth_regret_per_episode": float(tenth.mean()),
                "public_code_mean": None if found is None else float(np.mean(found)),
                "public_code_std": None if found is None else float(np.std(found, ddof=1)),
            }
        )
    return rows


def claims(curves: Sequence[Curve]) -> list[dict[str, Any]]:
    """The three claims of the paper's section 5, each with the figures that decide it.

    1. Regret is ordered non-private < JDP < LDP at equal epsilon.
    2. Regret is larger at smaller epsilon.
    3. The extra regret over the non-private curve flattens under JDP and keeps growing under LDP. Growth like sqrt(K),
       the bound under LDP, puts 29 % of the extra regret into the second half of the episodes, a constant 0 %: JDP must
       stay below the middle of the two, LDP above it.
    """
    rows = []
    for panel in PANELS:
        mine = [c for c in curves if c.panel == panel]
        base = next(c for c in mine if c.model == "none")
        epsilons = sorted({c.epsilon for c in mine if c.model in ("JDP", "LDP")})
        by = {(c.model, c.epsilon): c for c in mine}
        for e in epsilons:
            jdp, ldp = by[("JDP", e)], by[("LDP", e)]
            ordered = base.final < jdp.final < ldp.final
            figures = f"{base.final:,.0f}, {jdp.final:,.0f}, {ldp.final:,.0f}"
            rows.append(_claim(panel, f"1: non-private < JDP < LDP at target ε={e:g}", ordered, figures))
        for model in ("JDP", "LDP"):
            finals = [by[(model, e)].final for e in epsilons]
            decreasing = all(a > b for a, b in itertools.pairwise(finals))
            figures = ", ".join(f"ε={e:g}: {f:,.0f}" for e, f in zip(epsilons, finals, strict=True))
            rows.append(_claim(panel, f"2: {model} regret larger as ε falls", decreasing, figures))
        for e in epsilons:
            late_jdp, late_ldp = (_late_share(by[(m, e)], base) for m in ("JDP", "LDP"))
            figures = f"share of extra regret from the second half: JDP {late_jdp:.0%}, LDP {late_ldp:.0%}"
            flat = late_jdp < _LATE_SHARE < late_ldp
            rows.append(_claim(panel, f"3: JDP flattens, LDP keeps growing at target ε={e:g}", flat, figures))
    return rows


def figure(panels: Mapping[str, Sequence[Curve]], *paths: Path) -> None:
    """One row of two panels (PO, VI) for each variant."""
    fig, axes = plotting.new_figure(columns=2, rows=len(panels), width=6.2, height=4.1)
    names = {
        "code": "released code (not private)",
        "paper": "the paper's algorithms, noise of the released code",
        "honest": "the paper's algorithms, ε that holds",
    }
    for row, (variant, curves) in enumerate(panels.items()):
        for column, panel in enumerate(PANELS):
            ax = axes[row, column]
            mine = [c for c in curves if c.panel == panel]
            epsilons = sorted({c.epsilon for c in mine if c.model != "none"})
            for c in mine:
                plotting.band(ax, c.episode, c.regret, label=c.label, **_style(c, epsilons))
            plotting.finish(ax, f"{names[variant]}\n{TITLES[panel]}")
            ax.legend(frameon=False, fontsize=7)
    plotting.save(fig, *paths)


def main(variants: Sequence[str], out: Path, seeds: int, episodes: int) -> None:
    """Runs the variants and writes figures, data, tables and claims to `out`; prints tables and claims."""
    out.mkdir(parents=True, exist_ok=True)
    panels, rows, verdicts = {}, [], []
    for variant in variants:
        curves, data = run(variant, seeds, episodes)
        panels[variant] = curves
        rows += table(variant, curves)
        verdicts += [{"variant": variant} | claim for claim in claims(curves)]
        figure({variant: curves}, out / f"{variant}.png", out / f"{variant}.pdf")
        for d in data:
            results.save(
                d, out / variant / f"{d.attrs['spec']['learner']}-{d.attrs['spec']['privatizer']}", overwrite=True
            )
        _dataset(curves).to_netcdf(out / f"{variant}.nc", engine="h5netcdf")
        if variant == "paper":
            _dataset(curves).to_netcdf(out / results.RESULTS, engine="h5netcdf")
        _note_guarantees(variant, data)
    if len(panels) > 1:
        figure(panels, out / "combined.png", out / "combined.pdf")
    for name, content in (("table", rows), ("claims", verdicts)):
        (out / f"{name}.csv").write_text(tables.to_csv(content))
        (out / f"{name}.md").write_text(tables.markdown(content))
    print(tables.plain(rows))
    print()
    print(tables.plain(verdicts))
    print(f"\nFigures, data and tables are in {out}.")


def _claim(panel: str, text: str, holds: bool, figures: str) -> dict[str, Any]:
    return {"panel": panel, "claim": text, "supported": bool(holds), "figures": figures}


def _late_share(curve: Curve, base: Curve) -> float:
    """Share of the final extra regret that comes after half of the episodes."""
    extra = curve.regret.mean(0) - base.regret.mean(0)
    half = int(np.searchsorted(curve.episode, curve.episode[-1] / 2))
    return float((extra[-1] - extra[half]) / extra[-1]) if extra[-1] > 0 else math.nan


def _style(curve: Curve, epsilons: list[float]) -> dict[str, Any]:
    """Black: non-private; one colour per epsilon; solid JDP, dashed LDP."""
    if curve.model == "none":
        return {"color": "black", "linestyle": "-", "zorder": 3}
    if curve.model == "best":
        return {"color": plotting.COLOURS[6 + (curve.epsilon == 1.0)], "linestyle": "-.", "zorder": 3}
    colour = plotting.COLOURS[epsilons.index(curve.epsilon) % len(plotting.COLOURS)]
    return {"color": colour, "linestyle": "-" if curve.model == "JDP" else "--"}


def _dataset(curves: Sequence[Curve]) -> xr.Dataset:
    """All curves of a variant on one axis."""
    return xr.Dataset(
        {"regret": (("curve", "seed", "episode"), np.stack([c.regret for c in curves]))},
        coords={
            "curve": [f"{c.panel}: {c.label}" for c in curves],
            "panel": ("curve", [c.panel for c in curves]),
            "model": ("curve", [c.model for c in curves]),
            "epsilon": ("curve", [c.epsilon for c in curves]),
            "episode": curves[0].episode,
        },
    )


def _note_guarantees(variant: str, data: Sequence[xr.Dataset]) -> None:
    statements = dict.fromkeys(g["statement"] for d in data for g in d.attrs["guarantees"])
    for statement in statements:
        print(f"[{variant}] {statement}", file=sys.stderr)


def _public_runs() -> dict[tuple[str, str, float | None], dict[int, list[float]]]:
    """Final regrets of the authors' public code, by (panel, model, epsilon) and number of episodes."""
    path = resources.files("jaxprivrl") / "data" / "published_runs.json"
    panels = {f"published_{learner}": panel for panel, learner in PANELS.items()}
    models = {"published_none": "none", "published_jdp": "JDP", "published_ldp": "LDP"}
    found: dict[tuple[str, str, float | None], dict[int, list[float]]] = {}
    for s in json.loads(path.read_text())["settings"]:
        by_episode = {}
        for part in ("short", "long"):
            for i, k in enumerate(s[part]["episodes"]):
                by_episode[k] = [row[i] for row in s[part]["regret"]]
        found[(panels[s["learner"]], models[s["privatizer"]], s["epsilon"])] = by_episode
    return found
