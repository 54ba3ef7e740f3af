"""Mechanisms in which each user adds noise to its own report: the paper's Local-Privatizer, and its Gaussian form."""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from jaxprivrl.privacy.laws import Gaussian, Laplace
from jaxprivrl.privacy.privatizer import Calibration, Privatizer
from jaxprivrl.privacy.report import Report
from jaxprivrl.privacy.strategies import NoiseStream, Norms, Strategy, as_float
from jaxprivrl.privatizers.runtimes import additive
from jaxprivrl.problem import Problem, Shape


@dataclass(frozen=True)
class PerUser(Strategy):
    """C = I over users: fresh noise in each report, all of it summed in a release; no stream of the agent's own."""

    per_user, summed = True, True

    def norms(self, num_leaves: int) -> Norms:
        """1: a user is in its own report alone."""
        return Norms(1.0, 1.0)

    def units(self, xp: Any, data: Any, j: Any) -> Any:
        """One draw for each user."""
        return as_float(xp, j)

    def worst_units(self, num_leaves: int) -> float:
        """All users' draws."""
        return float(num_leaves)

    def dense(self, num_leaves: int, num_releases: int) -> np.ndarray:
        """Ones on and below the diagonal."""
        return np.tri(num_releases)

    def noisy_sums(self, num_releases: int) -> list[tuple[int, int]]:
        """The reports one by one."""
        return [(k, k - 1) for k in range(1, num_releases + 1)]

    def stream(self, shape: Shape, law: Any) -> NoiseStream:
        """There is none: the noise comes with the reports."""
        raise TypeError("PerUser noise is made when reports are absorbed, not when they are released.")


def _printed_scale(problem: Problem, epsilon: float) -> float:
    """3H / epsilon."""
    return 3.0 * problem.horizon / epsilon


def printed_errors(problem: Problem, scale: float, failure_prob: float, terms: float) -> tuple[float, float, float]:
    """The paper's E1, E1, E2 = scale sqrt(8 terms ln(6 S A T / failure_prob)), S^2 A for E2, natural logarithms."""
    H, S, A, K = problem.horizon, problem.num_states, problem.num_actions, problem.num_episodes
    one, two = (scale * math.sqrt(8 * terms * math.log(6 * n * K * H / failure_prob)) for n in (S * A, S * S * A))
    return one, one, two


def published_scale(problem: Problem, epsilon: float) -> float:
    """1 / epsilon, as in the authors' code."""
    del problem
    return 1.0 / epsilon


# Each user adds fresh Laplace noise to every entry of what it reports.
#   release after n users = sum of n reports = true counts + scale * sum of n unit draws
# Privacy: LDP at the epsilon that accounting computes from the scale, for each user's whole episode.
# Reference: Chowdhury and Zhou, AAAI 2022, Local-Privatizer.
local_laplace = Privatizer(
    "local_laplace",
    trust="LDP",
    report=Report(),
    law=Laplace(),
    strategy=PerUser(),
    runtime=additive,
    summary="The paper's Local-Privatizer: each user adds fresh Laplace noise to every entry of what it reports.",
    noise="√(2k) reports",
    calibrations=(
        (
            "printed",
            Calibration(_printed_scale, lambda p, scale, prob: printed_errors(p, scale, prob, float(p.num_episodes))),
        ),
        ("published_code", Calibration(published_scale)),
    ),
)

# The same with N(0, scale^2).
# Privacy: (epsilon, dp_delta)-LDP: replacing a user's episode moves its report by at most D2 in L2.
# Reference: Chowdhury and Zhou, AAAI 2022, Local-Privatizer, with the noise of Balle and Wang, ICML 2018.
local_gaussian = Privatizer(
    "local_gaussian",
    trust="LDP",
    report=Report(),
    law=Gaussian(),
    strategy=PerUser(),
    runtime=additive,
    summary="Each user adds fresh Gaussian noise to every entry of what it reports.",
    noise="√k reports",
)
