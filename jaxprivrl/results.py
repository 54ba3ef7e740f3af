"""Results: from arrays to a labelled Dataset, to a run folder and back, to summaries.

A run folder holds `results.nc` (the Dataset) and `run.json` (spec, guarantees, versions, device, times).
"""

import dataclasses
import importlib.metadata
import json
import math
import platform
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import xarray as xr

if TYPE_CHECKING:
    from jaxprivrl.sweep import Plan

RESULTS, RUN = "results.nc", "run.json"
_JSON_ATTRIBUTES = ("spec", "guarantees", "labels", "seconds")  # netCDF attributes are strings


def to_dataset(plan: "Plan", regret: np.ndarray, seconds: dict[str, float]) -> xr.Dataset:
    """Names the axes of f64[cell, seed, record]; hyper-parameters with one value become scalar coordinates."""
    spec = plan.spec
    epsilons, scales, rates = (list(dict.fromkeys(row[i] for row in plan.grid)) for i in range(3))
    values = regret.reshape(len(epsilons), len(scales), len(rates), spec.seeds, -1)
    guarantees = [c.guarantee for c in plan.calibrations]
    data = xr.Dataset(
        {"regret": (("epsilon", "bonus_scale", "learning_rate", "seed", "episode"), values)},
        coords={
            "epsilon": epsilons,
            "bonus_scale": scales,
            "learning_rate": rates,
            "seed": spec.seed_start + np.arange(spec.seeds),
            "episode": plan.records,
            "epsilon_pure": ("epsilon", [g.epsilon_pure for g in guarantees]),
            "epsilon_at_delta": ("epsilon", [g.epsilon_at_delta.get(spec.dp_delta, math.inf) for g in guarantees]),
            "noise_scale": ("epsilon", [c.noise_scale for c in plan.calibrations]),
        },
        attrs={
            "spec": dataclasses.asdict(spec),
            "guarantees": [g.to_json() for g in guarantees],
            "labels": [g.label for g in guarantees],
            "seconds": seconds,
        },
    )
    data["regret"].attrs.update(long_name="cumulative pseudo-regret", units="cost")
    return data.squeeze([d for d in ("bonus_scale", "learning_rate") if data.sizes[d] == 1])


def last_tenth(data: xr.Dataset) -> xr.DataArray:
    """Regret per episode over the last tenth of the episodes: (R(K) - R(0.9 K)) / (K - floor(0.9 K))."""
    K = int(data.episode[-1])
    ninety = 9 * K // 10
    before = data.regret.sel(episode=ninety, drop=True) if ninety else 0.0
    return (data.regret.sel(episode=K, drop=True) - before) / (K - ninety)


def summarize(data: xr.Dataset) -> list[dict[str, Any]]:
    """One row per grid cell, JSON-safe: final regret (std with ddof 1), last-tenth regret, guarantee in words."""
    full = data.expand_dims([d for d in ("bonus_scale", "learning_rate") if d not in data.dims])
    rows = []
    for i in range(full.sizes["epsilon"]):
        for j in range(full.sizes["bonus_scale"]):
            for m in range(full.sizes["learning_rate"]):
                cell = full.isel(epsilon=i, bonus_scale=j, learning_rate=m)
                final = cell.regret.isel(episode=-1).values
                guarantee = data.attrs["guarantees"][i]
                rows.append(
                    {
                        "epsilon": json_number(float(cell.epsilon)),
                        "bonus_scale": float(cell.bonus_scale),
                        "learning_rate": float(cell.learning_rate),
                        "final_regret_mean": float(final.mean()),
                        "final_regret_std": float(final.std(ddof=1)) if final.size > 1 else 0.0,
                        "last_tenth_regret_per_episode": float(last_tenth(cell).mean()),
                        "guarantee": "none" if guarantee["model"] == "none" else guarantee["statement"],
                        "accounting": guarantee,
                    }
                )
    return rows


def save(data: xr.Dataset, folder: str | Path, *, overwrite: bool = False) -> Path:
    """Writes a run folder; refuses to overwrite one. The folder appears whole or not at all."""
    folder = Path(folder)
    check_free(folder, overwrite)
    partial = folder.with_name(folder.name + ".partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    try:
        plain = data.copy()
        plain.attrs = {k: json.dumps(json_safe(v)) if k in _JSON_ATTRIBUTES else v for k, v in data.attrs.items()}
        plain.to_netcdf(partial / RESULTS, engine="h5netcdf")
        (partial / RUN).write_text(json.dumps(json_safe(describe(data)), indent=1) + "\n")
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise
    if folder.exists():
        shutil.rmtree(folder)
    partial.rename(folder)
    return folder


def check_free(folder: str | Path, overwrite: bool) -> None:
    """Raises unless the folder is free, or holds an earlier run and may be overwritten."""
    folder = Path(folder)
    check_folder(folder)
    if not folder.exists():
        return
    if (folder / RESULTS).exists() or (folder / RUN).exists():
        if not overwrite:
            raise ValueError(f"{folder} already holds results. Pass --overwrite or another --out.")
    elif any(folder.iterdir()):
        raise ValueError(f"{folder} holds other files, and a run folder is replaced whole. Pass another --out.")


def check_folder(folder: str | Path) -> None:
    """Raises unless the folder exists or can be made: no part of its path may be a file."""
    folder = Path(folder)
    nearest = next((part for part in (folder, *folder.parents) if part.exists()), folder)
    if nearest.exists() and not nearest.is_dir():
        raise ValueError(f"{nearest} is a file, expected a folder to write. Pass another --out.")


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
