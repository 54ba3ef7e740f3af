"""Comparison of learners and privatizers on the same seeds: ranks, intervals, paired tests, one figure, one table."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import xarray as xr

from jaxprivrl.experiments import plots, results, tables, tune
from jaxprivrl.experiments.spec import SweepSpec, resolve
from jaxprivrl.experiments.sweep import sweep
from jaxprivrl.mdp import MDP

_RESAMPLES = 4000


class Entry(NamedTuple):
    """One curve of a comparison: its names, guarantee label and cumulative regret [seed, episode]."""

    learner: str
    privatizer: str
    epsilon: float
    label: str
    episode: np.ndarray
    regret: np.ndarray
    uniform: float | None = None  # regret of the uniform policy over the same episodes


def compare(
    specs: list[SweepSpec],
    mdp: MDP | None = None,
    *,
    progress: Callable[[SweepSpec], Callable[[int, int, float], None]] | None = None,
) -> tuple[list[dict[str, Any]], list[Entry], list[xr.Dataset]]:
    """Runs each spec on the same seeds and ranks all cells by mean final regret.

    Args:
      specs: grids with one value of each parameter, and equal seeds and episodes.
      mdp: the MDP, as for `sweep`.
      progress: makes the progress callback of each sweep.

    Returns:
      The table, best first: mean final regret with a 95 % bootstrap interval over seeds, and the p-value of a paired
      Wilcoxon test against the best row, Holm-corrected; regret of the uniform and the best policy beside it (see
      `results.against_uniform`); the curves in the same order; the Datasets.
    """
    if any(len(values) > 1 for spec in specs for values in spec.grid.values()):
        raise ValueError("A comparison takes one value of each parameter of a learner. Tune them first.")
    data = [sweep(spec, mdp, progress=progress(spec) if progress else None) for spec in specs]
    entries = sorted((e for d in data for e in _entries(d)), key=lambda e: e.regret[:, -1].mean())
    return rank(entries), entries, data


def rank(entries: list[Entry]) -> list[dict[str, Any]]:
    """Rows of a comparison for entries sorted by mean final regret."""
    finals = [e.regret[:, -1] for e in entries]
    corrected = holm([paired_p_value(finals[0], f) for f in finals[1:]])
    rows = []
    for i, (entry, final) in enumerate(zip(entries, finals, strict=True)):
        low, high = bootstrap_interval(final)
        K = int(entry.episode[-1])
        ninety = entry.regret[:, entry.episode == 9 * K // 10]
        tenth = (final - (ninety[:, 0] if ninety.size else 0.0)) / (K - 9 * K // 10)
        rows.append(
            {
                "rank": i + 1,
                "learner": entry.learner,
                "privatizer": entry.privatizer,
                "guarantee": entry.label,
                "final_regret_mean": float(final.mean()),
                "ci95_low": low,
                "ci95_high": high,
                "last_tenth_regret_per_episode": float(tenth.mean()),
                "p_against_best": None if i == 0 else corrected[i - 1],
            }
            | results.against_uniform(final, entry.uniform)
        )
    return rows


def bootstrap_interval(values: np.ndarray, level: float = 0.95) -> tuple[float, float]:
    """Percentile bootstrap interval of the mean over seeds, with a fixed generator."""
    if len(values) < 2:
        return float(values.mean()), float(values.mean())
    draws = np.random.default_rng(0).integers(0, len(values), (_RESAMPLES, len(values)))
    low, high = np.quantile(values[draws].mean(1), [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


def paired_p_value(x: np.ndarray, y: np.ndarray) -> float:
    """Two-sided Wilcoxon signed-rank test on paired seeds; 1 where all differences are zero."""
    from scipy import stats

    if len(x) != len(y) or np.all(x == y):
        return 1.0
    return float(stats.wilcoxon(x, y).pvalue)


def direction(x: np.ndarray, y: np.ndarray) -> int:
    """Which of two paired samples that test calls larger: 1 for y, -1 for x, 0 for neither."""
    from scipy import stats

    difference = np.asarray(y) - np.asarray(x)
    return int(np.sign(np.sign(difference) @ stats.rankdata(np.abs(difference))))


def holm(p_values: list[float]) -> list[float]:
    """Holm's step-down correction."""
    order = np.argsort(p_values)
    corrected = np.empty(len(p_values))
    worst = 0.0
    for rank_, i in enumerate(order):
        worst = max(worst, min(1.0, (len(p_values) - rank_) * p_values[i]))
        corrected[i] = worst
    return [float(p) for p in corrected]


def save(rows: list[dict[str, Any]], entries: list[Entry], data: list[xr.Dataset], folder: Path) -> None:
    """Writes table (CSV, Markdown), figure (PNG, PDF) and one run folder per sweep."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "comparison.csv").write_text(tables.to_csv(rows))
    (folder / "comparison.md").write_text(tables.markdown(rows))
    figure(entries, folder / "comparison.png", folder / "comparison.pdf")
    for d in data:
        spec = d.attrs["spec"]
        results.save(d, folder / f"{spec['learner']}-{spec['privatizer']}", overwrite=True)


def figure(entries: list[Entry], *paths: Path) -> None:
    """Regret curves of all entries; colour by learner, dashes by privatizer, best first in the legend."""
    fig, axes = plots.new_figure(width=8.4, height=4.8)
    ax = axes[0, 0]
    learners = list(dict.fromkeys(e.learner for e in entries))
    cells = list(dict.fromkeys((e.privatizer, e.epsilon) for e in sorted(entries, key=lambda e: -e.epsilon)))
    labels = plots.distinct([f"{e.learner}, {e.privatizer}: {e.label}" for e in entries])
    for e, label in zip(entries, labels, strict=True):
        style = {
            "color": plots.COLOURS[learners.index(e.learner) % len(plots.COLOURS)],
            "linestyle": plots.DASHES[cells.index((e.privatizer, e.epsilon)) % len(plots.DASHES)],
        }
        plots.band(ax, e.episode, e.regret, label=label, **style)
    plots.finish(ax)
    ax.legend(frameon=False, fontsize=7, loc="center left", bbox_to_anchor=(1.0, 0.5))
    plots.save(fig, *paths)


def tuned(spec: SweepSpec, path: Path | None) -> SweepSpec:
    """The spec with tuned numbers, where a file is given."""
    return spec if path is None else tune.apply(spec, path)


def check(spec: SweepSpec, mdp: MDP | None = None) -> None:
    """Raises on a bad spec before anything is run."""
    resolve(spec, mdp)


def _entries(data: xr.Dataset) -> list[Entry]:
    spec = data.attrs["spec"]
    return [
        Entry(
            spec["learner"],
            spec["privatizer"],
            float(data.epsilon[i]),
            "no privacy" if math.isinf(float(data.epsilon[i])) else label,
            data.episode.values,
            data.regret.isel(epsilon=i).transpose("seed", "episode").values,
            results.uniform_total(data),
        )
        for i, label in enumerate(data.attrs["labels"])
    ]


def grid(base: SweepSpec, learners: tuple[str, ...], privatizers: tuple[str, ...]) -> list[SweepSpec]:
    """Every learner with every privatizer."""
    for kind, names in (("learners", learners), ("privatizers", privatizers)):
        if not names:
            raise ValueError(f"Expected --{kind} to name at least one. Leave it out for the default.")
    return [base.replace(learner=a, privatizer=b) for a in learners for b in privatizers]
