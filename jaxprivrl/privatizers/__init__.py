"""Privatizers: from the sensitive counts of users' episodes to the releases that a learner may see."""

from jaxprivrl.privatizers.base import (
    NoiseParameters,
    NoiseStream,
    Privatizer,
    PrivatizerFactory,
    PrivatizerState,
    Release,
    Totals,
    additive,
)
from jaxprivrl.privatizers.gaussian import central_gaussian, central_honaker, central_blt, local_gaussian
from jaxprivrl.privatizers.laplace import central_laplace, exact, local_laplace

PRIVATIZERS: dict[str, PrivatizerFactory] = {
    "exact": exact,
    "central_laplace": central_laplace,
    "local_laplace": local_laplace,
    "central_gaussian": central_gaussian, "central_honaker": central_honaker, "central_blt": central_blt, "local_gaussian": local_gaussian,
}

__all__ = [
    "PRIVATIZERS",
    "NoiseParameters",
    "NoiseStream",
    "Privatizer",
    "PrivatizerFactory",
    "PrivatizerState",
    "Release",
    "Totals",
    "additive",
    "central_laplace",
    "exact",
    "local_laplace",
]
