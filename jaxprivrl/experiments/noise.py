"""Which mechanism to pick: the error of a count against the episode, predicted and measured, at one target."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxprivrl.engine import episodes
from jaxprivrl.engine.episodes import Agent
from jaxprivrl.engine.run import axes, release_times
from jaxprivrl.experiments import plots
from jaxprivrl.experiments.folders import gigabytes
from jaxprivrl.mdp import Counts
from jaxprivrl.numerics import random
from jaxprivrl.numerics.axes import vmap_last
from jaxprivrl.numerics.runtime import COMPILER_OPTIONS, available_memory
from jaxprivrl.privacy import accounting, errors
from jaxprivrl.privacy.privatizer import TARGETS
from jaxprivrl.privatizers import Privatizer
from jaxprivrl.privatizers.base import parameters
from jaxprivrl.problem import FAMILIES, Problem

_BYTES_OF_COUNTER = 4 * 16  # of a tree of some twelve levels, the sums and a release


class MechanismError(NamedTuple):
    """Error of one mechanism at one target.

    Attributes:
      name: privatizer.
      calibration: noise scale and guarantee.
      episodes: i[n], numbers of users in a release.
      predicted: {family: f64[n]}, standard deviation of one count.
      measured: {family: f64[n]}, root mean square error over seeds and counters.
    """

    name: str
    calibration: accounting.Calibrated
    episodes: np.ndarray
    predicted: dict[str, np.ndarray]
    measured: dict[str, np.ndarray]


def evaluate(
    privatizer: Privatizer,
    problem: Problem,
    epsilon: float,
    dp_delta: float,
    target: str | None,
    seeds: int = 8,
    points: int = 24,
) -> MechanismError:
    """Predicts and measures the error of a mechanism; every user stays in one state, which is a worst case."""
    calibrated = accounting.calibrate(privatizer, problem, epsilon, dp_delta=dp_delta, target=target)
    accounting.check_float32(privatizer, problem, epsilon, calibrated.noise_scale)
    J = problem.num_releases
    js = np.unique(np.round(np.geomspace(1, J, points)).astype(int))
    # Odd numbers of many ones and even numbers of few are both typical of a tree: keep each j and its predecessor.
    js = np.unique(np.concatenate([js, np.maximum(js - 1, 1)]))
    users = js if problem.schedule.every else problem.schedule.times(problem.num_episodes)[js - 1]
    leaves = users if privatizer.strategy.per_user else js
    std = errors.standard_deviation(privatizer, problem, calibrated.noise_scale, leaves)
    return MechanismError(
        privatizer.name,
        calibrated,
        users,
        {f: np.asarray(getattr(std, f), np.float64) for f in FAMILIES},
        _measure(privatizer, problem, calibrated, users, seeds),
    )


def check(problem: Problem, seeds: int) -> None:
    """Raises unless a measurement can be made: before the mechanisms are tried one by one."""
    if problem.num_episodes >= 2**31:
        raise ValueError(f"Expected episodes={problem.num_episodes} < 2**31, the largest number. Pass fewer.")
    H, S, A = problem.horizon, problem.num_states, problem.num_actions
    size = _BYTES_OF_COUNTER * seeds * H * S * A * (S + 2)
    free = available_memory()
    if free is not None and size > free:
        raise ValueError(
            f"This measurement needs {gigabytes(size)} of memory or so, and {gigabytes(free)} are free. Pass fewer "
            "seeds or states, or a smaller horizon."
        )


def _measure(
    privatizer: Privatizer, problem: Problem, calibrated: accounting.Calibrated, ks: np.ndarray, seeds: int
) -> dict[str, np.ndarray]:
    """Root mean square of released minus true counts at the numbers of users in ks, by the real privatizer."""
    shape, runtime = problem.shape, privatizer.runtime(privatizer, problem.shape)
    every = problem.schedule.every
    times = () if every else release_times(problem.schedule.times(problem.num_episodes), every)
    numbers = jax.tree.map(jnp.asarray, parameters(privatizer, problem, calibrated))
    agent = Agent(shape, privatizer, runtime, numbers, jnp.asarray(times) if len(times) else ())
    one = _episode(problem.horizon, problem.num_states, problem.num_actions)
    by_seed = axes(seed=-1)
    start = jax.vmap(lambda _: episodes.init(runtime, ()), out_axes=by_seed)(jnp.arange(seeds))

    def advance(keys: jax.Array, state: Any, start: jax.Array, stop: jax.Array) -> Any:
        def body(k: jax.Array, state: Any) -> Any:
            now = jax.vmap(lambda key: jax.random.fold_in(key, k))(keys)
            return vmap_last(lambda key, state: episodes.observe(key, state, agent, one), (0, by_seed), by_seed)(
                now, state
            )

        return jax.lax.fori_loop(start, stop, body, state)

    program = jax.jit(advance, compiler_options=COMPILER_OPTIONS)
    keys, state, before = jax.vmap(random.key)(jnp.arange(seeds)), start, 0
    truth = jax.tree.map(lambda x: np.asarray(x).sum(0, keepdims=True) if shape.num_stages == 1 else np.asarray(x), one)
    rms = {f: np.zeros(len(ks)) for f in FAMILIES}
    for i, k in enumerate(ks):
        state = program(keys, state, np.int32(before), np.int32(k))
        before = int(k)
        for f in FAMILIES:
            noisy = np.asarray(getattr(state.released, f), np.float64)
            rms[f][i] = np.sqrt(np.mean((noisy - before * getattr(truth, f)[..., None]) ** 2))
    return rms


def _episode(H: int, S: int, A: int) -> Counts:
    """A user who stays in the first state with the first action at cost one."""
    visits, transitions = np.zeros((H, S, A), np.float32), np.zeros((H, S, A, S), np.float32)
    visits[:, 0, 0], transitions[:, 0, 0, 0] = 1.0, 1.0
    return Counts(jnp.asarray(visits), jnp.asarray(visits), jnp.asarray(transitions))


def table(errors: Sequence[MechanismError]) -> list[dict[str, Any]]:
    """One row per mechanism, least transition error first."""
    rows = []
    for e in sorted(errors, key=lambda e: e.predicted["transitions"].max()):
        row: dict[str, Any] = {
            "privatizer": e.name,
            "guarantee": e.calibration.guarantee.label,
            "noise_scale": e.calibration.noise_scale,
        }
        for f in FAMILIES:
            row[f"{f}_std_max"] = float(e.predicted[f].max())
        last = e.predicted["transitions"][-1]
        row["transitions_std_end"] = float(last)
        row["measured_end"] = float(e.measured["transitions"][-1])
        rows.append(row)
    return rows


def figure(errors: Sequence[MechanismError], problem: Problem, *paths: Path) -> None:
    """Error of a transition count against episodes: lines predicted, dots measured."""
    fig, axes = plots.new_figure(width=8.6, height=4.6)
    ax = axes[0, 0]
    for i, e in enumerate(sorted(errors, key=lambda e: -e.predicted["transitions"].max())):
        colour = plots.COLOURS[i % len(plots.COLOURS)]
        dash = plots.DASHES[i // len(plots.COLOURS)]
        label = f"{e.name}: {e.calibration.guarantee.label}"
        released = e.predicted["transitions"] > 0  # nothing has been released before a first batch closes
        ax.plot(e.episodes[released], e.predicted["transitions"][released], color=colour, linestyle=dash, label=label)
        ax.plot(e.episodes[released], e.measured["transitions"][released], ".", color=colour, markersize=5)
    ks = errors[0].episodes
    largest = ks * (problem.horizon if problem.homogeneous else 1)
    ax.plot(ks, largest, color="0.6", linewidth=1, zorder=0, label="largest possible count")
    ax.set(xscale="log", yscale="log", xlabel="episode (= users in the release)")
    ax.set_ylabel("error of one transition count (standard deviation)\nlines: predicted, dots: measured")
    ax.grid(alpha=0.25)
    ax.legend(frameon=False, fontsize=7, loc="center left", bbox_to_anchor=(1.0, 0.5))
    plots.save(fig, *paths)


def targets(privatizer: Privatizer, epsilon: float) -> list[str]:
    """Targets at which a mechanism is shown: its own, and the approximate one beside a pure one."""
    if not privatizer.private or math.isinf(epsilon):
        return []
    return list(TARGETS) if privatizer.target == "pure" else ["approximate"]
