"""Tuning of bonus scales and step sizes on seeds of their own, and the TOML files that carry the result.

Bonus and step size are post-processing of releases, so scaling them costs no privacy, as long as they are chosen in
simulation; choosing them on real users would cost budget.

A file has one table per (environment, learner, privatizer), with `bonus_scale`, `learning_rate`, mean final regret, and
all that the choice depends on: horizon, costs, counts and schedule, target, calibration, epsilons, episodes, other
parameters of the learner, post-processing, first seed and number of seeds. What a table does not say had the value that
was the default when it was written.
"""

import json
import os
import sys
import tomllib
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr

from jaxprivrl import _validate, environments
from jaxprivrl.experiments import sweep
from jaxprivrl.experiments.spec import Plan, SweepSpec, learners, privatizers, resolve
from jaxprivrl.learners import Learner
from jaxprivrl.mdp import MDP
from jaxprivrl.schedules import schedule

SEED_START = 1_000_000  # tuning seeds lie far above any test seed
SEARCHED: dict[str, tuple[float, ...]] = {
    "bonus_scale": (1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2, 1e-1),
    "learning_rate": (0.01, 0.03, 0.1, 0.3, 1.0),
}

SHIPPED = Path(__file__).parent / "tuned"  # what `reproduce` and the benchmarks use

_ALWAYS = ("bernoulli_costs", "homogeneous", "releases")
_OF_NOISE = ("families", "centred_costs", "neighbours", "calibration", "precision")  # mean nothing where there is none
_ONCE: dict[str, Any] = {  # defaults when the first tables were written, which do not say what they are
    "bernoulli_costs": False,
    "homogeneous": False,
    "releases": "every",
    "families": 3,
    "centred_costs": False,
    "neighbours": "replace",
    "calibration": "tight",
    "precision": "worst_case",
    "dp_delta": 1e-5,
    "error_scale": 1.0,
    "failure_prob": 0.1,
}
_FAR = 4.0  # factor between numbers of episodes that matters
_NUMBERS = (*SEARCHED, "seed_start", "seeds", "episodes")


def tune(
    spec: SweepSpec, mdp: MDP | None = None, progress: Callable[[int, int, float], None] | None = None
) -> dict[str, Any]:
    """The bonus scale (and step size) of least mean final regret over seeds and epsilons, in one program.

    Args:
      spec: the grid; its seeds must not be those of the runs that the result is for.
      mdp: the MDP, as for `sweep`.
      progress: as for `sweep`.

    Returns:
      The table of one (environment, learner, privatizer).
    """
    plan = resolve(spec, mdp)
    check(plan)
    data = sweep.run(plan, progress)
    values, mean = best(data)
    return {**values, "final_regret_mean": round(mean, 2), **conditions(plan)}


def check(plan: Plan) -> None:
    """Raises unless the grid varies nothing but what is searched, as a table holds one value of the rest."""
    for name, values in plan.axes.items():
        if name not in SEARCHED and name != "epsilon" and len(values) > 1:
            raise ValueError(f"Expected one {name} to tune for, got {list(values)}. Tune for one at a time.")


def conditions(plan: Plan) -> dict[str, Any]:
    """What the best values of a plan depend on, as a table records it."""
    spec, fixed = plan.spec, {n: v[0] for n, v in plan.axes.items() if n not in SEARCHED and n != "epsilon"}
    return {
        "horizon": plan.problem.horizon,
        **{name: getattr(spec, name) for name in (*_ALWAYS, *_OF_NOISE)},
        "releases": plan.problem.schedule.text,
        "postprocess": spec.postprocess or plan.learner.postprocess,
        "target": spec.target or plan.privatizer.target,
        "dp_delta": spec.dp_delta,
        **fixed,
        "epsilons": [float(e) for e in plan.axes["epsilon"]],
        "episodes": spec.episodes,
        "seed_start": spec.seed_start,
        "seeds": spec.seeds,
    }


def differences(spec: SweepSpec, table: Mapping[str, Any]) -> list[tuple[str, Any, Any]]:
    """(name, value in the table, value in the spec) of what a table was tuned for and a spec does not have."""
    learner, privatizer = learners()[spec.learner], privatizers()[spec.privatizer]
    now: dict[str, Any] = {name: getattr(spec, name) for name in _ALWAYS}
    now["releases"], now["postprocess"] = schedule(spec.releases).text, spec.postprocess or learner.postprocess
    once = {"postprocess": learner.postprocess, "target": privatizer.target}
    values = {p.name: spec.grid.get(p.name, (p.default,)) for p in learner.parameters if p.name not in SEARCHED}
    if privatizer.private:
        now |= {name: getattr(spec, name) for name in _OF_NOISE}
        now["target"] = spec.target or privatizer.target
        if now["target"] == "approximate":
            now["dp_delta"] = spec.dp_delta
        now["epsilons"] = sorted(float(e) for e in spec.epsilons)
        once["epsilons"] = now["epsilons"]
    for name, given in values.items():
        if privatizer.private or name != "error_scale":
            now[name] = given[0] if len(given) == 1 else list(given)
    found = [(name, table.get(name, once.get(name, _ONCE.get(name, value))), value) for name, value in now.items()]
    found = [(n, sorted(map(float, t)) if n == "epsilons" else t, v) for n, t, v in found]
    episodes = table.get("episodes", spec.episodes)
    far = max(episodes, spec.episodes) > _FAR * min(episodes, spec.episodes)
    found += [("episodes", episodes, spec.episodes)] if far else []
    found += [("horizon", *pair)] if (pair := _horizons(spec, table)) else []
    return [(name, then, value) for name, then, value in found if then != value and not callable(value)]


def _horizons(spec: SweepSpec, table: Mapping[str, Any]) -> tuple[Any, Any] | None:
    """Horizons of the table and of the spec, where either says one; the other's is the environment's own."""
    then, now = table.get("horizon"), spec.horizon
    if then is None and now is None:
        return None
    try:
        own = None if then and now else environments.make(spec.environment).horizon
    except ValueError:  # not an environment of the registry, or one that has none of its own
        return None
    return then or own, now or own


def searched(learner: Learner) -> dict[str, tuple[float, ...]]:
    """The parameters of a learner that are tuned, with the values to try."""
    return {p.name: SEARCHED[p.name] for p in learner.parameters if p.name in SEARCHED}


def best(data: xr.Dataset) -> tuple[dict[str, float], float]:
    """(values of the tuned parameters, mean final regret) of the least mean over seeds and epsilons."""
    names = [name for name in data.attrs["parameters"] if name in SEARCHED]
    full = data.expand_dims([name for name in names if name not in data.dims])
    mean = full.regret.isel(episode=-1).mean(("seed", "epsilon")).transpose(*names)
    place = np.unravel_index(int(mean.values.argmin()), mean.shape)
    cell = mean.isel(dict(zip(names, (int(i) for i in place), strict=True)))
    return {name: float(cell[name]) for name in names}, float(cell)


def write(tables: Mapping[tuple[str, str, str], Mapping[str, Any]], path: str | Path) -> None:
    """Writes tables keyed by (environment, learner, privatizer), keeping others that the file holds."""
    path = Path(path)
    merged = {**(load(path) if path.is_file() else {}), **tables}
    lines = []
    for key in sorted(merged):
        lines.append("[" + ".".join(_quoted(name) for name in key) + "]")
        lines += [f"{name} = {_toml(value)}" for name, value in merged[key].items()] + [""]
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(path.name + ".partial")  # a disk that fills up must not cost the tables that were there
    try:
        partial.write_text("\n".join(lines), encoding="utf-8")
        os.replace(partial, path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise


def load(path: str | Path) -> dict[tuple[str, str, str], dict[str, Any]]:
    """Reads a file that `write` made."""
    path = Path(path)
    if not path.is_file():
        raise ValueError(f"No file '{path}'. Make one with 'jaxprivrl tune --out {path}'.")
    tables = {}
    for environment, by_learner in _read(path).items():
        for learner, by_privatizer in _items(by_learner):
            for privatizer, table in _items(by_privatizer):
                tables[(environment, learner, privatizer)] = table
                name = f"[{environment}.{learner}.{privatizer}]"
                if not isinstance(table, dict) or "bonus_scale" not in table:
                    raise ValueError(f"'{path}' has no bonus_scale in {name}. Make one with 'jaxprivrl tune'.")
                epsilons = table.get("epsilons", [])
                numbers = [(n, table[n]) for n in _NUMBERS if n in table]
                numbers += [("epsilons", e) for e in epsilons] if isinstance(epsilons, list) else [("epsilons", "")]
                for number, value in numbers:
                    if isinstance(value, bool) or not isinstance(value, (int, float)):
                        given = _toml(table[number])
                        raise ValueError(
                            f"'{path}' has {number} = {given} in {name}, expected numbers. Make one with 'jaxprivrl "
                            "tune'."
                        )
    return tables


def apply(spec: SweepSpec, path: str | Path, say: Callable[[str], None] | None = None) -> SweepSpec:
    """The spec with the tuned bonus scale and step size of its environment, learner and privatizer.

    What the spec's grid says of them wins. Where the table was tuned for something else, it is used all the same.

    Args:
      spec: the grid.
      path: a file that `write` made.
      say: told, in one sentence, what the table was tuned for that the spec does not have; by default stderr.
    """
    say = say or _say
    _validate.one_of("learner", spec.learner, learners())
    _validate.one_of("privatizer", spec.privatizer, privatizers())
    key = (spec.environment, spec.learner, spec.privatizer)
    tables = load(path)
    if key not in tables:
        known = ", ".join(".".join(k) for k in sorted(tables)) or "nothing"
        raise ValueError(f"'{path}' has no table [{'.'.join(key)}]; it holds {known}. Run 'jaxprivrl tune' for it.")
    table, name = tables[key], f"[{'.'.join(key)}] of '{path}'"
    found = {n: (float(table[n]),) for n in searched(learners()[spec.learner]) if n in table and n not in spec.grid}
    if not found:
        say(f"All that {name} gives is given by hand as well, so the file changes nothing.")
        return spec
    first, count = int(table.get("seed_start", 0)), int(table.get("seeds", 0))
    if spec.seed_start < first + count and first < spec.seed_start + spec.seeds:
        raise ValueError(
            f"Seeds {spec.seed_start} to {spec.seed_start + spec.seeds - 1} were used for tuning ({first} to "
            f"{first + count - 1}). Pass another --seed-start."
        )
    others = [f"{n}={_toml(then)} (now {_toml(now)})" for n, then, now in differences(spec, table)]
    if others:
        listed = ", ".join(others[:-1]) + " and " * (len(others) > 1) + others[-1]
        say(f"{name} was tuned for {listed}, so its numbers may be far from the best here.")
    return spec.replace(grid={**spec.grid, **found})


def _say(sentence: str) -> None:
    print(f"jaxprivrl: {sentence}", file=sys.stderr)


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
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(_toml(v) for v in value) + "]"
    return repr(value)
