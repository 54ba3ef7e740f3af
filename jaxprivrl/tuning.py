"""Tuning of bonus scales and step sizes on seeds of their own, and the TOML files that carry the result.

Bonus and step size are post-processing of releases, so scaling them costs no privacy, as long as they are chosen in
simulation; choosing them on real users would cost budget.

A file has one table per (environment, learner, privatizer), with `bonus_scale`, `learning_rate` and, for the record,
how they were found: calibration, epsilons, episodes, first seed, number of seeds, mean final regret.
"""

import dataclasses
import json
import tomllib
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr

from jaxprivrl.mdp import MDP
from jaxprivrl.sweep import SweepSpec, sweep

SEED_START = 1_000_000  # tuning seeds lie far above any test seed
BONUS_SCALES = (1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2, 1e-1)
LEARNING_RATES = (0.01, 0.03, 0.1, 0.3, 1.0)
USES_LEARNING_RATE = ("ucb_po",)

SHIPPED = Path(__file__).parent / "tuned"  # what `reproduce` and the benchmarks use


def tune(
    spec: SweepSpec, mdp: MDP | None = None, progress: Callable[[int, int, float], None] | None = None
) -> dict[str, Any]:
    """The (bonus scale, step size) of least mean final regret over seeds and epsilons, in one program.

    Args:
      spec: the grid; its seeds must not be those of the runs that the result is for.
      mdp: the MDP, as for `sweep`.
      progress: as for `sweep`.

    Returns:
      The table of one (environment, learner, privatizer).
    """
    data = sweep(spec, mdp, progress=progress)
    bonus_scale, learning_rate, mean = best(data)
    return {
        "bonus_scale": bonus_scale,
        "learning_rate": learning_rate,
        "final_regret_mean": round(mean, 2),
        "calibration": spec.calibration,
        "homogeneous": spec.homogeneous,
        "epsilons": [float(e) for e in data.epsilon],
        "episodes": spec.episodes,
        "seed_start": spec.seed_start,
        "seeds": spec.seeds,
    }


def best(data: xr.Dataset) -> tuple[float, float, float]:
    """(bonus scale, step size, mean final regret) of the cell with the least mean over seeds and epsilons."""
    full = data.expand_dims([d for d in ("bonus_scale", "learning_rate") if d not in data.dims])
    mean = full.regret.isel(episode=-1).mean(("seed", "epsilon")).transpose("bonus_scale", "learning_rate")
    i, j = np.unravel_index(int(mean.values.argmin()), mean.shape)
    return float(mean.bonus_scale[i]), float(mean.learning_rate[j]), float(mean[i, j])


def write(tables: dict[tuple[str, str, str], dict[str, Any]], path: str | Path) -> None:
    """Writes tables keyed by (environment, learner, privatizer), keeping others that the file holds."""
    path = Path(path)
    merged = load(path) if path.is_file() else {}
    merged.update(tables)
    lines = []
    for key in sorted(merged):
        lines.append("[" + ".".join(_quoted(name) for name in key) + "]")
        lines += [f"{name} = {_toml(value)}" for name, value in merged[key].items()] + [""]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(lines), encoding="utf-8")


def load(path: str | Path) -> dict[tuple[str, str, str], dict[str, Any]]:
    """Reads a file that `write` made."""
    path = Path(path)
    if not path.is_file():
        raise ValueError(f"No file '{path}'. Make one with 'jaxprivrl tune --out {path}'.")
    tables = {}
    for environment, learners in _read(path).items():
        for learner, privatizers in _items(learners):
            for privatizer, table in _items(privatizers):
                tables[(environment, learner, privatizer)] = table
                if not isinstance(table, dict) or not isinstance(table.get("bonus_scale"), (int, float)):
                    name = f"[{environment}.{learner}.{privatizer}]"
                    raise ValueError(f"'{path}' has no bonus_scale in {name}. Make one with 'jaxprivrl tune'.")
    return tables


def apply(spec: SweepSpec, path: str | Path) -> SweepSpec:
    """The spec with the tuned bonus scale and step size of its environment, learner and privatizer."""
    key = (spec.environment, spec.learner, spec.privatizer)
    tables = load(path)
    if key not in tables:
        known = ", ".join(".".join(k) for k in sorted(tables)) or "nothing"
        raise ValueError(f"'{path}' has no table [{'.'.join(key)}]; it holds {known}. Run 'jaxprivrl tune' for it.")
    table = tables[key]
    first, count = int(table.get("seed_start", 0)), int(table.get("seeds", 0))
    if spec.seed_start < first + count and first < spec.seed_start + spec.seeds:
        raise ValueError(
            f"Seeds {spec.seed_start} to {spec.seed_start + spec.seeds - 1} were used for tuning ({first} to "
            f"{first + count - 1}). Pass another --seed-start."
        )
    rate = table.get("learning_rate")
    return dataclasses.replace(
        spec,
        bonus_scales=(float(table["bonus_scale"]),),
        learning_rates=None if rate is None else (float(rate),),
    )


def _read(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"'{path}' is not a TOML file ({error}). Make one with 'jaxprivrl tune'.") from error


def _items(tree: Any) -> Iterable[tuple[str, Any]]:
    """Entries of a table; a value where a table should be counts as an empty one, so that `load` names it."""
    return tree.items() if isinstance(tree, dict) else [("?", None)]


def _quoted(name: str) -> str:
    plain = name.replace("_", "").replace("-", "").isalnum() and name.isascii()
    return name if plain else json.dumps(name, ensure_ascii=False)


def _toml(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)
    if isinstance(value, list):
        return "[" + ", ".join(_toml(v) for v in value) + "]"
    return repr(value)
