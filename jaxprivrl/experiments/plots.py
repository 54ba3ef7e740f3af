"""Figures: from Datasets to matplotlib axes. Only this folder imports matplotlib, inside its functions."""

import math
import textwrap
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import xarray as xr

from jaxprivrl.experiments import results

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Colour-blind safe (Okabe and Ito); the non-private curve is black everywhere.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#8C6D31", "#7F3C8D", "#117733", "#661100")
DASHES = ("-", "--", "-.", ":")
_SHORT = {"bonus_scale": "bonus × ", "learning_rate": "η = "}  # as the papers write them


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


def check_file(path: Path) -> None:
    """Raises unless a figure can be written to the path."""
    if path.suffix not in (".png", ".pdf", ".svg"):
        raise ValueError(f"Expected --out {path} to end in .png, .pdf or .svg. Rename it.")
    if path.is_dir():
        raise ValueError(f"{path} is a folder, expected a file to write. Pass another --out.")
    results.check_folder(path.parent)


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
    """Cumulative regret against episodes, one curve per run and grid cell, accounted guarantee in the legend.

    Args:
      runs: Datasets. Those of one MDP share a panel, where labels name what differs between them; regrets of different
        MDPs are not comparable, so each MDP has a panel of its own, with a title.
      axes: where to draw runs of one MDP; by default a new figure.
    Returns:
      The Axes of the first panel; its `figure` has them all.
    """
    panels = _panels(runs)
    if axes is not None and len(panels) > 1:
        raise ValueError(f"These runs are of {len(panels)} MDPs, expected one for one axes. Leave axes out for panels.")
    if len(panels) > _MOST_PANELS:
        raise ValueError(f"These runs are of {len(panels)} MDPs, expected at most {_MOST_PANELS}. Plot fewer at once.")
    if not panels:
        raise ValueError("Expected at least one run to draw. Pass a Dataset of a sweep.")
    every = [axes] if axes is not None else _axes_of(len(panels))
    titles = distinct([_title(panel[0]) for panel in panels]) if len(panels) > 1 else [""]
    below = [_draw(panel, ax, title, len(runs) > 1) for ax, title, panel in zip(every, titles, panels, strict=True)]
    if axes is None:
        figure: Any = every[0].figure
        figure.set_figheight(figure.get_figheight() + sum(max(below[i : i + 2]) for i in range(0, len(below), 2)))
    return every[0]


def _axes_of(panels: int) -> list["Axes"]:
    """As many panels in a new figure, two beside each other."""
    columns = min(panels, 2)
    flat = list(new_figure(columns, -(-panels // columns), width=7.2, height=4.6)[1].flat)
    for unused in flat[panels:]:
        unused.set_visible(False)
    return flat[:panels]


def _draw(runs: Sequence[xr.Dataset], axes: "Axes", title: str, named: bool) -> float:
    """Draws a panel; returns the inches that its legend needs below it."""
    curves = [curve for data in runs for curve in _curves(data)]
    colour = 0
    for label, (cell, _, _) in zip(_labels([(base, facts) for _, base, facts in curves], named), curves, strict=True):
        private = not math.isinf(float(cell.epsilon))
        style = {"color": "black", "zorder": 3} if not private else {"color": COLOURS[colour % len(COLOURS)]}
        style["linestyle"] = DASHES[colour // len(COLOURS) % len(DASHES)]
        colour += private
        band(axes, cell.episode.values, cell.regret.transpose("seed", "episode").values, label=label, **style)
    finish(axes, title)
    return _legend(axes)


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


def _legend(axes: "Axes") -> float:
    """Long or many labels go below the panel, where they cross no curve; returns the inches that they take there."""
    from matplotlib.transforms import ScaledTranslation

    labels = axes.get_legend_handles_labels()[1]
    if len(labels) <= _MOST_INSIDE and max(map(len, labels), default=0) <= _LONG:
        return 0.0
    broken = ["\n".join(textwrap.wrap(label, _LINE)) for label in labels]
    below = axes.transAxes + ScaledTranslation(0, -0.5, axes.figure.dpi_scale_trans)  # under the name of the x axis
    place: dict[str, Any] = {"loc": "upper left", "bbox_to_anchor": (0.0, 0.0), "bbox_transform": below}
    axes.legend(axes.lines, broken, frameon=False, fontsize=8, **place)
    return 0.17 * sum(label.count("\n") + 1 for label in broken)


def distinct(labels: Sequence[str]) -> list[str]:
    """The labels, those that occur more than once with a number behind: no two curves may share a name."""
    seen: dict[str, int] = {}
    out = []
    for label in labels:
        seen[label] = seen.get(label, 0) + 1
        out.append(f"{label} ({seen[label]})" if labels.count(label) > 1 else label)
    return out if len(set(out)) == len(out) else distinct(out)


def _panels(runs: Sequence[xr.Dataset]) -> list[list[xr.Dataset]]:
    """Runs by MDP, in the order of their first ones. Without a hash an MDP is its name, horizon and kind of costs."""
    panels: dict[Any, list[xr.Dataset]] = {}
    for data in runs:
        spec = data.attrs["spec"]
        key = spec.get("mdp_hash") or tuple(spec.get(name) for name in _OF_MDP)
        panels.setdefault(key, []).append(data)
    return list(panels.values())


def _title(data: xr.Dataset) -> str:
    """An MDP in words."""
    spec = data.attrs["spec"]
    words = [str(spec["environment"])]
    if spec.get("horizon") is not None:
        words.append(f"H = {spec['horizon']}")
    if spec.get("bernoulli_costs"):
        words.append("Bernoulli costs")
    return ", ".join(words)


def _curves(data: xr.Dataset) -> list[tuple[xr.Dataset, str, dict[str, Any]]]:
    """(cell, its name, what else is known of it) of each grid cell of a run."""
    spec = data.attrs["spec"]
    run = {name: value for name, value in spec.items() if name not in _NOT_TOLD}
    run["seeds"] = (spec.get("seed_start", 0), spec["seeds"])
    return [
        (cell, data.attrs["labels"][i], {"who": f"{spec['learner']}, {spec['privatizer']}"} | values | run)
        for i, values, cell in results.cells(data)
    ]


def _labels(curves: Sequence[tuple[str, Mapping[str, Any]]], named: bool) -> list[str]:
    """A legend entry for each curve: learner and privatizer, guarantee, then what is not the same in all of them."""
    labels = [f"{facts['who']}: {base}" if named else base for base, facts in curves]
    names = dict.fromkeys(name for _, facts in curves for name in facts if name != "who")
    for name in names:
        values = [facts.get(name, _ABSENT) for _, facts in curves]
        known = [value for value in values if value is not _ABSENT]
        if all(value == known[0] for value in known):
            continue
        texts = _texts(name, known)
        for i, value in enumerate(values):
            if value is not _ABSENT:
                labels[i] += f", {texts[known.index(value)]}"
    return distinct(labels)


def _texts(name: str, values: Sequence[Any]) -> list[str]:
    """What a legend says of values of one fact: numbers with as many digits as tell them apart."""
    if name in _WORDS:
        return [_WORDS[name](value) for value in values]
    prefix = _SHORT.get(name, name.replace("_", " ") + " ")
    texts: list[str] = []
    for digits in (3, 6, 17):
        texts = [prefix + (f"{v:.{digits}g}" if isinstance(v, float) else _plain(v)) for v in values]
        if len(set(texts)) == len(set(map(repr, values))):
            break
    return texts


def _plain(value: Any) -> str:
    if isinstance(value, (list, tuple)):
        return " ".join(map(_plain, value)) or "none"
    return "default" if value is None else str(value)


def _seeds(value: tuple[int, int]) -> str:
    first, count = value
    return f"seed {first}" if count == 1 else f"seeds {first} to {first + count - 1}"


_ABSENT = object()
_MOST_PANELS = 6
_MOST_INSIDE, _LONG = 8, 55  # labels of a legend inside the panel, and characters of one
_LINE = 95  # characters of a line below it
_OF_MDP = ("environment", "horizon", "bernoulli_costs")
# What a title, the guarantee or another fact says already, and what does not change a curve.
_NOT_TOLD = (*_OF_MDP, "mdp_hash", "learner", "privatizer", "epsilons", "grid", "seed_start", "dp_delta",
             "metrics", "record_every", "plugins")  # fmt: skip
_WORDS: dict[str, Callable[[Any], str]] = {
    "homogeneous": lambda pooled: "pooled" if pooled else "by step",
    "centred_costs": lambda centred: "centred costs" if centred else "costs not centred",
    "families": lambda families: f"{families} families",
    "episodes": lambda episodes: f"K = {episodes:,}",
    "seeds": _seeds,
}
