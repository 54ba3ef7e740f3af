"""Figures: from Datasets to matplotlib axes. Only this module imports matplotlib, inside its functions."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import xarray as xr

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Colour-blind safe (Okabe and Ito); the non-private curve is black everywhere.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#8C6D31", "#7F3C8D", "#117733", "#661100")
DASHES = ("-", "--", "-.", ":")


def new_figure(columns: int = 1, rows: int = 1, width: float = 5.2, height: float = 3.9) -> tuple[Any, Any]:
    """A figure for print, readable at column width, in whatever backend the caller has chosen."""
    import matplotlib.pyplot as plt

    plt.rcParams.update({"font.size": 10, "axes.spines.top": False, "axes.spines.right": False, "pdf.fonttype": 42})
    return plt.subplots(rows, columns, figsize=(width * columns, height * rows), squeeze=False, layout="constrained")


def save(figure: Any, *paths: str | Path) -> None:
    """Writes the figure to each path and closes it."""
    import matplotlib.pyplot as plt

    for path in paths:
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, dpi=150)
    plt.close(figure)


def plain_logs(axis: Any) -> None:
    """Ticks of a logarithmic axis at 1, 2 and 5 times powers of ten, written as plain numbers."""
    from matplotlib.ticker import LogLocator

    axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axis.set_major_formatter("{x:,g}")
    axis.set_minor_formatter("")


def band(axes: "Axes", episode: Any, values: Any, **style: Any) -> None:
    """Mean over the rows of [seed, episode] with a band of one standard deviation (ddof 1)."""
    values = np.asarray(values)
    mean = values.mean(0)
    std = values.std(0, ddof=1) if len(values) > 1 else np.zeros_like(mean)
    axes.plot(episode, mean, **style)
    fill = {k: v for k, v in style.items() if k in ("color", "zorder")}
    axes.fill_between(episode, mean - std, mean + std, alpha=0.18, linewidth=0, **fill)


def regret(runs: Sequence[xr.Dataset], axes: "Axes | None" = None) -> "Axes":
    """Cumulative regret against episodes, one curve per run and grid cell, accounted guarantee in the legend."""
    if axes is None:
        axes = new_figure(width=7.2, height=4.6)[1][0, 0]
    curves = [curve for data in runs for curve in _curves(data, len(runs) > 1)]
    colour = 0
    for label, private, episode, values in curves:
        style = {"color": "black", "zorder": 3} if not private else {"color": COLOURS[colour % len(COLOURS)]}
        style["linestyle"] = DASHES[colour // len(COLOURS) % len(DASHES)]
        colour += private
        band(axes, episode, values, label=label, **style)
    finish(axes)
    return axes


def finish(axes: "Axes", title: str = "") -> None:
    """Axis names and limits of a regret plot."""
    axes.set_xlabel("episode (= user)")
    axes.set_ylabel("cumulative regret (mean ± 1 sd over seeds)")
    axes.set_xlim(left=0)
    axes.set_ylim(bottom=0)
    axes.ticklabel_format(axis="both", style="sci", scilimits=(-3, 4), useMathText=True)
    axes.grid(alpha=0.25)
    axes.legend(frameon=False, fontsize=8)
    if title:
        axes.set_title(title)


def _curves(data: xr.Dataset, named: bool) -> list[tuple[str, bool, Any, Any]]:
    """(label, private, episodes, [seed, episode]) of each grid cell of a run."""
    spec, curves = data.attrs["spec"], []
    full = data.expand_dims([d for d in ("bonus_scale", "learning_rate") if d not in data.dims])
    for i, name in enumerate(data.attrs["labels"]):
        for j in range(full.sizes["bonus_scale"]):
            for m in range(full.sizes["learning_rate"]):
                cell = full.isel(epsilon=i, bonus_scale=j, learning_rate=m)
                label = f"{spec['learner']}, {spec['privatizer']}: {name}" if named else name
                if full.sizes["bonus_scale"] > 1:
                    label += f", bonus × {float(cell.bonus_scale):g}"
                if full.sizes["learning_rate"] > 1:
                    label += f", η = {float(cell.learning_rate):.3g}"
                private = not math.isinf(float(cell.epsilon))
                curves.append((label, private, cell.episode.values, cell.regret.values))
    return curves
