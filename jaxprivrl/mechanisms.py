"""Which mechanism to pick: the error of a count against the episode, predicted and measured, at one target."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxprivrl import accounting, noise, plotting, precision, sweep
from jaxprivrl.accounting import Problem
from jaxprivrl.batching import vmap_last
from jaxprivrl.mdp import Counts
from jaxprivrl.privatizers import PRIVATIZERS, PrivatizerState, Release
from jaxprivrl.runtime import COMPILER_OPTIONS

FAMILIES = ("visits", "costs", "transitions")


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
    calibration: accounting.Calibration
    episodes: np.ndarray
    predicted: dict[str, np.ndarray]
    measured: dict[str, np.ndarray]


def evaluate(
    name: str, problem: Problem, epsilon: float, dp_delta: float, target: str | None, seeds: int = 8, points: int = 24
) -> MechanismError:
    """Predicts and measures the error of a mechanism; every user stays in one state, which is a worst case."""
    calibration = accounting.calibrate(name, problem, epsilon, dp_delta=dp_delta, target=target)
    K = problem.num_episodes
    ks = np.unique(np.round(np.geomspace(1, K, points)).astype(int))
    # Odd numbers of many ones and even numbers of few are both typical of a tree: keep each k and its predecessor.
    ks = np.unique(np.concatenate([ks, np.maximum(ks - 1, 1)]))
    std = precision.standard_deviation(name, problem, calibration.noise_scale, ks)
    return MechanismError(
        name,
        calibration,
        ks,
        {f: np.asarray(getattr(std, f), np.float64) for f in FAMILIES},
        _measure(name, problem, calibration, ks, seeds),
    )


def _measure(
    name: str, problem: Problem, calibration: accounting.Calibration, ks: np.ndarray, seeds: int
) -> dict[str, np.ndarray]:
    """Root mean square of released minus true counts at the numbers of users in ks, by the real privatizer."""
    H, S, A, K = problem.horizon, problem.num_states, problem.num_actions, problem.num_episodes
    stages = 1 if problem.homogeneous else H
    shape = sweep.shape_of(problem, sweep.stack_episodes(K))
    parameters = sweep.noise_parameters(name, problem, calibration)
    privatizer = PRIVATIZERS[name](shape, parameters)
    one = _episode(H, S, A)
    state, release = privatizer.init(shape.zero_counts())
    axes = PrivatizerState(None, -1, -1), Release(-1, -1, -1, None)  # type: ignore[arg-type]
    state, release = jax.vmap(lambda _: (state, release), out_axes=axes)(jnp.arange(seeds))

    def advance(keys: jax.Array, carry: Any, start: jax.Array, stop: jax.Array) -> Any:
        def body(k: jax.Array, carry: Any) -> Any:
            now = jax.vmap(lambda key: jax.random.fold_in(key, k))(keys)
            return vmap_last(lambda key, state: privatizer.step(key, state, one), (0, axes[0]), axes)(now, carry[0])

        return jax.lax.fori_loop(start, stop, body, carry)

    program = jax.jit(advance, compiler_options=COMPILER_OPTIONS)
    keys, carry, before = jax.vmap(noise.key)(jnp.arange(seeds)), (state, release), 0
    truth = jax.tree.map(lambda x: np.asarray(x).sum(0, keepdims=True) if stages == 1 else np.asarray(x), one)
    rms = {f: np.zeros(len(ks)) for f in FAMILIES}
    for i, k in enumerate(ks):
        carry = program(keys, carry, np.int32(before), np.int32(k))
        before, users = k, int(carry[1].num_episodes)  # fewer than k while a batch is open
        for f in FAMILIES:
            noisy = np.asarray(getattr(carry[1].counts, f), np.float64)
            rms[f][i] = np.sqrt(np.mean((noisy - users * getattr(truth, f)[..., None]) ** 2))
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
    fig, axes = plotting.new_figure(width=8.6, height=4.6)
    ax = axes[0, 0]
    for i, e in enumerate(sorted(errors, key=lambda e: -e.predicted["transitions"].max())):
        colour = plotting.COLOURS[i % len(plotting.COLOURS)]
        dash = plotting.DASHES[i // len(plotting.COLOURS)]
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
    plotting.save(fig, *paths)


def targets(name: str, epsilon: float) -> list[str]:
    """Targets at which a mechanism is shown: its own, and the approximate one beside a pure one."""
    mechanism = accounting.MECHANISMS[name]
    if mechanism.noise == "none" or math.isinf(epsilon):
        return []
    return ["pure", "approximate"] if mechanism.target == "pure" else ["approximate"]
