"""Results: from arrays to a labelled Dataset, to a run folder and back, to summaries.

A run folder holds `results.nc` (the Dataset) and `run.json` (spec, guarantees, versions, device, times).
"""

import importlib.metadata
import itertools
import json
import math
import platform
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import xarray as xr

from jaxprivrl.experiments import tables
from jaxprivrl.experiments.folders import RESULTS as RESULTS
from jaxprivrl.experiments.folders import RUN, Reserved
from jaxprivrl.experiments.folders import check_folder as check_folder
from jaxprivrl.experiments.folders import check_free as check_free

if TYPE_CHECKING:
    from jaxprivrl.experiments.spec import Plan

UNIFORM = "uniform_regret_per_episode"  # attribute of a Dataset: what the uniform policy pays, exactly
BETTER, NO_BETTER = "better than uniform", "no better than uniform"
_CLEARLY_LESS = 0.95  # share of the uniform policy's regret below which a mean must be to count as better
_JSON_ATTRIBUTES = ("spec", "parameters", "guarantees", "labels", "seconds")  # netCDF attributes are strings
_WORDS_OF_CELL, _WORDS_OF_RUN = 10_000, 200_000  # bytes, far above what guarantees, summary and versions take


def to_dataset(plan: "Plan", kept: dict[str, np.ndarray], seconds: dict[str, float]) -> xr.Dataset:
    """Names the axes of f64[cell, seed, record]; a parameter with one value becomes a scalar coordinate."""
    from jaxprivrl.mdp import uniform_regret

    spec, axes = plan.spec, {name: list(values) for name, values in plan.axes.items()}
    sizes = [len(values) for values in axes.values()]
    guarantees = [c.guarantee for c in plan.calibrated]
    data = xr.Dataset(
        {name: ((*axes, "seed", "episode"), x.reshape(*sizes, spec.seeds, -1)) for name, x in kept.items()},
        coords=axes
        | {
            "seed": spec.seed_start + np.arange(spec.seeds),
            "episode": plan.job.records,
            "epsilon_pure": ("epsilon", [g.epsilon_pure for g in guarantees]),
            "epsilon_at_delta": ("epsilon", [g.epsilon_at_delta.get(spec.dp_delta, math.inf) for g in guarantees]),
            "noise_scale": ("epsilon", [c.noise_scale for c in plan.calibrated]),
        },
        attrs={
            "spec": spec.to_json(),
            "parameters": [name for name in axes if name != "epsilon"],
            "guarantees": [g.to_json() for g in guarantees],
            "labels": [g.label for g in guarantees],
            "seconds": seconds,
            UNIFORM: uniform_regret(plan.mdp),
        },
    )
    data["regret"].attrs.update(long_name="cumulative pseudo-regret", units="cost")
    return data.squeeze([name for name, size in zip(axes, sizes, strict=True) if size == 1 and name != "epsilon"])


def cells(data: xr.Dataset) -> Iterator[tuple[int, dict[str, float], xr.Dataset]]:
    """(index of the epsilon, values of the learner's parameters, the cell) of each grid cell, in order."""
    names = data.attrs["parameters"]
    full = data.expand_dims([name for name in names if name not in data.dims])
    for i in range(full.sizes["epsilon"]):
        for place in itertools.product(*(range(full.sizes[name]) for name in names)):
            cell = full.isel(epsilon=i, **dict(zip(names, place, strict=True)))
            yield i, {name: float(cell[name]) for name in names}, cell


def last_tenth(data: xr.Dataset) -> xr.DataArray:
    """Regret per episode over the last tenth of the episodes: (R(K) - R(0.9 K)) / (K - floor(0.9 K))."""
    K = int(data.episode[-1])
    ninety = 9 * K // 10
    before = data.regret.sel(episode=ninety, drop=True) if ninety else 0.0
    return (data.regret.sel(episode=K, drop=True) - before) / (K - ninety)


def summarize(data: xr.Dataset) -> list[dict[str, Any]]:
    """One row per grid cell, JSON-safe: final regret (std with ddof 1), last-tenth regret, guarantee in words.

    Beside the regret stand the uniform policy's and the best possible (see `against_uniform`).
    """
    rows: list[dict[str, Any]] = []
    uniform = uniform_total(data)
    for i, values, cell in cells(data):
        final = cell.regret.isel(episode=-1).values
        guarantee = data.attrs["guarantees"][i]
        metrics = {str(name): float(cell[name].isel(episode=-1).mean()) for name in cell.data_vars if name != "regret"}
        rows.append(
            {"epsilon": json_number(float(cell.epsilon))}
            | values
            | {
                "final_regret_mean": float(final.mean()),
                "final_regret_std": float(final.std(ddof=1)) if final.size > 1 else 0.0,
                "last_tenth_regret_per_episode": float(last_tenth(cell).mean()),
            }
            | against_uniform(final, uniform)
            | metrics
            | {
                "guarantee": "none" if guarantee["model"] == "none" else guarantee["statement"],
                "accounting": guarantee,
            }
        )
    return rows


def uniform_total(data: xr.Dataset) -> float | None:
    """Regret of the uniform policy over the episodes of the runs; None for runs saved without it."""
    return float(data.attrs[UNIFORM]) * int(data.episode[-1]) if UNIFORM in data.attrs else None


def against_uniform(final: np.ndarray, uniform: float | None) -> dict[str, Any]:
    """Final regrets of some seeds beside those of policies that need no data.

    Args:
      final: f64[seed], cumulative regret after the last episode.
      uniform: the uniform policy's over the same episodes, or None if it is not known.
    Returns:
      uniform_regret; best_regret, which is 0; share_of_uniform, the mean final regret in parts of the former (None
      where that is 0); verdict: "better than uniform" if the mean is below 95 % of uniform_regret and, with two seeds
      or more, at least two of its standard errors below it, else "no better than uniform".
    """
    mean = float(final.mean())
    error = float(final.std(ddof=1)) / math.sqrt(final.size) if final.size > 1 else 0.0
    verdict = None
    if uniform is not None:
        verdict = BETTER if mean < _CLEARLY_LESS * uniform and mean + 2 * error < uniform else NO_BETTER
    return {
        "uniform_regret": uniform,
        "best_regret": 0.0,
        "share_of_uniform": mean / uniform if uniform else None,
        "verdict": verdict,
    }


def beside_uniform(rows: list[dict[str, Any]], episodes: int) -> list[str]:
    """Sentences below a table of summaries: what knowing nothing and knowing all cost, and who is no better."""
    known = [row for row in rows if row.get("uniform_regret") is not None]
    if not known:
        return []
    low, high = (tables.cell(f(row["uniform_regret"] for row in known)) for f in (min, max))
    cost = low if low == high else f"{low} to {high}"
    lines = [f"Over the same {episodes:,} episodes the uniform policy has regret {cost} and the best policy 0."]
    bad = sum(row["verdict"] == NO_BETTER for row in known)
    if bad:
        who = "" if len(rows) == 1 else f" in {bad} of {len(rows)} rows" if bad < len(rows) else " in every row"
        lines.append(
            f"No better than uniform{who}: the mean final regret is above 95 % of the uniform policy's, or within two "
            "standard errors of it."
        )
    return lines


def save(data: xr.Dataset, folder: str | Path, *, overwrite: bool = False) -> Path:
    """Writes a run folder; refuses to overwrite one. The folder appears whole or not at all."""
    with Reserved(folder, overwrite) as place:
        place.write(content(data))
    return Path(folder)


def content(data: xr.Dataset) -> dict[str, bytes | memoryview]:
    """The files of a run folder. They are made in memory: HDF5 does not survive a disk that fills up under it."""
    plain = data.copy()
    plain.attrs = {k: json.dumps(json_safe(v)) if k in _JSON_ATTRIBUTES else v for k, v in data.attrs.items()}
    text = json.dumps(json_safe(describe(data)), indent=1) + "\n"
    return {RESULTS: plain.to_netcdf(engine="h5netcdf"), RUN: text.encode()}


def size_bound(plan: "Plan") -> int:
    """Bytes that the run folder of a plan will not exceed."""
    arrays, cells = 1 + len(plan.spec.metrics), plan.job.num_cells
    numbers = arrays * cells * plan.spec.seeds * len(plan.job.records) + len(plan.job.records) + plan.spec.seeds
    return 8 * numbers + _WORDS_OF_CELL * (cells + len(plan.calibrated)) + _WORDS_OF_RUN


def load(folder: str | Path) -> xr.Dataset:
    """Reads a run folder."""
    path = Path(folder) / RESULTS
    if not path.is_file():
        raise ValueError(f"{folder} holds no {RESULTS}; expected a run folder. Make one with 'jaxprivrl sweep --out'.")
    try:
        with xr.open_dataset(path, engine="h5netcdf") as file:
            data = file.load()
        data.attrs = {k: json.loads(v) if k in _JSON_ATTRIBUTES else v for k, v in data.attrs.items()}
        missing = [name for name in ("regret", *_JSON_ATTRIBUTES) if name not in data and name not in data.attrs]
        if missing:
            raise ValueError(f"no {', '.join(missing)}")
    except (OSError, KeyError, ValueError) as error:
        raise ValueError(f"{path} is not a results file of this package ({error}). Run the sweep again.") from error
    return data


def describe(data: xr.Dataset) -> dict[str, Any]:
    """Content of run.json: what was run, what it guarantees, on what, how long."""
    import jax

    packages = ("jaxprivrl", "jax", "jaxlib", "numpy", "optax", "dp-accounting", "xarray")
    return {
        "spec": data.attrs["spec"],
        "guarantee": data.attrs["guarantees"],
        "summary": summarize(data),
        "seconds": data.attrs["seconds"],
        "versions": {name: _version(name) for name in packages} | {"python": platform.python_version()},
        "device": {"platform": jax.default_backend(), "count": len(jax.devices()), "machine": platform.machine()},
    }


def json_number(value: Any) -> Any:
    """Numbers for JSON: NumPy scalars become Python's, infinity the string "inf"."""
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float) and math.isinf(value):
        return "inf" if value > 0 else "-inf"
    return value


def json_safe(tree: Any) -> Any:
    """`json_number` on every leaf of nested dicts and lists."""
    if isinstance(tree, dict):
        return {str(k): json_safe(v) for k, v in tree.items()}
    if isinstance(tree, (list, tuple)):
        return [json_safe(v) for v in tree]
    return json_number(tree)


def _version(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"
