"""How far a noisy count may lie from the true one: standard deviations, and errors that hold with high probability.

Host side. Everything here is public: it depends on sizes and noise scales, never on data. The error is a function of
the noise's variance, so that one table by buckets of it serves every mechanism.
"""

import math
from typing import Any, NamedTuple

import numpy as np

from jaxprivrl import _validate
from jaxprivrl.privacy.privatizer import Privatizer
from jaxprivrl.problem import FAMILIES, Problem

PER_OCTAVE = 8  # buckets to a doubling of the variance
_FIRST = 9  # bucket of one draw; smaller ones are weighted means of draws, and not below half a draw
ROWS = _FIRST + PER_OCTAVE * 31 + 1  # up to 2^31 draws


class ErrorTable(NamedTuple):
    """Two-sided high-probability error (or std) of each family, by bucket of the variance or by release.

    Attributes:
      visits, costs, transitions: f32[M].
    """

    visits: np.ndarray
    costs: np.ndarray
    transitions: np.ndarray


def check_noise_scale(noise_scale: float) -> None:
    """Raises ValueError unless the scale is finite and not negative."""
    if not (math.isfinite(noise_scale) and noise_scale >= 0):
        raise ValueError(f"Expected noise_scale={noise_scale} to be finite and >= 0. Use 0 for no noise.")


def bucket(xp: Any, units: Any) -> Any:
    """Row of a table, i32: 0 for no noise, else in eighths of an octave of the variance in units of one draw.

    Host and device: xp is numpy or jax.numpy.
    """
    index = _FIRST + xp.floor(PER_OCTAVE * xp.log2(xp.maximum(units, 0.5))).astype(np.int32)
    return xp.where(units > 0, xp.clip(index, 1, ROWS - 1), 0)


def bucket_units(worst: float, summed: bool) -> np.ndarray:
    """Largest variance of each bucket, f64[ROWS], at most the worst one; a whole number where draws are summed.

    A little more than the edge, as a float32 logarithm may fall one bucket short.
    """
    edge = 2.0 ** ((np.arange(ROWS) - _FIRST + 1) / PER_OCTAVE) * (1 + 1e-5)
    edge = np.where(np.arange(ROWS) == 0, 0.0, np.minimum(edge, worst))
    return np.where(edge >= 1, np.floor(edge), np.ceil(edge)) if summed else edge


def standard_deviation(privatizer: Privatizer, problem: Problem, noise_scale: float, leaves: np.ndarray) -> ErrorTable:
    """Standard deviation of the noise on one count of each family in the releases after so many leaves.

    Exact for additive noise; for sampled steps and the costs of bits a public upper bound, as sampling and rounding
    variance depend on the data.

    Args:
      privatizer: the mechanism.
      problem: sizes, schedule.
      noise_scale: scale of one draw.
      leaves: i[N], numbers of releases made, or of users where each adds noise of its own.
    Returns:
      ErrorTable of f32[N].
    Privacy: a public function of sizes.
    """
    check_noise_scale(noise_scale)
    data = privatizer.strategy.data(privatizer.num_leaves(problem))
    variances = privatizer.variance(np, problem.shape, noise_scale, data, np.asarray(leaves, np.int64))
    return ErrorTable(*(_round_up(np.sqrt(v + np.zeros(len(leaves)))) for v in variances))


def error_table(
    privatizer: Privatizer,
    problem: Problem,
    noise_scale: float,
    failure_prob: float,
    *,
    calibration: str = "tight",
    time_varying: bool = False,
) -> ErrorTable:
    """Two-sided error that all counts of a family keep within, in all releases, with high probability.

    Each count of visits and costs exceeds its error with probability at most failure_prob / (3 S A T) per release,
    each count of transitions with failure_prob / (3 S^2 A T), T = K H: a union bound leaves 1 - failure_prob.

    Args:
      privatizer: the mechanism, whose law knows its quantiles.
      problem: sizes, schedule.
      noise_scale: scale of one draw, as `accounting.noise_scale` returns it; at 0 every privatizer, those that round
        or sample included, releases the counts themselves.
      failure_prob: in (0, 1).
      calibration: "tight", or one that the privatizer declares and that may bring bounds of its own.
      time_varying: False repeats the worst case (of any release a learner uses) in every bucket, also before the first
        release; True gives each bucket the largest error of its own variance, and 0 for none.
    Returns:
      ErrorTable of f32[ROWS], rounded up. A derived family (visits, families=2) carries the noise of S transitions.
    Privacy: a public function of sizes; using it costs nothing.
    Reference: Chowdhury and Zhou, AAAI 2022, Assumption on the privatizer and the lemmas on both privatizers.
    """
    privatizer.check(problem, calibration)
    _validate.probability("failure_prob", failure_prob)
    check_noise_scale(noise_scale)
    if not privatizer.private or noise_scale == 0.0:
        return ErrorTable(*(np.zeros(ROWS, np.float32) for _ in FAMILIES))
    own = dict(privatizer.calibrations).get(calibration) if calibration != "tight" else None
    if own is not None and own.errors is not None:
        if time_varying:
            raise ValueError(f"calibration='{calibration}' has no time-varying error. Use calibration='tight'.")
        values = own.errors(problem, noise_scale, failure_prob)
        return ErrorTable(*(_round_up(np.full(ROWS, value)) for value in values))
    H, S, A, K = problem.horizon, problem.num_states, problem.num_actions, problem.num_episodes
    strategy = privatizer.strategy
    worst = strategy.worst_units(privatizer.num_leaves(problem))
    units = bucket_units(worst, strategy.summed) if time_varying else np.full(ROWS, worst)
    distinct, inverse = np.unique(units, return_inverse=True)
    tables = []
    for family in FAMILIES:
        tail_prob = failure_prob / (3.0 * S * A * K * H * (S if family == "transitions" else 1))
        errors = np.array([privatizer.error(problem, noise_scale, float(u), family, tail_prob) for u in distinct])
        tables.append(_round_up(errors[inverse]))
    return ErrorTable(*tables)


def _round_up(values: np.ndarray) -> np.ndarray:
    """Float32 values that are not below the float64 ones."""
    rounded = np.asarray(values, np.float32)
    return np.where(rounded < values, np.nextafter(rounded, np.float32(np.inf)), rounded)
