"""The paper's experiment (RiverSwim, H = 20, K = 2e4, 20 seeds), three ways, with its three claims checked.

code    the authors' released experiment, which is not private (`published`).
paper   Algorithms 1 and 2 with the real tree and local mechanisms, at the noise scale of the released code.
honest  the same learners at an epsilon that holds, at a K large enough to see where private learning starts.
"""

import itertools
import json
import math
from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import xarray as xr

from jaxprivrl.experiments import compare, plots, results, tables, tune
from jaxprivrl.experiments.progress import progress_bar
from jaxprivrl.experiments.spec import SweepSpec
from jaxprivrl.experiments.sweep import sweep

VARIANTS = ("code", "paper", "honest")
PANELS = {"PO": "ucb_po", "VI": "ucb_vi"}
TITLES = {"PO": "policy optimization (UCB-PO)", "VI": "value iteration (UCB-VI)"}
ABOUT = {
    "code": "released code (not private)",
    "paper": "the paper's algorithms, noise of the released code",
    "honest": "the paper's algorithms, ε that holds",
}
CLAIMS = {
    1: "non-private < JDP < LDP",
    2: "regret larger as ε falls",
    3: "JDP flattens, LDP keeps growing",
}
TRUE, FALSE, CANNOT_TELL = "true", "false", "cannot tell"
LEVEL = 0.05  # of all claims of a variant together
_LATE_SHARE = (1 - math.sqrt(0.5)) / 2  # between a constant and sqrt(K)
HONEST_EPISODES = 400_000
HONEST_SEEDS = 12  # the least with which a paired test can judge all claims at once
HONEST_EPSILONS = (0.5, 1.0, 10.0, 100.0, 1000.0)


# What better mechanisms do at the same trust: pooled counts, batched releases, centred costs, clipped estimates; see
# benchmarks/headline.py.
BEST = SweepSpec(
    learner="ucb_vi",
    privatizer="central_blt",
    releases="octaves",
    epsilons=(0.5, 1.0),
    homogeneous=True,
    centred_costs=True,
    postprocess="clip",
    grid={"error_scale": (0.0,), "bonus_scale": (3e-2,)},
)


class Curve(NamedTuple):
    """One curve: panel, trust model, target epsilon, what really holds, cumulative regret f64[seed, episode]."""

    panel: str
    model: str  # "none", "JDP" or "LDP", as the figure means it; "best" for the mechanism of our own
    epsilon: float
    label: str
    episode: np.ndarray
    regret: np.ndarray
    uniform: float | None = None  # regret of the uniform policy over the same episodes

    @property
    def finals(self) -> np.ndarray:
        """Final regret of each seed, f64[seed]."""
        return self.regret[:, -1]

    @property
    def final(self) -> float:
        """Mean final regret."""
        return float(self.finals.mean())


class Claim(NamedTuple):
    """One claim as paired comparisons that must all come out: `smaller` below `larger`, f64[seed] each."""

    panel: str
    number: int
    text: str
    comparisons: list[tuple[np.ndarray, np.ndarray]]
    figures: str


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
                spec = tune.apply(spec, tune.SHIPPED / "paper.toml")
            else:
                spec = SweepSpec(
                    learner=learner,
                    privatizer=privatizer,
                    epsilons=HONEST_EPSILONS,
                    seeds=min(seeds, HONEST_SEEDS),
                    episodes=HONEST_EPISODES if episodes >= 20_000 else episodes,
                )
                spec = tune.apply(spec, tune.SHIPPED / "honest.toml")
            rows.append((panel, model, spec))
    if variant == "honest":
        length = HONEST_EPISODES if episodes >= 20_000 else episodes
        rows.append(("VI", "best", BEST.replace(seeds=min(seeds, HONEST_SEEDS), episodes=length)))
    return rows


def run(variant: str, seeds: int, episodes: int) -> tuple[list[Curve], list[xr.Dataset]]:
    """Runs a variant; progress goes to stderr."""
    curves, data = [], []
    for panel, model, spec in specs(variant, seeds, episodes):
        d = sweep(spec, progress=progress_bar(f"{variant}: {spec.learner} x {spec.privatizer}"))
        data.append(d)
        uniform = results.uniform_total(d)
        for i, label in enumerate(d.attrs["labels"]):
            own = label if f"({model})" in label else f"{model}, {label}"
            name = {"none": "non-private", "best": f"not the paper's: central_blt on octaves, pooled, {label}"}.get(
                model, own
            )
            values = d.regret.isel(epsilon=i).transpose("seed", "episode").values
            curves.append(Curve(panel, model, float(d.epsilon[i]), name, d.episode.values, values, uniform))
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
                **results.against_uniform(c.finals, c.uniform),
                "public_code_mean": None if found is None else float(np.mean(found)),
                "public_code_std": None if found is None else float(np.std(found, ddof=1)),
            }
        )
    return rows


def claims(curves: Sequence[Curve]) -> list[dict[str, Any]]:
    """The three claims of the paper's section 5, judged over the seeds, with the figures that decide them.

    1. Regret is ordered non-private < JDP < LDP at equal epsilon.
    2. Regret is larger at smaller epsilon.
    3. The extra regret over the non-private curve flattens under JDP and keeps growing under LDP. Growth like sqrt(K),
       the bound under LDP, puts 29 % of the extra regret into the second half of the episodes, a constant 0 %: JDP must
       stay below the middle of the two, LDP above it.

    Returns:
      Rows by panel, claim, epsilon, whatever the order of the curves (see `judge`).
    """
    found = []
    for panel in PANELS:
        mine = [c for c in curves if c.panel == panel]
        base = next(c for c in mine if c.model == "none")
        epsilons = sorted({c.epsilon for c in mine if c.model in ("JDP", "LDP")})
        by = {(c.model, c.epsilon): c for c in mine}
        for e in epsilons:
            jdp, ldp = by[("JDP", e)], by[("LDP", e)]
            figures = f"{base.final:,.0f}, {jdp.final:,.0f}, {ldp.final:,.0f}"
            pairs = [(base.finals, jdp.finals), (jdp.finals, ldp.finals)]
            found.append(Claim(panel, 1, f"1: {CLAIMS[1]} at target ε={e:g}", pairs, figures))
        for model in ("JDP", "LDP"):
            some = [by[(model, e)] for e in epsilons]
            pairs = [(b.finals, a.finals) for a, b in itertools.pairwise(some)]
            figures = ", ".join(f"ε={c.epsilon:g}: {c.final:,.0f}" for c in some)
            found.append(Claim(panel, 2, f"2: {model} {CLAIMS[2]}", pairs, figures))
        for e in epsilons:
            (all_jdp, late_jdp), (all_ldp, late_ldp) = (_extra(by[(m, e)], base) for m in ("JDP", "LDP"))
            nothing = np.zeros_like(all_jdp)
            pairs = [(nothing, all_jdp), (late_jdp, _LATE_SHARE * all_jdp)]
            pairs += [(nothing, all_ldp), (_LATE_SHARE * all_ldp, late_ldp)]
            shares = [_share(late_jdp, all_jdp), _share(late_ldp, all_ldp)]
            figures = f"share of extra regret from the second half: JDP {shares[0]}, LDP {shares[1]}"
            found.append(Claim(panel, 3, f"3: {CLAIMS[3]} at target ε={e:g}", pairs, figures))
    return judge(found)


def judge(found: Sequence[Claim]) -> list[dict[str, Any]]:
    """Rows of claims, each "true", "false" or "cannot tell", by the paired test of `compare` over the seeds.

    A claim is true if all its comparisons are clearly as claimed, false if one is clearly reversed (Bonferroni over
    them). Holm's correction over the claims, in p, keeps the probability of any wrong answer below LEVEL. `supported`
    is the verdict as True, False or None.
    """
    p_values, sides = [], []
    for claim in found:
        tests = [(compare.paired_p_value(x, y), compare.direction(x, y)) for x, y in claim.comparisons]
        holds = max((p if way > 0 else 1.0 for p, way in tests), default=1.0)
        fails = min(1.0, len(tests) * min((p if way < 0 else 1.0 for p, way in tests), default=1.0))
        p_values.append(min(holds, fails))
        sides.append(holds < fails)
    rows = []
    for claim, p, holds_ in zip(found, compare.holm(p_values), sides, strict=True):
        supported = holds_ if p <= LEVEL else None
        rows.append(
            {
                "panel": claim.panel,
                "claim": claim.text,
                "supported": supported,
                "verdict": {True: TRUE, False: FALSE, None: CANNOT_TELL}[supported],
                "p": p,
                "seeds": len(claim.comparisons[0][0]) if claim.comparisons else 0,
                "figures": claim.figures,
            }
        )
    return rows


def counts(verdicts: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """How often each claim is true, false, or cannot be told, by variant."""
    rows = []
    for variant in dict.fromkeys(v["variant"] for v in verdicts):
        for number, text in CLAIMS.items():
            mine = [v for v in verdicts if v["variant"] == variant and v["claim"].startswith(f"{number}:")]
            row: dict[str, Any] = {"variant": variant, "claim": f"{number}: {text}"}
            rows.append(row | {word: sum(v["verdict"] == word for v in mine) for word in (TRUE, FALSE, CANNOT_TELL)})
    return rows


def headline(
    rows: Sequence[Mapping[str, Any]], verdicts: Sequence[Mapping[str, Any]], out: Path, seconds: float
) -> list[str]:
    """Half a screen: what was run, how the claims fared, and where the rest is."""
    variants = list(dict.fromkeys(row["variant"] for row in rows))
    lines = [f"The paper's experiment on RiverSwim, H = 20, in {seconds // 60:.0f} min {seconds % 60:.0f} s:"]
    few = []
    for variant in variants:
        mine = [row for row in rows if row["variant"] == variant]
        seeds, judged = mine[0]["seeds"], sum(v["variant"] == variant for v in verdicts)
        lines.append(
            f"  {variant:<6}  {ABOUT[variant]}: {len(mine)} curves of {mine[0]['episodes']:,} episodes, {seeds} seeds"
        )
        if judged * 2.0 ** (1 - seeds) > LEVEL:
            few.append(math.ceil(1 + math.log2(judged / LEVEL)))
    lines += ["", f"The paper's claims, by a paired test over the seeds (Wilcoxon, Holm over a variant, {LEVEL:.0%}):"]
    lines += tables.plain(counts(verdicts)).split("\n")
    if few:
        lines.append(f"So few seeds can tell nothing, whatever the regrets. Pass --seeds {max(few)} or more.")
    bad = [row for row in rows if row["verdict"] == results.NO_BETTER]
    where = ", ".join(f"{sum(row['variant'] == v for row in bad)} in {v}" for v in variants)
    lines += ["", f"No better than uniform: {len(bad)} of {len(rows)} curves ({where})."]
    drawn = [*variants, *(["combined"] if len(variants) > 1 else [])]
    lines.append(f"In {out}: claims.md with what decided each claim, table.md with the regret of each curve (both")
    lines.append(f"also .csv), guarantees.md, the figures {', '.join(f'{name}.png' for name in drawn)}, and the data.")
    return lines


def figure(panels: Mapping[str, Sequence[Curve]], *paths: Path) -> None:
    """One row of two panels (PO, VI) for each variant."""
    fig, axes = plots.new_figure(columns=2, rows=len(panels), width=8.4, height=4.1)
    for row, (variant, curves) in enumerate(panels.items()):
        for column, panel in enumerate(PANELS):
            ax = axes[row, column]
            mine = [c for c in curves if c.panel == panel]
            epsilons = sorted({c.epsilon for c in mine if c.model != "none"})
            for c, label in zip(mine, plots.distinct([c.label for c in mine]), strict=True):
                plots.band(ax, c.episode, c.regret, label=label, **_style(c, epsilons))
            plots.finish(ax, f"{ABOUT[variant]}, {len(mine[0].regret)} seeds\n{TITLES[panel]}")
            ax.legend(frameon=False, fontsize=7, loc="center left", bbox_to_anchor=(1.0, 0.5))  # crosses no curve
    plots.save(fig, *paths)


def main(
    variants: Sequence[str], out: Path, seeds: int, episodes: int
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Runs the variants, in the order of VARIANTS, and writes figures, data, tables and claims to `out`.

    Returns:
      Rows of tables and of claims.
    """
    out.mkdir(parents=True, exist_ok=True)
    panels, rows, verdicts, guarantees = {}, [], [], []
    for variant in (v for v in VARIANTS if v in variants):
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
        guarantees += _guarantees(variant, data)
    if len(panels) > 1:
        figure(panels, out / "combined.png", out / "combined.pdf")
    for name, content in (("table", rows), ("claims", verdicts), ("guarantees", guarantees)):
        (out / f"{name}.csv").write_text(tables.to_csv(content))
        shown = [{k: v for k, v in row.items() if k not in ("supported", "best_regret")} for row in content]
        (out / f"{name}.md").write_text(tables.markdown(shown))
    return rows, verdicts


def _extra(curve: Curve, base: Curve) -> tuple[np.ndarray, np.ndarray]:
    """Extra regret over the non-private curve, f64[seed]: all of it, and what comes after half of the episodes."""
    extra = curve.regret - base.regret
    half = int(np.searchsorted(curve.episode, curve.episode[-1] / 2))
    return extra[:, -1], extra[:, -1] - extra[:, half]


def _share(late: np.ndarray, whole: np.ndarray) -> str:
    """Part of the extra regret in the second half, in words."""
    return f"{late.mean() / whole.mean():.0%}" if whole.mean() > 0 else "none"


def _style(curve: Curve, epsilons: list[float]) -> dict[str, Any]:
    """Black: non-private; one colour per epsilon; solid JDP, dashed LDP."""
    if curve.model == "none":
        return {"color": "black", "linestyle": "-", "zorder": 3}
    if curve.model == "best":
        return {"color": plots.COLOURS[6 + (curve.epsilon == 1.0)], "linestyle": "-.", "zorder": 3}
    colour = plots.COLOURS[epsilons.index(curve.epsilon) % len(plots.COLOURS)]
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


def _guarantees(variant: str, data: Sequence[xr.Dataset]) -> list[dict[str, Any]]:
    """What holds for each run of a variant, in words."""
    return [
        {
            "variant": variant,
            "learner": d.attrs["spec"]["learner"],
            "privatizer": d.attrs["spec"]["privatizer"],
            "guarantee": g["statement"],
        }
        for d in data
        for g in d.attrs["guarantees"]
    ]


def _public_runs() -> dict[tuple[str, str, float | None], dict[int, list[float]]]:
    """Final regrets of the authors' public code, by (panel, model, epsilon) and number of episodes."""
    path = resources.files("jaxprivrl.published") / "data" / "published_runs.json"
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
