"""Measured growth of regret beside the theorems: in K without privacy, and of the extra regret in K and in epsilon.

For each environment and learner, at a bonus scale that stays fixed over K, the mean regret R(K) of runs calibrated
for K is fitted by a line in log-log; intervals are 95 %, by bootstrap over seeds (private and exact runs of a seed are
paired). The theorems are upper bounds: a row supports its theorem unless the whole interval lies beyond it, which
happens to one row in 40 where the bound is met exactly, so a single such row among 30 says little. Raw slopes
come first; then slopes of the regret divided by the logarithmic factor of the bound really used:

  exact   sqrt(ln(4SAT/delta))                       regret at most sqrt(K) times this
  central E1(K) ln K / epsilon-free constants        extra regret at most a constant times this
  local   E1(K) ln K, of which sqrt(K) is the power  extra regret at most sqrt(K) times the rest

  python benchmarks/theory.py                  # ten minutes on two cores
  python benchmarks/theory.py --smoke          # one small environment, for the tests
"""

import argparse
import json
import math
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

_RESAMPLES = 2000


class Setting(NamedTuple):
    """One environment with the numbers at which exact, central and local runs all learn."""

    name: str
    bonus_scale: float
    epsilon_central: float
    epsilon_local: float
    episodes: tuple[int, ...]
    learning_rate: float = 0.3


LADDER = (8_000, 16_000, 32_000, 64_000, 128_000)
SETTINGS: tuple[Setting, ...] = (
    Setting("random 1", 0.05, 3_000.0, 3_000.0, LADDER),
    Setting("random 2", 0.05, 3_000.0, 3_000.0, LADDER),
    Setting("river_swim", 5e-3, 20_000.0, 20_000.0, LADDER),
)
FACTORS = (1.0, 2.0, 4.0, 8.0)  # of epsilon, for the slope in epsilon


def environment(name: str) -> Any:
    """The MDP of a setting."""
    from jaxprivrl import environments
    from jaxprivrl.numerics import random

    if name == "river_swim":
        return environments.river_swim()
    return environments.random_mdp(random.key(int(name.split()[-1])), horizon=4, num_states=3, num_actions=2)


def finals(setting: Setting, mdp: Any, learner: str, privatizer: str, K: int, epsilons: Any, seeds: int) -> np.ndarray:
    """Final regret f64[epsilon, seed] of runs calibrated for K episodes."""
    from jaxprivrl.experiments.spec import SweepSpec
    from jaxprivrl.experiments.sweep import sweep
    from jaxprivrl.learners import LEARNERS

    grid = {"bonus_scale": (setting.bonus_scale,), "learning_rate": (setting.learning_rate,)}
    declared = {parameter.name for parameter in LEARNERS[learner].parameters}
    spec = SweepSpec(
        environment=setting.name,
        learner=learner,
        privatizer=privatizer,
        epsilons=tuple(epsilons),
        seeds=seeds,
        episodes=K,
        grid={name: values for name, values in grid.items() if name in declared},
        record_every=K,
    )
    return sweep(spec, mdp).regret.isel(episode=-1).transpose("epsilon", "seed").values


def slope(x: np.ndarray, y: np.ndarray, divisor: np.ndarray | float = 1.0) -> tuple[float, float, float]:
    """Least-squares slope of ln(mean y / divisor) against ln x, and its 95 % bootstrap interval over seeds.

    Args:
      x: f64[n], abscissas.
      y: f64[n, seed], values; rows whose mean is not positive in a resample are left out of it.
      divisor: f64[n] or a number.
    """

    def fit(mean: np.ndarray) -> float:
        keep = mean > 0
        if keep.sum() < 2:
            return math.nan
        z = np.log(mean[keep] / np.broadcast_to(divisor, mean.shape)[keep])
        return float(np.polyfit(np.log(x[keep]), z, 1)[0])

    draws = np.random.default_rng(0).integers(0, y.shape[1], (_RESAMPLES, y.shape[1]))
    low, high = np.nanquantile([fit(y[:, d].mean(1)) for d in draws], [0.025, 0.975])
    return fit(y.mean(1)), float(low), float(high)


def log_factor(setting: Setting, mdp: Any, privatizer: str, Ks: Any) -> np.ndarray:
    """The logarithmic factor of the bound at each K, as the learner really uses it."""
    from jaxprivrl.privacy import accounting
    from jaxprivrl.privatizers import PRIVATIZERS
    from jaxprivrl.problem import Problem

    H, S, A = mdp.shape
    if privatizer == "exact":
        return np.array([math.sqrt(math.log(4 * S * A * H * K / 0.1)) for K in Ks])
    factors = []
    for K in Ks:
        error = accounting.calibrate(PRIVATIZERS[privatizer], Problem(H, S, A, K), 1.0).errors.visits.max()
        power = math.sqrt(K) if privatizer == "local_laplace" else 1.0
        factors.append(float(error) / power * math.log(K))
    return np.array(factors)


def measure(setting: Setting, learner: str, seeds: int) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Rows of the table of one environment and learner, and the points for the figure."""
    mdp = environment(setting.name)
    Ks = np.array(setting.episodes)
    exact = np.concatenate([finals(setting, mdp, learner, "exact", int(K), (math.inf,), seeds) for K in Ks])
    rows, points = [], {"exact": (Ks, exact.mean(1))}
    uniform = _uniform_regret(mdp)
    rows.append(_row(setting, learner, "exact", "K", 0.5, Ks, exact, log_factor(setting, mdp, "exact", Ks), 1))
    rows[-1]["learned"] = f"{exact[-1].mean() / Ks[-1] / uniform:.1%} of uniform"
    for privatizer, theory, eps in (
        ("central_laplace", 0.0, setting.epsilon_central),
        ("local_laplace", 0.5, setting.epsilon_local),
    ):
        private = np.concatenate([finals(setting, mdp, learner, privatizer, int(K), (eps,), seeds) for K in Ks])
        extra = private - exact
        share = f"{private[-1].mean() / Ks[-1] / uniform:.1%} of uniform"
        factor = log_factor(setting, mdp, privatizer, Ks)
        rows.append(_row(setting, learner, f"extra, {privatizer}, ε={eps:g}", "K", theory, Ks, extra, factor, 1))
        rows[-1]["learned"] = share
        epsilons = eps * np.array(FACTORS)
        by_epsilon = finals(setting, mdp, learner, privatizer, int(Ks[-1]), epsilons, seeds) - exact[-1]
        one = np.ones(len(epsilons))
        rows.append(_row(setting, learner, f"extra, {privatizer}", "ε", -1.0, epsilons, by_epsilon, one, -1))
        rows[-1]["learned"] = share
        points[privatizer] = (Ks, extra.mean(1))
        points[privatizer + " epsilon"] = (epsilons, by_epsilon.mean(1))
    return rows, points


def _row(setting: Setting, learner: str, what: str, variable: str, theory: float, x: Any, y: Any, factor: Any,
         direction: int) -> dict[str, Any]:  # fmt: skip
    """One line: an upper bound on a growth exponent is supported unless the whole interval exceeds it."""
    raw, adjusted = slope(x, y), slope(x, y, factor)
    beyond = adjusted[1] > theory if direction > 0 else adjusted[2] < theory
    return {
        "environment": setting.name,
        "learner": learner,
        "regret": what,
        "in": variable,
        "theory": f"{'<=' if direction > 0 else '>='} {theory:g}",
        "raw_slope": f"{raw[0]:.2f} [{raw[1]:.2f}, {raw[2]:.2f}]",
        "slope_without_logs": f"{adjusted[0]:.2f} [{adjusted[1]:.2f}, {adjusted[2]:.2f}]",
        "verdict": "beyond the bound" if beyond else "supports",
    }


def _uniform_regret(mdp: Any) -> float:
    import jax.numpy as jnp

    from jaxprivrl import mdp as mdp_lib

    policy = jnp.full(mdp.shape, 1.0 / mdp.shape[2])
    return float(mdp_lib.expected_regret(mdp, jnp.asarray(mdp_lib.solve(mdp).gaps, jnp.float32), policy))


def figure(points: dict[tuple[str, str], dict[str, Any]], path: Path) -> None:
    """Log-log: regret in K above, extra regret in epsilon below, one column per environment."""
    from jaxprivrl.experiments import plots

    names = list(dict.fromkeys(name for name, _ in points))
    fig, axes = plots.new_figure(columns=len(names), rows=2, width=4.6, height=3.6)
    colours = {"exact": "black", "central_laplace": plots.COLOURS[0], "local_laplace": plots.COLOURS[1]}
    for (name, learner), series in points.items():
        column, marker = names.index(name), "o" if learner == "ucb_vi" else "s"
        for key, (x, y) in series.items():
            privatizer, in_epsilon = key.split()[0], key.endswith("epsilon")
            label = f"{learner}: " + ("exact" if privatizer == "exact" else f"extra, {privatizer}")
            keep = np.asarray(y) > 0
            axes[int(in_epsilon), column].plot(
                np.asarray(x)[keep], np.asarray(y)[keep], marker=marker, color=colours[privatizer], label=label,
                linestyle="-" if learner == "ucb_vi" else "--", markersize=4,
            )  # fmt: skip
    for column, name in enumerate(names):
        for row, (xlabel, ylabel) in enumerate((("episodes K", "regret at K"), ("ε", "extra regret at the largest K"))):
            ax = axes[row, column]
            ax.set(xscale="log", yscale="log", xlabel=xlabel, ylabel=ylabel, title=name)
            ax.grid(alpha=0.25, which="both")
            plots.plain_logs(ax.xaxis)
            plots.plain_logs(ax.yaxis)
    for row in (0, 1):
        axes[row, -1].legend(frameon=False, fontsize=8, loc="center left", bbox_to_anchor=(1.0, 0.5))
    plots.save(fig, path)


def main(argv: list[str] | None = None) -> int:
    """Measures, prints the table, draws the figure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=16)
    parser.add_argument("--out", type=Path, default=Path("results/theory.png"))
    parser.add_argument("--smoke", action="store_true")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args(argv)
    from jaxprivrl.experiments import tables
    from jaxprivrl.numerics import runtime

    runtime.configure()
    begin = time.perf_counter()
    learners: tuple[str, ...] = ("ucb_vi", "ucb_po")
    settings, seeds = SETTINGS, args.seeds
    if args.smoke:
        settings, learners, seeds = (SETTINGS[0]._replace(episodes=(500, 1000, 2000)),), ("ucb_vi",), 4
    rows: list[dict[str, Any]] = []
    points = {}
    for setting in settings:
        for learner in learners:
            found, points[(setting.name, learner)] = measure(setting, learner, seeds)
            rows += found
            print(tables.plain(found), "\n", file=sys.stderr)
    figure(points, args.out)
    args.out.with_suffix(".csv").write_text(tables.to_csv(rows))
    if args.json:
        print(json.dumps({"rows": rows, "seconds": time.perf_counter() - begin}, ensure_ascii=False))
    else:
        print(tables.plain(rows))
        print(f"Wrote {args.out} in {time.perf_counter() - begin:.0f} s.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
