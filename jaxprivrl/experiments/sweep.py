"""From a spec to a labelled Dataset."""

from collections.abc import Callable

import xarray as xr

from jaxprivrl.engine import run as engine
from jaxprivrl.experiments import results
from jaxprivrl.experiments.spec import Plan, SweepSpec, resolve
from jaxprivrl.mdp import MDP

Progress = Callable[[int, int, float], None]


def sweep(spec: SweepSpec, mdp: MDP | None = None, *, progress: Progress | None = None) -> xr.Dataset:
    """Runs a grid and returns cumulative regret by epsilon, hyper-parameter, seed and episode.

    Args:
      spec: the grid.
      mdp: the MDP; by default the one that the spec names.
      progress: called after each chunk with (runs * episodes done, runs * episodes in all, seconds of compiling).

    Returns:
      A Dataset with `regret` (float64, cumulative exact pseudo-regret), the accounted epsilons as coordinates, and
      the guarantees and timings in its attributes (see `results`).

    Privacy: the guarantee of each epsilon is that of one run. Runs of a seed share their noise across epsilons.
    """
    return run(resolve(spec, mdp), progress)


def run(plan: Plan, progress: Progress | None = None) -> xr.Dataset:
    """Runs a plan."""
    return results.to_dataset(plan, *engine.run(plan.job, progress))
